/* What turns rows of 64 bytes into panels (see panel_table): for the files that make panels of one
 * element type each. */
#ifndef ETCH_BACKENDS_CPU_ISA_PANELS_H
#define ETCH_BACKENDS_CPU_ISA_PANELS_H

#include "backends/cpu/table.h"

#include <immintrin.h>

#if defined(ETCH_ISA_avx512)

/* The words w[i][j] to w[j][i]. */
static inline void turn(__m512i w[16]) {
    __m512i t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(w[i], w[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(w[i], w[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        w[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        w[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        w[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        w[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) { /* i < 4: words 0-3, lanes of 128 bits */
        int a = i / 4 * 8 + i % 4;
        t[a] = _mm512_shuffle_i32x4(w[a], w[a + 4], 0x88);
        t[a + 4] = _mm512_shuffle_i32x4(w[a], w[a + 4], 0xdd);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        w[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        w[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    }
}

/* panels.c: panel_table.turn. amx.c: bf16 to panels of bf16. */
void ISA_NAME(turn_floats)(float *to, int64_t ldto, const float *from, int64_t ldfrom, int64_t rows,
                           int64_t cols);
void ISA_NAME(pack_pairs)(const panel_pack *p);

/* Elements of `from` as the words of one block of a panel: read_terms of lanes whose terms are
 * neighbours, by lane, and read_lanes of terms whose lanes are, by what a word holds of each. */
typedef void (*read_words)(__m512i w[16], const char *from, int64_t step, int64_t lanes,
                           int64_t terms);
typedef struct panel_reader {
    int64_t terms, size; /* of a block; bytes of an element */
    read_words read_terms, read_lanes;
} panel_reader;

/* The same terms of the next panel's lanes: each lane is a stream of its own, too many and too
 * short ones for the processor to run ahead of. */
static inline __attribute__((always_inline)) void
fetch_below(const panel_reader r, const panel_pack *p, const char *from) {
    for (int i = PANEL_LANES; i < 2 * PANEL_LANES; i++)
        __builtin_prefetch(from + i * p->lane * r.size);
}

static inline __attribute__((always_inline)) void
pack_block(const panel_reader r, const panel_pack *p, int64_t l, int64_t t) {
    __m512i w[16];
    char *to = (char *)p->to + l / PANEL_LANES * p->panel + t / r.terms * PANEL_BLOCK;
    const char *from = p->from + (l * p->lane + t * p->term) * r.size;
    int64_t lanes = p->lanes - l, terms = p->terms - t;
    bool by_lane = p->term == 1 || terms == 1;
    if (p->term == 1) fetch_below(r, p, from);
    if (by_lane) r.read_terms(w, from, p->lane, lanes, terms);
    else r.read_lanes(w, from, p->term, lanes, terms);
    if (by_lane == p->pairs) turn(w);
    for (int i = 0; i < 16; i++) _mm512_storeu_si512(to + 64 * i, w[i]);
}

/* Along what lies in a row of memory. */
static inline __attribute__((always_inline)) void pack_panels(const panel_reader r,
                                                              const panel_pack *p) {
    if (p->term == 1)
        for (int64_t l = 0; l < p->lanes; l += PANEL_LANES)
            for (int64_t t = 0; t < p->terms; t += r.terms) pack_block(r, p, l, t);
    else
        for (int64_t t = 0; t < p->terms; t += r.terms)
            for (int64_t l = 0; l < p->lanes; l += PANEL_LANES) pack_block(r, p, l, t);
}

#endif

#endif
