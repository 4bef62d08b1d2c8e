/* See lend.h. */
#include "core/lend.h"

#include "core/device.h"

/* The handles of one call: its operands', then the result's, which for an operator that writes its
 * first argument is that one's. */
typedef struct loan {
    lent_memory lent;
    const void *lender;
    int n, result;
    etch_tensor **handle;
} loan;

static etch_tensor *handle_like(const etch_tensor *t, int device, etch_storage *s, int64_t offset) {
    etch_tensor *h = s ? etch__tensor_alloc() : NULL;
    if (!h) {
        etch__storage_release(s);
        return NULL;
    }
    h->dtype = t->dtype, h->ndim = t->ndim, h->contiguous = t->contiguous;
    h->device = (uint8_t)device, h->offset = offset, h->numel = t->numel;
    memcpy(h->size, t->size, sizeof t->size);
    memcpy(h->stride, t->stride, sizeof t->stride);
    h->storage = s;
    return h;
}

/* ---- the same memory ---- */

/* Only storages that a device allocated know how to free themselves; a plan's lie in its arena. */
bool etch__lent_by_device(const void *unused, const etch_storage *s) {
    (void)unused;
    return !s->free_fn;
}

static bool is_lent(const loan *l, const etch_storage *s) { return l->lent(l->lender, s); }

/* Operands in one buffer share a header, but for one that reaches further than those before it. */
static etch_storage *header_for(const etch_tensor *t, const loan *l, int n) {
    size_t from, bytes;
    etch__span(t, &from, &bytes);
    for (int i = 0; i < n; i++) {
        etch_storage *s = l->handle[i]->storage;
        if (l->handle[i] == ETCH_NONE || s->data != t->storage->data) continue;
        if (s->bytes < from + bytes) break;
        etch__storage_retain(s);
        return s;
    }
    return etch__storage_over(t->device, t->storage->data, from + bytes);
}

static etch_tensor *lend_one(const etch_tensor *t, const loan *l, int n) {
    etch_storage *s = t->storage;
    if (is_lent(l, s)) s = header_for(t, l, n);
    else etch__storage_retain(s);
    return handle_like(t, t->device, s, t->offset);
}

static void *copy_on_host(const etch_storage *s) {
    void *copy = etch__malloc(s->bytes + 1);
    return copy ? memcpy(copy, s->data, s->bytes) : NULL;
}

/* A block of the device with what s holds, as the one that frees it knows it. */
static bool move_on_device(etch_storage *s) {
    etch_storage *own = etch__storage_new_on(s->device, s->bytes);
    bool copied = own && etch__device_kind(s->device)->copy(own, 0, s, 0, s->bytes) == ETCH_OK;
    if (copied) {
        s->data = own->data, s->free_fn = own->free_fn, s->free_ctx = own->free_ctx;
        own->free_fn = NULL;
    }
    etch__storage_release(own);
    return copied;
}

/* Somebody kept the storage: it gets memory of its own, which ends the loan. */
static etch_status move_out(etch_storage *s) {
    if (s->device) {
        if (move_on_device(s)) return ETCH_OK;
        s->data = NULL;
        return etch__tls.status;
    }
    s->data = copy_on_host(s);
    s->free_fn = etch__free, s->free_ctx = s->data;
    return s->data ? ETCH_OK : ETCH_ERR_OUT_OF_MEMORY;
}

static etch_status take_back(const loan *l) {
    etch_status status = ETCH_OK;
    etch_storage *held[l->n + 1];
    for (int i = 0; i < l->n; i++) {
        held[i] = NULL;
        if (!l->handle[i] || l->handle[i] == ETCH_NONE) continue;
        if (is_lent(l, l->handle[i]->storage))
            etch__storage_retain(held[i] = l->handle[i]->storage);
        etch_release(l->handle[i]);
    }
    for (int i = 0; i < l->n; i++) {
        int mine = 0;
        for (int k = i; held[i] && k < l->n; k++) mine += held[k] == held[i];
        bool kept = held[i] && atomic_load(&held[i]->refs) > mine;
        if (kept && move_out(held[i]) != ETCH_OK) status = etch__tls.status;
        etch__storage_release(held[i]);
    }
    return status;
}

static bool lend_all(const op_call *call, etch_tensor *const *out, loan *l) {
    for (int i = 0; i < l->n; i++) {
        const etch_tensor *t = i < call->nin ? call->in[i] : out[0];
        l->handle[i] = t == ETCH_NONE ? ETCH_NONE : lend_one(t, l, i);
        if (!l->handle[i]) return false;
    }
    return true;
}

/* ---- copies ---- */

static etch_tensor *copy_one(const etch_tensor *t, bool contents) {
    size_t from, bytes;
    etch__span(t, &from, &bytes);
    etch_storage *s = etch__storage_new(bytes);
    if (s && contents && bytes &&
        etch__device_kind(t->device)->copy(s, 0, t->storage, from, bytes) != ETCH_OK) {
        etch__storage_release(s);
        return NULL;
    }
    return handle_like(t, 0, s, t->offset - (int64_t)from / etch__item_size(t));
}

static bool copy_all(const op_call *call, etch_tensor *const *out, loan *l) {
    for (int i = 0; i < l->n; i++) {
        const etch_tensor *t = i < call->nin ? call->in[i] : out[0];
        l->handle[i] = t == ETCH_NONE ? ETCH_NONE : copy_one(t, i < call->nin);
        if (!l->handle[i]) return false;
    }
    return true;
}

static etch_status copy_back(const etch_tensor *h, etch_tensor *out) {
    size_t from, bytes;
    etch__span(out, &from, &bytes);
    if (!bytes) return ETCH_OK;
    return etch__device_kind(out->device)->copy(out->storage, from, h->storage, 0, bytes);
}

/* ---- the call ---- */

static etch_status call_with(const op_call *call, const loan *l, lent_call fn, const void *ctx) {
    op_call lent = *call;
    lent.in = l->handle;
    return fn(ctx, &lent, &l->handle[l->result]);
}

/* A loan of the call with room for its handles, which are all NULL. */
#define LOAN(l, call, ...)                                                                         \
    bool l##_inplace = etch__ops[(call)->op].kind == KIND_INPLACE;                                 \
    etch_tensor *l##_handle[(call)->nin + 1];                                                      \
    memset(l##_handle, 0, sizeof l##_handle);                                                      \
    loan l = {__VA_ARGS__, (call)->nin + !l##_inplace, l##_inplace ? 0 : (call)->nin, l##_handle}

etch_status etch__lend(const op_call *call, etch_tensor *const *out, lent_memory lent,
                       const void *lender, lent_call fn, const void *ctx) {
    LOAN(l, call, lent, lender);
    etch_status status =
        lend_all(call, out, &l) ? call_with(call, &l, fn, ctx) : ETCH_ERR_OUT_OF_MEMORY;
    etch_status returned = take_back(&l);
    return status == ETCH_OK ? returned : status;
}

etch_status etch__lend_copies(const op_call *call, etch_tensor *const *out, lent_call fn,
                              const void *ctx) {
    LOAN(l, call, NULL, NULL);
    etch_status status = copy_all(call, out, &l) ? call_with(call, &l, fn, ctx) : etch__tls.status;
    if (status == ETCH_OK) status = copy_back(l.handle[l.result], out[0]);
    for (int i = 0; i < l.n; i++)
        if (l.handle[i] && l.handle[i] != ETCH_NONE) etch_release(l.handle[i]);
    return status;
}
