/* Source lines of code addresses, from a module's line tables (DWARF 2 to 5). */
#ifndef ETCH_CORE_BASE_LINES_H
#define ETCH_CORE_BASE_LINES_H

#include "core/base/modules.h"

/* The file, with its folders as far as the tables know them, and the line of the instruction.
 * *number is 0 where the tables do not say. False: there was no memory to look. */
bool etch__line_of(const module *m, const void *address, char *path, size_t n, int *number);

#endif
