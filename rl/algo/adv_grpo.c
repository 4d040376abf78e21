/* GRPO: the score of a response against the others of its prompt (Shao et al., arXiv:2402.03300).
 *
 *   A_i = (s_i - mean_g) / (std_g + 1e-6)      std_g with n - 1
 *   A_i = s_i - mean_g                         without norm_adv_by_std (Dr.GRPO)
 *
 * s_i is the sum of the row's rewards, g the rows with equal uid, A the same on every token of the response.
 * A row whose mask is empty, such as one whose reward failed, is in no group.
 * A group of one has mean 0 and std 1, as in verl, whose grpo_vectorized is the same. */
#include "rl/algo/algo_internal.h"

static struct rk_status *compute(const struct rk_adv_out *out, const struct rk_adv_in *in)
{
    struct rk_adv_rows rows;

    rk_adv_rows_init(&rows, in);
    rk_adv_rows_normalise(&rows, in->norm_adv_by_std);
    rk_adv_rows_spread(out, in, &rows);
    rk_adv_rows_fini(&rows);
    return NULL;
}

const struct rk_adv_ops rk_adv_grpo = {
    .name = "grpo",
    .min_group = 1,
    .compute = compute,
};

const struct rk_adv_ops rk_adv_grpo_vectorized = {
    .name = "grpo_vectorized",
    .min_group = 1,
    .compute = compute,
};
