/* Location of the keys and values of a sequence: packed rows, or the blocks of a paged cache. */
#ifndef RK_CUDA_ATTN_KEYS_CUH
#define RK_CUDA_ATTN_KEYS_CUH

#include "kernels/cuda/attention/attn_common.cuh"

/* One kv head of one sequence. Row j is at position j. */
struct attn_keys {
    int64_t k_base, v_base, k_stride, v_stride; /* packed: element offset of row 0; stride of rows */
    const int32_t *table;                       /* paged: the sequence's blocks; otherwise NULL */
    int block_size, shift;                      /* shift: log2(block_size), or -1 */
    int64_t block_stride, head_offset;          /* strides in elements: from block to block; offset of the
                                                 * head in a block */
    int head_dim;
    int first, end; /* rows outside of this range may not exist */
};

__device__ inline attn_keys attn_packed_keys(const rk_cuda_attn_args &args, const attn_tile &tile,
                                             int kv_head)
{
    attn_keys keys = {};

    keys.k_stride = args.k_stride;
    keys.v_stride = args.v_stride;
    keys.k_base = tile.key_begin * args.k_stride + (int64_t)kv_head * args.head_dim;
    keys.v_base = tile.key_begin * args.v_stride + (int64_t)kv_head * args.head_dim;
    return keys;
}

__device__ inline attn_keys attn_paged_keys(const rk_cuda_attn_paged_args &args, int seq, int kv_head)
{
    attn_keys keys = {};

    keys.table = args.block_table + seq * args.block_table_stride;
    keys.block_size = args.block_size;
    keys.shift = (args.block_size & (args.block_size - 1)) == 0 ? __ffs(args.block_size) - 1 : -1;
    keys.block_stride = args.cache_block_stride;
    keys.head_offset = (int64_t)kv_head * args.block_size * args.head_dim;
    keys.head_dim = args.head_dim;
    return keys;
}

/* Paged: the cache block of position j, and the element offset of its row in the block. */
__device__ inline int attn_table_entry(const attn_keys &keys, int j)
{
    return keys.table[keys.shift >= 0 ? j >> keys.shift : j / keys.block_size];
}

__device__ inline int64_t attn_cache_row(const attn_keys &keys, int j, int entry)
{
    int row = keys.shift >= 0 ? j & (keys.block_size - 1) : j % keys.block_size;

    return entry * keys.block_stride + keys.head_offset + row * keys.head_dim;
}

/* Element offsets of row j's key and value. Paged: the table must have the entry for j. */
__device__ inline void attn_key_row(const attn_keys &keys, int j, int64_t *k_row, int64_t *v_row)
{
    if (keys.table) {
        *k_row = *v_row = attn_cache_row(keys, j, attn_table_entry(keys, j));
    } else {
        *k_row = keys.k_base + j * keys.k_stride;
        *v_row = keys.v_base + j * keys.v_stride;
    }
}

/* Copies columns [0, COLS) of a warp's share of ROWS rows to a tile. Each lane passes the offset of one row
 * of the share, or any valid offset and !exists for a zero row. */
template <int ROWS, int WARPS, int COLS>
__device__ inline void attn_load_share(bf16 *tile, const bf16 *lane_row, bool exists)
{
    constexpr int SHARE = ROWS / WARPS, UNITS = COLS / 8; /* of 16 bytes */
    unsigned mask = __ballot_sync(0xffffffffu, exists);
    int lane = attn_lane();

    tile += threadIdx.x / 32 * SHARE * attn_pitch<COLS>;
#pragma unroll
    for (int i = 0; i < SHARE * UNITS / 32; i++) {
        int row = (i * 32 + lane) / UNITS, unit = (i * 32 + lane) % UNITS;
        uint64_t src = __shfl_sync(0xffffffffu, (uint64_t)lane_row, row);

        attn_copy16(tile + row * attn_pitch<COLS> + unit * 8, (const bf16 *)src + unit * 8, mask >> row & 1);
    }
}

/* Copies columns col.. of keys key..key + ROWS of k or v; those outside [keys.first, keys.end) become zero.
 */
template <int ROWS, int WARPS, int COLS>
__device__ inline void attn_load_keys(bf16 *tile, const bf16 *base, const attn_keys &keys, bool is_value,
                                      int key, int col)
{
    constexpr int SHARE = ROWS / WARPS;
    int j = key + threadIdx.x / 32 * SHARE + attn_lane() % SHARE;
    bool exists = j >= keys.first && j < keys.end;
    int64_t k_row, v_row;

    attn_key_row(keys, exists ? j : keys.first, &k_row, &v_row);
    attn_load_share<ROWS, WARPS, COLS>(tile, base + (is_value ? v_row : k_row) + col, exists);
}

/* Copies rows of a packed tensor; `rows` of them exist. */
template <int ROWS, int COLS, int THREADS>
__device__ inline void attn_load_rows(bf16 *tile, const bf16 *base, int64_t stride, int rows)
{
    constexpr int UNITS = COLS / 8;

#pragma unroll 4
    for (int i = threadIdx.x; i < ROWS * UNITS; i += THREADS) {
        int row = i / UNITS, unit = i % UNITS;
        bool is_valid = row < rows;

        attn_copy16(tile + row * attn_pitch<COLS> + unit * 8, base + (is_valid ? row : 0) * stride + unit * 8,
                    is_valid);
    }
}

#endif
