/* How a loop kernel is laid out on the device: index width, vector width, threads, grid; and the
 * block of arguments that it is launched with. None of it changes a bit of the results. */
#include "jit/cuda/cuda_gen.h"

/* ---- what the code uses ---- */

/* Stage 0 runs but under FINISH, stage 1 but under PARTIAL. */
static bool runs(const loop_kernel *k, int stage) {
    return k->split == SPLIT_NONE || (k->split == SPLIT_FINISH) == (stage == 1);
}

void etch__cuda_needed(const loop_kernel *k, bool *needed) {
    for (int v = k->ncode - 1; v >= 0; v--) {
        const loop_instr *i = &k->code[v];
        bool root = i->kind == LOOP_REDUCE || (i->kind == LOOP_STORE && runs(k, i->stage));
        needed[v] |= root;
        if (!needed[v] || (i->kind == LOOP_REDUCE && !runs(k, 0))) continue;
        for (int n = 0; n < etch__loop_arity(i); n++) needed[etch__loop_operand(i, n)] = true;
    }
}

bool etch__cuda_uses(const loop_kernel *k, int access, int stage) {
    bool needed[LOOP_MAX_CODE] = {false}, code[LOOP_MAX_CODE];
    etch__cuda_needed(k, needed);
    etch__loop_stage_code(k, stage, code);
    for (int v = 0; v < k->ncode; v++) {
        const loop_instr *i = &k->code[v];
        if ((i->kind == LOOP_LOAD || i->kind == LOOP_STORE) && code[v] && needed[v] &&
            i->p.imm.i == access)
            return true;
    }
    return false;
}

bool etch__cuda_uses_any(const loop_kernel *k, int access, bool rows) {
    int last = etch__loop_last_stage(k);
    for (int s = rows; s <= last; s += 2)
        if (etch__cuda_uses(k, access, s)) return true;
    return false;
}

int etch__cuda_axis(const loop_kernel *k) {
    if (k->split == SPLIT_FINISH) return -1;
    return k->variant == LOOP_ROW ? k->npar + k->nred - 1 : k->npar - 1;
}

/* Accesses of even stages that lie as neighbours along the axis: how many, their narrowest and
 * widest element; and the bytes that one element of each load takes. */
typedef struct traffic {
    int neighbours, narrow, wide, loaded;
} traffic;

static traffic traffic_of(const loop_kernel *k) {
    traffic t = {.narrow = 16, .wide = 1};
    int axis = etch__cuda_axis(k);
    for (int a = 0; a < k->naccesses; a++) {
        int size = (int)etch_dtype_size(k->access[a].dtype);
        if (!etch__cuda_uses_any(k, a, false)) continue;
        if (!k->access[a].store) t.loaded += size < 4 ? 4 : size; /* in registers */
        if (axis < 0 || k->access[a].step[axis] != STEP_ONE) continue;
        t.neighbours++;
        if (size < t.narrow) t.narrow = size;
        if (size > t.wide) t.wide = size;
    }
    return t;
}

/* ---- layout ---- */

static int clamp(int v, int low, int high) { return v < low ? low : v > high ? high : v; }

enum { FEW_ROWS_TILE = 3 }; /* COLUMN: so few that the depth would not be reached */

/* Chunks in flight, the bytes that they take in registers, the elements that the
 * code is written out for. */
typedef struct in_flight {
    int chunks, bytes, elements;
} in_flight;

/* Enough for the memory's latency. Blocks of a PARTIAL row are long, and few threads have them. */
static in_flight flight_of(const loop_kernel *k) {
    if (k->variant == LOOP_MAP) return (in_flight){4, 32, 4};
    if (k->variant == LOOP_ROW && k->split == SPLIT_PARTIAL) return (in_flight){16, 512, 64};
    return (in_flight){8, 256, 64};
}

static int depth_of(const loop_kernel *k, const cuda_layout *l) {
    traffic t = traffic_of(k);
    in_flight most = flight_of(k);
    if (k->variant == LOOP_MAP && l->vector > 1) return 1; /* the vector is as much as is wanted */
    if (etch__cuda_on_columns(k) && l->threads <= 32 << FEW_ROWS_TILE) return l->chunks;
    int depth = l->chunks > most.chunks ? l->chunks : most.chunks;
    while (depth > l->chunks &&
           (depth * l->vector * t.loaded > most.bytes || depth * l->vector > most.elements))
        depth /= 2;
    return depth;
}

cuda_layout etch__cuda_layout(const loop_kernel *k, const cuda_variant *v) {
    cuda_layout l = {.threads = 32 << clamp(v->tile, 0, 5),
                     .team = 1,
                     .teams = 1,
                     .vector = v->vector,
                     .chunks = 1,
                     .depth = 1};
    if (v->warps) {
        l.team = REDUCE_LANES / l.vector, l.teams = l.threads / l.team;
        l.hold = l.depth = v->hold;
        return l;
    }
    if (etch__cuda_has_sweeps(k)) {
        l.threads = 32 << clamp(v->tile, 1, v->vector > 4 ? 4 : 5);
        l.team = l.threads, l.hold = v->hold, l.depth = v->hold ? v->hold : 1;
        return l;
    }
    if (k->split == SPLIT_FINISH) {
        l.vector = 1, l.team = 32, l.teams = l.threads / 32;
        return l;
    }
    if (k->variant == LOOP_COLUMN) {
        l.columns = clamp(8 * l.vector, 32, 64), l.team = l.columns / l.vector;
        l.threads = clamp(32 << clamp(v->tile, FEW_ROWS_TILE, 5), 0, REDUCE_LANES * l.team);
        l.teams = l.threads / l.team, l.chunks = REDUCE_LANES / l.teams;
    } else if (k->variant == LOOP_ROW) {
        l.team = clamp(REDUCE_LANES / l.vector, 1, 32), l.teams = l.threads / l.team;
        l.chunks = REDUCE_LANES / (l.team * l.vector);
    }
    l.depth = depth_of(k, &l);
    return l;
}

/* ---- sizes ---- */

static int64_t product(const int64_t *v, int n) {
    int64_t p = 1;
    for (int i = 0; i < n; i++) p *= v[i];
    return p;
}

static int64_t quot_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

static int64_t blocks_of(const loop_kernel *k, const int64_t *dims) {
    int64_t n = quot_up(product(dims + k->npar, k->nred), REDUCE_BLOCK);
    return n > 0 ? n : 1;
}

static int64_t leaves_of(const loop_kernel *k, const int64_t *dims) {
    int64_t n = blocks_of(k, dims);
    return k->split == SPLIT_FINISH ? quot_up(n, CUDA_LEAF) : n;
}

/* The kernel makes the same choice from the grid. */
static int64_t teams_per_row(const loop_kernel *k, const int64_t *dims, int teams) {
    int64_t rows = product(dims, k->npar), leaves = leaves_of(k, dims), share = 1;
    while (share < teams && share < leaves && rows * share < CUDA_TEAMS_WANTED) share *= 2;
    return share;
}

/* Blocks of threads that have work. */
static int64_t blocks_of_work(const loop_kernel *k, const cuda_layout *l, const int64_t *dims) {
    int64_t rows = product(dims, k->npar);
    if (etch__cuda_has_sweeps(k)) return quot_up(rows, l->teams);
    if (k->variant == LOOP_MAP || etch__cuda_on_columns(k)) {
        int64_t inner = k->npar ? dims[k->npar - 1] : 1, outer = inner ? rows / inner : 0;
        if (k->variant == LOOP_MAP)
            return quot_up(outer * quot_up(inner, l->vector), (int64_t)l->threads * l->depth);
        int64_t tiles = outer * quot_up(inner, l->columns);
        return k->split == SPLIT_PARTIAL ? tiles * blocks_of(k, dims) : tiles;
    }
    if (k->split == SPLIT_PARTIAL) return quot_up(rows * blocks_of(k, dims), l->teams);
    return quot_up(rows * teams_per_row(k, dims, l->teams), l->teams);
}

cuda_shape etch__cuda_shape(const loop_kernel *k, const cuda_variant *v, const int64_t *dims) {
    cuda_layout l = etch__cuda_layout(k, v);
    int64_t n = blocks_of_work(k, &l, dims);
    uint32_t x = n < 1 ? 1 : n > INT32_MAX ? INT32_MAX : (uint32_t)n;
    return (cuda_shape){{x, 1, 1}, {(uint32_t)l.threads, 1, 1}, 0};
}

/* ---- the choice ---- */

/* Elements, offsets and cells below this fit 32 bits, with room for one stride of the grid. */
enum { NARROW_LIMIT = (1 << 30) - (1 << 20) };

static bool is_narrow(const loop_kernel *k, const int64_t *dims) {
    int naxes = k->npar + k->nred;
    double elements = 1, rows = 1, reductions = 0;
    for (int x = 0; x < naxes; x++) elements *= (double)dims[x];
    for (int x = 0; x < k->npar; x++) rows *= (double)dims[x];
    for (int v = 0; v < k->ncode; v++) reductions += k->code[v].kind == LOOP_REDUCE;
    double blocks = k->nred ? elements / rows / REDUCE_BLOCK + 1 : 0;
    if (elements >= NARROW_LIMIT) return false;
    if (k->split != SPLIT_NONE && reductions * rows * blocks >= NARROW_LIMIT) return false;
    for (int a = 0; a < k->naccesses; a++) {
        double reach = 0;
        for (int x = 0; x < naxes; x++) {
            double stride = (double)dims[naxes * (a + 1) + x];
            if (k->access[a].step[x] != STEP_ZERO)
                reach += (stride < 0 ? -stride : stride) * (double)(dims[x] - 1);
        }
        if (reach >= NARROW_LIMIT) return false;
    }
    return true;
}

/* Whether chunks of n neighbours of access a are aligned wherever they begin. */
static bool chunks_aligned(const loop_kernel *k, const int64_t *dims, int a, int axis, int n) {
    int naxes = k->npar + k->nred;
    for (int x = 0; x < naxes; x++)
        if (x != axis && k->access[a].step[x] != STEP_ZERO && dims[x] > 1 &&
            dims[naxes * (a + 1) + x] % n != 0)
            return false;
    return true;
}

static bool can_vector(const loop_kernel *k, const int64_t *dims, uint32_t aligned, int n) {
    int axis = etch__cuda_axis(k);
    if (dims[axis] < n) return false;
    /* A chunk stays in its row, or in its columns. */
    if ((k->nred > 1 || k->variant == LOOP_COLUMN) && dims[axis] % n != 0) return false;
    for (int a = 0; a < k->naccesses; a++) {
        if (!etch__cuda_uses_any(k, a, false) || k->access[a].step[axis] != STEP_ONE) continue;
        if (!(aligned >> a & 1) || !chunks_aligned(k, dims, a, axis, n)) return false;
    }
    return true;
}

/* Of the reductions behind one stage, the most bytes that an element takes. */
static int reduced_bytes(const loop_kernel *k) {
    int bytes[LOOP_STAGES + 1] = {0}, most = 0;
    for (int v = 0; v < k->ncode; v++)
        if (k->code[v].kind == LOOP_REDUCE)
            bytes[k->code[v].stage] += (int)etch_dtype_size(k->code[v].p.type);
    for (int s = 0; s < LOOP_STAGES; s++)
        if (bytes[s] > most) most = bytes[s];
    return most;
}

enum { PROCESSORS = 128 }; /* about as many as large devices have */
enum { LANE_BYTES = 128 };

/* Whether the lanes of n columns fit the registers of a thread, and the tiles, which are wider from
 * 8 on, are enough to busy the device. */
static bool columns_fit(const loop_kernel *k, const int64_t *dims, int n) {
    const cuda_variant v = {.index_bits = 32, .vector = (uint8_t)n, .tile = 5};
    cuda_layout l = etch__cuda_layout(k, &v);
    return n * reduced_bytes(k) <= LANE_BYTES &&
           (n < 8 || blocks_of_work(k, &l, dims) >= PROCESSORS / 2);
}

/* 16 bytes of the narrowest element where the widest does not take more than 32. */
static int choose_vector(const loop_kernel *k, const int64_t *dims, uint32_t aligned) {
    traffic t = traffic_of(k);
    if (!t.neighbours) return 1;
    for (int n = 8; n > 1; n /= 2)
        if (n * t.narrow <= 16 && n * t.wide <= 32 && can_vector(k, dims, aligned, n) &&
            (!etch__cuda_on_columns(k) || columns_fit(k, dims, n)))
            return n;
    return 1;
}

/* Few blocks: all the threads that they can have. Few rows: no more than have a lane to fill. */
static int column_tile(const loop_kernel *k, int64_t work, const int64_t *dims) {
    if (work < 2 * PROCESSORS) return 5;
    bool few = product(dims + k->npar, k->nred) <= 256;
    return work >= 8 * PROCESSORS && few ? FEW_ROWS_TILE : 4;
}

static int choose_tile(const loop_kernel *k, const cuda_variant *v, const int64_t *dims) {
    cuda_layout l = etch__cuda_layout(k, v);
    int64_t rows = product(dims, k->npar);
    if (k->variant == LOOP_MAP)
        return blocks_of_work(k, &l, dims) * l.threads < 256 * PROCESSORS ? 2 : 3;
    if (etch__cuda_on_columns(k)) return column_tile(k, blocks_of_work(k, &l, dims), dims);
    if (k->split == SPLIT_PARTIAL) return 2;
    return rows < PROCESSORS && leaves_of(k, dims) > 8 ? 5 : 3;
}

enum { WARP_ROWS = 4096 }; /* so many that a warp can have two */
enum { HOLD_CHUNKS = 4, HOLD_MOST = 8, HOLD_SHARED = 32 << 10, WARP_ELEMENTS = 64 };

/* Whether threads that have the lanes of a row can have its elements, too. */
static bool fits_warps(const loop_kernel *k, int vector, const int64_t *dims) {
    int64_t n = product(dims + k->npar, k->nred);
    return etch__cuda_has_sweeps(k) && vector > 1 && n <= WARP_ELEMENTS * (REDUCE_LANES / vector);
}

/* Chunks of a row. One of a block is held if it is no longer than a block of the reduction, and its
 * values fit shared memory. */
static int hold_of(const loop_kernel *k, const cuda_variant *v, const int64_t *dims) {
    if (!etch__cuda_has_sweeps(k)) return 0;
    if (v->warps) return (int)quot_up(product(dims + k->npar, k->nred), REDUCE_LANES);
    int64_t width = (int64_t)etch__cuda_layout(k, v).threads * v->vector;
    int64_t hold = quot_up(product(dims + k->npar, k->nred), width), held = hold * width;
    bool fits = hold <= HOLD_MOST && held <= REDUCE_BLOCK && held * reduced_bytes(k) <= HOLD_SHARED;
    return fits ? (int)hold : 0;
}

/* Elements that the code takes at once: rows of a multiple of them need no checks; 0: it has
 * checks for any. */
static int64_t taken_at_once(const loop_kernel *k, const cuda_variant *v) {
    cuda_layout l = etch__cuda_layout(k, v);
    if (!etch__cuda_has_sweeps(k)) return REDUCE_BLOCK;
    return (int64_t)l.team * l.vector * l.hold;
}

/* Whether each team has a row, whenever its block has. */
static bool even_teams(const loop_kernel *k, const cuda_variant *v, const int64_t *dims) {
    return !v->warps || product(dims, k->npar) % etch__cuda_layout(k, v).teams == 0;
}

static even_rows even_of(const loop_kernel *k, const cuda_variant *v, const int64_t *dims) {
    int axis = etch__cuda_axis(k);
    if (axis < 0 || dims[axis] % v->vector != 0) return EVEN_NOT;
    even_rows vectors = v->vector > 1 && !etch__cuda_on_columns(k) ? EVEN_VECTORS : EVEN_NOT;
    int64_t once = k->nred ? taken_at_once(k, v) : 0, n = product(dims + k->npar, k->nred);
    return once && n % once == 0 && even_teams(k, v, dims) ? EVEN_BLOCKS : vectors;
}

void etch__cuda_fit_rows(const loop_kernel *k, cuda_variant *v, const int64_t *dims) {
    v->warps = fits_warps(k, v->vector, dims);
    v->hold = (uint8_t)hold_of(k, v, dims);
    v->even = (uint8_t)even_of(k, v, dims);
}

/* 8 bytes of the widest element a thread, where rows are many; else as many threads as can be. */
static int warp_vector(const loop_kernel *k, const int64_t *dims, int most) {
    int wide = traffic_of(k).wide, n = wide < 4 && product(dims, k->npar) >= WARP_ROWS ? 4 : 2;
    return n < most ? n : most;
}

/* As many warps a block, up to 4, as leave blocks for all processors. */
static int warp_tile(const loop_kernel *k, int vector, const int64_t *dims) {
    int64_t warps = quot_up(product(dims, k->npar) * (REDUCE_LANES / vector), 32);
    return warps >= 8 * PROCESSORS ? 2 : warps >= 4 * PROCESSORS ? 1 : 0;
}

/* As few threads as take a row in HOLD_CHUNKS chunks each. */
static int row_tile(const loop_kernel *k, const cuda_variant *v, const int64_t *dims) {
    int64_t chunks = quot_up(product(dims + k->npar, k->nred), v->vector);
    int tile = 1, most = v->vector > 4 ? 4 : 5;
    while (tile < most && (32 << tile) * HOLD_CHUNKS < chunks) tile++;
    return tile;
}

cuda_variant etch__cuda_choose(const loop_kernel *k, const int64_t *dims, uint32_t aligned) {
    cuda_variant v = {.index_bits = is_narrow(k, dims) ? 32 : 64, .vector = 1, .tile = 3};
    v.vector = (uint8_t)choose_vector(k, dims, aligned);
    bool sweeps = etch__cuda_has_sweeps(k);
    int by_warps = sweeps ? warp_vector(k, dims, v.vector) : 1;
    if (fits_warps(k, by_warps, dims)) {
        v.vector = (uint8_t)by_warps;
        v.tile = (uint8_t)warp_tile(k, by_warps, dims);
    } else v.tile = (uint8_t)(sweeps ? row_tile(k, &v, dims) : choose_tile(k, &v, dims));
    etch__cuda_fit_rows(k, &v, dims);
    return v;
}

/* ---- arguments ---- */

static size_t dims_count(const loop_kernel *k) {
    return (size_t)(k->npar + k->nred) * (size_t)(k->naccesses + 1);
}

size_t etch__cuda_args_size(const loop_kernel *k) {
    return 8 * ((size_t)k->naccesses + 1 + dims_count(k) + (size_t)k->nscalars);
}

void etch__cuda_args_fill(const loop_kernel *k, void *const *args, const int64_t *dims,
                          const uint64_t *cells, void *to) {
    size_t nargs = (size_t)k->naccesses + 1, given = nargs - (k->split == SPLIT_NONE);
    char *at = to;
    memset(at, 0, 8 * nargs);
    if (given) memcpy(at, args, 8 * given);
    at += 8 * nargs;
    if (dims_count(k)) memcpy(at, dims, 8 * dims_count(k));
    at += 8 * dims_count(k);
    if (k->nscalars) memcpy(at, cells, 8 * (size_t)k->nscalars);
}
