/* Operators with an index tensor on a device, and division with a rest: what may fail on its data.
 *
 * Reading, a thread has an element; writing, a thread has places of a line that no other thread
 * writes, and goes along the line's indices in order: where one comes twice the last value stays,
 * or all are added in that order, as on the CPU. What is out of range is left out and noted
 * (faults.h); a tensor that the user has already is written only where a kernel before has found
 * all of the index right. */
#include "backends/cuda/faults.h"
#include "core/base/start.h"
#include "backends/cuda/text.h"
#include "core/tensor/element.h"
#include "core/ops/rules.h"

/* ---- the index ---- */

#include "embedded/index_check.cu.inc"

/* n: how many places there are; wraps: negative indices count from the end. */
static etch_status note_index(const op_call *call, cuda_stream *s, int64_t n, bool wraps,
                              fault_args *check) {
    const fault_note note = {call->site, wraps ? -n : 0, n - 1, call->op, FAULT_INDEX};
    return etch__cuda_check(s, &note, check);
}

/* All of the index, before anything is written. */
static etch_status check_index(cuda_stream *s, const etch_tensor *t, int64_t n, bool wraps,
                               const fault_args *check) {
    struct {
        fault_args check;
        const void *index;
        text_dims dims;
        int64_t n, low, high;
    } a = {*check, etch__ptr(t), {0}, t->numel, wraps ? -n : 0, n - 1};
    kernel_text k = {
        .symbol = "etch_checked", .body = index_check_text, .ndtypes = 1, .checks = true};
    k.dtype[0] = t->dtype;
    etch__cuda_dims(&a.dims, t);
    return a.n ? etch__cuda_run_text(s, &k, (a.n + 255) / 256, 256, &a) : ETCH_OK;
}

/* ---- the walk ---- */

#include "embedded/index_walk.cu.inc"

typedef enum direction { READ_INDEXED, WRITE_INDEXED, ADD_INDEXED } direction;

typedef struct walk_axes {
    int64_t n, size[ETCH_MAX_DIMS], place[ETCH_MAX_DIMS], other[ETCH_MAX_DIMS],
        number[ETCH_MAX_DIMS], rank[ETCH_MAX_DIMS];
} walk_axes;

typedef struct walk_args {
    fault_args check;
    void *indexed, *values;
    const void *index;
    walk_axes lines, run;
    int64_t nlines, nrun, step, n, low, parts;
    uint64_t cell;
} walk_args;

/* Dimension d, counted from the end of `all` dimensions, of a tensor that broadcasts. */
static int64_t broadcast_stride(const etch_tensor *t, int d, int all) {
    int e = d - (all - t->ndim);
    return e < 0 || t->size[e] == 1 ? 0 : t->stride[e];
}

typedef struct axis_steps {
    int64_t place, other, number, rank;
} axis_steps;

static void add_axis(walk_axes *x, int64_t *total, int64_t size, axis_steps by) {
    int64_t k = x->n++;
    x->size[k] = size, x->place[k] = by.place, x->other[k] = by.other;
    x->number[k] = by.number, x->rank[k] = by.rank;
    *total *= size;
}

static void start_walk(walk_args *w, const etch_tensor *indexed, const etch_tensor *index,
                       int dim) {
    memset(w, 0, sizeof *w);
    w->nlines = w->nrun = 1;
    w->indexed = etch__ptr(indexed), w->index = etch__ptr(index);
    w->step = etch__place_stride(indexed, dim), w->n = etch__place_size(indexed, dim);
}

/* The box has the index's sizes, or those of `indexed` with a vector of indices along dim. */
static void set_walk(walk_args *w, const etch_tensor *indexed, const etch_tensor *index,
                     const etch_tensor *other, int dim, bool vector) {
    int all = etch__place_dims(indexed);
    int64_t rank[ETCH_MAX_DIMS] = {1};
    if (!vector) etch__row_major(index->ndim, index->size, rank);
    start_walk(w, indexed, index, dim);
    for (int d = 0; d < all; d++) {
        axis_steps by = {.other = other ? broadcast_stride(other, d, all) : 0,
                         .number = etch__place_stride(index, vector ? 0 : d),
                         .rank = rank[vector ? 0 : d]};
        int64_t line = etch__place_size(vector ? indexed : index, d);
        if (d == dim) {
            add_axis(&w->run, &w->nrun, vector ? index->numel : line, by);
            continue;
        }
        if (vector) by.number = by.rank = 0;
        by.place = etch__place_stride(indexed, d);
        add_axis(&w->lines, &w->nlines, line, by);
    }
}

/* index_put: the index's own dimensions instead of dimension 0. */
static void set_put_walk(walk_args *w, const etch_tensor *out, const etch_tensor *index,
                         const etch_tensor *other) {
    int all = index->ndim + out->ndim - 1;
    int64_t rank[ETCH_MAX_DIMS];
    etch__row_major(index->ndim, index->size, rank);
    start_walk(w, out, index, 0);
    for (int d = 0; d < all; d++) {
        int e = d - index->ndim + 1;
        axis_steps by = {.other = broadcast_stride(other, d, all)};
        if (e < 1) {
            by.number = index->stride[d], by.rank = rank[d];
            add_axis(&w->run, &w->nrun, index->size[d], by);
        } else {
            by.place = out->stride[e];
            add_axis(&w->lines, &w->nlines, out->size[e], by);
        }
    }
}

/* tested: the kernel does nothing where the run has failed before. A walk that comes to no index
 * leaves these to be checked alone. */
typedef struct walk_way {
    direction way;
    bool wraps, tested;
} walk_way;

/* How many threads share a run: each looks at all of its indices. */
static int64_t parts_of(const walk_args *w, direction way) {
    int64_t parts = 1;
    if (way == READ_INDEXED) return parts;
    while (parts < 64 && w->nlines * parts < 1 << 16 && parts * 16 < w->nrun) parts *= 2;
    return parts;
}

static etch_status run_walk(const op_call *call, cuda_stream *s, walk_args *w, etch_dtype dtype,
                            const walk_way *how) {
    const etch_tensor *index = call->in[1];
    w->parts = parts_of(w, how->way);
    int64_t units = w->nlines * (how->way == READ_INDEXED ? w->nrun : w->parts);
    etch_status status = index->numel ? note_index(call, s, w->n, how->wraps, &w->check) : ETCH_OK;
    bool walks = w->nlines && w->nrun && index->numel; /* an empty index may have any rank */
    if (status == ETCH_OK && (how->tested || !walks))
        status = check_index(s, index, w->n, how->wraps, &w->check);
    if (status != ETCH_OK || !walks) return status;
    w->low = how->wraps ? -w->n : 0;
    kernel_text k = {.symbol = "etch_walk", .body = index_walk_text, .ndtypes = 2, .checks = true};
    k.dtype[0] = dtype, k.dtype[1] = index->dtype;
    snprintf(k.defines, sizeof k.defines, "#define WAY %d\n#define TESTED %d\n", how->way,
             how->tested);
    return etch__cuda_run_text(s, &k, (units + 127) / 128, 128, w);
}

/* ---- reading ---- */

static etch_status read_kernel(const op_call *call, etch_tensor *const *outs) {
    static const walk_way how = {READ_INDEXED, false, false};
    etch_tensor *self = call->in[0], *index = call->in[1], *out = outs[0];
    int dim = etch__place_dim(call);
    cuda_stream *s = etch__cuda_begin(call, out);
    if (!s) return etch__tls.status;
    walk_args w;
    set_walk(&w, self, index, NULL, dim, call->op == OP_INDEX_SELECT);
    /* The result's own strides, axes of one element included. */
    for (int d = 0, line = 0; d < etch__place_dims(out); d++)
        *(d == dim ? &w.run.other[0] : &w.lines.other[line++]) = etch__place_stride(out, d);
    w.values = etch__ptr(out);
    return run_walk(call, s, &w, out->dtype, &how);
}

/* Over a flat copy where self has gaps. */
static etch_status take_kernel(const op_call *call, etch_tensor *const *outs) {
    static const walk_way how = {READ_INDEXED, true, false};
    etch_tensor *self = call->in[0], *index = call->in[1], *out = outs[0], flat, *dense;
    cuda_stream *s = etch__cuda_begin(call, out);
    etch_status status = s ? etch__place_dense(self, &flat, &dense, NULL) : etch__tls.status;
    if (!s) return status;
    if (status == ETCH_OK) {
        walk_args w;
        int64_t rank[ETCH_MAX_DIMS];
        etch__row_major(index->ndim, index->size, rank);
        start_walk(&w, dense, index, 0);
        w.step = 1, w.n = self->numel, w.values = etch__ptr(out);
        for (int d = 0; d < index->ndim; d++) {
            axis_steps by = {0, out->stride[d], index->stride[d], rank[d]};
            add_axis(&w.run, &w.nrun, index->size[d], by);
        }
        status = run_walk(call, s, &w, out->dtype, &how);
    }
    etch__place_free(&flat);
    return status;
}

/* ---- writing ---- */

static etch_status write_walk(const op_call *call, cuda_stream *s, etch_tensor *out,
                              etch_tensor *index, etch_tensor *values) {
    int rule = etch__ops[call->op].srule;
    bool put = rule == SRULE_INDEX_PUT;
    const walk_way how = {.way = etch__index_adds(call) ? ADD_INDEXED : WRITE_INDEXED,
                          .wraps = put || call->op == OP_INDEX_FILL || call->op == OP_INDEX_FILL_,
                          .tested = etch__ops[call->op].kind == KIND_INPLACE};
    walk_args w;
    if (put) set_put_walk(&w, out, index, values);
    else set_walk(&w, out, index, values, etch__place_dim(call), rule == SRULE_INDEX_COPY);
    if (values) w.values = etch__ptr(values);
    else w.cell = etch__scalar_cell(call->sc[0], out->dtype);
    return run_walk(call, s, &w, out->dtype, &how);
}

static etch_status write_kernel(const op_call *call, etch_tensor *const *outs) {
    etch_tensor *out = outs[0], copies[2], *index = NULL, *values = NULL;
    cuda_stream *s = etch__cuda_begin(call, out);
    if (!s) return etch__tls.status;
    memset(copies, 0, sizeof copies);
    etch_status status = etch__place_apart(call->in[1], out, &copies[0], &index, NULL);
    if (status == ETCH_OK && !call->nsc)
        status = etch__place_apart(call->in[2], out, &copies[1], &values, NULL);
    if (status == ETCH_OK && etch__ops[call->op].kind != KIND_INPLACE)
        status = etch__place_copy(out, call->in[0], call->site);
    if (status == ETCH_OK) status = write_walk(call, s, out, index, values);
    for (int i = 0; i < 2; i++) etch__place_free(&copies[i]);
    return status;
}

/* ---- division with a rest ---- */

#include "embedded/divide.cu.inc"

/* t's strides over the result's sizes. */
static void spread(text_dims *d, const etch_tensor *t, const etch_tensor *out) {
    etch__cuda_dims(d, out);
    for (int k = 0; k < out->ndim; k++) d->stride[k] = broadcast_stride(t, k, out->ndim);
}

/* A scalar says at once that it is 0. */
static etch_status note_divisor(const op_call *call, cuda_stream *s, uint64_t cell,
                                fault_args *check) {
    const fault_note note = {.site = call->site, .op = call->op, .kind = FAULT_DIVISOR};
    if (call->nin == 2) return etch__cuda_check(s, &note, check);
    if (cell) return ETCH_OK;
    return etch__error_at(call->site, ETCH_ERR_DIVISION_BY_ZERO, "%s: an integer is divided by 0",
                          etch__ops[call->op].name);
}

static etch_status divide(const op_call *call, etch_tensor *const *outs) {
    etch_tensor *out = outs[0];
    etch_dtype d = out->dtype;
    if (!out->numel) return ETCH_OK;
    bool real = etch__is_float(d);
    /* An operand that is rounded to a half type first. */
    for (int i = 0; i < call->nin && d != etch__compute_type(d); i++)
        if (call->in[i]->dtype != d) return etch__cuda_by_plan(call, outs);
    cuda_stream *s = etch__cuda_begin(call, out);
    if (!s) return etch__tls.status;
    struct {
        fault_args check;
        const void *x, *y;
        void *out;
        text_dims xs, ys;
        int64_t n;
        uint64_t divisor;
    } a = {.x = etch__ptr(call->in[0]), .out = etch__ptr(out), .n = out->numel};
    bool two = call->nin == 2, quotient = false, floor = true;
    if (call->op == OP_FMOD_TENSOR || call->op == OP_FMOD_SCALAR) floor = false;
    if (call->op == OP_FLOOR_DIVIDE_TENSOR || call->op == OP_FLOOR_DIVIDE_SCALAR) quotient = true;
    /* As core/ops/expr.h: the divisor of a quotient is a factor, which half types do not round. */
    a.divisor = two ? 0 : etch__scalar_cell(call->sc[0], quotient ? etch__compute_type(d) : d);
    etch_status status = real ? ETCH_OK : note_divisor(call, s, a.divisor, &a.check);
    if (status != ETCH_OK) return status;
    spread(&a.xs, call->in[0], out);
    kernel_text k = {.symbol = "etch_divide", .body = divide_text, .ndtypes = 3, .checks = true};
    k.dtype[0] = call->in[0]->dtype, k.dtype[2] = d;
    k.dtype[1] = two ? call->in[1]->dtype : d;
    if (two) a.y = etch__ptr(call->in[1]), spread(&a.ys, call->in[1], out);
    snprintf(k.defines, sizeof k.defines,
             "#define QUOTIENT %d\n#define FLOOR %d\n#define REAL %d\n", quotient, floor, real);
    return etch__cuda_run_text(s, &k, (a.n + 255) / 256, 256, &a);
}

/* All of these check their data. */
void etch__start_cuda_index(void) {
    etch__cuda_register_checking(OP_INDEX_SELECT, read_kernel);
    etch__cuda_register_checking(OP_GATHER, read_kernel);
    etch__cuda_register_checking(OP_TAKE, take_kernel);
    for (int op = 0; op < OP_COUNT; op++) {
        int rule = etch__ops[op].srule;
        if (rule == SRULE_SCATTER || rule == SRULE_INDEX_COPY || rule == SRULE_INDEX_PUT)
            etch__cuda_register_checking(op, write_kernel);
        else if (etch__ops[op].kind == KIND_POINTWISE && etch__ops[op].flags & OPF_MAY_FAIL)
            etch__cuda_register_checking(op, divide);
    }
}
