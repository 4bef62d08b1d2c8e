/* Forward mode for every operator, by the samples of grad_samples.h: tangents against gradients
 * (the one is the other's transpose), against differences, in place, in the other dtypes, and with
 * tangents of gradients. Labels: long. */
#include <etch/etch.h>

#include "core/autograd/derivative.h"
#include "grad_values.h"

#define EACH_SAMPLE(s) for (const sample *s = samples; s; s = s->next)

static void wrong(const sample *s, const char *what) {
    fail_msg("%s, grad_samples.h:%d, %s: %s\n%s", etch__ops[s->op].name, s->line, s->text, what,
             etch_last_error());
}

static ETCH_FN_N(body, ctx, in, nin, out, nout) {
    const sample *s = ctx;
    etch_tensor *x[SAMPLE_INPUTS];
    memcpy(x, in, (size_t)nin * sizeof *x);
    return (out[0] = s->call(x)) ? ETCH_OK : etch_last_status();
}

/* Directions for the operands that have a gradient, others NULL. */
static int directions(const operands *o, etch_tensor *const *x, unsigned mask, etch_tensor **t) {
    int n = 0;
    for (int k = 0; k < o->n; k++) {
        t[k] = NULL;
        if (!wants_grad(&o->s->in[k]) || !(mask >> k & 1)) continue;
        etch_tensor *i = etch_arange(ETCH_F64, 0, etch_numel(x[k]), 1);
        i = etch_sin(etch_add_scalar(etch_mul_scalar(i, 1.7), 0.3 + k));
        t[k] = etch_to(etch_reshape(i, etch_sizes(x[k])), etch_dtype_of(x[k]));
        n++;
    }
    return n;
}

static etch_tensor *weights(const etch_tensor *y) {
    etch_tensor *i = etch_arange(ETCH_F64, 0, etch_numel(y), 1);
    i = etch_cos(etch_add_scalar(etch_mul_scalar(i, 2.3), 0.4));
    return etch_to(etch_reshape(i, etch_sizes(y)), etch_dtype_of(y));
}

static double product(etch_tensor *a, etch_tensor *b) {
    return etch_item(etch_sum(etch_to(etch_mul(a, b), ETCH_F64)));
}

/* The result's tangent, weighed. */
static double by_tangents(const sample *s, const operands *o, etch_tensor **x, etch_tensor **t,
                          etch_tensor **y) {
    etch_tensor *ty = NULL;
    if (etch_jvp(ETCH_CALLABLE(body, (void *)s), x, t, o->n, y, &ty, 1) != ETCH_OK)
        wrong(s, "etch_jvp fails");
    etch_shape a = etch_sizes(*y), b = etch_sizes(ty);
    if (a.n != b.n || memcmp(a.v, b.v, (size_t)a.n * sizeof *a.v) ||
        etch_dtype_of(ty) != etch_dtype_of(*y))
        wrong(s, "a tangent's sizes or dtype");
    return product(ty, weights(*y));
}

/* The same by gradients: those for the weights, along the directions. */
static double by_gradients(const sample *s, const operands *o, etch_tensor **x, etch_tensor **t) {
    etch_tensor *y = NULL, *g[SAMPLE_INPUTS], *w = NULL;
    ETCH_NO_GRAD
        w = weights(s->call(memcpy(g, x, (size_t)o->n * sizeof *g)));
    if (etch_vjp(ETCH_CALLABLE(body, (void *)s), x, o->n, &w, &y, 1, g) != ETCH_OK)
        wrong(s, "etch_vjp fails");
    double sum = 0;
    for (int k = 0; k < o->n; k++)
        if (t[k]) sum += product(g[k], t[k]);
    return sum;
}

/* By differences of results, each `step` apart. */
static double by_differences(const sample *s, const operands *o, etch_tensor **x, etch_tensor **t) {
    const double step = 1e-5;
    double value[2];
    for (int side = 0; side < 2; side++) {
        etch_tensor *moved[SAMPLE_INPUTS];
        for (int k = 0; k < o->n; k++)
            moved[k] = t[k] ? etch_add_alpha(x[k], t[k], side ? -step : step) : x[k];
        etch_tensor *y = s->call(moved);
        value[side] = product(y, weights(y));
    }
    return (value[0] - value[1]) / (2 * step);
}

static bool is_of_reals(const sample *s, etch_tensor *const *x) {
    etch_tensor *copy[SAMPLE_INPUTS];
    memcpy(copy, x, sizeof copy);
    etch_dtype d = etch_dtype_of(s->call(copy));
    return d == ETCH_F64 || d == ETCH_F32;
}

TEST(tangents_are_gradients_transposed_and_slopes) {
    EACH_SAMPLE(s)
    for (unsigned mask = 1; mask < 1u << SAMPLE_INPUTS; mask = mask * 2 + 1)
        for (layout how = ROW_MAJOR; how < (s->laid ? COLUMN_MAJOR : LAYOUTS); how++)
            ETCH_SCOPE {
                operands o;
                etch_tensor *x[SAMPLE_INPUTS], *t[SAMPLE_INPUTS], *y = NULL;
                fill(&o, s, 0);
                make(&o, ETCH_F64, how, false, x);
                if (!directions(&o, x, mask, t) || !is_of_reals(s, x)) break;
                double a = by_tangents(s, &o, x, t, &y), b = by_gradients(s, &o, x, t);
                double c = by_differences(s, &o, x, t), size = 1 + fabs(a);
                if (!(fabs(a - b) < 1e-9 * size)) wrong(s, "tangents are not gradients");
                if (!(fabs(a - c) < 1e-5 * size)) wrong(s, "tangents are not slopes");
                etch_tensor *copy[SAMPLE_INPUTS];
                memcpy(copy, x, sizeof copy);
                if (!etch_equal(y, s->call(copy))) wrong(s, "the value is another one");
            }
}

/* Tangents of gradients against gradients of gradients: forward over reverse, and the other way
 * round. */
typedef struct second {
    const sample *s;
    int n, which;
} second;

static ETCH_FN_N(gradient_body, ctx, in, nin, out, nout) {
    const second *c = ctx;
    etch_tensor *y = NULL, *g[SAMPLE_INPUTS], *w = NULL, *x[SAMPLE_INPUTS];
    memcpy(x, in, (size_t)nin * sizeof *x);
    ETCH_NO_GRAD
        w = weights(c->s->call(x));
    etch_status status = etch_vjp(ETCH_CALLABLE(body, (void *)c->s), in, nin, &w, &y, 1, g);
    out[0] = g[c->which];
    return status;
}

static ETCH_FN_N(tangent_body, ctx, in, nin, out, nout) {
    const second *c = ctx;
    etch_tensor *y = NULL, *t[SAMPLE_INPUTS];
    operands o;
    fill(&o, c->s, 0);
    directions(&o, in, 1u << c->which, t);
    return etch_jvp(ETCH_CALLABLE(body, (void *)c->s), in, t, nin, &y, out, 1);
}

static void check_second(const sample *s, int which) {
    operands o;
    etch_tensor *x[SAMPLE_INPUTS], *t[SAMPLE_INPUTS], *y = NULL, *ty = NULL, *g[SAMPLE_INPUTS];
    second c = {s, 0, which};
    fill(&o, s, 0);
    make(&o, ETCH_F64, ROW_MAJOR, false, x);
    directions(&o, x, ~0u, t);
    if (etch_jvp(ETCH_CALLABLE(gradient_body, &c), x, t, o.n, &y, &ty, 1) != ETCH_OK)
        wrong(s, "forward over reverse fails");
    etch_tensor *direction[SAMPLE_INPUTS], *w = NULL;
    directions(&o, x, 1u << which, direction);
    double a = product(ty, direction[which]), b = 0;
    etch_tensor *copy[SAMPLE_INPUTS];
    memcpy(copy, x, sizeof copy);
    ETCH_NO_GRAD
        w = weights(s->call(copy));
    if (etch_vjp(ETCH_CALLABLE(tangent_body, &c), x, o.n, &w, &y, 1, g) != ETCH_OK)
        wrong(s, "reverse over forward fails");
    for (int k = 0; k < o.n; k++)
        if (t[k]) b += product(g[k], t[k]);
    if (!(fabs(a - b) < 1e-8 * (1 + fabs(a)))) wrong(s, "second derivatives differ");
}

TEST(forward_over_reverse_is_reverse_over_forward) {
    EACH_SAMPLE(s)
    for (int k = 0; k < SAMPLE_INPUTS && s->in[k].kind; k++)
        ETCH_SCOPE {
            operands o;
            etch_tensor *x[SAMPLE_INPUTS];
            fill(&o, s, 0);
            make(&o, ETCH_F64, ROW_MAJOR, false, x);
            if (wants_grad(&s->in[k]) && is_of_reals(s, x)) check_second(s, k);
        }
}

/* Mapped over directions: a column at a time is the same as all at once. */
typedef struct mapped {
    const sample *s;
    const operands *o;
    etch_tensor **x;
    int which;
} mapped;

static ETCH_FN_N(mapped_body, ctx, in, nin, out, nout) {
    const mapped *m = ctx;
    etch_tensor *t[SAMPLE_INPUTS] = {NULL}, *y = NULL;
    t[m->which] = in[0];
    return etch_jvp(ETCH_CALLABLE(body, (void *)m->s), m->x, t, m->o->n, &y, out, 1);
}

TEST(directions_are_mapped_over) {
    EACH_SAMPLE(s)
    for (int k = 0; k < SAMPLE_INPUTS && s->in[k].kind; k++)
        ETCH_SCOPE {
            operands o;
            etch_tensor *x[SAMPLE_INPUTS], *t[SAMPLE_INPUTS], *twice[2], *y = NULL, *want = NULL;
            fill(&o, s, 0);
            make(&o, ETCH_F64, ROW_MAJOR, false, x);
            if (!wants_grad(&s->in[k]) || !is_of_reals(s, x)) break;
            directions(&o, x, 1u << k, t);
            twice[0] = t[k], twice[1] = etch_mul_scalar(t[k], 2);
            etch_tensor *both = etch_stack(twice, 2, 0);
            mapped m = {s, &o, x, k};
            etch_function *f =
                etch_vmap(ETCH_CALLABLE(mapped_body, &m), ETCH_DIMS(0), ETCH_DIMS(0));
            etch_tensor *got = etch_call(f, both);
            etch_function_free(f);
            if (!got) wrong(s, "mapped etch_jvp fails");
            if (etch_jvp(ETCH_CALLABLE(body, (void *)s), x, t, o.n, &y, &want, 1) != ETCH_OK)
                wrong(s, "etch_jvp fails");
            etch_tensor *off = etch_sub(etch_select(got, 0, 1), etch_mul_scalar(want, 2));
            if (etch_numel(off) && !(etch_item(etch_max(etch_abs(off))) < 1e-9))
                wrong(s, "mapped tangents differ");
        }
}
