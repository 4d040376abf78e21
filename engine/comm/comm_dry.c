/* Collectives of dry runs: a world of any size that sends nothing, so that one process can run the code of
 * one rank and measure its memory. The contents of receive buffers are undefined. */
#include "engine/comm/comm.h"

static void dry_world_destroy(struct rk_comm_world *world)
{
    (void)world;
}

static void dry_world_abort(struct rk_comm_world *world, const struct rk_status *error)
{
    (void)world;
    (void)error;
}

static struct rk_status *dry_all_reduce(struct rk_comm_group *group, struct rk_stream *stream,
                                        rk_tensor_t inout, rk_reduce_op_t op)
{
    (void)group;
    (void)stream;
    (void)inout;
    (void)op;
    return NULL;
}

static struct rk_status *dry_all_gather(struct rk_comm_group *group, struct rk_stream *stream,
                                        rk_tensor_t out, rk_tensor_t in)
{
    (void)group;
    (void)stream;
    (void)out;
    (void)in;
    return NULL;
}

static struct rk_status *dry_reduce_scatter(struct rk_comm_group *group, struct rk_stream *stream,
                                            rk_tensor_t out, rk_tensor_t in, rk_reduce_op_t op)
{
    (void)group;
    (void)stream;
    (void)out;
    (void)in;
    (void)op;
    return NULL;
}

static struct rk_status *dry_broadcast(struct rk_comm_group *group, struct rk_stream *stream,
                                       rk_tensor_t inout, int32_t root)
{
    (void)group;
    (void)stream;
    (void)inout;
    (void)root;
    return NULL;
}

static struct rk_status *dry_all_to_all(struct rk_comm_group *group, struct rk_stream *stream,
                                        rk_tensor_t out, const int64_t *recv_rows, rk_tensor_t in,
                                        const int64_t *send_rows)
{
    (void)group;
    (void)stream;
    (void)out;
    (void)recv_rows;
    (void)in;
    (void)send_rows;
    return NULL;
}

static struct rk_status *dry_batch(struct rk_comm_group *group, const struct rk_comm_p2p *list, int64_t count)
{
    (void)group;
    (void)list;
    (void)count;
    return NULL;
}

static struct rk_status *dry_barrier(struct rk_comm_group *group, struct rk_stream *stream)
{
    (void)group;
    (void)stream;
    return NULL;
}

/* No endpoints and no name: only rk_comm_world_create_dry creates worlds of this backend. */
const struct rk_comm_ops rk_comm_dry_ops = {
    .name = "plan",
    .abi = RK_COMM_ABI,
    .caps = RK_COMM_CAP_DEVICE_MEMORY,
    .world_destroy = dry_world_destroy,
    .world_abort = dry_world_abort,
    .all_reduce = dry_all_reduce,
    .all_gather = dry_all_gather,
    .reduce_scatter = dry_reduce_scatter,
    .broadcast = dry_broadcast,
    .all_to_all = dry_all_to_all,
    .batch = dry_batch,
    .barrier = dry_barrier,
};
