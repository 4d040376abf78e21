/* Global norm of the gradient. Every element of every group counts once: shards are disjoint, and of
 * parameters that several tp ranks hold only the first copy counts. So one sum over the whole mesh is the
 * square of the norm. Partial sums are f64; the norm depends on the layout only through their rounding. */
#include "engine/optim/trainer.h"

#include <math.h>

/* Adds the squares of the group's gradients that count on this rank. */
static struct rk_status *add_squares(struct rk_trainer *trainer, const struct rk_trainer_group *group,
                                     rk_tensor_t sums)
{
    for (int64_t i = 0; i < group->segments.count; i++) {
        const struct rk_shard_segment *segment = &group->segments.items[i];

        if (!segment->is_counted)
            continue;
        RK_TRY(
            rk_sum_squares(trainer->model->core->stream, &(struct rk_sum_squares_args){
                                                             .out = sums,
                                                             .x = rk_trainer_segment_grads(trainer, segment),
                                                         }));
    }
    return NULL;
}

struct rk_status *rk_trainer_grad_norm(struct rk_trainer *trainer, double *norm, bool *is_finite)
{
    const struct rk_model_core *core = trainer->model->core;
    rk_tensor_t sums = rk_tensor_1d(trainer->sums, RK_DTYPE_F64, 2);
    double host[2];

    RK_TRY(rk_stream_zero(core->stream, sums.data, rk_tensor_bytes(sums)));
    for (int g = 0; g < RK_GRAD_GROUPS; g++)
        RK_TRY(add_squares(trainer, &trainer->groups[g], sums));
    RK_TRY(
        rk_comm_all_reduce(rk_mesh_comms_group(core->mesh, RK_GROUP_ALL), core->stream, sums, RK_REDUCE_SUM));
    RK_TRY(rk_stream_copy(core->stream, host, sums.data, sizeof(host), RK_COPY_D2H));
    RK_TRY(rk_stream_sync(core->stream));
    *norm = sqrt(host[0]);
    *is_finite = host[1] == 0 && isfinite(*norm);
    return NULL;
}
