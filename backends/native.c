/* Backend "native": graph -> passes -> loop kernels -> a plan.
 *
 *   build  in-place operators and views out, program order becomes data dependence; normalisations
 *          and products that do more than multiply become several nodes
 *   cse    equal subexpressions merge
 *   dce    what nobody needs goes
 *   products   relaxed: sums of products with a common operand become one product
 *   epilogue   relaxed, on a device: products take in what follows them
 *   layout     channels innermost, between convolutions
 *   copies     what an attention makes lies as its reader wants it
 *   spaces     what follows a product is gone over by the product's rows and columns
 *   fuse   nodes are dealt out to kernels and calls; products join kernels
 *   make   kernels lowered and compiled, memory laid out
 *
 * A group that turns out too large for one kernel makes fusion start again with a smaller bound.
 * Where a kernel cannot be compiled the whole plan is the eager one: same bits, one warning. */
#include "core/dispatch/dispatch.h"
#include "core/base/start.h"
#include "core/observe/report.h"
#include "jit/ir/target.h"
#include "jit/store/pack.h"

static bool checked(const ir *r, const char *pass, bool ok) {
#ifndef NDEBUG
    return ok && etch__ir_verify(r, pass);
#else
    (void)r, (void)pass;
    return ok;
#endif
}

static bool relax(ir *r) {
    return checked(r, "products", etch__pass_sums(r)) &&
           (!r->target->matmuls.run || (checked(r, "epilogue", etch__pass_epilogue(r)) &&
                                        checked(r, "dce", etch__pass_dce(r))));
}

static bool run_passes(ir *r) {
    return checked(r, "build", true) && checked(r, "cse", etch__pass_cse(r)) &&
           checked(r, "dce", etch__pass_dce(r)) && (r->numerics != ETCH_RELAXED || relax(r)) &&
           checked(r, "layout", etch__pass_layout(r)) &&
           checked(r, "copies", etch__pass_copies(r)) && checked(r, "spaces", etch__pass_spaces(r));
}

typedef struct compile {
    const graph *g;
    const backend_options *options;
    const jit_target *target;
    arena memory;
} compile;

/* The graph with all passes before fusion done; NULL with the error set. */
static ir *prepared(compile *c, ir_sums sums) {
    const backend_options *options = c->options;
    ir *r = etch__ir_build(c->g, c->target, options->numerics, &c->memory);
    if (!r) return NULL;
    r->mode = options->mode, r->sums = sums;
    r->provisional_ok = options->quick && options->mode != ETCH_MODE_MAX_AUTOTUNE;
    return run_passes(r) ? r : NULL;
}

/* Where sizes are dynamic all sums of products become products of sums, or none. */
static ir *build(compile *c) {
    ir *r = prepared(c, c->g->dynamic ? SUMS_ALL : SUMS_BY_SIZE);
    return r && c->g->dynamic && r->poor_sums ? prepared(c, SUMS_NONE) : r;
}

/* Where sizes are dynamic all kernels that can go over their rows again do so, or none; the kernels
 * of the other way are compiled along, so that no later size has to start the compiler. */
static bool fuse(ir *r) {
    r->sweeps = r->g->dynamic ? SWEEPS_ALL : SWEEPS_BY_SIZE;
    if (!checked(r, "fuse", etch__fuse(r))) return false;
    if (!r->g->dynamic || !r->poor_sweeps) return true;
    r->sweeps = SWEEPS_NONE;
    return checked(r, "fuse", etch__fuse(r));
}

static etch_status prepare_other_way(ir *r) {
    if (r->sweeps != SWEEPS_NONE && !r->has_sweeps) return ETCH_OK;
    r->sweeps = r->sweeps == SWEEPS_NONE ? SWEEPS_ALL : SWEEPS_NONE, r->ahead_only = true;
    if (!checked(r, "fuse", etch__fuse(r))) return etch_last_status();
    return etch__plan_prepare(r);
}

/* The kernels of the way that the sums of products did not go, as above. */
static etch_status prepare_other_sums(compile *c, const ir *done) {
    if (!done->has_sums && done->sums != SUMS_NONE) return ETCH_OK;
    ir *r = prepared(c, done->sums == SUMS_NONE ? SUMS_ALL : SUMS_NONE);
    if (!r) return etch_last_status();
    r->max_members = done->max_members, r->ahead_only = true;
    bool fused = fuse(r);
    etch_status status = fused ? etch__plan_prepare(r) : etch_last_status();
    return status == ETCH_OK ? prepare_other_way(r) : status;
}

static etch_status prepare_others(compile *c, ir *r) {
    bool ahead = c->target->compiles_ahead || etch__pack_collects(); /* a file has to have them */
    if (!ahead || !c->g->dynamic || c->options->instance) return ETCH_OK;
    etch_status status = prepare_other_way(r);
    return status == ETCH_OK ? prepare_other_sums(c, r) : status;
}

enum { MAX_MEMBERS = 128 };

/* Where a kernel with products would be waited for, they stay apart. */
static etch_status make_groups(ir *r, plan **out, const char **why) {
    if (!fuse(r)) return etch_last_status();
    etch_status status = etch__plan_make(r, out, why);
    if (status != ETCH_ERR_COMPILE || *why != etch__plan_late) return status;
    r->provisional_ok = false, r->matmuls_apart = true;
    etch__log(LOG_FUSION, "%s: products stay apart until a kernel with them is compiled",
              r->g->name);
    status = fuse(r) ? etch__plan_make(r, out, why) : etch_last_status();
    if (status == ETCH_OK) (*out)->provisional = true;
    return status;
}

static etch_status make_plan(compile *c, ir *r, plan **out, const char **why) {
    for (r->max_members = MAX_MEMBERS; r->max_members > 0; r->max_members /= 2) {
        etch_status status = make_groups(r, out, why);
        if (status == ETCH_OK && (status = prepare_others(c, r)) != ETCH_OK)
            etch__plan_release(*out), *out = NULL;
        if (status != ETCH_ERR_UNSUPPORTED) return status;
        etch__count_reason(REASON_FUSION_LIMIT);
        etch__log(LOG_FUSION, "%s: a kernel is too large; at most %d operators in each", r->g->name,
                  r->max_members / 2);
    }
    *why = "an operator exceeds the limits of one kernel";
    return ETCH_ERR_COMPILE;
}

static etch_status fall_back(const graph *g, plan **out, reason_id reason, const char *why) {
    etch__count_reason(reason);
    etch__report_fallback(reason, why);
    etch__warn("%s: %s: %s", g->name, etch__reasons[reason].text, why);
    return etch__eager_plan(g, out);
}

/* That of the one device that all lies on, or NULL. */
static const jit_target *target_of(const graph *g) {
    int device = g->nvalues ? g->values[0].meta.device : 0;
    for (int v = 0; v < g->nvalues; v++)
        if (g->values[v].meta.device != device) return NULL;
    return etch__target(device);
}

static etch_status compile_for(compile *c, plan **out) {
    const graph *g = c->g;
    const char *why = "unknown";
    ir *r = build(c);
    if (!r) return etch_last_status();
    etch_status status = make_plan(c, r, out, &why);
    if (status != ETCH_ERR_COMPILE) return status;
    if (c->options->strict && r->max_members == 0) return ETCH_ERR_UNSUPPORTED;
    if (c->options->strict)
        return etch__error_at(NULL, ETCH_ERR_COMPILE, "%s: its kernel for %s does not build: %s",
                              g->name, etch_device_name(r->device), why);
    etch__counters.compile_failures++;
    return fall_back(g, out, REASON_EAGER_COMPILE, why);
}

static etch_status native_compile(const graph *g, const backend_options *options, plan **out) {
    compile c = {g, options, target_of(g), {NULL}};
    if (!c.target) {
        etch__count_reason(REASON_EAGER_DEVICES);
        etch__log(LOG_FUSION, "%s: %s", g->name, etch__reasons[REASON_EAGER_DEVICES].text);
        return etch__eager_plan(g, out);
    }
    if (c.target->absent && !etch__pack_given())
        return fall_back(g, out, REASON_EAGER_NO_JIT, c.target->absent);
    etch_status status = compile_for(&c, out);
    etch__arena_free(&c.memory);
    return status;
}

static const backend native = {.name = "native", .alias = "inductor", .compile = native_compile};

void etch__start_native(void) { etch__backend_register(&native); }
