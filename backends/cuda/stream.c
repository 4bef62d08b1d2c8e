/* Streams: one a thread and device, taken over by later threads, and those that users set.
 *
 * A stream of the user is known by an entry of the same kind, so memory remembers it like any
 * other. When no thread has it set any more, the entry goes on with the handle of a stream of our
 * own that has waited for it, so that the user may destroy theirs while memory that it used lives
 * on. */
#include "core/base/locks.h"
#include "core/base/start.h"
#include "backends/cuda/stream.h"

#include <etch/device.h>

static cuda_stream *streams[STREAMS];
static int nstreams;

/* A thread's streams: its own, and those that it works on; and the checks of what it runs there. */
typedef struct thread_streams {
    cuda_stream *own[CUDA_DEVICES], *now[CUDA_DEVICES];
    checks_run checks;
} thread_streams;
static thread_streams none;
static __thread thread_streams *mine = &none;
static pthread_key_t at_thread_end;

void (*etch__cuda_stream_taken)(cuda_stream *s);

checks_run *etch__cuda_thread_checks(void) { return &mine->checks; }

cu_stream etch__cuda_stream_handle(const cuda_stream *s) { return s->stream; }
cuda_device *etch__cuda_stream_device(const cuda_stream *s) { return s->device; }

cuda_stream *etch__cuda_nth_stream(int i) {
    etch__lock(LOCK_CUDA_STREAMS);
    cuda_stream *s = i < nstreams ? streams[i] : NULL;
    etch__unlock(LOCK_CUDA_STREAMS);
    return s;
}

/* ---- waiting ---- */

/* Nothing but its own thread touches a stream that is being recorded: that would break the
 * recording, or become part of it. Others take the event behind what was issued before. */
static int record_event(cuda_stream *s) {
    return s->recording ? 0 : etch__cuda.cuEventRecord(s->event, s->stream);
}

etch_status etch__cuda_wait_for(cuda_stream *s, cuda_stream *other) {
    if (s == other) return ETCH_OK;
    pthread_mutex_lock(&other->lock);
    etch_status status = etch__cuda_failed("cuEventRecord", record_event(other));
    if (status == ETCH_OK) status = CU(cuStreamWaitEvent, s->stream, other->event, 0);
    pthread_mutex_unlock(&other->lock);
    int bit = other->number - 1;
    if (other->faults.used) atomic_fetch_or(&s->follows[bit / 64], 1ull << bit % 64);
    return status;
}

etch_status etch__cuda_wait_for_all(cuda_stream *s) {
    etch_status status = ETCH_OK;
    cuda_stream *other;
    for (int i = 0; status == ETCH_OK && (other = etch__cuda_nth_stream(i)); i++)
        if (other->device == s->device) status = etch__cuda_wait_for(s, other);
    return status;
}

bool etch__cuda_is_own(const cuda_stream *s) { return mine->now[s->device->index] == s; }

/* Under the lock the user's stream cannot be given up meanwhile. */
int etch__cuda_stream_drain(cuda_stream *s) {
    pthread_mutex_lock(&s->lock);
    int status = record_event(s);
    pthread_mutex_unlock(&s->lock);
    return status ? status : etch__cuda.cuEventSynchronize(s->event);
}

int etch__cuda_stream_wait(cuda_stream *s) {
    return likely(etch__cuda_is_own(s)) ? etch__cuda.cuStreamSynchronize(s->stream)
                                        : etch__cuda_stream_drain(s);
}

/* ---- recording ---- */

/* Held where a recording begins, and where a thread makes another's stream wait. */

etch_status etch__cuda_stream_record(cuda_stream *s) {
    if (s->recording)
        return etch__error(ETCH_ERR_UNSUPPORTED, "a graph is being recorded on this stream");
    etch__lock(LOCK_CUDA_LEGACY);
    pthread_mutex_lock(&s->lock);
    etch_status status = CU(cuEventRecord, s->event, s->stream);
    if (status == ETCH_OK) status = CU(cuStreamBeginCapture_v2, s->stream, CU_CAPTURE_RELAXED);
    s->recording = status == ETCH_OK;
    pthread_mutex_unlock(&s->lock);
    etch__unlock(LOCK_CUDA_LEGACY);
    return status;
}

etch_status etch__cuda_stream_recorded(cuda_stream *s, cu_graph *graph) {
    pthread_mutex_lock(&s->lock);
    etch_status status = CU(cuStreamEndCapture, s->stream, graph);
    s->recording = false;
    pthread_mutex_unlock(&s->lock);
    return status;
}

etch_status etch__cuda_visit(cuda_stream *s) {
    if (etch__cuda_is_own(s)) return ETCH_OK;
    etch__lock(LOCK_CUDA_LEGACY);
    if (!s->recording) return ETCH_OK;
    etch__unlock(LOCK_CUDA_LEGACY);
    return etch__error(ETCH_ERR_UNSUPPORTED,
                       "another thread records a graph on the stream that this work goes to");
}

void etch__cuda_visited(const cuda_stream *s) {
    if (!etch__cuda_is_own(s)) etch__unlock(LOCK_CUDA_LEGACY);
}

static etch_status drain_all(const cuda_device *d) {
    cuda_stream *s;
    int status = 0;
    for (int i = 0; !status && (s = etch__cuda_nth_stream(i)); i++)
        if (s->device == d) status = etch__cuda_stream_drain(s);
    return etch__cuda_failed("cuEventSynchronize", status);
}

etch_status etch__cuda_order(cuda_stream *s) {
    if (etch__cuda_is_own(s)) return etch__cuda_wait_for_all(s);
    etch__lock(LOCK_CUDA_LEGACY);
    bool recording = s->recording;
    etch_status status = recording ? ETCH_OK : etch__cuda_wait_for_all(s);
    etch__unlock(LOCK_CUDA_LEGACY);
    return recording ? drain_all(s->device) : status;
}

/* ---- streams of our own (under the lock) ---- */

static cuda_stream *take_over(const cuda_device *d) {
    for (int i = 0; i < nstreams; i++)
        if (streams[i]->free && streams[i]->device == d) {
            streams[i]->free = false;
            return streams[i];
        }
    return NULL;
}

/* Takes the entry into the table; frees it and sets the error where it is full. */
static cuda_stream *add(cuda_stream *s) {
    if (nstreams < STREAMS) {
        streams[nstreams++] = s, s->number = nstreams;
        return s;
    }
    etch__error(ETCH_ERR_DEVICE, "more than %d threads and streams use GPUs at one time", STREAMS);
    etch__cuda.cuEventDestroy_v2(s->event);
    if (!s->foreign) etch__cuda.cuStreamDestroy_v2(s->stream);
    etch__free(s);
    return NULL;
}

static cuda_stream *new_entry(cuda_device *d) {
    cuda_stream *s = etch__calloc(1, sizeof *s);
    if (!s) return NULL;
    s->device = d;
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->faults.lock, NULL);
    if (CU(cuEventCreate, &s->event, CU_EVENT_DISABLE_TIMING_) == ETCH_OK) return s;
    etch__free(s);
    return NULL;
}

static cuda_stream *new_stream(cuda_device *d) {
    cuda_stream *s = new_entry(d);
    if (!s) return NULL;
    if (CU(cuStreamCreate, &s->stream, CU_STREAM_NON_BLOCKING_) == ETCH_OK) return add(s);
    etch__cuda.cuEventDestroy_v2(s->event);
    etch__free(s);
    return NULL;
}

/* Gives the thread a table that may be written. */
static bool own_table(void) {
    if (mine != &none) return true;
    thread_streams *t = etch__calloc(1, sizeof *t);
    if (!t) return false;
    if (pthread_setspecific(at_thread_end, t) == 0) return mine = t, true;
    etch__free(t);
    return etch__false(ETCH_ERR_OUT_OF_MEMORY, "no room for the thread's table of streams");
}

cuda_stream *etch__cuda_stream(int index) {
    cuda_device *d;
    if (likely(index >= 0 && index < CUDA_DEVICES && mine->now[index] &&
               etch__cuda_is_current(index)))
        return mine->now[index];
    if (!(d = etch__cuda_enter(index))) return NULL;
    if (mine->now[index]) return mine->now[index];
    if (!own_table()) return NULL;
    etch__lock(LOCK_CUDA_STREAMS);
    cuda_stream *s = take_over(d);
    if (!s) s = new_stream(d);
    etch__unlock(LOCK_CUDA_STREAMS);
    if (!s) return NULL;
    mine->own[index] = mine->now[index] = s;
    etch__cuda_stream_taken(s);
    return s;
}

/* ---- streams of the user ---- */

/* No thread has it set any more: its entry goes on as `own`, which waits for what it holds. */
static etch_status give_up(cuda_stream *s, cuda_stream *own) {
    etch_status status = etch__cuda_wait_for(own, s);
    pthread_mutex_lock(&s->lock);
    s->stream = own->stream;
    pthread_mutex_unlock(&s->lock);
    return status;
}

static etch_status leave(cuda_stream *s, cuda_stream *own) {
    if (!s->foreign) return ETCH_OK;
    etch__lock(LOCK_CUDA_STREAMS);
    etch_status status = --s->users ? ETCH_OK : give_up(s, own);
    etch__unlock(LOCK_CUDA_STREAMS);
    return status;
}

static cuda_stream *find(const cuda_device *d, cu_stream handle) {
    cuda_stream *unset = NULL;
    for (int i = 0; i < nstreams; i++) {
        cuda_stream *s = streams[i];
        if (!s->foreign || s->device != d) continue;
        if (s->users && s->stream == handle) return s;
        if (!s->users) unset = s;
    }
    return unset;
}

/* Its event belongs to the device, so recording it refuses what is no stream there. An entry taken
 * again has memory whose last work was on its handle until now. */
static etch_status point_to(cuda_stream *s, cu_stream handle) {
    pthread_mutex_lock(&s->lock);
    etch_status status = s->stream ? CU(cuEventRecord, s->event, s->stream) : ETCH_OK;
    if (status == ETCH_OK && s->stream) status = CU(cuStreamWaitEvent, handle, s->event, 0);
    if (status == ETCH_OK) status = CU(cuEventRecord, s->event, handle);
    if (status == ETCH_OK) s->stream = handle;
    pthread_mutex_unlock(&s->lock);
    return status;
}

static cuda_stream *new_foreign(cuda_device *d, cu_stream handle) {
    cuda_stream *s = new_entry(d);
    if (!s) return NULL;
    s->foreign = true;
    if (point_to(s, handle) == ETCH_OK) return add(s);
    etch__cuda.cuEventDestroy_v2(s->event);
    etch__free(s);
    return NULL;
}

static cuda_stream *entry_for(cuda_device *d, cu_stream handle) {
    etch__lock(LOCK_CUDA_STREAMS);
    cuda_stream *s = find(d, handle);
    if (!s) s = new_foreign(d, handle);
    else if (!s->users && point_to(s, handle) != ETCH_OK) s = NULL;
    if (s) s->users++;
    etch__unlock(LOCK_CUDA_STREAMS);
    return s;
}

/* The thread's stream there, for a public function: what a compiled function has deferred is issued
 * first. */
static cuda_stream *reach(etch_device device, const char *function, const void *site) {
    if (device == ETCH_CPU)
        return etch__null_at(site, ETCH_ERR_DEVICE, "%s: expected a GPU, got cpu", function);
    if (!etch__device_check(device, function, site)) return NULL;
    if (etch__tls.run && etch__trace_hooks.read(NULL, REASON_BREAK_FLUSH, site) != ETCH_OK)
        return NULL;
    return etch__cuda_stream(etch__device_index(device));
}

void *etch_cuda_stream(etch_device device) {
    cuda_stream *s = reach(device, "etch_cuda_stream", __builtin_return_address(0));
    return s ? s->stream : NULL;
}

etch_status etch_cuda_set_stream(etch_device device, void *stream) {
    const void *site = __builtin_return_address(0);
    cuda_stream *before = reach(device, "etch_cuda_set_stream", site), *s;
    if (!before) return etch__tls.status;
    if (etch__cuda_capturing())
        return etch__error_at(site, ETCH_ERR_INVALID_ARGUMENT,
                              "etch_cuda_set_stream: a graph is being recorded on this thread; "
                              "set the stream before or after");
    int index = etch__device_index(device);
    cuda_stream *own = mine->own[index];
    s = !stream || stream == own->stream ? own : entry_for(own->device, stream);
    if (!s) return etch__tls.status;
    mine->now[index] = s;
    return leave(before, own);
}

/* ---- threads and processes ---- */

static void leave_streams(void *table) {
    thread_streams *t = table;
    for (int i = 0; i < CUDA_DEVICES; i++) {
        if (!t->own[i]) continue;
        if (t->now[i] != t->own[i] && etch__cuda_enter(i)) leave(t->now[i], t->own[i]);
        t->now[i] = NULL;
        etch__lock(LOCK_CUDA_STREAMS);
        t->own[i]->free = true;
        etch__unlock(LOCK_CUDA_STREAMS);
    }
    mine = &none;
    etch__free(t);
}

/* The one thread of a forked child has no stream: it enters its device anew, where it is refused.
 * Threads that it has not may have held the locks. */
static void in_forked_child(void) {
    if (mine != &none) memset(mine, 0, sizeof *mine);
}

void etch__start_cuda_streams(void) {
    pthread_key_create(&at_thread_end, leave_streams);
    etch__at_fork(LOCK_CUDA_STREAMS, (fork_hooks){.child = in_forked_child});
}
