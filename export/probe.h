/* Run-time sizes of a function that is exported: which dimensions they are, and formulas for what
 * follows from them. */
#ifndef ETCH_EXPORT_PROBE_H
#define ETCH_EXPORT_PROBE_H

#include "export/record.h"

enum { PROBES = 8 };

/* Where arguments have dimensions that are marked dynamic: records f with further sizes and sets
 * symbols, dims and formulas of r's program. false with the error set, which names the operator for
 * whose attributes there is no formula. */
bool etch__probe_sizes(etch_function *f, etch_tensor *const *in, int nin, int nout, recorded *r);
/* Sizes for which code is made when the function is exported. false: that was the last. */
bool etch__sizes_with_code(const program *p, int k, int64_t *sizes);

#endif
