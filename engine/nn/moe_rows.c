#include "engine/nn/moe_internal.h"

static rk_tensor_t as_column(rk_tensor_t t)
{
    return rk_tensor_2d(t.data, t.dtype, rk_tensor_num_elements(t), 1);
}

static rk_tensor_t as_list(rk_tensor_t t)
{
    return rk_tensor_1d(t.data, t.dtype, rk_tensor_num_elements(t));
}

struct rk_status *rk_moe_sort_tokens(const struct rk_pass *pass, const struct rk_moe_saved *saved,
                                     rk_tensor_t probs)
{
    RK_TRY(rk_moe_sort(pass->stream, &(struct rk_moe_sort_args){.offsets = as_list(saved->offsets),
                                                                .tokens = as_list(saved->tokens),
                                                                .places = saved->places,
                                                                .ids = saved->ids}));
    return rk_scatter_rows(pass->stream, &(struct rk_rows_args){.out = as_column(saved->row_probs),
                                                                .x = as_column(probs),
                                                                .index = as_list(saved->places)});
}

struct rk_status *rk_moe_hand_out(const struct rk_pass *pass, const struct rk_moe_saved *saved, rk_tensor_t x,
                                  rk_tensor_t rows)
{
    return rk_gather_rows(pass->stream,
                          &(struct rk_rows_args){.out = rows, .x = x, .index = as_list(saved->tokens)});
}

struct rk_status *rk_moe_collect(const struct rk_pass *pass, const struct rk_moe_saved *saved,
                                 rk_tensor_t rows, rk_tensor_t y)
{
    return rk_moe_combine(pass->stream, &(struct rk_moe_combine_args){
                                            .y = y, .x = rows, .places = saved->places, .ids = saved->ids});
}

struct rk_status *rk_moe_collect_dprobs(const struct rk_pass *pass, const struct rk_moe_saved *saved,
                                        rk_tensor_t drow_probs, rk_tensor_t dprobs)
{
    return rk_gather_rows(pass->stream, &(struct rk_rows_args){.out = as_column(dprobs),
                                                               .x = as_column(drow_probs),
                                                               .index = as_list(saved->places)});
}
