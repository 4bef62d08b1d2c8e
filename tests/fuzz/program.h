/* Programs as data: a setup and a list of statements over numbered tensors, so that they can be
 * generated, run, reduced and printed as C. */
#ifndef ETCH_TESTS_FUZZ_PROGRAM_H
#define ETCH_TESTS_FUZZ_PROGRAM_H

#include <stdio.h>

#include "core/ops/schema.h"
#include "harness.h"

/* No step begins when fewer are left than one and the end of the program may make. */
enum { FUZZ_MAX_STATEMENTS = 112, FUZZ_MOST_AT_ONCE = 48 };
_Static_assert(FUZZ_MAX_VARS >= FUZZ_MAX_STATEMENTS + 2 * FUZZ_MAX_INPUTS,
               "each statement may define a tensor beside the inputs and those captured");

/* KIND(id, operands, C): how many of a, b are tensors that the statement reads; how one that is no
 * operator prints ($o is `out`, $w is `way`). */
#define FUZZ_STATEMENTS(KIND)                                                                      \
    KIND(OP, 0, "")                                                                                \
    KIND(ITEM, 1, "fuzz_item(w, $a)")                                                              \
    KIND(ITEM_INT, 1, "fuzz_item_int(w, $a)")                                                      \
    KIND(FORMAT, 1, "fuzz_format(w, $a)")                                                          \
    KIND(HOST, 1, "fuzz_host(w, $o, $a)")                                                          \
    KIND(QUERY, 2, "fuzz_query(w, $a, $b)")                                                        \
    KIND(EXPOSE, 1, "fuzz_expose(w, $a, false)")                                                   \
    KIND(EXPOSE_MUT, 1, "fuzz_expose(w, $a, true)")                                                \
    KIND(RAW_WRITE, 1, "fuzz_raw_write(w, $a, $b)")                                                \
    KIND(RAW_READ, 1, "fuzz_raw_read(w, $a)")                                                      \
    KIND(DATA_END, 1, "fuzz_data_end(w, $a)")                                                      \
    KIND(KEEP, 1, "fuzz_keep(w, $a)")                                                              \
    KIND(BREAK, 0, "fuzz_break(w)")                                                                \
    KIND(FLUSH, 0, "fuzz_flush(w)")                                                                \
    KIND(DTYPE, 0, "fuzz_default_dtype((etch_dtype)$b)")                                           \
    KIND(SCOPE, 0, "fuzz_scope(w)")                                                                \
    KIND(SCOPE_END, 0, "fuzz_scope_end(w, $a)")                                                    \
    KIND(INNER, 1, "fuzz_inner(w, $o, $a, $b)")                                                    \
    KIND(CUSTOM, 2, "fuzz_custom(w, $o, $a, $b)")                                                  \
    KIND(CUSTOM_WRITE, 1, "fuzz_custom_write(w, $o, $a)")                                          \
    KIND(FILLED, 1, "fuzz_filled(w, $o, $a, $b)")                                                  \
    KIND(FOREIGN, 1, "fuzz_foreign(w, $o, $a, $b)")                                                \
    KIND(FLUSHED_WRITE, 1, "fuzz_flushed_write(w, $a, $b)")                                        \
    KIND(FLUSHED_READ, 1, "fuzz_flushed_read(w, $a)")                                              \
    KIND(THREAD_READ, 1, "fuzz_thread_read(w, $a)")                                                \
    KIND(USED, 2, "fuzz_used(w, $a, $b)")                                                          \
    KIND(EFFECTS_WRITE, 1, "fuzz_effects_write(w, $o, $a)")                                        \
    KIND(SPOIL, 1, "fuzz_spoil(w, $o, $a, $b)")                                                    \
    KIND(REMEMBER, 1, "fuzz_remember(w, $o, $a, $b)")                                              \
    KIND(RECALL, 0, "fuzz_recall(w, $b)")                                                          \
    KIND(ROUNDS, 1, "fuzz_rounds(w, $o, $a, $b)")                                                  \
    KIND(NUMERICS, 0, "fuzz_numerics(w, $b)")                                                      \
    KIND(INFERENCE, 0, "fuzz_inference(w, $b)")                                                    \
    KIND(HALF, 1, "fuzz_half(w, $o, $a)")                                                          \
    KIND(REQUIRE, 1, "fuzz_require(w, $a, $b)")                                                    \
    KIND(BACKWARD, 1, "fuzz_backward(w, $a, $b)")                                                  \
    KIND(GRADS, 2, "fuzz_grads(w, $o, $a, $b, $w)")                                                \
    KIND(GRAD_OF, 1, "fuzz_grad_of(w, $o, $a)")                                                    \
    KIND(ZERO_GRAD, 1, "fuzz_zero_grad(w, $a)")                                                    \
    KIND(SET_GRAD, 2, "fuzz_set_grad(w, $a, $b)")                                                  \
    KIND(RETAIN_GRAD, 1, "fuzz_retain_grad(w, $a)")                                                \
    KIND(HOOK, 1, "fuzz_hook(w, $a, $b)")                                                          \
    KIND(NO_GRAD, 0, "fuzz_no_grad(w, $b)")                                                        \
    KIND(UPDATE, 1, "fuzz_update(w, $a)")                                                          \
    KIND(GRAD_STATE, 1, "fuzz_grad_state(w, $a)")                                                  \
    KIND(HOLD, 1, "fuzz_hold(w, $a)")                                                              \
    KIND(CHOOSE, 1, "fuzz_choose(w, $o, $a)")

typedef enum statement_kind {
#define KIND(id, operands, c) ST_##id,
    FUZZ_STATEMENTS(KIND)
#undef KIND
        ST_COUNT
} statement_kind;

/* A number in an attribute: v, or a size of a tensor plus v. */
typedef struct fuzz_int {
    int64_t v;
    int8_t of, dim; /* of: -1 for a plain number */
} fuzz_int;

/* One argument of an operator's schema. */
typedef struct fuzz_arg {
    bool absent; /* int?, int[]?, ScalarType? */
    bool varies; /* a scalar that is another one at each call */
    int n;       /* tensors or numbers */
    int tensor[4];
    fuzz_int number[ETCH_MAX_DIMS]; /* int, int[], bool, dtype */
    etch_scalar scalar;
} fuzz_arg;

typedef struct statement {
    uint8_t kind;
    uint8_t when; /* bit per variant */
    int8_t out;   /* the tensor it defines, -1: none */
    int a, b;
    uint16_t op;
    uint16_t way; /* GRADS: how */
    fuzz_arg arg[SCHEMA_MAX_ARGS];
} statement;

typedef struct program {
    fuzz_setup setup;
    int nstatements;
    statement statement[FUZZ_MAX_STATEMENTS];
} program;

/* interpret.c: a fuzz_body */
void fuzz_interpret(fuzz_world *w, const void *program);
void fuzz_run_statement(fuzz_world *w, const statement *s);
/* Tensors that a statement reads; at most 8. */
int fuzz_operands(const statement *s, int *operands);

/* In a seed: the program of the seed without it, but with other dtypes. */
#define FUZZ_TWIN ((uint64_t)1 << 63)

/* generate.c, always on the CPU; `grads`: with gradients. SMALL: few operators, for where compiling
 * takes long.
 * EXACT: few, and only those that have the same bits on every device. LAUNCHES: few, mostly
 * without breaks and with sizes that are too large for a plan to become a single kernel, so
 * that it becomes a CUDA graph. */
typedef enum fuzz_kind { FUZZ_ANY, FUZZ_SMALL, FUZZ_EXACT, FUZZ_LAUNCHES } fuzz_kind;
void fuzz_generate(program *p, uint64_t seed, fuzz_kind kind, bool grads);
/* Whether the operator gives the same bits on every device: integers, + - * / and sqrt,
 * comparisons, rounding, views, writes, index operators, uniform random numbers, and
 * reductions and scans, whose order is fixed; not libm's functions, products, softmax, norms
 * and normal random numbers. */
bool fuzz_is_exact(int op);

/* reduce.c: the smallest program found for which fails(p) still holds. */
void fuzz_reduce(program *p, bool (*fails)(const program *p), int trials);

/* print.c: a suite of one test. */
void fuzz_print(FILE *to, const program *p, const char *backend, etch_device device,
                const char *difference);

#endif
