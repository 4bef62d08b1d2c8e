/* Storages: header and data in one block, data aligned to 64 bytes.
 *
 * Large blocks are kept for reuse when they are freed (a bounded, process-wide list): fresh pages
 * cost a fault each, which for a memory-bound kernel is as dear as the kernel itself. */
#include "core/device.h"

#include <pthread.h>
#include <sys/mman.h>

enum { ALIGN = 64, KEPT_MAX = 64 };
#define SMALL ((size_t)1 << 12)
#define LARGE ((size_t)1 << 18)
#define HUGE_PAGE ((size_t)1 << 21)

typedef struct kept_block {
    void *block;
    size_t bytes;
} kept_block;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static kept_block kept[KEPT_MAX];
static int nkept;
static size_t kept_bytes;

static _Atomic int64_t bytes_live, bytes_peak;

static void lock_for_fork(void) { pthread_mutex_lock(&lock); }
static void unlock_after_fork(void) { pthread_mutex_unlock(&lock); }
__attribute__((constructor)) static void watch_forks(void) {
    pthread_atfork(lock_for_fork, unlock_after_fork, unlock_after_fork);
}

/* Small storages, of which there are many, are counted by each thread for itself. */
static void account(size_t of, int64_t bytes) {
    if (of < SMALL) {
        THREAD_COUNT(small_bytes, bytes);
        return;
    }
    int64_t now = atomic_fetch_add_explicit(&bytes_live, bytes, memory_order_relaxed) + bytes;
    int64_t peak = atomic_load_explicit(&bytes_peak, memory_order_relaxed);
    while (unlikely(now > peak) && !atomic_compare_exchange_weak(&bytes_peak, &peak, now)) continue;
}

/* The best fitting kept block of at least `bytes` that wastes at most an eighth. */
static void *take_kept(size_t *bytes) {
    pthread_mutex_lock(&lock);
    int best = -1;
    for (int i = 0; i < nkept; i++)
        if (kept[i].bytes >= *bytes && kept[i].bytes - *bytes <= *bytes / 8 &&
            (best < 0 || kept[i].bytes <= kept[best].bytes))
            best = i;
    void *block = NULL;
    if (best >= 0) {
        block = kept[best].block, *bytes = kept[best].bytes;
        kept_bytes -= *bytes;
        memmove(&kept[best], &kept[best + 1], (size_t)(--nkept - best) * sizeof kept[0]);
    }
    pthread_mutex_unlock(&lock);
    return block;
}

/* Keeps the block, dropping the oldest ones over the limit. */
static void keep_block(void *block, size_t bytes) {
    size_t limit = (size_t)etch__param_int(PARAM_KEEP_MEMORY);
    void *dropped[KEPT_MAX];
    int ndropped = 0;
    pthread_mutex_lock(&lock);
    int first = 0;
    while (nkept > first && (kept_bytes + bytes > limit || nkept - first == KEPT_MAX)) {
        kept_bytes -= kept[first].bytes;
        dropped[ndropped++] = kept[first++].block;
    }
    memmove(kept, kept + first, (size_t)(nkept - first) * sizeof kept[0]);
    nkept -= first;
    bool fits = bytes <= limit;
    if (fits) kept[nkept++] = (kept_block){block, bytes}, kept_bytes += bytes;
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < ndropped; i++) etch__free(dropped[i]);
    if (!fits) etch__free(block);
}

static bool keeps_blocks(void) {
#if defined(__SANITIZE_ADDRESS__)
    return false; /* so that a use after free is seen */
#else
    return true;
#endif
}

/* Asks for huge pages inside a fresh large block; only advice, failure does not matter. */
static void advise(void *block, size_t bytes) {
    if (bytes < 2 * HUGE_PAGE) return;
    uintptr_t from = ((uintptr_t)block + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
    uintptr_t to = ((uintptr_t)block + bytes) & ~(HUGE_PAGE - 1);
    if (to > from) madvise((void *)from, to - from, MADV_HUGEPAGE);
}

etch_storage *etch__storage_new(size_t bytes) {
    size_t whole = bytes + 2 * ALIGN;
    void *block = NULL;
    if (whole >= LARGE && keeps_blocks()) block = take_kept(&whole);
    if (!block) {
        block = etch__malloc(whole);
        if (!block) return NULL;
        advise(block, whole);
    }
    etch_storage *s = block;
    memset(s, 0, sizeof *s);
    atomic_store_explicit(&s->refs, 1, memory_order_relaxed);
    s->bytes = bytes;
    s->block_bytes = whole;
    s->data = (void *)(((uintptr_t)block + ALIGN + ALIGN - 1) & ~(uintptr_t)(ALIGN - 1));
    THREAD_COUNT(allocations, 1);
    account(bytes, (int64_t)bytes);
    return s;
}

etch_storage *etch__storage_new_on(int device, size_t bytes) {
    if (likely(!device)) return etch__storage_new(bytes);
    etch_storage *s = etch__calloc(1, sizeof *s);
    if (!s) return NULL;
    s->refs = 1;
    s->device = (uint8_t)device, s->bytes = bytes;
    if (etch__device_kind(device)->allocate(etch__device_index(device), s) == ETCH_OK) {
        THREAD_COUNT(allocations, 1);
        return s;
    }
    etch__free(s);
    return NULL;
}

etch_storage *etch__storage_wrap(void *data, size_t bytes) {
    etch_storage *s = etch__calloc(1, sizeof *s);
    if (!s) return NULL;
    s->refs = 1;
    s->exposed = EXPOSED_WRAPPED;
    s->bytes = bytes, s->data = data;
    account(bytes, (int64_t)bytes);
    return s;
}

void etch__storage_release(etch_storage *s) {
    if (!s) return;
    if (atomic_load_explicit(&s->refs, memory_order_acquire) != 1 &&
        atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1)
        return;
    if (s->free_fn) s->free_fn(s->free_ctx);
    if (likely(!s->device)) account(s->bytes, -(int64_t)s->bytes);
    if (s->block_bytes >= LARGE && keeps_blocks()) keep_block(s, s->block_bytes);
    else etch__free(s);
}

etch_memory_stats etch_memory(void) {
    thread_counts c = etch__thread_counts();
    int64_t live = atomic_load(&bytes_live) + c.small_bytes;
    int64_t peak = atomic_load(&bytes_peak);
    return (etch_memory_stats){live, peak > live ? peak : live, c.tensors, c.allocations};
}

void etch_memory_reset_peak(void) { atomic_store(&bytes_peak, atomic_load(&bytes_live)); }
