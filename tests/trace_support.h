/* What the suites of the tracer share: running one program twice, compiled and with compiling off,
 * and comparing what it gives, bit for bit, with the exact counts of graphs and plan runs. */
#ifndef ETCH_TESTS_TRACE_SUPPORT_H
#define ETCH_TESTS_TRACE_SUPPORT_H

#include <etch/etch.h>

#include "etch_test.h"

/* Both backends see the same graphs; native adds generated code. */
static const char *const test_backends[] = {"eager", "native"};

static inline etch_tensor *arange_f32(int64_t rows, int64_t columns) {
    etch_tensor *line = etch_arange(ETCH_F32, -3.0, (double)(rows * columns) - 3.0, 1);
    etch_tensor *x = etch_view(line, ETCH_SHAPE(rows, columns));
    assert_non_null(x);
    return etch_div_scalar(x, 7.0);
}

/* The seed program: 25 operators, ten of them products. */
static inline etch_tensor *seed_program(etch_tensor *x, etch_tensor *w) {
    for (int i = 0; i < 5; i++) {
        etch_tensor *a = etch_mm(x, w);
        etch_tensor *s = etch_sin(x);
        etch_tensor *b = etch_mm(s, w);
        etch_tensor *c = etch_add(a, b);
        x = etch_relu(c);
    }
    return x;
}

#define assert_counts(f, expected_graphs, expected_runs)                                           \
    do {                                                                                           \
        etch_counters_t counts_ = etch_function_counters(f);                                       \
        assert_int_equal(counts_.graphs, expected_graphs);                                         \
        assert_int_equal(counts_.plan_runs, expected_runs);                                        \
    } while (0)

#define assert_same(a, b) assert_true(etch_bitwise_equal((a), (b)))

#endif
