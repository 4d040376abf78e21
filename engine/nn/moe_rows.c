#include "engine/nn/moe_internal.h"

static rk_tensor_t as_column(rk_tensor_t t)
{
    return rk_tensor_2d(t.data, t.dtype, rk_tensor_num_elements(t), 1);
}

static rk_tensor_t as_list(rk_tensor_t t)
{
    return rk_tensor_1d(t.data, t.dtype, rk_tensor_num_elements(t));
}

struct rk_status *rk_moe_sort_tokens(const struct rk_pass *pass, const struct rk_moe *moe,
                                     const struct rk_moe_saved *saved, rk_tensor_t probs)
{
    bool is_divided = rk_moe_is_divided(pass, moe);

    RK_TRY(rk_moe_sort(pass->stream, &(struct rk_moe_sort_args){.offsets = as_list(saved->offsets),
                                                                .tokens = as_list(saved->tokens),
                                                                .places = saved->places,
                                                                .ids = saved->ids,
                                                                .first = is_divided ? moe->first_expert : 0,
                                                                .num_experts = moe->config.num_experts}));
    return rk_scatter_rows(pass->stream, &(struct rk_rows_args){.out = as_column(saved->row_probs),
                                                                .x = as_column(probs),
                                                                .index = as_list(saved->places),
                                                                .has_gaps = is_divided});
}

rk_tensor_t rk_moe_count_rows(const struct rk_pass *pass, const struct rk_moe *moe,
                              const struct rk_moe_saved *saved)
{
    if (!rk_moe_is_divided(pass, moe))
        return (rk_tensor_t){0};
    return as_list(rk_tensor_rows(saved->offsets, moe->gate_up.num_experts, 1));
}

struct rk_status *rk_moe_hand_out(const struct rk_pass *pass, const struct rk_moe *moe,
                                  const struct rk_moe_saved *saved, rk_tensor_t x, rk_tensor_t rows)
{
    return rk_gather_rows(pass->stream, &(struct rk_rows_args){.out = rows,
                                                               .x = x,
                                                               .index = as_list(saved->tokens),
                                                               .count = rk_moe_count_rows(pass, moe, saved)});
}

struct rk_status *rk_moe_collect(const struct rk_pass *pass, const struct rk_moe_saved *saved,
                                 rk_tensor_t rows, rk_tensor_t y)
{
    return rk_moe_combine(pass->stream, &(struct rk_moe_combine_args){
                                            .y = y, .x = rows, .places = saved->places, .ids = saved->ids});
}

/* A tensor as whole numbers, in the same memory. */
static rk_tensor_t as_bits(rk_tensor_t t)
{
    int64_t bytes = (int64_t)rk_tensor_bytes(t);

    return bytes % 4 == 0 ? rk_tensor_1d(t.data, RK_DTYPE_I32, bytes / 4)
                          : rk_tensor_1d(t.data, RK_DTYPE_U8, bytes);
}

/* A row comes from one rank, the others have zeros for it. They are added as whole numbers: a sum of floating
 * point numbers would turn -0 into 0. */
struct rk_status *rk_moe_collect_divided(const struct rk_pass *pass, const struct rk_moe_saved *saved,
                                         rk_tensor_t rows, rk_tensor_t y)
{
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);
    rk_tensor_t all;

    RK_TRY(rk_step_2d(pass->arena, &all, rows.dtype, rows.shape[0], rows.shape[1]));
    RK_TRY(rk_gather_rows(
        pass->stream,
        &(struct rk_rows_args){.out = all, .x = rows, .index = as_list(saved->places), .has_gaps = true}));
    RK_TRY(rk_comm_all_reduce(pass->tp, pass->stream, as_bits(all), RK_REDUCE_SUM));
    RK_TRY(rk_moe_combine(pass->stream, &(struct rk_moe_combine_args){.y = y, .x = all, .ids = saved->ids}));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}

struct rk_status *rk_moe_collect_dprobs(const struct rk_pass *pass, const struct rk_moe *moe,
                                        const struct rk_moe_saved *saved, rk_tensor_t drow_probs,
                                        rk_tensor_t dprobs)
{
    return rk_gather_rows(pass->stream, &(struct rk_rows_args){.out = as_column(dprobs),
                                                               .x = as_column(drow_probs),
                                                               .index = as_list(saved->places),
                                                               .has_gaps = rk_moe_is_divided(pass, moe)});
}
