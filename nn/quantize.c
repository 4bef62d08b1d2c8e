/* etch_quantize and etch_quantize_with: both operators that make a weight of few bits. */
#include "nn/module.h"

static etch_status quantize(const char *function, etch_tensor *w, int bits, int64_t group,
                            etch_dtype dtype, etch_tensor **packed, etch_tensor **scales) {
    if (!packed || !scales) return etch__nn_null(function, "places for packed and scales");
    *packed = *scales = NULL;
    if (!w || w == ETCH_NONE) return etch__nn_null(function, "a weight");
    if (dtype != ETCH_F32 && dtype != ETCH_BF16)
        return etch__nn_fail(ETCH_ERR_DTYPE, "%s: expected scales of f32 or bf16, got %s", function,
                             etch_dtype_name(dtype));
    /* Integers are multiples of the scales that are kept, not of those before rounding. */
    etch_tensor *s = etch_quantize_scales(w, bits, group);
    if (s && dtype != ETCH_F32) s = etch_to(s, dtype);
    etch_tensor *q = s ? etch_quantize_weight(w, s, bits) : NULL;
    if (!q) return etch_last_status();
    *packed = q, *scales = s;
    return ETCH_OK;
}

etch_status etch_quantize(etch_tensor *w, int bits, int64_t group, etch_tensor **packed,
                          etch_tensor **scales) {
    return quantize("etch_quantize", w, bits, group, ETCH_F32, packed, scales);
}

etch_status etch_quantize_with(etch_tensor *w, int bits, int64_t group, etch_dtype dtype,
                               etch_tensor **packed, etch_tensor **scales) {
    return quantize("etch_quantize_with", w, bits, group, dtype, packed, scales);
}
