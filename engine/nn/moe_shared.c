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

/* --- forward --- */

static struct rk_status *score_fwd(const struct rk_pass *pass, const struct rk_block *block, rk_tensor_t x,
                                   const struct rk_moe_saved *saved)
{
    const struct rk_moe *moe = block->own;

    return moe->config.has_shared_gate
               ? rk_moe_gate(pass, &moe->shared.score, x, saved->shared_score, saved->shared_prob)
               : NULL;
}

struct rk_status *rk_moe_shared_fwd_begin(struct rk_moe_shared_run *run)
{
    RK_TRY(score_fwd(run->pass, run->block, run->x, run->saved));
    RK_TRY(rk_activation_make(run->pass, run->block, RK_MOE_SHARED_ACTIVATED, &run->activated));
    return rk_activation_make(run->pass, run->block, RK_MOE_SHARED_OUT, &run->part);
}

/* The projection and its activation: fused when no backward pass follows and there is no gate. */
static struct rk_status *project(const struct rk_pass *pass, const struct rk_moe *moe, rk_tensor_t x,
                                 const struct rk_moe_saved *saved, rk_tensor_t activated)
{
    rk_tensor_t gate_up = saved->shared_gate_up;

    if (!pass->keeps_activations && !moe->config.has_shared_gate)
        return rk_linear_swiglu_fwd(pass, &moe->shared.gate_up, x, gate_up, activated);
    RK_TRY(rk_linear_fwd(pass, &moe->shared.gate_up, x, gate_up));
    return rk_swiglu_fwd(pass->stream, &(struct rk_swiglu_fwd_args){.y = activated,
                                                                    .gate = gate_of(moe, gate_up),
                                                                    .up = up_of(moe, gate_up),
                                                                    .probs = as_list(saved->shared_prob)});
}

struct rk_status *rk_moe_shared_fwd_run(void *user)
{
    const struct rk_moe_shared_run *run = user;
    const struct rk_moe *moe = run->block->own;
    const struct rk_moe_saved *saved = run->saved;

    RK_TRY(project(run->pass, moe, run->x, saved, run->activated));
    return rk_linear_fwd(run->pass, &moe->shared.down, run->activated, run->part);
}

struct rk_status *rk_moe_shared_fwd_end(const struct rk_moe_shared_run *run, rk_tensor_t y)
{
    return add(run->pass, run->part, y);
}

struct rk_status *rk_moe_shared_fwd(const struct rk_pass *pass, const struct rk_block *block, rk_tensor_t x,
                                    const struct rk_moe_saved *saved, rk_tensor_t y)
{
    struct rk_moe_shared_run run = {.pass = pass, .block = block, .saved = saved, .x = x};
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);
    const struct rk_moe *moe = block->own;

    if (!y.data) {
        RK_TRY(score_fwd(pass, block, x, saved));
        return rk_linear_fwd(pass, &moe->shared.gate_up, x, saved->shared_gate_up);
    }
    RK_TRY(rk_moe_shared_fwd_begin(&run));
    RK_TRY(rk_moe_shared_fwd_run(&run));
    RK_TRY(rk_moe_shared_fwd_end(&run, y));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}

/* --- backward --- */

static struct rk_status *make_dprob(struct rk_moe_shared_run *run)
{
    const struct rk_moe *moe = run->block->own;

    return moe->config.has_shared_gate
               ? rk_activation_make(run->pass, run->block, RK_MOE_SHARED_DPROB, &run->dprob)
               : NULL;
}

static struct rk_status *make_parts(struct rk_moe_shared_run *run)
{
    RK_TRY(rk_activation_make(run->pass, run->block, RK_MOE_SHARED_DACTIVATED, &run->activated));
    return rk_activation_make(run->pass, run->block, RK_MOE_DX, &run->part);
}

struct rk_status *rk_moe_shared_bwd_begin(struct rk_moe_shared_run *run)
{
    RK_TRY(make_dprob(run));
    return make_parts(run);
}

struct rk_status *rk_moe_shared_bwd_run(void *user)
{
    const struct rk_moe_shared_run *run = user;
    const struct rk_moe *moe = run->block->own;
    const struct rk_moe_saved *saved = run->saved;
    rk_tensor_t gate = gate_of(moe, saved->shared_gate_up), up = up_of(moe, saved->shared_gate_up);

    RK_TRY(rk_linear_bwd_input(run->pass, &moe->shared.down, run->dy, run->activated));
    RK_TRY(rk_swiglu_bwd(run->pass->stream, &(struct rk_swiglu_bwd_args){.dgate = gate,
                                                                         .dup = up,
                                                                         .dy = run->activated,
                                                                         .gate = gate,
                                                                         .up = up,
                                                                         .y = run->activated,
                                                                         .probs = as_list(saved->shared_prob),
                                                                         .dprobs = as_list(run->dprob)}));
    RK_TRY(rk_linear_bwd_weight(run->pass, &moe->shared.down, run->activated, run->dy));
    return rk_linear_bwd(run->pass, &moe->shared.gate_up, run->x, saved->shared_gate_up, run->part);
}

static struct rk_status *score_bwd(const struct rk_moe_shared_run *run, rk_tensor_t dx)
{
    const struct rk_moe *moe = run->block->own;

    return moe->config.has_shared_gate
               ? rk_moe_gate_bwd(run->pass, run->block, run->saved, run->x, run->dprob, dx)
               : NULL;
}

struct rk_status *rk_moe_shared_bwd_end(const struct rk_moe_shared_run *run, rk_tensor_t dx)
{
    RK_TRY(add(run->pass, run->part, dx));
    return score_bwd(run, dx);
}

struct rk_status *rk_moe_shared_bwd(const struct rk_pass *pass, const struct rk_block *block,
                                    const struct rk_moe_saved *saved, rk_tensor_t x, rk_tensor_t dy,
                                    rk_tensor_t dx)
{
    struct rk_moe_shared_run run = {.pass = pass, .block = block, .saved = saved, .x = x, .dy = dy};
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena), parts;

    RK_TRY(make_dprob(&run));
    parts = rk_step_arena_mark(pass->arena);
    RK_TRY(make_parts(&run));
    RK_TRY(rk_moe_shared_bwd_run(&run));
    RK_TRY(add(pass, run.part, dx));
    rk_step_arena_release(pass->arena, parts);
    RK_TRY(score_bwd(&run, dx));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}
