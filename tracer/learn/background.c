/* `background = true`: one thread compiles, beside the running program, what calls have recorded;
 * and, of any function, what is to come in place of provisional code.
 *
 * A job is all that compiling needs of an ended walk, copied, and a hold on the function, as a run
 * has: so the function may be freed or reset meanwhile. Until the code is published, calls go on as
 * before: eager, recorded. The thread is started with the first job and joined when the process
 * exits; after fork the child has the jobs and starts a thread of its own with the next call. */
#include "core/base/stack.h"
#include "tracer/run/run.h"
#include "tracer/trace/trace.h"

#include <stdlib.h>

typedef struct job {
    struct job *next;
    etch_function *f;
    unsigned shard; /* where the function is pinned */
    generation *gen;
    trace_leaf *leaf;
    uint64_t state; /* of the thread that asked */
    trace_run r;
    trace_walk
        w; /* only what etch__compile_leaf looks at: aliases, and sizes where they are run-time */
} job;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER; /* a job, or the end */
static pthread_cond_t done = PTHREAD_COND_INITIALIZER; /* a job is finished */
static job *first, *current;
static bool running, quitting, at_exit;
static pthread_t worker;

/* ---- jobs ---- */

static void *copy(const void *from, int64_t count, size_t size) {
    void *to = etch__malloc((size_t)(count + 1) * size);
    if (to && count) memcpy(to, from, (size_t)count * size);
    return to;
}

static bool copy_walk(job *j, trace_walk *w) {
    const trace_leaf *leaf = j->leaf;
    j->r.f = j->f, j->r.gen = j->gen, j->r.worker = true;
    j->w.run = &j->r;
    j->w.mode = WALK_RECORD; /* its metas are known */
    j->w.nvalues = leaf->nvalues;
    if (leaf->writes_inputs && !(j->w.alias = copy(w->alias, leaf->nvalues, sizeof *w->alias)))
        return false;
    if (!leaf->dynamic) return true;
    if (w->mode == WALK_MATCH && !etch__walk_metas(w)) return false;
    j->w.nkey = w->nkey, j->w.nints = w->nints;
    return (j->w.key = copy(w->key, w->nkey, sizeof *w->key)) &&
           (j->w.ints = copy(w->ints, w->nints, sizeof *w->ints)) &&
           (j->w.metas = copy(w->metas, leaf->nvalues, sizeof *w->metas));
}

static void free_job(job *j) {
    etch__free(j->w.alias);
    etch__free(j->w.key);
    etch__free(j->w.ints);
    etch__free(j->w.metas);
    etch__free(j);
}

static job *new_job(etch_function *f, trace_leaf *leaf, trace_walk *w) {
    saved_error error;
    etch__error_save(&error);
    job *j = etch__calloc(1, sizeof *j);
    if (j) {
        j->f = f, j->leaf = leaf, j->gen = leaf->tree->gen;
        j->state = etch__tls.state;
        if (!copy_walk(j, w)) free_job(j), j = NULL;
    }
    etch__error_restore(&error);
    return j;
}

static void unclaim(etch_function *f, trace_leaf *leaf) {
    pthread_mutex_lock(&f->lock);
    leaf->queued = false;
    pthread_mutex_unlock(&f->lock);
}

/* The leaf may be asked for again, and the function freed. */
static void let_go(job *j) {
    unclaim(j->f, j->leaf);
    etch__function_unpin_at(j->f, j->shard);
}

static void finish_job(job *j) {
    let_go(j);
    free_job(j);
}

static void finish_jobs(job *j) {
    while (j) {
        job *next = j->next;
        finish_job(j);
        j = next;
    }
}

static bool is_wanted(const job *j) { return !j->f->freed && atomic_load(&j->f->gen) == j->gen; }

/* Better code may have come too late, behind another graph that is provisional as well. */
static void do_job(job *j) {
    etch__tls.state = j->state;
    for (int i = 0; i <= j->r.betters && is_wanted(j); i++)
        etch__compile_leaf(j->f, j->leaf, &j->w);
}

/* ---- the thread ---- */

static void *work(void *unused) {
    etch__fp_control(FP_TRAPS); /* a thread begins with the mode of the one that starts it */
    pthread_mutex_lock(&lock);
    while (!quitting) {
        job *j = current = first;
        if (!j) {
            pthread_cond_wait(&wake, &lock);
            continue;
        }
        first = j->next;
        pthread_mutex_unlock(&lock);
        do_job(j);
        let_go(j);
        pthread_mutex_lock(&lock);
        current = NULL; /* others look at it until here */
        free_job(j);
        pthread_cond_broadcast(&done);
    }
    pthread_mutex_unlock(&lock);
    return unused;
}

static bool on_worker(void) { return running && pthread_equal(worker, pthread_self()); }

/* A compile that is going on is waited for; the others are not made any more. */
static void stop(void) {
    pthread_mutex_lock(&lock);
    bool join = running && !on_worker();
    job *left = first;
    first = NULL;
    quitting = true;
    pthread_cond_broadcast(&wake);
    pthread_mutex_unlock(&lock);
    if (join) pthread_join(worker, NULL);
    finish_jobs(left);
}

/* With the lock. The handler of exit goes before the library's destructors, and before handlers
 * that were there earlier. */
static bool start(void) {
    if (running || quitting) return running;
    if (!at_exit && atexit(stop) == 0) at_exit = true;
    if (!at_exit) return false;
    return running = etch__thread_start(&worker, work, NULL) == 0;
}

static bool put_job(job *j) {
    pthread_mutex_lock(&lock);
    bool ok = start() && !quitting;
    job **end = &first;
    while (*end) end = &(*end)->next;
    if (ok) *end = j;
    pthread_cond_signal(&wake);
    pthread_mutex_unlock(&lock);
    return ok;
}

/* ---- fork ---- */

static void lock_for_fork(void) { pthread_mutex_lock(&lock); }
static void unlock_after_fork(void) { pthread_mutex_unlock(&lock); }

/* The compile that went on in the parent is the child's next job. */
static void unlock_in_child(void) {
    if (current) {
        current->leaf->stale = true;
        current->next = first;
        first = current;
    }
    current = NULL;
    running = false;
    pthread_cond_init(&wake, NULL);
    pthread_cond_init(&done, NULL);
    pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void watch_forks(void) {
    pthread_atfork(lock_for_fork, unlock_after_fork, unlock_in_child);
}

/* ---- what the tracer asks for ---- */

/* Whether the leaf's job is this caller's to make. */
static bool claim(etch_function *f, trace_leaf *leaf) {
    pthread_mutex_lock(&f->lock);
    bool mine = !leaf->queued;
    leaf->queued = true;
    pthread_mutex_unlock(&f->lock);
    return mine;
}

static void start_again(void) {
    pthread_mutex_lock(&lock);
    if (first) start();
    pthread_mutex_unlock(&lock);
}

/* A job for the claimed leaf; NULL: out of memory, and the claim is gone. */
static job *claimed_job(etch_function *f, trace_leaf *leaf, trace_walk *w) {
    job *j = new_job(f, leaf, w);
    if (j) j->shard = etch__function_pin(f);
    else unclaim(f, leaf);
    return j;
}

void etch__want_code(etch_function *f, trace_leaf *leaf, trace_walk *w) {
    if (!f->options.background) {
        etch__compile_leaf(f, leaf, w);
        return;
    }
    if (!leaf->npath || !etch__code_missing(f, leaf, w)) return;
    if (!claim(f, leaf)) {
        start_again(); /* in the child of a fork there is no thread yet */
        return;
    }
    job *j = claimed_job(f, leaf, w);
    if (!j || put_job(j)) return; /* without one the next call tries again */
    do_job(j);                    /* no thread to be had, or the process is ending */
    finish_job(j);
}

/* Where it cannot be had, what there is goes on. */
void etch__want_better(etch_function *f, trace_leaf *leaf, trace_walk *w) {
    job *j = claim(f, leaf) ? claimed_job(f, leaf, w) : NULL;
    if (!j) return;
    j->r.betters = true;
    if (!put_job(j)) finish_job(j);
}

/* The function is to be freed: its jobs go; one that is being done is waited for, since what it
 * calls of the user's may be freed next (but not in a log sink, for which that one may wait). */
void etch__background_forget(etch_function *f) {
    job *gone = NULL;
    pthread_mutex_lock(&lock);
    for (job **link = &first; *link;) {
        job *j = *link;
        if (j->f != f) {
            link = &j->next;
            continue;
        }
        *link = j->next;
        j->next = gone;
        gone = j;
    }
    while (current && current->f == f && !on_worker() && !etch__in_log_sink())
        pthread_cond_wait(&done, &lock);
    pthread_mutex_unlock(&lock);
    finish_jobs(gone);
}

void etch__background_wait(void) {
    pthread_mutex_lock(&lock);
    if (first) start();
    while (running && (first || current)) pthread_cond_wait(&done, &lock);
    pthread_mutex_unlock(&lock);
}
