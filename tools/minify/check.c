/* Running a graph eagerly and compiled, in a process of its own, so that a crash is an answer. */
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mini.h"
#include "replay.h"

_Static_assert((int)MINI_MAX_OUTPUTS <= (int)REPLAY_MAX_OUTPUTS, "all outputs can be run");

/* What the process tells. */
typedef struct answer {
    bool done, invalid, same, eager_done;
    char difference[MINI_TEXT];
    mini_meta meta[MINI_MAX_VALUES];
} answer;

typedef struct running {
    const mini_graph *g;
    answer *a;
    etch_tensor *value[MINI_MAX_VALUES];
} running;

/* ---- the body ---- */

static void argument(const running *r, const mini_arg *a, const etch_scalar *s, etch_tensor **list,
                     etch_value *v) {
    memset(v, 0, sizeof *v);
    v->tag = (etch_value_tag)a->tag, v->name = a->name;
    bool tensors = v->tag == ETCH_VALUE_TENSOR || v->tag == ETCH_VALUE_TENSORS;
    for (int i = 0; tensors && i < a->n; i++) {
        int ref = r->g->ref[a->first + i];
        list[i] = ref < 0 ? ETCH_NONE : r->value[ref];
    }
    switch (v->tag) {
    case ETCH_VALUE_TENSOR: v->tensor = list[0]; break;
    case ETCH_VALUE_TENSORS: v->tensors.items = list, v->tensors.count = a->n; break;
    case ETCH_VALUE_SCALAR: v->scalar = a->scalar; break;
    case ETCH_VALUE_INT: v->i = a->v[0]; break;
    case ETCH_VALUE_BOOL: v->b = a->v[0] != 0; break;
    case ETCH_VALUE_REAL: v->d = a->d; break;
    case ETCH_VALUE_INTS:
        v->ints.n = a->n;
        memcpy(v->ints.v, a->v, sizeof a->v);
        break;
    case ETCH_VALUE_DTYPE: v->dtype = a->v[0]; break;
    case ETCH_VALUE_PARAM: v->tag = ETCH_VALUE_SCALAR, v->scalar = s[a->v[0]]; break;
    default: break;
    }
}

static void note_meta(running *r, int value) {
    const etch_tensor *t = r->value[value];
    mini_meta *m = &r->a->meta[value];
    *m = (mini_meta){.dtype = (uint8_t)etch_dtype_of(t), .ndim = (uint8_t)etch_ndim(t)};
    for (int d = 0; d < m->ndim; d++)
        m->size[d] = etch_size(t, d), m->stride[d] = etch_stride(t, d);
    m->offset = etch_storage_offset(t), m->known = true;
}

static bool run_node(running *r, const mini_node *n, const etch_scalar *s) {
    etch_value args[ETCH_NODE_MAX_ARGS];
    int most = 0;
    for (int i = 0; i < n->nargs; i++) most += n->arg[i].n;
    etch_tensor *list[most + 1], *out = NULL;
    for (int i = 0, at = 0; i < n->nargs; i++) {
        argument(r, &n->arg[i], s, list + at, &args[i]);
        if (n->arg[i].tag == ETCH_VALUE_TENSOR || n->arg[i].tag == ETCH_VALUE_TENSORS)
            at += n->arg[i].n;
    }
    if (etch_op_call(n->op, args, n->nargs, &out, 1) != ETCH_OK) return false;
    if (n->value >= 0) r->value[n->value] = out, note_meta(r, n->value);
    return true;
}

static etch_status body(const void *ctx, const etch_scalar *s, etch_tensor *const *in,
                        etch_tensor **out) {
    running *r = (running *)(uintptr_t)ctx;
    memset(r->value, 0, sizeof r->value);
    for (int i = 0; i < r->g->ninputs; i++) r->value[r->g->input[i].value] = in[i];
    for (int i = 0; i < r->g->nnodes; i++)
        if (!run_node(r, &r->g->node[i], s)) return etch_last_status();
    for (int i = 0; i < r->g->noutputs; i++)
        if (!(out[i] = r->value[r->g->output[i]])) return ETCH_ERR_NULL;
    return ETCH_OK;
}

/* ---- the process ---- */

/* Inputs over one storage share a buffer. */
static int fill_inputs(const mini_graph *g, replay_input *inputs) {
    int n = 0;
    for (int i = 0; i < g->ninputs; i++) {
        const mini_input *in = &g->input[i];
        replay_input *to = &inputs[i];
        *to = (replay_input){.dtype = in->meta.dtype, .offset = in->meta.offset};
        to->size.n = to->stride.n = in->meta.ndim;
        memcpy(to->size.v, in->meta.size, sizeof in->meta.size);
        memcpy(to->stride.v, in->meta.stride, sizeof in->meta.stride);
        to->buffer = -1;
        for (int k = 0; k < i; k++)
            if (g->input[k].base == in->base) to->buffer = inputs[k].buffer;
        if (to->buffer < 0) to->buffer = n++;
    }
    return n;
}

static void no_log(void *ctx, const char *line) { (void)ctx, (void)line; }

static void run_here(const mini_graph *g, const mini_options *o, answer *a) {
    static running r;
    static replay_input inputs[MINI_MAX_INPUTS];
    memset(&r, 0, sizeof r);
    r.g = g, r.a = a;
    replay p = {.body = body,
                .ctx = &r,
                .ninputs = g->ninputs,
                .nscalars = g->nscalars,
                .noutputs = g->noutputs,
                .inputs = inputs,
                .scalars = g->scalar,
                .varies = g->varies};
    p.nbuffers = fill_inputs(g, inputs);
    etch_set_log_sink(no_log, NULL);
    a->same = replay_compare(&p, o->backend, o->calls, o->seed, &a->invalid, a->difference,
                             sizeof a->difference);
    a->done = true;
}

static mini_verdict verdict_of(const answer *a, int status) {
    if (!a->done || !WIFEXITED(status)) return MINI_CRASH;
    return a->invalid ? MINI_INVALID : a->same ? MINI_SAME : MINI_DIFFERENT;
}

mini_verdict mini_check(const mini_graph *g, const mini_options *o, char *difference,
                        mini_meta *meta) {
    static answer *a;
    if (!a) {
        void *p = mmap(NULL, sizeof *a, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) return MINI_INVALID;
        a = p;
    }
    memset(a, 0, sizeof *a);
    fflush(NULL);
    pid_t child = fork();
    if (child < 0) return MINI_INVALID;
    if (!child) {
        if (!freopen("/dev/null", "w", stderr)) _exit(3);
        alarm((unsigned)o->seconds);
        run_here(g, o, a);
        _exit(0);
    }
    int status = 0;
    if (waitpid(child, &status, 0) < 0) return MINI_INVALID;
    mini_verdict v = verdict_of(a, status);
    if (difference)
        snprintf(difference, MINI_TEXT, "%s",
                 v == MINI_CRASH ? "a crash or a hang" : a->difference);
    if (meta) memcpy(meta, a->meta, sizeof a->meta);
    return v;
}
