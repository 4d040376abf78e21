/* Flows: one step of training as a list of named parts over one context (docs/flows.md). */
#ifndef RK_FLOWS_H
#define RK_FLOWS_H

#include "base/config/rk_config.h"
#include "rl/rk_flow.h"
#include "rl/rk_inputs.h"
#include "rl/rk_job.h"
#include "rl/rk_loggers.h"
#include "rl/rk_memory_sum.h"
#include "driver/rk_driver.h"

/* Callbacks for the progress of a run. */
struct rk_flow_sink {
    void *user;
    /* The memory plans of the roles, also incomplete ones; before any memory is allocated. */
    struct rk_status *(*on_memory_sum)(void *user, const struct rk_memory_sum *sum);
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

/* The positions in the data and in the random streams. */
struct rk_run_position {
    int64_t epoch, next_row;    /* of the permutation of that epoch */
    int64_t num_rows;           /* prompts of the data */
    int64_t next_random_stream; /* of the next sample */
};

/* Additional context of a job with prompts. */
struct rk_prompt_state {
    int64_t weight_version; /* of a rollout with separate weights */
    /* of the current step */
    const struct rk_dataset_row **rows; /* [num_prompts]; borrowed from the dataset */
    struct rk_flow_scores scores;       /* of the batch in its order */
};

struct rk_checkpoints;

/* Files that a run on this machine writes. */
struct rk_flow_disk {
    const struct rk_config *job;
    const struct rk_flow_inputs *inputs;
    const struct rk_checkpoints *checkpoints;
    const char *run_dir; /* which may not exist yet */
    int64_t total_steps;
};
/* RESOURCE_EXHAUSTED (reason DISK_FULL) with figures when the disk has no room for the model or for one
 * checkpoint; warns when it has none for all checkpoints that the run keeps. Estimates from config.json. */
struct rk_status *rk_flow_check_disk(const struct rk_flow_disk *in) RK_NODISCARD;
/* Asks the reward for scores, with the ground truth of a prompt as its response, so that a reward that never
 * works is found before a daemon starts. FAILED_PRECONDITION if it fails for the first few prompts. */
struct rk_status *rk_flow_try_reward(const struct rk_flow_inputs *inputs) RK_NODISCARD;

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
    const char *export_path; /* directory of the export, checked before the first step; NULL: none */
    bool validates_only;     /* trainer.val_only */
    bool has_tokenizer;      /* the export includes its tokenizer */
    const struct rk_checkpoints *checkpoints; /* borrowed; NULL: nothing is saved or loaded */
    int64_t dry_device_bytes; /* of a dry run: free memory of each rank's device; 0: as the daemon's has */

    struct rk_kl_ctrl kl_ctrl;       /* state for the next step */
    struct rk_run_position position; /* position of the next prompts and samples */
    int64_t trained_step;            /* the last one whose update the daemons have done; 0: none */
    struct rk_flow_profile *profile; /* owned; NULL: no step was profiled yet */
    /* the last checkpoint */
    int64_t saved_step;   /* complete; 0: none yet */
    int64_t writing_step; /* being written; 0: none */

    /* the current step */
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
    } of; /* read by rk_flow_prompt_state, which asserts the kind */
};

/* Adds a note about the rows of an epoch that do not fill a batch to rk_flow_rows_json's object. */
void rk_flow_rows_add_left_out(struct rk_json *rows, const struct rk_flow_context *ctx);
/* State of a job with prompts (asserted). */
struct rk_prompt_state *rk_flow_prompt_state(struct rk_flow_context *ctx);
const struct rk_flow_scores *rk_flow_scores_of(const struct rk_flow_context *ctx);

/* Fills the fixed part. The driver has claimed its daemons. */
struct rk_status *rk_flow_context_init(struct rk_flow_context *ctx, const struct rk_config *job,
                                       const struct rk_flow_inputs *inputs, struct rk_driver *driver,
                                       const struct rk_flow_sink *sink) RK_NODISCARD;
void rk_flow_context_fini(struct rk_flow_context *ctx);
/* Plans the memory of all roles before any role allocates memory or reads weights: calls the sink's
 * on_memory_sum, also when they do not fit. The meshes are configured. */
struct rk_status *rk_flow_sum_memory(struct rk_flow_context *ctx) RK_NODISCARD;
/* --- dry runs (flow_dry_run.c): one daemon acts as each distinct rank of the world --- */
/* Calls init_model, with plan_only in its options, as every rank of the role: plans[num_workers], to be
 * freed, NULL for a rank outside its mesh. Ranks whose coordinates differ in dp and cp only have equal plans,
 * unless the rollout has a separate mesh, and are queried once. Steals the options. */
struct rk_status *rk_flow_dry_memory_plans(struct rk_flow_context *ctx, const char *role,
                                           struct rk_json *options, struct rk_json **plans) RK_NODISCARD;
/* The micro-batches of one update of the actor when all sequences have their full length. In the step's
 * arena. */
struct rk_status *rk_flow_longest_plan(struct rk_plan *plan, struct rk_flow_context *ctx) RK_NODISCARD;
/* Meshes and models, then all steps. */
struct rk_status *rk_flow_run(struct rk_flow_context *ctx) RK_NODISCARD;

/* --- a step whose results are compared with those of another layout (flow_verify.c) --- */
extern const struct rk_flow_step rk_step_verify_log_prob, rk_step_verify_rm_score;
/* Columns that passes add, with the role that computes them; ends with a row without a name. */
struct rk_flow_output {
    const char *name, *role;
};
extern const struct rk_flow_output rk_flow_outputs[];
/* Models, and the weights of a rollout with its own weights before it generates. */
struct rk_status *rk_flow_verify_setup(struct rk_flow_context *ctx) RK_NODISCARD;
/* The first batch of the data: where the flow generates, with the rollout's responses. */
struct rk_status *rk_flow_verify_rows(struct rk_flow_context *ctx) RK_NODISCARD;
/* Copies the rows that `from` made, without columns added by passes. */
struct rk_status *rk_flow_verify_take(struct rk_flow_context *ctx,
                                      const struct rk_flow_context *from) RK_NODISCARD;
/* All passes: the batch gets their columns. */
struct rk_status *rk_flow_verify_passes(struct rk_flow_context *ctx) RK_NODISCARD;
/* Input of the updates: advantages of about 1, different in every row, and returns near the values. */
struct rk_status *rk_flow_verify_targets(struct rk_flow_context *ctx, uint64_t seed) RK_NODISCARD;
/* All updates; their metrics are the context's. */
struct rk_status *rk_flow_verify_updates(struct rk_flow_context *ctx) RK_NODISCARD;
/* Weights and gradients of every role that trains go to DIR/global_step_1/ROLE. */
struct rk_status *rk_flow_verify_save(struct rk_flow_context *ctx, const char *dir) RK_NODISCARD;

/* --- meshes, models and calls of the roles (flow_setup.c) --- */
struct rk_status *rk_flow_setup(struct rk_flow_context *ctx) RK_NODISCARD;
/* Replicas of a role that the job needs (asserted). */
int32_t rk_flow_num_replicas(const struct rk_flow_context *ctx, uint32_t role);
/* "fast" or "strict": the numerics of all roles. The daemons are configured. */
const char *rk_flow_numerics(const struct rk_flow_context *ctx);
/* Fails when the daemons have no write permission or space for export_path; the model exists already. */
struct rk_status *rk_flow_check_export(struct rk_flow_context *ctx) RK_NODISCARD;
/* Writes the actor's model to export_path on the daemons' hosts and adds the tokenizer's files if that
 * directory is also on this machine and writable; warns otherwise. */
struct rk_status *rk_flow_export(struct rk_flow_context *ctx) RK_NODISCARD;
/* Runs a method; steals the options. */
struct rk_status *rk_flow_call(struct rk_flow_context *ctx, const char *role, const char *method,
                               const struct rk_batch *batch, struct rk_json *options,
                               const struct rk_plan *plan, struct rk_driver_result *result) RK_NODISCARD;

/* --- profiles of steps (flow_profile.c) --- */
/* Begin and end of a profiled step; no-ops for a step that trainer.profile_steps does not list. */
struct rk_status *rk_flow_profile_begin(struct rk_flow_context *ctx) RK_NODISCARD;
struct rk_status *rk_flow_profile_end(struct rk_flow_context *ctx) RK_NODISCARD;
/* Notes that a part of the step, begun at begin_ns, ends now. `name` is a literal. */
void rk_flow_profile_part(struct rk_flow_context *ctx, const char *name, int64_t begin_ns);
void rk_flow_profile_fini(struct rk_flow_context *ctx);

/* --- checkpoints (flow_checkpoint.c) --- */
/* Loads the checkpoint to resume from: ctx->step becomes its step. */
struct rk_status *rk_flow_checkpoint_load(struct rk_flow_context *ctx) RK_NODISCARD;
/* Fails when the daemons have no write permission or space for checkpoints. */
struct rk_status *rk_flow_checkpoint_check(struct rk_flow_context *ctx) RK_NODISCARD;
/* After the sink has the metrics of the step: the driver's part of a checkpoint that was saved in it, and the
 * end of one whose writers are done. */
struct rk_status *rk_flow_checkpoint_commit(struct rk_flow_context *ctx) RK_NODISCARD;
/* Completes the checkpoint that is being written, if its writers are done; waits for them with `wait`. */
struct rk_status *rk_flow_checkpoint_finish(struct rk_flow_context *ctx, bool wait) RK_NODISCARD;

/* --- dumps (flow_dump.c) --- */
/* Creates the folders of the job's dumps; fails when they are not writable. */
struct rk_status *rk_flow_dumps_check(const struct rk_config *job) RK_NODISCARD;

/* --- validation (flow_validate.c) --- */
bool rk_flow_validates(const struct rk_flow_context *ctx); /* after this step */

/* --- masks --- */
/* counts[row]: marked cells among the first `width` of the row; rows begin `stride` cells apart. */
void rk_flow_count_marks(int64_t *counts, const int64_t *mask, int64_t num_rows, int64_t width,
                         int64_t stride);

#endif
