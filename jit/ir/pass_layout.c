/* Channels innermost: what a convolution or its gradient makes, and what is made of it element by
 * element, lies with the channels of a position side by side where another convolution, or a
 * reduction, reads it and only the plan sees it. That is the order in which convolutions read and
 * compute (backends/cpu/conv_direct.c, conv_backward.c), so between two of them nothing is turned.
 *
 * Few output channels are computed in planes, row by row (conv_lines.c): those stay row-major.
 *
 * Obligations: a version that is an output, lies in an input's memory, is changed in place or is
 * read through a view stays row-major. Values and the order of all sums are those of logical
 * indices, so bits do not change. */
#include "core/dispatch/dispatch.h"
#include "jit/ir/target.h"

typedef struct layout {
    ir *r;
    uint8_t *fixed;  /* per version: row-major it stays */
    uint8_t *wanted; /* per version: somebody reads it better so */
    uint8_t *turned; /* per version: channels innermost */
} layout;

bool etch__channels_innermost(const tensor_meta *m) {
    return m->ndim == 4 && (m->size[1] == 1 || m->stride[1] == 1);
}

/* ---- which ---- */

static bool find_fixed(layout *l) {
    const ir *r = l->r;
    ir_uses u;
    if (!etch__ir_uses(r, &u)) return false;
    for (int v = 0; v < r->nversions; v++) {
        const ir_version *x = &r->versions[v];
        l->fixed[v] = x->memory || x->tied >= 0 || x->constant || u.overwriter[v] != INT32_MAX ||
                      x->meta.ndim != 4 || x->meta.size[1] < 2 ||
                      x->meta.size[2] * x->meta.size[3] < 2;
    }
    for (int k = 0; k < r->g->noutputs; k++) l->fixed[r->outputs[k]] = true;
    for (int i = 0; i < r->nnodes; i++) {
        const ir_node *n = &r->nodes[i];
        for (int k = 0; !n->dead && k < n->nin; k++) {
            const ir_source *s = &sources(r, n)[k];
            if (s->version >= 0 && !s->whole) l->fixed[s->version] = true;
        }
        /* places are numbers of elements of planes */
        if (!n->dead && n->op == OP_MAX_POOL2D_INDICES && sources(r, n)[0].version >= 0)
            l->fixed[sources(r, n)[0].version] = true;
        if (n->write) l->fixed[n->out] = l->fixed[n->target.version] = true;
    }
    return true;
}

bool etch__in_planes(const ir *r, const ir_node *n) {
    const ir_source *in = sources(r, n);
    if (n->op != OP_CONVOLUTION || !r->target->in_planes || r->g->dynamic) return false;
    return r->target->in_planes(r->g->attrs + r->g->nodes[n->gnode].at, &in[0].meta, &in[1].meta,
                                &r->versions[n->out].meta);
}

static bool makes_channels(const ir *r, const ir_node *n) {
    return n->kind == IR_CALL && !etch__op_is_users(n->op) && !etch__in_planes(r, n) &&
           r->target->channels_last(n->op, r->versions[n->out].meta.dtype);
}

/* A pooling that makes of channels innermost such. */
static bool pools_channels(const ir *r, const ir_node *n) {
    return n->op == OP_MAX_POOL2D && makes_channels(r, n);
}

/* How many of its operands, from the first on, the node reads better so. */
static int reads_channels(const layout *l, const ir_node *n) {
    bool passes = l->wanted[n->out] && !l->fixed[n->out];
    if (n->dead) return 0;
    if (pools_channels(l->r, n)) return passes;
    if (n->kind == IR_CALL) return makes_channels(l->r, n);
    passes = passes && n->kind == IR_POINT;
    return n->kind == IR_REDUCE || passes ? n->nin : 0;
}

/* From the readers back to what is made for them. */
static void find_wanted(layout *l) {
    const ir *r = l->r;
    for (int i = r->nnodes - 1; i >= 0; i--) {
        const ir_node *n = &r->nodes[i];
        for (int k = reads_channels(l, n) - 1; k >= 0; k--)
            if (sources(r, n)[k].version >= 0) l->wanted[sources(r, n)[k].version] = true;
    }
}

/* Whether the node is to lie so: a convolution, or what is computed, element by element or window
 * by window, of something that does. */
static bool turns(const layout *l, const ir_node *n) {
    const ir_version *out = &l->r->versions[n->out];
    if (pools_channels(l->r, n)) return l->turned[sources(l->r, n)[0].version];
    if (makes_channels(l->r, n)) return true;
    if (n->kind != IR_POINT || n->index) return false;
    for (int k = 0; k < n->nin; k++) {
        int32_t v = sources(l->r, n)[k].version;
        if (v >= 0 && l->turned[v] &&
            etch__same_dims(4, l->r->versions[v].meta.size, out->meta.ndim, out->meta.size))
            return true;
    }
    return false;
}

/* ---- how they lie ---- */

static void turn(tensor_meta *m) {
    m->stride[1] = 1, m->stride[3] = m->size[1];
    m->stride[2] = m->size[3] * m->stride[3], m->stride[0] = m->size[2] * m->stride[2];
}

/* The map of a whole version, whose dimensions are those of the version up to ones of size 1. */
static void follow(ir_source *s, const tensor_meta *version) {
    int e = 0;
    for (int d = 0; d < s->meta.ndim; d++) {
        if (s->meta.size[d] == 1) continue;
        while (version->size[e] == 1) e++;
        s->meta.stride[d] = version->stride[e++];
    }
}

static void turn_all(const layout *l) {
    ir *r = l->r;
    for (int v = 0; v < r->nversions; v++)
        if (l->turned[v]) turn(&r->versions[v].meta);
    for (int i = 0; i < r->nnodes; i++) {
        const ir_node *n = &r->nodes[i];
        for (int k = 0; !n->dead && k < n->nin; k++) {
            ir_source *s = &sources(r, n)[k];
            if (s->version >= 0 && l->turned[s->version]) follow(s, &r->versions[s->version].meta);
        }
    }
}

bool etch__pass_layout(ir *r) {
    if (!r->target->channels_last || r->g->dynamic) return true;
    size_t n = (size_t)r->nversions + 1;
    layout l = {r, etch__arena_zeroed(r->memory, n), etch__arena_zeroed(r->memory, n),
                etch__arena_zeroed(r->memory, n)};
    if (!l.fixed || !l.wanted || !l.turned || !find_fixed(&l)) return false;
    find_wanted(&l);
    for (int i = 0; i < r->nnodes; i++) {
        const ir_node *x = &r->nodes[i];
        if (!x->dead && !l.fixed[x->out] && l.wanted[x->out] && turns(&l, x))
            l.turned[x->out] = true;
    }
    turn_all(&l);
    return true;
}
