#include "cmd/cmd_internal.h"

#include <inttypes.h>
#include <unistd.h>

#define GRACE_MS 60000

/* Asks for confirmation on a terminal; without one --yes is needed. */
static struct rk_status *confirm(const struct rk_cli *cli, int32_t num_daemons)
{
    int answer;

    if (rk_cli_has(cli, "yes"))
        return NULL;
    if (!isatty(STDIN_FILENO))
        return rk_cli_usage(RK_FAIL(RK_INVALID_ARGUMENT,
                                    "rankctl shutdown: standard input is not a terminal, so the "
                                    "question cannot be asked; use --yes"));
    fprintf(stderr, "Stop %d daemon%s? [y/N] ", num_daemons, num_daemons == 1 ? "" : "s");
    answer = getchar();
    if (answer == 'y' || answer == 'Y')
        return NULL;
    return RK_FAIL(RK_CANCELLED, "nothing was stopped");
}

static struct rk_status *run(struct rk_cli *cli)
{
    struct rk_hosts hosts = {0};
    struct rk_driver *driver = NULL;
    struct rk_status *st;
    int64_t grace_ms;

    RK_TRY_GOTO(st, rk_cli_duration(cli, "grace", GRACE_MS, &grace_ms), out);
    RK_TRY_GOTO(st, rk_cli_hosts(cli, &hosts), out);
    RK_TRY_GOTO(st, rk_cli_open(cli, &hosts, &driver), out);
    RK_TRY_GOTO(st, confirm(cli, hosts.count), out);
    RK_TRY_GOTO(st,
                rk_driver_shutdown(driver, (uint32_t)grace_ms, grace_ms == 0 || rk_cli_has(cli, "force"),
                                   "rankctl shutdown"),
                out);
    if (rk_cli_is_json(cli)) {
        struct rk_json *body = rk_json_new_object();

        rk_json_set(body, "daemons", rk_json_new_int(hosts.count));
        rk_cli_print_json("Shutdown", body);
    } else {
        printf("requested the stop of %d daemon%s\n", hosts.count, hosts.count == 1 ? "" : "s");
    }
out:
    rk_driver_close(driver);
    rk_hosts_fini(&hosts);
    return st;
}

static const struct rk_option options[] = {
    {"grace", "DURATION", "time that a running method may continue (default: 60s)"},
    {"force", NULL, "stop at once"},
    {"yes", NULL, "do not ask"},
    {NULL, NULL, NULL},
};

const struct rk_command rk_cmd_shutdown = {
    .name = "shutdown",
    .args = "",
    .summary = "stop the daemons",
    .options = options,
    .run = run,
};
