/* Tangents as notes on handles, and the levels of forward mode: see tangent.h. */
#include "core/transforms/tangent.h"

#include "core/dispatch/dispatch.h"
#include "core/transforms/batch.h"

/* ---- the list ---- */

static tangent *first_of(const etch_tensor *t) {
    return t && t->layers >> LAYER_FORWARD & 1 ? t->notes->tangents : NULL;
}

tangent *etch__tangent_at(const etch_tensor *t, uint32_t level) {
    tangent *g = first_of(t);
    while (g && g->level != level) g = g->next;
    return g;
}

static tangent *new_tangent(etch_tensor *t, uint32_t level) {
    tensor_notes *notes = etch__notes(t);
    tangent *g = notes ? etch__calloc(1, sizeof *g) : NULL;
    if (!g) return NULL;
    tangent **at = &notes->tangents;
    while (*at && (*at)->level > level) at = &(*at)->next;
    g->next = *at, g->level = level;
    *at = g;
    t->layers |= 1u << LAYER_FORWARD;
    etch__begin_layered(LAYERED_HANDLES);
    return g;
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
    etch_release(g->value);
    etch__free(g);
}

bool etch__carry_tangents(etch_tensor *to, const etch_tensor *from) {
    if (likely(!first_of(from)) || to == from) return true;
    for (const tangent *g = first_of(from); g; g = g->next)
        if (!etch__set_tangent(to, g->level, g->value, false)) return false;
    return true;
}

/* ---- levels ---- */

/* Those whose scope is gone were left by a jump. */
static void drop_left_levels(void) {
    etch_thread *t = &etch__tls;
    while (t->ntangents && t->open->tangents[t->ntangents - 1].scope > t->nscopes) t->ntangents--;
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
    etch_thread *t = &etch__tls;
    for (int i = 0; i < t->ntangents; i++)
        if (t->open->tangents[i].level == level) t->ntangents = i;
}

bool etch__tangents_count(uint32_t level) {
    const etch_thread *t = &etch__tls;
    bool open = false;
    for (int i = 0; i < t->ntangents; i++) open |= t->open->tangents[i].level == level;
    return open && (!t->tangent_limit || level < t->tangent_limit);
}

uint32_t etch__tangent_level(const etch_tensor *t, uint32_t limit) {
    for (const tangent *g = first_of(t); g; g = g->next)
        if ((!limit || g->level < limit) && etch__tangents_count(g->level)) return g->level;
    return 0;
}
