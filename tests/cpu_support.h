/* What the suites of the CPU kernels share: tensors of every dtype and layout, scalar references
 * for conversions written independently of the library, and running a suite again under each lower
 * instruction set. */
#ifndef ETCH_TESTS_CPU_SUPPORT_H
#define ETCH_TESTS_CPU_SUPPORT_H

#include <etch/etch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/tensor/device.h"
#include "core/dispatch/dispatch.h"
#include "core/ops/expr.h"
#include "core/base/isa.h"
#include "etch_test.h"

#define UNUSED_FN __attribute__((unused)) static

/* ---- numbers ---- */

UNUSED_FN bool is_float(etch_dtype d) { return d <= ETCH_F16; }

/* The nearest value with `bits` significand bits and least exponent `emin`, ties to even: scaled to
 * an integer and rounded there by nearbyint, in double, which holds every f32 exactly. */
UNUSED_FN double round_to_grid(double v, int bits, int emin, double max) {
    if (v == 0 || !isfinite(v)) return v;
    int e = ilogb(v);
    if (e < emin) e = emin;
    double unit = ldexp(1, e - bits + 1), r = nearbyint(v / unit) * unit;
    return fabs(r) > max ? copysign(INFINITY, v) : copysign(r, v);
}

UNUSED_FN double ref_bf16(double v) { return round_to_grid((float)v, 8, -126, 0x1.fep127); }
UNUSED_FN double ref_f16(double v) { return round_to_grid((float)v, 11, -14, 65504); }

UNUSED_FN int64_t ref_saturate(double v, double low, double high, int64_t ilow, int64_t ihigh) {
    if (isnan(v)) return 0;
    v = trunc(v);
    return v < low ? ilow : v > high ? ihigh : (int64_t)v;
}

UNUSED_FN int64_t ref_wrap(int64_t v, etch_dtype d) {
    switch (d) {
    case ETCH_I8: return (int64_t)((uint64_t)v << 56) >> 56;
    case ETCH_I16: return (int64_t)((uint64_t)v << 48) >> 48;
    case ETCH_I32: return (int64_t)((uint64_t)v << 32) >> 32;
    case ETCH_U8: return v & 255;
    case ETCH_BOOL: return v != 0;
    default: return v;
    }
}

/* A value of any dtype: reals in d, others in i. */
typedef struct number {
    bool real;
    double d;
    int64_t i;
} number;

UNUSED_FN number real_number(double d) { return (number){true, d, 0}; }
UNUSED_FN number whole_number(int64_t i) { return (number){false, 0, i}; }

UNUSED_FN number ref_convert(number v, etch_dtype to) {
    double d = v.real ? v.d : (double)v.i;
    switch (to) {
    case ETCH_F32: return real_number(v.real ? (double)(float)v.d : (double)(float)v.i);
    case ETCH_F64: return real_number(d);
    case ETCH_BF16: return real_number(ref_bf16(v.real ? (float)v.d : (float)v.i));
    case ETCH_F16: return real_number(ref_f16(v.real ? (float)v.d : (float)v.i));
    default: break;
    }
    if (!v.real) return whole_number(ref_wrap(v.i, to));
    switch (to) {
    case ETCH_I8: return whole_number(ref_saturate(d, -128, 127, -128, 127));
    case ETCH_I16: return whole_number(ref_saturate(d, -32768, 32767, -32768, 32767));
    case ETCH_I32: return whole_number(ref_saturate(d, -0x1p31, 0x1p31 - 1, INT32_MIN, INT32_MAX));
    case ETCH_I64:
        return whole_number(ref_saturate(d, -0x1p63, 0x1.fffffffffffffp62, INT64_MIN, INT64_MAX));
    case ETCH_U8: return whole_number(ref_saturate(d, 0, 255, 0, 255));
    default: return whole_number(d != 0);
    }
}

/* ---- elements in memory ---- */

/* 2^n, of a normal double. */
UNUSED_FN double power_of_two(int n) {
    uint64_t bits = (uint64_t)(1023 + n) << 52;
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

UNUSED_FN double half_value(uint16_t h, int exponent_bits) {
    int mantissa_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
    int e = h >> mantissa_bits & ((1 << exponent_bits) - 1), m = h & ((1 << mantissa_bits) - 1);
    double v;
    if (e == (1 << exponent_bits) - 1) v = m ? NAN : INFINITY;
    else if (e == 0) v = m * power_of_two(1 - bias - mantissa_bits);
    else v = (m + (1 << mantissa_bits)) * power_of_two(e - bias - mantissa_bits);
    return h >> 15 ? -v : v;
}

/* The half whose value is v (which is on the grid). */
UNUSED_FN uint16_t half_bits(double v, int exponent_bits) {
    int mantissa_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
    uint16_t sign = signbit(v) ? 0x8000 : 0,
             top = (uint16_t)(((1 << exponent_bits) - 1) << mantissa_bits);
    if (isnan(v)) return sign | top | 1 << (mantissa_bits - 1);
    if (isinf(v)) return sign | top;
    if (v == 0) return sign;
    int e = ilogb(v);
    if (e < 1 - bias) return sign | (uint16_t)ldexp(fabs(v), bias - 1 + mantissa_bits);
    uint16_t m = (uint16_t)(ldexp(fabs(v), mantissa_bits - e) - (1 << mantissa_bits));
    return sign | (uint16_t)((e + bias) << mantissa_bits) | m;
}

UNUSED_FN number load_number(const void *p, int64_t i, etch_dtype d) {
    switch (d) {
    case ETCH_F32: return real_number(((const float *)p)[i]);
    case ETCH_F64: return real_number(((const double *)p)[i]);
    case ETCH_BF16: return real_number(half_value(((const uint16_t *)p)[i], 8));
    case ETCH_F16: return real_number(half_value(((const uint16_t *)p)[i], 5));
    case ETCH_I8: return whole_number(((const int8_t *)p)[i]);
    case ETCH_I16: return whole_number(((const int16_t *)p)[i]);
    case ETCH_I32: return whole_number(((const int32_t *)p)[i]);
    case ETCH_I64: return whole_number(((const int64_t *)p)[i]);
    default: return whole_number(((const uint8_t *)p)[i]);
    }
}

/* v is a value of dtype d already. */
UNUSED_FN void store_number(void *p, int64_t i, etch_dtype d, number v) {
    switch (d) {
    case ETCH_F32: ((float *)p)[i] = (float)v.d; break;
    case ETCH_F64: ((double *)p)[i] = v.d; break;
    case ETCH_BF16: ((uint16_t *)p)[i] = half_bits(v.d, 8); break;
    case ETCH_F16: ((uint16_t *)p)[i] = half_bits(v.d, 5); break;
    case ETCH_I8: ((int8_t *)p)[i] = (int8_t)v.i; break;
    case ETCH_I16: ((int16_t *)p)[i] = (int16_t)v.i; break;
    case ETCH_I32: ((int32_t *)p)[i] = (int32_t)v.i; break;
    case ETCH_I64: ((int64_t *)p)[i] = v.i; break;
    default: ((uint8_t *)p)[i] = (uint8_t)v.i;
    }
}

/* ---- a small generator of its own ---- */

UNUSED_FN uint64_t test_random(void) {
    static uint64_t state = 0x9e3779b97f4a7c15ull;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}
UNUSED_FN double test_uniform(void) { return (double)(test_random() >> 11) * 0x1p-53; }

/* A value of dtype d: often an odd one, unless tame. */
UNUSED_FN number test_number(etch_dtype d, bool tame) {
    static const double odd[] = {0,        -0.0,      1,        -1,        NAN,
                                 INFINITY, -INFINITY, 0x1p-149, -0x1p-149, 0x1p-130,
                                 3.4e38,   -3.4e38,   0x1p-24,  65504,     0.5,
                                 -2.5,     1e10,      255,      -129,      2147483648.0};
    static const int64_t odd_int[] = {0,         1,     -1,     2,         127,       -128,
                                      255,       32767, -32768, INT32_MAX, INT32_MIN, INT64_MAX,
                                      INT64_MIN, 100,   -7,     3};
    uint64_t r = test_random();
    if (!is_float(d)) {
        if (tame) return ref_convert(whole_number((int64_t)(r >> 8) % 10), d);
        int64_t v = r % 3 == 0 ? odd_int[(r >> 8) % 16] : (int64_t)test_random() >> (r >> 20 & 63);
        return ref_convert(whole_number(v), d);
    }
    if (!tame && r % 4 == 0) return ref_convert(real_number(odd[(r >> 8) % 20]), d);
    double scale = tame ? 2 : ldexp(1, (int)(r >> 8) % 12 - 6);
    return ref_convert(real_number((test_uniform() * 2 - 1) * scale), d);
}

/* ---- tensors ---- */

typedef enum layout {
    LAYOUT_ROW,      /* contiguous */
    LAYOUT_COLUMN,   /* axes in reverse order in memory */
    LAYOUT_GAPS,     /* every second element, at an offset */
    LAYOUT_NEGATIVE, /* innermost axis backwards */
    LAYOUT_EXPANDED, /* innermost axis with stride 0 */
    LAYOUT_COUNT
} layout;

/* Suites read elements one by one, mostly of rows without gaps: there no number is divided. */
UNUSED_FN int64_t flat_offset(const etch_tensor *t, int64_t flat) {
    int64_t offset = 0, rows = 1;
    int d = t->ndim - 1;
    while (d >= 0 && (t->size[d] == 1 || t->stride[d] == rows)) rows *= t->size[d--];
    if (d < 0) return flat;
    for (d = t->ndim - 1; d >= 0; d--) {
        offset += flat % t->size[d] * t->stride[d];
        flat /= t->size[d];
    }
    return offset;
}

/* ---- elements on a device ----
 *
 * A tensor there is read whole, once: host copies of the storages last read are kept. They are
 * forgotten where the storage is allocated anew, copied into, or written (its version moved on);
 * the test sees the first two by standing in front of the device's own functions. */

typedef struct mirror {
    const etch_storage *of;
    unsigned version;
    char *bytes;
} mirror;

enum { MIRRORS = 6 };
static mirror mirrors[MIRRORS];
static const device_kind *behind; /* the device's own functions */
static device_kind in_front;

UNUSED_FN mirror *find_mirror(const etch_storage *s) {
    for (int i = 0; i < MIRRORS; i++)
        if (mirrors[i].of == s) return &mirrors[i];
    return NULL;
}

UNUSED_FN void forget_mirror(const etch_storage *s) {
    mirror *m = find_mirror(s);
    if (m) m->of = NULL;
}

UNUSED_FN etch_status allocate_seen(int index, etch_storage *s) {
    forget_mirror(s);
    return behind->allocate(index, s);
}

UNUSED_FN etch_status copy_seen(etch_storage *dst, size_t dst_at, etch_storage *src, size_t src_at,
                                size_t bytes) {
    forget_mirror(dst);
    return behind->copy(dst, dst_at, src, src_at, bytes);
}

UNUSED_FN const device_kind *stand_in_front(int device) {
    if (behind) return behind;
    behind = etch__device_kind(device);
    in_front = *behind;
    in_front.allocate = allocate_seen, in_front.copy = copy_seen;
    etch__device_register(&in_front);
    return behind;
}

/* The storage's bytes, as they are now. */
UNUSED_FN const char *mirrored(const etch_tensor *t) {
    static int next;
    etch_storage *s = t->storage;
    const device_kind *kind = stand_in_front(t->device);
    mirror *m = find_mirror(s);
    if (m && m->version == s->version) return m->bytes;
    if (!m) m = &mirrors[next++ % MIRRORS];
    free(m->bytes);
    *m = (mirror){s, s->version, malloc(s->bytes + 1)};
    assert_non_null(m->bytes);
    etch_storage host = {.refs = 1, .bytes = s->bytes, .data = m->bytes};
    if (s->bytes) assert_int_equal(kind->copy(&host, 0, s, 0, s->bytes), ETCH_OK);
    return m->bytes;
}

/* Bytes into a storage of a device. */
UNUSED_FN void write_there(const etch_tensor *t, size_t at, void *bytes, size_t n) {
    etch_storage host = {.refs = 1, .bytes = n, .data = bytes};
    const device_kind *kind = stand_in_front(t->device);
    mirror *m = find_mirror(t->storage);
    assert_int_equal(kind->copy(t->storage, at, &host, 0, n), ETCH_OK);
    if (m) memcpy(m->bytes + at, bytes, n);
}

UNUSED_FN number get(const etch_tensor *t, int64_t flat) {
    etch_dtype dtype = t->dtype;
    int64_t at = flat_offset(t, flat);
    if (t->device) return load_number(mirrored(t), t->offset + at, dtype);
    return load_number(etch__ptr(t), at, dtype);
}

UNUSED_FN void put(etch_tensor *t, int64_t flat, number v) {
    etch_dtype dtype = t->dtype;
    size_t size = etch_dtype_size(dtype);
    uint64_t cell = 0;
    int64_t at = flat_offset(t, flat);
    store_number(t->device ? (void *)&cell : etch__ptr(t), t->device ? 0 : at, dtype, v);
    if (t->device) write_there(t, (size_t)(t->offset + at) * size, &cell, size);
}

/* Strides of the layout over a storage that is large enough. */
UNUSED_FN etch_tensor *make_view(etch_dtype dtype, etch_shape s, layout how) {
    int64_t n = 1;
    for (int d = 0; d < s.n; d++) n *= s.v[d];
    etch_shape room = ETCH_SHAPE(2 * n + 8);
    etch_tensor *t = etch_current_device() ? etch_zeros(dtype, room) : etch_empty(dtype, room);
    assert_non_null(t);
    if (!t->device) memset(etch__ptr(t), 0, (size_t)(2 * n + 8) * etch_dtype_size(dtype));
    t->ndim = (uint8_t)s.n, t->numel = n;
    int64_t step = how == LAYOUT_GAPS ? 2 : 1;
    for (int k = 0; k < s.n; k++) {
        int d = how == LAYOUT_COLUMN ? k : s.n - 1 - k;
        t->size[d] = s.v[d], t->stride[d] = step;
        step *= s.v[d];
    }
    t->offset = how == LAYOUT_GAPS ? 3 : 0;
    if (s.n && n && how == LAYOUT_NEGATIVE) {
        t->stride[s.n - 1] = -1;
        t->offset = s.v[s.n - 1] - 1;
    }
    if (s.n && how == LAYOUT_EXPANDED) t->stride[s.n - 1] = 0;
    t->contiguous = etch__sizes_contiguous(t->ndim, t->size, t->stride);
    return t;
}

/* The numbers of t in f64 and without gaps on the CPU, for references that read each many times. */
UNUSED_FN etch_tensor *plain_numbers(const etch_tensor *t) {
    etch_tensor *plain = NULL;
    ETCH_ON(ETCH_CPU) plain = make_view(ETCH_F64, etch_sizes(t), LAYOUT_ROW);
    for (int64_t i = 0; i < t->numel; i++) put(plain, i, real_number(get(t, i).d));
    return plain;
}

/* Elements next(ctx) for all of t, in row-major order. */
UNUSED_FN void put_all(etch_tensor *t, number (*next)(void *ctx), void *ctx) {
    etch_dtype dtype = t->dtype;
    size_t bytes = t->storage->bytes;
    char *there = t->device ? calloc(1, bytes + 1) : NULL, *to = t->device ? there : etch__ptr(t);
    int64_t base = t->device ? t->offset : 0;
    for (int64_t i = 0; i < t->numel; i++)
        store_number(to, base + flat_offset(t, i), dtype, next(ctx));
    if (t->device) write_there(t, 0, there, bytes);
    free(there);
}

typedef struct random_numbers_of {
    etch_dtype dtype;
    bool tame;
} random_numbers_of;

UNUSED_FN number next_random(void *ctx) {
    const random_numbers_of *r = ctx;
    return test_number(r->dtype, r->tame);
}

UNUSED_FN etch_tensor *make(etch_dtype dtype, etch_shape s, layout how, bool tame) {
    etch_tensor *t = make_view(dtype, s, how);
    put_all(t, next_random, &(random_numbers_of){dtype, tame});
    return t;
}

/* Same bits, or both NaN. */
UNUSED_FN bool same_number(number a, number b) {
    if (a.real != b.real) return false;
    if (!a.real) return a.i == b.i;
    if (isnan(a.d) || isnan(b.d)) return isnan(a.d) && isnan(b.d);
    return memcmp(&a.d, &b.d, 8) == 0;
}

UNUSED_FN bool same_tensor(const etch_tensor *a, const etch_tensor *b) {
    if (a->dtype != b->dtype || a->ndim != b->ndim) return false;
    for (int d = 0; d < a->ndim; d++)
        if (a->size[d] != b->size[d]) return false;
    for (int64_t i = 0; i < a->numel; i++)
        if (!same_number(get(a, i), get(b, i))) return false;
    return true;
}

/* ---- instruction sets ---- */

/* Runs this program again under ETCH_CPU_ISA for each set below the processor's; the number of runs
 * that failed. Tensors of a device ask for one run only. */
UNUSED_FN int run_under_lower_isas(char **argv) {
    int failed = 0;
    if (getenv("ETCH_CPU_ISA") || etch_current_device()) return 0;
    for (int isa = 0; isa < etch__cpu_level(); isa++) {
        fflush(NULL);
        pid_t child = fork();
        if (child == 0) {
            setenv("ETCH_CPU_ISA", etch__cpu_isa_name(isa), 1);
            execv("/proc/self/exe", argv);
            _exit(127);
        }
        int status = 1;
        if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
            fprintf(stderr, "failed under %s\n", etch__cpu_isa_name(isa));
            failed++;
        }
    }
    return failed;
}

#endif
