/* GRPO: the score of a response against the others of its prompt (Shao et al., arXiv:2402.03300).
 *
 *   A_i = (s_i - mean_g) / (std_g + 1e-6)      std_g with n - 1
 *   A_i = s_i - mean_g                         without norm_adv_by_std (Dr.GRPO)
 *
 * s_i is the sum of the row's rewards, g the rows with equal uid, A the same on every token of the response.
 * A group of one has mean 0 and std 1, as in verl. */
#include "driver-cli/algo/algo_internal.h"

#include <math.h>

#include "base/rk_alloc.h"

struct group_stats {
    int64_t count;
    double sum;
    double sum_sq_dev;
};

static struct group_stats *group_statistics(const double *scores, const int64_t *group_of, int64_t num_rows,
                                            int64_t num_groups)
{
    struct group_stats *groups = rk_calloc((size_t)num_groups, sizeof(*groups));

    for (int64_t i = 0; i < num_rows; i++) {
        groups[group_of[i]].count++;
        groups[group_of[i]].sum += scores[i];
    }
    for (int64_t i = 0; i < num_rows; i++) {
        struct group_stats *group = &groups[group_of[i]];
        double deviation = scores[i] - group->sum / (double)group->count;

        group->sum_sq_dev += deviation * deviation;
    }
    return groups;
}

static double normalised(double score, const struct group_stats *group, bool by_std)
{
    double mean = group->count > 1 ? group->sum / (double)group->count : 0.0;
    double std = group->count > 1 ? sqrt(group->sum_sq_dev / (double)(group->count - 1)) : 1.0;

    return by_std ? (score - mean) / (std + 1e-6) : score - mean;
}

static struct rk_status *compute(const struct rk_adv_out *out, const struct rk_adv_in *in)
{
    double *scores = rk_calloc((size_t)in->num_rows, sizeof(*scores));
    int64_t *group_of = rk_calloc((size_t)in->num_rows, sizeof(*group_of));
    int64_t num_groups = rk_adv_groups(group_of, in->uid, in->num_rows);
    struct group_stats *groups;

    rk_adv_outcome_scores(scores, in);
    groups = group_statistics(scores, group_of, in->num_rows, num_groups);
    for (int64_t i = 0; i < in->num_rows; i++)
        scores[i] = normalised(scores[i], &groups[group_of[i]], in->norm_adv_by_std);
    rk_adv_spread(out, in, scores);

    rk_free(groups);
    rk_free(group_of);
    rk_free(scores);
    return NULL;
}

const struct rk_adv_ops rk_adv_grpo = {
    .name = "grpo",
    .abi = RK_ADV_ABI,
    .compute = compute,
};
