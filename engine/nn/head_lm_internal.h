/* Shared by the two files of the language model head: head_lm.c, and head_ids.c for several ids per
 * position. */
#ifndef RK_HEAD_LM_INTERNAL_H
#define RK_HEAD_LM_INTERNAL_H

#include "base/config/rk_knobs.h"
#include "engine/nn/nn.h"

/* --- head_lm.c --- */
/* The part of rank `part` in [tp, rows, cols]. */
rk_tensor_t rk_head_part_of(rk_tensor_t parts, int64_t part);
/* out[i][p * columns + j] = parts[p][i][j]. */
struct rk_status *rk_head_interleave(const struct rk_pass *pass, rk_tensor_t parts,
                                     rk_tensor_t out) RK_NODISCARD;

/* --- head_ids.c: functions do nothing and allocate nothing for outputs that `saved` does not request --- */
/* One part per tp rank. */
struct rk_head_id_parts {
    rk_tensor_t z;          /* F64 [tp, L, K]: scaled logits of the ids */
    rk_tensor_t top_logits; /* stat [tp, L, K] */
    rk_tensor_t top_ids;    /* I32 [tp, L, K] */
};

/* Allocates the outputs, and the parts, which are needed until they are merged. */
struct rk_status *rk_head_ids_make_outputs(const struct rk_pass *pass, struct rk_head_saved *saved,
                                           struct rk_head_id_tensors *out) RK_NODISCARD;
struct rk_status *rk_head_ids_make_parts(const struct rk_pass *pass, const struct rk_head_saved *saved,
                                         struct rk_head_id_parts *parts) RK_NODISCARD;
/* Adds this rank's part of the chunk from row `begin` on, with the logits and statistics of `stats`. */
struct rk_status *rk_head_ids_add_chunk(const struct rk_pass *pass, const struct rk_head_saved *saved,
                                        const struct rk_head_id_parts *parts,
                                        const struct rk_vocab_stats_args *stats, int64_t begin) RK_NODISCARD;
/* Call after all chunks, when saved->stats are merged. */
struct rk_status *rk_head_ids_merge(const struct rk_pass *pass, const struct rk_head_id_parts *parts,
                                    const struct rk_head_saved *saved,
                                    const struct rk_head_id_tensors *out) RK_NODISCARD;
/* Gradients of the rows of a chunk, for vocab_stats_bwd. */
struct rk_vocab_gather_grads rk_head_ids_grads(const struct rk_head_saved *saved,
                                               const struct rk_head_id_tensors *dout, int64_t begin,
                                               int64_t count);

#endif
