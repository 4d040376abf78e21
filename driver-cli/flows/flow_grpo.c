/* Group-relative policy optimisation (Shao et al., "DeepSeekMath", arXiv:2402.03300), in verl's order of
 * steps and with its metric names. The same parts serve every estimator that needs no critic. */
#include "driver-cli/flows/flows_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_log.h"
#include "base/rk_loss_agg.h"
#include "base/rk_time.h"
#include "driver-cli/job_internal.h"

static void *scratch(struct rk_flow_context *ctx, size_t count, size_t elem_bytes)
{
    void *memory = rk_arena_calloc(ctx->arena, count, elem_bytes);

    RK_ASSERT(memory);
    return memory;
}

/* --- prompts and responses --- */

static struct rk_status *take_prompts(struct rk_flow_context *ctx)
{
    int64_t first = (ctx->step - 1) % ctx->steps_per_epoch * ctx->num_prompts;

    ctx->rows = scratch(ctx, (size_t)ctx->num_prompts, sizeof(*ctx->rows));
    for (int64_t i = 0; i < ctx->num_prompts; i++)
        ctx->rows[i] = rk_dataset_at(ctx->inputs->dataset, ctx->epoch, first + i);
    return NULL;
}

static struct rk_status *add_identity(struct rk_flow_context *ctx)
{
    const char **uids = scratch(ctx, (size_t)ctx->num_rows, sizeof(*uids));
    struct rk_column *column;
    void *index, *session;

    for (int64_t row = 0; row < ctx->num_rows; row++) {
        char *uid = rk_format("%lld-%lld", (long long)ctx->step, (long long)(row / ctx->num_samples));

        uids[row] = rk_arena_strdup(ctx->arena, uid);
        rk_free(uid);
    }
    RK_TRY(rk_column_create_strings(&column, ctx->num_rows, uids, false));
    RK_TRY(rk_batch_put_new(ctx->batch, "uid", column));
    RK_TRY(rk_batch_add_dense(ctx->batch, "index", RK_DTYPE_I64, 1, &ctx->num_rows, &index));
    RK_TRY(rk_batch_add_dense(ctx->batch, "session", RK_DTYPE_I64, 1, &ctx->num_rows, &session));
    for (int64_t row = 0; row < ctx->num_rows; row++) {
        ((int64_t *)index)[row] = row / ctx->num_samples;
        ((int64_t *)session)[row] = row % ctx->num_samples;
    }
    return NULL;
}

/* Each prompt n times, one after the other. */
static struct rk_status *generate(struct rk_flow_context *ctx)
{
    const struct rk_dataset_row **rows = scratch(ctx, (size_t)ctx->num_rows, sizeof(*rows));
    int64_t *streams = scratch(ctx, (size_t)ctx->num_rows, sizeof(*streams));
    struct rk_flow_prompts prompts = {ctx->num_rows, rows, streams};
    struct rk_json *sampling = rk_json_new_object();

    for (int64_t row = 0; row < ctx->num_rows; row++) {
        rows[row] = ctx->rows[row / ctx->num_samples];
        streams[row] = (ctx->step - 1) * ctx->num_rows + row;
    }
    rk_job_copy_knobs(sampling, ctx->job, RK_JOB_KNOBS_SAMPLING);
    rk_job_copy_value(sampling, "temperature", ctx->job, RK_JOB_ROLLOUT "temperature");
    RK_TRY(rk_flow_generate(&ctx->batch, ctx, &prompts, sampling, ctx->metrics));
    return add_identity(ctx);
}

/* --- layout --- */

/* A column of the batch with the shape [B, width], checked: it comes from the daemons. */
static struct rk_status *get_column(const struct rk_flow_context *ctx, const char *name, rk_dtype_t dtype,
                                    int64_t width, const void **data)
{
    int64_t shape[2];

    RK_TRY(rk_batch_get_dense(ctx->batch, name, dtype, 2, shape, data));
    if (shape[0] != ctx->num_rows || shape[1] != width)
        return RK_FAIL(RK_INTERNAL, "column '%s' has the shape [%lld, %lld], expected [%lld, %lld]", name,
                       (long long)shape[0], (long long)shape[1], (long long)ctx->num_rows, (long long)width);
    return NULL;
}

static struct rk_status *sum_rows(struct rk_flow_context *ctx, const char *mask_name, int64_t width,
                                  int64_t **out)
{
    const void *mask;

    RK_TRY(get_column(ctx, mask_name, RK_DTYPE_I64, width, &mask));
    *out = scratch(ctx, (size_t)ctx->num_rows, sizeof(**out));
    rk_flow_count_marks(*out, mask, ctx->num_rows, width, width);
    return NULL;
}

/* Puts the rows in the order in which the replicas take them; from here on a prompt's responses are found by
 * uid only. */
static struct rk_status *lay_out(struct rk_flow_context *ctx)
{
    int64_t width = ctx->prompt_length + ctx->response_length;
    int64_t *order = scratch(ctx, (size_t)ctx->num_rows, sizeof(*order));
    struct rk_layout_request request = {
        .num_rows = ctx->num_rows,
        .num_replicas = ctx->num_replicas,
        .mini_batch_rows = ctx->mini_batch_rows,
        .shuffle = rk_config_bool(ctx->job, RK_JOB_ACTOR "shuffle"),
        .balance = rk_config_bool(ctx->job, "trainer.balance_batch"),
        .seed = (uint64_t)(rk_config_int(ctx->job, RK_JOB_ACTOR "data_loader_seed") + ctx->step),
        .workload = ctx->inputs->workload,
    };
    struct rk_seqlen_stats stats;

    RK_TRY(sum_rows(ctx, "attention_mask", width, &ctx->seqlens));
    request.seqlens = ctx->seqlens;
    RK_TRY(rk_plan_layout(order, &request));
    RK_TRY(rk_batch_reorder(ctx->batch, order));
    stats = rk_plan_seqlen_stats(ctx->seqlens, order, ctx->num_rows, ctx->num_replicas);
    rk_flow_metric(ctx->metrics, "global_seqlen/min", stats.min);
    rk_flow_metric(ctx->metrics, "global_seqlen/max", stats.max);
    rk_flow_metric(ctx->metrics, "global_seqlen/minmax_diff", stats.minmax_diff);
    rk_flow_metric(ctx->metrics, "global_seqlen/balanced_min", stats.balanced_min);
    rk_flow_metric(ctx->metrics, "global_seqlen/balanced_max", stats.balanced_max);
    rk_flow_metric(ctx->metrics, "global_seqlen/mean", stats.mean);
    return sum_rows(ctx, "attention_mask", width, &ctx->seqlens);
}

/* --- reward --- */

/* The score stands at the last token of the response; an empty response has none. */
static struct rk_status *score(struct rk_flow_context *ctx)
{
    int64_t shape[2] = {ctx->num_rows, ctx->response_length};
    const struct rk_dataset_row **prompts = scratch(ctx, (size_t)ctx->num_rows, sizeof(*prompts));
    const struct rk_flow_scores *scores = &ctx->scores;
    const void *index, *responses;
    void *data;

    RK_TRY(get_column(ctx, "responses", RK_DTYPE_I64, ctx->response_length, &responses));
    RK_TRY(rk_batch_get_dense(ctx->batch, "index", RK_DTYPE_I64, 1, NULL, &index));
    for (int64_t row = 0; row < ctx->num_rows; row++)
        prompts[row] = ctx->rows[((const int64_t *)index)[row]];
    RK_TRY(rk_flow_score(&ctx->scores, ctx, ctx->batch, prompts));
    RK_TRY(rk_batch_add_dense(ctx->batch, "token_level_scores", RK_DTYPE_F32, 2, shape, &data));
    for (int64_t row = 0; row < ctx->num_rows; row++) {
        if (scores->lengths[row] > 0)
            ((float *)data)[row * ctx->response_length + scores->lengths[row] - 1] =
                (float)scores->results[row].score;
    }
    rk_flow_reward_metrics(ctx->metrics, scores);
    return rk_flow_drop_unscored(ctx->batch, ctx->metrics, scores, index, ctx->num_prompts);
}

/* --- log-probs --- */

static struct rk_status *make_forward_plan(struct rk_flow_context *ctx, struct rk_job_micro micro,
                                           int32_t num_replicas, struct rk_plan *plan)
{
    struct rk_plan_request request = {
        .num_rows = ctx->num_rows,
        .num_replicas = num_replicas,
        .seqlens = ctx->seqlens,
        .use_dynamic_bsz = micro.use_dynamic_bsz,
        .max_token_len = micro.max_token_len,
        .micro_batch_rows = micro.micro_batch_rows,
        .workload = ctx->inputs->workload,
    };

    return rk_plan_build(plan, ctx->arena, &request);
}

static const char *const token_columns[] = {"input_ids", "attention_mask", "position_ids", "responses", NULL};
static const char *const no_meta[] = {NULL};

/* Runs a forward pass over the batch and adds its columns. */
static struct rk_status *add_log_probs(struct rk_flow_context *ctx, const char *role, const char *method,
                                       const char *section, int32_t num_replicas)
{
    struct rk_json *options = rk_json_new_object();
    struct rk_driver_result result = {0};
    struct rk_batch *tokens = NULL;
    struct rk_plan plan;
    struct rk_status *st;

    rk_job_copy_value(options, "temperature", ctx->job, RK_JOB_ROLLOUT "temperature");
    st = make_forward_plan(ctx, rk_job_log_prob_micro(ctx->job, section), num_replicas, &plan);
    if (!st)
        st = rk_batch_select(&tokens, ctx->batch, token_columns, no_meta);
    if (st) {
        rk_json_free(options);
        return st;
    }
    st = rk_flow_call(ctx, role, method, tokens, options, &plan, &result);
    if (!st)
        st = rk_batch_union(ctx->batch, result.batch);
    rk_driver_result_fini(&result);
    rk_batch_destroy(tokens);
    return st;
}

/* What the daemons computed, at the tokens that count. */
static struct rk_status *check_finite(const struct rk_flow_context *ctx, const char *name)
{
    const void *values, *mask;

    RK_TRY(get_column(ctx, name, RK_DTYPE_F32, ctx->response_length, &values));
    RK_TRY(get_column(ctx, "response_mask", RK_DTYPE_I64, ctx->response_length, &mask));
    return rk_check_finite(name, values, mask, ctx->num_rows, ctx->response_length);
}

static struct rk_status *old_log_prob(struct rk_flow_context *ctx)
{
    const void *entropys, *mask, *old, *rollout;
    double scale = rk_config_is_null(ctx->job, RK_JOB_ACTOR "loss_scale_factor")
                       ? (double)ctx->response_length
                       : rk_config_real(ctx->job, RK_JOB_ACTOR "loss_scale_factor");
    struct rk_loss_matrix matrix = {.num_rows = ctx->num_rows, .width = ctx->response_length};
    rk_loss_agg_mode_t mode;

    RK_TRY(rk_loss_agg_mode_parse(RK_JOB_ACTOR "loss_agg_mode",
                                  rk_config_string(ctx->job, RK_JOB_ACTOR "loss_agg_mode"), &mode));
    RK_TRY(add_log_probs(ctx, "actor", "compute_log_prob", RK_JOB_ROLLOUT, ctx->num_replicas));
    RK_TRY(check_finite(ctx, "rollout_log_probs"));
    RK_TRY(check_finite(ctx, "old_log_probs"));
    RK_TRY(get_column(ctx, "entropys", RK_DTYPE_F32, ctx->response_length, &entropys));
    RK_TRY(get_column(ctx, "response_mask", RK_DTYPE_I64, ctx->response_length, &mask));
    RK_TRY(get_column(ctx, "old_log_probs", RK_DTYPE_F32, ctx->response_length, &old));
    RK_TRY(get_column(ctx, "rollout_log_probs", RK_DTYPE_F32, ctx->response_length, &rollout));
    matrix.values = entropys;
    matrix.mask = mask;
    rk_flow_metric(ctx->metrics, "actor/entropy", rk_loss_aggregate(&matrix, mode, scale));
    rk_flow_probs_diff(ctx->metrics, old, rollout, mask, ctx->num_rows * ctx->response_length);
    rk_batch_remove(ctx->batch, "entropys");
    return NULL;
}

static bool needs_ref(const struct rk_flow_context *ctx)
{
    return rk_job_needs_ref(ctx->job);
}

static struct rk_status *ref_log_prob(struct rk_flow_context *ctx)
{
    int32_t num_replicas = rk_driver_num_workers(ctx->driver) / rk_job_ref_tp(ctx->job);

    RK_TRY(add_log_probs(ctx, "ref", "compute_ref_log_prob", RK_JOB_REF, num_replicas));
    return check_finite(ctx, "ref_log_prob");
}

/* --- advantages --- */

static struct rk_status *put_rewards(struct rk_flow_context *ctx, const int64_t *mask)
{
    int64_t shape[2] = {ctx->num_rows, ctx->response_length};
    double kl_coef = rk_config_real(ctx->job, "algorithm.kl_ctrl.kl_coef"), current_kl;
    const void *scores, *old, *ref;
    void *rewards;

    if (!rk_config_bool(ctx->job, "algorithm.use_kl_in_reward"))
        return rk_batch_put(ctx->batch, "token_level_rewards",
                            rk_batch_find(ctx->batch, "token_level_scores"));
    RK_TRY(get_column(ctx, "token_level_scores", RK_DTYPE_F32, ctx->response_length, &scores));
    RK_TRY(get_column(ctx, "old_log_probs", RK_DTYPE_F32, ctx->response_length, &old));
    RK_TRY(get_column(ctx, "ref_log_prob", RK_DTYPE_F32, ctx->response_length, &ref));
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
    const char **uids = scratch(ctx, (size_t)ctx->num_rows, sizeof(*uids));
    const void *mask, *rewards;
    void *adv, *returns;

    RK_TRY(get_column(ctx, "response_mask", RK_DTYPE_I64, ctx->response_length, &mask));
    RK_TRY(put_rewards(ctx, mask));
    RK_TRY(get_column(ctx, "token_level_rewards", RK_DTYPE_F32, ctx->response_length, &rewards));
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

/* --- update --- */

/* False when every response lost its score or is empty: there is nothing to learn from. */
static struct rk_status *has_loss_tokens(struct rk_flow_context *ctx, bool *has)
{
    int64_t *loss_tokens;

    *has = false;
    RK_TRY(sum_rows(ctx, "response_mask", ctx->response_length, &loss_tokens));
    for (int64_t row = 0; row < ctx->num_rows; row++)
        *has = *has || loss_tokens[row] > 0;
    return NULL;
}

static struct rk_status *make_update_plan(struct rk_flow_context *ctx, struct rk_plan *plan)
{
    struct rk_job_micro micro = rk_job_actor_micro(ctx->job);
    struct rk_plan_request request = {
        .num_rows = ctx->num_rows,
        .num_replicas = ctx->num_replicas,
        .seqlens = ctx->seqlens,
        .mini_batch_rows = ctx->mini_batch_rows,
        .epochs = (int32_t)rk_config_int(ctx->job, RK_JOB_ACTOR "ppo_epochs"),
        .shuffle = rk_config_bool(ctx->job, RK_JOB_ACTOR "shuffle"),
        .seed = (uint64_t)(rk_config_int(ctx->job, RK_JOB_ACTOR "data_loader_seed") + ctx->step),
        .use_dynamic_bsz = micro.use_dynamic_bsz,
        .max_token_len = micro.max_token_len,
        .micro_batch_rows = micro.micro_batch_rows,
        .workload = ctx->inputs->workload,
    };
    int64_t *loss_tokens;

    RK_TRY(sum_rows(ctx, "response_mask", ctx->response_length, &loss_tokens));
    request.loss_tokens = loss_tokens;
    return rk_plan_build(plan, ctx->arena, &request);
}

static struct rk_status *update_actor(struct rk_flow_context *ctx)
{
    bool use_kl_loss = rk_config_bool(ctx->job, RK_JOB_ACTOR "use_kl_loss");
    const char *const columns[] = {"input_ids",
                                   "attention_mask",
                                   "position_ids",
                                   "responses",
                                   "response_mask",
                                   "old_log_probs",
                                   "advantages",
                                   use_kl_loss ? "ref_log_prob" : NULL,
                                   NULL};
    struct rk_driver_result result = {0};
    struct rk_batch *batch;
    struct rk_json *options;
    struct rk_plan plan;
    struct rk_status *st;
    bool has;

    RK_TRY(has_loss_tokens(ctx, &has));
    if (!has) {
        RK_WARN("step %lld: no response has a score; the policy is not updated", (long long)ctx->step);
        return NULL;
    }
    RK_TRY(make_update_plan(ctx, &plan));
    RK_TRY(rk_batch_select(&batch, ctx->batch, columns, no_meta));
    options = rk_json_new_object();
    rk_job_copy_knobs(options, ctx->job, RK_JOB_KNOBS_LOSS);
    rk_job_copy_value(options, "temperature", ctx->job, RK_JOB_ROLLOUT "temperature");
    st = rk_flow_call(ctx, "actor", "update_actor", batch, options, &plan, &result);
    rk_flow_merge_metrics(ctx->metrics, result.metrics);
    rk_driver_result_fini(&result);
    rk_batch_destroy(batch);
    if (!st)
        ctx->trained_step = ctx->step;
    return st;
}

/* --- metrics --- */

static struct rk_status *measure(struct rk_flow_context *ctx)
{
    double step_s = (double)(rk_time_now_ns() - ctx->started_ns) / 1e9;
    int64_t num_tokens = 0, num_response_tokens = 0;

    rk_flow_metric(ctx->metrics, "timing_s/step", step_s);
    RK_TRY(rk_flow_data_metrics(ctx->metrics, ctx->batch));
    for (int64_t row = 0; row < ctx->num_rows; row++) {
        num_tokens += ctx->seqlens[row];
        num_response_tokens += ctx->scores.lengths[row];
    }
    rk_flow_speed_metrics(ctx->metrics, num_tokens, num_response_tokens, step_s,
                          rk_driver_num_workers(ctx->driver));
    return NULL;
}

static const struct rk_flow_step steps[] = {
    {"prompts", NULL, NULL, take_prompts},
    {"generate", "gen", NULL, generate},
    {"layout", NULL, NULL, lay_out},
    {"reward", "reward", NULL, score},
    {"samples", NULL, NULL, rk_flow_show_samples},
    {"old_log_prob", "old_log_prob", NULL, old_log_prob},
    {"ref", "ref", needs_ref, ref_log_prob},
    {"adv", "adv", NULL, advantages},
    {"update_actor", "update_actor", NULL, update_actor},
    {"save_checkpoint", "save_checkpoint", rk_flow_checkpoint_is_due, rk_flow_checkpoint_save},
    {"metrics", NULL, NULL, measure},
    {"validate", "testing", rk_flow_validates, rk_flow_validate},
    {"dump", "dump_rollout_generations", rk_flow_dumps, rk_flow_dump},
    {NULL, NULL, NULL, NULL},
};

const struct rk_flow rk_flow_grpo = {
    .name = "grpo",
    .adv_estimator = "grpo",
    .setup = rk_flow_setup,
    .steps = steps,
};
