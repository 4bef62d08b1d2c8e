/* Elements as C numbers, and walks over them. */
#include "core/tensor/element.h"

#include <math.h>

static float float_of_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Subnormal halves are multiples of 2^-24; infinities and NaNs keep their mantissa bits. */
static float half_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3ff;
    if (exponent == 0) return float_of_bits(sign | 0x3f800000) * ((float)mantissa * 0x1p-24f);
    uint32_t wide = exponent == 31 ? 255 : exponent + 112;
    return float_of_bits(sign | wide << 23 | mantissa << 13);
}

#define LOAD(type) (*(const type *)p)

double etch__element_real(etch_dtype dtype, const void *p) {
    switch (dtype) {
    case ETCH_F32: return LOAD(float);
    case ETCH_F64: return LOAD(double);
    case ETCH_BF16: return float_of_bits((uint32_t)LOAD(uint16_t) << 16);
    case ETCH_F16: return half_to_float(LOAD(uint16_t));
    default: return (double)etch__element_int(dtype, p);
    }
}

static int64_t saturate(double d) {
    if (isnan(d)) return 0;
    if (d >= 0x1p63) return INT64_MAX;
    return d < -0x1p63 ? INT64_MIN : (int64_t)d;
}

int64_t etch__element_int(etch_dtype dtype, const void *p) {
    switch (dtype) {
    case ETCH_I8: return LOAD(int8_t);
    case ETCH_I16: return LOAD(int16_t);
    case ETCH_I32: return LOAD(int32_t);
    case ETCH_I64: return LOAD(int64_t);
    case ETCH_U8: return LOAD(uint8_t);
    case ETCH_BOOL: return LOAD(uint8_t) != 0;
    default: return saturate(etch__element_real(dtype, p));
    }
}

/* ---- walks ---- */

/* Moves the row pointers to the next index over dimensions [0..last); false after the last one. */
static bool next_row(const etch_tensor *const *t, int count, int last, int64_t *index,
                     const char **p) {
    for (int d = last - 1; d >= 0; d--) {
        bool carry = ++index[d] == t[0]->size[d];
        for (int k = 0; k < count; k++) {
            int64_t bytes = t[k]->stride[d] * (int64_t)etch_dtype_size(t[k]->dtype);
            p[k] += carry ? -bytes * (t[0]->size[d] - 1) : bytes;
        }
        if (!carry) return true;
        index[d] = 0;
    }
    return false;
}

bool etch__each_row(const etch_tensor *const *t, int count, element_row row, void *ctx) {
    int last = t[0]->ndim ? t[0]->ndim - 1 : 0;
    int64_t n = t[0]->ndim ? t[0]->size[last] : 1, index[ETCH_MAX_DIMS] = {0}, step[2] = {0};
    const char *p[2];
    if (!t[0]->numel) return true;
    for (int k = 0; k < count; k++) {
        p[k] = etch__ptr(t[k]);
        if (t[0]->ndim) step[k] = t[k]->stride[last] * (int64_t)etch_dtype_size(t[k]->dtype);
    }
    do
        if (!row(ctx, p, step, n)) return false;
    while (next_row(t, count, last, index, p));
    return true;
}

typedef struct copy_ctx {
    char *dst;
    size_t size;
} copy_ctx;

static bool copy_row(void *ctx, const char *const *p, const int64_t *step, int64_t n) {
    copy_ctx *c = ctx;
    const char *from = p[0];
    for (int64_t i = 0; i < n; i++, from += step[0], c->dst += c->size) switch (c->size) {
        case 1: *c->dst = *from; break;
        case 2: memcpy(c->dst, from, 2); break;
        case 4: memcpy(c->dst, from, 4); break;
        default: memcpy(c->dst, from, 8); break;
        }
    return true;
}

void etch__copy_out(const etch_tensor *t, void *dst) {
    copy_ctx c = {dst, etch_dtype_size(t->dtype)};
    if (t->numel == 0) return;
    if (t->contiguous) memcpy(dst, etch__ptr(t), (size_t)t->numel * c.size);
    else etch__each_row(&t, 1, copy_row, &c);
}

bool etch__read(const etch_tensor *t, const char *function, reason_id why, const void *site) {
    if (!etch__handle_ok(t, function, "t", site)) return false;
    if (t == ETCH_NONE)
        return etch__false_at(site, ETCH_ERR_INVALID_ARGUMENT,
                              "%s: expected a tensor, got ETCH_NONE", function);
    return etch__materialise(t, function, why, site) == ETCH_OK;
}
