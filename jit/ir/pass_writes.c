/* Builds the ir from a graph, taking in-place operators out (see jit/ir/ir.h).
 *
 * Obligations: every read sees the version that the program order says; memory that a write changes
 * is never that of a version which is read later; the last version of each written input ends in
 * the input's memory; an operator with a kernel of its own gets the operands that eager gives it;
 * where a check on data can only be made behind a write, inputs are not written before the end. */
#include "core/dispatch/dispatch.h"
#include "jit/ir/ir.h"

/* ---- programs ---- */

void etch__look_at_program(ir_node *n, ir_source *in, bool *constant) {
    uint32_t used = 0;
    for (int i = 0; i < n->program->n; i++) {
        const prim_instr *p = &n->program->code[i];
        if (p->prim == PRIM_INPUT) used |= 1u << p->imm.i;
        if (p->prim == PRIM_INDEX) n->index = true;
    }
    for (int i = 0; i < n->nin; i++)
        if (!(used >> i & 1)) in[i].version = -1;
    *constant = !used && !n->index;
}

/* ---- calls ---- */

enum { MAX_NIN = 8 };

/* Handles with the operands' metas, scalars with the recorded kinds: what inference looks at. */
typedef struct call_shape {
    etch_tensor t[MAX_NIN];
    etch_tensor *in[MAX_NIN];
    etch_scalar sc[OP_MAX_SCALARS];
    op_call call;
} call_shape;

static void shape_call(const graph *g, const graph_node *n, call_shape *c) {
    memset(c, 0, sizeof *c);
    for (int i = 0; i < n->nin; i++) {
        int32_t v = g->operands[n->in + i];
        c->in[i] = v < 0 ? ETCH_NONE : &c->t[i];
        if (v >= 0) etch__apply_meta(&c->t[i], &g->values[v].meta);
        atomic_init(&c->t[i].refs, 1);
        c->t[i].magic = TENSOR_ALIVE;
    }
    for (int i = 0; i < n->nsc; i++) {
        etch_scalar_kind kind = (etch_scalar_kind)g->scalar_kinds[n->sc + i];
        c->sc[i] = kind == ETCH_SCALAR_REAL ? etch_scalar_real(1) : etch_scalar_int(1);
        c->sc[i].kind = kind;
    }
    c->call = (op_call){n->op, n->nin, n->nsc, n->nat, 0, c->in, c->sc, g->attrs + n->at, n->site};
}

static bool can_emit(const prim_program *p) {
    for (int i = 0; i < p->n; i++)
        if (p->code[i].prim != PRIM_INPUT &&
            !etch__loop_can_emit((prim_id)p->code[i].prim, p->code[i].type))
            return false;
    return true;
}

bool etch__find_program(const ir *r, const graph_node *n, ir_node *x, bool *failed) {
    const graph *g = r->g;
    const op_info *op = &etch__ops[n->op];
    call_shape c;
    tensor_meta m;
    etch_dtype compute, in[MAX_NIN];
    prim_program p;
    *failed = false;
    bool kind = op->kind == KIND_POINTWISE || op->kind == KIND_INPLACE || op->kind == KIND_CREATION;
    if (n->nin > MAX_NIN || !kind) return false;
    shape_call(g, n, &c);
    etch__tls.state = n->state;
    if (etch__infer(&c.call, &m, &compute) != ETCH_OK) return false;
    for (int i = 0; i < n->nin; i++) in[i] = c.t[i].dtype;
    bool has_class =
        op->flags & (OPF_CLASS_ALPHA | OPF_CLASS_EXPONENT | OPF_CLASS_NUMEL | OPF_SELECTS);
    int64_t op_class = has_class && n->nat ? g->attrs[n->at + n->nat - 1] : 0;
    if (!etch__expr_build(n->op, in, n->nin, compute, x->dtype, op_class, &p) || !can_emit(&p))
        return false;
    x->compute = (uint8_t)compute;
    x->program = etch__ir_program(r, &p);
    *failed = !x->program;
    return x->program != NULL;
}

/* ---- reads ---- */

static bool is_input(const ir *r, int32_t base) {
    return base < r->g->ninputs && !(r->bases[base] & BASE_LIFTED);
}

/* The input's current version made apart from its memory? */
static bool apart(const ir *r, int32_t base) {
    return is_input(r, base) && !r->versions[r->current[base]].memory;
}

int32_t etch__ir_copy(ir *r, int32_t version, const ir_source *target, int32_t base) {
    const ir_version *v = &r->versions[version];
    ir_source in = {version, v->base, true, v->meta};
    ir_node n;
    if (!etch__copy_node(r, &v->meta, target, &n)) return -1;
    tensor_meta meta = v->meta;
    return etch__ir_add(r, &n, &in, base, &meta);
}

void etch__take_over(ir *r, int32_t base, int32_t node) {
    ir_version *v = &r->versions[r->nodes[node].out];
    v->tied = is_input(r, base) ? r->in_memory[base] : r->current[base];
    v->memory = is_input(r, base);
    if (v->memory) v->meta = r->g->values[base].meta;
    if (v->memory) r->in_memory[base] = r->nodes[node].out;
    r->current[base] = r->nodes[node].out;
}

/* Writes a version that was made apart from its input back into the input's memory. */
static bool write_back(ir *r, int32_t base) {
    if (!apart(r, base)) return true;
    ir_source target;
    etch__source_resolve(r->g, base, &target);
    target.version = r->in_memory[base];
    int32_t node = etch__ir_copy(r, r->current[base], &target, base);
    if (node < 0) return false;
    etch__take_over(r, base, node);
    return true;
}

/* A map over an input that is lifted counts from the copy's first element. */
static void resolve(const ir *r, int32_t value, ir_source *s) {
    int32_t base = r->g->values[value].base;
    etch__source_resolve(r->g, value, s);
    if (r->bases[base] & BASE_LIFTED) s->meta.offset -= r->g->values[base].meta.offset;
}

bool etch__read_operand(ir *r, int32_t value, bool fusable, ir_source *s) {
    *s = (ir_source){.version = -1};
    if (value < 0) return true;
    int32_t base = r->g->values[value].base;
    resolve(r, value, s);
    if (apart(r, base)) {
        if (!(fusable && s->whole)) {
            if (!write_back(r, base)) return false;
        } else {
            etch__row_major(s->meta.ndim, s->meta.size, s->meta.stride);
            s->meta.offset = 0;
        }
    }
    s->version = r->current[base];
    return true;
}

bool etch__read_operands(ir *r, const graph_node *n, bool fusable, ir_source *in) {
    for (int i = 0; i < n->nin; i++)
        if (!etch__read_operand(r, r->g->operands[n->in + i], fusable, &in[i])) return false;
    return true;
}

/* ---- nodes ---- */

/* Whether all of an input is reduced that is a matrix whose rows lie across memory: the eager
 * kernel turns them, generated code reads one after the other. */
static bool eager_turns(const ir *r, const graph_node *n, const ir_node *x) {
    const tensor_meta *m = &x->domain;
    int64_t stride[2] = {0, 0}, numel = etch__meta_numel(m);
    int axes = 0;
    if (r->device != ETCH_CPU || r->g->dynamic || numel <= REDUCE_BLOCK) return false;
    for (int d = 0; d < m->ndim; d++) {
        if (m->size[d] == 1) continue;
        if (axes == 2 || !(x->mask >> d & 1) || m->stride[d] <= 0) return false;
        stride[axes++] = m->stride[d];
    }
    return axes == 2 && stride[0] < stride[1] &&
           is_input(r, r->g->values[r->g->operands[n->in]].base);
}

/* Reductions that the loop ir has: the rest are calls. */
static bool find_reduction(const ir *r, const graph_node *n, ir_node *x) {
    const graph *g = r->g;
    const op_info *op = &etch__ops[n->op];
    call_shape c;
    bool keepdim;
    int64_t extent = 1;
    bool index = op->impl == REDUCE_ARGMAX || op->impl == REDUCE_ARGMIN;
    if (op->kind != KIND_REDUCTION || index || etch__op_is_users(n->op)) return false;
    shape_call(g, n, &c);
    etch__tls.state = n->state;
    etch__reduce_axes(&c.call, &x->mask, &keepdim);
    x->domain = g->values[g->operands[n->in]].meta;
    for (int d = 0; d < x->domain.ndim; d++)
        if (x->mask >> d & 1) extent *= x->domain.size[d];
    if (extent <= 1 || etch__meta_numel(&x->domain) == 0 || eager_turns(r, n, x)) return false;
    x->reduce = etch__reduce_plan(&c.call, x->dtype);
    x->compute = x->reduce.acc;
    return true;
}

/* Whether the write makes a whole new version, or must change memory in place. */
static bool replaces_whole(const ir *r, const ir_source *target, int32_t base) {
    if (!target->whole || (r->bases[base] & BASE_SHARED)) return false;
    return !is_input(r, base) || !etch__map_overlaps_itself(&target->meta);
}

/* A write in place by a generated kernel must not read its memory through another map. */
static bool reads_elsewhere(const ir *r, const ir_node *n, const ir_source *in) {
    if (etch__map_overlaps_itself(&n->target.meta)) return true;
    for (int i = 0; i < n->nin; i++) {
        if (in[i].version < 0 || r->versions[in[i].version].constant) continue;
        if (r->versions[in[i].version].base == r->versions[n->target.version].base &&
            !etch__same_map(r, &in[i], &n->target))
            return true;
    }
    return false;
}

static bool add_write(ir *r, int32_t base, ir_node *n, ir_source *in) {
    if (!write_back(r, base)) return false;
    n->write = true;
    n->target.version = r->current[base];
    bool constant;
    if (n->program) etch__look_at_program(n, in, &constant);
    if (n->program && reads_elsewhere(r, n, in)) n->program = NULL;
    if (!n->program) n->kind = IR_CALL;
    if (n->kind == IR_CALL && !etch__read_operands(r, &r->g->nodes[n->gnode], false, in))
        return false;
    n->target.version = r->current[base];
    r->bases[base] |= BASE_PATCHED;
    int32_t node = etch__ir_add(r, n, in, base, &r->g->values[base].meta);
    if (node < 0) return false;
    etch__take_over(r, base, node);
    return true;
}

static bool add_inplace(ir *r, int gnode, ir_node *n, ir_source *in) {
    const graph *g = r->g;
    int32_t base = g->values[g->nodes[gnode].out].base;
    resolve(r, g->nodes[gnode].out, &n->target);
    n->domain = n->target.meta;
    if (!n->program || !replaces_whole(r, &n->target, base)) return add_write(r, base, n, in);
    bool constant;
    etch__look_at_program(n, in, &constant);
    int32_t node = etch__ir_add(r, n, in, base, &g->values[base].meta);
    if (node < 0) return false;
    r->versions[r->nodes[node].out].constant = constant;
    r->current[base] = r->nodes[node].out;
    return true;
}

static bool add_plain(ir *r, int gnode, ir_node *n, ir_source *in) {
    int32_t out = r->g->nodes[gnode].out;
    bool constant = false;
    if (n->kind == IR_POINT) {
        n->domain = r->g->values[out].meta;
        etch__look_at_program(n, in, &constant);
    }
    int32_t node = etch__ir_add(r, n, in, out, &r->g->values[out].meta);
    if (node < 0) return false;
    r->versions[r->nodes[node].out].constant = constant;
    r->current[out] = r->nodes[node].out;
    return true;
}

static bool build_node(ir *r, int gnode) {
    const graph *g = r->g;
    const graph_node *n = &g->nodes[gnode];
    const op_info *op = &etch__ops[n->op];
    if (op->kind == KIND_VIEW) return true;
    ir_node x = {.kind = IR_CALL,
                 .op = n->op,
                 .gnode = gnode,
                 .nin = n->nin,
                 .dtype = g->values[n->out].meta.dtype};
    bool failed = false;
    if (n->op == OP_EMPTY) x.kind = IR_EMPTY;
    else if (op->kind == KIND_REDUCTION && find_reduction(r, n, &x)) x.kind = IR_REDUCE;
    else if (op->kind != KIND_REDUCTION && etch__find_program(r, n, &x, &failed)) x.kind = IR_POINT;
    if (failed) return false;
    ir_source *in = etch__arena_new(r->memory, (n->nin + 1) * sizeof *in);
    if (in && etch__is_apart(r, gnode)) return etch__add_apart(r, gnode, &x, in);
    bool norm = etch__is_norm(r, gnode), cat = etch__is_joined_cat(r, n);
    if (!in || !etch__read_operands(r, n, norm || cat || x.kind != IR_CALL, in)) return false;
    if (cat) return etch__add_cat(r, gnode, in);
    if (norm) return (r->current[n->out] = etch__add_norm(r, gnode, in)) >= 0;
    if (etch__is_wide_product(r, gnode))
        return (r->current[n->out] = etch__add_wide_product(r, gnode, in)) >= 0;
    return (op->kind == KIND_INPLACE ? add_inplace : add_plain)(r, gnode, &x, in);
}

/* ---- inputs that are written while a check may still fail ---- */

static int32_t base_of(const graph *g, int32_t value) {
    return value < 0 ? -1 : g->values[value].base;
}

static bool may_fail(const graph_node *n) { return etch__ops[n->op].flags & OPF_MAY_FAIL; }
static bool writes_input(const graph *g, const graph_node *n) {
    return etch__ops[n->op].kind == KIND_INPLACE && base_of(g, n->out) < g->ninputs;
}

/* Whether the node reads what depends on an input that was written before;
 * then so does its result. */
static bool follows_write(const graph *g, const graph_node *n, uint8_t *written) {
    bool after = false;
    for (int k = 0; k < n->nin; k++) {
        int32_t base = base_of(g, g->operands[n->in + k]);
        after |= base >= 0 && written[base];
    }
    if (after || writes_input(g, n)) written[base_of(g, n->out)] = 1;
    return after;
}

/* Whether some check can only be made once an input has been written: its operator reads what
 * depends on such a write, or writes an input itself where another one writes or fails as well. The
 * other checks come before all writes (order of the groups). */
static bool checks_after_writes(const graph *g, uint8_t *written) {
    int failing = 0, writers = 0, both = 0;
    bool after = false;
    for (int i = 0; i < g->nnodes; i++) {
        const graph_node *n = &g->nodes[i];
        bool follows = follows_write(g, n, written), fails = may_fail(n),
             writes = writes_input(g, n);
        after |= follows && fails;
        failing += fails, writers += writes, both += fails && writes;
    }
    return after || (both && (failing > 1 || writers > 1));
}

/* Maps over it are as good for a row-major copy. */
static bool can_lift(const ir *r, int32_t v) {
    tensor_meta m = r->g->values[v].meta;
    int64_t stride[ETCH_MAX_DIMS];
    etch__row_major(m.ndim, m.size, stride);
    bool alone = r->g->values[v].base == v && !(r->bases[v] & BASE_SHARED);
    return alone && !memcmp(stride, m.stride, m.ndim * sizeof *stride);
}

/* Lets a copy of each written input be written instead, so that a check that fails finds the inputs
 * as they were. The copy becomes the input's contents by a last step. */
static bool lift_inputs(ir *r) {
    const graph *g = r->g;
    uint8_t *written = etch__arena_zeroed(r->memory, g->nvalues + 1);
    bool ok = written != NULL, wanted = ok && checks_after_writes(g, written);
    for (int i = 0; wanted && ok && i < g->nnodes; i++) {
        int32_t v = base_of(g, g->nodes[i].out);
        if (!writes_input(g, &g->nodes[i]) || !is_input(r, v) || !can_lift(r, v)) continue;
        int32_t node = etch__ir_copy(r, r->current[v], NULL, v);
        ok = node >= 0;
        if (ok) r->current[v] = r->nodes[node].out, r->bases[v] |= BASE_LIFTED;
    }
    return ok;
}

/* ---- the whole ---- */

/* By node, 1 + the input that no later node reads or writes; next: other inputs of that node. */
typedef struct last_uses {
    int32_t *first, *next;
} last_uses;

static bool find_last_uses(const graph *g, arena *memory, last_uses *l) {
    int32_t *last = etch__arena_zeroed(memory, (g->ninputs + 1) * sizeof *last);
    l->first = etch__arena_zeroed(memory, (g->nnodes + 1) * sizeof *l->first);
    l->next = etch__arena_zeroed(memory, (g->ninputs + 1) * sizeof *l->next);
    if (!last || !l->first || !l->next) return false;
    for (int i = 0; i < g->nnodes; i++) {
        const graph_node *n = &g->nodes[i];
        for (int k = 0; k <= n->nin; k++) {
            int32_t base = base_of(g, k < n->nin ? g->operands[n->in + k] : n->out);
            if (base >= 0 && base < g->ninputs) last[base] = i;
        }
    }
    for (int32_t v = g->ninputs - 1; v >= 0; v--)
        if (g->nnodes) l->next[v] = l->first[last[v]], l->first[last[v]] = v + 1;
    return true;
}

/* Builds all nodes. Inputs are written back where they were used last, by the kernel that made
 * their contents, if it can, rather than copied at the end. */
static bool build_nodes(ir *r) {
    last_uses l;
    bool ok = find_last_uses(r->g, r->memory, &l);
    for (int i = 0; ok && i < r->g->nnodes; i++) {
        ok = build_node(r, i);
        for (int32_t v = l.first[i] - 1; ok && v >= 0; v = l.next[v] - 1)
            if (r->g->values[v].base == v && !(r->bases[v] & BASE_LIFTED)) ok = write_back(r, v);
    }
    return ok;
}

static bool add_inputs(ir *r) {
    const graph *g = r->g;
    for (int v = 0; v < g->ninputs; v++) {
        int32_t base = g->values[v].base;
        if (base != v) r->bases[base] |= BASE_SHARED;
        int32_t version = etch__ir_version(r, v, -1, &g->values[v].meta);
        if (version < 0) return false;
        r->versions[version].memory = true;
        r->current[v] = r->in_memory[v] = version;
    }
    return true;
}

ir *etch__ir_build(const graph *g, const jit_target *target, etch_numerics numerics,
                   arena *memory) {
    ir *r = etch__arena_zeroed(memory, sizeof *r);
    if (!r) return NULL;
    r->g = g, r->target = target, r->numerics = numerics, r->memory = memory;
    r->device = g->nvalues ? g->values[0].meta.device : 0;
    r->current = etch__arena_zeroed(memory, (g->nvalues + 1) * sizeof *r->current);
    r->in_memory = etch__arena_zeroed(memory, (g->ninputs + 1) * sizeof *r->in_memory);
    r->bases = etch__arena_zeroed(memory, g->nvalues + 1);
    r->outputs = etch__arena_zeroed(memory, (g->noutputs + 1) * sizeof *r->outputs);
    bool ok =
        r->current && r->in_memory && r->bases && r->outputs && add_inputs(r) && lift_inputs(r);
    uint64_t state = etch__tls.state;
    ok = ok && etch__find_apart(r) && build_nodes(r);
    etch__tls.state = state;
    for (int v = 0; ok && v < g->ninputs; v++) {
        r->bases[v] &= (uint8_t)~BASE_LIFTED;
        ok = g->values[v].base != v || write_back(r, v);
    }
    for (int k = 0; ok && k < g->noutputs; k++) r->outputs[k] = r->current[g->outputs[k]];
    return ok ? r : NULL;
}
