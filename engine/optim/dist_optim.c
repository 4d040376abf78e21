/* Reducing gradients to shards, updating a shard, spreading parameters. */
#include "engine/optim/optim_internal.h"

#include <stdlib.h>

#include "base/rk_assert.h"
#include "base/rk_fault.h"

static int compare_begin(const void *a, const void *b)
{
    int64_t left = ((const struct rk_shard_segment *)a)->begin,
            right = ((const struct rk_shard_segment *)b)->begin;

    return left < right ? -1 : left > right;
}

/* Joins neighbours that are treated alike. The gap that alignment left between them holds zeros in parameters
 * and gradients, which stay zeros. */
static void join_segments(struct rk_train *train)
{
    struct rk_shard_segment *segments = train->segments.items;
    int64_t count = 0;

    for (int64_t i = 0; i < train->segments.count; i++) {
        struct rk_shard_segment *last = count > 0 ? &segments[count - 1] : NULL;

        if (last && last->decays == segments[i].decays && last->is_counted == segments[i].is_counted)
            last->count = segments[i].begin + segments[i].count - last->begin;
        else
            segments[count++] = segments[i];
    }
    train->segments.count = count;
}

void rk_shard_segments(struct rk_train *train, const struct rk_param_table *params)
{
    int64_t shard_end = train->shard_begin + train->shard_count;

    for (int64_t i = 0; i < params->count; i++) {
        const struct rk_param *param = rk_params_at(params, i);
        int64_t begin = RK_MAX(param->offset, train->shard_begin);
        int64_t end = RK_MIN(param->offset + rk_param_local_elements(param), shard_end);
        struct rk_shard_segment segment = {
            .begin = begin,
            .count = end - begin,
            .decays = !(param->flags & RK_PARAM_NO_DECAY),
            .is_counted = param->is_counted,
        };

        if (begin < end)
            rk_array_append(&train->segments, segment);
    }
    if (train->segments.count > 0)
        qsort(train->segments.items, (size_t)train->segments.count, sizeof(*train->segments.items),
              compare_begin);
    join_segments(train);
}

static rk_tensor_t flat_view(void *buffer, rk_dtype_t dtype, int64_t begin, int64_t count)
{
    return rk_tensor_1d((char *)buffer + (size_t)begin * rk_dtype_bytes(dtype), dtype, count);
}

/* The gradient of weights that several tp ranks hold but use for different query heads: the sum over these
 * ranks, in rank order. They have no communicator of their own; key-value weights are small, so all of tp
 * exchanges them. */
static struct rk_status *sum_replicas(struct rk_model *model, const struct rk_param *param)
{
    const struct rk_model_core *core = model->core;
    struct rk_train *train = model->train;
    int32_t num_replicas = core->params.tp_size / param->num_parts;
    int32_t first = rk_param_first_rank(param, param->part, core->params.tp_size);
    int64_t count = rk_param_local_elements(param);
    rk_tensor_t grad = flat_view(train->grads, train->grad_dtype, param->offset, count), parts;

    rk_step_arena_reset(model->arena);
    RK_TRY(rk_step_1d(model->arena, &parts, train->grad_dtype, count * core->params.tp_size));
    RK_TRY(rk_comm_all_gather(rk_mesh_comms_group(core->mesh, RK_GROUP_TP), core->stream, parts, grad));
    for (int32_t i = 0; i < num_replicas; i++) {
        rk_tensor_t part = flat_view(parts.data, train->grad_dtype, (first + i) * count, count);

        RK_TRY(rk_axpby(core->stream, &(struct rk_axpby_args){
                                          .y = grad, .x = part, .alpha = 1, .beta = i == 0 ? 0.0f : 1.0f}));
    }
    return NULL;
}

struct rk_status *rk_train_reduce(struct rk_model *model)
{
    const struct rk_model_core *core = model->core;
    struct rk_train *train = model->train;
    rk_tensor_t all = flat_view(train->grads, train->grad_dtype, 0, train->num_elements);
    rk_tensor_t mine = flat_view(train->grads, train->grad_dtype, train->shard_begin, train->shard_count);

    for (int64_t i = 0; i < core->params.count; i++) {
        const struct rk_param *param = rk_params_at(&core->params, i);

        if (param->split_dim >= 0 && param->num_parts < core->params.tp_size)
            RK_TRY(sum_replicas(model, param));
    }
    return rk_comm_reduce_scatter(rk_mesh_comms_group(core->mesh, RK_GROUP_DP_CP), core->stream, mine, all,
                                  RK_REDUCE_SUM);
}

static struct rk_status *update_shard(struct rk_model *model, double grad_scale)
{
    const struct rk_model_core *core = model->core;
    struct rk_train *train = model->train;
    struct rk_optim_step step = {
        .config = &train->config,
        .lr = rk_train_get_lr(model),
        .grad_scale = grad_scale,
        .step = train->applied_steps + 1,
    };

    for (int64_t i = 0; i < train->segments.count; i++) {
        const struct rk_shard_segment *range = &train->segments.items[i];
        struct rk_optim_segment segment = {
            .param = flat_view(core->values, core->dtype, range->begin, range->count),
            .grad = flat_view(train->grads, train->grad_dtype, range->begin, range->count),
            .weight_decay = range->decays ? train->config.weight_decay : 0,
        };

        segment.master = train->masters ? flat_view(train->masters, train->grad_dtype,
                                                    range->begin - train->shard_begin, range->count)
                                        : segment.param;
        for (int32_t s = 0; s < train->config.ops->num_states; s++)
            segment.states[s] = flat_view(train->states[s], train->grad_dtype,
                                          range->begin - train->shard_begin, range->count);
        RK_TRY(train->config.ops->apply(core->stream, &segment, &step));
    }
    return NULL;
}

struct rk_status *rk_train_apply(struct rk_model *model, double grad_norm)
{
    struct rk_model_core *core = model->core;
    struct rk_train *train = model->train;
    rk_tensor_t all = flat_view(core->values, core->dtype, 0, train->num_elements);
    rk_tensor_t mine = flat_view(core->values, core->dtype, train->shard_begin, train->shard_count);
    double scale = train->config.clip_grad > 0 ? train->config.clip_grad / (grad_norm + 1e-6) : 1;

    if (RK_FAULT("optim.step"))
        return RK_FAIL(RK_INTERNAL, "fault point optim.step");
    RK_TRY(update_shard(model, RK_MIN(scale, 1)));
    RK_TRY(rk_comm_all_gather(rk_mesh_comms_group(core->mesh, RK_GROUP_DP_CP), core->stream, all, mine));
    RK_TRY(rk_stream_sync(core->stream));
    train->applied_steps++;
    core->weight_version++;
    return NULL;
}
