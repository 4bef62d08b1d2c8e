/* The names of the rules in core/ops/ops.def, and what inference shares with other files.
 *
 * DRULE_x says how a call's dtypes come about (core/ops/infer_dtype.c), SRULE_x its sizes and
 * strides (core/ops/infer_shape.c, core/ops/infer_view.c); there is one function a rule. A result
 * that is no view is contiguous, row-major. */
#ifndef ETCH_CORE_OPS_RULES_H
#define ETCH_CORE_OPS_RULES_H

#include "core/ops/op.h"

typedef enum dtype_rule {
    DRULE_NONE,       /* COMPOSITE: never inferred */
    DRULE_ATTR,       /* the dtype attribute, absent: the default dtype */
    DRULE_ATTR_FLOAT, /* the same, floats only */
    DRULE_FILL,       /* the dtype attribute, absent: by the kind of the scalar */
    DRULE_ARANGE,     /* the dtype attribute, absent: i64, with a real scalar the default dtype */
    DRULE_PROMOTE,    /* ATen's promotion by categories */
    DRULE_PROMOTE_NOBOOL, /* the same; bools alone are an error, in a difference any bool is */
    DRULE_SQUARE,         /* of bools i64, else that of the operand */
    DRULE_PROMOTE_FLOAT,  /* the same; integers become the default dtype */
    DRULE_COMPARE,        /* computes in the promoted dtype, gives bool */
    DRULE_WHERE,          /* a bool condition, then PROMOTE over the other two */
    DRULE_CAST,           /* the dtype attribute, absent: that of in[0] */
    DRULE_SAME,           /* all inputs have one dtype, the result's */
    DRULE_COPY,           /* the dtype of in[0], whatever comes in */
    DRULE_SUM,            /* the dtype attribute, absent: integers and bool become i64 */
    DRULE_MEAN,           /* the dtype attribute, absent: that of in[0]; floats only */
    DRULE_INDEX,          /* i64 */
    DRULE_FLOAT,          /* PROMOTE, floats only */
    DRULE_BITS,           /* PROMOTE, integers and bool only */
    DRULE_INTEGER,        /* PROMOTE, integers only */
    DRULE_CLAMP,          /* PROMOTE_NOBOOL with all scalars as operands */
    DRULE_MASKED_FILL,    /* that of in[0], with a bool mask as in[1] */
    DRULE_INDEXED,        /* that of in[0], with integers as in[1]; in[2] has the same */
    DRULE_SOFTMAX,        /* floats; a half type may become f32 by the last attribute */
    DRULE_LAYER_NORM,     /* floats; weight and bias of the same dtype, or f32 beside a half type */
    DRULE_CONVOLUTION,    /* floats, all operands of one dtype */
    DRULE_COUNT
} dtype_rule;

typedef enum shape_rule {
    SRULE_NONE, /* COMPOSITE: never inferred */
    SRULE_SIZE,
    SRULE_ARANGE,
    SRULE_BROADCAST,
    SRULE_INPLACE, /* in[0], to which the others broadcast */
    SRULE_REDUCE_ALL,
    SRULE_REDUCE_DIMS,
    SRULE_REDUCE_DIM,
    SRULE_MM,
    SRULE_ADDMM,
    SRULE_MV,
    SRULE_DOT,
    SRULE_BMM,
    SRULE_VIEW,
    SRULE_TRANSPOSE,
    SRULE_T,
    SRULE_PERMUTE,
    SRULE_SLICE,
    SRULE_SELECT,
    SRULE_EXPAND,
    SRULE_SQUEEZE,
    SRULE_SQUEEZE_DIM,
    SRULE_UNSQUEEZE,
    SRULE_UNFOLD,
    SRULE_INDEX_SELECT,
    SRULE_GATHER,
    SRULE_TAKE,
    SRULE_SCATTER, /* this and the next two: in[0], as a new tensor or in place */
    SRULE_INDEX_COPY,
    SRULE_INDEX_PUT,
    SRULE_DIAGONAL,
    SRULE_AS_STRIDED,
    SRULE_CAT,
    SRULE_ALONG_DIM, /* the sizes of in[0], which has the dimension */
    SRULE_MATRICES,  /* the sizes of in[0], at least 2 dimensions */
    SRULE_SOFTMAX,
    SRULE_LAYER_NORM,
    SRULE_CONVOLUTION,
    SRULE_COUNT
} shape_rule;

/* Sizes with at most one -1 for `numel` elements, resolved into size[]; false with the error set
 * (in the name `what`). For view and reshape. */
bool etch__infer_size(const void *site, const char *what, int64_t numel, int n,
                      const int64_t *wanted, int64_t *size);
/* Strides under which the elements of a tensor (ndim, size, stride) can be seen as sizes to[0..n)
 * of equal number; false when a copy is needed (no error is set). */
bool etch__view_strides(int ndim, const int64_t *size, const int64_t *stride, int n,
                        const int64_t *to, int64_t *to_stride);

/* Shape rules of operators with an index tensor (core/ops/infer_index.c); a result that is no view
 * and not in place still wants row-major strides. */
bool etch__index_rule(const op_call *call, tensor_meta *out);

/* The numbers of a convolution, from its attributes; false with the error set. */
typedef struct conv_numbers {
    int64_t stride[2], padding[2], dilation[2], groups;
} conv_numbers;
bool etch__conv_numbers(const op_call *call, conv_numbers *c);

/* ---- internal to inference ---- */

typedef struct call_dtypes {
    etch_dtype compute, result; /* of INPLACE: before it is brought into the dtype of in[0] */
} call_dtypes;
typedef bool (*dtype_fn)(const op_call *call, call_dtypes *d);
extern const dtype_fn etch__dtype_rules[DRULE_COUNT];

/* Fills sizes, strides and offset of a VIEW (core/ops/infer_view.c). */
typedef bool (*shape_fn)(const op_call *call, tensor_meta *out);
extern const shape_fn etch__view_rules[SRULE_COUNT];
/* The same for results that are no views (core/ops/infer_shape.c). */
extern const shape_fn etch__shape_rules[SRULE_COUNT];
bool etch__reduce_rule(const op_call *call, tensor_meta *out);
/* Gives out's sizes row-major strides; false with overflow set. */
bool etch__row_major_result(const op_call *call, tensor_meta *out);
/* The class word of an arange that cannot be (core/ops/op_class.c). */
enum { ARANGE_STEP_ZERO = -1, ARANGE_DIRECTION = -2, ARANGE_NOT_FINITE = -3 };
/* Wraps a negative dimension number; false with dim_range set. */
bool etch__wrap_dim(const op_call *call, int64_t dim, int ndim, int *out);
/* Sets an error that starts with the operator's name; returns false. */
bool etch__infer_fail(const op_call *call, etch_status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Whether an operator that writes by index adds to what is there. */
bool etch__index_adds(const op_call *call);

#endif
