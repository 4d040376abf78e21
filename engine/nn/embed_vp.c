/* Vocabulary-parallel embedding: each rank looks up the ids of its part of the vocabulary and uses zeros for
 * other ids; the sum over tp is the result. Backward: each rank adds the gradient rows of its own ids, in
 * ascending token order. */
#include "engine/nn/nn.h"

/* Every rank's part of the vocabulary is padded with zero rows to a multiple of this. */
#define VOCAB_ALIGN_ROWS 128

struct rk_weight rk_vocabulary_declare(struct rk_param_table *params, const struct rk_model_config *config,
                                       const char *name, const char *alias)
{
    int32_t tp_size = rk_params_tp_size(params);
    int64_t align = (int64_t)VOCAB_ALIGN_ROWS * tp_size;
    struct rk_param_spec spec = {
        .rows = config->vocab_size,
        .cols = config->hidden_size,
        .rows_padded = (config->vocab_size + align - 1) / align * align,
        .alias = alias,
    };

    return (struct rk_weight){.param = rk_params_add(params, &spec, "%s", name),
                              .rows = spec.rows_padded / tp_size,
                              .cols = spec.cols};
}

struct rk_status *rk_embedding_fwd(const struct rk_pass *pass, const struct rk_embedding *embedding,
                                   rk_tensor_t out)
{
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);
    rk_tensor_t tokens;

    RK_TRY(rk_sp_begin_sum(pass, out, &tokens));
    RK_TRY(rk_embed_fwd(pass->stream, &(struct rk_embed_fwd_args){
                                          .out = tokens,
                                          .table = rk_weight_value(pass, &embedding->weight),
                                          .tokens = pass->tokens,
                                          .vocab_begin = embedding->vocab_begin,
                                      }));
    /* All terms but one are 0, so the sum is exact in any order. */
    RK_TRY(rk_sp_sum(pass, tokens, out, RK_REDUCE_SUM));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}

struct rk_status *rk_embedding_bwd(const struct rk_pass *pass, const struct rk_embedding *embedding,
                                   rk_tensor_t dout)
{
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);

    if (!rk_weight_is_trained(pass, &embedding->weight))
        return NULL;
    RK_TRY(rk_sp_gather(pass, dout, &dout));
    RK_TRY(rk_embed_bwd(pass->stream, &(struct rk_embed_bwd_args){
                                          .dtable = rk_weight_grad(pass, &embedding->weight),
                                          .dout = dout,
                                          .tokens = pass->tokens,
                                          .vocab_begin = embedding->vocab_begin,
                                      }));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}
