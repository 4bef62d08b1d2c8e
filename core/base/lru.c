/* See lru.h. The list by last use and the slots change under the table's lock; entries end outside
 * of it, since what they hold may take any time to end. */
#include "core/base/lru.h"
#include "core/base/locks.h"

static lru *tables; /* changes at load only */

void etch__lru_release(const lru *t, lru_entry *e) {
    if (!e || atomic_fetch_sub(&e->refs, 1) != 1) return;
    if (t->end) t->end(e);
    etch__free(e);
}

/* ---- under the lock ---- */

static void unlink_age(lru *t, lru_entry *e) {
    *(e->older ? &e->older->newer : &t->oldest) = e->newer;
    *(e->newer ? &e->newer->older : &t->newest) = e->older;
}

static void make_newest(lru *t, lru_entry *e) {
    e->older = t->newest, e->newer = NULL;
    *(t->newest ? &t->newest->newer : &t->oldest) = e;
    t->newest = e;
}

/* With a count, as the newest. */
static lru_entry *find(lru *t, uint64_t hash, const void *key, size_t n) {
    lru_entry *e = t->slots[hash % LRU_SLOTS];
    while (e && !(e->hash == hash && e->n == n && memcmp(e->key, key, n) == 0)) e = e->next;
    if (!e) return NULL;
    atomic_fetch_add(&e->refs, 1);
    if (e != t->newest) unlink_age(t, e), make_newest(t, e);
    return e;
}

static lru_entry *take_oldest(lru *t) {
    lru_entry *e = t->oldest;
    if (!e) return NULL;
    lru_entry **at = &t->slots[e->hash % LRU_SLOTS];
    while (*at != e) at = &(*at)->next;
    *at = e->next;
    unlink_age(t, e);
    t->count--;
    return e;
}

/* ---- for users ---- */

lru_entry *etch__lru_find(lru *t, uint64_t hash, const void *key, size_t n) {
    pthread_mutex_lock(&t->lock);
    lru_entry *e = find(t, hash, key, n);
    pthread_mutex_unlock(&t->lock);
    return e;
}

lru_entry *etch__lru_new(size_t size, uint64_t hash, const void *key, size_t n) {
    lru_entry *e = etch__calloc(1, size + n);
    if (!e) return NULL;
    atomic_init(&e->refs, 1);
    e->hash = hash, e->n = n;
    e->key = memcpy((char *)e + size, key, n);
    return e;
}

lru_entry *etch__lru_publish(lru *t, lru_entry *e) {
    lru_entry *evicted = NULL;
    pthread_mutex_lock(&t->lock);
    lru_entry *other = find(t, e->hash, e->key, e->n);
    if (!other) {
        lru_entry **slot = &t->slots[e->hash % LRU_SLOTS];
        atomic_fetch_add(&e->refs, 1);
        e->next = *slot, *slot = e;
        make_newest(t, e);
        if (++t->count > t->most) evicted = take_oldest(t);
    }
    pthread_mutex_unlock(&t->lock);
    etch__lru_release(t, evicted);
    if (!other) return e;
    etch__lru_release(t, e);
    return other;
}

void etch__lru_forget(lru *t) {
    for (lru_entry *e;; etch__lru_release(t, e)) {
        pthread_mutex_lock(&t->lock);
        e = take_oldest(t);
        pthread_mutex_unlock(&t->lock);
        if (!e) return;
    }
}

/* ---- tables and forks ---- */

static void lock_all(void) {
    for (lru *t = tables; t; t = t->next) pthread_mutex_lock(&t->lock);
}
static void unlock_all(void) {
    for (lru *t = tables; t; t = t->next) pthread_mutex_unlock(&t->lock);
}

void etch__lru_init(lru *t, int most, void (*end)(lru_entry *)) {
    if (!tables) etch__at_fork(LOCK_TABLES, (fork_hooks){lock_all, unlock_all, unlock_all});
    pthread_mutex_init(&t->lock, NULL);
    t->most = most, t->end = end;
    t->next = tables, tables = t;
}
