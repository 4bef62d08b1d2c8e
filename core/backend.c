/* The registry of backends. They register at load, so the list only grows. */
#include "core/backend.h"

enum { BACKENDS_MAX = 32 };

/* Slots fill in order and never change; the count is published last. */
static const backend *backends[BACKENDS_MAX];
static const char *names[BACKENDS_MAX + 1];
static atomic_int nbackends;
static atomic_flag lock = ATOMIC_FLAG_INIT;

const backend *etch__backend_find(const char *name) {
    int n = atomic_load(&nbackends);
    for (int i = 0; i < n; i++)
        if (!strcmp(backends[i]->name, name) ||
            (backends[i]->alias && !strcmp(backends[i]->alias, name)))
            return backends[i];
    etch__error(ETCH_ERR_NOT_FOUND, "no backend is named '%s'", name);
    return NULL;
}

bool etch__backend_register(const backend *b) {
    while (atomic_flag_test_and_set(&lock)) {}
    int n = atomic_load(&nbackends);
    bool room = n < BACKENDS_MAX;
    if (room) {
        backends[n] = b;
        names[n] = b->name;
        atomic_store(&nbackends, n + 1);
    }
    atomic_flag_clear(&lock);
    if (!room)
        etch__error(ETCH_ERR_UNSUPPORTED, "at most %d backends can be registered", BACKENDS_MAX);
    return room;
}

const char *const *etch_list_backends(void) { return names; }
