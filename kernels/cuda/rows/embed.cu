/* Twin of kernels/cpu/embed.c.
 *
 * Work split   Forward: a row move. Backward: embed_sort_kernel finds an order in which equal rows are
 *              neighbours. Each of its blocks has a range of the (permuted) rows, reads all tokens, counts
 *              those of each of its rows and those before its range, and assigns places to its own. Then
 *              embed_bwd_kernel has one block per RK_TILE_EMBED_SEGMENT places, which adds the tokens of the
 *              rows that begin there. More than RK_TILE_EMBED_PIECE tokens of one row are added in pieces,
 *              and the last block to finish adds the pieces.
 *
 * Traffic      Backward: read dout once, read and write the rows of dtable that occur; 4 bytes a column and
 *              piece of frequent tokens.
 *
 * Measured     H200, bf16 and a table in f32, 8192 tokens: 38.6 us at 1536 columns (76% of 4.3 TB/s) and 80
 *              us at 3584 (85%), with nearly all ids different; of this the sort takes 4.5 us. 1536 columns:
 *              39 us with 3729 different ids, as in a text; 46 if a tenth of the tokens have the same id, 100
 *              if all have; 14 if three quarters are on other ranks. 32768 tokens: 135 us.
 *
 * Limits       Fewer than 2^31 tokens and rows. Every block of the sort reads all tokens: 128 blocks, more
 *              for more than 2^18 rows.
 *
 * Numerics     f32 (f64 for F64), one rounding. No atomics on floats; the sum of a row has an order that
 *              depends on the tokens only.
 *
 * Tried        In us at 1536 columns. A sort whose blocks compare their tokens with all others of a range of
 *              rows: 7 more, 170 more if three quarters are on other ranks. No sort, but blocks that search
 *              all tokens for ids equal to their own eight, with the columns of a row split over its tokens:
 *              46, 165 in a text. Sums in the order of the tokens, with first rows prefetched into L2 during
 *              the sort: 40, up to twice as long with frequent tokens. Prefetching rows into L2 in the sort:
 *              2 more. 1024 threads in the sort: 0.9 more; few registers, so that blocks of the sums are
 *              resident at the same time: 2 more; keys recomputed instead of kept: 0.6 more. Sums with 8
 *              columns per thread, 1 or 4 rows in flight, or streaming loads and stores: no better. */
#include "base/rk_alloc.h"
#include "kernels/cuda/column_sum.cuh"
#include "kernels/cuda/rows/embed_order.cuh"

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

/* --- the sums --- */

/* The tokens of a row are added in pieces of RK_TILE_EMBED_PIECE, from its first place on, by the block in
 * whose segment the piece begins. The last block to finish adds the sums of several pieces. */
template <class T, class D> struct embed_sum {
    D *dtable;
    const T *dout;
    embed_order order;
    rk_acc<T> *partial; /* [place / RK_TILE_EMBED_PIECE][2][num_cols]: last piece of a row, any other */
    int64_t dtable_stride, dout_stride, num_cols;
    bool table_aligned, dout_aligned;

    /* Partial sum of the piece that begins at `place`; unique among the pieces that need one. */
    __device__ __forceinline__ rk_acc<T> *partial_at(embed_entry run, int32_t place) const
    {
        return partial + (place / RK_TILE_EMBED_PIECE * 2 + (place == run.first)) * num_cols;
    }
};

/* The columns of a thread; `count` may be 0 or negative. */
template <class A> struct embed_cols {
    A sum[RK_TILE_EMBED_PACK];
    int64_t col, count;
};

__device__ __forceinline__ int32_t piece_begin(embed_entry entry, int32_t place)
{
    return place - (place - entry.first) % RK_TILE_EMBED_PIECE;
}

__device__ __forceinline__ int32_t piece_end(embed_entry entry, int32_t place)
{
    return RK_MIN(piece_begin(entry, place) + RK_TILE_EMBED_PIECE, entry.end);
}

__device__ __forceinline__ bool is_one_piece(embed_entry entry)
{
    return entry.end - entry.first <= RK_TILE_EMBED_PIECE;
}

template <class T, class D>
__device__ __forceinline__ void add_to_row(const embed_sum<T, D> &args, const embed_cols<rk_acc<T>> &own,
                                           int32_t row, rk_pack<D, RK_TILE_EMBED_PACK> total)
{
#pragma unroll
    for (int e = 0; e < RK_TILE_EMBED_PACK; e++)
        total.set(e, rk_narrow<D>(rk_widen<rk_acc<T>>(total.get(e)) + own.sum[e]));
    rk_store(args.dtable + row * args.dtable_stride + own.col, total, own.count, args.table_aligned);
}

/* Writes the sum of one piece of a row; the last of its blocks adds all of them to the row. Called by all
 * threads. */
template <class T, class D>
__device__ __forceinline__ void end_piece(const embed_sum<T, D> &args, embed_cols<rk_acc<T>> own,
                                          embed_entry run, int32_t begin)
{
    int num_pieces = (run.end - run.first + RK_TILE_EMBED_PIECE - 1) / RK_TILE_EMBED_PIECE;
    rk_acc<T> *at = args.partial_at(run, begin) + own.col;

#pragma unroll
    for (int e = 0; e < RK_TILE_EMBED_PACK; e++) {
        if (e < own.count)
            __stcg(&at[e], own.sum[e]);
        own.sum[e] = 0;
    }
    if (!rk_is_last_of(&args.order.counters[run.first / RK_TILE_EMBED_PIECE * gridDim.y + blockIdx.y],
                       num_pieces))
        return;
#pragma unroll 4
    for (int32_t piece = run.first; piece < run.end; piece += RK_TILE_EMBED_PIECE) {
        at = args.partial_at(run, piece) + own.col;
#pragma unroll
        for (int e = 0; e < RK_TILE_EMBED_PACK; e++)
            own.sum[e] += e < own.count ? __ldcg(&at[e]) : 0;
    }
    add_to_row(args, own, run.row,
               rk_load<RK_TILE_EMBED_PACK>(args.dtable + run.row * args.dtable_stride + own.col, own.count,
                                           args.table_aligned));
}

/* The entries of the pieces that begin in this block's segment, in shared memory: places begin..end-1, of
 * which the first is at `from`. */
struct embed_segment {
    const embed_entry *from;
    int32_t begin, end;
};

template <class T, class D> __device__ __forceinline__ embed_segment load_segment(const embed_sum<T, D> &args)
{
    constexpr int MOST = RK_TILE_EMBED_SEGMENT + RK_TILE_EMBED_PIECE;
    __shared__ embed_entry entries[MOST];
    int32_t begin = (int32_t)blockIdx.x * RK_TILE_EMBED_SEGMENT, first = begin, end;
    int32_t num = *args.order.num_entries, last = RK_MIN(begin + RK_TILE_EMBED_SEGMENT, num) - 1;

    for (int32_t i = threadIdx.x; i < MOST; i += blockDim.x)
        entries[i] = args.order.entries[begin + i]; /* and some beyond the end */
    __syncthreads();                                /* the entries are written */
    if (begin >= num)
        return {entries, 0, 0};
    if (piece_begin(entries[0], begin) < begin)
        first = piece_end(entries[0], begin);
    end = piece_end(entries[last - begin], last);
    return {entries + (first - begin), first, end};
}

/* Block (segment, c). */
template <class T, class D>
__global__ void __launch_bounds__(RK_TILE_EMBED_THREADS_MAX, RK_TILE_EMBED_BLOCKS)
    embed_bwd_kernel(embed_sum<T, D> args)
{
    constexpr int U = RK_TILE_EMBED_UNROLL;
    embed_cols<rk_acc<T>> own = {};
    embed_segment segment;

    rk_wait_for_stream();
    segment = load_segment(args);
    own.col = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * RK_TILE_EMBED_PACK;
    own.count = args.num_cols - own.col;
    for (int32_t i = segment.begin; i < segment.end; i += U) {
        const embed_entry *entry = segment.from + (i - segment.begin);
        rk_pack<T, RK_TILE_EMBED_PACK> dout[U];
        rk_pack<D, RK_TILE_EMBED_PACK> total[U];

#pragma unroll
        for (int j = 0; j < U; j++) {
            embed_entry at = entry[RK_MIN(j, segment.end - 1 - i)];
            bool is_last = i + j == at.end - 1 && is_one_piece(at);

            dout[j] = rk_load<RK_TILE_EMBED_PACK>(args.dout + at.t * args.dout_stride + own.col, own.count,
                                                  args.dout_aligned);
            total[j] = rk_load<RK_TILE_EMBED_PACK>(args.dtable + at.row * args.dtable_stride + own.col,
                                                   is_last ? own.count : 0, args.table_aligned);
        }
#pragma unroll
        for (int j = 0; j < U; j++) {
            if (i + j >= segment.end)
                break;
#pragma unroll
            for (int e = 0; e < RK_TILE_EMBED_PACK; e++)
                own.sum[e] += rk_widen<rk_acc<T>>(dout[j].get(e));
            if (i + j + 1 < piece_end(entry[j], i + j))
                continue;
            if (is_one_piece(entry[j]))
                add_to_row(args, own, entry[j].row, total[j]);
            else
                end_piece(args, own, entry[j], piece_begin(entry[j], i + j));
#pragma unroll
            for (int e = 0; e < RK_TILE_EMBED_PACK; e++)
                own.sum[e] = 0;
        }
    }
}

/* --- host side --- */

/* The order, followed by counters and partial sums. */
struct embed_scratch {
    embed_order order;
    void *partial;
    size_t entry_bytes, counter_bytes, partial_bytes;
    dim3 blocks; /* of embed_bwd_kernel */
    int threads;
};

/* Sizes only: the addresses stay unset. */
static struct embed_scratch size_scratch(const struct rk_embed_bwd_args *args)
{
    int64_t num_tokens = args->dout.shape[0], num_cols = args->dout.shape[1];
    int64_t num_packs = rk_ceil_div(num_cols, RK_TILE_EMBED_PACK);
    int64_t column_blocks = rk_ceil_div(num_packs, RK_TILE_EMBED_THREADS_MAX);
    int64_t segments = rk_ceil_div(num_tokens, RK_TILE_EMBED_SEGMENT);
    size_t num_places = (size_t)rk_ceil_div(num_tokens, RK_TILE_EMBED_PIECE);
    struct embed_scratch scratch = {};

    scratch.threads = (int)rk_ceil_div(rk_ceil_div(num_packs, column_blocks), 32) * 32;
    scratch.blocks = dim3((unsigned)segments, (unsigned)column_blocks);
    scratch.order.num_counters = (int)num_places * (int)column_blocks;
    scratch.entry_bytes = rk_round_up(
        ((size_t)segments * RK_TILE_EMBED_SEGMENT + RK_TILE_EMBED_PIECE) * sizeof(embed_entry), 256);
    scratch.counter_bytes = rk_round_up((1 + (size_t)scratch.order.num_counters) * sizeof(int), 256);
    scratch.partial_bytes = num_places * 2 * (size_t)num_cols *
                            (args->dout.dtype == RK_DTYPE_F64 ? sizeof(double) : sizeof(float));
    return scratch;
}

static size_t scratch_bytes(const struct embed_scratch *scratch)
{
    return scratch->entry_bytes + scratch->counter_bytes + scratch->partial_bytes;
}

static struct rk_status *take_scratch(struct rk_cuda_stream *stream, struct embed_scratch *out,
                                      const struct rk_embed_bwd_args *args)
{
    char *base;

    *out = size_scratch(args);
    RK_TRY(rk_cuda_reserve(stream, &stream->scratch, scratch_bytes(out)));
    base = (char *)stream->scratch.data;
    out->order.entries = (embed_entry *)base;
    out->order.num_entries = (int *)(base + out->entry_bytes);
    out->order.counters = out->order.num_entries + 1;
    out->partial = base + out->entry_bytes + out->counter_bytes;
    return NULL;
}

static void launch_sort(const struct rk_cuda_stream *stream, const struct rk_embed_bwd_args *args,
                        const struct embed_scratch *scratch)
{
    embed_tokens all = {(const int32_t *)args->tokens.data, (uint32_t)args->vocab_begin,
                        (uint32_t)args->dtable.shape[0], (int32_t)args->dout.shape[0]};
    uint32_t mask = (1u << SORT_BITS) - 1;

    static_assert(SORT_FACTOR * SORT_INVERSE == 1, "keys and rows are one-to-one");
    static_assert(SORT_KEYS % SORT_THREADS == 0, "threads have equal numbers of keys");
    static_assert((int64_t)SORT_TILE * SORT_KEYS <= INT32_MAX, "an item of the list is an int");
    while (mask < all.num_rows - 1)
        mask = mask * 2 + 1;
    rk_launch({stream, dim3(mask / SORT_KEYS + 1), dim3(SORT_THREADS), 0}, embed_sort_kernel, scratch->order,
              all, mask);
}

template <class T, class D>
static void launch_sum(const struct rk_cuda_stream *stream, const struct rk_embed_bwd_args *args,
                       const struct embed_scratch *scratch)
{
    embed_sum<T, D> sum = {
        (D *)args->dtable.data,        (const T *)args->dout.data,    scratch->order,
        (rk_acc<T> *)scratch->partial, args->dtable.row_stride,       args->dout.row_stride,
        args->dout.shape[1],           rk_rows_aligned(args->dtable), rk_rows_aligned(args->dout)};

    rk_launch({stream, scratch->blocks, dim3(scratch->threads), 0}, embed_bwd_kernel<T, D>, sum);
}

template <class T>
static void launch_bwd(const struct rk_cuda_stream *stream, const struct rk_embed_bwd_args *args,
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
    struct embed_scratch scratch;

    RK_TRY(rk_check_grid("embed_bwd", args->dout.shape[0] + SORT_TILE));
    RK_TRY(rk_check_grid("embed_bwd", args->vocab_begin + args->dtable.shape[0]));
    RK_TRY(take_scratch(on, &scratch, args));
    launch_sort(on, args, &scratch);
    RK_FOR_DTYPE("embed_bwd", args->dout.dtype, T, launch_bwd<T>(on, args, &scratch));
    return rk_cuda_launched((struct rk_cuda_device *)dev, on, "embed_bwd");
}
