/* The disk cache: hits, damaged files, folders that must not be trusted, its bound. Each step runs
 * in a process of its own, since a process finds its own kernels in memory. */
#include "jit_common.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/un.h>
#include <time.h>

#include <etch/debug.h>

#include "jit/store/cache.h"

enum { BLOB = 1000, LIMIT = 64 * 6000 };
static void store(int number);
static bool there(int number);

static char object_path[256];

/* Path of the only object in the cache. */
static const char *only_object(void) {
    DIR *d = opendir(cache);
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        snprintf(object_path, sizeof object_path, "%s/%.60s", cache, e->d_name);
        n++;
    }
    if (d) closedir(d);
    assert_int_equal(n, 1);
    return object_path;
}

static void compiles(void) {
    CHECK(works(1));
    CHECK(etch_counters().kernels_compiled == 1 && etch_counters().cache_hits == 0);
    CHECK(works(1)); /* from memory */
    CHECK(etch_counters().kernels_compiled == 1 && etch_counters().kernels == 2);
}
static void hits(void) {
    CHECK(works(1));
    CHECK(etch_counters().kernels_compiled == 0 && etch_counters().cache_hits == 1);
}

TEST(hit) {
    struct stat s;
    in_child(compiles);
    assert_int_equal(stat(cache, &s), 0);
    assert_int_equal(s.st_mode & 0777, 0700);
    assert_int_equal(stat(only_object(), &s), 0);
    assert_int_equal(s.st_mode & 0777, 0600);
    in_child(hits);
    setenv("ETCH_JIT_FAULT", "kill", 1);
    in_child(hits); /* no helper is needed */
}

static off_t size_of(const char *path) {
    struct stat s;
    return stat(path, &s) == 0 ? s.st_size : -1;
}

static void flip(const char *path, off_t at) {
    int fd = open(path, O_RDWR);
    char c;
    assert_int_equal(pread(fd, &c, 1, at), 1);
    c ^= 1;
    assert_int_equal(pwrite(fd, &c, 1, at), 1);
    close(fd);
}

TEST(damaged) {
    in_child(compiles);
    off_t n = size_of(only_object());
    const off_t places[] = {0, 64, n / 2, n - 200, n - 30, n - 12, n - 1};
    for (int i = 0; i < COUNT_OF(places); i++) {
        flip(only_object(), places[i]);
        in_child(compiles);
        in_child(hits);
    }
    const off_t lengths[] = {0, 1, 100, n / 2, n - 1};
    for (int i = 0; i < COUNT_OF(lengths); i++) {
        assert_int_equal(truncate(only_object(), lengths[i]), 0);
        in_child(compiles);
        assert_int_equal(size_of(only_object()), n);
    }
}

/* A whole file that belongs to another kernel under this kernel's name (as if the hashes met). */
static void other(void) { CHECK(works(2)); }
static void other_is_compiled(void) {
    CHECK(works(2));
    CHECK(etch_counters().kernels_compiled == 1);
}
TEST(same_name_other_key) {
    char first[256], second[256];
    in_child(compiles);
    snprintf(first, sizeof first, "%s/one", test_dir);
    assert_int_equal(rename(only_object(), first), 0);
    in_child(other);
    snprintf(second, sizeof second, "%s", only_object());
    assert_int_equal(rename(first, second), 0);
    in_child(other_is_compiled);
}

TEST(symlink) {
    char target[256];
    in_child(compiles);
    snprintf(target, sizeof target, "%s/target", test_dir);
    assert_int_equal(rename(only_object(), target), 0);
    assert_int_equal(symlink(target, object_path), 0);
    in_child(compiles);
    in_child(hits);
    unlink(target);
}

TEST(writable_by_others) {
    in_child(compiles);
    assert_int_equal(chmod(only_object(), 0622), 0);
    in_child(compiles);
    in_child(hits);
}

static void other_fails(void) { CHECK(refused(2, "in the middle")); }

/* Without a folder to trust, each process compiles, and nothing is left, here or in TMPDIR. */
static void check_unusable(void) {
    char tmp[128];
    snprintf(tmp, sizeof tmp, "%s/tmp", test_dir);
    assert_int_equal(mkdir(tmp, 0700), 0);
    setenv("TMPDIR", tmp, 1);
    in_child(compiles);
    in_child(compiles);
    assert_int_equal(entries(tmp), 0);
    setenv("ETCH_JIT_FAULT", "kill", 1);
    in_child(other_fails);
    assert_int_equal(entries(tmp), 0);
    unsetenv("TMPDIR");
    rmdir(tmp);
}

/* What others may read is used; where they may write, it is not, and one warning says so. */
TEST(readable_folder) {
    assert_int_equal(mkdir(cache, 0755), 0);
    assert_int_equal(chmod(cache, 0755), 0);
    in_child(compiles);
    in_child(hits);
    assert_int_equal(entries(cache), 1);
}

static atomic_int warned;

static void count_warnings(void *ctx, const char *line) {
    (void)ctx;
    warned += strstr(line, "is not used: others may write into it") != NULL;
}

static void warns_once(void) {
    etch_set_log_sink(count_warnings, NULL);
    CHECK(works(7));
    CHECK(works(8));
    CHECK(warned == 1);
}

TEST(open_folder) {
    assert_int_equal(mkdir(cache, 0755), 0);
    assert_int_equal(chmod(cache, 0775), 0);
    in_child(warns_once);
    check_unusable();
    assert_int_equal(entries(cache), 0);
}

TEST(foreign_folder) {
    assert_int_equal(mkdir(cache, 0700), 0);
    if (chown(cache, 12345, (gid_t)-1) != 0) skip(); /* needs root */
    check_unusable();
    assert_int_equal(entries(cache), 0);
}

TEST(folder_is_a_file) {
    close(open(cache, O_CREAT | O_WRONLY, 0600));
    check_unusable();
    unlink(cache);
}

TEST(switched_off) {
    setenv("ETCH_CACHE_SIZE", "0", 1);
    check_unusable();
    assert_int_equal(entries(cache), 0);
}

/* ---- objects that are not whole, files that are no files ---- */

static void does_not_load(void) {
    CHECK(refused(1, "does not load") && refused(1, "does not load"));
    unsetenv("ETCH_TEST_HELPER");
}

/* What the helper says is done is looked at, before it is loaded and before others find it. */
TEST(helper_lies) {
    const char *const kinds[] = {"empty", "gone", "fifo", "folder", "link"};
    for (int i = 0; i < COUNT_OF(kinds); i++) {
        lie(kinds[i]);
        in_child(does_not_load);
        assert_int_equal(entries(cache), 0);
    }
    set_up();
    in_child(compiles);
    in_child(hits);
}

TEST(object_cut_short) {
    char good[256], bytes[32];
    in_child(compiles);
    snprintf(good, sizeof good, "%s/good", test_dir);
    off_t n = size_of(only_object());
    assert_int_equal(rename(object_path, good), 0);
    uint64_t object = 0;
    int fd = open(good, O_RDONLY);
    assert_int_equal(pread(fd, &object, sizeof object, n - 40), sizeof object); /* the trailer */
    close(fd);
    assert_true(object > 4096 && (off_t)object < n);
    setenv("ETCH_TEST_OBJECT", good, 1);
    lie("cut");
    for (off_t k = 1; k < (off_t)object; k += k < 64 ? 21 : (off_t)object / 11) {
        setenv("ETCH_TEST_BYTES", (snprintf(bytes, sizeof bytes, "%ld", (long)k), bytes), 1);
        in_child(does_not_load);
        assert_int_equal(entries(cache), 0);
    }
    snprintf(bytes, sizeof bytes, "%ld", (long)object - 1);
    setenv("ETCH_TEST_BYTES", bytes, 1);
    in_child(does_not_load);
    unlink(good);
}

static void make_other(const char *path, int kind) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(a.sun_path, sizeof a.sun_path, "%.100s", path);
    unlink(path);
    if (kind == 0) assert_int_equal(mkfifo(path, 0600), 0);
    if (kind == 1) assert_int_equal(mkdir(path, 0700), 0);
    if (kind == 2) assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    if (kind == 3) assert_int_equal(symlink("/dev/zero", path), 0);
    close(fd);
}

TEST(entry_is_no_file) {
    in_child(compiles);
    for (int kind = 0; kind < 4; kind++) {
        make_other(only_object(), kind);
        in_child(compiles);
        in_child(hits);
    }
}

/* A kernel that runs does not depend on its file any more. */
static void cut_while_loaded(void) {
    loaded_kernel *l;
    const char *why;
    CHECK(get_number(1, &l, &why) && computes(l, 1));
    CHECK(truncate(object_path, 0) == 0 && computes(l, 1));
    etch__kernel_release(l);
}
TEST(cut_while_loaded) {
    in_child(compiles);
    only_object();
    in_child(cut_while_loaded);
    in_child(compiles);
}

/* ---- where nothing can be written ---- */

static char logged[4096];
static void sink(void *ctx, const char *line) {
    size_t n = strlen(logged);
    snprintf(logged + n, sizeof logged - n, "%s\n", line), (void)ctx;
}

static void limit_files(rlim_t bytes) {
    struct rlimit r;
    CHECK(getrlimit(RLIMIT_FSIZE, &r) == 0);
    r.rlim_cur = bytes;
    CHECK(setrlimit(RLIMIT_FSIZE, &r) == 0);
}

/* The helper from before may write, we may not: no signal, the kernel works, one reason. */
static void no_files_for_us(void) {
    CHECK(works(1));
    etch_set_log_sink(sink, NULL);
    CHECK(etch_set_logs("cache") == ETCH_OK);
    limit_files(0);
    CHECK(works(2) && etch_last_status() == ETCH_OK);
    char *reason = strstr(logged, "not stored");
    CHECK(reason && strstr(reason, "File too large") && !strstr(reason + 1, "not stored"));
    store(1);
    limit_files(RLIM_INFINITY);
    CHECK(!there(1) && works(3));
    store(1);
    CHECK(there(1));
}
static void no_files_for_both(void) {
    limit_files(0);
    CHECK(refused(4, "etch_small_4"));
    etch__jit_shutdown();
    limit_files(RLIM_INFINITY);
    CHECK(works(4));
}
TEST(limit_on_files) {
    in_child(no_files_for_us);
    assert_int_equal(entries(cache), 3);
    in_child(no_files_for_both);
    assert_int_equal(entries(cache), 4);
}

/* The folder is removed with all that is in it, the warm helper's own folder too. */
static void wiped(void) {
    for (int i = 0; i < 3; i++) {
        CHECK(works(i));
        etch__remove_tree(cache);
        store(i);
        CHECK(there(i));
        etch__remove_tree(cache);
    }
    CHECK(works(7) && etch_counters().kernels_compiled == 4);
}
TEST(wiped_folder) {
    in_child(wiped);
    assert_int_equal(entries(cache), 1);
}

static void set_limit(long long bytes) {
    char limit[32];
    snprintf(limit, sizeof limit, "%lld", bytes);
    setenv("ETCH_CACHE_SIZE", limit, 1);
}

static void four(void) {
    for (int i = 0; i < 4; i++) CHECK(works(i));
}
static void last_two_hit(void) {
    CHECK(works(2) && works(3));
    CHECK(etch_counters().cache_hits == 2);
    CHECK(works(0));
    CHECK(etch_counters().kernels_compiled == 1);
}
TEST(bound) {
    in_child(compiles);
    long long limit = (long long)size_of(only_object()) * 5 / 2;
    unlink(object_path);
    set_limit(limit);
    in_child(four);
    assert_int_equal(entries(cache), 2);
    in_child(last_two_hit);
    assert_int_equal(entries(cache), 2);
}

/* ---- when the folder is listed: blobs of 1,000 bytes under a limit whose 64th holds five ---- */

static blob_key blob_key_of(char *text, int number) {
    size_t n = (size_t)sprintf(text, "blob %04d", number);
    return (blob_key){(const uint8_t *)text, n, 0};
}

static void store(int number) {
    char key[32], blob[BLOB];
    memset(blob, number, sizeof blob);
    etch__cache_store_blob(blob_key_of(key, number), blob, sizeof blob);
}

static bool there(int number) {
    char key[32];
    size_t bytes = 0;
    char *blob = etch__cache_load_blob(blob_key_of(key, number), &bytes);
    bool ok = blob && bytes == BLOB && blob[0] == (char)number && blob[BLOB - 1] == (char)number;
    etch__free(blob);
    return ok;
}

static long long total(void) {
    char path[256];
    long long sum = 0;
    DIR *d = opendir(cache);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%.60s", cache, e->d_name);
        off_t n = size_of(path);
        sum += n > 0 ? n : 0;
    }
    if (d) closedir(d);
    return sum;
}

static const char *in_cache(const char *name) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", cache, name);
    return path;
}

/* Gives a file of the folder a time that lies so many seconds from now. */
static void set_age(const char *name, int seconds) {
    const struct timespec t[2] = {{.tv_sec = time(NULL) + seconds},
                                  {.tv_sec = time(NULL) + seconds}};
    assert_int_equal(utimensat(AT_FDCWD, in_cache(name), t, AT_SYMLINK_NOFOLLOW), 0);
}

static const char stamp[] = ".listed", old_object[] = "00000000000000000000000000000000.gp";

/* An object as large as the limit, older than all: the next listing removes it and nothing else. */
static void plant(void) {
    int fd = open(in_cache(old_object), O_CREAT | O_WRONLY, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, LIMIT), 0);
    close(fd);
    set_age(old_object, -10000);
}
static bool planted(void) { return size_of(in_cache(old_object)) == LIMIT; }

static void fills_up(void) {
    for (int i = 0; i < 1000; i++) {
        store(i);
        CHECK(total() <= LIMIT);
    }
    CHECK(total() > LIMIT - 3 * LIMIT / 64);
    for (int i = 0; i < 1000; i++) CHECK(i > 560 ? i < 720 || there(i) : !there(i));
}
TEST(many_stores) {
    set_limit(LIMIT);
    in_child(fills_up);
}

static void last_is_there(void) { CHECK(there(399) || there(1399) || there(2399) || there(3399)); }

/* Each may be a share above; the last file of all is one of the four last ones. */
TEST(many_processes) {
    pid_t children[4];
    int status = -1;
    set_limit(LIMIT);
    for (int c = 0; c < COUNT_OF(children); c++) {
        if ((children[c] = fork()) != 0) continue;
        for (int i = 0; i < 400; i++) store(c * 1000 + i);
        _exit(0);
    }
    for (int c = 0; c < COUNT_OF(children); c++) {
        assert_int_equal(waitpid(children[c], &status, 0), children[c]);
        assert_int_equal(status, 0);
    }
    assert_true(total() <= LIMIT + COUNT_OF(children) * LIMIT / 64);
    assert_true(total() > LIMIT / 2);
    in_child(last_is_there);
    assert_int_equal(entries(cache) * (total() / entries(cache)), total()); /* whole ones only */
}

/* One file after the stamp was moved by so many seconds: is the folder listed? */
static int stamp_age;
static void no_listing(void) {
    set_age(stamp, stamp_age);
    store(2);
    CHECK(there(2) && planted());
}
static void a_listing(void) {
    set_age(stamp, stamp_age);
    store(3);
    CHECK(there(3) && !planted());
}
static void first(void) { store(1); }

TEST(stamp) {
    const int fresh[] = {0, -40, 40}, old[] = {-61, -100000, 80, 100000};
    set_limit(LIMIT);
    in_child(first);
    for (int i = 0; i < COUNT_OF(fresh); i++) {
        stamp_age = fresh[i];
        plant();
        in_child(no_listing);
    }
    for (int i = 0; i < COUNT_OF(old); i++) {
        stamp_age = old[i];
        plant();
        in_child(a_listing);
        plant();
        stamp_age = 0;
        in_child(no_listing); /* the stamp is new again */
    }
}

/* With a fresh stamp the sixth blob of a process is more than its share. */
static void share(void) {
    set_age(stamp, 0);
    for (int i = 0; i < 5; i++) store(10 + i);
    CHECK(planted());
    store(15);
    CHECK(!planted());
    for (int i = 0; i < 6; i++) CHECK(there(10 + i));
}
TEST(share) {
    set_limit(LIMIT);
    in_child(first);
    plant();
    in_child(share);
}

/* Whatever has the stamp's name, the bound holds. */
static void listed_each_time(void) {
    store(4);
    CHECK(there(4) && !planted());
}
TEST(stamp_is_no_file) {
    set_limit(LIMIT);
    in_child(first);
    for (int kind = 0; kind < 3; kind++) {
        etch__remove_tree(in_cache(stamp)), unlink(in_cache(stamp));
        if (kind == 1) assert_int_equal(symlink("/nowhere/at/all", in_cache(stamp)), 0);
        if (kind == 2) assert_int_equal(mkdir(in_cache(stamp), 0700), 0);
        if (kind > 0) set_age(stamp, -100);
        plant();
        in_child(listed_each_time);
        assert_true(access("/nowhere/at/all", F_OK) != 0);
    }
}

static void only_clear(void) { etch_cache_clear(); }

/* What killed helpers left goes at a listing, what running ones hold does not, nor do other
 * people's files. */
TEST(leftovers) {
    set_limit(LIMIT);
    in_child(first);
    assert_int_equal(mkdir(in_cache("tmp-old"), 0700), 0);
    close(open(in_cache("tmp-old/x"), O_CREAT | O_WRONLY, 0600));
    assert_int_equal(mkdir(in_cache("tmp-new"), 0700), 0);
    close(open(in_cache("other"), O_CREAT | O_WRONLY, 0600));
    set_age("tmp-old", -4000), set_age("other", -4000), set_age(stamp, -100);
    in_child(first);
    assert_int_not_equal(access(in_cache("tmp-old"), F_OK), 0);
    assert_int_equal(access(in_cache("tmp-new"), F_OK), 0);
    assert_int_equal(access(in_cache("other"), F_OK), 0);
    in_child(only_clear);
    assert_int_equal(access(in_cache("other"), F_OK), 0);
    assert_int_not_equal(access(in_cache(stamp), F_OK), 0);
}

/* A folder that is ours but cannot be written: nothing is stored, nothing fails. */
static void cannot_write(void) {
    if (geteuid() == 0) CHECK(setegid(12345) == 0 && seteuid(12345) == 0);
    store(5);
    CHECK(!there(5) && !*etch_last_error());
}
TEST(unwritable_folder) {
    assert_int_equal(chmod(test_dir, 0711), 0);
    assert_int_equal(mkdir(cache, 0500), 0);
    if (geteuid() == 0) assert_int_equal(chown(cache, 12345, 12345), 0);
    in_child(cannot_write);
    assert_int_equal(entries(cache), 0);
    assert_int_equal(chmod(test_dir, 0700), 0);
}

static void clear(void) {
    CHECK(works(7));
    etch_cache_clear();
    CHECK(entries(cache) == 0);
    CHECK(works(7)); /* still in memory */
    CHECK(entries(cache) == 0);
}
TEST(clear) {
    in_child(four);
    assert_int_equal(entries(cache), 4);
    in_child(clear);
    assert_int_equal(entries(cache), 0);
}

TEST(default_folders) {
    char path[128];
    unsetenv("ETCH_CACHE_DIR");
    setenv("XDG_CACHE_HOME", test_dir, 1);
    in_child(compiles);
    snprintf(path, sizeof path, "%s/etch", test_dir);
    assert_int_equal(entries(path), 1);
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", test_dir, 1);
    in_child(compiles);
    snprintf(path, sizeof path, "%s/.cache/etch", test_dir);
    assert_int_equal(entries(path), 1);
}

/* As of the account of a service. */
TEST(home_that_is_not_there) {
    char home[128];
    struct stat s;
    unsetenv("ETCH_CACHE_DIR");
    snprintf(home, sizeof home, "%s/no-home", test_dir);
    setenv("HOME", home, 1);
    in_child(compiles);
    assert_int_equal(stat(home, &s), -1);
}

int main(int argc, char **argv) {
    if (getenv("ETCH_TEST_HELPER")) return false_helper(getenv("ETCH_TEST_HELPER"));
    if (make_test_dir()) return 1;
    int failed = run_suite(argc, argv);
    etch__remove_tree(test_dir);
    return failed;
}
