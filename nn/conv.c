/* Ready-made modules over windows of their input: convolutions and pooling. */
#include "nn/module.h"

#include <math.h>

/* Width follows height where it is not given; a padding of -1 is none. */
static void settle_pair(int64_t pair[2], int64_t otherwise) {
    if (!pair[0]) pair[0] = otherwise;
    if (!pair[1]) pair[1] = pair[0];
    for (int k = 0; k < 2; k++)
        if (pair[k] == -1) pair[k] = 0;
}

/* ---- convolutions ---- */

static etch_tensor *apply_conv(etch_module *m, etch_tensor *x, etch_tensor *weight) {
    const etch_conv_options *o = etch_module_ctx(m);
    return etch_conv2d(x, weight, etch__nn_own(m, "bias"), ETCH_SHAPE(o->stride[0], o->stride[1]),
                       ETCH_SHAPE(o->padding[0], o->padding[1]),
                       ETCH_SHAPE(o->dilation[0], o->dilation[1]), o->groups);
}

static etch_tensor *conv2d_forward(etch_module *m, etch_tensor *x) {
    int n = etch_ndim(x);
    if (n != 3 && n != 4) return etch__nn_refuse(m, "[N, C, H, W] or [C, H, W]", x);
    if (n == 3 && !(x = etch_unsqueeze(x, 0))) return NULL;
    etch_tensor *y = apply_conv(m, x, etch__nn_own(m, "weight"));
    return y && n == 3 ? etch_squeeze_dim(y, 0) : y;
}

/* A convolution of height 1. */
static etch_tensor *conv1d_forward(etch_module *m, etch_tensor *x) {
    int n = etch_ndim(x);
    if (n != 2 && n != 3) return etch__nn_refuse(m, "[N, C, L] or [C, L]", x);
    if (n == 2 && !(x = etch_unsqueeze(x, 0))) return NULL;
    etch_tensor *flat = etch_unsqueeze(x, 2);
    etch_tensor *weight = flat ? etch_unsqueeze(etch__nn_own(m, "weight"), 2) : NULL;
    etch_tensor *y = weight ? apply_conv(m, flat, weight) : NULL;
    if (y) y = etch_squeeze_dim(y, 2);
    return y && n == 2 ? etch_squeeze_dim(y, 0) : y;
}

/* Channels, a kernel of one or two sizes, and options that can be. */
static bool conv_fits(const char *function, int64_t in, int64_t out, const etch_shape *kernel,
                      int dims, const etch_conv_options *o) {
    bool ok = in > 0 && out > 0 && kernel->n == dims && o->groups > 0 && !(in % o->groups) &&
              !(out % o->groups);
    for (int k = 0; ok && k < dims; k++) ok = kernel->v[k] > 0;
    for (int k = 0; ok && k < 2; k++)
        ok = o->stride[k] > 0 && o->padding[k] >= 0 && o->dilation[k] > 0;
    if (!ok)
        etch__nn_fail(ETCH_ERR_SHAPE,
                      "%s: expected positive channels that groups divide, a kernel of %d positive "
                      "sizes, strides and dilations above 0 and no negative padding, got %lld and "
                      "%lld channels, groups %lld, a kernel of %d sizes",
                      function, dims, (long long)in, (long long)out, (long long)o->groups,
                      kernel->n);
    return ok;
}

static etch_module *make_conv(const char *type, etch_forward forward, int64_t in, int64_t out,
                              etch_shape kernel, etch_dtype dtype, const etch_conv_options *o) {
    etch_shape sizes = {.n = 2 + kernel.n, .v = {out, in / o->groups}};
    int64_t fan_in = in / o->groups, height = kernel.v[0], width = kernel.n > 1 ? kernel.v[1] : 1;
    for (int k = 0; k < kernel.n; k++) sizes.v[2 + k] = kernel.v[k];
    etch_module *m = etch__nn_layer(
        type, forward, o, sizeof *o,
        "{\"in\": %lld, \"out\": %lld, \"kernel\": [%lld, %lld], \"dtype\": \"%s\", \"stride\": "
        "[%lld, %lld], \"padding\": [%lld, %lld], \"dilation\": [%lld, %lld], \"groups\": %lld, "
        "\"bias\": %s}",
        (long long)in, (long long)out, (long long)height, (long long)width, etch_dtype_name(dtype),
        (long long)o->stride[0], (long long)o->stride[1], (long long)o->padding[0],
        (long long)o->padding[1], (long long)o->dilation[0], (long long)o->dilation[1],
        (long long)o->groups, o->no_bias ? "false" : "true");
    double bound = 1 / sqrt((double)fan_in * (double)height * (double)width);
    bool ok = m && etch__nn_add_uniform(m, "weight", dtype, sizes, bound);
    if (ok && !o->no_bias) ok = etch__nn_add_uniform(m, "bias", dtype, ETCH_SHAPE(out), bound);
    return etch__nn_finish(m, ok);
}

static void settle_conv(etch_conv_options *o, const etch_conv_options *given) {
    etch__nn_options(o, sizeof *o, given);
    settle_pair(o->stride, 1);
    settle_pair(o->padding, 0);
    settle_pair(o->dilation, 1);
    if (!o->groups) o->groups = 1;
}

etch_module *etch_nn_conv2d_with(int64_t in, int64_t out, etch_shape kernel, etch_dtype dtype,
                                 const etch_conv_options *options) {
    etch_conv_options o;
    settle_conv(&o, options);
    if (!conv_fits("etch_nn_conv2d", in, out, &kernel, 2, &o) ||
        !etch__nn_need_float("etch_nn_conv2d", dtype))
        return NULL;
    return make_conv("Conv2d", conv2d_forward, in, out, kernel, dtype, &o);
}

etch_module *etch_nn_conv1d_with(int64_t in, int64_t out, int64_t kernel, etch_dtype dtype,
                                 const etch_conv_options *options) {
    etch_conv_options o;
    etch_shape one = ETCH_SHAPE(kernel);
    settle_conv(&o, options);
    o.stride[1] = o.stride[0], o.padding[1] = o.padding[0], o.dilation[1] = o.dilation[0];
    if (!conv_fits("etch_nn_conv1d", in, out, &one, 1, &o) ||
        !etch__nn_need_float("etch_nn_conv1d", dtype))
        return NULL;
    o.stride[0] = o.dilation[0] = 1, o.padding[0] = 0; /* of the height, which is 1 */
    return make_conv("Conv1d", conv1d_forward, in, out, one, dtype, &o);
}

/* ---- pooling ---- */

/* Numbers of options, settled. */
typedef struct pool {
    int64_t kernel[2], stride[2], padding[2], dilation[2], divisor;
    bool ceil_mode, exclude_padding;
} pool;

#define PAIR(of) ETCH_SHAPE((of)[0], (of)[1])

static bool pool_takes(const etch_module *m, const etch_tensor *x) {
    int n = etch_ndim(x);
    if (n != 3 && n != 4) return etch__nn_refuse(m, "[N, C, H, W] or [C, H, W]", x), false;
    return true;
}

static etch_tensor *max_pool_forward(etch_module *m, etch_tensor *x) {
    const pool *p = etch_module_ctx(m);
    if (!pool_takes(m, x)) return NULL;
    return etch_max_pool2d(x, PAIR(p->kernel), PAIR(p->stride), PAIR(p->padding), PAIR(p->dilation),
                           p->ceil_mode);
}

static etch_tensor *avg_pool_forward(etch_module *m, etch_tensor *x) {
    const pool *p = etch_module_ctx(m);
    if (!pool_takes(m, x)) return NULL;
    return etch_avg_pool2d(x, PAIR(p->kernel), PAIR(p->stride), PAIR(p->padding), p->ceil_mode,
                           !p->exclude_padding, p->divisor);
}

static bool pool_fits(const char *function, const etch_shape *kernel, const pool *p) {
    bool ok = kernel->n == 2;
    for (int k = 0; ok && k < 2; k++)
        ok = p->kernel[k] > 0 && p->stride[k] > 0 && p->dilation[k] > 0 && p->padding[k] >= 0 &&
             2 * p->padding[k] <= p->kernel[k];
    if (!ok)
        etch__nn_fail(ETCH_ERR_SHAPE,
                      "%s: expected a kernel of two positive sizes, positive strides and dilations "
                      "and padding of at most half of the kernel, got %d sizes [%lld, %lld], "
                      "strides [%lld, %lld], padding [%lld, %lld], dilation [%lld, %lld]",
                      function, kernel->n, (long long)p->kernel[0], (long long)p->kernel[1],
                      (long long)p->stride[0], (long long)p->stride[1], (long long)p->padding[0],
                      (long long)p->padding[1], (long long)p->dilation[0],
                      (long long)p->dilation[1]);
    return ok;
}

static pool settle_pool(const etch_shape *kernel, const etch_pool_options *given) {
    etch_pool_options o;
    etch__nn_options(&o, sizeof o, given);
    pool p = {.kernel = {kernel->v[0], kernel->v[1]},
              .stride = {o.stride[0] ? o.stride[0] : kernel->v[0], o.stride[1]},
              .padding = {o.padding[0], o.padding[1]},
              .dilation = {o.dilation[0], o.dilation[1]},
              .divisor = o.divisor,
              .ceil_mode = o.ceil_mode,
              .exclude_padding = o.exclude_padding};
    if (!p.stride[1]) p.stride[1] = o.stride[0] ? o.stride[0] : kernel->v[1];
    settle_pair(p.padding, 0);
    settle_pair(p.dilation, 1);
    return p;
}

/* max: what is of means only does not belong to the description, nor the reverse. */
static etch_module *make_pool(const char *function, bool max, const etch_shape *kernel,
                              const etch_pool_options *given) {
    pool p = settle_pool(kernel, given);
    if (!pool_fits(function, kernel, &p)) return NULL;
    if (max && (p.divisor || p.exclude_padding))
        return etch__nn_fail(ETCH_ERR_INVALID_ARGUMENT,
                             "%s: a divisor and exclude_padding are of means", function),
               NULL;
    if (!max && (p.dilation[0] != 1 || p.dilation[1] != 1))
        return etch__nn_fail(ETCH_ERR_INVALID_ARGUMENT, "%s: expected no dilation", function), NULL;
    return etch__nn_layer(
        max ? "MaxPool2d" : "AvgPool2d", max ? max_pool_forward : avg_pool_forward, &p, sizeof p,
        "{\"kernel\": [%lld, %lld], \"stride\": [%lld, %lld], \"padding\": [%lld, %lld], "
        "\"dilation\": [%lld, %lld], \"ceil_mode\": %s, \"exclude_padding\": %s, \"divisor\": "
        "%lld}",
        (long long)p.kernel[0], (long long)p.kernel[1], (long long)p.stride[0],
        (long long)p.stride[1], (long long)p.padding[0], (long long)p.padding[1],
        (long long)p.dilation[0], (long long)p.dilation[1], p.ceil_mode ? "true" : "false",
        p.exclude_padding ? "true" : "false", (long long)p.divisor);
}

etch_module *etch_nn_max_pool2d_with(etch_shape kernel, const etch_pool_options *options) {
    return make_pool("etch_nn_max_pool2d", true, &kernel, options);
}

etch_module *etch_nn_avg_pool2d_with(etch_shape kernel, const etch_pool_options *options) {
    return make_pool("etch_nn_avg_pool2d", false, &kernel, options);
}
