/* The memory plan: intermediates into one arena by lifetime.
 *
 * Greedy best fit, larger buffers first: each takes the tightest gap among those placed before it
 * that live at the same time. A buffer's bytes are free again only after the step of its last
 * reader. */
#include "jit/ir/ir.h"

enum { ALIGN = 64 };

static int64_t rounded(int64_t bytes) { return (bytes + ALIGN - 1) & ~(int64_t)(ALIGN - 1); }

static bool overlap_in_time(const plan_interval *a, const plan_interval *b) {
    return a->first <= b->last && b->first <= a->last;
}

/* The lowest end of a placed buffer above `at` that clashes with v in [at, at + bytes), or at. */
static int64_t next_gap(const plan_interval *v, const int32_t *placed, int n,
                        const plan_interval *x, int64_t at) {
    for (int i = 0; i < n; i++) {
        const plan_interval *p = &v[placed[i]];
        if (!overlap_in_time(p, x)) continue;
        if (at < p->offset + rounded(p->bytes) && p->offset < at + rounded(x->bytes))
            return p->offset + rounded(p->bytes);
    }
    return at;
}

/* Bytes between `at` and the next buffer above that lives with x. */
static int64_t gap_size(const plan_interval *v, const int32_t *placed, int n,
                        const plan_interval *x, int64_t at) {
    int64_t size = INT64_MAX;
    for (int i = 0; i < n; i++) {
        const plan_interval *p = &v[placed[i]];
        if (overlap_in_time(p, x) && p->offset >= at && p->offset - at < size)
            size = p->offset - at;
    }
    return size;
}

static int64_t best_offset(const plan_interval *v, const int32_t *placed, int n,
                           const plan_interval *x) {
    int64_t best = -1, best_gap = INT64_MAX;
    for (int i = -1; i < n; i++) {
        if (i >= 0 && !overlap_in_time(&v[placed[i]], x)) continue;
        int64_t at = i < 0 ? 0 : v[placed[i]].offset + rounded(v[placed[i]].bytes);
        if (next_gap(v, placed, n, x, at) != at) continue;
        int64_t gap = gap_size(v, placed, n, x, at);
        if (best < 0 || gap < best_gap) best = at, best_gap = gap;
    }
    return best;
}

int64_t etch__memory_plan(arena *memory, plan_interval *v, int n) {
    int64_t total = 0;
    int32_t *order = etch__arena_new(memory, (n + 1) * sizeof *order);
    if (!order) return -1;
    for (int i = 0; i < n; i++) {
        int j = i;
        for (; j > 0 && v[order[j - 1]].bytes < v[i].bytes; j--) order[j] = order[j - 1];
        order[j] = i;
    }
    for (int i = 0; i < n; i++) {
        plan_interval *x = &v[order[i]];
        x->offset = best_offset(v, order, i, x);
        if (x->offset + rounded(x->bytes) > total) total = x->offset + rounded(x->bytes);
    }
    return total;
}
