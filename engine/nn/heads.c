/* The table of heads, and what they share. */
#include "engine/nn/nn_internal.h"

#include <string.h>

#include "base/rk_assert.h"

static const struct rk_head_ops *const heads[] = {
    &rk_head_lm,
};

const struct rk_head_ops *rk_head_find(const char *name)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(heads); i++) {
        RK_ASSERT(heads[i]->abi == RK_HEAD_ABI);
        if (strcmp(heads[i]->name, name) == 0)
            return heads[i];
    }
    return NULL;
}

const char *rk_head_output_name(rk_head_output_t output)
{
    static const char *const names[RK_HEAD_OUTPUT_COUNT] = {
        [RK_HEAD_LOG_PROBS] = "log_probs",
        [RK_HEAD_ENTROPY] = "entropy",
    };

    RK_ASSERT(output < RK_HEAD_OUTPUT_COUNT);
    return names[output];
}

struct rk_status *rk_head_gather(const struct rk_pass *pass, rk_tensor_t hidden, struct rk_head_saved *saved)
{
    return rk_gather_rows(pass->stream,
                          &(struct rk_rows_args){.out = saved->x, .x = hidden, .index = saved->index});
}

struct rk_status *rk_head_scatter(const struct rk_pass *pass, const struct rk_head_saved *saved,
                                  rk_tensor_t dx, rk_tensor_t dhidden)
{
    RK_TRY(rk_stream_zero(pass->stream, dhidden.data, rk_tensor_bytes(dhidden)));
    return rk_scatter_rows(pass->stream,
                           &(struct rk_rows_args){.out = dhidden, .x = dx, .index = saved->index});
}
