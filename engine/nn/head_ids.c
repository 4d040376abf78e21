/* Log-probs of several ids per position, and the most likely ids, of the language model head (head_lm.c,
 * which calls this for every chunk of logits). A rank computes both for its columns. All ranks then merge the
 * parts in rank order: the most likely ids overall are among those of the parts. */
#include "engine/nn/head_lm_internal.h"

#include "base/rk_assert.h"

_Static_assert(RK_DISTILL_TOPK_MAX == RK_VOCAB_IDS_MAX, "jobs and operators have the same limit of ids");

struct rk_status *rk_head_ids_make_outputs(const struct rk_pass *pass, struct rk_head_saved *saved,
                                           struct rk_head_id_tensors *out)
{
    int64_t count = saved->index.shape[0], num_top = saved->num_top_ids;

    if (saved->ids.data) {
        RK_TRY(rk_step_2d(pass->kept, &saved->id_log_probs, pass->stat_dtype, count, saved->ids.shape[1]));
        out->log_probs = saved->id_log_probs;
    }
    if (num_top == 0)
        return NULL;
    RK_TRY(rk_step_2d(pass->kept, &out->top_ids, RK_DTYPE_I32, count, num_top));
    return rk_step_2d(pass->kept, &out->top_log_probs, pass->stat_dtype, count, num_top);
}

struct rk_status *rk_head_ids_make_parts(const struct rk_pass *pass, const struct rk_head_saved *saved,
                                         struct rk_head_id_parts *parts)
{
    int64_t count = saved->index.shape[0], num_top = saved->num_top_ids;
    int32_t tp_size = rk_comm_group_size(pass->tp);

    *parts = (struct rk_head_id_parts){.z = {0}};
    if (saved->ids.data)
        RK_TRY(rk_step_3d(pass->arena, &parts->z, RK_DTYPE_F64, tp_size, count, saved->ids.shape[1]));
    if (num_top == 0)
        return NULL;
    RK_TRY(rk_step_3d(pass->arena, &parts->top_logits, pass->stat_dtype, tp_size, count, num_top));
    return rk_step_3d(pass->arena, &parts->top_ids, RK_DTYPE_I32, tp_size, count, num_top);
}

static rk_tensor_t my_rows(const struct rk_pass *pass, rk_tensor_t parts, int64_t begin, int64_t count)
{
    return rk_tensor_rows(rk_head_part_of(parts, rk_comm_group_rank(pass->tp)), begin, count);
}

struct rk_status *rk_head_ids_add_chunk(const struct rk_pass *pass, const struct rk_head_saved *saved,
                                        const struct rk_head_id_parts *parts,
                                        const struct rk_vocab_stats_args *stats, int64_t begin)
{
    int64_t count = stats->logits.shape[0];

    if (saved->ids.data)
        RK_TRY(rk_vocab_gather(pass->stream, &(struct rk_vocab_gather_args){
                                                 .z = my_rows(pass, parts->z, begin, count),
                                                 .ids = rk_tensor_rows(saved->ids, begin, count),
                                                 .logits = stats->logits,
                                                 .stats = stats->stats,
                                                 .vocab_begin = stats->vocab_begin,
                                                 .num_valid = stats->num_valid,
                                                 .inv_temperature = stats->inv_temperature,
                                             }));
    if (saved->num_top_ids == 0)
        return NULL;
    return rk_top_k(pass->stream, &(struct rk_top_k_args){
                                      .values = my_rows(pass, parts->top_logits, begin, count),
                                      .ids = my_rows(pass, parts->top_ids, begin, count),
                                      .logits = stats->logits,
                                      .vocab_begin = stats->vocab_begin,
                                      .num_valid = stats->num_valid,
                                  });
}

static struct rk_status *gather_parts(const struct rk_pass *pass, rk_tensor_t parts)
{
    return rk_comm_all_gather(pass->tp, pass->stream, parts,
                              rk_head_part_of(parts, rk_comm_group_rank(pass->tp)));
}

/* The K largest logits over all parts, and their ids. */
static struct rk_status *merge_top(const struct rk_pass *pass, const struct rk_head_id_parts *parts,
                                   rk_tensor_t top_logits, rk_tensor_t top_ids)
{
    int64_t num_parts = parts->top_ids.shape[0], count = top_ids.shape[0], num_top = top_ids.shape[1];
    rk_tensor_t logits = rk_head_part_of(parts->top_logits, 0), ids = rk_head_part_of(parts->top_ids, 0);

    if (num_parts > 1) {
        RK_TRY(gather_parts(pass, parts->top_logits));
        RK_TRY(gather_parts(pass, parts->top_ids));
        RK_TRY(rk_step_2d(pass->arena, &logits, top_logits.dtype, count, num_parts * num_top));
        RK_TRY(rk_step_2d(pass->arena, &ids, RK_DTYPE_I32, count, num_parts * num_top));
        RK_TRY(rk_head_interleave(pass, parts->top_logits, logits));
        RK_TRY(rk_head_interleave(pass, parts->top_ids, ids));
    }
    return rk_top_k(pass->stream, &(struct rk_top_k_args){
                                      .values = top_logits,
                                      .ids = top_ids,
                                      .logits = logits,
                                      .source_ids = ids,
                                      .num_valid = num_parts * num_top,
                                  });
}

/* Log-probs of [L, K] scaled logits, or of [num_parts, L, K], which are merged. */
static struct rk_status *merge_log_probs(const struct rk_pass *pass, const struct rk_head_saved *saved,
                                         rk_tensor_t ids, rk_tensor_t parts, rk_tensor_t log_probs)
{
    return rk_vocab_gather_merge(pass->stream, &(struct rk_vocab_gather_merge_args){
                                                   .log_probs = log_probs,
                                                   .parts = parts,
                                                   .ids = ids,
                                                   .stats = saved->stats,
                                               });
}

static struct rk_status *merge_top_log_probs(const struct rk_pass *pass, const struct rk_head_id_parts *parts,
                                             const struct rk_head_saved *saved,
                                             const struct rk_head_id_tensors *out)
{
    int64_t count = out->top_ids.shape[0], num_top = out->top_ids.shape[1];
    rk_tensor_t logits, z;

    RK_TRY(rk_step_2d(pass->arena, &logits, pass->stat_dtype, count, num_top));
    RK_TRY(rk_step_3d(pass->arena, &z, RK_DTYPE_F64, 1, count, num_top));
    RK_TRY(merge_top(pass, parts, logits, out->top_ids));
    RK_TRY(rk_axpby(pass->stream,
                    &(struct rk_axpby_args){.y = z, .x = logits, .alpha = saved->inv_temperature}));
    return merge_log_probs(pass, saved, out->top_ids, z, out->top_log_probs);
}

struct rk_status *rk_head_ids_merge(const struct rk_pass *pass, const struct rk_head_id_parts *parts,
                                    const struct rk_head_saved *saved, const struct rk_head_id_tensors *out)
{
    if (saved->ids.data) {
        RK_TRY(gather_parts(pass, parts->z));
        RK_TRY(merge_log_probs(pass, saved, saved->ids, parts->z, saved->id_log_probs));
    }
    return saved->num_top_ids > 0 ? merge_top_log_probs(pass, parts, saved, out) : NULL;
}

struct rk_vocab_gather_grads rk_head_ids_grads(const struct rk_head_saved *saved,
                                               const struct rk_head_id_tensors *dout, int64_t begin,
                                               int64_t count)
{
    if (!saved->ids.data)
        return (struct rk_vocab_gather_grads){.ids = {0}};
    return (struct rk_vocab_gather_grads){
        .ids = rk_tensor_rows(saved->ids, begin, count),
        .log_probs = rk_tensor_rows(saved->id_log_probs, begin, count),
        .dlog_probs = rk_tensor_rows(dout->log_probs, begin, count),
        .dsum = rk_tensor_rows(dout->log_prob_sum, begin, count),
    };
}
