/* A call whose parts for the ranks exist already, as in a recording. */
#include "driver/invocation_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_random.h"

/* One chunk per rank. */
static void address(struct rk_invocation *inv, const struct rk_call_part *parts)
{
    struct rk_dispatch *dispatch = rk_calloc(1, sizeof(*dispatch));

    dispatch->mode = "";
    dispatch->payload = RK_PAYLOAD_VALUE;
    dispatch->world_size = dispatch->num_chunks = inv->num_ranks;
    dispatch->chunk_of_rank = rk_calloc((size_t)inv->num_ranks, sizeof(*dispatch->chunk_of_rank));
    dispatch->collects = rk_calloc((size_t)inv->num_ranks, sizeof(*dispatch->collects));
    for (int32_t rank = 0; rank < inv->num_ranks; rank++) {
        dispatch->chunk_of_rank[rank] = parts[rank].is_addressed ? rank : -1;
        dispatch->collects[rank] = parts[rank].collects;
    }
    inv->dispatch = dispatch;
}

static struct rk_status *upload(struct rk_invocation *inv, const struct rk_call_part *parts)
{
    inv->scatter = rk_calloc(1, sizeof(*inv->scatter));
    inv->scatter->num_chunks = inv->num_ranks;
    inv->scatter->chunks = rk_calloc((size_t)inv->num_ranks, sizeof(struct rk_batch *));
    inv->uploads = rk_calloc((size_t)inv->num_ranks, sizeof(*inv->uploads));
    for (int32_t rank = 0; rank < inv->num_ranks; rank++) {
        if (parts[rank].input)
            RK_TRY(rk_upload_create(&inv->uploads[rank], inv->driver, parts[rank].input));
    }
    return NULL;
}

static struct rk_status *prepare(struct rk_invocation *inv, const struct rk_execute_header *header,
                                 const struct rk_call_part *parts)
{
    address(inv, parts);
    RK_TRY(rk_method_check_role(&inv->method, header->role, header->method));
    RK_TRY(rk_driver_check_lease(inv->driver));
    RK_TRY(upload(inv, parts));
    RK_TRY(rk_random_bytes(inv->request_id, sizeof(inv->request_id)));
    inv->header = *header;
    inv->header.request_id = (struct rk_bytes){inv->request_id, sizeof(inv->request_id)};
    inv->header.mesh_generation = inv->driver->mesh_generation;
    inv->header.two_phase = true;
    inv->header.brief = false;
    return NULL;
}

struct rk_status *rk_invocation_create_parts(struct rk_invocation **out, struct rk_driver *driver,
                                             const struct rk_execute_header *header,
                                             const struct rk_call_part *parts)
{
    struct rk_driver_call_args call = {
        .role = header->role, .method = header->method, .timeout_ms = header->timeout_ms};
    struct rk_invocation *inv;
    struct rk_status *st;

    *out = NULL;
    if (atomic_load(&driver->interrupts) > 0)
        return RK_FAIL(RK_CANCELLED, "interrupted");
    rk_upload_reap(driver, false);
    inv = rk_invocation_alloc(driver, &call);
    st = prepare(inv, header, parts);
    if (st) {
        rk_invocation_destroy(inv);
        return st;
    }
    rk_turns_enter(&driver->turns, inv);
    *out = inv;
    return NULL;
}

struct rk_status *rk_invocation_run_parts(struct rk_invocation *inv)
{
    struct rk_status *st = rk_turns_wait(&inv->driver->turns, inv);

    if (!st)
        st = rk_invocation_exchange(inv);
    rk_turns_leave(&inv->driver->turns, inv);
    return st;
}

struct rk_batch *rk_invocation_take_output(struct rk_invocation *inv, int32_t rank)
{
    return rk_call_stream_take_output(inv->streams[rank]);
}

const struct rk_execute_result *rk_invocation_result(const struct rk_invocation *inv, int32_t rank)
{
    return rk_call_stream_result(inv->streams[rank]);
}
