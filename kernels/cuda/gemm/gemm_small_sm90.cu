/* C = A B^T (+ bias) in bf16 for few rows of A (decode steps), compute capability 9.0: it is bound by reading
 * B, and cuBLASLt does not reach this bound where K is large and N small, nor between the kernels of a step.
 * The kernel is in gemm_small_sm90.cuh; this file selects its tile and launches it.
 *
 * Work split   A block computes 64 x TN outputs with one warpgroup of wgmma; two more threads issue the TMA
 *              copies to a ring of stages of A and one of B, of k256 (k64 where the tile is wide). Blocks of
 *              a cluster that share rows of A (those along N) or of B (along M) load boxes in turns and
 *              multicast them: every block reads all of K of its rows of A and B, in total several times the
 *              size of B, which exceeds the bandwidth of L2. Only existing rows of A are loaded; the sums of
 *              other rows are not stored.
 *
 * Numerics     Every output is one ascending chain over K of k16 steps into one f32 accumulator, which gives
 *              the bits of gemm_chain.cu and of cuBLASLt with split-K = 1, for every tile. K is padded with
 *              zeros to whole stages. With K in parts, which strict numerics do not use, each part is
 *              computed by one block of the cluster, and the sums are added in ascending order in f32. Then
 *              the bias and one rounding; for swiglu the roundings of swiglu.cu.
 *
 * Overlap      With b_is_settled (rk_kernels.h) the kernel loads B, until the ring is full, before the
 *              previous kernel has ended. This requires previous kernels that allow the early start
 *              (rk_start_next).
 *
 * Bound        The largest of: the size of B over the memory bandwidth; (64 + TN) K elements per block at 64
 *              bytes per clock and SM; K / 16 dependent steps of 18 + TN / 4 clocks.
 *
 * Measured     H200, 64 rows: us that an operator adds to a step (layer_time), first of this kernel, then of
 *              cuBLASLt (with swiglu as a separate kernel). 1.5B: qkv 3.2 and 5.8, o 4.3 and 5.3, gate_up
 *              with swiglu 15.7 and 18.6 + 2.1, down 14.5 and 16.9, in four parts 12.6 (cuBLASLt with a split
 *              of K 12.4). 7B: 11.9 and 12.0, 9.9 and 9.6, 68 and 73.4 + 3.1, 40 and 78 alone, in four parts
 *              40 (41).
 *
 * Tried        Stages of k128 for narrow tiles: down strict 20 us instead of 16. Two blocks an SM, so that
 *              blocks of the next GEMM can run at the same time: 1 to 7 us more each. Prefetching the rest of
 *              B into L2 as well, by TMA or in the preceding norm: 1 to 5 us more. More stages of B than of
 *              A: the same. Allowing the next kernel to start before this one has waited for the previous
 *              one: the same. mma.sync: 88 us for the 7B's down projection, since every warp reads its
 *              operands from shared memory separately. */
#include "kernels/cuda/gemm/gemm_small.h"
#include "kernels/cuda/gemm/gemm_small_sm90.cuh"

#include <cmath>
#include <cstdio>

namespace
{

/* --- choice of tile --- */

constexpr int RING_BYTES = 208 << 10; /* of A and B together */

template <int TN> cudaError_t launch(cudaStream_t stream, const small_maps &maps, small_args args, int blocks)
{
    constexpr int STAGE_BYTES = stage_bytes(TILE_M, TN) + stage_bytes(TN, TN);
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attributes[2];
    cudaError_t err;

    args.num_stages = RK_MIN(RING_BYTES / STAGE_BYTES, MAX_STAGES);
    config.dynamicSmemBytes = (size_t)args.num_stages * STAGE_BYTES + 1024;
    err = cudaFuncSetAttribute(gemm_small_kernel<TN>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               (int)config.dynamicSmemBytes);
    if (err != cudaSuccess)
        return err;
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = (unsigned)(args.cluster_m * args.cluster_n * args.num_parts);
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(THREADS);
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = 2;
    return cudaLaunchKernelEx(&config, gemm_small_kernel<TN>, maps, args);
}

struct small_tile {
    int n;
    cudaError_t (*launch)(cudaStream_t stream, const small_maps &maps, small_args args, int blocks);
};

const small_tile tiles[] = {
    {8, launch<8>},   {16, launch<16>}, {24, launch<24>}, {32, launch<32>}, {40, launch<40>},
    {48, launch<48>}, {64, launch<64>}, {72, launch<72>}, {96, launch<96>}, {144, launch<144>},
};

constexpr int NUM_TILES = (int)(sizeof(tiles) / sizeof(tiles[0]));
constexpr int NUM_CLUSTERS_M = 2, NUM_CLUSTERS_N = 3, NUM_CLUSTERS = NUM_CLUSTERS_M * NUM_CLUSTERS_N;
constexpr int NUM_CHOICES = NUM_TILES * NUM_CLUSTERS;
static_assert(NUM_CHOICES <= RK_GEMM_SMALL_MAX_CHOICES, "a choice each");

/* Boxes of a part of K: whole stages for every tile size, so that results do not depend on the tile. */
int part_boxes(int num_boxes, int num_parts)
{
    return (int)rk_ceil_div(num_boxes, MAX_BOXES * num_parts) * MAX_BOXES;
}

/* A choice for a GEMM. */
struct small_plan {
    const small_tile *tile;
    int cluster_m, cluster_n, num_parts, box_rows, blocks;
};

small_plan plan_of(int choice, int num_parts, int64_t m, int64_t n)
{
    small_plan plan;

    plan.tile = &tiles[choice / NUM_CLUSTERS];
    plan.cluster_m = 1 + choice % NUM_CLUSTERS_M;
    plan.cluster_n = 1 << choice / NUM_CLUSTERS_M % NUM_CLUSTERS_N;
    plan.num_parts = num_parts;
    plan.box_rows = (int)rk_ceil_div(m, 8 * plan.cluster_m) * 8;
    plan.blocks = (int)rk_ceil_div(n, (int64_t)plan.tile->n * plan.cluster_n) * plan.cluster_n *
                  plan.cluster_m * num_parts;
    return plan;
}

int cluster_size(const small_plan &plan)
{
    return plan.cluster_m * plan.cluster_n * plan.num_parts;
}

/* Whether every GPU can run the cluster, and all its rows of thread blocks have work. */
bool is_possible(const small_plan &plan, int64_t m)
{
    return cluster_size(plan) <= 8 && plan.box_rows <= TILE_M && plan.box_rows * (plan.cluster_m - 1) < m;
}

/* Expected microseconds: the maximum of the bounds in the header and of L2 bandwidth, for an H200, whose 132
 * SMs run at most 29 clusters of four at a time. */
double cost_of(const small_plan &plan, int64_t n, int64_t k, int num_sms)
{
    double part_k = (double)k / plan.num_parts, row_us = part_k * 2 * 1e-6; /* at 1 TB/s */
    double sms = cluster_size(plan) > 2 ? 0.88 * num_sms : num_sms;
    double rounds = ceil(plan.blocks / sms);
    double clocks =
        fmax((plan.box_rows + plan.tile->n) * part_k * 2 / 64, part_k / 16 * (plan.tile->n / 4 + 17));
    double loads = (double)plan.blocks / plan.cluster_n * plan.box_rows +
                   (double)plan.blocks / plan.cluster_m * plan.tile->n;

    return fmax(fmax(rounds * clocks / 1.75e3, (double)n * (double)k * 2e-6 / 4.0), loads * row_us / 5.5);
}

/* TMA requires a stride even for a single row. */
cudaError_t make_map(CUtensorMap *map, rk_tensor_t t, int box_rows)
{
    int64_t stride = t.shape[0] > 1 ? t.row_stride : rk_ceil_div(t.shape[1], 8) * 8;

    return attn_make_map(map, t.data, {t.shape[1], t.shape[0], 1, 1, stride, stride, stride, box_rows});
}

/* Whether there is no swiglu, or one that the kernel supports. */
bool can_activate(const struct rk_gemm_args *args)
{
    return !args->swiglu.data ||
           (!args->bias.data && args->c.shape[1] % 16 == 0 && rk_rows_aligned(args->swiglu));
}

} // namespace

extern "C" bool rk_gemm_small_takes(const struct rk_cuda_device *dev, const struct rk_gemm_args *args)
{
    bool is_bf16 = args->a.dtype == RK_DTYPE_BF16 && args->c.dtype == RK_DTYPE_BF16;
    int64_t m = args->c.shape[0], n = args->c.shape[1], k = args->a.shape[1];

    return dev->has_sm90a && is_bf16 && !args->trans_a && args->trans_b && args->alpha == 1.0f &&
           args->beta == 0.0f && m >= 1 && m <= RK_GEMM_SMALL_MAX_ROWS && n >= 8 && n % 8 == 0 &&
           n <= INT32_MAX / 2 && can_activate(args) && k >= 8 && k % 8 == 0 && k <= INT32_MAX / 2 &&
           rk_rows_aligned(args->a) && rk_rows_aligned(args->b) && rk_rows_aligned(args->c);
}

extern "C" int rk_gemm_small_parts(const struct rk_gemm_args *args)
{
    int64_t n = args->c.shape[1], k = args->a.shape[1];

    return k >= 4096 && k >= 4 * n && !args->swiglu.data ? 4 : 1;
}

extern "C" int rk_gemm_small_choices(const struct rk_cuda_device *dev, const struct rk_gemm_args *args,
                                     int num_parts, int choices[RK_GEMM_SMALL_MAX_CHOICES])
{
    int64_t m = args->c.shape[0], n = args->c.shape[1], k = args->a.shape[1];
    double costs[RK_GEMM_SMALL_MAX_CHOICES];
    int count = 0;

    if (!rk_gemm_small_takes(dev, args))
        return 0;
    for (int choice = 0; choice < NUM_CHOICES; choice++) {
        small_plan plan = plan_of(choice, num_parts, m, n);
        double cost = cost_of(plan, n, k, dev->num_sms);
        int at = count;

        if (!is_possible(plan, m) || (args->swiglu.data && plan.tile->n % 16 != 0))
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
                                               const struct rk_cuda_stream *stream, int choice, int num_parts,
                                               const struct rk_gemm_args *args)
{
    small_plan plan = plan_of(choice, num_parts, args->c.shape[0], args->c.shape[1]);
    bool is_swiglu = args->swiglu.data != NULL;
    small_args small = {};
    small_maps maps;

    small.c = (rk_bf16 *)(is_swiglu ? args->swiglu.data : args->c.data);
    small.bias = (const rk_bf16 *)args->bias.data;
    small.ldc = is_swiglu ? args->swiglu.row_stride : args->c.row_stride;
    small.half = is_swiglu ? (int)args->c.shape[1] / 2 : 0;
    small.m = (int)args->c.shape[0];
    small.n = (int)args->c.shape[1];
    small.num_boxes = (int)rk_ceil_div(args->a.shape[1], 64);
    small.num_parts = num_parts;
    small.part_boxes = part_boxes(small.num_boxes, num_parts);
    small.cluster_m = plan.cluster_m;
    small.cluster_n = plan.cluster_n;
    small.box_rows = plan.box_rows;
    small.b_is_settled = args->b_is_settled;
    RK_TRY(rk_cuda_status(make_map(&maps.a, args->a, plan.box_rows), "tensor map"));
    RK_TRY(rk_cuda_status(make_map(&maps.b, args->b, is_swiglu ? plan.tile->n / 2 : plan.tile->n),
                          "tensor map"));
    RK_TRY(rk_cuda_status(plan.tile->launch(stream->stream, maps, small, plan.blocks), "gemm"));
    return rk_cuda_launched(dev, stream, "gemm");
}

extern "C" const char *rk_gemm_small_name(int choice, char *text, size_t bytes)
{
    small_plan plan = plan_of(choice, 1, 1, 1);

    snprintf(text, bytes, "%d columns, %dx%d", plan.tile->n, plan.cluster_m, plan.cluster_n);
    return text;
}
