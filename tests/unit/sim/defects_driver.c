/* Deliberate defects in the driver, linked in place of its functions (CMakeLists.txt). */
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_random.h"
#include "driver/invocation_internal.h"
#include "tests/unit/sim/sim.h"

struct rk_status *__real_rk_invocation_exchange(struct rk_invocation *inv);
struct rk_status *__wrap_rk_invocation_exchange(struct rk_invocation *inv);
struct rk_status *__real_rk_call_stream_open(struct rk_call_stream **out,
                                             const struct rk_call_stream_config *config);
struct rk_status *__wrap_rk_call_stream_open(struct rk_call_stream **out,
                                             const struct rk_call_stream_config *config);
struct rk_status *__real_rk_call_stream_take_error(struct rk_call_stream *stream, bool *is_lost);
struct rk_status *__wrap_rk_call_stream_take_error(struct rk_call_stream *stream, bool *is_lost);
struct rk_status *__real_rk_turns_wait(struct rk_turns *turns, struct rk_invocation *inv);
struct rk_status *__wrap_rk_turns_wait(struct rk_turns *turns, struct rk_invocation *inv);

/* Resets the call to its state before the exchange, with another request_id. */
static void renew(struct rk_invocation *inv)
{
    for (int32_t rank = 0; rank < inv->num_ranks; rank++) {
        rk_call_stream_destroy(inv->streams[rank]);
        rk_unary_fini(&inv->aborts[rank]);
        rk_status_free(inv->errors[rank].status);
        inv->streams[rank] = NULL;
        inv->errors[rank].status = NULL;
        inv->errors[rank].is_lost = false;
        inv->has_ended[rank] = false;
    }
    inv->num_ends = inv->num_failures = inv->num_reopened = 0;
    inv->is_committed = inv->is_abort_sent = false;
    inv->abort_at_ns = inv->give_up_at_ns = INT64_MAX;
    RK_IGNORE(rk_random_bytes(inv->request_id, sizeof(inv->request_id)), "it cannot fail here");
}

struct rk_status *__wrap_rk_invocation_exchange(struct rk_invocation *inv)
{
    struct rk_status *st = __real_rk_invocation_exchange(inv);

    if (!st || sim->defect != SIM_DEFECT_FRESH_RETRY || !inv->is_committed)
        return st;
    rk_status_free(st);
    renew(inv);
    return __real_rk_invocation_exchange(inv);
}

struct rk_status *__wrap_rk_call_stream_open(struct rk_call_stream **out,
                                             const struct rk_call_stream_config *config)
{
    if (sim->defect == SIM_DEFECT_SEQ_LOST && config->client->next_seq > 2)
        config->client->next_seq--;
    return __real_rk_call_stream_open(out, config);
}

struct rk_status *__wrap_rk_call_stream_take_error(struct rk_call_stream *stream, bool *is_lost)
{
    struct rk_status *st = __real_rk_call_stream_take_error(stream, is_lost);

    if (sim->defect != SIM_DEFECT_DONE_TOO_SOON || !*is_lost)
        return st;
    *is_lost = false;
    rk_status_free(st);
    return NULL;
}

struct rk_status *__wrap_rk_turns_wait(struct rk_turns *turns, struct rk_invocation *inv)
{
    return sim->defect == SIM_DEFECT_NO_TURNS ? NULL : __real_rk_turns_wait(turns, inv);
}
