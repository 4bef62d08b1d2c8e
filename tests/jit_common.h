/* What the suites of the helper and of the cache share: small kernels, children that fail loudly, a
 * folder of their own. */
#ifndef JIT_COMMON_H
#define JIT_COMMON_H

#include <dirent.h>
#include <stdlib.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <etch/debug.h>

#include "etch_test.h"
#include "jit/store/client.h"
#include "jit/loop/loop.h"
#include "jit/store/wire.h"

static char test_dir[64], cache[96];

/* In children a failed check ends the child with a message: the parent's test fails on its status.
 */
#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (cond) break;                                                                           \
        fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond);                                 \
        _exit(9);                                                                                  \
    } while (0)

/* Runs body in a child, whose helper is ended at the end. */
static void in_child(void (*body)(void)) {
    pid_t child = fork();
    if (child == 0) {
        body();
        etch__jit_shutdown();
        _exit(0);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* out = in * number + in, different for each number. */
static void small_kernel(loop_kernel *k, double number) {
    memset(k, 0, sizeof *k);
    snprintf(k->name, sizeof k->name, "small/%g", number);
    k->npar = 1, k->naccesses = 2, k->ncode = 5;
    k->access[0].step[0] = k->access[1].step[0] = STEP_ONE;
    k->access[1].store = 1;
    k->code[0] = (loop_instr){.kind = LOOP_LOAD};
    k->code[1] = (loop_instr){.p = {.prim = PRIM_CONST, .imm.d = number}};
    k->code[2] = (loop_instr){.p = {.prim = PRIM_MUL, .a = 0, .b = 1}};
    k->code[3] = (loop_instr){.p = {.prim = PRIM_ADD, .a = 2, .b = 0}};
    k->code[4] = (loop_instr){.kind = LOOP_STORE, .p = {.a = 3, .imm.i = 1}};
}

static bool get_number(double number, loaded_kernel **l, const char **why) {
    loop_kernel k;
    const loop_kernel *p = &k;
    small_kernel(&k, number);
    return etch__kernels_get(&p, 1, l, why);
}

static bool computes(const loaded_kernel *l, double number) {
    float in[100], out[100];
    int64_t dims[3] = {100, 1, 1};
    void *args[2] = {in, out};
    bool ok = true;
    for (int i = 0; i < 100; i++) in[i] = (float)i;
    etch__kernel_entry(l)(args, dims, NULL, 0, 1);
    for (int i = 0; i < 100; i++) ok &= out[i] == in[i] * (float)number + in[i];
    return ok;
}

/* Gets the kernel, checks what it computes, lets it go. */
static bool works(double number) {
    loaded_kernel *l = NULL;
    const char *why = "?";
    if (!get_number(number, &l, &why)) return fprintf(stderr, "%s\n", why), false;
    bool ok = computes(l, number);
    etch__kernel_release(l);
    return ok;
}

/* Fails with a reason that holds `word`. */
static bool refused(double number, const char *word) {
    loaded_kernel *l = (void *)1;
    const char *why = "";
    if (get_number(number, &l, &why) || l) return false;
    if (!strstr(why, word)) fprintf(stderr, "'%s' does not say '%s'\n", why, word);
    return strstr(why, word) != NULL;
}

/* ---- a helper that tells lies: this program, started as one with ETCH_TEST_HELPER set ---- */

static bool take_part(char *to, size_t n) {
    for (size_t at = 0; at < n;) {
        ssize_t got = read(WIRE_FD, to + at, n - at);
        if (got <= 0) return false;
        at += (size_t)got;
    }
    return to[n] = 0, true;
}

/* The first ETCH_TEST_BYTES of the file ETCH_TEST_OBJECT. */
static void copy_start(const char *path) {
    FILE *from = fopen(getenv("ETCH_TEST_OBJECT"), "rb"), *to = fopen(path, "wb");
    for (long left = atol(getenv("ETCH_TEST_BYTES")); from && to && left > 0; left--)
        fputc(fgetc(from), to);
    if (from) fclose(from);
    if (to) fclose(to);
}

static void reply_for_ever(void) {
    wire_reply r = {WIRE_MAGIC, 0, WIRE_MAX_PART - 1, 0};
    const struct timespec moment = {.tv_nsec = 1000000};
    ssize_t put = send(WIRE_FD, &r, sizeof r, MSG_NOSIGNAL);
    while (put > 0 && nanosleep(&moment, NULL) == 0) put = send(WIRE_FD, "x", 1, MSG_NOSIGNAL);
}

static int false_helper(const char *how) {
    static char kernel[1 << 16], path[1 << 16], symbol[1 << 16];
    const wire_reply ok = {WIRE_MAGIC, 1, 0, 0};
    wire_request r;
    while (recv(WIRE_FD, &r, sizeof r, MSG_WAITALL) == sizeof r) {
        if (!take_part(kernel, r.kernel_bytes) || !take_part(path, r.path_bytes) ||
            !take_part(symbol, r.symbol_bytes))
            break;
        if (!strcmp(how, "mute")) continue;
        if (!strcmp(how, "trickle")) reply_for_ever();
        if (strcmp(how, "empty")) unlink(path);
        if (!strcmp(how, "fifo")) mkfifo(path, 0600);
        if (!strcmp(how, "folder")) mkdir(path, 0700);
        if (!strcmp(how, "link") && symlink("/dev/zero", path) != 0) break;
        if (!strcmp(how, "cut")) copy_start(path);
        if (send(WIRE_FD, &ok, sizeof ok, MSG_NOSIGNAL) < 0) break;
    }
    return 0;
}

static void lie(const char *how) {
    setenv("ETCH_JIT", "/proc/self/exe", 1);
    setenv("ETCH_TEST_HELPER", how, 1);
}

static int entries(const char *dir) {
    int n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) n += e->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}

static void set_up(void) {
    etch__remove_tree(cache);
    setenv("ETCH_CACHE_DIR", cache, 1);
    unsetenv("ETCH_JIT"), unsetenv("ETCH_JIT_FAULT"), unsetenv("ETCH_JIT_TIMEOUT");
    unsetenv("ETCH_CACHE_SIZE"), unsetenv("ETCH_TEST_HELPER");
}
EACH_TEST(.before = set_up)

static int make_test_dir(void) {
    strcpy(test_dir, "/tmp/etch-test-XXXXXX");
    if (!mkdtemp(test_dir)) return 1;
    snprintf(cache, sizeof cache, "%s/cache", test_dir);
    return 0;
}

#endif
