/* Twin of kernels/cpu/moe_rows.c.
 *
 * Work split   Sort: one block per expert reads all choices, counts those of smaller experts and assigns
 *              places to its own, 1024 choices at a time. Combine: one block per token, one thread per pack
 *              of 8 columns, with the loads of up to four rows in flight.
 *
 * Traffic      Sort: 4 bytes a choice and expert, from L2: 65,536 choices of 128 experts are 34 MB. Combine:
 *              the rows are read once, the sums written once.
 *
 * Numerics     Combine: f32 (f64 for F64), in ascending experts, one rounding. */
#include "kernels/cuda/cuda_common.cuh"

namespace
{

constexpr int SORT_THREADS = 1024, SORT_WARPS = SORT_THREADS / 32;
constexpr unsigned ALL = 0xffffffff;

struct sort_args {
    int32_t *offsets, *tokens, *places;
    const int32_t *ids;
    int num_choices, top_k, experts, first;
};

/* The sum over the thread block of each thread's count, in all threads. */
__device__ int block_sum(int count, int *shared)
{
    int total = 0;

    count = __reduce_add_sync(ALL, count);
    __syncthreads(); /* earlier values have been read */
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = count;
    __syncthreads(); /* the warps' counts are written */
    for (int i = 0; i < SORT_WARPS; i++)
        total += shared[i];
    return total;
}

/* Assigns rows from `row` on to the choices of that expert; returns the next row. */
__device__ int place_choices(const sort_args &args, int expert, int row, int *shared)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    for (int first = 0; first < args.num_choices; first += SORT_THREADS) {
        int i = first + threadIdx.x, before = row;
        bool is_own = i < args.num_choices && args.ids[i] == expert;
        unsigned own = __ballot_sync(ALL, is_own);

        __syncthreads(); /* the counts of the previous round have been read */
        if (lane == 0)
            shared[warp] = __popc(own);
        __syncthreads(); /* the warps' counts are written */
        for (int w = 0; w < SORT_WARPS; w++) {
            before += w < warp ? shared[w] : 0;
            row += shared[w];
        }
        before += __popc(own & ((1u << lane) - 1));
        if (is_own) {
            args.places[i] = before;
            args.tokens[before] = i / args.top_k;
        }
    }
    return row;
}

__global__ void __launch_bounds__(SORT_THREADS) moe_sort_kernel(sort_args args)
{
    __shared__ int shared[SORT_WARPS];
    int index = (int)blockIdx.x, expert = args.first + index, count = 0, end;

    rk_wait_for_stream();
    for (int i = threadIdx.x; i < args.num_choices; i += SORT_THREADS) {
        int id = args.ids[i];

        count += id >= args.first && id < expert;
        if (index == 0 && (id < args.first || id >= args.first + args.experts))
            args.places[i] = -1;
    }
    count = block_sum(count, shared);
    end = place_choices(args, expert, count, shared);
    if (threadIdx.x == 0)
        args.offsets[index] = count;
    if (index + 1 < args.experts)
        return;
    if (threadIdx.x == 0)
        args.offsets[args.experts] = end;
    for (int i = end + threadIdx.x; i < args.num_choices; i += SORT_THREADS)
        args.tokens[i] = 0;
}

template <class T> struct combine_args {
    T *y;
    const T *x;
    const int32_t *places, *ids; /* places NULL: the choices have their rows in order */
    int64_t y_stride, x_stride, num_rows, num_cols;
    int top_k;
    bool aligned;
};

/* Called by one warp, a choice a lane: the rows of a token's choices in ascending experts; returns their
 * number. */
template <class T> __device__ int sort_choices(int32_t *rows, const combine_args<T> &args, int64_t t)
{
    int lane = threadIdx.x, id = 0, row = -1, rank = 0;
    bool exists;
    unsigned all;

    if (lane < args.top_k) {
        int64_t i = t * args.top_k + lane;

        id = args.ids[i];
        row = args.places ? args.places[i] : (int)i;
    }
    exists = row >= 0 && row < args.num_rows;
    all = __ballot_sync(ALL, exists);
    for (int k = 0; k < args.top_k; k++)
        rank += __shfl_sync(ALL, id, k) < id && (all >> k & 1);
    if (exists)
        rows[rank] = row;
    return __popc(all);
}

/* Adds the next `count` rows, all loads before the first sum. */
template <int COUNT, class T>
__device__ __forceinline__ void add_rows(rk_acc<T> (&sum)[RK_TILE_PACK], const int32_t *rows, int64_t col,
                                         const combine_args<T> &args)
{
    rk_pack<T, RK_TILE_PACK> x[COUNT];

#pragma unroll
    for (int i = 0; i < COUNT; i++)
        x[i] =
            rk_load<RK_TILE_PACK>(args.x + rows[i] * args.x_stride + col, args.num_cols - col, args.aligned);
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
#pragma unroll
        for (int j = 0; j < RK_TILE_PACK; j++)
            sum[j] += rk_widen<rk_acc<T>>(x[i].get(j));
    }
}

template <class T>
__global__ void __launch_bounds__(RK_TILE_FLAT_THREADS) moe_combine_kernel(combine_args<T> args)
{
    __shared__ int32_t rows[RK_MOE_TOP_K_MAX];
    __shared__ int count;
    int64_t t = blockIdx.x, step = (int64_t)RK_TILE_FLAT_THREADS * RK_TILE_PACK;

    rk_wait_for_stream();
    if (threadIdx.x < 32)
        count = sort_choices(rows, args, t);
    __syncthreads(); /* the rows are written */
    for (int64_t col = (int64_t)threadIdx.x * RK_TILE_PACK; col < args.num_cols; col += step) {
        int64_t left = args.num_cols - col;
        rk_pack<T, RK_TILE_PACK> out;
        rk_acc<T> sum[RK_TILE_PACK] = {};
        int i = 0;

        for (; i + 4 <= count; i += 4)
            add_rows<4>(sum, rows + i, col, args);
        for (; i + 2 <= count; i += 2)
            add_rows<2>(sum, rows + i, col, args);
        for (; i < count; i++)
            add_rows<1>(sum, rows + i, col, args);
#pragma unroll
        for (int j = 0; j < RK_TILE_PACK; j++)
            out.set(j, rk_narrow<T>(sum[j]));
        rk_store(args.y + t * args.y_stride + col, out, left, args.aligned);
    }
}

template <class T>
void launch_combine(const struct rk_cuda_stream *stream, const struct rk_moe_combine_args *args)
{
    combine_args<T> combine = {(T *)args->y.data,
                               (const T *)args->x.data,
                               (const int32_t *)args->places.data,
                               (const int32_t *)args->ids.data,
                               args->y.row_stride,
                               args->x.row_stride,
                               args->x.shape[0],
                               args->x.shape[1],
                               (int)args->ids.shape[1],
                               rk_rows_aligned(args->y) && rk_rows_aligned(args->x)};

    rk_launch({stream, dim3((unsigned)args->y.shape[0]), dim3(RK_TILE_FLAT_THREADS), 0},
              moe_combine_kernel<T>, combine);
}

} // namespace

extern "C" struct rk_status *rk_cuda_op_moe_sort(void *dev, void *stream, const struct rk_moe_sort_args *args)
{
    sort_args sort = {(int32_t *)args->offsets.data,
                      (int32_t *)args->tokens.data,
                      (int32_t *)args->places.data,
                      (const int32_t *)args->ids.data,
                      (int)(args->ids.shape[0] * args->ids.shape[1]),
                      (int)args->ids.shape[1],
                      (int)args->offsets.shape[0] - 1,
                      (int)args->first};

    rk_launch({(const struct rk_cuda_stream *)stream, dim3((unsigned)sort.experts), dim3(SORT_THREADS), 0},
              moe_sort_kernel, sort);
    return rk_cuda_launched((struct rk_cuda_device *)dev, (struct rk_cuda_stream *)stream, "moe_sort");
}

extern "C" struct rk_status *rk_cuda_op_moe_combine(void *dev, void *stream,
                                                    const struct rk_moe_combine_args *args)
{
    RK_TRY(rk_check_grid("moe_combine", args->y.shape[0]));
    RK_FOR_DTYPE("moe_combine", args->x.dtype, T,
                 launch_combine<T>((const struct rk_cuda_stream *)stream, args));
    return rk_cuda_launched((struct rk_cuda_device *)dev, (struct rk_cuda_stream *)stream, "moe_combine");
}
