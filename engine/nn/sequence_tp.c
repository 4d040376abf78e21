/* Sequence parallelism (Korthikanti et al., arXiv:2205.05198): outside attention and MLP, where nothing is
 * split over tp, a tp rank has a part of the tokens instead of all of them, in rank order.
 *
 *   gather  rows -> tokens  its adjoint: sum, where every rank has a summand of the gradient,
 *                           or keep, where all ranks have the whole of it
 *   sum     tokens -> rows  its adjoint: gather
 *
 * Without it the rows are the tokens: gather and keep do nothing, and sums are formed in place.
 *
 * In the backward pass all of these run on a stream of their own, beside products that do not need them: the
 * gather for the gradient of a column-parallel weight beside the product that makes dX (Megatron-LM's order),
 * the sum of dX, the backward pass of the norm and the gather for the next block beside the product that
 * makes dW (model/trunk.c). The bits stay. Products are not cut into parts that run beside the collectives of
 * the others, which is what is left in the forward pass: counted in tiles of 128 x 256 on 132 processors,
 * parts of the 7B's products with tp=2 and 4 leave processors idle for about as long as a collective takes.
 */
#include "engine/nn/nn_internal.h"

#include "base/rk_assert.h"

struct rk_status *rk_sp_gather_into(const struct rk_pass *pass, rk_tensor_t rows, rk_tensor_t tokens)
{
    return pass->splits_rows ? rk_comm_all_gather(pass->tp, pass->stream, tokens, rows) : NULL;
}

struct rk_status *rk_sp_gather(const struct rk_pass *pass, rk_tensor_t rows, rk_tensor_t *tokens)
{
    RK_TRY(rk_sp_begin_sum(pass, rows, tokens));
    return rk_sp_gather_into(pass, rows, *tokens);
}

struct rk_status *rk_sp_begin_sum(const struct rk_pass *pass, rk_tensor_t rows, rk_tensor_t *tokens)
{
    RK_ASSERT(rows.shape[0] == pass->num_rows);
    *tokens = rows;
    if (!pass->splits_rows)
        return NULL;
    return rk_step_2d(pass->arena, tokens, rows.dtype, pass->num_tokens, rows.shape[1]);
}

struct rk_status *rk_sp_sum(const struct rk_pass *pass, rk_tensor_t tokens, rk_tensor_t rows,
                            rk_reduce_op_t op)
{
    if (pass->splits_rows)
        return rk_comm_reduce_scatter(pass->tp, pass->stream, rows, tokens, op);
    RK_ASSERT(tokens.data == rows.data);
    return rk_comm_all_reduce(pass->tp, pass->stream, rows, op);
}

struct rk_pass rk_pass_beside(const struct rk_pass *pass)
{
    struct rk_pass beside = *pass;

    if (pass->side)
        beside.stream = pass->side->stream;
    return beside;
}

struct rk_status *rk_pass_fork(const struct rk_pass *pass)
{
    if (!pass->side)
        return NULL;
    RK_TRY(rk_event_record(pass->side->is_ready, pass->stream));
    return rk_stream_wait(pass->side->stream, pass->side->is_ready);
}

struct rk_status *rk_pass_join(const struct rk_pass *pass)
{
    if (!pass->side)
        return NULL;
    RK_TRY(rk_event_record(pass->side->is_done, pass->side->stream));
    return rk_stream_wait(pass->stream, pass->side->is_done);
}

struct rk_status *rk_sp_keep(const struct rk_pass *pass, rk_tensor_t tokens, rk_tensor_t rows)
{
    int64_t first = rk_comm_group_rank(pass->tp) * pass->num_rows;

    if (!pass->splits_rows || pass->num_rows == 0)
        return NULL;
    return rk_stream_copy(pass->stream, rows.data, rk_tensor_rows(tokens, first, pass->num_rows).data,
                          rk_tensor_bytes(rows), RK_COPY_D2D);
}
