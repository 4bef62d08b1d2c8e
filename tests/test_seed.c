/* The seed program end to end: five rounds of mm, sin, mm, add, relu. Compiled equals eager
 * bit for bit at every size, for any number of threads, under each instruction set; and at
 * 256x256 it becomes ten products and six fused kernels. The instruction set is fixed per
 * process, so each has a child.
 * Labels: device. */
#include "device_support.h"
#include "trace_support.h"

#include <etch/debug.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- bits ---- */

/* Eager on one thread is the measure; everything else must give its bits. */
static void check_size(int64_t rows, int64_t n) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(seed_program);
        etch_tensor *x = etch_randn(ETCH_F32, ETCH_SHAPE(rows, n));
        etch_tensor *w = etch_div_scalar(etch_randn(ETCH_F32, ETCH_SHAPE(n, n)), n);
        etch_set_num_threads(1);
        etch_tensor *expected = seed_program(x, w);
        int most = test_device() ? 1 : 4, calls = 0; /* a device does not use the threads */
        for (int threads = 1; threads <= most; threads *= 2) {
            etch_set_num_threads(threads);
            assert_same(seed_program(x, w), expected);
            for (int call = 0; call < 2; call++, calls++) assert_same(etch_call(f, x, w), expected);
        }
        assert_int_equal(etch_function_counters(f).graphs, 1);
        assert_int_equal(etch_function_counters(f).plan_runs, calls - 1);
        etch_function_free(f);
    }
}

TEST(bits, .deals = true) {
    static const int64_t sizes[] = {1, 7, 10, 64, 65, 100, 256};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) check_size(sizes[i], sizes[i]);
    check_size(1, 1000);
    assert_int_equal(etch_counters().compile_failures, 0);
    assert_true(etch_counters().kernel_launches > 0);
}

static int run_bits(const char *isa) {
    pid_t child = fork();
    if (child == 0) {
        setenv("ETCH_CPU_ISA", isa, 1);
        execl("/proc/self/exe", "test_seed", "bits", (char *)NULL);
        _exit(127);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

TEST(every_instruction_set) {
    assert_int_equal(run_bits("baseline"), 0);
    if (test_device()) return; /* which has one */
    assert_int_equal(run_bits("avx2"), 0);
    assert_int_equal(run_bits("avx512"), 0);
}

/* ---- shape of the code ---- */

static int product_steps, kernel_steps;

static void count_steps(void *ctx, const char *line) {
    (void)ctx;
    /* Eager operators have kernels of their own on a device, with lines of their own. */
    if (!strstr(line, "output_code: seed_program/") || !strstr(line, ": step ")) return;
    product_steps += strstr(line, ": product ") != NULL;
    kernel_steps += strstr(line, ": kernel ") != NULL;
}

TEST(products_and_kernels) {
    etch_set_log_sink(count_steps, NULL);
    etch_set_logs("output_code");
    ETCH_SCOPE {
        etch_function *f = etch_compile(seed_program);
        etch_tensor *x = etch_randn(ETCH_F32, ETCH_SHAPE(256, 256));
        etch_tensor *w = etch_div_scalar(x, 256);
        etch_call(f, x, w);
        etch_counters_t before = etch_counters();
        etch_call(f, x, w);
        etch_counters_t after = etch_counters();
        assert_int_equal(after.library_calls - before.library_calls, 10);
        assert_int_equal(after.kernel_launches - before.kernel_launches, 6);
        assert_int_equal(etch_function_counters(f).graph_nodes, 25);
        etch_function_free(f);
    }
    etch_set_logs("");
    etch_set_log_sink(NULL, NULL);
    /* Of two products that are added one is followed by the kernel that adds them. */
    assert_int_equal(product_steps, test_device() ? 10 : 5);
    assert_int_equal(kernel_steps, 6);
}
