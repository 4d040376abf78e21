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

/* ... and that all ranks have together. */
static int64_t count_rows(const struct rk_moe_exchange_plan *plan, int64_t expert)
{
    int64_t count = 0;

    for (int32_t from = 0; from < plan->num_ranks; from++)
        count += rows_of(plan, from, expert).count;
    return count;
}

/* Where an expert begins in the list of its rank, if its predecessor ends at `position`. */
static int64_t place(const struct rk_moe_exchange_plan *plan, int64_t expert, int64_t position)
{
    int64_t count = count_rows(plan, expert), used = position % plan->capacity;

    if (count > plan->capacity || used + count <= plan->capacity)
        return position;
    return position - used + plan->capacity;
}

/* The end of a rank's list. */
static int64_t end_of(const struct rk_moe_exchange_plan *plan, int32_t to)
{
    int64_t first = to * plan->experts_per_rank, position = 0;

    for (int64_t e = first; e < first + plan->experts_per_rank; e++)
        position = place(plan, e, position) + count_rows(plan, e);
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

/* The part, within a round, of rows that begin at *position of a receiver's list. Advances *position past all
 * of the rows. */
static struct rk_moe_span clip(const struct rk_moe_exchange_plan *plan, struct rk_moe_span rows,
                               int64_t round, int64_t *position)
{
    int64_t first = round * plan->capacity - *position, end = first + plan->capacity;

    *position += rows.count;
    first = RK_MIN(RK_MAX(first, 0), rows.count);
    end = RK_MIN(RK_MAX(end, 0), rows.count);
    return (struct rk_moe_span){.begin = rows.begin + first, .count = end - first};
}

struct rk_moe_span rk_moe_exchange_span(const struct rk_moe_exchange_plan *plan, int32_t from, int32_t to,
                                        int64_t round)
{
    int64_t first = to * plan->experts_per_rank, position = 0;
    struct rk_moe_span span = {.begin = offsets_of(plan, from)[first]};

    for (int64_t e = first; e < first + plan->experts_per_rank; e++) {
        position = place(plan, e, position);
        for (int32_t rank = 0; rank < plan->num_ranks; rank++) {
            struct rk_moe_span part = clip(plan, rows_of(plan, rank, e), round, &position);

            if (rank != from || part.count == 0)
                continue;
            if (span.count == 0)
                span.begin = part.begin;
            RK_ASSERT(span.begin + span.count == part.begin);
            span.count += part.count;
        }
    }
    return span;
}
