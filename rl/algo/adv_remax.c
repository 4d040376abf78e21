/* ReMax: the rewards to go against the score of a greedy response to the same prompt (Li et al.,
 * arXiv:2310.10505).
 *
 *   G_t = sum from t on of r, A_t = G_t - baseline_i      where the mask is set */
#include "rl/algo/algo_internal.h"

#include "base/rk_alloc.h"

static struct rk_status *compute(const struct rk_adv_out *out, const struct rk_adv_in *in)
{
    double *returns = rk_calloc((size_t)in->response_length, sizeof(*returns));

    for (int64_t row = 0; row < in->num_rows; row++) {
        rk_adv_rewards_to_go(returns, in, row);
        for (int64_t t = 0; t < in->response_length; t++) {
            int64_t at = row * in->response_length + t;
            double advantage =
                in->response_mask[at] ? returns[t] - (double)in->reward_baselines[row] : returns[t];

            out->returns[at] = (float)returns[t];
            out->advantages[at] = (float)advantage;
        }
    }
    rk_free(returns);
    return NULL;
}

const struct rk_adv_ops rk_adv_remax = {
    .name = "remax",
    .needs = RK_ADV_NEEDS_REWARD_BASELINES,
    .compute = compute,
};
