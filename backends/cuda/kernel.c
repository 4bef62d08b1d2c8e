/* A loop kernel as loaded device code: its source, and the key under which that is kept. */
#include "backends/cuda/tune.h"

typedef struct source_ctx {
    const loop_kernel *k;
    const cuda_variant *v;
} source_ctx;

static char *source_of(const void *ctx) {
    const source_ctx *c = ctx;
    return etch__cuda_source(c->k, c->v);
}

enum { KERNEL_BYTES = 8192 };

cuda_code *etch__cuda_kernel_code(cuda_device *d, const loop_kernel *k, const cuda_variant *v,
                                  const char **why) {
    uint8_t key[KERNEL_BYTES + sizeof *v];
    char symbol[LOOP_SYMBOL_MAX];
    size_t n = etch__loop_serialise(k, key, KERNEL_BYTES);
    if (n > KERNEL_BYTES) {
        *why = "a kernel is too large";
        return NULL;
    }
    memcpy(key + n, v, sizeof *v);
    /* The name is not among the kernel's bytes: equal kernels of other names share code. */
    loop_kernel plain = *k;
    snprintf(plain.name, sizeof plain.name, "kernel");
    etch__loop_symbol(&plain, symbol);
    source_ctx ctx = {&plain, v};
    return etch__cuda_code(d, key, n + sizeof *v, symbol, source_of, &ctx, why);
}
