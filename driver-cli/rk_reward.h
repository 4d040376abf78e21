/* Rewards: functions from an answer to a score, as rows of a table. */
#ifndef RK_REWARD_H
#define RK_REWARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rk_json.h"
#include "base/rk_status.h"

RK_BEGIN_DECLS

#define RK_REWARD_ABI 2

struct rk_reward_item {
    const char *data_source;  /* of the row; "" when the data has none */
    const char *prompt;       /* text of the data row */
    const char *solution_str; /* decoded response without special tokens: UTF-8 that may hold NUL */
    size_t solution_bytes;
    const char *ground_truth;         /* text, or JSON text when the data has an object */
    const struct rk_json *extra_info; /* or NULL */
};

typedef enum rk_reward_outcome { RK_REWARD_SCORED, RK_REWARD_OUTCOME_COUNT } rk_reward_outcome_t;

struct rk_reward_result {
    rk_reward_outcome_t outcome;
    double score;          /* finite */
    struct rk_json *extra; /* object of numbers and strings beside the score; NULL for a plain score, which is
                              verl's reward_extra_info {"acc": score}; owned */
};

/* Whoever waits for scores may be asked to stop. */
struct rk_reward_watch {
    bool (*is_cancelled)(void *user); /* NULL: never */
    void *user;
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
    /* Scores all items; results are zero before. CANCELLED soon after the watch says so. */
    struct rk_status *(*score)(void *state, const struct rk_reward_item *items, int64_t num_items,
                               struct rk_reward_result *results, const struct rk_reward_watch *watch);
};

/* Opens the row that config.name selects; NOT_FOUND lists the rows. Relative paths in the configuration are
 * relative to `dir`. */
struct rk_status *rk_reward_create(struct rk_reward **out, const struct rk_json *config,
                                   const char *dir) RK_NODISCARD;
void rk_reward_destroy(struct rk_reward *reward); /* NULL is a no-op */
/* Fills results[num_items], which the caller releases in any case. INTERNAL when a score is not finite,
 * CANCELLED when the watch (NULL: none) asked for it. */
struct rk_status *rk_reward_score(struct rk_reward *reward, const struct rk_reward_item *items,
                                  int64_t num_items, struct rk_reward_result *results,
                                  const struct rk_reward_watch *watch) RK_NODISCARD;
void rk_reward_results_fini(struct rk_reward_result *results, int64_t count);

RK_END_DECLS

#endif
