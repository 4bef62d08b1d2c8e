/* An imported function in memory. */
#ifndef ETCH_EXPORT_IMPORTED_H
#define ETCH_EXPORT_IMPORTED_H

#include <etch/export.h>

#include "core/graph/backend.h"
#include "export/file.h"

struct etch_imported {
    exported e;
    etch_import_code code;
    plan *plan;       /* what a call runs */
    plan *by_nodes;   /* the eager one: says what is wrong where the other has failed */
    uint8_t *written; /* per input: a call writes its storage */
};

#endif
