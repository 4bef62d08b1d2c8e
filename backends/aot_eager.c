/* Backend "aot_eager": the graph without writes, run through the eager kernels.
 *
 * Each operator that writes a whole result or input becomes the operator that computes a new one. A
 * write through a view, and one whose operator has no such form (copy_, fill_), is done in a copy
 * of the base. Views of what was written are taken anew from the last version; the last version of
 * a written input is copied into it at the end. Graphs in which a written input shares its storage
 * with another input, overlaps itself or is not row-major, or a result is written that is not, are
 * run as they are. */
#include "core/graph/backend.h"
#include "core/base/start.h"
#include "core/dispatch/dispatch.h"

typedef struct functional {
    const graph *g;
    graph *to;
    int32_t *now;     /* per value of g: its number in `to` */
    int32_t *stamp;   /* per value: the version of its base that `now` is of */
    int32_t *version; /* per base: how often it was written */
} functional;

static int32_t base_of(const functional *f, int32_t v) { return f->g->values[v].base; }

/* ---- appending ---- */

/* A handle that has a meta and no data, for inference. */
static void set_handle(etch_tensor *h, const tensor_meta *meta) {
    memset(h, 0, sizeof *h);
    etch__apply_meta(h, meta);
    h->magic = TENSOR_ALIVE;
    h->deferred = 1;
}

/* `like` is the node of the call, or the one that it is part of. */
static bool infer(const functional *f, const graph_node *like, op_call *call,
                  const int32_t *operands, tensor_meta *meta) {
    etch_tensor *handles = etch__malloc(((size_t)call->nin + 1) * sizeof *handles);
    etch_tensor **in = etch__malloc(((size_t)call->nin + 1) * sizeof(etch_tensor *));
    bool ok = handles && in;
    for (int i = 0; ok && i < call->nin; i++) {
        in[i] = operands[i] < 0 ? ETCH_NONE : &handles[i];
        if (operands[i] >= 0) set_handle(&handles[i], &f->to->values[operands[i]].meta);
    }
    call->in = in;
    ok = ok && etch__infer_under(like->state, call, meta, NULL) == ETCH_OK;
    etch__free(handles);
    etch__free(in);
    return ok;
}

/* A call like the node n, but of `op`, on these operands. Returns its value, or -1. */
static int32_t append(functional *f, uint16_t op, const graph_node *n, const int32_t *operands) {
    etch_scalar sc[OP_MAX_SCALARS];
    tensor_meta meta;
    for (int i = 0; i < n->nsc; i++) {
        sc[i].kind = (etch_scalar_kind)f->g->scalar_kinds[n->sc + i];
        sc[i].i = 0;
        if (sc[i].kind == ETCH_SCALAR_REAL) sc[i].d = 0;
    }
    op_call call = {.op = op,
                    .nin = n->nin,
                    .nsc = n->nsc,
                    .nat = n->nat,
                    .sc = sc,
                    .at = f->g->attrs + n->at,
                    .site = n->site};
    if (!infer(f, n, &call, operands, &meta)) return -1;
    int at = etch__graph_add_node(f->to, &call, operands, &meta);
    if (at < 0) return -1;
    f->to->nodes[at].state = n->state;
    return f->to->nodes[at].out;
}

static int32_t append_unary(functional *f, op_id op, int32_t v, const int64_t *at, int nat,
                            const graph_node *like) {
    tensor_meta meta;
    op_call call = {
        .op = (uint16_t)op, .nin = 1, .nat = (uint8_t)nat, .at = at, .site = like->site};
    if (!infer(f, like, &call, &v, &meta)) return -1;
    int node = etch__graph_add_node(f->to, &call, &v, &meta);
    if (node < 0) return -1;
    f->to->nodes[node].state = like->state;
    return f->to->nodes[node].out;
}

/* ---- versions ---- */

static void set_now(functional *f, int32_t v, int32_t number) {
    f->now[v] = number;
    f->stamp[v] = f->version[base_of(f, v)];
}

/* The last version of a value; views of what was written meanwhile are taken anew. -1: an error. */
static int32_t last_version(functional *f, int32_t v) {
    if (f->stamp[v] == f->version[base_of(f, v)]) return f->now[v];
    const graph_node *n = &f->g->nodes[f->g->values[v].node];
    int32_t of = last_version(f, f->g->operands[n->in]);
    int32_t number = of < 0 ? -1 : append(f, n->op, n, &of);
    if (number >= 0) set_now(f, v, number);
    return number;
}

static bool operands_now(functional *f, const graph_node *n, int32_t *operands) {
    for (int i = 0; i < n->nin; i++) {
        int32_t v = f->g->operands[n->in + i];
        operands[i] = v < 0 ? -1 : last_version(f, v);
        if (v >= 0 && operands[i] < 0) return false;
    }
    return true;
}

static void new_version(functional *f, int32_t base, int32_t number) {
    f->version[base]++;
    set_now(f, base, number);
}

/* The pointwise operator that computes the same into a new tensor; OP_COUNT: there is none. */
static op_id without_write(uint16_t op) {
    op_id plain = op < OP_COUNT ? etch__ops[op].plain : OP_COUNT;
    return plain < OP_COUNT && etch__ops[plain].kind == KIND_POINTWISE ? plain : OP_COUNT;
}

/* The write as a new value in the dtype of what is written. */
static bool compute_write(functional *f, const graph_node *n, op_id op, const int32_t *operands,
                          int32_t base) {
    int32_t v = append(f, (uint16_t)op, n, operands);
    int64_t dtype = f->g->values[base].meta.dtype;
    if (v >= 0 && f->to->values[v].meta.dtype != dtype)
        v = append_unary(f, OP_TO_COPY, v, &dtype, 1, n);
    if (v >= 0) new_version(f, base, v);
    return v >= 0;
}

/* The write in a copy of the base. */
static bool copy_and_write(functional *f, const graph_node *n, int32_t *operands, int32_t base) {
    int32_t copy = append_unary(f, OP_CLONE, last_version(f, base), NULL, 0, n);
    if (copy < 0) return false;
    new_version(f, base, copy);
    operands[0] = last_version(f, n->out);
    return operands[0] >= 0 && append(f, n->op, n, operands) >= 0;
}

static bool append_node(functional *f, const graph_node *n, int32_t *operands) {
    if (!operands_now(f, n, operands)) return false;
    if (etch__ops[n->op].kind != KIND_INPLACE) {
        int32_t v = append(f, n->op, n, operands);
        if (v >= 0) set_now(f, n->out, v);
        return v >= 0;
    }
    int32_t base = base_of(f, n->out);
    op_id op = base == n->out ? without_write(n->op) : OP_COUNT;
    if (op != OP_COUNT) return compute_write(f, n, op, operands, base);
    return copy_and_write(f, n, operands, base);
}

/* ---- the whole graph ---- */

/* Whether two elements may lie at one place. */
static bool overlaps_itself(const tensor_meta *m) {
    for (int d = 0; d < m->ndim; d++) {
        int64_t reach = 1;
        if (m->size[d] < 2) continue;
        for (int k = 0; k < m->ndim; k++)
            if (m->stride[k] < m->stride[d] || (m->stride[k] == m->stride[d] && k > d))
                reach += (m->size[k] - 1) * m->stride[k];
        if (m->stride[d] < reach) return true;
    }
    return false;
}

static bool has_writes(const graph *g) {
    for (int i = 0; i < g->nnodes; i++)
        if (etch__ops[g->nodes[i].op].kind == KIND_INPLACE) return true;
    return false;
}

static bool is_row_major(const tensor_meta *m) {
    return etch__sizes_contiguous(m->ndim, m->size, m->stride);
}

/* as_strided sees memory below its operand, which a copy of that lays out anew, and so do views and
 * results of what is not row-major; a write through a map that overlaps itself is not the plain
 * operator. */
static bool can_be_copied(const graph *g, const graph_node *n) {
    int32_t base = g->values[n->out].base;
    return is_row_major(&g->values[base].meta) && !overlaps_itself(&g->values[n->out].meta);
}

static bool is_simple(const graph *g) {
    for (int i = 0; i < g->nnodes; i++) {
        const graph_node *n = &g->nodes[i];
        bool writes = etch__ops[n->op].kind == KIND_INPLACE;
        if (n->op == OP_AS_STRIDED || (writes && !can_be_copied(g, n))) return false;
    }
    for (int v = 0; v < g->ninputs; v++)
        if (g->values[v].base != v || overlaps_itself(&g->values[v].meta)) return false;
    return true;
}

static bool append_end(functional *f) {
    for (int v = 0; v < f->g->ninputs; v++) {
        if (!f->version[v]) continue;
        int64_t at[] = {0};
        int32_t operands[] = {v, f->now[v]};
        op_call call = {.op = OP_COPY_, .nin = 2, .nat = 1, .at = at};
        if (etch__graph_add_node(f->to, &call, operands, NULL) < 0) return false;
    }
    for (int k = 0; k < f->g->noutputs; k++) {
        int32_t v = last_version(f, f->g->outputs[k]);
        if (v < 0 || !etch__graph_add_output(f->to, v)) return false;
    }
    return true;
}

static bool append_all(functional *f) {
    int widest = 0;
    for (int v = 0; v < f->g->ninputs; v++) {
        if (etch__graph_add_input(f->to, &f->g->values[v].meta) < 0) return false;
        f->now[v] = v;
    }
    for (int i = 0; i < f->g->nnodes; i++)
        if (f->g->nodes[i].nin > widest) widest = f->g->nodes[i].nin;
    int32_t *operands = etch__malloc(((size_t)widest + 1) * sizeof *operands);
    bool ok = operands != NULL;
    for (int i = 0; ok && i < f->g->nnodes; i++) ok = append_node(f, &f->g->nodes[i], operands);
    etch__free(operands);
    return ok && append_end(f);
}

/* The graph without writes but for those into copies and, at the end, into inputs. */
static graph *functionalise(const graph *g) {
    size_t n = (size_t)g->nvalues + 1;
    functional f = {.g = g, .to = etch__graph_new(g->name)};
    f.now = etch__calloc(3 * n, sizeof *f.now);
    f.stamp = f.now + n, f.version = f.stamp + n;
    bool ok = f.to && f.now && append_all(&f);
    etch__free(f.now);
    if (ok) return f.to;
    etch__graph_free(f.to);
    return NULL;
}

static etch_status aot_compile(const graph *g, const backend_options *options, plan **out) {
    (void)options;
    if (!has_writes(g) || !is_simple(g)) return etch__eager_plan(g, out);
    graph *pure = functionalise(g);
    if (!pure) return etch__tls.status;
    etch_status status = etch__eager_plan(pure, out);
    etch__graph_free(pure);
    return status;
}

static const backend aot_eager = {.name = "aot_eager", .compile = aot_compile};

void etch__start_aot_eager(void) { etch__backend_register(&aot_eager); }
