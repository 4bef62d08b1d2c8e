/* The lower bound of a verified trace: a thread-local cursor, one compare of operator, operands and
 * parameter per call, nothing else (no scopes, no state word, no shared library, no binding). The
 * library's own cost an operator is to be read beside this figure, from the same run. */
#include "bench.h"

#include <stdlib.h>

typedef struct bare_tensor {
    int node;
} bare_tensor;

typedef struct bare_node {
    uint16_t op, nin;
    int in[2];
    uint64_t parameter;
    bare_tensor *result;
} bare_node;

typedef struct bare_trace {
    bare_node nodes[25];
    bare_tensor results[25];
    int length, position;
    bool recording;
} bare_trace;

enum bare_op { BARE_MM, BARE_SIN, BARE_ADD, BARE_RELU };

static _Thread_local bare_trace *current;
static _Thread_local int modes;

/* Recording: appends the node. A mismatch while matching has nowhere to go in this bench. */
__attribute__((noinline)) static bare_tensor *record(enum bare_op op, bare_tensor *a,
                                                     bare_tensor *b) {
    bare_trace *t = current;
    if (!t || !t->recording || t->length == 25) return NULL;
    bare_node *n = &t->nodes[t->length];
    t->results[t->length].node = 2 + t->length;
    n->op = (uint16_t)op, n->nin = b ? 2 : 1;
    n->in[0] = a->node, n->in[1] = b ? b->node : 0;
    n->result = &t->results[t->length];
    t->length++;
    return n->result;
}

__attribute__((noinline)) static bare_tensor *call2(enum bare_op op, bare_tensor *a,
                                                    bare_tensor *b) {
    bare_trace *t = current;
    if (__builtin_expect(!t || modes || !a || !b || t->recording, 0)) return record(op, a, b);
    const bare_node *n = &t->nodes[t->position];
    bool same = t->position < t->length && n->op == op && n->nin == 2 && n->in[0] == a->node &&
                n->in[1] == b->node && n->parameter == 0;
    if (__builtin_expect(!same, 0)) return record(op, a, b);
    t->position++;
    return n->result;
}

__attribute__((noinline)) static bare_tensor *call1(enum bare_op op, bare_tensor *a) {
    bare_trace *t = current;
    if (__builtin_expect(!t || modes || !a || t->recording, 0)) return record(op, a, NULL);
    const bare_node *n = &t->nodes[t->position];
    bool same = t->position < t->length && n->op == op && n->nin == 1 && n->in[0] == a->node &&
                n->parameter == 0;
    if (__builtin_expect(!same, 0)) return record(op, a, NULL);
    t->position++;
    return n->result;
}

static bare_tensor *body(bare_tensor *x, bare_tensor *w) {
    for (int i = 0; i < 5; i++) {
        bare_tensor *a = call2(BARE_MM, x, w);
        bare_tensor *s = call1(BARE_SIN, x);
        bare_tensor *b = call2(BARE_MM, s, w);
        bare_tensor *c = call2(BARE_ADD, a, b);
        x = call1(BARE_RELU, c);
    }
    return x;
}

void bench_bare_cursor(void *ctx, int64_t calls) {
    (void)ctx;
    bare_trace trace = {.recording = true};
    bare_tensor x = {0}, w = {1};
    current = &trace;
    bare_tensor *recorded = body(&x, &w);
    trace.recording = false;
    for (int64_t i = 0; i < calls; i++) {
        trace.position = 0;
        if (body(&x, &w) != recorded) bench_fail("bare cursor");
    }
    current = NULL;
}

void bench_bare_floats(void *ctx, int64_t calls) {
    (void)ctx;
    float values[4096];
    for (int i = 0; i < 4096; i++) values[i] = (float)i;
    for (int64_t c = 0; c < calls; c++) {
        for (int i = 0; i < 4096; i++) values[i] = values[i] * 0.5f + 1.0f;
        __asm__ volatile("" : : "r"(values) : "memory");
    }
}
