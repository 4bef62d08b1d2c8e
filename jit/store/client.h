/* Compiling through the helper process etch-jit. */
#ifndef ETCH_JIT_STORE_CLIENT_H
#define ETCH_JIT_STORE_CLIENT_H

#include "core/base/base.h"

/* One compile: filled by the caller above the line, by etch__jit_compile below it. */
typedef struct jit_job {
    const uint8_t *kernel;
    size_t kernel_bytes;
    const char *symbol;
    bool want_dump;
    /* -- */
    bool ok;
    char object[320];  /* the shared object, in `base`: to be renamed or unlinked */
    char message[256]; /* why it failed */
    char *dump;        /* to be freed */
    double ms, started, deadline;
} jit_job;

/* Runs all jobs, two at a time where there are several; true when all are ok. `base` is the folder
 * in which helpers get their private folders; keep_warm: one helper stays for the next call. */
bool etch__jit_compile(jit_job *jobs, int n, const char *base, bool keep_warm);

/* Path of the helper, or NULL with the reason in *why (static). */
const char *etch__jit_helper(const char **why);

/* Ends the helpers, or has a compile that is going on end them; the next one starts a new helper.
 * Waits for nobody. */
void etch__jit_shutdown(void);

/* Removes a folder with what lies in it. */
void etch__remove_tree(const char *path);

#endif
