/* Rewards of the tokens, and the advantages that the estimator makes of them. */
#include "driver-cli/flows/flows_internal.h"
#include "driver-cli/job_internal.h"

static struct rk_status *put_rewards(struct rk_flow_context *ctx, const int64_t *mask)
{
    int64_t shape[2] = {ctx->num_rows, ctx->response_length};
    double kl_coef = rk_config_real(ctx->job, "algorithm.kl_ctrl.kl_coef"), current_kl;
    const void *scores, *old, *ref;
    void *rewards;

    if (!rk_config_bool(ctx->job, "algorithm.use_kl_in_reward"))
        return rk_batch_put(ctx->batch, "token_level_rewards",
                            rk_batch_find(ctx->batch, "token_level_scores"));
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
    rk_flow_metric(ctx->metrics, "actor/reward_kl_penalty", current_kl);
    rk_flow_metric(ctx->metrics, "actor/reward_kl_penalty_coeff", kl_coef);
    return NULL;
}

static struct rk_status *advantages(struct rk_flow_context *ctx)
{
    int64_t shape[2] = {ctx->num_rows, ctx->response_length};
    const struct rk_column *uid = rk_batch_find(ctx->batch, "uid");
    const char **uids = rk_flow_scratch(ctx, (size_t)ctx->num_rows, sizeof(*uids));
    const void *mask, *rewards;
    void *adv, *returns;

    RK_TRY(rk_flow_column(ctx, "response_mask", RK_DTYPE_I64, ctx->response_length, &mask));
    RK_TRY(put_rewards(ctx, mask));
    RK_TRY(rk_flow_column(ctx, "token_level_rewards", RK_DTYPE_F32, ctx->response_length, &rewards));
    RK_TRY(rk_batch_add_dense(ctx->batch, "advantages", RK_DTYPE_F32, 2, shape, &adv));
    RK_TRY(rk_batch_add_dense(ctx->batch, "returns", RK_DTYPE_F32, 2, shape, &returns));
    for (int64_t row = 0; row < ctx->num_rows; row++)
        uids[row] = rk_column_string(uid, row);
    return rk_adv_compute(
        ctx->inputs->adv, &(struct rk_adv_out){adv, returns},
        &(struct rk_adv_in){
            .num_rows = ctx->num_rows,
            .response_length = ctx->response_length,
            .token_level_rewards = rewards,
            .response_mask = mask,
            .uid = uids,
            .norm_adv_by_std = rk_config_bool(ctx->job, "algorithm.norm_adv_by_std_in_grpo"),
        });
}

const struct rk_flow_step rk_step_adv = {"adv", "adv", NULL, advantages};
