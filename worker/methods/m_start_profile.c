/* start_profile: starts recording the device's operators, copies, collectives and phases with their
 * times. No-op on a daemon that records already, and on ranks that are not selected. */
#include "worker/methods/methods.h"

#include "kernels/rk_trace.h"

/* Whether the list has the rank; no list means all ranks. */
static bool has_rank(const struct rk_json *list, int32_t rank)
{
    if (rk_json_is_null(list))
        return true;
    for (int64_t i = 0; i < rk_json_count(list); i++) {
        if (rk_json_as_int(rk_json_at(list, i), -1) == rank)
            return true;
    }
    return false;
}

static struct rk_status *check_ranks(const struct rk_json *list, int32_t world_size)
{
    if (rk_json_is_null(list))
        return NULL;
    if (rk_json_type(list) != RK_JSON_ARRAY)
        return RK_FAIL(RK_INVALID_ARGUMENT, "ranks: expected a list of ranks or null");
    for (int64_t i = 0; i < rk_json_count(list); i++) {
        int64_t rank = rk_json_as_int(rk_json_at(list, i), -1);

        if (rank < 0 || rank >= world_size)
            return RK_FAIL(RK_INVALID_ARGUMENT, "ranks[%lld]: expected a rank of 0 to %d", (long long)i,
                           world_size - 1);
    }
    return NULL;
}

struct rk_status *rk_m_start_profile(struct rk_method_call *call)
{
    struct rk_worker *worker = call->worker;
    const struct rk_json *ranks = rk_json_find(call->job->options, "ranks");
    int64_t max_events = rk_json_as_int(rk_json_find(call->job->options, "max_events"), 0);

    RK_TRY(check_ranks(ranks, worker->world_size));
    if (max_events < 1)
        return RK_FAIL(RK_INVALID_ARGUMENT, "max_events=%lld, expected at least 1", (long long)max_events);
    if (worker->trace || !has_rank(ranks, worker->rank))
        return NULL;
    return rk_trace_create(&worker->trace, worker->device, max_events);
}
