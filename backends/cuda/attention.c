/* Attention on a device: softmax(scale q k' + mask) v without the matrix of scores.
 *
 * Halves are multiplied by tensor cores, many queries on compute capability 9.0 by warp groups
 * (device/attention_group.cu; few keys all at once, device/attention_short.cu), else by warps
 * (device/attention.cu); everything else is multiplied element by element
 * (device/attention_plain.cu). Widths of up to 256 are filled up with zeros.
 * How many keys are met at once follows from the widths and the dtype, and into how many splits
 * they are dealt, where queries and heads are too few for the device, from sizes and the number of
 * its multiprocessors: bits depend on nothing else. */
#include "backends/cuda/text.h"
#include "core/base/start.h"
#include "core/dispatch/attention.h"

#include <math.h>

#include "embedded/attention.cu.inc"
#include "embedded/attention_group.cu.inc"
#include "embedded/attention_join.cu.inc"
#include "embedded/attention_plain.cu.inc"
#include "embedded/attention_short.cu.inc"

enum { LAUNCH_MOST = 1 << 20, SHARE_LEAST = 128, FEW_KEYS = 128, SECTION_BYTES = 64 << 20 };

/* [heads of all samples, rows, columns] */
typedef struct attention_operand {
    text_dims heads;
    int64_t row, column;
} attention_operand;

/* struct etch_args of device/attention.cuh; behind it the scale. */
typedef struct attention_args {
    const void *q, *k, *v, *mask;
    void *y, *values, *rows;
    attention_operand at_q, at_k, at_v, at_mask, at_y;
    int64_t heads, group, queries, keys, width, out_width, splits, share, first, section;
    uint64_t scale;
} attention_args;

typedef enum attention_way { PLAIN, BY_WARPS, BY_GROUPS, AT_ONCE } attention_way;

typedef struct attention {
    attention_args args;
    etch_dtype dtype, type, mask;
    int width, out_width; /* filled up */
    int rows, keys;       /* of a block, and of a round */
    int64_t blocks;       /* of a launch */
    attention_way way;
    bool causal, masked, raw, pieces, mask_pieces;
    unsigned threads, shared;
    double scale;
} attention;

/* ---- operands ---- */

/* Axes in front that are missing, or of size 1 where others have more, are broadcast. */
static attention_operand operand_of(const etch_tensor *t, const etch_tensor *like) {
    attention_operand o = {.heads.n = like->ndim - 2};
    int d = t->ndim, missing = like->ndim - d;
    for (int i = 0; i < like->ndim - 2; i++) {
        bool there = i >= missing;
        o.heads.size[i] = like->size[i];
        o.heads.stride[i] = there && t->size[i - missing] > 1 ? t->stride[i - missing] : 0;
    }
    if (d >= 2 && t->size[d - 2] > 1) o.row = t->stride[d - 2];
    if (d >= 1 && t->size[d - 1] > 1) o.column = t->stride[d - 1];
    return o;
}

/* Whether rows can be copied 16 bytes at a time. */
static bool in_pieces(const etch_tensor *t, const attention_operand *o) {
    int64_t n = 16 / etch__item_size(t), size = t->size[t->ndim - 1];
    bool fits = o->row % n == 0 && size % n == 0 && (o->column == 1 || size == 1);
    for (int i = 0; i < o->heads.n; i++) fits = fits && o->heads.stride[i] % n == 0;
    return fits && (uintptr_t)etch__ptr(t) % 16 == 0;
}

/* What device/attention_mask.cuh reads so: bools, or halves as the operands are. */
static bool mask_in_pieces(const attention *a, const etch_tensor *mask) {
    int64_t n = mask->ndim ? mask->size[mask->ndim - 1] : 1;
    return (a->mask == ETCH_BOOL || a->mask == a->dtype) && n == a->args.keys && n > 1 &&
           in_pieces(mask, &a->args.at_mask);
}

static void set_operands(attention *a, const op_call *call) {
    const etch_tensor *q = call->in[0], *k = call->in[1], *v = call->in[2], *mask = call->in[3];
    attention_args *p = &a->args;
    int d = q->ndim;
    p->q = etch__ptr(q), p->k = etch__ptr(k), p->v = etch__ptr(v);
    p->at_q = operand_of(q, q), p->at_k = operand_of(k, k), p->at_v = operand_of(v, k);
    a->masked = mask != ETCH_NONE, a->mask = a->masked ? mask->dtype : ETCH_BOOL;
    if (a->masked) p->mask = etch__ptr(mask), p->at_mask = operand_of(mask, q);
    p->queries = q->size[d - 2], p->keys = k->size[d - 2];
    p->width = q->size[d - 1], p->out_width = v->size[d - 1];
    p->heads = p->group = 1;
    for (int i = 0; i < d - 2; i++) p->heads *= q->size[i];
    if (d > 2 && k->size[d - 3]) p->group = q->size[d - 3] / k->size[d - 3];
    a->mask_pieces = a->masked && mask_in_pieces(a, mask);
    a->pieces = in_pieces(q, &p->at_q) && in_pieces(k, &p->at_k) && in_pieces(v, &p->at_v);
}

/* ---- tiles ---- */

static unsigned shared_bytes(const attention *a) {
    int64_t n = a->rows * (int64_t)a->width, keys = a->keys;
    if (a->way >= BY_GROUPS) { /* the gates, and to begin at a multiple of 1024 */
        int64_t buffers = a->way == BY_GROUPS ? 2 : 1;
        return (unsigned)(2 * (n + buffers * keys * (a->width + a->out_width)) + 128 + 1024);
    }
    if (a->way == BY_WARPS)
        return (unsigned)(2 * ((a->rows + keys) * (a->width + 8) + keys * (a->out_width + 8)));
    n = (a->rows + keys) * (a->width + 4) + keys * a->out_width + a->rows * (keys + 4);
    return (unsigned)n * (unsigned)etch_dtype_size(a->type);
}

static int filled_up(int64_t width, int to) { return width ? (int)(width + to - 1) / to * to : to; }

/* From the sizes alone. Warp groups have panels of 64 columns. */
static attention_way way_of(const attention *a, const cuda_device *d) {
    const attention_args *p = &a->args;
    int64_t widest = p->width > p->out_width ? p->width : p->out_width;
    if (!etch__is_half(a->dtype) || d->major < 8) return PLAIN;
    bool groups = d->major == 9 && p->queries > 64 && p->keys && widest > 32 && widest <= 128;
    return !groups ? BY_WARPS : p->keys <= FEW_KEYS ? AT_ONCE : BY_GROUPS;
}

/* As few groups as leave no multiprocessor two blocks, or as many as have registers enough. */
static int groups_of(const attention *a, const cuda_device *d) {
    int groups = 1, most = a->width > 64 || a->out_width > 64 || !a->pieces ? 2 : 3;
    if (a->way == AT_ONCE) return 1;
    while (groups < most &&
           a->args.heads * ((a->args.queries - 1) / (64 * groups) + 1) > d->multiprocessors)
        groups++;
    return groups;
}

/* The numbers of rows make no difference to bits, those of keys do; which is best was measured on
 * an H200. */
static void set_tiles(attention *a, const cuda_device *d) {
    bool groups = a->way >= BY_GROUPS;
    int unit = groups ? 64 : 16;
    a->width = filled_up(a->args.width, unit), a->out_width = filled_up(a->args.out_width, unit);
    bool far = a->width > 64 || a->out_width > 64;
    a->keys = a->way == BY_GROUPS || (a->way == AT_ONCE && a->args.keys > 64) ? 128 : 64;
    a->rows = groups ? 64 * groups_of(a, d) : a->way == BY_WARPS ? 64 : 32;
    a->threads = a->way == BY_GROUPS ? 2 * (unsigned)a->rows + 128 : 128;
    if (a->way == BY_WARPS && far && a->width <= 128 && a->out_width <= 128 && a->args.queries > 64)
        a->rows = 128;
    while ((a->shared = shared_bytes(a)) > (unsigned)d->shared && a->keys > 16) a->keys /= 2;
}

static int64_t blocks_of(const attention *a) {
    return (a->args.queries + a->rows - 1) / a->rows * a->args.heads * a->args.splits;
}

/* Two blocks a multiprocessor, of warp groups that copy ahead one, each with keys enough. */
static void set_splits(attention *a, const cuda_device *d) {
    attention_args *p = &a->args;
    p->splits = 1;
    int64_t blocks = blocks_of(a), most = p->keys / SHARE_LEAST;
    if (!a->causal && blocks && blocks < d->multiprocessors)
        p->splits = a->way == BY_GROUPS ? d->multiprocessors / blocks
                                        : (2 * d->multiprocessors + blocks - 1) / blocks;
    if (p->splits > most) p->splits = most > 1 ? most : 1;
    int64_t rounds = (p->keys + a->keys - 1) / a->keys;
    p->share = (rounds + p->splits - 1) / p->splits * a->keys;
    if (p->share) p->splits = (p->keys + p->share - 1) / p->share;
}

/* Blocks of warp groups meet tile after tile, one block a multiprocessor. Tiles that have more to
 * do than others come first, of so many heads at once that their keys and values stay in the
 * device's cache; where that are not all heads, each tile is a block that the device deals out. */
static void set_sections(attention *a, const cuda_device *d) {
    attention_args *p = &a->args;
    int64_t bytes = 2 * p->heads * p->keys * (p->width + p->out_width) / p->group;
    int64_t sections = a->causal && bytes ? (bytes - 1) / SECTION_BYTES + 1 : p->heads;
    p->section = sections < p->heads ? (p->heads - 1) / sections + 1 : 1;
    a->blocks = blocks_of(a);
    if (a->way != BY_GROUPS) return;
    int64_t least = a->causal && p->section < p->heads ? LAUNCH_MOST : d->multiprocessors;
    if (a->blocks > least) a->blocks = least;
}

static attention plan(const op_call *call, const etch_tensor *y, const cuda_device *d) {
    attention a = {.dtype = call->in[0]->dtype, .causal = call->at[0] != 0};
    etch_scalar scale = call->sc[0];
    a.type = etch__compute_type(a.dtype);
    a.scale = scale.kind == ETCH_SCALAR_REAL ? scale.d : (double)scale.i;
    set_operands(&a, call);
    a.args.y = etch__ptr(y), a.args.at_y = operand_of(y, y);
    a.pieces = a.pieces && in_pieces(y, &a.args.at_y);
    a.way = way_of(&a, d);
    set_tiles(&a, d);
    set_splits(&a, d);
    set_sections(&a, d);
    /* The tensor cores' powers are of 2. */
    bool added = a.masked && (a.way == BY_WARPS || a.mask != ETCH_BOOL);
    a.raw = a.way != PLAIN && !added && a.scale > 1e-30 && a.scale < 1e30;
    a.args.scale =
        etch__scalar_cell(etch_scalar_real(a.way != PLAIN ? a.scale * M_LOG2E : a.scale), a.type);
    return a;
}

/* ---- launches ---- */

static etch_status launch(cuda_stream *s, const attention *a, kernel_text *k, int64_t blocks,
                          unsigned threads) {
    attention_args args = a->args;
    etch_status status = ETCH_OK;
    int words = snprintf(
        k->defines, sizeof k->defines,
        "#define WIDTH %d\n#define OUT %d\n#define KEYS %d\n#define CAUSAL %d\n#define MASK %d\n"
        "#define RAW %d\n#define PIECES %d\n#define BF16 %d\n#define SPLIT %d\n#define THREADS %u\n"
        "#define TALL %d\n#define WARPS 4\n#define GROUPS %d\n#define BASE_2 %d\n"
        "#define MASK_PIECES %d\n",
        a->width, a->out_width, a->keys, a->causal, a->masked ? 1 + (a->mask != ETCH_BOOL) : 0,
        a->raw, a->pieces, a->dtype == ETCH_BF16, args.splits > 1, a->threads, a->rows / 64,
        a->rows / 64, a->way != PLAIN, a->mask_pieces);
    if (words >= (int)sizeof k->defines)
        return etch__error(ETCH_ERR_INTERNAL, "attention: definitions of %d bytes", words);
    k->ndtypes = 2, k->dtype[0] = a->dtype, k->dtype[1] = a->mask;
    for (; status == ETCH_OK && args.first < blocks; args.first += LAUNCH_MOST) {
        int64_t left = blocks - args.first;
        status = etch__cuda_run_text(s, k, left < LAUNCH_MOST ? left : LAUNCH_MOST, threads, &args);
    }
    return status;
}

static etch_status attend(cuda_stream *s, const attention *a) {
    static const char *const bodies[] = {attention_plain_text, attention_text, attention_group_text,
                                         attention_short_text};
    kernel_text k = {.symbol = "etch_attention", .body = bodies[a->way], .shared = a->shared};
    return launch(s, a, &k, a->blocks, a->threads);
}

/* What each split has made of a query, and the kernel that joins it. */
static etch_status attend_in_splits(cuda_stream *s, attention *a) {
    attention_args *p = &a->args;
    size_t size = etch_dtype_size(a->type);
    size_t rows = (size_t)(p->splits * p->heads * p->queries), values = rows * (size_t)p->out_width;
    cuda_block *memory = etch__cuda_allocate(s, (values + 2 * rows) * size);
    if (!memory) return etch__tls.status;
    p->values = etch__cuda_address(memory), p->rows = (char *)p->values + values * size;
    etch_status status = attend(s, a);
    kernel_text k = {.symbol = "etch_attention_join", .body = attention_join_text};
    if (status == ETCH_OK) status = launch(s, a, &k, p->heads * p->queries, 128);
    etch__cuda_free(memory);
    return status;
}

static etch_status attention_kernel(const op_call *call, etch_tensor *const *out) {
    const etch_tensor *q = call->in[0], *v = call->in[2];
    if (!out[0]->numel) return ETCH_OK;
    if (q->size[q->ndim - 1] > ATTENTION_WIDTH_MOST || v->size[v->ndim - 1] > ATTENTION_WIDTH_MOST)
        return etch__run_on_host(call, out);
    cuda_stream *s = etch__cuda_begin(call, out[0]);
    if (!s) return etch__tls.status;
    attention a = plan(call, out[0], etch__cuda_stream_device(s));
    return a.args.splits > 1 ? attend_in_splits(s, &a) : attend(s, &a);
}

void etch__start_cuda_attention(void) { etch__cuda_register(OP_ATTENTION, attention_kernel); }
