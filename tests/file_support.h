/* What the suites of files share: a folder of their own, which is empty at the start of each test,
 * and files made of a header and bytes. */
#ifndef ETCH_TESTS_FILE_SUPPORT_H
#define ETCH_TESTS_FILE_SUPPORT_H

#include "nn_support.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

static char file_folder[] = "/tmp/etch-files-XXXXXX";

/* A path in the folder; of the last four asked for. */
NN_FN const char *path_of(const char *name) {
    static char ring[4][128];
    static int next;
    char *path = ring[next++ % 4];
    snprintf(path, sizeof ring[0], "%s/%s", file_folder, name);
    return path;
}

NN_FN int files_there(bool remove) {
    int n = 0;
    DIR *d = must(opendir(file_folder));
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        n++;
        if (remove) unlink(path_of(e->d_name));
    }
    closedir(d);
    return n;
}

static bool folder_made;

/* Of a suite in several processes each has one, and the first process none. */
NN_FN void remove_folder(void) {
    if (!folder_made) return;
    files_there(true), rmdir(file_folder);
    folder_made = false;
}

NN_FN void fresh_folder(void) {
    if (!folder_made) folder_made = mkdtemp(file_folder) != NULL;
    assert_true(folder_made);
    files_there(true);
}

NN_FN void write_bytes(const char *path, const void *data, size_t n) {
    FILE *f = must(fopen(path, "wb"));
    assert_true(fwrite(data, 1, n, f) == n);
    assert_int_equal(fclose(f), 0);
}

/* All of a file; *n its length. For free(). */
NN_FN char *read_bytes(const char *path, size_t *n) {
    FILE *f = must(fopen(path, "rb"));
    char *data = calloc(1, 1 << 20);
    *n = fread(data, 1, (1 << 20) - 1, f);
    fclose(f);
    return data;
}

/* A file of safetensors that says `header` and has n bytes of 1 behind it. */
NN_FN const char *make_file(const char *header, size_t n) {
    static char all[1 << 16];
    size_t k = strlen(header);
    assert_true(8 + k + n <= sizeof all);
    for (int i = 0; i < 8; i++) all[i] = (char)(k >> 8 * i);
    memcpy(all + 8, header, k);
    memset(all + 8 + k, 1, n);
    write_bytes(path_of("made"), all, 8 + k + n);
    return path_of("made");
}

#endif
