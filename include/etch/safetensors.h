/* Named tensors in files of the format safetensors, as the public package of that name reads and
 * writes them: 8 bytes with the length of the header (little endian), the header (JSON: a name to
 * dtype, sizes and place; texts under "__metadata__"), the elements, row-major, one tensor behind
 * the other without holes.
 *
 * Dtypes: F32 F64 BF16 F16 I8 I16 I32 I64 U8 BOOL; others are the error unsupported. Tensors of any
 * device and strides can be written, all devices' files are the same. */
#ifndef ETCH_SAFETENSORS_H
#define ETCH_SAFETENSORS_H

#include <etch/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct etch_named_tensor {
    const char *name;
    etch_tensor *tensor;
} etch_named_tensor;

typedef struct etch_named_text {
    const char *name, *text;
} etch_named_text;

/* Writes n tensors and, beside them, ntexts texts. Names and texts are UTF-8, names differ and none
 * is "__metadata__"; else invalid_argument. The file is written under another name in its folder,
 * made durable (fsync), and then renamed: whatever happens, path has the old contents or the new
 * ones. Wider dtypes come first, so that every tensor is aligned. Reads data: a graph break. */
ETCH_API etch_status etch_safetensors_save(const char *path, const etch_named_tensor *tensors,
                                           int n, const etch_named_text *texts, int ntexts);

/* An open file. Its tensors are read when they are asked for. */
typedef struct etch_safetensors etch_safetensors;

/* Opens a file and checks all of its header: sizes that fit their bytes, no holes, no overlaps,
 * nothing beyond the end, names once each, headers up to 100 MB. NULL with the error io (it cannot
 * be read, or is no regular file), format (what is wrong is said), unsupported (a dtype that there
 * is not here, more than 8 dimensions), out_of_memory. */
ETCH_API etch_safetensors *etch_safetensors_load(const char *path);
/* Closes it. NULL is a no-op. */
ETCH_API void etch_safetensors_free(etch_safetensors *f);

/* What it has, in the order of the header; names and texts live as long as f. For a number that is
 * out of range: NULL, ETCH_DTYPE_COUNT, no sizes. */
ETCH_API int etch_safetensors_count(const etch_safetensors *f);
ETCH_API const char *etch_safetensors_name(const etch_safetensors *f, int i);
ETCH_API etch_dtype etch_safetensors_dtype(const etch_safetensors *f, int i);
ETCH_API etch_shape etch_safetensors_sizes(const etch_safetensors *f, int i);
/* The number of a tensor; -1 and no error where there is none of that name. */
ETCH_API int etch_safetensors_find(const etch_safetensors *f, const char *name);
/* The text of that name, or NULL and no error. */
ETCH_API const char *etch_safetensors_text(const etch_safetensors *f, const char *name);

/* A new tensor with the elements of the i-th, on the thread's current device, owned by the
 * innermost scope. The error format where a bool is neither 0 nor 1, io where the file has become
 * shorter. */
ETCH_API etch_tensor *etch_safetensors_tensor(const etch_safetensors *f, int i);

#ifdef __cplusplus
}
#endif
#endif
