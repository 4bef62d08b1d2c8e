/* One run of a plan on numbers that nobody reads: libraries make their kernels for its products
 * then, memory is there, code of a device is loaded. So the first call that matters is like all
 * others. */
#ifndef ETCH_EXPORT_WARM_H
#define ETCH_EXPORT_WARM_H

#include "core/graph/backend.h"
#include "export/program.h"

/* captured: what is not written of them is read; arguments are zeros. Programs with operators of
 * the user's are left alone, since those would be called. What fails is nobody's error. */
void etch__warm_up(const program *p, plan *warmed, etch_tensor *const *captured);

#endif
