/* Kinds of jobs (algorithm.type): a row each, over one of the two kinds of data (docs/flows.md). What depends
 * on the kind is asked of its row; what only one kind of data has is a part of its own in the inputs and in
 * the context (flows_internal.h), which the others cannot read. */
#ifndef RK_FLOW_INTERNAL_H
#define RK_FLOW_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_config.h"
#include "base/rk_status.h"
#include "driver-cli/driver/job_internal.h"

struct rk_flow_context;
struct rk_flow_inputs;
struct rk_plan;

struct rk_flow_step {
    const char *name;
    const char *timer;                                    /* timing_s/<timer>; NULL: not timed */
    bool (*is_needed)(const struct rk_flow_context *ctx); /* NULL: always */
    struct rk_status *(*run)(struct rk_flow_context *ctx);
};

/* What the rows of a job's data are: prompts, which the rollout answers (flow_prompts.c), or examples, which
 * are trained on as they are (flow_examples.c). All members are required where they do not say otherwise. */
struct rk_flow_data {
    /* Words of messages. */
    const char *rows;      /* "prompts" */
    const char *sequences; /* of a row: the key of their number, or a description */
    const char *longest;   /* keys that bound the tokens of a sequence */
    /* Key of the rows that one optimizer step of the actor takes. */
    const char *step_rows_key;
    const struct rk_job_rule *rules; /* besides those of every job; ends with a row without a name */

    int64_t (*num_sequences)(const struct rk_config *job); /* of a row */
    int64_t (*max_tokens)(const struct rk_config *job);    /* of a sequence */
    /* Rows that one optimizer step of a role that trains takes. */
    int64_t (*step_rows)(const struct rk_config *job, uint32_t role);

    /* Reads and checks what the job names, besides model, tokenizer and chat template, which are there. What
     * was read before a failure is ended by fini. */
    struct rk_status *(*load)(struct rk_flow_inputs *inputs, const struct rk_config *job,
                              const char *job_dir);
    void (*fini)(struct rk_flow_inputs *inputs);
    int64_t (*num_rows)(const struct rk_flow_inputs *inputs); /* of data.train_files */

    /* The sizes of the context: of a step, an epoch and the run. */
    struct rk_status *(*init)(struct rk_flow_context *ctx);
    /* Optional: what the context holds beside the batch, row by row, in a new order: order[i] is the row that
     * becomes row i. */
    void (*reorder)(struct rk_flow_context *ctx, const int64_t *order);
    void (*end_step)(struct rk_flow_context *ctx); /* optional: frees the data's part of a step */
    /* The micro-batches of one update of the actor when all sequences have their full length. In the step's
     * arena. */
    struct rk_status *(*plan_update)(struct rk_plan *plan, struct rk_flow_context *ctx);
    /* Optional: columns that updates learn from, of verify-layout. */
    struct rk_status *(*put_targets)(struct rk_flow_context *ctx, uint64_t seed);
};
extern const struct rk_flow_data rk_flow_data_prompts, rk_flow_data_examples;

/* A kind of job: which data and roles it has, and what a step of it does. */
struct rk_flow {
    const char *name; /* algorithm.type that selects it */
    const struct rk_flow_data *data;
    int32_t group_size;      /* sequences that stay in one micro-batch: 1, or the 2 of a pair */
    uint32_t roles;          /* RK_ROLE_*: those of every job */
    uint32_t optional_roles; /* those of a job whose keys ask for them (job_roles.c) */
    const struct rk_flow_step *const *steps; /* of one step of training, in their order; ends with NULL */
    const struct rk_flow_step *validate;     /* that of the steps which measures the model as it is */
    /* What verify-layout runs of a step, each list ended by NULL: the steps that make the rows of the batch,
     * passes that add columns to them, and updates. */
    const struct rk_flow_step *const *rows, *const *passes, *const *updates;
};
extern const struct rk_flow rk_flow_rl, rk_flow_sft, rk_flow_dpo;

const struct rk_flow *const *rk_flows(int64_t *count);
const struct rk_flow *rk_flow_of(const struct rk_config *job);

#endif
