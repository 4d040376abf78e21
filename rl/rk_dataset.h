/* Prompts from JSON Lines or JSON arrays, with the members that verl's Parquet rows have: {"prompt": text or
 * [{"role": ..., "content": ...}], "data_source": ..., "reward_model": {"ground_truth": ...}, "extra_info":
 * {...}} (docs/data.md). */
#ifndef RK_DATASET_H
#define RK_DATASET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_json.h"
#include "base/rk_status.h"
#include "text/rk_chat.h"
#include "text/rk_tokenizer.h"

RK_BEGIN_DECLS

struct rk_dataset;

/* Where a data row is, for messages. */
struct rk_row_place {
    const char *path;
    int64_t number; /* the line, from 1; of Parquet the row, from 0 */
    bool is_row;    /* Parquet */
};

char *rk_row_place_text(const struct rk_row_place *place); /* "FILE:17", "FILE:row 17"; rk_free it */

/* Counts of what became of the rows of a set's files. */
struct rk_row_counts {
    int64_t read;      /* rows, up to data.train_max_samples or data.val_max_samples */
    int64_t overlong;  /* skipped: longer than data.max_prompt_length */
    int64_t truncated; /* to data.max_prompt_length or data.max_length */
    int64_t empty;     /* skipped: truncation left no token of an answer */
};

struct rk_dataset_config {
    const char *const *files; /* NULL-terminated */
    const char *prompt_key;   /* "prompt" */
    int64_t max_prompt_length;
    const char *truncation; /* error, left, right, middle */
    bool filter_overlong_prompts;
    bool shuffle;
    uint64_t seed;
    int64_t max_samples;               /* -1: all */
    const struct rk_chat *chat;        /* renders messages; NULL: the model has no template */
    const struct rk_json *chat_kwargs; /* object of variables for it, or NULL */
    const char *template_dir;          /* where a template was looked for, for messages; or NULL */
    int64_t now_s;                     /* of templates that write the date */
    bool keep_messages;                /* rows have their messages */
    bool keep_columns;                 /* rows have their messages and all other members */
    const char *teacher_column;        /* member with the key of the row's teacher; NULL: none is read */
};

struct rk_dataset_row {
    const int32_t *prompt_ids;
    int64_t prompt_len;
    const char *prompt; /* text as it was encoded: messages are rendered; NUL may occur in it */
    size_t prompt_bytes;
    const struct rk_json *messages;          /* with keep_messages, for a prompt that is not text; or NULL */
    const struct rk_json *columns;           /* with keep_columns: the row without its prompt; or NULL */
    const char *data_source;                 /* "" when absent */
    const char *teacher;                     /* value of teacher_column, as text; "" when absent */
    const char *ground_truth;                /* text; other values as JSON text; "" when absent */
    const struct rk_json *ground_truth_json; /* the value, or NULL */
    const struct rk_json *extra_info;        /* or NULL */
    int64_t index;                           /* order of rows over all files */
    struct rk_row_place place;
};

/* The members of the row at a place of a data file, for messages: "prompt, reward_model (style)". rk_free it.
 */
char *rk_dataset_members_at(const struct rk_row_place *place);
/* Reads, renders and tokenizes everything. INVALID_ARGUMENT or UNIMPLEMENTED "FILE:LINE: KEY: ..." for an
 * invalid row. Warns once about text prompts when there is a template. */
struct rk_status *rk_dataset_create(struct rk_dataset **out, const struct rk_dataset_config *config,
                                    const struct rk_tokenizer *tokenizer) RK_NODISCARD;
void rk_dataset_destroy(struct rk_dataset *dataset); /* NULL is a no-op */
const struct rk_row_counts *rk_dataset_counts(const struct rk_dataset *dataset);
int64_t rk_dataset_num_rows(const struct rk_dataset *dataset);
/* Row i of epoch e (a permutation per epoch when shuffled). Borrowed. */
const struct rk_dataset_row *rk_dataset_at(struct rk_dataset *dataset, int64_t epoch, int64_t i);

RK_END_DECLS

#endif
