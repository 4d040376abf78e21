/* Private to engine/: the optimizer seam, and the training state of a model.
 *
 * A model's parameters and gradients are two flat buffers with one index map (model/params_internal.h), in
 * which every gradient group has a range of its own (rk_param.h), cut into buckets. The ranks of the group,
 * for all but experts those of dp, own equal parts of every bucket; all of a rank's parts are its shard.
 * Gradients are summed into the owner's part, the owner updates its parameters with optimizer state that
 * exists for its shard only, and the parameters are spread again (Rajbhandari et al., ZeRO stage 1,
 * arXiv:1910.02054). Parameters of 16 bits have masters of 32 in that state: what an update adds is smaller
 * than their last bit most of the time. A parameter is its master, rounded.
 *
 * The backward pass completes gradients in the order of the buffers. In the last micro-batch of a step the
 * sum of a bucket starts as soon as it is complete, on a stream of its own, and the pass goes on. After the
 * update of a bucket its parameters are spread while the next one is updated. */
#ifndef RK_OPTIM_INTERNAL_H
#define RK_OPTIM_INTERNAL_H

#include "base/rk_array.h"
#include "engine/model/model_internal.h"
#include "engine/rk_train.h"

#define RK_OPTIM_ABI        1
#define RK_OPTIM_STATES_MAX 2

/* One segment of a shard, all [n]. */
struct rk_optim_segment {
    rk_tensor_t param, grad;
    rk_tensor_t master; /* what is updated, in the dtype of grad: param itself where the dtypes agree */
    rk_tensor_t states[RK_OPTIM_STATES_MAX]; /* zero before the first step */
    double weight_decay;
};

/* What all segments of a step have in common. */
struct rk_optim_step {
    const struct rk_optim_config *config; /* lr is that of the step */
    double grad_scale;                    /* of clipping */
    int64_t step;                         /* 1 for the first applied step */
};

struct rk_optim_ops {
    const char *name; /* "adam": verl's name, the value of optim.optimizer */
    uint32_t abi;     /* RK_OPTIM_ABI */
    int32_t num_states;
    const char *state_names[RK_OPTIM_STATES_MAX]; /* PyTorch's, in checkpoints */
    struct rk_status *(*apply)(struct rk_stream *stream, const struct rk_optim_segment *segment,
                               const struct rk_optim_step *step);
};

extern const struct rk_optim_ops rk_optim_adamw; /* opt_adamw.c */

const struct rk_optim_ops *rk_optim_find(const char *name); /* NULL when unknown */

/* --- state of training --- */

/* A range of the flat buffers inside my part of a bucket whose elements are treated alike. */
struct rk_shard_segment {
    int64_t begin, count;
    int64_t shard;   /* where the shard's arrays hold it */
    int64_t bucket;  /* its index in the group */
    bool is_frozen;  /* not updated, not counted */
    bool decays;     /* weight decay applies */
    bool is_counted; /* in the gradient norm of this rank */
};

/* Of a gradient group. */
struct rk_train_group {
    /* Fixed after enable. */
    RK_ARRAY(struct rk_bucket) buckets;         /* all of the group */
    RK_ARRAY(struct rk_shard_segment) segments; /* ascending */
    int64_t summed_begin; /* element: from here on a pass adds to gradients, before it may write them */
    /* Of the running step. */
    int64_t num_complete; /* element: gradients in front of it are complete */
    int64_t num_reduced;  /* buckets, from the first */
};

struct rk_train {
    /* Fixed after enable. */
    struct rk_optim_config config;
    struct rk_device *device;
    rk_dtype_t grad_dtype; /* of sums of gradients, masters and states */
    rk_dtype_t pass_dtype; /* of what a backward pass writes: that, or the parameters' with shard_grads */
    int64_t num_elements;  /* of the flat buffers */
    int64_t shard_count;   /* mine */
    struct rk_shard_maps shards;
    struct rk_train_group groups[RK_GRAD_GROUPS];
    /* Of the collectives of buckets, with the events that tie it to the model's stream; NULL where all groups
     * are of one rank. */
    struct rk_stream *comm;
    struct rk_event *is_ready, *is_done;
    struct rk_side side; /* of backward passes; NULL for one tp rank */
    struct rk_movable grad_memory, sum_memory, master_memory, state_memory[RK_OPTIM_STATES_MAX];
    /* Their addresses. */
    void *grads; /* [num_elements] of pass_dtype */
    /* Where gradients are added up in shards: [shard_count] of grad_dtype, the sums of all micro-batches; and
     * room for a bucket's parts of all ranks of its group, in pass_dtype. NULL: grads holds the sums. */
    void *shard_grads, *inbox;
    int64_t *rows; /* owned; with them: 1 for every rank of a group, the rows of an exchange */
    /* [shard_count] in grad_dtype: the parameters of my shard before they were rounded to the model's dtype;
     * NULL when that is grad_dtype, and the parameters are their own masters. */
    void *masters;
    void *states[RK_OPTIM_STATES_MAX]; /* [shard_count] each */
    void *sums;                        /* F64 [2]: sum of squares, number of non-finite elements */
    /* Engine thread. */
    int64_t applied_steps, lr_steps;
    int32_t skipped_in_a_row;
    bool is_stale; /* gradients hold what an earlier step left, and count as zero */
};

/* Elements [begin, begin + count) of a flat buffer. */
static inline rk_tensor_t rk_flat_view(void *buffer, rk_dtype_t dtype, int64_t begin, int64_t count)
{
    return rk_tensor_1d((char *)buffer + (size_t)begin * rk_dtype_bytes(dtype), dtype, count);
}

void rk_train_destroy(struct rk_train *train); /* NULL is a no-op */
struct rk_status *rk_train_check_enabled(const struct rk_model *model) RK_NODISCARD;
/* What a backward pass has written: all gradients so far, or with shard_grads those of a micro-batch. */
rk_tensor_t rk_train_grads(const struct rk_train *train);
/* Whether the shard holds the complete sums of a step, which stay until the next one begins. */
bool rk_train_has_sums(const struct rk_train *train);
rk_dtype_t rk_train_grad_dtype(rk_dtype_t param_dtype);
void rk_train_add_memory(const struct rk_train *train,
                         struct rk_model_memory *memory); /* NULL adds nothing */

/* The masters of what elements [begin, begin + count) have in my shard become what the parameters are.
 * Nothing to do without masters, or for NULL. */
struct rk_status *rk_train_copy_masters(struct rk_train *train, const struct rk_model_core *core,
                                        int64_t begin, int64_t count) RK_NODISCARD;
/* Elements [begin, begin + count) of the flat buffers have these values, in host memory and grad_dtype: what
 * of them lies in my shard goes into the masters; the memory must stay until the stream has copied it.
 * Nothing to do without masters, or for NULL. */
struct rk_status *rk_train_set_masters(struct rk_train *train, struct rk_stream *stream, int64_t begin,
                                       int64_t count, const void *values) RK_NODISCARD;

/* The sums of a segment's gradients, once they are complete. */
rk_tensor_t rk_train_segment_grads(const struct rk_train *train, const struct rk_shard_segment *segment);

/* --- buckets (buckets.c) --- */

/* Cuts the flat buffers, and my shard into segments: parameters that touch each other in a bucket and are
 * treated alike are one. Frozen parameters are in none. */
void rk_train_cut(struct rk_train *train, const struct rk_param_table *params,
                  const struct rk_shard_places *places);
void rk_train_cut_fini(struct rk_train *train);
/* Gradients that count as zero become zeros. */
struct rk_status *rk_train_settle(struct rk_model *model) RK_NODISCARD;
/* Starts a step: no gradient is complete. */
struct rk_status *rk_train_reset(struct rk_model *model) RK_NODISCARD;
/* on_grads_ready of the last pass of a step, whose gradients are complete when it leaves them; the model is
 * the user. Collective: starts the sums of the buckets that are complete. */
struct rk_status *rk_train_grads_ready(void *user, int64_t first_param) RK_NODISCARD;
/* Collective: completes the gradients of my shard. */
struct rk_status *rk_train_reduce(struct rk_model *model) RK_NODISCARD;
/* Collective: spreads the parameters of a bucket, after what the model's stream has been given so far. */
struct rk_status *rk_train_spread(struct rk_model *model, rk_grad_group_t group,
                                  const struct rk_bucket *bucket) RK_NODISCARD;
/* The model's stream waits for the collectives of buckets. */
struct rk_status *rk_train_wait(struct rk_model *model) RK_NODISCARD;

/* --- copies (copies.c) --- */

/* Collective over tp: of the parameters in elements [begin, end) of the flat buffer whose copies have
 * summands of the gradient (RK_PARAM_PARTIAL_GRAD) every copy gets the sum, with the same bits. */
struct rk_status *rk_train_sum_copies(struct rk_model *model, int64_t begin, int64_t end) RK_NODISCARD;

/* Collective: norm over the whole model, each element once; *is_finite false when some gradient is inf or
 * NaN. */
struct rk_status *rk_train_grad_norm(struct rk_model *model, double *norm, bool *is_finite) RK_NODISCARD;
/* Collective: updates my shard and spreads the parameters. */
struct rk_status *rk_train_apply(struct rk_model *model, const struct rk_optim_config *config,
                                 double grad_norm) RK_NODISCARD;

#endif
