/* Attention over the paged cache for few queries a sequence (decode). Twin of kernels/cpu/attn_paged.c;
 * definition in attn.h.
 *
 * Work split   A tile is 16 rows of one sequence and kv head, a row being a query head of the group at a
 *              token: the keys are read once for all heads of a group. A block takes every num_parts-th split
 *              of 512 keys of a tile; the number of parts follows from the shapes and does not change the
 *              bits.
 * Pipeline     K and V blocks of 128 keys alternate in three buffers filled by cp.async, two of them always
 *              in flight: 64 KiB per block at head_dim 128, two blocks per SM.
 * Warps        Four share a block of keys: 32 keys each in QK, a quarter of head_dim each in PV.
 * Merge        In ascending order of the splits. A block that has all splits of a tile merges each into its
 *              registers. Otherwise output, maximum and sum (f32) of a split are written to the workspace,
 *              and the last block of a tile to finish merges them.
 * Traffic      2 * head_dim * 2 bytes a key and kv head: the kernel is bound by device memory.
 * Measured     In attn_decode_sm90.cu, together with its figures. */
#include "kernels/cuda/attention/attn_decode.cuh"

namespace
{

constexpr int BUFFERS = 3;

template <int HD> struct decode_smem {
    decode_shared<HD> shared;
    alignas(16) bf16 kv[BUFFERS][ATTN_KEY_BLOCK * attn_pitch<HD>];
};

/* Position of the key of a block for which this lane looks up the cache block. */
__device__ inline int lane_key(int block)
{
    return block * ATTN_KEY_BLOCK + threadIdx.x; /* a warp loads 32 of the 128 keys */
}

/* The cache block of that key, or -1: no query attends to it. Loaded one key block ahead of the copies that
 * use it, so that they do not wait for the table. */
__device__ inline int find_entry(const decode_task &task, int block)
{
    int j = lane_key(block);

    return j >= task.first && j < task.end ? attn_table_entry(task.keys, j) : -1;
}

/* Copies this warp's 32 rows of a block, as the next group of copies. */
template <int HD>
__device__ inline void load_block(bf16 *dst, const bf16 *base, const decode_task &task, int entry, int block)
{
    if (block * ATTN_KEY_BLOCK < task.end)
        attn_load_share<ATTN_KEY_BLOCK, DECODE_WARPS, HD>(
            dst, base + (entry < 0 ? 0 : attn_cache_row(task.keys, lane_key(block), entry)), entry >= 0);
    attn_copy_commit(); /* an empty group keeps the number of groups in flight constant */
}

/* Processes this thread block's splits in order. */
template <int HD>
__device__ inline void run_splits(decode_smem<HD> &sm, const decode_plan &plan, const decode_task &task,
                                  const decode_part &part, decode_state<HD> &state)
{
    int block = part.first_block, next = decode_next_block(block, plan.num_parts);
    int entry = find_entry(task, block), next_entry = find_entry(task, next);

    decode_load_queries<HD>(sm.shared.q, task);
    load_block<HD>(sm.kv[0], task.k, task, entry, block);
    load_block<HD>(sm.kv[1], task.v, task, entry, block);
    attn_copy_wait<1>();
    decode_sync(); /* the queries are in shared memory (and this warp's K) */
    decode_init(state, sm.shared);
    for (int item = 0; block * ATTN_KEY_BLOCK < task.end; item += 2) {
        float s[16];

        attn_copy_wait<1>();
        __syncwarp(); /* this warp's rows of K are in shared memory */
        decode_quarter_scores<HD, false>(s, state.q, sm.kv[item % BUFFERS], task, block);
        decode_share_maxima(sm.shared, s);
        decode_sync(); /* the maxima are written; all warps have read the last V */
        load_block<HD>(sm.kv[(item + 2) % BUFFERS], task.k, task, next_entry, next);
        decode_share_probs(sm.shared, s, state.softmax, task.c, state.alpha);
        attn_copy_wait<1>();
        decode_sync(); /* V, the probabilities and the sums are written */
        load_block<HD>(sm.kv[(item + 3) % BUFFERS], task.v, task, next_entry, next); /* overwrites this warp's
                                                                                      * K */
        next_entry = find_entry(task, decode_next_block(next, plan.num_parts));
        decode_add_block<HD, false>(state, sm.shared, sm.kv[(item + 1) % BUFFERS]);
        decode_end_block(state, plan, task, part, block);
        block = next;
        next = decode_next_block(block, plan.num_parts);
    }
    attn_copy_wait<0>();
}

template <int HD>
__global__ void __launch_bounds__(DECODE_THREADS)
    attn_decode_kernel(const rk_cuda_attn_paged_args args, const decode_plan plan)
{
    extern __shared__ __align__(16) uint8_t raw[];
    decode_smem<HD> &sm = *reinterpret_cast<decode_smem<HD> *>(raw);
    decode_state<HD> state;
    decode_part part;
    decode_task task;

    if (!decode_begin(&task, &part, args))
        return;
    run_splits(sm, plan, task, part, state);
    decode_end(sm.shared, plan, task, part, state);
}

size_t round_up(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* Upper bound of the number of tiles: a sequence of n tokens has ceil(n * group / 16). */
int64_t count_slots(const rk_cuda_attn_paged_args *args)
{
    int group = args->num_heads / args->num_kv_heads;
    int64_t by_rows = (int64_t)args->num_tokens * group / DECODE_ROWS + args->num_seqs;
    int64_t by_tokens = (int64_t)args->num_tokens * ((group + DECODE_ROWS - 1) / DECODE_ROWS);

    return by_rows < by_tokens ? by_rows : by_tokens;
}

int64_t count_splits(const rk_cuda_attn_paged_args *args)
{
    return ((int64_t)args->max_blocks * args->block_size + ATTN_KEY_SPLIT - 1) / ATTN_KEY_SPLIT;
}

/* One round of two thread blocks per SM. If sequences may be long, and so may differ in length, up to two
 * rounds, until a thread block has at most four splits. */
int count_parts(int num_sms, int num_tiles, int max_splits)
{
    int one_round = 2 * num_sms / num_tiles, two_rounds = (4 * num_sms + num_tiles - 1) / num_tiles;
    int short_parts = (max_splits + 3) / 4;
    int wanted = short_parts < two_rounds ? short_parts : two_rounds;

    if (wanted < one_round)
        wanted = one_round;
    return wanted < max_splits ? wanted : max_splits;
}

} // namespace

decode_plan rk_attn_decode_plan(const rk_cuda_attn_paged_args *args)
{
    size_t rows = (size_t)args->num_tokens * args->num_heads;
    char *base = (char *)args->workspace;
    int num_tiles;
    decode_plan plan;

    plan.num_slots = (int)count_slots(args);
    plan.max_splits = (int)count_splits(args);
    num_tiles = plan.num_slots * args->num_kv_heads;
    plan.num_parts = count_parts(args->device.num_sms, num_tiles, plan.max_splits);
    plan.workspace.counters = (int *)base;
    base += ATTN_NUM_COUNTERS * sizeof(int);
    plan.workspace.stats = (float2 *)base;
    base += round_up(rows * plan.max_splits * sizeof(float2));
    plan.workspace.outputs = (float *)base;
    return plan;
}

bool rk_attn_decode_fits(const rk_cuda_attn_paged_args *args)
{
    int bytes = 0;

    (void)attn_for_mma(args->head_dim, [&](auto dim) {
        bytes = sizeof(decode_smem<dim.value>);
        return cudaSuccess;
    });
    return count_slots(args) * args->num_kv_heads <= ATTN_NUM_COUNTERS &&
           bytes <= args->device.max_shared_bytes;
}

size_t rk_attn_decode_workspace_bytes(const rk_cuda_attn_paged_args *args)
{
    size_t rows = (size_t)args->num_tokens * args->num_heads, splits = (size_t)count_splits(args);

    return ATTN_NUM_COUNTERS * sizeof(int) + round_up(rows * splits * sizeof(float2)) +
           rows * splits * args->head_dim * sizeof(float);
}

cudaError_t rk_attn_decode(cudaStream_t stream, const rk_cuda_attn_paged_args *args)
{
    decode_plan plan = rk_attn_decode_plan(args);
    dim3 blocks(plan.num_slots * args->num_kv_heads, plan.num_parts);

    return attn_for_mma(args->head_dim, [=](auto dim) {
        attn_grid grid = {stream, blocks, DECODE_THREADS, sizeof(decode_smem<dim.value>)};

        return attn_launch(attn_decode_kernel<dim.value>, grid, *args, plan);
    });
}
