/* Backend "native": graph -> passes -> loop kernels -> a plan.
 *
 *   build  in-place operators and views out, program order becomes data dependence
 *   cse    equal subexpressions merge
 *   dce    what nobody needs goes
 *   products   relaxed: sums of products with a common operand become one product
 *   epilogue   relaxed, on a device: products take in what follows them
 *   fuse   nodes are dealt out to kernels and calls; on a device, products join kernels
 *   make   kernels lowered and compiled, memory laid out
 *
 * A group that turns out too large for one kernel makes fusion start again with a smaller bound.
 * Where a kernel cannot be compiled the whole plan is the eager one: same bits, one warning. */
#include "core/dispatch/dispatch.h"
#include "core/observe/report.h"
#include "jit/plan/target.h"

static bool checked(const ir *r, const char *pass, bool ok) {
#ifndef NDEBUG
    return ok && etch__ir_verify(r, pass);
#else
    (void)r, (void)pass;
    return ok;
#endif
}

static bool relax(ir *r) {
    bool device = r->g->nvalues && r->g->values[0].meta.device;
    return checked(r, "products", etch__pass_products(r)) &&
           (!device || (checked(r, "epilogue", etch__pass_epilogue(r)) &&
                        checked(r, "dce", etch__pass_dce(r))));
}

static bool run_passes(ir *r) {
    return checked(r, "build", true) && checked(r, "cse", etch__pass_cse(r)) &&
           checked(r, "dce", etch__pass_dce(r)) && (r->numerics != ETCH_RELAXED || relax(r));
}

/* The graph with all passes before fusion done; NULL with the error set. */
static ir *prepared(const graph *g, const backend_options *options, ir_sums sums) {
    ir *r = etch__ir_build(g);
    if (!r) return NULL;
    r->mode = options->mode, r->numerics = options->numerics, r->sums = sums;
    r->quick = options->quick && options->mode != ETCH_MODE_MAX_AUTOTUNE;
    if (run_passes(r)) return r;
    etch__ir_free(r);
    return NULL;
}

/* Where sizes are dynamic all sums of products become products of sums, or none. */
static ir *build(const graph *g, const backend_options *options) {
    ir *r = prepared(g, options, g->dynamic ? SUMS_ALL : SUMS_BY_SIZE);
    if (!r || !g->dynamic || !r->bad_sums) return r;
    etch__ir_free(r);
    return prepared(g, options, SUMS_NONE);
}

/* Where sizes are dynamic all kernels that can go over their rows again do so, or none; the kernels
 * of the other way are compiled along, so that no later size has to start the compiler. */
static bool fuse(ir *r) {
    r->passes = r->g->dynamic ? PASSES_ALL : PASSES_BY_SIZE;
    if (!checked(r, "fuse", etch__fuse(r))) return false;
    if (!r->g->dynamic || !r->bad_passes) return true;
    r->passes = PASSES_NONE;
    return checked(r, "fuse", etch__fuse(r));
}

static etch_status prepare_other_way(ir *r, const backend_options *options) {
    bool several = r->passes == PASSES_NONE || r->has_passes;
    bool first = r->g->dynamic && !options->instance;
    if (!first || !several || r->g->values[0].meta.device) return ETCH_OK;
    r->passes = r->passes == PASSES_NONE ? PASSES_ALL : PASSES_NONE, r->aside = true;
    if (!checked(r, "fuse", etch__fuse(r))) return etch_last_status();
    return etch__plan_prepare(r);
}

/* The kernels of the way that the sums of products did not go, as above. */
static etch_status prepare_other_sums(const ir *done, const backend_options *options) {
    const graph *g = done->g;
    bool first = g->dynamic && !options->instance;
    if (!first || !(done->has_sums || done->sums == SUMS_NONE)) return ETCH_OK;
    if (g->values[0].meta.device) return ETCH_OK;
    ir *r = prepared(g, options, done->sums == SUMS_NONE ? SUMS_ALL : SUMS_NONE);
    if (!r) return etch_last_status();
    r->max_members = done->max_members, r->aside = true;
    bool fused = fuse(r);
    etch_status status = fused ? etch__plan_prepare(r) : etch_last_status();
    if (status == ETCH_OK) status = prepare_other_way(r, options);
    etch__ir_free(r);
    return status;
}

static etch_status prepare_others(ir *r, const backend_options *options) {
    etch_status status = prepare_other_way(r, options);
    return status == ETCH_OK ? prepare_other_sums(r, options) : status;
}

enum { MAX_MEMBERS = 64 };

/* Where a kernel with products would be waited for, they stay apart. */
static etch_status make_groups(ir *r, plan **out, const char **why) {
    if (!fuse(r)) return etch_last_status();
    etch_status status = etch__plan_make(r, out, why);
    if (status != ETCH_ERR_COMPILE || *why != etch__plan_late) return status;
    r->quick = false, r->apart = true;
    etch__log(LOG_FUSION, "%s: products stay apart until a kernel with them is compiled",
              r->g->name);
    status = fuse(r) ? etch__plan_make(r, out, why) : etch_last_status();
    if (status == ETCH_OK) (*out)->provisional = true;
    return status;
}

static etch_status make_plan(ir *r, const backend_options *options, plan **out, const char **why) {
    for (r->max_members = MAX_MEMBERS; r->max_members > 0; r->max_members /= 2) {
        etch_status status = make_groups(r, out, why);
        if (status == ETCH_OK && (status = prepare_others(r, options)) != ETCH_OK)
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

#ifdef ETCH_HAVE_GCCJIT
static const bool have_jit = true;
#else
static const bool have_jit = false;
#endif

/* All on one device; *device is its number. */
static bool one_device(const graph *g, int *device) {
    *device = g->nvalues ? g->values[0].meta.device : 0;
    for (int v = 0; v < g->nvalues; v++)
        if (g->values[v].meta.device != *device) return false;
    return !*device || etch__target();
}

static etch_status native_compile(const graph *g, const backend_options *options, plan **out) {
    int device;
    if (!one_device(g, &device)) {
        etch__count_reason(REASON_EAGER_DEVICES);
        etch__log(LOG_FUSION, "%s: %s", g->name, etch__reasons[REASON_EAGER_DEVICES].text);
        return etch__eager_plan(g, out);
    }
    if (!have_jit && !device)
        return fall_back(g, out, REASON_EAGER_NO_JIT, "it was built with ETCH_GCCJIT=OFF");
    const char *why = "unknown";
    ir *r = build(g, options);
    if (!r) return etch_last_status();
    etch_status status = make_plan(r, options, out, &why);
    bool too_large = r->max_members == 0;
    etch__ir_free(r);
    if (status != ETCH_ERR_COMPILE) return status;
    if (options->strict && too_large) return ETCH_ERR_UNSUPPORTED;
    if (options->strict)
        return etch__error_at(NULL, ETCH_ERR_COMPILE, "%s: its kernel for %s does not build: %s",
                              g->name, etch_device_name(device), why);
    etch__counters.compile_failures++;
    return fall_back(g, out, REASON_EAGER_COMPILE, why);
}

static const backend native = {.name = "native", .alias = "inductor", .compile = native_compile};

__attribute__((constructor)) static void register_native(void) { etch__backend_register(&native); }
