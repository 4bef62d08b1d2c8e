/* Native plans for other devices than the CPU: a backend registers how it makes and launches
 * kernels; everything before (passes, fusion, lowering, memory) is the same for all. */
#ifndef ETCH_JIT_TARGET_H
#define ETCH_JIT_TARGET_H

#include "jit/plan.h"

/* A kernel with its extents, ready to be launched any number of times. */
typedef struct launcher launcher;

typedef struct jit_target {
    /* Makes n launchers; low[i] is kernel i. Bit a of aligned[i] says that argument a lies at a
     * multiple of 16 bytes; an argument that lies in an input only as far as its offset tells. On
     * failure all slots are NULL and *why says what failed. */
    bool (*prepare)(int device, const lowered *const *low, const uint32_t *aligned, int n,
                    launcher **out, const char **why);
    void (*release)(launcher *l);
    etch_status (*launch)(launcher *l, void *const *args, const uint64_t *cells);
    /* A run that uses the storage is about to issue work on this thread. */
    etch_status (*use)(int device, etch_storage *s);
} jit_target;

void etch__target_register(const jit_target *t);
const jit_target *etch__target(void); /* NULL where only the CPU is known */

#endif
