#include "engine/nn/nn.h"

struct rk_status *rk_norm_fwd(const struct rk_pass *pass, const struct rk_weight *weight,
                              const struct rk_norm_io *io)
{
    struct rk_rmsnorm_fwd_args args = {
        .y = io->y,
        .rstd = io->rstd,
        .x = io->residual,
        .weight = rk_weight_value(pass, weight),
        .weight_is_settled = true,
        .eps = pass->norm_eps,
    };

    if (io->delta.data) {
        args.x = io->delta;
        args.residual = io->residual;
        args.sum = io->sum;
    }
    return rk_rmsnorm_fwd(pass->stream, &args);
}

struct rk_status *rk_norm_bwd(const struct rk_pass *pass, const struct rk_weight *weight,
                              const struct rk_norm_saved *saved, rk_tensor_t dy, rk_tensor_t dresidual,
                              bool is_first)
{
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);
    rk_tensor_t dweight;

    RK_TRY(rk_weight_grad_or_scratch(pass, weight, &dweight));
    RK_TRY(rk_rmsnorm_bwd(pass->stream, &(struct rk_rmsnorm_bwd_args){
                                            .dx = dresidual,
                                            .dweight = dweight,
                                            .dy = dy,
                                            .x = saved->x,
                                            .dresidual = is_first ? (rk_tensor_t){0} : dresidual,
                                            .weight = rk_weight_value(pass, weight),
                                            .rstd = saved->rstd,
                                        }));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}
