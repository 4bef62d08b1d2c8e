/* Devices as the CUDA backend runs them: contexts, streams, memory, faults.
 *
 * Each thread has a stream on each device, or works on one that the user set (stream.c). A storage
 * remembers the stream that used it; a use on another stream first waits for that one, so work on
 * one storage is ordered whichever threads issue it. Freed memory goes to the free list of its
 * stream and is given out again to that stream only, in order, without waiting. */
#ifndef ETCH_BACKENDS_CUDA_RUNTIME_H
#define ETCH_BACKENDS_CUDA_RUNTIME_H

#include "backends/cuda/api.h"
#include "core/tensor/device.h"

enum { CUDA_DEVICES = 32 };

typedef struct cuda_device {
    int index;
    cu_device device;
    cu_context context;
    int major, minor, multiprocessors, shared; /* bytes of shared memory a block may have */
    char name[96];
} cuda_device;

typedef struct cuda_stream cuda_stream;

/* devices.c: how many there are; why none. */
int etch__cuda_count(void);
const char *etch__cuda_absent(void);
/* Whether this is a child forked from who has asked the driver: it does not work there. */
bool etch__cuda_in_forked_child(void);
/* The device, its context current on this thread. NULL with the error set. */
cuda_device *etch__cuda_enter(int index);
/* Whether the context of a device that was entered once is current on this thread. The driver is
 * asked each time: the rest of the program may make another one current whenever it likes. */
bool etch__cuda_is_current(int index);
/* The calling thread's stream on the device, entered. NULL with the error set. */
cuda_stream *etch__cuda_stream(int index);
cu_stream etch__cuda_stream_handle(const cuda_stream *s);
cuda_device *etch__cuda_stream_device(const cuda_stream *s);

/* Says that work about to be issued to s uses the storage (a device one). */
etch_status etch__cuda_use(cuda_stream *s, etch_storage *storage);

/* An allocation of core's: device_kind.allocate. */
etch_status etch__cuda_allocate_storage(int index, etch_storage *storage);
/* Gives what is unused back to the driver; true if there was any. */
bool etch__cuda_trim(const cuda_device *d);

/* Storages that a recorded graph uses in each replay, counted. */
typedef struct storage_list {
    etch_storage **at;
    int64_t n, cap;
} storage_list;
/* From here on, until NULL, what the thread's work uses goes to the list. */
void etch__cuda_list_uses(storage_list *list);
void etch__cuda_forget_uses(storage_list *list);
etch_status etch__cuda_note_use(etch_storage *storage); /* in that list, where there is one */
/* Around issuing work to s that uses all of them. */
etch_status etch__cuda_use_all(cuda_stream *s, const storage_list *list);
etch_status etch__cuda_used_all(cuda_stream *s, const storage_list *list);
etch_status etch__cuda_use_blocks(cuda_stream *s, const storage_list *list); /* but pinned ones */

/* Memory for work of s, aligned to 256 bytes; freed in the stream's order.
 * NULL: the error is set. */
typedef struct cuda_block cuda_block;
cuda_block *etch__cuda_allocate(cuda_stream *s, size_t bytes);
void etch__cuda_free(cuda_block *b);
void etch__cuda_free_list(cuda_block *b); /* cuda_held.blocks */
void *etch__cuda_address(const cuda_block *b);
/* The same for the backend's own use, not counted as live: it is never freed. */
cuda_block *etch__cuda_allocate_own(cuda_stream *s, size_t bytes);

/* What a recorded graph needs for as long as it may run: blocks that were freed meanwhile, and the
 * code of its kernels, counted. */
typedef struct cuda_held {
    cuda_block *blocks;
    struct cuda_code **codes;
    int64_t ncodes, cap;
    bool failed; /* there was no memory for the list */
} cuda_held;

/* Work issued to s between the two is recorded as a graph instead, which needs what is held. */
etch_status etch__cuda_capture_begin(cuda_stream *s, cuda_held *held);
etch_status etch__cuda_capture_end(cuda_stream *s, cu_graph *graph);
/* What this thread's recording holds, NULL where it records nothing. */
extern __thread cuda_held *etch__cuda_held;
static inline bool etch__cuda_capturing(void) { return etch__cuda_held != NULL; }
/* An error, about `what` at the site, where that is of another device. */
etch_status etch__cuda_may_issue(int index, const char *what, const void *site);
/* Around issuing work to a stream that may be another thread's: an error where that one records,
 * and until the end it does not begin to. */
etch_status etch__cuda_visit(cuda_stream *s);
void etch__cuda_visited(const cuda_stream *s);
void etch__cuda_let_go(cuda_held *held);
/* Whether the memory is a block's that is held, so that nothing else uses it. */
bool etch__cuda_holds(const cuda_held *held, cu_address at, size_t bytes);
/* Says that the blocks are used on more streams than their own. */
void etch__cuda_share(const cuda_held *held);

/* What a device's statistics are made of. */
typedef struct device_counts {
    _Atomic int64_t bytes_live, bytes_peak, bytes_kept, driver_allocations, launches, graphs,
        graph_launches, graph_patches, operand_copies;
} device_counts;
device_counts *etch__cuda_counts(int index);

/* Notes a launch for the report of a later fault. The name lives as long as the process, or is
 * copied. */
void etch__cuda_note(cuda_stream *s, const char *kernel);
/* Waits for the stream; reports what the driver says of the work. */
etch_status etch__cuda_wait(cuda_stream *s);
/* Waits for it and for those that it waited for since the last time, and reports the first check on
 * data that failed as well (faults.h): for what gives the user values. */
etch_status etch__cuda_finish(cuda_stream *s);

/* Lets a function's blocks have that many bytes of shared memory. */
etch_status etch__cuda_allow_shared(cu_function f, unsigned bytes);
/* Launches with one parameter, a struct. */
etch_status etch__cuda_launch(cuda_stream *s, cu_function f, const char *name,
                              const unsigned grid[3], const unsigned block[3], unsigned shared,
                              void *parameter);

#endif
