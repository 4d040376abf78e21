/* Common parts of the attention kernels: the softmax of the definition in attn.h, tiles of packed sequences,
 * and the warp-level instructions of sm_80. Fragment layouts are those of mma.m16n8k16 and of wgmma, which
 * are equal: in a 16 x 8 tile of f32, lane 4g + t holds columns 2t, 2t+1 of rows g and g+8. */
#ifndef RK_CUDA_ATTN_COMMON_CUH
#define RK_CUDA_ATTN_COMMON_CUH

#include "kernels/cuda/attention/attn.h"

#include <cuda_bf16.h>
#include <cstdint>

constexpr int ATTN_KEY_BLOCK = 128;
constexpr int ATTN_KEY_SPLIT = 512;
constexpr float ATTN_LOG2E = 1.44269504088896340736f;
constexpr float ATTN_LN2 = 0.69314718055994530942f;

typedef __nv_bfloat16 bf16;

__device__ inline int attn_lane()
{
    return threadIdx.x & 31;
}

__device__ inline int attn_first_key(int position, int window)
{
    return window > 0 && position >= window ? position - window + 1 : 0;
}

/* --- tiles of packed sequences */

/* Rows of one sequence. Initially row i is its i-th query; for segments with separate keys, attn_place_tile()
 * makes row i the query and the key at position i. */
struct attn_tile {
    int seq, begin, length; /* sequence; row 0 in q, and the number of rows */
    int first_row;          /* of the tile, within the sequence */
    int key_begin;          /* row 0 in k */
    int first_query;        /* rows before it have no query (and begin may be negative) */
};

/* Tiling of sequences by queries or by keys. k_lens[s] is the number of keys, as in rk_attn_varlen_args, at
 * most num_keys; NULL: as many as queries, and num_keys is unused. */
struct attn_tiling {
    const int32_t *cu, *k_lens; /* cu: [num_seqs + 1] of queries */
    int num_seqs, num_keys, tile_rows;
    bool is_of_keys;
};

/* Number of tiles of a sequence, 0 if it is skipped, and the number of tiles for the positions before the
 * first query. */
__device__ inline void attn_tiles_of(const attn_tiling &tiling, int seq, int *tiles, int *before)
{
    int num_queries = tiling.cu[seq + 1] - tiling.cu[seq], num_rows = num_queries;

    *before = 0;
    if (tiling.k_lens) {
        int num_keys = tiling.k_lens[seq];

        num_rows = tiling.is_of_keys || num_keys == 0 ? num_keys : num_queries;
        *before = tiling.is_of_keys ? 0 : max(0, num_keys - num_queries) / tiling.tile_rows;
    }
    *tiles = (num_rows + tiling.tile_rows - 1) / tiling.tile_rows;
}

/* Tiles by descending work, which balances the thread blocks of a kernel. The i-th of n tiles of queries has
 * work before + i + 1; the i-th tile of keys, which later queries attend to, has n - i. So each amount from
 * before + 1 to before + n occurs once per sequence, and the number of tiles with at least some amount is a
 * sum over the sequences. */
__device__ inline int attn_count_tiles(const attn_tiling &tiling, int work)
{
    int count = 0;

    for (int base = 0; base < tiling.num_seqs; base += 32) {
        int s = base + attn_lane(), tiles = 0, before = 0;

        if (s < tiling.num_seqs)
            attn_tiles_of(tiling, s, &tiles, &before);
        count += __reduce_add_sync(0xffffffffu, min(tiles, max(0, before + tiles - work + 1)));
    }
    return count;
}

/* Upper bound of the number of tiles. */
static inline int attn_max_tiles(int num_tokens, int num_seqs, int tile_rows)
{
    return num_tokens / tile_rows + num_seqs;
}

__device__ inline void attn_set_sequence(attn_tile *tile, const int32_t *cu, int seq)
{
    tile->seq = seq;
    tile->begin = tile->key_begin = cu[seq];
    tile->length = cu[seq + 1] - tile->begin;
    tile->first_query = 0;
}

/* False for a rank beyond the last tile. All lanes of a warp must call it together. */
__device__ inline bool attn_ranked_tile(attn_tile *tile, const attn_tiling &tiling, int rank)
{
    const int32_t *cu = tiling.cu;
    int longest = cu[tiling.num_seqs] + (tiling.k_lens ? tiling.num_keys : 0); /* or less */
    int low = 1, high = longest / tiling.tile_rows + 2, seq = -1, tiles, before;

    if (rank >= attn_count_tiles(tiling, 1))
        return false;
    while (high - low > 1) { /* more than `rank` tiles have at least work low, at most `rank` have at least
                              * work high */
        int middle = (low + high) / 2;

        if (attn_count_tiles(tiling, middle) > rank)
            low = middle;
        else
            high = middle;
    }
    rank -= attn_count_tiles(tiling, high); /* among the tiles with work low */
    for (int base = 0; seq < 0; base += 32) {
        int s = base + attn_lane();
        unsigned mask;

        tiles = before = 0;
        if (s < tiling.num_seqs)
            attn_tiles_of(tiling, s, &tiles, &before);
        mask = __ballot_sync(0xffffffffu, before < low && low <= before + tiles);
        if (rank < __popc(mask))
            seq = base + (int)__fns(mask, 0, rank + 1);
        rank -= __popc(mask);
    }
    attn_tiles_of(tiling, seq, &tiles, &before);
    attn_set_sequence(tile, cu, seq);
    tile->first_row = (tiling.is_of_keys ? tiles - low : low - 1 - before) * tiling.tile_rows;
    return true;
}

/* Sets the tile that begins at a token. */
__device__ inline void attn_find_token(attn_tile *tile, const int32_t *cu, int num_seqs, int token)
{
    int count = 0;

    for (int base = 0; base < num_seqs; base += 32) {
        int s = base + attn_lane();

        count += __popc(__ballot_sync(0xffffffffu, s < num_seqs && cu[s] <= token));
    }
    attn_set_sequence(tile, cu, count - 1); /* the last sequence that begins at or before the token; empty
                                             * ones end before it */
    tile->first_row = token - tile->begin;
}

/* For a packed call: converts queries (or keys) to positions. False: the segment is skipped. */
__device__ inline bool attn_place_tile(attn_tile *tile, const rk_cuda_attn_args &args, bool is_of_keys)
{
    int num_keys, num_before;

    if (!args.k_lens)
        return true;
    num_keys = args.k_lens[tile->seq];
    num_before = num_keys - tile->length;
    tile->begin -= num_before;
    tile->key_begin = args.k_begin[tile->seq];
    tile->length = num_keys;
    tile->first_query = num_before;
    if (!is_of_keys)
        tile->first_row += num_before;
    return num_keys > 0;
}

/* The rank-th tile of a packed call, in positions. False: there is none. OWN_KEYS: the call has k_begin and
 * k_lens. A template parameter, so that kernels without them have no extra cost. */
template <bool OWN_KEYS>
__device__ inline bool attn_packed_tile(attn_tile *tile, const rk_cuda_attn_args &args, int rank,
                                        int tile_rows, bool is_of_keys)
{
    attn_tiling tiling = {
        args.cu_seqlens, OWN_KEYS ? args.k_lens : NULL, args.num_seqs, args.num_keys, tile_rows, is_of_keys};

    return attn_ranked_tile(tile, tiling, rank) && (!OWN_KEYS || attn_place_tile(tile, args, is_of_keys));
}

/* --- softmax ------------------------------------------------------------------------------------------ */

__device__ inline float attn_exp2(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ inline float attn_quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

__device__ inline float attn_quad_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* Replaces a maximum of -inf (no key yet) by a finite value, to avoid inf - inf. */
__device__ inline float attn_finite_max(float m)
{
    return m == -INFINITY ? 0.0f : m;
}

/* Softmax of rows g and g+8 of a warp's 16, within the split: the maximum raw score so far, and this lane's
 * share of the sum of exponentials (columns 2t, 2t+1 of every 8). */
struct attn_softmax {
    float m[2], l[2];
};

__device__ inline void attn_softmax_clear(attn_softmax &state)
{
    state.m[0] = state.m[1] = -INFINITY;
    state.l[0] = state.l[1] = 0.0f;
}

/* Updates the state with a block's maximum of row r; returns the factor by which the row's sums must be
 * rescaled. c is scale * log2(e). */
__device__ inline float attn_raise_max(attn_softmax &state, int r, float block_max, float c)
{
    float old = state.m[r], m = fmaxf(old, block_max);

    state.m[r] = m;
    return attn_exp2(__fmul_rn(old - attn_finite_max(m), c));
}

/* Replaces the scores of four column tiles (32 keys) of row r by exponentials; returns their sum. */
__device__ inline float attn_exp_quarter(float *s, int r, float c, float offset)
{
    float sum = 0.0f;

#pragma unroll
    for (int n = 0; n < 4; n++) {
        s[4 * n + 2 * r] = attn_exp2(__fmaf_rn(s[4 * n + 2 * r], c, offset));
        s[4 * n + 2 * r + 1] = attn_exp2(__fmaf_rn(s[4 * n + 2 * r + 1], c, offset));
        sum += s[4 * n + 2 * r];
        sum += s[4 * n + 2 * r + 1];
    }
    return sum;
}

__device__ inline float attn_exp_offset(const attn_softmax &state, int r, float c)
{
    return -__fmul_rn(attn_finite_max(state.m[r]), c);
}

__device__ inline void attn_add_quarters(attn_softmax &state, int r, float alpha, const float quarter[4])
{
    state.l[r] = __fmaf_rn(state.l[r], alpha, (quarter[0] + quarter[1]) + (quarter[2] + quarter[3]));
}

/* One key block: turns scores (masked ones are -inf) into exponentials, in place; alpha is the factor of the
 * output rows. */
__device__ inline void attn_softmax_block(float (&s)[64], attn_softmax &state, float c, float (&alpha)[2])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float part[4], quarter[4];

#pragma unroll
        for (int w = 0; w < 4; w++) {
            part[w] = fmaxf(s[16 * w + 2 * r], s[16 * w + 2 * r + 1]);
#pragma unroll
            for (int n = 1; n < 4; n++)
                part[w] = fmaxf(part[w], fmaxf(s[16 * w + 4 * n + 2 * r], s[16 * w + 4 * n + 2 * r + 1]));
        }
        alpha[r] = attn_raise_max(state, r,
                                  attn_quad_max(fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]))), c);
#pragma unroll
        for (int w = 0; w < 4; w++)
            quarter[w] = attn_exp_quarter(s + 16 * w, r, c, attn_exp_offset(state, r, c));
        attn_add_quarters(state, r, alpha[r], quarter);
    }
}

/* Merged result of the earlier splits, of one row. */
struct attn_total {
    float m, l;
};

/* Merges a split with maximum m and (whole) sum l; old and add are the factors for merging the outputs:
 *   total = total * old + split * add. */
__device__ inline void attn_merge(attn_total &total, float m, float l, float c, float &old, float &add)
{
    float top = fmaxf(total.m, m);

    old = attn_exp2(__fmul_rn(total.m - attn_finite_max(top), c));
    add = attn_exp2(__fmul_rn(m - attn_finite_max(top), c));
    total.m = top;
    total.l = __fmaf_rn(total.l, old, __fmul_rn(l, add));
}

__device__ inline float attn_merge_output(float total, float old, float split, float add)
{
    return __fmaf_rn(total, old, __fmul_rn(split, add));
}

/* Merges rows g, g+8 of the output of a finished split into the totals, and clears the softmax state. */
template <int N>
__device__ inline void attn_merge_rows(attn_total (&total)[2], float (&sum)[N], attn_softmax &state,
                                       const float (&o)[N], float c)
{
    float old[2], add[2];

#pragma unroll
    for (int r = 0; r < 2; r++)
        attn_merge(total[r], state.m[r], attn_quad_sum(state.l[r]), c, old[r], add[r]);
#pragma unroll
    for (int i = 0; i < N; i++)
        sum[i] = attn_merge_output(sum[i], old[i / 2 % 2], o[i], add[i / 2 % 2]);
    attn_softmax_clear(state);
}

__device__ inline float attn_reciprocal(float l)
{
    return l > 0.0f ? __frcp_rn(l) : l; /* a row without keys gives 0; NaN stays */
}

/* Natural log of the sum of exponentials. */
__device__ inline float attn_lse(const attn_total &total, float c)
{
    return ATTN_LN2 * (total.m * c + __log2f(total.l));
}

/* Sets the scores of 16 rows from `row` against N / 4 * 8 keys from `key` to -inf where the key is masked for
 * the row. */
template <int N> __device__ inline void attn_mask_scores(float (&s)[N], int row, int key, int window)
{
    int g = attn_lane() / 4, t = attn_lane() % 4;

#pragma unroll
    for (int i = 0; i < N; i++) {
        int j = key + i / 4 * 8 + 2 * t + i % 2, p = row + g + i / 2 % 2 * 8;

        if (j > p || (window > 0 && p - j >= window))
            s[i] = -INFINITY;
    }
}

/* --- bf16 and tensor cores of sm_80 ------------------------------------------------------------------- */

__device__ inline uint32_t attn_pack(float low, float high)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);

    return *reinterpret_cast<uint32_t *>(&pair);
}

/* Packs an accumulator of 16 x N/4*8 as the A operand of a GEMM over its columns, four registers per k16
 * step. */
template <int N> __device__ inline void attn_pack_rows(uint32_t (&a)[N / 2], const float (&s)[N])
{
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        a[i] = attn_pack(s[2 * i], s[2 * i + 1]);
}

__device__ inline uint32_t attn_smem(const void *ptr)
{
    return (uint32_t)__cvta_generic_to_shared(ptr);
}

__device__ inline void attn_mma(float *d, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline void attn_ldmatrix(uint32_t (&r)[4], const void *ptr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(attn_smem(ptr))
                 : "memory");
}

__device__ inline void attn_ldmatrix_trans(uint32_t (&r)[4], const void *ptr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(attn_smem(ptr))
                 : "memory");
}

/* Copies 16 bytes, or writes zeros where !is_valid; src must be a legal address either way. */
__device__ inline void attn_copy16(void *dst, const void *src, bool is_valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(attn_smem(dst)), "l"(src),
                 "r"(is_valid ? 16 : 0)
                 : "memory");
}

__device__ inline void attn_copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int PENDING> __device__ inline void attn_copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* Rows of tiles in shared memory have COLS elements and 16 bytes of padding, an odd number of 16-byte units,
 * so that the eight rows of an ldmatrix are in different banks. */
template <int COLS> constexpr int attn_pitch = COLS + 8;

/* A operand: 16 rows from `row`, k16 step kk. */
template <int COLS> __device__ inline void attn_load_a(uint32_t (&a)[4], const bf16 *tile, int row, int kk)
{
    int lane = attn_lane();

    attn_ldmatrix(a, tile + (row + lane % 16) * attn_pitch<COLS> + kk * 16 + lane / 16 * 8);
}

/* B operand whose n runs over rows and k over columns: b[0], b[1] for rows row..+7, b[2], b[3] for +8..+15.
 */
template <int COLS> __device__ inline void attn_load_b(uint32_t (&b)[4], const bf16 *tile, int row, int kk)
{
    int lane = attn_lane();

    attn_ldmatrix(b, tile + (row + lane / 16 * 8 + lane % 8) * attn_pitch<COLS> + kk * 16 + lane / 8 % 2 * 8);
}

/* B operand whose k runs over rows (k16 step kk) and n over columns: b[0], b[1] for columns col..+7, b[2],
 * b[3] for +8..+15. */
template <int COLS> __device__ inline void attn_load_bt(uint32_t (&b)[4], const bf16 *tile, int kk, int col)
{
    int lane = attn_lane();

    attn_ldmatrix_trans(b, tile + (kk * 16 + lane % 16) * attn_pitch<COLS> + col + lane / 16 * 8);
}

static inline bool attn_is_aligned(const void *ptr, int64_t stride)
{
    return (uintptr_t)ptr % 16 == 0 && stride % 8 == 0;
}

#endif
