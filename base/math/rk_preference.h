/* Losses on a pair of a chosen and a rejected response (direct preference optimization and its variants).
 *
 * With x = sum of log_prob - ref_log_prob over the tokens of a response that count, c for the chosen and r
 * for the rejected one, D = x_c - x_r, n their numbers of tokens, Dn = x_c / n_c - x_r / n_r, s the logistic
 * function, b = beta and e = label_smoothing:
 *
 *   sigmoid       -(1 - e) ln s(b D) - e ln s(-b D)
 *   robust        (-(1 - e) ln s(b D) + e ln s(-b D)) / (1 - 2 e)                   e < 1/2
 *   hinge         max(0, 1 - b D)
 *   ipo           (Dn - 1 / (2 b))^2
 *   ipo_sum       (D - 1 / (2 b))^2
 *   sigmoid_norm  -ln s(b Dn)
 *   exo_pair      s(b D) (ln s(b D) - ln(1 - e)) + s(-b D) (ln s(-b D) - ln e)      e > 0
 *   apo_zero      1 - s(b x_c) + s(b x_r)
 *   apo_down      s(b x_c) + 1 - s(b D)
 *   nca_pair      -ln s(b x_c) - 1/2 ln s(-b x_c) - 1/2 ln s(-b x_r)
 *   sppo_hard     (x_c - 1 / (2 b))^2 + (x_r + 1 / (2 b))^2
 *
 * Rafailov et al., arXiv:2305.18290; names and formulas as in TRL. */
#ifndef RK_PREFERENCE_H
#define RK_PREFERENCE_H

#include <stdbool.h>

#include "base/rk_status.h"

RK_BEGIN_DECLS

struct rk_preference_loss; /* one of the formulas */

struct rk_preference {
    const struct rk_preference_loss *loss;
    double beta, label_smoothing;
};
/* INVALID_ARGUMENT names the key, value and expectation: loss_type, or label_smoothing where the formula
 * needs one above 0. */
struct rk_status *rk_preference_read(struct rk_preference *out, const char *loss_type, double beta,
                                     double label_smoothing) RK_NODISCARD;

/* The contribution of a response. */
struct rk_preference_side {
    double log_ratio;  /* x */
    double num_tokens; /* n, above 0 */
};
/* The loss of one pair, and its derivatives by x_c and x_r. NaN gives NaN. */
struct rk_preference_slope {
    double loss, chosen, rejected;
};
struct rk_preference_slope rk_preference_of(const struct rk_preference *pair,
                                            const struct rk_preference_side *chosen,
                                            const struct rk_preference_side *rejected);

RK_END_DECLS

#endif
