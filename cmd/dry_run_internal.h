/* rankctl plan: the results for a job, and their output. */
#ifndef RK_PLAN_CMD_INTERNAL_H
#define RK_PLAN_CMD_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_json.h"
#include "base/layout/rk_pipeline.h"
#include "rl/rk_estimate.h"
#include "rl/rk_job.h"

/* A role of the job. */
struct rk_dry_run_role {
    const struct rk_job_role *role;
    const struct rk_mesh *mesh;
    struct rk_pipeline *pipeline; /* owned; NULL: the number of layers is not known here */
    bool has_estimate;
    struct rk_estimate estimate;
    bool recomputes;
    struct rk_json *groups; /* owned; of its first rank: ranks of each kind of communicator */
};

/* How the ranks of the actor share the experts of a layer. */
struct rk_dry_run_experts {
    int64_t num_tokens;      /* that a rank routes in the largest micro-batch; 0: they do not share any */
    int64_t dispatch_tokens; /* that a rank's experts take in a round */
    bool keeps_rows;         /* for the backward pass */
};

/* A schedule, simulated with the estimate's costs. */
struct rk_plan_schedule {
    struct rk_pipeline_schedule schedule;
    struct rk_pipeline_timeline *timeline; /* owned; NULL: not known */
    int64_t live_max;                      /* chunk activations that the first stage keeps */
};

struct rk_dry_run_report {
    const char *job; /* the file */
    int32_t world_size;
    const char *device;          /* of the job */
    bool is_device_assumed;      /* it is not on this machine */
    int64_t device_bytes;        /* that were assumed to be free on each; 0: as found */
    double peak_flops, mfu;      /* of each rank; peak 0: no rates */
    int64_t seqlen;              /* tokens of each sequence */
    int64_t num_tokens;          /* of one step's sequences, all of that length */
    int64_t num_mini, num_micro; /* of an update: mini-batches, micro-batches of each on each replica */
    int64_t num_roles;
    struct rk_dry_run_role roles[RK_LIMIT_ROLES]; /* the actor first */
    struct rk_plan_schedule update, forward;      /* of the actor */
    struct rk_dry_run_experts experts;            /* likewise */
    struct rk_json *memory; /* owned; content of memory_plan.json; NULL: there is none */
    struct rk_str memory_table;
};

void rk_dry_run_report_fini(struct rk_dry_run_report *report);
/* Simulates the actor's update and its forward pass. */
struct rk_status *rk_dry_run_report_simulate(struct rk_dry_run_report *report) RK_NODISCARD;
void rk_dry_run_report_format(const struct rk_dry_run_report *report, struct rk_str *out);
struct rk_json *rk_dry_run_report_json(const struct rk_dry_run_report *report);

#endif
