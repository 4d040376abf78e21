/* Gradients of a narrow linear layer with dozens of columns or more, in full precision.
 *
 * Work split   Both gradients are products of dscores and a matrix of dtype T:
 *                dx [rows, hidden_size]       = dscores [rows, columns] weight [columns, hidden_size]
 *                dweight [columns, hidden_size] = dscores^T [columns, rows] x [rows, hidden_size]
 *              A block computes 128 x 128 elements, a thread 8 x 8 of them, from two buffers in shared
 * memory; the next operands are loaded to registers meanwhile. The rows of dweight's sum are divided into
 * parts, so that there are about RK_TILE_PROJECT_BLOCKS blocks; column_finish_kernel adds them.
 *
 * Numerics     f32 (f64 for F64), without tensor cores. dx is one chain in ascending columns: the bits of
 *              project.cu. dweight: one chain per part in ascending rows, then parts in a fixed order:
 *              reproducible, but its bits depend on the number of rows. */
#include "kernels/cuda/gemm/project_wide.h"
#include "kernels/cuda/column_sum.cuh"

namespace
{

constexpr int TILE = 128, SIDE = 16, THREADS = SIDE * SIDE;
constexpr int EDGE = TILE / SIDE; /* elements of a thread in each dimension: two runs of 4, 64 apart */
constexpr int MIN_COLUMNS = 32;

/* Summed elements that a buffer has, and elements of an operand that a thread loads for it. */
template <class A> constexpr int DEPTH = 64 / (int)sizeof(A);
template <class A> constexpr int LOADS = DEPTH<A> *TILE / THREADS;

template <class A> struct operands {
    alignas(16) A a[DEPTH<A>][TILE + 4];
    alignas(16) A b[DEPTH<A>][TILE + 4];
};

/* out[m][n] = sum_k a(m, k) b[k][n] for k of one part; a(m, k) is at m * a_stride + k, or with SUMS_ROWS at
 * k * a_stride + m. */
template <class T> struct product {
    void *out; /* dx, or with SUMS_ROWS parts of rk_acc<T> [gridDim.z, m, n] */
    const rk_acc<T> *a;
    const T *b;
    int64_t out_stride, a_stride, b_stride;
    int64_t m, n, k, k_per_part;
    bool a_aligned, b_aligned, out_aligned; /* all rows */
};

/* What a thread loads of the operands of one buffer. */
template <class T> struct loaded {
    rk_pack<rk_acc<T>, LOADS<rk_acc<T>>> a;
    rk_pack<T, LOADS<rk_acc<T>>> b;
};

/* Where a thread's elements begin in an operand with consecutive elements along the 128, or along k. */
template <class A> struct place {
    int row = (int)threadIdx.x / (TILE / LOADS<A>), col = (int)threadIdx.x % (TILE / LOADS<A>)*LOADS<A>;
    int line = (int)threadIdx.x / (DEPTH<A> / LOADS<A>);
    int depth = (int)threadIdx.x % (DEPTH<A> / LOADS<A>)*LOADS<A>;
};

template <bool SUMS_ROWS, class T>
__device__ __forceinline__ void load(loaded<T> &out, const product<T> &p, int64_t k, int64_t k_end)
{
    typedef rk_acc<T> A;
    constexpr int N = LOADS<A>;
    int64_t m = blockIdx.x * (int64_t)TILE, n = blockIdx.y * (int64_t)TILE;
    place<A> at;

    if (SUMS_ROWS)
        out.a = rk_load<N>(p.a + (k + at.row) * p.a_stride + m + at.col,
                           k + at.row < k_end ? p.m - m - at.col : 0, p.a_aligned);
    else
        out.a = rk_load<N>(p.a + (m + at.line) * p.a_stride + k + at.depth,
                           m + at.line < p.m ? k_end - k - at.depth : 0, p.a_aligned);
    out.b = rk_load<N>(p.b + (k + at.row) * p.b_stride + n + at.col,
                       k + at.row < k_end ? p.n - n - at.col : 0, p.b_aligned);
}

template <bool SUMS_ROWS, class T>
__device__ __forceinline__ void put(operands<rk_acc<T>> &shared, const loaded<T> &in)
{
    typedef rk_acc<T> A;
    A a[LOADS<A>], b[LOADS<A>];
    place<A> at;

    rk_unpack(a, in.a);
    rk_unpack(b, in.b);
#pragma unroll
    for (int i = 0; i < LOADS<A>; i++) {
        if (SUMS_ROWS)
            shared.a[at.row][at.col + i] = a[i];
        else
            shared.a[at.depth + i][at.line] = a[i];
        shared.b[at.row][at.col + i] = b[i];
    }
}

/* Element i of a thread's 8 along one dimension of the tile. */
__device__ __forceinline__ int edge(int thread, int i)
{
    return i / 4 * (TILE / 2) + thread * 4 + i % 4;
}

template <class A> __device__ __forceinline__ void add(A (&sum)[EDGE][EDGE], const operands<A> &shared)
{
    int tx = (int)threadIdx.x % SIDE, ty = (int)threadIdx.x / SIDE;

#pragma unroll
    for (int k = 0; k < DEPTH<A>; k++) {
        A a[EDGE], b[EDGE];

#pragma unroll
        for (int i = 0; i < EDGE; i++) {
            a[i] = shared.a[k][edge(ty, i)];
            b[i] = shared.b[k][edge(tx, i)];
        }
#pragma unroll
        for (int i = 0; i < EDGE * EDGE; i++)
            sum[i / EDGE][i % EDGE] = rk_fma(a[i / EDGE], b[i % EDGE], sum[i / EDGE][i % EDGE]);
    }
}

template <class D, class T>
__device__ __forceinline__ void store(const product<T> &p, D *out, const rk_acc<T> (&sum)[EDGE][EDGE])
{
    int tx = (int)threadIdx.x % SIDE, ty = (int)threadIdx.x / SIDE;

#pragma unroll
    for (int i = 0; i < EDGE; i++) {
        int64_t m = blockIdx.x * (int64_t)TILE + edge(ty, i);

#pragma unroll
        for (int j = 0; j < EDGE && m < p.m; j += 4) {
            int64_t n = blockIdx.y * (int64_t)TILE + edge(tx, j);
            rk_acc<T> run[4] = {sum[i][j], sum[i][j + 1], sum[i][j + 2], sum[i][j + 3]};

            rk_store(out + m * p.out_stride + n, rk_repack<D>(run), p.n - n, p.out_aligned);
        }
    }
}

template <class T, bool SUMS_ROWS>
__global__ void __launch_bounds__(THREADS, sizeof(rk_acc<T>) == 4 ? 2 : 1) product_kernel(product<T> p)
{
    typedef rk_acc<T> A;
    __shared__ operands<A> shared[2];
    int64_t k = blockIdx.z * p.k_per_part, k_end = RK_MIN(k + p.k_per_part, p.k);
    A sum[EDGE][EDGE] = {};
    loaded<T> next;

    rk_wait_for_stream();
    load<SUMS_ROWS>(next, p, k, k_end);
    for (int i = 0; k < k_end; i ^= 1) {
        put<SUMS_ROWS, T>(shared[i], next);
        __syncthreads(); /* buffer i is written; all have read the other one, which is written next */
        k += DEPTH<A>;
        load<SUMS_ROWS>(next, p, k, k_end);
        add(sum, shared[i]);
    }
    if (SUMS_ROWS)
        store(p, (A *)p.out + (int64_t)blockIdx.z * p.m * p.n, sum);
    else
        store(p, (T *)p.out, sum);
}

unsigned tiles(int64_t elements)
{
    return (unsigned)rk_ceil_div(elements, TILE);
}

/* The number of parts that gives up to RK_TILE_PROJECT_BLOCKS blocks and at least 128 rows for each. */
int64_t count_parts(const struct rk_project_bwd_args *args)
{
    int64_t num_tiles = (int64_t)tiles(args->weight.shape[0]) * tiles(args->x.shape[1]);

    return RK_MAX(RK_MIN(RK_TILE_PROJECT_BLOCKS / num_tiles, args->x.shape[0] / TILE), (int64_t)1);
}

template <class T> void launch_dx(const struct rk_cuda_stream *stream, const struct rk_project_bwd_args *args)
{
    int64_t num_cols = args->weight.shape[0], hidden_size = args->x.shape[1], num_rows = args->x.shape[0];
    product<T> p = {args->dx.data,
                    (const rk_acc<T> *)args->dscores.data,
                    (const T *)args->weight.data,
                    args->dx.row_stride,
                    args->dscores.row_stride,
                    args->weight.row_stride,
                    num_rows,
                    hidden_size,
                    num_cols,
                    num_cols,
                    rk_rows_aligned(args->dscores),
                    rk_rows_aligned(args->weight),
                    rk_rows_aligned(args->dx)};
    rk_grid grid = {stream, dim3(tiles(num_rows), tiles(hidden_size)), dim3(THREADS), 0};

    rk_launch(grid, product_kernel<T, false>, p);
}

template <class T>
void launch_dweight(const struct rk_cuda_stream *stream, const struct rk_project_bwd_args *args)
{
    int64_t num_cols = args->weight.shape[0], hidden_size = args->x.shape[1], num_rows = args->x.shape[0];
    int64_t rows_per_part = rk_ceil_div(num_rows, count_parts(args));
    int num_parts = (int)rk_ceil_div(num_rows, rows_per_part);
    product<T> p = {stream->scratch.data,
                    (const rk_acc<T> *)args->dscores.data,
                    (const T *)args->x.data,
                    hidden_size,
                    args->dscores.row_stride,
                    args->x.row_stride,
                    num_cols,
                    hidden_size,
                    num_rows,
                    rows_per_part,
                    rk_rows_aligned(args->dscores),
                    rk_rows_aligned(args->x),
                    hidden_size % RK_TILE_PACK == 0};
    rk_grid grid = {stream, dim3(tiles(num_cols), tiles(hidden_size), (unsigned)num_parts), dim3(THREADS), 0};
    rk_tensor_t dweight = rk_tensor_1d(args->dweight.data, args->dweight.dtype, num_cols * hidden_size);

    rk_launch(grid, product_kernel<T, true>, p);
    launch_column_finish<T, RK_TILE_PROJECT_BLOCKS>(stream, dweight, (const rk_acc<T> *)p.out, num_parts,
                                                    args->overwrites_dweight);
}

template <class T> void launch(const struct rk_cuda_stream *stream, const struct rk_project_bwd_args *args)
{
    launch_dx<T>(stream, args);
    launch_dweight<T>(stream, args);
}

} // namespace

extern "C" bool rk_project_wide_takes(const struct rk_project_bwd_args *args)
{
    return args->weight.shape[0] >= MIN_COLUMNS;
}

extern "C" size_t rk_project_wide_scratch_bytes(const struct rk_project_bwd_args *args)
{
    return (size_t)(count_parts(args) * args->weight.shape[0] * args->x.shape[1]) *
           rk_dtype_bytes(args->dscores.dtype);
}

extern "C" struct rk_status *rk_project_wide_bwd(const struct rk_cuda_stream *stream,
                                                 const struct rk_project_bwd_args *args)
{
    RK_FOR_DTYPE("project_bwd", args->x.dtype, T, launch<T>(stream, args));
    return NULL;
}
