/* A run: one call of a compiled function, from segment to segment. */
#ifndef ETCH_TRACER_RUN_H
#define ETCH_TRACER_RUN_H

#include "tracer/trace.h"

/* The calling thread's run; NULL without one. */
static inline run *etch__current_run(void) { return etch__tls.run; }

/* Calls the body of f, whatever its arity. */
etch_status etch__call_body(etch_function *f, etch_tensor *const *in, int nin, etch_tensor **out,
                            int nout);

/* A run holds the function, which may be freed meanwhile. */
void etch__function_pin(etch_function *f);
/* A run gives up its hold on the function, the last one frees it. */
void etch__function_unpin(etch_function *f);

/* Whether nothing may be compiled: ETCH_COMPILE_DISABLE or the option. */
bool etch__disabled(const etch_function *f);

#endif
