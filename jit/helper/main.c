/* etch-jit: compiles loop kernels for libetch.
 *
 * Started by the library as `etch-jit DIR` with a socket as descriptor 3. DIR is a fresh private
 * folder for temporary files; the helper removes it when the socket closes, which also ends it. A
 * kernel that makes the compiler crash ends this process only. */
#include "gen.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "jit/store/wire.h"

static bool read_exact(void *to, size_t n) {
    for (char *p = to; n;) {
        ssize_t got = read(WIRE_FD, p, n);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        p += got, n -= (size_t)got;
    }
    return true;
}

static bool write_exact(const void *from, size_t n) {
    for (const char *p = from; n;) {
        ssize_t put = send(WIRE_FD, p, n, MSG_NOSIGNAL);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return false;
        p += put, n -= (size_t)put;
    }
    return true;
}

/* A part of a request as a new text; NULL when it is too long or missing. */
static char *read_part(uint32_t n) {
    char *p = n < WIRE_MAX_PART ? malloc((size_t)n + 1) : NULL;
    if (!p) return NULL;
    if (!read_exact(p, n)) return free(p), NULL;
    p[n] = 0;
    return p;
}

static bool reply(const char *message, const char *dump) {
    wire_reply r = {WIRE_MAGIC, message == NULL, message ? (uint32_t)strlen(message) : 0,
                    dump ? (uint32_t)strlen(dump) : 0};
    return write_exact(&r, sizeof r) && (!message || write_exact(message, r.message_bytes)) &&
           (!dump || write_exact(dump, r.dump_bytes));
}

/* ETCH_JIT_FAULT: what a broken helper would do. */
static const char *misbehave(void) {
    const char *fault = getenv("ETCH_JIT_FAULT");
    if (!fault || !*fault) return NULL;
    if (strcmp(fault, "kill") == 0) raise(SIGKILL);
    while (strcmp(fault, "hang") == 0) pause();
    return strcmp(fault, "fail") == 0 ? "told to fail by ETCH_JIT_FAULT" : NULL;
}

static const char *compile(const wire_request *r, const char *kernel, const char *symbol,
                           const char *path, char **dump) {
    static loop_kernel k;
    const char *fault = misbehave();
    if (fault) return fault;
    if (r->isa >= CPU_ISA_COUNT) return "unknown instruction set";
    if (!etch__loop_parse((const uint8_t *)kernel, r->kernel_bytes, &k))
        return "the kernel does not parse";
    compile_request c = {&k, symbol, path, (cpu_isa)r->isa, (r->flags & WIRE_DUMP) != 0};
    return compile_kernel(&c, dump);
}

static bool serve(void) {
    wire_request r;
    if (!read_exact(&r, sizeof r) || r.magic != WIRE_MAGIC) return false;
    char *kernel = read_part(r.kernel_bytes);
    char *path = kernel ? read_part(r.path_bytes) : NULL;
    char *symbol = path ? read_part(r.symbol_bytes) : NULL;
    char *dump = NULL;
    bool ok = symbol != NULL;
    const char *message = ok ? compile(&r, kernel, symbol, path, &dump) : NULL;
    ok = ok && reply(message, dump);
    free(dump), free(symbol), free(path), free(kernel);
    return ok;
}

static void remove_tree(const char *path, int depth) {
    DIR *d = depth < 4 ? opendir(path) : NULL;
    for (struct dirent *e; d && (e = readdir(d));) {
        char inner[4096];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        int n = snprintf(inner, sizeof inner, "%s/%s", path, e->d_name);
        if (n > 0 && n < (int)sizeof inner && unlink(inner) != 0) remove_tree(inner, depth + 1);
    }
    if (d) closedir(d);
    rmdir(path);
}

int main(int argc, char **argv) {
    struct stat s;
    if (argc != 2 || fstat(WIRE_FD, &s) != 0 || !S_ISSOCK(s.st_mode)) {
        fprintf(stderr, "etch-jit is started by libetch; it is of no use alone\n");
        return 2;
    }
    fcntl(WIRE_FD, F_SETFD, FD_CLOEXEC);
    signal(SIGXFSZ, SIG_IGN); /* a limit on files is an error of the assembler's or the linker's */
    setenv("TMPDIR", argv[1], 1);
    setenv("LC_ALL", "C", 1);
    while (serve()) {}
    remove_tree(argv[1], 0);
    return 0;
}
