/* Attention over a paged cache of latents, in one of two forms.
 *
 *   expanded  keys and values of all cache blocks of the sequences are computed, and attention reads these.
 *             With strict numerics they and the result are bit-identical to a packed pass.
 *   absorbed  q_nope is multiplied by the up-projection of keys instead, and the sum of latents by that of
 *             values: scores = [q_nope Wk, q_rope] . l,  out = (sum p l[:kv_rank]) Wv^T. Keys and values are
 *             not computed; roundings differ.
 *
 * Strict numerics always use the first form: a step of S sequences over tables of B blocks of 16 costs a
 * product of [16 S B, kv_rank] with the up-projection in every layer. Fast numerics use it for long prompt
 * chunks, where it needs fewer operations, and the second form for decoding. Both use the same operators on
 * all devices. */
#include "engine/nn/latent_internal.h"

#include "base/rk_assert.h"

static rk_tensor_t head_columns(rk_tensor_t x, int64_t first, int64_t count)
{
    int64_t width = x.shape[2];

    return rk_tensor_split_cols(rk_tensor_cols(rk_tensor_merge_cols(x), first * width, count * width), count,
                                width);
}

static struct rk_attn_paged_args paged_args(const struct rk_pass *pass, const struct rk_latent *latent,
                                            rk_tensor_t q, rk_tensor_t out)
{
    const struct rk_paged_step *paged = pass->paged;

    return (struct rk_attn_paged_args){
        .out = out,
        .q = q,
        .block_table = paged->block_table,
        .cu_q = paged->cu_q,
        .seq_lens = paged->seq_lens,
        .scale = latent->scale,
    };
}

/* Keys and values of heads [first, first + count) as a cache, which replaces the cache of latents. */
static struct rk_status *attend_heads(const struct rk_pass *pass, const struct rk_latent *latent,
                                      rk_tensor_t blocks, int64_t first, int64_t count,
                                      struct rk_attn_paged_args *args)
{
    int64_t num_blocks = blocks.shape[0], block_size = blocks.shape[2], width = blocks.shape[3];
    int64_t columns = rk_latent_head_dim(latent) + latent->v_head_dim;
    rk_tensor_t latents = rk_tensor_2d(blocks.data, pass->dtype, num_blocks * block_size, width);
    rk_tensor_t kv, both;

    RK_TRY(rk_step_2d(pass->arena, &both, pass->dtype, num_blocks, count * block_size * columns));
    args->k_cache =
        rk_tensor_4d(both.data, pass->dtype, num_blocks, count, block_size, rk_latent_head_dim(latent));
    args->v_cache = rk_tensor_4d((char *)both.data + rk_tensor_bytes(args->k_cache), pass->dtype, num_blocks,
                                 count, block_size, latent->v_head_dim);
    RK_TRY(rk_latent_expand(pass, latent, latents, first, count, &kv));
    RK_TRY(rk_latent_kv(pass->stream, &(struct rk_latent_kv_args){
                                          .k = args->k_cache,
                                          .v = args->v_cache,
                                          .kv = rk_tensor_split_cols(kv, count, rk_latent_kv_dim(latent)),
                                          .rope = rk_tensor_cols(latents, latent->kv_rank, latent->rope)}));
    return rk_attn_paged(pass->stream, args);
}

/* The blocks of the step's sequences, one after the other, and their table. */
static struct rk_status *gather_blocks(const struct rk_pass *pass, rk_tensor_t cache,
                                       struct rk_attn_paged_args *args, rk_tensor_t *blocks)
{
    int64_t num_seqs = args->block_table.shape[0], max_blocks = args->block_table.shape[1];
    rk_tensor_t memory, numbers;

    RK_TRY(
        rk_step_2d(pass->arena, &memory, pass->dtype, num_seqs * max_blocks, rk_tensor_row_elements(cache)));
    RK_TRY(rk_step_2d(pass->arena, &numbers, RK_DTYPE_I32, num_seqs, max_blocks));
    *blocks = rk_tensor_4d(memory.data, pass->dtype, memory.shape[0], cache.shape[1], cache.shape[2],
                           cache.shape[3]);
    RK_TRY(rk_gather_blocks(pass->stream, &(struct rk_gather_blocks_args){.out = *blocks,
                                                                          .numbers = numbers,
                                                                          .cache = cache,
                                                                          .block_table = args->block_table}));
    args->block_table = numbers;
    return NULL;
}

/* Heads are processed in rounds of as many as fit into expanded_bytes, at least one. Rounds do not change the
 * bits, since heads are independent. */
static struct rk_status *attend_expanded(const struct rk_pass *pass, const struct rk_latent *latent,
                                         rk_tensor_t cache, struct rk_attn_paged_args args)
{
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);
    rk_tensor_t q = args.q, out = args.out, blocks;
    int64_t columns = rk_latent_head_dim(latent) + latent->v_head_dim + rk_latent_kv_dim(latent);
    int64_t head_bytes, count;

    RK_TRY(gather_blocks(pass, cache, &args, &blocks));
    head_bytes = blocks.shape[0] * blocks.shape[2] * columns * (int64_t)rk_dtype_bytes(pass->dtype);
    count = RK_MAX(RK_MIN(latent->expanded_bytes / RK_MAX(head_bytes, 1), latent->num_heads), 1);
    for (int64_t first = 0; first < latent->num_heads; first += count) {
        struct rk_step_mark round = rk_step_arena_mark(pass->arena);

        count = RK_MIN(count, latent->num_heads - first);
        args.q = head_columns(q, first, count);
        args.out = head_columns(out, first, count);
        RK_TRY(attend_heads(pass, latent, blocks, first, count, &args));
        rk_step_arena_release(pass->arena, round);
    }
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}

/* The up-projection of keys (or values): a matrix of [nope or v_head_dim, kv_rank] for every head. */
static rk_tensor_t up_projection(const struct rk_pass *pass, const struct rk_latent *latent, bool is_value)
{
    rk_tensor_t rows = rk_weight_value(pass, &latent->kv);
    rk_tensor_t first = rk_tensor_rows(rows, is_value ? latent->nope : 0, 1);
    rk_tensor_t matrices = rk_tensor_3d(first.data, rows.dtype, latent->num_heads,
                                        is_value ? latent->v_head_dim : latent->nope, latent->kv_rank);

    RK_ASSERT(rk_tensor_is_contiguous(rows));
    matrices.row_stride = rk_latent_kv_dim(latent) * latent->kv_rank;
    return matrices;
}

/* Computes [q_nope Wk, q_rope] of every head. */
static struct rk_status *absorb_queries(const struct rk_pass *pass, const struct rk_latent *latent,
                                        rk_tensor_t q, rk_tensor_t absorbed)
{
    int64_t head_dim = rk_latent_head_dim(latent), width = rk_latent_width(latent);
    int64_t num_vectors = q.shape[0] * latent->num_heads;
    rk_tensor_t flat = rk_tensor_2d(q.data, q.dtype, num_vectors, head_dim);
    rk_tensor_t flat_absorbed = rk_tensor_2d(absorbed.data, q.dtype, num_vectors, width);

    RK_ASSERT(rk_tensor_is_contiguous(q));
    RK_TRY(rk_batched_gemm(pass->stream, &(struct rk_batched_gemm_args){
                                             .y = rk_tensor_split_cols(absorbed, latent->num_heads, width),
                                             .x = q,
                                             .w = up_projection(pass, latent, false)}));
    return rk_copy_2d(pass->stream, &(struct rk_copy_2d_args){
                                        .out = rk_tensor_cols(flat_absorbed, latent->kv_rank, latent->rope),
                                        .x = rk_tensor_cols(flat, latent->nope, latent->rope)});
}

static struct rk_status *attend_absorbed(const struct rk_pass *pass, const struct rk_latent *latent,
                                         rk_tensor_t cache, struct rk_attn_paged_args args)
{
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);
    int64_t num_tokens = args.q.shape[0], heads = latent->num_heads;
    rk_tensor_t absorbed, sums, out = args.out;

    RK_TRY(rk_step_2d(pass->arena, &absorbed, pass->dtype, num_tokens, heads * rk_latent_width(latent)));
    RK_TRY(rk_step_2d(pass->arena, &sums, pass->dtype, num_tokens, heads * latent->kv_rank));
    RK_TRY(absorb_queries(pass, latent, args.q, absorbed));
    args.q = rk_tensor_split_cols(absorbed, heads, rk_latent_width(latent));
    args.out = rk_tensor_split_cols(sums, heads, latent->kv_rank);
    args.k_cache = cache;
    RK_TRY(rk_attn_paged(pass->stream, &args));
    RK_TRY(rk_batched_gemm(
        pass->stream, &(struct rk_batched_gemm_args){
                          .y = out, .x = args.out, .w = up_projection(pass, latent, true), .trans_w = true}));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}

/* Number of new tokens per sequence from which on the expanded form needs fewer multiplications: a key costs
 * kv_rank * kv_dim and saves 2 kv_rank + rope - head_dim - v_head_dim for every query that attends to it. */
static int64_t tokens_to_expand(const struct rk_latent *latent)
{
    int64_t saved =
        latent->kv_rank + rk_latent_width(latent) - rk_latent_head_dim(latent) - latent->v_head_dim;

    return saved > 0 ? latent->kv_rank * rk_latent_kv_dim(latent) / saved + 1 : INT64_MAX;
}

/* Dry run with the maximum memory of fast numerics: both forms, the expanded one for as many sequences as can
 * have that number of tokens. */
static struct rk_status *attend_dry(const struct rk_pass *pass, const struct rk_latent *latent,
                                    rk_tensor_t cache, struct rk_attn_paged_args args)
{
    int64_t num_seqs = RK_MIN(args.q.shape[0] / tokens_to_expand(latent), args.block_table.shape[0]);

    RK_TRY(attend_absorbed(pass, latent, cache, args));
    if (num_seqs == 0)
        return NULL;
    args.block_table = rk_tensor_rows(args.block_table, 0, num_seqs);
    args.seq_lens = rk_tensor_rows(args.seq_lens, 0, num_seqs);
    args.cu_q = rk_tensor_rows(args.cu_q, 0, num_seqs + 1);
    return attend_expanded(pass, latent, cache, args);
}

struct rk_status *rk_latent_attend_paged(const struct rk_pass *pass, const struct rk_block *block,
                                         rk_tensor_t q, rk_tensor_t latents, rk_tensor_t out)
{
    const struct rk_latent *latent = block->own;
    const struct rk_paged_step *paged = pass->paged;
    struct rk_attn_paged_args args = paged_args(pass, latent, q, out);
    rk_tensor_t cache = rk_block_cache(pass, block, 0);

    RK_TRY(rk_kv_write(pass->stream, &(struct rk_kv_write_args){
                                         .k_cache = cache,
                                         .k = rk_tensor_split_cols(latents, 1, latents.shape[1]),
                                         .slot_mapping = paged->slot_mapping,
                                     }));
    if (pass->is_strict)
        return attend_expanded(pass, latent, cache, args);
    if (rk_device_is_dry(rk_stream_device(pass->stream)))
        return attend_dry(pass, latent, cache, args);
    return paged->num_tokens / RK_MAX(paged->num_seqs, 1) >= tokens_to_expand(latent)
               ? attend_expanded(pass, latent, cache, args)
               : attend_absorbed(pass, latent, cache, args);
}
