/* The library's side of the helper: finding, starting, feeding and ending etch-jit.
 *
 * One mutex covers all of it: a batch of compiles has up to two helpers, one of which stays warm
 * and is replaced after HELPER_COMPILES (libgccjit leaks). The library must work in a host that
 * ignores SIGCHLD, reaps all children itself, or forks: a helper belongs to the process that
 * started it, no signal handler is needed, nothing is said about a child that somebody else has
 * reaped. */
#include "jit/client.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/isa.h"
#include "jit/wire.h"

extern char **environ;

enum { HELPERS = 2, HELPER_COMPILES = 64 };

typedef struct helper {
    pid_t pid; /* 0: none */
    int fd;
    int served;
    char dir[256];
    jit_job *job; /* being compiled */
    double started, deadline;
} helper;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static helper helpers[HELPERS];

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* ---- folders ---- */

static void remove_below(const char *path, int depth) {
    DIR *d = depth < 4 ? opendir(path) : NULL;
    for (struct dirent *e; d && (e = readdir(d));) {
        char inner[PATH_MAX];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        int n = snprintf(inner, sizeof inner, "%s/%s", path, e->d_name);
        if (n > 0 && n < (int)sizeof inner && unlink(inner) != 0) remove_below(inner, depth + 1);
    }
    if (d) closedir(d);
    rmdir(path);
}

void etch__remove_tree(const char *path) { remove_below(path, 0); }

/* ---- where the helper is ---- */

static char helper_path[PATH_MAX];
static const char *helper_missing;

/* Beside the library or program, in the folders of an installation, in a build tree. */
static const char *const places[] = {
    "etch-jit",
    "../libexec/etch/etch-jit",
    "../../libexec/etch/etch-jit",
    "../bin/etch-jit",
    "../../bin/etch-jit",
    "jit/helper/etch-jit",
    "../jit/helper/etch-jit",
};

static bool own_folder(char *dir) {
    Dl_info info;
    if (!dladdr((void *)etch__jit_compile, &info) || !info.dli_fname ||
        !strchr(info.dli_fname, '/') || !realpath(info.dli_fname, dir)) {
        if (!realpath("/proc/self/exe", dir)) return false;
    }
    char *slash = strrchr(dir, '/');
    if (slash) *slash = 0;
    return slash != NULL;
}

static void find_helper(void) {
    const char *wanted = etch__param(PARAM_JIT);
    char dir[PATH_MAX], path[PATH_MAX + 32];
    if (*wanted) {
        if (access(wanted, X_OK) == 0 && realpath(wanted, helper_path)) return;
        helper_missing = "the helper named by ETCH_JIT is not there";
        helper_path[0] = 0;
        return;
    }
    for (int i = 0; own_folder(dir) && i < COUNT_OF(places); i++) {
        snprintf(path, sizeof path, "%s/%s", dir, places[i]);
        if (access(path, X_OK) == 0 && realpath(path, helper_path)) return;
    }
    helper_path[0] = 0;
    helper_missing = "the helper etch-jit was not found: set ETCH_JIT";
}

static void forget_after_fork(void) {
    pthread_mutex_init(&lock, NULL);
    for (int i = 0; i < HELPERS; i++) {
        if (helpers[i].pid) close(helpers[i].fd);
        memset(&helpers[i], 0, sizeof helpers[i]);
    }
}

static void set_up(void) {
    find_helper();
    pthread_atfork(NULL, NULL, forget_after_fork);
}

const char *etch__jit_helper(const char **why) {
    pthread_once(&once, set_up);
    if (!helper_path[0] && why) *why = helper_missing;
    return helper_path[0] ? helper_path : NULL;
}

/* ---- starting and ending ---- */

/* The child gets default signals (a host may ignore SIGCHLD, which would break the compiler's own
 * wait), an own group (so that its assembler goes with it) and no descriptors of the host's but the
 * socket and /dev/null. */
static int spawn(helper *h, int socket) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    sigset_t all, none;
    char *argv[] = {helper_path, h->dir, NULL};
    sigfillset(&all), sigemptyset(&none);
    sigdelset(&all, SIGKILL), sigdelset(&all, SIGSTOP);
    if (posix_spawn_file_actions_init(&actions) != 0) return ENOMEM;
    posix_spawnattr_init(&attr);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK |
                                        POSIX_SPAWN_SETPGROUP);
    posix_spawnattr_setsigdefault(&attr, &all);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setpgroup(&attr, 0);
    posix_spawn_file_actions_adddup2(&actions, socket, WIRE_FD);
    for (int fd = 0; fd < 3; fd++)
        posix_spawn_file_actions_addopen(&actions, fd, "/dev/null", O_RDWR, 0);
    int error = posix_spawn(&h->pid, helper_path, &actions, &attr, argv, environ);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&actions);
    return error;
}

/* The socket's end for the child must not be one of 0..3 of a host that has closed those. */
static bool above_standard(int *fd) {
    int up = fcntl(*fd, F_DUPFD_CLOEXEC, WIRE_FD + 1);
    if (up < 0) return false;
    close(*fd);
    *fd = up;
    return true;
}

static const char *start(helper *h, const char *base) {
    int pair[2];
    memset(h, 0, sizeof *h);
    int n = snprintf(h->dir, sizeof h->dir, "%s/tmp-XXXXXX", base);
    if (n >= (int)sizeof h->dir || !mkdtemp(h->dir)) return "no folder for temporary files";
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return rmdir(h->dir), "socketpair failed";
    int error = above_standard(&pair[0]) && above_standard(&pair[1]) ? spawn(h, pair[1]) : EMFILE;
    close(pair[1]);
    if (!error) return h->fd = pair[0], NULL;
    close(pair[0]);
    rmdir(h->dir);
    h->pid = 0;
    return "the helper could not be started";
}

/* An idle helper ends when its socket closes and removes its folder; one in trouble is killed. */
static void end(helper *h, bool by_force) {
    if (!h->pid) return;
    if (by_force && waitpid(h->pid, NULL, WNOHANG) == 0)
        kill(-h->pid, SIGKILL), kill(h->pid, SIGKILL);
    close(h->fd);
    while (waitpid(h->pid, NULL, 0) < 0 && errno == EINTR) {}
    etch__remove_tree(h->dir);
    h->pid = 0, h->job = NULL, h->served = 0;
}

void etch__jit_shutdown(void) {
    pthread_once(&once, set_up);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < HELPERS; i++) end(&helpers[i], false);
    pthread_mutex_unlock(&lock);
}

/* ---- one job ---- */

static bool send_all(int fd, const void *from, size_t n) {
    for (const char *p = from; n;) {
        ssize_t put = send(fd, p, n, MSG_NOSIGNAL);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return false;
        p += put, n -= (size_t)put;
    }
    return true;
}

/* Waits for input until the helper's deadline; 1: there is some, 0: too late, -1: error. */
static int wait_input(const helper *h) {
    for (;;) {
        double left = h->deadline - now_ms();
        struct pollfd p = {h->fd, POLLIN, 0};
        int got = poll(&p, 1, left > 0 ? (int)left + 1 : 0);
        if (got >= 0 || errno != EINTR) return got;
    }
}

static bool read_all(const helper *h, void *to, size_t n) {
    for (char *p = to; n;) {
        if (wait_input(h) <= 0) return false;
        ssize_t got = recv(h->fd, p, n, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        p += got, n -= (size_t)got;
    }
    return true;
}

static bool submit(helper *h, jit_job *job) {
    h->job = job;
    h->started = now_ms();
    h->deadline = h->started + (double)etch__param_int(PARAM_JIT_TIMEOUT) * 1e3;
    wire_request r = {WIRE_MAGIC,
                      (uint32_t)etch__cpu_isa(),
                      job->want_dump ? WIRE_DUMP : 0,
                      (uint32_t)job->kernel_bytes,
                      (uint32_t)strlen(job->object),
                      (uint32_t)strlen(job->symbol)};
    return send_all(h->fd, &r, sizeof r) && send_all(h->fd, job->kernel, job->kernel_bytes) &&
           send_all(h->fd, job->object, r.path_bytes) &&
           send_all(h->fd, job->symbol, r.symbol_bytes);
}

static bool receive_dump(helper *h, uint32_t n) {
    if (n >= WIRE_MAX_PART) return false;
    char *text = etch__malloc((size_t)n + 1);
    if (!text) return false;
    if (!read_all(h, text, n)) return etch__free(text), false;
    text[n] = 0;
    h->job->dump = text;
    return true;
}

static bool receive(helper *h) {
    jit_job *job = h->job;
    wire_reply r;
    if (!read_all(h, &r, sizeof r) || r.magic != WIRE_MAGIC) return false;
    if (r.message_bytes >= WIRE_MAX_PART) return false;
    for (uint32_t n = 0; n < r.message_bytes; n++) {
        char c;
        if (!read_all(h, &c, 1)) return false;
        if (n + 1 < sizeof job->message) job->message[n] = c, job->message[n + 1] = 0;
    }
    if (r.dump_bytes && !receive_dump(h, r.dump_bytes)) return false;
    job->ok = r.ok == 1;
    job->ms = now_ms() - h->started;
    h->served++;
    return true;
}

static void fail(jit_job *job, const char *why) {
    job->ok = false;
    snprintf(job->message, sizeof job->message, "%s", why);
    if (job->object[0]) unlink(job->object);
    job->object[0] = 0;
}

/* Reserves the object's name in the folder of the cache, from where it can be renamed. */
static bool new_object(jit_job *job, const char *base) {
    if (job->object[0]) return true;
    int n = snprintf(job->object, sizeof job->object, "%s/tmp-XXXXXX.so", base);
    int fd = n < (int)sizeof job->object ? mkostemps(job->object, 3, O_CLOEXEC) : -1;
    if (fd < 0) return job->object[0] = 0, false;
    close(fd);
    return true;
}

/* ---- a batch ---- */

/* Gives the job to the helper, starting or replacing it; a warm helper that has died since is
 * replaced once. */
static bool dispatch(helper *h, jit_job *job, const char *base) {
    if (h->pid && h->served >= HELPER_COMPILES) end(h, false);
    if (!new_object(job, base)) return fail(job, "no room for the object"), false;
    for (int attempt = 0; attempt < 2; attempt++) {
        const char *why = h->pid ? NULL : start(h, base);
        if (why) return fail(job, why), false;
        if (submit(h, job)) return true;
        end(h, true);
    }
    return fail(job, "the helper does not take requests"), false;
}

/* The helper has answered, died or run out of time. */
static void settle(helper *h, const char *base) {
    jit_job *job = h->job;
    bool late = now_ms() >= h->deadline, warm = h->served > 0;
    if (!late && receive(h)) {
        if (!job->ok && job->object[0]) unlink(job->object), job->object[0] = 0;
        h->job = NULL;
        return;
    }
    late = now_ms() >= h->deadline;
    end(h, true);
    if (late) fail(job, "the helper did not answer in time (ETCH_JIT_TIMEOUT)");
    else if (!warm) fail(job, "the helper ended in the middle of a compile");
    else dispatch(h, job, base); /* the new one has served nothing: no second try */
}

static bool any_busy(void) { return helpers[0].job || helpers[1].job; }

/* Sleeps until a busy helper has something to say or is late. */
static void wait_any(void) {
    struct pollfd p[HELPERS];
    int n = 0;
    double left = 1e9;
    for (int i = 0; i < HELPERS; i++) {
        if (!helpers[i].job) continue;
        p[n++] = (struct pollfd){helpers[i].fd, POLLIN, 0};
        if (helpers[i].deadline - now_ms() < left) left = helpers[i].deadline - now_ms();
    }
    poll(p, (nfds_t)n, left > 0 ? (int)(left < 1e9 ? left : 1e9) + 1 : 0);
}

static bool ready(const helper *h) {
    struct pollfd p = {h->fd, POLLIN, 0};
    return poll(&p, 1, 0) != 0 || now_ms() >= h->deadline;
}

static void run_batch(jit_job *jobs, int n, const char *base) {
    int next = 0, width = n > 1 ? HELPERS : 1;
    bool ok = true; /* after a failure nothing new is begun */
    while ((ok && next < n) || any_busy()) {
        for (int i = 0; i < width && ok && next < n; i++)
            if (!helpers[i].job) ok = dispatch(&helpers[i], &jobs[next++], base);
        if (!any_busy()) continue;
        wait_any();
        for (int i = 0; i < width; i++) {
            jit_job *job = helpers[i].job;
            if (job && ready(&helpers[i])) settle(&helpers[i], base);
            if (job && !helpers[i].job) ok &= job->ok;
        }
    }
    for (; next < n; next++) fail(&jobs[next], "another kernel of the plan failed");
}

bool etch__jit_compile(jit_job *jobs, int n, const char *base, bool keep_warm) {
    const char *why = "";
    bool ok = true, found = etch__jit_helper(&why) != NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n; i++)
        jobs[i].ok = false, jobs[i].dump = NULL, jobs[i].object[0] = jobs[i].message[0] = 0;
    if (found) run_batch(jobs, n, base);
    for (int i = 0; i < n; i++) {
        if (!found) fail(&jobs[i], why);
        ok &= jobs[i].ok;
    }
    if (!keep_warm) end(&helpers[0], false);
    end(&helpers[1], false);
    pthread_mutex_unlock(&lock);
    return ok;
}
