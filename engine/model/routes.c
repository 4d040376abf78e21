/* Router replay: the experts that tokens go to, given with the packed tokens instead of chosen by the
 * routers. */
#include "engine/model/model_internal.h"

#include "base/rk_assert.h"

struct rk_model_routes rk_model_get_routes(const struct rk_model *model)
{
    const struct rk_model_core *core = model->core;

    if (core->num_routes == 0)
        return (struct rk_model_routes){0};
    return (struct rk_model_routes){.num_layers = core->num_routes,
                                    .num_experts_per_tok = core->config.moe.num_experts_per_tok};
}

static struct rk_status *check_token(const struct rk_model_core *core, const uint16_t *experts, int64_t token,
                                     int64_t layer)
{
    int64_t top_k = core->config.moe.num_experts_per_tok, num_experts = core->config.moe.num_experts;

    for (int64_t k = 0; k < top_k; k++) {
        if (experts[k] >= num_experts)
            return RK_FAIL(
                RK_OUT_OF_RANGE,
                "routed_experts of packed token %lld, layer %lld of experts: %d, expected 0 to %lld",
                (long long)token, (long long)layer, experts[k], (long long)num_experts - 1);
        for (int64_t j = 0; j < k; j++) {
            if (experts[j] == experts[k])
                return RK_FAIL(
                    RK_OUT_OF_RANGE,
                    "routed_experts of packed token %lld, layer %lld of experts: %d twice, expected "
                    "%lld different experts",
                    (long long)token, (long long)layer, experts[k], (long long)top_k);
        }
    }
    return NULL;
}

struct rk_status *rk_model_check_routes(const struct rk_model_core *core, const struct rk_packed *packed)
{
    int64_t top_k = core->config.moe.num_experts_per_tok;

    if (!packed->routed_experts)
        return NULL;
    if (core->num_routes == 0)
        return RK_FAIL(RK_FAILED_PRECONDITION, "routed_experts: the model has no layers of experts");
    for (int64_t t = 0; t < packed->num_tokens; t++) {
        for (int64_t layer = 0; layer < core->num_routes; layer++)
            RK_TRY(
                check_token(core, packed->routed_experts + (t * core->num_routes + layer) * top_k, t, layer));
    }
    return NULL;
}

/* The packed token of token t of this rank; -1: padding. */
static int64_t source_of(const struct rk_packed *packed, const int32_t *sources, int64_t t)
{
    if (sources)
        return sources[t];
    return t < packed->num_tokens ? t : -1;
}

struct rk_status *rk_model_upload_routes(const struct rk_model_core *core, struct rk_pass *pass,
                                         const struct rk_packed *packed, const int32_t *sources)
{
    int64_t num_tokens = pass->num_tokens, top_k = core->config.moe.num_experts_per_tok;
    int64_t count = core->num_routes * num_tokens * top_k;
    int32_t *ids, *next; /* padding goes to the first experts */

    if (!packed->routed_experts)
        return NULL;
    RK_TRY(rk_pass_alloc_host(pass, &ids, count, sizeof(*ids)));
    next = ids;
    for (int64_t layer = 0; layer < core->num_routes; layer++) {
        for (int64_t t = 0; t < num_tokens; t++) {
            int64_t source = source_of(packed, sources, t);

            for (int64_t k = 0; k < top_k; k++)
                *next++ = source < 0
                              ? (int32_t)k
                              : packed->routed_experts[(source * core->num_routes + layer) * top_k + k];
        }
    }
    RK_TRY(rk_step_upload(pass->kept, pass->stream, &pass->routes.ids, RK_DTYPE_I32, ids, count));
    pass->routes.ids =
        rk_tensor_2d(pass->routes.ids.data, RK_DTYPE_I32, core->num_routes * num_tokens, top_k);
    pass->routes.num_tokens = num_tokens;
    return NULL;
}
