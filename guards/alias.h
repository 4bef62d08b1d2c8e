/* Which inputs of a trace lie over one storage, and which merely share memory: code that writes its
 * inputs is for one such pattern. */
#ifndef ETCH_GUARDS_ALIAS_H
#define ETCH_GUARDS_ALIAS_H

#include "core/tensor/tensor.h"

/* Whether two storages have memory in common. */
static inline bool etch__memory_overlaps(const etch_storage *a, const etch_storage *b) {
    const char *pa = a->data, *pb = b->data;
    return a != b && pa < pb + b->bytes && pb < pa + a->bytes;
}

/* Per value that is an input: the lowest input over the same storage; any other: itself. alias has
 * room for so many numbers; what lies behind those of the values is scratch. */
int64_t etch__alias_room(int64_t nvalues, int ninputs);
void etch__alias_fill(etch_tensor *const *value, const int32_t *inputs, int ninputs, int32_t *alias,
                      int64_t nvalues);
/* Whether two different storages share memory, one of which is written: no code handles that. */
bool etch__alias_overlaps(etch_tensor *const *value, const int32_t *inputs, int ninputs,
                          const uint8_t *written);

#endif
