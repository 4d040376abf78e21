/* Training: gradients of packed micro-batches, and optimizer steps.
 *
 *   rk_train_begin; rk_train_micro_batches; rk_train_step            one optimizer step
 *   rk_train_advance_lr                                              once per update call
 *
 * Gradients accumulate in f32 (f64 models: f64) with global denominators: what a step applies does not depend
 * on the number of micro-batches or ranks, but for the rounding of adds_in_shards. Of bf16 parameters the
 * optimizer updates f32 masters. All collective over the model's mesh. */
#ifndef RK_TRAIN_H
#define RK_TRAIN_H

#include "base/rk_knobs.h"
#include "base/rk_pipeline.h"
#include "engine/rk_loss.h"
#include "engine/rk_model.h"

RK_BEGIN_DECLS

typedef enum rk_lr_style {
    RK_LR_CONSTANT,
    RK_LR_LINEAR,
    RK_LR_COSINE,
    RK_LR_INVERSE_SQRT,
    RK_LR_STYLE_COUNT
} rk_lr_style_t;

/* Elements of a bucket of gradients or parameters: what one collective moves. Fewer than a few million do not
 * fill the links, and the last bucket's sum is not hidden behind the backward pass. */
#define RK_BUCKET_ELEMENTS ((int64_t)40000000)

/* Read from the options of init_model (base/knobs.def), complete and checked: the warm-up has its number of
 * steps from these or from the ratio, the decay from the run's when it has none of its own. */
struct rk_optim_config {
    RK_OPTIM_KNOBS(RK_KNOB_FIELD, , , )
    /* Row of the optimizer table. NULL: gradients only, which needs no memory for masters and state and takes
     * no step (benchmarks, tools). */
    const struct rk_optim_ops *ops;
    rk_lr_style_t lr_decay_style;
    int64_t bucket_elements; /* 0: RK_BUCKET_ELEMENTS, or all with one dp rank */
    /* Of 16-bit parameters with several dp ranks: gradients of a micro-batch have their dtype and are summed
     * over dp after each, in F32 by the rank that updates them, which keeps the sum of its shard only. 2 + 4
     * / dp bytes an element instead of 4, and a gradient is rounded to 16 bits once a micro-batch and rank.
     */
    bool adds_in_shards;
};
/* From the options of init_model (optim.*). INVALID_ARGUMENT names key, value, expectation. */
struct rk_status *rk_optim_config_read(struct rk_optim_config *out,
                                       const struct rk_json *options) RK_NODISCARD;
/* Replaces lr, betas, eps, weight_decay and clip_grad where the options of optim_step give them.
 * INVALID_ARGUMENT names key, value, expectation. */
struct rk_status *rk_optim_config_override(struct rk_optim_config *config,
                                           const struct rk_json *options) RK_NODISCARD;
/* Learning rate after `num_steps` scheduler steps; Megatron's schedule. */
double rk_lr_at(const struct rk_optim_config *config, int64_t num_steps);

/* Allocates gradients and optimizer state (sharded over dp). A model that shares weights cannot train. The
 * masters of bf16 parameters start from these; loading a model afterwards gives them what its files have in
 * more bits. */
struct rk_status *rk_train_enable(struct rk_model *model, const struct rk_optim_config *config) RK_NODISCARD;

/* The gradients are zero from here on. */
struct rk_status *rk_train_begin(struct rk_model *model) RK_NODISCARD;

/* Called between forward and backward with the outputs of the micro-batch that it asked for; adds the
 * gradients by them to `grads`, which are zero. */
typedef struct rk_status *(*rk_train_loss_fn_t)(void *user, const struct rk_head_arrays *outputs,
                                                const struct rk_head_arrays *grads);
struct rk_train_micro {
    const struct rk_packed *packed;
    double temperature;
    uint32_t outputs; /* RK_HEAD_BIT of what the loss reads */
    /* Of these, those that it has no gradient by: theirs are not looked at, and the backward pass leaves
     * their terms out. */
    uint32_t measured;
    /* [num_tokens, num_ids]: the loss reads the log-probs of these, too, and is differentiated by them; and
     * it reads top_ids. See struct rk_head_ids; num_ids 0: none. Only with RK_HEAD_LOG_PROBS in outputs. */
    int64_t num_ids;
    const int32_t *ids;
    /* The last one before rk_train_step, on all ranks: sums over dp begin while the backward pass runs. From
     * here on a gradient on this rank alone (rk_model_gather_param) is no more. */
    bool is_last;
    rk_train_loss_fn_t loss_fn;
    void *user;
    const struct rk_engine_hooks *hooks; /* on_alive; on stages is_cancelled, too; may be NULL */
};
struct rk_status *rk_train_micro_batch(struct rk_model *model,
                                       const struct rk_train_micro *micro) RK_NODISCARD;

/* The micro-batches of a step, or a part of them: as many on all ranks, those of a replica of the same sizes.
 */
struct rk_train_work {
    int64_t count;
    bool is_last; /* nothing but rk_train_step follows; is_last of the micro-batches is not looked at */
    /* Fills in the i-th one. What it points to is used before the function is called again. With a pipeline
     * it is called more than once for each, in any order. The loss function is called for the one that is
     * bound, in order, on the ranks that have the head: the last stage. */
    struct rk_status *(*bind)(void *user, int64_t i, struct rk_train_micro *micro);
    /* May be NULL. Called twice for every step of this rank: when the stream has waited for what the step
     * receives, and, with is_done, when the step has given the stream all of its work. */
    struct rk_status *(*on_step)(void *user, struct rk_pipeline_step step, bool is_done);
    void *user;
};
/* Collective: rk_train_micro_batch of each; the stages of a pipeline run several at the same time, in the
 * order of its schedule (base/rk_pipeline.h). INVALID_ARGUMENT for a number of them that an interleaved
 * schedule cannot run. CANCELLED on all ranks, with the gradients lost, where the hooks of a stage said so.
 */
struct rk_status *rk_train_micro_batches(struct rk_model *model,
                                         const struct rk_train_work *work) RK_NODISCARD;

struct rk_step_stats {
    double grad_norm; /* before clipping, over the whole model */
    double lr;
    bool was_skipped; /* non-finite gradients: nothing was applied */
    bool has_begun;   /* the update of the parameters: where the step fails they may be mixed */
};
/* Reduces, clips, updates, spreads the new parameters, raises weight_version. ABORTED (reason NON_FINITE)
 * after 5 skipped steps in a row. */
struct rk_status *rk_train_step(struct rk_model *model, struct rk_step_stats *stats) RK_NODISCARD;
/* The same with what `config` says of lr (the schedule is not asked), betas, eps, weight_decay and clip_grad.
 */
struct rk_status *rk_train_step_with(struct rk_model *model, const struct rk_optim_config *config,
                                     struct rk_step_stats *stats) RK_NODISCARD;
/* What rk_train_step makes its next step with: the configuration, and the schedule's rate as its lr. */
struct rk_optim_config rk_train_get_config(const struct rk_model *model);
/* Frees gradients, masters and optimizer state: the model only serves from here on. */
void rk_train_disable(struct rk_model *model);
void rk_train_advance_lr(struct rk_model *model);
double rk_train_get_lr(const struct rk_model *model);

RK_END_DECLS

#endif
