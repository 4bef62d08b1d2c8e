/* Fusion: which groups a node may join. A node may join one when everything else that it depends on
 * can run before the group, which the transitive dependences of all groups tell; inside a group a
 * value stays in a register: same iteration space, same order of elements, or a row's value given
 * back to the elements of its row. */
#include "jit/fuse/fuse.h"

#include "core/dispatch/dispatch.h"

/* ---- spaces ---- */

space etch__space_of(const ir_node *n) {
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

bool etch__same_space(const ir_group *g, const space *s) {
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

/* Notes that `group`, and what depends on it, needs `first` and all that it needs. */
void etch__add_need(ir *r, int32_t group, int32_t first) {
    if (!r->words || first == group || depends(r, group, first)) return;
    for (int32_t g = 0; g < r->ngroups; g++) {
        if (g != group && !depends(r, g, group)) continue;
        for (int w = 0; w < r->words; w++) needs_of(r, g)[w] |= needs_of(r, first)[w];
        needs_of(r, g)[first / 64] |= 1ull << (first % 64);
    }
}

/* ---- what a node needs ---- */

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
    if (v->stage % 2 == 0) return s->whole && etch__same_space(g, sp) ? v->stage : -1;
    if (n->kind == IR_POINT && !n->index && s->whole && same_as_reduced(g, sp)) return v->stage;
    return etch__same_space(g, sp) && gives_back(r, n, s, g) ? v->stage + 1 : -1;
}

/* Whether the operand can stay in a register of its maker's group. */
bool etch__fusable(const ir *r, const ir_node *n, const space *sp, const ir_source *s) {
    return stage_after(r, n, sp, s) >= 0;
}

bool etch__in_register(const ir *r, const ir_node *n, const ir_source *s) {
    space sp = etch__space_of(n);
    return etch__fusable(r, n, &sp, s);
}

/* The stage in which a member of the group uses its operands. */
int etch__stage_in(const ir *r, const ir_node *n, int32_t group, const space *sp) {
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
 * some. On the CPU many short rows are better reduced side by side (loop_tile), in one sweep. */
bool etch__good_rows(const ir_group *g, int device) {
    enum { SHORT_ROW = REDUCE_LANES - 1, MANY_ROWS = 8 };
    int64_t rows = 1, reduced = 1;
    for (int a = 0; a < g->naxes; a++) *(g->mask >> a & 1 ? &reduced : &rows) *= g->size[a];
    if (device == ETCH_CPU && reduced <= SHORT_ROW && rows >= MANY_ROWS) return false;
    if (device && rows < 128 && reduced > 4 * REDUCE_BLOCK) return false;
    return !etch__loop_splits(rows, rows, reduced);
}

/* Bytes of an element that the node's sources in memory have along its rows, less those across. */
static int64_t bytes_along(const ir *r, const ir_node *n, const ir_group *g) {
    int64_t bytes = 0, stride[ETCH_MAX_DIMS];
    space sp = etch__space_of(n);
    for (int i = 0; etch__same_space(g, &sp) && i < n->nin; i++) {
        const ir_source *s = &sources(r, n)[i];
        if (s->version < 0 || r->versions[s->version].constant) continue;
        if (from_group(r, n, s) && &r->groups[r->versions[s->version].group] == g) continue;
        etch__map_strides(s, &n->domain, stride);
        bytes += etch__row_order(g->naxes, g->size, stride, g->mask) *
                 (int64_t)etch_dtype_size(s->meta.dtype);
    }
    return bytes;
}

/* Whether most of what a group on the CPU reads lies across its rows: to go over them again would
 * be to jump through memory again, where kernels of their own take columns side by side. */
static bool reads_across(const ir *r, const ir_group *g) {
    int64_t bytes = 0;
    if (r->device != ETCH_CPU || r->g->dynamic) return false;
    for (int m = 0; m < g->nmembers; m++) bytes += bytes_along(r, &r->nodes[g->members[m]], g);
    return bytes < 0;
}

/* Whether a node may use its operands in the stage of the group. What goes over its rows again
 * loads them again, so it overwrites nothing. */
static bool has_stage(const ir *r, const ir_node *n, const ir_group *g, int stage) {
    if (n->write && g->last > 1) return false;
    if (stage < 2) return true;
    if (stage + (n->kind == IR_REDUCE) >= LOOP_STAGES || r->sweeps == SWEEPS_NONE) return false;
    if (g->writes || n->write || !(g->mask >> (g->naxes - 1) & 1)) return false;
    if (reads_across(r, g)) return false;
    return r->sweeps == SWEEPS_ALL || etch__good_rows(g, n->domain.device);
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

/* Whether both are written in one kernel: parts of one memory, which share no element. */
bool etch__beside(const ir *r, const ir_node *w, const ir_version *old) {
    return w->part && r->nodes[old->node].part;
}

/* Readers of the version that a write overwrites must come first, or use the same map. */
static bool readers_done(const ir *r, const ir_node *w, int32_t group, int stage) {
    const ir_version *old = &r->versions[w->target.version];
    if (old->group == group ? !etch__beside(r, w, old)
                            : old->group >= 0 && !can_precede(r, old->group, group))
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

bool etch__writes_an_input(const ir *r, const ir_node *n) {
    return n->write && r->versions[n->out].memory;
}

/* Whether all that the node needs can be there when the group runs. */
bool etch__ready(const ir *r, const ir_node *n, const space *sp, int32_t group, int stage) {
    const ir_group *g = &r->groups[group];
    if ((n->feeds_check && g->writes_input) || (g->feeds_check && etch__writes_an_input(r, n)))
        return false;
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
bool etch__late_enough(const ir *r, const ir_node *n, int32_t group) {
    for (int i = 0; i < n->nin; i++) {
        const ir_source *s = &sources(r, n)[i];
        if (from_group(r, n, s) && r->versions[s->version].group > group) return false;
    }
    return true;
}

void etch__note_needs(ir *r, const ir_node *n) {
    for (int i = 0; i < n->nin; i++)
        if (from_group(r, n, &sources(r, n)[i]))
            etch__add_need(r, n->group, r->versions[sources(r, n)[i].version].group);
    if (!n->write) return;
    if (r->versions[n->target.version].group >= 0)
        etch__add_need(r, n->group, r->versions[n->target.version].group);
    for (int i = 0; &r->nodes[i] < n; i++) {
        const ir_node *m = &r->nodes[i];
        for (int k = 0; m->group >= 0 && k < m->nin; k++)
            if (reads_version(r, m, &sources(r, m)[k], n->target.version))
                etch__add_need(r, n->group, m->group);
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

bool etch__shares_load(const ir *r, const ir_node *n, const ir_group *g) {
    for (int i = 0; i < n->nin; i++) {
        const ir_source *s = &sources(r, n)[i];
        bool loads = s->version >= 0 && !r->versions[s->version].constant;
        if (loads && loads_already(r, g, s)) return true;
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

/* What the node adds to a group: loads, and instructions without stores. */
void etch__group_cost(const ir *r, const ir_node *n, int32_t group, int *loads, int *code) {
    const ir_group *g = group < r->ngroups ? &r->groups[group] : NULL;
    *loads = 0;
    *code = program_length(n);
    for (int i = 0; i < n->nin; i++) {
        const ir_source *s = &sources(r, n)[i];
        if (s->version < 0) continue;
        const ir_version *v = &r->versions[s->version];
        if (v->constant) *code += program_length(&r->nodes[v->node]);
        else if ((v->group != group || v->group < 0) && !(g && loads_already(r, g, s)))
            ++*loads, ++*code;
    }
}

int etch__reads_of(const ir *r, const ir_node *n, int32_t version) {
    int reads = 0;
    for (int i = 0; i < n->nin; i++) reads += sources(r, n)[i].version == version;
    return reads;
}

/* What the group stores if nothing joins it but `next`, which may be NULL. */
static int stores_with(const ir *r, const ir_group *g, const ir_node *next) {
    int stores = next != NULL;
    for (int m = 0; m < g->nmembers; m++) {
        const ir_node *n = &r->nodes[g->members[m]];
        int reads = next ? etch__reads_of(r, next, n->out) : 0;
        stores += n->write || r->versions[n->out].outside > reads;
    }
    return stores;
}

int etch__group_stores(const ir *r, const ir_group *g) { return stores_with(r, g, NULL); }

bool etch__has_room(const ir *r, int members, int loads, int code, int stores) {
    return members <= r->max_members && loads + stores <= ACCESS_BUDGET &&
           code + stores <= CODE_BUDGET;
}

/* At any time a group has room to store all that is read elsewhere, or later: so what a chain of
 * operators hands on is what is alive where it is cut, and no value in between counts. */
bool etch__fits(const ir *r, const ir_node *n, int32_t group) {
    const ir_group *g = &r->groups[group];
    int loads, code;
    if (g->full) return false;
    etch__group_cost(r, n, group, &loads, &code);
    return etch__has_room(r, g->nmembers + 1, g->nloads + loads, g->ncode + code,
                          stores_with(r, g, n));
}

void etch__note_inside(ir *r, const ir_node *n, int32_t made_in) {
    for (int i = 0; i < n->nin; i++) {
        int32_t version = sources(r, n)[i].version;
        if (version >= 0 && r->versions[version].group == made_in) r->versions[version].outside--;
    }
}
