/* How the result of attention lies in memory: as query does, if that has its heads inside of its
 * queries, so that heads are put together by a view; and that nothing else of it changes: bits,
 * gradients, writes in place, compiled by every backend, at run-time sizes, mapped and exported.
 * Labels: device fake. */
#include "cpu_support.h"
#include "device_support.h"
#include "log_support.h"

#include <etch/backend.h>
#include <etch/export.h>

#define S ETCH_SHAPE
#define D ETCH_DIMS

static etch_tensor *must(etch_tensor *t) {
    if (!t) fail_msg("%s", etch_last_error());
    return t;
}

/* Numbers of sizes s whose dimensions lie in memory in the order that `order` names. */
static etch_tensor *ordered(etch_dtype t, etch_shape s, etch_dims order) {
    etch_shape memory = s;
    etch_dims back = order;
    for (int i = 0; i < s.n; i++) memory.v[i] = s.v[order.v[i]], back.v[order.v[i]] = i;
    return must(etch_permute(make(t, memory, LAYOUT_ROW, true), back));
}

/* The same, of which every third row lies in between. */
static etch_tensor *with_gaps(etch_dtype t, etch_shape s, etch_dims order) {
    etch_shape wide = s;
    wide.v[s.n - 1] *= 3;
    return must(etch_narrow(ordered(t, wide, order), -1, s.v[s.n - 1], s.v[s.n - 1]));
}

/* [..., queries, heads, width] as what the operator takes. */
static etch_tensor *heads_of(etch_dtype t, etch_shape memory) {
    return must(etch_transpose(make(t, memory, LAYOUT_ROW, true), -3, -2));
}

static etch_tensor *attend(etch_tensor *q, etch_tensor *k, etch_tensor *v) {
    return etch_scaled_dot_product_attention(q, k, v, ETCH_NONE, 0, true, 0);
}

/* [..., heads, queries, width] to [..., queries, heads x width] */
static etch_tensor *merged(etch_tensor *y) {
    etch_tensor *turned = y ? etch_transpose(y, -3, -2) : NULL;
    return turned ? etch_flatten(turned, -2, -1) : NULL;
}

static void same_strides(const etch_tensor *a, const etch_tensor *b) {
    assert_int_equal(a->ndim, b->ndim);
    for (int d = 0; d < a->ndim; d++) assert_int_equal(a->stride[d], b->stride[d]);
    assert_int_equal(a->contiguous, b->contiguous);
}

/* ---- the rule ---- */

typedef struct order_case {
    etch_shape q;
    etch_dims order; /* of q's dimensions in memory */
    bool inside;     /* the result's heads */
} order_case;

static const order_case orders[] = {
    {S(2, 4, 5, 8), D(0, 2, 1, 3), true},
    {S(4, 5, 8), D(1, 0, 2), true},
    {S(2, 3, 4, 5, 8), D(0, 1, 3, 2, 4), true},
    {S(2, 4, 70, 8), D(0, 2, 1, 3), true},
    {S(2, 4, 70, 40), D(0, 2, 1, 3), true},
    {S(2, 4, 5, 7), D(0, 2, 1, 3), true},
    {S(2, 4, 5, 8), D(0, 1, 2, 3), false},
    {S(4, 5, 8), D(0, 1, 2), false},
    {S(2, 3, 4, 5, 8), D(1, 0, 3, 2, 4), false}, /* what is in front changes places */
    {S(2, 4, 5, 8), D(2, 0, 1, 3), false},       /* queries outside of everything */
    {S(2, 4, 5, 8), D(0, 2, 3, 1), false},       /* heads inside of the width */
    {S(2, 4, 5, 8), D(0, 3, 2, 1), false},
    {S(5, 8), D(1, 0), false}, /* without heads */
    /* sizes of 1: where they lie makes no difference */
    {S(1, 4, 5, 8), D(2, 0, 1, 3), true},
    {S(1, 4, 5, 8), D(2, 1, 3, 0), true},
    {S(2, 1, 4, 5, 8), D(0, 3, 2, 1, 4), true},
    {S(2, 4, 5, 1), D(0, 2, 3, 1), true},
    {S(2, 1, 5, 8), D(0, 2, 1, 3), false}, /* one head */
    {S(2, 4, 1, 8), D(0, 2, 1, 3), false}, /* one query */
    /* empty ones */
    {S(0, 4, 5, 8), D(0, 2, 1, 3), false},
    {S(2, 0, 5, 8), D(0, 2, 1, 3), false},
    {S(2, 4, 0, 8), D(0, 2, 1, 3), false},
};

/* The strides that the result is to have. */
static void has_strides(const etch_tensor *y, bool inside) {
    int d = y->ndim;
    int64_t want[ETCH_MAX_DIMS], step = 1;
    for (int i = d - 1; i >= 0; i--) {
        int at = !inside || i < d - 3 || i == d - 1 ? i : i == d - 2 ? d - 3 : d - 2;
        want[at] = step;
        step *= y->size[at] > 1 ? y->size[at] : 1;
    }
    for (int i = 0; i < d; i++) assert_int_equal(y->stride[i], want[i]);
    assert_int_equal(y->contiguous, !inside);
}

/* Two heads share one of keys, whose order in memory is another matter. */
static void check_order(const order_case *c, etch_dtype t, bool gaps, bool keys_turned) {
    int d = c->q.n;
    etch_shape s = c->q;
    if (d > 2 && s.v[d - 3] > 1) s.v[d - 3] /= 2;
    s.v[d - 2] += 3;
    etch_dims order = keys_turned ? c->order : D(0, 1, 2, 3, 4);
    order.n = d;
    etch_tensor *k = ordered(t, s, order), *v = ordered(t, s, order);
    etch_tensor *q = (gaps ? with_gaps : ordered)(t, c->q, c->order);
    etch_tensor *y = must(attend(q, k, v));
    has_strides(y, c->inside);
    etch_tensor *plain = must(attend(must(etch_contiguous(q)), k, v));
    has_strides(plain, false);
    assert_true(etch_bitwise_equal(y, plain));
    if (d > 2 && y->numel)
        assert_int_equal(etch_shares_storage(must(merged(y)), y),
                         c->inside || y->size[d - 3] == 1 || y->size[d - 2] == 1);
}

TEST(result_lies_as_query) {
    for (int i = 0; i < COUNT_OF(orders); i++)
        for (int t = ETCH_F32; t <= ETCH_F16; t++)
            for (int way = 0; way < 4; way++)
                ETCH_SCOPE { check_order(&orders[i], (etch_dtype)t, way & 1, way & 2); }
}

/* A width of values of its own; odd ones, and more than the tensor cores have columns for. */
TEST(width_of_values) {
    const int64_t widths[] = {1, 3, 24, 33, 0};
    for (int i = 0; i < COUNT_OF(widths); i++)
        for (int t = ETCH_F32; t <= ETCH_F16; t++)
            ETCH_SCOPE {
                etch_tensor *q = heads_of((etch_dtype)t, S(2, 67, 4, 16));
                etch_tensor *k = heads_of((etch_dtype)t, S(2, 80, 2, 16));
                etch_tensor *v = heads_of((etch_dtype)t, S(2, 80, 2, widths[i]));
                etch_tensor *y = must(attend(q, k, v));
                has_strides(y, widths[i] > 0);
                assert_true(etch_bitwise_equal(y, must(attend(etch_contiguous(q), k, v))));
            }
}

/* Few queries and many keys: a GPU deals these out and joins what becomes of them. */
TEST(many_keys) {
    for (int t = ETCH_F32; t <= ETCH_F16; t++)
        ETCH_SCOPE {
            etch_tensor *q = heads_of((etch_dtype)t, S(1, 3, 2, 16)), *y, *plain;
            etch_tensor *k = heads_of((etch_dtype)t, S(1, 600, 2, 16));
            y = must(etch_scaled_dot_product_attention(q, k, k, ETCH_NONE, 0, false, 0));
            has_strides(y, true);
            q = must(etch_contiguous(q));
            plain = must(etch_scaled_dot_product_attention(q, k, k, ETCH_NONE, 0, false, 0));
            assert_true(etch_bitwise_equal(y, plain));
        }
}

TEST(with_dropout) {
    ONLY_ON_CPU(); /* elsewhere it is made of other operators */
    ETCH_SCOPE {
        etch_tensor *q = heads_of(ETCH_F32, S(2, 6, 4, 8)), *y[2];
        for (int i = 0; i < 2; i++) {
            etch_manual_seed(5);
            y[i] = must(etch_scaled_dot_product_attention(i ? etch_contiguous(q) : q, q, q,
                                                          ETCH_NONE, 0.4, false, 0));
            has_strides(y[i], !i);
        }
        assert_true(etch_bitwise_equal(y[0], y[1]));
    }
}

/* ---- gradients ---- */

static void gradients(etch_tensor *const *in, bool plain, etch_tensor **grad) {
    etch_tensor *x[3];
    for (int i = 0; i < 3; i++) {
        x[i] = must(etch_detach(plain ? etch_clone(in[i]) : in[i]));
        must(etch_requires_grad_(x[i], true));
    }
    etch_tensor *y = must(attend(x[0], x[1], x[2]));
    has_strides(y, !plain);
    assert_int_equal(etch_backward(must(etch_sum(etch_square(merged(y))))), ETCH_OK);
    for (int i = 0; i < 3; i++) grad[i] = must(etch_grad_of(x[i]));
}

TEST(gradients_are_those_of_row_major_ones) {
    ONLY_ON_CPU(); /* elsewhere products see to them, whose bits may follow strides */
    for (int t = ETCH_F32; t <= ETCH_F16; t++)
        ETCH_SCOPE {
            etch_tensor *in[3], *own[3], *want[3];
            in[0] = heads_of((etch_dtype)t, S(2, 70, 4, 8));
            for (int i = 1; i < 3; i++) in[i] = heads_of((etch_dtype)t, S(2, 90, 2, 8));
            gradients(in, false, own);
            gradients(in, true, want);
            for (int i = 0; i < 3; i++) assert_true(etch_bitwise_equal(own[i], want[i]));
        }
}

/* The operator itself takes any strides of result and gradient. */
TEST(backward_takes_all_strides) {
    ONLY_ON_CPU();
    for (int t = ETCH_F32; t <= ETCH_F16; t++)
        ETCH_SCOPE {
            etch_tensor *q = heads_of((etch_dtype)t, S(2, 70, 4, 8)), *want = NULL;
            etch_tensor *y[2] = {must(etch_attention_raw(q, q, q, ETCH_NONE, false, 0.5))};
            etch_tensor *g[2] = {heads_of((etch_dtype)t, S(2, 70, 4, 8))};
            y[1] = must(etch_contiguous(y[0])), g[1] = must(etch_contiguous(g[0]));
            for (int i = 0; i < 4; i++) {
                etch_tensor *have = must(etch_attention_backward_raw(
                    g[i & 1], y[i >> 1], q, q, q, ETCH_NONE, ETCH_NONE, false, 0.5, 0));
                if (!want) want = have;
                assert_true(etch_bitwise_equal(have, want));
            }
        }
}

/* ---- compiled ---- */

static etch_tensor *plain_call(etch_tensor *q, etch_tensor *k, etch_tensor *v) {
    return attend(q, k, v);
}
static etch_tensor *joined_heads(etch_tensor *q, etch_tensor *k, etch_tensor *v) {
    return etch_tanh(merged(attend(q, k, v)));
}
/* Pointwise in place, the whole of it: a new version that lies as the first one did. */
static etch_tensor *written_whole(etch_tensor *q, etch_tensor *k, etch_tensor *v) {
    etch_tensor *y = attend(q, k, v), *m = merged(y);
    return m && etch_mul_scalar_(y, 3) && etch_add_scalar_(m, 1) ? y : NULL;
}
/* Through views of what is joined. */
static etch_tensor *written_in_part(etch_tensor *q, etch_tensor *k, etch_tensor *v) {
    etch_tensor *y = attend(q, k, v), *m = merged(y), *part = m ? etch_narrow(m, -1, 3, 5) : NULL;
    return part && etch_fill_(part, 2) && etch_mul_(y, etch_sin(y)) ? m : NULL;
}
static etch_tensor *read_twice(etch_tensor *q, etch_tensor *k, etch_tensor *v) {
    etch_tensor *y = attend(q, k, v), *rows = y ? etch_sum_dim(y, D(-1), true) : NULL;
    return rows ? etch_div(etch_softmax(y, -1), rows) : NULL;
}

static const etch_fn3 bodies[] = {plain_call, joined_heads, written_whole, written_in_part,
                                  read_twice};

/* The gradients behind each other. */
static etch_tensor *trained(etch_tensor *q, etch_tensor *k, etch_tensor *v) {
    etch_tensor *in[] = {q, k, v}, *x[3], *grad[3];
    for (int i = 0; i < 3; i++) x[i] = etch_requires_grad_(etch_detach(in[i]), true);
    etch_tensor *loss = etch_sum(etch_square(merged(attend(x[0], x[1], x[2]))));
    if (!loss || etch_grad(&loss, 1, x, 3, NULL, NULL, grad) != ETCH_OK) return NULL;
    for (int i = 0; i < 3; i++) grad[i] = etch_reshape(grad[i], S(-1));
    return etch_cat(grad, 3, 0);
}

/* Calls until the function is compiled, and then some. */
static void check_calls(etch_function *f, etch_fn3 body, etch_dtype t, bool lengths_change) {
    for (int64_t call = 0; call < 6; call++)
        ETCH_SCOPE {
            int64_t n = lengths_change ? (call + 2) % 6 + 1 : 5;
            etch_tensor *q = heads_of(t, S(2, n, 4, 8)), *k = heads_of(t, S(2, 7, 2, 8));
            etch_tensor *v = heads_of(t, S(2, 7, 2, 8));
            etch_tensor *want = must(body(q, k, v)), *have = must(etch_call(f, q, k, v));
            same_strides(have, want);
            assert_true(etch_bitwise_equal(have, want));
        }
    assert_true(etch_function_counters(f).plan_runs > 0);
}

TEST(compiled_equals_eager) {
    const char *const names[] = {"native", "eager", "aot_eager"};
    for (int b = 0; b < COUNT_OF(names); b++)
        for (int i = 0; i < COUNT_OF(bodies); i++)
            for (int t = ETCH_F32; t <= ETCH_BF16; t += 2) {
                etch_function *f = etch_compile_fn3(
                    bodies[i], &(etch_compile_options){.struct_size = sizeof(etch_compile_options),
                                                       .backend = names[b]});
                check_calls(f, bodies[i], (etch_dtype)t, false);
                etch_function_free(f);
            }
}

TEST(compiled_gradients) {
    for (int t = ETCH_F32; t <= ETCH_BF16; t += 2) {
        etch_function *f = etch_compile(trained);
        check_calls(f, trained, (etch_dtype)t, false);
        etch_function_free(f);
    }
}

/* With one query among the lengths, of which the order is row-major. */
TEST(run_time_lengths) {
    for (int i = 0; i < COUNT_OF(bodies); i++) {
        etch_function *f = etch_compile_fn3(
            bodies[i], &(etch_compile_options){.struct_size = sizeof(etch_compile_options),
                                               .dynamic = ETCH_DYNAMIC_ON});
        check_calls(f, bodies[i], ETCH_F32, true);
        etch_function_free(f);
    }
}

/* A backend's own results are laid out as eager ones. */
static etch_status run_row_major(void *ctx, etch_tensor *const *in, int nin, const etch_scalar *sc,
                                 int nsc, etch_tensor **out, int nout) {
    (void)ctx, (void)nin, (void)sc, (void)nsc, (void)nout;
    out[0] = etch_contiguous(attend(in[0], in[1], in[2]));
    return out[0] ? ETCH_OK : etch_last_status();
}
static etch_status by_hand(void *ctx, etch_graph *g, etch_runnable *out) {
    (void)ctx, (void)g;
    out->run = run_row_major;
    return ETCH_OK;
}

TEST(results_of_a_users_backend) {
    assert_int_equal(etch_register_backend("by_hand", by_hand, NULL), ETCH_OK);
    etch_function *f = etch_compile(plain_call, .backend = "by_hand");
    check_calls(f, plain_call, ETCH_F32, false);
    etch_function_free(f);
    assert_int_equal(etch_unregister_backend("by_hand"), ETCH_OK);
}

/* ---- what it is for ---- */

enum { WIDTH = 32, HEADS = 4 };

/* x + heads of (x w), put together and projected. Heads that something is computed of lie row by
 * row. */
static bool computed;

static etch_tensor *layer(etch_tensor *x, etch_tensor *w, etch_tensor *out) {
    etch_tensor *all = etch_matmul(x, w), *part[3];
    etch_shape s = S(etch_size(x, 0), etch_size(x, 1), 3, HEADS, WIDTH / HEADS);
    for (int i = 0; i < 3; i++) {
        part[i] = etch_transpose(etch_select(etch_reshape(all, s), 2, i), 1, 2);
        if (computed) part[i] = etch_neg(part[i]);
    }
    return etch_add(x, etch_matmul(merged(attend(part[0], part[1], part[2])), out));
}

static void no_copy(bool of_computed) {
    etch_function *f = etch_compile(layer);
    computed = of_computed;
    begin_log("schedule");
    ETCH_SCOPE {
        etch_tensor *x = make(ETCH_F32, S(2, 6, WIDTH), LAYOUT_ROW, true);
        etch_tensor *w = make(ETCH_F32, S(WIDTH, 3 * WIDTH), LAYOUT_ROW, true);
        etch_tensor *out = make(ETCH_F32, S(WIDTH, WIDTH), LAYOUT_ROW, true);
        etch_tensor *want = must(layer(x, w, out));
        for (int i = 0; i < 3; i++)
            assert_true(etch_bitwise_equal(must(etch_call(f, x, w, out)), want));
    }
    end_log();
    etch_function_free(f);
    assert_non_null(strstr(logged, "_attention"));
    const char *plan = strstr(logged, "layer/0: step 0"); /* eager ones are before it */
    assert_non_null(plan);
    for (const char *at = plan; (at = strstr(at, "clone")); at++) {
        while (at > plan && at[-1] != '\n') at--;
        if (!strncmp(at, "etch: schedule: layer/0", 23)) fail_msg("a copy: %s", logged);
        at = strchr(at, '\n');
    }
}

TEST(heads_are_put_together_without_a_copy) {
    no_copy(false);
    no_copy(true);
}

/* The result is read twice, or the caller's, or changed before it is copied; the copy is the
 * caller's, or changed. */
static int way;

static ETCH_FN_N(kept_orders, ctx, in, nin, out, nout) {
    etch_tensor *y = attend(etch_neg(in[0]), etch_neg(in[1]), in[1]);
    if (way == 3) etch_relu_(y);
    etch_tensor *all = merged(y);
    if (way == 4) etch_relu_(all);
    out[0] = way == 0 ? etch_mul(etch_exp(all), all) : etch_exp(all);
    out[1] = way == 1 ? y : way == 2 ? all : etch_sum(way == 0 ? y : all);
    return out[0] && out[1] ? ETCH_OK : etch_last_status();
}

TEST(copies_that_stay) {
    for (way = 0; way < 6; way++) {
        etch_function *f = etch_compile(kept_orders, .fullgraph = true);
        ETCH_SCOPE {
            etch_tensor *in[2] = {make(ETCH_F32, S(2, 4, 6, 8), LAYOUT_ROW, true),
                                  make(ETCH_F32, S(2, 4, 9, 8), LAYOUT_ROW, true)};
            etch_tensor *want[2], *got[2];
            assert_int_equal(kept_orders(NULL, in, 2, want, 2), ETCH_OK);
            for (int i = 0; i < 3; i++) {
                assert_int_equal(etch_call_n(f, in, 2, got, 2), ETCH_OK);
                for (int k = 0; k < 2; k++) {
                    assert_true(etch_bitwise_equal(got[k], want[k]));
                    same_strides(got[k], want[k]);
                }
            }
        }
        etch_function_free(f);
    }
}

/* ---- mapped ---- */

/* The batch is a dimension in front, as of [batch, ...]; without heads it stands for them. */
TEST(mapped) {
    ETCH_SCOPE {
        etch_function *f = etch_vmap(plain_call, D(0), D(0));
        etch_tensor *q = heads_of(ETCH_F32, S(3, 2, 5, 4, 8)), *y = must(etch_call(f, q, q, q));
        has_strides(y, true);
        assert_true(etch_bitwise_equal(y, must(attend(q, q, q))));
        q = must(etch_transpose(make(ETCH_F32, S(5, 3, 8), LAYOUT_ROW, true), 0, 1));
        y = must(etch_call(f, q, q, q));
        has_strides(y, true);
        assert_true(etch_bitwise_equal(y, must(attend(etch_contiguous(q), q, q))));
        etch_function_free(f);
    }
}

/* ---- exported ---- */

TEST(exported) {
    char path[] = "/tmp/etch-layout-XXXXXX";
    close(mkstemp(path));
    for (int i = 0; i < COUNT_OF(bodies); i++)
        ETCH_SCOPE {
            etch_tensor *in[3], *want, *have;
            for (int k = 0; k < 3; k++) in[k] = heads_of(ETCH_F32, S(2, 5, 4, 8));
            want = must(bodies[i](in[0], in[1], in[2]));
            etch_function *f = etch_compile_fn3(bodies[i], NULL);
            assert_int_equal(etch_export(f, in, 3, path), ETCH_OK);
            etch_imported *g = etch_import(path);
            have = must(etch_imported_call_one(g, in, 3));
            same_strides(have, want);
            assert_true(etch_bitwise_equal(have, want));
            etch_imported_free(g), etch_function_free(f);
        }
    unlink(path);
}

int main(int argc, char **argv) { return run_suite(argc, argv); }
