/* See lend.h. */
#include "core/lend.h"

#include "core/device.h"

/* The handles of one call: its operands', then the result's, which for an operator that writes its
 * first argument is that one's. */
typedef struct loan {
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
static bool in_arena(const etch_storage *s) { return !s->free_fn; }

static etch_storage *header_for(const etch_tensor *t, const loan *l, int n) {
    for (int i = 0; i < n; i++)
        if (l->handle[i] != ETCH_NONE && l->handle[i]->storage->data == t->storage->data) {
            etch__storage_retain(l->handle[i]->storage);
            return l->handle[i]->storage;
        }
    size_t from, bytes;
    etch__span(t, &from, &bytes);
    etch_storage *s = etch__calloc(1, sizeof *s);
    if (!s) return NULL;
    atomic_init(&s->refs, 1);
    s->device = t->device, s->bytes = from + bytes, s->data = t->storage->data;
    return s;
}

static etch_tensor *lend_one(const etch_tensor *t, const loan *l, int n) {
    etch_storage *s = t->storage;
    if (in_arena(s)) s = header_for(t, l, n);
    else etch__storage_retain(s);
    return handle_like(t, t->device, s, t->offset);
}

/* Somebody kept the storage: it gets memory of its own, which ends the loan. */
static etch_status move_out(etch_storage *s) {
    const device_kind *kind = etch__device_kind(s->device);
    etch_storage *own = etch__storage_new_on(s->device, s->bytes);
    etch_status status = own ? kind->copy(own, 0, s, 0, s->bytes) : ETCH_ERR_OUT_OF_MEMORY;
    if (status == ETCH_OK) {
        s->data = own->data, s->free_fn = own->free_fn, s->free_ctx = own->free_ctx;
        own->free_fn = NULL;
    } else {
        s->data = NULL, s->bytes = 0;
    }
    etch__storage_release(own);
    return status;
}

static etch_status take_back(const loan *l) {
    etch_status status = ETCH_OK;
    etch_storage *held[l->n + 1];
    for (int i = 0; i < l->n; i++) {
        held[i] = NULL;
        if (!l->handle[i] || l->handle[i] == ETCH_NONE) continue;
        if (in_arena(l->handle[i]->storage)) etch__storage_retain(held[i] = l->handle[i]->storage);
        etch_release(l->handle[i]);
    }
    for (int i = 0; i < l->n; i++) {
        int mine = 0;
        for (int k = i; held[i] && k < l->n; k++) mine += held[k] == held[i];
        bool kept = held[i] && atomic_load(&held[i]->refs) > mine;
        if (kept && in_arena(held[i]) && move_out(held[i]) != ETCH_OK) status = etch__tls.status;
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

/* What fn creates lies where its tensors do. */
static etch_status call_with(const op_call *call, const loan *l, lent_call fn, const void *ctx) {
    op_call lent = *call;
    uint64_t state = etch__tls.state;
    lent.in = l->handle;
    uint64_t device = l->handle[l->result]->device;
    etch__tls.state = (state & ~(0xffull << 16)) | device << 16;
    etch_status status = fn(ctx, &lent, &l->handle[l->result]);
    etch__tls.state = state;
    return status;
}

static etch_status borrow(const op_call *call, etch_tensor *const *out, bool copies, lent_call fn,
                          const void *ctx) {
    bool inplace = etch__ops[call->op].kind == KIND_INPLACE;
    loan l = {call->nin + !inplace, inplace ? 0 : call->nin, NULL};
    if (!(l.handle = etch__calloc((size_t)l.n, sizeof *l.handle))) return ETCH_ERR_OUT_OF_MEMORY;
    bool ready = copies ? copy_all(call, out, &l) : lend_all(call, out, &l);
    etch_status status = ready ? call_with(call, &l, fn, ctx) : etch__tls.status;
    if (status == ETCH_OK && copies) status = copy_back(l.handle[l.result], out[0]);
    if (!copies) {
        etch_status returned = take_back(&l);
        if (status == ETCH_OK) status = returned;
    }
    for (int i = 0; copies && i < l.n; i++)
        if (l.handle[i] && l.handle[i] != ETCH_NONE) etch_release(l.handle[i]);
    etch__free(l.handle);
    return status;
}

etch_status etch__lend(const op_call *call, etch_tensor *const *out, lent_call fn,
                       const void *ctx) {
    return borrow(call, out, false, fn, ctx);
}

etch_status etch__lend_copies(const op_call *call, etch_tensor *const *out, lent_call fn,
                              const void *ctx) {
    return borrow(call, out, true, fn, ctx);
}
