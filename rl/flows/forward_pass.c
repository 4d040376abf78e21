/* Forward passes over rows of the step. */
#include "rl/flows/steps_internal.h"
#include "rl/rk_job.h"
#include "proto/rk_methods.h"

static struct rk_status *make_plan(struct rk_flow_context *ctx, const struct rk_flow_pass *pass,
                                   struct rk_plan *plan)
{
    struct rk_plan_request request = {.num_rows = pass->num_rows, .seqlens = pass->seqlens};

    return rk_flow_make_plan(plan, ctx, rk_role_parse(pass->role), &pass->micro, request);
}

static struct rk_status *select_tokens(struct rk_batch **out, const struct rk_flow_context *ctx,
                                       const struct rk_flow_pass *pass)
{
    static const char *const routes[] = {"routed_experts", NULL};
    bool takes_routes = rk_job_pass_takes_routes(ctx->job, rk_role_parse(pass->role));

    return rk_flow_select(out, pass->batch, pass->method, takes_routes ? routes : NULL);
}

bool rk_flow_is_started(const struct rk_flow_context *ctx, uint32_t role)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(ctx->passes); i++) {
        if (ctx->passes[i].future && ctx->passes[i].role == role)
            return true;
    }
    return false;
}

struct rk_future *rk_flow_take_started(struct rk_flow_context *ctx, uint32_t role)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(ctx->passes); i++) {
        struct rk_future *future = ctx->passes[i].future;

        if (!future || ctx->passes[i].role != role)
            continue;
        ctx->passes[i].future = NULL;
        return future;
    }
    return NULL;
}

struct rk_status *rk_flow_run_pass(struct rk_flow_context *ctx, const struct rk_flow_pass *pass,
                                   struct rk_driver_result *result)
{
    struct rk_future *started = rk_flow_take_started(ctx, rk_role_parse(pass->role));
    struct rk_batch *tokens = NULL;
    struct rk_plan plan;
    struct rk_status *st;

    if (started) {
        rk_json_free(pass->options);
        return rk_future_take(started, result);
    }
    st = make_plan(ctx, pass, &plan);
    if (!st)
        st = select_tokens(&tokens, ctx, pass);
    if (st) {
        rk_json_free(pass->options);
        return st;
    }
    st = rk_flow_call(ctx, pass->role, pass->method, tokens, pass->options, &plan, result);
    rk_batch_destroy(tokens);
    return st;
}

/* --- concurrent passes --- */

bool rk_flow_are_apart(const struct rk_mesh *a, const struct rk_mesh *b)
{
    struct rk_mesh_spec spec = rk_mesh_get_spec(a);
    struct rk_mesh_coords coords;

    for (int32_t i = 0; i < spec.num_ranks; i++) {
        if (rk_mesh_find_coords(b, spec.ranks[i], &coords))
            return false;
    }
    return true;
}

/* A free slot for a role that shares no rank with the started passes and the actor; -1: none. */
static int32_t find_place(const struct rk_flow_context *ctx, uint32_t role)
{
    const struct rk_mesh *mesh = rk_job_meshes_find(&ctx->meshes, role);
    int32_t place = -1;

    if (!rk_flow_are_apart(mesh, rk_job_meshes_find(&ctx->meshes, RK_ROLE_ACTOR)))
        return -1;
    for (int32_t i = 0; i < (int32_t)RK_ARRAY_LEN(ctx->passes); i++) {
        if (!ctx->passes[i].future)
            place = i;
        else if (!rk_flow_are_apart(mesh, rk_job_meshes_find(&ctx->meshes, ctx->passes[i].role)))
            return -1;
    }
    return place;
}

bool rk_flow_can_start(const struct rk_flow_context *ctx, uint32_t role)
{
    return find_place(ctx, role) >= 0;
}

struct rk_status *rk_flow_start_beside(bool *is_started, struct rk_flow_context *ctx,
                                       const struct rk_driver_call_args *call)
{
    uint32_t role = rk_role_parse(call->role);
    int32_t place = find_place(ctx, role);

    *is_started = false;
    if (place < 0)
        return NULL;
    ctx->passes[place].role = role;
    RK_TRY(rk_driver_start(&ctx->passes[place].future, ctx->driver, call));
    *is_started = true;
    return NULL;
}

struct rk_status *rk_flow_start_pass(struct rk_flow_context *ctx, const struct rk_flow_pass *pass)
{
    struct rk_driver_call_args call = {.role = pass->role, .method = pass->method, .options = pass->options};
    struct rk_batch *tokens = NULL;
    struct rk_plan plan;
    struct rk_status *st = NULL;
    bool is_started;

    if (find_place(ctx, rk_role_parse(pass->role)) < 0)
        goto out;
    RK_TRY_GOTO(st, make_plan(ctx, pass, &plan), out);
    RK_TRY_GOTO(st, select_tokens(&tokens, ctx, pass), out);
    call.batch = tokens;
    call.plan = &plan;
    st = rk_flow_start_beside(&is_started, ctx, &call);
out:
    rk_batch_destroy(tokens);
    rk_json_free(pass->options);
    return st;
}

void rk_flow_drop_passes(struct rk_flow_context *ctx)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(ctx->passes); i++) {
        if (ctx->passes[i].future) /* all stop at once, and are waited for below */
            rk_future_cancel(ctx->passes[i].future, "another call of the step failed");
    }
    for (size_t i = 0; i < RK_ARRAY_LEN(ctx->passes); i++) {
        rk_future_drop(ctx->passes[i].future);
        ctx->passes[i].future = NULL;
    }
}

static struct rk_status *start_role(struct rk_flow_context *ctx, uint32_t role,
                                    struct rk_flow_pass (*make)(const struct rk_flow_context *ctx))
{
    struct rk_flow_pass pass;

    if (!rk_job_role_needed(ctx->job, role))
        return NULL;
    pass = make(ctx);
    return rk_flow_start_pass(ctx, &pass);
}

static struct rk_status *start_passes(struct rk_flow_context *ctx)
{
    RK_TRY(start_role(ctx, RK_ROLE_REF, rk_flow_ref_pass));
    RK_TRY(rk_flow_start_teachers(ctx));
    return start_role(ctx, RK_ROLE_CRITIC, rk_flow_values_pass);
}

const struct rk_flow_step rk_step_start_passes = {"start_passes", NULL, NULL, start_passes};

struct rk_status *rk_flow_check_finite(const struct rk_flow_context *ctx, const char *name)
{
    const void *values, *mask;

    RK_TRY(rk_flow_column(ctx, name, RK_DTYPE_F32, ctx->response_length, &values));
    RK_TRY(rk_flow_column(ctx, "response_mask", RK_DTYPE_I64, ctx->response_length, &mask));
    return rk_check_finite(name, values, mask, ctx->num_rows, ctx->response_length);
}
