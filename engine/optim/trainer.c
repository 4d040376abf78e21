/* Training: its memory, and optimizer steps. */
#include "engine/optim/trainer.h"

#include <string.h>

#include "base/rk_assert.h"
#include "base/rk_alloc.h"
#include "kernels/rk_trace.h"

/* Consecutive steps with non-finite gradients after which training fails. */
#define SKIPPED_STEPS_MAX 5
#define SUMS_BYTES        (2 * sizeof(double)) /* of the gradient norm */

rk_tensor_t rk_trainer_grads(const struct rk_trainer *trainer)
{
    return rk_flat_view(trainer->grads, trainer->pass_dtype, 0, trainer->num_elements);
}

bool rk_trainer_has_sums(const struct rk_trainer *trainer)
{
    for (int g = 0; g < RK_GRAD_GROUPS; g++) {
        if (trainer->groups[g].num_reduced < trainer->groups[g].buckets.count)
            return false;
    }
    return !trainer->is_stale;
}

/* The maximum over the groups of the model. */
static int64_t largest_bucket(const struct rk_shard_maps *maps)
{
    int64_t count = 0;

    for (int g = 0; g < RK_GRAD_GROUPS; g++) {
        if (maps->of[g].num_elements > 0)
            count = RK_MAX(count, rk_shard_bucket_at(&maps->of[g], 0).count);
    }
    return count;
}

static int32_t largest_group(const struct rk_shard_maps *maps)
{
    int32_t size = 1;

    for (int g = 0; g < RK_GRAD_GROUPS; g++) {
        if (maps->of[g].num_elements > 0)
            size = RK_MAX(size, maps->of[g].num_shards);
    }
    return size;
}

/* Alignment that device memory guarantees for a buffer after another. */
#define ALIGN_BYTES 256

/* The sums of the shard, followed by the parts of a bucket. */
static struct rk_status *allocate_shard_grads(struct rk_trainer *trainer)
{
    size_t sum_bytes =
        rk_round_up((size_t)trainer->shard_count * rk_dtype_bytes(trainer->grad_dtype), ALIGN_BYTES);
    size_t inbox_bytes = (size_t)largest_bucket(&trainer->shards) * rk_dtype_bytes(trainer->pass_dtype);
    int32_t size = largest_group(&trainer->shards);

    if (trainer->pass_dtype == trainer->grad_dtype)
        return NULL;
    RK_TRY(rk_model_add_buffer(trainer->model->core, RK_MEMORY_GRADIENTS, sum_bytes + inbox_bytes,
                               "sums of gradients", &trainer->shard_grads));
    trainer->inbox = (char *)trainer->shard_grads + sum_bytes;
    trainer->rows = rk_calloc((size_t)size, sizeof(*trainer->rows));
    for (int32_t rank = 0; rank < size; rank++)
        trainer->rows[rank] = 1;
    return NULL;
}

static struct rk_status *allocate(struct rk_trainer *trainer)
{
    struct rk_model_core *core = trainer->model->core;
    size_t grad_bytes, shard_bytes = (size_t)trainer->shard_count * rk_dtype_bytes(trainer->grad_dtype);

    if (!rk_mul_size((size_t)trainer->num_elements, rk_dtype_bytes(trainer->pass_dtype), &grad_bytes))
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "%lld gradients exceed the address space",
                       (long long)trainer->num_elements);
    grad_bytes = RK_MAX(grad_bytes, ALIGN_BYTES); /* passes recognise training by a non-NULL buffer */
    RK_TRY(rk_model_add_buffer(core, RK_MEMORY_GRADIENTS, grad_bytes, "gradients", &trainer->grads));
    RK_TRY(allocate_shard_grads(trainer));
    if (trainer->config.ops && core->dtype != trainer->grad_dtype)
        RK_TRY(rk_model_add_buffer(core, RK_MEMORY_MASTERS, shard_bytes, "master weights",
                                   &core->masters.values));
    for (int32_t s = 0; trainer->config.ops && s < trainer->config.ops->num_states; s++)
        RK_TRY(rk_model_add_buffer(core, RK_MEMORY_OPTIMIZER, shard_bytes, "optimizer state",
                                   &trainer->states[s]));
    RK_TRY(rk_device_alloc(trainer->device, &trainer->sums, SUMS_BYTES, "gradient norm"));
    return rk_router_sums_create(&trainer->routers, core);
}

static struct rk_status *open_comm(struct rk_trainer *trainer)
{
    RK_TRY(rk_stream_create(&trainer->comm, trainer->device, "buckets"));
    RK_TRY(rk_event_create(&trainer->is_ready, trainer->device));
    return rk_event_create(&trainer->is_done, trainer->device);
}

/* Where the gradients of a group begin that a pass can only add to: gradients of vectors, and of an embedding
 * that is not also the head's weight. They follow the matrices of linear layers (params/params.h). */
static int64_t find_summed(const struct rk_model_core *core, rk_grad_group_t group)
{
    const struct rk_param_range *range = &core->params.groups[group];
    int64_t begin = range->begin + range->num_elements;

    for (int64_t i = 0; i < core->params.count; i++) {
        const struct rk_param *param = rk_params_at(&core->params, i);
        const struct rk_placement *placement = rk_params_placement(&core->params, i);
        bool is_embedding =
            i == core->embedding.weight.param && !(i == core->head.weight.param && rk_model_has_head(core));

        if (placement->is_held && rk_params_is_trained(&core->params, i) &&
            rk_param_grad_group(param) == group && (param->rank == 1 || is_embedding))
            begin = RK_MIN(begin, placement->offset);
    }
    return begin;
}

/* Asserts that all matrices that passes overwrite are before summed_begin. */
static void check_summed(const struct rk_trainer *trainer, const struct rk_model_core *core)
{
    for (int64_t i = 0; i < core->params.count; i++) {
        const struct rk_param *param = rk_params_at(&core->params, i);
        const struct rk_placement *placement = rk_params_placement(&core->params, i);

        if (placement->is_held && rk_params_is_trained(&core->params, i) && param->rank == 2 &&
            i != core->embedding.weight.param)
            RK_ASSERT(placement->offset < trainer->groups[rk_param_grad_group(param)].summed_begin);
    }
}

static struct rk_status *check_model(const struct rk_model *model, const struct rk_optim_config *config)
{
    int32_t num_stages = rk_pipeline_num_stages(model->core->pipeline);

    if (!model->owns_core)
        return RK_FAIL(RK_FAILED_PRECONDITION,
                       "a model that shares the weights of another model cannot train");
    if (model->trainer)
        return RK_FAIL(RK_FAILED_PRECONDITION, "the model has a trainer already");
    /* The summands of an embedding that two stages share are added only at the end of a step. */
    if (config->adds_in_shards && num_stages > 1)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "megatron.override_ddp_config.grad_reduce_in_fp32=false: expected true with %d "
                       "pipeline stages",
                       num_stages);
    return NULL;
}

/* The model's side of the two: what it must know of its trainer. */
static void attach(struct rk_trainer *trainer)
{
    struct rk_model *model = trainer->model;

    model->trainer = trainer;
    model->trainer_stream = trainer->comm;
    model->trainer_workspace_bytes = SUMS_BYTES + rk_router_sums_bytes(&trainer->routers);
    model->core->masters.shards = &trainer->shards;
}

static void detach(struct rk_trainer *trainer)
{
    struct rk_model *model = trainer->model;

    model->trainer = NULL;
    model->trainer_stream = NULL;
    model->trainer_workspace_bytes = 0;
    model->core->masters = (struct rk_masters){0};
    rk_model_keep_buffers(model->core, 1);
}

static struct rk_status *trainer_init(struct rk_trainer *trainer)
{
    const struct rk_model_core *core = trainer->model->core;
    struct rk_shard_places places = rk_shard_places_of(core->mesh);

    trainer->device = rk_stream_device(core->stream);
    trainer->grad_dtype = rk_master_dtype(core->dtype);
    rk_trainer_cut(trainer, &core->params, &places);
    trainer->pass_dtype = trainer->config.adds_in_shards && largest_group(&trainer->shards) > 1
                              ? core->dtype
                              : trainer->grad_dtype;
    for (int g = 0; g < RK_GRAD_GROUPS; g++)
        trainer->groups[g].summed_begin = find_summed(core, (rk_grad_group_t)g);
    check_summed(trainer, core);
    RK_TRY(allocate(trainer));
    if (largest_group(&trainer->shards) > 1)
        RK_TRY(open_comm(trainer));
    attach(trainer);
    return rk_model_copy_masters(core, 0, core->params.num_elements);
}

struct rk_status *rk_trainer_create(struct rk_trainer **out, struct rk_model *model,
                                    const struct rk_optim_config *config)
{
    struct rk_trainer *trainer;
    struct rk_status *st;

    *out = NULL;
    RK_TRY(check_model(model, config));
    trainer = rk_calloc(1, sizeof(*trainer));
    trainer->model = model;
    trainer->config = *config;
    st = trainer_init(trainer);
    if (st) {
        rk_trainer_destroy(trainer);
        return RK_WRAP(st, "creating a trainer");
    }
    *out = trainer;
    return NULL;
}

void rk_trainer_destroy(struct rk_trainer *trainer)
{
    if (!trainer)
        return;
    detach(trainer);
    rk_free(trainer->rows);
    rk_device_free(trainer->device, trainer->sums);
    rk_router_sums_fini(&trainer->routers, trainer->device);
    rk_event_destroy(trainer->is_ready);
    rk_event_destroy(trainer->is_done);
    rk_stream_destroy(trainer->comm);
    rk_trainer_cut_fini(trainer);
    rk_free(trainer);
}

struct rk_trainer *rk_model_trainer(const struct rk_model *model)
{
    return model->trainer;
}

struct rk_status *rk_trainer_gather_grad(struct rk_trainer *trainer, int64_t param, double *out)
{
    const struct rk_param_table *params = &trainer->model->core->params;

    if (!rk_params_is_trained(params, param)) {
        memset(out, 0, (size_t)rk_param_num_elements(rk_params_at(params, param)) * sizeof(*out));
        return NULL;
    }
    RK_TRY(rk_trainer_zero_stale(trainer));
    return rk_model_gather(trainer->model, param, rk_trainer_grads(trainer), out);
}

struct rk_status *rk_trainer_begin(struct rk_trainer *trainer)
{
    rk_tensor_t sums;

    trainer->is_stale = true;
    RK_TRY(rk_trainer_reset(trainer));
    RK_TRY(rk_router_sums_reset(&trainer->routers, trainer->model->core->stream));
    if (!trainer->shard_grads)
        return NULL;
    sums = rk_flat_view(trainer->shard_grads, trainer->grad_dtype, 0, trainer->shard_count);
    return rk_stream_zero(trainer->model->core->stream, sums.data, rk_tensor_bytes(sums));
}

/* Nothing is applied. All ranks decide alike: they have the same sums. */
static struct rk_status *skip(struct rk_trainer *trainer, struct rk_step_stats *stats)
{
    stats->was_skipped = true;
    trainer->skipped_in_a_row++;
    if (trainer->skipped_in_a_row < SKIPPED_STEPS_MAX)
        return NULL;
    return RK_FAIL_REASON(RK_ABORTED, "NON_FINITE",
                          "gradients were inf or NaN in %d optimizer steps in a row",
                          trainer->skipped_in_a_row);
}

static struct rk_status *run_step(struct rk_trainer *trainer, const struct rk_optim_config *config,
                                  struct rk_step_stats *stats)
{
    struct rk_router_sums *routers = &trainer->routers;
    bool is_finite;

    *stats = (struct rk_step_stats){.lr = config->lr};
    RK_TRY(rk_trainer_zero_stale(trainer));
    RK_TRY(rk_trainer_reduce(trainer));
    RK_TRY(rk_router_sums_fetch(routers, trainer->model->core));
    RK_TRY(rk_trainer_grad_norm(trainer, &stats->grad_norm, &is_finite)); /* waits for the stream */
    rk_router_stats_of(&stats->routers, routers);
    if (!is_finite)
        return skip(trainer, stats);
    trainer->skipped_in_a_row = 0;
    stats->has_begun = true;
    RK_TRY(rk_trainer_apply(trainer, config, stats->grad_norm));
    return rk_trainer_update_biases(trainer);
}

struct rk_status *rk_trainer_step_with(struct rk_trainer *trainer, const struct rk_optim_config *config,
                                       struct rk_step_stats *stats)
{
    struct rk_stream *stream = trainer->model->core->stream;
    struct rk_status *st;

    if (!trainer->config.ops)
        return RK_FAIL(RK_FAILED_PRECONDITION, "the trainer has no optimizer");
    rk_trace_begin_phase(stream, "optimizer");
    st = run_step(trainer, config, stats);
    rk_trace_end_phase(stream);
    return st;
}

struct rk_status *rk_trainer_step(struct rk_trainer *trainer, struct rk_step_stats *stats)
{
    struct rk_optim_config config = rk_trainer_get_config(trainer);

    return rk_trainer_step_with(trainer, &config, stats);
}

void rk_trainer_advance_lr(struct rk_trainer *trainer)
{
    trainer->lr_steps++;
}

struct rk_optim_config rk_trainer_get_config(const struct rk_trainer *trainer)
{
    struct rk_optim_config config = trainer->config;

    config.lr = rk_trainer_get_lr(trainer);
    return config;
}

double rk_trainer_get_lr(const struct rk_trainer *trainer)
{
    return rk_lr_at(&trainer->config, trainer->lr_steps);
}
