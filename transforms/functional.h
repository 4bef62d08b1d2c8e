/* What the functional forms share: how they call the user's function. */
#ifndef ETCH_TRANSFORMS_FUNCTIONAL_H
#define ETCH_TRANSFORMS_FUNCTIONAL_H

#include <etch/etch.h>
#include <string.h>

#include "tracer/run/run.h"

/* A call of the user's function by one of the forms, which `name` names. */
typedef struct functional_call {
    const char *name;
    etch_callable fn;
    etch_tensor *const *in;
    etch_tensor **out;
    int nin, nout;
    const void *site;
} functional_call;

/* Whether there are function, arguments and room for results, and the arguments can be used. */
bool etch__functional_ok(const functional_call *c);
/* The function on `in` in place of the call's own; results are checked, and of the innermost
 * scope. */
etch_status etch__functional_run(const functional_call *c, etch_tensor *const *in);
/* etch_jvp and etch_vjp for what is made of them. alone: nobody can give gradients for results. */
etch_status etch__jvp(const functional_call *f, etch_tensor *const *tangents,
                      etch_tensor **out_tangents);
etch_status etch__vjp(const functional_call *f, etch_tensor *const *grad_outputs,
                      etch_tensor **grads, bool alone);

/* Handles beside a call of the user's function. Few are in the caller's frame, so that a function
 * which is left by longjmp leaves nothing behind. */
typedef struct handle_array {
    etch_tensor *few[24], **all;
} handle_array;
/* n NULLs; NULL where there is no memory. */
static inline etch_tensor **etch__handles(handle_array *a, size_t n) {
    memset(a->few, 0, sizeof a->few);
    a->all = n > sizeof a->few / sizeof *a->few ? etch__calloc(n, sizeof *a->all) : a->few;
    return a->all;
}
static inline void etch__handles_free(handle_array *a) {
    if (a->all != a->few) etch__free(a->all);
}
/* What is called until etch__end_taping(before) is noted for gradients, in ETCH_NO_GRAD and
 * ETCH_INFERENCE too: those say that nothing goes on, not that there is nothing to compute. */
static inline uint64_t etch__begin_taping(void) {
    uint64_t before = etch__tls.state;
    etch__tls.state &= ~(uint64_t)(STATE_NO_GRAD | STATE_INFERENCE);
    return before;
}
static inline void etch__end_taping(uint64_t before) {
    const uint64_t both = STATE_NO_GRAD | STATE_INFERENCE;
    etch__tls.state = (etch__tls.state & ~both) | (before & both);
}
static inline void etch__functional_clear(etch_tensor **list, int n) {
    for (int i = 0; list && i < n; i++) list[i] = NULL;
}

#endif
