/* Top-k and top-p: the border between what is kept and what is not, found by a search over the bits of a key,
 * two a pass. */
#ifndef RK_CUDA_SAMPLE_FILTER_CUH
#define RK_CUDA_SAMPLE_FILTER_CUH

#include "kernels/cuda/sample_team.cuh"

constexpr int MASS_BITS = 40; /* of the largest probability; 2^18 of them do not overflow 64 bits */

/* --- keys: order of logits as order of integers --- */

__device__ __forceinline__ uint32_t key_of(float z)
{
    uint32_t bits = __float_as_uint(z + 0.0f); /* -0 is 0 */

    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* What the search goes over: z, or the logit itself where it has 16 bits, since z rises with it. */
template <class T> __device__ __forceinline__ uint32_t search_key(T logit, float z)
{
    if constexpr (sizeof(T) == 2) {
        uint16_t bits;

        memcpy(&bits, &logit, sizeof(bits));
        bits = bits == 0x8000u ? 0 : bits;
        return bits & 0x8000u ? (uint16_t)~bits : bits | 0x8000u;
    } else {
        return key_of(z);
    }
}

/* z of that key. */
template <class T> __device__ __forceinline__ float z_of_key(const vocab_row<T> &row, uint32_t key)
{
    if constexpr (sizeof(T) == 2) {
        uint16_t bits = (uint16_t)(key & 0x8000u ? key & 0x7fffu : ~key);
        T logit;

        memcpy(&logit, &bits, sizeof(logit));
        return rk_widen<float>(logit) * row.inv_temperature;
    } else {
        return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
    }
}

/* --- the search --- */

/* Where a sum over keys in ascending order stops. */
struct key_cut {
    uint32_t key;
    rk_u64 below; /* weight of all smaller keys */
};

/* The smallest key (of `bits` bits, an even number) at which the weight, summed from the smallest key up,
 * exceeds `limit`, which the weight of all must. Each pass opens four ranges of keys, and takes the first
 * whose end is beyond the border. */
template <class T, class Key, class Weight>
__device__ __forceinline__ key_cut find_cut(const team_row<T> &own, int &turn, int bits, rk_u64 limit,
                                            Key key_at, Weight weight_at)
{
    key_cut cut = {0, 0};

    for (int shift = bits - 2; shift >= 0; shift -= 2) {
        rk_u64 ranges[3] = {};

        team_visit(own, [&](T logit, float z, int64_t column, int) {
            uint32_t key = key_at(logit, z, column), range = (key - cut.key) >> shift;

            if (key >= cut.key && range < 3) {
                rk_u64 weight = weight_at(logit, z, column);

#pragma unroll
                for (unsigned i = 0; i < 3; i++)
                    ranges[i] += range == i ? weight : 0;
            }
        });
        team_sums(ranges, turn);
#pragma unroll
        for (int i = 0; i < 3 && cut.below + ranges[i] <= limit; i++) {
            cut.below += ranges[i];
            cut.key += 1u << shift;
        }
    }
    return cut;
}

/* Weight of all columns. */
template <class T, class Weight>
__device__ __forceinline__ rk_u64 total_weight(const team_row<T> &own, int &turn, Weight weight_at)
{
    rk_u64 sum[1] = {0};

    team_visit(own, [&](T logit, float z, int64_t column, int) { sum[0] += weight_at(logit, z, column); });
    team_sums(sum, turn);
    return sum[0];
}

/* --- filters --- */

/* What a filter keeps: z above that of `key`, and of those equal to it ids up to last_id. */
struct kept {
    static constexpr bool KEEPS_ALL = false;

    uint32_t key; /* key_of(z) */
    int64_t last_id;

    __device__ __forceinline__ bool operator()(float z, int64_t column) const
    {
        uint32_t mine = key_of(z);

        return mine > key || (mine == key && column <= last_id);
    }
};

/* Keeps every z not below the k-th largest. */
template <class T> __device__ __noinline__ kept filter_top_k(const team_row<T> &own, int turn, int top_k)
{
    key_cut cut = find_cut(
        own, turn, 8 * sizeof(T), (rk_u64)(own.row.count - top_k),
        [](T logit, float z, int64_t) { return search_key(logit, z); },
        [](T, float, int64_t) { return 1ull; });

    return {key_of(z_of_key(own.row, cut.key)), INT64_MAX};
}

__device__ __forceinline__ rk_u64 mass_of(float z, float max)
{
    return (rk_u64)(expf(z - max) * (float)(1ull << MASS_BITS));
}

/* Bits of a number below `count`, made even. */
__device__ __forceinline__ int even_bits(int64_t count)
{
    return (65 - __clzll(count)) / 2 * 2;
}

/* Drops from the smallest up while the sum of what is dropped is at most (1 - p) of the whole; of equal ones
 * the larger ids go. `max` is the largest z. */
template <class T>
__device__ __noinline__ kept filter_top_p(const team_row<T> &own, int turn, kept among, float max,
                                          double top_p)
{
    rk_u64 total, limit, num_dropped, num_equal;
    uint32_t border;
    key_cut cut;
    float z;

    auto mass_at = [=](T, float at, int64_t column) { return among(at, column) ? mass_of(at, max) : 0ull; };
    total = total_weight(own, turn, mass_at);
    limit = (rk_u64)fmin((1.0 - top_p) * (double)total, (double)total);
    limit = limit < total ? limit : total - 1; /* the largest stays */
    cut = find_cut(
        own, turn, 8 * sizeof(T), limit, [](T logit, float at, int64_t) { return search_key(logit, at); },
        mass_at);
    z = z_of_key(own.row, cut.key);
    border = cut.key;
    num_dropped = (limit - cut.below) / mass_of(z, max);
    if (num_dropped == 0)
        return {key_of(z), INT64_MAX};
    auto is_border = [=](T logit, float at, int64_t) {
        return search_key(logit, at) == border ? 1ull : 0ull;
    };
    num_equal = total_weight(own, turn, is_border);
    cut = find_cut(
        own, turn, even_bits(own.row.count), num_equal - num_dropped - 1,
        [](T, float, int64_t column) { return (uint32_t)column; }, is_border);
    return {key_of(z), cut.key};
}

#endif
