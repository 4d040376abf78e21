/* Causal latent self-attention (DeepSeek-V2, arXiv:2405.04434, section 2.1):
 *
 *   c = Wkv_a x -> [kv_rank + rope];   l = [norm(c[:kv_rank]), rope(c[kv_rank:])]
 *   [k_nope; v] of every head = Wkv_b l[:kv_rank];   k = [k_nope, l[kv_rank:]]
 *   q = Wq x, or Wq_b norm(Wq_a x); the last columns of every head are rotated
 *   out = Wo attend(q, k, v), scores times mscale^2 / sqrt(nope + rope)
 *
 * The cached vector of a token is l. A tp rank has num_heads / tp heads of q, kv_b and o. The
 * down-projections are replicated and applied to the rank's rows of the residual stream; the up-projections
 * sum the gradients of the latents over tp like column-parallel layers. With sequence parallelism l is
 * gathered instead of the hidden state. Under context parallelism the latents of all ranks are gathered, and
 * every rank computes keys and values from them.
 *
 * For the backward pass the results of the down-projections are kept, and queries if they are computed from
 * the hidden state; norms, rotations and tensors computed from latents (queries, keys, values) are
 * recomputed. Norms have a separate eps, 1e-6, as in transformers. Parameters and activations are declared in
 * latent_declare.c; attention over a cache is in latent_paged.c. */
#include "engine/nn/latent_internal.h"

#define NORM_EPS 1e-6F

struct saved {
    rk_tensor_t down; /* [rows, q_rank + width]: before norms and rotation */
    rk_tensor_t q_rstd, kv_rstd;
    rk_tensor_t q;   /* [T, heads * head_dim], rotated; none: recomputed */
    rk_tensor_t out; /* [T, heads, v_head_dim] */
    rk_tensor_t lse; /* [heads, T] */
};

/* --- functions of both directions --- */

/* The parts of the down-projection's result. */
static rk_tensor_t q_part(const struct rk_latent *latent, rk_tensor_t down)
{
    return rk_tensor_cols(down, 0, latent->q_rank);
}

static rk_tensor_t kv_part(const struct rk_latent *latent, rk_tensor_t down)
{
    return rk_tensor_cols(down, latent->q_rank, latent->kv_rank);
}

static rk_tensor_t rope_part(const struct rk_latent *latent, rk_tensor_t down)
{
    return rk_tensor_cols(down, latent->q_rank + latent->kv_rank, latent->rope);
}

/* The two parts of latents [n, width]. */
static rk_tensor_t own_columns(const struct rk_latent *latent, rk_tensor_t latents)
{
    return rk_tensor_cols(latents, 0, latent->kv_rank);
}

static rk_tensor_t rope_columns(const struct rk_latent *latent, rk_tensor_t latents)
{
    return rk_tensor_cols(latents, latent->kv_rank, latent->rope);
}

static rk_tensor_t heads_of(const struct rk_latent *latent, rk_tensor_t x)
{
    return rk_tensor_split_cols(x, latent->num_heads, x.shape[1] / latent->num_heads);
}

static struct rk_status *normalise(const struct rk_pass *pass, const struct rk_weight *weight, rk_tensor_t x,
                                   rk_tensor_t y, rk_tensor_t rstd)
{
    return rk_rmsnorm_fwd(pass->stream, &(struct rk_rmsnorm_fwd_args){.y = y,
                                                                      .rstd = rstd,
                                                                      .x = x,
                                                                      .weight = rk_weight_value(pass, weight),
                                                                      .weight_is_settled = true,
                                                                      .eps = NORM_EPS});
}

static struct rk_status *normalise_bwd(const struct rk_pass *pass, const struct rk_weight *weight,
                                       rk_tensor_t dy, rk_tensor_t x, rk_tensor_t rstd, rk_tensor_t dx)
{
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);
    rk_tensor_t dweight;

    RK_TRY(rk_weight_grad_or_scratch(pass, weight, &dweight));
    RK_TRY(rk_rmsnorm_bwd(pass->stream, &(struct rk_rmsnorm_bwd_args){.dx = dx,
                                                                      .dweight = dweight,
                                                                      .dy = dy,
                                                                      .x = x,
                                                                      .weight = rk_weight_value(pass, weight),
                                                                      .rstd = rstd}));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}

/* The last columns of every head of x [T, heads, columns], from `begin` on. */
static struct rk_status *rotate(const struct rk_pass *pass, const struct rk_block *block, rk_tensor_t x,
                                int64_t begin, bool inverse)
{
    const struct rk_latent *latent = block->own;
    const struct rk_rope_tables *rope = rk_block_rope(pass, block);

    return rk_rope(pass->stream, &(struct rk_rope_args){.x = x,
                                                        .cos = rope->cos,
                                                        .sin = rope->sin,
                                                        .positions = pass->positions,
                                                        .inverse = inverse,
                                                        .is_interleaved = latent->is_interleaved,
                                                        .begin = begin});
}

static struct rk_status *rotate_queries(const struct rk_pass *pass, const struct rk_block *block,
                                        rk_tensor_t q, bool inverse)
{
    const struct rk_latent *latent = block->own;

    return rotate(pass, block, heads_of(latent, q), latent->nope, inverse);
}

static struct rk_status *rotate_latents(const struct rk_pass *pass, const struct rk_block *block,
                                        rk_tensor_t latents, bool inverse)
{
    const struct rk_latent *latent = block->own;

    return rotate(pass, block, rk_tensor_split_cols(latents, 1, latents.shape[1]), latent->kv_rank, inverse);
}

/* Computes the rotated queries of all tokens from x, or from the latent, which *q_latent receives. */
static struct rk_status *make_queries(const struct rk_pass *pass, const struct rk_block *block,
                                      const struct saved *saved, rk_tensor_t x, rk_tensor_t q_latent,
                                      rk_tensor_t q)
{
    const struct rk_latent *latent = block->own;

    if (latent->q_rank > 0)
        RK_TRY(normalise(pass, &latent->q_norm, q_part(latent, saved->down), q_latent, saved->q_rstd));
    RK_TRY(rk_linear_column_fwd(pass, &latent->q, latent->q_rank > 0 ? q_latent : x, q));
    return rotate_queries(pass, block, q, false);
}

/* Computes *latents [T, width] of all tokens of the pass from the down-projection's result; `own`: memory for
 * those of this rank's rows. */
static struct rk_status *make_latents(const struct rk_pass *pass, const struct rk_block *block,
                                      const struct saved *saved, rk_tensor_t own, rk_tensor_t *latents)
{
    const struct rk_latent *latent = block->own;

    RK_TRY(normalise(pass, &latent->kv_norm, kv_part(latent, saved->down), own_columns(latent, own),
                     saved->kv_rstd));
    RK_TRY(rk_copy_2d(pass->stream, &(struct rk_copy_2d_args){.out = rope_columns(latent, own),
                                                              .x = rope_part(latent, saved->down)}));
    RK_TRY(rk_sp_gather(pass, own, latents));
    return rotate_latents(pass, block, *latents, false);
}

/* Replaces this rank's latents by the latents of all cp ranks, in the arena. */
static struct rk_status *gather_latents(const struct rk_pass *pass, rk_tensor_t *latents)
{
    rk_tensor_t mine = *latents;

    if (!pass->context)
        return NULL;
    RK_TRY(rk_step_2d(pass->arena, latents, pass->dtype, pass->context->num_keys, mine.shape[1]));
    return rk_context_gather(pass, &mine, 1, *latents);
}

struct rk_status *rk_latent_expand(const struct rk_pass *pass, const struct rk_latent *latent,
                                   rk_tensor_t latents, int64_t first, int64_t num_heads, rk_tensor_t *kv)
{
    int64_t kv_dim = rk_latent_kv_dim(latent);

    RK_TRY(rk_step_2d(pass->arena, kv, pass->dtype, latents.shape[0], num_heads * kv_dim));
    return rk_gemm(pass->stream,
                   &(struct rk_gemm_args){.c = *kv,
                                          .a = own_columns(latent, latents),
                                          .b = rk_tensor_rows(rk_weight_value(pass, &latent->kv),
                                                              first * kv_dim, num_heads * kv_dim),
                                          .trans_b = true,
                                          .strict = pass->is_strict,
                                          .b_is_settled = true,
                                          .alpha = 1});
}

/* Allocates *both for keys and values of `count` tokens, or their gradients, side by side. */
static struct rk_status *alloc_keys(const struct rk_pass *pass, const struct rk_latent *latent, int64_t count,
                                    rk_tensor_t *both, rk_tensor_t *k, rk_tensor_t *v)
{
    int64_t k_columns = latent->num_heads * rk_latent_head_dim(latent);
    int64_t v_columns = latent->num_heads * latent->v_head_dim;

    RK_TRY(rk_step_2d(pass->arena, both, pass->dtype, count, k_columns + v_columns));
    *k = heads_of(latent, rk_tensor_cols(*both, 0, k_columns));
    *v = heads_of(latent, rk_tensor_cols(*both, k_columns, v_columns));
    return NULL;
}

/* Computes keys and values from the latents, in the arena. */
static struct rk_status *make_keys(const struct rk_pass *pass, const struct rk_latent *latent,
                                   rk_tensor_t latents, rk_tensor_t *k, rk_tensor_t *v)
{
    rk_tensor_t both, kv;
    struct rk_step_mark mark;

    RK_TRY(alloc_keys(pass, latent, latents.shape[0], &both, k, v));
    mark = rk_step_arena_mark(pass->arena);
    RK_TRY(rk_latent_expand(pass, latent, latents, 0, latent->num_heads, &kv));
    RK_TRY(rk_latent_kv(pass->stream, &(struct rk_latent_kv_args){.k = *k,
                                                                  .v = *v,
                                                                  .kv = heads_of(latent, kv),
                                                                  .rope = rope_columns(latent, latents)}));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}

static struct rk_attn_varlen_args varlen_args(const struct rk_pass *pass, const struct rk_latent *latent,
                                              const struct saved *saved, rk_tensor_t q)
{
    struct rk_attn_varlen_args args = {
        .out = saved->out,
        .lse = saved->lse,
        .q = heads_of(latent, q),
        .cu_seqlens = pass->cu_seqlens,
        .max_seqlen = pass->max_seqlen,
        .scale = latent->scale,
    };

    if (pass->context) {
        args.k_begin = pass->context->k_begin;
        args.k_lens = pass->context->k_lens[RK_ZIGZAG_BOTH];
    }
    return args;
}

/* --- forward --- */

static struct rk_status *make_saved(const struct rk_pass *pass, const struct rk_block *block,
                                    struct saved *saved)
{
    const struct rk_latent *latent = block->own;
    rk_tensor_t attended;

    *saved = (struct saved){0};
    RK_TRY(rk_activation_make(pass, block, RK_LATENT_DOWN, &saved->down));
    RK_TRY(rk_activation_make(pass, block, RK_LATENT_OUT, &attended));
    saved->out = heads_of(latent, attended);
    if (latent->q_rank == 0)
        RK_TRY(rk_activation_make(pass, block, RK_LATENT_Q, &saved->q));
    if (!pass->keeps_activations)
        return NULL;
    RK_TRY(rk_activation_make(pass, block, RK_LATENT_LSE, &saved->lse));
    saved->lse = rk_tensor_2d(saved->lse.data, pass->stat_dtype, latent->num_heads, pass->num_tokens);
    RK_TRY(rk_activation_make(pass, block, RK_LATENT_KV_RSTD, &saved->kv_rstd));
    saved->kv_rstd = rk_tensor_1d(saved->kv_rstd.data, pass->stat_dtype, pass->num_rows);
    if (latent->q_rank == 0)
        return NULL;
    RK_TRY(rk_activation_make(pass, block, RK_LATENT_Q_RSTD, &saved->q_rstd));
    saved->q_rstd = rk_tensor_1d(saved->q_rstd.data, pass->stat_dtype, pass->num_rows);
    return NULL;
}

static struct rk_status *attend(const struct rk_pass *pass, const struct rk_block *block,
                                const struct saved *saved, rk_tensor_t q, rk_tensor_t latents)
{
    const struct rk_latent *latent = block->own;
    struct rk_attn_varlen_args args = varlen_args(pass, latent, saved, q);

    if (pass->paged)
        return rk_latent_attend_paged(pass, block, args.q, latents, saved->out);
    RK_TRY(gather_latents(pass, &latents));
    RK_TRY(make_keys(pass, latent, latents, &args.k, &args.v));
    return rk_attn_varlen_fwd(pass->stream, &args);
}

static struct rk_status *latent_forward(struct rk_pass *pass, const struct rk_block *block, rk_tensor_t x,
                                        rk_tensor_t out, void *block_saved)
{
    const struct rk_latent *latent = block->own;
    struct saved *saved = block_saved;
    rk_tensor_t q_latent = {0}, own, latents, q;
    struct rk_step_mark mark;

    RK_TRY(make_saved(pass, block, saved));
    mark = rk_step_arena_mark(pass->arena);
    q = saved->q;
    if (latent->q_rank > 0) {
        RK_TRY(rk_activation_make(pass, block, RK_LATENT_Q_LATENT, &q_latent));
        RK_TRY(rk_activation_make(pass, block, RK_LATENT_Q_UP, &q));
    }
    RK_TRY(rk_activation_make(pass, block, RK_LATENT_LATENT, &own));
    RK_TRY(rk_linear_fwd(pass, &latent->down, x, saved->down));
    RK_TRY(make_queries(pass, block, saved, x, q_latent, q));
    RK_TRY(make_latents(pass, block, saved, own, &latents));
    RK_TRY(attend(pass, block, saved, q, latents));
    rk_step_arena_release(pass->arena, mark);
    return out.data ? rk_linear_row_fwd(pass, &latent->o, rk_tensor_merge_cols(saved->out), out) : NULL;
}

/* --- backward --- */

/* Backward pass over the keys of all cp ranks: the two chunks of a sequence on this rank share keys, so there
 * is one call for each, and the gradients of keys and values are summed. `both`: args->dk and args->dv side
 * by side. */
static struct rk_status *context_bwd(const struct rk_pass *pass, const struct rk_latent *latent,
                                     struct rk_attn_varlen_bwd_args *args, rk_tensor_t both)
{
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);
    rk_tensor_t first_k = args->dk, first_v = args->dv, other;

    args->fwd.k_lens = pass->context->k_lens[1];
    RK_TRY(rk_attn_varlen_bwd(pass->stream, args));
    RK_TRY(alloc_keys(pass, latent, both.shape[0], &other, &args->dk, &args->dv));
    args->fwd.k_lens = pass->context->k_lens[2];
    RK_TRY(rk_attn_varlen_bwd(pass->stream, args));
    RK_TRY(rk_axpby(pass->stream, &(struct rk_axpby_args){.y = both, .x = other, .alpha = 1, .beta = 1}));
    args->dk = first_k;
    args->dv = first_v;
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}

/* Computes dlatents [n, width] from the gradients of keys and values: this rank's summands. */
static struct rk_status *keys_bwd(const struct rk_pass *pass, const struct rk_latent *latent,
                                  rk_tensor_t latents, rk_tensor_t dk, rk_tensor_t dv, rk_tensor_t dlatents)
{
    int64_t columns = latent->num_heads * rk_latent_kv_dim(latent);
    rk_tensor_t dkv;

    RK_TRY(rk_step_2d(pass->arena, &dkv, pass->dtype, latents.shape[0], columns));
    RK_TRY(rk_latent_kv_bwd(pass->stream, &(struct rk_latent_kv_bwd_args){
                                              .dkv = heads_of(latent, dkv),
                                              .drope = rope_columns(latent, dlatents),
                                              .dk = dk,
                                              .dv = dv,
                                          }));
    RK_TRY(rk_linear_bwd_weight(pass, &latent->kv, own_columns(latent, latents), dkv));
    return rk_linear_bwd_input(pass, &latent->kv, dkv, own_columns(latent, dlatents));
}

/* Tensors of the backward pass: recomputed ones, and gradients. */
struct again {
    rk_tensor_t q_latent, q, latents;
    rk_tensor_t dattended, dq; /* of all tokens */
    rk_tensor_t dlatents;      /* of all tokens, before the sum over tp */
    rk_tensor_t ddown;
};

/* Backward through attention, keys and values: computes dq and dlatents. */
static struct rk_status *attend_bwd(const struct rk_pass *pass, const struct rk_latent *latent,
                                    const struct saved *saved, const struct again *again)
{
    rk_tensor_t both, latents = again->latents, dlatents = again->dlatents;
    struct rk_attn_varlen_bwd_args args = {
        .fwd = varlen_args(pass, latent, saved, again->q),
        .dq = heads_of(latent, again->dq),
        .dout = heads_of(latent, again->dattended),
    };

    RK_TRY(gather_latents(pass, &latents));
    RK_TRY(make_keys(pass, latent, latents, &args.fwd.k, &args.fwd.v));
    RK_TRY(alloc_keys(pass, latent, latents.shape[0], &both, &args.dk, &args.dv));
    if (!pass->context) {
        RK_TRY(rk_attn_varlen_bwd(pass->stream, &args));
        return keys_bwd(pass, latent, latents, args.dk, args.dv, dlatents);
    }
    RK_TRY(context_bwd(pass, latent, &args, both));
    RK_TRY(rk_step_2d(pass->arena, &dlatents, pass->dtype, latents.shape[0], latents.shape[1]));
    RK_TRY(keys_bwd(pass, latent, latents, args.dk, args.dv, dlatents));
    return rk_context_reduce(pass, dlatents, &again->dlatents, 1);
}

/* Computes the latents' part of ddown from the summed dlatents of this rank's rows. */
static struct rk_status *latents_bwd(const struct rk_pass *pass, const struct rk_latent *latent,
                                     const struct saved *saved, rk_tensor_t dlatents, rk_tensor_t ddown)
{
    RK_TRY(normalise_bwd(pass, &latent->kv_norm, own_columns(latent, dlatents), kv_part(latent, saved->down),
                         saved->kv_rstd, kv_part(latent, ddown)));
    return rk_copy_2d(pass->stream, &(struct rk_copy_2d_args){.out = rope_part(latent, ddown),
                                                              .x = rope_columns(latent, dlatents)});
}

/* Backward through the query and down-projections to dx. */
static struct rk_status *down_bwd(const struct rk_pass *pass, const struct rk_block *block,
                                  const struct saved *saved, const struct again *again, rk_tensor_t x,
                                  rk_tensor_t dx)
{
    const struct rk_latent *latent = block->own;
    rk_tensor_t part;

    if (latent->q_rank > 0) {
        RK_TRY(rk_activation_make(pass, block, RK_LATENT_DQ_LATENT, &part));
        RK_TRY(rk_linear_column_bwd(pass, &latent->q, again->q_latent, again->dq, part));
        RK_TRY(normalise_bwd(pass, &latent->q_norm, part, q_part(latent, saved->down), saved->q_rstd,
                             q_part(latent, again->ddown)));
        return rk_linear_bwd(pass, &latent->down, x, again->ddown, dx);
    }
    RK_TRY(rk_activation_make(pass, block, RK_LATENT_DX, &part));
    RK_TRY(rk_linear_bwd(pass, &latent->down, x, again->ddown, part));
    RK_TRY(rk_linear_column_bwd(pass, &latent->q, x, again->dq, dx));
    return rk_axpby(pass->stream, &(struct rk_axpby_args){.y = dx, .x = part, .alpha = 1, .beta = 1});
}

/* Recomputes the queries and latents of the forward pass. */
static struct rk_status *make_again(const struct rk_pass *pass, const struct rk_block *block,
                                    const struct saved *saved, rk_tensor_t x, struct again *again)
{
    const struct rk_latent *latent = block->own;
    rk_tensor_t own;

    again->q = saved->q;
    if (latent->q_rank > 0) {
        RK_TRY(rk_activation_make(pass, block, RK_LATENT_Q_UP_AGAIN, &again->q));
        RK_TRY(make_queries(pass, block, saved, x, again->q_latent, again->q));
    }
    RK_TRY(rk_activation_make(pass, block, RK_LATENT_LATENT_AGAIN, &own));
    return make_latents(pass, block, saved, own, &again->latents);
}

static struct rk_status *latent_backward(struct rk_pass *pass, const struct rk_block *block,
                                         const void *block_saved, rk_tensor_t x, rk_tensor_t dout,
                                         rk_tensor_t dx)
{
    const struct rk_latent *latent = block->own;
    const struct saved *saved = block_saved;
    struct again again = {0};
    struct rk_step_mark mark;
    rk_tensor_t drows;

    RK_TRY(rk_activation_make(pass, block, RK_LATENT_DQ, &again.dq));
    RK_TRY(rk_activation_make(pass, block, RK_LATENT_DLATENT, &drows));
    RK_TRY(rk_activation_make(pass, block, RK_LATENT_DDOWN, &again.ddown));
    if (latent->q_rank > 0)
        RK_TRY(rk_activation_make(pass, block, RK_LATENT_Q_LATENT_AGAIN, &again.q_latent));
    mark = rk_step_arena_mark(pass->arena);
    RK_TRY(rk_activation_make(pass, block, RK_LATENT_DOUT, &again.dattended));
    RK_TRY(rk_linear_row_bwd(pass, &latent->o, rk_tensor_merge_cols(saved->out), dout, again.dattended));
    RK_TRY(make_again(pass, block, saved, x, &again));
    RK_TRY(rk_sp_begin_sum(pass, drows, &again.dlatents));
    RK_TRY(attend_bwd(pass, latent, saved, &again));
    RK_TRY(rotate_queries(pass, block, again.dq, true));
    RK_TRY(rotate_latents(pass, block, again.dlatents, true));
    RK_TRY(rk_sp_sum(pass, again.dlatents, drows, RK_REDUCE_SUM));
    rk_step_arena_release(pass->arena, mark);
    RK_TRY(latents_bwd(pass, latent, saved, drows, again.ddown));
    return down_bwd(pass, block, saved, &again, x, dx);
}

const struct rk_block_ops rk_block_latent = {
    .name = "latent",
    .block_bytes = sizeof(struct rk_latent),
    .saved_bytes = sizeof(struct saved),
    .declare = rk_latent_declare,
    .forward = latent_forward,
    .backward = latent_backward,
};
