/* Capture of the experts of generated tokens, for router replay. The routers of all layers write their
 * choices of a step to a fixed place on the device, also in graphs; the choices of the step's tokens follow
 * its sampled tokens to the host. Every tp rank has those of all tokens. */
#include "engine/rollout/rollout.h"

#include <string.h>

#include "base/rk_assert.h"

/* Bytes of the choices of one step. */
static struct rk_status *count_bytes(struct rk_route_capture *capture, int64_t num_tokens)
{
    size_t count;

    if (!rk_mul_size((size_t)num_tokens, (size_t)capture->routes_per_token, &count) ||
        !rk_mul_size(count, sizeof(uint16_t), &capture->bytes))
        return RK_FAIL(RK_RESOURCE_EXHAUSTED,
                       "%s: the experts of rollout.max_num_batched_tokens=%lld tokens do not fit into memory",
                       RK_KNOB_CAPTURES_ROUTES, (long long)num_tokens);
    return NULL;
}

struct rk_status *rk_route_capture_init(struct rk_route_capture *capture, struct rk_model *model,
                                        const struct rk_rollout_config *config)
{
    struct rk_device *device = rk_stream_device(rk_model_stream(model));
    struct rk_model_routes routes = rk_model_get_routes(model);

    *capture = (struct rk_route_capture){.model = model};
    if (!config->captures_routes)
        return NULL;
    if (routes.num_layers == 0)
        return RK_FAIL(RK_FAILED_PRECONDITION, "%s=true: expected false, the model has no layers of experts",
                       RK_KNOB_CAPTURES_ROUTES);
    capture->routes_per_token = routes.num_layers * routes.num_experts_per_tok;
    RK_TRY(count_bytes(capture, config->max_num_batched_tokens));
    for (int i = 0; i < 2; i++) {
        void *memory;

        RK_TRY(rk_device_host_alloc(device, &memory, capture->bytes, "experts of tokens"));
        capture->host[i] = memory;
    }
    RK_TRY(rk_device_alloc(device, &capture->memory, capture->bytes, "experts of tokens"));
    rk_model_note_staging(model, (int64_t)capture->bytes, 2 * (int64_t)capture->bytes);
    return NULL;
}

void rk_route_capture_fini(struct rk_route_capture *capture)
{
    struct rk_device *device;

    if (!capture->model)
        return;
    device = rk_stream_device(rk_model_stream(capture->model));
    if (capture->memory)
        rk_model_note_staging(capture->model, -(int64_t)capture->bytes, -2 * (int64_t)capture->bytes);
    for (int i = 0; i < 2; i++)
        rk_device_host_free(device, capture->host[i]);
    rk_device_free(device, capture->memory);
    *capture = (struct rk_route_capture){0};
}

void rk_route_capture_begin(struct rk_route_capture *capture, const struct rk_rollout_result *results,
                            int64_t num_results)
{
    capture->is_wanted = false;
    for (int64_t i = 0; i < num_results; i++)
        capture->is_wanted = capture->is_wanted || results[i].routed_experts;
    if (capture->is_wanted)
        RK_ASSERT(capture->routes_per_token > 0);
}

rk_tensor_t rk_route_capture_tensor(const struct rk_route_capture *capture, int64_t num_tokens)
{
    if (capture->routes_per_token == 0)
        return (rk_tensor_t){0};
    return rk_tensor_2d(capture->memory, RK_DTYPE_I16, num_tokens, capture->routes_per_token);
}

struct rk_status *rk_route_capture_fetch(const struct rk_route_capture *capture, int turn, int64_t num_tokens)
{
    size_t bytes = (size_t)(num_tokens * capture->routes_per_token) * sizeof(uint16_t);

    if (!capture->is_wanted)
        return NULL;
    RK_ASSERT(bytes <= capture->bytes);
    return rk_stream_copy(rk_model_stream(capture->model), capture->host[turn], capture->memory, bytes,
                          RK_COPY_D2H);
}

void rk_route_capture_take(const struct rk_route_capture *capture, int turn, const struct rk_batcher *batcher,
                           const struct rk_step_plan *plan)
{
    const uint16_t *routes = capture->host[turn];

    for (int32_t i = 0; capture->is_wanted && i < plan->num_entries; i++) {
        const struct rk_step_entry *entry = &plan->entries[i];
        const struct rk_sequence *sequence = &batcher->sequences[entry->slot];
        int64_t count = entry->num_tokens * capture->routes_per_token;

        /* A finished sequence was computed once more, with its last token: whether this happens depends on
         * the pipelining of steps. */
        if (sequence->result->routed_experts && !sequence->is_finished)
            memcpy(sequence->result->routed_experts + entry->first * capture->routes_per_token, routes,
                   (size_t)count * sizeof(*routes));
        routes += count;
    }
}
