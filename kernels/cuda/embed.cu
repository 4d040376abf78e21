/* Twin of kernels/cpu/embed.c.
 *
 * Work split   Forward: a row move. Backward: embed_sort_kernel counts for each token how many come
 *              before it in the order of (row, t), which is where it goes: a block for 64 tokens, eight
 *              threads each. Then embed_bwd_kernel has a block for RK_TILE_EMBED_SEGMENT sorted tokens
 *              and walks the runs of equal rows in it; runs that go on into other segments leave
 *              partial sums, which embed_finish_kernel adds in ascending order.
 *
 * Traffic      Backward: read dout once, read and write the rows of dtable that occur, and partial sums
 *              of at most 8 * hidden_size bytes a segment.
 *
 * Measured     H200, bf16, 8192 tokens of 1000 different ones: 36 us at 1536 columns (24% of 4.3 TB/s),
 *              56 us at 3584 (36%): three launches that wait for each other.
 *
 * Limits       Fewer than 2^31 tokens and rows. The sort compares all pairs of tokens: its time
 *              grows with their square.
 *
 * Numerics     f32 (f64 for F64), one rounding. No atomics; the sum of a row has an order that depends
 *              on the tokens alone.
 *
 * Tried        Sorting with cub::DeviceRadixSort and one chain a row: 54 and 71 us, and a row that
 *              makes up a tenth of the tokens was one chain of so many loads. Segments of 16: 39 and 62
 *              us. An early start (rk_launch): 52 and 82 us, blocks that wait take the place of those
 *              that work. */
#include "kernels/cuda/cuda_common.cuh"

extern "C" struct rk_status *rk_cuda_op_embed_fwd(void *dev, void *stream,
                                                  const struct rk_embed_fwd_args *args)
{
    struct rk_cuda_row_move move = {};

    move.dst = args->out;
    move.src = args->table;
    move.src_index = (const int32_t *)args->tokens.data;
    move.src_begin = args->vocab_begin;
    move.num_rows = args->out.shape[0];
    return rk_cuda_move_rows((struct rk_cuda_device *)dev, (struct rk_cuda_stream *)stream, &move,
                             "embed_fwd");
}

/* --- the order --- */

/* Tokens, and the rows that they stand for. */
struct embed_tokens {
    const int32_t *tokens;
    int64_t vocab_begin;
    int32_t num_tokens, num_rows;

    /* num_rows where it is elsewhere, which sorts last */
    __device__ __forceinline__ int32_t row(int32_t t) const
    {
        int64_t row = tokens[t] - vocab_begin;

        return row >= 0 && row < num_rows ? (int32_t)row : num_rows;
    }
};

constexpr int SORT_TOKENS = 64, SORT_SHARES = 8, SORT_THREADS = SORT_TOKENS * SORT_SHARES;
constexpr int SORT_TILE = 2048; /* tokens that are compared with at a time */

/* How many of `count` rows (a multiple of 4) are below `bound`. */
__device__ __forceinline__ int count_below(const int32_t *rows, int count, int32_t bound)
{
    int below = 0;

#pragma unroll 8
    for (int i = 0; i < count; i += 4) {
        int4 four = *(const int4 *)(rows + i);

        below += (four.x < bound) + (four.y < bound) + (four.z < bound) + (four.w < bound);
    }
    return below;
}

/* Sorted tokens: rows and t. Thread (i, s) compares token i of the block with an eighth of each tile. */
__global__ void __launch_bounds__(SORT_THREADS)
    embed_sort_kernel(int32_t *__restrict__ sorted_rows, int32_t *__restrict__ sorted_t, embed_tokens all)
{
    constexpr int SHARE = SORT_TILE / SORT_SHARES;
    __shared__ __align__(16) int32_t rows[SORT_TILE];
    __shared__ int counts[SORT_SHARES][SORT_TOKENS];
    int i = threadIdx.x % SORT_TOKENS, share = threadIdx.x / SORT_TOKENS, place = 0;
    int32_t t = (int32_t)blockIdx.x * SORT_TOKENS + i;
    int32_t mine;

    mine = t < all.num_tokens ? all.row(t) : all.num_rows;
    for (int32_t base = 0; base < all.num_tokens; base += SORT_TILE) {
        int32_t first = base + share * SHARE; /* of my share of the tile */

        __syncthreads(); /* the last tile has been read */
        for (int j = threadIdx.x; j < SORT_TILE; j += SORT_THREADS)
            rows[j] = base + j < all.num_tokens ? all.row(base + j) : INT32_MAX;
        __syncthreads();          /* the tile is there */
        if (first + SHARE <= t) { /* all before me: equal rows count */
            place += count_below(rows + share * SHARE, SHARE, mine + 1);
        } else if (first > t) {
            place += count_below(rows + share * SHARE, SHARE, mine);
        } else {
            for (int j = 0; j < SHARE; j++)
                place += rows[share * SHARE + j] < mine + (first + j < t ? 1 : 0);
        }
    }
    counts[share][i] = place;
    __syncthreads(); /* all shares are counted */
    if (share > 0 || t >= all.num_tokens)
        return;
    for (int s = 1; s < SORT_SHARES; s++)
        place += counts[s][i];
    sorted_rows[place] = mine;
    sorted_t[place] = t;
}

/* --- the sums --- */

template <class T, class D> struct embed_sum {
    D *dtable;
    const T *dout;
    const int32_t *rows, *order; /* sorted */
    rk_acc<T> *partial; /* [segment][2][num_cols]: of the run it begins inside of, and ends inside of */
    int64_t dtable_stride, dout_stride, num_cols;
    int32_t num_tokens, num_rows;
    bool table_aligned, dout_aligned;

    __device__ __forceinline__ int32_t row_at(int32_t i) const
    {
        return i >= 0 && i < num_tokens ? rows[i] : num_rows;
    }
};

/* The columns of a thread. */
template <class A> struct embed_cols {
    A sum[RK_TILE_PACK];
    int64_t col, count;
};

template <class T, class D>
__device__ __forceinline__ void add_to_row(const embed_sum<T, D> &args, const embed_cols<rk_acc<T>> &own,
                                           int32_t row, rk_pack<D, RK_TILE_PACK> total)
{
#pragma unroll
    for (int e = 0; e < RK_TILE_PACK; e++)
        total.set(e, rk_narrow<D>(rk_widen<rk_acc<T>>(total.get(e)) + own.sum[e]));
    rk_store(args.dtable + row * args.dtable_stride + own.col, total, own.count, args.table_aligned);
}

/* `which`: 0 for the run that the segment begins inside of. */
template <class T, class D>
__device__ __forceinline__ rk_acc<T> *partial_at(const embed_sum<T, D> &args, int32_t segment, int which,
                                                 int64_t col)
{
    return args.partial + ((int64_t)segment * 2 + which) * args.num_cols + col;
}

template <class T, class D>
__device__ __forceinline__ void store_partial(const embed_sum<T, D> &args, const embed_cols<rk_acc<T>> &own,
                                              int32_t segment, int which)
{
    rk_acc<T> *at = partial_at(args, segment, which, own.col);

#pragma unroll
    for (int e = 0; e < RK_TILE_PACK; e++) {
        if (e < own.count)
            at[e] = own.sum[e];
    }
}

/* Block (segment, c): the runs of equal rows in a segment of sorted tokens. */
template <class T, class D>
__global__ void __launch_bounds__(RK_TILE_EMBED_THREADS_MAX) embed_bwd_kernel(embed_sum<T, D> args)
{
    constexpr int U = RK_TILE_EMBED_UNROLL;
    int32_t segment = (int32_t)blockIdx.x, begin = segment * RK_TILE_EMBED_SEGMENT;
    int32_t end = RK_MIN(begin + RK_TILE_EMBED_SEGMENT, args.num_tokens);
    embed_cols<rk_acc<T>> own = {};
    bool is_inside; /* the run began in an earlier segment */

    is_inside = args.row_at(begin) == args.row_at(begin - 1);
    own.col = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * RK_TILE_PACK;
    own.count = args.num_cols - own.col;
    if (own.count <= 0)
        return;
    for (int32_t i = begin; i < end; i += U) {
        rk_pack<T, RK_TILE_PACK> dout[U];
        rk_pack<D, RK_TILE_PACK> total[U];
        int32_t row[U + 1];

#pragma unroll
        for (int j = 0; j <= U; j++)
            row[j] = args.row_at(i + j);
#pragma unroll
        for (int j = 0; j < U; j++) {
            bool is_mine = i + j < end && row[j] < args.num_rows;
            bool is_last = is_mine && row[j + 1] != row[j];

            dout[j] = rk_load<RK_TILE_PACK>(args.dout + (is_mine ? args.order[i + j] : 0) * args.dout_stride +
                                                own.col,
                                            is_mine ? own.count : 0, args.dout_aligned);
            total[j] =
                rk_load<RK_TILE_PACK>(args.dtable + (is_last ? row[j] : 0) * args.dtable_stride + own.col,
                                      is_last ? own.count : 0, args.table_aligned);
        }
#pragma unroll
        for (int j = 0; j < U; j++) {
            if (i + j >= end || row[j] == args.num_rows)
                return;
#pragma unroll
            for (int e = 0; e < RK_TILE_PACK; e++)
                own.sum[e] += rk_widen<rk_acc<T>>(dout[j].get(e));
            if (row[j + 1] == row[j] && i + j + 1 < end)
                continue;
            if (is_inside)
                store_partial(args, own, segment, 0);
            else if (row[j + 1] == row[j])
                store_partial(args, own, segment, 1);
            else
                add_to_row(args, own, row[j], total[j]);
            is_inside = false;
#pragma unroll
            for (int e = 0; e < RK_TILE_PACK; e++)
                own.sum[e] = 0;
        }
    }
}

/* Block (segment, c): the run that begins in this segment and goes on in the next ones, if there is one. */
template <class T, class D>
__global__ void __launch_bounds__(RK_TILE_EMBED_THREADS_MAX) embed_finish_kernel(embed_sum<T, D> args)
{
    int32_t segment = (int32_t)blockIdx.x, next = (segment + 1) * RK_TILE_EMBED_SEGMENT;
    int32_t row, first = segment * RK_TILE_EMBED_SEGMENT;
    embed_cols<rk_acc<T>> own = {};

    row = args.row_at(next);
    own.col = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * RK_TILE_PACK;
    own.count = args.num_cols - own.col;
    if (own.count <= 0 || row == args.num_rows || args.row_at(next - 1) != row)
        return;
    if (args.row_at(first) == row && args.row_at(first - 1) == row)
        return; /* it began earlier */
#pragma unroll
    for (int e = 0; e < RK_TILE_PACK; e++)
        own.sum[e] = e < own.count ? partial_at(args, segment, 1, own.col)[e] : 0;
#pragma unroll 4
    for (int32_t s = segment + 1; args.row_at(s * RK_TILE_EMBED_SEGMENT) == row; s++) {
        const rk_acc<T> *at = partial_at(args, s, 0, own.col);

#pragma unroll
        for (int e = 0; e < RK_TILE_PACK; e++)
            own.sum[e] += e < own.count ? at[e] : 0;
    }
    add_to_row(args, own, row,
               rk_load<RK_TILE_PACK>(args.dtable + row * args.dtable_stride + own.col, own.count,
                                     args.table_aligned));
}

/* --- host side --- */

/* Sorted rows and tokens, then the partial sums. */
struct embed_scratch {
    int32_t *rows, *order;
    void *partial;
    size_t array_bytes, partial_bytes;
    int32_t num_segments;
};

/* Without addresses. */
static struct embed_scratch size_scratch(const struct rk_embed_bwd_args *args)
{
    int64_t num_tokens = args->dout.shape[0];
    struct embed_scratch scratch = {};

    scratch.num_segments = (int32_t)rk_ceil_div(num_tokens, RK_TILE_EMBED_SEGMENT);
    scratch.array_bytes = (size_t)rk_ceil_div(num_tokens, 64) * 64 * sizeof(int32_t);
    scratch.partial_bytes = (size_t)scratch.num_segments * 2 * (size_t)args->dout.shape[1] *
                            (args->dout.dtype == RK_DTYPE_F64 ? sizeof(double) : sizeof(float));
    return scratch;
}

static size_t scratch_bytes(const struct embed_scratch *scratch)
{
    return 2 * scratch->array_bytes + scratch->partial_bytes;
}

static struct rk_status *take_scratch(struct rk_cuda_stream *stream, struct embed_scratch *out,
                                      const struct rk_embed_bwd_args *args)
{
    char *base;

    *out = size_scratch(args);
    RK_TRY(rk_cuda_reserve(stream, &stream->scratch, scratch_bytes(out)));
    base = (char *)stream->scratch.data;
    out->rows = (int32_t *)base;
    out->order = (int32_t *)(base + out->array_bytes);
    out->partial = base + 2 * out->array_bytes;
    return NULL;
}

template <class T, class D>
static void launch_sum(cudaStream_t stream, const struct rk_embed_bwd_args *args,
                       const struct embed_scratch *scratch)
{
    int64_t num_packs = rk_ceil_div(args->dout.shape[1], RK_TILE_PACK);
    int threads = (int)RK_MIN(rk_ceil_div(num_packs, 32) * 32, (int64_t)RK_TILE_EMBED_THREADS_MAX);
    dim3 blocks((unsigned)scratch->num_segments, (unsigned)rk_ceil_div(num_packs, threads));
    embed_sum<T, D> sum = {(D *)args->dtable.data,
                           (const T *)args->dout.data,
                           scratch->rows,
                           scratch->order,
                           (rk_acc<T> *)scratch->partial,
                           args->dtable.row_stride,
                           args->dout.row_stride,
                           args->dout.shape[1],
                           (int32_t)args->dout.shape[0],
                           (int32_t)args->dtable.shape[0],
                           rk_rows_aligned(args->dtable),
                           rk_rows_aligned(args->dout)};

    embed_bwd_kernel<T, D><<<blocks, threads, 0, stream>>>(sum);
    embed_finish_kernel<T, D><<<blocks, threads, 0, stream>>>(sum);
}

template <class T>
static void launch_bwd(cudaStream_t stream, const struct rk_embed_bwd_args *args,
                       const struct embed_scratch *scratch)
{
    if (args->dtable.dtype == args->dout.dtype)
        launch_sum<T, T>(stream, args, scratch);
    else
        launch_sum<T, float>(stream, args, scratch);
}

extern "C" struct rk_workspace rk_cuda_workspace_embed_bwd(const void *dev,
                                                           const struct rk_embed_bwd_args *args)
{
    struct embed_scratch scratch = size_scratch(args);

    (void)dev;
    return {scratch_bytes(&scratch), 0};
}

extern "C" struct rk_status *rk_cuda_op_embed_bwd(void *dev, void *stream,
                                                  const struct rk_embed_bwd_args *args)
{
    struct rk_cuda_stream *on = (struct rk_cuda_stream *)stream;
    embed_tokens all = {(const int32_t *)args->tokens.data, args->vocab_begin, (int32_t)args->dout.shape[0],
                        (int32_t)args->dtable.shape[0]};
    struct embed_scratch scratch;

    RK_TRY(rk_check_grid("embed_bwd", args->dout.shape[0] + SORT_TILE));
    RK_TRY(rk_check_grid("embed_bwd", args->dtable.shape[0] + 1));
    RK_TRY(take_scratch(on, &scratch, args));
    embed_sort_kernel<<<(unsigned)rk_ceil_div(all.num_tokens, SORT_TOKENS), SORT_THREADS, 0, on->stream>>>(
        scratch.rows, scratch.order, all);
    RK_FOR_DTYPE("embed_bwd", args->dout.dtype, T, launch_bwd<T>(on->stream, args, &scratch));
    return rk_cuda_launched((struct rk_cuda_device *)dev, on, "embed_bwd");
}
