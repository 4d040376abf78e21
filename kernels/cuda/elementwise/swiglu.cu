/* Twin of kernels/cpu/swiglu.c.
 *
 * Work split   One thread for a pack of 8 columns of a row; rows in grid x, 256 packs of a row in grid y. The
 *              backward pass with probabilities, which sums over a row, has one block per row.
 *
 * Traffic      Forward: read gate and up, write y: 6 bytes an element in bf16. Backward: read dy, gate and
 *              up, write dgate and dup (and y): 10 (12). 8192 x 8960 on an H200: 107 and 181 us, 96% and 94%
 *              of 4.3 TB/s.
 *
 * Limits       65535 * 2048 columns.
 *
 * Numerics     f32. 1 / (1 + e^-g) has its limits where e^-g overflows; the division is exact to 2 ulp. The
 *              sum of dprobs has the order of rk_block_sum, independent of the number of rows.
 *
 * Tried        Storing elements one by one, as a pack of bf16 is by default: a third of the speed. */
#include "kernels/cuda/cuda_common.cuh"
#include "kernels/cuda/elementwise/swiglu.cuh"

/* Each tensor has its own stride: column views of a fused projection. */
template <class T> struct swiglu_view {
    T *data;
    int64_t stride;
};

template <class T>
__global__ void __launch_bounds__(RK_TILE_FLAT_THREADS)
    swiglu_fwd_kernel(swiglu_view<T> y, swiglu_view<const T> gate, swiglu_view<const T> up,
                      const rk_acc<T> *probs, const int32_t *num_rows, int64_t num_cols, bool aligned)
{
    typedef rk_acc<T> A;
    int64_t row = blockIdx.x, col = ((int64_t)blockIdx.y * RK_TILE_FLAT_THREADS + threadIdx.x) * RK_TILE_PACK;
    int64_t count = num_cols - col;
    rk_pack<T, RK_TILE_PACK> g, u;
    A prob;

    rk_start_next(); /* the next GEMM can load its weight meanwhile */
    rk_wait_for_stream();
    if (count <= 0 || (num_rows && row >= num_rows[0]))
        return;
    prob = probs ? probs[row] : (A)1;
    g = rk_load<RK_TILE_PACK>(gate.data + row * gate.stride + col, count, aligned);
    u = rk_load<RK_TILE_PACK>(up.data + row * up.stride + col, count, aligned);
#pragma unroll
    for (int i = 0; i < RK_TILE_PACK; i++) {
        u.set(i, rk_narrow<T>(rk_swiglu(rk_widen<A>(g.get(i)), rk_widen<A>(u.get(i))) * prob));
    }
    rk_store(y.data + row * y.stride + col, u, count, aligned);
}

template <class T> struct swiglu_bwd {
    swiglu_view<T> dgate, dup, y; /* y without data: not written; otherwise y may alias dy */
    swiglu_view<const T> dy, gate, up;
    const rk_acc<T> *probs; /* used by the second kernel only */
    rk_acc<T> *dprobs;
    const int32_t *num_rows; /* NULL: all */
};

template <class T>
__global__ void __launch_bounds__(RK_TILE_FLAT_THREADS)
    swiglu_bwd_kernel(swiglu_bwd<T> args, int64_t num_cols, bool aligned)
{
    typedef rk_acc<T> A;
    int64_t row = blockIdx.x, col = ((int64_t)blockIdx.y * RK_TILE_FLAT_THREADS + threadIdx.x) * RK_TILE_PACK;
    int64_t count = num_cols - col;
    rk_pack<T, RK_TILE_PACK> dy, gate, up;

    if (count <= 0 || (args.num_rows && row >= args.num_rows[0]))
        return;
    dy = rk_load<RK_TILE_PACK>(args.dy.data + row * args.dy.stride + col, count, aligned);
    gate = rk_load<RK_TILE_PACK>(args.gate.data + row * args.gate.stride + col, count, aligned);
    up = rk_load<RK_TILE_PACK>(args.up.data + row * args.up.stride + col, count, aligned);
#pragma unroll
    for (int i = 0; i < RK_TILE_PACK; i++) {
        A dy_i = rk_widen<A>(dy.get(i)), gate_i = rk_widen<A>(gate.get(i)), up_i = rk_widen<A>(up.get(i));
        A s = rk_sigmoid(gate_i);

        dy.set(i, rk_narrow<T>(gate_i * s * up_i)); /* y */
        gate.set(i, rk_narrow<T>(dy_i * up_i * s * ((A)1 + gate_i * ((A)1 - s))));
        up.set(i, rk_narrow<T>(dy_i * gate_i * s));
    }
    rk_store(args.dgate.data + row * args.dgate.stride + col, gate, count, aligned);
    rk_store(args.dup.data + row * args.dup.stride + col, up, count, aligned);
    if (args.y.data)
        rk_store(args.y.data + row * args.y.stride + col, dy, count, aligned);
}

/* One pack of the row; returns its contribution to dprob. */
template <class T>
__device__ __forceinline__ rk_acc<T> swiglu_bwd_pack(const swiglu_bwd<T> &args, int64_t row, int64_t col,
                                                     int64_t count, rk_acc<T> prob, bool aligned)
{
    typedef rk_acc<T> A;
    rk_pack<T, RK_TILE_PACK> dy =
        rk_load<RK_TILE_PACK>(args.dy.data + row * args.dy.stride + col, count, aligned);
    rk_pack<T, RK_TILE_PACK> gate =
        rk_load<RK_TILE_PACK>(args.gate.data + row * args.gate.stride + col, count, aligned);
    rk_pack<T, RK_TILE_PACK> up =
        rk_load<RK_TILE_PACK>(args.up.data + row * args.up.stride + col, count, aligned);
    A dprob = 0;

#pragma unroll
    for (int i = 0; i < RK_TILE_PACK; i++) {
        A dy_i = rk_widen<A>(dy.get(i)), gate_i = rk_widen<A>(gate.get(i)), up_i = rk_widen<A>(up.get(i));
        A s = rk_sigmoid(gate_i), y = gate_i * s * up_i, d = dy_i * prob;

        if (i < count)
            dprob += dy_i * y;
        dy.set(i, rk_narrow<T>(y * prob));
        gate.set(i, rk_narrow<T>(d * up_i * s * ((A)1 + gate_i * ((A)1 - s))));
        up.set(i, rk_narrow<T>(d * gate_i * s));
    }
    rk_store(args.dgate.data + row * args.dgate.stride + col, gate, count, aligned);
    rk_store(args.dup.data + row * args.dup.stride + col, up, count, aligned);
    if (args.y.data)
        rk_store(args.y.data + row * args.y.stride + col, dy, count, aligned);
    return dprob;
}

template <class T>
__global__ void __launch_bounds__(RK_TILE_FLAT_THREADS)
    swiglu_weighted_bwd_kernel(swiglu_bwd<T> args, int64_t num_cols, bool aligned)
{
    typedef rk_acc<T> A;
    __shared__ A shared[32];
    int64_t row = blockIdx.x;
    A prob, dprob = 0;

    if (args.num_rows && row >= args.num_rows[0]) /* the whole block */
        return;
    prob = args.probs[row];
    for (int64_t col = (int64_t)threadIdx.x * RK_TILE_PACK; col < num_cols; col += blockDim.x * RK_TILE_PACK)
        dprob += swiglu_bwd_pack(args, row, col, num_cols - col, prob, aligned);
    dprob = rk_block_sum(dprob, shared);
    if (threadIdx.x == 0)
        args.dprobs[row] = dprob;
}

template <class T> static swiglu_view<T> view_of(rk_tensor_t t)
{
    return {(T *)t.data, t.row_stride};
}

static struct rk_status *check_size(const char *op, rk_tensor_t t, dim3 *blocks)
{
    int64_t groups = rk_ceil_div(t.shape[1], RK_TILE_FLAT_THREADS * RK_TILE_PACK);

    RK_TRY(rk_check_grid(op, t.shape[0]));
    if (groups > UINT16_MAX)
        return RK_FAIL(RK_UNIMPLEMENTED, "%s: %lld columns, this backend takes at most %d", op,
                       (long long)t.shape[1], UINT16_MAX * RK_TILE_FLAT_THREADS * RK_TILE_PACK);
    *blocks = dim3((unsigned)t.shape[0], (unsigned)groups);
    return NULL;
}

extern "C" struct rk_status *rk_cuda_op_swiglu_fwd(void *dev, void *stream,
                                                   const struct rk_swiglu_fwd_args *args)
{
    bool aligned = rk_rows_aligned(args->y) && rk_rows_aligned(args->gate) && rk_rows_aligned(args->up);
    int64_t num_cols = args->gate.shape[1];
    dim3 blocks;

    RK_TRY(check_size("swiglu_fwd", args->gate, &blocks));
    RK_FOR_DTYPE("swiglu_fwd", args->gate.dtype, T,
                 rk_launch({(const struct rk_cuda_stream *)stream, blocks, dim3(RK_TILE_FLAT_THREADS), 0},
                           swiglu_fwd_kernel<T>, view_of<T>(args->y), view_of<const T>(args->gate),
                           view_of<const T>(args->up), (const rk_acc<T> *)args->probs.data,
                           (const int32_t *)args->count.data, num_cols, aligned));
    return rk_cuda_launched((struct rk_cuda_device *)dev, (struct rk_cuda_stream *)stream, "swiglu_fwd");
}

/* Threads of the kernel with probabilities: warps that have columns. The others would add zeros to the sum of
 * a row. */
static int threads_of_row(int64_t num_cols)
{
    return (int)RK_MIN(32 * rk_ceil_div(num_cols, 32 * RK_TILE_PACK), RK_TILE_FLAT_THREADS);
}

template <class T>
static void launch_bwd(cudaStream_t stream, const struct rk_swiglu_bwd_args *args, dim3 blocks, bool aligned)
{
    swiglu_bwd<T> bwd = {view_of<T>(args->dgate),
                         view_of<T>(args->dup),
                         view_of<T>(args->y),
                         view_of<const T>(args->dy),
                         view_of<const T>(args->gate),
                         view_of<const T>(args->up),
                         (const rk_acc<T> *)args->probs.data,
                         (rk_acc<T> *)args->dprobs.data,
                         (const int32_t *)args->count.data};

    if (args->probs.data) {
        swiglu_weighted_bwd_kernel<T>
            <<<blocks.x, threads_of_row(args->gate.shape[1]), 0, stream>>>(bwd, args->gate.shape[1], aligned);
        return;
    }
    swiglu_bwd_kernel<T><<<blocks, RK_TILE_FLAT_THREADS, 0, stream>>>(bwd, args->gate.shape[1], aligned);
}

extern "C" struct rk_status *rk_cuda_op_swiglu_bwd(void *dev, void *stream,
                                                   const struct rk_swiglu_bwd_args *args)
{
    bool aligned = rk_rows_aligned(args->dgate) && rk_rows_aligned(args->dup) && rk_rows_aligned(args->dy) &&
                   rk_rows_aligned(args->gate) && rk_rows_aligned(args->up) &&
                   (!args->y.data || rk_rows_aligned(args->y));
    dim3 blocks;

    RK_TRY(check_size("swiglu_bwd", args->gate, &blocks));
    RK_FOR_DTYPE("swiglu_bwd", args->gate.dtype, T,
                 launch_bwd<T>(rk_stream_of(stream), args, blocks, aligned));
    return rk_cuda_launched((struct rk_cuda_device *)dev, (struct rk_cuda_stream *)stream, "swiglu_bwd");
}
