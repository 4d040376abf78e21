/* Groups of ranks of a world, and this rank's index in them. */
#include "engine/comm/comm.h"

#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_flight.h"

/* This rank's index in a member list of distinct world ranks. */
static int32_t index_in_members(const struct rk_comm_world *world, const int32_t *world_ranks,
                                int32_t num_ranks)
{
    int32_t index = -1;

    for (int32_t i = 0; i < num_ranks; i++) {
        RK_ASSERT(world_ranks[i] >= 0);
        RK_ASSERT(world_ranks[i] < world->size);
        for (int32_t j = 0; j < i; j++)
            RK_ASSERT(world_ranks[i] != world_ranks[j]);
        if (world_ranks[i] == world->rank)
            index = i;
    }
    RK_ASSERT(index >= 0);
    return index;
}

static uint64_t flight_group(const struct rk_comm_group *group)
{
    int32_t stride = group->size > 1 ? group->world_ranks[1] - group->world_ranks[0] : 0;

    for (int32_t i = 1; i < group->size; i++) {
        if (group->world_ranks[i] - group->world_ranks[i - 1] != stride)
            stride = 0;
    }
    return rk_flight_group(group->tag, group->world_ranks[0], RK_MAX(stride, 0), group->size);
}

struct rk_status *rk_comm_group_create(struct rk_comm_group **out, struct rk_comm_world *world,
                                       const char *name, const int32_t *world_ranks, int32_t num_ranks)
{
    struct rk_comm_group *group;
    struct rk_status *st;
    uint32_t tag;

    RK_ASSERT(out);
    RK_ASSERT(world);
    RK_ASSERT(name);
    RK_ASSERT(num_ranks >= 0);
    *out = NULL;
    tag = world->next_tag++; /* on every rank, so that tags are equal on all ranks */
    if (atomic_load(&world->has_failed))
        return rk_comm_world_error(world);
    if (num_ranks == 0) {
        st = world->ops->group_skip ? world->ops->group_skip(world) : NULL;
        if (!st)
            return NULL;
        rk_comm_world_fail(world, RK_WRAP(st, "creating group %s of other ranks", name));
        return rk_comm_world_error(world);
    }

    group = rk_calloc(1, sizeof(*group));
    group->world = world;
    group->tag = tag;
    group->rank = index_in_members(world, world_ranks, num_ranks);
    group->size = num_ranks;
    group->world_ranks = rk_calloc((size_t)num_ranks, sizeof(*group->world_ranks));
    memcpy(group->world_ranks, world_ranks, (size_t)num_ranks * sizeof(*world_ranks));
    snprintf(group->name, sizeof(group->name), "%s", name);
    group->flight_group = flight_group(group);
    group->next = world->groups;
    world->groups = group;
    st = world->ops->group_create ? world->ops->group_create(group) : NULL;
    if (st) {
        rk_comm_world_fail(world, RK_WRAP(st, "creating group %s", name));
        rk_comm_group_destroy(group);
        return rk_comm_world_error(world);
    }
    *out = group;
    return NULL;
}

void rk_comm_group_destroy(struct rk_comm_group *group)
{
    struct rk_comm_group **link;

    if (!group)
        return;
    rk_comm_graphs_drop(group);
    if (group->world->ops->group_destroy)
        group->world->ops->group_destroy(group);
    for (link = &group->world->groups; *link != group; link = &(*link)->next)
        RK_ASSERT(*link);
    *link = group->next;
    rk_array_fini(&group->batch);
    rk_free(group->world_ranks);
    rk_free(group);
}

int32_t rk_comm_group_rank(const struct rk_comm_group *group)
{
    return group ? group->rank : 0;
}

int32_t rk_comm_group_size(const struct rk_comm_group *group)
{
    return group ? group->size : 1;
}

bool rk_comm_group_is_dry(const struct rk_comm_group *group)
{
    return group && group->world->ops == &rk_comm_dry_ops;
}
