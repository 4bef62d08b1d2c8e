/* Checks on data: an index out of range, an integer divided by 0.
 *
 * Nothing waits for them. The kernel that finds the first failure says so in a slot of device
 * memory; one that writes what the user may see tests the slot of its run, and writes nothing after
 * a failure. The slots are read when the stream is next waited for, and the error appears there,
 * with the line of the operator's call. A plan's run has one slot for all its steps, an operator
 * alone its own. */
#ifndef ETCH_BACKENDS_CUDA_FAULTS_H
#define ETCH_BACKENDS_CUDA_FAULTS_H

#include "backends/cuda/runtime.h"

#include <pthread.h>

typedef enum fault_kind { FAULT_INDEX, FAULT_DIVISOR } fault_kind;

/* What is said of a failure. low, high: what an index may be. */
typedef struct fault_note {
    const void *site;
    int64_t low, high;
    uint16_t op;
    uint8_t kind;
} fault_note;

/* A slot: the check and the element (row-major number in what is checked) of the first failure, and
 * the value there; and whether the run at hand has failed, which each launch of a graph begins
 * anew. All bits are set where there is none. */
typedef struct fault_slot {
    uint64_t order; /* check << FAULT_ELEMENT_BITS | element */
    int64_t value;
    uint64_t lock;   /* 0: taken */
    uint64_t failed; /* 0: it has */
} fault_slot;

/* The slots of runs, given out in turn; behind them those of graphs, which keep theirs. */
enum { FAULT_RUNS = 256, FAULT_GRAPHS = 32, FAULT_SLOTS = FAULT_RUNS + FAULT_GRAPHS };
enum { FAULT_NOTES = 1024, FAULT_STEPS = 1024, FAULT_ELEMENT_BITS = 48 };

/* FREED: the graph is gone, what its last launch has to say is not. */
typedef enum graph_slot { GRAPH_SLOT_FREE, GRAPH_SLOT_TAKEN, GRAPH_SLOT_FREED } graph_slot;

/* The slots of a stream, and what is to be said of the checks that use them. */
typedef struct fault_set {
    pthread_mutex_t lock;
    bool ready, stale; /* stale: other threads have left slots that say that a run has failed */
    cuda_block *block;
    fault_slot *shadow;      /* on the host, pinned */
    _Atomic int used;        /* slots that may say something */
    int next, nnotes, nopen; /* the next slot; notes; runs that have a slot now */
    fault_note notes[FAULT_NOTES];
    uint8_t graphs[FAULT_GRAPHS];     /* graph_slot */
    fault_note (*steps)[FAULT_STEPS]; /* per graph and step of its plan */
} fault_set;

/* The fields that stand for one check in a kernel's arguments, `struct etch_check` in its text. */
typedef struct fault_args {
    void *slot;
    uint64_t check; /* << FAULT_ELEMENT_BITS */
} fault_args;

/* Defines etch_check, fail(check, element, value), which may be called by any threads, and
 * failed(check), which says whether anything of the run has failed so far. */
extern const char *const etch__cuda_fault_text;

/* The steps of a run between the two share a slot; on this thread, for its stream. */
etch_status etch__cuda_checks_open(int device);
void etch__cuda_checks_close(void);
/* What the checks of this thread go to. */
typedef struct checks_run {
    cuda_stream *stream;
    fault_slot *slot;  /* on the device; NULL: none */
    int depth;         /* a kernel of the user may run another plan */
    bool noted;        /* a check was issued */
    bool inside;       /* of an operator's kernel: what it writes is its own */
    fault_note *steps; /* of a graph that is recorded; the step at hand */
    int graph, step;
} checks_run;
/* The calling thread's, which lies with its streams (stream.c). */
checks_run *etch__cuda_thread_checks(void);

/* A slot for a graph: of which stream, and its number. Between enter and leave the checks of the
 * steps that are recorded are this graph's. */
typedef struct graph_checks {
    cuda_stream *stream; /* NULL: it has none */
    cuda_stream *last;   /* that it was launched on */
    int number;
    checks_run outer;
} graph_checks;
etch_status etch__cuda_checks_reserve(cuda_stream *s, graph_checks *g);
void etch__cuda_checks_release(const graph_checks *g);
void etch__cuda_checks_enter(graph_checks *g);
void etch__cuda_checks_leave(const graph_checks *g);
void etch__cuda_checks_step(int step); /* that is recorded next */
/* From here on, until NULL, what the thread records is the user's graph with these checks. */
void etch__cuda_checks_record(graph_checks *g);
/* The graph is about to be launched on s, and was, or was not after all. */
etch_status etch__cuda_checks_launch(graph_checks *g, cuda_stream *s);
void etch__cuda_checks_launched(graph_checks *g);

/* The word that tells whether the run at hand has failed, NULL where none is open; whether
 * a check was issued in it. */
void *etch__cuda_checks_word(void);
bool etch__cuda_checks_noted(void);
/* Around an operator's kernel, whose copies to places of its own need not know of checks: what was
 * so before. */
bool etch__cuda_checks_inside(bool inside);

/* Says what a check is of that is about to be issued to s. */
etch_status etch__cuda_check(cuda_stream *s, const fault_note *note, fault_args *args);

/* Work was issued on the device: under ETCH_CUDA_BLOCKING waits for it, so
 * that errors appear at once. */
etch_status etch__cuda_issued(int device);
etch_status etch__cuda_issued_to(cuda_stream *s);
void etch__cuda_set_blocking(bool on);
/* What is known of it once the stream was waited for in another way, by an event. */
etch_status etch__cuda_finish_checks(cuda_stream *s);

#endif
