/* Products that share a kernel with what is computed of them (on a device whose target can): after
 * fusion,
 *
 *   step 3: mm, step 5: mm, step 6: {add, relu, sin}   ->   step 4: {add, relu, sin, mm, mm}
 *
 * A product that only one kernel reads, element for element, becomes a member of it, and its result
 * stays in registers, or in the cache. The values are those of the steps apart: the target computes
 * the product by the same code as alone, so this is for strict numerics as well.
 *
 * Obligations: the kernel changes nothing in place, since other blocks read the operands of the
 * product while one stores results; nothing between the product's place and the kernel's changes
 * memory in place; the product is Etch's own. On the CPU the first two do not count where the
 * memory of its operands never changes: a gradient of weights joins the kernel that updates these.
 *
 * Where the target gives products in the compute type (target_matmuls.wide), the kernel may reduce
 * the rows of the product's space; what became two nodes (pass_products.c) and has a kernel for
 * itself alone becomes the operator again. Else the kernel has one stage, the product is an mm of
 * f32 in full precision or of halves, those of halves in one kernel have one left operand, and
 * where sizes are dynamic products stay apart, so that no later size needs code that an earlier one
 * did not. */
#include "core/dispatch/dispatch.h"
#include "jit/fuse/fuse.h"
#include "jit/ir/target.h"

/* ---- what a product is ---- */

static bool is_convolution(const ir *r, const ir_node *n) {
    return n->op == OP_CONVOLUTION && r->target->channels_last && !r->g->dynamic &&
           r->target->channels_last(n->op, n->dtype);
}

static bool is_matmul(const ir *r, const ir_node *n) {
    if (n->dead || n->kind != IR_CALL || n->epilogue || n->gnode < 0 || etch__op_is_users(n->op))
        return false;
    if (n->op != OP_MM && !is_convolution(r, n)) return false;
    if (sources(r, n)[0].version < 0 || sources(r, n)[1].version < 0) return false;
    if (r->target->matmuls.wide)
        return etch__is_float(n->dtype) && n->dtype == etch__compute_type(n->dtype);
    if (etch__is_half(n->dtype)) return true;
    return n->dtype == ETCH_F32 && !STATE_PRECISION(r->g->nodes[n->gnode].state);
}

static matmul_sizes sizes_of(const ir *r, const ir_node *n) {
    const tensor_meta *a = &sources(r, n)[0].meta, *b = &sources(r, n)[1].meta;
    const tensor_meta *c = &r->versions[n->out].meta;
    if (n->op == OP_CONVOLUTION)
        return (matmul_sizes){.m = c->size[0] * c->size[2] * c->size[3],
                              .n = c->size[1],
                              .k = b->size[1] * b->size[2] * b->size[3],
                              .dtype = n->dtype};
    return (matmul_sizes){a->size[0],   b->size[1],   a->size[1],   n->dtype,
                          a->stride[0], a->stride[1], b->stride[0], b->stride[1]};
}

/* ---- the kernel that reads it ---- */

/* Rows longer than this do not stay in the cache; shorter ones than that are no good strips. */
enum { LONGEST_ROW = 4096, SHORTEST_ROW = 128, FEWEST = 8 /* of a convolution */ };

/* Bands of rows are what threads share. Where there may be fewer bands than threads, the product is
 * computed whole first, into memory of the run's own (product.c): not, if that is much. */
enum { MUCH = 1 << 20, MANY_ROWS = 1 << 14 };
static bool good_bands(int64_t rows, int64_t row) {
    return row <= LONGEST_ROW && (rows * row <= MUCH || rows >= MANY_ROWS);
}

/* Whether it has one stage, or reduces rows of the space in one piece each. */
static bool good_stages(const ir *r, const ir_group *g) {
    if (!g->mask && !g->last) return true;
    if (!g->naxes) return false;
    int64_t rows = 1, row = g->size[g->naxes - 1];
    for (int a = 0; a < g->naxes - 1; a++) rows *= g->size[a];
    return r->target->matmuls.wide && !r->g->dynamic && g->mask == 1u << (g->naxes - 1) &&
           good_bands(rows, row) && !etch__loop_splits(rows, rows, row);
}

/* Whether a kernel may have both: those of halves are of one left operand. */
static bool go_together(const ir *r, const ir_node *p, const ir_node *q) {
    const ir_source *a = &sources(r, p)[0], *b = &sources(r, q)[0];
    bool same = a->version == b->version && etch__same_meta(&a->meta, &b->meta);
    return p->dtype == q->dtype && (same || !etch__is_half(p->dtype));
}

static bool goes_with_others(const ir *r, const ir_group *g, const ir_node *p) {
    for (int i = 0; i < g->nmembers; i++) {
        const ir_node *m = &r->nodes[g->members[i]];
        if (m->kind == IR_CALL && !go_together(r, p, m)) return false;
    }
    return true;
}

static bool can_take(const ir *r, const ir_group *g, const ir_node *p, bool may_write) {
    int most = r->target->matmuls.wide ? 1 : JOIN_MAX;
    if (g->call || g->nmatmuls == most || !good_stages(r, g)) return false;
    if (!r->target->matmuls.wide && !goes_with_others(r, g, p)) return false;
    for (int i = 0; i < g->nmembers; i++) {
        const ir_node *n = &r->nodes[g->members[i]];
        bool writes = n->write || r->versions[n->out].memory;
        if ((writes && !may_write) || (n->index && r->target->matmuls.wide)) return false;
    }
    return g->nloads + etch__group_stores(r, g) + 4 * most <= LOOP_MAX_ACCESSES;
}

/* Whether memory that changes from row to row of a convolution's tiles goes along them: channel
 * after channel, or position after position of a plane. */
static bool goes_along(const ir_source *s, const tensor_meta *domain, const tensor_meta *c) {
    int64_t stride[ETCH_MAX_DIMS] = {0};
    bool batch = c->size[0] > 1, high = c->size[2] > 1, wide = c->size[3] > 1;
    etch__map_strides(s, domain, stride);
    int64_t image = batch ? stride[0] : 0, channel = stride[batch];
    int64_t row = high ? stride[batch + 1] : 0, column = wide ? stride[batch + 1 + high] : 0;
    if (etch__channels_innermost(c)) return channel <= 1 || !(image | row | column);
    if (high && wide && row != column * c->size[3]) return false;
    return (wide ? column : row) <= 1 || !(image | channel);
}

/* Of a convolution: the kernel has its positions and channels, and goes over memory as the tiles
 * do. */
static bool same_positions(const ir *r, const ir_group *g, const tensor_meta *c) {
    int64_t size[ETCH_MAX_DIMS];
    uint32_t kept;
    int n = etch__squeeze(c, size, &kept);
    if (g->mask || g->last || c->size[1] < 2 || !etch__same_dims(n, size, g->naxes, g->size))
        return false;
    for (int i = 0; i < g->nmembers; i++) {
        const ir_node *m = &r->nodes[g->members[i]];
        const ir_version *out = &r->versions[m->out];
        ir_source whole = {m->out, out->base, true, out->meta};
        if (out->stored && !goes_along(&whole, &m->domain, c)) return false;
        for (int k = 0; k < m->nin; k++) {
            const ir_source *s = &sources(r, m)[k];
            if (s->version >= 0 && !goes_along(s, &m->domain, c)) return false;
        }
    }
    return true;
}

/* Whether all axes but the last are one in this memory. */
static bool rows_are_one(const ir_source *s, const tensor_meta *domain, const ir_group *g) {
    int64_t stride[ETCH_MAX_DIMS] = {0};
    etch__map_strides(s, domain, stride);
    for (int a = 0; a < g->naxes - 2; a++)
        if (stride[a] != stride[a + 1] * g->size[a + 1]) return false;
    return true;
}

static bool all_rows_are_one(const ir *r, const ir_group *g) {
    for (int i = 0; i < g->nmembers; i++) {
        const ir_node *m = &r->nodes[g->members[i]];
        const ir_version *out = &r->versions[m->out];
        ir_source whole = {m->out, out->base, true, out->meta};
        if (m->kind == IR_CALL) continue;
        if (out->stored && !rows_are_one(&whole, &m->domain, g)) return false;
        for (int k = 0; k < m->nin; k++) {
            const ir_source *s = &sources(r, m)[k];
            if (s->version >= 0 && !rows_are_one(s, &m->domain, g)) return false;
        }
    }
    return true;
}

/* The space is that of the product's result; its rows may be those of several axes. */
static bool same_space(const ir *r, const ir_group *g, const ir_node *p, const matmul_sizes *s) {
    if (p->op == OP_CONVOLUTION) return same_positions(r, g, &r->versions[p->out].meta);
    bool wide = r->target->matmuls.wide, several = wide || etch__is_half(p->dtype);
    if (!several) return g->naxes == 2 && g->size[0] == s->m && g->size[1] == s->n;
    if (!wide && (g->naxes < 2 || !all_rows_are_one(r, g))) return false;
    int64_t rows = 1;
    for (int a = 0; a < g->naxes - 1; a++) rows *= g->size[a];
    return g->naxes > 0 && rows == s->m && g->size[g->naxes - 1] == s->n;
}

/* Element for element; of a product whose rows may be those of several axes, in the order of its
 * elements. */
bool etch__reads_in_order(const ir *r, const ir_source *s) {
    const tensor_meta *own = &r->versions[s->version].meta, *m = &s->meta;
    if (s->whole || r->target->matmuls.wide || !etch__is_half(m->dtype)) return s->whole;
    return m->offset == own->offset && etch__meta_numel(m) == etch__meta_numel(own) &&
           etch__sizes_contiguous(m->ndim, m->size, m->stride) &&
           etch__sizes_contiguous(own->ndim, own->size, own->stride);
}

/* How often the group reads the version, if always element for element; -1: in another way. */
static int reads_in(const ir *r, const ir_group *g, int32_t version) {
    int n = 0;
    for (int i = 0; i < g->nmembers; i++) {
        const ir_node *m = &r->nodes[g->members[i]];
        bool reduces = m->kind == IR_REDUCE && r->target->matmuls.wide;
        for (int k = 0; k < m->nin; k++) {
            const ir_source *s = &sources(r, m)[k];
            if (s->version != version) continue;
            if ((m->kind != IR_POINT && !reduces) || !etch__reads_in_order(r, s)) return -1;
            n++;
        }
    }
    return n;
}

/* Whether the memory of the product's operands never changes. */
static bool operands_stay(const ir *r, const ir_uses *u, const ir_node *p) {
    for (int k = 0; k < p->nin; k++) {
        int32_t version = sources(r, p)[k].version;
        if (version >= 0 && u->overwriter[version] != INT32_MAX) return false;
    }
    return true;
}

/* Whether the product may be computed in a kernel that writes: it reads nothing of that memory, and
 * a run that fails there, for want of a tile's memory, may have written inputs anyway. */
static bool may_write(const ir *r, const ir_uses *u, const ir_node *p, int32_t group) {
    if (!r->target->matmuls.wide || p->op != OP_MM || !operands_stay(r, u, p)) return false;
    for (int32_t g = 0; g < group; g++)
        if (r->groups[g].writes_input) return true;
    return false;
}

static bool changes_memory(const ir *r, int32_t from, int32_t to) {
    for (int32_t g = from; g < to; g++)
        if (r->groups[g].writes) return true;
    return false;
}

/* The one group that can take the product in, or -1. */
static int32_t reader(const ir *r, const ir_uses *u, const ir_node *p, const matmul_sizes *s) {
    const ir_version *v = &r->versions[p->out];
    if (v->memory || v->tied >= 0 || u->overwriter[p->out] != INT32_MAX) return -1;
    for (int32_t g = p->group + 1; g < r->ngroups; g++) {
        int n = reads_in(r, &r->groups[g], p->out);
        if (!n) continue;
        bool writes = may_write(r, u, p, g);
        bool joins = n == u->readers[p->out] && can_take(r, &r->groups[g], p, writes) &&
                     same_space(r, &r->groups[g], p, s) &&
                     (writes || !changes_memory(r, p->group, g));
        return joins ? g : -1;
    }
    return -1;
}

/* ---- joining ---- */

/* Moves the product's node to the group, behind its other members. */
static bool move(ir *r, ir_node *p, int32_t group) {
    ir_group *g = &r->groups[group];
    if (!etch__arena_grow(r->memory, &g->members, &g->members_cap, g->nmembers + 1,
                          sizeof *g->members))
        return false;
    g->members[g->nmembers++] = (int32_t)(p - r->nodes);
    g->nmatmuls++;
    r->groups[p->group].nmembers = 0;
    p->group = r->versions[p->out].group = group;
    r->versions[p->out].stored = false;
    return true;
}

/* Whether the group reads another product than p that may go with it. */
static bool reads_others(const ir *r, const ir_group *g, const ir_node *p) {
    for (int i = 0; i < g->nmembers; i++) {
        const ir_node *m = &r->nodes[g->members[i]];
        for (int k = 0; m->kind == IR_POINT && k < m->nin; k++) {
            int32_t v = sources(r, m)[k].version, node = v < 0 ? -1 : r->versions[v].node;
            const ir_node *q = node < 0 ? p : &r->nodes[node];
            if (q != p && is_matmul(r, q) && go_together(r, p, q)) return true;
        }
    }
    return false;
}

/* Whether the group loads more than a row of what it does not compute itself: that takes as long as
 * the products of halves leave no time for. */
static bool loads_others(const ir *r, int32_t group, const ir_node *p, const matmul_sizes *s) {
    const ir_group *g = &r->groups[group];
    for (int i = 0; i < g->nmembers; i++) {
        const ir_node *m = &r->nodes[g->members[i]];
        for (int k = 0; k < m->nin; k++) {
            const ir_source *x = &sources(r, m)[k];
            if (x->version < 0 || x->version == p->out) continue;
            int32_t node = r->versions[x->version].node;
            bool own = node >= 0 && r->nodes[node].group == group;
            if (!own && etch__meta_numel(&x->meta) > s->n) return true;
        }
    }
    return false;
}

static bool wanted(const ir *r, const ir_node *p, const matmul_sizes *s, int32_t group) {
    if (p->op == OP_CONVOLUTION)
        return (s->n >= FEWEST || etch__in_planes(r, p)) && s->m >= FEWEST &&
               r->target->matmuls.joins(r->device, s, true);
    if (r->target->matmuls.wide)
        return (r->g->dynamic || s->n >= SHORTEST_ROW) &&
               r->target->matmuls.joins(r->device, s, true);
    bool alone = !reads_others(r, &r->groups[group], p);
    if (alone && etch__is_half(p->dtype) && loads_others(r, group, p, s)) return false;
    return r->target->matmuls.joins(r->device, s, alone);
}

/* The one member of the kernel that reads the product where it is the rest of its operator. */
static ir_node *rest_of_operator(const ir *r, const ir_node *p, int32_t group) {
    if (group < 0 || r->groups[group].nmembers != 1) return NULL;
    ir_node *n = &r->nodes[r->groups[group].members[0]];
    return etch__is_whole_operator(r, p, n) ? n : NULL;
}

/* The operator takes the kernel's place. */
static bool restore(ir *r, ir_node *p, ir_node *rest) {
    int32_t group = rest->group;
    if (!etch__become_operator(r, p, rest)) return false;
    rest->dead = true;
    r->groups[p->group].nmembers = 0;
    r->groups[group] = (ir_group){.call = true,
                                  .members = r->groups[group].members,
                                  .members_cap = r->groups[group].members_cap,
                                  .nmembers = 1};
    r->groups[group].members[0] = (int32_t)(p - r->nodes);
    p->group = r->versions[p->out].group = group;
    r->versions[p->out].stored = true;
    return true;
}

/* From the last product on: of more than a kernel can have, those that come first can
 * still run beside other steps. */
static bool join_matmuls(ir *r, const ir_uses *u) {
    for (int32_t g = r->ngroups - 1; g >= 0; g--) {
        if (!r->groups[g].nmembers) continue;
        ir_node *p = &r->nodes[r->groups[g].members[0]];
        if (!is_matmul(r, p)) continue;
        matmul_sizes s = sizes_of(r, p);
        int32_t to = reader(r, u, p, &s);
        ir_node *rest = rest_of_operator(r, p, to);
        if (rest ? !restore(r, p, rest) : to >= 0 && wanted(r, p, &s, to) && !move(r, p, to))
            return false;
    }
    return true;
}

static bool can_join(const ir *r) {
    bool timed = r->numerics == ETCH_RELAXED && r->mode == ETCH_MODE_MAX_AUTOTUNE;
    if (!r->target->matmuls.joins) return false;
    return r->target->matmuls.wide || (!timed && !r->g->dynamic);
}

bool etch__may_join(const ir *r, const ir_node *n) {
    if (!can_join(r) || !is_matmul(r, n)) return false;
    matmul_sizes s = sizes_of(r, n);
    return r->target->matmuls.joins(r->device, &s, true);
}

bool etch__pass_join(ir *r) {
    ir_uses u;
    if (r->matmuls_apart || !can_join(r)) return true;
    return etch__ir_uses(r, &u) && join_matmuls(r, &u) && etch__drop_empty_groups(r);
}
