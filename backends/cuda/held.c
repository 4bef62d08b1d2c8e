/* Recording what a thread issues as a graph: begin, end, and what the graph then holds. */
#include "backends/cuda/code.h"
#include "backends/cuda/pinned.h"
#include "backends/cuda/stream.h"

static __thread int captured_device;

etch_status etch__cuda_capture_begin(cuda_stream *s, cuda_held *held) {
    etch_status status = etch__cuda_stream_record(s);
    if (status == ETCH_OK)
        etch__cuda_held = held, captured_device = etch__cuda_stream_device(s)->index;
    return status;
}

etch_status etch__cuda_capture_end(cuda_stream *s, cu_graph *graph) {
    bool failed = etch__cuda_held && etch__cuda_held->failed;
    etch__cuda_held = NULL;
    etch_status status = etch__cuda_stream_recorded(s, graph);
    if (!failed || status != ETCH_OK) return status;
    etch__cuda.cuGraphDestroy(*graph);
    *graph = NULL;
    return ETCH_ERR_OUT_OF_MEMORY;
}

etch_status etch__cuda_may_issue(int index, const char *what, const void *site) {
    if (likely(!etch__cuda_held || index == captured_device)) return ETCH_OK;
    return etch__error_at(site, ETCH_ERR_UNSUPPORTED,
                          "%s: expected work on cuda:%d, of which a graph is being recorded, got "
                          "cuda:%d, which would not be part of it",
                          what, captured_device, index);
}

void etch__cuda_let_go(cuda_held *held) {
    etch__cuda_free_list(held->blocks);
    for (int64_t i = 0; i < held->ncodes; i++) etch__cuda_code_release(held->codes[i]);
    etch__free(held->codes);
    *held = (cuda_held){0};
}

/* The copies of a pinned storage are those issued to s from now on. */
static etch_status mark_pinned(cuda_stream *s, etch_storage *storage) {
    etch_status status = etch__cuda_pinned_begin(s, storage);
    return status == ETCH_OK ? etch__cuda_pinned_end(s, storage, ETCH_OK) : status;
}

etch_status etch__cuda_use_all(cuda_stream *s, const storage_list *list) {
    etch_status status = etch__cuda_used_all(s, list);
    return status == ETCH_OK ? etch__cuda_use_blocks(s, list) : status;
}

etch_status etch__cuda_used_all(cuda_stream *s, const storage_list *list) {
    etch_status status = ETCH_OK;
    for (int64_t i = 0; status == ETCH_OK && i < list->n; i++)
        if (list->at[i]->pinned) status = mark_pinned(s, list->at[i]);
    return status;
}
