/* Boxed calls: operators by name, with tagged values. Values are bound to the schema's arguments,
 * each brought into the normal form of core/ops/op.h, and the call goes the way of the typed
 * functions.
 */
#include <etch/debug.h>

#include "core/dispatch/call.h"
#include "core/base/text.h"
#include "core/ops/schema.h"

/* ---- finding operators ---- */

/* Filled once for the table's own operators; a registered one puts itself behind them. */
static const etch_op *all[OP_CAPACITY + 1];

const etch_op *const *etch_op_list(int *count) {
    int n = atomic_load_explicit(&etch__op_count, memory_order_acquire);
    for (int i = 0; i < n; i++) __atomic_store_n(&all[i], &etch__ops[i], __ATOMIC_RELAXED);
    if (count) *count = n;
    return all;
}

/* "add" names the packet of "add.Tensor". */
static bool in_packet(const char *name, const char *packet) {
    size_t n = strlen(packet);
    return !strncmp(name, packet, n) && name[n] == '.';
}

const etch_op *etch_op_find(const char *name) {
    const void *site = __builtin_return_address(0);
    if (!name) return etch__null_at(site, ETCH_ERR_NULL, "etch_op_find: name is NULL");
    const char *bare = strncmp(name, "aten::", 6) ? name : name + 6;
    int n = atomic_load_explicit(&etch__op_count, memory_order_acquire);
    for (int i = 0; i < n; i++)
        if (!strcmp(etch__ops[i].name, bare)) return &etch__ops[i];
    for (int i = 0; i < n; i++)
        if (in_packet(etch__ops[i].name, bare)) return &etch__ops[i];
    return etch__null_at(site, ETCH_ERR_NOT_FOUND, "etch_op_find: no operator \"%s\"", name);
}

const char *etch_op_name(const etch_op *op) { return op ? op->name : NULL; }
const char *etch_op_schema(const etch_op *op) { return op ? op->schema : NULL; }

/* ---- binding ---- */

typedef struct boxed_call {
    const etch_op *op;
    const op_schema *schema;
    const void *site;
    const etch_value *bound[SCHEMA_MAX_ARGS]; /* NULL: the default */
    etch_tensor *one[SCHEMA_MAX_ARGS];
    etch_tensor *const *in;
    int nin, nsc, nat;
    etch_scalar sc[OP_MAX_SCALARS];
    int64_t *at; /* room for OP_MAX_ATTRS */
} boxed_call;

static const char *const tag_names[] = {
    [ETCH_VALUE_NONE] = "none",
    [ETCH_VALUE_TENSOR] = "a tensor",
    [ETCH_VALUE_TENSORS] = "a list of tensors",
    [ETCH_VALUE_SCALAR] = "a scalar",
    [ETCH_VALUE_INT] = "an int",
    [ETCH_VALUE_BOOL] = "a bool",
    [ETCH_VALUE_REAL] = "a real",
    [ETCH_VALUE_INTS] = "a list of ints",
    [ETCH_VALUE_DTYPE] = "a dtype",
};

#define FAIL(b, code, format, ...)                                                                 \
    return etch__error_at((b)->site, code, "%s: " format, (b)->op->name, __VA_ARGS__), false

/* "self, other, alpha" */
static const char *list_names(const op_schema *s, char *text, size_t n) {
    bounded_text t = {text, n, 0};
    text[0] = 0;
    for (int i = 0; i < s->nargs; i++) etch__text_add(&t, "%s%s", i ? ", " : "", s->args[i].name);
    return text;
}

static int index_of(const op_schema *s, const char *name) {
    for (int i = 0; i < s->nargs; i++)
        if (!strcmp(s->args[i].name, name)) return i;
    return -1;
}

static bool bind_one(boxed_call *b, const etch_value *v, int position) {
    char names[192];
    int npositional = 0;
    while (npositional < b->schema->nargs && !b->schema->args[npositional].keyword_only)
        npositional++;
    int i = v->name ? index_of(b->schema, v->name) : position;
    if (i < 0)
        FAIL(b, ETCH_ERR_NOT_FOUND, "no argument \"%s\"; expected %s", v->name,
             list_names(b->schema, names, sizeof names));
    if (!v->name && i >= npositional)
        FAIL(b, ETCH_ERR_INVALID_ARGUMENT,
             "expected at most %d values by position, got more; it has %s", npositional,
             list_names(b->schema, names, sizeof names));
    if (b->bound[i])
        FAIL(b, ETCH_ERR_INVALID_ARGUMENT, "argument \"%s\" is given twice",
             b->schema->args[i].name);
    b->bound[i] = v;
    return true;
}

static bool bind(boxed_call *b, const etch_value *args, int nargs) {
    bool named = false;
    for (int i = 0; i < nargs; i++) {
        if (args[i].name) named = true;
        else if (named)
            FAIL(b, ETCH_ERR_INVALID_ARGUMENT, "value %d by position comes after one by name", i);
        if ((unsigned)args[i].tag > ETCH_VALUE_DTYPE)
            FAIL(b, ETCH_ERR_INVALID_ARGUMENT, "value %d has the tag %d, which there is not", i,
                 (int)args[i].tag);
        if (!bind_one(b, &args[i], i)) return false;
    }
    for (int i = 0; i < b->schema->nargs; i++) {
        const schema_arg *a = &b->schema->args[i];
        if (!b->bound[i] && !a->has_default)
            FAIL(b, ETCH_ERR_INVALID_ARGUMENT, "argument \"%s\" of type %s is missing", a->name,
                 etch__arg_type_name((arg_type)a->type));
    }
    return true;
}

/* ---- converting ---- */

static bool wrong_tag(boxed_call *b, const schema_arg *a, const etch_value *v) {
    FAIL(b, ETCH_ERR_INVALID_ARGUMENT, "argument \"%s\": expected %s, got %s", a->name,
         etch__arg_type_name((arg_type)a->type), tag_names[v->tag]);
}

static bool put_tensor(boxed_call *b, const schema_arg *a, const etch_value *v) {
    if (!v || v->tag != ETCH_VALUE_TENSOR) return wrong_tag(b, a, v);
    b->one[b->nin++] = v->tensor;
    return true;
}

static bool put_optional(boxed_call *b, const schema_arg *a, const etch_value *v) {
    if (v && v->tag != ETCH_VALUE_NONE) return put_tensor(b, a, v);
    b->one[b->nin++] = ETCH_NONE;
    return true;
}

/* A list is the only tensor argument of its operator, so it needs no copy. */
static bool put_tensors(boxed_call *b, const schema_arg *a, const etch_value *v) {
    if (v->tag != ETCH_VALUE_TENSORS) return wrong_tag(b, a, v);
    if (v->tensors.count < 0 || v->tensors.count > UINT16_MAX ||
        (v->tensors.count && !v->tensors.items))
        FAIL(b, ETCH_ERR_INVALID_ARGUMENT, "argument \"%s\": expected 0 to %d tensors, got %d%s",
             a->name, UINT16_MAX, v->tensors.count, v->tensors.items ? "" : " at NULL");
    b->in = v->tensors.items, b->nin = v->tensors.count;
    return true;
}

static bool put_scalar(boxed_call *b, const schema_arg *a, const etch_value *v) {
    etch_scalar *to = &b->sc[b->nsc++];
    if (!v) {
        *to = a->value;
        return true;
    }
    switch (v->tag) {
    case ETCH_VALUE_SCALAR: *to = v->scalar; return true;
    case ETCH_VALUE_INT: *to = etch_scalar_int(v->i); return true;
    case ETCH_VALUE_BOOL: *to = etch_scalar_bool(v->b); return true;
    case ETCH_VALUE_REAL: *to = etch_scalar_real(v->d); return true;
    default: return wrong_tag(b, a, v);
    }
}

static bool put_ints(boxed_call *b, const schema_arg *a, const etch_value *v) {
    bool absent = !v || v->tag == ETCH_VALUE_NONE;
    if (absent && a->type == ARG_INTS_OPT) {
        b->at[b->nat++] = -1;
        return true;
    }
    if (!v && a->has_default) { /* one number stands for each dimension */
        b->at[b->nat++] = 1, b->at[b->nat++] = a->value.i;
        return true;
    }
    if (absent || v->tag != ETCH_VALUE_INTS) return wrong_tag(b, a, v);
    if (v->ints.n < 0 || v->ints.n > ETCH_MAX_DIMS)
        FAIL(b, ETCH_ERR_SHAPE, "argument \"%s\": expected 0 to %d ints, got %d", a->name,
             ETCH_MAX_DIMS, v->ints.n);
    b->nat = etch__put_dims(b->at, b->nat, &v->ints);
    return true;
}

/* int, int?, bool, ScalarType, ScalarType?: one word. */
static bool put_word(boxed_call *b, const schema_arg *a, const etch_value *v) {
    int64_t *to = &b->at[b->nat++];
    bool optional = a->type == ARG_INT_OPT || a->type == ARG_DTYPE_OPT;
    *to = a->value.i;
    if (!v) return true;
    if (v->tag == ETCH_VALUE_NONE && optional) {
        *to = a->type == ARG_INT_OPT ? ETCH_NO_INT : -1;
        return true;
    }
    bool is_int = a->type == ARG_INT || a->type == ARG_INT_OPT;
    etch_value_tag wanted = is_int                ? ETCH_VALUE_INT
                            : a->type == ARG_BOOL ? ETCH_VALUE_BOOL
                                                  : ETCH_VALUE_DTYPE;
    if (v->tag != wanted) return wrong_tag(b, a, v);
    *to = is_int ? v->i : a->type == ARG_BOOL ? (int64_t)v->b : (int64_t)v->dtype;
    return true;
}

static bool (*const put[ARG_TYPE_COUNT])(boxed_call *, const schema_arg *, const etch_value *) = {
    [ARG_TENSOR] = put_tensor,   [ARG_TENSOR_OPT] = put_optional,
    [ARG_TENSORS] = put_tensors, [ARG_SCALAR] = put_scalar,
    [ARG_INT] = put_word,        [ARG_INT_OPT] = put_word,
    [ARG_INTS] = put_ints,       [ARG_INTS_OPT] = put_ints,
    [ARG_BOOL] = put_word,       [ARG_DTYPE] = put_word,
    [ARG_DTYPE_OPT] = put_word,
};

static bool convert(boxed_call *b) {
    b->in = b->one;
    for (int i = 0; i < b->schema->nargs; i++) {
        const schema_arg *a = &b->schema->args[i];
        if (!put[a->type](b, a, b->bound[i])) return false;
    }
    if (b->op->flags & OPF_RANDOM) {
        etch_dims size = {.n = (int32_t)b->at[0]};
        for (int i = 0; i < size.n; i++) size.v[i] = b->at[1 + i];
        etch__put_random(b->sc + b->nsc, &size);
        b->nsc += 2;
    }
    if (b->op->flags & OPF_CLASS) {
        b->at[b->nat] = etch__op_class(b->op, b->sc, b->nsc, b->at);
        b->nat++;
    }
    return true;
}

etch_status etch__unbox(const etch_op *op, const etch_value *args, int nargs, const void *site,
                        etch_status (*use)(void *ctx, const op_call *call), void *ctx) {
    int64_t at[OP_MAX_ATTRS];
    boxed_call b = {.op = op, .schema = etch__schema(op->id), .site = site, .at = at};
    if (!bind(&b, args, nargs) || !convert(&b)) return etch__tls.status;
    op_call call = {.op = op->id,
                    .nin = (uint16_t)b.nin,
                    .nsc = (uint8_t)b.nsc,
                    .nat = (uint8_t)b.nat,
                    .in = b.in,
                    .sc = b.sc,
                    .at = b.at,
                    .site = site};
    return use(ctx, &call);
}

etch_status etch_op_call(const etch_op *op, const etch_value *args, int nargs, etch_tensor **out,
                         int nout) {
    const void *site = __builtin_return_address(0);
    if (!op || !out || nargs < 0 || (nargs && !args))
        return etch__error_at(site, ETCH_ERR_NULL,
                              "etch_op_call: expected an operator, values and "
                              "room for results, got NULL");
    if (nout != op->nout)
        return etch__error_at(site, ETCH_ERR_INVALID_ARGUMENT,
                              "%s: expected room for %d result%s, got %d", op->name, op->nout,
                              op->nout == 1 ? "" : "s", nout);
    int64_t at[OP_MAX_ATTRS];
    boxed_call b = {.op = op, .schema = etch__schema(op->id), .site = site, .at = at};
    etch_tensor *result = NULL;
    if (bind(&b, args, nargs) && convert(&b)) /* out may be an entry of a list among them */
        result = etch__operator(op->id, b.in, b.nin, b.sc, b.nsc, b.at, b.nat, site);
    out[0] = result;
    return result ? ETCH_OK : etch__tls.status;
}
