/* The CPU backend of the collectives: direct algorithms over the peer network. Entry point: the table at the
 * end.
 *
 * Every pair of ranks exchanges data directly. One rank owns the reduction of each element and folds the
 * operands in ascending rank order; small tensors are gathered whole and every rank folds them in the same
 * order. So the result is bit-identical for every algorithm and on every rank. Scratch memory is allocated
 * when the world is created: operations allocate nothing once the list of transfers has reached its final
 * capacity. */
#include "engine/comm/comm_cpu_internal.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_random.h"

#define NS_PER_MS 1000000

_Static_assert(RK_CPU_SMALL_BYTES <= RK_CPU_PART_BYTES,
               "the scratch memory also holds the received parts of small tensors");

/* Point to point messages exchanged with each member; sender and receiver keep equal counts. */
struct cpu_group {
    uint64_t *sent, *received; /* [group size] each, one allocation */
};

static struct rk_cpu_net *net_of(const struct rk_comm_group *group)
{
    return group->world->impl;
}

/* The k-th member after this rank; ranks start with different peers to spread the load. */
static int32_t after_me(const struct rk_comm_group *group, int32_t k)
{
    return (group->rank + k) % group->size;
}

/* --- worlds and groups --- */

static struct rk_status *make_id(uint8_t id[RK_COMM_ID_BYTES])
{
    return rk_random_bytes(id, RK_COMM_ID_BYTES);
}

static void net_destroy(struct rk_cpu_net *net)
{
    for (int32_t r = 0; r < net->size; r++) {
        rk_cpu_wire_close(&net->peers[r].data_wire);
        rk_cpu_wire_close(&net->peers[r].control_wire);
    }
    if (net->wake_fd >= 0)
        close(net->wake_fd);
    RK_ASSERT(pthread_mutex_destroy(&net->control_lock) == 0);
    rk_array_fini(&net->transfers);
    rk_free(net->parts);
    rk_free(net->scratch);
    rk_free(net->polls);
    rk_free(net->peers);
    rk_free(net);
}

static struct rk_status *net_create(struct rk_cpu_net **out, struct rk_comm_world *world,
                                    const struct rk_comm_world_config *config)
{
    struct rk_cpu_net *net = rk_calloc(1, sizeof(*net));
    size_t size = (size_t)world->size;
    struct rk_status *st;
    void *scratch;

    net->world = world;
    net->rank = world->rank;
    net->size = world->size;
    net->progress_ns = config->progress_timeout_ms * NS_PER_MS;
    net->collective_ns = config->collective_timeout_ms * NS_PER_MS;
    net->peers = rk_calloc(size, sizeof(*net->peers));
    for (size_t r = 0; r < size; r++)
        net->peers[r].data_wire.fd = net->peers[r].control_wire.fd = -1;
    net->polls = rk_calloc(2 * size + 1, sizeof(*net->polls));
    net->parts = rk_calloc(size, sizeof(*net->parts));
    RK_ASSERT(pthread_mutex_init(&net->control_lock, NULL) == 0);
    net->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (net->wake_fd < 0)
        RK_TRY_GOTO(st, RK_FAIL(RK_RESOURCE_EXHAUSTED, "eventfd: %s", strerror(errno)), out);
    RK_TRY_GOTO(st, rk_try_alloc(&scratch, size * RK_CPU_PART_BYTES, "scratch memory of the collectives"),
                out);
    net->scratch = scratch;
    *out = net;
    return NULL;

out:
    net_destroy(net);
    return st;
}

static struct rk_status *check_addresses(const struct rk_comm_world_config *config)
{
    for (int32_t r = 0; r < config->rank; r++) {
        if (!config->addresses || !config->addresses[r])
            return RK_FAIL(RK_INVALID_ARGUMENT, "the mesh address of rank %d is missing", r);
    }
    return NULL;
}

static struct rk_status *world_create(struct rk_comm_world *world, void *endpoint,
                                      const struct rk_comm_world_config *config)
{
    struct rk_cpu_net *net = NULL;
    struct rk_status *st;

    RK_TRY_GOTO(st, check_addresses(config), out);
    RK_TRY_GOTO(st, net_create(&net, world, config), out);
    RK_TRY_GOTO(st, rk_cpu_net_connect(net, endpoint, config), out);
    world->impl = net;

out:
    rk_cpu_endpoint_close(endpoint);
    if (st && net) {
        rk_cpu_control_abort(net, st);
        net_destroy(net);
    }
    return st;
}

static void world_destroy(struct rk_comm_world *world)
{
    struct rk_cpu_net *net = world->impl;

    rk_cpu_control_bye(net);
    net_destroy(net);
}

static void world_abort(struct rk_comm_world *world, const struct rk_status *error)
{
    rk_cpu_control_abort(world->impl, error);
}

static void world_poll(struct rk_comm_world *world)
{
    struct rk_status *st = rk_cpu_control_read(world->impl);

    if (st)
        rk_comm_world_fail(world, st);
}

static struct rk_status *group_create(struct rk_comm_group *group)
{
    struct cpu_group *counts = rk_calloc(1, sizeof(*counts));

    counts->sent = rk_calloc(2 * (size_t)group->size, sizeof(*counts->sent));
    counts->received = counts->sent + group->size;
    group->impl = counts;
    return NULL;
}

static void group_destroy(struct rk_comm_group *group)
{
    struct cpu_group *counts = group->impl;

    if (!counts)
        return;
    rk_free(counts->sent);
    rk_free(counts);
}

/* --- reductions --- */

/* A run of elements that the members reduce and share: member i owns [begin(i), begin(i + 1)). */
struct chunk {
    char *data;
    int64_t count;
    size_t elem_bytes;
};

static size_t part_offset(const struct chunk *chunk, const struct rk_comm_group *group, int32_t i)
{
    return (size_t)(chunk->count * i / group->size) * chunk->elem_bytes;
}

static size_t part_bytes(const struct chunk *chunk, const struct rk_comm_group *group, int32_t i)
{
    return part_offset(chunk, group, i + 1) - part_offset(chunk, group, i);
}

static void *scratch_of(const struct rk_cpu_net *net, int32_t i)
{
    return net->scratch + (size_t)i * RK_CPU_PART_BYTES;
}

/* Folds `own` with the parts of the other members, which are in the scratch memory. */
static void reduce_received(struct rk_cpu_net *net, const struct rk_comm_group *group, void *out,
                            const void *own, int64_t count, rk_dtype_t dtype, rk_reduce_op_t op)
{
    for (int32_t i = 0; i < group->size; i++)
        net->parts[i] = i == group->rank ? own : scratch_of(net, i);
    rk_cpu_reduce(out, net->parts, group->size, count, dtype, op);
}

/* Every rank sends to each owner that owner's part. */
static void add_scatter(struct rk_cpu_net *net, const struct rk_comm_group *group, const struct chunk *chunk)
{
    for (int32_t k = 1; k < group->size; k++) {
        int32_t i = after_me(group, k);

        rk_cpu_add_send(net, i, chunk->data + part_offset(chunk, group, i), part_bytes(chunk, group, i));
        rk_cpu_add_recv(net, i, scratch_of(net, i), part_bytes(chunk, group, group->rank));
    }
}

/* Every owner sends its part to all ranks. */
static void add_gather(struct rk_cpu_net *net, const struct rk_comm_group *group, const struct chunk *chunk)
{
    char *own = chunk->data + part_offset(chunk, group, group->rank);

    for (int32_t k = 1; k < group->size; k++) {
        int32_t i = after_me(group, k);

        rk_cpu_add_send(net, i, own, part_bytes(chunk, group, group->rank));
        rk_cpu_add_recv(net, i, chunk->data + part_offset(chunk, group, i), part_bytes(chunk, group, i));
    }
}

static struct rk_status *all_reduce_small(struct rk_comm_group *group, rk_tensor_t inout, rk_reduce_op_t op)
{
    struct rk_cpu_net *net = net_of(group);
    size_t bytes = rk_tensor_bytes(inout);

    for (int32_t k = 1; k < group->size; k++) {
        int32_t i = after_me(group, k);

        rk_cpu_add_send(net, i, inout.data, bytes);
        rk_cpu_add_recv(net, i, scratch_of(net, i), bytes);
    }
    RK_TRY(rk_cpu_exchange(net));
    reduce_received(net, group, inout.data, inout.data, rk_tensor_num_elements(inout), inout.dtype, op);
    return NULL;
}

/* The gather of one chunk and the scatter of the next share an exchange. */
static struct rk_status *all_reduce_large(struct rk_comm_group *group, rk_tensor_t inout, rk_reduce_op_t op)
{
    struct rk_cpu_net *net = net_of(group);
    size_t elem_bytes = rk_dtype_bytes(inout.dtype);
    int64_t left = rk_tensor_num_elements(inout);
    int64_t chunk_elements = group->size * (int64_t)(RK_CPU_PART_BYTES / elem_bytes);
    struct chunk last = {0}, chunk = {.data = inout.data, .elem_bytes = elem_bytes};
    char *own;

    while (left > 0 || last.data) {
        chunk.count = RK_MIN(left, chunk_elements);
        if (last.data)
            add_gather(net, group, &last);
        if (left > 0)
            add_scatter(net, group, &chunk);
        RK_TRY(rk_cpu_exchange(net));
        net->frame.step++;
        if (left == 0)
            return NULL;
        own = chunk.data + part_offset(&chunk, group, group->rank);
        reduce_received(net, group, own, own, (int64_t)(part_bytes(&chunk, group, group->rank) / elem_bytes),
                        inout.dtype, op);
        last = chunk;
        chunk.data += (size_t)chunk.count * elem_bytes;
        left -= chunk.count;
    }
    return NULL;
}

static struct rk_status *all_reduce(struct rk_comm_group *group, struct rk_stream *stream, rk_tensor_t inout,
                                    rk_reduce_op_t op)
{
    (void)stream;
    rk_cpu_begin(net_of(group), group, RK_COMM_OP_ALL_REDUCE, inout.dtype, op);
    if (rk_tensor_bytes(inout) <= RK_CPU_SMALL_BYTES)
        return all_reduce_small(group, inout, op);
    return all_reduce_large(group, inout, op);
}

static struct rk_status *reduce_scatter(struct rk_comm_group *group, struct rk_stream *stream,
                                        rk_tensor_t out, rk_tensor_t in, rk_reduce_op_t op)
{
    struct rk_cpu_net *net = net_of(group);
    size_t elem_bytes = rk_dtype_bytes(out.dtype), total_bytes = rk_tensor_bytes(out);
    size_t step_bytes = RK_CPU_PART_BYTES / elem_bytes * elem_bytes;
    const char *data = in.data;

    (void)stream;
    rk_cpu_begin(net, group, RK_COMM_OP_REDUCE_SCATTER, out.dtype, op);
    for (size_t begin = 0; begin < total_bytes; begin += step_bytes) {
        size_t bytes = RK_MIN(total_bytes - begin, step_bytes);

        for (int32_t k = 1; k < group->size; k++) {
            int32_t i = after_me(group, k);

            rk_cpu_add_send(net, i, data + (size_t)i * total_bytes + begin, bytes);
            rk_cpu_add_recv(net, i, scratch_of(net, i), bytes);
        }
        RK_TRY(rk_cpu_exchange(net));
        net->frame.step++;
        reduce_received(net, group, (char *)out.data + begin,
                        data + (size_t)group->rank * total_bytes + begin, (int64_t)(bytes / elem_bytes),
                        out.dtype, op);
    }
    return NULL;
}

/* --- moves --- */

/* Copies this rank's own part. `out` and `in` may be the same memory. */
static void copy_own(void *out, const void *in, size_t bytes)
{
    if (bytes > 0 && out != in)
        memcpy(out, in, bytes);
}

static struct rk_status *all_gather(struct rk_comm_group *group, struct rk_stream *stream, rk_tensor_t out,
                                    rk_tensor_t in)
{
    struct rk_cpu_net *net = net_of(group);
    size_t bytes = rk_tensor_bytes(in);
    char *data = out.data;

    (void)stream;
    rk_cpu_begin(net, group, RK_COMM_OP_ALL_GATHER, in.dtype, 0);
    for (int32_t k = 1; k < group->size; k++) {
        int32_t i = after_me(group, k);

        rk_cpu_add_send(net, i, in.data, bytes);
        rk_cpu_add_recv(net, i, data + (size_t)i * bytes, bytes);
    }
    copy_own(data + (size_t)group->rank * bytes, in.data, bytes);
    return rk_cpu_exchange(net);
}

static struct rk_status *broadcast(struct rk_comm_group *group, struct rk_stream *stream, rk_tensor_t inout,
                                   int32_t root)
{
    struct rk_cpu_net *net = net_of(group);
    size_t bytes = rk_tensor_bytes(inout);

    (void)stream;
    rk_cpu_begin(net, group, RK_COMM_OP_BROADCAST, inout.dtype, (uint32_t)root);
    if (group->rank != root) {
        rk_cpu_add_recv(net, root, inout.data, bytes);
        return rk_cpu_exchange(net);
    }
    for (int32_t k = 1; k < group->size; k++)
        rk_cpu_add_send(net, after_me(group, k), inout.data, bytes);
    return rk_cpu_exchange(net);
}

static struct rk_status *all_to_all(struct rk_comm_group *group, struct rk_stream *stream, rk_tensor_t out,
                                    const int64_t *recv_rows, rk_tensor_t in, const int64_t *send_rows)
{
    struct rk_cpu_net *net = net_of(group);
    size_t row_bytes = (size_t)rk_tensor_row_elements(in) * rk_dtype_bytes(in.dtype);
    const char *from = in.data;
    char *to = out.data;

    (void)stream;
    rk_cpu_begin(net, group, RK_COMM_OP_ALL_TO_ALL, in.dtype, 0);
    for (int32_t i = 0; i < group->size; i++) {
        size_t send_bytes = (size_t)send_rows[i] * row_bytes, recv_bytes = (size_t)recv_rows[i] * row_bytes;

        if (i == group->rank) {
            copy_own(to, from, send_bytes);
        } else {
            /* Empty parts are sent too: ranks detect from the frames that their counts disagree. */
            rk_cpu_add_send(net, i, from, send_bytes);
            rk_cpu_add_recv(net, i, to, recv_bytes);
        }
        from = from ? from + send_bytes : NULL;
        to = to ? to + recv_bytes : NULL;
    }
    return rk_cpu_exchange(net);
}

static struct rk_status *batch(struct rk_comm_group *group, const struct rk_comm_p2p *list, int64_t count)
{
    struct rk_cpu_net *net = net_of(group);
    struct cpu_group *counts = group->impl;

    rk_cpu_begin(net, group, RK_COMM_OP_SEND, list[0].tensor.dtype, 0);
    for (int64_t i = 0; i < count; i++) {
        size_t bytes = rk_tensor_bytes(list[i].tensor);
        int32_t peer = list[i].peer;

        net->frame.dtype = (uint8_t)list[i].tensor.dtype;
        net->frame.seq = list[i].is_send ? ++counts->sent[peer] : ++counts->received[peer];
        if (list[i].is_send)
            rk_cpu_add_send(net, peer, list[i].tensor.data, bytes);
        else
            rk_cpu_add_recv(net, peer, list[i].tensor.data, bytes);
    }
    return rk_cpu_exchange(net);
}

static struct rk_status *barrier(struct rk_comm_group *group, struct rk_stream *stream)
{
    struct rk_cpu_net *net = net_of(group);

    (void)stream;
    rk_cpu_begin(net, group, RK_COMM_OP_BARRIER, RK_DTYPE_U8, 0);
    for (int32_t k = 1; k < group->size; k++) {
        rk_cpu_add_send(net, after_me(group, k), NULL, 0);
        rk_cpu_add_recv(net, after_me(group, k), NULL, 0);
    }
    return rk_cpu_exchange(net);
}

const struct rk_comm_ops rk_comm_cpu_ops = {
    .name = "cpu",
    .abi = RK_COMM_ABI,
    .endpoint_open = rk_cpu_endpoint_open,
    .endpoint_close = rk_cpu_endpoint_close,
    .make_id = make_id,
    .world_create = world_create,
    .world_destroy = world_destroy,
    .world_abort = world_abort,
    .world_poll = world_poll,
    .group_create = group_create,
    .group_destroy = group_destroy,
    .all_reduce = all_reduce,
    .all_gather = all_gather,
    .reduce_scatter = reduce_scatter,
    .broadcast = broadcast,
    .all_to_all = all_to_all,
    .batch = batch,
    .barrier = barrier,
};
