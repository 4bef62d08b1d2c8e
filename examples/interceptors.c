/* An experiment: how interceptors and etch_compile go together.
 *
 * The program is the seed's: five rounds of mm, sin, mm, add, relu, inside ETCH_INFERENCE. Its
 * products come to CBLAS in two ways: through a mode that replaces mm, and through a custom
 * operator that the program calls itself.
 *
 *   try0  the mode, eagerly
 *   try1  built-in operators under etch_compile
 *   try2  the custom operator under etch_compile
 *   try3  the mode, entered around etch_compile: it runs uncompiled, each operator is intercepted
 *   try4  the same with fullgraph: an error
 *
 * Each try runs in a process of its own with an empty ETCH_CACHE_DIR, so that the files counted
 * there are its own: `interceptors` runs all, `interceptors try1 FOLDER` one, both on a GPU with
 * `--device cuda`, where the custom operator's kernel gets copies in host memory. It makes 3 calls
 * to warm up and 2 that are profiled; the profiles go to FOLDER. What it prints was counted. */
#include "cblas_matmul.h"
#include "device.h"
#include "table.h"

#include <dirent.h>
#include <ftw.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 256, WARM_UP = 3, PROFILED = 2, TABLE_LINES = 6 };

/* ---- the program ---- */

static etch_tensor *builtin_step(etch_tensor *x, etch_tensor *w) {
    for (int i = 0; i < 5; i++) {
        etch_tensor *a = etch_mm(x, w);
        etch_tensor *s = etch_sin(x);
        etch_tensor *b = etch_mm(s, w);
        etch_tensor *c = etch_add(a, b);
        x = etch_relu(c);
    }
    return x;
}

static etch_tensor *custom_step(etch_tensor *x, etch_tensor *w) {
    for (int i = 0; i < 5; i++) {
        etch_tensor *a = blas_matmul(x, w);
        etch_tensor *s = etch_sin(x);
        etch_tensor *b = blas_matmul(s, w);
        etch_tensor *c = etch_add(a, b);
        x = etch_relu(c);
    }
    return x;
}

/* ---- the mode ---- */

typedef struct hijack {
    int64_t seen, replaced;
} hijack;

static etch_status hijack_mm(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                             etch_tensor **out, int nout) {
    hijack *h = ctx;
    h->seen++;
    if (!etch_op_is(op, "mm")) return etch_redispatch(op, args, nargs, out, nout);
    h->replaced++;
    return etch_op_call(blas_op(), args, nargs, out, nout);
}

/* ---- one try ---- */

typedef struct experiment {
    const char *name, *folder;
    etch_tensor *x, *w;
    etch_mode *mode;
    hijack h; /* what the mode has counted; per call after the profiled ones */
    double first_ms, call_ms, plain_ms;
    bool ran;   /* no call failed */
    bool equal; /* to the program under the same mode without etch_compile */
} experiment;

/* f NULL: the body itself. */
static etch_tensor *call(const experiment *e, etch_function *f, etch_fn2 body) {
    return f ? etch_call(f, e->x, e->w) : body(e->x, e->w);
}

static double time_one(experiment *e, etch_function *f, etch_fn2 body) {
    double start = now_ms();
    ETCH_SCOPE { e->ran = call(e, f, body) && e->ran; }
    etch_synchronize(etch_current_device()); /* a GPU works on its own */
    return now_ms() - start;
}

static void profiled_calls(experiment *e, etch_function *f, etch_fn2 body) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s.json", e->folder, e->name);
    e->h = (hijack){0};
    ETCH_PROFILE (path) {
        for (int i = 0; i < PROFILED; i++) e->call_ms += time_one(e, f, body) / PROFILED;
    }
    e->h.seen /= PROFILED, e->h.replaced /= PROFILED;
}

/* Under whatever mode is entered. */
static void run(experiment *e, etch_function *f, etch_fn2 body) {
    e->ran = true;
    e->first_ms = time_one(e, f, body);
    for (int i = 1; i < WARM_UP; i++) time_one(e, f, body);
    profiled_calls(e, f, body);
    hijack counted = e->h;
    e->plain_ms = time_one(e, NULL, body);
    e->equal = etch_bitwise_equal(call(e, f, body), body(e->x, e->w));
    e->h = counted;
}

/* ---- what it prints ---- */

static int64_t per_call(etch_profile_kind kind) { return etch_profile_count(kind) / PROFILED; }

static int artifacts(void) {
    DIR *folder = opendir(getenv("ETCH_CACHE_DIR"));
    int n = 0;
    for (struct dirent *d; folder && (d = readdir(folder));) n += d->d_name[0] != '.';
    if (folder) closedir(folder);
    return n;
}

static const char *equality(const experiment *e) { return e->equal ? "bitwise" : "no"; }

/* The first lines of the profile's table. */
static void print_profile(const experiment *e) {
    char table[8192];
    etch_profile_table(table, sizeof table);
    printf("     first call %.2f ms, then %.3f ms a call; without etch_compile %.3f ms\n",
           e->first_ms, e->call_ms, e->plain_ms);
    char *line = table;
    for (int i = 0; i <= TABLE_LINES && *line; i++) {
        int length = (int)strcspn(line, "\n");
        printf("     %.*s\n", length, line);
        line += length + (line[length] == '\n');
    }
}

static bool failed(const experiment *e) {
    if (e->ran) return false;
    printf("%s failed: %s\n", e->name, etch_last_error());
    return true;
}

/* ---- the tries ---- */

static bool try0(experiment *e) {
    ETCH_WITH_MODE (e->mode) { run(e, NULL, builtin_step); }
    hijack inside = e->h;
    time_one(e, NULL, builtin_step);
    if (failed(e)) return false;
    printf("try0 eager+mode seen=%lld replaced=%lld outside=%lld\n", (long long)inside.seen,
           (long long)inside.replaced, (long long)(e->h.replaced - inside.replaced));
    print_profile(e);
    return true;
}

static bool try1(experiment *e) {
    etch_function *f = etch_compile(builtin_step);
    run(e, f, builtin_step);
    if (failed(e)) return false;
    printf("try1 aten+compile graphs=%lld intercepted=%lld artifacts=%d equal=%s\n",
           (long long)etch_function_counters(f).graphs, (long long)e->h.seen, artifacts(),
           equality(e));
    print_profile(e);
    etch_function_free(f);
    return e->equal;
}

static bool try2(experiment *e) {
    etch_function *f = etch_compile(custom_step);
    run(e, f, custom_step);
    if (failed(e)) return false;
    printf("try2 custom-op+compile graphs=%lld opaque=%lld artifacts=%d equal=%s\n",
           (long long)etch_function_counters(f).graphs, (long long)per_call(ETCH_PROFILE_CUSTOM),
           artifacts(), equality(e));
    print_profile(e);
    etch_function_free(f);
    return e->equal;
}

static bool try3(experiment *e) {
    etch_function *f = etch_compile(builtin_step);
    ETCH_WITH_MODE (e->mode) { run(e, f, builtin_step); }
    if (failed(e)) return false;
    printf("try3 mode+compile graphs=%lld intercepted=%lld replaced=%lld artifacts=%d equal=%s\n",
           (long long)etch_function_counters(f).graphs, (long long)e->h.seen,
           (long long)e->h.replaced, artifacts(), equality(e));
    print_profile(e);
    etch_function_free(f);
    return e->equal;
}

static bool try4(experiment *e) {
    etch_function *f = etch_compile(builtin_step, .fullgraph = true);
    etch_tensor *y = NULL;
    ETCH_WITH_MODE (e->mode) { y = etch_call(f, e->x, e->w); }
    printf("try4 mode+fullgraph error=%s\n", etch_status_name(etch_last_status()));
    printf("     %s\n", etch_last_error());
    etch_function_free(f);
    const char *disabled = getenv("ETCH_COMPILE_DISABLE");
    return !y || (disabled && strcmp(disabled, "1") == 0);
}

static const struct {
    const char *name;
    bool (*run)(experiment *e);
} tries[] = {{"try0", try0}, {"try1", try1}, {"try2", try2}, {"try3", try3}, {"try4", try4}};
enum { TRIES = sizeof tries / sizeof tries[0] };

static bool run_try(int k, const char *folder) {
    bool ok = false;
    experiment e = {.name = tries[k].name, .folder = folder};
    e.mode = etch_mode_new(hijack_mm, &e.h, .name = "hijack");
    if (!blas_op() || !e.mode) return false;
    ETCH_SCOPE {
        etch_manual_seed(0);
        e.x = etch_randn(ETCH_F32, ETCH_SHAPE(SIZE, SIZE));
        e.w = etch_randn(ETCH_F32, ETCH_SHAPE(SIZE, SIZE));
        e.w = etch_div_scalar(e.w, 16.0); /* keeps the rounds from growing */
        ETCH_INFERENCE { ok = tries[k].run(&e); }
    }
    etch_mode_free(e.mode);
    return ok;
}

/* ---- all of them, each in a process of its own ---- */

static int remove_one(const char *path, const struct stat *s, int type, struct FTW *ftw) {
    (void)s, (void)type, (void)ftw;
    return remove(path);
}

static bool run_child(const char *self, const char *name, const char *folder, const char *device) {
    char cache[] = "/tmp/etch-interceptors-XXXXXX";
    int status = -1;
    if (!mkdtemp(cache)) return false;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        setenv("ETCH_CACHE_DIR", cache, 1);
        execl(self, self, name, folder, "--device", device, (char *)NULL);
        _exit(127);
    }
    if (child > 0) waitpid(child, &status, 0);
    nftw(cache, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    return child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Beside the folder of this program: build/profiles. */
static void default_folder(const char *self, char *folder, size_t n) {
    snprintf(folder, n, "%s", self);
    for (int i = 0; i < 2; i++) {
        char *slash = strrchr(folder, '/');
        if (slash) *slash = 0;
    }
    size_t used = strlen(folder);
    snprintf(folder + used, n - used, "/profiles");
}

int main(int argc, char **argv) {
    char self[PATH_MAX] = {0}, folder[PATH_MAX];
    if (!use_device(&argc, argv)) return 2;
    if (argc == 3 && !getenv("ETCH_CACHE_DIR")) {
        fprintf(stderr, "interceptors: a single try needs ETCH_CACHE_DIR\n");
        return 2;
    }
    for (int k = 0; argc == 3 && k < TRIES; k++)
        if (!strcmp(argv[1], tries[k].name)) return run_try(k, argv[2]) ? 0 : 1;
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) return 1;
    default_folder(self, folder, sizeof folder);
    mkdir(folder, 0777);
    bool ok = true;
    const char *device = etch_device_name(etch_current_device());
    for (int k = 0; k < TRIES; k++) ok = run_child(self, tries[k].name, folder, device) && ok;
    printf("profiles: %s (open one in Perfetto)\n", folder);
    return ok ? 0 : 1;
}
