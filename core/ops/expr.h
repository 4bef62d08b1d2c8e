/* Expressions: what a pointwise operator computes, once, as a program over the scalar primitives of
 * core/ops/prims.def. The eager kernel runs the program strip by strip; the jit inlines it into a
 * fused kernel; both give the same bits because the primitives do.
 *
 * A program is in SSA form: instruction k defines value k; operands a, b, c name earlier values. */
#ifndef ETCH_CORE_OPS_EXPR_H
#define ETCH_CORE_OPS_EXPR_H

#include <math.h>

#include "core/ops/op.h"
#include "core/ops/prims.h"

enum { PROGRAM_MAX = 48 };

typedef struct prim_program {
    int n, nin, nsc;
    int result; /* value to be stored; its type is the compute type of the output dtype */
    prim_instr code[PROGRAM_MAX];
} prim_program;

/* The program of a POINTWISE, INPLACE or CREATION (zeros, ones, full, arange) operator: loads its
 * operands (INPUT i of storage dtype in[i]), converts them to the compute dtype, applies the
 * expression, converts and rounds to the output dtype. A pure function of these arguments, so it
 * can be cached by them; false when the operator has no expression. */
bool etch__expr_build(op_id op, const etch_dtype *in, int nin, etch_dtype compute, etch_dtype out,
                      int64_t op_class, prim_program *p);

/* Whether the table gives the operator an expression. */
bool etch__has_expression(op_id op);

/* A run-time scalar as the 8-byte cell that kernels read: converted to dtype `round_to` (saturating
 * into integers as CONVERT does), then widened to its compute type; low bytes hold the value. */
uint64_t etch__scalar_cell(etch_scalar s, etch_dtype round_to);

/* A row of core/ops/reductions.def: of a derived reduction that of the fold under it. */
typedef struct reduction_info {
    uint8_t fold, prim; /* reduce_kind, prim_id */
    bool wide;
    double start;
    const char *name;
} reduction_info;
static inline const reduction_info *etch__reduction(reduce_kind kind) {
    static const reduction_info all[] = {
#define FOLD(id, name, prim, start, wide)                                                          \
    [REDUCE_##id] = {REDUCE_##id, PRIM_##prim, wide, start, #name},
#define DERIVED(id, fold_) [REDUCE_##id] = {.fold = REDUCE_##fold_},
#include "core/ops/reductions.def"
    };
    return &all[all[kind].fold];
}

/* How a reduction goes: each element brought into dtype `element` (a sum into another dtype
 * is the sum of the elements in that dtype, as in ATen), then converted to `acc`, combined in
 * the canonical order, then the epilogue. SUM and PROD of bool and integers accumulates in
 * i64, of half types in f32. */
typedef struct reduce_plan {
    reduce_kind kind;
    etch_dtype element;
    etch_dtype acc; /* compute type of the accumulator */
} reduce_plan;
reduce_plan etch__reduce_plan(const op_call *call, etch_dtype out);

/* ---- the canonical order of a reduction ----
 *
 * The reduced elements have the row-major logical index r = 0..R-1. They are cut into blocks of
 * REDUCE_BLOCK; in a block, lane r % REDUCE_LANES takes its elements in ascending order, starting
 * from the identity (sum: +0.0, so that a sum of nothing but -0 is +0, as in ATen; product: 1;
 * max, min: the lowest, highest value, -inf or +inf for floats); then lanes fold: for w = 32, 16,
 * ..., 1:
 * lane[l] = op(lane[l], lane[l + w]) for l < w. Block results fold by pairs: for s = 1, 2, 4, ...:
 * p[i] = op(p[i], p[i + s]) for i = 0, 2s, 4s, ... where i + s < blocks. op(acc, x) is ADD, MUL, or
 * MAX / MIN with acc as a.
 * R = 0: sum 0 (positive), product 1, mean NaN (0/0), max and min an error. */
enum { REDUCE_BLOCK = 4096, REDUCE_LANES = 64, STRIP = 256 };
/* Products with no extent above this are one chain of fma an element, by code of Etch's own. */
enum { MATMUL_SMALL = 64 };

#endif
