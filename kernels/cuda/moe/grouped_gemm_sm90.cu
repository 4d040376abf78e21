/* GEMMs of groups of rows with a separate matrix per group, in bf16, compute capability 9.0. The kernel is in
 * grouped_gemm_sm90.cuh; this file selects its tiles and launches it.
 *
 * Work split   One block per SM, in clusters of two; a cluster that is free takes the next tile
 *              (grouped_tiles.cuh), so that groups of unequal sizes keep all of them busy. A tile is 128 of
 *              the matrix's rows (of its columns for an input gradient) by up to 256 rows of the group; a
 *              group's last tile is as narrow as its remaining rows, in steps of 64 (32 at the end), and the
 *              groups' sizes are read on the device. Two warpgroups of wgmma have 64 of the 128 each; one
 *              thread issues the TMA copies to a ring of stages of k64. The blocks of a cluster have the same
 *              rows of the group, of which each loads half and multicasts it. Results go to shared memory,
 *              transposed where they are rows of y, and TMA writes them while the next tile is computed. With
 *              few rows per group tiles of 64 with more stages are used, since the kernel is then bound by
 *              memory latency.
 *
 * Numerics     Every output is one ascending chain of k16 steps into one f32 accumulator, the bits of
 *              gemm_chain.cuh, for every tile. For a weight gradient the chain runs over the group's rows;
 *              the rest of a stage after them is zeroed first, since it belongs to another group or is
 *              uninitialized.
 *
 * Bound        989 TFLOP/s at 1,830 MHz; in a long run 1,400 to 1,600 MHz at 700 W. A weight gradient that is
 *              accumulated in f32 moves 8 bytes per element: 0.8 ms for the sizes below.
 *
 * Measured     H200, 128 groups of 512 rows, 2048 to 2 x 768 and back, TFLOP/s: up 677, down 611
 *              (torch._grouped_mm on the same machine 629 and 540), gradient of the up matrix in bf16 557
 *              (518), in f32 424, accumulated 270. Sizes with a lognormal distribution (the largest 6.1
 *              times the mean), of that: up 0.91, down 0.94, gradient 0.92. 4 rows per group: the matrices
 *              are read at 4.13 TB/s (up) and 4.06 (down).
 *              Gradients in f32 without stores: 600, without sums: 795 (3.3 TB/s). Operands, their reads by
 *              wgmma and results together need 10,240 cycles of shared memory for 8,192 of the tensor cores.
 *
 * Tried        Writing results from registers: 458 instead of 523 for down, 311 instead of 489 for the
 *              gradient. Four stages without shared memory for results: the same for up. Tiles of about equal
 *              width within a group: the same for lognormal sizes. Every n-th tile for each cluster: up 677,
 *              down 629, gradient in bf16 583, but 0.87, 0.93 and 0.79 of it for lognormal sizes; groups or
 *              last tiles with more rows first: 0.83, 0.84 and 0.91. A fence before the signal that an index
 *              is there: up 663, down 589, gradient in bf16 508. A thread that stores the boxes of a
 *              warpgroup one by one: down 620, gradient in bf16 570, in f32 the same. Tiles of 192 columns
 *              whose f32 results are stored at once: 395. Prefetching operands to L2, 3 to 12 stages ahead:
 *              up 570, gradient in f32 at most 418. */
#include "kernels/cuda/moe/grouped_gemm.h"
#include "kernels/cuda/moe/grouped_gemm_sm90.cuh"

namespace
{

template <int KIND, class C, int TN>
cudaError_t launch(const struct rk_cuda_device *dev, cudaStream_t stream, const grouped_maps &maps,
                   const grouped_args &args)
{
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute cluster;
    cudaError_t err =
        cudaFuncSetAttribute(grouped_gemm_kernel<KIND, C, TN>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             GROUPED_SHARED_BYTES<TN>);

    if (err != cudaSuccess)
        return err;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = GROUPED_CLUSTER;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    config.gridDim = dim3((unsigned)(dev->num_sms / GROUPED_CLUSTER * GROUPED_CLUSTER));
    config.blockDim = dim3(GROUPED_THREADS);
    config.dynamicSmemBytes = GROUPED_SHARED_BYTES<TN>;
    config.stream = stream;
    config.attrs = &cluster;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, grouped_gemm_kernel<KIND, C, TN>, maps, args);
}

/* Results do not depend on the choice of tile. */
template <int KIND>
cudaError_t launch_rows(const struct rk_cuda_device *dev, cudaStream_t stream, const grouped_maps &maps,
                        const grouped_args &args, int64_t num_rows)
{
    if (num_rows <= (int64_t)args.num_groups * GROUPED_NARROW)
        return launch<KIND, bf16, GROUPED_NARROW>(dev, stream, maps, args);
    return launch<KIND, bf16, GROUPED_N>(dev, stream, maps, args);
}

cudaError_t launch_kind(const struct rk_cuda_device *dev, cudaStream_t stream, const grouped_maps &maps,
                        const grouped_args &args, grouped_kind kind, int64_t num_rows)
{
    if (kind == GROUPED_SWIGLU)
        return launch_rows<GROUPED_SWIGLU>(dev, stream, maps, args, num_rows);
    if (kind == GROUPED_OUTPUT)
        return launch_rows<GROUPED_OUTPUT>(dev, stream, maps, args, num_rows);
    return launch_rows<GROUPED_INPUT>(dev, stream, maps, args, num_rows);
}

grouped_kind kind_of(const struct rk_cuda_device *dev, const struct rk_grouped_gemm_args *args)
{
    if (rk_grouped_gemm_takes_swiglu(dev, args))
        return GROUPED_SWIGLU;
    return args->trans_w ? GROUPED_OUTPUT : GROUPED_INPUT;
}

int64_t likely_rows_of(const struct rk_grouped_gemm_args *args)
{
    return args->likely_rows > 0 ? args->likely_rows : args->x.shape[0];
}

/* Consecutive matrices [num_matrices, rows, cols], in boxes of box_rows rows. */
struct matrices {
    int64_t cols, rows, stride, num_matrices;
    int box_rows;
    bool is_f32;
};

cudaError_t make_map(CUtensorMap *map, const void *data, const matrices &m)
{
    return attn_make_map(map, data,
                         {m.cols, m.rows, m.num_matrices, 1, m.stride, m.stride * m.rows,
                          m.stride * m.rows * m.num_matrices, m.box_rows, m.is_f32});
}

constexpr size_t COUNTER_BYTES = RK_CUDA_COUNTERS * sizeof(int);

struct rk_status *find_counters(struct rk_cuda_stream *stream, int **counters)
{
    RK_TRY(rk_cuda_reserve(stream, &stream->splits, COUNTER_BYTES));
    *counters = (int *)stream->splits.data;
    return NULL;
}

} // namespace

extern "C" struct rk_workspace rk_cuda_workspace_grouped_gemm(const void *dev,
                                                              const struct rk_grouped_gemm_args *args)
{
    (void)dev;
    (void)args;
    return {0, COUNTER_BYTES};
}

extern "C" struct rk_workspace rk_cuda_workspace_grouped_gemm_wgrad(
    const void *dev, const struct rk_grouped_gemm_wgrad_args *args)
{
    (void)dev;
    (void)args;
    return {0, COUNTER_BYTES};
}

extern "C" bool rk_grouped_gemm_takes(const struct rk_cuda_device *dev,
                                      const struct rk_grouped_gemm_args *args)
{
    int64_t n = args->y.shape[1], k = args->x.shape[1];

    return dev->has_sm90a && args->x.dtype == RK_DTYPE_BF16 && n % 8 == 0 && k > 0 && k % 8 == 0 &&
           n <= INT32_MAX / 2 && k <= INT32_MAX / 2 && rk_rows_aligned(args->x) && rk_rows_aligned(args->y) &&
           rk_aligned16(args->w.data);
}

extern "C" bool rk_grouped_gemm_takes_wgrad(const struct rk_cuda_device *dev,
                                            const struct rk_grouped_gemm_wgrad_args *args)
{
    int64_t n = args->dy.shape[1], k = args->x.shape[1];

    return dev->has_sm90a && args->x.dtype == RK_DTYPE_BF16 && n % 8 == 0 && k % 8 == 0 &&
           args->x.shape[0] > 0 && n <= INT32_MAX / 2 && k <= INT32_MAX / 2 && rk_rows_aligned(args->x) &&
           rk_rows_aligned(args->dy) && rk_aligned16(args->dw.data);
}

extern "C" bool rk_grouped_gemm_takes_swiglu(const struct rk_cuda_device *dev,
                                             const struct rk_grouped_gemm_args *args)
{
    return args->swiglu.data && args->trans_w && rk_grouped_gemm_takes(dev, args) &&
           args->swiglu.shape[1] % 8 == 0 && rk_rows_aligned(args->swiglu);
}

extern "C" struct rk_status *rk_grouped_gemm_run(const struct rk_cuda_device *dev,
                                                 struct rk_cuda_stream *stream,
                                                 const struct rk_grouped_gemm_args *args)
{
    grouped_kind kind = kind_of(dev, args);
    rk_tensor_t out = kind == GROUPED_SWIGLU ? args->swiglu : args->y;
    int64_t rows = args->x.shape[0], n = args->y.shape[1], k = args->x.shape[1],
            num_groups = args->w.shape[0], num_cols = out.shape[1];
    int box_rows = kind == GROUPED_OUTPUT ? GROUPED_M : 64;
    grouped_args grouped = {};
    grouped_maps maps;

    grouped.out = out.data;
    grouped.probs = (const float *)args->probs.data;
    grouped.offsets = (const int *)args->offsets.data;
    grouped.num_groups = (int)num_groups;
    grouped.m = (int)(kind == GROUPED_SWIGLU ? rk_ceil_div(num_cols, 64) * GROUPED_M : n);
    grouped.num_cols = (int)num_cols;
    grouped.k = (int)k;
    grouped.ldc = out.row_stride;
    RK_TRY(find_counters(stream, &grouped.counters));
    RK_TRY(rk_cuda_status(args->trans_w
                              ? make_map(&maps.a, args->w.data, {k, n, k, num_groups, box_rows, false})
                              : make_map(&maps.a, args->w.data, {n, k, n, num_groups, box_rows, false}),
                          "tensor map"));
    RK_TRY(rk_cuda_status(make_map(&maps.b, args->x.data, {k, rows, args->x.row_stride, 1, 64, false}),
                          "tensor map"));
    RK_TRY(rk_cuda_status(make_map(&maps.c, out.data, {num_cols, rows, out.row_stride, 1, 64, false}),
                          "tensor map"));
    RK_TRY(rk_cuda_status(launch_kind(dev, stream->stream, maps, grouped, kind, likely_rows_of(args)),
                          "grouped_gemm"));
    return rk_cuda_launched(dev, stream, "grouped_gemm");
}

extern "C" struct rk_status *rk_grouped_gemm_run_wgrad(const struct rk_cuda_device *dev,
                                                       struct rk_cuda_stream *stream,
                                                       const struct rk_grouped_gemm_wgrad_args *args)
{
    int64_t rows = args->x.shape[0], n = args->dy.shape[1], k = args->x.shape[1];
    grouped_args grouped = {};
    grouped_maps maps;

    grouped.out = args->dw.data;
    grouped.offsets = (const int *)args->offsets.data;
    grouped.num_groups = (int)args->dw.shape[0];
    grouped.m = (int)n;
    grouped.n = (int)k;
    grouped.ldc = k;
    grouped.overwrites = args->overwrites_dw;
    RK_TRY(find_counters(stream, &grouped.counters));
    RK_TRY(rk_cuda_status(make_map(&maps.a, args->dy.data, {n, rows, args->dy.row_stride, 1, 64, false}),
                          "tensor map"));
    RK_TRY(rk_cuda_status(make_map(&maps.b, args->x.data, {k, rows, args->x.row_stride, 1, 64, false}),
                          "tensor map"));
    RK_TRY(rk_cuda_status(
        make_map(&maps.c, args->dw.data, {k, n, k, args->dw.shape[0], 64, args->dw.dtype == RK_DTYPE_F32}),
        "tensor map"));
    RK_TRY(rk_cuda_status(args->dw.dtype == RK_DTYPE_F32
                              ? launch<GROUPED_WEIGHT, float, GROUPED_N>(dev, stream->stream, maps, grouped)
                              : launch<GROUPED_WEIGHT, bf16, GROUPED_N>(dev, stream->stream, maps, grouped),
                          "grouped_gemm_wgrad"));
    return rk_cuda_launched(dev, stream, "grouped_gemm_wgrad");
}
