/* Whose failure a status and a text are: every function that computes what is deferred returns the
 * failure of that, a call that fails has an error of its own, and a success leaves none behind.
 * Labels: quick. */
#include <stdio.h>
#include <stdlib.h>

#include "core/base/base.h"
#include "tests/trace_support.h"

/* The ways to call a body: compiled or not, all must agree. */
typedef struct way {
    const char *name;
    bool disable, fullgraph;
} way;
static const way ways[] = {
    {"disabled", true, false}, {"compiled", false, false}, {"fullgraph", false, true}};

static etch_tensor *ones(int64_t n) { return etch_ones(ETCH_F32, ETCH_SHAPE(n)); }
static etch_tensor *index_of(int64_t i) { return etch_from_host(&i, ETCH_I64, ETCH_SHAPE(1)); }

static void assert_error(etch_status status, const char *words, int line) {
    char copy[256], *rest = copy;
    snprintf(copy, sizeof copy, "%s", words);
    if (etch_last_status() != status)
        fail_msg("line %d: expected %s, got %s: %s", line, etch_status_name(status),
                 etch_status_name(etch_last_status()), etch_last_error());
    for (char *word; (word = strsep(&rest, "|"));)
        if (!strstr(etch_last_error(), word))
            fail_msg("line %d: no \"%s\" in \"%s\"", line, word, etch_last_error());
}
#define ASSERT_ERROR(status, words) assert_error(status, words, __LINE__)

/* ---- what computes returns the failure of what it computed ---- */

static etch_mode *mode;
static etch_override *override;
static etch_status ending_status;

static etch_status decline(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                           etch_tensor **out, int nout) {
    (void)ctx, (void)op, (void)args, (void)nargs, (void)out, (void)nout;
    return ETCH_DECLINED;
}

static etch_status no_kernel(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                             etch_tensor *const *out, int nout) {
    (void)ctx, (void)op, (void)args, (void)nargs, (void)out, (void)nout;
    return ETCH_OK;
}

static etch_status end_by_flush(void) { return etch_flush(); }
static etch_status end_by_break(void) { return etch_graph_break("test"); }
static etch_status end_by_wait(void) { return etch_synchronize(ETCH_CPU); }
static etch_status end_by_push(void) {
    etch_status status = etch_mode_push(mode);
    if (status == ETCH_OK) etch_mode_pop(mode);
    return status;
}
static etch_status end_by_override(void) {
    override = etch_op_override(etch_op_find("tan"), "cpu", no_kernel, NULL);
    return override ? ETCH_OK : etch_last_status();
}

static etch_status (*ending)(void);

/* A deferred failure that nobody looks at, then what ends the segment. */
static etch_tensor *ends(etch_tensor *x, etch_tensor *index) {
    etch_tensor *y = etch_index_select(x, 0, index), *z = etch_neg(x);
    if (y && ending) {
        ending_status = ending();
        if (ending_status != ETCH_OK) etch_clear_error();
    }
    return z;
}

TEST(endings_return_the_failure) {
    static etch_status (*const all[])(void) = {end_by_flush, end_by_break, end_by_wait, end_by_push,
                                               end_by_override};
    mode = etch_mode_new(decline, NULL);
    for (int i = 0; i < (int)(sizeof all / sizeof *all); i++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(ends);
            etch_tensor *x = ones(4), *good = index_of(3), *bad = index_of(4), *minus = etch_neg(x);
            for (int call = 0; call < 6; call++) {
                etch_clear_error();
                override = NULL;
                ending_status = (etch_status)-1;
                /* an override leaves the traces that were made before it */
                ending = all[i] == end_by_override && call < 5 ? end_by_flush : all[i];
                assert_same(etch_call(f, x, call == 3 || call == 5 ? bad : good), minus);
                assert_int_equal(ending_status, call == 3 || call == 5 ? ETCH_ERR_INDEX : ETCH_OK);
                assert_int_equal(etch_last_status(), ETCH_OK);
                etch_op_override_undo(override);
            }
            etch_function_free(f);
        }
    etch_mode_free(mode);
}

/* A composite that comes upon the failure of an operator before it does not put its name to it. */
static etch_tensor *composite_behind(etch_tensor *x, etch_tensor *index) {
    if (!etch_index_fill_(x, 0, index, 1)) return NULL;
    return etch_nonzero(x);
}

TEST(composite_does_not_take_the_blame) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(composite_behind);
        etch_tensor *x = ones(4), *good = index_of(3), *bad = index_of(4);
        for (int call = 0; call < 5; call++) {
            etch_clear_error();
            bool fails = call == 0 || call == 3;
            assert_true(!etch_call(f, x, fails ? bad : good) == fails);
            if (!fails) continue;
            ASSERT_ERROR(ETCH_ERR_INDEX, "index_fill_|4|test_statuses.c");
            assert_null(strstr(etch_last_error(), "nonzero"));
        }
        etch_function_free(f);
    }
}

/* A call that fails right behind a break has produced what outlives it. */
static etch_tensor *outlives;
static etch_tensor *fails_behind_a_break(etch_tensor *x, etch_tensor *keep) {
    etch_tensor *y = etch_neg(x);
    etch_graph_break("test");
    if (etch_numel(keep) == 1) return etch_abs(x);
    outlives = etch_retain(y);
    return NULL;
}

TEST(failing_behind_a_break) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(fails_behind_a_break, .dynamic = ETCH_DYNAMIC_ON);
        for (int call = 0; call < 4; call++) assert_non_null(etch_call(f, ones(3), ones(1)));
        assert_null(etch_call(f, ones(3), ones(2)));
        etch_clear_error();
        assert_false(etch_is_deferred(outlives));
        assert_true(etch_item(etch_sum(outlives)) == -3);
        etch_release(outlives);
        etch_function_free(f);
    }
}

/* Who reads one tensor is told of that one. */
static etch_tensor *reads(etch_tensor *x, etch_tensor *index) {
    etch_tensor *y = etch_index_select(x, 0, index), *z = etch_neg(x);
    float to[4];
    assert_true(etch_item(etch_sum(z)) == -4);
    assert_int_equal(etch_to_host(z, to, sizeof to), ETCH_OK);
    if (!y) return z;
    ending_status = etch_to_host(y, to, sizeof to);
    if (ending_status != ETCH_OK) {
        ASSERT_ERROR(ETCH_ERR_INDEX, "index_select|4|test_statuses.c");
        assert_null(etch_data(y));
        assert_int_equal(etch_print(y), ETCH_ERR_INDEX);
        etch_clear_error();
    }
    return z;
}

TEST(readers_tell_of_what_they_read) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(reads);
        etch_tensor *x = ones(4), *good = index_of(3), *bad = index_of(4), *minus = etch_neg(x);
        for (int call = 0; call < 6; call++) {
            etch_clear_error();
            ending_status = ETCH_OK;
            assert_same(etch_call(f, x, call == 4 ? bad : good), minus);
            assert_int_equal(ending_status, call == 4 ? ETCH_ERR_INDEX : ETCH_OK);
        }
        etch_function_free(f);
    }
}

/* ---- a call that fails says why, in words of its own ---- */

static etch_tensor *null_body(etch_tensor *x) {
    (void)x;
    return NULL;
}

static etch_status coded_body(void *ctx, etch_tensor *const *in, int nin, etch_tensor **out,
                              int nout) {
    (void)in, (void)nin, (void)out, (void)nout;
    if (*(bool *)ctx) assert_null(etch_mm(in[0], in[0]));
    return ETCH_ERR_IO;
}

TEST(calls_have_their_own_error) {
    for (int k = 0; k < 3; k++)
        ETCH_SCOPE {
            bool fails = false;
            etch_compile_options o = {.struct_size = sizeof o, .ctx = &fails};
            o.disable = ways[k].disable, o.fullgraph = ways[k].fullgraph;
            etch_function *f = etch_compile_fn1(null_body, &o), *g = etch_compile_n(coded_body, &o);
            etch_tensor *x = ones(4), *out;
            for (int call = 0; call < 4; call++) {
                etch_set_error(ETCH_ERR_SHAPE, "an older error");
                assert_null(etch_call(f, x));
                ASSERT_ERROR(ETCH_ERR_USER, "null_body|NULL|test_statuses.c");
                etch_set_error(ETCH_ERR_SHAPE, "an older error");
                assert_int_equal(etch_call_n(g, &x, 1, &out, 1), ETCH_ERR_IO);
                ASSERT_ERROR(ETCH_ERR_IO, "coded_body|io");
                fails = true; /* the status is the body's, the text tells what it knows */
                assert_int_equal(etch_call_n(g, &x, 1, &out, 1), ETCH_ERR_IO);
                ASSERT_ERROR(ETCH_ERR_IO, "mm|2 dimensions");
                fails = false;
            }
            etch_function_free(f);
            etch_function_free(g);
        }
    etch_clear_error();
}

static etch_tensor *neg_body(etch_tensor *x) { return etch_neg(x); }

TEST(success_keeps_an_older_error) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(neg_body);
        for (int call = 0; call < 4; call++) {
            etch_tensor *x = ones(4);
            etch_set_error(ETCH_ERR_SHAPE, "an older error");
            assert_non_null(etch_call(f, x));
            ASSERT_ERROR(ETCH_ERR_SHAPE, "an older error");
        }
        etch_function_free(f);
    }
    etch_clear_error();
}

/* ---- effects that are lost ---- */

static bool fails, handles;

static etch_tensor *writes(etch_tensor *x, etch_tensor *index) {
    etch_tensor *y = etch_exp(x);
    etch_add_scalar_(x, 1);
    etch_tensor *written = etch_index_fill_(x, 0, index, 5);
    if (handles && etch_flush() != ETCH_OK) written = NULL;
    if (!written && handles) etch_clear_error();
    return y;
}

static etch_tensor *writes_badly(etch_tensor *x) {
    etch_tensor *y = etch_exp(x);
    etch_tensor *written = fails ? etch_add_(x, ones(3)) : etch_add_(x, x);
    if (!written && handles) etch_clear_error();
    return y;
}

/* An error at the operator's call. */
TEST(ignored_write_fails_the_call) {
    for (int k = 0; k < 3; k++)
        for (int b = 0; b < 2; b++)
            ETCH_SCOPE {
                etch_function *f =
                    etch_compile(writes_badly, .disable = ways[k].disable,
                                 .fullgraph = ways[k].fullgraph, .backend = test_backends[b]);
                for (int call = 0; call < 9; call++) {
                    fails = call % 3 != 0, handles = call % 3 == 2;
                    etch_clear_error();
                    etch_tensor *y = etch_call(f, ones(4));
                    if (fails && !handles) {
                        assert_null(y);
                        ASSERT_ERROR(ETCH_ERR_SHAPE, "add_|test_statuses.c");
                    } else {
                        assert_non_null(y);
                        assert_int_equal(etch_last_status(), ETCH_OK);
                    }
                }
                etch_function_free(f);
            }
}

/* One that depends on data: eagerly at the call, in compiled code where it is computed. */
TEST(ignored_write_on_data_fails_the_call) {
    for (int k = 0; k < 2; k++)
        for (int b = 0; b < 2; b++)
            for (int h = 0; h < 2; h++)
                ETCH_SCOPE {
                    etch_function *f = etch_compile(writes, .disable = ways[k].disable,
                                                    .backend = test_backends[b]);
                    handles = h;
                    for (int call = 0; call < 6; call++) {
                        bool bad = call == 0 || call > 3;
                        etch_clear_error();
                        etch_tensor *y = etch_call(f, ones(4), index_of(bad ? 4 : 3));
                        if (bad && !h) {
                            assert_null(y);
                            ASSERT_ERROR(ETCH_ERR_INDEX, "index_fill_|test_statuses.c");
                        } else {
                            assert_non_null(y);
                            assert_int_equal(etch_last_status(), ETCH_OK);
                        }
                    }
                    etch_function_free(f);
                }
}

/* What failed before the call is not the call's. */
TEST(older_lost_write_fails_nothing) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(neg_body);
        for (int call = 0; call < 3; call++) {
            etch_tensor *x = ones(4);
            assert_null(etch_add_(x, ones(3)));
            assert_non_null(etch_call(f, x));
            ASSERT_ERROR(ETCH_ERR_SHAPE, "add_");
        }
        etch_function_free(f);
    }
    etch_clear_error();
}

static etch_function *inner;
static etch_tensor *ignores_inner(etch_tensor *x) {
    etch_tensor *y = etch_call(inner, x);
    if (!y && handles) etch_clear_error();
    return etch_neg(x);
}

TEST(lost_write_of_an_inner_call) {
    for (int k = 0; k < 3; k++)
        ETCH_SCOPE {
            inner = etch_compile(writes_badly);
            etch_function *f = etch_compile(ignores_inner, .disable = ways[k].disable,
                                            .fullgraph = ways[k].fullgraph);
            for (int call = 0; call < 6; call++) {
                fails = true, handles = call % 2;
                etch_clear_error();
                etch_tensor *y = etch_call(f, ones(4));
                assert_int_equal(y != NULL, handles);
                assert_int_equal(etch_last_status(), handles ? ETCH_OK : ETCH_ERR_SHAPE);
            }
            etch_function_free(f);
            etch_function_free(inner);
        }
    etch_clear_error();
}

/* Kernels and handlers are bodies, too. */
static etch_status ignoring_kernel(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                   etch_tensor *const *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    assert_null(etch_add_(out[0], ones(3)));
    if (handles) etch_clear_error();
    return etch_copy_(out[0], args[0].tensor) ? ETCH_OK : etch_last_status();
}

static etch_status same_shape(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                              etch_tensor_spec *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    out[0].dtype = etch_dtype_of(args[0].tensor), out[0].sizes = etch_sizes(args[0].tensor);
    return ETCH_OK;
}

static etch_status ignoring_handler(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                    etch_tensor **out, int nout) {
    (void)ctx;
    assert_null(etch_add_(args[0].tensor, ones(3)));
    if (handles) etch_clear_error();
    return etch_redispatch(op, args, nargs, out, nout);
}

TEST(lost_writes_of_kernels_and_handlers) {
    etch_op_definition d = {.struct_size = sizeof d, .cpu = ignoring_kernel, .shape = same_shape};
    const etch_op *op = etch_op_register("statuses::ignores(Tensor x) -> Tensor", &d);
    etch_mode *m = etch_mode_new(ignoring_handler, NULL);
    for (int h = 0; h < 2; h++)
        ETCH_SCOPE {
            etch_tensor *x = ones(4), *out = NULL;
            etch_value v = {NULL, ETCH_VALUE_TENSOR, {.tensor = x}};
            handles = h;
            etch_clear_error();
            assert_int_equal(etch_op_call(op, &v, 1, &out, 1), h ? ETCH_OK : ETCH_ERR_SHAPE);
            assert_int_equal(etch_last_status(), h ? ETCH_OK : ETCH_ERR_SHAPE);
            etch_clear_error();
            ETCH_WITH_MODE (m) out = etch_neg(x);
            assert_int_equal(out != NULL, h);
            assert_int_equal(etch_last_status(), h ? ETCH_OK : ETCH_ERR_SHAPE);
        }
    etch_mode_free(m);
    etch_clear_error();
}

/* ---- recovery leaves no error ---- */

static etch_tensor *mixed(etch_tensor *x, etch_tensor *w) {
    etch_tensor *y = etch_mm(x, w), *v = etch_slice(y, 0, 0, 1, 1);
    etch_add_scalar_(v, 1);
    etch_flush();
    etch_tensor *s = etch_softmax(y, 1), *z = etch_add(s, x);
    if (fails) z = etch_exp(z);
    return etch_mul(z, y);
}

/* Each allocation of a call fails once: the call fails with out_of_memory, or leaves no error. */
static void check_recovery(etch_function *f, int64_t n, bool *ended) {
    ETCH_SCOPE {
        etch_tensor *x = etch_ones(ETCH_F32, ETCH_SHAPE(4, 4)), *w = etch_clone(x);
        etch_clear_error();
        etch__fail_allocation(n);
        etch_tensor *y = etch_call(f, x, w);
        *ended = etch__fail_allocation(-1) <= n;
        if (y && etch_last_status() != ETCH_OK)
            fail_msg("allocation %lld: a success left \"%s\"", (long long)n, etch_last_error());
        if (!y && etch_last_status() != ETCH_ERR_OUT_OF_MEMORY)
            fail_msg("allocation %lld: %s: %s", (long long)n, etch_status_name(etch_last_status()),
                     etch_last_error());
    }
}

TEST(recovery_leaves_no_error) {
    for (int calls = 0; calls < 4; calls++) { /* recording, compiling, running, another path */
        bool ended = false;
        for (int64_t n = 0; !ended && n < 2000; n++) {
            etch_function *f = etch_compile(mixed, .backend = "eager");
            fails = false;
            ETCH_SCOPE {
                etch_tensor *x = etch_ones(ETCH_F32, ETCH_SHAPE(4, 4));
                for (int i = 0; i < calls; i++) assert_non_null(etch_call(f, x, x));
            }
            fails = calls == 3;
            check_recovery(f, n, &ended);
            etch_function_free(f);
        }
        assert_true(ended);
    }
    etch_clear_error();
}

static void drop_line(void *ctx, const char *line) { (void)ctx, (void)line; }

int main(int argc, char **argv) {
    etch_set_log_sink(drop_line, NULL);
    return run_suite(argc, argv);
}
