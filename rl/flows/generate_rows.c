/* From data rows to responses. */
#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "rl/flows/steps_internal.h"

static void fill(const struct rk_flow_context *ctx, const struct rk_flow_prompts *prompts, int64_t *ids,
                 int64_t *mask)
{
    for (int64_t row = 0; row < prompts->num_rows; row++) {
        const struct rk_dataset_row *prompt = prompts->rows[row];
        int64_t pad = ctx->prompt_length - prompt->prompt_len;

        RK_ASSERT(pad >= 0); /* the dataset truncates */
        for (int64_t i = 0; i < ctx->prompt_length; i++) {
            ids[row * ctx->prompt_length + i] = i < pad ? ctx->inputs->pad_id : prompt->prompt_ids[i - pad];
            mask[row * ctx->prompt_length + i] = i >= pad;
        }
    }
}

static struct rk_status *make_batch(struct rk_batch **out, const struct rk_flow_context *ctx,
                                    const struct rk_flow_prompts *prompts)
{
    int64_t shape[2] = {prompts->num_rows, ctx->prompt_length};
    void *ids, *mask, *stream;

    RK_TRY(rk_batch_create(out, prompts->num_rows));
    RK_TRY(rk_batch_add_dense(*out, "prompts", RK_DTYPE_I64, 2, shape, &ids));
    RK_TRY(rk_batch_add_dense(*out, "attention_mask", RK_DTYPE_I64, 2, shape, &mask));
    RK_TRY(rk_batch_add_dense(*out, "stream", RK_DTYPE_I64, 1, shape, &stream));
    fill(ctx, prompts, ids, mask);
    for (int64_t row = 0; row < prompts->num_rows; row++)
        ((int64_t *)stream)[row] = prompts->random_streams[row];
    return NULL;
}

static struct rk_status *call(struct rk_driver_result *result, struct rk_flow_context *ctx,
                              const struct rk_batch *prompts, struct rk_json *options)
{
    rk_json_set(options, "response_length", rk_json_new_int(ctx->response_length));
    rk_json_set(options, "eos_token_id", rk_json_clone(ctx->inputs->eos_ids));
    rk_json_set(options, "pad_token_id", rk_json_new_int(ctx->inputs->pad_id));
    RK_TRY(rk_flow_call(ctx, "rollout", "generate_sequences", prompts, options, NULL, result));
    if (rk_batch_num_rows(result->batch) != rk_batch_num_rows(prompts))
        return RK_FAIL(RK_INTERNAL, "generate_sequences returned %lld rows, expected %lld",
                       (long long)rk_batch_num_rows(result->batch), (long long)rk_batch_num_rows(prompts));
    return NULL;
}

/* Takes the result's batch. */
static struct rk_status *unpad(struct rk_batch **out, struct rk_driver_result *result, int64_t num_padded)
{
    if (num_padded > 0)
        return rk_batch_unpad(out, result->batch, num_padded);
    *out = result->batch;
    result->batch = NULL;
    return NULL;
}

struct rk_status *rk_flow_generate(struct rk_batch **out, struct rk_flow_context *ctx,
                                   const struct rk_flow_prompts *prompts, struct rk_json *sampling,
                                   struct rk_json *metrics)
{
    struct rk_driver_result result = {0};
    struct rk_batch *batch = NULL;
    int64_t num_padded;
    struct rk_status *st = make_batch(&batch, ctx, prompts);

    *out = NULL;
    if (!st)
        st = rk_flow_pad(&batch, &num_padded, rk_flow_num_replicas(ctx, RK_ROLE_ROLLOUT));
    if (st)
        rk_json_free(sampling);
    else
        st = call(&result, ctx, batch, sampling);
    if (!st)
        st = rk_flow_check_version(ctx, result.batch);
    if (!st)
        st = unpad(out, &result, num_padded);
    if (!st)
        rk_flow_merge_metrics(metrics, result.metrics);
    rk_driver_result_fini(&result);
    rk_batch_destroy(batch);
    return st;
}
