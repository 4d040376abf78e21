/* GDPO: several rewards, each normalised in its group before they are added (Liu et al., arXiv:2601.05242).
 *
 *   A = whiten over the batch of  sum over keys k of  weight_k * GRPO's A of reward k alone
 *
 * The rewards are the numbers that the reward returns under algorithm.gdpo_reward_keys. */
#include "rl/algo/algo_internal.h"

#include <string.h>

#include "base/rk_alloc.h"

static struct rk_status *compute(const struct rk_adv_out *out, const struct rk_adv_in *in)
{
    double *totals = rk_calloc((size_t)in->num_rows, sizeof(*totals));
    struct rk_adv_rows rows;
    struct rk_status *st;

    rk_adv_rows_init(&rows, in);
    for (int64_t k = 0; k < in->num_reward_keys; k++) {
        memcpy(rows.scores, in->key_rewards[k], (size_t)in->num_rows * sizeof(*rows.scores));
        rk_adv_rows_measure(&rows);
        rk_adv_rows_normalise(&rows, in->norm_adv_by_std);
        for (int64_t i = 0; i < in->num_rows; i++)
            totals[i] += in->reward_weights[k] * rows.scores[i];
    }
    memcpy(rows.scores, totals, (size_t)in->num_rows * sizeof(*rows.scores));
    st = rk_adv_rows_spread_whitened(out, in, &rows);
    rk_adv_rows_fini(&rows);
    rk_free(totals);
    return st;
}

const struct rk_adv_ops rk_adv_gdpo = {
    .name = "gdpo",
    .needs = RK_ADV_NEEDS_KEY_REWARDS,
    .min_group = 1,
    .compute = compute,
};
