/* Reading a file. What is asked first is who may have written it, if its code is wanted; then its
 * form, its hash, its program; and only then is the pack taken. Nothing is run here. */
#include <etch/device.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/dispatch/dispatch.h"
#include "core/tensor/device.h"
#include "export/file.h"
#include "export/hash.h"
#include "jit/store/cache.h"
#include "nn/safetensors.h"

typedef struct reading {
    const char *function; /* that the user has called */
    const char *path;
    etch_safetensors *f;
    etch_named_tensor *tensors; /* all of the file's, on the CPU */
    exported *e;
} reading;

static bool damaged(const reading *r, const char *what) {
    return etch__false_at(NULL, ETCH_ERR_FORMAT, "%s: %.200s: %s", r->function, r->path, what);
}

/* ---- who made it ---- */

static bool origin_ok(const reading *r) {
    struct stat s;
    const char *why = NULL;
    if (fstat(r->f->fd, &s) != 0 || !S_ISREG(s.st_mode)) why = "it is no regular file";
    else if (s.st_uid != geteuid() && s.st_uid != 0) why = "it belongs to another user";
    else if (s.st_mode & 022) why = "others may write it (chmod go-w)";
    if (!why) return true;
    return etch__false_at(NULL, ETCH_ERR_IO,
                          "%s: %.200s: its machine code is not loaded: %s; with "
                          "ETCH_CODE_COMPILE it is compiled here, with ETCH_CODE_EAGER it runs "
                          "without",
                          r->function, r->path, why);
}

/* Of the code: whether this process would have made the same. */
static bool identity_ok(const reading *r) {
    char own[256];
    const char *there = r->e->identity;
    etch__cache_identity(own, sizeof own);
    if (!strcmp(own, there)) return true;
    return etch__false_at(NULL, ETCH_ERR_UNSUPPORTED,
                          "%s: %.200s: its machine code is for '%s', expected '%s'; with "
                          "ETCH_CODE_COMPILE it is compiled here, with ETCH_CODE_EAGER it runs "
                          "without",
                          r->function, r->path,
                          *there ? there : "nothing (it was exported without)", own);
}

/* ---- form and hash ---- */

static const char *text_of(const reading *r, const char *name) {
    return etch_safetensors_text(r->f, name);
}

static bool version_ok(const reading *r) {
    const char *version = text_of(r, FILE_FORMAT);
    char *end;
    if (!version) return damaged(r, "it is no file of etch_export");
    long number = strtol(version, &end, 10);
    if (*end || end == version || number < 1 || number > FILE_VERSION)
        return etch__false_at(NULL, ETCH_ERR_FORMAT,
                              "%s: %.200s: expected a file of version 1 to %d, got '%.20s'",
                              r->function, r->path, FILE_VERSION, version);
    if (text_of(r, FILE_GRAPH) && text_of(r, FILE_PROGRAM) && text_of(r, FILE_HASH)) return true;
    return damaged(r, "a part is missing");
}

static bool read_tensors(reading *r) {
    int n = etch_safetensors_count(r->f);
    r->tensors = etch__calloc((size_t)n + 1, sizeof *r->tensors);
    for (int i = 0; r->tensors && i < n; i++) {
        etch_tensor *t = NULL;
        ETCH_ON(ETCH_CPU) t = etch_safetensors_tensor(r->f, i);
        if (!t) return false;
        r->tensors[i] = (etch_named_tensor){etch_safetensors_name(r->f, i), t};
    }
    return r->tensors != NULL;
}

static bool hash_ok(const reading *r) {
    char hash[HASH_TEXT];
    int n = r->f->ntexts;
    etch_named_text *texts = etch__malloc(((size_t)n + 1) * sizeof *texts);
    for (int i = 0; texts && i < n; i++)
        texts[i] = (etch_named_text){r->f->texts[i].name, r->f->texts[i].text};
    bool made =
        texts && etch__content_hash(texts, n, r->tensors, etch_safetensors_count(r->f), hash);
    etch__free(texts);
    if (!made) return false;
    return !strcmp(hash, text_of(r, FILE_HASH)) || damaged(r, "it is damaged: its hash is another");
}

/* ---- captured tensors ---- */

static bool inside(const tensor_meta *m, int64_t offset, const etch_tensor *kept) {
    int64_t least, end, item = etch__element_bytes[m->dtype];
    if (!etch__program_extent(m, &least, &end)) return false;
    if (least == end) return true; /* no elements */
    return offset < INT64_MAX / 16 && offset + least >= 0 &&
           (offset + end) * item <= kept->numel * etch__item_size(kept);
}

static etch_tensor *stored_for(const reading *r, int i) {
    char key[32];
    snprintf(key, sizeof key, FILE_CAPTURE ".%d", i);
    const char *name = text_of(r, key);
    int k = name ? etch_safetensors_find(r->f, name) : -1;
    if (k < 0 || !strcmp(name, FILE_CODE)) return damaged(r, "a captured tensor is missing"), NULL;
    r->e->p->captures[i].name = etch__strdup(name);
    return r->e->p->captures[i].name ? r->tensors[k].tensor : NULL;
}

/* On the program's device, once for all that lie over it. */
static etch_tensor *on_device(reading *r, etch_tensor *kept, int device) {
    if (kept->device == device) return kept;
    etch_tensor *moved = etch_to_device(kept, device);
    for (int k = 0; moved && k < etch_safetensors_count(r->f); k++)
        if (r->tensors[k].tensor == kept) r->tensors[k].tensor = moved;
    return moved;
}

static bool make_capture(reading *r, int i) {
    program *p = r->e->p;
    tensor_meta m = p->g->values[etch__first_capture(p) + i].meta;
    etch_tensor *kept = stored_for(r, i);
    if (!kept) return false;
    if ((m.dtype != kept->dtype && kept->dtype != ETCH_U8) ||
        !inside(&m, p->captures[i].offset, kept))
        return damaged(r, "a captured tensor does not fit the stored one");
    if (!(kept = on_device(r, kept, m.device))) return false;
    m.offset = p->captures[i].offset;
    etch_tensor *t = r->e->captured[i] = etch__tensor_alloc();
    if (!t) return false;
    etch__lie_over(t, &m, kept->storage);
    t->view = 0; /* of nothing that the program knows */
    return true;
}

/* Where inputs are written, the program and the file say the same of who shares memory. */
static bool sharing_ok(const reading *r) {
    const program *p = r->e->p;
    int first = etch__first_capture(p);
    for (int i = 0; i < p->ncaptures; i++)
        for (int k = 0; p->writes && k <= i; k++) {
            bool shared = r->e->captured[i]->storage == r->e->captured[k]->storage;
            bool said = p->g->values[first + i].base == p->g->values[first + k].base;
            if (shared != said)
                return damaged(r, "captured tensors share other memory than it says");
        }
    return true;
}

static bool read_captures(reading *r) {
    r->e->captured = etch__calloc((size_t)r->e->p->ncaptures + 1, sizeof *r->e->captured);
    for (int i = 0; r->e->captured && i < r->e->p->ncaptures; i++)
        if (!make_capture(r, i)) return false;
    return r->e->captured && sharing_ok(r);
}

/* ---- all of it ---- */

static bool read_program(reading *r) {
    r->e->p = etch__program_read(text_of(r, FILE_GRAPH), text_of(r, FILE_PROGRAM));
    bool ok = r->e->p && etch__program_check(r->e->p, r->function);
    if (!ok) etch__error_name(r->function, NULL, false);
    return ok;
}

static bool read_pack(reading *r) {
    int k = etch_safetensors_find(r->f, FILE_CODE);
    const etch_tensor *t = k >= 0 ? r->tensors[k].tensor : NULL;
    if (!t || t->dtype != ETCH_U8) return damaged(r, "its machine code is missing");
    r->e->pack = etch__pack_read(etch__ptr(t), (size_t)t->numel);
    if (!r->e->pack) etch__error_name(r->function, NULL, false);
    return r->e->pack != NULL;
}

static bool read_all(reading *r, file_code code) {
    bool run = code == CODE_TO_RUN;
    if ((run && !origin_ok(r)) || !version_ok(r) || !read_tensors(r) || !hash_ok(r)) return false;
    const char *identity = text_of(r, FILE_IDENTITY);
    snprintf(r->e->identity, sizeof r->e->identity, "%s", identity ? identity : "");
    if (!read_program(r) || !read_captures(r) || (run && !identity_ok(r))) return false;
    return code == CODE_LEFT || !identity || read_pack(r);
}

bool etch__file_load(const char *path, file_code code, exported *e) {
    reading r = {.path = path, .f = etch_safetensors_load(path), .e = e};
    r.function = code == CODE_TO_SHOW ? "etch_export_describe" : "etch_import";
    bool ok = false;
    *e = (exported){0};
    if (r.f)
        ETCH_SCOPE
            ok = read_all(&r, code);
    etch_safetensors_free(r.f);
    etch__free(r.tensors);
    if (!ok) etch__exported_free(e);
    return ok;
}
