/* Tangents as notes on handles, and the levels of forward mode: see tangent.h. */
#include "core/transforms/tangent.h"

#include "core/base/locks.h"
#include "core/dispatch/dispatch.h"
#include "core/transforms/batch.h"

/* ---- finding ---- */

static tangent *first_of(const etch_tensor *t) {
    return t && t->layers >> LAYER_FORWARD & 1 ? t->notes->tangents : NULL;
}

static bool is_open(uint32_t level) {
    const etch_thread *t = &etch__tls;
    bool open = false;
    for (int i = 0; i < t->ntangents; i++) open |= t->open->tangents[i].level == level;
    return open;
}

tangent *etch__tangent_at(const etch_tensor *t, uint32_t level) {
    tangent *g = first_of(t);
    while (g && g->level != level) g = g->next;
    return g;
}

/* ---- those of a level, which end with it ---- */

/* A handle may be freed on any thread, its level is closed on its own: links and, once they are
 * parted, values are moved under the lock. */
typedef struct listed_tangent {
    tangent t;
    struct listed_tangent *next, **at; /* at: NULL once its level is closed */
} listed;

static void enlist(listed *g) {
    int i = 0;
    while (i < etch__tls.ntangents && etch__tls.open->tangents[i].level != g->t.level) i++;
    if (i == etch__tls.ntangents) return;
    etch__lock(LOCK_TANGENTS);
    g->at = &etch__tls.open->listed[i], g->next = *g->at;
    if (g->next) g->next->at = &g->next;
    *g->at = g;
    etch__unlock(LOCK_TANGENTS);
}

/* Takes it off the list, and its value from it; the caller has the lock. */
static etch_tensor *part(listed *g) {
    etch_tensor *value = g->t.value;
    if (g->at && (*g->at = g->next)) g->next->at = g->at;
    g->at = NULL, g->t.value = NULL;
    return value;
}

static void free_tangent(tangent *t) {
    listed *g = (listed *)t;
    etch__lock(LOCK_TANGENTS);
    etch_tensor *value = part(g);
    etch__unlock(LOCK_TANGENTS);
    etch_release(value);
    etch__free(g);
}

/* Closes the levels from the i-th on. What is released may free others of the list. */
static void close_from(int i) {
    while (etch__tls.ntangents > i) {
        listed **first = &etch__tls.open->listed[--etch__tls.ntangents];
        for (bool any = true; any;) {
            etch__lock(LOCK_TANGENTS);
            etch_tensor *value = (any = *first != NULL) ? part(*first) : NULL;
            etch__unlock(LOCK_TANGENTS);
            etch_release(value);
        }
    }
}

/* ---- the list of a handle ---- */

static tangent *new_tangent(etch_tensor *t, uint32_t level) {
    tensor_notes *notes = etch__notes(t);
    listed *g = notes ? etch__calloc(1, sizeof *g) : NULL;
    if (!g) return NULL;
    tangent **at = &notes->tangents;
    while (*at && (*at)->level > level) at = &(*at)->next;
    g->t.next = *at, g->t.level = level;
    *at = &g->t;
    t->layers |= 1u << LAYER_FORWARD;
    enlist(g);
    etch__begin_layered(LAYERED_HANDLES);
    return &g->t;
}

bool etch__set_tangent(etch_tensor *t, uint32_t level, etch_tensor *value, bool own) {
    tangent *g = etch__tangent_at(t, level);
    if (!g && !(g = new_tangent(t, level))) return false;
    etch_tensor *before = g->value;
    g->value = etch_retain(value), g->own = own, g->viewed = false;
    etch_release(before);
    return true;
}

void etch__remove_tangent(etch_tensor *t, uint32_t level) {
    if (!first_of(t)) return;
    tangent **at = &t->notes->tangents;
    while (*at && (*at)->level != level) at = &(*at)->next;
    tangent *g = *at;
    if (!g) return;
    *at = g->next;
    if (!t->notes->tangents) t->layers &= (uint8_t) ~(1u << LAYER_FORWARD);
    free_tangent(g);
}

void etch__drop_tangents(tensor_notes *notes) {
    while (notes->tangents) {
        tangent *g = notes->tangents;
        notes->tangents = g->next;
        free_tangent(g);
    }
}

bool etch__carry_tangents(etch_tensor *to, const etch_tensor *from) {
    if (likely(!first_of(from)) || to == from) return true;
    for (const tangent *g = first_of(from); g; g = g->next)
        if (is_open(g->level) && !etch__set_tangent(to, g->level, g->value, false)) return false;
    return true;
}

/* ---- levels ---- */

/* Those whose scope is gone were left by a jump. */
static void drop_left_levels(void) {
    etch_thread *t = &etch__tls;
    int n = t->ntangents;
    while (n && t->open->tangents[n - 1].scope > t->nscopes) n--;
    close_from(n);
}

uint32_t etch__tangents_open(void) {
    etch_thread *t = &etch__tls;
    if (!etch__levels_ready()) return 0;
    drop_left_levels();
    if (t->ntangents == OPEN_LEVELS) {
        etch__error_at(NULL, ETCH_ERR_UNSUPPORTED,
                       "etch_jvp: expected at most %d calls inside of each other", OPEN_LEVELS);
        return 0;
    }
    batch_level l = {.level = etch__next_level(), .scope = t->nscopes};
    t->open->tangents[t->ntangents++] = l;
    return l.level;
}

void etch__tangents_close(uint32_t level) {
    int i = 0;
    while (i < etch__tls.ntangents && etch__tls.open->tangents[i].level != level) i++;
    close_from(i);
}

void etch__tangents_end(etch_thread *t) {
    if (t->ntangents) close_from(0);
}

bool etch__tangents_count(uint32_t level) {
    uint32_t limit = etch__tls.tangent_limit;
    return is_open(level) && (!limit || level < limit);
}

uint32_t etch__tangent_level(const etch_tensor *t, uint32_t limit) {
    for (const tangent *g = first_of(t); g; g = g->next)
        if ((!limit || g->level < limit) && etch__tangents_count(g->level)) return g->level;
    return 0;
}
