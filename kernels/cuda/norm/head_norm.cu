/* Twin of kernels/cpu/head_norm.c.
 *
 * Work split   A group of lanes takes a head: as many as it has packs of 8 elements, rounded up to a power of
 *              two, so that a head of 128 has half a warp. Backward: RK_TILE_HEAD_NORM_PARTS blocks of
 *              consecutive heads each; a lane keeps its columns' share of dweight in registers, and
 *              column_finish_kernel adds the blocks' parts.
 *
 * Traffic      Forward: read x, write y: 4 bytes an element in bf16. Backward: read dy and x, write dx: 6.
 *              The rows are parts of a fused projection; the data between them is not read.
 *
 * Measured     H200, bf16, 8192 tokens of 32 heads of 128: forward 42.1 us (74% of 4.3 TB/s), backward 58.1
 *              (81%).
 *
 * Limits       head_dim <= 256 (a warp's packs), fewer than 2^31 heads.
 *
 * Numerics     f32 (f64 for F64). The sum over a head is a butterfly over lanes that depend on head_dim only,
 *              and so do a head's bits. dweight is summed in ascending heads by each group, then groups, then
 *              parts in a fixed order: reproducible, but its bits depend on the number of heads.
 *
 * Tried        Two heads a group in flight, forward: as fast. */
#include "kernels/cuda/column_sum.cuh"

constexpr int THREADS = RK_TILE_HEAD_NORM_THREADS;

struct head_norm_shape {
    unsigned num_rows, num_heads; /* tokens x heads; heads of a token */
    int head_dim, lanes;          /* of a group: a power of two up to 32 */
    bool aligned;                 /* all heads of all tensors */
};

/* Position of a lane of a group. */
struct head_norm_place {
    int64_t token, head, col, count; /* count: elements of the head from col on; <= 0: none */
};

__device__ __forceinline__ head_norm_place place_of(const head_norm_shape &shape, unsigned row)
{
    int64_t col = (int64_t)(threadIdx.x % shape.lanes) * RK_TILE_PACK;
    int64_t count = row < shape.num_rows ? shape.head_dim - col : 0;

    return {row / shape.num_heads, row % shape.num_heads, col, count};
}

template <class T>
__device__ __forceinline__ T *at(T *base, int64_t stride, const head_norm_shape &shape,
                                 const head_norm_place &place)
{
    return base + place.token * stride + place.head * shape.head_dim + place.col;
}

/* Sums over the lanes of the group; called by all lanes of the warp. */
template <class A> __device__ __forceinline__ A group_sum(A value, int lanes)
{
    for (int lane = lanes / 2; lane > 0; lane /= 2)
        value += __shfl_xor_sync(~0u, value, lane);
    return value;
}

template <class T> struct head_norm_fwd {
    T *y;
    rk_acc<T> *rstd;
    const T *x, *weight;
    int64_t y_stride, x_stride, rstd_stride;
    rk_acc<T> eps;
};

template <class T>
__global__ void __launch_bounds__(THREADS) head_norm_fwd_kernel(head_norm_fwd<T> args, head_norm_shape shape)
{
    typedef rk_acc<T> A;
    unsigned row = blockIdx.x * (THREADS / shape.lanes) + threadIdx.x / shape.lanes;
    head_norm_place place = place_of(shape, row);
    A x[RK_TILE_PACK], weight[RK_TILE_PACK], sum_sq = 0, rstd;

    rk_wait_for_stream();
    rk_unpack(x, rk_load<RK_TILE_PACK>(at(args.x, args.x_stride, shape, place), place.count, shape.aligned));
    rk_unpack(weight, rk_load<RK_TILE_PACK>(args.weight + place.col, place.count, shape.aligned));
#pragma unroll
    for (int i = 0; i < RK_TILE_PACK; i++)
        sum_sq += x[i] * x[i];
    rstd = (A)1 / sqrt(group_sum(sum_sq, shape.lanes) / (A)shape.head_dim + args.eps);
    if (args.rstd && place.col == 0 && place.count > 0)
        args.rstd[place.token * args.rstd_stride + place.head] = rstd;
#pragma unroll
    for (int i = 0; i < RK_TILE_PACK; i++)
        x[i] = x[i] * rstd * weight[i];
    rk_store(at(args.y, args.y_stride, shape, place), rk_repack<T>(x), place.count, shape.aligned);
}

template <class T> struct head_norm_bwd {
    T *dx;
    rk_acc<T> *parts; /* [gridDim.x, head_dim] */
    const T *dy, *x, *weight;
    const rk_acc<T> *rstd;
    int64_t dx_stride, dy_stride, x_stride, rstd_stride;
    unsigned rows_per_part;
};

/* Computes dx of one head and adds its contribution to dweight. */
template <class T>
__device__ __forceinline__ void backward_head(rk_acc<T> (&dweight)[RK_TILE_PACK],
                                              const rk_acc<T> (&weight)[RK_TILE_PACK],
                                              const head_norm_bwd<T> &args, const head_norm_shape &shape,
                                              const head_norm_place &place)
{
    typedef rk_acc<T> A;
    A dy[RK_TILE_PACK], xhat[RK_TILE_PACK], sum = 0, rstd = 0;

    rk_unpack(dy,
              rk_load<RK_TILE_PACK>(at(args.dy, args.dy_stride, shape, place), place.count, shape.aligned));
    rk_unpack(xhat,
              rk_load<RK_TILE_PACK>(at(args.x, args.x_stride, shape, place), place.count, shape.aligned));
    if (place.count > 0)
        rstd = args.rstd[place.token * args.rstd_stride + place.head];
#pragma unroll
    for (int i = 0; i < RK_TILE_PACK; i++) {
        xhat[i] *= rstd;
        dweight[i] = rk_fma(dy[i], xhat[i], dweight[i]);
        dy[i] *= weight[i];
        sum = rk_fma(dy[i], xhat[i], sum);
    }
    sum = group_sum(sum, shape.lanes) / (A)shape.head_dim;
#pragma unroll
    for (int i = 0; i < RK_TILE_PACK; i++)
        dy[i] = rstd * rk_fma(-xhat[i], sum, dy[i]);
    rk_store(at(args.dx, args.dx_stride, shape, place), rk_repack<T>(dy), place.count, shape.aligned);
}

template <class T>
__global__ void __launch_bounds__(THREADS) head_norm_bwd_kernel(head_norm_bwd<T> args, head_norm_shape shape)
{
    typedef rk_acc<T> A;
    __shared__ A sums[THREADS * RK_TILE_PACK]; /* [groups][lanes * RK_TILE_PACK] */
    int num_groups = THREADS / shape.lanes, group = (int)threadIdx.x / shape.lanes;
    int width = shape.lanes * RK_TILE_PACK;
    unsigned begin = blockIdx.x * args.rows_per_part;
    unsigned end = RK_MIN(begin + args.rows_per_part, shape.num_rows);
    A dweight[RK_TILE_PACK] = {}, weight[RK_TILE_PACK];
    head_norm_place place = place_of(shape, begin);

    rk_wait_for_stream();
    rk_unpack(weight, rk_load<RK_TILE_PACK>(args.weight + place.col, place.count, shape.aligned));
    for (unsigned first = begin; first < end; first += num_groups) { /* all lanes of a warp run the same
                                                                      * number of iterations */
        unsigned row = first + group < end ? first + group : shape.num_rows;

        backward_head(dweight, weight, args, shape, place_of(shape, row));
    }
#pragma unroll
    for (int i = 0; i < RK_TILE_PACK; i++)
        sums[group * width + (int)place.col + i] = dweight[i];
    __syncthreads(); /* all groups have written their sums */
    for (int col = (int)threadIdx.x; col < shape.head_dim; col += THREADS) {
        A sum = 0;

        for (int g = 0; g < num_groups; g++)
            sum += sums[g * width + col];
        args.parts[(int64_t)blockIdx.x * shape.head_dim + col] = sum;
    }
}

/* Whether all heads of every row begin at multiples of 16 bytes. */
static bool heads_aligned(rk_tensor_t t)
{
    return rk_rows_aligned(t) && (size_t)t.shape[2] * rk_dtype_bytes(t.dtype) % 16 == 0;
}

static struct rk_status *shape_of(head_norm_shape *out, const char *op, rk_tensor_t x)
{
    int64_t packs = rk_ceil_div(x.shape[2], RK_TILE_PACK);
    int lanes = 1;

    while (lanes < packs && lanes < 32)
        lanes *= 2;
    if (packs > lanes)
        return RK_FAIL(RK_UNIMPLEMENTED, "%s: head_dim=%lld, this backend supports at most %d", op,
                       (long long)x.shape[2], 32 * RK_TILE_PACK);
    RK_TRY(rk_check_grid(op, x.shape[0] * x.shape[1] + THREADS)); /* the number of heads has 32 bits */
    *out = {(unsigned)(x.shape[0] * x.shape[1]), (unsigned)x.shape[1], (int)x.shape[2], lanes, false};
    return NULL;
}

template <class T>
static void launch_fwd(const struct rk_cuda_stream *stream, const struct rk_head_norm_fwd_args *args,
                       const head_norm_shape &shape)
{
    head_norm_fwd<T> fwd = {(T *)args->y.data,       (rk_acc<T> *)args->rstd.data,
                            (const T *)args->x.data, (const T *)args->weight.data,
                            args->y.row_stride,      args->x.row_stride,
                            args->rstd.row_stride,   (rk_acc<T>)args->eps};
    unsigned blocks = (unsigned)rk_ceil_div(shape.num_rows, THREADS / shape.lanes);

    rk_launch({stream, dim3(blocks), dim3(THREADS), 0}, head_norm_fwd_kernel<T>, fwd, shape);
}

extern "C" struct rk_status *rk_cuda_op_head_norm_fwd(void *dev, void *stream,
                                                      const struct rk_head_norm_fwd_args *args)
{
    head_norm_shape shape;

    RK_TRY(shape_of(&shape, "head_norm_fwd", args->x));
    shape.aligned = heads_aligned(args->x) && heads_aligned(args->y) && rk_aligned16(args->weight.data);
    RK_FOR_DTYPE("head_norm_fwd", args->x.dtype, T,
                 launch_fwd<T>((const struct rk_cuda_stream *)stream, args, shape));
    return rk_cuda_launched((struct rk_cuda_device *)dev, (struct rk_cuda_stream *)stream, "head_norm_fwd");
}

template <class T>
static void launch_bwd(const struct rk_cuda_stream *stream, const struct rk_head_norm_bwd_args *args,
                       const head_norm_shape &shape)
{
    typedef rk_acc<T> A;
    unsigned rows_per_part = (unsigned)rk_ceil_div(shape.num_rows, RK_TILE_HEAD_NORM_PARTS);
    unsigned num_parts = (unsigned)rk_ceil_div(shape.num_rows, rows_per_part);
    head_norm_bwd<T> bwd = {(T *)args->dx.data,
                            (A *)stream->scratch.data,
                            (const T *)args->dy.data,
                            (const T *)args->x.data,
                            (const T *)args->weight.data,
                            (const A *)args->rstd.data,
                            args->dx.row_stride,
                            args->dy.row_stride,
                            args->x.row_stride,
                            args->rstd.row_stride,
                            rows_per_part};

    rk_launch({stream, dim3(num_parts), dim3(THREADS), 0}, head_norm_bwd_kernel<T>, bwd, shape);
    launch_column_finish<T, RK_TILE_HEAD_NORM_PARTS>(stream, args->dweight, bwd.parts, (int)num_parts);
}

extern "C" struct rk_workspace rk_cuda_workspace_head_norm_bwd(const void *dev,
                                                               const struct rk_head_norm_bwd_args *args)
{
    (void)dev;
    return {RK_TILE_HEAD_NORM_PARTS * (size_t)args->dy.shape[2] * rk_dtype_bytes(args->rstd.dtype), 0};
}

extern "C" struct rk_status *rk_cuda_op_head_norm_bwd(void *dev, void *stream,
                                                      const struct rk_head_norm_bwd_args *args)
{
    struct rk_cuda_stream *on = (struct rk_cuda_stream *)stream;
    struct rk_workspace workspace = rk_cuda_workspace_head_norm_bwd(dev, args);
    head_norm_shape shape;

    RK_TRY(shape_of(&shape, "head_norm_bwd", args->dy));
    shape.aligned = heads_aligned(args->dy) && heads_aligned(args->x) && heads_aligned(args->dx) &&
                    rk_aligned16(args->weight.data);
    RK_TRY(rk_cuda_reserve(on, &on->scratch, workspace.scratch_bytes));
    RK_FOR_DTYPE("head_norm_bwd", args->dy.dtype, T, launch_bwd<T>(on, args, shape));
    return rk_cuda_launched((struct rk_cuda_device *)dev, on, "head_norm_bwd");
}
