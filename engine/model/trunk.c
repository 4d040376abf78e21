/* The trunk of a model: embedding, the blocks of all layers, final norm.
 *
 * The residual stream h and the last block's output travel separately: the norm in front of the next block
 * adds them in the same pass over memory (nn/norm.c). What a block is the family decides; nothing here knows
 * attention from MLP. */
#include "engine/model/model_internal.h"

#include "base/rk_assert.h"

static struct rk_status *block_fwd(struct rk_pass *pass, const struct rk_block *block, rk_tensor_t *stream,
                                   rk_tensor_t *delta, rk_tensor_t out, struct rk_block_saved *saved)
{
    RK_TRY(rk_norm_fwd(pass, &block->norm, stream, *delta, &saved->norm));
    RK_TRY(block->ops->forward(pass, block, saved->norm.y, out, saved));
    *delta = out;
    return NULL;
}

struct rk_status *rk_trunk_fwd(struct rk_model *model, struct rk_pass *pass, rk_tensor_t *hidden,
                               struct rk_trunk_saved *saved)
{
    const struct rk_model_core *core = model->core;
    rk_tensor_t stream, out, delta = {0};
    struct rk_norm_saved final_norm;

    RK_ASSERT(pass->keeps_activations == (saved != NULL));
    if (saved) {
        saved->blocks = rk_arena_calloc(model->host, (size_t)core->num_blocks, sizeof(*saved->blocks));
        if (!saved->blocks)
            return RK_FAIL(RK_RESOURCE_EXHAUSTED, "no host memory for %lld blocks",
                           (long long)core->num_blocks);
    }
    RK_TRY(rk_step_2d(pass->arena, &stream, pass->dtype, pass->num_tokens, pass->hidden_size));
    RK_TRY(rk_step_2d(pass->arena, &out, pass->dtype, pass->num_tokens, pass->hidden_size));
    RK_TRY(rk_embedding_fwd(pass, &core->embedding, stream));
    for (int64_t i = 0; i < core->num_blocks; i++) {
        struct rk_step_mark mark = rk_step_arena_mark(pass->arena);
        struct rk_block_saved scratch;

        RK_TRY(block_fwd(pass, &core->blocks[i], &stream, &delta, out, saved ? &saved->blocks[i] : &scratch));
        if (!saved)
            rk_step_arena_release(pass->arena, mark);
    }
    RK_TRY(rk_norm_fwd(pass, &core->final_norm, &stream, delta, &final_norm));
    *hidden = final_norm.y;
    if (saved)
        saved->final_norm = final_norm;
    return NULL;
}

static struct rk_status *block_bwd(struct rk_pass *pass, const struct rk_block *block,
                                   const struct rk_block_saved *saved, rk_tensor_t dstream)
{
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);
    rk_tensor_t dx;

    RK_TRY(rk_step_2d(pass->arena, &dx, pass->dtype, pass->num_tokens, pass->hidden_size));
    RK_TRY(block->ops->backward(pass, block, saved, dstream, dx));
    RK_TRY(rk_norm_bwd(pass, &block->norm, &saved->norm, dx, dstream, false));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}

struct rk_status *rk_trunk_bwd(struct rk_model *model, struct rk_pass *pass,
                               const struct rk_trunk_saved *saved, rk_tensor_t dhidden)
{
    const struct rk_model_core *core = model->core;
    rk_tensor_t dstream;

    RK_ASSERT(pass->keeps_activations);
    RK_TRY(rk_step_2d(pass->arena, &dstream, pass->dtype, pass->num_tokens, pass->hidden_size));
    RK_TRY(rk_norm_bwd(pass, &core->final_norm, &saved->final_norm, dhidden, dstream, true));
    for (int64_t i = core->num_blocks - 1; i >= 0; i--)
        RK_TRY(block_bwd(pass, &core->blocks[i], &saved->blocks[i], dstream));
    return rk_embedding_bwd(pass, &core->embedding, dstream);
}
