/* Fusion: pointwise groups of which one reads the other become one. A value that a group reads from
 * memory, though it has the group's space, was computed in another one because what came then was
 * not known yet: the operands of a product, say. */
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

/* What a check needs is not put off, since the check comes before inputs are written. */
static bool can_merge(const ir *r, int32_t first, int32_t then) {
    const ir_group *a = &r->groups[first], *b = &r->groups[then];
    if (a->call || b->call || a->mask || b->mask || a->writes || b->writes) return false;
    if (a->feeds_check && !b->feeds_check) return false;
    if (a->nmembers + b->nmembers > r->max_members || a->ncode + b->ncode > CODE_BUDGET ||
        a->naccesses + b->naccesses > ACCESS_BUDGET)
        return false;
    return reads_registers(r, first, then) && !something_between(r, first, then);
}

/* `then` has the members of both, in the order of their dependences; `first` has none. */
static bool merge(ir *r, int32_t first, int32_t then) {
    ir_group *a = &r->groups[first], *b = &r->groups[then];
    if (!etch__arena_grow(r->memory, &a->members, &a->members_cap, a->nmembers + b->nmembers,
                          sizeof *a->members))
        return false;
    memcpy(a->members + a->nmembers, b->members, (size_t)b->nmembers * sizeof *b->members);
    for (int i = 0; i < a->nmembers; i++) {
        ir_node *n = &r->nodes[a->members[i]];
        n->group = r->versions[n->out].group = then;
    }
    ir_group empty = *b;
    b->members = a->members, b->members_cap = a->members_cap, b->nmembers += a->nmembers;
    b->naccesses += a->naccesses, b->ncode += a->ncode, b->feeds_check |= a->feeds_check;
    a->members = empty.members, a->members_cap = empty.members_cap, a->nmembers = 0;
    for (int32_t g = 0; g < r->ngroups; g++)
        if (g != then && depends(r, g, first)) etch__add_need(r, g, then);
    return true;
}

bool etch__merge_groups(ir *r) {
    for (int i = 0; i < r->nnodes && r->words; i++) {
        const ir_node *n = &r->nodes[i];
        if (n->dead || n->group < 0 || !is_loop(n)) continue;
        space sp = etch__space_of(n);
        for (int k = 0; k < n->nin; k++) {
            const ir_source *s = &sources(r, n)[k];
            if (!from_group(r, n, s)) continue;
            int32_t first = r->versions[s->version].group;
            if (first == n->group || !etch__fusable(r, n, &sp, s)) continue;
            if (can_merge(r, first, n->group) && !merge(r, first, n->group)) return false;
        }
    }
    return true;
}

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
