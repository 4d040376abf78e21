/* Output projection with vocabulary-parallel log-probs and entropy.
 *
 * Logits exist for one chunk of tokens at a time and are recomputed in the backward pass, so the memory of
 * the head does not grow with tokens * vocab_size. The backward pass runs from the last chunk to the first,
 * because the last chunk's logits are still in memory. Statistics are merged over tp in rank order (kernels:
 * vocab_stats). */
#include "engine/nn/head_lm_internal.h"

#include "base/rk_assert.h"

static void declare(struct rk_head *head, struct rk_param_table *params, const struct rk_head_site *site)
{
    head->weight = site->config->tie_word_embeddings
                       ? *site->embedding
                       : rk_vocabulary_declare(params, site->config, "lm_head.weight", NULL);
    head->vocab_begin = head->weight.rows * params->coords.axis[RK_AXIS_TP];
    head->num_valid = RK_MIN(RK_MAX(site->config->vocab_size - head->vocab_begin, 0), head->weight.rows);
    head->chunk_tokens = RK_HEAD_CHUNK;
}

rk_tensor_t rk_head_part_of(rk_tensor_t parts, int64_t part)
{
    size_t part_bytes = (size_t)(parts.shape[1] * parts.shape[2]) * rk_dtype_bytes(parts.dtype);

    return rk_tensor_2d((char *)parts.data + (size_t)part * part_bytes, parts.dtype, parts.shape[1],
                        parts.shape[2]);
}

/* Statistics of the labelled positions, one part per tp rank. */
struct stat_parts {
    rk_tensor_t stats;   /* F64 [tp, L, 4] */
    rk_tensor_t squares; /* F64 [tp, L]; none if not requested */
    struct rk_head_id_parts ids;
};

static rk_tensor_t my_squares(const struct rk_pass *pass, const struct stat_parts *parts)
{
    rk_tensor_t mine = parts->squares;

    return mine.data ? rk_tensor_1d(rk_tensor_rows(mine, rk_comm_group_rank(pass->tp), 1).data, mine.dtype,
                                    mine.shape[1])
                     : mine;
}

/* Statistics of all labelled positions over this rank's columns. */
static struct rk_status *local_stats(const struct rk_pass *pass, const struct rk_head *head,
                                     const struct rk_head_saved *saved, const struct stat_parts *parts)
{
    int64_t total = saved->x.shape[0], chunk = saved->logits.shape[0];
    rk_tensor_t stats = rk_head_part_of(parts->stats, rk_comm_group_rank(pass->tp));
    rk_tensor_t squares = my_squares(pass, parts);

    for (int64_t begin = 0; begin < total; begin += chunk) {
        int64_t count = RK_MIN(chunk, total - begin);
        struct rk_vocab_stats_args args = {
            .stats = rk_tensor_rows(stats, begin, count),
            .squares = squares.data ? rk_tensor_rows(squares, begin, count) : squares,
            .logits = rk_tensor_rows(saved->logits, 0, count),
            .labels = rk_tensor_rows(saved->labels, begin, count),
            .vocab_begin = head->vocab_begin,
            .num_valid = head->num_valid,
            .inv_temperature = saved->inv_temperature,
        };

        RK_TRY(rk_linear_fwd(pass, &head->weight, rk_tensor_rows(saved->x, begin, count), args.logits));
        RK_TRY(rk_vocab_stats(pass->stream, &args));
        RK_TRY(rk_head_ids_add_chunk(pass, saved, &parts->ids, &args, begin));
        rk_pass_note_alive(pass);
    }
    return NULL;
}

/* Merges the parts of all ranks into the outputs. */
static struct rk_status *merge_stats(const struct rk_pass *pass, const struct stat_parts *parts,
                                     const struct rk_head_saved *saved, const struct rk_head_out *out)
{
    rk_tensor_t stats = rk_head_part_of(parts->stats, rk_comm_group_rank(pass->tp));

    RK_TRY(rk_comm_all_gather(pass->tp, pass->stream, parts->stats, stats));
    if (parts->squares.data)
        RK_TRY(rk_comm_all_gather(pass->tp, pass->stream, parts->squares, my_squares(pass, parts)));
    RK_TRY(rk_vocab_stats_merge(pass->stream, &(struct rk_vocab_stats_merge_args){
                                                  .stats = saved->stats,
                                                  .squares = saved->squares,
                                                  .parts = parts->stats,
                                                  .square_parts = parts->squares,
                                                  .log_probs = out->of[RK_HEAD_LOG_PROBS],
                                                  .entropy = out->of[RK_HEAD_ENTROPY],
                                                  .sum_pi_squared = out->of[RK_HEAD_SUM_PI_SQUARED],
                                              }));
    return rk_head_ids_merge(pass, &parts->ids, saved, &out->ids);
}

static struct rk_status *make_outputs(const struct rk_pass *pass, uint32_t wanted,
                                      struct rk_head_saved *saved, struct rk_head_out *out)
{
    int64_t count = saved->index.shape[0];

    RK_TRY(rk_step_2d(pass->kept, &saved->x, pass->dtype, count, pass->hidden_size));
    RK_TRY(rk_step_2d(pass->kept, &saved->stats, RK_DTYPE_F64, count, 4));
    RK_TRY(rk_step_1d(pass->kept, &out->of[RK_HEAD_LOG_PROBS], pass->stat_dtype, count));
    if (wanted & RK_HEAD_BIT(RK_HEAD_ENTROPY))
        RK_TRY(rk_step_1d(pass->kept, &out->of[RK_HEAD_ENTROPY], pass->stat_dtype, count));
    if (wanted & RK_HEAD_BIT(RK_HEAD_SUM_PI_SQUARED)) {
        RK_TRY(rk_step_1d(pass->kept, &saved->squares, RK_DTYPE_F64, count));
        RK_TRY(rk_step_1d(pass->kept, &out->of[RK_HEAD_SUM_PI_SQUARED], pass->stat_dtype, count));
    }
    return rk_head_ids_make_outputs(pass, saved, &out->ids);
}

static struct rk_status *forward(const struct rk_pass *pass, const struct rk_head *head, rk_tensor_t hidden,
                                 uint32_t wanted, struct rk_head_saved *saved, struct rk_head_out *out)
{
    int64_t count = saved->index.shape[0];
    int32_t tp_size = rk_comm_group_size(pass->tp);
    struct stat_parts parts = {.squares = {0}};
    struct rk_step_mark mark;

    RK_ASSERT(saved->labels.shape[0] == count);
    RK_TRY(make_outputs(pass, wanted, saved, out));
    /* Saved if a backward pass follows, otherwise allocated before the temporary memory that is released. */
    if (!pass->grads)
        mark = rk_step_arena_mark(pass->arena);
    RK_TRY(rk_step_2d(pass->grads ? pass->kept : pass->arena, &saved->logits, pass->dtype,
                      RK_MIN(head->chunk_tokens, count), head->weight.rows));
    if (pass->grads)
        mark = rk_step_arena_mark(pass->arena);
    RK_TRY(rk_step_3d(pass->arena, &parts.stats, RK_DTYPE_F64, tp_size, count, 4));
    if (wanted & RK_HEAD_BIT(RK_HEAD_SUM_PI_SQUARED))
        RK_TRY(rk_step_2d(pass->arena, &parts.squares, RK_DTYPE_F64, tp_size, count));
    RK_TRY(rk_head_ids_make_parts(pass, saved, &parts.ids));
    RK_TRY(rk_head_gather(pass, hidden, saved));
    RK_TRY(local_stats(pass, head, saved, &parts));
    RK_TRY(merge_stats(pass, &parts, saved, out));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}

/* Gradients of one chunk: of the weight, and this rank's summand of dx. The first chunk to run reuses its
 * logits and overwrites the weight's gradient if the pass does. */
static struct rk_status *chunk_bwd(const struct rk_pass *pass, const struct rk_head *head,
                                   const struct rk_vocab_stats_bwd_args *args, rk_tensor_t x, rk_tensor_t dx,
                                   bool is_first)
{
    struct rk_pass chunk_pass = *pass;

    chunk_pass.overwrites_grads = pass->overwrites_grads && is_first;
    if (!is_first)
        RK_TRY(rk_linear_fwd(pass, &head->weight, x, args->logits));
    RK_TRY(rk_vocab_stats_bwd(pass->stream, args));
    return rk_linear_bwd(&chunk_pass, &head->weight, x, args->dlogits, dx);
}

/* dx is this rank's summand. */
static struct rk_status *hidden_bwd(const struct rk_pass *pass, const struct rk_head *head,
                                    const struct rk_head_saved *saved, const struct rk_head_out *dout,
                                    rk_tensor_t dx)
{
    int64_t total = saved->x.shape[0], chunk = saved->logits.shape[0];
    int64_t last = total > 0 ? (total - 1) / chunk * chunk : 0;
    rk_tensor_t dentropy = dout->of[RK_HEAD_ENTROPY], dsquares = dout->of[RK_HEAD_SUM_PI_SQUARED];

    for (int64_t begin = last; total > 0 && begin >= 0; begin -= chunk) {
        int64_t count = RK_MIN(chunk, total - begin);
        struct rk_vocab_stats_bwd_args args = {
            .dlogits = rk_tensor_rows(saved->logits, 0, count),
            .logits = rk_tensor_rows(saved->logits, 0, count),
            .stats = rk_tensor_rows(saved->stats, begin, count),
            .squares = dsquares.data ? rk_tensor_rows(saved->squares, begin, count) : dsquares,
            .dlog_probs = rk_tensor_rows(dout->of[RK_HEAD_LOG_PROBS], begin, count),
            .dentropy = dentropy.data ? rk_tensor_rows(dentropy, begin, count) : dentropy,
            .dsum_pi_squared = dsquares.data ? rk_tensor_rows(dsquares, begin, count) : dsquares,
            .gathered = rk_head_ids_grads(saved, &dout->ids, begin, count),
            .labels = rk_tensor_rows(saved->labels, begin, count),
            .vocab_begin = head->vocab_begin,
            .num_valid = head->num_valid,
            .inv_temperature = saved->inv_temperature,
        };

        RK_TRY(chunk_bwd(pass, head, &args, rk_tensor_rows(saved->x, begin, count),
                         rk_tensor_rows(dx, begin, count), begin == last));
        rk_pass_note_alive(pass);
    }
    return NULL;
}

static struct rk_status *backward(const struct rk_pass *pass, const struct rk_head *head,
                                  const struct rk_head_saved *saved, const struct rk_head_out *dout,
                                  rk_tensor_t dhidden)
{
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);
    rk_tensor_t dx;

    RK_TRY(rk_step_2d(pass->arena, &dx, pass->dtype, saved->x.shape[0], pass->hidden_size));
    RK_TRY(hidden_bwd(pass, head, saved, dout, dx));
    RK_TRY(rk_head_scatter_sum(pass, saved, dx, dhidden));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}

static const char *const architectures[] = {"ForCausalLM", NULL};

const struct rk_head_ops rk_head_lm = {
    .name = "lm",
    .outputs =
        RK_HEAD_BIT(RK_HEAD_LOG_PROBS) | RK_HEAD_BIT(RK_HEAD_ENTROPY) | RK_HEAD_BIT(RK_HEAD_SUM_PI_SQUARED),
    .architectures = architectures,
    .declare = declare,
    .forward = forward,
    .backward = backward,
};

struct rk_status *rk_head_interleave(const struct rk_pass *pass, rk_tensor_t parts, rk_tensor_t out)
{
    int64_t num_rows = parts.shape[1], columns = parts.shape[2];

    for (int64_t p = 0; p < parts.shape[0]; p++) {
        rk_tensor_t cols = rk_tensor_cols(out, p * columns, columns), x = rk_head_part_of(parts, p);

        for (int64_t begin = 0; begin < num_rows; begin += RK_HEAD_CHUNK) {
            int64_t count = RK_MIN((int64_t)RK_HEAD_CHUNK, num_rows - begin);

            RK_TRY(rk_gather_rows(pass->stream, &(struct rk_rows_args){
                                                    .out = rk_tensor_rows(cols, begin, count),
                                                    .x = rk_tensor_rows(x, begin, count),
                                                    .index = rk_tensor_rows(pass->row_numbers, 0, count),
                                                }));
        }
    }
    return NULL;
}

struct rk_status *rk_head_logits(const struct rk_pass *pass, const struct rk_head *head, rk_tensor_t x,
                                 rk_tensor_t *logits)
{
    int64_t num_rows = x.shape[0], columns = head->weight.rows;
    int32_t tp_size = rk_comm_group_size(pass->tp);
    struct rk_step_mark mark;
    rk_tensor_t parts, mine;

    RK_TRY(rk_step_2d(pass->arena, logits, pass->dtype, num_rows, columns * tp_size));
    if (tp_size == 1)
        return rk_linear_fwd(pass, &head->weight, x, *logits);
    mark = rk_step_arena_mark(pass->arena);
    RK_TRY(rk_step_3d(pass->arena, &parts, pass->dtype, tp_size, num_rows, columns));
    mine = rk_head_part_of(parts, rk_comm_group_rank(pass->tp));
    RK_TRY(rk_linear_fwd(pass, &head->weight, x, mine));
    RK_TRY(rk_comm_all_gather(pass->tp, pass->stream, parts, mine));
    RK_TRY(rk_head_interleave(pass, parts, *logits));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}
