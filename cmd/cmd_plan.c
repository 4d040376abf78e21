/* Plans a job for a number of ranks without starting them: one daemon of this command, in a dry run, plans
 * the memory of each distinct rank; the rest is arithmetic. */
#include "cmd/dry_run_internal.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/config/rk_config.h"
#include "base/rk_env.h"
#include "base/config/rk_knobs.h"
#include "cmd/cmd_internal.h"
#include "cmd/model_dirs_internal.h"
#include "base/rk_file.h"
#include "rl/rk_flows.h"
#include "rl/rk_job.h"
#include "proto/rk_methods.h"

/* Peak of an H100 or H200: bf16 without sparsity, from its data sheet; and the assumed free memory without a
 * device. */
#define PEAK_TFLOPS  989.0
#define MFU          0.4
#define DEVICE_BYTES ((int64_t)80 << 30)
#define LOG_NAME     "rankd-0.log"

struct planning {
    struct rk_cli *cli;
    struct rk_config *job;
    char *job_dir;
    int32_t world_size;
    struct rk_flow_inputs inputs;
    char *log_dir; /* NULL: not made */
    struct rk_local *local;
    struct rk_driver *driver;
    struct rk_flow_context flow;
    struct rk_dry_run_report report;
};

/* --- the arguments: failures are usage errors (exit code 2) --- */

static struct rk_status *read_number(double *out, const struct rk_cli *cli, const char *name, double fallback,
                                     double max)
{
    const char *text = rk_cli_find(cli, name);

    *out = fallback;
    if (!text || (rk_parse_f64(text, out) && *out > 0 && *out <= max))
        return NULL;
    return RK_FAIL(RK_INVALID_ARGUMENT, "--%s=%s: expected a number above 0, at most %g", name, text, max);
}

static struct rk_status *read_options(struct planning *plan)
{
    struct rk_dry_run_report *report = &plan->report;
    const char *world = rk_cli_find(plan->cli, "world"), *bytes = rk_cli_find(plan->cli, "device-memory");
    int64_t count = 0;
    double peak;

    if (!world || !rk_parse_i64(world, &count) || count < 1 || count > RK_MESH_MAX_RANKS)
        return RK_FAIL(RK_INVALID_ARGUMENT, "--world=%s: expected a number of daemons, 1 to %d",
                       world ? world : "", RK_MESH_MAX_RANKS);
    if (bytes && (!rk_parse_bytes(bytes, &report->device_bytes) || report->device_bytes < 1))
        return RK_FAIL(RK_INVALID_ARGUMENT, "--device-memory=%s: expected a size such as 80GiB", bytes);
    RK_TRY(read_number(&peak, plan->cli, "peak-tflops", 0, 1e9));
    RK_TRY(read_number(&report->mfu, plan->cli, "mfu", MFU, 1));
    report->peak_flops = peak * 1e12;
    report->world_size = plan->world_size = (int32_t)count;
    return NULL;
}

static struct rk_status *read_inputs(struct planning *plan)
{
    struct rk_cli_job_args args = rk_cli_job_args(plan->cli, 0);
    struct rk_status *st;

    RK_TRY(read_options(plan));
    RK_TRY(rk_cli_load_job(&plan->job, plan->cli, 0, NULL, 0));
    st = rk_job_check(plan->job, plan->world_size);
    if (!st) {
        plan->job_dir = rk_cli_directory_of(args.path);
        st = rk_flow_inputs_load(&plan->inputs, plan->job, plan->job_dir);
    }
    if (!st)
        st = rk_model_dirs_check(plan->job, &plan->inputs, false);
    return st ? RK_WRAP(st, "%s", args.name) : NULL;
}

/* --- the daemon --- */

static struct rk_status *start_on(struct planning *plan, const char *device)
{
    return rk_model_dirs_start_local(&plan->local, &plan->inputs,
                                     (struct rk_local_config){
                                         .struct_size = sizeof(struct rk_local_config),
                                         .num_daemons = 1,
                                         .device = device,
                                         .log_dir = plan->log_dir,
                                         .is_dry_run = true,
                                     });
}

static struct rk_status *make_log_dir(struct planning *plan)
{
    const char *root = rk_env("TMPDIR") ? rk_env("TMPDIR") : "/tmp";
    char *path = rk_format("%s/rankctl-plan-XXXXXX", root);

    if (!mkdtemp(path)) {
        rk_free(path);
        return rk_file_errno("cannot make a directory in", root);
    }
    plan->log_dir = path;
    return NULL;
}

/* Without the job's device on this machine, on the CPU. */
static struct rk_status *start_daemon(struct planning *plan)
{
    struct rk_dry_run_report *report = &plan->report;
    struct rk_status *st;

    RK_TRY(make_log_dir(plan));
    report->device = rk_job_device(plan->job);
    st = start_on(plan, report->device);
    if (rk_status_code(st) != RK_INVALID_ARGUMENT || strcmp(report->device, "cpu") == 0)
        return st;
    rk_status_free(st);
    report->is_device_assumed = true;
    if (report->device_bytes == 0)
        report->device_bytes = DEVICE_BYTES;
    return start_on(plan, "cpu");
}

static struct rk_status *open_driver(struct planning *plan)
{
    const struct rk_driver_config config = {
        .struct_size = sizeof(config),
        .addresses = rk_local_addresses(plan->local),
        .num_addresses = 1,
        .dry_world_size = plan->world_size,
        .dry_device = plan->report.device,
    };

    RK_TRY(rk_driver_open(&plan->driver, &config));
    rk_cli_watch_signals(plan->driver);
    return rk_driver_claim(plan->driver);
}

/* --- answers --- */

static struct rk_status *on_memory_sum(void *user, const struct rk_memory_sum *sum)
{
    struct rk_dry_run_report *report = user;

    rk_json_free(report->memory);
    report->memory = rk_memory_sum_json(sum);
    rk_str_clear(&report->memory_table);
    rk_memory_sum_format(sum, &report->memory_table);
    return NULL;
}

static struct rk_status *ask_groups(struct planning *plan, struct rk_dry_run_role *role)
{
    struct rk_driver_result result;

    rk_driver_stand_for(plan->driver, rk_mesh_get_spec(role->mesh).ranks[0]);
    RK_TRY(rk_job_meshes_configure(&plan->flow.meshes, plan->driver));
    RK_TRY(rk_flow_call(&plan->flow, role->role->name, "get_mesh_info", NULL, NULL, NULL, &result));
    if (result.num_outputs > 0 && result.outputs[0])
        role->groups = rk_json_clone(rk_json_find(rk_batch_meta(result.outputs[0]), "groups"));
    rk_driver_result_fini(&result);
    return NULL;
}

static struct rk_status *read_layers(struct planning *plan, struct rk_dry_run_role *role)
{
    const char *path = rk_flow_own_model(&plan->inputs, role->role->bit);
    const struct rk_json *config = plan->inputs.hf_config;
    struct rk_flow_model_dir dir = {0};
    struct rk_status *st = NULL;

    if (path) {
        st = rk_flow_model_dir_open(&dir, path);
        config = dir.config;
    }
    role->has_estimate = !st && rk_estimate_of(&role->estimate, config, rk_job_longest(plan->job));
    if (!st && role->estimate.num_layers > 0) {
        struct rk_job_pipeline cut = rk_job_pipeline(plan->job, role->role->bit);
        struct rk_pipeline_spec spec = {
            .num_layers = (int32_t)role->estimate.num_layers,
            .pp = cut.pp,
            .vpp = cut.vpp,
            .num_layers_in_first_pipeline_stage = cut.num_first,
            .num_layers_in_last_pipeline_stage = cut.num_last,
        };

        st = rk_pipeline_create(&role->pipeline, &spec);
    }
    rk_flow_model_dir_fini(&dir);
    return st;
}

static struct rk_status *describe_role(struct planning *plan, const struct rk_job_mesh *item)
{
    struct rk_dry_run_report *report = &plan->report;
    struct rk_dry_run_role *role = &report->roles[report->num_roles++];
    char *granularity = rk_format("%s" RK_KNOB_RECOMPUTE "granularity", item->role->section);
    struct rk_status *st;

    role->role = item->role;
    role->mesh = item->mesh;
    role->recomputes = item->role->trains && rk_config_string(plan->job, granularity) != NULL;
    rk_free(granularity);
    st = read_layers(plan, role);
    return st ? RK_WRAP(st, "role %s", item->role->name) : NULL;
}

static struct rk_status *describe_roles(struct planning *plan)
{
    const struct rk_job_meshes *meshes = &plan->flow.meshes;

    RK_ASSERT(meshes->count > 0);
    RK_ASSERT(meshes->items[0].role->bit == RK_ROLE_ACTOR);
    for (int64_t i = 0; i < meshes->count; i++)
        RK_TRY(describe_role(plan, &meshes->items[i]));
    return NULL;
}

/* The engine's default buffer holds twice the rows of a rank. */
static void describe_experts(struct planning *plan)
{
    const struct rk_dry_run_role *actor = &plan->report.roles[0];
    struct rk_job_micro micro = rk_job_actor_micro(plan->job);
    int32_t tp = rk_mesh_axis_size(actor->mesh, RK_AXIS_TP),
            etp = rk_mesh_axis_size(actor->mesh, RK_AXIS_ETP);
    struct rk_dry_run_experts *experts = &plan->report.experts;

    if (rk_mesh_axis_size(actor->mesh, RK_AXIS_EP) == 1 || actor->estimate.num_experts == 0)
        return;
    experts->num_tokens = rk_job_micro_tokens(plan->job, &micro, rk_mesh_axis_size(actor->mesh, RK_AXIS_CP));
    if (etp < tp)
        experts->num_tokens = (experts->num_tokens + tp - 1) / tp * etp;
    experts->dispatch_tokens =
        rk_job_int_or(plan->job, RK_JOB_ACTOR RK_KNOB_DISPATCH_TOKENS, 2 * experts->num_tokens);
    experts->keeps_rows = rk_config_bool(plan->job, RK_JOB_ACTOR RK_KNOB_KEEP_DISPATCHED);
}

static struct rk_status *describe_update(struct planning *plan)
{
    struct rk_dry_run_report *report = &plan->report;
    struct rk_plan update;

    RK_TRY(rk_flow_longest_plan(&update, &plan->flow));
    describe_experts(plan);
    report->num_mini = update.num_mini;
    report->num_micro = update.num_mini > 0 ? update.mini[0].num_micro : 0;
    report->seqlen = rk_job_longest(plan->job);
    report->num_tokens = plan->flow.num_rows * report->seqlen;
    if (report->peak_flops <= 0 && strcmp(report->device, "cuda") == 0)
        report->peak_flops = PEAK_TFLOPS * 1e12;
    return rk_dry_run_report_simulate(report);
}

static struct rk_status *ask(struct planning *plan)
{
    const struct rk_flow_sink sink = {.user = &plan->report, .on_memory_sum = on_memory_sum};
    struct rk_status *st = rk_flow_context_init(&plan->flow, plan->job, &plan->inputs, plan->driver, &sink);

    if (!st)
        st = describe_roles(plan);
    if (!st)
        st = describe_update(plan);
    if (st)
        return rk_cli_usage(st);
    plan->flow.dry_device_bytes = plan->report.device_bytes;
    for (int64_t i = 0; i < plan->report.num_roles; i++)
        RK_TRY(ask_groups(plan, &plan->report.roles[i]));
    return rk_flow_sum_memory(&plan->flow);
}

/* --- the end --- */

/* Prints the report also when the roles do not fit: the plan shows the reason. */
static void print_report(const struct planning *plan, const struct rk_status *st)
{
    struct rk_str text = {0};

    if (!plan->report.memory)
        return;
    if (rk_cli_is_json(plan->cli)) {
        struct rk_json *body = rk_dry_run_report_json(&plan->report);

        if (st)
            rk_json_set(body, "error", rk_cli_status_json(st));
        rk_cli_print_json("Plan", body);
        plan->cli->has_told = true;
        return;
    }
    rk_dry_run_report_format(&plan->report, &text);
    fputs(rk_str_text(&text), stdout);
    rk_str_fini(&text);
}

/* The log is kept if the daemon has failed: the message names it. */
static void remove_logs(struct planning *plan, const struct rk_status *st)
{
    rk_code_t code = rk_status_code(st);
    char *log;

    if (plan->log_dir && code != RK_INTERNAL && code != RK_UNAVAILABLE && code != RK_DEADLINE_EXCEEDED) {
        log = rk_path_join(plan->log_dir, LOG_NAME);
        unlink(log);
        rmdir(plan->log_dir);
        rk_free(log);
    }
    rk_free(plan->log_dir);
    plan->log_dir = NULL;
}

static struct rk_status *add_deaths(struct planning *plan, struct rk_status *st)
{
    struct rk_str deaths = {0};

    if (st && plan->local)
        rk_local_describe_deaths(plan->local, &deaths);
    if (deaths.bytes > 0)
        st = RK_WRAP(st, "%.*s", (int)deaths.bytes - 1, deaths.text);
    rk_str_fini(&deaths);
    return st;
}

static struct rk_status *plan_job(struct rk_cli *cli)
{
    struct planning plan = {.cli = cli, .report = {.job = rk_cli_job_args(cli, 0).name}};
    struct rk_status *st = read_inputs(&plan);

    if (st) {
        st = rk_cli_usage(st);
    } else {
        rk_cli_watch_signals(NULL); /* from here on there is state to clean up */
        st = start_daemon(&plan);
        if (!st)
            st = open_driver(&plan);
        if (!st)
            st = ask(&plan);
        st = add_deaths(&plan, st);
        print_report(&plan, st);
    }
    rk_cli_watch_signals(NULL);
    rk_dry_run_report_fini(&plan.report);
    rk_flow_context_fini(&plan.flow);
    rk_driver_close(plan.driver);
    rk_local_stop(plan.local);
    remove_logs(&plan, st);
    rk_flow_inputs_fini(&plan.inputs);
    rk_config_destroy(plan.job);
    rk_free(plan.job_dir);
    return st;
}

static const struct rk_option plan_options[] = {
    {"world", "N", "number of daemons of the run"},
    {"device-memory", "SIZE",
     "free memory of each rank's device; default: that of this machine's device, or 80GiB"},
    {"peak-tflops", "X", "peak TFLOP/s of each rank's device; default: 989 for device=cuda, unknown for cpu"},
    {"mfu", "X", "share of the peak that passes reach (default: 0.4)"},
    {NULL, NULL, NULL},
};

const struct rk_command rk_cmd_plan = {
    .name = "plan",
    .args = "[JOB.json|-] [KEY=VALUE...]",
    .min_args = 1,
    .max_args = INT_MAX,
    .summary = "plan layout, memory and rates of a job on N daemons, without starting them",
    .details = "Shows the mesh and layers of each role, the pipeline's schedule, communicators, memory and "
               "expected\n"
               "rates. One daemon on this machine makes the memory plans and is stopped; it loads no model.\n"
               "A job that run would refuse is refused with the same message and exit code.",
    .options = plan_options,
    .run = plan_job,
};
