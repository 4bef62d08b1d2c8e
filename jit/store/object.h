/* Shared objects as bytes: whether they are whole, and loading them. */
#ifndef ETCH_JIT_STORE_OBJECT_H
#define ETCH_JIT_STORE_OBJECT_H

#include "core/base/base.h"

/* Why the bytes are no whole shared object of this machine, or NULL. The loader does not ask: it
 * maps what the headers say, and what lies beyond the file's end is SIGBUS. */
const char *etch__object_fault(const void *bytes, size_t n);

/* Loads a copy that nobody else can write or cut short. It lies in `dir` where the system has no
 * memory files; where none can be written (a limit on files) it is `file`, which holds the same
 * bytes, that is loaded. The handle is dlopen's; NULL with the reason in *why (valid until the
 * next). */
void *etch__object_load(const void *bytes, size_t n, const char *dir, const char *file,
                        const char **why);

/* A regular file of ours, whole, in memory to be freed, touched so that it is the newest; NULL with
 * *missing true where there is none, or no memory, and false where there is something else or the
 * file is shorter than it said. `closed`: not one that others may write. */
uint8_t *etch__file_read(const char *path, bool closed, size_t *n, bool *missing);

/* All of it, or false with errno; raises no signal. */
bool etch__file_write(int fd, const void *from, size_t n);

#endif
