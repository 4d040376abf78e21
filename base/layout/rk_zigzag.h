/* How context parallelism cuts packed sequences over the c = cp_size ranks of a cp group. Pure.
 *
 * A sequence of L tokens, a multiple of 2c, is 2c chunks of C = L / 2c tokens. Rank r owns chunks r and
 * 2c - 1 - r, in this order: its u-th token of the sequence is at position
 *
 *   u < C:  r C + u          otherwise:  L - (r + 1) C + (u - C)
 *
 * so the ranks see equally many pairs in causal attention. A rank's rows are its tokens of all sequences, one
 * sequence after the other; its prefix sums are cu_seqlens / c. For L = 16, c = 2: rank 0 has positions 0-3
 * and 12-15, rank 1 has 4-11. Columns that are shifted by a token (labels, masks, old log-probs) are shifted
 * before the cut. Source: Llama 3, arXiv:2407.21783, section 3.3.2. */
#ifndef RK_ZIGZAG_H
#define RK_ZIGZAG_H

#include <stdint.h>

#include "base/rk_status.h"

RK_BEGIN_DECLS

/* The smallest length that holds `length` tokens and that c ranks, each of which splits its tokens over
 * tp_size (sequence parallelism; 1 without), can share evenly: a multiple of 2 c tp_size. 0 stays 0. */
int64_t rk_zigzag_padded_length(int64_t length, int32_t cp_size, int32_t tp_size);

/* A packed micro-batch, whole. */
struct rk_zigzag {
    int32_t cp_size, num_seqs;
    const int32_t *cu_seqlens; /* [num_seqs + 1], from 0, of the padded lengths; borrowed */
};

/* INVALID_ARGUMENT names a length that is no multiple of 2 cp_size. The functions below assert it. */
struct rk_status *rk_zigzag_check(const struct rk_zigzag *cut) RK_NODISCARD;
/* Rows of each rank. */
int32_t rk_zigzag_num_rows(const struct rk_zigzag *cut);
/* cu_seqlens[num_seqs + 1] of each rank. */
void rk_zigzag_cu_seqlens(const struct rk_zigzag *cut, int32_t *cu_seqlens);
/* rows[i]: the whole micro-batch's row that is rank cp_rank's i-th. Concatenated over all ranks these are the
 * rows of the result of an all-gather in rank order, and of the input of a reduce-scatter. */
void rk_zigzag_rows(const struct rk_zigzag *cut, int32_t cp_rank, int32_t *rows);
/* positions[i]: of the rank's i-th row in its sequence, for RoPE. */
void rk_zigzag_positions(const struct rk_zigzag *cut, int32_t cp_rank, int32_t *positions);
/* gathered[i]: index of the whole micro-batch's i-th row in the result of an all-gather in rank
 * order; gathering by it restores the order of the micro-batch. */
void rk_zigzag_gathered_rows(const struct rk_zigzag *cut, int32_t *gathered);

/* A rank's queries as segments of attention over the keys of the whole micro-batch in its own order
 * (rk_attn_varlen_args): two per sequence, its early chunk and its late one, which use the keys of the
 * sequence up to themselves. Both use the early keys, so the backward pass takes one call for each half. */
enum rk_zigzag_half {
    RK_ZIGZAG_EARLY = 1u << 0,
    RK_ZIGZAG_LATE = 1u << 1,
    RK_ZIGZAG_BOTH = RK_ZIGZAG_EARLY | RK_ZIGZAG_LATE,
};

struct rk_zigzag_segments {
    int32_t *cu_seqlens; /* [2 num_seqs + 1], of the rank's rows */
    int32_t *k_begin;    /* [2 num_seqs] */
    int32_t *k_lens;     /* [2 num_seqs]; 0 in the half that is not wanted */
};

/* Fills the caller's arrays. `halves`: the halves that the call is to compute. */
void rk_zigzag_list_segments(const struct rk_zigzag *cut, int32_t cp_rank, unsigned halves,
                             struct rk_zigzag_segments *out);

RK_END_DECLS

#endif
