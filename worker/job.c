/* Jobs: creation, release, results. */
#include "worker/worker_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_arena.h"
#include "base/rk_log.h"

struct rk_job *rk_job_create(rk_job_kind_t kind)
{
    struct rk_job *job = rk_calloc(1, sizeof(*job));

    job->kind = kind;
    return job;
}

static void configure_fini(struct rk_job_configure *configure)
{
    for (int64_t i = 0; i < configure->num_meshes; i++)
        rk_mesh_destroy(configure->meshes[i].mesh);
    for (int32_t i = 0; configure->comm_addresses && i < configure->world_size; i++)
        rk_free(configure->comm_addresses[i]);
    rk_free(configure->comm_addresses);
}

static void call_fini(struct rk_job_call *call)
{
    rk_batch_destroy(call->input);
    rk_json_free(call->options);
    rk_arena_destroy(call->plan_arena);
    rk_batch_destroy(call->output);
    rk_free(call->first_token_seconds);
}

void rk_job_destroy(struct rk_job *job)
{
    if (!job)
        return;
    switch (job->kind) {
    case RK_JOB_CONFIGURE:
        configure_fini(&job->configure);
        break;
    case RK_JOB_METHOD:
        call_fini(&job->call);
        break;
    case RK_JOB_OPEN_ENDPOINT:
    case RK_JOB_DROP_MODELS:
        break;
    }
    rk_status_free(job->status);
    rk_free(job);
}

void rk_job_add_metric(struct rk_job_call *job, const char *name, double value, const char *reduce)
{
    struct rk_job_metric *metric = &job->metrics[job->num_metrics];

    RK_ASSERT(job->num_metrics < RK_JOB_MAX_METRICS);
    RK_ASSERT(strlen(name) < sizeof(metric->name));
    if (!isfinite(value))
        RK_WARN("metric %s is %g", name, value);
    snprintf(metric->name, sizeof(metric->name), "%s", name);
    metric->value = value;
    metric->reduce = reduce;
    job->num_metrics++;
}

const char *rk_job_call_label(const struct rk_job_call *job, char buf[RK_JOB_LABEL_BYTES])
{
    snprintf(buf, RK_JOB_LABEL_BYTES, "%s.%s", job->role, job->method->name);
    return buf;
}

const char *rk_job_label(const struct rk_job *job, char buf[RK_JOB_LABEL_BYTES])
{
    static const char *const names[] = {
        [RK_JOB_OPEN_ENDPOINT] = "open_endpoint",
        [RK_JOB_CONFIGURE] = "configure",
        [RK_JOB_DROP_MODELS] = "drop_models",
    };

    if (job->kind == RK_JOB_METHOD)
        return rk_job_call_label(&job->call, buf);
    snprintf(buf, RK_JOB_LABEL_BYTES, "%s", names[job->kind]);
    return buf;
}
