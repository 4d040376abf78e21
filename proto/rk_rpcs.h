/* The RPCs as data (rpcs.def). */
#ifndef RK_RPCS_H
#define RK_RPCS_H

#include "base/rk_compiler.h"
#include "proto/rpcs.def"

RK_BEGIN_DECLS

typedef enum rk_rights { RK_RIGHTS_NONE, RK_RIGHTS_VIEWER, RK_RIGHTS_DRIVER, RK_RIGHTS_ADMIN } rk_rights_t;
typedef enum rk_rpc_kind { RK_RPC_UNARY, RK_RPC_SERVER_STREAM, RK_RPC_BIDI } rk_rpc_kind_t;

typedef enum rk_rpc_id {
#define X(id, path, rights, kind) RK_RPC_ID_##id,
    RK_RPC_TABLE(X)
#undef X
        RK_RPC_COUNT
} rk_rpc_id_t;

struct rk_rpc {
    rk_rpc_id_t id;
    const char *path;
    rk_rights_t rights;
    rk_rpc_kind_t kind;
};

const struct rk_rpc *rk_rpc_get(rk_rpc_id_t id);

RK_END_DECLS

#endif
