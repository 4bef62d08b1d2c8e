/* See tune.h.
 *
 * Candidates take turns, a few rounds each, and the best round of each counts: what disturbs one
 * round disturbs all candidates alike. The first candidate is the one that would be used without
 * tuning, and another one must beat it clearly, so that noise does not move a choice.
 *
 * A kernel's layout is searched one property after another (threads, vector width, grid), each from
 * the best so far: the properties hardly depend on each other, and a candidate costs a compile. */
#include "core/base/locks.h"
#include "backends/cuda/tune.h"

#include <pthread.h>
#include <xxhash.h>

#include "backends/cuda/launcher.h"
#include "core/base/text.h"
#include "jit/store/cache.h"

enum { TUNE_REVISION = 2, KEY_MAX = 9216, HEAD_MAX = 256, KERNEL_BYTES = 8192 };

/* ---- kept choices: a bounded table in memory, blobs on disk ---- */

enum { SLOTS = 1024 };

static struct kept {
    XXH128_hash_t hash;
    size_t size; /* 0: empty */
    uint8_t choice[CHOICE_MAX];
} table[SLOTS];

/* The device as far as speed depends on it, the versions, then the caller's key; n = 0: too
 * long. */
static blob_key full_key(const cuda_device *d, const void *key, size_t n, uint8_t *full) {
    int compiler = etch__cuda_compiler_text((char *)full, HEAD_MAX);
    int head = compiler + snprintf((char *)full + compiler, (size_t)(HEAD_MAX - compiler),
                                   "etch %s tune %d %s sm_%d%d x %d", ETCH_VERSION_STRING,
                                   TUNE_REVISION, d->name, d->major, d->minor, d->multiprocessors);
    if (head >= HEAD_MAX || n > KEY_MAX - HEAD_MAX) return (blob_key){full, 0, 0};
    memcpy(full + head + 1, key, n);
    return (blob_key){full, (size_t)head + 1 + n, (size_t)compiler};
}

static bool find_in_memory(XXH128_hash_t hash, void *choice, size_t size) {
    const struct kept *k = &table[hash.low64 % SLOTS];
    etch__lock(LOCK_CUDA_TUNING);
    bool found = k->size == size && XXH128_isEqual(k->hash, hash);
    if (found) memcpy(choice, k->choice, size);
    etch__unlock(LOCK_CUDA_TUNING);
    return found;
}

static void keep_in_memory(XXH128_hash_t hash, const void *choice, size_t size) {
    struct kept *k = &table[hash.low64 % SLOTS];
    etch__lock(LOCK_CUDA_TUNING);
    k->hash = hash, k->size = size;
    memcpy(k->choice, choice, size);
    etch__unlock(LOCK_CUDA_TUNING);
}

bool etch__cuda_choice_find(const cuda_device *d, const void *key, size_t n, void *choice,
                            size_t size) {
    uint8_t full[KEY_MAX];
    size_t bytes = 0;
    blob_key whole = full_key(d, key, n, full);
    if (!whole.n || size > CHOICE_MAX) return false;
    XXH128_hash_t hash = XXH3_128bits(full, whole.n);
    if (find_in_memory(hash, choice, size)) return true;
    void *blob = etch__cache_load_blob(whole, &bytes);
    bool found = blob && bytes == size;
    if (found) {
        memcpy(choice, blob, size);
        keep_in_memory(hash, choice, size);
    }
    etch__free(blob);
    return found;
}

void etch__cuda_choice_keep(const cuda_device *d, const void *key, size_t n, const void *choice,
                            size_t size) {
    uint8_t full[KEY_MAX];
    blob_key whole = full_key(d, key, n, full);
    if (!whole.n || size > CHOICE_MAX) return;
    keep_in_memory(XXH3_128bits(full, whole.n), choice, size);
    etch__cache_store_blob(whole, choice, size);
}

/* ---- timing ---- */

enum { ROUNDS = 5, CANDIDATES = 16, REPEATS_MAX = 64 };
static const float round_ms = 0.5f, /* about as long is a round, unless one launch takes longer */
    patience_ms = 100,              /* and all rounds of a candidate together */
    clearly = 0.98f;

typedef struct timer {
    cu_stream stream;
    cu_event start, end;
} timer;

static etch_status time_one(const timer *t, const tune_set *set, int i, int repeats, float *ms) {
    etch_status s = CU(cuEventRecord, t->start, t->stream);
    for (int r = 0; s == ETCH_OK && r < repeats; r++) s = set->issue(set->ctx, i);
    if (s == ETCH_OK) s = CU(cuEventRecord, t->end, t->stream);
    if (s == ETCH_OK) s = CU(cuEventSynchronize, t->end);
    if (s == ETCH_OK) s = CU(cuEventElapsedTime, ms, t->start, t->end);
    *ms /= (float)repeats;
    return s;
}

/* Each once to warm up, then the first to see how long it takes. */
static etch_status warm_up(const timer *t, const tune_set *set, int *repeats, int *rounds) {
    float ms = 0;
    etch_status s = ETCH_OK;
    for (int i = set->n; s == ETCH_OK && i-- > 0;) s = set->issue(set->ctx, i);
    if (s == ETCH_OK) s = time_one(t, set, 0, 1, &ms);
    *rounds = ms * ROUNDS <= patience_ms ? ROUNDS : ms >= patience_ms ? 1 : (int)(patience_ms / ms);
    *repeats = ms * REPEATS_MAX < round_ms ? REPEATS_MAX
               : ms >= round_ms            ? 1
                                           : (int)(round_ms / ms);
    return s;
}

static etch_status time_all(const timer *t, const tune_set *set, float *best) {
    int repeats = 1, rounds = 1;
    etch_status s = warm_up(t, set, &repeats, &rounds);
    for (int round = 0; s == ETCH_OK && round < rounds; round++)
        for (int i = 0; s == ETCH_OK && i < set->n; i++) {
            float ms = 0;
            s = time_one(t, set, i, repeats, &ms);
            if (round == 0 || ms < best[i]) best[i] = ms;
        }
    return s;
}

static void log_times(const tune_set *set, const float *best, int chosen) {
    char line[1024], what[96];
    bounded_text t = {line, sizeof line, 0};
    etch__text_add(&t, "%s:", set->name);
    for (int i = 0; i < set->n; i++) {
        set->describe(set->ctx, i, what, sizeof what);
        etch__text_add(&t, "%s %s %.2f us%s", i ? "," : "", what, (double)best[i] * 1e3,
                       i == chosen ? " (chosen)" : "");
    }
    etch__log(LOG_AUTOTUNE, "%s", line);
}

static int choose(const tune_set *set, const float *best) {
    int chosen = 0;
    for (int i = 1; i < set->n; i++)
        if (best[i] < best[chosen]) chosen = i;
    if (chosen && best[chosen] >= clearly * best[0]) chosen = 0;
    if (etch__log_on(LOG_AUTOTUNE)) log_times(set, best, chosen);
    return chosen;
}

int etch__cuda_fastest(cuda_stream *s, const tune_set *set) {
    timer t = {.stream = etch__cuda_stream_handle(s)};
    float best[CANDIDATES] = {0};
    if (set->n < 2) return 0;
    KEEP_ERROR;
    etch_status status = set->n > CANDIDATES ? ETCH_ERR_INTERNAL : ETCH_OK;
    if (status == ETCH_OK) status = CU(cuEventCreate, &t.start, 0);
    if (status == ETCH_OK) status = CU(cuEventCreate, &t.end, 0);
    if (status == ETCH_OK) status = time_all(&t, set, best);
    if (status == ETCH_OK) etch__counters.candidates_timed += set->n;
    else etch__log(LOG_AUTOTUNE, "%s: not tuned: %s", set->name, etch_last_error());
    int chosen = status == ETCH_OK ? choose(set, best) : -1;
    if (t.start) etch__cuda.cuEventDestroy_v2(t.start);
    if (t.end) etch__cuda.cuEventDestroy_v2(t.end);
    return chosen;
}

bool etch__cuda_can_time(cuda_stream *s) {
    int capturing = 1;
    return !etch__cuda.cuStreamIsCapturing(etch__cuda_stream_handle(s), &capturing) && !capturing;
}

/* ---- layouts: keys, checks ---- */

/* The kernel, the variant that it would have, the class of each extent. */
static size_t layout_key(const loop_kernel *k, const int64_t *dims, const cuda_variant *first,
                         uint8_t *key) {
    size_t n = etch__loop_serialise(k, key, KERNEL_BYTES);
    if (n > KERNEL_BYTES) return 0;
    memcpy(key + n, first, sizeof *first);
    n += sizeof *first;
    for (int x = 0; x < k->npar + k->nred; x++) key[n++] = etch__cuda_size_class(dims[x]);
    return n;
}

enum { KERNEL_KEY = KERNEL_BYTES + sizeof(cuda_variant) + LOOP_MAX_AXES };

/* What a kept choice may change of the variant. */
static bool allowed(const cuda_variant *first, const tuned_layout *l) {
    const cuda_variant *v = &l->variant;
    return v->index_bits == first->index_bits && v->tile <= 5 && v->vector <= first->vector &&
           v->vector && !(v->vector & (v->vector - 1));
}

cuda_shape etch__cuda_tuned_shape(const loop_kernel *k, const tuned_layout *l,
                                  const int64_t *dims) {
    cuda_shape shape = etch__cuda_shape(k, &l->variant, dims);
    if (l->blocks && shape.grid[0] > l->blocks) shape.grid[0] = l->blocks;
    return shape;
}

/* ---- layouts: the search ---- */

typedef struct layout_form {
    tuned_layout layout;
    cuda_shape shape;
    cuda_code *code;
} layout_form;

typedef struct layout_search {
    cuda_stream *s;
    const loop_kernel *k;
    const int64_t *dims;
    int n;
    layout_form form[CANDIDATES]; /* the first is the best so far */
    cuda_block *scratch[LOOP_MAX_ACCESSES];
    uint64_t parameter[PARAMETER_MAX / 8];
} layout_search;

static etch_status issue_layout(void *ctx, int i) {
    layout_search *q = ctx;
    layout_form *f = &q->form[i];
    return etch__cuda_launch(q->s, etch__cuda_function(f->code), q->k->name, f->shape.grid,
                             f->shape.block, f->shape.shared, q->parameter);
}

static void put_layout(const cuda_shape *shape, const cuda_variant *v, char *text, size_t room) {
    snprintf(text, room, "%u x %u threads by %d", shape->grid[0], shape->block[0], v->vector);
}

static void describe_layout(void *ctx, int i, char *text, size_t room) {
    const layout_form *f = &((layout_search *)ctx)->form[i];
    put_layout(&f->shape, &f->layout.variant, text, room);
}

/* One more candidate, unless it is as one that is there; false: its code cannot be had. */
static bool add_layout(layout_search *q, const tuned_layout *l) {
    const char *why = "";
    layout_form f = {*l, etch__cuda_tuned_shape(q->k, l, q->dims), NULL};
    for (int i = 0; i < q->n; i++)
        if (!memcmp(&q->form[i].layout.variant, &l->variant, sizeof l->variant) &&
            !memcmp(&q->form[i].shape, &f.shape, sizeof f.shape))
            return true;
    cuda_device *d = etch__cuda_stream_device(q->s);
    f.code = etch__cuda_kernel_code(d, q->k, &f.layout.variant, &why);
    f.shape = etch__cuda_tuned_shape(q->k, &f.layout, q->dims);
    if (!f.code) {
        etch__log(LOG_AUTOTUNE, "%s: not tuned: %s", q->k->name, why);
        return false;
    }
    q->form[q->n++] = f;
    return true;
}

static void drop_layouts(layout_search *q, int from) {
    while (q->n > from) etch__cuda_code_release(q->form[--q->n].code);
}

/* Leaves the best of the candidates as the only one. */
static bool settle(layout_search *q) {
    const tune_set set = {q->k->name, q->n, q, issue_layout, describe_layout};
    int best = etch__cuda_fastest(q->s, &set);
    if (best > 0) {
        layout_form f = q->form[0];
        q->form[0] = q->form[best], q->form[best] = f;
    }
    drop_layouts(q, 1);
    return best >= 0;
}

static bool try_tiles(layout_search *q) {
    tuned_layout l = q->form[0].layout;
    for (int tile = q->k->variant == LOOP_COLUMN ? 3 : 1; tile <= 5; tile++) {
        l.variant.tile = (uint8_t)tile;
        etch__cuda_fit_rows(q->k, &l.variant, q->dims);
        if (!add_layout(q, &l)) return false;
    }
    return settle(q);
}

static bool try_vectors(layout_search *q) {
    tuned_layout l = q->form[0].layout;
    while (l.variant.vector > 1) {
        l.variant.vector /= 2;
        etch__cuda_fit_rows(q->k, &l.variant, q->dims);
        if (!add_layout(q, &l)) return false;
    }
    return settle(q);
}

/* Fewer blocks, each with more to do; the code is the same. */
static bool try_grids(layout_search *q) {
    static const uint32_t waves[] = {4, 16};
    tuned_layout l = q->form[0].layout;
    for (int i = 0; i < COUNT_OF(waves); i++) {
        l.blocks = waves[i] * (uint32_t)etch__cuda_stream_device(q->s)->multiprocessors;
        if (!add_layout(q, &l)) return false;
    }
    return settle(q);
}

/* ---- layouts: arguments that may be written again and again ---- */

typedef struct range {
    int64_t low, high; /* bytes from the address of element [0, ..., 0] */
} range;

static range reach(const layout_search *q, int a) {
    int naxes = q->k->npar + q->k->nred;
    int64_t size = (int64_t)etch_dtype_size(q->k->access[a].dtype);
    range r = {0, size};
    for (int x = 0; x < naxes; x++) {
        int64_t step = q->dims[naxes * (a + 1) + x] * (q->dims[x] - 1) * size;
        if (q->k->access[a].step[x] == STEP_ZERO) continue;
        *(step < 0 ? &r.low : &r.high) += step;
    }
    return r;
}

/* Whether memory that access a writes is read by another one. */
static bool is_read(const layout_search *q, void *const *args, int a) {
    range w = reach(q, a);
    const char *to = args[a];
    for (int b = 0; b < q->k->naccesses; b++) {
        if (q->k->access[b].store) continue;
        range r = reach(q, b);
        const char *from = args[b];
        if (from + r.low < to + w.high && to + w.low < from + r.high) return true;
    }
    return false;
}

/* What a launch reads and writes would have other contents at the next one: such results go to
 * memory of their own, equally aligned. */
static bool place_arguments(layout_search *q, void *const *args, const uint64_t *cells) {
    void *at[LOOP_MAX_ACCESSES + 1];
    memcpy(at, args, ((size_t)q->k->naccesses + 1) * sizeof *at);
    for (int a = 0; a < q->k->naccesses; a++) {
        if (!q->k->access[a].store || !is_read(q, args, a)) continue;
        range w = reach(q, a);
        int64_t lead = ((-w.low + 255) & ~(int64_t)255) + (int64_t)((uintptr_t)args[a] & 255);
        q->scratch[a] = etch__cuda_allocate(q->s, (size_t)(lead + w.high));
        if (!q->scratch[a]) {
            etch__log(LOG_AUTOTUNE, "%s: not tuned: %s", q->k->name, etch_last_error());
            return false;
        }
        at[a] = (char *)etch__cuda_address(q->scratch[a]) + lead;
    }
    etch__cuda_args_fill(q->k, at, q->dims, cells, q->parameter);
    return true;
}

/* ---- layouts: the whole ---- */

bool etch__cuda_layout_find(const cuda_device *d, const loop_kernel *k, const int64_t *dims,
                            const cuda_variant *first, tuned_layout *out) {
    uint8_t key[KERNEL_KEY];
    size_t n = layout_key(k, dims, first, key);
    if (!n || !etch__cuda_choice_find(d, key, n, out, sizeof *out) || !allowed(first, out))
        return false;
    etch__cuda_fit_rows(k, &out->variant, dims); /* other sizes of the class may need another */
    if (etch__log_on(LOG_AUTOTUNE)) {
        cuda_shape shape = etch__cuda_tuned_shape(k, out, dims);
        char what[96];
        put_layout(&shape, &out->variant, what, sizeof what);
        etch__log(LOG_AUTOTUNE, "%s: %s, as chosen before", k->name, what);
    }
    return true;
}

static bool search(layout_search *q, const cuda_variant *first, void *const *args,
                   const uint64_t *cells) {
    const tuned_layout start = {.variant = *first};
    return place_arguments(q, args, cells) && add_layout(q, &start) && try_tiles(q) &&
           try_vectors(q) && try_grids(q);
}

/* A kernel that folds partial results changes them, and has little to do. */
static bool worth_it(const loop_kernel *k) { return k->split != SPLIT_FINISH; }

bool etch__cuda_layout_tune(cuda_stream *s, const loop_kernel *k, const int64_t *dims,
                            const cuda_variant *first, void *const *args, const uint64_t *cells,
                            tuned_layout *out) {
    uint8_t key[KERNEL_KEY];
    size_t n = layout_key(k, dims, first, key);
    saved_error before;
    layout_search *q = worth_it(k) && n ? etch__quiet_malloc(sizeof *q) : NULL;
    if (!q) return false;
    q->s = s, q->k = k, q->dims = dims, q->n = 0;
    memset(q->scratch, 0, sizeof q->scratch);
    etch__error_save(&before);
    bool found = search(q, first, args, cells);
    etch__error_restore(&before);
    if (found) {
        *out = q->form[0].layout;
        etch__cuda_choice_keep(etch__cuda_stream_device(s), key, n, out, sizeof *out);
    }
    drop_layouts(q, 0);
    for (int a = 0; a < k->naccesses; a++) etch__cuda_free(q->scratch[a]);
    etch__free(q);
    return found;
}
