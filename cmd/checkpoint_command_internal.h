/* Shared by the checkpoint commands: paths, the group of daemons, calls on it. */
#ifndef RK_CHECKPOINT_COMMAND_INTERNAL_H
#define RK_CHECKPOINT_COMMAND_INTERNAL_H

#include "cmd/cmd_internal.h"

/* Absolute, with links above its last component resolved if possible: daemons do not follow links. rk_free
 * it. */
char *rk_ckpt_cmd_path(const char *path);
/* "PATH/<role>" for the argument, a path global_step_<N>. rk_free it. */
struct rk_status *rk_ckpt_cmd_part(char **out, int64_t *step, const struct rk_cli *cli) RK_NODISCARD;
/* --role, else the actor. */
const char *rk_ckpt_cmd_role(const struct rk_cli *cli);

/* The daemons of --hosts, with signals that interrupt them; to be closed also after a failure. */
struct rk_status *rk_ckpt_cmd_open_group(const struct rk_cli *cli, struct rk_hosts *hosts,
                                         struct rk_driver **driver) RK_NODISCARD;
void rk_ckpt_cmd_close_group(struct rk_hosts *hosts, struct rk_driver *driver);
/* Claims the group with its current meshes; a group that has lost its communicators, but no daemon, gets new
 * ones, and keeps its models. */
struct rk_status *rk_ckpt_cmd_take_group(struct rk_driver *driver) RK_NODISCARD;
/* Runs a method; steals the options. result NULL: not needed. */
struct rk_status *rk_ckpt_cmd_call(struct rk_driver *driver, const char *role, const char *method,
                                   struct rk_json *options, struct rk_driver_result *result) RK_NODISCARD;
/* {"path": path} */
struct rk_json *rk_ckpt_cmd_path_option(const char *path);
/* Prints that `path` has been written: a JSON object of that kind, or the path alone. */
void rk_ckpt_cmd_print(const struct rk_cli *cli, const char *kind, const char *path,
                       const struct rk_driver_result *result);

#endif
