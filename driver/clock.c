/* Offsets of the daemons' monotonic clocks from this process's. */
#include "driver/driver_internal.h"

#include "base/rk_alloc.h"
#include "base/rk_time.h"

#define NUM_TRIES 5

/* One round trip; *round_ns receives its duration. */
static struct rk_status *measure(struct rk_driver *driver, int32_t client, int64_t *offset_ns,
                                 int64_t *round_ns)
{
    struct rk_arena *arena = rk_arena_create(4096, 0);
    struct rk_fanout *items = rk_fanout_create(driver);
    struct rk_worker_status status;
    int64_t begin_ns, end_ns;
    struct rk_status *st;

    for (int32_t i = 0; i < driver->num_clients; i++) {
        if (i != client)
            items[i].client = NULL;
    }
    begin_ns = rk_time_now_ns();
    rk_fanout_run(driver, RK_RPC_ID_GET_STATUS, items, driver->control_timeout_ms, 0, arena);
    end_ns = rk_time_now_ns();
    st = rk_fanout_take_error(driver, items);
    if (!st)
        st = rk_unpack_worker_status(&status, arena, items[client].reply.data, items[client].reply.bytes);
    if (!st) {
        *round_ns = end_ns - begin_ns;
        *offset_ns = begin_ns + *round_ns / 2 - (int64_t)status.monotonic_ns;
    }
    rk_fanout_destroy(items, driver->num_clients);
    rk_arena_destroy(arena);
    return st;
}

struct rk_status *rk_driver_clock_offsets(struct rk_driver *driver, int64_t *offsets_ns)
{
    for (int32_t i = 0; i < driver->num_clients; i++) {
        int64_t best_ns = INT64_MAX;

        for (int attempt = 0; attempt < NUM_TRIES; attempt++) {
            int64_t offset_ns, round_ns;

            RK_TRY(measure(driver, i, &offset_ns, &round_ns));
            if (round_ns < best_ns)
                offsets_ns[i] = offset_ns;
            best_ns = RK_MIN(best_ns, round_ns);
        }
    }
    return NULL;
}
