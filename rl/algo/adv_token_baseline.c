/* Optimal token baseline: the rewards to go against a baseline for each place in the responses to a prompt,
 * which weights a response by the accumulated variance of its tokens.
 *
 *   w_t = (1 - 2 pi_t + sum pi^2) * rollout_is_weight_t^2       W_t = sum up to t of w
 *   B_k = sum over g of G_k W_k / (sum over g of W_k + 1e-8)    A = G - B, where the mask is set
 *
 * k is the column (optimal_token_baseline), or the number of the token among those of its row that the mask
 * counts (tir_, for responses with tool output in them). Where k is beyond the second longest response of the
 * prompt, the longest one has B = 0, as has a response without others. Names and formulas are verl's. */
#include "rl/algo/algo_internal.h"

#include "base/rk_alloc.h"
#include "base/rk_compiler.h"

#define EPSILON 1e-8

struct work {
    const struct rk_adv_in *in;
    bool counts_tokens; /* k is the number of the token */
    int64_t *lengths;   /* [num_rows] tokens that count */
    double *returns;    /* [R] of a row */
    double *numerators; /* [num_groups, R] */
    double *denominators;
    int64_t *longest, *second; /* [num_groups]: the two greatest lengths */
    struct rk_adv_rows rows;
};

static void work_init(struct work *work, const struct rk_adv_in *in, bool counts_tokens)
{
    size_t places;

    *work = (struct work){.in = in, .counts_tokens = counts_tokens};
    rk_adv_rows_init(&work->rows, in);
    places = (size_t)(work->rows.num_groups * in->response_length);
    work->lengths = rk_calloc((size_t)in->num_rows, sizeof(*work->lengths));
    work->returns = rk_calloc((size_t)in->response_length, sizeof(*work->returns));
    work->numerators = rk_calloc(places, sizeof(*work->numerators));
    work->denominators = rk_calloc(places, sizeof(*work->denominators));
    work->longest = rk_calloc((size_t)work->rows.num_groups, sizeof(*work->longest));
    work->second = rk_calloc((size_t)work->rows.num_groups, sizeof(*work->second));
}

static void work_fini(struct work *work)
{
    rk_adv_rows_fini(&work->rows);
    rk_free(work->lengths);
    rk_free(work->returns);
    rk_free(work->numerators);
    rk_free(work->denominators);
    rk_free(work->longest);
    rk_free(work->second);
}

static void measure_lengths(struct work *work)
{
    int64_t width = work->in->response_length;

    for (int64_t row = 0; row < work->in->num_rows; row++) {
        int64_t length = rk_mask_count(work->in->response_mask + row * width, width);
        int64_t *longest = &work->longest[work->rows.group_of[row]];
        int64_t *second = &work->second[work->rows.group_of[row]];

        work->lengths[row] = length;
        *second = RK_MAX(*second, RK_MIN(length, *longest));
        *longest = RK_MAX(*longest, length);
    }
}

static double variance_of(const struct rk_adv_in *in, int64_t at)
{
    double weight = in->rollout_is_weights ? (double)in->rollout_is_weights[at] : 1.0;

    return rk_adv_token_variance((double)in->old_log_probs[at], (double)in->sum_pi_squared[at]) * weight *
           weight;
}

static void add_row(struct work *work, int64_t row)
{
    const struct rk_adv_in *in = work->in;
    int64_t group = work->rows.group_of[row] * in->response_length, num_before = 0;
    double variance = 0.0;

    rk_adv_rewards_to_go(work->returns, in, row);
    for (int64_t t = 0; t < in->response_length; t++) {
        int64_t at = row * in->response_length + t;
        int64_t place = group + (work->counts_tokens ? num_before : t);

        if (!in->response_mask[at])
            continue;
        variance += variance_of(in, at);
        work->numerators[place] += work->returns[t] * variance;
        work->denominators[place] += variance;
        num_before++;
    }
}

static double baseline_of(const struct work *work, int64_t row, int64_t k)
{
    int64_t group = work->rows.group_of[row], place = group * work->in->response_length + k;

    if (work->rows.groups[group].count < 2)
        return 0.0;
    if (work->lengths[row] > work->second[group] && k >= work->second[group])
        return 0.0;
    return work->numerators[place] / (work->denominators[place] + EPSILON);
}

static void subtract(const struct rk_adv_out *out, struct work *work, int64_t row)
{
    const struct rk_adv_in *in = work->in;
    int64_t num_before = 0;

    rk_adv_rewards_to_go(work->returns, in, row);
    for (int64_t t = 0; t < in->response_length; t++) {
        int64_t at = row * in->response_length + t;

        out->returns[at] = (float)work->returns[t];
        out->advantages[at] = 0.0f;
        if (!in->response_mask[at])
            continue;
        out->advantages[at] =
            (float)(work->returns[t] - baseline_of(work, row, work->counts_tokens ? num_before : t));
        num_before++;
    }
}

static struct rk_status *estimate(const struct rk_adv_out *out, const struct rk_adv_in *in,
                                  bool counts_tokens)
{
    struct work work;

    work_init(&work, in, counts_tokens);
    measure_lengths(&work);
    for (int64_t row = 0; row < in->num_rows; row++)
        add_row(&work, row);
    for (int64_t row = 0; row < in->num_rows; row++)
        subtract(out, &work, row);
    work_fini(&work);
    return NULL;
}

static struct rk_status *compute(const struct rk_adv_out *out, const struct rk_adv_in *in)
{
    return estimate(out, in, false);
}

static struct rk_status *compute_tir(const struct rk_adv_out *out, const struct rk_adv_in *in)
{
    return estimate(out, in, true);
}

const struct rk_adv_ops rk_adv_optimal_token_baseline = {
    .name = "optimal_token_baseline",
    .needs = RK_ADV_NEEDS_OLD_LOG_PROBS | RK_ADV_NEEDS_SUM_PI_SQUARED,
    .min_group = 1,
    .compute = compute,
};

const struct rk_adv_ops rk_adv_tir_optimal_token_baseline = {
    .name = "tir_optimal_token_baseline",
    .needs = RK_ADV_NEEDS_OLD_LOG_PROBS | RK_ADV_NEEDS_SUM_PI_SQUARED,
    .min_group = 1,
    .compute = compute_tir,
};
