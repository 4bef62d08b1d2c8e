/* The graph as a cmocka program: replay.h as it stands, a body of calls by name, a table of
 * inputs. */
#include <inttypes.h>

#include "mini.h"

extern const char etch_minify_replay[];

static void print_scalar(FILE *to, etch_scalar s) {
    if (s.kind == ETCH_SCALAR_REAL) fprintf(to, "{ETCH_SCALAR_REAL, {.d = %.17g}}", s.d);
    else
        fprintf(to, "{%s, {.i = %" PRId64 "}}",
                s.kind == ETCH_SCALAR_INT ? "ETCH_SCALAR_INT" : "ETCH_SCALAR_BOOL", s.i);
}

/* The number of the value among inputs, else its name. */
static void print_ref(FILE *to, const mini_graph *g, int value) {
    if (value < 0) {
        fputs("ETCH_NONE", to);
        return;
    }
    for (int i = 0; i < g->ninputs; i++)
        if (g->input[i].value == value) {
            fprintf(to, "in[%d]", i);
            return;
        }
    fprintf(to, "v%d", value);
}

static void print_ints(FILE *to, const mini_arg *a) {
    fprintf(to, "ETCH_VALUE_INTS, .ints = {%d, {", a->n);
    for (int i = 0; i < a->n; i++) fprintf(to, "%s%" PRId64, i ? ", " : "", a->v[i]);
    fputs(a->n ? "}}" : "0}}", to);
}

static void print_arg(FILE *to, const mini_graph *g, const mini_arg *a) {
    fprintf(to, a->name ? "{\"%s\", " : "{NULL, ", a->name);
    switch ((etch_value_tag)a->tag) {
    case ETCH_VALUE_TENSOR:
        fputs("ETCH_VALUE_TENSOR, .tensor = ", to);
        print_ref(to, g, g->ref[a->first]);
        break;
    case ETCH_VALUE_TENSORS:
        fputs("ETCH_VALUE_TENSORS, .tensors = {(etch_tensor *const[]){", to);
        for (int i = 0; i < a->n; i++) {
            fputs(i ? ", " : "", to);
            print_ref(to, g, g->ref[a->first + i]);
        }
        fprintf(to, "}, %d}", a->n);
        break;
    case ETCH_VALUE_SCALAR:
        fputs("ETCH_VALUE_SCALAR, .scalar = ", to);
        print_scalar(to, a->scalar);
        break;
    case ETCH_VALUE_PARAM:
        fprintf(to, "ETCH_VALUE_SCALAR, .scalar = s[%" PRId64 "]", a->v[0]);
        break;
    case ETCH_VALUE_INT: fprintf(to, "ETCH_VALUE_INT, .i = %" PRId64, a->v[0]); break;
    case ETCH_VALUE_BOOL:
        fprintf(to, "ETCH_VALUE_BOOL, .b = %s", a->v[0] ? "true" : "false");
        break;
    case ETCH_VALUE_REAL: fprintf(to, "ETCH_VALUE_REAL, .d = %.17g", a->d); break;
    case ETCH_VALUE_INTS: print_ints(to, a); break;
    case ETCH_VALUE_DTYPE:
        fprintf(to, "ETCH_VALUE_DTYPE, .dtype = %" PRId64 " /* %s */", a->v[0],
                etch_dtype_name(a->v[0]));
        break;
    default: fputs("ETCH_VALUE_NONE, .i = 0", to);
    }
    fputs("}", to);
}

static void print_node(FILE *to, const mini_graph *g, const mini_node *n) {
    fputs("    ", to);
    if (n->value >= 0) fprintf(to, "etch_tensor *v%d = ", n->value);
    fprintf(to, "call(\"%s\", %d, (etch_value[]){", etch_op_name(n->op), n->nargs);
    for (int i = 0; i < n->nargs; i++) {
        fputs(i ? ",\n        " : "\n        ", to);
        print_arg(to, g, &n->arg[i]);
    }
    fputs("});\n", to);
}

static void print_body(FILE *to, const mini_graph *g) {
    fputs("static etch_tensor *call(const char *op, int n, const etch_value *args) {\n"
          "    etch_tensor *out = NULL;\n"
          "    return etch_op_call(etch_op_find(op), args, n, &out, 1) == ETCH_OK ? out : NULL;\n"
          "}\n\n"
          "static etch_status body(const void *ctx, const etch_scalar *s, etch_tensor *const *in,\n"
          "                        etch_tensor **out) {\n    (void)ctx, (void)s, (void)in;\n",
          to);
    for (int i = 0; i < g->nnodes; i++) print_node(to, g, &g->node[i]);
    for (int i = 0; i < g->noutputs; i++) {
        fprintf(to, "    if (!(out[%d] = ", i);
        print_ref(to, g, g->output[i]);
        fputs(")) return etch_last_status();\n", to);
    }
    fputs("    return ETCH_OK;\n}\n\n", to);
}

static void print_words(FILE *to, int n, const int64_t *v) {
    fprintf(to, "{%d, {", n);
    for (int i = 0; i < n; i++) fprintf(to, "%s%" PRId64, i ? ", " : "", v[i]);
    fputs(n ? "}}" : "0}}", to);
}

/* The buffers' numbers, as check.c gives them. */
static int buffer_of(const mini_graph *g, int input, int *buffers) {
    int n = 0;
    for (int i = 0; i < g->ninputs; i++) {
        buffers[i] = -1;
        for (int k = 0; k < i; k++)
            if (g->input[k].base == g->input[i].base) buffers[i] = buffers[k];
        if (buffers[i] < 0) buffers[i] = n++;
    }
    return input < 0 ? n : buffers[input];
}

static int print_inputs(FILE *to, const mini_graph *g) {
    int buffers[MINI_MAX_INPUTS];
    fputs("static const replay_input inputs[] = {\n", to);
    for (int i = 0; i < g->ninputs; i++) {
        const mini_meta *m = &g->input[i].meta;
        fprintf(to, "    {%d /* %s */, %d, ", m->dtype, etch_dtype_name(m->dtype),
                buffer_of(g, i, buffers));
        print_words(to, m->ndim, m->size);
        fputs(", ", to);
        print_words(to, m->ndim, m->stride);
        fprintf(to, ", %" PRId64 "},\n", m->offset);
    }
    if (!g->ninputs) fputs("    {0}\n", to);
    fputs("};\n", to);
    return buffer_of(g, -1, buffers);
}

static int print_scalars(FILE *to, const mini_graph *g) {
    int n = 0;
    for (int i = 0; i < g->nnodes; i++)
        for (int k = 0; k < g->node[i].nargs; k++) {
            const mini_arg *a = &g->node[i].arg[k];
            if (a->tag == ETCH_VALUE_PARAM && a->v[0] >= n) n = (int)a->v[0] + 1;
        }
    fputs("static const etch_scalar scalars[] = {", to);
    for (int i = 0; i < n; i++) {
        fputs(i ? ",\n                                      " : "", to);
        print_scalar(to, g->scalar[i]);
    }
    fputs(n ? "};\nstatic const bool varies[] = {" : "{0}};\nstatic const bool varies[] = {", to);
    for (int i = 0; i < n; i++) fprintf(to, "%s%s", i ? ", " : "", g->varies[i] ? "true" : "false");
    fputs(n ? "};\n" : "false};\n", to);
    return n;
}

static void print_main(FILE *to, const mini_graph *g, const mini_options *o, int nbuffers,
                       int nscalars) {
    fprintf(to,
            "\nstatic void compiled_equals_eager(void **state) {\n    (void)state;\n"
            "    replay r = {body, NULL, %d, %d, %d, %d, inputs, scalars, varies};\n"
            "    char text[512] = \"\";\n    bool invalid;\n",
            g->ninputs, nbuffers, nscalars, g->noutputs);
    fprintf(to,
            "    bool same = replay_compare(&r, \"%s\", %d, %" PRIu64
            "u, &invalid, text, sizeof text);\n",
            o->backend, o->calls, o->seed);
    fputs("    if (!same) print_error(\"%s\\n\", text);\n"
          "    assert_false(invalid);\n    assert_true(same);\n}\n\n"
          "int main(void) {\n",
          to);
    if (o->plugin)
        fprintf(to,
                "    if (!dlopen(\"%s\",\n                RTLD_NOW))\n"
                "        return fprintf(stderr, \"%%s\\n\", dlerror()), 2;\n",
                o->plugin);
    fputs("    const struct CMUnitTest tests[] = {cmocka_unit_test(compiled_equals_eager)};\n"
          "    return cmocka_run_group_tests(tests, NULL, NULL);\n}\n",
          to);
}

void mini_print(FILE *to, const mini_graph *g, const mini_options *o, const char *difference) {
    fprintf(to,
            "/* %s, made smaller by etch-minify: %d call%s.\n * %s\n *\n"
            " *     cc -D_GNU_SOURCE test.c $(pkg-config --cflags --libs etch) -lcmocka%s */\n",
            g->name, g->nnodes, g->nnodes == 1 ? "" : "s", difference, o->plugin ? " -ldl" : "");
    fputs("#include <setjmp.h>\n#include <stdarg.h>\n#include <stddef.h>\n#include <stdint.h>\n"
          "#include <cmocka.h>\n",
          to);
    if (o->plugin) fputs("#include <dlfcn.h>\n", to);
    fprintf(to, "\n%s\n/* ---- the graph ---- */\n\n", etch_minify_replay);
    print_body(to, g);
    int nbuffers = print_inputs(to, g);
    int nscalars = print_scalars(to, g);
    print_main(to, g, o, nbuffers, nscalars);
}
