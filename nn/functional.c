/* Calling a module with other tensors in the places of its parameters.
 *
 * They stand in the module itself while its forward runs, since a forward finds its tensors by any
 * of the functions of nn.h, and the module's own come back behind it. A tied parameter has several
 * places. Where they are is held by list and position: the forward may let a list grow. */
#include "nn/module.h"

#include <stdlib.h>

/* One place of a parameter, in the module or below it. */
typedef struct place {
    name_list *list;
    int at;
    etch_tensor *own, *other; /* other: NULL keeps its own */
} place;

typedef struct places {
    place *all;
    int n;
} places;

/* ---- what is given ---- */

static etch_status check_one(const etch_module *m, int i, const etch_tensor *t) {
    const etch_tensor *own = etch_module_parameter_at(m, i);
    bool fits = t != ETCH_NONE && etch_dtype_of(t) == etch_dtype_of(own);
    if (fits && etch__nn_same_sizes(t, own)) return ETCH_OK;
    char want[SIZES_TEXT], have[SIZES_TEXT];
    return etch__nn_fail(
        fits || t == ETCH_NONE ? ETCH_ERR_SHAPE : ETCH_ERR_DTYPE,
        "etch_functional_call: expected for '%.100s' of %s (parameter %d) %s%s, "
        "got %s%s",
        etch_module_parameter_name(m, i), m->type, i, etch_dtype_name(etch_dtype_of(own)),
        etch__nn_sizes(own, want), t == ETCH_NONE ? "" : etch_dtype_name(etch_dtype_of(t)),
        t == ETCH_NONE ? "no tensor (NULL keeps its own)" : etch__nn_sizes(t, have));
}

static etch_status check_all(const etch_module *m, etch_tensor *const *params, int n) {
    const listing *l = etch__nn_listing(m);
    if (!l) return ETCH_ERR_OUT_OF_MEMORY;
    if (n != l->nparameters)
        return etch__nn_fail(ETCH_ERR_INVALID_ARGUMENT,
                             "etch_functional_call: expected a tensor, or NULL, for each of the %d "
                             "parameters of %s, got %d",
                             l->nparameters, m->type, n);
    etch_status status = ETCH_OK;
    for (int i = 0; status == ETCH_OK && i < n; i++)
        if (params[i]) status = check_one(m, i, params[i]);
    return status;
}

/* ---- where they go ---- */

static int count_places(const etch_module *m) {
    int n = m->parameters.n;
    for (int i = 0; i < m->children.n; i++) n += count_places(m->children.list[i].item);
    return n;
}

static void find_places(places *p, etch_module *m) {
    for (int i = 0; i < m->parameters.n; i++)
        p->all[p->n++] = (place){&m->parameters, i, m->parameters.list[i].item, NULL};
    for (int i = 0; i < m->children.n; i++) find_places(p, m->children.list[i].item);
}

/* All places of the i-th parameter. */
static void choose(const places *p, const etch_tensor *own, etch_tensor *other) {
    for (int k = 0; k < p->n; k++)
        if (p->all[k].own == own) p->all[k].other = other;
}

/* false: no memory. */
static bool make_places(places *p, etch_module *m, etch_tensor *const *params, int n) {
    *p = (places){calloc((size_t)count_places(m) + 1, sizeof *p->all), 0};
    if (!p->all) return etch__nn_no_memory(), false;
    find_places(p, m);
    for (int i = 0; i < n; i++) choose(p, etch_module_parameter_at(m, i), params[i]);
    return true;
}

/* The lists of all tensors, of m, of those below and of those above, hold what was there. */
static void forget_below(etch_module *m) {
    etch__nn_forget(m);
    for (int i = 0; i < m->children.n; i++) forget_below(m->children.list[i].item);
}

/* What is put into a place is counted, as the module's own are: a forward may replace it. */
static void put_others(const places *p, etch_module *m) {
    for (int k = 0; k < p->n; k++)
        if (p->all[k].other) p->all[k].list->list[p->all[k].at].item = etch_retain(p->all[k].other);
    forget_below(m), etch__nn_changed(m);
}

static void put_own(const places *p, etch_module *m) {
    for (int k = 0; k < p->n; k++) {
        named *e = &p->all[k].list->list[p->all[k].at];
        if (!p->all[k].other) continue;
        etch_release(e->item);
        e->item = p->all[k].own;
    }
    forget_below(m), etch__nn_changed(m);
}

/* ---- the call ---- */

etch_status etch_functional_call(etch_module *m, etch_tensor *const *params, int n,
                                 etch_tensor *const *in, int nin, etch_tensor **out, int nout) {
    for (int i = 0; out && i < nout; i++) out[i] = NULL;
    if (!m || (n > 0 && !params))
        return etch__nn_null("etch_functional_call", "a module and an array of parameters");
    places p;
    etch_status status = check_all(m, params, n);
    if (status != ETCH_OK) return status;
    if (!make_places(&p, m, params, n)) return ETCH_ERR_OUT_OF_MEMORY;
    put_others(&p, m);
    status = etch_module_call_n(m, in, nin, out, nout);
    put_own(&p, m);
    free(p.all);
    return status;
}
