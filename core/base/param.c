/* Environment parameters: each variable is read once, at its first use, and kept here, so that a
 * later setenv cannot pull the text away under a reader. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "core/base/base.h"

typedef struct param_value {
    int64_t number; /* of the text, else of the default */
    char text[4096];
} param_value;

static const struct {
    const char *variable, *value;
} table[PARAM_COUNT] = {
#define PARAM(id, variable, value, help) [PARAM_##id] = {variable, value},
#include "core/base/params.def"
#undef PARAM
};

static param_value values[PARAM_COUNT];

/* The whole text is a number, and not a negative one: no parameter has a use for these. */
static bool parse_number(const char *text, int64_t *number) {
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end || errno || v < 0) return false;
    *number = v;
    return true;
}

static void read_param(param_id id) {
    param_value *v = &values[id];
    const char *env = getenv(table[id].variable);
    bool fits = !env || strlen(env) < sizeof v->text;
    strcpy(v->text, env && *env && fits ? env : table[id].value);
    parse_number(table[id].value, &v->number);
    parse_number(v->text, &v->number);
    /* The warning itself asks for ETCH_LOGS_OUT. */
    if (!fits && id != PARAM_LOGS_OUT)
        etch__warn("%s is too long and is ignored", table[id].variable);
}

/* pthread_once, unlike a lock, starts afresh in a child that was forked in its middle. */
#define PARAM(id, variable, value, help)                                                           \
    static void read_##id(void) { read_param(PARAM_##id); }
#include "core/base/params.def"
#undef PARAM

static struct {
    pthread_once_t once;
    void (*read)(void);
} readers[PARAM_COUNT] = {
#define PARAM(id, variable, value, help) [PARAM_##id] = {PTHREAD_ONCE_INIT, read_##id},
#include "core/base/params.def"
#undef PARAM
};

static const param_value *param(param_id id) {
    pthread_once(&readers[id].once, readers[id].read);
    return &values[id];
}

const char *etch__param(param_id id) { return param(id)->text; }

int64_t etch__param_int(param_id id) {
    static _Atomic uint64_t warned;
    const param_value *v = param(id);
    int64_t number;
    if (unlikely(!parse_number(v->text, &number)) && *v->text &&
        !(atomic_fetch_or(&warned, (uint64_t)1 << id) >> id & 1))
        etch__warn("%s: expected a number from 0 up, got \"%s\"; using %lld", table[id].variable,
                   v->text, (long long)v->number);
    return v->number;
}
