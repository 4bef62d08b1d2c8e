/* Build, of what is put together by cat: copies into its parts, which share kernels with what makes
 * the operands. And where everything that reads the whole computes element by element, that is done
 * part by part instead, and the whole is never made: rotary embeddings, which turn halves, are one
 * kernel that reads its operand once.
 *
 * Obligations: a part has the elements of the whole that lie there, computed by the same program;
 * parts are equally long, so that they are one kernel, and long enough for vectors; what is read
 * late, an operand of the cat, is never changed in place. A value that something else reads too is
 * put together after all, of its parts. */
#include "core/dispatch/dispatch.h"
#include "jit/ir/ir.h"

enum { APART_NOT, APART_CAT, APART_POINT };
enum { PART_LEAST = 32 }; /* elements side by side in a part */
enum { OPERANDS_MOST = 8 };

/* ---- the whole: new memory, and copies into it ---- */

static bool write_part(ir *r, int32_t base, const ir_source *in, const tensor_meta *part) {
    const ir_source target = {r->current[base], base, false, *part};
    ir_node n;
    if (!etch__copy_node(r, part, &target, &n)) return false;
    n.part = true;
    r->bases[base] |= BASE_PATCHED;
    int32_t node = etch__ir_add(r, &n, in, base, &r->g->values[base].meta);
    if (node < 0) return false;
    etch__take_over(r, base, node);
    return true;
}

/* The part of all from `from` on, so long along the dimension. */
static tensor_meta part_of(const tensor_meta *all, int dim, int64_t from, int64_t length) {
    tensor_meta part = *all;
    part.size[dim] = length;
    part.offset += from * part.stride[dim];
    return part;
}

static bool put_together(ir *r, int gnode, int dim, int n, const ir_source *in) {
    int32_t out = r->g->nodes[gnode].out;
    const tensor_meta *all = &r->g->values[out].meta;
    ir_node whole = {.kind = IR_EMPTY, .op = OP_EMPTY, .gnode = gnode, .dtype = all->dtype};
    int32_t node = etch__ir_add(r, &whole, NULL, out, all);
    if (node < 0) return false;
    r->current[out] = r->nodes[node].out;
    int64_t from = 0;
    for (int i = 0; i < n; i++) {
        int64_t length = in[i].meta.size[dim];
        tensor_meta part = part_of(all, dim, from, length);
        from += length;
        if (!write_part(r, out, &in[i], &part)) return false;
    }
    return true;
}

static int cat_dim(const graph *g, const graph_node *n) {
    int dim = (int)g->attrs[n->at];
    return dim < 0 ? dim + g->values[n->out].meta.ndim : dim;
}

/* Few operands of one dtype, none of them empty. */
static bool is_plain_cat(const graph *g, const graph_node *n) {
    if (n->op != OP_CAT || n->nin > PARTS_MOST || etch__op_is_users(n->op)) return false;
    for (int i = 0; i < n->nin; i++) {
        const tensor_meta *m = &g->values[g->operands[n->in + i]].meta;
        if (m->dtype != g->values[n->out].meta.dtype) return false;
        if (m->ndim != g->values[n->out].meta.ndim || etch__meta_numel(m) == 0) return false;
    }
    return true;
}

/* One operand is made by a generated kernel: else the operator's own kernel does as well. */
bool etch__is_joined_cat(const ir *r, const graph_node *n) {
    const graph *g = r->g;
    bool made = false;
    for (int i = 0; i < n->nin && is_plain_cat(g, n); i++) {
        int32_t node = r->versions[r->current[g->values[g->operands[n->in + i]].base]].node;
        made |= node >= 0 && r->nodes[node].kind == IR_POINT && !r->nodes[node].write;
    }
    return made;
}

bool etch__add_cat(ir *r, int gnode, const ir_source *in) {
    const graph_node *n = &r->g->nodes[gnode];
    return put_together(r, gnode, cat_dim(r->g, n), n->nin, in);
}

/* ---- which operators are taken apart ---- */

/* Who reads which value, of the graph. */
typedef struct readers {
    ir *r;
    int32_t *first, *next, *node; /* per base: a slot; per slot: the next one, the reader */
    uint8_t *fixed;               /* per base: changed in place, or an output */
    int32_t *found;               /* nodes of the region at hand, the cat first */
    int nfound, dim, n;
    bool failed; /* no memory */
} readers;

static int32_t base_of(const graph *g, int32_t value) {
    return value < 0 ? -1 : g->values[value].base;
}

static bool find_readers(readers *f) {
    const graph *g = f->r->g;
    int slots = 0;
    for (int i = 0; i < g->nnodes; i++) slots += g->nodes[i].nin;
    f->first = etch__arena_zeroed(f->r->memory, (g->nvalues + 1) * sizeof *f->first);
    f->next = etch__arena_zeroed(f->r->memory, (slots + 1) * sizeof *f->next);
    f->node = etch__arena_zeroed(f->r->memory, (slots + 1) * sizeof *f->node);
    f->fixed = etch__arena_zeroed(f->r->memory, g->nvalues + 1);
    f->found = etch__arena_zeroed(f->r->memory, (g->nnodes + 1) * sizeof *f->found);
    if (!f->first || !f->next || !f->node || !f->fixed || !f->found) return false;
    int slot = 0;
    for (int i = 0; i < g->nnodes; i++) {
        const graph_node *n = &g->nodes[i];
        if (etch__ops[n->op].kind == KIND_INPLACE) f->fixed[base_of(g, n->out)] = 1;
        for (int k = 0; k < n->nin; k++) {
            int32_t base = base_of(g, g->operands[n->in + k]);
            if (base < 0) continue;
            f->node[++slot] = i, f->next[slot] = f->first[base], f->first[base] = slot;
        }
    }
    return true;
}

static bool is_output(const graph *g, int32_t base) {
    for (int k = 0; k < g->noutputs; k++)
        if (base_of(g, g->outputs[k]) == base) return true;
    return false;
}

/* Whether the node computes element by element something as large as the region's values. */
static bool can_come_apart(readers *f, int gnode) {
    const graph *g = f->r->g;
    const graph_node *n = &g->nodes[gnode], *cat = &g->nodes[f->found[0]];
    const tensor_meta *m = &g->values[n->out].meta, *all = &g->values[cat->out].meta;
    ir_node x = {.kind = IR_POINT, .nin = n->nin, .dtype = m->dtype};
    ir_source in[OPERANDS_MOST] = {{0}};
    bool constant;
    if (etch__ops[n->op].kind != KIND_POINTWISE || etch__op_is_users(n->op) ||
        n->nin > OPERANDS_MOST || f->fixed[n->out] ||
        !etch__same_dims(m->ndim, m->size, all->ndim, all->size))
        return false;
    uint64_t state = etch__tls.state;
    bool can = etch__find_program(f->r, n, &x, &f->failed);
    etch__tls.state = state;
    if (!can) return false;
    etch__look_at_program(&x, in, &constant);
    return !constant && !x.index;
}

static bool is_found(const readers *f, int gnode) {
    for (int i = 0; i < f->nfound; i++)
        if (f->found[i] == gnode) return true;
    return false;
}

/* Whether the node reads the value as it is, not through a view. */
static bool reads_itself(const graph *g, int gnode, int32_t base) {
    const graph_node *n = &g->nodes[gnode];
    for (int k = 0; k < n->nin; k++)
        if (base_of(g, g->operands[n->in + k]) == base && g->operands[n->in + k] != base)
            return false;
    return true;
}

/* Whether all that reads the value is found, or can be. */
static bool readers_are_found(readers *f, int32_t base, bool find) {
    bool all = !is_output(f->r->g, base);
    for (int slot = f->first[base]; slot; slot = f->next[slot]) {
        int gnode = f->node[slot];
        bool there = reads_itself(f->r->g, gnode, base) && is_found(f, gnode);
        if (!there && find && reads_itself(f->r->g, gnode, base) && can_come_apart(f, gnode))
            f->found[f->nfound++] = gnode, there = true;
        all &= there;
    }
    return all;
}

/* What only found nodes read is found, too: it would be made as a whole else. */
static bool find_makers(readers *f, int gnode) {
    const graph *g = f->r->g;
    const graph_node *n = &g->nodes[gnode];
    bool more = false;
    for (int k = 0; gnode != f->found[0] && k < n->nin; k++) {
        int32_t v = g->operands[n->in + k];
        if (v < g->ninputs || g->values[v].base != v) continue;
        int maker = g->values[v].node;
        if (is_found(f, maker) || !can_come_apart(f, maker)) continue;
        if (!readers_are_found(f, v, false)) continue;
        f->found[f->nfound++] = maker, more = true;
    }
    return more;
}

static bool equal_parts(readers *f, const graph_node *cat) {
    const graph *g = f->r->g;
    const tensor_meta *all = &g->values[cat->out].meta;
    f->dim = cat_dim(g, cat), f->n = cat->nin;
    int64_t side_by_side = all->size[f->dim] / f->n;
    for (int d = f->dim + 1; d < all->ndim; d++) side_by_side *= all->size[d];
    for (int k = 0; k < cat->nin; k++) {
        int32_t v = g->operands[cat->in + k];
        if (f->fixed[base_of(g, v)]) return false;
        if (g->values[v].meta.size[f->dim] * f->n != all->size[f->dim]) return false;
    }
    return f->n > 1 && side_by_side >= PART_LEAST && !f->fixed[cat->out];
}

/* Whether every found node is free, or taken apart in the same way. */
static bool agrees(const readers *f) {
    const ir *r = f->r;
    for (int i = 0; i < f->nfound; i++) {
        const ir_parts *p = r->parts[r->g->nodes[f->found[i]].out];
        if (p && (p->dim != f->dim || p->n != f->n)) return false;
    }
    return true;
}

static bool take_apart(readers *f) {
    ir *r = f->r;
    for (int i = 0; i < f->nfound; i++) {
        ir_parts **p = &r->parts[r->g->nodes[f->found[i]].out];
        if (!*p && !(*p = etch__arena_zeroed(r->memory, sizeof **p))) return false;
        (*p)->dim = f->dim, (*p)->n = f->n;
        r->apart[f->found[i]] = i ? APART_POINT : APART_CAT;
    }
    return true;
}

/* The cat's readers, theirs, and what makes only for them. */
static bool try_cat(readers *f, int gnode) {
    const graph_node *n = &f->r->g->nodes[gnode];
    f->found[0] = gnode, f->nfound = 1;
    if (!is_plain_cat(f->r->g, n) || !equal_parts(f, n)) return true;
    bool more = readers_are_found(f, n->out, true);
    while (more) {
        more = false;
        for (int i = 1; i < f->nfound; i++) {
            int before = f->nfound;
            readers_are_found(f, f->r->g->nodes[f->found[i]].out, true);
            more |= find_makers(f, f->found[i]) || f->nfound > before;
        }
    }
    if (f->failed) return false;
    if (f->nfound < 2 || !readers_are_found(f, n->out, false) || !agrees(f)) return true;
    return take_apart(f);
}

bool etch__find_apart(ir *r) {
    const graph *g = r->g;
    readers f = {.r = r};
    bool any = false;
    for (int i = 0; i < g->nnodes; i++) any |= g->nodes[i].op == OP_CAT;
    if (!any) return true;
    r->parts = etch__arena_zeroed(r->memory, (g->nvalues + 1) * sizeof *r->parts);
    r->apart = etch__arena_zeroed(r->memory, g->nnodes + 1);
    if (!r->parts || !r->apart || !find_readers(&f)) return false;
    for (int i = 0; i < g->nnodes; i++)
        if (g->nodes[i].op == OP_CAT && !try_cat(&f, i)) return false;
    return true;
}

/* ---- the parts ---- */

bool etch__is_apart(const ir *r, int gnode) { return r->apart && r->apart[gnode]; }

/* Of an operand, what part j of the result needs. */
static ir_source narrowed(const ir_source *s, const tensor_meta *all, int dim, int j, int n) {
    ir_source part = *s;
    int d = dim - (all->ndim - s->meta.ndim);
    if (s->version < 0 || d < 0 || s->meta.size[d] == 1) return part;
    part.meta = part_of(&s->meta, d, j * (s->meta.size[d] / n), s->meta.size[d] / n);
    part.whole = false;
    return part;
}

/* Whether the node takes the value's parts, if it reads that. */
static bool takes_parts(const ir *r, int gnode, int32_t value) {
    const ir_parts *of = r->parts[value], *by = r->parts[r->g->nodes[gnode].out];
    return of && r->apart[gnode] == APART_POINT && of->dim == by->dim && of->n == by->n;
}

static bool wanted_whole(const ir *r, int32_t value) {
    const graph *g = r->g;
    for (int i = 0; i < g->nnodes; i++)
        for (int k = 0; k < g->nodes[i].nin; k++)
            if (base_of(g, g->operands[g->nodes[i].in + k]) == value && !takes_parts(r, i, value))
                return true;
    return is_output(g, value);
}

/* The operands that it does not take in parts. */
static bool read_wholes(ir *r, int gnode, ir_source *in) {
    const graph_node *n = &r->g->nodes[gnode];
    for (int k = 0; k < n->nin; k++) {
        int32_t v = r->g->operands[n->in + k];
        in[k].version = -1;
        if (v >= 0 && takes_parts(r, gnode, v)) continue;
        if (!etch__read_operand(r, v, true, &in[k])) return false;
    }
    return true;
}

static bool add_part(ir *r, int gnode, const ir_node *x, const ir_source *whole, int j) {
    const graph_node *n = &r->g->nodes[gnode];
    const tensor_meta *all = &r->g->values[n->out].meta;
    ir_parts *to = r->parts[n->out];
    ir_source in[OPERANDS_MOST];
    ir_node part = *x;
    bool constant;
    for (int k = 0; k < n->nin; k++) {
        int32_t v = r->g->operands[n->in + k];
        bool parts = v >= 0 && takes_parts(r, gnode, v);
        in[k] = parts ? r->parts[v]->part[j] : narrowed(&whole[k], all, to->dim, j, to->n);
    }
    part.domain = part_of(all, to->dim, 0, all->size[to->dim] / to->n);
    etch__look_at_program(&part, in, &constant);
    int32_t node = etch__ir_add(r, &part, in, n->out, &part.domain);
    if (node < 0) return false;
    const ir_version *v = &r->versions[r->nodes[node].out];
    to->part[j] = (ir_source){r->nodes[node].out, n->out, true, v->meta};
    return true;
}

bool etch__add_apart(ir *r, int gnode, const ir_node *x, ir_source *in) {
    const graph_node *n = &r->g->nodes[gnode];
    ir_parts *to = r->parts[n->out];
    if (!read_wholes(r, gnode, in)) return false;
    for (int j = 0; j < to->n; j++)
        if (r->apart[gnode] == APART_CAT) to->part[j] = in[j];
        else if (!add_part(r, gnode, x, in, j)) return false;
    return !wanted_whole(r, n->out) || put_together(r, gnode, to->dim, to->n, to->part);
}
