/* The shared expert: a gated MLP of all tokens, split over tp like a dense one, whose result is added to that
 * of the experts. With a separate gate the sigmoid of a score weights each token, as probabilities do
 * (moe_experts.c). */
#include "engine/nn/moe_internal.h"

static rk_tensor_t gate_of(const struct rk_moe *moe, rk_tensor_t gate_up)
{
    return rk_tensor_cols(gate_up, 0, moe->shared.intermediate_size);
}

static rk_tensor_t up_of(const struct rk_moe *moe, rk_tensor_t gate_up)
{
    return rk_tensor_cols(gate_up, moe->shared.intermediate_size, moe->shared.intermediate_size);
}

static rk_tensor_t as_list(rk_tensor_t t)
{
    return t.data ? rk_tensor_1d(t.data, t.dtype, t.shape[0]) : t;
}

static struct rk_status *add(const struct rk_pass *pass, rk_tensor_t part, rk_tensor_t y)
{
    return rk_axpby(pass->stream, &(struct rk_axpby_args){.y = y, .x = part, .alpha = 1, .beta = 1});
}

struct rk_status *rk_moe_shared_fwd(const struct rk_pass *pass, const struct rk_block *block, rk_tensor_t x,
                                    const struct rk_moe_saved *saved, rk_tensor_t y)
{
    const struct rk_moe *moe = block->own;
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);
    rk_tensor_t activated, part;

    if (moe->config.has_shared_gate)
        RK_TRY(rk_moe_gate(pass, &moe->shared.score, x, saved->shared_score, saved->shared_prob));
    RK_TRY(rk_linear_fwd(pass, &moe->shared.gate_up, x, saved->shared_gate_up));
    if (!y.data)
        return NULL;
    RK_TRY(rk_activation_make(pass, block, RK_MOE_SHARED_ACTIVATED, &activated));
    RK_TRY(rk_activation_make(pass, block, RK_MOE_SHARED_OUT, &part));
    RK_TRY(
        rk_swiglu_fwd(pass->stream, &(struct rk_swiglu_fwd_args){.y = activated,
                                                                 .gate = gate_of(moe, saved->shared_gate_up),
                                                                 .up = up_of(moe, saved->shared_gate_up),
                                                                 .probs = as_list(saved->shared_prob)}));
    RK_TRY(rk_linear_fwd(pass, &moe->shared.down, activated, part));
    RK_TRY(add(pass, part, y));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}

static struct rk_status *mlp_bwd(const struct rk_pass *pass, const struct rk_block *block,
                                 const struct rk_moe_saved *saved, rk_tensor_t x, rk_tensor_t dy,
                                 rk_tensor_t dprob, rk_tensor_t dx)
{
    const struct rk_moe *moe = block->own;
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);
    rk_tensor_t gate = gate_of(moe, saved->shared_gate_up), up = up_of(moe, saved->shared_gate_up);
    rk_tensor_t activated, part;

    RK_TRY(rk_activation_make(pass, block, RK_MOE_SHARED_DACTIVATED, &activated));
    RK_TRY(rk_activation_make(pass, block, RK_MOE_DX, &part));
    RK_TRY(rk_linear_bwd_input(pass, &moe->shared.down, dy, activated));
    RK_TRY(rk_swiglu_bwd(pass->stream, &(struct rk_swiglu_bwd_args){.dgate = gate,
                                                                    .dup = up,
                                                                    .dy = activated,
                                                                    .gate = gate,
                                                                    .up = up,
                                                                    .y = activated,
                                                                    .probs = as_list(saved->shared_prob),
                                                                    .dprobs = as_list(dprob)}));
    RK_TRY(rk_linear_bwd_weight(pass, &moe->shared.down, activated, dy));
    RK_TRY(rk_linear_bwd(pass, &moe->shared.gate_up, x, saved->shared_gate_up, part));
    RK_TRY(add(pass, part, dx));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}

struct rk_status *rk_moe_shared_bwd(const struct rk_pass *pass, const struct rk_block *block,
                                    const struct rk_moe_saved *saved, rk_tensor_t x, rk_tensor_t dy,
                                    rk_tensor_t dx)
{
    const struct rk_moe *moe = block->own;
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);
    rk_tensor_t dprob = {0};

    if (moe->config.has_shared_gate)
        RK_TRY(rk_activation_make(pass, block, RK_MOE_SHARED_DPROB, &dprob));
    RK_TRY(mlp_bwd(pass, block, saved, x, dy, dprob, dx));
    if (moe->config.has_shared_gate)
        RK_TRY(rk_moe_gate_bwd(pass, block, saved, x, dprob, dx));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}
