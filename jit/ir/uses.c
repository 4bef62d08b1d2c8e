/* Who reads each version, and which node overwrites it: what passes must know that read a version
 * at another place, or take away what only one node reads. */
#include "jit/ir/ir.h"

static void count(const ir *r, ir_uses *u) {
    for (int i = 0; i < r->nnodes; i++) {
        const ir_node *n = &r->nodes[i];
        if (n->dead) continue;
        for (int k = 0; k < n->nin; k++)
            if (r->sources[n->in + k].version >= 0) u->readers[r->sources[n->in + k].version]++;
        if (n->write) u->readers[n->target.version]++;
    }
    for (int k = 0; k < r->g->noutputs; k++) u->readers[r->outputs[k]]++;
}

/* Memory is taken over by one version after the other. */
static void find_writers(const ir *r, ir_uses *u) {
    for (int v = 0; v < r->nversions; v++) u->overwriter[v] = INT32_MAX;
    for (int v = 0; v < r->nversions; v++) {
        const ir_version *w = &r->versions[v];
        if (w->tied >= 0 && w->node < u->overwriter[w->tied]) u->overwriter[w->tied] = w->node;
    }
}

bool etch__ir_uses(const ir *r, ir_uses *u) {
    u->readers = etch__arena_zeroed(r->memory, ((size_t)r->nversions + 1) * sizeof *u->readers);
    u->overwriter = etch__arena_new(r->memory, ((size_t)r->nversions + 1) * sizeof *u->overwriter);
    if (!u->readers || !u->overwriter) return false;
    count(r, u);
    find_writers(r, u);
    return true;
}

bool etch__still_there(const ir *r, const ir_uses *u, const ir_node *n, const ir_node *at) {
    for (int k = 0; k < n->nin; k++) {
        int32_t version = r->sources[n->in + k].version;
        if (version >= 0 && u->overwriter[version] < at - r->nodes) return false;
    }
    return true;
}
