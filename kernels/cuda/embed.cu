/* Twin of kernels/cpu/embed.c.
 *
 * Work split   Forward: a row move. Backward: embed_sort_kernel counts for each token how many come before it
 *              in an order in which equal rows are neighbours, which is where it goes: a block for the
 *              tokens of one range of (hashed) rows among 512, which looks at all tokens and compares its
 *              own with those of the range. Then embed_bwd_kernel has a block for RK_TILE_EMBED_SEGMENT
 *              places and adds the tokens of the rows that begin there. More than RK_TILE_EMBED_PIECE of
 *              one row are added in pieces, and the block that comes last adds these.
 *
 * Traffic      Backward: read dout once, read and write the rows of dtable that occur; 4 bytes a column and
 *              piece of frequent tokens.
 *
 * Measured     H200, bf16 and a table in f32, 8192 tokens at 1536 and 3584 columns: 45 us (65% of 4.3 TB/s)
 *              and 87 us (78%) where nearly all are different, 42 and 70 us where 3236 are, as in a text.
 *              The sort is 11 us of that, 17 in a text.
 *
 * Limits       Fewer than 2^31 tokens and rows. Every 512 tokens look at all: the sort's time grows with the
 *              square of their number.
 *
 * Numerics     f32 (f64 for F64), one rounding. No atomics on floats; the sum of a row has an order that
 *              depends on the tokens alone.
 *
 * Tried        Counting among all tokens, and a third launch for sums of several segments: 54 and 98 us.
 *              Sorting with cub::DeviceRadixSort and one chain a row: a row that makes up a tenth of the
 *              tokens was one chain of so many loads. 8 columns a thread: 46 and 90. 256 tokens or 8 ranges a
 *              block of the sort: 4 us more. 8 rows on their way together: 52 and 98. dout brought to L2
 *              while the tokens are sorted: 47 and 90. */
#include "base/rk_alloc.h"
#include "kernels/cuda/column_sum.cuh"

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

    /* num_rows where it is elsewhere */
    __device__ __forceinline__ int32_t row(int32_t t) const
    {
        int64_t row = tokens[t] - vocab_begin;

        return row >= 0 && row < num_rows ? (int32_t)row : num_rows;
    }
};

/* A place in the order. Places first..end-1 have the same row. */
struct alignas(16) embed_entry {
    int32_t row, t, first, end;
};

/* What a block of the sort owns: the tokens of one range of rows among SORT_OWN consecutive ones. */
constexpr int SORT_OWN = 512, SORT_RANGES = 16;
constexpr int SORT_THREADS = 512, SORT_WARPS = SORT_THREADS / 32;
/* Tokens that a thread loads together, and looks at together. */
constexpr int SORT_LOADS = 16, SORT_STEP = 8;

/* Multiplying spreads neighbours; what is elsewhere comes last. */
__device__ __forceinline__ int range_of(int32_t row, int32_t num_rows)
{
    return row == num_rows ? SORT_RANGES - 1
                           : (int)((uint64_t)((uint32_t)row * 2654435769u) * SORT_RANGES >> 32);
}

/* A token, or how many others an owned one has before it. */
struct sort_item {
    int32_t row, t;
};
struct sort_counts {
    int smaller, equal, equal_before;
};

struct sort_shared {
    sort_item owned[SORT_OWN], listed[SORT_STEP * SORT_THREADS];
    sort_counts counts[SORT_OWN];
    int num_owned, num_listed, num_lower;
};

/* Appends the items that threads of a warp have to a list; `is_mine` says whether one belongs there. */
template <int N>
__device__ __forceinline__ void append(sort_item *list, int *count, const sort_item (&items)[N],
                                       const bool (&is_mine)[N])
{
    unsigned votes[N], before = (1u << threadIdx.x % 32) - 1;
    int place = 0, total = 0;

#pragma unroll
    for (int i = 0; i < N; i++) {
        votes[i] = __ballot_sync(~0u, is_mine[i]);
        total += __popc(votes[i]);
    }
    if (threadIdx.x % 32 == 0 && total > 0)
        place = atomicAdd(count, total);
    place = __shfl_sync(~0u, place, 0);
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (is_mine[i])
            list[place + __popc(votes[i] & before)] = items[i];
        place += __popc(votes[i]);
    }
}

/* Counts for each owned token the listed ones: a warp takes every SORT_WARPS-th of these, a lane an owned
 * one. */
__device__ __forceinline__ void count_listed(sort_shared &shared)
{
    for (int i = threadIdx.x % 32; i < shared.num_owned; i += 32) {
        sort_item mine = shared.owned[i];
        sort_counts counts = {};

#pragma unroll 8
        for (int j = threadIdx.x / 32; j < shared.num_listed; j += SORT_WARPS) {
            sort_item other = shared.listed[j];

            counts.smaller += other.row < mine.row;
            counts.equal += other.row == mine.row;
            counts.equal_before += other.row == mine.row && other.t < mine.t;
        }
        atomicAdd(&shared.counts[i].smaller, counts.smaller);
        atomicAdd(&shared.counts[i].equal, counts.equal);
        atomicAdd(&shared.counts[i].equal_before, counts.equal_before);
    }
}

/* Lists those of a thread's tokens that are in the range and counts them for the owned ones. Returns how many
 * are in lower ranges. */
__device__ __forceinline__ int sort_step(sort_shared &shared, const int32_t (&rows)[SORT_LOADS], int first,
                                         int32_t base, int32_t num_rows)
{
    sort_item items[SORT_STEP];
    bool is_mine[SORT_STEP];
    int lower = 0;

#pragma unroll
    for (int i = 0; i < SORT_STEP; i++) {
        int32_t row = rows[first + i];
        int range = row < 0 ? SORT_RANGES : range_of(row, num_rows);

        lower += range < (int)blockIdx.y;
        is_mine[i] = range == (int)blockIdx.y;
        items[i] = {row, base + (first + i) * SORT_THREADS + (int32_t)threadIdx.x};
    }
    append(shared.listed, &shared.num_listed, items, is_mine);
    __syncthreads(); /* the list is complete, and that of owned tokens */
    count_listed(shared);
    __syncthreads(); /* ... and read */
    if (threadIdx.x == 0)
        shared.num_listed = 0;
    __syncthreads(); /* ... and empty */
    return lower;
}

/* The place of each token in the order of (range, row, t): block (i, range) counts, for its own tokens, those
 * before them. Lists in shared memory have no order, and what is counted needs none. */
__global__ void __launch_bounds__(SORT_THREADS)
    embed_sort_kernel(embed_entry *__restrict__ entries, int *__restrict__ counters, int num_counters,
                      embed_tokens all)
{
    __shared__ sort_shared shared;
    int32_t own_t = threadIdx.x < SORT_OWN ? (int32_t)(blockIdx.x * SORT_OWN + threadIdx.x) : INT32_MAX;
    int block = (int)(blockIdx.y * gridDim.x + blockIdx.x), lower = 0;

    if (threadIdx.x == 0)
        shared.num_owned = shared.num_listed = shared.num_lower = 0;
    if (threadIdx.x < SORT_OWN)
        shared.counts[threadIdx.x] = {};
    rk_wait_for_stream();
    for (int i = block * SORT_THREADS + (int)threadIdx.x; i < num_counters;
         i += (int)(gridDim.x * gridDim.y) * SORT_THREADS)
        counters[i] = 0;
    for (int32_t base = 0; base < all.num_tokens; base += SORT_LOADS * SORT_THREADS) {
        int32_t rows[SORT_LOADS];
        sort_item own[1] = {{own_t < all.num_tokens && base == 0 ? all.row(own_t) : -1, own_t}};
        bool is_mine[1];

#pragma unroll
        for (int i = 0; i < SORT_LOADS; i++) {
            int32_t t = base + i * SORT_THREADS + (int32_t)threadIdx.x;

            rows[i] = t < all.num_tokens ? all.row(t) : -1;
        }
        is_mine[0] = own[0].row >= 0 && range_of(own[0].row, all.num_rows) == (int)blockIdx.y;
        if (base == 0) {
            __syncthreads(); /* the lists are empty */
            append(shared.owned, &shared.num_owned, own, is_mine);
        }
#pragma unroll
        for (int i = 0; i < SORT_LOADS; i += SORT_STEP)
            lower += sort_step(shared, rows, i, base, all.num_rows);
    }
    lower = __reduce_add_sync(~0u, lower);
    if (threadIdx.x % 32 == 0)
        atomicAdd(&shared.num_lower, lower);
    __syncthreads(); /* the counts are complete */
    if ((int)threadIdx.x < shared.num_owned) {
        sort_item mine = shared.owned[threadIdx.x];
        sort_counts counts = shared.counts[threadIdx.x];
        int first = shared.num_lower + counts.smaller;

        entries[first + counts.equal_before] = {mine.row, mine.t, first, first + counts.equal};
    }
}

/* --- the sums --- */

/* The tokens of a row are added in pieces of RK_TILE_EMBED_PIECE, from its first place on, by the block in
 * whose segment the piece begins. The sums of several pieces are added by the block that comes last. */
template <class T, class D> struct embed_sum {
    D *dtable;
    const T *dout;
    const embed_entry *entries;
    rk_acc<T> *partial; /* [place / RK_TILE_EMBED_PIECE][2][num_cols]: last piece of a row, any other */
    int *counters; /* [place / RK_TILE_EMBED_PIECE][gridDim.y], zero: pieces of a row that are complete */
    int64_t dtable_stride, dout_stride, num_cols;
    int32_t num_tokens, num_rows;
    bool table_aligned, dout_aligned;

    /* Of the piece that begins at `place`; no other piece that needs one has the same. */
    __device__ __forceinline__ rk_acc<T> *partial_at(embed_entry run, int32_t place) const
    {
        return partial + (place / RK_TILE_EMBED_PIECE * 2 + (place == run.first)) * num_cols;
    }
};

/* The columns of a thread; `count` may be 0 or less. */
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

/* Leaves the sum of one piece of a row; the last of its blocks adds them all to the row. By all threads. */
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
    if (!rk_is_last_of(&args.counters[run.first / RK_TILE_EMBED_PIECE * gridDim.y + blockIdx.y], num_pieces))
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
    int32_t last = RK_MIN(begin + RK_TILE_EMBED_SEGMENT, args.num_tokens) - 1;

    for (int32_t i = threadIdx.x; i < RK_MIN(MOST, args.num_tokens - begin); i += blockDim.x)
        entries[i] = args.entries[begin + i];
    __syncthreads(); /* they are there */
    if (piece_begin(entries[0], begin) < begin)
        first = piece_end(entries[0], begin);
    end = piece_end(entries[last - begin], last);
    if (first > last || entries[first - begin].row == args.num_rows)
        return {entries, 0, 0};
    if (entries[last - begin].row == args.num_rows)
        end = entries[last - begin].first;
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

/* The order, counters, then the partial sums. */
struct embed_scratch {
    embed_entry *entries;
    int *counters;
    void *partial;
    size_t entry_bytes, counter_bytes, partial_bytes;
    dim3 blocks; /* of embed_bwd_kernel */
    int threads;
};

/* Without addresses. */
static struct embed_scratch size_scratch(const struct rk_embed_bwd_args *args)
{
    int64_t num_tokens = args->dout.shape[0], num_cols = args->dout.shape[1];
    int64_t num_packs = rk_ceil_div(num_cols, RK_TILE_EMBED_PACK);
    int64_t column_blocks = rk_ceil_div(num_packs, RK_TILE_EMBED_THREADS_MAX);
    size_t num_places = (size_t)rk_ceil_div(num_tokens, RK_TILE_EMBED_PIECE);
    struct embed_scratch scratch = {};

    scratch.threads = (int)rk_ceil_div(rk_ceil_div(num_packs, column_blocks), 32) * 32;
    scratch.blocks = dim3((unsigned)rk_ceil_div(num_tokens, RK_TILE_EMBED_SEGMENT), (unsigned)column_blocks);
    scratch.entry_bytes = rk_round_up((size_t)num_tokens * sizeof(embed_entry), 256);
    scratch.counter_bytes = rk_round_up(num_places * scratch.blocks.y * sizeof(int), 256);
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
    out->entries = (embed_entry *)base;
    out->counters = (int *)(base + out->entry_bytes);
    out->partial = base + out->entry_bytes + out->counter_bytes;
    return NULL;
}

static void launch_sort(const struct rk_cuda_stream *stream, const struct rk_embed_bwd_args *args,
                        const struct embed_scratch *scratch)
{
    embed_tokens all = {(const int32_t *)args->tokens.data, args->vocab_begin, (int32_t)args->dout.shape[0],
                        (int32_t)args->dtable.shape[0]};
    dim3 blocks((unsigned)rk_ceil_div(all.num_tokens, SORT_OWN), SORT_RANGES);

    static_assert(SORT_OWN <= SORT_THREADS, "a thread loads one token of its block, and stores one");
    rk_launch({stream, blocks, dim3(SORT_THREADS), 0}, embed_sort_kernel, scratch->entries, scratch->counters,
              (int)(scratch->counter_bytes / sizeof(int)), all);
}

template <class T, class D>
static void launch_sum(const struct rk_cuda_stream *stream, const struct rk_embed_bwd_args *args,
                       const struct embed_scratch *scratch)
{
    embed_sum<T, D> sum = {(D *)args->dtable.data,
                           (const T *)args->dout.data,
                           scratch->entries,
                           (rk_acc<T> *)scratch->partial,
                           scratch->counters,
                           args->dtable.row_stride,
                           args->dout.row_stride,
                           args->dout.shape[1],
                           (int32_t)args->dout.shape[0],
                           (int32_t)args->dtable.shape[0],
                           rk_rows_aligned(args->dtable),
                           rk_rows_aligned(args->dout)};

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

    RK_TRY(rk_check_grid("embed_bwd", args->dout.shape[0] + SORT_LOADS * SORT_THREADS));
    RK_TRY(rk_check_grid("embed_bwd", args->dtable.shape[0] + 1));
    RK_TRY(take_scratch(on, &scratch, args));
    launch_sort(on, args, &scratch);
    RK_FOR_DTYPE("embed_bwd", args->dout.dtype, T, launch_bwd<T>(on, args, &scratch));
    return rk_cuda_launched((struct rk_cuda_device *)dev, on, "embed_bwd");
}
