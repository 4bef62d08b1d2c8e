/* Learning: ended recordings become leaves of trees, leaves get code, on this thread or on another;
 * and what keeps functions from compiling. */
#ifndef ETCH_TRACER_LEARN_LEARN_H
#define ETCH_TRACER_LEARN_LEARN_H

#include "tracer/trace/function.h"
#include "tracer/trace/walk.h"

/* ---- publish.c ---- */

/* Inserts an ended recording; takes over its nodes. NULL: the limit, no memory, or a generation
 * that is no longer the function's. The function's lock is held. */
trace_leaf *etch__publish(etch_function *f, generation *g, trace_walk *w, limit_warning *warning);

/* ---- compile.c ---- */

/* Who asks for code: a call, which waits and is content with provisional code; a job of the
 * compiling thread; one that is to better provisional code. */
typedef enum compile_for { COMPILE_FOR_CALL, COMPILE_ASIDE, COMPILE_BETTER } compile_for;

/* The leaf shall have code for its wanted values, and for such inputs. */
typedef struct compile_request {
    etch_function *f;
    trace_leaf *leaf;
    const input_case *seen;
    compile_for by;
} compile_request;

/* true: the code is provisional, and better code is to be asked for. */
bool etch__compile_leaf(const compile_request *q);
/* Whether that would do anything. */
bool etch__code_missing(const compile_request *q);

/* ---- callbacks.c ---- */

/* Calls what the user has registered for the start, or the end, of a compile. */
void etch__call_back(bool end);

/* ---- background.c: compiling beside the program (`background = true`) ---- */

/* Compiled here, or by the thread in the background. */
void etch__ask_code(const compile_request *q);
/* In any case here; only graphs are the other thread's. */
void etch__ask_code_now(const compile_request *q);
/* For tests: until nothing is left to compile. */
void etch__background_wait(void);

/* ---- stance.c ---- */

extern _Atomic int etch__stance; /* an etch_stance */
static inline bool etch__may_compile(void) {
    return likely(atomic_load_explicit(&etch__stance, memory_order_relaxed) <
                  ETCH_STANCE_EAGER_ON_RECOMPILE);
}
/* Whether every compiled function runs eagerly here: the stance, or a function disabled with all
 * that it calls. */
bool etch__forced_eager(void);
/* Whether nothing of the function may be compiled: that, ETCH_COMPILE_DISABLE or the option. */
bool etch__disabled(const etch_function *f);
/* Around the body of a function disabled with all that it calls; leaving gets what entering
 * gave. */
int etch__enter_disabled(bool recursive);
void etch__leave_disabled(int before);
/* After a longjmp. */
void etch__reset_disabled(void);
/* Sets the error of fail_on_recompile. */
etch_status etch__refuse_compile(const etch_function *f, const void *site);

#endif
