/* Every tile choice of the kernels in kernels/cuda/ but attention's and gemm_small_sm90.cu's, which has a
 * table of its own for the clock to choose from, in one place. Threads of a block unless said otherwise.
 * Measured on H200; sm_80 takes the same ones. */
#ifndef RK_CUDA_TILE_TABLE_H
#define RK_CUDA_TILE_TABLE_H

/* Elements that a thread loads at once: 16 bytes of a 16-bit type. Equal for all dtypes, so that the order of
 * sums in a row is too. */
constexpr int RK_TILE_PACK = 8;

/* Passes over flat memory and over rows without a sum. */
constexpr int RK_TILE_FLAT_THREADS = 256;

/* rope: heads of a thread. */
constexpr unsigned RK_TILE_ROPE_HEADS = 2;

/* rmsnorm: one block a row, up to this many packs of the row a thread. */
constexpr int RK_TILE_NORM_THREADS_MAX = 512;
constexpr int RK_TILE_NORM_PACKS_MAX = 4;
/* rmsnorm_bwd: blocks, and so partial sums of dweight. A constant, not the number of SMs: the bits of dweight
 * depend on it. 132 is one block an SM of an H200. */
constexpr int RK_TILE_NORM_PARTS = 132;
/* ... threads of a block, in groups of which each takes a row at a time, and the rows of a group in shared
 * memory, the one that is being read and those on their way. More of them on their way were slower. */
constexpr int RK_TILE_NORM_GROUPED_THREADS = 896;
constexpr int RK_TILE_NORM_GROUPS_MAX = 14;
constexpr int RK_TILE_NORM_STAGES = 2;
/* ... shared memory of several groups, and what else a block has: together 99 KiB, which all GPUs have. */
constexpr int RK_TILE_NORM_GROUP_BYTES = 92 << 10;
constexpr int RK_TILE_NORM_STATIC_BYTES = 7 << 10;
/* head_norm: threads of a block; blocks of the backward pass, a constant for the same reason. */
constexpr int RK_TILE_HEAD_NORM_THREADS = 256;
constexpr int RK_TILE_HEAD_NORM_PARTS = 528;
/* Rows of 32 threads that add up the partial sums of 32 columns (column_sum.cuh). */
constexpr int RK_TILE_COLUMN_ROWS = 32;
/* bias_bwd: blocks in all, a constant for the same reason. */
constexpr int RK_TILE_BIAS_BLOCKS = 264;
constexpr int RK_TILE_BIAS_LANES = 16;  /* threads of a block side by side, a pack each */
constexpr int RK_TILE_BIAS_ROWS = 16;   /* rows of these */
constexpr int RK_TILE_BIAS_UNROLL = 8;  /* rows in flight a thread */
constexpr int RK_TILE_BIAS_PER_SM = 2;  /* room for more is taken unevenly */
constexpr int RK_TILE_BIAS_AHEAD = 160; /* rows of a part that are on their way to L2 before */

/* project: warps of a block; columns of the scores at a time where there is more than one. Forward: rows of a
 * warp, and packs of each in flight a lane. */
constexpr int RK_TILE_PROJECT_WARPS = 8;
constexpr int RK_TILE_PROJECT_COLS = 4;
constexpr int RK_TILE_PROJECT_FWD_ROWS = 2;
constexpr int RK_TILE_PROJECT_FWD_UNROLL = 3;
/* ... backward: blocks in all, a constant for the same reason, and rows in flight a warp. */
constexpr int RK_TILE_PROJECT_BLOCKS = 264;
constexpr int RK_TILE_PROJECT_BWD_ROWS = 8;

/* Softmax over a row of the vocabulary, in the statistics and in sampling alike, so that both have the same
 * bits. */
constexpr int RK_TILE_VOCAB_THREADS = 512;
/* Packs in flight a thread; 2 were 7% slower. */
constexpr int RK_TILE_VOCAB_UNROLL = 4;

/* vocab_stats: bytes of a thread that are copied to shared memory at a time, and how many of these batches
 * are there, on their way or being read. */
constexpr int RK_TILE_VOCAB_STAGE_BYTES = 64;
constexpr int RK_TILE_VOCAB_STAGES = 3;

/* Parts of a row that can be taken by a block each: the sampler's blocks a row. */
constexpr int RK_TILE_VOCAB_CHUNKS = 8;

/* embed_bwd: sorted tokens of a block, how many of their rows are loaded together, and of how many tokens a
 * row's sum is one chain. */
constexpr int RK_TILE_EMBED_PACK = 4;
constexpr int RK_TILE_EMBED_THREADS_MAX = 448;
constexpr int RK_TILE_EMBED_BLOCKS = 3;
constexpr int RK_TILE_EMBED_SEGMENT = 4;
constexpr int RK_TILE_EMBED_UNROLL = 2;
constexpr int RK_TILE_EMBED_PIECE = 32;

/* sum_squares: partial sums, a constant for the same reason as above, and threads of the block that adds
 * them. */
constexpr int RK_TILE_SUM_PARTS = 1024;

/* gemm_chain: output tile of a block of 128 threads, and the part of K that is staged at a time. */
constexpr int RK_TILE_CHAIN_M = 64;
constexpr int RK_TILE_CHAIN_N = 64;
constexpr int RK_TILE_CHAIN_K = 32;
constexpr int RK_TILE_CHAIN_THREADS = 128;

#endif
