/* Whether a job's layout computes what one rank does: one batch goes through both, and what comes out is
 * compared, tensor by tensor. The layouts run one after the other, so one machine can hold either. */
#include "driver-cli/cmd/verify_layout_internal.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_ckpt_dir.h"
#include "base/rk_fault.h"
#include "base/rk_knobs.h"
#include "base/rk_log.h"
#include "driver-cli/cmd/cmd_internal.h"
#include "driver-cli/cmd/model_dirs_internal.h"
#include "driver-cli/driver/files_internal.h"
#include "driver-cli/driver/flows/flows_internal.h"
#include "driver-cli/driver/job_internal.h"
#include "proto/rk_methods.h"

/* Of float32: sums of up to TOLERANCE_TERMS products in another order; the rounding error of longer ones
 * grows as the square root of their length. Of bfloat16, 8 bits: their mean square, 2^-16, through all
 * layers. docs/verify-layout.md has figures of models. */
#define TOLERANCE_F32   1e-5
#define TOLERANCE_TERMS 1024.0
#define TOLERANCE_BF16  1e-2

/* One of the two layouts. */
struct side {
    struct rk_config *job;
    char *dir; /* of its logs and checkpoint; NULL: not made */
    struct rk_local *local;
    struct rk_driver *driver;
    struct rk_flow_context flow;
};

struct verification {
    struct rk_cli *cli;
    char *job_dir;
    struct rk_hosts hosts; /* count 0 with --local */
    int32_t world_size;
    struct rk_verify_options options;
    struct rk_verify_keys keys; /* of both sides */
    struct rk_flow_inputs inputs;
    char *work_dir; /* NULL: not made */
    struct side layout, reference;
    struct rk_verify_report report;
};

/* --- what was asked for: failures are the user's to mend (exit code 2) --- */

static struct rk_status *read_world(struct verification *v)
{
    const char *local = rk_cli_find(v->cli, "local");
    int64_t count = 0;

    if (!local) {
        RK_TRY(rk_cli_hosts(v->cli, &v->hosts));
        if (v->hosts.count == 0)
            return RK_FAIL(RK_INVALID_ARGUMENT, "no daemons given; use --local N, --hosts or RANKCTL_HOSTS");
        if (!rk_cli_has(v->cli, "work-dir"))
            return RK_FAIL(RK_INVALID_ARGUMENT,
                           "--hosts needs --work-dir DIR, a directory that the daemons and "
                           "this machine share, below their ckpt.roots");
        v->world_size = v->hosts.count;
        return NULL;
    }
    if (!rk_parse_i64(local, &count) || count < 1 || count > RK_MESH_MAX_RANKS)
        return RK_FAIL(RK_INVALID_ARGUMENT, "--local=%s: expected a number of daemons", local);
    if (rk_cli_has(v->cli, "hosts") || rk_cli_has(v->cli, "token-file"))
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "--local starts its own daemons; it does not go with --hosts and --token-file");
    v->world_size = (int32_t)count;
    return NULL;
}

static struct rk_status *read_count(int64_t *out, const struct rk_cli *cli, const char *name)
{
    const char *text = rk_cli_find(cli, name);

    if (!text || (rk_parse_i64(text, out) && *out >= 1 && *out <= 1 << 24))
        return NULL;
    return RK_FAIL(RK_INVALID_ARGUMENT, "--%s=%s: expected a number from 1 to %d", name, text, 1 << 24);
}

static struct rk_status *read_options(struct verification *v)
{
    const char *dtype = rk_cli_find(v->cli, "dtype"), *tolerance = rk_cli_find(v->cli, "tolerance");
    struct rk_verify_measure *measure = &v->report.measure;
    int64_t seed = 1;

    RK_TRY(read_world(v));
    v->options.dtype = dtype ? dtype : "float32";
    measure->by_mean_square = strcmp(v->options.dtype, "bfloat16") == 0;
    if (!measure->by_mean_square && strcmp(v->options.dtype, "float32") != 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "--dtype=%s: expected float32 or bfloat16", dtype);
    measure->tolerance = measure->by_mean_square ? TOLERANCE_BF16 : TOLERANCE_F32;
    if (tolerance &&
        !(rk_parse_f64(tolerance, &measure->tolerance) && measure->tolerance > 0 && measure->tolerance < 1))
        return RK_FAIL(RK_INVALID_ARGUMENT, "--tolerance=%s: expected a number between 0 and 1", tolerance);
    RK_TRY(read_count(&v->options.num_rows, v->cli, "rows"));
    RK_TRY(read_count(&v->options.num_layers, v->cli, "layers"));
    RK_TRY(read_count(&seed, v->cli, "seed"));
    v->options.seed = (uint64_t)seed;
    v->report.dtype = v->options.dtype;
    v->report.job = v->cli->args.items[0];
    return NULL;
}

/* --- the directory of both checkpoints --- */

static struct rk_status *make_work_dir(struct verification *v)
{
    const char *given = rk_cli_find(v->cli, "work-dir");
    const char *root = given ? given : rk_env("TMPDIR") ? rk_env("TMPDIR") : "/tmp";
    char resolved[PATH_MAX], *path;

    if (!realpath(root, resolved))
        return rk_errno_status("cannot find the directory", root);
    path = rk_format("%s/rankctl-verify-XXXXXX", resolved);
    if (!mkdtemp(path)) {
        rk_free(path);
        return rk_errno_status("cannot make a directory in", root);
    }
    v->work_dir = path;
    v->options.work_dir = path;
    if (v->hosts.count > 0 && chmod(path, 0777) != 0) /* the daemons may be another user's */
        return rk_errno_status("cannot change the mode of", path);
    return NULL;
}

/* Of a daemon that failed the log may tell why: the message names it, and it stays. */
static void remove_work_dir(struct verification *v, const struct rk_status *st)
{
    rk_code_t code = rk_status_code(st);
    bool keeps_logs = v->hosts.count == 0 && (code == RK_INTERNAL || code == RK_UNAVAILABLE ||
                                              code == RK_DEADLINE_EXCEEDED || code == RK_ABORTED);
    const struct side *sides[] = {&v->layout, &v->reference};
    struct rk_status *failure = NULL;

    if (!v->work_dir)
        return;
    for (size_t i = 0; i < RK_ARRAY_LEN(sides) && keeps_logs; i++) {
        char *step_dir = sides[i]->dir ? rk_ckpt_step_dir(sides[i]->dir, 1) : NULL;

        if (step_dir)
            failure = rk_status_first(failure, rk_ckpt_remove(step_dir));
        rk_free(step_dir);
    }
    if (!keeps_logs)
        failure = rk_ckpt_remove(v->work_dir);
    if (failure)
        RK_WARN("cannot remove '%s': %s", v->work_dir, rk_status_message(failure));
    rk_status_free(failure);
    rk_free(v->work_dir);
    v->work_dir = NULL;
}

/* --- the jobs --- */

/* The user's keys and then these; the last one of a name counts. */
static struct rk_status *load_job(struct rk_config **out, const struct verification *v,
                                  const struct rk_verify_keys *more)
{
    const struct rk_verify_keys *lists[] = {&v->keys, more};
    RK_ARRAY(const char *) keys = {0};
    struct rk_status *st;

    for (int64_t i = 1; i < v->cli->args.count; i++)
        rk_array_append(&keys, v->cli->args.items[i]);
    for (size_t k = 0; k < RK_ARRAY_LEN(lists); k++) {
        for (int64_t i = 0; lists[k] && i < lists[k]->items.count; i++)
            rk_array_append(&keys, lists[k]->items.items[i]);
    }
    st = rk_job_load(out, v->cli->args.items[0], keys.items, keys.count);
    rk_array_fini(&keys);
    return st;
}

/* The user's job as it is, and what both sides change. */
static struct rk_status *read_job(struct verification *v)
{
    struct rk_config *job;
    struct rk_status *st;

    RK_TRY(load_job(&job, v, NULL));
    st = rk_job_check(job, v->world_size);
    v->job_dir = rk_cli_directory_of(v->cli->args.items[0]);
    if (!st)
        st = make_work_dir(v);
    if (!st)
        st = rk_verify_add_common(&v->keys, job, v->job_dir, &v->options);
    rk_config_destroy(job);
    return st;
}

/* Where the user gave no tolerance: that of float32 for the model's longest sums. */
static void fit_tolerance(struct verification *v)
{
    const struct rk_json *config = v->inputs.hf_config;
    int64_t hidden = rk_json_as_int(rk_json_find(config, "hidden_size"), 0);
    double terms = (double)RK_MAX(hidden, rk_json_as_int(rk_json_find(config, "intermediate_size"), 0));

    if (!v->report.measure.by_mean_square && !rk_cli_has(v->cli, "tolerance"))
        v->report.measure.tolerance = TOLERANCE_F32 * sqrt(RK_MAX(terms, TOLERANCE_TERMS) / TOLERANCE_TERMS);
}

static struct rk_status *read_inputs(struct verification *v)
{
    struct rk_status *st;

    RK_TRY(read_options(v));
    st = read_job(v);
    if (!st)
        st = load_job(&v->layout.job, v, NULL);
    if (!st)
        st = rk_job_check(v->layout.job, v->world_size);
    if (!st)
        st = rk_flow_inputs_load(&v->inputs, v->layout.job, v->job_dir);
    if (!st && v->hosts.count == 0)
        st = rk_model_dirs_check(v->layout.job, &v->inputs);
    if (!st)
        fit_tolerance(v);
    return st ? RK_WRAP(st, "%s", v->cli->args.items[0]) : NULL;
}

/* --- daemons --- */

static void on_phase(void *user, const char *phase)
{
    fprintf(stderr, "rankctl: %s: %s\n", (const char *)user, phase);
}

static struct rk_status *start_daemons(struct verification *v, struct side *side, int32_t world_size)
{
    if (v->hosts.count > 0)
        return NULL;
    return rk_model_dirs_start_local(&side->local, &v->inputs,
                                     (struct rk_local_config){
                                         .struct_size = sizeof(struct rk_local_config),
                                         .num_daemons = world_size,
                                         .device = rk_config_string(side->job, "device"),
                                         .log_dir = side->dir,
                                     });
}

static struct rk_status *open_driver(struct verification *v, struct side *side, int32_t world_size)
{
    struct rk_driver_config config = rk_cli_driver_config(v->cli);
    struct rk_status *st;

    config.addresses =
        side->local ? rk_local_addresses(side->local) : (const char *const *)v->hosts.addresses;
    config.num_addresses = world_size;
    if (side->local)
        config.identity_dir = NULL; /* these daemons end with this process */
    st = rk_driver_open(&side->driver, &config);
    if (st)
        return rk_cli_usage(st);
    rk_cli_watch_signals(side->driver);
    return rk_driver_claim(side->driver);
}

/* Daemons of `side` with its models. */
static struct rk_status *open_side(struct verification *v, struct side *side, char *name, int32_t world_size)
{
    struct rk_flow_sink sink = {.user = name, .on_phase = isatty(STDERR_FILENO) ? on_phase : NULL};
    struct rk_status *st;

    if (!side->dir) {
        side->dir = rk_path_join(v->work_dir, name);
        if (mkdir(side->dir, 0777) != 0 || (v->hosts.count > 0 && chmod(side->dir, 0777) != 0))
            return rk_errno_status("cannot make the directory", side->dir);
    }
    st = start_daemons(v, side, world_size);
    if (!st)
        st = open_driver(v, side, world_size);
    if (st)
        return st;
    st = rk_flow_context_init(&side->flow, side->job, &v->inputs, side->driver, &sink);
    return st ? rk_cli_usage(st) : rk_flow_verify_setup(&side->flow);
}

/* Its results stay in the context. */
static struct rk_status *close_side(struct side *side, struct rk_status *st)
{
    struct rk_str deaths = {0};

    if (st && side->local)
        rk_local_describe_deaths(side->local, &deaths);
    if (deaths.bytes > 0)
        st = RK_WRAP(st, "%.*s", (int)deaths.bytes - 1, deaths.text);
    rk_str_fini(&deaths);
    rk_cli_watch_signals(NULL);
    rk_driver_close(side->driver);
    rk_local_stop(side->local);
    side->driver = NULL;
    side->local = NULL;
    return st;
}

static void side_fini(struct side *side)
{
    rk_flow_context_fini(&side->flow);
    rk_config_destroy(side->job);
    rk_free(side->dir);
}

static void describe_mesh(struct rk_str *out, const struct rk_job_mesh *item, int32_t vpp)
{
    int32_t num_ranks = rk_mesh_num_ranks(item->mesh);

    rk_str_appendf(out, "%s%s ", out->bytes ? ", " : "", item->role->name);
    if (num_ranks > 1)
        rk_str_appendf(out, "%s ", rk_mesh_text(item->mesh));
    if (vpp > 1)
        rk_str_appendf(out, "vpp=%d ", vpp);
    rk_str_appendf(out, "on %d rank%s", num_ranks, num_ranks == 1 ? "" : "s");
}

/* "actor tp=2 pp=2 on 4 ranks, rollout tp=2 dp=2 on 4 ranks": the roles that are not where the actor is, too.
 * rk_free it. */
static char *describe(const struct side *side)
{
    const struct rk_job_meshes *meshes = &side->flow.meshes;
    struct rk_str text = {0};

    for (int64_t i = 0; i < meshes->count; i++) {
        const struct rk_job_mesh *item = &meshes->items[i];

        if (i == 0 || !rk_mesh_equal(item->mesh, meshes->items[0].mesh))
            describe_mesh(&text, item, rk_job_pipeline(side->job, item->role->bit).vpp);
    }
    return rk_str_take(&text);
}

/* --- the job's layout --- */

static struct rk_status *step_layout(struct verification *v)
{
    struct rk_flow_context *flow = &v->layout.flow;

    RK_TRY(rk_flow_verify_rows(flow));
    RK_TRY(rk_flow_verify_passes(flow));
    RK_TRY(rk_flow_verify_targets(flow, v->options.seed));
    RK_TRY(rk_flow_verify_updates(flow));
    return rk_flow_verify_save(flow, v->layout.dir);
}

static struct rk_status *run_layout(struct verification *v)
{
    static char name[] = "layout";
    struct rk_status *st = open_side(v, &v->layout, name, v->world_size);

    if (!st)
        st = step_layout(v);
    if (!st) {
        v->report.layout = describe(&v->layout);
        v->report.num_sequences = v->layout.flow.num_rows;
    }
    return close_side(&v->layout, st);
}

/* --- the reference --- */

static void add_output(struct rk_verify_rows *rows, const char *role, const char *name,
                       const struct rk_column *actual, const struct rk_column *expected)
{
    struct rk_verify_row *row = rk_verify_rows_add(rows, RK_VERIFY_OUTPUT, role, name);
    int64_t count = (int64_t)(rk_column_bytes(expected) / sizeof(float));
    const float *left = rk_column_values(actual), *right = rk_column_values(expected);

    if (rk_column_bytes(actual) != rk_column_bytes(expected)) {
        row->difference.has_nan = true;
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        double a = left[i], b = right[i];

        rk_difference_add(&row->difference, &a, &b, 1);
    }
}

static void compare_outputs(struct verification *v)
{
    const struct rk_batch *actual = v->layout.flow.batch, *expected = v->reference.flow.batch;

    for (const struct rk_flow_output *output = rk_flow_outputs; output->name; output++) {
        const struct rk_column *left = rk_batch_find(actual, output->name);
        const struct rk_column *right = rk_batch_find(expected, output->name);

        if (left && right && output->role)
            add_output(&v->report.rows, output->role, output->name, left, right);
    }
    if (rk_batch_find(actual, "rollout_log_probs"))
        add_output(&v->report.rows, "rollout", "rollout_log_probs",
                   rk_batch_find(actual, "rollout_log_probs"), rk_batch_find(expected, "old_log_probs"));
}

/* Both learn from the same numbers, those of the job's layout. */
static struct rk_status *step_reference(struct verification *v)
{
    struct rk_flow_context *flow = &v->reference.flow;

    RK_TRY(rk_flow_verify_take(flow, &v->layout.flow));
    RK_TRY(rk_flow_verify_passes(flow));
    compare_outputs(v);
    rk_batch_destroy(flow->batch);
    flow->batch = NULL;
    RK_TRY(rk_batch_clone(&flow->batch, v->layout.flow.batch));
    RK_TRY(rk_flow_verify_updates(flow));
    return rk_flow_verify_save(flow, v->reference.dir);
}

static struct rk_status *open_reference(struct verification *v, const struct rk_verify_reference *reference)
{
    static char name[] = "reference";
    struct rk_verify_keys keys = {0};
    int32_t world_size = reference->tp * reference->pp;
    struct rk_status *st;

    rk_verify_add_reference(&keys, v->layout.job, reference);
    rk_flow_context_fini(&v->reference.flow);
    rk_config_destroy(v->reference.job);
    v->reference.job = NULL;
    st = load_job(&v->reference.job, v, &keys);
    if (!st)
        st = rk_job_check(v->reference.job, world_size);
    rk_verify_keys_fini(&keys);
    if (st)
        return RK_WRAP(st, "the reference of %d ranks", world_size);
    st = open_side(v, &v->reference, name, world_size);
    if (!st && RK_FAULT("verify.reference"))
        st = RK_FAIL_REASON(RK_RESOURCE_EXHAUSTED, "DEVICE_OOM", "fault point verify.reference");
    return st;
}

/* The smallest one whose plan of memory fits. */
static struct rk_status *run_reference(struct verification *v)
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
        st = close_side(&v->reference, st);
        rk_status_free(st);
        st = NULL;
    }
    if (!st)
        st = step_reference(v);
    if (!st)
        v->report.reference = describe(&v->reference);
    return close_side(&v->reference, st);
}

/* --- the comparison --- */

static double metric_of(const struct side *side, const char *name)
{
    return rk_json_as_real(rk_json_find(side->flow.metrics, name), NAN);
}

/* Those that are sums over the batch and the model; others measure time, memory, or noise. */
static bool is_compared(const char *name)
{
    return strchr(name, '/') && (rk_str_has_suffix(name, "loss") || rk_str_has_suffix(name, "/grad_norm"));
}

static const char *role_of(const char *metric)
{
    return rk_str_has_prefix(metric, "critic/") ? "critic" : "actor";
}

static void compare_metrics(struct verification *v)
{
    const struct rk_json *metrics = v->reference.flow.metrics;

    for (void *it = rk_json_iter(metrics); it; it = rk_json_iter_next(metrics, it)) {
        const char *name = rk_json_iter_key(it);
        double actual = metric_of(&v->layout, name), expected = metric_of(&v->reference, name);
        struct rk_verify_row *row;

        if (!is_compared(name))
            continue;
        row = rk_verify_rows_add(&v->report.rows, RK_VERIFY_METRIC, role_of(name), name);
        rk_difference_add(&row->difference, &actual, &expected, 1);
    }
}

/* By what the side multiplied gradients to clip them. */
static double clip_scale(const struct side *side, const char *section, const char *role)
{
    char *key = rk_format("%soptim.clip_grad", section), *name = rk_format("%s/grad_norm", role);
    double clip = rk_config_real(side->job, key), norm = metric_of(side, name);

    if (isnan(norm)) /* of flows that do not generate */
        norm = metric_of(side, "train/grad_norm");
    rk_free(key);
    rk_free(name);
    return clip > 0 && norm > 0 ? fmin(1, clip / (norm + 1e-6)) : 1;
}

static double optim_of(const struct side *side, const char *section, const char *name)
{
    char *key = rk_format("%soptim.%s", section, name);
    double value = rk_config_real(side->job, key);

    rk_free(key);
    return value;
}

static struct rk_status *compare_parts(struct verification *v, const struct rk_job_role *role,
                                       struct rk_gathered *parts[2])
{
    const struct side *sides[2] = {&v->layout, &v->reference};
    const struct rk_verify_step step = {
        .lr = optim_of(&v->layout, role->section, "lr"),
        .eps = optim_of(&v->layout, role->section, "eps"),
        .actual_scale = clip_scale(&v->layout, role->section, role->name),
        .expected_scale = clip_scale(&v->reference, role->section, role->name),
    };

    for (int i = 0; i < 2; i++) {
        char *part = rk_format("%s/global_step_1/%s", sides[i]->dir, role->name);
        struct rk_status *st = rk_gathered_open(&parts[i], part);

        rk_free(part);
        if (st)
            return st;
    }
    return rk_verify_compare(&v->report.rows, role->name, parts[0], parts[1], &step);
}

static struct rk_status *compare_roles(struct verification *v)
{
    int64_t num_roles;
    const struct rk_job_role *roles = rk_job_roles(&num_roles);
    struct rk_status *st = NULL;

    for (int64_t i = 0; i < num_roles && !st; i++) {
        struct rk_gathered *parts[2] = {NULL, NULL};

        if (!roles[i].trains || !rk_job_role_needed(v->layout.job, roles[i].bit))
            continue;
        st = compare_parts(v, &roles[i], parts);
        rk_gathered_close(parts[0]);
        rk_gathered_close(parts[1]);
    }
    return st;
}

static void find_cause(struct verification *v)
{
    const struct rk_verify_row *first = rk_verify_first(&v->report.rows);
    const char *role = first && strcmp(first->role, "rollout") != 0 ? first->role : "actor";
    const struct rk_json *config = v->inputs.hf_config;
    uint32_t bit = rk_role_parse(role);
    char *own = rk_format("%s" RK_KNOB_SEQUENCE_PARALLEL, rk_job_role(bit)->section);
    const struct rk_verify_layout layout = {
        .mesh = rk_job_meshes_find(&v->layout.flow.meshes, bit),
        .sequence_parallel = rk_job_bool_or(
            v->layout.job, own, rk_config_bool(v->layout.job, RK_JOB_ACTOR RK_KNOB_SEQUENCE_PARALLEL)),
        .is_tied = rk_json_as_bool(rk_json_find(config, "tie_word_embeddings"), false),
        .num_kv_heads = rk_json_as_int(rk_json_find(config, "num_key_value_heads"), 0),
    };

    rk_free(own);
    if (first)
        v->report.cause =
            rk_verify_find_cause(&v->report.advice, &v->report.rows, role, &layout, &v->report.measure);
}

static struct rk_status *compare(struct verification *v)
{
    compare_metrics(v);
    RK_TRY(compare_roles(v));
    rk_verify_judge(&v->report.rows, &v->report.measure);
    find_cause(v);
    return NULL;
}

/* --- the command --- */

static struct rk_status *tell(struct verification *v)
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

static struct rk_status *execute(struct verification *v)
{
    RK_TRY(run_layout(v));
    RK_TRY(run_reference(v));
    RK_TRY(compare(v));
    return tell(v);
}

static struct rk_status *verify_layout(struct rk_cli *cli)
{
    struct verification v = {.cli = cli};
    struct rk_status *st;

    rk_cli_watch_signals(NULL); /* there is something to clean up */
    st = read_inputs(&v);
    st = st ? rk_cli_usage(st) : execute(&v);
    remove_work_dir(&v, st);
    side_fini(&v.reference);
    side_fini(&v.layout);
    rk_verify_report_fini(&v.report);
    rk_verify_keys_fini(&v.keys);
    rk_flow_inputs_fini(&v.inputs);
    rk_hosts_fini(&v.hosts);
    rk_free(v.job_dir);
    return st;
}

static const struct rk_cli_option verify_options[] = {
    {"local", "N", "start N daemons on this machine, and one for the reference, and stop them at the end"},
    {"rows", "N", "prompts or examples of the batch (default: those of one optimizer step)"},
    {"layers", "N", "layers of the policy's model, with random weights (default: all, as the job has them)"},
    {"dtype", "float32|bfloat16", "of the parameters (default: float32)"},
    {"tolerance", "X",
     "largest difference that agrees (default: 1e-5, more for wide models; bfloat16: NMSE of 1e-2)"},
    {"seed", "N", "of advantages and returns (default: 1)"},
    {"work-dir", "DIR", "where checkpoints of the comparison go until its end (default: $TMPDIR or /tmp)"},
    {"takeover", NULL, "claim the daemons even if another driver holds them"},
    {NULL, NULL, NULL},
};

const struct rk_command rk_cmd_verify_layout = {
    .name = "verify-layout",
    .args = "JOB.json [KEY=VALUE...]",
    .min_args = 1,
    .max_args = INT_MAX,
    .summary = "compare what a job's layout computes with one rank",
    .details =
        "One batch of the job goes through its layout and then through one rank, or the smallest layout "
        "that\n"
        "fits into memory: log-probs, losses, gradients and the parameters after a step are compared.\n"
        "Nothing of a run is written. Exits with code 1 when something differs.",
    .options = verify_options,
    .run = verify_layout,
};
