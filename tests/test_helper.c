/* The helper process in trouble, and hosts that are unkind to children: compiling fails with a
 * reason or works, never anything else, and leaves nothing behind. */
#include "jit_common.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>

static void missing(void) {
    CHECK(refused(1, "ETCH_JIT"));
    CHECK(refused(1, "ETCH_JIT"));
}
TEST(missing) {
    setenv("ETCH_JIT", "/proc/none/etch-jit", 1);
    in_child(missing);
    assert_int_equal(entries(cache), 0);
}

static void no_helper(void) { CHECK(refused(1, "the helper")); }
TEST(not_a_helper) {
    setenv("ETCH_JIT", "/bin/true", 1);
    in_child(no_helper);
    assert_int_equal(entries(cache), 0);
}

/* A fault, then (without it) the same kernel again in the same process. */
static const char *fault_word;
static void fault_then_well(void) {
    CHECK(refused(1, fault_word));
    CHECK(refused(2, fault_word));
    CHECK(etch_counters().kernels_compiled == 0);
    etch__jit_shutdown(); /* a helper that is told to fail stays up, with its environment */
    CHECK(entries(cache) == 0);
    unsetenv("ETCH_JIT_FAULT");
    CHECK(works(1));
    CHECK(etch_counters().kernels_compiled == 1);
}

static void check_fault(const char *fault, const char *word) {
    setenv("ETCH_JIT_FAULT", fault, 1);
    fault_word = word;
    in_child(fault_then_well);
    assert_int_equal(entries(cache), 1);
}

TEST(told_to_fail) { check_fault("fail", "told to fail"); }
TEST(killed) { check_fault("kill", "in the middle"); }
TEST(hanging) {
    setenv("ETCH_JIT_TIMEOUT", "1", 1);
    check_fault("hang", "in time");
}

/* One request for several kernels fails as a whole. */
static void several(void) {
    loop_kernel k[3];
    const loop_kernel *p[4] = {&k[0], &k[1], &k[2], &k[0]};
    loaded_kernel *l[4] = {(void *)1, (void *)1, (void *)1, (void *)1};
    const char *why = NULL;
    for (int i = 0; i < 3; i++) small_kernel(&k[i], i + 10);
    CHECK(!etch__kernels_get(p, 4, l, &why) && why);
    for (int i = 0; i < 4; i++) CHECK(!l[i]);
    etch__jit_shutdown();
    unsetenv("ETCH_JIT_FAULT");
    CHECK(etch__kernels_get(p, 4, l, &why));
    CHECK(l[0] == l[3] && etch_counters().kernels_compiled == 3 && etch_counters().kernels == 4);
    for (int i = 0; i < 3; i++) CHECK(computes(l[i], i + 10));
    for (int i = 0; i < 4; i++) etch__kernel_release(l[i]);
}
TEST(several) {
    setenv("ETCH_JIT_FAULT", "kill", 1);
    in_child(several);
    assert_int_equal(entries(cache), 3);
}

/* The one child of this thread, or 0. */
static pid_t only_child(void) {
    char path[64];
    int pid = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    FILE *f = fopen(path, "r");
    if (f && fscanf(f, "%d", &pid) != 1) pid = 0;
    if (f) fclose(f);
    return pid;
}

static void warm_one_dies(void) {
    CHECK(works(1));
    pid_t helper = only_child();
    CHECK(helper > 0);
    CHECK(works(2) && only_child() == helper); /* it stays warm */
    kill(helper, SIGKILL);
    CHECK(works(3));
    CHECK(only_child() != helper);
}
TEST(warm_one_dies) {
    in_child(warm_one_dies);
    assert_int_equal(entries(cache), 3);
}

/* ---- helpers that do not end, and replies that do not ---- */

static bool gone(pid_t pid) { return kill(-pid, 0) != 0 && errno == ESRCH; }

static void stopped_helper(void) {
    alarm(100);
    CHECK(works(1));
    pid_t helper = only_child();
    CHECK(kill(helper, SIGSTOP) == 0);
    etch_cache_clear();
    CHECK(gone(helper) && entries(cache) == 0);
    CHECK(works(2));
    CHECK(kill(only_child(), SIGSTOP) == 0);
}
TEST(stopped_helper) {
    in_child(stopped_helper);
    assert_int_equal(entries(cache), 1);
}

/* A script around the helper that is still there when the helper has ended. */
static void lingering_script(void) {
    alarm(100);
    CHECK(works(1));
    pid_t script = only_child();
    etch_cache_clear();
    CHECK(kill(script, 0) != 0 && errno == ESRCH);
    CHECK(works(2) && works(3));
}
TEST(lingering_script) {
    char path[128];
    snprintf(path, sizeof path, "%s/script", test_dir);
    FILE *f = fopen(path, "w");
    fprintf(f, "#!/bin/sh\n%s \"$@\" 3<&3\nexec 3<&-\nsleep 1000\n",
            ETCH_TEST_BINARY_DIR "/jit/helper/etch-jit");
    fclose(f);
    assert_int_equal(chmod(path, 0700), 0);
    setenv("ETCH_JIT", path, 1);
    in_child(lingering_script);
    unlink(path);
}

static void refused_in_time(void) {
    alarm(100); /* the reply's last byte would come after 18 hours */
    CHECK(refused(1, "in time") && refused(2, "in time"));
}
TEST(trickling_reply) {
    lie("trickle");
    setenv("ETCH_JIT_TIMEOUT", "1", 1);
    in_child(refused_in_time);
    assert_int_equal(entries(cache), 0);
}

static atomic_bool answered;
static void *waits_for_a_mute(void *unused) {
    CHECK(refused(1, "in time"));
    answered = true;
    return unused;
}
/* While a thread waits for its helper another one clears the cache. */
static void clear_meanwhile(void) {
    pthread_t t;
    alarm(100);
    CHECK(pthread_create(&t, NULL, waits_for_a_mute, NULL) == 0);
    while (entries(cache) < 2) usleep(1000); /* its object and the helper's folder */
    etch_cache_clear();
    CHECK(!answered);
    pthread_join(t, NULL);
    CHECK(entries(cache) == 0);
}
TEST(clear_does_not_wait) {
    lie("mute");
    setenv("ETCH_JIT_TIMEOUT", "5", 1);
    in_child(clear_meanwhile);
}

/* Threads behind one whose helper is mute give up as well, each after its own time. */
static void *waits_in_line(void *unused) {
    CHECK(refused(1, "ETCH_JIT_TIMEOUT"));
    return unused;
}
static void queue_behind_a_mute(void) {
    pthread_t t[4];
    alarm(100);
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&t[i], NULL, waits_in_line, NULL) == 0);
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
}
TEST(queue_behind_a_mute) {
    lie("mute");
    setenv("ETCH_JIT_TIMEOUT", "1", 1);
    in_child(queue_behind_a_mute);
    assert_int_equal(entries(cache), 0);
}

static void ignore_children(void) {
    signal(SIGCHLD, SIG_IGN);
    CHECK(works(1));
    setenv("ETCH_JIT_FAULT", "kill", 1);
    etch__jit_shutdown();
    CHECK(refused(2, "in the middle"));
    unsetenv("ETCH_JIT_FAULT");
    CHECK(works(2));
}
TEST(sigchld_ignored) {
    in_child(ignore_children);
    assert_int_equal(entries(cache), 2);
}

static void reap(int sig) {
    (void)sig;
    while (waitpid(-1, NULL, WNOHANG) > 0) {}
}
static void reap_everything(void) {
    struct sigaction a = {.sa_handler = reap};
    sigaction(SIGCHLD, &a, NULL); /* without SA_RESTART: calls are interrupted too */
    CHECK(works(1));
    setenv("ETCH_JIT_FAULT", "kill", 1);
    etch__jit_shutdown();
    CHECK(refused(2, "in the middle"));
    unsetenv("ETCH_JIT_FAULT");
    CHECK(works(2));
}
TEST(host_reaps) {
    in_child(reap_everything);
    assert_int_equal(entries(cache), 2);
}

/* The child has its own helper and the parent keeps its own. */
static void fork_inside(void) {
    CHECK(works(1));
    pid_t helper = only_child(), child = fork();
    if (child == 0) {
        CHECK(works(1) && works(2));
        CHECK(only_child() != helper);
        etch__jit_shutdown();
        _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(status == 0);
    CHECK(works(3) && only_child() == helper);
    CHECK(etch_counters().kernels_compiled == 2);
}
TEST(after_fork) {
    in_child(fork_inside);
    assert_int_equal(entries(cache), 3);
}

static int open_files(bool *all_cloexec) {
    int n = 0;
    for (int fd = 3; fd < 256; fd++) {
        int flags = fcntl(fd, F_GETFD);
        if (flags < 0) continue;
        n++;
        *all_cloexec &= (flags & FD_CLOEXEC) != 0;
    }
    return n;
}

static void descriptors(void) {
    bool cloexec = true;
    for (int fd = 3; fd < 256; fd++) close(fd);
    CHECK(works(1));
    int n = open_files(&cloexec);
    CHECK(cloexec && n == 1);
    CHECK(works(2) && works(3));
    CHECK(open_files(&cloexec) == n);
    etch__jit_shutdown();
    CHECK(open_files(&cloexec) == 0);
}
TEST(descriptors) { in_child(descriptors); }

static void closed_standard(void) {
    int err = dup(2);
    close(0), close(1), close(2);
    bool ok = works(1) && works(2);
    dup2(err, 2);
    CHECK(ok);
}
TEST(standard_files_closed) { in_child(closed_standard); }

static void *worker(void *unused) {
    (void)unused;
    for (int i = 0; i < 3; i++) CHECK(works(i));
    return NULL;
}
static void threads(void) {
    pthread_t t[4];
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&t[i], NULL, worker, NULL) == 0);
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    CHECK(etch_counters().kernels == 12);
}
TEST(threads) {
    in_child(threads);
    assert_int_equal(entries(cache), 3);
}

static char logged[1 << 16];
static void sink(void *ctx, const char *line) {
    (void)ctx;
    size_t n = strlen(logged);
    snprintf(logged + n, sizeof logged - n, "%s\n", line);
}
static void logs(void) {
    etch_set_log_sink(sink, NULL);
    CHECK(etch_set_logs("output_code,cache") == ETCH_OK);
    CHECK(works(5));
    CHECK(strstr(logged, "kernel small/5: map") && strstr(logged, "= mul f32 %0, %1"));
    CHECK(strstr(logged, "etch_small_5 (")); /* libgccjit's own dump */
    CHECK(strstr(logged, "compiled in"));
}
TEST(logs) { in_child(logs); }

static void allocations(void) {
    int64_t sites = 0;
    loaded_kernel *l;
    const char *why;
    for (bool ok = false; !ok; sites++) {
        CHECK(sites < 100);
        etch__fail_allocation(sites);
        ok = get_number(6, &l, &why);
        etch__fail_allocation(-1);
        if (!ok) CHECK(!l);
    }
    CHECK(sites > 3);
    CHECK(computes(l, 6));
    etch__kernel_release(l);
}
TEST(allocation_failures) { in_child(allocations); }

int main(int argc, char **argv) {
    if (getenv("ETCH_TEST_HELPER")) return false_helper(getenv("ETCH_TEST_HELPER"));
    if (make_test_dir()) return 1;
    int failed = run_suite(argc, argv);
    etch__remove_tree(test_dir);
    return failed;
}
