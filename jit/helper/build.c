/* A thin layer over libgccjit: statements go to the cursor g->at, expressions are values. */
#include "gen.h"

#include <stdio.h>

static type compute_type(emitter *g, etch_dtype d) {
    switch (d) {
    case ETCH_F64: return gcc_jit_context_get_type(g->c, GCC_JIT_TYPE_DOUBLE);
    case ETCH_I8: return gcc_jit_context_get_int_type(g->c, 1, 1);
    case ETCH_I16: return gcc_jit_context_get_int_type(g->c, 2, 1);
    case ETCH_I32: return gcc_jit_context_get_int_type(g->c, 4, 1);
    case ETCH_I64: return g->t_long;
    case ETCH_U8: return gcc_jit_context_get_int_type(g->c, 1, 0);
    case ETCH_BOOL: return g->t_bool;
    default: return gcc_jit_context_get_type(g->c, GCC_JIT_TYPE_FLOAT);
    }
}

void gen_types(emitter *g) {
    g->t_void = gcc_jit_context_get_type(g->c, GCC_JIT_TYPE_VOID);
    g->t_int = gcc_jit_context_get_type(g->c, GCC_JIT_TYPE_INT);
    g->t_long = gcc_jit_context_get_type(g->c, GCC_JIT_TYPE_LONG);
    g->t_bool = gcc_jit_context_get_type(g->c, GCC_JIT_TYPE_BOOL);
    g->t_u32 = gcc_jit_context_get_int_type(g->c, 4, 0);
    g->t_u64 = gcc_jit_context_get_int_type(g->c, 8, 0);
    for (int d = 0; d < ETCH_DTYPE_COUNT; d++) g->compute[d] = g->storage[d] = compute_type(g, d);
    g->storage[ETCH_BF16] = g->storage[ETCH_F16] = gcc_jit_context_get_int_type(g->c, 2, 0);
    g->storage[ETCH_BOOL] = gcc_jit_context_get_int_type(g->c, 1, 0);
}

var gen_local(emitter *g, type t, const char *name) {
    char unique[64];
    snprintf(unique, sizeof unique, "%s_%d", name, g->names++);
    return gcc_jit_function_new_local(g->fn, NULL, t, unique);
}

val gen_array(emitter *g, type t, int n, const char *name) {
    g->array_bytes += 8 * (long)n; /* no element is larger */
    var a = gen_local(g, gcc_jit_context_new_array_type(g->c, NULL, t, n), name);
    gcc_jit_lvalue_set_alignment(a, 64);
    return cast(g, gcc_jit_lvalue_get_address(a, NULL), gcc_jit_type_get_pointer(t));
}

void set(emitter *g, var to, val v) { gcc_jit_block_add_assignment(g->at, NULL, to, v); }

var keep(emitter *g, type t, val v, const char *name) {
    var l = gen_local(g, t, name);
    set(g, l, v);
    return l;
}

val num(emitter *g, int64_t v) { return gcc_jit_context_new_rvalue_from_long(g->c, g->t_long, v); }
val constant(emitter *g, type t, int64_t v) {
    return gcc_jit_context_new_rvalue_from_long(g->c, t, v);
}

val op(emitter *g, enum gcc_jit_binary_op o, type t, val a, val b) {
    return gcc_jit_context_new_binary_op(g->c, NULL, o, t, a, b);
}
val add(emitter *g, val a, val b) { return op(g, GCC_JIT_BINARY_OP_PLUS, g->t_long, a, b); }
val sub(emitter *g, val a, val b) { return op(g, GCC_JIT_BINARY_OP_MINUS, g->t_long, a, b); }
val mul(emitter *g, val a, val b) { return op(g, GCC_JIT_BINARY_OP_MULT, g->t_long, a, b); }
val quot(emitter *g, val a, val b) { return op(g, GCC_JIT_BINARY_OP_DIVIDE, g->t_long, a, b); }
val rem(emitter *g, val a, val b) { return op(g, GCC_JIT_BINARY_OP_MODULO, g->t_long, a, b); }

val cmp(emitter *g, enum gcc_jit_comparison o, val a, val b) {
    return gcc_jit_context_new_comparison(g->c, NULL, o, a, b);
}
val cast(emitter *g, val v, type t) { return gcc_jit_context_new_cast(g->c, NULL, v, t); }
val bits(emitter *g, val v, type t) { return gcc_jit_context_new_bitcast(g->c, NULL, v, t); }

val either(emitter *g, val a, val b) {
    return op(g, GCC_JIT_BINARY_OP_BITWISE_OR, g->t_bool, a, b);
}
val both(emitter *g, val a, val b) { return op(g, GCC_JIT_BINARY_OP_BITWISE_AND, g->t_bool, a, b); }

/* Two assignments and a branch: the vectoriser makes it a blend. */
val choose(emitter *g, type t, val cond, val a, val b) {
    var x = keep(g, t, a, "a"), r = keep(g, t, b, "r");
    gen_if i = if_begin(g, cond);
    set(g, r, rv(x));
    if_end(g, &i);
    return rv(r);
}

val min_of(emitter *g, val a, val b) {
    return choose(g, g->t_long, cmp(g, GCC_JIT_COMPARISON_LT, a, b), a, b);
}

var elem(emitter *g, val pointer, val index) {
    return gcc_jit_context_new_array_access(g->c, NULL, pointer, index);
}

/* ---- vectors ---- */

int vec_lanes(const emitter *g, etch_dtype t) {
    static const int bytes[CPU_ISA_COUNT] = {16, 32, 64};
    return bytes[g->isa] / (t == ETCH_F32 ? 4 : 8);
}

/* libgccjit takes two equal vector types for different ones, so each is made once. */
type vec_type(emitter *g, etch_dtype t) {
    if (!g->vector[t]) {
        type v = gcc_jit_type_get_vector(g->compute[t], (size_t)vec_lanes(g, t));
        g->vector[t] = v;
        g->memory_vector[t] = gcc_jit_type_get_aligned(v, t == ETCH_F32 ? 4 : 8);
    }
    return g->vector[t];
}

val vec_splat(emitter *g, etch_dtype t, val x) {
    val all[16];
    int lanes = vec_lanes(g, t);
    for (int n = 0; n < lanes; n++) all[n] = x;
    return gcc_jit_context_new_rvalue_from_vector(g->c, NULL, vec_type(g, t), (size_t)lanes, all);
}

static var vec_at(emitter *g, etch_dtype t, val pointer, val index) {
    vec_type(g, t);
    val address = gcc_jit_lvalue_get_address(elem(g, pointer, index), NULL);
    address = cast(g, address, gcc_jit_type_get_pointer(g->memory_vector[t]));
    return gcc_jit_rvalue_dereference(address, NULL);
}

val vec_load(emitter *g, etch_dtype t, val pointer, val index) {
    return bits(g, rv(vec_at(g, t, pointer, index)), vec_type(g, t));
}

void vec_store(emitter *g, etch_dtype t, val pointer, val index, val v) {
    var to = vec_at(g, t, pointer, index);
    set(g, to, bits(g, v, g->memory_vector[t]));
}

val builtin(emitter *g, const char *name, int n, val *args) {
    gcc_jit_function *f = gcc_jit_context_get_builtin_function(g->c, name);
    return gcc_jit_context_new_call(g->c, NULL, f, n, args);
}

/* ---- control flow ---- */

gen_loop while_begin(emitter *g) {
    gen_loop l = {NULL, gcc_jit_function_new_block(g->fn, NULL),
                  gcc_jit_function_new_block(g->fn, NULL), NULL};
    gcc_jit_block_end_with_jump(g->at, NULL, l.head);
    g->at = l.head;
    return l;
}

void while_test(emitter *g, gen_loop *l, val cond) {
    gcc_jit_block *body = gcc_jit_function_new_block(g->fn, NULL);
    gcc_jit_block_end_with_conditional(g->at, NULL, cond, body, l->after);
    g->at = body;
}

gen_loop for_begin(emitter *g, val from, val to, int step, const char *name) {
    var i = keep(g, g->t_long, from, name);
    gen_loop l = while_begin(g);
    l.i = i, l.step = num(g, step);
    while_test(g, &l, cmp(g, GCC_JIT_COMPARISON_LT, rv(i), to));
    return l;
}

void for_end(emitter *g, const gen_loop *l) {
    if (l->i) set(g, l->i, add(g, rv(l->i), l->step));
    gcc_jit_block_end_with_jump(g->at, NULL, l->head);
    g->at = l->after;
}

gen_if if_begin(emitter *g, val cond) {
    gen_if i = {gcc_jit_function_new_block(g->fn, NULL), NULL};
    gcc_jit_block *then = gcc_jit_function_new_block(g->fn, NULL);
    gcc_jit_block_end_with_conditional(g->at, NULL, cond, then, i.otherwise);
    g->at = then;
    return i;
}

void if_else(emitter *g, gen_if *i) {
    i->after = gcc_jit_function_new_block(g->fn, NULL);
    gcc_jit_block_end_with_jump(g->at, NULL, i->after);
    g->at = i->otherwise;
}

void if_end(emitter *g, gen_if *i) {
    gcc_jit_block *after = i->after ? i->after : i->otherwise;
    gcc_jit_block_end_with_jump(g->at, NULL, after);
    g->at = after;
}
