/* What every call goes through: counting, refusing, failing on demand; the set of live objects; the
 * names of errors. */
#include "driver.h"

#include <stdarg.h>
#include <unistd.h>

enum { FLAG_0 = 0, FLAG_I = 1, FLAG_C = 3, FLAG_A = 4, FLAG_R = 8 };

#define FAKE_SIZE(type, size) _Static_assert(sizeof(type) == (size), #type);
#define FAKE_FIELD(type, field, offset)                                                            \
    _Static_assert(offsetof(type, field) == (offset), #type "." #field);
#include "layouts.def"

static const struct {
    const char *name;
    int flags;
} calls[] = {
#define I FLAG_I
#define C FLAG_C
#define A FLAG_A
#define R FLAG_R
#define FAKE_CALL(name, flags, args) {#name, flags},
#include "calls.def"
#undef FAKE_CALL
#undef I
#undef C
#undef A
#undef R
};

struct fake_state fake = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
__thread CUcontext fake__context;
static __thread CUresult release_failure;

/* Calls have a lock of their own: they are counted before it is known that they may go on. */
enum { MAX_NAMES = 512 };
static struct {
    pthread_mutex_t lock;
    unsigned long total, failed;
    int fail_in, symbol_in;
    char symbol[64], failed_last[64];
    struct {
        char name[64];
        unsigned long count;
    } by_name[MAX_NAMES];
} counts = {.lock = PTHREAD_MUTEX_INITIALIZER};

void fake__say(const char *format, ...) {
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    fprintf(stderr, "fake cuda: %s\n", line);
}

void *fake__new(size_t size) {
    void *p = calloc(1, size ? size : 1);
    if (!p) abort();
    return p;
}

void *fake__copy(const void *data, size_t size) { return memcpy(fake__new(size), data, size); }

/* ---- counting and failing ---- */

static unsigned long *counter(const char *name) {
    unsigned at = 5381;
    for (const char *c = name; *c; c++) at = at * 33 + (unsigned char)*c;
    for (at %= MAX_NAMES; counts.by_name[at].name[0]; at = (at + 1) % MAX_NAMES)
        if (!strcmp(counts.by_name[at].name, name)) return &counts.by_name[at].count;
    snprintf(counts.by_name[at].name, sizeof counts.by_name[at].name, "%s", name);
    return &counts.by_name[at].count;
}

static struct {
    pthread_mutex_t lock;
    pthread_cond_t came;
    int wanted, now, most;
} compiles = {.lock = PTHREAD_MUTEX_INITIALIZER, .came = PTHREAD_COND_INITIALIZER};

int fake_cuda_gather_compiles(int n) {
    pthread_mutex_lock(&compiles.lock);
    int most = compiles.most;
    compiles.wanted = n, compiles.most = compiles.now;
    pthread_mutex_unlock(&compiles.lock);
    return most;
}

void fake_cuda_compile_begins(void) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec++;
    pthread_mutex_lock(&compiles.lock);
    if (++compiles.now > compiles.most) compiles.most = compiles.now;
    pthread_cond_broadcast(&compiles.came);
    while (compiles.most < compiles.wanted &&
           !pthread_cond_timedwait(&compiles.came, &compiles.lock, &until)) {}
    pthread_mutex_unlock(&compiles.lock);
}

void fake_cuda_compile_ends(void) {
    pthread_mutex_lock(&compiles.lock);
    compiles.now--;
    pthread_mutex_unlock(&compiles.lock);
}

static void read_failure_from_environment(void) {
    const char *wanted = getenv("FAKE_CUDA_FAIL");
    if (!wanted) return;
    const char *colon = strchr(wanted, ':');
    const size_t length = colon ? (size_t)(colon - wanted) : strlen(wanted);
    snprintf(counts.symbol, sizeof counts.symbol, "%.*s", (int)length, wanted);
    counts.symbol_in = colon ? atoi(colon + 1) : 1;
}

int fake_cuda_enter(const char *symbol) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_failure_from_environment);
    pthread_mutex_lock(&counts.lock);
    counts.total++;
    ++*counter(symbol);
    int fails = counts.fail_in > 0 && --counts.fail_in == 0;
    if (counts.symbol_in > 0 && !strcmp(counts.symbol, symbol) && --counts.symbol_in == 0)
        fails = 1;
    counts.failed += (unsigned)fails;
    if (fails) snprintf(counts.failed_last, sizeof counts.failed_last, "%s", symbol);
    pthread_mutex_unlock(&counts.lock);
    return fails;
}

/* In the child. Other threads may have held the locks. */
static void after_fork(void) {
    fake.forked = fake.initialised;
    pthread_mutex_init(&fake.lock, NULL);
    pthread_mutex_init(&counts.lock, NULL);
    pthread_mutex_init(&compiles.lock, NULL);
}

__attribute__((constructor)) static void start(void) {
    const char *devices = getenv("FAKE_CUDA_DEVICES"), *lazy = getenv("FAKE_CUDA_LAZY");
    const char *version = getenv("FAKE_CUDA_VERSION"), *arch = getenv("FAKE_CUDA_ARCH");
    fake.devices = devices ? atoi(devices) : 2;
    if (fake.devices < 0 || fake.devices > FAKE_MAX_DEVICES) fake.devices = FAKE_MAX_DEVICES;
    fake.lazy = lazy && atoi(lazy);
    fake.version = version ? atoi(version) : 13000;
    fake.arch = arch ? atoi(arch) : 90;
    pthread_atfork(NULL, NULL, after_fork);
}

static CUresult refused(int flags) {
    if ((flags & FLAG_I) && (!fake.initialised || fake.forked)) return CUDA_ERROR_NOT_INITIALIZED;
    if ((flags & FLAG_C) == FLAG_C && !fake__context) return CUDA_ERROR_INVALID_CONTEXT;
    return CUDA_SUCCESS;
}

CUresult fake__enter(enum fake_call call) {
    const int flags = calls[call].flags;
    const int fails = fake_cuda_enter(calls[call].name);
    pthread_mutex_lock(&fake.lock);
    release_failure = CUDA_SUCCESS;
    const CUresult no = refused(flags);
    if (no) return no;
    CUresult result = CUDA_SUCCESS;
    if (fails) result = flags & FLAG_A ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN;
    else if (((flags & FLAG_C) == FLAG_C || (flags & FLAG_R)) && fake__context)
        result = fake__context->fault;
    if (!(flags & FLAG_R)) return result;
    release_failure = result;
    return CUDA_SUCCESS;
}

void fake__leave(int *locked) {
    (void)locked;
    pthread_mutex_unlock(&fake.lock);
}

/* What a call that gives something back returns: the thing is gone, even
 * when the call must fail. */
CUresult fake__released(CUresult result) { return result ? result : release_failure; }

unsigned long fake_cuda_calls(void) { return counts.total; }

unsigned long fake_cuda_count(const char *symbol) {
    pthread_mutex_lock(&counts.lock);
    const unsigned long count = *counter(symbol);
    pthread_mutex_unlock(&counts.lock);
    return count;
}

void fake_cuda_reset_counts(void) {
    pthread_mutex_lock(&counts.lock);
    counts.total = counts.failed = 0;
    for (int i = 0; i < MAX_NAMES; i++) counts.by_name[i].count = 0;
    pthread_mutex_unlock(&counts.lock);
}

void fake_cuda_fail_after(int n) {
    pthread_mutex_lock(&counts.lock);
    counts.fail_in = n;
    pthread_mutex_unlock(&counts.lock);
}

void fake_cuda_fail_symbol(const char *symbol, int n) {
    pthread_mutex_lock(&counts.lock);
    snprintf(counts.symbol, sizeof counts.symbol, "%s", symbol ? symbol : "");
    counts.symbol_in = symbol ? n : 0;
    pthread_mutex_unlock(&counts.lock);
}

unsigned long fake_cuda_failed(void) { return counts.failed; }
const char *fake_cuda_failed_last(void) { return counts.failed_last; }

void fake_cuda_set_lazy(int lazy) { fake.lazy = lazy; }

int fake_cuda_version(void) { return fake.version; }

/* ---- live objects ---- */

static struct {
    struct object {
        const void *at;
        const char *kind;
    } * slots;
    size_t room, used;
} objects;

static const char *const kinds[] = {"stream", "event", "module",  "graph",  "exec",
                                    "memory", "host",  "program", "cublas", "descriptor"};
enum { KINDS = sizeof kinds / sizeof *kinds };
static long live[KINDS];

static int kind_index(const char *kind) {
    for (int i = 0; i < KINDS; i++)
        if (!strcmp(kinds[i], kind)) return i;
    return -1;
}

void fake_cuda_object(const char *kind, int change) {
    const int i = kind_index(kind);
    if (i >= 0) __atomic_add_fetch(&live[i], change, __ATOMIC_RELAXED);
}

unsigned long fake_cuda_live(const char *kind) {
    unsigned long sum = 0;
    for (int i = 0; i < KINDS; i++)
        if (!kind || !strcmp(kinds[i], kind)) sum += (unsigned long)live[i];
    return sum;
}

void fake_cuda_print_live(void) {
    for (int i = 0; i < KINDS; i++)
        if (live[i]) fake__say("%ld live: %s", live[i], kinds[i]);
}

static struct object *slot(const void *object) {
    size_t at = ((uintptr_t)object >> 4) * 0x9e3779b97f4a7c15u % objects.room;
    while (objects.slots[at].at && objects.slots[at].at != object) at = (at + 1) % objects.room;
    return &objects.slots[at];
}

static void grow(void) {
    struct object *old = objects.slots;
    const size_t room = objects.room;
    objects.room = room ? room * 2 : 1024;
    objects.slots = fake__new(objects.room * sizeof *objects.slots);
    for (size_t i = 0; i < room; i++)
        if (old[i].at) *slot(old[i].at) = old[i];
    free(old);
}

/* Removed objects keep their slot, with no kind. */
void fake__add(void *object, const char *kind) {
    if (objects.used * 2 >= objects.room) grow();
    struct object *s = slot(object);
    objects.used += !s->at;
    *s = (struct object){object, kind};
    fake_cuda_object(kind, 1);
}

void fake__remove(void *object) {
    struct object *s = slot(object);
    fake_cuda_object(s->kind, -1);
    s->kind = "";
}

bool fake__is(const void *object, const char *kind) {
    return object && objects.room && slot(object)->at && !strcmp(slot(object)->kind, kind);
}

/* ---- names ---- */

static const struct {
    int error;
    const char *name;
} errors[] = {
#define FAKE_VALUE(name, value) {value, #name},
#include "values.def"
#undef FAKE_VALUE
};

static const char *error_name(CUresult error) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        if (strncmp(errors[i].name, "CUDA_", 5)) break; /* the driver's errors come first */
        if (errors[i].error == error) return errors[i].name;
    }
    return NULL;
}

CUresult cuGetErrorName(CUresult error, const char **text) {
    CHECK(text, CUDA_ERROR_INVALID_VALUE);
    *text = error_name(error);
    return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **text) {
    static __thread char words[64];
    CHECK(text, CUDA_ERROR_INVALID_VALUE);
    const char *name = error_name(error);
    *text = NULL;
    CHECK(name, CUDA_ERROR_INVALID_VALUE);
    snprintf(words, sizeof words, "%s", strncmp(name, "CUDA_ERROR_", 11) ? "no error" : name + 11);
    for (char *c = words; *c; c++) *c = *c == '_' ? ' ' : *c >= 'A' ? (char)(*c | 32) : *c;
    *text = words;
    return CUDA_SUCCESS;
}
