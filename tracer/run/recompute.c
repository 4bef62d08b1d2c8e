/* Values that tapes keep by a recipe: how a call makes them, and how they are computed when a
 * derivative reads them.
 *
 * A call holds, for all of its values together, what the recipe starts from (handles of its own
 * over what the plan has produced, which nobody else sees) and the call's scalars. A derivative
 * that reads one calls the recipe's operators, which are traced like those of the derivative. */
#include "core/base/start.h"
#include "core/dispatch/call.h"
#include "tracer/trace/recipe.h"
#include "tracer/run/run.h"

struct recipe_run {
    atomic_int refs; /* by handles, and while it is made */
    recipe *recipe;  /* counted */
    etch_tensor **source;
    etch_scalar *scalar;
};

static void drop_recipe(recipe_run *run) {
    if (!run || atomic_fetch_sub(&run->refs, 1) != 1) return;
    for (int i = 0; i < run->recipe->nsources; i++) etch_release(run->source[i]);
    etch__recipe_release(run->recipe);
    etch__free(run);
}

/* ---- making ---- */

bool etch__gets_recipe(const segment_code *code, const etch_tensor *h, int32_t v) {
    return code->recipe && code->recipe->recomputed[v] == 1 && h->view & VIEW_SAVED;
}

static bool reads_recipe(const trace_walk *w, const segment_code *code, int32_t v) {
    const etch_tensor *h = w->c.value[v];
    bool all = w->end.why == END_RETURN || w->end.why == REASON_BREAK_FLUSH;
    return all && h->deferred && etch__is_live(h) && etch__gets_recipe(code, h, v);
}

static recipe_run *new_run(recipe *r) {
    size_t sources = (size_t)r->nsources * sizeof(etch_tensor *);
    recipe_run *run =
        etch__calloc(1, sizeof *run + sources + (size_t)r->nscalars * sizeof(etch_scalar));
    if (!run) return NULL;
    run->refs = 1;
    atomic_fetch_add(&r->refs, 1);
    run->recipe = r;
    run->scalar = (etch_scalar *)(run + 1);
    run->source = (etch_tensor **)(run->scalar + r->nscalars);
    return run;
}

static bool make_room(recipe_run *run, const trace_walk *w, const segment_code *code) {
    for (int i = 0; i < run->recipe->nsources; i++)
        if (!(run->source[i] = etch__tensor_alloc())) return false;
    for (int i = 0; i < code->nmissing; i++)
        if (reads_recipe(w, code, code->made[i]) && !etch__notes(w->c.value[code->made[i]]))
            return false;
    return true;
}

/* Before the plan runs, so that nothing fails afterwards. *made stays NULL where nobody reads. */
bool etch__recipe_begin(const trace_walk *w, const segment_code *code, recipe_run **made) {
    bool read = false;
    for (int i = 0; i < code->nmissing && !read; i++) read = reads_recipe(w, code, code->made[i]);
    if (!read) return true;
    recipe_run *run = new_run(code->recipe);
    if (run && make_room(run, w, code)) return *made = run, true;
    drop_recipe(run);
    return false;
}

void etch__recipe_end(recipe_run *run, trace_walk *w, const segment_code *code) {
    for (int i = 0; i < run->recipe->nsources; i++) {
        tensor_meta place = run->recipe->lies[i];
        place.offset = 0;
        etch__lie_over(run->source[i], &place, w->room.outputs[code->slot[run->recipe->source[i]]]);
    }
    memcpy(run->scalar, w->c.scalar, (size_t)run->recipe->nscalars * sizeof *run->scalar);
    for (int i = 0; i < code->nmissing; i++) {
        int32_t v = code->made[i];
        if (!reads_recipe(w, code, v)) continue;
        etch_tensor *h = w->c.value[v];
        h->notes->recipe = run, h->notes->value = v;
        h->layers |= 1u << LAYER_AUTOGRAD; /* so that its end is told */
        h->deferred = 0;
        atomic_fetch_add(&run->refs, 1);
    }
    drop_recipe(run);
}

void etch__recipe_cancel(recipe_run *run) { drop_recipe(run); }

/* ---- reading ---- */

/* Which steps the value needs, found from the back. */
static void mark(const recipe *r, int32_t value, uint8_t *need) {
    need[value] = 1;
    for (int i = r->nsteps - 1; i >= 0; i--)
        for (int k = 0; need[r->steps[i].out] && k < r->steps[i].call.nin; k++)
            if (r->steps[i].in[k] >= 0) need[r->steps[i].in[k]] = 1;
}

static etch_tensor *call_step(const recipe_run *run, const recipe_step *s, etch_tensor **value) {
    etch_tensor *few[CURSOR_MAX_IN], **in = few;
    if (s->call.nin > CURSOR_MAX_IN && !(in = etch__malloc(s->call.nin * sizeof *in))) return NULL;
    for (int i = 0; i < s->call.nin; i++) in[i] = s->in[i] < 0 ? ETCH_NONE : value[s->in[i]];
    op_call call = s->call;
    call.in = in, call.sc = run->scalar + s->sc;
    etch__state_enter(s->state);
    etch_tensor *h = etch__operator_unseen(&call);
    if (in != few) etch__free(in);
    return h;
}

static etch_tensor *follow(const recipe_run *run, int32_t wanted, etch_tensor **value,
                           uint8_t *need) {
    const recipe *r = run->recipe;
    mark(r, wanted, need);
    for (int i = 0; i < r->nsources; i++) value[r->source[i]] = run->source[i];
    for (int i = 0; i < r->nsteps; i++)
        if (need[r->steps[i].out] &&
            !(value[r->steps[i].out] = call_step(run, &r->steps[i], value)))
            return NULL;
    return value[wanted];
}

/* Each operator under the state of its first call; modes saw that one. */
static etch_tensor *recompute(const etch_tensor *t) {
    const recipe_run *run = t->notes->recipe;
    size_t nv = (size_t)run->recipe->nvalues;
    etch_tensor **value = etch__calloc(nv, sizeof *value + 1);
    if (!value) return NULL;
    uint64_t state = etch__tls.state;
    unsigned control = etch__fp_now();
    etch_tensor *h = follow(run, t->notes->value, value, (uint8_t *)(value + nv));
    etch__tls.state = state;
    etch__fp_control(control);
    etch__free(value);
    return h;
}

void etch__start_recompute(void) {
    etch__trace_hooks.recompute = recompute;
    etch__trace_hooks.drop_recipe = drop_recipe;
}
