/* Vocabulary-parallel embedding: each rank looks up the ids of its part and has zeros for the others; the sum
 * over tp is the row. Backward: each rank adds the gradient rows of its own ids, in ascending token order. */
#include "engine/nn/nn_internal.h"

struct rk_status *rk_embedding_fwd(const struct rk_pass *pass, const struct rk_embedding *embedding,
                                   rk_tensor_t out)
{
    RK_TRY(rk_embed_fwd(pass->stream, &(struct rk_embed_fwd_args){
                                          .out = out,
                                          .table = rk_weight_value(pass, &embedding->weight),
                                          .tokens = pass->tokens,
                                          .vocab_begin = embedding->vocab_begin,
                                      }));
    /* All but one of the terms are 0, so it is exact in any order. */
    return rk_comm_all_reduce(pass->tp, pass->stream, out, RK_REDUCE_SUM);
}

struct rk_status *rk_embedding_bwd(const struct rk_pass *pass, const struct rk_embedding *embedding,
                                   rk_tensor_t dout)
{
    return rk_embed_bwd(pass->stream, &(struct rk_embed_bwd_args){
                                          .dtable = rk_weight_grad(pass, &embedding->weight),
                                          .dout = dout,
                                          .tokens = pass->tokens,
                                          .vocab_begin = embedding->vocab_begin,
                                      });
}
