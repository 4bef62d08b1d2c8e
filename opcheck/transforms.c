/* etch_opcheck: an operator mapped over a batch, and in forward mode. */
#include <etch/transforms.h>
#include <math.h>

#include "core/dispatch/dispatch.h"
#include "opcheck/check.h"

/* ---- the operator as a function of its tensors ---- */

typedef struct as_function {
    opcheck *c;
    const etch_op_sample *s;
    etch_tensor *const *in; /* during a call */
    int used;
    bool copies; /* what it gets may be written */
} as_function;

static etch_tensor *next_tensor(etch_tensor *t, void *ctx) {
    as_function *f = ctx;
    etch_tensor *given = f->in[f->used++];
    return t == ETCH_NONE ? t : f->copies ? etch_clone(given) : given;
}

static ETCH_FN_N(body, ctx, in, nin, out, nout) {
    as_function *f = ctx;
    opcheck_inputs made;
    f->in = in, f->used = 0;
    if (!etch__opcheck_remake(&made, f->s->args, f->s->nargs, next_tensor, f))
        return etch_last_status();
    return (out[0] = etch__opcheck_call(f->c, &made)) ? ETCH_OK : etch_last_status();
}

static bool is_real(const etch_tensor *t) {
    return t != ETCH_NONE && etch__is_float(etch_dtype_of(t));
}

/* Other numbers of the same size; what is not of reals stays, since it may be an index. */
static etch_tensor *moved(etch_tensor *t, double by) {
    if (!is_real(t)) return t;
    etch_tensor *i = NULL;
    ETCH_ON(etch_device_of(t)) i = etch_arange(ETCH_F64, 0, etch_numel(t), 1);
    etch_tensor *wave = etch_sin(etch_add_scalar(etch_mul_scalar(i, 1.7), 0.4));
    wave = etch_to(etch_reshape(wave, etch_sizes(t)), etch_dtype_of(t));
    return etch_add(t, etch_mul_scalar(wave, by));
}

/* ---- over a batch ---- */

static etch_tensor *by_itself(as_function *f, etch_tensor *const *in, int n) {
    etch_tensor *y = NULL;
    return body(f, in, n, &y, 1) == ETCH_OK ? y : NULL;
}

static void compare(opcheck *c, etch_tensor *mapped, etch_tensor *const *alone) {
    for (int b = 0; b < 2; b++) {
        etch_tensor *one = mapped ? etch_select(mapped, 0, b) : NULL;
        if (!one) return etch__opcheck_failed(c, "mapped", "the mapped call");
        if (!etch__opcheck_near(one, alone[b]))
            etch__opcheck_fault(c, "mapped", "sample %d of a batch differs from itself alone", b);
    }
}

void etch__opcheck_mapped(opcheck *c, const etch_op_sample *s) {
    opcheck_inputs in;
    as_function f = {.c = c, .s = s, .copies = true};
    etch_tensor *batch[OPCHECK_TENSORS], *other[OPCHECK_TENSORS], *alone[2], *y = NULL;
    etch_dims dims = ETCH_DIMS(0);
    if (c->op->flags & OPF_EFFECTS ||
        !etch__opcheck_remake(&in, s->args, s->nargs, etch__opcheck_copy, NULL))
        return;
    int mapped = 0;
    for (int i = 0; i < in.nt; i++) {
        if (in.t[i] == ETCH_NONE) return; /* in_dims cannot leave one of many out */
        other[i] = moved(in.t[i], 0.01);
        etch_tensor *pair[2] = {in.t[i], other[i]};
        if (!other[i] || !(batch[i] = etch_stack(pair, 2, 0))) return;
        mapped++;
    }
    alone[0] = by_itself(&f, in.t, in.nt), alone[1] = by_itself(&f, other, in.nt);
    if (!mapped || !alone[0] || !alone[1]) return etch_clear_error(); /* not for such numbers */
    etch_function *fn = etch_vmap(ETCH_CALLABLE(body, &f), dims, ETCH_DIMS(0));
    if (fn) etch_call_n(fn, batch, in.nt, &y, 1);
    etch_function_free(fn);
    compare(c, y, alone);
}

/* ---- forward mode ---- */

static double weighed(etch_tensor *t) {
    etch_tensor *i = NULL;
    ETCH_ON(etch_device_of(t)) i = etch_arange(ETCH_F64, 0, etch_numel(t), 1);
    etch_tensor *weights = etch_cos(etch_mul_scalar(i, 2.3));
    etch_tensor *flat = etch_reshape(etch_to(t, ETCH_F64), ETCH_SHAPE(-1));
    etch_tensor *sum = etch_sum(etch_mul(flat, weights));
    return sum ? etch_item(sum) : NAN;
}

static double value_at(as_function *f, const opcheck_inputs *in, int k, double step) {
    etch_tensor *x[OPCHECK_TENSORS];
    memcpy(x, in->t, sizeof x);
    x[k] = moved(in->t[k], step);
    etch_tensor *y = x[k] ? by_itself(f, x, in->nt) : NULL;
    return y ? weighed(y) : NAN;
}

static void check_tangent(as_function *f, const opcheck_inputs *in, int k) {
    etch_tensor *t[OPCHECK_TENSORS] = {NULL}, *y = NULL, *ty = NULL;
    bool wide = etch_dtype_of(in->t[k]) == ETCH_F64;
    double step = wide ? 1e-4 : 1e-2;
    t[k] = etch_sub(moved(in->t[k], 1), in->t[k]);
    if (etch_jvp(ETCH_CALLABLE(body, f), in->t, t, in->nt, &y, &ty, 1) != ETCH_OK)
        return etch__opcheck_failed(f->c, "tangent", "etch_jvp");
    double have = weighed(ty);
    double want = (value_at(f, in, k, step) - value_at(f, in, k, -step)) / (2 * step);
    if (isnan(want) || fabs(have - want) <= (wide ? 1e-5 : 2e-2) * (1 + fabs(have))) return;
    etch__opcheck_fault(f->c, "tangent", "tensor %d: %.8g, differences give %.8g", k, have, want);
}

void etch__opcheck_forward(opcheck *c, const etch_op_sample *s, const etch_tensor *result) {
    opcheck_inputs in;
    as_function f = {.c = c, .s = s};
    bool has = c->op->id >= OP_COUNT && etch__custom_rules(c->op->id)->jvp;
    if (!has || !is_real(result) || !etch_numel(result) ||
        !etch__opcheck_remake(&in, s->args, s->nargs, etch__opcheck_copy, NULL))
        return;
    for (int k = 0; k < in.nt; k++)
        if (is_real(in.t[k]))
            ETCH_SCOPE
                check_tangent(&f, &in, k);
}
