/* Pinned host memory: blocks that are kept when they are freed (the driver takes long for them),
 * each with an event behind the last copy that uses it. A copy on another stream first waits for
 * that event, so the last one stands for all. */
#include "core/base/locks.h"
#include "backends/cuda/pinned.h"

#include "backends/cuda/faults.h"

#include <pthread.h>

typedef struct pinned_block {
    void *memory;
    size_t bytes;
    struct pinned_block *next; /* unused */
    pthread_mutex_t lock;      /* of what follows */
    cuda_stream *stream;       /* of the last copy; NULL: none is under way */
    cu_event event;            /* of the device it was made for */
    int device;
} pinned_block;

enum { KEPT_MAX = 64 };
static pinned_block *unused;
static int nunused;

/* ---- blocks ---- */

/* Waits for the block's copies; the memory is the driver's own affair in a forked child. */
static void free_block(pinned_block *b) {
    KEEP_ERROR;
    if (etch__cuda_enter(b->device)) {
        if (b->stream) etch__cuda.cuEventSynchronize(b->event);
        if (b->event) etch__cuda.cuEventDestroy_v2(b->event);
        if (b->memory) etch__cuda.cuMemFreeHost(b->memory);
    }
    pthread_mutex_destroy(&b->lock);
    etch__free(b);
}

/* Nobody else holds the block. */
static bool idle(pinned_block *b) {
    if (b->stream && etch__cuda.cuEventQuery(b->event) == 0) b->stream = NULL;
    return !b->stream;
}

/* An unused block of about this size whose copies are done. */
static pinned_block *take(size_t bytes) {
    etch__lock(LOCK_CUDA_PINNED);
    pinned_block **at = &unused, *b;
    while ((b = *at) && (b->bytes < bytes || b->bytes / 2 > bytes || !idle(b))) at = &b->next;
    if (b) *at = b->next, nunused--;
    etch__unlock(LOCK_CUDA_PINNED);
    return b;
}

static void give(void *ctx) {
    pinned_block *b = ctx;
    etch__lock(LOCK_CUDA_PINNED);
    bool keep = nunused < KEPT_MAX;
    if (keep) b->next = unused, unused = b, nunused++;
    etch__unlock(LOCK_CUDA_PINNED);
    if (!keep) free_block(b);
}

void etch__cuda_trim_pinned(void) {
    etch__lock(LOCK_CUDA_PINNED);
    pinned_block *b = unused;
    unused = NULL, nunused = 0;
    etch__unlock(LOCK_CUDA_PINNED);
    for (pinned_block *next; b; b = next) {
        next = b->next;
        free_block(b);
    }
}

static pinned_block *new_block(int index, size_t bytes) {
    pinned_block *b = etch__calloc(1, sizeof *b);
    if (!b) return NULL;
    b->bytes = (bytes + 4095) & ~(size_t)4095;
    b->device = index;
    pthread_mutex_init(&b->lock, NULL);
    if (CU(cuMemAllocHost_v2, &b->memory, b->bytes) == ETCH_OK) return b;
    free_block(b);
    return NULL;
}

etch_status etch__cuda_allocate_pinned(int index, etch_storage *s) {
    if (!etch__cuda_enter(index)) return etch__tls.status;
    pinned_block *b = etch__allocations_counted() ? NULL : take(s->bytes);
    if (!b && !(b = new_block(index, s->bytes))) return etch__tls.status;
    s->data = b->memory;
    s->free_fn = give, s->free_ctx = b;
    return ETCH_OK;
}

/* ---- copies under way ---- */

/* Under the block's lock. */
static etch_status wait_for(pinned_block *b) {
    if (!b->stream) return ETCH_OK;
    if (!etch__cuda_enter(b->device)) return etch__tls.status;
    if (etch__cuda.cuEventSynchronize(b->event)) return etch__cuda_wait(b->stream);
    b->stream = NULL;
    return ETCH_OK;
}

etch_status etch__cuda_settle(etch_storage *s) {
    pinned_block *b = s->free_ctx;
    pthread_mutex_lock(&b->lock);
    cuda_stream *last = b->stream;
    etch_status status = wait_for(b);
    if (status == ETCH_OK && last) status = etch__cuda_finish_checks(last);
    if (status == ETCH_OK) atomic_fetch_and(&s->exposed, ~(unsigned)EXPOSED_PENDING);
    pthread_mutex_unlock(&b->lock);
    return status;
}

/* The block's event for copies on the device of s, which is entered. */
static etch_status move_event(pinned_block *b, int index) {
    if (b->event && b->device == index) return ETCH_OK;
    etch_status status = wait_for(b);
    if (status != ETCH_OK) return status;
    if (b->event) etch__cuda.cuEventDestroy_v2(b->event);
    b->event = NULL, b->device = index;
    if (!etch__cuda_enter(index)) return etch__tls.status;
    return CU(cuEventCreate, &b->event, CU_EVENT_DISABLE_TIMING_);
}

/* A copy that is recorded is no copy yet. */
etch_status etch__cuda_pinned_begin(cuda_stream *s, etch_storage *storage) {
    pinned_block *b = storage->free_ctx;
    if (etch__cuda_capturing()) return ETCH_OK;
    pthread_mutex_lock(&b->lock);
    etch_status status = move_event(b, etch__cuda_stream_device(s)->index);
    if (status == ETCH_OK && b->stream && b->stream != s)
        status = CU(cuStreamWaitEvent, etch__cuda_stream_handle(s), b->event, 0);
    if (status != ETCH_OK) pthread_mutex_unlock(&b->lock);
    return status;
}

/* Without its event a copy cannot be under way: it is waited for. */
etch_status etch__cuda_pinned_end(cuda_stream *s, etch_storage *storage, etch_status status) {
    pinned_block *b = storage->free_ctx;
    if (etch__cuda_capturing()) return status;
    if (status == ETCH_OK && CU(cuEventRecord, b->event, etch__cuda_stream_handle(s)) == ETCH_OK) {
        b->stream = s;
        atomic_fetch_or(&storage->exposed, EXPOSED_PENDING);
    } else {
        etch_status waited = etch__cuda_wait(s);
        status = status == ETCH_OK && waited == ETCH_OK ? etch__tls.status : status;
    }
    pthread_mutex_unlock(&b->lock);
    return status;
}
