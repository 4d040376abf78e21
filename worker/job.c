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

void rk_job_destroy(struct rk_job *job)
{
    if (!job)
        return;
    rk_batch_destroy(job->input);
    rk_json_free(job->options);
    rk_arena_destroy(job->plan_arena);
    for (int64_t i = 0; i < job->num_meshes; i++)
        rk_mesh_destroy(job->meshes[i].mesh);
    for (int32_t i = 0; job->comm_addresses && i < job->world_size; i++)
        rk_free(job->comm_addresses[i]);
    rk_free(job->comm_addresses);
    rk_status_free(job->status);
    rk_batch_destroy(job->output);
    rk_free(job->first_token_seconds);
    rk_free(job);
}

void rk_job_add_metric(struct rk_job *job, const char *name, double value, const char *reduce)
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

const char *rk_job_label(const struct rk_job *job, char buf[RK_JOB_LABEL_BYTES])
{
    static const char *const names[] = {
        [RK_JOB_OPEN_ENDPOINT] = "open_endpoint",
        [RK_JOB_CONFIGURE] = "configure",
        [RK_JOB_DROP_MODELS] = "drop_models",
    };

    if (job->kind == RK_JOB_METHOD)
        snprintf(buf, RK_JOB_LABEL_BYTES, "%s.%s", job->role, job->method->name);
    else
        snprintf(buf, RK_JOB_LABEL_BYTES, "%s", names[job->kind]);
    return buf;
}
