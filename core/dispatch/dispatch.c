/* The dispatcher: see core/dispatch/dispatch.h for the order of the layers. */
#include "core/dispatch/dispatch.h"
#include "core/tensor/device.h"
#include "core/base/device_clock.h"
#include "core/base/profile.h"
#include "core/ops/rules.h"

_Atomic unsigned char etch__layered;

static layer_handler layers[LAYER_COUNT];
static op_kernel kernels[OP_CAPACITY];
static const op_composite *composites;

void etch__register_layer(dispatch_layer layer, layer_handler handler) { layers[layer] = handler; }
void etch__register_kernel(op_id op, op_kernel kernel) { kernels[op] = kernel; }
void etch__register_composites(const op_composite *table) { composites = table; }
op_kernel etch__kernel(op_id op) { return kernels[op]; }

/* Operators without any kernel (views, empty) have none on a device either. */
op_kernel etch__kernel_on(op_id op, int device) {
    const device_kind *kind = likely(!device) ? NULL : etch__device_kind(device);
    return kind && kernels[op] ? kind->kernel : kernels[op];
}

/* ---- kernels where the stack of the call is small ---- */

typedef struct kernel_call {
    op_kernel kernel;
    const op_call *call;
    etch_tensor *const *out;
    etch_status status;
} kernel_call;

static void run_kernel_call(void *ctx) {
    kernel_call *k = ctx;
    k->status = k->kernel(k->call, k->out);
}

etch_status etch__kernel_on_second_stack(op_kernel kernel, const op_call *call,
                                         etch_tensor *const *out) {
    kernel_call k = {kernel, call, out, ETCH_OK};
    if (!etch__stack_prepare(KERNEL_STACK)) return etch__tls.status;
    etch__with_room(KERNEL_STACK, run_kernel_call, &k);
    return k.status;
}

etch_status etch__profiled_kernel(op_kernel kernel, const op_call *call, etch_tensor *const *out,
                                  bool planned) {
    const op_info *op = &etch__ops[call->op];
    etch_profile_kind kind = call->op >= OP_COUNT ? ETCH_PROFILE_CUSTOM : ETCH_PROFILE_OPERATOR;
    if (planned && op->kind == KIND_CONTRACTION && !op->overridden) kind = ETCH_PROFILE_PRODUCT;
    char name[sizeof((etch_profile_entry *)0)->name];
    snprintf(name, sizeof name, "%s%s", strchr(op->name, ':') ? "" : "aten::", op->name);
    /* Steps of a plan are timed by who runs it. */
    int device = !planned && out[0] && out[0] != ETCH_NONE ? out[0]->device : 0;
    clock_order order = {.device = device, .nspans = 1, .profile = true};
    clock_run *timed = device ? etch__clock_begin_one(&order, name) : NULL;
    int64_t start = etch__now();
    etch_status status = etch__kernel_in_room(kernel, call, out);
    etch__profile_add(kind, start, name, NULL);
    etch__clock_end_one(timed, status == ETCH_OK);
    return status;
}

/* ---- what composites write into ---- */

static etch_tensor *plain_zeros(etch_tensor *like) {
    etch_tensor *t = NULL;
    ETCH_ON(like->device) t = etch_zeros((etch_dtype)like->dtype, etch_sizes(like));
    return t;
}
static etch_tensor *plain_copy(etch_tensor *t, etch_tensor *src) {
    return src ? etch_clone(t) : NULL;
}
etch_tensor *(*etch__zeros_to_fill)(etch_tensor *like) = plain_zeros;
etch_tensor *(*etch__copy_to_fill)(etch_tensor *t, etch_tensor *src) = plain_copy;

/* ---- walking the layers ---- */

etch_tensor *etch__dispatch_below(dispatch_layer layer, const op_call *call) {
    uint32_t active = etch__tls.layers >> (layer + 1) << (layer + 1);
    if (unlikely(active)) {
        int next = __builtin_ctz(active);
        if (layers[next]) return layers[next](call);
    }
    return etch__run_eager(call);
}

etch_tensor *etch__take_apart(const op_call *call) {
    const op_call *outer = etch__tls.composite;
    op_composite parts = composites[call->op];
    if (!etch__operands_present(call)) return NULL;
    if (!outer) etch__tls.composite = call;
    unsigned traps = etch__fp_mask(); /* what is computed of sizes and scalars is the operator's */
    etch_tensor *t = parts(call);
    etch__fp_unmask(traps);
    etch__tls.composite = outer;
    if (unlikely(!t)) etch__error_name(etch__ops[call->op].name, call->site, true);
    return t;
}

/* Whether an operand is one whose every call one of these layers sees. */
static inline bool is_seen_by(unsigned which, const op_call *call) {
    unsigned seen = 0;
    if (likely(!atomic_load_explicit(&etch__layered, memory_order_relaxed))) return false;
    for (int i = 0; i < call->nin; i++) seen |= call->in[i]->layers;
    return seen & which;
}

static etch_tensor *run_composite(const op_call *call) {
    /* No mode sees batched tensors, or answers for their tangents. */
    if (unlikely(is_seen_by(1u << LAYER_VMAP | 1u << LAYER_FORWARD, call)))
        return etch__take_apart(call);
    if (unlikely(etch__tls.layers & 1u << LAYER_COMPOSITE_MODES) && layers[LAYER_COMPOSITE_MODES])
        return layers[LAYER_COMPOSITE_MODES](call);
    return etch__take_apart(call);
}

static bool puts_by_mask(const op_call *call) {
    return etch__ops[call->op].srule == SRULE_INDEX_PUT && call->in[1]->dtype == ETCH_BOOL;
}

bool etch__in_parts(const op_call *call) {
    return etch__ops[call->op].kind == KIND_COMPOSITE || puts_by_mask(call);
}

static inline etch_tensor *dispatch(const op_call *call) {
    for (int i = 0; i < call->nin; i++)
        if (unlikely(!etch__operand_ok(call, i))) return NULL;
    if (call->nsc && unlikely(!etch__scalar_kinds_ok(call))) return NULL;
    if (unlikely(etch__ops[call->op].kind == KIND_COMPOSITE)) return run_composite(call);
    if (unlikely(puts_by_mask(call))) return etch__take_apart(call);
    if (unlikely(is_seen_by(1u << LAYER_VMAP, call))) return layers[LAYER_VMAP](call);
    if (unlikely(etch__tls.layers)) return etch__dispatch_below(LAYER_COMPOSITE_MODES, call);
    return etch__run_eager(call);
}

/* Whether more is lost with the call than its result. */
static bool has_effects(const op_call *call) {
    const op_info *op = &etch__ops[call->op];
    return op->kind == KIND_INPLACE || op->flags & OPF_EFFECTS;
}

static void failed(const op_call *call, unsigned errors) {
    const char *name = etch__ops[call->op].name;
    if (etch__tls.errors == errors)
        etch__error_at(call->site, ETCH_ERR_INTERNAL, "%s: it failed without a reason", name);
    etch__error_name(name, call->site, false);
    if (has_effects(call)) etch__tls.lost = etch__tls.errors;
}

etch_tensor *etch__dispatch_layerless(const op_call *call) {
    unsigned errors = etch__tls.errors;
    etch_tensor *t = dispatch(call);
    if (unlikely(!t)) failed(call, errors);
    return t;
}

/* The outermost layer that sees the call by its operands. Views are seen, too: who shares a storage
 * is noted where gradients are in use. */
static layer_handler layer_of(const op_call *call, unsigned layered) {
    unsigned seen = layered & LAYERED_VIEWS && etch__ops[call->op].kind == KIND_VIEW;
    for (int i = 0; i < call->nin; i++) seen |= call->in[i] ? call->in[i]->layers : 0u;
    if (unlikely(seen >> LAYER_FORWARD & 1)) return layers[LAYER_FORWARD];
    return seen ? layers[LAYER_AUTOGRAD] : NULL;
}

etch_tensor *etch__dispatch(const op_call *call) {
    layer_handler layer = NULL;
    unsigned layered = atomic_load_explicit(&etch__layered, memory_order_relaxed);
    if (unlikely(layered)) layer = layer_of(call, layered);
    return layer ? layer(call) : etch__dispatch_layerless(call);
}

/* The last writes, for messages: a ring, of which a word may be torn by another thread. */
enum { WRITES = 256 };
static struct {
    _Atomic(const etch_storage *) storage;
    _Atomic(const void *) site;
    atomic_int op;
} writes[WRITES];
static atomic_uint nwrites;

void etch__remember_write(const etch_storage *s, op_id op, const void *site) {
    unsigned i = atomic_fetch_add_explicit(&nwrites, 1, memory_order_relaxed) % WRITES;
    atomic_store_explicit(&writes[i].storage, s, memory_order_relaxed);
    atomic_store_explicit(&writes[i].site, site, memory_order_relaxed);
    atomic_store_explicit(&writes[i].op, (int)op, memory_order_relaxed);
}

op_id etch__last_writer(const etch_storage *s, const void **site) {
    unsigned newest = atomic_load_explicit(&nwrites, memory_order_relaxed);
    for (unsigned k = 1; k <= WRITES; k++) {
        unsigned i = (newest - k) % WRITES;
        if (atomic_load_explicit(&writes[i].storage, memory_order_relaxed) != s) continue;
        *site = atomic_load_explicit(&writes[i].site, memory_order_relaxed);
        return (op_id)atomic_load_explicit(&writes[i].op, memory_order_relaxed);
    }
    return *site = NULL, OP_COUNT;
}

/* ---- the innermost step ---- */

static bool inputs_ready(const op_call *call) {
    for (int i = 0; i < call->nin; i++) {
        if (likely(!call->in[i]->deferred)) {
            etch__before_read(call->in[i]->storage);
            if (unlikely(etch__await_copy(call->in[i]) != ETCH_OK)) return false;
            continue;
        }
        if (etch__tls.in_flush)
            etch__error_at(call->site, ETCH_ERR_DEFERRED_IN_FLUSH,
                           "%s: \"%s\" is a deferred tensor of the function that is being "
                           "flushed; pass it as an argument instead",
                           etch__ops[call->op].name, etch__operand_name(call->op, i));
        else
            etch__error_at(call->site, ETCH_ERR_DEFERRED_ELSEWHERE,
                           "%s: \"%s\" is a deferred tensor of a function that runs on "
                           "another thread; call etch_flush there first",
                           etch__ops[call->op].name, etch__operand_name(call->op, i));
        return false;
    }
    return true;
}

static etch_tensor *new_result(const op_call *call, const tensor_meta *meta) {
    etch_tensor *t = etch__tensor_alloc();
    if (!t) return NULL;
    etch__copy_meta(t, meta);
    bool view = etch__ops[call->op].kind == KIND_VIEW;
    t->contiguous = 1; /* what is no view is, but for attention's result */
    if (view || etch__ops[call->op].srule == SRULE_ATTENTION)
        t->contiguous = etch__sizes_contiguous(meta->ndim, meta->size, meta->stride);
    if (view) {
        t->view = 1;
        t->storage = call->in[0]->storage;
        etch__storage_retain(t->storage);
    } else {
        t->storage = etch__storage_new_on(t->device, (size_t)(t->numel * etch__item_size(t)));
    }
    if (likely(t->storage && etch__scope_push(t))) return t;
    etch__tensor_destroy(t);
    return NULL;
}

etch_status etch__run_kernel(const op_call *call, etch_tensor *out) {
    op_kernel kernel = etch__kernel_on(call->op, out->device);
    if (unlikely(!kernel))
        return etch__error_at(call->site, ETCH_ERR_UNSUPPORTED,
                              "%s: this build has no kernel for it", etch__ops[call->op].name);
    unsigned traps = etch__fp_mask();
    etch_status status = etch__call_kernel(kernel, call, &out, false);
    etch__fp_unmask(traps);
    return status;
}

static etch_tensor *run_inplace(const op_call *call) {
    etch_tensor *self = call->in[0];
    etch__before_write(self->storage);
    if (etch__run_kernel(call, self) != ETCH_OK) return NULL;
    etch__note_write(self->storage, call->op, call->site);
    return self;
}

/* The scope's newest handle is taken back when its kernel fails. */
static etch_tensor *drop_result(etch_tensor *t) {
    etch__tls.nitems--;
    etch__tensor_destroy(t);
    return NULL;
}

etch_tensor *etch__run_eager(const op_call *call) {
    tensor_meta meta;
    if (unlikely(!inputs_ready(call)) || etch__infer(call, &meta, NULL) != ETCH_OK) return NULL;
    THREAD_COUNT(operators, 1);
    uint8_t kind = etch__ops[call->op].kind;
    if (kind == KIND_INPLACE) return run_inplace(call);
    etch_tensor *out = new_result(call, &meta);
    if (!out || kind == KIND_VIEW) return out;
    return likely(etch__run_kernel(call, out) == ETCH_OK) ? out : drop_result(out);
}
