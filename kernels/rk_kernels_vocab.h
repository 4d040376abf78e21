/* Arguments of the operators over the vocabulary: statistics of logits, log-probs of ids, sampling. Part of
 * rk_kernels.h, whose rules apply. */
#ifndef RK_KERNELS_VOCAB_H
#define RK_KERNELS_VOCAB_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/rk_tensor.h"

RK_BEGIN_DECLS

/* Columns of the statistics of a row of logits. */
enum { RK_STAT_MAX, RK_STAT_SUM, RK_STAT_MOMENT, RK_STAT_LABEL, RK_NUM_STATS };

/* Statistics of a (vocabulary-parallel part of a) row of logits, z = logits * inv_temperature, over the first
 * num_valid columns (padded vocabulary rows are excluded, not masked):
 *   stats[t] = { m = max z,  S = sum e^(z-m),  U = sum e^(z-m) (z-m),  z_label }
 * z_label is 0 if the label is in another part. Parts of several ranks are merged by rk_vocab_stats_merge. */
struct rk_vocab_stats_args {
    rk_tensor_t stats;   /* F64 [T, 4]; m = -inf, S = U = 0 when num_valid is 0 */
    rk_tensor_t squares; /* none, or F64 [T]: Q = sum e^(2(z-m)), for the sum of squared probabilities */
    rk_tensor_t logits;  /* [T, columns] */
    rk_tensor_t labels;  /* I32 [T], global ids */
    int64_t vocab_begin, num_valid;
    float inv_temperature;
};

/* Merges parts in the order given: m = max m_i, S = sum S_i e^(m_i-m), U = sum e^(m_i-m) (U_i + (m_i-m) S_i),
 * z_label = sum; parts with m_i = -inf are skipped.
 * Then log_probs = z_label - m - log S and entropy = log S - U/S, and, with Q = sum Q_i e^(2(m_i-m)),
 * sum_pi_squared = Q/S^2. */
struct rk_vocab_stats_merge_args {
    rk_tensor_t stats;          /* F64 [T, 4]: merged statistics, for the backward pass; may be none */
    rk_tensor_t squares;        /* F64 [T]: merged Q, for the backward pass; may be none */
    rk_tensor_t parts;          /* F64 [num_parts, T, 4] */
    rk_tensor_t square_parts;   /* F64 [num_parts, T], for squares and sum_pi_squared; otherwise none */
    rk_tensor_t log_probs;      /* stat [T] */
    rk_tensor_t entropy;        /* stat [T], or none */
    rk_tensor_t sum_pi_squared; /* stat [T], or none */
};

/* Maximum number of ids per row for vocab_gather and top_k. */
#define RK_VOCAB_IDS_MAX 1024

/* Log-probs of several ids per row, for example of a teacher's most likely ids. A rank's part: z at the ids
 * in its columns, 0 elsewhere. An id below 0 means none. */
struct rk_vocab_gather_args {
    rk_tensor_t z;      /* F64 [T, K] */
    rk_tensor_t ids;    /* I32 [T, K], global; K up to RK_VOCAB_IDS_MAX */
    rk_tensor_t logits; /* [T, columns] */
    rk_tensor_t stats;  /* F64 [T, 4] of this part, from vocab_stats */
    int64_t vocab_begin, num_valid;
    float inv_temperature;
};

/* log_probs = z - m - log S, where z is the sum of the parts in the order given; 0 if there is no id. */
struct rk_vocab_gather_merge_args {
    rk_tensor_t log_probs; /* stat [T, K] */
    rk_tensor_t parts;     /* F64 [num_parts, T, K] */
    rk_tensor_t ids;       /* I32 [T, K] */
    rk_tensor_t stats;     /* F64 [T, 4], merged */
};

/* Upstream gradients of the log-probs at these ids. Gradients of equal ids in a row are added. */
struct rk_vocab_gather_grads {
    rk_tensor_t ids;        /* I32 [T, K] as in the forward pass, or none: then the other members are none
                             * too */
    rk_tensor_t log_probs;  /* stat [T, K] of the forward pass */
    rk_tensor_t dlog_probs; /* stat [T, K]; not read if there is no id */
    rk_tensor_t dsum;       /* stat [T]: sum of dlog_probs over the ids */
};

/* The K largest logits of each row's first num_valid columns, in descending order, equal ones by ascending
 * column; -inf and NaN are never included. For several parts, call it a second time over the concatenated
 * values of all parts, in their order. */
struct rk_top_k_args {
    rk_tensor_t values;     /* stat [T, K]; -inf beyond the last */
    rk_tensor_t ids;        /* I32 [T, K]; -1 beyond the last; K up to RK_VOCAB_IDS_MAX */
    rk_tensor_t logits;     /* [T, columns] */
    rk_tensor_t source_ids; /* I32 [T, columns]: the ids of the columns; or none: vocab_begin + column */
    int64_t vocab_begin, num_valid;
};

/* Gradient by the raw logits, given the merged statistics and upstream a = dL/dlog_prob, b = dL/dentropy,
 * c = dL/dsum_pi_squared:
 *   dlogits[j] = inv_temperature * (a * (1[j = label] - p_j) - b * p_j * (z_j - m - U/S)
 *                                   + 2 c * p_j * (p_j - Q/S^2)
 *                                   + sum_k g_k (1[j = id_k] - p_j)),
 * g those of `gathered`, with p_j = e^(z_j-m)/S. Columns from num_valid on get 0. */
struct rk_vocab_stats_bwd_args {
    rk_tensor_t dlogits;         /* [T, columns]; may alias logits */
    rk_tensor_t logits;          /* [T, columns] */
    rk_tensor_t stats;           /* F64 [T, 4], merged over the ranks */
    rk_tensor_t squares;         /* F64 [T], merged, for dsum_pi_squared; otherwise none */
    rk_tensor_t dlog_probs;      /* stat [T] */
    rk_tensor_t dentropy;        /* none, or stat [T] */
    rk_tensor_t dsum_pi_squared; /* none, or stat [T] */
    struct rk_vocab_gather_grads gathered;
    rk_tensor_t labels; /* I32 [T] */
    int64_t vocab_begin, num_valid;
    float inv_temperature;
};

/* Sampling, one token per row: fp32 logits -> temperature -> top-k -> top-p -> argmax(z - log E) with
 * counter-based Exp(1) noise (base/rk_rng.h: a function of seed, stream, position and token id only).
 * temperature < 1e-5 is greedy; ties go to the smallest id. log_probs is that of the sampled distribution
 * (processed_logprobs), z = logits * (1 / temperature in fp32) as in vocab_stats, bit-identical to it without
 * a filter; for a greedy row it is that of the unscaled softmax. A row without a distribution (NaN, +inf or
 * nothing but -inf) gives token 0 with a log-prob of NaN. Definitions of the filters: docs/sampling.md. */
struct rk_sample_params {
    float temperature;
    int32_t top_k;    /* <= 0: off */
    float top_p;      /* >= 1: off */
    int32_t position; /* absolute index of the token being sampled */
    uint64_t seed, stream;
};

struct rk_sample_args {
    rk_tensor_t tokens;                    /* I32 [R] */
    rk_tensor_t log_probs;                 /* F32 [R] */
    rk_tensor_t logits;                    /* [R, columns]: the whole vocabulary */
    int64_t vocab_size;                    /* columns from here on are padding */
    const struct rk_sample_params *params; /* device memory, [R] */
};

/* tokens[t] = sampled[source[t]] where source[t] >= 0: gives a step the tokens that the previous step has
 * sampled, so that it can be enqueued before the host has read them. */
struct rk_next_tokens_args {
    rk_tensor_t tokens;  /* I32 [T]; other elements are not written */
    rk_tensor_t sampled; /* I32 [R] */
    rk_tensor_t source;  /* I32 [T], each < R */
};

RK_END_DECLS

#endif
