/* Ready-made modules: linear, relu, sequential. */
#include <etch/etch.h>

#include <math.h>
#include <stdio.h>

/* ---- linear ---- */

static etch_tensor *linear_forward(etch_module *m, etch_tensor *x) {
    etch_tensor *weight = etch_module_parameter(m, "weight");
    etch_tensor *bias = etch_module_parameter(m, "bias");
    return etch_linear(x, weight, bias);
}

/* Uniform in +-bound. */
static etch_tensor *uniform(etch_dtype dtype, etch_shape sizes, double bound) {
    etch_tensor *u = etch_rand(dtype, sizes);
    etch_tensor *wide = etch_mul_scalar(u, 2 * bound);
    return etch_sub_scalar(wide, bound);
}

etch_module *etch_nn_linear(int64_t in, int64_t out, etch_dtype dtype) {
    if (in <= 0 || out < 0) {
        etch_set_error(ETCH_ERR_SHAPE, "etch_nn_linear: expected positive sizes");
        return NULL;
    }
    etch_module *m = etch_module_new("Linear", linear_forward);
    if (!m) return NULL;
    bool ok = false;
    ETCH_SCOPE {
        double bound = 1 / sqrt((double)in);
        etch_tensor *weight = uniform(dtype, ETCH_SHAPE(out, in), bound);
        etch_tensor *bias = uniform(dtype, ETCH_SHAPE(out), bound);
        ok = weight && bias && etch_module_add_parameter(m, "weight", weight) == ETCH_OK &&
             etch_module_add_parameter(m, "bias", bias) == ETCH_OK;
    }
    if (ok) return m;
    etch_module_free(m);
    return NULL;
}

/* ---- relu ---- */

static etch_tensor *relu_forward(etch_module *m, etch_tensor *x) {
    (void)m;
    return etch_relu(x);
}

etch_module *etch_nn_relu(void) { return etch_module_new("ReLU", relu_forward); }

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
        if (!again) etch_module_free(children[i]);
    }
}

etch_module *etch_nn_sequential(etch_module *const *children, int n) {
    if (n < 0 || (n && !children)) {
        etch_set_error(
            ETCH_ERR_INVALID_ARGUMENT,
            "etch_nn_sequential: expected modules and how many, got NULL or fewer than 0");
        return NULL;
    }
    etch_module *m = etch_module_new("Sequential", sequential_forward);
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
