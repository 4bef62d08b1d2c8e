/* Compiled functions: making, counting, holding, resetting and freeing them; call sites. */
#include "tracer/trace/function.h"
#include "core/base/start.h"
#include "core/base/locks.h"

#include <etch/debug.h>

static etch_function *functions;
static counters departed; /* counts of functions that are gone */
function_watch etch__function_watch;

/* ---- counts ---- */

static void add_counts(counters *sum, const counters *c) {
#define COUNTER(name) sum->name += c->name;
#include "core/base/counters.def"
#undef COUNTER
}

static void add_shards(counters *sum, const etch_function *f) {
    for (int i = 0; i < SHARDS; i++) add_counts(sum, &f->shard[i].counts);
}

/* The process's counters: the library's own, and those of its functions. */
static void sum_counts(counters *sum) {
    etch__lock(LOCK_FUNCTIONS);
    add_counts(sum, &departed);
    for (etch_function *f = functions; f; f = f->next) add_shards(sum, f);
    etch__unlock(LOCK_FUNCTIONS);
}

static void reset_counts(void) {
    etch__lock(LOCK_FUNCTIONS);
    memset(&departed, 0, sizeof departed);
    for (etch_function *f = functions; f; f = f->next) {
#define COUNTER(name)                                                                              \
    for (int i = 0; i < SHARDS; i++) f->shard[i].counts.name = 0;
#include "core/base/counters.def"
#undef COUNTER
    }
    etch__unlock(LOCK_FUNCTIONS);
}

etch_counters_t etch_function_counters(const etch_function *f) {
    etch_counters_t c = {0};
    if (!f) return c;
    counters sum = {0};
    add_shards(&sum, f);
#define COUNTER(name) c.name = sum.name;
#include "core/base/counters.def"
#undef COUNTER
    return c;
}

/* ---- life ---- */

static atomic_int ncondemned; /* freed functions with runs, on the list still */

static int runs_of(const etch_function *f) {
    int runs = 0;
    for (int i = 0; i < SHARDS; i++) runs += atomic_load(&f->shard[i].pins);
    return runs;
}

/* Under no lock: what a user's backend made, and memory that is wrapped, is given back here, and
 * that may free, reset and call functions. */
static void free_generations(generation *g) {
    while (g) {
        generation *next = g->next;
        etch__generation_free(g);
        g = next;
    }
}

static void destroy(etch_function *f) {
    etch__function_watch.gone(f);
    etch__generation_free(f->gen);
    free_generations(f->retired);
    if (f->origin) etch__trace_hooks.drop_origin(f->origin);
    pthread_mutex_destroy(&f->lock);
    pthread_mutex_destroy(&f->compile_lock);
    etch__free(f->name);
    etch__free(f->mapped);
    etch__free(f);
}

/* Freed functions without runs leave the list and go. Only here does one go, under the list's lock,
 * so that a run which ends need not touch its function after it has let go of it. */
static void collect(void) {
    etch_function *gone = NULL;
    etch__lock(LOCK_FUNCTIONS);
    for (etch_function **link = &functions; *link;) {
        etch_function *f = *link;
        if (!f->freed || runs_of(f)) {
            link = &f->next;
            continue;
        }
        *link = f->next;
        ncondemned--;
        add_shards(&departed, f);
        f->next = gone;
        gone = f;
    }
    etch__unlock(LOCK_FUNCTIONS);
    while (gone) {
        etch_function *next = gone->next;
        destroy(gone);
        gone = next;
    }
}

/* Retired generations go when there is no run but those of the caller, which have done with them: a
 * run pins the function before it looks for the generation. */
static generation *take_retired(etch_function *f, int mine) {
    pthread_mutex_lock(&f->lock);
    generation *g = NULL;
    if (runs_of(f) == mine) g = atomic_exchange(&f->retired, NULL);
    pthread_mutex_unlock(&f->lock);
    return g;
}

unsigned etch__function_pin(etch_function *f) {
    unsigned shard = etch__tls.number % SHARDS;
    atomic_fetch_add(&f->shard[shard].pins, 1);
    return shard;
}

/* A shard's count never falls below that of its pins, so that a sum of shards which are read one
 * after the other is not too low. */
void etch__function_unpin_at(etch_function *f, unsigned shard) {
    if (unlikely(atomic_load_explicit(&f->retired, memory_order_relaxed) != NULL))
        free_generations(take_retired(f, 1));
    atomic_fetch_sub(&f->shard[shard].pins, 1);
    if (unlikely(atomic_load_explicit(&ncondemned, memory_order_acquire))) collect();
}

void etch__function_unpin(etch_function *f) {
    etch__function_unpin_at(f, etch__tls.number % SHARDS);
}

/* Around fork nobody is inside the functions' locks. A compile may go on for long, so nobody waits
 * for it: in the child it is given up. */
static void lock_functions(void) {
    for (etch_function *f = functions; f; f = f->next) pthread_mutex_lock(&f->lock);
}

static void unlock_functions(void) {
    for (etch_function *f = functions; f; f = f->next) pthread_mutex_unlock(&f->lock);
}

static void unlock_in_child(void) {
    for (etch_function *f = functions; f; f = f->next) pthread_mutex_init(&f->compile_lock, NULL);
    unlock_functions();
}

static bool options_ok(const etch_compile_options *o) {
    const struct {
        const char *name;
        int value, most;
    } fields[] = {{"mode", o->mode, ETCH_MODE_MAX_AUTOTUNE},
                  {"dynamic", o->dynamic, ETCH_DYNAMIC_ON},
                  {"numerics", o->numerics, ETCH_RELAXED},
                  {"stable_after", o->stable_after, INT32_MAX},
                  {"recompile_limit", o->recompile_limit, INT32_MAX}};
    for (int i = 0; i < COUNT_OF(fields); i++)
        if (fields[i].value < 0 || fields[i].value > fields[i].most)
            return etch__false_at(NULL, ETCH_ERR_INVALID_ARGUMENT,
                                  "etch_compile: .%s: expected 0 to %d, got %d", fields[i].name,
                                  fields[i].most, fields[i].value);
    return true;
}

static bool set_options(etch_function *f, const etch_compile_options *options) {
    if (options) {
        size_t size = options->struct_size;
        memcpy(&f->options, options, size && size < sizeof *options ? size : sizeof *options);
    }
    if (!options_ok(&f->options)) return false;
    f->body.ctx = f->options.ctx;
    const char *wanted = f->options.backend ? f->options.backend : "native";
    f->backend = etch__backend_find(wanted);
    if (!f->backend)
        etch__error_at(NULL, ETCH_ERR_NOT_FOUND,
                       "etch_compile: no backend is called \"%s\" (see etch_list_backends)",
                       wanted);
    f->options.backend = NULL;
    f->name =
        etch__strdup(f->options.name ? f->options.name : etch__symbol_name((void *)f->body.fn));
    f->options.name = NULL;
    return f->backend && f->name;
}

etch_function *etch__function_new(function_kind kind, void (*fn)(void),
                                  const etch_compile_options *options) {
    if (!fn)
        return etch__null_at(NULL, ETCH_ERR_NULL, "etch_compile: expected a function, got NULL");
    etch_function *f = etch__aligned_zeroed(sizeof *f);
    if (!f) return NULL;
    f->body.kind = kind, f->body.fn = fn;
    f->gen = etch__generation_new();
    if (!f->gen || !set_options(f, options)) {
        etch__generation_free(f->gen);
        etch__free(f->name);
        etch__free(f);
        return NULL;
    }
    pthread_mutex_init(&f->lock, NULL);
    pthread_mutex_init(&f->compile_lock, NULL);
    etch__lock(LOCK_FUNCTIONS);
    f->next = functions;
    functions = f;
    etch__unlock(LOCK_FUNCTIONS);
    return f;
}

#define DEFINE_COMPILE(n)                                                                          \
    etch_function *etch_compile_fn##n(etch_fn##n fn, const etch_compile_options *options) {        \
        return etch__function_new(FN_##n, (void (*)(void))fn, options);                            \
    }
DEFINE_COMPILE(0)
DEFINE_COMPILE(1)
DEFINE_COMPILE(2)
DEFINE_COMPILE(3)
DEFINE_COMPILE(4)
DEFINE_COMPILE(5)
DEFINE_COMPILE(6)
DEFINE_COMPILE(7)
DEFINE_COMPILE(8)

etch_function *etch_compile_n(etch_fn_n fn, const etch_compile_options *options) {
    return etch__function_new(FN_N, (void (*)(void))fn, options);
}

void etch_function_free(etch_function *f) {
    if (!f) return;
    etch__function_watch.leaving(f);
    ncondemned++;
    f->freed = true;
    collect();
}

/* Adds what can be freed now to *gone. */
static void reset_one(etch_function *f, generation **gone) {
    generation *fresh = etch__generation_new();
    if (!fresh) return;
    pthread_mutex_lock(&f->lock);
    generation *old = atomic_exchange(&f->gen, fresh);
    old->next = f->retired;
    atomic_store(&f->retired, old);
    pthread_mutex_unlock(&f->lock);
    etch__function_watch.forgotten(f);
    for (generation *g = take_retired(f, 0), *next; g; g = next) {
        next = g->next;
        g->next = *gone;
        *gone = g;
    }
}

void etch_reset(etch_function *f) {
    generation *gone = NULL;
    if (f) {
        reset_one(f, &gone);
    } else {
        etch__lock(LOCK_FUNCTIONS);
        for (f = functions; f; f = f->next) reset_one(f, &gone);
        etch__unlock(LOCK_FUNCTIONS);
    }
    free_generations(gone);
}

/* ---- call sites ---- */

/* One function of one call site. Entries live as long as the program, like the site itself. */
typedef struct site_entry {
    void (*fn)(void);
    void *ctx;
    etch_function *function;
    struct site_entry *next;
} site_entry;

static site_entry *find_entry(site_entry *e, void (*fn)(void), void *ctx) {
    while (e && (e->fn != fn || e->ctx != ctx)) e = e->next;
    return e;
}

static site_entry *add_entry(etch_call_site *site, function_kind kind, void (*fn)(void),
                             void *ctx) {
    char name[160];
    const char *file = site->file ? site->file : "?", *slash = strrchr(file, '/');
    snprintf(name, sizeof name, "%s:%d", slash ? slash + 1 : file, site->line);
    site_entry *e = etch__malloc(sizeof *e);
    if (!e) return NULL;
    etch_compile_options options = {.struct_size = sizeof options, .name = name, .ctx = ctx};
    *e = (site_entry){fn, ctx, etch__function_new(kind, fn, &options), site->table};
    if (!e->function) {
        etch__free(e);
        return NULL;
    }
    __atomic_store_n((site_entry **)&site->table, e, __ATOMIC_RELEASE);
    return e;
}

static etch_function *site_function(etch_call_site *site, function_kind kind, void (*fn)(void),
                                    void *ctx) {
    if (!site)
        return etch__null_at(NULL, ETCH_ERR_NULL, "etch_site: expected a call site, got NULL");
    site_entry *e =
        find_entry(__atomic_load_n((site_entry **)&site->table, __ATOMIC_ACQUIRE), fn, ctx);
    if (e) return e->function;
    etch__lock(LOCK_CALL_SITES);
    e = find_entry(site->table, fn, ctx);
    if (!e) e = add_entry(site, kind, fn, ctx);
    etch__unlock(LOCK_CALL_SITES);
    return e ? e->function : NULL;
}

#define DEFINE_SITE(n)                                                                             \
    etch_function *etch_site_fn##n(etch_call_site *site, etch_fn##n fn) {                          \
        return site_function(site, FN_##n, (void (*)(void))fn, NULL);                              \
    }
DEFINE_SITE(0)
DEFINE_SITE(1)
DEFINE_SITE(2)
DEFINE_SITE(3)
DEFINE_SITE(4)
DEFINE_SITE(5)
DEFINE_SITE(6)
DEFINE_SITE(7)
DEFINE_SITE(8)

etch_function *etch_site_n(etch_call_site *site, etch_fn_n fn, void *ctx) {
    return site_function(site, FN_N, (void (*)(void))fn, ctx);
}

void etch__start_functions(void) {
    etch__at_fork(LOCK_FUNCTIONS, (fork_hooks){lock_functions, unlock_functions, unlock_in_child});
    etch__trace_hooks.add_counts = sum_counts;
    etch__trace_hooks.reset_counts = reset_counts;
}
