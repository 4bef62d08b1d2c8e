/* Compiled kernels on disk.
 *
 * A file is the shared object, then a trailer: symbol, key, their lengths, a checksum of all before
 * it. (The loader reads the object's own headers and does not see what follows.) The key is the
 * full identity of the code: versions, instruction set, the helper's own identity, the kernel's
 * bytes; the file's name is only its hash, so on a hit the key is compared byte by byte. Files are
 * published by rename, are read by nobody else (the folder is ours and closed to others), and the
 * oldest ones go when there is too much: the folder is listed for that once in a while only, since
 * thousands of files make a listing as slow as a compile. */
#include "jit/cache.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <gnu/libc-version.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include <etch/debug.h>

#include "core/isa.h"

enum { KEY_MAX = 8192 };
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

static bool is_folder(const char *path) {
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

/* What is wrong with the folder, NULL if nothing is: it must be ours, and nobody else may write
 * into it. It is made where nothing is. */
static const char *distrust(char *path) {
    struct stat s;
    if (lstat(path, &s) != 0 && !(make_folders(path) && lstat(path, &s) == 0))
        return "it cannot be made";
    if (!S_ISDIR(s.st_mode)) return "it is no folder";
    if (s.st_uid != geteuid()) return "it belongs to another user";
    if (s.st_mode & 022) return "others may write into it (chmod go-w)";
    return access(path, W_OK | X_OK) == 0 ? NULL : "it cannot be written into";
}

/* The folder that the environment names, absolute; false where it names none. A home that is not
 * there is not made: a service's account has none on purpose. */
static bool folder_name(char *path, size_t n) {
    const char *named = etch__param(PARAM_CACHE_DIR), *xdg = getenv("XDG_CACHE_HOME"),
               *home = getenv("HOME");
    int wrote = 0;
    if (*named) wrote = snprintf(path, n, "%s", named);
    else if (xdg && *xdg == '/') wrote = snprintf(path, n, "%s/etch", xdg);
    else if (home && *home == '/' && is_folder(home))
        wrote = snprintf(path, n, "%s/.cache/etch", home);
    if (wrote <= 0 || (size_t)wrote >= n) return false;
    while (wrote > 1 && path[wrote - 1] == '/') path[--wrote] = 0;
    if (path[0] == '/') return true;
    char cwd[PATH_MAX + 256];
    if (!getcwd(cwd, PATH_MAX)) return false;
    size_t have = strlen(cwd);
    snprintf(cwd + have, sizeof cwd - have, "/%s", path);
    return strlen(cwd) < n && snprintf(path, n, "%s", cwd) > 0;
}

/* The user asked for this folder, and kernels are compiled anew in every process without it. */
static void warn_distrusted(const char *path, const char *wrong) {
    static atomic_bool warned;
    if (!atomic_exchange(&warned, true))
        etch__warn("ETCH_CACHE_DIR=%s is not used: %s; there is no disk cache", path, wrong);
}

static bool usable_cache(char *path, size_t n) {
    if (etch__param_int(PARAM_CACHE_SIZE) <= 0 || !folder_name(path, n)) return false;
    const char *wrong = distrust(path);
    if (wrong && *etch__param(PARAM_CACHE_DIR)) warn_distrusted(path, wrong);
    else if (wrong) etch__log(LOG_CACHE, "no disk cache: %s: %s", path, wrong);
    return !wrong;
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
    bool ours; /* and written by nobody else */
} mapping;

static bool map_file(const char *path, mapping *m) {
    struct stat s = {0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return false;
    bool ok = fstat(fd, &s) == 0 && S_ISREG(s.st_mode) && s.st_size > 0;
    void *p = ok ? mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    if (p != MAP_FAILED) futimens(fd, NULL); /* the oldest is the one not used for longest */
    close(fd);
    *m = (mapping){p, ok ? (size_t)s.st_size : 0, s.st_uid == geteuid() && !(s.st_mode & 022)};
    return p != MAP_FAILED;
}

/* The trailer of an undamaged file that only we can write. */
static bool check_file(const mapping *m, trailer *t) {
    if (!m->ours || m->n < sizeof *t) return false;
    memcpy(t, m->p + m->n - sizeof *t, sizeof *t);
    uint64_t room = m->n - sizeof *t;
    if (memcmp(t->magic, magic, sizeof magic) != 0 || t->object_bytes > room) return false;
    if (t->symbol_bytes > room || t->key_bytes > room) return false;
    if (t->object_bytes + t->key_bytes + t->symbol_bytes != room) return false;
    return XXH3_64bits(m->p, m->n - sizeof *t + offsetof(trailer, checksum)) == t->checksum;
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
    bool good = check_file(&m, &t);
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

/* Appends symbol, key and trailer to an object; the file's bytes, or 0. */
static int64_t seal(int fd, const void *object, size_t bytes, const char *symbol,
                    const uint8_t *key, size_t n) {
    trailer t = {.object_bytes = bytes, .key_bytes = n, .symbol_bytes = strlen(symbol)};
    memcpy(t.magic, magic, sizeof magic);
    XXH3_state_t *x = XXH3_createState();
    if (!x) return 0;
    XXH3_64bits_reset(x);
    XXH3_64bits_update(x, object, bytes);
    XXH3_64bits_update(x, symbol, t.symbol_bytes);
    XXH3_64bits_update(x, key, n);
    XXH3_64bits_update(x, &t, offsetof(trailer, checksum));
    t.checksum = XXH3_64bits_digest(x);
    XXH3_freeState(x);
    bool ok = write_all(fd, symbol, t.symbol_bytes) && write_all(fd, key, n) &&
              write_all(fd, &t, sizeof t);
    return ok ? (int64_t)(bytes + t.symbol_bytes + n + sizeof t) : 0;
}

/* The same for the object that a helper left. */
static int64_t seal_object(const jit_job *job, const uint8_t *key, size_t n) {
    mapping m;
    if (chmod(job->object, 0600) != 0 || !map_file(job->object, &m)) return 0;
    int fd = open(job->object, O_WRONLY | O_APPEND | O_CLOEXEC);
    int64_t bytes = fd >= 0 ? seal(fd, m.p, m.n, job->symbol, key, n) : 0;
    munmap((void *)m.p, m.n);
    return fd >= 0 && close(fd) == 0 ? bytes : 0;
}

/* ---- the bound ---- */

/* A process lists the folder when it has stored more than one of the limit's shares since it last
 * did, or when the stamp says that nobody did for a minute; what is left then has a share's room
 * below the limit. Who stores more than a share at once lists each time and uses the limit up. */
enum { SHARES = 64, LIST_SECONDS = 60, STALE_SECONDS = 3600 };
static const char stamp_name[] = ".listed";
static _Atomic int64_t stored; /* by this process since its last listing */

typedef struct cache_file {
    char name[36];
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

static void drop(const char *dir, const char *name) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (unlink(path) != 0) etch__remove_tree(path);
}

/* The objects and their bytes; what helpers left that were killed with their hosts goes. */
static int64_t list(const char *dir, cache_file **files, int64_t *count) {
    DIR *d = opendir(dir);
    int64_t cap = 0, total = 0, now = time(NULL);
    for (struct dirent *e; d && (e = readdir(d));) {
        struct stat s;
        bool object = is_object(e->d_name);
        if (!object && strncmp(e->d_name, "tmp-", 4) != 0) continue;
        if (fstatat(dirfd(d), e->d_name, &s, AT_SYMLINK_NOFOLLOW) != 0) continue;
        if (!object && s.st_mtim.tv_sec + STALE_SECONDS < now) drop(dir, e->d_name);
        if (!object) continue;
        if (!etch__grow(files, &cap, *count + 1, sizeof **files)) break;
        cache_file *f = &(*files)[(*count)++];
        snprintf(f->name, sizeof f->name, "%s", e->d_name);
        f->bytes = s.st_size, f->used = s.st_mtim;
        total += s.st_size;
    }
    if (d) closedir(d);
    return total;
}

/* By our own clock, which need not be that of the folder's host. */
static void set_stamp(const char *path) {
    const struct timespec now[2] = {{.tv_sec = time(NULL)}, {.tv_sec = time(NULL)}};
    if (utimensat(AT_FDCWD, path, now, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT) return;
    int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    if (fd >= 0) close(fd);
}

/* Whether it is time for a listing, which is then ours. A stamp from the future is no reason to
 * wait for it. */
static bool listing_due(const char *dir, int64_t bytes, int64_t share) {
    char path[PATH_MAX];
    struct stat s;
    snprintf(path, sizeof path, "%s/%s", dir, stamp_name);
    if (atomic_fetch_add(&stored, bytes) + bytes <= share && lstat(path, &s) == 0 &&
        llabs((long long)time(NULL) - s.st_mtim.tv_sec) < LIST_SECONDS)
        return false;
    set_stamp(path);
    atomic_store(&stored, 0);
    return true;
}

/* After a file of so many bytes: oldest out until the rest fits. */
static void bound(const char *dir, int64_t bytes) {
    cache_file *files = NULL;
    int64_t count = 0, limit = etch__param_int(PARAM_CACHE_SIZE), share = limit / SHARES;
    if (!listing_due(dir, bytes, share)) return;
    int64_t total = list(dir, &files, &count), most = bytes > share ? limit : limit - share;
    if (total > most) qsort(files, (size_t)count, sizeof *files, older);
    for (int64_t i = 0; i < count && total > most; i++) {
        etch__log(LOG_CACHE, "evicted %s from the disk", files[i].name);
        drop(dir, files[i].name);
        total -= files[i].bytes;
    }
    etch__free(files);
}

void etch_cache_clear(void) {
    cache_dir dir;
    cache_file *files = NULL;
    int64_t count = 0;
    etch__jit_shutdown();
    if (!usable_cache(dir.path, sizeof dir.path)) return;
    list(dir.path, &files, &count);
    for (int64_t i = 0; i < count; i++) drop(dir.path, files[i].name);
    drop(dir.path, stamp_name);
    etch__free(files);
}

/* ---- publishing ---- */

bool etch__cache_publish(const cache_dir *dir, jit_job *job, cache_object *out) {
    uint8_t key[KEY_MAX];
    char path[PATH_MAX];
    const char *from = job->object;
    int64_t bytes = 0;
    bool keep = dir->disk && job->kernel_bytes <= KEY_MAX - 512;
    if (keep) {
        size_t n = key_of(job->kernel, job->kernel_bytes, key);
        file_of(dir, key, n, path, sizeof path);
        bytes = seal_object(job, key, n);
        keep = bytes && rename(job->object, path) == 0;
        if (keep) from = path;
    }
    bool ok = load(from, job->symbol, out);
    if (!ok) snprintf(job->message, sizeof job->message, "the object does not load");
    if (!keep || !ok) unlink(from);
    job->object[0] = 0;
    if (keep && ok) bound(dir->path, bytes);
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
    bool good = check_file(&m, &t);
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
    char path[PATH_MAX], temporary[PATH_MAX];
    if (!usable_cache(dir.path, sizeof dir.path)) return;
    blob_file(&dir, key, n, path, sizeof path);
    snprintf(temporary, sizeof temporary, "%s/tmp-XXXXXX", dir.path);
    int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0) return;
    int64_t all = write_all(fd, blob, bytes) ? seal(fd, blob, bytes, "", key, n) : 0;
    if (close(fd) == 0 && all && rename(temporary, path) == 0) bound(dir.path, all);
    else unlink(temporary);
}
