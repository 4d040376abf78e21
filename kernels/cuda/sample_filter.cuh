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
template <class T> __device__ __forceinline__ uint32_t search_key(T logit, float inv_temperature)
{
    if constexpr (sizeof(T) == 2) {
        uint16_t bits;

        memcpy(&bits, &logit, sizeof(bits));
        bits = bits == 0x8000u ? 0 : bits;
        return bits & 0x8000u ? (uint16_t)~bits : bits | 0x8000u;
    } else {
        return key_of(rk_widen<float>(logit) * inv_temperature);
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

/* Keys of a pack, as wide as T. */
template <class T> struct key_pack {
    static constexpr int WORDS = rk_pack<T, RK_TILE_PACK>::WORDS;

    uint32_t word[WORDS];

    __device__ __forceinline__ uint32_t get(int i) const
    {
        return sizeof(T) == 2 ? word[i / 2] >> i % 2 * 16 & 0xffffu : word[i];
    }
};

template <class T> __device__ __forceinline__ key_pack<T> make_keys(const team_row<T> &own, int64_t column)
{
    rk_pack<T, RK_TILE_PACK> logits = team_pack(own, column);
    key_pack<T> keys = {};

#pragma unroll
    for (int i = 0; i < RK_TILE_PACK; i++) {
        uint32_t key = search_key(logits.get(i), own.row.inv_temperature);

        if (sizeof(T) == 2)
            keys.word[i / 2] |= key << i % 2 * 16;
        else
            keys.word[i] = key;
    }
    return keys;
}

/* A block's columns as keys: in shared memory, a pack of each thread after the other's, where there is room
 * for them, else made again in every pass. */
template <class T> struct team_keys {
    team_row<T> own;
    key_pack<T> *cache; /* or NULL */
};

/* Each thread reads no other packs than those it wrote. */
template <class T> __device__ __forceinline__ void fill_cache(const team_keys<T> &keys)
{
    key_pack<T> *at = keys.cache + threadIdx.x;

    for (int64_t column = keys.own.begin + threadIdx.x * RK_TILE_PACK; keys.cache && column < keys.own.end;
         column += VOCAB_STEP, at += RK_TILE_VOCAB_THREADS)
        *at = make_keys(keys.own, column);
}

/* Calls visit(key, column) for the block's columns. */
template <class T, class Visit>
__device__ __forceinline__ void visit_keys(const team_keys<T> &keys, Visit visit)
{
    const team_row<T> &own = keys.own;
    const key_pack<T> *at = keys.cache + threadIdx.x;

    for (int64_t column = own.begin + threadIdx.x * RK_TILE_PACK; column < own.end;
         column += VOCAB_STEP, at += RK_TILE_VOCAB_THREADS) {
        key_pack<T> pack;

        if (keys.cache)
            rk_load_words<key_pack<T>::WORDS>(pack.word, at);
        else
            pack = make_keys(own, column);
        if (column + RK_TILE_PACK <= own.end) {
#pragma unroll
            for (int i = 0; i < RK_TILE_PACK; i++)
                visit(pack.get(i), column + i);
        } else {
            for (int i = 0; i < RK_TILE_PACK && column + i < own.end; i++)
                visit(pack.get(i), column + i);
        }
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
 * whose end is beyond the border. W holds what a thread adds up. */
template <class W, class T, class Key, class Weight>
__device__ __forceinline__ key_cut find_cut(const team_keys<T> &keys, int &turn, int bits, rk_u64 limit,
                                            Key key_at, Weight weight_at)
{
    key_cut cut = {0, 0};

    for (int shift = bits - 2; shift >= 0; shift -= 2) {
        W below[3] = {};
        rk_u64 sums[3];
        key_cut start = cut;

        visit_keys(keys, [&](uint32_t key, int64_t column) {
            uint32_t above = key_at(key, column) - start.key; /* wraps for what is below */

            if (sizeof(W) == 8 && above >= 3u << shift)
                return; /* its weight costs more than the question */
            W weight = weight_at(key, column);

#pragma unroll
            for (uint32_t i = 0; i < 3; i++)
                below[i] += above < (i + 1) << shift ? weight : 0;
        });
#pragma unroll
        for (int i = 0; i < 3; i++)
            sums[i] = below[i];
        team_sums(sums, turn);
#pragma unroll
        for (uint32_t i = 0; i < 3; i++) {
            if (start.below + sums[i] <= limit)
                cut = {start.key + ((i + 1) << shift), start.below + sums[i]};
        }
    }
    return cut;
}

/* Weight of all columns. */
template <class T, class Weight>
__device__ __forceinline__ rk_u64 total_weight(const team_keys<T> &keys, int &turn, Weight weight_at)
{
    rk_u64 sum[1] = {0};

    visit_keys(keys, [&](uint32_t key, int64_t column) { sum[0] += weight_at(key, column); });
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

/* The search key of the k-th largest z. */
template <class T> __device__ __noinline__ uint32_t find_top_k(const team_keys<T> &keys, int turn, int top_k)
{
    auto self = [](uint32_t key, int64_t) { return key; };
    auto one = [](uint32_t, int64_t) { return 1u; };

    return find_cut<uint32_t>(keys, turn, 8 * sizeof(T), (rk_u64)(keys.own.row.count - top_k), self, one).key;
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

/* Drops from the smallest up while the sum of what is dropped is at most (1 - p) of the whole, which is what
 * has search keys from `among` on; of equal ones the larger ids go. `max` is the largest z. */
template <class T>
__device__ __noinline__ kept filter_top_p(const team_keys<T> &keys, int turn, uint32_t among, float max,
                                          double top_p)
{
    const vocab_row<T> &row = keys.own.row;
    rk_u64 total, limit, num_dropped, num_equal;
    uint32_t border;
    key_cut cut;
    float z;

    auto self = [](uint32_t key, int64_t) { return key; };
    auto mass = [&](uint32_t key, int64_t) { return key >= among ? mass_of(z_of_key(row, key), max) : 0ull; };
    total = total_weight(keys, turn, mass);
    limit = (rk_u64)fmin((1.0 - top_p) * (double)total, (double)total);
    limit = limit < total ? limit : total - 1; /* the largest stays */
    cut = find_cut<rk_u64>(keys, turn, 8 * sizeof(T), limit, self, mass);
    border = cut.key;
    z = z_of_key(row, border);
    num_dropped = (limit - cut.below) / mass_of(z, max);
    if (num_dropped == 0)
        return {key_of(z), INT64_MAX};
    auto column_of = [](uint32_t, int64_t column) { return (uint32_t)column; };
    auto is_border = [=](uint32_t key, int64_t) { return key == border ? 1u : 0u; };
    num_equal = total_weight(keys, turn, is_border);
    cut = find_cut<uint32_t>(keys, turn, even_bits(row.count), num_equal - num_dropped - 1, column_of,
                             is_border);
    return {key_of(z), cut.key};
}

#endif
