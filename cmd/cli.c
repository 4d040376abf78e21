/* Command lines, exit codes, signals. */
#include "cmd/cmd_internal.h"

#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/config/rk_config.h"
#include "base/rk_env.h"
#include "base/rk_file.h"
#include "base/rk_small_file.h"

const struct rk_option rk_common_options[] = {
    {"hosts", "LIST",
     "daemons in rank order: HOST[:PORT], ranges as node[01-04]:[7000-7007], unix:PATH, dns:NAME, slurm:, "
     "@FILE; default: $RANKCTL_HOSTS"},
    {"token-file", "FILE", "bearer token for the daemons"},
    {"tls-ca", "FILE", "CA certificates of the daemons; enables TLS on TCP; default: $RANKCTL_TLS_CA"},
    {"tls-cert", "FILE", "client certificate for the daemons; default: $RANKCTL_TLS_CERT"},
    {"tls-key", "FILE", "private key of --tls-cert; default: $RANKCTL_TLS_KEY"},
    {"output", "table|json", "output format (default: table)"},
    {"help", NULL, "show this text"},
    {NULL, NULL, NULL},
};

struct rk_status *rk_cli_usage(struct rk_status *st)
{
    struct rk_status *usage;

    if (rk_status_code(st) == RK_UNAVAILABLE) /* an error of the network, not of the user */
        return st;
    usage = rk_status_from_wire(rk_status_code(st), "USAGE", rk_status_message(st));

    rk_status_free(st);
    return usage;
}

/* According to the XDG Base Directory Specification. */
static char *find_identity_dir(void)
{
    const char *state = rk_env("XDG_STATE_HOME"), *home = rk_env("HOME");

    if (state && *state == '/')
        return rk_path_join(state, "rankctl");
    return home && *home == '/' ? rk_path_join(home, ".local/state/rankctl") : NULL;
}

static struct rk_status *parse(struct rk_cli *cli, int argc, char **argv)
{
    const struct rk_command *command = cli->command;
    char *program = rk_format("rankctl %s", command->name);
    struct rk_command_syntax syntax = {
        .program = program,
        .args = command->args,
        .min_args = command->min_args,
        .max_args = command->max_args,
        .options = command->options,
        .common_options = rk_common_options,
        .repeatable = command->repeatable,
    };
    struct rk_status *st = rk_command_line_parse(&cli->line, &syntax, argc, argv);

    rk_free(program);
    return st ? RK_WRAP(st, "rankctl %s", command->name) : NULL;
}

static struct rk_status *check_output(const struct rk_cli *cli)
{
    const char *output = rk_cli_find(cli, "output");

    if (output && strcmp(output, "table") != 0 && strcmp(output, "json") != 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "--output=%s: expected table or json", output);
    return NULL;
}

/* Before a daemon starts or anything is written. */
static struct rk_status *check_new_paths(const struct rk_cli *cli)
{
    static const char *const options[] = {"run-dir", "record", "out"};

    for (size_t i = 0; i < RK_ARRAY_LEN(options); i++) {
        const char *path = rk_cli_find(cli, options[i]);
        struct rk_status *st = path ? rk_path_check(path, true) : NULL;

        if (st)
            return RK_WRAP(st, "--%s", options[i]);
    }
    return NULL;
}

struct rk_status *rk_cli_parse(struct rk_cli *cli, const struct rk_command *command, int argc, char **argv)
{
    struct rk_status *st;

    *cli = (struct rk_cli){.command = command, .identity_dir = find_identity_dir()};
    st = parse(cli, argc, argv);
    if (!st && !rk_cli_has(cli, "help"))
        st = check_output(cli);
    if (!st)
        st = check_new_paths(cli);
    return st ? rk_cli_usage(st) : NULL;
}

void rk_cli_fini(struct rk_cli *cli)
{
    rk_command_line_fini(&cli->line);
    rk_free(cli->identity_dir);
    rk_free(cli->job_text);
}

void rk_cli_format_help(const struct rk_command *command, struct rk_str *out)
{
    rk_str_appendf(out, "usage: rankctl %s [options]%s%s\n\n%s\n\noptions:\n", command->name,
                   *command->args ? " " : "", command->args, command->summary);
    rk_options_format(out, command->options, NULL);
    rk_options_format(out, rk_common_options, command->options);
    if (command->details)
        rk_str_appendf(out, "\n%s\n", command->details);
    if (command->more_help)
        command->more_help(out);
}

const char *rk_cli_find(const struct rk_cli *cli, const char *name)
{
    return rk_command_line_find(&cli->line, name);
}

bool rk_cli_has(const struct rk_cli *cli, const char *name)
{
    return rk_command_line_has(&cli->line, name);
}

bool rk_cli_is_json(const struct rk_cli *cli)
{
    const char *output = rk_cli_find(cli, "output");

    return output && strcmp(output, "json") == 0;
}

struct rk_status *rk_cli_duration(const struct rk_cli *cli, const char *name, int64_t fallback_ms,
                                  int64_t *out)
{
    const char *text = rk_cli_find(cli, name);

    *out = fallback_ms;
    if (!text || (rk_parse_duration_ms(text, out) && *out <= UINT32_MAX))
        return NULL;
    return rk_cli_usage(RK_FAIL(RK_INVALID_ARGUMENT,
                                "--%s=%s: expected a duration like 30s, 10min or 500ms, at most 1193h", name,
                                text));
}

int rk_cli_exit_code(const struct rk_status *st)
{
    static const struct {
        const char *reason;
        int code;
    } rows[] = {
        {"USAGE", 2},      {"UNKNOWN_METHOD", 2}, {"UNKNOWN_ROLE", 2}, {"STALE_EPOCH", 4},
        {"LEASE_HELD", 4}, {"LEASE_EXPIRED", 4},  {"HELD", 4},
    };

    if (!st)
        return 0;
    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        if (strcmp(rk_status_reason(st), rows[i].reason) == 0)
            return rows[i].code;
    }
    switch (rk_status_code(st)) {
    case RK_INVALID_ARGUMENT: /* the daemons refuse an option, a batch or a key of a job */
        return 2;
    case RK_UNAVAILABLE:
        return 3;
    case RK_UNAUTHENTICATED:
    case RK_PERMISSION_DENIED:
        return 4;
    case RK_DEADLINE_EXCEEDED:
        return 5;
    default:
        return 1;
    }
}

/* --- the daemons --- */

struct rk_status *rk_cli_hosts(const struct rk_cli *cli, struct rk_hosts *out)
{
    const char *text = rk_cli_find(cli, "hosts");
    const char *source = text ? "--hosts" : "RANKCTL_HOSTS";
    struct rk_status *st;

    *out = (struct rk_hosts){0};
    if (!text)
        text = rk_env("RANKCTL_HOSTS");
    if (!text)
        return NULL;
    st = rk_hosts_parse(out, text);
    return st ? rk_cli_usage(RK_WRAP(st, "%s", source)) : NULL;
}

static const char *find_or_env(const struct rk_cli *cli, const char *name, const char *variable)
{
    const char *value = rk_cli_find(cli, name);

    return value ? value : rk_env(variable);
}

struct rk_driver_config rk_cli_driver_config(const struct rk_cli *cli)
{
    return (struct rk_driver_config){
        .struct_size = sizeof(struct rk_driver_config),
        .token_file = rk_cli_find(cli, "token-file"),
        .takeover = rk_cli_has(cli, "takeover"),
        .identity_dir = cli->identity_dir,
        .tls_ca = find_or_env(cli, "tls-ca", "RANKCTL_TLS_CA"),
        .tls_cert = find_or_env(cli, "tls-cert", "RANKCTL_TLS_CERT"),
        .tls_key = find_or_env(cli, "tls-key", "RANKCTL_TLS_KEY"),
    };
}

struct rk_status *rk_cli_open(const struct rk_cli *cli, const struct rk_hosts *hosts, struct rk_driver **out)
{
    struct rk_driver_config config = rk_cli_driver_config(cli);
    struct rk_status *st;

    *out = NULL;
    config.addresses = (const char *const *)hosts->addresses;
    config.num_addresses = hosts->count;
    if (hosts->count == 0)
        return rk_cli_usage(RK_FAIL(RK_INVALID_ARGUMENT,
                                    "rankctl %s: no daemons given; use --hosts or RANKCTL_HOSTS",
                                    cli->command->name));
    st = rk_driver_open(out, &config);
    return st ? rk_cli_usage(st) : NULL;
}

struct rk_status *rk_cli_find_rankd(char **out)
{
    char self[PATH_MAX];
    ssize_t bytes = readlink("/proc/self/exe", self, sizeof(self) - 1);
    char *slash;

    *out = NULL;
    if (bytes <= 0)
        return rk_file_errno("cannot read", "/proc/self/exe");
    self[bytes] = '\0';
    slash = strrchr(self, '/');
    *slash = '\0';
    *out = rk_path_join(self, "rankd");
    return NULL;
}

char *rk_cli_directory_of(const char *path)
{
    char *relative = path ? rk_path_dir(path) : rk_strdup(".");
    char absolute[PATH_MAX];
    char *dir = rk_strdup(realpath(relative, absolute) ? absolute : relative);

    rk_free(relative);
    return dir;
}

static struct rk_driver *_Atomic watched_driver;
static atomic_int last_signal;

static void on_signal(int signal_number)
{
    struct rk_driver *driver = atomic_load(&watched_driver);

    atomic_store(&last_signal, signal_number);
    if (driver)
        rk_driver_interrupt(driver);
}

void rk_cli_watch_signals(struct rk_driver *driver)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, old;

    atomic_store(&watched_driver, driver);
    if (driver && atomic_load(&last_signal))
        rk_driver_interrupt(driver);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    if (sigaction(SIGHUP, NULL, &old) == 0 && old.sa_handler != SIG_IGN) /* nohup ignores it */
        sigaction(SIGHUP, &action, NULL);
}

int rk_cli_signal(void)
{
    return atomic_load(&last_signal);
}
