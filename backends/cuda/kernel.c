/* A loop kernel as loaded device code: its source, and the key under which that is kept. */
#include "backends/cuda/tune.h"
#include "jit/store/pack.h"

typedef struct source_ctx {
    const loop_kernel *k;
    const cuda_variant *v;
} source_ctx;

static char *source_of(const void *ctx) {
    const source_ctx *c = ctx;
    return etch__cuda_source(c->k, c->v);
}

enum { KERNEL_BYTES = 8192, PLAIN_TILE = 3 };

static cuda_code *code_of(cuda_device *d, const loop_kernel *k, const cuda_variant *v,
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

/* Right for all sizes and addresses that indices of these bits reach, if not the fastest. */
static cuda_variant plain_variant(const cuda_variant *v, uint8_t index_bits) {
    return (cuda_variant){
        .index_bits = index_bits, .vector = 1, .tile = PLAIN_TILE, .tested = v->tested};
}

/* A file has the plain variants along with each that it needs. */
static void collect_plain(cuda_device *d, const loop_kernel *k, const cuda_variant *v) {
    KEEP_ERROR;
    for (uint8_t bits = 32; bits <= (etch__pack.sizes ? 64 : 32); bits *= 2) {
        const char *why;
        cuda_variant plain = plain_variant(v, bits);
        if (bits >= v->index_bits) etch__cuda_code_release(code_of(d, k, &plain, &why));
    }
}

/* What the file has: the variant, or a plain one. */
static cuda_code *given_code(cuda_device *d, const loop_kernel *k, cuda_variant *v,
                             const char **why) {
    pack_use before = etch__pack_enter((pack_use){.pack = etch__pack_given(), .only = true});
    cuda_variant first = *v;
    cuda_code *c = code_of(d, k, v, why);
    for (uint8_t bits = first.index_bits; !c && bits <= 64; bits *= 2) {
        *v = plain_variant(&first, bits);
        c = code_of(d, k, v, why);
    }
    etch__pack_leave(before);
    return c;
}

cuda_code *etch__cuda_kernel_code(cuda_device *d, const loop_kernel *k, cuda_variant *v,
                                  const char **why) {
    if (unlikely(etch__pack_given() != NULL)) {
        cuda_variant wanted = *v;
        cuda_code *c = given_code(d, k, v, why);
        if (c || etch__pack.only) return c;
        *v = wanted;
    }
    cuda_code *c = code_of(d, k, v, why);
    if (unlikely(c && etch__pack_collects())) collect_plain(d, k, v);
    return c;
}
