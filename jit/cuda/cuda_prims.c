/* The scalar primitives of core/ops/prims.def as CUDA C: their texts, with operands and types put
 * into the holes. Wrapping arithmetic is unsigned, what must keep NaN bits works on integers,
 * conversions are clamped before they are made, so nothing is left to the compiler. */
#include "jit/cuda/cuda_gen.h"

#include <math.h>

/* ---- types ---- */

typedef struct type_text {
    const char *type, *storage, *wide; /* wide: the unsigned type that its arithmetic wraps in */
    int width, past; /* bits; the amount that a right shift of at least width is */
} type_text;

static const type_text types[ETCH_DTYPE_COUNT] = {
    [ETCH_F32] = {"float", "float", "u32", 32, 0}, [ETCH_F64] = {"double", "double", "u64", 64, 0},
    [ETCH_BF16] = {"float", "u16", "u32", 16, 0},  [ETCH_F16] = {"float", "u16", "u32", 16, 0},
    [ETCH_I8] = {"i8", "i8", "u32", 8, 7},         [ETCH_I16] = {"i16", "i16", "u32", 16, 15},
    [ETCH_I32] = {"i32", "i32", "u32", 32, 31},    [ETCH_I64] = {"i64", "i64", "u64", 64, 63},
    [ETCH_U8] = {"u8", "u8", "u32", 8, 8},         [ETCH_BOOL] = {"bool", "u8", "u32", 8, 8},
};

const char *etch__cuda_type(etch_dtype t) { return types[t].type; }
const char *etch__cuda_storage(etch_dtype d) { return types[d].storage; }

/* ---- primitives ---- */

/* The row's expression by the class of the result type; natural: of an integer without a sign, so
 * that nothing is compared with 0 in vain, NULL where it is `whole`. $a $b $c: operands; $t: its
 * type; $u: the unsigned type that it wraps in; $w: its width in bits; $p: the shift for "all out";
 * $f: "f" for float; $n: the primitive's name; $s: the suffix of its functions. What is GIVEN is
 * the kernel's own text, for CONVERT see put_convert. */
typedef struct prim_text {
    const char *real, *whole, *natural, *truth;
} prim_text;

#define TEXT_OF_ANY(r, w, t) .real = r, .whole = w, .truth = t
#define TEXT_OF_NUMBERS(r, w) .real = r, .whole = w
#define TEXT_OF_FLOATS(r) .real = r
#define TEXT_OF_INTEGERS(w) .whole = w
#define TEXT_OF_BOOLS(t) .truth = t
#define TEXT_OF_COMPARED(t) .truth = t
#define TEXT_OF_I64(w) .whole = w
#define TEXT_OF_F32(r) .real = r
#define BY_SIGN(with, without) with, .natural = without
#define MATH "$n$f($a)"
#define OWN "$n_$s($a)"
static const prim_text prims[PRIM_COUNT] = {
#define PRIM(id, name, arity, types, class, meaning) [PRIM_##id] = {TEXT_OF_##types},
#include "core/ops/prims.def"
};

static const char *text_of(int prim, etch_dtype t) {
    const prim_text *p = &prims[prim];
    if (t == ETCH_U8 && p->natural) return p->natural;
    return t == ETCH_BOOL ? p->truth : etch__is_float(t) ? p->real : p->whole;
}

static void put_hole(growing_text *t, char hole, const prim_instr *p, const char *const *operand) {
    const type_text *type = &types[p->type];
    switch (hole) {
    case 't': etch__text_put(t, "%s", type->type); break;
    case 'u': etch__text_put(t, "%s", type->wide); break;
    case 'w': etch__text_put(t, "%d", type->width); break;
    case 'p': etch__text_put(t, "%d", type->past); break;
    case 'f': etch__text_put(t, "%s", p->type == ETCH_F64 ? "" : "f"); break;
    case 's': etch__text_put(t, "%s", p->type == ETCH_F64 ? "f64" : "f32"); break;
    case 'n': etch__text_put(t, "%s", etch__prims[p->prim].name); break;
    default: etch__text_put(t, "%s", operand[hole - 'a']);
    }
}

/* ---- conversions ---- */

/* The lowest value and the first that is too large, both exact in f32. */
typedef struct int_range {
    const char *low, *above, *min, *max;
} int_range;

static const int_range ranges[ETCH_DTYPE_COUNT] = {
    [ETCH_I8] = {"-0x1p7f", "0x1p7f", "-128", "127"},
    [ETCH_I16] = {"-0x1p15f", "0x1p15f", "-32768", "32767"},
    [ETCH_I32] = {"-0x1p31f", "0x1p31f", "(-2147483647 - 1)", "2147483647"},
    [ETCH_I64] = {"-0x1p63f", "0x1p63f", "(-9223372036854775807LL - 1)", "9223372036854775807LL"},
    [ETCH_U8] = {"0.0f", "0x1p8f", "0", "255"},
};

static void put_convert(growing_text *t, const prim_instr *p, const char *a) {
    etch_dtype to = p->type, from = p->from;
    const int_range *r = &ranges[to];
    if (to == from) etch__text_put(t, "%s", a);
    else if (to == ETCH_BOOL) etch__text_put(t, "%s != 0", a);
    else if (etch__is_float(from) && !etch__is_float(to))
        etch__text_put(t, "saturate<%s, %s>(%s, %s, %s, %s, %s)", types[to].type,
                       to == ETCH_I64 ? "i64" : "i32", a, r->low, r->above, r->min, r->max);
    else etch__text_put(t, "(%s)%s", types[to].type, a);
}

void etch__cuda_prim(growing_text *t, const prim_instr *p, const char *a, const char *b,
                     const char *c) {
    const char *const operand[3] = {a, b, c};
    const char *s = text_of(p->prim, p->type);
    if (p->prim == PRIM_CONVERT) {
        put_convert(t, p, a);
        return;
    }
    for (; s && *s; s++) {
        if (*s == '$') put_hole(t, *++s, p, operand);
        else etch__text_put(t, "%c", *s);
    }
}

/* ---- values that are the same everywhere ---- */

static void put_float(growing_text *t, float f) {
    uint32_t bits;
    char digits[40];
    memcpy(&bits, &f, 4);
    snprintf(digits, sizeof digits, "%.9g", (double)f);
    if (!isfinite(f)) etch__text_put(t, "__int_as_float((i32)0x%08xu)", bits);
    else etch__text_put(t, "%s%sf", digits, strpbrk(digits, ".e") ? "" : ".0");
}

static void put_double(growing_text *t, double d) {
    uint64_t bits;
    char digits[40];
    memcpy(&bits, &d, 8);
    snprintf(digits, sizeof digits, "%.17g", d);
    if (!isfinite(d))
        etch__text_put(t, "__longlong_as_double((i64)0x%016llxull)", (unsigned long long)bits);
    else etch__text_put(t, "%s%s", digits, strpbrk(digits, ".e") ? "" : ".0");
}

static int64_t wrapped(etch_dtype type, int64_t v) {
    return type == ETCH_I8    ? (int8_t)v
           : type == ETCH_I16 ? (int16_t)v
           : type == ETCH_U8  ? (uint8_t)v
                              : (int32_t)v;
}

static void put_narrow(growing_text *t, int64_t v) {
    etch__text_put(t, v == INT32_MIN ? "(%lld - 1)" : "%lld",
                   (long long)(v == INT32_MIN ? v + 1 : v));
}

static void put_whole(growing_text *t, etch_dtype type, int64_t v) {
    if (type == ETCH_BOOL) etch__text_put(t, "%s", v ? "true" : "false");
    else if (type != ETCH_I64) put_narrow(t, wrapped(type, v));
    else if (v == INT64_MIN) etch__text_put(t, "%s", ranges[ETCH_I64].min);
    else etch__text_put(t, "%lldLL", (long long)v);
}

void etch__cuda_constant(growing_text *t, const prim_instr *p) {
    if (p->type == ETCH_F32) put_float(t, (float)p->imm.d);
    else if (p->type == ETCH_F64) put_double(t, p->imm.d);
    else put_whole(t, p->type, p->imm.i);
}

/* The low bytes of a cell hold a value of the compute type of `from`. */
void etch__cuda_scalar(growing_text *t, const prim_instr *p) {
    etch_dtype from = etch__compute_type(p->from);
    prim_instr as = {.prim = PRIM_CONVERT, .type = p->type, .from = (uint8_t)from};
    char cell[80];
    const char *form = from == ETCH_F32    ? "__int_as_float((i32)a.cells[%lld])"
                       : from == ETCH_F64  ? "__longlong_as_double((i64)a.cells[%lld])"
                       : from == ETCH_BOOL ? "((u8)a.cells[%lld] != 0)"
                                           : NULL;
    if (form) snprintf(cell, sizeof cell, form, (long long)p->imm.i);
    else snprintf(cell, sizeof cell, "(%s)a.cells[%lld]", types[from].type, (long long)p->imm.i);
    put_convert(t, &as, cell);
}

/* ---- reductions ---- */

void etch__cuda_combine(growing_text *t, reduce_kind kind, etch_dtype type, const char *acc,
                        const char *x) {
    prim_instr p = {.prim = etch__reduction(kind)->prim, .type = (uint8_t)type};
    etch__cuda_prim(t, &p, acc, x, "");
}

void etch__cuda_identity(growing_text *t, reduce_kind kind, etch_dtype type) {
    double start = etch__reduction(kind)->start;
    if (type == ETCH_F32) put_float(t, (float)start);
    else if (type == ETCH_F64) put_double(t, start);
    else if (type == ETCH_BOOL) put_whole(t, type, start > 0);
    else if (!isinf(start)) put_whole(t, type, (int64_t)start);
    else etch__text_put(t, "%s", start < 0 ? ranges[type].min : ranges[type].max);
}

/* ---- memory ---- */

void etch__cuda_from_storage(growing_text *t, etch_dtype d, const char *e) {
    const char *form = d == ETCH_BF16   ? "bf16_value(%s)"
                       : d == ETCH_F16  ? "f16_value(%s)"
                       : d == ETCH_BOOL ? "%s != 0"
                                        : "%s";
    etch__text_put(t, form, e);
}

void etch__cuda_to_storage(growing_text *t, etch_dtype d, const char *v) {
    const char *form = d == ETCH_BF16   ? "bf16_bits(%s)"
                       : d == ETCH_F16  ? "f16_bits(%s)"
                       : d == ETCH_BOOL ? "(u8)%s"
                                        : "%s";
    etch__text_put(t, form, v);
}

/* ---- helper functions ---- */

/* Each is emitted where the body names it. */
static const struct {
    const char *name, *text;
} helpers[] = {
    {"vec<", "/* N neighbours in memory, moved by the widest accesses that there are. */\n"
             "template <class T, int N>\n"
             "struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) vec {\n"
             "    T e[N];\n"
             "};\n"},
    {"read_once(",
     "/* 16 bytes that nobody writes meanwhile, kept out of the first-level cache. */\n"
     "template <class T, int N>\n"
     "__device__ inline vec<T, N> read_once(const vec<T, N> *p) {\n"
     "#if __CUDACC_VER_MAJOR__ >= 12 && __CUDA_ARCH__ >= 700\n"
     "    union {\n"
     "        u32 word[4];\n"
     "        vec<T, N> whole;\n"
     "    } r;\n"
     "    asm(\"ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\"\n"
     "        : \"=r\"(r.word[0]), \"=r\"(r.word[1]), \"=r\"(r.word[2]), \"=r\"(r.word[3])\n"
     "        : \"l\"(p));\n"
     "    return r.whole;\n"
     "#else\n"
     "    return *p;\n"
     "#endif\n"
     "}\n"},
    {"quot(", "__device__ inline idx quot(idx a, idx b) { return (idx)((uidx)a / (uidx)b); }\n"},
    {"negate(",
     "/* The sign bit alone, of a NaN too. */\n"
     "__device__ inline float negate(float x) {\n"
     "    return __int_as_float((i32)((u32)__float_as_int(x) ^ 0x80000000u));\n"
     "}\n"
     "__device__ inline double negate(double x) {\n"
     "    return __longlong_as_double((i64)((u64)__double_as_longlong(x) ^ (1ull << 63)));\n"
     "}\n"},
    {"absolute(",
     "__device__ inline float absolute(float x) {\n"
     "    return __int_as_float(__float_as_int(x) & 0x7fffffff);\n"
     "}\n"
     "__device__ inline double absolute(double x) {\n"
     "    return __longlong_as_double(__double_as_longlong(x) & 0x7fffffffffffffffll);\n"
     "}\n"},
    {"larger(",
     "/* Zeros of different sign and NaN: what differs both ways round is joined bit by bit. */\n"
     "__device__ inline float larger(float x, float y) {\n"
     "    const i32 p = __float_as_int(x > y ? x : y), q = __float_as_int(y > x ? y : x);\n"
     "    return __int_as_float((p & q) | ((p | q) & 0x7fffffff));\n"
     "}\n"
     "__device__ inline double larger(double x, double y) {\n"
     "    const i64 p = __double_as_longlong(x > y ? x : y);\n"
     "    const i64 q = __double_as_longlong(y > x ? y : x);\n"
     "    return __longlong_as_double((p & q) | ((p | q) & 0x7fffffffffffffffll));\n"
     "}\n"},
    {"smaller(",
     "/* The same for the least. */\n"
     "__device__ inline float smaller(float x, float y) {\n"
     "    return __int_as_float(__float_as_int(x < y ? x : y) | __float_as_int(y < x ? y : x));\n"
     "}\n"
     "__device__ inline double smaller(double x, double y) {\n"
     "    return __longlong_as_double(__double_as_longlong(x < y ? x : y) |\n"
     "                                __double_as_longlong(y < x ? y : x));\n"
     "}\n"},
    {"sign_bit(",
     "/* Of a NaN too. */\n"
     "__device__ inline bool sign_bit(float x) { return __float_as_int(x) < 0; }\n"
     "__device__ inline bool sign_bit(double x) { return __double_as_longlong(x) < 0; }\n"
     "__device__ inline bool sign_bit(i64 x) { return x < 0; }\n"
     "__device__ inline bool sign_bit(i32 x) { return x < 0; }\n"
     "__device__ inline bool sign_bit(i16 x) { return x < 0; }\n"
     "__device__ inline bool sign_bit(i8 x) { return x < 0; }\n"
     "__device__ inline bool sign_bit(u8) { return false; }\n"
     "__device__ inline bool sign_bit(bool) { return false; }\n"},
    {"saturate<",
     "/* Truncates; what is too large or too small becomes the last value, NaN becomes 0. */\n"
     "template <class T, class W, class F>\n"
     "__device__ inline T saturate(F x, float low, float above, T min, T max) {\n"
     "    const bool in = x >= (F)low && x < (F)above;\n"
     "    const T whole = (T)(W)(in ? x : (F)0);\n"
     "    return in ? whole : x >= (F)above ? max : x < (F)low ? min : (T)0;\n"
     "}\n"},
    {"whole_power<", "/* Repeated squaring, wraps. */\n"
                     "template <class T, class U>\n"
                     "__device__ inline T whole_power(T x, T y) {\n"
                     "    U result = 1, base = (U)x;\n"
                     "    for (U e = (U)y; e; e >>= 1, base *= base)\n"
                     "        if (e & 1) result *= base;\n"
                     "    return (T)result;\n"
                     "}\n"},
    {"inverse_power(", "/* A negative exponent leaves 1 / x, which is whole for 1 and -1 only. */\n"
                       "template <class T>\n"
                       "__device__ inline T inverse_power(T x, T y) {\n"
                       "    return (T)(x == 1 ? 1 : x != -1 ? 0 : y & 1 ? -1 : 1);\n"
                       "}\n"},
    {"quotient<", "/* The lowest value over -1 wraps. */\n"
                  "template <class T, class U>\n"
                  "__device__ inline T quotient(T a, T b) {\n"
                  "    return b == -1 ? (T)(0 - (U)a) : (T)(a / b);\n"
                  "}\n"},
    {"remainder_of(", "template <class T>\n"
                      "__device__ inline T remainder_of(T a, T b) {\n"
                      "    return b == -1 ? (T)0 : (T)(a % b);\n"
                      "}\n"},
    {"round_bf16(",
     "/* To the nearest, ties to even; every NaN becomes the same one. */\n"
     "__device__ inline float round_bf16(float x) {\n"
     "#if __CUDACC_VER_MAJOR__ >= 12 && __CUDA_ARCH__ >= 800\n"
     "    i32 r;\n"
     "    asm(\"cvt.rn.bf16x2.f32 %0, %1, %2;\" : \"=r\"(r) : \"f\"(x), \"f\"(0.0f));\n"
     "    return __int_as_float(r);\n"
     "#else\n"
     "    const u32 u = (u32)__float_as_int(x);\n"
     "    const u32 r = x != x ? 0x7fff0000u : u + 0x7fffu + (u >> 16 & 1);\n"
     "    return __int_as_float((i32)(r & 0xffff0000u));\n"
     "#endif\n"
     "}\n"},
    {"round_f16(",
     "/* Above 2^-14 the low 13 bits go; below, adding 0.5 leaves multiples of 2^-24; from 65520 "
     "on\n"
     " * it is infinite. Every NaN becomes the same one. */\n"
     "__device__ inline float round_f16(float x) {\n"
     "#if __CUDACC_VER_MAJOR__ >= 12 && __CUDA_ARCH__ >= 700\n"
     "    float y;\n"
     "    asm(\"{.reg .b16 h; cvt.rn.f16.f32 h, %1; cvt.f32.f16 %0, h;}\" : \"=f\"(y) : "
     "\"f\"(x));\n"
     "    return y;\n"
     "#else\n"
     "    const u32 u = (u32)__float_as_int(x), sign = u & 0x80000000u, m = u & 0x7fffffffu;\n"
     "    u32 r = (m + 0xfffu + (m >> 13 & 1)) & 0xffffe000u;\n"
     "    if (r >= 0x47800000u) r = 0x7f800000u;\n"
     "    if (m < 0x38800000u) r = (u32)__float_as_int(__int_as_float((i32)m) + 0.5f - 0.5f);\n"
     "    return __int_as_float((i32)(m > 0x7f800000u ? 0x7fffe000u : r | sign));\n"
     "#endif\n"
     "}\n"},
    {"bf16_value(", "__device__ inline float bf16_value(u16 h) {\n"
                    "    return __int_as_float((i32)((u32)h << 16));\n"
                    "}\n"},
    {"bf16_bits(", "__device__ inline u16 bf16_bits(float x) {\n"
                   "    return (u16)((u32)__float_as_int(x) >> 16);\n"
                   "}\n"},
    {"f16_value(", "/* Exact: a denormal is its integer times 2^-24, else the exponent is rebased. "
                   "What a NaN says\n"
                   " * besides stays. */\n"
                   "__device__ inline float f16_value(u16 h) {\n"
                   "    const u32 m = h & 0x7fffu, sign = (u32)(h & 0x8000u) << 16;\n"
                   "    u32 r = (m << 13) + (m >= 0x7c00u ? 224u << 23 : 112u << 23);\n"
                   "#if __CUDACC_VER_MAJOR__ >= 12 && __CUDA_ARCH__ >= 700\n"
                   "    float x;\n"
                   "    asm(\"cvt.f32.f16 %0, %1;\" : \"=f\"(x) : \"h\"(h));\n"
                   "    return m > 0x7c00u ? __int_as_float((i32)(r | sign)) : x;\n"
                   "#else\n"
                   "    if (m < 0x400u) r = (u32)__float_as_int((float)(i32)m * 0x1p-24f);\n"
                   "    return __int_as_float((i32)(r | sign));\n"
                   "#endif\n"
                   "}\n"},
    {"f16_bits(", "/* Exact: the value lies on the grid of f16 already. */\n"
                  "__device__ inline u16 f16_bits(float x) {\n"
                  "    const u32 u = (u32)__float_as_int(x), m = u & 0x7fffffffu;\n"
                  "    const bool small = m < 0x38800000u;\n"
                  "    u32 r = (m - (112u << 23)) >> 13;\n"
                  "    if (small) r = (u32)(i32)(__int_as_float((i32)m) * 0x1p24f);\n"
                  "    if (m >= 0x7f800000u) r = 0x7c00u | (m >> 13 & 0x3ffu);\n"
                  "    return (u16)(r | (u >> 16 & 0x8000u));\n"
                  "}\n"},
    {"down(",
     "/* The value of the thread `by` further on in its group of `width` threads. */\n"
     "template <class T>\n"
     "__device__ inline T down(T x, int by, int width) {\n"
     "    return (T)__shfl_down_sync(0xffffffffu, (int)x, by, width);\n"
     "}\n"
     "template <>\n"
     "__device__ inline float down(float x, int by, int width) {\n"
     "    return __int_as_float(__shfl_down_sync(0xffffffffu, __float_as_int(x), by, width));\n"
     "}\n"
     "template <>\n"
     "__device__ inline i64 down(i64 x, int by, int width) {\n"
     "    return __shfl_down_sync(0xffffffffu, x, by, width);\n"
     "}\n"
     "template <>\n"
     "__device__ inline double down(double x, int by, int width) {\n"
     "    const i64 u = __double_as_longlong(x);\n"
     "    return __longlong_as_double(__shfl_down_sync(0xffffffffu, u, by, width));\n"
     "}\n"},
    {"of_first(",
     "/* The value of the first thread of a group of `width`. */\n"
     "template <class T>\n"
     "__device__ inline T of_first(T x, int width) {\n"
     "    return (T)__shfl_sync(0xffffffffu, (int)x, 0, width);\n"
     "}\n"
     "template <>\n"
     "__device__ inline float of_first(float x, int width) {\n"
     "    return __int_as_float(__shfl_sync(0xffffffffu, __float_as_int(x), 0, width));\n"
     "}\n"
     "template <>\n"
     "__device__ inline i64 of_first(i64 x, int width) {\n"
     "    return __shfl_sync(0xffffffffu, x, 0, width);\n"
     "}\n"
     "template <>\n"
     "__device__ inline double of_first(double x, int width) {\n"
     "    const i64 u = __double_as_longlong(x);\n"
     "    return __longlong_as_double(__shfl_sync(0xffffffffu, u, 0, width));\n"
     "}\n"},
};

static bool calls(const char *body, const char *helper) {
    for (const char *at = body; (at = strstr(at, helper)); at++)
        if (at == body || strchr(" (+-*!", at[-1])) return true;
    return false;
}

void etch__cuda_prelude(growing_text *t, int index_bits, const char *body) {
    etch__text_put(t,
                   "typedef signed char i8;\n"
                   "typedef short i16;\n"
                   "typedef int i32;\n"
                   "typedef long long i64;\n"
                   "typedef unsigned char u8;\n"
                   "typedef unsigned short u16;\n"
                   "typedef unsigned u32;\n"
                   "typedef unsigned long long u64;\n"
                   "typedef %s idx;\n"
                   "typedef %s uidx;\n",
                   index_bits == 32 ? "i32" : "i64", index_bits == 32 ? "u32" : "u64");
    etch__cuda_functions(t, body);
    for (int h = 0; h < COUNT_OF(helpers); h++)
        if (calls(body, helpers[h].name)) etch__text_put(t, "\n%s", helpers[h].text);
}
