/* Random graphs: native against eager, bit for bit.
 *
 * A graph is grown operator by operator; what inference rejects is left out. Reads, views, writes
 * through views, products, reductions and constants come in any order over a few small shapes, so
 * that dependences and hazards meet in ways that nobody would write down. Arguments: graphs, first
 * seed.
 * Labels: optimised. */
#include "jit/ir/ir.h"
#include "plan_util.h"

enum { MAX_VALUES = 200 };

typedef struct grower {
    graph *g;
    int64_t at[OP_MAX_ATTRS];
    int nat;
    etch_scalar sc[OP_MAX_SCALARS];
    int nsc;
} grower;

static void word(grower *w, int64_t v) { w->at[w->nat++] = v; }

static int any_value(const grower *w) {
    int n = w->g->nvalues; /* late values more often */
    return test_below(3) ? n - 1 - test_below(n < 6 ? n : 6) : test_below(n);
}

/* Appends the operator if the operands fit. */
static bool add(grower *w, op_id op, int nin, const int32_t *operands) {
    etch_tensor t[3], *in[3];
    tensor_meta m;
    memset(t, 0, sizeof t);
    for (int i = 0; i < nin; i++) {
        etch__apply_meta(&t[i], &w->g->values[operands[i]].meta);
        t[i].magic = TENSOR_ALIVE;
        in[i] = &t[i];
    }
    const op_info *info = &etch__ops[op];
    if (info->flags & OPF_CLASS) word(w, etch__op_class(info, w->sc, w->nsc, w->at));
    op_call call = {.op = (uint16_t)op,
                    .nin = (uint16_t)nin,
                    .nsc = (uint8_t)w->nsc,
                    .nat = (uint8_t)w->nat,
                    .in = in,
                    .sc = w->sc,
                    .at = w->at};
    if (etch__infer(&call, &m, NULL) != ETCH_OK) return false;
    int64_t numel = 1;
    for (int d = 0; d < m.ndim; d++) numel *= m.size[d];
    return numel <= 60000 && etch__graph_add_node(w->g, &call, operands, &m) >= 0;
}

static void begin(grower *w) { w->nat = w->nsc = 0; }

static void alpha(grower *w) {
    w->sc[w->nsc++] = test_below(3) ? etch_scalar_int(1) : etch_scalar_int(2);
}

static void number(grower *w) {
    w->sc[w->nsc++] = test_below(2) ? etch_scalar_real(0.5) : etch_scalar_int(3);
}

static void grow_unary(grower *w) {
    static const op_id ops[] = {OP_NEG,  OP_ABS,     OP_RELU,  OP_SQRT,        OP_EXP,   OP_SIN,
                                OP_TANH, OP_SIGMOID, OP_CLONE, OP_LOGICAL_NOT, OP_RSQRT, OP_LOG};
    int32_t in = any_value(w);
    add(w, ops[test_below(COUNT_OF(ops))], 1, &in);
}

static void grow_binary(grower *w) {
    static const op_id ops[] = {OP_ADD_TENSOR, OP_SUB_TENSOR, OP_MUL_TENSOR, OP_DIV_TENSOR,
                                OP_MAXIMUM,    OP_MINIMUM,    OP_LT_TENSOR,  OP_EQ_TENSOR};
    op_id op = ops[test_below(COUNT_OF(ops))];
    int32_t in[2] = {any_value(w), any_value(w)};
    if (op == OP_ADD_TENSOR || op == OP_SUB_TENSOR) alpha(w);
    add(w, op, 2, in);
}

static void grow_scalar(grower *w) {
    static const op_id ops[] = {OP_MUL_SCALAR, OP_DIV_SCALAR, OP_LT_SCALAR, OP_ADD_SCALAR,
                                OP_RSUB_SCALAR};
    op_id op = ops[test_below(COUNT_OF(ops))];
    int32_t in = any_value(w);
    number(w);
    if (op == OP_ADD_SCALAR || op == OP_RSUB_SCALAR) alpha(w);
    add(w, op, 1, &in);
}

static void grow_where(grower *w) {
    int32_t in[3] = {any_value(w), any_value(w), any_value(w)};
    add(w, OP_WHERE, 3, in);
}

static void grow_cast(grower *w) {
    static const etch_dtype dtypes[] = {ETCH_F32, ETCH_F32, ETCH_F64, ETCH_BF16,
                                        ETCH_F16, ETCH_I32, ETCH_BOOL};
    int32_t in = any_value(w);
    word(w, dtypes[test_below(COUNT_OF(dtypes))]);
    add(w, OP_TO_COPY, 1, &in);
}

static void grow_reduction(grower *w) {
    int32_t in = any_value(w);
    int ndim = w->g->values[in].meta.ndim, mask = 1 + test_below((1 << (ndim ? ndim : 1)) - 1);
    op_id op = (op_id[]){OP_SUM_DIM, OP_MEAN_DIM, OP_AMAX, OP_AMIN}[test_below(4)];
    if (ndim == 0) return;
    word(w, __builtin_popcount(mask));
    for (int d = 0; d < ndim; d++)
        if (mask >> d & 1) word(w, d);
    word(w, test_below(2));
    if (op == OP_SUM_DIM || op == OP_MEAN_DIM) word(w, -1);
    add(w, op, 1, &in);
}

static void grow_product(grower *w) {
    int32_t in[2] = {any_value(w), any_value(w)};
    for (int tries = 0; tries < 8; tries++, in[1] = any_value(w)) {
        begin(w);
        if (add(w, test_below(4) ? OP_MM : OP_MV, 2, in)) return;
    }
}

static void grow_view(grower *w) {
    int32_t in = any_value(w);
    const tensor_meta *m = &w->g->values[in].meta;
    int d = m->ndim ? test_below(m->ndim) : 0;
    int64_t n = m->ndim ? m->size[d] : 0, numel = 1;
    for (int i = 0; i < m->ndim; i++) numel *= m->size[i];
    switch (test_below(8)) {
    case 0: add(w, OP_T, 1, &in); return;
    case 1:
        if (n < 2) return;
        word(w, d), word(w, test_below(2)), word(w, n - test_below(2)), word(w, 1 + test_below(2));
        add(w, OP_SLICE, 1, &in);
        return;
    case 2:
        if (n < 1) return;
        word(w, d), word(w, test_below((int)n));
        add(w, OP_SELECT, 1, &in);
        return;
    case 3: word(w, test_below(m->ndim + 1)), add(w, OP_UNSQUEEZE, 1, &in); return;
    case 4: add(w, OP_SQUEEZE, 1, &in); return;
    case 5: word(w, 1), word(w, numel), add(w, OP_VIEW, 1, &in); return;
    case 6:
        word(w, m->ndim + 1 <= 4 ? m->ndim + 1 : m->ndim);
        if (m->ndim + 1 <= 4) word(w, 3);
        for (int i = 0; i < m->ndim; i++) word(w, m->size[i] == 1 ? 4 : m->size[i]);
        add(w, OP_EXPAND, 1, &in);
        return;
    default:
        if (m->ndim < 2) return;
        word(w, d), word(w, (d + 1) % m->ndim);
        add(w, OP_TRANSPOSE, 1, &in);
        return;
    }
}

static void grow_write(grower *w) {
    static const op_id ops[] = {OP_ADD_TENSOR_, OP_MUL_TENSOR_,  OP_COPY_, OP_RELU_, OP_ZERO_,
                                OP_MUL_SCALAR_, OP_FILL_SCALAR_, OP_SIN_,  OP_NEG_};
    op_id op = ops[test_below(COUNT_OF(ops))];
    int32_t in[2] = {any_value(w), any_value(w)};
    int nin = op == OP_ADD_TENSOR_ || op == OP_MUL_TENSOR_ || op == OP_COPY_ ? 2 : 1;
    if (etch__map_overlaps_itself(&w->g->values[in[0]].meta)) return;
    if (op == OP_ADD_TENSOR_) alpha(w);
    if (op == OP_COPY_) word(w, 0);
    if (op == OP_MUL_SCALAR_ || op == OP_FILL_SCALAR_) number(w);
    add(w, op, nin, in);
}

static void grow_constant(grower *w) {
    op_id op = (op_id[]){OP_ZEROS, OP_ONES, OP_FULL, OP_ARANGE}[test_below(4)];
    if (op == OP_ARANGE) {
        for (int i = 0; i < 3; i++) w->sc[w->nsc++] = etch_scalar_int((int[]){2, 7, 1}[i]);
        word(w, -1);
    } else {
        word(w, 2), word(w, 6), word(w, 5);
        if (op == OP_FULL) number(w);
        word(w, ETCH_F32);
    }
    add(w, op, 0, NULL);
}

static void grow_call(grower *w) {
    int32_t in[2] = {any_value(w), any_value(w)};
    word(w, 0);
    if (test_below(2)) add(w, OP_CAT, 2, in);
    else word(w, 0), add(w, OP_ARGMAX, 1, in);
}

typedef void (*grow_fn)(grower *w);
static const grow_fn kinds[] = {
    grow_unary, grow_unary, grow_unary,     grow_binary,    grow_binary,  grow_binary, grow_scalar,
    grow_where, grow_cast,  grow_reduction, grow_reduction, grow_product, grow_view,   grow_view,
    grow_view,  grow_write, grow_write,     grow_constant,  grow_call};

static void add_inputs(grower *w) {
    static const int sizes[][4] = {{2, 6, 5}, {1, 5},       {2, 6, 1}, {2, 5, 6},
                                   {0},       {3, 4, 6, 5}, {2, 5, 5}};
    int n = 2 + test_below(4),
        scale = test_below(4) ? 1 : 13; /* 13: several blocks, library products */
    for (int i = 0; i < n; i++) {
        const int *s = sizes[test_below(COUNT_OF(sizes))];
        tensor_meta m = {.ndim = (uint8_t)s[0]};
        m.dtype = (uint8_t)(test_below(4) ? ETCH_F32
                                          : (int[]){ETCH_F64, ETCH_BF16, ETCH_I32}[test_below(3)]);
        for (int d = 0; d < m.ndim; d++) m.size[d] = s[d + 1] == 1 ? 1 : s[d + 1] * scale;
        etch__row_major(m.ndim, m.size, m.stride);
        if (m.ndim == 2 && !test_below(4)) m.stride[0] = 1, m.stride[1] = m.size[0] + test_below(2);
        int v = etch__graph_add_input(w->g, &m);
        if (v && !test_below(8) && m.dtype == w->g->values[0].meta.dtype) w->g->values[v].base = 0;
    }
}

/* Bases among the computed values become outputs; all those that are written or late, others by
 * luck. */
static void add_outputs(grower *w) {
    graph *g = w->g;
    for (int v = g->ninputs; v < g->nvalues; v++) {
        bool empty = g->nodes[g->values[v].node].op == OP_EMPTY;
        if (g->values[v].base != v || empty) continue;
        if (v + 4 > g->nvalues || !test_below(5)) etch__graph_add_output(g, v);
    }
}

static graph *random_graph(uint64_t seed) {
    char name[32];
    snprintf(name, sizeof name, "random/%d", (int)seed);
    grower w = {.g = etch__graph_new(name)};
    test_random_state = seed * 0x9e3779b97f4a7c15u + 1;
    for (int i = 0; i < 8; i++) test_random();
    add_inputs(&w);
    int n = 4 + test_below(36);
    for (int i = 0; i < n && w.g->nvalues < MAX_VALUES; i++) {
        begin(&w);
        kinds[test_below(COUNT_OF(kinds))](&w);
    }
    add_outputs(&w);
    return w.g;
}

static int graphs = 40, first_seed = 1;

TEST(random_graphs_agree) {
    for (int i = 0; i < graphs; i++) {
        graph *g = random_graph(first_seed + i);
        etch_clear_error();
        char *text = etch__graph_text(g);
        graph *again = etch__graph_parse(text);
        if (!again) fail_msg("%s\n%s", etch_last_error(), text);
        assert_true(etch__graph_equal(g, again));
        check_graph(again, -1, -1);
        etch__graph_free(again);
        etch__free(text);
        etch__graph_free(g);
    }
}

int main(int argc, char **argv) {
    if (argc > 1) graphs = atoi(argv[1]);
    if (argc > 2) first_seed = atoi(argv[2]);
    return run_suite(argc, argv);
}
