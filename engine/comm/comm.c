/* Wrapper around the operations of every collective backend: checks arguments, counts operations and records
 * them for the flight recorder. Groups of one rank and empty tensors are handled here; backends see only
 * calls that move data. Invalid arguments are bugs of the engine and assert; they never come from a peer. A
 * failure ends the world (comm_world.c), and every later call returns a copy of the first error. */
#include "engine/comm/comm.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_fault.h"
#include "base/rk_flight.h"
#include "base/rk_time.h"
#include "kernels/rk_trace.h"

#define NO_FLIGHT UINT64_MAX

struct op_row {
    const char *name, *fault;
};

static const struct op_row op_rows[] = {
    [RK_COMM_OP_ALL_REDUCE] = {"all_reduce", "comm.all_reduce"},
    [RK_COMM_OP_ALL_GATHER] = {"all_gather", "comm.all_gather"},
    [RK_COMM_OP_REDUCE_SCATTER] = {"reduce_scatter", "comm.reduce_scatter"},
    [RK_COMM_OP_BROADCAST] = {"broadcast", "comm.broadcast"},
    [RK_COMM_OP_ALL_TO_ALL] = {"all_to_all", "comm.all_to_all"},
    [RK_COMM_OP_BARRIER] = {"barrier", "comm.barrier"},
    [RK_COMM_OP_SEND] = {"send", "comm.send"},
    [RK_COMM_OP_RECV] = {"recv", "comm.recv"},
    [RK_COMM_OP_BATCH] = {"batch", "comm.batch"},
    [RK_COMM_OP_GRAPH] = {"graph", "comm.graph"},
};
_Static_assert(RK_ARRAY_LEN(op_rows) == RK_COMM_OP_COUNT, "one row per operation");

const char *rk_comm_op_name(rk_comm_op_t op)
{
    RK_ASSERT(op < RK_COMM_OP_COUNT);
    return op_rows[op].name;
}

/* --- operations --- */

static bool is_supported(rk_dtype_t dtype)
{
    switch (dtype) {
    case RK_DTYPE_F32:
    case RK_DTYPE_F64:
    case RK_DTYPE_BF16:
    case RK_DTYPE_F16:
    case RK_DTYPE_I32:
    case RK_DTYPE_I64:
    case RK_DTYPE_U8:
        return true;
    default:
        return false;
    }
}

static void assert_tensor(rk_tensor_t tensor)
{
    RK_ASSERT(is_supported(tensor.dtype));
    RK_ASSERT(rk_tensor_is_contiguous(tensor));
    if (rk_tensor_num_elements(tensor) > 0)
        RK_ASSERT(tensor.data);
}

static void assert_pair(rk_tensor_t larger, rk_tensor_t smaller, int32_t size)
{
    assert_tensor(larger);
    assert_tensor(smaller);
    RK_ASSERT(larger.dtype == smaller.dtype);
    RK_ASSERT(rk_tensor_num_elements(larger) == size * rk_tensor_num_elements(smaller));
}

static void assert_reduction(rk_dtype_t dtype, rk_reduce_op_t op)
{
    RK_ASSERT(op < RK_REDUCE_OP_COUNT);
    if (op == RK_REDUCE_ORDERED_SUM)
        RK_ASSERT(dtype == RK_DTYPE_F32 || dtype == RK_DTYPE_F64 || dtype == RK_DTYPE_BF16);
}

bool rk_comm_op_is_p2p(rk_comm_op_t op)
{
    return op == RK_COMM_OP_SEND || op == RK_COMM_OP_RECV || op == RK_COMM_OP_BATCH;
}

const char *rk_comm_doing_text(const struct rk_comm_doing *doing, const char *group_name,
                               char buf[RK_COMM_DOING_BYTES])
{
    const struct rk_comm_recorded *recorded = &doing->recorded;

    if (doing->op == RK_COMM_OP_GRAPH)
        snprintf(buf, RK_COMM_DOING_BYTES, "graph of %s #%" PRIu64 " to %s #%" PRIu64 " of group %s",
                 rk_comm_op_name(recorded->first), doing->seq, rk_comm_op_name(recorded->last),
                 doing->seq + recorded->count - 1, group_name);
    else if (doing->seq > 0)
        snprintf(buf, RK_COMM_DOING_BYTES, "%s #%" PRIu64 " of group %s", rk_comm_op_name(doing->op),
                 doing->seq, group_name);
    else
        snprintf(buf, RK_COMM_DOING_BYTES, "%s of group %s", rk_comm_op_name(doing->op), group_name);
    return buf;
}

/* An operation that is recorded into a graph gets its number at launch; this one is the number that it would
 * have if the graph were launched now. */
static uint64_t count_op(struct rk_comm_group *group, rk_comm_op_t op)
{
    bool is_p2p = rk_comm_op_is_p2p(op);

    RK_ASSERT(!group->in_batch || is_p2p);
    if (group->recording) {
        RK_ASSERT(!is_p2p);
        if (group->recorded.count++ == 0)
            group->recorded.first = op;
        group->recorded.last = op;
        return group->seq + group->recorded.count;
    }
    return is_p2p ? 0 : ++group->seq;
}

static void set_doing(const struct rk_comm_group *group, struct rk_comm_doing doing, size_t bytes)
{
    struct rk_comm_world *world = group->world;

    RK_ASSERT(pthread_mutex_lock(&world->activity_lock) == 0);
    world->activity_seq++;
    world->in_operation = true;
    world->started_ns = rk_time_now_ns();
    world->doing = doing;
    world->doing_bytes = bytes;
    memcpy(world->doing_group, group->name, sizeof(group->name));
    RK_ASSERT(pthread_mutex_unlock(&world->activity_lock) == 0);
}

/* Recorded operations run when the graph is launched, and dry runs do nothing: neither is in flight here. */
static void begin_flight(struct rk_comm_group *group, struct rk_stream *stream, struct rk_comm_doing doing,
                         size_t bytes)
{
    struct rk_comm_world *world = group->world;
    struct rk_flight_entry entry = {.kind = RK_FLIGHT_COLLECTIVE,
                                    .what = op_rows[doing.op].name,
                                    .where = group->name,
                                    .seq = doing.seq,
                                    .bytes = bytes,
                                    .group = group->flight_group};

    if (doing.op == RK_COMM_OP_GRAPH)
        entry.seq += doing.recorded.count - 1; /* the last operation of the graph: all of them have been
                                                * launched */

    world->flight = group->recording || rk_comm_group_is_dry(group) ? NO_FLIGHT : rk_flight_begin(&entry);
    world->traced = world->flight != NO_FLIGHT && stream && rk_stream_trace(stream) ? stream : NULL;
    if (world->traced)
        rk_trace_begin(stream, &(struct rk_trace_span){.kind = RK_TRACE_COLLECTIVE,
                                                       .name = entry.what,
                                                       .group = entry.where,
                                                       .seq = entry.seq,
                                                       .bytes = bytes});
}

struct rk_status *rk_comm_op_begin(struct rk_comm_group *group, struct rk_stream *stream, rk_comm_op_t op,
                                   size_t bytes)
{
    struct rk_comm_doing doing = {.op = op};

    if (atomic_load(&group->world->has_failed))
        return rk_comm_world_error(group->world);
    doing.seq = count_op(group, op);
    set_doing(group, doing, bytes);
    begin_flight(group, stream, doing, bytes);
    return NULL;
}

struct rk_status *rk_comm_op_begin_graph(struct rk_comm_group *group, struct rk_comm_recorded recorded)
{
    RK_ASSERT(!group->in_batch);
    RK_ASSERT(!group->recording);
    if (atomic_load(&group->world->has_failed))
        return rk_comm_world_error(group->world);
    set_doing(group, (struct rk_comm_doing){RK_COMM_OP_GRAPH, group->seq + 1, recorded}, 0);
    begin_flight(group, NULL, group->world->doing, 0);
    group->seq += recorded.count;
    return NULL;
}

struct rk_status *rk_comm_op_end(struct rk_comm_group *group, struct rk_status *st)
{
    struct rk_comm_world *world = group->world;

    RK_ASSERT(pthread_mutex_lock(&world->activity_lock) == 0);
    world->in_operation = false;
    if (!group->recording) {
        world->op_counts[world->doing.op]++;
        world->op_bytes[world->doing.op] += world->doing_bytes;
        world->op_ns[world->doing.op] += rk_time_now_ns() - world->started_ns;
    }
    RK_ASSERT(pthread_mutex_unlock(&world->activity_lock) == 0);
    if (world->traced)
        rk_trace_end(world->traced);
    if (world->flight != NO_FLIGHT)
        rk_flight_end(world->flight, (int)rk_status_code(st));
    if (!st)
        return NULL;
    rk_comm_world_fail(world, st);
    return rk_comm_world_error(world);
}

/* Whether the backend runs this operation: a group of one rank or an empty tensor moves no data. */
static bool has_work(const struct rk_comm_group *group, rk_tensor_t tensor)
{
    return group->size > 1 && rk_tensor_num_elements(tensor) > 0;
}

/* Dry runs do not count operations. */
struct rk_status *rk_comm_op_fault(const struct rk_comm_group *group, rk_comm_op_t op)
{
    if (!rk_comm_group_is_dry(group) && RK_FAULT(op_rows[op].fault))
        return RK_FAIL(RK_INTERNAL, "%s: fault point %s", op_rows[op].name, op_rows[op].fault);
    return NULL;
}

/* An operation with input and output in a group of one rank: a copy. */
static struct rk_status *copy_alone(struct rk_stream *stream, rk_tensor_t out, rk_tensor_t in)
{
    if (rk_tensor_num_elements(in) == 0 || out.data == in.data)
        return NULL;
    return rk_stream_copy(stream, out.data, in.data, rk_tensor_bytes(in), RK_COPY_D2D);
}

struct rk_status *rk_comm_all_reduce(struct rk_comm_group *group, struct rk_stream *stream, rk_tensor_t inout,
                                     rk_reduce_op_t op)
{
    struct rk_status *st;

    assert_tensor(inout);
    assert_reduction(inout.dtype, op);
    if (!group)
        return NULL;
    RK_TRY(rk_comm_op_begin(group, stream, RK_COMM_OP_ALL_REDUCE, rk_tensor_bytes(inout)));
    st = rk_comm_op_fault(group, RK_COMM_OP_ALL_REDUCE);
    if (!st && has_work(group, inout))
        st = group->world->ops->all_reduce(group, stream, inout, op);
    return rk_comm_op_end(group, st);
}

struct rk_status *rk_comm_all_gather(struct rk_comm_group *group, struct rk_stream *stream, rk_tensor_t out,
                                     rk_tensor_t in)
{
    struct rk_status *st;

    assert_pair(out, in, rk_comm_group_size(group));
    if (!group)
        return copy_alone(stream, out, in);
    RK_TRY(rk_comm_op_begin(group, stream, RK_COMM_OP_ALL_GATHER, rk_tensor_bytes(in)));
    st = rk_comm_op_fault(group, RK_COMM_OP_ALL_GATHER);
    if (!st && has_work(group, in))
        st = group->world->ops->all_gather(group, stream, out, in);
    else if (!st)
        st = copy_alone(stream, out, in);
    return rk_comm_op_end(group, st);
}

struct rk_status *rk_comm_reduce_scatter(struct rk_comm_group *group, struct rk_stream *stream,
                                         rk_tensor_t out, rk_tensor_t in, rk_reduce_op_t op)
{
    struct rk_status *st;

    assert_pair(in, out, rk_comm_group_size(group));
    assert_reduction(in.dtype, op);
    if (!group)
        return copy_alone(stream, out, in);
    RK_TRY(rk_comm_op_begin(group, stream, RK_COMM_OP_REDUCE_SCATTER, rk_tensor_bytes(in)));
    st = rk_comm_op_fault(group, RK_COMM_OP_REDUCE_SCATTER);
    if (!st && has_work(group, out))
        st = group->world->ops->reduce_scatter(group, stream, out, in, op);
    else if (!st)
        st = copy_alone(stream, out, in);
    return rk_comm_op_end(group, st);
}

struct rk_status *rk_comm_broadcast(struct rk_comm_group *group, struct rk_stream *stream, rk_tensor_t inout,
                                    int32_t root)
{
    struct rk_status *st;

    RK_ASSERT(root >= 0);
    RK_ASSERT(root < rk_comm_group_size(group));
    assert_tensor(inout);
    if (!group)
        return NULL;
    RK_TRY(rk_comm_op_begin(group, stream, RK_COMM_OP_BROADCAST, rk_tensor_bytes(inout)));
    st = rk_comm_op_fault(group, RK_COMM_OP_BROADCAST);
    if (!st && has_work(group, inout))
        st = group->world->ops->broadcast(group, stream, inout, root);
    return rk_comm_op_end(group, st);
}

static void assert_rows(rk_tensor_t tensor, const int64_t *rows, int32_t size)
{
    int64_t num_rows = 0;

    assert_tensor(tensor);
    for (int32_t i = 0; i < size; i++) {
        RK_ASSERT(rows[i] >= 0);
        num_rows += rows[i];
    }
    RK_ASSERT(num_rows <= tensor.shape[0]);
}

struct rk_status *rk_comm_all_to_all(struct rk_comm_group *group, struct rk_stream *stream, rk_tensor_t out,
                                     const int64_t *recv_rows, rk_tensor_t in, const int64_t *send_rows)
{
    int32_t size = rk_comm_group_size(group), rank = rk_comm_group_rank(group);
    struct rk_status *st;

    assert_rows(out, recv_rows, size);
    assert_rows(in, send_rows, size);
    RK_ASSERT(out.dtype == in.dtype);
    RK_ASSERT(rk_tensor_row_elements(out) == rk_tensor_row_elements(in));
    RK_ASSERT(recv_rows[rank] == send_rows[rank]);
    if (!group)
        return copy_alone(stream, out, rk_tensor_rows(in, 0, send_rows[0]));
    RK_TRY(rk_comm_op_begin(group, stream, RK_COMM_OP_ALL_TO_ALL, rk_tensor_bytes(in)));
    st = rk_comm_op_fault(group, RK_COMM_OP_ALL_TO_ALL);
    /* Counts differ between ranks: a rank with nothing to move must still take part. */
    if (!st && size > 1)
        st = group->world->ops->all_to_all(group, stream, out, recv_rows, in, send_rows);
    else if (!st)
        st = copy_alone(stream, out, rk_tensor_rows(in, 0, send_rows[0]));
    return rk_comm_op_end(group, st);
}

struct rk_status *rk_comm_reserve_ordered_sum(struct rk_comm_group *group)
{
    if (rk_comm_group_size(group) == 1 || !group->world->ops->reserve_ordered_sum)
        return NULL;
    return group->world->ops->reserve_ordered_sum(group);
}

uint64_t rk_comm_ordered_sum_bytes(const struct rk_comm_group *group)
{
    if (rk_comm_group_size(group) == 1 || !group->world->ops->ordered_sum_bytes)
        return 0;
    return group->world->ops->ordered_sum_bytes(group);
}

struct rk_status *rk_comm_barrier(struct rk_comm_group *group, struct rk_stream *stream)
{
    struct rk_status *st;

    if (!group)
        return NULL;
    RK_TRY(rk_comm_op_begin(group, stream, RK_COMM_OP_BARRIER, 0));
    st = rk_comm_op_fault(group, RK_COMM_OP_BARRIER);
    if (!st && group->size > 1)
        st = group->world->ops->barrier(group, stream);
    return rk_comm_op_end(group, st);
}

/* --- point to point: a single send is a batch of one --- */

static size_t batch_bytes(const struct rk_comm_group *group)
{
    size_t bytes = 0;

    for (int64_t i = 0; i < group->batch.count; i++)
        bytes += rk_tensor_bytes(group->batch.items[i].tensor);
    return bytes;
}

static struct rk_status *run_batch(struct rk_comm_group *group, rk_comm_op_t op)
{
    struct rk_stream *stream = group->batch.count > 0 ? group->batch.items[0].stream : NULL;
    struct rk_status *st = rk_comm_op_begin(group, stream, op, batch_bytes(group));

    if (!st) {
        st = rk_comm_op_fault(group, op);
        if (!st && group->batch.count > 0)
            st = group->world->ops->batch(group, group->batch.items, group->batch.count);
        st = rk_comm_op_end(group, st);
    }
    group->batch.count = 0;
    return st;
}

static struct rk_status *add_p2p(struct rk_comm_group *group, struct rk_comm_p2p p2p)
{
    RK_ASSERT(group);
    RK_ASSERT(p2p.peer >= 0);
    RK_ASSERT(p2p.peer < group->size);
    RK_ASSERT(p2p.peer != group->rank);
    assert_tensor(p2p.tensor);
    rk_array_append(&group->batch, p2p);
    if (group->in_batch)
        return NULL;
    return run_batch(group, p2p.is_send ? RK_COMM_OP_SEND : RK_COMM_OP_RECV);
}

struct rk_status *rk_comm_send(struct rk_comm_group *group, struct rk_stream *stream, rk_tensor_t tensor,
                               int32_t peer)
{
    return add_p2p(group,
                   (struct rk_comm_p2p){.stream = stream, .tensor = tensor, .peer = peer, .is_send = true});
}

struct rk_status *rk_comm_recv(struct rk_comm_group *group, struct rk_stream *stream, rk_tensor_t tensor,
                               int32_t peer)
{
    return add_p2p(group, (struct rk_comm_p2p){.stream = stream, .tensor = tensor, .peer = peer});
}

struct rk_status *rk_comm_batch_begin(struct rk_comm_group *group)
{
    if (!group)
        return NULL;
    RK_ASSERT(!group->in_batch);
    RK_ASSERT(group->batch.count == 0);
    group->in_batch = true;
    return NULL;
}

struct rk_status *rk_comm_batch_end(struct rk_comm_group *group)
{
    if (!group)
        return NULL;
    RK_ASSERT(group->in_batch);
    group->in_batch = false;
    return run_batch(group, RK_COMM_OP_BATCH);
}
