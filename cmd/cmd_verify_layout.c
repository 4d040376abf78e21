/* Checks that a job's layout computes the same as one rank: both process one batch, and the results are
 * compared, tensor by tensor. The layouts run one after the other, so each may use the whole machine. */
#include "cmd/verify_run_internal.h"

#include <limits.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_fault.h"
#include "rl/rk_job.h"

/* --- the job's layout --- */

static struct rk_status *step_layout(struct rk_verification *v)
{
    struct rk_flow_context *flow = &v->layout.flow;

    RK_TRY(rk_flow_verify_rows(flow));
    RK_TRY(rk_flow_verify_passes(flow));
    RK_TRY(rk_flow_verify_targets(flow, v->options.seed));
    RK_TRY(rk_flow_verify_updates(flow));
    return rk_flow_verify_save(flow, v->layout.dir);
}

static struct rk_status *run_layout(struct rk_verification *v)
{
    static char name[] = "layout";
    struct rk_status *st = rk_verify_side_open(v, &v->layout, name, v->world_size);

    if (!st)
        st = step_layout(v);
    if (!st) {
        v->report.layout = rk_verify_side_describe(&v->layout);
        v->report.num_sequences = v->layout.flow.num_rows;
    }
    return rk_verify_side_close(&v->layout, st);
}

/* --- the reference --- */

/* Both sides use the advantages and returns of the job's layout. */
static struct rk_status *step_reference(struct rk_verification *v)
{
    struct rk_flow_context *flow = &v->reference.flow;

    RK_TRY(rk_flow_verify_take(flow, &v->layout.flow));
    RK_TRY(rk_flow_verify_passes(flow));
    rk_verification_compare_outputs(v);
    rk_batch_destroy(flow->batch);
    flow->batch = NULL;
    RK_TRY(rk_batch_clone(&flow->batch, v->layout.flow.batch));
    RK_TRY(rk_flow_verify_updates(flow));
    return rk_flow_verify_save(flow, v->reference.dir);
}

static struct rk_status *open_reference(struct rk_verification *v,
                                        const struct rk_verify_reference *reference)
{
    static char name[] = "reference";
    struct rk_verify_keys keys = {0};
    int32_t world_size = reference->tp * reference->pp;
    struct rk_status *st;

    rk_verify_add_reference(&keys, v->layout.job, reference);
    rk_flow_context_fini(&v->reference.flow);
    rk_config_destroy(v->reference.job);
    v->reference.job = NULL;
    st = rk_verification_load_job(&v->reference.job, v, &keys);
    if (!st)
        st = rk_job_check(v->reference.job, world_size);
    rk_verify_keys_fini(&keys);
    if (st)
        return RK_WRAP(st, "the reference of %d ranks", world_size);
    st = rk_verify_side_open(v, &v->reference, name, world_size);
    if (!st && RK_FAULT("verify.reference"))
        st = RK_FAIL_REASON(RK_RESOURCE_EXHAUSTED, "DEVICE_OOM", "fault point verify.reference");
    return st;
}

/* The smallest one whose memory plan fits. */
static struct rk_status *run_reference(struct rk_verification *v)
{
    struct rk_verify_reference sizes[RK_VERIFY_REFERENCES_MAX];
    int32_t count = rk_verify_references(sizes, v->layout.job, v->world_size);
    struct rk_status *st = NULL;

    RK_ASSERT(count > 0);
    for (int32_t i = 0; i < count; i++) {
        bool is_too_large;

        st = open_reference(v, &sizes[i]);
        is_too_large =
            rk_status_code(st) == RK_RESOURCE_EXHAUSTED && strcmp(rk_status_reason(st), "DEVICE_OOM") == 0;
        if (!is_too_large || i + 1 == count)
            break;
        st = rk_verify_side_close(&v->reference, st);
        rk_status_free(st);
        st = NULL;
    }
    if (!st)
        st = step_reference(v);
    if (!st)
        v->report.reference = rk_verify_side_describe(&v->reference);
    return rk_verify_side_close(&v->reference, st);
}

/* --- the command --- */

static struct rk_status *tell(struct rk_verification *v)
{
    struct rk_status *st = rk_verify_report_verdict(&v->report);
    struct rk_json *body;

    if (!rk_cli_is_json(v->cli)) {
        rk_verify_report_print(&v->report);
        return st;
    }
    body = rk_verify_report_json(&v->report);
    if (st)
        rk_json_set(body, "error", rk_cli_status_json(st));
    rk_cli_print_json("LayoutVerification", body);
    v->cli->has_told = true;
    return st;
}

static struct rk_status *execute(struct rk_verification *v)
{
    RK_TRY(run_layout(v));
    RK_TRY(run_reference(v));
    RK_TRY(rk_verification_compare(v));
    return tell(v);
}

static struct rk_status *verify_layout(struct rk_cli *cli)
{
    struct rk_verification v = {.cli = cli};
    struct rk_status *st;

    rk_cli_watch_signals(NULL); /* there is state to clean up */
    st = rk_verification_read(&v);
    st = st ? rk_cli_usage(st) : execute(&v);
    rk_verification_remove_dir(&v, st);
    rk_verify_side_fini(&v.reference);
    rk_verify_side_fini(&v.layout);
    rk_verify_report_fini(&v.report);
    rk_verify_keys_fini(&v.keys);
    rk_flow_inputs_fini(&v.inputs);
    rk_hosts_fini(&v.hosts);
    rk_free(v.job_dir);
    return st;
}

static const struct rk_option verify_options[] = {
    {"local", "N", "start N daemons on this machine, and one for the reference, and stop them at the end"},
    {"rows", "N", "number of prompts or examples of the batch (default: those of one optimizer step)"},
    {"layers", "N", "number of layers of the policy's model, with random weights (default: the job's model)"},
    {"dtype", "float32|bfloat16", "dtype of the parameters (default: float32)"},
    {"tolerance", "X",
     "largest accepted difference (default: 1e-5, more for wide models; bfloat16: NMSE of 1e-2)"},
    {"seed", "N", "seed of advantages and returns (default: 1)"},
    {"work-dir", "DIR", "directory for temporary checkpoints of the comparison (default: $TMPDIR or /tmp)"},
    {"takeover", NULL, "claim the daemons even if another driver holds them"},
    {NULL, NULL, NULL},
};

const struct rk_command rk_cmd_verify_layout = {
    .name = "verify-layout",
    .args = "[JOB.json|-] [KEY=VALUE...]",
    .min_args = 1,
    .max_args = INT_MAX,
    .summary = "compare the results of a job's layout with those of one rank",
    .details =
        "One batch of the job goes through its layout and then through one rank, or the smallest layout "
        "that\n"
        "fits into memory: log-probs, losses, gradients and the parameters after a step are compared.\n"
        "No run directory is written. Exits with code 1 if a row differs.",
    .options = verify_options,
    .run = verify_layout,
};
