/* Attention over a paged cache of latents (absorbed form of latent attention): one row of 576 values a token
 * is the key of all heads, and its first 512 are the value. Twin of kernels/cpu/attn_paged.c.
 *
 * Work split   That of attn_decode.cu: a tile is 16 rows (heads) of a token, a block takes every num_parts-th
 *              split of 512 keys of a tile. One block an SM.
 * Pipeline     64 keys at a time in two buffers of 73 KiB filled by cp.async; each is read from memory once,
 *              for the scores by rows and for the output by columns.
 * Warps        Four: 16 keys each in QK, 128 of the 512 columns each in PV. Queries stay in shared memory.
 * Traffic      1,152 bytes a key, and 17 KFLOP for each of 16 heads: bound by memory up to 30 heads.
 * Numerics     Blocks of 64 keys and splits of 512 at absolute positions, in ascending order: the result of a
 *              query does not depend on the rest of the call. Not the bits of packed attention, which has no
 *              kernel on tensor cores for these widths. */
#include "kernels/cuda/attention/attn_decode.cuh"

namespace
{

constexpr int HD = 576, VD = 512, KEYS = 64, SHARE = KEYS / DECODE_WARPS;
/* With more bytes for the results of splits, a block takes all splits of a tile. */
constexpr size_t MAX_SPLIT_BYTES = (size_t)256 << 20;

struct latent_smem {
    decode_shared<VD, HD> shared;
    alignas(16) bf16 keys[2][KEYS * attn_pitch<HD>];
};

/* Half of a key block. */
struct latent_half {
    int block, half;

    __device__ inline int key() const
    {
        return block * ATTN_KEY_BLOCK + half * KEYS;
    }

    /* Whether it is the last one of its block. */
    __device__ inline bool ends_block(const decode_task &task) const
    {
        return half == 1 || key() + KEYS >= task.end;
    }
};

__device__ inline latent_half next_half(const latent_half &at, const decode_task &task, int num_parts)
{
    if (at.ends_block(task))
        return {decode_next_block(at.block, num_parts), 0};
    return {at.block, 1};
}

/* The cache block of this lane's key, or -1: no query attends to it. */
__device__ inline int find_entry(const decode_task &task, const latent_half &at)
{
    int j = at.key() + threadIdx.x / 32 * SHARE + attn_lane() % SHARE;

    return j >= task.first && j < task.end ? attn_table_entry(task.keys, j) : -1;
}

/* Copies this warp's keys, as a group of copies. */
__device__ inline void load_half(bf16 *dst, const decode_task &task, const latent_half &at, int entry)
{
    int j = at.key() + threadIdx.x / 32 * SHARE + attn_lane() % SHARE;

    if (at.key() < task.end)
        attn_load_share<KEYS, DECODE_WARPS, HD>(
            dst, task.k + (entry < 0 ? 0 : attn_cache_row(task.keys, j, entry)), entry >= 0);
    attn_copy_commit();
}

/* Scores of all 16 rows against this warp's 16 keys, masked: two chains, of the even and the odd k16 steps.
 */
__device__ inline void make_scores(float (&s)[8], const latent_smem &sm, const bf16 *keys,
                                   const decode_task &task, int first)
{
    int warp = threadIdx.x / 32, g = attn_lane() / 4, t = attn_lane() % 4;
    float odd[8];

#pragma unroll
    for (int i = 0; i < 8; i++)
        s[i] = odd[i] = 0.0f;
#pragma unroll 6
    for (int kk = 0; kk < HD / 16; kk += 2) {
        uint32_t a[4], b[4];

        attn_load_a<HD>(a, sm.shared.q, 0, kk);
        attn_load_b<HD>(b, keys, warp * SHARE, kk);
        attn_mma(s, a, b[0], b[1]);
        attn_mma(s + 4, a, b[2], b[3]);
        attn_load_a<HD>(a, sm.shared.q, 0, kk + 1);
        attn_load_b<HD>(b, keys, warp * SHARE, kk + 1);
        attn_mma(odd, a, b[0], b[1]);
        attn_mma(odd + 4, a, b[2], b[3]);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int j = first + warp * SHARE + i / 4 * 8 + 2 * t + i % 2;
        int p = decode_row_position(task, g + i / 2 % 2 * 8);

        s[i] += odd[i];
        if (j > p || j < task.first || (task.window > 0 && p - j >= task.window))
            s[i] = -INFINITY;
    }
}

/* Writes the maxima of this warp's keys, to be read after the next barrier. */
__device__ inline void share_maxima(latent_smem &sm, const float (&s)[8])
{
    int warp = threadIdx.x / 32, g = attn_lane() / 4;

#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top =
            attn_quad_max(fmaxf(fmaxf(s[2 * r], s[2 * r + 1]), fmaxf(s[4 + 2 * r], s[4 + 2 * r + 1])));

        if (attn_lane() % 4 == 0)
            sm.shared.max[warp][g + 8 * r] = top;
    }
}

/* Writes the probabilities and the sums of this warp's keys, to be read after the next barrier. */
__device__ inline void share_probs(latent_smem &sm, float (&s)[8], decode_state<VD> &state, float c)
{
    int warp = threadIdx.x / 32, g = attn_lane() / 4, t = attn_lane() % 4;

#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = g + 8 * r;
        float(&max)[DECODE_WARPS][DECODE_ROWS] = sm.shared.max;
        float top = fmaxf(fmaxf(max[0][row], max[1][row]), fmaxf(max[2][row], max[3][row])), sum = 0.0f;

        state.alpha[r] = attn_raise_max(state.softmax, r, top, c);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            float *pair = s + 4 * n + 2 * r, offset = attn_exp_offset(state.softmax, r, c);

            pair[0] = attn_exp2(__fmaf_rn(pair[0], c, offset));
            pair[1] = attn_exp2(__fmaf_rn(pair[1], c, offset));
            sum += pair[0];
            sum += pair[1];
            *reinterpret_cast<uint32_t *>(sm.shared.p + row * attn_pitch<ATTN_KEY_BLOCK> + warp * SHARE +
                                          n * 8 + 2 * t) = attn_pack(pair[0], pair[1]);
        }
        sm.shared.sum[warp][row][t] = sum;
    }
}

/* o += P V: all keys of the half, this warp's columns. */
__device__ inline void add_output(decode_state<VD> &state, const latent_smem &sm, const bf16 *keys)
{
    int col = threadIdx.x / 32 * (VD / DECODE_WARPS);

#pragma unroll
    for (int kk = 0; kk < KEYS / 16; kk++) {
        uint32_t a[4], b[4];

        attn_load_a<ATTN_KEY_BLOCK>(a, sm.shared.p, 0, kk);
#pragma unroll
        for (int n = 0; n < DECODE_TILES<VD>; n += 2) {
            attn_load_bt<HD>(b, keys, kk, col + n * 8);
            attn_mma(state.o + 4 * n, a, b[0], b[1]);
            attn_mma(state.o + 4 * n + 4, a, b[2], b[3]);
        }
    }
}

/* Processes this thread block's splits in order. */
__device__ inline void run_splits(latent_smem &sm, const decode_plan &plan, const decode_task &task,
                                  const decode_part &part, decode_state<VD> &state)
{
    latent_half at = {part.first_block, 0}, next = next_half(at, task, plan.num_parts);
    int next_entry = find_entry(task, next);

    decode_load_queries<HD>(sm.shared.q, task);
    load_half(sm.keys[0], task, at, find_entry(task, at));
    decode_clear(state);
    for (int item = 0; at.key() < task.end; item++) {
        const bf16 *keys = sm.keys[item % 2];
        float s[8];

        attn_copy_wait<0>();
        decode_sync(); /* the keys are in shared memory; all warps have read the previous ones */
        load_half(sm.keys[(item + 1) % 2], task, next, next_entry);
        make_scores(s, sm, keys, task, at.key());
        share_maxima(sm, s);
        decode_sync(); /* the maxima are written */
        share_probs(sm, s, state, task.c);
        decode_sync(); /* the probabilities and the sums are written */
        decode_rescale(state, sm.shared);
        add_output(state, sm, keys);
        if (at.ends_block(task))
            decode_end_block(state, plan, task, part, at.block);
        at = next;
        next = next_half(at, task, plan.num_parts);
        next_entry = find_entry(task, next);
    }
    attn_copy_wait<0>();
}

__global__ void __launch_bounds__(DECODE_THREADS, 1)
    attn_latent_kernel(const rk_cuda_attn_paged_args args, const decode_plan plan)
{
    extern __shared__ __align__(16) uint8_t raw[];
    latent_smem &sm = *reinterpret_cast<latent_smem *>(raw);
    decode_state<VD> state;
    decode_part part;
    decode_task task;

    if (!decode_begin(&task, &part, args))
        return;
    run_splits(sm, plan, task, part, state);
    decode_end(sm.shared, plan, task, part, state);
}

/* The results of splits of a call with that many rows. */
size_t split_bytes(const rk_cuda_attn_paged_args *args, const decode_plan &plan, int64_t num_rows)
{
    return (size_t)num_rows * plan.max_splits * (VD * sizeof(float) + sizeof(float2));
}

decode_plan make_plan(const rk_cuda_attn_paged_args *args)
{
    decode_plan plan = rk_attn_decode_plan(args);

    if (plan.num_slots > ATTN_NUM_COUNTERS ||
        split_bytes(args, plan, (int64_t)args->num_tokens * args->num_heads) > MAX_SPLIT_BYTES)
        plan.num_parts = 1;
    return plan;
}

} // namespace

bool rk_attn_latent_takes(const rk_cuda_attn_paged_args *args)
{
    return args->dtype == RK_DTYPE_BF16 && args->head_dim == HD && args->v_head_dim == VD &&
           args->num_kv_heads == 1 && args->v_cache == args->k_cache &&
           args->v_row_stride == args->head_dim && (int)sizeof(latent_smem) <= args->device.max_shared_bytes;
}

size_t rk_attn_latent_workspace_bytes(const rk_cuda_attn_paged_args *args)
{
    return make_plan(args).num_parts > 1 ? rk_attn_decode_workspace_bytes(args) : 0;
}

/* With the most rows that are still split; more of them need less. */
size_t rk_attn_latent_max_workspace_bytes(const rk_cuda_attn_paged_args *args)
{
    rk_cuda_attn_paged_args step = *args;
    int low = 0, high = args->num_tokens + 1; /* split with `low` tokens, not with `high` */

    step.num_seqs = 1;
    while (high - low > 1) {
        step.num_tokens = (low + high) / 2;
        if (make_plan(&step).num_parts > 1)
            low = step.num_tokens;
        else
            high = step.num_tokens;
    }
    step.num_tokens = low;
    return low > 0 ? rk_attn_decode_workspace_bytes(&step) : 0;
}

cudaError_t rk_attn_latent(cudaStream_t stream, const rk_cuda_attn_paged_args *args)
{
    decode_plan plan = make_plan(args);
    attn_grid grid = {stream, dim3(plan.num_slots, plan.num_parts), DECODE_THREADS, sizeof(latent_smem)};

    return attn_launch(attn_latent_kernel, grid, *args, plan);
}
