/* Statements of random programs about gradients, and what is done around their calls. */
#include "generator.h"

/* One that requires gradients; -1: none. `leaf`: that is a leaf. */
int gen_some_grad(generator *g, bool leaf) {
    int found = -1;
    for (int n = 0, seen = 0; n < g->nvars; n++) {
        if (!gen_usable(g, n) || !etch_requires_grad(g->w.v[n])) continue;
        if (leaf && !etch_is_leaf(g->w.v[n])) continue;
        if (below(g, ++seen) == 0 || (!leaf && n + 6 > g->nvars && chance(g, 3))) found = n;
    }
    return found;
}

/* Statements of gradients are taken as they come: what fails is to fail alike. */
static int take_of_grads(generator *g, statement_kind kind, int a, int b) {
    statement s = gen_new_statement(g, kind);
    s.a = a, s.b = b;
    if (a < 0) return -1;
    if (kind == ST_GRAD_OF || kind == ST_CHOOSE) s.out = (int8_t)g->nvars;
    g->w.nevents = 0;
    fuzz_run_statement(&g->w, &s);
    if (s.out >= 0 && !g->w.v[s.out]) return -1;
    gen_take(g, &s);
    return s.out;
}

static int take_sum_of_two(generator *g, int a, int b) {
    statement s = gen_new_statement(g, ST_OP);
    s.op = chance(g, 3) ? OP_MUL_TENSOR : OP_ADD_TENSOR;
    s.arg[0] = gen_tensor_arg(a), s.arg[1] = gen_tensor_arg(b);
    s.arg[2].scalar = etch_scalar_int(1);
    return gen_take_made(g, &s);
}

/* A number that several tensors flow into; seldom the tensor itself. -1: there is none. */
static int take_loss(generator *g) {
    int loss = gen_some_grad(g, false), more = (int)below(g, 3);
    if (loss < 0 || chance(g, 6)) return loss;
    bool squared = chance(g, 3);
    if (squared && (loss = gen_take_unary(g, OP_SQUARE, loss)) < 0) return -1;
    loss = gen_take_unary(g, chance(g, 4) ? OP_MEAN : OP_SUM, loss);
    for (int i = 0; i < more && loss >= 0; i++) {
        int other = gen_some_grad(g, false);
        if (other >= 0 && (other = gen_take_unary(g, OP_SUM, other)) >= 0)
            loss = take_sum_of_two(g, loss, other);
    }
    return loss;
}

static int some_way(generator *g) {
    int how = chance(g, 3) ? 0 : FUZZ_RETAIN;
    if (chance(g, how ? 4 : 12)) how |= FUZZ_TWICE;
    if (chance(g, 3)) how |= FUZZ_OWN_SEED;
    if (chance(g, 6)) how |= FUZZ_OTHER_FUNCTION;
    if (g->p->setup.creates && chance(g, 3)) how |= FUZZ_CREATE;
    if (g->breaks && chance(g, 8)) how |= FUZZ_UNDER_MODE;
    if (g->breaks && chance(g, 12)) how |= FUZZ_OTHER_THREAD;
    return how;
}

void gen_backward(generator *g) {
    int loss = take_loss(g);
    if (g->breaks && chance(g, 8)) gen_take_plain(g, chance(g, 2) ? ST_BREAK : ST_FLUSH, 0, 0);
    take_of_grads(g, ST_BACKWARD, loss, some_way(g));
}

/* Gradients for one or two tensors; perhaps more is computed of them, and that run backward. */
static void generate_grads(generator *g) {
    statement s = gen_new_statement(g, ST_GRADS);
    s.a = take_loss(g), s.b = gen_some_grad(g, chance(g, 2));
    if (s.a < 0 || s.b < 0) return;
    bool creates = chance(g, 2);
    s.way = (uint16_t)(some_way(g) & (FUZZ_RETAIN | FUZZ_OWN_SEED));
    if (creates) s.way |= FUZZ_CREATE;
    if (!chance(g, 4)) s.way |= FUZZ_UNUSED;
    int made = gen_take_made(g, &s);
    if (made < 0 || !creates || chance(g, 4)) return;
    made = gen_take_unary(g, chance(g, 2) ? OP_SQUARE : OP_SIGMOID, made);
    if (made >= 0) made = gen_take_unary(g, OP_SUM, made);
    take_of_grads(g, ST_BACKWARD, made, some_way(g) & ~FUZZ_CREATE);
}

/* Written is what a derivative reads, or what it was computed from, itself or through a view. */
static void generate_modified(generator *g) {
    static const op_id reads[] = {OP_SQUARE, OP_EXP, OP_SIGMOID, OP_SIN, OP_RELU, OP_NEG};
    int x = gen_some_grad(g, false);
    if (x < 0 || (chance(g, 2) && (x = gen_take_unary(g, OP_CLONE, x)) < 0)) return;
    int view =
        chance(g, 3) && etch_ndim(g->w.v[x]) > 0 ? gen_take_slice(g, x, 0, gen_size_of(x, 0)) : x;
    int y = gen_take_unary(g, reads[below(g, COUNT_OF(reads))], chance(g, 2) ? x : view);
    if (y < 0 || view < 0) return;
    int target = chance(g, 3) ? x : chance(g, 2) ? view : y;
    if (chance(g, 2)) gen_take_unary(g, chance(g, 2) ? OP_NEG_ : OP_EXP_, target);
    else gen_take_binary(g, true, target, chance(g, 2) ? x : y);
    if (chance(g, 2)) y = gen_take_unary(g, OP_SQUARE, chance(g, 2) ? x : view);
    if (y >= 0 && (y = gen_take_unary(g, OP_SUM, y)) >= 0 && chance(g, 2))
        take_of_grads(g, ST_BACKWARD, y, some_way(g));
}

/* A buffer whose part is written with what has gradients, and what is made of it. */
static void generate_buffer(generator *g) {
    int x = gen_some_grad(g, false), part;
    if (x < 0 || etch_ndim(g->w.v[x]) < 1) return;
    statement s = gen_new_statement(g, ST_FILLED);
    s.a = x, s.b = 1 + (int)below(g, 4);
    int buffer = gen_take_made(g, &s);
    int before =
        buffer >= 0 && chance(g, 2) ? gen_take_slice(g, buffer, 1, gen_size_of(buffer, 0)) : -1;
    if (buffer < 0 || (part = gen_take_slice(g, buffer, 0, gen_plain(1))) < 0) return;
    if (gen_take_binary(g, true, part, x) < 0) gen_take_binary(g, true, buffer, x);
    if (before >= 0 && chance(g, 2)) gen_take_binary(g, true, before, x);
    if (chance(g, 2)) gen_take_unary(g, OP_SQUARE, before >= 0 ? before : buffer);
}

static void generate_no_grad(generator *g) {
    statement s = gen_new_statement(g, ST_NO_GRAD);
    s.b = !g->no_grad;
    g->no_grad = s.b;
    gen_in_some_variants(g, &s);
}

/* A new leaf in the body, or one that is none from here on. */
static void generate_leaf(generator *g) {
    int n = chance(g, 2) ? gen_some_grad(g, chance(g, 2)) : gen_some_tensor(g);
    if (n >= 0 && chance(g, 2)) n = gen_take_unary(g, chance(g, 2) ? OP_DETACH : OP_CLONE, n);
    if (n < 0 || g->p->setup.creates) return;
    take_of_grads(g, ST_REQUIRE, n, !chance(g, 4));
}

static void generate_hook(generator *g) {
    int kind = (int)below(g, FUZZ_HOOKS);
    bool reads = kind == FUZZ_HOOK_SEE, fails = kind == FUZZ_HOOK_FAIL || kind == FUZZ_HOOK_CHECK;
    if ((reads && !g->breaks) || (fails && !chance(g, 4))) kind = FUZZ_HOOK_TWICE;
    if (kind == FUZZ_HOOK_WRITE && !chance(g, 3)) kind = FUZZ_HOOK_COUNT;
    take_of_grads(g, ST_HOOK, gen_some_grad(g, chance(g, 3)), kind);
}

/* The gradient that a leaf has is one more tensor; or another one is put in its place. */
static void generate_grad_of(generator *g) {
    int leaf = gen_some_grad(g, true), n;
    if (leaf < 0) return;
    if (chance(g, 3)) {
        n = gen_some_tensor_of(g, etch_dtype_of(g->w.v[leaf]), etch_ndim(g->w.v[leaf]));
        if (n >= 0) take_of_grads(g, ST_SET_GRAD, leaf, n);
        return;
    }
    n = take_of_grads(g, ST_GRAD_OF, leaf, 0);
    if (n >= 0 && chance(g, 3)) gen_take_unary(g, chance(g, 2) ? OP_NEG_ : OP_ZERO_, n);
    if (n >= 0 && chance(g, 3)) gen_take_keep(g, n);
}

void gen_gradient(generator *g) {
    switch (below(g, 20)) {
    case 0:
    case 1:
    case 2:
    case 3: gen_backward(g); break;
    case 4:
    case 5: generate_grads(g); break;
    case 6:
    case 7: generate_modified(g); break;
    case 8: generate_buffer(g); break;
    case 9: generate_no_grad(g); break;
    case 10: generate_leaf(g); break;
    case 11:
    case 12: generate_hook(g); break;
    case 13: generate_grad_of(g); break;
    case 14: take_of_grads(g, ST_UPDATE, gen_some_grad(g, true), 0); break;
    case 15: take_of_grads(g, ST_ZERO_GRAD, gen_some_grad(g, true), 0); break;
    case 16:
        if (!g->p->setup.creates) take_of_grads(g, ST_RETAIN_GRAD, gen_some_grad(g, false), 0);
        break;
    case 17: take_of_grads(g, ST_HOLD, take_loss(g), 0); break;
    case 18:
        if (g->breaks) take_of_grads(g, ST_CHOOSE, gen_some_grad(g, false), 0);
        break;
    default: take_of_grads(g, ST_GRAD_STATE, gen_some_tensor(g), 0);
    }
}

/* What is done around calls; mostly backward over what they return. */
void gen_around(generator *g) {
    fuzz_setup *s = &g->p->setup;
    uint32_t always = chance(g, 4) ? 0 : FUZZ_AFTER_BACKWARD;
    if (chance(g, 2)) always |= FUZZ_AFTER_UPDATE;
    if (chance(g, 3)) always |= FUZZ_BEFORE_ZERO;
    if (chance(g, 6)) always |= FUZZ_AFTER_FREE;
    for (int i = 0; i < s->period; i++) {
        s->after[i] = always | (uint32_t)some_way(g);
        if (chance(g, 5)) s->after[i] |= FUZZ_AFTER_GRADS | FUZZ_RETAIN;
        if (chance(g, 3)) s->after[i] |= FUZZ_AFTER_HELD;
        if (chance(g, 12)) s->after[i] |= FUZZ_AFTER_RESET;
        if (chance(g, 8)) s->after[i] |= FUZZ_AFTER_WRITE;
        if (chance(g, 12)) s->after[i] |= FUZZ_IN_NO_GRAD;
        if (s->fullgraph) s->after[i] &= ~(uint32_t)FUZZ_OTHER_THREAD;
    }
}
