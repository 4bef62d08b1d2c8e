/* The generator: one loop kernel -> one libgccjit function.
 *
 *   build.c    a thin layer over libgccjit: types, arithmetic, loops and branches at a cursor
 *   prims.c    the scalar primitives, half-type loads and stores
 *   strip.c    the body of one strip: which loops, what is spilled between them, calls
 *   halves.c   f16 by the processor's conversions, a strip at a time
 *   reduce.c   lanes, blocks, the fold of blocks, the scratch of split kernels
 *   kernel.c   the unit loops of the variants around all that
 *   compile.c  options, libraries, the shared object */
#ifndef ETCH_JIT_GEN_H
#define ETCH_JIT_GEN_H

#include <libgccjit.h>

#include "core/base/isa.h"
#include "jit/loop/loop.h"

typedef gcc_jit_rvalue *val; /* an expression: evaluated at each mention */
typedef gcc_jit_lvalue *var;
typedef gcc_jit_type *type;

/* Strips are walked in blocks of BLOCK elements; what is computed is a whole number of them. */
enum { BLOCK = 64 };

enum { EVERY_LOOP = -1 };

typedef struct gen_value {
    int depth;    /* number of the loop that computes it (calls lie between loops) */
    bool called;  /* result of a call of a function */
    bool spilled; /* later loops, calls or lanes read it from its strip */
    val strip;    /* pointer to its elements, or NULL */
    var in_row;   /* the same in the strip of the whole row, where that is kept, or NULL */
    var now;      /* its value in loop number `loop` */
    int loop;
    bool idle; /* in the strip at hand only calls that an earlier sweep has made read it */
    bool short_nan, quiet_nan; /* if it is a NaN: the low half of its bits is 0; it is quiet */
} gen_value;

typedef struct gen_access {
    var unit;    /* pointer to the unit's first element */
    var base;    /* pointer to the strip's element 0 */
    var source;  /* loads: pointer to contiguous elements */
    var uniform; /* loads of one element for the whole strip: its value */
    val buffer;  /* local elements: padded copy of a load, results of a store */
    var target;  /* stores of a MAP, or NULL: where results go, the buffer or memory itself */
    val wide;    /* f32 of f16 that is converted by strips, or of a row that is kept; or NULL */
    bool kept;   /* loads of bf16 that are the same for all rows: widened once (kernel.c) */
    val stride[LOOP_MAX_AXES];
    bool used[LOOP_STAGES]; /* by the code that runs in a stage */
} gen_access;

typedef struct gen_reduction {
    int at; /* its instruction */
    etch_dtype dtype;
    reduce_kind kind;
    val lanes;  /* ROW: BLOCK elements; COLUMN: BLOCK rows of `cells` */
    var vec[8]; /* ROW sums: the lanes in registers */
    int nvec;
    val stack;   /* results of blocks, each of `cells` elements */
    val scratch; /* pointer to its first cell, as 8-byte integers */
} gen_reduction;

typedef struct emitter {
    gcc_jit_context *c;
    const loop_kernel *k;
    cpu_isa isa;
    gcc_jit_function *fn;
    gcc_jit_block *at; /* where statements go */
    type t_void, t_int, t_long, t_bool, t_u32, t_u64;
    type compute[ETCH_DTYPE_COUNT], storage[ETCH_DTYPE_COUNT];
    type vector[ETCH_DTYPE_COUNT], memory_vector[ETCH_DTYPE_COUNT]; /* one register; unaligned */
    int names;
    long array_bytes;              /* at most, of all local arrays */
    var functions;                 /* the table of the library's strips, or NULL */
    val shape;                     /* of a move: five longs, or NULL */
    val padding[ETCH_DTYPE_COUNT]; /* one element: what is behind the valid ones, or NULL */

    val args, dims, scalars, begin, end;
    val extent[LOOP_MAX_AXES];
    gen_access access[LOOP_MAX_ACCESSES];
    gen_value value[LOOP_MAX_CODE];
    gen_reduction red[LOOP_MAX_CODE];
    int nred;
    var kept_first, kept_n;        /* the strip of a row whose `kept` loads are there */
    val reduced, blocks, parallel; /* reduced elements, their blocks, parallel elements */

    /* the strip being emitted */
    int width;                /* elements that a strip has room for */
    val part;                 /* COLUMN: columns that are done at a time */
    int cells;                /* elements that a block result has room for: 1 (ROW) or more */
    val pitch;                /* COLUMN: elements from one lane to the next, columns of a tile */
    int loops;                /* loops emitted so far: numbers the current one */
    bool scalar;              /* one element, no loops: odd stages of ROW, stage 1 of FINISH */
    bool runs[LOOP_MAX_CODE]; /* what the strip at hand computes */
    int stage;                /* of that strip */
    int sweep;                /* even stage whose reductions are at work */
    val i;                    /* number of the element in the strip */
    var n, trip;              /* elements that exist; the same in whole blocks */
    var index0;               /* logical index of element 0 */
    val index_step;
    var lane; /* COLUMN: where the current row's lane starts in `lanes` */
    val used; /* COLUMN: lanes that the block has rows for; the first one always counts */
} emitter;

/* ---- build.c ---- */

void gen_types(emitter *g);
var gen_local(emitter *g, type t, const char *name);
val gen_array(emitter *g, type t, int n,
              const char *name); /* a local array, as a pointer to its start */
static inline val rv(var v) { return gcc_jit_lvalue_as_rvalue(v); }
void set(emitter *g, var to, val v);
var keep(emitter *g, type t, val v, const char *name); /* a new local that holds v */
val num(emitter *g, int64_t v);                        /* of type long */
val constant(emitter *g, type t, int64_t v);
val op(emitter *g, enum gcc_jit_binary_op o, type t, val a, val b);
val add(emitter *g, val a, val b); /* of longs */
val sub(emitter *g, val a, val b);
val mul(emitter *g, val a, val b);
val quot(emitter *g, val a, val b);
val rem(emitter *g, val a, val b);
val cmp(emitter *g, enum gcc_jit_comparison o, val a, val b);
val cast(emitter *g, val v, type t);
val bits(emitter *g, val v, type t);  /* the same bits as another type */
val either(emitter *g, val a, val b); /* of bools, both evaluated */
val both(emitter *g, val a, val b);
val choose(emitter *g, type t, val cond, val a, val b); /* cond ? a : b, both evaluated */
val min_of(emitter *g, val a, val b);                   /* of longs */
var elem(emitter *g, val pointer, val index);
/* One vector register of f32, f64 or i64: its elements, type, unaligned access to memory. */
int vec_lanes(const emitter *g, etch_dtype t);
type vec_type(emitter *g, etch_dtype t);
val vec_splat(emitter *g, etch_dtype t, val x);
val vec_load(emitter *g, etch_dtype t, val pointer, val index);
void vec_store(emitter *g, etch_dtype t, val pointer, val index, val v);
val builtin(emitter *g, const char *name, int n, val *args);

typedef struct gen_loop {
    var i;
    gcc_jit_block *head, *after;
    val step;
} gen_loop;
/* for (i = from; i < to; i += step) */
gen_loop for_begin(emitter *g, val from, val to, int step, const char *name);
void for_end(emitter *g, const gen_loop *l);
/* while (cond): cond is built by the caller between the two calls */
gen_loop while_begin(emitter *g);
void while_test(emitter *g, gen_loop *l, val cond);

typedef struct gen_if {
    gcc_jit_block *otherwise, *after;
} gen_if;
gen_if if_begin(emitter *g, val cond);
void if_else(emitter *g, gen_if *i);
void if_end(emitter *g, gen_if *i); /* with or without an else */

/* ---- prims.c ---- */

/* The value of a primitive over a, b, c, not for those that strip.c supplies itself. */
val gen_prim(emitter *g, const prim_instr *p, val a, val b, val c);
val gen_convert(emitter *g, etch_dtype from, etch_dtype to, val v);
val gen_load(emitter *g, etch_dtype storage, val element); /* storage element -> compute value */
val gen_store(emitter *g, etch_dtype storage, val value);  /* compute value -> storage element */
val gen_combine(emitter *g, reduce_kind kind, etch_dtype t, val acc, val x);
val gen_identity(emitter *g, reduce_kind kind, etch_dtype t);
val gen_real(emitter *g, etch_dtype t, double v);
/* Transcendental primitives are calls into the library, over strips of n elements. */
void gen_function_call(emitter *g, int prim, etch_dtype t, val to, val a, val b, val n);
/* to[r * to_row + c * to_col] = from[r * row + c * col] for r < rows, c < columns: storage elements
 * of dtype d. */
typedef struct gen_block {
    val place, row, col;
} gen_block;
/* to[j] = j < n ? from[j] : value, up to whole blocks. */
void gen_pad(emitter *g, etch_dtype d, val to, val from, val value, val n);
void gen_move(emitter *g, etch_dtype d, gen_block to, gen_block from, val rows, val columns);

/* The others of the table, of elements of dtype d. */
void gen_strip_call(emitter *g, int strip, etch_dtype d, val to, val from, val n);

/* ---- halves.c ---- */

/* Whether elements of the access are converted by strips; whether the value is a rounding by one,
 * and one that the store of it does. */
bool gen_is_widened(const emitter *g, int access);
bool gen_is_rounding_call(const emitter *g, int v);
bool gen_rounds_in_store(const emitter *g, int v);
/* Pointer to what a load reads its elements from, in the compute type where that is converted. */
val gen_source(const emitter *g, int access);
/* Once a load's source is set. */
void gen_widen_source(emitter *g, int access);
/* Whether a strip of one dtype becomes one of the other by such a call. */
bool gen_widens(const emitter *g, int stage, etch_dtype from, etch_dtype to);
/* Whether results of the store are converted on the way to memory; does so. */
bool gen_converts_out(const emitter *g, const loop_instr *store);
void gen_convert_out(emitter *g, const loop_instr *store, val to);

/* ---- strip.c ---- */

void gen_plan_values(emitter *g);
/* ROW, before gen_strip: the elements at hand are those from r on. */
void gen_place_in_row(emitter *g, val r);
/* Whether the store does nothing but copy or widen memory. */
bool gen_copies(const emitter *g, const loop_instr *store);

/* nans.c: notes what is known of NaNs; whether rounding to bf16 leaves its operand's alone. */
void gen_plan_nans(emitter *g);
bool gen_rounds_without_nans(const emitter *g, const prim_instr *p);
/* All loops of a stage over one strip whose sources, n, trip and index are set. */
void gen_strip(emitter *g, int stage);
/* ROW, after gen_strip of an odd stage: its values are there for the rest of the row. */
void gen_keep_for_row(emitter *g, int stage);
/* Pointer to the elements of v after gen_strip: its strip, or the memory it is loaded from. */
val gen_elements(emitter *g, int v);
bool gen_uniform_load(const emitter *g, int stage, int access);
/* Whether results of a MAP may go to memory itself. */
bool gen_direct(const emitter *g);
/* Whether they may take the place of the elements they are made of. */
bool gen_in_place(const emitter *g);
/* Local results that are to be copied out for a STORE, f32 where it is widened; NULL when it went
 * to memory directly. */
val gen_results_of(emitter *g, const loop_instr *store);

/* ---- reduce.c ---- */

void gen_reductions(emitter *g);
void gen_lanes_reset(emitter *g);
void gen_lanes_add_strip(emitter *g); /* ROW, after gen_strip(g, 0) */
/* ROW: whether the library can do it where the elements lie; n of them from the bases on. */
bool gen_reduces_memory(const emitter *g, const loop_instr *reduce);
void gen_lanes_add_memory(emitter *g, val n);
void gen_lane_add(emitter *g, const loop_instr *reduce, val v); /* COLUMN, inside a loop */
void gen_lanes_fold(emitter *g); /* lanes -> the first element (ROW) or row (COLUMN) */
/* Block results are folded by pairs as they come: a stack with one entry a level. */
var gen_stack_begin(emitter *g);
void gen_stack_push(emitter *g, var top, val block);
void gen_stack_finish(emitter *g, var top);
void gen_scratch_write(emitter *g, val element, val block);
void gen_scratch_fold(emitter *g, val element);
void gen_results(emitter *g); /* stage 1 reads the bottom of the stacks */

/* ---- kernel.c, compile.c ---- */

void gen_kernel(emitter *g, const char *symbol);

typedef struct compile_request {
    const loop_kernel *kernel;
    const char *symbol, *path;
    cpu_isa isa;
    bool dump;
} compile_request;
/* NULL, or a message (static or until the next call). *dump gets the compiler's dump if asked for,
 * to be freed. */
const char *compile_kernel(const compile_request *r, char **dump);

#endif
