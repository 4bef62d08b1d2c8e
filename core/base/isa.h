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

/* What there may be beside the highest set: dot products of bf16 (AVX512_BF16), and AMX, too. */
enum { CPU_LEVEL_DOTS = CPU_ISA_COUNT, CPU_LEVEL_AMX, CPU_LEVELS };

/* The highest level, a set or one of these, that the processor and the system support, or a lower
 * one that ETCH_CPU_ISA names. */
int etch__cpu_level(void);
/* Its set. */
cpu_isa etch__cpu_isa(void);
/* Whether products of bf16 use AMX: at that level, if the system grants it, which the first call
 * asks for. */
bool etch__cpu_amx(void);
/* "baseline", "avx2", "avx512", "avx512_bf16", "amx". */
const char *etch__cpu_isa_name(int level);

/* The strips of the transcendental primitives for that set, a table [STRIP_COUNT][ETCH_DTYPE_COUNT]
 * of the form that backends/cpu/table.h describes: what generated code calls. The CPU's kernels
 * register who knows it. */
void etch__register_functions(const void *(*table)(void));
const void *etch__functions(void);

#endif
