/* The graph of one segment: what the tracer records and a backend compiles.
 *
 * Values are numbered: inputs (arguments, then captured tensors) first, then results in the order
 * of the calls. Nodes are in program order. An INPLACE node has no value of its own: its result
 * *is* its first operand's value, and later nodes that name that value (or a view of it) see the
 * write. */
#ifndef ETCH_CORE_GRAPH_GRAPH_H
#define ETCH_CORE_GRAPH_GRAPH_H

#include "core/ops/op.h"

typedef struct graph_value {
    tensor_meta meta;
    int32_t node; /* node that defines it, -1 for an input */
    int32_t base; /* value over whose storage it lies: itself, or the root of its chain of views */
} graph_value;

typedef struct graph_node {
    uint16_t op;
    uint16_t nin;
    uint8_t nsc, nat;
    uint16_t part_of; /* as op_call's */
    int32_t out;      /* value; for INPLACE the value of in[0] */
    int32_t in;       /* index into graph.operands of nin values (-1: ETCH_NONE) */
    int32_t sc;       /* number of its first run-time scalar */
    int32_t at;       /* index into graph.attrs of nat words */
    uint64_t state;
    const void *site;
} graph_node;

typedef struct graph {
    const char *name; /* function and segment, "step/0", for logs and kernel names */
    bool dynamic;     /* there will be plans of the same trace for other sizes */
    bool any_mode; /* runs where the program has changed how the processor rounds, or what it does
                      with denormals */
    int ninputs, nvalues, nnodes, noperands, nscalars, nattrs, noutputs;
    graph_value *values;
    graph_node *nodes;
    int32_t *operands;
    uint8_t *scalar_kinds; /* etch_scalar_kind of each run-time scalar */
    int64_t *attrs;
    int32_t *outputs; /* values whose storage must be produced: bases, never inputs, each once */
} graph;

graph *etch__graph_new(const char *name);
void etch__graph_free(graph *g);
graph *etch__graph_copy(const graph *g);
/* Each returns the new number, or -1 with out_of_memory. */
int etch__graph_add_input(graph *g, const tensor_meta *meta);
/* Appends a node; operands are values. `out` is the result's meta (ignored for INPLACE). */
int etch__graph_add_node(graph *g, const op_call *call, const int32_t *operands,
                         const tensor_meta *out);
bool etch__graph_add_output(graph *g, int32_t value);

/* Whether the call, of its operator's kind, has the counts and words that its schema asks for:
 * inference and kernels look at neither. */
bool etch__normal_form(const op_call *call);

/* The text form, one node a line; etch__free it. Parsing gives an equal graph (sites are lost), or
 * NULL with an error that names line and column.
 *
 *   graph step/0(%0: f32[256, 256], %1: f32[256, 256]) {
 *     %2: f32[256, 256] = mm(%0, %1)
 *     %3: f32[256, 256] = add.Scalar(%2, $0: real, $1: int) {1}
 *     return %3
 *   }
 * Strides are shown where they are not row-major: f32[4, 8 : 1, 4], offsets as @16, attributes in
 * braces, a state word other than the first node's as `!hex`. */
char *etch__graph_text(const graph *g);
graph *etch__graph_parse(const char *text);
/* Same nodes, operands, attributes, metas and outputs (names and sites do not count). */
bool etch__graph_equal(const graph *a, const graph *b);

#endif
