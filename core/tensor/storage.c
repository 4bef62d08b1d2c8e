/* Storages: header and data in one block, each aligned to 64 bytes: what one thread counts or
 * writes never lies in a cache line with what another thread has.
 *
 * Blocks from 16 KiB on are kept for reuse when they are freed, up to a bound in bytes that the
 * process shares: fresh pages cost a fault each, which for a memory-bound kernel is as dear as the
 * kernel itself, and malloc gives the end of its heap back to the system and asks for it again. A
 * class of blocks has one size, eight to an octave, so that any of them serves; data of a power of
 * two wastes nothing. Where memory runs out they are given back. Nobody waits for a lock here: each
 * place is taken and filled by one exchange. */
#include "core/base/start.h"
#include "core/tensor/device.h"
#include "core/tensor/forms.h"

#include <sys/mman.h>

enum { ALIGN = 64, LEAST_LOG2 = 14, CLASSES = 8 * (48 - LEAST_LOG2), PLACES = 32 };
#define SMALL ((int64_t)1 << 16)
#define LEAST_KEPT ((size_t)1 << LEAST_LOG2)
#define HUGE_PAGE ((size_t)1 << 21)

/* The kept blocks of one size. Ages and the number are hints. */
typedef struct block_class {
    _Atomic int32_t number;
    _Atomic(etch_storage *) block[PLACES];
    _Atomic uint64_t age[PLACES];
} block_class;

static block_class classes[CLASSES];
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

/* ---- kept blocks ---- */

static int log2_of(size_t n) { return 63 - __builtin_clzll(n); }

/* The least size of a class that holds so much data. */
static size_t class_size(size_t data) {
    size_t step = (size_t)1 << (log2_of(data) - 3);
    return (data + step - 1) & ~(step - 1);
}

static block_class *class_of(size_t size) {
    int log2 = log2_of(size);
    size_t eighth = size >> (log2 - 3) & 7;
    return &classes[8 * (size_t)(log2 - LEAST_LOG2) + eighth];
}

static bool is_kept(size_t data) {
#if defined(__SANITIZE_ADDRESS__)
    return (void)data, false; /* so that a use after free is seen */
#else
    return data >= LEAST_KEPT && data < (size_t)1 << 47;
#endif
}

/* Takes the block out of a place; NULL if there is none. */
static etch_storage *take_place(block_class *c, int i) {
    if (!atomic_load_explicit(&c->block[i], memory_order_relaxed)) return NULL;
    etch_storage *block = atomic_exchange_explicit(&c->block[i], NULL, memory_order_acquire);
    if (!block) return NULL;
    atomic_fetch_sub_explicit(&c->number, 1, memory_order_relaxed);
    atomic_fetch_sub(&kept_bytes, (int64_t)block->block_bytes);
    return block;
}

/* Puts a block into a place if that is empty. */
static bool fill_place(block_class *c, int i, etch_storage *block) {
    etch_storage *none = NULL;
    int64_t bytes = (int64_t)block->block_bytes; /* once it is there, another may have it */
    if (atomic_load_explicit(&c->block[i], memory_order_relaxed)) return false;
    atomic_store_explicit(&c->age[i], atomic_fetch_add(&ages, 1), memory_order_relaxed);
    if (!atomic_compare_exchange_strong_explicit(&c->block[i], &none, block, memory_order_release,
                                                 memory_order_relaxed))
        return false;
    atomic_fetch_add_explicit(&c->number, 1, memory_order_relaxed);
    atomic_fetch_add(&kept_bytes, bytes);
    return true;
}

static void free_block(etch_storage *s) {
    if (s) etch__free(s->block);
}

/* The oldest block of a class, if it is older than *age. */
static int oldest_place(const block_class *c, uint64_t *age) {
    int oldest = -1;
    for (int i = 0; i < PLACES; i++) {
        uint64_t a = atomic_load_explicit(&c->age[i], memory_order_relaxed);
        if (a >= *age || !atomic_load_explicit(&c->block[i], memory_order_relaxed)) continue;
        *age = a;
        oldest = i;
    }
    return oldest;
}

static bool drop_oldest(void) {
    block_class *from = NULL;
    uint64_t age = UINT64_MAX;
    int at = -1;
    for (int k = 0; k < CLASSES; k++) {
        if (atomic_load_explicit(&classes[k].number, memory_order_relaxed) <= 0) continue;
        int i = oldest_place(&classes[k], &age);
        if (i >= 0) from = &classes[k], at = i;
    }
    if (from) free_block(take_place(from, at));
    return from != NULL;
}

void etch__start_blocks(void) { etch__give_back = drop_oldest; }

/* Keeps the block, dropping the oldest ones over the limit; frees it where its class is full. */
static void keep_block(etch_storage *block, size_t size) {
    int64_t limit = etch__param_int(PARAM_KEEP_MEMORY), bytes = (int64_t)block->block_bytes;
    while (bytes <= limit && atomic_load(&kept_bytes) + bytes > limit && drop_oldest()) continue;
    for (int i = 0; bytes <= limit && i < PLACES; i++)
        if (fill_place(class_of(size), i, block)) return;
    free_block(block);
}

static etch_storage *take_kept(size_t size) {
    block_class *c = class_of(size);
    if (atomic_load_explicit(&c->number, memory_order_relaxed) <= 0) return NULL;
    for (int i = 0; i < PLACES; i++) {
        etch_storage *block = take_place(c, i);
        if (block) return block;
    }
    return NULL;
}

_Static_assert(sizeof(etch_storage) <= ALIGN, "a header is one cache line");

/* Asks for huge pages inside a fresh large block; only advice, failure does not matter. */
static void advise(void *block, size_t bytes) {
    if (bytes < 2 * HUGE_PAGE) return;
    uintptr_t from = ((uintptr_t)block + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
    uintptr_t to = ((uintptr_t)block + bytes) & ~(HUGE_PAGE - 1);
    if (to > from) madvise((void *)from, to - from, MADV_HUGEPAGE);
}

/* A header and, behind it, room for data. */
static etch_storage *take_block(size_t data) {
    bool reuse = is_kept(data);
    size_t bytes = (reuse ? class_size(data) : data) + 2 * ALIGN;
    etch_storage *s = reuse ? take_kept(bytes - 2 * ALIGN) : NULL;
    void *block = s ? s->block : etch__malloc(bytes);
    if (!block) return NULL;
    if (!s) advise(block, bytes);
    s = (void *)(((uintptr_t)block + ALIGN - 1) & ~(uintptr_t)(ALIGN - 1));
    memset(s, 0, sizeof *s);
    s->block = block;
    s->block_bytes = bytes;
    return s;
}

etch_storage *etch__storage_new(size_t bytes) {
    etch_storage *s = take_block(bytes);
    if (!s) return NULL;
    atomic_store_explicit(&s->refs, 1, memory_order_relaxed);
    s->bytes = bytes, s->own = 1;
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
        s->own = 1;
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
    empty_frame frame;
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
    if (unlikely(s->forms & FORMS_NOTED)) etch__forms_drop(s);
    if (unlikely(s->free_fn != NULL)) call_free_fn(s);
    if (likely(!s->device && !s->lent)) account(-(int64_t)s->bytes);
    size_t size = s->block_bytes - 2 * ALIGN;
    if (s->block_bytes && is_kept(size)) keep_block(s, size);
    else free_block(s);
}

etch_memory_stats etch_memory(void) {
    thread_counts c = etch__thread_counts();
    int64_t live = atomic_load(&bytes_live) + c.small_bytes;
    int64_t peak = atomic_load(&bytes_peak);
    return (etch_memory_stats){live, peak > live ? peak : live, c.tensors, c.allocations};
}

void etch_memory_reset_peak(void) { atomic_store(&bytes_peak, atomic_load(&bytes_live)); }
