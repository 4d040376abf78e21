#include "engine/nn/nn_internal.h"

struct rk_status *rk_norm_fwd(const struct rk_pass *pass, const struct rk_weight *weight, rk_tensor_t *stream,
                              rk_tensor_t delta, struct rk_norm_saved *saved)
{
    struct rk_rmsnorm_fwd_args args = {
        .x = *stream, .weight = rk_weight_value(pass, weight), .eps = pass->norm_eps};
    int64_t num_tokens = stream->shape[0], hidden_size = stream->shape[1];

    if (delta.data) {
        args.x = delta;
        args.residual = *stream;
        args.sum = *stream;
        if (pass->keeps_activations)
            RK_TRY(rk_step_2d(pass->arena, &args.sum, pass->dtype, num_tokens, hidden_size));
        *stream = args.sum;
    }
    if (pass->keeps_activations)
        RK_TRY(rk_step_1d(pass->arena, &args.rstd, pass->stat_dtype, num_tokens));
    RK_TRY(rk_step_2d(pass->arena, &args.y, pass->dtype, num_tokens, hidden_size));
    *saved = (struct rk_norm_saved){.x = *stream, .rstd = args.rstd, .y = args.y};
    return rk_rmsnorm_fwd(pass->stream, &args);
}

struct rk_status *rk_norm_bwd(const struct rk_pass *pass, const struct rk_weight *weight,
                              const struct rk_norm_saved *saved, rk_tensor_t dy, rk_tensor_t dstream,
                              bool is_first)
{
    return rk_rmsnorm_bwd(pass->stream, &(struct rk_rmsnorm_bwd_args){
                                            .dx = dstream,
                                            .dweight = rk_weight_grad(pass, weight),
                                            .dy = dy,
                                            .x = saved->x,
                                            .dresidual = is_first ? (rk_tensor_t){0} : dstream,
                                            .weight = rk_weight_value(pass, weight),
                                            .rstd = saved->rstd,
                                        });
}
