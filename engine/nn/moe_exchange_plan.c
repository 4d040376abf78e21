#include "engine/nn/moe_exchange_plan.h"

#include "base/rk_assert.h"
#include "base/rk_base.h"

static const int32_t *offsets_of(const struct rk_moe_exchange_plan *plan, int32_t from)
{
    return plan->offsets + from * (plan->num_ranks * plan->experts_per_rank + 1);
}

/* Rows of an expert that a rank has. */
static struct rk_moe_span rows_of(const struct rk_moe_exchange_plan *plan, int32_t from, int64_t expert)
{
    const int32_t *offsets = offsets_of(plan, from);

    return (struct rk_moe_span){.begin = offsets[expert], .count = offsets[expert + 1] - offsets[expert]};
}

/* ... and that the ranks below `end` have together. */
static int64_t count_rows(const struct rk_moe_exchange_plan *plan, int64_t expert, int32_t end)
{
    int64_t count = 0;

    for (int32_t from = 0; from < end; from++)
        count += rows_of(plan, from, expert).count;
    return count;
}

/* Where an expert of `count` rows begins in the list of its rank, if its predecessor ends at `position`. */
static int64_t place(const struct rk_moe_exchange_plan *plan, int64_t count, int64_t position)
{
    int64_t used = position % plan->capacity;

    if (count > plan->capacity || used + count <= plan->capacity)
        return position;
    return position - used + plan->capacity;
}

/* The end of a rank's list. */
static int64_t end_of(const struct rk_moe_exchange_plan *plan, int32_t to)
{
    int64_t first = to * plan->experts_per_rank, position = 0;

    for (int64_t e = first; e < first + plan->experts_per_rank; e++) {
        int64_t count = count_rows(plan, e, plan->num_ranks);

        position = place(plan, count, position) + count;
    }
    return position;
}

void rk_moe_exchange_plan_init(struct rk_moe_exchange_plan *plan)
{
    RK_ASSERT(plan->capacity > 0);
    plan->num_rounds = 0;
    for (int32_t to = 0; to < plan->num_ranks; to++) {
        int64_t rounds = (end_of(plan, to) + plan->capacity - 1) / plan->capacity;

        plan->num_rounds = RK_MAX(plan->num_rounds, rounds);
    }
}

/* The part, within a round, of rows that begin at `position` of a receiver's list. */
static struct rk_moe_span clip(const struct rk_moe_exchange_plan *plan, struct rk_moe_span rows,
                               int64_t round, int64_t position)
{
    int64_t first = round * plan->capacity - position, end = first + plan->capacity;

    first = RK_MIN(RK_MAX(first, 0), rows.count);
    end = RK_MIN(RK_MAX(end, 0), rows.count);
    return (struct rk_moe_span){.begin = rows.begin + first, .count = end - first};
}

/* Adds the rows of an expert that directly follow. */
static void extend(struct rk_moe_span *span, struct rk_moe_span part)
{
    if (part.count == 0)
        return;
    if (span->count == 0)
        span->begin = part.begin;
    RK_ASSERT(span->begin + span->count == part.begin);
    span->count += part.count;
}

struct rk_moe_span rk_moe_exchange_span(const struct rk_moe_exchange_plan *plan, int32_t from, int32_t to,
                                        int64_t round)
{
    const int32_t *offsets = offsets_of(plan, from);
    int64_t first = to * plan->experts_per_rank, last = first + plan->experts_per_rank, position = 0;
    struct rk_moe_span span = {.begin = offsets[first]};

    if (plan->num_rounds == 1) {
        span.count = offsets[last] - offsets[first];
        return span;
    }
    for (int64_t e = first; e < last && position < (round + 1) * plan->capacity; e++) {
        int64_t before = count_rows(plan, e, from), count = count_rows(plan, e, plan->num_ranks);

        position = place(plan, count, position);
        extend(&span, clip(plan, rows_of(plan, from, e), round, position + before));
        position += count;
    }
    return span;
}
