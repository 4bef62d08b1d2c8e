/* The profiler: what it records of each way to run, that it changes nothing, and its file. */
#include "trace_support.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/base.h"

/* ---- programs ---- */

static etch_status twice_kernel(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                etch_tensor *const *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
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

static etch_tensor *twice(etch_tensor *x) {
    static const etch_op *op;
    etch_op_definition d = {.struct_size = sizeof d, .cpu = twice_kernel, .shape = like_first};
    if (!op) op = etch_op_register("profile_test::twice(Tensor a) -> Tensor", &d);
    etch_value arg = {.tag = ETCH_VALUE_TENSOR, .tensor = x};
    etch_tensor *out = NULL;
    return etch_op_call(op, &arg, 1, &out, 1) == ETCH_OK ? out : NULL;
}

/* A product, pointwise operators, a custom operator, a break. */
static etch_tensor *mixed(etch_tensor *x, etch_tensor *w) {
    etch_tensor *a = etch_mm(x, w);
    etch_tensor *b = etch_add_scalar(a, 1);
    etch_tensor *c = etch_sin(b);
    etch_graph_break("half way");
    etch_tensor *d = twice(c);
    return etch_sub(d, x);
}

static etch_profile_entry find(etch_profile_kind kind, const char *name) {
    etch_profile_entry all[128], none = {.kind = ETCH_PROFILE_KINDS};
    int n = etch_profile_entries(all, 128);
    for (int i = 0; i < n && i < 128; i++)
        if (all[i].kind == kind && (!name || !strcmp(all[i].name, name))) return all[i];
    return none;
}

/* ---- what is recorded ---- */

TEST(first_call_shows_operators_breaks_and_compiles) {
    etch_function *f = etch_compile(mixed);
    ETCH_SCOPE {
        etch_tensor *x = arange_f32(8, 8), *w = arange_f32(8, 8);
        ETCH_PROFILE (NULL) { assert_non_null(etch_call(f, x, w)); }
    }
    assert_int_equal(find(ETCH_PROFILE_CALL, "mixed").count, 1);
    assert_int_equal(find(ETCH_PROFILE_GUARDS, "mixed").count, 1);
    assert_int_equal(find(ETCH_PROFILE_BREAK, "mixed: graph_break").count, 1);
    assert_int_equal(find(ETCH_PROFILE_OPERATOR, "aten::mm").count, 1);
    assert_int_equal(find(ETCH_PROFILE_OPERATOR, "aten::sin").count, 1);
    assert_int_equal(find(ETCH_PROFILE_CUSTOM, "profile_test::twice").count, 1);
    assert_int_equal(etch_profile_count(ETCH_PROFILE_COMPILE), 2);
    assert_int_equal(etch_profile_count(ETCH_PROFILE_KERNEL), 0);
    etch_function_free(f);
}

TEST(compiled_call_shows_its_steps) {
    etch_function *f = etch_compile(mixed);
    ETCH_SCOPE {
        etch_tensor *x = arange_f32(8, 8), *w = arange_f32(8, 8);
        etch_call(f, x, w);
        int64_t before = etch_counters().kernel_launches;
        ETCH_PROFILE (NULL) {
            for (int i = 0; i < 3; i++) assert_non_null(etch_call(f, x, w));
        }
        int64_t launches = etch_counters().kernel_launches - before;
        assert_int_equal(etch_profile_count(ETCH_PROFILE_KERNEL), launches);
        if (etch_counters().compile_failures == 0) assert_true(launches >= 6);
    }
    assert_int_equal(find(ETCH_PROFILE_CALL, "mixed").count, 3);
    assert_int_equal(find(ETCH_PROFILE_PRODUCT, "aten::mm").count, 3);
    assert_int_equal(find(ETCH_PROFILE_CUSTOM, "profile_test::twice").count, 3);
    assert_int_equal(find(ETCH_PROFILE_BREAK, "mixed: graph_break").count, 3);
    assert_int_equal(etch_profile_count(ETCH_PROFILE_COMPILE), 0);
    etch_profile_entry call = find(ETCH_PROFILE_CALL, "mixed");
    etch_profile_entry product = find(ETCH_PROFILE_PRODUCT, "aten::mm");
    assert_true(call.total_ns >= product.total_ns && product.total_ns >= product.max_ns);
    assert_int_equal(find(ETCH_PROFILE_BREAK, NULL).total_ns, 0);
    etch_function_free(f);
}

/* The same program with and without a profile: the same bits and the same counters. */
static etch_counters_t run_counted(bool profiled, etch_tensor **results) {
    etch_function *f = etch_compile(mixed);
    etch_counters_reset();
    etch_tensor *x = arange_f32(8, 8), *w = arange_f32(8, 8);
    if (profiled) assert_int_equal(etch_profile_begin(NULL), ETCH_OK);
    for (int i = 0; i < 4; i++) results[i] = etch_call(f, x, w);
    if (profiled) assert_int_equal(etch_profile_end(), ETCH_OK);
    etch_counters_t c = etch_counters();
    etch_function_free(f);
    return c;
}

TEST(changes_neither_bits_nor_counters) {
    ETCH_SCOPE {
        etch_tensor *warm[4], *plain[4], *profiled[4];
        run_counted(false, warm); /* afterwards kernels are in memory for both */
        etch_counters_t a = run_counted(false, plain), b = run_counted(true, profiled);
        for (int i = 0; i < 4; i++) assert_same(plain[i], profiled[i]);
        assert_memory_equal(&a, &b, sizeof a);
    }
}

TEST(nothing_is_recorded_outside) {
    ETCH_SCOPE {
        etch_tensor *x = arange_f32(3, 3);
        ETCH_PROFILE (NULL) { etch_sin(x); }
        etch_sin(x);
        assert_int_equal(find(ETCH_PROFILE_OPERATOR, "aten::sin").count, 1);
        ETCH_PROFILE (NULL) { etch_exp(x); }
    }
    assert_int_equal(find(ETCH_PROFILE_OPERATOR, "aten::sin").kind, ETCH_PROFILE_KINDS);
    assert_int_equal(find(ETCH_PROFILE_OPERATOR, "aten::exp").count, 1);
    assert_int_equal(etch_profile_entries(NULL, 0), 1);
}

/* ---- threads, forks, nesting ---- */

static void *thousand_operators(void *ctx) {
    (void)ctx;
    ETCH_SCOPE {
        etch_tensor *x = arange_f32(2, 2);
        for (int i = 0; i < 1000; i++) {
            ETCH_SCOPE { etch_cos(x); }
        }
    }
    return NULL;
}

TEST(all_threads_are_recorded) {
    pthread_t threads[3];
    ETCH_PROFILE (NULL) {
        for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, thousand_operators, NULL);
        for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
        thousand_operators(NULL);
    }
    assert_int_equal(find(ETCH_PROFILE_OPERATOR, "aten::cos").count, 4000);
}

TEST(end_while_threads_are_running) {
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, thousand_operators, NULL);
    for (int i = 0; i < 20; i++) {
        ETCH_PROFILE (NULL) { thousand_operators(NULL); }
        assert_true(find(ETCH_PROFILE_OPERATOR, "aten::cos").count >= 1000);
    }
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
}

TEST(child_records_nothing) {
    ETCH_PROFILE (NULL) {
        pid_t child = fork();
        if (child == 0) {
            thousand_operators(NULL);
            _exit(etch_profile_end() == ETCH_ERR_INVALID_ARGUMENT ? 0 : 1);
        }
        int status = -1;
        waitpid(child, &status, 0);
        assert_int_equal(status, 0);
    }
    assert_int_equal(etch_profile_entries(NULL, 0), 0);
}

TEST(one_profile_at_a_time) {
    int inner = 0;
    assert_int_equal(etch_profile_end(), ETCH_ERR_INVALID_ARGUMENT);
    ETCH_SCOPE {
        etch_tensor *x = arange_f32(2, 2);
        ETCH_PROFILE (NULL) {
            ETCH_PROFILE (NULL) { inner++; }
            assert_int_equal(etch_last_status(), ETCH_ERR_INVALID_ARGUMENT);
            etch_sin(x);
        }
    }
    assert_int_equal(inner, 1);
    assert_int_equal(find(ETCH_PROFILE_OPERATOR, "aten::sin").count, 1);
    etch_clear_error();
}

TEST(short_memory_fails_nothing) {
    int64_t failing = 0;
    for (int64_t n = 0; n < 12; n++) {
        ETCH_SCOPE {
            etch_tensor *x = arange_f32(2, 2);
            assert_int_equal(etch_profile_begin(NULL), ETCH_OK);
            for (int i = 0; i < 600; i++) {
                ETCH_SCOPE { assert_non_null(etch_sin(x)); }
            }
            etch__fail_allocation(n);
            etch_status status = etch_profile_end();
            etch__fail_allocation(-1);
            failing += status != ETCH_OK;
            assert_true(status == ETCH_OK || status == ETCH_ERR_OUT_OF_MEMORY);
            etch_clear_error();
        }
    }
    assert_true(failing > 0);
}

/* ---- the file and the table ---- */

static char *read_file(const char *path) {
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    char *text = calloc(1, 1 << 20);
    assert_non_null(text);
    assert_true(fread(text, 1, (1 << 20) - 1, f) > 0);
    fclose(f);
    return text;
}

/* Brackets and quotes balance, as a reader of JSON needs them. */
static bool balanced(const char *at) {
    int depth = 0;
    bool quoted = false;
    for (; *at; at++) {
        if (quoted && *at == '\\') at++;
        else if (*at == '"') quoted = !quoted;
        else if (!quoted && strchr("{[", *at)) depth++;
        else if (!quoted && strchr("}]", *at) && --depth < 0) return false;
    }
    return depth == 0 && !quoted;
}

static int count_text(const char *text, const char *part) {
    int n = 0;
    for (; (text = strstr(text, part)); text += strlen(part)) n++;
    return n;
}

TEST(trace_file) {
    char path[] = "/tmp/etch-profile-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    etch_function *f = etch_compile(mixed, .name = "odd \"name\"\n");
    ETCH_SCOPE {
        etch_tensor *x = arange_f32(8, 8), *w = arange_f32(8, 8);
        ETCH_PROFILE (path) {
            for (int i = 0; i < 2; i++) etch_call(f, x, w);
        }
    }
    char *text = read_file(path);
    assert_true(balanced(text));
    assert_int_equal(count_text(text, "\"cat\":\"call\""), 2);
    assert_int_equal(count_text(text, "\"cat\":\"custom\""), 2);
    assert_int_equal(count_text(text, "\"ph\":\"i\""), 2);
    assert_int_equal(count_text(text, "odd \\\"name\\\"\\u000a"), 2 + 2 + 2 + 2);
    assert_int_equal(count_text(text, "\"ts\":-"), 0);
    free(text);
    unlink(path);
    etch_function_free(f);
}

TEST(file_that_cannot_be_written) {
    assert_int_equal(etch_profile_begin("/proc/none/trace.json"), ETCH_ERR_IO);
    assert_non_null(strstr(etch_last_error(), "/proc/none/trace.json"));
    int ran = 0;
    ETCH_PROFILE ("/proc/none/trace.json") { ran++; }
    assert_int_equal(ran, 1);
    assert_int_equal(etch_profile_begin("/dev/full"), ETCH_OK);
    assert_int_equal(etch_profile_end(), ETCH_ERR_IO);
    etch_clear_error();
}

TEST(table_is_sorted_and_measures_itself) {
    ETCH_SCOPE {
        etch_tensor *x = arange_f32(64, 64);
        ETCH_PROFILE (NULL) {
            etch_sin(x);
            etch_mm(x, x);
            etch_add(x, x);
        }
    }
    char small[40], *text;
    int64_t need = etch_profile_table(small, sizeof small);
    assert_int_equal(strlen(small), sizeof small - 1);
    text = calloc(1, (size_t)need + 1);
    assert_int_equal(etch_profile_table(text, (size_t)need + 1), need);
    assert_int_equal(strlen(text), need);
    assert_int_equal(count_text(text, "\n"), 4);
    free(text);
    etch_profile_entry all[3];
    assert_int_equal(etch_profile_entries(all, 3), 3);
    assert_true(all[0].total_ns >= all[1].total_ns && all[1].total_ns >= all[2].total_ns);
    assert_string_equal(etch_profile_kind_name(ETCH_PROFILE_KERNEL), "kernel");
    assert_string_equal(etch_profile_kind_name(ETCH_PROFILE_KINDS), "unknown");
}
