/* Top-k and top-p: finds the threshold of kept logits by a radix search over the digits of a key, from the
 * highest down. */
#ifndef RK_CUDA_SAMPLE_FILTER_CUH
#define RK_CUDA_SAMPLE_FILTER_CUH

#include "kernels/cuda/vocab/sample_team.cuh"

constexpr int MASS_BITS = 40; /* of the largest probability: its mass is 2^40 */
constexpr int64_t MAX_SAMPLE_VOCAB = 1 << 21;

/* --- keys: order of logits as order of integers --- */

__device__ __forceinline__ uint32_t key_of(float z)
{
    uint32_t bits = __float_as_uint(z + 0.0f); /* -0 is 0 */

    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* The key of the search: z, or the logit itself if it has 16 bits, because z increases with it. */
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

/* z of a key. */
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

/* Calls visit(key, column) for the block's columns. */
template <class T, class Visit>
__device__ __forceinline__ void visit_keys(const team_row<T> &own, Visit visit)
{
    for (int64_t column = own.begin + threadIdx.x * RK_TILE_PACK; column < own.end; column += VOCAB_STEP) {
        rk_pack<T, RK_TILE_PACK> logits = team_pack(own, column);

#pragma unroll
        for (int i = 0; i < RK_TILE_PACK; i++) {
            if (column + i < own.end)
                visit(search_key(logits.get(i), own.row.inv_temperature), column + i);
        }
    }
}

/* --- the search --- */

/* Weights below 2^(PARTS * PART_BITS), summed in PARTS words: sums of words do not overflow with up to
 * 2^(32 - PART_BITS) columns a block, which are MAX_SAMPLE_VOCAB in all. */
constexpr int PART_BITS = RK_HAS_CLUSTERS ? 14 : 11;
constexpr int MASS_PARTS = (MASS_BITS + PART_BITS) / PART_BITS;
constexpr int DIGIT_BITS = 11, NUM_DIGITS = 1 << DIGIT_BITS;
constexpr int DIGITS_A_THREAD = NUM_DIGITS / RK_TILE_VOCAB_THREADS;

static_assert(DIGITS_A_THREAD == 4, "a thread loads its digits at once");
static_assert(PART_BITS * MASS_PARTS > MASS_BITS, "the largest mass is 2^MASS_BITS");

/* Weight per digit of a search key, over this block's columns. */
struct digit_weights {
    uint4 part[MASS_PARTS][NUM_DIGITS / 4];

    /* Clears the digits below num_digits, and up to three more. */
    template <int PARTS> __device__ __forceinline__ void clear(uint32_t num_digits)
    {
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
            if (threadIdx.x * DIGITS_A_THREAD < num_digits)
                part[p][threadIdx.x] = make_uint4(0, 0, 0, 0);
        }
    }

    template <int PARTS> __device__ __forceinline__ void add(uint32_t digit, rk_u64 weight)
    {
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
            uint32_t word =
                PARTS == 1 ? (uint32_t)weight : (uint32_t)(weight >> p * PART_BITS) & ((1u << PART_BITS) - 1);

            if (word > 0)
                atomicAdd((uint32_t *)part[p] + digit, word);
        }
    }

    /* Adds this thread's digits. */
    template <int PARTS> __device__ __forceinline__ void sum(rk_u64 (&weights)[DIGITS_A_THREAD]) const
    {
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
            uint4 words = part[p][threadIdx.x];
            int shift = p * PART_BITS;

            weights[0] += (rk_u64)words.x << shift;
            weights[1] += (rk_u64)words.y << shift;
            weights[2] += (rk_u64)words.z << shift;
            weights[3] += (rk_u64)words.w << shift;
        }
    }
};

/* The block's weights, shared by all searches. */
__device__ __forceinline__ digit_weights &block_digits()
{
    __shared__ digit_weights weights;

    return weights;
}

/* Sum over the threads before this one, and over all. The block must synchronise between two calls. */
__device__ __forceinline__ rk_u64 block_sum_before(rk_u64 value, rk_u64 &total)
{
    constexpr int NUM_WARPS = RK_TILE_VOCAB_THREADS / 32;
    __shared__ rk_u64 warps[NUM_WARPS];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    rk_u64 sum = value, before;

#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        rk_u64 other = __shfl_up_sync(~0u, sum, distance);

        sum += lane >= distance ? other : 0;
    }
    if (lane == 31)
        warps[warp] = sum;
    __syncthreads(); /* the warps' sums are written */
    before = sum - value;
    total = 0;
    for (int w = 0; w < NUM_WARPS; w++) {
        before += w < warp ? warps[w] : 0;
        total += warps[w];
    }
    return before;
}

/* Where a sum over keys in ascending order reaches a limit. */
struct key_cut {
    uint32_t key;
    rk_u64 below; /* weight of all smaller keys */
    rk_u64 limit;
};

/* By one block: the digit at which the sum, from cut.below on, exceeds cut.limit, and the sum before it.
 * first: cut.limit is not known yet; limit_of() computes it from the total weight. */
template <int PARTS, class Limit>
__device__ __forceinline__ void pick_digit(key_cut *found, key_cut cut, int shift, uint32_t num_digits,
                                           bool first, Limit limit_of)
{
    rk_u64 weights[DIGITS_A_THREAD] = {}, sum = 0, total;

    for (unsigned rank = 0; rank < team_size() && threadIdx.x * DIGITS_A_THREAD < num_digits; rank++)
        team_at(&block_digits(), rank)->template sum<PARTS>(weights);
#pragma unroll
    for (int i = 0; i < DIGITS_A_THREAD; i++)
        sum += weights[i];
    sum = cut.below + block_sum_before(sum, total);
    if (first)
        cut.limit = limit_of(total);
#pragma unroll
    for (uint32_t i = 0; i < DIGITS_A_THREAD; i++) {
        if (sum <= cut.limit && cut.limit < sum + weights[i]) /* true for exactly one digit of one thread */
            *found = {cut.key + ((threadIdx.x * DIGITS_A_THREAD + i) << shift), sum, cut.limit};
        sum += weights[i];
    }
}

/* The smallest key (of `bits` bits) at which the weight, summed from the smallest key up, exceeds the limit;
 * the total weight must exceed it. One pass per digit of the key, from the highest down, over the keys that
 * have the same higher digits. Weights have up to PARTS words. */
template <int PARTS, class T, class Limit, class Key, class Weight>
__device__ __forceinline__ key_cut find_cut(const team_row<T> &own, int bits, Limit limit_of, Key key_at,
                                            Weight weight_at)
{
    __shared__ key_cut found;
    key_cut cut = {0, 0, 0};

    for (int end = bits; end > 0; end -= DIGIT_BITS) {
        int shift = end > DIGIT_BITS ? end - DIGIT_BITS : 0;
        uint32_t num_digits = 1u << (end - shift);

        block_digits().template clear<PARTS>(num_digits);
        __syncthreads(); /* before weights are added */
        visit_keys(own, [&](uint32_t key, int64_t column) {
            uint32_t digit = (key_at(key, column) - cut.key) >> shift; /* wraps around for smaller keys */

            if (digit < num_digits)
                block_digits().template add<PARTS>(digit, weight_at(key, column));
        });
        team_sync(); /* the weights of all blocks are written */
        if (team_rank() == 0)
            pick_digit<PARTS>(&found, cut, shift, num_digits, end == bits, limit_of);
        team_sync(); /* ... and have been read; the digit is valid until the next one is picked */
        cut = *team_at(&found, 0);
    }
    return cut;
}

/* --- filters --- */

/* What a filter keeps: columns with z above that of `key`, and those equal to it with ids up to last_id. */
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
template <class T> __device__ __noinline__ uint32_t find_top_k(const team_row<T> &own, int top_k)
{
    auto limit = [=](rk_u64 total) { return total - (rk_u64)top_k; };
    auto self = [](uint32_t key, int64_t) { return key; };
    auto one = [](uint32_t, int64_t) { return 1u; };

    return find_cut<1>(own, 8 * sizeof(T), limit, self, one).key;
}

__device__ __forceinline__ rk_u64 mass_of(float z, float max)
{
    return (rk_u64)(expf(z - max) * (float)(1ull << MASS_BITS));
}

/* Number of bits of a number below `count`. */
__device__ __forceinline__ int bits_below(int64_t count)
{
    return count > 1 ? 64 - __clzll(count - 1) : 1;
}

/* Drops columns from the smallest up while the dropped sum is at most (1 - p) of the total over columns with
 * search keys from `among` on; of equal ones the larger ids are dropped first. `max` is the largest z. */
template <class T>
__device__ __noinline__ kept filter_top_p(const team_row<T> &own, uint32_t among, float max, double top_p)
{
    const vocab_row<T> &row = own.row;
    rk_u64 num_dropped;
    uint32_t border;
    key_cut cut;
    float z;

    auto limit = [=](rk_u64 total) {
        rk_u64 most = (rk_u64)fmin((1.0 - top_p) * (double)total, (double)total);

        return most < total ? most : total - 1; /* the largest is always kept */
    };
    auto self = [](uint32_t key, int64_t) { return key; };
    auto mass = [=](uint32_t key, int64_t) { return key >= among ? mass_of(z_of_key(row, key), max) : 0ull; };
    cut = find_cut<MASS_PARTS>(own, 8 * sizeof(T), limit, self, mass);
    border = cut.key;
    z = z_of_key(row, border);
    num_dropped = (cut.limit - cut.below) / mass_of(z, max);
    if (num_dropped == 0)
        return {key_of(z), INT64_MAX};
    auto keep_rest = [=](rk_u64 num_equal) { return num_equal - num_dropped - 1; };
    auto column_of = [](uint32_t, int64_t column) { return (uint32_t)column; };
    auto is_border = [=](uint32_t key, int64_t) { return key == border ? 1u : 0u; };
    cut = find_cut<1>(own, bits_below(row.count), keep_rest, column_of, is_border);
    return {key_of(z), cut.key};
}

#endif
