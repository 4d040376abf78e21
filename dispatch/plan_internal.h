/* Shared by layout and plan. */
#ifndef RK_PLAN_INTERNAL_H
#define RK_PLAN_INTERNAL_H

#include "dispatch/rk_plan.h"

/* Rows, replicas and mini-batches divide, and the lengths are lengths. */
struct rk_status *rk_plan_check_rows(const int64_t *seqlens, int64_t num_rows, int32_t num_replicas,
                                     int64_t mini_rows) RK_NODISCARD;

#endif
