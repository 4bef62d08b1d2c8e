/* Comparing tensors on the host. */
#include "core/tensor/device.h"
#include "core/tensor/element.h"

#include <math.h>

typedef struct compare_ctx {
    etch_dtype a, b;
    double rtol, atol;
    bool equal_nan;
} compare_ctx;

static bool same_meta(const etch_tensor *a, const etch_tensor *b, bool dtypes) {
    return (!dtypes || a->dtype == b->dtype) && SAME_SIZES(a, b);
}

static bool both_read(const etch_tensor *a, const etch_tensor *b, const char *function,
                      const void *site) {
    return etch__read(a, function, REASON_BREAK_COMPARE, site) &&
           etch__read(b, function, REASON_BREAK_COMPARE, site);
}

static bool each_pair(const etch_tensor *a, const etch_tensor *b, element_row row, compare_ctx *c) {
    host_view va, vb;
    const etch_tensor *t[2] = {etch__host_view(a, &va), etch__host_view(b, &vb)};
    c->a = a->dtype, c->b = b->dtype;
    bool all = t[0] && t[1] && etch__each_row(t, 2, row, c);
    etch__host_view_end(&va);
    etch__host_view_end(&vb);
    return all;
}

/* ---- equal values ---- */

static bool equal_row(void *ctx, const char *const *p, const int64_t *step, int64_t n) {
    compare_ctx *c = ctx;
    bool ints = !etch__is_float(c->a);
    for (int64_t i = 0; i < n; i++) {
        const char *x = p[0] + i * step[0], *y = p[1] + i * step[1];
        bool same = ints ? etch__element_int(c->a, x) == etch__element_int(c->b, y)
                         : etch__element_real(c->a, x) == etch__element_real(c->b, y);
        if (!same) return false;
    }
    return true;
}

bool etch_equal(const etch_tensor *a, const etch_tensor *b) {
    compare_ctx c = {0};
    if (!both_read(a, b, "etch_equal", __builtin_return_address(0))) return false;
    return same_meta(a, b, true) && each_pair(a, b, equal_row, &c);
}

/* ---- close values ---- */

static bool close_row(void *ctx, const char *const *p, const int64_t *step, int64_t n) {
    const compare_ctx *c = ctx;
    for (int64_t i = 0; i < n; i++) {
        double x = etch__element_real(c->a, p[0] + i * step[0]);
        double y = etch__element_real(c->b, p[1] + i * step[1]);
        if (x == y || (c->equal_nan && isnan(x) && isnan(y))) continue;
        if (isinf(x) || isinf(y) || !(fabs(x - y) <= c->atol + c->rtol * fabs(y))) return false;
    }
    return true;
}

bool etch_allclose(const etch_tensor *a, const etch_tensor *b, double rtol, double atol,
                   bool equal_nan) {
    compare_ctx c = {.rtol = rtol, .atol = atol, .equal_nan = equal_nan};
    if (!both_read(a, b, "etch_allclose", __builtin_return_address(0))) return false;
    return same_meta(a, b, false) && each_pair(a, b, close_row, &c);
}

/* ---- equal bits ---- */

static bool is_nan(etch_dtype dtype, const char *p) {
    return etch__is_float(dtype) && isnan(etch__element_real(dtype, p));
}

static bool bits_row(void *ctx, const char *const *p, const int64_t *step, int64_t n) {
    const compare_ctx *c = ctx;
    size_t size = etch_dtype_size(c->a);
    bool dense = step[0] == (int64_t)size && step[1] == (int64_t)size;
    if (dense && !memcmp(p[0], p[1], (size_t)n * size)) return true;
    for (int64_t i = 0; i < n; i++) {
        const char *x = p[0] + i * step[0], *y = p[1] + i * step[1];
        if (memcmp(x, y, size) && !(is_nan(c->a, x) && is_nan(c->a, y))) return false;
    }
    return true;
}

bool etch_bitwise_equal(const etch_tensor *a, const etch_tensor *b) {
    compare_ctx c = {0};
    if (!both_read(a, b, "etch_bitwise_equal", __builtin_return_address(0))) return false;
    return same_meta(a, b, true) && each_pair(a, b, bits_row, &c);
}
