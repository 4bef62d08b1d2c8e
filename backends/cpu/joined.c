/* A kernel that follows a product: its accesses are moved to a tile, its innermost extent is the
 * tile's, and its units those of the tile's rows. In place of the product's result it reads the
 * tile. A tile of whole rows, without gaps in any memory, is one long row to the kernel: what it
 * does besides computing, it does for each row. */
#include "backends/cpu/joined.h"

#include "backends/cpu/product.h"
#include "core/base/profile.h"
#include "core/base/stack.h"

bool etch__cpu_joins(int device, const matmul_sizes *s, bool alone) {
    (void)device, (void)alone;
    return s->n > 1;
}

/* Whether the access goes from the end of a row to the begin of the next. */
static bool has_no_gaps(const int64_t *extent, const int64_t *stride, int naxes) {
    for (int a = 0; a < naxes - 1; a++)
        if (extent[a] > 1 && stride[a] != stride[a + 1] * extent[a + 1]) return false;
    return true;
}

static bool is_flat(const lowered *low) {
    int n = low->k.npar;
    if (low->k.nred) return false;
    for (int i = 0; i < low->k.naccesses; i++)
        if (i != low->matmul[0].access && !has_no_gaps(low->dims, low->dims + n * (i + 1), n))
            return false;
    return true;
}

joined_product *etch__joined_new(const lowered *low) {
    joined_product *j = etch__malloc(sizeof *j);
    if (!j) return NULL;
    const loop_kernel *k = &low->k;
    *j = (joined_product){.m = low->matmul[0],
                          .naxes = k->npar + k->nred,
                          .naccesses = k->naccesses,
                          .rows = k->nred > 0,
                          .flat = is_flat(low)};
    for (int i = 0; i < k->naccesses; i++)
        j->bytes[i] = (uint8_t)etch_dtype_size(k->access[i].dtype);
    j->chained = etch__chain_find(low, j);
    if (!j->m.conv || etch__joined_conv_new(j)) return j;
    return etch__free(j), NULL;
}

/* ---- one tile ---- */

/* Strides of the tile along the kernel's axes: rows are those of all axes but the last. */
static void tile_strides(const joined_product *j, const int64_t *extent, int64_t ldc,
                         int64_t *stride) {
    stride[j->naxes - 1] = 1;
    for (int a = j->naxes - 2; a >= 0; a--, ldc *= extent[a + 1]) stride[a] = ldc;
}

typedef struct tile_call {
    int64_t dims[LOOP_MAX_AXES * (LOOP_MAX_ACCESSES + 1)];
    void *args[LOOP_MAX_ACCESSES + 1];
} tile_call;

/* All accesses but the tile's begin `first` elements of the innermost axis later. */
static void move_accesses(const joined_call *c, tile_call *to, int64_t first) {
    const joined_product *j = c->k->joined;
    int n = j->naxes;
    memcpy(to->dims, c->k->dims, (size_t)(n * (j->naccesses + 1)) * sizeof *to->dims);
    for (int i = 0; i < j->naccesses; i++)
        to->args[i] = (char *)c->args[i] + first * to->dims[n * (i + 1) + n - 1] * j->bytes[i];
    to->args[j->naccesses] = NULL;
}

static void follow_rows(const joined_call *c, const product_tile *t, int size) {
    const joined_product *j = c->k->joined;
    tile_call at;
    int n = j->naxes;
    move_accesses(c, &at, t->col);
    tile_strides(j, at.dims, t->ldc, at.dims + n * (j->m.access + 1));
    uintptr_t first = (uintptr_t)t->c - (uintptr_t)(t->row * t->ldc * size);
    at.args[j->m.access] = (void *)first; /* where row 0 would be */
    at.dims[n - 1] = t->n;
    int64_t units = j->rows ? 1 : (t->n + STRIP - 1) / STRIP; /* of a row */
    c->k->fn(at.args, at.dims, c->cells, t->row * units, (t->row + t->m) * units);
}

static void follow_line(const joined_call *c, const product_tile *t) {
    const joined_product *j = c->k->joined;
    tile_call at;
    int n = j->naxes;
    int64_t elements = t->m * t->n;
    move_accesses(c, &at, t->row * t->n);
    for (int a = 0; a < n - 1; a++) at.dims[a] = 1;
    at.dims[n - 1] = elements, at.dims[n * (j->m.access + 1) + n - 1] = 1;
    at.args[j->m.access] = t->c;
    c->k->fn(at.args, at.dims, c->cells, 0, (elements + STRIP - 1) / STRIP);
}

void etch__joined_follow(const joined_call *c, const product_tile *t, int size) {
    const joined_product *j = c->k->joined;
    if (j->chained) etch__chain_follow(c, t);
    else if (j->flat && t->n == t->ldc && t->n == c->k->dims[j->naxes - 1]) follow_line(c, t);
    else follow_rows(c, t, size);
}

static void follow(const void *ctx, const product *p, const product_tile *t) {
    etch__joined_follow(ctx, t, p->size);
}

/* ---- the whole ---- */

typedef struct joined_work {
    joined_call call;
    etch_status status;
} joined_work;

static void run_product(void *ctx) {
    joined_work *w = ctx;
    const joined_product *j = w->call.k->joined;
    const joined_matmul *m = &j->m;
    product p;
    if (j->is_conv) {
        w->status = etch__joined_conv_run(&w->call);
        return;
    }
    etch__product_init(&p, m->dtype, 1, m->m, m->n, m->k);
    void *const *operand = w->call.args + j->naccesses;
    p.a = (product_operand){
        .data = operand[0], .rows = m->m, .cols = m->k, .row = m->a_row, .col = m->a_col};
    p.b = (product_operand){
        .data = operand[1], .rows = m->k, .cols = m->n, .row = m->b_row, .col = m->b_col};
    p.b.storage = operand[2];
    p.whole_rows = j->rows;
    p.finish = follow, p.ctx = &w->call;
    int64_t start = etch__profile_start();
    w->status = etch__product_run(&p);
    etch__profile_end_event(ETCH_PROFILE_PRODUCT, start, "aten::mm", w->call.k->name);
}

etch_status etch__joined_run(const kernel_step *k, void *const *args, const uint64_t *cells) {
    joined_work w = {{k, args, cells}, ETCH_OK};
    size_t stack = KERNEL_STACK + k->stack;
    if (unlikely(!etch__stack_ready(stack))) return etch__tls.status;
    etch__with_room(stack, run_product, &w);
    return w.status;
}
