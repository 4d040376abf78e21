/* Rewards: functions from an answer to a score, as rows of a table. docs/rewards.md describes the rows and
 * their configuration. */
#ifndef RK_REWARD_H
#define RK_REWARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rk_json.h"
#include "base/rk_status.h"

RK_BEGIN_DECLS

struct rk_reward_item {
    const char *data_source; /* of the row; "" when the data has none */
    const char *prompt;      /* text of the data row */
    size_t prompt_bytes;
    const char *solution_str; /* decoded response without special tokens: UTF-8 that may hold NUL, and has one
                                 after its last byte */
    size_t solution_bytes;
    const char *ground_truth;                /* text, or JSON text when the data has another value */
    const struct rk_json *ground_truth_json; /* the value; NULL: the text is */
    const struct rk_json *extra_info;        /* or NULL */
    /* Inputs of rewards over columns (TRL's functions); otherwise columns is NULL and the others may be
     * unset. */
    const struct rk_json *columns;  /* object: the members of the data row apart from the prompt */
    const struct rk_json *messages; /* the prompt, when it is a list of messages; or NULL */
    const int32_t *completion_ids;  /* tokens of the response, special ones too */
    int64_t num_completion_ids;
};

typedef enum rk_reward_outcome {
    RK_REWARD_SCORED,
    RK_REWARD_SKIPPED, /* the scorer returned no score for this item; not a failure */
    RK_REWARD_ERROR,   /* the scorer failed on this item */
    RK_REWARD_TIMEOUT, /* no answer within reward.timeout */
    RK_REWARD_CRASH,   /* the worker process ended, or violated the protocol, with this item */
    RK_REWARD_OUTCOME_COUNT
} rk_reward_outcome_t;

struct rk_reward_result {
    rk_reward_outcome_t outcome;
    bool is_dropped;       /* no score: the item is excluded from losses, statistics and means */
    double score;          /* in the range of F32; 0 when dropped, and for a failure under on_error=zero */
    struct rk_json *extra; /* object of numbers and strings in addition to the score; NULL for a plain score,
                            * which is verl's reward_extra_info {"acc": score}; owned */
    char *message;         /* why there is no score; NULL when scored; owned */
    char *ignored;         /* members of the answer that are not in `extra`: "'a b', 'c d'"; or NULL; owned */
};

/* Callback that checks for an interrupt while scores are computed. */
struct rk_reward_watch {
    bool (*is_cancelled)(void *user); /* NULL: never */
    void *user;
};

/* A batch to score. */
struct rk_reward_call {
    const struct rk_reward_item *items;
    int64_t num_items;
    struct rk_reward_result *results; /* [num_items], zero */
    int64_t max_failed;               /* more failures end the run, so scoring may stop */
    const struct rk_reward_watch *watch;
};

struct rk_reward;

/* One kind of reward. */
struct rk_reward_ops {
    const char *name;        /* "digits", "command" */
    const char *const *keys; /* members of its configuration in addition to the common ones;
                              * NULL-terminated */
    /* `config` is the job's reward object ({"name": ..., ...}), whose relative paths are relative to `dir`.
     * Its members are among the common ones and `keys`. *state may stay NULL. */
    struct rk_status *(*create)(void **state, const struct rk_json *config, const char *dir);
    void (*destroy)(void *state); /* optional */
    /* Refuses an item that this reward cannot score, such as one without ground truth. Optional. */
    struct rk_status *(*check)(const void *state, const struct rk_reward_item *item);
    /* Either this or the next member is set. Results are zero before. */
    void (*score_item)(void *state, const struct rk_reward_item *item, struct rk_reward_result *result);
    /* A status ends the run; an item that fails has its own outcome. CANCELLED soon after the watch reports
     * an interrupt.
     */
    struct rk_status *(*score_items)(void *state, const struct rk_reward_call *call);
};

/* Opens the row that config.name selects; NOT_FOUND lists the rows. Relative paths in the configuration are
 * relative to `dir`. Members that are null count as absent. A reward with worker processes starts them, and
 * the kernel kills them when the calling thread dies, so call this from a thread that stays. */
struct rk_status *rk_reward_create(struct rk_reward **out, const struct rk_json *config,
                                   const char *dir) RK_NODISCARD;
void rk_reward_destroy(struct rk_reward *reward); /* NULL is a no-op */
/* INVALID_ARGUMENT or NOT_FOUND when the reward cannot score the item for any response: for checks
 * of data before a run. */
struct rk_status *rk_reward_check(const struct rk_reward *reward,
                                  const struct rk_reward_item *item) RK_NODISCARD;
/* Fills results[num_items], which the caller releases in any case. ABORTED when more than
 * reward.max_failed_ratio of the items failed, or any with on_error=fail; CANCELLED when the watch (NULL:
 * none) asked for it. */
struct rk_status *rk_reward_score(struct rk_reward *reward, const struct rk_reward_item *items,
                                  int64_t num_items, struct rk_reward_result *results,
                                  const struct rk_reward_watch *watch) RK_NODISCARD;
/* The ground truth with its JSON type; null when the item has none. The caller frees it. */
struct rk_json *rk_reward_truth(const struct rk_reward_item *item);
/* Whether F32 can hold the score: rewards of tokens are F32. */
bool rk_reward_is_in_range(double score);
void rk_reward_results_fini(struct rk_reward_result *results, int64_t count);
const char *rk_reward_outcome_name(rk_reward_outcome_t outcome); /* "timeout" */

RK_END_DECLS

#endif
