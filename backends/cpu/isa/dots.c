/* Products of bf16 by panels (see panel_table) where the processor has dot products of pairs
 * (AVX512_BF16), which are no part of the set avx512 as such.
 *
 * The arithmetic of an element is the instruction's (VDPBF16PS, Intel SDM): over the pairs of terms
 * of PANEL_STEP blocks, in ascending order and from +0, acc = fma(x, y, acc) of the second of each
 * pair, then of the first; these sums are added one after the other. All but that addition round to
 * the nearest f32 and take denormals, operands and results, as zero, whatever MXCSR says. */
#include "backends/cpu/isa/panels.h"

#if defined(ETCH_ISA_avx512)

#pragma GCC push_options
#pragma GCC target("avx512bf16")
#define MULTIPLY_ADD(x, y, acc) _mm512_dpbf16_ps(acc, (__m512bh)(x), (__m512bh)(y))
#include "backends/cpu/isa/panel_multiply.h"
#pragma GCC pop_options

static void nothing(void) {}

const panel_table ISA_NAME(dots) = {
    .terms = BF16_TERMS,
    .left = ETCH_BF16,
    .enter = nothing,
    .leave = nothing,
    .multiply = multiply,
    .pack = {[ETCH_BF16] = ISA_NAME(pack_pairs)},
    .turn = ISA_NAME(turn_floats),
};

#else

const panel_table ISA_NAME(dots) = {0};

#endif
