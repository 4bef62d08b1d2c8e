/* The profiler: events in buffers, one a thread, merged and written when the profile ends.
 *
 * A buffer's lock is only ever contended by the end of a profile. An event carries its own copy of
 * its name, since functions and plans may be freed before the end. Where memory for events is short
 * they are dropped and counted: recording never fails what it records. */
#include "core/base/device_clock.h"
#include "core/base/locks.h"
#include "core/base/start.h"
#include "core/base/profile.h"
#include "core/base/signals.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { CHUNK_EVENTS = 512, NAME_BYTES = sizeof((etch_profile_entry *)0)->name };

typedef struct event {
    int64_t start, ns;
    uint8_t kind, device; /* device: number of a GPU, else 0 */
    char name[NAME_BYTES];
} event;

typedef struct chunk {
    struct chunk *next; /* older */
    int n;
    event events[CHUNK_EVENTS];
} chunk;

typedef struct buffer {
    pthread_mutex_t lock;
    chunk *newest;
    int64_t dropped;
    long thread;
    bool ended; /* its thread is gone */
    struct buffer *next;
} buffer;

atomic_bool etch__profiling;

static buffer *buffers;
static FILE *file;
static int64_t began;
static atomic_int profiles;         /* that have begun */
static atomic_llong lost;           /* events of devices */
static etch_profile_entry *entries; /* of the profile that ended last */
static int64_t nentries, entries_cap;

static __thread buffer *own __attribute__((tls_model("initial-exec")));
static pthread_key_t at_exit;

static const char *const kind_names[ETCH_PROFILE_KINDS] = {
    [ETCH_PROFILE_CALL] = "call",     [ETCH_PROFILE_GUARDS] = "guards",
    [ETCH_PROFILE_KERNEL] = "kernel", [ETCH_PROFILE_PRODUCT] = "product",
    [ETCH_PROFILE_CUSTOM] = "custom", [ETCH_PROFILE_OPERATOR] = "operator",
    [ETCH_PROFILE_BREAK] = "break",   [ETCH_PROFILE_COMPILE] = "compile",
    [ETCH_PROFILE_DEVICE] = "device",
};

const char *etch_profile_kind_name(etch_profile_kind kind) {
    return (unsigned)kind < ETCH_PROFILE_KINDS ? kind_names[kind] : "unknown";
}

/* ---- recording ---- */

static buffer *new_buffer(void) {
    buffer *b = etch__quiet_malloc(sizeof *b);
    if (!b) return NULL;
    *b = (buffer){.thread = syscall(SYS_gettid)};
    pthread_mutex_init(&b->lock, NULL);
    pthread_setspecific(at_exit, b);
    etch__lock(LOCK_PROFILE);
    b->next = buffers;
    buffers = b;
    etch__unlock(LOCK_PROFILE);
    return own = b;
}

/* The thread's buffer outlives it until a profile ends. */
static void end_thread(void *b) {
    etch__lock(LOCK_PROFILE);
    ((buffer *)b)->ended = true;
    etch__unlock(LOCK_PROFILE);
}

static event *next_event(buffer *b) {
    if (!b->newest || b->newest->n == CHUNK_EVENTS) {
        chunk *c = etch__quiet_malloc(sizeof *c);
        if (!c) {
            b->dropped++;
            return NULL;
        }
        c->n = 0;
        c->next = b->newest;
        b->newest = c;
    }
    return &b->newest->events[b->newest->n++];
}

/* Returned with the lock of the buffer; NULL: there is neither. */
static event *lock_event(void) {
    buffer *b = own ? own : new_buffer();
    if (!b) return NULL;
    pthread_mutex_lock(&b->lock);
    event *e = etch__profile_on() ? next_event(b) : NULL;
    if (!e) pthread_mutex_unlock(&b->lock);
    return e;
}

void etch__profile_add(etch_profile_kind kind, int64_t start, const char *name,
                       const char *detail) {
    int64_t now = etch__now();
    event *e = lock_event();
    if (!e) return;
    e->start = start, e->ns = kind == ETCH_PROFILE_BREAK ? 0 : now - start;
    e->kind = (uint8_t)kind, e->device = 0;
    snprintf(e->name, sizeof e->name, "%s%s%s", name, detail ? ": " : "", detail ? detail : "");
    pthread_mutex_unlock(&own->lock);
}

int etch__profile_number(void) { return profiles; }

void etch__profile_add_device(int number, int device, int64_t start, int64_t ns, const char *name) {
    event *e = number == profiles ? lock_event() : NULL;
    if (!e) return;
    *e = (event){start, ns, ETCH_PROFILE_DEVICE, (uint8_t)device, ""};
    snprintf(e->name, sizeof e->name, "%s", name);
    pthread_mutex_unlock(&own->lock);
}

void etch__profile_lost(int64_t events) { lost += events; }

/* ---- the end: everything on one list ---- */

typedef struct recording {
    buffer *parts; /* emptied buffers' contents: only chunks, thread and dropped are set */
    bool short_of_memory;
} recording;

/* What a buffer holds, taken out of it. */
static buffer *take_events(buffer *b) {
    pthread_mutex_lock(&b->lock);
    buffer *part = b->newest ? etch__malloc(sizeof *part) : NULL;
    if (part) *part = (buffer){.newest = b->newest, .dropped = b->dropped, .thread = b->thread};
    if (part) b->newest = NULL, b->dropped = 0;
    pthread_mutex_unlock(&b->lock);
    return part;
}

static void free_chunks(chunk *c) {
    while (c) {
        chunk *next = c->next;
        etch__free(c);
        c = next;
    }
}

static void free_recording(recording *r) {
    while (r->parts) {
        buffer *next = r->parts->next;
        free_chunks(r->parts->newest);
        etch__free(r->parts);
        r->parts = next;
    }
}

/* Under the lock. Buffers of threads that are gone go. */
static void collect(recording *r) {
    for (buffer **link = &buffers; *link;) {
        buffer *b = *link, *part = take_events(b);
        if (part) part->next = r->parts, r->parts = part;
        else r->short_of_memory |= b->newest != NULL;
        if (!b->ended) {
            link = &b->next;
            continue;
        }
        *link = b->next;
        free_chunks(b->newest);
        pthread_mutex_destroy(&b->lock);
        etch__free(b);
    }
}

/* Under the lock: events that were on their way when the last profile ended. */
static void drop_events(void) {
    for (buffer *b = buffers; b; b = b->next) {
        pthread_mutex_lock(&b->lock);
        free_chunks(b->newest);
        b->newest = NULL, b->dropped = 0;
        pthread_mutex_unlock(&b->lock);
    }
}

/* Calls fn(ctx, event, thread) for each event; false as soon as it says so. */
static bool each_event(const recording *r, bool (*fn)(void *, const event *, long), void *ctx) {
    for (const buffer *b = r->parts; b; b = b->next)
        for (const chunk *c = b->newest; c; c = c->next)
            for (int i = 0; i < c->n; i++)
                if (!fn(ctx, &c->events[i], b->thread)) return false;
    return true;
}

/* ---- the table ---- */

static bool add_entry(void *ctx, const event *e, long thread) {
    (void)ctx, (void)thread;
    etch_profile_entry *at = entries, *end = entries + nentries;
    while (at < end && (at->kind != e->kind || strcmp(at->name, e->name))) at++;
    if (at == end) {
        if (!etch__grow(&entries, &entries_cap, nentries + 1, sizeof *entries)) return false;
        at = &entries[nentries++];
        *at = (etch_profile_entry){.kind = (etch_profile_kind)e->kind};
        memcpy(at->name, e->name, sizeof at->name);
    }
    at->count++;
    at->total_ns += e->ns;
    if (at->max_ns < e->ns) at->max_ns = e->ns;
    return true;
}

static int by_time(const void *a, const void *b) {
    const etch_profile_entry *x = a, *y = b;
    if (x->total_ns != y->total_ns) return x->total_ns < y->total_ns ? 1 : -1;
    return strcmp(x->name, y->name);
}

static bool make_table(const recording *r) {
    nentries = 0;
    bool ok = each_event(r, add_entry, NULL);
    if (nentries) qsort(entries, (size_t)nentries, sizeof *entries, by_time);
    return ok;
}

int etch_profile_entries(etch_profile_entry *out, int n) {
    etch__lock(LOCK_PROFILE);
    int known = (int)nentries;
    for (int i = 0; out && i < n && i < known; i++) out[i] = entries[i];
    etch__unlock(LOCK_PROFILE);
    return known;
}

int64_t etch_profile_count(etch_profile_kind kind) {
    int64_t count = 0;
    etch__lock(LOCK_PROFILE);
    for (int64_t i = 0; i < nentries; i++)
        if (entries[i].kind == kind) count += entries[i].count;
    etch__unlock(LOCK_PROFILE);
    return count;
}

int64_t etch_profile_table(char *buf, size_t n) {
    if (!buf) n = 0;
    int64_t used = snprintf(buf, n, "%-9s %-48s %8s %12s %12s %12s\n", "kind", "name", "count",
                            "total us", "mean us", "max us");
    etch__lock(LOCK_PROFILE);
    for (int64_t i = 0; i < nentries; i++) {
        const etch_profile_entry *e = &entries[i];
        size_t room = (size_t)used < n ? n - (size_t)used : 0;
        used +=
            snprintf(room ? buf + used : NULL, room, "%-9s %-48s %8lld %12.1f %12.2f %12.1f\n",
                     kind_names[e->kind], e->name, (long long)e->count, (double)e->total_ns / 1e3,
                     (double)e->total_ns / 1e3 / (double)e->count, (double)e->max_ns / 1e3);
    }
    etch__unlock(LOCK_PROFILE);
    return used;
}

/* ---- the file ---- */

static void put_string(FILE *f, const char *text) {
    putc('"', f);
    for (const unsigned char *at = (const unsigned char *)text; *at; at++) {
        if (*at == '"' || *at == '\\') fprintf(f, "\\%c", *at);
        else if (*at < 0x20) fprintf(f, "\\u%04x", *at);
        else putc(*at, f);
    }
    putc('"', f);
}

/* Threads have numbers below; a device has a row of its own. */
enum { DEVICE_ROWS = 1 << 22 };

static bool put_row(FILE *f, int device) {
    fprintf(f,
            ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,"
            "\"args\":{\"name\":\"cuda:%d\"}}",
            (int)getpid(), DEVICE_ROWS + device, device - 1);
    return !ferror(f);
}

static bool note_row(void *ctx, const event *e, long thread) {
    (void)thread;
    ((bool *)ctx)[e->device] = true;
    return true;
}

static bool put_rows(FILE *f, const recording *r) {
    bool there[UINT8_MAX + 1] = {false}, ok = true;
    each_event(r, note_row, there);
    for (int i = 1; ok && i <= UINT8_MAX; i++) ok = !there[i] || put_row(f, i);
    return ok;
}

/* Microseconds with three decimals since the profile began. A break is an instant event. */
static bool put_event(void *ctx, const event *e, long thread) {
    FILE *f = ctx;
    fputs(",\n{\"name\":", f);
    put_string(f, e->name);
    if (e->device) thread = DEVICE_ROWS + e->device;
    fprintf(f, ",\"cat\":\"%s\",\"pid\":%d,\"tid\":%ld,\"ts\":%.3f,", kind_names[e->kind],
            (int)getpid(), thread, (double)(e->start - began) / 1e3);
    if (e->kind == ETCH_PROFILE_BREAK) fputs("\"ph\":\"i\",\"s\":\"t\"}", f);
    else fprintf(f, "\"ph\":\"X\",\"dur\":%.3f}", (double)e->ns / 1e3);
    return !ferror(f);
}

static bool put_file(FILE *f, const recording *r) {
    fprintf(f,
            "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n{\"name\":\"process_name\","
            "\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"etch\"}}",
            (int)getpid());
    bool ok = put_rows(f, r) && each_event(r, put_event, f);
    fputs("\n]}\n", f);
    ok = ok && !ferror(f);
    return fclose(f) == 0 && ok;
}

/* ---- begin and end ---- */

etch_status etch_profile_begin(const char *path) {
    etch__lock(LOCK_PROFILE);
    if (etch__profiling) {
        etch__unlock(LOCK_PROFILE);
        return etch__error_at(NULL, ETCH_ERR_INVALID_ARGUMENT,
                              "etch_profile_begin: another profile is running");
    }
    file = path ? fopen(path, "we") : NULL;
    bool ok = !path || file;
    if (ok) {
        drop_events();
        began = etch__now();
        profiles++;
        lost = 0;
        etch__profiling = true;
    }
    etch__unlock(LOCK_PROFILE);
    return ok ? ETCH_OK
              : etch__error_at(NULL, ETCH_ERR_IO, "etch_profile_begin: cannot write %s: %m", path);
}

etch_status etch_profile_end(void) {
    recording r = {0};
    etch__clock_settle();
    etch__lock(LOCK_PROFILE);
    if (!etch__profiling) {
        etch__unlock(LOCK_PROFILE);
        return etch__error_at(NULL, ETCH_ERR_INVALID_ARGUMENT,
                              "etch_profile_end: no profile is running");
    }
    etch__profiling = false;
    collect(&r);
    bool table = make_table(&r) && !r.short_of_memory;
    held_signals held;
    etch__signals_hold(&held);
    bool written = !file || put_file(file, &r);
    etch__signals_release(&held);
    file = NULL;
    int64_t dropped = lost;
    for (const buffer *b = r.parts; b; b = b->next) dropped += b->dropped;
    etch__unlock(LOCK_PROFILE);
    free_recording(&r);
    etch__clock_settle();
    if (dropped) etch__warn("profile: %lld events were dropped", (long long)dropped);
    if (!table)
        return etch__error_at(NULL, ETCH_ERR_OUT_OF_MEMORY, "etch_profile_end: events are missing");
    return written
               ? ETCH_OK
               : etch__error_at(NULL, ETCH_ERR_IO, "etch_profile_end: the file is not complete");
}

/* ---- load and fork ---- */

/* A child records nothing: the file is its parent's. */
static void in_child(void) {
    etch__profiling = false;
    for (buffer *b = buffers; b; b = b->next) {
        pthread_mutex_init(&b->lock, NULL);
        b->ended = b != own;
    }
}

void etch__start_profile(void) {
    pthread_key_create(&at_exit, end_thread);
    etch__at_fork(LOCK_PROFILE, (fork_hooks){.child = in_child});
}
