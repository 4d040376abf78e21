/* A daemon's checks of a received micro-batch plan. */
#include "dispatch/rk_plan.h"

#include <inttypes.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

struct coverage {
    int64_t rows_per_replica;
    int64_t total; /* rows of all replicas */
    int64_t *uses; /* [total] mini-batches that have the row */
    int64_t *last; /* [total] the last of them, from 1 */
};

static struct rk_status *check_micro(struct coverage *coverage, const struct rk_micro_batch *micro, int64_t m,
                                     int64_t i, int64_t first)
{
    for (int64_t k = 0; k < micro->num_rows; k++) {
        int64_t row = micro->rows[k];

        if (row >= coverage->rows_per_replica)
            return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD",
                                  "plan: mini-batch %" PRId64 ", micro-batch %" PRId64 ": row %" PRId64
                                  " of a chunk with %" PRId64 " rows",
                                  m, i, row, coverage->rows_per_replica);
        if (coverage->last[first + row] == m + 1)
            return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD",
                                  "plan: mini-batch %" PRId64 ", micro-batch %" PRId64 ": row %" PRId64
                                  " comes twice",
                                  m, i, row);
        coverage->last[first + row] = m + 1;
        coverage->uses[first + row]++;
    }
    return NULL;
}

static struct rk_status *check_mini(const struct rk_mini_batch *mini, int64_t m, int32_t num_replicas)
{
    if (mini->num_micro < 1 || mini->num_entries != (int64_t)mini->num_micro * num_replicas)
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD",
                              "plan: mini-batch %" PRId64 " has %" PRId64 " entries, expected num_micro=%d "
                              "for each of %d replicas",
                              m, mini->num_entries, mini->num_micro, num_replicas);
    for (int64_t i = 0; i < mini->num_entries; i++) {
        if (mini->micro[i].num_rows > 0 && (mini->num_tokens == 0 || mini->num_sequences == 0))
            return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD",
                                  "plan: mini-batch %" PRId64 " has rows, but num_tokens=%" PRIu64
                                  " and num_sequences=%" PRIu64,
                                  m, mini->num_tokens, mini->num_sequences);
    }
    return NULL;
}

static struct rk_status *check_coverage(const struct rk_plan *plan, struct coverage *coverage)
{
    for (int64_t m = 0; m < plan->num_mini; m++) {
        const struct rk_mini_batch *mini = &plan->mini[m];

        for (int64_t i = 0; i < mini->num_entries; i++)
            RK_TRY(check_micro(coverage, &mini->micro[i], m, i % mini->num_micro,
                               i / mini->num_micro * coverage->rows_per_replica));
    }
    for (int64_t i = 1; i < coverage->total; i++) {
        if (coverage->uses[i] != coverage->uses[0])
            return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD",
                                  "plan: row %" PRId64 " of replica %" PRId64 " comes %" PRId64
                                  " times, the first one %" PRId64,
                                  i % coverage->rows_per_replica, i / coverage->rows_per_replica,
                                  coverage->uses[i], coverage->uses[0]);
    }
    return NULL;
}

struct rk_status *rk_plan_check(const struct rk_plan *plan, int64_t rows_per_replica, int32_t num_replicas)
{
    struct coverage coverage = {.rows_per_replica = rows_per_replica};
    struct rk_status *st = NULL;
    void *uses = NULL, *last = NULL;
    int64_t num_rows = 0;

    RK_ASSERT(rows_per_replica >= 0);
    RK_ASSERT(num_replicas > 0);
    if (plan->num_mini < 1)
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "the plan has no mini-batches");
    for (int64_t m = 0; m < plan->num_mini; m++) {
        RK_TRY(check_mini(&plan->mini[m], m, num_replicas));
        for (int64_t i = 0; i < plan->mini[m].num_entries; i++)
            num_rows += plan->mini[m].micro[i].num_rows;
    }
    /* Before memory is allocated for the batch: the plan must name every row at least once. */
    if (!rk_mul_i64(rows_per_replica, num_replicas, &coverage.total) || num_rows < coverage.total)
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD",
                              "the plan names %" PRId64 " rows, the batch has %" PRId64 " for each of %d "
                              "replicas",
                              num_rows, rows_per_replica, num_replicas);
    RK_TRY_GOTO(st, rk_try_alloc(&uses, (size_t)coverage.total * sizeof(int64_t), "plan"), out);
    RK_TRY_GOTO(st, rk_try_alloc(&last, (size_t)coverage.total * sizeof(int64_t), "plan"), out);
    coverage.uses = uses;
    coverage.last = last;
    RK_TRY_GOTO(st, check_coverage(plan, &coverage), out);
out:
    rk_free(uses);
    rk_free(last);
    return st;
}
