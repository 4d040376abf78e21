#include "driver-cli/cmd/model_dirs_internal.h"

#include <unistd.h>

#include "base/rk_alloc.h"
#include "driver-cli/cmd/cmd_internal.h"
#include "driver-cli/driver/hub_internal.h"
#include "driver-cli/driver/job_internal.h"
#include "proto/rk_methods.h"

/* A model of the job; without a path if the role has no model, or no separate one. */
struct model_dir {
    const char *key, *path;
};

static void find_models(struct model_dir models[RK_MODEL_DIRS], const struct rk_flow_inputs *inputs)
{
    models[0] = (struct model_dir){RK_JOB_MODEL "path", inputs->model_path};
    models[1] = (struct model_dir){RK_JOB_CRITIC "model.path", rk_flow_own_model(inputs, RK_ROLE_CRITIC)};
    models[2] = (struct model_dir){RK_JOB_TEACHER "model.path", rk_flow_own_model(inputs, RK_ROLE_TEACHER)};
    models[3] =
        (struct model_dir){RK_JOB_REWARD_MODEL "model_path", rk_flow_own_model(inputs, RK_ROLE_REWARD)};
}

struct rk_status *rk_model_dirs_check(const struct rk_config *job, const struct rk_flow_inputs *inputs)
{
    struct model_dir models[RK_MODEL_DIRS];

    find_models(models, inputs);
    for (int i = 0; i < RK_MODEL_DIRS; i++) {
        if (models[i].path && access(models[i].path, R_OK | X_OK) != 0)
            return RK_WRAP(rk_hub_not_found(rk_config_string(job, models[i].key), models[i].path), "%s",
                           models[i].key);
    }
    return NULL;
}

struct rk_status *rk_model_dirs_start_local(struct rk_local **out, const struct rk_flow_inputs *inputs,
                                            struct rk_local_config config)
{
    /* Paths below the last root must not contain symbolic links. */
    const char *roots[RK_MODEL_DIRS + 3] = {config.log_dir};
    struct model_dir models[RK_MODEL_DIRS];
    struct rk_status *st;
    char *program;
    int num_roots = 1;

    *out = NULL;
    find_models(models, inputs);
    for (int i = 0; i < RK_MODEL_DIRS; i++) {
        if (models[i].path)
            roots[num_roots++] = models[i].path;
    }
    roots[num_roots] = "/";
    RK_TRY(rk_cli_find_rankd(&program));
    config.program = program;
    config.ckpt_roots = roots;
    st = rk_local_start(out, &config);
    rk_free(program);
    return st;
}
