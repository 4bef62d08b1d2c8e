/* Weights of 8 and 4 bits: how they are packed, unpacked, and multiplied with few rows.
 *
 * 16 rows lie together, as [columns / 4][16][4] of 8 bits, or [columns / 8][16][4] bytes of two
 * times 4 bits, of which the low ones are columns 0 to 3 and the high ones 4 to 7, plus 8. So a
 * vector of 64 bytes has the same columns of 16 rows, whose sums are its lanes. */
#include "backends/cpu/program.h"
#include "core/base/pool.h"
#include "core/base/start.h"
#include "core/dispatch/dispatch.h"

#include <float.h>
#include <math.h>

typedef struct packing {
    int64_t rows, columns, group, steps;
    int bits;
} packing;

static packing packing_of(int bits, const etch_tensor *scales, int64_t columns) {
    int64_t each = bits == 8 ? 4 : 8;
    return (packing){.rows = scales->size[1],
                     .columns = columns,
                     .group = columns ? columns / scales->size[0] : 1,
                     .steps = columns / each + (columns % each != 0),
                     .bits = bits};
}

static int bits_of(const etch_tensor *q) { return q->dtype == ETCH_I8 ? 8 : 4; }

/* The byte of a number, and how far up in it. */
static int64_t place_of(const packing *p, int64_t row, int64_t column, int *shift) {
    int64_t each = p->bits == 8 ? 4 : 8;
    *shift = column % each < 4 ? 0 : 4;
    return ((row / QUANTIZED_ROWS * p->steps + column / each) * QUANTIZED_ROWS +
            row % QUANTIZED_ROWS) *
               4 +
           column % 4;
}

/* ---- packing ---- */

static int most_of(int bits) { return bits == 8 ? 127 : 7; }

/* The largest absolute value of each group over the largest integer; NaN where one is no number. */
static etch_status scales_of(const op_call *call, etch_tensor *const *outs) {
    const etch_tensor *w = call->in[0];
    float *to = etch__ptr(outs[0]);
    void *copy = NULL;
    int64_t rows = w->size[0], columns = w->size[1], groups = outs[0]->size[0];
    const float *x = etch__row_major_elements(w, true, &copy);
    if (!x) return ETCH_ERR_OUT_OF_MEMORY;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t g = 0; g < groups; g++) {
            float largest = 0;
            for (int64_t k = 0, n = columns / groups; k < n; k++) {
                float v = fabsf(x[row * columns + g * n + k]);
                if (!(v <= largest)) largest = v <= FLT_MAX ? v : NAN;
                if (isnan(largest)) break;
            }
            to[g * rows + row] = etch__quantized_scale(largest, most_of((int)call->at[0]));
        }
    etch__free(copy);
    return ETCH_OK;
}

/* The nearest multiple of the scale; 0 where that is none. */
static int nearest(float v, float scale, int most) {
    double q = scale > 0 && isfinite(scale) ? nearbyint((double)v / (double)scale) : 0;
    return q >= most ? most : q <= -most ? -most : q < most ? (int)q : 0;
}

static etch_status pack(const op_call *call, etch_tensor *const *outs) {
    const etch_tensor *w = call->in[0], *scales = call->in[1];
    packing p = packing_of((int)call->at[0], scales, w->size[1]);
    uint8_t *to = etch__ptr(outs[0]);
    void *copies[2] = {NULL, NULL};
    const float *x = etch__row_major_elements(w, true, &copies[0]);
    const float *s = x ? etch__row_major_elements(scales, true, &copies[1]) : NULL;
    /* What there is not counts as 0. */
    if (s) memset(to, p.bits == 8 ? 0 : 0x88, (size_t)outs[0]->numel);
    for (int64_t row = 0; s && row < p.rows; row++)
        for (int64_t k = 0; k < p.columns; k++) {
            int shift,
                v = nearest(x[row * p.columns + k], s[k / p.group * p.rows + row], most_of(p.bits));
            uint8_t *byte = to + place_of(&p, row, k, &shift);
            if (p.bits == 8) *byte = (uint8_t)v;
            else *byte = (uint8_t)((*byte & 0xf0 >> shift) | (v + 8) << shift);
        }
    etch__free(copies[0]);
    etch__free(copies[1]);
    return s ? ETCH_OK : ETCH_ERR_OUT_OF_MEMORY;
}

static int integer_at(const packing *p, const uint8_t *w, int64_t row, int64_t column) {
    int shift;
    uint8_t byte = w[place_of(p, row, column, &shift)];
    return p->bits == 8 ? (int8_t)byte : (byte >> shift & 15) - 8;
}

/* A packed weight and its scales, with copies where their elements are not in order. */
typedef struct weight {
    packing p;
    const uint8_t *w;
    const void *scales; /* f32, or `halves`: bf16 */
    void *copies[2];
    bool halves;
} weight;

static bool open_weight(weight *t, const etch_tensor *q, const etch_tensor *scales,
                        int64_t columns) {
    *t = (weight){.p = packing_of(bits_of(q), scales, columns)};
    t->halves = scales->dtype == ETCH_BF16;
    t->w = etch__row_major_elements(q, false, &t->copies[0]);
    t->scales = t->w ? etch__row_major_elements(scales, false, &t->copies[1]) : NULL;
    return t->scales;
}

static void close_weight(weight *t) {
    etch__free(t->copies[0]);
    etch__free(t->copies[1]);
}

static float scale_at(const weight *t, int64_t i) {
    if (!t->halves) return ((const float *)t->scales)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)t->scales)[i] << 16;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return scale;
}

static float number_at(const weight *t, int64_t row, int64_t column) {
    return (float)integer_at(&t->p, t->w, row, column) *
           scale_at(t, column / t->p.group * t->p.rows + row);
}

static etch_status unpack(const op_call *call, etch_tensor *const *outs) {
    weight t;
    float *to = etch__ptr(outs[0]);
    bool ok = open_weight(&t, call->in[0], call->in[1], call->at[0]);
    for (int64_t i = 0; ok && i < outs[0]->numel; i++)
        to[i] = number_at(&t, i / t.p.columns, i % t.p.columns);
    close_weight(&t);
    return ok ? ETCH_OK : ETCH_ERR_OUT_OF_MEMORY;
}

/* ---- products ---- */

typedef struct product {
    weight t;
    const void *x; /* [count][columns]: f32, or f64 */
    void *y;       /* [count][rows], the same */
    int64_t count, pitch, blocks, in_group;
    void (*multiply)(const quantized_rows *q);
    float (*block)(const float *x, int64_t n, int8_t *q, int32_t *sum);
    int8_t *q; /* x as integers, [count][pitch], [count][blocks] of the others */
    float *x_scales;
    int32_t *x_sums;
} product;

/* Rows of x to integers. */
static void quantize_task(void *ctx, int64_t begin, int64_t end) {
    const product *j = ctx;
    for (int64_t r = begin; r < end; r++) {
        const float *x = (const float *)j->x + r * j->t.p.columns;
        int8_t *q = j->q + r * j->pitch;
        memset(q + j->t.p.columns, 0, (size_t)(j->pitch - j->t.p.columns));
        for (int64_t b = 0; b < j->blocks; b++) {
            int64_t in = b % j->in_group * QUANTIZED_BLOCK;
            int64_t at = b / j->in_group * j->t.p.group + in, i = r * j->blocks + b;
            int64_t n = at_most(j->t.p.group - in, QUANTIZED_BLOCK);
            j->x_scales[i] = j->block(x + at, n, q + at, &j->x_sums[i]);
        }
    }
}

/* Neighbouring rows of the weight, with all of x. */
static void rows_task(void *ctx, int64_t begin, int64_t end) {
    const product *j = ctx;
    const packing *p = &j->t.p;
    const char *scales = j->t.scales;
    int64_t size = j->t.halves ? 2 : 4;
    for (int64_t b = begin; b < end; b++) {
        int64_t row = b * QUANTIZED_TOGETHER;
        j->multiply(&(quantized_rows){.w = j->t.w + row / QUANTIZED_ROWS * p->steps * 64,
                                      .w_pitch = p->steps * 64,
                                      .scales = scales + row * size,
                                      .x = j->q,
                                      .x_scales = j->x_scales,
                                      .x_sums = j->x_sums,
                                      .y = (float *)j->y + row,
                                      .pitch = p->rows,
                                      .rows = at_most(p->rows - row, QUANTIZED_TOGETHER),
                                      .columns = p->columns,
                                      .group = p->group,
                                      .count = j->count,
                                      .x_pitch = j->pitch,
                                      .blocks = j->blocks,
                                      .y_pitch = p->rows,
                                      .nibbles = p->bits == 4,
                                      .halves = j->t.halves});
    }
}

/* Of f64: by the numbers that the integers stand for, in ascending order. */
static void exact_task(void *ctx, int64_t begin, int64_t end) {
    const product *j = ctx;
    const packing *p = &j->t.p;
    for (int64_t i = begin; i < end; i++) {
        const double *x = (const double *)j->x + i / p->rows * p->columns;
        double sum = 0;
        for (int64_t k = 0; k < p->columns; k++)
            sum += x[k] * (double)number_at(&j->t, i % p->rows, k);
        ((double *)j->y)[i] = sum;
    }
}

/* Tasks of some 64 KiB of the weight, or as much work. */
static int64_t grain_of(int64_t work) { return work >= 65536 ? 1 : 65536 / (work + 1) + 1; }

static etch_status run_f32(product *j) {
    const quantized_table *table = etch__isa_table()->quantized;
    const packing *p = &j->t.p;
    bool vnni = table->rows_vnni && __builtin_cpu_supports("avx512vnni");
    j->multiply = vnni ? table->rows_vnni : table->rows, j->block = table->block;
    j->in_group = (p->group + QUANTIZED_BLOCK - 1) / QUANTIZED_BLOCK;
    j->blocks = p->columns / p->group * j->in_group;
    j->pitch = (p->columns + 7) / 8 * 8;
    char *room = etch__malloc((size_t)(j->count * (j->blocks * 8 + j->pitch) + 1));
    if (!room) return ETCH_ERR_OUT_OF_MEMORY;
    j->x_scales = (float *)(void *)room;
    j->x_sums = (int32_t *)(void *)(room + j->count * j->blocks * 4);
    j->q = (int8_t *)room + j->count * j->blocks * 8;
    etch__parallel(j->count, grain_of(p->columns), quantize_task, j);
    etch__parallel((p->rows + QUANTIZED_TOGETHER - 1) / QUANTIZED_TOGETHER,
                   grain_of(p->steps * 4 * QUANTIZED_TOGETHER * j->count), rows_task, j);
    etch__free(room);
    return ETCH_OK;
}

/* x and y in the compute type, f32 of halves. */
static etch_status run(product *j, const etch_tensor *x, etch_tensor *y) {
    void *copy = NULL;
    float *wide = NULL;
    etch_status status = ETCH_ERR_OUT_OF_MEMORY;
    bool half = etch__is_half(y->dtype);
    if (half) wide = etch__malloc((size_t)y->numel * sizeof *wide);
    j->y = half ? (void *)wide : etch__ptr(y);
    if (j->y && (j->x = etch__row_major_elements(x, true, &copy))) {
        status = ETCH_OK;
        if (y->dtype == ETCH_F64) etch__parallel(y->numel, grain_of(j->t.p.columns), exact_task, j);
        else status = run_f32(j);
        if (half && status == ETCH_OK) etch__store_rounded(y->dtype, etch__ptr(y), wide, y->numel);
    }
    etch__free(copy);
    etch__free(wide);
    return status;
}

static etch_status linear_q(const op_call *call, etch_tensor *const *outs) {
    const etch_tensor *x = call->in[0];
    int64_t columns = x->size[x->ndim - 1];
    product j;
    if (outs[0]->numel == 0) return ETCH_OK;
    bool ok = open_weight(&j.t, call->in[1], call->in[2], columns);
    j.count = outs[0]->numel / call->in[2]->size[1];
    etch_status status = ok ? run(&j, x, outs[0]) : ETCH_ERR_OUT_OF_MEMORY;
    close_weight(&j.t);
    return status;
}

void etch__start_cpu_quantized(void) {
    etch__register_kernel(OP_QUANTIZE_SCALES, scales_of);
    etch__register_kernel(OP_QUANTIZE_WEIGHT, pack);
    etch__register_kernel(OP_DEQUANTIZE_WEIGHT, unpack);
    etch__register_kernel(OP_LINEAR_Q_RAW, linear_q);
}
