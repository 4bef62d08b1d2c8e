/* Programs that once came out differently compiled than eager, as the fuzzer reduced them. Each
 * runs on both backends; what each was about stands above it.
 * Labels: quick. */
#include "trace_support.h"

#include "fuzz/harness.h"

#define SIZES                                                                                      \
    {                                                                                              \
        {3, 2, 5, 4, 1, 0}, {6, 2, 5, 4, 1, 0}, { 8, 2, 5, 4, 1, 0 }                               \
    }
#define F32_VECTOR(of_layout)                                                                      \
    { .ndim = 1, .layout = (of_layout), .feed = -1 }
#define F32_MATRIX(of_layout)                                                                      \
    { .ndim = 2, .size = {0, 3}, .layout = (of_layout), .feed = -1 }

static void check(const fuzz_setup *setup, fuzz_body body) {
    static const char *const backends[] = {"eager", "native", "aot_eager"};
    for (int b = 0; b < 3; b++) {
        fuzz_result result;
        bool same = fuzz_compare(setup, body, NULL, backends[b], &result);
        if (!same) print_error("%s: %s\n", backends[b], result.difference);
        assert_true(same);
    }
}

/* ---- the offset of a view that is still deferred ---- */

static void asks_offset(fuzz_world *w, const void *unused) {
    (void)unused;
    fuzz_set(w, 1, etch_select(w->v[0], 0, -2));
    fuzz_set(w, 2, etch_slice(w->v[1], 0, ETCH_ABSENT, ETCH_ABSENT, -1));
    fuzz_query(w, 1, 0);
    fuzz_query(w, 2, 0);
}

TEST(offset_of_deferred_view) {
    fuzz_setup setup = {.ncalls = 5,
                        .period = 1,
                        .nin = 1,
                        .nout = 1,
                        .size = SIZES,
                        .in[0] = F32_MATRIX(FUZZ_OFFSET)};
    check(&setup, asks_offset);
    setup.in[0].layout = FUZZ_REVERSED;
    check(&setup, asks_offset);
    setup.ncalls = 9, setup.period = 3, setup.set[1] = 1, setup.set[2] = 2; /* dynamic sizes */
    check(&setup, asks_offset);
}

/* ---- an operator on exposed memory, and a deferred operand of the segment that it ends ---- */

static void writes_beside_deferred(fuzz_world *w, const void *unused) {
    (void)unused;
    fuzz_expose(w, 0, true);
    fuzz_raw_write(w, 0, 7);
    fuzz_set(w, 2, etch_abs(w->v[1]));
    fuzz_set(w, 3, etch_add(w->v[0], w->v[2]));
}

TEST(exposed_beside_deferred) {
    fuzz_setup setup = {.ncalls = 4,
                        .period = 1,
                        .nin = 2,
                        .nout = 1,
                        .out = {3},
                        .size = SIZES,
                        .in = {F32_VECTOR(FUZZ_CONTIGUOUS), F32_VECTOR(FUZZ_CONTIGUOUS)}};
    check(&setup, writes_beside_deferred);
}

/* ---- memory exposed for reading, written through a view along a trace recorded without it ---- */

static void writes_view(fuzz_world *w, const void *unused) {
    (void)unused;
    if (fuzz_when(w, 1)) fuzz_break(w);
    else fuzz_expose(w, 0, false);
    fuzz_set(w, 1, etch_slice(w->v[0], 0, 0, 2, 1));
    fuzz_set(w, 2, etch_add_scalar_(w->v[1], 1));
    fuzz_raw_read(w, 0);
}

TEST(exposed_view_written) {
    fuzz_setup setup = {.ncalls = 8,
                        .period = 2,
                        .nin = 1,
                        .nout = 1,
                        .size = SIZES,
                        .in[0] = F32_VECTOR(FUZZ_CONTIGUOUS)};
    check(&setup, writes_view);
}

static void writes_argument(fuzz_world *w, const void *unused) {
    (void)unused;
    fuzz_set(w, 1, etch_mul_scalar(w->v[0], 2));
    fuzz_set(w, 2, etch_add_(w->v[0], w->v[1]));
    fuzz_raw_read(w, 0);
}

/* The first variant's argument is no wrapped memory. */
TEST(wrapped_argument_written) {
    fuzz_setup setup = {.ncalls = 8,
                        .period = 2,
                        .nin = 1,
                        .nout = 1,
                        .size = SIZES,
                        .in[0] = F32_VECTOR(FUZZ_WRAPPED)};
    setup.in[0].plain = 1;
    check(&setup, writes_argument);
}

/* ---- a value computed from x, then x written through a view of an earlier segment ---- */

static void computes_then_writes_view(fuzz_world *w, const void *unused) {
    (void)unused;
    fuzz_set(w, 1, etch_view(w->v[0], ETCH_SHAPE(-1)));
    fuzz_break(w);
    fuzz_set(w, 2, etch_amax(w->v[0], ETCH_DIMS(0), true));
    fuzz_set(w, 3, etch_tanh_(w->v[1]));
    fuzz_break(w);
    fuzz_format(w, 2);
}

TEST(live_value_of_written_alias) {
    fuzz_setup setup = {.ncalls = 5,
                        .period = 1,
                        .nin = 1,
                        .nout = 1,
                        .size = SIZES,
                        .in[0] = F32_VECTOR(FUZZ_CONTIGUOUS)};
    check(&setup, computes_then_writes_view);
}

/* ---- a graph made anew from one with writes, in part under another default dtype ---- */

static void writes_then_other_dtype(fuzz_world *w, const void *unused) {
    (void)unused;
    fuzz_set(w, 1, etch_sub_(w->v[0], w->v[0]));
    fuzz_default_dtype(ETCH_F64);
    fuzz_set(w, 2, etch_argmax(w->v[0]));
    fuzz_set(w, 3, etch_erf(w->v[2]));
}

TEST(default_dtype_of_rewritten_graph) {
    fuzz_setup setup = {.ncalls = 4,
                        .period = 1,
                        .nin = 1,
                        .nout = 1,
                        .out = {3},
                        .size = SIZES,
                        .in[0] = F32_VECTOR(FUZZ_CONTIGUOUS)};
    check(&setup, writes_then_other_dtype);
}

/* ---- an error of the call, where the call would have been a graph break ---- */

static void copies_to_no_device(fuzz_world *w, const void *unused) {
    (void)unused;
    fuzz_set(w, 1, etch_abs(w->v[0]));
    fuzz_set(w, 2, etch_to_device(w->v[1], -1));
}

TEST(error_before_break) {
    fuzz_setup setup = {.ncalls = 4,
                        .period = 1,
                        .nin = 1,
                        .nout = 1,
                        .fullgraph = 1,
                        .size = SIZES,
                        .in[0] = F32_VECTOR(FUZZ_CONTIGUOUS)};
    check(&setup, copies_to_no_device);
}

/* ---- a write through as_strided over an input that is not row-major ---- */

static void writes_strided(fuzz_world *w, const void *unused) {
    (void)unused;
    fuzz_set(w, 1, etch_as_strided(w->v[0], ETCH_DIMS(1, 2), ETCH_DIMS(1, 2)));
    fuzz_set(w, 2, etch_cos_(w->v[1]));
}

TEST(write_through_as_strided) {
    fuzz_setup setup = {.ncalls = 4,
                        .period = 1,
                        .nin = 1,
                        .nout = 1,
                        .size = SIZES,
                        .in[0] = F32_MATRIX(FUZZ_TRANSPOSED)};
    check(&setup, writes_strided);
}

/* ---- a write to elements that overlap ---- */

static void writes_windows(fuzz_world *w, const void *unused) {
    (void)unused;
    fuzz_set(w, 1, etch_unfold(w->v[0], 1, 3, 1));
    fuzz_set(w, 2, etch_neg_(w->v[1]));
}

TEST(write_to_overlapping_windows) {
    fuzz_setup setup = {.ncalls = 4,
                        .period = 1,
                        .nin = 1,
                        .nout = 1,
                        .size = {{3, 2, 5, 4, 1, 0}},
                        .in[0] = {.ndim = 2, .size = {0, 2}, .feed = -1}};
    check(&setup, writes_windows);
}

/* ---- an index of no dimension beside a source of no elements, and the other way round ---- */

TEST(index_beyond_0d_and_empty) {
    ETCH_SCOPE {
        etch_tensor *self = etch_zeros(ETCH_I64, ETCH_SHAPE()),
                    *none = etch_zeros(ETCH_I64, ETCH_SHAPE(0));
        etch_tensor *five = etch_zeros(ETCH_I64, ETCH_SHAPE(5)),
                    *index = etch_zeros(ETCH_I64, ETCH_SHAPE());
        assert_null(etch_scatter_add_(self, 0, index, none));
        assert_int_equal(etch_last_status(), ETCH_ERR_SHAPE);
        etch_clear_error();
        assert_null(etch_scatter_add_(five, 0, five, self));
        assert_int_equal(etch_last_status(), ETCH_ERR_SHAPE);
        etch_clear_error();
    }
}

/* ---- the default dtype of a call in the graph that users edit ---- */

static etch_status puts_sin(void *ctx, etch_graph *g, etch_runnable *out) {
    (void)ctx;
    etch_node *n = etch_graph_first(g);
    while (n && !etch_op_is(etch_node_op(n), "erf")) n = etch_node_next(n);
    if (!n) return ETCH_ERR_NOT_FOUND;
    etch_value args[ETCH_NODE_MAX_ARGS];
    int nargs = etch_node_args(n, args);
    if (!etch_graph_replace(g, n, etch_op_find("sin"), args, nargs)) return etch_last_status();
    out->backend = "eager";
    return ETCH_OK;
}

static etch_status erf_of_index(void *ctx, etch_tensor *const *in, int nin, etch_tensor **out,
                                int nout) {
    (void)ctx, (void)nin, (void)nout;
    etch_dtype before = etch_default_dtype();
    etch_set_default_dtype(ETCH_F64);
    out[0] = etch_erf(etch_argmax(in[0]));
    etch_set_default_dtype(before);
    return out[0] ? ETCH_OK : etch_last_status();
}

TEST(default_dtype_of_edited_graph) {
    assert_int_equal(etch_register_backend("puts_sin", puts_sin, NULL), ETCH_OK);
    etch_function *f = etch_compile(erf_of_index, .backend = "puts_sin");
    ETCH_SCOPE {
        const float numbers[] = {1, 3, 2};
        etch_tensor *x = etch_from_host(numbers, ETCH_F32, ETCH_SHAPE(3)), *y = NULL;
        for (int i = 0; i < 2; i++) assert_int_equal(etch_call_n(f, &x, 1, &y, 1), ETCH_OK);
        assert_int_equal(etch_dtype_of(y), ETCH_F64);
        etch_tensor *one = etch_full(ETCH_F64, ETCH_SHAPE(), 1);
        assert_true(etch_item(y) == etch_item(etch_sin(one)));
    }
    assert_int_equal(etch_function_counters(f).eager_runs, 0);
    etch_function_free(f);
    etch_unregister_backend("puts_sin");
}

/* ---- a captured value that is deferred and fails when it is computed at last ---- */

static void captures_what_fails(fuzz_world *w, const void *unused) {
    (void)unused;
    fuzz_set(w, 18, etch_eq(w->v[0], w->v[0]));
    fuzz_set(w, 35, etch_fmod_scalar(w->v[18], fuzz_vary(w, etch_scalar_int(-7))));
    fuzz_numerics(w, 21);
    if (w->v[35]) fuzz_set(w, 38, etch_lerp_tensor(w->v[35], w->v[3], w->v[0]));
}

#define FAILS_INPUT(of_leaf)                                                                       \
    { .ndim = 1, .size = {3, 3, 3, 3}, .feed = -1, .leaf = (of_leaf) }

TEST(captured_value_that_fails) {
    fuzz_setup setup = {.seed = 510036436u,
                        .ncalls = 8,
                        .period = 1,
                        .nin = 3,
                        .in = {FAILS_INPUT(7), FAILS_INPUT(0), FAILS_INPUT(0)},
                        .nglobals = 1,
                        .global = {FAILS_INPUT(7)},
                        .nout = 1,
                        .size = {{1, 1, 1, 1, 1, 0}, {1, 1, 1, 1, 1, 0}, {1, 1, 1, 1, 1, 0}},
                        .grads = true,
                        .creates = 1};
    check(&setup, captures_what_fails);
}
