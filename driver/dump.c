/* The flight recorders of all daemons. */
#include "driver/driver_internal.h"

#include "base/rk_alloc.h"

#define DUMP_BYTES_MAX ((size_t)64 << 20) /* of one daemon */

static struct rk_status *on_message(void *user, int32_t worker, struct rk_bytes message,
                                    struct rk_arena *arena)
{
    struct rk_driver_dump *dump = &((struct rk_driver_dump *)user)[worker];
    struct rk_dump_chunk chunk;

    RK_TRY(rk_unpack_dump_chunk(&chunk, arena, message.data, message.bytes));
    if (dump->json.bytes + chunk.json.bytes > DUMP_BYTES_MAX)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "sent more than %zu bytes of its flight recorder",
                       DUMP_BYTES_MAX);
    rk_str_append_bytes(&dump->json, (const char *)chunk.json.data, chunk.json.bytes);
    return NULL;
}

void rk_driver_dump_flight(struct rk_driver *driver, struct rk_driver_dump *dumps)
{
    struct rk_read_args read = {.rpc = RK_RPC_ID_DUMP_FLIGHT_RECORDER,
                                .timeout_ms = driver->control_timeout_ms,
                                .on_message = on_message,
                                .user = dumps};
    struct rk_fanout *items = rk_fanout_create(driver);

    for (int32_t i = 0; i < driver->num_clients; i++)
        dumps[i] = (struct rk_driver_dump){0};
    rk_read_streams(driver, items, &read);
    for (int32_t i = 0; i < driver->num_clients; i++) {
        if (items[i].error)
            dumps[i].error = rk_error_of_worker(items[i].error, i, driver->clients[i].address);
        items[i].error = NULL;
    }
    rk_fanout_destroy(items, driver->num_clients);
}
