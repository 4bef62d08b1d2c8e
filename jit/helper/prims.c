/* The scalar primitives of core/ops/prims.def as libgccjit expressions, bit for bit.
 *
 * All is written so that gcc's vectoriser takes it: selections are branches around plain
 * assignments, half types are integer arithmetic. */
#include "gen.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

#define PLUS GCC_JIT_BINARY_OP_PLUS
#define MINUS GCC_JIT_BINARY_OP_MINUS
#define TIMES GCC_JIT_BINARY_OP_MULT
#define OVER GCC_JIT_BINARY_OP_DIVIDE
#define AND GCC_JIT_BINARY_OP_BITWISE_AND
#define OR GCC_JIT_BINARY_OP_BITWISE_OR
#define SHL GCC_JIT_BINARY_OP_LSHIFT
#define SHR GCC_JIT_BINARY_OP_RSHIFT
#define EQ GCC_JIT_COMPARISON_EQ
#define NE GCC_JIT_COMPARISON_NE
#define LT GCC_JIT_COMPARISON_LT
#define LE GCC_JIT_COMPARISON_LE
#define GT GCC_JIT_COMPARISON_GT
#define GE GCC_JIT_COMPARISON_GE

val gen_real(emitter *g, etch_dtype t, double v) {
    if (t != ETCH_F64) v = (float)v; /* a constant of type float must not carry more digits */
    return gcc_jit_context_new_rvalue_from_double(g->c, g->compute[t], v);
}

static val u32(emitter *g, uint32_t v) { return constant(g, g->t_u32, (int64_t)v); }
static val uop(emitter *g, enum gcc_jit_binary_op o, val a, val b) {
    return op(g, o, g->t_u32, a, b);
}
static val ukeep(emitter *g, val v) { return rv(keep(g, g->t_u32, v, "u")); }
static val fkeep(emitter *g, val v) { return rv(keep(g, g->compute[ETCH_F32], v, "f")); }
static val f32_of(emitter *g, val u) { return fkeep(g, bits(g, u, g->compute[ETCH_F32])); }
static val bits_of(emitter *g, val f) { return ukeep(g, bits(g, f, g->t_u32)); }

/* ---- half types ---- */

/* Rounds away the low `drop` bits of the bits u, to nearest even. */
static val round_bits(emitter *g, val u, int drop) {
    val odd = uop(g, AND, uop(g, SHR, u, u32(g, (uint32_t)drop)), u32(g, 1));
    val half = u32(g, (1u << (drop - 1)) - 1);
    val sum = uop(g, PLUS, uop(g, PLUS, u, half), odd);
    return ukeep(g, uop(g, AND, sum, u32(g, ~((1u << drop) - 1))));
}

static val quiet(emitter *g, val u, int drop) {
    val kept = uop(g, AND, u, u32(g, ~((1u << drop) - 1)));
    return ukeep(g, uop(g, OR, kept, u32(g, 0x400000)));
}

static val round_bf16(emitter *g, const prim_instr *p, val x) {
    val u = bits_of(g, x), r = round_bits(g, u, 16);
    if (gen_rounds_without_nans(g, p)) return f32_of(g, r);
    val nan = quiet(g, u, 16);
    return f32_of(g, choose(g, g->t_u32, cmp(g, NE, x, x), nan, r));
}

/* To a multiple of 2^-24 however the processor rounds: twice the multiple is cut off, and what was
 * lost decides. */
static val small_f16_any_mode(emitter *g, val mag) {
    gcc_jit_type *f32 = g->compute[ETCH_F32];
    val safe = choose(g, g->t_u32, cmp(g, LT, mag, u32(g, 0x38800000)), mag, u32(g, 0));
    val scaled = fkeep(g, op(g, TIMES, f32, f32_of(g, safe), gen_real(g, ETCH_F32, 0x1p25)));
    val twice = rv(keep(g, g->t_int, cast(g, scaled, g->t_int), "twice"));
    val lost = cmp(g, NE, cast(g, twice, f32), scaled);
    val t = ukeep(g, cast(g, twice, g->t_u32));
    val odd = uop(g, AND, uop(g, SHR, t, u32(g, 1)), u32(g, 1));
    val up = choose(g, g->t_u32, lost, u32(g, 1), odd);
    val q = ukeep(g, uop(g, SHR, uop(g, PLUS, t, up), u32(g, 1)));
    val whole = cast(g, cast(g, q, g->t_int), f32);
    return bits_of(g, fkeep(g, op(g, TIMES, f32, whole, gen_real(g, ETCH_F32, 0x1p-24))));
}

/* Above 2^-14 the low 13 bits go; below, adding 0.5 leaves multiples of 2^-24; from 65520 on it is
 * infinite. */
static val small_f16(emitter *g, val mag) {
    if (g->k->any_mode) return small_f16_any_mode(g, mag);
    val half = gen_real(g, ETCH_F32, 0.5);
    val F = fkeep(g, op(g, PLUS, g->compute[ETCH_F32], f32_of(g, mag), half));
    return bits_of(g, fkeep(g, op(g, MINUS, g->compute[ETCH_F32], F, half)));
}

static val round_f16(emitter *g, val x) {
    val u = bits_of(g, x);
    val sign = ukeep(g, uop(g, AND, u, u32(g, 0x80000000u)));
    val mag = ukeep(g, uop(g, AND, u, u32(g, 0x7fffffff)));
    val r = round_bits(g, mag, 13);
    val big = cmp(g, GE, r, u32(g, 0x47800000));
    r = choose(g, g->t_u32, big, u32(g, 0x7f800000), r);
    r = choose(g, g->t_u32, cmp(g, LT, mag, u32(g, 0x38800000)), small_f16(g, mag), r);
    r = choose(g, g->t_u32, cmp(g, GT, mag, u32(g, 0x7f800000)), quiet(g, mag, 13), r);
    return f32_of(g, uop(g, OR, r, sign));
}

/* Exact: a denormal is its integer times 2^-24, else the exponent is rebased. */
static val load_f16(emitter *g, val h) {
    val u = ukeep(g, cast(g, h, g->t_u32));
    val sign = ukeep(g, uop(g, SHL, uop(g, AND, u, u32(g, 0x8000)), u32(g, 16)));
    val mag = ukeep(g, uop(g, AND, u, u32(g, 0x7fff)));
    val rebase = choose(g, g->t_u32, cmp(g, GE, mag, u32(g, 0x7c00)), u32(g, 224u << 23),
                        u32(g, 112u << 23));
    val normal = ukeep(g, uop(g, PLUS, uop(g, SHL, mag, u32(g, 13)), rebase));
    val whole = cast(g, cast(g, mag, g->t_int), g->compute[ETCH_F32]);
    val tiny = fkeep(g, op(g, TIMES, g->compute[ETCH_F32], whole, gen_real(g, ETCH_F32, 0x1p-24)));
    val r = choose(g, g->t_u32, cmp(g, LT, mag, u32(g, 0x400)), bits_of(g, tiny), normal);
    return f32_of(g, uop(g, OR, r, sign));
}

/* Exact: the value lies on the f16 grid already. */
static val store_f16(emitter *g, val x) {
    val u = bits_of(g, x);
    val sign = ukeep(g, uop(g, AND, uop(g, SHR, u, u32(g, 16)), u32(g, 0x8000)));
    val mag = ukeep(g, uop(g, AND, u, u32(g, 0x7fffffff)));
    val normal = ukeep(g, uop(g, SHR, uop(g, MINUS, mag, u32(g, 112u << 23)), u32(g, 13)));
    val tail = uop(g, AND, uop(g, SHR, mag, u32(g, 13)), u32(g, 0x3ff));
    val special = ukeep(g, uop(g, OR, tail, u32(g, 0x7c00)));
    val small = cmp(g, LT, mag, u32(g, 0x38800000));
    val safe = choose(g, g->t_u32, small, mag, u32(g, 0));
    val scaled = op(g, TIMES, g->compute[ETCH_F32], f32_of(g, safe), gen_real(g, ETCH_F32, 0x1p24));
    val tiny = ukeep(g, cast(g, cast(g, fkeep(g, scaled), g->t_int), g->t_u32));
    val r = choose(g, g->t_u32, small, tiny, normal);
    r = choose(g, g->t_u32, cmp(g, GE, mag, u32(g, 0x7f800000)), special, r);
    return cast(g, uop(g, OR, r, sign), g->storage[ETCH_F16]);
}

val gen_load(emitter *g, etch_dtype storage, val e) {
    if (storage == ETCH_F16) return load_f16(g, e);
    if (storage == ETCH_BF16) return f32_of(g, uop(g, SHL, cast(g, e, g->t_u32), u32(g, 16)));
    if (storage == ETCH_BOOL) return cmp(g, NE, e, constant(g, g->storage[ETCH_BOOL], 0));
    return e;
}

val gen_store(emitter *g, etch_dtype storage, val v) {
    if (storage == ETCH_F16) return store_f16(g, v);
    if (storage == ETCH_BF16)
        return cast(g, uop(g, SHR, bits_of(g, v), u32(g, 16)), g->storage[ETCH_BF16]);
    if (storage == ETCH_BOOL) return cast(g, v, g->storage[ETCH_BOOL]);
    return v;
}

/* ---- conversions ---- */

typedef struct int_range {
    double low, above; /* the lowest value and the first that is too large, both exact in f32 */
    int64_t min, max;
} int_range;

static const int_range ranges[ETCH_DTYPE_COUNT] = {
    [ETCH_I8] = {-0x1p7, 0x1p7, INT8_MIN, INT8_MAX},
    [ETCH_I16] = {-0x1p15, 0x1p15, INT16_MIN, INT16_MAX},
    [ETCH_I32] = {-0x1p31, 0x1p31, INT32_MIN, INT32_MAX},
    [ETCH_I64] = {-0x1p63, 0x1p63, INT64_MIN, INT64_MAX},
    [ETCH_U8] = {0, 0x1p8, 0, UINT8_MAX},
};

/* Truncates in i32 (i64) and then narrows: what is out of range is replaced afterwards. */
static val float_to_int(emitter *g, etch_dtype from, etch_dtype to, val v) {
    const int_range *r = &ranges[to];
    type t = g->compute[to], wide = to == ETCH_I64 ? g->t_long : g->t_int;
    val x = rv(keep(g, g->compute[from], v, "x"));
    val in = both(g, cmp(g, GE, x, gen_real(g, from, r->low)),
                  cmp(g, LT, x, gen_real(g, from, r->above)));
    val safe = choose(g, g->compute[from], in, x, gen_real(g, from, 0));
    val n = rv(keep(g, t, cast(g, cast(g, safe, wide), t), "n"));
    n = choose(g, t, cmp(g, GE, x, gen_real(g, from, r->above)), constant(g, t, r->max), n);
    return choose(g, t, cmp(g, LT, x, gen_real(g, from, r->low)), constant(g, t, r->min), n);
}

static val zero_of(emitter *g, etch_dtype t) {
    if (etch__is_float(t)) return gen_real(g, t, 0);
    return t == ETCH_BOOL ? cast(g, constant(g, g->t_int, 0), g->t_bool)
                          : constant(g, g->compute[t], 0);
}

val gen_convert(emitter *g, etch_dtype from, etch_dtype to, val v) {
    if (from == to) return v;
    if (to == ETCH_BOOL) return cmp(g, NE, v, zero_of(g, from));
    if (etch__is_float(from) && !etch__is_float(to)) return float_to_int(g, from, to, v);
    if (from == ETCH_BOOL) v = rv(keep(g, g->t_int, cast(g, v, g->t_int), "b"));
    return cast(g, v, g->compute[to]);
}

/* ---- arithmetic ---- */

static val plain(emitter *g, etch_dtype t, enum gcc_jit_binary_op o, val a, val b) {
    return op(g, o, g->compute[t], a, b);
}

/* The two answers of a comparison both ways round differ for zeros of different sign and where one
 * is NaN; their bits together give the sign wanted, and a NaN. */
static val join_answers(emitter *g, etch_dtype t, bool least, val p, val q) {
    type w = t == ETCH_F64 ? g->t_long : g->t_u32;
    int64_t magnitude = t == ETCH_F64 ? INT64_MAX : INT32_MAX;
    val u = rv(keep(g, w, bits(g, p, w), "u")), v = rv(keep(g, w, bits(g, q, w), "v"));
    val all = op(g, OR, w, u, v);
    if (!least)
        all = op(g, OR, w, op(g, AND, w, u, v), op(g, AND, w, all, constant(g, w, magnitude)));
    return bits(g, rv(keep(g, w, all, "m")), g->compute[t]);
}

static val extreme(emitter *g, etch_dtype t, enum gcc_jit_comparison o, val a, val b) {
    if (t == ETCH_BOOL) return o == GT ? either(g, a, b) : both(g, a, b);
    val first = choose(g, g->compute[t], cmp(g, o, a, b), a, b);
    if (!etch__is_float(t)) return first;
    return join_answers(g, t, o == LT, first, choose(g, g->compute[t], cmp(g, o, b, a), b, a));
}

/* a, or the limit b where that is further (o: GT, LT). */
static val limited(emitter *g, etch_dtype t, enum gcc_jit_comparison o, val a, val b) {
    if (!etch__is_float(t)) return extreme(g, t, o, a, b);
    return choose(g, g->compute[t], either(g, cmp(g, o, b, a), cmp(g, NE, b, b)), b, a);
}

static val sign_bit(emitter *g, etch_dtype t, val a) {
    if (t == ETCH_F32) return cmp(g, GT, bits(g, a, g->t_u32), u32(g, INT32_MAX));
    if (t == ETCH_F64) return cmp(g, LT, bits(g, a, g->t_long), num(g, 0));
    if (t == ETCH_U8 || t == ETCH_BOOL) return cast(g, constant(g, g->t_int, 0), g->t_bool);
    return cmp(g, LT, a, zero_of(g, t));
}

static val negate(emitter *g, etch_dtype t, val a) {
    return gcc_jit_context_new_unary_op(g->c, NULL, GCC_JIT_UNARY_OP_MINUS, g->compute[t], a);
}

static val absolute(emitter *g, etch_dtype t, val a) {
    if (t == ETCH_U8 || t == ETCH_BOOL) return a;
    if (etch__is_float(t))
        return builtin(g, t == ETCH_F64 ? "__builtin_fabs" : "__builtin_fabsf", 1, &a);
    val minus = rv(keep(g, g->compute[t], negate(g, t, a), "m"));
    return choose(g, g->compute[t], cmp(g, LT, a, zero_of(g, t)), minus, a);
}

static val fused(emitter *g, etch_dtype t, val a, val b, val c) {
    val args[3] = {a, b, c};
    return builtin(g, t == ETCH_F64 ? "__builtin_fma" : "__builtin_fmaf", 3, args);
}

static val invert(emitter *g, val a) { return cmp(g, EQ, a, zero_of(g, ETCH_BOOL)); }

/* Comparisons of bools are made on integers. */
static val compare(emitter *g, etch_dtype t, enum gcc_jit_comparison o, val a, val b) {
    if (t == ETCH_BOOL) a = cast(g, a, g->t_int), b = cast(g, b, g->t_int);
    return cmp(g, o, a, b);
}

static const uint8_t int_bytes[ETCH_DTYPE_COUNT] = {
    [ETCH_I8] = 1, [ETCH_I16] = 2, [ETCH_I32] = 4, [ETCH_I64] = 8, [ETCH_U8] = 1};

/* The amount is replaced where it is out of range, so that every lane's shift is defined. */
static val shift(emitter *g, etch_dtype t, bool left, val a, val b) {
    type c = g->compute[t];
    int width = 8 * (int)int_bytes[t];
    val x = rv(keep(g, c, a, "x")), n = rv(keep(g, c, b, "n"));
    val in = both(g, cmp(g, GE, n, constant(g, c, 0)), cmp(g, LT, n, constant(g, c, width)));
    val safe = choose(g, c, in, n, constant(g, c, left || t == ETCH_U8 ? 0 : width - 1));
    val shifted = rv(keep(g, c, op(g, left ? SHL : SHR, c, x, safe), "s"));
    if (!left && t != ETCH_U8) return shifted;
    return choose(g, c, in, shifted, constant(g, c, 0));
}

/* Without a branch: of truths the vectoriser makes no blend. */
static val select_bool(emitter *g, val a, val b, val c) {
    val x = rv(keep(g, g->t_bool, a, "a"));
    return either(g, both(g, x, b), both(g, invert(g, x), c));
}

static val select_of(emitter *g, etch_dtype t, val a, val b, val c) {
    return t == ETCH_BOOL ? select_bool(g, a, b, c) : choose(g, g->compute[t], a, b, c);
}

val gen_prim(emitter *g, const prim_instr *p, val a, val b, val c) {
    etch_dtype t = p->type, from = p->from;
    bool truth = t == ETCH_BOOL;
    switch ((prim_id)p->prim) {
    case PRIM_CONVERT: return gen_convert(g, from, t, a);
    case PRIM_ROUND_BF16: return round_bf16(g, p, a);
    case PRIM_ROUND_F16: return round_f16(g, a);
    case PRIM_ADD: return truth ? either(g, a, b) : plain(g, t, PLUS, a, b);
    case PRIM_SUB: return plain(g, t, MINUS, a, b);
    case PRIM_MUL: return truth ? both(g, a, b) : plain(g, t, TIMES, a, b);
    case PRIM_DIV: return plain(g, t, OVER, a, b);
    case PRIM_FMA: return fused(g, t, a, b, c);
    case PRIM_NEG: return negate(g, t, a);
    case PRIM_ABS: return absolute(g, t, a);
    case PRIM_SQRT: return builtin(g, t == ETCH_F64 ? "__builtin_sqrt" : "__builtin_sqrtf", 1, &a);
    case PRIM_MAX: return extreme(g, t, GT, a, b);
    case PRIM_MIN: return extreme(g, t, LT, a, b);
    case PRIM_AT_LEAST: return limited(g, t, GT, a, b);
    case PRIM_AT_MOST: return limited(g, t, LT, a, b);
    case PRIM_EQ: return compare(g, from, EQ, a, b);
    case PRIM_NE: return compare(g, from, NE, a, b);
    case PRIM_LT: return compare(g, from, LT, a, b);
    case PRIM_LE: return compare(g, from, LE, a, b);
    case PRIM_SIGNBIT: return sign_bit(g, from, a);
    case PRIM_AND: return both(g, a, b);
    case PRIM_OR: return either(g, a, b);
    case PRIM_NOT: return invert(g, a);
    case PRIM_BITAND: return plain(g, t, AND, a, b);
    case PRIM_BITOR: return plain(g, t, OR, a, b);
    case PRIM_BITXOR: return plain(g, t, GCC_JIT_BINARY_OP_BITWISE_XOR, a, b);
    case PRIM_SHL: return shift(g, t, true, a, b);
    case PRIM_SHR: return shift(g, t, false, a, b);
    case PRIM_SELECT: return select_of(g, t, a, b, c);
    case PRIM_COUNT:
#define SUPPLIED_BY_GIVEN(id) case id:
#define SUPPLIED_BY_FUNCTION(id) case id:
#define SUPPLIED_BY_EAGER(id) case id:
#define SUPPLIED_BY_INLINE(id)
#define SUPPLIED_BY_CONVERSION(id)
#define PRIM(id, name, arity, types, class, meaning) SUPPLIED_BY_##class(PRIM_##id)
#include "core/ops/prims.def"
        break; /* strip.c has what these need */
    }
    return zero_of(g, t);
}

/* ---- reductions ---- */

val gen_combine(emitter *g, reduce_kind kind, etch_dtype t, val acc, val x) {
    prim_instr p = {.prim = etch__reduction(kind)->prim, .type = (uint8_t)t};
    return gen_prim(g, &p, acc, x, NULL);
}

val gen_identity(emitter *g, reduce_kind kind, etch_dtype t) {
    double start = etch__reduction(kind)->start;
    if (etch__is_float(t)) return gen_real(g, t, start);
    if (t == ETCH_BOOL) return cast(g, constant(g, g->t_int, start > 0), g->t_bool);
    int64_t whole = !isinf(start) ? (int64_t)start : start < 0 ? ranges[t].min : ranges[t].max;
    return constant(g, g->compute[t], whole);
}

/* ---- functions ---- */

/* The variable that the loader points to the strips of this process's instruction set. */
static val function_table(emitter *g) {
    type address = gcc_jit_context_get_type(g->c, GCC_JIT_TYPE_VOID_PTR);
    if (!g->functions)
        g->functions = gcc_jit_context_new_global(
            g->c, NULL, GCC_JIT_GLOBAL_EXPORTED, gcc_jit_type_get_pointer(address), LOOP_FUNCTIONS);
    return rv(g->functions);
}

static void call_strip(emitter *g, int64_t at, val to, val a, val b, val n) {
    type address = gcc_jit_context_get_type(g->c, GCC_JIT_TYPE_VOID_PTR);
    type params[5] = {address, address, address, address, g->t_long};
    type strip = gcc_jit_context_new_function_ptr_type(g->c, NULL, g->t_void, 5, params, 0);
    val fn = cast(g, rv(elem(g, function_table(g), num(g, at))), strip);
    val args[5] = {cast(g, to, address), cast(g, a, address), cast(g, b, address),
                   gcc_jit_context_null(g->c, address), n};
    gcc_jit_block_add_eval(g->at, NULL,
                           gcc_jit_context_new_call_through_ptr(g->c, NULL, fn, 5, args));
}

void gen_function_call(emitter *g, int prim, etch_dtype t, val to, val a, val b, val n) {
    call_strip(g, (int64_t)prim * ETCH_DTYPE_COUNT + t, to, a, b, n);
}

void gen_strip_call(emitter *g, int strip, etch_dtype d, val to, val from, val n) {
    call_strip(g, (int64_t)strip * ETCH_DTYPE_COUNT + d, to, from, from, n);
}

/* In the place of PRIM_CONST. */
void gen_pad(emitter *g, etch_dtype d, val to, val from, val value, val n) {
    if (!g->padding[d]) g->padding[d] = gen_array(g, g->storage[d], 1, "padding");
    set(g, elem(g, g->padding[d], num(g, 0)), value);
    call_strip(g, (int64_t)PRIM_CONST * ETCH_DTYPE_COUNT + d, to, from, g->padding[d], n);
}

/* The library has it in the place of PRIM_INPUT: backends/cpu/table.h. */
void gen_move(emitter *g, etch_dtype d, gen_block to, gen_block from, val rows, val columns) {
    const val shape[5] = {rows, to.row, to.col, from.row, from.col};
    if (!g->shape) g->shape = gen_array(g, g->t_long, 5, "shape");
    for (int i = 0; i < 5; i++) set(g, elem(g, g->shape, num(g, i)), shape[i]);
    call_strip(g, (int64_t)PRIM_INPUT * ETCH_DTYPE_COUNT + d, to.place, from.place, g->shape,
               columns);
}
