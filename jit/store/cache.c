/* Compiled kernels on disk.
 *
 * A file is the shared object, then a trailer: symbol, key, their lengths, a checksum of all before
 * it. (The loader reads the object's own headers and does not see what follows.) The key is the
 * full identity of the code: versions, instruction set, the helper's own identity, the kernel's
 * bytes; the file's name is only its hash, so on a hit the key is compared byte by byte. A file is
 * read, checked and loaded from memory, so that nothing that happens to it later touches who runs
 * it; it is published by rename, once it has loaded. Nobody else may write into the folder, and the
 * oldest files go when there is too much: the folder is listed for that once in a while only, since
 * thousands of files make a listing as slow as a compile. */
#include "jit/store/cache.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <gnu/libc-version.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include <etch/debug.h>

#include "core/base/isa.h"
#include "jit/loop/loop.h"
#include "jit/store/object.h"

/* Threads of users may have small stacks: keys and files are on the heap. */
enum { KERNEL_MAX = 7680, KEY_HEAD = 512 };
enum { PATH_ROOM = sizeof((cache_dir *)0)->path + 48 }; /* of a file in the folder */
/* Goes up when the generated code changes though kernel and helper look the same. */
enum { CODE_REVISION = 11 };

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
    char whole[PATH_ROOM]; /* no shorter than n: what does not fit there has no use here */
    if (!getcwd(whole, sizeof whole)) return false;
    size_t have = strlen(whole);
    wrote = snprintf(whole + have, sizeof whole - have, "/%s", path);
    return have + (size_t)wrote < n && snprintf(path, n, "%s", whole) > 0;
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

/* Where a kernel is stored, and the key that stands there. */
typedef struct entry {
    char path[PATH_ROOM];
    size_t n, head; /* bytes of the key, and how many come before the kernel's */
    uint8_t key[];
} entry;

size_t etch__cache_identity(char *text, size_t n) {
    return (size_t)snprintf(text, n, "etch %s code %d cc %.64s libc %.32s isa %s",
                            ETCH_VERSION_STRING, CODE_REVISION, __VERSION__, gnu_get_libc_version(),
                            etch__cpu_isa_name(etch__cpu_isa()));
}

/* What the code depends on beside the kernel. The helper's size and time stand for its contents. */
static size_t head_of_key(char *key) {
    struct stat s = {0};
    const char *helper = etch__jit_helper(NULL);
    if (helper && stat(helper, &s) != 0) memset(&s, 0, sizeof s);
    size_t n = etch__cache_identity(key, KEY_HEAD);
    return 1 + n + /* with the text's zero */
           (size_t)snprintf(key + n, KEY_HEAD - n, " helper %lld %lld.%09ld", (long long)s.st_size,
                            (long long)s.st_mtim.tv_sec, s.st_mtim.tv_nsec);
}

static void file_of(const cache_dir *dir, const uint8_t *key, size_t n, const char *ending,
                    char *path) {
    XXH128_hash_t h = XXH3_128bits(key, n);
    snprintf(path, PATH_ROOM, "%s/%016llx%016llx.%s", dir->path, (unsigned long long)h.high64,
             (unsigned long long)h.low64, ending);
}

/* To be freed; NULL where there is no disk cache for this kernel. */
static entry *entry_of(const cache_dir *dir, const uint8_t *kernel, size_t n) {
    bool stored = dir->disk && n <= KERNEL_MAX;
    entry *e = stored ? etch__quiet_malloc(sizeof *e + KEY_HEAD + n) : NULL;
    if (!e) return NULL;
    e->n = e->head = head_of_key((char *)e->key);
    memcpy(e->key + e->n, kernel, n);
    e->n += n;
    file_of(dir, e->key, e->n, "so", e->path);
    return e;
}

/* ---- reading ---- */

/* The trailer of an undamaged file. */
static bool check_file(const uint8_t *file, size_t n, trailer *t) {
    if (n < sizeof *t) return false;
    memcpy(t, file + n - sizeof *t, sizeof *t);
    uint64_t room = n - sizeof *t;
    if (memcmp(t->magic, magic, sizeof magic) != 0 || t->object_bytes > room) return false;
    if (t->symbol_bytes > room || t->key_bytes > room) return false;
    if (t->object_bytes + t->key_bytes + t->symbol_bytes != room) return false;
    return XXH3_64bits(file, n - sizeof *t + offsetof(trailer, checksum)) == t->checksum;
}

static bool has_key(const uint8_t *file, const trailer *t, const uint8_t *key, size_t n) {
    return t->key_bytes == n && memcmp(file + t->object_bytes + t->symbol_bytes, key, n) == 0;
}

static void remove_any(const char *path) {
    if (unlink(path) != 0) etch__remove_tree(path);
}

static void drop_bad(const char *path) {
    etch__log(LOG_CACHE, "dropped the bad file %s", path);
    remove_any(path);
}

/* The whole file under this key, in memory to be freed; what is damaged or no file is removed, what
 * has another key with the same hash is left. */
static uint8_t *read_file(const char *path, const uint8_t *key, size_t key_bytes, trailer *t) {
    bool missing;
    size_t n = 0;
    uint8_t *file = etch__file_read(path, true, &n, &missing);
    bool good = file && check_file(file, n, t);
    if (good && has_key(file, t, key, key_bytes)) return file;
    if (!good && !missing) drop_bad(path);
    etch__free(file);
    return NULL;
}

/* What a kernel calls is given to it here: it finds libetch wherever that was loaded. */
static void give_functions(void *handle) {
    const void **table = dlsym(handle, LOOP_FUNCTIONS);
    if (table) *table = etch__functions();
}

/* From memory, whatever becomes of the file. */
static bool load(const cache_dir *dir, const char *path, const void *object, size_t n,
                 const char *symbol, cache_object *out, const char **why) {
    *why = etch__object_fault(object, n);
    if (*why) return false;
    out->handle = etch__object_load(object, n, dir->path, path, why);
    out->entry = out->handle ? dlsym(out->handle, symbol) : NULL;
    if (out->entry) {
        give_functions(out->handle);
        return true;
    }
    if (out->handle) *why = "it lacks the kernel", dlclose(out->handle);
    return false;
}

static void collect_kernel(const uint8_t *kernel, size_t n, const char *symbol, uint8_t *object,
                           size_t bytes) {
    pack_entry e = {.kind = PACK_KERNEL,
                    .key = (uint8_t *)kernel,
                    .key_bytes = n,
                    .code = object,
                    .code_bytes = bytes};
    snprintf(e.symbol, sizeof e.symbol, "%s", symbol);
    etch__pack_collect(&e);
}

static bool load_entry(const cache_dir *dir, const entry *e, cache_object *out) {
    trailer t;
    char symbol[64] = "";
    const char *why;
    uint8_t *file = read_file(e->path, e->key, e->n, &t);
    if (!file) return false;
    if (t.symbol_bytes < sizeof symbol) memcpy(symbol, file + t.object_bytes, t.symbol_bytes);
    bool ok = load(dir, e->path, file, t.object_bytes, symbol, out, &why);
    if (ok) collect_kernel(e->key + e->head, e->n - e->head, symbol, file, t.object_bytes);
    etch__free(file);
    if (!ok) drop_bad(e->path);
    return ok;
}

bool etch__cache_load(const cache_dir *dir, const uint8_t *kernel, size_t n, cache_object *out) {
    entry *e = entry_of(dir, kernel, n);
    bool ok = e && load_entry(dir, e, out);
    etch__free(e);
    return ok;
}

/* Where the system has no memory files the object lies in the folder for temporary ones for a
 * moment; there is no file to load it from in the end. */
bool etch__cache_load_given(const pack_entry *e, cache_object *out, const char **why) {
    const cache_dir dir = {.path = "/tmp"};
    return load(&dir, "/dev/null", e->code, e->code_bytes, e->symbol, out, why);
}

/* ---- writing ---- */

/* The trailer's checksum is of all before it, so the file is put together first. */
static uint8_t *seal(const void *object, size_t bytes, const char *symbol, const uint8_t *key,
                     size_t n, size_t *all) {
    trailer t = {.object_bytes = bytes, .key_bytes = n, .symbol_bytes = strlen(symbol)};
    *all = bytes + t.symbol_bytes + n + sizeof t;
    uint8_t *file = etch__quiet_malloc(*all), *at = file;
    if (!file) return NULL;
    memcpy(t.magic, magic, sizeof magic);
    memcpy(at, object, bytes), at += bytes;
    memcpy(at, symbol, t.symbol_bytes), at += t.symbol_bytes;
    memcpy(at, key, n), at += n;
    memcpy(at, &t, sizeof t);
    t.checksum = XXH3_64bits(file, *all - sizeof t + offsetof(trailer, checksum));
    memcpy(at, &t, sizeof t);
    return file;
}

static bool write_file(const cache_dir *dir, const char *path, const void *file, size_t n) {
    char temporary[PATH_ROOM];
    snprintf(temporary, sizeof temporary, "%s/tmp-XXXXXX", dir->path);
    int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0) return false;
    bool wrote = etch__file_write(fd, file, n);
    int error = errno;
    if (close(fd) == 0 && wrote && rename(temporary, path) == 0) return true;
    if (wrote) error = errno;
    unlink(temporary);
    errno = error;
    return false;
}

static void bound(const char *dir, int64_t bytes);

/* A cache that cannot be written (no room, a limit on files, the folder gone) is no fault of the
 * compile's. */
static void store(const cache_dir *dir, const char *path, const void *object, size_t bytes,
                  const char *symbol, const uint8_t *key, size_t n) {
    size_t all = 0;
    uint8_t *file = seal(object, bytes, symbol, key, n, &all);
    if (file && write_file(dir, path, file, all)) bound(dir->path, (int64_t)all);
    else if (file) etch__log(LOG_CACHE, "not stored in %s: %s", dir->path, strerror(errno));
    etch__free(file);
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
    char path[PATH_ROOM];
    if (snprintf(path, sizeof path, "%s/%s", dir, name) < (int)sizeof path) remove_any(path);
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
    char path[PATH_ROOM];
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

/* What a helper says is whole is looked at and loaded first; then it may be found by others. */
bool etch__cache_publish(const cache_dir *dir, jit_job *job, cache_object *out) {
    size_t n = 0;
    bool missing;
    const char *why = "it is no file of ours";
    uint8_t *object = etch__file_read(job->object, false, &n, &missing);
    bool ok = object && load(dir, job->object, object, n, job->symbol, out, &why);
    if (!ok)
        snprintf(job->message, sizeof job->message, "the helper's object does not load: %s", why);
    remove_any(job->object);
    job->object[0] = 0;
    if (ok) collect_kernel(job->kernel, job->kernel_bytes, job->symbol, object, n);
    entry *e = ok ? entry_of(dir, job->kernel, job->kernel_bytes) : NULL;
    if (e) store(dir, e->path, object, n, job->symbol, e->key, e->n);
    etch__free(e);
    etch__free(object);
    return ok;
}

/* ---- code of other devices: bytes under a key of the caller's ---- */

static void *given_blob(blob_key key, size_t *bytes) {
    code_pack *given = etch__pack_given();
    const pack_entry *e =
        given ? etch__pack_find(given, PACK_BLOB, key.bytes + key.compiler, key.n - key.compiler)
              : NULL;
    void *copy = e ? etch__quiet_malloc(e->code_bytes + 1) : NULL;
    if (copy) memcpy(copy, e->code, *bytes = e->code_bytes);
    return copy;
}

static void collect_blob(blob_key key, const void *blob, size_t bytes) {
    etch__pack_collect(&(pack_entry){.kind = PACK_BLOB,
                                     .key = (uint8_t *)key.bytes + key.compiler,
                                     .key_bytes = key.n - key.compiler,
                                     .code = (uint8_t *)blob,
                                     .code_bytes = bytes});
}

void *etch__cache_load_blob(blob_key key, size_t *bytes) {
    cache_dir dir;
    char path[PATH_ROOM];
    trailer t;
    void *given = given_blob(key, bytes);
    if (given || etch__pack.only || !usable_cache(dir.path, sizeof dir.path)) return given;
    file_of(&dir, key.bytes, key.n, "gp", path);
    uint8_t *file = read_file(path, key.bytes, key.n, &t);
    if (file) collect_blob(key, file, *bytes = t.object_bytes); /* the blob stands first */
    return file;
}

void etch__cache_store_blob(blob_key key, const void *blob, size_t bytes) {
    cache_dir dir;
    char path[PATH_ROOM];
    collect_blob(key, blob, bytes);
    if (!usable_cache(dir.path, sizeof dir.path)) return;
    file_of(&dir, key.bytes, key.n, "gp", path);
    store(&dir, path, blob, bytes, "", key.bytes, key.n);
}
