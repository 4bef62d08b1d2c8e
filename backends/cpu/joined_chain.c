/* Kernels that follow a tile of sums of bf16 by one operation after another, each of the value
 * before it, or two such chains that are added: those of convolutions and linear layers with what
 * stands behind them (batch norm by its statistics, residuals, relu). They run by isa/chain.c,
 * which rounds with fewer instructions than a generated kernel, to the same bits. */
#include <math.h>

#include "backends/cpu/joined.h"
#include "core/base/counters.h"

/* Where the rows of an access lie: *pitch from each to the next, over all axes but the last. */
static bool even_rows(const int64_t *extent, const int64_t *stride, int outer, int64_t *pitch) {
    int64_t rows = 1;
    *pitch = 0;
    for (int a = outer - 1; a >= 0; a--) {
        if (extent[a] == 1) continue;
        if (rows == 1) *pitch = stride[a];
        else if (stride[a] != *pitch * rows) return false;
        rows *= extent[a];
    }
    return true;
}

static bool lies_in_rows(const lowered *low, int access, int64_t *pitch) {
    int n = low->k.npar;
    const loop_access *a = &low->k.access[access];
    return a->dtype == ETCH_BF16 && a->step[n - 1] == STEP_ONE &&
           even_rows(low->dims, low->dims + n * (access + 1), n - 1, pitch);
}

/* The operation that makes instruction i of value x and another one, *other; -1: none. */
static int op_of(const loop_instr *i, int x, int *other) {
    bool first = i->p.a == x;
    if (i->p.prim == PRIM_ROUND_BF16) return first ? CHAIN_ROUND : -1;
    if (first == (i->p.b == x)) return -1;
    *other = first ? i->p.b : i->p.a;
    switch (i->p.prim) {
    case PRIM_AT_LEAST: return first ? CHAIN_RELU : -1;
    case PRIM_ADD: return CHAIN_ADD;
    case PRIM_MUL: return CHAIN_MUL;
    case PRIM_SUB: return first ? CHAIN_SUB : CHAIN_SUB_FROM;
    default: return -1;
    }
}

static bool is_zero(const loop_instr *i) {
    return i->kind == LOOP_PRIM && i->p.prim == PRIM_CONST && i->p.imm.d == 0 &&
           !signbit(i->p.imm.d);
}

typedef struct search {
    const lowered *low;
    chain_args *to;
    int x, aside; /* the values that the operations are at; -1: none */
    int tile, y;  /* accesses */
} search;

static chain_step *new_step(search *f, int op, int access) {
    chain_step *s = &f->to->step[f->to->n++];
    *s = (chain_step){.op = (uint8_t)op, .access = (int8_t)access};
    return s;
}

/* Whether value v is one to begin with: the tile, or what lies beside it element for element. */
static bool begins(search *f, int v) {
    const loop_instr *i = &f->low->k.code[v];
    int64_t pitch = 0;
    if (i->kind != LOOP_LOAD || f->aside >= 0) return false;
    bool tile = i->p.imm.i == f->tile;
    if (!tile && (!lies_in_rows(f->low, (int)i->p.imm.i, &pitch) || !pitch)) return false;
    new_step(f, tile ? CHAIN_TILE : CHAIN_LOAD, tile ? -1 : (int)i->p.imm.i)->pitch = pitch;
    f->aside = f->x, f->x = v;
    return true;
}

static bool add_step(search *f, const loop_instr *i) {
    int other = -1, op = op_of(i, f->x, &other);
    if (op < 0) return false;
    if (op == CHAIN_ADD && other == f->aside) {
        new_step(f, CHAIN_BOTH, -1);
        f->aside = -1;
        return true;
    }
    chain_step *s = new_step(f, op, -1);
    if (op == CHAIN_ROUND) return true;
    const loop_instr *o = &f->low->k.code[other];
    if (op == CHAIN_RELU) return is_zero(o);
    if (o->kind != LOOP_LOAD || o->p.imm.i == f->tile) return false;
    s->access = (int8_t)o->p.imm.i;
    return lies_in_rows(f->low, s->access, &s->pitch);
}

static bool uses(const loop_instr *i, int x) {
    for (int n = 0; n < etch__loop_arity(i); n++)
        if (x >= 0 && etch__loop_operand(i, n) == x) return true;
    return false;
}

/* The code in order. */
static bool find_steps(search *f) {
    const loop_kernel *k = &f->low->k;
    for (int v = 0; v < k->ncode; v++) {
        const loop_instr *i = &k->code[v];
        if (i->kind == LOOP_LOAD || is_zero(i)) continue;
        if (i->kind == LOOP_STORE) {
            f->y = (int)i->p.imm.i;
            return v == k->ncode - 1 && i->p.a == f->x && f->aside < 0 &&
                   lies_in_rows(f->low, f->y, &f->to->y_pitch);
        }
        int arity = etch__loop_arity(i);
        if (i->kind != LOOP_PRIM || arity < 1 || f->to->n + 2 > CHAIN_STEPS) return false;
        if (!uses(i, f->x) && !begins(f, i->p.a) && (arity < 2 || !begins(f, i->p.b))) return false;
        if (!add_step(f, i)) return false;
        f->x = v;
    }
    return false;
}

/* Whether the tile is one of what is begun with: it is read nowhere else. */
static bool has_tile(const chain_args *a) {
    int n = 0;
    for (int k = 0; k < a->n; k++) n += a->step[k].op == CHAIN_TILE;
    return n == 1;
}

bool etch__chain_find(const lowered *low, joined_product *j) {
    const loop_kernel *k = &low->k;
    if (!etch__isa_table()->chain->run || etch__cpu_level() < CPU_LEVEL_DOTS ||
        !__builtin_cpu_supports("avx512vnni"))
        return false;
    if (k->variant != LOOP_MAP || k->any_mode || !k->access[low->matmul[0].access].sums)
        return false;
    search f = {low, &j->chain, -1, -1, low->matmul[0].access, -1};
    j->chain.n = 0;
    if (!find_steps(&f) || !has_tile(&j->chain)) return false;
    j->chain_y = f.y;
    etch__counters.kernels_chained++;
    return true;
}

static const uint16_t *from_row(const joined_call *c, const product_tile *t, int access,
                                int64_t pitch) {
    return (const uint16_t *)c->args[access] + t->row * pitch + t->col;
}

void etch__chain_follow(const joined_call *c, const product_tile *t) {
    const joined_product *j = c->k->joined;
    chain_args a = j->chain;
    a.c = (const float *)(const void *)t->c, a.ldc = t->ldc, a.rows = t->m, a.cols = t->n;
    for (int k = 0; k < a.n; k++) { /* of what has no operand, some place */
        int access = a.step[k].access < 0 ? j->chain_y : a.step[k].access;
        a.step[k].data = from_row(c, t, access, a.step[k].pitch);
    }
    a.y = (uint16_t *)(uintptr_t)from_row(c, t, j->chain_y, a.y_pitch);
    etch__isa_table()->chain->run(&a);
}
