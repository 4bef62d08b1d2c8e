/* Modules made anew from files: the description that nn/module_file.c writes, read one module after
 * the other, each made by its type's maker and given its tensors at once. */
#include "nn/module.h"
#include "nn/safetensors.h"
#include "nn/types.h"

#include <stdlib.h>
#include <string.h>

#define FUNCTION "etch_module_from_file"

enum { DEEPEST = 50 };

typedef struct making {
    const etch_safetensors *f;
    json j;
    etch_tensor **read; /* by number in the file: read once, so tied ones stay one */
    int depth;
} making;

static bool refuse(const making *o, const char *what, const char *name) {
    etch__nn_fail(ETCH_ERR_FORMAT, FUNCTION ": %.80s: %s '%.100s'", o->f->path, what, name);
    return false;
}

/* ---- tensors ---- */

static bool read_number(making *o, int *number) {
    char *name = etch__json_string(&o->j);
    *number = name ? etch_safetensors_find(o->f, name) : -1;
    if (name && *number < 0) refuse(o, "there is no tensor", name);
    free(name);
    return *number >= 0;
}

/* {"tensor": "name", "frozen": true}: its number in the file; -1 with a fault or the error set. */
static int read_entry(making *o, bool *frozen) {
    bool any = false, ok = true;
    int number = -1;
    *frozen = false;
    for (etch__json_take(&o->j, '{'); ok && etch__json_more(&o->j, '}', &any);) {
        char *key = etch__json_key(&o->j);
        if (key && !strcmp(key, "tensor")) ok = read_number(o, &number);
        else if (key && !strcmp(key, "frozen")) ok = etch__json_bool(&o->j, frozen);
        else ok = key && etch__json_fault(&o->j, "expected tensor or frozen");
        free(key);
    }
    if (ok && number < 0) etch__json_fault(&o->j, "expected the name of a tensor");
    return ok ? number : -1;
}

static etch_tensor *tensor_of(making *o, int number) {
    if (!o->read[number])
        ETCH_SCOPE { o->read[number] = etch_retain(etch_safetensors_tensor(o->f, number)); }
    return o->read[number];
}

/* In the place of the tensor that the maker has made, or beside those. */
static bool place(making *o, etch_module *m, const char *name, int number, bool buffer) {
    const name_list *own = buffer ? &m->buffers : &m->parameters;
    etch_tensor *made = etch__nn_find(own, name, strlen(name));
    if (made && !etch__fits_stored(FUNCTION, o->f, number, made)) return false;
    etch_tensor *t = tensor_of(o, number);
    if (!t) return false;
    if (made) return etch_module_set_tensor(m, name, t) == ETCH_OK;
    return (buffer ? etch_module_add_buffer(m, name, t) : etch_module_add_parameter(m, name, t)) ==
           ETCH_OK;
}

/* Whether the n-th entry is the n-th that is there, or a new one behind all of them. */
static bool in_order(making *o, const name_list *own, int n, const char *name) {
    return n >= own->n || !strcmp(own->list[n].name, name) ||
           refuse(o, "the file has in another order than the module, or twice,", name);
}

static bool read_tensor(making *o, etch_module *m, int n, bool buffer) {
    bool frozen = false;
    char *name = etch__json_key(&o->j);
    int number = name && in_order(o, buffer ? &m->buffers : &m->parameters, n, name)
                     ? read_entry(o, &frozen)
                     : -1;
    bool ok = number >= 0 && place(o, m, name, number, buffer);
    free(name);
    etch_tensor *t = ok ? o->read[number] : NULL;
    return ok && (buffer || !etch__nn_float(t) || etch_requires_grad_(t, !frozen));
}

static bool read_tensors(making *o, etch_module *m, bool buffers) {
    const name_list *own = buffers ? &m->buffers : &m->parameters;
    int n = 0;
    bool any = false;
    for (etch__json_take(&o->j, '{'); etch__json_more(&o->j, '}', &any); n++)
        if (!read_tensor(o, m, n, buffers)) return false;
    if (o->j.fault) return false;
    return n == own->n || refuse(o, "the file lacks tensors of", m->type);
}

/* ---- modules ---- */

/* What stands before the tensors: type, config, training. The module is made, or is the child that
 * its parent's maker has made. */
typedef struct head {
    char *type, *config;
    bool evaluates;
    int has; /* which lists were read: a bit each */
} head;

enum { HAS_PARAMETERS = 1, HAS_BUFFERS = 2, HAS_CHILDREN = 4 };

static bool same_text(const char *a, const char *b) { return a && b ? !strcmp(a, b) : a == b; }

static etch_module *made_by(making *o, const head *h, etch_module *there) {
    if (!h->type) return etch__json_fault(&o->j, "expected a type first"), NULL;
    if (there) {
        bool same = !strcmp(there->type, h->type) && same_text(there->config, h->config);
        return same || refuse(o, "its parent's maker makes another module than", h->type) ? there
                                                                                          : NULL;
    }
    etch_module_maker make = etch__maker_of(h->type);
    etch_module *m = make ? make(h->config) : NULL;
    if (!m || !strcmp(m->type, h->type)) return m;
    refuse(o, "a module of another type was made for", h->type);
    etch_module_free(m);
    return NULL;
}

static etch_module *read_module(making *o, etch_module *there);

static bool read_child(making *o, etch_module *m, int n) {
    char *name = etch__json_key(&o->j);
    if (name && !in_order(o, &m->children, n, name)) return free(name), false;
    etch_module *there = name ? etch__nn_find(&m->children, name, strlen(name)) : NULL;
    etch_module *child = name ? read_module(o, there) : NULL;
    bool ok = child && (there || etch_module_add_child(m, name, child) == ETCH_OK);
    if (child && !ok) etch_module_free(child);
    free(name);
    return ok;
}

static bool read_children(making *o, etch_module *m) {
    bool any = false;
    int n = 0;
    for (etch__json_take(&o->j, '{'); etch__json_more(&o->j, '}', &any); n++)
        if (!read_child(o, m, n)) return false;
    if (o->j.fault) return false;
    return n == m->children.n || refuse(o, "the file lacks children of", m->type);
}

/* One of the lists, behind its key. */
static bool read_list(making *o, head *h, etch_module *m, const char *key) {
    int bit = !strcmp(key, "parameters") ? HAS_PARAMETERS
              : !strcmp(key, "buffers")  ? HAS_BUFFERS
              : !strcmp(key, "children") ? HAS_CHILDREN
                                         : 0;
    if (!bit || h->has & bit)
        return etch__json_fault(&o->j, "a module has a field that there is not, or twice");
    h->has |= bit;
    return bit == HAS_CHILDREN ? read_children(o, m) : read_tensors(o, m, bit == HAS_BUFFERS);
}

/* The fields in the order in which they are written: those of the head make the module. */
static bool read_field(making *o, head *h, etch_module **m, etch_module *there) {
    char *key = etch__json_key(&o->j);
    bool ok = false, training;
    if (!key) return false;
    if (!strcmp(key, "type") && !h->type) ok = (h->type = etch__json_string(&o->j)) != NULL;
    else if (!strcmp(key, "config") && !h->config && !*m)
        ok = (h->config = etch__json_string(&o->j)) != NULL;
    else if (!strcmp(key, "training") && !*m)
        ok = etch__json_bool(&o->j, &training), h->evaluates = ok && !training;
    else if (*m || (*m = made_by(o, h, there))) ok = read_list(o, h, *m, key);
    free(key);
    return ok;
}

/* What was made and has no list in the file would keep its random values. */
static bool has_all(making *o, const head *h, const etch_module *m) {
    return (h->has & HAS_PARAMETERS || !m->parameters.n) &&
                   (h->has & HAS_BUFFERS || !m->buffers.n) &&
                   (h->has & HAS_CHILDREN || !m->children.n)
               ? true
               : refuse(o, "the file lacks lists of", m->type);
}

/* A module that was made here is freed on failure; one that is there belongs to its parent. */
static etch_module *read_module(making *o, etch_module *there) {
    head h = {0};
    etch_module *m = NULL;
    bool any = false, ok = true;
    if (o->depth >= DEEPEST) return refuse(o, "modules are nested too deep in", "it"), NULL;
    o->depth++;
    for (etch__json_take(&o->j, '{'); ok && etch__json_more(&o->j, '}', &any);)
        ok = read_field(o, &h, &m, there);
    ok = ok && !o->j.fault && (m || (m = made_by(o, &h, there))) && has_all(o, &h, m);
    if (ok) m->evaluates = h.evaluates;
    free(h.type);
    free(h.config);
    o->depth--;
    if (ok) return m;
    if (!there) etch_module_free(m);
    return NULL;
}

/* ---- all ---- */

static etch_module *make_all(making *o, const char *text) {
    o->j = (json){text, text, text + strlen(text), NULL};
    o->read = calloc((size_t)o->f->ntensors + 1, sizeof(etch_tensor *));
    if (!o->read) return etch__nn_no_memory();
    int64_t outer = etch__nn_limit; /* a maker may read a file itself */
    etch__nn_limit = o->f->bytes;
    etch_module *m = read_module(o, NULL);
    etch__nn_limit = outer;
    if (m && !etch__json_ends(&o->j)) etch__json_fault(&o->j, "something behind the module");
    for (int i = 0; i < o->f->ntensors; i++) etch_release(o->read[i]);
    free(o->read);
    if (!o->j.fault) return m;
    etch_module_free(m);
    if (!strcmp(o->j.fault, "out of memory")) return etch__nn_no_memory();
    etch__nn_fail(ETCH_ERR_FORMAT, FUNCTION ": %.80s: byte %lld of the description: %s", o->f->path,
                  (long long)(o->j.at - o->j.start), o->j.fault);
    return NULL;
}

etch_module *etch_module_from_file(const char *path) {
    if (!path) return etch__nn_null(FUNCTION, "a path"), NULL;
    etch_safetensors *f = etch_safetensors_load(path);
    if (!f) return NULL;
    const char *text = etch_safetensors_text(f, "etch_module");
    making o = {.f = f};
    etch_module *m = text ? make_all(&o, text) : NULL;
    if (!text)
        etch__nn_fail(ETCH_ERR_NOT_FOUND,
                      FUNCTION ": %.200s has tensors, and no description of a module", path);
    etch_safetensors_free(f);
    return m;
}
