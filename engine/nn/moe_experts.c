/* The experts' GEMMs. The activation of a row is multiplied by its probability before the linear down
 * projection: the results then only need to be added, and the gradient of the probability does not need them
 * (Megatron-LM does the same; Hugging Face multiplies the result). */
#include "engine/nn/moe_internal.h"

static rk_tensor_t matrices(const struct rk_pass *pass, const struct rk_expert_weight *weight, void *buffer,
                            rk_dtype_t dtype)
{
    int64_t offset = rk_params_placement(pass->params, weight->param)->offset;

    return rk_tensor_3d((char *)buffer + (size_t)offset * rk_dtype_bytes(dtype), dtype, weight->num_experts,
                        weight->rows, weight->cols);
}

static struct rk_grouped_gemm_args product(const struct rk_pass *pass, const struct rk_expert_weight *weight,
                                           const struct rk_moe_rows *rows, rk_tensor_t x, rk_tensor_t y)
{
    return (struct rk_grouped_gemm_args){.y = y,
                                         .x = x,
                                         .w = matrices(pass, weight, pass->values, pass->dtype),
                                         .offsets = rows->offsets,
                                         .trans_w = true,
                                         .strict = pass->is_strict,
                                         .likely_rows = rows->likely_count};
}

static struct rk_status *multiply_back(const struct rk_pass *pass, const struct rk_expert_weight *weight,
                                       const struct rk_moe_rows *rows, rk_tensor_t dy, rk_tensor_t dx)
{
    return rk_grouped_gemm(pass->stream, &(struct rk_grouped_gemm_args){
                                             .y = dx,
                                             .x = dy,
                                             .w = matrices(pass, weight, pass->values, pass->dtype),
                                             .offsets = rows->offsets,
                                             .likely_rows = rows->likely_count,
                                         });
}

static struct rk_status *add_gradients(const struct rk_pass *pass, const struct rk_expert_weight *weight,
                                       const struct rk_moe_rows *rows, rk_tensor_t x, rk_tensor_t dy)
{
    if (!rk_params_is_trained(pass->params, weight->param))
        return NULL;
    return rk_grouped_gemm_wgrad(pass->stream,
                                 &(struct rk_grouped_gemm_wgrad_args){
                                     .dw = matrices(pass, weight, pass->grads, pass->grad_dtype),
                                     .dy = dy,
                                     .x = x,
                                     .offsets = rows->offsets,
                                     .overwrites_dw = rows->overwrites_grads,
                                 });
}

static struct rk_status *clear(const struct rk_pass *pass, const struct rk_expert_weight *weight)
{
    rk_tensor_t grads;

    if (!rk_params_is_trained(pass->params, weight->param))
        return NULL;
    grads = matrices(pass, weight, pass->grads, pass->grad_dtype);
    return rk_stream_zero(pass->stream, grads.data, rk_tensor_bytes(grads));
}

static rk_tensor_t gate_of(const struct rk_moe *moe, rk_tensor_t gate_up)
{
    return rk_tensor_cols(gate_up, 0, moe->intermediate_size);
}

static rk_tensor_t up_of(const struct rk_moe *moe, rk_tensor_t gate_up)
{
    return rk_tensor_cols(gate_up, moe->intermediate_size, moe->intermediate_size);
}

struct rk_status *rk_moe_experts_fwd(const struct rk_pass *pass, const struct rk_moe *moe,
                                     const struct rk_moe_rows *rows, rk_tensor_t x, rk_tensor_t activated,
                                     rk_tensor_t out)
{
    struct rk_grouped_gemm_args up = product(pass, &moe->gate_up, rows, x, rows->gate_up);
    struct rk_grouped_gemm_args down = product(pass, &moe->down, rows, activated, out);
    bool is_fused = out.data && !pass->keeps_activations;

    if (is_fused) {
        up.swiglu = activated;
        up.probs = rows->probs;
    }
    RK_TRY(rk_grouped_gemm(pass->stream, &up));
    if (!out.data)
        return NULL;
    if (!is_fused)
        RK_TRY(rk_swiglu_fwd(pass->stream, &(struct rk_swiglu_fwd_args){.y = activated,
                                                                        .gate = gate_of(moe, rows->gate_up),
                                                                        .up = up_of(moe, rows->gate_up),
                                                                        .probs = rows->probs,
                                                                        .count = rows->count}));
    return rk_grouped_gemm(pass->stream, &down);
}

struct rk_status *rk_moe_experts_bwd_down(const struct rk_pass *pass, const struct rk_moe *moe,
                                          const struct rk_moe_rows *rows, rk_tensor_t dout,
                                          rk_tensor_t activated, rk_tensor_t dprobs)
{
    rk_tensor_t gate = gate_of(moe, rows->gate_up), up = up_of(moe, rows->gate_up);

    /* activated: first its gradient, then the recomputed activation */
    RK_TRY(multiply_back(pass, &moe->down, rows, dout, activated));
    RK_TRY(rk_swiglu_bwd(pass->stream, &(struct rk_swiglu_bwd_args){.dgate = gate,
                                                                    .dup = up,
                                                                    .dy = activated,
                                                                    .gate = gate,
                                                                    .up = up,
                                                                    .y = activated,
                                                                    .probs = rows->probs,
                                                                    .dprobs = dprobs,
                                                                    .count = rows->count}));
    return add_gradients(pass, &moe->down, rows, activated, dout);
}

struct rk_status *rk_moe_experts_bwd_up(const struct rk_pass *pass, const struct rk_moe *moe,
                                        const struct rk_moe_rows *rows, rk_tensor_t x, rk_tensor_t dx)
{
    RK_TRY(add_gradients(pass, &moe->gate_up, rows, x, rows->gate_up));
    return multiply_back(pass, &moe->gate_up, rows, rows->gate_up, dx);
}

struct rk_status *rk_moe_experts_clear_grads(const struct rk_pass *pass, const struct rk_moe *moe)
{
    RK_TRY(clear(pass, &moe->gate_up));
    return clear(pass, &moe->down);
}
