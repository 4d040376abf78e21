/* GRPO for pass@k: only the best response of a prompt has an advantage, by how far it is above the second
 * best (Tang et al., arXiv:2503.19595).
 *
 *   A_best = (s_best - s_second) / (std_g + 1e-6)      without norm_adv_by_std: s_best - s_second
 *
 * Of equal scores the first row is the best one; its advantage is 0 then. */
#include "rl/algo/algo_internal.h"

#include "base/rk_alloc.h"

/* Row numbers; -1: none yet. */
struct top_two {
    int64_t best, second;
};

static void take(struct top_two *top, const double *scores, int64_t row)
{
    if (top->best < 0 || scores[row] > scores[top->best]) {
        top->second = top->best;
        top->best = row;
    } else if (top->second < 0 || scores[row] > scores[top->second]) {
        top->second = row;
    }
}

/* Scores become advantages. */
static struct rk_status *score_best(struct rk_adv_rows *rows, struct top_two *tops,
                                    const struct rk_adv_in *in)
{
    double *advantages = rk_calloc((size_t)rows->num_rows, sizeof(*advantages));
    struct rk_status *st = NULL;

    for (int64_t i = 0; i < rows->num_rows; i++) {
        if (rows->takes_part[i])
            take(&tops[rows->group_of[i]], rows->scores, i);
    }
    for (int64_t g = 0; g < rows->num_groups && !st; g++) {
        const struct top_two *top = &tops[g];

        if (rows->groups[g].count == 1)
            st = RK_FAIL(
                RK_INVALID_ARGUMENT,
                "algorithm.adv_estimator=grpo_passk: expected at least 2 responses to a prompt, '%s' has 1",
                in->uid[top->best]);
        else if (rows->groups[g].count > 1)
            advantages[top->best] = rows->scores[top->best] - rows->scores[top->second];
    }
    for (int64_t i = 0; i < rows->num_rows; i++) {
        const struct rk_adv_group *group = &rows->groups[rows->group_of[i]];

        rows->scores[i] = advantages[i] / (in->norm_adv_by_std ? group->std + 1e-6 : 1.0);
    }
    rk_free(advantages);
    return st;
}

static struct rk_status *compute(const struct rk_adv_out *out, const struct rk_adv_in *in)
{
    struct rk_adv_rows rows;
    struct top_two *tops;
    struct rk_status *st;

    rk_adv_rows_init(&rows, in);
    tops = rk_calloc((size_t)rows.num_groups, sizeof(*tops));
    for (int64_t g = 0; g < rows.num_groups; g++)
        tops[g] = (struct top_two){-1, -1};
    st = score_best(&rows, tops, in);
    if (!st)
        rk_adv_rows_spread(out, in, &rows);
    rk_free(tops);
    rk_adv_rows_fini(&rows);
    return st;
}

const struct rk_adv_ops rk_adv_grpo_passk = {
    .name = "grpo_passk",
    .min_group = 2,
    .compute = compute,
};
