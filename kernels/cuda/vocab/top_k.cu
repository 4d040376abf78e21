/* Twin of kernels/cpu/top_k.c.
 *
 * Work split   One block of 512 threads a row. The search of the sampler (sample_filter.cuh) finds the K-th
 *              largest logit and, among equal ones, the last selected id; selected entries are written to
 *              shared memory in any order and sorted there.
 *
 * Traffic      The row once from memory, then from L2 if it fits: for the range of eligible entries, for each
 *              11-bit digit of the K-th largest and of the last id, and for the selected entries.
 *
 * Limits       2^21 columns, K up to RK_VOCAB_IDS_MAX; no F64.
 *
 * Numerics     No arithmetic. Keys with the id as the low bits have a total order, so the result is
 *              unique. */
#include "kernels/cuda/vocab/sample_filter.cuh"

constexpr int SORTED = RK_VOCAB_IDS_MAX;

/* Range of search keys of eligible columns: neither NaN nor -inf. */
struct key_range {
    uint32_t above, last;

    __device__ __forceinline__ bool operator()(uint32_t key) const
    {
        return key > above && key <= last;
    }
};

template <class T> __device__ __forceinline__ key_range keys_of_numbers()
{
    return {search_key(rk_narrow<T>(-INFINITY), 1.0f), search_key(rk_narrow<T>(INFINITY), 1.0f)};
}

/* Selected columns: keys larger than `key`, and those equal to it up to last_column. */
struct top_border {
    uint32_t key;
    int64_t last_column;
};

/* Selects k of num_numbers eligible columns. */
template <class T>
__device__ __forceinline__ top_border find_border(const team_row<T> &own, key_range is_number,
                                                  rk_u64 num_numbers, rk_u64 k)
{
    key_cut cut;
    rk_u64 num_dropped; /* of those equal to the threshold */
    uint32_t border;

    auto limit = [=](rk_u64) { return num_numbers - k; };
    auto self = [](uint32_t key, int64_t) { return key; };
    auto one = [=](uint32_t key, int64_t) { return is_number(key) ? 1u : 0u; };
    cut = find_cut<1>(own, 8 * sizeof(T), limit, self, one);
    border = cut.key;
    num_dropped = cut.limit - cut.below;
    auto keep_rest = [=](rk_u64 num_equal) { return num_equal - num_dropped - 1; };
    auto column_of = [](uint32_t, int64_t column) { return (uint32_t)column; };
    auto is_border = [=](uint32_t key, int64_t) { return key == border ? 1u : 0u; };
    cut = find_cut<1>(own, bits_below(own.row.count), keep_rest, column_of, is_border);
    return {border, cut.key};
}

__device__ __forceinline__ void order_pair(rk_u64 *first, rk_u64 *second, bool descends)
{
    rk_u64 a = *first, b = *second;

    if ((a < b) == descends) {
        *first = b;
        *second = a;
    }
}

/* Sorts in descending order; the number of elements is a power of two. */
__device__ __forceinline__ void sort_descending(rk_u64 *items, int count)
{
    for (int size = 2; size <= count; size *= 2) {
        for (int distance = size / 2; distance > 0; distance /= 2) {
            __syncthreads(); /* earlier exchanges are complete */
            for (int i = (int)threadIdx.x; i < count; i += RK_TILE_VOCAB_THREADS) {
                int other = i ^ distance;

                if (other > i) /* each pair is processed by one thread */
                    order_pair(&items[i], &items[other], (i & size) == 0);
            }
        }
    }
    __syncthreads(); /* the last exchange is complete */
}

template <class T> struct top_rows {
    const T *logits;
    const int32_t *source_ids; /* NULL: vocab_begin + column */
    float *values;
    int32_t *ids;
    int64_t stride, source_stride, values_stride, ids_stride, vocab_begin, num_valid;
    int k;
    bool aligned;
};

/* Copies the k largest of the row to `items`, in any order. */
template <class T>
__device__ __forceinline__ void take_top(rk_u64 *items, const team_row<T> &own, key_range is_number,
                                         top_border border)
{
    __shared__ int num_taken;

    if (threadIdx.x == 0)
        num_taken = 0;
    __syncthreads(); /* the counter is zero */
    visit_keys(own, [&](uint32_t key, int64_t column) {
        if (is_number(key) && (key > border.key || (key == border.key && column <= border.last_column)))
            items[atomicAdd(&num_taken, 1)] = (rk_u64)key << 32 | (uint32_t) ~(uint32_t)column;
    });
}

template <class T> __global__ void __launch_bounds__(RK_TILE_VOCAB_THREADS) top_k_kernel(top_rows<T> rows)
{
    __shared__ rk_u64 items[SORTED];
    __shared__ rk_u64 counts[32];
    int64_t row = blockIdx.x;
    const T *logits = rows.logits + row * rows.stride;
    team_row<T> own = make_team_row(make_row(logits, rows.num_valid, 1.0f, rows.aligned));
    key_range is_number = keys_of_numbers<T>();
    rk_u64 count = 0, k;
    int padded = 1;

    visit_keys(own, [&](uint32_t key, int64_t) { count += is_number(key) ? 1 : 0; });
    count = rk_block_sum(count, counts);
    k = RK_MIN(count, (rk_u64)rows.k);
    while (padded < rows.k)
        padded *= 2;
    for (int i = (int)threadIdx.x; i < padded; i += RK_TILE_VOCAB_THREADS)
        items[i] = 0; /* sorts after all selected ones */
    if (k > 0)
        take_top(items, own, is_number, find_border(own, is_number, count, k));
    sort_descending(items, padded);
    for (int i = (int)threadIdx.x; i < rows.k; i += RK_TILE_VOCAB_THREADS) {
        bool is_taken = (rk_u64)i < k;
        int64_t column = is_taken ? (uint32_t) ~(uint32_t)items[i] : 0;
        int32_t id = is_taken ? (int32_t)(rows.vocab_begin + column) : -1;

        if (is_taken && rows.source_ids)
            id = rows.source_ids[row * rows.source_stride + column];
        rows.ids[row * rows.ids_stride + i] = id;
        rows.values[row * rows.values_stride + i] = is_taken ? rk_widen<float>(logits[column]) : -INFINITY;
    }
}

template <class T> static void launch_top_k(cudaStream_t stream, const struct rk_top_k_args *args)
{
    top_rows<T> rows = {(const T *)args->logits.data,
                        (const int32_t *)args->source_ids.data,
                        (float *)args->values.data,
                        (int32_t *)args->ids.data,
                        args->logits.row_stride,
                        args->source_ids.row_stride,
                        args->values.row_stride,
                        args->ids.row_stride,
                        args->vocab_begin,
                        args->num_valid,
                        (int)args->ids.shape[1],
                        rk_rows_aligned(args->logits)};

    top_k_kernel<T><<<(unsigned)args->logits.shape[0], RK_TILE_VOCAB_THREADS, 0, stream>>>(rows);
}

extern "C" struct rk_status *rk_cuda_op_top_k(void *dev, void *stream, const struct rk_top_k_args *args)
{
    if (args->num_valid > MAX_SAMPLE_VOCAB)
        return RK_FAIL(RK_UNIMPLEMENTED, "top_k: num_valid=%lld, this backend supports at most %lld",
                       (long long)args->num_valid, (long long)MAX_SAMPLE_VOCAB);
    RK_TRY(rk_check_grid("top_k", args->logits.shape[0]));
    RK_FOR_DTYPE_TO_F32("top_k", args->logits.dtype, T, launch_top_k<T>(rk_stream_of(stream), args));
    return rk_cuda_launched((struct rk_cuda_device *)dev, (struct rk_cuda_stream *)stream, "top_k");
}
