/* Metrics of rollout correction, with verl's names and definitions. Means over rows count rows without a
 * token too, with sums and means of 0; only the statistics of rejection leave these rows out. */
#include "rl/algo/rollout_correction.h"

#include <math.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_str.h"

void rk_rollout_corr_metric(struct rk_json *metrics, const char *option, const char *name, double value)
{
    char *key = option ? rk_format("rollout_corr/rollout_rs_%s_%s", option, name)
                       : rk_format("rollout_corr/%s", name);

    rk_json_set(metrics, key, isfinite(value) ? rk_json_new_real(value) : rk_json_new_null());
    rk_free(key);
}

/* --- means over tokens and rows --- */

struct stats {
    double mean, std, max, min, max_deviation; /* std: n - 1, of one value 0; the deviation from `ideal` */
    double fraction_high, fraction_low;        /* above and below the bounds */
};

struct bounds {
    double lower, upper;
};

static struct stats stats_of(const double *values, int64_t n, double ideal, struct bounds bounds)
{
    struct stats stats = {.max = -INFINITY, .min = INFINITY};
    double sum = 0.0, squares = 0.0, num_high = 0.0, num_low = 0.0;

    RK_ASSERT(n > 0);
    for (int64_t i = 0; i < n; i++) {
        sum += values[i];
        stats.max = fmax(stats.max, values[i]);
        stats.min = fmin(stats.min, values[i]);
        stats.max_deviation = fmax(stats.max_deviation, fabs(values[i] - ideal));
        num_high += values[i] > bounds.upper;
        num_low += values[i] < bounds.lower;
    }
    stats.mean = sum / (double)n;
    for (int64_t i = 0; i < n; i++)
        squares += (values[i] - stats.mean) * (values[i] - stats.mean);
    stats.std = n > 1 ? sqrt(squares / (double)(n - 1)) : 0.0;
    stats.fraction_high = num_high / (double)n;
    stats.fraction_low = num_low / (double)n;
    return stats;
}

static double token_mean(const double *values, int64_t n)
{
    double sum = 0.0;

    for (int64_t t = 0; t < n; t++)
        sum += values[t];
    return rk_masked_mean(sum, (double)n);
}

static double clamp(double x, struct bounds bounds)
{
    return x < bounds.lower ? bounds.lower : x > bounds.upper ? bounds.upper : x;
}

/* Standard deviation of values clamped to the bounds, from the mean of squares less the square of the mean.
 */
static double clamped_std(const double *values, int64_t n, struct bounds bounds)
{
    double sum = 0.0, squares = 0.0, mean, var;

    for (int64_t t = 0; t < n; t++) {
        double x = clamp(values[t], bounds);

        sum += x;
        squares += x * x;
    }
    mean = rk_masked_mean(sum, (double)n);
    var = rk_masked_mean(squares, (double)n) - mean * mean;
    return n > 1 && var > 0.0 ? sqrt(var) : 0.0;
}

/* out[num_rows]: means of each row's tokens. */
static void row_means(double *out, const struct rk_rollout_rows *rows, const double *values)
{
    for (int64_t row = 0; row < rows->num_rows; row++)
        out[row] = token_mean(values + rows->begins[row], rows->begins[row + 1] - rows->begins[row]);
}

static void row_sums(double *out, const struct rk_rollout_rows *rows, const double *values)
{
    for (int64_t row = 0; row < rows->num_rows; row++) {
        out[row] = 0.0;
        for (int64_t t = rows->begins[row]; t < rows->begins[row + 1]; t++)
            out[row] += values[t];
    }
}

static double *new_rows(const struct rk_rollout_rows *rows)
{
    return rk_calloc((size_t)rows->num_rows, sizeof(double));
}

/* Moves the rows that have a token to the front; returns their number. */
static int64_t keep_valid(double *values, const struct rk_rollout_rows *rows)
{
    int64_t n = 0;

    for (int64_t row = 0; row < rows->num_rows; row++) {
        if (rows->begins[row + 1] > rows->begins[row])
            values[n++] = values[row];
    }
    return n;
}

/* --- weights --- */

/* 1 / mean((w / mean w)^2). */
static double effective_sample_size(const double *weights, int64_t n, struct bounds bounds)
{
    double sum = 0.0, squares = 0.0, mean;

    for (int64_t t = 0; t < n; t++)
        sum += clamp(weights[t], bounds);
    mean = rk_masked_mean(sum, (double)n) + 1e-8;
    for (int64_t t = 0; t < n; t++) {
        double x = clamp(weights[t], bounds) / mean;

        squares += x * x;
    }
    return 1.0 / rk_masked_mean(squares, (double)n);
}

static void token_extremes(struct rk_json *metrics, const struct rk_rollout_rows *rows, struct bounds bounds)
{
    int64_t n = rows->begins[rows->num_rows];
    struct stats applied = stats_of(rows->weights, n, 1.0, bounds);
    struct stats raw = stats_of(rows->raw, n, 1.0, bounds);

    rk_rollout_corr_metric(metrics, NULL, "rollout_is_max", applied.max);
    rk_rollout_corr_metric(metrics, NULL, "rollout_is_min", applied.min);
    rk_rollout_corr_metric(metrics, NULL, "rollout_is_ratio_fraction_high", raw.fraction_high);
    rk_rollout_corr_metric(metrics, NULL, "rollout_is_ratio_fraction_low", raw.fraction_low);
}

static void row_extremes(struct rk_json *metrics, const struct rk_rollout_rows *rows, struct bounds bounds)
{
    double *sums = new_rows(rows);
    struct stats stats;

    row_sums(sums, rows, rows->log_ratio);
    stats = stats_of(sums, rows->num_rows, 0.0, (struct bounds){log(bounds.lower), log(bounds.upper)});
    rk_rollout_corr_metric(metrics, NULL, "rollout_is_max", exp(fmin(stats.max, RK_ROLLOUT_LOG_RATIO_MAX)));
    rk_rollout_corr_metric(metrics, NULL, "rollout_is_min", exp(stats.min));
    rk_rollout_corr_metric(metrics, NULL, "rollout_is_ratio_fraction_high", stats.fraction_high);
    rk_rollout_corr_metric(metrics, NULL, "rollout_is_ratio_fraction_low", stats.fraction_low);
    rk_free(sums);
}

static void row_weights(struct rk_json *metrics, const struct rk_rollout_rows *rows, struct bounds bounds)
{
    double *means = new_rows(rows);
    struct stats stats;

    row_means(means, rows, rows->weights);
    stats = stats_of(means, rows->num_rows, 1.0, bounds);
    rk_rollout_corr_metric(metrics, NULL, "rollout_is_seq_mean", stats.mean);
    rk_rollout_corr_metric(metrics, NULL, "rollout_is_seq_std", stats.std);
    rk_rollout_corr_metric(metrics, NULL, "rollout_is_seq_max", stats.max);
    rk_rollout_corr_metric(metrics, NULL, "rollout_is_seq_min", stats.min);
    rk_rollout_corr_metric(metrics, NULL, "rollout_is_seq_max_deviation", stats.max_deviation);
    row_means(means, rows, rows->raw);
    stats = stats_of(means, rows->num_rows, 1.0, bounds);
    rk_rollout_corr_metric(metrics, NULL, "rollout_is_seq_fraction_high", stats.fraction_high);
    rk_rollout_corr_metric(metrics, NULL, "rollout_is_seq_fraction_low", stats.fraction_low);
    rk_free(means);
}

void rk_rollout_is_metrics(struct rk_json *metrics, const struct rk_rollout_rows *rows,
                           const struct rk_rollout_correction *config)
{
    bool is_icepop = config->is_lower > 0.0;
    struct bounds bounds = {is_icepop ? config->is_lower : 1.0 / config->is_upper, config->is_upper};
    struct bounds applied = {0.0, config->is_upper};
    int64_t n = rows->begins[rows->num_rows];

    rk_rollout_corr_metric(metrics, NULL, "rollout_is_mean", token_mean(rows->weights, n));
    if (config->rollout_is == RK_ROLLOUT_IS_TOKEN)
        token_extremes(metrics, rows, bounds);
    else
        row_extremes(metrics, rows, bounds);
    rk_rollout_corr_metric(metrics, NULL, "rollout_is_std", clamped_std(rows->weights, n, applied));
    rk_rollout_corr_metric(metrics, NULL, "rollout_is_eff_sample_size",
                           effective_sample_size(rows->weights, n, applied));
    row_weights(metrics, rows, bounds);
    if (is_icepop) {
        struct stats raw = stats_of(rows->raw, n, 1.0, bounds);

        rk_rollout_corr_metric(metrics, NULL, "rollout_is_oob_ratio", raw.fraction_high + raw.fraction_low);
    }
}

/* --- rejection --- */

struct rejected {
    double tokens, rows; /* numbers */
};

static struct rejected count_rejected(const struct rk_rollout_rows *rows, const uint8_t *keep)
{
    struct rejected rejected = {0};

    for (int64_t row = 0; row < rows->num_rows; row++) {
        double before = rejected.tokens;

        for (int64_t t = rows->begins[row]; t < rows->begins[row + 1]; t++)
            rejected.tokens += !keep[t];
        rejected.rows += rejected.tokens > before;
    }
    return rejected;
}

/* The statistic at every token and of every row: a statistic per row is repeated at all its tokens, one per
 * token is averaged over the row. */
static void measure(double *of_tokens, double *of_rows, const struct rk_rollout_rows *rows,
                    rk_rollout_rs_t option)
{
    for (int64_t row = 0; row < rows->num_rows; row++) {
        int64_t begin = rows->begins[row], n = rows->begins[row + 1] - begin;

        if (rk_rollout_rs_is_token(option)) {
            rk_rollout_rs_token_values(of_tokens + begin, option, rows->log_ratio + begin, n);
            of_rows[row] = token_mean(of_tokens + begin, n);
            continue;
        }
        of_rows[row] = rk_rollout_rs_row_value(option, rows->log_ratio + begin, n);
        for (int64_t t = 0; t < n; t++)
            of_tokens[begin + t] = of_rows[row];
    }
}

static void row_statistics(struct rk_json *metrics, const char *name, const struct stats *stats, bool is_k1)
{
    rk_rollout_corr_metric(metrics, name, "seq_mean", stats->mean);
    rk_rollout_corr_metric(metrics, name, "seq_std", stats->std);
    rk_rollout_corr_metric(metrics, name, "seq_max", stats->max);
    rk_rollout_corr_metric(metrics, name, "seq_min", stats->min);
    rk_rollout_corr_metric(metrics, name, "seq_max_deviation", stats->max_deviation);
    rk_rollout_corr_metric(metrics, name, "seq_fraction_high", stats->fraction_high);
    if (is_k1)
        rk_rollout_corr_metric(metrics, name, "seq_fraction_low", stats->fraction_low);
}

static void rule_metrics(struct rk_json *metrics, const struct rk_rollout_rows *rows,
                         const struct rk_rollout_rs_rule *rule)
{
    const char *name = rk_rollout_rs_name(rule->option);
    bool is_k1 = rk_rollout_rs_is_k1(rule->option);
    struct bounds bounds = {rule->lower, rule->upper}, clamps = {is_k1 ? rule->lower : 0.0, rule->upper};
    int64_t n = rows->begins[rows->num_rows];
    double *values = rk_calloc((size_t)n, sizeof(*values)), *of_rows = new_rows(rows);
    uint8_t *keep = rk_calloc((size_t)n, sizeof(*keep));
    struct stats by_row, stats;
    struct rejected rejected;

    measure(values, of_rows, rows, rule->option);
    for (int64_t t = 0; t < n; t++)
        keep[t] = rk_rollout_rs_keeps(rule, values[t]);
    rejected = count_rejected(rows, keep);
    by_row = stats_of(of_rows, keep_valid(of_rows, rows), 0.0, bounds);
    stats = rk_rollout_rs_is_token(rule->option) ? stats_of(values, n, 0.0, bounds) : by_row;
    rk_rollout_corr_metric(metrics, name, "mean", token_mean(values, n));
    rk_rollout_corr_metric(metrics, name, "max", stats.max);
    rk_rollout_corr_metric(metrics, name, "min", stats.min);
    rk_rollout_corr_metric(metrics, name, "std", clamped_std(values, n, clamps));
    rk_rollout_corr_metric(metrics, name, "fraction_high", stats.fraction_high);
    rk_rollout_corr_metric(metrics, name, "fraction_low", stats.fraction_low);
    row_statistics(metrics, name, &by_row, is_k1);
    rk_rollout_corr_metric(metrics, name, "masked_fraction", rejected.tokens / (double)n);
    rk_rollout_corr_metric(metrics, name, "seq_masked_fraction",
                           rejected.rows / (double)rows->num_valid_rows);
    rk_free(values);
    rk_free(of_rows);
    rk_free(keep);
}

void rk_rollout_rs_metrics(struct rk_json *metrics, const struct rk_rollout_rows *rows,
                           const struct rk_rollout_correction *config)
{
    struct rejected rejected = count_rejected(rows, rows->keep);

    for (int32_t i = 0; i < config->num_rules; i++)
        rule_metrics(metrics, rows, &config->rules[i]);
    rk_rollout_corr_metric(metrics, NULL, "rollout_rs_masked_fraction",
                           rejected.tokens / (double)rows->begins[rows->num_rows]);
    rk_rollout_corr_metric(metrics, NULL, "rollout_rs_seq_masked_fraction",
                           rejected.rows / (double)rows->num_rows);
}

/* --- the two policies --- */

static void perplexity(struct rk_json *metrics, const char *name, const char *log_name,
                       const struct rk_rollout_rows *rows, const double *log_probs)
{
    double *means = new_rows(rows), sum = 0.0, log_sum = 0.0;

    row_means(means, rows, log_probs);
    for (int64_t row = 0; row < rows->num_rows; row++) {
        sum += exp(-means[row]);
        log_sum -= means[row];
    }
    rk_rollout_corr_metric(metrics, NULL, name, sum / (double)rows->num_rows);
    rk_rollout_corr_metric(metrics, NULL, log_name, log_sum / (double)rows->num_rows);
    rk_free(means);
}

/* Metrics of the difference of the rows' mean log-probs, rollout - old. */
static void perplexity_difference(struct rk_json *metrics, const struct rk_rollout_rows *rows)
{
    double *of_old = new_rows(rows), *diff = new_rows(rows), abs_sum = 0.0, ratio_sum = 0.0;
    double num_rows = (double)rows->num_rows;
    struct stats stats;

    row_means(of_old, rows, rows->old);
    row_means(diff, rows, rows->rollout);
    for (int64_t row = 0; row < rows->num_rows; row++) {
        diff[row] -= of_old[row];
        abs_sum += fabs(diff[row]);
        ratio_sum += exp(diff[row]);
    }
    stats = stats_of(diff, rows->num_rows, 0.0, (struct bounds){0});
    rk_rollout_corr_metric(metrics, NULL, "log_ppl_diff", stats.mean);
    rk_rollout_corr_metric(metrics, NULL, "log_ppl_abs_diff", abs_sum / num_rows);
    rk_rollout_corr_metric(metrics, NULL, "log_ppl_diff_max", stats.max);
    rk_rollout_corr_metric(metrics, NULL, "log_ppl_diff_min", stats.min);
    rk_rollout_corr_metric(metrics, NULL, "ppl_ratio", ratio_sum / num_rows);
    rk_free(of_old);
    rk_free(diff);
}

static void divergences(struct rk_json *metrics, const struct rk_rollout_rows *rows)
{
    struct bounds limits = {-RK_ROLLOUT_LOG_RATIO_MAX, RK_ROLLOUT_LOG_RATIO_MAX};
    double n = (double)rows->begins[rows->num_rows], kl = 0.0, k3 = 0.0, chi2_token = 0.0, chi2_seq = 0.0;
    double *sums = new_rows(rows);

    for (int64_t t = 0; t < rows->begins[rows->num_rows]; t++) {
        double l = rows->log_ratio[t];

        kl -= l;
        k3 += exp(l) - l - 1.0;
        chi2_token += exp(2.0 * clamp(l, limits));
    }
    row_sums(sums, rows, rows->log_ratio);
    for (int64_t row = 0; row < rows->num_rows; row++)
        chi2_seq += exp(2.0 * clamp(sums[row], limits));
    rk_rollout_corr_metric(metrics, NULL, "kl", rk_masked_mean(kl, n));
    rk_rollout_corr_metric(metrics, NULL, "k3_kl", rk_masked_mean(k3, n));
    rk_rollout_corr_metric(metrics, NULL, "chi2_token", rk_masked_mean(chi2_token, n) - 1.0);
    rk_rollout_corr_metric(metrics, NULL, "chi2_seq", chi2_seq / (double)rows->num_rows - 1.0);
    rk_free(sums);
}

void rk_rollout_policy_metrics(struct rk_json *metrics, const struct rk_rollout_rows *rows)
{
    perplexity(metrics, "training_ppl", "training_log_ppl", rows, rows->old);
    perplexity(metrics, "rollout_ppl", "rollout_log_ppl", rows, rows->rollout);
    perplexity_difference(metrics, rows);
    divergences(metrics, rows);
}
