/* A row of logits and the thread blocks that share it: a cluster of RK_TILE_VOCAB_CHUNKS blocks on GPUs with
 * clusters (compute capability 9.0 and later), otherwise one block. Both run the same code and are
 * bit-identical. */
#ifndef RK_CUDA_SAMPLE_TEAM_CUH
#define RK_CUDA_SAMPLE_TEAM_CUH

#include "kernels/cuda/vocab/vocab_common.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define RK_HAS_CLUSTERS 1
#else
#define RK_HAS_CLUSTERS 0
#endif

/* --- the team --- */

__device__ __forceinline__ unsigned team_rank()
{
    unsigned rank = 0;

#if RK_HAS_CLUSTERS
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
    return rank;
}

__device__ __forceinline__ unsigned team_size()
{
    unsigned size = 1;

#if RK_HAS_CLUSTERS
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
#endif
    return size;
}

/* Barrier of all threads of all blocks; makes earlier writes to shared memory visible. */
__device__ __forceinline__ void team_sync()
{
#if RK_HAS_CLUSTERS
    asm volatile("barrier.cluster.arrive;\n"
                 "barrier.cluster.wait;" ::
                     : "memory");
#else
    __syncthreads();
#endif
}

/* Address in another block of the variable `shared`. */
template <class A> __device__ __forceinline__ const A *team_at(const A *shared, unsigned rank)
{
#if RK_HAS_CLUSTERS
    const A *there;

    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(shared), "r"(rank));
    return there;
#else
    (void)rank;
    return shared;
#endif
}

typedef unsigned long long rk_u64;

/* --- the row --- */

/* A row and the chunks of it that this block processes. */
template <class T> struct team_row {
    vocab_row<T> row;
    int first_chunk, end_chunk;
    int64_t begin, end; /* columns */
};

template <class T> __device__ __forceinline__ team_row<T> make_team_row(const vocab_row<T> &row)
{
    int64_t chunk = chunk_steps_of(row) * VOCAB_STEP;
    int share = RK_TILE_VOCAB_CHUNKS / (int)team_size(), first = (int)team_rank() * share;

    return {row, first, first + share, RK_MIN(first * chunk, row.count),
            RK_MIN((first + share) * chunk, row.count)};
}

/* The pack that starts at `column`; zeros beyond this block's columns. */
template <class T>
__device__ __forceinline__ rk_pack<T, RK_TILE_PACK> team_pack(const team_row<T> &own, int64_t column)
{
    return rk_load<RK_TILE_PACK>(own.row.logits + column, own.end - column, own.row.aligned);
}

/* --- statistics --- */

/* A thread's part of a row, without the moment. */
struct team_part {
    float max, exponent;
    double sum;
};

/* Shared memory for the parts of this block's threads, valid until the second team_sync() from here. */
__device__ __forceinline__ team_part *team_parts()
{
    __shared__ team_part parts[RK_TILE_VOCAB_THREADS];

    return parts;
}

template <class T, class Keep>
__device__ __forceinline__ void team_share_softmax(const team_row<T> &own, Keep keep)
{
    softmax_part part = softmax_thread(own.row, keep, own.first_chunk, own.end_chunk);

    team_parts()[threadIdx.x] = {part.max, part.exponent, part.sum};
}

/* Merges the kept columns of the row, after a team_sync(), in all threads of the calling block: bit-identical
 * to softmax_block() with one block for the whole row. Without the moment. */
__device__ __forceinline__ softmax_part team_merge_softmax()
{
    softmax_part total;

    for (unsigned rank = 0; rank < team_size(); rank++) {
        team_part there = team_at(team_parts(), rank)[threadIdx.x];
        softmax_part part = {there.max, there.exponent, there.sum, 0.0};

        if (rank == 0)
            total = part;
        else
            softmax_merge(total, part);
    }
    return softmax_block(total);
}

/* The result is in all threads of the team. */
template <class T, class Keep>
__device__ __forceinline__ softmax_part team_softmax(const team_row<T> &own, Keep keep)
{
    __shared__ softmax_part result;

    team_share_softmax(own, keep);
    team_sync(); /* all parts are written */
    if (team_rank() == 0) {
        softmax_part part = team_merge_softmax();

        if (threadIdx.x == 0)
            result = part;
    }
    team_sync(); /* the result is written */
    return *team_at(&result, 0);
}

#endif
