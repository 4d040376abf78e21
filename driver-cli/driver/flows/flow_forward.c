/* Forward passes over rows of the step. */
#include "driver-cli/driver/flows/flows_internal.h"
#include "driver-cli/driver/job_internal.h"
#include "proto/rk_methods.h"

static struct rk_status *make_plan(struct rk_flow_context *ctx, const struct rk_flow_pass *pass,
                                   struct rk_plan *plan)
{
    struct rk_plan_request request = {.num_rows = pass->num_rows, .seqlens = pass->seqlens};

    return rk_flow_plan(plan, ctx, rk_role_parse(pass->role), &pass->micro, request);
}

struct rk_status *rk_flow_run_pass(struct rk_flow_context *ctx, const struct rk_flow_pass *pass,
                                   struct rk_driver_result *result)
{
    static const char *const of_responses[] = {"input_ids", "attention_mask", "position_ids", "responses",
                                               NULL};
    static const char *const no_meta[] = {NULL};
    struct rk_batch *tokens = NULL;
    struct rk_plan plan;
    struct rk_status *st = make_plan(ctx, pass, &plan);

    if (!st)
        st = rk_batch_select(&tokens, pass->batch, pass->columns ? pass->columns : of_responses, no_meta);
    if (st) {
        rk_json_free(pass->options);
        return st;
    }
    st = rk_flow_call(ctx, pass->role, pass->method, tokens, pass->options, &plan, result);
    rk_batch_destroy(tokens);
    return st;
}

struct rk_status *rk_flow_check_finite(const struct rk_flow_context *ctx, const char *name)
{
    const void *values, *mask;

    RK_TRY(rk_flow_column(ctx, name, RK_DTYPE_F32, ctx->response_length, &values));
    RK_TRY(rk_flow_column(ctx, "response_mask", RK_DTYPE_I64, ctx->response_length, &mask));
    return rk_check_finite(name, values, mask, ctx->num_rows, ctx->response_length);
}
