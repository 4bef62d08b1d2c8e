/* The eager kernels of reductions, in the canonical order of core/ops/expr.h.
 *
 * The output is cut into units: single elements where a reduced axis is the innermost in memory
 * (rows), strips of neighbouring elements otherwise (columns), each column with its own 64 lanes. A
 * unit's blocks are folded as they come, by a stack that gives the tree of the canonical order;
 * where there are too few units for the threads, blocks are done in parallel and folded from
 * memory. Neither choice changes a bit, since the order depends on the logical index alone. */
#include "backends/cpu/program.h"
#include "core/base/start.h"
#include "core/dispatch/dispatch.h"
#include "core/base/pool.h"

enum { CHUNK = 512, MAX_WIDTH = 128, FEW_REDUCED = 256, SLAB = 16 * REDUCE_BLOCK };

/* Axes in row-major order, neighbours joined where memory allows. */
typedef struct axes {
    int n;
    int64_t count;
    int64_t size[ETCH_MAX_DIMS], stride[ETCH_MAX_DIMS];
} axes;

typedef struct reduction {
    const isa_table *isa;
    reduce_kind kind;
    const reduction_info *fold;
    bool least; /* of arg-max and arg-min the latter */
    etch_dtype in_dtype, out_dtype, acc;
    int in_size, acc_size; /* bytes */
    strip_fn step[4];      /* from storage to the accumulator's type */
    int nsteps;
    const char *in;
    char *out;
    axes kept, reduced;
    bool columns;
    int64_t inner;  /* extent of the axis that strips of columns run along */
    int64_t width;  /* outputs of a unit, at most */
    int64_t strips; /* units along that axis */
    int64_t units, blocks;
    char *partials; /* [unit][block][width] when blocks are done in parallel */
} reduction;

typedef struct wide_buffer {
    char bytes[CHUNK * 8] __attribute__((aligned(64)));
} wide_buffer;

/* ---- axes ---- */

static void add_axis(axes *a, int64_t size, int64_t stride) {
    a->count *= size;
    if (size == 1) return;
    if (a->n > 0 && a->stride[a->n - 1] == stride * size) {
        a->size[a->n - 1] *= size, a->stride[a->n - 1] = stride;
        return;
    }
    a->size[a->n] = size, a->stride[a->n++] = stride;
}

static int64_t axes_offset(const axes *a, int64_t flat) {
    int64_t offset = 0;
    for (int d = a->n - 1; d >= 0; d--) {
        offset += flat % a->size[d] * a->stride[d];
        flat /= a->size[d];
    }
    return offset;
}

static int64_t magnitude(int64_t v) { return v < 0 ? -v : v; }
static int64_t inner_stride(const axes *a) { return a->n ? a->stride[a->n - 1] : 0; }

/* ---- reading: n <= CHUNK elements in the accumulator's type ---- */

/* Brings raw elements at p into the accumulator's type, in `stage` if anything is to be done. */
static const void *to_acc(const reduction *r, const void *p, int64_t n, wide_buffer *stage) {
    for (int i = 0; i < r->nsteps; i++) {
        void *to = stage[i & 1].bytes;
        r->step[i](to, p, NULL, NULL, n);
        p = to;
    }
    return p;
}

static void gather(const reduction *r, void *dst, const char *p, int64_t stride, int64_t n) {
    int log2 = etch__size_log2(r->in_dtype);
    if (stride == 0) r->isa->strips->fill[log2](dst, p, n);
    else r->isa->strips->gather[log2](dst, p, stride, n);
}

/* Elements first .. first + n of the reduced axes, for the output at `base`. */
static const void *read_row(const reduction *r, int64_t base, int64_t first, int64_t n,
                            wide_buffer *stage) {
    const axes *a = &r->reduced;
    if (a->n <= 1 && inner_stride(a) == 1)
        return to_acc(r, r->in + (base + first) * r->in_size, n, stage);
    char *dst = stage[2].bytes;
    int64_t inner = a->n ? a->size[a->n - 1] : 1;
    for (int64_t done = 0; done < n;) {
        int64_t flat = first + done, run = inner - flat % inner;
        if (run > n - done) run = n - done;
        const char *p = r->in + (base + axes_offset(a, flat)) * r->in_size;
        gather(r, dst + done * r->in_size, p, inner_stride(a), run);
        done += run;
    }
    return to_acc(r, dst, n, stage);
}

/* Columns of one reduced element: n neighbours along the innermost kept axis. */
static const void *read_columns(const reduction *r, int64_t offset, int64_t n, wide_buffer *stage) {
    const char *p = r->in + offset * r->in_size;
    int64_t stride = inner_stride(&r->kept);
    if (stride == 1) return to_acc(r, p, n, stage);
    gather(r, stage[2].bytes, p, stride, n);
    return to_acc(r, stage[2].bytes, n, stage);
}

/* The same of `rows` reduced elements with `step` between them: rows * n <= CHUNK elements. */
static const void *read_tile(const reduction *r, int64_t offset, int64_t step, int64_t rows,
                             int64_t n, wide_buffer *stage) {
    const char *p = r->in + offset * r->in_size;
    int64_t stride = inner_stride(&r->kept);
    if (stride == 1 && (rows == 1 || step == n)) return to_acc(r, p, rows * n, stage);
    strip_shape shape = {rows, n, 1, step, stride};
    r->isa->strips->prim[STRIP_MOVE][r->in_dtype](stage[2].bytes, p, &shape, NULL, n);
    return to_acc(r, stage[2].bytes, rows * n, stage);
}

/* How many rows are read at a time: as many as there is room for, but where columns lie side by
 * side and are enough, and would be copied. */
static int64_t rows_at_once(const reduction *r, int64_t width) {
    bool together = inner_stride(&r->kept) == 1;
    if (together && width >= 64 && inner_stride(&r->reduced) != width) return 1;
    return at_most(CHUNK / width, REDUCE_LANES);
}

/* ---- rows that lie across memory ----
 *
 * Where neighbours in memory are elements of different rows, one row after the other would fetch
 * each line of the cache once for every element in it: rows are turned together, blocks of them. */

typedef struct slab {
    char *bytes;                  /* NULL: rows are read as they lie */
    int64_t offset, first, count; /* of which output, and which of its reduced elements */
} slab;

static bool across(const reduction *r) {
    const axes *a = &r->reduced;
    return !r->columns && a->n == 2 && a->stride[1] != 0 && a->stride[0] != 0 &&
           magnitude(a->stride[0]) < magnitude(a->stride[1]) && a->count > REDUCE_BLOCK;
}

/* Without memory for it rows are read as they lie. */
static slab begin_slab(const reduction *r) {
    slab s = {NULL, 0, 0, 0};
    if (across(r))
        s.bytes = etch__quiet_malloc((size_t)(at_most(SLAB, r->reduced.count) * r->in_size));
    return s;
}

/* As many rows at a time as have elements in a line of the cache. */
static void turn_rows(const reduction *r, slab *s) {
    const axes *a = &r->reduced;
    int64_t cols = a->size[1];
    for (int64_t done = 0, n; done < s->count; done += n) {
        int64_t flat = s->first + done, left = s->count - done, col = flat % cols;
        int64_t rows = col == 0 && left >= cols ? at_most(left / cols, 64 / r->in_size) : 1;
        int64_t width = at_most(cols - col, left);
        strip_shape shape = {rows, cols, 1, a->stride[0], a->stride[1]};
        const char *from = r->in + (s->offset + axes_offset(a, flat)) * r->in_size;
        r->isa->strips->prim[STRIP_MOVE][r->in_dtype](s->bytes + done * r->in_size, from, &shape,
                                                      NULL, width);
        n = rows * width;
    }
}

/* ---- units ---- */

typedef struct unit {
    const reduction *r;
    int64_t first;  /* its first output */
    int64_t width;  /* its outputs */
    int64_t offset; /* of their first element, in elements */
    slab *turned;
    int64_t end; /* of the reduced elements that its thread takes */
} unit;

/* The n elements of a row from `first` on, one after the other; NULL: they are read as they lie. */
static const char *turned(const unit *u, int64_t first, int64_t n) {
    slab *s = u->turned;
    if (!s->bytes) return NULL;
    if (s->offset != u->offset || first < s->first || first + n > s->first + s->count) {
        *s = (slab){s->bytes, u->offset, first, at_most(SLAB, u->end - first)};
        turn_rows(u->r, s);
    }
    return s->bytes + (first - s->first) * u->r->in_size;
}

static unit unit_at(const reduction *r, int64_t k) {
    unit u = {r, k, 1, 0, NULL, r->reduced.count};
    if (r->columns) {
        int64_t column = k % r->strips * r->width;
        u.first = k / r->strips * r->inner + column;
        u.width = r->inner - column < r->width ? r->inner - column : r->width;
    }
    u.offset = axes_offset(&r->kept, u.first);
    return u;
}

static int64_t block_length(const reduction *r, int64_t block) {
    int64_t rest = r->reduced.count - block * REDUCE_BLOCK;
    return rest < REDUCE_BLOCK ? rest : REDUCE_BLOCK;
}

static void row_block(const reduction *r, const unit *u, int64_t block, void *result) {
    const reduce_table *table = r->isa->reduce;
    int64_t lanes[REDUCE_LANES], n = block_length(r, block), first = block * REDUCE_BLOCK;
    wide_buffer stage[3];
    const char *row = turned(u, first, n);
    bool side_by_side = row || (r->reduced.n <= 1 && inner_stride(&r->reduced) == 1);
    int64_t chunk = !r->nsteps && side_by_side ? REDUCE_BLOCK : CHUNK;
    table->start[r->acc](lanes, REDUCE_LANES, r->fold->start);
    for (int64_t i = 0; i < n; i += chunk) {
        int64_t count = n - i < chunk ? n - i : chunk;
        const void *x = row ? to_acc(r, row + i * r->in_size, count, stage)
                            : read_row(r, u->offset, first + i, count, stage);
        table->lanes[r->fold->fold][r->acc](lanes, x, count);
    }
    table->fold[r->fold->fold][r->acc](lanes, n < REDUCE_LANES ? n : REDUCE_LANES, 1);
    memcpy(result, lanes, (size_t)r->acc_size);
}

static strip_fn combine_of(const reduction *r) {
    return r->isa->strips->prim[r->fold->prim][r->acc];
}

static void column_block(const reduction *r, const unit *u, int64_t block, void *result) {
    const reduce_table *table = r->isa->reduce;
    const axes *a = &r->reduced;
    char lanes[REDUCE_LANES * CHUNK] __attribute__((aligned(64)));
    int64_t n = block_length(r, block), first = block * REDUCE_BLOCK;
    int64_t nlanes = n < REDUCE_LANES ? n : REDUCE_LANES, pitch = u->width * r->acc_size;
    int64_t inner = a->n ? a->size[a->n - 1] : 1, step = inner_stride(a);
    int64_t at_once = rows_at_once(r, u->width), rows;
    strip_fn combine = combine_of(r);
    wide_buffer stage[3];
    table->start[r->acc](lanes, nlanes * u->width, r->fold->start);
    for (int64_t i = 0, offset = 0, left = 0; i < n;
         i += rows, left -= rows, offset += rows * step) {
        if (left == 0) { /* the next run along the innermost reduced axis */
            left = at_most(inner - (first + i) % inner, n - i);
            offset = u->offset + axes_offset(a, first + i);
        }
        rows = at_most(at_most(left, at_once), REDUCE_LANES - i % REDUCE_LANES);
        char *lane = lanes + i % REDUCE_LANES * pitch;
        const void *x = read_tile(r, offset, step, rows, u->width, stage);
        combine(lane, lane, x, NULL, rows * u->width);
    }
    table->fold[r->fold->fold][r->acc](lanes, nlanes, u->width);
    memcpy(result, lanes, (size_t)pitch);
}

static void do_block(const void *ctx, int64_t block, void *result) {
    const unit *u = ctx;
    if (u->r->columns) column_block(u->r, u, block, result);
    else row_block(u->r, u, block, result);
}

static void do_unit(const reduction *r, const unit *u, void *result) {
    etch__fold_blocks(combine_of(r), r->blocks, u->width, u->width * r->acc_size, do_block, u,
                      result);
}

/* ---- results ---- */

/* Epilogue of n <= CHUNK accumulated values (which it overwrites), stored from output `first` on.
 */
static void finish(const reduction *r, void *values, int64_t first, int64_t n) {
    const strip_table *table = r->isa->strips;
    wide_buffer other;
    etch_dtype compute = etch__compute_type(r->out_dtype);
    if (r->kind == REDUCE_MEAN) {
        uint64_t count = etch__scalar_cell(etch_scalar_int(r->reduced.count), r->acc);
        table->fill[etch__size_log2(r->acc)](other.bytes, &count, n);
        table->prim[PRIM_DIV][r->acc](values, values, other.bytes, NULL, n);
    }
    if (compute != r->acc) {
        table->convert[r->acc][compute](other.bytes, values, NULL, NULL, n);
        values = other.bytes;
    }
    char *out = r->out + (first << etch__size_log2(r->out_dtype));
    etch__store_rounded(r->out_dtype, out, values, n);
}

static void units_task(void *ctx, int64_t begin, int64_t end) {
    const reduction *r = ctx;
    wide_buffer values;
    slab rows = begin_slab(r);
    for (int64_t k = begin; k < end;) {
        unit u = unit_at(r, k);
        int64_t first = u.first, n = 0;
        do { /* neighbouring outputs go through the epilogue together */
            u.turned = &rows;
            do_unit(r, &u, values.bytes + n * r->acc_size);
            n += u.width, k++;
            if (k < end) u = unit_at(r, k);
        } while (k < end && n + u.width <= CHUNK && u.first == first + n);
        finish(r, values.bytes, first, n);
    }
    etch__free(rows.bytes);
}

static void blocks_task(void *ctx, int64_t begin, int64_t end) {
    const reduction *r = ctx;
    slab rows = begin_slab(r);
    for (int64_t k = begin; k < end; k++) {
        unit u = unit_at(r, k / r->blocks);
        u.turned = &rows;
        u.end = at_most(u.end, (k % r->blocks + end - k) * REDUCE_BLOCK);
        do_block(&u, k % r->blocks, r->partials + k * r->width * r->acc_size);
    }
    etch__free(rows.bytes);
}

static void fold_partials(const reduction *r) {
    strip_fn combine = combine_of(r);
    int64_t pitch = r->width * r->acc_size;
    for (int64_t k = 0; k < r->units; k++) {
        unit u = unit_at(r, k);
        char *p = r->partials + k * r->blocks * pitch;
        for (int64_t s = 1; s < r->blocks; s *= 2)
            for (int64_t i = 0; i + s < r->blocks; i += 2 * s)
                combine(p + i * pitch, p + i * pitch, p + (i + s) * pitch, NULL, u.width);
        finish(r, p, u.first, u.width);
    }
}

/* ---- arg-max: the same units, another accumulator ---- */

typedef struct best_so_far {
    int64_t value; /* of the accumulator's type */
    int64_t index;
} best_so_far;

enum { ARGMAX_BLOCK = 65536 };

static best_so_far row_argmax(const reduction *r, int64_t offset, int64_t begin, int64_t end) {
    const reduce_table *table = r->isa->reduce;
    wide_buffer stage[3];
    bool in_place = !r->nsteps && r->reduced.n <= 1 && inner_stride(&r->reduced) == 1;
    int64_t chunk = in_place ? ARGMAX_BLOCK : CHUNK;
    best_so_far best = {0, -1};
    for (int64_t i = begin; i < end; i += chunk) {
        int64_t n = end - i < chunk ? end - i : chunk;
        const char *x = read_row(r, offset, i, n, stage);
        int64_t k = table->best[r->least][r->acc](x, n), index = i + k;
        x += k * r->acc_size;
        if (best.index < 0) memcpy(&best.value, x, (size_t)r->acc_size), best.index = index;
        else table->best_columns[r->least][r->acc](&best.value, &best.index, x, &index, 1);
    }
    return best;
}

static void column_argmax(const reduction *r, const unit *u, int64_t *index) {
    const axes *a = &r->reduced;
    char best[CHUNK];
    int64_t now[MAX_WIDTH];
    wide_buffer stage[3];
    for (int64_t i = 0; i < a->count; i++) {
        const void *x = read_columns(r, u->offset + axes_offset(a, i), u->width, stage);
        for (int64_t j = 0; j < u->width; j++) now[j] = i;
        if (i == 0) {
            memcpy(best, x, (size_t)(u->width * r->acc_size));
            memcpy(index, now, (size_t)u->width * sizeof *index);
        } else {
            r->isa->reduce->best_columns[r->least][r->acc](best, index, x, now, u->width);
        }
    }
}

static void argmax_task(void *ctx, int64_t begin, int64_t end) {
    const reduction *r = ctx;
    for (int64_t k = begin; k < end; k++) {
        unit u = unit_at(r, k);
        int64_t *out = (int64_t *)r->out + u.first;
        if (r->columns) column_argmax(r, &u, out);
        else *out = row_argmax(r, u.offset, 0, r->reduced.count).index;
    }
}

static void argmax_blocks_task(void *ctx, int64_t begin, int64_t end) {
    const reduction *r = ctx;
    for (int64_t k = begin; k < end; k++) {
        unit u = unit_at(r, k / r->blocks);
        int64_t from = k % r->blocks * ARGMAX_BLOCK, to = from + ARGMAX_BLOCK;
        if (to > r->reduced.count) to = r->reduced.count;
        ((best_so_far *)r->partials)[k] = row_argmax(r, u.offset, from, to);
    }
}

static void merge_argmax(const reduction *r) {
    const best_so_far *p = (const best_so_far *)r->partials;
    for (int64_t k = 0; k < r->units; k++, p += r->blocks) {
        best_so_far best = p[0];
        for (int64_t b = 1; b < r->blocks; b++)
            r->isa->reduce->best_columns[r->least][r->acc](&best.value, &best.index, &p[b].value,
                                                           &p[b].index, 1);
        ((int64_t *)r->out)[unit_at(r, k).first] = best.index;
    }
}

/* ---- planning ---- */

static void add_step(reduction *r, strip_fn step) {
    if (step) r->step[r->nsteps++] = step;
}

/* Widened, converted and rounded to dtype `element`, converted to the accumulator's type. */
static void plan_steps(reduction *r, etch_dtype element) {
    const strip_table *table = r->isa->strips;
    etch_dtype from = etch__compute_type(r->in_dtype), to = etch__compute_type(element);
    add_step(r, table->widen[r->in_dtype]);
    if (from != to) add_step(r, table->convert[from][to]);
    if (element != r->in_dtype && element == ETCH_BF16)
        add_step(r, table->prim[PRIM_ROUND_BF16][ETCH_F32]);
    if (element != r->in_dtype && element == ETCH_F16)
        add_step(r, table->prim[PRIM_ROUND_F16][ETCH_F32]);
    if (to != r->acc) add_step(r, table->convert[to][r->acc]);
}

static void plan_access(reduction *r, const etch_tensor *in, uint32_t mask, etch_dtype element) {
    r->kept.count = r->reduced.count = 1;
    for (int d = 0; d < in->ndim; d++)
        add_axis(mask >> d & 1 ? &r->reduced : &r->kept, in->size[d], in->stride[d]);
    plan_steps(r, element);
    r->in_size = 1 << etch__size_log2(r->in_dtype), r->acc_size = 1 << etch__size_log2(r->acc);
}

/* Columns where kept elements lie closer in memory, or where there is too little to reduce to be
 * worth 64 lanes for each output. */
static void plan_units(reduction *r) {
    const axes *k = &r->kept;
    r->columns = k->n > 0 && (r->reduced.count <= FEW_REDUCED ||
                              magnitude(inner_stride(k)) < magnitude(inner_stride(&r->reduced)));
    r->width = 1, r->strips = 1, r->units = k->count;
    if (!r->columns) return;
    r->inner = k->size[k->n - 1];
    int64_t most = CHUNK / r->acc_size < MAX_WIDTH ? CHUNK / r->acc_size : MAX_WIDTH;
    r->width = r->inner < most ? r->inner : most;
    r->strips = (r->inner + r->width - 1) / r->width;
    r->units = k->count / r->inner * r->strips;
}

/* Units of about 30 000 elements are worth a thread's wake-up. */
static int64_t grain_of(int64_t elements_each) {
    return elements_each >= 32768 ? 1 : 32768 / (elements_each > 0 ? elements_each : 1) + 1;
}

static bool too_few_units(const reduction *r) {
    int threads = etch_num_threads();
    return threads > 1 && r->blocks > 1 && r->units < 4 * (int64_t)threads;
}

static etch_status run_argmax(reduction *r) {
    int64_t n = r->reduced.count;
    r->blocks = r->columns ? 1 : (n + ARGMAX_BLOCK - 1) / ARGMAX_BLOCK;
    if (!too_few_units(r)) {
        etch__parallel(r->units, grain_of(n * r->width), argmax_task, r);
        return ETCH_OK;
    }
    r->partials = etch__malloc((size_t)(r->units * r->blocks) * sizeof(best_so_far));
    if (!r->partials) return ETCH_ERR_OUT_OF_MEMORY;
    etch__parallel(r->units * r->blocks, 1, argmax_blocks_task, r);
    merge_argmax(r);
    etch__free(r->partials);
    return ETCH_OK;
}

static etch_status run_fold(reduction *r) {
    int64_t n = r->reduced.count;
    r->blocks = (n + REDUCE_BLOCK - 1) / REDUCE_BLOCK;
    if (!too_few_units(r)) {
        etch__parallel(r->units, grain_of(n * r->width), units_task, r);
        return ETCH_OK;
    }
    r->partials = etch__malloc((size_t)(r->units * r->blocks * r->width * r->acc_size));
    if (!r->partials) return ETCH_ERR_OUT_OF_MEMORY;
    etch__parallel(r->units * r->blocks, grain_of(REDUCE_BLOCK * r->width), blocks_task, r);
    fold_partials(r);
    etch__free(r->partials);
    return ETCH_OK;
}

/* What the fold starts from, means 0/0; a largest element does not exist. */
static etch_status reduce_nothing(const op_call *call, reduction *r) {
    if (!r->fold->wide)
        return etch__error_at(call->site, ETCH_ERR_EMPTY, "%s: expected at least one element",
                              etch__ops[call->op].name);
    wide_buffer values;
    for (int64_t i = 0; i < r->kept.count; i += CHUNK) {
        r->isa->reduce->start[r->acc](&values, CHUNK, r->fold->start);
        finish(r, values.bytes, i, r->kept.count - i < CHUNK ? r->kept.count - i : CHUNK);
    }
    return ETCH_OK;
}

static etch_status reduce(const op_call *call, etch_tensor *const *outs) {
    etch_tensor *in = call->in[0], *out = outs[0];
    reduction r = {.isa = etch__isa_table()};
    uint32_t mask;
    bool keepdim;
    if (out->numel == 0) return ETCH_OK;
    reduce_plan plan = etch__reduce_plan(call, out->dtype);
    etch__reduce_axes(call, &mask, &keepdim);
    r.kind = plan.kind, r.acc = plan.acc, r.fold = etch__reduction(plan.kind);
    r.least = plan.kind == REDUCE_ARGMIN;
    r.in_dtype = in->dtype, r.out_dtype = out->dtype;
    r.out = etch__ptr(out);
    plan_access(&r, in, mask, plan.element);
    if (r.reduced.count == 0) return reduce_nothing(call, &r);
    r.in = etch__ptr(in);
    plan_units(&r);
    return r.kind == REDUCE_ARGMAX || r.least ? run_argmax(&r) : run_fold(&r);
}

void etch__start_cpu_reductions(void) {
    for (int op = 0; op < OP_COUNT; op++)
        if (etch__ops[op].kind == KIND_REDUCTION) etch__register_kernel(op, reduce);
}
