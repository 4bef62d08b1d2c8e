/* The registry of backends: those of the library register at load, a user's at any time. */
#include "core/base/locks.h"
#include "core/graph/backend.h"

#include <pthread.h>

static const backend **backends;
static int64_t nbackends, backends_cap;
/* What etch_list_backends gives; made anew by each change. */
static const char **names;

static bool is_called(const backend *b, const char *name) {
    return !strcmp(b->name, name) || (b->alias && !strcmp(b->alias, name));
}

static const backend *find(const char *name) {
    for (int64_t i = 0; i < nbackends; i++)
        if (is_called(backends[i], name)) return backends[i];
    return NULL;
}

const backend *etch__backend_find(const char *name) {
    etch__lock(LOCK_BACKENDS);
    const backend *b = find(name);
    etch__unlock(LOCK_BACKENDS);
    if (!b)
        etch__error(ETCH_ERR_NOT_FOUND, "no backend is called \"%s\" (see etch_list_backends)",
                    name);
    return b;
}

/* Room for one more name than there are backends, and the NULL. */
static bool room_for_one(void) {
    const char **grown = etch__malloc((size_t)(nbackends + 2) * sizeof *grown);
    if (!grown) return false;
    if (!etch__grow(&backends, &backends_cap, nbackends + 1, sizeof *backends)) {
        etch__free(grown);
        return false;
    }
    etch__free(names);
    names = grown;
    return true;
}

static void list_names(void) {
    for (int64_t i = 0; i < nbackends; i++) names[i] = backends[i]->name;
    names[nbackends] = NULL;
}

bool etch__backend_register(const backend *b) {
    etch__lock(LOCK_BACKENDS);
    bool taken = find(b->name) != NULL, ok = !taken && room_for_one();
    if (ok) backends[nbackends++] = b;
    if (ok) list_names();
    etch__unlock(LOCK_BACKENDS);
    if (taken) etch__error(ETCH_ERR_INVALID_ARGUMENT, "the backend name \"%s\" is taken", b->name);
    return ok;
}

bool etch__backend_remove(const backend *b) {
    etch__lock(LOCK_BACKENDS);
    int64_t i = 0;
    while (i < nbackends && backends[i] != b) i++;
    bool there = i < nbackends;
    if (there) {
        nbackends--;
        memmove(backends + i, backends + i + 1, (size_t)(nbackends - i) * sizeof *backends);
        list_names();
    }
    etch__unlock(LOCK_BACKENDS);
    return there;
}

const char *const *etch_list_backends(void) {
    static const char *const none[] = {NULL};
    etch__lock(LOCK_BACKENDS);
    const char *const *list = names ? (const char *const *)names : none;
    etch__unlock(LOCK_BACKENDS);
    return list;
}
