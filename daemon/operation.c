#include "daemon/operation_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_log.h"
#include "base/rk_time.h"
#include "daemon/daemon_internal.h"
#include "daemon/rpc/execute.h"
#include "daemon/feed_internal.h"

struct rk_result *rk_result_retain(struct rk_result *result)
{
    atomic_fetch_add_explicit(&result->num_refs, 1, memory_order_relaxed);
    return result;
}

void rk_result_release(void *user)
{
    struct rk_result *result = user;

    if (!result || atomic_fetch_sub_explicit(&result->num_refs, 1, memory_order_acq_rel) > 1)
        return;
    rk_job_destroy(result->job);
    rk_free(result);
}

static struct rk_result *result_create(struct rk_job *job)
{
    struct rk_result *result = rk_calloc(1, sizeof(*result));

    atomic_init(&result->num_refs, 1);
    result->job = job;
    return result;
}

static size_t result_bytes(const struct rk_job *job)
{
    int64_t num_columns = job->call.output ? rk_batch_num_columns(job->call.output) : 0;
    size_t bytes = 0;

    for (int64_t i = 0; i < num_columns; i++)
        bytes += rk_column_bytes(rk_batch_column_at(job->call.output, i));
    return bytes;
}

static void release_input(struct rk_operation *operation)
{
    RK_ASSERT(operation->daemon->inflight_bytes >= operation->input_bytes);
    operation->daemon->inflight_bytes -= operation->input_bytes;
    operation->input_bytes = 0;
}

/* Only the result is kept, not its input. */
static void release_request(struct rk_operation *operation, struct rk_job *job)
{
    rk_batch_destroy(job->call.input);
    rk_json_free(job->call.options);
    rk_arena_destroy(job->call.plan_arena);
    job->call.input = NULL;
    job->call.options = NULL;
    job->call.plan_arena = NULL;
    job->call.plan = (struct rk_plan){0};
    operation->header = (struct rk_execute_header){0};
    release_input(operation);
}

static void note_failure(struct rk_operation *operation, const struct rk_status *st)
{
    struct rk_daemon *daemon = operation->daemon;
    char frames[2048];

    rk_free(daemon->last_error);
    daemon->last_error =
        rk_format("%s: %s: %s", operation->name, rk_code_name(rk_status_code(st)), rk_status_message(st));
    rk_status_format_frames(st, frames, sizeof(frames));
    RK_WARN("method failed name=%s epoch=%llu seq=%llu code=%s reason=%s ms=%lld: %s\n%s", operation->name,
            (unsigned long long)operation->epoch, (unsigned long long)operation->seq,
            rk_code_name(rk_status_code(st)), rk_status_reason(st),
            (long long)((rk_time_now_ns() - operation->committed_ns) / 1000000), rk_status_message(st),
            frames);
}

static void tell_start(const struct rk_operation *operation)
{
    struct rk_meta_entry fields[] = {RK_FEED_TEXT("method", operation->name),
                                     RK_FEED_INT("epoch", operation->epoch),
                                     RK_FEED_INT("seq", operation->seq)};

    rk_feed_add(operation->daemon->feed, RK_FEED_METHOD_START, RK_FEED_FIELDS(fields), "%s", operation->name);
}

static void tell_end(const struct rk_operation *operation, const struct rk_job *job)
{
    int64_t ms = (rk_time_now_ns() - operation->committed_ns) / 1000000;
    struct rk_meta_entry fields[] = {RK_FEED_TEXT("method", operation->name),
                                     RK_FEED_INT("epoch", operation->epoch),
                                     RK_FEED_INT("seq", operation->seq),
                                     RK_FEED_INT("ms", ms),
                                     RK_FEED_TEXT("code", rk_code_name(rk_status_code(job->status))),
                                     RK_FEED_TEXT("reason", rk_status_reason(job->status))};

    rk_feed_add(operation->daemon->feed, RK_FEED_METHOD_END, RK_FEED_FIELDS(fields), "%s: %s",
                operation->name, job->status ? rk_status_message(job->status) : "OK");
    rk_watch_add_metrics(operation->daemon, operation, job);
}

/* L: the job has returned. */
static void on_done(struct rk_loop_event *event)
{
    struct rk_operation *operation = RK_CONTAINER_OF(event, struct rk_operation, done_event);
    struct rk_daemon *daemon = operation->daemon;
    struct rk_job *job = operation->job;
    size_t bytes = result_bytes(job);
    struct rk_result *result;

    rk_record_result(operation, job);
    release_request(operation, job);
    if (!job->status && job->call.num_tokens > 0 && job->device_ns > 0)
        daemon->tokens_per_second = (double)job->call.num_tokens * 1e9 / (double)job->device_ns;
    tell_end(operation, job);
    rk_metrics_count_job(&daemon->metrics, job);
    if (job->status)
        note_failure(operation, job->status);
    operation->job = NULL;
    operation->result = result_create(job);
    rk_lease_finish_seq(&daemon->lease, operation->epoch, operation->seq);
    /* Held, because a result that is too large to keep is dropped at once, and waiting streams must still get
     * it.
     */
    result = rk_result_retain(operation->result);
    rk_requests_finish(&daemon->requests, &operation->request, bytes);
    rk_daemon_update(daemon);
    rk_execute_deliver(operation, result);
    rk_result_release(result);
    rk_stop_advance(daemon);
}

struct rk_operation *rk_operation_create(struct rk_daemon *daemon)
{
    struct rk_operation *operation = rk_calloc(1, sizeof(*operation));

    operation->daemon = daemon;
    operation->done_event.run = on_done;
    operation->job = rk_job_create(RK_JOB_METHOD);
    operation->job->user = &operation->done_event;
    return operation;
}

void rk_operation_discard(struct rk_operation *operation)
{
    if (!operation)
        return;
    RK_ASSERT(operation->request.state == RK_REQUEST_OPEN);
    release_input(operation);
    rk_job_destroy(operation->job);
    rk_free(operation);
}

void rk_operation_commit(struct rk_operation *operation)
{
    struct rk_daemon *daemon = operation->daemon;

    operation->job->call.seq = operation->seq;
    if (operation->seq > 0) /* a brief call has none */
        rk_lease_commit_seq(&daemon->lease, operation->seq);
    rk_requests_add(&daemon->requests, &operation->request);
    operation->committed_ns = rk_time_now_ns();
    tell_start(operation);
    rk_record_call(operation);
    rk_worker_submit(daemon->worker, operation->job);
    rk_daemon_update(daemon);
}

const char *rk_operation_cancel(struct rk_operation *operation, bool abort_comm, const char *reason)
{
    const char *outcome;

    if (operation->request.state != RK_REQUEST_RUNNING)
        return "already_done";
    RK_INFO("cancel name=%s seq=%llu abort_comm=%d reason=\"%s\"", operation->name,
            (unsigned long long)operation->seq, abort_comm, reason);
    outcome = rk_worker_cancel(operation->daemon->worker, operation->job, abort_comm, reason);
    /* The worker does not have it: it has ended, and its event is in the queue of L. */
    return strcmp(outcome, "not_found") == 0 ? "already_done" : outcome;
}

void rk_operations_cancel(struct rk_daemon *daemon, bool abort_comm, const char *reason)
{
    /* Newest first, so that cancelling the running one does not start the next. */
    for (int64_t i = daemon->requests.count - 1; i >= 0; i--) {
        if (daemon->requests.entries[i]->state == RK_REQUEST_RUNNING)
            rk_operation_cancel((struct rk_operation *)daemon->requests.entries[i], abort_comm, reason);
    }
    if (daemon->pending)
        rk_execute_drop(daemon->pending, RK_FAIL(RK_CANCELLED, "the call was not committed: %s", reason));
    rk_configure_abort(daemon, reason);
}

void rk_operations_answer(struct rk_daemon *daemon, const struct rk_status *why)
{
    for (int64_t i = 0; i < daemon->requests.count; i++) {
        struct rk_operation *operation = (struct rk_operation *)daemon->requests.entries[i];

        if (operation->request.state != RK_REQUEST_RUNNING)
            continue;
        note_failure(operation, why);
        rk_execute_give_up(operation, why);
    }
}

int64_t rk_operations_num_current(const struct rk_daemon *daemon)
{
    int64_t count = 0;

    for (int64_t i = 0; i < daemon->requests.count; i++) {
        const struct rk_operation *operation = (const struct rk_operation *)daemon->requests.entries[i];

        count += operation->request.state == RK_REQUEST_RUNNING && operation->epoch == daemon->lease.epoch;
    }
    return count;
}

struct rk_operation *rk_operations_find_first(const struct rk_daemon *daemon)
{
    for (int64_t i = 0; i < daemon->requests.count; i++) {
        if (daemon->requests.entries[i]->state == RK_REQUEST_RUNNING)
            return (struct rk_operation *)daemon->requests.entries[i];
    }
    return NULL;
}

void rk_operation_drop_result(struct rk_request *request)
{
    struct rk_operation *operation = (struct rk_operation *)request;

    rk_result_release(operation->result);
    operation->result = NULL;
}

void rk_operation_destroy(struct rk_request *request)
{
    struct rk_operation *operation = (struct rk_operation *)request;

    RK_ASSERT(!operation->job);
    RK_ASSERT(!operation->streams);
    rk_free(operation);
}
