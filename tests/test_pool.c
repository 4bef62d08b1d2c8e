/* The thread pool: every element once, nested regions, the caller's rounding mode, changes of the
 * number of threads, and a forked child.
 * Labels: optimised. */
#include "cpu_support.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sys/resource.h>
#include <xmmintrin.h>

#include "core/base/pool.h"

/* This program's own: the static library makes its threads by it. */
static int threads_given = -1; /* how many more there are; -1: as many as the system has */
static atomic_int threads_made;

__attribute__((visibility("default"))) int pthread_create(pthread_t *t, const pthread_attr_t *attr,
                                                          void *(*start)(void *), void *arg) {
    static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
    if (threads_given == 0) return EAGAIN;
    if (threads_given > 0) threads_given--;
    threads_made++;
    return real(t, attr, start, arg);
}

enum { COUNT = 100000 };

typedef struct visits {
    _Atomic unsigned char seen[COUNT];
    atomic_int modes; /* tasks that saw another rounding mode than wanted */
    unsigned mode;
} visits;

static visits v;

static void visit(void *ctx, int64_t begin, int64_t end) {
    visits *p = ctx;
    if (_MM_GET_ROUNDING_MODE() != p->mode) p->modes++;
    for (int64_t i = begin; i < end; i++) p->seen[i]++;
}

static void check_visits(int64_t n, int64_t grain) {
    memset(&v, 0, sizeof v);
    v.mode = _MM_GET_ROUNDING_MODE();
    etch__parallel(n, grain, visit, &v);
    for (int64_t i = 0; i < COUNT; i++) assert_int_equal(v.seen[i], i < n);
    assert_int_equal(v.modes, 0);
}

TEST(every_element_once) {
    for (int threads = 1; threads <= 4; threads++) {
        assert_int_equal(etch_set_num_threads(threads), ETCH_OK);
        assert_int_equal(etch_num_threads(), threads);
        check_visits(0, 1);
        check_visits(1, 1);
        check_visits(7, 2);
        check_visits(COUNT, 1000);
        check_visits(99999, 7);
    }
}

TEST(takes_the_rounding_mode_along) {
    etch_set_num_threads(4);
    unsigned old = _MM_GET_ROUNDING_MODE();
    _MM_SET_ROUNDING_MODE(_MM_ROUND_DOWN);
    memset(&v, 0, sizeof v);
    v.mode = _MM_ROUND_DOWN;
    etch__parallel(COUNT, 100, visit, &v);
    _MM_SET_ROUNDING_MODE(old);
    assert_int_equal(v.modes, 0);
    check_visits(COUNT, 100); /* and does not leave it behind */
}

static void nested(void *ctx, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
        v.seen[i]++;
        etch__parallel(100, 1, visit, ctx);
    }
}

TEST(regions_in_regions_run_where_they_are) {
    static visits inner;
    etch_set_num_threads(4);
    memset(&v, 0, sizeof v);
    memset(&inner, 0, sizeof inner);
    inner.mode = _MM_GET_ROUNDING_MODE();
    etch__parallel(64, 1, nested, &inner);
    for (int i = 0; i < 64; i++) assert_int_equal(v.seen[i], 1);
    for (int i = 0; i < 100; i++) assert_int_equal(inner.seen[i], 64);
}

TEST(bad_counts) {
    assert_int_equal(etch_set_num_threads(0), ETCH_ERR_INVALID_ARGUMENT);
    assert_int_equal(etch_set_num_threads(-3), ETCH_ERR_INVALID_ARGUMENT);
    assert_int_equal(etch_set_num_threads(3), ETCH_OK);
    assert_int_equal(etch_num_threads(), 3);
    etch_clear_error();
}

static int works(void) {
    int ok = 1;
    memset(&v, 0, sizeof v);
    v.mode = _MM_GET_ROUNDING_MODE();
    etch__parallel(COUNT, 100, visit, &v);
    for (int64_t i = 0; i < COUNT; i++) ok &= v.seen[i] == 1;
    ETCH_SCOPE {
        etch_tensor *a = make(ETCH_F32, ETCH_SHAPE(200, 200), LAYOUT_ROW, true);
        ok &= etch_sum(etch_mm(a, a)) != NULL;
    }
    return ok;
}

static int multiplies_f64(void) {
    bool ok = false;
    ETCH_SCOPE {
        etch_tensor *d = make(ETCH_F64, ETCH_SHAPE(200, 200), LAYOUT_ROW, true);
        ok = etch_mm(d, d) != NULL;
    }
    return ok;
}

static int work_in_child(void) { return works() & multiplies_f64(); }

TEST(a_forked_child_works) {
    etch_set_num_threads(4);
    assert_true(work_in_child()); /* here first, so that the child inherits a pool in use */
    pid_t child = fork();
    if (child == 0) {
        alarm(30);
        _exit(work_in_child() ? 0 : 1);
    }
    int status = 1;
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    assert_int_equal(status, 0);
    assert_true(work_in_child()); /* the parent keeps its own */
}

/* ---- threads that cannot be made ---- */

static int in_new_child(int (*body)(void)) {
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        _exit(body() ? 0 : 1);
    }
    int status = -1;
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    return status;
}

static int work_with_few(void) {
    int given = threads_given;
    threads_made = 0;
    int ok = etch_set_num_threads(4) == ETCH_OK && works();
    return ok && etch_last_status() == ETCH_OK && threads_made == (given < 3 ? given : 3);
}

TEST(fewer_threads_do_the_work) {
    for (int given = 0; given <= 4; given++) {
        threads_given = given;
        int status = in_new_child(work_with_few);
        threads_given = -1;
        assert_int_equal(status, 0);
    }
}

static char warnings[1024];
static void count_warnings(void *ctx, const char *line) {
    size_t n = strlen(warnings);
    snprintf(warnings + n, sizeof warnings - n, "%s\n", line), ++*(int *)ctx;
}

/* One warning; later there are threads again. */
static int more_threads_later(void) {
    int lines = 0;
    etch_set_log_sink(count_warnings, &lines);
    int ok = work_with_few() && works();
    ok &= lines == 1 && strstr(warnings, "2 of 4 threads could not be made") != NULL;
    threads_given = -1, v.mode = _MM_GET_ROUNDING_MODE();
    for (int i = 0; i < 600; i++) etch__parallel(1000, 10, visit, &v);
    etch_set_log_sink(NULL, NULL);
    return ok && threads_made == 3 && work_in_child();
}

TEST(missing_threads_come_later) {
    threads_given = 1;
    int status = in_new_child(more_threads_later);
    threads_given = -1;
    assert_int_equal(status, 0);
}

static int work_within_limit(void) {
    const struct rlimit none = {0, 0};
    if (geteuid() == 0 && setuid(12345) != 0) return 1; /* root has no limit */
    if (setrlimit(RLIMIT_NPROC, &none) != 0) return 0;
    return etch_set_num_threads(4) == ETCH_OK && works();
}

TEST(a_limit_of_processes) { assert_int_equal(in_new_child(work_within_limit), 0); }

/* OpenBLAS has lost its threads by the fork: it is not let to ask for them in vain. */
static int blas_without_threads(void) {
    if (getenv("OPENBLAS_NUM_THREADS")) return 1;
    for (threads_given = 0; threads_given == 0 && !multiplies_f64(); threads_given = -1) {
        if (etch_last_status() != ETCH_ERR_UNSUPPORTED) return 0;
        if (!strstr(etch_last_error(), "OPENBLAS_NUM_THREADS")) return 0;
        etch_clear_error();
    }
    return multiplies_f64() && etch_last_status() == ETCH_OK;
}

TEST(openblas_after_a_fork) {
    assert_int_equal(in_new_child(blas_without_threads), 0);
    assert_true(multiplies_f64());
}
