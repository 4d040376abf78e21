/* GPG: Dr.GRPO's advantage, scaled up by the share of the responses whose score is not zero (Chu et al.,
 * arXiv:2504.02546).
 *
 *   A_i = (s_i - mean_g) * rows / max(rows with s != 0, 1)      rows: those that take part */
#include "rl/algo/algo_internal.h"

static struct rk_status *compute(const struct rk_adv_out *out, const struct rk_adv_in *in)
{
    double num_rows = 0.0, num_scored = 0.0;
    struct rk_adv_rows rows;

    rk_adv_rows_init(&rows, in);
    for (int64_t i = 0; i < rows.num_rows; i++) {
        num_rows += rows.takes_part[i];
        num_scored += rows.takes_part[i] && rows.scores[i] != 0.0;
    }
    rk_adv_rows_normalise(&rows, false);
    for (int64_t i = 0; i < rows.num_rows; i++)
        rows.scores[i] *= num_rows / (num_scored > 0.0 ? num_scored : 1.0);
    rk_adv_rows_spread(out, in, &rows);
    rk_adv_rows_fini(&rows);
    return NULL;
}

const struct rk_adv_ops rk_adv_gpg = {
    .name = "gpg",
    .min_group = 1,
    .compute = compute,
};
