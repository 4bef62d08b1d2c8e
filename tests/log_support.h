/* What the library logs, as one text, between begin_log and end_log: its first lines, if those are
 * many. */
#ifndef ETCH_TESTS_LOG_SUPPORT_H
#define ETCH_TESTS_LOG_SUPPORT_H

#include <etch/debug.h>
#include <string.h>

#include "etch_test.h"

static char logged[16384];

static inline void keep_log(void *ctx, const char *line) {
    (void)ctx;
    if (strlen(logged) + strlen(line) + 2 > sizeof logged) return;
    strcat(logged, line);
    strcat(logged, "\n");
}

static inline void begin_log(const char *channels) {
    logged[0] = 0;
    etch_set_log_sink(keep_log, NULL);
    assert_int_equal(etch_set_logs(channels), ETCH_OK);
}

static inline void end_log(void) {
    etch_set_logs("");
    etch_set_log_sink(NULL, NULL);
}

#endif
