/* Backends of one's own: graphs that can be read and edited, and what runs in their place.
 *
 * A graph is a list of calls of operators in program order. A node stands for one call or one
 * input; its value is a tensor without data, which answers queries (etch_sizes, etch_dtype_of,
 * ...) and takes the place of a tensor in the arguments of etch_graph_insert; any use of its data
 * is an error. Operators that write in place (add_) have no value of their own: theirs is that of
 * the tensor they write, and nodes behind them see the write. A graph belongs to one thread at a
 * time. */
#ifndef ETCH_BACKEND_H
#define ETCH_BACKEND_H

#include <etch/debug.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct etch_graph etch_graph;
typedef struct etch_node etch_node;

/* ---- reading ---- */

ETCH_API const char *etch_graph_name(const etch_graph *g); /* "step/0" */
/* Whether the same graph was compiled before and this is it for other sizes (dynamic functions). */
ETCH_API bool etch_graph_is_instance(const etch_graph *g);
ETCH_API int etch_graph_num_inputs(const etch_graph *g);
ETCH_API int etch_graph_num_nodes(const etch_graph *g); /* calls, inputs not counted */
ETCH_API int etch_graph_num_outputs(const etch_graph *g);
ETCH_API int etch_graph_num_params(const etch_graph *g); /* run-time scalars */
/* NULL and invalid_argument for a number out of range. */
ETCH_API etch_node *etch_graph_input(const etch_graph *g, int i);
ETCH_API etch_node *etch_graph_output(const etch_graph *g, int i);

/* The calls in program order; NULL at the ends:
 *     for (etch_node *n = etch_graph_first(g); n; n = etch_node_next(n)) ... */
ETCH_API etch_node *etch_graph_first(const etch_graph *g);
ETCH_API etch_node *etch_graph_last(const etch_graph *g);
ETCH_API etch_node *etch_node_next(const etch_node *n);
ETCH_API etch_node *etch_node_prev(const etch_node *n);

ETCH_API const etch_op *etch_node_op(const etch_node *n); /* NULL for an input */
/* The node's value; lives as long as the node. */
ETCH_API etch_tensor *etch_node_value(const etch_node *n);
/* The node whose value t is; NULL and not_found where g has none. */
ETCH_API etch_node *etch_graph_node_of(const etch_graph *g, const etch_tensor *t);
/* Writes the call's arguments, in schema order, to args, which has room for ETCH_NODE_MAX_ARGS;
 * returns how many, -1 with an error for NULL. Run-time scalars have the tag ETCH_VALUE_PARAM.
 * Lists live as long as the node. */
#define ETCH_NODE_MAX_ARGS 8
ETCH_API int etch_node_args(const etch_node *n, etch_value *args);
/* How often the node's value is used: by operands of calls, and as output. */
ETCH_API int etch_node_uses(const etch_node *n);

/* ---- editing ---- */

/* Inserts a call before `before` (NULL: at the end). Arguments as those of etch_op_call; tensors
 * are values of nodes of g that come earlier. Returns the new node, or NULL with an error:
 * composites, random operators and operators that do not take these arguments are refused. */
ETCH_API etch_node *etch_graph_insert(etch_graph *g, etch_node *before, const etch_op *op,
                                      const etch_value *args, int nargs);
/* Every use of the value of `old`, as operand or output, becomes a use of that of `with` (except by
 * `with` itself). Both must have one dtype and the same sizes. */
ETCH_API etch_status etch_graph_replace_uses(etch_graph *g, etch_node *old, etch_node *with);
/* insert before n, replace_uses, erase, in one: n becomes a call of op; returns the new node. */
ETCH_API etch_node *etch_graph_replace(etch_graph *g, etch_node *n, const etch_op *op,
                                       const etch_value *args, int nargs);
/* Removes a call. An error while its value is used; a call that writes in place can always go. */
ETCH_API etch_status etch_graph_erase(etch_graph *g, etch_node *n);

/* ---- text ---- */

/* The text, as ETCH_LOGS=graph shows it, into buf (at most n bytes with the final NUL); returns the
 * length it needs without the NUL, or -1 with an error. Scalars that an edit put in follow in a
 * last line, "constants $2 = 0.5". */
ETCH_API int64_t etch_graph_format(const etch_graph *g, char *buf, size_t n);
/* A graph from its text, to be freed with etch_graph_free; NULL with an error that names line and
 * column. */
ETCH_API etch_graph *etch_graph_parse(const char *text);
/* Of a parsed graph; those that a backend is given are not to be freed. NULL is a no-op. */
ETCH_API void etch_graph_free(etch_graph *g);

/* ---- backends ---- */

/* Runs compiled code: in are the tensors of the graph's inputs, params its run-time scalars; on
 * success out[0..nout) are tensors with dtype and sizes of the graph's outputs. Operators run
 * eagerly in it, in a scope of its own. What the graph writes in place it must write, too. A
 * failure must leave the inputs as they were. May be called on several threads at once. */
typedef etch_status (*etch_run_fn)(void *ctx, etch_tensor *const *in, int nin,
                                   const etch_scalar *params, int nparams, etch_tensor **out,
                                   int nout);

/* What a backend answers with: the name of a backend which gets the graph as it is now, or a
 * function of its own. */
typedef struct etch_runnable {
    const char *backend; /* NULL: run */
    etch_run_fn run;
    void *ctx;                  /* passed to run */
    void (*destroy)(void *ctx); /* when the code is dropped; may be NULL */
} etch_runnable;

/* Compiles g: may read and edit it, and fills *out, which is all zero. A failure makes this graph
 * run eagerly, with a warning. g is valid during the call only. */
typedef etch_status (*etch_backend_fn)(void *ctx, etch_graph *g, etch_runnable *out);

/* Makes `name` (copied) a backend for .backend. invalid_argument for a name that is taken. */
ETCH_API etch_status etch_register_backend(const char *name, etch_backend_fn compile, void *ctx);
/* Frees the name. Functions that have the backend keep what it compiled; new graphs of theirs run
 * eagerly. Only for backends that etch_register_backend or etch_compile_counter made. */
ETCH_API etch_status etch_unregister_backend(const char *name);

/* What a counting backend has seen. */
typedef struct etch_compile_counts {
    int64_t frame_count; /* graphs */
    int64_t op_count;    /* operators in them */
} etch_compile_counts;

/* A new backend that counts the graphs handed to it in *counts (set to 0 first) and runs them
 * eagerly: etch_compile(fn, .backend = etch_compile_counter(&counts)). The name is valid, and
 * counts must be, until etch_unregister_backend. NULL on error. */
ETCH_API const char *etch_compile_counter(etch_compile_counts *counts);

#ifdef __cplusplus
}
#endif
#endif
