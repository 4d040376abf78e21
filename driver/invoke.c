/* One call on the group: scatter, exchange with the daemons (invoke_run.c), gather. */
#include "driver/invocation_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_random.h"
#include "base/rk_str.h"
#include "driver/rk_group_report.h"

/* --- before anything is sent --- */

static struct rk_status *check_input(struct rk_invocation *inv, const struct rk_driver_call_args *call)
{
    const struct rk_method *method = inv->method;
    struct rk_batch_spec spec;
    struct rk_json *completed;

    RK_TRY(rk_method_complete_options(&completed, method, call->options));
    rk_json_free(completed);
    if (method->num_in == 0)
        return call->batch ? RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "does not take a batch") : NULL;
    if (!call->batch)
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "needs a batch");
    RK_TRY(rk_batch_describe(&spec, NULL, inv->arena, call->batch, NULL));
    return rk_batch_spec_check(&spec, method);
}

static const struct rk_mesh *find_mesh(const void *driver, const char *role)
{
    return rk_driver_find_mesh(driver, role);
}

/* In a dry run: chunk and collect flag of the rank for which the one daemon plans. */
static struct rk_status *address_dry_rank(struct rk_invocation *inv)
{
    struct rk_dispatch *dispatch = inv->dispatch;
    int32_t rank = inv->driver->dry_rank;

    if (dispatch->payload == RK_PAYLOAD_PROTO)
        return RK_FAIL(RK_FAILED_PRECONDITION, "a dry run makes memory plans only");
    dispatch->chunk_of_rank[0] = dispatch->chunk_of_rank[rank];
    dispatch->collects[0] = dispatch->collects[rank];
    dispatch->collected[0] = 0;
    dispatch->num_collected = dispatch->collects[0];
    return NULL;
}

static struct rk_status *make_dispatch(struct rk_invocation *inv)
{
    RK_TRY(rk_dispatch_create_method(&inv->dispatch, inv->method, inv->role, find_mesh, inv->driver));
    return rk_driver_is_dry_run(inv->driver) ? address_dry_rank(inv) : NULL;
}

static struct rk_status *check_plan(const struct rk_invocation *inv, const struct rk_plan *plan)
{
    if (!(inv->method->flags & RK_MF_PLAN))
        return plan ? RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "does not take a plan") : NULL;
    if (!plan)
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "needs a plan");
    return rk_plan_check(plan, rk_batch_num_rows(inv->scatter->chunks[0]), inv->dispatch->num_chunks);
}

static struct rk_status *make_uploads(struct rk_invocation *inv, const struct rk_driver_call_args *call)
{
    if (!call->batch)
        return check_plan(inv, call->plan);
    RK_TRY(rk_scatter_batch(&inv->scatter, inv->dispatch, call->batch));
    RK_TRY(check_plan(inv, call->plan));
    inv->uploads = rk_calloc((size_t)inv->scatter->num_chunks, sizeof(*inv->uploads));
    for (int32_t i = 0; i < inv->scatter->num_chunks; i++)
        RK_TRY(rk_upload_create(&inv->uploads[i], inv->driver, inv->scatter->chunks[i]));
    return NULL;
}

/* An allocation of the call's arena, which has no limit. */
static void *must_alloc(struct rk_arena *arena, int64_t count, size_t elem_bytes)
{
    void *memory = rk_arena_calloc(arena, (size_t)count, elem_bytes);

    RK_ASSERT(memory || count == 0);
    return memory;
}

static struct rk_plan copy_plan(struct rk_arena *arena, const struct rk_plan *plan)
{
    struct rk_plan copy = {.num_mini = plan->num_mini,
                           .mini = must_alloc(arena, plan->num_mini, sizeof(*copy.mini))};

    for (int64_t i = 0; i < plan->num_mini; i++) {
        struct rk_mini_batch *mini = &copy.mini[i];

        *mini = plan->mini[i];
        mini->micro = must_alloc(arena, mini->num_entries, sizeof(*mini->micro));
        for (int64_t j = 0; j < mini->num_entries; j++) {
            const struct rk_micro_batch *micro = &plan->mini[i].micro[j];
            uint32_t *rows = must_alloc(arena, micro->num_rows, sizeof(*rows));

            if (micro->num_rows > 0)
                memcpy(rows, micro->rows, (size_t)micro->num_rows * sizeof(*rows));
            mini->micro[j] = *micro;
            mini->micro[j].rows = rows;
        }
    }
    return copy;
}

static struct rk_status *prepare(struct rk_invocation *inv, const struct rk_driver_call_args *call)
{
    RK_TRY(rk_method_check_role(&inv->method, call->role, call->method));
    if (call->timeout_ms < 0 || call->timeout_ms > UINT32_MAX)
        return RK_FAIL(RK_INVALID_ARGUMENT, "timeout_ms=%lld, expected 0 to %u", (long long)call->timeout_ms,
                       UINT32_MAX);
    RK_TRY(rk_driver_check_lease(inv->driver));
    RK_TRY(check_input(inv, call));
    RK_TRY(make_dispatch(inv));
    RK_TRY(make_uploads(inv, call));
    RK_TRY(rk_random_bytes(inv->request_id, sizeof(inv->request_id)));
    inv->options = call->options ? rk_json_clone(call->options) : NULL;
    inv->header = (struct rk_execute_header){
        .request_id = {inv->request_id, sizeof(inv->request_id)},
        .mesh_generation = inv->driver->mesh_generation,
        .role = inv->role,
        .method = inv->method->name,
        .options = rk_meta_from_json(inv->arena, inv->options),
        .timeout_ms = (uint32_t)call->timeout_ms,
        .two_phase = true,
    };
    if (call->plan)
        inv->header.plan = copy_plan(inv->arena, call->plan);
    return NULL;
}

/* --- after --- */

static struct rk_json *reduce_metrics(const struct rk_invocation *inv)
{
    const struct rk_execute_result **results = rk_calloc((size_t)inv->num_ranks, sizeof(*results));
    struct rk_json *metrics;

    for (int32_t rank = 0; rank < inv->num_ranks; rank++)
        results[rank] = inv->streams[rank] ? rk_call_stream_result(inv->streams[rank]) : NULL;
    metrics = rk_reduce_metrics(results, inv->dispatch->collects, inv->num_ranks);
    rk_free(results);
    return metrics;
}

static struct rk_status *gather(struct rk_invocation *inv, struct rk_driver_result *result)
{
    struct rk_batch **by_rank = rk_calloc((size_t)inv->num_ranks, sizeof(*by_rank));
    struct rk_status *st = NULL;

    result->metrics = reduce_metrics(inv);
    result->num_outputs = inv->dispatch->num_collected;
    result->outputs = rk_calloc((size_t)inv->dispatch->num_collected, sizeof(*result->outputs));
    for (int32_t i = 0; i < inv->dispatch->num_collected; i++) {
        int32_t rank = inv->dispatch->collected[i];

        result->outputs[i] = by_rank[rank] = rk_call_stream_take_output(inv->streams[rank]);
    }
    if (inv->method->num_out > 0 && inv->dispatch->payload == RK_PAYLOAD_PROTO)
        st = rk_gather_batch(&result->batch, inv->dispatch, by_rank,
                             inv->scatter ? inv->scatter->num_padded : 0);
    rk_free(by_rank);
    return st;
}

/* --- life --- */

static const char *must_strdup(struct rk_arena *arena, const char *text)
{
    const char *copy = rk_arena_strdup(arena, text);

    RK_ASSERT(copy);
    return copy;
}

static const char *join_name(struct rk_arena *arena, const struct rk_driver_call_args *call)
{
    char *joined = rk_format("%s.%s", call->role, call->method);
    const char *name = must_strdup(arena, joined);

    rk_free(joined);
    return name;
}

struct rk_invocation *rk_invocation_alloc(struct rk_driver *driver, const struct rk_driver_call_args *call)
{
    struct rk_invocation *inv = rk_calloc(1, sizeof(*inv));

    inv->driver = driver;
    inv->num_ranks = driver->num_clients;
    inv->abort_at_ns = inv->give_up_at_ns = INT64_MAX;
    inv->timeout_ms = call->timeout_ms;
    inv->on_progress = call->on_progress;
    inv->user = call->user;
    atomic_init(&inv->is_cancelled, false);
    inv->arena = rk_arena_create(16384, 0);
    inv->role = must_strdup(inv->arena, call->role);
    inv->name = join_name(inv->arena, call);
    inv->streams = rk_calloc((size_t)inv->num_ranks, sizeof(*inv->streams));
    inv->aborts = rk_calloc((size_t)inv->num_ranks, sizeof(*inv->aborts));
    inv->errors = rk_calloc((size_t)inv->num_ranks, sizeof(*inv->errors));
    inv->has_ended = rk_calloc((size_t)inv->num_ranks, sizeof(*inv->has_ended));
    for (int32_t rank = 0; rank < inv->num_ranks; rank++)
        inv->errors[rank] = (struct rk_rank_error){.rank = rank, .address = driver->clients[rank].address};
    return inv;
}

void rk_invocation_destroy(struct rk_invocation *inv)
{
    for (int32_t rank = 0; rank < inv->num_ranks; rank++) {
        rk_call_stream_destroy(inv->streams[rank]);
        rk_unary_fini(&inv->aborts[rank]);
        rk_status_free(inv->errors[rank].status);
    }
    for (int32_t i = 0; inv->uploads && i < inv->scatter->num_chunks; i++) {
        if (inv->uploads[i])
            rk_upload_end(inv->uploads[i]);
    }
    rk_free(inv->uploads);
    rk_free(inv->streams);
    rk_free(inv->aborts);
    rk_free(inv->errors);
    rk_free(inv->has_ended);
    rk_scatter_destroy(inv->scatter);
    rk_dispatch_destroy(inv->dispatch);
    rk_json_free(inv->options);
    rk_arena_destroy(inv->arena);
    rk_free(inv);
}

struct rk_status *rk_invocation_create(struct rk_invocation **out, struct rk_driver *driver,
                                       const struct rk_driver_call_args *call)
{
    struct rk_invocation *inv;
    struct rk_status *st;

    *out = NULL;
    if (rk_driver_is_interrupted(driver))
        return RK_FAIL(RK_CANCELLED, "interrupted");
    rk_upload_reap(driver, false);
    inv = rk_invocation_alloc(driver, call);
    st = prepare(inv, call);
    if (st) {
        rk_invocation_destroy(inv);
        return RK_WRAP(st, "%s.%s", call->role, call->method);
    }
    rk_turns_enter(&driver->turns, inv);
    *out = inv;
    return NULL;
}

void rk_invocation_cancel(struct rk_invocation *inv, const char *reason)
{
    if (atomic_load(&inv->is_cancelled))
        return;
    snprintf(inv->cancel_reason, sizeof(inv->cancel_reason), "%s", reason ? reason : "by the driver");
    atomic_store(&inv->is_cancelled, true);
}

/* The world may have changed while the call waited for its turn. */
static struct rk_status *take_turn(struct rk_invocation *inv)
{
    RK_TRY(rk_turns_wait(&inv->driver->turns, inv));
    return inv->had_to_wait ? rk_driver_check_lease(inv->driver) : NULL;
}

/* If a rank lacks the model of the call, adds the ranks that have it. */
static struct rk_status *explain(struct rk_driver *driver, struct rk_status *st)
{
    struct rk_driver_worker *workers;
    struct rk_arena *arena;

    if (strcmp(rk_status_reason(st), "NO_MODEL") != 0)
        return st;
    arena = rk_arena_create(16384, 0);
    workers = rk_calloc((size_t)driver->num_clients, sizeof(*workers));
    rk_driver_get_status(driver, arena, workers);
    st = rk_group_report_explain(st, workers, driver->num_clients);
    for (int32_t i = 0; i < driver->num_clients; i++)
        rk_status_free(workers[i].error);
    rk_free(workers);
    rk_arena_destroy(arena);
    return st;
}

struct rk_status *rk_invocation_run(struct rk_invocation *inv, struct rk_driver_result *result)
{
    struct rk_status *st;

    *result = (struct rk_driver_result){0};
    st = take_turn(inv);
    inv->is_brief = (inv->method->flags & RK_MF_ALONE) && !inv->has_calls_ahead;
    if (!st)
        st = rk_invocation_exchange(inv);
    rk_turns_leave(&inv->driver->turns, inv);
    if (!st)
        st = gather(inv, result);
    if (!st)
        return NULL;
    rk_driver_result_fini(result);
    return RK_WRAP(explain(inv->driver, st), "%s", inv->name);
}

struct rk_status *rk_driver_call(struct rk_driver *driver, const struct rk_driver_call_args *call,
                                 struct rk_driver_result *result)
{
    struct rk_invocation *inv;
    struct rk_status *st;

    *result = (struct rk_driver_result){0};
    RK_TRY(rk_invocation_create(&inv, driver, call));
    st = rk_invocation_run(inv, result);
    rk_invocation_destroy(inv);
    return st;
}

void rk_driver_result_fini(struct rk_driver_result *result)
{
    for (int32_t i = 0; i < result->num_outputs && result->outputs; i++)
        rk_batch_destroy(result->outputs[i]);
    rk_free(result->outputs);
    rk_batch_destroy(result->batch);
    rk_json_free(result->metrics);
    *result = (struct rk_driver_result){0};
}
