/* Rewards of the tokens, and the advantages that the estimator computes from them. */
#include "rl/flows/steps_internal.h"

#include <math.h>

#include "base/rk_alloc.h"
#include "rl/rk_job.h"

static struct rk_status *put_rewards(struct rk_flow_context *ctx)
{
    int64_t shape[2] = {ctx->num_rows, ctx->response_length};
    double kl_coef = ctx->kl_ctrl.kl_coef, current_kl;
    int64_t *loss_tokens, num_taking_part = 0;
    const void *mask, *scores, *old, *ref;
    void *rewards;

    if (!rk_config_bool(ctx->job, "algorithm.use_kl_in_reward"))
        return rk_batch_put(ctx->batch, "token_level_rewards",
                            rk_batch_find(ctx->batch, "token_level_scores"));
    RK_TRY(rk_flow_column(ctx, "response_mask", RK_DTYPE_I64, ctx->response_length, &mask));
    RK_TRY(rk_flow_column(ctx, "token_level_scores", RK_DTYPE_F32, ctx->response_length, &scores));
    RK_TRY(rk_flow_column(ctx, "old_log_probs", RK_DTYPE_F32, ctx->response_length, &old));
    RK_TRY(rk_flow_column(ctx, "ref_log_prob", RK_DTYPE_F32, ctx->response_length, &ref));
    RK_TRY(rk_batch_add_dense(ctx->batch, "token_level_rewards", RK_DTYPE_F32, 2, shape, &rewards));
    RK_TRY(rk_kl_reward_apply(rewards, &current_kl,
                              &(struct rk_kl_reward_in){
                                  .num_rows = ctx->num_rows,
                                  .response_length = ctx->response_length,
                                  .scores = scores,
                                  .old_log_probs = old,
                                  .ref_log_prob = ref,
                                  .response_mask = mask,
                                  .kl_penalty = rk_config_string(ctx->job, "algorithm.kl_penalty"),
                                  .kl_coef = kl_coef,
                              }));
    RK_TRY(rk_flow_sum_rows(ctx, "response_mask", ctx->response_length, &loss_tokens));
    for (int64_t row = 0; row < ctx->num_rows; row++)
        num_taking_part += loss_tokens[row] > 0;
    rk_kl_ctrl_update(&ctx->kl_ctrl, current_kl, num_taking_part);
    rk_flow_metric(ctx->metrics, "actor/reward_kl_penalty", current_kl);
    rk_flow_metric(ctx->metrics, "actor/reward_kl_penalty_coeff", kl_coef);
    return NULL;
}

const struct rk_flow_step rk_step_token_rewards = {"token_level_rewards", NULL, NULL, put_rewards};

/* --- input of the estimator --- */

static struct rk_status *find_columns(struct rk_adv_in *in, const struct rk_flow_context *ctx)
{
    uint32_t needs = rk_flow_prompt_inputs(ctx->inputs)->adv->needs;
    const struct {
        bool is_read;
        const char *name;
        const float **out;
    } rows[] = {
        {needs & RK_ADV_NEEDS_VALUES, "values", &in->values},
        {needs & RK_ADV_NEEDS_OLD_LOG_PROBS, "old_log_probs", &in->old_log_probs},
        {needs & RK_ADV_NEEDS_SUM_PI_SQUARED, "sum_pi_squared", &in->sum_pi_squared},
        {(needs & RK_ADV_NEEDS_SUM_PI_SQUARED) && rk_batch_find(ctx->batch, "rollout_is_weights"),
         "rollout_is_weights", &in->rollout_is_weights},
    };
    const void *data;

    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        if (!rows[i].is_read)
            continue;
        RK_TRY(rk_flow_column(ctx, rows[i].name, RK_DTYPE_F32, ctx->response_length, &data));
        *rows[i].out = data;
    }
    if (needs & RK_ADV_NEEDS_REWARD_BASELINES) {
        RK_TRY(rk_batch_get_dense(ctx->batch, "reward_baselines", RK_DTYPE_F32, 1, NULL, &data));
        in->reward_baselines = data;
    }
    return NULL;
}

/* The reward's number under the key; NAN: none. Failed items that were not dropped score 0. */
static double key_reward(const struct rk_reward_result *result, const char *key)
{
    double value = 0.0;

    return result->outcome != RK_REWARD_SCORED || rk_filter_value(&value, result, key) ? value : NAN;
}

static void key_metrics(struct rk_json *metrics, const char *key, const double *values, int64_t count)
{
    char *name = rk_format("gdpo/%s", key), *std_name = rk_format("%s/std", name);
    double sum = 0.0, squares = 0.0;

    for (int64_t i = 0; i < count; i++)
        sum += values[i];
    for (int64_t i = 0; i < count; i++)
        squares += (values[i] - sum / (double)count) * (values[i] - sum / (double)count);
    rk_flow_metric_stats(metrics, name, values, count);
    if (count > 0)
        rk_flow_metric(metrics, std_name, sqrt(squares / (double)count));
    rk_free(std_name);
    rk_free(name);
}

static struct rk_status *read_key(struct rk_flow_context *ctx, const char *key, double *rewards)
{
    double *scored = rk_flow_scratch(ctx, (size_t)ctx->num_rows, sizeof(*scored));
    int64_t num_scored = 0;

    for (int64_t row = 0; row < ctx->num_rows; row++) {
        const struct rk_reward_result *result = &rk_flow_scores_of(ctx)->results[row];

        rewards[row] = key_reward(result, key);
        if (result->is_dropped)
            continue;
        if (!isfinite(rewards[row]))
            return RK_FAIL(
                RK_INVALID_ARGUMENT,
                "algorithm.gdpo_reward_keys: the reward returned no number '%s' for row %lld of the batch",
                key, (long long)row);
        scored[num_scored++] = rewards[row];
    }
    key_metrics(ctx->metrics, key, scored, num_scored);
    return NULL;
}

static struct rk_status *find_key_rewards(struct rk_adv_in *in, struct rk_flow_context *ctx)
{
    static const char weights_key[] = "algorithm.gdpo_reward_weights";
    const struct rk_json *keys, *weights = NULL;
    const double **rewards;
    double *values;

    if (!(rk_flow_prompt_inputs(ctx->inputs)->adv->needs & RK_ADV_NEEDS_KEY_REWARDS))
        return NULL;
    keys = rk_config_json(ctx->job, "algorithm.gdpo_reward_keys");
    if (!rk_config_is_null(ctx->job, weights_key))
        weights = rk_config_json(ctx->job, weights_key);
    in->num_reward_keys = rk_json_count(keys);
    rewards = rk_flow_scratch(ctx, (size_t)in->num_reward_keys, sizeof(*rewards));
    values = rk_flow_scratch(ctx, (size_t)in->num_reward_keys, sizeof(*values));
    in->key_rewards = rewards;
    in->reward_weights = values;
    for (int64_t k = 0; k < in->num_reward_keys; k++) {
        double *column = rk_flow_scratch(ctx, (size_t)ctx->num_rows, sizeof(*column));

        RK_TRY(read_key(ctx, rk_json_as_string(rk_json_at(keys, k), ""), column));
        rewards[k] = column;
        values[k] = weights ? rk_json_as_real(rk_json_at(weights, k), NAN) : 1.0;
    }
    return NULL;
}

/* Scores are in the range of F32, sums and products of them need not be. */
static struct rk_status *check_result(const struct rk_flow_context *ctx)
{
    const struct rk_flow_scores *scores = rk_flow_scores_of(ctx);
    double min = INFINITY, max = -INFINITY;
    struct rk_status *st = rk_flow_check_finite(ctx, "advantages");

    if (!st)
        st = rk_flow_check_finite(ctx, "returns");
    if (!st)
        return NULL;
    for (int64_t row = 0; row < scores->num_rows; row++) {
        min = RK_MIN(min, scores->results[row].score);
        max = RK_MAX(max, scores->results[row].score);
    }
    return RK_WRAP(st, "advantages of scores from %g to %g", min, max);
}

static struct rk_status *advantages(struct rk_flow_context *ctx)
{
    int64_t shape[2] = {ctx->num_rows, ctx->response_length};
    const struct rk_column *uid = rk_batch_find(ctx->batch, "uid");
    const char **uids = rk_flow_scratch(ctx, (size_t)ctx->num_rows, sizeof(*uids));
    struct rk_adv_in in = {
        .num_rows = ctx->num_rows,
        .response_length = ctx->response_length,
        .uid = uids,
        .norm_adv_by_std = rk_config_bool(ctx->job, "algorithm.norm_adv_by_std_in_grpo"),
        .gamma = rk_config_real(ctx->job, "algorithm.gamma"),
        .lam = rk_config_real(ctx->job, "algorithm.lam"),
    };
    bool has_scored = rk_batch_find(ctx->batch, RK_FLOW_SCORED_MASK) != NULL;
    const void *mask, *scored, *rewards;
    void *adv, *returns;

    RK_TRY(rk_flow_column(ctx, "response_mask", RK_DTYPE_I64, ctx->response_length, &mask));
    RK_TRY(rk_flow_column(ctx, has_scored ? RK_FLOW_SCORED_MASK : "response_mask", RK_DTYPE_I64,
                          ctx->response_length, &scored));
    RK_TRY(rk_flow_column(ctx, "token_level_rewards", RK_DTYPE_F32, ctx->response_length, &rewards));
    RK_TRY(find_columns(&in, ctx));
    RK_TRY(find_key_rewards(&in, ctx));
    RK_TRY(rk_batch_add_dense(ctx->batch, "advantages", RK_DTYPE_F32, 2, shape, &adv));
    RK_TRY(rk_batch_add_dense(ctx->batch, "returns", RK_DTYPE_F32, 2, shape, &returns));
    for (int64_t row = 0; row < ctx->num_rows; row++)
        uids[row] = rk_column_string(uid, row);
    in.token_level_rewards = rewards;
    in.response_mask = mask;
    in.group_mask = scored;
    RK_TRY(rk_adv_compute(rk_flow_prompt_inputs(ctx->inputs)->adv, &(struct rk_adv_out){adv, returns}, &in));
    return check_result(ctx);
}

const struct rk_flow_step rk_step_adv = {"adv", "adv", NULL, advantages};
