/* Sums over the plans of the roles: shared by memory_sum.c, memory_sum_check.c and memory_sum_report.c. */
#ifndef RK_MEMORY_SUM_PARTS_INTERNAL_H
#define RK_MEMORY_SUM_PARTS_INTERNAL_H

#include "rl/rk_memory_sum.h"

/* The keys of a role that reduce a kind of memory. */
typedef enum rk_memory_sum_cause {
    RK_MEMORY_SUM_WEIGHTS,
    RK_MEMORY_SUM_PASSES,
    RK_MEMORY_SUM_CACHE
} rk_memory_sum_cause_t;

/* Kinds of memory_report, in the order of the table. */
struct rk_memory_sum_kind {
    const char *name;
    rk_memory_sum_cause_t cause;
};
#define RK_MEMORY_SUM_KINDS 9
extern const struct rk_memory_sum_kind rk_memory_sum_kinds[RK_MEMORY_SUM_KINDS];

/* Ranks of one memory domain: their sum has to fit as well. */
struct rk_memory_sum_domain {
    struct rk_str ranks; /* "0, 1" */
    int32_t num_ranks;
    int64_t added, free; /* memory added by the roles on all ranks; memory free for them */
};

/* The role's plan of the rank; JSON null outside its mesh. */
const struct rk_json *rk_memory_sum_plan_of(const struct rk_memory_sum *sum, int64_t role, int32_t rank);
/* The plan of the last role on the rank; NULL: none. */
const struct rk_json *rk_memory_sum_last_plan(const struct rk_memory_sum *sum, int32_t rank);
/* 0 if it is absent. */
int64_t rk_memory_sum_bytes_at(const struct rk_json *plan, const char *path);
int64_t rk_memory_sum_kind_bytes(const struct rk_json *plan, int kind);
/* The memory that the role adds to the previous roles. */
int64_t rk_memory_sum_added_bytes(const struct rk_json *plan);
/* The memory of all roles on the rank. */
int64_t rk_memory_sum_taken_bytes(const struct rk_memory_sum *sum, int32_t rank);
/* Memory for the roles: free now, or held by models that they replace. */
int64_t rk_memory_sum_free_bytes(const struct rk_memory_sum *sum, int32_t rank);
int64_t rk_memory_sum_left_bytes(const struct rk_memory_sum *sum, int32_t rank);
/* "" for a rank that shares memory with no other. */
const char *rk_memory_sum_domain_name(const struct rk_memory_sum *sum, int32_t rank);
/* The domain of rank `first`, after the first `num_roles` roles. False if an earlier rank is in it, or no
 * other rank. The caller releases out->ranks. */
bool rk_memory_sum_find_domain(struct rk_memory_sum_domain *out, const struct rk_memory_sum *sum,
                               int32_t first, int64_t num_roles);
/* The largest kind of the plan. */
int rk_memory_sum_largest_kind(const struct rk_json *plan);
/* The role that adds the most memory on the rank. */
int64_t rk_memory_sum_largest_role(const struct rk_memory_sum *sum, int32_t rank);

#endif
