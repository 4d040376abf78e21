/* The trunk of a model: embedding, the blocks of all layers, final norm. A pipeline stage runs parts of it,
 * chunks: the first chunk begins with the embedding, the last one ends with the norm, and the residual stream
 * is sent between chunks.
 *
 * The residual stream h and the last block's output are separate tensors: the norm before the next block adds
 * them in the same pass over memory (nn/norm.c). The family defines the blocks; this file treats all kinds
 * alike.
 *
 * For the backward pass every block saves its input residual and the tensors that are expensive to recompute;
 * norm outputs are recomputed. With recompute, only the input residual of every n-th layer is saved: the
 * backward pass runs the forward pass of those n layers again, which gives the same bits, before their
 * backward pass. */
#include "engine/model/model.h"

#include "base/rk_assert.h"
#include "base/rk_fault.h"

/* The residual stream between blocks; all tensors are [T, hidden_size]. */
struct hidden {
    rk_tensor_t residual; /* without delta */
    rk_tensor_t delta;    /* output of the previous block; none before the first */
    rk_tensor_t work;     /* memory of a residual that is not saved */
    rk_tensor_t normed;   /* memory of the input of a block */
    rk_tensor_t out;      /* ... and of its output; none: not needed */
};

static bool recomputes(const struct rk_model_core *core)
{
    return core->recompute_num_layers > 0;
}

/* Whether block `i` is the first of a recomputed part. */
static bool starts_part(const struct rk_model_core *core, const struct rk_chunk *chunk, int64_t i)
{
    int64_t layer = core->blocks[i].layer, first = core->blocks[chunk->begin].layer;

    return (layer - first) % core->recompute_num_layers == 0 &&
           (i == chunk->begin || core->blocks[i - 1].layer != layer);
}

/* Norm of the current residual. If it is saved, residual and statistics get separate memory. */
static struct rk_status *norm_stream(struct rk_pass *pass, const struct rk_weight *weight,
                                     struct hidden *hidden, bool keeps, struct rk_norm_saved *saved)
{
    struct rk_norm_io io = {.residual = hidden->residual, .delta = hidden->delta, .y = hidden->normed};

    if (hidden->delta.data)
        io.sum = hidden->work;
    if (hidden->delta.data && keeps)
        RK_TRY(rk_step_2d(pass->kept, &io.sum, pass->dtype, pass->num_rows, pass->hidden_size));
    if (keeps)
        RK_TRY(rk_step_1d(pass->kept, &io.rstd, pass->stat_dtype, pass->num_rows));
    RK_TRY(rk_norm_fwd(pass, weight, &io));
    if (hidden->delta.data)
        hidden->residual = io.sum;
    *saved = (struct rk_norm_saved){.x = hidden->residual, .rstd = io.rstd};
    return NULL;
}

static struct rk_status *block_fwd(struct rk_pass *pass, const struct rk_block *block, struct hidden *hidden,
                                   bool keeps_stream, struct rk_block_saved *saved)
{
    struct rk_step_mark mark;

    if (RK_FAULT("model.block"))
        return RK_FAIL(RK_INTERNAL, "fault point model.block");
    RK_TRY(norm_stream(pass, &block->norm, hidden, keeps_stream, &saved->norm));
    mark = rk_step_arena_mark(pass->arena);
    RK_TRY(block->ops->forward(pass, block, hidden->normed, hidden->out, saved->own));
    if (!pass->keeps_activations)
        rk_step_arena_release(pass->arena, mark);
    hidden->delta = hidden->out;
    rk_pass_note_alive(pass);
    return NULL;
}

/* The first residual, `in` or the embedded tokens, and the working memory. */
static struct rk_status *begin_flow(const struct rk_model_core *core, const struct rk_chunk *chunk,
                                    struct rk_pass *pass, struct hidden *hidden, rk_tensor_t in,
                                    bool keeps_residuals)
{
    *hidden = (struct hidden){.residual = in};
    if (!in.data)
        RK_TRY(rk_step_2d(keeps_residuals ? pass->kept : pass->arena, &hidden->residual, pass->dtype,
                          pass->num_rows, pass->hidden_size));
    RK_TRY(rk_step_2d(pass->arena, &hidden->normed, pass->dtype, pass->num_rows, pass->hidden_size));
    /* The output of a chunk stays valid until it has been sent. */
    RK_TRY(rk_step_2d(chunk->has_head ? pass->arena : pass->kept, &hidden->out, pass->dtype, pass->num_rows,
                      pass->hidden_size));
    hidden->work = hidden->residual; /* sums are computed in place */
    if (keeps_residuals && recomputes(core))
        RK_TRY(rk_step_2d(pass->arena, &hidden->work, pass->dtype, pass->num_rows, pass->hidden_size));
    return in.data ? NULL : rk_embedding_fwd(pass, &core->embedding, hidden->residual);
}

/* Adds the last block's output to the residual: the input of the next chunk. */
static struct rk_status *end_hidden(const struct rk_pass *pass, const struct hidden *hidden, rk_tensor_t *out)
{
    *out = hidden->delta.data ? hidden->delta : hidden->residual;
    if (!hidden->delta.data)
        return NULL;
    return rk_axpby(pass->stream, &(struct rk_axpby_args){
                                      .y = hidden->delta, .x = hidden->residual, .alpha = 1, .beta = 1});
}

/* Allocates the tensors that each block saves. */
static struct rk_status *alloc_saved(const struct rk_model_core *core, const struct rk_pass *pass,
                                     struct rk_trunk_saved *saved)
{
    RK_TRY(rk_pass_alloc_host(pass, &saved->blocks, core->num_blocks, sizeof(*saved->blocks)));
    for (int64_t i = 0; i < core->num_blocks; i++)
        RK_TRY(rk_pass_alloc_host(pass, &saved->blocks[i].own, 1, core->blocks[i].ops->saved_bytes));
    return NULL;
}

/* One entry for all blocks when no backward pass follows. */
static struct rk_status *alloc_unused(const struct rk_model_core *core, const struct rk_pass *pass,
                                      struct rk_block_saved *unused)
{
    size_t bytes = 0;

    for (int64_t i = 0; i < core->num_blocks; i++)
        bytes = RK_MAX(bytes, core->blocks[i].ops->saved_bytes);
    return rk_pass_alloc_host(pass, &unused->own, 1, bytes);
}

struct rk_status *rk_trunk_fwd(const struct rk_model_core *core, const struct rk_chunk *chunk,
                               struct rk_pass *pass, rk_tensor_t in, rk_tensor_t *out,
                               struct rk_trunk_saved *saved)
{
    struct rk_block_saved unused;
    struct hidden hidden;

    if (saved)
        RK_TRY(alloc_saved(core, pass, saved));
    RK_TRY(alloc_unused(core, pass, &unused));
    pass->keeps_activations = saved && !recomputes(core);
    RK_TRY(begin_flow(core, chunk, pass, &hidden, in, saved != NULL));
    for (int64_t i = chunk->begin; i < chunk->end; i++) {
        bool keeps_stream = saved && (!recomputes(core) || starts_part(core, chunk, i));

        RK_TRY(block_fwd(pass, &core->blocks[i], &hidden, keeps_stream,
                         keeps_stream ? &saved->blocks[i] : &unused));
    }
    if (!chunk->has_head)
        return end_hidden(pass, &hidden, out);
    RK_TRY(norm_stream(pass, &core->final_norm, &hidden, saved != NULL,
                       saved ? &saved->final_norm : &unused.norm));
    *out = hidden.normed;
    return NULL;
}

/* Recomputes blocks [begin, end) from the input residual of the first; now they save their tensors.
 * The last one's output was already added to the saved residual stream. */
static struct rk_status *run_again(struct rk_pass *pass, const struct rk_model_core *core, int64_t begin,
                                   int64_t end, const struct rk_trunk_saved *saved)
{
    struct hidden hidden = {.residual = saved->blocks[begin].norm.x};

    RK_TRY(rk_step_2d(pass->arena, &hidden.normed, pass->dtype, pass->num_rows, pass->hidden_size));
    RK_TRY(rk_step_2d(pass->arena, &hidden.out, pass->dtype, pass->num_rows, pass->hidden_size));
    for (int64_t i = begin; i < end; i++) {
        if (i == end - 1)
            hidden.out = (rk_tensor_t){0};
        RK_TRY(block_fwd(pass, &core->blocks[i], &hidden, true, &saved->blocks[i]));
    }
    return NULL;
}

static struct rk_status *block_bwd(struct rk_pass *pass, const struct rk_block *block,
                                   const struct rk_block_saved *saved, rk_tensor_t dresidual)
{
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);
    rk_tensor_t x, dx;

    RK_TRY(rk_step_2d(pass->arena, &x, pass->dtype, pass->num_rows, pass->hidden_size));
    RK_TRY(rk_step_2d(pass->arena, &dx, pass->dtype, pass->num_rows, pass->hidden_size));
    RK_TRY(rk_norm_fwd(pass, &block->norm, &(struct rk_norm_io){.residual = saved->norm.x, .y = x}));
    RK_TRY(block->ops->backward(pass, block, saved->own, x, dresidual, dx));
    RK_TRY(rk_norm_bwd(pass, &block->norm, &saved->norm, dx, dresidual, false));
    rk_step_arena_release(pass->arena, mark);
    rk_pass_note_alive(pass);
    return NULL;
}

/* Backward through the part that ends before block *end; without recompute the part is the whole chunk. */
static struct rk_status *part_bwd(const struct rk_model_core *core, const struct rk_chunk *chunk,
                                  struct rk_pass *pass, const struct rk_trunk_saved *saved,
                                  rk_tensor_t dresidual, int64_t *end)
{
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);
    int64_t begin = chunk->begin;

    if (recomputes(core)) {
        for (begin = *end - 1; !starts_part(core, chunk, begin);)
            begin--;
        RK_TRY(run_again(pass, core, begin, *end, saved));
    }
    for (int64_t i = *end - 1; i >= begin; i--) {
        RK_TRY(block_bwd(pass, &core->blocks[i], &saved->blocks[i], dresidual));
        RK_TRY(rk_pass_grads_ready(pass, core->blocks[i].norm.param));
    }
    rk_step_arena_release(pass->arena, mark);
    *end = begin;
    return NULL;
}

struct rk_status *rk_trunk_bwd(const struct rk_model_core *core, const struct rk_chunk *chunk,
                               struct rk_pass *pass, const struct rk_trunk_saved *saved, rk_tensor_t dout,
                               rk_tensor_t *din)
{
    rk_tensor_t dresidual = dout;

    pass->keeps_activations = true;
    if (chunk->has_head) {
        RK_TRY(rk_step_2d(pass->kept, &dresidual, pass->dtype, pass->num_rows, pass->hidden_size));
        RK_TRY(rk_norm_bwd(pass, &core->final_norm, &saved->final_norm, dout, dresidual, true));
        RK_TRY(rk_pass_grads_ready(pass, core->final_norm.param));
    }
    pass->kept = pass->arena; /* from here on only recomputed tensors are saved, until the end of the part */
    for (int64_t end = chunk->end; end > chunk->begin;)
        RK_TRY(part_bwd(core, chunk, pass, saved, dresidual, &end));
    *din = dresidual;
    return chunk->has_embedding ? rk_embedding_bwd(pass, &core->embedding, dresidual) : NULL;
}
