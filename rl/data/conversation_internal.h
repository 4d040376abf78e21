/* From the messages or the texts of a row to tokens with a loss mask. */
#ifndef RK_CONVERSATION_INTERNAL_H
#define RK_CONVERSATION_INTERNAL_H

#include "rl/data/messages.h"
#include "rl/rk_examples.h"

/* A sequence that grows. Zero-initialise; rk_marked_ids_fini releases. */
struct rk_marked_ids {
    int32_t *ids;
    uint8_t *loss_mask;
    int64_t count;
};

/* State that all rows of a dataset share. */
struct rk_example_reader {
    const struct rk_tokenizer *tokenizer;
    struct rk_messages_template from;
    int32_t eos_id; /* -1: none */
    bool ignore_mismatch;
    int64_t num_mismatches; /* conversations that were built message by message */
    /* Tokens that the template writes before a single message and at the start of an answer; learned when a
     * conversation needs them. */
    bool has_openings;
    struct rk_tokenizer_ids system, generation;
};

void rk_example_reader_fini(struct rk_example_reader *reader);
void rk_marked_ids_fini(struct rk_marked_ids *sequence);

/* The conversation as the chat template renders it, with the loss on every assistant message from
 * messages[first] on: on the text after the generation prompt up to the end of the message, including its end
 * token, or on the output of the template's generation blocks. Tools and enable_thinking are those of `row`.
 * INVALID_ARGUMENT "[I]: ..." if the text or the tokens up to an answer change when the conversation
 * continues; with ignore_mismatch such a conversation is the concatenation of its messages, each rendered
 * alone, as in verl. */
struct rk_status *rk_conversation_read(struct rk_marked_ids *out, struct rk_example_reader *reader,
                                       const struct rk_json *row, const struct rk_json *messages,
                                       int64_t first) RK_NODISCARD;
/* prompt and response, each encoded unchanged, and the end token; the loss is on the latter two. */
struct rk_status *rk_response_read(struct rk_marked_ids *out, const struct rk_example_reader *reader,
                                   const struct rk_json *prompt, const struct rk_json *response) RK_NODISCARD;

#endif
