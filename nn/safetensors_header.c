/* The header of a file of named tensors: read and checked before anything of it is believed. */
#include "nn/module.h"
#include "nn/safetensors.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    etch_dtype dtype;
    const char *name;
} dtypes[] = {{ETCH_F32, "F32"}, {ETCH_F64, "F64"},  {ETCH_BF16, "BF16"}, {ETCH_F16, "F16"},
              {ETCH_I8, "I8"},   {ETCH_I16, "I16"},  {ETCH_I32, "I32"},   {ETCH_I64, "I64"},
              {ETCH_U8, "U8"},   {ETCH_BOOL, "BOOL"}};

const char *etch__stored_dtype(etch_dtype dtype) {
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (dtypes[i].dtype == dtype) return dtypes[i].name;
    return NULL;
}

etch_dtype etch__dtype_stored(const char *name) {
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (!strcmp(dtypes[i].name, name)) return dtypes[i].dtype;
    return ETCH_DTYPE_COUNT;
}

static bool refuse(const etch_safetensors *f, etch_status status, const char *what,
                   const char *name) {
    etch__nn_fail(status, "etch_safetensors_load: %.200s: %s%s%.100s%s", f->path, what,
                  name ? " (tensor '" : "", name ? name : "", name ? "')" : "");
    return false;
}

/* ---- one tensor ---- */

enum { HAS_DTYPE = 1, HAS_SHAPE = 2, HAS_PLACE = 4, HAS_ALL = 7 };

/* false and no fault: the error is set. */
static bool read_dtype(etch_safetensors *f, json *j, stored *t) {
    char *name = etch__json_string(j);
    if (!name) return false;
    t->dtype = etch__dtype_stored(name);
    bool known = t->dtype != ETCH_DTYPE_COUNT;
    if (!known)
        etch__nn_fail(ETCH_ERR_UNSUPPORTED,
                      "etch_safetensors_load: %.200s: tensor '%.100s' has the dtype '%.20s', which "
                      "Etch has not",
                      f->path, t->name, name);
    free(name);
    return known;
}

static bool read_sizes(etch_safetensors *f, json *j, stored *t) {
    bool any = false;
    t->sizes.n = 0;
    for (etch__json_take(j, '['); etch__json_more(j, ']', &any);) {
        if (t->sizes.n == ETCH_MAX_DIMS)
            return refuse(f, ETCH_ERR_UNSUPPORTED, "more than 8 dimensions", t->name);
        if (!etch__json_whole(j, &t->sizes.v[t->sizes.n++])) return false;
    }
    return !j->fault;
}

static bool read_place(json *j, stored *t) {
    return etch__json_take(j, '[') && etch__json_whole(j, &t->from) && etch__json_take(j, ',') &&
           etch__json_whole(j, &t->to) && etch__json_take(j, ']');
}

static bool read_field(etch_safetensors *f, json *j, stored *t, int *has) {
    char *key = etch__json_key(j);
    if (!key) return false;
    int bit = !strcmp(key, "dtype")          ? HAS_DTYPE
              : !strcmp(key, "shape")        ? HAS_SHAPE
              : !strcmp(key, "data_offsets") ? HAS_PLACE
                                             : 0;
    free(key);
    if (!bit) return etch__json_fault(j, "a tensor has a field that there is not");
    if (*has & bit) return etch__json_fault(j, "a tensor has a field twice");
    *has |= bit;
    return bit == HAS_DTYPE   ? read_dtype(f, j, t)
           : bit == HAS_SHAPE ? read_sizes(f, j, t)
                              : read_place(j, t);
}

/* Whether the bytes are those of the sizes, and lie in the file. */
static bool check_tensor(const etch_safetensors *f, const stored *t) {
    int64_t bytes = (int64_t)etch_dtype_size(t->dtype);
    bool empty = false, fits = true;
    for (int d = 0; d < t->sizes.n; d++) empty |= !t->sizes.v[d];
    for (int d = 0; !empty && fits && d < t->sizes.n; d++)
        fits = !__builtin_mul_overflow(bytes, t->sizes.v[d], &bytes);
    if (!fits) return refuse(f, ETCH_ERR_FORMAT, "sizes that do not fit in 63 bits", t->name);
    if (t->from > t->to || t->to > f->bytes)
        return refuse(f, ETCH_ERR_FORMAT, "a place outside of the file", t->name);
    if (t->to - t->from != (empty ? 0 : bytes))
        return refuse(f, ETCH_ERR_FORMAT, "a place that has not the bytes of its sizes", t->name);
    return true;
}

/* Takes the name over. */
static bool read_tensor(etch_safetensors *f, json *j, char *name) {
    stored *grown = f->tensors;
    if (!(f->ntensors & (f->ntensors - 1))) /* a power of two: full */
        grown = realloc(grown, ((size_t)f->ntensors * 2 + 1) * sizeof *grown);
    if (!grown) return free(name), etch__json_fault(j, "out of memory");
    f->tensors = grown;
    stored *t = &f->tensors[f->ntensors++];
    *t = (stored){.name = name};
    int has = 0;
    bool any = false;
    for (etch__json_take(j, '{'); etch__json_more(j, '}', &any);)
        if (!read_field(f, j, t, &has)) return false;
    if (j->fault) return false;
    if (has != HAS_ALL)
        return refuse(f, ETCH_ERR_FORMAT, "dtype, shape or data_offsets is not there", name);
    return check_tensor(f, t);
}

/* ---- texts ---- */

static bool read_text(etch_safetensors *f, json *j) {
    stored_text *grown = realloc(f->texts, ((size_t)f->ntexts + 1) * sizeof *grown);
    if (!grown) return etch__json_fault(j, "out of memory");
    f->texts = grown;
    stored_text *t = &grown[f->ntexts];
    *t = (stored_text){.name = etch__json_key(j)};
    if (!t->name) return false;
    f->ntexts++;
    for (int i = 0; i < f->ntexts - 1; i++)
        if (!strcmp(f->texts[i].name, t->name))
            return etch__json_fault(j, "a text of __metadata__ comes twice");
    return (t->text = etch__json_string(j)) != NULL;
}

static bool read_texts(etch_safetensors *f, json *j) {
    bool any = false;
    if (f->ntexts) return etch__json_fault(j, "__metadata__ comes twice");
    for (etch__json_take(j, '{'); etch__json_more(j, '}', &any);)
        if (!read_text(f, j)) return false;
    return !j->fault;
}

/* ---- all ---- */

static bool read_entries(etch_safetensors *f, json *j) {
    bool any = false;
    for (etch__json_take(j, '{'); etch__json_more(j, '}', &any);) {
        char *name = etch__json_key(j);
        if (!name) return false;
        if (strcmp(name, "__metadata__")) {
            if (!read_tensor(f, j, name)) return false;
            continue;
        }
        free(name);
        if (!read_texts(f, j)) return false;
    }
    if (!j->fault && !etch__json_ends(j))
        etch__json_fault(j, "something behind the header's object");
    return !j->fault;
}

static int compare_places(const void *a, const void *b) {
    const stored *x = *(stored *const *)a, *y = *(stored *const *)b;
    if (x->from != y->from) return x->from < y->from ? -1 : 1;
    return (x->to > y->to) - (x->to < y->to);
}

/* One behind the other, from the first byte to the last. */
static bool check_places(const etch_safetensors *f) {
    stored **order = malloc(((size_t)f->ntensors + 1) * sizeof(stored *));
    if (!order) return etch__nn_no_memory() != NULL;
    for (int i = 0; i < f->ntensors; i++) order[i] = &f->tensors[i];
    qsort(order, (size_t)f->ntensors, sizeof *order, compare_places);
    int64_t at = 0;
    bool ok = true;
    for (int i = 0; ok && i < f->ntensors; at = order[i++]->to)
        if (order[i]->from != at)
            ok = refuse(f, ETCH_ERR_FORMAT,
                        order[i]->from < at ? "two tensors overlap" : "a hole before a tensor",
                        order[i]->name);
    free(order);
    if (ok && at != f->bytes) ok = refuse(f, ETCH_ERR_FORMAT, "bytes behind the last tensor", NULL);
    return ok;
}

static int compare_names(const void *a, const void *b) {
    const stored *x = *(stored *const *)a, *y = *(stored *const *)b;
    return strcmp(x->name, y->name);
}

/* Each name once; by_name is made. */
static bool check_names(etch_safetensors *f) {
    stored **order = malloc(((size_t)f->ntensors + 1) * sizeof(stored *));
    f->by_name = malloc(((size_t)f->ntensors + 1) * sizeof(int));
    if (!order || !f->by_name) return free(order), etch__nn_no_memory() != NULL;
    for (int i = 0; i < f->ntensors; i++) order[i] = &f->tensors[i];
    qsort(order, (size_t)f->ntensors, sizeof *order, compare_names);
    bool ok = true;
    for (int i = 0; ok && i < f->ntensors; i++) {
        f->by_name[i] = (int)(order[i] - f->tensors);
        if (i && !strcmp(order[i]->name, order[i - 1]->name))
            ok = refuse(f, ETCH_ERR_FORMAT, "a name comes twice", order[i]->name);
    }
    free(order);
    return ok;
}

bool etch__read_header(etch_safetensors *f, const char *text, size_t n) {
    json j = {text, text, text + n, NULL};
    if (!n || *text != '{')
        return refuse(f, ETCH_ERR_FORMAT, "the header does not begin with '{'", NULL);
    bool ok = read_entries(f, &j);
    if (j.fault && !strcmp(j.fault, "out of memory")) return etch__nn_no_memory() != NULL;
    if (j.fault)
        return etch__nn_fail(ETCH_ERR_FORMAT,
                             "etch_safetensors_load: %.200s: byte %lld of the "
                             "header: %s",
                             f->path, (long long)(j.at - j.start), j.fault),
               false;
    return ok && check_places(f) && check_names(f);
}
