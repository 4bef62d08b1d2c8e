/* Kernels that follow a product tile by tile (jit/fuse/pass_join.c): while a tile lies in the
 * cache, the generated kernel does its part of the work. */
#ifndef ETCH_BACKENDS_CPU_JOINED_H
#define ETCH_BACKENDS_CPU_JOINED_H

#include "backends/cpu/product.h"
#include "jit/plan/native_plan.h"

typedef struct joined_product {
    joined_matmul m;
    bool is_conv;
    conv_numbers conv; /* its numbers */
    int naxes, naccesses;
    bool rows;    /* the kernel reduces rows: a unit is one of them */
    bool flat;    /* row follows row in all memory: many can be one */
    bool chained; /* joined_chain.c: what it does, and its store */
    chain_args chain;
    int chain_y;
    uint8_t bytes[LOOP_MAX_ACCESSES]; /* of an element of each access */
} joined_product;

/* NULL: no memory. */
joined_product *etch__joined_new(const lowered *low);
/* The arguments are those of the kernel's accesses, then A, B, B's storage, a convolution's bias:
 * the last two may be NULL. */
etch_status etch__joined_run(const kernel_step *k, void *const *args, const uint64_t *cells);

/* One run of such a kernel, and what it does to a tile of so many bytes an element. */
typedef struct joined_call {
    const kernel_step *k;
    void *const *args;
    const uint64_t *cells;
} joined_call;
void etch__joined_follow(const joined_call *c, const product_tile *t, int size);
/* joined_chain.c: whether the kernel is such a one, as j then says; its part of the work. */
bool etch__chain_find(const lowered *low, joined_product *j);
void etch__chain_follow(const joined_call *c, const product_tile *t);
/* conv_joined.c */
bool etch__joined_conv_new(joined_product *j);
etch_status etch__joined_conv_run(const joined_call *c);

/* target_matmuls.joins */
bool etch__cpu_joins(int device, const matmul_sizes *s, bool alone);

#endif
