/* Attention over the paged cache for few queries a sequence, head_dim 64 and 128, keys and values by TMA.
 * Twin of kernels/cpu/attn_paged.c; the plan is that of attn_decode.cu, with one difference:
 *
 * Pipeline     A fifth warp reads the block table and issues TMA copies of the cache's blocks, one lane each,
 *              into a ring of key blocks (96 KiB, two thread blocks per SM); the four compute warps spend no
 *              instructions on addresses and wait for data only.
 * Measured     H200, hd128, blocks of 16, one query a sequence, in a graph; us here, TB/s, us by
 *              attn_decode.cu:
 *                 64 x  1024 keys, 12 on 2 heads    23.8  2.8    24.9
 *                 64 x  1024 keys, 28 on 4 heads    43.1  3.1    45.2
 *                256 x  1024 keys, 28 on 4 heads   152.5  3.5   159.2
 *                 64 x  8192 keys, 12 on 2 heads   142.0  3.8   153.0
 *                  1 x 32768 keys, 28 on 4 heads    33.1  2.0    35.1
 *                  1 x  1024 keys, 28 on 4 heads    10.8  0.2    13.7
 *              The last row is what a call costs beyond its traffic: start, lookups, merge.
 *              Among the kernels of a decode step (layer_time) 64 x 1088 keys add 23.5 us on 2 heads, 27.5
 *              with nothing read ahead; on 4 heads 39 and 42.
 * Overlap      With past_is_settled (rk_kernels.h) the fifth warp loads blocks of the past, until the ring is
 *              full, before the previous kernel has ended.
 * Tried        Three parts of 64 x 1088 keys, equal to the number of splits: 1 us more on 2 heads, 7 us more
 *              on 4. Two stages and three blocks an SM: 0.6 us less on 2 heads, 3 us more on 4. Six stages
 *              and one block an SM: the same. Prefetching the keys after those of the ring into L2: 6 us
 *              more.
 * Limits       Cache blocks of 8 to 128 tokens, a power of two. */
#include "kernels/cuda/attention/attn_decode.cuh"
#include "kernels/cuda/attention/attn_sm90.cuh"
#include "kernels/cuda/cuda_common.cuh"

namespace
{

constexpr int THREADS = DECODE_THREADS + 32;

template <int HD> constexpr int STAGES = HD == 64 ? 6 : 3;

template <int HD> struct decode_smem {
    bf16 kv[STAGES<HD>][ATTN_KEY_BLOCK * HD];
    decode_shared<HD> shared;
    uint64_t full[STAGES<HD>], empty[STAGES<HD>];
};

struct decode_maps {
    CUtensorMap k, v;
};

#if RK_ATTN_HAS_SM90

template <int HD> __device__ inline void init_barriers(decode_smem<HD> &sm)
{
    for (int i = 0; i < STAGES<HD>; i++) {
        attn_bar_init(&sm.full[i], 1);
        attn_bar_init(&sm.empty[i], DECODE_THREADS); /* all compute threads */
    }
    attn_bar_init_fence();
}

/* The cache block that this lane copies for a key block (one lane each). A cache block that no row of the
 * tile attends to may have been freed: it is replaced by another valid block. */
__device__ inline int find_entry(const decode_task &task, int block)
{
    int at = attn_lane() << task.keys.shift, j = block * ATTN_KEY_BLOCK + at;

    if (at >= ATTN_KEY_BLOCK || block * ATTN_KEY_BLOCK >= task.end)
        return 0;
    return attn_table_entry(task.keys, min(max(j, task.first), task.end - 1));
}

/* Copies a key block of k or v into the next stage, by the producer warp. */
template <int HD>
__device__ inline void load_block(decode_smem<HD> &sm, const CUtensorMap *map, const decode_task &task,
                                  int kv_head, int item, int entry)
{
    int stage = item % STAGES<HD>, at = attn_lane() << task.keys.shift;

    attn_bar_wait(&sm.empty[stage], item / STAGES<HD> % 2 ^ 1);
    if (attn_lane() == 0)
        attn_bar_expect(&sm.full[stage], ATTN_KEY_BLOCK * HD * 2);
    __syncwarp(); /* the expected bytes are announced before the copies */
    if (at < ATTN_KEY_BLOCK)
        attn_tma_load<HD>(sm.kv[stage], ATTN_KEY_BLOCK, at, map, &sm.full[stage], {0, kv_head, entry});
}

/* Key blocks without tokens of this step may be loaded before waiting for the stream. */
template <int HD>
__device__ inline void produce(decode_smem<HD> &sm, const decode_maps &maps, const decode_task &task,
                               const decode_part &part, int kv_head, int num_parts)
{
    int block = part.first_block, entry = find_entry(task, block);

    for (int item = 0; block * ATTN_KEY_BLOCK < task.end; item += 2) {
        int next = decode_next_block(block, num_parts), next_entry = find_entry(task, next);

        if ((block + 1) * ATTN_KEY_BLOCK > task.position)
            rk_wait_for_stream();
        load_block(sm, &maps.k, task, kv_head, item, entry);
        load_block(sm, &maps.v, task, kv_head, item + 1, entry);
        block = next;
        entry = next_entry;
    }
}

template <int HD> __device__ inline const bf16 *wait_full(decode_smem<HD> &sm, int item)
{
    attn_bar_wait(&sm.full[item % STAGES<HD>], item / STAGES<HD> % 2);
    return sm.kv[item % STAGES<HD>];
}

template <int HD> __device__ inline void release(decode_smem<HD> &sm, int item)
{
    attn_bar_arrive(&sm.empty[item % STAGES<HD>]);
}

/* Processes this thread block's splits in order, by the four compute warps. */
template <int HD>
__device__ inline void run_splits(decode_smem<HD> &sm, const decode_plan &plan, const decode_task &task,
                                  const decode_part &part, decode_state<HD> &state)
{
    decode_load_queries<HD>(sm.shared.q, task);
    attn_copy_commit();
    attn_copy_wait<0>();
    decode_sync(); /* the queries are in shared memory */
    decode_init(state, sm.shared);
    for (int block = part.first_block, item = 0; block * ATTN_KEY_BLOCK < task.end; item += 2) {
        int num_keys = task.end - block * ATTN_KEY_BLOCK; /* existing keys from the start of the block */
        bf16 *v;
        float s[16];

        decode_quarter_scores<HD, true>(s, state.q, wait_full(sm, item), task, block);
        release(sm, item);
        decode_share_maxima(sm.shared, s);
        decode_sync(); /* the maxima are written */
        decode_share_probs(sm.shared, s, state.softmax, task.c, state.alpha);
        v = const_cast<bf16 *>(wait_full(sm, item + 1));
        if (num_keys < ATTN_KEY_BLOCK) /* the last block: no later copy overwrites the zeros */
            attn_zero_tail<HD, ATTN_KEY_BLOCK>(v, num_keys);
        decode_sync(); /* the probabilities, the sums and the zeros are written */
        decode_add_block<HD, true>(state, sm.shared, v);
        release(sm, item + 1);
        decode_end_block(state, plan, task, part, block);
        block = decode_next_block(block, plan.num_parts);
    }
}

#endif

template <int HD>
__global__ void __launch_bounds__(THREADS)
    attn_decode_tma_kernel(const __grid_constant__ decode_maps maps, const rk_cuda_attn_paged_args args,
                           const decode_plan plan)
{
#if RK_ATTN_HAS_SM90
    extern __shared__ uint8_t raw[];
    decode_smem<HD> &sm = *reinterpret_cast<decode_smem<HD> *>(raw + (-attn_smem(raw) & 1023));
    decode_state<HD> state;
    decode_part part;
    decode_task task;
    bool has_part;

    if (threadIdx.x == DECODE_THREADS) {
        attn_tma_prefetch(&maps.k);
        attn_tma_prefetch(&maps.v);
        init_barriers(sm);
    }
    if (!args.past_is_settled)
        rk_wait_for_stream();
    has_part = decode_begin(&task, &part, args);
    __syncthreads(); /* the barriers are initialized */
    if (has_part && threadIdx.x >= DECODE_THREADS)
        produce(sm, maps, task, part, blockIdx.x % args.num_kv_heads, plan.num_parts);
    if (threadIdx.x >= DECODE_THREADS)
        return;
    rk_wait_for_stream(); /* inputs from here on: the queries, and the keys and values of this step */
    if (!has_part)
        return;
    run_splits(sm, plan, task, part, state);
    decode_end(sm.shared, plan, task, part, state);
#endif
}

} // namespace

cudaError_t rk_attn_decode_tma(cudaStream_t stream, const rk_cuda_attn_paged_args *args)
{
    decode_plan plan = rk_attn_decode_plan(args);
    dim3 blocks(plan.num_slots * args->num_kv_heads, plan.num_parts);
    decode_maps maps;
    cudaError_t err = attn_make_map(&maps.k, args->k_cache,
                                    attn_cache_shape(args, args->head_dim, args->cache_block_stride));

    if (err == cudaSuccess)
        err = attn_make_map(&maps.v, args->v_cache,
                            attn_cache_shape(args, args->head_dim, args->cache_block_stride));
    if (err != cudaSuccess)
        return err;
    return attn_for_head_dim<64, 128>(args->head_dim, [=](auto dim) {
        attn_grid grid = {stream, blocks, THREADS, sizeof(decode_smem<dim.value>) + 1024, true};

        return attn_launch(attn_decode_tma_kernel<dim.value>, grid, maps, *args, plan);
    });
}
