/* Operations over NCCL. Each is one call (or one group of calls) on the caller's stream, monitored by the
 * guard.
 *
 * NCCL chooses its algorithm, and with it the order of additions, by the size of a tensor: a sum over more
 * than two ranks depends on the other elements in the tensor. RK_REDUCE_ORDERED_SUM does not: the parts of
 * all ranks are gathered and added here, in rank order and in f32. Two ranks need one addition, rounded once,
 * so NCCL's sum is used. */
#include "engine/comm/comm_nccl_internal.h"

#include "base/rk_assert.h"
#include "kernels/rk_kernels.h"

/* Bytes that an ordered sum gathers from each rank at a time; bounds its scratch memory. The sum itself takes
 * twice as much where bf16 is added in f32. */
#define PART_BYTES ((size_t)8 << 20)
#define SUM_BYTES  (2 * PART_BYTES)

static rk_nccl_dtype_t dtype_of(rk_tensor_t tensor)
{
    switch (tensor.dtype) {
    case RK_DTYPE_F32:
        return RK_NCCL_F32;
    case RK_DTYPE_F64:
        return RK_NCCL_F64;
    case RK_DTYPE_BF16:
        return RK_NCCL_BF16;
    case RK_DTYPE_F16:
        return RK_NCCL_F16;
    case RK_DTYPE_I32:
        return RK_NCCL_I32;
    case RK_DTYPE_I64:
        return RK_NCCL_I64;
    default:
        RK_ASSERT(tensor.dtype == RK_DTYPE_U8);
        return RK_NCCL_U8;
    }
}

static rk_nccl_reduce_t op_of(rk_reduce_op_t op)
{
    return op == RK_REDUCE_MAX ? RK_NCCL_MAX : op == RK_REDUCE_MIN ? RK_NCCL_MIN : RK_NCCL_SUM;
}

static size_t count_of(rk_tensor_t tensor)
{
    return (size_t)rk_tensor_num_elements(tensor);
}

/* --- calls --- */

/* A call of NCCL in progress. */
struct call {
    struct rk_nccl_world *nccl;
    const struct rk_nccl_api *api;
    struct rk_stream *stream;
    void *native; /* of the stream */
    rk_nccl_comm_t comm;
};

static struct rk_status *begin(struct call *call, struct rk_stream *stream, struct rk_nccl_op op)
{
    const struct rk_nccl_group *impl = op.group->impl;
    struct rk_nccl_world *nccl = op.group->world->impl;

    RK_ASSERT(stream);
    RK_ASSERT(op.group->recording == (rk_stream_is_recording(stream) ? stream : NULL));
    *call = (struct call){0};
    rk_nccl_pending_begin(nccl, op);
    RK_ASSERT(pthread_mutex_lock(&nccl->call_lock) == 0);
    if (atomic_load(&nccl->is_down)) {
        RK_ASSERT(pthread_mutex_unlock(&nccl->call_lock) == 0);
        RK_TRY(rk_nccl_pending_end(nccl, stream, false));
        return rk_nccl_failure(nccl, RK_NCCL_INVALID_USAGE, rk_comm_op_name(op.doing.op));
    }
    *call = (struct call){.nccl = nccl,
                          .api = nccl->api,
                          .stream = stream,
                          .native = rk_stream_native(stream),
                          .comm = impl->comm};
    return NULL;
}

/* On success call_end() must follow, with NCCL's result. */
static struct rk_status *call_begin(struct call *call, const struct rk_comm_group *group,
                                    struct rk_stream *stream, rk_comm_op_t op)
{
    uint64_t seq = group->seq + (group->recording ? group->recorded.count : 0);

    return begin(
        call, stream,
        (struct rk_nccl_op){.group = group, .doing = {.op = op, .seq = rk_comm_op_is_p2p(op) ? 0 : seq}});
}

/* The guard monitors the call's operation, unless the call failed. */
static struct rk_status *watch(struct call *call, struct rk_status *st)
{
    if (!st)
        return rk_nccl_pending_end(call->nccl, call->stream, true);
    RK_IGNORE(rk_nccl_pending_end(call->nccl, call->stream, false), "the first error is returned");
    return st;
}

static struct rk_status *call_end(struct call *call, rk_nccl_result_t result, const char *name)
{
    struct rk_status *st = NULL;

    RK_ASSERT(pthread_mutex_unlock(&call->nccl->call_lock) == 0);
    if (result != RK_NCCL_SUCCESS)
        st = rk_nccl_failure(call->nccl, result, name);
    return watch(call, st);
}

/* --- ordered sums --- */

/* A sum of two operands has only one order. */
static bool sums_by_hand(const struct rk_comm_group *group)
{
    return group->size > 2;
}

static bool is_ordered(const struct rk_comm_group *group, rk_dtype_t dtype, rk_reduce_op_t op)
{
    bool is_float = dtype == RK_DTYPE_F32 || dtype == RK_DTYPE_F64 || dtype == RK_DTYPE_BF16;

    return op == RK_REDUCE_ORDERED_SUM && is_float && sums_by_hand(group);
}

/* Scratch memory for the parts of all members and for the sum in its accumulation type. */
size_t rk_nccl_ordered_sum_bytes(const struct rk_comm_group *group)
{
    const struct rk_nccl_group *impl = group->impl;

    return impl->scratch || !sums_by_hand(group) ? 0 : SUM_BYTES + (size_t)group->size * PART_BYTES;
}

struct rk_status *rk_nccl_reserve_ordered_sum(struct rk_comm_group *group)
{
    struct rk_nccl_world *nccl = group->world->impl;
    struct rk_nccl_group *impl = group->impl;
    size_t bytes = rk_nccl_ordered_sum_bytes(group);

    return bytes > 0 ? rk_device_alloc(nccl->device, &impl->scratch, bytes, "ordered sums") : NULL;
}

static int64_t chunk_elements(rk_dtype_t dtype)
{
    return (int64_t)(PART_BYTES / rk_dtype_bytes(dtype));
}

static rk_tensor_t view(void *data, rk_dtype_t dtype, int64_t begin, int64_t count)
{
    return rk_tensor_1d((char *)data + (size_t)begin * rk_dtype_bytes(dtype), dtype, count);
}

/* Where the members' parts are gathered, in rank order. */
static void *parts_of(const struct rk_comm_group *group)
{
    const struct rk_nccl_group *impl = group->impl;

    return (char *)impl->scratch + SUM_BYTES;
}

/* out = part 0 + part 1 + ..., over the whole length. */
static struct rk_status *sum_parts(struct rk_comm_group *group, struct rk_stream *stream, rk_tensor_t out)
{
    const struct rk_nccl_group *impl = group->impl;
    rk_dtype_t dtype = out.dtype == RK_DTYPE_F64 ? RK_DTYPE_F64 : RK_DTYPE_F32;
    int64_t count = rk_tensor_num_elements(out);
    rk_tensor_t sum = view(impl->scratch, dtype, 0, count);

    for (int32_t i = 0; i < group->size; i++)
        RK_TRY(
            rk_axpby(stream, &(struct rk_axpby_args){.y = sum,
                                                     .x = view(parts_of(group), out.dtype, i * count, count),
                                                     .alpha = 1,
                                                     .beta = i == 0 ? 0.0f : 1.0f}));
    return rk_axpby(stream, &(struct rk_axpby_args){.y = out, .x = sum, .alpha = 1});
}

static struct rk_status *ordered_all_reduce(struct rk_comm_group *group, struct rk_stream *stream,
                                            rk_tensor_t inout)
{
    int64_t total = rk_tensor_num_elements(inout), step = chunk_elements(inout.dtype);
    struct call call;

    RK_TRY(rk_nccl_reserve_ordered_sum(group));
    for (int64_t begin = 0; begin < total; begin += step) {
        rk_tensor_t chunk = view(inout.data, inout.dtype, begin, RK_MIN(total - begin, step));

        RK_TRY(call_begin(&call, group, stream, RK_COMM_OP_ALL_REDUCE));
        RK_TRY(call_end(&call,
                        call.api->all_gather(chunk.data, parts_of(group), count_of(chunk), dtype_of(chunk),
                                             call.comm, call.native),
                        "ncclAllGather"));
        RK_TRY(sum_parts(group, stream, chunk));
    }
    return NULL;
}

/* Every member sends each other member its part. */
static struct rk_status *ordered_reduce_scatter(struct rk_comm_group *group, struct rk_stream *stream,
                                                rk_tensor_t out, rk_tensor_t in)
{
    int64_t total = rk_tensor_num_elements(out), step = chunk_elements(out.dtype);
    rk_nccl_result_t result, ended;
    struct call call;

    RK_TRY(rk_nccl_reserve_ordered_sum(group));
    for (int64_t begin = 0; begin < total; begin += step) {
        int64_t count = RK_MIN(total - begin, step);

        RK_TRY(call_begin(&call, group, stream, RK_COMM_OP_REDUCE_SCATTER));
        result = call.api->group_start();
        for (int32_t i = 0; i < group->size && result == RK_NCCL_SUCCESS; i++) {
            rk_tensor_t theirs = view(in.data, in.dtype, i * total + begin, count);
            rk_tensor_t mine = view(parts_of(group), in.dtype, i * count, count);

            result = call.api->send(theirs.data, (size_t)count, dtype_of(in), i, call.comm, call.native);
            if (result == RK_NCCL_SUCCESS)
                result = call.api->recv(mine.data, (size_t)count, dtype_of(in), i, call.comm, call.native);
        }
        ended = call.api->group_end();
        RK_TRY(call_end(&call, result == RK_NCCL_SUCCESS ? ended : result, "ncclSend and ncclRecv"));
        RK_TRY(sum_parts(group, stream, view(out.data, out.dtype, begin, count)));
    }
    return NULL;
}

/* --- collectives --- */

struct rk_status *rk_nccl_all_reduce(struct rk_comm_group *group, struct rk_stream *stream, rk_tensor_t inout,
                                     rk_reduce_op_t op)
{
    struct call call;

    if (is_ordered(group, inout.dtype, op))
        return ordered_all_reduce(group, stream, inout);
    RK_TRY(call_begin(&call, group, stream, RK_COMM_OP_ALL_REDUCE));
    return call_end(&call,
                    call.api->all_reduce(inout.data, inout.data, count_of(inout), dtype_of(inout), op_of(op),
                                         call.comm, call.native),
                    "ncclAllReduce");
}

struct rk_status *rk_nccl_all_gather(struct rk_comm_group *group, struct rk_stream *stream, rk_tensor_t out,
                                     rk_tensor_t in)
{
    struct call call;

    RK_TRY(call_begin(&call, group, stream, RK_COMM_OP_ALL_GATHER));
    return call_end(
        &call, call.api->all_gather(in.data, out.data, count_of(in), dtype_of(in), call.comm, call.native),
        "ncclAllGather");
}

struct rk_status *rk_nccl_reduce_scatter(struct rk_comm_group *group, struct rk_stream *stream,
                                         rk_tensor_t out, rk_tensor_t in, rk_reduce_op_t op)
{
    struct call call;

    if (is_ordered(group, in.dtype, op))
        return ordered_reduce_scatter(group, stream, out, in);
    RK_TRY(call_begin(&call, group, stream, RK_COMM_OP_REDUCE_SCATTER));
    return call_end(&call,
                    call.api->reduce_scatter(in.data, out.data, count_of(out), dtype_of(in), op_of(op),
                                             call.comm, call.native),
                    "ncclReduceScatter");
}

struct rk_status *rk_nccl_broadcast(struct rk_comm_group *group, struct rk_stream *stream, rk_tensor_t inout,
                                    int32_t root)
{
    struct call call;

    RK_TRY(call_begin(&call, group, stream, RK_COMM_OP_BROADCAST));
    return call_end(&call,
                    call.api->broadcast(inout.data, inout.data, count_of(inout), dtype_of(inout), root,
                                        call.comm, call.native),
                    "ncclBroadcast");
}

struct rk_status *rk_nccl_barrier(struct rk_comm_group *group, struct rk_stream *stream)
{
    struct rk_nccl_world *nccl = group->world->impl;
    struct call call;

    RK_TRY(call_begin(&call, group, stream, RK_COMM_OP_BARRIER));
    return call_end(&call,
                    call.api->all_reduce(nccl->barrier, nccl->barrier, 1, RK_NCCL_I32, RK_NCCL_MAX, call.comm,
                                         call.native),
                    "ncclAllReduce");
}

/* --- point to point --- */

static rk_nccl_result_t add_transfer(const struct call *call, const struct rk_comm_p2p *p2p)
{
    rk_tensor_t tensor = p2p->tensor;
    void *native = rk_stream_native(p2p->stream);

    if (count_of(tensor) == 0)
        return RK_NCCL_SUCCESS;
    if (p2p->is_send)
        return call->api->send(tensor.data, count_of(tensor), dtype_of(tensor), p2p->peer, call->comm,
                               native);
    return call->api->recv(tensor.data, count_of(tensor), dtype_of(tensor), p2p->peer, call->comm, native);
}

struct rk_status *rk_nccl_batch(struct rk_comm_group *group, const struct rk_comm_p2p *list, int64_t count)
{
    rk_nccl_result_t result, ended;
    struct call call;

    RK_TRY(call_begin(&call, group, list[0].stream,
                      count > 1         ? RK_COMM_OP_BATCH
                      : list[0].is_send ? RK_COMM_OP_SEND
                                        : RK_COMM_OP_RECV));
    result = call.api->group_start();
    for (int64_t i = 0; i < count && result == RK_NCCL_SUCCESS; i++)
        result = add_transfer(&call, &list[i]);
    ended = call.api->group_end(); /* also after a failure: otherwise the thread would stay in the NCCL
                                    * group */
    return call_end(&call, result == RK_NCCL_SUCCESS ? ended : result, "ncclSend and ncclRecv");
}

struct rk_status *rk_nccl_all_to_all(struct rk_comm_group *group, struct rk_stream *stream, rk_tensor_t out,
                                     const int64_t *recv_rows, rk_tensor_t in, const int64_t *send_rows)
{
    int64_t row_elements = rk_tensor_row_elements(in), sent = 0, received = 0;
    rk_nccl_result_t result, ended;
    rk_tensor_t own_in = {0}, own_out = {0};
    struct call call;

    RK_TRY(call_begin(&call, group, stream, RK_COMM_OP_ALL_TO_ALL));
    result = call.api->group_start();
    for (int32_t i = 0; i < group->size && result == RK_NCCL_SUCCESS; i++) {
        struct rk_comm_p2p send = {stream, view(in.data, in.dtype, sent, send_rows[i] * row_elements), i,
                                   true};
        struct rk_comm_p2p recv = {stream, view(out.data, out.dtype, received, recv_rows[i] * row_elements),
                                   i, false};

        sent += send_rows[i] * row_elements;
        received += recv_rows[i] * row_elements;
        if (i == group->rank) {
            own_in = send.tensor;
            own_out = recv.tensor;
            continue;
        }
        result = add_transfer(&call, &send);
        if (result == RK_NCCL_SUCCESS)
            result = add_transfer(&call, &recv);
    }
    ended = call.api->group_end();
    RK_TRY(call_end(&call, result == RK_NCCL_SUCCESS ? ended : result, "ncclSend and ncclRecv"));
    if (own_in.data == own_out.data)
        return NULL;
    return rk_stream_copy(stream, own_out.data, own_in.data, rk_tensor_bytes(own_in), RK_COPY_D2D);
}

/* --- graphs --- */

struct rk_status *rk_nccl_graph_launch(const struct rk_comm_graph *graph, uint64_t first_seq)
{
    struct rk_status *st;
    struct call call;

    RK_TRY(begin(
        &call, graph->stream,
        (struct rk_nccl_op){.group = graph->group, .doing = {RK_COMM_OP_GRAPH, first_seq, graph->ops}}));
    st = rk_graph_launch(graph->graph);
    RK_ASSERT(pthread_mutex_unlock(&call.nccl->call_lock) == 0);
    return watch(&call, st);
}
