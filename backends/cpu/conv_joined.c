/* A convolution that a kernel follows tile by tile (joined.h): the rows of a tile are positions, as
 * are those of the kernel's space; or the tile is turned, and the kernel's rows are channels. */
#include "backends/cpu/conv_direct.h"
#include "backends/cpu/joined.h"
#include "backends/cpu/program.h"
#include "core/base/profile.h"

bool etch__joined_conv_new(joined_product *j) {
    op_call call = {.op = OP_CONVOLUTION, .at = j->m.conv};
    j->is_conv = true, j->m.conv = NULL; /* that lies with the graph */
    return etch__conv_numbers(&call, &j->conv);
}

static void finish_channels(const void *ctx, const direct_conv *d, const product_tile *t,
                            char *room) {
    (void)room;
    etch__joined_follow(ctx, t, d->size);
}

/* Image after image. */
static void finish_planes(const void *ctx, const direct_conv *d, const product_tile *t,
                          char *room) {
    if (d->by_lines) {
        etch__joined_follow(ctx, t, d->size);
        return;
    }
    int64_t all = d->n.groups * d->n.out_channels, n;
    for (int64_t first = 0; first < t->m; first += n) {
        int64_t at = (t->row + first) % d->n.positions, image = (t->row + first) / d->n.positions;
        n = at_most(d->n.positions - at, t->m - first);
        product_tile plane = {.row = image * all + t->col, .col = at, .m = t->n, .n = n};
        plane.c = room, plane.ldc = n;
        etch__direct_turn(d, d->type, room, n, t->c + first * t->ldc * d->size, t->ldc, t->n, n);
        etch__joined_follow(ctx, &plane, d->size);
    }
}

/* A handle of an operand whose first element is at data. */
static etch_tensor handle(const tensor_meta *m, void *data, etch_storage *s) {
    etch_tensor t = {.storage = s};
    etch__apply_meta(&t, m);
    t.offset = 0, s->data = data;
    return t;
}

/* So that what is made of the storage's contents can be kept. */
static void lie_in(etch_tensor *w, const void *first, etch_storage *s) {
    w->offset = ((const char *)first - (const char *)s->data) / etch__item_size(w);
    w->storage = s;
}

etch_status etch__joined_conv_run(const joined_call *c) {
    const joined_product *j = c->k->joined;
    const joined_matmul *m = &j->m;
    void *const *operand = c->args + j->naccesses;
    etch_storage storages[3] = {
        {.refs = 1, .lent = 1}, {.refs = 1, .lent = 1}, {.refs = 1, .lent = 1}};
    etch_tensor x = handle(&m->a_meta, operand[0], &storages[0]);
    etch_tensor w = handle(&m->b_meta, operand[1], &storages[1]);
    if (operand[2]) lie_in(&w, operand[1], operand[2]);
    etch_tensor bias;
    if (operand[3]) bias = handle(&m->bias_meta, operand[3], &storages[2]);
    conv_sizes n = etch__conv_sizes(&j->conv, x.size, w.size, m->c_meta.size);
    direct_conv d;
    int64_t start = etch__profile_start();
    bool channels = etch__channels_innermost(&m->c_meta);
    bool ok = etch__direct_begin(&d, &n, &x, &w, operand[3] ? &bias : NULL, !channels);
    d.finish = channels ? finish_channels : finish_planes, d.ctx = c;
    etch_status status = ok ? etch__direct_run(&d) : ETCH_ERR_OUT_OF_MEMORY;
    etch__direct_end(&d);
    etch__profile_end_event(ETCH_PROFILE_PRODUCT, start, "aten::convolution", c->k->name);
    return status;
}
