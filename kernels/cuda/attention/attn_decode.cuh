/* Common part of the decode kernels with cp.async (attn_decode.cu) and with TMA (attn_decode_sm90.cu):
 * everything except the copies of keys and values to shared memory. The plan is in attn_decode.cu. */
#ifndef RK_CUDA_ATTN_DECODE_CUH
#define RK_CUDA_ATTN_DECODE_CUH

#include "kernels/cuda/attention/attn_internal.cuh"
#include "kernels/cuda/attention/attn_keys.cuh"

constexpr int DECODE_WARPS = 4, DECODE_THREADS = DECODE_WARPS * 32, DECODE_ROWS = 16;
constexpr int DECODE_SPLIT_BLOCKS = ATTN_KEY_SPLIT / ATTN_KEY_BLOCK;

/* Maximum number of tiles of 8 output columns per warp. */
template <int HD> constexpr int DECODE_TILES = (HD / 8 + DECODE_WARPS - 1) / DECODE_WARPS;

/* Shared memory for communication between the warps. HD is the width of values, QD of queries. */
template <int HD, int QD = HD> struct decode_shared {
    bf16 q[DECODE_ROWS * attn_pitch<QD>];
    bf16 p[DECODE_ROWS * attn_pitch<ATTN_KEY_BLOCK>];
    float max[DECODE_WARPS][DECODE_ROWS], sum[DECODE_WARPS][DECODE_ROWS][4];
    bool is_last;
};

struct decode_workspace {
    int *counters;  /* [slot, kv head]: number of finished splits; zero between calls */
    float2 *stats;  /* [row, split]: maximum and sum */
    float *outputs; /* [row, split, head_dim]; row = token * num_heads + head */
};

struct decode_plan {
    int num_slots, num_parts, max_splits;
    decode_workspace workspace;
};

/* A tile and the keys that it attends to. */
struct decode_task {
    const bf16 *q, *k, *v;
    bf16 *out;
    int64_t q_stride, out_stride;
    attn_tile tile;
    attn_keys keys;
    int group, head, num_heads; /* head: first query head of the group */
    int position;               /* of the sequence's first query */
    int first_position;         /* of the tile's first row */
    int first, end;             /* keys that some row of the tile attends to */
    int window;
    float c; /* scale * log2(e) */
};

__device__ inline int decode_row_position(const decode_task &task, int row)
{
    return task.position + (task.tile.first_row + row) / task.group;
}

__device__ inline bool decode_row_exists(const decode_task &task, int row)
{
    return task.tile.first_row + row < task.tile.length * task.group;
}

/* Index of a row over [num_tokens, num_heads]. */
__device__ inline int64_t decode_row_index(const decode_task &task, int row)
{
    int r = task.tile.first_row + row;

    return (int64_t)(task.tile.begin + r / task.group) * task.num_heads + task.head + r % task.group;
}

__device__ inline int64_t decode_row_offset(const decode_task &task, int64_t stride, int row, int head_dim)
{
    int r = task.tile.first_row + row;

    return (task.tile.begin + r / task.group) * stride + (int64_t)(task.head + r % task.group) * head_dim;
}

/* Barrier of the compute warps. */
__device__ inline void decode_sync()
{
    asm volatile("bar.sync 1, %0;" ::"n"(DECODE_THREADS) : "memory");
}

template <int HD> __device__ inline void decode_load_queries(bf16 *q, const decode_task &task)
{
    for (int i = threadIdx.x; i < DECODE_ROWS * HD / 8; i += DECODE_THREADS) {
        int row = i / (HD / 8), unit = i % (HD / 8);
        bool exists = decode_row_exists(task, row);

        attn_copy16(q + row * attn_pitch<HD> + unit * 8,
                    task.q + decode_row_offset(task, task.q_stride, exists ? row : 0, HD) + unit * 8, exists);
    }
}

/* Address of 16-byte unit u of a row of a key block: rows with padding, or halves of 64 columns with the TMA
 * swizzle (attn_sm90.cuh). */
template <int HD, bool SWIZZLED> __device__ inline const bf16 *decode_unit(const bf16 *tile, int row, int u)
{
    return SWIZZLED ? tile + (u / 8 * ATTN_KEY_BLOCK + row) * 64 + (u % 8 ^ row % 8) * 8
                    : tile + row * attn_pitch<HD> + u * 8;
}

/* Scores of all 16 rows against this warp's 32 keys of the block, masked. */
template <int HD, bool SWIZZLED>
__device__ inline void decode_quarter_scores(float (&s)[16], const uint32_t (&q)[HD / 16][4], const bf16 *k,
                                             const decode_task &task, int block)
{
    int warp = threadIdx.x / 32, lane = attn_lane(), g = lane / 4, t = lane % 4;
    uint32_t b[4];

#pragma unroll
    for (int i = 0; i < 16; i++)
        s[i] = 0.0f;
#pragma unroll
    for (int kk = 0; kk < HD / 16; kk++) {
#pragma unroll
        for (int n = 0; n < 2; n++) {
            attn_ldmatrix(b, decode_unit<HD, SWIZZLED>(k, warp * 32 + n * 16 + lane / 16 * 8 + lane % 8,
                                                       kk * 2 + lane / 8 % 2));
            attn_mma(s + 8 * n, q[kk], b[0], b[1]);
            attn_mma(s + 8 * n + 4, q[kk], b[2], b[3]);
        }
    }
    if (block * ATTN_KEY_BLOCK + ATTN_KEY_BLOCK - 1 <= task.first_position && task.window == 0)
        return;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        int j = block * ATTN_KEY_BLOCK + warp * 32 + i / 4 * 8 + 2 * t + i % 2;
        int p = decode_row_position(task, g + i / 2 % 2 * 8);

        if (j > p || (task.window > 0 && p - j >= task.window))
            s[i] = -INFINITY;
    }
}

/* Writes the maxima of this warp's quarter, to be read after the next barrier. */
template <int HD> __device__ inline void decode_share_maxima(decode_shared<HD> &sm, const float (&s)[16])
{
    int warp = threadIdx.x / 32, g = attn_lane() / 4, t = attn_lane() % 4;

#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = s[2 * r];

#pragma unroll
        for (int n = 0; n < 4; n++)
            top = fmaxf(top, fmaxf(s[4 * n + 2 * r], s[4 * n + 2 * r + 1]));
        top = attn_quad_max(top);
        if (t == 0)
            sm.max[warp][g + 8 * r] = top;
    }
}

/* Turns scores into exponentials, given the maxima of all warps; writes the probabilities to sm.p and the sum
 * of this warp's quarter to sm.sum, both to be read after the next barrier. */
template <int HD>
__device__ inline void decode_share_probs(decode_shared<HD> &sm, float (&s)[16], attn_softmax &state, float c,
                                          float (&alpha)[2])
{
    int warp = threadIdx.x / 32, g = attn_lane() / 4, t = attn_lane() % 4;

#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = g + 8 * r;
        float top = fmaxf(fmaxf(sm.max[0][row], sm.max[1][row]), fmaxf(sm.max[2][row], sm.max[3][row]));

        alpha[r] = attn_raise_max(state, r, top, c);
        sm.sum[warp][row][t] = attn_exp_quarter(s, r, c, attn_exp_offset(state, r, c));
#pragma unroll
        for (int n = 0; n < 4; n++)
            *reinterpret_cast<uint32_t *>(sm.p + row * attn_pitch<ATTN_KEY_BLOCK> + warp * 32 + n * 8 +
                                          2 * t) = attn_pack(s[4 * n + 2 * r], s[4 * n + 2 * r + 1]);
    }
}

/* o += P V: all keys of the block, this warp's columns. */
template <int HD, bool SWIZZLED>
__device__ inline void decode_add_output(float (&o)[DECODE_TILES<HD> * 4], const decode_shared<HD> &sm,
                                         const bf16 *v)
{
    int warp = threadIdx.x / 32;

#pragma unroll
    for (int kk = 0; kk < ATTN_KEY_BLOCK / 16; kk += 2) {
        uint32_t a0[4], a1[4], b[4];

        attn_load_a<ATTN_KEY_BLOCK>(a0, sm.p, 0, kk);
        attn_load_a<ATTN_KEY_BLOCK>(a1, sm.p, 0, kk + 1);
#pragma unroll
        for (int n = 0; n < DECODE_TILES<HD>; n++) {
            if (warp * DECODE_TILES<HD> + n >= HD / 8)
                continue;
            attn_ldmatrix_trans(
                b, decode_unit<HD, SWIZZLED>(v, kk * 16 + attn_lane(), warp * DECODE_TILES<HD> + n));
            attn_mma(o + 4 * n, a0, b[0], b[1]);
            attn_mma(o + 4 * n, a1, b[2], b[3]);
        }
    }
}

/* Writes a split's results for the merge. */
template <int HD>
__device__ inline void decode_store_split(const decode_plan &plan, const decode_task &task, int split,
                                          const float (&o)[DECODE_TILES<HD> * 4], const attn_softmax &state)
{
    int warp = threadIdx.x / 32, g = attn_lane() / 4, t = attn_lane() % 4;

#pragma unroll
    for (int r = 0; r < 2; r++) {
        int64_t at = decode_row_index(task, g + 8 * r) * plan.max_splits + split;
        float l = attn_quad_sum(state.l[r]);

        if (!decode_row_exists(task, g + 8 * r))
            continue;
        if (warp == 0 && t == 0)
            plan.workspace.stats[at] = make_float2(state.m[r], l);
#pragma unroll
        for (int n = 0; n < DECODE_TILES<HD>; n++) {
            int col = (warp * DECODE_TILES<HD> + n) * 8 + 2 * t;

            if (col < HD)
                *reinterpret_cast<float2 *>(plan.workspace.outputs + at * HD + col) =
                    make_float2(o[4 * n + 2 * r], o[4 * n + 2 * r + 1]);
        }
    }
}

/* Four output columns of a row, merged so far. */
struct decode_merged {
    attn_total total;
    float4 sum;
};

__device__ inline void decode_merge_one(decode_merged *merged, float2 stats, float4 o, float c)
{
    float old, add;

    attn_merge(merged->total, stats.x, stats.y, c, old, add);
    merged->sum.x = attn_merge_output(merged->sum.x, old, o.x, add);
    merged->sum.y = attn_merge_output(merged->sum.y, old, o.y, add);
    merged->sum.z = attn_merge_output(merged->sum.z, old, o.z, add);
    merged->sum.w = attn_merge_output(merged->sum.w, old, o.w, add);
}

__device__ inline void decode_store_merged(bf16 *out, const decode_merged &merged)
{
    float inv = attn_reciprocal(merged.total.l);

    *reinterpret_cast<uint2 *>(out) =
        make_uint2(attn_pack(__fmul_rn(merged.sum.x, inv), __fmul_rn(merged.sum.y, inv)),
                   attn_pack(__fmul_rn(merged.sum.z, inv), __fmul_rn(merged.sum.w, inv)));
}

/* Merges splits first_split.. of every row in ascending order: four columns of ITEMS rows per thread at a
 * time, with the loads of SPLITS splits of each in flight. Wide rows take a thread many turns. */
template <int HD>
__device__ inline void decode_merge_splits(const decode_plan &plan, const decode_task &task, int first_split,
                                           int num_splits)
{
    constexpr int ITEMS = HD > 256 ? 4 : 1, SPLITS = HD > 256 ? 4 : 8, UNITS = HD / 4;
    int num_items = min(DECODE_ROWS, task.tile.length * task.group - task.tile.first_row) * UNITS;

    for (int first = threadIdx.x; first < num_items; first += DECODE_THREADS * ITEMS) {
        decode_merged merged[ITEMS];
        int64_t at[ITEMS];

#pragma unroll
        for (int k = 0; k < ITEMS; k++) {
            int i = min(first + k * DECODE_THREADS, num_items - 1);

            merged[k] = {{-INFINITY, 0.0f}, {0.0f, 0.0f, 0.0f, 0.0f}};
            at[k] = decode_row_index(task, i / UNITS) * plan.max_splits + first_split;
        }
        for (int s = 0; s < num_splits; s += SPLITS) {
            float2 stats[ITEMS][SPLITS];
            float4 o[ITEMS][SPLITS];

#pragma unroll
            for (int n = 0; n < ITEMS * SPLITS; n++) {
                int k = n / SPLITS, i = min(first + k * DECODE_THREADS, num_items - 1);
                int64_t from = at[k] + min(s + n % SPLITS, num_splits - 1);

                stats[k][n % SPLITS] = __ldcg(plan.workspace.stats + from);
                o[k][n % SPLITS] = __ldcg(
                    reinterpret_cast<const float4 *>(plan.workspace.outputs + from * HD + i % UNITS * 4));
            }
#pragma unroll
            for (int n = 0; n < ITEMS * SPLITS; n++) {
                if (s + n % SPLITS < num_splits)
                    decode_merge_one(&merged[n / SPLITS], stats[n / SPLITS][n % SPLITS],
                                     o[n / SPLITS][n % SPLITS], task.c);
            }
        }
#pragma unroll
        for (int k = 0; k < ITEMS; k++) {
            int i = first + k * DECODE_THREADS;

            if (i < num_items)
                decode_store_merged(task.out + decode_row_offset(task, task.out_stride, i / UNITS, HD) +
                                        i % UNITS * 4,
                                    merged[k]);
        }
    }
}

/* The block after `block` among the splits part, part + num_parts, ... */
__device__ inline int decode_next_block(int block, int num_parts)
{
    return (block + 1) % DECODE_SPLIT_BLOCKS ? block + 1 : block + 1 + (num_parts - 1) * DECODE_SPLIT_BLOCKS;
}

/* The slot-th tile over all sequences, and how many keys its sequence has. False beyond the last one. The
 * loads of all rounds are independent; the lane that finds the tile passes its values on by shuffles. */
__device__ inline bool decode_find_tile(attn_tile *tile, int *seq_len, const rk_cuda_attn_paged_args &args,
                                        int slot, int group)
{
    int before = 0, seq = -1;

#pragma unroll 2
    for (int base = 0; base < args.num_seqs; base += 32) {
        int s = min(base + attn_lane(), args.num_seqs - 1);
        int begin = args.cu_q[s], length = args.cu_q[s + 1] - begin, keys = args.seq_lens[s];
        int tiles = base + attn_lane() < args.num_seqs ? (length * group + DECODE_ROWS - 1) / DECODE_ROWS : 0,
            sum = tiles;
        unsigned mask;

#pragma unroll
        for (int i = 1; i < 32; i *= 2) {
            int other = __shfl_up_sync(0xffffffffu, sum, i);

            sum += attn_lane() >= i ? other : 0;
        }
        mask = __ballot_sync(0xffffffffu, slot >= before + sum - tiles && slot < before + sum);
        if (mask) {
            int lane = __ffs(mask) - 1;

            seq = base + lane;
            tile->begin = __shfl_sync(0xffffffffu, begin, lane);
            tile->length = __shfl_sync(0xffffffffu, length, lane);
            tile->first_row = (slot - before - __shfl_sync(0xffffffffu, sum - tiles, lane)) * DECODE_ROWS;
            *seq_len = __shfl_sync(0xffffffffu, keys, lane);
        }
        before += __shfl_sync(0xffffffffu, sum, 31);
    }
    tile->seq = seq;
    return seq >= 0;
}

__device__ inline decode_task decode_make_task(const rk_cuda_attn_paged_args &args, const attn_tile &tile,
                                               int seq_len, int kv_head)
{
    int group = args.num_heads / args.num_kv_heads,
        last_row = min(tile.first_row + DECODE_ROWS, tile.length * group) - 1;
    decode_task task;

    task.q = (const bf16 *)args.q;
    task.k = (const bf16 *)args.k_cache;
    task.v = (const bf16 *)args.v_cache;
    task.out = (bf16 *)args.out;
    task.q_stride = args.q_stride;
    task.out_stride = args.out_stride;
    task.tile = tile;
    task.keys = attn_paged_keys(args, tile.seq, kv_head);
    task.group = group;
    task.head = kv_head * group;
    task.num_heads = args.num_heads;
    task.position = seq_len - tile.length;
    task.first_position = task.position + tile.first_row / group;
    task.first = attn_first_key(task.first_position, args.window);
    task.end = task.position + last_row / group + 1;
    task.window = args.window;
    task.c = __fmul_rn(args.scale, ATTN_LOG2E);
    return task;
}

/* The part of a tile that a thread block processes. */
struct decode_part {
    int first_split, num_splits; /* splits of the tile */
    int first_block;             /* key block at which this thread block starts */
};

/* False: nothing to do. */
__device__ inline bool decode_begin(decode_task *task, decode_part *part, const rk_cuda_attn_paged_args &args)
{
    int kv_head = blockIdx.x % args.num_kv_heads, slot = blockIdx.x / args.num_kv_heads, seq_len;
    attn_tile tile;

    if (!decode_find_tile(&tile, &seq_len, args, slot, args.num_heads / args.num_kv_heads))
        return false;
    *task = decode_make_task(args, tile, seq_len, kv_head);
    part->first_split = task->first / ATTN_KEY_SPLIT;
    part->num_splits = (task->end - 1) / ATTN_KEY_SPLIT - part->first_split + 1;
    part->first_block =
        max(task->first / ATTN_KEY_BLOCK, (part->first_split + (int)blockIdx.y) * DECODE_SPLIT_BLOCKS);
    return (int)blockIdx.y < part->num_splits;
}

/* State of the compute warps between blocks. */
template <int HD> struct decode_state {
    uint32_t q[HD / 16][4];
    float o[DECODE_TILES<HD> * 4];
    attn_softmax softmax;
    float alpha[2];
    int num_done; /* splits */
    /* Valid if this thread block has all splits of the tile: the merged result so far. */
    attn_total total[2];
    float sum[DECODE_TILES<HD> * 4];
};

__device__ inline bool decode_has_all_splits(const decode_plan &plan, const decode_part &part)
{
    return plan.num_parts == 1 || part.num_splits == 1;
}

/* Stores the output of a tile of which this thread block has all splits. */
template <int HD>
__device__ inline void decode_store_output(const decode_task &task, const decode_state<HD> &state)
{
    int warp = threadIdx.x / 32, g = attn_lane() / 4, t = attn_lane() % 4;

#pragma unroll
    for (int i = 0; i < DECODE_TILES<HD> * 2; i++) {
        int n = i / 2, row = g + i % 2 * 8, col = (warp * DECODE_TILES<HD> + n) * 8 + 2 * t;
        float inv = attn_reciprocal(state.total[i % 2].l);

        if (decode_row_exists(task, row) && col < HD)
            *reinterpret_cast<uint32_t *>(task.out + decode_row_offset(task, task.out_stride, row, HD) +
                                          col) =
                attn_pack(__fmul_rn(state.sum[2 * i], inv), __fmul_rn(state.sum[2 * i + 1], inv));
    }
}

template <int HD> __device__ inline void decode_clear(decode_state<HD> &state)
{
    attn_softmax_clear(state.softmax);
    state.num_done = 0;
    state.total[0] = state.total[1] = {-INFINITY, 0.0f};
#pragma unroll
    for (int i = 0; i < DECODE_TILES<HD> * 4; i++)
        state.o[i] = state.sum[i] = 0.0f;
}

/* Call before the first block: the queries must be in sm.q. */
template <int HD> __device__ inline void decode_init(decode_state<HD> &state, const decode_shared<HD> &sm)
{
    decode_clear(state);
#pragma unroll
    for (int kk = 0; kk < HD / 16; kk++)
        attn_load_a<HD>(state.q[kk], sm.q, 0, kk);
}

/* Raises the output and the sums to a block whose probabilities and sums are in shared memory. */
template <int HD, int QD>
__device__ inline void decode_rescale(decode_state<HD> &state, const decode_shared<HD, QD> &sm)
{
    int g = attn_lane() / 4, t = attn_lane() % 4;

#pragma unroll
    for (int r = 0; r < 2; r++) {
        float quarter[4];

#pragma unroll
        for (int w = 0; w < DECODE_WARPS; w++)
            quarter[w] = sm.sum[w][g + 8 * r][t];
        attn_add_quarters(state.softmax, r, state.alpha[r], quarter);
    }
#pragma unroll
    for (int i = 0; i < DECODE_TILES<HD> * 4; i++)
        state.o[i] = __fmul_rn(state.o[i], state.alpha[i / 2 % 2]);
}

/* Adds the output of such a block, whose values are in shared memory too. */
template <int HD, bool SWIZZLED>
__device__ inline void decode_add_block(decode_state<HD> &state, const decode_shared<HD> &sm, const bf16 *v)
{
    decode_rescale(state, sm);
    decode_add_output<HD, SWIZZLED>(state.o, sm, v);
}

/* Call after every block: finishes the split if this was its last block. */
template <int HD>
__device__ inline void decode_end_block(decode_state<HD> &state, const decode_plan &plan,
                                        const decode_task &task, const decode_part &part, int block)
{
    if ((block + 1) % DECODE_SPLIT_BLOCKS != 0 && (block + 1) * ATTN_KEY_BLOCK < task.end)
        return;
    if (decode_has_all_splits(plan, part))
        attn_merge_rows(state.total, state.sum, state.softmax, state.o, task.c);
    else
        decode_store_split<HD>(plan, task, block / DECODE_SPLIT_BLOCKS, state.o, state.softmax);
    attn_softmax_clear(state.softmax);
#pragma unroll
    for (int i = 0; i < DECODE_TILES<HD> * 4; i++)
        state.o[i] = 0.0f;
    state.num_done++;
}

/* Call after the last block, on the compute warps: the last thread block of a tile merges. */
template <int HD, int QD>
__device__ inline void decode_end(decode_shared<HD, QD> &sm, const decode_plan &plan, const decode_task &task,
                                  const decode_part &part, const decode_state<HD> &state)
{
    int *counter = plan.workspace.counters + blockIdx.x, num_done = state.num_done;

    if (decode_has_all_splits(plan, part)) {
        decode_store_output<HD>(task, state);
        return;
    }
    __threadfence(); /* publishes this thread's results before the count */
    decode_sync();   /* everyone's */
    if (threadIdx.x == 0)
        sm.is_last = atomicAdd(counter, num_done) + num_done == part.num_splits;
    decode_sync(); /* is_last is written */
    if (!sm.is_last)
        return;
    __threadfence(); /* orders the count before reading the splits of other thread blocks */
    decode_merge_splits<HD>(plan, task, part.first_split, part.num_splits);
    if (threadIdx.x == 0)
        *counter = 0;
}

decode_plan rk_attn_decode_plan(const rk_cuda_attn_paged_args *args);

#endif
