/* What tests reach in the fakes with dlsym(handle of the fake driver, name), and what the fakes of
 * NVRTC and cuBLASLt ask of the fake driver. */
#ifndef FAKE_CUDA_CONTROL_H
#define FAKE_CUDA_CONTROL_H

#include "api_types.h"

/* Calls of all three fakes since load (or fake_cuda_reset_counts), together or by symbol name. */
unsigned long fake_cuda_calls(void);
unsigned long fake_cuda_count(const char *symbol);
void fake_cuda_reset_counts(void);

/* The n-th call from now (1: the next) fails: allocations with "out of memory", the rest with an
 * unknown or internal error. 0: none will. fake_cuda_failed says how many were made to fail. */
void fake_cuda_fail_after(int n);
/* The same for the n-th call of one symbol from now. NULL: none. */
void fake_cuda_fail_symbol(const char *symbol, int n);
unsigned long fake_cuda_failed(void);
const char *fake_cuda_failed_last(void); /* its symbol */

/* Live objects: "stream", "event", "module", "graph", "exec", "memory", "host", "program",
 * "cublas", "descriptor"; NULL: all of them. */
unsigned long fake_cuda_live(const char *kind);
/* Names of what lives, one line each, to a stream of the caller's choosing. */
void fake_cuda_print_live(void);
/* 1: streams hold their work until something waits for it; 0: they run it at the call. */
void fake_cuda_set_lazy(int lazy);
/* The next difference of two events' times is `ms`, each later one that times `factor`; factor
 * 0: as the clock has them. */
void fake_cuda_set_elapsed(double ms, double factor);
/* From now on events have the times of a clock that stands still but for work: each kernel takes
 * kernel_ms, each call of a library library_ms, and the device idles gap_ms before an event right
 * behind another one of its stream. Negative: the machine's clock again. */
void fake_cuda_set_clock(double kernel_ms, double library_ms, double gap_ms);
/* Compiles wait until n are going on, for up to a second. Returns how many there were at most since
 * the last call. */
int fake_cuda_gather_compiles(int n);
/* Pieces of work that streams hold. */
unsigned long fake_cuda_pending(void);
/* Bytes of device memory in use. */
size_t fake_cuda_memory_used(int device);

/* For the other fakes. Counts one call; nonzero: it must fail. */
int fake_cuda_enter(const char *symbol);
/* At the beginning and at the end of a compile. */
void fake_cuda_compile_begins(void);
void fake_cuda_compile_ends(void);
void fake_cuda_object(const char *kind, int change);
/* Work for a stream that a library does: run gets its copy of data, with device memory open. */
CUresult fake_cuda_submit(CUstream stream, const char *name, void (*run)(const void *data),
                          const void *data, size_t size);
/* Is [address, address + size) inside one live allocation? */
int fake_cuda_is_device(CUdeviceptr address, size_t size);
int fake_cuda_version(void);

/* Compiles CUDA C for the host. Returns the image (malloc'ed) or NULL; *log is malloc'ed always. */
struct fake_source {
    const char *text, *name;
    const char *flags; /* for the compiler, separated by spaces */
    int arch;
};
void *fake_cuda_compile(const struct fake_source *source, size_t *size, char **log);

#endif
