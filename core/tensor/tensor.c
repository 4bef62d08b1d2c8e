/* Handles: making, counting, destroying them, and the queries that never touch data. */
#include "core/base/locks.h"
#include "core/tensor/tensor.h"
#include "core/base/hooks.h"
#include "core/base/start.h"

static etch_tensor none = {.refs = 1, .magic = TENSOR_ALIVE, .dtype = ETCH_DTYPE_COUNT};
etch_tensor *const ETCH_NONE = &none;

/* ---- life ---- */

/* Each has cache lines of its own: threads that count their handles do not disturb others that read
 * theirs. (Aligned allocation is slower than a little room.) */
enum { LINE = 64 };
_Static_assert(sizeof(etch_tensor) % LINE == 0, "a handle is whole cache lines");

static etch_tensor *new_handle(void) {
    char *block = etch__malloc(sizeof(etch_tensor) + LINE);
    if (!block) return NULL;
    uintptr_t lead = -(uintptr_t)block % LINE;
    etch_tensor *t = (etch_tensor *)(block + lead);
    t->lead = (uint8_t)lead;
    return t;
}

void etch__handle_free(etch_tensor *t) {
    if (t) etch__free((char *)t - t->lead);
}

/* Handles come and go with every operator, so each thread keeps some of the dead ones. */
#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__)
enum { SPARE_HANDLES = 64 };

static etch_tensor *take_handle(void) {
    etch_thread *thread = &etch__tls;
    if (likely(thread->nspare > 0 && !etch__allocations_counted()))
        return thread->spare[--thread->nspare];
    return new_handle();
}

static void free_handle(etch_tensor *t) {
    etch_thread *thread = &etch__tls;
    t->magic = TENSOR_DEAD;
    if (unlikely(!thread->spare))
        thread->spare = etch__quiet_lines(SPARE_HANDLES * sizeof *thread->spare);
    if (likely(thread->spare && thread->nspare < SPARE_HANDLES))
        thread->spare[thread->nspare++] = t;
    else etch__handle_free(t);
}
#endif

#if !defined(NDEBUG) || defined(__SANITIZE_ADDRESS__)
/* Debug builds keep the last dead handles, so that using one is an error and not a crash. */
#include <pthread.h>
enum { QUARANTINE = 4096 };
static etch_tensor *dead[QUARANTINE];
static int next_dead;

static etch_tensor *take_handle(void) { return new_handle(); }

static void free_handle(etch_tensor *t) {
    t->magic = TENSOR_DEAD;
    etch__lock(LOCK_DEAD_HANDLES);
    etch_tensor *oldest = dead[next_dead];
    dead[next_dead] = t;
    next_dead = (next_dead + 1) % QUARANTINE;
    etch__unlock(LOCK_DEAD_HANDLES);
    etch__handle_free(oldest);
}

__attribute__((destructor)) static void empty_quarantine(void) {
    for (int i = 0; i < QUARANTINE; i++) etch__handle_free(dead[i]), dead[i] = NULL;
}
#endif

etch_tensor *etch__tensor_alloc(void) {
    etch_tensor *t = take_handle();
    if (!t) return NULL;
    uint8_t lead = t->lead;
    memset(t, 0, offsetof(etch_tensor, size));
    t->lead = lead;
    atomic_store_explicit(&t->refs, 1, memory_order_relaxed);
    t->magic = TENSOR_ALIVE;
    THREAD_COUNT(tensors, 1);
    return t;
}

tensor_notes *etch__notes(etch_tensor *t) {
    if (!t->notes) t->notes = etch__calloc(1, sizeof *t->notes);
    return t->notes;
}

static void no_drop(tensor_notes *notes) { (void)notes; }
void (*etch__drop_grad)(tensor_notes *notes) = no_drop;

static void free_notes(etch_tensor *t) {
    etch__free(t->notes->marks);
    etch__free(t->notes);
    t->notes = NULL;
}

static void bury(etch_tensor *t) {
    if (unlikely(t->notes != NULL)) free_notes(t);
    free_handle(t);
}

static void drop_layers(etch_tensor *t) {
    etch__drop_grad(t->notes);
    if (t->notes) etch_release(t->notes->inner), t->notes->inner = NULL;
    t->layers = 0;
}

void etch__tensor_destroy(etch_tensor *t) {
    if (unlikely(!etch__tls.registered)) etch__thread_register();
    etch__storage_release(t->storage);
    t->storage = NULL;
    if (unlikely(t->layers)) drop_layers(t);
    THREAD_COUNT(tensors, -1);
    if (likely(!atomic_load_explicit(&t->watchers, memory_order_acquire))) {
        bury(t);
        return;
    }
    t->magic = TENSOR_DEAD;
    atomic_store_explicit(&t->refs, 0, memory_order_release);
    etch__tensor_unwatch(t);
}

void etch__lie_over(etch_tensor *t, const tensor_meta *place, etch_storage *s) {
    etch__copy_meta(t, place);
    t->contiguous = etch__sizes_contiguous(place->ndim, place->size, place->stride);
    t->view = 1;
    t->storage = s;
    etch__storage_retain(s);
}

void etch__tensor_watch(etch_tensor *t) {
    int unwatched = 0;
    if (t == ETCH_NONE || atomic_compare_exchange_strong(&t->watchers, &unwatched, 2)) return;
    atomic_fetch_add(&t->watchers, 1);
}

void etch__tensor_unwatch(etch_tensor *t) {
    if (t != ETCH_NONE && atomic_fetch_sub(&t->watchers, 1) == 1) bury(t);
}

etch_tensor *etch_retain(etch_tensor *t) {
    if (t && t != ETCH_NONE) atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
    return t;
}

void etch_release(etch_tensor *t) {
    if (!t || t == ETCH_NONE) return;
    if (unlikely(etch__tls.borrower)) etch__trace_hooks.own_borrowed(t);
    if (atomic_load_explicit(&t->refs, memory_order_acquire) == 1 ||
        atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) == 1)
        etch__tensor_destroy(t);
}

etch_tensor *etch__tensor_new(etch_dtype dtype, int ndim, const int64_t *size) {
    etch_tensor *t = etch__tensor_alloc();
    if (!t) return NULL;
    t->dtype = (uint8_t)dtype, t->ndim = (uint8_t)ndim;
    if (ndim) memcpy(t->size, size, (size_t)ndim * sizeof *size);
    t->numel = etch__row_major(ndim, size, t->stride);
    t->contiguous = 1;
    if (t->numel < 0) {
        etch__error(ETCH_ERR_OVERFLOW, "the tensor's size in bytes does not fit in 63 bits");
        etch__tensor_destroy(t);
        return NULL;
    }
    t->storage = etch__storage_new((size_t)t->numel * etch_dtype_size(dtype));
    if (!t->storage || !etch__scope_push(t)) {
        etch__tensor_destroy(t);
        return NULL;
    }
    return t;
}

/* ---- queries ---- */

#define SITE __builtin_return_address(0)

/* Wraps a negative dimension; -1 with dim_range where it is outside. */
static int wrapped_dim(const etch_tensor *t, int dim, const char *function, const void *site) {
    if (!etch__handle_ok(t, function, "t", site)) return -1;
    int wrapped = dim < 0 ? dim + t->ndim : dim;
    if (wrapped >= 0 && wrapped < t->ndim) return wrapped;
    if (t->ndim)
        etch__error_at(site, ETCH_ERR_DIM_RANGE, "%s: expected a dimension from %d to %d, got %d",
                       function, -t->ndim, t->ndim - 1, dim);
    else
        etch__error_at(site, ETCH_ERR_DIM_RANGE,
                       "%s: a 0-d tensor has no dimension, asked for dimension %d", function, dim);
    return -1;
}

etch_dtype etch_dtype_of(const etch_tensor *t) {
    bool ok = etch__handle_ok(t, "etch_dtype_of", "t", SITE);
    return ok ? t->dtype : ETCH_DTYPE_COUNT;
}

int etch_ndim(const etch_tensor *t) {
    return etch__handle_ok(t, "etch_ndim", "t", SITE) ? t->ndim : -1;
}

int64_t etch_size(const etch_tensor *t, int dim) {
    int d = wrapped_dim(t, dim, "etch_size", SITE);
    return d < 0 ? -1 : t->size[d];
}

int64_t etch_stride(const etch_tensor *t, int dim) {
    int d = wrapped_dim(t, dim, "etch_stride", SITE);
    return d < 0 ? -1 : t->stride[d];
}

etch_shape etch_sizes(const etch_tensor *t) {
    etch_shape s = {0};
    if (!etch__handle_ok(t, "etch_sizes", "t", SITE)) return s;
    s.n = t->ndim;
    memcpy(s.v, t->size, (size_t)t->ndim * sizeof *s.v);
    return s;
}

int64_t etch_numel(const etch_tensor *t) {
    return etch__handle_ok(t, "etch_numel", "t", SITE) ? t->numel : -1;
}

int64_t etch_storage_offset(const etch_tensor *t) {
    if (!etch__handle_ok(t, "etch_storage_offset", "t", SITE)) return -1;
    return t->deferred ? etch__trace_hooks.offset(t) : t->offset;
}

bool etch_is_contiguous(const etch_tensor *t) {
    return etch__handle_ok(t, "etch_is_contiguous", "t", SITE) && t->contiguous;
}

bool etch_is_deferred(const etch_tensor *t) {
    return etch__handle_ok(t, "etch_is_deferred", "t", SITE) && t->deferred;
}

bool etch_shares_storage(const etch_tensor *a, const etch_tensor *b) {
    if (!etch__handle_ok(a, "etch_shares_storage", "a", SITE) ||
        !etch__handle_ok(b, "etch_shares_storage", "b", SITE))
        return false;
    while (a->notes && a->notes->inner) a = a->notes->inner; /* batched */
    while (b->notes && b->notes->inner) b = b->notes->inner;
    if (a->deferred || b->deferred) return etch__trace_hooks.same_storage(a, b);
    return a->storage == b->storage;
}

static void free_spare_handles(etch_thread *t) {
    while (t->nspare) etch__handle_free(t->spare[--t->nspare]);
    etch__free(t->spare);
    t->spare = NULL;
}

void etch__start_handles(void) { etch__at_thread_end(free_spare_handles); }
