/* Tensor and storage objects, scopes, and the thread's state, as the library's own files see them.
 *
 * A handle is counted; a scope holds one count of each handle it owns, a run (tracer) one of each
 * of its own. The count is atomic, but the last holder works without locked instructions: a count
 * of one belongs to whoever sees it. A storage is counted by the handles over it.
 *
 * Who must tell a tensor from others even after its last count is gone *watches* it: its address is
 * not given out again meanwhile, and what it looked like can be read; its storage is gone. */
#ifndef ETCH_CORE_TENSOR_TENSOR_H
#define ETCH_CORE_TENSOR_TENSOR_H

#include <etch/etch.h>
#include <stdatomic.h>

#include "core/base/thread.h"
#include "core/tensor/dtype.h"

typedef struct etch_storage {
    atomic_int refs;
    uint8_t device;        /* 0: the CPU; else see core/tensor/device.h */
    uint8_t pinned;        /* on the CPU, in memory of a device's driver: copies need not wait */
    uint8_t lent : 1;      /* over memory that another storage counts as its own */
    uint8_t own : 1;       /* allocated for it: no other storage lies there */
    _Atomic uint8_t forms; /* FORMS_* */
    atomic_uint version;   /* counts writes */
    atomic_uint exposed;   /* to whom its memory is known: see EXPOSED_WRAPPED */
    size_t bytes;
    size_t block_bytes;         /* of the whole block; 0 for wrapped memory */
    void *block;                /* what to free: this header, or a few bytes before it */
    void *data;                 /* aligned to 64 bytes when owned; an address of the device */
    void (*free_fn)(void *ctx); /* of wrapped memory and of devices, else NULL */
    void *free_ctx;
} etch_storage;

/* Of core/tensor/forms.h: forms of it may be kept; none may be, since a raw pointer for writing was
 * given out. */
enum { FORMS_NOTED = 1, FORMS_NEVER = 2 };

/* What `exposed` is made of: two bits, and how many runs, on all threads, hold a raw pointer to
 * read and to write through (each counts once in each). EXPOSED_PENDING: a copy between it and a
 * device is under way; who touches it waits first. */
enum {
    EXPOSED_WRAPPED = 1,
    EXPOSED_PENDING = 2,
    EXPOSED_READER = 1 << 2,
    EXPOSED_WRITER = 1 << 17
};
#define EXPOSED_WRITERS (~(EXPOSED_WRITER - 1u))

/* What the user has said of a tensor's dimensions, a bit each: see etch_mark_dynamic. */
typedef struct dim_marks {
    uint8_t dynamic, fixed;
    int64_t min[ETCH_MAX_DIMS], max[ETCH_MAX_DIMS]; /* of dynamic ones */
} dim_marks;

/* What few tensors have. */
typedef struct tensor_notes {
    dim_marks *marks;       /* or NULL */
    struct tape_node *edge; /* counted: of a tape, where its gradient goes; NULL: nowhere */
    struct view_family
        *family;     /* counted: who shares the storage, as far as gradients go; or NULL */
    uint64_t writes; /* of the family, when the edge was made */
    bool base;       /* it is the family's base: its edge is the family's */
    struct recipe_run *recipe; /* counted: how to compute it, in place of a storage; or NULL */
    int32_t value;             /* which value of the recipe it is */
    struct tangent *tangents;  /* of forward mode, the highest level first; or NULL */
    etch_tensor *inner;        /* counted: of a batched tensor, that with the batch; or NULL */
    uint32_t level;            /* at which it is batched */
} tensor_notes;

/* The derivative of a tensor at one level of forward mode (core/transforms/tangent.h). */
typedef struct tangent {
    struct tangent *next;
    etch_tensor *value; /* counted; of the tensor's sizes and dtype */
    uint32_t level;
    bool own;    /* its memory is nobody else's */
    bool viewed; /* there are views of both: it is written in place as the tensor is */
} tangent;

/* The most levels that a value can be batched at: each has a dimension below. */
enum { BATCH_LEVELS = ETCH_MAX_DIMS };

enum { TENSOR_ALIVE = 0x7e, TENSOR_DEAD = 0xdd };
enum { VIEW_MADE = 1, VIEW_SAVED = 2 /* a tape made it, and nobody else has it */ };

struct etch_tensor {
    atomic_int refs;
    int32_t value; /* deferred: its number in the owner's run */
    uint8_t magic; /* TENSOR_ALIVE */
    uint8_t dtype, ndim;
    uint8_t deferred;    /* storage not there yet: owner and value say where it comes from */
    uint8_t failed;      /* what it depends on failed: using it is an error */
    uint8_t contiguous;  /* row-major without gaps (true for numel <= 1) */
    uint8_t device;      /* that its storage is on, or will be */
    uint8_t lead;        /* bytes of the allocated block before it */
    uint16_t sizes;      /* a walk's own: see trace_cursor.sizes */
    uint8_t layers;      /* bit per dispatch_layer that sees every call with it */
    uint8_t view;        /* VIEW_MADE: an operator made it over the storage of its operand */
    atomic_int watchers; /* how many, and one for all counts together; 0: nobody ever */
    int64_t offset;      /* elements */
    int64_t numel;
    etch_storage *storage;    /* NULL while deferred, and of a batched tensor */
    struct trace_walk *owner; /* the tracer's walk that holds a count of it, or NULL */
    tensor_notes *notes;      /* or NULL */
    int64_t size[ETCH_MAX_DIMS], stride[ETCH_MAX_DIMS];
};

static inline dim_marks *etch__marks(const etch_tensor *t) {
    return likely(!t->notes) ? NULL : t->notes->marks;
}
/* Its notes, made at the first; NULL with out_of_memory. */
tensor_notes *etch__notes(etch_tensor *t);
/* What happens to edges and families when a tensor that has them goes (core/autograd). */
extern void (*etch__drop_grad)(tensor_notes *notes);

/* Waits for a copy that is under way between the host storage and a device. */
etch_status etch__await_storage(etch_storage *s);
static inline etch_status etch__await_copy(const etch_tensor *t) {
    if (likely(!t->storage || !(atomic_load_explicit(&t->storage->exposed, memory_order_relaxed) &
                                EXPOSED_PENDING)))
        return ETCH_OK;
    return etch__await_storage(t->storage);
}

/* ---- making and destroying ---- */

/* New storage with count 1; contents undefined. NULL with out_of_memory. bytes may be 0. */
etch_storage *etch__storage_new(size_t bytes);
void etch__storage_release(etch_storage *s);
/* A header with count 1 over memory that is somebody else's, and stays so
 * unless a free_fn is set. */
etch_storage *etch__storage_over(int device, void *data, size_t bytes);
/* The same over memory of another storage; and when that has become its own. */
etch_storage *etch__storage_lent(int device, void *data, size_t bytes);
void etch__storage_keep(etch_storage *s);
/* A storage over memory of the user, exposed, with count 1 and no free_fn yet. */
etch_storage *etch__storage_wrap(void *data, size_t bytes);
static inline void etch__storage_retain(etch_storage *s) {
    atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
}

/* A raw handle with count 1 and no storage, owned by nobody. NULL with out_of_memory. */
etch_tensor *etch__tensor_alloc(void);
/* Makes a new handle a view of a storage, of which it takes a count. */
struct tensor_meta;
void etch__lie_over(etch_tensor *t, const struct tensor_meta *place, etch_storage *s);
/* Frees a handle whose count has fallen to 0 (releases its storage). */
void etch__tensor_destroy(etch_tensor *t);
/* By one who has a count of it, or watches it already. */
void etch__tensor_watch(etch_tensor *t);
void etch__tensor_unwatch(etch_tensor *t);
/* Of one that is watched: whether its last count is gone. */
static inline bool etch__tensor_is_dead(const etch_tensor *t) {
    return atomic_load_explicit(&t->refs, memory_order_acquire) == 0;
}
/* Gives the memory of a dead handle back. */
void etch__handle_free(etch_tensor *t);

/* Gives the handle to the innermost scope (which takes over one count). false: no_scope or
 * out_of_memory is set and the count was not taken. */
bool etch__scope_push(etch_tensor *t);
/* Asked where a scope is missing: whether there was no memory for one that was to be open. Then
 * out_of_memory is set. */
bool etch__scope_lost(const void *site);

/* A new contiguous tensor of the innermost scope with undefined contents. */
etch_tensor *etch__tensor_new(etch_dtype dtype, int ndim, const int64_t *size);

/* Whether a handle that comes from the user is there: not NULL, nor released (debug builds), nor
 * failed. */
static inline bool etch__usable(const etch_tensor *t) {
    return likely(t != NULL && t->magic == TENSOR_ALIVE && !t->failed);
}
/* The error of one that is not; false. NULL, and one whose computation failed, keep an older error,
 * which tells why it is so. Names live for ever; the operator or function, its argument. */
bool etch__bad_handle(const etch_tensor *t, const char *name, const char *argument,
                      const void *site);
static inline bool etch__handle_ok(const etch_tensor *t, const char *name, const char *argument,
                                   const void *site) {
    return etch__usable(t) || etch__bad_handle(t, name, argument, site);
}

/* Bytes of an element, of a tensor's own (so valid) dtype. */
extern const uint8_t etch__element_bytes[ETCH_DTYPE_COUNT];
static inline int64_t etch__item_size(const etch_tensor *t) {
    return etch__element_bytes[t->dtype];
}

static inline void *etch__ptr(const etch_tensor *t) {
    return (char *)t->storage->data + t->offset * etch__item_size(t);
}

/* ---- shape arithmetic ---- */

/* Row-major strides of sizes; returns the number of elements, or -1 where the size in bytes of the
 * largest element type does not fit in 63 bits. */
int64_t etch__row_major(int ndim, const int64_t *size, int64_t *stride);
bool etch__sizes_contiguous(int ndim, const int64_t *size, const int64_t *stride);
static inline bool etch__same_dims(int n, const int64_t *a, int m, const int64_t *b) {
    bool same = n == m;
    for (int d = 0; same && d < n; d++) same = a[d] == b[d];
    return same;
}
/* Of tensors, metas and all else that has both. */
#define SAME_SIZES(a, b) etch__same_dims((a)->ndim, (a)->size, (b)->ndim, (b)->size)
#define SAME_STRIDES(a, b) etch__same_dims((a)->ndim, (a)->stride, (b)->ndim, (b)->stride)

/* What inference says about one result. */
typedef struct tensor_meta {
    uint8_t dtype, ndim, device;
    int64_t offset; /* of views, else 0 */
    int64_t size[ETCH_MAX_DIMS], stride[ETCH_MAX_DIMS];
} tensor_meta;
static inline bool etch__same_elements(const tensor_meta *a, const tensor_meta *b) {
    return a->dtype == b->dtype && SAME_SIZES(a, b);
}
static inline bool etch__same_meta(const tensor_meta *a, const tensor_meta *b) {
    return a->dtype == b->dtype && a->device == b->device && a->offset == b->offset &&
           SAME_SIZES(a, b) && SAME_STRIDES(a, b);
}
static inline void etch__copy_meta(etch_tensor *t, const tensor_meta *m) {
    t->dtype = m->dtype, t->ndim = m->ndim, t->offset = m->offset;
    t->device = m->device;
    t->numel = 1;
    for (int d = 0; d < m->ndim; d++) {
        t->size[d] = m->size[d], t->stride[d] = m->stride[d];
        t->numel *= m->size[d];
    }
}
/* Sizes, strides, offset and what follows from them; not the storage. */
void etch__apply_meta(etch_tensor *t, const tensor_meta *meta);

/* "[2, 3]", for messages. */
typedef struct shape_text {
    char s[192];
} shape_text;
shape_text etch__shape_text(int ndim, const int64_t *size);

/* For public readers: t checked and its data there. */
etch_status etch__materialise(const etch_tensor *t, const char *function, reason_id why,
                              const void *site);

#endif
