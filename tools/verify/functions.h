/* The table of etch-verify --op functions: how far the functions of one number, and pow, are from
 * the exact results on the current device, and what special numbers cost. */
#ifndef ETCH_TOOLS_VERIFY_FUNCTIONS_H
#define ETCH_TOOLS_VERIFY_FUNCTIONS_H

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "references.h"

typedef struct worst_error {
    double ulp, x, y, got;
} worst_error;

static etch_tensor *as_tensor(const double *values, int64_t n, etch_dtype dtype) {
    return etch_to(etch_from_host(values, ETCH_F64, ETCH_SHAPE(n)), dtype);
}

/* The tensor's values, into n doubles. */
static bool values_of(etch_tensor *t, double *values, int64_t n) {
    etch_tensor *wide = t ? etch_to(t, ETCH_F64) : NULL;
    return wide && etch_to_host(wide, values, (size_t)n * sizeof *values) == ETCH_OK;
}

/* ---- errors ---- */

/* What the second operand of pow is: every pair of special numbers, then such that the result is in
 * the range. */
static double exponent_for(double x, int64_t k, uint64_t *state) {
    double part = (double)(reference_bits(state) >> 11) * 0x1p-53, most = 100 / fabs(log(fabs(x)));
    if (k % 2) return floor(part * 40) - 20;
    return most < 1e6 ? (2 * part - 1) * most : part * 100 - 50;
}

/* r NULL: pow. One batch, from operand number `first` on. */
static bool batch_error(const reference *r, etch_dtype dtype, int64_t first, int64_t n, double *x,
                        double *y, double *got, uint64_t *state, worst_error *worst) {
    bool wide = dtype == ETCH_F64;
    const reference *like = r ? r : &references[0];
    for (int64_t i = 0; i < n; i++) {
        x[i] = reference_operand(like, wide, first + i, state);
        y[i] = r ? 0 : exponent_for(x[i], i, state);
        if (!wide) x[i] = (float)x[i], y[i] = (float)y[i];
    }
    etch_tensor *a = as_tensor(x, n, dtype);
    etch_tensor *b = r ? a : as_tensor(y, n, dtype);
    etch_tensor *result = r ? r->op(a) : etch_pow(a, b);
    if (!values_of(result, got, n)) return false;
    for (int64_t i = 0; i < n; i++) {
        double ulp = reference_error(wide, got[i], r ? r->exact(x[i]) : powl(x[i], y[i]));
        if (ulp > worst->ulp) *worst = (worst_error){ulp, x[i], y[i], got[i]};
    }
    return true;
}

static bool function_error(const reference *r, etch_dtype dtype, int64_t samples,
                           worst_error *worst) {
    enum { BATCH = 1 << 16 };
    double *room = malloc(3 * BATCH * sizeof *room);
    uint64_t state = 1;
    bool ok = room != NULL;
    *worst = (worst_error){0, 0, 0, 0};
    for (int64_t first = 0; ok && first < samples; first += BATCH) {
        int64_t n = samples - first < BATCH ? samples - first : BATCH;
        ETCH_SCOPE
            ok = batch_error(r, dtype, first, n, room, room + BATCH, room + 2 * BATCH, &state,
                             worst);
    }
    free(room);
    return ok;
}

/* ---- costs ---- */

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* The shortest of several calls, up to the first value of the result. */
static double shortest(const reference *r, etch_tensor *x) {
    double least = INFINITY;
    for (int i = 0; i < 60; i++)
        ETCH_SCOPE {
            double start = seconds();
            etch_tensor *y = r ? r->op(x) : etch_pow_scalar(x, etch_scalar_real(1.7));
            etch_tensor *first = y ? etch_slice(y, 0, 0, 1, 1) : NULL;
            double value;
            if (first && values_of(first, &value, 1)) least = fmin(least, seconds() - start);
        }
    return least;
}

typedef struct costs {
    double ns, special, denormal; /* of an element; in terms of it */
} costs;

/* Every second number special, or denormal. */
static bool function_costs(const reference *r, etch_dtype dtype, costs *c) {
    const int N = etch_current_device() == ETCH_CPU ? 1 << 12 : 1 << 22;
    const double tiny = dtype == ETCH_F64 ? 1e-310 : 1e-40, special = r ? r->special : 0;
    double low = r ? r->low : 0.1, high = r ? r->high : 10, *x = malloc(3 * (size_t)N * sizeof *x);
    uint64_t state = 3;
    for (int i = 0; x && i < N; i++) {
        double part = (double)(reference_bits(&state) >> 11) * 0x1p-53;
        x[i] = low + part * (high - low);
        x[N + i] = i % 2 ? special : x[i];
        x[2 * N + i] = i % 2 ? tiny : x[i];
    }
    bool ok = false;
    if (x)
        ETCH_SCOPE {
            double ns = shortest(r, as_tensor(x, N, dtype));
            c->special = shortest(r, as_tensor(x + N, N, dtype)) / ns;
            c->denormal = shortest(r, as_tensor(x + 2 * N, N, dtype)) / ns;
            c->ns = ns * 1e9 / N;
            ok = isfinite(c->ns);
        }
    free(x);
    return ok;
}

/* ---- the table ---- */

/* 1 where the error is beyond the bound, -1 for a failure. */
static int function_row(const reference *r, etch_dtype dtype, int64_t samples, double bound) {
    worst_error e;
    costs c;
    if (!function_error(r, dtype, samples, &e) || !function_costs(r, dtype, &c)) return -1;
    bool ok = e.ulp <= bound;
    printf("%-6s %-5s %-8s %8.3f %8.3g %9.2f %9.2f %9.2f  %s",
           etch_device_name(etch_current_device()), etch_dtype_name(dtype), r ? r->name : "pow",
           e.ulp, bound, c.ns, c.special, c.denormal, ok ? "ok" : "BEYOND");
    if (!ok && r) printf(" at %a: %a", e.x, e.got);
    if (!ok && !r) printf(" at %a, %a: %a", e.x, e.y, e.got);
    puts("");
    return !ok;
}

static int function_table(const char *dtypes, int64_t samples, double bound) {
    int failures = 0;
    printf("%-6s %-5s %-8s %8s %8s %9s %9s %9s\n", "device", "dtype", "function", "ulp", "bound",
           "ns", "special", "denormal");
    for (int wide = 0; wide < 2; wide++) {
        if (!strstr(dtypes, wide ? "f64" : "f32")) continue;
        for (int k = 0; k <= REFERENCES; k++) {
            const reference *r = k < REFERENCES ? &references[k] : NULL;
            int failed =
                function_row(r, wide ? ETCH_F64 : ETCH_F32, samples, bound < 0 ? 1 : bound);
            if (failed < 0) return -1;
            failures += failed;
        }
    }
    return failures;
}

#endif
