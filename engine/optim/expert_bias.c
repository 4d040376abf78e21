/* Correction biases of routers (Wang et al., arXiv:2408.15664): after a step, bias_e += rate * sign(mean load
 * - load_e), with the choices of all tokens of the step. Experts with too few tokens are chosen more often.
 * The bias has no gradient; it is fp32 in three runs (params/wide.c). */
#include "engine/optim/trainer.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

/* The bias of one layer. */
struct bias {
    const struct rk_placement *placement;
    const double *loads; /* [num_experts] */
    void *parts;         /* host, [RK_PARAM_WIDE_PARTS, num_experts] in the model's dtype */
};

static bool is_bias(const struct rk_param *param)
{
    return (param->flags & RK_PARAM_WIDE) && (param->flags & RK_PARAM_ROUTER);
}

/* The biases of this rank; returns their number. Rows of the parameter table are in the order of layers. */
static int64_t list(const struct rk_trainer *trainer, struct bias *biases, char *memory)
{
    const struct rk_param_table *params = &trainer->model->core->params;
    const struct rk_router_sums *sums = &trainer->routers;
    size_t bytes =
        (size_t)(RK_PARAM_WIDE_PARTS * sums->num_experts) * rk_dtype_bytes(trainer->model->core->dtype);
    int64_t count = 0, layer = 0;

    for (int64_t i = 0; i < params->count; i++) {
        const struct rk_placement *placement = rk_params_placement(params, i);

        if (!is_bias(rk_params_at(params, i)))
            continue;
        RK_ASSERT(layer < sums->num_layers);
        if (placement->is_held)
            biases[count++] = (struct bias){.placement = placement,
                                            .loads = sums->host + layer * sums->columns,
                                            .parts = memory + (size_t)layer * bytes};
        layer++;
    }
    RK_ASSERT(layer == sums->num_layers);
    return count;
}

static rk_tensor_t on_device(const struct rk_model_core *core, const struct bias *bias)
{
    return rk_flat_view(core->values, core->dtype, bias->placement->offset,
                        rk_placement_num_elements(bias->placement));
}

/* scratch: [num_experts] floats, then doubles of the values and their parts. The mean is compared as a sum:
 * loads are whole numbers, of which the quotient by a number of experts is not. */
static void move(const struct rk_model_core *core, const struct bias *bias, float *joined, double *values)
{
    int64_t count = core->config.moe.num_experts;
    double sum = 0.0, *parts = values + count;

    rk_param_wide_join(bias->parts, core->dtype, count, joined);
    for (int64_t e = 0; e < count; e++)
        sum += bias->loads[e];
    for (int64_t e = 0; e < count; e++) {
        double load = (double)count * bias->loads[e];
        double sign = (double)(sum > load) - (double)(sum < load);

        values[e] = (double)(float)((double)joined[e] + sign * core->moe.bias_update_rate);
    }
    rk_param_wide_split(values, count, parts);
    rk_store_f64(bias->parts, core->dtype, parts, RK_PARAM_WIDE_PARTS * count);
}

static struct rk_status *read(const struct rk_model_core *core, const struct bias *biases, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        rk_tensor_t from = on_device(core, &biases[i]);

        RK_TRY(rk_stream_copy(core->stream, biases[i].parts, from.data, rk_tensor_bytes(from), RK_COPY_D2H));
    }
    return rk_stream_sync(core->stream);
}

/* Writes the masters too: a checkpoint has them. */
static struct rk_status *write(struct rk_trainer *trainer, const struct bias *biases, int64_t count)
{
    const struct rk_model_core *core = trainer->model->core;

    for (int64_t i = 0; i < count; i++) {
        rk_tensor_t to = on_device(core, &biases[i]);

        RK_TRY(rk_stream_copy(core->stream, to.data, biases[i].parts, rk_tensor_bytes(to), RK_COPY_H2D));
        RK_TRY(rk_model_copy_masters(core, biases[i].placement->offset, rk_tensor_num_elements(to)));
    }
    return rk_stream_sync(core->stream);
}

struct rk_status *rk_trainer_update_biases(struct rk_trainer *trainer)
{
    const struct rk_model_core *core = trainer->model->core;
    size_t num_layers = (size_t)core->num_routes, experts = (size_t)core->config.moe.num_experts;
    struct bias *biases;
    double *values;
    float *joined;
    char *memory;
    struct rk_status *st;
    int64_t count;

    if (!core->moe.updates_bias || core->moe.freezes_router || !(core->moe.bias_update_rate > 0.0))
        return NULL;
    biases = rk_calloc(num_layers, sizeof(*biases));
    memory = rk_calloc(num_layers * RK_PARAM_WIDE_PARTS * experts, rk_dtype_bytes(core->dtype));
    values = rk_calloc((1 + RK_PARAM_WIDE_PARTS) * experts, sizeof(*values));
    joined = rk_calloc(experts, sizeof(*joined));
    count = list(trainer, biases, memory);
    st = read(core, biases, count);
    for (int64_t i = 0; !st && i < count; i++)
        move(core, &biases[i], joined, values);
    if (!st)
        st = write(trainer, biases, count);
    rk_free(joined);
    rk_free(values);
    rk_free(memory);
    rk_free(biases);
    return st;
}
