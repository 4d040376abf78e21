/* Kinds of jobs (algorithm.type): a row each, over one of the two kinds of data (docs/flows.md). Everything
 * that depends on the kind is in its row; state of only one kind of data is a separate part of the inputs and
 * of the context (rk_flows.h), which other kinds cannot read. */
#ifndef RK_FLOW_H
#define RK_FLOW_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config/rk_config.h"
#include "base/rk_status.h"
#include "rl/rk_job.h"

struct rk_flow_context;
struct rk_flow_inputs;
struct rk_plan;

struct rk_flow_step {
    const char *name;
    const char *timer;                                    /* timing_s/<timer>; NULL: not timed */
    bool (*is_needed)(const struct rk_flow_context *ctx); /* NULL: always */
    struct rk_status *(*run)(struct rk_flow_context *ctx);
};

/* The kind of a job's data rows: prompts, which the rollout answers (data_prompts.c), or examples, which
 * are trained on as they are (data_examples.c). All members are required unless stated otherwise. */
struct rk_flow_data {
    /* Words in messages. */
    const char *rows;      /* "prompts" */
    const char *sequences; /* of a row: the key of their number, or a description */
    const char *longest;   /* keys that bound the tokens of a sequence */
    /* Key of the number of rows of one optimizer step of the actor. */
    const char *step_rows_key;
    const struct rk_job_rule *rules; /* besides the rules of every job; ends with a row without a name */

    int64_t (*num_sequences)(const struct rk_config *job);   /* of a row */
    int64_t (*max_tokens)(const struct rk_config *job);      /* of a sequence */
    int64_t (*max_loss_tokens)(const struct rk_config *job); /* tokens of a sequence with a loss */
    /* Rows of one optimizer step of a role that trains. */
    int64_t (*step_rows)(const struct rk_config *job, uint32_t role);

    /* Reads and checks the other inputs of the job; model, tokenizer and chat template are loaded. fini
     * releases inputs that were read before a failure. */
    struct rk_status *(*load)(struct rk_flow_inputs *inputs, const struct rk_config *job,
                              const char *job_dir);
    void (*fini)(struct rk_flow_inputs *inputs);
    int64_t (*num_rows)(const struct rk_flow_inputs *inputs); /* of data.train_files */
    /* Counts of the rows of data.train_files or data.val_files; NULL without such files. */
    const struct rk_row_counts *(*row_counts)(const struct rk_flow_inputs *inputs, bool is_val);

    /* Optional: sets what the context has besides the sizes of a step. */
    void (*init)(struct rk_flow_context *ctx);
    /* Optional: reorders the per-row state of the context besides the batch: order[i] is the row that
     * becomes row i. */
    void (*reorder)(struct rk_flow_context *ctx, const int64_t *order);
    void (*end_step)(struct rk_flow_context *ctx); /* optional: frees the data's part of a step */
    /* Makes the micro-batch plan of an update of the actor, in the step's arena. seqlens[num_rows]: tokens of
     * each row; loss_tokens[num_rows]: tokens of it with a loss. */
    struct rk_status *(*update_plan)(struct rk_plan *plan, struct rk_flow_context *ctx,
                                     const int64_t *seqlens, const int64_t *loss_tokens);
    /* Optional: input columns of updates, for verify-layout. */
    struct rk_status *(*put_targets)(struct rk_flow_context *ctx, uint64_t seed);
};
extern const struct rk_flow_data rk_flow_data_prompts, rk_flow_data_examples;

/* A kind of job: its data, its roles, and its steps. */
struct rk_flow {
    const char *name; /* algorithm.type that selects it */
    const struct rk_flow_data *data;
    int32_t group_size;      /* sequences that stay in one micro-batch: 1, or the 2 of a pair */
    uint32_t roles;          /* RK_ROLE_*: roles of every job */
    uint32_t optional_roles; /* roles that keys of a job enable (job_roles.c) */
    uint32_t training_roles; /* of these, the ones that validation does not need */
    const struct rk_flow_step *const *steps; /* of one step of training, in their order; ends with NULL */
    const struct rk_flow_step *validate;     /* the step that evaluates the current model */
    /* The parts of a step that verify-layout runs, each list ended by NULL: the steps that make the rows of
     * the batch, passes that add columns to them, and updates. */
    const struct rk_flow_step *const *rows, *const *passes, *const *updates;
};
extern const struct rk_flow rk_flow_rl, rk_flow_sft, rk_flow_dpo;

const struct rk_flow *const *rk_flows(int64_t *count);
const struct rk_flow *rk_flow_of(const struct rk_config *job);

#endif
