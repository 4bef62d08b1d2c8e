/* Products of the CPU with what follows them in the same step (jit/ir/pass_products.c,
 * jit/fuse/pass_join.c, backends/cpu/joined.c): compiled bit for bit as eager for every float
 * dtype, sizes around those of tiles and of the small products, every layout, scalars of addmm that
 * change from call to call, any number of threads; what joins and what stays apart, by the steps of
 * the plan; no memory at any allocation.
 * Labels: long optimised. */
#include <stdlib.h>

#include "cpu_support.h"
#include "log_support.h"

/* ---- programs: x is [..., k], w n x k as linear has it, b fits n, r is the result's size ---- */

static double alpha = 1, beta = 1;

typedef struct operands {
    etch_tensor *x, *w, *b, *r;
} operands;
typedef etch_tensor *(*body)(etch_tensor *x, etch_tensor *w, etch_tensor *b, etch_tensor *r);

static etch_tensor *rows_of(etch_tensor *x) {
    int64_t rows = 1;
    for (int i = 0; i < etch_ndim(x) - 1; i++) rows *= etch_size(x, i);
    return etch_reshape(x, ETCH_SHAPE(rows, etch_size(x, -1)));
}

static etch_tensor *gelu(etch_tensor *x, etch_tensor *w, etch_tensor *b, etch_tensor *r) {
    (void)r;
    return etch_gelu(etch_linear(x, w, b));
}

static etch_tensor *no_bias(etch_tensor *x, etch_tensor *w, etch_tensor *b, etch_tensor *r) {
    (void)b, (void)r;
    return etch_relu(etch_linear(x, w, ETCH_NONE));
}

static etch_tensor *residual(etch_tensor *x, etch_tensor *w, etch_tensor *b, etch_tensor *r) {
    return etch_add(r, etch_linear(x, w, b));
}

static etch_tensor *norm(etch_tensor *x, etch_tensor *w, etch_tensor *b, etch_tensor *r) {
    etch_tensor *y = etch_add(r, etch_linear(x, w, b));
    return etch_layer_norm(y, ETCH_SHAPE(etch_size(w, 0)), b, ETCH_NONE, 1e-5);
}

static etch_tensor *softmax(etch_tensor *x, etch_tensor *w, etch_tensor *b, etch_tensor *r) {
    (void)b, (void)r;
    return etch_softmax(etch_mul_scalar(etch_linear(x, w, ETCH_NONE), 0.25), -1);
}

static etch_tensor *row_sums(etch_tensor *x, etch_tensor *w, etch_tensor *b, etch_tensor *r) {
    (void)r;
    return etch_sum_dim(etch_linear(x, w, b), ETCH_DIMS(-1), false);
}

static etch_tensor *scaled(etch_tensor *x, etch_tensor *w, etch_tensor *b, etch_tensor *r) {
    (void)r;
    return etch_tanh(etch_addmm_scaled(b, rows_of(x), etch_t(w), beta, alpha));
}

static etch_tensor *full_self(etch_tensor *x, etch_tensor *w, etch_tensor *b, etch_tensor *r) {
    (void)b;
    return etch_sin(etch_addmm_scaled(rows_of(r), rows_of(x), etch_t(w), beta, alpha));
}

static etch_tensor *gated(etch_tensor *x, etch_tensor *w, etch_tensor *b, etch_tensor *r) {
    (void)r;
    return etch_mul(etch_silu(etch_linear(x, w, b)), etch_linear(x, w, ETCH_NONE));
}

static etch_tensor *other_dtype(etch_tensor *x, etch_tensor *w, etch_tensor *b, etch_tensor *r) {
    (void)r;
    return etch_to(etch_linear(x, w, b), etch_dtype_of(x) == ETCH_F64 ? ETCH_F32 : ETCH_F64);
}

static etch_tensor *two_results(etch_tensor *x, etch_tensor *w, etch_tensor *b, etch_tensor *r) {
    etch_tensor *c = etch_relu(etch_linear(x, w, b)), *d = etch_sub(r, c);
    return etch_mm(etch_t(rows_of(c)), rows_of(d));
}

/* A run that fails in the product may have written b already. */
static etch_tensor *updated(etch_tensor *x, etch_tensor *w, etch_tensor *b, etch_tensor *r) {
    etch_mul_scalar_(b, 0.5);
    etch_sub_(r, etch_mul_scalar(etch_linear(x, w, ETCH_NONE), 0.25));
    return etch_sum(b);
}

/* ---- programs whose product stays apart ---- */

static etch_tensor *alone(etch_tensor *x, etch_tensor *w, etch_tensor *b, etch_tensor *r) {
    (void)r;
    return etch_linear(x, w, b);
}

static etch_tensor *columns(etch_tensor *x, etch_tensor *w, etch_tensor *b, etch_tensor *r) {
    (void)r;
    return etch_sum_dim(rows_of(etch_linear(x, w, b)), ETCH_DIMS(0), false);
}

static etch_tensor *turned(etch_tensor *x, etch_tensor *w, etch_tensor *b, etch_tensor *r) {
    (void)r;
    return etch_clone(etch_t(rows_of(etch_linear(x, w, b))));
}

static etch_tensor *written(etch_tensor *x, etch_tensor *w, etch_tensor *b, etch_tensor *r) {
    etch_add_(r, etch_linear(x, w, b));
    return etch_relu(r);
}

static etch_tensor *read_and_written(etch_tensor *x, etch_tensor *w, etch_tensor *b,
                                     etch_tensor *r) {
    (void)x;
    etch_mul_scalar_(b, 0.5);
    etch_sub_(rows_of(r), etch_mm(rows_of(r), etch_mm(w, etch_t(w))));
    return etch_sum(b);
}

static etch_tensor *overwritten(etch_tensor *x, etch_tensor *w, etch_tensor *b, etch_tensor *r) {
    (void)r;
    etch_tensor *y = etch_clone(x), *c = etch_linear(y, w, b);
    etch_fill_(etch_slice(y, 0, 0, 1, 1), 7);
    return etch_add(etch_relu(c), etch_sum(y));
}

/* ---- running them ---- */

/* Seeded, so that a second set is the same. */
static operands given(etch_dtype d, etch_shape x, int64_t n, layout how, bool tame) {
    etch_shape r = x;
    int64_t k = x.v[x.n - 1];
    r.v[r.n - 1] = n;
    return (operands){make(d, x, how, tame), make(d, ETCH_SHAPE(n, k), how, tame),
                      make(d, ETCH_SHAPE(n), LAYOUT_ROW, tame), make(d, r, LAYOUT_ROW, tame)};
}

static operands again(const operands *o) {
    return (operands){o->x, o->w, etch_clone(o->b), etch_clone(o->r)};
}

/* All results of a body: what it returns and what it writes. */
static void check_same(const char *what, etch_tensor *want, etch_tensor *got, const operands *o,
                       const operands *p) {
    if (!want || !got) fail_msg("%s: %s", what, etch_last_error());
    if (!same_tensor(want, got) || !same_tensor(o->r, p->r) || !same_tensor(o->b, p->b))
        fail_msg("%s: compiled differs from eager: %s, x %lld x %lld, n %lld, alpha %g, beta %g",
                 what, etch_dtype_name(o->x->dtype), (long long)etch_size(rows_of(o->x), 0),
                 (long long)etch_size(o->x, -1), (long long)etch_size(o->w, 0), alpha, beta);
}

static void check_calls(const char *name, etch_function *f, body eager, etch_dtype d, etch_shape x,
                        int64_t n, layout how) {
    const double factors[][2] = {{1, 1}, {0.5, 2}, {0, 3}, {1, 0}};
    for (int i = 0; i < 4; i++)
        ETCH_SCOPE {
            beta = factors[i][0], alpha = factors[i][1];
            etch_set_num_threads(1 + i % 3);
            operands o = given(d, x, n, how, i != 2), p = again(&o);
            etch_tensor *want = eager(o.x, o.w, o.b, o.r);
            check_same(name, want, etch_call(f, p.x, p.w, p.b, p.r), &o, &p);
        }
    etch_set_num_threads(2);
}

typedef struct program {
    const char *name;
    body f;
    int steps; /* of its plan, with sizes beyond the small ones */
} program;

static const program joining[] = {
    {"gelu", gelu, 1},
    {"no_bias", no_bias, 1},
    {"residual", residual, 1},
    {"norm", norm, 1},
    {"softmax", softmax, 1},
    {"row_sums", row_sums, 1},
    {"scaled", scaled, 2},
    {"full_self", full_self, 2},
    {"gated", gated, 2},
    {"other_dtype", other_dtype, 1},
    {"two_results", two_results, 2},
    {"updated", updated, 2}, /* the last one: in place */
};
static const program apart[] = {
    {"alone", alone, 1},
    {"columns", columns, 2},
    {"turned", turned, 2},
    {"written", written, 2},
    {"overwritten", overwritten, 5},
    {"read_and_written", read_and_written, 4},
};

static void check_program(const program *q, etch_dtype d) {
    const int64_t sizes[][3] = {{5, 7, 9},     {130, 70, 33}, {33, 300, 65}, {1, 200, 96},
                                {200, 2, 129}, {64, 64, 64},  {66, 513, 40}, {3, 5, 0}};
    bool all = d == ETCH_BF16 || (d == ETCH_F32 && !getenv("ETCH_CPU_ISA")); /* time */
    for (int s = all ? 0 : 1; s < COUNT_OF(sizes); s += all ? 1 : 3) {
        int64_t m = sizes[s][0], n = sizes[s][1], k = sizes[s][2];
        etch_function *f = etch_compile(q->f);
        assert_non_null(f);
        etch_shape x = s % 2 && m % 2 == 0 ? ETCH_SHAPE(2, m / 2, k) : ETCH_SHAPE(m, k);
        layout how = (layout)(s % LAYOUT_COUNT);
        if (x.n == 3 && how != LAYOUT_ROW) x = ETCH_SHAPE(m, k);
        check_calls(q->name, f, q->f, d, x, n, how);
        etch_function_free(f);
    }
}

static void check_dtype(etch_dtype d) {
    for (int i = 0; i < COUNT_OF(joining); i++) check_program(&joining[i], d);
    for (int i = 0; i < COUNT_OF(apart); i++) check_program(&apart[i], d);
}

TEST(f32) { check_dtype(ETCH_F32); }
TEST(f64) { check_dtype(ETCH_F64); }
TEST(bf16) { check_dtype(ETCH_BF16); }
TEST(f16) { check_dtype(ETCH_F16); }

/* ---- what joins ---- */

static int steps_of(const program *q, etch_dtype d, etch_shape x) {
    etch_function *f = etch_compile(q->f);
    beta = 0.5, alpha = 2;
    begin_log("schedule");
    ETCH_SCOPE {
        operands o = given(d, x, 140, LAYOUT_ROW, true);
        for (int i = 0; i < 3; i++) assert_non_null(etch_call(f, o.x, o.w, o.b, o.r));
    }
    end_log();
    etch_function_free(f);
    const char *at = strstr(logged, " steps, ");
    assert_non_null(at);
    while (at > logged && at[-1] >= '0' && at[-1] <= '9') at--;
    return atoi(at);
}

static void check_steps(const program *rows, int n, etch_shape x) {
    for (int i = 0; i < n; i++)
        for (int d = 0; d <= ETCH_F16; d++) {
            int have = steps_of(&rows[i], (etch_dtype)d, x);
            if (have != rows[i].steps)
                fail_msg("%s, %s: %d steps, expected %d\n%s", rows[i].name,
                         etch_dtype_name((etch_dtype)d), have, rows[i].steps, logged);
        }
}

TEST(what_joins) { check_steps(joining, COUNT_OF(joining), ETCH_SHAPE(130, 96)); }
/* The product has one axis of rows, what follows it two; what is written stays in its own axes. */
TEST(what_joins_in_batches) { check_steps(joining, COUNT_OF(joining) - 1, ETCH_SHAPE(5, 26, 96)); }
TEST(what_stays_apart) { check_steps(apart, COUNT_OF(apart), ETCH_SHAPE(130, 96)); }

/* Sizes that change are run-time values: no later call compiles. */
TEST(sizes_at_run_time) {
    etch_function *f = etch_compile(gelu);
    for (int64_t m = 1; m < 400; m += m < 5 ? 1 : 61)
        ETCH_SCOPE {
            operands o = given(ETCH_BF16, ETCH_SHAPE(m + 1, 80), 70, LAYOUT_ROW, true);
            etch_tensor *want = gelu(o.x, o.w, o.b, o.r);
            check_same("run time", want, etch_call(f, o.x, o.w, o.b, o.r), &o, &o);
        }
    etch_explanation *e = etch_explain(f);
    assert_non_null(e);
    assert_true(e->recompile_count <= 2);
    etch_explanation_free(e);
    etch_function_free(f);
}

/* What is written lies where an operand of the product does: given as both, in one call and not in
 * the next. */
TEST(updated_operand) {
    etch_function *f = etch_compile(updated);
    for (int i = 0; i < 6; i++)
        ETCH_SCOPE {
            operands o = given(ETCH_F32, ETCH_SHAPE(140, 140), 140, LAYOUT_ROW, true);
            operands p = again(&o);
            etch_tensor *want = updated(i % 2 ? o.r : o.x, o.w, o.b, o.r);
            check_same("operand", want, etch_call(f, i % 2 ? p.r : p.x, p.w, p.b, p.r), &o, &p);
        }
    etch_function_free(f);
}

TEST(no_memory) {
    etch_function *f = etch_compile(norm);
    ETCH_SCOPE {
        operands o = given(ETCH_BF16, ETCH_SHAPE(130, 96), 140, LAYOUT_ROW, true);
        etch_tensor *want = norm(o.x, o.w, o.b, o.r);
        for (int i = 0; i < 3; i++) assert_non_null(etch_call(f, o.x, o.w, o.b, o.r));
        bool done = false;
        for (int64_t n = 0; !done; n++)
            ETCH_SCOPE {
                etch__fail_allocation(n);
                etch_tensor *y = etch_call(f, o.x, o.w, o.b, o.r);
                etch__fail_allocation(-1);
                assert_true(n < 100);
                if (!y) assert_int_equal(etch_last_status(), ETCH_ERR_OUT_OF_MEMORY);
                etch_clear_error();
                if (!y) continue;
                assert_true(same_tensor(y, want));
                done = true;
            }
    }
    etch_function_free(f);
}

int main(int argc, char **argv) { return run_suite(argc, argv) + run_under_lower_isas(argv); }
