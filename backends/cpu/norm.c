/* softmax, log_softmax and layer norm: each row is read, reduced and written by one task while it
 * lies in the cache.
 *
 * Everything is computed in f32 (f64 of f64) with the strip kernels, the reductions in the
 * canonical order of core/ops/expr.h, so a row's bits do not depend on where it lies or on the
 * threads. Rows along an axis that is not the innermost are worked on as a strip of columns, each
 * with lanes of its own; few neighbours are brought together as rows first. The order is that of
 * the index along the axis, so all ways give the same bits. */
#include "backends/cpu/program.h"
#include "core/base/start.h"
#include "core/dispatch/dispatch.h"
#include "core/base/pool.h"

typedef struct row_job row_job;
struct row_job {
    const isa_table *isa;
    etch_dtype in, out, type; /* storage and compute types */
    int size;                 /* bytes of the compute type */
    const char *x;            /* [outer][n][inner], row-major */
    char *y;
    int64_t n, inner, outer;
    int64_t columns; /* rows taken together, neighbours along the inner axis */
    int64_t pitch;   /* elements from one of them to the next */
    /* y = f(x) for one row in the compute type; they may be the same memory. */
    void (*row)(const row_job *j, const void *x, void *y);
    const void *weight, *bias; /* layer norm: in the compute type, or NULL */
    uint64_t eps;
    bool log;      /* of softmax */
    int64_t strip; /* columns of a strip; 0: they are brought together as rows */
    atomic_int failed;
};

typedef struct strip_value {
    char bytes[EAGER_STRIP * 8] __attribute__((aligned(64)));
} strip_value;

static strip_fn prim(const row_job *j, prim_id p) { return j->isa->strips->prim[p][j->type]; }

static void fill(const row_job *j, strip_value *v, const void *value, int64_t n) {
    j->isa->strips->fill[etch__size_log2(j->type)](v->bytes, value,
                                                   n < EAGER_STRIP ? n : EAGER_STRIP);
}

/* ---- reductions of a row ---- */

/* The next elements of what is reduced: n of them, from element `at` of the row, in the compute
 * type; *buffer may be used. */
typedef const void *(*row_source)(const row_job *j, void *ctx, int64_t at, int64_t n, void *buffer);

typedef struct row_fold {
    const row_job *j;
    const reduction_info *how;
    row_source next;
    void *ctx;
} row_fold;

static void fold_block(const void *ctx, int64_t block, void *result) {
    const row_fold *f = ctx;
    const row_job *j = f->j;
    const reduce_table *table = j->isa->reduce;
    int64_t lanes[REDUCE_LANES], at = block * REDUCE_BLOCK, n = at_most(j->n - at, REDUCE_BLOCK);
    strip_value buffer;
    table->start[j->type](lanes, REDUCE_LANES, f->how->start);
    for (int64_t i = 0; i < n; i += EAGER_STRIP) {
        int64_t count = at_most(n - i, EAGER_STRIP);
        const void *x = f->next(j, f->ctx, at + i, count, buffer.bytes);
        table->lanes[f->how->fold][j->type](lanes, x, count);
    }
    table->fold[f->how->fold][j->type](lanes, at_most(n, REDUCE_LANES), 1);
    memcpy(result, lanes, (size_t)j->size);
}

static int64_t blocks_of(const row_job *j) { return (j->n + REDUCE_BLOCK - 1) / REDUCE_BLOCK; }

static void fold_row(const row_job *j, reduce_kind kind, row_source next, void *ctx, void *result) {
    const row_fold f = {j, etch__reduction(kind), next, ctx};
    etch__fold_blocks(prim(j, f.how->prim), blocks_of(j), 1, j->size, fold_block, &f, result);
}

typedef struct row_values {
    const char *x;
    char *y;            /* where differences or exponentials are kept, or NULL */
    strip_value center; /* the maximum or the mean, a strip full */
} row_values;

static const void *next_plain(const row_job *j, void *ctx, int64_t at, int64_t n, void *buffer) {
    const row_values *v = ctx;
    (void)n, (void)buffer;
    return v->x + at * j->size;
}

/* exp(x - max); kept in y where there is one. */
static const void *next_exp(const row_job *j, void *ctx, int64_t at, int64_t n, void *buffer) {
    const row_values *v = ctx;
    void *to = v->y ? v->y + at * j->size : buffer;
    prim(j, PRIM_SUB)(to, v->x + at * j->size, v->center.bytes, NULL, n);
    prim(j, PRIM_EXP)(to, to, NULL, NULL, n);
    return to;
}

/* (x - mean)^2 */
static const void *next_square(const row_job *j, void *ctx, int64_t at, int64_t n, void *buffer) {
    const row_values *v = ctx;
    prim(j, PRIM_SUB)(buffer, v->x + at * j->size, v->center.bytes, NULL, n);
    prim(j, PRIM_MUL)(buffer, buffer, buffer, NULL, n);
    return buffer;
}

/* ---- rows ---- */

/* exp(x - max) / sum of them; j->log: (x - max) - log(sum of exp(x - max)). */
static void softmax_row(const row_job *j, const void *x, void *y) {
    row_values v = {.x = x, .y = j->log ? NULL : y};
    uint64_t cell = 0;
    strip_value sum;
    fold_row(j, REDUCE_MAX, next_plain, &v, &cell);
    fill(j, &v.center, &cell, j->n);
    fold_row(j, REDUCE_SUM, next_exp, &v, &cell);
    if (j->log) prim(j, PRIM_LOG)(&cell, &cell, NULL, NULL, 1);
    fill(j, &sum, &cell, j->n);
    for (int64_t i = 0; i < j->n; i += EAGER_STRIP) {
        int64_t n = at_most(j->n - i, EAGER_STRIP);
        char *to = (char *)y + i * j->size;
        if (j->log) prim(j, PRIM_SUB)(to, v.x + i * j->size, v.center.bytes, NULL, n);
        prim(j, j->log ? PRIM_SUB : PRIM_DIV)(to, to, sum.bytes, NULL, n);
    }
}

/* The sum divided by the number of elements. */
static void to_mean(const row_job *j, uint64_t *cell) {
    uint64_t count = etch__scalar_cell(etch_scalar_int(j->n), j->type);
    prim(j, PRIM_DIV)(cell, cell, &count, NULL, 1);
}

/* ((x - mean) * (1 / sqrt(variance + eps))) * weight + bias */
static void layer_norm_row(const row_job *j, const void *x, void *y) {
    row_values v = {.x = x};
    uint64_t cell = 0, one = etch__scalar_cell(etch_scalar_int(1), j->type);
    strip_value scale;
    fold_row(j, REDUCE_SUM, next_plain, &v, &cell);
    to_mean(j, &cell);
    fill(j, &v.center, &cell, j->n);
    fold_row(j, REDUCE_SUM, next_square, &v, &cell);
    to_mean(j, &cell);
    prim(j, PRIM_ADD)(&cell, &cell, &j->eps, NULL, 1);
    prim(j, PRIM_SQRT)(&cell, &cell, NULL, NULL, 1);
    prim(j, PRIM_DIV)(&cell, &one, &cell, NULL, 1);
    fill(j, &scale, &cell, j->n);
    for (int64_t i = 0; i < j->n; i += EAGER_STRIP) {
        int64_t n = at_most(j->n - i, EAGER_STRIP), offset = i * j->size;
        char *to = (char *)y + offset;
        prim(j, PRIM_SUB)(to, v.x + offset, v.center.bytes, NULL, n);
        prim(j, PRIM_MUL)(to, to, scale.bytes, NULL, n);
        if (j->weight) prim(j, PRIM_MUL)(to, to, (const char *)j->weight + offset, NULL, n);
        if (j->bias) prim(j, PRIM_ADD)(to, to, (const char *)j->bias + offset, NULL, n);
    }
}

/* ---- memory ---- */

/* One row, innermost in memory. `wide` is room for a row in the compute type. */
static void do_row(const row_job *j, int64_t row, char *wide) {
    const char *x = j->x + (row * j->n << etch__size_log2(j->in));
    char *y = j->y + (row * j->n << etch__size_log2(j->out));
    strip_fn widen = j->isa->strips->widen[j->in];
    if (widen) widen(wide, x, NULL, NULL, j->n), x = wide;
    bool direct = j->out == j->type;
    j->row(j, x, direct ? y : wide);
    if (!direct) etch__store_rounded(j->out, y, wide, j->n);
}

/* Neighbouring columns of [n][inner], as rows in `wide`; `raw` is room for
 * them in storage types. */
static void do_columns(const row_job *j, int64_t unit, char *wide, char *raw) {
    const strip_table *table = j->isa->strips;
    int in = etch__size_log2(j->in), out = etch__size_log2(j->out);
    int64_t groups = (j->inner + j->columns - 1) / j->columns;
    int64_t column = unit % groups * j->columns, n = j->n;
    int64_t width = at_most(j->inner - column, j->columns);
    int64_t first = unit / groups * n * j->inner + column;
    strip_fn widen = table->widen[j->in];
    bool direct = j->out == j->type;
    table->block[in](widen ? raw : wide, 1, j->pitch, j->x + (first << in), j->inner, 1, n, width);
    for (int64_t k = 0; k < width; k++) {
        char *row = wide + k * j->pitch * j->size, *half = raw + k * j->pitch * 2;
        if (widen) widen(row, half, NULL, NULL, n);
        j->row(j, row, row);
        if (!direct) etch__store_rounded(j->out, half, row, n);
    }
    table->block[out](j->y + (first << out), j->inner, 1, direct ? wide : raw, 1, j->pitch, n,
                      width);
}

/* ---- strips of columns (softmax) ---- */

enum { STRIP_FEWEST = 32 };

/* `width` neighbouring columns, from element `first` of x and y on. They are copied once, in the
 * compute type, since in memory they may lie so far apart that they share cache sets. */
typedef struct strip_job {
    const row_job *j;
    int64_t first, width;
    char *packed;                                          /* [n][width] */
    char center[STRIP_BYTES] __attribute__((aligned(64))); /* maxima */
    char sum[STRIP_BYTES] __attribute__((aligned(64)));
} strip_job;

/* One element of each column, in the compute type; *buffer may be used. */
typedef const void *(*strip_source)(const strip_job *s, int64_t row, void *buffer);

static char *packed_row(const strip_job *s, int64_t row) {
    return s->packed + row * s->width * s->j->size;
}

static const void *strip_load(const strip_job *s, int64_t row, void *buffer) {
    const row_job *j = s->j;
    const char *x = j->x + ((s->first + row * j->inner) << etch__size_log2(j->in));
    strip_fn widen = j->isa->strips->widen[j->in];
    char *to = packed_row(s, row);
    (void)buffer;
    if (widen) widen(to, x, NULL, NULL, s->width);
    else memcpy(to, x, (size_t)(s->width * j->size));
    return to;
}

/* exp(x - max), in the place of x but for log_softmax. */
static const void *strip_exp(const strip_job *s, int64_t row, void *buffer) {
    const row_job *j = s->j;
    char *x = packed_row(s, row);
    void *to = j->log ? buffer : x;
    prim(j, PRIM_SUB)(to, x, s->center, NULL, s->width);
    prim(j, PRIM_EXP)(to, to, NULL, NULL, s->width);
    return to;
}

typedef struct strip_fold {
    const strip_job *s;
    const reduction_info *how;
    strip_source next;
} strip_fold;

static void fold_strip_block(const void *ctx, int64_t block, void *result) {
    const strip_fold *f = ctx;
    const strip_job *s = f->s;
    const row_job *j = s->j;
    const reduce_table *table = j->isa->reduce;
    char lanes[REDUCE_LANES * STRIP_BYTES] __attribute__((aligned(64)));
    char buffer[STRIP_BYTES] __attribute__((aligned(64)));
    int64_t first = block * REDUCE_BLOCK, n = at_most(j->n - first, REDUCE_BLOCK);
    int64_t nlanes = at_most(n, REDUCE_LANES), pitch = s->width * j->size;
    strip_fn combine = prim(j, f->how->prim);
    table->start[j->type](lanes, nlanes * s->width, f->how->start);
    for (int64_t i = 0; i < n; i++) {
        char *lane = lanes + i % REDUCE_LANES * pitch;
        combine(lane, lane, f->next(s, first + i, buffer), NULL, s->width);
    }
    table->fold[f->how->fold][j->type](lanes, nlanes, s->width);
    memcpy(result, lanes, (size_t)pitch);
}

/* As fold_row, for all columns at once. */
static void fold_strip(const strip_job *s, reduce_kind kind, strip_source next, void *result) {
    const strip_fold f = {s, etch__reduction(kind), next};
    etch__fold_blocks(prim(s->j, f.how->prim), blocks_of(s->j), s->width, s->width * s->j->size,
                      fold_strip_block, &f, result);
}

/* From the maxima and sums (log_softmax: their logarithms) to the results of one element each. */
static void finish_strip(const strip_job *s, int64_t row) {
    const row_job *j = s->j;
    char *x = packed_row(s, row);
    char *y = j->y + ((s->first + row * j->inner) << etch__size_log2(j->out));
    bool direct = j->out == j->type;
    if (j->log) prim(j, PRIM_SUB)(x, x, s->center, NULL, s->width);
    prim(j, j->log ? PRIM_SUB : PRIM_DIV)(direct ? y : x, x, s->sum, NULL, s->width);
    if (!direct) etch__store_rounded(j->out, y, x, s->width);
}

static void do_strip(strip_job *s) {
    const row_job *j = s->j;
    fold_strip(s, REDUCE_MAX, strip_load, s->center);
    fold_strip(s, REDUCE_SUM, strip_exp, s->sum);
    if (j->log) prim(j, PRIM_LOG)(s->sum, s->sum, NULL, NULL, s->width);
    for (int64_t row = 0; row < j->n; row++) finish_strip(s, row);
}

static void strips_task(void *ctx, int64_t begin, int64_t end) {
    row_job *j = ctx;
    int64_t strips = (j->inner + j->strip - 1) / j->strip;
    strip_job s = {.j = j, .packed = etch__malloc((size_t)(j->n * j->strip * j->size))};
    if (!s.packed) {
        atomic_store(&j->failed, 1);
        return;
    }
    for (int64_t k = begin; k < end; k++) {
        int64_t column = k % strips * j->strip;
        s.width = at_most(j->inner - column, j->strip);
        s.first = k / strips * j->n * j->inner + column;
        do_strip(&s);
    }
    etch__free(s.packed);
}

/* Wide strips, but so that one stays in the cache, and each thread has some. */
static void plan_strips(row_job *j) {
    enum { CACHED = 1 << 21 };
    int64_t widest = STRIP_BYTES / j->size, fewest = 16;
    j->strip = 0;
    if (j->inner < STRIP_FEWEST) return;
    j->strip = widest;
    while (j->strip > 4 * fewest && j->n * j->strip * j->size > CACHED) j->strip /= 2;
    int64_t wanted = 2 * etch_num_threads();
    while (j->strip > fewest && j->outer * ((j->inner + j->strip - 1) / j->strip) < wanted)
        j->strip /= 2;
}

static void rows_task(void *ctx, int64_t begin, int64_t end) {
    row_job *j = ctx;
    bool half = j->in != j->type || j->out != j->type;
    int64_t count = j->pitch * j->columns;
    char *wide = NULL;
    if (half || j->inner > 1) {
        wide = etch__malloc((size_t)(count * (j->size + 2)));
        if (!wide) {
            atomic_store(&j->failed, 1);
            return;
        }
    }
    for (int64_t k = begin; k < end; k++) {
        if (j->inner > 1) do_columns(j, k, wide, wide + count * j->size);
        else do_row(j, k, wide);
    }
    etch__free(wide);
}

enum { COLUMNS = 16, TILE_ELEMENTS = 1 << 18 };

static etch_status run_rows(row_job *j) {
    j->columns = 1;
    if (j->inner > 1) {
        int64_t fit = TILE_ELEMENTS / j->n;
        j->columns = at_most(j->inner, fit < 1 ? 1 : at_most(fit, COLUMNS));
    }
    j->pitch = ((j->n + 15) / 16 | 1) * 16; /* no power of two: columns would share cache sets */
    int64_t units = j->outer * ((j->inner + j->columns - 1) / j->columns);
    int64_t work = j->n * j->columns;
    if (j->strip) {
        units = j->outer * ((j->inner + j->strip - 1) / j->strip), work = j->n * j->strip;
    }
    atomic_init(&j->failed, 0);
    etch__parallel(units, work >= 16384 ? 1 : 16384 / work + 1, j->strip ? strips_task : rows_task,
                   j);
    if (!atomic_load(&j->failed)) return ETCH_OK;
    return etch__error(ETCH_ERR_OUT_OF_MEMORY, "no memory for a row of %lld elements",
                       (long long)j->n);
}

static void plan_types(row_job *j, const etch_tensor *x, const etch_tensor *y) {
    j->isa = etch__isa_table();
    j->in = x->dtype, j->out = y->dtype;
    j->type = etch__compute_type(j->in), j->size = (int)etch_dtype_size(j->type);
    j->y = etch__ptr(y);
    j->weight = j->bias = NULL;
}

/* ---- the kernels ---- */

static etch_status softmax(const op_call *call, etch_tensor *const *outs) {
    const etch_tensor *x = call->in[0];
    row_job j;
    void *copy;
    int dim = (int)(call->at[0] < 0 ? call->at[0] + x->ndim : call->at[0]);
    if (x->numel == 0) return ETCH_OK;
    plan_types(&j, x, outs[0]);
    j.row = softmax_row;
    j.n = j.inner = j.outer = 1;
    for (int d = 0; d < x->ndim; d++) /* a 0-d tensor is one row of one element */
        *(d < dim ? &j.outer : d > dim ? &j.inner : &j.n) *= x->size[d];
    if (!(j.x = etch__row_major_elements(x, false, &copy))) return ETCH_ERR_OUT_OF_MEMORY;
    j.log = call->op == OP_LOG_SOFTMAX_RAW;
    plan_strips(&j);
    etch_status status = run_rows(&j);
    etch__free(copy);
    return status;
}

/* Weight or bias in the compute type. */
static bool wide_operand(const etch_tensor *t, const void **data, void **copy) {
    return t == ETCH_NONE || (*data = etch__row_major_elements(t, true, copy));
}

static etch_status layer_norm(const op_call *call, etch_tensor *const *outs) {
    const etch_tensor *x = call->in[0];
    row_job j;
    void *copy = NULL, *weight = NULL, *bias = NULL;
    if (x->numel == 0) return ETCH_OK;
    plan_types(&j, x, outs[0]);
    j.row = layer_norm_row, j.inner = 1, j.n = 1, j.strip = 0;
    j.eps = etch__scalar_cell(call->sc[0], j.type);
    for (int64_t i = 0; i < call->at[0]; i++) j.n *= call->at[1 + i];
    j.outer = x->numel / j.n;
    bool ok = (j.x = etch__row_major_elements(x, false, &copy)) &&
              wide_operand(call->in[1], &j.weight, &weight) &&
              wide_operand(call->in[2], &j.bias, &bias);
    etch_status status = ok ? run_rows(&j) : ETCH_ERR_OUT_OF_MEMORY;
    etch__free(copy);
    etch__free(weight);
    etch__free(bias);
    return status;
}

void etch__start_cpu_norms(void) {
    etch__register_kernel(OP_SOFTMAX_RAW, softmax);
    etch__register_kernel(OP_LOG_SOFTMAX_RAW, softmax);
    etch__register_kernel(OP_NATIVE_LAYER_NORM, layer_norm);
}
