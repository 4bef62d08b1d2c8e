/* Writing a file. A captured tensor that lies row-major in memory of its own is stored as it is; of
 * others (views, tensors that share a storage) the part of the storage that they span is stored,
 * once, as a list of elements, and each says where in it it lies. */
#include <etch/device.h>
#include <sys/stat.h>

#include "core/base/text.h"
#include "core/dispatch/dispatch.h"
#include "core/tensor/device.h"
#include "export/file.h"
#include "export/hash.h"

void etch__exported_free(exported *e) {
    for (int i = 0; e->p && e->captured && i < e->p->ncaptures; i++) etch_release(e->captured[i]);
    etch__free(e->captured);
    etch__program_free(e->p);
    etch__pack_free(e->pack);
    *e = (exported){0};
}

typedef struct writing {
    const exported *e;
    etch_named_tensor *tensors;
    etch_named_text *texts;
    int ntensors, ntexts;
    char (*keys)[32]; /* the names of the texts of captures */
} writing;

/* ---- captured tensors ---- */

static bool shares(const exported *e, int i, int k) {
    return e->captured[i]->storage == e->captured[k]->storage;
}

/* Bytes of the storage that the tensors over it span, from a multiple of the widest element on; and
 * the dtype, if it is one. */
typedef struct span {
    size_t from, end;
    etch_dtype dtype;
    int n;
} span;

static span span_of(const exported *e, int i) {
    span s = {SIZE_MAX, 0, e->captured[i]->dtype, 0};
    for (int k = 0; k < e->p->ncaptures; k++) {
        size_t from, bytes;
        if (!shares(e, i, k)) continue;
        s.n++;
        if (e->captured[k]->dtype != s.dtype) s.dtype = ETCH_U8;
        if (!e->captured[k]->numel) continue;
        etch__span(e->captured[k], &from, &bytes);
        if (from < s.from) s.from = from;
        if (from + bytes > s.end) s.end = from + bytes;
    }
    if (s.from == SIZE_MAX) s.from = 0;
    if (s.dtype == ETCH_U8) s.from &= ~(size_t)7;
    return s;
}

static bool stands_alone(const etch_tensor *t, const span *s) { return s->n == 1 && t->contiguous; }

static etch_tensor *over_span(const etch_tensor *t, const span *s) {
    int64_t item = etch__element_bytes[s->dtype];
    tensor_meta m = {.dtype = (uint8_t)s->dtype,
                     .ndim = 1,
                     .device = t->device,
                     .offset = (int64_t)s->from / item,
                     .size = {(int64_t)(s->end - s->from) / item},
                     .stride = {1}};
    etch_tensor *list = etch__tensor_alloc();
    if (!list) return NULL;
    etch__lie_over(list, &m, t->storage);
    if (etch__scope_push(list)) return list;
    etch__tensor_destroy(list);
    return NULL;
}

static int first_over(const exported *e, int i) {
    int first = 0;
    while (!shares(e, first, i)) first++;
    return first;
}

/* The tensor that is stored for capture i, the first over its storage; and where all lie in it. */
static bool store(writing *w, int i) {
    etch_tensor *t = w->e->captured[i];
    span s = span_of(w->e, i);
    bool alone = stands_alone(t, &s);
    etch_tensor *stored = alone ? t : over_span(t, &s);
    if (stored && stored->device) stored = etch_to_device(stored, ETCH_CPU);
    if (!stored) return false;
    w->tensors[w->ntensors++] = (etch_named_tensor){w->e->p->captures[i].name, stored};
    for (int k = i; k < w->e->p->ncaptures; k++) {
        if (!shares(w->e, i, k)) continue;
        const etch_tensor *c = w->e->captured[k];
        int64_t from = (int64_t)s.from / etch__item_size(c);
        w->e->p->captures[k].offset = alone || !c->numel ? 0 : c->offset - from;
    }
    return true;
}

static bool store_captures(writing *w) {
    for (int i = 0; i < w->e->p->ncaptures; i++)
        if (first_over(w->e, i) == i && !store(w, i)) return false;
    return true;
}

/* ---- the file ---- */

static void put_text(writing *w, const char *name, const char *text) {
    w->texts[w->ntexts++] = (etch_named_text){name, text};
}

static void put_places(writing *w) {
    for (int i = 0; i < w->e->p->ncaptures; i++) {
        snprintf(w->keys[i], sizeof w->keys[i], FILE_CAPTURE ".%d", i);
        put_text(w, w->keys[i], w->e->p->captures[first_over(w->e, i)].name);
    }
}

static bool store_pack(writing *w) {
    size_t n;
    uint8_t *bytes = etch__pack_bytes(w->e->pack, &n);
    etch_tensor *t = NULL;
    ETCH_ON(ETCH_CPU) { t = bytes ? etch_from_host(bytes, ETCH_U8, ETCH_SHAPE((int64_t)n)) : NULL; }
    etch__free(bytes);
    w->tensors[w->ntensors++] = (etch_named_tensor){FILE_CODE, t};
    return t != NULL;
}

/* Machine code of a file that others may write is not loaded, so nobody else may. */
static void close_to_others(const char *path) {
    struct stat s;
    if (stat(path, &s) == 0 && s.st_mode & 022) (void)!chmod(path, s.st_mode & 0755);
}

static etch_status put_together(writing *w, const char *path, const char *graph_text) {
    char hash[HASH_TEXT], version[16];
    char *rest = store_captures(w) ? etch__program_text(w->e->p) : NULL;
    snprintf(version, sizeof version, "%d", FILE_VERSION);
    put_text(w, FILE_FORMAT, version);
    put_text(w, FILE_GRAPH, graph_text);
    put_text(w, FILE_PROGRAM, rest);
    if (w->e->pack) put_text(w, FILE_IDENTITY, w->e->identity);
    put_places(w);
    bool ok = rest && (!w->e->pack || store_pack(w)) &&
              etch__content_hash(w->texts, w->ntexts, w->tensors, w->ntensors, hash);
    put_text(w, FILE_HASH, hash);
    etch_status status =
        ok ? etch_safetensors_save(path, w->tensors, w->ntensors, w->texts, w->ntexts)
           : etch__tls.status;
    if (status == ETCH_OK) close_to_others(path);
    etch__free(rest);
    return status;
}

etch_status etch__file_save(const char *path, const exported *e) {
    size_t n = (size_t)e->p->ncaptures;
    writing w = {.e = e};
    char *graph_text = etch__graph_text(e->p->g);
    w.tensors = etch__calloc(n + 1, sizeof *w.tensors);
    w.texts = etch__calloc(n + 6, sizeof *w.texts);
    w.keys = etch__calloc(n + 1, sizeof *w.keys);
    etch_status status = ETCH_ERR_OUT_OF_MEMORY;
    if (graph_text && w.tensors && w.texts && w.keys)
        ETCH_SCOPE
            status = put_together(&w, path, graph_text);
    etch__free(graph_text);
    etch__free(w.tensors);
    etch__free(w.texts);
    etch__free(w.keys);
    return status;
}
