/* See signals.h. Both signals go to the thread that writes, so they are blocked there, and one that
 * came meanwhile is taken off; one that was pending before is the program's. */
#include "core/base/signals.h"

#include <errno.h>
#include <time.h>

static const int kinds[] = {SIGPIPE, SIGXFSZ};
enum { KINDS = sizeof kinds / sizeof *kinds };

void etch__signals_hold(held_signals *h) {
    sigset_t held;
    sigemptyset(&held);
    for (int i = 0; i < KINDS; i++) sigaddset(&held, kinds[i]);
    sigpending(&h->pending);
    pthread_sigmask(SIG_BLOCK, &held, &h->mask);
}

void etch__signals_release(const held_signals *h) {
    const struct timespec now = {0};
    int error = errno;
    for (int i = 0; i < KINDS; i++) {
        sigset_t one, pending;
        sigpending(&pending);
        if (!sigismember(&pending, kinds[i]) || sigismember(&h->pending, kinds[i])) continue;
        sigemptyset(&one), sigaddset(&one, kinds[i]);
        while (sigtimedwait(&one, NULL, &now) < 0 && errno == EINTR) {}
    }
    pthread_sigmask(SIG_SETMASK, &h->mask, NULL);
    errno = error;
}
