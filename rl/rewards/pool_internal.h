/* Long-lived worker processes that score items by protocol 2. */
#ifndef RK_REWARD_POOL_INTERNAL_H
#define RK_REWARD_POOL_INTERNAL_H

#include "rl/rk_reward.h"

struct rk_reward_pool;

struct rk_reward_pool_config {
    char **argv;  /* NULL-terminated; taken over by the pool */
    char *dir;    /* in which they run; taken over */
    char *kwargs; /* JSON for their hello, not for argv, which every user of the host can read; or NULL; taken
                     over */
    int32_t num_workers;
    int64_t batch_size;       /* maximum items of a worker at a time */
    int64_t timeout_ms;       /* of an item, from sending it to its answer */
    int64_t start_timeout_ms; /* of a worker's hello */
};

/* Members of a row's configuration that the pool reads in addition to num_workers. */
#define RK_REWARD_POOL_KEYS "batch_size", "timeout", "start_timeout"

/* Reads the members above from the job; argv, dir and kwargs stay NULL. */
struct rk_status *rk_reward_pool_read_config(struct rk_reward_pool_config *out,
                                             const struct rk_json *config) RK_NODISCARD;
/* Starts the workers and waits for their hellos. Takes argv, dir and kwargs, on failure too. NOT_FOUND for a
 * missing program, FAILED_PRECONDITION with the reason of one that cannot start. */
struct rk_status *rk_reward_pool_create(struct rk_reward_pool **out,
                                        const struct rk_reward_pool_config *config) RK_NODISCARD;
void rk_reward_pool_destroy(struct rk_reward_pool *pool); /* NULL is a no-op */
/* The score_items of a row. ABORTED when a worker cannot be kept running. */
struct rk_status *rk_reward_pool_score(struct rk_reward_pool *pool,
                                       const struct rk_reward_call *call) RK_NODISCARD;

#endif
