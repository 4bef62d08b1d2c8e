/* Streams and events. A stream is a queue of work; a position in a queue is a number that only
 * grows. Work runs at the call that brings it, or, when lazy, once something waits for it:
 * then what a stream waits for (an event, the stream 0) runs first. Work submitted to a
 * capturing stream becomes nodes. */
#include "driver.h"

#include <time.h>

/* ---- work ---- */

fake_work *fake__work(enum fake_work_kind kind, CUcontext context) {
    fake_work *work = fake__new(sizeof *work);
    work->kind = kind;
    work->references = 1;
    work->context = context;
    return work;
}

fake_work *fake__hold(fake_work *work) {
    work->references++;
    return work;
}

void fake__drop(fake_work *work) {
    if (!work || --work->references) return;
    if (work->kind == WORK_KERNEL) {
        free(work->kernel.bytes);
        free(work->kernel.params);
    }
    if (work->kind == WORK_COPY) free(work->copy.staged);
    if (work->kind == WORK_RUN) free(work->run.data);
    if (work->kind == WORK_GRAPH) {
        for (int i = 0; i < work->graph.count; i++) fake__drop(work->graph.items[i]);
        free(work->graph.items);
    }
    free(work->name);
    free(work);
}

/* The clock of fake_cuda_set_clock, and what the last work was. */
static struct {
    bool on, event;
    double ms, kernel, library, gap;
} told;

void fake_cuda_set_clock(double kernel_ms, double library_ms, double gap_ms) {
    pthread_mutex_lock(&fake.lock);
    told.on = kernel_ms >= 0;
    told.event = false;
    told.kernel = kernel_ms, told.library = library_ms, told.gap = gap_ms;
    pthread_mutex_unlock(&fake.lock);
}

static void pass(enum fake_work_kind kind) {
    if (kind == WORK_KERNEL) told.ms += told.kernel;
    if (kind == WORK_RUN) told.ms += told.library;
    if (kind == WORK_EVENT && told.event) told.ms += told.gap;
    if (kind != WORK_GRAPH) told.event = kind == WORK_EVENT;
}

static double now(void) {
    struct timespec t;
    if (told.on) return told.ms;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static CUresult run(fake_work *work);

static CUresult run_graph(const fake_work *work) {
    for (int i = 0; i < work->graph.count; i++) TRY(run(work->graph.items[i]));
    return CUDA_SUCCESS;
}

static CUresult run(fake_work *work) {
    if (told.on) pass(work->kind);
    switch (work->kind) {
    case WORK_KERNEL: return fake__run_grid(work);
    case WORK_COPY: return fake__run_copy(work);
    case WORK_SET: return fake__run_set(work);
    case WORK_RUN: return fake__run_library(work);
    case WORK_EVENT:
        if (fake__is(work->event, "event")) work->event->time = now();
        return CUDA_SUCCESS;
    case WORK_GRAPH: return run_graph(work);
    }
    return CUDA_SUCCESS;
}

/* ---- draining ---- */

static void drop_item(fake_item *item) {
    fake__drop(item->work);
    free(item->waits);
    free(item);
}

static void drain(CUstream stream, uint64_t until);

static void run_first(CUstream stream) {
    fake_item *item = stream->first;
    stream->busy = true;
    for (int i = 0; i < item->wait_count; i++) drain(item->waits[i].stream, item->waits[i].until);
    /* After a fault nothing runs any more. */
    if (item->work && !stream->context->fault) stream->context->fault = run(item->work);
    stream->first = item->next;
    if (!stream->first) stream->last = NULL;
    stream->done++;
    stream->busy = false;
    drop_item(item);
    pthread_cond_broadcast(&fake.changed);
}

static void drain(CUstream stream, uint64_t until) {
    while (stream->done < until) {
        if (stream->busy) pthread_cond_wait(&fake.changed, &fake.lock);
        else run_first(stream);
    }
}

CUresult fake__finish(CUstream stream) {
    drain(stream, stream->pushed);
    return stream->context->fault;
}

CUresult fake__finish_context(CUcontext context) {
    for (int i = 0; i < context->stream_count; i++)
        drain(context->streams[i], context->streams[i]->pushed);
    return context->fault;
}

unsigned long fake_cuda_pending(void) {
    unsigned long sum = 0;
    pthread_mutex_lock(&fake.lock);
    for (int d = 0; d < fake.devices; d++) {
        CUcontext context = fake.device[d].context;
        for (int i = 0; context && i < context->stream_count; i++)
            sum += context->streams[i]->pushed - context->streams[i]->done;
    }
    pthread_mutex_unlock(&fake.lock);
    return sum;
}

static void wait_for(fake_item *item, CUstream stream, uint64_t until) {
    if (stream->done >= until) return;
    item->waits = realloc(item->waits, (size_t)(item->wait_count + 1) * sizeof *item->waits);
    if (!item->waits) abort();
    item->waits[item->wait_count++] = (fake_wait){stream, until};
}

/* The stream 0 waits for all blocking streams, and these wait for it. */
static void wait_for_legacy(fake_item *item, CUstream stream) {
    CUcontext context = stream->context;
    if (stream->flags & CU_STREAM_NON_BLOCKING) return;
    if (stream != context->null_stream) {
        wait_for(item, context->null_stream, context->null_stream->pushed);
        return;
    }
    for (int i = 0; i < context->stream_count; i++) {
        CUstream other = context->streams[i];
        if (other != stream && !(other->flags & CU_STREAM_NON_BLOCKING))
            wait_for(item, other, other->pushed);
    }
}

static fake_item *push(CUstream stream, fake_work *work) {
    fake_item *item = fake__new(sizeof *item);
    item->work = work;
    wait_for_legacy(item, stream);
    if (stream->last) stream->last->next = item;
    else stream->first = item;
    stream->last = item;
    stream->pushed++;
    return item;
}

/* Takes the work over. What fails while it runs is seen by the next call that looks. */
CUresult fake__submit(CUstream stream, fake_work *work) {
    if (stream->capture) {
        CUgraphNode node;
        if (stream->capture->invalid) {
            fake__drop(work);
            return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        }
        TRY(fake__graph_add(stream->capture->graph, work, stream->tips, stream->tip_count, &node));
        free(stream->tips);
        stream->tips = fake__copy(&node, sizeof node);
        stream->tip_count = 1;
        return CUDA_SUCCESS;
    }
    push(stream, work);
    if (!fake.lazy) drain(stream, stream->pushed);
    return CUDA_SUCCESS;
}

CUresult fake_cuda_submit(CUstream stream, const char *name, void (*function)(const void *data),
                          const void *data, size_t size) {
    __attribute__((cleanup(fake__leave))) int locked = 1;
    pthread_mutex_lock(&fake.lock);
    (void)locked;
    CHECK(fake__context, CUDA_ERROR_INVALID_CONTEXT);
    TRY(fake__context->fault);
    TRY(fake__stream(&stream));
    fake_work *work = fake__work(WORK_RUN, stream->context);
    work->name = strdup(name);
    work->run.run = function;
    work->run.data = fake__copy(data, size);
    return fake__submit(stream, work);
}

/* ---- streams ---- */

/* The stream behind a handle: NULL and 1 are the stream 0. */
CUresult fake__stream(CUstream *stream) {
    if ((uintptr_t)*stream <= 1) {
        CHECK(fake__context, CUDA_ERROR_INVALID_CONTEXT);
        *stream = fake__context->null_stream;
        return CUDA_SUCCESS;
    }
    return fake__is(*stream, "stream") ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    ENTER(cuStreamCreate);
    CHECK(stream && flags <= CU_STREAM_NON_BLOCKING, CUDA_ERROR_INVALID_VALUE);
    CUcontext context = fake__context;
    CUstream made = fake__new(sizeof *made);
    made->context = context;
    made->flags = flags;
    context->streams =
        realloc(context->streams, (size_t)(context->stream_count + 1) * sizeof(CUstream));
    if (!context->streams) abort();
    context->streams[context->stream_count++] = made;
    fake__add(made, "stream");
    *stream = made;
    return CUDA_SUCCESS;
}

static int leave_all(fake_capture *capture);

/* A capture whose first stream goes is given up. */
static void leave_capture(CUstream stream) {
    fake_capture *capture = stream->capture;
    if (capture && capture->origin == stream) {
        leave_all(capture);
        fake__graph_free(capture->graph);
        free(capture);
    } else if (capture) {
        capture->invalid = true;
    }
    free(stream->tips);
    stream->tips = NULL;
    stream->tip_count = 0;
    stream->capture = NULL;
}

/* Its memory stays: events and waits may still name it. */
CUresult cuStreamDestroy_v2(CUstream stream) {
    ENTER(cuStreamDestroy_v2);
    CHECK(fake__is(stream, "stream"), CUDA_ERROR_INVALID_HANDLE);
    drain(stream, stream->pushed);
    leave_capture(stream);
    fake__remove(stream);
    return fake__released(CUDA_SUCCESS);
}

/* Waiting in a capture is an error that makes the capture invalid. */
static CUresult no_capture_of(CUstream stream) {
    if (!stream->capture) return CUDA_SUCCESS;
    stream->capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult cuStreamSynchronize(CUstream stream) {
    ENTER(cuStreamSynchronize);
    TRY(fake__stream(&stream));
    TRY(no_capture_of(stream));
    return fake__finish(stream);
}

/* ---- events ---- */

CUresult cuEventCreate(CUevent *event, unsigned flags) {
    ENTER(cuEventCreate);
    CHECK(event && flags < 8, CUDA_ERROR_INVALID_VALUE);
    *event = fake__new(sizeof **event);
    (*event)->flags = flags;
    (*event)->context = fake__context;
    fake__add(*event, "event");
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event) {
    ENTER(cuEventDestroy_v2);
    CHECK(fake__is(event, "event"), CUDA_ERROR_INVALID_HANDLE);
    fake__remove(event);
    free(event->tips);
    free(event);
    return fake__released(CUDA_SUCCESS);
}

static CUresult record(CUevent event, CUstream stream) {
    CHECK(fake__is(event, "event"), CUDA_ERROR_INVALID_HANDLE);
    TRY(fake__stream(&stream));
    CHECK(event->context == stream->context, CUDA_ERROR_INVALID_HANDLE);
    free(event->tips);
    event->tips = NULL;
    event->tip_count = 0;
    event->capture = 0;
    event->recorded = true;
    event->stream = stream;
    if (stream->capture) {
        event->capture = stream->capture->id;
        event->tip_count = stream->tip_count;
        event->tips = fake__copy(stream->tips, stream->tip_count * sizeof *event->tips);
        event->at = stream->pushed;
        return CUDA_SUCCESS;
    }
    fake_work *work = fake__work(WORK_EVENT, stream->context);
    work->event = event;
    TRY(fake__submit(stream, work));
    event->at = stream->pushed;
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
    ENTER(cuEventRecord);
    return record(event, stream);
}

/* A stream that waits for an event of a capture joins the capture. */
static CUresult join_capture(CUstream stream, const struct CUevent_st *event) {
    fake_capture *capture = event->stream->capture;
    CHECK(capture && capture->id == event->capture, CUDA_ERROR_CAPTURED_EVENT);
    CHECK(!stream->capture || stream->capture == capture, CUDA_ERROR_STREAM_CAPTURE_MERGE);
    CHECK(stream != stream->context->null_stream, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    stream->capture = capture;
    const size_t count = stream->tip_count + event->tip_count;
    stream->tips = realloc(stream->tips, (count + 1) * sizeof *stream->tips);
    if (!stream->tips) abort();
    for (size_t i = 0; i < event->tip_count; i++) {
        bool known = false;
        for (size_t k = 0; k < stream->tip_count; k++) known |= stream->tips[k] == event->tips[i];
        if (!known) stream->tips[stream->tip_count++] = event->tips[i];
    }
    return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    ENTER(cuStreamWaitEvent);
    CHECK(flags <= 1, CUDA_ERROR_INVALID_VALUE);
    CHECK(fake__is(event, "event"), CUDA_ERROR_INVALID_HANDLE);
    TRY(fake__stream(&stream));
    if (!event->recorded) return CUDA_SUCCESS;
    if (event->capture) return join_capture(stream, event);
    if (stream->capture) {
        stream->capture->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    fake_item *item = push(stream, NULL);
    wait_for(item, event->stream, event->at);
    if (!fake.lazy) drain(stream, stream->pushed);
    return CUDA_SUCCESS;
}

static CUresult usable(CUevent event) {
    CHECK(fake__is(event, "event"), CUDA_ERROR_INVALID_HANDLE);
    if (!event->capture) return CUDA_SUCCESS;
    if (event->stream->capture) event->stream->capture->invalid = true;
    return CUDA_ERROR_CAPTURED_EVENT;
}

CUresult cuEventSynchronize(CUevent event) {
    ENTER(cuEventSynchronize);
    TRY(usable(event));
    if (!event->recorded) return CUDA_SUCCESS;
    drain(event->stream, event->at);
    return event->context->fault;
}

CUresult cuEventQuery(CUevent event) {
    ENTER(cuEventQuery);
    TRY(usable(event));
    if (!event->recorded) return CUDA_SUCCESS;
    const bool pending = event->stream->done < event->at;
    drain(event->stream, event->at);
    TRY(event->context->fault);
    return pending ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static double next_elapsed, elapsed_factor;

void fake_cuda_set_elapsed(double ms, double factor) {
    next_elapsed = ms;
    elapsed_factor = factor;
}

static CUresult elapsed(float *milliseconds, CUevent start, CUevent end) {
    CHECK(milliseconds, CUDA_ERROR_INVALID_VALUE);
    TRY(usable(start));
    TRY(usable(end));
    CHECK(start->recorded && end->recorded && !((start->flags | end->flags) & 2),
          CUDA_ERROR_INVALID_HANDLE);
    CHECK(start->stream->done >= start->at && end->stream->done >= end->at, CUDA_ERROR_NOT_READY);
    *milliseconds = (float)(elapsed_factor ? next_elapsed : end->time - start->time);
    next_elapsed *= elapsed_factor;
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    ENTER(cuEventElapsedTime);
    return elapsed(milliseconds, start, end);
}

/* ---- capturing ---- */

static __thread CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/* Does this thread's call disturb a capture? */
static bool disturbs(const fake_capture *capture) {
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED ||
        capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return false;
    const bool own = pthread_equal(capture->thread, pthread_self());
    if (own) return true;
    return capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
           thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

CUresult fake__no_capture(void) {
    CUresult result = CUDA_SUCCESS;
    for (int d = 0; d < fake.devices; d++) {
        CUcontext context = fake.device[d].context;
        for (int i = 0; context && i < context->stream_count; i++) {
            fake_capture *capture = context->streams[i]->capture;
            if (!capture || !disturbs(capture)) continue;
            capture->invalid = true;
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    return result;
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    ENTER(cuStreamBeginCapture_v2);
    TRY(fake__stream(&stream));
    CHECK(mode >= 0 && mode <= 2, CUDA_ERROR_INVALID_VALUE);
    CHECK(stream != stream->context->null_stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK(!stream->capture, CUDA_ERROR_ILLEGAL_STATE);
    fake_capture *capture = fake__new(sizeof *capture);
    *capture = (fake_capture){
        .graph = fake__graph_new(),
        .origin = stream,
        .mode = mode,
        .thread = pthread_self(),
        .id = fake__next_id(),
    };
    stream->capture = capture;
    return CUDA_SUCCESS;
}

/* The next stream of a capture, from a place on; NULL: there is none. */
static CUstream next_in_capture(const fake_capture *capture, int *device, int *at) {
    for (; *device < fake.devices; ++*device, *at = 0) {
        CUcontext context = fake.device[*device].context;
        while (context && *at < context->stream_count) {
            CUstream stream = context->streams[(*at)++];
            if (stream->capture == capture) return stream;
        }
    }
    return NULL;
}

/* How much of what a stream captured last the origin does not wait for. */
static int loose_ends(CUstream origin, CUstream stream) {
    int loose = 0;
    for (size_t t = 0; stream != origin && t < stream->tip_count; t++) {
        bool joined = false;
        for (size_t k = 0; k < origin->tip_count; k++)
            joined |= fake__depends(origin->tips[k], stream->tips[t]);
        loose += !joined;
    }
    return loose;
}

/* All streams leave. Returns how many ends were not joined. */
static int leave_all(fake_capture *capture) {
    int loose = 0, device = 0, at = 0;
    CUstream stream;
    while ((stream = next_in_capture(capture, &device, &at)))
        loose += loose_ends(capture->origin, stream);
    device = at = 0;
    while ((stream = next_in_capture(capture, &device, &at))) {
        free(stream->tips);
        stream->tips = NULL;
        stream->tip_count = 0;
        stream->capture = NULL;
    }
    return loose;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    ENTER(cuStreamEndCapture);
    TRY(fake__stream(&stream));
    CHECK(graph, CUDA_ERROR_INVALID_VALUE);
    *graph = NULL;
    fake_capture *capture = stream->capture;
    CHECK(capture, CUDA_ERROR_ILLEGAL_STATE);
    CHECK(capture->origin == stream, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    CHECK(capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED ||
              pthread_equal(capture->thread, pthread_self()),
          CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    const int loose = leave_all(capture);
    const bool invalid = capture->invalid;
    const CUresult failure = fake__released(CUDA_SUCCESS); /* the capture ends all the same */
    if (invalid || loose || failure) fake__graph_free(capture->graph);
    else *graph = capture->graph;
    free(capture);
    if (failure) return failure;
    if (invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    return loose ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED : CUDA_SUCCESS;
}

static CUstreamCaptureStatus status_of(CUstream stream) {
    if (!stream->capture) return CU_STREAM_CAPTURE_STATUS_NONE;
    return stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                    : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
    ENTER(cuStreamIsCapturing);
    CHECK(status, CUDA_ERROR_INVALID_VALUE);
    TRY(fake__stream(&stream));
    *status = status_of(stream);
    return CUDA_SUCCESS;
}
