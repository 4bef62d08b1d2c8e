/* Programs as C: a body of typed calls, a setup, and a test around fuzz_compare. */
#include "program.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- arguments ---- */

static void print_int64(FILE *to, int64_t v) {
    if (v == INT64_MIN) fputs("INT64_MIN", to);
    else fprintf(to, "%" PRId64, v);
}

static void print_number(FILE *to, const fuzz_int *n) {
    if (n->of < 0) print_int64(to, n->v);
    else fprintf(to, "fuzz_size(w, %d, %d, %" PRId64 ")", n->of, n->dim, n->v);
}

static void print_scalar(FILE *to, const fuzz_arg *a) {
    if (a->varies) fputs("fuzz_vary(w, ", to);
    if (a->scalar.kind == ETCH_SCALAR_REAL) {
        double d = a->scalar.d;
        fputs("etch_scalar_real(", to);
        if (isnan(d) || isinf(d)) fputs(isnan(d) ? "NAN" : d < 0 ? "-INFINITY" : "INFINITY", to);
        else fprintf(to, "%.17g", d);
    } else {
        fputs(a->scalar.kind == ETCH_SCALAR_INT ? "etch_scalar_int(" : "etch_scalar_bool(", to);
        print_int64(to, a->scalar.i);
    }
    fputs(a->varies ? "))" : ")", to);
}

static void print_tensors(FILE *to, const fuzz_arg *a) {
    fputs("(etch_tensor *const[]){", to);
    for (int i = 0; i < a->n; i++) fprintf(to, "%sw->v[%d]", i ? ", " : "", a->tensor[i]);
    fprintf(to, "}, %d", a->n);
}

static void print_ints(FILE *to, const fuzz_arg *a) {
    fprintf(to, "((etch_dims){%d, {", a->n);
    for (int i = 0; i < a->n; i++) {
        fputs(i ? ", " : "", to);
        print_number(to, &a->number[i]);
    }
    fputs(a->n ? "}})" : "0}})", to);
}

static void print_arg(FILE *to, const fuzz_arg *a, arg_type type) {
    switch (type) {
    case ARG_TENSOR_OPT:
        if (a->absent) {
            fputs("ETCH_NONE", to);
            break;
        } /* fall through */
    case ARG_TENSOR: fprintf(to, "w->v[%d]", a->tensor[0]); break;
    case ARG_TENSORS: print_tensors(to, a); break;
    case ARG_SCALAR: print_scalar(to, a); break;
    case ARG_INTS:
    case ARG_INTS_OPT:
        if (a->absent) fputs("ETCH_ALL_DIMS", to);
        else print_ints(to, a);
        break;
    case ARG_INT_OPT:
        if (a->absent) {
            fputs("ETCH_ABSENT", to);
            break;
        } /* fall through */
    case ARG_INT: print_number(to, &a->number[0]); break;
    case ARG_BOOL: fputs(a->number[0].v ? "true" : "false", to); break;
    default: fprintf(to, "(etch_dtype)%" PRId64, a->number[0].v);
    }
}

/* ---- calls ---- */

static int arg_index(const op_schema *s, const char *name, size_t n) {
    for (int i = 0; i < s->nargs; i++)
        if (strlen(s->args[i].name) == n && !strncmp(s->args[i].name, name, n)) return i;
    return -1;
}

/* Whether the argument is what a typed function that does not name it passes. */
static bool is_default(const fuzz_arg *a, const schema_arg *schema) {
    if (schema->type == ARG_SCALAR)
        return !a->varies && a->scalar.kind == schema->value.kind && a->scalar.i == schema->value.i;
    if (a->absent) return true;
    return schema->type == ARG_BOOL && a->number[0].v == schema->value.i;
}

/* Prints "etch_add(w->v[1], w->v[2])" by the table's text of one C function if that names all that
 * the statement gives. With to == NULL only looks. */
static bool print_typed(FILE *to, const statement *s, const char *cfn) {
    const op_schema *schema = etch__schema(s->op);
    bool named[SCHEMA_MAX_ARGS] = {false};
    size_t head = strcspn(cfn, "(");
    if (to) fprintf(to, "%.*s(", (int)head, cfn);
    for (const char *at = cfn + head + 1; *at != ')';) {
        size_t n = strcspn(at, ",)");
        int i = arg_index(schema, at, n);
        if (i < 0) return false;
        named[i] = true;
        if (schema->args[i].type == ARG_DTYPE_OPT && s->arg[i].absent) return false;
        if (to) print_arg(to, &s->arg[i], (arg_type)schema->args[i].type);
        at += n;
        if (*at == ',') at += strspn(at, ", ");
        if (to && *at != ')') fputs(", ", to);
    }
    if (to) fputs(")", to);
    for (int i = 0; i < schema->nargs; i++)
        if (!named[i] && !is_default(&s->arg[i], &schema->args[i])) return false;
    return true;
}

static void print_value(FILE *to, const fuzz_arg *a, const schema_arg *schema) {
    static const char *const tags[ARG_TYPE_COUNT] = {
        [ARG_TENSOR] = "TENSOR, .tensor",
        [ARG_SCALAR] = "SCALAR, .scalar",
        [ARG_INT] = "INT, .i",
        [ARG_INT_OPT] = "INT, .i",
        [ARG_INTS] = "INTS, .ints",
        [ARG_INTS_OPT] = "INTS, .ints",
        [ARG_BOOL] = "BOOL, .b",
        [ARG_DTYPE] = "DTYPE, .dtype",
        [ARG_TENSOR_OPT] = "TENSOR, .tensor",
        [ARG_DTYPE_OPT] = "DTYPE, .dtype",
        [ARG_TENSORS] = "TENSORS, .tensors",
    };
    fprintf(to, "\n        {.name = \"%s\", .tag = ETCH_VALUE_", schema->name);
    if (a->absent) {
        fputs("NONE},", to);
        return;
    }
    fprintf(to, "%s = %s", tags[schema->type], schema->type == ARG_TENSORS ? "{" : "");
    print_arg(to, a, (arg_type)schema->type);
    fputs(schema->type == ARG_TENSORS ? "}}," : "},", to);
}

static void print_boxed(FILE *to, const statement *s) {
    const op_schema *schema = etch__schema(s->op);
    fprintf(to, "boxed(\"%s\", %d, (etch_value[]){", etch__ops[s->op].name, schema->nargs);
    for (int i = 0; i < schema->nargs; i++) print_value(to, &s->arg[i], &schema->args[i]);
    fputs("})", to);
}

static void print_call(FILE *to, const statement *s) {
    for (const char *cfn = etch__ops[s->op].cfn; cfn; cfn = strchr(cfn, ';')) {
        cfn += strspn(cfn, "; ");
        if (!print_typed(NULL, s, cfn)) continue;
        print_typed(to, s, cfn);
        return;
    }
    print_boxed(to, s);
}

/* ---- the body ---- */

static const char *const forms[ST_COUNT] = {
#define KIND(id, operands, c) [ST_##id] = c,
    FUZZ_STATEMENTS(KIND)
#undef KIND
};

static void print_form(FILE *to, const statement *s) {
    for (const char *at = forms[s->kind]; *at; at++) {
        if (*at != '$') fputc(*at, to);
        else
            at++, fprintf(to, "%d",
                          *at == 'a'   ? s->a
                          : *at == 'b' ? s->b
                          : *at == 'w' ? s->way
                                       : s->out);
    }
}

static void print_statement(FILE *to, const program *p, const statement *s) {
    int operands[8], n = fuzz_operands(s, operands), conditions = 0;
    bool always = (s->when & ((1u << p->setup.period) - 1)) == (1u << p->setup.period) - 1;
    fputs("    ", to);
    if (!always) fprintf(to, "if (fuzz_when(w, %#x)", s->when), conditions++;
    for (int i = 0; s->kind == ST_OP && i < n; i++)
        fprintf(to, conditions++ ? " && w->v[%d]" : "if (w->v[%d]", operands[i]);
    if (conditions) fputs(") ", to);
    if (s->kind == ST_OP) {
        fprintf(to, "fuzz_set(w, %d, ", s->out);
        print_call(to, s);
        fputs(")", to);
    } else {
        print_form(to, s);
    }
    fputs(";\n", to);
    if (p->setup.careful) fputs("    if (w->stopped) return;\n", to);
}

static void print_inputs(FILE *to, const char *name, const fuzz_input *in, int n) {
    fprintf(to, "    .n%s = %d,\n", *name == 'i' ? "in" : "globals", n);
    for (int i = 0; i < n; i++) {
        fprintf(to, "    .%s[%d] = {.dtype = %d, .ndim = %d, .size = {%d, %d, %d, %d}, ", name, i,
                in[i].dtype, in[i].ndim, in[i].size[0], in[i].size[1], in[i].size[2],
                in[i].size[3]);
        fprintf(to,
                ".layout = %d, .of = %d,\n     .wild = %d, .persistent = %d, .plain = %d, "
                ".other = %d, .other_dtype = %d, .feed = %d,\n     .leaf = %d, .base_leaf = %d},\n",
                in[i].layout, in[i].of, in[i].wild, in[i].persistent, in[i].plain, in[i].other,
                in[i].other_dtype, in[i].feed, in[i].leaf, in[i].base_leaf);
    }
}

static void print_sizes(FILE *to, const fuzz_setup *s) {
    for (int i = 0; i < FUZZ_MAX_SETS; i++) {
        fprintf(to, "    .size[%d] = {", i);
        for (int k = 0; k < FUZZ_MAX_SIZES; k++)
            fprintf(to, "%s%" PRId64, k ? ", " : "", s->size[i][k]);
        fputs("},\n", to);
    }
}

static void print_setup(FILE *to, const fuzz_setup *s) {
    fputs("static const fuzz_setup setup = {\n", to);
    fprintf(to, "    .seed = %" PRIu64 "u,\n    .ncalls = %d,\n    .period = %d,\n", s->seed,
            s->ncalls, s->period);
    print_inputs(to, "in", s->in, s->nin);
    print_inputs(to, "global", s->global, s->nglobals);
    fprintf(to, "    .nout = %d,\n    .out = {%d, %d, %d},\n", s->nout, s->out[0], s->out[1],
            s->out[2]);
    print_sizes(to, s);
    fprintf(to, "    .set = {%d, %d, %d},\n    .fails = %d,\n", s->set[0], s->set[1], s->set[2],
            s->fails);
    fprintf(to, "    .dynamic = %d, .fullgraph = %d, .stable_after = %d, .recompile_limit = %d,\n",
            s->dynamic, s->fullgraph, s->stable_after, s->recompile_limit);
    if (s->mode) fprintf(to, "    .mode = %d,\n", s->mode);
    if (s->beside_cpu) fputs("    .beside_cpu = true,\n", to);
    if (s->grads)
        fprintf(to, "    .grads = true, .creates = %d, .after = {%u, %u, %u},\n", s->creates,
                s->after[0], s->after[1], s->after[2]);
    if (s->careful) fputs("    .careful = true,\n", to);
    if (s->replay) fputs("    .replay = true,\n", to);
    if (s->starve_from)
        fprintf(to, "    .starve_call = %d, .starve_from = %d, .starve_for = %d,\n", s->starve_call,
                s->starve_from, s->starve_for);
    fprintf(to, "    .numerics = {%d, %d, %d},\n", s->numerics[0], s->numerics[1], s->numerics[2]);
    fputs("};\n", to);
}

static bool any_boxed(const program *p) {
    for (int i = 0; i < p->nstatements; i++) {
        const statement *s = &p->statement[i];
        if (s->kind != ST_OP) continue;
        const char *cfn = etch__ops[s->op].cfn, *second = strchr(cfn, ';');
        if (!print_typed(NULL, s, cfn) && !(second && print_typed(NULL, s, second + 2)))
            return true;
    }
    return false;
}

void fuzz_print(FILE *to, const program *p, const char *backend, etch_device device,
                const char *difference) {
    char on[32] = "";
    if (device != ETCH_CPU) snprintf(on, sizeof on, "ETCH_ON(ETCH_CUDA(%d)) ", (int)device - 1);
    fprintf(to, "/* %s */\n", difference);
    fputs("#include <math.h>\n\n#include \"etch_test.h\"\n#include \"fuzz/harness.h\"\n\n", to);
    if (any_boxed(p))
        fputs("static etch_tensor *boxed(const char *name, int n, const etch_value *values) {\n"
              "    etch_tensor *out = NULL;\n"
              "    etch_op_call(etch_op_find(name), values, n, &out, 1);\n"
              "    return out;\n}\n\n",
              to);
    fputs("static void body(fuzz_world *w, const void *unused) {\n    (void)unused;\n", to);
    for (int i = 0; i < p->nstatements; i++) print_statement(to, p, &p->statement[i]);
    fputs("}\n\n", to);
    print_setup(to, &p->setup);
    fprintf(to,
            "\nTEST(program) {\n"
            "    fuzz_result result;\n"
            "    bool same = false;\n"
            "    %ssame = fuzz_compare(&setup, body, NULL, \"%s\", &result);\n"
            "    if (!same) print_error(\"%%s\\n\", result.difference);\n"
            "    assert_true(same);\n}\n",
            on, backend);
}
