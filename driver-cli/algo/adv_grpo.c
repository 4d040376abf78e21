/* GRPO: the score of a response against the others of its prompt (Shao et al., arXiv:2402.03300).
 *
 *   A_i = (s_i - mean_g) / (std_g + 1e-6)      std_g with n - 1
 *   A_i = s_i - mean_g                         without norm_adv_by_std (Dr.GRPO)
 *
 * s_i is the sum of the row's rewards, g the rows with equal uid, A the same on every token of the response.
 * A row whose mask is empty, such as one whose reward failed, is in no group.
 * A group of one has mean 0 and std 1, as in verl. */
#include "driver-cli/algo/algo_internal.h"

#include <math.h>

#include "base/rk_alloc.h"

struct group_stats {
    int64_t count;
    double sum;
    double sum_sq_dev;
};

/* What is known of the rows. */
struct rows {
    int64_t count;
    double *scores;
    int64_t *group_of;
    bool *takes_part;
};

static struct group_stats *group_statistics(const struct rows *rows, int64_t num_groups)
{
    struct group_stats *groups = rk_calloc((size_t)num_groups, sizeof(*groups));
    const double *scores = rows->scores;
    const int64_t *group_of = rows->group_of;

    for (int64_t i = 0; i < rows->count; i++) {
        if (!rows->takes_part[i])
            continue;
        groups[group_of[i]].count++;
        groups[group_of[i]].sum += scores[i];
    }
    for (int64_t i = 0; i < rows->count; i++) {
        struct group_stats *group = &groups[group_of[i]];
        double deviation;

        if (!rows->takes_part[i])
            continue;
        deviation = scores[i] - group->sum / (double)group->count;
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
    struct rows rows = {
        .count = in->num_rows,
        .scores = rk_calloc((size_t)in->num_rows, sizeof(*rows.scores)),
        .group_of = rk_calloc((size_t)in->num_rows, sizeof(*rows.group_of)),
        .takes_part = rk_calloc((size_t)in->num_rows, sizeof(*rows.takes_part)),
    };
    int64_t num_groups = rk_adv_groups(rows.group_of, in->uid, in->num_rows);
    struct group_stats *groups;

    rk_adv_outcome_scores(rows.scores, in);
    rk_adv_takes_part(rows.takes_part, in);
    groups = group_statistics(&rows, num_groups);
    for (int64_t i = 0; i < in->num_rows; i++)
        rows.scores[i] = rows.takes_part[i]
                             ? normalised(rows.scores[i], &groups[rows.group_of[i]], in->norm_adv_by_std)
                             : 0.0;
    rk_adv_spread(out, in, rows.scores);

    rk_free(groups);
    rk_free(rows.takes_part);
    rk_free(rows.group_of);
    rk_free(rows.scores);
    return NULL;
}

const struct rk_adv_ops rk_adv_grpo = {
    .name = "grpo",
    .abi = RK_ADV_ABI,
    .compute = compute,
};
