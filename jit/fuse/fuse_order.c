/* Fusion: the groups are numbered in the order in which they run, each as early as it was begun. */
#include "jit/fuse/fuse.h"

#include "core/dispatch/dispatch.h"

static int count_needs(const ir *r, int32_t group) {
    int n = 0;
    for (int w = 0; w < r->words; w++) n += __builtin_popcountll(needs_of(r, group)[w]);
    return n;
}

/* Appends the group after those that it needs. A group needs more groups than any that it needs. */
static int emit_group(const ir *r, int32_t group, int32_t *order, int32_t *place, int n) {
    int first = n;
    for (int32_t g = 0; g < r->ngroups; g++) {
        if (place[g] >= 0 || (g != group && !depends(r, group, g))) continue;
        int at = n++;
        for (; at > first && count_needs(r, order[at - 1]) > count_needs(r, g); at--)
            order[at] = order[at - 1];
        order[at] = g;
    }
    for (int i = first; i < n; i++) place[order[i]] = i;
    return n;
}

static bool needs_input_written(const ir *r, int32_t group) {
    if (r->groups[group].writes_input) return true;
    for (int32_t g = 0; g < r->ngroups; g++)
        if (depends(r, group, g) && r->groups[g].writes_input) return true;
    return false;
}

/* Numbers the groups in the order of their steps: those that write inputs, and what needs them,
 * come last, so that an eager kernel that fails has mostly changed nothing yet. */
bool etch__order_groups(ir *r) {
    int n = 0, groups = r->ngroups;
    if (!r->words || !groups) return true;
    int32_t *order = etch__arena_new(r->memory, 2 * groups * sizeof *order),
            *place = order + groups;
    ir_group *sorted = etch__arena_new(r->memory, groups * sizeof *sorted);
    if (!order || !sorted) return false;
    for (int32_t g = 0; g < groups; g++) place[g] = -1;
    for (int last = 0; last < 2; last++)
        for (int32_t g = 0; g < groups; g++)
            if (place[g] < 0 && (last || !needs_input_written(r, g)))
                n = emit_group(r, g, order, place, n);
    for (int i = 0; i < groups; i++) sorted[i] = r->groups[order[i]];
    memcpy(r->groups, sorted, groups * sizeof *sorted);
    for (int i = 0; i < r->nnodes; i++)
        if (r->nodes[i].group >= 0) r->nodes[i].group = place[r->nodes[i].group];
    for (int v = 0; v < r->nversions; v++)
        if (r->versions[v].group >= 0) r->versions[v].group = place[r->versions[v].group];
    return true;
}
