/* How the library starts: the functions named by core/base/parts.def. */
#ifndef ETCH_CORE_BASE_START_H
#define ETCH_CORE_BASE_START_H

#define PART(name, what) void etch__start_##name(void);
#include "core/base/parts.def"
#undef PART

#endif
