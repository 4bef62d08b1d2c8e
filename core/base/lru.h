/* Bounded tables of counted entries, each under a key of bytes, least recently used out.
 *
 * An entry lives as long as somebody holds a count of it: the table holds one, so what is evicted
 * goes with its last user. An entry is the first member of a structure of the table's user:
 *
 *     typedef struct thing { lru_entry entry; ... } thing;
 *     static lru things;
 *     void etch__start_things(void) { etch__lru_init(&things, 100, end); }
 *
 * Any thread may use a table; a forked child may too. */
#ifndef ETCH_CORE_BASE_LRU_H
#define ETCH_CORE_BASE_LRU_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/base/base.h"

enum { LRU_SLOTS = 1024 };

typedef struct lru_entry {
    atomic_int refs;
    uint64_t hash;
    size_t n;                        /* bytes of the key */
    const void *key;                 /* behind the structure */
    struct lru_entry *next;          /* in its slot */
    struct lru_entry *older, *newer; /* by last use */
} lru_entry;

typedef struct lru {
    pthread_mutex_t lock;
    int most, count;
    void (*end)(lru_entry *); /* what the structure holds, before its memory goes; may be NULL */
    lru_entry *oldest, *newest;
    lru_entry *slots[LRU_SLOTS];
    struct lru *next; /* of all tables */
} lru;

/* When the library is loaded, once. */
void etch__lru_init(lru *t, int most, void (*end)(lru_entry *));

/* The entry with that key, with a count for the caller; NULL: there is none. */
lru_entry *etch__lru_find(lru *t, uint64_t hash, const void *key, size_t n);

/* A structure of so many bytes, zeros but for its entry: the key is copied, the one count is the
 * caller's, the table does not know it yet. NULL: out of memory. */
lru_entry *etch__lru_new(size_t size, uint64_t hash, const void *key, size_t n);

/* Puts e into the table and gives it back; or gives the equal entry that is there already, with the
 * count that the caller had of e. */
lru_entry *etch__lru_publish(lru *t, lru_entry *e);

/* One count less (of nothing where e is NULL). */
void etch__lru_release(const lru *t, lru_entry *e);

/* The table lets go of all. */
void etch__lru_forget(lru *t);

#endif
