/* Room on the stack for work with large frames: kernels, generated code, products of the libraries.
 *
 * A call may come on a stack of any size, a coroutine's too, of which nobody knows where it ends.
 * Where the thread's own stack has no room left, or is not the one in use, such work runs on a
 * stack of the library's, one a thread, made at first need. While it is in use no function of the
 * user may be called, which could go on with another coroutine of the thread: so it is for what
 * comes back by itself. Elsewhere the check is two comparisons. */
#ifndef ETCH_CORE_BASE_STACK_H
#define ETCH_CORE_BASE_STACK_H

#include <pthread.h>

#include "core/base/thread.h"

/* What kernels of single operators take, and the size of a thread's second stack. */
enum { KERNEL_STACK = 192 << 10, SECOND_STACK = 2 << 20 };

typedef struct thread_stack {
    char *low; /* the thread's own stack */
    size_t size;
    char *second; /* NULL until it is needed */
} thread_stack;

static inline bool etch__stack_has(size_t bytes) {
    const thread_stack *s = etch__tls.stack;
    if (unlikely(!s)) return false;
    size_t above = (size_t)((char *)__builtin_frame_address(0) - s->low);
    return above >= bytes && above < s->size;
}

/* Whether work that takes so much can be done now: in place or on the second stack, which is made
 * where it must be. False: there is no memory for it, and the error is set. */
bool etch__stack_prepare(size_t bytes);
static inline bool etch__stack_ready(size_t bytes) {
    return likely(etch__stack_has(bytes)) || etch__stack_prepare(bytes);
}

/* work(ctx), which takes at most so many bytes, prepared before. */
void etch__with_second_stack(void (*work)(void *ctx), void *ctx);
static inline void etch__with_room(size_t bytes, void (*work)(void *ctx), void *ctx) {
    if (likely(etch__stack_has(bytes))) work(ctx);
    else etch__with_second_stack(work, ctx);
}

/* pthread_create for threads of the library's own: the program's default size of stacks, or more,
 * so that all work has room. */
int etch__thread_start(pthread_t *thread, void *(*run)(void *), void *ctx);

#endif
