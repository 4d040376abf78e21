/* Gathers rows over the ranks of a cp group, for attention's keys and values (Llama 3, arXiv:2407.21783,
 * section 3.3.2), and reduces their gradients. */
#include "engine/nn/nn.h"

#include "base/rk_assert.h"

static int64_t num_columns(const rk_tensor_t *x, int num_x)
{
    int64_t count = 0;

    for (int i = 0; i < num_x; i++)
        count += x[i].shape[1];
    return count;
}

/* This rank's rows among the rows of all ranks, in rank order. */
static rk_tensor_t my_rows(const struct rk_pass *pass, rk_tensor_t all)
{
    RK_ASSERT(all.shape[0] == pass->num_tokens * rk_comm_group_size(pass->context->group));
    return rk_tensor_rows(all, rk_comm_group_rank(pass->context->group) * pass->num_tokens, pass->num_tokens);
}

struct rk_status *rk_context_gather(const struct rk_pass *pass, const rk_tensor_t *x, int num_x,
                                    rk_tensor_t whole)
{
    const struct rk_context *context = pass->context;
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);
    rk_tensor_t all, mine;
    int64_t begin = 0;

    RK_ASSERT(whole.shape[1] == num_columns(x, num_x));
    RK_TRY(rk_step_2d(pass->arena, &all, whole.dtype, context->num_keys, whole.shape[1]));
    mine = my_rows(pass, all);
    for (int i = 0; i < num_x; begin += x[i++].shape[1])
        RK_TRY(rk_copy_2d(pass->stream, &(struct rk_copy_2d_args){
                                            .out = rk_tensor_cols(mine, begin, x[i].shape[1]), .x = x[i]}));
    RK_TRY(rk_comm_all_gather(context->group, pass->stream, all, mine));
    RK_TRY(rk_gather_rows(pass->stream,
                          &(struct rk_rows_args){.out = whole, .x = all, .index = context->to_whole}));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}

struct rk_status *rk_context_reduce(const struct rk_pass *pass, rk_tensor_t whole, const rk_tensor_t *x,
                                    int num_x)
{
    const struct rk_context *context = pass->context;
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);
    rk_tensor_t all, mine;
    int64_t begin = 0;

    RK_ASSERT(whole.shape[1] == num_columns(x, num_x));
    RK_TRY(rk_step_2d(pass->arena, &all, whole.dtype, context->num_keys, whole.shape[1]));
    mine = my_rows(pass, all);
    RK_TRY(rk_gather_rows(pass->stream,
                          &(struct rk_rows_args){.out = all, .x = whole, .index = context->to_ranks}));
    RK_TRY(rk_comm_reduce_scatter(context->group, pass->stream, mine, all, RK_REDUCE_SUM));
    for (int i = 0; i < num_x; begin += x[i++].shape[1])
        RK_TRY(rk_copy_2d(pass->stream, &(struct rk_copy_2d_args){
                                            .out = x[i], .x = rk_tensor_cols(mine, begin, x[i].shape[1])}));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}
