/* Twin of the forward pass of kernels/cpu/rmsnorm.c.
 *
 * Work split   One block a row, one pack of 8 elements a thread (four where a row is longer than 512 packs).
 *
 * Traffic      Read x and residual, write y and sum: 8 bytes an element in bf16. 8192 x 1536: 101 MB, 23 us
 *              at 4.3 TB/s.
 *
 * Measured     H200, bf16, 8192 rows of 1536 and of 3584: 26.4 us (89% of 4.3 TB/s) and 58.6 (93%).
 *
 * Overlap      The next kernel may start at once. With weight_is_settled (rk_kernels.h) the kernel loads the
 *              weight before the previous kernel has ended.
 *
 * Limits       hidden_size <= 16384 (RK_TILE_NORM_*).
 *
 * Numerics     f32 (f64 for F64). Sums over a row have the order of rk_block_sum over threads that depend on
 *              hidden_size only, and so do a row's bits. */
#include "kernels/cuda/norm/rmsnorm.cuh"

template <class T> struct norm_fwd {
    T *y, *sum;
    rk_acc<T> *rstd;
    const T *x, *residual, *weight;
    int64_t y_stride, sum_stride, x_stride, residual_stride;
    rk_acc<T> eps;
    bool weight_is_settled;
};

/* s = x (+ residual) of one pack, rounded to T. */
template <class T>
__device__ __forceinline__ rk_pack<T, RK_TILE_PACK> norm_input(const norm_fwd<T> &args, int64_t row,
                                                               int64_t col, int64_t count, bool aligned)
{
    rk_pack<T, RK_TILE_PACK> s = rk_load<RK_TILE_PACK>(args.x + row * args.x_stride + col, count, aligned);

    if (args.residual) {
        rk_pack<T, RK_TILE_PACK> residual =
            rk_load<RK_TILE_PACK>(args.residual + row * args.residual_stride + col, count, aligned);

        rk_acc<T> sum[RK_TILE_PACK], other[RK_TILE_PACK];

        rk_unpack(sum, s);
        rk_unpack(other, residual);
#pragma unroll
        for (int i = 0; i < RK_TILE_PACK; i++)
            sum[i] += other[i];
        s = rk_repack<T>(sum);
        rk_store(args.sum + row * args.sum_stride + col, s, count, aligned);
    }
    return s;
}

template <class T, int PACKS>
__global__ void __launch_bounds__(RK_TILE_NORM_THREADS_MAX)
    rmsnorm_fwd_kernel(norm_fwd<T> args, norm_shape shape)
{
    typedef rk_acc<T> A;
    __shared__ A shared[32];
    rk_pack<T, RK_TILE_PACK> s[PACKS], weight[PACKS];
    int64_t row = blockIdx.x;
    A sum_sq = 0, rstd;

    rk_start_next(); /* the next GEMM can load its weight meanwhile */
    if (!args.weight_is_settled)
        rk_wait_for_stream();
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        int64_t col = (int64_t)(p * blockDim.x + threadIdx.x) * RK_TILE_PACK;

        weight[p] =
            rk_load<RK_TILE_PACK>(args.weight + col, shape.hidden_size - col, rk_aligned16(args.weight));
    }
    rk_wait_for_stream();
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        int64_t col = (int64_t)(p * blockDim.x + threadIdx.x) * RK_TILE_PACK;

        s[p] = norm_input(args, row, col, shape.hidden_size - col, shape.aligned);
    }
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
#pragma unroll
        for (int i = 0; i < RK_TILE_PACK; i++) {
            A value = rk_widen<A>(s[p].get(i));

            sum_sq += value * value;
        }
    }
    rstd = (A)1 / sqrt(rk_block_sum(sum_sq, shared) / (A)shape.hidden_size + args.eps);
    if (args.rstd && threadIdx.x == 0)
        args.rstd[row] = rstd;
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        int64_t col = (int64_t)(p * blockDim.x + threadIdx.x) * RK_TILE_PACK;
        int64_t count = shape.hidden_size - col;
        A y[RK_TILE_PACK], w[RK_TILE_PACK];

        rk_unpack(y, s[p]);
        rk_unpack(w, weight[p]);
#pragma unroll
        for (int i = 0; i < RK_TILE_PACK; i++)
            y[i] = y[i] * rstd * w[i];
        rk_store(args.y + row * args.y_stride + col, rk_repack<T>(y), count, shape.aligned);
    }
}

template <class T>
static void launch_fwd(const struct rk_cuda_stream *stream, const struct rk_rmsnorm_fwd_args *args,
                       norm_shape shape)
{
    norm_fwd<T> fwd = {(T *)args->y.data,
                       (T *)args->sum.data,
                       (rk_acc<T> *)args->rstd.data,
                       (const T *)args->x.data,
                       (const T *)args->residual.data,
                       (const T *)args->weight.data,
                       args->y.row_stride,
                       args->sum.row_stride,
                       args->x.row_stride,
                       args->residual.row_stride,
                       (rk_acc<T>)args->eps,
                       args->weight_is_settled};
    unsigned rows = (unsigned)shape.num_rows;

    if (norm_is_wide(shape.hidden_size))
        rk_launch({stream, dim3(rows), dim3(norm_threads(shape.hidden_size, RK_TILE_NORM_PACKS_MAX)), 0},
                  rmsnorm_fwd_kernel<T, RK_TILE_NORM_PACKS_MAX>, fwd, shape);
    else
        rk_launch({stream, dim3(rows), dim3(norm_threads(shape.hidden_size, 1)), 0}, rmsnorm_fwd_kernel<T, 1>,
                  fwd, shape);
}

extern "C" struct rk_status *rk_cuda_op_rmsnorm_fwd(void *dev, void *stream,
                                                    const struct rk_rmsnorm_fwd_args *args)
{
    norm_shape shape = {
        args->x.shape[0], args->x.shape[1],
        rk_rows_aligned(args->x) && rk_rows_aligned(args->y) &&
            (!args->residual.data || (rk_rows_aligned(args->residual) && rk_rows_aligned(args->sum)))};

    RK_TRY(norm_check("rmsnorm_fwd", shape));
    RK_FOR_DTYPE("rmsnorm_fwd", args->x.dtype, T,
                 launch_fwd<T>((const struct rk_cuda_stream *)stream, args, shape));
    return rk_cuda_launched((struct rk_cuda_device *)dev, (struct rk_cuda_stream *)stream, "rmsnorm_fwd");
}
