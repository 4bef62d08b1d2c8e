/* Memory of devices: free lists by stream and size class, and which streams use a block. */
#include "backends/cuda/stream.h"

/* ---- blocks ---- */

struct cuda_block {
    cuda_stream *stream;
    cuda_block *next;
    size_t bytes;
    cu_address address;
    int class;
    _Atomic int user; /* number of the one stream that used it, or MANY */
};

enum { MANY = -1 };

/* Four classes between powers of two: at most a quarter is wasted. */
static int class_of(size_t *bytes) {
    size_t n = *bytes < 512 ? 512 : *bytes;
    int log2 = 63 - __builtin_clzll(n);
    size_t step = (size_t)1 << (log2 - 2);
    size_t up = (n + step - 1) / step * step;
    *bytes = up;
    log2 = 63 - __builtin_clzll(up);
    int class = (log2 - 9) * 4 + (int)((up >> (log2 - 2)) & 3);
    return class < CLASSES ? class : -1;
}

static device_counts *counts_of(const cuda_stream *s) {
    return etch__cuda_counts(s->device->index);
}

static void note_live(const cuda_stream *s, int64_t bytes) {
    device_counts *c = counts_of(s);
    int64_t now = atomic_fetch_add(&c->bytes_live, bytes) + bytes, peak = c->bytes_peak;
    while (now > peak && !atomic_compare_exchange_weak(&c->bytes_peak, &peak, now)) continue;
}

/* Gives what is unused back to the driver; true if there was any. */
static bool trim(cuda_stream *s) {
    bool any = false;
    for (int c = 0; c < CLASSES; c++) {
        pthread_mutex_lock(&s->lock);
        cuda_block *b = s->unused[c];
        s->unused[c] = NULL;
        pthread_mutex_unlock(&s->lock);
        if (b) etch__cuda_stream_drain(s);
        for (cuda_block *next; b; b = next) {
            next = b->next, any = true;
            etch__cuda.cuMemFree_v2(b->address);
            counts_of(s)->bytes_kept -= (int64_t)b->bytes;
            etch__free(b);
        }
    }
    return any;
}

bool etch__cuda_trim(const cuda_device *d) {
    bool any = false;
    cuda_stream *s;
    for (int i = 0; (s = etch__cuda_nth_stream(i)); i++)
        if (s->device == d) any |= trim(s);
    return any;
}

static etch_status from_driver(cuda_stream *s, size_t bytes, cu_address *address) {
    int status = etch__cuda.cuMemAlloc_v2(address, bytes);
    if (status == CU_ERROR_OUT_OF_MEMORY && etch__cuda_trim(s->device))
        status = etch__cuda.cuMemAlloc_v2(address, bytes);
    if (!status) {
        counts_of(s)->driver_allocations++;
        return ETCH_OK;
    }
    if (status != CU_ERROR_OUT_OF_MEMORY) return etch__cuda_failed("cuMemAlloc", status);
    size_t free_now = 0, total = 0;
    etch__cuda.cuMemGetInfo_v2(&free_now, &total);
    return etch__error(
        ETCH_ERR_OUT_OF_MEMORY,
        "cuda:%d: cuMemAlloc: no room for %zu bytes: %zu of %zu are free, tensors of this "
        "process hold %lld; release some and call again",
        s->device->index, bytes, free_now, total, (long long)counts_of(s)->bytes_live);
}

cuda_block *etch__cuda_allocate(cuda_stream *s, size_t bytes) {
    int class = class_of(&bytes);
    cuda_block *b = NULL;
    if (class >= 0 && !etch__allocations_counted()) {
        pthread_mutex_lock(&s->lock);
        b = s->unused[class];
        if (b) s->unused[class] = b->next;
        pthread_mutex_unlock(&s->lock);
    }
    if (b) {
        counts_of(s)->bytes_kept -= (int64_t)b->bytes;
    } else {
        if (!(b = etch__calloc(1, sizeof *b))) return NULL;
        b->stream = s, b->bytes = bytes, b->class = class;
        if (from_driver(s, bytes, &b->address) != ETCH_OK) {
            etch__free(b);
            return NULL;
        }
    }
    b->user = s->number;
    note_live(s, (int64_t)b->bytes);
    return b;
}

cuda_block *etch__cuda_allocate_own(cuda_stream *s, size_t bytes) {
    cuda_block *b = etch__cuda_allocate(s, bytes);
    if (b) note_live(s, -(int64_t)b->bytes);
    return b;
}

/* A block that several streams used is free once all of them are past their work with it. */
void etch__cuda_free(cuda_block *b) {
    if (!b) return;
    if (unlikely(etch__cuda_held != NULL)) {
        b->next = etch__cuda_held->blocks, etch__cuda_held->blocks = b;
        return;
    }
    cuda_stream *s = b->stream;
    note_live(s, -(int64_t)b->bytes);
    if (unlikely(etch__cuda_in_forked_child()))
        return; /* a forked child: nothing of it is ours to free */
    if (unlikely(b->user != s->number)) {
        saved_error before;
        etch__error_save(&before);
        bool ordered = etch__cuda_enter(s->device->index) && etch__cuda_order(s) == ETCH_OK;
        if (!ordered) etch__cuda.cuCtxSynchronize();
        etch__error_restore(&before);
    }
    if (b->class < 0) {
        etch__cuda_stream_drain(s);
        etch__cuda.cuMemFree_v2(b->address);
        etch__free(b);
        return;
    }
    pthread_mutex_lock(&s->lock);
    b->next = s->unused[b->class];
    s->unused[b->class] = b;
    pthread_mutex_unlock(&s->lock);
    counts_of(s)->bytes_kept += (int64_t)b->bytes;
}

void *etch__cuda_address(const cuda_block *b) { return (void *)(uintptr_t)b->address; }

/* ---- storages ---- */

static void free_storage(void *ctx) { etch__cuda_free(ctx); }

etch_status etch__cuda_allocate_storage(int index, etch_storage *storage) {
    cuda_stream *s = etch__cuda_stream(index);
    cuda_block *b = s ? etch__cuda_allocate(s, storage->bytes) : NULL;
    if (!b) return etch__tls.status;
    storage->data = etch__cuda_address(b);
    storage->free_fn = free_storage, storage->free_ctx = b;
    return ETCH_OK;
}

/* The user of a storage changes at most once from one stream to MANY; from then on each use waits
 * for all streams of the device. */
static etch_status use_shared(cuda_stream *s, cuda_block *b) {
    int was = atomic_exchange(&b->user, MANY);
    if (was != MANY) {
        cuda_stream *other = etch__cuda_nth_stream(was - 1);
        if (etch__cuda_wait_for(s, other) != ETCH_OK) return etch__tls.status;
    }
    return etch__cuda_wait_for_all(s);
}

static cuda_block *block_of(const etch_storage *storage) {
    return storage->free_fn == free_storage ? storage->free_ctx : NULL;
}

/* ---- what a recorded graph uses ---- */

static __thread storage_list *uses; /* of what is recorded */

/* Those that were noted last are not noted again. */
etch_status etch__cuda_note_use(etch_storage *storage) {
    if (!uses) return ETCH_OK;
    int64_t recent = uses->n > 16 ? uses->n - 16 : 0;
    for (int64_t i = uses->n - 1; i >= recent; i--)
        if (uses->at[i] == storage) return ETCH_OK;
    if (!etch__grow(&uses->at, &uses->cap, uses->n + 1, sizeof(etch_storage *)))
        return ETCH_ERR_OUT_OF_MEMORY;
    etch__storage_retain(storage);
    uses->at[uses->n++] = storage;
    return ETCH_OK;
}

etch_status etch__cuda_use(cuda_stream *s, etch_storage *storage) {
    cuda_block *b = block_of(storage);
    if (likely(!b || (b->user == s->number && !etch__cuda_held))) return ETCH_OK;
    if (etch__cuda_held) return etch__cuda_note_use(storage);
    return use_shared(s, b);
}

void etch__cuda_list_uses(storage_list *list) { uses = list; }

void etch__cuda_forget_uses(storage_list *list) {
    for (int64_t i = 0; i < list->n; i++) etch__storage_release(list->at[i]);
    etch__free(list->at);
    *list = (storage_list){0};
}

/* One wait for all streams stands for those of each storage. */
etch_status etch__cuda_use_blocks(cuda_stream *s, const storage_list *list) {
    bool shared = false;
    etch_status status = ETCH_OK;
    for (int64_t i = 0; status == ETCH_OK && i < list->n; i++) {
        cuda_block *b = block_of(list->at[i]);
        if (etch__cuda_held) {
            status = etch__cuda_use(s, list->at[i]);
        } else if (b && b->user != s->number) {
            atomic_store(&b->user, MANY);
            shared = true;
        }
    }
    return status == ETCH_OK && shared ? etch__cuda_order(s) : status;
}

void etch__cuda_free_list(cuda_block *b) {
    for (cuda_block *next; b; b = next) next = b->next, etch__cuda_free(b);
}

bool etch__cuda_holds(const cuda_held *held, cu_address at, size_t bytes) {
    for (const cuda_block *b = held->blocks; b; b = b->next)
        if (at >= b->address && at + bytes <= b->address + b->bytes) return true;
    return false;
}

void etch__cuda_share(const cuda_held *held) {
    for (cuda_block *b = held->blocks; b; b = b->next) b->user = MANY;
}
