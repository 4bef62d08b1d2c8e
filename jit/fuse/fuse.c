/* Fusion: deals the nodes out to groups, each of which becomes one kernel or one call.
 *
 * A node prefers the group of its operands, which become one where they are several, then the first
 * group with its space that reads the same and comes late enough already, then a new one (what a
 * group must be: fuse_rules.c). Then pointwise groups of which one reads the other become one,
 * where they can, and small ones that have nothing to do with each other (fuse_merge.c). At the end
 * the groups are numbered in the order in which they run (fuse_order.c), and what they hand on gets
 * its place in memory (fuse_lie.c).
 *
 * Stage 0 of a group iterates over the whole space; a reduction over the group's one set of axes
 * ends it, and pointwise nodes over what remains are stage 1. Where rows are whole (the innermost
 * axis is reduced, and the reduction not split), nodes that give a row's value back to its elements
 * are stage 2, and so on: normalisations are one kernel. A write must come after every reader of
 * the version that it overwrites; it may share a kernel with readers that use its own map. What
 * writes an input shares none with what a check on data depends on: all checks come before it.
 *
 * Where an operand does not stay in a register, the reason is logged and counted (fuse_log.c). */
#include "jit/fuse/fuse.h"

#include "core/dispatch/dispatch.h"

enum { CLOSURE_MAX = 16384 }; /* nodes; larger graphs keep groups in the order of their beginning */

/* ---- the beginning ---- */

static void need_version(const ir *r, int32_t version) {
    if (version >= 0 && r->versions[version].node >= 0)
        r->nodes[r->versions[version].node].feeds_check = true;
}

static void mark_feeding(ir *r) {
    for (int i = r->nnodes - 1; i >= 0; i--) {
        const ir_node *n = &r->nodes[i];
        bool fails = n->kind == IR_CALL && etch__ops[n->op].flags & OPF_MAY_FAIL;
        if (n->dead || (!fails && !n->feeds_check)) continue;
        for (int k = 0; k < n->nin; k++) need_version(r, sources(r, n)[k].version);
        if (n->write) need_version(r, n->target.version);
    }
}

static bool reset(ir *r) {
    ir_uses uses;
    if (!etch__ir_uses(r, &uses)) return false;
    r->ngroups = 0;
    for (int i = 0; i < r->nversions; i++) {
        ir_version *v = &r->versions[i];
        v->group = -1, v->stored = false, v->outside = uses.readers[i];
    }
    for (int i = 0; i < r->nnodes; i++) r->nodes[i].group = -1, r->nodes[i].feeds_check = false;
    mark_feeding(r);
    r->words = r->nnodes > CLOSURE_MAX ? 0 : (r->nnodes + 63) / 64;
    size_t bytes = ((size_t)r->nnodes * r->words + 1) * sizeof *r->needs;
    return r->needs || (r->needs = etch__arena_new(r->memory, bytes));
}

/* ---- placing ---- */

static bool add_member(ir *r, int32_t node, int32_t group, const space *sp, int stage) {
    ir_node *n = &r->nodes[node];
    ir_group *g = &r->groups[group];
    int loads, code;
    if (!etch__arena_grow(r->memory, &g->members, &g->members_cap, g->nmembers + 1,
                          sizeof *g->members))
        return false;
    etch__group_cost(r, n, group, &loads, &code);
    g->nloads += loads, g->ncode += code;
    etch__note_inside(r, n, group);
    g->members[g->nmembers++] = node;
    g->mask |= sp->mask;
    n->group = group;
    ir_version *v = &r->versions[n->out];
    v->group = group;
    v->stage = (uint8_t)(stage + (n->kind == IR_REDUCE));
    if (v->stage > g->last) g->last = v->stage;
    g->writes |= n->write;
    g->feeds_check |= n->feeds_check, g->writes_input |= etch__writes_an_input(r, n);
    etch__note_needs(r, n);
    return true;
}

static bool new_group(ir *r, int32_t node, const space *sp) {
    if (!etch__arena_grow(r->memory, &r->groups, &r->groups_cap, r->ngroups + 1, sizeof *r->groups))
        return false;
    memset(needs_of(r, r->ngroups), 0, (size_t)r->words * sizeof *r->needs);
    ir_group *g = &r->groups[r->ngroups++];
    *g = (ir_group){.call = !is_loop(&r->nodes[node]), .naxes = sp->n};
    memcpy(g->size, sp->size, sizeof g->size);
    return add_member(r, node, r->ngroups - 1, sp, 0);
}

/* A group that holds one of the node's operands in a register, the last one that will do, or -1.
 * One without room for it gets no other node either: what comes then mostly needs this one, and of
 * a chain that is cut in several places at once more has to lie in memory. */
static int32_t operand_group(const ir *r, const ir_node *n, const space *sp, bool *full) {
    int32_t best = -1;
    for (int i = 0; i < n->nin; i++) {
        const ir_source *s = &sources(r, n)[i];
        if (!etch__fusable(r, n, sp, s)) continue;
        int32_t group = r->versions[s->version].group;
        ir_group *g = &r->groups[group];
        if (n->kind == IR_REDUCE && g->mask && g->mask != sp->mask) continue;
        if (group <= best || !etch__ready(r, n, sp, group, etch__stage_in(r, n, group, sp)))
            continue;
        if (etch__fits(r, n, group)) best = group;
        else *full = g->full = true;
    }
    return best;
}

/* A group of the same space that loads what the node reads and runs late enough: reductions join
 * their likes only. What shares nothing waits until groups are whole (etch__merge_groups). */
static int32_t sibling_group(const ir *r, const ir_node *n, const space *sp) {
    for (int32_t group = 0; group < r->ngroups; group++) {
        const ir_group *g = &r->groups[group];
        if (g->call || g->mask != sp->mask || !etch__same_space(g, sp)) continue;
        if (!etch__shares_load(r, n, g)) continue;
        if (etch__late_enough(r, n, group) && etch__ready(r, n, sp, group, 0) &&
            etch__fits(r, n, group))
            return group;
    }
    return -1;
}

/* The groups of several operands become one before it fills: of two chains that meet, neither runs
 * ahead of the other into a kernel of its own. */
static bool merge_operands(ir *r, const ir_node *n, const space *sp) {
    bool full = false;
    int32_t group = r->words ? operand_group(r, n, sp, &full) : -1;
    for (int i = 0; group >= 0 && i < n->nin; i++)
        if (!etch__merge_into_reader(r, &sources(r, n)[i], sp, n, group)) return false;
    return true;
}

static bool place(ir *r, int32_t node) {
    ir_node *n = &r->nodes[node];
    bool full = false;
    space sp = etch__space_of(n);
    int32_t group = -1;
    if (is_loop(n)) {
        if (!merge_operands(r, n, &sp)) return false;
        group = operand_group(r, n, &sp, &full);
        if (group < 0) group = sibling_group(r, n, &sp);
    }
    bool ok = group < 0 ? new_group(r, node, &sp)
                        : add_member(r, node, group, &sp, etch__stage_in(r, n, group, &sp));
    n->no_room = full;
    return ok;
}

/* ---- what lies in memory ---- */

/* Constants that a call reads, a write changes or the caller gets need memory; others have no
 * group. */
static void mark_constants(ir *r) {
    for (int k = 0; k < r->g->noutputs; k++) r->versions[r->outputs[k]].stored = true;
    for (int i = 0; i < r->nnodes; i++) {
        const ir_node *n = &r->nodes[i];
        if (n->dead) continue;
        if (n->write) r->versions[n->target.version].stored = true;
        for (int k = 0; n->kind == IR_CALL && k < n->nin; k++)
            if (sources(r, n)[k].version >= 0) r->versions[sources(r, n)[k].version].stored = true;
    }
}

/* Versions that cross from one group to another live in memory. */
static void mark_stored(ir *r) {
    for (int i = 0; i < r->nnodes; i++) {
        const ir_node *n = &r->nodes[i];
        if (n->dead || n->group < 0) continue;
        if (n->kind == IR_CALL || n->kind == IR_EMPTY || n->write)
            r->versions[n->out].stored = true;
        for (int k = 0; k < n->nin; k++) {
            const ir_source *s = &sources(r, n)[k];
            if (from_group(r, n, s) && r->versions[s->version].group != n->group)
                r->versions[s->version].stored = true;
        }
    }
}

static void note_sweeps(ir *r) {
    r->has_sweeps = r->poor_sweeps = false;
    for (int i = 0; i < r->ngroups; i++) {
        const ir_group *g = &r->groups[i];
        if (g->last < 2) continue;
        r->has_sweeps = true;
        r->poor_sweeps |= !etch__good_rows(g, r->nodes[g->members[0]].domain.device);
    }
}

/* ---- the whole ---- */

bool etch__fuse(ir *r) {
    if (!reset(r)) return false;
    mark_constants(r);
    for (int i = 0; i < r->nnodes; i++) {
        const ir_node *n = &r->nodes[i];
        const ir_version *v = &r->versions[n->out];
        if (n->dead || (v->constant && !v->stored)) continue;
        if (!place(r, i)) return false;
    }
    if (!etch__merge_groups(r)) return false;
    mark_stored(r);
    note_sweeps(r);
    if (!etch__order_groups(r) || !etch__drop_empty_groups(r)) return false;
    if (r->ahead_only) return true;
    if (!etch__pass_join(r) || !etch__lay_out(r)) return false;
    etch__explain_groups(r);
    return true;
}
