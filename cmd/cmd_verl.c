/* A command line of verl as a run: the job that it means, what differs, and the run. */
#include <inttypes.h>
#include <limits.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/config/rk_config.h"
#include "base/rk_env.h"
#include "cmd/cmd_internal.h"
#include "cmd/verl_command_internal.h"
#include "rl/rk_job.h"

#define VALUE_BYTES_MAX 60 /* of a cell */

/* verl's defaults of its RL trainer where they decide how many daemons a run has. */
#define RL_GPUS_PER_NODE 8

/* A key of the command that rankd has under another name, or that has no effect. */
struct difference {
    char *key, *value, *to; /* to: NULL without another key */
    const char *text;       /* of the table */
    bool is_ignored;
};

struct conversion {
    struct rk_cli *cli;
    struct rk_verl_command command;
    RK_ARRAY(const char *) overrides;
    RK_ARRAY(char *) owned;
    RK_ARRAY(struct difference) differences;
    struct rk_config *job;
    int64_t nodes, gpus_per_node, asked; /* that the command asks for; their product */
    int32_t world_size;                  /* 0: not known */
};

/* --- the job --- */

/* Ray's settings have the environment of its workers, where tokens are given. */
static bool may_be_secret(const char *path)
{
    return rk_str_has_prefix(path, "ray_kwargs") || rk_str_has_prefix(path, "ray_init");
}

static void on_foreign(void *user, const struct rk_config_foreign *row, const char *path,
                       const struct rk_json *value, const char *to)
{
    struct conversion *verl = user;
    struct difference difference = {
        .key = rk_strdup(path),
        .value = may_be_secret(path) ? rk_strdup("...") : rk_json_dump(value, 0, false),
        .to = to ? rk_strdup(row->to[strcspn(row->to, "=")] ? row->to : to) : NULL,
        .text = row->text,
        .is_ignored = row->kind == RK_CONFIG_FOREIGN_IGNORED,
    };

    rk_array_append(&verl->differences, difference);
}

/* The value that an override has for the key; NULL: none. */
static const char *find_override(const char *const *overrides, int64_t count, const char *key)
{
    size_t bytes = strlen(key);
    const char *found = NULL;

    for (int64_t i = 0; i < count; i++) {
        const char *word = overrides[i] + strspn(overrides[i], "+");

        if (strncmp(word, key, bytes) == 0 && word[bytes] == '=')
            found = word + bytes + 1;
    }
    return found;
}

static int64_t int_of(const struct rk_verl_command *command, const char *key, int64_t fallback)
{
    const char *text = find_override(command->overrides.items, command->overrides.count, key);

    if (text)
        (void)rk_parse_i64(text, &fallback); /* another value is an error of the job */
    return fallback;
}

static struct rk_status *check_count(const char *key, int64_t value)
{
    return value >= 1 && value <= RK_MESH_MAX_RANKS
               ? NULL
               : RK_FAIL(RK_INVALID_ARGUMENT, "%s=%" PRId64 ": expected 1 to %d", key, value,
                         RK_MESH_MAX_RANKS);
}

/* The GPUs that the command is for. With --nproc_per_node torchrun starts the trainer, and decides. */
static struct rk_status *read_asked(struct conversion *verl)
{
    const struct rk_verl_command *command = &verl->command;
    bool is_torchrun = command->gpus_per_node != 0;
    int64_t nodes = command->nodes ? command->nodes : 1;

    RK_TRY(check_count("--nnodes", nodes));
    verl->nodes = is_torchrun ? nodes : int_of(command, "trainer.nnodes", nodes);
    verl->gpus_per_node =
        is_torchrun ? command->gpus_per_node
                    : int_of(command, "trainer.n_gpus_per_node", command->is_sft ? 1 : RL_GPUS_PER_NODE);
    RK_TRY(check_count("trainer.nnodes", verl->nodes));
    RK_TRY(check_count(is_torchrun ? "--nproc_per_node" : "trainer.n_gpus_per_node", verl->gpus_per_node));
    verl->asked = verl->nodes * verl->gpus_per_node;
    return NULL;
}

/* The daemons of --local or --hosts; without both, as many on this machine as the command asks for GPUs. */
static struct rk_status *read_world(struct conversion *verl)
{
    const char *local = rk_cli_find(verl->cli, "local");
    struct rk_hosts hosts = {0};
    int64_t count = 0;

    RK_TRY(read_asked(verl));
    if (local) {
        if (!rk_parse_i64(local, &count) || count < 1 || count > RK_MESH_MAX_RANKS)
            return RK_FAIL(RK_INVALID_ARGUMENT, "--local=%s: expected a number of daemons", local);
    } else {
        RK_TRY(rk_cli_hosts(verl->cli, &hosts));
        count = hosts.count;
        rk_hosts_fini(&hosts);
    }
    if (count == 0 && !rk_cli_has(verl->cli, "dry-run") && verl->nodes > 1)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "the command is for %" PRId64 " nodes of %" PRId64
                       " GPUs: give the daemons with --hosts "
                       "or RANKCTL_HOSTS, or --local N for N on this machine",
                       verl->nodes, verl->gpus_per_node);
    if (count == 0)
        count = RK_MIN(verl->asked, RK_MESH_MAX_RANKS);
    verl->world_size = (int32_t)count;
    return NULL;
}

static void add_owned(struct conversion *verl, char *override)
{
    rk_array_append(&verl->owned, override);
    rk_array_append(&verl->overrides, override);
}

/* Whether the command, the words before it or the environment name a device. */
static bool has_device(const struct conversion *verl)
{
    return find_override(verl->overrides.items, verl->overrides.count, "trainer.device") ||
           find_override(verl->overrides.items, verl->overrides.count, "device") ||
           rk_env("RANKCTL_JOB_DEVICE");
}

static struct rk_status *load_job(struct conversion *verl, int64_t num_own)
{
    const char *const *own = verl->cli->line.args.items;
    struct rk_job_source source = {
        .is_verl_sft = verl->command.is_sft, .on_foreign = on_foreign, .user = verl};
    struct rk_status *st;

    for (int64_t i = 0; i < verl->command.overrides.count; i++)
        rk_array_append(&verl->overrides, verl->command.overrides.items[i]);
    for (int64_t i = 0; i < num_own; i++)
        rk_array_append(&verl->overrides, own[i]);
    if (!has_device(verl))
        rk_array_append(&verl->overrides, "device=cuda"); /* verl's default */
    if (verl->asked != verl->world_size || verl->command.is_sft) {
        add_owned(verl, rk_strdup("trainer.nnodes=null"));
        add_owned(verl, rk_strdup("trainer.n_gpus_per_node=null"));
    }
    source.overrides = verl->overrides.items;
    source.num_overrides = verl->overrides.count;
    RK_TRY(rk_job_load_from(&verl->job, &source));
    st = rk_job_check(verl->job, verl->world_size);
    return st ? RK_WRAP(st, "on %d daemons", verl->world_size) : NULL;
}

/* Every key that is given or has verl's default, with absolute paths: a file for `rankctl run`. */
static struct rk_json *make_job(const struct rk_config *job)
{
    char *here = rk_cli_directory_of(NULL);
    struct rk_json *all = rk_job_make_absolute(job, here), *given = rk_json_new_object();
    const struct rk_config_key *keys;
    int64_t count;

    keys = rk_job_keys(&count);
    for (int64_t i = 0; i < count; i++) {
        if (strcmp(rk_config_origin(job, keys[i].path), "default") != 0)
            rk_json_set_path(given, keys[i].path, rk_json_clone(rk_json_find_path(all, keys[i].path)));
    }
    rk_json_free(all);
    rk_free(here);
    return given;
}

/* --- what differs --- */

static const char *effect_of(const struct difference *difference)
{
    return difference->is_ignored ? "no effect" : difference->to ? "other key" : "taken";
}

static void print_differences(const struct conversion *verl)
{
    static const char *const titles[] = {"KEY", "EFFECT", "IN RANKD"}, *const effects[] = {
                                                                           "no effect", "other key", "taken"};
    struct rk_table table;

    if (verl->differences.count == 0)
        return;
    fprintf(stderr, "\nkeys of the command that rankd has in another form (docs/verl.md):\n");
    rk_table_init(&table, RK_ARRAY_LEN(titles), titles);
    for (size_t e = 0; e < RK_ARRAY_LEN(effects); e++) {
        for (int64_t i = 0; i < verl->differences.count; i++) {
            const struct difference *d = &verl->differences.items[i];

            if (strcmp(effect_of(d), effects[e]) != 0)
                continue;
            rk_table_addf(&table, "%s=%.*s%s", d->key, VALUE_BYTES_MAX, d->value,
                          strlen(d->value) > VALUE_BYTES_MAX ? "..." : "");
            rk_table_add(&table, effects[e]);
            rk_table_addf(&table, "%s%s%s", d->to ? d->to : "", d->to ? ": " : "", d->text);
        }
    }
    rk_table_print(&table, stderr);
}

static void print_lines(const struct conversion *verl)
{
    const struct rk_verl_command *command = &verl->command;

    fprintf(stderr, "rankctl: %s is algorithm.type=%s, on %d daemons, device %s\n", command->module,
            rk_config_string(verl->job, "algorithm.type"), verl->world_size,
            rk_config_string(verl->job, "device"));
    if (*command->launcher)
        fprintf(stderr, "rankctl: rankd starts its own processes; left out: %s\n", command->launcher);
    for (int64_t i = 0; i < command->ignored.count; i++)
        fprintf(stderr, "rankctl: %s: not read; give values that differ from verl's as KEY=VALUE\n",
                command->ignored.items[i]);
    if (verl->asked != verl->world_size)
        fprintf(stderr,
                "rankctl: the command is for %" PRId64 " x %" PRId64 " GPUs; the run has %d daemons\n",
                verl->nodes, verl->gpus_per_node, verl->world_size);
}

static struct rk_json *differences_json(const struct conversion *verl)
{
    struct rk_json *list = rk_json_new_array();

    for (int64_t i = 0; i < verl->differences.count; i++) {
        const struct difference *d = &verl->differences.items[i];
        struct rk_json *row = rk_json_new_object();

        rk_json_set(row, "key", rk_json_new_string(d->key));
        rk_json_set(row, "value", rk_json_new_string(d->value));
        rk_json_set(row, "effect", rk_json_new_string(effect_of(d)));
        rk_json_set(row, "to", d->to ? rk_json_new_string(d->to) : rk_json_new_null());
        rk_json_set(row, "text", rk_json_new_string(d->text));
        rk_json_append(list, row);
    }
    return list;
}

/* The job on standard output, and the rest on standard error. */
static void print(const struct conversion *verl, const struct rk_json *job)
{
    if (rk_cli_is_json(verl->cli)) {
        struct rk_json *body = rk_json_new_object();

        rk_json_set(body, "job", rk_json_clone(job));
        rk_json_set(body, "differences", differences_json(verl));
        rk_json_set(body, "daemons", rk_json_new_int(verl->world_size));
        rk_cli_print_json("Verl", body);
        return;
    }
    print_lines(verl);
    print_differences(verl);
    fflush(stderr);
    {
        char *text = rk_json_dump(job, 2, false);

        printf("%s\n", text);
        rk_free(text);
    }
    fflush(stdout);
}

/* --- the run --- */

static void conversion_fini(struct conversion *verl)
{
    for (int64_t i = 0; i < verl->differences.count; i++) {
        rk_free(verl->differences.items[i].key);
        rk_free(verl->differences.items[i].value);
        rk_free(verl->differences.items[i].to);
    }
    for (int64_t i = 0; i < verl->owned.count; i++)
        rk_free(verl->owned.items[i]);
    rk_array_fini(&verl->differences);
    rk_array_fini(&verl->owned);
    rk_array_fini(&verl->overrides);
    rk_verl_command_fini(&verl->command);
    rk_config_destroy(verl->job);
}

static struct rk_status *run_job(struct conversion *verl, const struct rk_json *job)
{
    struct rk_cli *cli = verl->cli;
    struct rk_hosts hosts;
    char *local = NULL;
    struct rk_status *st;

    RK_TRY(rk_cli_hosts(cli, &hosts));
    if (hosts.count == 0 && !rk_cli_has(cli, "local")) {
        local = rk_format("%d", verl->world_size);
        rk_array_append(&cli->line.settings, ((struct rk_command_setting){.name = "local", .value = local}));
    }
    rk_hosts_fini(&hosts);
    cli->job_text = rk_json_dump(job, 2, false);
    cli->job_name = "job of the command";
    cli->line.args.count = 0;
    rk_array_append(&cli->line.args, "-");
    st = rk_cmd_run.run(cli);
    rk_free(local);
    return st;
}

static struct rk_status *convert_and_run(struct conversion *verl)
{
    struct rk_cli *cli = verl->cli;
    int64_t first = cli->line.num_before_dashes;
    struct rk_status *st;
    struct rk_json *job;

    if (first < 0 || first == cli->line.args.count)
        return rk_cli_usage(RK_FAIL(RK_INVALID_ARGUMENT, "expected -- and verl's command after it"));
    st = rk_verl_command_read(&verl->command, cli->line.args.items + first, cli->line.args.count - first);
    if (!st && verl->command.node_rank > 0) {
        fprintf(stderr, "rankctl: the command's node 0 starts the run; nothing to do on node %" PRId64 "\n",
                verl->command.node_rank);
        return NULL;
    }
    if (!st)
        st = read_world(verl);
    if (!st)
        st = load_job(verl, first);
    if (st)
        return rk_cli_usage(st);
    job = make_job(verl->job);
    print(verl, job);
    st = rk_cli_has(cli, "dry-run") ? NULL : run_job(verl, job);
    rk_json_free(job);
    return st;
}

static struct rk_status *run(struct rk_cli *cli)
{
    struct conversion verl = {.cli = cli};
    struct rk_status *st = convert_and_run(&verl);

    conversion_fini(&verl);
    return st;
}

static const struct rk_option options[] = {
    {"dry-run", NULL, "print the job and what differs, and do not run it"},
    {"local", "N",
     "start N daemons on this machine; default, without --hosts: one for each GPU of the command"},
    {"run-dir", "DIR", "directory for metrics, report and model (default: runs/<experiment>/<UTC time>)"},
    {"record", "DIR", "record every call of the daemons of --local in DIR/rank-<i>, for rankctl replay"},
    {"quiet", NULL, "no progress"},
    {"takeover", NULL, "claim the daemons even if another driver holds them"},
    {NULL, NULL, NULL},
};

const struct rk_command rk_cmd_verl = {
    .name = "verl",
    .args = "[KEY=VALUE...] -- COMMAND...",
    .min_args = 0,
    .max_args = INT_MAX,
    .summary = "run a command line of verl",
    .details =
        "COMMAND runs a trainer of verl with any launcher: python3 -m verl.trainer.main_ppo ..., torchrun "
        "...\n"
        "-m verl.trainer.sft_trainer ..., uv run ..., ray job submit ... . The job that it means is printed\n"
        "on standard output, as a file for rankctl run; what differs, on standard error. KEY=VALUE\n"
        "before -- comes after the command's. rankctl verl-env runs verl's scripts unchanged.",
    .options = options,
    .run = run,
};
