/* stop_profile: the events recorded since start_profile, in the Chrome trace format in a column of bytes:
 * objects, each followed by a comma and a newline, so that those of several ranks can be
 * concatenated. Without a start_profile there are none. */
#include "worker/methods/methods.h"

#include <string.h>

#include "base/rk_log.h"
#include "base/rk_str.h"
#include "kernels/rk_trace.h"

/* The rank's own, of a list with one a rank of the world, or 0 for all. */
static struct rk_status *find_offset(const struct rk_worker *worker, const struct rk_json *offsets,
                                     int64_t *out)
{
    *out = 0;
    if (rk_json_is_null(offsets))
        return NULL;
    if (rk_json_type(offsets) != RK_JSON_ARRAY || rk_json_count(offsets) != worker->world_size)
        return RK_FAIL(RK_INVALID_ARGUMENT, "clock_offsets_ns: expected a list of %d integers or null",
                       worker->world_size);
    *out = rk_json_as_int(rk_json_at(offsets, worker->rank), 0);
    return NULL;
}

static void format(struct rk_method_call *call, int64_t offset_ns, struct rk_str *out)
{
    struct rk_worker *worker = call->worker;
    struct rk_trace_format format = {.pid = worker->rank, .offset_ns = offset_ns};

    rk_str_appendf(
        out,
        "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"rank %d (%s)\"}},\n"
        "{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":%d,\"args\":{\"sort_index\":%d}},\n",
        worker->rank, worker->rank, worker->device_name, worker->rank, worker->rank);
    rk_trace_format_events(worker->trace, &format, out);
}

static struct rk_status *put_column(struct rk_method_call *call, const struct rk_str *text)
{
    int64_t bytes = (int64_t)text->bytes;
    void *data;

    RK_TRY(rk_batch_create(&call->job->output, bytes));
    RK_TRY(rk_batch_add_dense(call->job->output, "trace", RK_DTYPE_U8, 1, &bytes, &data));
    if (bytes > 0)
        memcpy(data, text->text, text->bytes);
    return NULL;
}

struct rk_status *rk_m_stop_profile(struct rk_method_call *call)
{
    struct rk_worker *worker = call->worker;
    struct rk_job_call *job = call->job;
    struct rk_str text = {0};
    int64_t offset_ns;
    struct rk_status *st;

    RK_TRY(find_offset(worker, rk_json_find(job->options, "clock_offsets_ns"), &offset_ns));
    offset_ns -= rk_json_as_int(rk_json_find(job->options, "origin_ns"), 0);
    if (worker->trace) {
        format(call, offset_ns, &text);
        rk_job_add_metric(job, "profile/events", (double)rk_trace_num_spans(worker->trace), "sum");
        rk_job_add_metric(job, "profile/dropped_events", (double)rk_trace_num_dropped(worker->trace), "sum");
        if (rk_trace_error(worker->trace))
            RK_WARN("the profile is incomplete: %s", rk_status_message(rk_trace_error(worker->trace)));
        rk_trace_destroy(worker->trace);
        worker->trace = NULL;
    }
    st = put_column(call, &text);
    rk_str_fini(&text);
    return st;
}
