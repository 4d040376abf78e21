/* Training: gradients of micro-batches. */
#include "engine/optim/trainer.h"

#include "base/rk_assert.h"
#include "engine/pipeline/pipeline.h"

/* Zeroes the gradients that a pass can only add to. */
static struct rk_status *zero_summed(struct rk_trainer *trainer)
{
    for (int g = 0; g < RK_GRAD_GROUPS; g++) {
        const struct rk_shard_map *shards = &trainer->shards.of[g];
        int64_t begin = trainer->groups[g].summed_begin, end = shards->begin + shards->num_elements;
        rk_tensor_t range = rk_flat_view(trainer->grads, trainer->pass_dtype, begin, end - begin);

        RK_TRY(rk_stream_zero(trainer->model->core->stream, range.data, rk_tensor_bytes(range)));
    }
    return NULL;
}

struct rk_status *rk_trainer_zero_stale(struct rk_trainer *trainer)
{
    rk_tensor_t grads = rk_trainer_grads(trainer);

    if (!trainer->is_stale)
        return NULL;
    trainer->is_stale = false;
    return rk_stream_zero(trainer->model->core->stream, grads.data, rk_tensor_bytes(grads));
}

/* In the first micro-batch of a step the GEMMs of linear layers and experts overwrite their gradients instead
 * of adding to zeros: this saves 12 bytes of memory traffic per element. Without tokens they write nothing.
 */
static struct rk_status *prepare_grads(struct rk_trainer *trainer, struct rk_pass *pass, int64_t num_labels)
{
    if (!trainer->is_stale)
        return NULL;
    /* A stage without a head writes no gradient of it, and its chunks run one after the other. */
    if (num_labels == 0 || rk_pipeline_num_stages(trainer->model->core->pipeline) > 1)
        return rk_trainer_zero_stale(trainer);
    trainer->is_stale = false;
    pass->overwrites_grads = true;
    return zero_summed(trainer);
}

static struct rk_status *allocate_ids(const struct rk_pass *pass, const struct rk_train_micro *micro,
                                      struct rk_head_ids *outputs, struct rk_head_ids *grads)
{
    int64_t count = micro->packed->num_tokens * micro->num_ids;

    if (micro->num_ids == 0)
        return NULL;
    *outputs = (struct rk_head_ids){.num_ids = micro->num_ids, .ids = micro->ids};
    RK_TRY(rk_pass_alloc_host(pass, &outputs->log_probs, 2 * count, sizeof(*outputs->log_probs)));
    RK_TRY(rk_pass_alloc_host(pass, &outputs->top_ids, count, sizeof(*outputs->top_ids)));
    *grads = (struct rk_head_ids){.num_ids = micro->num_ids, .log_probs = outputs->log_probs + count};
    return NULL;
}

static struct rk_status *allocate_arrays(const struct rk_pass *pass, const struct rk_train_micro *micro,
                                         struct rk_head_arrays *outputs, struct rk_head_arrays *grads)
{
    int64_t num_tokens = micro->packed->num_tokens;

    for (int i = 0; i < RK_HEAD_OUTPUT_COUNT; i++) {
        if (!(micro->outputs & RK_HEAD_BIT(i)))
            continue;
        RK_TRY(rk_pass_alloc_host(pass, &outputs->of[i], 2 * num_tokens, sizeof(double)));
        grads->of[i] = outputs->of[i] + num_tokens;
    }
    return allocate_ids(pass, micro, &outputs->ids, &grads->ids);
}

/* Downloads the outputs, calls the loss, uploads its gradients. */
static struct rk_status *call_loss(struct rk_micro *micro, const struct rk_train_micro *desc)
{
    struct rk_head_arrays outputs = {0}, grads = {0};

    RK_TRY(allocate_arrays(&micro->pass, desc, &outputs, &grads));
    RK_TRY(rk_micro_download(micro, &outputs));
    RK_TRY(desc->loss_fn(desc->user, &outputs, &grads));
    return rk_micro_upload(micro, &grads, desc->outputs & ~desc->measured);
}

/* State of rk_trainer_micro_batches. */
struct batches {
    struct rk_trainer *trainer;
    const struct rk_train_work *work;
    struct rk_train_micro micro; /* the last one that was bound */
    struct rk_step_totals totals;
};

static struct rk_status *bind(void *user, int64_t i, struct rk_micro_desc *desc)
{
    struct batches *batches = user;
    struct rk_train_micro *micro = &batches->micro;

    *micro = (struct rk_train_micro){0};
    RK_TRY(batches->work->bind(batches->work->user, i, micro));
    if (micro->num_ids > 0)
        RK_ASSERT(micro->outputs & RK_HEAD_BIT(RK_HEAD_LOG_PROBS));
    *desc = (struct rk_micro_desc){
        .packed = micro->packed,
        .temperature = micro->temperature,
        .outputs = micro->outputs,
        .num_ids = micro->num_ids,
        .ids = micro->ids,
        .num_top_ids = micro->num_ids,
        .hooks = micro->hooks,
        .grads = batches->trainer->grads,
        .grad_dtype = batches->trainer->pass_dtype,
        .totals = &batches->totals,
        .router_sums = rk_router_sums_tensor(&batches->trainer->routers),
    };
    return NULL;
}

static struct rk_status *handle_outputs(void *user, int64_t i, struct rk_micro *micro)
{
    const struct batches *batches = user;

    (void)i;
    return call_loss(micro, &batches->micro);
}

/* Reductions over dp overlap the last passes of a step; with accumulation in shards they overlap every pass,
 * which has its own gradients. */
static struct rk_status *prepare_backward(void *user, struct rk_micro *micro, bool is_last)
{
    const struct batches *batches = user;
    struct rk_trainer *trainer = batches->trainer;

    if (trainer->shard_grads) {
        trainer->is_stale = true;
        RK_TRY(rk_trainer_reset(trainer));
    }
    if ((is_last && batches->work->is_last && trainer->comm) || trainer->shard_grads) {
        micro->pass.on_grads_ready = rk_trainer_grads_ready;
        micro->pass.grads_user = trainer;
    }
    return prepare_grads(trainer, &micro->pass, micro->labels.count);
}

static struct rk_status *finish_backward(void *user)
{
    const struct batches *batches = user;

    return batches->trainer->shard_grads ? rk_trainer_reduce(batches->trainer) : NULL;
}

static struct rk_status *on_step(void *user, struct rk_pipeline_step step, bool is_done)
{
    const struct rk_train_work *work = ((const struct batches *)user)->work;

    return work->on_step ? work->on_step(work->user, step, is_done) : NULL;
}

/* Sums over the micro-batches and replicas, for losses of routers; 0 without them. */
static struct rk_status *count_totals(struct batches *batches)
{
    const struct rk_model_core *core = batches->trainer->model->core;
    struct rk_router_losses losses = rk_router_losses_of(&core->moe);
    struct rk_comm_group *dp = rk_mesh_comms_group(core->mesh, RK_GROUP_DP);
    double values[2] = {0};

    if (losses.balance_coeff == 0.0 && losses.z_coeff == 0.0)
        return NULL;
    for (int64_t i = 0; i < batches->work->count; i++) {
        struct rk_train_micro micro = {0};

        RK_TRY(batches->work->bind(batches->work->user, i, &micro));
        values[0] += (double)micro.packed->num_tokens;
        values[1] += (double)micro.packed->num_seqs;
    }
    if (rk_comm_group_size(dp) > 1)
        RK_TRY(rk_engine_sum(dp, core->stream, core->scratch, values, RK_ARRAY_LEN(values)));
    batches->totals = (struct rk_step_totals){.num_tokens = values[0], .num_seqs = values[1]};
    return NULL;
}

struct rk_status *rk_trainer_micro_batches(struct rk_trainer *trainer, const struct rk_train_work *work)
{
    struct batches batches = {.trainer = trainer, .work = work};

    RK_TRY(count_totals(&batches));
    return rk_pipeline_run(trainer->model, &(struct rk_pipeline_work){.count = work->count,
                                                                      .trains = true,
                                                                      .bind = bind,
                                                                      .handle_outputs = handle_outputs,
                                                                      .prepare_backward = prepare_backward,
                                                                      .finish_backward = finish_backward,
                                                                      .on_step = on_step,
                                                                      .user = &batches});
}

static struct rk_status *bind_one(void *user, int64_t i, struct rk_train_micro *micro)
{
    (void)i;
    *micro = *(const struct rk_train_micro *)user;
    return NULL;
}

struct rk_status *rk_trainer_micro_batch(struct rk_trainer *trainer, const struct rk_train_micro *micro)
{
    struct rk_train_micro one = *micro;

    return rk_trainer_micro_batches(
        trainer,
        &(struct rk_train_work){.count = 1, .is_last = micro->is_last, .bind = bind_one, .user = &one});
}
