/* The eager kernel of every operator that is an expression: POINTWISE, INPLACE, and the creation of
 * zeros, ones, full, arange.
 *
 * The program of a call depends on the operator, the operands' dtypes and ranks (0-d tensors
 * promote differently), the kinds of its scalars, its static class and the default dtype; it is
 * built once for each combination and kept. Contiguous operands of one size, the common case, are
 * one flat run. */
#include "backends/cpu/program.h"
#include "core/base/start.h"
#include "core/dispatch/place.h"
#include "core/base/pool.h"

#include <stdlib.h>

/* ---- the cache of programs ---- */

typedef struct cached_program {
    uint64_t key;
    cpu_program program;
} cached_program;

/* Open addressing; an entry never changes once it is there. When the neighbourhood of a key is full
 * the program is built for the one call. */
enum { CACHE_SIZE = 2048, CACHE_PROBES = 16 };
static cached_program *_Atomic cache[CACHE_SIZE];

static int64_t class_of(const op_call *call) {
    const int with_class = OPF_CLASS_ALPHA | OPF_CLASS_EXPONENT | OPF_SELECTS;
    return etch__ops[call->op].flags & with_class ? call->at[call->nat - 1] : 0;
}

static uint64_t key_of(const op_call *call, const etch_tensor *out) {
    uint64_t key = (uint64_t)out->dtype << 4 | (uint64_t)class_of(call);
    key = key << 4 | STATE_DTYPE(etch__tls.state);
    for (int k = 0; k < call->nin; k++)
        key = key << 5 | (uint64_t)call->in[k]->dtype << 1 | (call->in[k]->ndim == 0);
    for (int k = 0; k < call->nsc; k++) key = key << 2 | call->sc[k].kind;
    return key << 16 | call->op; /* which says how many fields there are */
}

static bool build_plainly(const op_call *call, const etch_tensor *out, cpu_program *program) {
    tensor_meta meta;
    etch_dtype compute, in[PROGRAM_INPUTS] = {0};
    prim_program p;
    if (etch__infer(call, &meta, &compute) != ETCH_OK) return false;
    for (int k = 0; k < call->nin && k < PROGRAM_INPUTS; k++) in[k] = call->in[k]->dtype;
    if (etch__expr_build(call->op, in, call->nin, compute, out->dtype, class_of(call), &p) &&
        etch__program_build(&p, in, out->dtype, program))
        return true;
    return etch__false_at(call->site, ETCH_ERR_DTYPE, "%s: not defined for %s",
                          etch__ops[call->op].name, etch_dtype_name(compute));
}

/* Its constants are those of other calls as well, which round in another way. */
static bool build(const op_call *call, const etch_tensor *out, cpu_program *program) {
    unsigned before = etch__fp_plain();
    bool ok = build_plainly(call, out, program);
    etch__fp_control(before);
    return ok;
}

/* The program of a call, in the cache or in *own. */
static const cpu_program *find_program(const op_call *call, const etch_tensor *out,
                                       cpu_program *own) {
    uint64_t key = key_of(call, out);
    uint64_t h = key * 0x9e3779b97f4a7c15ull >> 40;
    for (int probe = 0; probe < CACHE_PROBES; probe++) {
        cached_program *_Atomic *place = &cache[(h + (uint64_t)probe) % CACHE_SIZE];
        cached_program *c = atomic_load_explicit(place, memory_order_acquire);
        if (likely(c && c->key == key)) return &c->program;
        if (c) continue;
        cached_program *fresh = etch__malloc(sizeof *fresh);
        if (!fresh) return NULL;
        fresh->key = key;
        bool ok = build(call, out, &fresh->program);
        if (ok && atomic_compare_exchange_strong(place, &c, fresh)) return &fresh->program;
        etch__free(fresh);
        if (!ok) return NULL;
        if (c->key == key) return &c->program;
    }
    return build(call, out, own) ? own : NULL;
}

/* ---- memory ---- */

static bool same_view(const etch_tensor *a, const etch_tensor *b) {
    if (a == b) return true;
    if (etch__ptr(a) != etch__ptr(b) || a->dtype != b->dtype || a->ndim != b->ndim) return false;
    for (int d = 0; d < a->ndim; d++)
        if (a->size[d] != b->size[d] || (a->size[d] > 1 && a->stride[d] != b->stride[d]))
            return false;
    return true;
}

/* Whether writing `out` element by element would change what `in` reads later. */
static bool overlaps(const etch_tensor *in, const etch_tensor *out) {
    return !same_view(in, out) && etch__place_overlap(in, out);
}

/* ---- running ---- */

typedef struct pointwise_job {
    const cpu_program *program;
    const etch_scalar *scalars;
    void *base[SLOT_TEMP];
    strided_space space;
} pointwise_job;

static void flat_task(void *ctx, int64_t begin, int64_t end) {
    const pointwise_job *j = ctx;
    etch__program_run(j->program, j->base, j->scalars, begin, end);
}

static void strided_task(void *ctx, int64_t begin, int64_t end) {
    const pointwise_job *j = ctx;
    etch__program_run_strided(j->program, &j->space, j->base, j->scalars, begin, end);
}

static void blocks_task(void *ctx, int64_t begin, int64_t end) {
    const pointwise_job *j = ctx;
    etch__program_run_blocks(j->program, &j->space, j->base, j->scalars, begin, end);
}

/* Elements worth a thread's wake-up: some 15 microseconds of work, in whole strips. */
static int64_t grain_of(const cpu_program *p) {
    int64_t n = 131072 / (p->cost > 0 ? p->cost : 1);
    return (n + EAGER_STRIP - 1) / EAGER_STRIP * EAGER_STRIP;
}

/* Strides of an input along the output's axes. */
static void broadcast_strides(const etch_tensor *in, const int64_t *in_stride, int ndim,
                              int64_t *stride) {
    int lead = ndim - in->ndim;
    for (int d = 0; d < ndim; d++)
        stride[d] = d < lead || in->size[d - lead] == 1 ? 0 : in_stride[d - lead];
}

static bool mergeable(const strided_space *s, int outer, int inner) {
    for (int k = 0; k < SLOT_TEMP; k++)
        if (s->stride[k][outer] != s->stride[k][inner] * s->size[inner]) return false;
    return true;
}

static void move_axis(strided_space *s, int to, int from) {
    s->size[to] = s->size[from];
    for (int k = 0; k < SLOT_TEMP; k++) s->stride[k][to] = s->stride[k][from];
}

/* The output's axes by falling stride, so that it is written in memory order. */
static void sort_axes(strided_space *s) {
    for (int d = 1; d < s->ndim; d++)
        for (int e = d; e > 0; e--) {
            if (llabs(s->stride[SLOT_OUT][e - 1]) >= llabs(s->stride[SLOT_OUT][e])) break;
            strided_space old = *s;
            move_axis(s, e, e - 1);
            s->size[e - 1] = old.size[e];
            for (int k = 0; k < SLOT_TEMP; k++) s->stride[k][e - 1] = old.stride[k][e];
        }
}

/* Drops axes of one element, and joins neighbours that every operand walks as one. */
static void merge_axes(strided_space *s) {
    int n = 0;
    for (int d = 0; d < s->ndim; d++) {
        if (s->size[d] == 1) continue;
        move_axis(s, n, d);
        if (n > 0 && mergeable(s, n - 1, n)) {
            int64_t outer = s->size[n - 1];
            move_axis(s, n - 1, n);
            s->size[n - 1] *= outer;
        } else {
            n++;
        }
    }
    if (n == 0) {
        n = 1, s->size[0] = 1;
        for (int k = 0; k < SLOT_TEMP; k++) s->stride[k][0] = 1;
    }
    s->ndim = n;
}

static etch_status run_strided(const op_call *call, etch_tensor *out, pointwise_job *job) {
    strided_space *s = &job->space;
    void *copies[PROGRAM_INPUTS] = {0};
    etch_status status = ETCH_OK;
    bool inplace = etch__ops[call->op].kind == KIND_INPLACE;
    memset(s->stride, 0, sizeof s->stride);
    s->ndim = out->ndim, s->numel = out->numel;
    memcpy(s->size, out->size, sizeof s->size);
    memcpy(s->stride[SLOT_OUT], out->stride, sizeof out->stride);
    for (int k = 0; k < call->nin && status == ETCH_OK; k++) {
        const etch_tensor *in = call->in[k];
        if (!job->program->loads[k]) continue;
        int64_t row_major[ETCH_MAX_DIMS];
        const int64_t *stride = in->stride;
        if (inplace && overlaps(in, out)) {
            copies[k] = etch__malloc((size_t)in->numel << job->program->in_log2[k]);
            if (!copies[k]) {
                status = ETCH_ERR_OUT_OF_MEMORY;
                break;
            }
            etch__copy_contiguous(copies[k], in);
            etch__row_major(in->ndim, in->size, row_major);
            job->base[k] = copies[k], stride = row_major;
        }
        broadcast_strides(in, stride, out->ndim, s->stride[k]);
    }
    if (status == ETCH_OK) {
        sort_axes(s);
        merge_axes(s);
        int64_t grain = grain_of(job->program), blocks = etch__program_blocks(job->program, s);
        if (blocks) etch__parallel(blocks, grain / EAGER_STRIP, blocks_task, job);
        else etch__parallel(s->numel, grain, strided_task, job);
    }
    for (int k = 0; k < PROGRAM_INPUTS; k++) etch__free(copies[k]);
    return status;
}

static bool is_flat(const op_call *call, const etch_tensor *out, const cpu_program *program) {
    bool inplace = etch__ops[call->op].kind == KIND_INPLACE;
    if (!out->contiguous) return false;
    for (int k = 0; k < call->nin; k++) {
        const etch_tensor *in = call->in[k];
        if (!program->loads[k] || in == out) continue;
        if (!in->contiguous || in->numel != out->numel || (inplace && overlaps(in, out)))
            return false;
    }
    return true;
}

static bool has_zero(etch_dtype dtype, const char *data, int64_t n) {
    strip_fn is_not_zero = etch__isa_table()->strips->convert[dtype][ETCH_BOOL];
    char truth[EAGER_STRIP];
    for (int64_t i = 0, strip; i < n; i += strip) {
        strip = n - i < EAGER_STRIP ? n - i : EAGER_STRIP;
        is_not_zero(truth, data + (i << etch__size_log2(dtype)), NULL, NULL, strip);
        if (memchr(truth, 0, (size_t)strip)) return true;
    }
    return false;
}

/* Integer divisors of a MAY_FAIL operator: none is 0, which would be a signal. What counts is
 * the divisor in the common dtype, where a scalar or the one element of a 0-d tensor may have
 * wrapped to 0: its low bytes. */
static etch_status check_divisor(const op_call *call, const etch_tensor *out) {
    etch_dtype dtype = out->dtype;
    bool zero = false;
    if (etch__is_float(dtype)) return ETCH_OK;
    if (call->nin == 1) {
        zero = etch__scalar_cell(call->sc[0], dtype) == 0;
    } else {
        const etch_tensor *t = call->in[1];
        size_t size = (size_t)etch__item_size(t), kept = (size_t)etch__item_size(out);
        void *copy;
        const char *data = etch__row_major_elements(t, false, &copy);
        if (!data) return ETCH_ERR_OUT_OF_MEMORY;
        if (kept >= size) zero = has_zero(t->dtype, data, t->numel);
        for (int64_t i = 0; kept < size && i < t->numel && !zero; i++)
            zero = !memcmp(data + (size_t)i * size, "\0\0\0\0\0\0\0", kept);
        etch__free(copy);
    }
    if (!zero) return ETCH_OK;
    return etch__error_at(call->site, ETCH_ERR_DIVISION_BY_ZERO, "%s: an integer is divided by 0",
                          etch__ops[call->op].name);
}

static etch_status pointwise(const op_call *call, etch_tensor *const *outs) {
    etch_tensor *out = outs[0];
    cpu_program own;
    const cpu_program *program = find_program(call, out, &own);
    if (unlikely(!program)) return etch_last_status();
    if (unlikely(out->numel == 0)) return ETCH_OK;
    if (unlikely(etch__ops[call->op].flags & OPF_MAY_FAIL)) {
        etch_status status = check_divisor(call, out);
        if (status != ETCH_OK) return status;
    }
    pointwise_job job;
    job.program = program, job.scalars = call->sc;
    for (int k = 0; k < PROGRAM_INPUTS; k++)
        job.base[k] = program->loads[k] ? etch__ptr(call->in[k]) : NULL;
    job.base[SLOT_OUT] = etch__ptr(out);
    if (!is_flat(call, out, program)) return run_strided(call, out, &job);
    if (out->numel <= 4096) flat_task(&job, 0, out->numel);
    else etch__parallel(out->numel, grain_of(program), flat_task, &job);
    return ETCH_OK;
}

void etch__start_cpu_pointwise(void) {
    for (int op = 0; op < OP_COUNT; op++)
        if (etch__has_expression(op)) etch__register_kernel(op, pointwise);
}
