/* The order of the rows before a scatter, and metrics of its effect. */
#include "dispatch/rk_plan.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_rng.h"
#include "dispatch/plan_internal.h"

#include <stdlib.h>

struct cost {
    int64_t workload;
    int64_t index; /* inside the mini-batch */
};

static int compare_costs(const void *a, const void *b)
{
    const struct cost *x = a, *y = b;

    if (x->workload != y->workload)
        return x->workload < y->workload ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

/* The rows of a mini-batch; a group is group_size of them, which are adjacent in the request too. */
struct mini {
    const int64_t *rows;
    int64_t num_rows;
    int32_t group_size;
};

/* Writes the groups of one replica, ascending in cost and index: elements 0, 2, 4, ..., then the others
 * backwards, so that small ones are at both ends, where a pipeline fills and drains. */
static void put_small_at_ends(int64_t *dst, struct cost *costs, int64_t count, const struct mini *mini)
{
    int64_t next = 0;

    qsort(costs, (size_t)count, sizeof(*costs), compare_costs);
    for (int64_t k = 0; k < count; k++) {
        int64_t half = count - count / 2; /* of the elements 0, 2, 4, ... */
        int64_t i = k < half ? 2 * k : 2 * (count - k) - 1;

        for (int32_t j = 0; j < mini->group_size; j++)
            dst[next++] = mini->rows[costs[i].index * mini->group_size + j];
    }
}

/* One mini-batch: assigns its rows to the positions of each replica. */
static struct rk_status *lay_out_mini(int64_t *order, const struct rk_layout_request *request,
                                      const struct mini *mini)
{
    int64_t num_groups = mini->num_rows / mini->group_size;
    int64_t per_replica = num_groups / request->num_replicas;
    int64_t chunk_rows = request->num_rows / request->num_replicas;
    int64_t *values = rk_calloc((size_t)num_groups, sizeof(*values));
    int32_t *part_of = rk_calloc((size_t)num_groups, sizeof(*part_of));
    struct cost *costs = rk_calloc((size_t)per_replica, sizeof(*costs));
    struct rk_status *st = NULL;

    for (int64_t i = 0; i < num_groups; i++)
        values[i] = rk_plan_group_workload(
            request->workload, request->seqlens + mini->rows[i * mini->group_size], mini->group_size);
    RK_TRY_GOTO(st, rk_balance_partitions(part_of, values, num_groups, request->num_replicas, true), out);
    for (int32_t d = 0; d < request->num_replicas; d++) {
        int64_t count = 0;

        for (int64_t i = 0; i < num_groups; i++) {
            if (part_of[i] == d)
                costs[count++] = (struct cost){.workload = values[i], .index = i};
        }
        RK_ASSERT(count == per_replica);
        put_small_at_ends(order + d * chunk_rows, costs, count, mini);
    }
out:
    rk_free(values);
    rk_free(part_of);
    rk_free(costs);
    return st;
}

static void deal_mini(int64_t *order, const struct rk_layout_request *request, const struct mini *mini)
{
    int64_t per_replica = mini->num_rows / request->num_replicas;
    int64_t chunk_rows = request->num_rows / request->num_replicas;

    for (int64_t i = 0; i < mini->num_rows; i++)
        order[i / per_replica * chunk_rows + i % per_replica] = mini->rows[i];
}

/* Permutes whole groups; rows[] receives the rows in the new order. */
static void shuffle_groups(int64_t *rows, const struct rk_layout_request *request, int32_t group_size)
{
    int64_t num_groups = request->num_rows / group_size;
    int64_t *groups = rk_calloc((size_t)num_groups, sizeof(*groups));

    rk_rng_permutation(request->seed, rk_rng_stream_of_name("plan.layout"), num_groups, groups);
    for (int64_t i = 0; i < request->num_rows; i++)
        rows[i] = groups[i / group_size] * group_size + i % group_size;
    rk_free(groups);
}

struct rk_status *rk_plan_layout(int64_t *order, const struct rk_layout_request *request)
{
    int64_t mini_rows = request->mini_batch_rows ? request->mini_batch_rows : request->num_rows;
    int32_t group_size = request->group_size ? request->group_size : 1;
    struct rk_status *st = NULL;
    int64_t *rows;

    RK_TRY(rk_plan_check_rows(&(struct rk_plan_rows){request->seqlens, request->num_rows, mini_rows,
                                                     request->num_replicas, group_size}));
    rows = rk_calloc((size_t)request->num_rows, sizeof(*rows));
    for (int64_t i = 0; i < request->num_rows; i++)
        rows[i] = i;
    if (request->shuffle)
        shuffle_groups(rows, request, group_size);
    for (int64_t begin = 0; begin < request->num_rows; begin += mini_rows) {
        int64_t *dst = order + begin / request->num_replicas;
        struct mini mini = {rows + begin, mini_rows, group_size};

        if (request->balance)
            RK_TRY_GOTO(st, lay_out_mini(dst, request, &mini), out);
        else
            deal_mini(dst, request, &mini);
    }
out:
    rk_free(rows);
    return st;
}

/* Smallest and largest token sum of the equal blocks; order NULL: the rows as they are. */
static void block_sums(const int64_t *seqlens, const int64_t *order, int64_t num_rows, int32_t num_blocks,
                       double *min, double *max)
{
    int64_t block_rows = num_rows / num_blocks;

    for (int32_t block = 0; block < num_blocks; block++) {
        double sum = 0.0;

        for (int64_t i = block * block_rows; i < (block + 1) * block_rows; i++)
            sum += (double)seqlens[order ? order[i] : i];
        *min = block == 0 ? sum : RK_MIN(*min, sum);
        *max = block == 0 ? sum : RK_MAX(*max, sum);
    }
}

struct rk_seqlen_stats rk_plan_seqlen_stats(const int64_t *seqlens, const int64_t *order, int64_t num_rows,
                                            int32_t num_replicas)
{
    struct rk_seqlen_stats stats = {0};

    RK_ASSERT(num_replicas > 0);
    RK_ASSERT(num_rows % num_replicas == 0);
    block_sums(seqlens, NULL, num_rows, num_replicas, &stats.min, &stats.max);
    block_sums(seqlens, order, num_rows, num_replicas, &stats.balanced_min, &stats.balanced_max);
    stats.minmax_diff = stats.max - stats.min;
    for (int64_t i = 0; i < num_rows; i++)
        stats.mean += (double)seqlens[i] / num_replicas;
    return stats;
}
