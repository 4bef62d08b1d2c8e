/* The nodes of a walk by the values that they make, and those that write. A walk learns of both
 * when it is first asked and then only of the nodes that have come since, so that who asks of each
 * of many values (versions of what backward passes read) does not go along the whole walk each
 * time. */
#include "tracer/run/run.h"

/* Of what the walk has deferred; NULL where that is nothing. */
static const trace_node *last_node(const trace_walk *w) {
    if (w->leaf) return w->leaf->npath ? w->leaf->path[w->leaf->npath - 1] : NULL;
    if (w->mode == WALK_MATCH) return (const trace_node *)w->c.last;
    return w->npath ? w->path[w->npath - 1] : NULL;
}

/* *at: where n lies on the path of a recording. NULL at the root. */
static const trace_node *node_before(const trace_walk *w, const trace_node *n, int64_t *at) {
    if (w->mode != WALK_MATCH) return --*at > 0 ? w->path[*at - 1] : NULL;
    return n->parent != &w->tree->root ? n->parent : NULL;
}

static bool is_root(const trace_walk *w, const trace_node *n) {
    return w->mode == WALK_MATCH && n == &w->tree->root;
}

/* Where a recording is published, the tree's nodes take the place of its own. */
static bool begins_anew(const trace_walk *w) {
    const made_by *m = &w->made;
    return !m->upto || m->mode != w->mode || m->shared != w->shared || m->leaf != w->leaf;
}

/* Nobody's error: without it the walk is gone along. */
static bool room_for(made_by *m, const trace_node *last) {
    if (m->node_cap >= last->nvalues && m->writes_cap >= last->nwrites) return true;
    KEEP_ERROR;
    return etch__grow(&m->node, &m->node_cap, last->nvalues, sizeof *m->node) &&
           etch__grow(&m->writes, &m->writes_cap, last->nwrites, sizeof *m->writes);
}

static void note(made_by *m, const trace_node *n) {
    if (n->c.inplace) m->writes[m->nwrites++] = n;
    else m->node[n->c.out] = n;
}

static bool learn(trace_walk *w, const trace_node *last) {
    made_by *m = &w->made;
    const trace_node *known = begins_anew(w) ? NULL : m->upto;
    if (known == last) return true;
    if (!room_for(m, last)) return false;
    if (!known) m->nwrites = 0;
    int64_t at = w->npath;
    for (const trace_node *n = last; n && n != known; n = node_before(w, n, &at)) note(m, n);
    m->upto = last, m->mode = w->mode, m->shared = w->shared, m->leaf = w->leaf;
    return true;
}

/* Without memory for what is learned. */
static const trace_node *look_for(const trace_walk *w, const trace_node *last, int32_t value) {
    int64_t at = w->npath;
    const trace_node *n = last;
    while (n && (n->c.inplace || n->c.out != value)) n = node_before(w, n, &at);
    return n;
}

const trace_node *etch__node_of(const etch_tensor *t) {
    trace_walk *w = t->owner;
    const trace_node *last = last_node(w);
    if (!last || is_root(w, last)) return NULL;
    return learn(w, last) ? w->made.node[t->value] : look_for(w, last, t->value);
}

unsigned etch__walk_writes(trace_walk *w, const etch_tensor *root, same_memory same) {
    const trace_node *last = last_node(w);
    unsigned writes = 0;
    if (!last || !last->nwrites) return 0;
    if (learn(w, last)) {
        for (int64_t i = 0; i < w->made.nwrites; i++)
            writes += same(w->c.value[w->made.writes[i]->c.out], root);
        return writes;
    }
    int64_t at = w->npath;
    for (const trace_node *n = last; n && n->nwrites; n = node_before(w, n, &at))
        if (n->c.inplace) writes += same(w->c.value[n->c.out], root);
    return writes;
}

void etch__makers_free(trace_walk *w) {
    etch__free(w->made.node);
    etch__free(w->made.writes);
}
