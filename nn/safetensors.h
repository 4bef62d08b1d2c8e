/* An open file of named tensors, for the files of this folder that read and write it. */
#ifndef ETCH_NN_SAFETENSORS_H
#define ETCH_NN_SAFETENSORS_H

#include <etch/safetensors.h>

#include "nn/json.h"

/* The longest header, in bytes: the limit of the public package. */
#define MAX_HEADER 100000000

typedef struct stored {
    char *name;
    etch_dtype dtype;
    etch_shape sizes;
    int64_t from, to; /* bytes behind the header */
} stored;

typedef struct stored_text {
    char *name, *text;
} stored_text;

struct etch_safetensors {
    char *path;
    int fd;
    int64_t data;  /* where the elements begin */
    int64_t bytes; /* of all elements */
    stored *tensors;
    int ntensors;
    stored_text *texts;
    int ntexts;
    int *by_name; /* numbers of the tensors in the order of their names */
};

/* "F32"; NULL where the format has none. */
const char *etch__stored_dtype(etch_dtype dtype);
etch_dtype etch__dtype_stored(const char *name);

/* Whether the i-th tensor of the file has the sizes and the dtype of t; else the error of that
 * function. */
bool etch__fits_stored(const char *function, const etch_safetensors *f, int i,
                       const etch_tensor *t);

/* Reads the header's n bytes into f, whose bytes are known. false with the error set. */
bool etch__read_header(etch_safetensors *f, const char *text, size_t n);

#endif
