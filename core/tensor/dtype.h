/* What kinds of dtypes there are, by the order of their enumerators: floats, integers, bool. */
#ifndef ETCH_CORE_TENSOR_DTYPE_H
#define ETCH_CORE_TENSOR_DTYPE_H

#include "core/base/base.h"

static_assert(ETCH_F32 == 0 && ETCH_F64 == 1 && ETCH_BF16 == 2 && ETCH_F16 == 3 && ETCH_I8 == 4,
              "floats come first, the two that are computed in themselves before all");
static_assert(ETCH_BOOL + 1 == ETCH_DTYPE_COUNT, "bool comes last");

static inline bool etch__is_float(etch_dtype d) { return d <= ETCH_F16; }
static inline bool etch__is_integer(etch_dtype d) { return d > ETCH_F16 && d < ETCH_BOOL; }
static inline bool etch__is_half(etch_dtype d) { return d == ETCH_BF16 || d == ETCH_F16; }

/* bf16 and f16 are computed in f32, every other dtype in itself. */
static inline etch_dtype etch__compute_type(etch_dtype d) {
    return etch__is_half(d) ? ETCH_F32 : d;
}
static inline bool etch__is_compute_type(etch_dtype d) {
    return (unsigned)d < ETCH_DTYPE_COUNT && !etch__is_half(d);
}

#endif
