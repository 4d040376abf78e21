/* Common part of the backward kernels with mma.sync and with wgmma: the elementwise operations between the
 * GEMMs.
 *
 *   p = e^(scale * q.k - lse)     ds = p * (dout.v - delta)
 *   dv += p^T dout    dk += ds^T q    dq += ds k       (dk and dq times scale at the end)
 *
 * One kernel computes dk and dv: its thread blocks each have a block of keys and iterate over queries, with
 * transposed scores, so that p^T and ds^T are in registers as an A operand. Another computes dq: its thread
 * blocks have queries and iterate over keys. So scores are computed twice (seven GEMMs instead of five), and
 * every sum stays in the registers of one thread: nothing is added across thread blocks, and results are
 * reproducible bit for bit. */
#ifndef RK_CUDA_ATTN_BWD_CUH
#define RK_CUDA_ATTN_BWD_CUH

#include "kernels/cuda/attention/attn_common.cuh"
#include "kernels/cuda/attention/attn_internal.cuh"

/* A block of keys, the part of the query heads that it sums over, and the queries that attend to it. */
struct attn_dkv_task {
    attn_tile tile;
    int kv_head, part, first_head, end_head;
    int first_query, end_query; /* none when they are equal */
};

__device__ inline attn_dkv_task attn_make_dkv_task(const rk_cuda_attn_args &fwd, const attn_tile &tile,
                                                   int kv_head, int part, int num_parts, int tile_rows)
{
    int group = fwd.num_heads / fwd.num_kv_heads, per_part = group / num_parts;
    attn_dkv_task task;

    task.tile = tile;
    task.kv_head = kv_head;
    task.part = part;
    task.first_head = kv_head * group + part * per_part;
    task.end_head = task.first_head + per_part;
    task.first_query = max(tile.first_row, tile.first_query);
    task.end_query =
        fwd.window > 0 ? min(tile.length, tile.first_row + tile_rows - 1 + fwd.window) : tile.length;
    task.end_query = max(task.first_query, task.end_query);
    return task;
}

/* Turns transposed scores, 16 keys from `key` by N/4*8 queries from `query`, into p; lse2 (log2 units) is
 * indexed by query. */
template <int N>
__device__ inline void attn_bwd_probs_t(float (&s)[N], const float *lse2, float c, int key, int query,
                                        int window, bool is_masked)
{
    int g = attn_lane() / 4, t = attn_lane() % 4;

#pragma unroll
    for (int n = 0; n < N / 4; n++) {
        float2 row_lse = *reinterpret_cast<const float2 *>(lse2 + 8 * n + 2 * t);

#pragma unroll
        for (int e = 0; e < 4; e++)
            s[4 * n + e] = attn_exp2(__fmaf_rn(s[4 * n + e], c, e % 2 ? -row_lse.y : -row_lse.x));
    }
    if (!is_masked)
        return;
#pragma unroll
    for (int i = 0; i < N; i++) {
        int j = key + g + i / 2 % 2 * 8, p = query + i / 4 * 8 + 2 * t + i % 2;

        if (p < j || (window > 0 && p - j >= window))
            s[i] = 0.0f;
    }
}

/* Turns p, and dp = dout.v transposed, into ds. */
template <int N> __device__ inline void attn_bwd_ds_t(float (&p)[N], const float (&dp)[N], const float *delta)
{
    int t = attn_lane() % 4;

#pragma unroll
    for (int n = 0; n < N / 4; n++) {
        float2 row_delta = *reinterpret_cast<const float2 *>(delta + 8 * n + 2 * t);

#pragma unroll
        for (int e = 0; e < 4; e++)
            p[4 * n + e] *= dp[4 * n + e] - (e % 2 ? row_delta.y : row_delta.x);
    }
}

/* The logsumexp (in log2 units) and delta of query i of a sequence; a query past its end gets p = ds = 0. */
__device__ inline void attn_bwd_load_stats(float *lse2, float *delta, const rk_cuda_attn_args &fwd,
                                           const float *deltas, const attn_tile &tile, int head, int i)
{
    int64_t at = (int64_t)head * fwd.num_tokens + tile.begin + i;
    bool exists = i < tile.length;

    *lse2 = exists ? fwd.lse[at] * ATTN_LOG2E : INFINITY;
    *delta = exists ? deltas[at] : 0.0f;
}

/* Turns scores of rows g, g+8 from `row` and N/4*8 keys from `key` into p. */
template <int N>
__device__ inline void attn_bwd_probs(float (&s)[N], const float (&lse2)[2], float c, int row, int key,
                                      int window, bool is_masked)
{
    if (is_masked)
        attn_mask_scores(s, row, key, window);
#pragma unroll
    for (int i = 0; i < N; i++)
        s[i] = attn_exp2(__fmaf_rn(s[i], c, -lse2[i / 2 % 2]));
}

/* Turns p, and dp = dout.v, into ds. */
template <int N>
__device__ inline void attn_bwd_ds(float (&p)[N], const float (&dp)[N], const float (&delta)[2])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        p[i] *= dp[i] - delta[i / 2 % 2];
}

/* Stores rows of a part of dk or dv (f32), heads of `width` columns: 16 keys from `row` of the tile. */
template <int N>
__device__ inline void attn_store_part(float *parts, const rk_cuda_attn_args &fwd, const attn_dkv_task &task,
                                       int width, int row, const float (&d)[N], float factor)
{
    int g = attn_lane() / 4, t = attn_lane() % 4;
    int64_t first = (int64_t)task.part * fwd.num_keys + task.tile.key_begin;

#pragma unroll
    for (int r = 0; r < 2; r++) {
        float *dst = parts + ((first + row + g + 8 * r) * fwd.num_kv_heads + task.kv_head) * width;

        if (row + g + 8 * r >= task.tile.length)
            continue;
#pragma unroll
        for (int n = 0; n < N / 4; n++)
            *reinterpret_cast<float2 *>(dst + 8 * n + 2 * t) =
                make_float2(d[4 * n + 2 * r] * factor, d[4 * n + 2 * r + 1] * factor);
    }
}

#endif
