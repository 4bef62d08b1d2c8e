/* A kernel that follows a product: its accesses are moved to a tile, its innermost extent is the
 * tile's, and its units those of the tile's rows. In place of the product's result it reads the
 * tile. */
#include "backends/cpu/joined.h"

#include "backends/cpu/product.h"
#include "core/base/profile.h"
#include "core/base/stack.h"

bool etch__cpu_joins(int device, const matmul_sizes *s, bool alone) {
    (void)device, (void)alone;
    return s->n > 1;
}

joined_product *etch__joined_new(const lowered *low) {
    joined_product *j = etch__malloc(sizeof *j);
    if (!j) return NULL;
    const loop_kernel *k = &low->k;
    *j = (joined_product){.m = low->matmul[0],
                          .naxes = k->npar + k->nred,
                          .naccesses = k->naccesses,
                          .rows = k->nred > 0};
    for (int i = 0; i < k->naccesses; i++)
        j->bytes[i] = (uint8_t)etch_dtype_size(k->access[i].dtype);
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

void etch__joined_follow(const joined_call *c, const product_tile *t, int size) {
    const joined_product *j = c->k->joined;
    int64_t dims[LOOP_MAX_AXES * (LOOP_MAX_ACCESSES + 1)];
    void *args[LOOP_MAX_ACCESSES + 1] = {NULL};
    int n = j->naxes;
    memcpy(dims, c->k->dims, (size_t)(n * (j->naccesses + 1)) * sizeof *dims);
    for (int i = 0; i < j->naccesses; i++)
        args[i] = (char *)c->args[i] + t->col * dims[n * (i + 1) + n - 1] * j->bytes[i];
    tile_strides(j, dims, t->ldc, dims + n * (j->m.access + 1));
    uintptr_t first = (uintptr_t)t->c - (uintptr_t)(t->row * t->ldc * size);
    args[j->m.access] = (void *)first; /* where row 0 would be */
    dims[n - 1] = t->n;
    int64_t units = j->rows ? 1 : (t->n + STRIP - 1) / STRIP; /* of a row */
    c->k->fn(args, dims, c->cells, t->row * units, (t->row + t->m) * units);
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
