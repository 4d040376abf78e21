/* Checks and shows a job file, without daemons; and the page of verl's keys. */
#include "cmd/cmd_internal.h"

#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/config/rk_config.h"
#include "rl/rk_flows.h"
#include "rl/rk_hub.h"
#include "rl/rk_job.h"

static struct rk_status *load(struct rk_cli *cli, struct rk_config **job)
{
    const char *text = rk_cli_find(cli, "world");
    int64_t world = 0;
    struct rk_status *st;

    *job = NULL;
    if (text && (!rk_parse_i64(text, &world) || world < 1 || world > RK_MESH_MAX_RANKS))
        return RK_FAIL(RK_INVALID_ARGUMENT, "--world=%s: expected a number of daemons", text);
    RK_TRY(rk_cli_load_job(job, cli, 1, NULL, 0));
    st = rk_job_check(*job, (int32_t)world);
    if (!st)
        return NULL;
    rk_config_destroy(*job);
    *job = NULL;
    return RK_WRAP(st, "%s", rk_cli_job_args(cli, 1).name);
}

/* The model may be on the daemons' hosts, where a run finds out. */
static void say_if_unchecked(const struct rk_config *job, const char *job_dir, const char *key)
{
    const char *path = rk_config_string(job, key);
    char *dir = path ? rk_hub_resolve(job_dir, path) : NULL;
    char *file = dir ? rk_path_join(dir, "config.json") : NULL;

    if (file && access(file, R_OK) != 0) {
        char *shown = rk_str_printable(file, "");

        printf("not checked: %s: '%s' is not on this machine\n", key, shown);
        rk_free(shown);
    }
    rk_free(file);
    rk_free(dir);
}

static void say_unchecked(const struct rk_config *job, const char *job_dir)
{
    int64_t num_roles;
    const struct rk_job_role *roles = rk_job_roles(&num_roles);

    say_if_unchecked(job, job_dir, RK_JOB_MODEL "path");
    for (int64_t i = 0; i < num_roles; i++) {
        if (roles[i].model)
            say_if_unchecked(job, job_dir, roles[i].model);
    }
}

static struct rk_status *check(struct rk_cli *cli)
{
    struct rk_cli_job_args args = rk_cli_job_args(cli, 1);
    struct rk_config *job;
    struct rk_status *st;
    char *job_dir;

    RK_TRY(load(cli, &job));
    job_dir = rk_cli_directory_of(args.path);
    st = rk_flow_check_models(job, job_dir);
    if (!st) {
        printf("%s is fine\n", args.name);
        say_unchecked(job, job_dir);
    }
    rk_free(job_dir);
    rk_config_destroy(job);
    return st ? RK_WRAP(st, "%s", args.name) : NULL;
}

static struct rk_status *show(struct rk_cli *cli)
{
    struct rk_config *job;
    struct rk_str text = {0};

    RK_TRY(load(cli, &job));
    if (rk_cli_is_json(cli)) {
        struct rk_json *body = rk_json_new_object();

        rk_json_set(body, "job", rk_json_clone(rk_config_tree(job)));
        rk_cli_print_json("Config", body);
    } else {
        rk_config_format(job, &text);
        printf("%s", rk_str_text(&text));
    }
    rk_str_fini(&text);
    rk_config_destroy(job);
    return NULL;
}

static struct rk_status *verl(struct rk_cli *cli)
{
    struct rk_str page = {0};

    (void)cli;
    rk_job_format_verl_keys(&page);
    printf("%s", rk_str_text(&page));
    rk_str_fini(&page);
    return NULL;
}

static struct rk_status *run(struct rk_cli *cli)
{
    static const struct {
        const char *name;
        struct rk_status *(*run)(struct rk_cli *cli);
    } rows[] = {{"check", check}, {"show", show}, {"verl", verl}};

    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        if (strcmp(rows[i].name, cli->line.args.items[0]) == 0) {
            struct rk_status *st = rows[i].run(cli);

            return st ? rk_cli_usage(st) : NULL;
        }
    }
    return rk_cli_usage(RK_FAIL(RK_INVALID_ARGUMENT, "rankctl config %s: expected check, show or verl",
                                cli->line.args.items[0]));
}

static const struct rk_option options[] = {
    {"world", "N", "also check the job against N daemons"},
    {NULL, NULL, NULL},
};

const struct rk_command rk_cmd_config = {
    .name = "config",
    .args = "check|show [JOB.json|-] [KEY=VALUE...]  |  verl",
    .min_args = 1,
    .max_args = INT_MAX,
    .summary = "check or show a job; list verl's keys",
    .details = "show prints every key with its value and its source; verl prints the treatment of\n"
               "verl's keys (docs/verl.md).",
    .options = options,
    .run = run,
};
