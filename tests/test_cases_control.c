/* Reports about what a trace is taken for: expressions whose leaves differ, errors while recording,
 * optional arguments, constants by value, modes, random numbers; and about the cache of another
 * build or processor. See cases_support.h.
 * Labels: device. */
#include "cases_support.h"

#include "core/base/isa.h"

/* ---- equal trees over other leaves ---- */

static void trees(etch_tensor *const *in, etch_tensor **out, bool last_is_d) {
    etch_tensor *d = etch_add(in[0], in[1]);
    etch_tensor *e = etch_add(in[0], in[2]);
    etch_tensor *product = etch_mul(d, e);
    out[0] = etch_sub(product, last_is_d ? d : e);
}

static void product_minus_e(etch_tensor *const *in, etch_tensor **out) { trees(in, out, false); }
static void product_minus_d(etch_tensor *const *in, etch_tensor **out) { trees(in, out, true); }

static void both_trees(etch_tensor *const *in, etch_tensor **out) {
    trees(in, out, false);
    trees(in, out + 1, true);
}

static void trees_in_turn(etch_tensor *const *in, etch_tensor **out) {
    trees(in, out, case_call_number % 2);
}

#define LEAVES IN("i32[]{3}", "i32[]{5}", "i32[]{2}")

/* ---- errors while recording ---- */

static void fails_at_first(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *sum = etch_add(in[0], in[1]);
    out[0] = case_call_number < 2 ? NULL : sum;
}

static void fails_after_a_write(etch_tensor *const *in, etch_tensor **out) {
    etch_add_scalar_(in[0], 1);
    out[0] = case_call_number < 2 ? NULL : etch_neg(in[0]);
}

static void operator_fails_at_first(etch_tensor *const *in, etch_tensor **out) {
    etch_tensor *sum = etch_add(in[0], in[1]);
    out[0] = case_call_number < 2 ? etch_mm(sum, in[0]) : sum;
}

/* ---- arguments that are not always there, constants by value ---- */

static void with_optional(etch_tensor *const *in, etch_tensor **out) {
    out[0] = etch_neg(in[0]);
    if (in[1]) out[1] = etch_add(in[0], in[1]);
}

/* The operator's name and the dimensions lie elsewhere in memory at every call. */
static void by_name(etch_tensor *const *in, etch_tensor **out) {
    char name[32];
    snprintf(name, sizeof name, "%s.%s", "sum", "dim_IntList");
    etch_dims dims = {1, {case_call_number >= 0}};
    etch_value args[] = {{.tag = ETCH_VALUE_TENSOR, .tensor = in[0]},
                         {.tag = ETCH_VALUE_INTS, .ints = dims},
                         {.tag = ETCH_VALUE_BOOL, .b = false}};
    if (etch_op_call(etch_op_find(name), args, 3, out, 1) != ETCH_OK) out[0] = NULL;
}

static const case_row rows[] = {
    CASE(af_374_leaves_of_equal_trees_e, product_minus_e, LEAVES, WANT("i32[]{35}")),
    CASE(af_374_leaves_of_equal_trees_d, product_minus_d, LEAVES, WANT("i32[]{32}")),
    CASE(af_374_both_trees, both_trees, LEAVES, WANT("i32[]{35}", "i32[]{32}")),
    CALLS_WITH(af_374_trees_in_turn, trees_in_turn, .graphs = 2, CALL(LEAVES, WANT("i32[]{35}")),
               CALL(LEAVES, WANT("i32[]{32}")), CALL(LEAVES, WANT("i32[]{35}"))),
    CALLS(mlx_01368d8e7_body_fails_twice, fails_at_first,
          CALL(IN("f32[]{1}", "f32[]{2}"), FAILS(ETCH_ERR_USER)),
          CALL(IN("f32[]{1}", "f32[]{2}"), FAILS(ETCH_ERR_USER)),
          CALL(IN("f32[]{1}", "f32[]{2}"), WANT("f32[]{3}")),
          CALL(IN("f32[]{1}", "f32[]{3}"), WANT("f32[]{4}"))),
    CALLS(mlx_01368d8e7_body_fails_after_a_write, fails_after_a_write,
          CALL(IN("i32[2]{1 2}"), AFTER("i32[2]{2 3}"), FAILS(ETCH_ERR_USER)),
          CALL(IN("i32[2]{1 2}"), AFTER("i32[2]{2 3}"), FAILS(ETCH_ERR_USER)),
          CALL(IN("i32[2]{1 2}"), WANT("i32[2]{-2 -3}"), AFTER("i32[2]{2 3}"))),
    CALLS(mlx_01368d8e7_operator_fails_twice, operator_fails_at_first,
          CALL(IN("f32[2]{1 2}", "f32[2]{2 3}"), FAILS(ETCH_ERR_SHAPE)),
          CALL(IN("f32[2]{1 2}", "f32[2]{2 3}"), FAILS(ETCH_ERR_SHAPE)),
          CALL(IN("f32[2]{1 2}", "f32[2]{2 3}"), WANT("f32[2]{3 5}"))),
    CALLS_WITH(mlx_2632_optional_argument, with_optional, .graphs = 2,
               CALL(IN("f32[2]{1 2}", "f32[2]{10 20}"), WANT("f32[2]{-1 -2}", "f32[2]{11 22}")),
               CALL(IN("f32[2]{1 2}"), WANT("f32[2]{-1 -2}")),
               CALL(IN("f32[2]{3 4}", "f32[2]{10 20}"), WANT("f32[2]{-3 -4}", "f32[2]{13 24}"))),
    CALLS_WITH(mlx_35b412c09_constants_by_value, by_name, .graphs = 1,
               CALL(IN("i64[2,2]{1 2 3 4}"), WANT("i64[2]{3 7}")),
               CALL(IN("i64[2,2]{5 6 7 8}"), WANT("i64[2]{11 15}"))),
};

/* ---- what is no matter of one body's values ---- */

static etch_status twice_as_much(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                 etch_tensor **out, int nout) {
    (void)ctx;
    etch_status status = etch_redispatch(op, args, nargs, out, nout);
    if (status == ETCH_OK) out[0] = etch_mul_scalar(out[0], 2);
    return out[0] ? status : ETCH_ERR_USER;
}

static etch_tensor *copy_of(etch_tensor *x) { return etch_clone(x); }

/* A mode that doubles every result, entered before the first call, and after a compile. */
TEST(pt_115653_mode_over_a_compiled_clone) {
    etch_mode *mode = etch_mode_new(twice_as_much, NULL, .name = "twice");
    ETCH_SCOPE {
        etch_tensor *x = etch_ones(ETCH_F32, ETCH_SHAPE());
        for (int compiled_before = 0; compiled_before < 2; compiled_before++) {
            etch_function *f = etch_compile(copy_of);
            for (int i = 0; i < 2 * compiled_before; i++) assert_non_null(etch_call(f, x));
            ETCH_WITH_MODE (mode) { assert_true(etch_item(etch_call(f, x)) == 2); }
            assert_true(etch_item(etch_call(f, x)) == 1);
            assert_int_equal(etch_function_counters(f).mode_fallbacks, 1);
            etch_function_free(f);
        }
    }
    etch_mode_free(mode);
}

static etch_tensor *adds_random(etch_tensor *x) {
    etch_tensor *a = etch_rand(ETCH_F32, ETCH_SHAPE(3));
    etch_tensor *b = etch_randn(ETCH_F32, ETCH_SHAPE(3));
    etch_tensor *c = etch_rand(ETCH_F32, ETCH_SHAPE(3));
    return etch_add(etch_add(x, a), etch_mul(b, c));
}

/* Compiled and eager give one stream from one seed, call after call. */
TEST(tg_f2f039cc0f_one_stream_of_random_numbers) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(adds_random);
        etch_tensor *x = etch_zeros(ETCH_F32, ETCH_SHAPE(3)), *eager[5];
        etch_manual_seed(11);
        for (int i = 0; i < 5; i++) eager[i] = adds_random(x);
        etch_manual_seed(11);
        for (int i = 0; i < 5; i++) assert_same(etch_call(f, x), eager[i]);
        for (int i = 1; i < 5; i++) assert_false(etch_bitwise_equal(eager[0], eager[i]));
        assert_counts(f, 1, 4);
        etch_function_free(f);
    }
}

static etch_tensor *assigns_all(etch_tensor *x) { return etch_copy_(x, etch_add_scalar(x, 1)); }

/* x <- x + 1 keeps its memory, however often. */
TEST(tg_f2f039cc0f_full_assignment_keeps_the_buffer) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(assigns_all);
        etch_tensor *x = etch_zeros(ETCH_F32, ETCH_SHAPE(100));
        const void *memory = etch_data(x);
        etch_data_end(x);
        for (int i = 0; i < 4; i++) {
            assert_ptr_equal(etch_call(f, x), x);
            assert_ptr_equal(etch_data(x), memory);
            etch_data_end(x);
        }
        assert_true(etch_item(etch_min(x)) == 4 && etch_item(etch_max(x)) == 4);
        assert_counts(f, 1, 3);
        etch_function_free(f);
    }
}

/* Runs this program's rows with one more setting over the same cache; how many were compiled. */
static long long compiled_with(const char *variable, const char *value) {
    char path[96];
    snprintf(path, sizeof path, "%s/other-%ld", case_dir, test_part());
    setenv(variable, value, 1);
    assert_int_equal(case_execute_self(path), 0);
    unsetenv(variable);
    case_answer cold, other;
    assert_true(case_find_answer(case_path[0], rows[0].name, 0, &cold));
    assert_true(case_find_answer(path, rows[0].name, 0, &other));
    assert_int_equal(other.bits, cold.bits);
    return other.compiled;
}

/* Code for another processor is not loaded: it is built for the one at hand. */
TEST(pt_121516_cache_of_another_processor) {
    ONLY_ON_CPU();
    assert_int_equal(compiled_with("ETCH_NUM_THREADS", "1"), 0);
    const char *isa = etch__cpu_isa() == CPU_ISA_BASELINE ? "avx2" : "baseline";
    assert_true(compiled_with("ETCH_CPU_ISA", isa) > 0);
    assert_int_equal(compiled_with("ETCH_CPU_ISA", isa), 0);
}

/* Another compiler of kernels: one byte more is another helper. */
TEST(af_3182_cache_of_another_compiler) {
    ONLY_ON_CPU();
    char helper[96], command[512];
    snprintf(helper, sizeof helper, "%s/helper", case_dir);
    snprintf(command, sizeof command, "cp '%s/jit/helper/etch-jit' '%s' && printf x >> '%s'",
             ETCH_TEST_BINARY_DIR, helper, helper);
    assert_int_equal(system(command), 0);
    assert_true(compiled_with("ETCH_JIT", helper) > 0);
    assert_int_equal(compiled_with("ETCH_JIT", helper), 0);
}

CASES_MAIN(rows)
