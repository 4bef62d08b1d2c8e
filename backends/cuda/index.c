/* Operators with an index tensor on a device, and division with a rest: what may fail on its data.
 *
 * A first kernel finds the first fault and is waited for, so that the operator's own kernel writes
 * nothing where there is one, and the error is the CPU's. Then, reading, a thread has an element; writing,
 * a thread has a line of places that no other thread writes, and goes along its indices in order: where
 * one comes twice the last value stays, or all are added in that order, as on the CPU. */
#include "backends/cuda/text.h"
#include "core/element.h"
#include "core/rules.h"

/* ---- the index ---- */

static const char check_text[] =
    "struct etch_args {\n"
    "    const ETCH_0 *index;\n"
    "    u64 *fault;\n"
    "    etch_dims dims;\n"
    "    i64 n, low, high;\n"
    "};\n"
    "extern \"C\" __global__ void etch_check(const __grid_constant__ etch_args a) {\n"
    "    i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x;\n"
    "    for (; i < a.n; i += (i64)gridDim.x * blockDim.x) {\n"
    "        const i64 k = (i64)value(a.index[place(a.dims, i)]);\n"
    "        if (ZERO ? (k & a.high) == 0 : k < a.low || k > a.high) atomicMin(a.fault, (u64)i);\n"
    "    }\n"
    "}\n";

typedef struct check_args {
    const void *index;
    void *fault;
    text_dims dims;
    int64_t n, low, high;
} check_args;

/* Where the first element lies that is out of low .. high (zero: whose bits in `high` are all 0). */
static etch_status find_fault(cuda_stream *s, const etch_tensor *t, int64_t low, int64_t high,
                              bool zero, uint64_t *position) {
    fault_check c = {.position = UINT64_MAX};
    check_args a = {.index = etch__ptr(t), .n = t->numel, .low = low, .high = high};
    kernel_text k = {.symbol = "etch_check", .body = check_text, .ndtypes = 1};
    k.dtype[0] = (etch_dtype)t->dtype;
    snprintf(k.defines, sizeof k.defines, "#define ZERO %d\n", zero);
    etch__cuda_dims(&a.dims, t);
    etch_status status = t->numel ? etch__cuda_check_begin(s, &c) : ETCH_OK;
    if (status == ETCH_OK && t->numel) {
        a.fault = etch__cuda_address(c.word);
        status = etch__cuda_run_text(s, &k, (a.n + 255) / 256, 256, &a);
        if (status == ETCH_OK) status = etch__cuda_check_end(s, &c);
    }
    etch__cuda_free(c.word);
    *position = c.position;
    return status;
}

/* Element number i, row-major, of a tensor of integers. */
static int64_t element_at(const etch_tensor *t, uint64_t i) {
    host_view v;
    etch_tensor one = *t;
    for (int d = t->ndim - 1; d >= 0; d--) {
        one.offset += (int64_t)(i % (uint64_t)t->size[d]) * t->stride[d];
        i /= (uint64_t)t->size[d];
    }
    one.ndim = 0, one.numel = 1, one.contiguous = 1;
    const etch_tensor *h = etch__host_view(&one, &v);
    int64_t value = h ? etch__element_int((etch_dtype)t->dtype, etch__ptr(h)) : 0;
    etch__host_view_end(&v);
    return value;
}

static etch_status check_index(const op_call *call, cuda_stream *s, int64_t n, bool wraps) {
    uint64_t position;
    etch_status status = find_fault(s, call->in[1], wraps ? -n : 0, n - 1, false, &position);
    if (status != ETCH_OK || position == UINT64_MAX) return status;
    return etch__error_at(call->site, ETCH_ERR_INDEX,
                          "%s: expected indices from %lld to %lld, got %lld",
                          etch__ops[call->op].name, wraps ? (long long)-n : 0, (long long)n - 1,
                          (long long)element_at(call->in[1], position));
}

/* ---- the walk ---- */

/* `lines` are the places that do not depend on the index; along `run` it is followed. READ takes all
 * elements apart, the others go along a run in order. */
static const char walk_text[] =
    "struct etch_axes {\n"
    "    i64 n, size[8], place[8], other[8], number[8];\n"
    "};\n"
    "struct etch_args {\n"
    "    ETCH_0 *indexed, *values;\n"
    "    const ETCH_1 *index;\n"
    "    etch_axes lines, run;\n"
    "    i64 nlines, nrun, step, n;\n"
    "    VALUE_0 cell[8 / sizeof(VALUE_0)];\n"
    "};\n"
    "struct spot {\n"
    "    i64 place, other, number;\n"
    "};\n"
    "__device__ inline spot find(const etch_axes &x, i64 i) {\n"
    "    spot s = {0, 0, 0};\n"
    "    for (int d = (int)x.n - 1; d >= 0; d--) {\n"
    "        const i64 q = i / x.size[d], k = i - q * x.size[d];\n"
    "        s.place += k * x.place[d], s.other += k * x.other[d], s.number += k * x.number[d];\n"
    "        i = q;\n"
    "    }\n"
    "    return s;\n"
    "}\n"
    "__device__ inline void join(etch_bool *to, etch_bool v) { to->bits |= v.bits; }\n"
    "template <class T> __device__ inline void join(T *to, T v) { put(to, value(*to) + value(v)); "
    "}\n"
    "__device__ inline void step(const etch_args &a, const spot &line, i64 i) {\n"
    "    const spot r = find(a.run, i);\n"
    "    i64 k = (i64)value(a.index[line.number + r.number]);\n"
    "    if (k < 0) k += a.n;\n"
    "    ETCH_0 *at = a.indexed + line.place + r.place + k * a.step;\n"
    "    ETCH_0 *v = a.values ? a.values + line.other + r.other : 0;\n"
    "#if WAY == 0\n"
    "    *v = *at;\n"
    "#elif WAY == 1\n"
    "    if (v) *at = *v;\n"
    "    else put(at, a.cell[0]);\n"
    "#else\n"
    "    join(at, *v);\n"
    "#endif\n"
    "}\n"
    "extern \"C\" __global__ void etch_walk(const __grid_constant__ etch_args a) {\n"
    "    i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x;\n"
    "    const i64 stride = (i64)gridDim.x * blockDim.x;\n"
    "#if WAY == 0\n"
    "    for (; i < a.nlines * a.nrun; i += stride) {\n"
    "        const i64 r = i / a.nlines;\n"
    "        step(a, find(a.lines, i - r * a.nlines), r);\n"
    "    }\n"
    "#else\n"
    "    for (; i < a.nlines; i += stride) {\n"
    "        const spot line = find(a.lines, i);\n"
    "        for (i64 r = 0; r < a.nrun; r++) step(a, line, r);\n"
    "    }\n"
    "#endif\n"
    "}\n";

typedef enum direction { READ_INDEXED, WRITE_INDEXED, ADD_INDEXED } direction;

typedef struct walk_axes {
    int64_t n, size[ETCH_MAX_DIMS], place[ETCH_MAX_DIMS], other[ETCH_MAX_DIMS],
        number[ETCH_MAX_DIMS];
} walk_axes;

typedef struct walk_args {
    void *indexed, *values;
    const void *index;
    walk_axes lines, run;
    int64_t nlines, nrun, step, n;
    uint64_t cell;
} walk_args;

static int dims_of(const etch_tensor *t) { return t->ndim ? t->ndim : 1; }
static int64_t size_of(const etch_tensor *t, int d) { return t->ndim ? t->size[d] : 1; }
static int64_t stride_of(const etch_tensor *t, int d) { return t->ndim ? t->stride[d] : 1; }

/* Dimension d, counted from the end of `all` dimensions, of a tensor that broadcasts. */
static int64_t broadcast_stride(const etch_tensor *t, int d, int all) {
    int e = d - (all - t->ndim);
    return e < 0 || t->size[e] == 1 ? 0 : t->stride[e];
}

static void add_axis(walk_axes *x, int64_t *total, int64_t size, int64_t place, int64_t other,
                     int64_t number) {
    int64_t k = x->n++;
    x->size[k] = size, x->place[k] = place, x->other[k] = other, x->number[k] = number;
    *total *= size;
}

static void start_walk(walk_args *w, const etch_tensor *indexed, const etch_tensor *index,
                       int dim) {
    memset(w, 0, sizeof *w);
    w->nlines = w->nrun = 1;
    w->indexed = etch__ptr(indexed), w->index = etch__ptr(index);
    w->step = stride_of(indexed, dim), w->n = size_of(indexed, dim);
}

/* The box has the index's sizes, or those of `indexed` with a vector of indices along dim. */
static void set_walk(walk_args *w, const etch_tensor *indexed, const etch_tensor *index,
                     const etch_tensor *other, int dim, bool vector) {
    int all = dims_of(indexed);
    start_walk(w, indexed, index, dim);
    for (int d = 0; d < all; d++) {
        int64_t o = other ? broadcast_stride(other, d, all) : 0;
        int64_t number = !vector ? stride_of(index, d) : stride_of(index, 0);
        if (d == dim)
            add_axis(&w->run, &w->nrun, vector ? index->numel : size_of(index, d), 0, o, number);
        else
            add_axis(&w->lines, &w->nlines, size_of(vector ? indexed : index, d),
                     stride_of(indexed, d), o, vector ? 0 : number);
    }
}

/* index_put: the index's own dimensions instead of dimension 0. */
static void set_put_walk(walk_args *w, const etch_tensor *out, const etch_tensor *index,
                         const etch_tensor *other) {
    int all = index->ndim + out->ndim - 1;
    start_walk(w, out, index, 0);
    for (int d = 0; d < all; d++) {
        int e = d - index->ndim + 1;
        int64_t o = broadcast_stride(other, d, all);
        if (e < 1) add_axis(&w->run, &w->nrun, index->size[d], 0, o, index->stride[d]);
        else add_axis(&w->lines, &w->nlines, out->size[e], out->stride[e], o, 0);
    }
}

static etch_status run_walk(cuda_stream *s, walk_args *w, etch_dtype dtype, etch_dtype index,
                            direction way) {
    int64_t units = way == READ_INDEXED ? w->nlines * w->nrun : w->nlines;
    if (!w->nlines || !w->nrun) return ETCH_OK;
    kernel_text k = {.symbol = "etch_walk", .body = walk_text, .ndtypes = 2};
    k.dtype[0] = dtype, k.dtype[1] = index;
    snprintf(k.defines, sizeof k.defines, "#define WAY %d\n", way);
    return etch__cuda_run_text(s, &k, (units + 127) / 128, 128, w);
}

/* ---- reading ---- */

static etch_status read_kernel(const op_call *call, etch_tensor *const *outs) {
    etch_tensor *self = call->in[0], *index = call->in[1], *out = outs[0];
    int dim = etch__cuda_dim(call);
    cuda_stream *s = etch__cuda_begin(call, out);
    etch_status status = s ? check_index(call, s, size_of(self, dim), false) : etch__tls.status;
    if (status != ETCH_OK || !out->numel) return status;
    walk_args w;
    set_walk(&w, self, index, NULL, dim, call->op == OP_INDEX_SELECT);
    /* The result's own strides, axes of one element included. */
    for (int d = 0, line = 0; d < dims_of(out); d++)
        *(d == dim ? &w.run.other[0] : &w.lines.other[line++]) = stride_of(out, d);
    w.values = etch__ptr(out);
    return run_walk(s, &w, (etch_dtype)out->dtype, (etch_dtype)index->dtype, READ_INDEXED);
}

/* Over a flat copy where self has gaps. */
static etch_status take_kernel(const op_call *call, etch_tensor *const *outs) {
    etch_tensor *self = call->in[0], *index = call->in[1], *out = outs[0], flat, *dense;
    cuda_stream *s = etch__cuda_begin(call, out);
    etch_status status = s ? check_index(call, s, self->numel, true) : etch__tls.status;
    if (status != ETCH_OK || !out->numel) return status;
    status = etch__cuda_dense(self, &flat, &dense);
    if (status == ETCH_OK) {
        walk_args w;
        start_walk(&w, dense, index, 0);
        w.step = 1, w.n = self->numel, w.values = etch__ptr(out);
        for (int d = 0; d < index->ndim; d++)
            add_axis(&w.run, &w.nrun, index->size[d], 0, out->stride[d], index->stride[d]);
        status = run_walk(s, &w, (etch_dtype)out->dtype, (etch_dtype)index->dtype, READ_INDEXED);
    }
    etch__cuda_drop(&flat);
    return status;
}

/* ---- writing ---- */

static direction way_of(const op_call *call) {
    return etch__index_adds(call) ? ADD_INDEXED : WRITE_INDEXED;
}

/* t, or a copy of it where it lies in out's memory. */
static etch_status apart(etch_tensor *t, const etch_tensor *out, etch_tensor *copy,
                         etch_tensor **use) {
    *use = t;
    if (!etch__cuda_overlap(t, out)) return ETCH_OK;
    if (!etch__cuda_temporary(copy, (etch_dtype)t->dtype, t->ndim, t->size, t->device))
        return etch__tls.status;
    *use = copy;
    return etch__cuda_copy(copy, t, NULL);
}

static etch_status write_walk(const op_call *call, cuda_stream *s, etch_tensor *out,
                              etch_tensor *index, etch_tensor *values) {
    int rule = etch__ops[call->op].srule;
    walk_args w;
    if (rule == SRULE_INDEX_PUT) set_put_walk(&w, out, index, values);
    else set_walk(&w, out, index, values, etch__cuda_dim(call), rule == SRULE_INDEX_COPY);
    if (values) w.values = etch__ptr(values);
    else w.cell = etch__scalar_cell(call->sc[0], (etch_dtype)out->dtype);
    return run_walk(s, &w, (etch_dtype)out->dtype, (etch_dtype)index->dtype, way_of(call));
}

static etch_status write_kernel(const op_call *call, etch_tensor *const *outs) {
    etch_tensor *out = outs[0], copies[2], *index = NULL, *values = NULL;
    bool put = etch__ops[call->op].srule == SRULE_INDEX_PUT;
    bool wraps = put || call->op == OP_INDEX_FILL || call->op == OP_INDEX_FILL_;
    cuda_stream *s = etch__cuda_begin(call, out);
    if (!s) return etch__tls.status;
    memset(copies, 0, sizeof copies);
    etch_status status = check_index(call, s, size_of(out, put ? 0 : etch__cuda_dim(call)), wraps);
    if (status == ETCH_OK) status = apart(call->in[1], out, &copies[0], &index);
    if (status == ETCH_OK && !call->nsc) status = apart(call->in[2], out, &copies[1], &values);
    if (status == ETCH_OK && etch__ops[call->op].kind != KIND_INPLACE)
        status = etch__cuda_copy(out, call->in[0], call->site);
    if (status == ETCH_OK && out->numel && index->numel)
        status = write_walk(call, s, out, index, values);
    for (int i = 0; i < 2; i++) etch__cuda_drop(&copies[i]);
    return status;
}

/* ---- division with a rest ---- */

static const char divide_text[] =
    "struct etch_args {\n"
    "    const ETCH_0 *x;\n"
    "    const ETCH_1 *y;\n"
    "    ETCH_2 *out;\n"
    "    etch_dims xs, ys;\n"
    "    i64 n;\n"
    "    VALUE_2 divisor;\n"
    "};\n"
    "#if REAL\n"
    "/* From the exact rest, since the quotient itself may round up to a whole number. */\n"
    "__device__ inline VALUE_2 quotient(VALUE_2 a, VALUE_2 b, VALUE_2 r, bool crosses) {\n"
    "    const VALUE_2 plain = a / b;\n"
    "    VALUE_2 q = (a - r) / b;\n"
    "    if (crosses) q = q - 1;\n"
    "    VALUE_2 whole = floor(q);\n"
    "    if (q - whole > (VALUE_2)0.5) whole = whole + 1;\n"
    "    if (q == 0) whole = plain * 0;\n"
    "    return b == 0 ? plain : whole;\n"
    "}\n"
    "#endif\n"
    "extern \"C\" __global__ void etch_divide(const __grid_constant__ etch_args p) {\n"
    "    i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x;\n"
    "    for (; i < p.n; i += (i64)gridDim.x * blockDim.x) {\n"
    "        const VALUE_2 a = (VALUE_2)value(p.x[place(p.xs, i)]);\n"
    "        const VALUE_2 b = p.y ? (VALUE_2)value(p.y[place(p.ys, i)]) : p.divisor;\n"
    "#if REAL\n"
    "        const VALUE_2 r = fmod(a, b);\n"
    "        const bool crosses = r != 0 && (r < 0) != (b < 0);\n"
    "        put(p.out + i, QUOTIENT ? quotient(a, b, r, crosses) : FLOOR && crosses ? r + b : "
    "r);\n"
    "#else\n"
    "        const bool negates = (ETCH_2)-1 < 0 && b == (ETCH_2)-1;\n"
    "        ETCH_2 q = negates ? (ETCH_2)(0 - (u64)a) : (ETCH_2)(a / b);\n"
    "        ETCH_2 r = negates ? (ETCH_2)0 : (ETCH_2)(a % b);\n"
    "        if (FLOOR && r != 0 && (r < 0) != (b < 0)) q = (ETCH_2)(q - 1), r = (ETCH_2)(r + b);\n"
    "        p.out[i] = QUOTIENT ? q : r;\n"
    "#endif\n"
    "    }\n"
    "}\n";

/* t's strides over the result's sizes. */
static void spread(text_dims *d, const etch_tensor *t, const etch_tensor *out) {
    etch__cuda_dims(d, out);
    for (int k = 0; k < out->ndim; k++) d->stride[k] = broadcast_stride(t, k, out->ndim);
}

static etch_status check_divisor(const op_call *call, cuda_stream *s, const etch_tensor *out,
                                 uint64_t cell) {
    bool zero = cell == 0;
    if (call->nin == 2) {
        int64_t bytes = etch__item_size(out);
        int64_t mask = bytes == 8 ? -1 : ((int64_t)1 << (8 * bytes)) - 1;
        uint64_t position;
        etch_status status = find_fault(s, call->in[1], 0, mask, true, &position);
        if (status != ETCH_OK) return status;
        zero = position != UINT64_MAX;
    }
    if (!zero) return ETCH_OK;
    return etch__error_at(call->site, ETCH_ERR_DIVISION_BY_ZERO, "%s: an integer is divided by 0",
                          etch__ops[call->op].name);
}

static etch_status divide(const op_call *call, etch_tensor *const *outs) {
    etch_tensor *out = outs[0];
    etch_dtype d = (etch_dtype)out->dtype;
    if (!out->numel) return ETCH_OK;
    bool real = etch__is_float(d);
    /* An operand that is rounded to a half type first. */
    for (int i = 0; i < call->nin && d != etch__compute_type(d); i++)
        if (call->in[i]->dtype != d) return etch__cuda_by_plan(call, outs);
    cuda_stream *s = etch__cuda_begin(call, out);
    if (!s) return etch__tls.status;
    struct {
        const void *x, *y;
        void *out;
        text_dims xs, ys;
        int64_t n;
        uint64_t divisor;
    } a = {.x = etch__ptr(call->in[0]), .out = etch__ptr(out), .n = out->numel};
    bool two = call->nin == 2, quotient = false, floor = true;
    if (call->op == OP_FMOD_TENSOR || call->op == OP_FMOD_SCALAR) floor = false;
    if (call->op == OP_FLOOR_DIVIDE_TENSOR || call->op == OP_FLOOR_DIVIDE_SCALAR) quotient = true;
    a.divisor = two ? 0 : etch__scalar_cell(call->sc[0], d);
    etch_status status = real ? ETCH_OK : check_divisor(call, s, out, a.divisor);
    if (status != ETCH_OK) return status;
    spread(&a.xs, call->in[0], out);
    kernel_text k = {.symbol = "etch_divide", .body = divide_text, .ndtypes = 3};
    k.dtype[0] = (etch_dtype)call->in[0]->dtype, k.dtype[2] = d;
    k.dtype[1] = two ? (etch_dtype)call->in[1]->dtype : d;
    if (two) a.y = etch__ptr(call->in[1]), spread(&a.ys, call->in[1], out);
    snprintf(k.defines, sizeof k.defines,
             "#define QUOTIENT %d\n#define FLOOR %d\n#define REAL %d\n", quotient, floor, real);
    return etch__cuda_run_text(s, &k, (a.n + 255) / 256, 256, &a);
}

/* All of these wait for their check. */
__attribute__((constructor)) static void register_index(void) {
    etch__cuda_register_waiting(OP_INDEX_SELECT, read_kernel);
    etch__cuda_register_waiting(OP_GATHER, read_kernel);
    etch__cuda_register_waiting(OP_TAKE, take_kernel);
    for (int op = 0; op < OP_COUNT; op++) {
        int rule = etch__ops[op].srule;
        if (rule == SRULE_SCATTER || rule == SRULE_INDEX_COPY || rule == SRULE_INDEX_PUT)
            etch__cuda_register_waiting((op_id)op, write_kernel);
        else if (etch__ops[op].kind == KIND_POINTWISE && etch__ops[op].flags & OPF_MAY_FAIL)
            etch__cuda_register_waiting((op_id)op, divide);
    }
}
