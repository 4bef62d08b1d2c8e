/* Guards of captured tensors: see capture.h. */
#include "guards/capture.h"

void etch__capture_make(capture *c, const etch_tensor *t, int32_t value, int32_t operand) {
    c->value = value, c->operand = operand;
    c->fixed = etch__marks(t) ? etch__marks(t)->fixed : 0;
    etch__guard_make(t, &c->guard);
}

bool etch__capture_fits(const capture *c, const etch_tensor *t, bool by_rank) {
    if (!by_rank) return etch__guard_holds(&c->guard, t) && !etch__marked_dynamic(t);
    const dim_marks fixed = {.fixed = c->fixed};
    return etch__guard_holds_rank(&c->guard, t) &&
           (likely(!c->fixed && !t->notes) || etch__marks_hold(&fixed, &c->guard, t));
}

static bool same_class(const tensor_meta *a, const tensor_meta *b) {
    return a->dtype == b->dtype && a->ndim == b->ndim && a->device == b->device;
}

static bool same_sizes(const tensor_meta *a, const tensor_meta *b) {
    return SAME_SIZES(a, b) && SAME_STRIDES(a, b);
}

static bool same_fixed_sizes(const capture *a, const capture *b) {
    for (int d = 0; d < a->guard.ndim; d++)
        if (a->fixed >> d & 1 && a->guard.size[d] != b->guard.size[d]) return false;
    return a->fixed == b->fixed;
}

bool etch__same_captures(const capture *a, const capture *b, int n, bool by_rank) {
    for (int i = 0; i < n; i++, a++, b++)
        if (a->value != b->value || a->operand != b->operand || !same_class(&a->guard, &b->guard) ||
            !(by_rank ? same_fixed_sizes(a, b) : same_sizes(&a->guard, &b->guard)))
            return false;
    return true;
}
