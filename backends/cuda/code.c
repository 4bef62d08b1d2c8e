/* See code.h. The table is bounded, least recently used out; a piece of code lives as long as
 * somebody holds a count of it. */
#include "backends/cuda/code.h"

#include <pthread.h>
#include <time.h>
#include <xxhash.h>

#include "jit/cache.h"

enum { TABLE_MAX = 2048, SLOTS = 1024, KEY_MAX = 12288, CODE_REVISION = 3 };

struct cuda_code {
    atomic_int refs;
    cuda_device *device;
    cu_module module;
    cu_function function;
    cuda_code *next; /* in its slot */
    uint64_t hash, used;
    size_t n;
    uint8_t key[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cuda_code *slots[SLOTS];
static int count;
static uint64_t clock_now;
static __thread char reason[2048];

cu_function etch__cuda_function(const cuda_code *c) { return c->function; }

void etch__cuda_code_release(cuda_code *c) {
    if (!c || atomic_fetch_sub(&c->refs, 1) != 1) return;
    saved_error before;
    etch__error_save(&before);
    if (c->module && etch__cuda_enter(c->device->index)) etch__cuda.cuModuleUnload(c->module);
    etch__error_restore(&before);
    etch__free(c);
}

/* ---- the table (under the lock) ---- */

static cuda_code *find(uint64_t hash, const uint8_t *key, size_t n) {
    for (cuda_code *c = slots[hash % SLOTS]; c; c = c->next)
        if (c->hash == hash && c->n == n && !memcmp(c->key, key, n)) {
            c->used = ++clock_now;
            atomic_fetch_add(&c->refs, 1);
            return c;
        }
    return NULL;
}

static cuda_code *take_oldest(void) {
    cuda_code **oldest = NULL;
    for (int i = 0; i < SLOTS; i++)
        for (cuda_code **at = &slots[i]; *at; at = &(*at)->next)
            if (!oldest || (*at)->used < (*oldest)->used) oldest = at;
    cuda_code *c = *oldest;
    *oldest = c->next;
    count--;
    return c;
}

static cuda_code *publish(cuda_code *c) {
    cuda_code *evicted = NULL;
    pthread_mutex_lock(&lock);
    cuda_code *other = find(c->hash, c->key, c->n);
    if (!other) {
        c->next = slots[c->hash % SLOTS], slots[c->hash % SLOTS] = c;
        c->used = ++clock_now;
        atomic_fetch_add(&c->refs, 1);
        if (++count > TABLE_MAX) evicted = take_oldest();
    }
    pthread_mutex_unlock(&lock);
    etch__cuda_code_release(evicted);
    if (!other) return c;
    etch__cuda_code_release(c);
    return other;
}

/* ---- NVRTC ---- */

static void keep_log(nvrtc_program program, const char *symbol) {
    size_t n = 0;
    int at =
        snprintf(reason, sizeof reason, "%s: NVRTC refuses it (nvrtcCompileProgram): ", symbol);
    if (etch__cuda.nvrtcGetProgramLogSize(program, &n) || n < 2) return;
    char *text = etch__quiet_malloc(n + 1);
    if (text && !etch__cuda.nvrtcGetProgramLog(program, text))
        snprintf(reason + at, sizeof reason - (size_t)at, "%.*s", (int)n, text);
    etch__free(text);
}

enum { MINIMAL_SINCE = 1204 }; /* NVRTC's headers of textures and of the runtime, left out from 12.4 on */

static void *compile(const cuda_device *d, const char *source, const char *symbol, size_t *bytes) {
    char arch[40];
    const char *options[] = {arch,         "-std=c++17",     "-fmad=false", "-prec-div=true",
                             "-ftz=false", "-prec-sqrt=true", "--minimal"};
    int major = 0, minor = 0, n = COUNT_OF(options);
    nvrtc_program program = NULL;
    void *cubin = NULL;
    etch__cuda.nvrtcVersion(&major, &minor);
    if (major * 100 + minor < MINIMAL_SINCE) n--;
    snprintf(arch, sizeof arch, "--gpu-architecture=sm_%d%d", d->major, d->minor);
    if (etch__cuda.nvrtcCreateProgram(&program, source, symbol, 0, NULL, NULL)) {
        snprintf(reason, sizeof reason, "%s: nvrtcCreateProgram failed", symbol);
        return NULL;
    }
    if (etch__cuda.nvrtcCompileProgram(program, n, options))
        keep_log(program, symbol);
    else if (etch__cuda.nvrtcGetCUBINSize(program, bytes) || !*bytes)
        snprintf(reason, sizeof reason, "%s: nvrtcGetCUBINSize failed", symbol);
    else if ((cubin = etch__malloc(*bytes)) && etch__cuda.nvrtcGetCUBIN(program, cubin)) {
        snprintf(reason, sizeof reason, "%s: nvrtcGetCUBIN failed", symbol);
        etch__free(cubin), cubin = NULL;
    }
    etch__cuda.nvrtcDestroyProgram(&program);
    return cubin;
}

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void *from_source(const cuda_device *d, const char *symbol, code_source source,
                         const void *ctx, size_t *bytes) {
    char *text = source(ctx);
    if (!text) return NULL;
    if (etch__log_on(LOG_OUTPUT_CODE)) etch__log(LOG_OUTPUT_CODE, "%s:\n%s", symbol, text);
    double start = now_ms();
    void *cubin = compile(d, text, symbol, bytes);
    if (cubin) {
        etch__counters.kernels_compiled++;
        etch__log(LOG_CACHE, "%s: compiled by NVRTC in %.1f ms", symbol, now_ms() - start);
    } else {
        etch__log(LOG_CACHE, "compile failed: %s", reason);
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
    if (status) snprintf(reason, sizeof reason, "%s: %s: status %d", symbol, call, status);
    return !status;
}

/* ---- the way ---- */

static size_t full_key(const cuda_device *d, const uint8_t *key, size_t n, uint8_t *full) {
    int major = 0, minor = 0;
    etch__cuda.nvrtcVersion(&major, &minor);
    int head = snprintf((char *)full, 256, "etch %s cuda code %d nvrtc %d.%d sm_%d%d",
                        ETCH_VERSION_STRING, CODE_REVISION, major, minor, d->major, d->minor);
    memcpy(full + head + 1, key, n);
    return (size_t)head + 1 + n;
}

static cuda_code *make(cuda_device *d, const uint8_t *key, size_t n, uint64_t hash,
                       const char *symbol, code_source source, const void *ctx) {
    cuda_code *c = etch__calloc(1, sizeof *c + n);
    if (!c) return NULL;
    atomic_init(&c->refs, 1);
    c->device = d, c->hash = hash, c->n = n;
    memcpy(c->key, key, n);
    uint8_t full[KEY_MAX + 256];
    size_t bytes = 0, full_n = full_key(d, key + 1, n - 1, full);
    void *cubin = etch__cache_load_blob(full, full_n, &bytes);
    bool loaded = cubin && load(c, cubin, symbol);
    if (loaded) {
        etch__counters.cache_hits++;
        etch__log(LOG_CACHE, "%s: loaded from the disk cache", symbol);
    } else {
        etch__free(cubin);
        cubin = from_source(d, symbol, source, ctx, &bytes);
        loaded = cubin && load(c, cubin, symbol);
        if (loaded) etch__cache_store_blob(full, full_n, cubin, bytes);
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

cuda_code *etch__cuda_code(cuda_device *d, const uint8_t *key, size_t n, const char *symbol,
                           code_source source, const void *ctx, const char **why) {
    uint8_t with_device[KEY_MAX];
    *why = reason;
    *reason = 0;
    if (n + 1 > sizeof with_device) {
        snprintf(reason, sizeof reason, "%s: the key has %zu bytes", symbol, n);
        return NULL;
    }
    with_device[0] = (uint8_t)d->index;
    memcpy(with_device + 1, key, n++);
    uint64_t hash = XXH3_64bits(with_device, n);
    pthread_mutex_lock(&lock);
    cuda_code *c = find(hash, with_device, n);
    pthread_mutex_unlock(&lock);
    if (c) return c;
    c = make(d, with_device, n, hash, symbol, source, ctx);
    return c ? publish(c) : NULL;
}
