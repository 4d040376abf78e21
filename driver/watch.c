/* Events of all daemons. */
#include "driver/driver_internal.h"

#include "base/rk_alloc.h"

static struct rk_status *on_message(void *user, int32_t worker, struct rk_bytes message,
                                    struct rk_arena *arena)
{
    const struct rk_driver_watch_args *args = user;
    struct rk_watch_event event;

    RK_TRY(rk_unpack_watch_event(&event, arena, message.data, message.bytes));
    args->on_event(args->user, worker, &event);
    return NULL;
}

static void on_end(void *user, int32_t worker, const struct rk_status *st)
{
    const struct rk_driver_watch_args *args = user;

    if (args->on_end)
        args->on_end(args->user, worker, st);
}

void rk_driver_watch(struct rk_driver *driver, const struct rk_driver_watch_args *args,
                     struct rk_status **errors)
{
    struct rk_driver_watch_args copy = *args;
    struct rk_read_args read = {
        .rpc = RK_RPC_ID_WATCH, .on_message = on_message, .on_end = on_end, .user = &copy};
    struct rk_fanout *items = rk_fanout_create(driver);

    for (int32_t i = 0; i < driver->num_clients; i++)
        rk_pack_watch_request(&items[i].request, &args->request);
    rk_read_streams(driver, items, &read);
    for (int32_t i = 0; i < driver->num_clients; i++) {
        errors[i] = items[i].error ? rk_error_of_worker(items[i].error, i, driver->clients[i].address) : NULL;
        items[i].error = NULL;
    }
    rk_fanout_destroy(items, driver->num_clients);
}
