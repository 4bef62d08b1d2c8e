/* Compiled kernels on disk.
 *
 * A file is the shared object, then a trailer: symbol, key, their lengths, a checksum of all before
 * it. (The loader reads the object's own headers and does not see what follows.) The key is the
 * full identity of the code: versions, instruction set, the helper's own identity, the kernel's
 * bytes; the file's name is only its hash, so on a hit the key is compared byte by byte. Files are
 * published by rename, are read by nobody else (the folder is ours and closed to others), and the
 * oldest ones go when there is too much. */
#include "jit/cache.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <gnu/libc-version.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include <etch/debug.h>

#include "core/isa.h"

enum { KEY_MAX = 8192, STALE_SECONDS = 3600 };
/* Goes up when the generated code changes though kernel and helper look the same. */
enum { CODE_REVISION = 1 };

static const char magic[8] = "etchobj1";

typedef struct trailer {
    uint64_t object_bytes, key_bytes, symbol_bytes;
    uint64_t checksum; /* of everything before this field */
    char magic[8];
} trailer;

/* ---- the folder ---- */

static bool make_folders(char *path) {
    for (char *p = path + 1; *p; p++) {
        if (*p != '/') continue;
        *p = 0;
        bool ok = mkdir(path, 0700) == 0 || errno == EEXIST;
        *p = '/';
        if (!ok) return false;
    }
    return mkdir(path, 0700) == 0 || errno == EEXIST;
}

/* Ours, a folder, closed to everybody else. */
static bool trusted(const char *path) {
    struct stat s;
    return lstat(path, &s) == 0 && S_ISDIR(s.st_mode) && s.st_uid == geteuid() &&
           (s.st_mode & 077) == 0 && access(path, W_OK | X_OK) == 0;
}

/* The folder that the environment names, absolute; false where it names none. */
static bool folder_name(char *path, size_t n) {
    const char *named = etch__param(PARAM_CACHE_DIR), *xdg = getenv("XDG_CACHE_HOME"),
               *home = getenv("HOME");
    int wrote = 0;
    if (*named) wrote = snprintf(path, n, "%s", named);
    else if (xdg && *xdg == '/') wrote = snprintf(path, n, "%s/etch", xdg);
    else if (home && *home == '/') wrote = snprintf(path, n, "%s/.cache/etch", home);
    if (wrote <= 0 || (size_t)wrote >= n) return false;
    while (wrote > 1 && path[wrote - 1] == '/') path[--wrote] = 0;
    if (path[0] == '/') return true;
    char cwd[PATH_MAX + 256];
    if (!getcwd(cwd, PATH_MAX)) return false;
    size_t have = strlen(cwd);
    snprintf(cwd + have, sizeof cwd - have, "/%s", path);
    return strlen(cwd) < n && snprintf(path, n, "%s", cwd) > 0;
}

static bool usable_cache(char *path, size_t n) {
    if (etch__param_int(PARAM_CACHE_SIZE) <= 0 || !folder_name(path, n)) return false;
    if (make_folders(path) && trusted(path)) return true;
    etch__log(LOG_CACHE,
              "no disk cache: %s cannot be used (it must be a folder of ours, mode 0700)", path);
    return false;
}

bool etch__cache_open(cache_dir *dir) {
    dir->disk = usable_cache(dir->path, sizeof dir->path);
    if (dir->disk) return true;
    const char *tmp = getenv("TMPDIR");
    if (!tmp || *tmp != '/' || strlen(tmp) > 128) tmp = "/tmp";
    snprintf(dir->path, sizeof dir->path, "%s/etch-XXXXXX", tmp);
    return mkdtemp(dir->path) != NULL;
}

void etch__cache_close(const cache_dir *dir) {
    if (!dir->disk) etch__remove_tree(dir->path);
}

/* ---- keys ---- */

/* What the code depends on beside the kernel. The helper's size and time stand for its contents. */
static size_t key_of(const uint8_t *kernel, size_t n, uint8_t *key) {
    struct stat s = {0};
    const char *helper = etch__jit_helper(NULL);
    if (helper && stat(helper, &s) != 0) memset(&s, 0, sizeof s);
    int head = snprintf((char *)key, 512,
                        "etch %s code %d cc %.64s libc %.32s isa %s helper %lld %lld.%09ld",
                        ETCH_VERSION_STRING, CODE_REVISION, __VERSION__, gnu_get_libc_version(),
                        etch__cpu_isa_name(etch__cpu_isa()), (long long)s.st_size,
                        (long long)s.st_mtim.tv_sec, s.st_mtim.tv_nsec);
    memcpy(key + head + 1, kernel, n); /* behind the text's zero */
    return (size_t)head + 1 + n;
}

static void file_of(const cache_dir *dir, const uint8_t *key, size_t n, char *path, size_t room) {
    XXH128_hash_t h = XXH3_128bits(key, n);
    snprintf(path, room, "%s/%016llx%016llx.so", dir->path, (unsigned long long)h.high64,
             (unsigned long long)h.low64);
}

/* ---- reading ---- */

typedef struct mapping {
    const uint8_t *p;
    size_t n;
} mapping;

static bool map_file(const char *path, mapping *m) {
    struct stat s;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return false;
    bool ok = fstat(fd, &s) == 0 && S_ISREG(s.st_mode) && s.st_size > 0;
    void *p = ok ? mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    if (p != MAP_FAILED) futimens(fd, NULL); /* the oldest is the one not used for longest */
    close(fd);
    *m = (mapping){p, ok ? (size_t)s.st_size : 0};
    return p != MAP_FAILED;
}

/* The trailer of an undamaged file of ours whose owner is us. */
static bool check_file(const mapping *m, trailer *t) {
    if (m->n < sizeof *t) return false;
    memcpy(t, m->p + m->n - sizeof *t, sizeof *t);
    uint64_t room = m->n - sizeof *t;
    if (memcmp(t->magic, magic, sizeof magic) != 0 || t->object_bytes > room) return false;
    if (t->symbol_bytes > room || t->key_bytes > room) return false;
    if (t->object_bytes + t->key_bytes + t->symbol_bytes != room) return false;
    return XXH3_64bits(m->p, m->n - sizeof *t + offsetof(trailer, checksum)) == t->checksum;
}

static bool owned(const char *path) {
    struct stat s;
    return lstat(path, &s) == 0 && s.st_uid == geteuid() && (s.st_mode & 022) == 0;
}

static bool load(const char *path, const char *symbol, cache_object *out) {
    out->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    out->entry = out->handle ? dlsym(out->handle, symbol) : NULL;
    if (out->entry) return true;
    if (out->handle) dlclose(out->handle);
    return false;
}

/* Whether the file holds this key; its symbol is copied out. */
static bool matches(const mapping *m, const trailer *t, const uint8_t *key, size_t n, char *symbol,
                    size_t room) {
    const uint8_t *at = m->p + t->object_bytes;
    if (t->key_bytes != n || memcmp(at + t->symbol_bytes, key, n) != 0) return false;
    if (t->symbol_bytes >= room) return false;
    memcpy(symbol, at, t->symbol_bytes);
    symbol[t->symbol_bytes] = 0;
    return true;
}

bool etch__cache_load(const cache_dir *dir, const uint8_t *kernel, size_t n, cache_object *out) {
    uint8_t key[KEY_MAX];
    char path[PATH_MAX], symbol[64];
    mapping m;
    trailer t;
    if (!dir->disk || n > KEY_MAX - 512) return false;
    size_t key_bytes = key_of(kernel, n, key);
    file_of(dir, key, key_bytes, path, sizeof path);
    if (!map_file(path, &m)) return false;
    bool good = owned(path) && check_file(&m, &t);
    bool ours = good && matches(&m, &t, key, key_bytes, symbol, sizeof symbol);
    munmap((void *)m.p, m.n);
    if (ours && load(path, symbol, out)) return true;
    if (good && !ours) return false; /* another key with the same hash */
    etch__log(LOG_CACHE, "dropped the bad file %s", path);
    unlink(path);
    return false;
}

/* ---- writing ---- */

static bool write_all(int fd, const void *from, size_t n) {
    for (const char *p = from; n;) {
        ssize_t put = write(fd, p, n);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return false;
        p += put, n -= (size_t)put;
    }
    return true;
}

/* Appends symbol, key and trailer to the object. */
static bool seal(const jit_job *job, const uint8_t *key, size_t n) {
    mapping m;
    if (chmod(job->object, 0600) != 0 || !map_file(job->object, &m)) return false;
    trailer t = {.object_bytes = m.n, .key_bytes = n, .symbol_bytes = strlen(job->symbol)};
    memcpy(t.magic, magic, sizeof magic);
    XXH3_state_t *x = XXH3_createState();
    if (x) {
        XXH3_64bits_reset(x);
        XXH3_64bits_update(x, m.p, m.n);
        XXH3_64bits_update(x, job->symbol, t.symbol_bytes);
        XXH3_64bits_update(x, key, n);
        XXH3_64bits_update(x, &t, offsetof(trailer, checksum));
        t.checksum = XXH3_64bits_digest(x);
        XXH3_freeState(x);
    }
    munmap((void *)m.p, m.n);
    int fd = x ? open(job->object, O_WRONLY | O_APPEND | O_CLOEXEC) : -1;
    if (fd < 0) return false;
    bool ok = write_all(fd, job->symbol, t.symbol_bytes) && write_all(fd, key, n) &&
              write_all(fd, &t, sizeof t);
    return close(fd) == 0 && ok;
}

typedef struct cache_file {
    char name[64];
    int64_t bytes;
    struct timespec used;
} cache_file;

static int older(const void *a, const void *b) {
    const struct timespec *x = &((const cache_file *)a)->used, *y = &((const cache_file *)b)->used;
    if (x->tv_sec != y->tv_sec) return x->tv_sec < y->tv_sec ? -1 : 1;
    return (x->tv_nsec > y->tv_nsec) - (x->tv_nsec < y->tv_nsec);
}

static bool is_object(const char *name) {
    bool ends = strlen(name) == 35 && (!strcmp(name + 32, ".so") || !strcmp(name + 32, ".gp"));
    return ends && strspn(name, "0123456789abcdef") == 32;
}

/* Calls each(dir, name, stat, ctx) for the objects (temporary: for what compiles left behind). */
static int64_t list(const char *dir, bool temporary, cache_file **files, int64_t *count) {
    DIR *d = opendir(dir);
    int64_t cap = 0, total = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        struct stat s;
        bool wanted = temporary ? strncmp(e->d_name, "tmp-", 4) == 0 : is_object(e->d_name);
        if (!wanted || strlen(e->d_name) >= sizeof(*files)->name) continue;
        if (fstatat(dirfd(d), e->d_name, &s, AT_SYMLINK_NOFOLLOW) != 0) continue;
        if (!etch__grow(files, &cap, *count + 1, sizeof **files)) break;
        cache_file *f = &(*files)[(*count)++];
        snprintf(f->name, sizeof f->name, "%s", e->d_name);
        f->bytes = s.st_size, f->used = s.st_mtim;
        total += s.st_size;
    }
    if (d) closedir(d);
    return total;
}

static void drop(const char *dir, const char *name) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (unlink(path) != 0) etch__remove_tree(path);
}

/* Oldest out until the rest fits; folders of helpers that were killed with their hosts go too. */
static void bound(const cache_dir *dir) {
    cache_file *files = NULL;
    int64_t count = 0, limit = etch__param_int(PARAM_CACHE_SIZE);
    int64_t total = list(dir->path, false, &files, &count);
    if (total > limit) qsort(files, (size_t)count, sizeof *files, older);
    for (int64_t i = 0; i < count && total > limit; i++) {
        etch__log(LOG_CACHE, "evicted %s from the disk", files[i].name);
        drop(dir->path, files[i].name);
        total -= files[i].bytes;
    }
    etch__free(files);
    files = NULL, count = 0;
    list(dir->path, true, &files, &count);
    for (int64_t i = 0; i < count; i++)
        if (files[i].used.tv_sec + STALE_SECONDS < time(NULL)) drop(dir->path, files[i].name);
    etch__free(files);
}

bool etch__cache_publish(const cache_dir *dir, jit_job *job, cache_object *out) {
    uint8_t key[KEY_MAX];
    char path[PATH_MAX];
    const char *from = job->object;
    bool keep = dir->disk && job->kernel_bytes <= KEY_MAX - 512;
    if (keep) {
        size_t n = key_of(job->kernel, job->kernel_bytes, key);
        file_of(dir, key, n, path, sizeof path);
        keep = seal(job, key, n) && rename(job->object, path) == 0;
        if (keep) from = path;
    }
    bool ok = load(from, job->symbol, out);
    if (!ok) snprintf(job->message, sizeof job->message, "the object does not load");
    if (!keep || !ok) unlink(from);
    job->object[0] = 0;
    if (keep && ok) bound(dir);
    return ok;
}

/* ---- code of other devices: bytes under a key of the caller's ---- */

static void blob_file(const cache_dir *dir, const uint8_t *key, size_t n, char *path, size_t room) {
    file_of(dir, key, n, path, room);
    memcpy(path + strlen(path) - 2, "gp", 2);
}

void *etch__cache_load_blob(const uint8_t *key, size_t n, size_t *bytes) {
    cache_dir dir;
    char path[PATH_MAX], symbol[4];
    mapping m;
    trailer t;
    void *blob = NULL;
    if (!usable_cache(dir.path, sizeof dir.path)) return NULL;
    blob_file(&dir, key, n, path, sizeof path);
    if (!map_file(path, &m)) return NULL;
    bool good = owned(path) && check_file(&m, &t);
    if (good && matches(&m, &t, key, n, symbol, sizeof symbol) &&
        (blob = etch__quiet_malloc(t.object_bytes + 1)))
        memcpy(blob, m.p, *bytes = t.object_bytes);
    munmap((void *)m.p, m.n);
    if (!good) {
        etch__log(LOG_CACHE, "dropped the bad file %s", path);
        unlink(path);
    }
    return blob;
}

void etch__cache_store_blob(const uint8_t *key, size_t n, const void *blob, size_t bytes) {
    cache_dir dir;
    char path[PATH_MAX];
    jit_job job = {.symbol = ""};
    if (!usable_cache(dir.path, sizeof dir.path)) return;
    dir.disk = true;
    blob_file(&dir, key, n, path, sizeof path);
    snprintf(job.object, sizeof job.object, "%s/tmp-XXXXXX", dir.path);
    int fd = mkstemp(job.object);
    if (fd < 0) return;
    bool ok = write_all(fd, blob, bytes);
    ok = close(fd) == 0 && ok && seal(&job, key, n) && rename(job.object, path) == 0;
    if (!ok) unlink(job.object);
    else bound(&dir);
}

void etch_cache_clear(void) {
    cache_dir dir;
    cache_file *files = NULL;
    int64_t count = 0;
    etch__jit_shutdown();
    if (!usable_cache(dir.path, sizeof dir.path)) return;
    list(dir.path, false, &files, &count);
    for (int64_t i = 0; i < count; i++) drop(dir.path, files[i].name);
    etch__free(files);
}
