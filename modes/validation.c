/* A mode that fails a call with a NaN, or on request an infinity, among its arguments or in its
 * result. It looks at the elements themselves: operators called for that would be seen by the modes
 * outside. */
#include "support.h"

static const char name[] = "validation";

typedef struct validation {
    bool infinities;
} validation;

/* How the bits of a float dtype with all exponent bits set are told. */
typedef struct float_bits {
    uint64_t exponent, mantissa;
} float_bits;

static const float_bits bits_of[ETCH_DTYPE_COUNT] = {
    [ETCH_F32] = {0x7f800000, 0x007fffff},
    [ETCH_F64] = {0x7ff0000000000000, 0x000fffffffffffff},
    [ETCH_BF16] = {0x7f80, 0x007f},
    [ETCH_F16] = {0x7c00, 0x03ff},
};

static uint64_t element(const char *data, etch_dtype dtype, int64_t at) {
    uint64_t bits = 0; /* little endian: a short element fills the low bytes */
    size_t size = etch_dtype_size(dtype);
    memcpy(&bits, data + at * (int64_t)size, size);
    return bits;
}

/* Whether an element is not allowed, and whether the first such one is a NaN. */
static bool find_bad(const validation *v, const etch_tensor *t, const char *data, float_bits f,
                     bool *nan) {
    int64_t index[ETCH_MAX_DIMS] = {0}, at = 0;
    for (int64_t i = 0; i < etch_numel(t); i++) {
        uint64_t bits = element(data, etch_dtype_of(t), at);
        *nan = bits & f.mantissa;
        if ((bits & f.exponent) == f.exponent && (*nan || v->infinities)) return true;
        for (int d = etch_ndim(t) - 1; d >= 0; d--) {
            at += etch_stride(t, d);
            if (++index[d] < etch_size(t, d)) break;
            at -= index[d] * etch_stride(t, d);
            index[d] = 0;
        }
    }
    return false;
}

/* Fails with an error that names the operator; the library adds the line of the call. */
static etch_status check(const validation *v, const etch_op *op, const etch_tensor *t,
                         const char *where) {
    float_bits f = bits_of[etch_dtype_of(t)];
    bool nan = false;
    if (!f.exponent || etch_numel(t) == 0) return ETCH_OK;
    const char *data = etch_data(t);
    if (!data) return etch_last_status();
    bool bad = find_bad(v, t, data, f, &nan);
    etch_data_end(t);
    if (!bad) return ETCH_OK;
    char text[192];
    snprintf(text, sizeof text, "%s: %s contains %s", title_of(op).s, where,
             nan ? "NaN" : "an infinity");
    return etch_set_error(ETCH_ERR_INVALID_ARGUMENT, text);
}

static etch_status check_argument(const validation *v, const etch_op *op, const etch_value *arg,
                                  int number) {
    char where[48];
    etch_status status = ETCH_OK;
    for (int k = 0; status == ETCH_OK && tensor_of(arg, k); k++) {
        snprintf(where, sizeof where, "argument %d", number);
        if (arg->tag == ETCH_VALUE_TENSORS)
            snprintf(where, sizeof where, "argument %d[%d]", number, k);
        status = check(v, op, tensor_of(arg, k), where);
    }
    return status;
}

static etch_status validate(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                            etch_tensor **out, int nout) {
    const validation *v = ctx;
    etch_status status = ETCH_OK;
    for (int i = 0; status == ETCH_OK && i < nargs; i++)
        if (!etch_op_is(op, "empty")) status = check_argument(v, op, &args[i], i);
    if (status == ETCH_OK) status = etch_redispatch(op, args, nargs, out, nout);
    /* What empty returns has no values yet. */
    for (int i = 0; status == ETCH_OK && i < nout; i++)
        if (!etch_op_is(op, "empty")) status = check(v, op, out[i], "the result");
    return status;
}

etch_mode *etch_validation_mode(bool infinities) {
    validation *v = malloc(sizeof *v);
    if (!v) {
        etch_set_error(ETCH_ERR_OUT_OF_MEMORY, NULL);
        return NULL;
    }
    v->infinities = infinities;
    return mode_or_free(etch_mode_new(validate, v, .name = name, .destroy = free), v, free);
}
