/* Operators: the table's types, the normal form of a call, shape inference.
 *
 * Every call of an operator, typed or boxed, eager or traced, is first brought into one normal
 * form, op_call: input handles, run-time scalars, static attributes. Kernels, inference, recording,
 * matching and serialising see only that. Static attributes are int64 words in schema order:
 *   int, bool, ScalarType: one word;  int?: one word, ETCH_NO_INT when absent;
 *   ScalarType?: one word, -1 when absent;  int[]: count, then the values;  int[]?: -1 if absent;
 *   then one class word for operators with a CLASS_ flag (see op_class).
 * Scalars are the Scalar arguments in schema order, then (seed, offset) as INT for RANDOM. */
#ifndef ETCH_CORE_OPS_OP_H
#define ETCH_CORE_OPS_OP_H

#include "core/tensor/tensor.h"

typedef enum op_kind {
    KIND_POINTWISE,
    KIND_INPLACE,
    KIND_REDUCTION,
    KIND_VIEW,
    KIND_CONTRACTION,
    KIND_CREATION,
    KIND_COMPOSITE,
    KIND_OTHER
} op_kind;

typedef enum op_id {
#define OP(id, ...) OP_##id,
#include "operators.def"
    OP_COUNT, /* custom operators have numbers from here on */
    OP_CAPACITY = 1024
} op_id;

enum {
    OPF_MAY_FAIL = 1,
    OPF_COMMUTES = 2,
    OPF_RANDOM = 4,
    OPF_CLASS_ALPHA = 8,     /* class 1 when the last scalar equals 1, else 0 */
    OPF_CLASS_EXPONENT = 16, /* an exponent_class of the last scalar */
    OPF_CLASS_NUMEL = 32,    /* the number of elements of an arange */
    OPF_EFFECTS = 64,        /* custom: does more than compute its result */
    OPF_SELECTS = 128,       /* the last attribute selects the expression: it is the class */
    OPF_CLASS_FACTORS = 256, /* class 1 when all scalars equal 1, else 0 */
    OPF_CLASS = OPF_CLASS_ALPHA | OPF_CLASS_EXPONENT | OPF_CLASS_NUMEL | OPF_CLASS_FACTORS
};

typedef enum exponent_class {
    EXPONENT_ANY,
    EXPONENT_TWO,
    EXPONENT_THREE,
    EXPONENT_HALF,
    EXPONENT_MINUS_ONE,
    EXPONENT_ONE,
    EXPONENT_ZERO,
    EXPONENT_DOUBLE /* any other that f32 does not hold exactly */
} exponent_class;

#define ETCH_NO_INT INT64_MIN
enum { OP_MAX_SCALARS = 4 };
/* An operator has at most SCHEMA_MAX_ARGS arguments. A list of ints is its count and its values;
 * the user may give any, of which inference says whether they fit. Behind them may be the class. */
enum { SCHEMA_MAX_ARGS = 10, OP_MAX_ATTRS = SCHEMA_MAX_ARGS * (ETCH_MAX_DIMS + 2) + 1 };

typedef struct op_call {
    uint16_t op;
    uint16_t nin;
    uint8_t nsc, nat;
    uint16_t part_of; /* 1 + the composite that was called by the user, 0: none; for messages */
    etch_tensor *const *in;
    const etch_scalar *sc;
    const int64_t *at;
    const void *site; /* the user's return address, for messages; may be NULL */
} op_call;

/* A kernel of one device: computes into out[0..nout), already allocated with the inferred metas
 * (for INPLACE out[0] is in[0]; VIEW and COMPOSITE have no kernels). Inputs are materialised. */
typedef etch_status (*op_kernel)(const op_call *call, etch_tensor *const *out);

/* As etch__infer. */
typedef etch_status (*op_infer)(const op_call *call, tensor_meta *out, etch_dtype *compute_dtype);

struct etch_op {
    uint16_t id;
    uint8_t kind, drule, srule, nout;
    uint16_t flags;
    _Atomic bool overridden; /* its kernel is the user's, on some device: never fused */
    int16_t impl;            /* REDUCTION: reduce_kind, else -1 */
    uint16_t plain;          /* the operator of which this is the one in place, or OP_COUNT */
    op_infer infer;          /* of a registered operator */
    const char *name;        /* "add.Tensor" */
    const char *schema;      /* "add.Tensor(Tensor self, ...) -> Tensor" */
    const char *cfn;
};
typedef struct etch_op op_info;

/* The table's operators, then the registered ones. */
extern op_info etch__ops[OP_CAPACITY];
extern atomic_int etch__op_count;

/* Whether a function of the user computes it: one call of it in the program is one call of that
 * function, so it is never merged, dropped or fused. */
static inline bool etch__op_is_users(op_id op) {
    return op >= OP_COUNT ||
           (unlikely(atomic_load_explicit(&etch__ops[op].overridden, memory_order_relaxed)) &&
            !etch__tls.own_kernels);
}

/* Checks the call's arguments and gives the result's meta; compute_dtype gets the common dtype in
 * which the operator computes (may be NULL). Sets the error and touches nothing on failure. Not for
 * COMPOSITE. For INPLACE the meta is that of in[0]; for VIEW it is over the storage of in[0]. */
etch_status etch__infer(const op_call *call, tensor_meta *out, etch_dtype *compute_dtype);

/* The same for a call that was recorded under that state word, of which the
 * default dtype is part. */
etch_status etch__infer_under(uint64_t state, const op_call *call, tensor_meta *out,
                              etch_dtype *compute_dtype);

/* Sets the error where operand i is no tensor. */
bool etch__bad_operand(const op_call *call, int i);
static inline bool etch__operand_ok(const op_call *call, int i) {
    return etch__usable(call->in[i]) || etch__bad_operand(call, i);
}
/* "other" of operand 1 of add.Tensor. */
const char *etch__operand_name(op_id op, int i);

/* Sets the error where an operand is ETCH_NONE that must not be. */
bool etch__operands_present(const op_call *call);

/* Sets the error where a scalar has a kind that there is not: the user may have made it by hand. */
bool etch__scalar_kinds_ok(const op_call *call);

/* The list of attributes at *at, which moves behind it. */
static inline etch_dims etch__take_dims(const int64_t **at) {
    etch_dims dims = {.n = (int32_t) * (*at)++};
    for (int i = 0; i < dims.n; i++) dims.v[i] = *(*at)++;
    return dims;
}

static inline bool etch__scalar_is(etch_scalar s, int v) {
    return s.kind == ETCH_SCALAR_REAL ? s.d == v : s.i == v;
}

/* The static class word of a call (see OPF_CLASS_*). */
int64_t etch__op_class(const op_info *op, const etch_scalar *sc, int nsc, const int64_t *at);

/* Reduced axes of a REDUCTION call as a bit mask over in[0]'s dimensions, and keepdim. The call has
 * passed etch__infer. */
void etch__reduce_axes(const op_call *call, uint32_t *mask, bool *keepdim);
/* The same of a call with these attributes on a tensor of ndim dimensions. */
void etch__reduced_axes(op_id op, int ndim, const int64_t *at, uint32_t *mask, bool *keepdim);

typedef enum reduce_kind {
#define FOLD(id, ...) REDUCE_##id,
#define DERIVED(id, fold) REDUCE_##id,
#include "core/ops/reductions.def"
    REDUCE_COUNT
} reduce_kind;

#endif
