/* What a convolution passes back, in the tiles of conv.c.
 *
 * To the weight: the product of the gradient of a tile's positions and the matrix of the input
 * values under the kernel, transposed, added up over tiles and images. These are dealt out into
 * parts by the sizes alone; each part adds in its order, and the parts are added in theirs. Large
 * weights have few parts, but then tasks for some of the output channels each.
 *
 * To the input: the product of the weights, transposed, and the gradient is that of the matrix;
 * each of its elements is added where it came from. A task has some channels of one image, so
 * nobody else adds there.
 *
 * Half types are computed in f32 and rounded once, at the end. */
#include "backends/cpu/conv.h"
#include "backends/cpu/library.h"
#include "core/base/pool.h"
#include "core/base/start.h"
#include "core/dispatch/dispatch.h"

static int64_t at_most(int64_t n, int64_t limit) { return n < limit ? n : limit; }
static int64_t parts_of(int64_t n, int64_t size) { return (n + size - 1) / size; }

/* n values of the compute type, rounded in place, as elements of the dtype. */
static void store(const conv *c, char *out, char *values, int64_t n) {
    const strip_table *table = c->isa->strips;
    if (c->type == c->dtype) {
        memcpy(out, values, (size_t)(n * c->size));
        return;
    }
    prim_id round = c->dtype == ETCH_BF16 ? PRIM_ROUND_BF16 : PRIM_ROUND_F16;
    table->prim[round][ETCH_F32](values, values, NULL, NULL, n);
    table->narrow[c->dtype](out, values, NULL, NULL, n);
}

static etch_status no_memory(const conv *c) {
    if (!atomic_load(&c->failed)) return ETCH_OK;
    return etch__error(ETCH_ERR_OUT_OF_MEMORY, "convolution: no memory for a tile");
}

/* ---- to the weight ---- */

typedef struct weight_job {
    conv c;
    const char *g; /* the gradient of the result, row-major, in the compute type */
    char *sums;    /* [parts] of the weight's elements */
    int64_t numel, tiles, parts, block, blocks; /* tiles of all images; output channels at once */
} weight_job;

enum { CHANNELS = 128, MOST_PARTS = 16, PARTS_BYTES = 64 << 20 };

static void plan_weight(weight_job *j, int64_t images) {
    conv *c = &j->c;
    j->numel = c->at.groups * c->out_channels * c->rows;
    j->tiles = images * c->tiles;
    j->parts = at_most(PARTS_BYTES / (j->numel * c->size) + 1, MOST_PARTS);
    j->parts = at_most(j->parts, j->tiles);
    j->blocks = parts_of(c->out_channels, CHANNELS);
    j->block = parts_of(c->out_channels, j->blocks);
}

/* One tile's product for output channels first .. + m of a group. */
static bool add_tile(const weight_job *j, int64_t tile, int64_t group, int64_t first, int64_t m,
                     char *sum, bool adds, char *matrix) {
    const conv *c = &j->c;
    int64_t image = tile / c->tiles, at = tile % c->tiles * c->tile, size = c->size;
    int64_t n = at_most(c->positions - at, c->tile), plane = c->in[0] * c->in[1];
    int64_t channel = (image * c->at.groups + group) * c->out_channels + first;
    const char *x = c->x + (image * c->at.groups + group) * c->in_channels * plane * size;
    library_product p = {.a = j->g + (channel * c->positions + at) * size,
                         .b = c->plain ? x + at * size : matrix,
                         .c = sum,
                         .lda = c->positions,
                         .ldb = c->plain ? plane : n,
                         .ldc = c->rows,
                         .m = m,
                         .n = c->rows,
                         .k = n,
                         .b_transposed = true,
                         .adds = adds};
    if (!c->plain) etch__conv_fill_matrix(c, matrix, x, at, n);
    return etch__library_product(c->type, &p);
}

static bool do_part(const weight_job *j, int64_t unit, char *matrix) {
    const conv *c = &j->c;
    int64_t block = unit % j->blocks, group = unit / j->blocks % c->at.groups;
    int64_t part = unit / j->blocks / c->at.groups, first = block * j->block;
    int64_t begin = part * j->tiles / j->parts, end = (part + 1) * j->tiles / j->parts;
    int64_t m = at_most(c->out_channels - first, j->block);
    int64_t at = part * j->numel + (group * c->out_channels + first) * c->rows;
    bool ok = true;
    for (int64_t t = begin; ok && t < end; t++)
        ok = add_tile(j, t, group, first, m, j->sums + at * c->size, t > begin, matrix);
    return ok;
}

static void parts_task(void *ctx, int64_t begin, int64_t end) {
    weight_job *j = ctx;
    int64_t bytes = j->c.plain ? 0 : j->c.rows * j->c.tile * j->c.size;
    char *matrix = etch__malloc((size_t)bytes + 1);
    bool ok = matrix != NULL;
    for (int64_t k = begin; ok && k < end; k++) ok = do_part(j, k, matrix);
    etch__free(matrix);
    if (!ok) atomic_store(&j->c.failed, 1);
}

/* Elements begin .. end of all parts, added to those of the first. */
static void sum_task(void *ctx, int64_t begin, int64_t end) {
    weight_job *j = ctx;
    const conv *c = &j->c;
    strip_fn add = c->isa->strips->prim[PRIM_ADD][c->type];
    for (int64_t i = begin * EAGER_STRIP; i < at_most(end * EAGER_STRIP, j->numel);
         i += EAGER_STRIP) {
        int64_t n = at_most(j->numel - i, EAGER_STRIP);
        char *sum = j->sums + i * c->size;
        for (int64_t k = 1; k < j->parts; k++) add(sum, sum, sum + k * j->numel * c->size, NULL, n);
        store(c, c->y + i * (int64_t)etch_dtype_size(c->dtype), sum, n);
    }
}

static etch_status run_weight(weight_job *j) {
    conv *c = &j->c;
    if (!etch__conv_fits(c)) return etch__tls.status;
    j->sums = etch__malloc((size_t)(j->parts * j->numel * c->size));
    if (!j->sums) return etch__error(ETCH_ERR_OUT_OF_MEMORY, "convolution: no memory for sums");
    if (!etch__library_enter(c->type)) {
        etch__free(j->sums);
        return etch__tls.status;
    }
    etch__parallel(j->parts * c->at.groups * j->blocks, 1, parts_task, j);
    etch__library_leave(c->type);
    etch_status status = no_memory(c);
    if (status == ETCH_OK) etch__parallel(parts_of(j->numel, EAGER_STRIP), 16, sum_task, j);
    etch__free(j->sums);
    return status;
}

static void *zeroed(const etch_tensor *t) {
    return memset(etch__ptr(t), 0, (size_t)(t->numel * etch__item_size(t)));
}

static etch_status backward_weight(const op_call *call, etch_tensor *const *outs) {
    const etch_tensor *g = call->in[0], *x = call->in[1], *w = outs[0];
    weight_job j = {.c = {.isa = etch__isa_table(), .dtype = g->dtype}};
    void *copies[2] = {NULL, NULL};
    if (!w->numel) return ETCH_OK;
    j.c.y = zeroed(w);
    if (!g->numel) return ETCH_OK;
    if (!etch__conv_numbers(call, &j.c.at)) return etch__tls.status;
    etch__conv_plan(&j.c, x->size, w->size, g->size);
    plan_weight(&j, x->size[0]);
    bool ok = (j.c.x = etch__row_major_elements(x, true, &copies[0])) &&
              (j.g = etch__row_major_elements(g, true, &copies[1]));
    etch_status status = ok ? run_weight(&j) : ETCH_ERR_OUT_OF_MEMORY;
    for (int k = 0; k < 2; k++) etch__free(copies[k]);
    return status;
}

/* ---- to the input ---- */

typedef struct input_job {
    conv c;                /* x is not there: y is its gradient */
    const char *g;         /* as above */
    int64_t block, blocks; /* input channels at once */
} input_job;

enum { MATRIX_ROWS = 256 };

/* n values, each added to one that lies `step` after the last. */
static void add_apart(const conv *c, char *to, const char *values, int64_t step, int64_t n) {
    if (step == 1) {
        c->isa->strips->prim[PRIM_ADD][c->type](to, to, values, NULL, n);
    } else if (c->type == ETCH_F32) {
        float *y = (float *)to;
        const float *v = (const float *)values;
        for (int64_t i = 0; i < n; i++) y[i * step] += v[i];
    } else {
        double *y = (double *)to;
        const double *v = (const double *)values;
        for (int64_t i = 0; i < n; i++) y[i * step] += v[i];
    }
}

/* One row of the matrix, back to the plane that it came from. */
static void add_row(const conv *c, char *plane, const char *row, int64_t kh, int64_t kw,
                    int64_t first, int64_t n) {
    for (int64_t done = 0; done < n;) {
        int64_t oh = (first + done) / c->out[1], ow = (first + done) % c->out[1];
        int64_t run = at_most(c->out[1] - ow, n - done), ih = etch__conv_row(c, kh, oh);
        conv_span s = etch__conv_span(c, kw, ow, run);
        if (ih >= 0 && s.end > s.begin)
            add_apart(c, plane + (ih * c->in[1] + s.at) * c->size, row + (done + s.begin) * c->size,
                      c->at.stride[1], s.end - s.begin);
        done += run;
    }
}

static void add_matrix(const conv *c, char *planes, const char *matrix, int64_t channels,
                       int64_t first, int64_t n) {
    for (int64_t k = 0; k < channels; k++) {
        for (int64_t kh = 0; kh < c->kernel[0]; kh++)
            for (int64_t kw = 0; kw < c->kernel[1]; kw++, matrix += n * c->size)
                add_row(c, planes, matrix, kh, kw, first, n);
        planes += c->in[0] * c->in[1] * c->size;
    }
}

/* The gradient of input channels first .. + channels of a group, into planes, which are 0. */
static bool fill_planes(const input_job *j, int64_t unit, int64_t first, int64_t channels,
                        char *planes, char *matrix) {
    const conv *c = &j->c;
    int64_t places = c->kernel[0] * c->kernel[1], group = unit % c->at.groups;
    const char *w = c->w + (group * c->out_channels * c->rows + first * places) * c->size;
    const char *g = j->g + unit * c->out_channels * c->positions * c->size;
    for (int64_t at = 0; at < c->positions; at += c->tile) {
        int64_t n = at_most(c->positions - at, c->tile);
        library_product p = {.a = w,
                             .b = g + at * c->size,
                             .c = c->plain ? planes + at * c->size : matrix,
                             .lda = c->rows,
                             .ldb = c->positions,
                             .ldc = c->plain ? c->positions : n,
                             .m = channels * places,
                             .n = n,
                             .k = c->out_channels,
                             .a_transposed = true};
        if (!etch__library_product(c->type, &p)) return false;
        if (!c->plain) add_matrix(c, planes, matrix, channels, at, n);
    }
    return true;
}

static bool do_channels(const input_job *j, int64_t k, char *matrix, char *room) {
    const conv *c = &j->c;
    int64_t unit = k / j->blocks, first = k % j->blocks * j->block, plane = c->in[0] * c->in[1];
    int64_t channels = at_most(c->in_channels - first, j->block), n = channels * plane;
    int64_t at = (unit * c->in_channels + first) * plane;
    char *y = c->y + at * (int64_t)etch_dtype_size(c->dtype);
    bool direct = c->type == c->dtype;
    if (!direct) memset(room, 0, (size_t)(n * c->size));
    if (!fill_planes(j, unit, first, channels, direct ? y : room, matrix)) return false;
    for (int64_t i = 0; !direct && i < n; i += EAGER_STRIP)
        store(c, y + i * 2, room + i * c->size, at_most(n - i, EAGER_STRIP));
    return true;
}

static void channels_task(void *ctx, int64_t begin, int64_t end) {
    input_job *j = ctx;
    const conv *c = &j->c;
    int64_t matrix = j->block * c->kernel[0] * c->kernel[1] * c->tile * c->size;
    int64_t planes = c->type == c->dtype ? 0 : j->block * c->in[0] * c->in[1] * c->size;
    char *room = etch__malloc((size_t)(matrix + planes + 1));
    bool ok = room != NULL;
    for (int64_t k = begin; ok && k < end; k++) ok = do_channels(j, k, room, room + matrix);
    etch__free(room);
    if (!ok) atomic_store(&j->c.failed, 1);
}

static etch_status run_input(input_job *j, int64_t images) {
    conv *c = &j->c;
    int64_t places = c->kernel[0] * c->kernel[1];
    if (!etch__conv_fits(c)) return etch__tls.status;
    j->block = at_most(MATRIX_ROWS / places + 1, c->in_channels);
    j->blocks = parts_of(c->in_channels, j->block);
    double work = (double)(j->block * places) * (double)c->positions * (double)c->out_channels;
    if (!etch__library_enter(c->type)) return etch__tls.status;
    etch__parallel(images * c->at.groups * j->blocks,
                   work > 262144 ? 1 : (int64_t)(262144 / work) + 1, channels_task, j);
    etch__library_leave(c->type);
    return no_memory(c);
}

static etch_status backward_input(const op_call *call, etch_tensor *const *outs) {
    const etch_tensor *g = call->in[0], *w = call->in[1], *x = outs[0];
    input_job j = {.c = {.isa = etch__isa_table(), .dtype = g->dtype}};
    void *copies[2] = {NULL, NULL};
    if (!x->numel) return ETCH_OK;
    j.c.y = zeroed(x);
    if (!g->numel) return ETCH_OK;
    if (!etch__conv_numbers(call, &j.c.at)) return etch__tls.status;
    etch__conv_plan(&j.c, x->size, w->size, g->size);
    bool ok = (j.g = etch__row_major_elements(g, true, &copies[0])) &&
              (j.c.w = etch__row_major_elements(w, true, &copies[1]));
    etch_status status = ok ? run_input(&j, x->size[0]) : ETCH_ERR_OUT_OF_MEMORY;
    for (int k = 0; k < 2; k++) etch__free(copies[k]);
    return status;
}

void etch__start_cpu_convolution_backward(void) {
    etch__register_kernel(OP_CONVOLUTION_BACKWARD_INPUT, backward_input);
    etch__register_kernel(OP_CONVOLUTION_BACKWARD_WEIGHT, backward_weight);
}
