/* Training: its memory, and optimizer steps. */
#include "engine/optim/trainer.h"

#include "base/rk_assert.h"
#include "base/rk_alloc.h"
#include "kernels/rk_trace.h"

/* Consecutive steps with non-finite gradients after which training fails. */
#define SKIPPED_STEPS_MAX 5
#define SUMS_BYTES        (2 * sizeof(double)) /* of the gradient norm */

rk_dtype_t rk_train_grad_dtype(rk_dtype_t param_dtype)
{
    return param_dtype == RK_DTYPE_F64 ? RK_DTYPE_F64 : RK_DTYPE_F32;
}

rk_tensor_t rk_train_grads(const struct rk_train *train)
{
    return rk_flat_view(train->grads, train->pass_dtype, 0, train->num_elements);
}

bool rk_train_has_sums(const struct rk_train *train)
{
    for (int g = 0; g < RK_GRAD_GROUPS; g++) {
        if (train->groups[g].num_reduced < train->groups[g].buckets.count)
            return false;
    }
    return !train->is_stale;
}

void rk_train_destroy(struct rk_train *train)
{
    if (!train)
        return;
    rk_movable_fini(&train->grad_memory);
    rk_movable_fini(&train->sum_memory);
    rk_free(train->rows);
    rk_movable_fini(&train->master_memory);
    for (int32_t s = 0; s < RK_OPTIM_STATES_MAX; s++)
        rk_movable_fini(&train->state_memory[s]);
    rk_device_free(train->device, train->sums);
    rk_router_sums_fini(&train->routers, train->device);
    rk_event_destroy(train->is_ready);
    rk_event_destroy(train->is_done);
    rk_stream_destroy(train->comm);
    rk_train_cut_fini(train);
    rk_free(train);
}

static int32_t num_states(const struct rk_train *train)
{
    return train->config.ops ? train->config.ops->num_states : 0;
}

void rk_train_add_memory(const struct rk_train *train, struct rk_model_memory *memory)
{
    if (!train)
        return;
    memory->grad_bytes =
        rk_movable_held_bytes(&train->grad_memory) + rk_movable_held_bytes(&train->sum_memory);
    memory->master_bytes = rk_movable_held_bytes(&train->master_memory);
    for (int32_t s = 0; s < num_states(train); s++)
        memory->optimizer_bytes += rk_movable_held_bytes(&train->state_memory[s]);
    memory->workspace_bytes += SUMS_BYTES + rk_router_sums_bytes(&train->routers);
}

struct rk_status *rk_train_copy_masters(struct rk_train *train, const struct rk_model_core *core,
                                        int64_t begin, int64_t count)
{
    struct rk_shard_run run = {0};

    if (!train || !train->masters)
        return NULL;
    while (rk_shards_next_run(&train->shards, begin, begin + count, &run))
        RK_TRY(rk_axpby(core->stream,
                        &(struct rk_axpby_args){
                            .y = rk_flat_view(train->masters, train->grad_dtype, run.shard, run.count),
                            .x = rk_flat_view(core->values, core->dtype, run.begin, run.count),
                            .alpha = 1,
                        }));
    return NULL;
}

struct rk_status *rk_train_set_masters(struct rk_train *train, struct rk_stream *stream, int64_t begin,
                                       int64_t count, const void *values)
{
    size_t elem_bytes = train ? rk_dtype_bytes(train->grad_dtype) : 0;
    struct rk_shard_run run = {0};

    if (!train || !train->masters)
        return NULL;
    while (rk_shards_next_run(&train->shards, begin, begin + count, &run))
        RK_TRY(rk_stream_copy(stream, (char *)train->masters + (size_t)run.shard * elem_bytes,
                              (const char *)values + (size_t)(run.begin - begin) * elem_bytes,
                              (size_t)run.count * elem_bytes, RK_COPY_H2D));
    return NULL;
}

static struct rk_status *allocate_one(struct rk_train *train, struct rk_movable *memory, void **data,
                                      size_t bytes, bool may_leave, const char *what)
{
    RK_TRY(rk_movable_create(memory, train->device, bytes, may_leave, what));
    *data = memory->data;
    return NULL;
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
static struct rk_status *allocate_shard_grads(struct rk_train *train, const struct rk_model_core *core)
{
    size_t sum_bytes =
        rk_round_up((size_t)train->shard_count * rk_dtype_bytes(train->grad_dtype), ALIGN_BYTES);
    size_t inbox_bytes = (size_t)largest_bucket(&train->shards) * rk_dtype_bytes(train->pass_dtype);
    int32_t size = largest_group(&train->shards);

    if (train->pass_dtype == train->grad_dtype)
        return NULL;
    RK_TRY(allocate_one(train, &train->sum_memory, &train->shard_grads, sum_bytes + inbox_bytes,
                        core->offload & RK_PART_GRADIENTS, "sums of gradients"));
    train->inbox = (char *)train->shard_grads + sum_bytes;
    train->rows = rk_calloc((size_t)size, sizeof(*train->rows));
    for (int32_t rank = 0; rank < size; rank++)
        train->rows[rank] = 1;
    return NULL;
}

static struct rk_status *allocate(struct rk_train *train, const struct rk_model_core *core)
{
    size_t grad_bytes, shard_bytes = (size_t)train->shard_count * rk_dtype_bytes(train->grad_dtype);
    bool optimizer_leaves = core->offload & RK_PART_OPTIMIZER;

    if (!rk_mul_size((size_t)train->num_elements, rk_dtype_bytes(train->pass_dtype), &grad_bytes))
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "%lld gradients exceed the address space",
                       (long long)train->num_elements);
    RK_TRY(allocate_one(train, &train->grad_memory, &train->grads, grad_bytes,
                        core->offload & RK_PART_GRADIENTS, "gradients"));
    RK_TRY(allocate_shard_grads(train, core));
    if (train->config.ops && core->dtype != train->grad_dtype)
        RK_TRY(allocate_one(train, &train->master_memory, &train->masters, shard_bytes, optimizer_leaves,
                            "master weights"));
    for (int32_t s = 0; s < num_states(train); s++)
        RK_TRY(allocate_one(train, &train->state_memory[s], &train->states[s], shard_bytes, optimizer_leaves,
                            "optimizer state"));
    RK_TRY(rk_device_alloc(train->device, &train->sums, SUMS_BYTES, "gradient norm"));
    return rk_router_sums_create(&train->routers, core);
}

static struct rk_status *open_comm(struct rk_train *train)
{
    RK_TRY(rk_stream_create(&train->comm, train->device, "buckets"));
    RK_TRY(rk_event_create(&train->is_ready, train->device));
    return rk_event_create(&train->is_done, train->device);
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

        if (placement->is_held && rk_param_grad_group(param) == group && (param->rank == 1 || is_embedding))
            begin = RK_MIN(begin, placement->offset);
    }
    return begin;
}

/* Asserts that all matrices that passes overwrite are before summed_begin. */
static void check_summed(const struct rk_train *train, const struct rk_model_core *core)
{
    for (int64_t i = 0; i < core->params.count; i++) {
        const struct rk_param *param = rk_params_at(&core->params, i);
        const struct rk_placement *placement = rk_params_placement(&core->params, i);

        if (placement->is_held && param->rank == 2 && i != core->embedding.weight.param)
            RK_ASSERT(placement->offset < train->groups[rk_param_grad_group(param)].summed_begin);
    }
}

struct rk_status *rk_train_enable(struct rk_model *model, const struct rk_optim_config *config)
{
    const struct rk_model_core *core = model->core;
    struct rk_shard_places places = rk_shard_places_of(core->mesh);
    struct rk_train *train;
    struct rk_status *st;

    if (!model->owns_core)
        return RK_FAIL(RK_FAILED_PRECONDITION,
                       "a model that shares the weights of another model cannot train");
    if (model->train)
        return RK_FAIL(RK_FAILED_PRECONDITION, "training is enabled already");
    /* The summands of an embedding that two stages share are added only at the end of a step. */
    if (config->adds_in_shards && rk_pipeline_num_stages(core->pipeline) > 1)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "megatron.override_ddp_config.grad_reduce_in_fp32=false: expected true with %d "
                       "pipeline stages",
                       rk_pipeline_num_stages(core->pipeline));
    train = rk_calloc(1, sizeof(*train));
    train->config = *config;
    train->device = rk_stream_device(core->stream);
    train->grad_dtype = rk_train_grad_dtype(core->dtype);
    rk_train_cut(train, &core->params, &places);
    train->pass_dtype =
        config->adds_in_shards && largest_group(&train->shards) > 1 ? core->dtype : train->grad_dtype;
    for (int g = 0; g < RK_GRAD_GROUPS; g++)
        train->groups[g].summed_begin = find_summed(core, (rk_grad_group_t)g);
    check_summed(train, core);
    st = allocate(train, core);
    if (!st && largest_group(&train->shards) > 1)
        st = open_comm(train);
    if (!st)
        st = rk_train_copy_masters(train, core, 0, core->params.num_elements);
    if (st) {
        rk_train_destroy(train);
        return RK_WRAP(st, "enabling training");
    }
    model->train = train;
    return NULL;
}

struct rk_status *rk_train_check_enabled(const struct rk_model *model)
{
    return model->train ? NULL : RK_FAIL(RK_FAILED_PRECONDITION, "training is not enabled for this model");
}

struct rk_status *rk_train_begin(struct rk_model *model)
{
    struct rk_train *train = model->train;
    rk_tensor_t sums;

    RK_TRY(rk_train_check_enabled(model));
    train->is_stale = true;
    RK_TRY(rk_train_reset(model));
    RK_TRY(rk_router_sums_reset(&train->routers, model->core->stream));
    if (!train->shard_grads)
        return NULL;
    sums = rk_flat_view(train->shard_grads, train->grad_dtype, 0, train->shard_count);
    return rk_stream_zero(model->core->stream, sums.data, rk_tensor_bytes(sums));
}

/* Nothing is applied. All ranks decide alike: they have the same sums. */
static struct rk_status *skip(struct rk_train *train, struct rk_step_stats *stats)
{
    stats->was_skipped = true;
    train->skipped_in_a_row++;
    if (train->skipped_in_a_row < SKIPPED_STEPS_MAX)
        return NULL;
    return RK_FAIL_REASON(RK_ABORTED, "NON_FINITE",
                          "gradients were inf or NaN in %d optimizer steps in a row",
                          train->skipped_in_a_row);
}

static struct rk_status *run_step(struct rk_model *model, const struct rk_optim_config *config,
                                  struct rk_step_stats *stats)
{
    struct rk_router_sums *routers = &model->train->routers;
    bool is_finite;

    *stats = (struct rk_step_stats){.lr = config->lr};
    RK_TRY(rk_train_settle(model));
    RK_TRY(rk_train_reduce(model));
    RK_TRY(rk_router_sums_fetch(routers, model->core));
    RK_TRY(rk_train_grad_norm(model, &stats->grad_norm, &is_finite)); /* waits for the stream */
    rk_router_stats_of(&stats->routers, routers);
    if (!is_finite)
        return skip(model->train, stats);
    model->train->skipped_in_a_row = 0;
    stats->has_begun = true;
    RK_TRY(rk_train_apply(model, config, stats->grad_norm));
    return rk_train_update_biases(model);
}

struct rk_status *rk_train_step_with(struct rk_model *model, const struct rk_optim_config *config,
                                     struct rk_step_stats *stats)
{
    struct rk_stream *stream = model->core->stream;
    struct rk_status *st;

    RK_TRY(rk_train_check_enabled(model));
    if (!model->train->config.ops)
        return RK_FAIL(RK_FAILED_PRECONDITION, "training is enabled for gradients only");
    rk_trace_begin_phase(stream, "optimizer");
    st = run_step(model, config, stats);
    rk_trace_end_phase(stream);
    return st;
}

struct rk_status *rk_train_step(struct rk_model *model, struct rk_step_stats *stats)
{
    struct rk_optim_config config;

    RK_TRY(rk_train_check_enabled(model));
    config = rk_train_get_config(model);
    return rk_train_step_with(model, &config, stats);
}

void rk_train_disable(struct rk_model *model)
{
    RK_ASSERT(model->owns_core);
    rk_train_destroy(model->train);
    model->train = NULL;
}

void rk_train_advance_lr(struct rk_model *model)
{
    RK_ASSERT(model->train);
    model->train->lr_steps++;
}

struct rk_optim_config rk_train_get_config(const struct rk_model *model)
{
    struct rk_optim_config config;

    RK_ASSERT(model->train);
    config = model->train->config;
    config.lr = rk_train_get_lr(model);
    return config;
}

double rk_train_get_lr(const struct rk_model *model)
{
    RK_ASSERT(model->train);
    return rk_lr_at(&model->train->config, model->train->lr_steps);
}
