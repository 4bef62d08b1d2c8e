/* See warm.h. */
#include "export/warm.h"

#include "core/dispatch/dispatch.h"
#include "core/tensor/device.h"

typedef struct warming {
    const program *p;
    etch_tensor *const *captured;
    etch_tensor **inputs;
    etch_storage **storages; /* per base of what is written or passed */
    etch_storage **produced;
    etch_scalar *scalars;
    uint8_t *written; /* per input */
} warming;

static bool calls_the_user(const program *p) {
    for (int i = 0; i < p->g->nnodes; i++)
        if (etch__op_is_users(p->g->nodes[i].op)) return true;
    return false;
}

static etch_storage *zeros(int device, size_t bytes) {
    etch_storage *host = etch__storage_new(bytes), *s = host;
    if (host) memset(host->data, 0, bytes);
    if (!host || !device) return host;
    s = etch__storage_new_on(device, bytes);
    if (s && bytes && etch__device_kind(device)->copy(s, 0, host, 0, bytes) != ETCH_OK)
        etch__storage_release(s), s = NULL;
    etch__storage_release(host);
    return s;
}

/* One storage for all inputs over a base. */
static etch_storage *storage_of(warming *w, int32_t base) {
    const graph *g = w->p->g;
    size_t most = 0;
    int64_t least, end;
    if (w->storages[base]) return w->storages[base];
    for (int v = base; v < g->ninputs; v++) {
        if (g->values[v].base != base) continue;
        if (!etch__program_extent(&g->values[v].meta, &least, &end)) return NULL;
        size_t bytes = (size_t)((end - least) * etch__element_bytes[g->values[v].meta.dtype]);
        if (bytes > most) most = bytes;
    }
    return w->storages[base] = zeros(g->values[base].meta.device, most);
}

static bool make_input(warming *w, int v) {
    const program *p = w->p;
    int first = etch__first_capture(p);
    int32_t base = p->g->values[v].base;
    if (v >= first && !w->written[v])
        return (w->inputs[v] = etch_retain(w->captured[v - first])) != NULL;
    tensor_meta m = p->g->values[v].meta;
    int64_t least, end;
    etch_storage *s = storage_of(w, base);
    if (!etch__program_extent(&m, &least, &end)) return false;
    m.offset = -least;
    w->inputs[v] = s ? etch__tensor_alloc() : NULL;
    if (w->inputs[v]) etch__lie_over(w->inputs[v], &m, s);
    return w->inputs[v] != NULL;
}

static void run(warming *w, plan *warmed) {
    const graph *g = w->p->g;
    plan_io io = {w->inputs, w->scalars, w->produced, NULL, false};
    if (g->nscalars) memcpy(w->scalars, w->p->scalars, (size_t)g->nscalars * sizeof *w->scalars);
    empty_frame frame = etch__push_frame();
    etch__frame_mode(&frame, (uint64_t)w->p->fp << 32);
    etch_status status = warmed->run(warmed, &io);
    etch__pop_frame(&frame);
    for (int k = 0; status == ETCH_OK && k < g->noutputs; k++)
        etch__storage_release(w->produced[k]);
}

void etch__warm_up(const program *p, plan *warmed, etch_tensor *const *captured) {
    KEEP_ERROR;
    if (calls_the_user(p)) return;
    size_t n = (size_t)p->g->ninputs;
    warming w = {.p = p, .captured = captured};
    void **room = etch__calloc(2 * n + (size_t)p->g->noutputs + 1, sizeof *room);
    w.scalars = etch__calloc((size_t)p->g->nscalars + 1, sizeof *w.scalars);
    w.written = etch__program_written(p);
    bool ok = room && w.scalars && w.written;
    w.inputs = (etch_tensor **)room;
    w.storages = (etch_storage **)(room + n), w.produced = (etch_storage **)(room + 2 * n);
    for (int v = 0; ok && v < p->g->ninputs; v++) ok = make_input(&w, v);
    if (ok) run(&w, warmed);
    for (size_t v = 0; room && v < n; v++) {
        etch_release(w.inputs[v]);
        if (w.storages[v]) etch__storage_release(w.storages[v]);
    }
    etch__free(w.scalars);
    etch__free(w.written);
    etch__free(room);
}
