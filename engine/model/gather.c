/* Gathers rows of parameters and gradients from the ranks: for export, tests and tools. */
#include "engine/model/model.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

/* Bytes of one gather over all tp ranks: large enough to hide latency, small enough for any staging
 * buffer. */
#define MOVE_BYTES ((int64_t)4 << 20)

int64_t rk_model_rows_per_move(const struct rk_model *model, int64_t param)
{
    const struct rk_param_table *params = &model->core->params;
    struct rk_placement placement = rk_params_owner_placement(params, param);
    int64_t row_bytes = placement.local_shape[1] * (int64_t)rk_dtype_bytes(model->core->dtype) *
                        rk_params_split_size(params, param);

    return RK_MIN(RK_MAX(MOVE_BYTES / row_bytes, 1), placement.local_shape[0]);
}

static bool is_grad(const struct rk_param_rows *rows)
{
    return rows->grads.data;
}

/* The flat buffer of parameters or gradients. */
static rk_tensor_t buffer_of(const struct rk_model_core *core, const struct rk_param_rows *rows)
{
    return is_grad(rows) ? rows->grads
                         : rk_flat_view(core->values, core->dtype, 0, core->params.num_elements);
}

/* This rank's rows within it. */
static rk_tensor_t local_rows(const struct rk_model *model, const struct rk_placement *placement,
                              const struct rk_param_rows *rows)
{
    rk_tensor_t buffer = buffer_of(model->core, rows);
    int64_t begin = placement->offset + rows->begin * placement->local_shape[1];

    return rk_tensor_2d((char *)buffer.data + (size_t)begin * rk_dtype_bytes(buffer.dtype), buffer.dtype,
                        rows->count, placement->local_shape[1]);
}

/* Gathers from the ranks of this stage that the parameter is split over. */
static struct rk_status *gather_held(struct rk_model *model, const struct rk_param_rows *rows,
                                     rk_tensor_t parts)
{
    const struct rk_model_core *core = model->core;
    const struct rk_param *param = rk_params_at(&core->params, rows->param);
    struct rk_comm_group *group = rk_mesh_comms_group(core->mesh, rk_param_split_group(param));
    rk_tensor_t local = local_rows(model, rk_params_placement(&core->params, rows->param), rows), mine;
    size_t part_bytes = rk_tensor_bytes(local);

    mine = rk_tensor_2d((char *)parts.data + (size_t)rk_comm_group_rank(group) * part_bytes, local.dtype,
                        rows->count, parts.shape[2]);
    RK_TRY(rk_stream_copy(core->stream, mine.data, local.data, part_bytes, RK_COPY_D2D));
    if (is_grad(rows))
        RK_TRY(rk_comm_all_reduce(rk_mesh_comms_group(core->mesh, param->grad_group), core->stream, mine,
                                  RK_REDUCE_SUM));
    return rk_comm_all_gather(group, core->stream, parts, mine);
}

/* Broadcasts the rows of an expert from the rank of ep that holds them to the others of the stage. */
static struct rk_status *spread_over_ep(struct rk_model *model, const struct rk_param *param,
                                        rk_tensor_t parts)
{
    const struct rk_model_core *core = model->core;

    if (param->ep_rank < 0 || core->params.coords.axis[RK_AXIS_PP] != param->stage)
        return NULL;
    return rk_comm_broadcast(rk_mesh_comms_group(core->mesh, RK_GROUP_EP), core->stream, parts,
                             param->ep_rank);
}

/* Broadcasts from the stage that holds the rows to the others. Two stages with the same weight each have a
 * summand of its gradient. */
static struct rk_status *spread_over_stages(struct rk_model *model, const struct rk_param_rows *rows,
                                            rk_tensor_t parts)
{
    const struct rk_model_core *core = model->core;
    const struct rk_param *param = rk_params_at(&core->params, rows->param);
    struct rk_comm_group *stages = rk_mesh_comms_group(core->mesh, RK_GROUP_PP);

    if (!is_grad(rows) || param->shared_stage < 0)
        return rk_comm_broadcast(stages, core->stream, parts, param->stage);
    if (!rk_params_placement(&core->params, rows->param)->is_held)
        RK_TRY(rk_stream_zero(core->stream, parts.data, rk_tensor_bytes(parts)));
    return rk_comm_all_reduce(stages, core->stream, parts, RK_REDUCE_SUM);
}

struct rk_status *rk_model_gather_rows(struct rk_model *model, const struct rk_param_rows *rows, void *out)
{
    const struct rk_model_core *core = model->core;
    const struct rk_param *param = rk_params_at(&core->params, rows->param);
    struct rk_placement placement = rk_params_owner_placement(&core->params, rows->param);
    struct rk_comm_group *group = rk_mesh_comms_group(core->mesh, rk_param_split_group(param));
    rk_tensor_t parts;

    RK_ASSERT(rows->begin + rows->count <= placement.local_shape[0]);
    rk_step_arena_reset(model->arena);
    RK_TRY(rk_step_3d(model->arena, &parts, is_grad(rows) ? rk_master_dtype(core->dtype) : core->dtype,
                      rk_comm_group_size(group), rows->count, placement.local_shape[1]));
    if (rk_params_placement(&core->params, rows->param)->is_held)
        RK_TRY(gather_held(model, rows, parts));
    RK_TRY(spread_over_ep(model, param, parts));
    RK_TRY(spread_over_stages(model, rows, parts));
    RK_TRY(rk_stream_copy(core->stream, out, parts.data, rk_tensor_bytes(parts), RK_COPY_D2H));
    return rk_stream_sync(core->stream);
}

/* Adds the rows of a holder of `box` to the whole tensor. */
static void add_rows(const struct rk_param *param, const struct rk_param_rows *rows,
                     const struct rk_param_box *box, const double *from, double *out)
{
    int64_t cols = box->shape[1];

    for (int64_t r = 0; r < rows->count && rows->begin + r < box->shape[0]; r++) {
        int64_t row = box->begin[0] + rows->begin + r;

        for (int64_t c = 0; c < cols; c++)
            out[row * param->shape[1] + box->begin[1] + c] += from[r * cols + c];
    }
}

/* Copies count once, except where each copy has a summand of the gradient. */
static bool contributes(const struct rk_param *param, const struct rk_param_rows *rows,
                        const struct rk_placement *placement)
{
    return placement->is_counted || (is_grad(rows) && param->flags & RK_PARAM_PARTIAL_GRAD);
}

static void assemble(const struct rk_model *model, const struct rk_param_rows *rows, const char *raw,
                     double *wide, double *out)
{
    const struct rk_param_table *params = &model->core->params;
    const struct rk_param *param = rk_params_at(params, rows->param);
    rk_dtype_t dtype = buffer_of(model->core, rows).dtype;
    int64_t part_elements = rows->count * rk_params_owner_placement(params, rows->param).local_shape[1];
    struct rk_mesh_coords peer = params->coords;

    rk_param_owner_coords(&peer, param);
    for (int32_t rank = 0; rank < rk_params_split_size(params, rows->param); rank++) {
        struct rk_placement placement;
        struct rk_param_box box;

        peer.axis[param->split.axis] = rank;
        rk_param_place(&placement, param, params->mesh, &peer);
        if (!contributes(param, rows, &placement))
            continue;
        box = rk_param_get_box(param, &placement);
        rk_load_f64(wide, raw + (size_t)(rank * part_elements) * rk_dtype_bytes(dtype), dtype, part_elements);
        add_rows(param, rows, &box, wide, out);
    }
}

struct rk_status *rk_model_gather(struct rk_model *model, int64_t i, rk_tensor_t grads, double *out)
{
    const struct rk_param *param = rk_model_param_at(model, i);
    struct rk_placement placement = rk_params_owner_placement(&model->core->params, i);
    struct rk_param_rows rows = {.param = i, .grads = grads};
    int64_t step = rk_model_rows_per_move(model, i);
    size_t part_elements = (size_t)(step * placement.local_shape[1]);
    void *raw = NULL, *wide = NULL;
    struct rk_status *st;

    RK_TRY_GOTO(
        st,
        rk_try_alloc(&raw,
                     part_elements * (size_t)rk_params_split_size(&model->core->params, i) * sizeof(double),
                     param->name),
        out);
    RK_TRY_GOTO(st, rk_try_alloc(&wide, part_elements * sizeof(double), param->name), out);
    for (int64_t j = 0; j < rk_param_num_elements(param); j++)
        out[j] = 0;
    for (; rows.begin < placement.local_shape[0]; rows.begin += rows.count) {
        rows.count = RK_MIN(step, placement.local_shape[0] - rows.begin);
        RK_TRY_GOTO(st, rk_model_gather_rows(model, &rows, raw), out);
        assemble(model, &rows, raw, wide, out);
    }

out:
    rk_free(raw);
    rk_free(wide);
    return st;
}

struct rk_status *rk_model_gather_param(struct rk_model *model, int64_t i, double *out)
{
    return rk_model_gather(model, i, (rk_tensor_t){0}, out);
}
