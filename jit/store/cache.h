/* The disk cache of compiled kernels. None of this fails the caller: without a usable folder there
 * is simply no cache. */
#ifndef ETCH_JIT_STORE_CACHE_H
#define ETCH_JIT_STORE_CACHE_H

#include "jit/store/client.h"
#include "jit/store/pack.h"

/* The folder in which compiles leave their objects: the cache, or (*disk false) a private one made
 * for this call. False: not even that. Afterwards etch__cache_close. */
typedef struct cache_dir {
    char path[224];
    bool disk;
} cache_dir;
bool etch__cache_open(cache_dir *dir);
void etch__cache_close(const cache_dir *dir);

/* A loaded object. */
typedef struct cache_object {
    void *handle; /* of dlopen */
    void *entry;
} cache_object;

/* What code of this process depends on beside the kernel and the helper: versions, instruction set.
 * Returns the text's length. */
size_t etch__cache_identity(char *text, size_t n);

/* Looks for the kernel; false: not there, or bad and removed. */
bool etch__cache_load(const cache_dir *dir, const uint8_t *kernel, size_t n, cache_object *out);

/* Publishes the object of a job that is ok (under the cache's name if there is a disk cache) and
 * loads it; false with a message in job->message. The job's object is gone afterwards in every
 * case. */
bool etch__cache_publish(const cache_dir *dir, jit_job *job, cache_object *out);

/* Loads code that a pack gives (jit/store/pack.h); false with the reason in *why. */
bool etch__cache_load_given(const pack_entry *e, cache_object *out, const char **why);

/* Code of other devices is bytes under a key that says all they depend on. The key begins with the
 * version of the device's compiler, which a machine that imports a file need not have: a pack's key
 * is what stands behind that. */
typedef struct blob_key {
    const uint8_t *bytes;
    size_t n, compiler; /* all of it; what of it is the compiler's */
} blob_key;

/* Loading gives a copy to be freed, or NULL; storing fails silently. */
void *etch__cache_load_blob(blob_key key, size_t *bytes);
void etch__cache_store_blob(blob_key key, const void *blob, size_t bytes);

#endif
