/* A language model of characters: a decoder-only transformer of a million parameters learns the
 * texts that it is given, to begin with this repository's licence and documentation, and writes in
 * their manner. The first steps are also taken eagerly, by a twin, whose losses must have the same
 * bits; from there on the compiled learner goes on alone.
 *
 * charlm [--steps 1000] [--twin 10] [--sample 400] [--out charlm.out] [--device cuda] TEXT...
 *
 * The folder gets the losses (CSV, and PNG where gnuplot is installed) and the weights, before and
 * after. */
#include "device.h"
#include "training.h"
#include "transformer.h"

#include <math.h>

enum { BATCH = 16, MAX_TEXT = 4 << 20 };

/* ---- text ---- */

typedef struct corpus {
    int64_t *codes; /* of all characters, numbers below nsymbols */
    int64_t n, ntrain;
    int nsymbols;
    unsigned char symbols[256];
} corpus;

/* Adds the file's bytes to text[n..): the new length, or -1, which has been said. */
static int64_t append_file(const char *path, unsigned char *text, int64_t n) {
    FILE *file = fopen(path, "rb");
    if (!file) return fprintf(stderr, "%s: %s\n", path, strerror(errno)), -1;
    n += (int64_t)fread(text + n, 1, (size_t)(MAX_TEXT - n), file);
    fclose(file);
    return n;
}

/* Each byte that occurs is a symbol. The last twentieth is held out. */
static bool read_corpus(char **paths, int npaths, corpus *c) {
    static unsigned char text[MAX_TEXT];
    static int64_t codes[MAX_TEXT];
    int64_t number[256], n = 0;
    bool used[256] = {false};
    for (int i = 0; i < npaths && n >= 0; i++) n = append_file(paths[i], text, n);
    for (int64_t i = 0; i < n; i++) used[text[i]] = true;
    *c = (corpus){.codes = codes, .n = n, .ntrain = n - n / 20};
    for (int byte = 0; byte < 256; byte++) {
        number[byte] = c->nsymbols;
        if (used[byte]) c->symbols[c->nsymbols++] = (unsigned char)byte;
    }
    for (int64_t i = 0; i < n; i++) codes[i] = number[text[i]];
    if (n / 20 > CONTEXT + 1) return true;
    if (n >= 0) fprintf(stderr, "charlm: name some files with %d characters\n", 20 * CONTEXT);
    return false;
}

/* Pieces from random places of [from, to): in[0] [BATCH, CONTEXT], in[1] what comes next. */
static bool draw_batch(const corpus *c, int64_t from, int64_t to, uint64_t *chance,
                       etch_tensor *in[2]) {
    int64_t here[BATCH * CONTEXT], next[BATCH * CONTEXT];
    for (int row = 0; row < BATCH; row++) {
        int64_t at = from + (int64_t)(draw(chance) % (uint64_t)(to - from - CONTEXT - 1));
        memcpy(here + row * CONTEXT, c->codes + at, CONTEXT * sizeof *here);
        memcpy(next + row * CONTEXT, c->codes + at + 1, CONTEXT * sizeof *next);
    }
    in[0] = etch_from_host(here, ETCH_I64, ETCH_SHAPE(BATCH, CONTEXT));
    in[1] = etch_from_host(next, ETCH_I64, ETCH_SHAPE(BATCH, CONTEXT));
    return in[0] && in[1];
}

/* ---- training ---- */

static etch_tensor *loss_of(etch_module *m, etch_tensor *const *in) {
    etch_tensor *scores = etch_module_call(m, in[0]);
    etch_tensor *rows = etch_flatten(scores, 0, 1);
    return etch_nn_cross_entropy(rows, etch_flatten(in[1], 0, 1));
}

/* One update; in: characters and those that come next. out: the loss. */
static ETCH_FN_N(train_step, ctx, in, nin, out, nout) {
    const learner *l = ctx;
    etch_tensor *loss = loss_of(l->model, in);
    if (etch_backward(loss) != ETCH_OK) return etch_last_status();
    if (!etch_optim_clip_grad_norm(l->optim, 1.0)) return etch_last_status();
    if (etch_optim_step(l->optim) != ETCH_OK) return etch_last_status();
    if (etch_optim_zero_grad(l->optim) != ETCH_OK) return etch_last_status();
    out[0] = etch_detach(loss);
    return out[0] ? ETCH_OK : etch_last_status();
}

/* The mean loss over some pieces of the part that is not learnt. */
static double held_out_loss(etch_module *m, const corpus *c) {
    enum { PIECES = 4 };
    uint64_t chance = 1; /* the same ones each time */
    double sum = 0;
    for (int i = 0; i < PIECES; i++)
        ETCH_SCOPE {
            etch_tensor *in[2];
            bool ok = draw_batch(c, c->ntrain, c->n, &chance, in);
            ETCH_NO_GRAD { sum += ok ? etch_item(loss_of(m, in)) : NAN; }
        }
    return sum / PIECES;
}

typedef struct run {
    int steps, twin_steps, sample;
    const char *folder;
    learner compiled, eager;
    curve losses;
    bool equal;
} run;

static bool train_once(run *r, const corpus *c, int step, uint64_t *chance, double *loss) {
    bool ok = false, twin = step <= r->twin_steps;
    ETCH_SCOPE {
        etch_tensor *in[2], *one = NULL, *other = NULL;
        if (draw_batch(c, 0, c->ntrain, chance, in)) one = learn(&r->compiled, in, 2);
        if (one && twin) other = learn(&r->eager, in, 2);
        ok = one && (other || !twin);
        if (ok && twin) r->equal = r->equal && etch_bitwise_equal(one, other);
        if (ok) *loss = etch_item(one);
        if (ok) curve_add(&r->losses, step, twin ? etch_item(other) : NAN, *loss);
    }
    return ok;
}

static bool train(run *r, const corpus *c) {
    uint64_t chance = 0;
    double loss = 0, since = 0;
    for (int step = 1; step <= r->steps; step++) {
        if (!train_once(r, c, step, &chance, &loss)) return false;
        if (step == 1) r->compiled.ms = 0; /* the compile */
        if (step != 2 && step % 50 && step != r->twin_steps && step != r->steps) continue;
        printf("charlm: step %4d/%d  loss %.3f  held out %.3f  %5.1f ms a step", step, r->steps,
               loss, held_out_loss(r->compiled.model, c),
               r->compiled.ms / fmax(1, step - 1 - since));
        if (step <= r->twin_steps) printf(", eager %5.1f", r->eager.ms / step);
        printf("\n"), fflush(stdout);
        r->compiled.ms = 0, since = step - 1;
    }
    return true;
}

static bool begin_run(run *r, const corpus *c) {
    etch_manual_seed(0);
    etch_schedule schedule = {
        .kind = ETCH_SCHEDULE_COSINE, .warmup = 20, .total = r->steps, .least = 0.1};
    etch_module *model = new_transformer(c->nsymbols);
    etch_module *twin = model ? etch_module_copy(model) : NULL;
    etch_optim *o = twin ? etch_optim_adamw(model, .lr = 2e-3, .beta2 = 0.99) : NULL;
    etch_optim *p = twin ? etch_optim_adamw(twin, .lr = 2e-3, .beta2 = 0.99) : NULL;
    bool ok = learner_begin(&r->compiled, model, o, train_step, true);
    ok = learner_begin(&r->eager, twin, p, train_step, false) && ok;
    return ok && etch_optim_set_schedule(o, &schedule) == ETCH_OK &&
           etch_optim_set_schedule(p, &schedule) == ETCH_OK &&
           save_model(model, r->folder, "charlm", "initial") &&
           curve_begin(&r->losses, r->folder, "charlm");
}

/* ---- writing ---- */

/* A symbol by its probability, that of low scores made lower. */
static int64_t choose(etch_tensor *scores, int n, uint64_t *chance) {
    float p[256] = {0};
    etch_tensor *sharper = etch_mul_scalar(scores, 1.25);
    if (etch_to_host(etch_softmax(sharper, -1), p, (size_t)n * sizeof *p) != ETCH_OK) return -1;
    double left = (double)(draw(chance) >> 11) * 0x1p-53;
    for (int i = 0; i < n; i++)
        if ((left -= (double)p[i]) < 0) return i;
    return n - 1;
}

/* Continues the held-out part's first characters. */
static bool write_sample(etch_module *m, const corpus *c, int length) {
    int64_t window[CONTEXT], next = 0;
    uint64_t chance = 2;
    memcpy(window, c->codes + c->ntrain, sizeof window);
    printf("charlm: a sample\n----\n");
    for (int i = 0; i < length && next >= 0; i++) {
        ETCH_SCOPE {
            ETCH_NO_GRAD {
                etch_tensor *x = etch_from_host(window, ETCH_I64, ETCH_SHAPE(1, CONTEXT));
                etch_tensor *scores = etch_module_call(m, x);
                etch_tensor *last = etch_select(etch_select(scores, 0, 0), 0, CONTEXT - 1);
                next = choose(last, c->nsymbols, &chance);
            }
        }
        if (next >= 0) putchar(c->symbols[next] < 128 ? c->symbols[next] : '?');
        memmove(window, window + 1, sizeof window - sizeof *window);
        window[CONTEXT - 1] = next;
    }
    printf("\n----\n");
    return next >= 0;
}

static bool run_all(run *r, const corpus *c) {
    bool ok = begin_run(r, c);
    if (ok)
        printf("charlm: %lld characters of %d kinds, %lld parameters\n", (long long)c->n,
               c->nsymbols, (long long)parameters_of(r->compiled.model));
    ok = ok && train(r, c) && write_sample(r->compiled.model, c, r->sample) &&
         save_model(r->compiled.model, r->folder, "charlm", "trained");
    if (ok && r->steps <= r->twin_steps)
        r->equal = r->equal && same_learners(&r->eager, &r->compiled, r->folder);
    if (!ok) fprintf(stderr, "charlm: %s\n", etch_last_error());
    curve_end(&r->losses);
    learner_end(&r->compiled), learner_end(&r->eager);
    return ok;
}

int main(int argc, char **argv) {
    corpus c;
    if (!use_device(&argc, argv)) return 2;
    run r = {.steps = take_count(&argc, argv, "--steps", "1000"),
             .twin_steps = take_count(&argc, argv, "--twin", "10"),
             .sample = take_count(&argc, argv, "--sample", "400"),
             .folder = take_option(&argc, argv, "--out", "charlm.out"),
             .equal = true};
    if (!make_folder(r.folder) || !read_corpus(argv + 1, argc - 1, &c)) return 2;
    bool ok = false;
    ETCH_SCOPE { ok = run_all(&r, &c); }
    if (!ok) return 1;
    printf("charlm: equal=%s\n", r.equal ? "bitwise" : "DIFFERENT");
    return r.equal ? 0 : 1;
}
