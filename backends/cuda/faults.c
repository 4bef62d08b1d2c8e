/* See faults.h. */
#include "backends/cuda/stream.h"
#include "core/base/start.h"

#include "core/dispatch/dispatch.h"

#include "embedded/faults.cuh.inc"
const char *const etch__cuda_fault_text = faults_text;

/* ---- the run at hand ---- */

/* Empty where the thread has no stream. */
static checks_run *now(void) { return etch__cuda_thread_checks(); }

void *etch__cuda_checks_word(void) { return now()->slot ? &now()->slot->failed : NULL; }
bool etch__cuda_checks_noted(void) { return now()->noted && !now()->inside; }

bool etch__cuda_checks_inside(bool inside) {
    bool before = now()->inside;
    now()->inside = inside;
    return before;
}

static fault_slot *slots_of(const fault_set *f) { return etch__cuda_address(f->block); }

static etch_status clear(const fault_set *f, cuda_stream *by, int first, size_t bytes) {
    return CU(cuMemsetD8Async, (cu_address)(uintptr_t)(slots_of(f) + first), 0xff, bytes,
              by->stream);
}

static etch_status make_slots(cuda_stream *s) {
    fault_set *f = &s->faults;
    size_t bytes = FAULT_SLOTS * sizeof *f->shadow;
    void *shadow = f->shadow;
    etch_status status = shadow ? ETCH_OK : CU(cuMemAllocHost_v2, &shadow, bytes);
    f->shadow = shadow;
    if (status == ETCH_OK && !f->block && !(f->block = etch__cuda_allocate_own(s, bytes)))
        status = etch__tls.status;
    if (status == ETCH_OK) status = clear(f, s, 0, bytes);
    f->ready = status == ETCH_OK;
    return status;
}

/* ---- at the next wait ---- */

static etch_status say(const fault_note *n, int64_t value) {
    const char *name = etch__ops[n->op].name;
    if (n->kind == FAULT_DIVISOR)
        return etch__error_at(n->site, ETCH_ERR_DIVISION_BY_ZERO, "%s: an integer is divided by 0",
                              name);
    return etch__error_at(n->site, ETCH_ERR_INDEX,
                          "%s: expected indices from %lld to %lld, got %lld", name,
                          (long long)n->low, (long long)n->high, (long long)value);
}

/* Numbers of notes: those of runs, then those of each graph's steps. */
static uint64_t number_of(int graph, int step) {
    return FAULT_NOTES + (uint64_t)graph * FAULT_STEPS + (uint64_t)step;
}

static const fault_note *note_of(const fault_set *f, uint64_t number) {
    if (number < FAULT_NOTES) return &f->notes[number];
    number -= FAULT_NOTES;
    return &f->steps[number / FAULT_STEPS][number % FAULT_STEPS];
}

static void free_old_graphs(fault_set *f) {
    for (int i = 0; i < FAULT_GRAPHS; i++)
        if (f->graphs[i] == GRAPH_SLOT_FREED) f->graphs[i] = GRAPH_SLOT_FREE;
}

/* Reads what the shadow says of the first `used` slots and clears those that had a failure: as a
 * whole, or (`told`) as far as not to say it again, so that a run that goes on still finds that it
 * has failed. */
static etch_status report(fault_set *f, cuda_stream *by, int used, bool told) {
    const fault_slot *first = NULL;
    size_t bytes = told ? sizeof first->order : sizeof *first;
    etch_status status = ETCH_OK;
    for (int i = 0; i < used; i++) {
        const fault_slot *slot = &f->shadow[i];
        if (slot->order == UINT64_MAX) continue;
        if (!first || slot->order < first->order) first = slot;
        if (status == ETCH_OK) status = clear(f, by, i, bytes);
        f->stale |= told;
    }
    if (status != ETCH_OK || !first) return status;
    return say(note_of(f, first->order >> FAULT_ELEMENT_BITS), first->value);
}

/* Clears what others have left of the slots of runs, but not that of the run at hand. */
static etch_status clear_stale(cuda_stream *s) {
    fault_set *f = &s->faults;
    if (likely(!f->stale)) return ETCH_OK;
    int open = now()->stream == s && now()->slot < slots_of(f) + FAULT_RUNS
                   ? (int)(now()->slot - slots_of(f))
                   : FAULT_RUNS;
    size_t behind = open < FAULT_RUNS ? (size_t)(FAULT_RUNS - open - 1) : 0;
    etch_status status = open ? clear(f, s, 0, (size_t)open * sizeof(fault_slot)) : ETCH_OK;
    if (status == ETCH_OK && behind) status = clear(f, s, open + 1, behind * sizeof(fault_slot));
    f->stale = status != ETCH_OK;
    return status;
}

static etch_status read_slots(fault_set *f, cuda_stream *by, int used) {
    etch_status status = CU(cuMemcpyDtoHAsync_v2, f->shadow, (cu_address)(uintptr_t)slots_of(f),
                            (size_t)used * sizeof *f->shadow, by->stream);
    return status == ETCH_OK ? etch__cuda_wait(by) : status;
}

/* By the thread that issues checks to the stream. */
static etch_status finish_own(cuda_stream *s) {
    fault_set *f = &s->faults;
    int used = f->used;
    etch_status status = read_slots(f, s, used);
    if (status == ETCH_OK) status = clear_stale(s);
    if (status != ETCH_OK) return status;
    if (!f->nopen) f->used = f->next = f->nnotes = 0;
    status = report(f, s, used, false);
    free_old_graphs(f);
    return status;
}

/* Another thread waits and then reads by its own stream, since this one may be recorded. Checks
 * that have their slots may not be issued yet, so these stay taken. */
static etch_status finish_others(cuda_stream *s) {
    fault_set *f = &s->faults;
    int used = f->used;
    etch_status status = etch__cuda_wait(s);
    cuda_stream *by = status == ETCH_OK ? etch__cuda_stream(s->device->index) : NULL;
    if (!by) return etch__tls.status;
    if ((status = read_slots(f, by, used)) != ETCH_OK) return status;
    status = report(f, by, used, true);
    etch_status cleared = etch__cuda_wait(by);
    return status == ETCH_OK ? cleared : status;
}

/* Whether no other thread issues to the stream. */
static bool is_alone_on(const cuda_stream *s) {
    return etch__cuda_is_own(s) && !(s->foreign && s->users > 1);
}

/* Under the set's lock: another thread may synchronise the device meanwhile. */
static etch_status finish_set(cuda_stream *s) {
    if (!s->faults.used) return ETCH_OK;
    return is_alone_on(s) ? finish_own(s) : finish_others(s);
}

static etch_status finish_one(cuda_stream *s) {
    if (likely(!s->faults.used)) return etch__cuda_wait(s);
    pthread_mutex_lock(&s->faults.lock);
    etch_status status = s->faults.used ? finish_set(s) : etch__cuda_wait(s);
    pthread_mutex_unlock(&s->faults.lock);
    return status;
}

etch_status etch__cuda_finish(cuda_stream *s) {
    etch_status status = finish_one(s);
    for (int i = 0; i < STREAMS / 64; i++) {
        uint64_t others = atomic_exchange(&s->follows[i], 0);
        for (; others; others &= others - 1) {
            etch_status one = finish_one(etch__cuda_nth_stream(i * 64 + __builtin_ctzll(others)));
            if (status == ETCH_OK) status = one;
        }
    }
    return status;
}

static _Atomic int blocking = -1;

void etch__cuda_set_blocking(bool on) { blocking = on; }

/* Comparing compiled code with eager code needs to know at once where a call fails. */
static int ask_blocking(void) {
    return etch__param_int(PARAM_CUDA_BLOCKING) || etch__param_int(PARAM_CHECK);
}

static bool is_blocking(void) {
    if (unlikely(blocking < 0)) blocking = ask_blocking();
    return unlikely(blocking) && !etch__cuda_capturing();
}

etch_status etch__cuda_issued_to(cuda_stream *s) {
    return is_blocking() ? etch__cuda_finish(s) : ETCH_OK;
}

etch_status etch__cuda_issued(int device) {
    if (!is_blocking() || !device) return ETCH_OK;
    cuda_stream *s = etch__cuda_stream(etch__device_index(device));
    return s ? etch__cuda_finish(s) : etch__tls.status;
}

etch_status etch__cuda_finish_checks(cuda_stream *s) {
    bool any = s->faults.used;
    for (int i = 0; i < STREAMS / 64; i++) any |= s->follows[i] != 0;
    return any ? etch__cuda_finish(s) : ETCH_OK;
}

/* Failures that nobody has asked for. */
static void forget_faults(cuda_stream *s) {
    KEEP_ERROR;
    if (s->faults.used && finish_one(s) != ETCH_OK)
        etch__log(LOG_TRACE, "cuda:%d: a thread has ended without waiting for its work: %s",
                  s->device->index, etch_last_error());
}

void etch__start_cuda_faults(void) { etch__cuda_stream_taken = forget_faults; }

/* ---- checks ---- */

/* Slots and notes run out where nobody waits for long. */
static etch_status make_room(cuda_stream *s) {
    fault_set *f = &s->faults;
    if (etch__cuda_capturing()) return ETCH_OK;
    etch_status status = f->ready ? ETCH_OK : make_slots(s);
    if (status != ETCH_OK || (f->next < FAULT_RUNS && f->nnotes < FAULT_NOTES)) return status;
    status = f->used ? finish_own(s) : ETCH_OK;
    f->next = f->nnotes = 0; /* a run that is open shares its slot from now on, maybe */
    return status;
}

static fault_slot *take_slot(fault_set *f) {
    fault_slot *slot = slots_of(f) + f->next++;
    if (f->used < f->next) f->used = f->next;
    return slot;
}

static __thread graph_checks *recording; /* by the user */

void etch__cuda_checks_record(graph_checks *g) {
    if (!g && recording) etch__cuda_checks_leave(recording);
    recording = g;
}

/* The graph that is recorded gets a slot with its first check. What makes the slots themselves, or
 * frees some, would be recorded as well. */
static etch_status enter_recording(cuda_stream *s) {
    if (!recording)
        return etch__error(ETCH_ERR_UNSUPPORTED, "what is checked here cannot be recorded");
    if (recording->stream) return ETCH_OK;
    if (!s->faults.ready)
        return etch__error(ETCH_ERR_UNSUPPORTED, "expected the operators of a recording that check "
                                                 "their data to have run before it");
    etch_status status = etch__cuda_checks_reserve(s, recording);
    if (status == ETCH_OK) etch__cuda_checks_enter(recording);
    return status;
}

etch_status etch__cuda_checks_open(int device) {
    cuda_stream *s = etch__cuda_stream(etch__device_index(device));
    if (!s) return etch__tls.status;
    if (etch__cuda_capturing() && !now()->steps && enter_recording(s) != ETCH_OK)
        return etch__tls.status;
    if (now()->depth) return now()->depth++, ETCH_OK;
    pthread_mutex_lock(&s->faults.lock);
    etch_status status = make_room(s);
    if (status == ETCH_OK) {
        *now() = (checks_run){.stream = s, .slot = take_slot(&s->faults), .depth = 1};
        s->faults.nopen++;
    }
    pthread_mutex_unlock(&s->faults.lock);
    return status;
}

void etch__cuda_checks_close(void) {
    cuda_stream *s = now()->stream;
    if (--now()->depth) return;
    pthread_mutex_lock(&s->faults.lock);
    s->faults.nopen--;
    pthread_mutex_unlock(&s->faults.lock);
    *now() = (checks_run){0};
}

static etch_status check_of_run(cuda_stream *s, const fault_note *note, fault_args *args) {
    fault_set *f = &s->faults;
    pthread_mutex_lock(&f->lock);
    etch_status status = make_room(s);
    if (status == ETCH_OK) {
        bool in_run = now()->stream == s;
        args->slot = in_run ? now()->slot : take_slot(f);
        args->check = (uint64_t)f->nnotes << FAULT_ELEMENT_BITS;
        f->notes[f->nnotes++] = *note;
        if (in_run) now()->noted = true;
    }
    pthread_mutex_unlock(&f->lock);
    return status;
}

static etch_status check_of_graph(const fault_note *note, fault_args *args) {
    if (now()->step >= FAULT_STEPS)
        return etch__error_at(note->site, ETCH_ERR_UNSUPPORTED,
                              "%s: more than %d operators of a CUDA graph check their data",
                              etch__ops[note->op].name, FAULT_STEPS);
    now()->steps[now()->step] = *note;
    args->slot = now()->slot;
    args->check = number_of(now()->graph, now()->step) << FAULT_ELEMENT_BITS;
    now()->step += recording != NULL;
    now()->noted = true;
    return ETCH_OK;
}

etch_status etch__cuda_check(cuda_stream *s, const fault_note *note, fault_args *args) {
    if (likely(!etch__cuda_capturing())) return check_of_run(s, note, args);
    if (!now()->steps && enter_recording(s) != ETCH_OK) return etch__tls.status;
    return check_of_graph(note, args);
}

/* ---- graphs ---- */

static int free_graph(const fault_set *f) {
    for (int i = 0; i < FAULT_GRAPHS; i++)
        if (f->graphs[i] == GRAPH_SLOT_FREE) return i;
    return -1;
}

etch_status etch__cuda_checks_reserve(cuda_stream *s, graph_checks *g) {
    fault_set *f = &s->faults;
    pthread_mutex_lock(&f->lock);
    etch_status status = make_room(s);
    int number = free_graph(f);
    if (status == ETCH_OK && !f->steps &&
        !(f->steps = etch__calloc(FAULT_GRAPHS, sizeof *f->steps)))
        status = ETCH_ERR_OUT_OF_MEMORY;
    if (status == ETCH_OK && number < 0)
        status =
            etch__error(ETCH_ERR_UNSUPPORTED, "more than %d graphs check their data", FAULT_GRAPHS);
    if (status == ETCH_OK)
        f->graphs[number] = GRAPH_SLOT_TAKEN, *g = (graph_checks){s, s, number, {0}};
    pthread_mutex_unlock(&f->lock);
    return status;
}

void etch__cuda_checks_release(const graph_checks *g) {
    if (!g->stream) return;
    fault_set *f = &g->stream->faults;
    pthread_mutex_lock(&f->lock);
    f->graphs[g->number] = f->used > FAULT_RUNS ? GRAPH_SLOT_FREED : GRAPH_SLOT_FREE;
    pthread_mutex_unlock(&f->lock);
}

void etch__cuda_checks_enter(graph_checks *g) {
    if (!g->stream) return;
    fault_set *f = &g->stream->faults;
    g->outer = *now();
    *now() = (checks_run){.stream = g->stream,
                          .slot = slots_of(f) + FAULT_RUNS + g->number,
                          .depth = 1,
                          .steps = f->steps[g->number],
                          .graph = g->number};
}

void etch__cuda_checks_leave(const graph_checks *g) {
    if (g->stream) *now() = g->outer;
}

void etch__cuda_checks_step(int step) { now()->step = step; }

/* The slot is that of another stream where the thread that launches is not the one that recorded.
 * What failed in the last launch stays to be said, and is not held against this one. */
etch_status etch__cuda_checks_launch(graph_checks *g, cuda_stream *s) {
    if (!g->stream) return ETCH_OK;
    fault_set *f = &g->stream->faults;
    fault_slot *slot = slots_of(f) + FAULT_RUNS + g->number;
    int bit = g->stream->number - 1;
    etch_status status = g->last == s ? ETCH_OK : etch__cuda_wait_for(s, g->last);
    g->last = s;
    pthread_mutex_lock(&f->lock);
    f->used = FAULT_SLOTS;
    f->nopen++;
    pthread_mutex_unlock(&f->lock);
    if (g->stream != s) atomic_fetch_or(&s->follows[bit / 64], 1ull << bit % 64);
    if (status != ETCH_OK) return status;
    return CU(cuMemsetD8Async, (cu_address)(uintptr_t)&slot->failed, 0xff, sizeof slot->failed,
              s->stream);
}

void etch__cuda_checks_launched(graph_checks *g) {
    if (!g->stream) return;
    fault_set *f = &g->stream->faults;
    pthread_mutex_lock(&f->lock);
    f->nopen--;
    pthread_mutex_unlock(&f->lock);
}
