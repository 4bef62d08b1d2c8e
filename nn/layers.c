/* Ready-made modules: linear, pointwise ones, dropout, flatten, embedding, sequential. */
#include "nn/json.h"
#include "nn/module.h"

#include <math.h>
#include <stdio.h>

/* ---- linear ---- */

static etch_tensor *linear_forward(etch_module *m, etch_tensor *x) {
    return etch_linear(x, etch__nn_own(m, "weight"), etch__nn_own(m, "bias"));
}

etch_module *etch_nn_linear_with(int64_t in, int64_t out, etch_dtype dtype, bool bias) {
    if (in <= 0 || out < 0) {
        etch__nn_fail(ETCH_ERR_SHAPE,
                      "etch_nn_linear: expected positive sizes, got in = %lld, out = %lld",
                      (long long)in, (long long)out);
        return NULL;
    }
    if (!etch__nn_need_float("etch_nn_linear", dtype)) return NULL;
    etch_module *m = etch__nn_layer(
        "Linear", linear_forward, NULL, 0,
        "{\"in\": %lld, \"out\": %lld, \"dtype\": \"%s\", \"bias\": %s}", (long long)in,
        (long long)out, etch_dtype_name(dtype), bias ? "true" : "false");
    if (!m) return NULL;
    double bound = 1 / sqrt((double)in);
    bool ok = etch__nn_add_uniform(m, "weight", dtype, ETCH_SHAPE(out, in), bound);
    if (ok && bias) ok = etch__nn_add_uniform(m, "bias", dtype, ETCH_SHAPE(out), bound);
    return etch__nn_finish(m, ok);
}

etch_module *etch_nn_linear(int64_t in, int64_t out, etch_dtype dtype) {
    return etch_nn_linear_with(in, out, dtype, true);
}

/* ---- pointwise ---- */

#define POINTWISE(name, operator)                                                                  \
    static etch_tensor *name##_forward(etch_module *m, etch_tensor *x) {                           \
        (void)m;                                                                                   \
        return operator;                                                                           \
    }
POINTWISE(relu, etch_relu(x))
POINTWISE(gelu, etch_gelu(x))
POINTWISE(gelu_tanh, etch_gelu_with(x, true))
POINTWISE(silu, etch_silu(x))
POINTWISE(tanh, etch_tanh(x))
POINTWISE(sigmoid, etch_sigmoid(x))

etch_module *etch_nn_relu(void) { return etch__nn_layer("ReLU", relu_forward, NULL, 0, "{}"); }
etch_module *etch_nn_silu(void) { return etch__nn_layer("SiLU", silu_forward, NULL, 0, "{}"); }
etch_module *etch_nn_tanh(void) { return etch__nn_layer("Tanh", tanh_forward, NULL, 0, "{}"); }
etch_module *etch_nn_sigmoid(void) {
    return etch__nn_layer("Sigmoid", sigmoid_forward, NULL, 0, "{}");
}
etch_module *etch_nn_gelu(bool approximate_tanh) {
    return etch__nn_layer("GELU", approximate_tanh ? gelu_tanh_forward : gelu_forward, NULL, 0,
                          "{\"tanh\": %s}", approximate_tanh ? "true" : "false");
}

/* ---- dropout ---- */

/* What is kept is multiplied, as PyTorch does: so infinity becomes NaN where it is dropped. */
etch_tensor *etch__nn_drop(etch_tensor *x, double p) {
    if (!x || p == 0) return x;
    etch_tensor *u = NULL;
    ETCH_ON(etch_device_of(x)) { u = etch_rand(etch__nn_wide(etch_dtype_of(x)), etch_sizes(x)); }
    etch_tensor *kept = u ? etch_ge_scalar(u, p) : NULL;
    etch_tensor *factor = kept ? etch_to(kept, etch_dtype_of(x)) : NULL;
    if (factor && p < 1) factor = etch_mul_scalar(factor, 1 / (1 - p));
    return factor ? etch_mul(x, factor) : NULL;
}

static etch_tensor *dropout_forward(etch_module *m, etch_tensor *x) {
    const double *p = etch_module_ctx(m);
    if (!etch__nn_float(x))
        return etch__nn_fail(ETCH_ERR_DTYPE, "Dropout: expected a floating dtype, got %s",
                             etch_dtype_name(etch_dtype_of(x))),
               NULL;
    return etch_module_is_training(m) ? etch__nn_drop(x, *p) : x;
}

etch_module *etch_nn_dropout(double p) {
    char text[REAL_TEXT];
    if (p >= 0 && p <= 1)
        return etch__nn_layer("Dropout", dropout_forward, &p, sizeof p, "{\"p\": %s}",
                              etch__real_text(p, text));
    etch__nn_fail(ETCH_ERR_INVALID_ARGUMENT,
                  "etch_nn_dropout: expected a probability of 0 to 1, got %g", p);
    return NULL;
}

/* ---- flatten ---- */

static etch_tensor *flatten_forward(etch_module *m, etch_tensor *x) {
    const int *ends = etch_module_ctx(m);
    return etch_flatten(x, ends[0], ends[1]);
}

etch_module *etch_nn_flatten(int start, int end) {
    int ends[2] = {start, end};
    return etch__nn_layer("Flatten", flatten_forward, ends, sizeof ends,
                          "{\"start\": %d, \"end\": %d}", start, end);
}

/* ---- embedding ---- */

static etch_tensor *embedding_forward(etch_module *m, etch_tensor *x) {
    return etch_embedding(etch__nn_own(m, "weight"), x);
}

etch_module *etch_nn_embedding(int64_t count, int64_t width, etch_dtype dtype) {
    if (count <= 0 || width <= 0) {
        etch__nn_fail(ETCH_ERR_SHAPE,
                      "etch_nn_embedding: expected positive sizes, got %lld rows of %lld",
                      (long long)count, (long long)width);
        return NULL;
    }
    if (!etch__nn_need_float("etch_nn_embedding", dtype)) return NULL;
    etch_module *m = etch__nn_layer("Embedding", embedding_forward, NULL, 0,
                                    "{\"count\": %lld, \"width\": %lld, \"dtype\": \"%s\"}",
                                    (long long)count, (long long)width, etch_dtype_name(dtype));
    bool ok = false;
    if (m && etch__nn_within(dtype, ETCH_SHAPE(count, width)))
        ETCH_SCOPE {
            etch_tensor *weight = etch_randn(dtype, ETCH_SHAPE(count, width));
            ok = weight && etch_module_add_parameter(m, "weight", weight) == ETCH_OK;
        }
    return m ? etch__nn_finish(m, ok) : NULL;
}

/* ---- sequential ---- */

static etch_tensor *sequential_forward(etch_module *m, etch_tensor *x) {
    etch_module *child;
    for (int i = 0; x && (child = etch_module_child(m, i)); i++) x = etch_module_call(child, x);
    return x;
}

/* Each once, though it be there twice; one that has a parent stays with that. */
static void free_untaken(etch_module *const *children, int from, int n) {
    for (int i = from; i < n; i++) {
        bool again = false;
        for (int k = 0; k < i; k++) again |= children[k] == children[i];
        bool taken = !children[i] || children[i]->parent;
        if (!again && !taken) etch_module_free(children[i]);
    }
}

etch_module *etch_nn_sequential(etch_module *const *children, int n) {
    if (n < 0 || (n && !children)) {
        etch_set_error(
            ETCH_ERR_INVALID_ARGUMENT,
            "etch_nn_sequential: expected modules and how many, got NULL or fewer than 0");
        return NULL;
    }
    etch_module *m = etch__nn_layer("Sequential", sequential_forward, NULL, 0, "{}");
    bool ok = m != NULL;
    int i = 0;
    for (char name[16]; ok && i < n; i += ok) {
        snprintf(name, sizeof name, "%d", i);
        ok = etch_module_add_child(m, name, children[i]) == ETCH_OK;
    }
    if (ok) return m;
    free_untaken(children, i, n);
    etch_module_free(m);
    return NULL;
}
