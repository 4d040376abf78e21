/* An order of tokens in which those of equal rows are adjacent: the first half of the backward pass of the
 * embedding (embed.cu has the measurements). */
#ifndef RK_EMBED_ORDER_CUH
#define RK_EMBED_ORDER_CUH

#include "kernels/cuda/cuda_common.cuh"

/* Tokens, and their rows. */
struct embed_tokens {
    const int32_t *tokens;
    uint32_t vocab_begin, num_rows;
    int32_t num_tokens;
};

/* A place in the order. Places first..end-1 have the same row. */
struct alignas(16) embed_entry {
    int32_t row, t, first, end;
};

struct embed_order {
    embed_entry *entries; /* [num_entries]: tokens of other ranks have no place */
    int *num_entries;
    int *counters; /* num_counters of them are set to zero */
    int num_counters;
};

/* A key is a permuted row number, so that adjacent rows are spread over the blocks, with at least SORT_BITS
 * bits. A block of the sort has the tokens of SORT_KEYS keys. */
constexpr int SORT_BITS = 18, SORT_KEYS = 2048;
constexpr uint32_t SORT_FACTOR = 2654435769, SORT_INVERSE = 340573321; /* inverse modulo 2^32: their product
                                                                        * is 1 */
/* Tokens processed together: by a thread and by a block. */
constexpr int SORT_THREADS = 512, SORT_WARPS = SORT_THREADS / 32;
constexpr int SORT_LOADS = 8192 / SORT_THREADS, SORT_TILE = SORT_LOADS * SORT_THREADS;
/* ... and capacity of the list of those with equal keys. */
constexpr int SORT_LISTED = 4096;

struct sort_shared {
    alignas(16) int first[SORT_KEYS + 4]; /* number of tokens per key; then the first of their places */
    alignas(16) int next[SORT_KEYS];      /* the next place */
    int list[SORT_LISTED];                /* SORT_KEYS * (token - first of the tile) + key */
    int sums[SORT_WARPS];
    int num_lower; /* tokens with smaller keys than the block's */
};

/* Keys of a thread's tokens, minus the block's first key: 0..SORT_KEYS-1 if they belong to the block,
 * negative if they come before. */
typedef int sort_keys[SORT_LOADS];

__device__ __forceinline__ int key_of(uint32_t row, uint32_t mask)
{
    return (int)(row * SORT_FACTOR & mask) - (int)blockIdx.x * SORT_KEYS;
}

__device__ __forceinline__ int32_t row_of(int key, uint32_t mask)
{
    return (int32_t)((uint32_t)(key + (int)blockIdx.x * SORT_KEYS) * SORT_INVERSE & mask);
}

__device__ __forceinline__ bool is_own(int key)
{
    return (unsigned)key < (unsigned)SORT_KEYS;
}

/* Tokens of a tile: a warp has consecutive ones. */
__device__ __forceinline__ int32_t tile_token(int i)
{
    return (int32_t)(threadIdx.x / 32 * SORT_LOADS + i) * 32 + (int32_t)threadIdx.x % 32;
}

__device__ __forceinline__ void load_keys(sort_keys &keys, const embed_tokens &all, int32_t base,
                                          uint32_t mask)
{
#pragma unroll
    for (int i = 0; i < SORT_LOADS; i++) {
        int32_t t = base + tile_token(i);

        keys[i] = t < all.num_tokens ? all.tokens[t] : -1;
    }
#pragma unroll
    for (int i = 0; i < SORT_LOADS; i++) {
        uint32_t row = (uint32_t)keys[i] - all.vocab_begin;

        keys[i] = keys[i] >= 0 && row < all.num_rows ? key_of(row, mask) : INT32_MAX;
    }
}

__device__ __forceinline__ void count_keys(sort_shared &shared, const sort_keys &keys)
{
    int lower = 0;

#pragma unroll
    for (int i = 0; i < SORT_LOADS; i++) {
        lower += keys[i] < 0;
        if (is_own(keys[i]))
            atomicAdd(&shared.first[keys[i]], 1);
    }
    lower = __reduce_add_sync(~0u, lower);
    if (threadIdx.x % 32 == 0)
        atomicAdd(&shared.num_lower, lower);
}

/* Sums over the warps before this one, and over all; `value` is uniform in a warp. Called by all threads. */
__device__ __forceinline__ int sum_of_warps(sort_shared &shared, int value, int *total)
{
    int sum = 0;

    *total = 0;
    __syncthreads(); /* earlier values have been read */
    shared.sums[threadIdx.x / 32] = value;
    __syncthreads(); /* the values are written */
    for (int warp = 0; warp < SORT_WARPS; warp++) {
        sum += warp < (int)threadIdx.x / 32 ? shared.sums[warp] : 0;
        *total += shared.sums[warp];
    }
    return sum;
}

/* Turns counts into places. Called by all threads. */
__device__ __forceinline__ void place_keys(sort_shared &shared)
{
    constexpr int OWN = SORT_KEYS / SORT_THREADS;
    int key = (int)threadIdx.x * OWN, lane = (int)threadIdx.x % 32, counts[OWN], sum = 0, place, total;

#pragma unroll
    for (int i = 0; i < OWN; i++)
        sum += counts[i] = shared.first[key + i];
    place = sum;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        int other = __shfl_up_sync(~0u, place, step);

        place += lane >= step ? other : 0;
    }
    total = __shfl_sync(~0u, place, 31);
    place += shared.num_lower - sum + sum_of_warps(shared, total, &total);
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        shared.first[key + i] = shared.next[key + i] = place;
        place += counts[i];
    }
    if (threadIdx.x == SORT_THREADS - 1)
        shared.first[SORT_KEYS] = place;
}

/* Assigns places to the listed tokens in order. Called by the first warp. */
__device__ __forceinline__ void place_listed(sort_shared &shared, embed_entry *entries, int num, int32_t base,
                                             uint32_t mask)
{
    for (int begin = 0; begin < num; begin += 32) {
        bool is_there = begin + (int)threadIdx.x < num;
        int item = is_there ? shared.list[begin + threadIdx.x] : 0, key = item % SORT_KEYS, place = 0;
        unsigned equal = __match_any_sync(~0u, is_there ? key : -1);
        unsigned before = equal & ((1u << threadIdx.x) - 1);

        if (is_there)
            place = shared.next[key] + __popc(before);
        __syncwarp(); /* all lanes have read */
        if (is_there && before == 0)
            shared.next[key] += __popc(equal);
        __syncwarp(); /* the next lanes may read */
        if (is_there)
            entries[place] = {row_of(key, mask), base + item / SORT_KEYS, shared.first[key],
                              shared.first[key + 1]};
    }
}

/* Assigns places to the block's tokens of a tile: at once if the key occurs once, otherwise in the order of a
 * list. */
__device__ __forceinline__ void place_tokens(sort_shared &shared, embed_entry *entries, const sort_keys &keys,
                                             int32_t base, uint32_t mask)
{
    unsigned votes[SORT_LOADS], before = (1u << threadIdx.x % 32) - 1;
    int num = 0, at;

#pragma unroll
    for (int i = 0; i < SORT_LOADS; i++) {
        int first = is_own(keys[i]) ? shared.first[keys[i]] : 0;
        int end = is_own(keys[i]) ? shared.first[keys[i] + 1] : 0;

        if (end - first == 1)
            entries[first] = {row_of(keys[i], mask), base + tile_token(i), first, end};
        votes[i] = __ballot_sync(~0u, end - first > 1);
        num += __popc(votes[i]);
    }
    at = sum_of_warps(shared, num, &num);
    for (int begin = 0; begin < num; begin += SORT_LISTED) {
        int next = at - begin;

#pragma unroll
        for (int i = 0; i < SORT_LOADS; i++) {
            int own = next + __popc(votes[i] & before);

            if ((votes[i] >> threadIdx.x % 32 & 1) && own >= 0 && own < SORT_LISTED)
                shared.list[own] = tile_token(i) * SORT_KEYS + keys[i];
            next += __popc(votes[i]);
        }
        __syncthreads(); /* the list is complete */
        if (threadIdx.x < 32)
            place_listed(shared, entries, RK_MIN(num - begin, SORT_LISTED), base, mask);
        __syncthreads(); /* ... and read */
    }
}

/* Order by (key, t). Every block reads all tokens. */
__global__ void __launch_bounds__(SORT_THREADS)
    embed_sort_kernel(embed_order order, embed_tokens all, uint32_t mask)
{
    __shared__ sort_shared shared;
    sort_keys keys;

    for (int i = (int)threadIdx.x; i < SORT_KEYS; i += SORT_THREADS)
        shared.first[i] = 0;
    if (threadIdx.x == 0)
        shared.num_lower = 0;
    if (threadIdx.x == 0 && rk_aligned16(all.tokens))
        rk_prefetch(all.tokens, RK_MIN(all.num_tokens, SORT_TILE) / 4 * 16);
    rk_wait_for_previous(); /* thread blocks of the next kernel would slow these down */
    for (int i = (int)(blockIdx.x * SORT_THREADS + threadIdx.x); i < order.num_counters;
         i += (int)(gridDim.x * SORT_THREADS))
        order.counters[i] = 0;
    __syncthreads(); /* the counts are 0 */
    for (int32_t base = 0; base < all.num_tokens; base += SORT_TILE) {
        load_keys(keys, all, base, mask);
        count_keys(shared, keys);
    }
    __syncthreads(); /* all are counted */
    place_keys(shared);
    __syncthreads(); /* the places are written */
    if (threadIdx.x == 0 && blockIdx.x == gridDim.x - 1)
        *order.num_entries = shared.first[SORT_KEYS];
    for (int32_t base = 0; base < all.num_tokens; base += SORT_TILE) {
        if (all.num_tokens > SORT_TILE)
            load_keys(keys, all, base, mask);
        place_tokens(shared, order.entries, keys, base, mask);
    }
}

#endif
