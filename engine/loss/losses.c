/* The loss table. */
#include "engine/loss/loss_internal.h"

#include <string.h>

#include "base/rk_assert.h"

static const struct rk_loss_ops *const losses[] = {
#define X(name) &rk_loss_##name,
#include "engine/loss/losses.def"
#undef X
};

const struct rk_loss_ops *rk_loss_next(rk_objective_kind_t kind, const struct rk_loss_ops *after)
{
    bool is_behind = after == NULL;

    for (size_t i = 0; i < RK_ARRAY_LEN(losses); i++) {
        RK_ASSERT(losses[i]->config_bytes <= RK_LOSS_CONFIG_BYTES_MAX);
        RK_ASSERT(losses[i]->num_metrics <= RK_LOSS_METRICS_MAX);
        if (is_behind && losses[i]->kind == kind)
            return losses[i];
        is_behind = is_behind || losses[i] == after;
    }
    return NULL;
}

const struct rk_loss_ops *rk_loss_find(rk_objective_kind_t kind, const char *name)
{
    const struct rk_loss_ops *ops = NULL;

    while ((ops = rk_loss_next(kind, ops))) {
        if (!ops->is_enabled && strcmp(ops->name, name) == 0)
            return ops;
    }
    return NULL;
}

double rk_loss_reduce_start(rk_loss_reduce_t reduce)
{
    return reduce == RK_LOSS_MAX ? -INFINITY : reduce == RK_LOSS_MIN ? INFINITY : 0.0;
}

const char *rk_loss_column_name(rk_loss_column_t column)
{
    static const char *const names[RK_LOSS_COLUMN_COUNT] = {
#define NAME(id, name) [RK_LOSS_##id] = name,
        RK_LOSS_COLUMN_TABLE(NAME)
#undef NAME
    };

    RK_ASSERT(column < RK_LOSS_COLUMN_COUNT);
    return names[column];
}
