/* See code.h. A piece of code lives as long as somebody holds a count of it: the table of those in
 * memory holds one. */
#include "core/base/locks.h"
#include "core/base/start.h"
#include "backends/cuda/code.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <xxhash.h>

#include "core/base/lru.h"
#include "core/base/stack.h"
#include "jit/store/cache.h"

enum { CODES_MAX = 2048, KEY_MAX = 12288, CODE_REVISION = 9 };
enum { HELPERS_MAX = 16 };

struct cuda_code {
    lru_entry entry;
    cuda_device *device;
    cu_module module;
    cu_function function;
};

static lru codes;
static __thread bool looking; /* this thread compiles nothing now */

static void unload(lru_entry *e) {
    cuda_code *c = (cuda_code *)e;
    KEEP_ERROR;
    if (c->module && etch__cuda_enter(c->device->index)) etch__cuda.cuModuleUnload(c->module);
}

void etch__cuda_code_retain(cuda_code *c) { atomic_fetch_add(&c->entry.refs, 1); }
void etch__cuda_code_release(cuda_code *c) { etch__lru_release(&codes, (lru_entry *)c); }

/* Those that were held last are not held again. */
static void hold_code(cuda_held *h, cuda_code *code) {
    int64_t recent = h->ncodes > 16 ? h->ncodes - 16 : 0;
    for (int64_t i = h->ncodes - 1; i >= recent; i--)
        if (h->codes[i] == code) return;
    if (!etch__grow(&h->codes, &h->cap, h->ncodes + 1, sizeof(cuda_code *))) {
        h->failed = true;
        return;
    }
    etch__cuda_code_retain(code);
    h->codes[h->ncodes++] = code;
}

cu_function etch__cuda_function(cuda_code *c) {
    if (unlikely(etch__cuda_capturing())) hold_code(etch__cuda_held, c);
    return c->function;
}

/* ---- NVRTC ---- */

static void keep_log(nvrtc_program program, const char *symbol) {
    size_t n = 0;
    int status = etch__cuda.nvrtcGetProgramLogSize(program, &n);
    char *text = status || n < 2 ? NULL : etch__quiet_malloc(n + 1);
    bool there = text && !etch__cuda.nvrtcGetProgramLog(program, text);
    etch__why("%s: NVRTC refuses it (nvrtcCompileProgram): %.*s", symbol, there ? (int)n : 0,
              there ? text : "");
    etch__free(text);
}

enum {
    MINIMAL_SINCE = 1204
}; /* NVRTC's headers of textures and of the runtime, left out from 12.4 on */

static void *compile(const cuda_device *d, const char *source, const char *symbol, size_t *bytes) {
    char arch[40];
    const char *options[] = {arch,         "-std=c++17",      "-fmad=false", "-prec-div=true",
                             "-ftz=false", "-prec-sqrt=true", "--minimal"};
    int major = 0, minor = 0, n = COUNT_OF(options);
    nvrtc_program program = NULL;
    void *cubin = NULL;
    etch__cuda.nvrtcVersion(&major, &minor);
    if (major * 100 + minor < MINIMAL_SINCE) n--;
    snprintf(arch, sizeof arch, "--gpu-architecture=sm_%d%d%s", d->major, d->minor,
             d->major >= 9 ? "a" : ""); /* with what this very processor has: warp groups */
    if (etch__cuda.nvrtcCreateProgram(&program, source, symbol, 0, NULL, NULL)) {
        etch__why("%s: nvrtcCreateProgram failed", symbol);
        return NULL;
    }
    if (etch__cuda.nvrtcCompileProgram(program, n, options)) keep_log(program, symbol);
    else if (etch__cuda.nvrtcGetCUBINSize(program, bytes) || !*bytes)
        etch__why("%s: nvrtcGetCUBINSize failed", symbol);
    else if ((cubin = etch__malloc(*bytes)) && etch__cuda.nvrtcGetCUBIN(program, cubin)) {
        etch__why("%s: nvrtcGetCUBIN failed", symbol);
        etch__free(cubin), cubin = NULL;
    }
    etch__cuda.nvrtcDestroyProgram(&program);
    return cubin;
}

/* NVRTC takes 90 KiB of the stack (13.0). */
enum { NVRTC_STACK = 512 << 10 };

typedef struct compile_call {
    const cuda_device *d;
    const char *source, *symbol;
    size_t *bytes;
    void *cubin;
} compile_call;

static void run_compile(void *ctx) {
    compile_call *c = ctx;
    c->cubin = compile(c->d, c->source, c->symbol, c->bytes);
}

static void *compile_in_room(const cuda_device *d, const char *source, const char *symbol,
                             size_t *bytes) {
    compile_call c = {d, source, symbol, bytes, NULL};
    const char *absent = etch__cuda_compiler_absent();
    if (*absent) {
        etch__why("%s: no compiler for it: %s; ETCH_CUDA_NVRTC is its path", symbol, absent);
        return NULL;
    }
    if (etch__stack_ready(NVRTC_STACK)) etch__with_room(NVRTC_STACK, run_compile, &c);
    else etch__why("%s: %s", symbol, etch__tls.error);
    return c.cubin;
}

static void *from_source(const cuda_device *d, const char *symbol, code_source source,
                         const void *ctx, size_t *bytes) {
    char *text = source(ctx);
    if (!text) return NULL;
    if (etch__log_on(LOG_OUTPUT_CODE)) etch__log(LOG_OUTPUT_CODE, "%s:\n%s", symbol, text);
    double start = etch__now_ms();
    void *cubin = compile_in_room(d, text, symbol, bytes);
    if (cubin) {
        etch__counters.kernels_compiled++;
        etch__log(LOG_CACHE, "%s: compiled by NVRTC in %.1f ms", symbol, etch__now_ms() - start);
    } else {
        etch__log(LOG_CACHE, "compile failed: %s", etch__tls.why);
    }
    etch__free(text);
    return cubin;
}

static bool load(cuda_code *c, const void *cubin, const char *symbol) {
    const char *call = "cuModuleLoadData";
    int status = etch__cuda.cuModuleLoadData(&c->module, cubin);
    if (!status) {
        call = "cuModuleGetFunction";
        status = etch__cuda.cuModuleGetFunction(&c->function, c->module, symbol);
    }
    if (!status) return true;
    if (c->module) etch__cuda.cuModuleUnload(c->module);
    c->module = NULL;
    etch__why("%s: %s: status %d", symbol, call, status);
    return false;
}

/* ---- several threads ---- */

/* A key that a thread is at, so that no other one compiles the same. */
typedef struct busy_key {
    uint64_t hash;
    const uint8_t *key;
    size_t n;
    struct busy_key *next;
} busy_key;

static pthread_cond_t key_ended = PTHREAD_COND_INITIALIZER;
static busy_key *busy_keys;
static __thread int keys_here; /* this thread's: a log sink in one may ask for code again */

static void in_forked_child(void) {
    pthread_cond_init(&key_ended, NULL);
    busy_keys = NULL;
}

void etch__start_cuda_code(void) {
    etch__lru_init(&codes, CODES_MAX, unload);
    etch__at_fork(LOCK_CUDA_CODE, (fork_hooks){.child = in_forked_child});
}

static bool is_busy(const busy_key *f) {
    for (const busy_key *g = busy_keys; g; g = g->next)
        if (g->hash == f->hash && g->n == f->n && !memcmp(g->key, f->key, f->n)) return true;
    return false;
}

/* Returns when no other thread is at the key; at once where that one may be waiting for what this
 * one has: another key, or the lock of the log. */
static void begin_key(busy_key *f) {
    etch__lock(LOCK_CUDA_CODE);
    while (!keys_here && !etch__in_log_sink() && is_busy(f))
        pthread_cond_wait(&key_ended, &etch__locks[LOCK_CUDA_CODE]);
    keys_here++;
    f->next = busy_keys, busy_keys = f;
    etch__unlock(LOCK_CUDA_CODE);
}

static void end_key(const busy_key *f) {
    etch__lock(LOCK_CUDA_CODE);
    busy_key **at = &busy_keys;
    while (*at && *at != f) at = &(*at)->next;
    if (*at) *at = f->next; /* a child forked meanwhile has none */
    keys_here--;
    pthread_cond_broadcast(&key_ended);
    etch__unlock(LOCK_CUDA_CODE);
}

bool etch__cuda_look(bool on) {
    bool before = looking;
    looking = on;
    return before;
}

typedef struct tasks {
    void (*task)(void *ctx, int i);
    void *ctx;
    int n;
    atomic_int next;
    pack_use pack; /* the caller's */
} tasks;

static void *do_tasks(void *ctx) {
    tasks *t = ctx;
    pack_use before = etch__pack_enter(t->pack);
    for (int i; (i = atomic_fetch_add(&t->next, 1)) < t->n;) t->task(t->ctx, i);
    etch__pack_leave(before);
    return NULL;
}

/* Threads for n compiles, the caller left out. Where a test counts allocations they are to come in
 * one order. */
static int helpers(int n) {
    int most = etch_num_threads();
    if (most > HELPERS_MAX) most = HELPERS_MAX;
    return etch__allocations_counted() ? 0 : (n < most ? n : most) - 1;
}

void etch__cuda_at_once(int n, void (*task)(void *ctx, int i), void *ctx) {
    tasks t = {.task = task, .ctx = ctx, .n = n, .pack = etch__pack};
    pthread_t thread[HELPERS_MAX];
    sigset_t all, before;
    int started = 0, wanted = helpers(n);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the program's threads' */
    while (started < wanted && !etch__thread_start(&thread[started], do_tasks, &t)) started++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    do_tasks(&t);
    for (int i = 0; i < started; i++) pthread_join(thread[i], NULL);
}

/* ---- the way ---- */

enum { HEAD_MAX = 256 };

static blob_key full_key(const cuda_device *d, const uint8_t *key, size_t n, uint8_t *full) {
    int compiler = etch__cuda_compiler_text((char *)full, HEAD_MAX);
    int head = compiler + snprintf((char *)full + compiler, (size_t)(HEAD_MAX - compiler),
                                   "etch %s cuda code %d sm_%d%d", ETCH_VERSION_STRING,
                                   CODE_REVISION, d->major, d->minor);
    memcpy(full + head + 1, key, n);
    return (blob_key){full, (size_t)head + 1 + n, (size_t)compiler};
}

static cuda_code *make(cuda_device *d, const uint8_t *key, size_t n, uint64_t hash,
                       const char *symbol, code_source source, const void *ctx) {
    cuda_code *c = (cuda_code *)etch__lru_new(sizeof *c, hash, key, n);
    if (!c) return NULL;
    c->device = d;
    uint8_t full[KEY_MAX + HEAD_MAX];
    size_t bytes = 0;
    blob_key whole = full_key(d, key + 1, n - 1, full);
    void *cubin = etch__cache_load_blob(whole, &bytes);
    bool loaded = cubin && load(c, cubin, symbol);
    if (loaded) {
        etch__counters.cache_hits++;
        etch__log(LOG_CACHE, "%s: loaded from %s", symbol,
                  etch__pack_given() ? "an imported file or the disk cache" : "the disk cache");
    } else if (etch__pack.only) {
        etch__why("%s: it is not among the code of the file", symbol);
    } else if (!looking) {
        etch__free(cubin);
        cubin = from_source(d, symbol, source, ctx, &bytes);
        loaded = cubin && load(c, cubin, symbol);
        if (loaded) etch__cache_store_blob(whole, cubin, bytes);
    }
    etch__free(cubin);
    if (loaded) return c;
    etch__cuda_code_release(c);
    return NULL;
}

void etch__cuda_text_key(const char *text, uint8_t key[40]) {
    uint64_t n = strlen(text);
    XXH128_hash_t a = XXH3_128bits(text, n), b = XXH3_128bits_withSeed(text, n, 1);
    memcpy(key, &n, 8), memcpy(key + 8, &a, 16), memcpy(key + 24, &b, 16);
}

static cuda_code *find_or_make(cuda_device *d, const uint8_t *key, size_t n, const char *symbol,
                               code_source source, const void *ctx) {
    uint64_t hash = XXH3_64bits(key, n);
    bool anew = etch__pack_collects(); /* it wants the bytes of the code */
    cuda_code *c = anew ? NULL : (cuda_code *)etch__lru_find(&codes, hash, key, n);
    if (c) return c;
    busy_key f = {.hash = hash, .key = key, .n = n};
    if (!looking) begin_key(&f);
    if (!anew) c = (cuda_code *)etch__lru_find(&codes, hash, key, n); /* another thread's by now */
    if (!c && (c = make(d, key, n, hash, symbol, source, ctx)))
        c = (cuda_code *)etch__lru_publish(&codes, &c->entry);
    if (!looking) end_key(&f);
    return c;
}

cuda_code *etch__cuda_code(cuda_device *d, const uint8_t *key, size_t n, const char *symbol,
                           code_source source, const void *ctx, const char **why) {
    uint8_t with_device[KEY_MAX];
    *why = etch__tls.why = "";
    if (n + 1 > sizeof with_device) {
        *why = etch__why("%s: the key has %zu bytes", symbol, n);
        return NULL;
    }
    with_device[0] = (uint8_t)d->index;
    memcpy(with_device + 1, key, n);
    cuda_code *c = find_or_make(d, with_device, n + 1, symbol, source, ctx);
    if (!c) *why = etch__tls.why;
    return c;
}
