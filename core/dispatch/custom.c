/* Custom operators and kernel overrides.
 *
 * A custom operator takes the next free row of the operator table, so everything that walks or
 * indexes the table (boxed calls, modes, tracer, graphs) knows it at once. Its kernel, and an
 * override's, is the user's function behind one trampoline that boxes the call. */
#include "core/base/locks.h"
#include "core/dispatch/dispatch.h"
#include "core/tensor/device.h"
#include "core/dispatch/lend.h"
#include "core/dispatch/mode.h"
#include "core/ops/rules.h"

#include <pthread.h>

/* What the trampoline calls: of a custom operator, or of the newest override. */
typedef struct user_kernel {
    etch_kernel kernel;
    void *ctx;
} user_kernel;

/* Where tensors lie, as far as kernels of the user go. */
typedef enum user_device { ON_CPU, ON_GPU, USER_DEVICES } user_device;

typedef struct custom_op {
    user_kernel kernel[USER_DEVICES]; /* the GPU's function may be NULL */
    bool issues_only;                 /* the GPU's: may be recorded */
    etch_shape_fn shape;
    void *ctx;
    custom_rules rules;
} custom_op;

struct etch_override {
    op_id op;
    user_device device;
    user_kernel kernel;
    etch_override *below; /* the override that it replaced, or NULL */
};

static custom_op custom[OP_CAPACITY - OP_COUNT];
static _Atomic(etch_override *) overrides[USER_DEVICES][OP_CAPACITY];
static op_kernel
    natives[OP_CAPACITY]; /* of operators that were overridden once: their own kernel */
_Atomic uint64_t etch__override_epoch;

/* ---- running the user's function ---- */

/* A failure that comes without an error of its own gets one; a success keeps the error that was
 * there before. It is none where an operator that writes has failed and nobody cleared that. */
static etch_status named_failure(const op_call *call, etch_status status, const char *what,
                                 const saved_error *before) {
    if (status == ETCH_OK && unlikely(etch__tls.lost)) status = etch__tls.status;
    if (status == ETCH_OK) etch__error_restore(before);
    else if (etch__tls.status == ETCH_OK)
        etch__error_at(call->site, status, "%s: the %s failed with %s", etch__ops[call->op].name,
                       what, etch_status_name(status));
    return status;
}

static etch_status call_user(const void *ctx, const op_call *call, etch_tensor *const *out) {
    const user_kernel *k = ctx;
    etch_value values[SCHEMA_MAX_ARGS];
    saved_error before;
    int n = etch__box(call, values);
    etch__error_aside(&before);
    modes_off modes = etch__modes_off();
    const op_call *outer = etch__tls.handled, *composite = etch__tls.composite;
    etch__tls.handled = call;
    etch__tls.composite = NULL; /* what the kernel calls stands at its own lines */
    int64_t scope = etch_scope_begin();
    etch_status status = scope < 0 ? ETCH_ERR_OUT_OF_MEMORY
                                   : k->kernel(k->ctx, &etch__ops[call->op], values, n, out, 1);
    etch_scope_end(scope);
    etch__tls.handled = outer, etch__tls.composite = composite;
    etch__modes_restore(&modes);
    return named_failure(call, status, "kernel", &before);
}

/* A call of the user's function: who is asked first, and whether it gets copies. */
typedef struct user_call {
    const user_kernel *kernel;
    bool opaque, copies;
} user_call;

/* Inside a run, modes that allow compiled code are asked first. */
static etch_status call_lent(const void *ctx, const op_call *call, etch_tensor *const *out) {
    const user_call *u = ctx;
    etch_status status = u->opaque ? etch__offer_opaque(call, out) : ETCH_DECLINED;
    if (status != ETCH_DECLINED) return status;
    return u->copies ? etch__lend_copies(call, out, call_user, u->kernel)
                     : call_user(u->kernel, call, out);
}

/* It never sees the caller's own handles: what it keeps holds what it held when it returned. */
static etch_status run_user(const user_kernel *k, bool copies, const op_call *call,
                            etch_tensor *const *out) {
    const user_call u = {k, etch__tls.run || etch__tls.in_flush, copies};
    if (etch__ops[call->op].flags & OPF_EFFECTS) etch__before_write(NULL);
    empty_frame frame = etch__push_user_frame();
    etch__tls.state = STATE_ON_DEVICE(etch__tls.state, copies ? 0 : out[0]->device) | STATE_NO_GRAD;
    etch_status status = etch__lend(call, out, call_lent, &u);
    etch__pop_frame(&frame);
    return status;
}

static etch_status run_custom(const op_call *call, etch_tensor *const *out) {
    return run_user(&custom[call->op - OP_COUNT].kernel[ON_CPU], false, call, out);
}

static const etch_override *newest(user_device at, int op) {
    return atomic_load_explicit(&overrides[at][op], memory_order_acquire);
}

/* The override may be gone again since the caller looked for a kernel. */
static etch_status run_override(const op_call *call, etch_tensor *const *out) {
    const etch_override *o = newest(ON_CPU, call->op);
    if (o) return run_user(&o->kernel, false, call, out);
    return etch__kernel_on_second_stack(natives[call->op], call, out);
}

/* ---- on a device ---- */

/* The user's kernel for tensors on a device; NULL: there is none. *copies: it is the CPU's. */
static const user_kernel *kernel_on_gpu(op_id op, bool *copies) {
    const etch_override *o = newest(ON_GPU, op);
    *copies = false;
    if (o) return &o->kernel;
    if (op < OP_COUNT) return NULL;
    const custom_op *c = &custom[op - OP_COUNT];
    if (c->kernel[ON_GPU].kernel) return &c->kernel[ON_GPU];
    *copies = true;
    o = newest(ON_CPU, op);
    return o ? &o->kernel : &c->kernel[ON_CPU];
}

bool etch__users_on_device(op_id op) {
    bool copies;
    return kernel_on_gpu(op, &copies) != NULL;
}

bool etch__users_only_issue(op_id op) {
    if (op < OP_COUNT || newest(ON_GPU, op)) return false;
    const custom_op *c = &custom[op - OP_COUNT];
    return c->kernel[ON_GPU].kernel && c->issues_only;
}

etch_status etch__run_users_on_device(const op_call *call, etch_tensor *const *out) {
    bool copies;
    const user_kernel *k = kernel_on_gpu(call->op, &copies);
    return k ? run_user(k, copies, call, out) : etch__run_on_host(call, out);
}

/* ---- inference ---- */

static etch_status bad_spec(const op_call *call, const char *what) {
    return etch__error_at(call->site, ETCH_ERR_SHAPE, "%s: the shape function gave %s",
                          etch__ops[call->op].name, what);
}

static etch_status meta_of_spec(const op_call *call, const etch_tensor_spec *spec,
                                tensor_meta *out) {
    if ((unsigned)spec->dtype >= ETCH_DTYPE_COUNT) return bad_spec(call, "no dtype");
    if (spec->sizes.n < 0 || spec->sizes.n > ETCH_MAX_DIMS) return bad_spec(call, "a bad rank");
    out->dtype = (uint8_t)spec->dtype, out->ndim = (uint8_t)spec->sizes.n;
    out->offset = 0;
    for (int d = 0; d < spec->sizes.n; d++) {
        if (spec->sizes.v[d] < 0) return bad_spec(call, "a negative size");
        out->size[d] = spec->sizes.v[d];
    }
    if (etch__row_major(out->ndim, out->size, out->stride) < 0)
        return bad_spec(call, "sizes that overflow");
    return ETCH_OK;
}

static etch_status infer_custom(const op_call *call, tensor_meta *out, etch_dtype *compute_dtype) {
    const custom_op *c = &custom[call->op - OP_COUNT];
    const op_info *op = &etch__ops[call->op];
    if (op->kind == KIND_INPLACE) {
        const etch_tensor *t = call->in[0];
        out->dtype = t->dtype, out->ndim = t->ndim, out->offset = t->offset;
        memcpy(out->size, t->size, sizeof t->size);
        memcpy(out->stride, t->stride, sizeof t->stride);
    } else {
        etch_value values[SCHEMA_MAX_ARGS];
        etch_tensor_spec spec = {0};
        saved_error before;
        int n = etch__box(call, values);
        etch__error_aside(&before);
        const op_call *outer = etch__tls.handled;
        etch__tls.handled = call;
        etch_status status = c->shape(c->ctx, op, values, n, &spec, 1);
        etch__tls.handled = outer;
        status = named_failure(call, status, "shape function", &before);
        if (status == ETCH_OK) status = meta_of_spec(call, &spec, out);
        if (status != ETCH_OK) return status;
    }
    if (compute_dtype) *compute_dtype = out->dtype;
    return ETCH_OK;
}

/* ---- registering ---- */

/* The C-like part of a name: letters, digits, '_', '.', and "::" between them. */
static size_t name_length(const char *schema) {
    return strspn(schema, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:");
}

const custom_rules *etch__custom_rules(op_id op) { return &custom[op - OP_COUNT].rules; }

static bool refuse(const char *schema, const char *why) {
    return etch__false_at(NULL, ETCH_ERR_FORMAT, "etch_op_register: \"%s\": %s", schema, why);
}

/* One result; what may be written is the first argument, which then is the result. */
static bool result_ok(const char *schema, const op_schema *s, bool *inplace) {
    const char *arrow = strstr(schema, ") -> ");
    *inplace = s->nargs > 0 && s->args[0].written;
    for (int i = 1; i < s->nargs; i++)
        if (s->args[i].written) return refuse(schema, "only the first argument may be written");
    if (*inplace && s->args[0].type != ARG_TENSOR)
        return refuse(schema, "what is written is a Tensor, \"Tensor(a!) self\"");
    const char *wanted = *inplace ? "Tensor(a!)" : "Tensor";
    if (!arrow || strcmp(arrow + 5, wanted))
        return refuse(schema, *inplace ? "expected the result \"Tensor(a!)\", the written argument"
                                       : "expected one result, \"-> Tensor\"");
    return true;
}

static bool has_tensor(const op_schema *s) {
    int lists = 0, single = 0;
    for (int i = 0; i < s->nargs; i++) {
        lists += s->args[i].type == ARG_TENSORS;
        single += s->args[i].type == ARG_TENSOR;
    }
    return lists ? lists == 1 && !single : single > 0;
}

static bool check_schema(const char *schema, op_schema *s, bool *inplace) {
    size_t n = name_length(schema);
    if (!n || schema[n] != '(') return refuse(schema, "expected \"name(arguments) -> Tensor\"");
    const char *colons = strstr(schema, "::");
    if (!colons || colons == schema || colons + 2 >= schema + n)
        return refuse(schema, "the name needs a namespace, \"mylib::name\"");
    if (strstr(schema, "(a)")) return refuse(schema, "no aliasing may be declared");
    memset(s, 0, sizeof *s);
    if (!etch__schema_parse(schema, s))
        return refuse(schema,
                      "the arguments do not parse: expected \"Tensor a, Scalar b=1\" and so on, at "
                      "most 8, each with a name of its own; defaults fit their types, and Tensor "
                      "has none (\"Tensor? a=None\" has)");
    int scalars = 0;
    for (int i = 0; i < s->nargs; i++) scalars += s->args[i].type == ARG_SCALAR;
    if (scalars > OP_MAX_SCALARS) return refuse(schema, "at most 4 Scalar arguments");
    if (!has_tensor(s)) return refuse(schema, "expected tensor arguments, or one Tensor[]");
    return result_ok(schema, s, inplace);
}

static bool name_taken(const char *name) {
    for (int i = 0; i < etch__op_count; i++)
        if (!strcmp(etch__ops[i].name, name)) return true;
    return false;
}

/* Fills the next row; readers see it once the count says so. */
static op_info *add_row(const char *schema, const op_schema *s, bool inplace,
                        const etch_op_definition *d) {
    int id = etch__op_count;
    size_t n = name_length(schema);
    char *name = etch__strdup(schema), *text = etch__strdup(schema);
    if (!name || !text) {
        etch__free(name);
        etch__free(text);
        return NULL;
    }
    name[n] = 0;
    if (id == OP_CAPACITY || name_taken(name)) {
        etch__error_at(NULL, ETCH_ERR_INVALID_ARGUMENT, "etch_op_register: \"%s\": %s", name,
                       id == OP_CAPACITY ? "the operator table is full" : "the name is taken");
        etch__free(name);
        etch__free(text);
        return NULL;
    }
    op_info *op = &etch__ops[id];
    op->id = (uint16_t)id;
    op->kind = inplace ? KIND_INPLACE : KIND_OTHER;
    op->flags = d->effects ? OPF_EFFECTS : 0;
    op->nout = 1, op->impl = -1, op->plain = OP_COUNT, op->infer = infer_custom;
    op->name = name, op->schema = text, op->cfn = "";
    custom[id - OP_COUNT] = (custom_op){{{d->cpu, d->ctx}, {d->cuda, d->ctx}},
                                        d->cuda_issues_only,
                                        d->shape,
                                        d->ctx,
                                        {d->derivative, d->vmap, d->jvp, d->ctx}};
    etch__schema_set(id, s);
    etch__register_kernel(id, run_custom);
    etch__op_count = id + 1;
    return op;
}

const etch_op *etch_op_register(const char *schema, const etch_op_definition *definition) {
    etch_op_definition d = {0};
    op_schema s;
    bool inplace = false;
    if (!schema || !definition)
        return etch__null_at(NULL, ETCH_ERR_NULL,
                             "etch_op_register: expected a schema and a definition, got NULL");
    size_t given = definition->struct_size;
    memcpy(&d, definition, given && given < sizeof d ? given : sizeof d);
    if (!check_schema(schema, &s, &inplace)) return NULL;
    if (!d.cpu || (!inplace && !d.shape))
        return etch__null_at(NULL, ETCH_ERR_NULL,
                             "etch_op_register: \"%s\": expected a cpu kernel and a shape function",
                             schema);
    etch__lock(LOCK_CUSTOM);
    op_info *op = add_row(schema, &s, inplace, &d);
    etch__unlock(LOCK_CUSTOM);
    return op;
}

etch_status etch_set_error(etch_status status, const char *text) {
    const op_call *call = etch__tls.handled; /* the handler's or kernel's error is at its call */
    const void *caller = __builtin_return_address(0);
    if (!call && etch__user_site(caller, NULL) != caller) /* modules and ready-made modes */
        return etch__error(status, "%s", text ? text : etch_status_name(status));
    return etch__error_of_user(call ? call->site : NULL, status,
                               text ? text : etch_status_name(status));
}

/* ---- overrides ---- */

/* Inside a body: what was called before still means the old kernel. */
static etch_status break_here(const void *site) {
    if (!etch__tls.run) return ETCH_OK;
    return etch__trace_hooks.read(NULL, REASON_BREAK_OVERRIDE, site);
}

/* Traces made before know another kernel: they are left at the next entry. Raised after the change,
 * so that no trace of the new epoch can have seen the old kernel. */
static void new_epoch(void) { atomic_fetch_add(&etch__override_epoch, 1); }

static const char *const user_device_names[USER_DEVICES] = {"cpu", "cuda"};

static bool can_override(const etch_op *op, const char *device, etch_kernel kernel,
                         user_device *at) {
    if (!op || !device || !kernel)
        return etch__false_at(
            NULL, ETCH_ERR_NULL,
            "etch_op_override: expected an operator, a device and a kernel, got NULL");
    for (*at = ON_CPU; *at < USER_DEVICES && strcmp(device, user_device_names[*at]) != 0;) ++*at;
    if (*at == USER_DEVICES)
        return etch__false_at(
            NULL, ETCH_ERR_DEVICE,
            "%s: no device is called \"%s\"; there is \"cpu\", and \"cuda\" for all GPUs", op->name,
            device);
    if (etch__kernel(op->id)) return true;
    return etch__false_at(NULL, ETCH_ERR_UNSUPPORTED,
                          "%s: views and composites have no kernel to override", op->name);
}

etch_override *etch_op_override(const etch_op *op, const char *device, etch_kernel kernel,
                                void *ctx) {
    user_device at;
    if (!can_override(op, device, kernel, &at)) return NULL;
    etch_override *o = etch__malloc(sizeof *o);
    if (!o || break_here(__builtin_return_address(0)) != ETCH_OK) {
        etch__free(o);
        return NULL;
    }
    etch__lock(LOCK_CUSTOM);
    etch_override *below = overrides[at][op->id];
    *o = (etch_override){op->id, at, {kernel, ctx}, below};
    if (!below && at == ON_CPU) natives[op->id] = etch__kernel(op->id);
    atomic_store_explicit(&overrides[at][op->id], o, memory_order_release);
    etch__ops[op->id].overridden = true;
    if (at == ON_CPU) etch__register_kernel(op->id, run_override);
    etch__unlock(LOCK_CUSTOM);
    new_epoch();
    return o;
}

void etch_op_override_undo(etch_override *o) {
    if (!o) return;
    break_here(__builtin_return_address(0));
    etch__lock(LOCK_CUSTOM);
    _Atomic(etch_override *) *top = &overrides[o->device][o->op];
    if (*top == o) {
        if (!o->below && o->device == ON_CPU) etch__register_kernel(o->op, natives[o->op]);
        atomic_store_explicit(top, o->below, memory_order_release);
        etch__ops[o->op].overridden = overrides[ON_CPU][o->op] || overrides[ON_GPU][o->op];
    }
    for (etch_override *above = *top; above; above = above->below)
        if (above->below == o) above->below = o->below;
    etch__unlock(LOCK_CUSTOM);
    new_epoch();
    etch__free(o);
}
