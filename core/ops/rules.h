/* The numbers of the rules of core/ops/rules.def, and what inference shares with other files.
 *
 * DRULE_x says how a call's dtypes come about, SRULE_x its sizes and strides. A result that is no
 * view is contiguous, row-major; that of attention may have its heads inside of its queries. */
#ifndef ETCH_CORE_OPS_RULES_H
#define ETCH_CORE_OPS_RULES_H

#include "core/ops/op.h"

typedef enum dtype_rule {
#define DTYPE_RULE(id, function) DRULE_##id,
#include "core/ops/rules.def"
    DRULE_COUNT
} dtype_rule;

typedef enum shape_rule {
#define SHAPE_RULE(id, function) SRULE_##id,
#define VIEW_RULE(id, function) SRULE_##id,
#include "core/ops/rules.def"
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
/* Of pooling and its backward operator (core/ops/infer_pool.c). */
bool etch__pool_rule(const op_call *call, tensor_meta *out);
bool etch__pool_backward_rule(const op_call *call, tensor_meta *out);

/* Of attention and its backward operators (core/ops/infer_attention.c). */
bool etch__attention_rule(const op_call *call, tensor_meta *out);
bool etch__attention_backward_rule(const op_call *call, tensor_meta *out);
bool etch__attention_kept_rule(const op_call *call, tensor_meta *out);

/* The numbers of a convolution, from its attributes; false with the error set. */
typedef struct conv_numbers {
    int64_t stride[2], padding[2], dilation[2], groups;
} conv_numbers;
bool etch__conv_numbers(const op_call *call, conv_numbers *c);

/* The numbers of a pooling operator, likewise. */
typedef struct pool_numbers {
    int64_t kernel[2], stride[2], padding[2], dilation[2], divisor; /* 0: by the elements */
    bool ceil, counts_padding;
} pool_numbers;
bool etch__pool_numbers(const op_call *call, pool_numbers *p);

/* ---- internal to inference ---- */

typedef struct call_dtypes {
    etch_dtype compute, result; /* of INPLACE: before it is brought into the dtype of in[0] */
} call_dtypes;
typedef bool (*dtype_fn)(const op_call *call, call_dtypes *d);
extern const dtype_fn etch__dtype_rules[DRULE_COUNT];

/* Of weights of few bits (core/ops/infer_quantized.c). */
bool etch__quantize_scales_dtypes(const op_call *call, call_dtypes *d);
bool etch__quantize_weight_dtypes(const op_call *call, call_dtypes *d);
bool etch__dequantize_dtypes(const op_call *call, call_dtypes *d);
bool etch__linear_q_dtypes(const op_call *call, call_dtypes *d);
bool etch__quantize_scales_sizes(const op_call *call, tensor_meta *out);
bool etch__quantize_weight_sizes(const op_call *call, tensor_meta *out);
bool etch__dequantize_sizes(const op_call *call, tensor_meta *out);
bool etch__linear_q_sizes(const op_call *call, tensor_meta *out);

/* The class word of an arange that cannot be (core/ops/op_class.c). */
enum { ARANGE_STEP_ZERO = -1, ARANGE_DIRECTION = -2, ARANGE_NOT_FINITE = -3 };
/* A list of the attributes as a number for each dimension of a plane: one or two values, which *at
 * goes behind; where `may_lack`, none are zeros. False with the error set. */
bool etch__take_pair(const op_call *call, const int64_t **at, const char *name, int64_t least,
                     bool may_lack, int64_t pair[2]);
/* Wraps a negative dimension number; false with dim_range set. */
bool etch__wrap_dim(const op_call *call, int64_t dim, int ndim, int *out);
/* Sets an error that starts with the operator's name; returns false. */
bool etch__infer_fail(const op_call *call, etch_status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Fills sizes, strides and offset of a VIEW (core/ops/infer_view.c). */
typedef bool (*shape_fn)(const op_call *call, tensor_meta *out);
extern const shape_fn etch__view_rules[SRULE_COUNT];
/* The same for results that are no views (core/ops/infer_shape.c). */
extern const shape_fn etch__shape_rules[SRULE_COUNT];
bool etch__reduce_rule(const op_call *call, tensor_meta *out);
/* Gives out's sizes row-major strides; false with overflow set. */
static inline bool etch__row_major_result(const op_call *call, tensor_meta *out) {
    out->offset = 0;
    if (unlikely(etch__row_major(out->ndim, out->size, out->stride) < 0))
        return etch__infer_fail(call, ETCH_ERR_OVERFLOW,
                                "a tensor of sizes %s does not fit in 63 bits of bytes",
                                etch__shape_text(out->ndim, out->size).s);
    return true;
}

/* Whether an operator that writes by index adds to what is there. */
bool etch__index_adds(const op_call *call);

#endif
