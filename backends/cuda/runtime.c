/* See runtime.h. */
#include "backends/cuda/ops.h"
#include "backends/cuda/pinned.h"
#include "backends/cuda/stream.h"

#include <etch/device.h>
#include <pthread.h>
#include <unistd.h>

/* ---- devices ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cuda_device devices[CUDA_DEVICES];
static int ndevices = -1; /* not asked yet */
static const char *absent = "";
static pid_t owner; /* the driver does not work in a forked child */

static void ask_driver(void) {
    int n = 0;
    ndevices = 0, owner = getpid();
    if (!etch__cuda_load(&absent)) return;
    if (etch__cuda.cuDeviceGetCount(&n)) absent = "cuDeviceGetCount failed";
    else if (n == 0) absent = "the driver sees no GPU";
    else ndevices = n < CUDA_DEVICES ? n : CUDA_DEVICES;
}

static int count(void) {
    pthread_mutex_lock(&lock);
    if (ndevices < 0) ask_driver();
    int n = ndevices;
    pthread_mutex_unlock(&lock);
    return n;
}

static const char *absent_reason(void) { return count() ? "" : absent; }

static etch_status open_device(cuda_device *d, int index) {
    const struct {
        int attribute, *value;
    } wanted[] = {{CU_ATTRIBUTE_MAJOR, &d->major},
                  {CU_ATTRIBUTE_MINOR, &d->minor},
                  {CU_ATTRIBUTE_MULTIPROCESSORS, &d->multiprocessors},
                  {CU_ATTRIBUTE_SHARED_OPTIN, &d->shared}};
    etch_status status = CU(cuDeviceGet, &d->device, index);
    if (status == ETCH_OK) status = CU(cuDeviceGetName, d->name, sizeof d->name, d->device);
    for (int i = 0; status == ETCH_OK && i < COUNT_OF(wanted); i++)
        status = CU(cuDeviceGetAttribute, wanted[i].value, wanted[i].attribute, d->device);
    cu_context context = NULL;
    if (status == ETCH_OK) status = CU(cuDevicePrimaryCtxRetain, &context, d->device);
    d->index = index;
    if (status == ETCH_OK) d->context = context;
    return status;
}

bool etch__cuda_is_current(int index) {
    cu_context now = NULL;
    return etch__cuda.cuCtxGetCurrent(&now) == 0 && now == devices[index].context;
}

cuda_device *etch__cuda_enter(int index) {
    if (unlikely(index < 0 || index >= count())) {
        etch__error(ETCH_ERR_DEVICE, "there is no cuda:%d", index);
        return NULL;
    }
    if (unlikely(owner != getpid())) {
        etch__error(ETCH_ERR_DEVICE,
                    "cuda:%d: a forked child cannot use a GPU that its parent "
                    "opened; fork before, or exec",
                    index);
        return NULL;
    }
    cuda_device *d = &devices[index];
    pthread_mutex_lock(&lock);
    etch_status status = d->context ? ETCH_OK : open_device(d, index);
    pthread_mutex_unlock(&lock);
    if (status == ETCH_OK && !etch__cuda_is_current(index))
        status = CU(cuCtxSetCurrent, d->context);
    return status == ETCH_OK ? d : NULL;
}

/* Threads that a forked child has not may have held the lock. */
static void in_forked_child(void) { pthread_mutex_init(&lock, NULL); }

__attribute__((constructor)) static void watch_forks(void) {
    pthread_atfork(NULL, NULL, in_forked_child);
}

/* ---- memory: free lists by size class ---- */

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

static device_counts counts[CUDA_DEVICES];

device_counts *etch__cuda_counts(int index) { return &counts[index]; }
static device_counts *counts_of(const cuda_stream *s) { return &counts[s->device->index]; }

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

static bool trim_all(cuda_device *d) {
    bool any = false;
    cuda_stream *s;
    for (int i = 0; (s = etch__cuda_nth_stream(i)); i++)
        if (s->device == d) any |= trim(s);
    return any;
}

static etch_status from_driver(cuda_stream *s, size_t bytes, cu_address *address) {
    int status = etch__cuda.cuMemAlloc_v2(address, bytes);
    if (status == CU_ERROR_OUT_OF_MEMORY && trim_all(s->device))
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

static __thread cuda_held *capturing;
static __thread int captured_device;

etch_status etch__cuda_capture_begin(cuda_stream *s, cuda_held *held) {
    etch_status status = etch__cuda_stream_record(s);
    if (status == ETCH_OK) capturing = held, captured_device = etch__cuda_stream_device(s)->index;
    return status;
}

etch_status etch__cuda_capture_end(cuda_stream *s, cu_graph *graph) {
    bool failed = capturing && capturing->failed;
    capturing = NULL;
    etch_status status = etch__cuda_stream_recorded(s, graph);
    if (!failed || status != ETCH_OK) return status;
    etch__cuda.cuGraphDestroy(*graph);
    *graph = NULL;
    return ETCH_ERR_OUT_OF_MEMORY;
}

bool etch__cuda_capturing(void) { return capturing != NULL; }

etch_status etch__cuda_may_issue(int index, const char *what, const void *site) {
    if (likely(!capturing || index == captured_device)) return ETCH_OK;
    return etch__error_at(site, ETCH_ERR_UNSUPPORTED,
                          "%s: expected work on cuda:%d, of which a graph is being recorded, got "
                          "cuda:%d, which would not be part of it",
                          what, captured_device, index);
}

void etch__cuda_let_go(cuda_held *held) {
    for (cuda_block *b = held->blocks, *next; b; b = next) {
        next = b->next;
        etch__cuda_free(b);
    }
    for (int64_t i = 0; i < held->ncodes; i++) etch__cuda_code_release(held->codes[i]);
    etch__free(held->codes);
    *held = (cuda_held){0};
}

void etch__cuda_share(const cuda_held *held) {
    for (cuda_block *b = held->blocks; b; b = b->next) b->user = MANY;
}

/* Those that were held last are not held again. */
static void hold_code(cuda_held *h, cuda_code *code) {
    int64_t recent = h->ncodes > 16 ? h->ncodes - 16 : 0;
    for (int64_t i = h->ncodes - 1; i >= recent; i--)
        if (h->codes[i] == code) return;
    if (!etch__grow(&h->codes, &h->cap, h->ncodes + 1, sizeof(cuda_code *))) {
        h->failed = true;
        return;
    }
    etch__cuda_code_retain(code);
    h->codes[h->ncodes++] = code;
}

void etch__cuda_launches(cuda_code *code) {
    if (unlikely(capturing != NULL)) hold_code(capturing, code);
}

/* A block that several streams used is free once all of them are past their work with it. */
void etch__cuda_free(cuda_block *b) {
    if (!b) return;
    if (unlikely(capturing != NULL)) {
        b->next = capturing->blocks, capturing->blocks = b;
        return;
    }
    cuda_stream *s = b->stream;
    note_live(s, -(int64_t)b->bytes);
    if (unlikely(owner != getpid())) return; /* a forked child: nothing of it is ours to free */
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

static void free_storage(void *ctx) { etch__cuda_free(ctx); }

static etch_status allocate(int index, etch_storage *storage) {
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

static __thread storage_list *uses; /* of what is recorded */

/* Those that were noted last are not noted again. */
static etch_status note_use(etch_storage *storage) {
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
    if (likely(!b || (b->user == s->number && !capturing))) return ETCH_OK;
    if (capturing) return uses ? note_use(storage) : ETCH_OK;
    return use_shared(s, b);
}

/* ---- what recorded graphs use ---- */

void etch__cuda_list_uses(storage_list *list) { uses = list; }

void etch__cuda_forget_uses(storage_list *list) {
    for (int64_t i = 0; i < list->n; i++) etch__storage_release(list->at[i]);
    etch__free(list->at);
    *list = (storage_list){0};
}

/* The copies of a pinned storage are those issued to s from now on. */
static etch_status mark_pinned(cuda_stream *s, etch_storage *storage) {
    etch_status status = etch__cuda_pinned_begin(s, storage);
    return status == ETCH_OK ? etch__cuda_pinned_end(s, storage, ETCH_OK) : status;
}

/* One wait for all streams stands for those of each storage. */
etch_status etch__cuda_use_all(cuda_stream *s, const storage_list *list) {
    bool shared = false;
    etch_status status = etch__cuda_used_all(s, list);
    for (int64_t i = 0; status == ETCH_OK && i < list->n; i++) {
        cuda_block *b = block_of(list->at[i]);
        if (capturing) {
            status = etch__cuda_use(s, list->at[i]);
        } else if (b && b->user != s->number) {
            atomic_store(&b->user, MANY);
            shared = true;
        }
    }
    return status == ETCH_OK && shared ? etch__cuda_order(s) : status;
}

etch_status etch__cuda_used_all(cuda_stream *s, const storage_list *list) {
    etch_status status = ETCH_OK;
    for (int64_t i = 0; status == ETCH_OK && i < list->n; i++)
        if (list->at[i]->pinned) status = mark_pinned(s, list->at[i]);
    return status;
}

/* ---- faults ---- */

void etch__cuda_note(cuda_stream *s, const char *kernel) {
    uint64_t words[NAME / 8] = {0};
    memcpy(words, kernel, strnlen(kernel, NAME - 1));
    unsigned i = atomic_fetch_add_explicit(&s->nnotes, 1, memory_order_relaxed) % NOTES;
    for (int w = 0; w < NAME / 8; w++)
        atomic_store_explicit(&s->notes[i][w], words[w], memory_order_relaxed);
}

/* A name that its thread is writing just now may come as parts of two. */
static void read_note(const cuda_stream *s, unsigned i, char name[NAME]) {
    uint64_t words[NAME / 8];
    for (int w = 0; w < NAME / 8; w++)
        words[w] = atomic_load_explicit(&s->notes[i % NOTES][w], memory_order_relaxed);
    memcpy(name, words, NAME);
    name[NAME - 1] = 0;
}

static void list_notes(const cuda_stream *s, char *text, size_t room) {
    unsigned last = s->nnotes, n = last - s->waited;
    size_t used = 0;
    text[0] = 0;
    for (unsigned i = 0; i < n && i < NOTES && used < room; i++) {
        char name[NAME];
        read_note(s, last - 1 - i, name);
        used += (size_t)snprintf(text + used, room - used, "%s%s", i ? ", " : "", name);
    }
}

etch_status etch__cuda_wait(cuda_stream *s) {
    unsigned noted = s->nnotes;
    int status = etch__cuda_stream_wait(s);
    if (unlikely(status)) {
        const char *name = NULL;
        char kernels[600];
        list_notes(s, kernels, sizeof kernels);
        etch__cuda.cuGetErrorName(status, &name);
        return etch__error(
            ETCH_ERR_DEVICE,
            "cuda:%d: cuStreamSynchronize: %s; launched since the last synchronisation, newest "
            "first: %s",
            s->device->index, name ? name : "error", kernels);
    }
    s->waited = noted;
    return ETCH_OK;
}

etch_status etch__cuda_launch(cuda_stream *s, cu_function f, const char *name,
                              const unsigned grid[3], const unsigned block[3], unsigned shared,
                              void *parameter) {
    void *parameters[] = {parameter};
    etch__cuda_note(s, name);
    counts_of(s)->launches++;
    return CU(cuLaunchKernel, f, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared,
              s->stream, parameters, NULL);
}

/* ---- what core asks ---- */

static cu_address at(const etch_storage *s, size_t offset) {
    return (cu_address)(uintptr_t)s->data + offset;
}

/* Between the host's memory and this device's. Pageable memory the driver has taken in, or filled,
 * when the call returns and the stream was waited for. */
static etch_status copy_host(cuda_stream *s, etch_storage *dst, size_t dst_at, etch_storage *src,
                             size_t src_at, size_t bytes) {
    etch_storage *host = dst->device ? src : dst;
    etch_status status = host->pinned ? etch__cuda_pinned_begin(s, host) : ETCH_OK;
    if (status == ETCH_OK && host->pinned && uses) status = note_use(host);
    if (status != ETCH_OK) return status;
    if (host == dst)
        status =
            CU(cuMemcpyDtoHAsync_v2, (char *)dst->data + dst_at, at(src, src_at), bytes, s->stream);
    else
        status = CU(cuMemcpyHtoDAsync_v2, at(dst, dst_at), (const char *)src->data + src_at, bytes,
                    s->stream);
    if (host->pinned) return etch__cuda_pinned_end(s, host, status);
    if (status != ETCH_OK) return status;
    return host == dst ? etch__cuda_finish(s) : etch__cuda_wait(s);
}

static etch_status copy(etch_storage *dst, size_t dst_at, etch_storage *src, size_t src_at,
                        size_t bytes) {
    int index = etch__device_index(dst->device ? dst->device : src->device);
    cuda_stream *s = etch__cuda_stream(index);
    if (!s || !bytes) return s ? ETCH_OK : etch__tls.status;
    etch_status status = src->device && src->device - 1 == index ? etch__cuda_use(s, src) : ETCH_OK;
    if (status == ETCH_OK && dst->device) status = etch__cuda_use(s, dst);
    if (status != ETCH_OK) return status;
    if (!dst->device || !src->device) return copy_host(s, dst, dst_at, src, src_at, bytes);
    if (src->device == dst->device)
        return CU(cuMemcpyDtoDAsync_v2, at(dst, dst_at), at(src, src_at), bytes, s->stream);
    /* Between devices: what was issued to the source is done first, and the other way round. */
    cuda_stream *from = etch__cuda_stream(etch__device_index(src->device));
    if (!from || etch__cuda_use(from, src) != ETCH_OK || etch__cuda_finish(from) != ETCH_OK ||
        !etch__cuda_stream(index))
        return etch__tls.status;
    status = CU(cuMemcpyPeerAsync, at(dst, dst_at), s->device->context, at(src, src_at),
                from->device->context, bytes, s->stream);
    return status == ETCH_OK ? etch__cuda_wait(s) : status;
}

static etch_status synchronize(int index) {
    if (!etch__cuda_enter(index)) return etch__tls.status;
    cuda_stream *s;
    etch_status status = ETCH_OK;
    for (int i = 0; (s = etch__cuda_nth_stream(i)); i++)
        if (s->device->index == index) {
            etch_status one = etch__cuda_finish(s);
            if (status == ETCH_OK) status = one;
        }
    return status;
}

static void stats(int index, etch_device_stats_t *out) {
    const device_counts *c = &counts[index];
    *out = (etch_device_stats_t){c->bytes_live,         c->bytes_peak,    c->bytes_kept,
                                 c->driver_allocations, c->launches,      c->graphs,
                                 c->graph_launches,     c->graph_patches, c->operand_copies};
}

static etch_status give_back(int index) {
    cuda_device *d = etch__cuda_enter(index);
    if (d) trim_all(d), etch__cuda_trim_pinned();
    return d ? ETCH_OK : etch__tls.status;
}

static const device_kind cuda = {.name = "cuda",
                                 .count = count,
                                 .absent = absent_reason,
                                 .allocate = allocate,
                                 .allocate_pinned = etch__cuda_allocate_pinned,
                                 .settle = etch__cuda_settle,
                                 .copy = copy,
                                 .synchronize = synchronize,
                                 .stats = stats,
                                 .trim = give_back,
                                 .kernel = etch__cuda_kernel};

__attribute__((constructor)) static void register_cuda(void) { etch__device_register(&cuda); }
