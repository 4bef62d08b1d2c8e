/* What the suites of modules share: tensors as arrays of double, and a module compiled beside a
 * copy of it that is not. */
#ifndef ETCH_TESTS_NN_SUPPORT_H
#define ETCH_TESTS_NN_SUPPORT_H

#include <etch/etch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "etch_test.h"

#define NN_FN __attribute__((unused)) static

/* The call has failed with this code and a text that holds the words. */
#define FAILED_WITH(failed, code, words)                                                           \
    do {                                                                                           \
        etch_clear_error();                                                                        \
        assert_true(failed);                                                                       \
        assert_string_equal(etch_status_name(etch_last_status()), etch_status_name(code));         \
        if (!strstr(etch_last_error(), words)) fail_msg("%s", etch_last_error());                  \
        etch_clear_error();                                                                        \
    } while (0)

NN_FN void *must(void *p) {
    if (!p) fail_msg("%s", etch_last_error());
    return p;
}

enum { MOST = 8192 };

/* The elements, row-major; freed by nobody, in a ring that is long enough for one test. */
NN_FN const double *values(etch_tensor *t) {
    static double ring[24][MOST];
    static int next;
    double *v = ring[next++ % 24];
    assert_true(etch_numel(must(t)) <= MOST);
    ETCH_SCOPE {
        etch_tensor *wide = must(etch_to(t, ETCH_F64));
        assert_int_equal(etch_to_host(wide, v, (size_t)etch_numel(t) * sizeof *v), ETCH_OK);
    }
    return v;
}

NN_FN double epsilon_of(etch_dtype d) {
    return d == ETCH_F64 ? 0x1p-52 : d == ETCH_F32 ? 0x1p-23 : d == ETCH_F16 ? 0x1p-10 : 0x1p-7;
}

/* Each element within `units` of the dtype's precision, at the value or at 1. */
NN_FN void near_values(etch_tensor *t, const double *want, double units) {
    const double *have = values(t), e = epsilon_of(etch_dtype_of(t));
    for (int64_t i = 0; i < etch_numel(t); i++) {
        if (have[i] == want[i] || (isnan(have[i]) && isnan(want[i]))) continue;
        if (!(fabs(have[i] - want[i]) <= units * e * (1 + fabs(want[i]))))
            fail_msg("element %lld: want %.17g, have %.17g", (long long)i, want[i], have[i]);
    }
}

NN_FN void has_sizes(const etch_tensor *t, etch_shape s) {
    assert_non_null(t);
    assert_int_equal(etch_ndim(t), s.n);
    for (int d = 0; d < s.n; d++) assert_int_equal(etch_size(t, d), s.v[d]);
}

NN_FN void same_tensors(etch_module *a, etch_module *b) {
    assert_int_equal(etch_module_parameter_count(a), etch_module_parameter_count(b));
    assert_int_equal(etch_module_buffer_count(a), etch_module_buffer_count(b));
    for (int i = 0; i < etch_module_parameter_count(a); i++)
        assert_true(
            etch_bitwise_equal(etch_module_parameter_at(a, i), etch_module_parameter_at(b, i)));
    for (int i = 0; i < etch_module_buffer_count(a); i++)
        assert_true(etch_bitwise_equal(etch_module_buffer_at(a, i), etch_module_buffer_at(b, i)));
}

/* Three calls of a copy, and of a compiled copy: results and buffers are the same, bit for bit, and
 * one graph has served them all. */
NN_FN void same_compiled(const etch_module *m, etch_tensor *const *in, int nin, int nout) {
    static const char *const backends[] = {"eager", "native"};
    for (int b = 0; b < 2; b++)
        ETCH_SCOPE {
            etch_module *plain = must(etch_module_copy(m)), *fast = must(etch_module_copy(m));
            assert_int_equal(etch_module_compile(fast, .backend = backends[b]), ETCH_OK);
            for (uint64_t call = 0; call < 3; call++) {
                etch_tensor *want[2], *have[2];
                etch_manual_seed(call);
                if (etch_module_call_n(plain, in, nin, want, nout) != ETCH_OK) must(NULL);
                etch_manual_seed(call);
                if (etch_module_call_n(fast, in, nin, have, nout) != ETCH_OK) must(NULL);
                for (int i = 0; i < nout; i++)
                    if (!etch_bitwise_equal(want[i], have[i]))
                        fail_msg("%s, %s, call %d, result %d differs", etch_module_type(m),
                                 backends[b], (int)call, i);
            }
            same_tensors(plain, fast);
            etch_counters_t counts = etch_function_counters(etch_module_is_compiled(fast));
            assert_int_equal(counts.graphs, 1);
            assert_int_equal(counts.graph_breaks, 0);
            etch_module_free(plain);
            etch_module_free(fast);
        }
}

/* Other strides, the same elements: every second one of each row. */
NN_FN etch_tensor *stepped(etch_tensor *x) {
    etch_tensor *const twice[2] = {x, x};
    etch_tensor *pairs = must(etch_stack(twice, 2, etch_ndim(x)));
    return must(etch_select(pairs, etch_ndim(x), 1));
}

#endif
