/* Messages that Execute sends: one message at a time, the next when gRPC took the last. Nothing queues up, so
 * a slow reader costs a result that is kept anyway. */
#include "base/rk_assert.h"
#include "base/rk_time.h"
#include "daemon/rpc/execute.h"

static void send_response(struct rk_execute *execute, const struct rk_execute_response *response,
                          bool is_last)
{
    struct rk_str packed = {0};

    rk_pack_execute_response(&packed, response);
    if (packed.bytes <= RK_LIMIT_MESSAGE_BYTES && is_last)
        rk_call_send_last(execute->call, rk_stream_encode(&packed));
    else if (packed.bytes <= RK_LIMIT_MESSAGE_BYTES)
        rk_call_send(execute->call, rk_stream_encode(&packed));
    else
        rk_call_finish(execute->call,
                       RK_FAIL(RK_RESOURCE_EXHAUSTED,
                               "the description of the result has %zu bytes, at most %d fit into a message",
                               packed.bytes, RK_LIMIT_MESSAGE_BYTES));
    rk_str_fini(&packed);
}

static void send_accepted(struct rk_execute *execute)
{
    struct rk_execute_response response = {
        .kind = RK_RESPONSE_ACCEPTED,
        .accepted = {.seq = execute->accepted_seq,
                     .is_replayed = execute->is_replayed,
                     .plan_hash = {.data = execute->plan_hash, .bytes = sizeof(execute->plan_hash)}}};

    execute->owes_accepted = false;
    send_response(execute, &response, false);
}

static void send_progress(struct rk_execute *execute)
{
    struct rk_execute_response response = {.kind = RK_RESPONSE_PROGRESS,
                                           .progress = {.phase = execute->progress_phase,
                                                        .done = execute->progress_done,
                                                        .total = execute->progress_total,
                                                        .monotonic_ns = (uint64_t)rk_time_now_ns()}};

    execute->owes_progress = false;
    send_response(execute, &response, false);
}

static void send_result(struct rk_execute *execute)
{
    const struct rk_job *job = execute->result->job;
    struct rk_arena *arena = rk_call_arena(execute->call);
    struct rk_execute_response response = {.kind = RK_RESPONSE_RESULT};
    struct rk_execute_result *result = &response.result;
    struct rk_status *st = NULL;

    execute->download.has_sent_result = true;
    if (execute->collect && job->call.output)
        st = rk_batch_describe(&result->output, &execute->download.columns, arena, job->call.output,
                               execute->want);
    if (st) {
        rk_call_finish(execute->call, RK_WRAP(st, "describing the result"));
        return;
    }
    execute->download.num_tensors = result->output.num_tensors;
    result->metrics = rk_arena_calloc(arena, (size_t)job->call.num_metrics, sizeof(*result->metrics));
    RK_ASSERT(result->metrics || job->call.num_metrics == 0);
    result->num_metrics = job->call.num_metrics;
    for (int64_t i = 0; i < job->call.num_metrics; i++)
        result->metrics[i] = (struct rk_metric){.name = job->call.metrics[i].name,
                                                .value = job->call.metrics[i].value,
                                                .reduce = job->call.metrics[i].reduce};
    result->device_ns = job->device_ns;
    result->peak_device_bytes = job->peak_device_bytes;
    result->state = rk_daemon_state_name(rk_call_daemon(execute->call)->state);
    send_response(execute, &response, result->output.num_tensors == 0);
}

/* The next chunk refers to the column's memory; gRPC releases it when the bytes are sent. */
static void send_chunk(struct rk_execute *execute)
{
    struct rk_download *download = &execute->download;
    const struct rk_column *column = download->columns[download->tensor];
    size_t left = rk_column_bytes(column) - download->offset;
    size_t bytes = RK_MIN(left, (size_t)rk_call_daemon(execute->call)->settings.chunk_bytes);
    struct rk_tensor_chunk chunk = {.tensor = (uint32_t)download->tensor, .offset = download->offset};

    RK_ASSERT(bytes > 0);
    rk_call_send(execute->call,
                 rk_stream_encode_chunk(&chunk, (const char *)rk_column_values(column) + download->offset,
                                        bytes, rk_result_release, rk_result_retain(execute->result)));
    download->offset += bytes;
}

static void send_next_of_result(struct rk_execute *execute)
{
    struct rk_download *download = &execute->download;

    if (execute->result->job->status) {
        rk_call_finish_logged(execute->call, rk_status_clone(execute->result->job->status));
        return;
    }
    if (!download->has_sent_result) {
        send_result(execute);
        return;
    }
    while (download->tensor < download->num_tensors &&
           download->offset == rk_column_bytes(download->columns[download->tensor])) {
        download->tensor++;
        download->offset = 0;
    }
    if (download->tensor < download->num_tensors)
        send_chunk(execute);
    else
        rk_call_finish(execute->call, NULL);
}

void rk_execute_pump(struct rk_execute *execute)
{
    if (rk_call_is_finished(execute->call) || rk_call_is_sending(execute->call))
        return;
    if (execute->owes_accepted)
        send_accepted(execute);
    else if (execute->result)
        send_next_of_result(execute);
    else if (execute->owes_progress)
        send_progress(execute);
}
