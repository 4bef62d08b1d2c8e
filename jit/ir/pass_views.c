/* View folding: a value that is a view becomes an index map over the memory of its root.
 *
 * Obligation: the map addresses exactly the elements that the eager view does, in the same logical
 * order. The root of a value is the value at the end of its chain of views: an input, or a computed
 * value, whose own storage is dense from offset 0. Inputs may lie at another offset in a run
 * than in the graph, so maps over them are relative to the input's first element. */
#include <stdlib.h>

#include "jit/ir/ir.h"

int64_t etch__meta_numel(const tensor_meta *m) {
    int64_t n = 1;
    for (int d = 0; d < m->ndim; d++) n *= m->size[d];
    return n;
}

/* Sizes other than 1; `kept` gets their dimensions as a mask. */
int etch__squeeze(const tensor_meta *m, int64_t *size, uint32_t *kept) {
    int n = 0;
    *kept = 0;
    for (int d = 0; d < m->ndim; d++) {
        if (m->size[d] == 1) continue;
        size[n++] = m->size[d];
        *kept |= 1u << d;
    }
    return n;
}

/* The same elements in the same order, up to dimensions of size 1. */
static bool same_elements(const tensor_meta *a, const tensor_meta *b) {
    int i = 0, j = 0;
    for (;;) {
        while (i < a->ndim && a->size[i] == 1) i++;
        while (j < b->ndim && b->size[j] == 1) j++;
        if (i == a->ndim || j == b->ndim) break;
        if (a->size[i] != b->size[j] || a->stride[i] != b->stride[j]) return false;
        i++, j++;
    }
    return i == a->ndim && j == b->ndim && a->offset == b->offset;
}

bool etch__source_resolve(const graph *g, int32_t value, ir_source *s) {
    int32_t root = value;
    while (root >= g->ninputs) {
        const graph_node *n = &g->nodes[g->values[root].node];
        if (etch__ops[n->op].kind != KIND_VIEW) break;
        root = g->operands[n->in];
    }
    *s = (ir_source){-1, root, false, g->values[value].meta};
    s->whole = same_elements(&s->meta, &g->values[root].meta);
    return s->whole;
}

/* Whether two elements of the map can have one address (it may say yes wrongly, never no). */
bool etch__map_overlaps_itself(const tensor_meta *m) {
    int64_t reach = 0;
    uint32_t done = 0;
    for (int k = 0; k < m->ndim; k++) {
        int next = -1;
        for (int d = 0; d < m->ndim; d++)
            if (m->size[d] > 1 && !(done >> d & 1) && (next < 0 || m->stride[d] < m->stride[next]))
                next = d;
        if (next < 0) return false;
        if (m->stride[next] <= reach) return true;
        reach += (m->size[next] - 1) * m->stride[next];
        done |= 1u << next;
    }
    return false;
}

bool etch__same_map(const ir *r, const ir_source *a, const ir_source *b) {
    bool memory = r->versions[a->version].memory || r->versions[b->version].memory;
    return (!memory || a->root == b->root) && a->meta.dtype == b->meta.dtype &&
           same_elements(&a->meta, &b->meta);
}

void etch__map_strides(const ir_source *s, const tensor_meta *domain, int64_t *stride) {
    int n = 0, shift = domain->ndim - s->meta.ndim;
    for (int d = 0; d < domain->ndim; d++) {
        if (domain->size[d] == 1) continue;
        int e = d - shift;
        stride[n++] = e < 0 || s->meta.size[e] == 1 ? 0 : s->meta.stride[e];
    }
}

bool etch__map_over(const ir_source *s, const tensor_meta *domain, int n, const int64_t *size,
                    int64_t *stride) {
    int64_t extent[ETCH_MAX_DIMS], step[ETCH_MAX_DIMS];
    uint32_t kept;
    int a = etch__squeeze(domain, extent, &kept) - 1, b = n - 1;
    etch__map_strides(s, domain, step);
    if (etch__same_dims(a + 1, extent, n, size)) {
        memcpy(stride, step, (size_t)n * sizeof *step);
        return true;
    }
    for (; a >= 0; a--) {
        int64_t elements = extent[a], next = step[a];
        for (; a > 0 && step[a - 1] == step[a] * extent[a]; a--) elements *= extent[a - 1];
        for (; b >= 0 && size[b] > 1 && elements % size[b] == 0; b--) {
            stride[b] = next;
            next *= size[b], elements /= size[b];
        }
        if (elements != 1) return false;
    }
    return b < 0;
}

int etch__row_order(int ndim, const int64_t *size, const int64_t *stride, uint32_t mask) {
    int64_t along = 0, across = 0;
    for (int d = 0; d < ndim; d++)
        if (size[d] > 1) *(mask >> d & 1 ? &along : &across) = llabs(stride[d]);
    return !along || !across ? 0 : along < across ? 1 : -1;
}

int64_t etch__map_offset(const ir *r, const ir_source *s) {
    if (!r->versions[s->version].memory) return s->meta.offset;
    return s->meta.offset - r->g->values[s->root].meta.offset;
}
