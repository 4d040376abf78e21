/* Prompts from JSON Lines: one object a line, {"prompt": text or chat messages, "data_source": ...,
 * "reward_model":
 * {"ground_truth": ...}, "extra_info": {...}} as verl's parquet rows have them. */
#ifndef RK_DATASET_H
#define RK_DATASET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_json.h"
#include "base/rk_status.h"
#include "driver-cli/rk_tokenizer.h"

RK_BEGIN_DECLS

struct rk_dataset;

struct rk_dataset_config {
    const char *const *files; /* NULL-terminated */
    const char *prompt_key;   /* "prompt" */
    int64_t max_prompt_length;
    const char *truncation; /* error, left, right, middle */
    bool filter_overlong_prompts;
    bool shuffle;
    uint64_t seed;
    int64_t max_samples; /* -1: all */
};

struct rk_dataset_row {
    const int32_t *prompt_ids;
    int64_t prompt_len;
    const char *prompt;               /* text */
    const char *data_source;          /* "" when absent */
    const char *ground_truth;         /* text; objects as JSON text; "" when absent */
    const struct rk_json *extra_info; /* or NULL */
    int64_t index;                    /* line order over all files */
};

/* Reads and tokenizes everything. INVALID_ARGUMENT "FILE:LINE: KEY: ..." for a bad line. */
struct rk_status *rk_dataset_create(struct rk_dataset **out, const struct rk_dataset_config *config,
                                    const struct rk_tokenizer *tokenizer) RK_NODISCARD;
void rk_dataset_destroy(struct rk_dataset *dataset); /* NULL is a no-op */
int64_t rk_dataset_num_rows(const struct rk_dataset *dataset);
/* Row i of epoch e (a permutation per epoch when shuffled). Borrowed. */
const struct rk_dataset_row *rk_dataset_at(struct rk_dataset *dataset, int64_t epoch, int64_t i);

RK_END_DECLS

#endif
