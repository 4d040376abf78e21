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
static void join_segments(struct rk_trainer_group *group)
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
static void drop_frozen(struct rk_trainer_group *group)
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
static void add_segments(struct rk_trainer_group *group, const struct rk_shard_map *shards,
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

static void cut_group(struct rk_trainer_group *group, const struct rk_shard_map *shards,
                      const struct rk_param_table *params, rk_grad_group_t index)
{
    for (int64_t i = 0; i < rk_shard_num_buckets(shards); i++) {
        struct rk_bucket bucket = rk_shard_bucket_at(shards, i);

        rk_array_append(&group->buckets, bucket);
    }
    for (int64_t i = 0; i < params->count; i++) {
        const struct rk_placement *placement = rk_params_placement(params, i);

        if (rk_param_grad_group(rk_params_at(params, i)) == index && placement->is_held &&
            rk_params_is_trained(params, i))
            add_segments(group, shards, rk_params_at(params, i), placement);
    }
    if (group->segments.count > 0)
        qsort(group->segments.items, (size_t)group->segments.count, sizeof(*group->segments.items),
              compare_begin);
    join_segments(group);
    drop_frozen(group);
}

void rk_trainer_cut(struct rk_trainer *trainer, const struct rk_param_table *params,
                    const struct rk_shard_places *places)
{
    trainer->num_elements = params->num_trained;
    trainer->shards = rk_params_cut(params, places, trainer->config.bucket_elements);
    trainer->shard_count = rk_params_shard_count(&trainer->shards);
    for (int g = 0; g < RK_GRAD_GROUPS; g++)
        cut_group(&trainer->groups[g], &trainer->shards.of[g], params, (rk_grad_group_t)g);
}

void rk_trainer_cut_fini(struct rk_trainer *trainer)
{
    for (int g = 0; g < RK_GRAD_GROUPS; g++) {
        rk_array_fini(&trainer->groups[g].buckets);
        rk_array_fini(&trainer->groups[g].segments);
    }
}

/* --- sums --- */

rk_tensor_t rk_trainer_segment_grads(const struct rk_trainer *trainer, const struct rk_shard_segment *segment)
{
    return trainer->shard_grads
               ? rk_flat_view(trainer->shard_grads, trainer->grad_dtype, segment->shard, segment->count)
               : rk_flat_view(trainer->grads, trainer->grad_dtype, segment->begin, segment->count);
}

/* Makes the model's stream wait for the collectives of buckets. */
struct rk_status *rk_trainer_wait(struct rk_trainer *trainer)
{
    if (!trainer->comm)
        return NULL;
    RK_TRY(rk_event_record(trainer->is_done, trainer->comm));
    return rk_stream_wait(trainer->model->core->stream, trainer->is_done);
}

/* Makes the collectives wait for the model's stream. Returns the stream for the next collective of a
 * bucket. */
static struct rk_status *wait_for_model(struct rk_trainer *trainer, struct rk_stream **stream)
{
    *stream = trainer->comm ? trainer->comm : trainer->model->core->stream;
    if (!trainer->comm)
        return NULL;
    RK_TRY(rk_event_record(trainer->is_ready, trainer->model->core->stream));
    return rk_stream_wait(trainer->comm, trainer->is_ready);
}

/* All-to-all of the bucket's parts; every rank adds what it received for its part in rank order. A
 * reduce-scatter would round to 16 bits at every rank. */
static struct rk_status *add_to_shard(struct rk_trainer *trainer, struct rk_comm_group *group,
                                      const struct rk_bucket *bucket, struct rk_stream *stream)
{
    char *from = (char *)trainer->grads + (size_t)bucket->begin * rk_dtype_bytes(trainer->pass_dtype);
    int32_t size = rk_comm_group_size(group);

    RK_TRY(rk_comm_all_to_all(
        group, stream, rk_tensor_2d(trainer->inbox, trainer->pass_dtype, size, bucket->part), trainer->rows,
        rk_tensor_2d(from, trainer->pass_dtype, size, bucket->part), trainer->rows));
    for (int32_t rank = 0; rank < size; rank++)
        RK_TRY(rk_axpby(
            stream,
            &(struct rk_axpby_args){
                .y = rk_flat_view(trainer->shard_grads, trainer->grad_dtype, bucket->shard, bucket->part),
                .x = rk_flat_view(trainer->inbox, trainer->pass_dtype, rank * bucket->part, bucket->part),
                .alpha = 1,
                .beta = 1,
            }));
    return NULL;
}

static struct rk_comm_group *ranks_of(const struct rk_trainer *trainer, rk_grad_group_t group)
{
    return rk_mesh_comms_group(trainer->model->core->mesh, rk_grad_groups[group].ranks);
}

static struct rk_status *reduce_bucket(struct rk_trainer *trainer, rk_grad_group_t group,
                                       const struct rk_bucket *bucket)
{
    struct rk_stream *stream;

    RK_TRY(wait_for_model(trainer, &stream));
    if (trainer->shard_grads)
        return add_to_shard(trainer, ranks_of(trainer, group), bucket, stream);
    return rk_comm_reduce_scatter(
        ranks_of(trainer, group), stream,
        rk_flat_view(trainer->grads, trainer->grad_dtype, bucket->mine, bucket->part),
        rk_flat_view(trainer->grads, trainer->grad_dtype, bucket->begin, bucket->count), RK_REDUCE_SUM);
}

/* The gradients of the group's elements before `end` are complete on this rank. `end` never splits a
 * parameter. */
static struct rk_status *reduce_up_to(struct rk_trainer *trainer, rk_grad_group_t index, int64_t end)
{
    struct rk_trainer_group *group = &trainer->groups[index];

    RK_TRY(rk_trainer_sum_copies(trainer, group->num_complete, end));
    group->num_complete = end;
    while (group->num_reduced < group->buckets.count) {
        const struct rk_bucket *bucket = &group->buckets.items[group->num_reduced];

        if (bucket->begin + bucket->count > end)
            break;
        RK_TRY(reduce_bucket(trainer, index, bucket));
        group->num_reduced++;
    }
    return NULL;
}

struct rk_status *rk_trainer_reset(struct rk_trainer *trainer)
{
    for (int g = 0; g < RK_GRAD_GROUPS; g++) {
        trainer->groups[g].num_complete = trainer->shards.of[g].begin;
        trainer->groups[g].num_reduced = 0;
    }
    return rk_trainer_wait(trainer);
}

/* Where the complete gradients of the group end, given that the gradients of rows from `first_param` on are
 * complete. */
static int64_t find_complete(const struct rk_trainer *trainer, rk_grad_group_t group, int64_t first_param)
{
    const struct rk_param_table *params = &trainer->model->core->params;
    int64_t end = params->groups[group].begin;

    for (int64_t i = first_param; i < params->count; i++) {
        const struct rk_param *param = rk_params_at(params, i);
        const struct rk_placement *placement = rk_params_placement(params, i);

        /* vectors follow all matrices */
        if (param->rank == 2 && rk_param_grad_group(param) == group && rk_params_is_trained(params, i))
            end = RK_MAX(end, placement->offset + rk_placement_num_elements(placement));
    }
    return end;
}

struct rk_status *rk_trainer_grads_ready(void *user, int64_t first_param)
{
    struct rk_trainer *trainer = user;

    for (int g = 0; g < RK_GRAD_GROUPS; g++) {
        rk_grad_group_t group = (rk_grad_group_t)g;

        if (trainer->shards.of[g].num_elements > 0)
            RK_TRY(reduce_up_to(trainer, group, find_complete(trainer, group, first_param)));
    }
    return NULL;
}

/* Elements per message of a gradient that two stages exchange. */
#define SHARED_ELEMENTS ((int64_t)4 << 20)

/* Sums elements [begin, begin + count) of a gradient of which two stages have one summand each. */
static struct rk_status *sum_two_stages(struct rk_trainer *trainer, int32_t peer, int64_t begin,
                                        int64_t count)
{
    const struct rk_model_core *core = trainer->model->core;
    struct rk_comm_group *stages = rk_mesh_comms_group(core->mesh, RK_GROUP_PP);
    rk_tensor_t mine = rk_flat_view(trainer->grads, trainer->grad_dtype, begin, count), other;
    struct rk_step_mark mark = rk_step_arena_mark(trainer->model->arena);

    RK_TRY(rk_step_1d(trainer->model->arena, &other, trainer->grad_dtype, count));
    RK_TRY(rk_comm_batch_begin(stages));
    RK_TRY(rk_comm_send(stages, core->stream, mine, peer));
    RK_TRY(rk_comm_recv(stages, core->stream, other, peer));
    RK_TRY(rk_comm_batch_end(stages));
    rk_step_arena_release(trainer->model->arena, mark);
    return rk_axpby(core->stream, &(struct rk_axpby_args){.y = mine, .x = other, .alpha = 1, .beta = 1});
}

/* The embedding that is also the head's weight: both stages compute the same sum of two terms, and so the
 * same weights. */
static struct rk_status *sum_shared(struct rk_trainer *trainer)
{
    const struct rk_param_table *params = &trainer->model->core->params;
    int32_t stage = params->coords.axis[RK_AXIS_PP];

    for (int64_t i = 0; i < params->count; i++) {
        const struct rk_param *param = rk_params_at(params, i);
        const struct rk_placement *placement = rk_params_placement(params, i);
        int64_t total = rk_placement_num_elements(placement);
        int32_t peer = stage == param->stage ? param->shared_stage : param->stage;

        if (param->shared_stage < 0 || !placement->is_held || !rk_params_is_trained(params, i))
            continue;
        RK_ASSERT(placement->offset >= trainer->groups[rk_param_grad_group(param)].num_complete);
        for (int64_t begin = 0; begin < total; begin += SHARED_ELEMENTS)
            RK_TRY(sum_two_stages(trainer, peer, placement->offset + begin,
                                  RK_MIN(total - begin, SHARED_ELEMENTS)));
    }
    return NULL;
}

/* The first sum in this rank's shard that is not padding; NULL: there is none. */
static char *find_sum(const struct rk_trainer *trainer)
{
    const struct rk_param_table *params = &trainer->model->core->params;
    size_t elem_bytes = rk_dtype_bytes(trainer->grad_dtype);

    for (int64_t i = 0; i < params->count; i++) {
        const struct rk_placement *placement = rk_params_placement(params, i);
        struct rk_param_box box = rk_param_get_box(rk_params_at(params, i), placement);
        int64_t end = placement->offset + box.shape[0] * box.shape[1];
        struct rk_shard_run run = {0};

        if (placement->is_counted && rk_shards_next_run(&trainer->shards, placement->offset, end, &run))
            return trainer->shard_grads ? (char *)trainer->shard_grads + (size_t)run.shard * elem_bytes
                                        : (char *)trainer->grads + (size_t)run.begin * elem_bytes;
    }
    return NULL;
}

/* Simulates a defective device or link; for tests. */
static struct rk_status *spoil_sum(struct rk_trainer *trainer)
{
    struct rk_stream *stream = trainer->model->core->stream;
    rk_dtype_t dtype = trainer->grad_dtype;
    char *sum = find_sum(trainer);
    const double one = 1;
    double value;

    RK_ASSERT(sum);
    rk_store_f64(&value, dtype, &one, 1);
    RK_TRY(rk_stream_copy(stream, sum, &value, rk_dtype_bytes(dtype), RK_COPY_H2D));
    return rk_stream_sync(stream);
}

struct rk_status *rk_trainer_reduce(struct rk_trainer *trainer)
{
    RK_TRY(sum_shared(trainer));
    for (int g = 0; g < RK_GRAD_GROUPS; g++) {
        const struct rk_shard_map *shards = &trainer->shards.of[g];

        if (shards->num_elements > 0)
            RK_TRY(reduce_up_to(trainer, (rk_grad_group_t)g, shards->begin + shards->num_elements));
    }
    RK_TRY(rk_trainer_wait(trainer));
    return RK_FAULT("optim.gradient") ? spoil_sum(trainer) : NULL;
}

/* --- parameters --- */

struct rk_status *rk_trainer_gather_params(struct rk_trainer *trainer, rk_grad_group_t group,
                                           const struct rk_bucket *bucket)
{
    const struct rk_model_core *core = trainer->model->core;
    struct rk_stream *stream;

    RK_TRY(wait_for_model(trainer, &stream));
    return rk_comm_all_gather(ranks_of(trainer, group), stream,
                              rk_flat_view(core->values, core->dtype, bucket->begin, bucket->count),
                              rk_flat_view(core->values, core->dtype, bucket->mine, bucket->part));
}
