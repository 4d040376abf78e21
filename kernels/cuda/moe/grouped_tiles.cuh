/* The tiles of grouped_gemm_sm90.cuh, and the order in which clusters take them. */
#ifndef RK_CUDA_GROUPED_TILES_CUH
#define RK_CUDA_GROUPED_TILES_CUH

#include "kernels/cuda/attention/attn_sm90.cuh"
#include "kernels/cuda/cuda_common.cuh"

namespace
{

/* The dimension that a GEMM sums over. The 128 rows of a tile come from the matrix of the group (A) or, for
 * its gradient, from dy; the 256 columns from the rows of the group (B) or, for the gradient, from the
 * columns of x:
 */
enum grouped_kind {
    GROUPED_OUTPUT, /* y[r][m] = sum_k x[r][k] w[m][k]:   A = w,   B = x;  k contiguous in both */
    GROUPED_SWIGLU, /* the same, and then silu(gate) * up * prob of y = [gate; up]: the 128 rows of A in a
                     * tile are 64 of gate and the 64 of up that belong to them */
    GROUPED_INPUT,  /* y[r][m] = sum_k x[r][k] w[k][m]:   A = w^T, B = x */
    GROUPED_WEIGHT, /* dw[m][n] = sum_r dy[r][m] x[r][n]: A = dy^T, B = x^T */
};

constexpr int GROUPED_M = 128, GROUPED_N = 256, GROUPED_K = 64, GROUPED_CLUSTER = 2;
constexpr int GROUPED_NARROW = 64; /* columns of the tiles for groups of few rows */
constexpr int GROUPED_MAX_STAGES = 8;
constexpr int GROUPED_CONSUMERS = 256, GROUPED_THREADS = GROUPED_CONSUMERS + 128;
constexpr int GROUPED_BOX = 64 * GROUPED_K; /* elements of a box of 64 rows or columns */
constexpr int GROUPED_A = GROUPED_M * GROUPED_K;
constexpr int GROUPED_MAX_GROUPS = 1024;

/* Elements and number of the stages of A and B for tiles of TN columns. Narrow tiles are bound by memory:
 * they have more loads in flight. */
template <int TN> constexpr int GROUPED_STAGE = GROUPED_A + TN *GROUPED_K;
template <int TN> constexpr int GROUPED_STAGES = TN == GROUPED_N ? 3 : GROUPED_MAX_STAGES;
template <int TN>
constexpr int GROUPED_SHARED_BYTES =
    (GROUPED_STAGES<TN> * GROUPED_STAGE<TN> + GROUPED_CONSUMERS / 128 * 64 * TN) * 2 + 1024;

struct grouped_args {
    void *out;
    const int *offsets; /* [num_groups + 1] */
    int num_groups;
    int m;              /* rows of operand A in tiles: columns of y, or rows of dw */
    int num_cols;       /* of a row of the output that is y; GROUPED_SWIGLU: half of y's */
    const float *probs; /* GROUPED_SWIGLU: of each row, or NULL */
    int n;              /* GROUPED_WEIGHT: columns of dw */
    int k;              /* summed elements; with GROUPED_WEIGHT the rows of each group */
    int64_t ldc;        /* of a row of the output */
    bool overwrites;    /* GROUPED_WEIGHT: = instead of += */
    int *counters;      /* next tile, and finished clusters; zero between calls */
};

struct grouped_maps {
    CUtensorMap a, b, c;
};

/* 128 x up to 256 outputs of a thread block; the two blocks of a cluster have adjacent rows of A and the same
 * B. */
struct grouped_tile {
    int group, m;  /* first row of A */
    int n, num_n;  /* first row of B (GROUPED_WEIGHT: column), and the number used */
    int first_row; /* of the group */
    int num_k;     /* of the sum */
};

#if RK_ATTN_HAS_SM90

/* --- tiles --- */

/* Tiles of a cluster along A, of two thread blocks. */
__device__ inline int tiles_along_a(const grouped_args &args)
{
    return (args.m + GROUPED_CLUSTER * GROUPED_M - 1) / (GROUPED_CLUSTER * GROUPED_M);
}

/* The order of the tiles. Each cluster takes the next one when it is free, so that groups may have any size:
 *   GROUPED_WEIGHT  groups with more rows first; all tiles of a group take equally long
 *   others          group after group; narrow tiles, bound by memory, run beside wide ones */
struct grouped_groups {
    int offsets[GROUPED_MAX_GROUPS + 1];
    int begin[GROUPED_MAX_GROUPS];   /* index of each group's first tile; not for GROUPED_WEIGHT */
    short order[GROUPED_MAX_GROUPS]; /* GROUPED_WEIGHT: groups that have tiles */
    int num_tiles;
};

/* Tiles of a group of GROUPED_WEIGHT. */
template <int TN> __device__ inline int tiles_of_weight(const grouped_args &args)
{
    return tiles_along_a(args) * ((args.n + TN - 1) / TN);
}

/* Called by one warp: the offsets, and for rows the index of each group's first tile. */
template <int KIND, int TN>
__device__ inline void count_tiles(const grouped_args &args, grouped_groups *groups)
{
    int lane = threadIdx.x % 32, total = 0, num_m = tiles_along_a(args);

    for (int first = 0; first < args.num_groups; first += 32) {
        int group = first + lane, count = 0, sum;

        if (group < args.num_groups) {
            int offset = args.offsets[group];

            count = num_m * ((args.offsets[group + 1] - offset + TN - 1) / TN);
            groups->offsets[group] = offset;
        }
        sum = count;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            int below = __shfl_up_sync(0xffffffff, sum, step);

            sum += lane >= step ? below : 0;
        }
        if (group < args.num_groups)
            groups->begin[group] = total + sum - count;
        total += __shfl_sync(0xffffffff, sum, 31);
    }
    if (lane == 0) {
        groups->offsets[args.num_groups] = args.offsets[args.num_groups];
        groups->num_tiles = KIND == GROUPED_WEIGHT ? 0 : total;
    }
}

/* Called by all threads, when the offsets are there: the groups of GROUPED_WEIGHT by descending rows, equal
 * ones by ascending number. A group without rows has a gradient of zero, which must be written or need not
 * be added. */
template <int TN> __device__ inline void sort_groups(const grouped_args &args, grouped_groups *groups)
{
    for (int group = threadIdx.x; group < args.num_groups; group += GROUPED_THREADS) {
        int rows = groups->offsets[group + 1] - groups->offsets[group], rank = 0;

        if (rows == 0 && !args.overwrites)
            continue;
        for (int other = 0; other < args.num_groups; other++) {
            int other_rows = groups->offsets[other + 1] - groups->offsets[other];

            rank += other_rows > rows || (other_rows == rows && other < group);
        }
        groups->order[rank] = (short)group;
        atomicAdd(&groups->num_tiles, tiles_of_weight<TN>(args));
    }
}

/* The group of a tile of rows. */
__device__ inline int find_group(const grouped_args &args, const grouped_groups &groups, int index)
{
    int low = 0, high = args.num_groups;

    while (high - low > 1) { /* low begins at or before index, high after it */
        int middle = (low + high) / 2;

        if (groups.begin[middle] <= index)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Tile `index` of the cluster, for its block `rank`. */
template <int KIND, int TN>
__device__ inline grouped_tile find_tile(const grouped_args &args, const grouped_groups &groups, int index,
                                         int rank)
{
    int num_m = tiles_along_a(args), rest, num_rows;
    grouped_tile tile;

    if (KIND == GROUPED_WEIGHT) {
        tile.group = groups.order[index / tiles_of_weight<TN>(args)];
        rest = index % tiles_of_weight<TN>(args);
    } else {
        tile.group = find_group(args, groups, index);
        rest = index - groups.begin[tile.group];
    }
    tile.first_row = groups.offsets[tile.group];
    num_rows = groups.offsets[tile.group + 1] - tile.first_row;
    tile.m = (rest % num_m * GROUPED_CLUSTER + rank) * GROUPED_M;
    tile.n = rest / num_m * TN;
    if (KIND == GROUPED_WEIGHT) {
        tile.num_n = min(args.n - tile.n, TN);
        tile.num_k = num_rows;
    } else {
        tile.num_n = min(num_rows - tile.n, TN);
        tile.n += tile.first_row;
        tile.num_k = args.k;
    }
    return tile;
}

#endif

} // namespace

#endif
