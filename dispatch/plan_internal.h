/* Between plan_layout.c, the order of the rows, and plan.c, the micro-batch plan over it. */
#ifndef RK_PLAN_INTERNAL_H
#define RK_PLAN_INTERNAL_H

#include "dispatch/rk_plan.h"

struct rk_plan_rows {
    const int64_t *seqlens; /* [num_rows] */
    int64_t num_rows, mini_rows;
    int32_t num_replicas, group_size;
};

/* Checks that rows, replicas, groups and mini-batches divide, and that the lengths are valid. */
struct rk_status *rk_plan_check_rows(const struct rk_plan_rows *rows) RK_NODISCARD;
/* Workload of a group: rows seqlens[0..group_size). */
int64_t rk_plan_group_workload(struct rk_workload workload, const int64_t *seqlens, int32_t group_size);

#endif
