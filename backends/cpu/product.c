/* A product: its way, its operands as that way reads them, its tiles. See product.h.
 *
 * Operands with unit stride along a row or a column go to a library as they are (a column-major
 * one as transposed); any other is copied first. That rule sees the operands' own strides only. */
#include "backends/cpu/product.h"

#include <limits.h>

#include "backends/cpu/library.h"
#include "backends/cpu/program.h"
#include "core/base/pool.h"
#include "core/base/thread.h"

/* ---- tiles ---- */

/* Tiles of about 256 columns, the width that oneDNN is fastest at and that kernels take strip by
 * strip, and 128 rows, 256 where there are many. A function of the sizes alone, since the bits of a
 * library product depend on its shape. */
static int64_t tile_side(int64_t extent, int64_t side) {
    int64_t count = (extent + side - 1) / side;
    return count > 1 ? ((extent + count - 1) / count + 15) / 16 * 16 : extent;
}

static void plan_tiles(product *p) {
    p->small = p->m <= MATMUL_SMALL && p->n <= MATMUL_SMALL && p->k <= MATMUL_SMALL;
    p->way = p->small || !etch__is_float(p->type) ? PRODUCT_CHAIN : PRODUCT_LIBRARY;
    p->tile_m = p->m, p->tile_n = p->n, p->tiles_m = p->tiles_n = 1;
    if (p->small) return;
    if ((p->panels = etch__panels_for(p->isa, p->dtype))) p->way = PRODUCT_PANELS;
    p->tile_m = tile_side(p->m, p->m * p->n > 512 * 512 ? 256 : 128);
    p->tile_n = tile_side(p->n, 256);
    p->tiles_m = (p->m + p->tile_m - 1) / p->tile_m;
    p->tiles_n = (p->n + p->tile_n - 1) / p->tile_n;
}

void etch__product_init(product *p, etch_dtype dtype, int64_t batch, int64_t m, int64_t n,
                        int64_t k) {
    /* Not cleared whole: that costs more than a product of a few elements. */
    p->isa = etch__isa_table();
    p->dtype = dtype, p->type = etch__compute_type(dtype);
    p->size = 1 << etch__size_log2(p->type);
    p->batch = batch, p->m = m, p->n = n, p->k = k;
    p->a.copy = p->b.copy = NULL;
    p->c = NULL, p->whole_rows = false, p->finish = NULL, p->ctx = NULL;
    atomic_init(&p->status, 0);
    plan_tiles(p);
}

/* ---- operands ---- */

/* What the library takes as it is: unit stride along one axis, rows (or columns) that do not
 * overlap. The stride of an axis of one element does not matter. */
static bool library_layout(product_operand *o) {
    int64_t row = o->rows > 1 ? o->row : (o->cols > 1 ? o->cols : 1);
    int64_t col = o->cols > 1 ? o->col : 1;
    if (col == 1 && row >= o->cols) {
        o->transposed = false, o->ld = row;
        return row <= INT_MAX;
    }
    col = o->cols > 1 ? o->col : o->rows;
    row = o->rows > 1 ? o->row : 1;
    if (row == 1 && col >= o->rows) {
        o->transposed = true, o->ld = col;
        return col <= INT_MAX;
    }
    return false;
}

/* The operand, row by row in the compute type. A batch that is broadcast is copied once. */
static bool copy_rows(const product *p, product_operand *o) {
    int64_t batch = o->batch ? p->batch : 1;
    etch_tensor t = {.dtype = p->dtype, .ndim = 3, .numel = batch * o->rows * o->cols};
    etch_storage s = {.data = (void *)(uintptr_t)o->data};
    t.size[0] = batch, t.size[1] = o->rows, t.size[2] = o->cols;
    t.stride[0] = o->batch, t.stride[1] = o->row, t.stride[2] = o->col;
    t.storage = &s;
    t.contiguous = etch__sizes_contiguous(3, t.size, t.stride);
    if (!(o->data = etch__row_major_elements(&t, true, &o->copy))) return false;
    o->row = o->cols, o->col = 1, o->batch = o->batch ? o->rows * o->cols : 0;
    return true;
}

static etch_status prepare_operand(const product *p, product_operand *o, bool left) {
    bool library = p->way == PRODUCT_LIBRARY;
    bool rows = p->small || left || o->col == 1; /* what the loops over integers are fast at */
    if (p->type == p->dtype && (library ? library_layout(o) : rows)) return ETCH_OK;
    if (!copy_rows(p, o)) return ETCH_ERR_OUT_OF_MEMORY;
    if (library && !library_layout(o))
        return etch__error(ETCH_ERR_UNSUPPORTED, "product: a row is too long for the library");
    return ETCH_OK;
}

/* ---- one tile ---- */

static bool chain_tile(const product *p, const char *a, const char *b, const product_tile *t) {
    product_args args = {.a = a,
                         .b = b,
                         .c = t->c,
                         .a_row = p->a.row,
                         .a_col = p->a.col,
                         .b_row = p->b.row,
                         .b_col = p->b.col,
                         .ldc = t->ldc,
                         .m = t->m,
                         .n = t->n,
                         .k = p->k};
    p->isa->product->chain[p->type](&args);
    return true;
}

static bool library_tile(const product *p, const char *a, const char *b, const product_tile *t) {
    library_product l = {.a = a,
                         .b = b,
                         .c = t->c,
                         .lda = p->a.ld,
                         .ldb = p->b.ld,
                         .ldc = t->ldc,
                         .m = t->m,
                         .n = t->n,
                         .k = p->k,
                         .a_transposed = p->a.transposed,
                         .b_transposed = p->b.transposed};
    return etch__library_product(p->type, &l);
}

static bool no_terms(const product *p, const product_tile *t) {
    for (int64_t r = 0; r < t->m; r++)
        memset(t->c + r * t->ldc * p->size, 0, (size_t)(t->n * p->size));
    return true;
}

static const char *element(const product *p, const product_operand *o, int64_t batch, int64_t row,
                           int64_t col) {
    return o->data + (batch * o->batch + row * o->row + col * o->col) * p->size;
}

static bool compute(const product *p, const product_tile *t) {
    if (p->k == 0) return no_terms(p, t);
    const char *a = element(p, &p->a, t->batch, t->row, 0);
    const char *b = element(p, &p->b, t->batch, 0, t->col);
    return (p->way == PRODUCT_CHAIN ? chain_tile : library_tile)(p, a, b, t);
}

static product_tile tile_number(const product *p, int64_t i) {
    product_tile t = {.batch = i / p->tiles_n / p->tiles_m};
    t.row = i / p->tiles_n % p->tiles_m * p->tile_m;
    t.col = i % p->tiles_n * p->tile_n;
    t.m = p->m - t.row < p->tile_m ? p->m - t.row : p->tile_m;
    t.n = p->n - t.col < p->tile_n ? p->n - t.col : p->tile_n;
    return t;
}

static void tiles_task(void *ctx, int64_t begin, int64_t end) {
    product *p = ctx;
    char *scratch = p->c ? NULL : etch__malloc((size_t)(p->tile_m * p->tile_n * p->size));
    bool ok = p->c || scratch;
    for (int64_t i = begin; ok && i < end; i++) {
        product_tile t = tile_number(p, i);
        t.ldc = p->c ? p->n : t.n;
        t.c = p->c ? p->c + ((t.batch * p->m + t.row) * p->n + t.col) * p->size : scratch;
        ok = compute(p, &t);
        if (ok && p->finish) p->finish(p->ctx, p, &t);
    }
    if (!ok) atomic_store(&p->status, 1);
    etch__free(scratch);
}

/* Bands of whole rows: all tiles beside each other. */
static void bands_task(void *ctx, int64_t begin, int64_t end) {
    product *p = ctx;
    char *scratch = etch__malloc((size_t)(p->tile_m * p->n * p->size));
    bool ok = scratch;
    for (int64_t i = begin; ok && i < end; i++) {
        product_tile band = tile_number(p, i * p->tiles_n);
        for (int64_t j = 0; ok && j < p->tiles_n; j++) {
            product_tile t = tile_number(p, i * p->tiles_n + j);
            t.ldc = p->n, t.c = scratch + t.col * p->size;
            ok = compute(p, &t);
        }
        band.n = band.ldc = p->n, band.c = scratch;
        if (ok) p->finish(p->ctx, p, &band);
    }
    if (!ok) atomic_store(&p->status, 1);
    etch__free(scratch);
}

/* ---- the whole ---- */

static etch_status run_tiles(product *p) {
    bool library = p->way == PRODUCT_LIBRARY && p->k;
    if (p->small && p->batch == 1) { /* one tile */
        tiles_task(p, 0, 1);
        return ETCH_OK;
    }
    if (library && p->k > INT_MAX)
        return etch__error(ETCH_ERR_UNSUPPORTED, "product: more than 2^31 - 1 terms");
    if (library && !etch__library_enter(p->type)) return etch__tls.status;
    double work = (double)p->tile_m * (double)p->tile_n * (double)(p->k + 1); /* of one tile */
    int64_t grain = work > 262144 ? 1 : (int64_t)(262144 / work) + 1;
    if (p->whole_rows) etch__parallel(p->batch * p->tiles_m, grain, bands_task, p);
    else etch__parallel(p->batch * p->tiles_m * p->tiles_n, grain, tiles_task, p);
    if (library) etch__library_leave(p->type);
    return ETCH_OK;
}

static etch_status run(product *p) {
    if (p->way == PRODUCT_PANELS && p->k) return etch__panels_run(p);
    etch_status status = p->k ? prepare_operand(p, &p->a, true) : ETCH_OK;
    if (p->k && status == ETCH_OK) status = prepare_operand(p, &p->b, false);
    if (status == ETCH_OK) status = run_tiles(p);
    if (status == ETCH_OK && atomic_load(&p->status))
        status = etch__error(ETCH_ERR_OUT_OF_MEMORY,
                             "product: no memory for a tile of %lld x %lld x %lld", (long long)p->m,
                             (long long)p->n, (long long)p->k);
    etch__free(p->a.copy);
    etch__free(p->b.copy);
    return status;
}

/* ---- rows, where there are fewer bands of them than threads ---- */

static void finish_rows(void *ctx, int64_t begin, int64_t end) {
    const product *p = ctx;
    product_tile t = {.row = begin, .m = end - begin, .n = p->n, .ldc = p->n};
    t.c = p->c + begin * p->n * p->size;
    p->finish(p->ctx, p, &t);
}

static etch_status run_then_finish(product *p) {
    product whole = *p;
    whole.finish = NULL, whole.whole_rows = false;
    whole.c = p->c = etch__malloc((size_t)(p->m * p->n * p->size));
    if (!p->c) return ETCH_ERR_OUT_OF_MEMORY;
    etch_status status = run(&whole);
    if (status == ETCH_OK) etch__parallel(p->m, 16384 / (p->n + 1) + 1, finish_rows, p);
    etch__free(p->c);
    return status;
}

/* What panels are no good for: a matrix of f32 that is read once or so, along its terms, which the
 * library multiplies as it lies. */
enum { FEW_COLS = 2 };
static bool reads_once(const product *p) {
    bool a = p->n <= FEW_COLS && (p->a.col == 1 || p->k == 1);
    bool b = p->m <= FEW_ROWS && (p->b.row == 1 || p->k == 1);
    return p->dtype == ETCH_F32 && (a || b);
}

etch_status etch__product_run(product *p) {
    if (p->way == PRODUCT_PANELS && p->k && etch__few_takes(p)) return etch__few_run(p);
    if (p->way == PRODUCT_PANELS && reads_once(p)) p->way = PRODUCT_LIBRARY;
    bool few = p->way != PRODUCT_PANELS && p->tiles_m < etch_num_threads() && p->m > 1;
    return p->whole_rows && few && p->batch == 1 ? run_then_finish(p) : run(p);
}
