/* MAP: a thread takes chunks, neighbours along the innermost axis, or elements one by one. */
#include "jit/cuda/cuda_gen.h"

/* The neighbours from `first` on; in rows of whole chunks no more is written. */
static void whole_chunk(cuda_gen *g) {
    chunk c = {g->l.vector, 1, false};
    int x = g->axis;
    if (!g->v->even) etch__cuda_line(g, "if (first + %d <= n%d) {", c.vector, x);
    etch__cuda_line(g, "const idx i%d = first;", x);
    if (etch__cuda_wants_index(g, 0))
        etch__cuda_line(
            g, x > 0 ? "const idx index = row * n%d + first;" : "const idx index = first;", x);
    etch__cuda_chunk_code(g, &c);
}

/* Those behind the last whole chunk of a row, one by one. */
static void rest_of_row(cuda_gen *g) {
    chunk c = {1, 1, false};
    int x = g->axis;
    g->indent--;
    etch__cuda_line(g, "} else {");
    etch__cuda_line(g, "#pragma unroll 1");
    etch__cuda_line(g, "for (idx i%d = first; i%d < n%d; i%d++) {", x, x, x, x);
    if (etch__cuda_wants_index(g, 0))
        etch__cuda_line(g, x > 0 ? "const idx index = row * n%d + i%d;" : "const idx index = i%d;",
                        x, x);
    etch__cuda_chunk_code(g, &c);
    etch__cuda_close(g), etch__cuda_close(g);
}

static void map_vectors(cuda_gen *g) {
    int x = g->axis, n = g->l.vector;
    etch__cuda_line(g, "const idx per_row = (n%d + %d) / %d;", x, n - 1, n);
    etch__cuda_line(g, "const idx units = %sper_row;", x > 0 ? "outer * " : "");
    etch__cuda_line(g, "#pragma unroll 1");
    etch__cuda_line(
        g,
        "for (idx u = (idx)blockIdx.x * %d + threadIdx.x; u < units; u += (idx)gridDim.x * %d) {",
        g->l.threads, g->l.threads);
    if (x > 0)
        etch__cuda_line(g, "const idx row = quot(u, per_row), first = (u - row * per_row) * %d;",
                        n);
    else etch__cuda_line(g, "const idx first = u * %d;", n);
    etch__cuda_decompose(g, "row", 0, x);
    whole_chunk(g);
    if (!g->v->even) rest_of_row(g);
    etch__cuda_close(g);
}

static void map_elements(cuda_gen *g) {
    chunk c = {1, g->l.depth, false};
    int step = g->l.threads * g->l.depth;
    const char *at = c.depth > 1 ? "at" : "index";
    etch__cuda_line(g, "const idx units = %s;", g->k->npar ? "rows" : "1");
    etch__cuda_line(g, "#pragma unroll 1");
    etch__cuda_line(
        g,
        "for (idx %s = (idx)blockIdx.x * %d + threadIdx.x; %s < units; %s += (idx)gridDim.x * %d) "
        "{",
        at, step, at, at, step);
    etch__cuda_chunk_code(g, &c);
    etch__cuda_close(g);
}

void etch__cuda_map(cuda_gen *g) {
    if (g->l.vector > 1) map_vectors(g);
    else map_elements(g);
}
