/* The micro-batch plan: decisions of the driver before a call. The rows of each replica, the mini- and
 * micro-batches, the global denominators. Pure and deterministic. Formulas: Karmarkar & Karp's largest
 * differencing, as verl uses it. */
#ifndef RK_PLAN_H
#define RK_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_arena.h"
#include "base/rk_status.h"
#include "proto/rk_messages.h"

RK_BEGIN_DECLS

/* Cost of a sequence of length s: linear * s + s * s. verl's constant for a 7B model is linear = 24576; the
 * driver uses the model's own: weights that a token meets in the GEMMs of a layer / columns of attention
 * (num_heads * head_dim). */
struct rk_workload {
    int64_t linear;
};

int64_t rk_workload_of(struct rk_workload workload, int64_t seqlen);

/* Partitions `num_items` values into k parts of nearly equal sums. part_of[i] receives the part of item i;
 * parts are in the final order of the algorithm (descending). INVALID_ARGUMENT when num_items < k, or %
 * k != 0 with equal_size. */
struct rk_status *rk_balance_partitions(int32_t *part_of, const int64_t *values, int64_t num_items, int32_t k,
                                        bool equal_size) RK_NODISCARD;

/* Row order before the scatter: cuts the rows into mini-batches (in order, or by a seeded permutation; the
 * composition does not depend on num_replicas), balances each over the replicas with equal counts, and writes
 * order[num_rows] such that replica d's equal chunk holds its rows of mini-batch 0, then of 1, and so on;
 * inside a mini-batch small sequences are at both ends. With balance false the rows of a mini-batch are
 * distributed in order. Groups of group_size consecutive rows stay together, in their order. */
struct rk_layout_request {
    int64_t num_rows;
    int32_t num_replicas;
    const int64_t *seqlens;  /* [num_rows] */
    int64_t mini_batch_rows; /* global rows of one optimizer step; 0: all */
    int32_t group_size;      /* 0 means 1 */
    bool shuffle, balance;
    uint64_t seed;
    struct rk_workload workload;
};
struct rk_status *rk_plan_layout(int64_t *order, const struct rk_layout_request *request) RK_NODISCARD;

/* The micro-batch plan of a call, for rows that are already in that order. All replicas get the same number
 * of micro-batches, a multiple of micro_multiple; some are empty if there are fewer rows. Dynamic: as few
 * micro-batches as the token budget allows, balanced by workload, heavy ones in the middle. A row longer than
 * the budget is INVALID_ARGUMENT naming it. Groups of group_size consecutive rows are in one micro-batch,
 * adjacent and in order: the pairs of a preference loss (verl: force_group_size). */
struct rk_plan_request {
    int64_t num_rows;
    int32_t num_replicas;
    const int64_t *seqlens;     /* [num_rows] real tokens */
    const int64_t *loss_tokens; /* [num_rows] tokens that the loss counts; NULL: none (forward only) */
    int64_t mini_batch_rows;    /* 0: all rows are one mini-batch */
    int32_t group_size;         /* 0 means 1 */
    int32_t epochs; /* 0 means 1; later epochs repeat the mini-batches, in shuffled order with `shuffle` */
    bool shuffle;
    uint64_t seed;
    bool use_dynamic_bsz;
    int64_t max_token_len;    /* dynamic: tokens of one micro-batch on one replica */
    int64_t micro_batch_rows; /* fixed: rows of one micro-batch on one replica */
    int32_t micro_multiple;   /* divides their number, for interleaved pipelines; 0 means 1 */
    struct rk_workload workload;
};
/* Everything lives in the arena. */
struct rk_status *rk_plan_build(struct rk_plan *out, struct rk_arena *arena,
                                const struct rk_plan_request *request) RK_NODISCARD;

/* Checks a received plan against the rows of a chunk and the replicas of a mesh: counts equal, every row of
 * each replica once per epoch, denominators positive where rows are. INVALID_ARGUMENT names mini- and
 * micro-batch. */
struct rk_status *rk_plan_check(const struct rk_plan *plan, int64_t rows_per_replica,
                                int32_t num_replicas) RK_NODISCARD;

/* global_seqlen/min, max, minmax_diff, balanced_min, balanced_max, mean: token sums per replica before and
 * after. */
struct rk_seqlen_stats {
    double min, max, minmax_diff, balanced_min, balanced_max, mean;
};
struct rk_seqlen_stats rk_plan_seqlen_stats(const int64_t *seqlens, const int64_t *order, int64_t num_rows,
                                            int32_t num_replicas);

RK_END_DECLS

#endif
