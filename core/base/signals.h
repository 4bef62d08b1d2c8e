/* Writing to files and pipes raises signals that end a program which expects none: SIGPIPE where
 * nobody reads, SIGXFSZ past the limit on a file's size. Between hold and release they stay away
 * from the program, and the write fails with EPIPE or EFBIG. */
#ifndef ETCH_CORE_BASE_SIGNALS_H
#define ETCH_CORE_BASE_SIGNALS_H

#include <signal.h>

typedef struct held_signals {
    sigset_t mask, pending;
} held_signals;

/* errno is left alone. */
void etch__signals_hold(held_signals *h);
void etch__signals_release(const held_signals *h);

#endif
