/* Per-token estimators of KL(pi || ref) from log-probs of sampled tokens, with x = log_prob - ref:
 *
 *   k1   x                                              gradient by log_prob  1
 *   abs  |x|                                                                  sign(x)
 *   k2   x^2 / 2                                                              x
 *   k3   y = clamp(-x, -20, 20);  clamp(e^y - y - 1, -10, 10)                 1 - e^-x, 0 where a clamp acts
 *
 * A name that ends in "+" keeps the value and takes the gradient of k2, whose expectation is that of the KL
 * itself. Schulman, "Approximating KL divergence", 2020. verl's "full" form needs all logits and is not
 * implemented in verl either. */
#ifndef RK_KL_H
#define RK_KL_H

#include <stdbool.h>

#include "base/math/formulas.def"
#include "base/rk_status.h"

RK_BEGIN_DECLS

typedef enum rk_kl_type { RK_KL_K1, RK_KL_ABS, RK_KL_K2, RK_KL_K3, RK_KL_COUNT } rk_kl_type_t;

/* A name of RK_KL_NAME_TABLE, also with "+". INVALID_ARGUMENT names key and text. */
struct rk_status *rk_kl_type_parse(const char *key, const char *text, rk_kl_type_t *type,
                                   bool *straight_through) RK_NODISCARD;
/* One estimator: value and gradient by log_prob. NaN gives NaN. */
void rk_kl_estimate(rk_kl_type_t type, bool straight_through, double log_prob, double ref, double *value,
                    double *grad);

/* Divergences over the ids that a teacher finds most likely: engine/loss/loss_distill_topk.c. */
typedef enum rk_topk_divergence {
#define RK_TOPK_ID(id, name) RK_TOPK_##id,
    RK_TOPK_TABLE(RK_TOPK_ID)
#undef RK_TOPK_ID
        RK_TOPK_DIVERGENCE_COUNT
} rk_topk_divergence_t;

/* A name of RK_TOPK_TABLE; false: another text. */
bool rk_topk_divergence_parse(const char *text, rk_topk_divergence_t *divergence);

RK_END_DECLS

#endif
