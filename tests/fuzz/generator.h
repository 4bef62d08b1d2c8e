/* A program in the making, and what the parts of the generator use of each other. */
#ifndef ETCH_TESTS_FUZZ_GENERATOR_H
#define ETCH_TESTS_FUZZ_GENERATOR_H

#include "program.h"

enum { ATTENDED = 6 };

typedef struct generator {
    program *p;
    uint64_t random;
    fuzz_world w;
    int nvars;                      /* numbers given out */
    uint8_t defined[FUZZ_MAX_VARS]; /* bit per variant in which the tensor is there */
    bool is_view[FUZZ_MAX_VARS];
    bool small, twin, exact, launches, grads;
    bool no_grad; /* a block is open */
    uint8_t all;  /* the variants */
    uint8_t when; /* of the statement in the making */
    bool breaks, in_scope;
    int scope_start, exposed;
    bool exposed_mut, inference;
    int slots; /* of kernels that keep what they get */
    /* For the operator in the making, -1: any: a tensor without zeros, one of booleans. */
    int divisor, mask;
    int attended[ATTENDED]; /* what an attention is made of, by its place there */
} generator;

static inline int64_t below(generator *g, int64_t n) {
    return n > 0 ? (int64_t)(fuzz_random(&g->random) % (uint64_t)n) : 0;
}
static inline bool chance(generator *g, int one_in) { return below(g, one_in) == 0; }

/* ---- generate_operands.c ---- */

etch_dtype gen_own_dtype(const generator *g, etch_dtype dtype);
void gen_setup(generator *g, uint64_t seed);
bool gen_usable(const generator *g, int n);
int gen_some_tensor(generator *g);
int gen_some_tensor_of(generator *g, etch_dtype dtype, int ndim);
int gen_some_alias(generator *g);
int gen_some_target(generator *g);
fuzz_int gen_plain(int64_t v);
fuzz_int gen_size_of(int tensor, int dim);
etch_scalar gen_some_scalar(generator *g);
void gen_creation_sizes(generator *g, fuzz_arg *a);
bool gen_is_backward(op_id op);
bool gen_is_pool(op_id op);
bool gen_is_attention(op_id op);
bool gen_is_contraction(op_id op);
int gen_some_integers(generator *g);
int gen_mask_operand(op_id op);
bool gen_some_argument(generator *g, statement *s, int i, const schema_arg *schema, int *operand);

/* ---- generate.c ---- */

void gen_take(generator *g, const statement *s);
void gen_take_run(generator *g, const statement *s);
statement gen_new_statement(generator *g, statement_kind kind);
fuzz_arg gen_tensor_arg(int tensor);
int gen_take_made(generator *g, statement *s);
void gen_take_keep(generator *g, int tensor);
int gen_take_slice(generator *g, int tensor, int64_t start, fuzz_int end);
int gen_take_binary(generator *g, bool in_place, int a, int b);
int gen_take_unary(generator *g, op_id op, int tensor);
void gen_take_plain(generator *g, statement_kind kind, int n, int b);
void gen_in_some_variants(generator *g, statement *s);

/* ---- generate_gradients.c ---- */

int gen_some_grad(generator *g, bool leaf);
void gen_backward(generator *g);
void gen_gradient(generator *g);
void gen_around(generator *g);

#endif
