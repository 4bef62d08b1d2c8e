/* Kernels of our own as CUDA C text: types and conversions that stand before each, launching, and
 * what the kernels that move elements about share. */
#ifndef ETCH_BACKENDS_CUDA_TEXT_H
#define ETCH_BACKENDS_CUDA_TEXT_H

#include "backends/cuda/ops.h"
#include "core/dispatch/place.h"

/* The C types of elements in memory and of values (by compute type), and the device functions
 * load_half(h, bf16) and store_half(f, bf16). */
extern const char *const etch__cuda_type_names[ETCH_DTYPE_COUNT];
extern const char *const etch__cuda_half_text;

/* One kernel. Before the body stand the types etch_bf16, etch_f16, etch_bool, the functions
 * value(e) (an element as its compute type) and put(&e, v) (rounded once), and for each dtype the
 * types ETCH_<n> of its elements and VALUE_<n> of its values, and then the defines. */
typedef struct kernel_text {
    const char *symbol, *body; /* they live for ever */
    int ndtypes;
    etch_dtype dtype[4];
    bool checks;       /* the body uses what etch__cuda_fault_text defines */
    unsigned shared;   /* bytes of shared memory that the launch gives it */
    char defines[256]; /* all else that the code depends on, as lines "#define A 1" */
} kernel_text;
etch_status etch__cuda_run_text(cuda_stream *s, const kernel_text *k, int64_t blocks,
                                unsigned threads, void *parameter);

/* The stream of the tensor's device, with all operands in use on it. NULL: the error is set. */
cuda_stream *etch__cuda_begin(const op_call *call, const etch_tensor *out);

/* A kernel for a result that has elements, on the stream of its device, all operands in use on
 * it. */
typedef etch_status (*text_kernel)(cuda_stream *s, const op_call *call, etch_tensor *out);
void etch__cuda_register_text(op_id op, text_kernel kernel);

/* Sizes and strides of up to 8 dimensions as kernels take them. */
typedef struct text_dims {
    int64_t n, size[ETCH_MAX_DIMS], stride[ETCH_MAX_DIMS];
} text_dims;
void etch__cuda_dims(text_dims *d, const etch_tensor *t);

#endif
