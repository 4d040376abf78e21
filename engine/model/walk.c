#include "engine/model/model.h"

void rk_model_walk_begin(struct rk_model_walk *walk, const struct rk_model_core *core, const char *phase,
                         const struct rk_engine_hooks *hooks)
{
    *walk = (struct rk_model_walk){.hooks = hooks, .phase = phase, .elem_bytes = rk_dtype_bytes(core->dtype)};
    for (int64_t i = 0; i < core->params.count; i++)
        walk->total_bytes +=
            (uint64_t)rk_placement_num_elements(rk_params_placement(&core->params, i)) * walk->elem_bytes;
}

struct rk_status *rk_model_walk_advance(struct rk_model_walk *walk, int64_t num_elements)
{
    const struct rk_engine_hooks *hooks = walk->hooks;

    walk->done_bytes += (uint64_t)num_elements * walk->elem_bytes;
    if (hooks && hooks->on_progress)
        hooks->on_progress(hooks->user, walk->phase, walk->done_bytes, walk->total_bytes);
    if (hooks && hooks->is_cancelled && hooks->is_cancelled(hooks->user))
        return RK_FAIL(RK_CANCELLED, "cancelled");
    return NULL;
}
