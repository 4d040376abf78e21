#include "cmd/checkpoint_command_internal.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/format/rk_ckpt_dir.h"
#include "rl/rk_checkpoints.h"

/* --- paths --- */

char *rk_ckpt_cmd_path(const char *path)
{
    char *dir = rk_path_dir(path), *all = NULL;
    const char *slash = strrchr(path, '/');
    char resolved[PATH_MAX];

    if (realpath(path, resolved))
        all = rk_strdup(resolved);
    else if (realpath(dir, resolved))
        all = rk_path_join(resolved, slash ? slash + 1 : path);
    rk_free(dir);
    return all ? all : rk_strdup(path);
}

struct rk_status *rk_ckpt_cmd_part(char **out, int64_t *step, const struct rk_cli *cli)
{
    const char *role = rk_cli_find(cli, "role");
    char *path;

    *out = NULL;
    if (!rk_ckpt_step_parse(cli->line.args.items[0], step))
        return rk_cli_usage(RK_FAIL(RK_INVALID_ARGUMENT, "'%s': expected a directory global_step_<N>",
                                    cli->line.args.items[0]));
    path = rk_ckpt_cmd_path(cli->line.args.items[0]);
    *out = rk_path_join(path, role ? role : RK_CHECKPOINT_ACTOR);
    rk_free(path);
    return NULL;
}

const char *rk_ckpt_cmd_role(const struct rk_cli *cli)
{
    const char *role = rk_cli_find(cli, "role");

    return role ? role : RK_CHECKPOINT_ACTOR;
}

/* --- groups --- */

/* The last meshes, as reported by all daemons. */
static struct rk_status *configure_again(struct rk_driver *driver)
{
    int32_t count = rk_driver_num_workers(driver);
    struct rk_driver_worker *workers = rk_calloc((size_t)count, sizeof(*workers));
    struct rk_arena *arena = rk_arena_create(16384, 0);
    struct rk_role_mesh meshes[RK_LIMIT_ROLES];
    struct rk_status *st = NULL;
    int64_t num_meshes = 0;

    rk_driver_get_status(driver, arena, workers);
    for (int32_t i = 0; i < count; i++) {
        const struct rk_rank_info *info = &workers[i].status.rank;

        st = rk_status_first(st, workers[i].error);
        for (int64_t j = 0; !st && j < info->num_roles; j++) {
            bool is_known = false;

            for (int64_t k = 0; k < num_meshes; k++)
                is_known = is_known || strcmp(meshes[k].role, info->roles[j].role) == 0;
            if (!is_known && num_meshes < RK_LIMIT_ROLES)
                meshes[num_meshes++] = (struct rk_role_mesh){info->roles[j].role, info->roles[j].mesh};
        }
        if (!st && (info->rank != i || info->world_size != count))
            st = RK_FAIL_REASON(
                RK_FAILED_PRECONDITION, "WRONG_MESH",
                "worker %d (%s) is rank %d of %d in its group; list all daemons in --hosts, in rank order", i,
                workers[i].address, info->rank, info->world_size);
    }
    if (!st)
        st = rk_driver_configure(driver, meshes, num_meshes);
    rk_arena_destroy(arena);
    rk_free(workers);
    return st;
}

struct rk_status *rk_ckpt_cmd_take_group(struct rk_driver *driver)
{
    struct rk_status *st;

    RK_TRY(rk_driver_claim(driver));
    st = rk_driver_adopt(driver);
    if (!st || strcmp(rk_status_reason(st), "NOT_CONFIGURED") != 0)
        return st;
    rk_status_free(st);
    return configure_again(driver);
}

struct rk_status *rk_ckpt_cmd_open_group(const struct rk_cli *cli, struct rk_hosts *hosts,
                                         struct rk_driver **driver)
{
    RK_TRY(rk_cli_hosts(cli, hosts));
    RK_TRY(rk_cli_open(cli, hosts, driver));
    rk_cli_watch_signals(*driver);
    return NULL;
}

void rk_ckpt_cmd_close_group(struct rk_hosts *hosts, struct rk_driver *driver)
{
    rk_cli_watch_signals(NULL);
    rk_driver_close(driver);
    rk_hosts_fini(hosts);
}

struct rk_status *rk_ckpt_cmd_call(struct rk_driver *driver, const char *role, const char *method,
                                   struct rk_json *options, struct rk_driver_result *result)
{
    struct rk_driver_result ignored = {0};
    struct rk_driver_call_args args = {.role = role, .method = method, .options = options};
    struct rk_status *st = rk_driver_call(driver, &args, result ? result : &ignored);

    rk_driver_result_fini(&ignored);
    rk_json_free(options);
    return st;
}

struct rk_json *rk_ckpt_cmd_path_option(const char *path)
{
    struct rk_json *options = rk_json_new_object();

    rk_json_set(options, "path", rk_json_new_string(path));
    return options;
}

void rk_ckpt_cmd_print(const struct rk_cli *cli, const char *kind, const char *path,
                       const struct rk_driver_result *result)
{
    const struct rk_json *meta =
        result->num_outputs > 0 && result->outputs[0] ? rk_batch_meta(result->outputs[0]) : NULL;

    if (rk_cli_is_json(cli)) {
        struct rk_json *body = meta ? rk_json_clone(meta) : rk_json_new_object();

        rk_json_set(body, "path", rk_json_new_string(path));
        rk_cli_print_json(kind, body);
    } else {
        printf("%s\n", path);
    }
}
