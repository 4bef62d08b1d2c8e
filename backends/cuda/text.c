/* See text.h. */
#include "backends/cuda/text.h"

#include "backends/cuda/faults.h"
#include "core/base/text.h"

#include <xxhash.h>

const char *const etch__cuda_type_names[ETCH_DTYPE_COUNT] = {
    "float", "double", "unsigned short", "unsigned short", "signed char",
    "short", "int",    "long long",      "unsigned char",  "unsigned char"};

#include "embedded/halves.cuh.inc"
const char *const etch__cuda_half_text = halves_text;
#include "embedded/elements.cuh.inc"

static const char *element_type(etch_dtype d) {
    return d == ETCH_BF16   ? "etch_bf16"
           : d == ETCH_F16  ? "etch_f16"
           : d == ETCH_BOOL ? "etch_bool"
                            : etch__cuda_type_names[d];
}

static char *text_of(const void *ctx) {
    const kernel_text *k = ctx;
    growing_text t = {0};
    etch__text_put(&t, "%s%s%s", etch__cuda_half_text, elements_text,
                   k->checks ? etch__cuda_fault_text : "");
    for (int i = 0; i < k->ndtypes; i++)
        etch__text_put(&t, "typedef %s ETCH_%d;\ntypedef %s VALUE_%d;\n", element_type(k->dtype[i]),
                       i, etch__cuda_type_names[etch__compute_type(k->dtype[i])], i);
    etch__text_put(&t, "%s%s", k->defines, k->body);
    return etch__text_end(&t);
}

etch_status etch__cuda_run_code(cuda_stream *s, const uint8_t *key, int n, const char *symbol,
                                code_source source, const void *ctx, int64_t blocks,
                                unsigned threads, unsigned shared, void *parameter) {
    const char *why;
    cuda_code *code =
        etch__cuda_code(etch__cuda_stream_device(s), key, (size_t)n, symbol, source, ctx, &why);
    if (!code) return etch__cuda_no_code(why);
    unsigned grid[3] = {blocks < 1 << 20 ? (unsigned)blocks : 1 << 20, 1, 1},
             block[3] = {threads, 1, 1};
    cu_function f = etch__cuda_function(code);
    etch_status status = etch__cuda_allow_shared(f, shared);
    if (status == ETCH_OK) status = etch__cuda_launch(s, f, symbol, grid, block, shared, parameter);
    etch__cuda_code_release(code);
    return status;
}

/* The body is in the key by its hash, so that a changed one is not taken from an older cache. */
etch_status etch__cuda_run_text(cuda_stream *s, const kernel_text *k, int64_t blocks,
                                unsigned threads, void *parameter) {
    uint8_t key[416];
    int n = snprintf((char *)key, sizeof key, "text %s %016llx %s", k->symbol,
                     (unsigned long long)XXH3_64bits(k->body, strlen(k->body)), k->defines);
    for (int i = 0; i < k->ndtypes; i++) key[n++] = (uint8_t)k->dtype[i];
    return etch__cuda_run_code(s, key, n, k->symbol, text_of, k, blocks, threads, k->shared,
                               parameter);
}

/* ---- operands ---- */

cuda_stream *etch__cuda_begin(const op_call *call, const etch_tensor *out) {
    cuda_stream *s = etch__cuda_stream(etch__device_index(out->device));
    bool ok = s && etch__cuda_use(s, out->storage) == ETCH_OK;
    for (int i = 0; ok && i < call->nin; i++)
        if (call->in[i] != ETCH_NONE) ok = etch__cuda_use(s, call->in[i]->storage) == ETCH_OK;
    return ok ? s : NULL;
}

static text_kernel text_kernels[OP_COUNT];

static etch_status run_text_kernel(const op_call *call, etch_tensor *const *out) {
    if (!out[0]->numel) return ETCH_OK;
    cuda_stream *s = etch__cuda_begin(call, out[0]);
    return s ? text_kernels[call->op](s, call, out[0]) : etch__tls.status;
}

void etch__cuda_register_text(op_id op, text_kernel kernel) {
    text_kernels[op] = kernel;
    etch__cuda_register(op, run_text_kernel);
}

void etch__cuda_dims(text_dims *d, const etch_tensor *t) {
    d->n = t->ndim;
    memcpy(d->size, t->size, sizeof d->size);
    memcpy(d->stride, t->stride, sizeof d->stride);
}
