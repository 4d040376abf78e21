/* Communicators that several meshes share. The tp groups of the actor and of the rollout often have the same
 * ranks in the same order, and then use one communicator. The key is the whole partition of the world, which
 * every rank knows, and not the rank's own member list. So all ranks decide alike whether to create or to
 * reuse, which backends need whose creation is collective over the world. */
#include "engine/comm/comm.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

/* Reference-counted by its users; linked in world->shared. Engine thread only. */
struct rk_comm_shared {
    struct rk_comm_world *world;
    struct rk_comm_shared *next;
    struct rk_comm_group *group; /* NULL when this rank is in no group of the partition */
    int64_t num_users;
    uint32_t uses;             /* bits of rk_comm_use_t, of all users so far */
    int32_t *colors, *indices; /* [world size] each, one allocation */
};

#define USE_BIT(use) (1u << (use))

static bool conflicts(const struct rk_comm_shared *shared, rk_comm_use_t use)
{
    uint32_t both = USE_BIT(RK_COMM_USE_PASSES) | USE_BIT(RK_COMM_USE_GRADIENTS);

    return ((shared->uses | USE_BIT(use)) & both) == both;
}

static struct rk_comm_shared *find_equal(const struct rk_comm_world *world,
                                         struct rk_comm_partition partition, rk_comm_use_t use)
{
    size_t bytes = (size_t)world->size * sizeof(int32_t);

    for (struct rk_comm_shared *shared = world->shared; shared; shared = shared->next) {
        if (memcmp(shared->colors, partition.colors, bytes) == 0 &&
            memcmp(shared->indices, partition.indices, bytes) == 0 && !conflicts(shared, use))
            return shared;
    }
    return NULL;
}

/* The members of this rank's own group, in order. Returns their number. */
static int32_t own_members(const struct rk_comm_world *world, struct rk_comm_partition partition,
                           int32_t *members)
{
    int32_t color = partition.colors[world->rank], num_members = 0;

    if (color < 0)
        return 0;
    for (int32_t r = 0; r < world->size; r++) {
        if (partition.colors[r] != color)
            continue;
        members[partition.indices[r]] = r;
        num_members++;
    }
    return num_members;
}

struct rk_status *rk_comm_shared_acquire(struct rk_comm_shared **out, struct rk_comm_world *world,
                                         const char *name, struct rk_comm_partition partition,
                                         rk_comm_use_t use)
{
    struct rk_comm_shared *shared = find_equal(world, partition, use);
    size_t size = (size_t)world->size;
    struct rk_status *st;
    int32_t *members;

    *out = NULL;
    if (shared) {
        shared->num_users++;
        shared->uses |= USE_BIT(use);
        *out = shared;
        return NULL;
    }
    shared = rk_calloc(1, sizeof(*shared));
    shared->world = world;
    shared->num_users = 1;
    shared->uses = USE_BIT(use);
    shared->colors = rk_calloc(2 * size, sizeof(int32_t));
    shared->indices = shared->colors + size;
    memcpy(shared->colors, partition.colors, size * sizeof(int32_t));
    memcpy(shared->indices, partition.indices, size * sizeof(int32_t));
    shared->next = world->shared;
    world->shared = shared;

    members = rk_calloc(size, sizeof(int32_t));
    st = rk_comm_group_create(&shared->group, world, name, members, own_members(world, partition, members));
    rk_free(members);
    if (st) {
        rk_comm_shared_release(shared);
        return st;
    }
    *out = shared;
    return NULL;
}

void rk_comm_shared_release(struct rk_comm_shared *shared)
{
    struct rk_comm_shared **link;

    if (!shared)
        return;
    RK_ASSERT(shared->num_users > 0);
    if (--shared->num_users > 0)
        return;
    rk_comm_group_destroy(shared->group);
    for (link = &shared->world->shared; *link != shared; link = &(*link)->next)
        RK_ASSERT(*link);
    *link = shared->next;
    rk_free(shared->colors);
    rk_free(shared);
}

struct rk_comm_group *rk_comm_shared_group(const struct rk_comm_shared *shared)
{
    return shared->group;
}
