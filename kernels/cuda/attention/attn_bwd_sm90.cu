/* Attention backward by wgmma, head_dim 64, 128, and 192 with v_head_dim 128. Twin of
 * kernels/cpu/attn_varlen_bwd.c; the plan is in attn_bwd.cuh.
 *
 * Work split   dk, dv: two warpgroups of 64 keys iterate over blocks of 64 queries. dq: two of 64 queries
 *              iterate over blocks of 128 keys. One more warp loads their operands by TMA, in two stages.
 * Products     S^T = K Q^T and dP^T = V dout^T from shared memory; p^T and ds^T go from their accumulators
 *              into the A registers of dv += p^T dout and dk += ds^T Q, whose B operand is the same tile read
 *              by columns; nothing is written back to shared memory.
 * Memory       dk, dv: K, V 64 KiB + 2 x 32 KiB (head_dim 128); dq: 64 KiB + 2 x 64 KiB.
 * Registers    dk, dv: 64 + 64 for the sums, 32 + 32 for s and dp a lane; dq: 64, 64 + 64.
 * Measured     H200, causal, TFLOP/s counted as 2.5 times the forward pass (3.5 are computed), one run
 *              at a time / back to back (at the power limit), and what PyTorch's cuDNN and
 *              FlashAttention-2 gave in the same run, back to back:
 *                hd128  2 x 4096, 16 heads       428 / 386    413, 255
 *                hd128  1 x 8192, 16 heads       472 / 420    468, 279
 *                hd128  4 x 2048, 28 on 4 heads  399 / 364    358, 229
 *                hd128  4 x 2048, 12 on 2 heads  363 / 358    336, 204
 *                hd128 16 x  512, 28 on 4 heads  232 / 229    185, 135
 *                hd64   2 x 4096, 32 heads       314 / 301    357, 237
 *                192/128 2 x 4096, 16 heads      362 (H100)
 *              Of the first, delta takes 21 us, dk and dv 474, dq 326.
 * Tried        Three stages for dk, dv: no gain. The next block's scores before this one's sums are
 *              done: registers do not suffice at head_dim 128 and the compiler serialises.
 * Numerics     p and ds are rounded to bf16 for the products; sums in f32, repeatable. */
#include "kernels/cuda/attention/attn_bwd.cuh"
#include "kernels/cuda/attention/attn_sm90.cuh"

namespace
{

constexpr int STAGES = 2, THREADS = 3 * ATTN_WG, OWN = 128; /* OWN: rows of a thread block's fixed tiles */
/* Rows of the blocks that are iterated over, for a head_dim. */
template <int HD> constexpr int QUERIES = HD > 128 ? 48 : 64;
template <int HD> constexpr int KEYS = HD > 128 ? 64 : 128;
enum { BAR_WG = 1 }; /* named barriers, one per warpgroup */

struct bwd_maps {
    CUtensorMap q, dout, k, v;
};

/* A block of rows of Q and dout, or of K and V. */
template <int HD, int VD, int ROWS> struct bwd_rows {
    bf16 wide[ROWS * HD];   /* Q or K */
    bf16 narrow[ROWS * VD]; /* dout or V */
};

/* own: K and V, or Q and dout; walk: the other two, which are iterated over, WALK rows at a time. */
template <int HD, int VD, int WALK> struct bwd_smem {
    bwd_rows<HD, VD, OWN> own;
    bwd_rows<HD, VD, WALK> walk[STAGES];
    float lse2[STAGES][QUERIES<HD>], delta[STAGES][QUERIES<HD>]; /* dk, dv only */
    uint64_t own_full, full[STAGES], empty[STAGES];
};

#if RK_ATTN_HAS_SM90

template <int HD, int VD, int WALK>
__device__ inline void init_barriers(bwd_smem<HD, VD, WALK> &sm, int full_arrivals)
{
    attn_bar_init(&sm.own_full, 1);
    for (int i = 0; i < STAGES; i++) {
        attn_bar_init(&sm.full[i], full_arrivals);
        attn_bar_init(&sm.empty[i], 2 * ATTN_WG); /* all threads that read it */
    }
    attn_bar_init_fence();
}

/* Copies the rows of a head from `token` on, of both tensors, by one thread. */
template <int HD, int VD, int ROWS>
__device__ inline void load_rows(bwd_rows<HD, VD, ROWS> &rows, uint64_t *bar, const CUtensorMap *wide,
                                 const CUtensorMap *narrow, int head, int token)
{
    attn_bar_expect(bar, sizeof(rows));
    attn_tma_load<HD>(rows.wide, ROWS, 0, wide, bar, {token, head, 0});
    attn_tma_load<VD>(rows.narrow, ROWS, 0, narrow, bar, {token, head, 0});
}

/* Waits until the stage of the i-th iterated block is free. */
template <int HD, int VD, int WALK> __device__ inline void wait_free(bwd_smem<HD, VD, WALK> &sm, int i)
{
    attn_bar_wait(&sm.empty[i % STAGES], i / STAGES % 2 ^ 1);
}

/* Zeroes rows of an iterated block beyond the end of the sequence, by warpgroup wg, before it multiplies by
 * them. */
template <int HD, int VD, int WALK>
__device__ inline void zero_tails(bwd_rows<HD, VD, WALK> &walk, int num_rows, int wg)
{
    if (num_rows >= WALK)
        return;
    attn_zero_tail<HD, WALK>(walk.wide, num_rows);
    attn_zero_tail<VD, WALK>(walk.narrow, num_rows);
    attn_async_fence();
    attn_named_sync(BAR_WG + wg, ATTN_WG); /* the whole warpgroup has zeroed its rows */
}

/* Starts the scores of the i-th iterated block, s = own walk^T of the wide tensors and dp of the narrow ones,
 * of which num_rows exist. On return s is complete; dp is still running. */
template <int HD, int VD, int WALK>
__device__ inline void start_scores(float (&s)[WALK / 2], float (&dp)[WALK / 2], bwd_smem<HD, VD, WALK> &sm,
                                    int i, int num_rows, int wg)
{
    int stage = i % STAGES;

    attn_bar_wait(&sm.full[stage], i / STAGES % 2);
    zero_tails(sm.walk[stage], num_rows, wg);
    attn_pin(s);
    attn_pin(dp);
    attn_wgmma_fence();
    attn_gemm_rows<HD, WALK>(s, sm.own.wide, wg * 64, OWN, sm.walk[stage].wide);
    attn_wgmma_commit();
    attn_gemm_rows<VD, WALK>(dp, sm.own.narrow, wg * 64, OWN, sm.walk[stage].narrow);
    attn_wgmma_commit();
    attn_wgmma_wait<1>();
    attn_pin(s);
}

/* This thread has finished reading the i-th iterated block. (An arrival of one lane per warp, after
 * __syncwarp(), would be equivalent and cost the same, but compute-sanitizer's racecheck does not track it
 * and reports the other lanes' reads.) */
template <int HD, int VD, int WALK> __device__ inline void release(bwd_smem<HD, VD, WALK> &sm, int i)
{
    attn_bar_arrive(&sm.empty[i % STAGES]);
}

/* --- dk and dv */

typedef attn_dkv_task dkv_task;

template <int HD> __device__ inline int blocks_per_head(const dkv_task &task)
{
    return (task.end_query - task.first_query + QUERIES<HD> - 1) / QUERIES<HD>;
}

/* Producer warp: copies K and V, then the blocks of queries of each head with their statistics. */
template <int HD, int VD>
__device__ inline void produce_queries(bwd_smem<HD, VD, QUERIES<HD>> &sm, const bwd_maps &maps,
                                       const rk_cuda_attn_args &fwd, const attn_bwd_plan &plan,
                                       const dkv_task &task)
{
    int per_head = blocks_per_head<HD>(task), lane = attn_lane();

    if (lane == 0)
        load_rows(sm.own, &sm.own_full, &maps.k, &maps.v, task.kv_head,
                  task.tile.key_begin + task.tile.first_row);
    for (int i = 0; i < per_head * (task.end_head - task.first_head); i++) {
        int stage = i % STAGES, head = task.first_head + i / per_head;
        int query = task.first_query + i % per_head * QUERIES<HD>;

        wait_free(sm, i);
        if (lane == 0)
            load_rows(sm.walk[stage], &sm.full[stage], &maps.q, &maps.dout, head, task.tile.begin + query);
        for (int r = lane; r < QUERIES<HD>; r += 32)
            attn_bwd_load_stats(&sm.lse2[stage][r], &sm.delta[stage][r], fwd, plan.delta, task.tile, head,
                                query + r);
        attn_bar_arrive(&sm.full[stage]);
    }
}

/* A warpgroup's registers for dk and dv, and the parameters of its task. */
template <int HD, int VD> struct dkv_state {
    float dk[HD / 2], dv[VD / 2];
    float s[QUERIES<HD> / 2], dp[QUERIES<HD> / 2]; /* of the current block */
    float c;                                       /* scale * log2(e) */
    int wg, key, window;                           /* key: first one of the warpgroup */
    int first, per_head, length; /* first query; blocks of queries a head; of the sequence */
};

/* First query of the i-th block. */
template <int HD, int VD> __device__ inline int query_of(const dkv_state<HD, VD> &w, int i)
{
    return w.first + i % w.per_head * QUERIES<HD>;
}

/* Computes the contribution of the i-th block, whose scores are running, to dk and dv; the last GEMM is still
 * running on return. */
template <int HD, int VD>
__device__ inline void add_queries(dkv_state<HD, VD> &w, bwd_smem<HD, VD, QUERIES<HD>> &sm, int i)
{
    int stage = i % STAGES, query = query_of(w, i);
    uint32_t p[QUERIES<HD> / 4], ds[QUERIES<HD> / 4];

    attn_bwd_probs_t(w.s, sm.lse2[stage], w.c, w.key + threadIdx.x / 32 % 4 * 16, query, w.window,
                     query < w.key + 64 || (w.window > 0 && query + QUERIES<HD> - w.key > w.window));
    attn_pack_rows(p, w.s);
    attn_pin(w.dv);
    attn_wgmma_fence();
    attn_gemm_cols<VD, QUERIES<HD>>(w.dv, p, sm.walk[stage].narrow, 1);
    attn_wgmma_commit();
    attn_wgmma_wait<1>(); /* dp is complete; dv is still running */
    attn_pin(w.dp);
    attn_bwd_ds_t(w.s, w.dp, sm.delta[stage]);
    attn_pack_rows(ds, w.s);
    attn_pin(w.dk);
    attn_wgmma_fence();
    attn_gemm_cols<HD, QUERIES<HD>>(w.dk, ds, sm.walk[stage].wide, 1);
    attn_wgmma_commit();
}

/* All blocks of queries. Starting the next block's scores before these sums are complete would overlap more,
 * but needs too many registers at head_dim 128. */
template <int HD, int VD>
__device__ inline void walk_queries(dkv_state<HD, VD> &w, bwd_smem<HD, VD, QUERIES<HD>> &sm, int num_blocks)
{
    for (int i = 0; i < num_blocks; i++) {
        start_scores(w.s, w.dp, sm, i, w.length - query_of(w, i), w.wg);
        add_queries(w, sm, i);
        attn_wgmma_wait<0>();
        attn_pin(w.dv);
        attn_pin(w.dk);
        release(sm, i);
    }
}

template <int HD, int VD>
__device__ inline void consume_queries(bwd_smem<HD, VD, QUERIES<HD>> &sm, const rk_cuda_attn_bwd_args &args,
                                       const attn_bwd_plan &plan, const dkv_task &task, int wg)
{
    const rk_cuda_attn_args &fwd = args.fwd;
    int warp_row = wg * 64 + threadIdx.x / 32 % 4 * 16, row = task.tile.first_row + warp_row;
    int64_t key = task.tile.key_begin + row;
    float dk_factor[2] = {fwd.scale, fwd.scale}, dv_factor[2] = {1.0f, 1.0f};
    dkv_state<HD, VD> w;

    w.c = fwd.scale * ATTN_LOG2E;
    w.wg = wg;
    w.key = task.tile.first_row + wg * 64;
    w.window = fwd.window;
    w.first = task.first_query;
    w.per_head = blocks_per_head<HD>(task);
    w.length = task.tile.length;
#pragma unroll
    for (int i = 0; i < HD / 2; i++)
        w.dk[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < VD / 2; i++)
        w.dv[i] = 0.0f;
    attn_bar_wait(&sm.own_full, 0);
    walk_queries(w, sm, __shfl_sync(0xffffffffu, w.per_head * (task.end_head - task.first_head), 0));
    if (plan.num_parts > 1) {
        attn_store_part(plan.dk, fwd, task, HD, row, w.dk, fwd.scale);
        attn_store_part(plan.dv, fwd, task, VD, row, w.dv, 1.0f);
        return;
    }
    attn_named_sync(BAR_WG + wg, ATTN_WG); /* the warpgroup has finished reading K and V */
    attn_store_rows<HD>((bf16 *)args.dk + key * args.dk_stride + task.kv_head * HD, args.dk_stride,
                        task.tile.length - row, w.dk, dk_factor, sm.own.wide, warp_row);
    attn_store_rows<VD>((bf16 *)args.dv + key * args.dv_stride + task.kv_head * VD, args.dv_stride,
                        task.tile.length - row, w.dv, dv_factor, sm.own.narrow, warp_row);
}

/* --- dq */

/* Queries of one head, and the blocks of keys that they attend to. */
struct dq_task {
    attn_tile tile;
    int head, kv_head, first, last;
};

/* One thread: copies Q and dout, then the blocks of keys. */
template <int HD, int VD>
__device__ inline void produce_keys(bwd_smem<HD, VD, KEYS<HD>> &sm, const bwd_maps &maps, const dq_task &task)
{
    load_rows(sm.own, &sm.own_full, &maps.q, &maps.dout, task.head, task.tile.begin + task.tile.first_row);
    for (int block = task.first; block <= task.last; block++) {
        int stage = (block - task.first) % STAGES;

        wait_free(sm, block - task.first);
        load_rows(sm.walk[stage], &sm.full[stage], &maps.k, &maps.v, task.kv_head,
                  task.tile.key_begin + block * KEYS<HD>);
    }
}

/* A warpgroup's registers for dq, and the parameters of its tile. */
template <int HD> struct dq_state {
    float dq[HD / 2];
    float s[KEYS<HD> / 2], dp[KEYS<HD> / 2]; /* of the current block */
    float lse2[2], delta[2], c;              /* of rows g, g+8; scale * log2(e) */
    int wg, row, window, length;             /* row: first one of the warp; length: of the sequence */
};

/* Computes the contribution of the i-th block, whose scores are running, to dq; the last GEMM is still
 * running on return. */
template <int HD, int VD>
__device__ inline void add_keys(dq_state<HD> &w, bwd_smem<HD, VD, KEYS<HD>> &sm, int i, int key)
{
    uint32_t ds[KEYS<HD> / 4];

    attn_bwd_probs(w.s, w.lse2, w.c, w.row, key, w.window,
                   key + KEYS<HD> > w.row || (w.window > 0 && w.row + 15 - key >= w.window));
    attn_wgmma_wait<0>();
    attn_pin(w.dp);
    attn_bwd_ds(w.s, w.dp, w.delta);
    attn_pack_rows(ds, w.s);
    attn_pin(w.dq);
    attn_wgmma_fence();
    attn_gemm_cols<HD, KEYS<HD>>(w.dq, ds, sm.walk[i % STAGES].wide, 1);
    attn_wgmma_commit();
}

/* Iterates over blocks first..last of keys. */
template <int HD, int VD>
__device__ inline void walk_keys(dq_state<HD> &w, bwd_smem<HD, VD, KEYS<HD>> &sm, int first, int last)
{
    for (int block = first; block <= last; block++) {
        int i = block - first;

        start_scores(w.s, w.dp, sm, i, w.length - block * KEYS<HD>, w.wg);
        add_keys(w, sm, i, block * KEYS<HD>);
        attn_wgmma_wait<0>();
        attn_pin(w.dq);
        release(sm, i);
    }
}

template <int HD, int VD>
__device__ inline void consume_keys(bwd_smem<HD, VD, KEYS<HD>> &sm, const rk_cuda_attn_bwd_args &args,
                                    const float *deltas, const dq_task &task, int wg)
{
    const rk_cuda_attn_args &fwd = args.fwd;
    const attn_tile &tile = task.tile;
    int warp_row = wg * 64 + threadIdx.x / 32 % 4 * 16, row = tile.first_row + warp_row;
    float factor[2] = {fwd.scale, fwd.scale};
    dq_state<HD> w;

    w.c = fwd.scale * ATTN_LOG2E;
    w.wg = wg;
    w.row = row;
    w.window = fwd.window;
    w.length = tile.length;
#pragma unroll
    for (int i = 0; i < HD / 2; i++)
        w.dq[i] = 0.0f;
    for (int r = 0; r < 2; r++)
        attn_bwd_load_stats(&w.lse2[r], &w.delta[r], fwd, deltas, tile, task.head,
                            row + attn_lane() / 4 + 8 * r);
    attn_bar_wait(&sm.own_full, 0);
    walk_keys(w, sm, task.first, task.last);
    attn_named_sync(BAR_WG + wg, ATTN_WG); /* the warpgroup has finished reading Q */
    attn_store_rows<HD>((bf16 *)args.dq + (int64_t)(tile.begin + row) * args.dq_stride + task.head * HD,
                        args.dq_stride, tile.length - row, w.dq, factor, sm.own.wide, warp_row);
}

#endif

template <typename S> __device__ inline S &align_smem(uint8_t *raw)
{
    return *reinterpret_cast<S *>(raw + (-attn_smem(raw) & 1023));
}

template <int HD, int VD, bool OWN_KEYS>
__global__ void __launch_bounds__(THREADS, 1)
    attn_dkv_wgmma_kernel(const __grid_constant__ bwd_maps maps, const rk_cuda_attn_bwd_args args,
                          const attn_bwd_plan plan)
{
#if RK_ATTN_HAS_SM90
    extern __shared__ uint8_t raw[];
    auto &sm = align_smem<bwd_smem<HD, VD, QUERIES<HD>>>(raw);
    const rk_cuda_attn_args &fwd = args.fwd;
    int wg = __shfl_sync(0xffffffffu, threadIdx.x / ATTN_WG, 0); /* shuffle: makes the value uniform in a warp
                                                                  * for the compiler */
    int items = fwd.num_kv_heads * plan.num_parts, item = blockIdx.x % items, rank = blockIdx.x / items;
    attn_tile tile;
    attn_dkv_task task;

    if (!attn_packed_tile<OWN_KEYS>(&tile, fwd, rank, OWN, true))
        return;
    task = attn_make_dkv_task(fwd, tile, item / plan.num_parts, item % plan.num_parts, plan.num_parts, OWN);
    if (threadIdx.x == 0)
        init_barriers(sm, 33); /* arrivals: the announcement of the copy's bytes, and each lane's
                                * statistics */
    __syncthreads();           /* the barriers are initialized */
    if (wg == 2) {
        attn_give_registers<24>();
        if (threadIdx.x < 2 * ATTN_WG + 32)
            produce_queries(sm, maps, fwd, plan, task);
    } else {
        attn_take_registers<240>();
        consume_queries(sm, args, plan, task, wg);
    }
#endif
}

template <int HD, int VD, bool OWN_KEYS>
__global__ void __launch_bounds__(THREADS, 1)
    attn_dq_wgmma_kernel(const __grid_constant__ bwd_maps maps, const rk_cuda_attn_bwd_args args,
                         const attn_bwd_plan plan)
{
#if RK_ATTN_HAS_SM90
    extern __shared__ uint8_t raw[];
    auto &sm = align_smem<bwd_smem<HD, VD, KEYS<HD>>>(raw);
    const rk_cuda_attn_args &fwd = args.fwd;
    int wg = __shfl_sync(0xffffffffu, threadIdx.x / ATTN_WG, 0);
    int last_row;
    dq_task task;

    if (!attn_packed_tile<OWN_KEYS>(&task.tile, fwd, blockIdx.x / fwd.num_heads, OWN, false))
        return;
    last_row = min(task.tile.first_row + OWN, task.tile.length) - 1;
    task.head = blockIdx.x % fwd.num_heads;
    task.kv_head = task.head / (fwd.num_heads / fwd.num_kv_heads);
    task.first = __shfl_sync(0xffffffffu, attn_first_key(task.tile.first_row, fwd.window) / KEYS<HD>, 0);
    task.last = __shfl_sync(0xffffffffu, last_row / KEYS<HD>, 0);
    if (threadIdx.x == 0)
        init_barriers(sm, 1);
    __syncthreads(); /* the barriers are initialized */
    if (wg == 2) {
        attn_give_registers<24>();
        if (threadIdx.x == 2 * ATTN_WG)
            produce_keys(sm, maps, task);
    } else {
        attn_take_registers<240>();
        consume_keys(sm, args, plan.delta, task, wg);
    }
#endif
}

cudaError_t make_maps(bwd_maps *maps, const rk_cuda_attn_bwd_args *args, int query_rows, int key_rows)
{
    const rk_cuda_attn_args &fwd = args->fwd;
    int hd = fwd.head_dim, vd = fwd.v_head_dim, tokens = fwd.num_tokens, heads = fwd.num_heads;
    int keys = fwd.num_keys, kv_heads = fwd.num_kv_heads;
    cudaError_t err =
        attn_make_map(&maps->q, fwd.q, attn_packed_shape(tokens, heads, hd, fwd.q_stride, query_rows));

    if (err == cudaSuccess)
        err = attn_make_map(&maps->dout, args->dout,
                            attn_packed_shape(tokens, heads, vd, args->dout_stride, query_rows));
    if (err == cudaSuccess)
        err = attn_make_map(&maps->k, fwd.k, attn_packed_shape(keys, kv_heads, hd, fwd.k_stride, key_rows));
    if (err == cudaSuccess)
        err = attn_make_map(&maps->v, fwd.v, attn_packed_shape(keys, kv_heads, vd, fwd.v_stride, key_rows));
    return err;
}

template <int HD, int VD, bool OWN_KEYS>
cudaError_t launch_dkv(cudaStream_t stream, const rk_cuda_attn_bwd_args *args, const attn_bwd_plan *plan)
{
    const rk_cuda_attn_args &fwd = args->fwd;
    unsigned num_tiles = attn_max_tiles(fwd.num_keys, fwd.num_seqs, OWN);
    attn_grid grid = {stream, dim3(num_tiles * fwd.num_kv_heads * plan->num_parts), THREADS,
                      sizeof(bwd_smem<HD, VD, QUERIES<HD>>) + 1024};
    bwd_maps maps;
    cudaError_t err = make_maps(&maps, args, QUERIES<HD>, OWN);

    return err == cudaSuccess ? attn_launch(attn_dkv_wgmma_kernel<HD, VD, OWN_KEYS>, grid, maps, *args, *plan)
                              : err;
}

template <int HD, int VD, bool OWN_KEYS>
cudaError_t launch_dq(cudaStream_t stream, const rk_cuda_attn_bwd_args *args, const attn_bwd_plan *plan)
{
    const rk_cuda_attn_args &fwd = args->fwd;
    unsigned num_tiles = attn_max_tiles(fwd.num_tokens, fwd.num_seqs, OWN);
    attn_grid grid = {stream, dim3(num_tiles * fwd.num_heads), THREADS,
                      sizeof(bwd_smem<HD, VD, KEYS<HD>>) + 1024};
    bwd_maps maps;
    cudaError_t err = make_maps(&maps, args, OWN, KEYS<HD>);

    return err == cudaSuccess ? attn_launch(attn_dq_wgmma_kernel<HD, VD, OWN_KEYS>, grid, maps, *args, *plan)
                              : err;
}

template <int HD, int VD, bool OWN_KEYS>
cudaError_t launch(cudaStream_t stream, const rk_cuda_attn_bwd_args *args)
{
    attn_bwd_plan plan = rk_attn_bwd_make_plan(args);
    cudaError_t err = rk_attn_bwd_prepare(stream, args, &plan);

    if (err == cudaSuccess)
        err = launch_dkv<HD, VD, OWN_KEYS>(stream, args, &plan);
    if (err == cudaSuccess)
        err = launch_dq<HD, VD, OWN_KEYS>(stream, args, &plan);
    return err == cudaSuccess ? rk_attn_bwd_reduce(stream, args, &plan) : err;
}

} // namespace

cudaError_t rk_attn_bwd_wgmma(cudaStream_t stream, const rk_cuda_attn_bwd_args *args)
{
    return attn_for_wgmma({args->fwd.head_dim, args->fwd.v_head_dim}, [=](auto dim) {
        return attn_for_keys(args->fwd, [=](auto own) {
            return launch<dim.head_dim, dim.v_head_dim, own.value>(stream, args);
        });
    });
}
