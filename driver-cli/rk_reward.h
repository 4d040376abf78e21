/* Rewards: functions from an answer to a score, as rows of a table. */
#ifndef RK_REWARD_H
#define RK_REWARD_H

#include <stdint.h>

#include "base/rk_json.h"
#include "base/rk_status.h"

RK_BEGIN_DECLS

#define RK_REWARD_ABI 1

struct rk_reward_item {
    const char *data_source;          /* of the row; "" when the data has none */
    const char *prompt;               /* decoded */
    const char *solution_str;         /* decoded response without special tokens */
    const char *ground_truth;         /* text, or JSON text when the data has an object */
    const struct rk_json *extra_info; /* or NULL */
};

struct rk_reward;

/* One kind of reward. */
struct rk_reward_ops {
    const char *name; /* "digits", "command" */
    uint32_t abi;
    /* `config` is the job's reward object ({"name": ..., ...}), whose relative paths are relative to `dir`.
     * *state may stay NULL. */
    struct rk_status *(*create)(void **state, const struct rk_json *config, const char *dir);
    void (*destroy)(void *state); /* optional */
    /* Scores all items. One failing item fails the call, naming its index. */
    struct rk_status *(*score)(void *state, const struct rk_reward_item *items, int64_t num_items,
                               double *scores);
};

/* Opens the row that config.name selects; NOT_FOUND lists the rows. Relative paths in the configuration are
 * relative to `dir`. */
struct rk_status *rk_reward_create(struct rk_reward **out, const struct rk_json *config,
                                   const char *dir) RK_NODISCARD;
void rk_reward_destroy(struct rk_reward *reward); /* NULL is a no-op */
/* INTERNAL when a score is not finite. */
struct rk_status *rk_reward_score(struct rk_reward *reward, const struct rk_reward_item *items,
                                  int64_t num_items, double *scores) RK_NODISCARD;

RK_END_DECLS

#endif
