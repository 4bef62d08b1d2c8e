/* etch-minify: a graph of two dozen calls in which a faulty backend gets one wrong comes down to
 * that call, and the test that is written fails with this backend and passes with native. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <etch/etch.h>

#include "etch_test.h"

#define TOOLS ETCH_TEST_BINARY_DIR "/tools/minify/"
#define FAULTY "--load " TOOLS "etch-minify-faulty.so --backend faulty "

static char folder[] = "/tmp/etch-minify-test-XXXXXX";

/* A chain around a sin, with a product, a view, a reduction, a write into an argument, an input
 * over another one's memory and one with strides, between lines of a log that are no graphs. */
static const char chain[] =
    "etch: guards: step/0: tensor 0: f32[24, 40]\n"
    "etch: graph: graph step/0(%0: f32[24, 40], %1: f32[40, 24 : 1, 40], %2: f32[40]@8 over %0) {\n"
    "etch: graph:   %3: f32[24, 40] = add.Tensor(%0, %2, $0: int) {1}\n"
    "etch: graph:   %4: f32[24, 40] = mul.Scalar(%3, $1: real)\n"
    "etch: graph:   %5: f32[24, 24] = mm(%4, %1)\n"
    "etch: graph:   %6: f32[24, 24] = tanh(%5)\n"
    "etch: graph:   %7: f32[24, 20 : 40, 1] = slice.Tensor(%4) {1, 0, 20, 1}\n"
    "etch: graph:   %8: f32[24, 20] = sin(%7)\n"
    "etch: graph:   %9: f32[24, 20] = mul.Scalar(%8, $2: real)\n"
    "etch: graph:   %10: f32[24, 20] = pow.Tensor_Scalar(%9, $3: real) {1}\n"
    "etch: graph:   %11: f32[24, 1] = sum.dim_IntList(%10) {1, 1, 1, -1}\n"
    "etch: graph:   %12: f32[24, 24] = add.Tensor(%6, %11, $4: int) {1}\n"
    "etch: graph:   %13: f32[24, 24] = relu(%12)\n"
    "etch: graph:   %14: i32[5] = arange.start_step($5: int, $6: int, $7: int) {6, 5}\n"
    "etch: graph:   %15: i32[10] = cat(%14, %14) {0}\n"
    "etch: graph:   %16: f32[24, 40] = exp(%3)\n"
    "etch: graph:   add_.Tensor(%0, %16, $8: int) {1}\n"
    "etch: graph:   return %13, %16, %15\n"
    "etch: graph: }\n";

static void write_file(const char *name, const char *text) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *to = fopen(path, "w");
    assert_non_null(to);
    fputs(text, to);
    assert_int_equal(fclose(to), 0);
}

static char *read_file(const char *name) {
    static char text[1 << 16];
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *from = fopen(path, "r");
    assert_non_null(from);
    text[fread(text, 1, sizeof text - 1, from)] = 0;
    fclose(from);
    return text;
}

/* Exit status; what it says is in the file "said". */
static int run(const char *format, const char *arguments) {
    char command[1024];
    int n = snprintf(command, sizeof command, "cd %s && ", folder);
    snprintf(command + n, sizeof command - (size_t)n, format, arguments);
    int status = system(command);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int minify(const char *arguments) {
    return run(TOOLS "etch-minify %s >test.c 2>said </dev/null", arguments);
}

static int count(const char *text, const char *what) {
    int n = 0;
    for (const char *at = text; (at = strstr(at, what)); at++) n++;
    return n;
}

TEST(no_difference) {
    write_file("log", chain);
    assert_int_equal(minify("log"), 0);
    assert_string_equal(read_file("said"), "etch-minify: 1 graphs, no difference\n");
    assert_string_equal(read_file("test.c"), "");
}

/* One call, one small input, and the number of the call that the difference was seen in. */
TEST(one_call_is_left) {
    write_file("log", chain);
    assert_int_equal(minify(FAULTY "log"), 1);
    assert_non_null(strstr(read_file("said"), "1 call and 1 input are left"));
    const char *test = read_file("test.c");
    assert_non_null(strstr(test, "step/0, made smaller by etch-minify: 1 call."));
    assert_int_equal(count(test, " = call(\""), 1);
    assert_int_equal(count(test, "call(\"sin\", 1"), 1);
    assert_int_equal(count(test, "{0 /* f32 */, 0, {2, {1, 1}}, {2, {1, 1}}, 0},"), 1);
    assert_non_null(strstr(test, "eager "));
}

/* It needs Etch's public headers only. Sanitizers would have to be in it. */
TEST(the_test_compiles_and_fails) {
#ifdef __SANITIZE_ADDRESS__
    skip();
#endif
    write_file("log", chain);
    assert_int_equal(minify(FAULTY "log"), 1);
    static const char build[] =
        "cc -std=gnu11 -Wall -Wextra -Werror -D_GNU_SOURCE -I" ETCH_TEST_SOURCE_DIR
        "/include -I" ETCH_TEST_BINARY_DIR "/generated test.c -o test -L" ETCH_TEST_BINARY_DIR
        " -Wl,-rpath," ETCH_TEST_BINARY_DIR " -letch -lcmocka -ldl -lm >said 2>&1 %s";
    if (run(build, "") != 0) fail_msg("%s", read_file("said"));
    assert_int_not_equal(run("./test >said 2>&1 %s", ""), 0);
    assert_non_null(strstr(read_file("said"), "element 0: eager "));
    run("sed -i 's/\"faulty\"/\"native\"/' test.c %s", "");
    if (run(build, "") != 0) fail_msg("%s", read_file("said"));
    if (run("./test >said 2>&1 %s", "") != 0) fail_msg("%s", read_file("said"));
}

/* The value with the fault goes nowhere but into an argument. */
TEST(fault_in_a_write) {
    write_file("log", "graph g(%0: i32[7, 9], %1: f64[7, 9]) {\n"
                      "  %2: f64[7, 9] = sin(%1)\n"
                      "  %3: f64[7, 9] = mul.Scalar(%2, $0: real)\n"
                      "  add_.Tensor(%1, %3, $1: int) {1}\n"
                      "  %4: i32[7, 9] = neg(%0)\n"
                      "  return %4\n"
                      "}\n");
    assert_int_equal(minify(FAULTY "log"), 1);
    const char *test = read_file("test.c");
    assert_int_equal(count(test, "call(\"sin\", 1"), 1);
    assert_int_equal(count(test, "call(\"neg\""), 0);
}

/* ---- the log of a function ---- */

static void write_line(void *ctx, const char *line) { fprintf(ctx, "%s\n", line); }

static etch_tensor *breaks_then_sin(etch_tensor *x, etch_tensor *y) {
    etch_tensor *a = etch_add_alpha(x, y, 3);
    etch_tensor *b = etch_pow_scalar(a, 2);
    etch_tensor *row = etch_slice(b, 0, 1, ETCH_ABSENT, 2);
    etch_mul_scalar_(row, 0.5);
    etch_graph_break("two graphs");
    etch_tensor *t = etch_t(b);
    etch_tensor *s = etch_sin(t);
    etch_tensor *r = etch_rand(ETCH_F32, ETCH_SHAPE(4, 6));
    return etch_mul(s, r);
}

/* Of its two graphs the first is right. */
TEST(log_of_a_function) {
    char path[128];
    snprintf(path, sizeof path, "%s/log", folder);
    FILE *to = fopen(path, "w");
    assert_non_null(to);
    etch_set_log_sink(write_line, to);
    assert_int_equal(etch_set_logs("graph,graph_breaks"), ETCH_OK);
    ETCH_SCOPE {
        etch_function *f = etch_compile(breaks_then_sin, .backend = "eager");
        etch_tensor *x = etch_transpose(etch_randn(ETCH_F32, ETCH_SHAPE(4, 6)), 0, 1);
        for (int i = 0; i < 2; i++) assert_non_null(etch_call(f, x, x));
        etch_function_free(f);
    }
    etch_set_logs("");
    etch_set_log_sink(NULL, NULL);
    assert_int_equal(fclose(to), 0);
    assert_int_equal(minify("log"), 0);
    assert_string_equal(read_file("said"), "etch-minify: 2 graphs, no difference\n");
    assert_int_equal(minify(FAULTY "log"), 1);
    assert_non_null(strstr(read_file("said"), "breaks_then_sin/1: 1 call and 1 input are left"));
}

TEST(only_the_named_graph) {
    write_file("log", chain);
    assert_int_equal(minify(FAULTY "--graph other/0 log"), 2);
    assert_non_null(strstr(read_file("said"), "no graph of that name"));
    assert_int_equal(minify(FAULTY "--graph step/0 log"), 1);
}

TEST(wrong_input) {
    write_file("log", "graph g(%0: f32[2]) {\n  %1: f32[2] = sinn(%0)\n  return %1\n}\n");
    assert_int_equal(minify("log"), 2);
    assert_non_null(strstr(read_file("said"), "line 2, column 16: no such operator"));
    assert_int_equal(minify("nowhere"), 2);
    assert_non_null(strstr(read_file("said"), "nowhere cannot be read"));
    assert_int_equal(minify("--calls"), 2);
    assert_non_null(strstr(read_file("said"), "usage: etch-minify"));
    assert_int_equal(minify("--help"), 0);
    assert_non_null(strstr(read_file("test.c"), "--backend NAME"));
}

int main(int argc, char **argv) {
    if (!mkdtemp(folder)) return 1;
    int failed = run_suite(argc, argv);
    return failed + run("rm -f log said test test.c && rmdir %s", folder);
}
