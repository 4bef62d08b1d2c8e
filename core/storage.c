/* Storages: header and data in one block, each aligned to 64 bytes: what one thread counts or
 * writes never lies in a cache line with what another thread has.
 *
 * Large blocks are kept for reuse when they are freed (a bounded, process-wide list): fresh pages
 * cost a fault each, which for a memory-bound kernel is as dear as the kernel itself. Where memory
 * runs out they are given back. Nobody waits for a lock here: each place of the list is taken and
 * filled by one exchange. */
#include "core/device.h"

#include <sys/mman.h>

enum { ALIGN = 64, KEPT_MAX = 64 };
#define SMALL ((int64_t)1 << 16)
#define LARGE ((size_t)1 << 18)
#define HUGE_PAGE ((size_t)1 << 21)

/* A kept block. Its size and age are hints while the place is not one's own: the block, once taken,
 * says its size itself. */
typedef struct kept_block {
    _Atomic(etch_storage *) block;
    _Atomic size_t bytes;
    _Atomic uint64_t age;
} kept_block;

static kept_block kept[KEPT_MAX];
static _Atomic int64_t kept_bytes;
static _Atomic uint64_t ages;

static _Atomic int64_t bytes_live, bytes_peak;

static void account_all(int64_t bytes) {
    int64_t now = atomic_fetch_add_explicit(&bytes_live, bytes, memory_order_relaxed) + bytes;
    int64_t peak = atomic_load_explicit(&bytes_peak, memory_order_relaxed);
    while (unlikely(now > peak) && !atomic_compare_exchange_weak(&bytes_peak, &peak, now)) continue;
}

/* Each thread counts for itself until that is much: so a thread that makes and drops tensors of a
 * few KiB writes nothing that others write. The peak is the sum's, to within SMALL a thread. */
static void account(int64_t bytes) {
    int64_t mine = etch__tls.counts.small_bytes + bytes;
    if (likely(mine < SMALL && mine > -SMALL)) {
        THREAD_COUNT(small_bytes, bytes);
        return;
    }
    THREAD_COUNT(small_bytes, bytes - mine);
    account_all(mine);
}

/* Takes the block out of a place; NULL if somebody else was faster. */
static etch_storage *take_place(kept_block *k) {
    etch_storage *block = atomic_exchange_explicit(&k->block, NULL, memory_order_acquire);
    if (block) atomic_fetch_sub(&kept_bytes, (int64_t)block->block_bytes);
    return block;
}

/* Puts a block into an empty place. */
static bool fill_place(kept_block *k, etch_storage *block) {
    etch_storage *none = NULL;
    size_t bytes = block->block_bytes;
    if (atomic_load_explicit(&k->block, memory_order_relaxed)) return false;
    atomic_fetch_add(&kept_bytes, (int64_t)bytes);
    if (!atomic_compare_exchange_strong_explicit(&k->block, &none, block, memory_order_release,
                                                 memory_order_relaxed)) {
        atomic_fetch_sub(&kept_bytes, (int64_t)bytes);
        return false;
    }
    atomic_store_explicit(&k->bytes, bytes, memory_order_relaxed);
    atomic_store_explicit(&k->age, atomic_fetch_add(&ages, 1), memory_order_relaxed);
    return true;
}

/* At least `need`, and at most an eighth wasted. */
static bool fits(size_t bytes, size_t need) { return bytes >= need && bytes - need <= need / 8; }

static kept_block *best_place(size_t need) {
    kept_block *best = NULL;
    size_t best_bytes = SIZE_MAX;
    for (int i = 0; i < KEPT_MAX; i++) {
        size_t bytes = atomic_load_explicit(&kept[i].bytes, memory_order_relaxed);
        if (!fits(bytes, need) || bytes >= best_bytes) continue;
        if (!atomic_load_explicit(&kept[i].block, memory_order_relaxed)) continue;
        best = &kept[i], best_bytes = bytes;
    }
    return best;
}

static kept_block *oldest_place(void) {
    kept_block *oldest = NULL;
    uint64_t age = UINT64_MAX;
    for (int i = 0; i < KEPT_MAX; i++) {
        uint64_t a = atomic_load_explicit(&kept[i].age, memory_order_relaxed);
        if (a < age && atomic_load_explicit(&kept[i].block, memory_order_relaxed))
            oldest = &kept[i], age = a;
    }
    return oldest;
}

static void free_block(etch_storage *s) {
    if (s) etch__free(s->block);
}

static bool drop_oldest(void) {
    kept_block *oldest = oldest_place();
    if (oldest) free_block(take_place(oldest));
    return oldest != NULL;
}

__attribute__((constructor)) static void register_giving_back(void) {
    etch__give_back = drop_oldest;
}

/* Keeps the block, dropping the oldest ones over the limit. */
static void keep_block(etch_storage *block) {
    int64_t limit = etch__param_int(PARAM_KEEP_MEMORY), bytes = (int64_t)block->block_bytes;
    if (bytes > limit) {
        free_block(block);
        return;
    }
    while (atomic_load(&kept_bytes) + bytes > limit && drop_oldest()) continue;
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < KEPT_MAX; i++)
            if (fill_place(&kept[i], block)) return;
        drop_oldest();
    }
    free_block(block);
}

/* The best fitting kept block. Only its own header is sure about its size. */
static etch_storage *take_kept(size_t *bytes) {
    for (int tries = 0; tries < 4; tries++) {
        kept_block *k = best_place(*bytes);
        if (!k) return NULL;
        etch_storage *block = take_place(k);
        if (!block) continue;
        if (fits(block->block_bytes, *bytes)) {
            *bytes = block->block_bytes;
            return block;
        }
        keep_block(block);
    }
    return NULL;
}

_Static_assert(sizeof(etch_storage) <= ALIGN, "a header is one cache line");

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

/* A header and, behind it, `*bytes` - 2 * ALIGN bytes of data or more. */
static etch_storage *take_block(size_t *bytes) {
    etch_storage *s = *bytes >= LARGE && keeps_blocks() ? take_kept(bytes) : NULL;
    void *block = s ? s->block : etch__malloc(*bytes);
    if (!block) return NULL;
    if (!s) advise(block, *bytes);
    s = (void *)(((uintptr_t)block + ALIGN - 1) & ~(uintptr_t)(ALIGN - 1));
    memset(s, 0, sizeof *s);
    s->block = block;
    return s;
}

etch_storage *etch__storage_new(size_t bytes) {
    size_t whole = bytes + 2 * ALIGN;
    etch_storage *s = take_block(&whole);
    if (!s) return NULL;
    atomic_store_explicit(&s->refs, 1, memory_order_relaxed);
    s->bytes = bytes;
    s->block_bytes = whole;
    s->data = (char *)s + ALIGN;
    THREAD_COUNT(allocations, 1);
    account((int64_t)bytes);
    return s;
}

etch_storage *etch__storage_lent(int device, void *data, size_t bytes) {
    etch_storage *s = etch__calloc(1, sizeof *s);
    if (!s) return NULL;
    s->refs = 1;
    s->block = s;
    s->device = (uint8_t)device, s->bytes = bytes, s->data = data;
    s->lent = 1;
    return s;
}

void etch__storage_keep(etch_storage *s) {
    s->lent = 0;
    if (!s->device) account((int64_t)s->bytes);
}

etch_storage *etch__storage_over(int device, void *data, size_t bytes) {
    etch_storage *s = etch__storage_lent(device, data, bytes);
    if (s) etch__storage_keep(s);
    return s;
}

etch_storage *etch__storage_new_on(int device, size_t bytes) {
    if (likely(!device)) return etch__storage_new(bytes);
    etch_storage *s = etch__storage_over(device, NULL, bytes);
    if (!s) return NULL;
    if (etch__device_kind(device)->allocate(etch__device_index(device), s) == ETCH_OK) {
        THREAD_COUNT(allocations, 1);
        return s;
    }
    etch__free(s);
    return NULL;
}

etch_storage *etch__storage_wrap(void *data, size_t bytes) {
    etch_storage *s = etch__storage_over(0, data, bytes);
    if (s) s->exposed = EXPOSED_WRAPPED;
    return s;
}

static void call_free_fn(etch_storage *s) {
    user_frame frame;
    if (!(s->exposed & EXPOSED_WRAPPED)) {
        s->free_fn(s->free_ctx); /* the library's own */
        return;
    }
    etch__before_write(NULL);
    etch__interrupt(&frame);
    s->free_fn(s->free_ctx);
    etch__end_interrupt(&frame);
}

void etch__storage_release(etch_storage *s) {
    if (!s) return;
    if (atomic_load_explicit(&s->refs, memory_order_acquire) != 1 &&
        atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1)
        return;
    if (unlikely(s->free_fn != NULL)) call_free_fn(s);
    if (likely(!s->device && !s->lent)) account(-(int64_t)s->bytes);
    if (s->block_bytes >= LARGE && keeps_blocks()) keep_block(s);
    else free_block(s);
}

etch_memory_stats etch_memory(void) {
    thread_counts c = etch__thread_counts();
    int64_t live = atomic_load(&bytes_live) + c.small_bytes;
    int64_t peak = atomic_load(&bytes_peak);
    return (etch_memory_stats){live, peak > live ? peak : live, c.tensors, c.allocations};
}

void etch_memory_reset_peak(void) { atomic_store(&bytes_peak, atomic_load(&bytes_live)); }
