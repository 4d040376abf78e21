/* The table of optimizers. */
#include "engine/optim/trainer.h"

#include <string.h>

#include "base/rk_assert.h"

static const struct rk_optim_ops *const optims[] = {
    &rk_optim_adamw,
};

const struct rk_optim_ops *rk_optim_find(const char *name)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(optims); i++) {
        RK_ASSERT(optims[i]->num_states <= RK_OPTIM_STATES_MAX);
        if (strcmp(optims[i]->name, name) == 0)
            return optims[i];
    }
    return NULL;
}
