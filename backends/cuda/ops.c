/* Eager operators on a device: every operator of the table.
 *
 * What the jit can express is a native plan of one operator, kept by everything that the plan
 * depends on, so eager and compiled code are of one generator. Products, normalisations and the
 * like have kernels of their own (a table that their files fill). What is left runs on the CPU,
 * with copies. */
#include "backends/cuda/ops.h"
#include "core/base/start.h"

#include <xxhash.h>

#include "backends/cuda/faults.h"
#include "backends/cuda/text.h"
#include "core/dispatch/dispatch.h"
#include "core/graph/backend.h"
#include "core/base/lru.h"
#include "core/dispatch/mode.h"

static cuda_kernel own[OP_COUNT];
static bool checks[OP_COUNT];

/* NULL for operators of the user's as well, whose numbers lie behind the table. */
static cuda_kernel own_kernel(uint16_t op) { return op < OP_COUNT ? own[op] : NULL; }

void etch__cuda_register(op_id op, cuda_kernel kernel) { own[op] = kernel; }

void etch__cuda_register_checking(op_id op, cuda_kernel kernel) {
    own[op] = kernel, checks[op] = true;
}

bool etch__cuda_issues(uint16_t op) {
    if (etch__users_on_device(op)) return etch__users_only_issue(op);
    return own_kernel(op) != NULL;
}

static etch_status cat(const op_call *call, etch_tensor *const *out) {
    if (out[0]->numel && !etch__cuda_begin(call, out[0])) return etch__tls.status;
    return etch__place_cat(call, out);
}

/* ---- plans of one operator ---- */

enum { PLANS_MAX = 1024, KEY_WORDS = 256 };

typedef struct op_plan {
    lru_entry entry;
    plan *plan; /* NULL: the jit has none without calls */
} op_plan;

static lru plans;

static void end_plan(lru_entry *e) { etch__plan_release(((op_plan *)e)->plan); }

void etch__start_cuda_ops(void) {
    etch__lru_init(&plans, PLANS_MAX, end_plan);
    etch__cuda_register(OP_CAT, cat);
}

/* Everything that the plan depends on; 0 words where it is too much. */
static size_t key_of(const op_call *call, int device, int64_t *key) {
    size_t n = 0;
    if (call->nin > 8) return 0;
    key[n++] = (int64_t)call->op | (int64_t)call->nin << 16 | (int64_t)call->nsc << 32 |
               (int64_t)call->nat << 40 | (int64_t)device << 48;
    key[n++] = (int64_t)(etch__tls.state & STATE_COMPUTES);
    for (int i = 0; i < call->nsc; i++) key[n++] = call->sc[i].kind;
    for (int i = 0; i < call->nat; i++) key[n++] = call->at[i];
    for (int i = 0; i < call->nin; i++) {
        const etch_tensor *t = call->in[i];
        int same = 0; /* the first operand that is this handle */
        while (call->in[same] != t) same++;
        key[n++] = t->dtype | t->ndim << 8 | same << 16 | (t == ETCH_NONE) << 24;
        for (int d = 0; d < t->ndim; d++) key[n++] = t->size[d], key[n++] = t->stride[d];
    }
    return n;
}

static void meta_of(const etch_tensor *t, tensor_meta *m) {
    memset(m, 0, sizeof *m);
    m->dtype = t->dtype, m->ndim = t->ndim, m->device = t->device;
    memcpy(m->size, t->size, t->ndim * sizeof *m->size);
    memcpy(m->stride, t->stride, t->ndim * sizeof *m->stride);
}

/* The call as a graph; inputs are the distinct operands. */
static graph *graph_of(const op_call *call, const etch_tensor *out) {
    graph *g = etch__graph_new(etch__ops[call->op].name);
    int32_t operands[8], next = 0;
    tensor_meta m;
    bool ok = g != NULL;
    for (int i = 0; ok && i < call->nin; i++) {
        int same = 0;
        while (call->in[same] != call->in[i]) same++;
        operands[i] = call->in[i] == ETCH_NONE ? -1 : same < i ? operands[same] : next++;
        if (operands[i] < 0 || same < i) continue;
        meta_of(call->in[i], &m);
        ok = etch__graph_add_input(g, &m) >= 0;
    }
    meta_of(out, &m);
    int node = ok ? etch__graph_add_node(g, call, operands, &m) : -1;
    ok = node >= 0;
    if (ok && etch__ops[call->op].kind != KIND_INPLACE)
        ok = etch__graph_add_output(g, g->nodes[g->nnodes - 1].out);
    if (ok) return g;
    etch__graph_free(g);
    return NULL;
}

static const backend *native(void) {
    static _Atomic(const backend *) found;
    if (!found) found = etch__backend_find("native");
    return found;
}

static op_plan *make(const op_call *call, const etch_tensor *out, const int64_t *key, size_t n,
                     uint64_t hash) {
    op_plan *p = (op_plan *)etch__lru_new(sizeof *p, hash, key, n * sizeof *key);
    graph *g = p ? graph_of(call, out) : NULL;
    backend_options options = {.strict = true};
    unsigned before = etch__fp_plain(); /* the plan is of calls in other modes, too */
    etch__tls.own_kernels = true;
    etch_status status =
        g ? etch__backend_compile(native(), g, &options, &p->plan) : ETCH_ERR_OUT_OF_MEMORY;
    etch__tls.own_kernels = false;
    etch__fp_control(before);
    etch__graph_free(g);
    if (status != ETCH_OK && status != ETCH_ERR_UNSUPPORTED) {
        etch__lru_release(&plans, (lru_entry *)p);
        return NULL;
    }
    if (p->plan && (p->plan->ncalls || (!p->plan->nkernels && out->numel > 0))) {
        etch__plan_release(p->plan);
        p->plan = NULL;
    }
    return (op_plan *)etch__lru_publish(&plans, &p->entry);
}

static etch_status run(op_plan *p, const op_call *call, etch_tensor *out) {
    etch_tensor *inputs[8];
    etch_storage *outputs[1] = {out->storage};
    int n = 0;
    for (int i = 0; i < call->nin; i++) {
        int same = 0;
        while (call->in[same] != call->in[i]) same++;
        if (same == i && call->in[i] != ETCH_NONE) inputs[n++] = call->in[i];
    }
    bool wrote = false;
    plan_io io = {inputs, call->sc, outputs, &wrote, true};
    etch_status status = p->plan->run(p->plan, &io);
    if (status == ETCH_OK && etch__ops[call->op].kind != KIND_INPLACE)
        etch__storage_release(outputs[0]); /* the run's count of it */
    return status;
}

/* Whether operands of an in-place call overlap otherwise than as one handle. */
static bool overlaps(const op_call *call) {
    if (etch__ops[call->op].kind != KIND_INPLACE) return false;
    for (int i = 1; i < call->nin; i++)
        if (call->in[i] != call->in[0] && call->in[i] != ETCH_NONE &&
            etch__place_overlap(call->in[i], call->in[0]))
            return true;
    return false;
}

etch_status etch__cuda_by_plan(const op_call *call, etch_tensor *const *out) {
    int64_t key[KEY_WORDS];
    size_t n = overlaps(call) ? 0 : key_of(call, out[0]->device, key);
    if (!n) return etch__run_on_host(call, out);
    uint64_t hash = XXH3_64bits(key, n * sizeof *key);
    op_plan *p = (op_plan *)etch__lru_find(&plans, hash, key, n * sizeof *key);
    if (!p && !(p = make(call, out[0], key, n, hash))) return etch__tls.status;
    etch_status status = p->plan ? run(p, call, out[0]) : etch__run_on_host(call, out);
    etch__lru_release(&plans, &p->entry);
    return status;
}

/* A reduction over axes of one element each, as a copy of the operand without them (or with them
 * where they are kept). false: it is another reduction. */
static bool as_copy(const op_call *call, const etch_tensor *out, etch_tensor *from) {
    const etch_tensor *in = call->in[0];
    int64_t size[ETCH_MAX_DIMS], stride[ETCH_MAX_DIMS];
    uint32_t mask;
    bool keepdim;
    etch__reduce_axes(call, &mask, &keepdim);
    for (int d = 0, k = 0; d < in->ndim; d++) {
        bool reduced = mask >> d & 1;
        if (reduced && in->size[d] != 1) return false;
        if (!reduced || keepdim) size[k] = in->size[d], stride[k++] = in->stride[d];
    }
    *from = etch__place_view(in, 0, out->ndim, size, stride);
    return out->numel > 0;
}

static etch_status reduction(const op_call *call, etch_tensor *const *out) {
    static const int64_t blocking[] = {0};
    etch_tensor from, *const in[2] = {out[0], &from};
    if (!as_copy(call, out[0], &from)) return etch__cuda_by_plan(call, out);
    op_call copy = {
        .op = OP_COPY_, .nin = 2, .in = in, .nat = 1, .at = blocking, .site = call->site};
    return etch__cuda_by_plan(&copy, out);
}

static bool expressible(op_kind kind) {
    return kind == KIND_POINTWISE || kind == KIND_INPLACE || kind == KIND_CREATION;
}

/* What the user's function issues comes after what was issued on the same memory. */
static etch_status users(const op_call *call, etch_tensor *const *out) {
    cuda_stream *s = etch__cuda_begin(call, out[0]);
    if (!s) return etch__tls.status;
    etch__cuda_note(s, etch__ops[call->op].name);
    return etch__run_users_on_device(call, out);
}

/* The texts of these kernels have names of their own; what is said of one that does not
 * build names the operator. */
static etch_status written(const op_call *call, etch_tensor *const *out) {
    bool inside = etch__cuda_checks_inside(true);
    etch_status status = own[call->op](call, out);
    etch__cuda_checks_inside(inside);
    if (likely(status != ETCH_ERR_COMPILE)) return status;
    char why[sizeof etch__tls.texts->error];
    snprintf(why, sizeof why, "%s", etch__tls.error);
    return etch__error_at(call->site, status, "%s: its kernel for %s does not build: %s",
                          etch__ops[call->op].name, etch_device_name(out[0]->device), why);
}

/* A kernel that does not test the run's slot writes what the user has: only once the checks before
 * it are known to have passed. */
static etch_status settle_checks(const op_call *call, int device) {
    bool writes = etch__ops[call->op].kind == KIND_INPLACE || etch__op_is_users(call->op);
    if (likely(!etch__cuda_checks_noted()) || !writes || (own_kernel(call->op) && checks[call->op]))
        return ETCH_OK;
    if (etch__cuda_capturing())
        return etch__error_at(call->site, ETCH_ERR_UNSUPPORTED,
                              "%s: a recorded graph cannot hold it behind operators that check "
                              "their data; record it apart from them",
                              etch__ops[call->op].name);
    cuda_stream *s = etch__cuda_stream(etch__device_index(device));
    return s ? etch__cuda_finish(s) : etch__tls.status;
}

static etch_status any_kernel(const op_call *call, etch_tensor *const *out) {
    op_id op = call->op;
    if (op == OP_EMPTY || op == OP_TO_DEVICE)
        return op == OP_EMPTY ? ETCH_OK : etch__kernel(op)(call, out);
    if (unlikely(etch__op_is_users(op)) && etch__users_on_device(op)) return users(call, out);
    if (own_kernel(call->op)) return written(call, out);
    if (etch__ops[op].kind == KIND_REDUCTION) return reduction(call, out);
    if (expressible((op_kind)etch__ops[op].kind)) return etch__cuda_by_plan(call, out);
    return etch__run_on_host(call, out);
}

etch_status etch__cuda_kernel(const op_call *call, etch_tensor *const *out) {
    etch_status status = etch__cuda_may_issue(etch__device_index(out[0]->device),
                                              etch__ops[call->op].name, call->site);
    if (status == ETCH_OK) status = settle_checks(call, out[0]->device);
    if (status == ETCH_OK) status = any_kernel(call, out);
    return status == ETCH_OK ? etch__cuda_issued(out[0]->device) : status;
}
