/* The instruction set of this process: chosen once, for eager and generated code alike, because
 * functions have other bits where there is no fma. */
#ifndef ETCH_CORE_BASE_ISA_H
#define ETCH_CORE_BASE_ISA_H

#include <stdbool.h>

typedef enum cpu_isa {
    CPU_ISA_BASELINE, /* -march=x86-64 */
    CPU_ISA_AVX2,     /* -march=x86-64-v3 */
    CPU_ISA_AVX512,   /* -march=x86-64-v4 */
    CPU_ISA_COUNT
} cpu_isa;

/* The highest set that the processor and the system support, or a lower one that ETCH_CPU_ISA
 * names. */
cpu_isa etch__cpu_isa(void);
/* Whether products of bf16 use AMX: with the highest set, where the processor has it and the system
 * grants it, which the first call asks for; not where ETCH_CPU_ISA names a set. */
bool etch__cpu_amx(void);
/* "baseline", "avx2", "avx512". */
const char *etch__cpu_isa_name(cpu_isa isa);

/* The strips of the transcendental primitives for that set, a table [PRIM_COUNT][ETCH_DTYPE_COUNT]
 * of the form that backends/cpu/table.h describes: what generated code calls. The CPU's kernels
 * register who knows it. */
void etch__register_functions(const void *(*table)(void));
const void *etch__functions(void);

#endif
