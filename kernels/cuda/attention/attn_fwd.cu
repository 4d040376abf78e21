/* Attention forward by mma.sync, over packed sequences and over the paged cache (prefill chunks).
 * Twin of kernels/cpu/attn_varlen.c and attn_paged.c; definition in attn.h.
 *
 * Work split   A block of 8 warps (4 for head_dim 256) has 16 queries of one head a warp and iterates over
 *              its key blocks, tiles with the most work first. head_dim 256 is processed in two slices of 128
 *              output columns, each with all scores.
 * Tile         Q, one key block of K and one of V in shared memory: 104 KiB at head_dim 128, one block
 *              an SM. K of the next block arrives during softmax and PV, V during QK (cp.async).
 * Registers    Scores 64, output 64, total of the splits 64 a lane. The totals of the splits, which are part
 *              of the definition, limit a warp to 16 queries; the kernel is therefore bound by ldmatrix: each
 *              warp reads all of K and V.
 * Measured     H200, 2 x 4096 tokens, causal, 2048 columns of heads: 189 TFLOP/s at head_dim 128, 146 at 64,
 *              172 at 96, 79 at 256. attn_fwd_sm90.cu is used instead where it is supported.
 * Numerics     attn.h. Key tiles past the diagonal are skipped, which changes no bits. */
#include "kernels/cuda/attention/attn_internal.cuh"
#include "kernels/cuda/attention/attn_keys.cuh"

namespace
{

template <int HD> struct fwd_shape {
    static constexpr int WARPS = HD > 128 ? 4 : 8;
    static constexpr int ROWS = WARPS * 16;
    static constexpr int THREADS = WARPS * 32;
    static constexpr int OUT = HD > 128 ? 128 : HD; /* output columns of a block */
    static constexpr int SMEM =
        2 * ((ROWS + ATTN_KEY_BLOCK) * attn_pitch<HD> + ATTN_KEY_BLOCK * attn_pitch<OUT>);
};

/* What a block works on: queries row.. of a sequence at positions position.., and keys [first_key, end_key).
 */
struct fwd_task {
    const bf16 *q, *k, *v; /* q: the first query of the tile; k, v: bases of keys */
    bf16 *out;             /* like q */
    float *lse;            /* like q, or NULL */
    int64_t q_stride, out_stride;
    int num_rows, position; /* queries in the tile; position of the first one */
    int window;
    float c; /* scale * log2(e) */
};

/* The keys of the sequence that some query of the tile sees. */
__device__ inline attn_keys seen_keys(const fwd_task &task, attn_keys keys)
{
    keys.first = attn_first_key(task.position, task.window);
    keys.end = task.position + task.num_rows;
    return keys;
}

/* Scores of the warp's 16 queries against the first num_tiles * 16 keys of the block; -inf for the rest. */
template <int HD>
__device__ inline void warp_scores(float (&s)[64], const bf16 *q, const bf16 *k, int warp_row, int num_tiles)
{
    uint32_t a[4], b[4];

#pragma unroll
    for (int i = 0; i < 64; i++)
        s[i] = i / 8 < num_tiles ? 0.0f : -INFINITY;
#pragma unroll
    for (int kk = 0; kk < HD / 16; kk++) {
        attn_load_a<HD>(a, q, warp_row, kk);
#pragma unroll
        for (int n = 0; n < 8; n++) {
            if (n >= num_tiles)
                continue;
            attn_load_b<HD>(b, k, n * 16, kk);
            attn_mma(s + 8 * n, a, b[0], b[1]);
            attn_mma(s + 8 * n + 4, a, b[2], b[3]);
        }
    }
}

template <int OUT>
__device__ inline void warp_output(float (&o)[OUT / 2], const uint32_t (&p)[32], const bf16 *v, int num_tiles)
{
    uint32_t b[4];

#pragma unroll
    for (int kk = 0; kk < 8; kk++) {
        if (kk >= num_tiles)
            continue;
#pragma unroll
        for (int n = 0; n < OUT / 16; n++) {
            attn_load_bt<OUT>(b, v, kk, n * 16);
            attn_mma(o + 8 * n, p + 4 * kk, b[0], b[1]);
            attn_mma(o + 8 * n + 4, p + 4 * kk, b[2], b[3]);
        }
    }
}

template <int OUT>
__device__ inline void store_rows(const fwd_task &task, const float (&sum)[OUT / 2],
                                  const attn_total (&total)[2], int warp_row, bool has_lse)
{
    int g = attn_lane() / 4, t = attn_lane() % 4;

#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = warp_row + g + 8 * r;
        float inv = attn_reciprocal(total[r].l);

        if (row >= task.num_rows)
            continue;
#pragma unroll
        for (int n = 0; n < OUT / 8; n++)
            *reinterpret_cast<uint32_t *>(task.out + row * task.out_stride + 8 * n + 2 * t) =
                attn_pack(__fmul_rn(sum[4 * n + 2 * r], inv), __fmul_rn(sum[4 * n + 2 * r + 1], inv));
        if (has_lse && t == 0)
            task.lse[row] = attn_lse(total[r], task.c);
    }
}

/* Copies columns col.. of a key block, if some query attends to it, as the next group of copies. */
template <int HD, int COLS>
__device__ inline void load_block(bf16 *tile, const bf16 *base, const attn_keys &keys, bool is_value,
                                  int block, int col)
{
    constexpr int WARPS = fwd_shape<HD>::WARPS;
    int key = block * ATTN_KEY_BLOCK;

    if (key < keys.end)
        attn_load_keys<ATTN_KEY_BLOCK, WARPS, COLS>(tile, base, keys, is_value, key, col);
    attn_copy_commit(); /* an empty group keeps the number of groups in flight constant */
}

template <int HD> __device__ inline void fwd_block(const fwd_task &task, const attn_keys &keys, int slice)
{
    using shape = fwd_shape<HD>;
    extern __shared__ __align__(16) bf16 smem[];
    bf16 *q = smem, *k = q + shape::ROWS * attn_pitch<HD>, *v = k + ATTN_KEY_BLOCK * attn_pitch<HD>;
    int warp_row = threadIdx.x / 32 * 16, row0 = task.position + warp_row;
    int block = keys.first / ATTN_KEY_BLOCK, last = (keys.end - 1) / ATTN_KEY_BLOCK, col = slice * shape::OUT;
    float o[shape::OUT / 2] = {}, sum[shape::OUT / 2] = {};
    attn_total total[2] = {{-INFINITY, 0.0f}, {-INFINITY, 0.0f}};
    attn_softmax state;

    attn_softmax_clear(state);
    attn_load_rows<shape::ROWS, HD, shape::THREADS>(q, task.q, task.q_stride, task.num_rows);
    load_block<HD, HD>(k, task.k, keys, false, block, 0);
    load_block<HD, shape::OUT>(v, task.v, keys, true, block, col);
    for (; block <= last; block++) {
        int key = block * ATTN_KEY_BLOCK, next = key + ATTN_KEY_BLOCK;
        int num_tiles = row0 + 15 < key ? 0 : (row0 + 15 - key) / 16 + 1; /* of 16 keys, up to the diagonal */
        float s[64], alpha[2];
        uint32_t p[32];

        attn_copy_wait<1>();
        __syncthreads(); /* K (and Q) are in shared memory */
        warp_scores<HD>(s, q, k, warp_row, num_tiles);
        __syncthreads(); /* all warps have read K */
        load_block<HD, HD>(k, task.k, keys, false, block + 1, 0);
        if (row0 < next - 1 || task.window > 0)
            attn_mask_scores(s, row0, key, task.window);
        attn_softmax_block(s, state, task.c, alpha);
        attn_pack_rows(p, s);
#pragma unroll
        for (int i = 0; i < shape::OUT / 2; i++)
            o[i] = __fmul_rn(o[i], alpha[i / 2 % 2]);
        attn_copy_wait<1>();
        __syncthreads(); /* V is there */
        warp_output<shape::OUT>(o, p, v, num_tiles);
        __syncthreads(); /* all warps have read V */
        load_block<HD, shape::OUT>(v, task.v, keys, true, block + 1, col);
        if (next % ATTN_KEY_SPLIT == 0 || block == last) {
            attn_merge_rows(total, sum, state, o, task.c);
#pragma unroll
            for (int i = 0; i < shape::OUT / 2; i++)
                o[i] = 0.0f;
        }
    }
    store_rows<shape::OUT>(task, sum, total, warp_row, task.lse && slice == 0);
}

template <int HD, bool OWN_KEYS>
__global__ void __launch_bounds__(fwd_shape<HD>::THREADS) attn_fwd_kernel(const rk_cuda_attn_args args)
{
    int head = blockIdx.x % args.num_heads, rank = blockIdx.x / args.num_heads;
    int kv_head = head / (args.num_heads / args.num_kv_heads), col = blockIdx.y * fwd_shape<HD>::OUT;
    attn_tile tile;
    fwd_task task;

    if (!attn_packed_tile<OWN_KEYS>(&tile, args, rank, fwd_shape<HD>::ROWS, false))
        return;
    task.q = (const bf16 *)args.q + (int64_t)(tile.begin + tile.first_row) * args.q_stride + head * HD;
    task.k = (const bf16 *)args.k;
    task.v = (const bf16 *)args.v;
    task.out = (bf16 *)args.out + (int64_t)(tile.begin + tile.first_row) * args.out_stride + head * HD + col;
    task.lse = args.lse ? args.lse + (int64_t)head * args.num_tokens + tile.begin + tile.first_row : NULL;
    task.q_stride = args.q_stride;
    task.out_stride = args.out_stride;
    task.num_rows = min(fwd_shape<HD>::ROWS, tile.length - tile.first_row);
    task.position = tile.first_row;
    task.window = args.window;
    task.c = __fmul_rn(args.scale, ATTN_LOG2E);
    fwd_block<HD>(task, seen_keys(task, attn_packed_keys(args, tile, kv_head)), blockIdx.y);
}

template <int HD>
__global__ void __launch_bounds__(fwd_shape<HD>::THREADS)
    attn_paged_kernel(const rk_cuda_attn_paged_args args)
{
    int head = blockIdx.x % args.num_heads, rank = blockIdx.x / args.num_heads;
    int kv_head = head / (args.num_heads / args.num_kv_heads), col = blockIdx.y * fwd_shape<HD>::OUT;
    attn_tile tile;
    fwd_task task;

    if (!attn_ranked_tile(&tile, {args.cu_q, NULL, args.num_seqs, 0, fwd_shape<HD>::ROWS, false}, rank))
        return;
    task.q = (const bf16 *)args.q + (int64_t)(tile.begin + tile.first_row) * args.q_stride + head * HD;
    task.k = (const bf16 *)args.k_cache;
    task.v = (const bf16 *)args.v_cache;
    task.out = (bf16 *)args.out + (int64_t)(tile.begin + tile.first_row) * args.out_stride + head * HD + col;
    task.lse = NULL;
    task.q_stride = args.q_stride;
    task.out_stride = args.out_stride;
    task.num_rows = min(fwd_shape<HD>::ROWS, tile.length - tile.first_row);
    task.position = args.seq_lens[tile.seq] - tile.length + tile.first_row;
    task.window = args.window;
    task.c = __fmul_rn(args.scale, ATTN_LOG2E);
    fwd_block<HD>(task, seen_keys(task, attn_paged_keys(args, tile.seq, kv_head)), blockIdx.y);
}

/* One thread block per tile of queries, head and slice of the output columns. */
template <int HD> attn_grid fwd_grid(cudaStream_t stream, int num_tokens, int num_seqs, int num_heads)
{
    using shape = fwd_shape<HD>;
    int num_tiles = attn_max_tiles(num_tokens, num_seqs, shape::ROWS);

    return {stream, dim3(num_tiles * num_heads, HD / shape::OUT), shape::THREADS, shape::SMEM};
}

} // namespace

int rk_attn_fwd_mma_shared_bytes(int head_dim)
{
    int bytes = 0;

    (void)attn_for_mma(head_dim, [&](auto dim) {
        bytes = fwd_shape<dim.value>::SMEM;
        return cudaSuccess;
    });
    return bytes;
}

cudaError_t rk_attn_fwd_mma(cudaStream_t stream, const rk_cuda_attn_args *args)
{
    return attn_for_mma(args->head_dim, [=](auto dim) {
        return attn_for_keys(*args, [=](auto own) {
            return attn_launch(attn_fwd_kernel<dim.value, own.value>,
                               fwd_grid<dim.value>(stream, args->num_tokens, args->num_seqs, args->num_heads),
                               *args);
        });
    });
}

cudaError_t rk_attn_paged_mma(cudaStream_t stream, const rk_cuda_attn_paged_args *args)
{
    return attn_for_mma(args->head_dim, [=](auto dim) {
        return attn_launch(attn_paged_kernel<dim.value>,
                           fwd_grid<dim.value>(stream, args->num_tokens, args->num_seqs, args->num_heads),
                           *args);
    });
}
