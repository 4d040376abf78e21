/* A layer of experts: y = sum over a token's experts e of p_e * down_e(silu(gate_e x) * up_e x), plus the
 * shared expert's result.
 *
 *   x -> tokens --choose--> ids, probs --sort--> hand out -> rows -> experts -> rows -> collect --+--> sum
 *          \                                                                                     /
 *           +------------------------------- shared expert --------------------------------------
 *
 * Every tp rank has all tokens, makes the same choices, and has its part of the width of every expert and of
 * the shared one: the results of experts and shared expert are summands of one sum over tp (with sequence
 * parallelism every rank receives its rows). The gradients of probabilities, and therefore those of the
 * router, are summands too.
 *
 * With etp < tp and sequence parallelism the width of an expert is split over etp ranks of tp only, and these
 * route their own rows of the residual stream: with etp=1 each tp rank has whole experts and routes its
 * rows, otherwise the etp ranks gather their rows, and results are summands of a sum over them. The shared
 * expert is split over tp as before. The gradient of the router is again a summand: that of these rows.
 *
 * With ep > 1 the rows are exchanged with the ranks of their experts (moe_exchange.c); the shared expert
 * computes meanwhile.
 *
 * With etp=1 and without sequence parallelism, as in generation, all tp ranks have all tokens. If ep is tp,
 * the experts are divided: every rank sorts and computes the rows of its own experts only, and nothing is
 * exchanged. Results are then summands of the sum over tp, like parts of the width. In strict numerics the
 * rows of all ranks are put together first and added by ascending expert: the bits of etp=1 with sequence
 * parallelism.
 *
 * The result of a token does not depend on other tokens: GEMMs give a row the same bits in any batch, and
 * rows of a token are added by ascending expert. */
#include "engine/nn/moe_internal.h"

/* A copy of the pass with the number of tokens that this rank routes. */
static struct rk_pass pass_of_experts(const struct rk_pass *pass, const struct rk_moe *moe)
{
    struct rk_pass experts = *pass;

    if (moe->is_by_rows) {
        int32_t etp_size = rk_comm_group_size(pass->etp);

        experts.num_tokens = pass->splits_rows ? etp_size * pass->num_rows : pass->num_rows;
        experts.routes.begin =
            pass->splits_rows ? rk_comm_group_rank(pass->tp) / etp_size * experts.num_tokens : 0;
    }
    return experts;
}

/* A copy of the pass for gathering and sums over the ranks that split an expert. */
static struct rk_pass pass_of_parts(const struct rk_pass *experts)
{
    struct rk_pass parts = *experts;

    parts.tp = experts->etp;
    parts.splits_rows = experts->splits_rows && rk_comm_group_size(parts.tp) > 1;
    return parts;
}

static bool exchanges(const struct rk_pass *pass, const struct rk_moe *moe)
{
    return pass->ep && !rk_moe_is_divided(pass, moe);
}

/* A tensor with K rows per token. A model whose packed passes exchange the rows does not declare it, but
 * generation needs it. */
static struct rk_status *make_rows(const struct rk_pass *pass, const struct rk_block *block, int32_t i,
                                   int64_t columns, rk_tensor_t *out)
{
    const struct rk_moe *moe = block->own;

    if (!moe->is_by_rows || !rk_moe_is_divided(pass, moe))
        return rk_activation_make(pass, block, i, out);
    return rk_step_2d(pass->arena, out, pass->dtype, pass->num_tokens * moe->config.num_experts_per_tok,
                      columns);
}

/* Allocates the buffers of an expert exchange. Forward-only passes use them as scratch. */
static struct rk_status *make_received(const struct rk_pass *pass, const struct rk_block *block,
                                       struct rk_moe_saved *saved)
{
    RK_TRY(rk_activation_make(pass, block, RK_MOE_GATE_UP, &saved->gate_up));
    RK_TRY(rk_activation_make(pass, block, RK_MOE_RECEIVED_X, &saved->received.x));
    RK_TRY(rk_activation_make(pass, block, RK_MOE_RECEIVED_PROBS, &saved->received.probs));
    RK_TRY(rk_activation_make(pass, block, RK_MOE_RECEIVED_ORDER, &saved->received.order));
    RK_TRY(rk_activation_make(pass, block, RK_MOE_RECEIVED_PLACES, &saved->received.places));
    return rk_activation_make(pass, block, RK_MOE_RECEIVED_OFFSETS, &saved->received.offsets);
}

static struct rk_status *make_saved_of_experts(const struct rk_pass *pass, const struct rk_block *block,
                                               struct rk_moe_saved *saved)
{
    const struct rk_moe *moe = block->own;

    RK_TRY(rk_activation_make(pass, block, RK_MOE_LOGITS, &saved->logits));
    RK_TRY(rk_activation_make(pass, block, RK_MOE_IDS, &saved->ids));
    RK_TRY(rk_activation_make(pass, block, RK_MOE_PLACES, &saved->places));
    RK_TRY(rk_activation_make(pass, block, RK_MOE_TOKENS, &saved->tokens));
    RK_TRY(rk_activation_make(pass, block, RK_MOE_OFFSETS, &saved->offsets));
    if (rk_moe_is_divided(pass, moe))
        saved->offsets = rk_tensor_rows(saved->offsets, 0, moe->gate_up.num_experts + 1);
    RK_TRY(rk_activation_make(pass, block, RK_MOE_ROW_PROBS, &saved->row_probs));
    if (exchanges(pass, moe))
        return moe->keeps_rows ? make_received(pass, block, saved) : NULL;
    return make_rows(pass, block, RK_MOE_GATE_UP, 2 * moe->intermediate_size, &saved->gate_up);
}

static struct rk_status *make_saved(const struct rk_pass *pass, const struct rk_block *block,
                                    struct rk_moe_saved *saved)
{
    const struct rk_moe *moe = block->own;
    struct rk_pass experts = pass_of_experts(pass, moe);

    *saved = (struct rk_moe_saved){0};
    RK_TRY(make_saved_of_experts(&experts, block, saved));
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

static struct rk_moe_rows rows_of(const struct rk_pass *pass, const struct rk_moe *moe,
                                  const struct rk_moe_saved *saved)
{
    int64_t num_rows = rk_tensor_num_elements(saved->tokens);

    return (struct rk_moe_rows){
        .offsets = as_list(saved->offsets),
        .probs = as_list(saved->row_probs),
        .gate_up = saved->gate_up,
        .count = rk_moe_count_rows(pass, moe, saved),
        .likely_count = rk_moe_is_divided(pass, moe) ? num_rows / rk_comm_group_size(pass->ep) : 0,
    };
}

/* Replaces the rows of x by the experts' results. */
static struct rk_status *experts_of_rank_fwd(const struct rk_pass *pass, const struct rk_block *block,
                                             const struct rk_moe_saved *saved, rk_tensor_t x_rows,
                                             bool has_out)
{
    struct rk_moe_rows rows = rows_of(pass, block->own, saved);
    const struct rk_moe *moe = block->own;
    rk_tensor_t activated = {0};

    if (has_out)
        RK_TRY(make_rows(pass, block, RK_MOE_ACTIVATED, moe->intermediate_size, &activated));
    return rk_moe_experts_fwd(pass, block->own, &rows, x_rows, activated,
                              has_out ? x_rows : (rk_tensor_t){0});
}

static struct rk_status *collect(const struct rk_pass *pass, const struct rk_moe *moe,
                                 const struct rk_moe_saved *saved, rk_tensor_t rows, rk_tensor_t y)
{
    return pass->is_strict && rk_moe_is_divided(pass, moe) ? rk_moe_collect_divided(pass, saved, rows, y)
                                                           : rk_moe_collect(pass, saved, rows, y);
}

/* y [T, hidden_size] = the experts' results for x: a summand over tp, unless experts are whole and, if they
 * are divided, numerics strict. y none: computes only what backward needs. beside: work beside an exchange,
 * or NULL. */
static struct rk_status *experts_fwd(const struct rk_pass *pass, const struct rk_block *block, rk_tensor_t x,
                                     struct rk_moe_saved *saved, rk_tensor_t y,
                                     const struct rk_moe_beside *beside)
{
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);
    bool has_exchange = exchanges(pass, block->own);
    rk_tensor_t probs, x_rows;

    RK_TRY(rk_activation_make(pass, block, RK_MOE_PROBS, &probs));
    RK_TRY(rk_activation_make(pass, block, RK_MOE_ROWS, &x_rows));
    RK_TRY(rk_moe_choose(pass, block, x, saved, probs));
    RK_TRY(rk_moe_sort_tokens(pass, block->own, saved, probs));
    if (y.data || !has_exchange)
        RK_TRY(rk_moe_hand_out(pass, block->own, saved, x, x_rows));
    if (!has_exchange)
        RK_TRY(experts_of_rank_fwd(pass, block, saved, x_rows, y.data != NULL));
    else if (y.data)
        RK_TRY(rk_moe_exchange_fwd(pass, block, saved, x_rows, beside));
    if (y.data)
        RK_TRY(collect(pass, block->own, saved, x_rows, y));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}

/* Whether the shared expert computes beside an exchange. */
static bool has_beside(const struct rk_pass *pass, const struct rk_moe *moe)
{
    return exchanges(pass, moe) && moe->shared.intermediate_size > 0;
}

/* Routed and shared experts over the same tokens. y none: computes only what backward needs. */
static struct rk_status *forward_by_tokens(const struct rk_pass *pass, const struct rk_block *block,
                                           struct rk_moe_saved *saved, rk_tensor_t x, rk_tensor_t out,
                                           rk_reduce_op_t op)
{
    struct rk_moe_shared_run shared = {.pass = pass, .block = block, .saved = saved};
    const struct rk_moe_beside beside = {rk_moe_shared_fwd_run, &shared};
    const struct rk_moe *moe = block->own;
    bool is_beside = has_beside(pass, moe) && out.data;
    rk_tensor_t y = {0};

    RK_TRY(rk_sp_gather(pass, x, &x));
    shared.x = x;
    if (out.data)
        RK_TRY(rk_sp_begin_sum(pass, out, &y));
    if (is_beside)
        RK_TRY(rk_moe_shared_fwd_begin(&shared));
    RK_TRY(experts_fwd(pass, block, x, saved, y, is_beside ? &beside : NULL));
    if (is_beside)
        RK_TRY(rk_moe_shared_fwd_end(&shared, y));
    else if (moe->shared.intermediate_size > 0)
        RK_TRY(rk_moe_shared_fwd(pass, block, x, saved, y));
    return out.data ? rk_sp_sum(pass, y, out, op) : NULL;
}

/* Zeroed summands of `rows`, in memory of their own. */
static struct rk_status *begin_sum_apart(const struct rk_pass *pass, rk_tensor_t rows, rk_tensor_t *tokens)
{
    RK_TRY(rk_step_2d(pass->arena, tokens, rows.dtype, pass->num_tokens, rows.shape[1]));
    return rk_stream_zero(pass->stream, tokens->data, rk_tensor_bytes(*tokens));
}

/* out += the sum over tp of `tokens`. */
static struct rk_status *add_sum(const struct rk_pass *pass, rk_tensor_t tokens, rk_tensor_t out,
                                 rk_reduce_op_t op)
{
    rk_tensor_t rows = tokens;

    if (pass->splits_rows)
        RK_TRY(rk_step_2d(pass->arena, &rows, out.dtype, out.shape[0], out.shape[1]));
    RK_TRY(rk_sp_sum(pass, tokens, rows, op));
    return rk_axpby(pass->stream, &(struct rk_axpby_args){.y = out, .x = rows, .alpha = 1, .beta = 1});
}

/* The routed experts: over the rows of the etp ranks that split them. */
static struct rk_status *experts_fwd_by_rows(const struct rk_pass *experts, const struct rk_block *block,
                                             rk_tensor_t x, struct rk_moe_saved *saved, rk_tensor_t out,
                                             rk_reduce_op_t op, const struct rk_moe_beside *beside)
{
    struct rk_pass parts = pass_of_parts(experts);
    rk_tensor_t y = {0};

    RK_TRY(rk_sp_gather(&parts, x, &x));
    if (out.data)
        RK_TRY(rk_sp_begin_sum(&parts, out, &y));
    RK_TRY(experts_fwd(experts, block, x, saved, y, beside));
    return out.data ? rk_sp_sum(&parts, y, out, op) : NULL;
}

/* Routed experts, and the shared one over all tokens. */
static struct rk_status *forward_by_rows(const struct rk_pass *pass, const struct rk_block *block,
                                         struct rk_moe_saved *saved, rk_tensor_t x, rk_tensor_t out,
                                         rk_reduce_op_t op)
{
    struct rk_moe_shared_run shared = {.pass = pass, .block = block, .saved = saved};
    const struct rk_moe_beside beside = {rk_moe_shared_fwd_run, &shared};
    const struct rk_moe *moe = block->own;
    struct rk_pass experts = pass_of_experts(pass, moe);
    bool is_beside = has_beside(pass, moe) && out.data;
    rk_tensor_t y = {0};

    if (is_beside) {
        RK_TRY(rk_sp_gather(pass, x, &shared.x));
        RK_TRY(rk_moe_shared_fwd_begin(&shared));
    }
    RK_TRY(experts_fwd_by_rows(&experts, block, x, saved, out, op, is_beside ? &beside : NULL));
    if (moe->shared.intermediate_size == 0)
        return NULL;
    if (!is_beside)
        RK_TRY(rk_sp_gather(pass, x, &shared.x));
    if (out.data)
        RK_TRY(begin_sum_apart(pass, out, &y));
    RK_TRY(is_beside ? rk_moe_shared_fwd_end(&shared, y)
                     : rk_moe_shared_fwd(pass, block, shared.x, saved, y));
    return out.data ? add_sum(pass, y, out, op) : NULL;
}

static struct rk_status *moe_forward(struct rk_pass *pass, const struct rk_block *block, rk_tensor_t x,
                                     rk_tensor_t out, void *block_saved)
{
    /* strict: the sum of a row must not depend on the number of rows. */
    rk_reduce_op_t op = pass->is_strict ? RK_REDUCE_ORDERED_SUM : RK_REDUCE_SUM;
    const struct rk_moe *moe = block->own;
    bool is_by_rows = moe->is_wide && (pass->is_strict || !rk_moe_is_divided(pass, moe));
    struct rk_step_mark mark;

    RK_TRY(make_saved(pass, block, block_saved));
    mark = rk_step_arena_mark(pass->arena);
    RK_TRY(is_by_rows ? forward_by_rows(pass, block, block_saved, x, out, op)
                      : forward_by_tokens(pass, block, block_saved, x, out, op));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}

/* Replaces the rows of dy in drows by the rows of dx. The rows of dy, of x and of dx successively use the
 * same memory. */
static struct rk_status *experts_of_rank_bwd(const struct rk_pass *pass, const struct rk_block *block,
                                             const struct rk_moe_saved *saved, rk_tensor_t x,
                                             rk_tensor_t drows, rk_tensor_t drow_probs)
{
    struct rk_moe_rows rows = rows_of(pass, block->own, saved);
    rk_tensor_t activated;

    rows.overwrites_grads = pass->overwrites_grads;
    RK_TRY(rk_activation_make(pass, block, RK_MOE_DACTIVATED, &activated));
    RK_TRY(rk_moe_experts_bwd_down(pass, block->own, &rows, drows, activated, as_list(drow_probs)));
    RK_TRY(rk_moe_hand_out(pass, block->own, saved, x, drows));
    return rk_moe_experts_bwd_up(pass, block->own, &rows, drows, drows);
}

/* Backward pass of experts that are on other ranks too. */
static struct rk_status *experts_of_all_bwd(const struct rk_pass *pass, const struct rk_block *block,
                                            const struct rk_moe_saved *saved, rk_tensor_t x,
                                            rk_tensor_t drows, rk_tensor_t drow_probs,
                                            const struct rk_moe_beside *beside)
{
    struct rk_moe_exchange_grads grads = {.dy_rows = drows, .drow_probs = drow_probs};

    RK_TRY(rk_step_2d(pass->arena, &grads.x_rows, drows.dtype, drows.shape[0], drows.shape[1]));
    if (!saved->has_received)
        RK_TRY(rk_moe_hand_out(pass, block->own, saved, x, grads.x_rows));
    return rk_moe_exchange_bwd(pass, block, saved, &grads, beside);
}

/* dx [T, hidden_size] of experts and router. */
static struct rk_status *experts_bwd(const struct rk_pass *pass, const struct rk_block *block,
                                     const struct rk_moe_saved *saved, rk_tensor_t x, rk_tensor_t dy,
                                     rk_tensor_t dx, const struct rk_moe_beside *beside)
{
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);
    rk_tensor_t drow_probs, dprobs, drows;

    RK_TRY(rk_activation_make(pass, block, RK_MOE_DROW_PROBS, &drow_probs));
    RK_TRY(rk_activation_make(pass, block, RK_MOE_DPROBS, &dprobs));
    RK_TRY(rk_activation_make(pass, block, RK_MOE_DROWS, &drows));
    RK_TRY(rk_moe_hand_out(pass, block->own, saved, dy, drows));
    RK_TRY(exchanges(pass, block->own) ? experts_of_all_bwd(pass, block, saved, x, drows, drow_probs, beside)
                                       : experts_of_rank_bwd(pass, block, saved, x, drows, drow_probs));
    RK_TRY(rk_moe_collect(pass, saved, drows, dx));
    RK_TRY(rk_moe_collect_dprobs(pass, block->own, saved, drow_probs, dprobs));
    RK_TRY(rk_moe_choose_bwd(pass, block, saved, x, dprobs, dx));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}

static struct rk_status *backward_by_tokens(const struct rk_pass *pass, const struct rk_block *block,
                                            const struct rk_moe_saved *saved, rk_tensor_t x, rk_tensor_t dout,
                                            rk_tensor_t dx)
{
    struct rk_moe_shared_run shared = {.pass = pass, .block = block, .saved = saved};
    const struct rk_moe_beside beside = {rk_moe_shared_bwd_run, &shared};
    const struct rk_moe *moe = block->own;
    bool is_beside = has_beside(pass, moe);
    rk_tensor_t dtokens;

    RK_TRY(rk_sp_gather(pass, x, &x));
    RK_TRY(rk_sp_gather(pass, dout, &dout));
    shared.x = x;
    shared.dy = dout;
    RK_TRY(rk_sp_begin_sum(pass, dx, &dtokens));
    if (is_beside)
        RK_TRY(rk_moe_shared_bwd_begin(&shared));
    RK_TRY(experts_bwd(pass, block, saved, x, dout, dtokens, is_beside ? &beside : NULL));
    if (is_beside)
        RK_TRY(rk_moe_shared_bwd_end(&shared, dtokens));
    else if (moe->shared.intermediate_size > 0)
        RK_TRY(rk_moe_shared_bwd(pass, block, saved, x, dout, dtokens));
    return rk_sp_sum(pass, dtokens, dx, RK_REDUCE_SUM);
}

static struct rk_status *experts_bwd_by_rows(const struct rk_pass *experts, const struct rk_block *block,
                                             const struct rk_moe_saved *saved, rk_tensor_t x,
                                             rk_tensor_t dout, rk_tensor_t dx,
                                             const struct rk_moe_beside *beside)
{
    struct rk_pass parts = pass_of_parts(experts);
    rk_tensor_t dtokens;

    RK_TRY(rk_sp_gather(&parts, x, &x));
    RK_TRY(rk_sp_gather(&parts, dout, &dout));
    RK_TRY(rk_sp_begin_sum(&parts, dx, &dtokens));
    RK_TRY(experts_bwd(experts, block, saved, x, dout, dtokens, beside));
    return rk_sp_sum(&parts, dtokens, dx, RK_REDUCE_SUM);
}

static struct rk_status *backward_by_rows(const struct rk_pass *pass, const struct rk_block *block,
                                          const struct rk_moe_saved *saved, rk_tensor_t x, rk_tensor_t dout,
                                          rk_tensor_t dx)
{
    struct rk_moe_shared_run shared = {.pass = pass, .block = block, .saved = saved};
    const struct rk_moe_beside beside = {rk_moe_shared_bwd_run, &shared};
    const struct rk_moe *moe = block->own;
    struct rk_pass experts = pass_of_experts(pass, moe);
    bool is_beside = has_beside(pass, moe);
    rk_tensor_t dtokens;

    if (is_beside) {
        RK_TRY(rk_sp_gather(pass, x, &shared.x));
        RK_TRY(rk_sp_gather(pass, dout, &shared.dy));
        RK_TRY(rk_moe_shared_bwd_begin(&shared));
    }
    RK_TRY(experts_bwd_by_rows(&experts, block, saved, x, dout, dx, is_beside ? &beside : NULL));
    if (moe->shared.intermediate_size == 0)
        return NULL;
    if (!is_beside) {
        RK_TRY(rk_sp_gather(pass, x, &shared.x));
        RK_TRY(rk_sp_gather(pass, dout, &shared.dy));
    }
    RK_TRY(begin_sum_apart(pass, dx, &dtokens));
    RK_TRY(is_beside ? rk_moe_shared_bwd_end(&shared, dtokens)
                     : rk_moe_shared_bwd(pass, block, saved, shared.x, shared.dy, dtokens));
    return add_sum(pass, dtokens, dx, RK_REDUCE_SUM);
}

static struct rk_status *moe_backward(struct rk_pass *pass, const struct rk_block *block,
                                      const void *block_saved, rk_tensor_t x, rk_tensor_t dout,
                                      rk_tensor_t dx)
{
    const struct rk_moe *moe = block->own;
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);

    RK_TRY(moe->is_wide && !rk_moe_is_divided(pass, moe)
               ? backward_by_rows(pass, block, block_saved, x, dout, dx)
               : backward_by_tokens(pass, block, block_saved, x, dout, dx));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}

const struct rk_block_ops rk_block_moe = {
    .name = "moe",
    .block_bytes = sizeof(struct rk_moe),
    .saved_bytes = sizeof(struct rk_moe_saved),
    .declare = rk_moe_declare,
    .forward = moe_forward,
    .backward = moe_backward,
};
