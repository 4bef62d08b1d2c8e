/* Lowering: a group of nodes becomes one loop kernel with the dims, addresses and cells of a
 * launch.
 *
 * The members' programs are strung together, stage by stage; each distinct (version, map) is loaded
 * once, before anything is stored, so that a store may go to memory that the kernel has read
 * through the same map. Then axes that every access walks in one stride are merged, steps are
 * classed, and the variant is chosen by which axis has unit stride. Extents and strides stay
 * run-time numbers. */
#include <ctype.h>
#include <stdlib.h>

#include "jit/ir/target.h"

typedef struct lowering {
    const ir *r;
    const ir_group *g;
    lowered *out;
    loop_kernel *k;
    bool failed;                    /* a limit was hit */
    int naxes, axis[ETCH_MAX_DIMS]; /* the group's axes in the kernel's order */
    int64_t extent[ETCH_MAX_DIMS];
    int64_t stride[LOOP_MAX_ACCESSES][ETCH_MAX_DIMS];
    /* Values by version and stage; loads by source and stage. */
    int nvalues, nloads;
    struct {
        int32_t version;
        int stage, code;
    } value[LOOP_MAX_CODE];
    struct {
        const ir_source *s;
        int stage, code;
    } load[LOOP_MAX_ACCESSES];
} lowering;

/* ---- code ---- */

static int emit(lowering *l, loop_kind kind, int stage, prim_instr p) {
    if (l->k->ncode == LOOP_MAX_CODE) return l->failed = true, 0;
    l->k->code[l->k->ncode] = (loop_instr){(uint8_t)kind, (uint8_t)stage, p};
    return l->k->ncode++;
}

static int emit_prim(lowering *l, int stage, prim_id prim, etch_dtype type, etch_dtype from, int a,
                     int b) {
    prim_instr p = {.prim = (uint8_t)prim, .type = (uint8_t)type, .from = (uint8_t)from};
    p.a = (int16_t)a, p.b = (int16_t)b;
    return emit(l, LOOP_PRIM, stage, p);
}

/* The cell of a run-time scalar of the graph, rounded to dtype. */
static int cell(lowering *l, int32_t scalar, uint8_t dtype) {
    int n = l->k->nscalars;
    for (int i = 0; i < n; i++)
        if (l->out->cell[i].scalar == scalar && l->out->cell[i].dtype == dtype) return i;
    if (n == LOOP_MAX_CODE) return l->failed = true, 0;
    l->out->cell[n] = (plan_cell){scalar, dtype};
    return l->k->nscalars++;
}

static plan_address address_of(const ir *r, const ir_source *s) {
    int64_t size = (int64_t)etch_dtype_size(s->meta.dtype);
    return (plan_address){s->version, s->root, etch__map_offset(r, s) * size};
}

static int emit_access(lowering *l, const ir_source *s, const int64_t *stride, bool store,
                       int stage, int value) {
    int n = l->k->naccesses;
    if (n == LOOP_MAX_ACCESSES) return l->failed = true, 0;
    etch_dtype dtype = s->meta.dtype;
    l->k->access[n] = (loop_access){.dtype = (uint8_t)dtype, .store = store};
    memcpy(l->stride[n], stride, l->naxes * sizeof *stride);
    l->out->address[n] = address_of(l->r, s);
    l->k->naccesses++;
    prim_instr p = {.type = (uint8_t)etch__compute_type(dtype), .a = (int16_t)value};
    p.imm.i = n;
    return emit(l, store ? LOOP_STORE : LOOP_LOAD, stage, p);
}

/* Strides along the group's axes of a map over the stage's space: 0 along
 * reduced axes in odd ones. */
static void spread(const lowering *l, const int64_t *of_stage, int stage, int64_t *stride) {
    int n = 0;
    for (int a = 0; a < l->g->naxes; a++)
        stride[a] = stage % 2 && l->g->mask >> a & 1 ? 0 : of_stage[n++];
}

static int find_value(const lowering *l, int32_t version, int stage) {
    for (int i = 0; i < l->nvalues; i++)
        if (l->value[i].version == version && etch__loop_sees(stage, l->value[i].stage))
            return l->value[i].code;
    return -1;
}

static void keep_value(lowering *l, int32_t version, int stage, int code) {
    if (l->nvalues == LOOP_MAX_CODE) {
        l->failed = true;
        return;
    }
    l->value[l->nvalues].version = version;
    l->value[l->nvalues].stage = stage;
    l->value[l->nvalues++].code = code;
}

/* Of values that have merged (cse) either may be named, but for where an input is addressed. */
static int load(lowering *l, const ir_node *n, const ir_source *s, int stage) {
    int64_t of_stage[ETCH_MAX_DIMS], stride[ETCH_MAX_DIMS] = {0};
    bool memory = l->r->versions[s->version].memory;
    etch__map_strides(s, &n->domain, of_stage);
    spread(l, of_stage, stage, stride);
    for (int i = 0; i < l->nloads; i++) {
        const ir_source *t = l->load[i].s;
        bool seen = etch__loop_sees(stage, l->load[i].stage) && stage % 2 == l->load[i].stage % 2;
        if (t->version == s->version && seen && (!memory || t->root == s->root) &&
            t->meta.offset == s->meta.offset &&
            !memcmp(l->stride[l->k->code[l->load[i].code].p.imm.i], stride,
                    l->g->naxes * sizeof *stride))
            return l->load[i].code;
    }
    int code = emit_access(l, s, stride, false, stage, 0);
    if (l->failed) return 0;
    l->load[l->nloads].s = s;
    l->load[l->nloads].stage = stage;
    l->load[l->nloads++].code = code;
    return code;
}

static int emit_program(lowering *l, const ir_node *n, int stage);

/* The code of the value that a node reads. */
static int operand(lowering *l, const ir_node *n, const ir_source *s, int stage) {
    const ir_version *v = &l->r->versions[s->version];
    int code = v->constant || v->group >= 0 ? find_value(l, s->version, stage) : -1;
    if (code >= 0) return code;
    if (!v->constant) return load(l, n, s, stage);
    code = emit_program(l, &l->r->nodes[v->node], stage);
    keep_value(l, s->version, stage, code);
    return code;
}

static int emit_program(lowering *l, const ir_node *n, int stage) {
    const prim_program *p = n->program;
    const graph *g = l->r->g;
    int map[PROGRAM_MAX];
    for (int i = 0; i < p->n; i++) {
        prim_instr x = p->code[i];
        if (x.prim == PRIM_INPUT) {
            map[i] = operand(l, n, &sources(l->r, n)[x.imm.i], stage);
            continue;
        }
        int arity = etch__prims[x.prim].arity;
        x.a = (int16_t)(arity > 0 ? map[x.a] : 0);
        x.b = (int16_t)(arity > 1 ? map[x.b] : 0);
        x.c = (int16_t)(arity > 2 ? map[x.c] : 0);
        if (x.prim == PRIM_SCALAR)
            x.imm.i = cell(l, g->nodes[n->gnode].sc + (int32_t)x.imm.i, x.from);
        map[i] = emit(l, LOOP_PRIM, stage, x);
    }
    return map[p->result];
}

static int emit_round(lowering *l, int stage, etch_dtype dtype, int v) {
    if (dtype == ETCH_BF16) v = emit_prim(l, stage, PRIM_ROUND_BF16, ETCH_F32, ETCH_F32, v, 0);
    if (dtype == ETCH_F16) v = emit_prim(l, stage, PRIM_ROUND_F16, ETCH_F32, ETCH_F32, v, 0);
    return v;
}

/* A value of dtype `in`, as dtype `element`, in the accumulator's type. */
static int emit_element(lowering *l, const ir_node *n, int stage, etch_dtype in, int v) {
    etch_dtype element = n->reduce.element, acc = n->reduce.acc;
    etch_dtype from = etch__compute_type(in), to = etch__compute_type(element);
    if (from != to) v = emit_prim(l, stage, PRIM_CONVERT, to, from, v, 0);
    if (element != in) v = emit_round(l, stage, element, v);
    if (to != acc) v = emit_prim(l, stage, PRIM_CONVERT, acc, to, v, 0);
    return v;
}

static int emit_reduction(lowering *l, const ir_node *n) {
    const ir_source *s = sources(l->r, n);
    etch_dtype acc = n->reduce.acc, out = etch__compute_type(n->dtype);
    int stage = l->r->versions[n->out].stage, of = stage - 1;
    int v = emit_element(l, n, of, s->meta.dtype, operand(l, n, s, of));
    prim_instr p = {.type = (uint8_t)acc, .a = (int16_t)v};
    p.imm.i = etch__reduction(n->reduce.kind)->fold;
    v = emit(l, LOOP_REDUCE, stage, p);
    if (n->reduce.kind == REDUCE_MEAN) {
        int count = emit_prim(l, stage, PRIM_NREDUCED, acc, acc, 0, 0);
        v = emit_prim(l, stage, PRIM_DIV, acc, acc, v, count);
    }
    if (acc != out) v = emit_prim(l, stage, PRIM_CONVERT, out, acc, v, 0);
    return emit_round(l, stage, n->dtype, v);
}

/* Along the group's axes, which may cut the elements in another way (pass_spaces.c). */
static bool strides_of_stage(const lowering *l, const ir_source *s, int stage, int64_t *stride) {
    int64_t size[ETCH_MAX_DIMS];
    int n = 0;
    for (int a = 0; a < l->g->naxes; a++)
        if (!(stage % 2 && l->g->mask >> a & 1)) size[n++] = l->g->size[a];
    return etch__map_over(s, &s->meta, n, size, stride);
}

static void store(lowering *l, const ir_node *n) {
    const ir_version *v = &l->r->versions[n->out];
    if (!n->write && !v->stored) return;
    int stage = v->stage;
    int64_t of_stage[ETCH_MAX_DIMS], stride[ETCH_MAX_DIMS] = {0};
    ir_source whole = {n->out, v->base, true, v->meta};
    const ir_source *target = n->write ? &n->target : &whole;
    if (!strides_of_stage(l, target, stage, of_stage)) {
        l->failed = true;
        return;
    }
    spread(l, of_stage, stage, stride);
    emit_access(l, target, stride, true, stage, find_value(l, n->out, stage));
}

static void emit_members(lowering *l) {
    const ir *r = l->r;
    for (int m = 0; m < l->g->nmembers && !l->failed; m++) {
        const ir_node *n = &r->nodes[l->g->members[m]];
        if (n->kind == IR_CALL) continue; /* a product, which the others load */
        int stage = r->versions[n->out].stage;
        int code = n->kind == IR_REDUCE ? emit_reduction(l, n) : emit_program(l, n, stage);
        keep_value(l, n->out, stage, code);
    }
    for (int m = 0; m < l->g->nmembers && !l->failed; m++) store(l, &r->nodes[l->g->members[m]]);
}

/* ---- axes ---- */

/* Of elements: that of a row plays no part in how elements are gone over. */
static bool has_index(const loop_kernel *k) {
    for (int i = 0; i < k->ncode; i++) {
        const loop_instr *c = &k->code[i];
        if (c->kind == LOOP_PRIM && c->p.prim == PRIM_INDEX && c->stage % 2 == 0) return true;
    }
    return false;
}

/* Whether the kernel follows the tiles of a product: its rows are those of the product, its
 * innermost axis the columns. */
static bool by_tiles(const lowering *l) { return l->g->nmatmuls && l->r->target->matmuls.wide; }

/* The access that stands for the result of a product of the group, from `from` on; -1: none. */
static int product_access(const lowering *l, int from) {
    for (int i = from; i < l->k->naccesses; i++) {
        const ir_version *v = &l->r->versions[l->out->address[i].version];
        if (v->node < 0 || l->k->access[i].store) continue;
        const ir_node *n = &l->r->nodes[v->node];
        if (n->kind == IR_CALL && &l->r->groups[n->group] == l->g) return i;
    }
    return -1;
}

/* Parallel axes, then reduced ones; in a map, those along which the first store strides most first,
 * or what stands for a product does. */
static void order_axes(lowering *l) {
    int n = 0, first = -1;
    for (int a = 0; a < l->g->naxes; a++)
        if (!(l->g->mask >> a & 1)) l->axis[n++] = a;
    l->k->npar = (uint8_t)n;
    for (int a = 0; a < l->g->naxes; a++)
        if (l->g->mask >> a & 1) l->axis[n++] = a;
    l->k->nred = (uint8_t)(n - l->k->npar);
    if (has_index(l->k)) return;
    for (int i = 0; i < l->k->naccesses && first < 0; i++)
        if (l->k->access[i].store) first = i;
    if (by_tiles(l)) first = product_access(l, 0);
    if (l->k->nred || first < 0) return;
    for (int i = 1; i < n; i++)
        for (int j = i; j > 0; j--) {
            int a = l->axis[j - 1], b = l->axis[j];
            if (l->stride[first][a] >= l->stride[first][b]) break;
            l->axis[j - 1] = b, l->axis[j] = a;
        }
}

static void apply_order(lowering *l) {
    int64_t old[ETCH_MAX_DIMS];
    for (int i = 0; i < l->naxes; i++) l->extent[i] = l->g->size[l->axis[i]];
    for (int k = 0; k < l->k->naccesses; k++) {
        memcpy(old, l->stride[k], sizeof old);
        for (int i = 0; i < l->naxes; i++) l->stride[k][i] = old[l->axis[i]];
    }
}

static bool mergeable(const lowering *l, int i) {
    if (i + 1 == l->k->npar) return false;
    for (int k = 0; k < l->k->naccesses; k++)
        if (l->stride[k][i] != l->stride[k][i + 1] * l->extent[i + 1]) return false;
    return true;
}

/* Axis i with the next one. */
static void merge_axis(lowering *l, int i) {
    l->extent[i] *= l->extent[i + 1];
    int rest = l->naxes - i - 2;
    memmove(&l->extent[i + 1], &l->extent[i + 2], rest * sizeof l->extent[0]);
    for (int k = 0; k < l->k->naccesses; k++)
        memmove(&l->stride[k][i], &l->stride[k][i + 1], (rest + 1) * sizeof l->stride[k][0]);
    l->naxes--;
    if (i < l->k->npar) l->k->npar--;
    else l->k->nred--;
}

/* Where the tiles that a kernel follows are of planes, these are one axis. */
static void merge_planes(lowering *l) {
    const ir_version *v = &l->r->versions[l->out->address[product_access(l, 0)].version];
    const tensor_meta *c = &v->meta;
    if (l->r->nodes[v->node].op != OP_CONVOLUTION || etch__channels_innermost(c)) return;
    if (c->size[2] > 1 && c->size[3] > 1) merge_axis(l, l->naxes - 2);
}

static void merge_axes(lowering *l) {
    for (int i = l->naxes - 2; i >= 0; i--)
        if (mergeable(l, i)) merge_axis(l, i);
    if (l->naxes) return;
    l->extent[0] = 1;
    for (int k = 0; k < l->k->naccesses; k++) l->stride[k][0] = 0;
    l->naxes = l->k->npar = 1;
}

/* Rows where the innermost reduced axis has the unit strides, columns where a parallel one has;
 * what goes over its rows again is made of rows. */
static void choose_variant(lowering *l) {
    int row = 0, column = 0;
    loop_kernel *k = l->k;
    k->variant = LOOP_MAP;
    if (!k->nred) return;
    k->variant = LOOP_ROW;
    if (by_tiles(l)) return;
    for (int i = 0; i < k->ncode; i++) {
        const loop_instr *c = &k->code[i];
        if (c->stage % 2 || (c->kind != LOOP_LOAD && c->kind != LOOP_STORE)) continue;
        int access = (int)c->p.imm.i;
        int bytes = (int)etch_dtype_size(k->access[access].dtype);
        int64_t along = llabs(l->stride[access][l->naxes - 1]);
        int64_t across = k->npar ? llabs(l->stride[access][k->npar - 1]) : 0;
        bool both = l->r->device == ETCH_CPU && !l->r->g->dynamic && along && across;
        if (along == 1 || (both && along < across)) row += bytes;
        if (across == 1 || (both && across < along)) column += bytes;
    }
    k->variant = column > row && etch__loop_last_stage(k) < 2 ? LOOP_COLUMN : LOOP_ROW;
}

/* Whether memory is read across the rows of a map. */
static bool runs_across(const lowering *l) {
    for (int k = 0; k < l->k->naccesses; k++) {
        int64_t along = l->stride[k][l->naxes - 1], across = l->stride[k][l->naxes - 2];
        if (across == 1 && (along > 1 || along < -1)) return true;
    }
    return false;
}

/* Where sizes are run-time values, what they are plays no part: one kernel does for all. */
static void choose_map_tile(lowering *l) {
    enum { SHORT_ROW = 128, ENOUGH = 8 };
    bool any = l->r->g->dynamic;
    int64_t inner = l->extent[l->naxes - 1];
    int64_t outer = l->naxes > 1 ? l->extent[l->naxes - 2] : 1;
    if (l->naxes < 2 || (!any && outer < 2)) return;
    bool enough = any || (outer >= ENOUGH && inner >= ENOUGH);
    if (!has_index(l->k) && enough && runs_across(l)) l->k->tile = TILE_TURNED;
    else if (any || inner < SHORT_ROW) l->k->tile = TILE_ROWS;
}

/* Rows of few elements are done many at a time, as columns; columns that are few in tiles. */
static void choose_column_tile(lowering *l) {
    loop_kernel *k = l->k;
    int64_t reduced = 1, columns = k->npar ? l->extent[k->npar - 1] : 1;
    for (int i = k->npar; i < l->naxes; i++) reduced *= l->extent[i];
    if (!k->npar || l->r->g->dynamic || has_index(k) || etch__loop_last_stage(k) > 1 || columns < 2)
        return;
    if (k->variant == LOOP_ROW && (reduced >= REDUCE_LANES || columns < 8)) return;
    if (k->variant == LOOP_COLUMN && columns >= TILE_COLUMNS) return;
    k->variant = LOOP_COLUMN, k->tile = TILE_ROWS;
}

/* Tiles are for the CPU: a device has other ways. */
static void choose_tile(lowering *l) {
    if (l->r->device != ETCH_CPU || by_tiles(l)) return;
    if (l->k->variant == LOOP_MAP) choose_map_tile(l);
    else choose_column_tile(l);
}

static void class_steps(lowering *l) {
    memcpy(l->out->dims, l->extent, l->naxes * sizeof l->extent[0]);
    for (int k = 0; k < l->k->naccesses; k++)
        for (int i = 0; i < l->naxes; i++) {
            int64_t s = l->stride[k][i];
            l->k->access[k].step[i] = (uint8_t)(s == 0 ? STEP_ZERO : s == 1 ? STEP_ONE : STEP_VAR);
            l->out->dims[l->naxes * (k + 1) + i] = s;
        }
}

/* ---- work ---- */

/* In plain instructions on one element: what a thread should get at least. */
enum { RANGE_WORK = 1 << 19 };

static int64_t element_work(const loop_kernel *k) {
    int64_t work = 0;
    for (int i = 0; i < k->ncode; i++)
        work += k->code[i].kind == LOOP_PRIM ? etch__prim_cost(k->code[i].p.prim) : 1;
    return work;
}

static int64_t unit_work(const lowered *out) {
    const loop_kernel *k = &out->k;
    int64_t reduced = 1, width = 1;
    if (k->variant == LOOP_MAP && k->tile) {
        int64_t columns;
        etch__loop_tile(k, out->dims, &width, &columns);
        if (width > out->dims[k->npar - 2]) width = out->dims[k->npar - 2];
        width *= columns;
    } else if (k->variant != LOOP_ROW) {
        width = out->dims[k->npar - 1];
        if (width > STRIP) width = STRIP;
    }
    for (int i = k->npar; i < k->npar + k->nred; i++) reduced *= out->dims[i];
    if (k->split == SPLIT_PARTIAL && reduced > REDUCE_BLOCK) reduced = REDUCE_BLOCK;
    if (k->split == SPLIT_FINISH) reduced = (reduced + REDUCE_BLOCK - 1) / REDUCE_BLOCK, width = 1;
    int64_t work = reduced * width * element_work(k);
    return work > 0 ? work : 1;
}

static void count_work(lowered *out) {
    out->units = etch__loop_units(&out->k, out->dims);
    out->grain = RANGE_WORK / unit_work(out);
    if (out->grain < 1) out->grain = 1;
}

static void choose_split(lowered *out) {
    int64_t reduced = 1, parallel = 1;
    for (int i = 0; i < out->k.npar; i++) parallel *= out->dims[i];
    for (int i = 0; i < out->k.nred; i++) reduced *= out->dims[out->k.npar + i];
    if (!out->k.nred || etch__loop_last_stage(&out->k) > 1 ||
        !etch__loop_splits(out->units, parallel, reduced))
        return;
    out->k.split = SPLIT_PARTIAL;
    out->split = true;
    out->scratch = 8 * etch__loop_scratch_cells(&out->k, out->dims);
    count_work(out);
}

void etch__lower_finish(const lowered *partial, lowered *out) {
    *out = *partial;
    out->k.split = SPLIT_FINISH;
    count_work(out);
}

/* ---- products ---- */

static void note_matmul(lowering *l, int access, const ir_node *n) {
    const ir_source *a = sources(l->r, n), *b = a + 1;
    joined_matmul *m = &l->out->matmul[l->out->nmatmuls++];
    l->k->access[access].sums = l->r->target->matmuls.wide && a->meta.dtype == ETCH_BF16;
    *m = (joined_matmul){.access = access,
                         .m = a->meta.size[0],
                         .n = b->meta.size[1],
                         .k = a->meta.size[1],
                         .a = address_of(l->r, a),
                         .b = address_of(l->r, b),
                         .a_row = a->meta.stride[0],
                         .a_col = a->meta.stride[1],
                         .b_row = b->meta.stride[0],
                         .b_col = b->meta.stride[1],
                         .dtype = a->meta.dtype,
                         .bias = {.version = -1}};
    if (n->op != OP_CONVOLUTION) return;
    m->conv = l->r->g->attrs + l->r->g->nodes[n->gnode].at;
    m->a_meta = a->meta, m->b_meta = b->meta, m->c_meta = l->r->versions[n->out].meta;
    if (a[2].version >= 0) m->bias = address_of(l->r, a + 2), m->bias_meta = a[2].meta;
}

/* Members that are products, by the access that stands for each. */
static void note_matmuls(lowering *l) {
    for (int i = -1; (i = product_access(l, i + 1)) >= 0;) {
        if (l->out->nmatmuls == JOIN_MAX) l->failed = true;
        else note_matmul(l, i, &l->r->nodes[l->r->versions[l->out->address[i].version].node]);
    }
}

/* "step_0_k2_add_relu_sin" */
static void name_kernel(const lowering *l, int32_t group) {
    char *name = l->k->name;
    size_t cap = sizeof l->k->name;
    int n = snprintf(name, cap, "%.24s_k%d", l->r->g->name, group);
    for (int m = 0; m < l->g->nmembers; m++) {
        const char *op = etch__ops[l->r->nodes[l->g->members[m]].op].name;
        int length = (int)strcspn(op, ".");
        if (n + length + 2 > (int)cap) break;
        n += snprintf(name + n, cap - n, "_%.*s", length, op);
    }
    for (char *c = name; *c; c++)
        if (!isalnum((unsigned char)*c)) *c = '_';
    if (isdigit((unsigned char)*name)) *name = '_';
}

etch_status etch__lower(const ir *r, int32_t group, lowered *out) {
    lowering *l = etch__arena_zeroed(r->memory, sizeof *l);
    if (!l) return ETCH_ERR_OUT_OF_MEMORY;
    memset(out, 0, sizeof *out);
    l->r = r, l->g = &r->groups[group], l->out = out, l->k = &out->k;
    l->naxes = l->g->naxes;
    l->k->any_mode = r->g->any_mode;
    out->operands = r->target->matmuls.wide ? 4 : 2;
    name_kernel(l, group);
    emit_members(l);
    bool ok = !l->failed;
    if (ok) {
        order_axes(l);
        apply_order(l);
        (by_tiles(l) ? merge_planes : merge_axes)(l);
        choose_variant(l);
        choose_tile(l);
        class_steps(l);
        count_work(out);
        if (!by_tiles(l)) choose_split(out);
        note_matmuls(l);
        ok = !l->failed && out->k.naccesses + out->operands * out->nmatmuls <= LOOP_MAX_ACCESSES;
    }
    return ok ? ETCH_OK : ETCH_ERR_UNSUPPORTED;
}
