/* A directory for PATH in which verl's scripts find python3, torchrun and other launchers that hand its
 * trainers to rankctl. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_file.h"
#include "base/format/rk_safetensors.h"
#include "cmd/cmd_internal.h"
#include "base/rk_small_file.h"

static const char *const names[] = {"python", "python3", "torchrun", "uv", "ray", "accelerate"};

#define MADE_HERE "#!/bin/sh\n# Made by rankctl verl-env" /* how the scripts begin */

/* The script of every name; %s: rankctl, quoted for the shell. */
static const char shim[] =
    MADE_HERE ": verl's trainers are run by rankctl, everything else by the program of this "
              "name.\n"
              "# $RANKCTL_VERL: options and keys for rankctl verl.\n"
              "name=${0##*/}\n"
              "for word do\n"
              "    case $word in\n"
              "    verl.trainer.* | verl.experimental.* | verl.model_merger | recipe.dapo.main_dapo | "
              "*verl/trainer/*.py | \\\n"
              "        *verl/experimental/*.py | *verl/model_merger.py | *recipe/dapo/main_dapo.py)\n"
              "        # shellcheck disable=SC2086\n"
              "        exec %s verl $RANKCTL_VERL -- \"$name\" \"$@\" ;;\n"
              "    esac\n"
              "done\n"
              "here=$(CDPATH='' cd -- \"${0%%/*}\" && pwd -P)\n"
              "rest=\n"
              "IFS=:\n"
              "for dir in $PATH; do\n"
              "    [ \"$(CDPATH='' cd -- \"${dir:-.}\" 2>/dev/null && pwd -P)\" = \"$here\" ] || "
              "rest=$rest${rest:+:}$dir\n"
              "done\n"
              "unset IFS\n"
              "if program=$(PATH=$rest command -v \"$name\"); then\n"
              "    exec \"$program\" \"$@\"\n"
              "fi\n"
              "if [ \"$name\" = ray ]; then\n"
              "    echo \"ray: not installed, and rankd does not need it: ray $* is left out\" >&2\n"
              "    exit 0\n"
              "fi\n"
              "echo \"$name: not found\" >&2\n"
              "exit 127\n";

/* In single quotes, for the shell. rk_free it. */
static char *quote(const char *text)
{
    struct rk_str quoted = {0};

    rk_str_append(&quoted, "'");
    for (const char *c = text; *c; c++)
        rk_str_appendf(&quoted, *c == '\'' ? "'\\%c'" : "%c", *c);
    rk_str_append(&quoted, "'");
    return rk_str_take(&quoted);
}

/* A program of the user is not replaced: nothing at the path, or a script of this command. */
static struct rk_status *check_place(const char *path)
{
    char begin[sizeof(MADE_HERE)] = {0};
    struct stat info;
    int fd;

    if (lstat(path, &info) != 0)
        return errno == ENOENT ? NULL : rk_file_errno("cannot read", path);
    RK_TRY(rk_file_open_read(&fd, path));
    if (read(fd, begin, sizeof(begin) - 1) < 0)
        begin[0] = '\0';
    close(fd);
    return strcmp(begin, MADE_HERE) == 0
               ? NULL
               : RK_FAIL(RK_INVALID_ARGUMENT,
                         "'%s' exists and was not made by rankctl verl-env: expected another directory",
                         path);
}

static struct rk_status *write_shims(const char *dir, const char *rankctl)
{
    char *quoted = quote(rankctl), *script = rk_format(shim, quoted);
    struct rk_status *st = rk_make_dirs(dir);

    for (size_t i = 0; i < RK_ARRAY_LEN(names) && !st; i++) {
        char *path = rk_path_join(dir, names[i]);

        st = check_place(path);
        rk_free(path);
    }
    for (size_t i = 0; i < RK_ARRAY_LEN(names) && !st; i++) {
        char *path = rk_path_join(dir, names[i]);

        st = rk_write_file_atomic(path, script, strlen(script));
        if (!st && chmod(path, 0755) != 0)
            st = rk_file_errno("cannot make executable", path);
        rk_free(path);
    }
    rk_free(quoted);
    rk_free(script);
    return st;
}

static struct rk_status *run(struct rk_cli *cli)
{
    bool has_dir = cli->line.args.count > 0;
    char self[PATH_MAX], *dir, absolute[PATH_MAX];
    ssize_t bytes = readlink("/proc/self/exe", self, sizeof(self) - 1);
    struct rk_status *st;

    if (bytes <= 0)
        return rk_file_errno("cannot read", "/proc/self/exe");
    self[bytes] = '\0';
    if (!has_dir && !cli->identity_dir)
        return rk_cli_usage(RK_FAIL(RK_INVALID_ARGUMENT, "neither XDG_STATE_HOME nor HOME is "
                                                         "set: expected a DIR"));
    dir = has_dir ? rk_strdup(cli->line.args.items[0]) : rk_path_join(cli->identity_dir, "verl-env");
    st = write_shims(dir, self);
    if (!st)
        printf("%s\n", realpath(dir, absolute) ? absolute : dir);
    rk_free(dir);
    return st;
}

static const struct rk_option options[] = {{NULL, NULL, NULL}};

const struct rk_command rk_cmd_verl_env = {
    .name = "verl-env",
    .args = "[DIR]",
    .min_args = 0,
    .max_args = 1,
    .summary = "make a PATH directory with which verl's scripts run on rankd",
    .details =
        "  PATH=\"$(rankctl verl-env):$PATH\" bash run_qwen3_8b.sh\n"
        "DIR (default: rankctl/verl-env below $XDG_STATE_HOME) gets python3, python, torchrun, uv, ray and\n"
        "accelerate, which hand verl's trainers to rankctl verl and everything else to the real program.\n"
        "$RANKCTL_VERL has options and keys for rankctl verl (\"--local 2 device=cpu\"); $RANKCTL_HOSTS\n"
        "names daemons.",
    .options = options,
    .run = run,
};
