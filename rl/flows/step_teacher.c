/* The teachers' output for the responses: log-probs of the sampled tokens, or, for a divergence over their
 * top-k, their most likely ids at every token with the log-probs. Each teacher gets its own rows, and its
 * results go back to their places. */
#include <string.h>

#include "base/rk_assert.h"
#include "base/config/rk_knobs.h"
#include "rl/flows/steps_internal.h"
#include "rl/rk_job.h"
#include "proto/rk_methods.h"

#define OUTPUTS_MAX 2

/* A column of the method's result, and its name in the batch: [B, R] or [B, R, K]. */
struct output {
    const char *result, *name;
    rk_dtype_t dtype;
    int32_t rank;
};

static const struct output sampled[] = {{"ref_log_prob", "teacher_log_probs", RK_DTYPE_F32, 2},
                                        {NULL, NULL, 0, 0}};
static const struct output top[] = {{"teacher_topk_ids", "teacher_topk_ids", RK_DTYPE_I32, 3},
                                    {"teacher_topk_log_probs", "teacher_topk_log_probs", RK_DTYPE_F32, 3},
                                    {NULL, NULL, 0, 0}};

static bool needs_teacher(const struct rk_flow_context *ctx)
{
    return rk_job_teachers(ctx->job).count > 0;
}

static const struct rk_flow_teachers *teachers_of(const struct rk_flow_context *ctx)
{
    return &rk_flow_prompt_inputs(ctx->inputs)->teachers;
}

/* --- the rows of a teacher --- */

struct part {
    const struct rk_flow_teacher *teacher;
    int64_t count, num_padded; /* rows, and rows that fill up its last replicas */
    int64_t *rows, *seqlens;   /* [count + num_padded], in the order of the batch; of the first ones again */
    bool is_all;               /* the batch as it is */
};

static struct rk_status *find_part(struct part *out, struct rk_flow_context *ctx, int32_t index)
{
    const struct rk_flow_teachers *teachers = teachers_of(ctx);
    int32_t num_replicas = rk_flow_num_replicas(ctx, teachers->items[index].role->bit);
    int64_t most = ctx->num_rows + num_replicas;
    const void *chosen = NULL;

    *out = (struct part){.teacher = &teachers->items[index],
                         .rows = rk_flow_scratch(ctx, (size_t)most, sizeof(*out->rows)),
                         .seqlens = rk_flow_scratch(ctx, (size_t)most, sizeof(*out->seqlens))};
    if (teachers->count > 1)
        RK_TRY(rk_batch_get_dense(ctx->batch, RK_FLOW_TEACHER, RK_DTYPE_I64, 1, NULL, &chosen));
    for (int64_t row = 0; row < ctx->num_rows; row++) {
        if (!chosen || ((const int64_t *)chosen)[row] == index)
            out->rows[out->count++] = row;
    }
    while (out->count > 0 && (out->count + out->num_padded) % num_replicas != 0) {
        out->rows[out->count + out->num_padded] = out->rows[out->num_padded];
        out->num_padded++;
    }
    for (int64_t i = 0; i < out->count + out->num_padded; i++)
        out->seqlens[i] = ctx->seqlens[out->rows[i]];
    out->is_all = out->count == ctx->num_rows && out->num_padded == 0;
    return NULL;
}

static const char *method_of(const struct rk_flow_context *ctx)
{
    return rk_job_distills_topk(ctx->job) ? "compute_teacher_log_prob" : "compute_ref_log_prob";
}

/* The tokens of its rows. */
static struct rk_status *select_part(struct rk_batch **out, const struct rk_flow_context *ctx,
                                     const struct part *part)
{
    struct rk_batch *tokens;
    struct rk_status *st;

    RK_TRY(rk_flow_select(&tokens, ctx->batch, method_of(ctx), NULL));
    if (part->is_all) {
        *out = tokens;
        return NULL;
    }
    st = rk_batch_select_idxs(out, tokens, part->rows, part->count + part->num_padded);
    rk_batch_destroy(tokens);
    return st;
}

static struct rk_flow_pass pass_of(const struct rk_flow_context *ctx, const struct part *part,
                                   const struct rk_batch *tokens)
{
    const struct rk_job_role *role = part->teacher->role;
    const struct rk_flow_pass pass = {
        .role = role->name,
        .method = method_of(ctx),
        .micro = rk_job_log_prob_micro(ctx->job, role->section),
        .batch = tokens,
        .num_rows = part->count + part->num_padded,
        .seqlens = part->seqlens,
        .options = rk_json_new_object(),
    };

    rk_job_copy_value(pass.options, "temperature", ctx->job, RK_JOB_ROLLOUT "temperature");
    if (rk_job_distills_topk(ctx->job))
        rk_job_copy_value(pass.options, "topk", ctx->job, RK_KNOB_DISTILL "topk");
    return pass;
}

struct rk_status *rk_flow_start_teachers(struct rk_flow_context *ctx)
{
    struct rk_status *st = NULL;

    for (int32_t i = 0; needs_teacher(ctx) && i < teachers_of(ctx)->count && !st; i++) {
        struct rk_batch *tokens = NULL;
        struct rk_flow_pass pass;
        struct part part;

        if (!rk_flow_can_start(ctx, teachers_of(ctx)->items[i].role->bit))
            continue;
        RK_TRY(find_part(&part, ctx, i));
        if (part.count == 0)
            continue;
        RK_TRY(select_part(&tokens, ctx, &part));
        pass = pass_of(ctx, &part, tokens);
        st = rk_flow_start_pass(ctx, &pass);
        rk_batch_destroy(tokens);
    }
    return st;
}

/* --- results --- */

/* Copies the rows of a result into *column, which gets the batch's rows; update_actor checks the numbers. */
static struct rk_status *take_output(struct rk_column **column, const struct rk_flow_context *ctx,
                                     const struct part *part, const struct output *output,
                                     const struct rk_batch *result)
{
    int64_t shape[3] = {0, 0, 1}, whole[3] = {0};
    const void *from;
    size_t row_bytes;
    char *to;

    RK_TRY(rk_batch_get_dense(result, output->result, output->dtype, output->rank, shape, &from));
    if (shape[0] != part->count + part->num_padded || shape[1] != ctx->response_length)
        return RK_FAIL(RK_INTERNAL, "column '%s' has the shape [%lld, %lld, ...], expected [%lld, %lld, ...]",
                       output->result, (long long)shape[0], (long long)shape[1],
                       (long long)(part->count + part->num_padded), (long long)ctx->response_length);
    if (part->is_all) {
        *column = rk_column_retain(rk_batch_find(result, output->result));
        return NULL;
    }
    memcpy(whole, shape, sizeof(whole));
    whole[0] = ctx->num_rows;
    if (!*column)
        RK_TRY(rk_column_create_dense(column, output->dtype, output->rank, whole));
    row_bytes = rk_column_bytes(rk_batch_find(result, output->result)) / (size_t)shape[0];
    if (rk_column_bytes(*column) != row_bytes * (size_t)ctx->num_rows)
        return RK_FAIL(RK_INTERNAL, "column '%s': rows of %s have %zu bytes, those of another teacher %zu",
                       output->result, part->teacher->role->name, row_bytes,
                       rk_column_bytes(*column) / (size_t)ctx->num_rows);
    to = rk_column_data(*column);
    for (int64_t i = 0; i < part->count; i++)
        memcpy(to + (size_t)part->rows[i] * row_bytes, (const char *)from + (size_t)i * row_bytes, row_bytes);
    return NULL;
}

static struct rk_status *run_teacher(struct rk_column *columns[OUTPUTS_MAX], struct rk_flow_context *ctx,
                                     const struct output *outputs, int32_t index)
{
    struct rk_driver_result result = {0};
    struct rk_batch *tokens = NULL;
    struct rk_flow_pass pass;
    struct rk_status *st;
    struct part part;

    RK_TRY(find_part(&part, ctx, index));
    if (part.count == 0)
        return NULL;
    if (!rk_flow_is_started(ctx, part.teacher->role->bit))
        RK_TRY(select_part(&tokens, ctx, &part));
    pass = pass_of(ctx, &part, tokens);
    st = rk_flow_run_pass(ctx, &pass, &result);
    for (int i = 0; outputs[i].name && !st; i++)
        st = take_output(&columns[i], ctx, &part, &outputs[i], result.batch);
    rk_driver_result_fini(&result);
    rk_batch_destroy(tokens);
    return st;
}

static struct rk_status *run_teachers(struct rk_flow_context *ctx)
{
    const struct output *outputs = rk_job_distills_topk(ctx->job) ? top : sampled;
    struct rk_column *columns[OUTPUTS_MAX] = {NULL};
    struct rk_status *st = NULL;

    for (int32_t i = 0; i < teachers_of(ctx)->count && !st; i++)
        st = run_teacher(columns, ctx, outputs, i);
    for (int i = 0; outputs[i].name; i++) {
        RK_ASSERT(i < OUTPUTS_MAX);
        if (st)
            rk_column_release(columns[i]);
        else
            st = rk_batch_put_new(ctx->batch, outputs[i].name, columns[i]);
    }
    return st || outputs != sampled ? st : rk_flow_check_finite(ctx, sampled[0].name);
}

const struct rk_flow_step rk_step_teacher = {"teacher", "teacher", needs_teacher, run_teachers};

/* --- the teacher in the advantages --- */

static bool uses_opd(const struct rk_flow_context *ctx)
{
    return rk_config_bool(ctx->job, "algorithm.use_opd");
}

/* A[t] -= opd_kl_coef * (old_log_probs[t] - teacher_log_probs[t]): the reverse KL at the sampled token, by
 * the policy that sampled it and without a gradient. */
static struct rk_status *add_opd(struct rk_flow_context *ctx)
{
    double coef = rk_config_real(ctx->job, "algorithm.opd_kl_coef"), sum = 0.0, num_tokens = 0.0;
    int64_t shape[2] = {ctx->num_rows, ctx->response_length};
    const void *mask, *old, *teacher, *given;
    struct rk_column *column;
    float *advantages;

    RK_TRY(rk_flow_column(ctx, "response_mask", RK_DTYPE_I64, ctx->response_length, &mask));
    RK_TRY(rk_flow_column(ctx, "old_log_probs", RK_DTYPE_F32, ctx->response_length, &old));
    RK_TRY(rk_flow_column(ctx, "teacher_log_probs", RK_DTYPE_F32, ctx->response_length, &teacher));
    RK_TRY(rk_flow_column(ctx, "advantages", RK_DTYPE_F32, ctx->response_length, &given));
    RK_TRY(rk_column_create_dense(&column, RK_DTYPE_F32, 2, shape));
    advantages = rk_column_data(column);
    for (int64_t i = 0; i < ctx->num_rows * ctx->response_length; i++) {
        double kl = (double)((const float *)old)[i] - (double)((const float *)teacher)[i];

        advantages[i] = ((const float *)given)[i];
        if (!((const int64_t *)mask)[i])
            continue;
        advantages[i] = (float)((double)advantages[i] - coef * kl);
        sum += kl;
        num_tokens += 1.0;
    }
    rk_flow_metric(ctx->metrics, "actor/opd_reverse_kl", num_tokens > 0.0 ? sum / num_tokens : 0.0);
    return rk_batch_put_new(ctx->batch, "advantages", column);
}

const struct rk_flow_step rk_step_opd = {"opd", NULL, uses_opd, add_opd};
