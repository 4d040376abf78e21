/* Attention forward by wgmma, packed sequences and paged cache (prefill), head_dim 64 and 128, and 192 with
 * v_head_dim 128 (over a cache for any number of queries). Twin of kernels/cpu/attn_varlen.c and
 * attn_paged.c; definition in attn.h.
 *
 * Work split   One block per SM, which processes tiles of 128 queries of one head, those with the most work
 *              first, alternating in direction from round to round to balance the blocks. Two warpgroups of
 *              64 queries, and one warp that determines the tiles and loads Q, K and V by TMA (K and V in two
 *              stages); it loads the next tile while the previous one is finished and stored.
 * Overlap      The warpgroups take turns at the tensor cores (PV of one block, then QK of the next, both
 *              started at once), so that one computes its softmax while the other multiplies.
 * Memory       Q 32 KiB, K and V 2 x 32 KiB each, output 32 KiB (head_dim 128).
 * Registers    Scores 64, output 64, total of the splits 64, probabilities 32 a lane, of 240.
 * Measured     H200, causal, TFLOP/s one run at a time / back to back (at the power limit):
 *                hd128  1 x 32768, 28 on 4 heads  677 / 604 (cuDNN through PyTorch on another: 670 / 608)
 *                hd128  1 x 8192, 16 heads        566 / 582
 *                hd128  2 x 4096, 28 on 4 heads   524 / 565
 *                hd128  4 x 2048, 12 on 2 heads   331 / 500
 *                hd128 16 x  512, 28 on 4 heads   204 / 299
 *                hd64   2 x 4096, 14 on 2 heads   285 / 386
 *                192/128  2 x 4096, 16 heads      567 (H100)
 *              Paged, 2048 queries of 28 on 4 heads, hd128: 446 (4 x 2048 keys), 468 (1 x 16384).
 * Tried        Scores of the next block before the output of this one, with its softmax overlapping the
 *              output: 4% slower, because the totals then need shared memory. Passing the turn before the
 *              output is complete: the same. Heads in sections whose K and V fit the L2 cache: 85% hits
 *              instead of 71%, but 1 to 18% slower, and the backward pass up to 15%.
 * Numerics     attn.h; wgmma and mma.sync agree in a chain of k16 steps. */
#include "kernels/cuda/attention/attn_internal.cuh"
#include "kernels/cuda/attention/attn_sm90.cuh"

namespace
{

constexpr int ROWS = 128, STAGES = 2, THREADS = 3 * ATTN_WG;
enum { BAR_TURN = 1, BAR_TAIL = 3 }; /* named barriers, one per warpgroup */

/* Parameters of the kernel for a packed or a paged call. */
struct fwd_params {
    CUtensorMap q, k, v;
    int num_items, num_heads;     /* (upper bound of) tiles times heads, ordered by head */
    const int32_t *cu, *seq_lens; /* seq_lens: keys of each sequence; NULL: as many as queries */
    const int32_t *k_begin;       /* packed, with seq_lens; NULL: keys are the rows of the queries */
    const int32_t *table;         /* paged */
    int64_t table_stride;
    int block_shift;                                   /* log2 of the cache's block size */
    int num_seqs, num_tokens, num_keys, group, window; /* num_keys: rows of k, with k_begin */
    float c;                                           /* scale * log2(e) */
    bf16 *out;
    int64_t out_stride;
    float *lse;
};

/* Queries of one head, at positions position.. of a sequence, and the key blocks that they attend to. */
struct fwd_tile {
    int seq, head, token, num_rows; /* token: the first query's row of q; num_rows <= 0: no more tiles */
    int position, num_keys;         /* num_keys: of the sequence */
    int first, last;                /* key blocks */
    int key_token;                  /* packed: the row of k at position 0 */
};

/* HD: head_dim, VD: v_head_dim. Where q is wider there is no room for the output beside it: it takes the
 * place of q, and the next tile's queries come when it is stored. */
template <int HD, int VD> struct fwd_smem {
    static constexpr bool HAS_OUT = HD == VD;
    bf16 q[ROWS * HD];
    bf16 k[STAGES][ATTN_KEY_BLOCK * HD], v[STAGES][ATTN_KEY_BLOCK * VD];
    bf16 out[HAS_OUT ? ROWS * VD : 8];
    fwd_tile tile; /* goes with q */
    uint64_t q_full, q_empty, k_full[STAGES], v_full[STAGES], k_empty[STAGES], v_empty[STAGES];
};

#if RK_ATTN_HAS_SM90

template <int HD, int VD> __device__ inline void init_barriers(fwd_smem<HD, VD> &sm)
{
    constexpr int WARPS = 2 * ATTN_WG / 32; /* one lane of each reading warp */

    attn_bar_init(&sm.q_full, 1);
    attn_bar_init(&sm.q_empty, 2 * ATTN_WG); /* every thread has read the tile's description */
    for (int i = 0; i < STAGES; i++) {
        attn_bar_init(&sm.k_full[i], 1);
        attn_bar_init(&sm.v_full[i], 1);
        attn_bar_init(&sm.k_empty[i], WARPS);
        attn_bar_init(&sm.v_empty[i], WARPS);
    }
    attn_bar_init_fence();
}

/* The item that this thread block takes in a round. */
__device__ inline int round_item(int round)
{
    return round * gridDim.x + (round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
}

/* Called by all lanes of the producer. False: the item is an unused rank. */
template <bool OWN_KEYS> __device__ inline bool find_tile(fwd_tile *out, const fwd_params &params, int item)
{
    attn_tiling tiling = {
        params.cu, OWN_KEYS ? params.seq_lens : NULL, params.num_seqs, params.num_keys, ROWS, false};
    int num_before = 0;
    attn_tile tile;

    if (!attn_ranked_tile(&tile, tiling, item / params.num_heads))
        return false;
    out->num_keys = tile.length;
    if (params.seq_lens) {
        out->num_keys = params.seq_lens[tile.seq];
        num_before = out->num_keys - tile.length;
    }
    out->seq = tile.seq;
    out->head = item % params.num_heads;
    out->token = tile.begin + tile.first_row;
    out->key_token = OWN_KEYS ? params.k_begin[tile.seq] : tile.begin;
    out->num_rows = tile.length - tile.first_row;
    out->position = num_before + tile.first_row;
    out->first = attn_first_key(out->position, params.window) / ATTN_KEY_BLOCK;
    out->last = (out->position + min(ROWS, out->num_rows) - 1) / ATTN_KEY_BLOCK;
    return true;
}

/* Paged: the cache block that this lane copies for a key block (one lane each). A cache block that no query
 * of the tile attends to may have been freed: it is replaced by another valid block. */
__device__ inline int find_entry(const fwd_params &params, const fwd_tile &tile, int block)
{
    int low = attn_first_key(tile.position, params.window) >> params.block_shift;
    int high = (tile.num_keys - 1) >> params.block_shift, at = attn_lane() << params.block_shift;

    if (!params.table || at >= ATTN_KEY_BLOCK)
        return 0;
    return params.table[tile.seq * params.table_stride +
                        min(max((block * ATTN_KEY_BLOCK + at) >> params.block_shift, low), high)];
}

/* Copies one key block of k or v, WIDTH columns, by the producer warp. */
template <int WIDTH>
__device__ inline void load_keys(bf16 *dst, const CUtensorMap *map, uint64_t *bar, const fwd_params &params,
                                 const fwd_tile &tile, int block, int entry)
{
    int kv_head = tile.head / params.group, at = attn_lane() << params.block_shift;

    if (attn_lane() == 0)
        attn_bar_expect(bar, ATTN_KEY_BLOCK * WIDTH * 2);
    __syncwarp(); /* the expected bytes are announced before the copies */
    if (params.table) {
        if (at < ATTN_KEY_BLOCK)
            attn_tma_load<WIDTH>(dst, ATTN_KEY_BLOCK, at, map, bar, {0, kv_head, entry});
    } else if (attn_lane() == 0) {
        attn_tma_load<WIDTH>(dst, ATTN_KEY_BLOCK, 0, map, bar,
                             {tile.key_token + block * ATTN_KEY_BLOCK, kv_head, 0});
    }
}

/* The producer warp: for each tile copies the queries, then their keys and values. */
template <int HD, int VD, bool OWN_KEYS>
__device__ inline void produce(fwd_smem<HD, VD> &sm, const fwd_params &params)
{
    int num_tiles = 0, count = 0;

    for (int round = 0; round * (int)gridDim.x < params.num_items; round++) {
        fwd_tile tile;
        int item = round_item(round);

        if (item >= params.num_items || !find_tile<OWN_KEYS>(&tile, params, item))
            continue;
        attn_bar_wait(&sm.q_empty, num_tiles++ % 2 ^ 1);
        if (attn_lane() == 0) {
            sm.tile = tile;
            attn_bar_expect(&sm.q_full, ROWS * HD * 2);
            attn_tma_load<HD>(sm.q, ROWS, 0, &params.q, &sm.q_full, {tile.token, tile.head, 0});
        }
        for (int block = tile.first; block <= tile.last; block++, count++) {
            int stage = count % STAGES, parity = count / STAGES % 2 ^ 1,
                entry = find_entry(params, tile, block);

            attn_bar_wait(&sm.k_empty[stage], parity);
            load_keys<HD>(sm.k[stage], &params.k, &sm.k_full[stage], params, tile, block, entry);
            attn_bar_wait(&sm.v_empty[stage], parity);
            load_keys<VD>(sm.v[stage], &params.v, &sm.v_full[stage], params, tile, block, entry);
        }
    }
    attn_bar_wait(&sm.q_empty, num_tiles % 2 ^ 1);
    if (attn_lane() == 0) {
        sm.tile.num_rows = 0;
        attn_bar_arrive(&sm.q_full);
    }
}

/* A warpgroup's registers, and the parameters of its tile. */
template <int VD> struct consumer {
    float s[64], o[VD / 2], sum[VD / 2]; /* scores; output of this split; merged output of earlier splits */
    attn_softmax state;
    attn_total total[2];
    float c;        /* scale * log2(e) */
    int wg, window; /* fixed */
    int row0;       /* position of the warp's first query */
    int num_keys;   /* of the sequence */
    int count;      /* key blocks of the earlier tiles */
};

/* Tells the producer that this warp has finished reading a buffer. */
__device__ inline void release(uint64_t *bar)
{
    __syncwarp(); /* all lanes have read */
    if (attn_lane() == 0)
        attn_bar_arrive(bar);
}

__device__ inline void take_turn(int wg)
{
    attn_named_sync(BAR_TURN + wg, 2 * ATTN_WG);
}

__device__ inline void pass_turn(int wg)
{
    attn_named_arrive(BAR_TURN + (wg ^ 1), 2 * ATTN_WG);
}

/* Starts the scores of the count-th block. */
template <int HD, int VD>
__device__ inline void start_scores(consumer<VD> &w, fwd_smem<HD, VD> &sm, int count)
{
    attn_bar_wait(&sm.k_full[count % STAGES], count / STAGES % 2);
    attn_pin(w.s);
    attn_wgmma_fence();
    attn_gemm_rows<HD, ATTN_KEY_BLOCK>(w.s, sm.q, w.wg * 64, ROWS, sm.k[count % STAGES]);
    attn_wgmma_commit();
}

/* Turns the count-th block's scores, which are being computed, into probabilities p, rescales the output so
 * far to the block's maximum (small heads skip it if the maximum did not rise, because the factor is one),
 * and waits for the block's values. Results of rows beyond the end of the sequence are not stored. */
template <int HD, int VD>
__device__ inline void finish_scores(consumer<VD> &w, fwd_smem<HD, VD> &sm, uint32_t (&p)[32], int key,
                                     bool is_last)
{
    int stage = w.count % STAGES, num_keys = w.num_keys - key; /* existing keys from the start of the block */
    float alpha[2];

    attn_wgmma_wait<0>();
    attn_pin(w.s);
    release(&sm.k_empty[stage]);
    if (is_last && sm.HAS_OUT)
        attn_bar_arrive(&sm.q_empty);
    if (key + ATTN_KEY_BLOCK - 1 > w.row0 || (w.window > 0 && w.row0 + 15 - key >= w.window))
        attn_mask_scores(w.s, w.row0, key, w.window);
    attn_softmax_block(w.s, w.state, w.c, alpha);
    attn_pack_rows(p, w.s);
    if (VD > 64 || __any_sync(0xffffffffu, alpha[0] != 1.0f || alpha[1] != 1.0f)) {
#pragma unroll
        for (int j = 0; j < VD / 2; j++)
            w.o[j] = __fmul_rn(w.o[j], alpha[j / 2 % 2]);
    }
    attn_bar_wait(&sm.v_full[stage], w.count / STAGES % 2);
    if (num_keys < ATTN_KEY_BLOCK) {
        attn_zero_tail<VD, ATTN_KEY_BLOCK>(sm.v[stage], num_keys);
        attn_async_fence();
        attn_named_sync(BAR_TAIL + w.wg, ATTN_WG); /* the whole warpgroup has zeroed its rows */
    }
}

/* Starts the GEMM of the block's contribution to the output. */
template <int HD, int VD>
__device__ inline void start_output(consumer<VD> &w, fwd_smem<HD, VD> &sm, const uint32_t (&p)[32],
                                    bool is_fresh)
{
    attn_pin(w.o);
    attn_wgmma_fence();
    attn_gemm_cols<VD, ATTN_KEY_BLOCK>(w.o, p, sm.v[w.count % STAGES], !is_fresh);
    attn_wgmma_commit();
}

/* Waits for it, except for the PENDING GEMMs started after it, and releases the values. */
template <int PENDING, int HD, int VD>
__device__ inline void finish_output(consumer<VD> &w, fwd_smem<HD, VD> &sm)
{
    attn_wgmma_wait<PENDING>();
    attn_pin(w.o);
    release(&sm.v_empty[w.count++ % STAGES]);
}

/* Blocks first..last of a tile; the warpgroups alternate on the tensor cores, 0 first. */
template <int HD, int VD>
__device__ inline void run_tile(consumer<VD> &w, fwd_smem<HD, VD> &sm, int first, int last)
{
    bool is_fresh = true; /* o has no contribution of this split yet */
    uint32_t p[32];

    take_turn(w.wg);
    start_scores(w, sm, w.count);
    pass_turn(w.wg);
    for (int block = first; block < last; block++) {
        int key = block * ATTN_KEY_BLOCK;

        finish_scores(w, sm, p, key, false);
        take_turn(w.wg);
        start_output(w, sm, p, is_fresh);
        start_scores(w, sm, w.count + 1);
        finish_output<1>(w, sm);
        pass_turn(w.wg);
        is_fresh = (key + ATTN_KEY_BLOCK) % ATTN_KEY_SPLIT == 0;
        if (is_fresh)
            attn_merge_rows(w.total, w.sum, w.state, w.o, w.c);
    }
    finish_scores(w, sm, p, last * ATTN_KEY_BLOCK, true);
    take_turn(w.wg);
    start_output(w, sm, p, is_fresh);
    finish_output<0>(w, sm);
    pass_turn(w.wg);
    attn_merge_rows(w.total, w.sum, w.state, w.o, w.c);
}

template <int VD>
__device__ inline void store_tile(const consumer<VD> &w, const fwd_params &params, const fwd_tile &tile,
                                  bf16 *staging, int warp_row)
{
    int num_rows = tile.num_rows - warp_row, g = attn_lane() / 4, token = tile.token + warp_row;
    float inv[2] = {attn_reciprocal(w.total[0].l), attn_reciprocal(w.total[1].l)};

    attn_store_rows<VD>(params.out + token * params.out_stride + tile.head * VD, params.out_stride, num_rows,
                        w.sum, inv, staging, warp_row);
    for (int r = 0; r < 2; r++) {
        if (params.lse && attn_lane() % 4 == 0 && g + 8 * r < num_rows)
            params.lse[(int64_t)tile.head * params.num_tokens + token + g + 8 * r] =
                attn_lse(w.total[r], w.c);
    }
}

/* Warpgroup wg: 64 queries of every tile. */
template <int HD, int VD>
__device__ inline void consume(fwd_smem<HD, VD> &sm, const fwd_params &params, int wg)
{
    int warp_row = wg * 64 + threadIdx.x / 32 % 4 * 16;
    consumer<VD> w;

    w.c = params.c;
    w.wg = wg;
    w.window = params.window;
    w.count = 0;
    if (wg == 1)
        pass_turn(wg);
    for (int i = 0;; i++) {
        fwd_tile tile;

        attn_bar_wait(&sm.q_full, i % 2);
        tile = sm.tile;
        if (tile.num_rows <= 0)
            break;
        w.row0 = tile.position + warp_row;
        w.num_keys = tile.num_keys;
        w.total[0] = w.total[1] = {-INFINITY, 0.0f};
        attn_softmax_clear(w.state);
#pragma unroll
        for (int j = 0; j < VD / 2; j++)
            w.o[j] = w.sum[j] = 0.0f;
        run_tile(w, sm, __shfl_sync(0xffffffffu, tile.first, 0), __shfl_sync(0xffffffffu, tile.last, 0));
        if (!sm.HAS_OUT)
            attn_named_sync(BAR_TAIL + wg, ATTN_WG); /* the whole warpgroup has read q for the last time */
        store_tile(w, params, tile, sm.HAS_OUT ? sm.out : sm.q, warp_row);
        __syncwarp(); /* the staged rows are stored before those of the next tile are written */
        if (!sm.HAS_OUT) {
            attn_async_fence();
            attn_bar_arrive(&sm.q_empty);
        }
    }
    if (wg == 0)
        take_turn(wg); /* consumes the other warpgroup's last arrival */
}

#endif

template <int HD, int VD, bool OWN_KEYS>
__global__ void __launch_bounds__(THREADS, 1) attn_fwd_wgmma_kernel(const __grid_constant__ fwd_params params)
{
#if RK_ATTN_HAS_SM90
    extern __shared__ uint8_t raw[];
    fwd_smem<HD, VD> &sm = *reinterpret_cast<fwd_smem<HD, VD> *>(raw + (-attn_smem(raw) & 1023));
    int wg = __shfl_sync(0xffffffffu, threadIdx.x / ATTN_WG, 0); /* shuffle: makes the value uniform in a warp
                                                                  * for the compiler */

    if (threadIdx.x == 0)
        init_barriers(sm);
    __syncthreads(); /* the barriers are initialized */
    if (wg == 2) {
        attn_give_registers<24>();
        if (threadIdx.x < 2 * ATTN_WG + 32)
            produce<HD, VD, OWN_KEYS>(sm, params);
    } else {
        attn_take_registers<240>();
        consume(sm, params, wg);
    }
#endif
}

cudaError_t launch(cudaStream_t stream, const fwd_params &params, attn_widths widths, int num_sms)
{
    unsigned num_blocks = params.num_items < num_sms ? params.num_items : num_sms;

    return attn_for_wgmma(widths, [&](auto dim) {
        constexpr int HD = dim.head_dim, VD = dim.v_head_dim;
        attn_grid grid = {stream, dim3(num_blocks), THREADS, sizeof(fwd_smem<HD, VD>) + 1024};

        return params.k_begin ? attn_launch(attn_fwd_wgmma_kernel<HD, VD, true>, grid, params)
                              : attn_launch(attn_fwd_wgmma_kernel<HD, VD, false>, grid, params);
    });
}

} // namespace

cudaError_t rk_attn_fwd_wgmma(cudaStream_t stream, const rk_cuda_attn_args *args)
{
    int hd = args->head_dim, vd = args->v_head_dim, tokens = args->num_tokens, keys = args->num_keys;
    fwd_params params = {};
    cudaError_t err = attn_make_map(&params.q, args->q,
                                    attn_packed_shape(tokens, args->num_heads, hd, args->q_stride, ROWS));

    if (err == cudaSuccess)
        err = attn_make_map(&params.k, args->k,
                            attn_packed_shape(keys, args->num_kv_heads, hd, args->k_stride, ATTN_KEY_BLOCK));
    if (err == cudaSuccess)
        err = attn_make_map(&params.v, args->v,
                            attn_packed_shape(keys, args->num_kv_heads, vd, args->v_stride, ATTN_KEY_BLOCK));
    if (err != cudaSuccess)
        return err;
    params.num_heads = args->num_heads;
    params.num_items = attn_max_tiles(tokens, args->num_seqs, ROWS) * args->num_heads;
    params.cu = args->cu_seqlens;
    params.seq_lens = args->k_lens;
    params.k_begin = args->k_begin;
    params.num_keys = keys;
    params.num_seqs = args->num_seqs;
    params.num_tokens = tokens;
    params.group = args->num_heads / args->num_kv_heads;
    params.window = args->window;
    params.c = args->scale * ATTN_LOG2E;
    params.out = (bf16 *)args->out;
    params.out_stride = args->out_stride;
    params.lse = args->lse;
    return launch(stream, params, {hd, vd}, args->device.num_sms);
}

cudaError_t rk_attn_paged_wgmma(cudaStream_t stream, const rk_cuda_attn_paged_args *args)
{
    int hd = args->head_dim, vd = args->v_head_dim, tokens = args->num_tokens;
    fwd_params params = {};
    cudaError_t err = attn_make_map(&params.q, args->q,
                                    attn_packed_shape(tokens, args->num_heads, hd, args->q_stride, ROWS));

    if (err == cudaSuccess)
        err = attn_make_map(&params.k, args->k_cache, attn_cache_shape(args, hd, args->cache_block_stride));
    if (err == cudaSuccess)
        err = attn_make_map(&params.v, args->v_cache, attn_cache_shape(args, vd, args->v_cache_block_stride));
    if (err != cudaSuccess)
        return err;
    params.num_heads = args->num_heads;
    params.num_items = attn_max_tiles(tokens, args->num_seqs, ROWS) * args->num_heads;
    params.cu = args->cu_q;
    params.seq_lens = args->seq_lens;
    params.table = args->block_table;
    params.table_stride = args->block_table_stride;
    while (1 << params.block_shift < args->block_size)
        params.block_shift++;
    params.num_seqs = args->num_seqs;
    params.num_tokens = tokens;
    params.group = args->num_heads / args->num_kv_heads;
    params.window = args->window;
    params.c = args->scale * ATTN_LOG2E;
    params.out = (bf16 *)args->out;
    params.out_stride = args->out_stride;
    return launch(stream, params, {hd, vd}, args->device.num_sms);
}
