#include "cmd/cmd_internal.h"

#include "generated/rk_version.h"

static struct rk_status *run(struct rk_cli *cli)
{
    struct rk_json *body;

    if (!rk_cli_is_json(cli)) {
        printf("rankctl %s (%s)\n", RK_VERSION, RK_GIT_COMMIT);
        return NULL;
    }
    body = rk_json_new_object();
    rk_json_set(body, "version", rk_json_new_string(RK_VERSION));
    rk_json_set(body, "git_commit", rk_json_new_string(RK_GIT_COMMIT));
    rk_cli_print_json("Version", body);
    return NULL;
}

const struct rk_command rk_cmd_version = {
    .name = "version",
    .args = "",
    .summary = "print the version of rankctl",
    .run = run,
};
