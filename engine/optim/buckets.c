/* Buckets of gradients and parameters: how the flat buffers are cut, and the collectives over dp that move
 * them (see optim_internal.h). Which bucket is reduced when depends on the model alone, so all ranks issue
 * the same collectives in the same order. */
#include "engine/optim/optim_internal.h"

#include <stdlib.h>

#include "base/rk_assert.h"

/* --- cutting --- */

static int compare_begin(const void *a, const void *b)
{
    int64_t left = ((const struct rk_shard_segment *)a)->begin,
            right = ((const struct rk_shard_segment *)b)->begin;

    return left < right ? -1 : left > right;
}

/* Joins neighbours of a bucket that are treated alike. The gap that alignment left between them holds zeros
 * in parameters and gradients, which stay zeros. */
static void join_segments(struct rk_train *train)
{
    struct rk_shard_segment *segments = train->segments.items;
    int64_t count = 0;

    for (int64_t i = 0; i < train->segments.count; i++) {
        struct rk_shard_segment *last = count > 0 ? &segments[count - 1] : NULL;

        if (last && last->bucket == segments[i].bucket && last->decays == segments[i].decays &&
            last->is_counted == segments[i].is_counted)
            last->count = segments[i].begin + segments[i].count - last->begin;
        else
            segments[count++] = segments[i];
    }
    train->segments.count = count;
}

/* Of the bucket with that index. */
static void add_segments(struct rk_train *train, const struct rk_param_table *params, int64_t index)
{
    const struct rk_bucket *bucket = &train->buckets.items[index];

    for (int64_t i = 0; i < params->count; i++) {
        const struct rk_param *param = rk_params_at(params, i);
        int64_t begin = RK_MAX(param->offset, bucket->mine);
        int64_t end = RK_MIN(param->offset + rk_param_local_elements(param), bucket->mine + bucket->part);
        struct rk_shard_segment segment = {
            .begin = begin,
            .count = end - begin,
            .bucket = index,
            .decays = !(param->flags & RK_PARAM_NO_DECAY),
            .is_counted = param->is_counted,
        };

        if (begin < end)
            rk_array_append(&train->segments, segment);
    }
}

void rk_train_cut(struct rk_train *train, const struct rk_param_table *params, int32_t dp_size,
                  int32_t dp_rank)
{
    /* One rank has nothing to overlap: the fewer buckets, the fewer calls of the optimizer. */
    int64_t unset = dp_size > 1 ? RK_BUCKET_ELEMENTS : RK_MAX(params->num_elements, 1);
    int64_t wanted = train->config.bucket_elements ? train->config.bucket_elements : unset;
    int64_t align = rk_params_align(dp_size), step = (wanted + align - 1) / align * align;

    RK_ASSERT(params->num_elements % align == 0);
    train->num_elements = params->num_elements;
    train->shard_count = train->num_elements / dp_size;
    for (int64_t begin = 0; begin < train->num_elements; begin += step) {
        struct rk_bucket bucket = {.begin = begin, .count = RK_MIN(step, train->num_elements - begin)};

        bucket.part = bucket.count / dp_size;
        bucket.mine = begin + dp_rank * bucket.part;
        bucket.shard = begin / dp_size;
        rk_array_append(&train->buckets, bucket);
        add_segments(train, params, train->buckets.count - 1);
    }
    if (train->segments.count > 0)
        qsort(train->segments.items, (size_t)train->segments.count, sizeof(*train->segments.items),
              compare_begin);
    join_segments(train);
}

/* --- sums --- */

/* What is given to the model's stream from here on comes after the collectives of buckets. */
struct rk_status *rk_train_wait(struct rk_model *model)
{
    struct rk_train *train = model->train;

    if (!train->comm)
        return NULL;
    RK_TRY(rk_event_record(train->is_done, train->comm));
    return rk_stream_wait(model->core->stream, train->is_done);
}

/* And the other way round. Returns the stream for the next collective of a bucket. */
static struct rk_status *wait_for_model(struct rk_model *model, struct rk_stream **stream)
{
    struct rk_train *train = model->train;

    *stream = train->comm ? train->comm : model->core->stream;
    if (!train->comm)
        return NULL;
    RK_TRY(rk_event_record(train->is_ready, model->core->stream));
    return rk_stream_wait(train->comm, train->is_ready);
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
    rk_tensor_t grad = rk_flat_view(train->grads, train->grad_dtype, param->offset, count), parts;
    struct rk_step_mark mark = rk_step_arena_mark(model->arena);

    RK_TRY(rk_step_1d(model->arena, &parts, train->grad_dtype, count * core->params.tp_size));
    RK_TRY(rk_comm_all_gather(rk_mesh_comms_group(core->mesh, RK_GROUP_TP), core->stream, parts, grad));
    for (int32_t i = 0; i < num_replicas; i++) {
        rk_tensor_t part = rk_flat_view(parts.data, train->grad_dtype, (first + i) * count, count);

        RK_TRY(rk_axpby(core->stream, &(struct rk_axpby_args){
                                          .y = grad, .x = part, .alpha = 1, .beta = i == 0 ? 0.0f : 1.0f}));
    }
    rk_step_arena_release(model->arena, mark);
    return NULL;
}

static struct rk_status *reduce_bucket(struct rk_model *model, const struct rk_bucket *bucket)
{
    struct rk_train *train = model->train;
    struct rk_stream *stream;

    RK_TRY(wait_for_model(model, &stream));
    return rk_comm_reduce_scatter(rk_mesh_comms_group(model->core->mesh, RK_GROUP_DP_CP), stream,
                                  rk_flat_view(train->grads, train->grad_dtype, bucket->mine, bucket->part),
                                  rk_flat_view(train->grads, train->grad_dtype, bucket->begin, bucket->count),
                                  RK_REDUCE_SUM);
}

/* The gradients of elements [0, end) are complete on this rank. `end` never cuts a parameter. */
static struct rk_status *reduce_up_to(struct rk_model *model, int64_t end)
{
    const struct rk_param_table *params = &model->core->params;
    struct rk_train *train = model->train;

    for (int64_t i = params->count - 1; i >= 0; i--) {
        const struct rk_param *param = rk_params_at(params, i);
        bool is_next = param->offset >= train->num_complete && param->offset < end;

        if (is_next && param->split_dim >= 0 && param->num_parts < params->tp_size)
            RK_TRY(sum_replicas(model, param));
    }
    train->num_complete = end;
    while (train->num_reduced < train->buckets.count) {
        const struct rk_bucket *bucket = &train->buckets.items[train->num_reduced];

        if (bucket->begin + bucket->count > end)
            break;
        RK_TRY(reduce_bucket(model, bucket));
        train->num_reduced++;
    }
    return NULL;
}

struct rk_status *rk_train_reset(struct rk_model *model)
{
    struct rk_train *train = model->train;

    train->is_last_micro = false;
    train->num_complete = 0;
    train->num_reduced = 0;
    return rk_train_wait(model);
}

struct rk_status *rk_train_grads_ready(struct rk_model *model, int64_t first_param)
{
    const struct rk_param_table *params = &model->core->params;
    int64_t end = 0;

    if (!model->train->is_last_micro || !model->train->comm)
        return NULL;
    for (int64_t i = first_param; i < params->count; i++) {
        const struct rk_param *param = rk_params_at(params, i);

        if (param->rank == 2) /* vectors are behind all matrices */
            end = RK_MAX(end, param->offset + rk_param_local_elements(param));
    }
    return reduce_up_to(model, end);
}

struct rk_status *rk_train_reduce(struct rk_model *model)
{
    RK_TRY(reduce_up_to(model, model->train->num_elements));
    return rk_train_wait(model);
}

/* --- parameters --- */

struct rk_status *rk_train_spread(struct rk_model *model, const struct rk_bucket *bucket)
{
    const struct rk_model_core *core = model->core;
    struct rk_stream *stream;

    RK_TRY(wait_for_model(model, &stream));
    return rk_comm_all_gather(rk_mesh_comms_group(core->mesh, RK_GROUP_DP_CP), stream,
                              rk_flat_view(core->values, core->dtype, bucket->begin, bucket->count),
                              rk_flat_view(core->values, core->dtype, bucket->mine, bucket->part));
}
