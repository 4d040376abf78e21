/* Aggregation modes: how losses l of tokens become one number. A token with mask counts as
 *
 *   token-mean               l / num_tokens
 *   token-sum                l
 *   seq-mean-token-sum       l / num_sequences
 *   seq-mean-token-mean      l / (length * num_sequences)      length: counted tokens of its sequence
 *   seq-mean-token-sum-norm  l / (scale * num_sequences)
 *
 * and a token without mask is ignored: a NaN there has no effect. */
#ifndef RK_LOSS_AGG_H
#define RK_LOSS_AGG_H

#include <stdint.h>

#include "base/math/formulas.def"
#include "base/rk_status.h"

RK_BEGIN_DECLS

typedef enum rk_loss_agg_mode {
#define RK_AGG_ID(id, name) RK_AGG_##id,
    RK_AGG_TABLE(RK_AGG_ID)
#undef RK_AGG_ID
        RK_AGG_COUNT
} rk_loss_agg_mode_t;

const char *rk_loss_agg_mode_name(rk_loss_agg_mode_t mode);
/* INVALID_ARGUMENT names key and text. */
struct rk_status *rk_loss_agg_mode_parse(const char *key, const char *text,
                                         rk_loss_agg_mode_t *mode) RK_NODISCARD;

/* Counts of the whole mini-batch, independent of the local part. */
struct rk_loss_denominators {
    double num_tokens, num_sequences; /* of the plan */
    double scale;                     /* of seq-mean-token-sum-norm */
};

/* Packed sequences: weight[t], so that sum_t weight[t] * l[t] is the loss; 0 where the mask is, and
 * everywhere when the denominator is 0. */
void rk_loss_weights(double *weight, rk_loss_agg_mode_t mode, const uint8_t *mask, const int32_t *cu_seqlens,
                     int32_t num_seqs, const struct rk_loss_denominators *denominators);

/* A padded [num_rows, width] matrix, for metrics: num_tokens and num_sequences count the tokens and rows with
 * a mark. 0 without a mark. */
struct rk_loss_matrix {
    int64_t num_rows, width;
    const float *values;
    const int64_t *mask;
};
double rk_loss_aggregate(const struct rk_loss_matrix *matrix, rk_loss_agg_mode_t mode, double scale);

RK_END_DECLS

#endif
