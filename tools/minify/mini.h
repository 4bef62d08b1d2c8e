/* A graph as plain memory, which can be copied, changed and run: what etch-minify works on.
 *
 * Values have numbers that stay when others go: inputs and results of calls alike. A call that
 * writes in place has no value: those behind it see the write in that of its first argument. */
#ifndef ETCH_MINIFY_MINI_H
#define ETCH_MINIFY_MINI_H

#include <etch/etch.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shrink.h"

enum {
    MINI_MAX_INPUTS = 256,
    MINI_MAX_NODES = 4096,
    MINI_MAX_VALUES = 2 * MINI_MAX_NODES + 2 * MINI_MAX_INPUTS,
    MINI_MAX_REFS = 4 * MINI_MAX_NODES,
    MINI_MAX_SCALARS = 2 * MINI_MAX_NODES,
    MINI_MAX_OUTPUTS = 64
};

typedef struct mini_meta {
    uint8_t dtype, ndim;
    bool known;
    int64_t size[ETCH_MAX_DIMS], stride[ETCH_MAX_DIMS], offset;
} mini_meta;

typedef struct mini_input {
    int value;
    int base; /* value over whose storage it lies: itself, or another input's */
    mini_meta meta;
} mini_input;

typedef struct mini_arg {
    const char *name; /* the schema's */
    uint8_t tag;      /* etch_value_tag */
    int first, n;     /* TENSOR, TENSORS: in refs; INTS: n of v; PARAM: v[0] is its number */
    int64_t v[ETCH_MAX_DIMS];
    etch_scalar scalar;
    double d;
} mini_arg;

typedef struct mini_node {
    const etch_op *op;
    int value; /* -1: writes in place */
    int nargs;
    mini_arg arg[ETCH_NODE_MAX_ARGS];
} mini_node;

typedef struct mini_graph {
    char name[64];
    int ninputs, nnodes, noutputs, nrefs, nvalues, nscalars;
    mini_input input[MINI_MAX_INPUTS];
    mini_node node[MINI_MAX_NODES];
    int output[MINI_MAX_OUTPUTS]; /* values */
    int ref[MINI_MAX_REFS];       /* values; -1: ETCH_NONE */
    etch_scalar scalar[MINI_MAX_SCALARS];
    bool varies[MINI_MAX_SCALARS];   /* false: its class is part of the graph */
    mini_meta meta[MINI_MAX_VALUES]; /* of results, as far as known */
} mini_graph;

/* graph.c: from the text form, "graph NAME(...) { ... }". NULL with Etch's error set; free it. */
mini_graph *mini_parse(const char *text);
/* The graphs of a log, one after the other: the text of the next one from *at on, without the
 * prefixes of log lines; free it. NULL at the end. */
char *mini_next_text(const char **at);
const mini_input *mini_find_input(const mini_graph *g, int value);
const mini_node *mini_find_node(const mini_graph *g, int value);
bool mini_uses(const mini_graph *g, int value); /* by a call, an output or an input's base */

typedef struct mini_options {
    const char *backend, *plugin; /* plugin: for the test that is printed; may be NULL */
    int calls, most, seconds;     /* most: trials; seconds: of one trial */
    uint64_t seed;
    bool verbose;
} mini_options;

typedef enum mini_verdict {
    MINI_SAME,
    MINI_DIFFERENT,
    MINI_CRASH,  /* or a hang */
    MINI_INVALID /* the graph does not run eagerly */
} mini_verdict;

/* check.c: runs the graph in a process of its own. difference (of MINI_TEXT bytes) says what
 * differs; meta gets those of all results (MINI_MAX_VALUES); both may be NULL. */
enum { MINI_TEXT = 512 };
mini_verdict mini_check(const mini_graph *g, const mini_options *o, char *difference,
                        mini_meta *meta);

/* passes.c: makes it smaller while the verdict stays; how many trials that took. */
int mini_reduce(mini_graph *g, const mini_options *o, mini_verdict verdict);

/* print.c: a cmocka program that needs nothing but Etch's public headers. */
void mini_print(FILE *to, const mini_graph *g, const mini_options *o, const char *difference);

#endif
