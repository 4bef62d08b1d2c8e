/* What the programs that train share: a model that learns eagerly and its twin that learns
 * compiled, compared bit for bit; losses as CSV and, where gnuplot is installed, as PNG; small
 * options. */
#ifndef ETCH_EXAMPLES_TRAINING_H
#define ETCH_EXAMPLES_TRAINING_H

#include "table.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>

/* ---- arguments ---- */

/* Takes "--name TEXT" off the arguments; other if it is not among them. */
static inline const char *take_option(int *argc, char **argv, const char *name, const char *other) {
    for (int at = 1; at + 1 < *argc; at++) {
        if (strcmp(argv[at], name) != 0) continue;
        const char *text = argv[at + 1];
        for (int i = at; i + 2 <= *argc; i++) argv[i] = argv[i + 2]; /* the closing NULL, too */
        *argc -= 2;
        return text;
    }
    return other;
}

static inline int take_count(int *argc, char **argv, const char *name, const char *other) {
    int n = atoi(take_option(argc, argv, name, other));
    return n > 0 ? n : atoi(other);
}

/* Makes the folder, unless it is there. */
static inline bool make_folder(const char *path) {
    if (mkdir(path, 0777) == 0 || errno == EEXIST) return true;
    fprintf(stderr, "%s: %s\n", path, strerror(errno));
    return false;
}

/* ---- chance: splitmix64 (Steele et al. 2014), the same numbers everywhere ---- */

static inline uint64_t draw(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline void shuffle(int64_t *order, int64_t n, uint64_t *state) {
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t j = (int64_t)(draw(state) % (uint64_t)(i + 1)), held = order[i];
        order[i] = order[j], order[j] = held;
    }
}

/* ---- learners ---- */

/* A model with what trains it. step is the context-taking function that does one update and gives
 * the loss; compiled: the same as compiled code, or NULL. */
typedef struct learner {
    etch_module *model;
    etch_optim *optim;
    etch_fn_n step;
    etch_function *compiled;
    double ms; /* of the steps since it was set to 0 */
} learner;

/* Takes model and optim, NULL of which is an error that is set. */
static inline bool learner_begin(learner *l, etch_module *model, etch_optim *optim, etch_fn_n step,
                                 bool compiled) {
    *l = (learner){model, optim, step, NULL, 0};
    if (compiled && model && optim)
        l->compiled = etch_compile(step, .fullgraph = true, .name = "step", .ctx = l);
    return model && optim && (!compiled || l->compiled);
}

static inline void learner_end(learner *l) {
    etch_function_free(l->compiled);
    etch_optim_free(l->optim);
    etch_module_free(l->model);
}

/* One step: the loss, or NULL. */
static inline etch_tensor *learn(learner *l, etch_tensor *const *in, int nin) {
    etch_tensor *loss = NULL;
    double start = now_ms();
    etch_status status =
        l->compiled ? etch_call_n(l->compiled, in, nin, &loss, 1) : l->step(l, in, nin, &loss, 1);
    l->ms += now_ms() - start;
    return status == ETCH_OK ? loss : NULL;
}

/* ---- the same bits ---- */

static inline bool same_models(const etch_module *a, const etch_module *b) {
    int n = etch_module_parameter_count(a);
    bool same = n == etch_module_parameter_count(b);
    for (int i = 0; same && i < n; i++)
        same = etch_bitwise_equal(etch_module_parameter_at(a, i), etch_module_parameter_at(b, i));
    return same;
}

static inline bool same_files(const char *a, const char *b) {
    etch_safetensors *x = etch_safetensors_load(a), *y = etch_safetensors_load(b);
    int n = x ? etch_safetensors_count(x) : 0;
    bool same = x && y && n == etch_safetensors_count(y);
    for (int i = 0; same && i < n; i++)
        ETCH_SCOPE {
            int j = etch_safetensors_find(y, etch_safetensors_name(x, i));
            same = j >= 0 &&
                   etch_bitwise_equal(etch_safetensors_tensor(x, i), etch_safetensors_tensor(y, j));
        }
    etch_safetensors_free(x), etch_safetensors_free(y);
    return same;
}

/* Parameters, and the state of the optimisers as they write it to files in the folder. */
static inline bool same_learners(const learner *a, const learner *b, const char *folder) {
    char one[4096], other[4096];
    snprintf(one, sizeof one, "%s/eager.optim.safetensors", folder);
    snprintf(other, sizeof other, "%s/compiled.optim.safetensors", folder);
    return same_models(a->model, b->model) && etch_optim_save(a->optim, one) == ETCH_OK &&
           etch_optim_save(b->optim, other) == ETCH_OK && same_files(one, other);
}

/* FOLDER/NAME.KIND.safetensors */
static inline bool save_model(const etch_module *m, const char *folder, const char *name,
                              const char *kind) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.%s.safetensors", folder, name, kind);
    return etch_module_save(m, path) == ETCH_OK;
}

static inline int64_t parameters_of(const etch_module *m) {
    int64_t n = 0;
    for (int i = 0; i < etch_module_parameter_count(m); i++)
        n += etch_numel(etch_module_parameter_at(m, i));
    return n;
}

/* ---- losses on paper ---- */

typedef struct curve {
    FILE *csv;
    const char *folder, *name;
} curve;

static inline bool curve_begin(curve *c, const char *folder, const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.csv", folder, name);
    *c = (curve){fopen(path, "w"), folder, name};
    if (!c->csv) fprintf(stderr, "%s: %s\n", path, strerror(errno));
    return c->csv && fprintf(c->csv, "step,eager,compiled\n") > 0;
}

static inline void curve_add(const curve *c, int64_t step, double eager, double compiled) {
    fprintf(c->csv, "%lld,%.9g,%.9g\n", (long long)step, eager, compiled);
}

/* Draws FOLDER/NAME.png. */
static inline void curve_end(curve *c) {
    if (!c->csv) return;
    fclose(c->csv);
    FILE *plot = popen("gnuplot 2>/dev/null", "w");
    if (!plot) return;
    fprintf(plot,
            "set terminal png size 900,500\n"
            "set output '%s/%s.png'\n"
            "set datafile separator ','\n"
            "set logscale y; set grid; set xlabel 'step'; set ylabel 'loss'; set title '%s'\n"
            "plot '%s/%s.csv' using 1:2 skip 1 with lines lw 4 lc '#c0c0c0' title 'eager', "
            "'' using 1:3 skip 1 with lines lw 1 lc '#c02020' title 'compiled'\n",
            c->folder, c->name, c->name, c->folder, c->name);
    bool drawn = pclose(plot) == 0;
    printf("%s: %s/%s.%s\n", c->name, c->folder, c->name, drawn ? "png" : "csv (no gnuplot)");
}

#endif
