/* The generator: one loop kernel -> one libgccjit function.
 *
 *   build.c    a thin layer over libgccjit: types, arithmetic, loops and branches at a cursor
 *   prims.c    the scalar primitives, half-type loads and stores
 *   strip.c    the body of one strip: which loops, what is spilled between them, calls
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
    var now;      /* its value in loop number `loop` */
    int loop;
} gen_value;

typedef struct gen_access {
    var unit;    /* pointer to the unit's first element */
    var base;    /* pointer to the strip's element 0 */
    var source;  /* loads: pointer to contiguous elements */
    var uniform; /* loads of one element for the whole strip: its value */
    val buffer;  /* local elements: padded copy of a load, results of a store */
    val stride[LOOP_MAX_AXES];
    bool used[LOOP_STAGES]; /* by the code that runs in a stage */
} gen_access;

typedef struct gen_reduction {
    int at; /* its instruction */
    etch_dtype dtype;
    reduce_kind kind;
    val lanes;  /* ROW: BLOCK elements; COLUMN: BLOCK rows of `width` */
    var vec[8]; /* ROW sums: the lanes in registers */
    int nvec;
    val stack;   /* results of blocks, each of `cells` elements */
    val scratch; /* pointer to its first cell, as 8-byte integers */
} gen_reduction;

typedef struct gen {
    gcc_jit_context *c;
    const loop_kernel *k;
    cpu_isa isa;
    gcc_jit_function *fn;
    gcc_jit_block *at; /* where statements go */
    type t_void, t_int, t_long, t_bool, t_u32, t_u64;
    type compute[ETCH_DTYPE_COUNT], storage[ETCH_DTYPE_COUNT];
    type vector[ETCH_DTYPE_COUNT], memory_vector[ETCH_DTYPE_COUNT]; /* one register; unaligned */
    int names;
    long array_bytes; /* at most, of all local arrays */
    var functions;    /* the table of the library's strips, or NULL */

    val args, dims, scalars, begin, end;
    val extent[LOOP_MAX_AXES];
    gen_access access[LOOP_MAX_ACCESSES];
    gen_value value[LOOP_MAX_CODE];
    gen_reduction red[LOOP_MAX_CODE];
    int nred;
    val reduced, blocks, parallel; /* reduced elements, their blocks, parallel elements */

    /* the strip being emitted */
    int width;                /* elements that a strip has room for */
    int cells;                /* elements of a block result: 1 (ROW) or width */
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
} gen;

/* ---- build.c ---- */

void gen_types(gen *g);
var gen_local(gen *g, type t, const char *name);
val gen_array(gen *g, type t, int n,
              const char *name); /* a local array, as a pointer to its start */
static inline val rv(var v) { return gcc_jit_lvalue_as_rvalue(v); }
void set(gen *g, var to, val v);
var keep(gen *g, type t, val v, const char *name); /* a new local that holds v */
val num(gen *g, int64_t v);                        /* of type long */
val constant(gen *g, type t, int64_t v);
val op(gen *g, enum gcc_jit_binary_op o, type t, val a, val b);
val add(gen *g, val a, val b); /* of longs */
val sub(gen *g, val a, val b);
val mul(gen *g, val a, val b);
val quot(gen *g, val a, val b);
val rem(gen *g, val a, val b);
val cmp(gen *g, enum gcc_jit_comparison o, val a, val b);
val cast(gen *g, val v, type t);
val bits(gen *g, val v, type t);  /* the same bits as another type */
val either(gen *g, val a, val b); /* of bools, both evaluated */
val both(gen *g, val a, val b);
val choose(gen *g, type t, val cond, val a, val b); /* cond ? a : b, both evaluated */
val min_of(gen *g, val a, val b);                   /* of longs */
var elem(gen *g, val pointer, val index);
/* One vector register of f32, f64 or i64: its elements, type, unaligned access to memory. */
int vec_lanes(const gen *g, etch_dtype t);
type vec_type(gen *g, etch_dtype t);
val vec_splat(gen *g, etch_dtype t, val x);
val vec_load(gen *g, etch_dtype t, val pointer, val index);
void vec_store(gen *g, etch_dtype t, val pointer, val index, val v);
val builtin(gen *g, const char *name, int n, val *args);

typedef struct gen_loop {
    var i;
    gcc_jit_block *head, *after;
    val step;
} gen_loop;
/* for (i = from; i < to; i += step) */
gen_loop for_begin(gen *g, val from, val to, int step, const char *name);
void for_end(gen *g, const gen_loop *l);
/* while (cond): cond is built by the caller between the two calls */
gen_loop while_begin(gen *g);
void while_test(gen *g, gen_loop *l, val cond);

typedef struct gen_if {
    gcc_jit_block *otherwise, *after;
} gen_if;
gen_if if_begin(gen *g, val cond);
void if_else(gen *g, gen_if *i);
void if_end(gen *g, gen_if *i); /* with or without an else */

/* ---- prims.c ---- */

/* The value of a primitive over a, b, c, not for those that strip.c supplies itself. */
val gen_prim(gen *g, const prim_instr *p, val a, val b, val c);
val gen_convert(gen *g, etch_dtype from, etch_dtype to, val v);
val gen_load(gen *g, etch_dtype storage, val element); /* storage element -> compute value */
val gen_store(gen *g, etch_dtype storage, val value);  /* compute value -> storage element */
val gen_combine(gen *g, reduce_kind kind, etch_dtype t, val acc, val x);
val gen_identity(gen *g, reduce_kind kind, etch_dtype t);
val gen_real(gen *g, etch_dtype t, double v);
/* Transcendental primitives are calls into the library, over strips of n elements. */
void gen_function_call(gen *g, int prim, etch_dtype t, val to, val a, val b, val n);

/* ---- strip.c ---- */

void gen_plan_values(gen *g);
/* All loops of a stage over one strip whose sources, n, trip and index are set. */
void gen_strip(gen *g, int stage);
/* ROW, after gen_strip of an odd stage: its values are there for the rest of the row. */
void gen_keep_for_row(gen *g, int stage);
/* Pointer to the elements of v after gen_strip: its strip, or the memory it is loaded from. */
val gen_elements(gen *g, int v);
bool gen_uniform_load(const gen *g, int stage, int access);
/* Local results that are to be copied out for a STORE; NULL when it went to memory directly. */
val gen_results_of(gen *g, const loop_instr *store);

/* ---- reduce.c ---- */

void gen_reductions(gen *g);
void gen_lanes_reset(gen *g);
void gen_lanes_add_strip(gen *g);                           /* ROW, after gen_strip(g, 0) */
void gen_lane_add(gen *g, const loop_instr *reduce, val v); /* COLUMN, inside a loop */
void gen_lanes_fold(gen *g); /* lanes -> the first element (ROW) or row (COLUMN) */
/* Block results are folded by pairs as they come: a stack with one entry a level. */
var gen_stack_begin(gen *g);
void gen_stack_push(gen *g, var top, val block);
void gen_stack_finish(gen *g, var top);
void gen_scratch_write(gen *g, val element, val block);
void gen_scratch_fold(gen *g, val element);
void gen_results(gen *g); /* stage 1 reads the bottom of the stacks */

/* ---- kernel.c, compile.c ---- */

void gen_kernel(gen *g, const char *symbol);

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
