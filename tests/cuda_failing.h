/* Programs whose calls of the fake driver, or allocations, fail one after the other. */
#ifndef ETCH_TESTS_CUDA_FAILING_H
#define ETCH_TESTS_CUDA_FAILING_H

#include "core/base/base.h"
#include "cuda_child.h"

/* Gives 16 numbers, the same each time; false: none, and the thread's error says why. */
typedef bool (*sixteen)(float *y);

enum { FAILING_MOST = 3000 };

/* What all runs of a program leave as it was. */
typedef struct failing {
    sixteen run;
    float expected[16];
    int64_t tensors, bytes, there;
    int runs, errors;
} failing;

/* Kernels are there, and what is kept for reuse is not. */
static inline failing failing_begin(sixteen run) {
    failing f = {.run = run};
    CHECK(run(f.expected) && run(f.expected));
    etch_device_trim(gpu);
    f.tensors = etch_memory().tensors, f.bytes = etch_memory().bytes_live;
    f.there = etch_device_stats(gpu).bytes_live;
    return f;
}

/* After a run in which something failed, or nothing did: the next run is right. */
static inline void failing_ran(failing *f, bool ok, const float *y) {
    float again[16];
    CHECK(ok ? !memcmp(y, f->expected, sizeof again) : etch_last_status() != ETCH_OK);
    f->runs++, f->errors += !ok;
    etch_clear_error();
    CHECK(etch_synchronize(gpu) == ETCH_OK && f->run(again) &&
          !memcmp(again, f->expected, sizeof again));
    CHECK(etch_memory().tensors == f->tensors && etch_memory().bytes_live == f->bytes);
    CHECK(etch_device_stats(gpu).bytes_live == f->there);
    etch_device_trim(gpu);
}

/* Each call of the driver fails once; how many runs that took. */
static inline int each_call_fails(sixteen run) {
    failing f = failing_begin(run);
    float y[16];
    for (bool fell = true; fell && f.runs < FAILING_MOST;) {
        unsigned long before = failed();
        fail_after(f.runs + 1);
        bool ok = run(y);
        fell = failed() > before;
        fail_after(0);
        CHECK(ok || fell);
        failing_ran(&f, ok, y);
    }
    CHECK(f.runs > 20 && f.runs < FAILING_MOST && f.errors > 10);
    return f.runs;
}

/* Each allocation of the library fails once; how many runs that took. */
static inline int each_allocation_fails(sixteen run) {
    failing f = failing_begin(run);
    float y[16];
    for (bool last = false; !last && f.runs < FAILING_MOST;) {
        etch__fail_allocation(f.runs);
        bool ok = run(y);
        last = etch__fail_allocation(-1) <= f.runs;
        CHECK(ok || etch_last_status() == ETCH_ERR_OUT_OF_MEMORY);
        failing_ran(&f, ok, y);
    }
    CHECK(f.runs > 10 && f.runs < FAILING_MOST && f.errors > 5);
    return f.runs;
}

#endif
