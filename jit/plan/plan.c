/* Making the plan of the native backend from the groups of the fused ir: kernels lowered and
 * compiled, memory laid out, steps in their order. */
#include "jit/plan/plan_maker.h"

#include "core/tensor/device.h"
#include "core/observe/profile.h"

const char etch__plan_late[] = "a kernel takes long to compile";

/* The version whose buffer a version lies in. */
static int32_t owner(const ir *r, int32_t version) {
    while (!r->versions[version].memory && r->versions[version].tied >= 0)
        version = r->versions[version].tied;
    return version;
}

static etch_status lower_groups(maker *m) {
    for (int g = 0; g < m->r->ngroups; g++) {
        const ir_group *group = &m->r->groups[g];
        bool empty = group->call;
        for (int a = 0; a < group->naxes; a++) empty |= group->size[a] == 0;
        if (empty) continue;
        if (!(m->low[g] = etch__malloc(sizeof **m->low))) return ETCH_ERR_OUT_OF_MEMORY;
        etch_status status = etch__lower(m->r, g, m->low[g]);
        if (status != ETCH_OK) return status;
        m->nkernels++;
        if (!m->low[g]->split) continue;
        if (!(m->finish[g] = etch__malloc(sizeof **m->finish))) return ETCH_ERR_OUT_OF_MEMORY;
        etch__lower_finish(m->low[g], m->finish[g]);
        m->nkernels++;
    }
    return ETCH_OK;
}

/* ---- memory ---- */

/* The version's buffer is in use while group g runs. */
static void touch(maker *m, int32_t version, int32_t g) {
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

static void touch_node(maker *m, const ir_node *n) {
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

static etch_status plan_memory(maker *m) {
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
    m->p->arena_bytes = etch__memory_plan(m->intervals, m->nintervals);
    return m->p->arena_bytes < 0 ? ETCH_ERR_OUT_OF_MEMORY : ETCH_OK;
}

static place place_of(const maker *m, int32_t version, int32_t root, int64_t offset) {
    int32_t v = owner(m->r, version);
    if (m->r->versions[v].memory) return (place){PLACE_INPUT, root, offset};
    if (m->output[v] >= 0) return (place){PLACE_OUTPUT, m->output[v], offset};
    return (place){PLACE_ARENA, 0, m->intervals[m->interval[v]].offset + offset};
}

/* The product whose result the access stands for, or NULL. */
static const joined_product *product_at(const lowered *low, int access) {
    for (int i = 0; i < low->nproducts; i++)
        if (low->product[i].access == access) return &low->product[i];
    return NULL;
}

/* Arguments: the accesses, then A and B of each product. */
static int arguments(const lowered *low) { return low->k.naccesses + 2 * low->nproducts; }

/* Nowhere: the product's result is in registers. */
static place argument_place(const maker *m, const lowered *low, int i) {
    const plan_address *a = &low->address[i];
    int operand = i - low->k.naccesses;
    if (operand >= 0) a = operand % 2 ? &low->product[operand / 2].b : &low->product[operand / 2].a;
    else if (product_at(low, i)) return (place){PLACE_NONE, 0, 0};
    return place_of(m, a->version, a->root, a->offset);
}

/* ---- steps ---- */

static void add_kernel(maker *m, const lowered *low, int32_t group, int64_t **dims) {
    native_plan *p = m->p;
    step *s = &p->steps[p->nsteps++];
    const loop_kernel *k = &low->k;
    int naxes = k->npar + k->nred, ndims = naxes * (k->naccesses + 1);
    s->is_call = false;
    loaded_kernel *loaded = p->device ? NULL : m->kernels[p->p.nkernels];
    s->k = (kernel_step){.kernel = loaded,
                         .fn = loaded ? etch__kernel_entry(loaded) : NULL,
                         .dims = *dims,
                         .arg = p->nargs,
                         .nargs = arguments(low) + 1,
                         .cell = p->ncells,
                         .ncells = k->nscalars,
                         .units = low->units,
                         .grain = low->grain,
                         .stack = etch__loop_stack(k)};
    memcpy(s->k.name, k->name, sizeof s->k.name);
    p->p.nkernels++, p->p.nproducts += low->nproducts;
    memcpy(*dims, low->dims, ndims * sizeof **dims);
    *dims += ndims;
    for (int i = 0; i < s->k.nargs - 1; i++) p->args[p->nargs++] = argument_place(m, low, i);
    for (int i = 0; i < k->naccesses; i++) s->k.stores |= (uint32_t)k->access[i].store << i;
    int32_t scratch = m->interval[m->r->nversions + group];
    s->k.scratch = scratch >= 0;
    p->args[p->nargs++] = (place){PLACE_ARENA, 0, scratch < 0 ? 0 : m->intervals[scratch].offset};
    memcpy(p->cells + p->ncells, low->cell, k->nscalars * sizeof *p->cells);
    p->ncells += k->nscalars;
}

static void add_operand(maker *m, const ir_source *s) {
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

static void add_call(maker *m, const ir_node *n, int64_t **attrs) {
    native_plan *p = m->p;
    const graph_node *g = &m->r->g->nodes[n->gnode];
    step *s = &p->steps[p->nsteps++];
    s->is_call = true;
    p->p.ncalls++;
    s->c = (call_step){
        .state = g->state, .epilogue = n->epilogue, .scalar = g->sc, .operand = p->noperands};
    if (p->device && m->r->numerics == ETCH_RELAXED && m->r->mode == ETCH_MODE_MAX_AUTOTUNE &&
        !etch__op_is_users(n->op)) /* what those call is not of this plan */
        s->c.state |= STATE_TUNED;
    s->c.call = (op_call){.op = g->op,
                          .nin = (uint16_t)n->nin,
                          .nsc = g->nsc,
                          .nat = g->nat,
                          .part_of = g->part_of,
                          .site = g->site};
    s->c.call.at = *attrs;
    p->checks |= p->device && etch__ops[g->op].flags & OPF_MAY_FAIL;
    if (g->nat) memcpy(*attrs, m->r->g->attrs + g->at, g->nat * sizeof **attrs);
    *attrs += g->nat;
    for (int i = 0; i < n->nin; i++) add_operand(m, &sources(m->r, n)[i]);
    s->c.result = s->c.operand;
    if (etch__ops[n->op].kind == KIND_INPLACE) return;
    ir_source out = {n->out, m->r->versions[n->out].base, true, m->r->versions[n->out].meta};
    s->c.result = p->noperands;
    add_operand(m, &out);
    if (etch__ops[n->op].kind == KIND_CONTRACTION) p->p.nproducts++;
}

static void add_steps(maker *m) {
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

static bool make_arrays(maker *m) {
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

bool etch__step_writes_input(const native_plan *p, const step *s) {
    if (s->is_call) return p->operands[s->c.result].at.kind == PLACE_INPUT;
    for (int i = 0; i < s->k.nargs - 1; i++) /* the last is scratch, and has no bit */
        if (s->k.stores >> i & 1 && p->args[s->k.arg + i].kind == PLACE_INPUT) return true;
    return false;
}

/* The first step whose failure may find an input written. An operator that checks its data does so
 * before it writes; a kernel of the user may fail half-way. */
static int first_late_step(const native_plan *p) {
    for (int i = 0; i < p->nsteps; i++)
        if (etch__step_writes_input(p, &p->steps[i]))
            return i + !(p->steps[i].is_call && etch__op_is_users(p->steps[i].c.call.op));
    return p->nsteps;
}

static void note_outputs(maker *m) {
    const graph *g = m->r->g;
    m->p->noutputs = g->noutputs, m->p->ninputs = g->ninputs, m->p->nscalars = g->nscalars;
    m->p->as_graph = m->p->device && m->r->mode == ETCH_MODE_REDUCE_OVERHEAD && !m->r->apart &&
                     etch__fits_graph(m->p) && etch__order_steps(m);
    for (int k = 0; k < g->noutputs; k++) {
        const tensor_meta *meta = &g->values[g->outputs[k]].meta;
        m->p->output_bytes[k] = etch__meta_numel(meta) * (int64_t)etch_dtype_size(meta->dtype);
    }
    m->p->late = first_late_step(m->p);
}

/* Arguments at multiples of 16 bytes, as far as the plan knows. */
static uint32_t aligned_arguments(const maker *m, const lowered *low) {
    uint32_t mask = 0;
    for (int i = 0; i < arguments(low); i++)
        mask |= (uint32_t)(argument_place(m, low, i).offset % 16 == 0) << i;
    return mask;
}

static void mark_tested(const maker *m, lowered *low) {
    for (int i = 0; m->p->checks && i < low->k.naccesses; i++)
        if (low->k.access[i].store) low->tested |= argument_place(m, low, i).kind == PLACE_INPUT;
}

static etch_status prepare_launchers(maker *m, const char **why) {
    const lowered **low = etch__malloc((m->nkernels + 1) * sizeof *low);
    uint32_t *aligned = etch__malloc((m->nkernels + 1) * sizeof *aligned);
    int n = 0;
    etch_status status = low && aligned ? ETCH_OK : ETCH_ERR_OUT_OF_MEMORY;
    for (int g = 0; status == ETCH_OK && g < m->r->ngroups; g++) {
        lowered *const forms[2] = {m->low[g], m->finish[g]};
        for (int i = 0; i < 2; i++) {
            if (!forms[i]) continue;
            mark_tested(m, forms[i]);
            aligned[n] = aligned_arguments(m, forms[i]), low[n++] = forms[i];
        }
    }
    const jit_target *target = etch__target();
    for (int i = 0; status == ETCH_OK && m->r->quick && i < n; i++)
        if (low[i]->nproducts && !target->ready(m->p->device, low[i], aligned[i]))
            *why = etch__plan_late, status = ETCH_ERR_COMPILE;
    if (status == ETCH_OK && n &&
        !target->prepare(m->p->device, low, aligned, n, m->r->mode, m->launchers, why))
        status = **why              ? ETCH_ERR_COMPILE
                 : etch__tls.status ? etch__tls.status
                                    : ETCH_ERR_OUT_OF_MEMORY;
    etch__free(low);
    etch__free(aligned);
    return status;
}

/* Whether a reduction is one kernel or two depends on its size. Where sizes are dynamic the other
 * form is compiled along, so that no later size has to start the compiler. Returns how many. */
static int kernels_of_other_sizes(const maker *m, loop_kernel *other) {
    int n = 0;
    for (int g = 0; m->r->g->dynamic && g < m->r->ngroups; g++) {
        const lowered *low = m->low[g];
        if (!low || !low->k.nred || etch__loop_last_stage(&low->k) > 1) continue;
        for (int split = SPLIT_NONE; split <= SPLIT_FINISH; split++) {
            if ((low->k.split == SPLIT_NONE) == (split == SPLIT_NONE)) continue;
            other[n] = low->k;
            other[n++].split = (uint8_t)split;
        }
    }
    return n;
}

static bool get_kernels(maker *m, const loop_kernel **k, loop_kernel *other, const char **why) {
    int n = 0;
    for (int g = 0; g < m->r->ngroups; g++) {
        if (m->low[g]) k[n++] = &m->low[g]->k;
        if (m->finish[g]) k[n++] = &m->finish[g]->k;
    }
    int others = kernels_of_other_sizes(m, other);
    for (int i = 0; i < others; i++) k[n + i] = &other[i];
    bool ok = n == 0 || etch__kernels_get(k, n + others, m->kernels, why);
    for (int i = 0; ok && i < others; i++) {
        etch__kernel_release(m->kernels[n + i]);
        m->kernels[n + i] = NULL;
    }
    return ok;
}

static etch_status get_all_kernels(maker *m, const char **why) {
    int most = 3 * m->r->ngroups; /* of a reduction: as one, as two */
    const loop_kernel **k = etch__malloc((most + 1) * sizeof *k);
    loop_kernel *other = etch__malloc(((m->r->g->dynamic ? most : 0) + 1) * sizeof *other);
    bool room = k && other, ok = room && get_kernels(m, k, other, why);
    etch__free(k);
    etch__free(other);
    return ok ? ETCH_OK : room ? ETCH_ERR_COMPILE : ETCH_ERR_OUT_OF_MEMORY;
}

/* The kernels of single steps are made only where there is none for all of them. */
static etch_status make_device_steps(maker *m, const char **why) {
    add_steps(m);
    etch__make_whole(m);
    if (m->p->whole) return ETCH_OK;
    etch_status status = prepare_launchers(m, why);
    for (int i = 0, n = 0; status == ETCH_OK && i < m->p->nsteps; i++)
        if (!m->p->steps[i].is_call) m->p->steps[i].k.launcher = m->launchers[n++];
    return status;
}

static etch_status make_steps(maker *m, const char **why) {
    if (m->p->device) return make_device_steps(m, why);
    etch_status status = get_all_kernels(m, why);
    if (status == ETCH_OK) add_steps(m);
    return status;
}

/* ---- the whole ---- */

static etch_status make(maker *m, const char **why) {
    const ir *r = m->r;
    m->p = etch__aligned_zeroed(sizeof *m->p);
    m->low = etch__calloc(r->ngroups + 1, sizeof *m->low);
    m->finish = etch__calloc(r->ngroups + 1, sizeof *m->finish);
    m->output = etch__malloc((r->nversions + 1) * sizeof *m->output);
    m->interval = etch__malloc((r->nversions + r->ngroups + 1) * sizeof *m->interval);
    m->intervals = etch__malloc((r->nversions + r->ngroups + 1) * sizeof *m->intervals);
    m->kernels = etch__calloc(3 * r->ngroups + 1, sizeof *m->kernels);
    m->step_group = etch__calloc(3 * r->ngroups + 1, sizeof *m->step_group);
    m->launchers = etch__calloc(2 * r->ngroups + 1, sizeof *m->launchers);
    if (m->p && r->g->nvalues) m->p->device = r->g->values[0].meta.device;
    if (!m->launchers || !m->step_group || !m->p || !m->low || !m->finish || !m->output ||
        !m->interval || !m->intervals || !m->kernels)
        return ETCH_ERR_OUT_OF_MEMORY;
    etch_status status = lower_groups(m);
    if (status == ETCH_OK) status = plan_memory(m);
    if (status == ETCH_OK && !make_arrays(m)) status = ETCH_ERR_OUT_OF_MEMORY;
    if (status == ETCH_OK) etch__log_steps(m);
    if (status == ETCH_OK) status = make_steps(m, why);
    if (status != ETCH_OK) return status;
    note_outputs(m);
    m->p->report = etch__report_plan(m->p->nsteps);
    return ETCH_OK;
}

static void free_lowered(maker *m) {
    for (int g = 0; g < m->r->ngroups; g++) {
        if (m->low) etch__free(m->low[g]);
        if (m->finish) etch__free(m->finish[g]);
    }
    etch__free(m->low);
    etch__free(m->finish);
}

etch_status etch__plan_prepare(const ir *r) {
    maker m = {.r = r};
    const char *why;
    m.low = etch__calloc(r->ngroups + 1, sizeof *m.low);
    m.finish = etch__calloc(r->ngroups + 1, sizeof *m.finish);
    m.kernels = etch__calloc(3 * r->ngroups + 1, sizeof *m.kernels);
    bool room = m.low && m.finish && m.kernels;
    etch_status status = room ? lower_groups(&m) : ETCH_ERR_OUT_OF_MEMORY;
    if (status == ETCH_OK) status = get_all_kernels(&m, &why);
    for (int k = 0; m.kernels && k < 3 * r->ngroups; k++) etch__kernel_release(m.kernels[k]);
    free_lowered(&m);
    etch__free(m.kernels);
    return status == ETCH_ERR_OUT_OF_MEMORY ? status : ETCH_OK;
}

etch_status etch__plan_make(const ir *r, plan **out, const char **why) {
    maker m = {.r = r};
    etch_status status = make(&m, why);
    free_lowered(&m);
    etch__free(m.output);
    etch__free(m.interval);
    etch__free(m.intervals);
    etch__free(m.kernels);
    etch__free(m.launchers);
    etch__free(m.step_group);
    if (m.p) {
        atomic_init(&m.p->p.refs, 1);
        m.p->p.run = etch__native_run, m.p->p.destroy = etch__native_destroy;
    }
    if (status == ETCH_OK) *out = &m.p->p;
    else if (m.p) etch__native_destroy(&m.p->p);
    return status;
}
