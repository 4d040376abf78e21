/* A layer of experts: y = sum over a token's experts e of p_e * down_e(silu(gate_e x) * up_e x), plus the
 * shared expert's result.
 *
 *   x -> tokens --choose--> ids, probs --sort--> hand out -> rows -> experts -> rows -> collect --+--> sum
 *          \                                                                                     /
 *           +------------------------------- shared expert --------------------------------------
 *
 * Every tp rank has all tokens, chooses alike, and has its part of the width of every expert and of the
 * shared one: what experts and shared expert give are summands, of which there is one sum over tp (and with
 * sequence parallelism every rank gets its rows). The gradients of probabilities, and with them those of the
 * router, are summands too.
 *
 * Nothing of a token depends on other tokens: products give a row the bits that it has alone, and rows of a
 * token are added by ascending expert. */
#include "engine/nn/moe_internal.h"

static struct rk_status *make_saved(const struct rk_pass *pass, const struct rk_block *block,
                                    struct rk_moe_saved *saved)
{
    const struct rk_moe *moe = block->own;

    *saved = (struct rk_moe_saved){0};
    RK_TRY(rk_activation_make(pass, block, RK_MOE_LOGITS, &saved->logits));
    RK_TRY(rk_activation_make(pass, block, RK_MOE_IDS, &saved->ids));
    RK_TRY(rk_activation_make(pass, block, RK_MOE_PLACES, &saved->places));
    RK_TRY(rk_activation_make(pass, block, RK_MOE_TOKENS, &saved->tokens));
    RK_TRY(rk_activation_make(pass, block, RK_MOE_OFFSETS, &saved->offsets));
    RK_TRY(rk_activation_make(pass, block, RK_MOE_ROW_PROBS, &saved->row_probs));
    RK_TRY(rk_activation_make(pass, block, RK_MOE_GATE_UP, &saved->gate_up));
    if (moe->shared.intermediate_size == 0)
        return NULL;
    RK_TRY(rk_activation_make(pass, block, RK_MOE_SHARED_GATE_UP, &saved->shared_gate_up));
    if (!moe->config.has_shared_gate)
        return NULL;
    RK_TRY(rk_activation_make(pass, block, RK_MOE_SHARED_SCORE, &saved->shared_score));
    return rk_activation_make(pass, block, RK_MOE_SHARED_PROB, &saved->shared_prob);
}

static rk_tensor_t as_list(rk_tensor_t t)
{
    return rk_tensor_1d(t.data, t.dtype, rk_tensor_num_elements(t));
}

static struct rk_moe_rows rows_of(const struct rk_moe_saved *saved)
{
    return (struct rk_moe_rows){
        .offsets = as_list(saved->offsets), .probs = as_list(saved->row_probs), .gate_up = saved->gate_up};
}

/* y [T, hidden_size] = what the experts make of x: a summand over tp. y none: what backward needs only. */
static struct rk_status *experts_fwd(const struct rk_pass *pass, const struct rk_block *block, rk_tensor_t x,
                                     const struct rk_moe_saved *saved, rk_tensor_t y)
{
    const struct rk_moe *moe = block->own;
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);
    struct rk_moe_rows rows = rows_of(saved);
    rk_tensor_t probs, x_rows, activated = {0};

    RK_TRY(rk_activation_make(pass, block, RK_MOE_PROBS, &probs));
    RK_TRY(rk_activation_make(pass, block, RK_MOE_ROWS, &x_rows));
    if (y.data)
        RK_TRY(rk_activation_make(pass, block, RK_MOE_ACTIVATED, &activated));
    RK_TRY(rk_moe_choose(pass, moe, x, saved, probs));
    RK_TRY(rk_moe_sort_tokens(pass, saved, probs));
    RK_TRY(rk_moe_hand_out(pass, saved, x, x_rows));
    RK_TRY(rk_moe_experts_fwd(pass, moe, &rows, x_rows, activated, y.data ? x_rows : (rk_tensor_t){0}));
    if (y.data)
        RK_TRY(rk_moe_collect(pass, saved, x_rows, y));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}

static struct rk_status *moe_forward(struct rk_pass *pass, const struct rk_block *block, rk_tensor_t x,
                                     rk_tensor_t out, void *block_saved)
{
    /* strict: the sum of a row may not depend on how many rows there are. */
    rk_reduce_op_t op = pass->is_strict ? RK_REDUCE_ORDERED_SUM : RK_REDUCE_SUM;
    const struct rk_moe *moe = block->own;
    struct rk_moe_saved *saved = block_saved;
    struct rk_step_mark mark;
    rk_tensor_t y = {0};

    RK_TRY(make_saved(pass, block, saved));
    mark = rk_step_arena_mark(pass->arena);
    RK_TRY(rk_sp_gather(pass, x, &x));
    if (out.data)
        RK_TRY(rk_sp_begin_sum(pass, out, &y));
    RK_TRY(experts_fwd(pass, block, x, saved, y));
    if (moe->shared.intermediate_size > 0)
        RK_TRY(rk_moe_shared_fwd(pass, block, x, saved, y));
    if (out.data)
        RK_TRY(rk_sp_sum(pass, y, out, op));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}

/* dx [T, hidden_size] of experts and router. The rows of dy, of x and of dx follow one another in one place.
 */
static struct rk_status *experts_bwd(const struct rk_pass *pass, const struct rk_block *block,
                                     const struct rk_moe_saved *saved, rk_tensor_t x, rk_tensor_t dy,
                                     rk_tensor_t dx)
{
    const struct rk_moe *moe = block->own;
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);
    struct rk_moe_rows rows = rows_of(saved);
    rk_tensor_t drow_probs, dprobs, drows, activated;

    RK_TRY(rk_activation_make(pass, block, RK_MOE_DROW_PROBS, &drow_probs));
    RK_TRY(rk_activation_make(pass, block, RK_MOE_DPROBS, &dprobs));
    RK_TRY(rk_activation_make(pass, block, RK_MOE_DROWS, &drows));
    RK_TRY(rk_activation_make(pass, block, RK_MOE_DACTIVATED, &activated));
    RK_TRY(rk_moe_hand_out(pass, saved, dy, drows));
    RK_TRY(rk_moe_experts_bwd_down(pass, moe, &rows, drows, activated, as_list(drow_probs)));
    RK_TRY(rk_moe_hand_out(pass, saved, x, drows));
    RK_TRY(rk_moe_experts_bwd_up(pass, moe, &rows, drows, drows));
    RK_TRY(rk_moe_collect(pass, saved, drows, dx));
    RK_TRY(rk_moe_collect_dprobs(pass, saved, drow_probs, dprobs));
    RK_TRY(rk_moe_choose_bwd(pass, block, saved, x, dprobs, dx));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}

static struct rk_status *moe_backward(struct rk_pass *pass, const struct rk_block *block,
                                      const void *block_saved, rk_tensor_t x, rk_tensor_t dout,
                                      rk_tensor_t dx)
{
    const struct rk_moe *moe = block->own;
    const struct rk_moe_saved *saved = block_saved;
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);
    rk_tensor_t dtokens;

    RK_TRY(rk_sp_gather(pass, x, &x));
    RK_TRY(rk_sp_gather(pass, dout, &dout));
    RK_TRY(rk_sp_begin_sum(pass, dx, &dtokens));
    RK_TRY(experts_bwd(pass, block, saved, x, dout, dtokens));
    if (moe->shared.intermediate_size > 0)
        RK_TRY(rk_moe_shared_bwd(pass, block, saved, x, dout, dtokens));
    RK_TRY(rk_sp_sum(pass, dtokens, dx, RK_REDUCE_SUM));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}

const struct rk_block_ops rk_block_moe = {
    .name = "moe",
    .abi = RK_BLOCK_ABI,
    .block_bytes = sizeof(struct rk_moe),
    .saved_bytes = sizeof(struct rk_moe_saved),
    .declare = rk_moe_declare,
    .forward = moe_forward,
    .backward = moe_backward,
};
