/* Twin of kernels/cpu/grouped_gemm.c: grouped_gemm_sm90.cu on Hopper for the arguments that it supports;
 * otherwise the tiles of gemm_chain.cuh.
 *
 * Work split   A block makes a 64 x 64 tile. The groups' numbers of rows are known on the device only, so the
 *              number of blocks is an upper bound: one for each 64 rows and one more per group. Each block
 *              determines its rows; blocks without rows end.
 *
 * Numerics     Those of gemm_chain.cu: one ascending chain over k, or over the rows of a group. */
#include "kernels/cuda/moe/grouped_gemm.h"
#include "kernels/cuda/gemm/gemm_chain.cuh"

namespace
{

/* The GEMM of the first group, and the offset to the next group's w, or dw. */
template <class T, class C> struct groups_args {
    chain_args<T, C> chain;
    const int *offsets;
    int64_t matrix;
    int num_groups;
};

/* x and y of the rows of a group. */
template <class T>
__global__ void __launch_bounds__(RK_TILE_CHAIN_THREADS) grouped_chain_kernel(groups_args<T, T> args)
{
    chain_args<T, T> chain = args.chain;
    int group = 0, tile = (int)blockIdx.x, num_tiles;

    for (; group < args.num_groups; group++, tile -= num_tiles) {
        num_tiles = (args.offsets[group + 1] - args.offsets[group] + CHAIN_M - 1) / CHAIN_M;
        if (tile < num_tiles)
            break;
    }
    if (group == args.num_groups)
        return;
    chain.a.data += args.offsets[group] * chain.a.ld;
    chain.c += args.offsets[group] * chain.ldc;
    chain.b.data += group * args.matrix;
    chain.a.rows = args.offsets[group + 1] - args.offsets[group];
    chain_tile(chain, (int64_t)tile * CHAIN_M, (int64_t)blockIdx.y * CHAIN_N);
}

template <class T, class C>
__global__ void __launch_bounds__(RK_TILE_CHAIN_THREADS) grouped_chain_wgrad_kernel(groups_args<T, C> args)
{
    chain_args<T, C> chain = args.chain;
    int group = (int)blockIdx.z, first = args.offsets[group];

    chain.a.data += first * chain.a.ld;
    chain.b.data += first * chain.b.ld;
    chain.c += group * args.matrix;
    chain.a.k = chain.b.k = args.offsets[group + 1] - first;
    if (chain.a.k > 0 || chain.beta == 0.0f)
        chain_tile(chain, (int64_t)blockIdx.y * CHAIN_M, (int64_t)blockIdx.x * CHAIN_N);
}

template <class T>
void launch(cudaStream_t stream, const struct rk_grouped_gemm_args *args, unsigned row_tiles)
{
    int64_t n = args->y.shape[1], k = args->x.shape[1];
    groups_args<T, T> groups = {{(T *)args->y.data,
                                 {(const T *)args->x.data, args->x.row_stride, 0, k, false},
                                 {(const T *)args->w.data, args->trans_w ? k : n, n, k, !args->trans_w},
                                 NULL,
                                 args->y.row_stride,
                                 1.0f,
                                 0.0f},
                                (const int *)args->offsets.data,
                                n * k,
                                (int)args->w.shape[0]};
    dim3 blocks(row_tiles, (unsigned)rk_ceil_div(n, CHAIN_N));

    grouped_chain_kernel<T><<<blocks, RK_TILE_CHAIN_THREADS, 0, stream>>>(groups);
}

template <class T, class C>
void launch_wgrad(cudaStream_t stream, const struct rk_grouped_gemm_wgrad_args *args)
{
    int64_t n = args->dy.shape[1], k = args->x.shape[1];
    groups_args<T, C> groups = {{(C *)args->dw.data,
                                 {(const T *)args->dy.data, args->dy.row_stride, n, 0, true},
                                 {(const T *)args->x.data, args->x.row_stride, k, 0, true},
                                 NULL,
                                 k,
                                 1.0f,
                                 args->overwrites_dw ? 0.0f : 1.0f},
                                (const int *)args->offsets.data,
                                n * k,
                                (int)args->dw.shape[0]};
    dim3 blocks((unsigned)rk_ceil_div(k, CHAIN_N), (unsigned)rk_ceil_div(n, CHAIN_M),
                (unsigned)args->dw.shape[0]);

    grouped_chain_wgrad_kernel<T, C><<<blocks, RK_TILE_CHAIN_THREADS, 0, stream>>>(groups);
}

template <class T>
void launch_wgrad_for_dw(cudaStream_t stream, const struct rk_grouped_gemm_wgrad_args *args)
{
    if (args->dw.dtype == args->x.dtype)
        launch_wgrad<T, T>(stream, args);
    else
        launch_wgrad<T, float>(stream, args);
}

struct rk_status *activate(void *dev, void *stream, const struct rk_grouped_gemm_args *args)
{
    int64_t half = args->y.shape[1] / 2;
    struct rk_swiglu_fwd_args swiglu = {};

    if (!args->swiglu.data || rk_grouped_gemm_takes_swiglu((const struct rk_cuda_device *)dev, args))
        return NULL; /* not wanted, or already made */
    swiglu.y = args->swiglu;
    swiglu.gate = rk_tensor_cols(args->y, 0, half);
    swiglu.up = rk_tensor_cols(args->y, half, half);
    swiglu.probs = args->probs;
    swiglu.count = rk_tensor_rows(args->offsets, args->w.shape[0], 1);
    return rk_cuda_op_swiglu_fwd(dev, stream, &swiglu);
}

struct rk_status *multiply(struct rk_cuda_device *dev, struct rk_cuda_stream *stream,
                           const struct rk_grouped_gemm_args *args)
{
    int64_t row_tiles = rk_ceil_div(args->x.shape[0], CHAIN_M) + args->w.shape[0];

    if (rk_grouped_gemm_takes(dev, args))
        return rk_grouped_gemm_run(dev, stream, args);
    RK_TRY(rk_check_grid("grouped_gemm", row_tiles));
    RK_FOR_DTYPE("grouped_gemm", args->x.dtype, T, launch<T>(stream->stream, args, (unsigned)row_tiles));
    return rk_cuda_launched(dev, stream, "grouped_gemm");
}

} // namespace

extern "C" struct rk_status *rk_cuda_op_grouped_gemm(void *dev, void *stream,
                                                     const struct rk_grouped_gemm_args *args)
{
    RK_TRY(multiply((struct rk_cuda_device *)dev, (struct rk_cuda_stream *)stream, args));
    return activate(dev, stream, args);
}

extern "C" struct rk_status *rk_cuda_op_grouped_gemm_wgrad(void *dev, void *stream,
                                                           const struct rk_grouped_gemm_wgrad_args *args)
{
    struct rk_cuda_device *cuda = (struct rk_cuda_device *)dev;
    struct rk_cuda_stream *on = (struct rk_cuda_stream *)stream;

    if (rk_grouped_gemm_takes_wgrad(cuda, args))
        return rk_grouped_gemm_run_wgrad(cuda, on, args);
    RK_TRY(rk_check_grid("grouped_gemm_wgrad", args->dy.shape[1]));
    RK_FOR_DTYPE("grouped_gemm_wgrad", args->x.dtype, T, launch_wgrad_for_dw<T>(on->stream, args));
    return rk_cuda_launched(cuda, on, "grouped_gemm_wgrad");
}
