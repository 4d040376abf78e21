/* Router replay: the experts that tokens go to, given with the packed tokens instead of chosen by the
 * routers; and what the routers choose. */
#include "engine/model/model.h"

#include <string.h>

#include "base/rk_assert.h"

struct rk_status *rk_replay_read(struct rk_model_replay *out, const char *mode)
{
    static const char *const names[RK_REPLAY_COUNT] = {
        [RK_REPLAY_DISABLED] = "disabled", [RK_REPLAY_R2] = "R2", [RK_REPLAY_R3] = "R3"};

    for (int i = 0; i < RK_REPLAY_COUNT; i++) {
        if (strcmp(mode, names[i]) == 0) {
            out->mode = (rk_replay_t)i;
            return NULL;
        }
    }
    return RK_FAIL(RK_INVALID_ARGUMENT, "%s=%.32s: expected disabled, R2 or R3", RK_KNOB_REPLAY, mode);
}

struct rk_model_replay rk_model_get_replay(const struct rk_model *model)
{
    return model->core->replay;
}

struct rk_status *rk_model_check_replay(const struct rk_model_core *core)
{
    if (core->num_routes > 0)
        return NULL;
    if (core->replay.mode != RK_REPLAY_DISABLED)
        return RK_FAIL(RK_FAILED_PRECONDITION, "%s=%s: expected disabled, the model has no layers of experts",
                       RK_KNOB_REPLAY, core->replay.mode == RK_REPLAY_R2 ? "R2" : "R3");
    if (core->replay.compares)
        return RK_FAIL(RK_FAILED_PRECONDITION, RK_KNOB_REPLAY_COMPARES
                       "=true of init_model, which compares with experts of a rollout "
                       "with " RK_KNOB_CAPTURES_ROUTES
                       "=true: expected false, the model has no layers of experts");
    return NULL;
}

struct rk_model_routes rk_model_get_routes(const struct rk_model *model)
{
    const struct rk_model_core *core = model->core;

    if (core->num_routes == 0)
        return (struct rk_model_routes){0};
    return (struct rk_model_routes){.num_layers = core->num_routes,
                                    .num_experts_per_tok = core->config.moe.num_experts_per_tok,
                                    .num_experts = core->config.moe.num_experts};
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

/* --- what the routers choose --- */

struct rk_status *rk_model_begin_chosen(const struct rk_model_core *core, struct rk_pass *pass)
{
    int64_t columns = core->num_routes * core->config.moe.num_experts_per_tok;

    RK_ASSERT(columns > 0);
    if (pass->num_tokens == 0)
        return NULL;
    /* Zeros: with etp=1 a rank routes only its rows. */
    RK_TRY(rk_step_2d(pass->kept, &pass->routes.chosen, RK_DTYPE_I16, pass->num_tokens, columns));
    return rk_stream_zero(pass->stream, pass->routes.chosen.data, rk_tensor_bytes(pass->routes.chosen));
}

/* source_of for a pass that has begun. */
static int64_t token_of(const struct rk_pass *pass, int64_t num_tokens, int64_t t)
{
    const struct rk_context *context = pass->context;

    if (context)
        return context->tokens[rk_comm_group_rank(context->group) * pass->num_tokens + t];
    return t < num_tokens ? t : -1;
}

/* Copies the choices of one layer. */
static void take_route(uint16_t *out, const struct rk_pass *pass, const struct rk_model_core *core,
                       const uint16_t *chosen, int64_t route)
{
    int64_t top_k = core->config.moe.num_experts_per_tok;

    for (int64_t t = 0; t < pass->num_tokens; t++) {
        int64_t token = token_of(pass, pass->num_packed, t);

        if (token >= 0)
            memcpy(out + (token * core->num_routes + route) * top_k,
                   chosen + (t * core->num_routes + route) * top_k, (size_t)top_k * sizeof(*out));
    }
}

struct rk_status *rk_model_download_chosen(const struct rk_model_core *core, const struct rk_chunk *chunk,
                                           const struct rk_pass *pass, uint16_t *out)
{
    rk_tensor_t tensor = pass->routes.chosen;
    uint16_t *chosen;

    if (!tensor.data)
        return NULL;
    RK_TRY(rk_pass_alloc_host(pass, &chosen, rk_tensor_num_elements(tensor), sizeof(*chosen)));
    RK_TRY(rk_stream_copy(pass->stream, chosen, tensor.data, rk_tensor_bytes(tensor), RK_COPY_D2H));
    RK_TRY(rk_stream_sync(pass->stream));
    for (int64_t b = chunk->begin; b < chunk->end; b++) {
        if (core->blocks[b].decl.has_routes)
            take_route(out, pass, core, chosen, core->blocks[b].route);
    }
    return NULL;
}

/* Ids merged at a time: 1 MiB. */
#define MERGED_IDS ((int64_t)1 << 18)

/* ids: the maximum over the ranks of each group. */
static struct rk_status *merge(const struct rk_pass *pass, struct rk_comm_group *const *groups,
                               int num_groups, rk_tensor_t ids, int32_t *host)
{
    RK_TRY(rk_stream_copy(pass->stream, ids.data, host, rk_tensor_bytes(ids), RK_COPY_H2D));
    for (int i = 0; i < num_groups; i++)
        RK_TRY(rk_comm_all_reduce(groups[i], pass->stream, ids, RK_REDUCE_MAX));
    RK_TRY(rk_stream_copy(pass->stream, host, ids.data, rk_tensor_bytes(ids), RK_COPY_D2H));
    return rk_stream_sync(pass->stream);
}

/* The groups whose ranks have different layers or tokens. */
static int list_groups(const struct rk_model_core *core, struct rk_comm_group **groups)
{
    static const rk_mesh_group_kind_t kinds[] = {RK_GROUP_TP, RK_GROUP_CP, RK_GROUP_PP};
    int count = 0;

    for (size_t i = 0; i < RK_ARRAY_LEN(kinds); i++) {
        groups[count] = rk_mesh_comms_group(core->mesh, kinds[i]);
        count += rk_comm_group_size(groups[count]) > 1;
    }
    return count;
}

struct rk_status *rk_model_merge_routes(struct rk_model *model, uint16_t *chosen, int64_t num_tokens)
{
    int64_t total = num_tokens * model->core->num_routes * model->core->config.moe.num_experts_per_tok;
    struct rk_comm_group *groups[3];
    int num_groups = list_groups(model->core, groups);
    int64_t room = RK_MIN(total, MERGED_IDS);
    struct rk_pass pass;
    rk_tensor_t ids;
    int32_t *host;

    if (num_groups == 0 || total == 0)
        return NULL;
    rk_model_begin_pass(model, &pass);
    RK_TRY(rk_pass_alloc_host(&pass, &host, room, sizeof(*host)));
    RK_TRY(rk_step_1d(pass.arena, &ids, RK_DTYPE_I32, room));
    for (int64_t begin = 0; begin < total; begin += room) {
        int64_t count = RK_MIN(room, total - begin);

        for (int64_t i = 0; i < count; i++)
            host[i] = chosen[begin + i];
        RK_TRY(merge(&pass, groups, num_groups, rk_tensor_rows(ids, 0, count), host));
        for (int64_t i = 0; i < count; i++)
            chosen[begin + i] = (uint16_t)host[i];
    }
    return NULL;
}
