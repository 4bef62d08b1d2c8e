/* Inference: what a call's result will be, or why the call is wrong, before anything is touched.
 *
 * Two tables, one function a rule: dtype rules (core/ops/infer_dtype.c) and shape rules
 * (core/ops/infer_shape.c and, for views, core/ops/infer_view.c). It runs on every operator call,
 * so the common cases come first in each rule and nothing is formatted unless something is
 * wrong. */
#include "core/ops/rules.h"
#include "core/ops/schema.h"
#include "core/tensor/device.h"

#define FAIL(...) return etch__infer_fail(call, __VA_ARGS__)

/* ---- operands ---- */

/* The schema's argument that operand i is, or is in (of a list). */
static const schema_arg *operand_arg(op_id op, int i) {
    const op_schema *s = etch__schema(op);
    for (int k = 0; k < s->nargs; k++) {
        if (s->args[k].type == ARG_TENSORS) return &s->args[k];
        bool tensor = s->args[k].type == ARG_TENSOR || s->args[k].type == ARG_TENSOR_OPT;
        if (tensor && i-- == 0) return &s->args[k];
    }
    return NULL;
}

const char *etch__operand_name(op_id op, int i) {
    const schema_arg *a = operand_arg(op, i);
    return a ? a->name : "?";
}

bool etch__bad_operand(const op_call *call, int i) {
    return etch__bad_handle(call->in[i], etch__ops[call->op].name, etch__operand_name(call->op, i),
                            call->site);
}

static bool is_optional(op_id op, int i) {
    const schema_arg *a = operand_arg(op, i);
    return a && a->type == ARG_TENSOR_OPT;
}

bool etch__operands_present(const op_call *call) {
    for (int i = 0; i < call->nin; i++)
        if (unlikely(call->in[i]->dtype >= ETCH_DTYPE_COUNT) && !is_optional(call->op, i))
            FAIL(ETCH_ERR_INVALID_ARGUMENT, "argument \"%s\" is not optional, got ETCH_NONE",
                 etch__operand_name(call->op, i));
    return true;
}

/* Names the k-th scalar argument of the operator; seed and offset are the library's own. */
static const char *scalar_name(op_id op, int k) {
    const op_schema *s = etch__schema(op);
    for (int i = 0; i < s->nargs; i++)
        if (s->args[i].type == ARG_SCALAR && k-- == 0) return s->args[i].name;
    return "?";
}

bool etch__scalar_kinds_ok(const op_call *call) {
    for (int i = 0; i < call->nsc; i++)
        if (unlikely((unsigned)call->sc[i].kind > ETCH_SCALAR_REAL))
            FAIL(ETCH_ERR_INVALID_ARGUMENT,
                 "argument \"%s\": expected an etch_scalar of kind 0 to %d, got kind %d",
                 scalar_name(call->op, i), ETCH_SCALAR_REAL, (int)call->sc[i].kind);
    return true;
}

static inline bool any_absent(const op_call *call) {
    for (int i = 0; i < call->nin; i++)
        if (unlikely(call->in[i] == ETCH_NONE)) return true;
    return false;
}

/* A kind never falls: real > integer > bool. */
static bool check_inplace_dtype(const op_call *call, etch_dtype computed) {
    etch_dtype self = call->in[0]->dtype;
    bool lost = (etch__is_float(computed) && !etch__is_float(self)) ||
                (computed != ETCH_BOOL && self == ETCH_BOOL);
    if (likely(!lost)) return true;
    FAIL(ETCH_ERR_DTYPE, "the result is of %s, which self of %s cannot hold",
         etch_dtype_name(computed), etch_dtype_name(self));
}

/* ---- devices: all operands are on one, where the result will be too ---- */

static etch_status mixed_devices(const op_call *call, int device) {
    for (int i = 0; i < call->nin; i++)
        if (call->in[i] != ETCH_NONE && call->in[i]->device != device)
            return etch__error_at(call->site, ETCH_ERR_DEVICE,
                                  "%s: expected all tensors on one device, got \"%s\" on %s "
                                  "beside one on %s; copy one with etch_to_device",
                                  etch__ops[call->op].name, etch__operand_name(call->op, i),
                                  etch_device_name(call->in[i]->device), etch_device_name(device));
    return ETCH_OK;
}

static inline etch_status infer_device(const op_call *call, tensor_meta *out) {
    int device = call->nin ? call->in[0]->device : STATE_DEVICE(etch__tls.state), other = 0;
    for (int i = 1; i < call->nin; i++) other |= call->in[i]->device ^ device;
    out->device = (uint8_t)device;
    if (unlikely(call->op == OP_TO_DEVICE)) {
        int to = call->at[0] == (int)call->at[0] ? (int)call->at[0] : -1;
        if (!etch__device_check(to, etch__ops[OP_TO_DEVICE].name, call->site))
            return ETCH_ERR_DEVICE;
        out->device = (uint8_t)to;
    }
    return likely(!other) ? ETCH_OK : mixed_devices(call, device);
}

etch_status etch__infer(const op_call *call, tensor_meta *out, etch_dtype *compute_dtype) {
    if (unlikely(infer_device(call, out) != ETCH_OK)) return etch__tls.status;
    const op_info *op = &etch__ops[call->op];
    if (unlikely(call->op >= OP_COUNT)) return op->infer(call, out, compute_dtype);
    call_dtypes d;
    if (unlikely(any_absent(call)) && !etch__operands_present(call)) return etch__tls.status;
    if (!etch__dtype_rules[op->drule](call, &d)) return etch__tls.status;
    if (op->kind == KIND_INPLACE) {
        if (!check_inplace_dtype(call, d.result)) return etch__tls.status;
        d.result = call->in[0]->dtype;
    }
    out->dtype = (uint8_t)d.result;
    if (compute_dtype) *compute_dtype = d.compute;
    shape_fn rule =
        op->kind == KIND_VIEW ? etch__view_rules[op->srule] : etch__shape_rules[op->srule];
    return rule(call, out) ? ETCH_OK : etch__tls.status;
}

etch_status etch__infer_under(uint64_t state, const op_call *call, tensor_meta *out,
                              etch_dtype *compute_dtype) {
    uint64_t now = etch__tls.state;
    etch__tls.state = state;
    etch_status status = etch__infer(call, out, compute_dtype);
    etch__tls.state = now;
    return status;
}
