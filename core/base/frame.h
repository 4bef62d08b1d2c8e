/* Empty frames: what the thread was tracing is put aside while work of the library's own, or a
 * function of the user (a kernel, a log sink, what frees wrapped memory), runs. What that calls
 * runs eagerly, and is no part of what is traced. */
#ifndef ETCH_CORE_BASE_FRAME_H
#define ETCH_CORE_BASE_FRAME_H

#include "core/base/thread.h"

typedef struct empty_frame {
    struct trace_cursor *cursor;
    struct trace_run *run;
    uint64_t state;
    uint32_t layers;
    bool in_flush;
    bool fp_changed; /* the processor's mode is put back */
    unsigned fp;     /* MXCSR */
    struct empty_frame *outer;
} empty_frame;

/* For work of the library's own: no layer is active, and nothing traps. */
empty_frame etch__push_frame(void);
/* For a function of the user: modes stay, and how the processor computes. */
empty_frame etch__push_user_frame(void);
void etch__pop_frame(const empty_frame *f);
/* How the processor computes in the frame, as a plan of operators under that state word needs. */
void etch__frame_mode(empty_frame *f, uint64_t state);

/* A function of the user where the body may be between two operators: what is written there may end
 * its segment. */
void etch__interrupt(empty_frame *f);
void etch__end_interrupt(const empty_frame *f);

#endif
