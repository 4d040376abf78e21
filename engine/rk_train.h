/* Training: gradients of packed micro-batches, and optimizer steps.
 *
 *   rk_trainer_begin; rk_trainer_micro_batches; rk_trainer_step      one optimizer step
 *   rk_trainer_advance_lr                                            once per update call
 *
 * Gradients accumulate in f32 (f64 models: f64) with global denominators: a step does not depend on the
 * number of micro-batches or ranks, except for the rounding of adds_in_shards. The optimizer updates f32
 * masters of bf16 parameters. All functions are collective over the model's mesh. */
#ifndef RK_TRAIN_H
#define RK_TRAIN_H

#include "base/config/rk_knobs.h"
#include "base/layout/rk_pipeline.h"
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

/* Elements of a bucket of gradients or parameters, the unit of one collective. Buckets of less than a few
 * million elements do not saturate the links; with larger ones the reduction of the last bucket, which does
 * not overlap the backward pass, takes longer. */
#define RK_BUCKET_ELEMENTS ((int64_t)40000000)

/* Options of init_model (base/config/knobs.def), complete and checked: the number of warm-up steps is given
 * or computed from the ratio; the number of decay steps defaults to the number of steps of the run. */
struct rk_optim_config {
    RK_OPTIM_KNOBS(RK_KNOB_FIELD, , , )
    /* Row of the optimizer table. NULL: gradients only, without masters, state and steps (benchmarks,
     * tools). */
    const struct rk_optim_ops *ops;
    rk_lr_style_t lr_decay_style;
    int64_t bucket_elements; /* 0: RK_BUCKET_ELEMENTS, or one bucket for all with one dp rank */
    /* Accumulation in shards, for 16-bit parameters with several dp ranks: gradients of a micro-batch have
     * the parameters' dtype and are reduced over dp after each micro-batch, in F32 by the rank that updates
     * them, which stores the sum of its shard only. Takes 2 + 4 / dp bytes per element instead of 4; a
     * gradient is rounded to 16 bits once per micro-batch and rank. */
    bool adds_in_shards;
};
/* From the options of init_model (optim.*). INVALID_ARGUMENT names key, value, expectation. */
struct rk_status *rk_optim_config_read(struct rk_optim_config *out,
                                       const struct rk_json *options) RK_NODISCARD;
/* Replaces lr, betas, eps, weight_decay and clip_grad by the values that the options of optim_step contain.
 * INVALID_ARGUMENT names key, value, expectation. */
struct rk_status *rk_optim_config_override(struct rk_optim_config *config,
                                           const struct rk_json *options) RK_NODISCARD;
/* Learning rate after `num_steps` scheduler steps; Megatron's schedule. */
double rk_lr_at(const struct rk_optim_config *config, int64_t num_steps);

/* The trainer of a model: gradients, masters, optimizer state, sums and counters. */
struct rk_trainer;

/* Allocates gradients and optimizer state (sharded over dp). A model that shares weights cannot train. The
 * masters of bf16 parameters are initialized from them; loading a model afterwards sets masters from the
 * files at the files' precision. The model counts and offloads the trainer's memory, and must outlive it.
 */
struct rk_status *rk_trainer_create(struct rk_trainer **out, struct rk_model *model,
                                    const struct rk_optim_config *config) RK_NODISCARD;
/* The model can no longer train, until it gets another trainer. NULL is a no-op. */
void rk_trainer_destroy(struct rk_trainer *trainer);
/* The trainer of the model, borrowed; NULL: the model does not train. */
struct rk_trainer *rk_model_trainer(const struct rk_model *model);

/* Sets the gradients to zero. */
struct rk_status *rk_trainer_begin(struct rk_trainer *trainer) RK_NODISCARD;

/* Called between forward and backward with the requested outputs of the micro-batch; adds the gradients with
 * respect to them to `grads`, which are zeroed. */
typedef struct rk_status *(*rk_train_loss_fn_t)(void *user, const struct rk_head_arrays *outputs,
                                                const struct rk_head_arrays *grads);
struct rk_train_micro {
    const struct rk_packed *packed;
    double temperature;
    uint32_t outputs; /* RK_HEAD_BIT of the outputs that the loss reads */
    /* Outputs of these that have no gradient: their `grads` are ignored, and the backward pass omits their
     * terms. */
    uint32_t measured;
    /* [num_tokens, num_ids]: the loss also reads the log-probs of these ids and has gradients with respect to
     * them; and it reads top_ids. See struct rk_head_ids; num_ids 0: none. Only with RK_HEAD_LOG_PROBS in
     * outputs. */
    int64_t num_ids;
    const int32_t *ids;
    /* The last one before rk_trainer_step, on all ranks: reductions over dp overlap the backward pass. From
     * here on the gradients of this rank alone (rk_trainer_gather_grad) are no longer available. */
    bool is_last;
    rk_train_loss_fn_t loss_fn;
    void *user;
    const struct rk_engine_hooks *hooks; /* on_alive, with a pipeline also is_cancelled; may be NULL */
};
struct rk_status *rk_trainer_micro_batch(struct rk_trainer *trainer,
                                         const struct rk_train_micro *micro) RK_NODISCARD;

/* All or some micro-batches of a step: the same number on all ranks, with the same sizes within a replica. */
struct rk_train_work {
    int64_t count;
    bool is_last; /* only rk_trainer_step follows; is_last of the micro-batches is ignored */
    /* Fills in the i-th micro-batch. Its pointers are used only until the next call. With a pipeline or
     * losses of routers it is called more than once for each, in any order. The loss function is called for
     * the bound micro-batch, in order, on the ranks that have the head: the last stage. */
    struct rk_status *(*bind)(void *user, int64_t i, struct rk_train_micro *micro);
    /* May be NULL. Called twice for every step of this rank: when the stream has waited for the tensors that
     * the step receives, and, with is_done, when all work of the step is enqueued. */
    struct rk_status *(*on_step)(void *user, struct rk_pipeline_step step, bool is_done);
    void *user;
};
/* Collective: rk_trainer_micro_batch of each; the stages of a pipeline overlap several, in the order of its
 * schedule (base/layout/rk_pipeline.h). INVALID_ARGUMENT for a number of micro-batches that an interleaved
 * schedule does not support. CANCELLED on all ranks, with the gradients lost, when the hooks of a stage ask
 * to stop.
 */
struct rk_status *rk_trainer_micro_batches(struct rk_trainer *trainer,
                                           const struct rk_train_work *work) RK_NODISCARD;

/* Statistics of the routers of layers of experts in a step, over all micro-batches and ranks; padding and,
 * with recompute, the second pass do not count. */
struct rk_router_stats {
    int64_t num_layers; /* layers of experts with tokens; 0: all else is 0 */
    /* Tokens of a layer's busiest expert over the mean of its experts, 1 to num_experts / top_k: mean and
     * maximum over the layers. */
    double max_load, max_load_of_layers;
    double entropy; /* of a token's distribution over experts, in nats: mean over tokens, then layers */
    /* Losses of routers without their coefficients, means over the layers; Megatron's name of the balance
     * loss, NULL: it is off. */
    const char *balance_name;
    double balance_loss, z_loss;
    bool has_z_loss;
};

struct rk_step_stats {
    double grad_norm; /* before clipping, over the whole model */
    double lr;
    bool was_skipped; /* non-finite gradients: nothing was applied */
    struct rk_router_stats routers;
    bool has_begun; /* the update of the parameters has begun: after a failure they may be inconsistent */
};
/* Reduces and clips gradients, updates, all-gathers the parameters, increments weight_version. ABORTED
 * (reason NON_FINITE) after 5 skipped steps in a row. */
struct rk_status *rk_trainer_step(struct rk_trainer *trainer, struct rk_step_stats *stats) RK_NODISCARD;
/* rk_trainer_step with lr (instead of the schedule's), betas, eps, weight_decay and clip_grad from `config`.
 */
struct rk_status *rk_trainer_step_with(struct rk_trainer *trainer, const struct rk_optim_config *config,
                                       struct rk_step_stats *stats) RK_NODISCARD;
/* The configuration of the next rk_trainer_step, with the schedule's rate as its lr. */
struct rk_optim_config rk_trainer_get_config(const struct rk_trainer *trainer);
void rk_trainer_advance_lr(struct rk_trainer *trainer);
double rk_trainer_get_lr(const struct rk_trainer *trainer);
/* rk_model_gather_param of a gradient, collective over cp and dp too, over which it is summed as the update
 * would. Zeros for a parameter that is not trained. Gradients that accumulate in shards (struct
 * rk_optim_config) are those of the last micro-batch. */
struct rk_status *rk_trainer_gather_grad(struct rk_trainer *trainer, int64_t param, double *out) RK_NODISCARD;

RK_END_DECLS

#endif
