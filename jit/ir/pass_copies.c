/* Copies that bring the result of an attention into another order, as where heads are put together
 * again: the attention lays its result out in that order at once, and the copy goes.
 *
 * Obligations: nobody else reads the result, nor changes it or its copy in place, nor is the copy
 * an output; rows stay rows, element beside element. Values do not depend on where they lie. */
#include "core/dispatch/dispatch.h"
#include "jit/ir/ir.h"

static bool is_copy(const ir_node *n) {
    return !n->dead && n->kind == IR_POINT && n->op == OP_CLONE && !n->write && n->nin == 1;
}

/* Whether memory of its own holds the version from its first write to its last read. */
static bool stays(const ir *r, const ir_uses *u, int32_t version) {
    const ir_version *v = &r->versions[version];
    for (int k = 0; k < r->g->noutputs; k++)
        if (r->outputs[k] == version) return false;
    return !v->memory && v->tied < 0 && !v->constant && u->overwriter[version] == INT32_MAX;
}

/* Strides of `from` that give its elements the places that the copy s of them has, which lies as
 * `to` does; false: s is no permutation of its dimensions, or moves the last one. */
static bool turned(const tensor_meta *from, const ir_source *s, const tensor_meta *to,
                   int64_t *stride) {
    if (s->meta.ndim != from->ndim || s->meta.ndim != to->ndim || s->meta.offset) return false;
    uint32_t done = 0;
    for (int e = 0; e < from->ndim; e++) {
        int d = 0;
        while (d < to->ndim && (done >> d & 1 || s->meta.size[d] != from->size[e] ||
                                s->meta.stride[d] != from->stride[e]))
            d++;
        if (d == to->ndim) return false;
        done |= 1u << d;
        stride[e] = to->stride[d];
    }
    return stride[from->ndim - 1] == 1;
}

/* All that read the copy read the version instead, through the same maps. */
static void replace(ir *r, int32_t copy, int32_t version) {
    for (int k = 0; k < r->nsources; k++)
        if (r->sources[k].version == copy)
            r->sources[k].version = version, r->sources[k].whole = false;
}

bool etch__pass_copies(ir *r) {
    ir_uses u;
    if (!etch__ir_uses(r, &u)) return false;
    for (int i = 0; i < r->nnodes; i++) {
        ir_node *n = &r->nodes[i];
        ir_source *s = sources(r, n);
        int64_t stride[ETCH_MAX_DIMS];
        if (!is_copy(n) || s->version < 0 || r->versions[s->version].node < 0) continue;
        ir_version *from = &r->versions[s->version];
        if (r->nodes[from->node].op != OP_ATTENTION || etch__op_is_users(OP_ATTENTION)) continue;
        if (u.readers[s->version] != 1 || !stays(r, &u, s->version) || !stays(r, &u, n->out))
            continue;
        if (!turned(&from->meta, s, &r->versions[n->out].meta, stride)) continue;
        memcpy(from->meta.stride, stride, (size_t)from->meta.ndim * sizeof *stride);
        n->dead = true;
        replace(r, n->out, s->version);
    }
    return true;
}
