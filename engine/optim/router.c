/* What the routers did in a step: sums over micro-batches on the device, fetched once per step. */
#include "engine/optim/trainer.h"

#include "base/rk_alloc.h"

static rk_tensor_t device_sums(const struct rk_router_sums *sums)
{
    return rk_tensor_1d(sums->device, RK_DTYPE_F64, sums->num_layers * sums->columns);
}

struct rk_status *rk_router_sums_create(struct rk_router_sums *out, const struct rk_model_core *core)
{
    struct rk_device *device = rk_stream_device(core->stream);

    *out = (struct rk_router_sums){.num_layers = core->num_routes,
                                   .num_experts = core->config.moe.num_experts,
                                   .losses = rk_router_losses_of(&core->moe),
                                   .columns = core->config.moe.num_experts + RK_NUM_ROUTER_SUMS};
    if (out->num_layers == 0)
        return NULL;
    out->host = rk_calloc((size_t)(out->num_layers * out->columns), sizeof(*out->host));
    RK_TRY(rk_device_alloc(device, &out->device, rk_router_sums_bytes(out), "sums of routers"));
    return rk_stream_zero(core->stream, out->device, rk_router_sums_bytes(out));
}

void rk_router_sums_fini(struct rk_router_sums *sums, struct rk_device *device)
{
    rk_device_free(device, sums->device);
    rk_free(sums->host);
}

size_t rk_router_sums_bytes(const struct rk_router_sums *sums)
{
    return (size_t)(sums->num_layers * sums->columns) * sizeof(double);
}

rk_tensor_t rk_router_sums_tensor(const struct rk_router_sums *sums)
{
    if (sums->num_layers == 0)
        return (rk_tensor_t){0};
    return rk_tensor_2d(sums->device, RK_DTYPE_F64, sums->num_layers, sums->columns);
}

struct rk_status *rk_router_sums_reset(struct rk_router_sums *sums, struct rk_stream *stream)
{
    return sums->num_layers > 0 ? rk_stream_zero(stream, sums->device, rk_router_sums_bytes(sums)) : NULL;
}

struct rk_status *rk_router_sums_fetch(struct rk_router_sums *sums, const struct rk_model_core *core)
{
    struct rk_comm_group *all = rk_mesh_comms_group(core->mesh, RK_GROUP_ALL);

    if (sums->num_layers == 0)
        return NULL;
    RK_TRY(rk_comm_all_reduce(all, core->stream, device_sums(sums), RK_REDUCE_SUM));
    RK_TRY(rk_stream_copy(core->stream, sums->host, sums->device, rk_router_sums_bytes(sums), RK_COPY_D2H));
    /* Micro-batches that follow without rk_trainer_begin add to zeros. */
    return rk_stream_zero(core->stream, sums->device, rk_router_sums_bytes(sums));
}

/* Adds a layer's terms to the sums over layers. */
static void add_layer(struct rk_router_stats *out, const struct rk_router_sums *sums, const double *layer)
{
    const double *terms = layer + sums->num_experts;
    double most = 0.0, total = 0.0, load;

    for (int64_t e = 0; e < sums->num_experts; e++) {
        most = RK_MAX(most, layer[e]);
        total += layer[e];
    }
    load = most * (double)sums->num_experts / RK_MAX(total, 1.0);
    out->max_load += load;
    out->max_load_of_layers = RK_MAX(out->max_load_of_layers, load);
    out->entropy += terms[RK_ROUTER_ENTROPY] / terms[RK_ROUTER_TOKENS];
    if (out->balance_name)
        out->balance_loss += terms[RK_ROUTER_BALANCE] / sums->losses.balance_coeff;
    if (out->has_z_loss)
        out->z_loss += terms[RK_ROUTER_Z] / terms[RK_ROUTER_TOKENS];
    out->num_layers++;
}

static void name_losses(struct rk_router_stats *out, const struct rk_router_losses *losses)
{
    if (losses->balance_coeff > 0.0)
        out->balance_name = losses->is_per_sequence ? "seq_load_balancing_loss" : "load_balancing_loss";
    out->has_z_loss = losses->z_coeff > 0.0;
}

void rk_router_stats_of(struct rk_router_stats *out, const struct rk_router_sums *sums)
{
    double count;

    *out = (struct rk_router_stats){0};
    name_losses(out, &sums->losses);
    for (int64_t layer = 0; layer < sums->num_layers; layer++) {
        const double *row = sums->host + layer * sums->columns;

        if (row[sums->num_experts + RK_ROUTER_TOKENS] > 0.0)
            add_layer(out, sums, row);
    }
    count = (double)RK_MAX(out->num_layers, 1);
    out->max_load /= count;
    out->entropy /= count;
    out->balance_loss /= count;
    out->z_loss /= count;
}
