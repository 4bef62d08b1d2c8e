/* Loop IR: one generated kernel, as data.
 *
 * A kernel is a nest of parallel axes (outermost first) and, inside, reduction axes, over accesses
 * to memory, with an SSA body over the scalar primitives. Extents and strides are run-time values,
 * so one kernel serves every size; only what shapes the code is fixed: the number of axes, each
 * access's dtype and the class of its step along each axis.
 *
 * Compiled form: void NAME(void *const *args, const int64_t *dims, const uint64_t *scalars, int64_t
 * begin, int64_t end) args[k]     address of access k's element [0, ..., 0] dims        extents of
 * the axes (naxes), then for each access naxes strides in elements (0 for STEP_ZERO, 1 for
 * STEP_ONE) scalars     8-byte cells (etch__scalar_cell) begin, end  range of work units, see
 * loop_variant
 *
 * Even stages run for each element of the whole space, odd ones (after REDUCEs) for each element of
 * the parallel axes: 0 and 1, and in a LOOP_ROW without split 2, which has stage 1's values for all
 * elements of their row again, 3 and so on (softmax is 0 to 4). Values are computed in strips; what
 * a strip lacks at the end of an axis is padded, so that no value depends on its position; results
 * go to a local strip and are then copied out, so an output may be the same memory as an input of
 * the same access map. Where an axis is too short for that, or memory runs across it, a strip is a
 * tile: see loop_tile. */
#ifndef ETCH_JIT_LOOP_LOOP_H
#define ETCH_JIT_LOOP_LOOP_H

#include "core/ops/expr.h"

enum { LOOP_MAX_AXES = ETCH_MAX_DIMS, LOOP_MAX_ACCESSES = 32, LOOP_MAX_CODE = 160 };
enum { LOOP_STAGES = 8 };

typedef enum loop_variant {
    LOOP_MAP, /* no reduction. Work unit: STRIP elements of the innermost axis; there are
                  (product of the outer extents) * ceil(inner / STRIP) of them. Tiled: one tile */
    LOOP_ROW, /* reduction; the innermost reduced axis is walked in strips. Unit: one element of the
                  parallel axes, row-major */
    LOOP_COLUMN /* reduction; the innermost parallel axis is walked in strips of STRIP, each column
                  with its own 64 lanes. Unit: one such strip */
} loop_variant;

/* A strip of a tiled kernel is a block of two axes, row-major: what does not lie so in memory is
 * gathered before and scattered behind. */
typedef enum loop_tile {
    TILE_NONE,
    TILE_ROWS,  /* MAP: as many whole rows of the innermost axis as there is room for.
                   COLUMN: rows of the innermost reduced axis, each of the columns of the strip */
    TILE_TURNED /* MAP: for accesses that run across the rows: at most TILE_COLUMNS elements wide,
                   and as many rows as a cache line has elements where there are so many */
} loop_tile;
enum { TILE_COLUMNS = 64 };

typedef enum loop_split {
    SPLIT_NONE,    /* a unit does all blocks of its reduction and the epilogue */
    SPLIT_PARTIAL, /* unit: unit of above * blocks + block; runs stage 0 and leaves the block
                      results in the scratch; stage 1 is ignored */
    SPLIT_FINISH   /* folds the partials (in place) and runs stage 1; unit: one parallel element;
                      stage 0 is ignored. PARTIAL and FINISH are the same kernel but for `split`.
                      blocks = max(1, ceil(reduced elements / REDUCE_BLOCK)). The scratch's address
                      is args[naccesses] (it is no access): cells of 8 bytes, row-major
                      [reduction in code order][parallel element][block]; the low bytes of a cell
                      hold a value of the accumulator type */
} loop_split;

typedef enum loop_step { STEP_ZERO, STEP_ONE, STEP_VAR } loop_step;

typedef struct loop_access {
    uint8_t dtype; /* storage dtype */
    uint8_t store;
    uint8_t sums; /* loads of f32: 1 for the sums of products of bf16, which come tile by tile */
    uint8_t step[LOOP_MAX_AXES]; /* loop_step along each axis */
} loop_access;

/* LOOP_PRIM: prim over values a, b, c (INPUT does not appear; SCALAR's imm.i numbers the kernel's
 * scalar cells; INDEX is the row-major logical index over all axes).
 * LOOP_LOAD / LOOP_STORE: access number imm.i; STORE stores value a, of the access's compute type.
 *   An access is either loaded (any number of times) or stored (once), as its `store` says.
 * Code may name values of its own stage; of earlier odd ones; in an even stage also those of
 * earlier even ones, which are computed (and loaded) again: so a kernel of more than two stages
 * must not store into what it loads; and CONST, SCALAR and NREDUCED of any.
 * LOOP_REDUCE: reduces value a of the stage before (already of the accumulator type `type`) by
 * reduce_kind imm.i, in canonical order; its value belongs to its (odd) stage. MEAN appears as SUM
 * followed by DIV by NREDUCED; ARGMAX and ARGMIN do not appear. */
typedef enum loop_kind { LOOP_PRIM, LOOP_LOAD, LOOP_STORE, LOOP_REDUCE } loop_kind;

typedef struct loop_instr {
    uint8_t kind;  /* loop_kind */
    uint8_t stage; /* below LOOP_STAGES */
    prim_instr p;
} loop_instr;

typedef struct loop_kernel {
    char name[48];
    uint8_t variant, split;
    uint8_t tile;       /* loop_tile */
    uint8_t npar, nred; /* axes: npar parallel ones, then nred reduced ones */
    bool any_mode;      /* must assume nothing of rounding and denormals, see graph.any_mode */
    int naccesses, nscalars, ncode;
    loop_access access[LOOP_MAX_ACCESSES];
    loop_instr code[LOOP_MAX_CODE];
} loop_kernel;

/* A kernel that calls transcendental primitives exports this variable, a pointer to their strips
 * by [primitive][dtype], which the loader sets (core/base/isa.h). */
#define LOOP_FUNCTIONS "etch_functions"

typedef void (*loop_fn)(void *const *args, const int64_t *dims, const uint64_t *scalars,
                        int64_t begin, int64_t end);

/* The invariants above and in core/ops/prims.def; *why (may be NULL) gets a static text when false.
 * */
bool etch__loop_valid(const loop_kernel *k, const char **why);
/* Whether code can be generated for the primitive with result type `type` (no integer POW). */
bool etch__loop_can_emit(prim_id prim, etch_dtype type);
/* Operands of an instruction (0 to 3, n-th); whether its value is the same for all elements. */
int etch__loop_arity(const loop_instr *i);
int etch__loop_operand(const loop_instr *i, int n);
bool etch__loop_uniform(const loop_instr *i);
/* Whether code of `stage` may name a value of stage `made` that is not the
 * same for all elements. */
bool etch__loop_sees(int stage, int made);
/* The last stage of the code. */
int etch__loop_last_stage(const loop_kernel *k);
/* Marks the instructions that run in the stage: its own (of an even one, the REDUCEs of the next),
 * and in an even stage what they need of earlier even ones. */
void etch__loop_stage_code(const loop_kernel *k, int stage, bool *runs);
/* Whether a reduction of so many elements to each of `rows` results, in `units` units of work, is
 * made in two kernels: too few units for many threads, and more than one block in each. The number
 * of threads at hand plays no part, since it may change while the code stays. */
static inline bool etch__loop_splits(int64_t units, int64_t rows, int64_t reduced) {
    enum { FEW_UNITS = 16, SPLIT_WORK = 1 << 16 }; /* elements */
    return units < FEW_UNITS && reduced > REDUCE_BLOCK && reduced * rows >= SPLIT_WORK;
}
/* Elements that a strip of a MAP, or a tile, has room for. */
int etch__loop_width(const loop_kernel *k);
/* Of a tiled MAP: the most rows and columns of a tile. A turned one has as many columns as leave
 * room for all rows, but no fewer than these. */
int etch__loop_turned_columns(const loop_kernel *k);
void etch__loop_tile(const loop_kernel *k, const int64_t *dims, int64_t *rows, int64_t *columns);
/* Work units of a kernel for given dims, as its loop_fn counts them. */
int64_t etch__loop_units(const loop_kernel *k, const int64_t *dims);
/* Cells of 8 bytes that the scratch of a PARTIAL / FINISH pair needs. */
int64_t etch__loop_scratch_cells(const loop_kernel *k, const int64_t *dims);

/* Of a LOOP_ROW of several sweeps: what one calls stays for the others if the row is no longer, of
 * so many calls at most: of none where there are many, whose strips take the stack. */
enum { ROW_KEPT = 8192 };
int etch__loop_rows_kept(const loop_kernel *k);

/* Bytes of stack that the compiled code takes at most: its local arrays and what it calls. A kernel
 * whose arrays take more than LOOP_STACK_MAX is not compiled. */
enum { LOOP_STACK_MAX = 1920 << 10 };
uint32_t etch__loop_stack(const loop_kernel *k);

/* The name of the compiled function, from the kernel's own behind a prefix: no library function is
 * hidden. */
enum { LOOP_SYMBOL_MAX = 64 };
void etch__loop_symbol(const loop_kernel *k, char symbol[LOOP_SYMBOL_MAX]);

/* The text that ETCH_LOGS=output_code prints; etch__free it. */
char *etch__loop_text(const loop_kernel *k);

/* The bytes that identify a kernel (its name is not among them) and cross to the helper. */
size_t etch__loop_serialise(const loop_kernel *k, uint8_t *buf, size_t cap);
bool etch__loop_parse(const uint8_t *buf, size_t n, loop_kernel *k);

/* A loaded kernel; counted. */
typedef struct loaded_kernel loaded_kernel;
loop_fn etch__kernel_entry(const loaded_kernel *k);
void etch__kernel_release(loaded_kernel *k);

/* Finds or compiles n kernels (in parallel where the helper allows), each result with one
 * count. From the in-memory table, the disk cache, or the helper. On failure (helper missing,
 * dying, timing out) all slots are NULL, the reason is in *why (a static or thread-local
 * text), false is returned. */
bool etch__kernels_get(const loop_kernel *const *k, int n, loaded_kernel **out, const char **why);
/* Tests: forgets the kernels in memory; plans keep those they use. */
void etch__kernels_forget(void);

#endif
