/* Loop kernels for tests, built by hand: a small language over one global kernel K, values that
 * hurt, buffers laid out for the kernel's steps, with what the interpreter makes of them. */
#ifndef LOOP_BUILD_H
#define LOOP_BUILD_H

#include <stdlib.h>

#include "loop_reference.h"

/* ---- building kernels ---- */

static loop_kernel K;

static void begin(loop_variant variant, int npar, int nred) {
    static int number;
    memset(&K, 0, sizeof K);
    K.variant = (uint8_t)variant, K.npar = (uint8_t)npar, K.nred = (uint8_t)nred;
    snprintf(K.name, sizeof K.name, "test-%d", number++);
}

/* steps: one letter an axis, '0', '1' or 's' */
static int access_of(etch_dtype d, bool store, const char *steps) {
    loop_access *a = &K.access[K.naccesses];
    a->dtype = (uint8_t)d, a->store = store;
    for (int x = 0; x < K.npar + K.nred; x++)
        a->step[x] = steps[x] == '0' ? STEP_ZERO : steps[x] == '1' ? STEP_ONE : STEP_VAR;
    return K.naccesses++;
}

static int instr_of(loop_kind kind, int stage, etch_dtype type, int a, int64_t imm) {
    loop_instr *i = &K.code[K.ncode];
    i->kind = (uint8_t)kind, i->stage = (uint8_t)stage;
    i->p.type = (uint8_t)type, i->p.a = (int16_t)a, i->p.imm.i = imm;
    return K.ncode++;
}

static int load(int stage, etch_dtype d, const char *steps) {
    return instr_of(LOOP_LOAD, stage, etch__compute_type(d), 0, access_of(d, false, steps));
}

static int store(int stage, etch_dtype d, const char *steps, int v) {
    return instr_of(LOOP_STORE, stage, etch__compute_type(d), v, access_of(d, true, steps));
}

static int prim_of(int stage, prim_id p, etch_dtype type, etch_dtype from, int a, int b, int c) {
    int v = instr_of(LOOP_PRIM, stage, type, a, 0);
    K.code[v].p.prim = (uint8_t)p, K.code[v].p.from = (uint8_t)from;
    K.code[v].p.b = (int16_t)b, K.code[v].p.c = (int16_t)c;
    return v;
}

static int op2(int stage, prim_id p, etch_dtype t, int a, int b) {
    return prim_of(stage, p, t, t, a, b, 0);
}
static int op1(int stage, prim_id p, etch_dtype t, int a) { return op2(stage, p, t, a, 0); }
static int convert(int stage, etch_dtype from, etch_dtype to, int a) {
    return from == to ? a : prim_of(stage, PRIM_CONVERT, to, from, a, 0, 0);
}
static int real(double v) {
    int c = op1(0, PRIM_CONST, ETCH_F32, 0);
    K.code[c].p.imm.d = v;
    return c;
}
/* Reduces a value of the stage before. */
static int reduce_to(int stage, reduce_kind kind, etch_dtype t, int a) {
    return instr_of(LOOP_REDUCE, stage, t, a, kind);
}
static int reduce(reduce_kind kind, etch_dtype t, int a) { return reduce_to(1, kind, t, a); }

/* Rows in five stages, as a softmax has them, and what else may be asked of them: values of the
 * first stage again in the last, a vector call on a row's value, results in each stage. */
static inline void passes(bool math, int npar, int nred, const char *in, const char *row,
                          const char *full, const char *out) {
    prim_id exp = math ? PRIM_EXP : PRIM_NEG, other = math ? PRIM_TANH : PRIM_SQRT;
    begin(LOOP_ROW, npar, nred);
    int x = load(0, ETCH_F32, in), r = load(0, ETCH_F32, row);
    int y = op2(0, PRIM_MUL, ETCH_F32, x, r);
    int m = reduce_to(1, REDUCE_MAX, ETCH_F32, y);
    int scale = op1(1, other, ETCH_F32, op2(1, PRIM_ADD, ETCH_F32, m, load(1, ETCH_F32, out)));
    store(1, ETCH_F32, out, scale);
    int e = op1(2, exp, ETCH_F32, op2(2, PRIM_SUB, ETCH_F32, y, m));
    int late = load(2, ETCH_BF16, in);
    store(2, ETCH_F32, full, op2(2, PRIM_MUL, ETCH_F32, e, scale));
    int s = reduce_to(3, REDUCE_SUM, ETCH_F32, e);
    int wide = reduce_to(3, REDUCE_SUM, ETCH_F64, convert(2, ETCH_F32, ETCH_F64, late));
    int l = op1(3, other, ETCH_F32, op2(3, PRIM_MUL, ETCH_F32, s, scale));
    store(3, ETCH_F64, out, wide);
    store(3, ETCH_I64, out, op1(3, PRIM_INDEX, ETCH_I64, 0));
    int last = op2(4, PRIM_DIV, ETCH_F32, e, s);
    store(4, ETCH_F32, full, op2(4, PRIM_ADD, ETCH_F32, last, op2(4, PRIM_MUL, ETCH_F32, l, x)));
    store(4, ETCH_I64, full, op1(4, PRIM_INDEX, ETCH_I64, 0));
}

/* ---- data ---- */

static uint64_t state = 1;
static uint64_t random_bits(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

static const double specials[] = {
    NAN,     INFINITY,     -INFINITY,     0.0,    -0.0,    1e-40,   -1e-42, 1e39,    -1e39, 65504,
    65519,   65520,        -65536,        5.9e-8, 3e-8,    2.98e-8, 255,    256,     -1,    127.99,
    -128.99, 2147483648.0, -2147483649.0, 9.3e18, -9.3e18, 1e-310,  6.1e-5, 6.09e-5, 0.5,   2048.5};

static double random_real(bool wild) {
    uint64_t r = random_bits();
    if (wild && r % 8 == 0) return specials[(r >> 8) % COUNT_OF(specials)];
    double scale = wild && r % 8 == 1 ? 1e4 : 4;
    return ((double)(int64_t)random_bits() / 9.3e18) * scale;
}

static void fill(etch_dtype d, void *p, int64_t n, bool wild) {
    for (int64_t i = 0; i < n; i++) {
        char *at = (char *)p + i * (int64_t)etch_dtype_size(d);
        double x = random_real(wild);
        cell c = {.i = 0};
        if (d == ETCH_F64) c.d = x;
        else if (d == ETCH_F32) c.f = (float)x;
        else if (d == ETCH_F16) c.f = (float)(_Float16)x;
        else if (d == ETCH_BF16) c.f = ref_bf16((float)x);
        else
            c.i =
                ref_wrap(d, d == ETCH_BOOL ? (int64_t)(random_bits() & 1) : (int64_t)random_bits());
        ref_store(d, at, c);
    }
}

static bool equal(etch_dtype d, const void *a, const void *b) {
    if (memcmp(a, b, etch_dtype_size(d)) == 0) return true;
    cell x = ref_load(d, a), y = ref_load(d, b);
    if (d == ETCH_F64) return x.d != x.d && y.d != y.d;
    return etch__is_float(d) && x.f != x.f && y.f != y.f;
}

/* ---- memory ---- */

typedef struct layout {
    int64_t elements, first; /* size of the buffer, index of element [0, ..., 0] */
} layout;

/* Strides for the steps of access a: no two elements alike, gaps and negative steps where 's'. */
static layout lay_out(int a, int64_t *dims) {
    int naxes = K.npar + K.nred;
    int64_t *stride = dims + naxes * (a + 1), span = 1, first = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int x = naxes - 1; x >= 0; x--) {
            if (K.access[a].step[x] == STEP_ZERO) stride[x] = 0;
            if (K.access[a].step[x] == STEP_ZERO ||
                (K.access[a].step[x] == STEP_ONE) != (pass == 0))
                continue;
            int64_t n = dims[x] > 0 ? dims[x] : 1, s = pass == 0 ? 1 : span + (x & 1);
            bool negative = pass == 1 && (a + x) % 3 == 0;
            stride[x] = negative ? -s : s;
            if (negative) first += s * (n - 1);
            span = s * (n - 1) + span;
        }
    return (layout){span, first};
}

typedef struct buffers {
    void *memory[LOOP_MAX_ACCESSES], *expected[LOOP_MAX_ACCESSES];
    void *args[LOOP_MAX_ACCESSES + 1], *load[LOOP_MAX_ACCESSES], *store[LOOP_MAX_ACCESSES];
    layout at[LOOP_MAX_ACCESSES];
    int64_t dims[LOOP_MAX_AXES * (LOOP_MAX_ACCESSES + 1)];
} buffers;

static int in_place = -1; /* access whose memory the first store shares */
static bool wild = true;
static uint64_t scalars[4];

static void make_buffers(buffers *b, const int64_t *extent) {
    int naxes = K.npar + K.nred, first_store = -1;
    for (int x = 0; x < naxes; x++) b->dims[x] = extent[x];
    for (int a = 0; a < K.naccesses; a++) {
        etch_dtype d = (etch_dtype)K.access[a].dtype;
        int64_t size = (int64_t)etch_dtype_size(d);
        b->at[a] = lay_out(a, b->dims);
        if (in_place >= 0 && K.access[a].store && first_store < 0) {
            first_store = a, b->at[a] = b->at[in_place];
            memcpy(b->dims + naxes * (a + 1), b->dims + naxes * (in_place + 1),
                   sizeof(int64_t) * (size_t)naxes);
        }
        size_t bytes = (size_t)(b->at[a].elements * size) + 64;
        b->memory[a] = malloc(bytes), b->expected[a] = malloc(bytes);
        fill(d, b->memory[a], b->at[a].elements, wild);
        if (a == first_store) memcpy(b->memory[a], b->memory[in_place], bytes);
        memcpy(b->expected[a], b->memory[a], bytes);
        b->args[a] = (char *)b->memory[a] + b->at[a].first * size;
        b->load[a] = b->args[a];
        b->store[a] = (char *)b->expected[a] + b->at[a].first * size;
        if (a == first_store) b->args[in_place] = b->args[a];
    }
}

#endif
