/* The loss table. */
#include "engine/loss/loss_internal.h"

#include <string.h>

#include "base/rk_assert.h"

static const struct rk_loss losses[] = {
#define LOSS(id, kind, name, columns, optional) \
    {name, RK_OBJECTIVE_##kind, false, NULL, columns, optional, &rk_loss_##id},
#define TERM(id, kind, option, columns, optional) \
    {#id, RK_OBJECTIVE_##kind, true, option, columns, optional, &rk_loss_##id},
    RK_LOSS_TABLE(LOSS) RK_POLICY_TERM_TABLE(TERM)
#undef LOSS
#undef TERM
};

const struct rk_loss *rk_loss_next(rk_objective_kind_t kind, const struct rk_loss *after)
{
    for (size_t i = after ? (size_t)(after - losses) + 1 : 0; i < RK_ARRAY_LEN(losses); i++) {
        RK_ASSERT(losses[i].ops->config_bytes <= RK_LOSS_CONFIG_BYTES_MAX);
        RK_ASSERT(losses[i].ops->num_metrics <= RK_LOSS_METRICS_MAX);
        if (losses[i].kind == kind)
            return &losses[i];
    }
    return NULL;
}

const struct rk_loss *rk_loss_find(rk_objective_kind_t kind, const char *name)
{
    const struct rk_loss *loss = NULL;

    while ((loss = rk_loss_next(kind, loss))) {
        if (!loss->is_term && strcmp(loss->name, name) == 0)
            return loss;
    }
    return NULL;
}

double rk_loss_reduce_start(rk_loss_reduce_t reduce)
{
    return reduce == RK_LOSS_MAX ? -INFINITY : reduce == RK_LOSS_MIN ? INFINITY : 0.0;
}
