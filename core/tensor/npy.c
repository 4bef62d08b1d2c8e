/* NumPy's .npy files: magic, version, a header that is a Python dict as text, then the elements.
 *
 * A file is not trusted: the header is read by a parser that knows the three keys only, and the
 * sizes must agree with the length of the file before memory is asked for. */
#include "core/tensor/device.h"
#include "core/tensor/element.h"
#include "core/base/signals.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

enum { PREFIX = 8, HEADER_MAX = 65536 };
static const char magic[] = "\x93NUMPY";

static const struct {
    const char *descr;
    etch_dtype dtype;
} descrs[] = {
    {"<f4", ETCH_F32}, {"<f8", ETCH_F64}, {"<f2", ETCH_F16}, {"|i1", ETCH_I8},   {"<i2", ETCH_I16},
    {"<i4", ETCH_I32}, {"<i8", ETCH_I64}, {"|u1", ETCH_U8},  {"|b1", ETCH_BOOL},
};

typedef struct npy_header {
    etch_dtype dtype;
    etch_shape shape;
    bool fortran;
    bool seen[3]; /* descr, fortran_order, shape */
} npy_header;

typedef struct npy_file {
    FILE *file;
    const char *path;
    const void *site;
} npy_file;

#define FAIL(f, code, format, ...)                                                                 \
    return etch__error_at((f)->site, code, "etch_npy_load: %s: " format, (f)->path, __VA_ARGS__),  \
           false

/* ---- the header's text ---- */

static const char *skip(const char *at, const char *what) { return at + strspn(at, what); }

/* A quoted word of fewer than n characters; NULL when there is none. */
static const char *parse_word(const char *at, char *word, size_t n) {
    char quote = *at++;
    size_t length = quote == '\'' || quote == '"' ? strcspn(at, quote == '"' ? "\"" : "'") : n;
    if (length >= n || !at[length]) return NULL;
    memcpy(word, at, length);
    word[length] = 0;
    return at + length + 1;
}

static const char *parse_descr(const npy_file *f, const char *at, npy_header *h) {
    char word[16] = "";
    at = parse_word(at, word, sizeof word);
    for (int i = 0; at && i < COUNT_OF(descrs); i++)
        if (!strcmp(word, descrs[i].descr) ||
            (*word == '<' && !strcmp(word + 1, descrs[i].descr + 1))) {
            h->dtype = descrs[i].dtype, h->seen[0] = true;
            return at;
        }
    return etch__null_at(
        f->site, ETCH_ERR_UNSUPPORTED,
        "etch_npy_load: %s: expected elements of f32 f64 f16 i8 i16 i32 i64 u8 or bool, "
        "little endian, got \"%s\"",
        f->path, word);
}

static const char *parse_order(const char *at, npy_header *h) {
    h->seen[1] = true, h->fortran = *at == 'T';
    if (!strncmp(at, "True", 4)) return at + 4;
    return strncmp(at, "False", 5) ? NULL : at + 5;
}

static const char *parse_shape(const char *at, npy_header *h) {
    h->seen[2] = true;
    if (*at++ != '(') return NULL;
    for (at = skip(at, " "); *at && *at != ')'; at = skip(at, " ,L")) {
        char *end;
        errno = 0;
        long long v = strtoll(at, &end, 10);
        if (end == at || errno || v < 0 || h->shape.n == ETCH_MAX_DIMS) return NULL;
        h->shape.v[h->shape.n++] = v;
        at = end;
    }
    return *at == ')' ? at + 1 : NULL;
}

static bool parse_header(const npy_file *f, const char *text, npy_header *h) {
    char key[24];
    const char *at = skip(text, " ");
    if (*at++ != '{') FAIL(f, ETCH_ERR_FORMAT, "expected a dict as header, got \"%.20s\"", text);
    for (at = skip(at, " "); *at && *at != '}'; at = skip(at, " ,")) {
        const char *value = parse_word(at, key, sizeof key);
        if (!value) FAIL(f, ETCH_ERR_FORMAT, "expected a key in its header, got \"%.20s\"", at);
        value = skip(value, " :");
        if (!strcmp(key, "descr")) {
            if (!(at = parse_descr(f, value, h))) return false;
        } else if (!strcmp(key, "fortran_order")) at = parse_order(value, h);
        else at = strcmp(key, "shape") ? NULL : parse_shape(value, h);
        if (!at) FAIL(f, ETCH_ERR_FORMAT, "its header has a bad %s: \"%.20s\"", key, value);
    }
    if (!h->seen[0] || !h->seen[1] || !h->seen[2])
        FAIL(f, ETCH_ERR_FORMAT, "its header lacks %s",
             !h->seen[0]   ? "descr"
             : !h->seen[1] ? "fortran_order"
                           : "shape");
    if (h->fortran && h->shape.n > 1)
        FAIL(f, ETCH_ERR_UNSUPPORTED, "expected C order, got %s order", "Fortran");
    return true;
}

/* ---- reading ---- */

static bool read_bytes(const npy_file *f, void *to, size_t n) {
    if (fread(to, 1, n, f->file) == n) return true;
    if (ferror(f->file)) FAIL(f, ETCH_ERR_IO, "could not be read: %s", strerror(errno));
    FAIL(f, ETCH_ERR_FORMAT, "ends early, %zu more bytes were expected", n);
}

/* Length of the header; versions 2 and 3 have four bytes of it, version 1 two. */
static bool read_prefix(const npy_file *f, size_t *length) {
    uint8_t p[PREFIX], n[4] = {0};
    if (!read_bytes(f, p, PREFIX)) return false;
    if (memcmp(p, magic, 6)) FAIL(f, ETCH_ERR_FORMAT, "is no %s file", ".npy");
    if (p[6] < 1 || p[6] > 3)
        FAIL(f, ETCH_ERR_UNSUPPORTED, "expected version 1 to 3, got %d", p[6]);
    if (!read_bytes(f, n, p[6] == 1 ? 2 : 4)) return false;
    *length = (size_t)n[0] | (size_t)n[1] << 8 | (size_t)n[2] << 16 | (size_t)n[3] << 24;
    if (*length > HEADER_MAX)
        FAIL(f, ETCH_ERR_FORMAT, "expected a header of at most %d bytes, got %zu", HEADER_MAX,
             *length);
    return true;
}

static bool read_header(const npy_file *f, npy_header *h) {
    size_t length;
    if (!read_prefix(f, &length)) return false;
    char *text = etch__malloc(length + 1);
    if (!text) return false;
    bool ok = read_bytes(f, text, length);
    text[ok ? length : 0] = 0;
    ok = ok && parse_header(f, text, h);
    etch__free(text);
    return ok;
}

/* Of a regular file the length is known, so a header that lies is found out before it costs memory.
 */
static bool check_length(const npy_file *f, const npy_header *h) {
    int64_t stride[ETCH_MAX_DIMS], numel = etch__row_major(h->shape.n, h->shape.v, stride);
    struct stat st;
    long at = ftell(f->file);
    if (numel < 0)
        FAIL(f, ETCH_ERR_OVERFLOW, "sizes %s do not fit in 63 bits of bytes",
             etch__shape_text(h->shape.n, h->shape.v).s);
    if (at < 0 || fstat(fileno(f->file), &st) || !S_ISREG(st.st_mode)) return true;
    int64_t need = numel * (int64_t)etch_dtype_size(h->dtype);
    if (st.st_size - at < need)
        FAIL(f, ETCH_ERR_FORMAT, "ends early: expected %lld bytes of data, got %lld",
             (long long)need, (long long)(st.st_size - at));
    return true;
}

static etch_tensor *read_tensor(const npy_file *f) {
    npy_header h = {0};
    if (!read_header(f, &h) || !check_length(f, &h)) return NULL;
    etch_tensor *t = etch__tensor_new(h.dtype, h.shape.n, h.shape.v);
    if (!t) return NULL;
    size_t bytes = (size_t)t->numel * etch_dtype_size(h.dtype);
    uint8_t *data = t->storage->data;
    bool ok = read_bytes(f, data, bytes);
    if (h.dtype == ETCH_BOOL)
        for (size_t i = 0; ok && i < bytes; i++) data[i] = data[i] != 0;
    return ok ? etch__to_current_device(t) : NULL; /* a half-read one dies with its scope */
}

etch_tensor *etch_npy_load(const char *path) {
    const void *site = __builtin_return_address(0);
    if (!path) return etch__null_at(site, ETCH_ERR_NULL, "etch_npy_load: path is NULL");
    npy_file f = {fopen(path, "rbe"), path, site};
    if (!f.file)
        return etch__null_at(site, ETCH_ERR_IO, "etch_npy_load: %s could not be opened: %m", path);
    etch_tensor *t = read_tensor(&f);
    fclose(f.file);
    return t;
}

/* ---- writing ---- */

static const char *descr_of(etch_dtype dtype) {
    for (int i = 0; i < COUNT_OF(descrs); i++)
        if (descrs[i].dtype == dtype) return descrs[i].descr;
    return NULL;
}

/* Magic, version 1.0 and a header padded so that the data starts at a multiple of 64. */
static size_t make_header(const etch_tensor *t, const char *descr, char *out, size_t room) {
    shape_text dims = etch__shape_text(t->ndim, t->size); /* in brackets of another kind */
    size_t n = PREFIX + 2;
    n += (size_t)snprintf(out + n, room - n,
                          "{'descr': '%s', 'fortran_order': False, 'shape': (%.*s%s), }", descr,
                          (int)strlen(dims.s) - 2, dims.s + 1, t->ndim == 1 ? "," : "");
    while ((n + 1) % 64) out[n++] = ' ';
    out[n++] = '\n';
    memcpy(out, magic, 6);
    out[6] = 1, out[7] = 0;
    out[8] = (char)((n - PREFIX - 2) & 255), out[9] = (char)((n - PREFIX - 2) >> 8);
    return n;
}

static bool write_file(const char *path, const char *header, size_t n, const void *data,
                       size_t bytes) {
    held_signals held;
    FILE *file = fopen(path, "wbe");
    if (!file) return false;
    etch__signals_hold(&held);
    bool ok = fwrite(header, 1, n, file) == n && fwrite(data, 1, bytes, file) == bytes;
    int error = errno;
    bool closed = !fclose(file);
    if (!ok) errno = error;
    etch__signals_release(&held);
    return ok && closed;
}

etch_status etch_npy_save(const char *path, const etch_tensor *t) {
    const void *site = __builtin_return_address(0);
    char header[512];
    if (!path) return etch__error_at(site, ETCH_ERR_NULL, "etch_npy_save: path is NULL");
    if (!etch__handle_ok(t, "etch_npy_save", "t", site)) return etch__tls.status;
    const char *descr = descr_of(t->dtype);
    if (!descr)
        return etch__error_at(site, ETCH_ERR_DTYPE,
                              "etch_npy_save: .npy has no %s (use etch_to first)",
                              etch_dtype_name(t->dtype));
    if (!etch__read(t, "etch_npy_save", REASON_BREAK_SAVE, site)) return etch__tls.status;
    size_t bytes = (size_t)t->numel * etch_dtype_size(t->dtype);
    void *copy = t->contiguous ? NULL : etch__malloc(bytes);
    if (!t->contiguous && !copy) return etch__tls.status;
    host_view v;
    const etch_tensor *h = etch__host_view(t, &v);
    if (h && copy) etch__copy_out(h, copy);
    const void *data = copy ? copy : h ? etch__ptr(h) : NULL;
    bool ok =
        h && write_file(path, header, make_header(t, descr, header, sizeof header), data, bytes);
    if (h && !ok)
        etch__error_at(site, ETCH_ERR_IO, "etch_npy_save: %s could not be written: %m", path);
    etch__free(copy);
    etch__host_view_end(&v);
    return ok ? ETCH_OK : etch__tls.status;
}
