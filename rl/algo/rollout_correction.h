/* Rollout correction of a whole batch (base/math/rk_rollout_correction.h has the formulas of a row). */
#ifndef RK_RL_ROLLOUT_CORRECTION_H
#define RK_RL_ROLLOUT_CORRECTION_H

#include "base/rk_json.h"
#include "base/math/rk_rollout_correction.h"

/* [B, R], row-major. */
struct rk_rollout_corr_in {
    int64_t num_rows, response_length;
    const float *old_log_probs, *rollout_log_probs;
    const int64_t *response_mask;
};

struct rk_rollout_corr_out {
    float *weights;          /* [B, R], 0 outside the mask; not written without rollout_is */
    int64_t *response_mask;  /* [B, R]: without rejected tokens; may be the input's */
    struct rk_json *metrics; /* rollout_corr/...; null where a value is not finite */
};

/* ABORTED (reason NON_FINITE) for log-probs that are not finite, INVALID_ARGUMENT when the mask counts no
 * token. */
struct rk_status *rk_rollout_corr_apply(const struct rk_rollout_corr_out *out,
                                        const struct rk_rollout_corr_in *in,
                                        const struct rk_rollout_correction *config) RK_NODISCARD;

/* The counted tokens of a batch, row after row. */
struct rk_rollout_rows {
    int64_t num_rows, num_valid_rows; /* valid: with a token */
    int64_t *begins;                  /* [num_rows + 1] into the arrays of tokens */
    double *old, *rollout, *log_ratio;
    double *raw, *weights; /* without rollout_is: unset */
    uint8_t *keep;
};

/* --- metrics (rollout_correction_metrics.c); there is a token --- */
/* Before a normalisation of the weights. */
void rk_rollout_is_metrics(struct rk_json *metrics, const struct rk_rollout_rows *rows,
                           const struct rk_rollout_correction *config);
void rk_rollout_rs_metrics(struct rk_json *metrics, const struct rk_rollout_rows *rows,
                           const struct rk_rollout_correction *config);
/* How far the two policies are from each other. */
void rk_rollout_policy_metrics(struct rk_json *metrics, const struct rk_rollout_rows *rows);
/* Sets rollout_corr/<name>, with `option` rollout_corr/rollout_rs_<option>_<name>. */
void rk_rollout_corr_metric(struct rk_json *metrics, const char *option, const char *name, double value);

#endif
