/* The kernel of grouped_gemm_sm90.cu, which documents it. */
#ifndef RK_CUDA_GROUPED_GEMM_SM90_CUH
#define RK_CUDA_GROUPED_GEMM_SM90_CUH

#include "kernels/cuda/attention/attn_sm90.cuh"
#include "kernels/cuda/cuda_common.cuh"
#include "kernels/cuda/elementwise/swiglu.cuh"
#include "kernels/cuda/moe/grouped_boxes.cuh"
#include "kernels/cuda/moe/grouped_tiles.cuh"

namespace
{

#if RK_ATTN_HAS_SM90

/* --- the ring --- */

struct grouped_barriers {
    uint64_t full[GROUPED_MAX_STAGES], empty[GROUPED_MAX_STAGES];
};

/* Indexes of tiles, drawn by the producer of the cluster's first block, for the other roles of both blocks.
 */
constexpr int GROUPED_DRAWS = 4;

struct grouped_draws {
    uint64_t full[GROUPED_DRAWS], empty[GROUPED_DRAWS]; /* empty: of the first block */
    int index[GROUPED_DRAWS];
};

/* Each warp of consumers, and the producer of the second block. */
constexpr int GROUPED_READERS = GROUPED_CLUSTER * GROUPED_CONSUMERS / 32 + 1;

template <int TN> struct grouped_shared {
    bf16 *ring;  /* stages of A, then of B */
    bf16 *boxes; /* results of each consumer warpgroup */
    grouped_barriers *bars;
    grouped_draws *draws;
    const grouped_groups *groups;

    __device__ inline bf16 *a(int stage) const
    {
        return ring + stage * GROUPED_STAGE<TN>;
    }

    __device__ inline bf16 *b(int stage) const
    {
        return a(stage) + GROUPED_A;
    }

    __device__ inline bf16 *own_boxes() const
    {
        return boxes + threadIdx.x / ATTN_WG * 64 * TN;
    }
};

template <int TN> struct grouped_turn {
    int stage, parity;

    __device__ inline void next()
    {
        stage = stage + 1 == GROUPED_STAGES<TN> ? 0 : stage + 1;
        parity ^= stage == 0;
    }
};

__device__ inline uint32_t grouped_rank()
{
    uint32_t rank;

    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ inline void grouped_cluster_sync()
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

/* The tensor cores have completed this warp's reads of the stage: no fence is needed. */
__device__ inline void grouped_arrive(uint64_t *bar, uint32_t rank)
{
    asm volatile("{ .reg .b32 at; mapa.shared::cluster.u32 at, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [at]; }" ::"r"(attn_smem(bar)),
                 "r"(rank)
                 : "memory");
}

/* --- the next tile --- */

/* Passes an index to both blocks; called by the one thread that draws, as its turn-th. The store itself
 * completes the barrier: a fence between a store and a signal would wait for all that the thread has under
 * way. */
__device__ inline void give_index(grouped_draws *draws, int turn, int index)
{
    int slot = turn % GROUPED_DRAWS;

    attn_bar_wait(&draws->empty[slot], turn / GROUPED_DRAWS % 2 ^ 1);
    for (int rank = 0; rank < GROUPED_CLUSTER; rank++)
        asm volatile(
            "{ .reg .b32 at, bar; mapa.shared::cluster.u32 at, %0, %3;\n"
            "mapa.shared::cluster.u32 bar, %1, %3;\n"
            "mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [bar], 4;\n"
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [at], %2, [bar]; }" ::"r"(
                attn_smem(&draws->index[slot])),
            "r"(attn_smem(&draws->full[slot])), "r"(index), "r"(rank)
            : "memory");
}

/* The turn-th index that was passed, to be released after it was read. */
__device__ inline int take_index(grouped_draws *draws, int turn)
{
    int slot = turn % GROUPED_DRAWS;

    attn_bar_wait(&draws->full[slot], turn / GROUPED_DRAWS % 2);
    return *(const volatile int *)&draws->index[slot];
}

__device__ inline void release_index(grouped_draws *draws, int turn)
{
    grouped_arrive(&draws->empty[turn % GROUPED_DRAWS], 0);
}

/* ... for all threads of a warp. */
__device__ inline int take_index_by_warp(grouped_draws *draws, int turn)
{
    int index = take_index(draws, turn);

    __syncwarp();
    if (threadIdx.x % 32 == 0)
        release_index(draws, turn);
    return index;
}

/* Called once by each cluster, after its last draw: the last one leaves the counters at zero for the next
 * call. */
__device__ inline void end_draws(const grouped_args &args)
{
    if (atomicAdd(args.counters + 1, 1) == (int)gridDim.x / GROUPED_CLUSTER - 1)
        args.counters[0] = args.counters[1] = 0;
}

/* --- loads --- */

/* Loads a box of 64 columns from (col, row) of matrix `group`. */
__device__ inline void grouped_load(bf16 *dst, const CUtensorMap *map, uint64_t *bar, int col, int row,
                                    int group)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(attn_smem(dst)),
                 "l"(map), "r"(attn_smem(bar)), "r"(col), "r"(row), "r"(group), "r"(0)
                 : "memory");
}

/* ... to the same address in both blocks of the cluster. */
__device__ inline void grouped_load_shared(bf16 *dst, const CUtensorMap *map, uint64_t *bar, int col, int row)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%3, %4, %5, %5}], [%2], %6;" ::"r"(attn_smem(dst)),
                 "l"(map), "r"(attn_smem(bar)), "r"(col), "r"(row), "r"(0), "h"((uint16_t)3)
                 : "memory");
}

/* Loads the stage that begins at `k`: this block's rows of A, and its part of the boxes of B. */
template <int KIND, int TN>
__device__ inline void load_stage(const grouped_shared<TN> &shared, const grouped_maps &maps,
                                  const grouped_args &args, const grouped_tile &tile, int stage, int k,
                                  int rank)
{
    uint64_t *bar = &shared.bars->full[stage];
    int num_boxes = (tile.num_n + 63) / 64;
    bf16 *a = shared.a(stage), *b = shared.b(stage);

    attn_bar_expect(bar, (GROUPED_A + num_boxes * GROUPED_BOX) * 2);
    if (KIND == GROUPED_OUTPUT)
        grouped_load(a, &maps.a, bar, k, tile.m, tile.group);
    for (int i = 0; KIND != GROUPED_OUTPUT && i < 2; i++) {
        if (KIND == GROUPED_SWIGLU)
            grouped_load(a + i * GROUPED_BOX, &maps.a, bar, k, i * args.num_cols + tile.m / 2, tile.group);
        else
            grouped_load(a + i * GROUPED_BOX, &maps.a, bar, tile.m + i * 64,
                         KIND == GROUPED_INPUT ? k : tile.first_row + k,
                         KIND == GROUPED_INPUT ? tile.group : 0);
    }
    for (int i = rank; i < num_boxes; i += GROUPED_CLUSTER) {
        if (KIND == GROUPED_WEIGHT)
            grouped_load_shared(b + i * GROUPED_BOX, &maps.b, bar, tile.n + i * 64, tile.first_row + k);
        else
            grouped_load_shared(b + i * GROUPED_BOX, &maps.b, bar, k, tile.n + i * 64);
    }
}

/* Loads all stages of a tile; called by one thread. */
template <int KIND, int TN>
__device__ inline void load_tile(const grouped_shared<TN> &shared, const grouped_maps &maps,
                                 const grouped_args &args, const grouped_tile &tile, grouped_turn<TN> *turn,
                                 int rank)
{
    for (int k = 0; k < tile.num_k; k += GROUPED_K) {
        attn_bar_wait(&shared.bars->empty[turn->stage], turn->parity ^ 1);
        load_stage<KIND, TN>(shared, maps, args, tile, turn->stage, k, rank);
        turn->next();
    }
}

/* The producer of the cluster's first block. An index is drawn a tile ahead and passed on another tile ahead,
 * so that no one waits for it. */
template <int KIND, int TN>
__device__ inline void produce_first(const grouped_shared<TN> &shared, const grouped_maps &maps,
                                     const grouped_args &args)
{
    int num_tiles = shared.groups->num_tiles, index = atomicAdd(args.counters, 1), next = index;
    grouped_turn<TN> turn = {0, 0};

    give_index(shared.draws, 0, index);
    if (index < num_tiles)
        next = atomicAdd(args.counters, 1);
    for (int i = 1; index < num_tiles; i++) {
        int passed = next;

        give_index(shared.draws, i, passed);
        if (passed < num_tiles)
            next = atomicAdd(args.counters, 1); /* used after the loads below */
        load_tile<KIND>(shared, maps, args, find_tile<KIND, TN>(args, *shared.groups, index, 0), &turn, 0);
        index = passed;
    }
    end_draws(args);
}

/* ... of the second block. */
template <int KIND, int TN>
__device__ inline void produce_second(const grouped_shared<TN> &shared, const grouped_maps &maps,
                                      const grouped_args &args)
{
    grouped_turn<TN> turn = {0, 0};

    for (int i = 0;; i++) {
        int index = take_index(shared.draws, i);

        release_index(shared.draws, i);
        if (index >= shared.groups->num_tiles)
            return;
        load_tile<KIND>(shared, maps, args, find_tile<KIND, TN>(args, *shared.groups, index, 1), &turn, 1);
    }
}

/* --- the products --- */

/* The last rows of a group's sum share a stage with rows of the next group, or with uninitialized memory: all
 * consumers zero these. */
__device__ inline void zero_tail(bf16 *stage, int num_rows, int num_boxes)
{
    int count = GROUPED_K - num_rows;
    uint4 zero = {0, 0, 0, 0};

    for (int i = threadIdx.x; i < count * num_boxes * 8; i += GROUPED_CONSUMERS) {
        int box = i / (count * 8), row = num_rows + i / 8 % count;

        *reinterpret_cast<uint4 *>(stage + box * GROUPED_BOX + row * 64 + i % 8 * 8) = zero;
    }
    attn_async_fence();
    attn_named_sync(1, GROUPED_CONSUMERS);
}

template <int KIND, int N>
__device__ inline void multiply_stage(float (&sum)[N / 2], const bf16 *a, const bf16 *b, bool accumulates)
{
    constexpr int TA = KIND == GROUPED_INPUT || KIND == GROUPED_WEIGHT, TB = KIND == GROUPED_WEIGHT;
    int wg = threadIdx.x / ATTN_WG;

    attn_wgmma_fence();
#pragma unroll
    for (int step = 0; step < GROUPED_K / 16; step++) {
        uint64_t da = TA ? attn_desc_cols(a + wg * GROUPED_BOX, step, 64)
                         : attn_desc_step(attn_desc_rows(a, wg * 64), step, GROUPED_M);
        uint64_t db = TB ? attn_desc_cols(b, step, 64) : attn_desc_step(attn_desc_rows(b, 0), step, N);

        attn_wgmma<N>::template ss<TA, TB>(sum, da, db, accumulates || step > 0);
    }
    attn_wgmma_commit();
}

/* The GEMMs of a stage overlap the wait for the next one; the last ones overlap meanwhile(). */
template <int KIND, int N, int TN, class F>
__device__ inline void sum_tile(const grouped_shared<TN> &shared, const grouped_tile &tile,
                                grouped_turn<TN> *turn, float (&sum)[N / 2], const F &meanwhile)
{
    uint64_t *before = NULL;     /* barrier of the previous stage, to be signalled */
    int told = threadIdx.x % 32; /* the thread block that this lane signals; each warp signals both */

    for (int k = 0; k < tile.num_k; k += GROUPED_K) {
        bf16 *a = shared.a(turn->stage), *b = shared.b(turn->stage);
        int rows = tile.num_k - k;

        attn_bar_wait(&shared.bars->full[turn->stage], turn->parity);
        if (KIND == GROUPED_WEIGHT && rows < GROUPED_K)
            zero_tail(a, rows, 2 + (tile.num_n + 63) / 64);
        multiply_stage<KIND, N>(sum, a, b, k > 0);
        attn_wgmma_wait<1>();
        if (before && told < GROUPED_CLUSTER)
            grouped_arrive(before, (uint32_t)told);
        before = &shared.bars->empty[turn->stage];
        turn->next();
    }
    meanwhile();
    attn_wgmma_wait<0>();
    attn_pin(sum);
    if (before && told < GROUPED_CLUSTER)
        grouped_arrive(before, (uint32_t)told);
}

/* --- results (grouped_boxes.cuh) --- */

/* Stores rows of y from `row` on that are not a whole box, from the warpgroup's boxes. */
__device__ inline void store_rest(const grouped_args &args, const grouped_tile &tile, bf16 *boxes, int row,
                                  int col)
{
    int lane = threadIdx.x % ATTN_WG;

    for (int r = row + lane / 8; r < tile.num_n; r += ATTN_WG / 8) {
        int at = col + lane % 8 * 8;

        if (at < args.num_cols)
            *reinterpret_cast<uint4 *>((bf16 *)args.out + (tile.n + r) * args.ldc + at) =
                *reinterpret_cast<const uint4 *>(box_unit(boxes, r, lane % 8));
    }
}

/* Writes a tile of y to the warpgroup's boxes: a warp has 16 of its 64 columns of all rows. */
template <int N> __device__ inline void write_rows(bf16 *boxes, const float (&sum)[N / 2])
{
    int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;

#pragma unroll
    for (int n = 0; n < N; n += 16) {
        const float *d = sum + n / 2;

        store_matrices<true>(box_unit(boxes, n + lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2),
                             attn_pack(d[0], d[1]), attn_pack(d[2], d[3]), attn_pack(d[4], d[5]),
                             attn_pack(d[6], d[7]));
    }
}

template <int N, int TN>
__device__ inline void store_rows(const grouped_maps &maps, const grouped_args &args,
                                  const grouped_shared<TN> &shared, const grouped_tile &tile,
                                  const float (&sum)[N / 2])
{
    int col = tile.m + threadIdx.x / ATTN_WG * 64, num_boxes = tile.num_n / 64;
    bf16 *boxes = shared.own_boxes();

    wait_for_boxes();
    write_rows<N>(boxes, sum);
    publish_boxes();
    if (threadIdx.x % ATTN_WG == 0) {
        for (int i = 0; i < num_boxes; i++)
            store_box(&maps.c, boxes + i * GROUPED_BOX, col, tile.n + i * 64, 0);
        commit_boxes();
    }
    store_rest(args, tile, boxes, num_boxes * 64, col);
}

/* silu(gate) * up * prob of a box: `out` is one of the two others. */
__device__ inline void activate_box(const grouped_args &args, const grouped_tile &tile, void *out, void *gate,
                                    void *up, int first_row, int num_rows)
{
    for (int i = threadIdx.x % ATTN_WG; i < num_rows * 8; i += ATTN_WG) {
        int row = first_row + i / 8, unit = i % 8;
        float prob = args.probs ? args.probs[tile.n + row] : 1.0f;
        uint4 g = *reinterpret_cast<const uint4 *>(box_unit(gate, row, unit));
        uint4 u = *reinterpret_cast<const uint4 *>(box_unit(up, row, unit));
        const __nv_bfloat162 *gs = (const __nv_bfloat162 *)&g, *us = (const __nv_bfloat162 *)&u;
        uint32_t y[4];

#pragma unroll
        for (int k = 0; k < 4; k++) {
            float2 a = __bfloat1622float2(gs[k]), b = __bfloat1622float2(us[k]);

            y[k] = attn_pack(__fmul_rn(rk_swiglu(a.x, b.x), prob), __fmul_rn(rk_swiglu(a.y, b.y), prob));
        }
        *reinterpret_cast<uint4 *>(box_unit(out, row, unit)) = make_uint4(y[0], y[1], y[2], y[3]);
    }
}

/* Stores the activation of a tile: warpgroup 0 has gate, 1 has up; both exchange them through their boxes,
 * and each makes every other box of 64 rows, in place. */
template <int N, int TN>
__device__ inline void store_activated(const grouped_maps &maps, const grouped_args &args,
                                       const grouped_shared<TN> &shared, const grouped_tile &tile,
                                       const float (&sum)[N / 2])
{
    int wg = threadIdx.x / ATTN_WG, num_whole = tile.num_n / 64, num_rest = tile.num_n % 64;
    bf16 *own = shared.own_boxes(), *gate = shared.boxes, *up = shared.boxes + 64 * TN;

    wait_for_boxes();
    attn_named_sync(1, GROUPED_CONSUMERS); /* the other warpgroup has read this one's boxes */
    write_rows<N>(own, sum);
    attn_named_sync(1, GROUPED_CONSUMERS); /* gate and up are written */
    for (int i = wg; i * 64 < tile.num_n; i += 2)
        activate_box(args, tile, own, gate, up, i * 64, i < num_whole ? 64 : num_rest);
    publish_boxes();
    if (threadIdx.x % ATTN_WG == 0) {
        for (int i = wg; i < num_whole; i += 2)
            store_box(&maps.c, own + i * GROUPED_BOX, tile.m / 2, tile.n + i * 64, 0);
        commit_boxes();
    }
    if (num_whole % 2 == wg)
        store_rest(args, tile, own, num_whole * 64, tile.m / 2);
}

/* Stores a tile of dw, half of its columns at a time: a warp has 16 rows, a lane two adjacent columns of a
 * row and of the row eight below. */
__device__ inline void store_weight(const grouped_maps &maps, const grouped_args &args,
                                    const grouped_shared<GROUPED_N> &shared, const grouped_tile &tile,
                                    const float (&sum)[GROUPED_N / 2], float)
{
    int wg = threadIdx.x / ATTN_WG, lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane / 4;
    uint8_t *boxes = (uint8_t *)shared.own_boxes();

#pragma unroll
    for (int half = 0; half < 2; half++) {
        wait_for_boxes();
#pragma unroll
        for (int j = 0; j < GROUPED_N / 16; j++) { /* 8 columns, a quarter of a box */
            const float *d = sum + (half * GROUPED_N / 16 + j) * 4;
            uint8_t *box = boxes + j / 4 * 64 * 128;

#pragma unroll
            for (int r = 0; r < 2; r++)
                *reinterpret_cast<float2 *>(box_unit(box, row + 8 * r, j % 4 * 2 + lane % 4 / 2) +
                                            lane % 2 * 8) = make_float2(d[2 * r], d[2 * r + 1]);
        }
        publish_boxes();
        for (int i = 0; threadIdx.x % ATTN_WG == 0 && i < 4; i++) {
            int col = tile.n + (half * 4 + i) * 32;

            if (args.overwrites)
                store_box(&maps.c, boxes + i * 64 * 128, col, tile.m + wg * 64, tile.group);
            else
                add_box(&maps.c, boxes + i * 64 * 128, col, tile.m + wg * 64, tile.group);
        }
        if (threadIdx.x % ATTN_WG == 0)
            commit_boxes();
    }
}

/* ... of 16-bit elements. The existing values are added before the one rounding. */
__device__ inline void store_weight(const grouped_maps &maps, const grouped_args &args,
                                    const grouped_shared<GROUPED_N> &shared, const grouped_tile &tile,
                                    const float (&sum)[GROUPED_N / 2], bf16)
{
    int wg = threadIdx.x / ATTN_WG, lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16;
    int first_row = tile.m + wg * 64;
    bf16 *boxes = shared.own_boxes();
    const bf16 *out = (const bf16 *)args.out + (int64_t)tile.group * args.m * args.ldc;

    wait_for_boxes();
#pragma unroll
    for (int j = 0; j < GROUPED_N / 8; j += 2) {
        uint32_t word[4];

#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *d = sum + 4 * j + 2 * i;
            int m = first_row + row + lane / 4 + i % 2 * 8, n = tile.n + (j + i / 2) * 8 + lane % 4 * 2;
            float2 before = {0.0f, 0.0f};

            if (!args.overwrites && m < args.m && n < args.n)
                before =
                    __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162 *>(out + m * args.ldc + n));
            word[i] = args.overwrites ? attn_pack(d[0], d[1])
                                      : attn_pack(__fadd_rn(d[0], before.x), __fadd_rn(d[1], before.y));
        }
        store_matrices<false>(box_unit(boxes + j / 8 * GROUPED_BOX, row + lane % 16, j % 8 + lane / 16),
                              word[0], word[1], word[2], word[3]);
    }
    publish_boxes();
    for (int i = 0; threadIdx.x % ATTN_WG == 0 && i < 4; i++)
        store_box(&maps.c, boxes + i * GROUPED_BOX, tile.n + i * 64, first_row, tile.group);
    if (threadIdx.x % ATTN_WG == 0)
        commit_boxes();
}

template <int KIND, int N, int TN, class F>
__device__ inline void make_rows(const grouped_maps &maps, const grouped_args &args,
                                 const grouped_shared<TN> &shared, const grouped_tile &tile,
                                 grouped_turn<TN> *turn, const F &meanwhile)
{
    float sum[N / 2] = {};

    sum_tile<KIND, N>(shared, tile, turn, sum, meanwhile);
    if constexpr (KIND == GROUPED_SWIGLU)
        store_activated<N>(maps, args, shared, tile, sum);
    else
        store_rows<N>(maps, args, shared, tile, sum);
}

template <int KIND, class C, int TN, class F>
__device__ inline void make_tile(const grouped_maps &maps, const grouped_args &args,
                                 const grouped_shared<TN> &shared, const grouped_tile &tile,
                                 grouped_turn<TN> *turn, const F &meanwhile)
{
    if constexpr (KIND == GROUPED_WEIGHT) {
        float sum[GROUPED_N / 2] = {};

        sum_tile<KIND, GROUPED_N>(shared, tile, turn, sum, meanwhile);
        store_weight(maps, args, shared, tile, sum, C());
        return;
    }
    if constexpr (KIND != GROUPED_WEIGHT && TN == GROUPED_N) {
        if (tile.num_n > 192)
            return make_rows<KIND, 256>(maps, args, shared, tile, turn, meanwhile);
        if (tile.num_n > 128)
            return make_rows<KIND, 192>(maps, args, shared, tile, turn, meanwhile);
        if (tile.num_n > 64)
            return make_rows<KIND, 128>(maps, args, shared, tile, turn, meanwhile);
    }
    if constexpr (KIND != GROUPED_WEIGHT) {
        if (tile.num_n > 32)
            return make_rows<KIND, 64>(maps, args, shared, tile, turn, meanwhile);
        make_rows<KIND, 32>(maps, args, shared, tile, turn, meanwhile);
    }
}

template <int KIND, class C, int TN>
__device__ inline void consume(const grouped_shared<TN> &shared, const grouped_maps &maps,
                               const grouped_args &args, int rank)
{
    int num_tiles = shared.groups->num_tiles, index = take_index_by_warp(shared.draws, 0);
    grouped_turn<TN> turn = {0, 0};
    grouped_tile tile = {}, next = {};

    if (index < num_tiles)
        tile = find_tile<KIND, TN>(args, *shared.groups, index, rank);
    for (int i = 1; index < num_tiles; i++, tile = next)
        make_tile<KIND, C>(maps, args, shared, tile, &turn, [&] {
            index = take_index_by_warp(shared.draws, i);
            if (index < num_tiles)
                next = find_tile<KIND, TN>(args, *shared.groups, index, rank);
        });
    if (threadIdx.x % ATTN_WG == 0)
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); /* the results are written */
    __syncwarp();
}

#endif

template <int KIND, class C, int TN>
__global__ void __launch_bounds__(GROUPED_THREADS, 1)
    grouped_gemm_kernel(const __grid_constant__ grouped_maps maps, const grouped_args args)
{
#if RK_ATTN_HAS_SM90
    extern __shared__ uint8_t raw[];
    __shared__ grouped_barriers bars;
    __shared__ grouped_draws draws;
    __shared__ grouped_groups groups;
    bf16 *base = (bf16 *)(raw + (-attn_smem(raw) & 1023));
    grouped_shared<TN> shared = {base, base + GROUPED_STAGES<TN> * GROUPED_STAGE<TN>, &bars, &draws, &groups};
    int rank = (int)grouped_rank();

    if (threadIdx.x == 0) {
        for (int i = 0; i < GROUPED_STAGES<TN>; i++) {
            attn_bar_init(&bars.full[i], 1);
            attn_bar_init(&bars.empty[i], GROUPED_CONSUMERS / 32 * GROUPED_CLUSTER);
        }
        for (int i = 0; i < GROUPED_DRAWS; i++) {
            attn_bar_init(&draws.full[i], 1);
            attn_bar_init(&draws.empty[i], GROUPED_READERS);
        }
        attn_bar_init_fence();
    }
    if (threadIdx.x / 32 == 1)
        count_tiles<KIND, TN>(args, &groups);
    __syncthreads(); /* the offsets are read */
    if constexpr (KIND == GROUPED_WEIGHT) {
        sort_groups<TN>(args, &groups);
        __syncthreads(); /* the groups are sorted */
    }
    grouped_cluster_sync(); /* the barriers of both blocks are initialized */
    if (threadIdx.x >= GROUPED_CONSUMERS) {
        attn_give_registers<40>();
        if (threadIdx.x == GROUPED_CONSUMERS && rank == 0)
            produce_first<KIND>(shared, maps, args);
        else if (threadIdx.x == GROUPED_CONSUMERS)
            produce_second<KIND>(shared, maps, args);
        __syncwarp();
    } else {
        attn_take_registers<232>();
        consume<KIND, C>(shared, maps, args, rank);
    }
    grouped_cluster_sync(); /* a block must not exit while the other one signals its barriers */
#endif
}

} // namespace

#endif
