/* The bounded table of counted entries: its limit and order, counts, equal keys, equal hashes,
 * failed allocations, threads, forks.
 * Labels: quick. */
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "etch_test.h"
#include "core/base/lru.h"

enum { MOST = 4, NUMBERS = 64 };

typedef struct thing {
    lru_entry entry;
    int number;
} thing;

static lru things;
static atomic_int ended[NUMBERS];

static void end_thing(lru_entry *e) { atomic_fetch_add(&ended[((thing *)e)->number], 1); }

__attribute__((constructor)) static void at_load(void) { etch__lru_init(&things, MOST, end_thing); }

static void clean(void) {
    etch__lru_forget(&things);
    for (int i = 0; i < NUMBERS; i++) ended[i] = 0;
}
EACH_TEST(.before = clean)

/* All numbers share a slot; every second pair shares the whole hash. */
static uint64_t hash_of(int number) { return 7 + LRU_SLOTS * (uint64_t)(number / 2); }

static thing *make(int number) {
    thing *t = (thing *)etch__lru_new(sizeof *t, hash_of(number), &number, sizeof number);
    if (t) t->number = number;
    return t;
}
static thing *publish(thing *t) { return (thing *)etch__lru_publish(&things, &t->entry); }
static thing *find(int number) {
    return (thing *)etch__lru_find(&things, hash_of(number), &number, sizeof number);
}
static void release(thing *t) { etch__lru_release(&things, (lru_entry *)t); }
static void add(int number) { release(publish(make(number))); }
static bool there(int number) {
    thing *t = find(number);
    bool is = t != NULL;
    assert_true(!t || t->number == number);
    release(t);
    return is;
}

TEST(found_by_key) {
    const char other[sizeof(int) + 1] = {0};
    assert_null(find(0));
    add(0), add(1), add(2);
    for (int i = 0; i < 3; i++) assert_true(there(i));
    assert_false(there(3));                                                /* the hash of 2 */
    assert_null(etch__lru_find(&things, hash_of(0), other, sizeof other)); /* a longer key */
    assert_null(etch__lru_find(&things, hash_of(4), other, sizeof(int)));  /* another hash */
    assert_int_equal(things.count, 3);
}

TEST(oldest_goes_first) {
    for (int i = 0; i < MOST; i++) add(i);
    assert_true(there(0)); /* 1 is the oldest now */
    assert_true(there(2)); /* from the middle of the list */
    assert_true(there(2)); /* the newest already */
    const int goes[] = {1, 3, 0, 2, 10, 11};
    for (int i = 0; i < COUNT_OF(goes); i++) {
        assert_int_equal(ended[goes[i]], 0);
        add(10 + i);
        assert_int_equal(ended[goes[i]], 1);
        assert_int_equal(things.count, MOST);
    }
    for (int i = 2; i < COUNT_OF(goes); i++) assert_true(there(10 + i));
    assert_false(there(1));
}

TEST(users_keep_it) {
    thing *held = publish(make(0)), *again = find(0);
    assert_ptr_equal(held, again);
    for (int i = 1; i <= MOST; i++) add(i);
    assert_false(there(0));
    add(0); /* another one of that key */
    assert_true(there(0));
    release(again);
    assert_int_equal(ended[0], 0);
    release(held);
    assert_int_equal(ended[0], 1);
    assert_true(there(0));
    release(NULL);
}

TEST(equal_is_published_once) {
    thing *first = publish(make(5)), *second = make(5);
    assert_ptr_equal(publish(second), first);
    assert_int_equal(ended[5], 1); /* the second */
    assert_int_equal(things.count, 1);
    assert_int_equal(first->entry.refs, 3);
    release(first), release(first);
    assert_true(there(5));
}

TEST(not_published) {
    release(make(6));
    assert_int_equal(ended[6], 1);
    assert_false(there(6));
}

TEST(forget) {
    thing *held = publish(make(0));
    add(1), add(2);
    etch__lru_forget(&things);
    assert_int_equal(things.count, 0);
    assert_true(!things.oldest && !things.newest && !things.slots[7]);
    assert_true(ended[0] == 0 && ended[1] == 1 && ended[2] == 1);
    release(held);
    assert_int_equal(ended[0], 1);
    etch__lru_forget(&things);
    add(3);
    assert_true(there(3));
}

TEST(structure_is_zeros) {
    const char key[] = "a key that is longer than the structure is, so that it lies behind it";
    lru_entry *e = etch__lru_new(sizeof(thing), 3, key, sizeof key);
    assert_int_equal(((thing *)e)->number, 0);
    assert_true(e->n == sizeof key && memcmp(e->key, key, e->n) == 0 && e->key != key);
    release((thing *)e);
}

TEST(allocation_fails) {
    etch__fail_allocation(0);
    assert_null(make(0));
    etch__fail_allocation(-1);
    etch_clear_error();
}

/* ---- threads ---- */

enum { ROUNDS = 20000, THREADS = 4 };
static atomic_int made;

/* Finds or makes numbers that differ from the others' now and then. */
static void *use(void *arg) {
    unsigned x = (unsigned)(intptr_t)arg + 1;
    for (int i = 0; i < ROUNDS; i++) {
        x = x * 1664525u + 1013904223u;
        int number = (int)(x >> 16) % 7;
        thing *t = find(number);
        if (!t) t = publish(make(number)), atomic_fetch_add(&made, 1);
        if (t->number != number || t->entry.refs < 1) abort();
        if (i % 1000 == 0) etch__lru_forget(&things);
        release(t);
    }
    return NULL;
}

TEST(threads) {
    pthread_t threads[THREADS];
    int all = 0;
    made = 0;
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, use, (void *)(intptr_t)i), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    assert_true(things.count <= MOST);
    etch__lru_forget(&things);
    for (int i = 0; i < NUMBERS; i++) all += ended[i];
    assert_int_equal(all, made); /* each ended, once */
}

/* A child is forked while another thread is in the table: its table is whole and not locked. */
static atomic_bool stop;
static void *churn(void *unused) {
    for (int i = 0; !stop; i++) add(i % 7);
    return unused;
}

TEST(fork) {
    pthread_t thread;
    stop = false;
    assert_int_equal(pthread_create(&thread, NULL, churn, NULL), 0);
    for (int i = 0; i < 50; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(20);
            for (int k = 10; k < 20; k++) add(k);
            _exit(there(19) && things.count == MOST ? 0 : 9);
        }
        int status = -1;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
    stop = true;
    pthread_join(thread, NULL);
}

int main(int argc, char **argv) {
    int failed = run_suite(argc, argv);
    etch__lru_forget(&things);
    return failed;
}
