/* Running a graph's operators as a function, eagerly and compiled, on the same numbers, and finding
 * the first bit that differs. etch-minify tests with it, and puts it into the test that it prints.
 */
#include <etch/etch.h>

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPLAY_MAX_OUTPUTS = 64 };

/* An input: a view of a buffer, which inputs may share. */
typedef struct replay_input {
    etch_dtype dtype;
    int buffer;
    etch_shape size, stride; /* in elements */
    int64_t offset;
} replay_input;

typedef struct replay {
    /* Calls the operators; s are the run-time scalars. */
    etch_status (*body)(const void *ctx, const etch_scalar *s, etch_tensor *const *in,
                        etch_tensor **out);
    const void *ctx;
    int ninputs, nbuffers, nscalars, noutputs;
    const replay_input *inputs;
    const etch_scalar *scalars; /* int and real ones are other ones at each call if `varies` */
    const bool *varies;
} replay;

/* ---- numbers ---- */

static uint64_t replay_random(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static double replay_real(uint64_t *state, bool wild) {
    static const double special[] = {NAN,    INFINITY, -INFINITY, -0.0,  0.0,  1e-40,
                                     5e-324, 3.4e38,   -1.7e308,  65504, 1e-8, 1 / 3.};
    uint64_t r = replay_random(state);
    if (wild && r % 4 == 0) return special[(r >> 8) % 12];
    return ((double)((r >> 8) % 200001) - 1e5) / 4e4;
}

static int64_t replay_int(uint64_t *state, size_t bytes, bool wild) {
    uint64_t r = replay_random(state), top = (uint64_t)1 << (8 * bytes - 1);
    uint64_t special[] = {top, top - 1, ~(uint64_t)0, 0};
    return (int64_t)(wild && r % 4 == 0 ? special[(r >> 8) % 4] : (r >> 8) % 9 + 1);
}

/* n numbers in a row. */
static etch_tensor *replay_buffer(etch_dtype dtype, int64_t n, uint64_t seed, bool wild) {
    bool real = dtype <= ETCH_F16;
    size_t size = real ? sizeof(double) : etch_dtype_size(dtype);
    char *data = calloc((size_t)n + 1, size);
    for (int64_t i = 0; data && i < n; i++) {
        double d = real ? replay_real(&seed, wild) : 0;
        int64_t k = real ? 0 : replay_int(&seed, size, wild) & (dtype == ETCH_BOOL ? 1 : -1);
        memcpy(data + (size_t)i * size, real ? (void *)&d : (void *)&k, size);
    }
    etch_tensor *t = data ? etch_from_host(data, real ? ETCH_F64 : dtype, ETCH_SHAPE(n)) : NULL;
    free(data);
    return real && dtype != ETCH_F64 ? etch_to(t, dtype) : t;
}

/* ---- inputs ---- */

/* The first and the last element of the buffer that the input reads. */
static void replay_reach(const replay_input *in, int64_t *first, int64_t *last) {
    *first = *last = in->offset;
    for (int d = 0; d < in->size.n; d++) {
        int64_t step = (in->size.v[d] - 1) * in->stride.v[d];
        if (in->size.v[d] > 0) *(step < 0 ? first : last) += step;
    }
}

/* The dimension of the largest stride among those still to do. */
static int replay_next(const replay_input *in, unsigned todo) {
    int next = -1;
    for (int d = 0; d < in->size.n; d++)
        if (todo >> d & 1 &&
            (next < 0 || llabs((long long)in->stride.v[d]) > llabs((long long)in->stride.v[next])))
            next = d;
    return next;
}

/* Splits a dimension of `stride` off dimension `at` of t, whose elements follow each other. */
static etch_tensor *replay_split(etch_tensor *t, int at, int64_t n, int64_t stride, bool last) {
    if (last) return etch_slice(t, at, 0, (n - 1) * stride + 1, stride);
    etch_dims sizes = etch_sizes(t);
    etch_tensor *whole = etch_slice(t, at, 0, n * stride, 1);
    memmove(sizes.v + at + 2, sizes.v + at + 1, (size_t)(sizes.n - at - 1) * sizeof *sizes.v);
    sizes.v[at] = n, sizes.v[at + 1] = stride, sizes.n++;
    return etch_view(whole, sizes);
}

/* The input as a view of its buffer. Strides that views cannot make give NULL. */
static etch_tensor *replay_view(etch_tensor *buffer, const replay_input *in) {
    int order[ETCH_MAX_DIMS], n = 0, ndim = in->size.n;
    unsigned todo = 0;
    int64_t first, last;
    replay_reach(in, &first, &last);
    for (int d = 0; d < ndim; d++)
        if (in->size.v[d] > 1 && in->stride.v[d] != 0) todo |= 1u << d;
    etch_tensor *t = etch_slice(buffer, 0, first, ETCH_ABSENT, 1);
    for (int d; (d = replay_next(in, todo)) >= 0; todo &= ~(1u << d)) order[n++] = d;
    for (int i = 0; t && i < n; i++)
        t = replay_split(t, i, in->size.v[order[i]], llabs((long long)in->stride.v[order[i]]),
                         i + 1 == n);
    if (t && !n) t = etch_select(t, 0, 0);
    for (int i = 0; t && i < n; i++)
        if (in->stride.v[order[i]] < 0) t = etch_slice(t, i, ETCH_ABSENT, ETCH_ABSENT, -1);
    /* The dimensions in their order, then those of size 1 and of stride 0. */
    etch_dims perm = {.n = n};
    for (int i = 0, at = 0; i < ndim; i++)
        for (int k = 0; k < n; k++)
            if (order[k] == i) perm.v[at++] = k;
    if (t && n) t = etch_permute(t, perm);
    for (int d = 0; t && d < ndim; d++)
        if (in->size.v[d] <= 1 || in->stride.v[d] == 0) t = etch_unsqueeze(t, d);
    return t ? etch_expand(t, in->size) : NULL;
}

static etch_tensor *replay_make(etch_tensor **buffers, const replay_input *in) {
    for (int d = 0; d < in->size.n; d++)
        if (in->size.v[d] == 0) return etch_zeros(in->dtype, in->size);
    return replay_view(buffers[in->buffer], in);
}

static bool replay_inputs(const replay *r, uint64_t seed, bool wild, etch_tensor **buffers,
                          etch_tensor **in) {
    for (int b = 0; b < r->nbuffers; b++) {
        int64_t elements = 1, first, last;
        etch_dtype dtype = ETCH_F32;
        for (int i = 0; i < r->ninputs; i++) {
            if (r->inputs[i].buffer != b) continue;
            replay_reach(&r->inputs[i], &first, &last);
            if (last + 1 > elements) elements = last + 1;
            dtype = r->inputs[i].dtype;
        }
        /* Room for whole rows of any stride. */
        if (!(buffers[b] = replay_buffer(dtype, 2 * elements + 64, seed + (uint64_t)b, wild)))
            return false;
    }
    for (int i = 0; i < r->ninputs; i++)
        if (!(in[i] = replay_make(buffers, &r->inputs[i]))) return false;
    return true;
}

/* ---- running ---- */

typedef struct replay_run {
    const replay *r;
    etch_scalar *scalars; /* of this call */
} replay_run;

static etch_status replay_body(void *ctx, etch_tensor *const *in, int nin, etch_tensor **out,
                               int nout) {
    const replay_run *run = ctx;
    (void)nin, (void)nout;
    return run->r->body(run->r->ctx, run->scalars, in, out);
}

static void replay_scalars(const replay_run *run, int call) {
    for (int i = 0; i < run->r->nscalars; i++) {
        etch_scalar *s = &run->scalars[i];
        *s = run->r->scalars[i];
        if (!run->r->varies[i]) continue;
        if (s->kind == ETCH_SCALAR_REAL) s->d += 0.25 * call;
        if (s->kind == ETCH_SCALAR_INT) s->i += call;
    }
}

/* The first element whose bits differ (any NaN is one), or -1. */
static int64_t replay_element(const etch_tensor *a, const etch_tensor *b, uint64_t *x,
                              uint64_t *y) {
    size_t size = etch_dtype_size(etch_dtype_of(a));
    int64_t n = etch_numel(a), at = -1;
    char *p = malloc((size_t)n * size + 1), *q = malloc((size_t)n * size + 1);
    bool read = p && q && etch_to_host(a, p, (size_t)n * size) == ETCH_OK &&
                etch_to_host(b, q, (size_t)n * size) == ETCH_OK;
    for (int64_t i = 0; read && i < n && at < 0; i++) {
        if (!memcmp(p + (size_t)i * size, q + (size_t)i * size, size)) continue;
        etch_tensor *u = etch_from_host(p + (size_t)i * size, etch_dtype_of(a), ETCH_SHAPE(1));
        etch_tensor *v = etch_from_host(q + (size_t)i * size, etch_dtype_of(a), ETCH_SHAPE(1));
        if (etch_bitwise_equal(u, v)) continue;
        memcpy(x, p + (size_t)i * size, size), memcpy(y, q + (size_t)i * size, size);
        at = i;
    }
    free(p), free(q);
    return at;
}

static bool replay_same(const char *what, int i, int call, const etch_tensor *a,
                        const etch_tensor *b, char *text, size_t room) {
    uint64_t x = 0, y = 0;
    if (etch_bitwise_equal(a, b)) return true;
    int64_t at = replay_element(a, b, &x, &y);
    snprintf(text, room, "call %d: %s %d, element %lld: eager %llx, compiled %llx", call, what, i,
             (long long)at, (unsigned long long)x, (unsigned long long)y);
    return false;
}

/* What one side of a call has. */
typedef struct replay_side {
    etch_tensor **buffers, **in, *out[REPLAY_MAX_OUTPUTS];
    bool made;
    etch_status status;
} replay_side;

/* f NULL: eagerly. */
static void replay_one_side(replay_run *run, etch_function *f, int call, uint64_t seed,
                            replay_side *s) {
    const replay *r = run->r;
    s->buffers = calloc((size_t)r->nbuffers + 1, sizeof *s->buffers);
    s->in = calloc((size_t)r->ninputs + 1, sizeof *s->in);
    s->made = s->buffers && s->in &&
              replay_inputs(r, seed + (uint64_t)call * 100, call % 3 == 2, s->buffers, s->in);
    s->status = ETCH_ERR_INVALID_ARGUMENT;
    replay_scalars(run, call);
    etch_manual_seed(seed);
    if (s->made && f) s->status = etch_call_n(f, s->in, r->ninputs, s->out, r->noutputs);
    else if (s->made) s->status = replay_body(run, s->in, r->ninputs, s->out, r->noutputs);
}

static bool replay_sides_agree(const replay *r, int call, const replay_side *a,
                               const replay_side *b, char *text, size_t room) {
    bool same = b->status == ETCH_OK;
    if (!same)
        snprintf(text, room, "call %d: eager succeeds, compiled fails: %s", call,
                 etch_last_error());
    for (int i = 0; same && i < r->noutputs; i++)
        same = replay_same("output", i, call, a->out[i], b->out[i], text, room);
    for (int i = 0; same && i < r->nbuffers; i++)
        same = replay_same("buffer", i, call, a->buffers[i], b->buffers[i], text, room);
    return same;
}

/* One call on both sides. False: text says what differs. *invalid: the eager side failed. */
static bool replay_call_once(replay_run *run, etch_function *f, int call, uint64_t seed,
                             bool *invalid, char *text, size_t room) {
    replay_side a, b;
    replay_one_side(run, NULL, call, seed, &a);
    *invalid = a.status != ETCH_OK;
    if (*invalid) snprintf(text, room, "%s", etch_last_error());
    replay_one_side(run, f, call, seed, &b);
    bool same = *invalid || replay_sides_agree(run->r, call, &a, &b, text, room);
    free(a.buffers), free(a.in), free(b.buffers), free(b.in);
    return same;
}

/* Several calls, the first of which records; every third one has special values. */
static bool replay_compare(const replay *r, const char *backend, int calls, uint64_t seed,
                           bool *invalid, char *text, size_t room) {
    etch_scalar *scalars = calloc((size_t)r->nscalars + 1, sizeof *scalars);
    replay_run run = {r, scalars};
    bool same = true;
    *invalid = !scalars || r->noutputs > REPLAY_MAX_OUTPUTS;
    etch_function *f = etch_compile(replay_body, .backend = backend, .ctx = &run, .name = "replay");
    for (int call = 0; same && !*invalid && call < calls; call++)
        ETCH_SCOPE { same = replay_call_once(&run, f, call, seed, invalid, text, room); }
    etch_function_free(f);
    free(scalars);
    return same;
}
