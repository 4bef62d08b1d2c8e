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
static bool find_bad(const validation *v, const char *data, etch_dtype dtype, int64_t n,
                     bool *nan) {
    float_bits f = bits_of[dtype];
    for (int64_t i = 0; i < n; i++) {
        uint64_t bits = element(data, dtype, i);
        *nan = bits & f.mantissa;
        if ((bits & f.exponent) == f.exponent && (*nan || v->infinities)) return true;
    }
    return false;
}

/* Fails with an error that names the operator; the library adds the line of the call. Looks at a
 * copy: the tensor may lie on a GPU, and etch_data_end would end what the user has exposed. */
static etch_status check(const validation *v, const etch_op *op, const etch_tensor *t,
                         const char *where) {
    etch_dtype dtype = etch_dtype_of(t);
    int64_t n = etch_numel(t);
    bool nan = false;
    if (!bits_of[dtype].exponent || n == 0) return ETCH_OK;
    size_t bytes = (size_t)n * etch_dtype_size(dtype);
    char *data = malloc(bytes);
    if (!data) return etch_set_error(ETCH_ERR_OUT_OF_MEMORY, NULL);
    etch_status status = etch_to_host(t, data, bytes);
    bool bad = status == ETCH_OK && find_bad(v, data, dtype, n, &nan);
    free(data);
    if (!bad) return status;
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
    validation *v = new_context(sizeof *v);
    if (!v) return NULL;
    v->infinities = infinities;
    return mode_or_free(etch_mode_new(validate, v, .name = name, .destroy = free), v, free);
}
