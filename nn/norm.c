/* Ready-made normalisations. Those that are no operator are spelled out in f32 (f64 of f64), and
 * rounded to the dtype of their input once, at the end. */
#include "nn/json.h"
#include "nn/module.h"

#include <stdio.h>

typedef struct norm {
    etch_shape sizes; /* layer and rms norm: of the last dimensions */
    int64_t groups;   /* group norm */
    double eps, momentum;
    bool no_statistics;
} norm;

/* x, x or [1, x, 1, 1] for the channels of x. */
static etch_tensor *for_channels(etch_tensor *t, const etch_tensor *x) {
    etch_shape sizes = {.n = etch_ndim(x)};
    for (int d = 0; d < sizes.n; d++) sizes.v[d] = 1;
    sizes.v[1] = etch_numel(t);
    return etch_view(t, sizes);
}

/* y weight + bias, where they are there, by channel or over the last dimensions. */
static etch_tensor *affine(const etch_module *m, etch_tensor *y, bool channels) {
    etch_tensor *weight = etch__nn_own(m, "weight"), *bias = etch__nn_own(m, "bias");
    if (y && weight != ETCH_NONE) {
        if (channels) weight = for_channels(weight, y);
        y = weight ? etch_mul(y, weight) : NULL;
    }
    if (y && bias != ETCH_NONE) {
        if (channels) bias = for_channels(bias, y);
        y = bias ? etch_add(y, bias) : NULL;
    }
    return y;
}

/* (x - mean) / sqrt(var + eps) */
static etch_tensor *normalised(etch_tensor *centred, etch_tensor *var, double eps) {
    etch_tensor *safe = var ? etch_add_scalar(var, eps) : NULL;
    etch_tensor *scale = safe ? etch_rsqrt(safe) : NULL;
    return scale ? etch_mul(centred, scale) : NULL;
}

static etch_tensor *mean_of_squares(etch_tensor *t, etch_dims dims) {
    etch_tensor *squares = t ? etch_mul(t, t) : NULL;
    return squares ? etch_mean_dim(squares, dims, true) : NULL;
}

static bool need_float(const etch_module *m, const etch_tensor *x) {
    if (etch__nn_float(x)) return true;
    etch__nn_fail(ETCH_ERR_DTYPE, "%s: expected a floating dtype, got %s", etch_module_type(m),
                  etch_dtype_name(etch_dtype_of(x)));
    return false;
}

/* ---- layer norm, rms norm ---- */

static etch_tensor *layer_norm_forward(etch_module *m, etch_tensor *x) {
    const norm *o = etch_module_ctx(m);
    return etch_layer_norm(x, o->sizes, etch__nn_own(m, "weight"), etch__nn_own(m, "bias"), o->eps);
}

static bool ends_in(const etch_tensor *x, const etch_shape *sizes) {
    int n = etch_ndim(x);
    bool ok = n >= sizes->n;
    for (int k = 0; ok && k < sizes->n; k++) ok = etch_size(x, n - sizes->n + k) == sizes->v[k];
    return ok;
}

static etch_tensor *rms_norm_forward(etch_module *m, etch_tensor *x) {
    const norm *o = etch_module_ctx(m);
    if (!ends_in(x, &o->sizes)) return etch__nn_refuse(m, "that end in those of weight", x);
    if (!need_float(m, x)) return NULL;
    etch_dims last = {.n = o->sizes.n};
    for (int k = 0; k < last.n; k++) last.v[k] = k - last.n;
    etch_tensor *wide = etch__nn_to(x, etch__nn_wide(etch_dtype_of(x)));
    double eps = o->eps ? o->eps : etch_dtype_of(wide) == ETCH_F64 ? 0x1p-52 : 0x1p-23;
    etch_tensor *y = normalised(wide, mean_of_squares(wide, last), eps);
    return etch__nn_to(affine(m, y, false), etch_dtype_of(x));
}

/* ---- batch norm ---- */

/* All dimensions but that of the channels. */
static etch_dims but_channels(const etch_tensor *x) {
    etch_dims d = {0};
    for (int k = 0; k < etch_ndim(x); k++)
        if (k != 1) d.v[d.n++] = k;
    return d;
}

/* running += weight (value - running), in place. A weight of 1 / batches is a tensor, so that
 * compiled code need not be told. */
static bool move(etch_tensor *running, etch_tensor *value, double momentum, etch_tensor *batches) {
    etch_dtype dtype = etch_dtype_of(running);
    value = etch__nn_to(value ? etch_view(value, etch_sizes(running)) : NULL, dtype);
    if (!value) return false;
    if (momentum >= 0) return etch_lerp_(running, value, momentum) != NULL;
    etch_tensor *count = etch_to(batches, dtype);
    etch_tensor *part = count ? etch_reciprocal(count) : NULL;
    etch_tensor *moved = part ? etch_lerp_tensor(running, value, part) : NULL;
    return moved && etch_copy_(running, moved);
}

/* n: values a channel. */
static bool learn(const etch_module *m, etch_tensor *mean, etch_tensor *var, int64_t n) {
    const norm *o = etch_module_ctx(m);
    bool ok = false;
    ETCH_NO_GRAD {
        etch_tensor *batches = etch_add_scalar_(etch__nn_own(m, "num_batches_tracked"), 1);
        etch_tensor *unbiased = etch_mul_scalar(var, (double)n / (double)(n - 1));
        ok = batches && unbiased &&
             move(etch__nn_own(m, "running_mean"), mean, o->momentum, batches) &&
             move(etch__nn_own(m, "running_var"), unbiased, o->momentum, batches);
    }
    return ok;
}

static etch_tensor *by_batch(etch_module *m, etch_tensor *x) {
    const norm *o = etch_module_ctx(m);
    int64_t n = 1;
    for (int d = 0; d < etch_ndim(x); d++) n *= d == 1 ? 1 : etch_size(x, d);
    if (n < 2) return etch__nn_refuse(m, "with more than one value a channel in training", x);
    etch_tensor *mean = etch_mean_dim(x, but_channels(x), true);
    etch_tensor *centred = mean ? etch_sub(x, mean) : NULL;
    etch_tensor *var = mean_of_squares(centred, but_channels(x));
    if (var && !o->no_statistics && !learn(m, mean, var, n)) return NULL;
    return normalised(centred, var, o->eps);
}

static etch_tensor *by_statistics(etch_module *m, etch_tensor *x) {
    const norm *o = etch_module_ctx(m);
    etch_tensor *mean = for_channels(etch__nn_own(m, "running_mean"), x);
    etch_tensor *var = for_channels(etch__nn_own(m, "running_var"), x);
    etch_tensor *centred = mean ? etch_sub(x, mean) : NULL;
    return centred ? normalised(centred, var, o->eps) : NULL;
}

static etch_tensor *batch_norm(etch_module *m, etch_tensor *x, bool fits, const char *what) {
    const norm *o = etch_module_ctx(m);
    if (!fits || etch_size(x, 1) != o->sizes.v[0]) return etch__nn_refuse(m, what, x);
    if (!need_float(m, x)) return NULL;
    etch_tensor *wide = etch__nn_to(x, etch__nn_wide(etch_dtype_of(x)));
    if (!wide) return NULL;
    bool learns = o->no_statistics || etch_module_is_training(m);
    etch_tensor *y = learns ? by_batch(m, wide) : by_statistics(m, wide);
    return etch__nn_to(affine(m, y, true), etch_dtype_of(x));
}

static etch_tensor *batch_norm1d_forward(etch_module *m, etch_tensor *x) {
    int n = etch_ndim(x);
    return batch_norm(m, x, n == 2 || n == 3, "[N, C] or [N, C, L] with C as in weight");
}

static etch_tensor *batch_norm2d_forward(etch_module *m, etch_tensor *x) {
    return batch_norm(m, x, etch_ndim(x) == 4, "[N, C, H, W] with C as in weight");
}

/* ---- group norm ---- */

static etch_tensor *group_norm_forward(etch_module *m, etch_tensor *x) {
    const norm *o = etch_module_ctx(m);
    if (etch_ndim(x) < 2 || etch_size(x, 1) != o->sizes.v[0])
        return etch__nn_refuse(m, "[N, C, ...] with C as in weight", x);
    if (!need_float(m, x)) return NULL;
    etch_tensor *wide = etch__nn_to(x, etch__nn_wide(etch_dtype_of(x)));
    int64_t inside = 1;
    for (int d = 1; d < etch_ndim(x); d++) inside *= etch_size(x, d);
    etch_shape grouped = ETCH_SHAPE(etch_size(x, 0), o->groups, inside / o->groups);
    etch_tensor *rows = wide ? etch_reshape(wide, grouped) : NULL;
    etch_tensor *mean = rows ? etch_mean_dim(rows, ETCH_DIMS(2), true) : NULL;
    etch_tensor *centred = mean ? etch_sub(rows, mean) : NULL;
    etch_tensor *y = normalised(centred, mean_of_squares(centred, ETCH_DIMS(2)), o->eps);
    y = y ? etch_view(y, etch_sizes(x)) : NULL;
    return etch__nn_to(affine(m, y, true), etch_dtype_of(x));
}

/* ---- making them ---- */

static bool positive(const char *function, const etch_shape *sizes) {
    bool ok = sizes->n > 0 && sizes->n <= ETCH_MAX_DIMS;
    for (int k = 0; ok && k < sizes->n; k++) ok = sizes->v[k] > 0;
    if (!ok)
        etch__nn_fail(ETCH_ERR_SHAPE, "%s: expected positive sizes, got %d, the first %lld",
                      function, sizes->n, (long long)sizes->v[0]);
    return ok;
}

static void sizes_text(char *text, size_t n, const etch_shape *s) {
    size_t used = 0;
    for (int k = 0; k < s->n; k++)
        used +=
            (size_t)snprintf(text + used, n - used, "%s%lld", k ? ", " : "", (long long)s->v[k]);
}

static etch_module *make_norm(const char *type, etch_forward forward, norm o,
                              const etch_norm_options *given, etch_dtype dtype) {
    char sizes[SIZES_TEXT], eps[REAL_TEXT], momentum[REAL_TEXT];
    sizes_text(sizes, sizeof sizes, &o.sizes);
    return etch__nn_layer(type, forward, &o, sizeof o,
                          "{\"sizes\": [%s], \"groups\": %lld, \"dtype\": \"%s\", \"eps\": %s, "
                          "\"momentum\": %s, \"affine\": %s, \"bias\": %s, \"statistics\": %s}",
                          sizes, (long long)o.groups, etch_dtype_name(dtype),
                          etch__real_text(o.eps, eps), etch__real_text(o.momentum, momentum),
                          given->no_affine ? "false" : "true", given->no_bias ? "false" : "true",
                          o.no_statistics ? "false" : "true");
}

static etch_module *with_affine(etch_module *m, const etch_norm_options *o, etch_shape sizes,
                                etch_dtype dtype, bool bias) {
    bool ok = m != NULL;
    if (ok && !o->no_affine) ok = etch__nn_add_full(m, "weight", dtype, sizes, 1, false);
    if (ok && !o->no_affine && bias) ok = etch__nn_add_full(m, "bias", dtype, sizes, 0, false);
    return etch__nn_finish(m, ok);
}

static norm read_norm(etch_norm_options *o, const etch_norm_options *given, etch_shape sizes) {
    etch__nn_options(o, sizeof *o, given);
    double momentum = o->momentum ? o->momentum : 0.1;
    return (norm){.sizes = sizes,
                  .eps = o->eps ? o->eps : 1e-5,
                  .momentum = momentum,
                  .no_statistics = o->no_statistics};
}

etch_module *etch_nn_layer_norm_with(etch_shape sizes, etch_dtype dtype,
                                     const etch_norm_options *options) {
    etch_norm_options o;
    norm n = read_norm(&o, options, sizes);
    if (!positive("etch_nn_layer_norm", &sizes) ||
        !etch__nn_need_float("etch_nn_layer_norm", dtype))
        return NULL;
    etch_module *m = make_norm("LayerNorm", layer_norm_forward, n, &o, dtype);
    return with_affine(m, &o, sizes, dtype, !o.no_bias);
}

etch_module *etch_nn_rms_norm_with(etch_shape sizes, etch_dtype dtype,
                                   const etch_norm_options *options) {
    etch_norm_options o;
    norm n = read_norm(&o, options, sizes);
    n.eps = o.eps; /* 0: by the dtype of the input */
    if (!positive("etch_nn_rms_norm", &sizes) || !etch__nn_need_float("etch_nn_rms_norm", dtype))
        return NULL;
    etch_module *m = make_norm("RMSNorm", rms_norm_forward, n, &o, dtype);
    return with_affine(m, &o, sizes, dtype, false);
}

static etch_module *make_batch_norm(const char *function, const char *type, etch_forward forward,
                                    int64_t channels, etch_dtype dtype,
                                    const etch_norm_options *options) {
    etch_norm_options o;
    etch_shape sizes = ETCH_SHAPE(channels);
    norm n = read_norm(&o, options, sizes);
    if (!positive(function, &sizes) || !etch__nn_need_float(function, dtype)) return NULL;
    etch_module *m = with_affine(make_norm(type, forward, n, &o, dtype), &o, sizes, dtype, true);
    if (!m || o.no_statistics) return m;
    bool ok = etch__nn_add_full(m, "running_mean", dtype, sizes, 0, true) &&
              etch__nn_add_full(m, "running_var", dtype, sizes, 1, true) &&
              etch__nn_add_full(m, "num_batches_tracked", ETCH_I64, ETCH_SHAPE(), 0, true);
    return etch__nn_finish(m, ok);
}

etch_module *etch_nn_batch_norm1d_with(int64_t channels, etch_dtype dtype,
                                       const etch_norm_options *options) {
    return make_batch_norm("etch_nn_batch_norm1d", "BatchNorm1d", batch_norm1d_forward, channels,
                           dtype, options);
}

etch_module *etch_nn_batch_norm2d_with(int64_t channels, etch_dtype dtype,
                                       const etch_norm_options *options) {
    return make_batch_norm("etch_nn_batch_norm2d", "BatchNorm2d", batch_norm2d_forward, channels,
                           dtype, options);
}

etch_module *etch_nn_group_norm_with(int64_t groups, int64_t channels, etch_dtype dtype,
                                     const etch_norm_options *options) {
    etch_norm_options o;
    etch_shape sizes = ETCH_SHAPE(channels);
    norm n = read_norm(&o, options, sizes);
    n.groups = groups;
    if (!positive("etch_nn_group_norm", &sizes) ||
        !etch__nn_need_float("etch_nn_group_norm", dtype))
        return NULL;
    if (groups <= 0 || channels % groups) {
        etch__nn_fail(ETCH_ERR_SHAPE,
                      "etch_nn_group_norm: expected groups that divide the channels, got %lld and "
                      "%lld",
                      (long long)groups, (long long)channels);
        return NULL;
    }
    return with_affine(make_norm("GroupNorm", group_norm_forward, n, &o, dtype), &o, sizes, dtype,
                       true);
}
