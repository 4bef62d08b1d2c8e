/* Files of named tensors: see include/etch/safetensors.h. */
#include "nn/module.h"
#include "nn/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static etch_status io_failed(const char *function, const char *path) {
    return etch__nn_fail(ETCH_ERR_IO, "%s: %.200s: %s", function, path, strerror(errno));
}

/* ---- bytes ---- */

static bool write_all(int fd, const void *data, size_t n) {
    for (const char *p = data; n;) {
        ssize_t put = write(fd, p, n > 1 << 30 ? 1 << 30 : n);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return false;
        p += put, n -= (size_t)put;
    }
    return true;
}

/* false at the end of the file, too, with errno 0. */
static bool read_all(int fd, void *data, size_t n, int64_t at) {
    errno = 0;
    for (char *p = data; n;) {
        ssize_t got = pread(fd, p, n > 1 << 30 ? 1 << 30 : n, at);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        p += got, at += got, n -= (size_t)got;
    }
    return true;
}

/* ---- writing ---- */

#define SAVE "etch_safetensors_save"

static int64_t bytes_of(const etch_tensor *t) {
    return etch_numel(t) * (int64_t)etch_dtype_size(etch_dtype_of(t));
}

static int compare_strings(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Names are UTF-8, differ, and none is the texts' own. */
static etch_status check_names(const char **all, int n) {
    for (int i = 0; i < n; i++)
        if (!strcmp(all[i], "__metadata__") || !etch__is_utf8(all[i], strlen(all[i])))
            return etch__nn_fail(ETCH_ERR_INVALID_ARGUMENT,
                                 SAVE ": expected names in UTF-8 other than __metadata__, got "
                                      "'%.100s'",
                                 all[i]);
    qsort(all, (size_t)n, sizeof *all, compare_strings);
    for (int i = 1; i < n; i++)
        if (!strcmp(all[i], all[i - 1]))
            return etch__nn_fail(ETCH_ERR_INVALID_ARGUMENT, SAVE ": the name '%.100s' comes twice",
                                 all[i]);
    return ETCH_OK;
}

static etch_status check_arguments(const etch_named_tensor *tensors, int n,
                                   const etch_named_text *texts, int ntexts) {
    const char **all = malloc(((size_t)n + (size_t)ntexts + 1) * sizeof *all);
    etch_status status = ETCH_OK;
    if (!all) return etch__nn_no_memory(), ETCH_ERR_OUT_OF_MEMORY;
    for (int i = 0; status == ETCH_OK && i < n; i++) {
        all[i] = tensors[i].name;
        if (!all[i] || !tensors[i].tensor || tensors[i].tensor == ETCH_NONE)
            status = etch__nn_null(SAVE, "a name and a tensor in each entry");
    }
    if (status == ETCH_OK) status = check_names(all, n);
    for (int i = 0; status == ETCH_OK && i < ntexts; i++) {
        all[i] = texts[i].name;
        if (!all[i] || !texts[i].text) status = etch__nn_null(SAVE, "a name and a text");
        else if (!etch__is_utf8(texts[i].text, strlen(texts[i].text)))
            status = etch__nn_fail(ETCH_ERR_INVALID_ARGUMENT,
                                   SAVE ": the text '%.60s' is not UTF-8", all[i]);
    }
    if (status == ETCH_OK) status = check_names(all, ntexts);
    free(all);
    return status;
}

/* The numbers of the tensors, wider dtypes first, else as they are given. */
static int *order_of(const etch_named_tensor *tensors, int n) {
    int *order = malloc(((size_t)n + 1) * sizeof *order), count = 0;
    if (!order) return etch__nn_no_memory();
    for (size_t width = 8; width; width /= 2)
        for (int i = 0; i < n; i++)
            if (etch_dtype_size(etch_dtype_of(tensors[i].tensor)) == width) order[count++] = i;
    return order;
}

static void put_tensor(json_text *t, const etch_named_tensor *e, int64_t from) {
    etch_shape s = etch_sizes(e->tensor);
    etch__json_put_string(t, e->name);
    etch__json_put(t, ":{\"dtype\":\"");
    etch__json_put(t, etch__stored_dtype(etch_dtype_of(e->tensor)));
    etch__json_put(t, "\",\"shape\":[");
    for (int d = 0; d < s.n; d++) {
        if (d) etch__json_put(t, ",");
        etch__json_put_whole(t, s.v[d]);
    }
    etch__json_put(t, "],\"data_offsets\":[");
    etch__json_put_whole(t, from);
    etch__json_put(t, ",");
    etch__json_put_whole(t, from + bytes_of(e->tensor));
    etch__json_put(t, "]}");
}

static void put_texts(json_text *t, const etch_named_text *texts, int n) {
    etch__json_put(t, "\"__metadata__\":{");
    for (int i = 0; i < n; i++) {
        if (i) etch__json_put(t, ",");
        etch__json_put_string(t, texts[i].name);
        etch__json_put(t, ":");
        etch__json_put_string(t, texts[i].text);
    }
    etch__json_put(t, "}");
}

/* The header behind its length, filled up with spaces so that the elements are aligned. */
static json_text header_of(const etch_named_tensor *tensors, const int *order, int n,
                           const etch_named_text *texts, int ntexts) {
    json_text t = {0};
    int64_t at = 0;
    etch__json_put(&t, "{");
    if (ntexts) put_texts(&t, texts, ntexts);
    for (int i = 0; i < n; i++) {
        if (i || ntexts) etch__json_put(&t, ",");
        put_tensor(&t, &tensors[order[i]], at);
        at += bytes_of(tensors[order[i]].tensor);
    }
    etch__json_put(&t, "}");
    while (!t.failed && t.n % 8) etch__json_put(&t, " ");
    return t;
}

static etch_status write_header(int fd, const json_text *header, const char *path) {
    unsigned char length[8];
    if (header->failed) return etch__nn_no_memory(), ETCH_ERR_OUT_OF_MEMORY;
    if (header->n > MAX_HEADER)
        return etch__nn_fail(ETCH_ERR_INVALID_ARGUMENT,
                             SAVE ": expected names and texts of up to 100 MB, got %zu bytes",
                             header->n);
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)((uint64_t)header->n >> 8 * i);
    if (write_all(fd, length, 8) && write_all(fd, header->text, header->n)) return ETCH_OK;
    return io_failed(SAVE, path);
}

static etch_status write_tensor(int fd, etch_tensor *t, const char *path) {
    size_t n = (size_t)bytes_of(t);
    if (!n) return ETCH_OK;
    void *data = malloc(n);
    if (!data) return etch__nn_no_memory(), ETCH_ERR_OUT_OF_MEMORY;
    etch_status status = etch_to_host(t, data, n);
    if (status == ETCH_OK && !write_all(fd, data, n)) status = io_failed(SAVE, path);
    free(data);
    return status;
}

static etch_status write_file(int fd, const char *path, const etch_named_tensor *tensors, int n,
                              const etch_named_text *texts, int ntexts) {
    int *order = order_of(tensors, n);
    if (!order) return ETCH_ERR_OUT_OF_MEMORY;
    json_text header = header_of(tensors, order, n, texts, ntexts);
    etch_status status = write_header(fd, &header, path);
    for (int i = 0; status == ETCH_OK && i < n; i++)
        status = write_tensor(fd, tensors[order[i]].tensor, path);
    if (status == ETCH_OK && fsync(fd) != 0) status = io_failed(SAVE, path);
    free(header.text);
    free(order);
    return status;
}

/* The folder's own entry is made durable, too; where that cannot be done the file is there all the
 * same. */
static void sync_folder(const char *path) {
    const char *slash = strrchr(path, '/');
    char *folder = strndup(slash ? path : ".", slash ? (size_t)(slash - path) + 1 : 1);
    int fd = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    free(folder);
    if (fd < 0) return;
    if (fsync(fd) != 0) errno = 0;
    close(fd);
}

/* A new file beside path, whose name (for free()) *name becomes; -1 with errno. */
static int open_beside(const char *path, char **name) {
    static _Atomic unsigned counter;
    size_t room = strlen(path) + 40;
    *name = malloc(room);
    for (int tries = 0; *name && tries < 100; tries++) {
        snprintf(*name, room, "%s.%ld-%u.tmp", path, (long)getpid(), counter++);
        int fd = open(*name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0 || errno != EEXIST) return fd;
    }
    return -1;
}

etch_status etch_safetensors_save(const char *path, const etch_named_tensor *tensors, int n,
                                  const etch_named_text *texts, int ntexts) {
    char *beside = NULL;
    if (!path || n < 0 || ntexts < 0 || (n && !tensors) || (ntexts && !texts))
        return etch__nn_null(SAVE, "a path, tensors and texts");
    etch_status status = check_arguments(tensors, n, texts, ntexts);
    if (status != ETCH_OK) return status;
    int fd = open_beside(path, &beside);
    if (fd < 0) {
        status = io_failed(SAVE, path);
        free(beside);
        return status;
    }
    status = write_file(fd, path, tensors, n, texts, ntexts);
    if (close(fd) != 0 && status == ETCH_OK) status = io_failed(SAVE, path);
    if (status == ETCH_OK && rename(beside, path) != 0) status = io_failed(SAVE, path);
    if (status == ETCH_OK) sync_folder(path);
    else unlink(beside);
    free(beside);
    return status;
}

/* ---- reading ---- */

#define LOAD "etch_safetensors_load"

/* What is behind the name: a regular file of at least 8 bytes. */
static bool open_file(etch_safetensors *f, int64_t *bytes) {
    struct stat s;
    f->fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not wait */
    if (f->fd < 0 || fstat(f->fd, &s) != 0) return io_failed(LOAD, f->path), false;
    if (!S_ISREG(s.st_mode)) {
        etch__nn_fail(ETCH_ERR_IO, LOAD ": %.200s: expected a regular file", f->path);
        return false;
    }
    *bytes = s.st_size;
    return true;
}

static bool read_length(etch_safetensors *f, int64_t bytes, size_t *length) {
    unsigned char raw[8];
    uint64_t n = 0;
    if (bytes < 8 || !read_all(f->fd, raw, 8, 0)) {
        etch__nn_fail(ETCH_ERR_FORMAT, LOAD ": %.200s: expected 8 bytes at least, got %lld",
                      f->path, (long long)bytes);
        return false;
    }
    for (int i = 0; i < 8; i++) n |= (uint64_t)raw[i] << 8 * i;
    if (n > MAX_HEADER || (int64_t)n > bytes - 8) {
        etch__nn_fail(ETCH_ERR_FORMAT,
                      LOAD ": %.200s: a header of %llu bytes, in a file of %lld (the limit is %d)",
                      f->path, (unsigned long long)n, (long long)bytes, MAX_HEADER);
        return false;
    }
    *length = (size_t)n;
    return true;
}

static bool read_file(etch_safetensors *f) {
    int64_t bytes;
    size_t n;
    if (!open_file(f, &bytes) || !read_length(f, bytes, &n)) return false;
    char *text = malloc(n + 1);
    if (!text) return etch__nn_no_memory() != NULL;
    f->data = 8 + (int64_t)n;
    f->bytes = bytes - f->data;
    bool ok = read_all(f->fd, text, n, 8);
    if (!ok) io_failed(LOAD, f->path);
    ok = ok && etch__read_header(f, text, n);
    free(text);
    return ok;
}

etch_safetensors *etch_safetensors_load(const char *path) {
    if (!path) return etch__nn_null(LOAD, "a path"), NULL;
    etch_safetensors *f = calloc(1, sizeof *f);
    if (!f) return etch__nn_no_memory();
    f->fd = -1;
    f->path = etch__nn_copy_text(path);
    if (f->path && read_file(f)) return f;
    etch_safetensors_free(f);
    return NULL;
}

void etch_safetensors_free(etch_safetensors *f) {
    if (!f) return;
    if (f->fd >= 0) close(f->fd);
    for (int i = 0; i < f->ntensors; i++) free(f->tensors[i].name);
    for (int i = 0; i < f->ntexts; i++) free(f->texts[i].name), free(f->texts[i].text);
    free(f->tensors);
    free(f->texts);
    free(f->by_name);
    free(f->path);
    free(f);
}

/* ---- what is in it ---- */

static const stored *at(const etch_safetensors *f, int i) {
    return f && i >= 0 && i < f->ntensors ? &f->tensors[i] : NULL;
}

int etch_safetensors_count(const etch_safetensors *f) { return f ? f->ntensors : 0; }

const char *etch_safetensors_name(const etch_safetensors *f, int i) {
    const stored *t = at(f, i);
    return t ? t->name : NULL;
}

etch_dtype etch_safetensors_dtype(const etch_safetensors *f, int i) {
    const stored *t = at(f, i);
    return t ? t->dtype : ETCH_DTYPE_COUNT;
}

etch_shape etch_safetensors_sizes(const etch_safetensors *f, int i) {
    const stored *t = at(f, i);
    return t ? t->sizes : ETCH_SHAPE();
}

int etch_safetensors_find(const etch_safetensors *f, const char *name) {
    int low = 0, high = f && name ? f->ntensors : 0;
    while (low < high) {
        int middle = low + (high - low) / 2;
        int order = strcmp(name, f->tensors[f->by_name[middle]].name);
        if (!order) return f->by_name[middle];
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return -1;
}

const char *etch_safetensors_text(const etch_safetensors *f, const char *name) {
    for (int i = 0; f && name && i < f->ntexts; i++)
        if (!strcmp(f->texts[i].name, name)) return f->texts[i].text;
    return NULL;
}

static bool are_bools(const unsigned char *data, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (data[i] > 1) return false;
    return true;
}

etch_tensor *etch_safetensors_tensor(const etch_safetensors *f, int i) {
    const stored *s = at(f, i);
    if (!s) {
        etch__nn_fail(ETCH_ERR_INVALID_ARGUMENT,
                      "etch_safetensors_tensor: expected a file and a number below %d, got %d",
                      etch_safetensors_count(f), i);
        return NULL;
    }
    size_t n = (size_t)(s->to - s->from);
    unsigned char *data = malloc(n + 1);
    if (!data) return etch__nn_no_memory();
    bool ok = read_all(f->fd, data, n, f->data + s->from);
    if (!ok)
        etch__nn_fail(ETCH_ERR_IO, "etch_safetensors_tensor: %.200s: tensor '%.100s': %s", f->path,
                      s->name, errno ? strerror(errno) : "the file has become shorter");
    else if (s->dtype == ETCH_BOOL && !(ok = are_bools(data, n)))
        etch__nn_fail(ETCH_ERR_FORMAT,
                      "etch_safetensors_tensor: %.200s: the bool tensor '%.100s' has an element "
                      "that is neither 0 nor 1",
                      f->path, s->name);
    etch_tensor *t = ok ? etch_from_host(data, s->dtype, s->sizes) : NULL;
    free(data);
    return t;
}
