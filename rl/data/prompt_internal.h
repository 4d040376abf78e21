/* From the prompt of a row to text and tokens. */
#ifndef RK_PROMPT_INTERNAL_H
#define RK_PROMPT_INTERNAL_H

#include "rl/rk_dataset.h"

struct rk_prompt {
    char *text; /* the encoded text, in which NUL may occur; rk_free */
    size_t bytes;
    struct rk_tokenizer_ids ids;
    bool is_chat; /* the row has messages */
};

/* Renders and encodes the prompt. INVALID_ARGUMENT "KEY: ..." for an invalid prompt. The caller
 * releases *out in any case. */
struct rk_status *rk_prompt_read(struct rk_prompt *out, const struct rk_json *row,
                                 const struct rk_dataset_config *config,
                                 const struct rk_tokenizer *tokenizer) RK_NODISCARD;
void rk_prompt_fini(struct rk_prompt *prompt);

#endif
