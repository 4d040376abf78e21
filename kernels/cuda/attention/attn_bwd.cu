/* Attention backward by mma.sync: every tensor-core head_dim, compute capability 8.0 on. Twin of
 * kernels/cpu/attn_varlen_bwd.c; the plan is in attn_bwd.cuh.
 *
 * Work split   dk, dv: a block of 4 warps has 64 keys, 16 a warp, and iterates over blocks of 64 queries of
 *              its query heads. dq: 64 queries, iterating over blocks of 64 keys. head_dim 256 is processed
 *              in two slices of 128 gradient columns, each with all scores.
 * Tile         Four tiles of 64 x head_dim in shared memory (68 KiB at head_dim 128), not double-buffered:
 *              with two blocks per SM, one computes while the other loads.
 * Measured     H200, 2 x 4096 tokens, causal, 2048 columns of heads: 193 TFLOP/s at head_dim 128, 167 at
 *              64, 179 at 96, 84 at 256 (counted as 2.5 times the forward pass).
 * Numerics     p and ds are rounded to bf16 for the products; sums in f32, repeatable. */
#include "kernels/cuda/attention/attn_bwd.cuh"
#include "kernels/cuda/attention/attn_keys.cuh"

namespace
{

constexpr int ROWS = 64, WARPS = 4, THREADS = WARPS * 32;

template <int HD> constexpr int OUT = HD > 128 ? 128 : HD; /* gradient columns of a block */

template <int HD> struct bwd_smem {
    bf16 own[2][ROWS * attn_pitch<HD>];  /* K and V; or Q and dout */
    bf16 walk[2][ROWS * attn_pitch<HD>]; /* Q and dout; or K and V */
    float lse2[ROWS], delta[ROWS];
};

/* Multiplies 16 rows of tile a from warp_row by all rows of tile b, over HD columns. */
template <int HD>
__device__ inline void multiply_rows(float (&d)[32], const bf16 *a, int warp_row, const bf16 *b)
{
    uint32_t x[4], y[4];

#pragma unroll
    for (int i = 0; i < 32; i++)
        d[i] = 0.0f;
#pragma unroll
    for (int kk = 0; kk < HD / 16; kk++) {
        attn_load_a<HD>(x, a, warp_row, kk);
#pragma unroll
        for (int n = 0; n < ROWS / 16; n++) {
            attn_load_b<HD>(y, b, n * 16, kk);
            attn_mma(d + 8 * n, x, y[0], y[1]);
            attn_mma(d + 8 * n + 4, x, y[2], y[3]);
        }
    }
}

/* d += A B; A is a packed accumulator of 16 x 64, B the columns from col on of a tile. */
template <int HD>
__device__ inline void multiply_cols(float (&d)[OUT<HD> / 2], const uint32_t (&a)[16], const bf16 *b, int col)
{
    uint32_t y[4];

#pragma unroll
    for (int kk = 0; kk < ROWS / 16; kk++) {
#pragma unroll
        for (int n = 0; n < OUT<HD> / 16; n++) {
            attn_load_bt<HD>(y, b, kk, col + n * 16);
            attn_mma(d + 8 * n, a + 4 * kk, y[0], y[1]);
            attn_mma(d + 8 * n + 4, a + 4 * kk, y[2], y[3]);
        }
    }
}

/* Copies rows row.. of a head, of which num_rows exist, to a tile; the others are zero. */
template <int HD>
__device__ inline void load_rows(bf16 *dst, const void *base, int64_t stride, int row, int num_rows, int head)
{
    attn_load_rows<ROWS, HD, THREADS>(dst, (const bf16 *)base + row * stride + head * HD, stride, num_rows);
}

/* Stores the warp's 16 rows from `row` on, of which num_rows exist. */
template <int N>
__device__ inline void store_grad(void *base, int64_t stride, int row, int num_rows, int col,
                                  const float (&d)[N], float factor)
{
    int g = attn_lane() / 4, t = attn_lane() % 4;

#pragma unroll
    for (int r = 0; r < 2; r++) {
        bf16 *dst = (bf16 *)base + (row + g + 8 * r) * stride + col;

        if (g + 8 * r >= num_rows)
            continue;
#pragma unroll
        for (int n = 0; n < N / 4; n++)
            *reinterpret_cast<uint32_t *>(dst + 8 * n + 2 * t) =
                attn_pack(d[4 * n + 2 * r] * factor, d[4 * n + 2 * r + 1] * factor);
    }
}

/* The gradient sums of a warp's 16 keys. */
template <int HD> struct dkv_sums {
    float dk[OUT<HD> / 2], dv[OUT<HD> / 2];
    int col; /* first of their columns */
};

/* Adds a block of queries of one head, whose tiles are being copied. */
template <int HD>
__device__ inline void add_queries(dkv_sums<HD> &sums, bwd_smem<HD> &sm, const rk_cuda_attn_args &fwd,
                                   const attn_dkv_task &task, int query)
{
    int warp_row = threadIdx.x / 32 * 16, key = task.tile.first_row + warp_row;
    float c = fwd.scale * ATTN_LOG2E, s[32], dp[32];
    uint32_t a[16];

    attn_copy_wait<0>();
    __syncthreads(); /* the copies of the block are complete */
    multiply_rows<HD>(s, sm.own[0], warp_row, sm.walk[0]);
    multiply_rows<HD>(dp, sm.own[1], warp_row, sm.walk[1]);
    attn_bwd_probs_t(s, sm.lse2, c, key, query, fwd.window, query < key + 15 || fwd.window > 0);
    attn_pack_rows(a, s);
    multiply_cols<HD>(sums.dv, a, sm.walk[1], sums.col);
    attn_bwd_ds_t(s, dp, sm.delta);
    attn_pack_rows(a, s);
    multiply_cols<HD>(sums.dk, a, sm.walk[0], sums.col);
    __syncthreads(); /* all warps have read the block */
}

template <int HD, bool OWN_KEYS>
__global__ void __launch_bounds__(THREADS)
    attn_dkv_kernel(const rk_cuda_attn_bwd_args args, const attn_bwd_plan plan)
{
    extern __shared__ __align__(16) uint8_t raw[];
    bwd_smem<HD> &sm = *reinterpret_cast<bwd_smem<HD> *>(raw);
    const rk_cuda_attn_args &fwd = args.fwd;
    int items = fwd.num_kv_heads * plan.num_parts, item = blockIdx.x % items, rank = blockIdx.x / items;
    int kv_head = item / plan.num_parts, row, num_keys, col = blockIdx.y * OUT<HD>;
    dkv_sums<HD> sums = {};
    attn_tile tile;
    attn_dkv_task task;

    if (!attn_packed_tile<OWN_KEYS>(&tile, fwd, rank, ROWS, true))
        return;
    num_keys = tile.length - tile.first_row;
    task = attn_make_dkv_task(fwd, tile, kv_head, item % plan.num_parts, plan.num_parts, ROWS);
    sums.col = col;
    if (task.first_query <
        task.end_query) { /* without queries the loop below, which waits for these copies, is skipped */
        load_rows<HD>(sm.own[0], fwd.k, fwd.k_stride, tile.key_begin + tile.first_row, num_keys, kv_head);
        load_rows<HD>(sm.own[1], fwd.v, fwd.v_stride, tile.key_begin + tile.first_row, num_keys, kv_head);
    }
    for (int head = task.first_head; head < task.end_head; head++) {
        for (int query = task.first_query; query < task.end_query; query += ROWS) {
            int token = tile.begin + query, num_queries = tile.length - query;

            load_rows<HD>(sm.walk[0], fwd.q, fwd.q_stride, token, num_queries, head);
            load_rows<HD>(sm.walk[1], args.dout, args.dout_stride, token, num_queries, head);
            attn_copy_commit();
            if (threadIdx.x < ROWS)
                attn_bwd_load_stats(sm.lse2 + threadIdx.x, sm.delta + threadIdx.x, fwd, plan.delta, tile,
                                    head, query + threadIdx.x);
            add_queries<HD>(sums, sm, fwd, task, query);
        }
    }
    row = tile.first_row + threadIdx.x / 32 * 16;
    if (plan.num_parts > 1) {
        attn_store_part(plan.dk + col, fwd, task, HD, row, sums.dk, fwd.scale);
        attn_store_part(plan.dv + col, fwd, task, HD, row, sums.dv, 1.0f);
    } else {
        num_keys = tile.length - row;
        row += tile.key_begin;
        store_grad(args.dk, args.dk_stride, row, num_keys, kv_head * HD + col, sums.dk, fwd.scale);
        store_grad(args.dv, args.dv_stride, row, num_keys, kv_head * HD + col, sums.dv, 1.0f);
    }
}

/* Adds a block of keys, whose tiles are being copied. */
template <int HD>
__device__ inline void add_keys(bwd_smem<HD> &sm, float (&dq)[OUT<HD> / 2], const rk_cuda_attn_args &fwd,
                                const attn_tile &tile, int key, int col)
{
    int warp_row = threadIdx.x / 32 * 16, row = tile.first_row + warp_row, g = attn_lane() / 4;
    float c = fwd.scale * ATTN_LOG2E, s[32], dp[32];
    float lse2[2] = {sm.lse2[warp_row + g], sm.lse2[warp_row + g + 8]};
    float delta[2] = {sm.delta[warp_row + g], sm.delta[warp_row + g + 8]};
    uint32_t a[16];

    attn_copy_wait<0>();
    __syncthreads(); /* the copies of the block are complete */
    multiply_rows<HD>(s, sm.own[0], warp_row, sm.walk[0]);
    multiply_rows<HD>(dp, sm.own[1], warp_row, sm.walk[1]);
    attn_bwd_probs(s, lse2, c, row, key, fwd.window, key + ROWS > row || fwd.window > 0);
    attn_bwd_ds(s, dp, delta);
    attn_pack_rows(a, s);
    multiply_cols<HD>(dq, a, sm.walk[0], col);
    __syncthreads(); /* all warps have read the block */
}

template <int HD, bool OWN_KEYS>
__global__ void __launch_bounds__(THREADS)
    attn_dq_kernel(const rk_cuda_attn_bwd_args args, const attn_bwd_plan plan)
{
    extern __shared__ __align__(16) uint8_t raw[];
    bwd_smem<HD> &sm = *reinterpret_cast<bwd_smem<HD> *>(raw);
    const rk_cuda_attn_args &fwd = args.fwd;
    int head = blockIdx.x % fwd.num_heads, rank = blockIdx.x / fwd.num_heads;
    int kv_head = head / (fwd.num_heads / fwd.num_kv_heads), col = blockIdx.y * OUT<HD>;
    int token, num_queries, row;
    float dq[OUT<HD> / 2] = {};
    attn_tile tile;

    if (!attn_packed_tile<OWN_KEYS>(&tile, fwd, rank, ROWS, false))
        return;
    token = tile.begin + tile.first_row;
    num_queries = tile.length - tile.first_row;
    load_rows<HD>(sm.own[0], fwd.q, fwd.q_stride, token, num_queries, head);
    load_rows<HD>(sm.own[1], args.dout, args.dout_stride, token, num_queries, head);
    if (threadIdx.x < ROWS)
        attn_bwd_load_stats(sm.lse2 + threadIdx.x, sm.delta + threadIdx.x, fwd, plan.delta, tile, head,
                            tile.first_row + threadIdx.x);
    __syncthreads(); /* the statistics are written */
    for (int key = attn_first_key(tile.first_row, fwd.window) / ROWS * ROWS;
         key < min(tile.first_row + ROWS, tile.length); key += ROWS) {
        load_rows<HD>(sm.walk[0], fwd.k, fwd.k_stride, tile.key_begin + key, tile.length - key, kv_head);
        load_rows<HD>(sm.walk[1], fwd.v, fwd.v_stride, tile.key_begin + key, tile.length - key, kv_head);
        attn_copy_commit();
        add_keys<HD>(sm, dq, fwd, tile, key, col);
    }
    row = threadIdx.x / 32 * 16;
    store_grad(args.dq, args.dq_stride, token + row, num_queries - row, head * HD + col, dq, fwd.scale);
}

template <int HD, bool OWN_KEYS> cudaError_t launch(cudaStream_t stream, const rk_cuda_attn_bwd_args *args)
{
    const rk_cuda_attn_args &fwd = args->fwd;
    unsigned slices = HD / OUT<HD>;
    attn_bwd_plan plan = rk_attn_bwd_make_plan(args);
    unsigned num_tiles = attn_max_tiles(fwd.num_tokens, fwd.num_seqs, ROWS);
    unsigned num_key_tiles = attn_max_tiles(fwd.num_keys, fwd.num_seqs, ROWS);
    attn_grid grid = {stream, {}, THREADS, sizeof(bwd_smem<HD>)};
    cudaError_t err = rk_attn_bwd_prepare(stream, args, &plan);

    if (err == cudaSuccess) {
        grid.blocks = dim3(num_key_tiles * fwd.num_kv_heads * plan.num_parts, slices);
        err = attn_launch(attn_dkv_kernel<HD, OWN_KEYS>, grid, *args, plan);
    }
    if (err == cudaSuccess) {
        grid.blocks = dim3(num_tiles * fwd.num_heads, slices);
        err = attn_launch(attn_dq_kernel<HD, OWN_KEYS>, grid, *args, plan);
    }
    return err == cudaSuccess ? rk_attn_bwd_reduce(stream, args, &plan) : err;
}

} // namespace

int rk_attn_bwd_mma_shared_bytes(int head_dim)
{
    int bytes = 0;

    (void)attn_for_mma(head_dim, [&](auto dim) {
        bytes = sizeof(bwd_smem<dim.value>);
        return cudaSuccess;
    });
    return bytes;
}

cudaError_t rk_attn_bwd_mma(cudaStream_t stream, const rk_cuda_attn_bwd_args *args)
{
    return attn_for_mma(args->fwd.head_dim, [=](auto dim) {
        return attn_for_keys(args->fwd, [=](auto own) { return launch<dim.value, own.value>(stream, args); });
    });
}
