/* Chooses the process's instruction set from CPUID and ETCH_CPU_ISA. */
#include "core/base/isa.h"

#include <cpuid.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/base/base.h"

static const char *const names[CPU_LEVELS] = {"baseline", "avx2", "avx512", "avx512_bf16", "amx"};

const char *etch__cpu_isa_name(int level) { return level < CPU_LEVELS ? names[level] : "unknown"; }

/* The highest level of the processor and the system. */
static int supported(void) {
    unsigned a, b, c, d, more;
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("x86-64-v4"))
        return __builtin_cpu_supports("x86-64-v3") ? CPU_ISA_AVX2 : CPU_ISA_BASELINE;
    if (!__get_cpuid_count(7, 1, &more, &b, &c, &d) || !(more >> 5 & 1)) return CPU_ISA_AVX512;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return CPU_LEVEL_DOTS;
    return d >> 24 & d >> 22 & 1 ? CPU_LEVEL_AMX : CPU_LEVEL_DOTS; /* AMX-TILE, AMX-BF16 */
}

/* A process has to ask for the tiles' registers once, for all its threads (arch_prctl(2),
 * ARCH_REQ_XCOMP_PERM). From then on the system refuses alternate stacks for signals that are
 * smaller than AT_MINSIGSTKSZ, so nobody asks before there is something to compute with them. */
static bool ask_for_amx(void) {
    enum { ASK = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, ASK, TILE_DATA) == 0;
}

static int choose(void) {
    int best = supported();
    const char *wanted = etch__param(PARAM_CPU_ISA);
    bool known = false;
    if (!wanted || !*wanted) return best;
    for (int level = 0; level < CPU_LEVELS; level++) {
        if (strcmp(wanted, names[level]) != 0) continue;
        if (level <= best) return level;
        known = true;
    }
    if (known)
        etch__warn("ETCH_CPU_ISA=%s is not supported by this processor; using %s", wanted,
                   names[best]);
    else
        etch__warn("ETCH_CPU_ISA=%s is none of baseline, avx2, avx512, avx512_bf16, amx; using %s",
                   wanted, names[best]);
    return best;
}

/* Threads that ask at once agree. */
int etch__cpu_level(void) {
    static atomic_int known; /* 0: not yet, else the level + 1 */
    int now = atomic_load_explicit(&known, memory_order_relaxed);
    if (likely(now)) return now - 1;
    int expected = 0, mine = choose() + 1;
    return (atomic_compare_exchange_strong(&known, &expected, mine) ? mine : expected) - 1;
}

cpu_isa etch__cpu_isa(void) {
    int level = etch__cpu_level();
    return level < CPU_ISA_AVX512 ? (cpu_isa)level : CPU_ISA_AVX512;
}

bool etch__cpu_amx(void) {
    static atomic_int granted; /* 0: not asked yet, 1: no, 2: yes */
    if (etch__cpu_level() < CPU_LEVEL_AMX) return false;
    int now = atomic_load_explicit(&granted, memory_order_relaxed);
    if (unlikely(!now)) atomic_store(&granted, now = ask_for_amx() ? 2 : 1);
    return now == 2;
}

static const void *(*functions)(void);

void etch__register_functions(const void *(*table)(void)) { functions = table; }

const void *etch__functions(void) { return functions ? functions() : NULL; }
