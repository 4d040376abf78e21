/* Generalised advantage estimation (Schulman et al., arXiv:1506.02438), whitened over the batch. From the
 * last token of a row, over those that the mask counts:
 *
 *   delta_t = r_t + gamma V_next - V_t       A_t = delta_t + gamma lam A_next       G_t = A_t + V_t
 *
 * A token that the mask does not count takes the A of the next that it counts, as in verl. */
#include "rl/algo/algo_internal.h"

#include "base/rk_alloc.h"

static void estimate_row(double *advantages, float *returns, const struct rk_adv_in *in, int64_t row)
{
    double next_value = 0.0, carry = 0.0;

    for (int64_t t = in->response_length - 1; t >= 0; t--) {
        int64_t at = row * in->response_length + t;

        if (in->response_mask[at]) {
            double value = (double)in->values[at];
            double delta = (double)in->token_level_rewards[at] + in->gamma * next_value - value;

            carry = delta + in->gamma * in->lam * carry;
            next_value = value;
        }
        advantages[at] = carry;
        returns[at] = (float)(carry + (double)in->values[at]);
    }
}

static struct rk_status *compute(const struct rk_adv_out *out, const struct rk_adv_in *in)
{
    int64_t count = in->num_rows * in->response_length;
    double *advantages = rk_calloc((size_t)count, sizeof(*advantages));
    struct rk_status *st;

    for (int64_t row = 0; row < in->num_rows; row++)
        estimate_row(advantages, out->returns, in, row);
    st = rk_mask_whiten(advantages, in->response_mask, count, false);
    for (int64_t i = 0; i < count; i++)
        out->advantages[i] = (float)advantages[i];
    rk_free(advantages);
    return st;
}

const struct rk_adv_ops rk_adv_gae = {
    .name = "gae",
    .needs = RK_ADV_NEEDS_VALUES,
    .compute = compute,
};
