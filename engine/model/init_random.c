/* Random initialisation. Element i (global, row-major, without padding) of a tensor is a function of (seed,
 * name, i) alone: every layout starts from the same model. */
#include "engine/model/model_internal.h"

#include "base/rk_alloc.h"
#include "base/rk_rng.h"
#include "base/rk_str.h"

struct fill {
    uint64_t seed, stream;
    double constant; /* of vectors */
    double scale;    /* of matrices: standard deviation */
};

/* Values of local row `row`; zeros in the padding of the vocabulary. */
static void fill_row(const struct rk_param *param, const struct fill *fill, int64_t row, double *out)
{
    int64_t cols = param->local_shape[1];
    int64_t global_row = row + (param->split_dim == 0 ? param->part * param->local_shape[0] : 0);
    int64_t first = global_row * param->shape[1] + (param->split_dim == 1 ? param->part * cols : 0);
    bool is_padding = global_row >= param->shape[0];

    for (int64_t c = 0; c < cols; c++) {
        if (is_padding)
            out[c] = 0;
        else if (param->rank == 1)
            out[c] = fill->constant;
        else
            out[c] = fill->scale * rk_rng_normal(fill->seed, fill->stream, (uint64_t)(first + c));
    }
}

static struct rk_status *init_param(struct rk_model *model, const struct rk_param *param, uint64_t seed)
{
    struct rk_model_core *core = model->core;
    struct fill fill = {
        .seed = seed,
        .stream = rk_rng_stream_of_name(param->name),
        .constant = rk_str_has_suffix(param->name, ".bias") ? 0 : 1,
        .scale = core->config.initializer_range,
    };
    int64_t cols = param->local_shape[1], step = rk_model_rows_per_move(model, param);
    size_t row_bytes = (size_t)cols * rk_dtype_bytes(core->dtype);
    char *base = (char *)core->values + (size_t)param->offset * rk_dtype_bytes(core->dtype);
    void *wide = NULL, *raw = NULL;
    struct rk_status *st;

    RK_TRY_GOTO(st, rk_try_alloc(&wide, (size_t)cols * sizeof(double), param->name), out);
    RK_TRY_GOTO(st, rk_try_alloc(&raw, (size_t)step * row_bytes, param->name), out);
    for (int64_t begin = 0; begin < param->local_shape[0]; begin += step) {
        int64_t count = RK_MIN(step, param->local_shape[0] - begin);

        for (int64_t r = 0; r < count; r++) {
            fill_row(param, &fill, begin + r, wide);
            rk_store_f64((char *)raw + (size_t)r * row_bytes, core->dtype, wide, cols);
        }
        RK_TRY_GOTO(st,
                    rk_stream_copy(core->stream, base + (size_t)begin * row_bytes, raw,
                                   (size_t)count * row_bytes, RK_COPY_H2D),
                    out);
        RK_TRY_GOTO(st, rk_stream_sync(core->stream), out);
    }

out:
    rk_free(wide);
    rk_free(raw);
    return st;
}

struct rk_status *rk_model_init_random(struct rk_model *model, uint64_t seed)
{
    for (int64_t i = 0; i < model->core->params.count; i++)
        RK_TRY(init_param(model, rk_params_at(&model->core->params, i), seed));
    return NULL;
}
