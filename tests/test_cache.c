/* The disk cache: hits, damaged files, folders that must not be trusted, its bound. Each step runs
 * in a process of its own, since a process finds its own kernels in memory. */
#include "jit_common.h"

#include <fcntl.h>

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

static void test_hit(void **unused) {
    struct stat s;
    (void)unused;
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

static void test_damaged(void **unused) {
    (void)unused;
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
static void test_same_name_other_key(void **unused) {
    char first[256], second[256];
    (void)unused;
    in_child(compiles);
    snprintf(first, sizeof first, "%s/one", test_dir);
    assert_int_equal(rename(only_object(), first), 0);
    in_child(other);
    snprintf(second, sizeof second, "%s", only_object());
    assert_int_equal(rename(first, second), 0);
    in_child(other_is_compiled);
}

static void test_symlink(void **unused) {
    char target[256];
    (void)unused;
    in_child(compiles);
    snprintf(target, sizeof target, "%s/target", test_dir);
    assert_int_equal(rename(only_object(), target), 0);
    assert_int_equal(symlink(target, object_path), 0);
    in_child(compiles);
    in_child(hits);
    unlink(target);
}

static void test_writable_by_others(void **unused) {
    (void)unused;
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

static void test_open_folder(void **unused) {
    (void)unused;
    assert_int_equal(mkdir(cache, 0755), 0);
    assert_int_equal(chmod(cache, 0755), 0);
    check_unusable();
    assert_int_equal(entries(cache), 0);
}

static void test_foreign_folder(void **unused) {
    (void)unused;
    assert_int_equal(mkdir(cache, 0700), 0);
    if (chown(cache, 12345, (gid_t)-1) != 0) skip(); /* needs root */
    check_unusable();
    assert_int_equal(entries(cache), 0);
}

static void test_folder_is_a_file(void **unused) {
    (void)unused;
    close(open(cache, O_CREAT | O_WRONLY, 0600));
    check_unusable();
    unlink(cache);
}

static void test_switched_off(void **unused) {
    (void)unused;
    setenv("ETCH_CACHE_SIZE", "0", 1);
    check_unusable();
    assert_int_equal(entries(cache), 0);
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
static void test_bound(void **unused) {
    char limit[32];
    (void)unused;
    in_child(compiles);
    snprintf(limit, sizeof limit, "%lld", (long long)size_of(only_object()) * 5 / 2);
    unlink(object_path);
    setenv("ETCH_CACHE_SIZE", limit, 1);
    in_child(four);
    assert_int_equal(entries(cache), 2);
    in_child(last_two_hit);
    assert_int_equal(entries(cache), 2);
}

static void clear(void) {
    CHECK(works(7));
    etch_cache_clear();
    CHECK(entries(cache) == 0);
    CHECK(works(7)); /* still in memory */
    CHECK(entries(cache) == 0);
}
static void test_clear(void **unused) {
    (void)unused;
    in_child(four);
    assert_int_equal(entries(cache), 4);
    in_child(clear);
    assert_int_equal(entries(cache), 0);
}

static void test_default_folders(void **unused) {
    char path[128];
    (void)unused;
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_hit, set_up),
        cmocka_unit_test_setup(test_damaged, set_up),
        cmocka_unit_test_setup(test_same_name_other_key, set_up),
        cmocka_unit_test_setup(test_symlink, set_up),
        cmocka_unit_test_setup(test_writable_by_others, set_up),
        cmocka_unit_test_setup(test_open_folder, set_up),
        cmocka_unit_test_setup(test_foreign_folder, set_up),
        cmocka_unit_test_setup(test_folder_is_a_file, set_up),
        cmocka_unit_test_setup(test_switched_off, set_up),
        cmocka_unit_test_setup(test_bound, set_up),
        cmocka_unit_test_setup(test_clear, set_up),
        cmocka_unit_test_setup(test_default_folders, set_up),
    };
    if (make_test_dir()) return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    etch__remove_tree(test_dir);
    return failed;
}
