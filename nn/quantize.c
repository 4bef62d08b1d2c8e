/* etch_quantize: both operators that make a weight of few bits. */
#include "nn/module.h"

etch_status etch_quantize(etch_tensor *w, int bits, int64_t group, etch_tensor **packed,
                          etch_tensor **scales) {
    if (!packed || !scales) return etch__nn_null("etch_quantize", "places for packed and scales");
    *packed = *scales = NULL;
    if (!w || w == ETCH_NONE) return etch__nn_null("etch_quantize", "a weight");
    etch_tensor *s = etch_quantize_scales(w, bits, group);
    etch_tensor *q = s ? etch_quantize_weight(w, s, bits) : NULL;
    if (!q) return etch_last_status();
    *packed = q, *scales = s;
    return ETCH_OK;
}
