/* Every operator's derivative, by the samples of grad_samples.h: gradients against differences of
 * the results, gradients of gradients against differences of gradients, compiled against eager bit
 * for bit, and in the other dtypes.
 * Labels: device long. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/autograd/derivative.h"
#include "device_support.h"
#include "etch_test.h"
#include "grad_values.h"

static void read_numbers(etch_tensor *t, double *v) {
    if (!t) fail_msg("%s", etch_last_error());
    assert_true(etch_numel(t) <= MOST);
    double room[MOST + 1];
    ETCH_NO_GRAD
        assert_int_equal(
            etch_to_host(etch_to(t, ETCH_F64), room, (size_t)etch_numel(t) * sizeof *v), ETCH_OK);
    memcpy(v, room, (size_t)etch_numel(t) * sizeof *v);
}

/* ---- what is differentiated: the sum of the results, each times a weight ---- */

static double weight(int64_t i) { return 0.6 + 0.37 * (double)(i % 7) - 0.21 * (double)(i % 4); }

static etch_tensor *weights_for(etch_tensor *y) {
    double w[MOST];
    assert_true(etch_numel(y) <= MOST);
    for (int64_t i = 0; i < etch_numel(y); i++) w[i] = weight(i);
    etch_tensor *t = NULL;
    ETCH_NO_GRAD
        t = of_numbers(w, etch_sizes(y), etch_dtype_of(y));
    return t;
}

static void wrong(const sample *s, const char *what) {
    fail_msg("%s, grad_samples.h:%d, %s: %s\n%s", etch__ops[s->op].name, s->line, s->text, what,
             etch_last_error());
}

static etch_tensor *call(const sample *s, etch_tensor **x) {
    etch_tensor *y = s->call(x);
    if (!y) wrong(s, "the call fails");
    return y;
}

/* Leaves in the order of the operands. */
static int leaves_of(const operands *o, etch_tensor **x, etch_tensor **leaf, int *which) {
    int n = 0;
    for (int k = 0; k < o->n; k++)
        if (wants_grad(&o->s->in[k])) leaf[n] = x[k], which[n++] = k;
    return n;
}

static double loss_of(const operands *o, layout how) {
    etch_tensor *x[SAMPLE_INPUTS];
    double y[MOST], sum = 0;
    ETCH_SCOPE {
        make(o, ETCH_F64, how, false, x);
        etch_tensor *r = call(o->s, x);
        read_numbers(r, y);
        for (int64_t i = 0; i < etch_numel(r); i++) sum += weight(i) * y[i];
    }
    return sum;
}

/* The gradients of the loss, by operand; u: other gradients for the result, in f64. */
typedef struct gradients {
    double v[SAMPLE_INPUTS][MOST];
} gradients;

static gradients gradients_of(const operands *o, etch_dtype dtype, layout how) {
    gradients g = {0};
    etch_tensor *x[SAMPLE_INPUTS], *leaf[SAMPLE_INPUTS], *to[SAMPLE_INPUTS];
    int which[SAMPLE_INPUTS];
    ETCH_SCOPE {
        make(o, dtype, how, true, x);
        int n = leaves_of(o, x, leaf, which);
        etch_tensor *y = call(o->s, x), *w = weights_for(y);
        if (etch_grad(&y, 1, leaf, n, &w, NULL, to) != ETCH_OK) wrong(o->s, "etch_grad fails");
        for (int k = 0; k < n; k++) {
            etch_shape size = etch_sizes(to[k]), want = o->s->in[which[k]].size;
            bool same =
                size.n == want.n && !memcmp(size.v, want.v, sizeof *size.v * (size_t)size.n);
            if (!same || etch_dtype_of(to[k]) != dtype) wrong(o->s, "a gradient's sizes or dtype");
            read_numbers(to[k], g.v[which[k]]);
        }
    }
    return g;
}

/* ---- differences ---- */

typedef double (*function)(operands *o, const void *ctx);

/* Of the fourth order: of f at one operand's element. */
static double slope(function f, operands *o, const void *ctx, double *at) {
    const double step = 1e-3;
    double v = *at, d[5];
    for (int k = -2; k <= 2; k++) {
        *at = v + k * step;
        if (k) d[k + 2] = f(o, ctx);
    }
    *at = v;
    return (8 * (d[3] - d[1]) - (d[4] - d[0])) / (12 * step);
}

static bool near(double have, double want) { return fabs(have - want) <= 1e-7 * (1 + fabs(want)); }

static void differ(const sample *s, const char *what, int operand, int64_t i, double have,
                   double want) {
    char text[160];
    snprintf(text, sizeof text, "%s of operand %d, element %ld: %.12g, differences give %.12g",
             what, operand, (long)i, have, want);
    wrong(s, text);
}

static double loss_at(operands *o, const void *ctx) { return loss_of(o, *(const layout *)ctx); }

static void check_first(const sample *s, layout how) {
    operands o;
    fill(&o, s, 0);
    gradients g = gradients_of(&o, ETCH_F64, how);
    for (int k = 0; k < o.n; k++)
        for (int64_t i = 0; wants_grad(&s->in[k]) && i < numel_of(s->in[k].size); i++) {
            double want = slope(loss_at, &o, &how, &o.v[k][i]);
            if (!near(g.v[k][i], want)) differ(s, "gradient", k, i, g.v[k][i], want);
        }
}

#define EACH_SAMPLE(s)                                                                             \
    for (const sample *s = samples; s; s = s->next)                                                \
        if (sample_runs_here(s))
#define EACH_LAYOUT(s, how)                                                                        \
    for (layout how = ROW_MAJOR; how < ((s)->laid ? COLUMN_MAJOR : LAYOUTS); how++)

TEST(gradients_are_slopes) {
    EACH_SAMPLE(s)
    EACH_LAYOUT(s, how) check_first(s, how);
}

/* ---- gradients of gradients: of the sum of all gradients, each element times a weight, for the
 * operands and for the result's gradient, which the first ones are linear in ---- */

typedef struct second {
    double loss;
    bool constant; /* the gradients depend on nothing */
    double v[SAMPLE_INPUTS][MOST], u[MOST];
} second;

static double sum_of(int n, etch_tensor **g) {
    double sum = 0, v[MOST];
    for (int k = 0; k < n; k++) {
        read_numbers(g[k], v);
        for (int64_t i = 0; i < etch_numel(g[k]); i++) sum += weight(i + k) * v[i];
    }
    return sum;
}

static etch_tensor *sum_of_gradients(int n, etch_tensor **g) {
    etch_tensor *sum = NULL;
    for (int k = 0; k < n; k++) {
        if (!etch_requires_grad(g[k])) continue;
        double w[MOST];
        for (int64_t i = 0; i < etch_numel(g[k]); i++) w[i] = weight(i + k);
        etch_tensor *t = of_numbers(w, etch_sizes(g[k]), ETCH_F64);
        t = etch_sum(etch_mul(g[k], t));
        sum = sum ? etch_add(sum, t) : t;
    }
    return sum;
}

/* nudge: added to an element of the result's gradient. */
static second second_of(const operands *o, layout how, int64_t nudged, double nudge,
                        bool differentiate) {
    second r = {0};
    etch_tensor *x[SAMPLE_INPUTS], *leaf[SAMPLE_INPUTS + 1], *g[SAMPLE_INPUTS],
        *gg[SAMPLE_INPUTS + 1];
    int which[SAMPLE_INPUTS];
    const etch_grad_options create = {.struct_size = sizeof create, .create_graph = differentiate};
    const etch_grad_options unused = {.struct_size = sizeof unused, .allow_unused = true};
    ETCH_SCOPE {
        make(o, ETCH_F64, how, true, x);
        int n = leaves_of(o, x, leaf, which);
        etch_tensor *y = call(o->s, x);
        double w[MOST];
        for (int64_t i = 0; i < etch_numel(y); i++) w[i] = weight(i) + (i == nudged ? nudge : 0);
        etch_tensor *u = of_numbers(w, etch_sizes(y), ETCH_F64);
        if (differentiate) etch_requires_grad_(u, true);
        leaf[n] = u;
        if (etch_grad(&y, 1, leaf, n, &u, &create, g) != ETCH_OK) wrong(o->s, "etch_grad fails");
        r.loss = sum_of(n, g);
        if (!differentiate) break;
        etch_tensor *sum = sum_of_gradients(n, g);
        r.constant = !sum;
        if (!sum) break;
        if (etch_grad(&sum, 1, leaf, n + 1, NULL, &unused, gg) != ETCH_OK)
            wrong(o->s, "the second etch_grad fails");
        for (int k = 0; k < n; k++)
            if (gg[k]) read_numbers(gg[k], r.v[which[k]]);
        if (gg[n]) read_numbers(gg[n], r.u);
    }
    return r;
}

static double first_at(operands *o, const void *ctx) {
    return second_of(o, *(const layout *)ctx, -1, 0, false).loss;
}

static int64_t results_of(const operands *o) {
    etch_tensor *x[SAMPLE_INPUTS];
    int64_t n = 0;
    ETCH_SCOPE {
        make(o, ETCH_F64, ROW_MAJOR, false, x);
        n = etch_numel(call(o->s, x));
    }
    return n;
}

static void check_second(const sample *s, layout how) {
    operands o;
    fill(&o, s, 6);
    second r = second_of(&o, how, -1, 0, true);
    for (int k = 0; k < o.n; k++)
        for (int64_t i = 0; wants_grad(&s->in[k]) && i < numel_of(s->in[k].size); i++) {
            double want = slope(first_at, &o, &how, &o.v[k][i]);
            if (!near(r.v[k][i], want)) differ(s, "second gradient", k, i, r.v[k][i], want);
        }
    int64_t n = results_of(&o);
    for (int64_t i = 0; i < n; i++) {
        double want = second_of(&o, how, i, 1, false).loss - r.loss;
        if (!near(r.u[i], want)) differ(s, "gradient for the gradient", -1, i, r.u[i], want);
    }
}

TEST(gradients_of_gradients_are_slopes) {
    EACH_SAMPLE(s)
    EACH_LAYOUT(s, how) check_second(s, how);
}

/* ---- other dtypes ---- */

static void round_operands(operands *o, etch_dtype dtype) {
    for (int k = 0; k < o->n; k++)
        if (is_float_input(&o->s->in[k]))
            ETCH_SCOPE {
                etch_shape size = o->s->in[k].size;
                read_numbers(of_numbers(o->v[k], size, dtype), o->v[k]);
            }
}

/* Against f64, within a few roundings of the largest element. */
static void check_dtype(const sample *s, etch_dtype dtype, double unit) {
    operands o;
    fill(&o, s, 2);
    round_operands(&o, dtype);
    gradients want = gradients_of(&o, ETCH_F64, ROW_MAJOR);
    gradients have = gradients_of(&o, dtype, ROW_MAJOR);
    for (int k = 0; k < o.n; k++) {
        double most = 1;
        int64_t n = wants_grad(&s->in[k]) ? numel_of(s->in[k].size) : 0;
        for (int64_t i = 0; i < n; i++) most = fmax(most, fabs(want.v[k][i]));
        for (int64_t i = 0; i < n; i++)
            if (fabs(have.v[k][i] - want.v[k][i]) > 8 * unit * most)
                differ(s, etch_dtype_name(dtype), k, i, have.v[k][i], want.v[k][i]);
    }
}

TEST(gradients_have_the_operands_dtype) {
    EACH_SAMPLE(s) {
        check_dtype(s, ETCH_F32, 0x1p-23);
        check_dtype(s, ETCH_BF16, 0x1p-8);
        check_dtype(s, ETCH_F16, 0x1p-11);
    }
}

/* ---- compiled ---- */

typedef struct compiled {
    const sample *s;
    bool backward; /* the body takes gradients, too */
} compiled;

static etch_status gradients_into(const sample *s, etch_tensor *y, etch_tensor *const *x, int nin,
                                  etch_tensor **to) {
    etch_tensor *leaf[SAMPLE_INPUTS];
    int n = 0;
    for (int k = 0; k < nin; k++)
        if (wants_grad(&s->in[k])) leaf[n++] = x[k];
    etch_tensor *w = NULL;
    ETCH_NO_GRAD
        w = etch_add_scalar(etch_mul_scalar(y, 0.5), 0.25);
    return etch_grad(&y, 1, leaf, n, &w, NULL, to);
}

/* The result, then the gradients of the operands that want them. */
static ETCH_FN_N(body, ctx, in, nin, out, nout) {
    const compiled *c = ctx;
    etch_tensor *x[SAMPLE_INPUTS];
    for (int k = 0; k < nin; k++) x[k] = c->s->in[k].kind == 'n' ? ETCH_NONE : in[k];
    etch_tensor *y = out[0] = c->s->call(x);
    if (!y) return etch_last_status();
    return c->backward ? gradients_into(c->s, y, x, nin, out + 1) : ETCH_OK;
}

/* out: the result and the gradients, which where the body has not taken them are taken here. How
 * many these are. */
static int run_body(const compiled *c, etch_function *f, etch_tensor **x, int nin,
                    etch_tensor **out) {
    int n = 1;
    for (int k = 0; k < nin; k++) n += wants_grad(&c->s->in[k]);
    int nout = c->backward ? n : 1;
    etch_status status = f ? etch_call_n(f, x, nin, out, nout) : body((void *)c, x, nin, out, nout);
    if (status == ETCH_OK && !c->backward) status = gradients_into(c->s, out[0], x, nin, out + 1);
    if (status != ETCH_OK) wrong(c->s, f ? "the compiled call fails" : "the call fails");
    return n;
}

static void check_round(const compiled *c, etch_function *f, uint64_t seed, etch_dtype dtype,
                        layout how) {
    etch_tensor *x[SAMPLE_INPUTS], *have[SAMPLE_INPUTS + 1], *want[SAMPLE_INPUTS + 1];
    operands o;
    fill(&o, c->s, seed);
    make(&o, dtype, how, true, x);
    for (int k = 0; k < o.n; k++)
        if (x[k] == ETCH_NONE) x[k] = etch_ones(ETCH_F32, S());
    int n = run_body(c, NULL, x, o.n, want);
    run_body(c, f, x, o.n, have);
    for (int k = 0; k < n; k++)
        if (!etch_bitwise_equal(want[k], have[k]))
            wrong(c->s, k ? "a compiled gradient differs" : "the compiled result differs");
}

static void check_compiled(const sample *s, bool backward, etch_dtype dtype, layout how) {
    compiled c = {s, backward};
    etch_function *f = etch_compile(body, .ctx = &c);
    for (int round = 0; round < 3; round++)
        ETCH_SCOPE
            check_round(&c, f, 3 + (uint64_t)round, dtype, how);
    etch_function_free(f);
}

TEST(compiled_gradients_have_the_same_bits) {
    int64_t failures = etch_counters().compile_failures;
    EACH_SAMPLE(s) {
        check_compiled(s, false, ETCH_F32, ROW_MAJOR);
        check_compiled(s, true, ETCH_F32, ROW_MAJOR);
        check_compiled(s, true, ETCH_BF16, ROW_MAJOR);
        if (!s->laid) check_compiled(s, true, ETCH_F64, BACKWARD);
    }
    assert_int_equal(etch_counters().compile_failures, failures);
}

/* ---- the table ---- */

/* Composites whose parts give no gradient to anybody. */
static bool gives_none(op_id op) {
    return op == OP_ANY || op == OP_ALL || op == OP_COUNT_NONZERO || op == OP_ONE_HOT ||
           op == OP_NONZERO;
}

static bool is_differentiable(op_id op) {
    const derivative *d = etch__derivative(op);
    return etch__ops[op].kind == KIND_COMPOSITE ? !gives_none(op) : d && d->rule;
}

TEST(every_operator_has_a_sample) {
    char missing[2000] = "";
    for (op_id op = 0; op < OP_COUNT; op++) {
        bool has = false;
        for (const sample *s = samples; s; s = s->next) has |= s->op == op; /* on any device */
        if (has || !is_differentiable(op)) continue;
        strncat(missing, etch__ops[op].name, sizeof missing - strlen(missing) - 2);
        strcat(missing, " ");
    }
    if (*missing) fail_msg("operators without a sample in grad_samples.h: %s", missing);
}

static etch_status watch(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                         etch_tensor **out, int nout) {
    bool *called = ctx;
    called[op->id] = true;
    (void)args, (void)nargs, (void)out, (void)nout;
    return ETCH_DECLINED;
}

TEST(a_sample_calls_its_operator) {
    bool called[OP_COUNT];
    etch_mode *mode = etch_mode_new(watch, called, .composite = true);
    EACH_SAMPLE(s)
    ETCH_SCOPE {
        operands o;
        etch_tensor *x[SAMPLE_INPUTS];
        memset(called, 0, sizeof called);
        fill(&o, s, 0);
        make(&o, ETCH_F64, ROW_MAJOR, false, x);
        ETCH_WITH_MODE (mode) assert_non_null(s->call(x));
        bool by_mask = s->op == OP_INDEX_PUT && s->in[1].kind == 'b';
        if (!called[s->op] && !by_mask) wrong(s, "the operator is not called");
    }
    etch_mode_free(mode);
}
