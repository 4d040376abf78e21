/* Twin of the backward pass of kernels/cpu/rmsnorm.c.
 *
 * Work split   RK_TILE_NORM_PARTS blocks of consecutive rows each, as many rows at a time as a block has
 *              groups of threads, so that a thread keeps its columns' share of dweight in registers; the
 *              group's next row is loaded to shared memory meanwhile, each thread's packs to a separate
 *              place. column_finish_kernel adds the parts, 32 columns a block.
 *
 * Traffic      Read dy, x, dresidual, write dx: 8 bytes an element in bf16, and 4 * RK_TILE_NORM_PARTS bytes
 *              a column twice. 8192 x 1536: 101 MB, 23 us at 4.3 TB/s.
 *
 * Measured     H200, bf16, 8192 rows of 1536 and of 3584: 31.2 us (75% of 4.3 TB/s) and 64.0 (85%), of which
 *              the second kernel takes about 3 at any size.
 *
 * Limits       hidden_size <= 16384 (RK_TILE_NORM_*). Rows that are not aligned, or of which
 *              RK_TILE_NORM_STAGES do not fit into shared memory, are not loaded ahead.
 *
 * Numerics     f32 (f64 for F64). Sums over a row have the order of rk_block_sum over threads that depend on
 *              hidden_size only, and so do a row's bits. dweight is summed in ascending rows inside a group,
 *              then groups, then parts in a fixed order: reproducible, but its bits depend on the number of
 *              rows.
 *
 * Tried        At 1536 and 3584: blocks of one group, 256 parts with four rows in flight each: 38.4 and 72.9
 *              us; 264 parts: 33.1 and 79.7. Two rows of each group in flight: 33.6 and 67.9. The parts added
 *              by the last blocks of the same launch, in two steps: 9 and 19 us more, because one SM reads
 *              too slowly. The second kernel with 256 threads a block: 1 us more. The block's barrier in the
 *              loop, groups in step: 0.7 and 0.6 us more. */
#include "kernels/cuda/column_sum.cuh"
#include "kernels/cuda/norm/rmsnorm.cuh"

template <class T> struct norm_bwd {
    T *dx;
    rk_acc<T> *parts; /* [gridDim.x, hidden_size] */
    const T *dy, *x, *dresidual, *weight;
    const rk_acc<T> *rstd;
    int64_t dx_stride, dy_stride, x_stride, dresidual_stride;
    int64_t rows_per_part;
    bool is_staged; /* rows are copied to shared memory ahead */
};

/* One thread's part of one row. */
template <class T, int PACKS> struct norm_row {
    rk_pack<T, RK_TILE_PACK> dy[PACKS], x[PACKS], dresidual[PACKS];
    rk_acc<T> rstd;
    int64_t idx;
};

template <class T, int PACKS>
__device__ __forceinline__ void norm_load(norm_row<T, PACKS> &out, const norm_bwd<T> &args, norm_shape shape,
                                          int64_t row)
{
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        int64_t col = (int64_t)(p * blockDim.x + threadIdx.x) * RK_TILE_PACK;
        int64_t count = shape.hidden_size - col;

        out.dy[p] = rk_load<RK_TILE_PACK>(args.dy + row * args.dy_stride + col, count, shape.aligned);
        out.x[p] = rk_load<RK_TILE_PACK>(args.x + row * args.x_stride + col, count, shape.aligned);
        if (args.dresidual)
            out.dresidual[p] = rk_load<RK_TILE_PACK>(args.dresidual + row * args.dresidual_stride + col,
                                                     count, shape.aligned);
    }
}

/* Shared memory of one row of a group: packs by tensor, pack of the thread, thread. */
template <class T, int PACKS> struct norm_stage {
    typedef rk_pack<T, RK_TILE_PACK> pack;

    /* `turn`: index among the group's rows */
    __device__ __forceinline__ static pack *at(void *shared, int turn, int tensor, int p)
    {
        unsigned stage = threadIdx.y * RK_TILE_NORM_STAGES + (unsigned)turn % RK_TILE_NORM_STAGES;

        return (pack *)shared + ((stage * 3 + tensor) * PACKS + p) * blockDim.x + threadIdx.x;
    }
};

/* The rows of a group: every blockDim.y-th from `begin` on. */
struct norm_rows {
    int64_t begin, end;
};

/* Starts the copy of this thread's packs of a row, if it exists; commits one group of copies in any case. */
template <class T, int PACKS>
__device__ __forceinline__ void norm_prefetch(void *shared, int turn, const norm_bwd<T> &args,
                                              norm_shape shape, norm_rows rows)
{
    int64_t row = rows.begin + turn * (int64_t)blockDim.y;
    const T *tensors[3] = {args.dy + row * args.dy_stride, args.x + row * args.x_stride,
                           args.dresidual + row * args.dresidual_stride};

    for (int t = 0; t < (args.dresidual ? 3 : 2) && row < rows.end; t++) {
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            int64_t col = (int64_t)(p * blockDim.x + threadIdx.x) * RK_TILE_PACK;
            char *dst = (char *)norm_stage<T, PACKS>::at(shared, turn, t, p);
            const char *src = (const char *)(tensors[t] + col);
            int64_t bytes = (shape.hidden_size - col) * (int64_t)sizeof(T);

#pragma unroll
            for (int b = 0; b < (int)sizeof(rk_pack<T, RK_TILE_PACK>); b += 16)
                rk_copy16(dst + b, bytes > b ? src + b : (const char *)args.dy, bytes - b);
        }
    }
    rk_copy_commit();
}

/* The row that norm_prefetch copied; valid when RK_TILE_NORM_STAGES - 1 later groups have been committed. */
template <class T, int PACKS>
__device__ __forceinline__ void norm_take(norm_row<T, PACKS> &out, void *shared, int turn, bool has_dresidual)
{
    constexpr int WORDS = rk_pack<T, RK_TILE_PACK>::WORDS;

    rk_copy_wait<RK_TILE_NORM_STAGES - 1>();
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        rk_load_words<WORDS>(out.dy[p].word, norm_stage<T, PACKS>::at(shared, turn, 0, p));
        rk_load_words<WORDS>(out.x[p].word, norm_stage<T, PACKS>::at(shared, turn, 1, p));
        if (has_dresidual)
            rk_load_words<WORDS>(out.dresidual[p].word, norm_stage<T, PACKS>::at(shared, turn, 2, p));
    }
}

/* Terms of one pack: g = dy * weight and xhat, kept until the mean is known. */
template <class A> struct norm_terms {
    A g[RK_TILE_PACK], xhat[RK_TILE_PACK];
};

/* Adds the row's contribution to dweight and returns the thread's part of sum(g * xhat). */
template <class T, int PACKS>
__device__ __forceinline__ rk_acc<T> norm_products(norm_terms<rk_acc<T>> (&terms)[PACKS],
                                                   const norm_row<T, PACKS> &row,
                                                   const rk_pack<T, RK_TILE_PACK> (&weight)[PACKS],
                                                   rk_acc<T> (&dweight)[PACKS][RK_TILE_PACK])
{
    typedef rk_acc<T> A;
    A sum = 0;

#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        A dy[RK_TILE_PACK], w[RK_TILE_PACK];

        rk_unpack(dy, row.dy[p]);
        rk_unpack(terms[p].xhat, row.x[p]);
        rk_unpack(w, weight[p]);
#pragma unroll
        for (int i = 0; i < RK_TILE_PACK; i++) {
            terms[p].xhat[i] *= row.rstd;
            terms[p].g[i] = dy[i] * w[i];
            dweight[p][i] = rk_fma(dy[i], terms[p].xhat[i], dweight[p][i]);
            sum = rk_fma(terms[p].g[i], terms[p].xhat[i], sum);
        }
    }
    return sum;
}

/* dx = dresidual + rstd * (g - xhat * mean) */
template <class T, int PACKS>
__device__ __forceinline__ void norm_store(const norm_terms<rk_acc<T>> (&terms)[PACKS],
                                           const norm_row<T, PACKS> &row, const norm_bwd<T> &args,
                                           norm_shape shape, rk_acc<T> mean)
{
    typedef rk_acc<T> A;

#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        int64_t col = (int64_t)(p * blockDim.x + threadIdx.x) * RK_TILE_PACK;
        A dx[RK_TILE_PACK] = {};

        if (args.dresidual)
            rk_unpack(dx, row.dresidual[p]);
#pragma unroll
        for (int i = 0; i < RK_TILE_PACK; i++)
            dx[i] = rk_fma(row.rstd, rk_fma(-terms[p].xhat[i], mean, terms[p].g[i]), dx[i]);
        rk_store(args.dx + row.idx * args.dx_stride + col, rk_repack<T>(dx), shape.hidden_size - col,
                 shape.aligned);
    }
}

/* Processes the rows of this group; its sums for dweight stay in registers. */
template <class T, int PACKS>
__device__ __forceinline__ void norm_group(rk_acc<T> (&dweight)[PACKS][RK_TILE_PACK], void *stages,
                                           const norm_bwd<T> &args, norm_shape shape)
{
    typedef rk_acc<T> A;
    __shared__ A shared[RK_TILE_NORM_GROUPS_MAX * 64];
    rk_pack<T, RK_TILE_PACK> weight[PACKS];
    norm_row<T, PACKS> row;
    norm_terms<A> terms[PACKS];
    A inv_size = (A)1 / (A)shape.hidden_size, rstd;
    int64_t begin = blockIdx.x * args.rows_per_part;
    norm_rows rows = {begin + threadIdx.y, RK_MIN(begin + args.rows_per_part, shape.num_rows)};
    int turn = 0;

    for (int ahead = 0; args.is_staged && ahead < RK_TILE_NORM_STAGES - 1; ahead++)
        norm_prefetch<T, PACKS>(stages, ahead, args, shape, rows);
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        int64_t col = (int64_t)(p * blockDim.x + threadIdx.x) * RK_TILE_PACK;

        weight[p] =
            rk_load<RK_TILE_PACK>(args.weight + col, shape.hidden_size - col, rk_aligned16(args.weight));
    }
    rstd = rows.begin < rows.end ? args.rstd[rows.begin] : (A)0;
    for (int64_t r = rows.begin; r < rows.end; r += blockDim.y, turn++) {
        A mean;

        row.rstd = rstd;
        row.idx = r;
        rstd = r + blockDim.y < rows.end ? args.rstd[r + blockDim.y] : (A)0; /* loaded ahead as well */
        if (args.is_staged) {
            norm_prefetch<T, PACKS>(stages, turn + RK_TILE_NORM_STAGES - 1, args, shape, rows);
            norm_take(row, stages, turn, args.dresidual != NULL);
        } else {
            norm_load(row, args, shape, r);
        }
        mean = rk_group_sum_in_turn(norm_products(terms, row, weight, dweight), shared, turn) * inv_size;
        norm_store(terms, row, args, shape, mean);
    }
    if (turn * blockDim.y < rows.end - begin)
        rk_group_sync(); /* other groups have had one row more */
    rk_copy_wait<0>();
}

/* Adds the sums of the block's groups in ascending order and writes its part. */
template <class T, int PACKS>
__device__ __forceinline__ void norm_store_part(const rk_acc<T> (&dweight)[PACKS][RK_TILE_PACK],
                                                rk_acc<T> *shared, const norm_bwd<T> &args, int hidden_size)
{
    rk_acc<T> *part = args.parts + (int64_t)blockIdx.x * hidden_size;
    int num_packs = PACKS * (int)blockDim.x, threads = (int)(blockDim.x * blockDim.y);
    rk_acc<T> *own = shared + (int)threadIdx.y * num_packs * RK_TILE_PACK; /* [RK_TILE_PACK][num_packs] */

    __syncthreads(); /* no group still reads rows in shared memory */
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        int pack = p * (int)blockDim.x + (int)threadIdx.x;

#pragma unroll
        for (int i = 0; i < RK_TILE_PACK; i++) {
            if (blockDim.y > 1)
                own[i * num_packs + pack] = dweight[p][i];
            else if (pack * RK_TILE_PACK + i < hidden_size)
                part[pack * RK_TILE_PACK + i] = dweight[p][i];
        }
    }
    if (blockDim.y == 1)
        return;
    __syncthreads(); /* all groups have written their sums */
    for (int col = (int)(threadIdx.y * blockDim.x + threadIdx.x); col < hidden_size; col += threads) {
        int at = col % RK_TILE_PACK * num_packs + col / RK_TILE_PACK;
        rk_acc<T> sum = 0;

        for (int group = 0; group < (int)blockDim.y; group++)
            sum += shared[group * num_packs * RK_TILE_PACK + at];
        part[col] = sum;
    }
}

template <class T, int PACKS>
__global__ void __launch_bounds__(PACKS == 1 ? RK_TILE_NORM_GROUPED_THREADS : RK_TILE_NORM_THREADS_MAX, 1)
    rmsnorm_bwd_kernel(norm_bwd<T> args, norm_shape shape)
{
    typedef rk_acc<T> A;
    extern __shared__ __align__(16) unsigned char stages[];
    A dweight[PACKS][RK_TILE_PACK] = {};

    rk_wait_for_stream();
    norm_group<T, PACKS>(dweight, stages, args, shape);
    norm_store_part<T, PACKS>(dweight, (A *)stages, args, (int)shape.hidden_size);
}

/* As many groups as RK_TILE_NORM_* allow. Not more on a device with more shared memory, because the bits of
 * dweight depend on it. */
template <class T, int PACKS>
static cudaError_t launch_parts(const struct rk_cuda_stream *stream, norm_bwd<T> bwd, norm_shape shape)
{
    int threads = norm_threads(shape.hidden_size, PACKS), groups, bytes;
    int most = (PACKS == 1 ? RK_TILE_NORM_GROUPED_THREADS : RK_TILE_NORM_THREADS_MAX) / threads;
    int row_bytes = RK_TILE_NORM_STAGES * 3 * PACKS * threads * (int)sizeof(rk_pack<T, RK_TILE_PACK>);
    dim3 parts((unsigned)rk_ceil_div(shape.num_rows, bwd.rows_per_part));
    cudaError_t error;

    groups = RK_MIN(RK_MIN(most, RK_TILE_NORM_GROUPS_MAX), RK_TILE_NORM_GROUP_BYTES / row_bytes);
    groups = RK_MAX(groups, 1);
    bytes = groups * row_bytes;
    bwd.is_staged = shape.aligned && bytes <= stream->dev->max_shared_bytes - RK_TILE_NORM_STATIC_BYTES;
    if (!bwd.is_staged && groups == 1)
        bytes = 0;
    error = cudaFuncSetAttribute(rmsnorm_bwd_kernel<T, PACKS>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 bytes);
    if (error == cudaSuccess)
        rk_launch({stream, parts, dim3(threads, groups), (size_t)bytes}, rmsnorm_bwd_kernel<T, PACKS>, bwd,
                  shape);
    return error;
}

template <class T>
static cudaError_t launch_bwd(const struct rk_cuda_stream *stream, const struct rk_rmsnorm_bwd_args *args,
                              norm_shape shape)
{
    typedef rk_acc<T> A;
    norm_bwd<T> bwd = {(T *)args->dx.data,
                       (A *)stream->scratch.data,
                       (const T *)args->dy.data,
                       (const T *)args->x.data,
                       (const T *)args->dresidual.data,
                       (const T *)args->weight.data,
                       (const A *)args->rstd.data,
                       args->dx.row_stride,
                       args->dy.row_stride,
                       args->x.row_stride,
                       args->dresidual.row_stride,
                       rk_ceil_div(shape.num_rows, RK_TILE_NORM_PARTS),
                       false};

    cudaError_t error;

    if (norm_is_wide(shape.hidden_size))
        error = launch_parts<T, RK_TILE_NORM_PACKS_MAX>(stream, bwd, shape);
    else
        error = launch_parts<T, 1>(stream, bwd, shape);
    if (error == cudaSuccess)
        launch_column_finish<T, RK_TILE_NORM_PARTS>(stream, args->dweight, bwd.parts,
                                                    (int)rk_ceil_div(shape.num_rows, bwd.rows_per_part));
    return error;
}

extern "C" struct rk_workspace rk_cuda_workspace_rmsnorm_bwd(const void *dev,
                                                             const struct rk_rmsnorm_bwd_args *args)
{
    (void)dev;
    return {RK_TILE_NORM_PARTS * (size_t)args->dy.shape[1] * rk_dtype_bytes(args->rstd.dtype), 0};
}

extern "C" struct rk_status *rk_cuda_op_rmsnorm_bwd(void *dev, void *stream,
                                                    const struct rk_rmsnorm_bwd_args *args)
{
    struct rk_cuda_stream *on = (struct rk_cuda_stream *)stream;
    struct rk_workspace workspace = rk_cuda_workspace_rmsnorm_bwd(dev, args);
    norm_shape shape = {args->dy.shape[0], args->dy.shape[1],
                        rk_rows_aligned(args->dy) && rk_rows_aligned(args->x) && rk_rows_aligned(args->dx) &&
                            (!args->dresidual.data || rk_rows_aligned(args->dresidual))};

    RK_TRY(norm_check("rmsnorm_bwd", shape));
    RK_TRY(rk_cuda_reserve(on, &on->scratch, workspace.scratch_bytes));
    RK_FOR_DTYPE("rmsnorm_bwd", args->dy.dtype, T, RK_CUDA(launch_bwd<T>(on, args, shape)));
    return rk_cuda_launched((struct rk_cuda_device *)dev, on, "rmsnorm_bwd");
}
