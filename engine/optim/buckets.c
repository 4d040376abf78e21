/* Buckets of gradients and parameters: the partition of the flat buffers, and the collectives over them (see
 * trainer.h). The order in which buckets are reduced depends only on the model, so all ranks issue the
 * same collectives in the same order. */
#include "engine/optim/trainer.h"

#include <stdlib.h>

#include "base/rk_assert.h"
#include "base/rk_fault.h"

/* --- cutting --- */

static int compare_begin(const void *a, const void *b)
{
    int64_t left = ((const struct rk_shard_segment *)a)->begin,
            right = ((const struct rk_shard_segment *)b)->begin;

    return left < right ? -1 : left > right;
}

static bool are_alike(const struct rk_shard_segment *a, const struct rk_shard_segment *b)
{
    return a->bucket == b->bucket && a->is_frozen == b->is_frozen && a->decays == b->decays &&
           a->is_counted == b->is_counted;
}

/* Joins adjacent segments of a bucket that are treated alike. Alignment gaps between them hold zeros in
 * parameters and gradients, which stay zero. */
static void join_segments(struct rk_train_group *group)
{
    struct rk_shard_segment *segments = group->segments.items;
    int64_t count = 0;

    for (int64_t i = 0; i < group->segments.count; i++) {
        struct rk_shard_segment *last = count > 0 ? &segments[count - 1] : NULL;

        if (last && are_alike(last, &segments[i]))
            last->count = segments[i].begin + segments[i].count - last->begin;
        else
            segments[count++] = segments[i];
    }
    group->segments.count = count;
}

/* Removes frozen segments. Done after joining, so that segments are not joined across them. */
static void drop_frozen(struct rk_train_group *group)
{
    struct rk_shard_segment *segments = group->segments.items;
    int64_t count = 0;

    for (int64_t i = 0; i < group->segments.count; i++) {
        if (!segments[i].is_frozen)
            segments[count++] = segments[i];
    }
    group->segments.count = count;
}

/* Adds the segments of a parameter's runs in this rank's shard. */
static void add_segments(struct rk_train_group *group, const struct rk_shard_map *shards,
                         const struct rk_param *param, const struct rk_placement *placement)
{
    int64_t end = placement->offset + rk_placement_num_elements(placement);
    struct rk_shard_run run = {0};

    while (rk_shard_next_run(shards, placement->offset, end, &run)) {
        struct rk_shard_segment segment = {
            .begin = run.begin,
            .count = run.count,
            .shard = run.shard,
            .bucket = run.bucket,
            .is_frozen = param->flags & RK_PARAM_FROZEN,
            .decays = !(param->flags & RK_PARAM_NO_DECAY),
            .is_counted = placement->is_counted,
        };

        rk_array_append(&group->segments, segment);
    }
}

static void cut_group(struct rk_train_group *group, const struct rk_shard_map *shards,
                      const struct rk_param_table *params, rk_grad_group_t index)
{
    for (int64_t i = 0; i < rk_shard_num_buckets(shards); i++) {
        struct rk_bucket bucket = rk_shard_bucket_at(shards, i);

        rk_array_append(&group->buckets, bucket);
    }
    for (int64_t i = 0; i < params->count; i++) {
        const struct rk_placement *placement = rk_params_placement(params, i);

        if (rk_param_grad_group(rk_params_at(params, i)) == index && placement->is_held)
            add_segments(group, shards, rk_params_at(params, i), placement);
    }
    if (group->segments.count > 0)
        qsort(group->segments.items, (size_t)group->segments.count, sizeof(*group->segments.items),
              compare_begin);
    join_segments(group);
    drop_frozen(group);
}

void rk_train_cut(struct rk_train *train, const struct rk_param_table *params,
                  const struct rk_shard_places *places)
{
    train->num_elements = params->num_elements;
    train->shards = rk_params_cut(params, places, train->config.bucket_elements);
    train->shard_count = rk_params_shard_count(&train->shards);
    for (int g = 0; g < RK_GRAD_GROUPS; g++)
        cut_group(&train->groups[g], &train->shards.of[g], params, (rk_grad_group_t)g);
}

void rk_train_cut_fini(struct rk_train *train)
{
    for (int g = 0; g < RK_GRAD_GROUPS; g++) {
        rk_array_fini(&train->groups[g].buckets);
        rk_array_fini(&train->groups[g].segments);
    }
}

/* --- sums --- */

rk_tensor_t rk_train_segment_grads(const struct rk_train *train, const struct rk_shard_segment *segment)
{
    return train->shard_grads
               ? rk_flat_view(train->shard_grads, train->grad_dtype, segment->shard, segment->count)
               : rk_flat_view(train->grads, train->grad_dtype, segment->begin, segment->count);
}

/* Makes the model's stream wait for the collectives of buckets. */
struct rk_status *rk_train_wait(struct rk_model *model)
{
    struct rk_train *train = model->train;

    if (!train->comm)
        return NULL;
    RK_TRY(rk_event_record(train->is_done, train->comm));
    return rk_stream_wait(model->core->stream, train->is_done);
}

/* Makes the collectives wait for the model's stream. Returns the stream for the next collective of a
 * bucket. */
static struct rk_status *wait_for_model(struct rk_model *model, struct rk_stream **stream)
{
    struct rk_train *train = model->train;

    *stream = train->comm ? train->comm : model->core->stream;
    if (!train->comm)
        return NULL;
    RK_TRY(rk_event_record(train->is_ready, model->core->stream));
    return rk_stream_wait(train->comm, train->is_ready);
}

/* All-to-all of the bucket's parts; every rank adds what it received for its part in rank order. A
 * reduce-scatter would round to 16 bits at every rank. */
static struct rk_status *add_to_shard(struct rk_model *model, struct rk_comm_group *group,
                                      const struct rk_bucket *bucket, struct rk_stream *stream)
{
    struct rk_train *train = model->train;
    char *from = (char *)train->grads + (size_t)bucket->begin * rk_dtype_bytes(train->pass_dtype);
    int32_t size = rk_comm_group_size(group);

    RK_TRY(rk_comm_all_to_all(group, stream,
                              rk_tensor_2d(train->inbox, train->pass_dtype, size, bucket->part), train->rows,
                              rk_tensor_2d(from, train->pass_dtype, size, bucket->part), train->rows));
    for (int32_t rank = 0; rank < size; rank++)
        RK_TRY(rk_axpby(
            stream, &(struct rk_axpby_args){
                        .y = rk_flat_view(train->shard_grads, train->grad_dtype, bucket->shard, bucket->part),
                        .x = rk_flat_view(train->inbox, train->pass_dtype, rank * bucket->part, bucket->part),
                        .alpha = 1,
                        .beta = 1,
                    }));
    return NULL;
}

static struct rk_comm_group *ranks_of(const struct rk_model *model, rk_grad_group_t group)
{
    return rk_mesh_comms_group(model->core->mesh, rk_grad_groups[group].ranks);
}

static struct rk_status *reduce_bucket(struct rk_model *model, rk_grad_group_t group,
                                       const struct rk_bucket *bucket)
{
    struct rk_train *train = model->train;
    struct rk_stream *stream;

    RK_TRY(wait_for_model(model, &stream));
    if (train->shard_grads)
        return add_to_shard(model, ranks_of(model, group), bucket, stream);
    return rk_comm_reduce_scatter(ranks_of(model, group), stream,
                                  rk_flat_view(train->grads, train->grad_dtype, bucket->mine, bucket->part),
                                  rk_flat_view(train->grads, train->grad_dtype, bucket->begin, bucket->count),
                                  RK_REDUCE_SUM);
}

/* The gradients of the group's elements before `end` are complete on this rank. `end` never splits a
 * parameter. */
static struct rk_status *reduce_up_to(struct rk_model *model, rk_grad_group_t index, int64_t end)
{
    struct rk_train_group *group = &model->train->groups[index];

    RK_TRY(rk_train_sum_copies(model, group->num_complete, end));
    group->num_complete = end;
    while (group->num_reduced < group->buckets.count) {
        const struct rk_bucket *bucket = &group->buckets.items[group->num_reduced];

        if (bucket->begin + bucket->count > end)
            break;
        RK_TRY(reduce_bucket(model, index, bucket));
        group->num_reduced++;
    }
    return NULL;
}

struct rk_status *rk_train_reset(struct rk_model *model)
{
    struct rk_train *train = model->train;

    for (int g = 0; g < RK_GRAD_GROUPS; g++) {
        train->groups[g].num_complete = train->shards.of[g].begin;
        train->groups[g].num_reduced = 0;
    }
    return rk_train_wait(model);
}

/* Where the complete gradients of the group end, given that the gradients of rows from `first_param` on are
 * complete. */
static int64_t find_complete(const struct rk_model *model, rk_grad_group_t group, int64_t first_param)
{
    const struct rk_param_table *params = &model->core->params;
    int64_t end = params->groups[group].begin;

    for (int64_t i = first_param; i < params->count; i++) {
        const struct rk_param *param = rk_params_at(params, i);
        const struct rk_placement *placement = rk_params_placement(params, i);

        if (param->rank == 2 && rk_param_grad_group(param) == group) /* vectors follow all matrices */
            end = RK_MAX(end, placement->offset + rk_placement_num_elements(placement));
    }
    return end;
}

struct rk_status *rk_train_grads_ready(void *user, int64_t first_param)
{
    struct rk_model *model = user;

    for (int g = 0; g < RK_GRAD_GROUPS; g++) {
        rk_grad_group_t group = (rk_grad_group_t)g;

        if (model->train->shards.of[g].num_elements > 0)
            RK_TRY(reduce_up_to(model, group, find_complete(model, group, first_param)));
    }
    return NULL;
}

/* Elements per message of a gradient that two stages exchange. */
#define SHARED_ELEMENTS ((int64_t)4 << 20)

/* Sums elements [begin, begin + count) of a gradient of which two stages have one summand each. */
static struct rk_status *sum_two_stages(struct rk_model *model, int32_t peer, int64_t begin, int64_t count)
{
    const struct rk_model_core *core = model->core;
    struct rk_comm_group *stages = rk_mesh_comms_group(core->mesh, RK_GROUP_PP);
    struct rk_train *train = model->train;
    rk_tensor_t mine = rk_flat_view(train->grads, train->grad_dtype, begin, count), other;
    struct rk_step_mark mark = rk_step_arena_mark(model->arena);

    RK_TRY(rk_step_1d(model->arena, &other, train->grad_dtype, count));
    RK_TRY(rk_comm_batch_begin(stages));
    RK_TRY(rk_comm_send(stages, core->stream, mine, peer));
    RK_TRY(rk_comm_recv(stages, core->stream, other, peer));
    RK_TRY(rk_comm_batch_end(stages));
    rk_step_arena_release(model->arena, mark);
    return rk_axpby(core->stream, &(struct rk_axpby_args){.y = mine, .x = other, .alpha = 1, .beta = 1});
}

/* The embedding that is also the head's weight: both stages compute the same sum of two terms, and so the
 * same weights. */
static struct rk_status *sum_shared(struct rk_model *model)
{
    const struct rk_param_table *params = &model->core->params;
    int32_t stage = params->coords.axis[RK_AXIS_PP];

    for (int64_t i = 0; i < params->count; i++) {
        const struct rk_param *param = rk_params_at(params, i);
        const struct rk_placement *placement = rk_params_placement(params, i);
        int64_t total = rk_placement_num_elements(placement);
        int32_t peer = stage == param->stage ? param->shared_stage : param->stage;

        if (param->shared_stage < 0 || !placement->is_held)
            continue;
        RK_ASSERT(placement->offset >= model->train->groups[rk_param_grad_group(param)].num_complete);
        for (int64_t begin = 0; begin < total; begin += SHARED_ELEMENTS)
            RK_TRY(sum_two_stages(model, peer, placement->offset + begin,
                                  RK_MIN(total - begin, SHARED_ELEMENTS)));
    }
    return NULL;
}

/* The first sum in this rank's shard that is not padding; NULL: there is none. */
static char *find_sum(const struct rk_model *model)
{
    const struct rk_param_table *params = &model->core->params;
    const struct rk_train *train = model->train;
    size_t elem_bytes = rk_dtype_bytes(train->grad_dtype);

    for (int64_t i = 0; i < params->count; i++) {
        const struct rk_placement *placement = rk_params_placement(params, i);
        struct rk_param_box box = rk_param_get_box(rk_params_at(params, i), placement);
        int64_t end = placement->offset + box.shape[0] * box.shape[1];
        struct rk_shard_run run = {0};

        if (placement->is_counted && rk_shards_next_run(&train->shards, placement->offset, end, &run))
            return train->shard_grads ? (char *)train->shard_grads + (size_t)run.shard * elem_bytes
                                      : (char *)train->grads + (size_t)run.begin * elem_bytes;
    }
    return NULL;
}

/* Simulates a defective device or link; for tests. */
static struct rk_status *spoil_sum(struct rk_model *model)
{
    struct rk_stream *stream = model->core->stream;
    rk_dtype_t dtype = model->train->grad_dtype;
    char *sum = find_sum(model);
    const double one = 1;
    double value;

    RK_ASSERT(sum);
    rk_store_f64(&value, dtype, &one, 1);
    RK_TRY(rk_stream_copy(stream, sum, &value, rk_dtype_bytes(dtype), RK_COPY_H2D));
    return rk_stream_sync(stream);
}

struct rk_status *rk_train_reduce(struct rk_model *model)
{
    RK_TRY(sum_shared(model));
    for (int g = 0; g < RK_GRAD_GROUPS; g++) {
        const struct rk_shard_map *shards = &model->train->shards.of[g];

        if (shards->num_elements > 0)
            RK_TRY(reduce_up_to(model, (rk_grad_group_t)g, shards->begin + shards->num_elements));
    }
    RK_TRY(rk_train_wait(model));
    return RK_FAULT("optim.gradient") ? spoil_sum(model) : NULL;
}

/* --- parameters --- */

struct rk_status *rk_train_spread(struct rk_model *model, rk_grad_group_t group,
                                  const struct rk_bucket *bucket)
{
    const struct rk_model_core *core = model->core;
    struct rk_stream *stream;

    RK_TRY(wait_for_model(model, &stream));
    return rk_comm_all_gather(ranks_of(model, group), stream,
                              rk_flat_view(core->values, core->dtype, bucket->begin, bucket->count),
                              rk_flat_view(core->values, core->dtype, bucket->mine, bucket->part));
}
