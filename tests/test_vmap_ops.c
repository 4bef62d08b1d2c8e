/* Every operator mapped over a batch, by the samples of grad_samples.h and those below: against a
 * loop over the samples, with the batch at every place, at two levels, compiled, and with gradients
 * inside and outside. Labels: long. */
#include <etch/etch.h>

#include "grad_values.h"

/* ---- operators that have no derivative ---- */

SAMPLE(ISNAN, etch_isnan(x[0]), V(3, 4))
SAMPLE(BITWISE_NOT, etch_bitwise_not(x[0]), I(7, 3, 4))
SAMPLE(LOGICAL_XOR, etch_logical_xor(x[0], x[1]), B(3, 4), B(4))
SAMPLE(BITWISE_AND_TENSOR, etch_bitwise_and(x[0], x[1]), I(7, 3, 4), I(5, 4))
SAMPLE(BITWISE_AND_SCALAR, etch_bitwise_and_scalar(x[0], 3), I(7, 3, 4))
SAMPLE(BITWISE_OR_TENSOR, etch_bitwise_or(x[0], x[1]), I(7, 3, 4), I(5, 4))
SAMPLE(BITWISE_OR_SCALAR, etch_bitwise_or_scalar(x[0], 3), I(7, 3, 4))
SAMPLE(BITWISE_XOR_TENSOR, etch_bitwise_xor(x[0], x[1]), I(7, 3, 4), I(5, 4))
SAMPLE(BITWISE_XOR_SCALAR, etch_bitwise_xor_scalar(x[0], 3), I(7, 3, 4))
SAMPLE(LEFT_SHIFT_TENSOR, etch_left_shift(x[0], x[1]), I(7, 3, 4), I(5, 4))
SAMPLE(LEFT_SHIFT_SCALAR, etch_left_shift_scalar(x[0], 2), I(7, 3, 4))
SAMPLE(RIGHT_SHIFT_TENSOR, etch_right_shift(x[0], x[1]), I(7, 3, 4), I(3, 4))
SAMPLE(RIGHT_SHIFT_SCALAR, etch_right_shift_scalar(x[0], 1), I(7, 3, 4))
SAMPLE(EQ_TENSOR, etch_eq(x[0], x[1]), I(3, 3, 4), I(3, 4))
SAMPLE(EQ_SCALAR, etch_eq_scalar(x[0], 1), I(3, 3, 4))
SAMPLE(NE_TENSOR, etch_ne(x[0], x[1]), I(3, 3, 4), I(3, 4))
SAMPLE(NE_SCALAR, etch_ne_scalar(x[0], 1), I(3, 3, 4))
SAMPLE(LT_TENSOR, etch_lt(x[0], x[1]), V(3, 4), V(4))
SAMPLE(LT_SCALAR, etch_lt_scalar(x[0], 0.1), V(3, 4))
SAMPLE(LE_TENSOR, etch_le(x[0], x[1]), V(3, 4), V(4))
SAMPLE(LE_SCALAR, etch_le_scalar(x[0], 0.1), V(3, 4))
SAMPLE(GT_TENSOR, etch_gt(x[0], x[1]), V(3, 4), V(4))
SAMPLE(GT_SCALAR, etch_gt_scalar(x[0], 0.1), V(3, 4))
SAMPLE(GE_TENSOR, etch_ge(x[0], x[1]), V(3, 4), V(4))
SAMPLE(GE_SCALAR, etch_ge_scalar(x[0], 0.1), V(3, 4))
SAMPLE(LOGICAL_NOT, etch_logical_not(x[0]), B(3, 4))
SAMPLE(LOGICAL_AND, etch_logical_and(x[0], x[1]), B(3, 4), B(4))
SAMPLE(LOGICAL_OR, etch_logical_or(x[0], x[1]), B(3, 4), B(4))
SAMPLE(SIGNBIT, etch_signbit(x[0]), V(3, 4))
SAMPLE(ISINF, etch_isinf(x[0]), V(3, 4))
SAMPLE(ISFINITE, etch_isfinite(x[0]), V(3, 4))
SAMPLE(ARGMAX, etch_argmax(x[0]), V(3, 4))
SAMPLE(ARGMAX, etch_argmax_dim(x[0], 1, true), V(3, 4))
SAMPLE(ARGMAX, etch_argmax_dim(x[0], -2, false), V(3, 4))
SAMPLE(ARGMAX, etch_argmax(x[0]), V())
SAMPLE(ARGMIN, etch_argmin(x[0]), V(3, 4))
SAMPLE(ARGMIN, etch_argmin_dim(x[0], 0, false), V(3, 4))
SAMPLE(MAX_POOL2D_INDICES, etch_max_pool2d_indices(x[0], S(2), S(1), S(1), S(1), false), V(2, 3, 4))
SAMPLE(MAX_POOL2D_INDICES, etch_max_pool2d_indices(x[0], S(2, 1), S(0), S(0), S(1), true),
       V(2, 2, 3, 4))
SAMPLE(ATTENTION_KEPT, etch_attention_kept_raw(etch_to(x[0], ETCH_F64), S(2, 3, 4), 0.4), V(1))
SAMPLE(DETACH, etch_detach(x[0]), V(3, 4))
SAMPLE(ANY, etch_any(x[0]), B(3, 4))
SAMPLE(ANY, etch_any_dim(x[0], S(0), false), B())
SAMPLE(ALL, etch_all_dim(x[0], S(1), true), B(3, 4))
SAMPLE(COUNT_NONZERO, etch_count_nonzero_dim(x[0], S(0)), I(3, 3, 4))
SAMPLE(ONE_HOT, etch_one_hot(x[0], 5), I(5, 3))
SAMPLE(QUANTIZE_SCALES, etch_quantize_scales(etch_to(x[0], ETCH_F32), 4, 8), V(3, 16))
SAMPLE(QUANTIZE_WEIGHT,
       etch_quantize_weight(etch_to(x[0], ETCH_F32), etch_to(etch_abs(x[1]), ETCH_F32), 8), V(3, 6),
       V(1, 3))
SAMPLE(DEQUANTIZE_WEIGHT,
       etch_dequantize_weight(etch_to(x[0], ETCH_U8), etch_to(x[1], ETCH_F32), 8),
       I(9, 1, 1, 16, 4), V(1, 3))
SAMPLE(DEQUANTIZE_WEIGHT,
       etch_dequantize_weight(etch_to(x[0], ETCH_U8), etch_to(x[1], ETCH_BF16), 8),
       I(9, 1, 1, 16, 4), V(1, 3))
SAMPLE(NONZERO, etch_nonzero(x[0]), I(3, 4))

/* Samples of no dimensions, which must not lend the batch to a dimension, nor change the dtype. */
SAMPLE(ADD_TENSOR, etch_add(x[0], etch_to(x[1], ETCH_F64)), V(3), V())
SAMPLE(ADD_TENSOR, etch_add(etch_to(x[0], ETCH_F16), etch_to(x[1], ETCH_F64)), V(3), V())
SAMPLE(MUL_TENSOR, etch_mul(x[0], etch_to(x[1], ETCH_F64)), I(5, 3), V())
SAMPLE(WHERE, etch_where(x[0], etch_to(x[1], ETCH_F32), etch_to(x[2], ETCH_F64)), B(2), V(2), V())
SAMPLE(WHERE, etch_where(x[0], x[1], x[2]), B(), V(2), V())
SAMPLE(GT_TENSOR, etch_gt(x[0], x[1]), I(5, 3), V())
SAMPLE(ADD_TENSOR_, etch_add_(etch_to(x[0], ETCH_F32), etch_to(x[1], ETCH_F64)), V(3), V())
SAMPLE(SQUEEZE, etch_squeeze(x[0]), V())
SAMPLE(TRANSPOSE, etch_transpose(x[0], 0, -1), V())
SAMPLE(ANY, etch_any(x[0]), B())
SAMPLE(LOGSUMEXP, etch_logsumexp(x[0], S(0), false), V())
SAMPLE(VAR, etch_var_dim(x[0], ETCH_ALL_DIMS, 0, false), V())
SAMPLE(SCATTER_ADD, etch_scatter_add(x[0], 0, x[1], x[2]), V(), I(1), V())
SAMPLE(INDEX_ADD, etch_index_add(x[0], 0, x[1], x[2]), V(), I(1, 1), V())
SAMPLE(INDEX_PUT, etch_index_put(x[0], x[1], x[2], true), V(4, 2), I_SAME(2, 3), V(2, 3, 2))

#define EACH_SAMPLE(s) for (const sample *s = samples; s; s = s->next)

/* ---- what is mapped ---- */

enum { AT_ONCE = 3 };

/* Which operands are mapped at a level, and where the samples are in each. */
typedef struct mapping {
    unsigned operands;
    int64_t size;
    unsigned turn; /* chooses the places */
} mapping;

static int place_of(const mapping *m, int k, int ndim) {
    return (int)((m->turn + (unsigned)k) % (unsigned)(ndim + 1));
}

/* The operands of sample b: numbers of the same kind, others in another order. */
static void make_numbered(const sample *s, int64_t b, etch_tensor **x) {
    operands o;
    fill(&o, s, (uint64_t)b);
    make(&o, ETCH_F64, ROW_MAJOR, false, x);
    for (int k = 0; k < o.n; k++) {
        bool turned = b % 2 && x[k] != ETCH_NONE && etch_ndim(x[k]) && strchr("ib", s->in[k].kind);
        if (turned) x[k] = etch_flip(x[k], ETCH_DIMS(-1));
    }
}

static int count_operands(const sample *s) {
    int n = 0;
    while (n < SAMPLE_INPUTS && s->in[n].kind) n++;
    return n;
}
static unsigned tensors_of(const sample *s) {
    unsigned mask = 0;
    for (int k = 0; k < count_operands(s); k++)
        if (s->in[k].kind != 'n') mask |= 1u << k;
    return mask;
}

/* Operands for a batch: the mapped ones are stacked; in_dims says where. */
static void make_batch(const sample *s, const mapping *m, int64_t first, etch_tensor **x,
                       etch_dims *in_dims) {
    etch_tensor *each[SAMPLE_INPUTS], *parts[SAMPLE_INPUTS][AT_ONCE];
    int n = count_operands(s);
    make_numbered(s, first, x);
    for (int64_t b = 0; b < m->size; b++) {
        make_numbered(s, first + b, each);
        for (int k = 0; k < n; k++) parts[k][b] = each[k];
    }
    in_dims->n = n;
    for (int k = 0; k < n; k++) {
        in_dims->v[k] = ETCH_UNMAPPED;
        if (!(m->operands >> k & 1)) continue;
        int ndim = etch_ndim(x[k]), place = s->laid ? 0 : place_of(m, k, ndim);
        x[k] = etch_stack(parts[k], (int)m->size, place);
        in_dims->v[k] = (m->turn + (unsigned)k) % 2 ? place - ndim - 1 : place;
    }
}

static ETCH_FN_N(body, ctx, in, nin, out, nout) {
    const sample *s = ctx;
    etch_tensor *x[SAMPLE_INPUTS];
    memcpy(x, in, (size_t)nin * sizeof *x);
    out[0] = s->call(x);
    return out[0] ? ETCH_OK : etch_last_status();
}

/* A loop over the samples. */
static etch_tensor *looped(const sample *s, const mapping *m, etch_tensor *const *x,
                           const etch_dims *dims, int out_dim) {
    etch_tensor *y[AT_ONCE];
    for (int64_t b = 0; b < m->size; b++) {
        etch_tensor *one[SAMPLE_INPUTS];
        for (int k = 0; k < dims->n; k++)
            one[k] = dims->v[k] == ETCH_UNMAPPED ? x[k] : etch_select(x[k], dims->v[k], b);
        if (!(y[b] = s->call(one))) return NULL;
    }
    return etch_stack(y, (int)m->size, out_dim);
}

/* ---- comparing ---- */

static void wrong(const sample *s, const mapping *m, const char *what) {
    fail_msg("%s, line %d, %s, operands %x, turn %u: %s\n%s", etch__ops[s->op].name, s->line,
             s->text, m->operands, m->turn, what, etch_last_error());
}

static bool has_same_bits(const sample *s) {
    uint8_t kind = etch__ops[s->op].kind;
    return kind == KIND_POINTWISE || kind == KIND_VIEW || kind == KIND_INPLACE;
}

static void check_close(const sample *s, const mapping *m, etch_tensor *got, etch_tensor *want) {
    etch_shape a = etch_sizes(got), b = etch_sizes(want);
    if (a.n != b.n || memcmp(a.v, b.v, (size_t)a.n * sizeof *a.v)) wrong(s, m, "sizes");
    if (etch_dtype_of(got) != etch_dtype_of(want)) wrong(s, m, "dtype");
    if (etch_equal(got, want)) return;
    if (has_same_bits(s)) wrong(s, m, "bits");
    etch_tensor *difference = etch_sub(etch_to(got, ETCH_F64), etch_to(want, ETCH_F64));
    if (etch_item(etch_amax(etch_abs(difference), ETCH_ALL_DIMS, false)) > 1e-9)
        wrong(s, m, "values");
}

/* What a mapped function cannot do: write into what is not mapped, and read. */
static bool may_fail(const sample *s, const mapping *m) {
    bool writes = etch__ops[s->op].kind == KIND_INPLACE && !(m->operands & 1);
    bool by_mask = s->in[1].kind == 'b' && m->operands >> 1 & 1 &&
                   (s->op == OP_INDEX || s->op == OP_MASKED_SELECT);
    return writes || by_mask || s->op == OP_NONZERO;
}

static etch_tensor *mapped(const sample *s, const mapping *m, etch_tensor *const *x,
                           const etch_dims *dims, int out_dim) {
    etch_function *f = etch_vmap(ETCH_CALLABLE(body, (void *)s), *dims, ETCH_DIMS(out_dim));
    etch_tensor *y = NULL;
    etch_clear_error();
    etch_call_n(f, x, dims->n, &y, 1);
    etch_function_free(f);
    if (y && may_fail(s, m)) wrong(s, m, "it does not fail");
    if (!y && (!may_fail(s, m) || etch_last_status() != ETCH_ERR_BATCHED)) wrong(s, m, "it fails");
    etch_clear_error();
    return y;
}

/* ---- one level ---- */

static void check_mapping(const sample *s, const mapping *m) {
    ETCH_SCOPE {
        etch_tensor *x[SAMPLE_INPUTS];
        etch_dims dims;
        make_batch(s, m, 0, x, &dims);
        etch_tensor *y = mapped(s, m, x, &dims, 0);
        if (y) check_close(s, m, y, looped(s, m, x, &dims, 0));
        int last = y ? etch_ndim(y) - 1 : 0;
        if (last) check_close(s, m, mapped(s, m, x, &dims, -1), looped(s, m, x, &dims, last));
    }
}

TEST(each_operator_maps_as_a_loop_does) {
    EACH_SAMPLE(s)
    for (unsigned mask = 1; mask <= tensors_of(s); mask++) {
        if (mask & ~tensors_of(s)) continue;
        for (unsigned turn = 0; turn < 3; turn++) check_mapping(s, &(mapping){mask, AT_ONCE, turn});
        check_mapping(s, &(mapping){mask, 1, 1});
    }
}

/* ---- two levels ---- */

typedef struct nested {
    const sample *s;
    const mapping *inner;
    etch_dims dims;
} nested;

static ETCH_FN_N(inner_body, ctx, in, nin, out, nout) {
    const nested *n = ctx;
    return (out[0] = mapped(n->s, n->inner, in, &n->dims, 0)) ? ETCH_OK : ETCH_ERR_BATCHED;
}

/* Batches of the inner level are stacked once more. */
static void check_nested(const sample *s, const mapping *outer, const mapping *inner) {
    ETCH_SCOPE {
        etch_tensor *x[SAMPLE_INPUTS], *each[AT_ONCE][SAMPLE_INPUTS], *want[AT_ONCE], *y = NULL;
        nested n = {s, inner, {0}};
        etch_dims outer_dims = {.n = count_operands(s)};
        for (int64_t b = 0; b < outer->size; b++) make_batch(s, inner, 5 * b, each[b], &n.dims);
        for (int k = 0; k < outer_dims.n; k++) {
            etch_tensor *parts[AT_ONCE];
            bool maps = outer->operands >> k & 1;
            for (int64_t b = 0; b < outer->size; b++) {
                if (!maps) each[b][k] = each[0][k];
                parts[b] = each[b][k];
            }
            x[k] = maps ? etch_stack(parts, (int)outer->size, 0) : each[0][k];
            outer_dims.v[k] = maps ? 0 : ETCH_UNMAPPED;
        }
        for (int64_t b = 0; b < outer->size; b++) want[b] = looped(s, inner, each[b], &n.dims, 0);
        etch_function *f = etch_vmap(ETCH_CALLABLE(inner_body, &n), outer_dims, ETCH_DIMS(0));
        etch_call_n(f, x, outer_dims.n, &y, 1);
        etch_function_free(f);
        if (!y) wrong(s, outer, "two levels fail");
        check_close(s, outer, y, etch_stack(want, (int)outer->size, 0));
    }
}

TEST(two_levels_map_as_two_loops_do) {
    EACH_SAMPLE(s) {
        unsigned all = tensors_of(s);
        mapping both = {all, 2, 0}, first = {1, 2, 1}, others = {all & ~1u, 3, 0};
        if (may_fail(s, &both)) continue;
        check_nested(s, &both, &both);
        check_nested(s, &first, &both);
        bool apart = others.operands && !may_fail(s, &others);
        if (apart) check_nested(s, &first, &others);
        if (apart) check_nested(s, &others, &first);
    }
}

/* ---- compiled ---- */

typedef struct compiled_call {
    const sample *s;
    etch_dims dims;
} compiled_call;

static ETCH_FN_N(compiled_body, ctx, in, nin, out, nout) {
    const compiled_call *c = ctx;
    const mapping m = {tensors_of(c->s), 0, 0};
    return (out[0] = mapped(c->s, &m, in, &c->dims, 0)) ? ETCH_OK : ETCH_ERR_BATCHED;
}

TEST(compiled_it_is_one_graph_with_the_same_bits) {
    EACH_SAMPLE(s) {
        mapping m = {tensors_of(s), AT_ONCE, 2};
        if (may_fail(s, &m)) continue;
        ETCH_SCOPE {
            etch_tensor *x[SAMPLE_INPUTS];
            compiled_call c = {s, {0}};
            make_batch(s, &m, 0, x, &c.dims);
            etch_tensor *want = mapped(s, &m, x, &c.dims, 0), *y = NULL;
            etch_function *f =
                etch_compile(compiled_body, .ctx = &c, .fullgraph = true, .backend = "aot_eager");
            for (int i = 0; i < 3; i++) {
                etch_call_n(f, x, c.dims.n, &y, 1);
                if (!y || !etch_equal(y, want)) wrong(s, &m, "compiled");
            }
            etch_function_free(f);
        }
    }
}

/* ---- gradients ---- */

/* The gradients of the sum of squares of the result, by operand that has one. */
static int gradients(const sample *s, etch_tensor *const *in, etch_tensor **to) {
    etch_tensor *x[SAMPLE_INPUTS], *leaf[SAMPLE_INPUTS];
    int n = 0;
    for (int k = 0; k < count_operands(s); k++) {
        x[k] = in[k];
        if (wants_grad(&s->in[k])) x[k] = leaf[n++] = etch_requires_grad_(etch_detach(in[k]), true);
    }
    etch_tensor *y = s->call(x), *loss = y ? etch_sum(etch_square(y)) : NULL;
    etch_grad_options options = {.struct_size = sizeof options, .allow_unused = true};
    if (!loss || etch_grad(&loss, 1, leaf, n, NULL, &options, to) != ETCH_OK) return -1;
    for (int k = 0; k < n; k++)
        if (!to[k]) to[k] = etch_zeros(etch_dtype_of(leaf[k]), etch_sizes(leaf[k]));
    return n;
}

static int count_leaves(const sample *s) {
    int n = 0;
    for (int k = 0; k < count_operands(s); k++) n += wants_grad(&s->in[k]);
    return n;
}

static ETCH_FN_N(gradients_body, ctx, in, nin, out, nout) {
    etch_tensor *to[SAMPLE_INPUTS];
    if (gradients(ctx, in, to) < 0) return etch_last_status();
    memcpy(out, to, (size_t)nout * sizeof *out);
    return ETCH_OK;
}

/* Those that can be differentiated: their results are of reals, and no operand is an integer that
 * would have to be one. */
static bool has_gradients(const sample *s) {
    etch_tensor *x[SAMPLE_INPUTS], *to[SAMPLE_INPUTS];
    bool has = false;
    ETCH_SCOPE {
        make_numbered(s, 0, x);
        has = count_leaves(s) && gradients(s, x, to) > 0;
        etch_clear_error();
    }
    return has;
}

static void check_gradient(const sample *s, const mapping *m, etch_tensor *got, etch_tensor *want) {
    etch_shape a = etch_sizes(got), b = etch_sizes(want);
    if (a.n != b.n || memcmp(a.v, b.v, (size_t)a.n * sizeof *a.v)) wrong(s, m, "gradient's sizes");
    if (!etch_numel(got)) return;
    double most = etch_item(etch_amax(etch_abs(etch_sub(got, want)), ETCH_ALL_DIMS, false));
    double bound = strstr(s->text, "F16") ? 0.1 : strstr(s->text, "F32") ? 1e-4 : 1e-8;
    if (!(most < bound)) wrong(s, m, "gradients");
}

/* etch_grad inside: for each sample by itself. */
static void check_inside(const sample *s, const mapping *m) {
    ETCH_SCOPE {
        etch_tensor *x[SAMPLE_INPUTS], *got[SAMPLE_INPUTS], *want[SAMPLE_INPUTS][AT_ONCE];
        etch_dims dims;
        int n = count_leaves(s);
        make_batch(s, m, 0, x, &dims);
        etch_function *f = etch_vmap(ETCH_CALLABLE(gradients_body, (void *)s), dims, ETCH_DIMS(0));
        if (etch_call_n(f, x, dims.n, got, n) != ETCH_OK) wrong(s, m, "gradients inside fail");
        etch_function_free(f);
        for (int64_t b = 0; b < m->size; b++) {
            etch_tensor *one[SAMPLE_INPUTS], *to[SAMPLE_INPUTS];
            for (int k = 0; k < dims.n; k++)
                one[k] = dims.v[k] == ETCH_UNMAPPED ? x[k] : etch_select(x[k], dims.v[k], b);
            assert_int_equal(gradients(s, one, to), n);
            for (int k = 0; k < n; k++) want[k][b] = to[k];
        }
        for (int k = 0; k < n; k++)
            check_gradient(s, m, got[k], etch_stack(want[k], (int)m->size, 0));
    }
}

/* The gradients of whole batches, through a mapped call or a loop. */
static void whole_gradients(const sample *s, const mapping *m, etch_tensor *const *x,
                            const etch_dims *dims, bool by_loop, etch_tensor **to) {
    etch_tensor *in[SAMPLE_INPUTS], *leaf[SAMPLE_INPUTS];
    int n = 0;
    for (int k = 0; k < dims->n; k++) {
        in[k] = x[k];
        if (wants_grad(&s->in[k])) in[k] = leaf[n++] = etch_requires_grad_(etch_detach(x[k]), true);
    }
    etch_tensor *y = by_loop ? looped(s, m, in, dims, 0) : mapped(s, m, in, dims, 0);
    etch_tensor *loss = y ? etch_sum(etch_square(y)) : NULL;
    etch_grad_options options = {.struct_size = sizeof options, .allow_unused = true};
    if (!loss || etch_grad(&loss, 1, leaf, n, NULL, &options, to) != ETCH_OK)
        wrong(s, m, by_loop ? "the loop's gradients fail" : "gradients outside fail");
    for (int k = 0; k < n; k++)
        if (!to[k]) to[k] = etch_zeros(etch_dtype_of(leaf[k]), etch_sizes(leaf[k]));
}

static void check_outside(const sample *s, const mapping *m) {
    ETCH_SCOPE {
        etch_tensor *x[SAMPLE_INPUTS], *got[SAMPLE_INPUTS], *want[SAMPLE_INPUTS];
        etch_dims dims;
        make_batch(s, m, 0, x, &dims);
        whole_gradients(s, m, x, &dims, false, got);
        whole_gradients(s, m, x, &dims, true, want);
        for (int k = 0; k < count_leaves(s); k++) check_gradient(s, m, got[k], want[k]);
    }
}

TEST(gradients_inside_are_those_of_each_sample) {
    EACH_SAMPLE(s)
    for (unsigned mask = 1; has_gradients(s) && mask <= tensors_of(s); mask++) {
        mapping m = {mask, AT_ONCE, mask};
        if (!(mask & ~tensors_of(s)) && !may_fail(s, &m)) check_inside(s, &m);
    }
}

TEST(gradients_outside_flow_into_the_batch) {
    EACH_SAMPLE(s)
    for (unsigned mask = 1; has_gradients(s) && mask <= tensors_of(s); mask++) {
        mapping m = {mask, AT_ONCE, mask};
        if (!(mask & ~tensors_of(s)) && !may_fail(s, &m)) check_outside(s, &m);
    }
}

/* ---- all of them ---- */

TEST(every_operator_has_a_sample) {
    for (int op = 0; op < OP_COUNT; op++) {
        bool has = etch__ops[op].kind == KIND_CREATION || op == OP_SAVED;
        EACH_SAMPLE(s) has |= s->op == (op_id)op;
        if (!has) fail_msg("%s has no sample in grad_samples.h, nor here", etch__ops[op].name);
    }
}
