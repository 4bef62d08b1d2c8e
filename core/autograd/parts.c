/* Gradients of parts: what slices and selections of one value pass on to it. They are kept as they
 * come, and written into one tensor when the value's turn comes: into memory that nobody has
 * cleared where they are all of it side by side, else into zeros; where they overlap, the later
 * ones are added. So a value that was cut in n parts costs one tensor, and not n and their sums. */
#include "core/autograd/parts.h"

#include <etch/etch.h>

#include <stdlib.h>

#include "core/base/base.h"

/* ---- where they lie ---- */

static int64_t end_of(const gradient_part *p) { return p->from + (p->count - 1) * p->step + 1; }

static int by_place(const void *a, const void *b) {
    const gradient_part *p = a, *q = b;
    return p->from < q->from ? -1 : p->from > q->from;
}

typedef enum cover { OVERLAP, APART, SIDE_BY_SIDE } cover;

static cover cover_of(gradient_part *p, int64_t n, const value_shape *shape) {
    bool whole = true;
    int64_t end = 0;
    qsort(p, (size_t)n, sizeof *p, by_place);
    for (int64_t i = 0; i < n; i++) {
        if (p[i].dim != p[0].dim || p[i].from < end) return OVERLAP;
        whole &= p[i].from == end && (p[i].step == 1 || p[i].count == 1);
        end = end_of(&p[i]);
    }
    return whole && end == shape->size[p[0].dim] ? SIDE_BY_SIDE : APART;
}

/* false: no memory. */
static bool find_cover(const gradient_parts *parts, const value_shape *shape, cover *c) {
    gradient_part *p = etch__calloc((size_t)parts->n, sizeof *p);
    if (!p) return false;
    for (int64_t i = 0; i < parts->n; i++) p[i] = parts->v[i].at;
    *c = cover_of(p, parts->n, shape);
    etch__free(p);
    return true;
}

/* ---- the list ---- */

bool etch__parts_add(gradient_parts *parts, const gradient_part *at, etch_tensor *grad) {
    if (!etch__grow(&parts->v, &parts->cap, parts->n + 1, sizeof *parts->v)) return false;
    parts->v[parts->n].at = *at;
    parts->v[parts->n++].grad = etch_retain(grad);
    return true;
}

void etch__parts_free(gradient_parts *parts) {
    for (int64_t i = 0; i < parts->n; i++) etch_release(parts->v[i].grad);
    etch__free(parts->v);
    *parts = (gradient_parts){NULL};
}

/* ---- their sum ---- */

static etch_tensor *begin(const value_shape *shape, cover c) {
    etch_tensor *t = NULL;
    etch_shape sizes = etch__sizes_of(shape);
    ETCH_ON(shape->device) {
        t = c == SIDE_BY_SIDE ? etch_empty((etch_dtype)shape->dtype, sizes)
                              : etch_zeros((etch_dtype)shape->dtype, sizes);
    }
    return t;
}

etch_tensor *etch__parts_sum(const gradient_parts *parts, const value_shape *shape) {
    cover c;
    if (!find_cover(parts, shape, &c)) return NULL;
    etch_tensor *all = begin(shape, c);
    for (int64_t i = 0; all && i < parts->n; i++) {
        const gradient_part *p = &parts->v[i].at;
        etch_tensor *g = parts->v[i].grad;
        if (!etch__holds(all, g) && !(all = etch__copy_batched_as(all, &g, 1))) return NULL;
        etch_tensor *at = etch_slice(all, p->dim, p->from, end_of(p), p->step);
        bool adds = c == OVERLAP && i > 0;
        if (!at || !(adds ? etch_add_ : etch_copy_)(at, g)) return NULL;
    }
    return all;
}
