/* Private to engine/: the interface of optimizers, and the trainer of a model.
 *
 * A model's parameters and gradients are two flat buffers with one index map (params/params.h), in
 * which every gradient group has a range of its own (rk_param.h), cut into buckets. The ranks of the group
 * (those of dp, except for experts) own equal parts of every bucket; all parts of a rank are its shard.
 * Gradients are reduced into the owner's part, the owner updates its parameters with optimizer state that
 * exists for its shard only, and the parameters are all-gathered (Rajbhandari et al., ZeRO stage 1,
 * arXiv:1910.02054). 16-bit parameters have 32-bit masters in that state, because most updates are smaller
 * than the last bit of a 16-bit value. A parameter is its rounded master.
 *
 * The backward pass completes gradients in the order of the buffers. In the last micro-batch of a step the
 * reduction of a bucket starts as soon as its gradients are complete, on a separate stream that overlaps the
 * pass. After the update of a bucket the all-gather of its parameters overlaps the update of the next. */
#ifndef RK_ENGINE_TRAINER_H
#define RK_ENGINE_TRAINER_H

#include "base/rk_array.h"
#include "engine/model/model.h"
#include "engine/rk_train.h"

#define RK_OPTIM_STATES_MAX 2

/* One segment of a shard; all tensors are [n]. */
struct rk_optim_segment {
    rk_tensor_t param, grad;
    rk_tensor_t master; /* the updated values, in the dtype of grad; param itself if the dtypes are equal */
    rk_tensor_t states[RK_OPTIM_STATES_MAX]; /* zero before the first step */
    double weight_decay;
};

/* Arguments common to all segments of a step. */
struct rk_optim_step {
    const struct rk_optim_config *config; /* lr is the rate of this step */
    double grad_scale;                    /* of clipping */
    int64_t step;                         /* 1 for the first applied step */
};

struct rk_optim_ops {
    const char *name; /* "adam": verl's name, the value of optim.optimizer */
    int32_t num_states;
    const char *state_names[RK_OPTIM_STATES_MAX]; /* PyTorch's names, in checkpoints */
    struct rk_status *(*apply)(struct rk_stream *stream, const struct rk_optim_segment *segment,
                               const struct rk_optim_step *step);
};

extern const struct rk_optim_ops rk_optim_adamw; /* opt_adamw.c */

const struct rk_optim_ops *rk_optim_find(const char *name); /* NULL when unknown */

/* --- training state --- */

/* A range of the flat buffers in this rank's part of a bucket; all elements are treated alike. */
struct rk_shard_segment {
    int64_t begin, count;
    int64_t shard;   /* offset in the shard's arrays */
    int64_t bucket;  /* index of its bucket in the group */
    bool is_frozen;  /* not updated, not in the norm */
    bool decays;     /* weight decay applies */
    bool is_counted; /* in this rank's part of the gradient norm */
};

/* State of a gradient group. */
struct rk_trainer_group {
    /* Fixed after create. */
    RK_ARRAY(struct rk_bucket) buckets;         /* all buckets of the group */
    RK_ARRAY(struct rk_shard_segment) segments; /* ascending */
    int64_t summed_begin; /* element: gradients before it may be overwritten by a pass; from here on they must
                           * be added to */
    /* State of the step in progress. */
    int64_t num_complete; /* element: gradients before it are complete */
    int64_t num_reduced;  /* number of reduced buckets, from the first */
};

/* Sums over the tokens of the routers (rk_moe_balance_args.sums), by layer of experts. */
struct rk_router_sums {
    struct rk_router_losses losses;
    int64_t num_layers, num_experts, columns; /* of the whole model; num_layers 0: it has no experts */
    void *device; /* F64 [num_layers, columns], of this rank, of the current step */
    double *host; /* the same of the whole mesh, of the last step */
};

struct rk_trainer {
    /* Fixed after create. */
    struct rk_model *model; /* borrowed */
    struct rk_optim_config config;
    struct rk_device *device;
    rk_dtype_t grad_dtype; /* of gradient sums, masters and states */
    rk_dtype_t pass_dtype; /* of the gradients that a backward pass writes: grad_dtype, or the parameters'
                            * with shard_grads */
    int64_t num_elements;  /* of the flat buffers */
    int64_t shard_count;   /* mine */
    struct rk_shard_maps shards;
    struct rk_trainer_group groups[RK_GRAD_GROUPS];
    /* Stream of the bucket collectives, with the events that order it with the model's stream; NULL if every
     * group has one rank. */
    struct rk_stream *comm;
    struct rk_event *is_ready, *is_done;
    /* Buffers of the model (rk_model_add_buffer); masters: struct rk_masters. */
    void *grads; /* [num_elements] of pass_dtype */
    /* If gradients are accumulated in shards: [shard_count] of grad_dtype, the sums over all micro-batches;
     * and a bucket's parts of all ranks of its group, in pass_dtype. NULL: grads holds the sums. */
    void *shard_grads, *inbox;
    int64_t *rows; /* owned; only with them: [ranks of the group], all 1, the rows of an exchange */
    void *states[RK_OPTIM_STATES_MAX]; /* [shard_count] each */
    void *sums;                        /* F64 [2]: sum of squares, number of non-finite elements */
    struct rk_router_sums routers;
    /* Engine thread. */
    int64_t applied_steps, lr_steps;
    int32_t skipped_in_a_row;
    bool is_stale; /* gradients are of an earlier step and count as zero */
};

/* Gradients that backward passes have written: accumulated so far, or with shard_grads of one micro-batch. */
rk_tensor_t rk_trainer_grads(const struct rk_trainer *trainer);
/* Whether the shard holds the complete sums of a step; they stay until the next step begins. */
bool rk_trainer_has_sums(const struct rk_trainer *trainer);

/* The complete gradient sums of a segment. */
rk_tensor_t rk_trainer_segment_grads(const struct rk_trainer *trainer,
                                     const struct rk_shard_segment *segment);

/* --- buckets (buckets.c) --- */

/* Partitions the flat buffers, and this rank's shard into segments: parameters that are adjacent in a bucket
 * and treated alike form one. Frozen parameters are in none. */
void rk_trainer_cut(struct rk_trainer *trainer, const struct rk_param_table *params,
                    const struct rk_shard_places *places);
void rk_trainer_cut_fini(struct rk_trainer *trainer);
/* Zeroes gradients that count as zero. */
struct rk_status *rk_trainer_zero_stale(struct rk_trainer *trainer) RK_NODISCARD;
/* Starts a step: no gradient is complete. */
struct rk_status *rk_trainer_reset(struct rk_trainer *trainer) RK_NODISCARD;
/* on_grads_ready of the last pass of a step, after which gradients are final; `user` is the trainer.
 * Collective: starts the reduction of the complete buckets. */
struct rk_status *rk_trainer_grads_ready(void *user, int64_t first_param) RK_NODISCARD;
/* Collective: completes the gradients of this rank's shard. */
struct rk_status *rk_trainer_reduce(struct rk_trainer *trainer) RK_NODISCARD;
/* Collective: all-gathers the parameters of a bucket, after the work enqueued on the model's stream so
 * far. */
struct rk_status *rk_trainer_gather_params(struct rk_trainer *trainer, rk_grad_group_t group,
                                           const struct rk_bucket *bucket) RK_NODISCARD;
/* Makes the model's stream wait for the collectives of buckets. */
struct rk_status *rk_trainer_wait(struct rk_trainer *trainer) RK_NODISCARD;

/* --- routers (router.c). Without experts the functions do nothing. --- */

struct rk_status *rk_router_sums_create(struct rk_router_sums *out,
                                        const struct rk_model_core *core) RK_NODISCARD;
void rk_router_sums_fini(struct rk_router_sums *sums, struct rk_device *device);
size_t rk_router_sums_bytes(const struct rk_router_sums *sums);
/* [num_layers, columns], or none. */
rk_tensor_t rk_router_sums_tensor(const struct rk_router_sums *sums);
struct rk_status *rk_router_sums_reset(struct rk_router_sums *sums, struct rk_stream *stream) RK_NODISCARD;
/* Collective over the mesh: sets `host`, when the stream has been waited for, to the sums of all ranks, and
 * the sums on the device to zero. */
struct rk_status *rk_router_sums_fetch(struct rk_router_sums *sums,
                                       const struct rk_model_core *core) RK_NODISCARD;
/* From `host`. Layers without tokens are not counted. */
void rk_router_stats_of(struct rk_router_stats *out, const struct rk_router_sums *sums);

/* Moves the correction biases of this rank's layers by the counts of `host`, if the model is to: every copy
 * in the same way (expert_bias.c). Waits for the stream. */
struct rk_status *rk_trainer_update_biases(struct rk_trainer *trainer) RK_NODISCARD;

/* --- copies (copies.c) --- */

/* Collective over tp: for the parameters in elements [begin, end) of the flat buffer whose copies have
 * summands of the gradient (RK_PARAM_PARTIAL_GRAD), gives every copy the sum, bit-identical. */
struct rk_status *rk_trainer_sum_copies(struct rk_trainer *trainer, int64_t begin, int64_t end) RK_NODISCARD;

/* Collective: norm over the whole model, each element once; *is_finite is false when some gradient is inf or
 * NaN. */
struct rk_status *rk_trainer_grad_norm(struct rk_trainer *trainer, double *norm,
                                       bool *is_finite) RK_NODISCARD;
/* Collective: updates this rank's shard and all-gathers the parameters. */
struct rk_status *rk_trainer_apply(struct rk_trainer *trainer, const struct rk_optim_config *config,
                                   double grad_norm) RK_NODISCARD;

#endif
