/* Common subexpressions: a node equal to an earlier one gives way to it.
 *
 * Obligations: equal means the same operator, state, attributes and sources (versions never
 * change, so equal sources hold equal values); nodes with run-time scalars or random numbers never
 * merge, nor those with a kernel of the user's, nor do those whose storage is later changed in
 * place. Results share storage only where the program says so: a version that stands for two
 * outputs is copied for the second. */
#include "jit/ir/ir.h"

static bool mergeable(const ir *r, const ir_node *n) {
    if (n->dead || n->write || n->gnode < 0 || n->kind == IR_EMPTY) return false;
    const graph_node *g = &r->g->nodes[n->gnode];
    if (g->nsc || (etch__ops[n->op].flags & OPF_RANDOM)) return false;
    if (etch__op_is_users(n->op)) return false;
    return !(r->bases[r->versions[n->out].base] & BASE_PATCHED);
}

static bool same_source(const ir *r, const ir_source *a, const ir_source *b) {
    if (a->version != b->version) return false;
    if (a->version < 0) return true;
    return (!r->versions[a->version].memory || a->root == b->root) &&
           etch__same_meta(&a->meta, &b->meta);
}

static bool same_node(const ir *r, const ir_node *a, const ir_node *b) {
    const graph_node *x = &r->g->nodes[a->gnode], *y = &r->g->nodes[b->gnode];
    if (a->op != b->op || a->kind != b->kind || a->nin != b->nin || a->dtype != b->dtype ||
        x->state != y->state || x->nat != y->nat)
        return false;
    if (x->nat && memcmp(r->g->attrs + x->at, r->g->attrs + y->at, x->nat * sizeof(int64_t)))
        return false;
    if (!etch__same_meta(&r->versions[a->out].meta, &r->versions[b->out].meta)) return false;
    for (int i = 0; i < a->nin; i++)
        if (!same_source(r, &r->sources[a->in + i], &r->sources[b->in + i])) return false;
    return true;
}

static uint32_t hash_node(const ir *r, const ir_node *n) {
    uint32_t h = n->op * 2654435761u;
    for (int i = 0; i < n->nin; i++)
        h = (h ^ (uint32_t)r->sources[n->in + i].version) * 2654435761u;
    return h ^ h >> 15;
}

/* Puts node i into the table, or returns the equal one that is there. */
static int32_t find_equal(const ir *r, int32_t *table, uint32_t mask, int32_t i) {
    const ir_node *n = &r->nodes[i];
    for (uint32_t slot = hash_node(r, n) & mask;; slot = (slot + 1) & mask) {
        if (table[slot] < 0) return table[slot] = i, -1;
        if (same_node(r, &r->nodes[table[slot]], n)) return table[slot];
    }
}

static void merge(ir *r, int32_t *table, uint32_t mask, int32_t *stands_for) {
    for (int v = 0; v < r->nversions; v++) stands_for[v] = v;
    for (int i = 0; i < r->nnodes; i++) {
        ir_node *n = &r->nodes[i];
        for (int k = 0; k < n->nin; k++) {
            int32_t *version = &r->sources[n->in + k].version;
            if (*version >= 0) *version = stands_for[*version];
        }
        int32_t equal = mergeable(r, n) ? find_equal(r, table, mask, i) : -1;
        if (equal < 0) continue;
        stands_for[n->out] = r->nodes[equal].out;
        n->dead = true;
    }
    for (int k = 0; k < r->g->noutputs; k++) r->outputs[k] = stands_for[r->outputs[k]];
}

static bool copy_shared_outputs(ir *r) {
    for (int k = 0; k < r->g->noutputs; k++)
        for (int j = 0; j < k; j++) {
            if (r->outputs[j] != r->outputs[k]) continue;
            int32_t node = etch__ir_copy(r, r->outputs[k], NULL, r->g->outputs[k]);
            if (node < 0) return false;
            r->outputs[k] = r->nodes[node].out;
            break;
        }
    return true;
}

bool etch__pass_cse(ir *r) {
    uint32_t slots = 16;
    while (slots < 2 * (uint32_t)r->nnodes) slots *= 2;
    int32_t *table = etch__arena_new(r->memory, slots * sizeof *table);
    int32_t *stands_for = etch__arena_new(r->memory, (r->nversions + 1) * sizeof *stands_for);
    if (!table || !stands_for) return false;
    memset(table, 0xff, slots * sizeof *table);
    merge(r, table, slots - 1, stands_for);
    return copy_shared_outputs(r);
}
