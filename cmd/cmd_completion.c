/* Completion scripts for shells. */
#include "cmd/cmd_internal.h"

#include <string.h>

#include "base/rk_str.h"

static struct rk_status *run(struct rk_cli *cli)
{
    const char *shell = cli->line.args.items[0];
    struct rk_str text = {0};

    if (strcmp(shell, "bash") != 0 && strcmp(shell, "zsh") != 0)
        return rk_cli_usage(RK_FAIL(RK_INVALID_ARGUMENT, "shell '%s': expected bash or zsh", shell));
    rk_completion_format(shell, &text);
    fputs(rk_str_text(&text), stdout);
    rk_str_fini(&text);
    return NULL;
}

const struct rk_command rk_cmd_completion = {
    .name = "completion",
    .args = "bash|zsh",
    .min_args = 1,
    .max_args = 1,
    .summary = "print a script that completes command lines in a shell",
    .details = "In ~/.bashrc: eval \"$(rankctl completion bash)\". In zsh, after compinit: eval\n"
               "\"$(rankctl completion zsh)\". The packages install both as files.",
    .run = run,
};
