/* Scores of the responses. */
#include "rl/flows/steps_internal.h"

/* The score is at the last token of the response; an empty response has none. */
static struct rk_status *score(struct rk_flow_context *ctx)
{
    int64_t shape[2] = {ctx->num_rows, ctx->response_length};
    const struct rk_dataset_row **prompts = rk_flow_scratch(ctx, (size_t)ctx->num_rows, sizeof(*prompts));
    struct rk_prompt_state *state = rk_flow_prompt_state(ctx);
    struct rk_flow_scores *scores = &state->scores;
    const void *index, *responses;
    void *data;

    RK_TRY(rk_flow_column(ctx, "responses", RK_DTYPE_I64, ctx->response_length, &responses));
    RK_TRY(rk_batch_get_dense(ctx->batch, "index", RK_DTYPE_I64, 1, NULL, &index));
    for (int64_t row = 0; row < ctx->num_rows; row++)
        prompts[row] = state->rows[((const int64_t *)index)[row]];
    if (scores->num_rows == 0) /* a filter of groups has scored them */
        RK_TRY(rk_flow_score(scores, ctx, ctx->batch, prompts));
    RK_TRY(rk_batch_add_dense(ctx->batch, "token_level_scores", RK_DTYPE_F32, 2, shape, &data));
    for (int64_t row = 0; row < ctx->num_rows; row++) {
        if (scores->lengths[row] > 0)
            ((float *)data)[row * ctx->response_length + scores->lengths[row] - 1] =
                (float)scores->results[row].score;
    }
    rk_flow_reward_metrics(ctx->metrics, scores);
    return rk_flow_drop_unscored(ctx->batch, ctx->metrics, scores,
                                 rk_flow_prompt_inputs(ctx->inputs)->adv->min_group > 0 ? index : NULL,
                                 ctx->num_prompts);
}

const struct rk_flow_step rk_step_reward = {"reward", "reward", NULL, score};
