/* Validation on held-out examples: passes without training, in the order of the data. */
#include "base/rk_assert.h"
#include "rl/flows/steps_internal.h"
#include "rl/rk_job.h"
#include "driver/rk_driver.h"
#include "proto/rk_methods.h"

/* A pass of a role that returns log-probs. */
struct pass {
    uint32_t role;
    const char *method, *section, *column;
};

static const struct pass actor_pass = {RK_ROLE_ACTOR, "compute_log_prob", RK_JOB_ROLLOUT, "old_log_probs"};
static const struct pass ref_pass = {RK_ROLE_REF, "compute_ref_log_prob", RK_JOB_REF, "ref_log_prob"};

/* Some of the held-out examples. */
struct part {
    struct rk_flow_context *ctx;
    struct rk_batch *batch; /* rows beyond num_rows fill up the replicas */
    int64_t num_rows, width;
    const int64_t *mask; /* [num_rows, width]: tokens that the loss counts */
    const float *log_probs[2];
    struct rk_driver_result results[2]; /* hold them */
};

static void part_fini(struct part *part)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(part->results); i++)
        rk_driver_result_fini(&part->results[i]);
    rk_batch_destroy(part->batch);
}

/* --- passes --- */

static struct rk_status *make_plan(const struct part *part, const struct pass *pass, struct rk_plan *plan)
{
    struct rk_flow_context *ctx = part->ctx;
    struct rk_job_micro micro = rk_job_log_prob_micro(ctx->job, pass->section);
    int64_t num_rows = rk_batch_num_rows(part->batch), shape[2];
    int64_t *seqlens = rk_flow_scratch(ctx, (size_t)num_rows, sizeof(*seqlens));
    struct rk_plan_request request = {.num_rows = num_rows, .seqlens = seqlens};
    int32_t cp = rk_mesh_axis_size(rk_job_meshes_find(&ctx->meshes, pass->role), RK_AXIS_CP);
    const void *mask;

    RK_TRY(rk_batch_get_dense(part->batch, "attention_mask", RK_DTYPE_I64, 2, shape, &mask));
    rk_flow_count_marks(seqlens, mask, num_rows, shape[1], shape[1]);
    micro.max_token_len = rk_job_micro_tokens(ctx->job, &micro, cp); /* the daemons' memory limit */
    micro.micro_batch_rows = RK_MIN(micro.micro_batch_rows, ctx->num_rows);
    return rk_flow_make_plan(plan, ctx, pass->role, &micro, request);
}

static struct rk_status *run_pass(struct part *part, const struct pass *pass, int i)
{
    struct rk_json *options = rk_json_new_object();
    struct rk_batch *tokens = NULL;
    struct rk_plan plan;
    int64_t shape[2];
    const void *data;
    struct rk_status *st = make_plan(part, pass, &plan);

    if (pass->role == RK_ROLE_ACTOR)
        rk_json_set(options, "calculate_entropy", rk_json_new_bool(false));
    if (!st)
        st = rk_flow_select(&tokens, part->batch, pass->method, NULL);
    if (st) {
        rk_json_free(options);
        return st;
    }
    st = rk_flow_call(part->ctx, rk_job_role(pass->role)->name, pass->method, tokens, options, &plan,
                      &part->results[i]);
    rk_batch_destroy(tokens);
    RK_TRY(st);
    RK_TRY(rk_batch_get_dense(part->results[i].batch, pass->column, RK_DTYPE_F32, 2, shape, &data));
    if (shape[0] < part->num_rows || shape[1] != part->width)
        return RK_FAIL(RK_INTERNAL, "column '%s' has the shape [%lld, %lld], expected [%lld, %lld]",
                       pass->column, (long long)shape[0], (long long)shape[1],
                       (long long)rk_batch_num_rows(part->batch), (long long)part->width);
    part->log_probs[i] = data;
    return rk_check_finite(pass->column, data, part->mask, part->num_rows, part->width);
}

/* --- parts --- */

static struct rk_status *open_part(struct part *part, int64_t first, int64_t count)
{
    struct rk_flow_context *ctx = part->ctx;
    const struct rk_example **examples = rk_flow_scratch(ctx, (size_t)count, sizeof(*examples));
    struct rk_batch *batch;
    int64_t shape[2], num_padded;
    const void *mask;
    struct rk_status *st;

    for (int64_t i = 0; i < count; i++)
        examples[i] = rk_examples_at(rk_flow_example_inputs(ctx->inputs)->val, 0, first + i);
    RK_TRY(rk_flow_collate(&batch, examples, count, ctx->inputs->pad_id));
    part->num_rows = rk_batch_num_rows(batch);
    st = rk_batch_pad_to_divisor(&part->batch, batch, rk_driver_num_workers(ctx->driver), &num_padded);
    rk_batch_destroy(batch);
    RK_TRY(st);
    RK_TRY(rk_batch_get_dense(part->batch, "response_mask", RK_DTYPE_I64, 2, shape, &mask));
    part->mask = mask;
    part->width = shape[1];
    return NULL;
}

/* Runs the passes over all held-out examples, data.val_batch_size of them at a time, and passes each part
 * with its log-probs to `add`. */
static struct rk_status *run_parts(struct rk_flow_context *ctx, const struct pass *const *passes,
                                   void (*add)(void *sums, const struct part *part), void *sums)
{
    int64_t num_examples = rk_examples_num_rows(rk_flow_example_inputs(ctx->inputs)->val);
    int64_t size = rk_job_int_or(ctx->job, "data.val_batch_size", ctx->num_prompts);

    for (int64_t first = 0; first < num_examples; first += size) {
        struct part part = {.ctx = ctx};
        struct rk_status *st = open_part(&part, first, RK_MIN(size, num_examples - first));

        for (int i = 0; !st && passes[i]; i++)
            st = run_pass(&part, passes[i], i);
        if (!st)
            add(sums, &part);
        part_fini(&part);
        RK_TRY(st);
    }
    return NULL;
}

/* Sum of a row's log-probs that the loss counts; adds how many they are to *count. */
static double sum_row(const struct part *part, int pass, int64_t row, double *count)
{
    double sum = 0.0;

    for (int64_t i = row * part->width; i < (row + 1) * part->width; i++) {
        if (!part->mask[i])
            continue;
        sum += (double)part->log_probs[pass][i];
        *count += 1.0;
    }
    return sum;
}

/* --- cross entropy --- */

struct sft_sums {
    double log_prob, num_tokens;
};

static void add_sft(void *opaque, const struct part *part)
{
    struct sft_sums *sums = opaque;

    for (int64_t row = 0; row < part->num_rows; row++)
        sums->log_prob += sum_row(part, 0, row, &sums->num_tokens);
}

static struct rk_status *validate_sft(struct rk_flow_context *ctx)
{
    static const struct pass *const passes[] = {&actor_pass, NULL};
    struct sft_sums sums = {0};

    RK_TRY(run_parts(ctx, passes, add_sft, &sums));
    RK_ASSERT(sums.num_tokens > 0.0); /* every example has such a token */
    rk_flow_metric(ctx->metrics, "val/loss", -sums.log_prob / sums.num_tokens);
    return NULL;
}

const struct rk_flow_step rk_step_validate_sft = {"validate", "testing", rk_flow_validates, validate_sft};

/* --- preferences --- */

struct dpo_sums {
    struct rk_preference pair;
    double num_pairs, num_right, loss;
    double log_prob[2], log_ratio[2]; /* of chosen and rejected */
};

static void add_dpo(void *opaque, const struct part *part)
{
    struct dpo_sums *sums = opaque;

    for (int64_t row = 0; row + 1 < part->num_rows; row += 2) {
        struct rk_preference_side sides[2] = {0};

        for (int side = 0; side < 2; side++) {
            double unused = 0.0, log_prob = sum_row(part, 0, row + side, &sides[side].num_tokens);

            sides[side].log_ratio = log_prob - sum_row(part, 1, row + side, &unused);
            sums->log_prob[side] += log_prob;
            sums->log_ratio[side] += sides[side].log_ratio;
        }
        sums->loss += rk_preference_of(&sums->pair, &sides[0], &sides[1]).loss;
        sums->num_right += sides[0].log_ratio > sides[1].log_ratio;
        sums->num_pairs += 1.0;
    }
}

static struct rk_status *validate_dpo(struct rk_flow_context *ctx)
{
    static const struct pass *const passes[] = {&actor_pass, &ref_pass, NULL};
    struct dpo_sums sums = {0};
    double beta;

    RK_TRY(rk_job_preference(&sums.pair, ctx->job));
    beta = sums.pair.beta;
    RK_TRY(run_parts(ctx, passes, add_dpo, &sums));
    RK_ASSERT(sums.num_pairs > 0.0);
    rk_flow_metric(ctx->metrics, "val/loss", sums.loss / sums.num_pairs);
    rk_flow_metric(ctx->metrics, "val/rewards/chosen", beta * sums.log_ratio[0] / sums.num_pairs);
    rk_flow_metric(ctx->metrics, "val/rewards/rejected", beta * sums.log_ratio[1] / sums.num_pairs);
    rk_flow_metric(ctx->metrics, "val/rewards/margins",
                   beta * (sums.log_ratio[0] - sums.log_ratio[1]) / sums.num_pairs);
    rk_flow_metric(ctx->metrics, "val/rewards/accuracies", sums.num_right / sums.num_pairs);
    rk_flow_metric(ctx->metrics, "val/logps/chosen", sums.log_prob[0] / sums.num_pairs);
    rk_flow_metric(ctx->metrics, "val/logps/rejected", sums.log_prob[1] / sums.num_pairs);
    return NULL;
}

const struct rk_flow_step rk_step_validate_dpo = {"validate", "testing", rk_flow_validates, validate_dpo};
