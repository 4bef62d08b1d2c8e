/* Runs a program's statements one by one: operators through the boxed call, which takes the same
 * way to the cursor as the typed functions. */
#include "program.h"

#include <string.h>

/* ---- operators ---- */

static int64_t number(fuzz_world *w, const fuzz_int *n) {
    return n->of < 0 ? n->v : fuzz_size(w, n->of, n->dim, n->v);
}

static etch_dims numbers(fuzz_world *w, const fuzz_arg *a) {
    etch_dims d = {.n = a->n};
    for (int i = 0; i < a->n; i++) d.v[i] = number(w, &a->number[i]);
    return d;
}

/* False when a tensor is not there, so that the statement is left out. */
static bool value_of(fuzz_world *w, const fuzz_arg *a, arg_type type, etch_tensor **list,
                     etch_value *v) {
    v->name = NULL;
    v->tag = ETCH_VALUE_NONE;
    for (int i = 0;
         (type == ARG_TENSOR || type == ARG_TENSOR_OPT || type == ARG_TENSORS) && i < a->n; i++)
        if (!(list[i] = w->v[a->tensor[i]])) return false;
    if (a->absent) return true;
    switch (type) {
    case ARG_TENSOR_OPT:
    case ARG_TENSOR: v->tag = ETCH_VALUE_TENSOR, v->tensor = list[0]; break;
    case ARG_TENSORS:
        v->tag = ETCH_VALUE_TENSORS, v->tensors.items = list, v->tensors.count = a->n;
        break;
    case ARG_SCALAR:
        v->tag = ETCH_VALUE_SCALAR, v->scalar = a->varies ? fuzz_vary(w, a->scalar) : a->scalar;
        break;
    case ARG_INT:
    case ARG_INT_OPT: v->tag = ETCH_VALUE_INT, v->i = number(w, &a->number[0]); break;
    case ARG_INTS:
    case ARG_INTS_OPT: v->tag = ETCH_VALUE_INTS, v->ints = numbers(w, a); break;
    case ARG_BOOL: v->tag = ETCH_VALUE_BOOL, v->b = a->number[0].v; break;
    default: v->tag = ETCH_VALUE_DTYPE, v->dtype = a->number[0].v;
    }
    return true;
}

/* Elements of the largest result that operands of these sizes, or a list of sizes, can have. */
static double largest_result(const etch_value *v, int n) {
    double elements = 1, listed = 1;
    for (int d = 1; d <= ETCH_MAX_DIMS; d++) {
        int64_t most = 1;
        for (int i = 0; i < n; i++)
            if (v[i].tag == ETCH_VALUE_TENSOR && etch_ndim(v[i].tensor) >= d &&
                etch_size(v[i].tensor, -d) > most)
                most = etch_size(v[i].tensor, -d);
        elements *= (double)most;
    }
    for (int i = 0; i < n; i++)
        for (int k = 0; v[i].tag == ETCH_VALUE_INTS && k < v[i].ints.n; k++)
            if (v[i].ints.v[k] > 1) listed *= (double)v[i].ints.v[k];
    return elements > listed ? elements : listed;
}

/* Elements of the scores of attention, which its derivatives make: of each query for each key. */
static double scores(const etch_value *v, int n) {
    double queries = 0, keys = 0, heads = 1;
    for (int i = 0; i < n; i++) {
        const etch_tensor *t = v[i].tag == ETCH_VALUE_TENSOR ? v[i].tensor : NULL;
        bool query = t && !strcmp(v[i].name, "query"), key = t && !strcmp(v[i].name, "key");
        if ((!query && !key) || etch_ndim(t) < 2) continue;
        *(query ? &queries : &keys) = (double)etch_size(t, -2);
        for (int d = 0; query && d < etch_ndim(t) - 2; d++) heads *= (double)etch_size(t, d);
    }
    return heads * queries * keys;
}

static void run_operator(fuzz_world *w, const statement *s) {
    const op_schema *schema = etch__schema(s->op);
    etch_value value[SCHEMA_MAX_ARGS];
    etch_tensor *list[SCHEMA_MAX_ARGS][4], *out = NULL;
    for (int i = 0; i < schema->nargs; i++) {
        const schema_arg *a = &schema->args[i];
        if (!value_of(w, &s->arg[i], (arg_type)a->type, list[i], &value[i])) return;
        value[i].name = a->name;
    }
    if (largest_result(value, schema->nargs) > 32 * FUZZ_MAX_NUMEL) return;
    if (scores(value, schema->nargs) > 32 * FUZZ_MAX_NUMEL) return;
    etch_op_call(&etch__ops[s->op], value, schema->nargs, &out, 1);
    fuzz_set(w, s->out, out);
}

/* ---- statements ---- */

static void run_of_gradients(fuzz_world *w, const statement *s) {
    switch ((statement_kind)s->kind) {
    case ST_REQUIRE: fuzz_require(w, s->a, s->b); break;
    case ST_BACKWARD: fuzz_backward(w, s->a, s->b); break;
    case ST_GRADS: fuzz_grads(w, s->out, s->a, s->b, s->way); break;
    case ST_GRAD_OF: fuzz_grad_of(w, s->out, s->a); break;
    case ST_ZERO_GRAD: fuzz_zero_grad(w, s->a); break;
    case ST_SET_GRAD: fuzz_set_grad(w, s->a, s->b); break;
    case ST_RETAIN_GRAD: fuzz_retain_grad(w, s->a); break;
    case ST_HOOK: fuzz_hook(w, s->a, s->b); break;
    case ST_NO_GRAD: fuzz_no_grad(w, s->b); break;
    case ST_UPDATE: fuzz_update(w, s->a); break;
    case ST_GRAD_STATE: fuzz_grad_state(w, s->a); break;
    case ST_HOLD: fuzz_hold(w, s->a); break;
    case ST_CHOOSE: fuzz_choose(w, s->out, s->a); break;
    default: break;
    }
}

void fuzz_run_statement(fuzz_world *w, const statement *s) {
    switch ((statement_kind)s->kind) {
    case ST_OP: run_operator(w, s); break;
    case ST_ITEM: fuzz_item(w, s->a); break;
    case ST_ITEM_INT: fuzz_item_int(w, s->a); break;
    case ST_FORMAT: fuzz_format(w, s->a); break;
    case ST_HOST: fuzz_host(w, s->out, s->a); break;
    case ST_QUERY: fuzz_query(w, s->a, s->b); break;
    case ST_EXPOSE: fuzz_expose(w, s->a, false); break;
    case ST_EXPOSE_MUT: fuzz_expose(w, s->a, true); break;
    case ST_RAW_WRITE: fuzz_raw_write(w, s->a, s->b); break;
    case ST_RAW_READ: fuzz_raw_read(w, s->a); break;
    case ST_DATA_END: fuzz_data_end(w, s->a); break;
    case ST_KEEP: fuzz_keep(w, s->a); break;
    case ST_BREAK: fuzz_break(w); break;
    case ST_FLUSH: fuzz_flush(w); break;
    case ST_DTYPE: fuzz_default_dtype(s->b); break;
    case ST_SCOPE: fuzz_scope(w); break;
    case ST_SCOPE_END: fuzz_scope_end(w, s->a); break;
    case ST_INNER: fuzz_inner(w, s->out, s->a, s->b); break;
    case ST_CUSTOM: fuzz_custom(w, s->out, s->a, s->b); break;
    case ST_CUSTOM_WRITE: fuzz_custom_write(w, s->out, s->a); break;
    case ST_FILLED: fuzz_filled(w, s->out, s->a, s->b); break;
    case ST_FOREIGN: fuzz_foreign(w, s->out, s->a, s->b); break;
    case ST_FLUSHED_WRITE: fuzz_flushed_write(w, s->a, s->b); break;
    case ST_FLUSHED_READ: fuzz_flushed_read(w, s->a); break;
    case ST_THREAD_READ: fuzz_thread_read(w, s->a); break;
    case ST_USED: fuzz_used(w, s->a, s->b); break;
    case ST_EFFECTS_WRITE: fuzz_effects_write(w, s->out, s->a); break;
    case ST_SPOIL: fuzz_spoil(w, s->out, s->a, s->b); break;
    case ST_REMEMBER: fuzz_remember(w, s->out, s->a, s->b); break;
    case ST_RECALL: fuzz_recall(w, s->b); break;
    case ST_ROUNDS: fuzz_rounds(w, s->out, s->a, s->b); break;
    case ST_NUMERICS: fuzz_numerics(w, s->b); break;
    case ST_INFERENCE: fuzz_inference(w, s->b); break;
    case ST_HALF: fuzz_half(w, s->out, s->a); break;
    default: run_of_gradients(w, s);
    }
}

void fuzz_interpret(fuzz_world *w, const void *of) {
    const program *p = of;
    for (int i = 0; i < p->nstatements && !w->stopped; i++) {
        w->at = i;
        if (fuzz_when(w, p->statement[i].when)) fuzz_run_statement(w, &p->statement[i]);
    }
}

/* ---- what a statement reads ---- */

static const int operand_counts[ST_COUNT] = {
#define KIND(id, operands, c) [ST_##id] = operands,
    FUZZ_STATEMENTS(KIND)
#undef KIND
};

int fuzz_operands(const statement *s, int *operands) {
    int n = 0;
    if (operand_counts[s->kind] > 0) operands[n++] = s->a;
    if (operand_counts[s->kind] > 1) operands[n++] = s->b;
    if (s->kind == ST_SCOPE_END && s->a >= 0) operands[n++] = s->a;
    if (s->kind != ST_OP) return n;
    const op_schema *schema = etch__schema(s->op);
    for (int i = 0; i < schema->nargs; i++)
        if (schema->args[i].type == ARG_TENSOR || schema->args[i].type == ARG_TENSOR_OPT ||
            schema->args[i].type == ARG_TENSORS)
            for (int k = 0; k < s->arg[i].n && n < 8; k++) operands[n++] = s->arg[i].tensor[k];
    return n;
}
