/* What the ways of etch_opcheck share: the report, and copies of a sample's tensors. */
#ifndef ETCH_OPCHECK_CHECK_H
#define ETCH_OPCHECK_CHECK_H

#include <etch/opcheck.h>

#include "core/ops/schema.h"

enum { OPCHECK_TENSORS = 32 }; /* the most of one sample */

typedef struct opcheck {
    const etch_op *op;
    const op_schema *schema;
    char *report;
    size_t room, used;
    int sample;
    int faults;
    char first[256];         /* the first fault, for the error */
    bool derivable, derived; /* there is a derivative; it was compared with differences */
} opcheck;

/* The sample's arguments, with tensors of its own. */
typedef struct opcheck_inputs {
    etch_value args[SCHEMA_MAX_ARGS];
    int nargs;
    etch_tensor *t[OPCHECK_TENSORS];
    int nt;
} opcheck_inputs;

typedef etch_tensor *(*remade_fn)(etch_tensor *t, void *ctx);

/* Adds a fault of this way to the report. */
void etch__opcheck_fault(opcheck *c, const char *way, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The fault that something failed, with the thread's error. */
void etch__opcheck_failed(opcheck *c, const char *way, const char *what);
/* A fault where got is not expected, bit for bit, or NULL. */
void etch__opcheck_same(opcheck *c, const char *way, const char *what, const etch_tensor *got,
                        const etch_tensor *expected);
/* A fault where a compiled function is not one graph; breaks: where it may be several. */
void etch__opcheck_counts(opcheck *c, const char *way, const etch_function *f, bool breaks);
/* Sums may follow the strides: floats need to agree to half their digits only. */
bool etch__opcheck_near(const etch_tensor *a, const etch_tensor *b);

/* The arguments with each tensor replaced by remade(tensor, ctx), in order; false on an error. */
bool etch__opcheck_remake(opcheck_inputs *to, const etch_value *args, int nargs, remade_fn remade,
                          void *ctx);
etch_tensor *etch__opcheck_copy(etch_tensor *t, void *ctx);
/* The operator's result for these arguments; NULL on an error. */
etch_tensor *etch__opcheck_call(const opcheck *c, const opcheck_inputs *in);

/* Mapped over a batch, and in forward mode (opcheck/transforms.c). */
void etch__opcheck_mapped(opcheck *c, const etch_op_sample *s);
void etch__opcheck_forward(opcheck *c, const etch_op_sample *s, const etch_tensor *result);

/* The ways of the derivative (opcheck/derivative.c), for a sample whose plain result is known. */
void etch__opcheck_derivative(opcheck *c, const etch_op_sample *s, const etch_tensor *result);

#endif
