/* Checks of integers in tensors. On the CPU their cost is negligible compared with the operator. */
#include "kernels/cpu/cpu_internal.h"

struct rk_status *rk_cpu_check_range(const char *op, const char *arg, rk_tensor_t t, int64_t min, int64_t max)
{
    const int32_t *values = rk_cpu_i32(t);

    for (int64_t i = 0; i < t.shape[0]; i++) {
        if (values[i] < min || values[i] > max)
            return RK_FAIL(RK_INVALID_ARGUMENT, "%s: %s[%lld]=%d, expected %lld to %lld", op, arg,
                           (long long)i, values[i], (long long)min, (long long)max);
    }
    return NULL;
}

struct rk_status *rk_cpu_check_prefix_sums(const char *op, const char *arg, rk_tensor_t t, int64_t total,
                                           int64_t longest)
{
    const int32_t *sums = rk_cpu_i32(t);
    int64_t last = t.shape[0] - 1;

    if (sums[0] != 0 || sums[last] != total)
        return RK_FAIL(RK_INVALID_ARGUMENT, "%s: %s runs from %d to %d, expected 0 to %lld", op, arg, sums[0],
                       sums[last], (long long)total);
    for (int64_t i = 0; i < last; i++) {
        int64_t length = (int64_t)sums[i + 1] - sums[i];

        if (length < 0 || length > longest)
            return RK_FAIL(RK_INVALID_ARGUMENT, "%s: %s has a step of %lld at %lld, expected 0 to %lld", op,
                           arg, (long long)length, (long long)i, (long long)longest);
    }
    return NULL;
}

struct rk_status *rk_cpu_check_offsets(const char *op, rk_tensor_t offsets, int64_t num_rows)
{
    const int32_t *values = rk_cpu_i32(offsets);

    if (values[0] != 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "%s: offsets[0]=%d, expected 0", op, values[0]);
    for (int64_t i = 1; i < offsets.shape[0]; i++) {
        if (values[i] < values[i - 1] || values[i] > num_rows)
            return RK_FAIL(RK_INVALID_ARGUMENT, "%s: offsets[%lld]=%d, expected %d to %lld", op, (long long)i,
                           values[i], values[i - 1], (long long)num_rows);
    }
    return NULL;
}

struct rk_status *rk_cpu_read_count(const char *op, rk_tensor_t count, int64_t most, int64_t *out)
{
    *out = most;
    if (!count.data)
        return NULL;
    RK_TRY(rk_cpu_check_range(op, "count", count, 0, most));
    *out = rk_cpu_i32(count)[0];
    return NULL;
}
