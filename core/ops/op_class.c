/* Static classes of calls: what a scalar operand selects before the call is recorded, so that it is
 * compared and not a run-time value (core/ops/op.h, OPF_CLASS_*). */
#include <math.h>

#include "core/ops/rules.h"

static double scalar_real(const etch_scalar *s) {
    return s->kind == ETCH_SCALAR_REAL ? s->d : (double)s->i;
}

static int64_t exponent_class_of(double e) {
    static const struct {
        double value;
        exponent_class class;
    } classes[] = {{2, EXPONENT_TWO},        {3, EXPONENT_THREE}, {0.5, EXPONENT_HALF},
                   {-1, EXPONENT_MINUS_ONE}, {1, EXPONENT_ONE},   {0, EXPONENT_ZERO}};
    for (int i = 0; i < COUNT_OF(classes); i++)
        if (e == classes[i].value) return classes[i].class;
    return e == e && (double)(float)e != e ? EXPONENT_DOUBLE : EXPONENT_ANY;
}

/* Elements from start up to but without end, or an ARANGE_ code. Integers are counted exactly. */
static int64_t arange_numel(const etch_scalar *sc, int nsc) {
    bool real = false;
    for (int i = 0; i < nsc; i++) real |= sc[i].kind == ETCH_SCALAR_REAL;
    if (!real) {
        __int128 length = (__int128)sc[1].i - sc[0].i, step = sc[2].i;
        if (!step) return ARANGE_STEP_ZERO;
        if (length && (length < 0) != (step < 0)) return ARANGE_DIRECTION;
        __int128 n = (length + step + (step > 0 ? -1 : 1)) / step;
        return n > INT64_MAX ? INT64_MAX : (int64_t)n;
    }
    double start = scalar_real(&sc[0]), end = scalar_real(&sc[1]), step = scalar_real(&sc[2]);
    if (!isfinite(start) || !isfinite(end) || !isfinite(step)) return ARANGE_NOT_FINITE;
    if (step == 0) return ARANGE_STEP_ZERO;
    if (start != end && (end < start) != (step < 0)) return ARANGE_DIRECTION;
    double n = ceil((end - start) / step);
    return n < 0x1p63 ? (int64_t)n : INT64_MAX;
}

/* Not inlined, or its arithmetic might be moved out from where nothing traps. */
__attribute__((noinline)) static int64_t computed_class(const op_info *op, const etch_scalar *sc,
                                                        int nsc) {
    if (op->flags & OPF_CLASS_EXPONENT) return exponent_class_of(scalar_real(&sc[nsc - 1]));
    return arange_numel(sc, nsc);
}

int64_t etch__op_class(const op_info *op, const etch_scalar *sc, int nsc, const int64_t *at) {
    (void)at;
    const etch_scalar *last = &sc[nsc - 1];
    if (op->flags & OPF_CLASS_ALPHA)
        return last->kind == ETCH_SCALAR_REAL ? last->d == 1 : last->i == 1;
    if (op->flags & OPF_CLASS_FACTORS) {
        bool ones = true;
        for (int i = 0; i < nsc; i++) ones &= etch__scalar_is(sc[i], 1);
        return ones;
    }
    if (!(op->flags & (OPF_CLASS_EXPONENT | OPF_CLASS_NUMEL))) return 0;
    unsigned traps = etch__fp_mask();
    int64_t class = computed_class(op, sc, nsc);
    etch__fp_unmask(traps);
    return class;
}
