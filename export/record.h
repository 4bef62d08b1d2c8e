/* Recording a compiled function for export: its body runs on shapes alone, twice, and what it did
 * becomes a program. */
#ifndef ETCH_EXPORT_RECORD_H
#define ETCH_EXPORT_RECORD_H

#include "export/program.h"

/* What is recorded, and with it the tensors of the program's inputs, in their order (counted). */
typedef struct recorded {
    program *p;
    etch_tensor **tensors;
    bool *left; /* per input: the call has left a gradient that was not there */
} recorded;

/* false with the error set: a graph break, a call that cannot be repeated, gradients that are for
 * outside. The body runs twice, and its own effects on what is no tensor happen. */
bool etch__record(etch_function *f, etch_tensor *const *in, int nin, int nout, recorded *r);
/* One recording of the two. */
bool etch__record_once(etch_function *f, etch_tensor *const *in, int nin, int nout, recorded *r);
void etch__recorded_free(recorded *r);

#endif
