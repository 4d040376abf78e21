/* Training examples from JSON Lines or JSON arrays: token sequences with a mask of the tokens that a loss
 * covers. Rows are conversations or prompts with responses (algorithm sft), or preference pairs (algorithm
 * dpo); docs/data.md. */
#ifndef RK_EXAMPLES_H
#define RK_EXAMPLES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_json.h"
#include "base/rk_status.h"
#include "text/rk_chat.h"
#include "rl/rk_dataset.h"
#include "text/rk_tokenizer.h"

RK_BEGIN_DECLS

struct rk_examples;

/* Kind of a row. */
typedef enum rk_examples_kind {
    RK_EXAMPLES_SFT,        /* messages, or prompt and response */
    RK_EXAMPLES_PREFERENCE, /* prompt, chosen and rejected */
} rk_examples_kind_t;

#define RK_EXAMPLE_SEQUENCES_MAX 2

struct rk_examples_config {
    rk_examples_kind_t kind;
    const char *const *files; /* NULL-terminated */
    const char *messages_key; /* "messages" */
    const char *prompt_key;   /* "prompt" */
    const char *response_key; /* "response" */
    int64_t max_length;       /* tokens of a sequence */
    int64_t max_positions;    /* tokens that the model can take; 0: unknown */
    const char *truncation;   /* error, left (keeps the end), right (keeps the beginning) */
    bool ignore_input_ids_mismatch;
    bool shuffle;
    uint64_t seed;
    int64_t max_samples;               /* -1: all */
    int32_t eos_id;                    /* ends a response that is text; -1: none */
    const struct rk_chat *chat;        /* renders messages; NULL: the model has no template */
    const struct rk_json *chat_kwargs; /* object of variables for it, or NULL */
    const char *template_dir;          /* where a template was looked for, for messages; or NULL */
    int64_t now_s;                     /* of templates that write the date */
};

struct rk_example_sequence {
    const int32_t *ids;       /* [len] */
    const uint8_t *loss_mask; /* [len]: 1 on the tokens that the loss covers, never on the first */
    int64_t len;              /* 2 or more */
};

struct rk_example {
    struct rk_example_sequence sequences[RK_EXAMPLE_SEQUENCES_MAX]; /* PREFERENCE: chosen, rejected */
    int64_t num_sequences;                                          /* 1 or 2 */
    int64_t index;                                                  /* order of rows over all files */
};

/* Reads, renders and tokenizes everything. INVALID_ARGUMENT or UNIMPLEMENTED "FILE:LINE: MEMBER: ..." for an
 * invalid row. Rows in which truncation leaves no token for the loss are skipped and counted. */
struct rk_status *rk_examples_create(struct rk_examples **out, const struct rk_examples_config *config,
                                     const struct rk_tokenizer *tokenizer) RK_NODISCARD;
void rk_examples_destroy(struct rk_examples *examples); /* NULL is a no-op */
int64_t rk_examples_num_rows(const struct rk_examples *examples);
const struct rk_row_counts *rk_examples_counts(const struct rk_examples *examples);
/* Row i of epoch e (a permutation per epoch when shuffled). Borrowed. */
const struct rk_example *rk_examples_at(struct rk_examples *examples, int64_t epoch, int64_t i);

RK_END_DECLS

#endif
