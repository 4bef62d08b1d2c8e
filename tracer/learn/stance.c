/* Stances, and functions disabled with all that they call: what keeps compiled functions from
 * running compiled. */
#include "tracer/learn/learn.h"

_Atomic int etch__stance = ETCH_STANCE_DEFAULT;

/* Inside how many functions disabled with all that they call this thread is. */
static __thread int disabled_depth __attribute__((tls_model("initial-exec")));

etch_status etch_set_stance(etch_stance stance) {
    if ((unsigned)stance > ETCH_STANCE_FAIL_ON_RECOMPILE)
        return etch__error_at(NULL, ETCH_ERR_INVALID_ARGUMENT, "etch_set_stance: %d is no stance",
                              (int)stance);
    atomic_store(&etch__stance, stance);
    return ETCH_OK;
}

etch_stance etch_current_stance(void) { return (etch_stance)atomic_load(&etch__stance); }

bool etch__forced_eager(void) {
    return disabled_depth > 0 ||
           atomic_load_explicit(&etch__stance, memory_order_relaxed) == ETCH_STANCE_FORCE_EAGER;
}

bool etch__disabled(const etch_function *f) {
    static atomic_schar everywhere = -1; /* ETCH_COMPILE_DISABLE, asked for once */
    signed char off = atomic_load_explicit(&everywhere, memory_order_relaxed);
    if (unlikely(off < 0)) {
        off = etch__param_int(PARAM_COMPILE_DISABLE) != 0;
        atomic_store_explicit(&everywhere, off, memory_order_relaxed);
    }
    return off || f->options.disable || unlikely(etch__forced_eager());
}

int etch__enter_disabled(bool recursive) {
    int before = disabled_depth;
    disabled_depth += recursive;
    return before;
}

void etch__leave_disabled(int before) { disabled_depth = before; }
void etch__reset_disabled(void) { disabled_depth = 0; }

etch_status etch__refuse_compile(const etch_function *f, const void *site) {
    return etch__error_at(site, ETCH_ERR_RECOMPILE,
                          "%s: nothing that is compiled fits, and the stance is "
                          "fail_on_recompile: call it with such arguments before the stance is set",
                          f->name);
}
