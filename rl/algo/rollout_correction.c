#include "rl/algo/rollout_correction.h"

#include "base/rk_alloc.h"
#include "rl/rk_algo.h"

#define MIN_MEAN_WEIGHT 1e-8 /* weights with a smaller mean are not normalised */

static void rows_init(struct rk_rollout_rows *rows, const struct rk_rollout_corr_in *in)
{
    int64_t num_cells = in->num_rows * in->response_length, n = 0;
    double **arrays[] = {&rows->old, &rows->rollout, &rows->log_ratio, &rows->raw, &rows->weights};

    *rows = (struct rk_rollout_rows){.num_rows = in->num_rows};
    rows->begins = rk_calloc((size_t)in->num_rows + 1, sizeof(*rows->begins));
    for (size_t i = 0; i < RK_ARRAY_LEN(arrays); i++)
        *arrays[i] = rk_calloc((size_t)num_cells, sizeof(**arrays[i]));
    rows->keep = rk_calloc((size_t)num_cells, sizeof(*rows->keep));
    for (int64_t row = 0; row < in->num_rows; row++) {
        for (int64_t at = row * in->response_length; at < (row + 1) * in->response_length; at++) {
            if (!in->response_mask[at])
                continue;
            rows->old[n] = (double)in->old_log_probs[at];
            rows->rollout[n] = (double)in->rollout_log_probs[at];
            rows->log_ratio[n] = rows->old[n] - rows->rollout[n];
            n++;
        }
        rows->begins[row + 1] = n;
        rows->num_valid_rows += n > rows->begins[row];
    }
}

static void rows_fini(struct rk_rollout_rows *rows)
{
    rk_free(rows->begins);
    rk_free(rows->old);
    rk_free(rows->rollout);
    rk_free(rows->log_ratio);
    rk_free(rows->raw);
    rk_free(rows->weights);
    rk_free(rows->keep);
}

static void weigh(struct rk_rollout_rows *rows, const struct rk_rollout_correction *config)
{
    for (int64_t row = 0; row < rows->num_rows; row++) {
        int64_t begin = rows->begins[row], end = rows->begins[row + 1];

        rk_rollout_is_raw(rows->raw + begin, config, rows->log_ratio + begin, end - begin);
        for (int64_t t = begin; t < end; t++)
            rows->weights[t] = rk_rollout_is_weight(config, rows->raw[t]);
    }
}

/* Over tokens, or over the rows that have one. */
static double mean_weight(const struct rk_rollout_rows *rows, rk_rollout_is_t level)
{
    double total = 0.0;

    for (int64_t row = 0; row < rows->num_rows; row++) {
        int64_t begin = rows->begins[row], end = rows->begins[row + 1];
        double sum = 0.0;

        for (int64_t t = begin; t < end; t++)
            sum += rows->weights[t];
        total += level == RK_ROLLOUT_IS_TOKEN ? sum : rk_masked_mean(sum, (double)(end - begin));
    }
    if (level == RK_ROLLOUT_IS_TOKEN)
        return rk_masked_mean(total, (double)rows->begins[rows->num_rows]);
    return total / (double)rows->num_valid_rows;
}

static void normalize(struct rk_rollout_rows *rows, struct rk_json *metrics, rk_rollout_is_t level)
{
    double factor = mean_weight(rows, level);

    if (!(factor > MIN_MEAN_WEIGHT))
        factor = 1.0;
    for (int64_t t = 0; t < rows->begins[rows->num_rows]; t++)
        rows->weights[t] /= factor;
    rk_rollout_corr_metric(metrics, NULL, "rollout_is_batch_norm_factor", factor);
}

static void reject(struct rk_rollout_rows *rows, const struct rk_rollout_correction *config)
{
    for (int64_t row = 0; row < rows->num_rows; row++) {
        int64_t begin = rows->begins[row];

        rk_rollout_rs_keep(rows->keep + begin, config, rows->log_ratio + begin,
                           rows->begins[row + 1] - begin);
    }
}

static void write_cells(const struct rk_rollout_corr_out *out, const struct rk_rollout_corr_in *in,
                        const struct rk_rollout_rows *rows, bool has_weights)
{
    int64_t n = 0;

    for (int64_t at = 0; at < in->num_rows * in->response_length; at++) {
        bool is_counted = in->response_mask[at] != 0;

        if (has_weights)
            out->weights[at] = is_counted ? (float)rows->weights[n] : 0.0f;
        out->response_mask[at] = is_counted && rows->keep[n];
        n += is_counted;
    }
}

struct rk_status *rk_rollout_corr_apply(const struct rk_rollout_corr_out *out,
                                        const struct rk_rollout_corr_in *in,
                                        const struct rk_rollout_correction *config)
{
    bool has_weights = config->rollout_is != RK_ROLLOUT_IS_NONE;
    struct rk_rollout_rows rows;

    RK_TRY(rk_check_finite("old_log_probs", in->old_log_probs, in->response_mask, in->num_rows,
                           in->response_length));
    RK_TRY(rk_check_finite("rollout_log_probs", in->rollout_log_probs, in->response_mask, in->num_rows,
                           in->response_length));
    rows_init(&rows, in);
    if (rows.num_valid_rows == 0) {
        rows_fini(&rows);
        return RK_FAIL(RK_INVALID_ARGUMENT, "rollout correction: response_mask counts no token");
    }
    if (has_weights) {
        weigh(&rows, config);
        rk_rollout_is_metrics(out->metrics, &rows, config);
    }
    if (has_weights && config->is_batch_normalize)
        normalize(&rows, out->metrics, config->rollout_is);
    reject(&rows, config);
    if (config->num_rules > 0)
        rk_rollout_rs_metrics(out->metrics, &rows, config);
    rk_rollout_policy_metrics(out->metrics, &rows);
    write_cells(out, in, &rows, has_weights);
    rows_fini(&rows);
    return NULL;
}
