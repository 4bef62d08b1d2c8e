/* The types of modules that can be made from files, and their configs. */
#ifndef ETCH_NN_TYPES_H
#define ETCH_NN_TYPES_H

#include <etch/nn.h>

/* The maker of a type; NULL with the error not_found. */
etch_module_maker etch__maker_of(const char *type);

#endif
