/* The directories of a job's models, for daemons that the command starts. */
#ifndef RK_MODEL_DIRS_INTERNAL_H
#define RK_MODEL_DIRS_INTERNAL_H

#include "base/config/rk_config.h"
#include "rl/rk_flows.h"
#include "proto/limits.h"

#define RK_MODEL_DIRS (RK_LIMIT_ROLES + 1) /* at most */

/* NOT_FOUND, with the key, for a directory that is not on this machine, or has no config.json, or with
 * `needs_weights` no *.safetensors. */
struct rk_status *rk_model_dirs_check(const struct rk_config *job, const struct rk_flow_inputs *inputs,
                                      bool needs_weights) RK_NODISCARD;
/* Starts daemons whose calls may use these directories and paths below config->log_dir; the caller
 * sets the other members of the configuration. Only this user can connect to them. */
struct rk_status *rk_model_dirs_start_local(struct rk_local **out, const struct rk_flow_inputs *inputs,
                                            struct rk_local_config config) RK_NODISCARD;

#endif
