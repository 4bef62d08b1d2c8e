/* See object.h. */
#include "jit/store/object.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/signals.h"

/* ---- files ---- */

enum { BYTES_MAX = 1 << 28 }; /* of a file, and that a segment of an object may ask for */

/* What is no plain file is not opened: a pipe would wait, a device might act. */
static int open_plain(const char *path, bool closed, struct stat *s) {
    if (!S_ISREG(s->st_mode)) return -1;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return -1;
    bool ok = fstat(fd, s) == 0 && S_ISREG(s->st_mode) && s->st_uid == geteuid() &&
              s->st_size <= BYTES_MAX;
    if (ok && !(closed && s->st_mode & 022)) return fd;
    close(fd);
    return -1;
}

static bool read_whole(int fd, uint8_t *to, size_t n) {
    for (size_t at = 0; at < n;) {
        ssize_t got = pread(fd, to + at, n - at, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        at += (size_t)got;
    }
    return true;
}

uint8_t *etch__file_read(const char *path, bool closed, size_t *n, bool *missing) {
    struct stat s;
    *missing = lstat(path, &s) != 0;
    int fd = *missing ? -1 : open_plain(path, closed, &s);
    if (fd < 0) return NULL;
    uint8_t *bytes = etch__quiet_malloc((size_t)s.st_size);
    *missing = !bytes;
    *n = (size_t)s.st_size;
    if (bytes && !read_whole(fd, bytes, *n)) etch__free(bytes), bytes = NULL;
    if (bytes) futimens(fd, NULL); /* the oldest is the one not used for longest */
    close(fd);
    return bytes;
}

bool etch__file_write(int fd, const void *from, size_t n) {
    held_signals held;
    bool ok = true;
    etch__signals_hold(&held);
    for (const char *p = from; ok && n;) {
        ssize_t put = write(fd, p, n);
        if (put < 0 && errno == EINTR) continue;
        if (put == 0) errno = ENOSPC;
        ok = put > 0;
        if (ok) p += put, n -= (size_t)put;
    }
    etch__signals_release(&held);
    return ok;
}

/* ---- objects ---- */

static bool inside(uint64_t at, uint64_t length, uint64_t n) { return at <= n && length <= n - at; }

static bool ours(const Elf64_Ehdr *e) {
    static const uint8_t ident[] = {0x7f, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB, EV_CURRENT};
    return !memcmp(e->e_ident, ident, sizeof ident) && e->e_type == ET_DYN &&
           e->e_machine == EM_X86_64 && e->e_phentsize == sizeof(Elf64_Phdr);
}

static bool segments_fit(const uint8_t *p, const Elf64_Ehdr *e, size_t n) {
    int loads = 0, dynamics = 0;
    for (int i = 0; i < e->e_phnum; i++) {
        Elf64_Phdr h;
        memcpy(&h, p + e->e_phoff + (size_t)i * sizeof h, sizeof h);
        if (h.p_type != PT_LOAD && h.p_type != PT_DYNAMIC) continue;
        if (!inside(h.p_offset, h.p_filesz, n) || h.p_filesz > h.p_memsz) return false;
        if (h.p_memsz > BYTES_MAX || h.p_vaddr > BYTES_MAX) return false;
        loads += h.p_type == PT_LOAD, dynamics += h.p_type == PT_DYNAMIC;
    }
    return loads > 0 && dynamics == 1;
}

/* The sections' table stands last: a file that was cut lacks it. */
static bool sections_fit(const uint8_t *p, const Elf64_Ehdr *e, size_t n) {
    if (e->e_shentsize != sizeof(Elf64_Shdr) || !e->e_shnum) return false;
    if (!inside(e->e_shoff, (uint64_t)e->e_shnum * sizeof(Elf64_Shdr), n)) return false;
    for (int i = 0; i < e->e_shnum; i++) {
        Elf64_Shdr h;
        memcpy(&h, p + e->e_shoff + (size_t)i * sizeof h, sizeof h);
        if (h.sh_type != SHT_NOBITS && !inside(h.sh_offset, h.sh_size, n)) return false;
    }
    return true;
}

const char *etch__object_fault(const void *bytes, size_t n) {
    Elf64_Ehdr e;
    if (n < sizeof e) return "it is shorter than an object's header";
    memcpy(&e, bytes, sizeof e);
    if (!ours(&e)) return "it is no shared object of this machine";
    if (!inside(e.e_phoff, (uint64_t)e.e_phnum * sizeof(Elf64_Phdr), n) ||
        !segments_fit(bytes, &e, n) || !sections_fit(bytes, &e, n))
        return "it is cut short";
    return NULL;
}

/* The loader takes an object with the name of one that is loaded for that one, and numbers of
 * descriptors come again: the name spells a counter in ways to write the same path. */
static void name_of(int fd, char *path, size_t n) {
    static _Atomic uint32_t loads;
    int at = snprintf(path, n, "/proc/self/fd");
    for (uint32_t left = ++loads; left; left >>= 1)
        at += snprintf(path + at, n - (size_t)at, left & 1 ? "/." : "/");
    snprintf(path + at, n - (size_t)at, "/%d", fd);
}

static void *load_file(int fd, const char *path, const void *bytes, size_t n, const char **why) {
    void *handle = NULL;
    if (!etch__file_write(fd, bytes, n)) *why = strerror(errno);
    else if (!(handle = dlopen(path, RTLD_NOW | RTLD_LOCAL))) *why = dlerror();
    close(fd);
    return handle;
}

static void *load_beside(const void *bytes, size_t n, const char *dir, const char **why) {
    char path[320];
    snprintf(path, sizeof path, "%s/tmp-XXXXXX.so", dir);
    int fd = mkostemps(path, 3, O_CLOEXEC);
    if (fd < 0) return *why = strerror(errno), NULL;
    void *handle = load_file(fd, path, bytes, n, why);
    unlink(path);
    return handle;
}

void *etch__object_load(const void *bytes, size_t n, const char *dir, const char *file,
                        const char **why) {
    char path[128];
    int fd = memfd_create("etch-kernel", MFD_CLOEXEC);
    if (fd >= 0) name_of(fd, path, sizeof path);
    void *handle = fd >= 0 ? load_file(fd, path, bytes, n, why) : NULL;
    if (!handle) handle = load_beside(bytes, n, dir, why);
    return handle ? handle : dlopen(file, RTLD_NOW | RTLD_LOCAL);
}
