/* The thread pool: every element once, nested regions, the caller's rounding mode, changes of the
 * number of threads, and a forked child. */
#include "cpu_support.h"

#include <xmmintrin.h>

#include "core/pool.h"

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

static void every_element_once(void **state) {
    (void)state;
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

static void takes_the_rounding_mode_along(void **state) {
    (void)state;
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

static void regions_in_regions_run_where_they_are(void **state) {
    (void)state;
    static visits inner;
    etch_set_num_threads(4);
    memset(&v, 0, sizeof v);
    memset(&inner, 0, sizeof inner);
    inner.mode = _MM_GET_ROUNDING_MODE();
    etch__parallel(64, 1, nested, &inner);
    for (int i = 0; i < 64; i++) assert_int_equal(v.seen[i], 1);
    for (int i = 0; i < 100; i++) assert_int_equal(inner.seen[i], 64);
}

static void bad_counts(void **state) {
    (void)state;
    assert_int_equal(etch_set_num_threads(0), ETCH_ERR_INVALID_ARGUMENT);
    assert_int_equal(etch_set_num_threads(-3), ETCH_ERR_INVALID_ARGUMENT);
    assert_int_equal(etch_set_num_threads(3), ETCH_OK);
    assert_int_equal(etch_num_threads(), 3);
    etch_clear_error();
}

static int work_in_child(void) {
    int ok = 1;
    memset(&v, 0, sizeof v);
    v.mode = _MM_GET_ROUNDING_MODE();
    etch__parallel(COUNT, 100, visit, &v);
    for (int64_t i = 0; i < COUNT; i++) ok &= v.seen[i] == 1;
    ETCH_SCOPE {
        etch_tensor *a = make(ETCH_F32, ETCH_SHAPE(200, 200), LAYOUT_ROW, true);
        etch_tensor *y = etch_mm(a, a), *s = etch_sum(y);
        ok &= s != NULL;
        etch_tensor *d = etch_to(a, ETCH_F64);
        ok &= etch_mm(d, d) != NULL;
    }
    return ok;
}

static void a_forked_child_works(void **state) {
    (void)state;
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_once),
        cmocka_unit_test(takes_the_rounding_mode_along),
        cmocka_unit_test(regions_in_regions_run_where_they_are),
        cmocka_unit_test(bad_counts),
        cmocka_unit_test(a_forked_child_works),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
