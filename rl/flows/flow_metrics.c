/* Metrics of a step, with verl's names. */
#include "rl/flows/steps_internal.h"

#include <math.h>

#include "base/rk_alloc.h"

void rk_flow_metric(struct rk_json *metrics, const char *name, double value)
{
    rk_json_set(metrics, name, isfinite(value) ? rk_json_new_real(value) : rk_json_new_null());
}

static void metric_of(struct rk_json *metrics, const char *name, const char *what, double value)
{
    char *path = rk_format("%s/%s", name, what);

    rk_flow_metric(metrics, path, value);
    rk_free(path);
}

void rk_flow_metric_stats(struct rk_json *metrics, const char *name, const double *values, int64_t count)
{
    double sum = 0.0, max = -INFINITY, min = INFINITY;

    if (count == 0)
        return;
    for (int64_t i = 0; i < count; i++) {
        sum += values[i];
        max = values[i] > max || isnan(values[i]) ? values[i] : max;
        min = values[i] < min || isnan(values[i]) ? values[i] : min;
    }
    metric_of(metrics, name, "mean", sum / (double)count);
    metric_of(metrics, name, "max", max);
    metric_of(metrics, name, "min", min);
}

void rk_flow_count_marks(int64_t *counts, const int64_t *mask, int64_t num_rows, int64_t width,
                         int64_t stride)
{
    for (int64_t row = 0; row < num_rows; row++) {
        counts[row] = 0;
        for (int64_t i = 0; i < width; i++)
            counts[row] += mask[row * stride + i] != 0;
    }
}

void rk_flow_merge_metrics(struct rk_json *metrics, const struct rk_json *more)
{
    for (void *it = more ? rk_json_iter(more) : NULL; it; it = rk_json_iter_next(more, it))
        rk_json_set(metrics, rk_json_iter_key(it), rk_json_retain(rk_json_iter_value(it)));
}

struct pearson {
    double count, sum_x, sum_y, sum_xx, sum_yy, sum_xy;
};

static double correlation(const struct pearson *p)
{
    double cov = p->sum_xy - p->sum_x * p->sum_y / p->count;
    double var_x = p->sum_xx - p->sum_x * p->sum_x / p->count;
    double var_y = p->sum_yy - p->sum_y * p->sum_y / p->count;

    return cov / sqrt(var_x * var_y);
}

void rk_flow_probs_diff(struct rk_json *metrics, const float *old_log_probs, const float *rollout_log_probs,
                        const int64_t *mask, int64_t count)
{
    struct pearson p = {0};
    double sum = 0.0, sum_square = 0.0, max = 0.0, variance;

    for (int64_t i = 0; i < count; i++) {
        double x, y, diff;

        if (!mask[i])
            continue;
        x = exp((double)rollout_log_probs[i]);
        y = exp((double)old_log_probs[i]);
        diff = fabs(x - y);
        sum += diff;
        sum_square += diff * diff;
        max = fmax(max, diff);
        p.count += 1.0;
        p.sum_x += x;
        p.sum_y += y;
        p.sum_xx += x * x;
        p.sum_yy += y * y;
        p.sum_xy += x * y;
    }
    if (p.count == 0.0)
        return;
    variance = p.count > 1.0 ? fmax(sum_square - sum * sum / p.count, 0.0) / (p.count - 1.0) : 0.0;
    rk_flow_metric(metrics, "training/rollout_probs_diff_valid", 1.0);
    rk_flow_metric(metrics, "training/rollout_probs_diff_max", max);
    rk_flow_metric(metrics, "training/rollout_probs_diff_mean", sum / p.count);
    rk_flow_metric(metrics, "training/rollout_probs_diff_std", sqrt(variance));
    rk_flow_metric(metrics, "training/rollout_actor_probs_pearson_corr", correlation(&p));
}

struct rk_status *rk_flow_compare_log_probs(struct rk_json *metrics, const struct rk_flow_comparison *c,
                                            bool has_to_be_equal)
{
    int64_t count = c->num_rows * c->width, worst = -1, row;
    double max_diff = 0.0;

    for (int64_t i = 0; i < count; i++) {
        double diff = fabs((double)c->old_log_probs[i] - (double)c->rollout_log_probs[i]);

        if (!c->mask[i] || diff <= max_diff)
            continue;
        max_diff = diff;
        worst = i;
    }
    rk_flow_metric(metrics, "training/old_log_prob_check_max_diff", max_diff);
    rk_flow_probs_diff(metrics, c->old_log_probs, c->rollout_log_probs, c->mask, count);
    if (!has_to_be_equal || worst < 0)
        return NULL;
    row = worst / c->width;
    return RK_FAIL_REASON(
        RK_ABORTED, "LOG_PROB_MISMATCH",
        "row %lld, token %lld of the response: the rollout's log-prob is %.9g, that of compute_log_prob is "
        "%.9g; expected equal values with numerics=strict; "
        "to train with those of compute_log_prob, set actor_rollout_ref.actor.old_log_prob=recompute",
        (long long)(c->rows ? c->rows[row] : row), (long long)(worst % c->width),
        (double)c->rollout_log_probs[worst], (double)c->old_log_probs[worst]);
}

/* --- of a batch --- */

struct view {
    int64_t num_rows, prompt_length, response_length;
    const int64_t *attention_mask, *response_mask;
    const int64_t *scored_mask; /* before rollout correction rejected any */
    int64_t *response_lengths;  /* [num_rows] */
    double *values;             /* room for num_rows * response_length */
};

/* Without values verl logs NaN. */
static void stats_or_null(struct rk_json *metrics, const char *name, const double *values, int64_t count)
{
    static const char *const whats[] = {"mean", "max", "min"};

    rk_flow_metric_stats(metrics, name, values, count);
    for (size_t i = 0; count == 0 && i < RK_ARRAY_LEN(whats); i++)
        metric_of(metrics, name, whats[i], NAN);
}

static bool is_scored(const struct view *view, int64_t row)
{
    for (int64_t i = 0; i < view->response_length; i++) {
        if (view->scored_mask[row * view->response_length + i])
            return true;
    }
    return false;
}

/* Sums of a column's rows. Empty responses and responses without a score are left out; responses that rollout
 * correction rejected are not, since the reward of a policy is the mean over all its samples. */
static struct rk_status *row_sums(struct rk_json *metrics, const struct view *view,
                                  const struct rk_batch *batch, const char *column, const char *name)
{
    const void *data;
    const float *values;
    int64_t count = 0;

    RK_TRY(rk_batch_get_dense(batch, column, RK_DTYPE_F32, 2, NULL, &data));
    values = data;
    for (int64_t row = 0; row < view->num_rows; row++) {
        double sum = 0.0;

        if (!is_scored(view, row))
            continue;
        for (int64_t i = 0; i < view->response_length; i++)
            sum += (double)values[row * view->response_length + i];
        view->values[count++] = sum;
    }
    stats_or_null(metrics, name, view->values, count);
    return NULL;
}

/* Values of the counted tokens. */
static struct rk_status *token_values(struct rk_json *metrics, const struct view *view,
                                      const struct rk_batch *batch, const char *column, const char *name)
{
    const void *data;
    int64_t count = 0;

    RK_TRY(rk_batch_get_dense(batch, column, RK_DTYPE_F32, 2, NULL, &data));
    for (int64_t i = 0; i < view->num_rows * view->response_length; i++) {
        if (view->response_mask[i])
            view->values[count++] = (double)((const float *)data)[i];
    }
    stats_or_null(metrics, name, view->values, count);
    return NULL;
}

/* Sum of squares about the mean, of the counted tokens. */
static double variation(const double *values, int64_t count)
{
    double mean = 0.0, sum = 0.0;

    for (int64_t i = 0; i < count; i++)
        mean += values[i] / (double)count;
    for (int64_t i = 0; i < count; i++)
        sum += (values[i] - mean) * (values[i] - mean);
    return sum;
}

/* The critic's values, and the share of the returns' variance that they explain: 1 - var(R - V) / (var(R) +
 * 1e-5), with unbiased variances. */
static struct rk_status *value_metrics(struct rk_json *metrics, const struct view *view,
                                       const struct rk_batch *batch)
{
    const void *values, *returns;
    double of_returns, of_errors;
    int64_t count = 0, n = 0;

    RK_TRY(token_values(metrics, view, batch, "values", "critic/values"));
    RK_TRY(rk_batch_get_dense(batch, "values", RK_DTYPE_F32, 2, NULL, &values));
    RK_TRY(rk_batch_get_dense(batch, "returns", RK_DTYPE_F32, 2, NULL, &returns));
    for (int64_t i = 0; i < view->num_rows * view->response_length; i++) {
        if (view->response_mask[i])
            view->values[count++] = (double)((const float *)returns)[i];
    }
    of_returns = variation(view->values, count);
    for (int64_t i = 0; i < view->num_rows * view->response_length; i++) {
        if (view->response_mask[i])
            view->values[n++] -= (double)((const float *)values)[i];
    }
    of_errors = variation(view->values, count);
    of_errors /= (double)RK_MAX(count - 1, 0); /* of one value or none: NaN */
    of_returns /= (double)RK_MAX(count - 1, 0);
    rk_flow_metric(metrics, "critic/vf_explained_var", 1.0 - of_errors / (of_returns + 1e-5));
    return NULL;
}

/* Lengths of one part of the rows: [begin, begin + width) of the attention mask. */
static void part_lengths(const struct view *view, int64_t begin, int64_t width, int64_t *lengths)
{
    rk_flow_count_marks(lengths, view->attention_mask + begin, view->num_rows, width,
                        view->prompt_length + view->response_length);
}

static void length_metrics(struct rk_json *metrics, const struct view *view, const char *name,
                           const int64_t *lengths, int64_t limit, bool skip_empty)
{
    int64_t count = 0, num_full = 0;

    for (int64_t row = 0; row < view->num_rows; row++) {
        if (skip_empty && lengths[row] == 0)
            continue;
        view->values[count++] = (double)lengths[row];
        num_full += lengths[row] == limit;
    }
    rk_flow_metric_stats(metrics, name, view->values, count);
    if (count > 0)
        metric_of(metrics, name, "clip_ratio", (double)num_full / (double)count);
}

/* A prompt and its response: as verl counts the turns of its single-turn agent loop. */
static void turn_metrics(struct rk_json *metrics)
{
    static const char *const names[] = {"num_turns/mean", "num_turns/max", "num_turns/min"};

    for (size_t i = 0; i < RK_ARRAY_LEN(names); i++)
        rk_flow_metric(metrics, names[i], 2.0);
}

static struct rk_status *measure(struct rk_json *metrics, struct view *view, const struct rk_batch *batch)
{
    int64_t num_aborted = 0;

    part_lengths(view, 0, view->prompt_length, view->response_lengths);
    length_metrics(metrics, view, "prompt_length", view->response_lengths, view->prompt_length, false);
    part_lengths(view, view->prompt_length, view->response_length, view->response_lengths);
    for (int64_t row = 0; row < view->num_rows; row++)
        num_aborted += view->response_lengths[row] == 0;
    if (num_aborted == view->num_rows)
        return RK_FAIL(RK_ABORTED, "all %lld responses of the batch are empty", (long long)num_aborted);
    length_metrics(metrics, view, "response_length", view->response_lengths, view->response_length, false);
    length_metrics(metrics, view, "response_length_non_aborted", view->response_lengths,
                   view->response_length, true);
    rk_flow_metric(metrics, "response/aborted_ratio", (double)num_aborted / (double)view->num_rows);
    turn_metrics(metrics);
    RK_TRY(row_sums(metrics, view, batch, "token_level_scores", "critic/score"));
    RK_TRY(row_sums(metrics, view, batch, "token_level_rewards", "critic/rewards"));
    RK_TRY(token_values(metrics, view, batch, "advantages", "critic/advantages"));
    RK_TRY(token_values(metrics, view, batch, "returns", "critic/returns"));
    return rk_batch_find(batch, "values") ? value_metrics(metrics, view, batch) : NULL;
}

struct rk_status *rk_flow_data_metrics(struct rk_json *metrics, const struct rk_batch *batch)
{
    struct view view = {0};
    int64_t attention_shape[2], response_shape[2];
    const void *attention_mask, *response_mask, *scored_mask;
    bool has_scored = rk_batch_find(batch, RK_FLOW_SCORED_MASK) != NULL;
    struct rk_status *st;

    RK_TRY(rk_batch_get_dense(batch, "attention_mask", RK_DTYPE_I64, 2, attention_shape, &attention_mask));
    RK_TRY(rk_batch_get_dense(batch, "response_mask", RK_DTYPE_I64, 2, response_shape, &response_mask));
    RK_TRY(rk_batch_get_dense(batch, has_scored ? RK_FLOW_SCORED_MASK : "response_mask", RK_DTYPE_I64, 2,
                              NULL, &scored_mask));
    view.num_rows = response_shape[0];
    view.response_length = response_shape[1];
    view.prompt_length = attention_shape[1] - response_shape[1];
    view.attention_mask = attention_mask;
    view.response_mask = response_mask;
    view.scored_mask = scored_mask;
    view.response_lengths = rk_calloc((size_t)view.num_rows, sizeof(*view.response_lengths));
    view.values = rk_calloc((size_t)(view.num_rows * view.response_length) + (size_t)view.num_rows,
                            sizeof(*view.values));
    st = measure(metrics, &view, batch);
    rk_free(view.values);
    rk_free(view.response_lengths);
    return st;
}

void rk_flow_speed_metrics(struct rk_json *metrics, int64_t num_tokens, int64_t num_response_tokens,
                           double step_s, int32_t world_size)
{
    static const struct {
        const char *timer, *name;
        bool per_response_token;
    } rows[] = {
        {"timing_s/gen", "timing_per_token_ms/gen", true},
        {"timing_s/ref", "timing_per_token_ms/ref", false},
        {"timing_s/values", "timing_per_token_ms/values", false},
        {"timing_s/adv", "timing_per_token_ms/adv", false},
        {"timing_s/update_critic", "timing_per_token_ms/update_critic", false},
        {"timing_s/update_actor", "timing_per_token_ms/update_actor", false},
    };

    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        const struct rk_json *seconds = rk_json_find(metrics, rows[i].timer);
        int64_t tokens = rows[i].per_response_token ? num_response_tokens : num_tokens;

        if (seconds && tokens > 0)
            rk_flow_metric(metrics, rows[i].name, rk_json_as_real(seconds, 0.0) * 1000.0 / (double)tokens);
    }
    rk_flow_metric(metrics, "perf/total_num_tokens", (double)num_tokens);
    rk_flow_metric(metrics, "perf/time_per_step", step_s);
    rk_flow_metric(metrics, "perf/throughput", (double)num_tokens / (step_s * (double)world_size));
}
