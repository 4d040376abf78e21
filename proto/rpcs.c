#include "proto/rk_rpcs.h"

#include "base/rk_assert.h"

const struct rk_rpc *rk_rpc_get(rk_rpc_id_t id)
{
    static const struct rk_rpc rpcs[RK_RPC_COUNT] = {
#define X(id, path, rights, kind) \
    [RK_RPC_ID_##id] = {RK_RPC_ID_##id, path, RK_RIGHTS_##rights, RK_RPC_##kind},
        RK_RPC_TABLE(X)
#undef X
    };

    RK_ASSERT((int)id >= 0);
    RK_ASSERT(id < RK_RPC_COUNT);
    return &rpcs[id];
}
