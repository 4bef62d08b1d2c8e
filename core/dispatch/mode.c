/* Interceptor modes: a stack per thread, walked from the mode entered last.
 *
 * `mode_level` says how many of the stack's modes are active: all of them, or, while a handler
 * runs, those below its own. So a handler that calls the operator it handles does not meet itself.
 */
#include "core/dispatch/mode.h"

#include "core/base/start.h"
#include "core/dispatch/call.h"
#include "core/dispatch/dispatch.h"
#include "core/ops/rules.h"

struct etch_mode {
    etch_mode_handler handler;
    void *ctx;
    etch_mode_options options;
    char name[64];
    atomic_int entered; /* on how many stacks it lies */
};

/* ---- life ---- */

etch_mode *etch_mode_create(etch_mode_handler handler, void *ctx,
                            const etch_mode_options *options) {
    if (!handler)
        return etch__null_at(NULL, ETCH_ERR_NULL, "etch_mode_new: expected a handler, got NULL");
    etch_mode *m = etch__calloc(1, sizeof *m);
    if (!m) return NULL;
    m->handler = handler, m->ctx = ctx;
    size_t given = options ? options->struct_size : 0;
    if (options)
        memcpy(&m->options, options, given && given < sizeof *options ? given : sizeof *options);
    snprintf(m->name, sizeof m->name, "%s", m->options.name ? m->options.name : "mode");
    m->options.name = m->name;
    return m;
}

void etch_mode_free(etch_mode *m) {
    if (!m) return;
    if (atomic_load(&m->entered)) {
        etch__error_at(__builtin_return_address(0), ETCH_ERR_INVALID_ARGUMENT,
                       "etch_mode_free: mode '%s' is entered: leave it before it is freed",
                       m->name);
        return;
    }
    if (m->options.destroy) m->options.destroy(m->ctx);
    etch__free(m);
}

void *etch_mode_ctx(const etch_mode *m) { return m ? m->ctx : NULL; }
const char *etch_mode_name(const etch_mode *m) { return m ? m->name : NULL; }

/* ---- the stack ---- */

static bool takes_composites(const etch_mode *m) {
    return m->options.composite || etch__tls.state & STATE_INFERENCE;
}

/* The dispatcher's bits that follow from the active modes. */
static void update_layers(void) {
    etch_thread *t = &etch__tls;
    uint32_t bits = t->mode_level > 0 ? 1u << LAYER_MODES : 0;
    for (int i = 0; i < t->mode_level; i++)
        if (takes_composites(t->modes[i])) bits |= 1u << LAYER_COMPOSITE_MODES;
    t->layers = (t->layers & ~(1u << LAYER_MODES | 1u << LAYER_COMPOSITE_MODES)) | bits;
    if (bits) t->cursor = NULL;
}

static void set_level(int level) {
    etch__tls.mode_level = level;
    update_layers();
}

static etch_status break_for(const etch_mode *m, const void *site) {
    if (!etch__tls.run || m->options.allow_compiled) return ETCH_OK;
    return etch__trace_hooks.read(NULL, REASON_BREAK_MODE, site);
}

etch_status etch_mode_push(etch_mode *m) {
    etch_thread *t = &etch__tls;
    const void *site = __builtin_return_address(0);
    if (!m) return etch__error_at(site, ETCH_ERR_NULL, "etch_mode_push: expected a mode, got NULL");
    if (!t->registered) etch__thread_register();
    etch_status status = break_for(m, site);
    if (status != ETCH_OK) return status;
    /* Modes that are off while a handler runs stay on the stack, above those it enters itself. */
    if (!etch__grow(&t->modes, &t->modes_cap, t->nmodes + 1, sizeof *t->modes))
        return ETCH_ERR_OUT_OF_MEMORY;
    memmove(t->modes + t->mode_level + 1, t->modes + t->mode_level,
            (size_t)(t->nmodes - t->mode_level) * sizeof *t->modes);
    t->modes[t->mode_level] = m;
    t->nmodes++;
    atomic_fetch_add(&m->entered, 1);
    set_level(t->mode_level + 1);
    return ETCH_OK;
}

static void remove_top(void) {
    etch_thread *t = &etch__tls;
    atomic_fetch_sub(&t->modes[t->mode_level - 1]->entered, 1);
    memmove(t->modes + t->mode_level - 1, t->modes + t->mode_level,
            (size_t)(t->nmodes - t->mode_level) * sizeof *t->modes);
    t->nmodes--;
    set_level(t->mode_level - 1);
}

etch_status etch_mode_pop(etch_mode *m) {
    etch_thread *t = &etch__tls;
    const void *site = __builtin_return_address(0);
    if (!m) return etch__error_at(site, ETCH_ERR_NULL, "etch_mode_pop: expected a mode, got NULL");
    if (t->mode_level <= t->mode_floor || t->modes[t->mode_level - 1] != m)
        return etch__error_at(site, ETCH_ERR_INVALID_ARGUMENT,
                              "etch_mode_pop: mode '%s' is not the one entered last%s%s%s", m->name,
                              t->mode_level > t->mode_floor ? " ('" : "",
                              t->mode_level > t->mode_floor ? t->modes[t->mode_level - 1]->name
                                                            : "",
                              t->mode_level > t->mode_floor ? "')" : "");
    etch_status status = break_for(m, site);
    if (status == ETCH_OK) remove_top();
    return status;
}

/* Also those that are off because the thread ended inside a handler or kernel. */
static void leave_all(etch_thread *t) {
    for (int i = 0; i < t->nmodes; i++) atomic_fetch_sub(&t->modes[i]->entered, 1);
    t->nmodes = t->mode_floor = 0;
    set_level(0);
    etch__free(t->modes);
    t->modes = NULL, t->modes_cap = 0;
}

const etch_mode *etch__blocking_mode(void) {
    for (int i = etch__tls.mode_level - 1; i >= 0; i--)
        if (!etch__tls.modes[i]->options.allow_compiled) return etch__tls.modes[i];
    return NULL;
}

bool etch__mode_entered_since(int depth) {
    for (int i = depth; i < etch__tls.nmodes; i++)
        if (!etch__tls.modes[i]->options.allow_compiled) return true;
    return false;
}

/* ---- calling a handler ---- */

static int box_list(const int64_t *at, etch_value *v) {
    if (at[0] < 0) return 1;
    v->tag = ETCH_VALUE_INTS;
    v->ints.n = (int32_t)at[0];
    for (int i = 0; i < at[0] && i < ETCH_MAX_DIMS; i++) v->ints.v[i] = at[1 + i];
    return 1 + (int)at[0];
}

/* One argument that is a word or a list of words; returns how many it takes. */
static int box_attribute(arg_type type, const int64_t *at, etch_value *v) {
    v->tag = ETCH_VALUE_NONE;
    switch (type) {
    case ARG_INTS:
    case ARG_INTS_OPT: return box_list(at, v);
    case ARG_BOOL: v->tag = ETCH_VALUE_BOOL, v->b = at[0] != 0; break;
    case ARG_DTYPE:
    case ARG_DTYPE_OPT:
        if (at[0] >= 0) v->tag = ETCH_VALUE_DTYPE, v->dtype = at[0];
        break;
    default:
        if (type == ARG_INT || at[0] != ETCH_NO_INT) v->tag = ETCH_VALUE_INT, v->i = at[0];
    }
    return 1;
}

int etch__box(const op_call *call, etch_value *values) {
    const op_schema *s = etch__schema(call->op);
    const int64_t *at = call->at;
    int in = 0, sc = 0;
    for (int i = 0; i < s->nargs; i++) {
        etch_value *v = &values[i];
        v->name = s->args[i].keyword_only ? s->args[i].name : NULL;
        if (s->args[i].type == ARG_TENSOR || s->args[i].type == ARG_TENSOR_OPT) {
            v->tensor = call->in[in++];
            v->tag = v->tensor == ETCH_NONE ? ETCH_VALUE_NONE : ETCH_VALUE_TENSOR;
        } else if (s->args[i].type == ARG_SCALAR)
            v->tag = ETCH_VALUE_SCALAR, v->scalar = call->sc[sc++];
        else if (s->args[i].type == ARG_TENSORS)
            v->tag = ETCH_VALUE_TENSORS, v->tensors.items = call->in, v->tensors.count = call->nin;
        else at += box_attribute((arg_type)s->args[i].type, at, v);
    }
    return s->nargs;
}

/* The innermost handler's call with its boxed form: a list handed on as it came is not unboxed. */
typedef struct boxed_form {
    const op_call *call;
    const etch_value *args;
    int nargs;
} boxed_form;
static __thread const boxed_form *boxed __attribute__((tls_model("initial-exec")));

/* What a handler returned must be what the operator returns. */
static bool result_fits(const etch_mode *m, const op_call *call, const etch_tensor *h) {
    const char *name = etch__ops[call->op].name;
    if (!h)
        return etch__false_at(call->site, ETCH_ERR_INVALID_ARGUMENT,
                              "%s: mode '%s' returned success but no result", name, m->name);
    if (!etch__handle_ok(h, name, "result of a mode", call->site)) return false;
    if (m->options.unchecked || etch__ops[call->op].kind == KIND_COMPOSITE) return true;
    if (etch__ops[call->op].kind == KIND_INPLACE && h != call->in[0])
        return etch__false_at(call->site, ETCH_ERR_INVALID_ARGUMENT,
                              "%s: mode '%s' returned another tensor than the written argument",
                              name, m->name);
    tensor_meta meta;
    if (etch__infer(call, &meta, NULL) != ETCH_OK) return false;
    if (meta.dtype == h->dtype && SAME_SIZES(&meta, h)) return true;
    shape_text expected = etch__shape_text(meta.ndim, meta.size);
    shape_text got = etch__shape_text(h->ndim, h->size);
    return etch__false_at(
        call->site, ETCH_ERR_INVALID_ARGUMENT,
        "%s: mode '%s' returned %s%s, expected %s%s (unchecked = true accepts it)", name, m->name,
        etch_dtype_name(h->dtype), got.s, etch_dtype_name(meta.dtype), expected.s);
}

/* A status without an error of the handler's own gets one; where it is fine, what was before is
 * back. It is not where an operator that writes has failed and nobody cleared that. */
static etch_status handler_status(const op_call *call, etch_status status,
                                  const saved_error *before) {
    if (status == ETCH_OK && etch__tls.lost) status = etch__tls.status;
    if (status == ETCH_OK || status == ETCH_DECLINED) etch__error_restore(before);
    else if (etch__tls.status == ETCH_OK)
        etch__error_at(call->site, status, "%s: a mode's handler failed with %s",
                       etch__ops[call->op].name, etch_status_name(status));
    return status;
}

/* What a handler calls is noted on no tape: the call that it handles is. A composite's handler
 * stands above that. Returns the bit as it was. */
static uint64_t below_autograd(const op_call *call) {
    uint64_t before = etch__tls.state & STATE_NO_GRAD;
    if (etch__ops[call->op].kind != KIND_COMPOSITE) etch__tls.state |= STATE_NO_GRAD;
    return before;
}

/* The handler of the mode at `index`, with that mode and all above it off. What the handler leaves
 * on the stack is taken off again. */
static etch_status run_handler(int index, const op_call *call, etch_tensor **out) {
    etch_thread *t = &etch__tls;
    etch_mode *m = t->modes[index];
    int level = t->mode_level, floor = t->mode_floor;
    const op_call *outer = t->handled;
    const op_call *composite = t->composite;
    etch_value values[SCHEMA_MAX_ARGS];
    int n = etch__box(call, values);
    const boxed_form *outer_form = boxed, form = {call, values, n};
    boxed = &form;
    t->handled = call;
    t->composite = NULL; /* what the handler calls stands at its own lines */
    t->mode_floor = index;
    set_level(index);
    *out = NULL;
    saved_error before;
    etch__error_aside(&before);
    uint64_t gradients = below_autograd(call);
    etch_status status = m->handler(m->ctx, &etch__ops[call->op], values, n, out, 1);
    etch__tls.state = (etch__tls.state & ~(uint64_t)STATE_NO_GRAD) | gradients;
    status = handler_status(call, status, &before);
    while (t->mode_level > index) remove_top();
    boxed = outer_form;
    t->handled = outer;
    t->composite = composite;
    t->mode_floor = floor;
    set_level(level);
    if (status != ETCH_OK) return status;
    return result_fits(m, call, *out) ? ETCH_OK : t->status;
}

/* Inside a run, modes that allow compiled code see opaque operators only, through their kernels. */
static bool passes_by(const etch_mode *m) {
    return m->options.allow_compiled && (etch__tls.run || etch__tls.in_flush);
}

static etch_tensor *offer(const op_call *call) {
    etch_thread *t = &etch__tls;
    int level = t->mode_level;
    bool offered = false;
    for (int i = level - 1; i >= 0; i--) {
        if (passes_by(t->modes[i])) continue;
        offered = true;
        etch_tensor *out;
        etch_status status = run_handler(i, call, &out);
        if (status == ETCH_OK) return out;
        if (status != ETCH_DECLINED) return NULL;
    }
    if (!offered) return etch__dispatch_below(LAYER_MODES, call);
    set_level(0);
    etch_tensor *out = etch__dispatch_below(LAYER_MODES, call);
    set_level(level);
    return out;
}

static etch_tensor *offer_composite(const op_call *call) {
    etch_thread *t = &etch__tls;
    for (int i = t->mode_level - 1; i >= 0; i--) {
        if (!takes_composites(t->modes[i]) || passes_by(t->modes[i])) continue;
        etch_tensor *out;
        etch_status status = run_handler(i, call, &out);
        if (status == ETCH_OK) return out;
        if (status != ETCH_DECLINED) return NULL;
    }
    return etch__take_apart(call);
}

modes_off etch__modes_off(void) {
    etch_thread *t = &etch__tls;
    modes_off outer = {t->mode_level, t->mode_floor};
    t->mode_floor = 0;
    if (t->mode_level) set_level(0);
    return outer;
}

void etch__modes_restore(const modes_off *outer) {
    while (etch__tls.mode_level > 0) remove_top();
    etch__tls.mode_floor = outer->floor;
    if (outer->level) set_level(outer->level);
}

/* ---- opaque nodes of compiled code ---- */

/* What a handler returned becomes the contents of the node's result, past modes and tracer. */
static etch_status copy_result(const op_call *call, etch_tensor *to, etch_tensor *from) {
    etch_tensor *const in[2] = {to, from};
    const int64_t non_blocking = 0;
    op_call copy = {
        .op = OP_COPY_, .nin = 2, .nat = 1, .in = in, .at = &non_blocking, .site = call->site};
    return to == from || etch__run_eager(&copy) ? ETCH_OK : etch__tls.status;
}

etch_status etch__offer_opaque(const op_call *call, etch_tensor *const *out) {
    etch_thread *t = &etch__tls;
    for (int i = t->mode_level - 1; i >= 0; i--) {
        if (!t->modes[i]->options.allow_compiled) continue;
        etch_tensor *h;
        int64_t scope = etch_scope_begin();
        etch_status status = run_handler(i, call, &h);
        if (status == ETCH_OK) status = copy_result(call, out[0], h);
        etch_scope_end(scope);
        if (status != ETCH_DECLINED) return status;
    }
    return ETCH_DECLINED;
}

/* ---- public ---- */

etch_status etch_redispatch(const etch_op *op, const etch_value *args, int nargs, etch_tensor **out,
                            int nout) {
    const op_call *handled = etch__tls.handled;
    if (likely(handled && args == boxed->args && handled == boxed->call && nargs == boxed->nargs &&
               op == &etch__ops[handled->op] && out && nout == op->nout)) {
        out[0] = etch__dispatch(handled);
        return out[0] ? ETCH_OK : etch__tls.status;
    }
    if (!op || !out || nargs < 0 || (nargs && !args))
        return etch__error_at(__builtin_return_address(0), ETCH_ERR_NULL,
                              "etch_redispatch: expected an operator, values and room for results, "
                              "got NULL");
    bool again = handled && op && handled->op == op->id && op->flags & OPF_RANDOM;
    etch__tls.replayed = again ? handled->sc : NULL;
    etch_status status = etch_op_call(op, args, nargs, out, nout);
    etch__tls.replayed = NULL;
    return status;
}

const etch_value *etch_arg(const etch_op *op, const etch_value *args, int nargs, const char *name) {
    if (!op || !args || !name) return NULL;
    const op_schema *s = etch__schema(op->id);
    for (int i = 0; i < s->nargs && i < nargs; i++)
        if (!strcmp(s->args[i].name, name)) return &args[i];
    return NULL;
}

static const char *without_aten(const char *name) {
    return strncmp(name, "aten::", 6) ? name : name + 6;
}

bool etch_op_is(const etch_op *op, const char *name) {
    if (!op || !name) return false;
    const char *bare = without_aten(name);
    size_t n = strlen(bare);
    return !strncmp(op->name, bare, n) && (!op->name[n] || op->name[n] == '.');
}

/* The part before the dot; kept in a table, since names of operators live for ever. */
const char *etch_op_packet(const etch_op *op) {
    static _Atomic(const char *) packets[OP_CAPACITY];
    if (!op) return NULL;
    const char *dot = strchr(op->name, '.');
    if (!dot) return op->name;
    const char *known = packets[op->id];
    if (known) return known;
    char *packet = etch__strdup(op->name);
    if (!packet) return op->name;
    packet[dot - op->name] = 0;
    if (atomic_compare_exchange_strong(&packets[op->id], &known, packet)) return packet;
    etch__free(packet);
    return known;
}

int etch_inference_begin(void) {
    int outer = (etch__tls.state & STATE_INFERENCE) != 0;
    etch__tls.state |= STATE_INFERENCE;
    update_layers();
    return outer;
}

void etch_inference_end(int outer) {
    if (!outer) etch__tls.state &= ~(uint64_t)STATE_INFERENCE;
    update_layers();
}

bool etch_inference_enabled(void) { return (etch__tls.state & STATE_INFERENCE) != 0; }

void etch__start_modes(void) {
    etch__at_thread_end(leave_all);
    etch__register_layer(LAYER_MODES, offer);
    etch__register_layer(LAYER_COMPOSITE_MODES, offer_composite);
}
