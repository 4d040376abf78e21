/* Dumps: the responses of a step as JSON Lines in <dir>/<step>.jsonl, complete or not at all. */
#ifndef RK_FLOW_DUMP_INTERNAL_H
#define RK_FLOW_DUMP_INTERNAL_H

#include <stdio.h>

#include "rl/rk_flows.h"

struct rk_dump {
    FILE *file;
    char *path, *temp_path; /* temp_path: NULL once it has become path */
    int64_t step;
};

/* One response. */
struct rk_dump_row {
    const struct rk_reward_item *item;
    const struct rk_reward_result *result;
    const char *uid;
    bool is_validation; /* the score is also written as "reward" */
    int64_t width;      /* of ids, mask and log_probs */
    const int64_t *ids, *mask;
    const float *log_probs;
};

/* Where the tokens of a generated batch are. */
struct rk_dump_columns {
    int64_t width, stride; /* of responses; of the attention mask */
    const int64_t *ids, *mask;
    const float *log_probs;
};

/* Replaces a file of that step at finish; fini in any case. */
struct rk_status *rk_dump_open(struct rk_dump *out, const char *dir, int64_t step) RK_NODISCARD;
struct rk_status *rk_dump_append(struct rk_dump *dump, const struct rk_dump_row *row) RK_NODISCARD;
struct rk_status *rk_dump_finish(struct rk_dump *dump) RK_NODISCARD;
void rk_dump_fini(struct rk_dump *dump);

struct rk_status *rk_dump_find_columns(struct rk_dump_columns *out,
                                       const struct rk_batch *batch) RK_NODISCARD;
void rk_dump_set_tokens(struct rk_dump_row *line, const struct rk_dump_columns *columns, int64_t row);

#endif
