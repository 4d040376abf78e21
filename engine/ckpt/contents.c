/* Contents of checkpoints, by name. */
#include "engine/ckpt/state_internal.h"

#include <string.h>

#include "base/rk_assert.h"

const char *rk_checkpoint_content_name(int32_t i)
{
    static const char *const names[RK_CHECKPOINT_CONTENTS_COUNT] = {"model", "optimizer", "extra", "hf_model",
                                                                    "gradients"};

    RK_ASSERT(i >= 0);
    RK_ASSERT(i < RK_CHECKPOINT_CONTENTS_COUNT);
    return names[i];
}

static uint32_t find_content(const char *name)
{
    for (int32_t i = 0; i < RK_CHECKPOINT_CONTENTS_COUNT; i++) {
        if (strcmp(name, rk_checkpoint_content_name(i)) == 0)
            return 1u << i;
    }
    return 0;
}

struct rk_status *rk_checkpoint_contents_read(uint32_t *out, const struct rk_json *names)
{
    *out = 0;
    if (rk_json_type(names) != RK_JSON_ARRAY || rk_json_count(names) == 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "contents: expected a list of model, optimizer, extra, hf_model, "
                                            "gradients");
    for (int64_t i = 0; i < rk_json_count(names); i++) {
        const char *name = rk_json_as_string(rk_json_at(names, i), "");
        uint32_t content = find_content(name);

        if (!content || *out & content)
            return RK_FAIL(
                RK_INVALID_ARGUMENT,
                "contents: '%.32s': expected model, optimizer, extra, hf_model, gradients, each once", name);
        *out |= content;
    }
    return NULL;
}

const char *rk_checkpoint_state_name(rk_checkpoint_state_t state)
{
    static const char *const names[] = {"none", "writing", "done"};

    RK_ASSERT(state <= RK_CHECKPOINT_DONE);
    return names[state];
}

/* Gradients stay in their buffers from a step until the next step begins. */
static struct rk_status *check_gradients(const struct rk_model *model)
{
    if (!model->trainer || !rk_trainer_has_sums(model->trainer))
        return RK_FAIL(RK_FAILED_PRECONDITION, "contents: gradients: expected a save between an optimizer "
                                               "step and the next forward_backward; no step has run since");
    if (model->core->offload & RK_PART_GRADIENTS)
        return RK_FAIL(RK_FAILED_PRECONDITION, "contents: gradients: expected megatron.grad_offload=false: "
                                               "offloaded gradients are released at the end of every call");
    return NULL;
}

struct rk_status *rk_model_check_contents(const struct rk_model *model, uint32_t contents)
{
    if (!model->owns_core)
        return RK_FAIL(RK_FAILED_PRECONDITION,
                       "the role shares the weights of another role; save the checkpoint of that role");
    if (contents & RK_CHECKPOINT_OPTIMIZER && !(model->trainer && model->trainer->config.ops))
        return RK_FAIL(RK_FAILED_PRECONDITION, "contents: optimizer: the role has no optimizer");
    return contents & RK_CHECKPOINT_GRADIENTS ? check_gradients(model) : NULL;
}

/* Type of the elements in a checkpoint: the same on all ranks, also on stages that train nothing. */
static rk_dtype_t dtype_of(const struct rk_model *model, int32_t kind, int64_t param)
{
    const struct rk_trainer *trainer = model->trainer;
    bool is_trained = trainer && rk_params_is_trained(&model->core->params, param);

    return is_trained && (kind > 0 || trainer->config.ops) ? trainer->grad_dtype : model->core->dtype;
}

uint64_t rk_model_checkpoint_bytes(const struct rk_model *model, uint32_t contents)
{
    const struct rk_param_table *params = &model->core->params;
    uint32_t kinds = rk_state_kinds(model, contents);
    uint64_t bytes = 0;

    for (int32_t kind = 0; kind < RK_STATE_KINDS_MAX; kind++) {
        for (int64_t i = 0; kinds >> kind & 1 && i < params->count; i++) {
            if (rk_state_has(model, kind, i))
                bytes += (uint64_t)rk_param_num_elements(rk_params_at(params, i)) *
                         rk_dtype_bytes(dtype_of(model, kind, i));
        }
    }
    if (contents & RK_CHECKPOINT_HF_MODEL)
        bytes += (uint64_t)rk_model_num_elements(model) * rk_dtype_bytes(model->core->dtype);
    return bytes;
}
