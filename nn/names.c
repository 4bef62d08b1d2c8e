/* The tensors and children of modules by name and by number: adding, finding, and the list of all
 * that are below a module, in which a tensor with two names (tied) is counted once. */
#include "nn/module.h"

#include <stdlib.h>
#include <string.h>

/* ---- one module's own ---- */

void *etch__nn_find(const name_list *list, const char *name, size_t length) {
    for (int i = 0; i < list->n; i++)
        if (!strncmp(list->list[i].name, name, length) && !list->list[i].name[length])
            return list->list[i].item;
    return NULL;
}

etch_tensor *etch__nn_own(const etch_module *m, const char *name) {
    size_t n = strlen(name);
    etch_tensor *t = etch__nn_find(&m->parameters, name, n);
    if (!t) t = etch__nn_find(&m->buffers, name, n);
    return t ? t : ETCH_NONE;
}

static bool is_taken(const etch_module *m, const char *name) {
    size_t n = strlen(name);
    return etch__nn_find(&m->parameters, name, n) || etch__nn_find(&m->buffers, name, n) ||
           etch__nn_find(&m->children, name, n);
}

static etch_status add(const char *function, etch_module *m, name_list *to, const char *name,
                       void *item) {
    if (!*name || strchr(name, '.') || is_taken(m, name))
        return etch__nn_fail(ETCH_ERR_INVALID_ARGUMENT,
                             "%s: expected a name without '.' that is not taken, got '%.100s'",
                             function, name);
    named *grown = realloc(to->list, (size_t)(to->n + 1) * sizeof *grown);
    if (grown) to->list = grown;
    char *copy = grown ? etch__nn_copy_text(name) : etch__nn_no_memory();
    if (!copy) return ETCH_ERR_OUT_OF_MEMORY;
    to->list[to->n++] = (named){copy, item};
    etch__nn_changed(m);
    return ETCH_OK;
}

static etch_status add_tensor(const char *function, etch_module *m, name_list *to, const char *name,
                              etch_tensor *t) {
    etch_status status = add(function, m, to, name, t);
    if (status == ETCH_OK) etch_retain(t);
    return status;
}

etch_status etch__nn_share(etch_module *m, const name_list *from, bool buffers) {
    name_list *to = buffers ? &m->buffers : &m->parameters;
    etch_status status = ETCH_OK;
    for (int i = 0; status == ETCH_OK && i < from->n; i++)
        status = add_tensor("etch_module_copy", m, to, from->list[i].name, from->list[i].item);
    return status;
}

static bool can_be_parameter(const char *function, const char *name, const etch_tensor *t) {
    if (!etch__nn_float(t) || etch_is_leaf(t)) return true;
    etch__nn_fail(ETCH_ERR_INVALID_ARGUMENT,
                  "%s: expected a tensor of its own as parameter, got as '%.100s' the result of "
                  "operators with gradients (use etch_detach)",
                  function, name);
    return false;
}

/* A parameter is a leaf; one that is no number of floating point is left as it is. */
etch_status etch_module_add_parameter(etch_module *m, const char *name, etch_tensor *t) {
    if (!m || !name || !t || t == ETCH_NONE)
        return etch__nn_null("etch_module_add_parameter", "a module, a name and a tensor");
    if (!can_be_parameter("etch_module_add_parameter", name, t)) return ETCH_ERR_INVALID_ARGUMENT;
    etch_status status = add_tensor("etch_module_add_parameter", m, &m->parameters, name, t);
    if (status == ETCH_OK && etch__nn_float(t) && !etch_requires_grad_(t, true))
        return etch_last_status();
    return status;
}

etch_status etch_module_add_buffer(etch_module *m, const char *name, etch_tensor *t) {
    if (!m || !name || !t || t == ETCH_NONE)
        return etch__nn_null("etch_module_add_buffer", "a module, a name and a tensor");
    return add_tensor("etch_module_add_buffer", m, &m->buffers, name, t);
}

static bool contains(const etch_module *m, const etch_module *wanted) {
    bool found = m == wanted;
    for (int i = 0; !found && i < m->children.n; i++)
        found = contains(m->children.list[i].item, wanted);
    return found;
}

etch_status etch_module_add_child(etch_module *m, const char *name, etch_module *child) {
    if (!m || !name || !child)
        return etch__nn_null("etch_module_add_child", "a module, a name and a child");
    if (child->parent || contains(child, m))
        return etch_set_error(ETCH_ERR_INVALID_ARGUMENT,
                              "etch_module_add_child: expected a module without a parent that is "
                              "not the new parent itself, nor one above it");
    etch_status status = add("etch_module_add_child", m, &m->children, name, child);
    if (status == ETCH_OK) child->parent = m;
    return status;
}

void etch__nn_free_names(name_list *list) {
    for (int i = 0; i < list->n; i++) free(list->list[i].name);
    free(list->list);
}

/* ---- by dotted name ---- */

/* The module that has the last part of the name, which *last becomes; NULL where there is none. */
static etch_module *owner_of(const etch_module *m, const char *name, const char **last) {
    for (size_t n; m && name[n = strcspn(name, ".")]; name += n + 1)
        m = etch__nn_find(&m->children, name, n);
    *last = name;
    return (etch_module *)m;
}

static etch_tensor *find_tensor(const char *function, const etch_module *m, const char *name,
                                bool buffer) {
    if (!m || !name) return etch__nn_null(function, "a module and a name"), NULL;
    const char *last;
    const etch_module *owner = owner_of(m, name, &last);
    etch_tensor *t = NULL;
    if (owner) t = etch__nn_find(buffer ? &owner->buffers : &owner->parameters, last, strlen(last));
    if (!t)
        etch__nn_fail(ETCH_ERR_NOT_FOUND, "%s: %s has no %s '%.100s'", function, m->type,
                      buffer ? "buffer" : "parameter", name);
    return t;
}

etch_tensor *etch_module_parameter(const etch_module *m, const char *name) {
    return find_tensor("etch_module_parameter", m, name, false);
}

etch_tensor *etch_module_buffer(const etch_module *m, const char *name) {
    return find_tensor("etch_module_buffer", m, name, true);
}

etch_module *etch_module_find(const etch_module *m, const char *name) {
    if (!m || !name) return etch__nn_null("etch_module_find", "a module and a name"), NULL;
    const char *last;
    etch_module *owner = *name ? owner_of(m, name, &last) : (etch_module *)m;
    etch_module *found =
        owner && *name ? etch__nn_find(&owner->children, last, strlen(last)) : owner;
    if (!found)
        etch__nn_fail(ETCH_ERR_NOT_FOUND, "etch_module_find: %s has no child '%.100s'", m->type,
                      name);
    return found;
}

/* The entry of a parameter, or else of a buffer. */
static named *entry_of(etch_module *owner, const char *last, bool *buffer) {
    for (int k = 0; owner && k < 2; k++) {
        name_list *list = k ? &owner->buffers : &owner->parameters;
        *buffer = k;
        for (int i = 0; i < list->n; i++)
            if (!strcmp(list->list[i].name, last)) return &list->list[i];
    }
    return NULL;
}

/* A parameter goes on requiring gradients or not. */
static etch_status replace(named *e, etch_tensor *t, bool buffer) {
    if (!buffer && !can_be_parameter("etch_module_set_tensor", e->name, t))
        return ETCH_ERR_INVALID_ARGUMENT;
    if (!buffer && etch__nn_float(t) && !etch_requires_grad_(t, etch_requires_grad(e->item)))
        return etch_last_status();
    etch_retain(t);
    etch_release(e->item);
    e->item = t;
    return ETCH_OK;
}

etch_status etch_module_set_tensor(etch_module *m, const char *name, etch_tensor *t) {
    if (!m || !name || !t || t == ETCH_NONE)
        return etch__nn_null("etch_module_set_tensor", "a module, a name and a tensor");
    const char *last;
    bool buffer;
    etch_module *owner = owner_of(m, name, &last);
    named *e = entry_of(owner, last, &buffer);
    if (!e)
        return etch__nn_fail(ETCH_ERR_NOT_FOUND,
                             "etch_module_set_tensor: %s has no parameter or buffer '%.100s'",
                             m->type, name);
    etch_status status = replace(e, t, buffer);
    etch__nn_changed(owner);
    return status;
}

/* ---- the list of all ---- */

static void free_listing(listing *l) {
    if (!l) return;
    for (int i = 0; i < l->n; i++) free(l->all[i].name);
    free(l->all);
    free(l->parameters);
    free(l->buffers);
    free(l);
}

void etch__nn_forget(etch_module *m) { free_listing(atomic_exchange(&m->listed, NULL)); }

void etch__nn_changed(etch_module *m) {
    for (; m; m = m->parent) etch__nn_forget(m);
}

static int count_all(const etch_module *m) {
    int n = m->parameters.n + m->buffers.n;
    for (int i = 0; i < m->children.n; i++) n += count_all(m->children.list[i].item);
    return n;
}

static char *joined(const char *prefix, const char *name) {
    size_t n = strlen(prefix), k = strlen(name);
    char *text = malloc(n + k + 2);
    if (!text) return etch__nn_no_memory();
    memcpy(text, prefix, n);
    if (n) text[n++] = '.';
    memcpy(text + n, name, k + 1);
    return text;
}

static bool list_own(listing *l, const name_list *from, const char *prefix, bool buffer) {
    for (int i = 0; i < from->n; i++) {
        struct listed e = {joined(prefix, from->list[i].name), from->list[i].item, buffer, l->n};
        if (!e.name) return false;
        for (int k = 0; k < l->n && e.first == l->n; k++)
            if (l->all[k].tensor == e.tensor) e.first = k;
        if (e.first == l->n && buffer) l->buffers[l->nbuffers++] = l->n;
        if (e.first == l->n && !buffer) l->parameters[l->nparameters++] = l->n;
        l->all[l->n++] = e;
    }
    return true;
}

static bool list_below(listing *l, const etch_module *m, const char *prefix) {
    bool ok = list_own(l, &m->parameters, prefix, false) && list_own(l, &m->buffers, prefix, true);
    for (int i = 0; ok && i < m->children.n; i++) {
        char *name = joined(prefix, m->children.list[i].name);
        ok = name && list_below(l, m->children.list[i].item, name);
        free(name);
    }
    return ok;
}

static listing *make_listing(const etch_module *m) {
    size_t n = (size_t)count_all(m) + 1; /* one more, since none may be asked for */
    listing *l = calloc(1, sizeof *l);
    if (!l) return etch__nn_no_memory();
    l->all = calloc(n, sizeof *l->all);
    l->parameters = calloc(n, sizeof *l->parameters);
    l->buffers = calloc(n, sizeof *l->buffers);
    bool room = l->all && l->parameters && l->buffers;
    if (room && list_below(l, m, "")) return l;
    if (!room) etch__nn_no_memory();
    free_listing(l);
    return NULL;
}

/* Several threads may ask at once: the first list stays. */
const listing *etch__nn_listing(const etch_module *of) {
    etch_module *m = (etch_module *)of;
    listing *l = atomic_load(&m->listed), *none = NULL;
    if (l || !(l = make_listing(m))) return l;
    if (atomic_compare_exchange_strong(&m->listed, &none, l)) return l;
    free_listing(l);
    return none;
}

/* ---- by number ---- */

int etch_module_parameter_count(const etch_module *m) {
    const listing *l = m ? etch__nn_listing(m) : NULL;
    return l ? l->nparameters : 0;
}

int etch_module_buffer_count(const etch_module *m) {
    const listing *l = m ? etch__nn_listing(m) : NULL;
    return l ? l->nbuffers : 0;
}

int etch_module_child_count(const etch_module *m) { return m ? m->children.n : 0; }

static const struct listed *at(const etch_module *m, int i, bool buffer) {
    const listing *l = m ? etch__nn_listing(m) : NULL;
    if (!l || i < 0 || i >= (buffer ? l->nbuffers : l->nparameters)) return NULL;
    return &l->all[(buffer ? l->buffers : l->parameters)[i]];
}

etch_tensor *etch_module_parameter_at(const etch_module *m, int i) {
    const struct listed *e = at(m, i, false);
    return e ? e->tensor : NULL;
}

const char *etch_module_parameter_name(const etch_module *m, int i) {
    const struct listed *e = at(m, i, false);
    return e ? e->name : NULL;
}

etch_tensor *etch_module_buffer_at(const etch_module *m, int i) {
    const struct listed *e = at(m, i, true);
    return e ? e->tensor : NULL;
}

const char *etch_module_buffer_name(const etch_module *m, int i) {
    const struct listed *e = at(m, i, true);
    return e ? e->name : NULL;
}

etch_module *etch_module_child(const etch_module *m, int i) {
    return m && i >= 0 && i < m->children.n ? m->children.list[i].item : NULL;
}

const char *etch_module_child_name(const etch_module *m, int i) {
    return m && i >= 0 && i < m->children.n ? m->children.list[i].name : NULL;
}
