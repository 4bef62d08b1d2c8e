/* Kernels in memory, and the way to one: table, disk, helper.
 *
 * A kernel lives as long as somebody holds a count of it: the table holds one, so an evicted kernel
 * goes with the last plan that uses it. */
#include <dlfcn.h>
#include <xxhash.h>

#include "core/dispatch/dispatch.h"
#include "core/base/start.h"
#include "core/base/lru.h"
#include "core/observe/report.h"
#include "jit/store/cache.h"
#include "jit/loop/loop.h"

enum { KERNELS_MAX = 1024, BYTES_MAX = 8192 };

struct loaded_kernel {
    lru_entry entry; /* under the serialised kernel */
    cache_object object;
};

static lru kernels;

loop_fn etch__kernel_entry(const loaded_kernel *k) {
    loop_fn fn;
    memcpy(&fn, &k->object.entry, sizeof fn);
    return fn;
}

static void unload(lru_entry *e) {
    loaded_kernel *k = (loaded_kernel *)e;
    if (k->object.handle) dlclose(k->object.handle);
}

void etch__kernel_release(loaded_kernel *k) { etch__lru_release(&kernels, (lru_entry *)k); }
void etch__kernels_forget(void) { etch__lru_forget(&kernels); }

void etch__start_kernels(void) { etch__lru_init(&kernels, KERNELS_MAX, unload); }

/* ---- finding or making ---- */

/* One distinct kernel that is wanted. */
typedef struct want {
    const loop_kernel *k;
    loaded_kernel *made; /* with one count, once it is there */
    uint8_t *bytes;
    size_t n;
    uint64_t hash;
    char symbol[LOOP_SYMBOL_MAX];
} want;

static loaded_kernel *new_kernel(const want *w) {
    return (loaded_kernel *)etch__lru_new(sizeof(loaded_kernel), w->hash, w->bytes, w->n);
}

static bool adopt(want *w, loaded_kernel *k, const cache_object *object) {
    k->object = *object;
    w->made = (loaded_kernel *)etch__lru_publish(&kernels, &k->entry);
    return true;
}

static bool describe(want *w, const loop_kernel *k) {
    if (!etch__loop_valid(k, NULL)) {
        const char *fault = "?";
        etch__loop_valid(k, &fault);
        etch__why("kernel %.48s is not valid: %s", k->name, fault);
        return false;
    }
    w->k = k;
    w->n = etch__loop_serialise(k, NULL, 0);
    w->bytes = etch__malloc(w->n);
    if (!w->bytes || w->n > BYTES_MAX) return false;
    etch__loop_serialise(k, w->bytes, w->n);
    w->hash = XXH3_64bits(w->bytes, w->n);
    etch__loop_symbol(k, w->symbol);
    if (!etch__pack_collects()) /* which wants the bytes of the code */
        w->made = (loaded_kernel *)etch__lru_find(&kernels, w->hash, w->bytes, w->n);
    return true;
}

static bool from_pack(want *w, code_pack *given) {
    cache_object object;
    const char *why = "it is not among the code of the file";
    const pack_entry *e = etch__pack_find(given, PACK_KERNEL, w->bytes, w->n);
    loaded_kernel *k = e ? new_kernel(w) : NULL;
    if (k && etch__cache_load_given(e, &object, &why)) {
        etch__log(LOG_CACHE, "%s: loaded from an imported file", w->symbol);
        if (etch__report_on()) etch__report_kernel_made(w->hash, w->n, false, 0, NULL);
        return adopt(w, k, &object);
    }
    if (k) etch__kernel_release(k);
    etch__why("%s: %s", w->symbol, why);
    return false;
}

static bool from_disk(want *w, const cache_dir *dir) {
    cache_object object;
    loaded_kernel *k = new_kernel(w);
    if (!k) return false;
    if (!etch__cache_load(dir, w->bytes, w->n, &object)) return etch__kernel_release(k), false;
    etch__counters.cache_hits++;
    etch__log(LOG_CACHE, "%s (%016llx): loaded from the disk cache", w->symbol,
              (unsigned long long)w->hash);
    if (etch__report_on()) etch__report_kernel_made(w->hash, w->n, false, 0, NULL);
    return adopt(w, k, &object);
}

static bool from_job(want *w, const cache_dir *dir, jit_job *job) {
    cache_object object;
    loaded_kernel *k = new_kernel(w);
    if (!k) return false;
    if (!etch__cache_publish(dir, job, &object)) {
        etch__why("%s: %s", w->symbol, job->message);
        return etch__kernel_release(k), false;
    }
    etch__counters.kernels_compiled++;
    etch__log(LOG_CACHE, "%s (%016llx): compiled in %.1f ms", w->symbol,
              (unsigned long long)w->hash, job->ms);
    if (job->dump) etch__log(LOG_OUTPUT_CODE, "%s, as libgccjit has it:\n%s", w->symbol, job->dump);
    if (etch__report_on()) etch__report_kernel_made(w->hash, w->n, true, job->ms, job->dump);
    return adopt(w, k, &object);
}

static void note_failure(const want *w, const jit_job *job) {
    etch__log(LOG_CACHE, "compile failed: %s", etch__why("%s: %s", w->symbol, job->message));
}

/* Compiles what is still missing. */
static bool compile(want *wants, int n, const cache_dir *dir) {
    jit_job *jobs = etch__calloc((size_t)n, sizeof *jobs);
    int njobs = 0, at = 0;
    if (!jobs) return false;
    for (int i = 0; i < n; i++)
        if (!wants[i].made)
            jobs[njobs++] =
                (jit_job){.kernel = wants[i].bytes,
                          .kernel_bytes = wants[i].n,
                          .symbol = wants[i].symbol,
                          .want_dump = etch__log_on(LOG_OUTPUT_CODE) || etch__report_on()};
    bool ok = !njobs || etch__jit_compile(jobs, njobs, dir->path, dir->disk), told = false;
    for (int i = 0; i < n; i++) {
        if (wants[i].made) continue;
        jit_job *job = &jobs[at++];
        if (job->ok) ok &= from_job(&wants[i], dir, job);
        else if (!told) note_failure(&wants[i], job), told = true;
        etch__free(job->dump);
    }
    etch__free(jobs);
    return ok;
}

/* Indices of `k` to indices of distinct kernels. */
static bool collect(const loop_kernel *const *k, int n, want *wants, int *number, int *distinct) {
    *distinct = 0;
    for (int i = 0; i < n; i++) {
        want *w = &wants[*distinct];
        bool ok = describe(w, k[i]);
        ++*distinct;
        if (!ok) return false;
        number[i] = *distinct - 1;
        for (int j = 0; j < *distinct - 1; j++)
            if (wants[j].n == w->n && memcmp(wants[j].bytes, w->bytes, w->n) == 0) number[i] = j;
        if (number[i] == *distinct - 1) continue;
        etch__kernel_release(w->made), etch__free(w->bytes);
        memset(w, 0, sizeof *w);
        --*distinct;
    }
    return true;
}

static void show(const want *w) {
    if (!etch__log_on(LOG_OUTPUT_CODE) && !etch__report_on()) return;
    char *text = etch__loop_text(w->k);
    if (text) etch__log(LOG_OUTPUT_CODE, "%s", text);
    if (etch__report_on()) etch__report_kernel(w->hash, w->n, w->symbol, text);
    etch__free(text);
}

/* What a pack lacks is made by nobody: there may be no compiler. */
static bool complete_from(code_pack *given, want *wants, int n) {
    bool ok = true;
    for (int i = 0; ok && i < n; i++) ok = wants[i].made || from_pack(&wants[i], given);
    return ok;
}

static bool complete(want *wants, int n) {
    cache_dir dir;
    bool ok = true, missing = false;
    for (int i = 0; i < n; i++) missing |= !wants[i].made;
    if (!missing) return true;
    if (etch__pack_given()) return complete_from(etch__pack_given(), wants, n);
    if (!etch__cache_open(&dir)) {
        etch__tls.why = "no folder for compiled code";
        return false;
    }
    for (int i = 0; i < n; i++)
        if (!wants[i].made) from_disk(&wants[i], &dir);
    ok = compile(wants, n, &dir);
    etch__cache_close(&dir);
    return ok;
}

#ifdef ETCH_HAVE_GCCJIT
static const bool have_jit = true;
#else
static const bool have_jit = false;
#endif

bool etch__kernels_get(const loop_kernel *const *k, int n, loaded_kernel **out, const char **why) {
    bool can = have_jit || etch__pack_given();
    want *wants = can && n > 0 ? etch__calloc((size_t)n, sizeof *wants) : NULL;
    int *number = wants ? etch__calloc((size_t)n, sizeof *number) : NULL, distinct = 0;
    saved_error before; /* what fails beside the way (the cache's bound) is nobody's error */
    etch__error_save(&before);
    for (int i = 0; i < n; i++) out[i] = NULL;
    etch__tls.why = can ? "out of memory" : "this build has no libgccjit";
    bool ok = number && collect(k, n, wants, number, &distinct);
    for (int i = 0; ok && i < distinct; i++) show(&wants[i]);
    ok = ok && complete(wants, distinct);
    for (int i = 0; ok && i < n; i++) {
        out[i] = wants[number[i]].made;
        atomic_fetch_add(&out[i]->entry.refs, 1);
        if (etch__report_on())
            etch__report_kernel_step(i, wants[number[i]].hash, wants[number[i]].n);
    }
    if (ok) etch__counters.kernels += n;
    if (ok) etch__error_restore(&before);
    for (int i = 0; i < distinct; i++)
        etch__kernel_release(wants[i].made), etch__free(wants[i].bytes);
    etch__free(number), etch__free(wants);
    if (!ok && why) *why = etch__tls.why;
    return ok || n == 0;
}
