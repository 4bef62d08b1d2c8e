/* Dead code: marks nodes whose versions nobody needs.
 *
 * Obligations: an output, an input's memory and an operator that may fail (a kernel of the user's
 * always may) keep everything that they depend on, the version whose memory a write takes over
 * included. */
#include "jit/ir/ir.h"

static bool is_root(const ir *r, const ir_node *n) {
    if (n->write && r->versions[n->out].memory) return true;
    if (n->gnode < 0) return false;
    return (etch__ops[n->op].flags & OPF_MAY_FAIL) || etch__op_is_users(n->op);
}

static void need(ir *r, uint8_t *needed, int32_t version) {
    if (version >= 0 && r->versions[version].node >= 0) needed[r->versions[version].node] = 1;
}

bool etch__pass_dce(ir *r) {
    uint8_t *needed = etch__arena_zeroed(r->memory, r->nnodes + 1);
    if (!needed) return false;
    for (int k = 0; k < r->g->noutputs; k++) need(r, needed, r->outputs[k]);
    for (int i = r->nnodes - 1; i >= 0; i--) {
        ir_node *n = &r->nodes[i];
        if (n->dead || !(needed[i] || is_root(r, n))) {
            n->dead = true;
            continue;
        }
        for (int k = 0; k < n->nin; k++) need(r, needed, r->sources[n->in + k].version);
        if (n->write) need(r, needed, n->target.version);
    }
    return true;
}
