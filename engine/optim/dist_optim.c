/* One optimizer step: every rank updates its part of each bucket; the all-gather of a bucket's parameters
 * overlaps the update of the next bucket. */
#include "engine/optim/trainer.h"

#include "base/rk_fault.h"

/* Updates the segments of a bucket from *next on; sets *next to the first segment of the next bucket. */
static struct rk_status *update_bucket(struct rk_trainer *trainer, const struct rk_trainer_group *group,
                                       const struct rk_optim_step *step, int64_t bucket, int64_t *next)
{
    const struct rk_model_core *core = trainer->model->core;
    void *masters = core->masters.values;

    for (; *next < group->segments.count && group->segments.items[*next].bucket == bucket; (*next)++) {
        const struct rk_shard_segment *range = &group->segments.items[*next];
        struct rk_optim_segment segment = {
            .param = rk_flat_view(core->values, core->dtype, range->begin, range->count),
            .grad = rk_trainer_segment_grads(trainer, range),
            .weight_decay = range->decays ? step->config->weight_decay : 0,
        };

        segment.master =
            masters ? rk_flat_view(masters, trainer->grad_dtype, range->shard, range->count) : segment.param;
        for (int32_t s = 0; s < trainer->config.ops->num_states; s++)
            segment.states[s] =
                rk_flat_view(trainer->states[s], trainer->grad_dtype, range->shard, range->count);
        RK_TRY(trainer->config.ops->apply(core->stream, &segment, step));
    }
    return NULL;
}

static struct rk_status *update_group(struct rk_trainer *trainer, rk_grad_group_t index,
                                      const struct rk_optim_step *step)
{
    const struct rk_trainer_group *group = &trainer->groups[index];
    int64_t next = 0;

    for (int64_t b = 0; b < group->buckets.count; b++) {
        RK_TRY(update_bucket(trainer, group, step, b, &next));
        RK_TRY(rk_trainer_gather_params(trainer, index, &group->buckets.items[b]));
    }
    return NULL;
}

/* Simulates a defective device: flips a bit of a parameter that every rank holds; for tests. */
static struct rk_status *flip_bit(const struct rk_model_core *core)
{
    const struct rk_placement *placement = rk_params_placement(&core->params, core->final_norm.param);
    char *byte = (char *)core->values + (size_t)placement->offset * rk_dtype_bytes(core->dtype), value;

    RK_TRY(rk_stream_copy(core->stream, &value, byte, 1, RK_COPY_D2H));
    RK_TRY(rk_stream_sync(core->stream));
    value = (char)(value ^ 1);
    RK_TRY(rk_stream_copy(core->stream, byte, &value, 1, RK_COPY_H2D));
    return rk_stream_sync(core->stream);
}

struct rk_status *rk_trainer_apply(struct rk_trainer *trainer, const struct rk_optim_config *config,
                                   double grad_norm)
{
    struct rk_model_core *core = trainer->model->core;
    double scale = config->clip_grad > 0 ? config->clip_grad / (grad_norm + 1e-6) : 1;
    const struct rk_optim_step step = {
        .config = config,
        .grad_scale = RK_MIN(scale, 1),
        .step = trainer->applied_steps + 1,
    };

    if (RK_FAULT("optim.step"))
        return RK_FAIL(RK_INTERNAL, "fault point optim.step");
    for (int g = 0; g < RK_GRAD_GROUPS; g++)
        RK_TRY(update_group(trainer, (rk_grad_group_t)g, &step));
    RK_TRY(rk_trainer_wait(trainer));
    if (RK_FAULT("optim.flip"))
        RK_TRY(flip_bit(core));
    RK_TRY(rk_stream_sync(core->stream));
    trainer->applied_steps++;
    core->weight_version++;
    return NULL;
}
