/* The job among the arguments of a command: a file, standard input, or only keys. */
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "cmd/cmd_internal.h"
#include "base/rk_small_file.h"
#include "rl/rk_job.h"

#define JOB_BYTES_MAX (1u << 20) /* as of a file */

/* A file may have any name, also one with an equals sign. */
static bool is_key(const char *arg)
{
    return strchr(arg, '=') && access(arg, F_OK) != 0;
}

struct rk_cli_job_args rk_cli_job_args(const struct rk_cli *cli, int64_t first)
{
    const char *arg = first < cli->line.args.count ? cli->line.args.items[first] : NULL;
    bool has_source = arg && !is_key(arg);
    bool is_stdin = has_source && strcmp(arg, "-") == 0;
    const char *text_name = cli->job_name ? cli->job_name : "standard input";
    int64_t keys = RK_MIN(first + has_source, cli->line.args.count);

    return (struct rk_cli_job_args){
        .path = has_source && !is_stdin ? arg : NULL,
        .name = is_stdin     ? text_name
                : has_source ? arg
                             : "command line",
        .is_stdin = is_stdin,
        .keys = cli->line.args.items + keys,
        .num_keys = cli->line.args.count - keys,
    };
}

static struct rk_status *load_with(struct rk_config **out, struct rk_cli *cli,
                                   const struct rk_cli_job_args *args, const char *const *keys,
                                   int64_t num_keys)
{
    if (!args->is_stdin)
        return rk_job_load(out, args->path, keys, num_keys);
    if (!cli->job_text)
        RK_TRY(rk_load_stdin(&cli->job_text, JOB_BYTES_MAX));
    return rk_job_load_from(
        out, &(struct rk_job_source){
                 .text = cli->job_text, .name = args->name, .overrides = keys, .num_overrides = num_keys});
}

struct rk_status *rk_cli_load_job(struct rk_config **out, struct rk_cli *cli, int64_t first,
                                  const char *const *more, int64_t num_more)
{
    struct rk_cli_job_args args = rk_cli_job_args(cli, first);
    RK_ARRAY(const char *) keys = {0};
    struct rk_status *st;

    *out = NULL;
    if (first >= cli->line.args.count)
        return RK_FAIL(RK_INVALID_ARGUMENT, "expected JOB.json, - (standard input) or KEY=VALUE");
    for (int64_t i = 0; i < args.num_keys; i++)
        rk_array_append(&keys, args.keys[i]);
    for (int64_t i = 0; i < num_more; i++)
        rk_array_append(&keys, more[i]);
    st = load_with(out, cli, &args, keys.items, keys.count);
    rk_array_fini(&keys);
    return st;
}
