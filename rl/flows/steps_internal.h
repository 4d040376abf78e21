/* The steps of flows and their common functions (docs/flows.md). */
#ifndef RK_FLOW_STEPS_INTERNAL_H
#define RK_FLOW_STEPS_INTERNAL_H

#include "rl/rk_flows.h"

/* --- the steps, one file each, or shared by steps with common functions (step_*.c) --- */
extern const struct rk_flow_step rk_step_prompts, rk_step_generate, rk_step_generate_filtered, rk_step_layout,
    rk_step_reward, rk_step_baseline, rk_step_samples, rk_step_old_log_prob, rk_step_ref, rk_step_teacher,
    rk_step_opd, rk_step_values, rk_step_adv, rk_step_update_critic, rk_step_end_update_critic,
    rk_step_update_actor, rk_step_metrics, rk_step_verify_replicas, rk_step_save_checkpoint, rk_step_validate,
    rk_step_dump;
extern const struct rk_flow_step rk_step_token_rewards, rk_step_rollout_correction, rk_step_update_weights;
extern const struct rk_flow_step rk_step_examples, rk_step_update_sft, rk_step_update_dpo,
    rk_step_example_metrics, rk_step_validate_sft, rk_step_validate_dpo;

/* Column of the batch, of a job with several teachers: the index of the row's. */
#define RK_FLOW_TEACHER "teacher"
/* Column of the batch: response_mask before rollout correction rejected tokens. */
#define RK_FLOW_SCORED_MASK "scored_mask"

/* --- functions that steps share (flow_batch.c) --- */
/* Zeroed memory of the step's arena. */
void *rk_flow_scratch(struct rk_flow_context *ctx, size_t count, size_t elem_bytes);
/* A column of the batch with the shape [B, width], checked: it comes from the daemons. */
struct rk_status *rk_flow_column(const struct rk_flow_context *ctx, const char *name, rk_dtype_t dtype,
                                 int64_t width, const void **data) RK_NODISCARD;
/* rk_flow_column for another batch, with num_rows rows. */
struct rk_status *rk_flow_column_of(const struct rk_batch *batch, const char *name, rk_dtype_t dtype,
                                    int64_t num_rows, int64_t width, const void **data) RK_NODISCARD;
/* Marks in each row of the mask `mask_name`: *out[num_rows], in the arena. */
struct rk_status *rk_flow_sum_rows(struct rk_flow_context *ctx, const char *mask_name, int64_t width,
                                   int64_t **out) RK_NODISCARD;

/* The columns of a batch that a call of the method takes: those that it requires (proto/columns.def), and
 * those of `optional`, ended by NULL, that the batch has. optional NULL: none. */
struct rk_status *rk_flow_select(struct rk_batch **out, const struct rk_batch *batch, const char *method,
                                 const char *const *optional) RK_NODISCARD;

/* Adds rows until the replicas have equal parts; takes ownership of the batch. */
struct rk_status *rk_flow_pad(struct rk_batch **batch, int64_t *num_padded,
                              int32_t num_replicas) RK_NODISCARD;

/* --- examples (data_examples.c) --- */
/* The plan of an update with examples of those lengths (step_examples.c). */
struct rk_status *rk_flow_example_plan(struct rk_plan *plan, struct rk_flow_context *ctx,
                                       const int64_t *seqlens, const int64_t *loss_tokens) RK_NODISCARD;
/* The sequences of the examples, one after the other, padded on the right to the longest: input_ids,
 * attention_mask, position_ids, loss_mask [B, S]. The same as a prompt of one token and a response:
 * responses, and their part of the loss mask as response_mask [B, R], R = S - 1. */
struct rk_status *rk_flow_collate(struct rk_batch **out, const struct rk_example *const *examples,
                                  int64_t num_examples, int64_t pad_id) RK_NODISCARD;

/* --- forward passes (forward_pass.c) --- */
struct rk_flow_pass {
    const char *role, *method;
    struct rk_job_micro micro;
    const struct rk_batch *batch;
    int64_t num_rows;
    const int64_t *seqlens;  /* [num_rows] */
    struct rk_json *options; /* of the method; stolen */
};
/* --- flow_routes.c: router replay --- */
/* The shares of tokens, and of pairs of token and layer, whose experts differ between rollout and training,
 * from the metrics of compute_log_prob, if it compared them. */
void rk_flow_report_routes(struct rk_json *metrics, const struct rk_json *from);
/* Sets the option of generate_sequences for a result without experts. */
void rk_flow_drop_routes(struct rk_json *options, const struct rk_flow_context *ctx);

/* Runs the method over the rows' tokens, or takes the result of the pass that was started for the role. */
struct rk_status *rk_flow_run_pass(struct rk_flow_context *ctx, const struct rk_flow_pass *pass,
                                   struct rk_driver_result *result) RK_NODISCARD;
/* Whether the role shares no rank with the actor or a started pass. */
bool rk_flow_can_start(const struct rk_flow_context *ctx, uint32_t role);
/* Starts the pass if the role shares no rank with the actor or another started pass: it then runs
 * concurrently and uses other devices. Otherwise it only frees the options. */
struct rk_status *rk_flow_start_pass(struct rk_flow_context *ctx,
                                     const struct rk_flow_pass *pass) RK_NODISCARD;
/* Starts any other call under the same condition. *is_started is false if the role shares a rank: the call
 * was not sent. */
struct rk_status *rk_flow_start_beside(bool *is_started, struct rk_flow_context *ctx,
                                       const struct rk_driver_call_args *call) RK_NODISCARD;
bool rk_flow_is_started(const struct rk_flow_context *ctx, uint32_t role);
/* The future of the role's started call, which the caller then owns; NULL when none was started. */
struct rk_future *rk_flow_take_started(struct rk_flow_context *ctx, uint32_t role);
/* Cancels calls that were started and not taken. */
void rk_flow_drop_passes(struct rk_flow_context *ctx);
/* Whether no rank belongs to both meshes. */
bool rk_flow_are_apart(const struct rk_mesh *a, const struct rk_mesh *b);
/* The passes that do not depend on another one's result: of the reference, the critic (the options are the
 * caller's) and the teachers. */
struct rk_flow_pass rk_flow_ref_pass(const struct rk_flow_context *ctx);
struct rk_flow_pass rk_flow_values_pass(const struct rk_flow_context *ctx);
struct rk_status *rk_flow_start_teachers(struct rk_flow_context *ctx) RK_NODISCARD;
/* Starts such passes if they can run concurrently with the actor's. */
extern const struct rk_flow_step rk_step_start_passes;
/* ABORTED (reason NON_FINITE) if the column, [num_rows, R], has such a value under the mask. */
struct rk_status *rk_flow_check_finite(const struct rk_flow_context *ctx, const char *name) RK_NODISCARD;

/* Runs a pass that computes log-probs over the batch, and adds its columns; steals the options. */
struct rk_status *rk_flow_add_log_probs(struct rk_flow_context *ctx, uint32_t role, const char *method,
                                        const char *section, struct rk_json *options) RK_NODISCARD;

/* --- batches of a role that trains (step_layout.c, update_plan.c) --- */
/* The order in which the replicas of a role take the rows; the composition of mini-batches does not depend on
 * the number of replicas. order[i] is the index, among the rows in the order of the prompts, of row i of the
 * new order. */
struct rk_status *rk_flow_layout(struct rk_flow_context *ctx, uint32_t role, const int64_t *seqlens,
                                 int64_t *order) RK_NODISCARD;
/* False when every response lost its score or is empty, so there is nothing to train on. */
struct rk_status *rk_flow_has_loss_tokens(struct rk_flow_context *ctx, bool *has) RK_NODISCARD;
/* rk_plan_build with the requirements of the role's mesh, and the micro-batches: fills num_replicas, the
 * sizes and the multiple of micro-batches, and the workload. */
struct rk_status *rk_flow_make_plan(struct rk_plan *plan, struct rk_flow_context *ctx, uint32_t role,
                                    const struct rk_job_micro *micro,
                                    struct rk_plan_request request) RK_NODISCARD;
/* Mini- and micro-batches of an update of the role; [num_rows] arrays are in the order of its rows. */
struct rk_status *rk_flow_update_plan(struct rk_plan *plan, struct rk_flow_context *ctx, uint32_t role,
                                      const int64_t *seqlens, const int64_t *loss_tokens) RK_NODISCARD;

/* --- weights of a rollout that has its own (step_weights.c) --- */
/* Copies the actor's weights to the rollout; inside a step, metrics have the transferred bytes. */
struct rk_status *rk_flow_update_weights(struct rk_flow_context *ctx) RK_NODISCARD;
/* INTERNAL unless the responses come from the last copied weights. */
struct rk_status *rk_flow_check_version(struct rk_flow_context *ctx,
                                        const struct rk_batch *answers) RK_NODISCARD;

/* --- responses (generate_rows.c) --- */
struct rk_flow_prompts {
    int64_t num_rows;
    const struct rk_dataset_row *const *rows; /* [num_rows] */
    const int64_t *random_streams;            /* [num_rows]: docs/sampling.md */
};
/* Generates a response to each row, of any number of rows: *out is the batch of generate_sequences; its
 * metrics are added to `metrics`. Steals `sampling`, the options of the sampler. */
struct rk_status *rk_flow_generate(struct rk_batch **out, struct rk_flow_context *ctx,
                                   const struct rk_flow_prompts *prompts, struct rk_json *sampling,
                                   struct rk_json *metrics) RK_NODISCARD;

/* --- prompts and samples of a step (step_generate.c) --- */
/* n responses to each of the prompts, one after the other, with the random streams from `first_stream` on. */
struct rk_status *rk_flow_answer(struct rk_batch **out, struct rk_flow_context *ctx,
                                 const struct rk_dataset_row *const *prompts, int64_t num_prompts,
                                 int64_t first_stream) RK_NODISCARD;
/* Columns uid, index and session of the step's batch, whose groups are in the order of the step's prompts,
 * and the teacher of each row if there are several. */
struct rk_status *rk_flow_add_identity(struct rk_flow_context *ctx) RK_NODISCARD;
bool rk_flow_filters_groups(const struct rk_flow_context *ctx); /* algorithm.filter_groups.enable */

/* --- groups with equal rewards (step_filter.c) --- */
/* The value of a row that algorithm.filter_groups.metric names; false when there is none. */
bool rk_filter_value(double *out, const struct rk_reward_result *result, const char *metric);
/* Whether the values of a group differ; NaN stands for a row without a score. A group of one row is kept. */
bool rk_filter_keeps(const double *values, int64_t count);

/* --- scores (score_rows.c) --- */
/* The reward item of a data row, with an empty response. */
struct rk_reward_item rk_flow_reward_item(const struct rk_dataset_row *row);
/* Decodes the responses of `batch` (columns responses and attention_mask) and has the job's reward score
 * them; prompts[row] is the data row of each. Everything except the results' owned members is in the step's
 * arena. Ends with CANCELLED soon after an interrupt of the driver. */
struct rk_status *rk_flow_score(struct rk_flow_scores *out, struct rk_flow_context *ctx,
                                const struct rk_batch *batch,
                                const struct rk_dataset_row *const *prompts) RK_NODISCARD;
void rk_flow_scores_fini(struct rk_flow_scores *scores);
/* compute_rm_score of these rows, which have input_ids, attention_mask and position_ids. */
struct rk_status *rk_flow_run_rm_score(struct rk_driver_result *result, struct rk_flow_context *ctx,
                                       const struct rk_batch *texts) RK_NODISCARD;
/* Scores the responses with the reward model; called by rk_flow_score; rm_score is reported with
 * each score. ABORTED (reason NON_FINITE) for a non-finite score. */
struct rk_status *rk_flow_add_rm_scores(struct rk_flow_scores *scores, struct rk_flow_context *ctx,
                                        const struct rk_batch *batch,
                                        const struct rk_dataset_row *const *prompts) RK_NODISCARD;
/* reward.reward_manager.name=dapo with its overlong_buffer_cfg (flow_overlong.c): responses that end within
 * the buffer, or after it, get a penalty; acc and score are reported without it. */
void rk_overlong_apply(struct rk_flow_scores *scores, const struct rk_config *job);
/* Reports the score under verl's names, before the caller changes it. */
void rk_flow_keep_score(struct rk_reward_result *result);
bool rk_flow_has_score(const struct rk_reward_result *result);
/* Clears the response_mask of rows: without marks they are excluded from losses, denominators, group
 * statistics and means. */
struct rk_status *rk_flow_drop_rows(struct rk_batch *batch, const bool *is_dropped) RK_NODISCARD;
/* Excludes rows without a score (is_dropped) from training: clears their response_mask, also for a row that
 * is the only remaining one of its group. group_of[row] is below num_groups; NULL: rows are not compared with
 * each other. Sets reward/dropped and reward/dropped_groups. */
struct rk_status *rk_flow_drop_unscored(struct rk_batch *batch, struct rk_json *metrics,
                                        const struct rk_flow_scores *scores, const int64_t *group_of,
                                        int64_t num_groups) RK_NODISCARD;
/* reward/errors, timeouts, crashes and skips, and reward_extra/NAME/... of further values. */
void rk_flow_reward_metrics(struct rk_json *metrics, const struct rk_flow_scores *scores);

/* --- responses for users (flow_samples.c) --- */
/* A scored response; its text lives in the arena and in the item. */
struct rk_sample rk_flow_sample(struct rk_arena *arena, const struct rk_reward_item *item,
                                const struct rk_reward_result *result);

/* --- numbers (flow_metrics.c) --- */
void rk_flow_metric(struct rk_json *metrics, const char *name, double value); /* null when not finite */
/* NAME/mean, NAME/max, NAME/min; nothing when count is 0. */
void rk_flow_metric_stats(struct rk_json *metrics, const char *name, const double *values, int64_t count);
void rk_flow_merge_metrics(struct rk_json *metrics, const struct rk_json *more);
/* Log-probs of the policy, computed again, and of the rollout: [num_rows, width]. */
struct rk_flow_comparison {
    int64_t num_rows, width;
    const int64_t *rows; /* [num_rows]: which rows of the step these are; NULL: the first ones */
    const float *old_log_probs, *rollout_log_probs;
    const int64_t *mask;
};
/* training/old_log_prob_check_max_diff and rk_flow_probs_diff. If both must be equal and are not:
 * ABORTED (reason LOG_PROB_MISMATCH) with row, token and both values. */
struct rk_status *rk_flow_compare_log_probs(struct rk_json *metrics, const struct rk_flow_comparison *c,
                                            bool has_to_be_equal) RK_NODISCARD;
/* training/rollout_probs_diff_*: difference between the rollout's probabilities and the trainer's. */
void rk_flow_probs_diff(struct rk_json *metrics, const float *old_log_probs, const float *rollout_log_probs,
                        const int64_t *mask, int64_t count);
/* Scores, rewards, advantages, returns and lengths of a finished batch. ABORTED when every response is empty.
 */
struct rk_status *rk_flow_data_metrics(struct rk_json *metrics, const struct rk_batch *batch) RK_NODISCARD;
/* perf/mfu and train/mfu (flow_mfu.c) where the peak of the devices is known; timing_per_token_ms and perf.
 */
void rk_flow_mfu_metrics(struct rk_flow_context *ctx);
void rk_flow_speed_metrics(struct rk_json *metrics, int64_t num_tokens, int64_t num_response_tokens,
                           double step_s, int32_t world_size);

#endif
