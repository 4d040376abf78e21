/* A daemon with a driver: the setup of tests of the daemon's calls. */
#ifndef RK_TEST_DAEMON_FIXTURE_H
#define RK_TEST_DAEMON_FIXTURE_H

#include "dispatch/rk_batch.h"
#include "tests/support/client.h"
#include "tests/support/proc.h"
#include "tests/support/test.h"

/* Options (JSON) of a tiny random actor, of a rollout that shares its weights, and of a generation that lasts
 * longer than any test waits. */
#define FIXTURE_MODEL_OPTIONS                                                                                \
    "{\"model.hf_config\": {\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", "          \
    "\"hidden_size\": 32, \"intermediate_size\": 64, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, " \
    "\"num_key_value_heads\": 2, \"vocab_size\": 64, \"max_position_embeddings\": 20000, "                   \
    "\"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\", \"tie_word_embeddings\": "   \
    "false}}"
#define FIXTURE_ROLLOUT_OPTIONS "{\"share_weights_of\": \"actor\", \"rollout.max_num_seqs\": 4}"
#define FIXTURE_ENDLESS_OPTIONS "{\"response_length\": 19000, \"ignore_eos\": true}"

struct fixture {
    struct rk_proc *proc;
    struct rk_client *client;
    struct rk_client_lease lease;
    uint64_t generation;
    uint64_t next_seq;
    uint32_t next_id;         /* of requests */
    struct rk_batch *prompts; /* of fixture_start_endless: its header refers to them */
};

/* Starts a daemon on an ephemeral port; `args` (NULL-terminated, may be NULL) are further flags. */
void fixture_start(struct fixture *fixture, const char *const *args);
/* Acquires the lease under the next epoch and configures a world of one with the roles actor and rollout. */
void fixture_lead(struct fixture *fixture);
/* A tiny random model for both roles. */
void fixture_init_models(struct fixture *fixture);
/* Shutdown; asserts that the daemon exits with 0 (with a sanitizer: without a leak). */
void fixture_stop(struct fixture *fixture);
/* Waits for the end of a daemon that was stopped in another way. */
void fixture_end(struct fixture *fixture, int expected_code);

/* A header with the next seq and a fresh request_id, which the caller may modify. two_phase and collect are
 * set. */
struct rk_execute_header fixture_header(struct fixture *fixture, const char *role, const char *method);
/* Sets the header's options (JSON text of an object). */
void fixture_set_options(struct fixture *fixture, struct rk_execute_header *header, const char *json);
void fixture_set_input(struct fixture *fixture, struct rk_execute_header *header,
                       const struct rk_batch *input);

/* Opens an Execute stream and sends the header. */
struct rk_client_stream *fixture_open(struct fixture *fixture, const struct rk_execute_header *header);
/* fixture_open for a short generation; the body is still to be sent. */
struct rk_client_stream *fixture_open_generate(struct fixture *fixture, struct rk_execute_header *header,
                                               const struct rk_batch *prompts);
void fixture_send_commit(struct rk_client_stream *stream);
/* Sends every tensor of the batch. False if the call has ended meanwhile. */
bool fixture_send_body(struct rk_client_stream *stream, const struct rk_batch *input);
/* Reads messages up to Accepted; false if the call ended instead. */
bool fixture_read_accepted(struct fixture *fixture, struct rk_client_stream *stream, struct rk_accepted *out);
/* Reads to the end. *out (may be NULL) is NULL if there is no result. */
void fixture_read_result(struct fixture *fixture, struct rk_client_stream *stream, struct rk_batch **out);
/* A complete call; increments the seq when it was accepted. */
struct rk_status *fixture_execute(struct fixture *fixture, struct rk_execute_header *header,
                                  const struct rk_batch *input, struct rk_batch **out) RK_NODISCARD;

/* Prompts of 4 tokens. */
struct rk_batch *fixture_prompts(int64_t num_rows);
/* A call that runs until it is cancelled. */
struct rk_execute_header fixture_endless_header(struct fixture *fixture);
/* Opens and commits it, and waits until it runs. The header can be used again, to repeat or to cancel the
 * call. */
struct rk_client_stream *fixture_start_endless(struct fixture *fixture, struct rk_execute_header *header);

/* Generates 3 tokens for each of `num_rows` prompts. */
struct rk_status *fixture_generate(struct fixture *fixture, int64_t num_rows) RK_NODISCARD;
/* The Cancel RPC for the request of that header; stores the outcome. */
struct rk_status *fixture_cancel(struct fixture *fixture, const struct rk_execute_header *header,
                                 bool abort_comm, char outcome[32]) RK_NODISCARD;
uint64_t fixture_last_seq(struct fixture *fixture);
/* Waits until GetStatus returns that state. */
void fixture_wait_state(struct fixture *fixture, const char *state);

/* Checks code and reason; frees the status. */
#define assert_refused(st, code, reason) \
    fixture_assert_refused((st), (code), (reason), #st, __FILE__, __LINE__)
void fixture_assert_refused(struct rk_status *st, rk_code_t code, const char *reason, const char *expr,
                            const char *file, int line);

#endif
