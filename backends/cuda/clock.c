/* What a GPU's own clock says of the work that it is given: core/base/device_clock.h.
 *
 * Each span has two of the driver's events, from a pool a device that holds EVENTS_MAX of them at
 * most. Runs whose events are recorded wait in a list a device, in order, until the last event has
 * happened; who looks asks the driver (cuEventQuery) and waits for nothing, but for settle. What
 * finds no event, or has one that fails, is lost: the work itself notices nothing.
 *
 * For profiles, events of the device are put on the host's clock by one event of a stream that has
 * no other work, whose time the host knows. It is made anew when it is a second old and no run
 * needs it: differences of events are floats of milliseconds. */
#include <stdlib.h>

#include "backends/cuda/stream.h"
#include "core/base/device_clock.h"
#include "core/base/locks.h"
#include "core/base/profile.h"
#include "core/base/start.h"
#include "core/observe/report.h"

enum { EVENTS_MAX = 4096, CUDA_NOT_READY = 600, BASE_NS = 1000000000 };

/* An event of the driver, in the pool or in a span. */
typedef struct clock_event {
    struct clock_event *next;
    cu_event event;
} clock_event;

typedef struct clock_span {
    clock_event *from, *to;
    char name[64]; /* for the profile */
} clock_span;

struct clock_run {
    clock_run *next;
    clock_order order;
    int index, n, profile; /* profile: number of the one that runs */
    bool failed, placed;   /* placed: the host's clock is known */
    clock_span spans[];
};

/* Of one device, under the lock. */
typedef struct cuda_clock {
    clock_event *spare;
    atomic_int events;       /* in the pool and in spans */
    atomic_int waiting;      /* runs in the list */
    int open;                /* runs that have events */
    pthread_mutex_t telling; /* of who takes runs out of the list and tells of them */
    clock_run *first, **last;
    cu_stream base_stream;
    cu_event base;
    int64_t base_at; /* etch__now; 0: there is no base */
} cuda_clock;

static cuda_clock clocks[CUDA_DEVICES];
static atomic_bool closed; /* the process ends: the driver may be gone */

/* ---- events ---- */

static void free_event(cuda_clock *c, clock_event *e) {
    etch__cuda.cuEventDestroy_v2(e->event);
    etch__free(e);
    c->events--;
}

static clock_event *take_event(cuda_clock *c) {
    clock_event *e = c->spare;
    if (e) return c->spare = e->next, e;
    if (c->events == EVENTS_MAX || !(e = etch__quiet_malloc(sizeof *e))) return NULL;
    if (etch__cuda.cuEventCreate(&e->event, 0)) return etch__free(e), NULL;
    c->events++;
    return e;
}

static void give_event(cuda_clock *c, clock_event *e) {
    if (e) e->next = c->spare, c->spare = e;
}

static bool take_events(cuda_clock *c, clock_run *r) {
    for (int i = 0; i < r->order.nspans; i++) {
        clock_span *s = &r->spans[i];
        if (!(s->from = take_event(c)) || !(s->to = take_event(c))) return false;
    }
    return true;
}

/* The run is over; its events may still be on their way, and can be recorded again all the same. */
static void free_run(clock_run *r) {
    cuda_clock *c = &clocks[r->index];
    etch__lock(LOCK_CUDA_CLOCK);
    for (int i = 0; i < r->order.nspans; i++)
        give_event(c, r->spans[i].from), give_event(c, r->spans[i].to);
    c->open--;
    etch__unlock(LOCK_CUDA_CLOCK);
    etch__free(r);
}

/* ---- the host's clock ---- */

static void free_base(cuda_clock *c) {
    if (c->base) etch__cuda.cuEventDestroy_v2(c->base);
    if (c->base_stream) etch__cuda.cuStreamDestroy_v2(c->base_stream);
    c->base = NULL, c->base_stream = NULL, c->base_at = 0;
}

/* Waits for the event of an idle stream, which waits for nothing. */
static void set_base(cuda_clock *c) {
    int64_t before = etch__now();
    if (c->base_at && (c->open || before - c->base_at < BASE_NS)) return;
    int failed =
        c->base_stream ? 0 : etch__cuda.cuStreamCreate(&c->base_stream, CU_STREAM_NON_BLOCKING_);
    if (!failed && !c->base) failed = etch__cuda.cuEventCreate(&c->base, 0);
    before = etch__now();
    if (!failed) failed = etch__cuda.cuEventRecord(c->base, c->base_stream);
    if (!failed) failed = etch__cuda.cuEventSynchronize(c->base);
    if (failed) free_base(c);
    else c->base_at = before + (etch__now() - before) / 2;
}

/* ---- times ---- */

static bool ns_between(cu_event from, cu_event to, int64_t *ns) {
    float ms = 0;
    if (etch__cuda.cuEventElapsedTime(&ms, from, to)) return false;
    return *ns = (int64_t)((double)ms * 1e6), true;
}

static bool read_times(const clock_run *r, int64_t *begin, int64_t *end) {
    cu_event zero = r->spans[0].from->event;
    bool ok = true;
    for (int i = 0; ok && i < r->n; i++) {
        const clock_span *s = &r->spans[i];
        begin[i] = 0;
        ok = (!i || ns_between(zero, s->from->event, &begin[i])) &&
             ns_between(zero, s->to->event, &end[i]);
    }
    return ok;
}

static void tell_profile(const clock_run *r, const int64_t *begin, const int64_t *end) {
    const cuda_clock *c = &clocks[r->index];
    int64_t start = 0;
    if (!r->placed || !ns_between(c->base, r->spans[0].from->event, &start)) {
        etch__profile_lost(r->n);
        return;
    }
    for (int i = 0; i < r->n; i++)
        etch__profile_add_device(r->profile, r->order.device, c->base_at + start + begin[i],
                                 end[i] - begin[i], r->spans[i].name);
}

static void lose(const clock_order *o) {
    if (o->told) o->told(o->to, NULL);
    if (o->profile) etch__profile_lost(o->nspans);
}

/* All its events have happened, or `failed`. */
static void resolve(clock_run *r, bool failed) {
    size_t n = (size_t)r->n;
    int64_t *begin = failed ? NULL : etch__quiet_malloc(2 * n * sizeof *begin);
    if (begin && read_times(r, begin, begin + n)) {
        if (r->order.told) r->order.told(r->order.to, &(clock_times){r->n, begin, begin + n});
        if (r->order.profile) tell_profile(r, begin, begin + n);
    } else {
        lose(&r->order);
    }
    etch__free(begin);
    free_run(r);
}

/* The oldest run that waits, out of the list, where its last event has happened or failed; wait:
 * whatever it is. */
static clock_run *next_run(int index, bool wait, int *status) {
    cuda_clock *c = &clocks[index];
    etch__lock(LOCK_CUDA_CLOCK);
    clock_run *r = c->first;
    *status = r && !wait ? etch__cuda.cuEventQuery(r->spans[r->n - 1].to->event) : 0;
    if (*status == CUDA_NOT_READY) r = NULL;
    if (r && !(c->first = r->next)) c->last = &c->first;
    c->waiting -= r != NULL;
    etch__unlock(LOCK_CUDA_CLOCK);
    return r;
}

/* The device's context is current. */
static void look(int index) {
    cuda_clock *c = &clocks[index];
    clock_run *r;
    int status;
    if (!c->waiting || pthread_mutex_trylock(&c->telling)) return;
    while ((r = next_run(index, false, &status))) resolve(r, status != 0);
    pthread_mutex_unlock(&c->telling);
}

/* ---- device_clock ---- */

static void settle_device(int index) {
    cuda_clock *c = &clocks[index];
    clock_run *r;
    int status;
    bool there = etch__cuda_enter(index) != NULL;
    pthread_mutex_lock(&c->telling);
    while ((r = next_run(index, true, &status)))
        resolve(r, !there || etch__cuda.cuEventSynchronize(r->spans[r->n - 1].to->event));
    pthread_mutex_unlock(&c->telling);
    if (!there || etch__report_on() || etch__profile_on()) return;
    etch__lock(LOCK_CUDA_CLOCK);
    for (clock_event *e = c->spare, *next; e; e = next) next = e->next, free_event(c, e);
    c->spare = NULL;
    if (!c->open) free_base(c);
    etch__unlock(LOCK_CUDA_CLOCK);
}

static void settle(void) {
    if (closed) return;
    KEEP_ERROR;
    for (int i = 0; i < CUDA_DEVICES; i++)
        if (clocks[i].events) settle_device(i);
}

/* The report is written after libcuda has ended, which was opened after Etch. */
static void at_exit(void) {
    settle();
    closed = true;
}

static void first_use(void) {
    static atomic_bool used;
    if (atomic_exchange(&used, true)) return;
    etch__cuda_waited = look;
    if (atexit(at_exit)) closed = true;
}

/* Whether what is issued now runs at all: a recording of the user's own is no work yet. */
static bool is_issued(const cuda_stream *s) {
    int capturing = 1;
    return !etch__cuda_capturing() && !s->recording &&
           !etch__cuda.cuStreamIsCapturing(s->stream, &capturing) && !capturing;
}

static clock_run *open_run(const clock_order *o, int index) {
    size_t spans = (size_t)o->nspans * sizeof(clock_span);
    clock_run *r = etch__quiet_malloc(sizeof *r + spans);
    if (!r) return NULL;
    *r = (clock_run){.order = *o, .index = index, .profile = etch__profile_number()};
    memset(r->spans, 0, spans);
    etch__lock(LOCK_CUDA_CLOCK);
    cuda_clock *c = &clocks[index];
    if (o->profile) set_base(c);
    c->open++;
    r->placed = c->base_at != 0;
    r->failed = !take_events(c, r);
    etch__unlock(LOCK_CUDA_CLOCK);
    if (!r->failed) return r;
    free_run(r);
    return NULL;
}

static clock_run *begin(const clock_order *o) {
    if (o->nspans < 1 || closed) return NULL;
    KEEP_ERROR;
    int index = etch__device_index(o->device);
    cuda_stream *s = etch__cuda_stream(index);
    if (!s || !is_issued(s)) return NULL;
    first_use();
    look(index);
    clock_run *r = open_run(o, index);
    if (!r) lose(o);
    return r;
}

static void record(clock_run *r, const clock_event *e) {
    KEEP_ERROR;
    cuda_stream *s = etch__cuda_stream(r->index); /* a user's operator may set another one */
    r->failed |= !s || etch__cuda.cuEventRecord(e->event, s->stream);
}

static void span_begin(clock_run *r, const char *name) {
    r->failed |= r->n == r->order.nspans;
    if (r->failed) return;
    clock_span *s = &r->spans[r->n];
    if (r->order.profile) snprintf(s->name, sizeof s->name, "%s", name);
    record(r, s->from);
}

static void span_end(clock_run *r) {
    if (!r->failed) record(r, r->spans[r->n++].to);
}

static void end(clock_run *r, bool keep) {
    if (!keep || r->failed || !r->n) {
        if (keep) lose(&r->order);
        free_run(r);
        return;
    }
    cuda_clock *c = &clocks[r->index];
    etch__lock(LOCK_CUDA_CLOCK);
    r->next = NULL;
    *c->last = r, c->last = &r->next;
    c->waiting++;
    etch__unlock(LOCK_CUDA_CLOCK);
}

/* ---- processes ---- */

/* A child has no driver: what its parent waits for is none of its business. */
static void forget(void) {
    for (int i = 0; i < CUDA_DEVICES; i++) {
        cuda_clock *c = &clocks[i];
        *c = (cuda_clock){.last = &c->first};
        pthread_mutex_init(&c->telling, NULL);
    }
}

void etch__start_cuda_clock(void) {
    static const device_clock cuda = {begin, span_begin, span_end, end, settle};
    forget();
    etch__at_fork(LOCK_CUDA_CLOCK, (fork_hooks){.child = forget});
    etch__device_clock = &cuda;
}
