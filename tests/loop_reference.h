/* Loop kernels interpreted element by element in plain C: what generated code must equal bit for
 * bit. Included by loop_build.h only. */
#ifndef LOOP_REFERENCE_H
#define LOOP_REFERENCE_H

#include <math.h>

#include "backends/cpu/table.h"
#include "jit/loop/loop.h"

/* Sanitizers look at what is compared with it. */
#define REFERENCE __attribute__((no_sanitize("address", "undefined"))) static

/* f32 values live in f, f64 values in d, all others in i. */
typedef union cell {
    float f;
    double d;
    int64_t i;
} cell;

/* ---- functions, one element at a time ---- */

REFERENCE cell ref_function(prim_id p, etch_dtype t, cell a, cell b) {
    cell r = {.i = 0};
    if (!etch__prim_is_function(p)) fail_msg("no reference for %s", etch__prims[p].name);
    etch__isa_table()->strips->prim[p][t](&r, &a, &b, NULL, 1);
    return r;
}

/* ---- storage ---- */

REFERENCE int64_t ref_wrap(etch_dtype t, int64_t v) {
    switch (t) {
    case ETCH_I8: return (int8_t)v;
    case ETCH_I16: return (int16_t)v;
    case ETCH_I32: return (int32_t)v;
    case ETCH_U8: return (uint8_t)v;
    case ETCH_BOOL: return v != 0;
    default: return v;
    }
}

REFERENCE float ref_bf16(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    if (x != x) u = (u | 0x400000) & 0xffff0000u;
    else u = (u + 0x7fff + ((u >> 16) & 1)) & 0xffff0000u;
    memcpy(&x, &u, 4);
    return x;
}

REFERENCE cell ref_load(etch_dtype d, const void *p) {
    cell c = {.i = 0};
    uint16_t h;
    uint32_t u;
    _Float16 half;
    switch (d) {
    case ETCH_F32: memcpy(&c.f, p, 4); break;
    case ETCH_BF16: memcpy(&h, p, 2), u = (uint32_t)h << 16, memcpy(&c.f, &u, 4); break;
    case ETCH_F16: memcpy(&half, p, 2), c.f = (float)half; break;
    case ETCH_F64: memcpy(&c.d, p, 8); break;
    default: memcpy(&c.i, p, etch_dtype_size(d)); c.i = ref_wrap(d, c.i);
    }
    return c;
}

REFERENCE void ref_store(etch_dtype d, void *p, cell c) {
    uint32_t u;
    uint16_t h;
    _Float16 half;
    switch (d) {
    case ETCH_F32: memcpy(p, &c.f, 4); break;
    case ETCH_BF16: memcpy(&u, &c.f, 4), h = (uint16_t)(u >> 16), memcpy(p, &h, 2); break;
    case ETCH_F16: half = (_Float16)c.f, memcpy(p, &half, 2); break;
    case ETCH_F64: memcpy(p, &c.d, 8); break;
    default: memcpy(p, &c.i, etch_dtype_size(d));
    }
}

/* ---- primitives ---- */

REFERENCE double ref_wide(etch_dtype t, cell c) { return t == ETCH_F32 ? c.f : c.d; }

static const int64_t ref_min[ETCH_DTYPE_COUNT] = {
    [ETCH_I8] = INT8_MIN, [ETCH_I16] = INT16_MIN, [ETCH_I32] = INT32_MIN, [ETCH_I64] = INT64_MIN};
static const int64_t ref_max[ETCH_DTYPE_COUNT] = {
    [ETCH_I8] = INT8_MAX,   [ETCH_I16] = INT16_MAX, [ETCH_I32] = INT32_MAX,
    [ETCH_I64] = INT64_MAX, [ETCH_U8] = UINT8_MAX,  [ETCH_BOOL] = 1};

REFERENCE cell ref_convert(etch_dtype from, etch_dtype to, cell a) {
    cell r = {.i = 0};
    if (etch__is_float(from)) {
        double x = ref_wide(from, a);
        if (to == ETCH_F32) r.f = (float)x;
        else if (to == ETCH_F64) r.d = x;
        else if (to == ETCH_BOOL) r.i = x != 0;
        else if (x != x) r.i = 0;
        else if (x >= (double)ref_max[to] + (to == ETCH_I64 ? 0 : 1)) r.i = ref_max[to];
        else if (x <= (double)ref_min[to]) r.i = ref_min[to];
        else r.i = (int64_t)x;
    } else if (to == ETCH_F32) {
        r.f = (float)a.i;
    } else if (to == ETCH_F64) {
        r.d = (double)a.i;
    } else {
        r.i = ref_wrap(to, a.i);
    }
    return r;
}

/* Whether a comes before b: -0 before +0, NaN last. */
REFERENCE bool ref_first(double a, double b) {
    if (isnan(a) || isnan(b)) return !isnan(a);
    return a < b || (a == b && signbit(a) && !signbit(b));
}

#define FLOAT_CASES(X, T)                                                                          \
    case PRIM_ADD: r.X = a.X + b.X; break;                                                         \
    case PRIM_SUB: r.X = a.X - b.X; break;                                                         \
    case PRIM_MUL: r.X = a.X * b.X; break;                                                         \
    case PRIM_DIV: r.X = a.X / b.X; break;                                                         \
    case PRIM_NEG: r.X = -a.X; break;                                                              \
    case PRIM_MAX: r.X = ref_first(a.X, b.X) ? b.X : a.X; break;                                   \
    case PRIM_MIN: r.X = isnan(b.X) || !(isnan(a.X) || ref_first(a.X, b.X)) ? b.X : a.X; break;    \
    case PRIM_AT_LEAST: r.X = b.X > a.X || isnan(b.X) ? b.X : a.X; break;                          \
    case PRIM_AT_MOST: r.X = b.X < a.X || isnan(b.X) ? b.X : a.X; break;                           \
    case PRIM_REM: r.X = (T)fmod((double)a.X, (double)b.X); break;

REFERENCE cell ref_f32(prim_id p, cell a, cell b, cell c) {
    cell r = {.i = 0};
    switch (p) {
        FLOAT_CASES(f, float)
    case PRIM_FMA: r.f = fmaf(a.f, b.f, c.f); break;
    case PRIM_ABS: r.f = fabsf(a.f); break;
    case PRIM_SQRT: r.f = sqrtf(a.f); break;
    case PRIM_ROUND_BF16: r.f = ref_bf16(a.f); break;
    case PRIM_ROUND_F16: r.f = (float)(_Float16)a.f; break;
    default: r = ref_function(p, ETCH_F32, a, b);
    }
    return r;
}

REFERENCE cell ref_f64(prim_id p, cell a, cell b, cell c) {
    cell r = {.i = 0};
    switch (p) {
        FLOAT_CASES(d, double)
    case PRIM_FMA: r.d = fma(a.d, b.d, c.d); break;
    case PRIM_ABS: r.d = fabs(a.d); break;
    case PRIM_SQRT: r.d = sqrt(a.d); break;
    default: r = ref_function(p, ETCH_F64, a, b);
    }
    return r;
}

REFERENCE int64_t ref_width(etch_dtype t) { return 8 * (int64_t)etch_dtype_size(t); }

REFERENCE int64_t ref_power(etch_dtype t, int64_t x, int64_t y) {
    if (y < 0) return x == 1 ? 1 : x != -1 ? 0 : y % 2 ? -1 : 1;
    int64_t r = 1;
    for (; y; y /= 2, x = ref_wrap(t, (int64_t)((uint64_t)x * (uint64_t)x)))
        if (y % 2) r = ref_wrap(t, (int64_t)((uint64_t)r * (uint64_t)x));
    return r;
}

REFERENCE cell ref_int(prim_id p, etch_dtype t, cell a, cell b) {
    uint64_t x = (uint64_t)a.i, y = (uint64_t)b.i, r = 0;
    switch (p) {
    case PRIM_ADD: r = x + y; break;
    case PRIM_SUB: r = x - y; break;
    case PRIM_MUL: r = x * y; break;
    case PRIM_NEG: r = 0 - x; break;
    case PRIM_ABS: r = a.i < 0 ? 0 - x : x; break;
    case PRIM_AT_LEAST:
    case PRIM_MAX: r = a.i > b.i ? x : y; break;
    case PRIM_AT_MOST:
    case PRIM_MIN: r = a.i < b.i ? x : y; break;
    case PRIM_AND: r = x && y; break;
    case PRIM_OR: r = x || y; break;
    case PRIM_NOT: r = !x; break;
    case PRIM_BITAND: r = x & y; break;
    case PRIM_BITOR: r = x | y; break;
    case PRIM_BITXOR: r = x ^ y; break;
    case PRIM_SHL: r = b.i >= 0 && b.i < ref_width(t) ? x << b.i : 0; break;
    case PRIM_POW: r = (uint64_t)ref_power(t, a.i, b.i); break;
    case PRIM_QUOT: r = b.i == -1 ? 0 - x : (uint64_t)(a.i / b.i); break;
    case PRIM_REM: r = b.i == -1 ? 0 : (uint64_t)(a.i % b.i); break;
    case PRIM_SHR: r = (uint64_t)(a.i >> (b.i >= 0 && b.i < ref_width(t) ? b.i : 63)); break;
    default: fail_msg("no reference for %s", etch__prims[p].name);
    }
    return (cell){.i = ref_wrap(t, (int64_t)r)};
}

REFERENCE bool ref_compare(prim_id p, etch_dtype t, cell a, cell b) {
    if (p == PRIM_SIGNBIT) return etch__is_float(t) ? signbit(ref_wide(t, a)) != 0 : a.i < 0;
    if (etch__is_float(t)) {
        double x = ref_wide(t, a), y = ref_wide(t, b);
        return p == PRIM_EQ ? x == y : p == PRIM_NE ? x != y : p == PRIM_LT ? x < y : x <= y;
    }
    return p == PRIM_EQ   ? a.i == b.i
           : p == PRIM_NE ? a.i != b.i
           : p == PRIM_LT ? a.i < b.i
                          : a.i <= b.i;
}

REFERENCE cell ref_prim(const prim_instr *p, cell a, cell b, cell c) {
    etch_dtype t = p->type, from = p->from;
    prim_id id = (prim_id)p->prim;
    if (id == PRIM_CONVERT) return ref_convert(from, t, a);
    if (id == PRIM_SELECT) return a.i ? b : c;
    if (etch__prim_compares(id)) return (cell){.i = ref_compare(id, from, a, b)};
    if (t == ETCH_F32) return ref_f32(id, a, b, c);
    if (t == ETCH_F64) return ref_f64(id, a, b, c);
    return ref_int(id, t, a, b);
}

/* ---- the canonical reduction, as core/ops/expr.h words it ---- */

REFERENCE cell ref_op(reduce_kind kind, etch_dtype t, cell acc, cell x) {
    prim_instr p = {.prim = etch__reduction(kind)->prim, .type = (uint8_t)t};
    return ref_prim(&p, acc, x, x);
}

REFERENCE cell ref_identity(reduce_kind kind, etch_dtype t) {
    double v = kind == REDUCE_MAX    ? -INFINITY
               : kind == REDUCE_MIN  ? INFINITY
               : kind == REDUCE_PROD ? 1
                                     : 0;
    if (t == ETCH_F32) return (cell){.f = (float)v};
    if (t == ETCH_F64) return (cell){.d = v};
    if (kind == REDUCE_PROD) return (cell){.i = 1};
    return (cell){.i = kind == REDUCE_MAX ? ref_min[t] : kind == REDUCE_MIN ? ref_max[t] : 0};
}

REFERENCE cell ref_reduce(reduce_kind kind, etch_dtype t, const cell *v, int64_t n) {
    int64_t blocks = n ? (n + REDUCE_BLOCK - 1) / REDUCE_BLOCK : 0;
    if (!n) return kind == REDUCE_SUM ? (cell){.i = 0} : ref_identity(kind, t);
    cell *part = calloc((size_t)blocks, sizeof *part);
    for (int64_t b = 0; b < blocks; b++) {
        cell lane[REDUCE_LANES];
        for (int l = 0; l < REDUCE_LANES; l++) lane[l] = ref_identity(kind, t);
        for (int64_t r = b * REDUCE_BLOCK; r < n && r < (b + 1) * REDUCE_BLOCK; r++)
            lane[r % REDUCE_LANES] = ref_op(kind, t, lane[r % REDUCE_LANES], v[r]);
        for (int w = REDUCE_LANES / 2; w >= 1; w /= 2)
            for (int l = 0; l < w; l++) lane[l] = ref_op(kind, t, lane[l], lane[l + w]);
        part[b] = lane[0];
    }
    for (int64_t s = 1; s < blocks; s *= 2)
        for (int64_t i = 0; i + s < blocks; i += 2 * s)
            part[i] = ref_op(kind, t, part[i], part[i + s]);
    cell r = part[0];
    free(part);
    return r;
}

/* ---- kernels ---- */

typedef struct ref_run {
    const loop_kernel *k;
    void *const *load, *const *store; /* addresses by access: loads are never written */
    const int64_t *dims;
    const uint64_t *scalars;
    int64_t index[LOOP_MAX_AXES], reduced;
    cell value[LOOP_MAX_CODE];
    cell *collected[LOOP_MAX_CODE]; /* the reduced values of one parallel element */
} ref_run;

REFERENCE void *ref_address(const ref_run *r, int access, bool store) {
    int naxes = r->k->npar + r->k->nred;
    const int64_t *stride = r->dims + naxes * (access + 1);
    int64_t offset = 0;
    for (int x = 0; x < naxes; x++)
        if (r->k->access[access].step[x] != STEP_ZERO) offset += r->index[x] * stride[x];
    char *base = store ? r->store[access] : r->load[access];
    return base + offset * (int64_t)etch_dtype_size(r->k->access[access].dtype);
}

REFERENCE cell ref_leaf(const ref_run *r, const loop_instr *i, int64_t logical) {
    etch_dtype t = i->p.type;
    cell c = {.i = 0};
    switch (i->p.prim) {
    case PRIM_INDEX: return (cell){.i = logical};
    case PRIM_NREDUCED: return ref_convert(ETCH_I64, t, (cell){.i = r->reduced});
    case PRIM_SCALAR: return ref_load(etch__compute_type(i->p.from), &r->scalars[i->p.imm.i]);
    default:
        if (t == ETCH_F32) c.f = (float)i->p.imm.d;
        else if (t == ETCH_F64) c.d = i->p.imm.d;
        else c.i = ref_wrap(t, i->p.imm.i);
        return c;
    }
}

REFERENCE void ref_instr(ref_run *r, int v, int64_t logical, int64_t at) {
    const loop_instr *i = &r->k->code[v];
    int a = (int)i->p.imm.i;
    cell none = {.i = 0}, *x = r->value;
    switch (i->kind) {
    case LOOP_LOAD: x[v] = ref_load(r->k->access[a].dtype, ref_address(r, a, false)); break;
    case LOOP_STORE: ref_store(r->k->access[a].dtype, ref_address(r, a, true), x[i->p.a]); break;
    case LOOP_REDUCE: r->collected[v][at] = x[i->p.a]; break;
    default:
        if (etch__prims[i->p.prim].class == CLASS_GIVEN) x[v] = ref_leaf(r, i, logical);
        else {
            int n = etch__loop_arity(i);
            x[v] = ref_prim(&i->p, x[i->p.a], n > 1 ? x[i->p.b] : none, n > 2 ? x[i->p.c] : none);
        }
    }
}

REFERENCE void ref_point(int64_t number, const int64_t *extent, int n, int64_t *index) {
    for (int x = n - 1; x >= 0; x--) index[x] = number % extent[x], number /= extent[x];
}

/* An even stage computes what earlier even ones did for the element again. */
REFERENCE void ref_stage(ref_run *r, int stage, int64_t logical, int64_t at) {
    for (int v = 0; v < r->k->ncode; v++) {
        const loop_instr *i = &r->k->code[v];
        bool again = stage % 2 == 0 && i->stage % 2 == 0 && i->stage < stage;
        if (i->kind == LOOP_REDUCE) {
            if (i->stage == stage + 1) ref_instr(r, v, logical, at);
        } else if (i->stage == stage || (again && i->kind != LOOP_STORE)) {
            ref_instr(r, v, logical, at);
        } else if (etch__loop_uniform(i)) {
            r->value[v] = ref_leaf(r, i, logical);
        }
    }
}

REFERENCE void ref_space(ref_run *r, int stage, int64_t p) {
    for (int64_t e = 0; e < r->reduced; e++) {
        ref_point(e, r->dims + r->k->npar, r->k->nred, r->index + r->k->npar);
        ref_stage(r, stage, p * r->reduced + e, e);
    }
    memset(r->index + r->k->npar, 0, sizeof(int64_t) * r->k->nred);
}

REFERENCE void ref_kernel(const loop_kernel *k, void *const *load, void *const *store,
                          const int64_t *dims, const uint64_t *scalars) {
    static ref_run r;
    int64_t parallel = 1;
    memset(&r, 0, sizeof r);
    r.k = k, r.load = load, r.store = store, r.dims = dims, r.scalars = scalars, r.reduced = 1;
    for (int x = 0; x < k->npar; x++) parallel *= dims[x];
    for (int x = 0; x < k->nred; x++) r.reduced *= dims[k->npar + x];
    for (int v = 0; v < k->ncode; v++)
        if (k->code[v].kind == LOOP_REDUCE)
            r.collected[v] = calloc((size_t)r.reduced + 1, sizeof(cell));
    for (int64_t p = 0; p < parallel; p++) {
        ref_point(p, dims, k->npar, r.index);
        for (int stage = 0; stage < LOOP_STAGES; stage += 2) {
            ref_space(&r, stage, p);
            for (int v = 0; v < k->ncode; v++)
                if (r.collected[v] && k->code[v].stage == stage + 1)
                    r.value[v] = ref_reduce((reduce_kind)k->code[v].p.imm.i, k->code[v].p.type,
                                            r.collected[v], r.reduced);
            if (k->nred) ref_stage(&r, stage + 1, p, 0);
        }
    }
    for (int v = 0; v < k->ncode; v++) free(r.collected[v]);
}

#endif
