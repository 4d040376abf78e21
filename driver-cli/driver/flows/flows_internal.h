/* Flows: what one step of training does, as a list of named parts over one context (docs/flows.md). */
#ifndef RK_FLOWS_INTERNAL_H
#define RK_FLOWS_INTERNAL_H

#include "base/rk_config.h"
#include "driver-cli/driver/flows/flow_internal.h"
#include "driver-cli/driver/job_internal.h"
#include "driver-cli/driver/loggers/loggers_internal.h"
#include "driver-cli/driver/memory_sum_internal.h"
#include "driver-cli/rk_driver.h"
#include "driver-cli/rk_examples.h"

/* Linear term of verl's 7B model, where the model's config.json is elsewhere. */
#define RK_FLOW_WORKLOAD_DEFAULT 24576
#define RK_FLOW_CONFIG_BYTES_MAX (1u << 20) /* of config.json */

/* The reward model of a job. */
struct rk_flow_reward_model {
    char *path; /* of reward.reward_model.model_path; NULL: no reward model */
    struct rk_tokenizer
        *tokenizer;       /* that texts are encoded with again; NULL: it reads the policy's tokens */
    struct rk_chat *chat; /* with the tokenizer; NULL: prompts are texts */
    int64_t now_s;        /* of templates that write the date */
};

/* What a job with prompts names besides. */
struct rk_prompt_inputs {
    struct rk_dataset *train, *val; /* val: NULL without data.val_files */
    struct rk_reward *reward;       /* NULL: the reward model alone scores */
    struct rk_flow_reward_model reward_model;
    const struct rk_adv_ops *adv;
    char *critic_path;  /* of critic.model.path; NULL: the model is the actor's */
    char *teacher_path; /* of distillation.teacher.model.path; NULL: no teacher */
    /* Ids that the teacher's probabilities are over, where its vocabulary has more than the student's; 0:
     * all. */
    int64_t teacher_vocab_size;
};

/* What a job with examples names besides. */
struct rk_example_inputs {
    struct rk_examples *train, *val; /* val: NULL without data.val_files */
};

/* What a job names, read and checked before any daemon is started. */
struct rk_flow_inputs {
    const struct rk_flow_data *data; /* says which part of the union is there */
    union {
        struct rk_prompt_inputs prompts;
        struct rk_example_inputs examples;
    } of;             /* by rk_flow_prompt_inputs and rk_flow_example_inputs, which assert it */
    char *model_path; /* absolute, of a name in Hugging Face's cache too; NULL: random weights */
    char *tokenizer_dir;
    struct rk_json *hf_config; /* config.json; NULL when model_path is not on this machine */
    struct rk_json *eos_ids;   /* array */
    int64_t pad_id;
    struct rk_workload workload;
    struct rk_tokenizer *tokenizer;
    struct rk_chat *chat; /* NULL: the tokenizer has no chat template */
};

/* The part of its kind of data, of a job that has such data (asserted). */
const struct rk_prompt_inputs *rk_flow_prompt_inputs(const struct rk_flow_inputs *inputs);
const struct rk_example_inputs *rk_flow_example_inputs(const struct rk_flow_inputs *inputs);
/* The directory of the role's model where the job gives it one of its own; NULL: it has the policy's, or the
 * job has no such role. */
const char *rk_flow_own_model(const struct rk_flow_inputs *inputs, uint32_t role);

/* Relative paths of the job are relative to `job_dir`. */
struct rk_status *rk_flow_inputs_load(struct rk_flow_inputs *out, const struct rk_config *job,
                                      const char *job_dir) RK_NODISCARD;
void rk_flow_inputs_fini(struct rk_flow_inputs *inputs);
int64_t rk_flow_inputs_num_rows(const struct rk_flow_inputs *inputs); /* of data.train_files */
/* Full paths of the files that the list `key` of the job names: NULL-terminated; rk_flow_files_free. */
struct rk_status *rk_flow_files(char ***out, const struct rk_config *job, const char *key,
                                const char *job_dir) RK_NODISCARD;
void rk_flow_files_free(char **files); /* NULL is a no-op */

/* --- tokenizers of a job (flow_tokenizer.c) --- */
/* Opens `full`, a tokenizer.json or its directory; *dir receives the directory (rk_free), on failure too.
 * NOT_FOUND when it is not on this machine; the message calls it `name`, as the job does. */
struct rk_status *rk_flow_open_tokenizer(struct rk_tokenizer **out, char **dir, const char *full,
                                         const char *name) RK_NODISCARD;
/* INVALID_ARGUMENT names the first token of `path` that is not the same in the tokenizer of `owner`. */
struct rk_status *rk_flow_compare_tokens(const struct rk_tokenizer *tokenizer, const char *path,
                                         const struct rk_tokenizer *expected, const char *owner) RK_NODISCARD;

/* --- the directory of a model that is not the policy's (flow_model_dir.c) --- */
struct rk_flow_model_dir {
    char *config_path;
    struct rk_json *config; /* config.json; NULL: not on this machine */
    char *tokenizer_dir;
    struct rk_tokenizer *tokenizer; /* NULL: none was found */
};
/* Without its tokenizer. Fails for a config.json that is no JSON; `out` is to be ended after that, too. */
struct rk_status *rk_flow_model_dir_open(struct rk_flow_model_dir *out, const char *path) RK_NODISCARD;
void rk_flow_model_dir_fini(struct rk_flow_model_dir *dir);
/* Whether the pipeline of the role can have the layers of that config.json; NULL, or a role that the job does
 * not need: there is nothing to say. */
struct rk_status *rk_flow_check_layers(const struct rk_config *job, uint32_t role,
                                       const struct rk_json *config) RK_NODISCARD;
const char *rk_flow_architecture(const struct rk_flow_model_dir *dir); /* NULL: not said */
/* Of tokens or of sequences. */
bool rk_flow_is_classifier(const struct rk_flow_model_dir *dir);
int64_t rk_flow_num_labels(const struct rk_flow_model_dir *dir);
/* INVALID_ARGUMENT unless the policy's tokens mean the same to the model; `advice` is what to do where only a
 * tokenizer could tell. */
struct rk_status *rk_flow_check_same_tokens(const struct rk_flow_model_dir *dir,
                                            const struct rk_flow_inputs *inputs,
                                            const char *advice) RK_NODISCARD;

/* The critic's directory, where the job has a critic with one (flow_critic.c). INVALID_ARGUMENT names the
 * file that promises a value head and has none, or another vocabulary. */
struct rk_status *rk_flow_load_critic(struct rk_prompt_inputs *out, const struct rk_flow_inputs *inputs,
                                      const struct rk_config *job, const char *job_dir) RK_NODISCARD;

/* The teacher, where the job has one: its directory, and that its vocabulary is the student's, but for
 * more padding (flow_teacher.c). INVALID_ARGUMENT names the file and what differs. */
struct rk_status *rk_flow_load_teacher(struct rk_prompt_inputs *out, const struct rk_flow_inputs *inputs,
                                       const struct rk_config *job, const char *job_dir) RK_NODISCARD;

/* --- the reward model of a job (flow_reward_model.c, flow_rm_score.c) --- */
/* Behind the prompts. INVALID_ARGUMENT for a directory without a score head, and for a vocabulary that is not
 * the policy's and has no tokenizer here. */
struct rk_status *rk_flow_load_reward_model(struct rk_prompt_inputs *out, const struct rk_flow_inputs *inputs,
                                            const struct rk_config *job, const char *job_dir) RK_NODISCARD;
void rk_flow_reward_model_fini(struct rk_flow_reward_model *model);
/* The tokens of a prompt with its response in the model's own tokenizer: its chat template over the messages,
 * or the texts one behind the other. rk_free out->items, on failure too. */
struct rk_status *rk_flow_reward_text(struct rk_tokenizer_ids *out, const struct rk_flow_reward_model *model,
                                      const struct rk_dataset_row *row,
                                      const struct rk_reward_item *item) RK_NODISCARD;

/* Who is told how it goes. */
struct rk_flow_sink {
    void *user;
    /* What the roles will take, or as far as was found out, would; they have not taken it yet. */
    struct rk_status *(*on_memory_plan)(void *user, const struct rk_memory_sum *sum);
    void (*on_begin)(void *user, int64_t first_step, int64_t total_steps); /* the models are there */
    void (*on_phase)(void *user, const char *phase);
    void (*on_progress)(void *user, const struct rk_progress *progress); /* of rank 0, inside a call */
    void (*on_samples)(void *user, int64_t step, const struct rk_samples *samples); /* for people */
    struct rk_status *(*on_step)(void *user, int64_t step, const struct rk_json *metrics);
    /* A checkpoint of the last step is about to be complete: what on_step wrote must be on the disk. */
    struct rk_status *(*on_saved)(void *user);
};

/* The decoded and scored responses of a batch, row by row. */
struct rk_flow_scores {
    int64_t num_rows;
    struct rk_reward_item *items; /* texts of prompt and response, ground truth */
    int64_t *lengths;             /* tokens of the response */
    struct rk_reward_result *results;
};

/* Where the data and the random streams stand. */
struct rk_run_position {
    int64_t epoch, next_row; /* of the permutation of that epoch */
    int64_t num_rows;        /* prompts of the data */
    int64_t next_stream;     /* noise stream of the next sample */
};

/* What the context of a job with prompts holds besides. */
struct rk_prompt_state {
    int64_t weight_version; /* of a rollout with weights of its own */
    /* of the step at hand */
    const struct rk_dataset_row **rows; /* [num_prompts]; borrowed from the dataset */
    struct rk_flow_scores scores;       /* of the batch in its order */
};

struct rk_checkpoints;

struct rk_flow_context {
    /* fixed */
    const struct rk_flow *flow;
    const struct rk_config *job;
    const struct rk_flow_inputs *inputs;
    struct rk_driver *driver;
    struct rk_flow_sink sink;
    struct rk_job_meshes meshes;            /* of the job's roles over the driver's daemons */
    int64_t prompt_length, response_length; /* P, R; of examples 1 and the rest, as long as the step needs */
    int64_t num_prompts, num_samples;       /* of one step; n, or the sequences of a data row */
    int64_t num_rows;                       /* B = num_prompts * num_samples */
    int32_t group_size;                     /* rows that stay in one micro-batch */
    int64_t mini_batch_rows;
    int64_t steps_per_epoch, total_steps;
    int64_t num_left_out;    /* prompts of an epoch that do not fill a batch */
    int32_t num_replicas;    /* of the actor */
    const char *trace_path;  /* where profiled steps go; NULL: no step is profiled */
    const char *export_path; /* where the model will go: tried before the first step; NULL: nowhere */
    bool validates_only;     /* trainer.val_only */
    bool has_tokenizer;      /* the export has its tokenizer beside it */
    const struct rk_checkpoints *checkpoints; /* borrowed; NULL: nothing is saved or loaded */
    int64_t dry_device_bytes; /* of a dry run: free memory of each rank's device; 0: as the daemon's has */

    struct rk_kl_ctrl kl_ctrl;       /* as the next step reads it */
    struct rk_run_position position; /* what the next prompts and samples are */
    int64_t trained_step;            /* the last one whose update the daemons have done; 0: none */
    struct rk_flow_profile *profile; /* owned; NULL: no step was profiled yet */
    /* the last checkpoint */
    int64_t saved_step;   /* complete; 0: none yet */
    int64_t writing_step; /* being written; 0: none */

    /* the step at hand */
    struct rk_arena *arena; /* reset after each step */
    int64_t step, epoch;    /* step from 1 */
    int32_t progress_rank;  /* whose progress the running call shows */
    int64_t started_ns;
    struct rk_batch *batch;
    int64_t *seqlens; /* [num_rows], of the batch in its order */
    struct rk_json *metrics;
    struct {
        uint32_t role; /* 0: none */
        struct rk_future *future;
    } passes[RK_LIMIT_ROLES]; /* started, and not taken yet */

    /* the data's own part, by the row of the flow */
    union {
        struct rk_prompt_state prompts;
    } of; /* by rk_flow_prompt_state, which asserts it */
};

/* Of a job with prompts (asserted). */
struct rk_prompt_state *rk_flow_prompt_state(struct rk_flow_context *ctx);
const struct rk_flow_scores *rk_flow_scores_of(const struct rk_flow_context *ctx);

/* Fills the fixed part. The driver has claimed its daemons. */
struct rk_status *rk_flow_context_init(struct rk_flow_context *ctx, const struct rk_config *job,
                                       const struct rk_flow_inputs *inputs, struct rk_driver *driver,
                                       const struct rk_flow_sink *sink) RK_NODISCARD;
void rk_flow_context_fini(struct rk_flow_context *ctx);
/* What the roles will take, before any of them takes memory or reads weights: the sink's on_memory_plan is
 * told, also when they do not fit. The meshes are configured. */
struct rk_status *rk_flow_plan_memory(struct rk_flow_context *ctx) RK_NODISCARD;
/* --- dry runs (flow_plan.c): one daemon stands for each rank of the world that differs from the others ---
 */
/* Calls init_model, with plan_only in its options, as every rank of the role: plans[num_workers], to be
 * freed, NULL of one outside its mesh. Ranks whose coordinates differ in dp and cp only have equal plans,
 * unless the rollout has a mesh of its own, and are asked once. Steals the options. */
struct rk_status *rk_flow_dry_plans(struct rk_flow_context *ctx, const char *role, struct rk_json *options,
                                    struct rk_json **plans) RK_NODISCARD;
/* The micro-batches of one update of the actor when all sequences have their full length. In the step's
 * arena. */
struct rk_status *rk_flow_plan_update(struct rk_plan *plan, struct rk_flow_context *ctx) RK_NODISCARD;
/* Meshes and models, then all steps. */
struct rk_status *rk_flow_run(struct rk_flow_context *ctx) RK_NODISCARD;

/* --- the steps, a file each or a few that have their helpers in common (step_*.c) --- */
extern const struct rk_flow_step rk_step_prompts, rk_step_generate, rk_step_generate_filtered, rk_step_layout,
    rk_step_reward, rk_step_baseline, rk_step_samples, rk_step_old_log_prob, rk_step_ref, rk_step_teacher,
    rk_step_opd, rk_step_values, rk_step_adv, rk_step_update_critic, rk_step_update_actor, rk_step_metrics,
    rk_step_verify_replicas, rk_step_save_checkpoint, rk_step_validate, rk_step_dump;
extern const struct rk_flow_step rk_step_token_rewards, rk_step_rollout_correction, rk_step_update_weights;
extern const struct rk_flow_step rk_step_examples, rk_step_update_sft, rk_step_update_dpo,
    rk_step_example_metrics, rk_step_validate_sft, rk_step_validate_dpo;

/* Column of the batch: response_mask before rollout correction rejected tokens. */
#define RK_FLOW_SCORED_MASK "scored_mask"

/* --- what steps have in common (flow_batch.c) --- */
/* Zeroed memory of the step's arena. */
void *rk_flow_scratch(struct rk_flow_context *ctx, size_t count, size_t elem_bytes);
/* A column of the batch with the shape [B, width], checked: it comes from the daemons. */
struct rk_status *rk_flow_column(const struct rk_flow_context *ctx, const char *name, rk_dtype_t dtype,
                                 int64_t width, const void **data) RK_NODISCARD;
/* The same of another batch, with num_rows rows. */
struct rk_status *rk_flow_column_of(const struct rk_batch *batch, const char *name, rk_dtype_t dtype,
                                    int64_t num_rows, int64_t width, const void **data) RK_NODISCARD;
/* Marks in each row of the mask `mask_name`: *out[num_rows], in the arena. */
struct rk_status *rk_flow_sum_rows(struct rk_flow_context *ctx, const char *mask_name, int64_t width,
                                   int64_t **out) RK_NODISCARD;

/* Those columns of the batch, named by an array that ends with NULL. */
struct rk_status *rk_flow_select(struct rk_batch **out, const struct rk_flow_context *ctx,
                                 const char *const *columns) RK_NODISCARD;

/* Adds rows until there are as many as the replicas take in equal parts; takes the batch. */
struct rk_status *rk_flow_pad(struct rk_batch **batch, int64_t *num_padded,
                              int32_t num_replicas) RK_NODISCARD;

/* --- examples (flow_examples.c) --- */
/* The plan of an update with examples of those lengths (step_examples.c). */
struct rk_status *rk_flow_example_plan(struct rk_plan *plan, struct rk_flow_context *ctx,
                                       const int64_t *seqlens, const int64_t *loss_tokens) RK_NODISCARD;
/* The sequences of the examples, one after the other, padded on the right to the longest: input_ids,
 * attention_mask, position_ids, loss_mask [B, S]. The same as a prompt of one token and a response:
 * responses, and their part of the loss mask as response_mask [B, R], R = S - 1. */
struct rk_status *rk_flow_collate(struct rk_batch **out, const struct rk_example *const *examples,
                                  int64_t num_examples, int64_t pad_id) RK_NODISCARD;

/* --- forward passes (flow_forward.c) --- */
struct rk_flow_pass {
    const char *role, *method;
    struct rk_job_micro micro;
    const struct rk_batch *batch;
    const char *const
        *columns; /* that the method reads, ended by NULL; NULL: a prompt's and its response's */
    int64_t num_rows;
    const int64_t *seqlens;  /* [num_rows] */
    struct rk_json *options; /* of the method; stolen */
};
/* Runs the method over the rows' tokens, or takes the result of the pass that was started for the role. */
struct rk_status *rk_flow_run_pass(struct rk_flow_context *ctx, const struct rk_flow_pass *pass,
                                   struct rk_driver_result *result) RK_NODISCARD;
/* Starts the pass where the role shares no rank with the actor or another started pass: it runs beside them,
 * and takes no memory from them. Elsewhere it does nothing but free the options. */
struct rk_status *rk_flow_start_pass(struct rk_flow_context *ctx,
                                     const struct rk_flow_pass *pass) RK_NODISCARD;
/* Cancels what was started and not taken. */
void rk_flow_drop_passes(struct rk_flow_context *ctx);
/* Whether no rank stands in both meshes. */
bool rk_flow_are_apart(const struct rk_mesh *a, const struct rk_mesh *b);
/* The passes that do not depend on another one's result: those of the teacher, the reference and the critic.
 * The options are the caller's. */
struct rk_flow_pass rk_flow_ref_pass(const struct rk_flow_context *ctx);
struct rk_flow_pass rk_flow_teacher_pass(const struct rk_flow_context *ctx);
struct rk_flow_pass rk_flow_values_pass(const struct rk_flow_context *ctx);
/* Starts those of them that can run beside the actor's. */
extern const struct rk_flow_step rk_step_start_passes;
/* ABORTED (reason NON_FINITE) when the column, [num_rows, R], has such a value at a token that counts. */
struct rk_status *rk_flow_check_finite(const struct rk_flow_context *ctx, const char *name) RK_NODISCARD;

/* Runs a pass that computes log-probs over the batch, and adds its columns; steals the options. */
struct rk_status *rk_flow_add_log_probs(struct rk_flow_context *ctx, uint32_t role, const char *method,
                                        const char *section, struct rk_json *options) RK_NODISCARD;

/* --- a step whose results are compared with those of another layout (flow_verify.c) --- */
extern const struct rk_flow_step rk_step_verify_log_prob, rk_step_verify_rm_score;
/* Columns that passes add, with the role that computes them; ends with a row without a name. */
struct rk_flow_output {
    const char *name, *role;
};
extern const struct rk_flow_output rk_flow_outputs[];
/* Models, and what a rollout with weights of its own needs before it generates. */
struct rk_status *rk_flow_verify_setup(struct rk_flow_context *ctx) RK_NODISCARD;
/* The first batch of the data: where the flow generates, with the rollout's responses. */
struct rk_status *rk_flow_verify_rows(struct rk_flow_context *ctx) RK_NODISCARD;
/* Takes over the rows that `from` made, without what passes have added to them. */
struct rk_status *rk_flow_verify_take(struct rk_flow_context *ctx,
                                      const struct rk_flow_context *from) RK_NODISCARD;
/* All passes: the batch gets their columns. */
struct rk_status *rk_flow_verify_passes(struct rk_flow_context *ctx) RK_NODISCARD;
/* What the updates learn from: advantages of about 1, other ones in every row, and returns beside values. */
struct rk_status *rk_flow_verify_targets(struct rk_flow_context *ctx, uint64_t seed) RK_NODISCARD;
/* All updates; their metrics are the context's. */
struct rk_status *rk_flow_verify_updates(struct rk_flow_context *ctx) RK_NODISCARD;
/* Weights and gradients of every role that trains go to DIR/global_step_1/ROLE. */
struct rk_status *rk_flow_verify_save(struct rk_flow_context *ctx, const char *dir) RK_NODISCARD;

/* --- how rows become batches of a role that trains (step_layout.c, flow_update.c) --- */
/* The order in which the replicas of a role take the rows, whose composition of mini-batches does not depend
 * on their number: order[i] is the place of row i of it among rows that stand prompt by prompt. */
struct rk_status *rk_flow_layout(struct rk_flow_context *ctx, uint32_t role, const int64_t *seqlens,
                                 int64_t *order) RK_NODISCARD;
/* False when every response lost its score or is empty: there is nothing to learn from. */
struct rk_status *rk_flow_has_loss_tokens(struct rk_flow_context *ctx, bool *has) RK_NODISCARD;
/* rk_plan_build with what the role's mesh asks for, and the micro-batches: fills num_replicas, the sizes and
 * the multiple of micro-batches, and the workload. */
struct rk_status *rk_flow_plan(struct rk_plan *plan, struct rk_flow_context *ctx, uint32_t role,
                               const struct rk_job_micro *micro, struct rk_plan_request request) RK_NODISCARD;
/* Mini- and micro-batches of an update of the role; [num_rows] arrays are in the order of its rows. */
struct rk_status *rk_flow_update_plan(struct rk_plan *plan, struct rk_flow_context *ctx, uint32_t role,
                                      const int64_t *seqlens, const int64_t *loss_tokens) RK_NODISCARD;

/* --- meshes, models and calls of the roles (flow_setup.c) --- */
struct rk_status *rk_flow_setup(struct rk_flow_context *ctx) RK_NODISCARD;
/* Of a role that the job needs (asserted). */
int32_t rk_flow_num_replicas(const struct rk_flow_context *ctx, uint32_t role);
/* Fails when the daemons may not write to export_path or have no room there; the model exists already. */
struct rk_status *rk_flow_check_export(struct rk_flow_context *ctx) RK_NODISCARD;
/* Writes the actor's model to export_path on the daemons' hosts and puts the tokenizer's files beside it when
 * that directory is on this machine too and may be written; warns otherwise. */
struct rk_status *rk_flow_export(struct rk_flow_context *ctx) RK_NODISCARD;
/* Runs a method; steals the options. */
struct rk_status *rk_flow_call(struct rk_flow_context *ctx, const char *role, const char *method,
                               const struct rk_batch *batch, struct rk_json *options,
                               const struct rk_plan *plan, struct rk_driver_result *result) RK_NODISCARD;

/* --- profiles of steps (flow_profile.c) --- */
/* In front of a step and behind it; nothing happens for a step that trainer.profile_steps does not name. */
struct rk_status *rk_flow_profile_begin(struct rk_flow_context *ctx) RK_NODISCARD;
struct rk_status *rk_flow_profile_end(struct rk_flow_context *ctx) RK_NODISCARD;
/* A part of the step that began then ends now. `name` is a literal. */
void rk_flow_profile_part(struct rk_flow_context *ctx, const char *name, int64_t begin_ns);
void rk_flow_profile_fini(struct rk_flow_context *ctx);

/* --- weights of a rollout that has its own (step_weights.c) --- */
/* The rollout gets the actor's; the metrics, where a step is at hand, have what was moved. */
struct rk_status *rk_flow_update_weights(struct rk_flow_context *ctx) RK_NODISCARD;
/* INTERNAL unless the answers are of the weights that it got last. */
struct rk_status *rk_flow_check_version(struct rk_flow_context *ctx,
                                        const struct rk_batch *answers) RK_NODISCARD;

/* --- responses (flow_generate.c) --- */
struct rk_flow_prompts {
    int64_t num_rows;
    const struct rk_dataset_row *const *rows; /* [num_rows] */
    const int64_t *streams;                   /* [num_rows] random streams: docs/sampling.md */
};
/* Generates a response to each row, of any number of rows: *out is the batch of generate_sequences; what it
 * measured is added to `metrics`. Steals `sampling`, the options of the sampler. */
struct rk_status *rk_flow_generate(struct rk_batch **out, struct rk_flow_context *ctx,
                                   const struct rk_flow_prompts *prompts, struct rk_json *sampling,
                                   struct rk_json *metrics) RK_NODISCARD;

/* --- prompts and samples of a step (step_generate.c) --- */
/* n responses to each of the prompts, one after the other, with the streams from `first_stream` on. */
struct rk_status *rk_flow_answer(struct rk_batch **out, struct rk_flow_context *ctx,
                                 const struct rk_dataset_row *const *prompts, int64_t num_prompts,
                                 int64_t first_stream) RK_NODISCARD;
/* Columns uid, index and session of the step's batch, whose groups are in the order of the step's prompts. */
struct rk_status *rk_flow_add_identity(struct rk_flow_context *ctx) RK_NODISCARD;
bool rk_flow_filters_groups(const struct rk_flow_context *ctx); /* algorithm.filter_groups.enable */

/* --- groups without signal (step_filter.c) --- */
/* The value of a row that algorithm.filter_groups.metric names; false when there is none. */
bool rk_filter_value(double *out, const struct rk_reward_result *result, const char *metric);
/* Whether the values of a group differ; NaN stands for a row without a score. A group of one row is kept. */
bool rk_filter_keeps(const double *values, int64_t count);

/* --- scores (flow_reward.c) --- */
/* What a data row says to the reward, with an empty response. */
struct rk_reward_item rk_flow_reward_item(const struct rk_dataset_row *row);
/* Decodes the responses of `batch` (columns responses and attention_mask) and has the job's reward score
 * them; prompts[row] is the data row of each. All but the results' own parts lives in the step's arena. Ends
 * with CANCELLED soon after an interrupt of the driver. */
struct rk_status *rk_flow_score(struct rk_flow_scores *out, struct rk_flow_context *ctx,
                                const struct rk_batch *batch,
                                const struct rk_dataset_row *const *prompts) RK_NODISCARD;
void rk_flow_scores_fini(struct rk_flow_scores *scores);
/* compute_rm_score of these rows, which have input_ids, attention_mask and position_ids. */
struct rk_status *rk_flow_run_rm_score(struct rk_driver_result *result, struct rk_flow_context *ctx,
                                       const struct rk_batch *texts) RK_NODISCARD;
/* Has the reward model score the responses, as rk_flow_score does, which calls it; rm_score stands beside
 * each score. ABORTED (reason NON_FINITE) for a score that is no number. */
struct rk_status *rk_flow_add_rm_scores(struct rk_flow_scores *scores, struct rk_flow_context *ctx,
                                        const struct rk_batch *batch,
                                        const struct rk_dataset_row *const *prompts) RK_NODISCARD;
/* reward.reward_manager.name=dapo with its overlong_buffer_cfg (flow_overlong.c): responses that end within
 * the buffer, or behind it, lose score; acc and score beside it stay as they were. */
void rk_overlong_apply(struct rk_flow_scores *scores, const struct rk_config *job);
/* What the score is, beside it under the names that verl has: for a caller that changes it. */
void rk_flow_keep_score(struct rk_reward_result *result);
bool rk_flow_has_score(const struct rk_reward_result *result);
/* Clears the response_mask of rows: without a mark they have no part in losses, denominators, group
 * statistics and means. */
struct rk_status *rk_flow_drop_rows(struct rk_batch *batch, const bool *is_dropped) RK_NODISCARD;
/* Takes rows without a score (is_dropped) out of the training: clears their response_mask, and that of a row
 * that is the only one left of its group. group_of[row] is below num_groups; NULL: rows are not compared with
 * others. Sets reward/dropped and reward/dropped_groups. */
struct rk_status *rk_flow_drop_unscored(struct rk_batch *batch, struct rk_json *metrics,
                                        const struct rk_flow_scores *scores, const int64_t *group_of,
                                        int64_t num_groups) RK_NODISCARD;
/* reward/errors, timeouts, crashes and skips, and reward_extra/NAME/... of what came beside the scores. */
void rk_flow_reward_metrics(struct rk_json *metrics, const struct rk_flow_scores *scores);

/* Copies what belongs to a tokenizer from one directory into the other. */
struct rk_status *rk_flow_copy_tokenizer(const char *from_dir, const char *to_dir) RK_NODISCARD;

/* --- checkpoints (flow_checkpoint.c) --- */
/* Loads the one that the run goes on from: ctx->step becomes its step. */
struct rk_status *rk_flow_checkpoint_load(struct rk_flow_context *ctx) RK_NODISCARD;
/* Fails when the daemons may not write checkpoints or have no room for them. */
struct rk_status *rk_flow_checkpoint_check(struct rk_flow_context *ctx) RK_NODISCARD;
/* After the sink has the metrics of the step: the driver's part of a checkpoint that was saved in it, and the
 * end of one whose writers are done. */
struct rk_status *rk_flow_checkpoint_commit(struct rk_flow_context *ctx) RK_NODISCARD;
/* Completes the checkpoint that is being written, if its writers are done; waits for them with `wait`. */
struct rk_status *rk_flow_checkpoint_finish(struct rk_flow_context *ctx, bool wait) RK_NODISCARD;

/* --- responses that people see (flow_samples.c) --- */
/* A scored response; its text lives in the arena and in the item. */
struct rk_sample rk_flow_sample(struct rk_arena *arena, const struct rk_reward_item *item,
                                const struct rk_reward_result *result);

/* --- dumps (flow_dump.c) --- */
/* Makes the folders of the dumps that the job asks for; fails when they cannot be written to. */
struct rk_status *rk_flow_dumps_check(const struct rk_config *job) RK_NODISCARD;

/* --- validation (flow_validate.c) --- */
bool rk_flow_validates(const struct rk_flow_context *ctx); /* after this step */

/* --- numbers (flow_metrics.c) --- */
void rk_flow_metric(struct rk_json *metrics, const char *name, double value); /* null when not finite */
/* NAME/mean, NAME/max, NAME/min; nothing when count is 0. */
void rk_flow_metric_stats(struct rk_json *metrics, const char *name, const double *values, int64_t count);
/* counts[row]: marked cells among the first `width` of the row; rows begin `stride` cells apart. */
void rk_flow_count_marks(int64_t *counts, const int64_t *mask, int64_t num_rows, int64_t width,
                         int64_t stride);
void rk_flow_merge_metrics(struct rk_json *metrics, const struct rk_json *more);
/* Log-probs of the policy, computed again, beside those of the rollout: [num_rows, width]. */
struct rk_flow_comparison {
    int64_t num_rows, width;
    const int64_t *rows; /* [num_rows]: which rows of the step these are; NULL: the first ones */
    const float *old_log_probs, *rollout_log_probs;
    const int64_t *mask;
};
/* training/old_log_prob_check_max_diff and rk_flow_probs_diff. When both have to be equal and are not:
 * ABORTED (reason LOG_PROB_MISMATCH) with row, token and both values. */
struct rk_status *rk_flow_compare_log_probs(struct rk_json *metrics, const struct rk_flow_comparison *c,
                                            bool has_to_be_equal) RK_NODISCARD;
/* training/rollout_probs_diff_*: how far the rollout's probabilities are from the trainer's. */
void rk_flow_probs_diff(struct rk_json *metrics, const float *old_log_probs, const float *rollout_log_probs,
                        const int64_t *mask, int64_t count);
/* Scores, rewards, advantages, returns and lengths of a finished batch. ABORTED when every response is empty.
 */
struct rk_status *rk_flow_data_metrics(struct rk_json *metrics, const struct rk_batch *batch) RK_NODISCARD;
/* timing_per_token_ms and perf. */
void rk_flow_speed_metrics(struct rk_json *metrics, int64_t num_tokens, int64_t num_response_tokens,
                           double step_s, int32_t world_size);

#endif
