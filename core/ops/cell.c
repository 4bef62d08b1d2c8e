/* Run-time scalars as the cells that kernels read: rounded to a dtype as elements are. */
#include "core/ops/expr.h"

static float round_bf16(float v) {
    uint32_t u;
    memcpy(&u, &v, 4);
    u = v != v ? (u | 0x400000) & 0xffff0000u : (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u;
    memcpy(&v, &u, 4);
    return v;
}

/* By integer arithmetic, so that the rounding mode of the thread does not matter. */
static float round_f16(float v) {
    uint32_t u;
    memcpy(&u, &v, 4);
    uint32_t sign = u & 0x80000000u, mag = u & 0x7fffffffu;
    if (mag > 0x7f800000u) {
        mag = (mag | 0x400000u) & 0xffffe000u;
    } else if (mag < 0x38800000u) { /* below 2^-14: a multiple of 2^-24 */
        uint32_t e = mag >> 23, m = (mag & 0x7fffff) | (e ? 0x800000u : 0);
        uint32_t s = e > 101 ? 126 - e : 25;
        float q = (float)((m + (1u << (s - 1)) - 1 + (m >> s & 1)) >> s) * 0x1p-24f;
        memcpy(&mag, &q, 4);
    } else {
        mag = (mag + 0xfff + (mag >> 13 & 1)) & 0xffffe000u;
        if (mag >= 0x47800000u) mag = 0x7f800000u;
    }
    u = sign | mag;
    memcpy(&v, &u, 4);
    return v;
}

static int64_t saturate(double v, int64_t low, int64_t high) {
    if (v != v) return 0;
    if (v >= (double)high) return high;
    if (v <= (double)low) return low;
    return (int64_t)v;
}

static uint64_t float_cell(float v) {
    uint32_t u;
    memcpy(&u, &v, 4);
    return u;
}

static uint64_t double_cell(double v) {
    uint64_t u;
    memcpy(&u, &v, 8);
    return u;
}

uint64_t etch__scalar_cell(etch_scalar s, etch_dtype round_to) {
    bool real = s.kind == ETCH_SCALAR_REAL;
    float f = real ? (float)s.d : (float)s.i;
    switch (round_to) {
    case ETCH_F32: return float_cell(f);
    case ETCH_F64: return double_cell(real ? s.d : (double)s.i);
    case ETCH_BF16: return float_cell(round_bf16(f));
    case ETCH_F16: return float_cell(round_f16(f));
    case ETCH_I8: return (uint8_t)(real ? saturate(s.d, INT8_MIN, INT8_MAX) : s.i);
    case ETCH_I16: return (uint16_t)(real ? saturate(s.d, INT16_MIN, INT16_MAX) : s.i);
    case ETCH_I32: return (uint32_t)(real ? saturate(s.d, INT32_MIN, INT32_MAX) : s.i);
    case ETCH_I64: return (uint64_t)(real ? saturate(s.d, INT64_MIN, INT64_MAX) : s.i);
    case ETCH_U8: return (uint8_t)(real ? saturate(s.d, 0, UINT8_MAX) : s.i);
    case ETCH_BOOL: return real ? s.d != 0 : s.i != 0;
    default: return 0;
    }
}
