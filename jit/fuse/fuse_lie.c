/* How what kernels hand on lies in memory.
 *
 * A version is row-major unless a pass says otherwise. A kernel that reduces rows of something that
 * lies across them, as the transpose of a matrix does, reads columns side by side; what it stores
 * of each element would go across memory then, each to a line of the cache of its own. So what it
 * stores of its elements lies as most of what it reads does, where only other kernels see it: the
 * last of them, whose result is seen, turns it, block by block.
 *
 * Obligations: the version is no output, lies in no input's memory, is not changed in place, and is
 * read as a whole, by kernels. Values and the order of all sums are those of logical indices, so
 * bits do not change. */
#include "jit/fuse/fuse.h"

#include <stdlib.h>

/* Whether the map has the same elements as a row-major version, dimension by dimension. */
static bool same_dims(const tensor_meta *m, int n, const int64_t *size) {
    int64_t own[ETCH_MAX_DIMS];
    uint32_t kept;
    int dims = etch__squeeze(m, own, &kept);
    return etch__same_dims(dims, own, n, size);
}

static bool row_major(const tensor_meta *m) {
    int64_t step = 1;
    for (int d = m->ndim - 1; d >= 0; d--) {
        if (m->size[d] > 1 && m->stride[d] != step) return false;
        step *= m->size[d];
    }
    return true;
}

/* What a kernel makes of each element of its space, in memory of its own. */
static bool is_elements(const ir *r, const ir_uses *u, int32_t version) {
    const ir_version *v = &r->versions[version];
    if (v->node < 0 || v->memory || v->tied >= 0 || v->constant || !v->stored) return false;
    if (v->group < 0 || v->stage % 2 || u->overwriter[version] != INT32_MAX) return false;
    const ir_group *g = &r->groups[v->group];
    return !g->call && g->mask && !g->nmatmuls && row_major(&v->meta) &&
           same_dims(&v->meta, g->naxes, g->size);
}

static void keep_what_is_read(const ir *r, const ir_node *n, uint8_t *free_to_lie) {
    for (int k = 0; k < n->nin; k++) {
        const ir_source *s = &sources(r, n)[k];
        if (s->version < 0 || !free_to_lie[s->version]) continue;
        const ir_group *g = &r->groups[r->versions[s->version].group];
        if (!is_loop(n) || !s->whole || !same_dims(&s->meta, g->naxes, g->size))
            free_to_lie[s->version] = false;
    }
    if (n->write) free_to_lie[n->out] = free_to_lie[n->target.version] = false;
}

static void find_free(const ir *r, const ir_uses *u, uint8_t *free_to_lie) {
    for (int32_t v = 0; v < r->nversions; v++) free_to_lie[v] = is_elements(r, u, v);
    for (int k = 0; k < r->g->noutputs; k++) free_to_lie[r->outputs[k]] = false;
    for (int i = 0; i < r->nnodes; i++)
        if (!r->nodes[i].dead) keep_what_is_read(r, &r->nodes[i], free_to_lie);
}

/* Bytes that the source has along the rows of the group, less those across; its strides. */
static int64_t bytes_along(const ir *r, const ir_node *n, const ir_source *s, int32_t group,
                           int64_t *stride) {
    const ir_group *g = &r->groups[group];
    if (s->version < 0 || r->versions[s->version].constant) return 0;
    if (r->versions[s->version].node >= 0 && r->versions[s->version].group == group) return 0;
    etch__map_strides(s, &n->domain, stride);
    return etch__row_order(g->naxes, g->size, stride, g->mask) *
           (int64_t)etch_dtype_size(s->meta.dtype);
}

/* Whether most of what the group reads lies across its rows; the strides of the first such. */
static bool reads_across(const ir *r, int32_t group, int64_t *like) {
    const ir_group *g = &r->groups[group];
    int64_t bytes = 0, stride[ETCH_MAX_DIMS];
    bool found = false;
    for (int m = 0; m < g->nmembers; m++) {
        const ir_node *n = &r->nodes[g->members[m]];
        space sp = etch__space_of(n);
        for (int k = 0; etch__same_space(g, &sp) && k < n->nin; k++) {
            int64_t more = bytes_along(r, n, &sources(r, n)[k], group, stride);
            bytes += more;
            if (more < 0 && !found) memcpy(like, stride, sizeof stride);
            found |= more < 0;
        }
    }
    return bytes < 0;
}

/* The n axes dense, in the order of falling strides of `like`. */
static void dense(int n, const int64_t *size, const int64_t *like, int64_t *stride) {
    int order[ETCH_MAX_DIMS];
    int64_t step = 1;
    for (int a = 0; a < n; a++) {
        int at = a;
        for (; at > 0 && llabs(like[order[at - 1]]) < llabs(like[a]); at--)
            order[at] = order[at - 1];
        order[at] = a;
    }
    for (int at = n - 1; at >= 0; at--) stride[order[at]] = step, step *= size[order[at]];
}

static void spread(tensor_meta *m, const int64_t *stride) {
    for (int d = 0, axis = 0; d < m->ndim; d++)
        if (m->size[d] != 1) m->stride[d] = stride[axis++];
}

static void lie(ir *r, int32_t version, const int64_t *stride) {
    spread(&r->versions[version].meta, stride);
    for (int i = 0; i < r->nnodes; i++) {
        const ir_node *n = &r->nodes[i];
        for (int k = 0; !n->dead && k < n->nin; k++)
            if (sources(r, n)[k].version == version) spread(&sources(r, n)[k].meta, stride);
    }
}

bool etch__lay_out(ir *r) {
    ir_uses u;
    if (r->device != ETCH_CPU || r->g->dynamic) return true;
    uint8_t *free_to_lie = etch__arena_zeroed(r->memory, (size_t)r->nversions + 1);
    if (!free_to_lie || !etch__ir_uses(r, &u)) return false;
    find_free(r, &u, free_to_lie);
    for (int32_t g = 0; g < r->ngroups; g++) {
        const ir_group *x = &r->groups[g];
        int64_t like[ETCH_MAX_DIMS] = {0}, stride[ETCH_MAX_DIMS] = {0};
        if (x->call || !x->mask || !reads_across(r, g, like)) continue;
        dense(x->naxes, x->size, like, stride);
        for (int m = 0; m < x->nmembers; m++) {
            int32_t v = r->nodes[x->members[m]].out;
            if (free_to_lie[v]) lie(r, v, stride);
        }
    }
    return true;
}
