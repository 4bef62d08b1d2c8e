/* The gradients of attention's query, key and value, and what dropout multiplies weights by.
 *
 * Nothing but the operands and the result is kept of the forward pass: a block of queries finds the
 * maxima and sums of its rows again, then meets the blocks of keys once more, for the weights W,
 * their gradient dW = g v', the slopes D = W (dW - sum of g result), and dv += W' g, dk += D' q,
 * dq += D k. All that adds to one head's keys and values is done on one thread, query blocks in
 * their order: sums do not depend on the number of threads, which have heads to share. */
#include "backends/cpu/attention.h"
#include "core/base/pool.h"
#include "core/base/start.h"

typedef struct backward_room {
    attention_room room;
    attention_block q, k, v, g, result;
    attention_tile tile; /* weights */
    void *slopes, *kept; /* tiles: of scores; weights that dropout has left */
    void *to_q, *to_k, *to_v;
    void *means; /* by row: sum of g result */
} backward_room;

static void cut_backward(const attention *a, backward_room *b) {
    attention_room *r = &b->room;
    int64_t tile = a->query_block * a->pitch;
    r->used = 0;
    b->tile.scores = etch__attention_cut(r, tile, a->size);
    b->slopes = etch__attention_cut(r, tile, a->size);
    b->kept = a->drops ? etch__attention_cut(r, tile, a->size) : b->tile.scores;
    etch__attention_cut_block(a, r, &b->q, a->query_block, a->width);
    etch__attention_cut_block(a, r, &b->k, a->key_block, a->width);
    etch__attention_cut_block(a, r, &b->v, a->key_block, a->out_width);
    etch__attention_cut_block(a, r, &b->g, a->query_block, a->out_width);
    etch__attention_cut_block(a, r, &b->result, a->query_block, a->out_width);
    etch__attention_cut_rows(a, r, &b->tile);
    b->means = etch__attention_cut(r, ATTENTION_ROWS, a->size);
    b->to_q = etch__attention_cut(r, a->query_block * a->width, a->size);
    b->to_k = etch__attention_cut(r, a->keys * a->width, a->size);
    b->to_v = etch__attention_cut(r, a->keys * a->out_width, a->size);
}

/* ---- one block of queries ---- */

static bool load_rows(attention_backward *j, backward_room *b, const attention_place *at,
                      int64_t rows) {
    const attention *a = &j->a;
    etch__attention_load_queries(a, &b->q, at->head, at->query, rows);
    etch__attention_load_rows(a, &j->g, &b->g, at->head, at->query, rows, a->out_width);
    etch__attention_load_rows(a, &j->result, &b->result, at->head, at->query, rows, a->out_width);
    a->isa->attention->dots[a->type](b->means, b->g.data, b->g.pitch, b->result.data,
                                     b->result.pitch, rows, a->out_width);
    return true;
}

static bool scores_of(attention *a, backward_room *b, const attention_place *at, int64_t rows,
                      int64_t keys) {
    etch__attention_set_tile(a, &b->tile, at, rows, keys);
    etch__attention_load(a, &a->k, &b->k, at->head, at->key, keys, a->width);
    return etch__attention_scores(a, &b->tile, &b->q, &b->k, at);
}

/* The maxima of rows and one over their sums. */
static bool weigh_rows(attention *a, backward_room *b, const attention_place *first, int64_t rows,
                       int64_t seen) {
    etch__attention_start(a, &b->tile);
    for (attention_place at = *first; at.key < seen; at.key += a->key_block) {
        if (!scores_of(a, b, &at, rows, at_most(seen - at.key, a->key_block))) return false;
        a->isa->attention->soften[a->type](&b->tile);
    }
    etch__attention_invert(a, b->tile.sum);
    return true;
}

/* W, or W as dropout has left it. Of a single block of keys the exponentials are there. */
static bool weights_of(attention *a, backward_room *b, const attention_place *at, int64_t rows,
                       int64_t keys) {
    attention_tile *t = &b->tile;
    if (a->keys <= a->key_block) {
        a->isa->attention->scale[a->type](t->scores, t->pitch, rows, keys, t->sum);
    } else {
        if (!scores_of(a, b, at, rows, keys)) return false;
        a->isa->attention->weigh[a->type](t);
    }
    if (!a->drops) return true;
    memcpy(b->kept, b->tile.scores, (size_t)(rows * a->pitch * a->size));
    etch__attention_drop(a, &b->tile, b->kept, at);
    return true;
}

static bool slopes_of(attention *a, backward_room *b, const attention_place *at, int64_t rows,
                      int64_t keys) {
    etch__attention_load(a, &a->v, &b->v, at->head, at->key, keys, a->out_width);
    const library_product p = {.a = b->g.data,
                               .b = b->v.data,
                               .c = b->slopes,
                               .lda = b->g.pitch,
                               .ldb = b->v.pitch,
                               .ldc = a->pitch,
                               .m = rows,
                               .n = keys,
                               .k = a->out_width,
                               .b_transposed = true};
    if (!etch__attention_multiply(a, &p)) return false;
    if (a->drops) etch__attention_drop(a, &b->tile, b->slopes, at);
    a->isa->attention->slope[a->type](&b->tile, b->slopes, b->means);
    return true;
}

/* to += x' y, x a tile of `rows` rows. */
static bool add_turned(attention *a, const void *x, const attention_block *y, void *to,
                       int64_t width, int64_t rows, int64_t keys) {
    return etch__attention_multiply(a, &(library_product){.a = x,
                                                          .b = y->data,
                                                          .c = to,
                                                          .lda = a->pitch,
                                                          .ldb = y->pitch,
                                                          .ldc = width,
                                                          .m = keys,
                                                          .n = width,
                                                          .k = rows,
                                                          .a_transposed = true,
                                                          .adds = true});
}

static bool meet(attention *a, backward_room *b, const attention_place *at, int64_t rows,
                 int64_t keys) {
    char *to_k = (char *)b->to_k + at->key * a->width * a->size;
    char *to_v = (char *)b->to_v + at->key * a->out_width * a->size;
    if (!weights_of(a, b, at, rows, keys) || !slopes_of(a, b, at, rows, keys) ||
        !add_turned(a, b->kept, &b->g, to_v, a->out_width, rows, keys) ||
        !add_turned(a, b->slopes, &b->q, to_k, a->width, rows, keys))
        return false;
    return etch__attention_multiply(a, &(library_product){.a = b->slopes,
                                                          .b = b->k.data,
                                                          .c = b->to_q,
                                                          .lda = a->pitch,
                                                          .ldb = b->k.pitch,
                                                          .ldc = a->width,
                                                          .m = rows,
                                                          .n = a->width,
                                                          .k = keys,
                                                          .adds = at->key > 0});
}

static void store(const attention *a, char *out, int64_t first, void *values, int64_t n) {
    etch__store_rounded(a->dtype, out + (first << etch__size_log2(a->dtype)), values, n);
}

static bool pass_rows(attention_backward *j, backward_room *b, int64_t head, int64_t from) {
    attention *a = &j->a;
    int64_t rows = at_most(a->queries - from, a->query_block);
    int64_t seen = etch__attention_seen(a, from, rows), n = rows * a->width;
    attention_place at = {head, from, 0};
    load_rows(j, b, &at, rows);
    if (!weigh_rows(a, b, &at, rows, seen)) return false;
    if (!seen) memset(b->to_q, 0, (size_t)(n * a->size));
    for (; at.key < seen; at.key += a->key_block)
        if (!meet(a, b, &at, rows, at_most(seen - at.key, a->key_block))) return false;
    etch__attention_scale(a, b->to_q, rows, a->width);
    store(a, j->to_q, (head * a->queries + from) * a->width, b->to_q, n);
    return true;
}

/* ---- one head of keys and values ---- */

static void pass_head(attention_backward *j, backward_room *b, int64_t shared) {
    attention *a = &j->a;
    int64_t nk = a->keys * a->width, nv = a->keys * a->out_width;
    memset(b->to_k, 0, (size_t)(nk * a->size)), memset(b->to_v, 0, (size_t)(nv * a->size));
    for (int64_t head = shared * a->group; head < (shared + 1) * a->group; head++)
        for (int64_t from = 0; from < a->queries; from += a->query_block)
            if (!pass_rows(j, b, head, from)) return;
    store(a, j->to_k, shared * nk, b->to_k, nk);
    store(a, j->to_v, shared * nv, b->to_v, nv);
}

static void backward_task(void *ctx, int64_t begin, int64_t end) {
    attention_backward *j = ctx;
    backward_room b = {.room.memory = NULL};
    cut_backward(&j->a, &b);
    void *memory = etch__attention_open(&j->a, &b.room);
    if (!memory) return;
    cut_backward(&j->a, &b);
    for (int64_t i = begin; i < end; i++) pass_head(j, &b, i);
    etch__free(memory);
}

static etch_status backward_kernel(const op_call *call, etch_tensor *const *outs) {
    attention_backward j;
    attention *a = &j.a;
    if (outs[0]->numel == 0) return ETCH_OK;
    etch__attention_plan(a, call, 2);
    etch__attention_operand_of(a, &j.g, call->in[0]);
    etch__attention_operand_of(a, &j.result, call->in[1]);
    int64_t size = (int64_t)etch_dtype_size(a->dtype);
    j.to_q = etch__ptr(outs[0]);
    j.to_k = j.to_q + call->in[2]->numel * size;
    j.to_v = j.to_k + call->in[3]->numel * size;
    if (etch__attention_bf16_takes(a)) return etch__attention_backward_of_bf16(&j);
    double work =
        (double)(a->queries * a->group) * (double)a->keys * (double)(3 * (a->width + a->out_width));
    if (!etch__library_enter(a->type)) return etch__tls.status;
    etch_status status = etch__attention_run(a, a->batches * a->shared, work, backward_task, &j);
    etch__library_leave(a->type);
    return status;
}

/* ---- what dropout leaves ---- */

static void kept_task(void *ctx, int64_t begin, int64_t end) {
    const attention_backward *j = ctx;
    const attention *a = &j->a;
    double one = 1;
    for (int64_t row = begin; row < end; row++)
        for (int64_t key = 0; key < a->keys; key += ATTENTION_KEYS) {
            attention_tile t = {.rows = 1, .keys = at_most(a->keys - key, ATTENTION_KEYS)};
            const attention_place at = {row / a->queries, row % a->queries, key};
            char *to = j->to_q + (row * a->keys + key) * 8;
            a->isa->strips->fill[3](to, &one, t.keys);
            etch__attention_drop(a, &t, to, &at);
        }
}

static etch_status kept_kernel(const op_call *call, etch_tensor *const *outs) {
    const etch_tensor *out = outs[0], *seed = call->in[0];
    int d = out->ndim;
    if (out->numel == 0) return ETCH_OK;
    attention_backward j = {.to_q = etch__ptr(out)};
    attention *a = &j.a;
    a->isa = etch__isa_table(), a->type = ETCH_F64, a->size = 8;
    a->queries = out->size[d - 2], a->keys = out->size[d - 1];
    etch__attention_set_dropout(a, call->sc[0], seed, out->numel / a->keys / a->queries);
    etch__parallel(out->numel / a->keys, 8192 / a->keys + 1, kept_task, &j);
    return ETCH_OK;
}

void etch__start_cpu_attention_backward(void) {
    etch__register_kernel(OP_ATTENTION_BACKWARD, backward_kernel);
    etch__register_kernel(OP_ATTENTION_KEPT, kept_kernel);
}
