/* Expressions as lists of strip kernels: what the eager kernels run. */
#ifndef ETCH_BACKENDS_CPU_PROGRAM_H
#define ETCH_BACKENDS_CPU_PROGRAM_H

#include "backends/cpu/table.h"

/* Elements worked on at a time, so that intermediate values stay in the first-level cache. */
enum { EAGER_STRIP = 512, PROGRAM_INPUTS = 3, SLOT_OUT = PROGRAM_INPUTS, SLOT_TEMP };

typedef struct program_step {
    strip_fn fn;          /* NULL: the logical index */
    uint8_t dst, a, b, c; /* slots: the inputs' strips, the output's, temporaries */
} program_step;

/* A run-time scalar or a constant, spread over a temporary before the first strip. */
typedef struct program_fill {
    int8_t scalar; /* number of the call's scalar; -1: `cell` */
    uint8_t from;  /* dtype that the scalar is rounded to */
    uint8_t log2;  /* element size */
    uint8_t slot;
    uint64_t cell;
} program_fill;

typedef struct cpu_program {
    int nsteps, nfills, ntemps;
    int nonce; /* of the steps, the first ones: of values that are the same for all elements */
    int cost; /* of one element, in about a quarter of a nanosecond; for the grain of parallel loops
               */
    bool loads[PROGRAM_INPUTS];
    uint8_t in_log2[PROGRAM_INPUTS], out_log2;
    program_fill fills[8];
    program_step steps[PROGRAM_MAX + 4];
} cpu_program;

/* Translates p, whose operands have storage dtypes in[] and whose result has `out`. */
bool etch__program_build(const prim_program *p, const etch_dtype *in, etch_dtype out,
                         cpu_program *program);

/* Runs elements begin..end of contiguous operands: base[] are the addresses of element 0 of the
 * inputs and (SLOT_OUT) the output. */
void etch__program_run(const cpu_program *p, void *const base[SLOT_TEMP],
                       const etch_scalar *scalars, int64_t begin, int64_t end);

/* The same over operands of any strides. Axes are those of the output, outermost first. */
typedef struct strided_space {
    int ndim;
    int64_t numel;
    int64_t size[ETCH_MAX_DIMS];
    int64_t stride[SLOT_TEMP][ETCH_MAX_DIMS]; /* in elements; 0 where an input is broadcast */
} strided_space;
void etch__program_run_strided(const cpu_program *p, const strided_space *space,
                               void *const base[SLOT_TEMP], const etch_scalar *scalars,
                               int64_t begin, int64_t end);

/* Where an operand's memory runs along the last axis but one, a walk along rows would touch a cache
 * line for every element: the two innermost axes are then done in blocks. The number of blocks, 0
 * where strips do as well; and the run over some of them. */
int64_t etch__program_blocks(const cpu_program *p, const strided_space *space);
void etch__program_run_blocks(const cpu_program *p, const strided_space *space,
                              void *const base[SLOT_TEMP], const etch_scalar *scalars,
                              int64_t begin, int64_t end);

static inline int64_t at_most(int64_t n, int64_t limit) { return n < limit ? n : limit; }

/* Copies the elements of t, row-major, to dst. */
void etch__copy_contiguous(void *dst, const etch_tensor *t);
/* The elements of t, row-major, `wide`: in the compute type. Its own memory, or a *copy, to be
 * freed. NULL: there is no memory. */
const void *etch__row_major_elements(const etch_tensor *t, bool wide, void **copy);
/* Rounds n values of the compute type to dtype, and stores them. */
void etch__store_rounded(etch_dtype dtype, void *to, const void *values, int64_t n);

/* Folds the results of blocks of a reduction by pairs, as they come: `block` computes one of
 * `width` elements, all of at most STRIP_BYTES. */
enum { STRIP_BYTES = 512 };
typedef void (*block_fn)(const void *ctx, int64_t block, void *result);
void etch__fold_blocks(strip_fn combine, int64_t blocks, int64_t width, int64_t bytes,
                       block_fn block, const void *ctx, void *result);

#endif
