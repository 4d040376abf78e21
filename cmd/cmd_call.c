/* Calls one method of a role, with files as input and output. */
#include "cmd/cmd_internal.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "rl/rk_flows.h"
#include "rl/rk_job.h"
#include "proto/limits.h"

#define MAX_TOKENS 16384 /* of a micro-batch */

struct target {
    char *role, *method;
};

static struct rk_status *parse_target(struct target *out, const char *text)
{
    const char *dot = strchr(text, '.');

    *out = (struct target){0};
    if (!dot || dot == text || !dot[1])
        return rk_cli_usage(RK_FAIL(RK_INVALID_ARGUMENT,
                                    "'%s': expected ROLE.METHOD, for example actor.get_mesh_info", text));
    out->role = rk_strndup(text, (size_t)(dot - text));
    out->method = rk_strdup(dot + 1);
    return NULL;
}

/* "key=VALUE": VALUE is JSON, or a string without quotes. */
static struct rk_status *add_option(struct rk_json *options, const char *text)
{
    const char *equals = strchr(text, '=');
    struct rk_json *value;
    struct rk_status *st;
    char *key;

    if (!equals || equals == text)
        return rk_cli_usage(RK_FAIL(RK_INVALID_ARGUMENT, "--opt=%s: expected KEY=VALUE", text));
    st = rk_json_parse(&value, equals + 1, strlen(equals + 1), "--opt", 0);
    if (st) {
        rk_status_free(st);
        value = rk_json_new_string(equals + 1);
    }
    key = rk_strndup(text, (size_t)(equals - text));
    rk_json_set(options, key, value);
    rk_free(key);
    return NULL;
}

static struct rk_status *read_options(const struct rk_cli *cli, struct rk_json **out)
{
    struct rk_status *st = NULL;

    *out = rk_json_new_object();
    for (int64_t i = 0; i < cli->line.settings.count && !st; i++) {
        if (strcmp(cli->line.settings.items[i].name, "opt") == 0)
            st = add_option(*out, cli->line.settings.items[i].value);
    }
    return st;
}

/* --job: the meshes of the job; without it the daemons' meshes. */
static struct rk_status *prepare_group(const struct rk_cli *cli, struct rk_driver *driver)
{
    const char *path = rk_cli_find(cli, "job");
    struct rk_job_meshes meshes;
    struct rk_config *job;
    struct rk_status *st;

    if (!path) {
        st = rk_driver_adopt(driver);
        if (st && strcmp(rk_status_reason(st), "NOT_CONFIGURED") == 0)
            return RK_WRAP(st, "without --job");
        return st;
    }
    st = rk_job_load(&job, path, NULL, 0);
    if (st)
        return rk_cli_usage(st);
    st = rk_job_meshes_create(&meshes, job, rk_driver_num_workers(driver));
    if (!st)
        st = rk_job_meshes_configure(&meshes, driver);
    rk_job_meshes_fini(&meshes);
    rk_config_destroy(job);
    return st;
}

/* --- the plan of methods that need one: one mini-batch, micro-batches by tokens --- */

static struct rk_status *count_marks(const struct rk_batch *batch, const char *name, struct rk_arena *arena,
                                     int64_t **out)
{
    int64_t shape[2];
    const void *mask;

    RK_TRY(rk_batch_get_dense(batch, name, RK_DTYPE_I64, 2, shape, &mask));
    *out = rk_arena_calloc(arena, (size_t)shape[0] + 1, sizeof(**out));
    if (!*out)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "no memory for the plan of %lld rows", (long long)shape[0]);
    rk_flow_count_marks(*out, mask, shape[0], shape[1], shape[1]);
    return NULL;
}

static struct rk_status *build_plan(const struct rk_cli *cli, const struct rk_driver *driver,
                                    const struct target *target, const struct rk_batch *batch,
                                    struct rk_arena *arena, struct rk_plan *plan)
{
    const struct rk_mesh *mesh = rk_driver_find_mesh(driver, target->role);
    struct rk_plan_request request = {
        .use_dynamic_bsz = true, .max_token_len = MAX_TOKENS, .workload = {RK_FLOW_WORKLOAD_DEFAULT}};
    int64_t *seqlens, *loss_tokens;
    const char *max_tokens = rk_cli_find(cli, "max-tokens");

    if (!mesh)
        return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "NOT_CONFIGURED", "role '%s' has no mesh in this group",
                              target->role);
    if (!batch)
        return rk_cli_usage(RK_FAIL(RK_INVALID_ARGUMENT, "%s needs a batch; use --in", target->method));
    if (max_tokens && (!rk_parse_i64(max_tokens, &request.max_token_len) || request.max_token_len < 1))
        return rk_cli_usage(
            RK_FAIL(RK_INVALID_ARGUMENT, "--max-tokens=%s: expected a positive number", max_tokens));
    RK_TRY(count_marks(batch, "attention_mask", arena, &seqlens));
    request.num_rows = rk_batch_num_rows(batch);
    request.num_replicas = rk_mesh_axis_size(mesh, RK_AXIS_DP);
    request.micro_multiple = rk_mesh_axis_size(mesh, RK_AXIS_PP); /* interleaved or not */
    request.seqlens = seqlens;
    if (rk_batch_find(batch, "response_mask")) {
        RK_TRY(count_marks(batch, "response_mask", arena, &loss_tokens));
        request.loss_tokens = loss_tokens;
    }
    return rk_plan_build(plan, arena, &request);
}

/* --- output --- */

static void print_metrics(const struct rk_json *metrics)
{
    static const char *const titles[] = {"METRIC", "VALUE"};
    struct rk_table table;

    if (rk_json_count(metrics) == 0)
        return;
    rk_table_init(&table, RK_ARRAY_LEN(titles), titles);
    for (void *it = rk_json_iter(metrics); it; it = rk_json_iter_next(metrics, it)) {
        rk_table_add(&table, rk_json_iter_key(it));
        rk_table_addf(&table, "%.6g", rk_json_as_real(rk_json_iter_value(it), 0.0));
    }
    rk_table_print(&table, stdout);
}

static struct rk_json *columns_json(const struct rk_batch *batch)
{
    struct rk_json *columns = rk_json_new_array();

    for (int64_t i = 0; batch && i < rk_batch_num_columns(batch); i++) {
        struct rk_column_info info = rk_column_get_info(rk_batch_column_at(batch, i));
        struct rk_json *item = rk_json_new_object(), *shape = rk_json_new_array();

        for (int32_t j = 0; j < info.rank; j++)
            rk_json_append(shape, rk_json_new_int(info.shape[j]));
        rk_json_set(item, "name", rk_json_new_string(rk_batch_name_at(batch, i)));
        rk_json_set(
            item, "dtype",
            rk_json_new_string(info.kind == RK_COLUMN_STRINGS ? "string" : rk_dtype_name(info.dtype)));
        rk_json_set(item, "shape", shape);
        rk_json_append(columns, item);
    }
    return columns;
}

static void print_result(const struct rk_cli *cli, const struct rk_driver_result *result)
{
    struct rk_json *body, *metas;

    if (!rk_cli_is_json(cli)) {
        print_metrics(result->metrics);
        for (int32_t i = 0; i < result->num_outputs; i++) {
            const struct rk_batch *output = result->outputs[i];
            char *meta = output ? rk_json_dump(rk_batch_meta(output), 0, false) : NULL;

            if (output && rk_json_count(rk_batch_meta(output)) > 0)
                printf("%s\n", meta);
            rk_free(meta);
        }
        return;
    }
    body = rk_json_new_object();
    metas = rk_json_new_array();
    for (int32_t i = 0; i < result->num_outputs; i++)
        rk_json_append(metas, result->outputs[i] ? rk_json_clone(rk_batch_meta(result->outputs[i]))
                                                 : rk_json_new_object());
    rk_json_set(body, "metrics", rk_json_clone(result->metrics));
    rk_json_set(body, "columns", columns_json(result->batch));
    rk_json_set(body, "outputs", metas);
    rk_cli_print_json("CallResult", body);
}

/* Checked before the call, which may take hours. */
static struct rk_status *check_out(const struct rk_cli *cli)
{
    const char *path = rk_cli_find(cli, "out");
    struct rk_status *st = NULL;
    struct stat info;
    char *dir;

    if (!path)
        return NULL;
    if (strcmp(path, "-") == 0)
        return rk_cli_usage(
            RK_FAIL(RK_INVALID_ARGUMENT, "--out=-: expected a file; write ./- for a file named '-'"));
    if (lstat(path, &info) == 0)
        return rk_cli_usage(RK_FAIL(RK_INVALID_ARGUMENT, "--out=%s: exists, and is not replaced", path));
    dir = rk_path_dir(path);
    if (access(dir, W_OK | X_OK) != 0)
        st = rk_cli_usage(
            RK_FAIL(RK_INVALID_ARGUMENT, "--out=%s: cannot write in '%s': %s", path, dir, strerror(errno)));
    rk_free(dir);
    return st;
}

static struct rk_status *write_result(const struct rk_cli *cli, const struct rk_driver_result *result)
{
    const char *path = rk_cli_find(cli, "out");
    const struct rk_batch *batch = result->batch             ? result->batch
                                   : result->num_outputs > 0 ? result->outputs[0]
                                                             : NULL;

    if (!path && batch && rk_batch_num_columns(batch) > 0)
        fprintf(stderr,
                "rankctl: the columns of the result (%lld rows) are discarded; use --out FILE to keep them\n",
                (long long)rk_batch_num_rows(batch));
    if (!path)
        return NULL;
    if (!batch)
        return RK_FAIL(RK_FAILED_PRECONDITION, "the method returned no columns to write to '%s'", path);
    return rk_batch_write_file(batch, path);
}

static struct rk_status *call_method(const struct rk_cli *cli, struct rk_driver *driver,
                                     const struct target *target, const struct rk_batch *batch,
                                     const struct rk_json *options)
{
    const struct rk_method *method;
    struct rk_arena *arena = rk_arena_create(16384, 0);
    struct rk_driver_call_args call = {
        .role = target->role, .method = target->method, .batch = batch, .options = options};
    struct rk_driver_result result = {0};
    struct rk_plan plan;
    struct rk_status *st;

    RK_TRY_GOTO(st, rk_cli_duration(cli, "timeout", 0, &call.timeout_ms), out);
    RK_TRY_GOTO(st, rk_method_check_role(&method, target->role, target->method), out);
    RK_TRY_GOTO(st, rk_driver_claim(driver), out);
    RK_TRY_GOTO(st, prepare_group(cli, driver), out);
    if (method->flags & RK_MF_PLAN) {
        RK_TRY_GOTO(st, build_plan(cli, driver, target, batch, arena, &plan), out);
        call.plan = &plan;
    }
    RK_TRY_GOTO(st, rk_driver_call(driver, &call, &result), out);
    RK_TRY_GOTO(st, write_result(cli, &result), out);
    print_result(cli, &result);
out:
    rk_driver_result_fini(&result);
    rk_arena_destroy(arena);
    return st;
}

static struct rk_status *run(struct rk_cli *cli)
{
    const char *in = rk_cli_find(cli, "in");
    struct rk_hosts hosts = {0};
    struct rk_json *options = NULL;
    struct rk_batch *batch = NULL;
    struct rk_driver *driver = NULL;
    struct target target;
    struct rk_status *st;

    RK_TRY_GOTO(st, parse_target(&target, cli->line.args.items[0]), out);
    RK_TRY_GOTO(st, read_options(cli, &options), out);
    RK_TRY_GOTO(st, check_out(cli), out);
    if (in && (st = rk_batch_read_file(&batch, in)) != NULL) {
        st = rk_cli_usage(RK_WRAP(st, "--in"));
        goto out;
    }
    RK_TRY_GOTO(st, rk_cli_hosts(cli, &hosts), out);
    RK_TRY_GOTO(st, rk_cli_open(cli, &hosts, &driver), out);
    rk_cli_watch_signals(driver);
    st = call_method(cli, driver, &target, batch, options);
out:
    rk_cli_watch_signals(NULL);
    rk_driver_close(driver);
    rk_hosts_fini(&hosts);
    rk_batch_destroy(batch);
    rk_json_free(options);
    rk_free(target.role);
    rk_free(target.method);
    return st;
}

static const struct rk_option call_options[] = {
    {"in", "FILE", "input batch: a safetensors file, with strings and meta as JSON in its __metadata__"},
    {"out", "FILE", "output file for the result, in the same format; an existing one is not replaced"},
    {"opt", "KEY=VALUE", "option of the method (may be repeated); VALUE is JSON or a string"},
    {"job", "JOB.json", "configure the meshes of this job first; default: use the configured meshes"},
    {"max-tokens", "N", "maximum tokens of one micro-batch, for methods with a plan (default: 16384)"},
    {"timeout", "DURATION", "time limit of the method on the daemons"},
    {"takeover", NULL, "claim the daemons even if another driver holds them"},
    {NULL, NULL, NULL},
};

const struct rk_command rk_cmd_call = {
    .name = "call",
    .args = "ROLE.METHOD",
    .min_args = 1,
    .max_args = 1,
    .summary = "run one method on the daemons",
    .details = "'rankctl describe METHOD' shows the columns and options.",
    .options = call_options,
    .repeatable = "opt",
    .run = run,
};
