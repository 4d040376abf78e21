/* RLOO: the score of a response against the mean of the others of its prompt (Ahmadian et al.,
 * arXiv:2402.14740).
 *
 *   A_i = (n s_i - sum_g) / (n - 1)
 *
 * A response without others keeps its score; in rloo_vectorized its advantage is 0. */
#include "rl/algo/algo_internal.h"

static struct rk_status *leave_one_out(const struct rk_adv_out *out, const struct rk_adv_in *in,
                                       bool keeps_single)
{
    struct rk_adv_rows rows;

    rk_adv_rows_init(&rows, in);
    for (int64_t i = 0; i < rows.num_rows; i++) {
        const struct rk_adv_group *group = &rows.groups[rows.group_of[i]];
        double n = (double)group->count;

        if (group->count > 1)
            rows.scores[i] = (n * rows.scores[i] - group->sum) / (n - 1.0);
        else if (!keeps_single)
            rows.scores[i] = 0.0;
    }
    rk_adv_rows_spread(out, in, &rows);
    rk_adv_rows_fini(&rows);
    return NULL;
}

static struct rk_status *compute(const struct rk_adv_out *out, const struct rk_adv_in *in)
{
    return leave_one_out(out, in, true);
}

static struct rk_status *compute_vectorized(const struct rk_adv_out *out, const struct rk_adv_in *in)
{
    return leave_one_out(out, in, false);
}

const struct rk_adv_ops rk_adv_rloo = {
    .name = "rloo",
    .min_group = 1,
    .compute = compute,
};

const struct rk_adv_ops rk_adv_rloo_vectorized = {
    .name = "rloo_vectorized",
    .min_group = 1,
    .compute = compute_vectorized,
};
