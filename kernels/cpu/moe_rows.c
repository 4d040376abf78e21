/* Sorts tokens by expert, and sums the experts' outputs per token. */
#include "kernels/cpu/cpu_internal.h"

#include <string.h>

static struct rk_status *check_ids(const struct rk_moe_sort_args *args)
{
    int64_t num_choices = args->ids.shape[0] * args->ids.shape[1];
    int64_t experts = args->num_experts > 0 ? args->num_experts : args->offsets.shape[0] - 1;
    const int32_t *ids = rk_cpu_i32(args->ids);

    for (int64_t i = 0; i < num_choices; i++) {
        if (ids[i] >= experts)
            return RK_FAIL(RK_INVALID_ARGUMENT, "moe_sort: ids[%lld][%lld]=%d, expected an expert below %lld",
                           (long long)(i / args->ids.shape[1]), (long long)(i % args->ids.shape[1]), ids[i],
                           (long long)experts);
    }
    return NULL;
}

/* The index of a choice's expert among the experts that get rows; -1: none. */
static int64_t index_of(const struct rk_moe_sort_args *args, int64_t choice)
{
    int64_t e = rk_cpu_i32(args->ids)[choice] - args->first;

    return e >= 0 && e < args->offsets.shape[0] - 1 ? e : -1;
}

struct rk_status *rk_cpu_moe_sort(void *dev, void *stream, const struct rk_moe_sort_args *args)
{
    int64_t num_choices = args->ids.shape[0] * args->ids.shape[1], experts = args->offsets.shape[0] - 1;
    int32_t *offsets = args->offsets.data, *tokens = args->tokens.data, *places = args->places.data;
    int32_t next[RK_MOE_EXPERTS_MAX];

    (void)dev;
    (void)stream;
    RK_TRY(check_ids(args));
    memset(offsets, 0, (size_t)(experts + 1) * sizeof(*offsets));
    for (int64_t i = 0; i < num_choices; i++) {
        if (index_of(args, i) >= 0)
            offsets[index_of(args, i) + 1]++;
    }
    for (int64_t e = 0; e < experts; e++) {
        next[e] = offsets[e];
        offsets[e + 1] += offsets[e];
    }
    for (int64_t i = 0; i < num_choices; i++) {
        int64_t e = index_of(args, i);

        places[i] = e >= 0 ? next[e]++ : -1;
        if (places[i] >= 0)
            tokens[places[i]] = (int32_t)(i / args->ids.shape[1]);
    }
    for (int64_t r = offsets[experts]; r < num_choices; r++)
        tokens[r] = 0;
    return NULL;
}

/* The rows of a token's choices by ascending id, without choices that have no row; returns their number. */
static int64_t sort_choices(int64_t *rows, const struct rk_moe_combine_args *args, int64_t t)
{
    int64_t top_k = args->ids.shape[1], count = 0;
    const int32_t *ids = rk_cpu_i32(args->ids) + t * top_k;
    int32_t sorted[RK_MOE_TOP_K_MAX];

    for (int64_t k = 0; k < top_k; k++) {
        int64_t at = count, i = t * top_k + k, row = args->places.data ? rk_cpu_i32(args->places)[i] : i;

        if (row < 0)
            continue;
        for (; at > 0 && sorted[at - 1] > ids[k]; at--) {
            sorted[at] = sorted[at - 1];
            rows[at] = rows[at - 1];
        }
        sorted[at] = ids[k];
        rows[at] = row;
        count++;
    }
    return count;
}

static void combine(const struct rk_moe_combine_args *args, int64_t t, double *sum)
{
    int64_t columns = args->x.shape[1], rows[RK_MOE_TOP_K_MAX];
    int64_t count = sort_choices(rows, args, t);
    double *row = sum + columns;

    for (int64_t c = 0; c < columns; c++)
        sum[c] = 0.0;
    for (int64_t i = 0; i < count; i++) {
        rk_cpu_load(row, args->x, rows[i], 0, columns);
        for (int64_t c = 0; c < columns; c++)
            sum[c] += row[c];
    }
    rk_cpu_store(args->y, t, 0, sum, columns);
}

struct rk_status *rk_cpu_moe_combine(void *dev, void *stream, const struct rk_moe_combine_args *args)
{
    struct rk_cpu_device *cpu = dev;
    rk_tensor_t places = rk_tensor_1d(args->places.data, RK_DTYPE_I32, rk_tensor_num_elements(args->ids));

    (void)stream;
    if (places.data)
        RK_TRY(rk_cpu_check_range("moe_combine", "places", places, INT32_MIN, args->x.shape[0] - 1));
    RK_TRY(rk_cpu_scratch_reserve(cpu, 2 * args->x.shape[1]));
#pragma omp parallel for num_threads(rk_cpu_threads_over(cpu, args->y, (double)args->ids.shape[1]))
    for (int64_t t = 0; t < args->y.shape[0]; t++)
        combine(args, t, rk_cpu_scratch(cpu));
    return NULL;
}
