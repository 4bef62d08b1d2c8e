/* How many alternatives one root of traces may have, and all functions together graphs. */
#ifndef ETCH_GUARDS_LIMIT_H
#define ETCH_GUARDS_LIMIT_H

#include <stdatomic.h>

#include "core/base/thread.h"

/* All entries of a function are one root, and so is each first operator after a break. */
typedef struct root_limit {
    int leaves;           /* alternatives so far (under the function's lock) */
    _Atomic bool reached; /* no more from here on */
} root_limit;

/* Of all functions together; so many make the limit. */
extern atomic_int etch__live_graphs;

/* What is to be warned of, by the caller, when it has let go of the function's lock. */
typedef struct limit_warning {
    bool due;
    bool graphs; /* it is the limit of all functions' graphs */
} limit_warning;

static inline int etch__recompile_limit(const etch_compile_options *o) {
    return o->recompile_limit > 0 ? o->recompile_limit : 8;
}

/* Whether the root may get no more alternatives than `most`. The first one turned away (`warned` of
 * the function's traces) is warned of. Under the function's lock. */
bool etch__at_limit(root_limit *l, int most, atomic_bool *warned, limit_warning *warning);

#endif
