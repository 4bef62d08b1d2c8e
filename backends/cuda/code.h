/* Device code: CUDA C to a loaded function, by way of memory, disk cache and NVRTC. */
#ifndef ETCH_BACKENDS_CUDA_CODE_H
#define ETCH_BACKENDS_CUDA_CODE_H

#include "backends/cuda/runtime.h"

typedef struct cuda_code cuda_code;

/* Source of a piece of code, made only when it is neither in memory nor on disk; etch__free it. */
typedef char *(*code_source)(const void *ctx);

/* A key for code that is named by its text: length and a 128-bit hash, twice. */
void etch__cuda_text_key(const char *text, uint8_t key[40]);

/* The function `symbol` of the code that `key` (n bytes, all that the source depends on) names,
 * loaded on the device. NULL: *why (thread-local) says what failed; it is empty where the thread's
 * error does. Counted; the table holds one count. */
cuda_code *etch__cuda_code(cuda_device *d, const uint8_t *key, size_t n, const char *symbol,
                           code_source source, const void *ctx, const char **why);
/* Whether this thread only looks: code that is neither in memory nor on disk is not compiled, and
 * *why stays empty. Returns what held before. */
bool etch__cuda_look(bool on);
/* task(ctx, i) for all i < n, on up to etch_num_threads() threads made for it: NVRTC compiles as
 * many programs at once. */
void etch__cuda_at_once(int n, void (*task)(void *ctx, int i), void *ctx);
/* To be launched now. */
cu_function etch__cuda_function(cuda_code *c);
void etch__cuda_code_retain(cuda_code *c);
void etch__cuda_code_release(cuda_code *c);

/* The error of an operator whose kernel is not there. */
static inline etch_status etch__cuda_no_code(const char *why) {
    if (*why) return etch__error(ETCH_ERR_COMPILE, "%s", why);
    return etch__tls.status ? etch__tls.status : ETCH_ERR_OUT_OF_MEMORY;
}

#endif
