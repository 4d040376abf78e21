/* OPO: the score of a response against the mean of its prompt's, weighted by their lengths (Hao et al.,
 * arXiv:2505.23585).
 *
 *   A_i = s_i - sum over g of len_j s_j / sum over g of len_j      len: tokens that the mask counts
 *
 * A response without others keeps its score. */
#include "rl/algo/algo_internal.h"

#include "base/rk_alloc.h"

struct baseline {
    double weighted_sum, lengths;
};

static struct rk_status *compute(const struct rk_adv_out *out, const struct rk_adv_in *in)
{
    struct baseline *baselines;
    struct rk_adv_rows rows;

    rk_adv_rows_init(&rows, in);
    baselines = rk_calloc((size_t)rows.num_groups, sizeof(*baselines));
    for (int64_t i = 0; i < rows.num_rows; i++) {
        struct baseline *baseline = &baselines[rows.group_of[i]];
        double length =
            (double)rk_mask_count(in->response_mask + i * in->response_length, in->response_length);

        if (!rows.takes_part[i])
            continue;
        baseline->weighted_sum += length * rows.scores[i];
        baseline->lengths += length;
    }
    for (int64_t i = 0; i < rows.num_rows; i++) {
        const struct baseline *baseline = &baselines[rows.group_of[i]];

        if (rows.groups[rows.group_of[i]].count > 1)
            rows.scores[i] -= baseline->weighted_sum / baseline->lengths;
    }
    rk_adv_rows_spread(out, in, &rows);
    rk_free(baselines);
    rk_adv_rows_fini(&rows);
    return NULL;
}

const struct rk_adv_ops rk_adv_opo = {
    .name = "opo",
    .min_group = 1,
    .compute = compute,
};
