/* The kernel of grouped_gemm_sm90.cu, which documents it. */
#ifndef RK_CUDA_GROUPED_GEMM_SM90_CUH
#define RK_CUDA_GROUPED_GEMM_SM90_CUH

#include "kernels/cuda/attention/attn_sm90.cuh"
#include "kernels/cuda/cuda_common.cuh"
#include "kernels/cuda/moe/grouped_boxes.cuh"

namespace
{

/* The dimension that a GEMM sums over. The 128 rows of a tile come from the matrix of the group (A) or, for
 * its gradient, from dy; the 256 columns from the rows of the group (B) or, for the gradient, from the
 * columns of x:
 */
enum grouped_kind {
    GROUPED_OUTPUT, /* y[r][m] = sum_k x[r][k] w[m][k]:   A = w,   B = x;  k contiguous in both */
    GROUPED_INPUT,  /* y[r][m] = sum_k x[r][k] w[k][m]:   A = w^T, B = x */
    GROUPED_WEIGHT, /* dw[m][n] = sum_r dy[r][m] x[r][n]: A = dy^T, B = x^T */
};

constexpr int GROUPED_M = 128, GROUPED_N = 256, GROUPED_K = 64, GROUPED_CLUSTER = 2;
constexpr int GROUPED_NARROW = 64; /* columns of the tiles for groups of few rows */
constexpr int GROUPED_MAX_STAGES = 8;
constexpr int GROUPED_CONSUMERS = 256, GROUPED_THREADS = GROUPED_CONSUMERS + 128;
constexpr int GROUPED_BOX = 64 * GROUPED_K; /* elements of a box of 64 rows or columns */
constexpr int GROUPED_A = GROUPED_M * GROUPED_K;
constexpr int GROUPED_MAX_GROUPS = 1024;

/* Elements and number of the stages of A and B for tiles of TN columns. Narrow tiles are bound by memory:
 * they have more loads in flight. */
template <int TN> constexpr int GROUPED_STAGE = GROUPED_A + TN *GROUPED_K;
template <int TN> constexpr int GROUPED_STAGES = TN == GROUPED_N ? 3 : GROUPED_MAX_STAGES;
template <int TN>
constexpr int GROUPED_SHARED_BYTES =
    (GROUPED_STAGES<TN> * GROUPED_STAGE<TN> + GROUPED_CONSUMERS / 128 * 64 * TN) * 2 + 1024;

struct grouped_args {
    void *out;
    const int *offsets; /* [num_groups + 1] */
    int num_groups;
    int m;           /* rows of operand A: columns of y, or rows of dw */
    int n;           /* GROUPED_WEIGHT: columns of dw */
    int k;           /* summed elements; with GROUPED_WEIGHT the rows of each group */
    int64_t ldc;     /* of a row of the output */
    bool overwrites; /* GROUPED_WEIGHT: = instead of += */
};

struct grouped_maps {
    CUtensorMap a, b, c;
};

/* 128 x up to 256 outputs of a thread block; the two blocks of a cluster have adjacent rows of A and the same
 * B. */
struct grouped_tile {
    int group, m;  /* first row of A */
    int n, num_n;  /* first row of B (GROUPED_WEIGHT: column), and the number used */
    int first_row; /* of the group */
    int num_k;     /* of the sum */
};

#if RK_ATTN_HAS_SM90

/* --- tiles --- */

/* Tiles of a cluster: two thread blocks along A. */
template <int KIND, int TN> __device__ inline int tiles_of_group(const grouped_args &args, int num_rows)
{
    int num_m = (args.m + GROUPED_CLUSTER * GROUPED_M - 1) / (GROUPED_CLUSTER * GROUPED_M);

    if (KIND != GROUPED_WEIGHT)
        return num_m * ((num_rows + TN - 1) / TN);
    return num_rows == 0 && !args.overwrites ? 0 : num_m * ((args.n + TN - 1) / TN);
}

/* The groups, in shared memory. */
struct grouped_groups {
    int begin[GROUPED_MAX_GROUPS + 1]; /* index of each group's first tile, followed by the total */
    int offsets[GROUPED_MAX_GROUPS + 1];
};

/* Called by one warp. */
template <int KIND, int TN>
__device__ inline void count_tiles(const grouped_args &args, grouped_groups *groups)
{
    int lane = threadIdx.x % 32, total = 0;

    for (int first = 0; first < args.num_groups; first += 32) {
        int group = first + lane, count = 0, sum;

        if (group < args.num_groups) {
            int offset = args.offsets[group];

            count = tiles_of_group<KIND, TN>(args, args.offsets[group + 1] - offset);
            groups->offsets[group] = offset;
        }
        sum = count;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            int below = __shfl_up_sync(0xffffffff, sum, step);

            sum += lane >= step ? below : 0;
        }
        if (group < args.num_groups)
            groups->begin[group] = total + sum - count;
        total += __shfl_sync(0xffffffff, sum, 31);
    }
    if (lane == 0) {
        groups->begin[args.num_groups] = total;
        groups->offsets[args.num_groups] = args.offsets[args.num_groups];
    }
}

/* Tile `index` of the cluster, for its block `rank`. */
template <int KIND, int TN>
__device__ inline grouped_tile find_tile(const grouped_args &args, const grouped_groups &groups, int index,
                                         int rank)
{
    int num_m = (args.m + GROUPED_CLUSTER * GROUPED_M - 1) / (GROUPED_CLUSTER * GROUPED_M);
    int low = 0, high = args.num_groups, rest, num_rows;
    grouped_tile tile;

    while (high - low > 1) { /* low begins at or before index, high after it */
        int middle = (low + high) / 2;

        if (groups.begin[middle] <= index)
            low = middle;
        else
            high = middle;
    }
    rest = index - groups.begin[low];
    tile.group = low;
    tile.first_row = groups.offsets[low];
    num_rows = groups.offsets[low + 1] - tile.first_row;
    tile.m = (rest % num_m * GROUPED_CLUSTER + rank) * GROUPED_M;
    tile.n = rest / num_m * TN;
    if (KIND == GROUPED_WEIGHT) {
        tile.num_n = min(args.n - tile.n, TN);
        tile.num_k = num_rows;
    } else {
        tile.num_n = min(num_rows - tile.n, TN);
        tile.n += tile.first_row;
        tile.num_k = args.k;
    }
    return tile;
}

/* --- the ring --- */

struct grouped_barriers {
    uint64_t full[GROUPED_MAX_STAGES], empty[GROUPED_MAX_STAGES];
};

template <int TN> struct grouped_shared {
    bf16 *ring;  /* stages of A, then of B */
    bf16 *boxes; /* results of each consumer warpgroup */
    grouped_barriers *bars;
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
                                  const grouped_tile &tile, int stage, int k, int rank)
{
    uint64_t *bar = &shared.bars->full[stage];
    int num_boxes = (tile.num_n + 63) / 64;
    bf16 *a = shared.a(stage), *b = shared.b(stage);

    attn_bar_expect(bar, (GROUPED_A + num_boxes * GROUPED_BOX) * 2);
    if (KIND == GROUPED_OUTPUT)
        grouped_load(a, &maps.a, bar, k, tile.m, tile.group);
    for (int i = 0; KIND != GROUPED_OUTPUT && i < 2; i++)
        grouped_load(a + i * GROUPED_BOX, &maps.a, bar, tile.m + i * 64,
                     KIND == GROUPED_INPUT ? k : tile.first_row + k, KIND == GROUPED_INPUT ? tile.group : 0);
    for (int i = rank; i < num_boxes; i += GROUPED_CLUSTER) {
        if (KIND == GROUPED_WEIGHT)
            grouped_load_shared(b + i * GROUPED_BOX, &maps.b, bar, tile.n + i * 64, tile.first_row + k);
        else
            grouped_load_shared(b + i * GROUPED_BOX, &maps.b, bar, k, tile.n + i * 64);
    }
}

/* Called by one thread. */
template <int KIND, int TN>
__device__ inline void produce(const grouped_shared<TN> &shared, const grouped_maps &maps,
                               const grouped_args &args, int rank)
{
    int num_tiles = shared.groups->begin[args.num_groups];
    grouped_turn<TN> turn = {0, 0};

    for (int index = blockIdx.x / GROUPED_CLUSTER; index < num_tiles; index += gridDim.x / GROUPED_CLUSTER) {
        grouped_tile tile = find_tile<KIND, TN>(args, *shared.groups, index, rank);

        for (int k = 0; k < tile.num_k; k += GROUPED_K) {
            attn_bar_wait(&shared.bars->empty[turn.stage], turn.parity ^ 1);
            load_stage<KIND, TN>(shared, maps, tile, turn.stage, k, rank);
            turn.next();
        }
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
    constexpr int TA = KIND != GROUPED_OUTPUT, TB = KIND == GROUPED_WEIGHT;
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

        if (at < args.m)
            *reinterpret_cast<uint4 *>((bf16 *)args.out + (tile.n + r) * args.ldc + at) =
                *reinterpret_cast<const uint4 *>(box_unit(boxes, r, lane % 8));
    }
}

/* Stores a tile of y: a warp has 16 of its warpgroup's 64 columns of all rows. */
template <int N, int TN>
__device__ inline void store_rows(const grouped_maps &maps, const grouped_args &args,
                                  const grouped_shared<TN> &shared, const grouped_tile &tile,
                                  const float (&sum)[N / 2])
{
    int wg = threadIdx.x / ATTN_WG, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    int col = tile.m + wg * 64, num_boxes = tile.num_n / 64;
    bf16 *boxes = shared.own_boxes();

    wait_for_boxes();
#pragma unroll
    for (int n = 0; n < N; n += 16) {
        const float *d = sum + n / 2;

        store_matrices<true>(box_unit(boxes, n + lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2),
                             attn_pack(d[0], d[1]), attn_pack(d[2], d[3]), attn_pack(d[4], d[5]),
                             attn_pack(d[6], d[7]));
    }
    publish_boxes();
    if (threadIdx.x % ATTN_WG == 0) {
        for (int i = 0; i < num_boxes; i++)
            store_box(&maps.c, boxes + i * GROUPED_BOX, col, tile.n + i * 64, 0);
        commit_boxes();
    }
    store_rest(args, tile, boxes, num_boxes * 64, col);
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
    int num_tiles = shared.groups->begin[args.num_groups], step = gridDim.x / GROUPED_CLUSTER;
    int index = blockIdx.x / GROUPED_CLUSTER;
    grouped_turn<TN> turn = {0, 0};
    grouped_tile tile = {}, next = {};

    if (index < num_tiles)
        tile = find_tile<KIND, TN>(args, *shared.groups, index, rank);
    for (; index < num_tiles; index += step, tile = next)
        make_tile<KIND, C>(maps, args, shared, tile, &turn, [&] {
            if (index + step < num_tiles)
                next = find_tile<KIND, TN>(args, *shared.groups, index + step, rank);
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
    __shared__ grouped_groups groups;
    bf16 *base = (bf16 *)(raw + (-attn_smem(raw) & 1023));
    grouped_shared<TN> shared = {base, base + GROUPED_STAGES<TN> * GROUPED_STAGE<TN>, &bars, &groups};
    int rank = (int)grouped_rank();

    if (threadIdx.x == 0) {
        for (int i = 0; i < GROUPED_STAGES<TN>; i++) {
            attn_bar_init(&bars.full[i], 1);
            attn_bar_init(&bars.empty[i], GROUPED_CONSUMERS / 32 * GROUPED_CLUSTER);
        }
        attn_bar_init_fence();
    }
    if (threadIdx.x / 32 == 1)
        count_tiles<KIND, TN>(args, &groups);
    __syncthreads();        /* the tiles are counted */
    grouped_cluster_sync(); /* the barriers of both blocks are initialized */
    if (threadIdx.x >= GROUPED_CONSUMERS) {
        attn_give_registers<40>();
        if (threadIdx.x == GROUPED_CONSUMERS)
            produce<KIND>(shared, maps, args, rank);
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
