/* compute_values: the critic's value of every response token, from the position before it. */
#include "worker/methods/methods.h"

#include "worker/methods/forward_internal.h"

struct rk_status *rk_m_compute_values(struct rk_method_call *call)
{
    static const struct rk_forward_kind kind = {.outputs = {{RK_HEAD_VALUES, "values", NULL}}};

    return rk_forward_run(call, &kind);
}
