/* Compiled, never run, where CUDA's headers are installed: our constants, layouts and prototypes
 * are those of the real ones. A prototype that differs is a conflicting declaration. */
#include <cublasLt.h>
#include <cuda.h>
#include <nvrtc.h>

#define FAKE_VALUE(name, value) _Static_assert((int)(name) == (value), #name);
#include "values.def"
#undef FAKE_VALUE

#define FAKE_CUDA_API_TYPES_H
#include "api_calls.h"

#define FAKE_SIZE(type, size) _Static_assert(sizeof(type) == (size), #type);
#define FAKE_FIELD(type, field, offset)                                                            \
    _Static_assert(offsetof(type, field) == (offset), #type "." #field);
#include "layouts.def"
