/* Batched tensors: making them, their levels, and the way from and to the physical tensor below. */
#include "core/transforms/batch.h"

#include <etch/etch.h>

#include "core/base/start.h"
#include "core/dispatch/dispatch.h"
#include "core/transforms/tangent.h"

/* ---- making ---- */

etch_tensor *etch__batch_over(etch_tensor *inner, uint32_t level) {
    etch_tensor *t = etch__tensor_alloc();
    tensor_notes *notes = t ? etch__notes(t) : NULL;
    if (!notes) {
        if (t) etch__tensor_destroy(t);
        return NULL;
    }
    tensor_meta m = {
        .dtype = inner->dtype, .ndim = (uint8_t)(inner->ndim - 1), .device = inner->device};
    memcpy(m.size, inner->size + 1, m.ndim * sizeof *m.size);
    memcpy(m.stride, inner->stride + 1, m.ndim * sizeof *m.stride);
    etch__copy_meta(t, &m);
    t->contiguous = etch__sizes_contiguous(m.ndim, m.size, m.stride);
    t->view = inner->view;
    notes->inner = etch_retain(inner), notes->level = level;
    t->layers = 1u << LAYER_VMAP;
    etch__begin_layered(LAYERED_HANDLES);
    return t;
}

etch_tensor *etch__batch_made(etch_tensor *inner, uint32_t level) {
    etch_tensor *t = inner ? etch__batch_over(inner, level) : NULL;
    if (!t || etch__scope_push(t)) return t;
    etch__tensor_destroy(t);
    return NULL;
}

etch_tensor *etch__rebatched(const etch_tensor *t, etch_tensor *physical) {
    if (!etch__is_batched(t)) return etch_retain(physical);
    etch_tensor *inner = etch__rebatched(t->notes->inner, physical);
    etch_tensor *over = inner ? etch__batch_over(inner, t->notes->level) : NULL;
    etch_release(inner);
    return over;
}

/* ---- levels ---- */

batch_levels etch__levels_of(const etch_tensor *t) {
    batch_levels l = {{0}};
    for (int n = 0; etch__is_batched(t) && n < BATCH_LEVELS; t = t->notes->inner)
        l.level[n++] = t->notes->level;
    return l;
}

bool etch__has_level(const batch_levels *levels, uint32_t level) {
    bool has = false;
    for (int i = 0; i < BATCH_LEVELS; i++) has |= levels->level[i] == level;
    return has;
}

bool etch__batched_as(const etch_tensor *a, const etch_tensor *b) {
    batch_levels have = etch__levels_of(a);
    bool as = true;
    for (; as && etch__is_batched(b); b = b->notes->inner)
        as = etch__has_level(&have, b->notes->level);
    return as;
}

uint32_t etch__next_level(void) {
    static _Atomic uint32_t last;
    return atomic_fetch_add_explicit(&last, 1, memory_order_relaxed) + 1;
}

/* Those whose scope is gone were left by a jump. */
void etch__drop_left_levels(void) {
    etch_thread *t = &etch__tls;
    while (t->nlevels && t->open->mapped[t->nlevels - 1].scope > t->nscopes) t->nlevels--;
    if (!t->nlevels) t->layers &= ~(1u << LAYER_VMAP);
}

bool etch__levels_ready(void) {
    if (likely(etch__tls.open)) return true;
    if (unlikely(!etch__tls.registered)) etch__thread_register();
    return (etch__tls.open = etch__calloc(1, sizeof *etch__tls.open)) != NULL;
}

static void free_levels(etch_thread *t) {
    etch__tangents_end(t);
    etch__free(t->open);
    t->open = NULL, t->nlevels = t->ntangents = 0;
}

void etch__start_levels(void) { etch__at_thread_end(free_levels); }

uint32_t etch__level_open(uint8_t randomness, int64_t size) {
    etch_thread *t = &etch__tls;
    if (!etch__levels_ready()) return 0;
    etch__drop_left_levels();
    if (t->nlevels == OPEN_LEVELS) {
        etch__error_at(NULL, ETCH_ERR_UNSUPPORTED,
                       "etch_vmap: expected at most %d calls of mapped functions inside of each "
                       "other",
                       OPEN_LEVELS);
        return 0;
    }
    batch_level l = {etch__next_level(), randomness, size, t->nscopes};
    t->open->mapped[t->nlevels++] = l;
    t->layers |= 1u << LAYER_VMAP;
    return l.level;
}

void etch__level_close(uint32_t level) {
    etch_thread *t = &etch__tls;
    for (int i = 0; i < t->nlevels; i++)
        if (t->open->mapped[i].level == level) t->nlevels = i;
    etch__drop_left_levels();
}

bool etch__level_is_open(uint32_t level) {
    bool open = false;
    for (int i = 0; i < etch__tls.nlevels; i++) open |= etch__tls.open->mapped[i].level == level;
    return open;
}

/* ---- from and to the physical tensor ---- */

/* What these call is not noted, and has no tangents. Returns what leave takes back. */
typedef struct below {
    uint64_t state;
    uint32_t limit;
} below;
static below enter(void) {
    below outer = {etch__tls.state, etch__tangent_limit(1)};
    etch__tls.state |= STATE_NO_GRAD;
    return outer;
}
static etch_tensor *leave(below outer, etch_tensor *t) {
    etch__tls.state = (etch__tls.state & ~(uint64_t)STATE_NO_GRAD) | (outer.state & STATE_NO_GRAD);
    etch__tangent_limit(outer.limit);
    return t;
}

static etch_tensor *moved(etch_tensor *t, int from, int to) {
    return from == to ? t : etch_movedim(t, ETCH_DIMS(from), ETCH_DIMS(to));
}

/* Of one that has higher levels the inner tensor is the one to change: there everything has one
 * dimension more in front. */
static bool is_below(const etch_tensor *t, uint32_t level) { return etch__level_of(t) > level; }

etch_tensor *etch__batch(etch_tensor *t, int dim, uint32_t level) {
    if (is_below(t, level))
        return etch__batch_made(etch__batch(t->notes->inner, dim + 1, level), t->notes->level);
    below outer = enter();
    return leave(outer, etch__batch_made(moved(t, dim, 0), level));
}

static etch_tensor *expanded(etch_tensor *t, int dim, int64_t size) {
    etch_shape sizes = etch_sizes(t);
    memmove(sizes.v + dim + 1, sizes.v + dim, (size_t)(sizes.n - dim) * sizeof *sizes.v);
    sizes.v[dim] = size, sizes.n++;
    return etch_expand(etch_unsqueeze(t, dim), sizes);
}

etch_tensor *etch__unbatch(etch_tensor *t, int dim, uint32_t level, int64_t size) {
    if (is_below(t, level))
        return etch__batch_made(etch__unbatch(t->notes->inner, dim + 1, level, size),
                                t->notes->level);
    below outer = enter();
    if (etch__level_of(t) == level) return leave(outer, moved(t->notes->inner, 0, dim));
    return leave(outer, expanded(t, dim, size));
}

etch_tensor *etch__sum_batch(etch_tensor *t, uint32_t level) {
    if (is_below(t, level))
        return etch__batch_made(etch__sum_batch(t->notes->inner, level), t->notes->level);
    below outer = enter();
    return leave(outer, etch_sum_dim(t->notes->inner, ETCH_DIMS(0), false));
}

/* ---- zeros like others ---- */

typedef struct level_list {
    uint32_t level[BATCH_LEVELS + 1]; /* rising; one more than a tensor can have is refused */
    int64_t size[BATCH_LEVELS + 1];
    int n;
} level_list;

static void add_level(level_list *l, uint32_t level, int64_t size) {
    int at = 0;
    while (at < l->n && l->level[at] < level) at++;
    if ((at < l->n && l->level[at] == level) || l->n > BATCH_LEVELS) return;
    for (int i = l->n++; i > at; i--) l->level[i] = l->level[i - 1], l->size[i] = l->size[i - 1];
    l->level[at] = level, l->size[at] = size;
}

static void add_levels(level_list *l, const etch_tensor *t) {
    for (; etch__is_batched(t); t = t->notes->inner)
        add_level(l, t->notes->level, etch__batch_size(t));
}

/* Outermost in memory is the lowest level, which is taken off last. */
static etch_tensor *zeros_at(const level_list *l, etch_dtype dtype, etch_shape size, int device) {
    if (size.n + l->n > ETCH_MAX_DIMS)
        return etch__null_at(NULL, ETCH_ERR_SHAPE,
                             "etch_vmap: expected at most %d dimensions, those of batches "
                             "included, got %d",
                             ETCH_MAX_DIMS, size.n + l->n);
    memmove(size.v + l->n, size.v, (size_t)size.n * sizeof *size.v);
    for (int i = 0; i < l->n; i++) size.v[i] = l->size[i];
    size.n += l->n;
    etch_tensor *t = NULL;
    ETCH_ON(device) t = etch_zeros(dtype, size);
    for (int i = 0; t && i < l->n; i++) t = etch__batch_made(t, l->level[i]);
    return t;
}

/* The tangents of the others at a level. */
static uint32_t next_tangents(etch_tensor *const *like, int n, uint32_t limit, etch_tensor **of) {
    uint32_t level = 0;
    for (int i = 0; i < n; i++) {
        uint32_t l = etch__tangent_level(like[i], limit);
        if (l > level) level = l;
    }
    for (int i = 0; i < n; i++) {
        const tangent *g = level ? etch__tangent_at(like[i], level) : NULL;
        of[i] = g ? g->value : NULL;
    }
    return level;
}

/* One for t at a level, into which the others' can be written: of 0, if it has none. */
static etch_tensor *tangent_to_hold(etch_tensor *t, uint32_t level, etch_tensor *const *of, int n) {
    const tangent *g = etch__tangent_at(t, level);
    bool holds = g != NULL;
    for (int i = 0; holds && i < n; i++) holds = etch__holds(g->value, of[i]);
    if (holds) return g->value;
    if (g) return etch__copy_batched_as(g->value, of, n);
    return etch__zeros_batched((etch_dtype)t->dtype, etch_sizes(t), t->device, of, n);
}

static bool hold_tangents(etch_tensor *t, etch_tensor *const *like, int n) {
    etch_tensor *of[ZEROS_LIKE];
    uint32_t level = 0;
    while ((level = next_tangents(like, n, level, of))) {
        uint32_t outer = etch__tangent_limit(level);
        etch_tensor *value = tangent_to_hold(t, level, of, n);
        etch__tangent_limit(outer);
        const tangent *g = etch__tangent_at(t, level);
        if (!value || (!(g && g->value == value) && !etch__set_tangent(t, level, value, true)))
            return false;
    }
    return true;
}

etch_tensor *etch__zeros_batched(etch_dtype dtype, etch_shape size, int device,
                                 etch_tensor *const *like, int n) {
    level_list l = {.n = 0};
    for (int i = 0; i < n; i++) add_levels(&l, like[i]);
    etch_tensor *t = zeros_at(&l, dtype, size, device);
    return t && hold_tangents(t, like, n) ? t : NULL;
}

bool etch__holds(const etch_tensor *t, const etch_tensor *other) {
    bool holds = etch__batched_as(t, other);
    for (uint32_t level = 0; holds && (level = etch__tangent_level(other, level));) {
        const tangent *g = etch__tangent_at(t, level);
        holds = g && etch__holds(g->value, etch__tangent_at(other, level)->value);
    }
    return holds;
}

etch_tensor *etch__copy_batched_as(etch_tensor *t, etch_tensor *const *others, int n) {
    level_list l = {.n = 0};
    add_levels(&l, t);
    int own = l.n;
    for (int i = 0; i < n; i++) add_levels(&l, others[i]);
    etch_tensor *copy = NULL;
    if (l.n == own) copy = etch_clone(t);
    else if ((copy = zeros_at(&l, (etch_dtype)t->dtype, etch_sizes(t), t->device)))
        copy = etch_copy_(copy, t);
    return copy && hold_tangents(copy, others, n) ? copy : NULL;
}
