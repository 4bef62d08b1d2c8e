/* The layer of batched tensors: which level an operator call is taken at, and random numbers. */
#include "core/transforms/batching.h"
#include "core/transforms/rules.h"
#include "core/transforms/tangent.h"

#include "core/base/start.h"

/* ---- which level ---- */

static uint32_t highest_level(const op_call *call) {
    uint32_t level = 0;
    for (int i = 0; i < call->nin; i++) {
        uint32_t l = etch__level_of(call->in[i]);
        if (l > level) level = l;
    }
    return level;
}

/* Backward passes work at levels that are closed. */
static bool may_be_used(const op_call *call, uint32_t level) {
    if (etch__tls.backward_depth || etch__level_is_open(level)) return true;
    return etch__false_at(
        call->site, ETCH_ERR_BATCHED,
        "%s: expected tensors of this call of a mapped function, got a batched one "
        "of a call that has ended; return it from the function that etch_vmap maps",
        etch__ops[call->op].name);
}

/* ---- operands ---- */

typedef struct operands {
    etch_tensor **in;
    bool *batched;
    etch_tensor *few[CURSOR_MAX_IN];
    bool few_batched[CURSOR_MAX_IN];
} operands;

static bool take_operands(operands *o, const op_call *call) {
    o->in = o->few, o->batched = o->few_batched;
    if (call->nin <= CURSOR_MAX_IN) return true;
    o->in = etch__malloc(call->nin * (sizeof *o->in + sizeof *o->batched));
    o->batched = (bool *)(o->in + call->nin);
    return o->in != NULL;
}
static void drop_operands(const operands *o) {
    if (o->in != o->few) etch__free(o->in);
}

/* Samples of one level are as many in all operands. */
static bool fill_operands(operands *o, const op_call *call, uint32_t level, int64_t *size) {
    *size = -1;
    for (int i = 0; i < call->nin; i++) {
        etch_tensor *t = call->in[i];
        o->batched[i] = etch__level_of(t) == level;
        o->in[i] = o->batched[i] ? t->notes->inner : t;
        if (!o->batched[i]) continue;
        if (*size < 0) *size = etch__batch_size(t);
        if (*size == etch__batch_size(t)) continue;
        return etch__false_at(call->site, ETCH_ERR_INTERNAL, "%s: batches of %ld and %ld samples",
                              etch__ops[call->op].name, (long)*size, (long)etch__batch_size(t));
    }
    return true;
}

static bool may_write(const op_call *call, const operands *o) {
    if (etch__ops[call->op].kind != KIND_INPLACE) return true;
    if (o->batched[0] && (o->in[0]->stride[0] || o->in[0]->size[0] < 2)) return true;
    return etch__false_at(
        call->site, ETCH_ERR_BATCHED,
        "%s: a batched value is to be written in place into memory that all samples share; compute "
        "a "
        "new tensor, or write into one made from a batched one (etch_zeros_like, etch_clone)",
        etch__ops[call->op].name);
}

/* ---- the rule ---- */

/* What it calls is not noted, has no tangents, and stands at the user's call. */
static etch_tensor *run_rule(const batched_call *b) {
    uint64_t state = etch__tls.state;
    uint32_t limit = etch__tangent_limit(1);
    const op_call *outer = etch__tls.composite;
    if (!outer) etch__tls.composite = b->call;
    etch__tls.state |= STATE_NO_GRAD;
    etch_tensor *t = etch__batching(b->call->op)(b);
    etch__tls.state = (etch__tls.state & ~(uint64_t)STATE_NO_GRAD) | (state & STATE_NO_GRAD);
    etch__tls.composite = outer;
    etch__tangent_limit(limit);
    return t;
}

static etch_tensor *run_at(const op_call *call, uint32_t level, operands *o) {
    tensor_meta one;
    etch_dtype compute = ETCH_F32;
    batched_call b = {call, o->in, o->batched, &one, compute, 0};
    if (!fill_operands(o, call, level, &b.size) || !may_write(call, o)) return NULL;
    if (etch__infer(call, &one, &compute) != ETCH_OK) return NULL;
    b.compute = compute;
    etch_tensor *t = run_rule(&b);
    if (!t || etch__ops[call->op].kind == KIND_INPLACE) return t ? call->in[0] : NULL;
    return etch__batch_made(t, level);
}

static etch_tensor *batched_operator(const op_call *call) {
    uint32_t level = highest_level(call);
    operands o;
    if (!may_be_used(call, level) || !take_operands(&o, call)) return NULL;
    etch_tensor *t = run_at(call, level, &o);
    drop_operands(&o);
    return t;
}

/* ---- random numbers ---- */

/* The numbers as the levels below the innermost open one have them. */
static etch_tensor *random_below(const op_call *call, etch_shape size) {
    int64_t given = call->at[call->nat - 1];
    etch_dtype dtype = given < 0 ? etch_default_dtype() : (etch_dtype)given;
    bool last = !--etch__tls.nlevels;
    if (last) etch__tls.layers &= ~(1u << LAYER_VMAP);
    etch_tensor *t = call->op == OP_RAND ? etch_rand(dtype, size) : etch_randn(dtype, size);
    etch__tls.layers |= 1u << LAYER_VMAP;
    etch__tls.nlevels++;
    return t;
}

static etch_tensor *random_numbers(const op_call *call) {
    const batch_level *l = &etch__tls.open->mapped[etch__tls.nlevels - 1];
    etch_shape size = {.n = (int32_t)call->at[0]};
    if (l->randomness == ETCH_RANDOM_ERROR)
        return etch__null_at(call->site, ETCH_ERR_BATCHED,
                             "%s: random numbers in a mapped function: say whether each sample has "
                             "its own (etch_vmap with .randomness = ETCH_RANDOM_DIFFERENT) or all "
                             "the same (ETCH_RANDOM_SAME)",
                             etch__ops[call->op].name);
    tensor_meta one;
    if (etch__infer(call, &one, NULL) != ETCH_OK) return NULL;
    memcpy(size.v, call->at + 1, (size_t)size.n * sizeof *size.v);
    if (l->randomness == ETCH_RANDOM_SAME) return random_below(call, size);
    if (size.n == ETCH_MAX_DIMS)
        return etch__null_at(call->site, ETCH_ERR_SHAPE,
                             "%s: expected at most %d dimensions beside the batch, got %d",
                             etch__ops[call->op].name, ETCH_MAX_DIMS - 1, size.n);
    return etch__batch_made(random_below(call, etch__batch_and(l->size, size.n, size.v)), l->level);
}

/* ---- the layer ---- */

static etch_tensor *batch_layer(const op_call *call) {
    if (highest_level(call)) return batched_operator(call);
    if (!(etch__ops[call->op].flags & OPF_RANDOM)) return etch__dispatch_below(LAYER_VMAP, call);
    etch__drop_left_levels();
    return etch__tls.nlevels ? random_numbers(call) : etch__dispatch_below(LAYER_VMAP, call);
}

static etch_tensor *zeros_to_fill(etch_tensor *like) {
    etch_dtype dtype = (etch_dtype)like->dtype;
    return etch__zeros_batched(dtype, etch_sizes(like), like->device, &like, 1);
}
static etch_tensor *copy_to_fill(etch_tensor *t, etch_tensor *src) {
    return etch__copy_batched_as(t, &src, 1);
}

void etch__start_batches(void) {
    etch__register_layer(LAYER_VMAP, batch_layer);
    etch__zeros_to_fill = zeros_to_fill;
    etch__copy_to_fill = copy_to_fill;
}
