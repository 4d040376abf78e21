/* Tile sizes of all kernels in kernels/cuda/, except attention's and those of gemm_small_sm90.cu, which has
 * its own table from which timings select. Values are threads per block unless said otherwise. Measured on
 * H200; sm_80 uses the same values. */
#ifndef RK_CUDA_TILE_TABLE_H
#define RK_CUDA_TILE_TABLE_H

/* Elements that a thread loads at once: 16 bytes of a 16-bit type. The same for all dtypes, so that the order
 * of sums in a row is, too. */
constexpr int RK_TILE_PACK = 8;

/* Passes over flat memory and over rows, without sums. */
constexpr int RK_TILE_FLAT_THREADS = 256;

/* rope: heads per thread. */
constexpr unsigned RK_TILE_ROPE_HEADS = 2;

/* rmsnorm: one block per row; maximum packs of the row per thread. */
constexpr int RK_TILE_NORM_THREADS_MAX = 512;
constexpr int RK_TILE_NORM_PACKS_MAX = 4;
/* rmsnorm_bwd: number of blocks, which is that of partial sums of dweight. A constant, not the number of SMs:
 * the bits of dweight depend on it. 132 is one block an SM of an H200. */
constexpr int RK_TILE_NORM_PARTS = 132;
/* ... threads per block, in groups that process one row at a time, and rows per group in shared memory: the
 * one being read and those in flight. More rows in flight were slower. */
constexpr int RK_TILE_NORM_GROUPED_THREADS = 896;
constexpr int RK_TILE_NORM_GROUPS_MAX = 14;
constexpr int RK_TILE_NORM_STAGES = 2;
/* ... shared memory of several groups; together with the rest of a block's at most 99 KiB, which all
 * supported GPUs have. */
constexpr int RK_TILE_NORM_GROUP_BYTES = 92 << 10;
constexpr int RK_TILE_NORM_STATIC_BYTES = 7 << 10;
/* head_norm: threads per block; blocks of the backward pass, a constant for the same reason. */
constexpr int RK_TILE_HEAD_NORM_THREADS = 256;
constexpr int RK_TILE_HEAD_NORM_PARTS = 528;
/* Rows of 32 threads that add the partial sums of 32 columns (column_sum.cuh). */
constexpr int RK_TILE_COLUMN_ROWS = 32;
/* bias_bwd: total number of blocks, a constant for the same reason. */
constexpr int RK_TILE_BIAS_BLOCKS = 264;
constexpr int RK_TILE_BIAS_LANES = 16;  /* threads in x, one pack each */
constexpr int RK_TILE_BIAS_ROWS = 16;   /* threads in y */
constexpr int RK_TILE_BIAS_UNROLL = 8;  /* rows in flight per thread */
constexpr int RK_TILE_BIAS_PER_SM = 2;  /* more blocks per SM would be distributed unevenly */
constexpr int RK_TILE_BIAS_AHEAD = 160; /* rows of a part that are prefetched to L2 */

/* project: warps per block; columns of the scores at a time if there are several. Forward: rows per warp, and
 * packs of each in flight per lane. */
constexpr int RK_TILE_PROJECT_WARPS = 8;
constexpr int RK_TILE_PROJECT_COLS = 4;
constexpr int RK_TILE_PROJECT_FWD_ROWS = 2;
constexpr int RK_TILE_PROJECT_FWD_UNROLL = 3;
/* ... backward: total number of blocks, a constant for the same reason, and rows in flight per warp. */
constexpr int RK_TILE_PROJECT_BLOCKS = 264;
constexpr int RK_TILE_PROJECT_BWD_ROWS = 8;

/* Softmax over a row of the vocabulary, in statistics and sampling alike, so that both are bit-identical. */
constexpr int RK_TILE_VOCAB_THREADS = 512;
/* Packs in flight per thread; 2 were 7% slower. */
constexpr int RK_TILE_VOCAB_UNROLL = 4;

/* vocab_stats: bytes per thread that are copied to shared memory at a time, and the number of such batches in
 * flight or being read. */
constexpr int RK_TILE_VOCAB_STAGE_BYTES = 64;
constexpr int RK_TILE_VOCAB_STAGES = 3;

/* Chunks of a row, each of which one block can process: the sampler's blocks per row. */
constexpr int RK_TILE_VOCAB_CHUNKS = 8;

/* embed_bwd: sorted tokens per block, rows loaded together, and the maximum number of tokens that a row's sum
 * adds in one chain. */
constexpr int RK_TILE_EMBED_PACK = 4;
constexpr int RK_TILE_EMBED_THREADS_MAX = 448;
constexpr int RK_TILE_EMBED_BLOCKS = 3;
constexpr int RK_TILE_EMBED_SEGMENT = 4;
constexpr int RK_TILE_EMBED_UNROLL = 2;
constexpr int RK_TILE_EMBED_PIECE = 32;

/* sum_squares: number of partial sums, a constant for the same reason, and threads of the block that adds
 * them. */
constexpr int RK_TILE_SUM_PARTS = 1024;

/* moe_balance: maximum number of blocks, whose partial sums one block adds, and warps of a block. */
constexpr int RK_TILE_BALANCE_PARTS = 128;
constexpr int RK_TILE_BALANCE_WARPS = 4;

/* gemm_chain: output tile of a block of 128 threads, and columns of K that are staged at a time. */
constexpr int RK_TILE_CHAIN_M = 64;
constexpr int RK_TILE_CHAIN_N = 64;
constexpr int RK_TILE_CHAIN_K = 32;
constexpr int RK_TILE_CHAIN_THREADS = 128;

#endif
