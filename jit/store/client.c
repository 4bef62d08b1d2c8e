/* The library's side of the helper: finding, starting, feeding and ending etch-jit.
 *
 * One mutex covers all of it: a batch of compiles has up to two helpers, one of which stays warm
 * and is replaced after HELPER_COMPILES (libgccjit leaks). Under it nothing waits but for a
 * helper's work, each job until its deadline; that a helper exits is waited for elsewhere, shortly,
 * and never by who only wants it to go. The library must work in a host that ignores SIGCHLD, reaps
 * all children itself, or forks: a helper belongs to the process that started it, no signal handler
 * is needed, nothing is said about a child that somebody else has reaped. */
#include "core/base/locks.h"
#include "jit/store/client.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/base/isa.h"
#include "jit/store/wire.h"

extern char **environ;

enum { HELPERS = 2, HELPER_COMPILES = 64 };

typedef struct helper {
    pid_t pid; /* 0: none */
    int fd;
    int served;
    char dir[256];
    jit_job *job; /* being compiled */
} helper;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static helper helpers[HELPERS];
static atomic_bool shutdown_wanted; /* asked for while a batch runs: its end does it */
static _Atomic int64_t progress;    /* replies, of any thread's jobs */

/* Helpers that were ended and have not been seen to exit. */
typedef struct dead_helper {
    pid_t pid; /* 0: none */
    char dir[256];
} dead_helper;

enum { DEAD_MAX = 16, BURY_MS = 100 };
static dead_helper dead[DEAD_MAX];

/* ---- folders ---- */

/* Relative to descriptors, so that no level needs room for a path. The loop's entry is removed by
 * its own name; what another process removes meanwhile is no matter. */
static void empty_folder(int fd, int depth) {
    DIR *d = fdopendir(fd);
    if (!d) close(fd);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        if (unlinkat(fd, e->d_name, 0) == 0 || depth == 0) continue;
        int inner = openat(fd, e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (inner >= 0) empty_folder(inner, depth - 1);
        unlinkat(fd, e->d_name, AT_REMOVEDIR);
    }
    if (d) closedir(d);
}

void etch__remove_tree(const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0) empty_folder(fd, 4);
    rmdir(path);
}

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

/* Once in a process; its paths are too large for the stack of a thread that compiles. */
static void find_helper(void) {
    static char dir[PATH_MAX], path[PATH_MAX + 32];
    const char *wanted = etch__param(PARAM_JIT);
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
    memset(dead, 0, sizeof dead); /* the parent's to bury */
    shutdown_wanted = false;
    for (int i = 0; i < HELPERS; i++) {
        if (helpers[i].pid) close(helpers[i].fd);
        memset(&helpers[i], 0, sizeof helpers[i]);
    }
}

static void set_up(void) {
    find_helper();
    etch__at_fork(LOCK_HELPERS, (fork_hooks){.child = forget_after_fork});
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

/* ---- burying: helpers that were ended, whose exit nobody waits for under the lock ---- */

static bool has_ended(pid_t pid) {
    pid_t got;
    while ((got = waitpid(pid, NULL, WNOHANG)) < 0 && errno == EINTR) {}
    return got != 0; /* an error: somebody else has reaped it */
}

/* Looks after the place: true when it is empty now. */
static bool bury_one(dead_helper *d) {
    etch__lock(LOCK_DEAD_HELPERS);
    dead_helper mine = *d;
    bool ended = !mine.pid || has_ended(mine.pid);
    if (ended) d->pid = 0;
    etch__unlock(LOCK_DEAD_HELPERS);
    if (ended && mine.pid) etch__remove_tree(mine.dir);
    return ended;
}

/* Of those that have not ended: killed as they are, they make no more files. */
static void remove_folders(void) {
    for (int i = 0; i < DEAD_MAX; i++) {
        etch__lock(LOCK_DEAD_HELPERS);
        dead_helper d = dead[i];
        etch__unlock(LOCK_DEAD_HELPERS);
        if (d.pid) etch__remove_tree(d.dir);
    }
}

/* What is killed ends at once, as a rule. On a busy machine it may take long: the rest is looked
 * after by the next caller, but the process may be about to exit, and leaves no folder behind. */
static void bury(void) {
    const struct timespec moment = {.tv_nsec = 1000000};
    for (double until = etch__now_ms() + BURY_MS; etch__now_ms() < until;
         nanosleep(&moment, NULL)) {
        bool all = true;
        for (int i = 0; i < DEAD_MAX; i++) all &= bury_one(&dead[i]);
        if (all) return;
    }
    remove_folders();
}

/* The helper has no use any more, whatever it is doing: a killed one needs no time, and its folder
 * is removed when it is dead. Its group goes with it, unless its number may be another's by now. */
static void end(helper *h) {
    if (!h->pid) return;
    if (!has_ended(h->pid)) kill(-h->pid, SIGKILL), kill(h->pid, SIGKILL);
    else h->pid = 0;
    close(h->fd);
    etch__lock(LOCK_DEAD_HELPERS);
    dead_helper *place = NULL;
    for (int i = 0; i < DEAD_MAX && h->pid; i++)
        if (!dead[i].pid) place = &dead[i];
    if (place) place->pid = h->pid, memcpy(place->dir, h->dir, sizeof place->dir);
    etch__unlock(LOCK_DEAD_HELPERS);
    if (!place) etch__remove_tree(h->dir);
    h->pid = 0, h->job = NULL, h->served = 0;
}

static void end_all(void) {
    for (int i = 0; i < HELPERS; i++) end(&helpers[i]);
}

void etch__jit_shutdown(void) {
    pthread_once(&once, set_up);
    shutdown_wanted = true;
    if (etch__try_lock(LOCK_HELPERS)) {
        if (atomic_exchange(&shutdown_wanted, false)) end_all();
        etch__unlock(LOCK_HELPERS);
    }
    bury();
}

/* ---- one job ---- */

/* Waits for the socket until the deadline of the helper's job. */
static bool wait_socket(const helper *h, short events) {
    for (;;) {
        double left = h->job->deadline - etch__now_ms();
        struct pollfd p = {h->fd, events, 0};
        int got = left > 0 ? poll(&p, 1, (int)left + 1) : 0;
        if (got >= 0 || errno != EINTR) return got > 0;
    }
}

static bool send_all(const helper *h, const void *from, size_t n) {
    for (const char *p = from; n;) {
        ssize_t put = send(h->fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0 && errno == EAGAIN && wait_socket(h, POLLOUT)) continue;
        if (put <= 0) return false;
        p += put, n -= (size_t)put;
    }
    return true;
}

/* Past the deadline only what has arrived is read, and each part at once: so the bytes of a reply
 * that trickles do not add up, and one that came while another was read is not lost. */
static bool read_all(const helper *h, void *to, size_t n) {
    bool late = false;
    for (char *p = to; n && !late;) {
        late = etch__now_ms() >= h->job->deadline;
        ssize_t got = recv(h->fd, p, n, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EAGAIN && wait_socket(h, POLLIN)) continue;
        if (got <= 0) return false;
        p += got, n -= (size_t)got;
        if (!n) return true;
    }
    return n == 0;
}

static bool submit(helper *h, jit_job *job) {
    h->job = job;
    wire_request r = {WIRE_MAGIC,
                      (uint32_t)etch__cpu_isa(),
                      job->want_dump ? WIRE_DUMP : 0,
                      (uint32_t)job->kernel_bytes,
                      (uint32_t)strlen(job->object),
                      (uint32_t)strlen(job->symbol)};
    return send_all(h, &r, sizeof r) && send_all(h, job->kernel, job->kernel_bytes) &&
           send_all(h, job->object, r.path_bytes) && send_all(h, job->symbol, r.symbol_bytes);
}

static bool receive_message(const helper *h, uint32_t n) {
    jit_job *job = h->job;
    uint32_t kept = n < sizeof job->message ? n : (uint32_t)sizeof job->message - 1;
    char rest[256];
    if (!read_all(h, job->message, kept)) return false;
    job->message[kept] = 0;
    for (n -= kept; n;) {
        uint32_t part = n < sizeof rest ? n : (uint32_t)sizeof rest;
        if (!read_all(h, rest, part)) return false;
        n -= part;
    }
    return true;
}

static bool receive_dump(const helper *h, uint32_t n) {
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
    if (r.message_bytes >= WIRE_MAX_PART || !receive_message(h, r.message_bytes)) return false;
    if (r.dump_bytes && !receive_dump(h, r.dump_bytes)) return false;
    job->ok = r.ok == 1;
    job->ms = etch__now_ms() - job->started;
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

/* A warm helper leaks, and its folder may have been removed with the cache. */
static bool worn_out(const helper *h) {
    return h->pid && (h->served >= HELPER_COMPILES || access(h->dir, W_OK) != 0);
}

/* Gives the job to the helper, starting or replacing it; a warm helper that has died since is
 * replaced once. */
static bool dispatch(helper *h, jit_job *job, const char *base) {
    if (worn_out(h)) end(h);
    if (!new_object(job, base)) return fail(job, "no room for the object"), false;
    for (int attempt = 0; attempt < 2; attempt++) {
        const char *why = h->pid ? NULL : start(h, base);
        if (why) return fail(job, why), false;
        if (submit(h, job)) return true;
        end(h);
    }
    return fail(job, "the helper does not take requests"), false;
}

static bool begin(helper *h, jit_job *job, const char *base) {
    job->started = etch__now_ms();
    job->deadline = job->started + (double)etch__param_int(PARAM_JIT_TIMEOUT) * 1e3;
    return dispatch(h, job, base);
}

/* The helper has answered, died or run out of time. */
static void settle(helper *h, const char *base) {
    jit_job *job = h->job;
    bool warm = h->served > 0;
    if (receive(h)) {
        if (!job->ok && job->object[0]) unlink(job->object), job->object[0] = 0;
        h->job = NULL;
        progress++;
        return;
    }
    bool late = etch__now_ms() >= job->deadline;
    end(h);
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
        if (helpers[i].job->deadline - etch__now_ms() < left)
            left = helpers[i].job->deadline - etch__now_ms();
    }
    poll(p, (nfds_t)n, left > 0 ? (int)(left < 1e9 ? left : 1e9) + 1 : 0);
}

static bool ready(const helper *h) {
    struct pollfd p = {h->fd, POLLIN, 0};
    return poll(&p, 1, 0) != 0 || etch__now_ms() >= h->job->deadline;
}

static void run_batch(jit_job *jobs, int n, const char *base) {
    int next = 0, width = n > 1 ? HELPERS : 1;
    bool ok = true; /* after a failure nothing new is begun */
    while ((ok && next < n) || any_busy()) {
        for (int i = 0; i < width && ok && next < n; i++)
            if (!helpers[i].job) ok = begin(&helpers[i], &jobs[next++], base);
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

/* Takes the lock. Others' batches may be long; but when a whole time passes without a reply to
 * anybody there is something wrong. */
static bool take_turn(void) {
    int64_t seconds = etch__param_int(PARAM_JIT_TIMEOUT), before;
    bool taken;
    do {
        before = progress;
        taken = etch__lock_within(LOCK_HELPERS, seconds);
    } while (!taken && progress != before);
    return taken;
}

static void compile_all(jit_job *jobs, int n, const char *base, bool keep_warm) {
    run_batch(jobs, n, base);
    end(&helpers[1]);
    if (atomic_exchange(&shutdown_wanted, false) || !keep_warm) end(&helpers[0]);
    etch__unlock(LOCK_HELPERS);
}

bool etch__jit_compile(jit_job *jobs, int n, const char *base, bool keep_warm) {
    const char *why = "";
    bool ok = true, found = etch__jit_helper(&why) != NULL;
    for (int i = 0; i < n; i++)
        jobs[i].ok = false, jobs[i].dump = NULL, jobs[i].object[0] = jobs[i].message[0] = 0;
    if (found && !take_turn())
        found = false, why = "another thread's compile does not end (ETCH_JIT_TIMEOUT)";
    else if (found) compile_all(jobs, n, base, keep_warm);
    for (int i = 0; i < n; i++) {
        if (!found) fail(&jobs[i], why);
        ok &= jobs[i].ok;
    }
    bury();
    return ok;
}
