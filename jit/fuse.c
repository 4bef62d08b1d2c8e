/* Fusion: deals the nodes out to groups, each of which becomes one kernel or one call.
 *
 * A node may join a group when everything else that it depends on can run before the group, which
 * the transitive dependences of all groups tell; inside a group a value stays in a register: same
 * iteration space, same order of elements. A node prefers the group of its operands, then the first
 * group with its space that comes late enough already, then a new one. Then pointwise groups of
 * which one reads the other become one, where they can. At the end the groups are numbered in the
 * order in which they run, each as early as it was begun.
 *
 * Stage 0 of a group iterates over the whole space; a reduction over the group's one set of axes
 * ends it, and pointwise nodes over what remains are stage 1. Where rows are whole (the innermost
 * axis is reduced, and the reduction not split), nodes that give a row's value back to its elements
 * are stage 2, and so on: normalisations are one kernel. A write must come after every reader of
 * the version that it overwrites; it may share a kernel with readers that use its own map. What
 * writes an input shares none with what a check on data depends on: all checks come before it.
 *
 * Where an operand does not stay in a register, the reason is logged and counted. */
#include "core/dispatch.h"
#include "core/report.h"
#include "jit/plan.h"

/* ---- spaces ---- */

typedef struct space {
    int n;
    int64_t size[ETCH_MAX_DIMS];
    uint32_t mask; /* reduced axes */
} space;

static space space_of(const ir_node *n) {
    space s = {0};
    uint32_t kept;
    s.n = etch__squeeze(&n->domain, s.size, &kept);
    for (int d = 0, axis = 0; d < n->domain.ndim; d++) {
        if (!(kept >> d & 1)) continue;
        if (n->kind == IR_REDUCE && n->mask >> d & 1) s.mask |= 1u << axis;
        axis++;
    }
    return s;
}

static bool same_space(const ir_group *g, const space *s) {
    return g->naxes == s->n && !memcmp(g->size, s->size, s->n * sizeof *s->size);
}

/* The axes that a group's reductions leave. */
static bool same_as_reduced(const ir_group *g, const space *s) {
    int n = 0;
    for (int a = 0; a < g->naxes; a++) {
        if (g->mask >> a & 1) continue;
        if (n == s->n || g->size[a] != s->size[n]) return false;
        n++;
    }
    return n == s->n;
}

/* ---- dependences between groups ---- */

enum { CLOSURE_MAX = 16384 }; /* nodes; larger graphs keep groups in the order of their beginning */

static uint64_t *needs_of(const ir *r, int32_t group) {
    return r->needs + (int64_t)group * r->words;
}

static bool depends(const ir *r, int32_t group, int32_t on) {
    return needs_of(r, group)[on / 64] >> (on % 64) & 1;
}

/* Whether group `first` can run before `group` (they differ). */
static bool can_precede(const ir *r, int32_t first, int32_t group) {
    return r->words ? !depends(r, first, group) : first < group;
}

/* Notes that `group`, and what depends on it, needs `first` and all that it needs. */
static void add_need(ir *r, int32_t group, int32_t first) {
    if (!r->words || first == group || depends(r, group, first)) return;
    for (int32_t g = 0; g < r->ngroups; g++) {
        if (g != group && !depends(r, g, group)) continue;
        for (int w = 0; w < r->words; w++) needs_of(r, g)[w] |= needs_of(r, first)[w];
        needs_of(r, g)[first / 64] |= 1ull << (first % 64);
    }
}

/* ---- what a node needs ---- */

static const ir_source *sources(const ir *r, const ir_node *n) { return r->sources + n->in; }

static bool is_loop(const ir_node *n) { return n->kind == IR_POINT || n->kind == IR_REDUCE; }

/* Whether the source has to come from a group at all. */
static bool from_group(const ir *r, const ir_node *n, const ir_source *s) {
    if (s->version < 0) return false;
    const ir_version *v = &r->versions[s->version];
    return v->group >= 0 && !(v->constant && is_loop(n));
}

/* Whether the source gives each element of the group's space the value of its row. */
static bool gives_back(const ir *r, const ir_node *n, const ir_source *s, const ir_group *g) {
    int64_t stride[ETCH_MAX_DIMS], step = 1;
    if (etch__map_offset(r, s)) return false;
    etch__map_strides(s, &n->domain, stride);
    for (int a = g->naxes - 1; a >= 0; a--) {
        bool reduced = g->mask >> a & 1;
        if (stride[a] != (reduced ? 0 : step)) return false;
        if (!reduced) step *= g->size[a];
    }
    return true;
}

/* The earliest stage of its maker's group in which a node has the operand in
 * a register; -1: none. */
static int stage_after(const ir *r, const ir_node *n, const space *sp, const ir_source *s) {
    if (!is_loop(n) || !from_group(r, n, s)) return -1;
    const ir_version *v = &r->versions[s->version];
    const ir_group *g = &r->groups[v->group];
    if (g->call || v->memory || v->tied >= 0) return -1;
    if (v->stage % 2 == 0) return s->whole && same_space(g, sp) ? v->stage : -1;
    if (n->kind == IR_POINT && !n->index && s->whole && same_as_reduced(g, sp)) return v->stage;
    return same_space(g, sp) && gives_back(r, n, s, g) ? v->stage + 1 : -1;
}

/* Whether the operand can stay in a register of its maker's group. */
static bool fusable(const ir *r, const ir_node *n, const space *sp, const ir_source *s) {
    return stage_after(r, n, sp, s) >= 0;
}

bool etch__in_register(const ir *r, const ir_node *n, const ir_source *s) {
    space sp = space_of(n);
    return fusable(r, n, &sp, s);
}

/* The stage in which a member of the group uses its operands. */
static int stage_in(const ir *r, const ir_node *n, int32_t group, const space *sp) {
    int stage = 0;
    for (int i = 0; i < n->nin; i++) {
        const ir_source *s = &sources(r, n)[i];
        if (!from_group(r, n, s) || r->versions[s->version].group != group) continue;
        int after = stage_after(r, n, sp, s);
        if (after > stage) stage = after;
    }
    return stage;
}

/* Whether rows are worth one unit each. On a device a row is a block of threads, so there should be
 * some. */
static bool good_rows(const ir_group *g, int device) {
    int64_t rows = 1, reduced = 1;
    for (int a = 0; a < g->naxes; a++) *(g->mask >> a & 1 ? &reduced : &rows) *= g->size[a];
    if (device && rows < 128 && reduced > 4 * REDUCE_BLOCK) return false;
    return !etch__lower_splits(rows, rows, reduced);
}

/* Whether a node may use its operands in the stage of the group. What goes over its rows again
 * loads them again, so it overwrites nothing. */
static bool has_stage(const ir *r, const ir_node *n, const ir_group *g, int stage) {
    if (n->write && g->last > 1) return false;
    if (stage < 2) return true;
    if (stage + (n->kind == IR_REDUCE) >= LOOP_STAGES || r->passes == PASSES_NONE) return false;
    if (g->writes || n->write || !(g->mask >> (g->naxes - 1) & 1)) return false;
    return r->passes == PASSES_ALL || good_rows(g, n->domain.device);
}

static bool reads_version(const ir *r, const ir_node *n, const ir_source *s, int32_t version) {
    return s->version == version && !(r->versions[version].constant && is_loop(n));
}

/* Whether a reader of what w overwrites can share w's kernel. */
static bool shares_map(const ir *r, const ir_node *n, const ir_source *s, const ir_node *w,
                       int stage) {
    int reads_in = r->versions[n->out].stage - (n->kind == IR_REDUCE);
    return is_loop(n) && is_loop(w) && reads_in == stage && etch__same_map(r, s, &w->target);
}

/* Readers of the version that a write overwrites must come first, or use the same map. */
static bool readers_done(const ir *r, const ir_node *w, int32_t group, int stage) {
    const ir_version *old = &r->versions[w->target.version];
    if (old->group == group || (old->group >= 0 && !can_precede(r, old->group, group)))
        return false;
    for (int i = 0; &r->nodes[i] < w; i++) {
        const ir_node *n = &r->nodes[i];
        for (int k = 0; n->group >= 0 && k < n->nin; k++) {
            const ir_source *s = &sources(r, n)[k];
            if (!reads_version(r, n, s, w->target.version)) continue;
            if (n->group == group ? !shares_map(r, n, s, w, stage)
                                  : !can_precede(r, n->group, group))
                return false;
        }
    }
    return true;
}

static bool writes_an_input(const ir *r, const ir_node *n) {
    return n->write && r->versions[n->out].memory;
}

/* Whether all that the node needs can be there when the group runs. */
static bool ready(const ir *r, const ir_node *n, const space *sp, int32_t group, int stage) {
    const ir_group *g = &r->groups[group];
    if ((n->needed && g->final) || (g->needed && writes_an_input(r, n))) return false;
    if (!has_stage(r, n, &r->groups[group], stage)) return false;
    for (int i = 0; i < n->nin; i++) {
        const ir_source *s = &sources(r, n)[i];
        if (!from_group(r, n, s)) continue;
        const ir_version *v = &r->versions[s->version];
        int after = v->group == group ? stage_after(r, n, sp, s) : stage;
        bool same_kind = after >= 0 && after % 2 == stage % 2; /* elements or rows */
        if (!same_kind || (v->group != group && !can_precede(r, v->group, group))) return false;
    }
    return !n->write || readers_done(r, n, group, stage);
}

/* Whether the group was begun after all that the node needs. */
static bool late_enough(const ir *r, const ir_node *n, int32_t group) {
    for (int i = 0; i < n->nin; i++) {
        const ir_source *s = &sources(r, n)[i];
        if (from_group(r, n, s) && r->versions[s->version].group > group) return false;
    }
    return true;
}

static void note_needs(ir *r, const ir_node *n) {
    for (int i = 0; i < n->nin; i++)
        if (from_group(r, n, &sources(r, n)[i]))
            add_need(r, n->group, r->versions[sources(r, n)[i].version].group);
    if (!n->write) return;
    if (r->versions[n->target.version].group >= 0)
        add_need(r, n->group, r->versions[n->target.version].group);
    for (int i = 0; &r->nodes[i] < n; i++) {
        const ir_node *m = &r->nodes[i];
        for (int k = 0; m->group >= 0 && k < m->nin; k++)
            if (reads_version(r, m, &sources(r, m)[k], n->target.version))
                add_need(r, n->group, m->group);
    }
}

/* ---- limits ---- */

static bool loads_already(const ir *r, const ir_group *g, const ir_source *s) {
    for (int m = 0; m < g->nmembers; m++) {
        const ir_node *n = &r->nodes[g->members[m]];
        for (int i = 0; i < n->nin; i++) {
            const ir_source *t = &sources(r, n)[i];
            if (t->version == s->version && etch__same_map(r, s, t)) return true;
        }
    }
    return false;
}

/* Instructions of a node's program without its operands; of a reduction with its epilogue. */
static int program_length(const ir_node *n) {
    if (!n->program) return 6;
    int length = 0;
    for (int i = 0; i < n->program->n; i++) length += n->program->code[i].prim != PRIM_INPUT;
    return length;
}

/* What the node adds to a group: accesses and instructions, as far as known now. */
static void cost(const ir *r, const ir_node *n, int32_t group, int *accesses, int *code) {
    const ir_group *g = group < r->ngroups ? &r->groups[group] : NULL;
    *accesses = n->write;
    *code = program_length(n) + 1;
    for (int i = 0; i < n->nin; i++) {
        const ir_source *s = &sources(r, n)[i];
        if (s->version < 0) continue;
        const ir_version *v = &r->versions[s->version];
        if (v->constant) *code += program_length(&r->nodes[v->node]);
        else if ((v->group != group || v->group < 0) && !(g && loads_already(r, g, s)))
            ++*accesses, ++*code;
    }
}

enum { ACCESS_BUDGET = LOOP_MAX_ACCESSES - 6, CODE_BUDGET = LOOP_MAX_CODE - 16 };

static bool fits(const ir *r, const ir_node *n, int32_t group) {
    const ir_group *g = &r->groups[group];
    int accesses, code;
    cost(r, n, group, &accesses, &code);
    return g->nmembers < r->max_members && g->naccesses + accesses <= ACCESS_BUDGET &&
           g->ncode + code <= CODE_BUDGET;
}

/* ---- reasons ---- */

static reason_id why_apart(const ir *r, const ir_node *n, const ir_source *s, bool full) {
    const ir_version *v = &r->versions[s->version];
    const ir_group *g = &r->groups[v->group];
    if (n->kind == IR_CALL)
        return etch__ops[n->op].kind == KIND_CONTRACTION ? REASON_FUSION_LIBRARY
                                                         : REASON_FUSION_OPAQUE;
    if (g->call) {
        int kind = etch__ops[r->nodes[g->members[0]].op].kind;
        return kind == KIND_CONTRACTION ? REASON_FUSION_LIBRARY : REASON_FUSION_OPAQUE;
    }
    if (v->memory || v->tied >= 0 || n->write) return REASON_FUSION_WRITE;
    if (!s->whole) return REASON_FUSION_VIEW;
    if (full) return REASON_FUSION_LIMIT;
    return v->stage % 2 ? REASON_FUSION_REDUCED : REASON_FUSION_DOMAIN;
}

static void explain(const ir *r, const ir_node *n) {
    space sp = space_of(n);
    for (int i = 0; i < n->nin; i++) {
        const ir_source *s = &sources(r, n)[i];
        if (!from_group(r, n, s)) continue;
        const ir_version *v = &r->versions[s->version];
        if (v->group == n->group || r->nodes[v->node].kind == IR_EMPTY) continue;
        reason_id why = why_apart(r, n, s, n->full && fusable(r, n, &sp, s));
        etch__count_reason(why);
        if (etch__log_on(LOG_FUSION))
            etch__log(LOG_FUSION, "%s: %s (step %d) reads %%%d of %s (step %d) from memory: %s: %s",
                      r->g->name, etch__ops[n->op].name, n->group, v->base,
                      etch__ops[r->nodes[v->node].op].name, v->group, etch__reasons[why].name,
                      etch__reasons[why].text);
        if (etch__report_on())
            etch__report_note("%s (step %d) reads %%%d of %s (step %d) from memory: %s",
                              etch__ops[n->op].name, n->group, v->base,
                              etch__ops[r->nodes[v->node].op].name, v->group,
                              etch__reasons[why].text);
    }
}

/* ---- placing ---- */

static bool join(ir *r, int32_t node, int32_t group, const space *sp, int stage) {
    ir_node *n = &r->nodes[node];
    ir_group *g = &r->groups[group];
    int accesses, code;
    if (!etch__grow(&g->members, &g->members_cap, g->nmembers + 1, sizeof *g->members))
        return false;
    cost(r, n, group, &accesses, &code);
    g->naccesses += accesses, g->ncode += code;
    g->members[g->nmembers++] = node;
    g->mask |= sp->mask;
    n->group = group;
    ir_version *v = &r->versions[n->out];
    v->group = group;
    v->stage = (uint8_t)(stage + (n->kind == IR_REDUCE));
    if (v->stage > g->last) g->last = v->stage;
    g->writes |= n->write;
    g->needed |= n->needed, g->final |= writes_an_input(r, n);
    note_needs(r, n);
    return true;
}

static bool new_group(ir *r, int32_t node, const space *sp) {
    if (!etch__grow(&r->groups, &r->groups_cap, r->ngroups + 1, sizeof *r->groups)) return false;
    ir_group *g = &r->groups[r->ngroups++];
    *g = (ir_group){.call = !is_loop(&r->nodes[node]), .naxes = sp->n};
    memcpy(g->size, sp->size, sizeof g->size);
    return join(r, node, r->ngroups - 1, sp, 0);
}

/* A group that holds one of the node's operands in a register, the last one that will do, or -1. */
static int32_t operand_group(const ir *r, const ir_node *n, const space *sp, bool *full) {
    int32_t best = -1;
    for (int i = 0; i < n->nin; i++) {
        const ir_source *s = &sources(r, n)[i];
        if (!fusable(r, n, sp, s)) continue;
        int32_t group = r->versions[s->version].group;
        const ir_group *g = &r->groups[group];
        if (n->kind == IR_REDUCE && g->mask && g->mask != sp->mask) continue;
        if (group <= best || !ready(r, n, sp, group, stage_in(r, n, group, sp))) continue;
        if (fits(r, n, group)) best = group;
        else *full = true;
    }
    return best;
}

/* A group of the same space that runs late enough: reductions join their likes only. */
static int32_t sibling_group(const ir *r, const ir_node *n, const space *sp) {
    for (int32_t group = 0; group < r->ngroups; group++) {
        const ir_group *g = &r->groups[group];
        if (g->call || g->mask != sp->mask || !same_space(g, sp)) continue;
        if (late_enough(r, n, group) && ready(r, n, sp, group, 0) && fits(r, n, group))
            return group;
    }
    return -1;
}

static bool place(ir *r, int32_t node) {
    ir_node *n = &r->nodes[node];
    bool full = false;
    space sp = space_of(n);
    int32_t group = -1;
    if (is_loop(n)) {
        group = operand_group(r, n, &sp, &full);
        if (group < 0) group = sibling_group(r, n, &sp);
    }
    bool ok =
        group < 0 ? new_group(r, node, &sp) : join(r, node, group, &sp, stage_in(r, n, group, &sp));
    n->full = full;
    return ok;
}

/* ---- merging ---- */

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
        space sp = space_of(n);
        for (int k = 0; k < n->nin; k++) {
            const ir_source *s = &sources(r, n)[k];
            if (!from_group(r, n, s) || r->versions[s->version].group != first) continue;
            if (!fusable(r, n, &sp, s)) return false;
        }
    }
    return true;
}

/* What a check needs is not put off, since the check comes before inputs are written. */
static bool can_merge(const ir *r, int32_t first, int32_t then) {
    const ir_group *a = &r->groups[first], *b = &r->groups[then];
    if (a->call || b->call || a->mask || b->mask || a->writes || b->writes) return false;
    if (a->needed && !b->needed) return false;
    if (a->nmembers + b->nmembers > r->max_members || a->ncode + b->ncode > CODE_BUDGET ||
        a->naccesses + b->naccesses > ACCESS_BUDGET)
        return false;
    return reads_registers(r, first, then) && !something_between(r, first, then);
}

/* `then` has the members of both, in the order of their dependences; `first` has none. */
static bool merge(ir *r, int32_t first, int32_t then) {
    ir_group *a = &r->groups[first], *b = &r->groups[then];
    if (!etch__grow(&a->members, &a->members_cap, a->nmembers + b->nmembers, sizeof *a->members))
        return false;
    memcpy(a->members + a->nmembers, b->members, (size_t)b->nmembers * sizeof *b->members);
    for (int i = 0; i < a->nmembers; i++) {
        ir_node *n = &r->nodes[a->members[i]];
        n->group = r->versions[n->out].group = then;
    }
    ir_group empty = *b;
    b->members = a->members, b->members_cap = a->members_cap, b->nmembers += a->nmembers;
    b->naccesses += a->naccesses, b->ncode += a->ncode, b->needed |= a->needed;
    a->members = empty.members, a->members_cap = empty.members_cap, a->nmembers = 0;
    for (int32_t g = 0; g < r->ngroups; g++)
        if (g != then && depends(r, g, first)) add_need(r, g, then);
    return true;
}

/* A value that a group reads from memory, though it has the group's space, was computed in another
 * one because what came then was not known yet: the operands of a product, say. Two pointwise
 * groups become one where nothing has to run between them. */
static bool merge_groups(ir *r) {
    for (int i = 0; i < r->nnodes && r->words; i++) {
        const ir_node *n = &r->nodes[i];
        if (n->dead || n->group < 0 || !is_loop(n)) continue;
        space sp = space_of(n);
        for (int k = 0; k < n->nin; k++) {
            const ir_source *s = &sources(r, n)[k];
            if (!from_group(r, n, s)) continue;
            int32_t first = r->versions[s->version].group;
            if (first == n->group || !fusable(r, n, &sp, s)) continue;
            if (can_merge(r, first, n->group) && !merge(r, first, n->group)) return false;
        }
    }
    return true;
}

bool etch__drop_empty_groups(ir *r) {
    int32_t *place = etch__malloc(((size_t)r->ngroups + 1) * sizeof *place), n = 0;
    if (!place) return false;
    for (int32_t g = 0; g < r->ngroups; g++) {
        place[g] = n;
        if (r->groups[g].nmembers) r->groups[n++] = r->groups[g];
        else etch__free(r->groups[g].members);
    }
    r->ngroups = n;
    for (int i = 0; i < r->nnodes; i++)
        if (r->nodes[i].group >= 0) r->nodes[i].group = place[r->nodes[i].group];
    for (int v = 0; v < r->nversions; v++)
        if (r->versions[v].group >= 0) r->versions[v].group = place[r->versions[v].group];
    etch__free(place);
    return true;
}

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

/* ---- order ---- */

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
    if (r->groups[group].final) return true;
    for (int32_t g = 0; g < r->ngroups; g++)
        if (depends(r, group, g) && r->groups[g].final) return true;
    return false;
}

/* Numbers the groups in the order of their steps: those that write inputs, and what needs them,
 * come last, so that an eager kernel that fails has mostly changed nothing yet. */
static bool order_groups(ir *r) {
    int n = 0, groups = r->ngroups;
    if (!r->words || !groups) return true;
    int32_t *order = etch__malloc(2 * groups * sizeof *order), *place = order + groups;
    ir_group *sorted = etch__malloc(groups * sizeof *sorted);
    bool ok = order && sorted;
    if (ok) {
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
    }
    etch__free(order);
    etch__free(sorted);
    return ok;
}

static void note_passes(ir *r) {
    r->has_passes = r->bad_passes = false;
    for (int i = 0; i < r->ngroups; i++) {
        const ir_group *g = &r->groups[i];
        if (g->last < 2) continue;
        r->has_passes = true;
        r->bad_passes |= !good_rows(g, r->nodes[g->members[0]].domain.device);
    }
}

/* What pass_products.c has made of the call of a step. */
static void note_sums(const ir *r, int32_t group) {
    const ir_node *n = &r->nodes[r->groups[group].members[0]];
    char text[160];
    if (!n->merged) return;
    const ir_source *sum = &sources(r, n)[n->sums & 1 ? 0 : 1];
    snprintf(
        text, sizeof text,
        "%s (step %d) stands for %d products with one %s operand: the others are added in %%%d",
        etch__ops[n->op].name, group, n->merged + 1, n->sums & 1 ? "right" : "left",
        r->versions[sum->version].base);
    if (etch__log_on(LOG_FUSION)) etch__log(LOG_FUSION, "%s: %s", r->g->name, text);
    if (etch__report_on()) etch__report_note("%s", text);
}

static void log_groups(const ir *r) {
    if (!etch__log_on(LOG_FUSION)) return;
    for (int32_t g = 0; g < r->ngroups; g++) {
        char text[512];
        int at = 0;
        if (r->groups[g].call) continue;
        for (int i = 0; i < r->groups[g].nmembers && at < (int)sizeof text - 40; i++)
            at += snprintf(text + at, sizeof text - at, "%s%s", i ? ", " : "",
                           etch__ops[r->nodes[r->groups[g].members[i]].op].name);
        etch__log(LOG_FUSION, "%s: kernel of step %d: {%s}", r->g->name, g, text);
    }
}

static void need_version(const ir *r, int32_t version) {
    if (version >= 0 && r->versions[version].node >= 0)
        r->nodes[r->versions[version].node].needed = true;
}

static void mark_needed(ir *r) {
    for (int i = r->nnodes - 1; i >= 0; i--) {
        const ir_node *n = &r->nodes[i];
        bool fails = n->kind == IR_CALL && etch__ops[n->op].flags & OPF_MAY_FAIL;
        if (n->dead || (!fails && !n->needed)) continue;
        for (int k = 0; k < n->nin; k++) need_version(r, sources(r, n)[k].version);
        if (n->write) need_version(r, n->target.version);
    }
}

static bool reset(ir *r) {
    for (int i = 0; i < r->ngroups; i++) etch__free(r->groups[i].members);
    r->ngroups = 0;
    for (int v = 0; v < r->nversions; v++) r->versions[v].group = -1, r->versions[v].stored = false;
    for (int i = 0; i < r->nnodes; i++) r->nodes[i].group = -1, r->nodes[i].needed = false;
    mark_needed(r);
    etch__free(r->needs);
    r->words = r->nnodes > CLOSURE_MAX ? 0 : (r->nnodes + 63) / 64;
    r->needs = etch__calloc((size_t)r->nnodes * r->words + 1, sizeof *r->needs);
    return r->needs != NULL;
}

bool etch__fuse(ir *r) {
    if (!reset(r)) return false;
    mark_constants(r);
    for (int i = 0; i < r->nnodes; i++) {
        const ir_node *n = &r->nodes[i];
        const ir_version *v = &r->versions[n->out];
        if (n->dead || (v->constant && !v->stored)) continue;
        if (!place(r, i)) return false;
    }
    if (!merge_groups(r)) return false;
    mark_stored(r);
    note_passes(r);
    if (!order_groups(r) || !etch__drop_empty_groups(r)) return false;
    if (r->aside) return true;
    if (!etch__pass_join(r)) return false;
    etch__report_restart_steps();
    for (int i = 0; i < r->nnodes; i++)
        if (r->nodes[i].group >= 0) explain(r, &r->nodes[i]);
    for (int32_t g = 0; g < r->ngroups; g++) note_sums(r, g);
    log_groups(r);
    return true;
}
