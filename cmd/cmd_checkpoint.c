/* Saving what daemons hold as a checkpoint, and loading it into them. */
#include "cmd/checkpoint_command_internal.h"

#include <string.h>

#include "base/rk_alloc.h"

/* --contents model,optimizer as an array; NULL without it. */
static struct rk_json *contents_of(const struct rk_cli *cli)
{
    const char *text = rk_cli_find(cli, "contents");
    struct rk_json *contents;
    char *copy, *cursor, *name;

    if (!text)
        return NULL;
    contents = rk_json_new_array();
    copy = cursor = rk_strdup(text);
    while ((name = strsep(&cursor, ",")) != NULL)
        rk_json_append(contents, rk_json_new_string(name));
    rk_free(copy);
    return contents;
}

/* A role's part of a checkpoint, written or read by the daemons that hold the model. */
static struct rk_status *run_part(struct rk_cli *cli, const char *method, const char *done)
{
    struct rk_driver_result result = {0};
    struct rk_hosts hosts = {0};
    struct rk_driver *driver = NULL;
    struct rk_json *options, *contents = contents_of(cli);
    struct rk_status *st;
    int64_t step;
    char *path;

    RK_TRY_GOTO(st, rk_ckpt_cmd_part(&path, &step, cli), out);
    RK_TRY_GOTO(st, rk_ckpt_cmd_open_group(cli, &hosts, &driver), out);
    RK_TRY_GOTO(st, rk_ckpt_cmd_take_group(driver), out);
    options = rk_ckpt_cmd_path_option(path);
    if (strcmp(method, "save_checkpoint") == 0)
        rk_json_set(options, "global_step", rk_json_new_int(step));
    if (contents)
        rk_json_set(options, "contents", rk_json_clone(contents));
    RK_TRY_GOTO(st, rk_ckpt_cmd_call(driver, rk_ckpt_cmd_role(cli), method, options, &result), out);
    rk_ckpt_cmd_print(cli, done, path, &result);
out:
    rk_driver_result_fini(&result);
    rk_ckpt_cmd_close_group(&hosts, driver);
    rk_json_free(contents);
    rk_free(path);
    return st;
}

static struct rk_status *run_save(struct rk_cli *cli)
{
    return run_part(cli, "save_checkpoint", "CheckpointSaved");
}

static struct rk_status *run_load(struct rk_cli *cli)
{
    return run_part(cli, "load_checkpoint", "CheckpointLoaded");
}

static const struct rk_option save_options[] = {
    {"role", "ROLE", "role whose state is saved or loaded (default: actor)"},
    {"contents", "LIST", "parts: model, optimizer, extra, hf_model, gradients (default: the first three)"},
    {"takeover", NULL, "claim the daemons even if another driver holds them"},
    {NULL, NULL, NULL},
};

const struct rk_command rk_cmd_checkpoint_save = {
    .name = "checkpoint save",
    .args = "DIR/global_step_<N>",
    .min_args = 1,
    .max_args = 1,
    .summary = "save the daemons' state as the checkpoint of step N",
    .details = "The directory is on the daemons' hosts, below one of ckpt.roots. A run resumes from it with\n"
               "trainer.resume_mode=resume_path.",
    .options = save_options,
    .run = run_save,
};

const struct rk_command rk_cmd_checkpoint_load = {
    .name = "checkpoint load",
    .args = "DIR/global_step_<N>",
    .min_args = 1,
    .max_args = 1,
    .summary = "load a checkpoint into the models that the daemons hold",
    .options = save_options,
    .run = run_load,
};
