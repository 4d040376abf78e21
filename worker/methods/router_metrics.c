/* Metrics of the routers of layers of experts. */
#include "worker/methods/update_internal.h"

#include <stdio.h>

void rk_router_metrics_add(struct rk_router_metrics *metrics, const struct rk_router_stats *stats)
{
    struct rk_router_stats *sum = &metrics->sum;

    if (stats->num_layers == 0)
        return;
    sum->max_load += stats->max_load;
    sum->max_load_of_layers = RK_MAX(sum->max_load_of_layers, stats->max_load_of_layers);
    sum->entropy += stats->entropy;
    sum->balance_name = stats->balance_name;
    sum->balance_loss += stats->balance_loss;
    sum->has_z_loss = stats->has_z_loss;
    sum->z_loss += stats->z_loss;
    metrics->num_steps++;
}

/* The values are sums over the whole mesh: every replica reports the same. */
static void report(struct rk_job_call *job, const char *prefix, const char *name, double value)
{
    char path[64];

    snprintf(path, sizeof(path), "%s/%s", prefix, name);
    rk_job_add_metric(job, path, value, "mean");
}

void rk_router_metrics_report(const struct rk_router_metrics *metrics, struct rk_job_call *job,
                              const char *prefix)
{
    double n = (double)metrics->num_steps;

    if (metrics->num_steps == 0)
        return;
    report(job, prefix, "moe_max_load/mean", metrics->sum.max_load / n);
    report(job, prefix, "moe_max_load/max", metrics->sum.max_load_of_layers);
    report(job, prefix, "moe_router_entropy", metrics->sum.entropy / n);
    if (metrics->sum.balance_name)
        report(job, prefix, metrics->sum.balance_name, metrics->sum.balance_loss / n);
    if (metrics->sum.has_z_loss)
        report(job, prefix, "z_loss", metrics->sum.z_loss / n);
}
