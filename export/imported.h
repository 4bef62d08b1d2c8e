/* An imported function in memory. */
#ifndef ETCH_EXPORT_IMPORTED_H
#define ETCH_EXPORT_IMPORTED_H

#include <etch/export.h>
#include <pthread.h>

#include "core/graph/backend.h"
#include "export/file.h"

/* The program for one set of sizes, ready to run. */
typedef struct instance {
    atomic_int refs;
    program *p;     /* the function's own, or resized */
    bool own;       /* p goes with it */
    plan *plan;     /* what a call runs */
    plan *by_nodes; /* the eager one: says what is wrong where the other has failed */
    int64_t sizes[SYMBOLS_MAX];
} instance;

enum { INSTANCES_MAX = 64 };

struct etch_imported {
    exported e;
    etch_import_code code;
    bool cold;
    uint8_t *written;     /* per input: a call writes its storage */
    pthread_mutex_t lock; /* of the list; never held while a plan is made or run */
    instance *instances[INSTANCES_MAX];
    int ninstances, oldest;
    atomic_bool warned; /* of sizes that run without compiled code */
};

/* That for the sizes of the file, when the function is imported: nobody else knows it yet. false
 * with the error set. */
bool etch__instance_first(etch_imported *f);
/* That for these sizes (of p's symbols; ignored where there are none), made where it is missing,
 * with a count. NULL with the error set. */
instance *etch__instance_get(etch_imported *f, const int64_t *sizes);
void etch__instance_release(instance *x);

#endif
