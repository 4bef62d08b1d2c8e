/* What a captured tensor must look like: one that a trace meets and that is neither an argument nor
 * a result of it. */
#ifndef ETCH_GUARDS_CAPTURE_H
#define ETCH_GUARDS_CAPTURE_H

#include "guards/guard.h"

/* First met at a node: the slot it binds, and its guard. */
typedef struct capture {
    int32_t value, operand;
    uint8_t fixed; /* dimensions that are marked static: their sizes count, whatever the node */
    tensor_meta guard;
} capture;

void etch__capture_make(capture *c, const etch_tensor *t, int32_t value, int32_t operand);
/* by_rank: whatever the sizes are, but for marks. */
bool etch__capture_fits(const capture *c, const etch_tensor *t, bool by_rank);
/* Whether two lists of n ask for the same. */
bool etch__same_captures(const capture *a, const capture *b, int n, bool by_rank);

#endif
