/* Forward passes over packed sequences of which only the outputs of the head are needed. */
#include "engine/pipeline/pipeline.h"

static uint32_t wanted_of(const struct rk_head_arrays *arrays)
{
    uint32_t wanted = 0;

    for (int i = 0; i < RK_HEAD_OUTPUT_COUNT; i++)
        wanted |= arrays->of[i] ? RK_HEAD_BIT(i) : 0;
    return arrays->ids.num_ids > 0 ? wanted | RK_HEAD_BIT(RK_HEAD_LOG_PROBS) : wanted;
}

/* Micro-batches of which only the outputs are needed. */
struct forward {
    const struct rk_forward_work *work;
    struct rk_forward_micro micro; /* the last one that was bound */
};

static struct rk_status *bind_forward(void *user, int64_t i, struct rk_micro_desc *desc)
{
    struct forward *forward = user;
    struct rk_forward_micro *micro = &forward->micro;

    *micro = (struct rk_forward_micro){0};
    RK_TRY(forward->work->bind(forward->work->user, i, micro));
    *desc = (struct rk_micro_desc){
        .packed = micro->packed,
        .temperature = micro->temperature,
        .outputs = wanted_of(micro->out),
        .num_ids = micro->out->ids.num_ids,
        .ids = micro->out->ids.ids,
        .num_top_ids = micro->out->ids.top_ids ? micro->out->ids.num_ids : 0,
        .hooks = micro->hooks,
        .chosen_experts = micro->chosen_experts,
    };
    return NULL;
}

static struct rk_status *download(void *user, int64_t i, struct rk_micro *micro)
{
    struct forward *forward = user;

    RK_TRY(rk_micro_download(micro, forward->micro.out));
    return forward->work->done ? forward->work->done(forward->work->user, i) : NULL;
}

struct rk_status *rk_model_forward_all(struct rk_model *model, const struct rk_forward_work *work)
{
    struct forward forward = {.work = work};

    return rk_pipeline_run(
        model, &(struct rk_pipeline_work){
                   .count = work->count, .bind = bind_forward, .handle_outputs = download, .user = &forward});
}

static struct rk_status *bind_one(void *user, int64_t i, struct rk_forward_micro *micro)
{
    (void)i;
    *micro = *(const struct rk_forward_micro *)user;
    return NULL;
}

struct rk_status *rk_model_forward(struct rk_model *model, const struct rk_packed *packed, double temperature,
                                   const struct rk_engine_hooks *hooks, const struct rk_head_arrays *out)
{
    struct rk_forward_micro micro = {
        .packed = packed, .temperature = temperature, .hooks = hooks, .out = out};

    return rk_model_forward_all(model,
                                &(struct rk_forward_work){.count = 1, .bind = bind_one, .user = &micro});
}
