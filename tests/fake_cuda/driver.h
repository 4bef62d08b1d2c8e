/* Inside the fake driver: its objects, and what its files ask of each other. One lock guards all of
 * it; every entry point takes it in ENTER and gives it back when it returns. */
#ifndef FAKE_CUDA_DRIVER_H
#define FAKE_CUDA_DRIVER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api_types.h"
#include "api_calls.h"
#include "control.h"
#include "image.h"

enum { FAKE_MAX_DEVICES = 8, FAKE_WARP = 32, FAKE_MAX_THREADS = 1024 };
enum { FAKE_SHARED = 49152, FAKE_SHARED_OPTIN = 232448, FAKE_SHARED_SM = 233472 };

/* ---- calls ---- */

enum fake_call {
#define FAKE_CALL(name, flags, args) FAKE_##name,
#include "calls.def"
#undef FAKE_CALL
    FAKE_CALLS
};

CUresult fake__enter(enum fake_call call);
void fake__leave(int *locked);
CUresult fake__released(CUresult result);

/* First line of every entry point: counts, refuses, fails when a test wants it to, and locks. */
#define ENTER(name)                                                                                \
    __attribute__((cleanup(fake__leave))) int locked_ = 1;                                         \
    const CUresult early_ = fake__enter(FAKE_##name);                                              \
    (void)locked_;                                                                                 \
    if (early_) return early_

#define CHECK(condition, error)                                                                    \
    do {                                                                                           \
        if (!(condition)) return error;                                                            \
    } while (0)

#define TRY(call)                                                                                  \
    do {                                                                                           \
        const CUresult tried_ = (call);                                                            \
        if (tried_) return tried_;                                                                 \
    } while (0)

/* One line on standard error: what went wrong on the "device". */
void fake__say(const char *format, ...) __attribute__((format(printf, 1, 2)));
void *fake__new(size_t size);
void *fake__copy(const void *data, size_t size);

/* ---- objects: a set of live handles with their kinds, so that any bad handle is refused ---- */

void fake__add(void *object, const char *kind);
void fake__remove(void *object);
bool fake__is(const void *object, const char *kind);

/* ---- devices ---- */

typedef struct fake_allocation {
    uintptr_t at, size;      /* what the caller got */
    uintptr_t map, map_size; /* the pages that hold it; the bytes around it are the red zone */
    int device;
    bool open;
} fake_allocation;

typedef struct fake_device {
    CUcontext context; /* primary */
    uintptr_t arena, arena_size, cursor;
    fake_allocation **live; /* by address */
    int count, room;
    size_t total, used; /* bytes */
} fake_device;

struct CUctx_st {
    int device;
    CUresult fault; /* what stays after a kernel failed */
    CUstream null_stream;
    CUstream *streams; /* all that ever were */
    int stream_count;
};

struct fake_state {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool initialised, forked, lazy;
    int devices, version, arch;
    fake_device device[FAKE_MAX_DEVICES];
};
extern struct fake_state fake;
extern __thread CUcontext fake__context;

/* ---- memory ---- */

fake_allocation *fake__find(uintptr_t address);
bool fake__inside(uintptr_t address, size_t size);
bool fake__in_arena(uintptr_t address);
bool fake__is_pinned(uintptr_t address, size_t size);
/* Device memory can be touched only between these; pages open when they are first touched. */
void fake__open(CUcontext context);
bool fake__open_at(uintptr_t address);
CUresult fake__close(const char *who);

/* ---- work ---- */

enum fake_work_kind { WORK_KERNEL, WORK_COPY, WORK_SET, WORK_RUN, WORK_EVENT, WORK_GRAPH };

/* One thing a device does. Never changed once made, so graphs, their copies
 * and streams share it. */
typedef struct fake_work {
    enum fake_work_kind kind;
    int references;
    CUcontext context;
    char *name; /* of a library's */
    union {
        struct {
            CUfunction function;
            unsigned grid[3], block[3], shared;
            char *bytes;
            void **params;
        } kernel;
        struct {
            CUDA_MEMCPY3D shape;
            uintptr_t to, from;
            void *staged; /* pageable memory as it was at the call */
        } copy;
        struct {
            uintptr_t to;
            size_t size;
            unsigned char value;
        } set;
        struct {
            void (*run)(const void *data);
            void *data;
        } run;
        struct {
            struct fake_work **items;
            int count;
        } graph;
        CUevent event;
    };
} fake_work;

fake_work *fake__work(enum fake_work_kind kind, CUcontext context);
fake_work *fake__hold(fake_work *work);
void fake__drop(fake_work *work);
CUresult fake__kernel_work(fake_work **out, CUfunction function, const unsigned grid[3],
                           const unsigned block[3], unsigned shared, void **params, void **extra);
CUresult fake__set_work(fake_work **out, CUcontext context, const CUDA_MEMSET_NODE_PARAMS *params);
CUresult fake__copy_work(fake_work **out, CUcontext context, const CUDA_MEMCPY3D *shape);
CUresult fake__run_copy(const fake_work *work);
CUresult fake__run_set(const fake_work *work);

/* ---- streams ---- */

typedef struct fake_wait {
    CUstream stream;
    uint64_t until;
} fake_wait;

typedef struct fake_item {
    struct fake_item *next;
    fake_work *work; /* NULL: only waits */
    fake_wait *waits;
    int wait_count;
} fake_item;

typedef struct fake_capture {
    CUgraph graph;
    CUstream origin;
    CUstreamCaptureMode mode;
    pthread_t thread;
    uint64_t id;
    bool invalid;
} fake_capture;

struct CUstream_st {
    CUcontext context;
    unsigned flags;
    bool busy;
    fake_item *first, *last;
    uint64_t pushed, done;
    fake_capture *capture;
    CUgraphNode *tips; /* what the next captured node depends on */
    size_t tip_count;
};

struct CUevent_st {
    unsigned flags;
    CUcontext context;
    bool recorded;
    CUstream stream;
    uint64_t at;
    double time;
    uint64_t capture; /* recorded while capturing: the id of the capture */
    CUgraphNode *tips;
    size_t tip_count;
};

CUresult fake__stream(CUstream *stream);
CUresult fake__submit(CUstream stream, fake_work *work);
CUresult fake__finish(CUstream stream);
CUresult fake__finish_context(CUcontext context);
/* What may not happen while a capture is going on: the error, after making the capture invalid. */
CUresult fake__no_capture(void);

/* ---- graphs ---- */

CUresult fake__graph_add(CUgraph graph, fake_work *work, const CUgraphNode *tips, size_t count,
                         CUgraphNode *node);
CUgraph fake__graph_new(void);
void fake__graph_free(CUgraph graph);
/* Nodes that a destroyed graph or stream still points to are never freed, only marked. */
bool fake__depends(CUgraphNode node, CUgraphNode on);
uint64_t fake__next_id(void);

/* ---- modules ---- */

struct CUfunc_st {
    const fake_kernel *kernel;
    CUmodule module;
    int max_dynamic;
    char *name;
};

struct CUmod_st {
    CUcontext context;
    void *handle;
    const fake_image *image;
    struct CUfunc_st *functions;
};

/* ---- running a kernel ---- */

CUresult fake__run_grid(const fake_work *work);
CUresult fake__run_library(const fake_work *work);

#endif
