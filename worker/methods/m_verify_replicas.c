/* verify_replicas: checks that all ranks that hold the same part of a parameter have the same values. All
 * return the same result. */
#include "worker/methods/methods.h"

#include <stdio.h>

struct rk_status *rk_m_verify_replicas(struct rk_method_call *call)
{
    int64_t num_compared;
    char name[64];

    RK_TRY(rk_model_verify_replicas(call->role->model, &call->hooks, &num_compared));
    if (!rk_method_call_is_collector(call))
        return NULL;
    snprintf(name, sizeof(name), "%s/verified_copies", call->role->name);
    rk_job_add_metric(call->job, name, (double)num_compared, "last");
    return NULL;
}
