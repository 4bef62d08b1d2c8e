/* Loop kernels on a device: the launchers of native plans. */
#include "backends/cuda/launch.h"

/* The kernel, and how it is launched; where an argument turns out not to be aligned, a second variant
 * that does without is made and kept. */
struct launcher {
    int device;
    cuda_code *code, *_Atomic unaligned;
    cuda_variant variant;
    cuda_shape shape, unaligned_shape;
    uint32_t wide; /* arguments that must be aligned for the first variant */
    loop_kernel k;
    int64_t dims[LOOP_MAX_AXES * (LOOP_MAX_ACCESSES + 1)];
};

typedef struct source_ctx {
    const loop_kernel *k;
    const cuda_variant *v;
} source_ctx;

static char *source_of(const void *ctx) {
    const source_ctx *c = ctx;
    return etch__cuda_source(c->k, c->v);
}

enum { KERNEL_BYTES = 8192 };

static cuda_code *code_for(cuda_device *d, const loop_kernel *k, const cuda_variant *v,
                           const char **why) {
    uint8_t key[KERNEL_BYTES + sizeof *v];
    char symbol[CUDA_SYMBOL_MAX];
    size_t n = etch__loop_serialise(k, key, KERNEL_BYTES);
    if (n > KERNEL_BYTES) {
        *why = "a kernel is too large";
        return NULL;
    }
    memcpy(key + n, v, sizeof *v);
    /* The name is not among the kernel's bytes: equal kernels of other names share code. */
    loop_kernel plain = *k;
    snprintf(plain.name, sizeof plain.name, "kernel");
    etch__cuda_symbol(&plain, symbol);
    source_ctx ctx = {&plain, v};
    return etch__cuda_code(d, key, n + sizeof *v, symbol, source_of, &ctx, why);
}

static void release(launcher *l) {
    if (!l) return;
    etch__cuda_code_release(l->code);
    etch__cuda_code_release(l->unaligned);
    etch__free(l);
}

static launcher *prepare_one(cuda_device *d, const lowered *low, uint32_t aligned,
                             const char **why) {
    launcher *l = etch__calloc(1, sizeof *l);
    if (!l) return NULL;
    int naxes = low->k.npar + low->k.nred;
    l->device = d->index;
    l->k = low->k;
    memcpy(l->dims, low->dims, sizeof *l->dims * (size_t)(naxes * (low->k.naccesses + 1)));
    l->variant = etch__cuda_choose(&l->k, l->dims, aligned);
    l->shape = etch__cuda_shape(&l->k, &l->variant, l->dims);
    if (l->variant.vector > 1)
        for (int i = 0; i < l->k.naccesses; i++) l->wide |= 1u << i;
    if ((l->code = code_for(d, &l->k, &l->variant, why))) return l;
    release(l);
    return NULL;
}

static bool prepare(int device, const lowered *const *low, const uint32_t *aligned, int n,
                    launcher **out, const char **why) {
    cuda_device *d = etch__cuda_enter(etch__device_index(device));
    bool ok = d != NULL;
    *why = "out of memory";
    for (int i = 0; i < n; i++) out[i] = NULL;
    for (int i = 0; ok && i < n; i++) ok = (out[i] = prepare_one(d, low[i], aligned[i], why));
    for (int i = 0; !ok && i < n; i++) release(out[i]), out[i] = NULL;
    if (ok) etch__counters.kernels += n;
    return ok;
}

/* The variant for arguments that are not aligned, made at its first use. */
static etch_status prepare_unaligned(launcher *l) {
    const char *why = "";
    cuda_variant v = l->variant;
    v.vector = 1, v.hold = 0;
    cuda_device *d = etch__cuda_enter(l->device);
    cuda_code *c = d ? code_for(d, &l->k, &v, &why) : NULL, *none = NULL;
    if (!c) return etch__error(ETCH_ERR_COMPILE, "%s: %s", l->k.name, why);
    l->unaligned_shape = etch__cuda_shape(&l->k, &v, l->dims);
    if (!atomic_compare_exchange_strong(&l->unaligned, &none, c)) etch__cuda_code_release(c);
    return ETCH_OK;
}

static bool all_aligned(const launcher *l, void *const *args) {
    uintptr_t bits = 0;
    for (uint32_t wide = l->wide; wide; wide &= wide - 1)
        bits |= (uintptr_t)args[__builtin_ctz(wide)];
    return bits % 16 == 0;
}

etch_status etch__cuda_resolve(launcher *l, void *const *args, const uint64_t *cells,
                               cuda_launch *out) {
    const cuda_code *code = l->code;
    out->shape = &l->shape;
    if (unlikely(!all_aligned(l, args))) {
        if (!l->unaligned && prepare_unaligned(l) != ETCH_OK) return etch__tls.status;
        code = l->unaligned, out->shape = &l->unaligned_shape;
    }
    out->function = etch__cuda_function(code);
    size_t n = etch__cuda_args_size(&l->k);
    out->bytes = (n + 7) & ~(size_t)7;
    if (out->bytes) out->parameter[out->bytes / 8 - 1] = 0;
    etch__cuda_args_fill(&l->k, args, l->dims, cells, out->parameter);
    return ETCH_OK;
}

static etch_status launch(launcher *l, void *const *args, const uint64_t *cells) {
    cuda_launch to;
    cuda_stream *s = etch__cuda_stream(l->device);
    if (unlikely(!s || etch__cuda_resolve(l, args, cells, &to) != ETCH_OK)) return etch__tls.status;
    return etch__cuda_launch(s, to.function, l->k.name, to.shape->grid, to.shape->block,
                             to.shape->shared, to.parameter);
}

static etch_status use(int device, etch_storage *storage) {
    cuda_stream *s = etch__cuda_stream(etch__device_index(device));
    return s ? etch__cuda_use(s, storage) : etch__tls.status;
}

static const jit_target target = {
    .whole_new = etch__cuda_whole_new,
    .whole_free = etch__cuda_whole_free,
    .whole_launch = etch__cuda_whole_launch,
    .prepare = prepare,
    .release = release,
    .launch = launch,
    .can_record = etch__cuda_issues,
    .graph_new = etch__cuda_graph_new,
    .graph_free = etch__cuda_graph_free,
    .graph_fits = etch__cuda_graph_fits,
    .graph_kernel = etch__cuda_graph_kernel,
    .graph_call_begin = etch__cuda_graph_call_begin,
    .graph_call_end = etch__cuda_graph_call_end,
    .graph_launch = etch__cuda_graph_launch,
    .use = use,
};

__attribute__((constructor)) static void register_target(void) { etch__target_register(&target); }
