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
/* rmsnorm_bwd: partial sums of dweight. A constant, not the number of SMs: the bits of dweight depend on it.
 * 256 is two blocks on each SM of an H200, and partial sums are 3% of the traffic at 8192 x 1536. */
constexpr int RK_TILE_NORM_PARTS = 256;
/* ... rows on their way to shared memory, and how much of that they may take. */
constexpr int RK_TILE_NORM_STAGES = 4;
constexpr int RK_TILE_NORM_STAGE_BYTES = 200 << 10;
/* bias_bwd: blocks in all, a constant for the same reason, and partial sums that they make of a column. */
constexpr int RK_TILE_BIAS_BLOCKS = 576;
constexpr int RK_TILE_BIAS_PARTS_MAX = 128;
constexpr int RK_TILE_BIAS_ROWS = 8;   /* rows of threads of a block */
constexpr int RK_TILE_BIAS_UNROLL = 4; /* rows in flight a thread */
/* One block of 32 x 32 threads adds up the partial sums of 32 columns. */
constexpr int RK_TILE_COLUMN_FINISH = 32;

/* Softmax over a row of the vocabulary, in the statistics and in sampling alike, so that both have the same
 * bits. */
constexpr int RK_TILE_VOCAB_THREADS = 512;
/* Packs in flight a thread; 2 were 7% slower. */
constexpr int RK_TILE_VOCAB_UNROLL = 4;

/* Parts of a row that can be taken by a block each: the sampler's blocks a row. */
constexpr int RK_TILE_VOCAB_CHUNKS = 8;

/* embed_bwd: sorted tokens of a block, and how many of their rows are loaded together. */
constexpr int RK_TILE_EMBED_THREADS_MAX = 512;
constexpr int RK_TILE_EMBED_SEGMENT = 32;
constexpr int RK_TILE_EMBED_UNROLL = 4;

/* sum_squares: partial sums, a constant for the same reason as above, and threads of the block that adds
 * them. */
constexpr int RK_TILE_SUM_PARTS = 1024;

/* gemm_chain: output tile of a block of 128 threads, and the part of K that is staged at a time. */
constexpr int RK_TILE_CHAIN_M = 64;
constexpr int RK_TILE_CHAIN_N = 64;
constexpr int RK_TILE_CHAIN_K = 32;
constexpr int RK_TILE_CHAIN_THREADS = 128;

#endif
