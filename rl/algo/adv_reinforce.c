/* REINFORCE++ (Hu et al., arXiv:2501.03262): returns whitened over the batch.
 *
 *   reinforce_plus_plus            G_t = r_t + gamma G of the next token that the mask counts; A = whiten(G)
 *   reinforce_plus_plus_baseline   A = whiten(s_i - mean_g on every token of row i)
 *
 * Tokens that the mask does not count are passed over, with their rewards. */
#include "rl/algo/algo_internal.h"

#include "base/rk_alloc.h"

static void discount(double *returns, const struct rk_adv_in *in, int64_t row)
{
    double carry = 0.0;

    for (int64_t t = in->response_length - 1; t >= 0; t--) {
        int64_t at = row * in->response_length + t;

        if (!in->response_mask[at])
            continue;
        carry = (double)in->token_level_rewards[at] + in->gamma * carry;
        returns[at] = carry;
    }
}

static struct rk_status *compute(const struct rk_adv_out *out, const struct rk_adv_in *in)
{
    int64_t count = in->num_rows * in->response_length;
    double *values = rk_calloc((size_t)count, sizeof(*values));
    struct rk_status *st;

    for (int64_t row = 0; row < in->num_rows; row++)
        discount(values, in, row);
    for (int64_t i = 0; i < count; i++)
        out->returns[i] = (float)values[i];
    st = rk_mask_whiten(values, in->response_mask, count, false);
    for (int64_t i = 0; i < count; i++)
        out->advantages[i] = in->response_mask[i] ? (float)values[i] : 0.0f;
    rk_free(values);
    return st;
}

static struct rk_status *compute_baseline(const struct rk_adv_out *out, const struct rk_adv_in *in)
{
    struct rk_adv_rows rows;
    struct rk_status *st;

    rk_adv_rows_init(&rows, in);
    rk_adv_rows_normalise(&rows, false);
    st = rk_adv_rows_spread_whitened(out, in, &rows);
    rk_adv_rows_fini(&rows);
    return st;
}

const struct rk_adv_ops rk_adv_reinforce_plus_plus = {
    .name = "reinforce_plus_plus",
    .compute = compute,
};

const struct rk_adv_ops rk_adv_reinforce_plus_plus_baseline = {
    .name = "reinforce_plus_plus_baseline",
    .min_group = 1,
    .compute = compute_baseline,
};
