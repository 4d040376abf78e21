/* AdamW, decoupled weight decay (Loshchilov & Hutter, arXiv:1711.05101). The powers of beta are computed in
 * f64 on the host. */
#include "engine/optim/trainer.h"

#include <math.h>

static struct rk_status *adamw_apply(struct rk_stream *stream, const struct rk_optim_segment *segment,
                                     const struct rk_optim_step *step)
{
    const struct rk_optim_config *config = step->config;

    return rk_adamw(stream, &(struct rk_adamw_args){
                                .param = segment->param,
                                .master = segment->master,
                                .m = segment->states[0],
                                .v = segment->states[1],
                                .grad = segment->grad,
                                .lr = config->lr,
                                .beta1 = config->betas[0],
                                .beta2 = config->betas[1],
                                .eps = config->eps,
                                .weight_decay = segment->weight_decay,
                                .correction1 = 1.0 - pow(config->betas[0], (double)step->step),
                                .correction2 = 1.0 - pow(config->betas[1], (double)step->step),
                                .grad_scale = step->grad_scale,
                            });
}

const struct rk_optim_ops rk_optim_adamw = {
    .name = "adam",
    .num_states = 2,
    .state_names = {"exp_avg", "exp_avg_sq"},
    .apply = adamw_apply,
};
