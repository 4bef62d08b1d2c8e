/* The verifier of the plan ir: what must hold after every pass.
 *
 * Sources name versions made by earlier nodes that are alive; after fusion, what crosses groups
 * runs in order and is stored, what stays in one is in a register, and a write follows every
 * reader of what it overwrites. */
#include "jit/ir/ir.h"

static bool bad(const ir *r, const char *pass, int node, const char *what) {
    return etch__false_at(NULL, ETCH_ERR_INTERNAL, "%s: after %s, node %d: %s", r->g->name, pass,
                          node, what);
}

static const char *check_source(const ir *r, int node, const ir_source *s) {
    if (s->version < 0) return NULL;
    if (s->version >= r->nversions) return "a source names no version";
    const ir_version *v = &r->versions[s->version];
    const ir_node *n = &r->nodes[node];
    if (v->node >= node) return "a source is not made before it is read";
    if (v->node >= 0 && r->nodes[v->node].dead) return "a source is made by a dead node";
    if (v->memory && s->root >= r->g->ninputs) return "a map over an input has no input";
    bool loop = n->kind == IR_POINT || n->kind == IR_REDUCE;
    if (n->group < 0 || v->node < 0 || (v->constant && loop)) return NULL;
    if (v->group < 0) return "a source has no group";
    if (v->group > n->group) return "a source is made in a later group";
    if (v->group < n->group && !v->stored) return "a source from another group is not stored";
    if (v->group < n->group) return NULL;
    if (!loop) return "a call shares a group";
    bool product = r->nodes[v->node].kind == IR_CALL; /* pass_join.c */
    if (product ? !etch__reads_in_order(r, s) : !etch__in_register(r, n, s))
        return "a kernel reads from memory what it makes";
    return NULL;
}

static const char *check_write(const ir *r, int node) {
    const ir_node *w = &r->nodes[node];
    if (w->target.version < 0) return "a write has no target";
    if (w->group < 0) return NULL;
    for (int i = 0; i < r->nnodes; i++) {
        const ir_node *n = &r->nodes[i];
        if (n->dead || i == node || n->group < 0) continue;
        for (int k = 0; k < n->nin; k++) {
            const ir_source *s = &r->sources[n->in + k];
            bool loop = n->kind == IR_POINT || n->kind == IR_REDUCE;
            if (s->version != w->target.version || (loop && r->versions[s->version].constant))
                continue;
            if (n->group > w->group) return "a version is read after memory has changed";
            if (n->group == w->group && !etch__same_map(r, s, &w->target))
                return "a kernel reads and writes memory through two maps";
        }
    }
    return NULL;
}

bool etch__ir_verify(const ir *r, const char *pass) {
    for (int i = 0; i < r->nnodes; i++) {
        const ir_node *n = &r->nodes[i];
        if (n->dead) continue;
        if (n->out < 0 || n->out >= r->nversions || r->versions[n->out].node != i)
            return bad(r, pass, i, "it does not make its version");
        if (n->kind == IR_POINT && !n->program) return bad(r, pass, i, "it has no program");
        for (int k = 0; k < n->nin; k++) {
            const char *what = check_source(r, i, &r->sources[n->in + k]);
            if (what) return bad(r, pass, i, what);
        }
        const char *what = n->write ? check_write(r, i) : NULL;
        if (what) return bad(r, pass, i, what);
    }
    for (int k = 0; k < r->g->noutputs; k++) {
        const ir_version *v = &r->versions[r->outputs[k]];
        if (v->node < 0 || r->nodes[v->node].dead) return bad(r, pass, -1, "an output is not made");
    }
    return true;
}
