/* Method id -> handler, generated from the method table: a row without a handler does not link. */
#include "worker/worker_internal.h"

#include "worker/methods/methods.h"

static const rk_method_fn_t handlers[RK_METHOD_COUNT] = {
#define X(id, name, roles, mode, mesh, exec, flags, in, out, options, doc) [RK_METHOD_##id] = rk_m_##name,
    RK_METHOD_TABLE(X)
#undef X
};

rk_method_fn_t rk_method_handler(rk_method_id_t id)
{
    RK_ASSERT(id < RK_METHOD_COUNT);
    return handlers[id];
}
