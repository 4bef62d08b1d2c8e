/* From a graph to a plan: the structures that the passes share.
 *
 *   graph --build--> nodes and versions --cse, dce--> fewer nodes --fuse--> groups
 *         --lower--> loop kernels and calls --memory--> offsets --> a plan that runs
 *
 * build (pass_writes.c, pass_views.c) takes the views and the in-place operators out: a
 * *version* is the contents of one storage between two writes; it is named by number and never
 * changes. A node reads sources (a version through an index map) and makes one version. A write
 * that covers a whole storage makes an ordinary new version; any other write is a node that
 * changes memory in place: its version is *tied* to the one before, whose memory it takes over,
 * and it comes after all readers of that one. Versions of inputs that were made apart from the
 * input's memory are written back by a last node. So program order between reads and writes is
 * plain data dependence from here on. An operator may become several nodes, between which are
 * versions that no value of the graph has (pass_norms.c). */
#ifndef ETCH_JIT_IR_IR_H
#define ETCH_JIT_IR_IR_H

#include "core/base/arena.h"
#include "core/graph/backend.h"
#include "jit/loop/loop.h"

typedef struct ir_version {
    int32_t base;     /* graph value whose storage holds it in the eager program */
    int32_t node;     /* that makes it; -1: an input as it came */
    int32_t tied;     /* version whose memory it takes over, or -1 */
    bool memory;      /* lies in an input's memory */
    bool constant;    /* computed again by each reader that can */
    bool stored;      /* some step needs it in memory */
    tensor_meta meta; /* of inputs made apart row-major, else as the base lies */
    int32_t group;    /* after fusion; -1: an input, or computed by each reader */
    uint8_t stage;    /* see loop.h */
    int32_t outside;  /* while fusing: readers that are not in its group (yet), see uses.c */
    int32_t buffer;   /* after the memory plan */
} ir_version;

/* A version read, or memory written, through an index map. */
typedef struct ir_source {
    int32_t version; /* -1: no operand, or one that the program does not load */
    int32_t root;    /* where the version lies in an input's memory: the input to address it by */
    bool whole;      /* the map is the root's own: same order, every element once */
    tensor_meta meta;
} ir_source;

/* What a product does to its result before it is stored, under ETCH_RELAXED: in this order. The
 * bias, a row, is the operand behind those of mm, and the first of addmm. */
enum { MATMUL_BIAS = 1, MATMUL_RELU = 2, MATMUL_GELU = 4 };

typedef enum ir_kind { IR_POINT, IR_REDUCE, IR_CALL, IR_EMPTY } ir_kind;

typedef struct ir_node {
    uint8_t kind;
    bool write; /* changes memory: `target` */
    bool part;  /* and that is a part of new memory, of which others are written alike */
    bool dead;
    uint8_t compute;  /* the common dtype of the operands, not etch__compute_type of it */
    uint8_t dtype;    /* of the result */
    uint8_t epilogue; /* MATMUL_*, of a CALL */
    uint8_t sums;     /* of a CALL: bit k: pass_sums.c has put a sum for operand k */
    int32_t merged;   /* so many other products went into it */
    bool index;       /* POINT: the program uses the element's index */
    uint16_t op;
    int32_t gnode;   /* graph node, -1 for copies made by passes */
    int32_t nin, in; /* sources */
    int32_t out;     /* version */
    uint32_t mask;   /* REDUCE: reduced axes of the operand */
    reduce_plan reduce;
    ir_source target;
    tensor_meta domain; /* what it iterates over: POINT: the result, REDUCE: the operand */
    prim_program *program;
    int32_t group;
    bool no_room;     /* a group that would have done was too large */
    bool feeds_check; /* while fusing: a call that may fail on its data depends on it */
} ir_node;

/* One step: a call of an eager kernel, or the nodes of one fused kernel. After
 * fusion the numbers of the groups are the order of the steps. */
typedef struct ir_group {
    bool call;
    int32_t *members, nmembers;
    int64_t members_cap;
    int naxes; /* of the space, axes of size 1 left out */
    int64_t size[ETCH_MAX_DIMS];
    uint32_t mask;                  /* reduced axes; 0: no reduction yet */
    bool writes;                    /* some member changes memory in place */
    bool feeds_check, writes_input; /* some member is needed by a check; some writes an input */
    uint8_t last;                   /* stage of any member's result */
    uint8_t nmatmuls;  /* members of a kernel that are products: pass_join.c, the last ones */
    int nloads, ncode; /* estimates, for the limits; ncode: without stores */
    bool full;         /* it had no room for a node that would have done */
} ir_group;

/* What a value is put together from, along a dimension. */
enum { PARTS_MOST = 4 };
typedef struct ir_parts {
    int dim, n;
    ir_source part[PARTS_MOST];
} ir_parts;

/* Which kernels may go over their rows again: those whose rows are many or short enough; or none;
 * or all, whatever their sizes. */
typedef enum ir_sweeps { SWEEPS_BY_SIZE, SWEEPS_NONE, SWEEPS_ALL } ir_sweeps;

/* Which sums of products become products of sums (pass_sums.c), in the same way. */
typedef enum ir_sums { SUMS_BY_SIZE, SUMS_NONE, SUMS_ALL } ir_sums;

typedef struct jit_target jit_target;

typedef struct ir {
    const graph *g;
    const jit_target *target; /* of the device that the plan is for */
    int device;
    arena *memory; /* of the compile */
    ir_version *versions;
    ir_node *nodes;
    ir_source *sources;
    ir_group *groups;
    int32_t nversions, nnodes, nsources, ngroups;
    int64_t versions_cap, nodes_cap, sources_cap, groups_cap;
    int32_t *current;   /* per graph value that is a base: its version */
    int32_t *in_memory; /* per input base: the version that its memory holds */
    uint8_t *bases;     /* per graph value: BASE_* */
    int32_t *outputs;   /* versions */
    ir_parts **parts;   /* per graph value: pass_cats.c; or NULL */
    uint8_t *apart;     /* per graph node: APART_*; or NULL */
    int max_members;
    ir_sweeps sweeps;
    /* Of the last fusion: some kernel makes several sweeps over its rows; some whose rows are not
     * good for that does. */
    bool has_sweeps, poor_sweeps;
    ir_sums sums;
    /* Of pass_sums.c: some sum became an operand; some did where that costs more. */
    bool has_sums, poor_sums;
    /* Fused for kernels of other sizes only: nothing is logged or counted. */
    bool ahead_only;
    /* A kernel that takes long to compile is not waited for: etch__plan_late. Then products stay
     * apart from what reads them. */
    bool provisional_ok, matmuls_apart;
    etch_mode_kind mode;
    etch_numerics numerics;
    /* While fusing: per group a bit for each group that it depends on; row of `words` words. */
    uint64_t *needs;
    int words;
} ir;

typedef struct ir_range {
    double low, high;
} ir_range;

/* The n->nin sources of a node. */
static inline ir_source *sources(const ir *r, const ir_node *n) { return r->sources + n->in; }

enum {
    BASE_SHARED = 1,  /* several inputs lie over it */
    BASE_PATCHED = 2, /* written in place, other than as a whole */
    BASE_LIFTED = 4   /* an input of which a copy is written, until the end */
};

/* All that it has lies in `memory`. NULL: no memory. */
ir *etch__ir_build(const graph *g, const jit_target *target, etch_numerics numerics, arena *memory);

/* pass_views.c: index maps. */
bool etch__source_resolve(const graph *g, int32_t value, ir_source *s); /* all but the version */
bool etch__map_overlaps_itself(const tensor_meta *m);
bool etch__same_map(const ir *r, const ir_source *a, const ir_source *b);
int etch__squeeze(const tensor_meta *m, int64_t *size, uint32_t *kept);
/* How memory runs by the innermost of the axes with a bit in mask, the rows, and of those without:
 * 1 along the rows, -1 across them, 0 where one of the two is not strided over. */
int etch__row_order(int ndim, const int64_t *size, const int64_t *stride, uint32_t mask);
/* Strides of s along the axes of `domain` that have more than one element; broadcast ones are 0. */
void etch__map_strides(const ir_source *s, const tensor_meta *domain, int64_t *stride);
/* The strides of s along other axes of as many elements, each of more than one, row-major as those
 * of the domain are; false: it has none along them. */
bool etch__map_over(const ir_source *s, const tensor_meta *domain, int n, const int64_t *size,
                    int64_t *stride);
int64_t etch__meta_numel(const tensor_meta *m);
/* Offset in elements from the address of the root (an input's first element, or a buffer). */
int64_t etch__map_offset(const ir *r, const ir_source *s);

/* nodes.c: a version of the base, made by the node (-1: an input); -1: no memory. */
int32_t etch__ir_version(ir *r, int32_t base, int32_t node, const tensor_meta *m);
/* Appends the node with its sources and the version of these sizes that it makes; -1: no memory. */
int32_t etch__ir_add(ir *r, const ir_node *n, const ir_source *in, int32_t base,
                     const tensor_meta *m);
/* A copy of the program that lives as long as the ir; NULL: no memory. */
prim_program *etch__ir_program(const ir *r, const prim_program *p);

/* pass_cats.c: what is put together, and what is computed of that part by part. */
bool etch__find_apart(ir *r); /* before any node is built; false: no memory */
bool etch__is_apart(const ir *r, int gnode);
bool etch__add_apart(ir *r, int gnode, const ir_node *x, ir_source *in);
bool etch__is_joined_cat(const ir *r, const graph_node *n);
bool etch__add_cat(ir *r, int gnode, const ir_source *in);

/* pass_writes.c. Whether the operator has an expression; then fills in compute dtype and program;
 * *failed: no memory. What the program does with its operands: clears those that it does not load.
 * The operands as sources; fusable: the reader takes any strides. Makes the version of a write node
 * the one that memory holds. */
bool etch__find_program(const ir *r, const graph_node *n, ir_node *x, bool *failed);
void etch__look_at_program(ir_node *n, ir_source *in, bool *constant);
bool etch__read_operand(ir *r, int32_t value, bool fusable, ir_source *s);
bool etch__read_operands(ir *r, const graph_node *n, bool fusable, ir_source *in);
void etch__take_over(ir *r, int32_t base, int32_t node);

/* pass_norms.c: whether the graph's node becomes several nodes; adds them and returns the version
 * of its result, or -1: no memory. */
bool etch__is_norm(const ir *r, int gnode);
int32_t etch__add_norm(ir *r, int gnode, const ir_source *in);

/* pass_products.c: whether the graph's node becomes a product and a node that finishes it; adds
 * both. Whether n finishes the product; makes the product's node the operator's call, with n's
 * result. false, -1: no memory. */
bool etch__is_wide_product(const ir *r, int gnode);
int32_t etch__add_wide_product(ir *r, int gnode, const ir_source *in);
bool etch__is_whole_operator(const ir *r, const ir_node *product, const ir_node *n);
bool etch__become_operator(ir *r, ir_node *product, const ir_node *n);

/* nodes.c: a node that copies the elements of the domain; with a target it is a write. false: the
 * error is set. */
bool etch__copy_node(const ir *r, const tensor_meta *domain, const ir_source *target, ir_node *n);

/* Nodes that passes add. The copy reads `version` whole; with a target it is a write. */
int32_t etch__ir_copy(ir *r, int32_t version, const ir_source *target, int32_t base);

/* uses.c; false: no memory. */
typedef struct ir_uses {
    int32_t *readers;    /* per version: sources that name it, writes over it, outputs */
    int32_t *overwriter; /* per version: the node that changes its memory, INT32_MAX: none */
} ir_uses;
bool etch__ir_uses(const ir *r, ir_uses *u);
/* Whether what node n reads is still there at node `at`. */
bool etch__still_there(const ir *r, const ir_uses *u, const ir_node *n, const ir_node *at);

bool etch__pass_cse(ir *r);
bool etch__pass_dce(ir *r);
bool etch__pass_sums(ir *r);
bool etch__pass_layout(ir *r);
bool etch__pass_copies(ir *r);
bool etch__pass_spaces(ir *r);
/* pass_layout.c: whether the channels of four dimensions are neighbours in memory. */
bool etch__channels_innermost(const tensor_meta *m);
/* Whether the node is a convolution that reads and makes planes. */
bool etch__in_planes(const ir *r, const ir_node *n);
/* range.c: what no finite value of the version is above, in magnitude. */
double etch__largest(const ir *r, int32_t version);
bool etch__pass_epilogue(ir *r);
bool etch__fuse(ir *r);
/* Whether a node's operand stays in a register of the group that makes it,
 * once the node is a member. */
bool etch__in_register(const ir *r, const ir_node *n, const ir_source *s);
bool etch__drop_empty_groups(ir *r);
bool etch__pass_join(ir *r); /* the end of etch__fuse */
/* Whether a kernel may have the elements of its product as the source reads them. */
bool etch__reads_in_order(const ir *r, const ir_source *s);
/* Whether the product will join what reads it, if that lets it. */
bool etch__may_join(const ir *r, const ir_node *n);
/* Debug builds: true, or an internal error that names the pass and what is wrong. */
bool etch__ir_verify(const ir *r, const char *pass);

/* ---- after fusion ---- */

/* Where an access or an operand lies. */
typedef struct plan_address {
    int32_t version, root;
    int64_t offset; /* bytes; for operands unused */
} plan_address;

typedef struct plan_cell {
    int32_t scalar;
    uint8_t dtype;
} plan_cell;

/* A product in a kernel: its result is what the loads of one access stand
 * for, which have no memory. */
enum { JOIN_MAX = 2 };
typedef struct joined_matmul {
    int access;
    int64_t m, n, k;
    plan_address a, b;
    int64_t a_row, a_col, b_row, b_col; /* strides in elements */
    uint8_t dtype;                      /* of its operands */
    /* A convolution of a by b: its graph node's attributes, the operands and the result. Rows are
     * its positions, columns its channels; where it lies in planes, the other way round. */
    const int64_t *conv; /* or NULL */
    plan_address bias;   /* of a convolution; version -1: it has none */
    tensor_meta a_meta, b_meta, c_meta, bias_meta;
} joined_matmul;

/* A group as a loop kernel with what a launch needs. */
typedef struct lowered {
    loop_kernel k;
    int64_t dims[LOOP_MAX_AXES * (LOOP_MAX_ACCESSES + 1)];
    plan_address address[LOOP_MAX_ACCESSES];
    plan_cell cell[LOOP_MAX_CODE];
    int64_t units, grain;
    /* A split reduction: the second kernel, and the bytes of scratch between them (else 0). */
    bool split;
    int64_t scratch;
    bool tested; /* on a device: it writes an input, which a failed check of the run forbids */
    int nmatmuls, operands; /* arguments of each */
    joined_matmul matmul[JOIN_MAX];
} lowered;

/* ETCH_ERR_UNSUPPORTED (the error is not set) where the group exceeds the
 * limits of a loop kernel. */
etch_status etch__lower(const ir *r, int32_t group, lowered *out);
/* The second kernel of a split reduction, from the first. */
void etch__lower_finish(const lowered *partial, lowered *out);

/* Lays `n` intervals (first..last step, bytes) into one arena; returns its size. */
typedef struct plan_interval {
    int32_t first, last;
    int64_t bytes, offset;
} plan_interval;
int64_t etch__memory_plan(arena *memory, plan_interval *v, int n);

/* Takes the fused ir to a plan. ETCH_ERR_UNSUPPORTED: a group is too large (no error is set);
 * ETCH_ERR_COMPILE: `why` says what failed; it is etch__plan_late itself where a `quick` ir has a
 * kernel with products that is not compiled yet. */
extern const char etch__plan_late[];
etch_status etch__plan_make(const ir *r, plan **out, const char **why);
/* Compiles the kernels of the fused ir, so that they are there later. Fails
 * only for lack of memory. */
etch_status etch__plan_prepare(const ir *r);

#endif
