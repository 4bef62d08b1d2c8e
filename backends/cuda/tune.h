/* Choices made by timing candidates on the device (ETCH_MODE_MAX_AUTOTUNE): the layout of a
 * generated kernel, the algorithm of a relaxed product. A choice never changes more than its owner
 * may: that of a kernel no bit, that of a product what ETCH_RELAXED allows. */
#ifndef ETCH_BACKENDS_CUDA_TUNE_H
#define ETCH_BACKENDS_CUDA_TUNE_H

#include "backends/cuda/code.h"
#include "jit/cuda/cuda_source.h"

/* ---- kept choices, by a key of the caller's and the device; in memory and on disk ---- */

enum { CHOICE_MAX = 96 }; /* bytes */

/* Whether there is a choice of this size. It may have been made by another build: check it. */
bool etch__cuda_choice_find(const cuda_device *d, const void *key, size_t n, void *choice,
                            size_t size);
void etch__cuda_choice_keep(const cuda_device *d, const void *key, size_t n, const void *choice,
                            size_t size);

/* The class of a size: sizes of one class share their choices. */
static inline uint8_t etch__cuda_size_class(int64_t n) {
    return n > 1 ? (uint8_t)(64 - __builtin_clzll((uint64_t)n - 1)) : 0;
}

/* ---- timing ---- */

typedef struct tune_set {
    const char *name; /* for the log */
    int n;
    void *ctx;
    etch_status (*issue)(void *ctx,
                         int candidate); /* to the stream; may happen any number of times */
    void (*describe)(void *ctx, int candidate, char *text, size_t room);
} tune_set;

/* The fastest candidate, or 0 where none is clearly faster than that one. -1: a call failed, the
 * set is given up; the thread's error is left as it was. */
int etch__cuda_fastest(cuda_stream *s, const tune_set *set);
/* Whether work of the stream runs now: nothing can be timed while it is being recorded. */
bool etch__cuda_can_time(cuda_stream *s);

/* ---- layouts of a kernel ---- */

typedef struct tuned_layout {
    cuda_variant variant;
    uint32_t blocks; /* of the grid at most; 0: as many as have work */
} tuned_layout;

/* The kernel's code for the variant (backends/cuda/kernel.c); where an imported file gives the code
 * and lacks that one, *v is another that is right as well. */
cuda_code *etch__cuda_kernel_code(cuda_device *d, const loop_kernel *k, cuda_variant *v,
                                  const char **why);
cuda_shape etch__cuda_tuned_shape(const loop_kernel *k, const tuned_layout *l, const int64_t *dims);

/* Whether a layout was chosen before for the kernel with sizes like these, where it would otherwise
 * have the variant `first`. */
bool etch__cuda_layout_find(const cuda_device *d, const loop_kernel *k, const int64_t *dims,
                            const cuda_variant *first, tuned_layout *out);
/* Times layouts with these arguments, of which none is changed other than by one launch, and keeps
 * the best. false: `first` is to stay. */
bool etch__cuda_layout_tune(cuda_stream *s, const loop_kernel *k, const int64_t *dims,
                            const cuda_variant *first, void *const *args, const uint64_t *cells,
                            tuned_layout *out);

#endif
