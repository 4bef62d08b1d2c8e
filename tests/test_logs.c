/* Logs: channels, the sink, ETCH_LOGS and ETCH_LOGS_OUT, help. What is read at load is tried in a
 * process of its own: this program again, with an argument.
 * Labels: quick. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <etch/etch.h>
#include <etch/profile.h>

#include "etch_test.h"
#include "core/base/base.h"

static const char *self;

static struct {
    char text[65536];
    size_t used;
    int lines;
    bool whole; /* every line had the right start and no newline */
} got;

static void take_line(void *ctx, const char *line) {
    assert_ptr_equal(ctx, &got);
    got.lines++;
    got.whole &= !strncmp(line, "etch: ", 6) && !strchr(line, '\n');
    got.used += (size_t)snprintf(got.text + got.used, sizeof got.text - got.used, "%s\n", line);
    if (got.used > sizeof got.text - 1) got.used = sizeof got.text - 1;
}

static void take(void) {
    memset(&got, 0, sizeof got);
    got.whole = true;
    etch_clear_error();
    etch_set_logs("");
    etch_set_log_sink(take_line, &got);
}

static void let_go(void) {
    etch_set_log_sink(NULL, NULL);
    assert_int_equal(etch_set_logs(""), ETCH_OK);
}
EACH_TEST(.before = take, .after = let_go)

TEST(channels_switch) {
    etch__log(LOG_GRAPH, "off");
    assert_int_equal(etch_set_logs("cache, graph_breaks"), ETCH_OK);
    assert_true(etch__log_on(LOG_CACHE) && etch__log_on(LOG_GRAPH_BREAKS));
    assert_false(etch__log_on(LOG_GRAPH) || etch__log_on(LOG_TRACE));
    etch__log(LOG_GRAPH, "off");
    etch__log(LOG_CACHE, "hit %d", 1);
    assert_string_equal(got.text, "etch: cache: hit 1\n");
    assert_int_equal(etch_set_logs("all"), ETCH_OK);
    for (int i = 0; i < LOG_COUNT; i++) assert_true(etch__log_on((log_channel)i));
    assert_int_equal(etch_set_logs(""), ETCH_OK);
    for (int i = 0; i < LOG_COUNT; i++) assert_false(etch__log_on((log_channel)i));
}

TEST(unknown_channels_change_nothing) {
    assert_int_equal(etch_set_logs("graph"), ETCH_OK);
    assert_int_equal(etch_set_logs("cache,graphs"), ETCH_ERR_NOT_FOUND);
    assert_non_null(strstr(etch_last_error(), "no channel \"graphs\""));
    assert_true(etch__log_on(LOG_GRAPH));
    assert_false(etch__log_on(LOG_CACHE));
    assert_int_equal(etch_set_logs(NULL), ETCH_ERR_NULL);
}

TEST(lines_and_lengths) {
    char longer[5000];
    memset(longer, 'x', sizeof longer);
    longer[sizeof longer - 1] = 0;
    etch_set_logs("graph");
    etch__log(LOG_GRAPH, "one\n  two\n\nfour\n");
    assert_string_equal(got.text,
                        "etch: graph: one\netch: graph:   two\netch: graph: \netch: graph: four\n");
    got.used = 0;
    etch__log(LOG_GRAPH, "%s", longer);
    assert_int_equal(strlen(got.text), strlen("etch: graph: \n") + strlen(longer));
    etch__warn("careful, %s", "you");
    assert_non_null(strstr(got.text, "\netch: warning: careful, you\n"));
    assert_true(got.whole);
}

TEST(logging_keeps_the_error) {
    char longer[5000];
    memset(longer, 'x', sizeof longer);
    longer[sizeof longer - 1] = 0;
    etch_set_logs("graph");
    etch__error(ETCH_ERR_SHAPE, "mine");
    for (int64_t n = 0; n < 3; n++) {
        got.lines = 0;
        etch__fail_allocation(n);
        etch__log(LOG_GRAPH, "%s", longer);
        etch__fail_allocation(-1);
        assert_int_equal(got.lines, 1); /* cut, but there */
        assert_int_equal(etch_last_status(), ETCH_ERR_SHAPE);
        assert_memory_equal(etch_last_error(), "mine", 4);
    }
    etch_clear_error();
}

static void log_from_inside(void *ctx, const char *line) {
    (void)line;
    ++*(int *)ctx;
    etch__warn("from the sink");
    etch_set_log_sink(log_from_inside, ctx);
}

TEST(sinks_may_log) {
    int calls = 0;
    etch_set_log_sink(log_from_inside, &calls);
    etch__warn("a");
    etch__warn("b");
    assert_int_equal(calls, 2);
}

static void *warns(void *arg) {
    for (int i = 0; i < 100; i++) etch__warn("from a thread");
    return arg;
}

TEST(threads_take_turns) {
    pthread_t t[4];
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&t[i], NULL, warns, NULL), 0);
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    assert_int_equal(got.lines, 400);
    assert_int_equal(got.used, 400 * strlen("etch: warning: from a thread\n"));
}

TEST(help_shows_every_table) {
    assert_int_equal(etch_set_logs("help"), ETCH_OK);
#define LOG(id, name, help) assert_non_null(strstr(got.text, "etch: help:   " name));
#include "core/base/logs.def"
#undef LOG
#define PARAM(id, variable, value, help) assert_non_null(strstr(got.text, variable));
#include "core/base/params.def"
#undef PARAM
#define REASON(id, name, sentence, hint) assert_non_null(strstr(got.text, sentence));
#include "core/base/reasons.def"
#undef REASON
#define ETCH_ERROR(code, name, meaning) assert_non_null(strstr(got.text, meaning));
#include <etch/errors.def>
#undef ETCH_ERROR
    assert_true(got.whole);
}

/* ---- the environment ---- */

/* Runs this program with settings and an argument; text gets what it writes to standard error. */
static void run_self(const char *settings, const char *argument, char *text, size_t n) {
    char command[512];
    snprintf(command, sizeof command, "%s '%s' child %s 2>&1", settings, self, argument);
    FILE *p = popen(command, "r");
    assert_non_null(p);
    size_t length = fread(text, 1, n - 1, p);
    text[length] = 0;
    assert_int_equal(pclose(p), 0);
}

static int child(const char *what) {
    if (!strcmp(what, "log")) {
        etch__log(LOG_CACHE, "a line");
        etch__log(LOG_GRAPH, "another");
    }
    return 0;
}

TEST(environment_is_read_at_load) {
    char text[65536];
    run_self("ETCH_LOGS=cache", "log", text, sizeof text);
    assert_string_equal(text, "etch: cache: a line\n");
    run_self("ETCH_LOGS=", "log", text, sizeof text);
    assert_string_equal(text, "");
    run_self("ETCH_LOGS=cash", "log", text, sizeof text);
    assert_non_null(strstr(text, "etch: warning: ETCH_LOGS: no channel \"cash\""));
    run_self("ETCH_LOGS=help", "none", text, sizeof text);
    assert_non_null(strstr(text, "etch: help:   graph_breaks"));
}

TEST(logs_go_to_a_file) {
    char text[4096], path[] = "/tmp/etch_logs_XXXXXX", settings[128];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    snprintf(settings, sizeof settings, "ETCH_LOGS=all ETCH_LOGS_OUT=%s", path);
    run_self(settings, "log", text, sizeof text);
    assert_string_equal(text, "");
    run_self(settings, "log", text, sizeof text); /* appends */
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd), unlink(path);
    assert_true(n >= 0);
    text[n] = 0;
    assert_string_equal(text, "etch: cache: a line\netch: graph: another\n"
                              "etch: cache: a line\netch: graph: another\n");
    run_self("ETCH_LOGS=cache ETCH_LOGS_OUT=/proc/none/x", "log", text, sizeof text);
    assert_non_null(strstr(text, "cannot append logs to /proc/none/x"));
    assert_non_null(strstr(text, "etch: cache: a line\n"));
}

static _Atomic bool stop;

static void *warns_all_the_time(void *arg) {
    while (!stop) etch__warn("busy");
    return arg;
}

static void quiet(void *ctx, const char *line) { (void)ctx, (void)line; }

TEST(works_after_fork) {
    pthread_t t;
    int status;
    stop = false;
    etch_set_log_sink(quiet, NULL);
    assert_int_equal(pthread_create(&t, NULL, warns_all_the_time, NULL), 0);
    for (int i = 0; i < 10; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            alarm(20); /* a lock that was left taken would hang */
            etch__warn("in the child");
            _exit(0);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    stop = true;
    pthread_join(t, NULL);
}

/* ---- a sink that calls what another thread compiles, which is about to log ---- */

static struct {
    pthread_t thread;
    etch_function *f;
    _Atomic bool waits, compiling, called;
} shared;

static etch_tensor *shared_body(etch_tensor *x) { return etch_neg(etch_exp(x)); }

static void begins(void *ctx) {
    (void)ctx;
    shared.compiling = true;
}

static void calls_it(void *ctx, const char *line) {
    (void)ctx, (void)line;
    if (!pthread_equal(pthread_self(), shared.thread) || shared.waits) return;
    shared.waits = true;
    while (!shared.compiling) usleep(100);
    ETCH_SCOPE {
        etch_tensor *x = etch_ones(ETCH_F32, ETCH_SHAPE(3));
        etch_tensor *y = etch_call(shared.f, x);
        shared.called = y && etch_bitwise_equal(y, shared_body(x));
    }
}

static void *enters_sink(void *unused) {
    shared.thread = pthread_self();
    etch__log(LOG_GRAPH, "a line");
    return unused;
}

TEST(sinks_may_call_what_is_compiled) {
    pthread_t t;
    shared.f = etch_compile(shared_body);
    assert_int_equal(etch_set_logs("graph"), ETCH_OK);
    etch_set_log_sink(calls_it, NULL);
    int64_t handle = etch_on_compile_start(begins, NULL);
    assert_int_equal(pthread_create(&t, NULL, enters_sink, NULL), 0);
    while (!shared.waits) usleep(100);
    ETCH_SCOPE {
        etch_tensor *x = etch_ones(ETCH_F32, ETCH_SHAPE(2));
        assert_non_null(etch_call(shared.f, x));
    }
    pthread_join(t, NULL);
    assert_true(shared.called);
    etch_callback_remove(handle);
    etch_function_free(shared.f);
}

static _Atomic bool in_sink, forking;

static void calls_during_fork(void *ctx, const char *line) {
    (void)ctx, (void)line;
    if (!pthread_equal(pthread_self(), shared.thread) || in_sink) return;
    in_sink = true;
    while (!forking) usleep(100);
    usleep(50000); /* until it waits for this sink */
    ETCH_SCOPE { shared.called = etch_call(shared.f, etch_ones(ETCH_F32, ETCH_SHAPE(4))) != NULL; }
}

/* What fork takes of the library's locks it takes after that of the log. */
TEST(sinks_may_call_while_another_thread_forks) {
    pthread_t t;
    int status;
    shared.f = etch_compile(shared_body), shared.called = false;
    etch_set_log_sink(calls_during_fork, NULL);
    assert_int_equal(etch_set_logs("graph"), ETCH_OK);
    assert_int_equal(pthread_create(&t, NULL, enters_sink, NULL), 0);
    while (!in_sink) usleep(100);
    forking = true;
    pid_t pid = fork();
    if (pid == 0) _exit(0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    pthread_join(t, NULL);
    assert_true(shared.called);
    etch_function_free(shared.f);
}

/* ---- writes that raise signals ---- */

static int ends_well(void (*body)(void)) {
    int status = -1;
    pid_t pid = fork();
    if (pid == 0) {
        body();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void warn_into_closed_pipe(void) {
    int ends[2];
    if (pipe(ends) != 0 || close(ends[0]) != 0 || dup2(ends[1], 2) < 0) _exit(1);
    etch__warn("nobody reads this");
    etch__warn("nor this");
    sigset_t pending;
    if (sigpending(&pending) != 0 || sigismember(&pending, SIGPIPE)) _exit(2);
    raise(SIGPIPE); /* the program's own signals are as they were */
}

TEST(a_warning_to_a_closed_pipe) {
    int status = ends_well(warn_into_closed_pipe);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGPIPE);
}

static char limited_path[] = "/tmp/etch_logs_XXXXXX";
static void write_past_the_limit(void) {
    const struct rlimit none = {0, RLIM_INFINITY};
    if (setrlimit(RLIMIT_FSIZE, &none) != 0) _exit(1);
    if (!freopen(limited_path, "a", stderr)) _exit(2);
    etch__warn("no room for this");
    ETCH_SCOPE {
        etch_tensor *t = etch_ones(ETCH_F32, ETCH_SHAPE(1000));
        if (etch_npy_save(limited_path, t) != ETCH_ERR_IO) _exit(3);
    }
    if (etch_profile_begin(limited_path) != ETCH_OK || etch_profile_end() != ETCH_ERR_IO) _exit(4);
}

TEST(files_at_their_limit) {
    int fd = mkstemp(limited_path);
    assert_true(fd >= 0 && close(fd) == 0);
    assert_int_equal(ends_well(write_past_the_limit), 0);
    unlink(limited_path);
}

TEST(log_channels_of_the_table) {
    static const char *const names[] = {
        "graph_breaks", "output_code", "graph", "guards",     "recompiles", "fusion",
        "schedule",     "cache",       "modes", "perf_hints", "trace",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_int_equal(etch_set_logs(names[i]), ETCH_OK);
    etch_set_logs("");
}

int main(int argc, char **argv) {
    self = argv[0];
    if (argc > 2) return child(argv[2]);
    return run_suite(argc, argv);
}
