/* The eager kernels of operators with an index tensor.
 *
 * All are one walk: for each element of a box, a place in the indexed tensor, which along the
 * indexed dimension the index decides, and a place in the other tensor; the element moves one way
 * or the other, or is added. Indices are checked before anything is written, and copied unless
 * nothing is written that they could lie in. The walk is in row-major order on one thread, so where
 * an index comes twice the last one stays, or all are added in that order. */
#include "core/dispatch/place.h"
#include "core/base/start.h"
#include "backends/cpu/table.h"
#include "core/tensor/element.h"
#include "core/ops/rules.h"

typedef enum direction { READ_INDEXED, WRITE_INDEXED, ADD_INDEXED } direction;

typedef struct index_walk {
    int ndim;
    int64_t size[ETCH_MAX_DIMS];
    int64_t place[ETCH_MAX_DIMS]; /* strides in the indexed tensor, 0 along the indexed dimension */
    int64_t other[ETCH_MAX_DIMS]; /* and in the other one */
    int64_t number[ETCH_MAX_DIMS]; /* and in the index */
    int64_t step;                  /* stride of the indexed dimension */
    const int64_t *index;
    char *indexed, *values;
    etch_dtype dtype;
    direction way;
} index_walk;

/* ---- elements ---- */

/* Rounded as the pointwise operator does. */
static void store_half(etch_dtype dtype, void *p, float v) {
    const strip_table *table = etch__isa_table()->strips;
    uint64_t cell = etch__scalar_cell(etch_scalar_real((double)v), dtype);
    table->narrow[dtype](p, &cell, NULL, NULL, 1);
}

static void add_element(etch_dtype dtype, void *p, const void *q) {
    switch (dtype) {
    case ETCH_F32: *(float *)p += *(const float *)q; break;
    case ETCH_F64: *(double *)p += *(const double *)q; break;
    case ETCH_I8:
    case ETCH_U8: *(uint8_t *)p = (uint8_t)(*(uint8_t *)p + *(const uint8_t *)q); break;
    case ETCH_I16: *(uint16_t *)p = (uint16_t)(*(uint16_t *)p + *(const uint16_t *)q); break;
    case ETCH_I32: *(uint32_t *)p += *(const uint32_t *)q; break;
    case ETCH_I64: *(uint64_t *)p += *(const uint64_t *)q; break;
    case ETCH_BOOL: *(uint8_t *)p |= *(const uint8_t *)q; break;
    default:
        store_half(dtype, p,
                   (float)etch__element_real(dtype, p) + (float)etch__element_real(dtype, q));
    }
}

static void copy_element(int64_t size, void *to, const void *from) {
    switch (size) {
    case 1: memcpy(to, from, 1); break;
    case 2: memcpy(to, from, 2); break;
    case 4: memcpy(to, from, 4); break;
    default: memcpy(to, from, 8);
    }
}

/* ---- the walk ---- */

/* A row that one index is for is moved as a whole. */
static void move_row(const index_walk *w, int64_t place, int64_t other) {
    int last = w->ndim - 1;
    int64_t size = etch__element_bytes[w->dtype], n = w->size[last];
    int64_t here = w->place[last] * size, there = w->other[last] * size;
    char *a = w->indexed + place * size, *b = w->values + other * size;
    char *to = w->way == READ_INDEXED ? b : a, *from = w->way == READ_INDEXED ? a : b;
    int64_t to_step = w->way == READ_INDEXED ? there : here, from_step = here + there - to_step;
    if (to_step == size && from_step == size) memcpy(to, from, (size_t)(n * size));
    else
        for (; n > 0; n--, to += to_step, from += from_step) copy_element(size, to, from);
}

/* One loop for each size of an element; one for what mostly is asked for. */
#define READ_ROW(T)                                                                                \
    do {                                                                                           \
        const T *from = (const T *)w->indexed + place;                                             \
        T *to = (T *)w->values + other;                                                            \
        const int64_t *index = w->index + number;                                                  \
        if (here == 0 && step == 1 && there == 1 && next == 1)                                     \
            for (int64_t i = 0; i < n; i++) to[i] = from[index[i]];                                \
        else                                                                                       \
            for (int64_t i = 0; i < n; i++, from += here, to += there, index += next)              \
                *to = from[*index * step];                                                         \
    } while (0)
static void read_row(const index_walk *w, int64_t place, int64_t other, int64_t number) {
    int last = w->ndim - 1;
    int64_t here = w->place[last], there = w->other[last], next = w->number[last];
    int64_t n = w->size[last], step = w->step;
    switch (etch__element_bytes[w->dtype]) {
    case 1: READ_ROW(uint8_t); break;
    case 2: READ_ROW(uint16_t); break;
    case 4: READ_ROW(uint32_t); break;
    default: READ_ROW(uint64_t);
    }
}

static void write_row(const index_walk *w, int64_t place, int64_t other, int64_t number) {
    int last = w->ndim - 1;
    int64_t size = etch__element_bytes[w->dtype];
    for (int64_t i = 0; i < w->size[last]; i++) {
        char *a = w->indexed + (place + w->index[number] * w->step) * size;
        char *b = w->values + other * size;
        if (w->way == WRITE_INDEXED) copy_element(size, a, b);
        else add_element(w->dtype, a, b);
        place += w->place[last], other += w->other[last], number += w->number[last];
    }
}

static void walk_row(const index_walk *w, int64_t place, int64_t other, int64_t number) {
    bool one = w->number[w->ndim - 1] == 0 && w->way != ADD_INDEXED;
    if (one) move_row(w, place + w->index[number] * w->step, other);
    else if (w->way == READ_INDEXED) read_row(w, place, other, number);
    else write_row(w, place, other, number);
}

static void walk(const index_walk *w) {
    int64_t at[ETCH_MAX_DIMS] = {0}, place = 0, other = 0, number = 0;
    for (int d = 0; d < w->ndim; d++)
        if (!w->size[d]) return;
    for (;;) {
        walk_row(w, place, other, number);
        int d = w->ndim - 2;
        for (; d >= 0; d--) {
            int64_t turn = ++at[d] < w->size[d] ? 1 : 1 - w->size[d];
            place += turn * w->place[d], other += turn * w->other[d];
            number += turn * w->number[d];
            if (turn == 1) break;
            at[d] = 0;
        }
        if (d < 0) return;
    }
}

/* ---- the index ---- */

/* i64, contiguous, from 0 to n - 1. Negative ones count from the end where `wraps`. */
static etch_status take_index(const op_call *call, int64_t n, bool wraps, etch_tensor *index) {
    etch_tensor *t = call->in[1];
    if (!etch__place_new(index, ETCH_I64, t->ndim, t->size, 0)) return ETCH_ERR_OUT_OF_MEMORY;
    etch_status status = etch__place_copy(index, t, call->site);
    int64_t *p = etch__ptr(index);
    for (int64_t i = 0; status == ETCH_OK && i < t->numel; i++) {
        int64_t k = p[i];
        if (wraps && k < 0) k += n;
        if (k < 0 || k >= n)
            status = etch__error_at(call->site, ETCH_ERR_INDEX,
                                    "%s: expected indices from %lld to %lld, got %lld",
                                    etch__ops[call->op].name, wraps ? (long long)-n : 0,
                                    (long long)n - 1, (long long)p[i]);
        p[i] = k;
    }
    return status;
}

/* Some at a time, without a branch: what is out of range leaves a sign. */
static bool in_range(const int64_t *p, int64_t count, int64_t n) {
    enum { TOGETHER = 4096 };
    uint64_t signs = 0;
    for (int64_t i = 0; i < count && !(signs >> 63); i += TOGETHER) {
        int64_t end = count - i < TOGETHER ? count : i + TOGETHER;
        for (int64_t k = i; k < end; k++)
            signs |= (uint64_t)p[k] | ((uint64_t)(n - 1) - (uint64_t)p[k]);
    }
    return !(signs >> 63);
}

/* The index where nothing is written that it could lie in: itself, if it is as the walk needs it.
 */
static etch_status read_index(const op_call *call, int64_t n, etch_tensor *copy,
                              const etch_tensor **index) {
    const etch_tensor *t = call->in[1];
    *index = t, copy->storage = NULL;
    if (t->dtype == ETCH_I64 && t->contiguous && in_range(etch__ptr(t), t->numel, n))
        return ETCH_OK;
    *index = copy;
    return take_index(call, n, false, copy);
}

/* ---- the walks of the operators ---- */

/* The box has the index's sizes (gather, scatter), or those of `box` with a vector of indices along
 * dim (the others). */
static void set_walk(index_walk *w, const etch_tensor *indexed, int dim, const etch_tensor *index,
                     bool vector) {
    w->ndim = etch__place_dims(indexed);
    for (int d = 0; d < w->ndim; d++) {
        w->size[d] = vector && d != dim ? etch__place_size(indexed, d)
                     : vector           ? index->numel
                                        : etch__place_size(index, d);
        w->place[d] = d == dim ? 0 : etch__place_stride(indexed, d);
        w->number[d] = vector ? d == dim : etch__place_stride(index, d);
    }
    w->step = etch__place_stride(indexed, dim);
    w->index = etch__ptr(index), w->indexed = etch__ptr(indexed);
    w->dtype = indexed->dtype;
}

static etch_status read_kernel(const op_call *call, etch_tensor *const *outs) {
    etch_tensor *self = call->in[0], *out = outs[0], copy;
    const etch_tensor *index;
    index_walk w = {.way = READ_INDEXED, .values = etch__ptr(out)};
    int dim = etch__place_dim(call);
    etch_status status = read_index(call, etch__place_size(self, dim), &copy, &index);
    if (status == ETCH_OK && out->numel) {
        set_walk(&w, self, dim, index, call->op == OP_INDEX_SELECT);
        for (int d = 0; d < w.ndim; d++) w.other[d] = etch__place_stride(out, d);
        walk(&w);
    }
    etch__place_free(&copy);
    return status;
}

/* Over a flat copy where self has gaps. */
static etch_status take_kernel(const op_call *call, etch_tensor *const *outs) {
    etch_tensor *self = call->in[0], *out = outs[0], index, flat = {0};
    index_walk w = {.way = READ_INDEXED, .ndim = 1, .step = 1, .values = etch__ptr(out)};
    etch_status status = take_index(call, self->numel, true, &index);
    if (status == ETCH_OK) status = etch__place_dense(self, &flat, &self, call->site);
    if (status == ETCH_OK && out->numel) {
        w.size[0] = out->numel, w.other[0] = w.number[0] = 1;
        w.index = etch__ptr(&index), w.indexed = etch__ptr(self), w.dtype = out->dtype;
        walk(&w);
    }
    etch__place_free(&flat);
    etch__place_free(&index);
    return status;
}

/* The scalar as an element of the dtype. */
static void scalar_element(etch_scalar s, etch_dtype dtype, void *p) {
    uint64_t cell = etch__scalar_cell(s, dtype);
    const strip_table *table = etch__isa_table()->strips;
    if (table->narrow[dtype]) table->narrow[dtype](p, &cell, NULL, NULL, 1);
    else memcpy(p, &cell, 8);
}

/* What is written: in[2], through a copy where it lies over the memory of out; its strides along
 * the walk's axes, 0 where it broadcasts. */
static etch_status set_values(const op_call *call, const etch_tensor *out, index_walk *w,
                              etch_tensor *copy) {
    etch_tensor *t;
    etch_status status = etch__place_apart(call->in[2], out, copy, &t, call->site);
    if (status != ETCH_OK) return status;
    for (int d = w->ndim - 1, e = t->ndim - 1; d >= 0; d--, e--)
        w->other[d] = e < 0 || t->size[e] == 1 ? 0 : t->stride[e];
    w->values = etch__ptr(t);
    return ETCH_OK;
}

/* index_put: the index's own dimensions instead of dimension 0. */
static void set_put_walk(index_walk *w, const etch_tensor *out, const etch_tensor *index) {
    set_walk(w, out, 0, index, true);
    w->ndim = index->ndim + out->ndim - 1;
    for (int d = 0; d < w->ndim; d++) {
        int e = d - index->ndim;
        w->size[d] = e < 0 ? index->size[d] : out->size[e + 1];
        w->place[d] = e < 0 ? 0 : out->stride[e + 1];
        w->number[d] = e < 0 ? index->stride[d] : 0;
    }
    if (w->ndim) return;
    w->ndim = 1, w->size[0] = 1, w->place[0] = w->number[0] = 0;
}

static direction way_of(const op_call *call) {
    return etch__index_adds(call) ? ADD_INDEXED : WRITE_INDEXED;
}

static etch_status write_kernel(const op_call *call, etch_tensor *const *outs) {
    etch_tensor *out = outs[0], index, copy = {0};
    uint64_t element[1];
    int rule = etch__ops[call->op].srule;
    bool put = rule == SRULE_INDEX_PUT;
    int dim = put ? 0 : etch__place_dim(call);
    index_walk w = {.way = way_of(call), .values = (char *)element};
    bool wraps = put || call->op == OP_INDEX_FILL || call->op == OP_INDEX_FILL_;
    etch_status status = take_index(call, etch__place_size(out, dim), wraps, &index);
    if (status == ETCH_OK && put) set_put_walk(&w, out, &index);
    else if (status == ETCH_OK) set_walk(&w, out, dim, &index, rule == SRULE_INDEX_COPY);
    if (call->nsc) scalar_element(call->sc[0], out->dtype, element);
    else if (status == ETCH_OK) status = set_values(call, out, &w, &copy);
    if (status == ETCH_OK && out != call->in[0] && etch__ops[call->op].kind != KIND_INPLACE)
        status = etch__place_copy(out, call->in[0], call->site);
    if (status == ETCH_OK && index.numel && out->numel) walk(&w);
    etch__place_free(&copy);
    etch__place_free(&index);
    return status;
}

void etch__start_cpu_index(void) {
    etch__register_kernel(OP_INDEX_SELECT, read_kernel);
    etch__register_kernel(OP_GATHER, read_kernel);
    etch__register_kernel(OP_TAKE, take_kernel);
    for (int op = 0; op < OP_COUNT; op++) {
        int rule = etch__ops[op].srule;
        if (rule == SRULE_SCATTER || rule == SRULE_INDEX_COPY || rule == SRULE_INDEX_PUT)
            etch__register_kernel(op, write_kernel);
    }
}
