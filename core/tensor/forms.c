/* A table by storage, of few entries each. The first request for contents leaves a note only, so
 * that what changes with every use is never kept. */
#include "core/tensor/forms.h"

#include "core/base/locks.h"

enum { SLOTS = 256, MOST = 8 /* of one storage */ };

typedef struct form_entry {
    struct form_entry *next;
    etch_storage *of, *form; /* form: counted, or NULL */
    unsigned version;
    form_key key;
} form_entry;

static form_entry *slots[SLOTS];

static form_entry **slot_of(const etch_storage *s) {
    uint64_t hash = (uint64_t)(uintptr_t)s * 0x9e3779b97f4a7c15u;
    return &slots[hash >> 56];
}

static unsigned version_of(const etch_storage *s) {
    return atomic_load_explicit(&s->version, memory_order_relaxed);
}

bool etch__forms_hold(bool held) {
    bool before = etch__tls.forms_held;
    etch__tls.forms_held = held;
    return before;
}

/* Whether all that writes it counts. */
static bool counts_writes(const etch_storage *s) {
    unsigned exposed = atomic_load_explicit(&s->exposed, memory_order_relaxed);
    unsigned forms = atomic_load_explicit(&s->forms, memory_order_relaxed);
    return !s->device && !s->lent && !etch__tls.forms_held && !(forms & FORMS_NEVER) &&
           !(exposed & (EXPOSED_WRAPPED | EXPOSED_PENDING | EXPOSED_WRITERS));
}

/* ---- under the lock ---- */

static form_entry *entry_of(const etch_storage *s, const form_key *key) {
    for (form_entry *e = *slot_of(s); e; e = e->next)
        if (e->of == s && !memcmp(&e->key, key, sizeof *key)) return e;
    return NULL;
}

/* Whether there is room for one more of the storage. */
static bool has_room(const etch_storage *s) {
    int n = 0;
    for (const form_entry *e = *slot_of(s); e; e = e->next) n += e->of == s;
    return n < MOST;
}

/* Notes that the contents were asked for. Without memory nothing is kept. */
static void note_request(etch_storage *s, const form_key *key, unsigned version) {
    form_entry **slot = slot_of(s), *e = has_room(s) ? etch__quiet_malloc(sizeof *e) : NULL;
    if (!e) return;
    *e = (form_entry){*slot, s, NULL, version, *key};
    *slot = e;
    atomic_fetch_or_explicit(&s->forms, FORMS_NOTED, memory_order_relaxed);
}

/* ---- the table ---- */

etch_storage *etch__form_find(etch_storage *s, const form_key *key, bool *keep) {
    etch_storage *form = NULL, *old = NULL;
    *keep = false;
    if (!counts_writes(s)) return NULL;
    unsigned version = version_of(s);
    etch__lock(LOCK_FORMS);
    form_entry *e = entry_of(s, key);
    if (!e) {
        note_request(s, key, version);
    } else if (e->version != version) {
        old = e->form;
        e->form = NULL, e->version = version;
    } else {
        *keep = true;
        if ((form = e->form)) etch__storage_retain(form);
    }
    etch__unlock(LOCK_FORMS);
    etch__storage_release(old);
    return form;
}

void etch__form_keep(etch_storage *s, const form_key *key, etch_storage *form) {
    etch__lock(LOCK_FORMS);
    form_entry *e = entry_of(s, key);
    if (e && !e->form && e->version == version_of(s) && counts_writes(s))
        etch__storage_retain(e->form = form);
    etch__unlock(LOCK_FORMS);
}

void etch__forms_drop(etch_storage *s) {
    form_entry *gone = NULL;
    etch__lock(LOCK_FORMS);
    for (form_entry **at = slot_of(s); *at;) {
        form_entry *e = *at;
        if (e->of != s) {
            at = &e->next;
            continue;
        }
        *at = e->next;
        e->next = gone, gone = e;
    }
    etch__unlock(LOCK_FORMS);
    while (gone) {
        form_entry *e = gone;
        gone = e->next;
        etch__storage_release(e->form);
        etch__free(e);
    }
}
