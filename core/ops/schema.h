/* The operators' schema strings, parsed: what the boxed call, errors and tests need of them. */
#ifndef ETCH_CORE_OPS_SCHEMA_H
#define ETCH_CORE_OPS_SCHEMA_H

#include "core/ops/op.h"

typedef enum arg_type {
    ARG_TENSOR,
    ARG_TENSOR_OPT, /* absent: ETCH_NONE */
    ARG_TENSORS,
    ARG_SCALAR,
    ARG_INT,
    ARG_INT_OPT,
    ARG_INTS,
    ARG_INTS_OPT,
    ARG_BOOL,
    ARG_DTYPE,
    ARG_DTYPE_OPT,
    ARG_TYPE_COUNT
} arg_type;

typedef struct schema_arg {
    char name[28];
    uint8_t type; /* arg_type */
    bool keyword_only;
    bool has_default;
    bool written;      /* "(a!)" */
    bool run_time;     /* an integer that is no axis: takes other values in a dynamic trace */
    etch_scalar value; /* the default; INT of the attribute's word for all but Scalar */
} schema_arg;

typedef struct op_schema {
    int nargs; /* 0 for a schema that does not parse: the tests see to it that there is none */
    schema_arg args[SCHEMA_MAX_ARGS];
} op_schema;

/* Parses "name(Tensor self, *, Scalar alpha=1) -> Tensor" into s, which is all zero; false if it
 * does not parse (a bad schema may leave s half filled). */
bool etch__schema_parse(const char *schema, op_schema *s);
/* Of a custom operator, before it is called the first time. */
void etch__schema_set(op_id op, const op_schema *s);
/* Never NULL; lives for ever. */
const op_schema *etch__schema(op_id op);
/* Brings a boxed call into normal form and hands it to use; its status, or that of a failure to. */
etch_status etch__unbox(const etch_op *op, const etch_value *args, int nargs, const void *site,
                        etch_status (*use)(void *ctx, const op_call *call), void *ctx);
/* "Tensor", "int[]?" and so on. */
const char *etch__arg_type_name(arg_type type);

#endif
