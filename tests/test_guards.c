/* What a trace is guarded by, each with exact counts of graphs: tensors, the thread's state,
 * scalars and attributes, sizes, captured tensors, arguments that no operator reads. What happens
 * eagerly is what is expected.
 * Labels: quick device sanitizer fake. */
#include "trace_support.h"

#include <math.h>
#include <stdlib.h>

/* ---- tensors ---- */

static int64_t graphs(const etch_function *f) { return etch_function_counters(f).graphs; }
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

static etch_tensor *view_of_input(etch_tensor *x) { return etch_slice(x, 0, 1, 3, 1); }

/* A view of an argument that itself lies at another offset than the recorded one. */
TEST(offset_is_not_guarded) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(view_of_input);
        etch_tensor *base = arange_f32(12, 3);
        for (int64_t row = 0; row < 8; row++) {
            etch_tensor *x = etch_slice(base, 0, row, row + 4, 1);
            assert_same(etch_call(f, x), view_of_input(x));
            assert_int_equal(etch_storage_offset(etch_call(f, x)), (row + 1) * 3);
        }
        assert_int_equal(etch_function_counters(f).graphs, 1);
        etch_function_free(f);
    }
}

static etch_tensor *two_arguments(etch_tensor *x, etch_tensor *y) {
    etch_add_scalar_(x, 1);
    etch_tensor *z = etch_mul(x, y);
    etch_mul_(y, z);
    return etch_add(x, y);
}

/* Rule 10: storages that are the same or disjoint are guarded; views of one base overlap. */
TEST(rule10_aliases) {
    for (int b = 0; b < 2; b++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(two_arguments, .backend = test_backends[b]);
            etch_function *plain = etch_compile(two_arguments, .disable = true);
            for (int call = 0; call < 12; call++) {
                etch_tensor *base = arange_f32(8, 4), *base2 = etch_clone(base);
                int64_t other = call % 3 == 0   ? 4
                                : call % 3 == 1 ? 0
                                                : 2; /* disjoint, same, overlap */
                etch_tensor *x = etch_slice(base, 0, 0, 4, 1), *x2 = etch_slice(base2, 0, 0, 4, 1);
                etch_tensor *y = etch_slice(base, 0, other, other + 4, 1);
                etch_tensor *y2 = etch_slice(base2, 0, other, other + 4, 1);
                if (call >= 6) y = etch_clone(y), y2 = etch_clone(y2);
                assert_same(etch_call(f, x, y), etch_call(plain, x2, y2));
                assert_same(base, base2);
            }
            assert_int_equal(etch_function_counters(f).graphs, 2); /* one storage, or two */
            etch_function_free(f);
            etch_function_free(plain);
        }
}

/* ---- the thread's state ---- */

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

static etch_tensor *mean_of_ints(etch_tensor *x) { return etch_div(x, x); }

/* Rule 2: the default dtype is part of the state word. */
TEST(rule2_default_dtype) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(mean_of_ints);
        etch_tensor *x = etch_arange(ETCH_I32, 1, 9, 1);
        for (int call = 0; call < 6; call++) {
            etch_set_default_dtype(call % 2 ? ETCH_F64 : ETCH_F32);
            etch_tensor *y = etch_call(f, x);
            assert_int_equal(etch_dtype_of(y), call % 2 ? ETCH_F64 : ETCH_F32);
        }
        etch_set_default_dtype(ETCH_F32);
        assert_counts(f, 2, 4);
        etch_function_free(f);
    }
}

static int call_number;

static etch_tensor *sets_state(etch_tensor *x) {
    etch_tensor *a = etch_div(x, x); /* integers: the default dtype */
    etch_set_default_dtype(call_number % 2 ? ETCH_F64 : ETCH_F32);
    etch_tensor *b = etch_div(x, x);
    etch_set_default_dtype(ETCH_F32);
    int outer = call_number % 3 ? -1 : etch_inference_begin();
    etch_tensor *c = etch_add(a, b);
    if (outer >= 0) etch_inference_end(outer);
    return c;
}

/* The default dtype and inference are in the state word. */
TEST(state_changed_inside_the_body) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(sets_state, .backend = "eager");
        etch_tensor *x = etch_arange(ETCH_I32, 1, 9, 1);
        for (call_number = 0; call_number < 12; call_number++) {
            etch_tensor *y = etch_call(f, x);
            assert_int_equal(etch_dtype_of(y), call_number % 2 ? ETCH_F64 : ETCH_F32);
            assert_same(y, sets_state(x));
        }
        assert_counts(f, 4, 8);
        etch_function_free(f);
    }
}

static etch_tensor *seeds_inside(etch_tensor *x) {
    etch_manual_seed((uint64_t)call_number);
    etch_tensor *r = etch_randn(ETCH_F32, ETCH_SHAPE(4, 4));
    return etch_add(x, r);
}

TEST(seed_is_read_at_the_call) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(seeds_inside);
        etch_tensor *x = arange_f32(4, 4);
        for (call_number = 0; call_number < 4; call_number++)
            assert_same(etch_call(f, x), seeds_inside(x));
        assert_counts(f, 1, 3);
        etch_function_free(f);
    }
}

static etch_tensor *noisy(etch_tensor *x) {
    etch_tensor *r = etch_randn(ETCH_F32, ETCH_SHAPE(4, 4));
    etch_tensor *y = etch_add(x, r);
    etch_tensor *s = etch_rand(ETCH_F32, ETCH_SHAPE(4, 4));
    return etch_mul(y, s);
}

TEST(random_stream) {
    for (int b = 0; b < 2; b++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(noisy, .backend = test_backends[b]);
            etch_tensor *x = arange_f32(4, 4), *got[5];
            etch_manual_seed(7);
            for (int call = 0; call < 5; call++) got[call] = etch_call(f, x);
            etch_manual_seed(7);
            for (int call = 0; call < 5; call++) {
                assert_same(got[call], noisy(x));
                if (call) assert_false(etch_bitwise_equal(got[call], got[call - 1]));
            }
            assert_counts(f, 1, 4);
            etch_function_free(f);
        }
}

/* ---- scalars and attributes ---- */

static double real_scalar;
static etch_tensor *by_real(etch_tensor *x) { return etch_mul_scalar(x, real_scalar); }

TEST(float_scalars_are_parameters) {
    static const double values[] = {2, 2, 3, 4, 5};
    ETCH_SCOPE {
        etch_function *f = etch_compile(by_real);
        etch_tensor *x = arange_f32(3, 3);
        for (int i = 0; i < 5; i++) {
            real_scalar = values[i];
            assert_same(etch_call(f, x), by_real(x));
            assert_counts(f, 1, i);
        }
        etch_function_free(f);
    }
}

static int64_t int_scalar;
static etch_tensor *by_int(etch_tensor *x) { return etch_add_scalar(x, int_scalar); }

TEST(int_scalars_are_parameters) {
    static const int values[] = {2, 3, 4, 1, 0};
    ETCH_SCOPE {
        etch_function *f = etch_compile(by_int);
        etch_tensor *x = arange_f32(3, 3);
        for (int i = 0; i < 5; i++) {
            int_scalar = values[i];
            assert_same(etch_call(f, x), by_int(x));
            assert_counts(f, 1, i);
        }
        etch_function_free(f);
    }
}

TEST(nan_and_negative_zero_are_plain_parameters) {
    static const double values[] = {1, NAN, -0.0, 0.0, -INFINITY, NAN, -0.0};
    for (int b = 0; b < 2; b++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(by_real, .backend = test_backends[b]);
            etch_tensor *x = arange_f32(3, 3);
            for (int i = 0; i < 7; i++) {
                real_scalar = values[i];
                assert_same(etch_call(f, x), by_real(x)); /* compares the signs of zeros */
            }
            assert_counts(f, 1, 6);
            etch_function_free(f);
        }
}

#define assert_graphs(f, n) assert_int_equal(etch_function_counters(f).graphs, (n))

static int axis;
static bool keepdim;
static etch_dtype to_dtype;

static etch_tensor *by_attributes(etch_tensor *x) {
    etch_tensor *s = etch_sum_dim(x, ETCH_DIMS(axis), keepdim);
    etch_tensor *c = etch_to(s, to_dtype);
    return etch_pow_scalar(c, real_scalar);
}

/* What selects behaviour is a static attribute: each change is a trace of its own. */
TEST(static_attributes_recompile) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(by_attributes, .backend = "eager");
        etch_tensor *x = arange_f32(4, 4);
        for (int round = 0; round < 2; round++)
            for (int i = 0; i < 6; i++) {
                axis = i == 1, keepdim = i == 2;
                to_dtype = i == 3 ? ETCH_F64 : ETCH_F32;
                real_scalar = i == 4 ? 2 : i == 5 ? 1.25 : 1.5; /* the class of the exponent */
                assert_same(etch_call(f, x), by_attributes(x));
                assert_graphs(f, round ? 5 : i < 5 ? i + 1 : 5);
            }
        etch_function_free(f);
    }
}

/* ---- sizes ---- */

static etch_tensor *times_two(etch_tensor *x) { return etch_mul_scalar(x, 2); }

/* Never more graphs than PyTorch makes, whatever the sizes. */
TEST(sizes_make_no_more_graphs_than_pytorch) {
    static const int64_t sizes[] = {5, 6, 7, 8, 1, 0, 2};
    static const int most[] = {1, 2, 2, 2, 3, 4, 4, 5, 6};
    ETCH_SCOPE {
        etch_function *f = etch_compile(times_two, .backend = "eager");
        for (int i = 0; i < 9; i++) {
            etch_tensor *x = i < 7    ? etch_zeros(ETCH_F32, ETCH_SHAPE(sizes[i], 3))
                             : i == 7 ? etch_ones(ETCH_F64, ETCH_SHAPE(2, 3))
                                      : etch_t(arange_f32(3, 4));
            assert_same(etch_call(f, x), times_two(x));
            assert_true(etch_function_counters(f).graphs <= most[i]);
        }
        etch_function_free(f);
    }
}

static bool other_path;

static etch_tensor *two_paths(etch_tensor *x) {
    etch_tensor *y = etch_exp(x);
    return other_path ? etch_sin(y) : etch_neg(y);
}

TEST(dynamic_on_is_one_graph) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(two_paths, .dynamic = ETCH_DYNAMIC_ON);
        other_path = false;
        for (int64_t n = 2; n <= 100000; n *= 7)
            ETCH_SCOPE {
                etch_tensor *x = arange_f32(1, n);
                assert_same(etch_call(f, x), two_paths(x));
            }
        assert_graphs(f, 1);
        assert_int_equal(etch_function_counters(f).plan_runs, 5);
        etch_function_free(f);
    }
}

static etch_tensor *branch_on_shape(etch_tensor *x) {
    int64_t rows = etch_size(x, 0);
    etch_tensor *y = etch_exp(x);
    return rows > 4 ? etch_neg(y) : etch_sin(y);
}

TEST(branch_on_shape_is_one_graph_an_outcome) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(branch_on_shape, .dynamic = ETCH_DYNAMIC_OFF);
        for (int call = 0; call < 6; call++) {
            etch_tensor *x = arange_f32(call % 2 ? 3 : 6, 4);
            assert_same(etch_call(f, x), branch_on_shape(x));
        }
        assert_counts(f, 2, 4);
        assert_int_equal(etch_function_counters(f).graph_breaks, 0);
        etch_function_free(f);
    }
}

static etch_tensor *splits(etch_tensor *x) {
    etch_tensor *sum = NULL;
    for (int64_t at = 0; at < etch_size(x, 0); at += 4) {
        etch_tensor *part = etch_slice(x, 0, at, at + 4, 1);
        sum = sum ? etch_add(sum, part) : part;
    }
    return etch_neg(sum);
}

TEST(split_with_8_then_12_rows) {
    for (int d = 0; d < 3; d++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(splits, .dynamic = (etch_dynamic)d, .backend = "eager");
            for (int call = 0; call < 6; call++) {
                etch_tensor *x = arange_f32(call % 2 ? 12 : 8, 3);
                assert_same(etch_call(f, x), splits(x));
            }
            assert_true(etch_function_counters(f).graphs <= 3);
            assert_true(etch_function_counters(f).plan_runs >= 3);
            etch_function_free(f);
        }
}

/* ---- captured tensors ---- */

static etch_tensor *global_tensor;

static etch_tensor *captures(etch_tensor *x) {
    etch_tensor *y = etch_mul(x, global_tensor);
    return etch_add(y, global_tensor);
}

TEST(captured_tensor_is_rebound) {
    for (int b = 0; b < 2; b++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(captures, .backend = test_backends[b]);
            etch_tensor *x = arange_f32(3, 3);
            for (int call = 0; call < 5; call++) {
                global_tensor = etch_full(ETCH_F32, ETCH_SHAPE(3, 3), call + 0.5);
                assert_same(etch_call(f, x), captures(x));
            }
            assert_counts(f, 1, 4);
            global_tensor = etch_full(ETCH_F64, ETCH_SHAPE(3, 3), 2); /* does not fit its guard */
            for (int call = 0; call < 2; call++) assert_same(etch_call(f, x), captures(x));
            assert_graphs(f, 2);
            etch_function_free(f);
        }
}

/* ---- arguments that no operator reads ---- */

static bool read_second;

/* The second argument: looked at by C code, read on one path only, and returned. */
static etch_status reads_one(void *ctx, etch_tensor *const *in, int nin, etch_tensor **out,
                             int nout) {
    (void)ctx, (void)nin, (void)nout;
    double size = in[1] == ETCH_NONE || !etch_ndim(in[1]) ? 1 : (double)etch_size(in[1], 0);
    etch_tensor *y = etch_mul_scalar(etch_add_(in[0], in[0]), size);
    if (read_second) y = etch_add(y, etch_sum(in[1]));
    out[0] = etch_exp(y), out[1] = in[1];
    return ETCH_OK;
}

/* Of any dtype, rank and size, absent, the tensor that is written, a view of it, its memory. */
static etch_tensor *any_tensor(int i, etch_tensor *x) {
    switch (i % 8) {
    case 0: return etch_ones(ETCH_F32, ETCH_SHAPE(i + 1));
    case 1: return etch_ones(ETCH_I64, ETCH_SHAPE(2, i));
    case 2: return read_second ? etch_ones(ETCH_F16, ETCH_SHAPE(i)) : ETCH_NONE;
    case 3: return x;
    case 4: return etch_slice(x, 0, 1, 3, 1);
    case 5: return etch_wrap_host(etch_data_mut(x), ETCH_F32, ETCH_SHAPE(i % 12), NULL, NULL);
    case 6: return etch_t(etch_ones(ETCH_F64, ETCH_SHAPE(3, i)));
    default: return etch_zeros(ETCH_BOOL, ETCH_SHAPE(0));
    }
}

static void call_reads_one(etch_function *f, etch_function *plain, int i, int64_t rows) {
    ETCH_SCOPE {
        etch_tensor *x = arange_f32(rows, 3), *x2 = etch_clone(x), *out[2], *expected[2];
        etch_tensor *u = any_tensor(i, x), *u2 = any_tensor(i, x2);
        assert_int_equal(etch_call_n(plain, (etch_tensor *[]){x2, u2}, 2, expected, 2), ETCH_OK);
        assert_int_equal(etch_call_n(f, (etch_tensor *[]){x, u}, 2, out, 2), ETCH_OK);
        assert_same(out[0], expected[0]);
        assert_same(x, x2);
        assert_ptr_equal(out[1], u);
    }
}

TEST(unread_argument_is_not_guarded) {
    read_second = false;
    int64_t before = etch_memory().tensors;
    for (int b = 0; b < 4; b++) {
        etch_dynamic dynamic = b < 2 ? ETCH_DYNAMIC_AUTO : ETCH_DYNAMIC_ON;
        etch_function *f =
            etch_compile(reads_one, .backend = test_backends[b % 2], .dynamic = dynamic);
        etch_function *plain = etch_compile(reads_one, .disable = true);
        for (int i = 0; i < 40; i++) call_reads_one(f, plain, i, 4);
        assert_counts(f, 1, 39);
        assert_int_equal(etch_function_counters(f).instances, 0);
        etch_function_free(f), etch_function_free(plain);
    }
    assert_int_equal(etch_memory().tensors, before);
}

/* Its sizes change, then those of the one that is read: run-time sizes are for what is read. */
TEST(unread_argument_beside_changing_sizes) {
    read_second = false;
    etch_function *f = etch_compile(reads_one), *plain = etch_compile(reads_one, .disable = true);
    for (int i = 0; i < 40; i++) call_reads_one(f, plain, i, 4 + i / 10);
    assert_counts(f, 2, 38);
    assert_int_equal(etch_function_counters(f).instances, 2);
    etch_function_free(f), etch_function_free(plain);
}

static etch_tensor *sums_second(etch_tensor *x, etch_tensor *u) {
    etch_tensor *y = etch_exp(x);
    return read_second ? etch_add(y, etch_sum(u)) : y;
}

/* An argument that one path reads is guarded there, like a captured tensor. */
TEST(argument_read_on_one_path) {
    for (int b = 0; b < 4; b++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(sums_second, .backend = test_backends[b % 2]);
            etch_tensor *x = arange_f32(4, 3);
            for (int i = 0; i < 60; i++) {
                read_second = (i % 2) ^ (b / 2);
                etch_tensor *u = read_second ? arange_f32(1, 1 + i) : any_tensor(i % 2, x);
                assert_same(etch_call(f, x, u), sums_second(x, u));
                assert_same(etch_call(f, x, x), sums_second(x, x));
            }
            assert_graphs(f, 4); /* each path, and what is read of sizes that change, or twice */
            etch_function_free(f);
        }
}

static int body_calls;

static etch_tensor *sums_floats(etch_tensor *x, etch_tensor *u) {
    body_calls++;
    etch_tensor *y = etch_exp(x);
    return etch_dtype_of(u) == ETCH_F32 ? etch_add(y, etch_sum(u)) : y;
}

/* `replay` takes no argument for a captured tensor, which it would keep. */
TEST(argument_read_on_one_path_under_replay) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(sums_floats, .replay = true);
        etch_tensor *x = arange_f32(4, 3), *whole = etch_zeros(ETCH_I64, ETCH_SHAPE(2));
        body_calls = 0;
        for (int i = 0; i < 4; i++) assert_non_null(etch_call(f, x, whole));
        assert_int_equal(body_calls, 1);
        for (int i = 0; i < 4; i++) {
            etch_tensor *u = etch_full(ETCH_F32, ETCH_SHAPE(2), i);
            assert_same(etch_call(f, x, u), etch_add(etch_exp(x), etch_sum(u)));
        }
        assert_int_equal(body_calls, 5);
        assert_graphs(f, 2);
        etch_function_free(f);
    }
}

/* Under stable_after, fullgraph and replay the same holds. */
TEST(unread_argument_under_other_options) {
    read_second = false;
    for (int b = 0; b < 3; b++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(sums_second, .stable_after = b == 0 ? 3 : 0,
                                            .fullgraph = b == 1, .replay = b == 2);
            etch_tensor *x = arange_f32(4, 3);
            for (int i = 0; i < 20; i++) {
                etch_tensor *u = any_tensor(i, x);
                assert_same(etch_call(f, x, u), sums_second(x, u));
            }
            assert_graphs(f, 1);
            etch_function_free(f);
        }
}
