/* Products of few rows of bf16 with a matrix whose terms are neighbours in memory, as the weight of
 * a linear layer is: it is read once, as it lies, by dot products (isa/dots.c). Few columns, the
 * same with both sides exchanged. */
#include "backends/cpu/product.h"
#include "backends/cpu/program.h"
#include "core/base/pool.h"

/* Of a tile: rows of the matrix. */
enum { TILE_LANES = 128 };

typedef struct few_plan {
    product *p;
    const product_operand *matrix;
    bool by_columns; /* the matrix is A */
    int64_t lanes, rows, row_bytes, lane_bytes, tiles;
    const char *x;
    int64_t x_batch; /* bytes */
} few_plan;

static bool along_terms(int64_t stride, int64_t k) { return stride == 1 || k == 1; }

static bool by_rows(const product *p) { return p->m <= FEW_ROWS && along_terms(p->b.row, p->k); }

bool etch__few_takes(const product *p) {
    bool by_columns = p->n <= FEW_ROWS && along_terms(p->a.col, p->k);
    return p->panels->few && p->dtype == ETCH_BF16 && (by_rows(p) || by_columns);
}

/* The few rows, each along its terms: where they lie, or copied. */
static bool take_rows(few_plan *f, void **copy) {
    const product *p = f->p;
    const product_operand *o = f->by_columns ? &p->b : &p->a;
    int64_t row = f->by_columns ? o->col : o->row, term = f->by_columns ? o->row : o->col;
    int64_t batch = o->batch ? p->batch : 1;
    f->x = o->data, f->row_bytes = row * 2, f->x_batch = o->batch * 2;
    if (along_terms(term, p->k)) return true;
    etch_storage memory = {.data = (void *)(uintptr_t)o->data};
    etch_tensor t = {.dtype = p->dtype,
                     .ndim = 3,
                     .size = {batch, f->rows, p->k},
                     .stride = {o->batch, row, term},
                     .numel = batch * f->rows * p->k,
                     .storage = &memory};
    if (!(f->x = etch__row_major_elements(&t, false, copy))) return false;
    f->row_bytes = p->k * 2, f->x_batch = o->batch ? f->rows * p->k * 2 : 0;
    return true;
}

static void compute(const few_plan *f, const product_tile *t) {
    const product *p = f->p;
    int64_t first = f->by_columns ? t->row : t->col;
    p->panels->few(
        &(few_rows){.x = f->x + t->batch * f->x_batch,
                    .w = f->matrix->data + t->batch * f->matrix->batch * 2 + first * f->lane_bytes,
                    .x_row = f->row_bytes,
                    .w_row = f->lane_bytes,
                    .rows = f->rows,
                    .lanes = f->by_columns ? t->m : t->n,
                    .terms = p->k,
                    .c = (float *)(void *)t->c,
                    .c_row = f->by_columns ? 1 : t->ldc,
                    .c_lane = f->by_columns ? t->ldc : 1});
}

static product_tile tile_number(const few_plan *f, int64_t i, float *scratch) {
    const product *p = f->p;
    int64_t first = i % f->tiles * TILE_LANES, n = at_most(f->lanes - first, TILE_LANES);
    product_tile t = {.batch = i / f->tiles, .m = p->m, .n = p->n};
    if (f->by_columns) t.row = first, t.m = n;
    else t.col = first, t.n = n;
    t.ldc = p->c ? p->n : t.n;
    t.c = p->c ? p->c + ((t.batch * p->m + t.row) * p->n + t.col) * 4 : (char *)scratch;
    return t;
}

static void tiles_task(void *ctx, int64_t begin, int64_t end) {
    const few_plan *f = ctx;
    float scratch[FEW_ROWS * TILE_LANES];
    f->p->panels->enter();
    for (int64_t i = begin; i < end; i++) {
        product_tile t = tile_number(f, i, scratch);
        compute(f, &t);
        if (f->p->finish && !f->p->whole_rows) f->p->finish(f->p->ctx, f->p, &t);
    }
    f->p->panels->leave();
}

static void run_tiles(few_plan *f) {
    const product *p = f->p;
    int64_t work = TILE_LANES * p->k * f->rows / 16;
    etch__parallel(p->batch * f->tiles, work > 65536 ? 1 : 65536 / (work + 1) + 1, tiles_task, f);
}

/* Rows are whole once all tiles are there. */
static void finish_whole(const product *p) {
    for (int64_t b = 0; b < p->batch; b++) {
        product_tile t = {.batch = b, .m = p->m, .n = p->n, .ldc = p->n};
        t.c = p->c + b * p->m * p->n * 4;
        p->finish(p->ctx, p, &t);
    }
}

etch_status etch__few_run(product *p) {
    few_plan f = {.p = p, .by_columns = !by_rows(p)};
    bool own = p->whole_rows && !p->c;
    void *copy = NULL;
    f.matrix = f.by_columns ? &p->a : &p->b;
    f.rows = f.by_columns ? p->n : p->m, f.lanes = f.by_columns ? p->m : p->n;
    f.lane_bytes = (f.by_columns ? p->a.row : p->b.col) * 2;
    f.tiles = (f.lanes + TILE_LANES - 1) / TILE_LANES;
    bool ok = take_rows(&f, &copy);
    if (ok && own) ok = (p->c = etch__malloc((size_t)(p->batch * p->m * p->n) * 4)) != NULL;
    if (ok) run_tiles(&f);
    if (ok && p->whole_rows) finish_whole(p);
    if (own) etch__free(p->c), p->c = NULL;
    etch__free(copy);
    if (ok) return ETCH_OK;
    return etch__error(ETCH_ERR_OUT_OF_MEMORY, "product: no memory for tiles");
}
