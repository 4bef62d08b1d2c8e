/* The ready-made modes: what each writes, counts, refuses and replaces. */
#include "trace_support.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Lines that a mode has written. */
typedef struct lines {
    char text[65536];
    int count;
} lines;
static lines written;

static void take(void *ctx, const char *line) {
    lines *l = ctx;
    size_t used = strlen(l->text);
    snprintf(l->text + used, sizeof l->text - used, "%s\n", line);
    l->count++;
}
static etch_line_sink to_written(void) {
    memset(&written, 0, sizeof written);
    return (etch_line_sink){take, &written};
}

static int count_text(const char *text, const char *part) {
    int n = 0;
    for (; (text = strstr(text, part)); text += strlen(part)) n++;
    return n;
}

#define assert_error(code, part)                                                                   \
    do {                                                                                           \
        assert_int_equal(etch_last_status(), code);                                                \
        if (!strstr(etch_last_error(), part)) print_error("error: %s\n", etch_last_error());       \
        assert_non_null(strstr(etch_last_error(), part));                                          \
        etch_clear_error();                                                                        \
    } while (0)

/* ---- profiling ---- */

TEST(profiling_lines_and_table) {
    etch_mode *m = etch_profiling_mode(to_written());
    ETCH_SCOPE {
        etch_tensor *x = arange_f32(8, 8), *expected = seed_program(x, x), *y = NULL;
        ETCH_WITH_MODE (m) { y = seed_program(x, x); }
        assert_same(y, expected);
    }
    assert_int_equal(written.count, 25);
    assert_int_equal(count_text(written.text, "aten::mm: 0.0"), 10);
    assert_int_equal(count_text(written.text, "aten::add: 0.0"), 5);
    assert_int_equal(count_text(written.text, "s\n"), 25);

    etch_mode_times times[8];
    assert_int_equal(etch_profiling_mode_times(m, times, 8), 4);
    for (int i = 0; i < 4; i++) {
        bool product = etch_op_is(times[i].op, "mm"),
             two = product || etch_op_is(times[i].op, "add");
        assert_int_equal(times[i].calls, product ? 10 : 5);
        assert_int_equal(times[i].bytes, times[i].calls * 8 * 8 * 4 * (two ? 3 : 2));
        assert_true(times[i].total > 0);
        assert_true(times[i].mean == times[i].total / (double)times[i].calls);
        if (i) assert_true(times[i - 1].total >= times[i].total);
    }
    char table[2048], cut[10];
    int64_t need = etch_profiling_mode_table(m, table, sizeof table);
    assert_int_equal(need, strlen(table));
    assert_int_equal(etch_profiling_mode_table(m, cut, sizeof cut), need);
    assert_int_equal(strlen(cut), sizeof cut - 1);
    assert_int_equal(count_text(table, "\n"), 5);
    assert_non_null(strstr(table, "mm "));
    etch_mode_free(m);
}

TEST(profiling_to_a_file_and_to_nowhere) {
    FILE *file = tmpfile();
    etch_mode *m = etch_profiling_mode(etch_file_sink(file));
    etch_mode *silent = etch_profiling_mode(etch_file_sink(NULL));
    char line[64];
    ETCH_SCOPE {
        etch_tensor *x = arange_f32(2, 2);
        ETCH_WITH_MODE (m) { etch_sin(x); }
        ETCH_WITH_MODE (silent) { etch_sin(x); }
    }
    rewind(file);
    assert_non_null(fgets(line, sizeof line, file));
    assert_memory_equal(line, "aten::sin: 0.", 13);
    assert_null(fgets(line, sizeof line, file));
    fclose(file);
    assert_int_equal(etch_profiling_mode_times(silent, NULL, 0), 1);
    etch_mode_free(silent);
    etch_mode_free(m);
}

/* ---- validation ---- */

static etch_tensor *with_element(etch_dtype dtype, double value) {
    etch_tensor *x = etch_zeros(ETCH_F64, ETCH_SHAPE(3, 4));
    etch_fill_(etch_select(etch_select(x, 0, 1), 0, 2), value);
    return etch_to(x, dtype);
}

TEST(validation_finds_nan_in_every_float_dtype) {
    static const etch_dtype dtypes[] = {ETCH_F32, ETCH_F64, ETCH_BF16, ETCH_F16};
    etch_mode *nan_only = etch_validation_mode(false), *both = etch_validation_mode(true);
    ETCH_SCOPE {
        for (int i = 0; i < 4; i++) {
            etch_tensor *bad = with_element(dtypes[i], NAN), *good = with_element(dtypes[i], 65504);
            etch_tensor *infinite = with_element(dtypes[i], -INFINITY);
            ETCH_WITH_MODE (nan_only) {
                assert_null(etch_add(good, bad));
                assert_error(ETCH_ERR_INVALID_ARGUMENT,
                             "aten::add: argument 1 contains NaN (test_ready_modes.c:");
                assert_non_null(etch_neg(infinite));
                assert_non_null(etch_neg(good));
            }
            ETCH_WITH_MODE (both) {
                assert_null(etch_neg(infinite));
                assert_error(ETCH_ERR_INVALID_ARGUMENT, "argument 0 contains an infinity");
                assert_null(etch_neg(bad));
                assert_error(ETCH_ERR_INVALID_ARGUMENT, "argument 0 contains NaN");
                assert_non_null(etch_neg(good));
            }
        }
    }
    etch_mode_free(both);
    etch_mode_free(nan_only);
}

TEST(validation_of_results_lists_and_views) {
    etch_mode *m = etch_validation_mode(false);
    ETCH_SCOPE {
        etch_tensor *minus = etch_full(ETCH_F32, ETCH_SHAPE(2), -1.0);
        etch_tensor *bad = with_element(ETCH_F32, NAN), *good = with_element(ETCH_F32, 0);
        etch_tensor *list[2] = {good, bad};
        /* The NaN at [1, 2] lies in memory between the elements of the first views. */
        etch_tensor *column = etch_slice(bad, 1, 1, 2, 1),
                    *other = etch_t(etch_slice(bad, 1, 2, 4, 1));
        etch_tensor *integers = etch_arange(ETCH_I64, 0, 5, 1),
                    *empty = etch_slice(bad, 0, 0, 0, 1);
        ETCH_WITH_MODE (m) {
            assert_null(etch_sqrt(minus));
            assert_error(ETCH_ERR_INVALID_ARGUMENT, "aten::sqrt: the result contains NaN");
            assert_null(etch_cat(list, 2, 0));
            assert_error(ETCH_ERR_INVALID_ARGUMENT, "aten::cat: argument 0[1] contains NaN");
            assert_non_null(etch_neg(column));
            assert_null(etch_neg(other));
            assert_error(ETCH_ERR_INVALID_ARGUMENT, "argument 0");
            assert_non_null(etch_neg(integers));
            assert_non_null(etch_neg(empty));
            assert_non_null(etch_empty(ETCH_F32, ETCH_SHAPE(100)));
            assert_null(etch_full(ETCH_F32, ETCH_SHAPE(2), NAN));
            assert_error(ETCH_ERR_INVALID_ARGUMENT, "aten::full: the result");
        }
        assert_non_null(etch_sqrt(minus));
    }
    etch_mode_free(m);
}

/* The mode looks at elements itself: modes outside see the program's operators only. */
TEST(validation_calls_no_operators) {
    etch_mode *outer = etch_statistics_mode(), *m = etch_validation_mode(true);
    ETCH_SCOPE {
        etch_tensor *x = etch_div_scalar(arange_f32(4, 4), 100);
        ETCH_WITH_MODE (outer) {
            ETCH_WITH_MODE (m) { assert_non_null(seed_program(x, x)); }
        }
        assert_int_equal(etch_statistics_mode_count(outer, NULL), 25);
    }
    etch_mode_free(m);
    etch_mode_free(outer);
}

static etch_mode *inner_mode;

static etch_tensor *exposes(etch_tensor *x) {
    etch_tensor *w = etch_clone(x);
    float *p = etch_data_mut(w);
    ETCH_WITH_MODE (inner_mode) { etch_add(w, w); }
    etch_tensor *y = etch_mul(x, w);
    *p = 50;
    return etch_add(y, w);
}

/* Memory to which the user holds a pointer stays exposed when a mode has looked at it. */
TEST(validation_ends_no_exposure) {
    inner_mode = etch_validation_mode(false);
    ETCH_SCOPE {
        etch_function *f = etch_compile(exposes);
        for (int call = 0; call < 4; call++) {
            etch_tensor *x = etch_full(ETCH_F32, ETCH_SHAPE(2, 2), call + 2);
            assert_true(etch_bitwise_equal(etch_call(f, x), exposes(x)));
        }
        etch_function_free(f);
    }
    etch_mode_free(inner_mode);
}

/* ---- logging ---- */

TEST(logging) {
    etch_mode *m = etch_logging_mode(to_written());
    ETCH_SCOPE {
        etch_tensor *a = arange_f32(2, 3), *b = arange_f32(3, 4), *list[2] = {a, a};
        ETCH_WITH_MODE (m) { etch_mm(a, b); }
        assert_string_equal(written.text, "Called: aten::mm\n"
                                          "  argument 0: f32[2, 3] on cpu\n"
                                          "  argument 1: f32[3, 4] on cpu\n"
                                          "  result: f32[2, 4] on cpu\n");
        *written.text = 0;
        ETCH_WITH_MODE (m) { etch_cat(list, 2, 0); }
        assert_int_equal(count_text(written.text, "argument 0: f32[2, 3]"), 2);
        *written.text = 0;
        ETCH_WITH_MODE (m) { assert_null(etch_mm(a, a)); }
        assert_int_equal(count_text(written.text, "  failed: mm: "), 1);
        assert_error(ETCH_ERR_SHAPE, "mm");
        *written.text = 0;
        ETCH_WITH_MODE (m) { etch_sum(etch_to(a, ETCH_I64)); }
        assert_int_equal(count_text(written.text, "  result: i64[] on cpu\n"), 1);
    }
    etch_mode_free(m);
}

/* ---- statistics ---- */

TEST(statistics_by_falling_count) {
    etch_mode *m = etch_statistics_mode();
    char text[512], cut[8];
    assert_int_equal(etch_statistics_mode_text(m, text, sizeof text), 0);
    assert_string_equal(text, "");
    ETCH_SCOPE {
        etch_tensor *x = arange_f32(4, 4);
        ETCH_WITH_MODE (m) {
            seed_program(x, x);
            for (int i = 0; i < 2; i++) etch_add_scalar(x, 1);
        }
    }
    int64_t need = etch_statistics_mode_text(m, text, sizeof text);
    assert_string_equal(text, "aten::mm: 10 calls\n"
                              "aten::add: 7 calls\n"
                              "aten::relu: 5 calls\n"
                              "aten::sin: 5 calls\n");
    assert_int_equal(need, strlen(text));
    assert_int_equal(etch_statistics_mode_text(m, cut, sizeof cut), need);
    assert_string_equal(cut, "aten::m");
    assert_int_equal(etch_statistics_mode_count(m, "add"), 7);
    assert_int_equal(etch_statistics_mode_count(m, "aten::add.Scalar"), 2);
    assert_int_equal(etch_statistics_mode_count(m, "exp"), 0);
    assert_int_equal(etch_statistics_mode_count(m, NULL), 27);
    etch_mode_free(m);
}

static void *count_on_thread(void *mode) {
    ETCH_SCOPE {
        etch_tensor *x = arange_f32(2, 2);
        ETCH_WITH_MODE (mode) {
            for (int i = 0; i < 500; i++) etch_sin(x);
        }
    }
    return NULL;
}

TEST(one_mode_on_several_threads) {
    pthread_t threads[4];
    etch_mode *m = etch_statistics_mode();
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, count_on_thread, m);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    assert_int_equal(etch_statistics_mode_count(m, "sin"), 2000);
    etch_mode_free(m);
}

/* ---- call stacks ---- */

__attribute__((noinline)) etch_tensor *deep_function(etch_tensor *x);
__attribute__((noinline)) etch_tensor *outer_function(etch_tensor *x);
etch_tensor *deep_function(etch_tensor *x) {
    etch_tensor *y = etch_mm(x, x);
    return etch_sin(y);
}
etch_tensor *outer_function(etch_tensor *x) {
    etch_tensor *y = deep_function(x);
    return y ? etch_neg(y) : NULL;
}

TEST(call_stack) {
    etch_mode *m = etch_call_stack_mode("mm", to_written());
    ETCH_SCOPE {
        etch_tensor *x = arange_f32(3, 3);
        ETCH_WITH_MODE (m) { assert_non_null(outer_function(x)); }
    }
    assert_int_equal(count_text(written.text, "Call stack of aten::mm:\n"), 1);
    assert_int_equal(count_text(written.text, "Call stack"), 1);
    const char *called = strstr(written.text, "  #0 etch_mm");
    const char *deep = strstr(written.text, "  #1 deep_function at test_ready_modes.c:");
    const char *outer = strstr(written.text, "  #2 outer_function at test_ready_modes.c:");
    if (!called || !deep || !outer) print_error("%s\n", written.text);
    assert_true(called && deep && outer && called < deep && deep < outer);
    assert_non_null(strstr(outer, "main"));
    etch_mode_free(m);
    m = etch_call_stack_mode(NULL, to_written());
    ETCH_SCOPE {
        etch_tensor *x = arange_f32(3, 3);
        ETCH_WITH_MODE (m) { assert_non_null(outer_function(x)); }
    }
    assert_int_equal(count_text(written.text, "Call stack"), 3);
    etch_mode_free(m);
}

/* ---- conditional interception ---- */

static etch_status answer_zeros(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                etch_tensor **out, int nout) {
    (void)op, (void)nargs, (void)nout;
    ++*(int *)ctx;
    out[0] = etch_zeros(ETCH_F32,
                        ETCH_SHAPE(etch_size(args[0].tensor, 0), etch_size(args[1].tensor, 1)));
    return out[0] ? ETCH_OK : etch_last_status();
}

TEST(conditional_by_operator_and_size) {
    int calls = 0;
    etch_mode *m = etch_conditional_mode("mm", 1024, answer_zeros, &calls);
    ETCH_SCOPE {
        etch_tensor *at = arange_f32(32, 32), *above = arange_f32(32, 33), *y = NULL;
        etch_tensor *right = arange_f32(33, 2), *zeros = etch_zeros(ETCH_F32, ETCH_SHAPE(32, 2));
        etch_tensor *plain = etch_mm(at, at);
        ETCH_WITH_MODE (m) {
            assert_non_null(etch_sin(above)); /* another operator */
            y = etch_mm(at, at);              /* not more than 1024 */
        }
        assert_same(y, plain);
        assert_int_equal(calls, 0);
        ETCH_WITH_MODE (m) { y = etch_mm(above, right); }
        assert_int_equal(calls, 1);
        assert_same(y, zeros);
    }
    etch_mode_free(m);
    assert_null(etch_conditional_mode("mm", 0, NULL, NULL));
    assert_error(ETCH_ERR_NULL, "handler");
}

static etch_status only_count(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                              etch_tensor **out, int nout) {
    (void)op, (void)args, (void)nargs, (void)out, (void)nout;
    ++*(int *)ctx;
    return ETCH_DECLINED;
}

TEST(conditional_on_anything) {
    int all = 0, large = 0;
    etch_mode *any = etch_conditional_mode(NULL, -1, only_count, &all);
    etch_mode *by_size = etch_conditional_mode(NULL, 3, only_count, &large);
    ETCH_SCOPE {
        ETCH_WITH_MODE (any) {
            ETCH_WITH_MODE (by_size) {
                etch_tensor *x = etch_zeros(ETCH_F32, ETCH_SHAPE(4)); /* no tensor argument */
                etch_sin(x);
                etch_sin(etch_slice(x, 0, 0, 3, 1));
            }
        }
    }
    assert_int_equal(all, 4);
    assert_int_equal(large, 2);
    etch_mode_free(by_size);
    etch_mode_free(any);
}

/* ---- replacement ---- */

static int product_runs;
static etch_status product_kernel(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                  etch_tensor *const *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    product_runs++;
    etch_tensor *y = etch_mm(args[0].tensor, args[1].tensor);
    return y && etch_copy_(out[0], y) ? ETCH_OK : etch_last_status();
}
static etch_status product_shape(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                 etch_tensor_spec *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    out[0].dtype = etch_dtype_of(args[0].tensor);
    out[0].sizes = ETCH_SHAPE(etch_size(args[0].tensor, 0), etch_size(args[1].tensor, 1));
    return ETCH_OK;
}

TEST(replacement) {
    etch_op_definition d = {.struct_size = sizeof d, .cpu = product_kernel, .shape = product_shape};
    const etch_op *by = etch_op_register("ready_test::product(Tensor a, Tensor b) -> Tensor", &d);
    etch_mode *m = etch_replacement_mode("mm", by), *wrong;
    etch_function *f = etch_compile(seed_program);
    product_runs = 0;
    ETCH_SCOPE {
        etch_tensor *x = etch_div_scalar(arange_f32(8, 8), 50), *expected = seed_program(x, x),
                    *y = NULL;
        ETCH_WITH_MODE (m) { y = seed_program(x, x); }
        assert_same(y, expected);
        assert_int_equal(product_runs, 10);
        assert_int_equal(etch_replacement_mode_count(m), 10);
        seed_program(x, x);
        assert_int_equal(product_runs, 10);
        ETCH_WITH_MODE (m) { y = etch_call(f, x, x); }
        assert_same(y, expected);
        assert_counts(f, 0, 0);
        assert_int_equal(etch_replacement_mode_count(m), 20);
        /* What does not fit is refused. */
        wrong = etch_replacement_mode("mm", etch_op_find("add.Tensor"));
        etch_tensor *column = arange_f32(8, 1);
        ETCH_WITH_MODE (wrong) { assert_null(etch_mm(x, column)); }
        assert_error(ETCH_ERR_INVALID_ARGUMENT, "returned f32[8, 8], expected f32[8, 1]");
        assert_int_equal(etch_statistics_mode_count(m, NULL), -1);
        assert_error(ETCH_ERR_INVALID_ARGUMENT, "statistics");
    }
    assert_null(etch_replacement_mode("no_such_operator", by));
    assert_error(ETCH_ERR_NOT_FOUND, "no_such_operator");
    assert_null(etch_replacement_mode("mm", NULL));
    assert_error(ETCH_ERR_NULL, "operators");
    etch_function_free(f);
    etch_mode_free(wrong);
    etch_mode_free(m);
}

/* ---- asking the wrong mode ---- */

TEST(modes_of_another_kind_are_refused) {
    etch_mode *m = etch_statistics_mode();
    char text[8];
    assert_int_equal(etch_profiling_mode_times(m, NULL, 0), -1);
    assert_error(ETCH_ERR_INVALID_ARGUMENT, "profiling");
    assert_int_equal(etch_profiling_mode_table(m, text, sizeof text), -1);
    assert_int_equal(etch_replacement_mode_count(m), -1);
    assert_int_equal(etch_statistics_mode_count(NULL, NULL), -1);
    assert_int_equal(etch_statistics_mode_text(NULL, text, sizeof text), -1);
    etch_clear_error();
    etch_mode_free(m);
}
