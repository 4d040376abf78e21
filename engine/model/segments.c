/* Which tokens of a pass count for the metrics of routers. */
#include "engine/model/model_internal.h"

/* Padding has no token in the caller's micro-batch. */
static bool is_padding(const struct rk_pass *pass, const struct rk_packed *packed, int64_t t)
{
    const struct rk_context *context = pass->context;

    if (context)
        return context->tokens[rk_comm_group_rank(context->group) * pass->num_tokens + t] < 0;
    return t >= packed->num_tokens;
}

struct rk_status *rk_model_upload_segments(struct rk_pass *pass, const struct rk_packed *packed)
{
    int32_t *segments;

    RK_TRY(rk_pass_alloc_host(pass, &segments, pass->num_tokens, sizeof(*segments)));
    for (int64_t t = 0; t < pass->num_tokens; t++)
        segments[t] = is_padding(pass, packed, t) ? -1 : 0;
    return rk_step_upload(pass->kept, pass->stream, &pass->routers.segments, RK_DTYPE_I32, segments,
                          pass->num_tokens);
}
