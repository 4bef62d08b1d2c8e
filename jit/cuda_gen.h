/* What the parts of the CUDA generator share: growing text, the shape of a kernel's threads, and the
 * primitives as expressions. */
#ifndef ETCH_JIT_CUDA_GEN_H
#define ETCH_JIT_CUDA_GEN_H

#include "jit/cuda_source.h"

typedef struct cuda_text {
    char *p;
    int64_t n, cap;
    bool failed;
} cuda_text;

/* ---- cuda_prims.c ---- */

void etch__cuda_put(cuda_text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The C type of values of a compute type, and of elements in memory. */
const char *etch__cuda_type(etch_dtype t);
const char *etch__cuda_storage(etch_dtype d);

/* The expression of a primitive over the texts of its operands. */
void etch__cuda_prim(cuda_text *t, const prim_instr *p, const char *a, const char *b,
                     const char *c);
void etch__cuda_constant(cuda_text *t, const prim_instr *p);
void etch__cuda_scalar(cuda_text *t, const prim_instr *p);
/* op(acc, x) of a reduction, and where it starts. */
void etch__cuda_combine(cuda_text *t, reduce_kind kind, etch_dtype type, const char *acc,
                        const char *x);
void etch__cuda_identity(cuda_text *t, reduce_kind kind, etch_dtype type);
/* The conversions around memory: half types and bool are not computed in what they are stored. */
void etch__cuda_from_storage(cuda_text *t, etch_dtype d, const char *e);
void etch__cuda_to_storage(cuda_text *t, etch_dtype d, const char *v);
/* The type names, and those helper functions that `body` uses. */
void etch__cuda_prelude(cuda_text *t, int index_bits, const char *body);

/* ---- cuda_shape.c ---- */

enum {
    CUDA_COLUMNS = 32,       /* columns of a block */
    CUDA_LEAF = 32,          /* cells that a warp folds at once */
    CUDA_TEAMS_WANTED = 4096 /* several teams share a row until there are that many */
};

/* A block has `teams` teams of `team` threads. Elements come in chunks of `vector` neighbours, a
 * thread has `depth` chunks in flight.
 * ROW: a team holds the 64 lanes of a row; thread t has lanes (c * team + t) * vector + j for
 * c < chunks, j < vector.
 * COLUMN: thread `team` by team, 32 columns side by side; in each column thread t of `teams` has
 * lanes c * teams + t for c < chunks.
 * FINISH: a warp folds the partials of an element. MAP: no teams. */
typedef struct cuda_layout {
    int threads, team, teams, vector, chunks, depth;
} cuda_layout;
cuda_layout etch__cuda_layout(const loop_kernel *k, const cuda_variant *v);

/* Which values have a use under the kernel's split; `needed` starts as all false. */
void etch__cuda_needed(const loop_kernel *k, bool *needed);
/* Whether the stage's code needs the access. */
bool etch__cuda_uses(const loop_kernel *k, int access, int stage);
/* The axis along which elements are neighbours: the innermost one of the walk; -1: none. */
int etch__cuda_axis(const loop_kernel *k);

static inline bool etch__cuda_on_columns(const loop_kernel *k) {
    return k->variant == LOOP_COLUMN && k->split != SPLIT_FINISH;
}

#endif
