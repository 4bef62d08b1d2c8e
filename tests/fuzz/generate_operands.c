/* What statements of random programs are made of: the setup, tensors that are there, arguments of
 * operators. */
#include "core/ops/rules.h"
#include "generator.h"

#include <math.h>
#include <string.h>

/* ---- the setup ---- */

/* Twins have another dtype with, mostly, the same arithmetic. */
etch_dtype gen_own_dtype(const generator *g, etch_dtype dtype) {
    static const uint8_t twin[ETCH_DTYPE_COUNT] = {
        [ETCH_F32] = ETCH_F16,  [ETCH_F64] = ETCH_F64, [ETCH_BF16] = ETCH_F32,
        [ETCH_F16] = ETCH_BF16, [ETCH_I8] = ETCH_I16,  [ETCH_I16] = ETCH_I32,
        [ETCH_I32] = ETCH_U8,   [ETCH_U8] = ETCH_I8,   [ETCH_I64] = ETCH_I64,
        [ETCH_BOOL] = ETCH_BOOL};
    return g->twin ? twin[dtype] : dtype;
}

static etch_dtype some_dtype(generator *g) {
    if (g->grads && !chance(g, 4)) return gen_own_dtype(g, chance(g, 4) ? below(g, 4) : ETCH_F32);
    return gen_own_dtype(g, chance(g, 2) ? ETCH_F32 : below(g, ETCH_DTYPE_COUNT));
}

static void generate_sizes(generator *g) {
    static const int64_t sizes[] = {2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17, 31, 33};
    static const int64_t large[] = {63,  64,  65,  66,  96,  127,  128,  129,
                                    255, 256, 257, 511, 513, 1025, 4096, 4097}; /* strips, blocks */
    fuzz_setup *s = &g->p->setup;
    for (int set = 0; set < FUZZ_MAX_SETS; set++)
        for (int i = 0; i < FUZZ_MAX_SIZES; i++) {
            int64_t n = sizes[below(g, i == 1 ? 13 : 8)];
            if (i == 0 && chance(g, g->launches ? 1 : 3)) n = large[below(g, 16)];
            if (set && chance(g, 2)) n = s->size[0][i];
            if (set && chance(g, 12)) n = 1;
            s->size[set][i] = i == 4 ? 1 : i == 5 ? 0 : n;
        }
}

/* Elements of what the input lies in, about: some layouts give an empty one a few rows. */
static int64_t numel(const fuzz_setup *s, const fuzz_input *in, int set) {
    int64_t n = 1;
    for (int i = 0; i < in->ndim; i++) {
        int64_t size = s->size[set][in->size[i]];
        n *= size ? size : 3;
    }
    return n;
}

static void generate_input(generator *g, fuzz_input *in, int index) {
    static const uint8_t ndims[] = {2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 3, 3, 3, 0, 0, 4};
    const fuzz_setup *s = &g->p->setup;
    memset(in, 0, sizeof *in);
    in->dtype = (uint8_t)some_dtype(g);
    in->ndim = ndims[below(g, sizeof ndims)];
    for (int i = 0; i < 4; i++)
        in->size[i] = (uint8_t)(chance(g, 12) ? 4 : chance(g, 40) ? 5 : below(g, 4));
    if (chance(g, 4)) memset(in->size, in->size[1], sizeof in->size); /* it fits itself turned */
    for (int set = 0; set < FUZZ_MAX_SETS; set++)
        for (int i = 0; i < in->ndim && numel(s, in, set) > 8192; i++) in->size[i] = 4;
    in->layout = (uint8_t)(chance(g, 2) ? FUZZ_CONTIGUOUS : below(g, FUZZ_SAME));
    in->wild = chance(g, 3);
    in->persistent = chance(g, 2);
    in->feed = (int8_t)(chance(g, 6) ? below(g, FUZZ_MAX_OUTPUTS) : -1);
    if (chance(g, 8)) in->plain = (uint8_t)below(g, 8);
    if (chance(g, 10)) in->other = (uint8_t)below(g, 8), in->other_dtype = (uint8_t)some_dtype(g);
    if (g->grads) in->leaf = (uint8_t)(chance(g, 3) ? 0 : chance(g, 4) ? below(g, 8) : 7);
    in->base_leaf = in->leaf && !s->creates && !in->persistent && chance(g, 5);
    if (s->creates) in->feed = -1, in->persistent = 0; /* nothing has a history of a call before */
    if (!index || !chance(g, 5)) return;
    int of = (int)below(g, index);
    bool shift = s->in[of].layout == FUZZ_OFFSET || s->in[of].layout == FUZZ_WRAPPED;
    uint8_t layout = shift ? FUZZ_SHIFTED : FUZZ_SAME;
    *in = s->in[of];
    in->layout = layout, in->of = (uint8_t)of, in->persistent = 0, in->feed = -1;
    in->plain = (uint8_t)(chance(g, 2) ? 0 : below(g, 8));
}

/* The limit, and writes to exposed memory, are errors under fullgraph only. */
static void without_fullgraph_errors(fuzz_setup *s) {
    s->recompile_limit = 64;
    for (int i = 0; i < FUZZ_MAX_INPUTS; i++) {
        if (s->in[i].layout == FUZZ_WRAPPED) s->in[i].layout = FUZZ_CONTIGUOUS;
        if (s->global[i].layout == FUZZ_WRAPPED) s->global[i].layout = FUZZ_CONTIGUOUS;
        if (s->in[i].layout == FUZZ_SHIFTED && s->in[s->in[i].of].layout != FUZZ_OFFSET)
            s->in[i].layout = FUZZ_SAME;
        if (s->in[i].layout == FUZZ_OVER) s->in[i].layout = FUZZ_SAME;
    }
}

/* The last argument is wrapped memory, which is that of the first one: two storages, of which
 * nothing but their addresses tells that a write to one is seen in the other. */
static void generate_overlap(fuzz_setup *s) {
    fuzz_input *last = &s->in[s->nin - 1];
    if (s->nin < 2 || !s->in[0].ndim || s->in[0].layout > FUZZ_OFFSET) return;
    if (s->in[0].layout != FUZZ_OFFSET) s->in[0].layout = FUZZ_CONTIGUOUS;
    *last = s->in[0];
    last->layout = FUZZ_OVER, last->of = 0, last->persistent = 0, last->feed = -1;
}

void gen_setup(generator *g, uint64_t seed) {
    fuzz_setup *s = &g->p->setup;
    s->seed = seed;
    s->period = 1 + (int)below(g, g->small ? 2 : FUZZ_MAX_VARIANTS);
    s->ncalls = s->period == 1 ? 5 : 3 * s->period;
    if (g->grads) s->ncalls += s->period; /* gradients are absent at first */
    generate_sizes(g);
    for (int i = 0; i < FUZZ_MAX_VARIANTS; i++) s->set[i] = (uint8_t)(chance(g, 2) ? i : 0);
    s->grads = g->grads;
    s->creates = g->grads && chance(g, 4);
    s->nin = 1 + (int)below(g, FUZZ_MAX_INPUTS);
    s->nglobals = (int)below(g, 3);
    for (int i = 0; i < s->nin; i++) generate_input(g, &s->in[i], i);
    for (int i = 0; i < s->nglobals; i++) {
        generate_input(g, &s->global[i], 0);
        if (!chance(g, 6)) continue;
        s->global[i].of = (uint8_t)below(g, s->nin);
        s->global[i].plain = (uint8_t)(chance(g, 2) ? 0 : below(g, 8));
        s->global[i].layout = FUZZ_SAME, s->global[i].persistent = 0, s->global[i].feed = -1;
    }
    if (chance(g, 10)) generate_overlap(s);
    s->dynamic = (uint8_t)(chance(g, 3) ? below(g, 3) : ETCH_DYNAMIC_AUTO);
    s->stable_after = (uint8_t)(chance(g, 10) ? 2 : 0);
    s->recompile_limit = (uint8_t)(chance(g, 12) ? 2 : 64);
    g->breaks = g->launches ? chance(g, 4) : !chance(g, 3);
    s->fullgraph = !g->breaks && chance(g, 4);
    if (s->fullgraph) without_fullgraph_errors(s);
    s->fails = (uint8_t)(chance(g, 30) ? below(g, 8) : 0);
    g->all = (uint8_t)((1u << s->period) - 1);
}

/* ---- tensors ---- */

bool gen_usable(const generator *g, int n) {
    return n < g->nvars && g->w.v[n] && !(g->when & ~g->defined[n]);
}

/* A tensor, rather a late one or an argument. -1: none. */
int gen_some_tensor(generator *g) {
    int given = g->p->setup.nin + g->p->setup.nglobals;
    for (int attempt = 0; attempt < 40; attempt++) {
        int n = (int)below(g, g->nvars);
        if (chance(g, 2)) n = g->nvars - 1 - (int)below(g, 6);
        if (chance(g, 4)) n = (int)below(g, given);
        bool wanted = !g->grads || chance(g, 2) || (n >= 0 && etch_requires_grad(g->w.v[n]));
        if (n >= 0 && gen_usable(g, n) && wanted) return n;
    }
    return gen_usable(g, 0) ? 0 : -1;
}

/* One of the dtype, for operators that do not promote. */
int gen_some_tensor_of(generator *g, etch_dtype dtype, int ndim) {
    int found = -1;
    for (int n = 0, seen = 0; n < g->nvars; n++)
        if (gen_usable(g, n) && etch_dtype_of(g->w.v[n]) == dtype && etch_ndim(g->w.v[n]) == ndim &&
            below(g, ++seen) == 0)
            found = n;
    return found >= 0 ? found : gen_some_tensor(g);
}

/* An argument that is, or lies over, another one in some variant; -1: none. */
int gen_some_alias(generator *g) {
    const fuzz_setup *s = &g->p->setup;
    int found = -1, seen = 0;
    for (int i = 0; i < s->nin + s->nglobals; i++) {
        const fuzz_input *in = i < s->nin ? &s->in[i] : &s->global[i - s->nin];
        bool aliases = in->layout >= FUZZ_SAME;
        if (aliases && below(g, ++seen) == 0) found = chance(g, 2) ? i : in->of;
    }
    return found >= 0 && gen_usable(g, found) ? found : -1;
}

/* What an in-place operator writes: rather a view, or what has one, or an argument given twice. */
int gen_some_target(generator *g) {
    int alias = chance(g, 2) ? gen_some_alias(g) : -1;
    if (alias >= 0) return alias;
    int n = gen_some_tensor(g);
    for (int attempt = 0; attempt < 8 && n >= 0 && !g->is_view[n]; attempt++)
        n = gen_some_tensor(g);
    return n;
}

static int some_matrix(generator *g, int ndim) {
    int n = -1;
    for (int attempt = 0; attempt < 20; attempt++) {
        n = gen_some_tensor(g);
        if (n >= 0 && etch_ndim(g->w.v[n]) == ndim) return n;
    }
    return n;
}

/* ---- attributes ---- */

fuzz_int gen_plain(int64_t v) { return (fuzz_int){.v = v, .of = -1}; }
fuzz_int gen_size_of(int tensor, int dim) {
    return (fuzz_int){.of = (int8_t)tensor, .dim = (int8_t)dim};
}

etch_scalar gen_some_scalar(generator *g) {
    static const double reals[] = {0.5,      2,         3,     -1,   1,     0,     -0.5,
                                   2.5,      1.7,       -0.1,  1e-3, 1e10,  -0.0,  NAN,
                                   INFINITY, -INFINITY, 1e-41, 1e39, 255.5, 0.333, 7};
    static const int64_t ints[] = {0,   1,    2,   3,    -1,        -7,        5,
                                   127, -128, 255, 1000, INT64_MAX, INT64_MIN, 2147483647};
    switch (below(g, 8)) {
    case 0: return etch_scalar_bool(chance(g, 2));
    case 1:
    case 2:
    case 3: return etch_scalar_int(ints[below(g, chance(g, 3) ? 14 : 7)]);
    default: return etch_scalar_real(reals[below(g, chance(g, 3) ? 21 : 12)]);
    }
}

static int64_t some_dim(generator *g, const etch_tensor *t) {
    int n = t ? etch_ndim(t) : 2;
    if (chance(g, 60)) return n + below(g, 3);
    return below(g, 2 * n) - n;
}

static void sizes_like(fuzz_arg *a, int tensor, const etch_tensor *t) {
    a->n = etch_ndim(t);
    for (int i = 0; i < a->n; i++) a->number[i] = gen_size_of(tensor, i);
}

/* Sizes of a new tensor: those of another one, or small. */
void gen_creation_sizes(generator *g, fuzz_arg *a) {
    int like = gen_some_tensor(g);
    if (like >= 0 && !chance(g, 4)) {
        sizes_like(a, like, g->w.v[like]);
        return;
    }
    a->n = (int)below(g, 4);
    for (int i = 0; i < a->n; i++) a->number[i] = gen_plain(below(g, 5) + (chance(g, 8) ? 0 : 1));
}

/* For view and reshape: dimensions merged, split off, or made of the others'. */
static void view_sizes(generator *g, fuzz_arg *a, int tensor) {
    const etch_tensor *t = g->w.v[tensor];
    sizes_like(a, tensor, t);
    int n = a->n;
    switch (below(g, 4)) {
    case 0: a->n = 1, a->number[0] = gen_plain(-1); break;
    case 1: /* merge two neighbours */
        if (n < 2) break;
        n = (int)below(g, n - 1);
        a->number[n] = gen_plain(-1);
        for (int i = n + 1; i + 1 < a->n; i++) a->number[i] = a->number[i + 1];
        a->n--;
        break;
    case 2: /* split off a factor */
        a->n = 2;
        a->number[0] = gen_plain(chance(g, 2) ? 2 : 3), a->number[1] = gen_plain(-1);
        break;
    default: /* in another order */
        for (int i = 0; i < n / 2; i++) {
            fuzz_int first = a->number[i];
            a->number[i] = a->number[n - 1 - i], a->number[n - 1 - i] = first;
        }
    }
}

static void expand_sizes(generator *g, fuzz_arg *a, int tensor) {
    const etch_tensor *t = g->w.v[tensor];
    sizes_like(a, tensor, t);
    int like = gen_some_tensor(g);
    for (int i = 0; i < a->n; i++)
        if (etch_size(t, i) == 1 && like >= 0 && etch_ndim(g->w.v[like]) > 0)
            a->number[i] = chance(g, 2) ? gen_plain(1 + below(g, 5))
                                        : gen_size_of(like, (int)below(g, etch_ndim(g->w.v[like])));
        else if (chance(g, 3)) a->number[i] = gen_plain(-1);
    if (!chance(g, 3) || a->n > 3) return;
    memmove(a->number + 1, a->number, (size_t)a->n * sizeof *a->number);
    a->number[0] = gen_plain(chance(g, 10) ? 0 : 1 + below(g, 4));
    a->n++;
}

static void permutation(generator *g, fuzz_arg *a, int n) {
    a->n = n;
    for (int i = 0; i < n; i++) {
        int k = (int)below(g, i + 1);
        a->number[i] = a->number[k], a->number[k] = gen_plain(i);
    }
}

static void some_dims(generator *g, fuzz_arg *a, const etch_tensor *t) {
    int n = etch_ndim(t);
    a->absent = chance(g, 6);
    a->n = 0;
    for (int i = 0; i < n; i++)
        if (chance(g, 2)) a->number[a->n++] = gen_plain(chance(g, 3) ? i - n : i);
}

/* The last sizes of the input. */
static void normalized_sizes(generator *g, fuzz_arg *a, int tensor, const etch_tensor *t) {
    int n = etch_ndim(t), most = n ? 1 + (int)below(g, n) : 0;
    a->n = most;
    for (int i = 0; i < most; i++) a->number[i] = gen_size_of(tensor, n - most + i);
}

/* Strides, padding and dilation of convolutions: one value for both dimensions, or two. */
static void some_pair(generator *g, fuzz_arg *a, const char *name) {
    a->n = 1 + (int)below(g, 2);
    for (int i = 0; i < a->n; i++)
        a->number[i] = gen_plain(below(g, 3) + (strcmp(name, "padding") != 0));
}

bool gen_is_pool(op_id op) {
    return op == OP_MAX_POOL2D || op == OP_MAX_POOL2D_INDICES || op == OP_AVG_POOL2D ||
           op == OP_AVG_POOL2D_BACKWARD;
}

bool gen_is_backward(op_id op) {
    return op == OP_CONVOLUTION_BACKWARD_INPUT || op == OP_CONVOLUTION_BACKWARD_WEIGHT;
}

/* What the input's channels and the weight's ask for, mostly. */
static fuzz_int some_groups(generator *g, const statement *s) {
    const etch_tensor *x = g->w.v[s->arg[0].tensor[0]], *w = g->w.v[s->arg[1].tensor[0]];
    bool fits = etch_ndim(x) == 4 && etch_ndim(w) == 4 && etch_size(w, 1) > 0;
    if (gen_is_backward(s->op)) return gen_plain(1);
    if (!fits || chance(g, 5)) return gen_plain(chance(g, 3) ? 2 : 1);
    return gen_plain(etch_size(x, 1) / etch_size(w, 1));
}

/* Of what a convolution without stride, padding and groups passes back. */
static void backward_sizes(generator *g, op_id op, fuzz_arg *a, const statement *s) {
    int grad = s->arg[0].tensor[0], other = s->arg[1].tensor[0];
    const etch_tensor *out = g->w.v[grad], *in = g->w.v[other];
    bool weight = op == OP_CONVOLUTION_BACKWARD_WEIGHT;
    a->n = 4;
    if (etch_ndim(out) != 4 || etch_ndim(in) != 4) return;
    a->number[0] = gen_size_of(grad, weight ? 1 : 0), a->number[1] = gen_size_of(other, 1);
    for (int d = 2; d < 4; d++) {
        int64_t n = etch_size(out, d), m = etch_size(in, d);
        a->number[d] = gen_plain(weight ? m - n + 1 : m + n - 1);
    }
}

static void backward_list(generator *g, op_id op, const char *name, fuzz_arg *a,
                          const statement *s) {
    if (strstr(name, "size")) {
        backward_sizes(g, op, a, s);
        return;
    }
    a->n = 1;
    a->number[0] = gen_plain(strcmp(name, "padding") != 0);
}

/* Of means over windows of two by two. */
static void pooled_list(generator *g, const char *name, fuzz_arg *a, int grad) {
    const etch_tensor *t = g->w.v[grad];
    a->n = 1, a->number[0] = gen_plain(!strcmp(name, "padding") ? 0 : 2);
    if (strcmp(name, "input_size")) return;
    a->n = etch_ndim(t);
    for (int d = 0; d < a->n; d++)
        a->number[d] = gen_plain(etch_size(t, d) * (d < a->n - 2 ? 1 : 2));
}

static void some_ints(generator *g, op_id op, const char *name, fuzz_arg *a, const statement *s) {
    int self = s->arg[0].tensor[0];
    const etch_tensor *t = g->w.v[self];
    switch (op) {
    case OP_VIEW:
    case OP_RESHAPE: view_sizes(g, a, self); break;
    case OP_EXPAND: expand_sizes(g, a, self); break;
    case OP_PERMUTE: permutation(g, a, etch_ndim(t)); break;
    case OP_NATIVE_LAYER_NORM:
    case OP_LAYER_NORM: normalized_sizes(g, a, self, t); break;
    case OP_CONVOLUTION:
    case OP_CONV2D:
    case OP_MAX_POOL2D:
    case OP_MAX_POOL2D_INDICES:
    case OP_AVG_POOL2D: some_pair(g, a, name); break;
    case OP_AVG_POOL2D_BACKWARD: pooled_list(g, name, a, self); break;
    case OP_ATTENTION_KEPT:
        a->n = 2 + (int)below(g, 2);
        for (int d = 0; d < a->n; d++) a->number[d] = gen_plain(below(g, 6));
        break;
    case OP_CONVOLUTION_BACKWARD_INPUT:
    case OP_CONVOLUTION_BACKWARD_WEIGHT: backward_list(g, op, name, a, s); break;
    default:
        if (etch__ops[op].kind == KIND_CREATION) gen_creation_sizes(g, a);
        else some_dims(g, a, t);
    }
}

/* Bounds of a slice and the index of select, else a dimension. */
static fuzz_int some_int(generator *g, const char *name, const statement *s) {
    const etch_tensor *t = g->w.v[s->arg[0].tensor[0]];
    if (!strcmp(name, "step")) {
        static const int64_t steps[] = {1, 1, 1, 2, 3, -1, -1, -2, -3};
        return gen_plain(steps[below(g, 9)]);
    }
    if (!strcmp(name, "groups")) return some_groups(g, s);
    /* Not -1, the largest index: with wild ones that is more than there is memory. */
    if (!strcmp(name, "divisor_override")) return gen_plain(chance(g, 2) ? 0 : 3);
    if (!strcmp(name, "num_classes")) return gen_plain(below(g, 12));
    if (!strcmp(name, "device")) return gen_plain(chance(g, 8) ? ETCH_CUDA(70) : ETCH_CPU);
    if (strcmp(name, "start") && strcmp(name, "end") && strcmp(name, "index"))
        return gen_plain(some_dim(g, t));
    int64_t dim = s->arg[1].number[0].v, n = 3;
    if (dim < etch_ndim(t) && dim >= -etch_ndim(t)) n = etch_size(t, (int)dim);
    if (*name == 'i') return gen_plain(chance(g, 60) ? n + 1 : below(g, 2 * n) - n);
    return gen_plain(below(g, 2 * n + 4) - n - 2);
}

bool gen_is_contraction(op_id op) { return etch__ops[op].kind == KIND_CONTRACTION; }

/* Ranks of the operands of products. */
static int contraction_rank(op_id op, int operand) {
    switch (op) {
    case OP_BMM: return 3;
    case OP_DOT: return 1;
    case OP_MV: return operand ? 1 : 2;
    default: return 2;
    }
}

int gen_some_integers(generator *g) {
    int n = gen_some_tensor(g);
    for (int i = 0; i < 20 && n >= 0 && etch_dtype_of(g->w.v[n]) <= ETCH_F16; i++)
        n = gen_some_tensor(g);
    return n;
}

/* Which operand selects; -1: none. */
int gen_mask_operand(op_id op) {
    return op == OP_WHERE ? 0 : op == OP_MASKED_FILL || op == OP_MASKED_FILL_ ? 1 : -1;
}

/* One of the input's last sizes: weight or bias of a norm. */
static int some_weight(generator *g, const statement *s) {
    const etch_tensor *t = g->w.v[s->arg[0].tensor[0]];
    const fuzz_arg *sizes = &s->arg[1];
    int found = -1;
    for (int n = 0, seen = 0; n < g->nvars; n++) {
        if (!gen_usable(g, n) || etch_ndim(g->w.v[n]) != sizes->n ||
            etch_dtype_of(g->w.v[n]) != etch_dtype_of(t))
            continue;
        bool same = true;
        for (int d = 1; d <= sizes->n; d++) same &= etch_size(g->w.v[n], -d) == etch_size(t, -d);
        if (same && below(g, ++seen) == 0) found = n;
    }
    return found >= 0 ? found : gen_some_tensor(g);
}

bool gen_is_attention(op_id op) {
    return op == OP_SCALED_DOT_PRODUCT_ATTENTION || (op >= OP_ATTENTION && op <= OP_ATTENTION_KEPT);
}

/* What was made for it, by the operand's place. */
static int attended(const generator *g, op_id op, int operand) {
    static const int backward[] = {5, 5, 0, 1, 2, 3, 4};
    if (op == OP_ATTENTION_KEPT) return g->attended[4];
    return g->attended[op == OP_ATTENTION_BACKWARD ? backward[operand] : operand];
}

static int tensor_operand(generator *g, op_id op, const statement *s, int operand) {
    bool bits = etch__ops[op].drule == DRULE_BITS || etch__ops[op].drule == DRULE_INTEGER;
    if (bits) return gen_some_integers(g);
    if (operand == gen_mask_operand(op) && g->mask >= 0) return g->mask;
    if (gen_is_attention(op) && attended(g, op, operand) >= 0) return attended(g, op, operand);
    if (operand && g->divisor >= 0 && etch__ops[op].flags & OPF_MAY_FAIL) return g->divisor;
    bool norm = op == OP_NATIVE_LAYER_NORM || op == OP_LAYER_NORM;
    bool convolution = op == OP_CONVOLUTION || op == OP_CONV2D || gen_is_backward(op);
    if (operand && norm) return some_weight(g, s);
    if (gen_is_pool(op)) return some_matrix(g, chance(g, 2) ? 3 : 4);
    if (convolution && !operand) return some_matrix(g, 4);
    if (convolution)
        return gen_some_tensor_of(g, etch_dtype_of(g->w.v[s->arg[0].tensor[0]]),
                                  operand == 1 ? 4 : 1);
    if (!operand && etch__ops[op].kind == KIND_INPLACE && chance(g, 2)) return gen_some_target(g);
    int alias = chance(g, 8) ? gen_some_alias(g) : -1;
    if (alias >= 0) return alias;
    bool same = etch__ops[op].drule == DRULE_SAME || op == OP_MATMUL;
    if (!gen_is_contraction(op) && !(op == OP_MATMUL && operand))
        return operand && same
                   ? gen_some_tensor_of(g, etch_dtype_of(g->w.v[s->arg[0].tensor[0]]), 2)
                   : gen_some_tensor(g);
    int rank = contraction_rank(op, operand);
    if (!operand) return some_matrix(g, rank);
    return gen_some_tensor_of(g, etch_dtype_of(g->w.v[s->arg[0].tensor[0]]), rank);
}

static bool some_tensors(generator *g, fuzz_arg *a) {
    a->n = 1 + (int)below(g, 3);
    for (int i = 0; i < a->n; i++)
        if ((a->tensor[i] = gen_some_tensor(g)) < 0) return false;
    for (int i = 1; i < a->n; i++)
        if (chance(g, 3)) a->tensor[i] = a->tensor[0];
    return true;
}

bool gen_some_argument(generator *g, statement *s, int i, const schema_arg *schema, int *operand) {
    fuzz_arg *a = &s->arg[i];
    memset(a, 0, sizeof *a);
    switch ((arg_type)schema->type) {
    case ARG_TENSOR_OPT:
        if ((a->absent = chance(g, 2))) return ++*operand, true;
        /* fall through */
    case ARG_TENSOR:
        a->n = 1;
        return (a->tensor[0] = tensor_operand(g, s->op, s, (*operand)++)) >= 0;
    case ARG_TENSORS: return some_tensors(g, a);
    case ARG_SCALAR:
        a->scalar = gen_some_scalar(g);
        /* The number of elements of an arange is not to get out of hand. */
        if (s->op == OP_ARANGE)
            a->scalar = etch_scalar_int(i == 1 ? below(g, 12) : i ? 1 : below(g, 3));
        else if (!strcmp(schema->name, "alpha") && chance(g, 2)) a->scalar = schema->value;
        else a->varies = chance(g, 3);
        return true;
    case ARG_INT_OPT: a->absent = chance(g, 3); /* fall through */
    case ARG_INT: a->number[0] = some_int(g, schema->name, s); return true;
    case ARG_INTS:
    case ARG_INTS_OPT: some_ints(g, s->op, schema->name, a, s); return true;
    case ARG_BOOL: a->number[0] = gen_plain(below(g, 2)); return true;
    case ARG_DTYPE_OPT:
        a->absent = !strcmp(schema->name, "dtype") && chance(g, 3); /* fall through */
    default: a->number[0] = gen_plain(some_dtype(g)); return true;
    }
}
