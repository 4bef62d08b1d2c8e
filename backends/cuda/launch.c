/* Launching kernels, and waiting: what was launched is noted, so that a fault can name it. */
#include "backends/cuda/stream.h"
#include "core/base/text.h"

void (*_Atomic etch__cuda_waited)(int index);

void etch__cuda_note(cuda_stream *s, const char *kernel) {
    uint64_t words[NAME / 8] = {0};
    memcpy(words, kernel, strnlen(kernel, NAME - 1));
    unsigned i = atomic_fetch_add_explicit(&s->nnotes, 1, memory_order_relaxed) % NOTES;
    for (int w = 0; w < NAME / 8; w++)
        atomic_store_explicit(&s->notes[i][w], words[w], memory_order_relaxed);
}

/* A name that its thread is writing just now may come as parts of two. */
static void read_note(const cuda_stream *s, unsigned i, char name[NAME]) {
    uint64_t words[NAME / 8];
    for (int w = 0; w < NAME / 8; w++)
        words[w] = atomic_load_explicit(&s->notes[i % NOTES][w], memory_order_relaxed);
    memcpy(name, words, NAME);
    name[NAME - 1] = 0;
}

static void list_notes(const cuda_stream *s, char *text, size_t room) {
    unsigned last = s->nnotes, n = last - s->waited;
    bounded_text t = {text, room, 0};
    text[0] = 0;
    for (unsigned i = 0; i < n && i < NOTES && t.n < room; i++) {
        char name[NAME];
        read_note(s, last - 1 - i, name);
        etch__text_add(&t, "%s%s", i ? ", " : "", name);
    }
}

etch_status etch__cuda_wait(cuda_stream *s) {
    unsigned noted = s->nnotes;
    int status = etch__cuda_stream_wait(s);
    if (unlikely(status)) {
        const char *name = NULL;
        char kernels[600];
        list_notes(s, kernels, sizeof kernels);
        etch__cuda.cuGetErrorName(status, &name);
        return etch__error(
            ETCH_ERR_DEVICE,
            "cuda:%d: cuStreamSynchronize: %s; launched since the last synchronisation, newest "
            "first: %s",
            s->device->index, name ? name : "error", kernels);
    }
    s->waited = noted;
    void (*told)(int) = etch__cuda_waited;
    if (unlikely(told)) told(s->device->index);
    return ETCH_OK;
}

/* 48 KiB and more are to be asked for. */
etch_status etch__cuda_allow_shared(cu_function f, unsigned bytes) {
    if (bytes < 48 << 10) return ETCH_OK;
    return CU(cuFuncSetAttribute, f, CU_FUNCTION_DYNAMIC_SHARED, (int)bytes);
}

etch_status etch__cuda_launch(cuda_stream *s, cu_function f, const char *name,
                              const unsigned grid[3], const unsigned block[3], unsigned shared,
                              void *parameter) {
    void *parameters[] = {parameter};
    etch__cuda_note(s, name);
    etch__cuda_counts(s->device->index)->launches++;
    return CU(cuLaunchKernel, f, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared,
              s->stream, parameters, NULL);
}
