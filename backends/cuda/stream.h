/* The streams themselves, for those who keep memory, launches and checks by stream. */
#ifndef ETCH_BACKENDS_CUDA_STREAM_H
#define ETCH_BACKENDS_CUDA_STREAM_H

#include "backends/cuda/faults.h"

/* Size classes reach to 2^39 bytes. */
enum { NOTES = 32, STREAMS = 256, NAME = 48, CLASSES = 120 };

struct cuda_stream {
    cu_stream
        stream; /* of a foreign one only read by threads that have it set, or under the lock */
    cuda_device *device;
    int number; /* among all streams of the process, from 1 */
    cu_event event;
    bool free; /* its thread has ended; the next new thread takes it over */
    bool foreign;
    int users;             /* foreign: threads that have it set; with none it is another's handle */
    atomic_bool recording; /* what is issued is recorded; the event stands behind what was before */
    /* The last launches, those before the last wait apart. Any thread may wait, and list them. */
    _Atomic uint64_t notes[NOTES][NAME / 8];
    atomic_uint nnotes, waited;
    pthread_mutex_t lock; /* of the free lists, the event, and a foreign handle */
    cuda_block *unused[CLASSES];
    fault_set faults;
    _Atomic uint64_t follows[STREAMS / 64]; /* streams that it waited for, bit number - 1 */
};

/* What clock.c does when a device was waited for, once it has timed something. */
extern void (*_Atomic etch__cuda_waited)(int index);
/* What faults.c does with a stream whose thread has ended, when another one takes it over. */
extern void (*etch__cuda_stream_taken)(cuda_stream *s);

/* Stream i of all, NULL behind the last. Streams are never freed. */
cuda_stream *etch__cuda_nth_stream(int i);
/* s goes on when what was issued to `other`, or to all of the device, until now is done. */
etch_status etch__cuda_wait_for(cuda_stream *s, cuda_stream *other);
etch_status etch__cuda_wait_for_all(cuda_stream *s);
/* The same for a stream that may be another thread's; where that one is recorded, it is this thread
 * that waits. */
etch_status etch__cuda_order(cuda_stream *s);
/* Whether the calling thread works on it. */
bool etch__cuda_is_own(const cuda_stream *s);
/* The driver's status of waiting for it: an error in the recording of one's own. */
int etch__cuda_stream_wait(cuda_stream *s);
/* The same for what was issued before a recording of any thread. */
int etch__cuda_stream_drain(cuda_stream *s);
/* Begins and ends the recording of what the thread issues to its stream. */
etch_status etch__cuda_stream_record(cuda_stream *s);
etch_status etch__cuda_stream_recorded(cuda_stream *s, cu_graph *graph);

#endif
