/* The state of one micro-batch in a chunk of the model. */
#include "engine/model/model.h"

#include "base/rk_assert.h"
#include "kernels/rk_trace.h"

struct rk_status *rk_micro_check(const struct rk_model *model, const struct rk_micro_desc *desc)
{
    RK_TRY(rk_model_check_outputs(model, desc->outputs));
    RK_TRY(rk_model_check_temperature(desc->temperature));
    return rk_model_check_packed(model, desc->packed);
}

struct rk_status *rk_micro_begin(struct rk_micro *micro, struct rk_model *model,
                                 const struct rk_pass_memory *memory, const struct rk_micro_desc *desc)
{
    struct rk_head_saved *head = &micro->head;

    *micro = (struct rk_micro){.model = model,
                               .num_tokens = desc->packed->num_tokens,
                               .chosen_experts = desc->chosen_experts,
                               .outputs = desc->outputs};
    RK_TRY(rk_micro_check(model, desc));
    RK_TRY(rk_inverse_temperature(&head->inv_temperature, desc->temperature));
    RK_TRY(rk_model_begin_packed(model, memory, &micro->pass, desc->packed));
    if (micro->chosen_experts)
        RK_TRY(rk_model_begin_chosen(model->core, &micro->pass));
    micro->pass.hooks = desc->hooks;
    if (desc->grads) {
        micro->pass.grads = desc->grads;
        micro->pass.grad_dtype = desc->grad_dtype;
    }
    if (desc->router_sums.data) {
        micro->pass.routers.sums = desc->router_sums;
        RK_TRY(rk_model_upload_segments(model->core, &micro->pass, desc->packed, desc->totals));
    }
    RK_TRY(rk_labels_select(&micro->labels, &micro->pass, desc->packed));
    head->index = micro->labels.index;
    head->labels = micro->labels.labels;
    head->num_top_ids = desc->num_top_ids;
    return rk_labels_upload_ids(&micro->labels, &micro->pass, desc->ids, desc->num_ids, &head->ids);
}

/* Clears the memory of one direction, unless it also holds the saved tensors. */
static void begin_direction(struct rk_micro *micro)
{
    if (micro->pass.arena != micro->pass.kept)
        rk_step_arena_reset(micro->pass.arena);
}

static struct rk_status *run_forward(struct rk_micro *micro, const struct rk_chunk *chunk, rk_tensor_t in,
                                     bool keeps, rk_tensor_t *out)
{
    const struct rk_model_core *core = micro->model->core;
    rk_tensor_t hidden;

    begin_direction(micro);
    RK_TRY(rk_trunk_fwd(core, chunk, &micro->pass, in, &hidden, keeps ? &micro->trunk : NULL));
    *out = chunk->has_head ? (rk_tensor_t){0} : hidden;
    if (!chunk->has_head)
        return NULL;
    return core->head.ops->forward(&micro->pass, &core->head, hidden, micro->outputs, &micro->head,
                                   &micro->out);
}

struct rk_status *rk_micro_forward(struct rk_micro *micro, const struct rk_chunk *chunk, rk_tensor_t in,
                                   bool keeps, rk_tensor_t *out)
{
    struct rk_status *st;

    rk_trace_begin_phase(micro->pass.stream, "forward");
    st = run_forward(micro, chunk, in, keeps, out);
    if (!st && micro->chosen_experts)
        st = rk_model_download_chosen(micro->model->core, chunk, &micro->pass, micro->chosen_experts);
    rk_trace_end_phase(micro->pass.stream);
    return st;
}

struct rk_status *rk_micro_download(struct rk_micro *micro, const struct rk_head_arrays *arrays)
{
    return rk_head_download(&micro->labels, &micro->pass, &micro->out, arrays, micro->num_tokens);
}

struct rk_status *rk_micro_upload(struct rk_micro *micro, const struct rk_head_arrays *grads,
                                  uint32_t differentiated)
{
    for (int i = 0; i < RK_HEAD_OUTPUT_COUNT; i++) {
        if (grads->of[i] && differentiated & RK_HEAD_BIT(i))
            RK_TRY(rk_labels_upload(&micro->labels, &micro->pass, grads->of[i], &micro->dout.of[i]));
    }
    return grads->ids.num_ids > 0
               ? rk_labels_upload_id_grads(&micro->labels, &micro->pass, &grads->ids, &micro->dout.ids)
               : NULL;
}

static struct rk_status *run_backward(struct rk_micro *micro, const struct rk_chunk *chunk, rk_tensor_t dout,
                                      rk_tensor_t *din)
{
    const struct rk_model_core *core = micro->model->core;
    struct rk_pass *pass = &micro->pass;

    begin_direction(micro);
    if (chunk->has_head) {
        RK_ASSERT(!dout.data);
        RK_TRY(rk_step_2d(pass->arena, &dout, pass->dtype, pass->num_rows, pass->hidden_size));
        RK_TRY(core->head.ops->backward(pass, &core->head, &micro->head, &micro->dout, dout));
    }
    return rk_trunk_bwd(core, chunk, pass, &micro->trunk, dout, din);
}

struct rk_status *rk_micro_backward(struct rk_micro *micro, const struct rk_chunk *chunk, rk_tensor_t dout,
                                    rk_tensor_t *din)
{
    struct rk_status *st;

    rk_trace_begin_phase(micro->pass.stream, "backward");
    st = run_backward(micro, chunk, dout, din);
    rk_trace_end_phase(micro->pass.stream);
    return st;
}
