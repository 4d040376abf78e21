/* Memory plans of all roles of a job, added up. The daemons plan (init_model with plan_only); this
 * adds up their answers: whether all roles fit together, and if not, which role does not. */
#ifndef RK_MEMORY_SUM_H
#define RK_MEMORY_SUM_H

#include <stdint.h>

#include "base/rk_json.h"
#include "base/rk_status.h"
#include "base/rk_str.h"
#include "rl/rk_job.h"
#include "proto/limits.h"

struct rk_memory_sum {
    int32_t num_ranks;
    int64_t num_roles; /* planned so far, in the order in which they will be built */
    struct {
        const struct rk_job_role *role;
        struct rk_json *plans; /* owned; array: each rank's answer, null for a rank outside the role's mesh */
    } roles[RK_LIMIT_ROLES];
};

void rk_memory_sum_init(struct rk_memory_sum *sum, int32_t num_ranks);
void rk_memory_sum_fini(struct rk_memory_sum *sum);
/* Adds the plans of the next role: metas[num_metas], each with the number of its rank. INTERNAL when a plan
 * lacks a required value. */
struct rk_status *rk_memory_sum_add(struct rk_memory_sum *sum, const struct rk_job_role *role,
                                    const struct rk_json *const *metas, int32_t num_metas) RK_NODISCARD;
/* The option plan_room of the role that is planned next; null before the first. */
struct rk_json *rk_memory_sum_room(const struct rk_memory_sum *sum);
/* NULL when all roles fit on all ranks; else RESOURCE_EXHAUSTED, reason DEVICE_OOM, which names the first
 * role that does not fit, the largest role, and the keys that make them smaller. */
struct rk_status *rk_memory_sum_check(const struct rk_memory_sum *sum) RK_NODISCARD;
/* The status of a role that could not be planned in the room that the roles before it leave
 * (RESOURCE_EXHAUSTED); if one of the roles before it does not fit itself, the status of rk_memory_sum_check.
 * Steals st. */
struct rk_status *rk_memory_sum_refuse(const struct rk_memory_sum *sum, const struct rk_job_role *role,
                                       struct rk_status *st) RK_NODISCARD;
/* The rank with the least memory left; of several, the first. */
int32_t rk_memory_sum_fullest(const struct rk_memory_sum *sum);
/* Roles by kinds of memory of the fullest rank, as a table. */
void rk_memory_sum_format(const struct rk_memory_sum *sum, struct rk_str *out);
/* All ranks and roles, in bytes: the content of memory_plan.json. */
struct rk_json *rk_memory_sum_json(const struct rk_memory_sum *sum);

#endif
