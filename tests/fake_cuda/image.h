/* What a compiled "cubin" holds: shared by the prelude that goes before each CUDA source (C++)
 * and by the fake driver (C). */
#ifndef FAKE_CUDA_IMAGE_H
#define FAKE_CUDA_IMAGE_H

enum { FAKE_WARP_SYNC, FAKE_WARP_SHUFFLE, FAKE_WARP_BALLOT };

typedef struct fake_uint3 {
    unsigned x, y, z;
} fake_uint3;

/* What kernels call: it stops the thread until the others of its block or warp have come, or as it
 * says. */
typedef struct fake_hooks {
    /* How many threads of the block came with a true predicate. */
    int (*barrier)(int predicate);
    unsigned long long (*warp)(int kind, unsigned mask, unsigned long long value, int source);
    void (*trap)(const char *why);
    /* Until another thread has made *word differ from value. */
    void (*changed)(const unsigned *word, unsigned value);
    /* A thread comes to a barrier of that number, at which so many do; and waits for them. */
    void (*named)(int number, int threads, int waits);
} fake_hooks;

typedef struct fake_kernel {
    const char *name;
    void *function;
    void (*call)(void **params);
    const unsigned *sizes;
    const unsigned char *pointers; /* 1: the parameter is a pointer */
    int params, max_threads;
} fake_kernel;

typedef struct fake_image {
    int version;
    const fake_kernel *kernels;
    int count;
    fake_uint3 *thread, *block, *block_size, *grid_size;
    const fake_hooks **hooks;
    char *shared_from, *shared_to, *dynamic;
    unsigned *dynamic_size;
} fake_image;

enum { FAKE_IMAGE_VERSION = 3, FAKE_DYNAMIC_ROOM = 233472 };

/* The bytes before the shared object in an image. */
typedef struct fake_header {
    char magic[8];
    unsigned arch, reserved;
    unsigned long long size;
} fake_header;
#define FAKE_MAGIC "FAKECUB"

#endif
