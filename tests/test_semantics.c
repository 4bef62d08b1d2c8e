/* Rows of the table of required outcomes that no other suite shows; tests/README.md says where each
 * row is tested.
 * Labels: quick device sanitizer fake. */
#include "device_support.h"
#include "trace_support.h"

#include <stdlib.h>
#include <string.h>

static int64_t graphs(const etch_function *f) { return etch_function_counters(f).graphs; }

/* ---- what is guarded of a tensor ---- */

static etch_tensor *twice(etch_tensor *x) { return etch_mul_scalar(x, 2); }

static void call_and_expect(etch_function *f, etch_tensor *x, int64_t expected_graphs) {
    for (int call = 0; call < 2; call++) assert_same(etch_call(f, x), twice(x));
    assert_int_equal(graphs(f), expected_graphs);
}

/* Values, memory and offset are not guarded; sizes, strides, rank and dtype are. */
TEST(per_tensor_guards) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(twice, .dynamic = ETCH_DYNAMIC_OFF, .backend = "eager");
        etch_tensor *x = arange_f32(4, 6);
        call_and_expect(f, x, 1);
        call_and_expect(f, etch_exp(x), 1);
        etch_tensor *large = arange_f32(9, 6);
        call_and_expect(f, etch_slice(large, 0, 5, 9, 1), 1);
        call_and_expect(f, etch_slice(large, 0, 0, 8, 2), 2); /* strides */
        call_and_expect(f, arange_f32(6, 4), 3);              /* sizes */
        call_and_expect(f, etch_t(arange_f32(6, 4)), 4);      /* strides again */
        call_and_expect(f, etch_unsqueeze(x, 0), 5);          /* rank */
        call_and_expect(f, etch_to(x, ETCH_F64), 6);          /* dtype */
        call_and_expect(f, x, 6);
        etch_function_free(f);
    }
}

/* ---- what is guarded of the thread's state ---- */

static etch_tensor *root_of_ints(etch_tensor *x) { return etch_sqrt(x); }

/* A setting is part of what a trace is for: another one is another graph, and back is none. */
TEST(state_before_the_call) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(root_of_ints, .backend = "eager");
        etch_tensor *x = etch_arange(ETCH_I32, 1, 9, 1);
        for (int round = 0; round < 3; round++) {
            assert_int_equal(etch_dtype_of(etch_call(f, x)), ETCH_F32);
            assert_int_equal(graphs(f), round ? 3 : 1);
            etch_set_default_dtype(ETCH_F64);
            assert_int_equal(etch_dtype_of(etch_call(f, x)), ETCH_F64);
            etch_set_default_dtype(ETCH_F32);
            assert_int_equal(graphs(f), round ? 3 : 2);
            ETCH_INFERENCE { assert_non_null(etch_call(f, x)); }
            assert_int_equal(graphs(f), 3);
        }
        etch_function_free(f);
    }
}

/* ---- loops ---- */

static int trips;

static etch_tensor *loop_without_breaks(etch_tensor *x) {
    for (int i = 0; i < trips; i++) x = etch_add_scalar(x, i);
    return x;
}

/* Without a break each trip count is a path, up to the limit; then eager, with right values. */
TEST(trip_counts_are_paths) {
    etch_set_logs("");
    ETCH_SCOPE {
        etch_function *f = etch_compile(loop_without_breaks, .backend = "eager");
        etch_tensor *x = arange_f32(3, 3);
        for (trips = 1; trips <= 6; trips++)
            for (int call = 0; call < 2; call++)
                assert_same(etch_call(f, x), loop_without_breaks(x));
        assert_counts(f, 6, 6);
        etch_function_free(f);
    }
}

static double total;

static etch_tensor *loop_that_breaks(etch_tensor *x) {
    for (int i = 0; i < trips; i++) {
        x = etch_mul_scalar(x, 0.5);
        total += etch_item(etch_sum(x));
    }
    return x;
}

/* Every trip count from 1 to 100 runs the same two segments: the entry and the body. Some of them
 * on a device, where tools make each break slow. */
TEST(one_segment_for_every_trip_count) {
    const int step = test_device() == ETCH_CPU ? 1 : 9;
    for (int b = 0; b < 2; b++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(loop_that_breaks, .backend = test_backends[b]);
            etch_tensor *x = arange_f32(3, 3);
            uint64_t breaks = 0;
            for (trips = 1; trips <= 100; breaks += (uint64_t)trips, trips += step)
                ETCH_SCOPE {
                    total = 0;
                    etch_tensor *expected = loop_that_breaks(x);
                    double expected_total = total;
                    total = 0;
                    assert_same(etch_call(f, x), expected);
                    assert_true(total == expected_total);
                }
            assert_int_equal(graphs(f), 2);
            assert_int_equal(etch_function_counters(f).graph_breaks, breaks);
            etch_function_free(f);
        }
}

/* ---- the seed program with products of the user's ---- */

static const etch_op *own_product;
static int own_calls;

static etch_status product_kernel(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                  etch_tensor *const *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    own_calls++;
    etch_tensor *product = etch_mm(args[0].tensor, args[1].tensor);
    return etch_copy_(out[0], product) ? ETCH_OK : etch_last_status();
}

static etch_status product_shape(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                 etch_tensor_spec *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    out->dtype = etch_dtype_of(args[0].tensor);
    out->sizes = ETCH_SHAPE(etch_size(args[0].tensor, 0), etch_size(args[1].tensor, 1));
    return ETCH_OK;
}

static etch_tensor *product(etch_tensor *a, etch_tensor *b) {
    etch_value args[] = {{.tag = ETCH_VALUE_TENSOR, .tensor = a},
                         {.tag = ETCH_VALUE_TENSOR, .tensor = b}};
    etch_tensor *out = NULL;
    return etch_op_call(own_product, args, 2, &out, 1) == ETCH_OK ? out : NULL;
}

static etch_tensor *custom_step(etch_tensor *x, etch_tensor *w) {
    for (int i = 0; i < 5; i++) {
        etch_tensor *a = product(x, w);
        etch_tensor *s = etch_sin(x);
        etch_tensor *b = product(s, w);
        etch_tensor *c = etch_add(a, b);
        x = etch_relu(c);
    }
    return x;
}

/* One graph of 25 operators, 6 fused kernels, no library product, 10 calls of the custom one. */
TEST(seed_program_with_custom_products) {
    etch_op_definition d = {.struct_size = sizeof d, .cpu = product_kernel, .shape = product_shape};
    own_product = etch_op_register("semantics::product(Tensor a, Tensor b) -> Tensor", &d);
    assert_non_null(own_product);
    ETCH_SCOPE {
        etch_function *f = etch_compile(custom_step);
        etch_tensor *x = etch_sin(arange_f32(256, 256)), *w = etch_cos(x);
        etch_tensor *expected = custom_step(x, w);
        assert_same(etch_call(f, x, w), expected);
        own_calls = 0;
        assert_same(etch_call(f, x, w), expected);
        assert_int_equal(own_calls, 10);
        assert_counts(f, 1, 1);
        etch_explanation *e = etch_explain(f);
        assert_int_equal(e->op_count, 25);
        assert_int_equal(e->graphs[0].kernels, 6);
        assert_int_equal(e->graphs[0].products, 0);
        etch_explanation_free(e);
        etch_function_free(f);
    }
}

/* ---- a hint names the operator to use; the logs have the names that users know ---- */

static etch_tensor *branches(etch_tensor *x) {
    if (etch_item(etch_sum(x)) > 0) return etch_add_scalar(x, 1);
    return etch_sub_scalar(x, 1);
}

TEST(hint_of_a_break_names_the_operator) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(branches, .backend = "eager");
        etch_tensor *x = arange_f32(3, 3);
        for (int call = 0; call < 2; call++) assert_non_null(etch_call(f, x));
        etch_explanation *e = etch_explain(f);
        assert_int_equal(e->nbreaks, 1);
        assert_string_equal(e->breaks[0].reason, "item");
        assert_non_null(strstr(e->breaks[0].hint, "etch_where"));
        assert_non_null(strstr(e->breaks[0].where, "test_semantics.c:"));
        assert_int_equal(e->break_count, 2);
        etch_explanation_free(e);
        etch_function_free(f);
    }
}

TEST(log_channels_of_the_table) {
    static const char *const names[] = {
        "graph_breaks", "output_code", "graph", "guards",     "recompiles", "fusion",
        "schedule",     "cache",       "modes", "perf_hints", "trace",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_int_equal(etch_set_logs(names[i]), ETCH_OK);
    etch_set_logs("");
}

/* ---- values that must be exact, on views of every kind ---- */

/* The same numbers through an offset, a flip, a step, zero strides and a shift over itself. */
static etch_tensor *views_of_every_kind(etch_tensor *x) {
    etch_tensor *offset = etch_slice(x, 0, 2, ETCH_ABSENT, 1);
    etch_tensor *flipped = etch_slice(offset, 0, ETCH_ABSENT, ETCH_ABSENT, -1);
    etch_tensor *stepped = etch_slice(x, 0, 7, ETCH_ABSENT, -2);
    etch_tensor *wide = etch_expand(etch_select(x, 0, 3), ETCH_SHAPE(4));
    etch_tensor *sum = etch_add(etch_slice(flipped, 0, 0, 4, 1), stepped);
    return etch_add(sum, wide);
}

TEST(exact_views) {
    static const int32_t values[] = {0, 1, 2, 3, 4, 5, 6, 7}, want[] = {17, 14, 11, 8};
    ETCH_SCOPE {
        etch_tensor *x = etch_from_host(values, ETCH_I32, ETCH_SHAPE(8));
        etch_tensor *right = etch_from_host(want, ETCH_I32, ETCH_SHAPE(4));
        assert_same(views_of_every_kind(x), right);
        for (int b = 0; b < 2; b++) {
            etch_function *f = etch_compile(views_of_every_kind, .backend = test_backends[b]);
            for (int call = 0; call < 3; call++) assert_same(etch_call(f, x), right);
            assert_counts(f, 1, 2);
            etch_function_free(f);
        }
    }
}

/* Denormals survive before any generated code is loaded, in it, and eagerly afterwards. */
TEST(exact_denormals_before_and_after) {
    ETCH_SCOPE {
        etch_tensor *x = etch_full(ETCH_F32, ETCH_SHAPE(100), 1e-42);
        assert_true(etch_item(etch_max(twice(x))) > 1.9e-42);
        etch_function *f = etch_compile(twice);
        for (int call = 0; call < 2; call++)
            assert_true(etch_item(etch_min(etch_call(f, x))) > 1.9e-42);
        assert_counts(f, 1, 1);
        assert_true(etch_item(etch_max(twice(x))) > 1.9e-42);
        etch_function_free(f);
    }
}
