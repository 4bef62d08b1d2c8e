/* The loop that the fuzzer's reducer and etch-minify share (shrink.h). */
#include "shrink.h"

#include <string.h>

bool shrink_attempt(shrink *s) {
    bool changed = memcmp(s->now, s->next, s->size) != 0;
    if (!changed || s->trials >= s->most || (s->trials++, !s->fails(s->next, s->ctx))) {
        if (changed) memcpy(s->next, s->now, s->size);
        return false;
    }
    memcpy(s->now, s->next, s->size);
    return true;
}

bool shrink_ranges(shrink *s, int (*count)(const void *x),
                   void (*drop)(void *x, int first, int n)) {
    bool any = false;
    for (int n = count(s->now); n > 0; n /= 2)
        for (int i = count(s->now) - n; i >= 0; i -= n > 4 ? n / 2 : 1) {
            if (i + n > count(s->now)) continue;
            drop(s->next, i, n);
            any |= shrink_attempt(s);
        }
    return any;
}

void shrink_run(shrink *s, const shrink_pass *passes, int npasses) {
    memcpy(s->next, s->now, s->size);
    for (bool any = true; any && s->trials < s->most;) {
        any = false;
        for (int i = 0; i < npasses; i++) any |= passes[i](s);
    }
}
