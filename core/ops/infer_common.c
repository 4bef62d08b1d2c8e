/* What the rules of inference share: how one fails, and dimensions that count from the end. */
#include "core/ops/rules.h"

bool etch__infer_fail(const op_call *call, etch_status code, const char *format, ...) {
    char text[768];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    etch__error_at(call->site, code, "%s: %s", etch__ops[call->op].name, text);
    return false;
}

bool etch__wrap_dim(const op_call *call, int64_t dim, int ndim, int *out) {
    int n = ndim ? ndim : 1; /* a 0-d tensor has, as in ATen, the dimension 0 for this purpose */
    if (unlikely(dim < -n || dim >= n))
        return etch__infer_fail(call, ETCH_ERR_DIM_RANGE,
                                "expected a dimension from %d to %d, got %lld", -n, n - 1,
                                (long long)dim);
    *out = (int)(dim < 0 ? dim + n : dim);
    return true;
}
