/* Attention without tensor cores: F32 at full precision, and all widths of F16 and BF16 up to those of
 * attn.h, which may differ for keys and values. Twin of kernels/cpu/attn_varlen.c, attn_varlen_bwd.c and
 * attn_paged.c; for tests and small models, not for speed.
 *
 * Work split   Forward and dq: one warp a query and head, keys in blocks of 32 at absolute positions, a
 *              lane a key for the scores and a lane every 32nd column for the output. dk and dv: one
 *              warp a key and kv head, queries in blocks of 32, in ascending order of query head.
 * Traffic      Each query reads all of its keys, at best from L1 and L2.
 * Numerics     f32; every sum has an order that depends on the query's (key's) position only, so that
 *              packed and paged attention agree bit for bit and the backward pass repeats. */
#include "kernels/cuda/attention/attn_internal.cuh"
#include "kernels/cuda/attention/attn_keys.cuh"

#include <cuda_fp16.h>

namespace
{

constexpr int WARPS = 4, THREADS = WARPS * 32;

/* Maximum numbers of columns of a query and of a value that a kernel allocates registers for; a lane has
 * every 32nd of the latter. Results do not depend on the choice. */
template <int HEAD_DIM, int V_HEAD_DIM> struct widths {
    static constexpr int head_dim = HEAD_DIM, cols = V_HEAD_DIM / 32;
};

using narrow = widths<ATTN_MAX_BWD_HEAD_DIM, ATTN_MAX_BWD_HEAD_DIM>;
using wide = widths<ATTN_MAX_HEAD_DIM, ATTN_MAX_V_HEAD_DIM>;

__device__ inline float to_float(float x)
{
    return x;
}

__device__ inline float to_float(bf16 x)
{
    return __bfloat162float(x);
}

__device__ inline float to_float(__half x)
{
    return __half2float(x);
}

__device__ inline void store(float *dst, float x)
{
    *dst = x;
}

__device__ inline void store(bf16 *dst, float x)
{
    *dst = __float2bfloat16_rn(x);
}

__device__ inline void store(__half *dst, float x)
{
    *dst = __float2half_rn(x);
}

__device__ inline float warp_max(float x)
{
    for (int i = 16; i > 0; i /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, i));
    return x;
}

__device__ inline float warp_sum(float x)
{
    for (int i = 16; i > 0; i /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}

template <typename T> __device__ inline float dot(const float *row, const T *other, int head_dim)
{
    float sum = 0.0f;

    for (int c = 0; c < head_dim; c++)
        sum = __fmaf_rn(row[c], to_float(other[c]), sum);
    return sum;
}

/* Copies a row to this warp's shared memory. */
template <typename T> __device__ inline void load_row(float *row, const T *src, int head_dim)
{
    __syncwarp(); /* earlier reads are complete */
    for (int c = attn_lane(); c < head_dim; c += 32)
        row[c] = to_float(src[c]);
    __syncwarp(); /* the row is written */
}

/* acc[i] += w * row[lane + 32 i] */
template <typename T, int COLS>
__device__ inline void add_row(float (&acc)[COLS], float w, const T *row, int head_dim)
{
#pragma unroll
    for (int i = 0; i < COLS; i++) {
        int c = attn_lane() + 32 * i;

        if (c < head_dim)
            acc[i] = __fmaf_rn(w, to_float(row[c]), acc[i]);
    }
}

/* acc += the weights of lanes begin..end-1 times the rows at their offsets, in ascending order. */
template <typename T, int COLS>
__device__ inline void add_rows(float (&acc)[COLS], float weight, const T *base, int64_t offset, int begin,
                                int end, int head_dim)
{
    for (int i = max(begin, 0); i < min(end, 32); i++)
        add_row(acc, __shfl_sync(0xffffffffu, weight, i), base + __shfl_sync(0xffffffffu, offset, i),
                head_dim);
}

template <typename T, int COLS>
__device__ inline void store_row(T *dst, const float (&acc)[COLS], float factor, int head_dim)
{
#pragma unroll
    for (int i = 0; i < COLS; i++) {
        int c = attn_lane() + 32 * i;

        if (c < head_dim)
            store(dst + c, acc[i] * factor);
    }
}

/* Like attn_packed_keys and attn_paged_keys, with a separate width of values. */
struct wide_keys {
    attn_keys keys;
    int64_t v_block_stride, v_head_offset; /* paged */
    int v_row_stride;
};

__device__ inline wide_keys packed_keys(const rk_cuda_attn_args &args, const attn_tile &tile, int kv_head)
{
    wide_keys wide = {attn_packed_keys(args, tile, kv_head)};

    wide.keys.v_base = tile.key_begin * args.v_stride + (int64_t)kv_head * args.v_head_dim;
    return wide;
}

__device__ inline wide_keys paged_keys(const rk_cuda_attn_paged_args &args, int seq, int kv_head)
{
    wide_keys wide = {attn_paged_keys(args, seq, kv_head)};

    wide.v_row_stride = args.v_row_stride;
    wide.v_block_stride = args.v_cache_block_stride;
    wide.v_head_offset = (int64_t)kv_head * args.block_size * wide.v_row_stride;
    return wide;
}

/* Element offsets of row j's key and value. */
__device__ inline void key_row(const wide_keys &wide, int j, int64_t *k_row, int64_t *v_row)
{
    attn_key_row(wide.keys, j, k_row, v_row);
    if (wide.keys.table)
        *v_row = attn_table_entry(wide.keys, j) * wide.v_block_stride + wide.v_head_offset +
                 j % wide.keys.block_size * wide.v_row_stride;
}

/* The keys and values of one query, and the addresses of its results. */
template <typename T> struct fwd_row {
    const T *k, *v; /* bases of keys */
    wide_keys keys;
    T *out;
    float *lse; /* or NULL */
    int position, window, head_dim, v_head_dim;
    float scale;
};

/* One query, whose values are in q. */
template <typename T, typename Widths>
__device__ inline void forward_row(const fwd_row<T> &row, const float *q)
{
    int first = attn_first_key(row.position, row.window);
    float acc[Widths::cols] = {}, m = -INFINITY, l = 0.0f;

    for (int base = first / 32 * 32; base <= row.position; base += 32) {
        int j = base + attn_lane();
        bool is_seen = j >= first && j <= row.position;
        int64_t k_row, v_row;
        float s, p, alpha, top;

        key_row(row.keys, is_seen ? j : row.position, &k_row, &v_row);
        s = is_seen ? row.scale * dot(q, row.k + k_row, row.head_dim) : -INFINITY;
        top = fmaxf(m, warp_max(s));
        alpha = expf(m - attn_finite_max(top));
        p = expf(s - attn_finite_max(top));
        m = top;
        l = __fmaf_rn(l, alpha, p);
#pragma unroll
        for (int i = 0; i < Widths::cols; i++)
            acc[i] *= alpha;
        add_rows(acc, p, row.v, v_row, first - base, row.position + 1 - base, row.v_head_dim);
    }
    l = warp_sum(l);
    store_row(row.out, acc, 1.0f / l, row.v_head_dim);
    if (row.lse && attn_lane() == 0)
        *row.lse = m + logf(l);
}

/* The row and head of this warp; false beyond the last. */
__device__ inline bool find_row(int *row, int *head, int num_rows, int num_heads)
{
    int64_t item = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;

    *row = (int)(item / num_heads);
    *head = (int)(item % num_heads);
    return *row < num_rows;
}

/* Sets the tile that begins at a token's position. False: its segment is skipped. */
__device__ inline bool find_query(attn_tile *tile, const rk_cuda_attn_args &args, int token)
{
    attn_find_token(tile, args.cu_seqlens, args.num_seqs, token);
    return attn_place_tile(tile, args, false);
}

/* Sets the tile that begins at the position of a row of k. False: the row is in no segment. */
__device__ inline bool find_key(attn_tile *tile, const rk_cuda_attn_args &args, int row)
{
    int seq = -1;

    if (!args.k_lens)
        return find_query(tile, args, row);
    for (int base = 0; base < args.num_seqs && seq < 0; base += 32) {
        int s = base + attn_lane();
        bool has_it = s < args.num_seqs && row >= args.k_begin[s] && row - args.k_begin[s] < args.k_lens[s];
        unsigned mask = __ballot_sync(0xffffffffu, has_it);

        if (mask)
            seq = base + __ffs(mask) - 1;
    }
    if (seq < 0)
        return false;
    attn_set_sequence(tile, args.cu_seqlens, seq);
    tile->first_row = row - args.k_begin[seq];
    return attn_place_tile(tile, args, true);
}

template <typename T, typename Widths>
__global__ void __launch_bounds__(THREADS) attn_fwd_simple_kernel(const rk_cuda_attn_args args)
{
    __shared__ float rows[WARPS][Widths::head_dim];
    float *q = rows[threadIdx.x / 32];
    int token, head;
    attn_tile tile;
    fwd_row<T> row;

    if (!find_row(&token, &head, args.num_tokens, args.num_heads))
        return;
    if (!find_query(&tile, args, token))
        return;
    load_row(q, (const T *)args.q + token * args.q_stride + head * args.head_dim, args.head_dim);
    row.k = (const T *)args.k;
    row.v = (const T *)args.v;
    row.keys = packed_keys(args, tile, head / (args.num_heads / args.num_kv_heads));
    row.out = (T *)args.out + token * args.out_stride + head * args.v_head_dim;
    row.lse = args.lse ? args.lse + (int64_t)head * args.num_tokens + token : NULL;
    row.position = tile.first_row;
    row.window = args.window;
    row.head_dim = args.head_dim;
    row.v_head_dim = args.v_head_dim;
    row.scale = args.scale;
    forward_row<T, Widths>(row, q);
}

template <typename T, typename Widths>
__global__ void __launch_bounds__(THREADS) attn_paged_simple_kernel(const rk_cuda_attn_paged_args args)
{
    __shared__ float rows[WARPS][Widths::head_dim];
    float *q = rows[threadIdx.x / 32];
    int token, head;
    attn_tile tile;
    fwd_row<T> row;

    if (!find_row(&token, &head, args.num_tokens, args.num_heads))
        return;
    attn_find_token(&tile, args.cu_q, args.num_seqs, token);
    load_row(q, (const T *)args.q + token * args.q_stride + head * args.head_dim, args.head_dim);
    row.k = (const T *)args.k_cache;
    row.v = (const T *)args.v_cache;
    row.keys = paged_keys(args, tile.seq, head / (args.num_heads / args.num_kv_heads));
    row.out = (T *)args.out + token * args.out_stride + head * args.v_head_dim;
    row.lse = NULL;
    row.position = args.seq_lens[tile.seq] - tile.length + tile.first_row;
    row.window = args.window;
    row.head_dim = args.head_dim;
    row.v_head_dim = args.v_head_dim;
    row.scale = args.scale;
    forward_row<T, Widths>(row, q);
}

/* Element offset of an operand's row of (token, head). */
template <typename T>
__device__ inline const T *row_at(const void *base, int64_t stride, int token, int head, int hd)
{
    return (const T *)base + token * stride + (int64_t)head * hd;
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    attn_dq_simple_kernel(const rk_cuda_attn_bwd_args args, const float *delta)
{
    __shared__ float rows[WARPS][2][narrow::head_dim];
    float *q = rows[threadIdx.x / 32][0], *dout = rows[threadIdx.x / 32][1];
    const rk_cuda_attn_args &fwd = args.fwd;
    int token, head, first, hd = fwd.head_dim, vd = fwd.v_head_dim;
    float acc[narrow::cols] = {}, lse, d;
    attn_tile tile;
    wide_keys keys;

    if (!find_row(&token, &head, fwd.num_tokens, fwd.num_heads))
        return;
    if (!find_query(&tile, fwd, token))
        return;
    keys = packed_keys(fwd, tile, head / (fwd.num_heads / fwd.num_kv_heads));
    load_row(q, row_at<T>(fwd.q, fwd.q_stride, token, head, hd), hd);
    load_row(dout, row_at<T>(args.dout, args.dout_stride, token, head, vd), vd);
    lse = fwd.lse[(int64_t)head * fwd.num_tokens + token];
    d = delta[(int64_t)head * fwd.num_tokens + token];
    first = attn_first_key(tile.first_row, fwd.window);
    for (int base = first / 32 * 32; base <= tile.first_row; base += 32) {
        int j = base + attn_lane();
        bool is_seen = j >= first && j <= tile.first_row;
        int64_t k_row, v_row;
        float p, ds;

        key_row(keys, is_seen ? j : tile.first_row, &k_row, &v_row);
        p = is_seen ? expf(fwd.scale * dot(q, (const T *)fwd.k + k_row, hd) - lse) : 0.0f;
        ds = is_seen ? p * (dot(dout, (const T *)fwd.v + v_row, vd) - d) : 0.0f;
        add_rows(acc, ds, (const T *)fwd.k, k_row, first - base, tile.first_row + 1 - base, hd);
    }
    store_row((T *)args.dq + token * args.dq_stride + (int64_t)head * hd, acc, fwd.scale, hd);
}

/* A key: its rows of k and v in shared memory, and the sums for it. */
struct dkv_row {
    const float *k, *v;
    float dk[narrow::cols], dv[narrow::cols];
};

/* Adds the queries of one head that attend to the key at position `tile.first_row`. */
template <typename T>
__device__ inline void add_queries(dkv_row &row, const rk_cuda_attn_bwd_args &args, const float *delta,
                                   const attn_tile &tile, int head)
{
    const rk_cuda_attn_args &fwd = args.fwd;
    int j = tile.first_row, first = max(j, tile.first_query), hd = fwd.head_dim, vd = fwd.v_head_dim;
    int end = fwd.window > 0 ? min(tile.length, j + fwd.window) : tile.length;
    int64_t stats = (int64_t)head * fwd.num_tokens + tile.begin;

    for (int base = first / 32 * 32; base < end; base += 32) {
        int i = base + attn_lane();
        bool is_seen = i >= first && i < end;
        int token = tile.begin + (is_seen ? i : first);
        int64_t q = token * fwd.q_stride + (int64_t)head * hd,
                dout = token * args.dout_stride + (int64_t)head * vd;
        float p = 0.0f, ds = 0.0f;

        if (is_seen) {
            p = expf(fwd.scale * dot(row.k, (const T *)fwd.q + q, hd) - fwd.lse[stats + i]);
            ds = p * (dot(row.v, (const T *)args.dout + dout, vd) - delta[stats + i]);
        }
        add_rows(row.dk, ds, (const T *)fwd.q, q, first - base, end - base, hd);
        add_rows(row.dv, p, (const T *)args.dout, dout, first - base, end - base, vd);
    }
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    attn_dkv_simple_kernel(const rk_cuda_attn_bwd_args args, const float *delta)
{
    __shared__ float rows[WARPS][2][narrow::head_dim];
    float *k = rows[threadIdx.x / 32][0], *v = rows[threadIdx.x / 32][1];
    const rk_cuda_attn_args &fwd = args.fwd;
    int key, kv_head, group = fwd.num_heads / fwd.num_kv_heads, hd = fwd.head_dim, vd = fwd.v_head_dim;
    dkv_row row = {k, v, {}, {}};
    attn_tile tile;

    if (!find_row(&key, &kv_head, fwd.num_keys, fwd.num_kv_heads) || !find_key(&tile, fwd, key))
        return;
    load_row(k, row_at<T>(fwd.k, fwd.k_stride, key, kv_head, hd), hd);
    load_row(v, row_at<T>(fwd.v, fwd.v_stride, key, kv_head, vd), vd);
    for (int head = kv_head * group; head < (kv_head + 1) * group; head++)
        add_queries<T>(row, args, delta, tile, head);
    store_row((T *)args.dk + key * args.dk_stride + (int64_t)kv_head * hd, row.dk, fwd.scale, hd);
    store_row((T *)args.dv + key * args.dv_stride + (int64_t)kv_head * vd, row.dv, 1.0f, vd);
}

template <typename T>
__global__ void __launch_bounds__(THREADS) attn_delta_kernel(const rk_cuda_attn_bwd_args args, float *delta)
{
    const rk_cuda_attn_args &fwd = args.fwd;
    int token, head;
    float sum = 0.0f;

    if (!find_row(&token, &head, fwd.num_tokens, fwd.num_heads))
        return;
    for (int c = attn_lane(); c < fwd.v_head_dim; c += 32)
        sum = __fmaf_rn(to_float(row_at<T>(args.dout, args.dout_stride, token, head, fwd.v_head_dim)[c]),
                        to_float(row_at<T>(fwd.out, fwd.out_stride, token, head, fwd.v_head_dim)[c]), sum);
    sum = warp_sum(sum);
    if (attn_lane() == 0)
        delta[(int64_t)head * fwd.num_tokens + token] = sum;
}

int num_blocks(int num_rows, int num_heads)
{
    return (int)(((int64_t)num_rows * num_heads + WARPS - 1) / WARPS);
}

template <typename T> cudaError_t launch_bwd(cudaStream_t stream, const rk_cuda_attn_bwd_args *args)
{
    const rk_cuda_attn_args &fwd = args->fwd;
    float *delta = rk_attn_bwd_make_plan(args).delta;
    cudaError_t err = rk_attn_bwd_zero_keys(stream, args);

    if (err != cudaSuccess)
        return err;
    attn_delta_kernel<T><<<num_blocks(fwd.num_tokens, fwd.num_heads), THREADS, 0, stream>>>(*args, delta);
    attn_dq_simple_kernel<T><<<num_blocks(fwd.num_tokens, fwd.num_heads), THREADS, 0, stream>>>(*args, delta);
    attn_dkv_simple_kernel<T>
        <<<num_blocks(fwd.num_keys, fwd.num_kv_heads), THREADS, 0, stream>>>(*args, delta);
    return cudaGetLastError();
}

/* Calls launch() with a zero of the dtype's type, which selects the template. */
template <typename Launch> cudaError_t for_dtype(rk_dtype_t dtype, Launch launch)
{
    switch (dtype) {
    case RK_DTYPE_F32:
        return launch(float());
    case RK_DTYPE_BF16:
        return launch(bf16());
    case RK_DTYPE_F16:
        return launch(__half());
    default:
        return cudaErrorNotSupported;
    }
}

template <typename Args> bool is_narrow(const Args *args)
{
    return args->head_dim <= ATTN_MAX_BWD_HEAD_DIM && args->v_head_dim <= ATTN_MAX_BWD_HEAD_DIM;
}

} // namespace

cudaError_t rk_attn_fwd_simple(cudaStream_t stream, const rk_cuda_attn_args *args)
{
    attn_grid grid = {stream, dim3(num_blocks(args->num_tokens, args->num_heads)), THREADS, 0};

    return for_dtype(args->dtype, [=](auto zero) {
        using T = decltype(zero);

        return is_narrow(args) ? attn_launch(attn_fwd_simple_kernel<T, narrow>, grid, *args)
                               : attn_launch(attn_fwd_simple_kernel<T, wide>, grid, *args);
    });
}

cudaError_t rk_attn_paged_simple(cudaStream_t stream, const rk_cuda_attn_paged_args *args)
{
    attn_grid grid = {stream, dim3(num_blocks(args->num_tokens, args->num_heads)), THREADS, 0};

    return for_dtype(args->dtype, [=](auto zero) {
        using T = decltype(zero);

        return is_narrow(args) ? attn_launch(attn_paged_simple_kernel<T, narrow>, grid, *args)
                               : attn_launch(attn_paged_simple_kernel<T, wide>, grid, *args);
    });
}

cudaError_t rk_attn_bwd_simple(cudaStream_t stream, const rk_cuda_attn_bwd_args *args)
{
    return for_dtype(args->fwd.dtype, [=](auto zero) { return launch_bwd<decltype(zero)>(stream, args); });
}
