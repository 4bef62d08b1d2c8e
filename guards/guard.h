/* Guards: what must hold for a trace to be entered.
 *
 * A tensor is guarded by dtype, rank, device, sizes and strides, never by values, address or
 * offset. */
#ifndef ETCH_GUARDS_GUARD_H
#define ETCH_GUARDS_GUARD_H

#include "core/ops/op.h"

/* The guard of a tensor as it is now: its meta without the offset. ETCH_NONE has the dtype
 * ETCH_DTYPE_COUNT. */
void etch__guard_make(const etch_tensor *t, tensor_meta *guard);

static inline bool etch__guard_holds(const tensor_meta *g, const etch_tensor *t) {
    if (g->dtype != t->dtype || g->ndim != t->ndim || g->device != t->device) return false;
    for (int d = 0; d < g->ndim; d++)
        if (g->size[d] != t->size[d] || g->stride[d] != t->stride[d]) return false;
    return true;
}

/* Of a dynamic trace: dtype, rank and device only. */
static inline bool etch__guard_holds_rank(const tensor_meta *g, const etch_tensor *t) {
    return g->dtype == t->dtype && g->ndim == t->ndim && g->device == t->device;
}

/* Marks on dimensions. m: of the arguments or captured tensor of a trace with run-time sizes, as
 * they were when it was recorded (NULL: none), g its guard. Fixed sizes are as recorded, dynamic
 * ones within the bounds, and what t has marked as fixed is fixed in the trace. */
bool etch__marks_hold(const dim_marks *m, const tensor_meta *g, const etch_tensor *t);
/* Whether t agrees in size with g wherever t is marked as fixed. */
bool etch__fixed_sizes_agree(const tensor_meta *g, const etch_tensor *t);
static inline bool etch__marked_dynamic(const etch_tensor *t) {
    return unlikely(t->notes != NULL) && t->notes->marks && t->notes->marks->dynamic;
}

/* "tensor 1: size mismatch at dim 0: expected 8, got 9"; "" when the guard holds. */
void etch__marks_explain(const dim_marks *m, const tensor_meta *g, const etch_tensor *t, int index,
                         char *buf, size_t n);
void etch__guard_explain(const tensor_meta *g, const etch_tensor *t, int index, char *buf,
                         size_t n);

/* "f32[8, 4]", for ETCH_LOGS=guards. */
void etch__guard_text(const tensor_meta *g, char *buf, size_t n);

#endif
