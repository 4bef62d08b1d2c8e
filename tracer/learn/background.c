/* `background = true`: one thread compiles, beside the running program, what calls have recorded;
 * and, of any function, what is to come in place of provisional code.
 *
 * A job is all that compiling needs of an ended walk, copied, and a hold on the function, as a run
 * has: so the function may be freed or reset meanwhile. Until the code is published, calls go on as
 * before: eager, recorded. The thread is started with the first job and joined when the process
 * exits; after fork the child has the jobs and starts a thread of its own with the next call. */
#include "core/base/stack.h"
#include "core/base/start.h"
#include "core/base/locks.h"
#include "tracer/learn/learn.h"

#include <stdlib.h>

typedef struct job {
    struct job *next;
    unsigned shard; /* where the function is pinned */
    generation *gen;
    uint64_t state; /* of the thread that asked */
    compile_request q;
    input_case seen; /* the request's, copied */
} job;

static pthread_cond_t job_or_end = PTHREAD_COND_INITIALIZER; /* a job, or the end */
static pthread_cond_t job_done = PTHREAD_COND_INITIALIZER;   /* a job is finished */
static job *first_job, *current_job;
static bool worker_runs, worker_quits, stops_at_exit;
static pthread_t worker_thread;

/* ---- jobs ---- */

static void *copy(const void *from, int64_t count, size_t size) {
    void *to = etch__malloc((size_t)(count + 1) * size);
    if (to && count) memcpy(to, from, (size_t)count * size);
    return to;
}

static bool copy_seen(job *j, const input_case *seen) {
    const trace_leaf *leaf = j->q.leaf;
    input_case *own = &j->seen;
    j->q.seen = own;
    if (leaf->writes_inputs && !(own->alias = copy(seen->alias, leaf->nvalues, sizeof *own->alias)))
        return false;
    if (!leaf->dynamic) return true;
    own->nkey = seen->nkey, own->nints = seen->nints;
    return (own->key = copy(seen->key, seen->nkey, sizeof *own->key)) &&
           (own->ints = copy(seen->ints, seen->nints, sizeof *own->ints)) &&
           (own->metas = copy(seen->metas, leaf->nvalues, sizeof *own->metas));
}

static void free_job(job *j) {
    etch__free(j->seen.alias);
    etch__free(j->seen.key);
    etch__free(j->seen.ints);
    etch__free(j->seen.metas);
    etch__free(j);
}

static job *new_job(const compile_request *q, compile_for by) {
    KEEP_ERROR;
    job *j = etch__calloc(1, sizeof *j);
    if (j) {
        j->q = *q, j->q.by = by;
        j->gen = q->leaf->tree->gen;
        j->state = etch__tls.state;
        if (!copy_seen(j, q->seen)) free_job(j), j = NULL;
    }
    return j;
}

static void unclaim(etch_function *f, trace_leaf *leaf) {
    pthread_mutex_lock(&f->lock);
    leaf->queued = false;
    pthread_mutex_unlock(&f->lock);
}

/* The leaf may be asked for again, and the function freed. */
static void let_go(job *j) {
    unclaim(j->q.f, j->q.leaf);
    etch__function_unpin_at(j->q.f, j->shard);
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

static bool is_wanted(const job *j) {
    return !j->q.f->freed && atomic_load(&j->q.f->gen) == j->gen;
}

/* Better code may have come too late, behind another graph that is provisional as well. */
static void do_job(job *j) {
    etch__tls.state = j->state;
    int times = j->q.by == COMPILE_BETTER ? 2 : 1;
    for (int i = 0; i < times && is_wanted(j); i++) etch__compile_leaf(&j->q);
}

/* ---- the thread ---- */

static void *work(void *unused) {
    etch__fp_control(FP_TRAPS); /* a thread begins with the mode of the one that starts it */
    etch__lock(LOCK_JOBS);
    while (!worker_quits) {
        job *j = current_job = first_job;
        if (!j) {
            pthread_cond_wait(&job_or_end, &etch__locks[LOCK_JOBS]);
            continue;
        }
        first_job = j->next;
        etch__unlock(LOCK_JOBS);
        do_job(j);
        let_go(j);
        etch__lock(LOCK_JOBS);
        current_job = NULL; /* others look at it until here */
        free_job(j);
        pthread_cond_broadcast(&job_done);
    }
    etch__unlock(LOCK_JOBS);
    return unused;
}

static bool on_worker(void) { return worker_runs && pthread_equal(worker_thread, pthread_self()); }

/* A compile that is going on is waited for; the others are not made any more. */
static void stop(void) {
    etch__lock(LOCK_JOBS);
    bool join = worker_runs && !on_worker();
    job *left = first_job;
    first_job = NULL;
    worker_quits = true;
    pthread_cond_broadcast(&job_or_end);
    etch__unlock(LOCK_JOBS);
    if (join) pthread_join(worker_thread, NULL);
    finish_jobs(left);
}

/* With the lock. The handler of exit goes before the library's destructors, and before handlers
 * that were there earlier. */
static bool start(void) {
    if (worker_runs || worker_quits) return worker_runs;
    if (!stops_at_exit && atexit(stop) == 0) stops_at_exit = true;
    if (!stops_at_exit) return false;
    return worker_runs = etch__thread_start(&worker_thread, work, NULL) == 0;
}

static bool put_job(job *j) {
    etch__lock(LOCK_JOBS);
    bool ok = start() && !worker_quits;
    job **end = &first_job;
    while (*end) end = &(*end)->next;
    if (ok) *end = j;
    pthread_cond_signal(&job_or_end);
    etch__unlock(LOCK_JOBS);
    return ok;
}

/* ---- fork ---- */

/* The compile that went on in the parent is the child's next job. */
static void in_child(void) {
    if (current_job) {
        current_job->q.leaf->stale = true;
        current_job->next = first_job;
        first_job = current_job;
    }
    current_job = NULL;
    worker_runs = false;
    pthread_cond_init(&job_or_end, NULL);
    pthread_cond_init(&job_done, NULL);
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
    etch__lock(LOCK_JOBS);
    if (first_job) start();
    etch__unlock(LOCK_JOBS);
}

/* A job for the claimed leaf; NULL: out of memory, and the claim is gone. */
static job *claimed_job(const compile_request *q, compile_for by) {
    job *j = new_job(q, by);
    if (j) j->shard = etch__function_pin(q->f);
    else unclaim(q->f, q->leaf);
    return j;
}

/* In place of provisional code. Where it cannot be had, what there is goes on. */
static void ask_better_code(const compile_request *q) {
    job *j = claim(q->f, q->leaf) ? claimed_job(q, COMPILE_BETTER) : NULL;
    if (j && !put_job(j)) finish_job(j);
}

void etch__ask_code_now(const compile_request *q) {
    if (etch__compile_leaf(q)) ask_better_code(q);
}

void etch__ask_code(const compile_request *q) {
    if (!q->f->options.background) {
        etch__ask_code_now(q);
        return;
    }
    if (!q->leaf->npath || !etch__code_missing(q)) return;
    if (!claim(q->f, q->leaf)) {
        start_again(); /* in the child of a fork there is no thread yet */
        return;
    }
    job *j = claimed_job(q, COMPILE_ASIDE);
    if (!j || put_job(j)) return; /* without one the next call tries again */
    do_job(j);                    /* no thread to be had, or the process is ending */
    finish_job(j);
}

/* The function is to be freed: its jobs go; one that is being done is waited for, since what it
 * calls of the user's may be freed next (but not in a log sink, for which that one may wait). */
static void forget_jobs(etch_function *f) {
    job *gone = NULL;
    etch__lock(LOCK_JOBS);
    for (job **link = &first_job; *link;) {
        job *j = *link;
        if (j->q.f != f) {
            link = &j->next;
            continue;
        }
        *link = j->next;
        j->next = gone;
        gone = j;
    }
    while (current_job && current_job->q.f == f && !on_worker() && !etch__in_log_sink())
        pthread_cond_wait(&job_done, &etch__locks[LOCK_JOBS]);
    etch__unlock(LOCK_JOBS);
    finish_jobs(gone);
}

void etch__start_jobs(void) {
    etch__at_fork(LOCK_JOBS, (fork_hooks){.child = in_child});
    etch__function_watch.leaving = forget_jobs;
}

void etch__background_wait(void) {
    etch__lock(LOCK_JOBS);
    if (first_job) start();
    while (worker_runs && (first_job || current_job))
        pthread_cond_wait(&job_done, &etch__locks[LOCK_JOBS]);
    etch__unlock(LOCK_JOBS);
}
