/* Fusion: pointwise groups become one. Where one reads the other: a value that a group reads from
 * memory, though it has the group's space, was computed in another one because what came then was
 * not known yet, as the operands of a product. And where two have nothing to do with each other and
 * little to do, as the updates of small parameters: as wholes, so that no chain of operators is cut
 * in two because a kernel is full of strangers. */
#include "jit/fuse/fuse.h"

/* Whether a third group has to run between the two. */
static bool something_between(const ir *r, int32_t first, int32_t then) {
    for (int32_t g = 0; g < r->ngroups; g++)
        if (g != first && g != then && depends(r, g, first) && depends(r, then, g)) return true;
    return false;
}

/* Whether what `then` reads of `first` can all stay in registers. */
static bool reads_registers(const ir *r, int32_t first, int32_t then) {
    const ir_group *g = &r->groups[then];
    for (int i = 0; i < g->nmembers; i++) {
        const ir_node *n = &r->nodes[g->members[i]];
        space sp = etch__space_of(n);
        for (int k = 0; k < n->nin; k++) {
            const ir_source *s = &sources(r, n)[k];
            if (!from_group(r, n, s) || r->versions[s->version].group != first) continue;
            if (!etch__fusable(r, n, &sp, s)) return false;
        }
    }
    return true;
}

/* Whether every member of the groups that reads what the write overwrites reads it where it is
 * written, before that. */
static bool readers_share_map(const ir *r, const ir_group *g, const ir_node *w) {
    for (int m = 0; m < g->nmembers; m++) {
        const ir_node *n = &r->nodes[g->members[m]];
        for (int k = 0; k < n->nin; k++) {
            const ir_source *s = &sources(r, n)[k];
            if (s->version == w->target.version && !etch__same_map(r, s, &w->target)) return false;
        }
    }
    return true;
}

/* Whether the writes of g may share a kernel with both groups. */
static bool writes_fit(const ir *r, int32_t group, int32_t other) {
    const ir_group *g = &r->groups[group];
    for (int m = 0; g->writes && m < g->nmembers; m++) {
        const ir_node *w = &r->nodes[g->members[m]];
        if (!w->write) continue;
        const ir_version *old = &r->versions[w->target.version];
        if ((old->group == group || old->group == other) && !etch__beside(r, w, old)) return false;
        if (!readers_share_map(r, g, w) || !readers_share_map(r, &r->groups[other], w))
            return false;
    }
    return true;
}

/* What one reads of the other is loaded no more, and stored only for others. */
static bool room_for_both(const ir *r, const ir_group *a, const ir_group *b) {
    int members = a->nmembers + b->nmembers, loads = a->nloads + b->nloads;
    int code = a->ncode + b->ncode, stores = etch__group_stores(r, a) + etch__group_stores(r, b);
    if (members > r->max_members) return false;
    for (int m = 0; m < a->nmembers; m++) {
        const ir_node *n = &r->nodes[a->members[m]];
        int reads = 0;
        for (int k = 0; k < b->nmembers; k++)
            reads += etch__reads_of(r, &r->nodes[b->members[k]], n->out);
        if (!reads) continue;
        loads--, code--;
        stores -= !n->write && reads == r->versions[n->out].outside;
    }
    return etch__has_room(r, members, loads, code, stores);
}

/* What a check needs is not put off, since the check comes before inputs are written. */
static bool can_merge(const ir *r, int32_t first, int32_t then) {
    const ir_group *a = &r->groups[first], *b = &r->groups[then];
    if (a->call || b->call || a->mask || b->mask) return false;
    if ((a->feeds_check || b->feeds_check) &&
        (a->feeds_check != b->feeds_check || a->writes_input || b->writes_input))
        return false;
    return room_for_both(r, a, b) && writes_fit(r, first, then) && writes_fit(r, then, first);
}

/* `then` has the members of both, in the order of their dependences; `first` has none. */
static bool merge(ir *r, int32_t first, int32_t then) {
    ir_group *a = &r->groups[first], *b = &r->groups[then];
    if (!etch__arena_grow(r->memory, &a->members, &a->members_cap, a->nmembers + b->nmembers,
                          sizeof *a->members))
        return false;
    for (int i = 0; i < b->nmembers; i++) etch__note_inside(r, &r->nodes[b->members[i]], first);
    memcpy(a->members + a->nmembers, b->members, (size_t)b->nmembers * sizeof *b->members);
    for (int i = 0; i < a->nmembers; i++) {
        ir_node *n = &r->nodes[a->members[i]];
        n->group = r->versions[n->out].group = then;
    }
    ir_group empty = *b;
    b->members = a->members, b->members_cap = a->members_cap, b->nmembers += a->nmembers;
    b->nloads += a->nloads, b->ncode += a->ncode, b->feeds_check |= a->feeds_check;
    b->writes |= a->writes, b->writes_input |= a->writes_input;
    a->members = empty.members, a->members_cap = empty.members_cap, a->nmembers = 0;
    etch__add_need(r, then, first);
    for (int32_t g = 0; g < r->ngroups; g++)
        if (g != then && depends(r, g, first)) etch__add_need(r, g, then);
    return true;
}

/* ---- one that reads the other ---- */

bool etch__merge_into_reader(ir *r, const ir_source *s, const space *sp, const ir_node *n,
                             int32_t then) {
    if (!from_group(r, n, s) || !etch__fusable(r, n, sp, s)) return true;
    int32_t first = r->versions[s->version].group;
    bool merges = first != then && can_merge(r, first, then) && reads_registers(r, first, then) &&
                  !something_between(r, first, then);
    return !merges || merge(r, first, then);
}

static bool merge_chains(ir *r) {
    for (int i = 0; i < r->nnodes && r->words; i++) {
        const ir_node *n = &r->nodes[i];
        if (n->dead || n->group < 0 || !is_loop(n)) continue;
        space sp = etch__space_of(n);
        for (int k = 0; k < n->nin; k++)
            if (!etch__merge_into_reader(r, &sources(r, n)[k], &sp, n, n->group)) return false;
    }
    return true;
}

/* ---- strangers ---- */

/* Elements up to which a kernel's launch costs more than its memory streams gain from being few.
 * A device's launches always do. */
enum { SMALL_SPACE = 4096 };

static bool small_space(const ir *r, const ir_group *g) {
    int64_t n = 1;
    for (int a = 0; a < g->naxes; a++) n *= g->size[a];
    return r->device != 0 || r->g->dynamic || n <= SMALL_SPACE;
}

/* Whether `then` comes later only because both write parts of one memory. */
static bool only_beside(const ir *r, int32_t first, int32_t then) {
    const ir_group *g = &r->groups[then];
    for (int m = 0; m < g->nmembers; m++) {
        const ir_node *n = &r->nodes[g->members[m]];
        for (int k = 0; k < n->nin; k++) {
            const ir_source *s = &sources(r, n)[k];
            if (from_group(r, n, s) && r->versions[s->version].group == first) return false;
        }
        const ir_version *old = n->write ? &r->versions[n->target.version] : NULL;
        if (old && old->group == first && !etch__beside(r, n, old)) return false;
    }
    return !something_between(r, first, then);
}

static bool strangers(const ir *r, int32_t first, int32_t then) {
    const ir_group *a = &r->groups[first], *b = &r->groups[then];
    return a->nmembers && b->naxes == a->naxes && !memcmp(a->size, b->size, sizeof a->size) &&
           !depends(r, first, then) && can_merge(r, first, then) &&
           (!depends(r, then, first) || only_beside(r, first, then));
}

static bool merge_strangers(ir *r) {
    for (int32_t then = 0; then < r->ngroups && r->words; then++) {
        const ir_group *g = &r->groups[then];
        if (!g->nmembers || g->call || !small_space(r, g)) continue;
        for (int32_t first = 0; first < then; first++)
            if (strangers(r, first, then) && !merge(r, first, then)) return false;
    }
    return true;
}

bool etch__merge_groups(ir *r) { return merge_chains(r) && merge_strangers(r); }

bool etch__drop_empty_groups(ir *r) {
    int32_t *place = etch__arena_new(r->memory, ((size_t)r->ngroups + 1) * sizeof *place), n = 0;
    if (!place) return false;
    for (int32_t g = 0; g < r->ngroups; g++) {
        place[g] = n;
        if (r->groups[g].nmembers) r->groups[n++] = r->groups[g];
    }
    r->ngroups = n;
    for (int i = 0; i < r->nnodes; i++)
        if (r->nodes[i].group >= 0) r->nodes[i].group = place[r->nodes[i].group];
    for (int v = 0; v < r->nversions; v++)
        if (r->versions[v].group >= 0) r->versions[v].group = place[r->versions[v].group];
    return true;
}
