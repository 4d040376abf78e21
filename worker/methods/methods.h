/* The handlers of all methods, declared from the method table: m_<name>.c defines rk_m_<name>. */
#ifndef RK_WORKER_METHODS_H
#define RK_WORKER_METHODS_H

#include "worker/worker_internal.h"

#define X(id, name, roles, mode, mesh, exec, flags, in, out, options, doc) \
    struct rk_status *rk_m_##name(struct rk_method_call *call) RK_NODISCARD;
RK_METHOD_TABLE(X)
#undef X

#endif
