/* Private to engine/nn: which rows the ranks of an ep group send to each other, in rounds of bounded size.
 *
 * Every rank has rows sorted by expert. The experts are spread evenly over the ranks, in ascending order. The
 * rows that a rank is to receive form one list, sorted by expert and within one expert by sending rank; each
 * round takes the next `capacity` rows of it, or fewer, so that only experts with more rows than that are
 * split over rounds: the weight gradients of all others have the bits of one round. The rows that one rank
 * sends to another in a round are therefore contiguous, and the order of an expert's rows does not depend on
 * the capacity. All ranks compute
 * the same rounds from the offsets of all ranks. */
#ifndef RK_MOE_EXCHANGE_PLAN_H
#define RK_MOE_EXCHANGE_PLAN_H

#include <stdint.h>

/* Borrows the offsets. */
struct rk_moe_exchange_plan {
    int32_t num_ranks, rank; /* of the ep group, and mine */
    int64_t experts_per_rank;
    int64_t capacity;       /* rows that a rank receives in a round, at least 1 */
    const int32_t *offsets; /* [num_ranks][num_ranks * experts_per_rank + 1]: where the rows of each expert
                               begin among those of each rank */
    int64_t num_rounds;     /* the same on all ranks; 0: no rank has a row */
};

/* Neighbouring rows of one rank. */
struct rk_moe_span {
    int64_t begin, count;
};

/* Counts the rounds of a plan whose other fields are set. */
void rk_moe_exchange_plan_init(struct rk_moe_exchange_plan *plan);
/* The rows of rank `from` that rank `to` receives in a round. */
struct rk_moe_span rk_moe_exchange_span(const struct rk_moe_exchange_plan *plan, int32_t from, int32_t to,
                                        int64_t round);

#endif
