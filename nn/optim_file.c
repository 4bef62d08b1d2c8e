/* Optimisers in files: their state as named tensors, and beside it, as JSON, what they are:
 *
 *   {"kind": "adam", "steps": 100, "groups": [{"lr": 0.001, ..., "amsgrad": false, ...}, ...]} */
#include "nn/module.h"
#include "nn/optim.h"
#include "nn/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- options as JSON ---- */

/* Of the options: numbers, which a file may change, and truths, which say what state there is. */
static const struct {
    const char *name;
    size_t at;
} numbers[] = {{"lr", offsetof(etch_optim_options, lr)},
               {"weight_decay", offsetof(etch_optim_options, weight_decay)},
               {"momentum", offsetof(etch_optim_options, momentum)},
               {"dampening", offsetof(etch_optim_options, dampening)},
               {"beta1", offsetof(etch_optim_options, beta1)},
               {"beta2", offsetof(etch_optim_options, beta2)},
               {"eps", offsetof(etch_optim_options, eps)},
               {"alpha", offsetof(etch_optim_options, alpha)}},
  truths[] = {{"nesterov", offsetof(etch_optim_options, nesterov)},
              {"amsgrad", offsetof(etch_optim_options, amsgrad)},
              {"centered", offsetof(etch_optim_options, centered)},
              {"maximize", offsetof(etch_optim_options, maximize)},
              {"master", offsetof(etch_optim_options, master)}};

enum {
    NUMBERS = sizeof numbers / sizeof *numbers,
    TRUTHS = sizeof truths / sizeof *truths,
    ALL_OPTIONS = (1 << (NUMBERS + TRUTHS)) - 1
};

static double *number_at(etch_optim_options *o, int i) {
    return (double *)((char *)o + numbers[i].at);
}
static bool *truth_at(etch_optim_options *o, int i) { return (bool *)((char *)o + truths[i].at); }

static void put_options(json_text *t, etch_optim_options o) {
    for (int i = 0; i < NUMBERS + TRUTHS; i++) {
        etch__json_put(t, i ? "," : "{");
        etch__json_put_string(t, i < NUMBERS ? numbers[i].name : truths[i - NUMBERS].name);
        etch__json_put(t, ":");
        if (i < NUMBERS) etch__json_put_real(t, *number_at(&o, i));
        else etch__json_put(t, *truth_at(&o, i - NUMBERS) ? "true" : "false");
    }
    etch__json_put(t, "}");
}

/* One option; its bit in *has. */
static bool read_option(json *j, etch_optim_options *o, int *has) {
    char *key = etch__json_key(j);
    int i = 0;
    if (!key) return false;
    while (i < NUMBERS + TRUTHS &&
           strcmp(key, i < NUMBERS ? numbers[i].name : truths[i - NUMBERS].name))
        i++;
    free(key);
    if (i == NUMBERS + TRUTHS || *has >> i & 1)
        return etch__json_fault(j, "an option that there is not, or twice");
    *has |= 1 << i;
    return i < NUMBERS ? etch__json_real(j, number_at(o, i))
                       : etch__json_bool(j, truth_at(o, i - NUMBERS));
}

static bool read_options(json *j, etch_optim_options *o) {
    bool any = false;
    int has = 0;
    for (etch__json_take(j, '{'); etch__json_more(j, '}', &any);)
        if (!read_option(j, o, &has)) return false;
    return !j->fault &&
           (has == ALL_OPTIONS || etch__json_fault(j, "options that are not all there"));
}

/* ---- writing ---- */

/* Names and tensors that are being gathered. */
typedef struct gathering {
    etch_named_tensor *all;
    int n;
    bool failed;
} gathering;

static void gather(gathering *g, const optim_slot *s, const char *kind, etch_tensor *t) {
    size_t room = strlen(s->name) + strlen(kind) + 2;
    char *name = t ? malloc(room) : NULL;
    if (!name) {
        g->failed = true;
        return;
    }
    snprintf(name, room, "%s.%s", s->name, kind);
    g->all[g->n++] = (etch_named_tensor){name, t};
}

static bool gather_all(gathering *g, const etch_optim *o) {
    g->all = calloc((size_t)o->nslots * (STATES + 1) + 1, sizeof *g->all);
    for (int i = 0; g->all && i < o->nslots; i++) {
        const optim_slot *s = &o->slots[i];
        if (!s->state[STATE_STEP])
            gather(g, s, "step", etch_from_host(&s->steps, ETCH_I64, ETCH_SHAPE()));
        for (optim_state k = 0; k < STATES; k++)
            if (s->state[k]) gather(g, s, etch__optim_state_name(o->kind, k), s->state[k]);
    }
    if (!g->all) etch__nn_no_memory();
    return g->all && !g->failed;
}

static json_text describe(const etch_optim *o) {
    json_text t = {0};
    etch__json_put(&t, "{\"kind\":");
    etch__json_put_string(&t, etch__optim_kinds[o->kind]);
    etch__json_put(&t, ",\"steps\":");
    etch__json_put_whole(&t, o->steps);
    etch__json_put(&t, ",\"groups\":[");
    for (int i = 0; i < o->ngroups; i++) {
        if (i) etch__json_put(&t, ",");
        put_options(&t, o->groups[i].o);
    }
    etch__json_put(&t, "]}");
    return t;
}

etch_status etch_optim_save(const etch_optim *o, const char *path) {
    if (!o || !path) return etch__nn_null("etch_optim_save", "an optimiser and a path");
    gathering g = {0};
    etch_status status = ETCH_ERR_OUT_OF_MEMORY;
    ETCH_SCOPE {
        json_text t = describe(o);
        const etch_named_text text = {"etch_optim", t.text};
        if (t.failed) etch__nn_no_memory();
        else if (gather_all(&g, o)) status = etch_safetensors_save(path, g.all, g.n, &text, 1);
        else status = etch_last_status();
        free(t.text);
    }
    for (int i = 0; i < g.n; i++) free((char *)g.all[i].name);
    free(g.all);
    return status;
}

/* ---- reading ---- */

/* What a file says, beside o, until all of it is known to fit. */
typedef struct loading {
    etch_optim *o;
    const etch_safetensors *f;
    int64_t steps;
    optim_group *groups;
    int ngroups;
    optim_slot *slots; /* with new state, counted; names and parameters are o's */
    int found;         /* tensors of the file that have a place */
} loading;

static bool refuse(const loading *l, const char *what, const char *name) {
    etch__nn_fail(ETCH_ERR_FORMAT, "etch_optim_load: %.100s: %s%s%.100s", l->f->path, what,
                  name ? " " : "", name ? name : "");
    return false;
}

static bool read_groups(loading *l, json *j) {
    bool any = false;
    for (etch__json_take(j, '['); etch__json_more(j, ']', &any); l->ngroups++) {
        if (l->ngroups == l->o->ngroups) return etch__json_fault(j, "more groups than there are");
        l->groups[l->ngroups] = l->o->groups[l->ngroups];
        etch_optim_options *o = &l->groups[l->ngroups].o;
        if (!read_options(j, o)) return false;
        if (!etch__optim_check("etch_optim_load", o))
            return etch__json_fault(j, "options that cannot be");
    }
    return !j->fault &&
           (l->ngroups == l->o->ngroups || etch__json_fault(j, "fewer groups than there are"));
}

static bool take_key(json *j, const char *wanted) {
    char *key = etch__json_key(j);
    bool ok = key && !strcmp(key, wanted);
    free(key);
    return ok || etch__json_fault(j, "expected kind, steps and groups");
}

static bool read_kind(loading *l, json *j) {
    char *kind = etch__json_string(j);
    bool ok = kind && !strcmp(kind, etch__optim_kinds[l->o->kind]);
    free(kind);
    return ok || etch__json_fault(j, "another kind of optimiser");
}

static bool read_description(loading *l) {
    const char *text = etch_safetensors_text(l->f, "etch_optim");
    if (!text) return refuse(l, "it has no description of an optimiser", NULL);
    json j = {text, text, text + strlen(text), NULL};
    bool ok = etch__json_take(&j, '{') && take_key(&j, "kind") && read_kind(l, &j) &&
              etch__json_take(&j, ',') && take_key(&j, "steps") &&
              etch__json_whole(&j, &l->steps) && etch__json_take(&j, ',') &&
              take_key(&j, "groups") && read_groups(l, &j) && etch__json_take(&j, '}') &&
              etch__json_ends(&j);
    return ok || refuse(l, "the description:", j.fault ? j.fault : "something behind it");
}

/* The number in the file of a slot's tensor; -1. */
static int find(loading *l, const optim_slot *s, const char *kind) {
    size_t room = strlen(s->name) + strlen(kind) + 2;
    char *name = malloc(room);
    if (!name) return -1;
    snprintf(name, room, "%s.%s", s->name, kind);
    int i = etch_safetensors_find(l->f, name);
    free(name);
    l->found += i >= 0;
    return i;
}

/* Where the count is a tensor, in l's slot, to be copied over the optimiser's own, which is made if
 * there is none. */
static bool count_by_tensor(loading *l, optim_slot *s, optim_slot *own) {
    if (!l->o->groups[s->group].o.capturable || (!s->steps && !own->state[STATE_STEP])) return true;
    if (!etch__optim_make_state(l->o, own)) return false;
    ETCH_SCOPE {
        ETCH_ON(etch_device_of(s->parameter)) {
            s->state[STATE_STEP] =
                etch_retain(etch_full(ETCH_I64, ETCH_SHAPE(), etch_scalar_int(s->steps)));
        }
    }
    s->steps = 0;
    return s->state[STATE_STEP] != NULL;
}

static bool read_steps(loading *l, optim_slot *s, optim_slot *own) {
    int i = find(l, s, "step");
    if (i < 0) return refuse(l, "it has no step of", s->name);
    const stored *t = &l->f->tensors[i];
    if (t->dtype != ETCH_I64 || t->sizes.n)
        return refuse(l, "no whole number is the step of", s->name);
    ETCH_SCOPE {
        ETCH_ON(ETCH_CPU) { s->steps = etch_item_int(etch_safetensors_tensor(l->f, i)); }
    }
    if (s->steps < 0) return refuse(l, "below 0 is the step of", s->name);
    return count_by_tensor(l, s, own);
}

/* State that was not made yet is made first, so that its sizes are known. */
static bool read_state(loading *l, optim_slot *s, optim_slot *own, optim_state k) {
    const char *kind = etch__optim_state_name(l->o->kind, k);
    bool wanted =
        etch__optim_wants(l->o->kind, &l->groups[s->group].o, etch_dtype_of(s->parameter), k);
    bool wants =
        etch__optim_wants(l->o->kind, &l->o->groups[s->group].o, etch_dtype_of(s->parameter), k);
    if (wanted != wants) return refuse(l, "its options keep other state of", s->name);
    int i = wanted ? find(l, s, kind) : -1;
    if (i < 0) return !wanted || !own->state[k] || refuse(l, "it has not all state of", s->name);
    if (!own->state[k] && !etch__optim_make_state(l->o, own)) return false;
    if (!etch__fits_stored("etch_optim_load", l->f, i, own->state[k])) return false;
    ETCH_SCOPE {
        ETCH_ON(etch_device_of(s->parameter)) {
            s->state[k] = etch_retain(etch_safetensors_tensor(l->f, i));
        }
    }
    return s->state[k] != NULL;
}

static bool read_slots(loading *l) {
    bool ok = true;
    for (int i = 0; ok && i < l->o->nslots; i++) {
        l->slots[i] = l->o->slots[i];
        memset(l->slots[i].state, 0, sizeof l->slots[i].state);
    }
    for (int i = 0; ok && i < l->o->nslots; i++) {
        ok = read_steps(l, &l->slots[i], &l->o->slots[i]);
        for (optim_state k = 0; ok && k < STATE_STEP; k++)
            ok = read_state(l, &l->slots[i], &l->o->slots[i], k);
    }
    return ok && (l->found == l->f->ntensors ||
                  refuse(l, "it has tensors that the optimiser has not", NULL));
}

/* In place, so that compiled steps go on with the same tensors. */
static etch_status commit(loading *l) {
    etch_status status = ETCH_OK;
    ETCH_NO_GRAD {
        for (int i = 0; status == ETCH_OK && i < l->o->nslots; i++)
            for (optim_state k = 0; status == ETCH_OK && k < STATES; k++)
                if (l->slots[i].state[k] &&
                    !etch_copy_(l->o->slots[i].state[k], l->slots[i].state[k]))
                    status = etch_last_status();
    }
    for (int i = 0; status == ETCH_OK && i < l->o->nslots; i++)
        l->o->slots[i].steps = l->slots[i].steps;
    for (int i = 0; status == ETCH_OK && i < l->ngroups; i++) l->o->groups[i] = l->groups[i];
    if (status == ETCH_OK) l->o->steps = l->steps;
    return status;
}

static etch_status load_file(etch_optim *o, const etch_safetensors *f) {
    loading l = {.o = o, .f = f};
    l.groups = calloc((size_t)o->ngroups + 1, sizeof *l.groups);
    l.slots = calloc((size_t)o->nslots + 1, sizeof *l.slots);
    etch_status status = ETCH_ERR_OUT_OF_MEMORY;
    if (!l.groups || !l.slots) etch__nn_no_memory();
    else status = read_description(&l) && read_slots(&l) ? commit(&l) : etch_last_status();
    for (int i = 0; l.slots && i < o->nslots; i++)
        for (int k = 0; k < STATES; k++) etch_release(l.slots[i].state[k]);
    free(l.groups);
    free(l.slots);
    return status;
}

etch_status etch_optim_load(etch_optim *o, const char *path) {
    if (!o || !path) return etch__nn_null("etch_optim_load", "an optimiser and a path");
    etch_safetensors *f = etch_safetensors_load(path);
    if (!f) return etch_last_status();
    etch_status status = load_file(o, f);
    etch_safetensors_free(f);
    return status;
}
