/* Exports a checkpoint, or the daemons' model, as a Hugging Face directory. */
#include "cmd/checkpoint_command_internal.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/format/rk_ckpt_dir.h"
#include "rl/rk_checkpoints.h"
#include "base/rk_file.h"
#include "rl/rk_inputs.h"
#include "driver/rk_replicas.h"

#define CONFIG_BYTES_MAX (1u << 20)

/* --- export of the daemons' model --- */

/* Exports with the daemons of one replica only. */
static struct rk_status *export_replica(const struct rk_cli *cli, const struct rk_replica *replica,
                                        const char *out)
{
    struct rk_role_mesh mesh = {rk_ckpt_cmd_role(cli), replica->mesh};
    struct rk_driver_config config = rk_cli_driver_config(cli);
    struct rk_driver *driver;
    struct rk_status *st;

    config.addresses = (const char *const *)replica->addresses.items;
    config.num_addresses = (int32_t)replica->addresses.count;
    RK_TRY(rk_driver_open(&driver, &config));
    rk_cli_watch_signals(driver);
    st = rk_driver_claim(driver);
    if (!st)
        st = rk_driver_configure(driver, &mesh, 1);
    if (!st)
        st = rk_ckpt_cmd_call(driver, mesh.role, "export_hf", rk_ckpt_cmd_path_option(out), NULL);
    rk_cli_watch_signals(NULL);
    rk_driver_close(driver);
    return st;
}

/* Exports with the first replica that is able to. `st` is the error of the whole group; takes ownership of
 * it. */
static struct rk_status *export_any_replica(const struct rk_cli *cli, const struct rk_driver_worker *workers,
                                            int32_t num_workers, const char *out)
{
    struct rk_replicas replicas = {0};
    struct rk_str missing = {0};
    struct rk_status *st = rk_replicas_find(&replicas, rk_ckpt_cmd_role(cli), workers, num_workers, &missing);
    bool is_done = false;

    for (int64_t i = 0; i < replicas.items.count && !is_done; i++) {
        struct rk_status *failed = export_replica(cli, &replicas.items.items[i], out);

        is_done = failed == NULL;
        if (failed)
            rk_str_appendf(&missing, "replica %d: %s\n", replicas.items.items[i].dp_rank,
                           rk_status_message(failed));
        rk_status_free(failed);
    }
    if (is_done && missing.bytes > 0)
        fprintf(stderr, "rankctl: %s", rk_str_text(&missing));
    if (!st && !is_done)
        st = RK_FAIL_REASON(RK_FAILED_PRECONDITION, "NO_MODEL",
                            "the daemons that answer do not hold the complete model of role '%s':\n%s",
                            rk_ckpt_cmd_role(cli),
                            missing.bytes > 0 ? rk_str_text(&missing) : "none of them has the role");
    rk_replicas_fini(&replicas);
    rk_str_fini(&missing);
    return st;
}

static struct rk_status *export_live(const struct rk_cli *cli, const char *out)
{
    struct rk_arena *arena = rk_arena_create(16384, 0);
    struct rk_driver_worker *workers = NULL;
    struct rk_hosts hosts = {0};
    struct rk_driver *driver = NULL;
    struct rk_status *st;
    int32_t count = 0;
    bool is_whole = true;

    RK_TRY_GOTO(st, rk_ckpt_cmd_open_group(cli, &hosts, &driver), out);
    count = rk_driver_num_workers(driver);
    workers = rk_calloc((size_t)count, sizeof(*workers));
    rk_driver_get_status(driver, arena, workers);
    for (int32_t i = 0; i < count; i++)
        is_whole = is_whole && !workers[i].error && workers[i].status.rank.world_size == count;
    if (is_whole)
        st = rk_ckpt_cmd_take_group(driver);
    if (is_whole && !st)
        st = rk_ckpt_cmd_call(driver, rk_ckpt_cmd_role(cli), "export_hf", rk_ckpt_cmd_path_option(out), NULL);
    else if (!is_whole)
        st = export_any_replica(cli, workers, count, out);
out:
    for (int32_t i = 0; i < count; i++)
        rk_status_free(workers[i].error);
    rk_free(workers);
    rk_arena_destroy(arena);
    rk_ckpt_cmd_close_group(&hosts, driver);
    return st;
}

/* --- export of a checkpoint --- */

/* The configuration for new daemons. */
static struct rk_status *make_model_options(struct rk_json **out, const char *part)
{
    char *file = rk_path_join(part, "huggingface/config.json");
    struct rk_ckpt_manifest manifest = {0};
    struct rk_json *config = NULL;
    const char *dtype;
    struct rk_status *st;

    *out = NULL;
    RK_TRY_GOTO(st, rk_ckpt_check(&manifest, part, RK_CKPT_CHECK_SIZES), out);
    RK_TRY_GOTO(st, rk_json_parse_file(&config, file, CONFIG_BYTES_MAX, RK_JSON_BIG_INT_AS_REAL), out);
    dtype = rk_json_as_string(rk_json_find(manifest.layout, "dtype"), "float32");
    *out = rk_json_new_object();
    rk_json_set(*out, "model.hf_config", rk_json_retain(config));
    rk_json_set(*out, "megatron.dtype", rk_json_new_string(dtype));
    rk_json_set(*out, "megatron.forward_only", rk_json_new_bool(true));
out:
    rk_ckpt_manifest_fini(&manifest);
    rk_json_free(config);
    rk_free(file);
    return st;
}

/* The daemons split the model by tensor parallelism. Steals the options of init_model. */
static struct rk_status *load_and_export(const struct rk_cli *cli, struct rk_driver *driver, const char *part,
                                         struct rk_json *model, const char *out)
{
    struct rk_role_mesh mesh = {rk_ckpt_cmd_role(cli), {.tp = rk_driver_num_workers(driver)}};
    struct rk_json *options, *contents;
    struct rk_status *st = rk_driver_claim(driver);

    if (!st)
        st = rk_driver_configure(driver, &mesh, 1);
    if (st) {
        rk_json_free(model);
        return st;
    }
    RK_TRY(rk_ckpt_cmd_call(driver, mesh.role, "init_model", model, NULL));
    options = rk_ckpt_cmd_path_option(part);
    contents = rk_json_new_array();
    rk_json_append(contents, rk_json_new_string("model"));
    rk_json_set(options, "contents", contents);
    RK_TRY(rk_ckpt_cmd_call(driver, mesh.role, "load_checkpoint", options, NULL));
    return rk_ckpt_cmd_call(driver, mesh.role, "export_hf", rk_ckpt_cmd_path_option(out), NULL);
}

struct local_group {
    struct rk_local *local;
    struct rk_driver *driver;
    char *log_dir;
};

static struct rk_status *open_local(struct local_group *group, int64_t count, const char *device)
{
    const char *const roots[] = {"/", NULL};
    struct rk_local_config config = {
        .struct_size = sizeof(config), .num_daemons = (int32_t)count, .device = device, .ckpt_roots = roots};
    struct rk_driver_config driver = {.struct_size = sizeof(driver), .num_addresses = (int32_t)count};
    struct rk_status *st;
    char *program, *log_dir;

    log_dir = rk_strdup("/tmp/rankctl-export-XXXXXX");
    if (!mkdtemp(log_dir)) {
        st = rk_file_errno("cannot create a directory like", log_dir);
        rk_free(log_dir);
        return st;
    }
    group->log_dir = log_dir;
    RK_TRY(rk_cli_find_rankd(&program));
    config.program = program;
    config.log_dir = group->log_dir;
    st = rk_local_start(&group->local, &config);
    rk_free(program);
    RK_TRY(st);
    driver.addresses = rk_local_addresses(group->local);
    RK_TRY(rk_driver_open(&group->driver, &driver));
    rk_cli_watch_signals(group->driver);
    return NULL;
}

/* Logs are kept after an error. */
static void close_local(struct local_group *group, const struct rk_status *st)
{
    rk_cli_watch_signals(NULL);
    rk_driver_close(group->driver);
    rk_local_stop(group->local);
    if (!st)
        RK_IGNORE(rk_ckpt_remove(group->log_dir), "logs of a successful command");
    rk_free(group->log_dir);
}

static struct rk_status *export_locally(const struct rk_cli *cli, const char *part, struct rk_json *model,
                                        const char *out)
{
    const char *text = rk_cli_find(cli, "local"), *device = rk_cli_find(cli, "device");
    struct local_group group = {0};
    struct rk_status *st;
    int64_t count;

    if (!rk_parse_i64(text, &count) || count < 1 || count > RK_MESH_MAX_RANKS) {
        rk_json_free(model);
        return rk_cli_usage(RK_FAIL(RK_INVALID_ARGUMENT, "--local=%s: expected a number of daemons", text));
    }
    st = open_local(&group, count, device ? device : "cpu");
    if (!st)
        st = load_and_export(cli, group.driver, part, model, out);
    else
        rk_json_free(model);
    if (st && group.log_dir)
        st = RK_WRAP(st, "logs of the daemons are in %s", group.log_dir);
    close_local(&group, st);
    return st;
}

static struct rk_status *export_checkpoint(const struct rk_cli *cli, const char *out)
{
    struct rk_hosts hosts = {0};
    struct rk_driver *driver = NULL;
    struct rk_json *model = NULL;
    struct rk_status *st;
    char *part, *hf;
    int64_t step;

    RK_TRY(rk_ckpt_cmd_part(&part, &step, cli));
    hf = rk_path_join(part, "huggingface");
    RK_TRY_GOTO(st, make_model_options(&model, part), out);
    if (rk_cli_has(cli, "local")) {
        st = export_locally(cli, part, model, out);
    } else {
        st = rk_ckpt_cmd_open_group(cli, &hosts, &driver);
        if (!st)
            st = load_and_export(cli, driver, part, model, out);
        else
            rk_json_free(model);
        rk_ckpt_cmd_close_group(&hosts, driver);
    }
    if (!st && access(out, W_OK) == 0)
        st = rk_flow_copy_tokenizer(hf, out);
out:
    rk_free(hf);
    rk_free(part);
    return st;
}

/* Daemons have no tokenizer: it comes from the checkpoint, or from the directory that the user names. */
static struct rk_status *add_tokenizer(const struct rk_cli *cli, const char *out)
{
    const char *given = rk_cli_find(cli, "tokenizer");
    char *file = rk_path_join(out, "tokenizer.json");
    struct rk_status *st = NULL;

    if (given && access(out, W_OK) == 0)
        st = rk_flow_copy_tokenizer(given, out);
    if (!st && access(file, F_OK) != 0)
        fprintf(stderr, "rankctl: %s has no tokenizer; %s\n", out,
                access(out, W_OK) != 0
                    ? "it is not on this machine: copy tokenizer.json and its companions there"
                : given ? "the directory of --tokenizer has no tokenizer.json"
                        : "copy tokenizer.json and its companions, or export with --tokenizer DIR");
    rk_free(file);
    return st;
}

static struct rk_status *check_export(const struct rk_cli *cli)
{
    bool has_checkpoint = cli->line.args.count > 0;

    if (!rk_cli_find(cli, "out"))
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "rankctl checkpoint export: expected --out DIR, the directory to write");
    if (rk_cli_has(cli, "local") && rk_cli_has(cli, "hosts"))
        return RK_FAIL(RK_INVALID_ARGUMENT, "--local starts its own daemons; expected without --hosts");
    if (rk_cli_has(cli, "local") && !has_checkpoint)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "--local starts daemons without a model; expected a checkpoint, DIR/global_step_<N>");
    return NULL;
}

static struct rk_status *run_export(struct rk_cli *cli)
{
    struct rk_status *st = check_export(cli);
    char *out;

    if (st)
        return rk_cli_usage(st);
    out = rk_ckpt_cmd_path(rk_cli_find(cli, "out"));
    st = cli->line.args.count > 0 ? export_checkpoint(cli, out) : export_live(cli, out);
    if (!st)
        st = add_tokenizer(cli, out);
    if (!st)
        rk_ckpt_cmd_print(cli, "ModelExported", out, &(struct rk_driver_result){0});
    rk_free(out);
    return st;
}

static const struct rk_option export_options[] = {
    {"out", "DIR", "Hugging Face directory to write, on the daemons' hosts"},
    {"local", "N", "start N daemons on this machine for a checkpoint; one is enough"},
    {"device", "cpu|cuda", "device of the daemons of --local (default: cpu)"},
    {"tokenizer", "DIR", "directory whose tokenizer is copied to --out (default: that of the checkpoint)"},
    {"role", "ROLE", "role whose model is exported (default: actor)"},
    {"takeover", NULL, "claim the daemons even if another driver holds them"},
    {NULL, NULL, NULL},
};

const struct rk_command rk_cmd_checkpoint_export = {
    .name = "checkpoint export",
    .args = "[DIR/global_step_<N>]",
    .max_args = 1,
    .summary = "write a checkpoint, or the model that the daemons hold, as a Hugging Face directory",
    .details =
        "With a checkpoint: --local N or --hosts loads it into new models; old models of the daemons are "
        "freed.\n"
        "Without: the model that the daemons of --hosts hold. When some of them are lost, the others can\n"
        "still export it if one replica of the model is complete; they cannot continue training then.",
    .options = export_options,
    .run = run_export,
};
