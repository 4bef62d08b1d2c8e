/* Running sums and products, and the triangles of matrices.
 *
 * A scan goes in f64 or i64 from the first element to the last, each result rounded once; so no
 * split over threads can change a bit (lines are independent). It goes by pieces that stay in the
 * first-level cache from their conversion to that of the results. */
#include "backends/cpu/table.h"
#include "core/dispatch/place.h"
#include "core/base/start.h"
#include "core/ops/expr.h"
#include "core/base/pool.h"

/* Elements of a piece, and of a line in it: so many bytes apart that lines do not share the sets of
 * the cache. */
enum { PIECE = 2048, LINES = 8, LONG = PIECE / LINES, PITCH = LONG + 8, COLUMNS = 256 };

typedef struct scan {
    const char *from;
    char *to; /* contiguous both: [outer][n][inner] */
    etch_dtype in, out, acc;
    int64_t n, inner;
    bool product;
    const strip_table *strips;
    const scan_table *scans;
} scan;

typedef struct piece {
    uint64_t numbers[LINES * PITCH];
    float singles[PIECE];
} piece;

static void load_numbers(const scan *s, uint64_t *to, float *singles, int64_t at, int64_t n) {
    const void *from = s->from + (at << etch__size_log2(s->in));
    strip_fn widen = s->strips->widen[s->in];
    if (widen) widen(singles, from, NULL, NULL, n);
    s->strips->convert[etch__compute_type(s->in)][s->acc](to, widen ? singles : from, NULL, NULL,
                                                          n);
}

static void store_numbers(const scan *s, const uint64_t *from, float *singles, int64_t at,
                          int64_t n) {
    void *to = s->to + (at << etch__size_log2(s->out));
    strip_fn round = s->strips->round[s->out];
    strip_fn convert = s->strips->convert[s->acc][etch__compute_type(s->out)];
    convert(round ? (void *)singles : to, from, NULL, NULL, n);
    if (round) round(to, singles, NULL, NULL, n);
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Where every line begins. */
static void start(const scan *s, uint64_t *carry, int64_t n) {
    double one = 1;
    uint64_t first = s->product;
    if (s->product && s->acc == ETCH_F64) memcpy(&first, &one, sizeof first);
    s->strips->fill[3](carry, &first, n);
}

static void scan_short_lines(const scan *s, int64_t first, int64_t lines) {
    piece p;
    if (s->in == s->acc && s->out == s->acc) {
        const uint64_t *from = (const uint64_t *)s->from + first * s->n;
        uint64_t *to = (uint64_t *)s->to + first * s->n;
        s->scans->few[s->acc == ETCH_F64][s->product](to, from, s->n, lines);
        return;
    }
    for (int64_t end = first + lines, many; first < end; first += many) {
        many = least(end - first, PIECE / s->n);
        load_numbers(s, p.numbers, p.singles, first * s->n, many * s->n);
        s->scans->few[s->acc == ETCH_F64][s->product](p.numbers, p.numbers, s->n, many);
        store_numbers(s, p.numbers, p.singles, first * s->n, many * s->n);
    }
}

static void scan_long_lines(const scan *s, int64_t first, int64_t lines) {
    piece p;
    uint64_t carry[LINES];
    start(s, carry, lines);
    for (int64_t i = 0, n; i < s->n; i += n) {
        n = least(s->n - i, LONG);
        for (int64_t k = 0; k < lines; k++)
            load_numbers(s, p.numbers + k * PITCH, p.singles, (first + k) * s->n + i, n);
        s->scans->lines[s->acc == ETCH_F64][s->product](p.numbers, p.numbers, PITCH, n, lines,
                                                        carry);
        for (int64_t k = 0; k < lines; k++)
            store_numbers(s, p.numbers + k * PITCH, p.singles, (first + k) * s->n + i, n);
    }
}

/* Lines in `width` columns, side by side; `at` is the first element of the first one. */
static void scan_columns(const scan *s, int64_t at, int64_t width) {
    piece p;
    uint64_t carry[COLUMNS];
    bool whole = width == s->inner; /* rows follow one another without a gap */
    start(s, carry, width);
    for (int64_t r = 0, rows; r < s->n; r += rows, at += rows * s->inner) {
        rows = least(s->n - r, PIECE / width);
        int64_t runs = whole ? 1 : rows, n = rows * width / runs;
        for (int64_t k = 0; k < runs; k++)
            load_numbers(s, p.numbers + k * n, p.singles, at + k * s->inner, n);
        s->scans->rows[s->acc == ETCH_F64][s->product](p.numbers, rows, width, carry);
        for (int64_t k = 0; k < runs; k++)
            store_numbers(s, p.numbers + k * n, p.singles, at + k * s->inner, n);
    }
}

static void scan_task(void *ctx, int64_t begin, int64_t end) {
    const scan *s = ctx;
    if (s->inner == 1 && s->n <= LONG) {
        scan_short_lines(s, begin, end - begin);
        return;
    }
    for (int64_t k = begin, width; k < end; k += width) {
        int64_t column = k % s->inner;
        width = least(end - k, s->inner == 1 ? LINES : least(s->inner - column, COLUMNS));
        if (s->inner == 1) scan_long_lines(s, k, width);
        else scan_columns(s, k / s->inner * s->n * s->inner + column, width);
    }
}

/* from and out are contiguous; they may be the same. */
static void run_scan(const op_call *call, const etch_tensor *from, etch_tensor *out) {
    int dim = etch__place_dim(call);
    const isa_table *table = etch__isa_table();
    scan s = {.from = etch__ptr(from),
              .to = etch__ptr(out),
              .in = from->dtype,
              .out = out->dtype,
              .acc = etch__is_float(out->dtype) ? ETCH_F64 : ETCH_I64,
              .n = out->size[dim],
              .inner = 1,
              .product = call->op == OP_CUMPROD,
              .strips = table->strips,
              .scans = table->scan};
    for (int d = dim + 1; d < out->ndim; d++) s.inner *= out->size[d];
    etch__parallel(out->numel / s.n, 32768 / s.n + 1, scan_task, &s);
}

/* Converted to the result's dtype first, as the dtype argument says: in a pass of its own where
 * that is not the type of the sums. */
static etch_status scan_kernel(const op_call *call, etch_tensor *const *outs) {
    etch_tensor *out = outs[0], *in = call->in[0], dense = {0}, *to = out;
    etch_status status = ETCH_OK;
    if (!out->numel) return ETCH_OK;
    if (!out->ndim) return etch__place_copy(out, in, call->site);
    if (!out->contiguous) {
        if (!etch__place_new(&dense, out->dtype, out->ndim, out->size, 0))
            return ETCH_ERR_OUT_OF_MEMORY;
        to = &dense;
    }
    bool same = in->dtype == out->dtype || out->dtype == ETCH_F64 || out->dtype == ETCH_I64;
    if (!same || !in->contiguous) {
        status = etch__place_copy(to, in, call->site);
        in = to;
    }
    if (status == ETCH_OK) run_scan(call, in, to);
    if (status == ETCH_OK && to != out) status = etch__place_copy(out, to, call->site);
    etch__place_free(&dense);
    return status;
}

/* ---- triangles ---- */

static etch_status triangle_kernel(const op_call *call, etch_tensor *const *outs) {
    etch_tensor *out = outs[0];
    if (!out->numel) return ETCH_OK;
    etch_status status = etch__place_copy(out, call->in[0], call->site);
    if (status != ETCH_OK) return status;
    int64_t rows = out->size[out->ndim - 2], columns = out->size[out->ndim - 1];
    size_t size = (size_t)etch__item_size(out);
    char *row = etch__ptr(out);
    bool lower = call->op == OP_TRIL;
    for (int64_t r = 0; r < out->numel / columns; r++, row += (size_t)columns * size) {
        /* The first column that the lower triangle lacks, the first that the upper one has. */
        __int128 edge = (__int128)(r % rows) + call->at[0] + lower;
        int64_t cut = edge < 0 ? 0 : edge > columns ? columns : (int64_t)edge;
        if (lower) memset(row + (size_t)cut * size, 0, (size_t)(columns - cut) * size);
        else memset(row, 0, (size_t)cut * size);
    }
    return ETCH_OK;
}

void etch__start_cpu_scans(void) {
    etch__register_kernel(OP_CUMSUM, scan_kernel);
    etch__register_kernel(OP_CUMPROD, scan_kernel);
    etch__register_kernel(OP_TRIL, triangle_kernel);
    etch__register_kernel(OP_TRIU, triangle_kernel);
}
