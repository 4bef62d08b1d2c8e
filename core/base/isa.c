/* Chooses the process's instruction set from CPUID and ETCH_CPU_ISA. */
#include "core/base/isa.h"

#include <cpuid.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/base/base.h"

static const char *const names[CPU_ISA_COUNT] = {"baseline", "avx2", "avx512"};

const char *etch__cpu_isa_name(cpu_isa isa) { return isa < CPU_ISA_COUNT ? names[isa] : "unknown"; }

static cpu_isa supported(void) {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("x86-64-v4")) return CPU_ISA_AVX512;
    if (__builtin_cpu_supports("x86-64-v3")) return CPU_ISA_AVX2;
    return CPU_ISA_BASELINE;
}

/* Whether the processor has AMX for bf16. */
static bool has_amx(void) {
    unsigned a, b, c, d;
    if (supported() != CPU_ISA_AVX512 || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    bool tiles = d >> 24 & 1, bf16 = d >> 22 & 1; /* AMX-TILE, AMX-BF16 */
    return tiles && bf16 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && a >> 5 & 1; /* for stores */
}

/* A process has to ask for the tiles' registers once, for all its threads (arch_prctl(2),
 * ARCH_REQ_XCOMP_PERM). From then on the system refuses alternate stacks for signals that are
 * smaller than AT_MINSIGSTKSZ, so nobody asks before there is something to compute with them. */
static bool ask_for_amx(void) {
    enum { ASK = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, ASK, TILE_DATA) == 0;
}

/* What the process uses: its set, and AMX beside it. */
typedef struct cpu_choice {
    cpu_isa isa;
    bool amx;
} cpu_choice;

static cpu_choice choose(void) {
    cpu_choice best = {supported(), has_amx()};
    const char *wanted = etch__param(PARAM_CPU_ISA);
    if (!wanted || !*wanted) return best;
    if (strcmp(wanted, "amx") == 0 && best.amx) return best;
    const char *most = best.amx ? "amx" : names[best.isa];
    bool known = strcmp(wanted, "amx") == 0;
    for (int i = 0; i < CPU_ISA_COUNT; i++) {
        if (strcmp(wanted, names[i]) != 0) continue;
        if ((cpu_isa)i <= best.isa) return (cpu_choice){(cpu_isa)i, false};
        known = true;
    }
    if (known)
        etch__warn("ETCH_CPU_ISA=%s is not supported by this processor; using %s", wanted, most);
    else
        etch__warn("ETCH_CPU_ISA=%s is none of baseline, avx2, avx512, amx; using %s", wanted,
                   most);
    return best;
}

/* As one number, so that threads that ask at once agree. */
static unsigned chosen(void) {
    static _Atomic unsigned known; /* 0: not yet, else the choice + 1 */
    unsigned now = atomic_load_explicit(&known, memory_order_relaxed);
    if (likely(now)) return now - 1;
    cpu_choice c = choose();
    unsigned expected = 0, mine = ((unsigned)c.isa << 1 | c.amx) + 1;
    return (atomic_compare_exchange_strong(&known, &expected, mine) ? mine : expected) - 1;
}

cpu_isa etch__cpu_isa(void) { return (cpu_isa)(chosen() >> 1); }

bool etch__cpu_amx(void) {
    static atomic_int granted; /* 0: not asked yet, 1: no, 2: yes */
    if (!(chosen() & 1)) return false;
    int now = atomic_load_explicit(&granted, memory_order_relaxed);
    if (unlikely(!now)) atomic_store(&granted, now = ask_for_amx() ? 2 : 1);
    return now == 2;
}

static const void *(*functions)(void);

void etch__register_functions(const void *(*table)(void)) { functions = table; }

const void *etch__functions(void) { return functions ? functions() : NULL; }
