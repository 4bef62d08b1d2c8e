/* Attention of halves by warp groups (compute capability 9.0): softmax(scale q k' + mask) v, and no
 * matrix of scores.
 *
 * A block is GROUPS warp groups that compute, 64 queries of a head each, and one that copies KEYS
 * keys and values after KEYS for all of them, into two buffers each; it has few registers, so that
 * they have many. It meets tile after tile of queries, so that the next one's are copied while this
 * one ends. Keys are met from the last ones down: only the first round has keys that are not there,
 * or, if ROWS divides KEYS, that some queries do not see. While the scores of one round become
 * powers, the tensor cores multiply those of the round before by its values, or work for another
 * group: groups take turns. The order of sums follows from KEYS alone. After Shah et al.,
 * FlashAttention-3 (2024). */
#include "attention_group.cuh"
#include "meeting.cuh"

enum {
    GROUP = 128, BLOCK = GROUP * (GROUPS + 1), K_SIZE = KEYS * WIDTH, V_SIZE = KEYS * OUT,
    K_AT = ROWS * WIDTH, V_AT = K_AT + 2 * K_SIZE, GATES_AT = V_AT + 2 * V_SIZE
};

/* Two buffers, filled and read in turn. */
struct ring {
    gate full[2], empty[2];
};
struct gates {
    ring keys, values;
    gate queries, asked; /* the tile's queries are there, and are no longer read */
};

/* A tile, its keys [from, to), and how many rounds they take. */
struct tile {
    place_of at;
    keys_of keys;
    int rounds;
    unsigned shared; /* the head of the keys */
};
/* Of a section of heads the tiles that see most keys are the first. Block b takes tile b of the
 * first gridDim.x, b from their end of the next ones: nobody has the longer one each time. */
__device__ __forceinline__ bool tile_of(const etch_args &a, unsigned pass, tile *t) {
    const unsigned grid = gridDim.x, heads = (unsigned)a.heads, splits = (unsigned)a.splits;
    const unsigned most = (unsigned)a.section, blocks = (unsigned)((a.queries + ROWS - 1) / ROWS);
    const unsigned u = pass * grid + (pass % 2 ? grid - 1 - blockIdx.x : blockIdx.x);
    if (u >= heads * splits * blocks) return false;
    const unsigned first = u / (most * splits * blocks) * most, v = u - first * splits * blocks;
    const unsigned n = heads - first < most ? heads - first : most, w = v / n;
    const unsigned block = w / splits;
    t->at = {first + v % n, w % splits, (i64)(blocks - 1 - block) * ROWS};
    t->keys = keys_of_block(a, t->at, ROWS);
    t->rounds = (int)((t->keys.to - t->keys.from + KEYS - 1) / KEYS);
    t->shared = (unsigned)t->at.head / (unsigned)a.group;
    return true;
}

/* ---- the group that copies ---- */

/* What the threads have copied is there for those who pass the gate. */
__device__ __forceinline__ void filled(gate *g) {
    if (PIECES) gate_reached_by_copies(g);
    else gate_reached(g);
}
/* Buffer n of the ring, when nobody reads it any more. */
template <int N>
__device__ __forceinline__ void fill(ring *r, ETCH_0 *room, const ETCH_0 *from, const operand &o,
                                     i64 rows, i64 columns, unsigned n) {
    gate_passed(&r->empty[n % 2], ~n / 2 % 2);
    fetch_fast<GROUP, KEYS, N>(room + n % 2 * KEYS * N, from, o, rows, columns);
    filled(&r->full[n % 2]);
}
/* Values are needed a round later than keys. */
__device__ __forceinline__ void copy_tile(const etch_args &a, ETCH_0 *q, gates *g, const tile &t,
                                          unsigned n) {
    const ETCH_0 *const keys = a.k + head_at(a.at_k, t.shared);
    const ETCH_0 *const values = a.v + head_at(a.at_v, t.shared);
    i64 key = t.keys.from + (i64)(t.rounds - 1) * KEYS;
    for (int i = 0; i <= t.rounds; i++, n++, key -= KEYS) {
        const i64 before = key + KEYS;
        if (i < t.rounds)
            fill<WIDTH>(&g->keys, q + K_AT, keys + key * a.at_k.row, a.at_k, t.keys.to - key,
                        a.width, n);
        if (i > 0)
            fill<OUT>(&g->values, q + V_AT, values + before * a.at_v.row, a.at_v,
                      t.keys.to - before, a.out_width, n - 1);
    }
}
__device__ __forceinline__ void copy_all(const etch_args &a, ETCH_0 *q, gates *g) {
    unsigned n = 0;
    tile t;
    for (unsigned pass = 0; tile_of(a, pass, &t); pass++, n += t.rounds) {
        const ETCH_0 *const from = a.q + head_at(a.at_q, (unsigned)t.at.head);
        gate_passed(&g->asked, ~pass % 2);
        fetch_fast<GROUP, ROWS, WIDTH>(q, from + t.at.query * a.at_q.row, a.at_q,
                                       a.queries - t.at.query, a.width);
        filled(&g->queries);
        copy_tile(a, q, g, t, n);
    }
}

/* ---- the groups that compute ---- */

/* The tensor cores may read what the gate was for. */
__device__ __forceinline__ void arrived(gate *g, unsigned odd) {
    gate_passed(g, odd);
    copies_shown();
}
/* The warp no longer reads what the gate is for. */
__device__ __forceinline__ void left(gate *g) {
    if (threadIdx.x % 32 == 0) gate_reached(g);
}
/* What a thread has of a tile: two of every eight columns of two rows. `powers` are of the round
 * before, which `sums` does not have yet. */
struct share {
    float scores[KEYS / 8][4], sums[OUT / 8][4], top[2], sum[2], shrink[2];
    unsigned powers[KEYS / 16][4];
    mask_part mask;
};
/* What follows from where the warp is. */
struct warp_of {
    const ETCH_0 *room, *own; /* shared memory; queries in it */
    const ETCH_1 *mask;
    i64 query;
    int group, lane;
};
__device__ __forceinline__ warp_of warp_in(const etch_args &a, const ETCH_0 *q, const tile &t) {
    const int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP, 0);
    return {q, q + group * 64 * 64,
            MASK ? a.mask + head_at(a.at_mask, (unsigned)t.at.head) : a.mask,
            t.at.query + threadIdx.x / 32 * 16, group, (int)threadIdx.x % 32};
}
/* PARTLY: there may be keys that rows do not see. */
template <bool PARTLY>
__device__ __forceinline__ void weigh(const etch_args &a, const warp_of &w, i64 key, share &x) {
    mask_by<PARTLY>(a, w.mask, x.mask, w.query, key, w.lane, x.scores);
    soften(a, x.scores, x.top, x.sum, x.shrink);
}
__device__ __forceinline__ void first_round(const etch_args &a, const warp_of &w, gates *g, i64 key,
                                            unsigned n, share &x) {
    arrived(&g->keys.full[n % 2], n / 2 % 2);
    begin_scores(x.scores, w.own, w.room + K_AT + n % 2 * K_SIZE);
    read_mask(a, w.mask, w.query, key, w.lane, x.mask);
    group_done<0>(x.scores);
    left(&g->keys.empty[n % 2]);
    weigh<true>(a, w, key, x);
    pack_all(x.scores, x.powers);
}
/* Round n, and the values of round n - 1. */
__device__ __forceinline__ void next_round(const etch_args &a, const warp_of &w, gates *g, i64 key,
                                           unsigned n, share &x) {
    const unsigned m = n - 1;
    arrived(&g->keys.full[n % 2], n / 2 % 2);
    if (GROUPS > 1) turn_awaited(1 + w.group);
    begin_scores(x.scores, w.own, w.room + K_AT + n % 2 * K_SIZE);
    arrived(&g->values.full[m % 2], m / 2 % 2);
    begin_values(x.sums, x.powers, w.room + V_AT + m % 2 * V_SIZE);
    if (GROUPS > 1) turn_given(1 + (w.group + 1) % GROUPS);
    read_mask(a, w.mask, w.query, key, w.lane, x.mask);
    group_done<1>(x.scores);
    left(&g->keys.empty[n % 2]);
    weigh<CAUSAL && KEYS % ROWS>(a, w, key, x);
    group_done<0>(x.sums);
    left(&g->values.empty[m % 2]);
    shrink_values(x.sums, x.shrink);
    pack_all(x.scores, x.powers);
}
__device__ __forceinline__ void last_values(const warp_of &w, gates *g, unsigned n, share &x) {
    arrived(&g->values.full[n % 2], n / 2 % 2);
    begin_values(x.sums, x.powers, w.room + V_AT + n % 2 * V_SIZE);
    group_done<0>(x.sums);
    left(&g->values.empty[n % 2]);
}
__device__ __forceinline__ void attend_tile(const etch_args &a, const ETCH_0 *q, gates *g,
                                            const tile &t, unsigned n, unsigned pass) {
    const warp_of w = warp_in(a, q, t);
    share x = {{}, {}, {LOWEST, LOWEST}};
    i64 key = t.keys.from + (i64)(t.rounds - 1) * KEYS;
    arrived(&g->queries, pass % 2);
    first_round(a, w, g, key, n, x);
    for (int i = 1; i < t.rounds; i++) next_round(a, w, g, key -= KEYS, ++n, x);
    left(&g->asked);
    last_values(w, g, n, x);
    put_queries(a, t.at, w.query, w.lane, x.sums, x.top, x.sum);
}
__device__ __forceinline__ void attend_all(const etch_args &a, const ETCH_0 *q, gates *g) {
    unsigned n = 0;
    tile t;
    const int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP, 0);
    if (GROUPS > 1 && group == GROUPS - 1) turn_given(1);
    for (unsigned pass = 0; tile_of(a, pass, &t); pass++, n += t.rounds)
        attend_tile(a, q, g, t, n, pass);
    if (GROUPS > 1 && group == 0) turn_awaited(1);
}

__device__ __forceinline__ void set_gates(gates *g) {
    for (int i = 0; i < 2; i++) {
        gate_set(&g->keys.full[i], GROUP), gate_set(&g->keys.empty[i], 4 * GROUPS);
        gate_set(&g->values.full[i], GROUP), gate_set(&g->values.empty[i], 4 * GROUPS);
    }
    gate_set(&g->queries, GROUP), gate_set(&g->asked, 4 * GROUPS);
}

/* Registers of all threads are 64 Ki at most. */
extern "C" __global__ void __launch_bounds__(BLOCK, 1)
    etch_attention(const __grid_constant__ etch_args a) {
    extern __shared__ uint4 words[];
    ETCH_0 *const q = (ETCH_0 *)whole_panel(words);
    gates *const g = (gates *)(q + GATES_AT);
    if (threadIdx.x == 0) set_gates(g);
    __syncthreads();
    if (threadIdx.x / GROUP == GROUPS) {
        if (GROUPS > 1) registers_given_back<GROUPS == 2 ? (PIECES ? 40 : 56) : 32>();
        copy_all(a, q, g);
    } else {
        if (GROUPS > 1) registers_taken<GROUPS == 2 ? (PIECES ? 232 : 224) : 160>();
        attend_all(a, q, g);
    }
}
