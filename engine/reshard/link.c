/* The ranks of two meshes, and their communicator. */
#include "engine/reshard/reshard.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

static bool is_in(const struct rk_mesh *mesh, int32_t rank)
{
    struct rk_mesh_coords coords;

    return rk_mesh_find_coords(mesh, rank, &coords);
}

static struct rk_status *acquire(struct rk_reshard_link *link, struct rk_comm_world *world)
{
    size_t world_size = (size_t)rk_comm_world_size(world);
    int32_t *colors = rk_calloc(world_size, sizeof(*colors));
    int32_t *indices = rk_calloc(world_size, sizeof(*indices));
    struct rk_status *st;

    for (size_t rank = 0; rank < world_size; rank++)
        colors[rank] = -1;
    for (int32_t i = 0; i < link->num_ranks; i++) {
        colors[link->ranks[i]] = link->ranks[0];
        indices[link->ranks[i]] = i;
    }
    st = rk_comm_shared_acquire(&link->shared, world, "reshard",
                                (struct rk_comm_partition){.colors = colors, .indices = indices},
                                RK_COMM_USE_APART);
    rk_free(colors);
    rk_free(indices);
    return st;
}

struct rk_status *rk_reshard_link_create(struct rk_reshard_link **out, struct rk_comm_world *world,
                                         const struct rk_mesh *source, const struct rk_mesh *destination)
{
    struct rk_reshard_link *link = rk_calloc(1, sizeof(*link));
    int32_t world_size = rk_comm_world_size(world);
    struct rk_status *st;

    RK_ASSERT(rk_mesh_world_size(source) == world_size);
    RK_ASSERT(rk_mesh_world_size(destination) == world_size);
    *out = NULL;
    link->source = source;
    link->destination = destination;
    link->rank = rk_comm_world_rank(world);
    link->ranks = rk_calloc((size_t)world_size, sizeof(*link->ranks));
    for (int32_t rank = 0; rank < world_size; rank++) {
        if (is_in(source, rank) || is_in(destination, rank))
            link->ranks[link->num_ranks++] = rank;
    }
    link->is_member = is_in(source, link->rank) || is_in(destination, link->rank);
    st = link->num_ranks > 1 ? acquire(link, world) : NULL;
    if (st) {
        rk_reshard_link_destroy(link);
        return RK_WRAP(st, "communicator of meshes %s and %s", rk_mesh_text(source),
                       rk_mesh_text(destination));
    }
    *out = link;
    return NULL;
}

void rk_reshard_link_destroy(struct rk_reshard_link *link)
{
    if (!link)
        return;
    rk_comm_shared_release(link->shared);
    rk_free(link->ranks);
    rk_free(link);
}

bool rk_reshard_link_is_member(const struct rk_reshard_link *link)
{
    return link->is_member;
}

struct rk_comm_group *rk_reshard_link_group(const struct rk_reshard_link *link)
{
    return link->shared ? rk_comm_shared_group(link->shared) : NULL;
}

int32_t rk_reshard_link_index(const struct rk_reshard_link *link, int32_t rank)
{
    int32_t low = 0, high = link->num_ranks - 1;

    while (low < high) {
        int32_t middle = low + (high - low) / 2;

        if (link->ranks[middle] < rank)
            low = middle + 1;
        else
            high = middle;
    }
    RK_ASSERT(link->ranks[low] == rank);
    return low;
}
