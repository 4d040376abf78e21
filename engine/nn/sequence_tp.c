/* Sequence parallelism (Korthikanti et al., arXiv:2205.05198): outside attention and MLP, where tensors are
 * not split over tp, each tp rank has a part of the tokens, in rank order, instead of all tokens.
 *
 *   gather  rows -> tokens  its adjoint: sum, where every rank has a summand of the gradient,
 *                           or keep, where all ranks have the whole of it
 *   sum     tokens -> rows  its adjoint: gather
 *
 * Without it the rows are all tokens: gather and keep do nothing, and sums are computed in place.
 *
 * In the backward pass of a column-parallel layer gather and sum run on a side stream, each overlapping one
 * of its two GEMMs, as in Megatron-LM; results are bit-identical. GEMMs are not split to overlap their parts
 * with collectives: counted in tiles of 128 x 256 on 132 SMs, the split GEMMs of a 7B model with tp=2 and 4
 * leave SMs idle for about as long as a collective takes. */
#include "engine/nn/nn.h"

#include "base/rk_assert.h"

static struct rk_status *gather(const struct rk_pass *pass, struct rk_stream *stream, rk_tensor_t rows,
                                rk_tensor_t tokens)
{
    return pass->splits_rows ? rk_comm_all_gather(pass->tp, stream, tokens, rows) : NULL;
}

struct rk_status *rk_sp_gather(const struct rk_pass *pass, rk_tensor_t rows, rk_tensor_t *tokens)
{
    RK_TRY(rk_sp_begin_sum(pass, rows, tokens));
    return gather(pass, pass->stream, rows, *tokens);
}

struct rk_status *rk_sp_begin_sum(const struct rk_pass *pass, rk_tensor_t rows, rk_tensor_t *tokens)
{
    RK_ASSERT(rows.shape[0] == pass->num_rows);
    *tokens = rows;
    if (!pass->splits_rows)
        return NULL;
    return rk_step_2d(pass->arena, tokens, rows.dtype, pass->num_tokens, rows.shape[1]);
}

static struct rk_status *sum(const struct rk_pass *pass, struct rk_stream *stream, rk_tensor_t tokens,
                             rk_tensor_t rows, rk_reduce_op_t op)
{
    if (pass->splits_rows)
        return rk_comm_reduce_scatter(pass->tp, stream, rows, tokens, op);
    RK_ASSERT(tokens.data == rows.data);
    return rk_comm_all_reduce(pass->tp, stream, rows, op);
}

struct rk_status *rk_sp_sum(const struct rk_pass *pass, rk_tensor_t tokens, rk_tensor_t rows,
                            rk_reduce_op_t op)
{
    return sum(pass, pass->stream, tokens, rows, op);
}

struct rk_status *rk_pass_fork(const struct rk_pass *pass, struct rk_stream **out)
{
    *out = pass->stream;
    if (!pass->side)
        return NULL;
    *out = pass->side->stream;
    RK_TRY(rk_event_record(pass->side->is_ready, pass->stream));
    return rk_stream_wait(pass->side->stream, pass->side->is_ready);
}

struct rk_status *rk_sp_start_gather(const struct rk_pass *pass, rk_tensor_t rows, rk_tensor_t *tokens)
{
    struct rk_stream *stream;

    RK_TRY(rk_sp_begin_sum(pass, rows, tokens));
    RK_TRY(rk_pass_fork(pass, &stream));
    return gather(pass, stream, rows, *tokens);
}

struct rk_status *rk_sp_start_sum(const struct rk_pass *pass, rk_tensor_t tokens, rk_tensor_t rows,
                                  rk_reduce_op_t op)
{
    struct rk_stream *stream;

    RK_TRY(rk_pass_fork(pass, &stream));
    return sum(pass, stream, tokens, rows, op);
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
