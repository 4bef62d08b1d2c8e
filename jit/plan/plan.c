/* Making the plan of the native backend from the groups of the fused ir: kernels lowered and
 * compiled, memory laid out, steps in their order. */
#include "jit/plan/plan_maker.h"

#include "core/tensor/device.h"
#include "core/base/profile.h"

const char etch__plan_late[] = "a kernel takes long to compile";

/* The version whose buffer a version lies in. */
static int32_t owner(const ir *r, int32_t version) {
    while (!r->versions[version].memory && r->versions[version].tied >= 0)
        version = r->versions[version].tied;
    return version;
}

static etch_status lower_groups(plan_maker *m) {
    for (int g = 0; g < m->r->ngroups; g++) {
        const ir_group *group = &m->r->groups[g];
        bool empty = group->call;
        for (int a = 0; a < group->naxes; a++) empty |= group->size[a] == 0;
        if (empty) continue;
        if (!(m->low[g] = etch__arena_new(m->r->memory, sizeof **m->low)))
            return ETCH_ERR_OUT_OF_MEMORY;
        etch_status status = etch__lower(m->r, g, m->low[g]);
        if (status != ETCH_OK) return status;
        m->nkernels++;
        if (!m->low[g]->split) continue;
        if (!(m->finish[g] = etch__arena_new(m->r->memory, sizeof **m->finish)))
            return ETCH_ERR_OUT_OF_MEMORY;
        etch__lower_finish(m->low[g], m->finish[g]);
        m->nkernels++;
    }
    return ETCH_OK;
}

/* ---- memory ---- */

/* The version's buffer is in use while group g runs. */
static void touch(plan_maker *m, int32_t version, int32_t g) {
    if (version < 0) return;
    int32_t v = owner(m->r, version);
    if (m->r->versions[v].memory || m->output[v] >= 0) return;
    int32_t *slot = &m->interval[v];
    if (*slot < 0) {
        *slot = m->nintervals++;
        const tensor_meta *meta = &m->r->versions[v].meta;
        m->intervals[*slot] = (plan_interval){
            g, g, etch__meta_numel(meta) * (int64_t)etch_dtype_size(meta->dtype), 0};
    }
    if (m->intervals[*slot].last < g) m->intervals[*slot].last = g;
}

static void touch_node(plan_maker *m, const ir_node *n) {
    const ir *r = m->r;
    bool loop = n->kind == IR_POINT || n->kind == IR_REDUCE;
    for (int k = 0; k < n->nin; k++) {
        int32_t version = sources(r, n)[k].version;
        if (version < 0 || (loop && r->versions[version].constant)) continue;
        if (loop && r->versions[version].group == n->group) continue;
        touch(m, version, n->group);
    }
    if (n->write) touch(m, n->target.version, n->group);
    if (r->versions[n->out].stored) touch(m, n->out, n->group);
}

static etch_status plan_memory(plan_maker *m) {
    const ir *r = m->r;
    for (int v = 0; v < r->nversions; v++) m->output[v] = m->interval[v] = -1;
    for (int k = 0; k < r->g->noutputs; k++) m->output[owner(r, r->outputs[k])] = k;
    for (int g = 0; g < r->ngroups; g++) {
        for (int i = 0; i < r->groups[g].nmembers; i++)
            touch_node(m, &r->nodes[r->groups[g].members[i]]);
        m->interval[r->nversions + g] = -1;
        if (!m->low[g] || !m->low[g]->split) continue;
        m->interval[r->nversions + g] = m->nintervals;
        m->intervals[m->nintervals++] = (plan_interval){g, g, m->low[g]->scratch, 0};
    }
    m->p->arena_bytes = etch__memory_plan(r->memory, m->intervals, m->nintervals);
    return m->p->arena_bytes < 0 ? ETCH_ERR_OUT_OF_MEMORY : ETCH_OK;
}

static plan_place place_of(const plan_maker *m, int32_t version, int32_t root, int64_t offset) {
    int32_t v = owner(m->r, version);
    if (m->r->versions[v].memory) return (plan_place){PLACE_INPUT, root, offset};
    if (m->output[v] >= 0) return (plan_place){PLACE_OUTPUT, m->output[v], offset};
    return (plan_place){PLACE_ARENA, 0, m->intervals[m->interval[v]].offset + offset};
}

/* The product whose result the access stands for, or NULL. */
static const joined_matmul *matmul_at(const lowered *low, int access) {
    for (int i = 0; i < low->nmatmuls; i++)
        if (low->matmul[i].access == access) return &low->matmul[i];
    return NULL;
}

/* Arguments: the accesses, then A and B of each product, and on a target that packs weights the
 * storage of B, if that is an input as it came, and the bias of a convolution. */
static int arguments(const lowered *low) {
    return low->k.naccesses + low->operands * low->nmatmuls;
}

/* Nowhere: the product's result is in registers. */
static plan_place argument_place(const plan_maker *m, const lowered *low, int i) {
    const plan_address *a = &low->address[i];
    int operand = i - low->k.naccesses;
    if (operand < 0 && matmul_at(low, i)) return (plan_place){PLACE_NONE, 0, 0};
    if (operand >= 0) {
        const joined_matmul *p = &low->matmul[operand / low->operands];
        const plan_address *all[] = {&p->a, &p->b, &p->b, &p->bias};
        a = all[operand % low->operands];
    }
    if (a->version < 0) return (plan_place){PLACE_NONE, 0, 0};
    plan_place at = place_of(m, a->version, a->root, a->offset);
    if (operand < 0 || operand % low->operands != 2) return at;
    bool came = at.kind == PLACE_INPUT && m->r->versions[a->version].node < 0;
    return came ? (plan_place){PLACE_STORAGE, a->root, 0} : (plan_place){PLACE_NONE, 0, 0};
}

/* ---- steps ---- */

static void add_kernel(plan_maker *m, const lowered *low, int32_t group, int64_t **dims) {
    native_plan *p = m->p;
    plan_step *s = &p->steps[p->nsteps++];
    const loop_kernel *k = &low->k;
    int naxes = k->npar + k->nred, ndims = naxes * (k->naccesses + 1);
    s->is_call = false;
    s->k = (kernel_step){.dims = *dims,
                         .arg = p->nargs,
                         .nargs = arguments(low) + 1,
                         .cell = p->ncells,
                         .ncells = k->nscalars};
    memcpy(s->k.name, k->name, sizeof s->k.name);
    p->p.nkernels++, p->p.nmatmuls += low->nmatmuls;
    memcpy(*dims, low->dims, ndims * sizeof **dims);
    *dims += ndims;
    for (int i = 0; i < s->k.nargs - 1; i++) p->args[p->nargs++] = argument_place(m, low, i);
    for (int i = 0; i < k->naccesses; i++) s->k.stores |= (uint32_t)k->access[i].store << i;
    int32_t scratch = m->interval[m->r->nversions + group];
    s->k.scratch = scratch >= 0;
    p->args[p->nargs++] =
        (plan_place){PLACE_ARENA, 0, scratch < 0 ? 0 : m->intervals[scratch].offset};
    memcpy(p->cells + p->ncells, low->cell, k->nscalars * sizeof *p->cells);
    p->ncells += k->nscalars;
}

static void add_operand(plan_maker *m, const ir_source *s) {
    operand_slot *o = &m->p->operands[m->p->noperands++];
    memset(o, 0, sizeof *o);
    atomic_init(&o->t.refs, 1);
    o->t.magic = TENSOR_ALIVE;
    if (s->version < 0) {
        o->none = true;
        return;
    }
    etch__apply_meta(&o->t, &s->meta);
    o->at = place_of(m, s->version, s->root, 0);
    if (o->at.kind == PLACE_INPUT) o->at.offset = etch__map_offset(m->r, s);
}

static void add_call(plan_maker *m, const ir_node *n, int64_t **attrs) {
    native_plan *p = m->p;
    const graph_node *g = &m->r->g->nodes[n->gnode];
    plan_step *s = &p->steps[p->nsteps++];
    s->is_call = true;
    p->p.ncalls++;
    s->c = (call_step){
        .state = g->state, .epilogue = n->epilogue, .scalar = g->sc, .operand = p->noperands};
    if (p->target->times_matmuls && m->r->numerics == ETCH_RELAXED &&
        m->r->mode == ETCH_MODE_MAX_AUTOTUNE &&
        !etch__op_is_users(n->op)) /* what those call is not of this plan */
        s->c.state |= STATE_TUNED;
    s->c.call = (op_call){.op = g->op,
                          .nin = (uint16_t)n->nin,
                          .nsc = g->nsc,
                          .nat = g->nat,
                          .part_of = g->part_of,
                          .site = g->site};
    if (n->op != g->op)
        s->c.call.op = n->op, s->c.call.nsc = s->c.call.nat = 0; /* pass_products.c */
    s->c.call.at = *attrs;
    p->checks |= p->target->late_checks && etch__ops[n->op].flags & OPF_MAY_FAIL;
    int nat = s->c.call.nat;
    if (nat) memcpy(*attrs, m->r->g->attrs + g->at, nat * sizeof **attrs);
    *attrs += nat;
    for (int i = 0; i < n->nin; i++) add_operand(m, &sources(m->r, n)[i]);
    s->c.result = s->c.operand;
    if (etch__ops[n->op].kind == KIND_INPLACE) return;
    ir_source out = {n->out, m->r->versions[n->out].base, true, m->r->versions[n->out].meta};
    s->c.result = p->noperands;
    add_operand(m, &out);
    if (etch__ops[n->op].kind == KIND_CONTRACTION) p->p.nmatmuls++;
}

static void add_steps(plan_maker *m) {
    int64_t *dims = m->p->dims, *attrs = m->p->attrs;
    for (int g = 0; g < m->r->ngroups; g++) {
        const ir_node *first = &m->r->nodes[m->r->groups[g].members[0]];
        int before = m->p->nsteps;
        if (first->kind == IR_CALL) add_call(m, first, &attrs);
        if (m->low[g]) add_kernel(m, m->low[g], g, &dims);
        if (m->finish[g]) add_kernel(m, m->finish[g], g, &dims);
        for (int i = before; i < m->p->nsteps; i++) m->step_group[i] = g;
    }
}

/* ---- arrays ---- */

static bool make_arrays(plan_maker *m) {
    const ir *r = m->r;
    native_plan *p = m->p;
    int64_t args = 0, cells = 0, dims = 0, operands = 0, attrs = 0;
    for (int g = 0; g < r->ngroups; g++)
        for (int i = 0; i < 2; i++) {
            const lowered *low = i ? m->finish[g] : m->low[g];
            if (!low) continue;
            args += arguments(low) + 1, cells += low->k.nscalars;
            dims += (low->k.npar + low->k.nred) * (low->k.naccesses + 1);
        }
    for (int i = 0; i < r->nnodes; i++) {
        const ir_node *n = &r->nodes[i];
        if (n->kind != IR_CALL || n->dead) continue;
        operands += n->nin + 1, args += 3, attrs += r->g->nodes[n->gnode].nat;
    }
    p->steps = etch__calloc(r->ngroups + m->nkernels + 1, sizeof *p->steps);
    p->args = etch__malloc((args + 1) * sizeof *p->args);
    p->cells = etch__malloc((cells + 1) * sizeof *p->cells);
    p->dims = etch__malloc((dims + 1) * sizeof *p->dims);
    p->operands = etch__malloc((operands + 1) * sizeof *p->operands);
    p->attrs = etch__malloc((attrs + 1) * sizeof *p->attrs);
    p->output_bytes = etch__malloc((r->g->noutputs + 1) * sizeof *p->output_bytes);
    return p->steps && p->args && p->cells && p->dims && p->operands && p->attrs && p->output_bytes;
}

/* The first step whose failure may find an input written. An operator that checks its data does so
 * before it writes; a kernel of the user may fail half-way. */
static int first_late_step(const native_plan *p) {
    for (int i = 0; i < p->nsteps; i++)
        if (etch__step_writes_input(p, &p->steps[i]))
            return i + !(p->steps[i].is_call && etch__op_is_users(p->steps[i].c.call.op));
    return p->nsteps;
}

static void note_outputs(plan_maker *m) {
    const graph *g = m->r->g;
    m->p->noutputs = g->noutputs, m->p->ninputs = g->ninputs, m->p->nscalars = g->nscalars;
    m->p->as_graph = m->r->mode == ETCH_MODE_REDUCE_OVERHEAD && !m->r->matmuls_apart &&
                     etch__fits_graph(m->p) && etch__order_steps(m);
    for (int k = 0; k < g->noutputs; k++) {
        const tensor_meta *meta = &g->values[g->outputs[k]].meta;
        m->p->output_bytes[k] = etch__meta_numel(meta) * (int64_t)etch_dtype_size(meta->dtype);
    }
    m->p->late = first_late_step(m->p);
}

/* Arguments at multiples of 16 bytes, as far as the plan knows. */
static uint32_t aligned_arguments(const plan_maker *m, const lowered *low) {
    uint32_t mask = 0;
    for (int i = 0; i < arguments(low); i++)
        mask |= (uint32_t)(argument_place(m, low, i).offset % 16 == 0) << i;
    return mask;
}

static void mark_tested(const plan_maker *m, lowered *low) {
    for (int i = 0; m->p->checks && i < low->k.naccesses; i++)
        if (low->k.access[i].store) low->tested |= argument_place(m, low, i).kind == PLACE_INPUT;
}

/* Puts the kernels into low, in the order of their steps; returns how many. */
static int list_kernels(const plan_maker *m, const lowered **low) {
    int n = 0;
    for (int g = 0; g < m->r->ngroups; g++) {
        if (m->low[g]) low[n++] = m->low[g];
        if (m->finish[g]) low[n++] = m->finish[g];
    }
    return n;
}

static bool all_ready(const plan_maker *m, const kernel_order *o) {
    for (int i = 0; m->r->provisional_ok && i < o->n; i++)
        if (o->low[i]->nmatmuls && m->r->target->matmuls.ready &&
            !m->r->target->matmuls.ready(o->device, o->low[i], o->aligned[i]))
            return false;
    return true;
}

/* steps: of m->nkernels. */
static etch_status prepare(const plan_maker *m, kernel_step **steps, const char **why) {
    const lowered **low = etch__arena_new(m->r->memory, m->nkernels * sizeof *low);
    uint32_t *aligned = etch__arena_zeroed(m->r->memory, m->nkernels * sizeof *aligned);
    if (!low || !aligned) return ETCH_ERR_OUT_OF_MEMORY;
    kernel_order o = {m->r->device, list_kernels(m, low), low,
                      aligned,      m->r->mode,           m->r->g->dynamic};
    for (int i = 0; m->p && i < o.n; i++) aligned[i] = aligned_arguments(m, low[i]);
    if (!all_ready(m, &o)) return *why = etch__plan_late, ETCH_ERR_COMPILE;
    if (!o.n || m->r->target->kernels.prepare(&o, steps, why)) return ETCH_OK;
    if (**why) return ETCH_ERR_COMPILE;
    return etch__tls.status ? etch__tls.status : ETCH_ERR_OUT_OF_MEMORY;
}

/* The kernels of single steps are made only where there is none for all of them. */
static etch_status make_steps(plan_maker *m, const char **why) {
    native_plan *p = m->p;
    kernel_step **steps = etch__arena_new(m->r->memory, (m->nkernels + 1) * sizeof *steps);
    if (!steps) return ETCH_ERR_OUT_OF_MEMORY;
    add_steps(m);
    etch__make_whole(m);
    if (p->whole) return ETCH_OK;
    for (int g = 0; g < m->r->ngroups; g++) {
        if (m->low[g]) mark_tested(m, m->low[g]);
        if (m->finish[g]) mark_tested(m, m->finish[g]);
    }
    for (int i = 0, n = 0; i < p->nsteps; i++)
        if (!p->steps[i].is_call) steps[n++] = &p->steps[i].k;
    return prepare(m, steps, why);
}

/* ---- the whole ---- */

static bool make_tables(plan_maker *m) {
    const ir *r = m->r;
    size_t groups = (size_t)r->ngroups + 1, versions = (size_t)r->nversions + 1;
    m->low = etch__arena_zeroed(r->memory, groups * sizeof *m->low);
    m->finish = etch__arena_zeroed(r->memory, groups * sizeof *m->finish);
    m->output = etch__arena_new(r->memory, versions * sizeof *m->output);
    m->interval = etch__arena_new(r->memory, (versions + groups) * sizeof *m->interval);
    m->intervals = etch__arena_new(r->memory, (versions + groups) * sizeof *m->intervals);
    m->step_group = etch__arena_new(r->memory, 3 * groups * sizeof *m->step_group);
    return m->low && m->finish && m->output && m->interval && m->intervals && m->step_group;
}

static bool make_plan(plan_maker *m) {
    native_plan *p = m->p = etch__aligned_zeroed(sizeof *p);
    if (!p) return false;
    p->device = m->r->device, p->target = m->r->target;
    snprintf(p->name, sizeof p->name, "%s", m->r->g->name ? m->r->g->name : "");
    atomic_init(&p->p.refs, 1);
    p->p.run = etch__native_run, p->p.destroy = etch__native_destroy;
    return true;
}

static void note_report(native_plan *p) {
    report_graph *g = p->report = etch__report_plan(p->nsteps);
    if (!g) return;
    g->device = p->device;
    g->issue = p->whole ? ISSUE_KERNEL : p->as_graph ? ISSUE_GRAPH : ISSUE_STEPS;
}

static etch_status make(plan_maker *m, const char **why) {
    if (!make_tables(m) || !make_plan(m)) return ETCH_ERR_OUT_OF_MEMORY;
    etch_status status = lower_groups(m);
    if (status == ETCH_OK) status = plan_memory(m);
    if (status == ETCH_OK && !make_arrays(m)) status = ETCH_ERR_OUT_OF_MEMORY;
    if (status == ETCH_OK) etch__log_steps(m);
    if (status == ETCH_OK) status = make_steps(m, why);
    if (status != ETCH_OK) return status;
    note_outputs(m);
    note_report(m->p);
    return ETCH_OK;
}

etch_status etch__plan_prepare(const ir *r) {
    plan_maker m = {.r = r};
    const char *why;
    etch_status status = make_tables(&m) ? lower_groups(&m) : ETCH_ERR_OUT_OF_MEMORY;
    size_t n = (size_t)m.nkernels;
    kernel_step *made = etch__arena_zeroed(r->memory, n * sizeof *made);
    kernel_step **steps = etch__arena_new(r->memory, n * sizeof *steps);
    if (status == ETCH_OK && !(made && steps)) status = ETCH_ERR_OUT_OF_MEMORY;
    for (size_t i = 0; status == ETCH_OK && i < n; i++) steps[i] = &made[i];
    if (status == ETCH_OK) status = prepare(&m, steps, &why);
    for (size_t i = 0; status == ETCH_OK && i < n; i++) r->target->kernels.release(&made[i]);
    return status == ETCH_ERR_OUT_OF_MEMORY ? status : ETCH_OK;
}

etch_status etch__plan_make(const ir *r, plan **out, const char **why) {
    plan_maker m = {.r = r};
    etch_status status = make(&m, why);
    if (status == ETCH_OK) *out = &m.p->p;
    else if (m.p) etch__native_destroy(&m.p->p);
    return status;
}
