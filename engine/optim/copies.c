/* Sums, in rank order, of gradients of which the copies of a parameter along tp have summands.
 *
 * For some parameters that every tp rank holds whole, each rank has one summand: norms with sequence
 * parallelism, and the norms of queries and keys. They are many and small, so they are exchanged together.
 * The copies of a key-value head are only on some of the ranks, which have no communicator of their own: the
 * whole group exchanges such a parameter. */
#include "engine/optim/trainer.h"

/* Range of the flat buffer whose gradients are complete. */
struct range {
    int64_t begin, end;
};

static bool needs_sum(const struct rk_trainer *trainer, int64_t i, struct range range)
{
    const struct rk_param_table *params = &trainer->model->core->params;
    const struct rk_param *param = rk_params_at(params, i);
    const struct rk_placement *placement = rk_params_placement(params, i);

    return placement->is_held && rk_params_is_trained(params, i) && param->flags & RK_PARAM_PARTIAL_GRAD &&
           rk_param_num_copies(param, params->mesh) > 1 && placement->offset >= range.begin &&
           placement->offset < range.end;
}

/* Whether every tp rank holds the whole parameter. */
static bool is_whole(const struct rk_trainer *trainer, int64_t i)
{
    const struct rk_param *param = rk_params_at(&trainer->model->core->params, i);

    return param->split.axis == RK_AXIS_TP && param->split.num_parts == 1;
}

static rk_tensor_t grad_of(const struct rk_trainer *trainer, int64_t i)
{
    const struct rk_placement *placement = rk_params_placement(&trainer->model->core->params, i);

    return rk_flat_view(trainer->grads, trainer->pass_dtype, placement->offset,
                        rk_placement_num_elements(placement));
}

/* out = part[first] + part[first + 1] + ..., over `num_parts` parts of out's length, rounded once. */
static struct rk_status *add_parts(struct rk_trainer *trainer, rk_tensor_t out, rk_tensor_t parts,
                                   int32_t first, int32_t num_parts)
{
    struct rk_stream *stream = trainer->model->core->stream;
    int64_t count = rk_tensor_num_elements(out);
    rk_tensor_t sum;

    RK_TRY(rk_step_1d(trainer->model->arena, &sum, trainer->grad_dtype, count));
    for (int32_t i = 0; i < num_parts; i++)
        RK_TRY(rk_axpby(stream, &(struct rk_axpby_args){
                                    .y = sum,
                                    .x = rk_flat_view(parts.data, parts.dtype, (first + i) * count, count),
                                    .alpha = 1,
                                    .beta = i == 0 ? 0.0f : 1.0f,
                                }));
    return rk_axpby(stream, &(struct rk_axpby_args){.y = out, .x = sum, .alpha = 1});
}

/* --- parts that only some of the ranks hold --- */

static struct rk_status *sum_part(struct rk_trainer *trainer, int64_t i)
{
    const struct rk_model_core *core = trainer->model->core;
    const struct rk_param *param = rk_params_at(&core->params, i);
    struct rk_comm_group *group = rk_mesh_comms_group(core->mesh, rk_param_split_group(param));
    int32_t part = rk_params_placement(&core->params, i)->part;
    int32_t first = rk_param_first_rank(param, core->params.mesh, part);
    rk_tensor_t grad = grad_of(trainer, i), parts;
    int64_t count = rk_tensor_num_elements(grad);
    struct rk_step_mark mark = rk_step_arena_mark(trainer->model->arena);

    RK_TRY(rk_step_1d(trainer->model->arena, &parts, grad.dtype, count * rk_comm_group_size(group)));
    RK_TRY(rk_comm_all_gather(group, core->stream, parts, grad));
    RK_TRY(add_parts(trainer, grad, parts, first, rk_param_num_copies(param, core->params.mesh)));
    rk_step_arena_release(trainer->model->arena, mark);
    return NULL;
}

/* --- parameters that every rank holds whole --- */

/* Copies their gradients to `packed`, or back. */
static struct rk_status *move_whole(struct rk_trainer *trainer, struct range range, rk_tensor_t packed,
                                    bool is_back)
{
    struct rk_stream *stream = trainer->model->core->stream;
    int64_t position = 0;

    for (int64_t i = 0; i < trainer->model->core->params.count; i++) {
        rk_tensor_t grad, place;

        if (!needs_sum(trainer, i, range) || !is_whole(trainer, i))
            continue;
        grad = grad_of(trainer, i);
        place = rk_flat_view(packed.data, packed.dtype, position, rk_tensor_num_elements(grad));
        position += rk_tensor_num_elements(grad);
        RK_TRY(rk_stream_copy(stream, is_back ? grad.data : place.data, is_back ? place.data : grad.data,
                              rk_tensor_bytes(grad), RK_COPY_D2D));
    }
    return NULL;
}

static int64_t count_whole(const struct rk_trainer *trainer, struct range range)
{
    int64_t count = 0;

    for (int64_t i = 0; i < trainer->model->core->params.count; i++) {
        if (needs_sum(trainer, i, range) && is_whole(trainer, i))
            count += rk_tensor_num_elements(grad_of(trainer, i));
    }
    return count;
}

static struct rk_status *sum_whole(struct rk_trainer *trainer, struct range range)
{
    const struct rk_model_core *core = trainer->model->core;
    struct rk_comm_group *group = rk_mesh_comms_group(core->mesh, RK_GROUP_TP);
    int64_t count = count_whole(trainer, range);
    struct rk_step_mark mark = rk_step_arena_mark(trainer->model->arena);
    rk_dtype_t dtype = trainer->pass_dtype;
    rk_tensor_t parts, mine;

    if (count == 0)
        return NULL;
    RK_TRY(rk_step_1d(trainer->model->arena, &parts, dtype, count * rk_comm_group_size(group)));
    mine = rk_flat_view(parts.data, dtype, rk_comm_group_rank(group) * count, count);
    RK_TRY(move_whole(trainer, range, mine, false));
    RK_TRY(rk_comm_all_gather(group, core->stream, parts, mine));
    RK_TRY(add_parts(trainer, mine, parts, 0, rk_comm_group_size(group)));
    RK_TRY(move_whole(trainer, range, mine, true));
    rk_step_arena_release(trainer->model->arena, mark);
    return NULL;
}

struct rk_status *rk_trainer_sum_copies(struct rk_trainer *trainer, int64_t begin, int64_t end)
{
    struct range range = {begin, end};

    RK_TRY(sum_whole(trainer, range));
    for (int64_t i = trainer->model->core->params.count - 1; i >= 0; i--) {
        if (needs_sum(trainer, i, range) && !is_whole(trainer, i))
            RK_TRY(sum_part(trainer, i));
    }
    return NULL;
}
