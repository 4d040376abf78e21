/* What a router did with the tokens of a pass, for metrics. It belongs to the backward pass, which visits
 * every layer once, also when activations are recomputed. */
#include "engine/nn/moe_internal.h"

/* Without rows of its own every tp rank routes the same tokens: the first one counts them. */
static bool is_counted(const struct rk_pass *pass, const struct rk_moe *moe)
{
    return moe->is_by_rows || rk_comm_group_rank(pass->tp) == 0;
}

struct rk_status *rk_moe_measure(const struct rk_pass *pass, const struct rk_block *block,
                                 const struct rk_moe_saved *saved)
{
    const struct rk_moe *moe = block->own;
    rk_tensor_t sums = pass->routers.sums;

    if (!sums.data || !is_counted(pass, moe))
        return NULL;
    sums = rk_tensor_rows(sums, block->route, 1);
    return rk_moe_balance(pass->stream, &(struct rk_moe_balance_args){
                                            .sums = rk_tensor_1d(sums.data, sums.dtype, sums.shape[1]),
                                            .logits = saved->logits,
                                            .ids = saved->ids,
                                            .segments = rk_tensor_rows(pass->routers.segments,
                                                                       pass->routes.begin, pass->num_tokens),
                                            .is_sigmoid = moe->config.is_sigmoid,
                                        });
}
