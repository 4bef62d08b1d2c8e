/* Chooses the process's instruction set from CPUID and ETCH_CPU_ISA. */
#include "core/base/isa.h"

#include <stdatomic.h>

#include "core/base/base.h"

static const char *const names[CPU_ISA_COUNT] = {"baseline", "avx2", "avx512"};

const char *etch__cpu_isa_name(cpu_isa isa) { return isa < CPU_ISA_COUNT ? names[isa] : "unknown"; }

static cpu_isa supported(void) {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("x86-64-v4")) return CPU_ISA_AVX512;
    if (__builtin_cpu_supports("x86-64-v3")) return CPU_ISA_AVX2;
    return CPU_ISA_BASELINE;
}

static cpu_isa choose(void) {
    cpu_isa best = supported();
    const char *wanted = etch__param(PARAM_CPU_ISA);
    if (!wanted || !*wanted) return best;
    for (int i = 0; i < CPU_ISA_COUNT; i++) {
        if (strcmp(wanted, names[i]) != 0) continue;
        if ((cpu_isa)i <= best) return (cpu_isa)i;
        etch__warn("ETCH_CPU_ISA=%s is not supported by this processor; using %s", wanted,
                   names[best]);
        return best;
    }
    etch__warn("ETCH_CPU_ISA=%s is none of baseline, avx2, avx512; using %s", wanted, names[best]);
    return best;
}

cpu_isa etch__cpu_isa(void) {
    static atomic_int chosen; /* 0: not yet, else the choice + 1 */
    int isa = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (unlikely(!isa)) {
        int expected = 0;
        isa = (int)choose() + 1;
        if (!atomic_compare_exchange_strong(&chosen, &expected, isa)) isa = expected;
    }
    return (cpu_isa)(isa - 1);
}

static const void *(*functions)(void);

void etch__register_functions(const void *(*table)(void)) { functions = table; }

const void *etch__functions(void) { return functions ? functions() : NULL; }
