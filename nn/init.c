/* Filling parameters in ways that have names: one row each. What operators cannot do (truncated and
 * orthogonal ones) is computed here in double, from their random numbers. */
#include "nn/module.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct fans {
    double in, out;
} fans;

/* The values of t in its own dtype or a wider one, owned by the innermost scope. */
typedef etch_tensor *(*fill_fn)(etch_tensor *t, const etch_init_options *o, fans f);

/* Random numbers are drawn in f32, of f64 in f64. */
static etch_tensor *draw(etch_tensor *t, bool normal) {
    etch_dtype dtype = etch__nn_wide(etch_dtype_of(t));
    etch_tensor *r = NULL;
    ETCH_ON(etch_device_of(t)) {
        r = normal ? etch_randn(dtype, etch_sizes(t)) : etch_rand(dtype, etch_sizes(t));
    }
    return r;
}

static etch_tensor *scaled(etch_tensor *r, double factor, double offset) {
    etch_tensor *wide = r ? etch_mul_scalar(r, factor) : NULL;
    return wide ? etch_add_scalar(wide, offset) : NULL;
}

static etch_tensor *within(etch_tensor *t, double bound) {
    return scaled(draw(t, false), 2 * bound, -bound);
}

static double std_of(const etch_init_options *o) { return o->std ? o->std : 1; }
static double gain_of(const etch_init_options *o) { return o->gain ? o->gain : 1; }

/* ---- constant and plain random ---- */

static etch_tensor *full(etch_tensor *t, double value) {
    etch_tensor *y = NULL;
    ETCH_ON(etch_device_of(t)) { y = etch_full(etch_dtype_of(t), ETCH_SHAPE(), value); }
    return y;
}

static etch_tensor *zeros(etch_tensor *t, const etch_init_options *o, fans f) {
    (void)o, (void)f;
    return full(t, 0);
}

static etch_tensor *ones(etch_tensor *t, const etch_init_options *o, fans f) {
    (void)o, (void)f;
    return full(t, 1);
}

static etch_tensor *constant(etch_tensor *t, const etch_init_options *o, fans f) {
    (void)f;
    return full(t, o->value);
}

static etch_tensor *uniform(etch_tensor *t, const etch_init_options *o, fans f) {
    (void)f;
    double high = o->low == 0 && o->high == 0 ? 1 : o->high;
    return scaled(draw(t, false), high - o->low, o->low);
}

static etch_tensor *normal(etch_tensor *t, const etch_init_options *o, fans f) {
    (void)f;
    return scaled(draw(t, true), std_of(o), o->mean);
}

/* ---- by fans ---- */

static etch_tensor *xavier_uniform(etch_tensor *t, const etch_init_options *o, fans f) {
    return within(t, gain_of(o) * sqrt(6 / (f.in + f.out)));
}

static etch_tensor *xavier_normal(etch_tensor *t, const etch_init_options *o, fans f) {
    return scaled(draw(t, true), gain_of(o) * sqrt(2 / (f.in + f.out)), 0);
}

static double kaiming_std(const etch_init_options *o, fans f) {
    return sqrt(2 / ((1 + o->slope * o->slope) * (o->fan_out ? f.out : f.in)));
}

static etch_tensor *kaiming_uniform(etch_tensor *t, const etch_init_options *o, fans f) {
    return within(t, sqrt(3) * kaiming_std(o, f));
}

static etch_tensor *kaiming_normal(etch_tensor *t, const etch_init_options *o, fans f) {
    return scaled(draw(t, true), kaiming_std(o, f), 0);
}

/* ---- computed here ---- */

/* As many numbers as t has, in f64; NULL with the error set. */
static double *drawn(etch_tensor *t, bool as_normal) {
    size_t n = (size_t)etch_numel(t);
    double *v = malloc((n + 1) * sizeof *v);
    if (!v) return etch__nn_no_memory();
    etch_tensor *r = draw(t, as_normal), *wide = r ? etch_to(r, ETCH_F64) : NULL;
    if (wide && etch_to_host(wide, v, n * sizeof *v) == ETCH_OK) return v;
    free(v);
    return NULL;
}

static etch_tensor *from_drawn(double *v, etch_tensor *t) {
    etch_tensor *y = NULL;
    ETCH_ON(etch_device_of(t)) { y = etch_from_host(v, ETCH_F64, etch_sizes(t)); }
    free(v);
    return y;
}

/* Below x of the standard normal distribution. */
static double below(double x) { return 0.5 * erfc(-x / sqrt(2)); }

/* The x in [low, high] below which p lies: bisection until Newton's step stays inside. */
static double quantile(double p, double low, double high) {
    double x = 0.5 * (low + high);
    for (int i = 0; i < 100 && high - low > 1e-15 * (fabs(low) + fabs(high)); i++) {
        double off = below(x) - p;
        if (off > 0) high = x;
        else low = x;
        double next = x - off * sqrt(2 * acos(-1)) * exp(0.5 * x * x);
        if (next == x) break;
        x = next > low && next < high ? next : 0.5 * (low + high);
    }
    return x;
}

/* The quantile of a number between the shares below the cuts. On the upper side by symmetry, where
 * shares near 1 would have lost their digits. */
static etch_tensor *trunc_normal(etch_tensor *t, const etch_init_options *o, fans f) {
    (void)f;
    bool usual = o->low == 0 && o->high == 0;
    double std = std_of(o), low = ((usual ? -2 : o->low) - o->mean) / std;
    double high = ((usual ? 2 : o->high) - o->mean) / std, turn = low > 0 ? -1 : 1;
    double a = turn > 0 ? low : -high, b = turn > 0 ? high : -low, from = below(a), to = below(b);
    double *v = drawn(t, false);
    for (int64_t i = 0; v && i < etch_numel(t); i++)
        v[i] = o->mean + std * turn * quantile(from + (to - from) * v[i], a, b);
    return v ? from_drawn(v, t) : NULL;
}

static double along(const double *a, const double *b, int64_t n, int64_t step) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += a[i * step] * b[i * step];
    return sum;
}

/* Makes `count` vectors of length n orthonormal: each has what lies along the earlier ones taken
 * out, twice, since once leaves rounding errors behind. Vectors are `next` apart, their elements
 * `step`. */
static void orthonormalise(double *v, int64_t count, int64_t n, int64_t next, int64_t step) {
    for (int64_t k = 0; k < count; k++) {
        double *at = v + k * next;
        for (int64_t j = 0; j < 2 * k; j++) {
            const double *other = v + j % k * next;
            double part = along(at, other, n, step);
            for (int64_t i = 0; i < n; i++) at[i * step] -= part * other[i * step];
        }
        double length = sqrt(along(at, at, n, step));
        for (int64_t i = 0; i < n; i++) at[i * step] /= length;
    }
}

static etch_tensor *orthogonal(etch_tensor *t, const etch_init_options *o, fans f) {
    (void)f;
    int64_t rows = etch_size(t, 0), columns = rows ? etch_numel(t) / rows : 0;
    double *v = drawn(t, true);
    if (!v) return NULL;
    if (rows <= columns) orthonormalise(v, rows, columns, columns, 1);
    else orthonormalise(v, columns, rows, 1, columns);
    for (int64_t i = 0; i < rows * columns; i++) v[i] *= gain_of(o);
    return from_drawn(v, t);
}

/* ---- the rows ---- */

static const struct row {
    const char *name;
    fill_fn fill;
    bool wants_matrix;
} rows[] = {
    {"zeros", zeros, false},
    {"ones", ones, false},
    {"constant", constant, false},
    {"uniform", uniform, false},
    {"normal", normal, false},
    {"trunc_normal", trunc_normal, false},
    {"xavier_uniform", xavier_uniform, true},
    {"xavier_normal", xavier_normal, true},
    {"kaiming_uniform", kaiming_uniform, true},
    {"kaiming_normal", kaiming_normal, true},
    {"orthogonal", orthogonal, true},
};

static const struct row *row_of(const char *name) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!strcmp(rows[i].name, name)) return &rows[i];
    etch__nn_fail(ETCH_ERR_NOT_FOUND,
                  "etch_nn_init: expected the name of a row in etch/nn.h, like 'xavier_uniform', "
                  "got '%.60s'",
                  name);
    return NULL;
}

static etch_status check(const struct row *row, const etch_tensor *t, const etch_init_options *o) {
    char sizes[SIZES_TEXT];
    if (!etch__nn_need_float("etch_nn_init", etch_dtype_of(t))) return ETCH_ERR_DTYPE;
    if (row->wants_matrix && etch_ndim(t) < 2)
        return etch__nn_fail(ETCH_ERR_SHAPE,
                             "etch_nn_init: %s expected two dimensions at least, got sizes %s",
                             row->name, etch__nn_sizes(t, sizes));
    if (o->std < 0 || o->low > o->high || isnan(o->low) || isnan(o->high) || isnan(o->std))
        return etch__nn_fail(ETCH_ERR_INVALID_ARGUMENT,
                             "etch_nn_init: expected low up to high and a std above 0, got %g, %g "
                             "and %g",
                             o->low, o->high, o->std);
    return ETCH_OK;
}

static fans fans_of(const etch_tensor *t) {
    fans f = {1, 1};
    if (etch_ndim(t) < 2) return f;
    double behind = 1;
    for (int d = 2; d < etch_ndim(t); d++) behind *= (double)etch_size(t, d);
    f.in = (double)etch_size(t, 1) * behind;
    f.out = (double)etch_size(t, 0) * behind;
    return f;
}

etch_status etch_nn_init_with(etch_tensor *t, const char *name, const etch_init_options *options) {
    etch_init_options o;
    if (!t || t == ETCH_NONE || !name) return etch__nn_null("etch_nn_init", "a tensor and a name");
    etch__nn_options(&o, sizeof o, options);
    const struct row *row = row_of(name);
    if (!row) return ETCH_ERR_NOT_FOUND;
    etch_status status = check(row, t, &o);
    if (status != ETCH_OK || !etch_numel(t)) return status;
    ETCH_SCOPE {
        ETCH_NO_GRAD {
            etch_tensor *values = row->fill(t, &o, fans_of(t));
            if (!values || !etch_copy_(t, values)) status = etch_last_status();
        }
    }
    return status;
}
