/* C = A B^T (+ bias) in bf16 for few rows of A (decode steps), compute capability 9.0: what bounds it is the
 * reading of B, and without a split of K the library leaves much of that on the table where K is long and N
 * short.
 *
 * Work split   A block makes 64 x TN outputs with one warpgroup of wgmma; a fifth warp has the copy engine
 *              fill a ring of stages of k256. Blocks of a cluster that share rows of A (those along N) or of
 *              B (along M) load a part of each stage and multicast it: every block takes in all of K of its
 *              rows of A and B, which is several times B in all and more than L2 could give. Of A only the
 *              rows that there are get loaded; the sums of the others are garbage that nobody stores.
 *
 * Numerics     Every output is one ascending chain over K of k16 steps into one f32 accumulator, which are
 * the bits of gemm_chain.cu and of the library with split-K = 1, whatever the tile. K is padded with
 * zeros to whole stages. Then the bias and one rounding.
 *
 * Bound        The largest of: B by the bandwidth of memory; (64 + TN) K elements a block by the 64 bytes a
 *              clock that an SM takes in; K / 16 dependent steps of 49 clocks.
 *
 * Measured     H200, 64 rows, N = 3584, K = 18944 (down projection of a 7B): 46 us; the library 78, and with
 *              a split of K 41. N = 1536, K = 8960: 17, 16 and 12 us. For a shorter K the library is as fast.
 *
 * Tried        mma.sync: 88 us, since every warp reads its operands from shared memory for itself.
 *
 * Overlap      The first stages of B are brought into L2 before the kernel in front of this one has ended. No
 *              further, since that kernel may have made B. */
#include "kernels/cuda/attn_sm90.cuh"
#include "kernels/cuda/cuda_common.cuh"
#include "kernels/cuda/gemm_small.h"

#include <cmath>
#include <cstdio>

namespace
{

constexpr int MAX_STAGES = 8, BOXES = 4, STAGE_STEPS = 4 * BOXES, TILE_M = 64;
constexpr int CONSUMER_WARPS = 4, THREADS = CONSUMER_WARPS * 32 + 32;
constexpr int A_BYTES = TILE_M * 128; /* of a box */

constexpr int stage_bytes(int tile_n)
{
    return (A_BYTES + tile_n * 128) * BOXES;
}

struct small_args {
    rk_bf16 *c;
    const rk_bf16 *bias; /* may be NULL */
    int64_t ldc;
    int m, n, num_stages_k; /* stages over all of K */
    int num_stages;         /* of the ring */
    int cluster_m, cluster_n;
    int box_rows; /* rows of A that a block loads and makes */
};

struct small_maps {
    CUtensorMap a, b;
};

struct small_barriers {
    uint64_t full[MAX_STAGES], empty[MAX_STAGES];
};

#if RK_ATTN_HAS_SM90

/* --- wgmma: sum[64, TN] += A B^T, one k16 step, both in shared memory with k along the rows --- */

template <int TN> struct small_mma;

#define R4(i)  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define R8(i)  R4(i), R4(i + 4)
#define R16(i) R8(i), R8(i + 8)
#define L4     "%0, %1, %2, %3"
#define L8     L4 ", %4, %5, %6, %7"
#define L12    L8 ", %8, %9, %10, %11"
#define L16    L12 ", %12, %13, %14, %15"
#define L20    L16 ", %16, %17, %18, %19"
#define L24    L20 ", %20, %21, %22, %23"
#define L32    L24 ", %24, %25, %26, %27, %28, %29, %30, %31"

/* a and b: the numbers of the operands behind those of d. */
#define SMALL_MMA(tn, list, a_at, b_at, ...)                                                      \
    template <> struct small_mma<tn> {                                                            \
        static __device__ inline void add(float (&d)[tn / 2], uint64_t a, uint64_t b)             \
        {                                                                                         \
            asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0;\n"                                 \
                         "wgmma.mma_async.sync.aligned.m64n" #tn "k16.f32.bf16.bf16 {" list "}, " \
                         "%" #a_at ", %" #b_at ", p, 1, 1, 0, 0; }"                               \
                         : __VA_ARGS__                                                            \
                         : "l"(a), "l"(b));                                                       \
        }                                                                                         \
    }

SMALL_MMA(8, L4, 4, 5, R4(0));
SMALL_MMA(16, L8, 8, 9, R8(0));
SMALL_MMA(24, L12, 12, 13, R8(0), R4(8));
SMALL_MMA(32, L16, 16, 17, R16(0));
SMALL_MMA(40, L20, 20, 21, R16(0), R4(16));
SMALL_MMA(48, L24, 24, 25, R16(0), R8(16));
SMALL_MMA(64, L32, 32, 33, R16(0), R16(16));

#undef SMALL_MMA
#undef L32
#undef L24
#undef L20
#undef L16
#undef L12
#undef L8
#undef L4
#undef R16
#undef R8
#undef R4

/* --- clusters --- */

__device__ inline uint32_t cluster_rank()
{
    uint32_t rank;

    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* All threads of all blocks of the cluster. Orders no memory but that of attn_bar_init_fence(). */
__device__ inline void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

/* What was read of the stage before has been read by the tensor cores: no fence, which would take a
 * microsecond. */
__device__ inline void remote_arrive(uint64_t *bar, uint32_t rank)
{
    asm volatile("{ .reg .b32 at; mapa.shared::cluster.u32 at, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [at]; }" ::"r"(attn_smem(bar)),
                 "r"(rank)
                 : "memory");
}

/* The box of 64 columns at k and all rows from `row`, to the same place of every block in `blocks`. */
__device__ inline void load_box(void *dst, const CUtensorMap *map, uint64_t *bar, int k, int row,
                                uint32_t blocks)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%3, %4, %5, %5}], [%2], %6;" ::"r"(attn_smem(dst)),
                 "l"(map), "r"(attn_smem(bar)), "r"(k), "r"(row), "r"(0), "h"((uint16_t)blocks)
                 : "memory");
}

/* The same box into L2 only. */
__device__ inline void prefetch_box(const CUtensorMap *map, int k, int row)
{
    asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %3}];" ::"l"(map), "r"(k),
                 "r"(row), "r"(0)
                 : "memory");
}

/* Where a block stands in its cluster. */
struct small_place {
    int m, n;         /* along M and N */
    uint32_t a, b;    /* blocks that share its rows of A; of B */
    int m_row, n_row; /* first rows of A and B */
};

__device__ inline small_place find_place(const small_args &args, int tile_n)
{
    int rank = (int)cluster_rank(), size = args.cluster_m * args.cluster_n;
    small_place place;

    place.m = rank % args.cluster_m;
    place.n = rank / args.cluster_m;
    place.a = place.b = 0;
    for (int i = 0; i < args.cluster_n; i++)
        place.a |= 1u << (place.m + i * args.cluster_m);
    for (int i = 0; i < args.cluster_m; i++)
        place.b |= 1u << (i + place.n * args.cluster_m);
    place.m_row = place.m * args.box_rows;
    place.n_row = ((int)blockIdx.x / size * args.cluster_n + place.n) * tile_n;
    return place;
}

/* --- the ring --- */

template <int TN> struct small_ring {
    static constexpr int B_BYTES = TN * 128, BYTES = stage_bytes(TN);

    uint8_t *base;
    small_barriers *bars;
    int num_stages;

    /* Boxes of A come first. */
    __device__ inline uint8_t *a(int stage, int box) const
    {
        return base + stage * BYTES + box * A_BYTES;
    }
    __device__ inline uint8_t *b(int stage, int box) const
    {
        return base + stage * BYTES + BOXES * A_BYTES + box * B_BYTES;
    }
};

/* A stage of the ring, and the parity of its barriers. */
struct small_turn {
    int stage, parity;

    __device__ inline void next(int num_stages)
    {
        stage = stage + 1 == num_stages ? 0 : stage + 1;
        parity ^= stage == 0;
    }
};

/* What a block loads from, and its share of it. */
struct small_source {
    const small_maps &maps;
    const small_args &args;
    const small_place &place;
};

/* This block's share of the boxes of stage `s` of K, into a stage of the ring that is empty in all blocks
 * which take a part of it. */
template <int TN>
__device__ inline void load_stage(const small_ring<TN> &ring, const small_source &from, int s, int stage)
{
    uint64_t *bar = &ring.bars->full[stage];

    attn_bar_expect(bar, (from.args.box_rows + TN) * 128 * BOXES);
    for (int box = from.place.m; box < BOXES; box += from.args.cluster_m)
        load_box(ring.b(stage, box), &from.maps.b, bar, (s * BOXES + box) * 64, from.place.n_row,
                 from.place.b);
    for (int box = from.place.n; box < BOXES; box += from.args.cluster_n)
        load_box(ring.a(stage, box), &from.maps.a, bar, (s * BOXES + box) * 64, from.place.m_row,
                 from.place.a);
}

/* By one thread. At the end it waits until every stage has been read: nobody tells this block's barriers
 * anything any more, and the block may go. */
template <int TN> __device__ inline void produce(const small_ring<TN> &ring, const small_source &from)
{
    int num_stages_k = from.args.num_stages_k, first = min(ring.num_stages, num_stages_k);
    small_turn turn = {0, 0};

    for (int i = from.place.m; i < first * BOXES; i += from.args.cluster_m)
        prefetch_box(&from.maps.b, i * 64, from.place.n_row);
    rk_wait_for_stream();
    for (int s = 0; s < first; s++)
        load_stage(ring, from, s, s);
    for (int s = first; s < num_stages_k; s++) {
        attn_bar_wait(&ring.bars->empty[turn.stage], turn.parity);
        load_stage(ring, from, s, turn.stage);
        turn.next(ring.num_stages);
    }
    for (int s = 0; s < first; s++) {
        attn_bar_wait(&ring.bars->empty[turn.stage], turn.parity);
        turn.next(first);
    }
}

/* --- the products --- */

/* Step `step` of a stage, of which `a` and `b` describe the first. */
template <int TN> __device__ inline void add_step(float (&sum)[TN / 2], uint64_t a, uint64_t b, int step)
{
    small_mma<TN>::add(sum, attn_desc_step(a, step, TILE_M), attn_desc_step(b, step, TN));
}

/* The rank that this lane tells when a stage may be filled again: those that load into this block, one lane
 * each; -1: no more. */
__device__ inline int rank_to_tell(const small_place &place)
{
    uint32_t blocks = place.a | place.b;
    int lane = attn_lane();

    return lane < __popc(blocks) ? (int)__fns(blocks, 0, lane + 1) : -1;
}

/* A stage's products are on their way while the next one is waited for. */
template <int TN>
__device__ inline void consume(const small_ring<TN> &ring, int num_stages_k, int told, float (&sum)[TN / 2])
{
    small_turn turn = {0, 0};
    int before = 0; /* the stage before */

    for (int s = 0; s < num_stages_k; s++) {
        uint64_t a = attn_desc_rows((const bf16 *)ring.a(turn.stage, 0), 0);
        uint64_t b = attn_desc_rows((const bf16 *)ring.b(turn.stage, 0), 0);

        attn_bar_wait(&ring.bars->full[turn.stage], turn.parity);
        attn_wgmma_fence();
#pragma unroll
        for (int step = 0; step < STAGE_STEPS; step++)
            add_step<TN>(sum, a, b, step);
        attn_wgmma_commit();
        attn_wgmma_wait<1>();
        if (s > 0 && told >= 0)
            remote_arrive(&ring.bars->empty[before], (uint32_t)told);
        before = turn.stage;
        turn.next(ring.num_stages);
    }
    attn_wgmma_wait<0>();
    attn_pin(sum);
    if (told >= 0)
        remote_arrive(&ring.bars->empty[before], (uint32_t)told);
}

template <int TN>
__device__ inline void store(const small_args &args, const small_place &place, const float (&sum)[TN / 2])
{
    int lane = attn_lane(), own_row = threadIdx.x / 32 * 16 + lane / 4;

#pragma unroll
    for (int j = 0; j < TN / 8; j++) {
        int col = place.n_row + j * 8 + lane % 4 * 2;
        float bias[2] = {0.0f, 0.0f};

        if (col >= args.n)
            continue;
        if (args.bias) {
            bias[0] = __bfloat162float(args.bias[col]);
            bias[1] = __bfloat162float(args.bias[col + 1]);
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float low = sum[4 * j + 2 * r], high = sum[4 * j + 2 * r + 1];
            int row = place.m_row + own_row + 8 * r;

            if (args.bias) { /* not 0.0f: -0 + 0 is 0 */
                low += bias[0];
                high += bias[1];
            }
            if (own_row + 8 * r < args.box_rows && row < args.m)
                *reinterpret_cast<uint32_t *>(args.c + row * args.ldc + col) = attn_pack(low, high);
        }
    }
}

#endif

template <int TN>
__global__ void __launch_bounds__(THREADS)
    gemm_small_kernel(const __grid_constant__ small_maps maps, const small_args args)
{
#if RK_ATTN_HAS_SM90
    extern __shared__ uint8_t raw[];
    __shared__ small_barriers bars;
    small_place place = find_place(args, TN);
    small_ring<TN> ring = {raw + (-attn_smem(raw) & 1023), &bars, args.num_stages};

    if (threadIdx.x == 0) {
        for (int i = 0; i < args.num_stages; i++) {
            attn_bar_init(&bars.full[i], 1);
            attn_bar_init(&bars.empty[i], CONSUMER_WARPS * __popc(place.a | place.b));
        }
        attn_bar_init_fence();
    }
    cluster_sync(); /* the barriers of all blocks are ready */
    if (threadIdx.x == CONSUMER_WARPS * 32) {
        produce(ring, small_source{maps, args, place});
    } else if (threadIdx.x < CONSUMER_WARPS * 32) {
        float sum[TN / 2] = {};

        consume(ring, args.num_stages_k, rank_to_tell(place), sum);
        store<TN>(args, place, sum);
    }
#endif
}

/* --- choice of tile --- */

template <int TN>
cudaError_t launch(cudaStream_t stream, const small_maps &maps, const small_args &args, int blocks)
{
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attributes[2];
    int smem = args.num_stages * stage_bytes(TN) + 1024;
    cudaError_t err =
        cudaFuncSetAttribute(gemm_small_kernel<TN>, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);

    if (err != cudaSuccess)
        return err;
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = (unsigned)(args.cluster_m * args.cluster_n);
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = (size_t)smem;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = 2;
    return cudaLaunchKernelEx(&config, gemm_small_kernel<TN>, maps, args);
}

struct small_tile {
    int n;
    cudaError_t (*launch)(cudaStream_t stream, const small_maps &maps, const small_args &args, int blocks);
};

const small_tile tiles[] = {
    {8, launch<8>},   {16, launch<16>}, {24, launch<24>}, {32, launch<32>},
    {40, launch<40>}, {48, launch<48>}, {64, launch<64>},
};

constexpr int NUM_TILES = (int)(sizeof(tiles) / sizeof(tiles[0]));
constexpr int NUM_CLUSTERS_M = 2, NUM_CLUSTERS_N = 3, NUM_CLUSTERS = NUM_CLUSTERS_M * NUM_CLUSTERS_N;
constexpr int NUM_CHOICES = NUM_TILES * NUM_CLUSTERS, RING_BYTES = 208 << 10;
static_assert(NUM_CHOICES <= RK_GEMM_SMALL_MAX_CHOICES, "a choice each");

/* A choice for a product. */
struct small_plan {
    const small_tile *tile;
    int cluster_m, cluster_n, box_rows, blocks, num_stages;
};

small_plan plan_of(int choice, int64_t m, int64_t n)
{
    small_plan plan;

    plan.tile = &tiles[choice / NUM_CLUSTERS];
    plan.cluster_m = 1 + choice % NUM_CLUSTERS_M;
    plan.cluster_n = 1 << choice / NUM_CLUSTERS_M % NUM_CLUSTERS_N;
    plan.box_rows = (int)rk_ceil_div(m, 8 * plan.cluster_m) * 8;
    plan.blocks =
        (int)rk_ceil_div(n, (int64_t)plan.tile->n * plan.cluster_n) * plan.cluster_n * plan.cluster_m;
    plan.num_stages = RK_MIN(RING_BYTES / stage_bytes(plan.tile->n), MAX_STAGES);
    return plan;
}

/* Microseconds expected: the largest of the bounds of the header, and what L2 has to give, for an H200, whose
 * 132 SMs take no more than 29 clusters of four at a time. */
double cost_of(const small_plan &plan, int64_t n, int64_t k, int num_sms)
{
    double row_us = (double)k * 2 * 1e-6; /* times bytes a second in TB */
    double sms = plan.cluster_m * plan.cluster_n > 2 ? 0.88 * num_sms : num_sms;
    double rounds = ceil(plan.blocks / sms);
    double clocks = fmax((plan.box_rows + plan.tile->n) * (double)k * 2 / 64, (double)k / 16 * 49);
    double loads = (double)plan.blocks / plan.cluster_n * plan.box_rows +
                   (double)plan.blocks / plan.cluster_m * plan.tile->n;

    return fmax(fmax(rounds * clocks / 1.75e3, (double)n * row_us / 4.0), loads * row_us / 5.5);
}

/* The copy engine wants a stride even where there is one row. */
cudaError_t make_map(CUtensorMap *map, rk_tensor_t t, int box_rows)
{
    int64_t stride = t.shape[0] > 1 ? t.row_stride : rk_ceil_div(t.shape[1], 8) * 8;

    return attn_make_map(map, t.data, {t.shape[1], t.shape[0], 1, 1, stride, stride, stride, box_rows});
}

} // namespace

extern "C" bool rk_gemm_small_takes(const struct rk_cuda_device *dev, const struct rk_gemm_args *args)
{
    bool is_bf16 = args->a.dtype == RK_DTYPE_BF16 && args->c.dtype == RK_DTYPE_BF16;
    int64_t m = args->c.shape[0], n = args->c.shape[1], k = args->a.shape[1];

    return dev->has_sm90a && is_bf16 && !args->trans_a && args->trans_b && args->alpha == 1.0f &&
           args->beta == 0.0f && m >= 1 && m <= RK_GEMM_SMALL_MAX_ROWS && n >= 8 && n % 8 == 0 &&
           n <= INT32_MAX / 2 && k >= 8 && k % 8 == 0 && k <= INT32_MAX / 2 && rk_rows_aligned(args->a) &&
           rk_rows_aligned(args->b) && rk_rows_aligned(args->c);
}

extern "C" int rk_gemm_small_choices(const struct rk_cuda_device *dev, const struct rk_gemm_args *args,
                                     int choices[RK_GEMM_SMALL_MAX_CHOICES])
{
    int64_t m = args->c.shape[0], n = args->c.shape[1], k = args->a.shape[1];
    double costs[RK_GEMM_SMALL_MAX_CHOICES];
    int count = 0;

    if (!rk_gemm_small_takes(dev, args))
        return 0;
    for (int choice = 0; choice < NUM_CHOICES; choice++) {
        small_plan plan = plan_of(choice, m, n);
        double cost = cost_of(plan, n, k, dev->num_sms);
        int at = count;

        if (plan.box_rows > TILE_M || plan.box_rows * (plan.cluster_m - 1) >= m)
            continue;
        for (; at > 0 && costs[at - 1] > cost; at--) {
            costs[at] = costs[at - 1];
            choices[at] = choices[at - 1];
        }
        costs[at] = cost;
        choices[at] = choice;
        count++;
    }
    return count;
}

extern "C" struct rk_status *rk_gemm_small_run(const struct rk_cuda_device *dev,
                                               const struct rk_cuda_stream *stream, int choice,
                                               const struct rk_gemm_args *args)
{
    small_plan plan = plan_of(choice, args->c.shape[0], args->c.shape[1]);
    small_args small = {};
    small_maps maps;

    small.c = (rk_bf16 *)args->c.data;
    small.bias = (const rk_bf16 *)args->bias.data;
    small.ldc = args->c.row_stride;
    small.m = (int)args->c.shape[0];
    small.n = (int)args->c.shape[1];
    small.num_stages_k = (int)rk_ceil_div(args->a.shape[1], STAGE_STEPS * 16);
    small.num_stages = plan.num_stages;
    small.cluster_m = plan.cluster_m;
    small.cluster_n = plan.cluster_n;
    small.box_rows = plan.box_rows;
    RK_TRY(rk_cuda_status(make_map(&maps.a, args->a, plan.box_rows), "tensor map"));
    RK_TRY(rk_cuda_status(make_map(&maps.b, args->b, plan.tile->n), "tensor map"));
    RK_TRY(rk_cuda_status(plan.tile->launch(stream->stream, maps, small, plan.blocks), "gemm"));
    return rk_cuda_launched(dev, stream, "gemm");
}

extern "C" const char *rk_gemm_small_name(int choice, char *text, size_t bytes)
{
    small_plan plan = plan_of(choice, 1, 1);

    snprintf(text, bytes, "%d columns, %dx%d", plan.tile->n, plan.cluster_m, plan.cluster_n);
    return text;
}
