/* Random initialisation. Element i (global, row-major, without padding) of a tensor is a function of (seed,
 * name, i) alone: every layout starts from the same model. */
#include "engine/model/model.h"

#include "base/rk_alloc.h"
#include "base/rk_rng.h"
#include "base/rk_str.h"

/* N(0, initializer_range): this rank's part of the matrix. */
static struct rk_status *init_matrix(struct rk_model_core *core, const struct rk_param *param,
                                     const struct rk_param_box *box, void *values, uint64_t seed)
{
    return rk_random_normal(core->stream,
                            &(struct rk_random_normal_args){
                                .out = rk_tensor_2d(values, core->dtype, box->shape[0], box->shape[1]),
                                .deviation = core->config.initializer_range,
                                .seed = seed,
                                .stream = rk_rng_stream_of_name(param->name),
                                .first = (uint64_t)(box->begin[0] * param->shape[1] + box->begin[1]),
                                .row_pitch = (uint64_t)param->shape[1],
                            });
}

/* Ones (weight of a norm) or zeros (bias). The buffer must stay valid until the stream has copied it. */
static struct rk_status *init_vector(struct rk_model_core *core, const struct rk_param *param,
                                     const struct rk_param_box *box, void *values)
{
    bool is_bias = rk_str_has_suffix(param->name, ".bias") || param->flags & RK_PARAM_WIDE;
    double value = is_bias ? 0 : 1;
    size_t elem_bytes = rk_dtype_bytes(core->dtype);
    int64_t count = box->shape[0];
    char *raw;
    struct rk_status *st;

    RK_TRY(rk_try_alloc((void **)&raw, (size_t)count * elem_bytes, param->name));
    for (int64_t i = 0; i < count; i++)
        rk_store_f64(raw + (size_t)i * elem_bytes, core->dtype, &value, 1);
    st = rk_stream_copy(core->stream, values, raw, (size_t)count * elem_bytes, RK_COPY_H2D);
    if (!st)
        st = rk_stream_sync(core->stream);
    rk_free(raw);
    return st;
}

struct rk_status *rk_model_init_param(struct rk_model_core *core, int64_t i, uint64_t seed)
{
    const struct rk_param *param = rk_params_at(&core->params, i);
    const struct rk_placement *placement = rk_params_placement(&core->params, i);
    struct rk_param_box box = rk_param_get_box(param, placement);
    size_t elem_bytes = rk_dtype_bytes(core->dtype);
    char *values = (char *)core->values + (size_t)placement->offset * elem_bytes;

    RK_TRY(rk_stream_zero(core->stream, values, (size_t)rk_placement_num_elements(placement) * elem_bytes));
    return param->rank == 1 ? init_vector(core, param, &box, values)
                            : init_matrix(core, param, &box, values, seed);
}

struct rk_status *rk_model_init_random(struct rk_model *model, uint64_t seed,
                                       const struct rk_engine_hooks *hooks)
{
    struct rk_model_walk walk;

    rk_model_walk_begin(&walk, model->core, "initialise", hooks);
    for (int64_t i = 0; i < model->core->params.count; i++) {
        const struct rk_placement *placement = rk_params_placement(&model->core->params, i);

        if (placement->is_held)
            RK_TRY(rk_model_init_param(model->core, i, seed));
        RK_TRY(rk_model_walk_advance(&walk, rk_placement_num_elements(placement)));
    }
    RK_TRY(rk_model_copy_masters(model->core, 0, model->core->params.num_elements));
    return rk_stream_sync(model->core->stream);
}
