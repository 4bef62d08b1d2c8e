/* The scalar primitives: their numbers, what core/ops/prims.def says of each, and the instructions
 * that programs and kernels are made of. Libetch and etch-jit share this. */
#ifndef ETCH_CORE_OPS_PRIMS_H
#define ETCH_CORE_OPS_PRIMS_H

#include "core/tensor/dtype.h"

typedef enum prim_id {
#define PRIM(id, name, arity, types, class, meaning) PRIM_##id,
#include "core/ops/prims.def"
    PRIM_COUNT
} prim_id;
static_assert(PRIM_COUNT <= UINT8_MAX, "an instruction holds the primitive in a byte");

/* What else generated code for the CPU calls: behind the primitives in the table of their strips,
 * backends/cpu/table.h. */
enum {
    STRIP_WIDEN = PRIM_COUNT,
    STRIP_NARROW,
    STRIP_ROUND,
    STRIP_MAX_LANES,
    STRIP_MAX_FOLD,
    STRIP_MIN_LANES,
    STRIP_MIN_FOLD,
    STRIP_COUNT
};

typedef enum prim_types {
    TYPES_ANY,
    TYPES_NUMBERS,
    TYPES_FLOATS,
    TYPES_INTEGERS,
    TYPES_BOOLS,
    TYPES_COMPARED,
    TYPES_I64,
    TYPES_F32
} prim_types;

typedef enum prim_class {
    CLASS_GIVEN,
    CLASS_CONVERSION,
    CLASS_INLINE,
    CLASS_FUNCTION,
    CLASS_EAGER
} prim_class;

typedef struct prim_info {
    const char *name;
    uint8_t arity;
    uint8_t types;   /* prim_types */
    uint8_t class;   /* prim_class */
    float low, high; /* bounds of the result, whatever the operands */
} prim_info;
extern const prim_info etch__prims[PRIM_COUNT];

/* Plain instructions on an element that a call of a FUNCTION costs. */
enum { FUNCTION_COST = 8 };

typedef struct prim_instr {
    uint8_t prim;
    uint8_t type; /* compute type of the result */
    /* CONVERT: the operand's compute type; comparisons: the operands'; SCALAR: the dtype (bf16 and
     * f16 included) that the scalar is rounded to */
    uint8_t from;
    int16_t a, b, c;
    union {
        int64_t i;
        double d;
    } imm;
} prim_instr;

/* Whether the primitive makes a bool of operands of type `from`. */
static inline bool etch__prim_compares(int prim) {
    return prim < PRIM_COUNT && etch__prims[prim].types == TYPES_COMPARED;
}

/* Whether it is a function of the library over strips. */
static inline bool etch__prim_is_function(int prim) {
    return prim < PRIM_COUNT && etch__prims[prim].class == CLASS_FUNCTION;
}

static inline int etch__prim_cost(int prim) {
    return etch__prim_is_function(prim) ? FUNCTION_COST : 1;
}

/* Whether a kernel may compute it with a result of that type; INPUT is a load there. */
bool etch__prim_gives(prim_id prim, etch_dtype type);

#endif
