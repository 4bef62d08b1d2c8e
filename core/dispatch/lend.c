/* See lend.h. */
#include "core/dispatch/lend.h"

#include "core/tensor/device.h"

/* A handle that is lent, and the storage it lies over if no handle before it lies over that: the
 * loan's own count, else NULL. */
typedef struct lent {
    etch_tensor *handle;
    etch_storage *storage;
} lent;

enum { FEW = 16 };

/* The handles of one call: its operands', then the result's, which for an operator that writes its
 * first argument is that one's. */
typedef struct loan {
    int n, result;
    lent *item, few[FEW];
    etch_tensor **in, *in_few[FEW]; /* the handles alone */
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

static bool begin(loan *l, const op_call *call) {
    bool inplace = etch__ops[call->op].kind == KIND_INPLACE;
    l->n = call->nin + !inplace;
    l->result = inplace ? 0 : call->nin;
    bool many = l->n > FEW;
    l->item = many ? etch__calloc((size_t)l->n, sizeof *l->item) : l->few;
    l->in = many ? etch__calloc((size_t)l->n, sizeof *l->in) : l->in_few;
    if (l->item && l->in && !many) memset(l->few, 0, (size_t)l->n * sizeof *l->item);
    return l->item && l->in;
}

static void end(const loan *l) {
    if (l->item != l->few) etch__free(l->item);
    if (l->in != l->in_few) etch__free(l->in);
}

static const etch_tensor *lender(const op_call *call, etch_tensor *const *out, int i) {
    return i < call->nin ? call->in[i] : out[0];
}

/* ---- the same memory ---- */

/* Bytes from the beginning of t's memory to the end of t. */
static size_t reach(const etch_tensor *t) {
    size_t from, bytes;
    etch__span(t, &from, &bytes);
    return from + bytes;
}

/* So much of the memory of the i-th handle as those that follow it reach. */
static size_t common_reach(const op_call *call, etch_tensor *const *out, const loan *l, int i) {
    const void *data = lender(call, out, i)->storage->data;
    size_t most = 0;
    for (int k = i; k < l->n && k < i + FEW; k++) {
        const etch_tensor *t = lender(call, out, k);
        if (t == ETCH_NONE || t->storage->data != data) continue;
        size_t bytes = reach(t);
        if (bytes > most) most = bytes;
    }
    return most;
}

/* Operands in one memory share a header (of long lists those that are near each other: to look
 * further takes longer than it is worth). */
static etch_storage *header_for(const op_call *call, etch_tensor *const *out, loan *l, int n) {
    const etch_tensor *t = lender(call, out, n);
    for (int i = n > FEW ? n - FEW : 0; i < n; i++) {
        etch_storage *s = l->item[i].storage;
        if (!s || s->data != t->storage->data || s->bytes < reach(t)) continue;
        etch__storage_retain(s);
        return s;
    }
    etch_storage *s =
        etch__storage_lent(t->device, t->storage->data, common_reach(call, out, l, n));
    if (!s) return NULL;
    etch__storage_retain(s);
    return l->item[n].storage = s;
}

static bool lend_all(const op_call *call, etch_tensor *const *out, loan *l) {
    for (int i = 0; i < l->n; i++) {
        const etch_tensor *t = lender(call, out, i);
        l->in[i] = ETCH_NONE;
        if (t == ETCH_NONE) continue;
        etch_storage *s = header_for(call, out, l, i);
        l->in[i] = l->item[i].handle = handle_like(t, t->device, s, t->offset);
        if (!l->in[i]) return false;
    }
    return true;
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

static void release_lender(void *s) { etch__storage_release(s); }

/* Without memory for a copy the lender's own stays: handles that were lent have failed, and views
 * of them that the kernel has made may see what is written later. */
static etch_status stay(const loan *l, etch_storage *s, etch_storage *from, void *data) {
    for (int i = 0; i < l->n; i++)
        if (l->item[i].handle && l->item[i].handle->storage == s) l->item[i].handle->failed = 1;
    etch__storage_retain(from);
    s->data = data;
    s->free_fn = release_lender, s->free_ctx = from;
    return etch__tls.status;
}

/* Somebody kept the storage: it gets memory of its own, which ends the loan. */
static etch_status move_out(const loan *l, etch_storage *s, etch_storage *from) {
    void *data = s->data;
    etch__storage_keep(s);
    if (s->device) return move_on_device(s) ? ETCH_OK : stay(l, s, from, data);
    s->data = copy_on_host(s);
    s->free_fn = etch__free, s->free_ctx = s->data;
    return s->data ? ETCH_OK : stay(l, s, from, data);
}

/* Handles that nobody kept are gone; a view of one keeps the storage, too. */
static etch_status take_back(const op_call *call, etch_tensor *const *out, loan *l) {
    etch_status status = ETCH_OK;
    for (int i = 0; i < l->n; i++) {
        etch_tensor *h = l->item[i].handle;
        if (h && atomic_load(&h->refs) == 1) l->item[i].handle = NULL;
        etch_release(h);
    }
    for (int i = 0; i < l->n; i++) {
        etch_storage *s = l->item[i].storage;
        bool kept = s && atomic_load(&s->refs) > 1;
        if (kept && move_out(l, s, lender(call, out, i)->storage) != ETCH_OK)
            status = etch__tls.status;
        etch__storage_release(s);
    }
    return status;
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
        const etch_tensor *t = lender(call, out, i);
        l->in[i] = ETCH_NONE;
        if (t == ETCH_NONE) continue;
        l->in[i] = l->item[i].handle = copy_one(t, i < call->nin);
        if (!l->in[i]) return false;
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
    op_call own = *call;
    own.in = l->in;
    return fn(ctx, &own, &l->in[l->result]);
}

etch_status etch__lend(const op_call *call, etch_tensor *const *out, lent_call fn,
                       const void *ctx) {
    loan l;
    etch_status status = ETCH_ERR_OUT_OF_MEMORY, returned = ETCH_OK;
    if (begin(&l, call)) {
        if (lend_all(call, out, &l)) status = call_with(call, &l, fn, ctx);
        returned = take_back(call, out, &l);
    }
    end(&l);
    return status == ETCH_OK ? returned : status;
}

etch_status etch__lend_copies(const op_call *call, etch_tensor *const *out, lent_call fn,
                              const void *ctx) {
    loan l;
    bool begun = begin(&l, call);
    etch_status status =
        begun && copy_all(call, out, &l) ? call_with(call, &l, fn, ctx) : etch__tls.status;
    if (status == ETCH_OK) status = copy_back(l.in[l.result], out[0]);
    for (int i = 0; begun && i < l.n; i++) etch_release(l.item[i].handle);
    end(&l);
    return status;
}
