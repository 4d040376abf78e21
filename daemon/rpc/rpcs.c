/* The table of RPC handlers. */
#include "daemon/rpc/rpc.h"

#include "base/rk_assert.h"
#include "daemon/daemon_internal.h"
#include "daemon/rpc/flight.h"

static const struct rk_rpc_handler *const handlers[RK_RPC_COUNT] = {
    [RK_RPC_ID_LIST_METHODS] = &rk_rpc_list_methods,
    [RK_RPC_ID_DESCRIBE] = &rk_rpc_describe,
    [RK_RPC_ID_ACQUIRE_LEASE] = &rk_rpc_acquire_lease,
    [RK_RPC_ID_KEEP_ALIVE] = &rk_rpc_keep_alive,
    [RK_RPC_ID_RELEASE_LEASE] = &rk_rpc_release_lease,
    [RK_RPC_ID_CONFIGURE] = &rk_rpc_configure,
    [RK_RPC_ID_EXECUTE] = &rk_rpc_execute,
    [RK_RPC_ID_CANCEL] = &rk_rpc_cancel,
    [RK_RPC_ID_GET_STATUS] = &rk_rpc_get_status,
    [RK_RPC_ID_WATCH] = &rk_rpc_watch,
    [RK_RPC_ID_DRAIN] = &rk_rpc_drain,
    [RK_RPC_ID_SHUTDOWN] = &rk_rpc_shutdown,
    [RK_RPC_ID_DUMP_FLIGHT_RECORDER] = &rk_rpc_dump_flight_recorder,
    [RK_RPC_ID_HEALTH_CHECK] = &rk_rpc_health_check,
    [RK_RPC_ID_HEALTH_WATCH] = &rk_rpc_health_watch,
    [RK_RPC_ID_REFLECT] = &rk_rpc_reflect,
    [RK_RPC_ID_REFLECT_ALPHA] = &rk_rpc_reflect,
};

const struct rk_rpc_handler *rk_rpc_handler_get(rk_rpc_id_t id)
{
    RK_ASSERT(id < RK_RPC_COUNT);
    RK_ASSERT(handlers[id]);
    return handlers[id];
}
