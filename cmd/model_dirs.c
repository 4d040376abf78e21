#include "cmd/model_dirs_internal.h"

#include <dirent.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_file.h"
#include "base/rk_str.h"
#include "cmd/cmd_internal.h"
#include "base/rk_small_file.h"
#include "rl/rk_hub.h"
#include "rl/rk_job.h"
#include "proto/rk_methods.h"

/* A model of the job; without a path if the policy has random weights. */
struct model_dir {
    const char *key, *path;
};

static int find_models(struct model_dir models[RK_MODEL_DIRS], const struct rk_flow_inputs *inputs)
{
    int64_t num_roles;
    const struct rk_job_role *roles = rk_job_roles(&num_roles);
    int count = 0;

    models[count++] = (struct model_dir){RK_JOB_MODEL "path", inputs->model_path};
    for (int64_t i = 0; i < num_roles; i++) {
        const char *path = roles[i].model ? rk_flow_own_model(inputs, roles[i].bit) : NULL;

        RK_ASSERT(count < RK_MODEL_DIRS);
        if (path)
            models[count++] = (struct model_dir){roles[i].model, path};
    }
    return count;
}

static bool has_file_with(const char *path, const char *suffix)
{
    DIR *dir = opendir(path);
    const struct dirent *entry;
    bool has = false;

    while (dir && !has && (entry = readdir(dir)) != NULL)
        has = rk_str_has_suffix(entry->d_name, suffix);
    if (dir)
        closedir(dir);
    return has;
}

static struct rk_status *check_dir(const struct model_dir *model, const char *given, bool needs_weights)
{
    char *config = rk_path_join(model->path, "config.json");
    struct rk_status *st = NULL;

    if (access(model->path, R_OK | X_OK) != 0)
        st = rk_hub_not_found(given, model->path);
    else if (access(config, R_OK) != 0)
        st = rk_file_errno("cannot open", config);
    else if (needs_weights && !has_file_with(model->path, ".safetensors"))
        st = RK_FAIL(RK_NOT_FOUND,
                     "model directory '%s': no *.safetensors file: expected those of the model, as Hugging "
                     "Face has them",
                     model->path);
    rk_free(config);
    return st ? RK_WRAP(st, "%s", model->key) : NULL;
}

struct rk_status *rk_model_dirs_check(const struct rk_config *job, const struct rk_flow_inputs *inputs,
                                      bool needs_weights)
{
    struct model_dir models[RK_MODEL_DIRS];
    int count = find_models(models, inputs);

    for (int i = 0; i < count; i++) {
        if (models[i].path)
            RK_TRY(check_dir(&models[i], rk_config_string(job, models[i].key), needs_weights));
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
    int num_roots = 1, count = find_models(models, inputs);

    *out = NULL;
    for (int i = 0; i < count; i++) {
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
