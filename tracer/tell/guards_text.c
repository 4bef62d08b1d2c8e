/* What must hold for a leaf's code to run, as one line. */
#include "tracer/tell/event.h"
#include "core/base/text.h"

/* Sizes of a dynamic trace are run-time. */
static void put_guard(growing_text *t, const tensor_meta *g, bool dynamic) {
    char text[256];
    if (g->dtype >= ETCH_DTYPE_COUNT) {
        etch__text_put(t, "none");
    } else if (dynamic) {
        etch__text_put(t, "%s of rank %d", etch_dtype_name(g->dtype), g->ndim);
    } else {
        etch__guard_text(g, text, sizeof text);
        etch__text_put(t, "%s", text);
        if (etch__sizes_contiguous(g->ndim, g->size, g->stride)) return;
        for (int d = 0; d < g->ndim; d++)
            etch__text_put(t, "%s%lld", d ? ", " : " strides ", (long long)g->stride[d]);
    }
}

static void put_marks(growing_text *t, const dim_marks *m, const tensor_meta *g) {
    for (int d = 0; d < g->ndim; d++)
        if (m->fixed >> d & 1)
            etch__text_put(t, ", dim %d fixed at %lld", d, (long long)g->size[d]);
        else if (m->dynamic >> d & 1 && m->max[d] < INT64_MAX)
            etch__text_put(t, ", dim %d from %lld to %lld", d, (long long)m->min[d],
                           (long long)m->max[d]);
        else if (m->dynamic >> d & 1)
            etch__text_put(t, ", dim %d at least %lld", d, (long long)m->min[d]);
}

static void put_state(growing_text *t, uint64_t state) {
    etch__text_put(t, "%sstate: default dtype %s%s%s", t->n ? "; " : "",
                   etch_dtype_name(STATE_DTYPE(state)),
                   state & STATE_INFERENCE ? ", inference" : "",
                   state & STATE_NO_GRAD ? ", no gradients" : "");
    static const char *const rounding[] = {"", ", rounding down", ", rounding up",
                                           ", rounding to zero"};
    unsigned fp = STATE_FP(state);
    etch__text_put(t, "%s%s%s", rounding[fp >> 13 & 3], fp & 0x8000 ? ", flush to zero" : "",
                   fp & 0x40 ? ", denormals are zero" : "");
}

char *etch__guards_text(const trace_leaf *leaf) {
    growing_text t = {0};
    const entry_guard *g = &leaf->tree->guard;
    for (int i = 0; i < g->nargs; i++) {
        if (!g->read[i]) continue;
        etch__text_put(&t, "%stensor %d: ", t.n ? "; " : "", i);
        put_guard(&t, &g->meta[i], g->dynamic);
        if (g->marks) put_marks(&t, &g->marks[i], &g->meta[i]);
    }
    for (int i = 0; i < leaf->npath; i++)
        for (int k = 0; k < leaf->path[i]->ncaptures; k++) {
            const trace_node *n = leaf->path[i];
            etch__text_put(&t, "%scaptured by %s (%s): ", t.n ? "; " : "", etch__ops[n->op].name,
                           etch__line_or_unknown(n->site));
            put_guard(&t, &n->captures[k].guard, n->dynamic);
        }
    if (leaf->npath) put_state(&t, leaf->path[0]->c.state);
    if (leaf->writes_inputs)
        etch__text_put(
            &t, "; inputs are written: each two have the same storage or none in common, as here");
    return etch__text_end(&t);
}
