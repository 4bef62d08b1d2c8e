/* What the parts of the CUDA generator share: the primitives as expressions, the shape of a
 * kernel's threads, the code of a chunk of elements. */
#ifndef ETCH_JIT_CUDA_CUDA_GEN_H
#define ETCH_JIT_CUDA_CUDA_GEN_H

#include "core/base/text.h"
#include "jit/cuda/cuda_source.h"

/* ---- cuda_prims.c ---- */

/* The C type of values of a compute type, and of elements in memory. */
const char *etch__cuda_type(etch_dtype t);
const char *etch__cuda_storage(etch_dtype d);

/* The expression of a primitive over the texts of its operands. */
void etch__cuda_prim(growing_text *t, const prim_instr *p, const char *a, const char *b,
                     const char *c);
void etch__cuda_constant(growing_text *t, const prim_instr *p);
void etch__cuda_scalar(growing_text *t, const prim_instr *p);
/* op(acc, x) of a reduction, and where it starts. */
void etch__cuda_combine(growing_text *t, reduce_kind kind, etch_dtype type, const char *acc,
                        const char *x);
void etch__cuda_identity(growing_text *t, reduce_kind kind, etch_dtype type);
/* The conversions around memory: half types and bool are not computed in what they are stored. */
void etch__cuda_from_storage(growing_text *t, etch_dtype d, const char *e);
void etch__cuda_to_storage(growing_text *t, etch_dtype d, const char *v);
/* The functions of core/ops/functions.h that `body` calls as name_f32 or name_f64:
 * cuda_functions.c. */
void etch__cuda_functions(growing_text *t, const char *body);
/* The type names, and those helper functions that `body` uses. */
void etch__cuda_prelude(growing_text *t, int index_bits, const char *body);

/* ---- cuda_shape.c ---- */

enum {
    CUDA_CELLS = 4,              /* cells of a thread that folds them */
    CUDA_LEAF = 32 * CUDA_CELLS, /* those that a warp folds at once */
    CUDA_TEAMS_WANTED = 4096     /* several teams share a row until there are that many */
};

/* A block has `teams` teams of `team` threads. Elements come in chunks of `vector` neighbours, a
 * thread has `depth` chunks in flight.
 * ROW: a team holds the 64 lanes of a row; thread t has lanes (c * team + t) * vector + j for
 * c < chunks, j < vector.
 * COLUMN: a team has `columns` columns side by side, a thread `vector` of them; in each column team
 * t has lanes c * teams + t for c < chunks.
 * FINISH: a warp folds the partials of an element. MAP: no teams.
 * A kernel of several sweeps: the team of a row is the block, or has its lanes as that of ROW has;
 * the chunks of a row come `depth` at a time; they are kept where `hold`. */
typedef struct cuda_layout {
    int threads, team, teams, columns, vector, chunks, depth, hold;
} cuda_layout;
cuda_layout etch__cuda_layout(const loop_kernel *k, const cuda_variant *v);

/* Which values have a use under the kernel's split; `needed` starts as all false. */
void etch__cuda_needed(const loop_kernel *k, bool *needed);
/* Whether the stage's code needs the access; whether that of any stage over
 * elements, or over rows. */
bool etch__cuda_uses(const loop_kernel *k, int access, int stage);
bool etch__cuda_uses_any(const loop_kernel *k, int access, bool rows);
/* The axis along which elements are neighbours: the innermost one of the walk; -1: none. */
int etch__cuda_axis(const loop_kernel *k);

/* Whether it goes over its rows again. */
static inline bool etch__cuda_has_sweeps(const loop_kernel *k) {
    return etch__loop_last_stage(k) > 1;
}

/* Whether the lanes of what it reduces come through shared memory. */
static inline bool etch__cuda_shares_rows(const loop_kernel *k, const cuda_variant *v) {
    return etch__cuda_has_sweeps(k) && !v->warps;
}

static inline bool etch__cuda_on_columns(const loop_kernel *k) {
    return k->variant == LOOP_COLUMN && k->split != SPLIT_FINISH;
}

/* ---- the generator's state, lines of code: cuda_chunk.c ---- */

enum { CUDA_PARTS = 5 };

typedef struct cuda_gen {
    const loop_kernel *k;
    const cuda_variant *v;
    cuda_layout l;
    int naxes, axis; /* axis: see etch__cuda_axis */
    bool needed[LOOP_MAX_CODE];
    int stage;                   /* that is being written */
    bool runs[LOOP_MAX_CODE];    /* its code */
    int held[LOOP_MAX_ACCESSES]; /* 1 + the stage that loads what stays in registers; 0: none */
    uint32_t given;              /* accesses whose elements come as parameters */
    int depth;                   /* of a MAP, in place of the layout's; 0: that */
    growing_text part[CUDA_PARTS], *t; /* t: the part that is being written */
    int indent;
} cuda_gen;

typedef struct cuda_name {
    char s[48];
} cuda_name;

cuda_name etch__cuda_text(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* One line of code. A line that ends in { is followed by deeper ones, until close. */
void etch__cuda_line(cuda_gen *g, const char *format, ...) __attribute__((format(printf, 2, 3)));
void etch__cuda_margin(cuda_gen *g);
void etch__cuda_close(cuda_gen *g);
void etch__cuda_unrolled(cuda_gen *g, const char *var, int n);

static inline etch_dtype dtype_of(const cuda_gen *g, int a) { return g->k->access[a].dtype; }
static inline const char *storage_of(const cuda_gen *g, int a) {
    return etch__cuda_storage(dtype_of(g, a));
}
static inline const char *type_of(const cuda_gen *g, int v) {
    return etch__cuda_type(g->k->code[v].p.type);
}
static inline bool used(const cuda_gen *g, int a, int stage) {
    return etch__cuda_uses(g->k, a, stage);
}
static inline bool loaded(const cuda_gen *g, int a, int stage) {
    return !g->k->access[a].store && used(g, a, stage);
}
/* Reductions behind the stage at hand, in the order of the code. */
static inline bool is_reduce(const cuda_gen *g, int v) {
    return g->k->code[v].kind == LOOP_REDUCE && g->k->code[v].stage == (g->stage | 1);
}
#define FOR_REDUCTIONS(v)                                                                          \
    for (int v = 0; v < g->k->ncode; v++)                                                          \
        if (is_reduce(g, v))

/* ---- chunks: cuda_chunk.c ---- */

/* Splits the row-major number over axes [from, to): i<from> ... as far as they are wanted. */
void etch__cuda_decompose(cuda_gen *g, const char *number, int from, int to);
/* Elements from [0, ..., 0] to the indices along axes [from, to); "" for none. */
typedef struct cuda_offset {
    char s[200];
} cuda_offset;

cuda_offset etch__cuda_offset_over(const cuda_gen *g, int a, int from, int to);
/* No step along a reduced axis: loaded once for the whole row. */
bool etch__cuda_same_in_row(const cuda_gen *g, int a);
/* Whether it has an element for each of the several columns of a thread. */
bool etch__cuda_by_column(const cuda_gen *g, int a);
/* Whether the stage has the logical index of its elements. */
bool etch__cuda_wants_index(const cuda_gen *g, int stage);
/* Elements between the chunks of a thread; elements along that way in one chunk. */
int etch__cuda_chunk_stride(const cuda_gen *g);
int etch__cuda_chunk_length(const cuda_gen *g);

/* vector, depth: elements and chunks that the code at hand takes. checked: a chunk may begin or
 * (where it lies along the reduced axis) end outside. */
typedef struct chunk {
    int vector, depth;
    bool checked;
} chunk;

/* Loads, the code of the stage, stores: all of them in this order. */
void etch__cuda_chunk_code(cuda_gen *g, const chunk *c);
/* Turns to the stage. */
void etch__cuda_enter_stage(cuda_gen *g, int stage);
/* The registers of what is held. */
void etch__cuda_declare_held(cuda_gen *g, const chunk *c);

/* Statements, each with its margin and its comment. */
void etch__cuda_put_comment(cuda_gen *g, const loop_instr *i);
void etch__cuda_put_prim(cuda_gen *g, int v, const char *index);
void etch__cuda_put_load(cuda_gen *g, int v, const char *e);
void etch__cuda_put_store(cuda_gen *g, const loop_instr *i, const char *to);
void etch__cuda_put_combine(cuda_gen *g, int v, const char *to, const char *acc, const char *x);

/* ---- what rows and columns share: cuda_fold.c ---- */

/* One element for the whole row. */
bool etch__cuda_loaded_once(const cuda_gen *g, int a);
/* Where accesses of the stages over elements, over rows, begin in the row whose indices are there;
 * what is loaded once; both for all. */
void etch__cuda_row_places(cuda_gen *g, bool elements, bool rows);
void etch__cuda_load_once(cuda_gen *g);
void etch__cuda_begin_row(cuda_gen *g);
/* Block results fold by pairs as they come: leaf number n is pushed. The result is at the
 * bottom. */
void etch__cuda_begin_stack(cuda_gen *g);
void etch__cuda_push_leaf(cuda_gen *g, const char *n);
void etch__cuda_finish_stack(cuda_gen *g);
/* What the thread for which `who` holds does with the results of a row: stage 1, or, of a part of
 * a row, cells. */
void etch__cuda_finish_row(cuda_gen *g, const char *who);
void etch__cuda_write_cells(cuda_gen *g, const char *who);
/* n lanes without elements; the elements of `block` from `first` on that the thread has, where
 * `who` holds; lane[l] = op(lane[l], lane[l + w]) for w from n / 2 down to `least`. */
void etch__cuda_begin_lanes(cuda_gen *g, int n);
void etch__cuda_add_block(cuda_gen *g, const char *who, const char *first);
void etch__cuda_fold_inside(cuda_gen *g, int v, int n, int least);

/* The lanes of each reduction, which lie over a team thread by thread, in a thread side by side. */
void etch__cuda_fold_row_lanes(cuda_gen *g);

/* ---- bodies: cuda_map.c, cuda_rows.c, cuda_sweeps.c, cuda_columns.c ---- */

void etch__cuda_map(cuda_gen *g);
void etch__cuda_whole_rows(cuda_gen *g); /* ROW, FINISH */
void etch__cuda_row_blocks(cuda_gen *g); /* ROW in parts */
void etch__cuda_sweeps(cuda_gen *g);     /* kernels of several sweeps */
void etch__cuda_columns(cuda_gen *g);

#endif
