#include "engine/rk_param.h"

#include "base/rk_assert.h"

int32_t rk_param_num_copies(const struct rk_param *param, const struct rk_mesh *mesh)
{
    return rk_mesh_axis_size(mesh, param->split.axis) / param->split.num_parts;
}

int32_t rk_param_first_rank(const struct rk_param *param, const struct rk_mesh *mesh, int32_t part)
{
    return part * rk_param_num_copies(param, mesh);
}

static bool is_held(const struct rk_param *param, const struct rk_mesh_coords *coords)
{
    int32_t stage = coords->axis[RK_AXIS_PP];

    if (param->ep_rank >= 0 && coords->axis[RK_AXIS_EP] != param->ep_rank)
        return false;
    return stage == param->stage || stage == param->shared_stage;
}

const struct rk_grad_group_row rk_grad_groups[RK_GRAD_GROUPS] = {
    [RK_GRAD_DENSE] = {RK_GROUP_DP_CP, RK_AXIS_BIT(RK_AXIS_DP) | RK_AXIS_BIT(RK_AXIS_CP)},
    [RK_GRAD_EXPERT] = {RK_GROUP_EDP, RK_AXIS_BIT(RK_AXIS_EDP)},
};

rk_grad_group_t rk_param_grad_group(const struct rk_param *param)
{
    int group = 0;

    while (group < RK_GRAD_GROUPS && rk_grad_groups[group].ranks != param->grad_group)
        group++;
    RK_ASSERT(group < RK_GRAD_GROUPS);
    return (rk_grad_group_t)group;
}

int32_t rk_grad_group_size(rk_grad_group_t group, const struct rk_mesh *mesh)
{
    int32_t size = 1;

    RK_ASSERT(group < RK_GRAD_GROUPS);
    for (int axis = 0; axis < RK_AXIS_COUNT; axis++) {
        if (rk_grad_groups[group].axes & RK_AXIS_BIT(axis))
            size *= rk_mesh_axis_size(mesh, (rk_axis_t)axis);
    }
    return size;
}

static bool is_first_of_grad_group(const struct rk_param *param, const struct rk_mesh_coords *coords)
{
    if (param->ep_rank >= 0)
        return coords->axis[RK_AXIS_EDP] == 0;
    return coords->axis[RK_AXIS_DP] == 0 && coords->axis[RK_AXIS_CP] == 0;
}

void rk_param_owner_coords(struct rk_mesh_coords *coords, const struct rk_param *param)
{
    coords->axis[RK_AXIS_PP] = param->stage;
    if (param->ep_rank >= 0)
        coords->axis[RK_AXIS_EP] = param->ep_rank;
}

void rk_param_place(struct rk_placement *out, const struct rk_param *param, const struct rk_mesh *mesh,
                    const struct rk_mesh_coords *coords)
{
    int32_t num_copies = rk_param_num_copies(param, mesh), rank = coords->axis[param->split.axis];

    *out = (struct rk_placement){.is_held = is_held(param, coords)};
    if (!out->is_held)
        return;
    out->part = rank / num_copies;
    out->is_counted = coords->axis[RK_AXIS_PP] == param->stage && rank % num_copies == 0;
    out->is_main = out->is_counted && is_first_of_grad_group(param, coords);
    for (int32_t dim = 0; dim < RK_PARAM_DIMS; dim++)
        out->local_shape[dim] =
            dim == param->split.dim ? param->split.size_padded / param->split.num_parts : param->shape[dim];
}

struct rk_param_box rk_param_get_box(const struct rk_param *param, const struct rk_placement *placement)
{
    struct rk_param_box box;

    for (int32_t dim = 0; dim < RK_PARAM_DIMS; dim++) {
        int64_t begin = dim == param->split.dim ? placement->part * placement->local_shape[dim] : 0;

        box.begin[dim] = RK_MIN(begin, param->shape[dim]);
        box.shape[dim] = RK_MIN(param->shape[dim] - box.begin[dim], placement->local_shape[dim]);
    }
    return box;
}

int64_t rk_shard_num_buckets(const struct rk_shard_map *map)
{
    return (map->num_elements + map->bucket_elements - 1) / map->bucket_elements;
}

struct rk_bucket rk_shard_bucket_at(const struct rk_shard_map *map, int64_t i)
{
    int64_t first = i * map->bucket_elements, begin = map->begin + first;
    int64_t count = RK_MIN(map->bucket_elements, map->num_elements - first);
    int64_t part = count / map->num_shards;

    RK_ASSERT(count > 0);
    RK_ASSERT(part * map->num_shards == count);
    return (struct rk_bucket){
        .begin = begin,
        .count = count,
        .mine = begin + map->index * part,
        .part = part,
        .shard = map->shard_begin + first / map->num_shards,
    };
}

bool rk_shard_next_run(const struct rk_shard_map *map, int64_t begin, int64_t end, struct rk_shard_run *run)
{
    int64_t next = run->count > 0 ? run->begin + run->count : begin;

    RK_ASSERT(begin >= map->begin);
    while (next < end) {
        int64_t i = (next - map->begin) / map->bucket_elements;
        struct rk_bucket bucket = rk_shard_bucket_at(map, i);
        int64_t first = RK_MAX(next, bucket.mine), last = RK_MIN(end, bucket.mine + bucket.part);

        if (first < last) {
            *run = (struct rk_shard_run){.begin = first,
                                         .count = last - first,
                                         .shard = bucket.shard + first - bucket.mine,
                                         .bucket = i};
            return true;
        }
        next = bucket.begin + bucket.count;
    }
    return false;
}

bool rk_shards_next_run(const struct rk_shard_maps *maps, int64_t begin, int64_t end,
                        struct rk_shard_run *run)
{
    int64_t next = run->count > 0 ? run->begin + run->count : begin;

    for (int g = 0; g < RK_GRAD_GROUPS; g++) {
        const struct rk_shard_map *map = &maps->of[g];
        int64_t first = RK_MAX(next, map->begin), last = RK_MIN(end, map->begin + map->num_elements);
        struct rk_shard_run found = {0};

        if (first < last && rk_shard_next_run(map, first, last, &found)) {
            *run = found;
            return true;
        }
    }
    return false;
}
