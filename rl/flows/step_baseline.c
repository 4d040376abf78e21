/* The baseline of ReMax: the score of a greedy response to the same
 * prompt, which is not trained on. */
#include "rl/flows/steps_internal.h"
#include "rl/rk_job.h"

static bool needs_baseline(const struct rk_flow_context *ctx)
{
    return rk_flow_prompt_inputs(ctx->inputs)->adv->needs & RK_ADV_NEEDS_REWARD_BASELINES;
}

static struct rk_status *generate_greedy(struct rk_batch **out, struct rk_flow_context *ctx)
{
    struct rk_flow_prompts prompts = {
        .num_rows = ctx->num_prompts,
        .rows = rk_flow_prompt_state(ctx)->rows,
        .random_streams =
            rk_flow_scratch(ctx, (size_t)ctx->num_prompts, sizeof(int64_t)), /* nothing is drawn */
    };
    struct rk_json *dropped =
        rk_json_new_object(); /* the metrics of this generation would replace training's */
    struct rk_json *sampling = rk_json_new_object();
    struct rk_status *st;

    rk_job_copy_knobs(sampling, ctx->job, RK_JOB_KNOBS_SAMPLING);
    rk_job_copy_value(sampling, "temperature", ctx->job, RK_JOB_ROLLOUT "temperature");
    rk_json_set(sampling, "do_sample", rk_json_new_bool(false));
    rk_flow_drop_routes(sampling, ctx);
    st = rk_flow_generate(out, ctx, &prompts, sampling, dropped);
    rk_json_free(dropped);
    return st;
}

/* Each row gets the score of its prompt, 0 for an empty response; rows of a prompt without a score are
 * dropped from the training. */
static struct rk_status *put_baselines(struct rk_flow_context *ctx, const struct rk_flow_scores *greedy)
{
    bool *is_dropped = rk_flow_scratch(ctx, (size_t)ctx->num_rows, sizeof(*is_dropped));
    int64_t num_without = 0;
    const void *index;
    void *baselines;

    RK_TRY(rk_batch_get_dense(ctx->batch, "index", RK_DTYPE_I64, 1, NULL, &index));
    RK_TRY(rk_batch_add_dense(ctx->batch, "reward_baselines", RK_DTYPE_F32, 1, &ctx->num_rows, &baselines));
    for (int64_t row = 0; row < ctx->num_rows; row++) {
        int64_t prompt = ((const int64_t *)index)[row];

        if (greedy->lengths[prompt] > 0)
            ((float *)baselines)[row] = (float)greedy->results[prompt].score;
        is_dropped[row] = greedy->results[prompt].is_dropped;
    }
    for (int64_t prompt = 0; prompt < ctx->num_prompts; prompt++)
        num_without += greedy->results[prompt].is_dropped;
    rk_flow_metric(ctx->metrics, "reward/dropped_baselines", (double)num_without);
    return num_without > 0 ? rk_flow_drop_rows(ctx->batch, is_dropped) : NULL;
}

static struct rk_status *score_greedy(struct rk_flow_context *ctx)
{
    struct rk_flow_scores greedy = {0};
    struct rk_batch *batch;
    struct rk_status *st;

    RK_TRY(generate_greedy(&batch, ctx));
    st = rk_flow_score(&greedy, ctx, batch, rk_flow_prompt_state(ctx)->rows);
    if (!st)
        st = put_baselines(ctx, &greedy);
    rk_flow_scores_fini(&greedy);
    rk_batch_destroy(batch);
    return st;
}

const struct rk_flow_step rk_step_baseline = {"baseline", "gen_max", needs_baseline, score_greedy};
