/* The table of scalar primitives as data, from core/ops/prims.def. This file is compiled into
 * libetch and etch-jit and therefore uses nothing but the C library. */
#include "core/ops/prims.h"

#include <math.h>

#define TYPES_OF_ANY(real, whole, truth) TYPES_ANY
#define TYPES_OF_NUMBERS(real, whole) TYPES_NUMBERS
#define TYPES_OF_FLOATS(real) TYPES_FLOATS
#define TYPES_OF_INTEGERS(whole) TYPES_INTEGERS
#define TYPES_OF_BOOLS(truth) TYPES_BOOLS
#define TYPES_OF_COMPARED(truth) TYPES_COMPARED
#define TYPES_OF_I64(whole) TYPES_I64
#define TYPES_OF_F32(real) TYPES_F32

const prim_info etch__prims[PRIM_COUNT] = {
#define PRIM(id, name, arity, types, class, meaning)                                               \
    [PRIM_##id] = {#name, arity, TYPES_OF_##types, CLASS_##class, -INFINITY, INFINITY},
#define FUNCTION(id, name, strip, text, low, high, ...)                                            \
    [PRIM_##id] = {#name, 1, TYPES_FLOATS, CLASS_FUNCTION, low, high},
#define HALF_FUNCTION(id, name, low, high)                                                         \
    [PRIM_##id] = {#name, 1, TYPES_FLOATS, CLASS_FUNCTION, low, high},
#include "core/ops/prims.def"
};

bool etch__prim_gives(prim_id prim, etch_dtype type) {
    if ((unsigned)prim >= PRIM_COUNT || prim == PRIM_INPUT || !etch__is_compute_type(type))
        return false;
    switch ((prim_types)etch__prims[prim].types) {
    case TYPES_ANY: return true;
    case TYPES_NUMBERS: return type != ETCH_BOOL;
    case TYPES_FLOATS: return etch__is_float(type);
    case TYPES_INTEGERS: return etch__is_integer(type);
    case TYPES_BOOLS:
    case TYPES_COMPARED: return type == ETCH_BOOL;
    case TYPES_I64: return type == ETCH_I64;
    case TYPES_F32: return type == ETCH_F32;
    }
    return false;
}
