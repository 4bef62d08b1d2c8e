/* See text.h. */
#include "backends/cuda/text.h"

#include "backends/cuda/faults.h"

#include <xxhash.h>

const char *const etch__cuda_type_names[ETCH_DTYPE_COUNT] = {
    "float", "double", "unsigned short", "unsigned short", "signed char",
    "short", "int",    "long long",      "unsigned char",  "unsigned char"};

const char etch__cuda_half_text[] = {
#include "embedded/halves.cuh.inc"
    0};

static const char types_text[] = {
#include "embedded/elements.cuh.inc"
    0};

static const char *element_type(etch_dtype d) {
    return d == ETCH_BF16   ? "etch_bf16"
           : d == ETCH_F16  ? "etch_f16"
           : d == ETCH_BOOL ? "etch_bool"
                            : etch__cuda_type_names[d];
}

static char *source(const void *ctx) {
    const kernel_text *k = ctx;
    const char *checks = k->checks ? etch__cuda_fault_text : "";
    size_t room = strlen(etch__cuda_half_text) + sizeof types_text + strlen(checks) +
                  strlen(k->body) + 1024,
           at = 0;
    char *text = etch__malloc(room);
    if (!text) return NULL;
    at += (size_t)snprintf(text, room, "%s%s%s", etch__cuda_half_text, types_text, checks);
    for (int i = 0; i < k->ndtypes; i++)
        at += (size_t)snprintf(text + at, room - at, "typedef %s ETCH_%d;\ntypedef %s VALUE_%d;\n",
                               element_type(k->dtype[i]), i,
                               etch__cuda_type_names[etch__compute_type(k->dtype[i])], i);
    snprintf(text + at, room - at, "%s%s", k->defines, k->body);
    return text;
}

/* The body is in the key by its hash, so that a changed one is not taken from an older cache. */
etch_status etch__cuda_run_text(cuda_stream *s, const kernel_text *k, int64_t blocks,
                                unsigned threads, void *parameter) {
    uint8_t key[320];
    const char *why;
    int n = snprintf((char *)key, sizeof key, "text %s %016llx %s", k->symbol,
                     (unsigned long long)XXH3_64bits(k->body, strlen(k->body)), k->defines);
    for (int i = 0; i < k->ndtypes; i++) key[n++] = (uint8_t)k->dtype[i];
    cuda_code *code =
        etch__cuda_code(etch__cuda_stream_device(s), key, (size_t)n, k->symbol, source, k, &why);
    if (!code) return etch__cuda_no_code(why);
    unsigned grid[3] = {blocks < 1 << 20 ? (unsigned)blocks : 1 << 20, 1, 1},
             block[3] = {threads, 1, 1};
    etch_status status =
        etch__cuda_launch(s, etch__cuda_function(code), k->symbol, grid, block, 0, parameter);
    etch__cuda_code_release(code);
    return status;
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

bool etch__cuda_temporary(etch_tensor *t, etch_dtype dtype, int ndim, const int64_t *size,
                          int device) {
    tensor_meta m = {.dtype = (uint8_t)dtype, .ndim = (uint8_t)ndim, .device = (uint8_t)device};
    memcpy(m.size, size, sizeof *size * (size_t)ndim);
    etch__row_major(ndim, m.size, m.stride);
    memset(t, 0, sizeof *t);
    atomic_init(&t->refs, 1);
    t->magic = TENSOR_ALIVE;
    etch__apply_meta(t, &m);
    t->storage = etch__storage_new_on(device, (size_t)(t->numel * etch__item_size(t)));
    return t->storage != NULL;
}

void etch__cuda_drop(etch_tensor *t) {
    if (t->storage) etch__storage_release(t->storage);
    t->storage = NULL;
}

etch_status etch__cuda_copy(etch_tensor *to, etch_tensor *from, const void *site) {
    static const int64_t blocking[] = {0};
    etch_tensor *const in[2] = {to, from};
    op_call copy = {.op = OP_COPY_, .nin = 2, .in = in, .nat = 1, .at = blocking, .site = site};
    return to->numel ? etch__cuda_kernel(&copy, &to) : ETCH_OK;
}

etch_status etch__cuda_dense(etch_tensor *from, etch_tensor *temporary, etch_tensor **dense) {
    temporary->storage = NULL;
    *dense = from;
    if (from->contiguous) return ETCH_OK;
    if (!etch__cuda_temporary(temporary, from->dtype, from->ndim, from->size, from->device))
        return etch__tls.status;
    *dense = temporary;
    return etch__cuda_copy(temporary, from, NULL);
}

void etch__cuda_dims(text_dims *d, const etch_tensor *t) {
    d->n = t->ndim;
    memcpy(d->size, t->size, sizeof d->size);
    memcpy(d->stride, t->stride, sizeof d->stride);
}
