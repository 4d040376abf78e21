/* Learning-rate schedule, Megatron's: n counts update calls, wu the warm-up, N the decay steps.
 *
 *   n <= wu, wu > 0      init + (max - init) * n / wu
 *   constant             max
 *   n > N                min
 *   inverse square root  max(min, max * sqrt(max(wu, 1)) / sqrt(max(n, 1)))
 *   q = (n - wu) / (N - wu):   linear  c = 1 - q,   cosine  c = (1 + cos(pi q)) / 2;   min + c * (max - min)
 *
 * The first call has n = 0, that is lr_warmup_init with a warm-up. */
#include "engine/rk_train.h"

#include <math.h>

#include "base/rk_assert.h"

double rk_lr_at(const struct rk_optim_config *config, int64_t num_steps)
{
    int64_t warmup = config->lr_warmup_steps;
    double range = config->lr - config->min_lr;
    double q;

    RK_ASSERT(num_steps >= 0);
    if (warmup > 0 && num_steps <= warmup)
        return config->lr_warmup_init +
               (config->lr - config->lr_warmup_init) * (double)num_steps / (double)warmup;
    if (config->lr_decay_style == RK_LR_CONSTANT)
        return config->lr;
    if (num_steps > config->lr_decay_steps)
        return config->min_lr;
    if (config->lr_decay_style == RK_LR_INVERSE_SQRT)
        return fmax(config->min_lr,
                    config->lr * sqrt((double)RK_MAX(warmup, 1) / (double)RK_MAX(num_steps, 1)));

    RK_ASSERT(config->lr_decay_steps > warmup);
    q = (double)(num_steps - warmup) / (double)(config->lr_decay_steps - warmup);
    if (config->lr_decay_style == RK_LR_LINEAR)
        return config->min_lr + (1.0 - q) * range;
    RK_ASSERT(config->lr_decay_style == RK_LR_COSINE);
    return config->min_lr + 0.5 * (1.0 + cos(M_PI * q)) * range;
}
