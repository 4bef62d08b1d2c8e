/* Interceptor modes and custom operators: what they see, in which order, next to etch_compile, and
 * what happens when a handler or a registration is wrong. One test a row of the semantics.
 * Labels: quick device sanitizer fake. */
#include "trace_support.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- programs and handlers ---- */

/* What a mode has seen, as "mm sin mm add.Tensor "; with a tag in front of each name. */
typedef struct spy {
    const char *tag;
    char text[2048];
    char *shared; /* another log to write to, or NULL */
    int calls;
} spy;

static void note(spy *s, const char *name) {
    char *text = s->shared ? s->shared : s->text;
    size_t used = strlen(text);
    snprintf(text + used, sizeof s->text - used, "%s%s ", s->tag ? s->tag : "", name);
    s->calls++;
}

static etch_status decline(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                           etch_tensor **out, int nout) {
    (void)args, (void)nargs, (void)out, (void)nout;
    note(ctx, etch_op_name(op));
    return ETCH_DECLINED;
}

static etch_status pass_on(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                           etch_tensor **out, int nout) {
    note(ctx, etch_op_name(op));
    return etch_redispatch(op, args, nargs, out, nout);
}

static etch_tensor *small(int64_t rows, int64_t columns) {
    etch_tensor *x = arange_f32(rows, columns);
    return etch_div_scalar(x, 100);
}

/* After everything: a mode can still be entered and left, so the stack is as it was. */
static void assert_stack_empty(void) {
    spy s = {0};
    etch_mode *m = etch_mode_new(decline, &s);
    assert_int_equal(etch_mode_push(m), ETCH_OK);
    assert_int_equal(etch_mode_pop(m), ETCH_OK);
    assert_int_equal(etch_mode_pop(m), ETCH_ERR_INVALID_ARGUMENT);
    ETCH_SCOPE { assert_non_null(etch_zeros(ETCH_F32, ETCH_SHAPE(1))); }
    assert_int_equal(s.calls, 0);
    etch_mode_free(m);
    etch_clear_error();
}

#define assert_error(code, part)                                                                   \
    do {                                                                                           \
        assert_int_equal(etch_last_status(), code);                                                \
        if (!strstr(etch_last_error(), part)) print_error("error: %s\n", etch_last_error());       \
        assert_non_null(strstr(etch_last_error(), part));                                          \
        etch_clear_error();                                                                        \
    } while (0)

/* ---- with etch_compile ---- */

static char log_text[4096];
static void take_line(void *ctx, const char *line) {
    (void)ctx;
    size_t used = strlen(log_text);
    snprintf(log_text + used, sizeof log_text - used, "%s\n", line);
}

static int compiles;
static void count_compile(void *ctx) {
    (void)ctx;
    compiles++;
}

TEST(function_under_mode_runs_uncompiled_and_compiles_later) {
    spy s = {0};
    etch_mode *m = etch_mode_new(pass_on, &s, .name = "spy");
    etch_function *f = etch_compile(seed_program);
    int64_t callback = etch_on_compile_start(count_compile, NULL);
    compiles = 0, *log_text = 0;
    etch_set_log_sink(take_line, NULL);
    etch_set_logs("modes");
    ETCH_SCOPE {
        etch_tensor *x = small(8, 8), *w = small(8, 8), *expected = seed_program(x, w);
        int64_t files = etch_counters().kernels;
        ETCH_WITH_MODE (m) { assert_same(etch_call(f, x, w), expected); }
        assert_int_equal(s.calls, 25);
        assert_counts(f, 0, 0);
        assert_int_equal(etch_function_counters(f).mode_fallbacks, 1);
        assert_int_equal(etch_counters().kernels, files);
        assert_int_equal(compiles, 0);
        assert_non_null(
            strstr(log_text, "modes: 'spy' is active, running seed_program() uncompiled"));
        etch_explanation *e = etch_explain(f);
        assert_int_equal(e->mode_fallbacks, 1);
        assert_int_equal(e->graph_count, 0);
        assert_string_equal(e->mode, "spy");
        etch_explanation_free(e);

        assert_same(etch_call(f, x, w), expected);
        assert_same(etch_call(f, x, w), expected);
        assert_counts(f, 1, 1);
        assert_int_equal(compiles, 1);
        assert_int_equal(etch_function_counters(f).mode_fallbacks, 1);
        assert_int_equal(s.calls, 25);
    }
    etch_set_logs("");
    etch_set_log_sink(NULL, NULL);
    etch_callback_remove(callback);
    etch_function_free(f);
    etch_mode_free(m);
    assert_stack_empty();
}

TEST(function_compiled_before_runs_uncompiled_under_mode) {
    spy s = {0};
    etch_mode *m = etch_mode_new(decline, &s);
    etch_function *f = etch_compile(seed_program);
    ETCH_SCOPE {
        etch_tensor *x = small(8, 8), *w = small(8, 8), *expected = seed_program(x, w);
        for (int i = 0; i < 2; i++) assert_same(etch_call(f, x, w), expected);
        assert_counts(f, 1, 1);
        ETCH_WITH_MODE (m) { assert_same(etch_call(f, x, w), expected); }
        assert_int_equal(s.calls, 25);
        assert_counts(f, 1, 1);
        assert_same(etch_call(f, x, w), expected);
        assert_counts(f, 1, 2);
    }
    etch_function_free(f);
    etch_mode_free(m);
}

static int body_runs;
static etch_tensor *counted_body(etch_tensor *x) {
    body_runs++;
    return etch_sin(x);
}

TEST(fullgraph_under_mode_fails_before_the_body) {
    spy s = {0};
    etch_mode *m = etch_mode_new(decline, &s);
    etch_function *f = etch_compile(counted_body, .fullgraph = true);
    body_runs = 0;
    ETCH_SCOPE {
        etch_tensor *x = small(2, 3);
        ETCH_WITH_MODE (m) { assert_null(etch_call(f, x)); }
        assert_error(ETCH_ERR_MODE_ACTIVE, "counted_body");
        assert_int_equal(body_runs, 0);
        assert_non_null(etch_call(f, x));
        assert_counts(f, 1, 1);
    }
    etch_function_free(f);
    etch_mode_free(m);
}

static etch_mode *inner_mode;
static etch_tensor *enters_mode(etch_tensor *x) {
    etch_tensor *a = etch_add_scalar(x, 1), *b = NULL;
    etch_tensor *a2 = etch_sin(a);
    ETCH_WITH_MODE (inner_mode) { b = etch_mul(a2, x); }
    etch_tensor *c = etch_neg(b);
    return etch_exp(c);
}

TEST(mode_entered_inside_is_a_break) {
    for (int k = 0; k < 2; k++) {
        spy s = {0};
        inner_mode = etch_mode_new(decline, &s);
        etch_function *f = etch_compile(enters_mode, .backend = test_backends[k]);
        ETCH_SCOPE {
            etch_tensor *x = small(4, 5), *expected = enters_mode(x);
            s = (spy){0};
            for (int i = 0; i < 3; i++) assert_same(etch_call(f, x), expected);
            assert_string_equal(s.text, "mul.Tensor mul.Tensor mul.Tensor ");
            assert_counts(f, 2, 4);
            assert_int_equal(etch_function_counters(f).graph_nodes, 4);
            assert_true(etch_function_counters(f).graph_breaks >= 3);
        }
        etch_function_free(f);
        f = etch_compile(enters_mode, .fullgraph = true);
        ETCH_SCOPE {
            assert_null(etch_call(f, small(4, 5)));
            assert_error(ETCH_ERR_GRAPH_BREAK, "mode");
        }
        etch_function_free(f);
        assert_stack_empty();
        etch_mode_free(inner_mode);
    }
}

/* ---- custom operators next to modes ---- */

static int twice_runs;
static etch_status twice_kernel(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                etch_tensor *const *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    twice_runs++;
    etch_tensor *y = etch_mul_scalar(args[0].tensor, 2);
    return etch_copy_(out[0], y) ? ETCH_OK : etch_last_status();
}
static etch_status like_first(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                              etch_tensor_spec *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    out[0].dtype = etch_dtype_of(args[0].tensor);
    out[0].sizes = etch_sizes(args[0].tensor);
    return ETCH_OK;
}

static const etch_op *twice_op(void) {
    static const etch_op *op;
    etch_op_definition d = {.struct_size = sizeof d, .cpu = twice_kernel, .shape = like_first};
    if (!op) op = etch_op_register("modes_test::twice(Tensor a) -> Tensor", &d);
    assert_non_null(op);
    return op;
}

static etch_tensor *call_op(const etch_op *op, etch_tensor *a, etch_tensor *b) {
    etch_value args[2] = {{.tag = ETCH_VALUE_TENSOR, .tensor = a},
                          {.tag = ETCH_VALUE_TENSOR, .tensor = b}};
    etch_tensor *out = NULL;
    return etch_op_call(op, args, b ? 2 : 1, &out, 1) == ETCH_OK ? out : NULL;
}

static etch_tensor *uses_twice(etch_tensor *x) {
    etch_tensor *a = etch_add_scalar(x, 1);
    etch_tensor *b = call_op(twice_op(), a, NULL);
    return etch_sin(b);
}

/* Answers the custom operator with three times its argument. */
static etch_status thrice(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                          etch_tensor **out, int nout) {
    (void)nargs, (void)nout;
    note(ctx, etch_op_name(op));
    out[0] = etch_mul_scalar(args[0].tensor, 3);
    return out[0] ? ETCH_OK : etch_last_status();
}

TEST(allow_compiled_sees_custom_operators_only) {
    for (int k = 0; k < 2; k++) {
        spy s = {0}, r = {0};
        etch_mode *m = etch_mode_new(decline, &s, .allow_compiled = true);
        etch_mode *replace = etch_mode_new(thrice, &r, .allow_compiled = true);
        etch_function *f = etch_compile(uses_twice, .backend = test_backends[k]);
        ETCH_SCOPE {
            etch_tensor *x = small(4, 5), *expected = uses_twice(x);
            ETCH_WITH_MODE (m) {
                for (int i = 0; i < 3; i++) assert_same(etch_call(f, x), expected);
            }
            assert_counts(f, 1, 2);
            assert_string_equal(s.text, "modes_test::twice modes_test::twice modes_test::twice ");
            assert_int_equal(etch_function_counters(f).mode_fallbacks, 0);
            etch_tensor *y = etch_add_scalar(x, 1);
            y = etch_sin(etch_mul_scalar(y, 3));
            twice_runs = 0;
            ETCH_WITH_MODE (replace) { assert_same(etch_call(f, x), y); }
            assert_int_equal(twice_runs, 0);
            assert_int_equal(r.calls, 1);
            assert_counts(f, 1, 3);
            assert_same(etch_call(f, x), expected);
        }
        etch_function_free(f);
        etch_mode_free(replace);
        etch_mode_free(m);
    }
}

TEST(kernel_operators_are_not_recorded) {
    etch_function *f = etch_compile(uses_twice);
    ETCH_SCOPE {
        etch_tensor *x = small(4, 5);
        for (int i = 0; i < 2; i++) assert_same(etch_call(f, x), uses_twice(x));
        assert_int_equal(etch_function_counters(f).graph_nodes, 3);
    }
    etch_function_free(f);
}

/* ---- order and recursion ---- */

static void check_nested(etch_mode_handler inner_handler) {
    char log[2048] = "";
    spy outer = {.tag = "outer:", .shared = log}, inner = {.tag = "inner:", .shared = log};
    etch_mode *a = etch_mode_new(pass_on, &outer), *b = etch_mode_new(inner_handler, &inner);
    ETCH_SCOPE {
        etch_tensor *x = small(3, 3), *expected = etch_sin(x), *y = NULL;
        ETCH_WITH_MODE (a) {
            ETCH_WITH_MODE (b) { y = etch_sin(x); }
            etch_neg(x);
        }
        assert_same(y, expected);
    }
    assert_string_equal(log, "inner:sin outer:sin outer:neg ");
    etch_mode_free(b);
    etch_mode_free(a);
}

TEST(inner_mode_first_then_outer) {
    check_nested(pass_on);
    check_nested(decline);
}

static etch_status mm_by_mm(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                            etch_tensor **out, int nout) {
    (void)nargs, (void)nout;
    note(ctx, etch_op_name(op));
    out[0] = etch_mm(args[0].tensor, args[1].tensor);
    return out[0] ? ETCH_OK : etch_last_status();
}

TEST(handler_calling_its_operator_does_not_recurse) {
    spy s = {0};
    etch_mode *m = etch_mode_new(mm_by_mm, &s);
    ETCH_SCOPE {
        etch_tensor *x = small(3, 3), *expected = etch_mm(x, x), *y = NULL;
        ETCH_WITH_MODE (m) { y = etch_mm(x, x); }
        assert_same(y, expected);
        assert_int_equal(s.calls, 1);
        /* The same mode entered twice is two layers. */
        ETCH_WITH_MODE (m) {
            ETCH_WITH_MODE (m) { y = etch_mm(x, x); }
        }
        assert_int_equal(s.calls, 3);
    }
    etch_mode_free(m);
}

static etch_mode *helper_mode;
static etch_status enters_another(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                  etch_tensor **out, int nout) {
    note(ctx, etch_op_name(op));
    etch_status status = ETCH_OK;
    ETCH_WITH_MODE (helper_mode) { status = etch_redispatch(op, args, nargs, out, nout); }
    return status;
}

TEST(handler_may_enter_modes) {
    spy s = {0}, h = {0}, o = {0};
    etch_mode *outer = etch_mode_new(decline, &o), *m = etch_mode_new(enters_another, &s);
    helper_mode = etch_mode_new(decline, &h);
    ETCH_SCOPE {
        etch_tensor *x = small(3, 3);
        ETCH_WITH_MODE (outer) {
            ETCH_WITH_MODE (m) { assert_non_null(etch_sin(x)); }
        }
        assert_int_equal(s.calls, 1);
        assert_int_equal(h.calls, 1);
        assert_int_equal(o.calls, 1);
    }
    etch_mode_free(helper_mode);
    etch_mode_free(m);
    etch_mode_free(outer);
    assert_stack_empty();
}

/* ---- what a handler is given ---- */

typedef struct asked {
    double alpha;
    bool named, overload, packet, prefixed, other, part;
    char name[32];
} asked;

static etch_status ask(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                       etch_tensor **out, int nout) {
    asked *a = ctx;
    const etch_value *alpha = etch_arg(op, args, nargs, "alpha");
    (void)out, (void)nout;
    assert_non_null(alpha);
    assert_null(etch_arg(op, args, nargs, "beta"));
    assert_ptr_equal(etch_arg(op, args, nargs, "self"), &args[0]);
    assert_int_equal(alpha->tag, ETCH_VALUE_SCALAR);
    a->alpha = alpha->scalar.kind == ETCH_SCALAR_REAL ? alpha->scalar.d : (double)alpha->scalar.i;
    a->named = alpha->name && !strcmp(alpha->name, "alpha");
    a->overload = etch_op_is(op, "add.Tensor"), a->packet = etch_op_is(op, "add");
    a->prefixed = etch_op_is(op, "aten::add"), a->other = etch_op_is(op, "add.Scalar");
    a->part = etch_op_is(op, "ad") || etch_op_is(op, "add_");
    snprintf(a->name, sizeof a->name, "%s", etch_op_packet(op));
    return ETCH_DECLINED;
}

TEST(packets_overloads_and_defaults) {
    asked a = {0};
    etch_mode *m = etch_mode_new(ask, &a);
    ETCH_SCOPE {
        etch_tensor *x = small(3, 3);
        ETCH_WITH_MODE (m) { etch_add(x, x); }
        assert_true(a.alpha == 1 && a.named && a.overload && a.packet && a.prefixed);
        assert_false(a.other || a.part);
        assert_string_equal(a.name, "add");
        ETCH_WITH_MODE (m) { etch_add_alpha(x, x, 2.5); }
        assert_true(a.alpha == 2.5);
        ETCH_WITH_MODE (m) { etch_add_scalar(x, 1); }
        assert_true(a.other && a.packet && !a.overload);
    }
    etch_mode_free(m);
}

TEST(every_form_of_argument_passes_through) {
    spy s = {0};
    etch_mode *m = etch_mode_new(pass_on, &s);
    ETCH_SCOPE {
        etch_tensor *x = small(4, 6), *parts[2] = {x, x}, *y = etch_clone(x), *z = etch_clone(x);
        etch_tensor *plain[] = {etch_cat(parts, 2, 1),
                                etch_sum_dim(x, ETCH_DIMS(0), true),
                                etch_slice(x, 1, 1, 5, 2),
                                etch_to(x, ETCH_F64),
                                etch_argmax(x),
                                etch_add_(y, x),
                                etch_pow_scalar(x, 2),
                                etch_arange(ETCH_F32, 0, 5, 1),
                                etch_expand(x, ETCH_SHAPE(2, 4, 6))};
        ETCH_WITH_MODE (m) {
            etch_tensor *seen[] = {etch_cat(parts, 2, 1),
                                   etch_sum_dim(x, ETCH_DIMS(0), true),
                                   etch_slice(x, 1, 1, 5, 2),
                                   etch_to(x, ETCH_F64),
                                   etch_argmax(x),
                                   etch_add_(z, x),
                                   etch_pow_scalar(x, 2),
                                   etch_arange(ETCH_F32, 0, 5, 1),
                                   etch_expand(x, ETCH_SHAPE(2, 4, 6))};
            for (size_t i = 0; i < sizeof seen / sizeof *seen; i++) assert_same(seen[i], plain[i]);
            assert_ptr_equal(seen[5], z);
        }
        assert_int_equal(s.calls, 9);
    }
    etch_mode_free(m);
}

TEST(redispatched_random_numbers_are_those_without_mode) {
    spy s = {0};
    etch_mode *m = etch_mode_new(pass_on, &s);
    ETCH_SCOPE {
        etch_manual_seed(7);
        etch_tensor *a = etch_randn(ETCH_F32, ETCH_SHAPE(9)),
                    *b = etch_rand(ETCH_F32, ETCH_SHAPE(3));
        etch_tensor *c = NULL, *d = NULL;
        etch_manual_seed(7);
        ETCH_WITH_MODE (m) {
            c = etch_randn(ETCH_F32, ETCH_SHAPE(9));
            d = etch_rand(ETCH_F32, ETCH_SHAPE(3));
        }
        assert_same(a, c);
        assert_same(b, d);
    }
    etch_mode_free(m);
}

/* ---- composites ---- */

static etch_status batch_product(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                 etch_tensor **out, int nout) {
    (void)nargs, (void)nout;
    note(ctx, etch_op_name(op));
    if (!etch_op_is(op, "matmul")) return ETCH_DECLINED;
    out[0] = etch_bmm(args[0].tensor, args[1].tensor);
    return out[0] ? ETCH_OK : etch_last_status();
}

/* What a mode sees of matmul of two batches. */
static const char *seen_of_matmul(spy *s, etch_mode *m, bool inference) {
    *s->text = 0;
    ETCH_SCOPE {
        etch_tensor *a = etch_view(small(6, 4), ETCH_SHAPE(2, 3, 4));
        etch_tensor *b = etch_view(small(8, 5), ETCH_SHAPE(2, 4, 5)), *expected = etch_matmul(a, b);
        etch_tensor *y = NULL;
        if (inference) {
            ETCH_INFERENCE {
                ETCH_WITH_MODE (m) { y = etch_matmul(a, b); }
            }
        } else {
            ETCH_WITH_MODE (m) { y = etch_matmul(a, b); }
        }
        assert_same(y, expected);
    }
    return s->text;
}

TEST(what_a_mode_sees_of_composites) {
    static const char parts[] = "expand view expand view bmm view ";
    static const char whole[] = "matmul expand reshape view expand reshape view bmm view ";
    spy s = {0};
    etch_mode *plain = etch_mode_new(decline, &s);
    etch_mode *composite = etch_mode_new(decline, &s, .composite = true);
    etch_mode *handles = etch_mode_new(batch_product, &s, .composite = true);
    assert_string_equal(seen_of_matmul(&s, plain, false), parts);
    assert_string_equal(seen_of_matmul(&s, plain, true), whole);
    assert_string_equal(seen_of_matmul(&s, composite, false), whole);
    assert_string_equal(seen_of_matmul(&s, handles, false), "matmul ");
    assert_string_equal(seen_of_matmul(&s, handles, true), "matmul ");
    assert_false(etch_inference_enabled());
    etch_mode_free(handles);
    etch_mode_free(composite);
    etch_mode_free(plain);
}

/* ---- the composites of the seed's table ---- */

static etch_tensor *seed_matmul(void) { return etch_matmul(small(3, 4), small(4, 5)); }
static etch_tensor *seed_linear(void) {
    return etch_linear(small(3, 4), small(5, 4), etch_view(small(1, 5), ETCH_SHAPE(5)));
}
static etch_tensor *seed_softmax(void) { return etch_softmax(small(3, 4), 1); }
static etch_tensor *seed_conv2d(void) {
    etch_tensor *image = etch_view(small(4, 8), ETCH_SHAPE(1, 2, 4, 4));
    etch_tensor *weight = etch_view(small(6, 6), ETCH_SHAPE(2, 2, 3, 3));
    return etch_conv2d(image, weight, ETCH_NONE, ETCH_DIMS(1, 1), ETCH_DIMS(0, 0), ETCH_DIMS(1, 1),
                       1);
}

/* Only the calls of interest: what makes the arguments is seen as well. */
static void keep_from(char *text, const char *first) {
    char *at = NULL, *next = text;
    while ((next = strstr(next, first))) at = next++;
    assert_non_null(at);
    while (at > text && at[-1] != ' ') at--;
    memmove(text, at, strlen(at) + 1);
}

static const struct {
    etch_tensor *(*call)(void);
    const char *first, *parts; /* outside of inference */
    const char *whole;         /* the composite itself */
} seed_composites[] = {
    {seed_matmul, "mm ", "mm ", "matmul mm "},
    {seed_linear, "t addmm", "t addmm ", "linear t addmm "},
    {seed_softmax, "_softmax", "_softmax ", "softmax.int _softmax "},
    {seed_conv2d, "convolution", "convolution ", "conv2d convolution "},
};

TEST(composites_of_the_seed) {
    spy s = {0};
    etch_mode *m = etch_mode_new(decline, &s);
    for (size_t i = 0; i < sizeof seed_composites / sizeof *seed_composites; i++) {
        ETCH_SCOPE {
            etch_tensor *expected = seed_composites[i].call(), *y = NULL;
            assert_non_null(expected);
            *s.text = 0;
            ETCH_WITH_MODE (m) { y = seed_composites[i].call(); }
            assert_same(y, expected);
            keep_from(s.text, seed_composites[i].first);
            assert_string_equal(s.text, seed_composites[i].parts);
            *s.text = 0;
            ETCH_INFERENCE {
                ETCH_WITH_MODE (m) { y = seed_composites[i].call(); }
            }
            assert_same(y, expected);
            keep_from(s.text, seed_composites[i].whole);
            assert_string_equal(s.text, seed_composites[i].whole);
        }
    }
    etch_mode_free(m);
}

/* The parts of a declined composite stand at the line of the composite. */
TEST(parts_of_declined_composite_name_the_users_line) {
    spy s = {0};
    etch_mode *m = etch_mode_new(decline, &s, .composite = true);
    ETCH_SCOPE {
        etch_tensor *a = small(2, 3), *b = small(2, 3);
        ETCH_WITH_MODE (m) { assert_null(etch_matmul(a, b)); }
        assert_error(ETCH_ERR_SHAPE, "test_modes.c:");
    }
    etch_mode_free(m);
}

/* ---- threads ---- */

static void *other_thread(void *ctx) {
    (void)ctx;
    ETCH_SCOPE { etch_zeros(ETCH_F32, ETCH_SHAPE(3)); }
    return NULL;
}

TEST(modes_are_thread_local) {
    spy s = {0};
    pthread_t thread;
    etch_mode *m = etch_mode_new(decline, &s);
    ETCH_WITH_MODE (m) {
        assert_int_equal(pthread_create(&thread, NULL, other_thread, NULL), 0);
        pthread_join(thread, NULL);
        assert_int_equal(s.calls, 0);
        other_thread(NULL);
        assert_int_equal(s.calls, 1);
    }
    etch_mode_free(m);
}

static etch_status ends_thread(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                               etch_tensor **out, int nout) {
    (void)ctx, (void)op, (void)args, (void)nargs, (void)out, (void)nout;
    pthread_exit(NULL);
}

static void set_flag(void *flag) { *(bool *)flag = true; }

static void *thread_under_mode(void *mode) {
    etch_mode_push(mode);
    other_thread(NULL);
    return NULL;
}

/* The thread's end takes its modes off its stack, also those that are off at the time. */
TEST(thread_ends_inside_a_handler) {
    bool gone = false;
    pthread_t thread;
    etch_mode *m = etch_mode_new(ends_thread, &gone, .destroy = set_flag);
    assert_int_equal(pthread_create(&thread, NULL, thread_under_mode, m), 0);
    pthread_join(thread, NULL);
    etch_mode_free(m);
    assert_true(gone);
    assert_int_equal(etch_memory().tensors, 0);
}

/* ---- handlers that are wrong ---- */

static etch_status wrong_shape(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                               etch_tensor **out, int nout) {
    (void)ctx, (void)op, (void)args, (void)nargs, (void)nout;
    out[0] = etch_zeros(ETCH_F64, ETCH_SHAPE(2, 7));
    return ETCH_OK;
}
static etch_status nothing(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                           etch_tensor **out, int nout) {
    (void)ctx, (void)op, (void)args, (void)nargs, (void)out, (void)nout;
    return ETCH_OK;
}
static etch_status freed(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                         etch_tensor **out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    ETCH_SCOPE { out[0] = etch_clone(args[0].tensor); }
    return ETCH_OK;
}
static etch_status silent_failure(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                  etch_tensor **out, int nout) {
    (void)ctx, (void)op, (void)args, (void)nargs, (void)out, (void)nout;
    return ETCH_ERR_USER;
}
static etch_status told_failure(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                etch_tensor **out, int nout) {
    (void)ctx, (void)op, (void)args, (void)nargs, (void)out, (void)nout;
    return etch_set_error(ETCH_ERR_USER, "the handler does not like it");
}
static etch_status pops_outer(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                              etch_tensor **out, int nout) {
    (void)op, (void)args, (void)nargs, (void)out, (void)nout;
    return etch_mode_pop(ctx);
}
static etch_status leaves_one_entered(void *ctx, const etch_op *op, const etch_value *args,
                                      int nargs, etch_tensor **out, int nout) {
    (void)op, (void)args, (void)nargs, (void)out, (void)nout;
    etch_mode_push(ctx);
    return ETCH_ERR_USER;
}
static etch_status copies_instead(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                  etch_tensor **out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    out[0] = etch_clone(args[0].tensor);
    return ETCH_OK;
}

/* sin under a mode with this handler fails as said, and nothing is left over. */
static void check_wrong(etch_mode_handler handler, void *ctx, etch_status code, const char *part) {
    etch_mode *m = etch_mode_new(handler, ctx, .name = "wrong");
    ETCH_SCOPE {
        etch_tensor *x = small(2, 3);
        int64_t tensors = etch_memory().tensors;
        ETCH_SCOPE {
            ETCH_WITH_MODE (m) { assert_null(etch_sin(x)); }
        }
        assert_error(code, part);
        assert_int_equal(etch_memory().tensors, tensors);
        assert_non_null(etch_sin(x));
    }
    assert_stack_empty();
    etch_mode_free(m);
}

TEST(wrong_handlers) {
    spy s = {0};
    etch_mode *other = etch_mode_new(decline, &s, .name = "other");
    check_wrong(wrong_shape, NULL, ETCH_ERR_INVALID_ARGUMENT,
                "sin: mode 'wrong' returned f64[2, 7], expected f32[2, 3]");
    check_wrong(nothing, NULL, ETCH_ERR_INVALID_ARGUMENT, "no result");
    check_wrong(freed, NULL, ETCH_ERR_RELEASED, "released");
    check_wrong(silent_failure, NULL, ETCH_ERR_USER, "sin: a mode's handler failed with user");
    check_wrong(told_failure, NULL, ETCH_ERR_USER, "does not like it (test_modes.c:");
    check_wrong(pops_outer, other, ETCH_ERR_INVALID_ARGUMENT, "not the one entered last");
    check_wrong(leaves_one_entered, other, ETCH_ERR_USER, "handler failed");
    ETCH_WITH_MODE (other) {
        etch_mode *m = etch_mode_new(pops_outer, other, .name = "wrong");
        ETCH_SCOPE {
            etch_tensor *x = small(2, 3);
            ETCH_WITH_MODE (m) { assert_null(etch_sin(x)); }
            assert_error(ETCH_ERR_INVALID_ARGUMENT, "not the one entered last");
            s.calls = 0;
            assert_non_null(etch_sin(x));
            assert_int_equal(s.calls, 1);
        }
        etch_mode_free(m);
    }
    etch_mode_free(other);
    assert_stack_empty();
}

/* An older error is not taken for the handler's own. */
TEST(older_error_is_not_the_handlers) {
    etch_mode *m = etch_mode_new(silent_failure, NULL);
    ETCH_SCOPE {
        etch_tensor *x = small(2, 3);
        etch_set_error(ETCH_ERR_IO, "from before");
        ETCH_WITH_MODE (m) { assert_null(etch_sin(x)); }
        assert_non_null(strstr(etch_last_error(), "handler failed"));
        etch_set_error(ETCH_ERR_IO, "from before");
        assert_non_null(small(2, 3));
        assert_error(ETCH_ERR_IO, "from before");
    }
    etch_mode_free(m);
}

TEST(written_argument_must_come_back) {
    etch_mode *m = etch_mode_new(copies_instead, NULL);
    ETCH_SCOPE {
        etch_tensor *x = small(2, 3);
        ETCH_WITH_MODE (m) { assert_null(etch_sin_(x)); }
        assert_error(ETCH_ERR_INVALID_ARGUMENT, "written argument");
    }
    etch_mode_free(m);
}

TEST(unchecked_accepts_other_shapes) {
    etch_mode *m = etch_mode_new(wrong_shape, NULL, .unchecked = true);
    ETCH_SCOPE {
        etch_tensor *x = small(2, 3), *y = NULL;
        ETCH_WITH_MODE (m) { y = etch_sin(x); }
        assert_non_null(y);
        assert_int_equal(etch_dtype_of(y), ETCH_F64);
        assert_int_equal(etch_size(y, 1), 7);
    }
    etch_mode_free(m);
}

TEST(pushing_and_popping_wrongly) {
    spy s = {0};
    etch_mode *a = etch_mode_new(decline, &s, .name = "a");
    etch_mode *b = etch_mode_new(decline, &s, .name = "b");
    assert_null(etch_mode_new(NULL, NULL));
    assert_error(ETCH_ERR_NULL, "handler");
    assert_int_equal(etch_mode_push(NULL), ETCH_ERR_NULL);
    assert_int_equal(etch_mode_pop(a), ETCH_ERR_INVALID_ARGUMENT);
    assert_int_equal(etch_mode_push(a), ETCH_OK);
    assert_int_equal(etch_mode_push(b), ETCH_OK);
    assert_int_equal(etch_mode_pop(a), ETCH_ERR_INVALID_ARGUMENT);
    assert_error(ETCH_ERR_INVALID_ARGUMENT, "'a'");
    etch_mode_free(a); /* refused while it is entered */
    assert_error(ETCH_ERR_INVALID_ARGUMENT, "'a'");
    assert_int_equal(etch_mode_pop(b), ETCH_OK);
    assert_int_equal(etch_mode_pop(a), ETCH_OK);
    etch_mode_free(a);
    etch_mode_free(b);
    etch_mode_free(NULL);
    assert_stack_empty();
}

/* ---- registrations that are wrong ---- */

static const char *const bad_schemas[] = {
    "",
    "modes_test::open(Tensor a",
    "modes_test::no_result(Tensor a)",
    "modes_test::two(Tensor a) -> (Tensor, Tensor)",
    "no_namespace(Tensor a) -> Tensor",
    "modes_test::type(Tensorx a) -> Tensor",
    "modes_test::alias(Tensor(a!) a) -> Tensor",
    "modes_test::second(Tensor a, Tensor(a!) b) -> Tensor(a!)",
    "modes_test::none() -> Tensor",
    "modes_test::(Tensor a) -> Tensor",
    "::no_library(Tensor a) -> Tensor",
    "modes_test::absent(Tensor a, Tensor b=None) -> Tensor",
    "modes_test::absent_list(Tensor[] a=None) -> Tensor",
    "modes_test::same_names(Tensor a, int a) -> Tensor",
    "modes_test::no_name(Tensor a, int ) -> Tensor",
    "modes_test::default_text(Tensor a, int b=few) -> Tensor",
    "modes_test::default_range(Tensor a, int b=99999999999999999999) -> Tensor",
    "modes_test::default_none(Tensor a, Scalar b=None) -> Tensor",
    "modes_test::default_bool(Tensor a, bool b=7) -> Tensor",
    "modes_test::default_dtype(Tensor a, ScalarType b=10) -> Tensor",
    "modes_test::default_real(Tensor a, int b=1.5) -> Tensor",
    "modes_test::view(Tensor(a) a) -> Tensor",
    "modes_test::writes_list(Tensor[](a!) a) -> Tensor(a!)",
    "modes_test::writes_absent(Tensor?(a!) a, Tensor b) -> Tensor(a!)",
    "modes_test::writes_int(int(a!) a, Tensor b) -> Tensor(a!)",
    "modes_test::names(Tensor, Tensor) -> Tensor",
    "(Tensor a) -> Tensor",
};

TEST(malformed_schemas_and_taken_names) {
    etch_op_definition d = {.struct_size = sizeof d, .cpu = twice_kernel, .shape = like_first};
    etch_op_definition no_kernel = {.struct_size = sizeof d, .shape = like_first};
    twice_op();
    int before, after;
    etch_op_list(&before);
    for (size_t i = 0; i < sizeof bad_schemas / sizeof *bad_schemas; i++) {
        if (etch_op_register(bad_schemas[i], &d)) fail_msg("accepted: %s", bad_schemas[i]);
        assert_error(ETCH_ERR_FORMAT, bad_schemas[i]);
    }
    assert_null(etch_op_register("modes_test::twice(Tensor a) -> Tensor", &d));
    assert_error(ETCH_ERR_INVALID_ARGUMENT, "taken");
    assert_null(etch_op_register("modes_test::fresh(Tensor a) -> Tensor", &no_kernel));
    assert_error(ETCH_ERR_NULL, "kernel");
    assert_null(etch_op_register(NULL, &d));
    assert_error(ETCH_ERR_NULL, "schema");
    etch_op_list(&after);
    assert_int_equal(before, after);
    assert_null(etch_op_find("modes_test::fresh"));
    etch_clear_error();
}

static etch_status failing_shape(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                 etch_tensor_spec *out, int nout) {
    (void)op, (void)args, (void)nargs, (void)out, (void)nout;
    return ctx ? etch_set_error(ETCH_ERR_SHAPE, ctx) : ETCH_ERR_SHAPE;
}
static etch_status failing_kernel(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                  etch_tensor *const *out, int nout) {
    (void)op, (void)args, (void)nargs, (void)out, (void)nout;
    return ctx ? etch_set_error(ETCH_ERR_USER, ctx) : ETCH_ERR_USER;
}

static void check_failing(const char *name, etch_kernel cpu, etch_shape_fn shape, const char *text,
                          etch_status code, const char *part) {
    char schema[64];
    etch_op_definition d = {.struct_size = sizeof d, .cpu = cpu, .shape = shape};
    d.ctx = (void *)(uintptr_t)text;
    snprintf(schema, sizeof schema, "modes_test::%s(Tensor a) -> Tensor", name);
    const etch_op *op = etch_op_register(schema, &d);
    assert_non_null(op);
    ETCH_SCOPE {
        etch_tensor *x = small(2, 3);
        etch_set_error(ETCH_ERR_IO, "from before");
        assert_null(call_op(op, x, NULL));
        assert_error(code, part);
    }
}

TEST(failing_custom_operators) {
    check_failing("shape1", twice_kernel, failing_shape, NULL, ETCH_ERR_SHAPE,
                  "modes_test::shape1: the shape function failed");
    check_failing("shape2", twice_kernel, failing_shape, "too oblong", ETCH_ERR_SHAPE,
                  "too oblong (test_modes.c:");
    check_failing("kernel1", failing_kernel, like_first, NULL, ETCH_ERR_USER,
                  "modes_test::kernel1: the kernel failed");
    check_failing("kernel2", failing_kernel, like_first, "no luck", ETCH_ERR_USER,
                  "no luck (test_modes.c:");
}
