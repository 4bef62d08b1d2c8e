/* Modules in files: writing tensors with a description of the module, and reading tensors into one
 * that is there. nn/module_make.c makes modules anew. */
#include "nn/module.h"
#include "nn/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the description ---- */

/* The name in the file of the k-th tensor of the list. */
static const char *stored_name(const listing *l, int k) { return l->all[l->all[k].first].name; }

/* *k goes over the list in the order of the tree. */
static void put_tensors(json_text *t, const name_list *own, const listing *l, int *k,
                        bool buffers) {
    etch__json_put(t, buffers ? ",\"buffers\":{" : ",\"parameters\":{");
    for (int i = 0; i < own->n; i++, ++*k) {
        if (i) etch__json_put(t, ",");
        etch__json_put_string(t, own->list[i].name);
        etch__json_put(t, ":{\"tensor\":");
        etch__json_put_string(t, stored_name(l, *k));
        if (!buffers && !etch_requires_grad(own->list[i].item))
            etch__json_put(t, ",\"frozen\":true");
        etch__json_put(t, "}");
    }
    etch__json_put(t, "}");
}

static void put_module(json_text *t, const etch_module *m, const listing *l, int *k) {
    etch__json_put(t, "{\"type\":");
    etch__json_put_string(t, m->type);
    if (m->config) {
        etch__json_put(t, ",\"config\":");
        etch__json_put_string(t, m->config);
    }
    etch__json_put(t, m->evaluates ? ",\"training\":false" : ",\"training\":true");
    put_tensors(t, &m->parameters, l, k, false);
    put_tensors(t, &m->buffers, l, k, true);
    etch__json_put(t, ",\"children\":{");
    for (int i = 0; i < m->children.n; i++) {
        if (i) etch__json_put(t, ",");
        etch__json_put_string(t, m->children.list[i].name);
        etch__json_put(t, ":");
        put_module(t, m->children.list[i].item, l, k);
    }
    etch__json_put(t, "}}");
}

/* ---- writing ---- */

static etch_status save_list(const etch_module *m, const listing *l, etch_named_tensor *all,
                             const char *path) {
    json_text description = {0};
    int n = 0, k = 0;
    put_module(&description, m, l, &k);
    if (description.failed) return etch__nn_no_memory(), ETCH_ERR_OUT_OF_MEMORY;
    for (int i = 0; i < l->n; i++)
        if (l->all[i].first == i) all[n++] = (etch_named_tensor){l->all[i].name, l->all[i].tensor};
    etch_named_text text = {"etch_module", description.text};
    etch_status status = etch_safetensors_save(path, all, n, &text, 1);
    free(description.text);
    return status;
}

etch_status etch_module_save(const etch_module *m, const char *path) {
    if (!m || !path) return etch__nn_null("etch_module_save", "a module and a path");
    const listing *l = etch__nn_listing(m);
    etch_named_tensor *all = l ? calloc((size_t)l->n + 1, sizeof *all) : NULL;
    if (l && !all) etch__nn_no_memory();
    etch_status status = all ? save_list(m, l, all, path) : ETCH_ERR_OUT_OF_MEMORY;
    free(all);
    return status;
}

/* ---- reports ---- */

static void free_all(char **list, int n) {
    for (int i = 0; i < n; i++) free(list[i]);
    free(list);
}

void etch_load_report_free(etch_load_report *report) {
    if (!report) return;
    free_all(report->missing, report->nmissing);
    free_all(report->unexpected, report->nunexpected);
    *report = (etch_load_report){0};
}

static bool note(char ***list, int *n, const char *name) {
    char **grown = realloc(*list, ((size_t)*n + 1) * sizeof *grown);
    if (!grown) return etch__nn_no_memory() != NULL;
    *list = grown;
    grown[*n] = etch__nn_copy_text(name);
    return grown[*n] != NULL && ++*n;
}

/* "a, b, c and 5 more" */
static const char *some(char *const *list, int n, char *text, size_t size) {
    size_t used = 0;
    *text = 0;
    for (int i = 0; i < n && used + 90 < size; i++) {
        if (i == 3) {
            snprintf(text + used, size - used, " and %d more", n - i);
            break;
        }
        used += (size_t)snprintf(text + used, size - used, "%s%.60s", i ? ", " : "", list[i]);
    }
    return n ? text : "none";
}

static etch_status refuse_names(const etch_module *m, const char *path, const etch_load_report *r) {
    char missing[300], unexpected[300];
    return etch__nn_fail(ETCH_ERR_NOT_FOUND,
                         "etch_module_load: %.80s has not the tensors of %s: missing %s; "
                         "unexpected %s",
                         path, m->type, some(r->missing, r->nmissing, missing, sizeof missing),
                         some(r->unexpected, r->nunexpected, unexpected, sizeof unexpected));
}

/* ---- reading: what goes where ---- */

/* What is to be written: of each entry of the list its number in the file or -1, and, at the first
 * entry of each tensor, the new values. */
typedef struct loading {
    const etch_safetensors *f;
    const listing *l;
    int *number;
    etch_tensor **values;
    bool *taken; /* of the file's tensors */
} loading;

static void find_all(loading *o) {
    for (int i = 0; i < o->l->n; i++) {
        o->number[i] = etch_safetensors_find(o->f, o->l->all[i].name);
        if (o->number[i] >= 0) o->taken[o->number[i]] = true;
    }
}

static bool is_missing(const loading *o, int first) {
    for (int i = first; i < o->l->n; i++)
        if (o->l->all[i].first == first && o->number[i] >= 0) return false;
    return true;
}

static bool compare_names(const loading *o, etch_load_report *r) {
    bool ok = true;
    for (int i = 0; ok && i < o->l->n; i++)
        if (o->l->all[i].first == i && is_missing(o, i))
            ok = note(&r->missing, &r->nmissing, o->l->all[i].name);
    for (int i = 0; ok && i < etch_safetensors_count(o->f); i++)
        if (!o->taken[i])
            ok = note(&r->unexpected, &r->nunexpected, etch_safetensors_name(o->f, i));
    return ok;
}

bool etch__fits_stored(const char *function, const etch_safetensors *f, int i,
                       const etch_tensor *t) {
    char want[SIZES_TEXT], have[SIZES_TEXT];
    const stored *s = &f->tensors[i];
    bool same = s->sizes.n == etch_ndim(t);
    for (int d = 0; same && d < s->sizes.n; d++) same = s->sizes.v[d] == etch_size(t, d);
    if (!same)
        etch__nn_fail(ETCH_ERR_SHAPE, "%s: %.80s: expected '%.100s' of sizes %s, got %s", function,
                      f->path, s->name, etch__nn_sizes(t, want), etch__nn_shape(s->sizes, have));
    else if (s->dtype != etch_dtype_of(t))
        etch__nn_fail(ETCH_ERR_DTYPE,
                      "%s: %.80s: expected '%.100s' of %s, got %s (etch_module_to "
                      "changes a module)",
                      function, f->path, s->name, etch_dtype_name(etch_dtype_of(t)),
                      etch_dtype_name(s->dtype));
    else return true;
    return false;
}

/* ---- reading: values ---- */

/* The i-th tensor of the file, counted, on the device of t. */
static etch_tensor *read_like(const etch_safetensors *f, int i, const etch_tensor *t) {
    etch_tensor *v = NULL;
    ETCH_SCOPE {
        ETCH_ON(etch_device_of(t)) { v = etch_retain(etch_safetensors_tensor(f, i)); }
    }
    return v;
}

/* Another name of a tensor that was read: the same values. */
static bool same_as_first(const loading *o, int i) {
    const struct listed *e = &o->l->all[i];
    etch_tensor *v = read_like(o->f, o->number[i], e->tensor);
    bool same = v && etch_bitwise_equal(v, o->values[e->first]);
    etch_release(v);
    if (v && !same)
        etch__nn_fail(ETCH_ERR_FORMAT,
                      "etch_module_load: %.80s: '%.100s' and '%.100s' are one tensor of the "
                      "module, and differ in the file",
                      o->f->path, o->l->all[e->first].name, e->name);
    return same;
}

static bool read_all(loading *o) {
    bool ok = true;
    for (int i = 0; ok && i < o->l->n; i++)
        if (o->number[i] >= 0)
            ok = etch__fits_stored("etch_module_load", o->f, o->number[i], o->l->all[i].tensor);
    for (int i = 0; ok && i < o->l->n; i++) {
        int first = o->l->all[i].first;
        if (o->number[i] < 0) continue;
        if (o->values[first]) ok = same_as_first(o, i);
        else ok = (o->values[first] = read_like(o->f, o->number[i], o->l->all[i].tensor)) != NULL;
    }
    return ok;
}

static etch_status write_all(const loading *o) {
    etch_status status = ETCH_OK;
    ETCH_NO_GRAD {
        for (int i = 0; status == ETCH_OK && i < o->l->n; i++)
            if (o->values[i] && !etch_copy_(o->l->all[i].tensor, o->values[i]))
                status = etch_last_status();
    }
    return status;
}

/* ---- reading: all ---- */

static etch_status load_into(etch_module *m, loading *o, bool strict, etch_load_report *r) {
    find_all(o);
    if (!compare_names(o, r)) return etch_last_status();
    if (strict && (r->nmissing || r->nunexpected)) return refuse_names(m, o->f->path, r);
    return read_all(o) ? write_all(o) : etch_last_status();
}

static etch_status load_file(etch_module *m, etch_safetensors *f, bool strict,
                             etch_load_report *r) {
    loading o = {.f = f, .l = etch__nn_listing(m)};
    if (!o.l) return ETCH_ERR_OUT_OF_MEMORY;
    size_t n = (size_t)o.l->n + 1;
    o.number = calloc(n, sizeof *o.number);
    o.values = calloc(n, sizeof(etch_tensor *));
    o.taken = calloc((size_t)etch_safetensors_count(f) + 1, sizeof *o.taken);
    etch_status status = ETCH_ERR_OUT_OF_MEMORY;
    if (o.number && o.values && o.taken) status = load_into(m, &o, strict, r);
    else etch__nn_no_memory();
    for (int i = 0; o.values && i < o.l->n; i++) etch_release(o.values[i]);
    free(o.number);
    free(o.values);
    free(o.taken);
    return status;
}

etch_status etch_module_load_report(etch_module *m, const char *path, bool strict,
                                    etch_load_report *report) {
    etch_load_report own = {0};
    if (report) *report = own;
    if (!m || !path) return etch__nn_null("etch_module_load", "a module and a path");
    etch_safetensors *f = etch_safetensors_load(path);
    if (!f) return etch_last_status();
    etch_status status = load_file(m, f, strict, &own);
    etch_safetensors_free(f);
    if (report && (status == ETCH_OK || status == ETCH_ERR_NOT_FOUND)) *report = own;
    else etch_load_report_free(&own);
    return status;
}

etch_status etch_module_load(etch_module *m, const char *path, bool strict) {
    return etch_module_load_report(m, path, strict, NULL);
}
