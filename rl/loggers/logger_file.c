/* verl's file logger: one line {"step": s, "data": {...}} a step, in VERL_FILE_LOGGER_PATH, else in
 * VERL_FILE_LOGGER_ROOT/<project>/<experiment>.jsonl, else in log.jsonl of the run directory. */
#include "rl/rk_loggers.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_env.h"
#include "base/rk_file.h"
#include "base/rk_small_file.h"
#include "rl/rk_jsonl.h"

struct file {
    char *path;
    FILE *out;
};

static char *choose_path(const struct rk_logger_config *config)
{
    const char *path = rk_env("VERL_FILE_LOGGER_PATH"), *root = rk_env("VERL_FILE_LOGGER_ROOT");

    if (path && *path)
        return rk_strdup(path);
    if (root && *root)
        return rk_format("%s/%s/%s.jsonl", root, rk_config_string(config->job, "trainer.project_name"),
                         rk_config_string(config->job, "trainer.experiment_name"));
    return rk_path_join(config->run_dir, "log.jsonl");
}

static void close_file(void *state)
{
    struct file *file = state;

    if (file->out)
        fclose(file->out);
    rk_free(file->path);
    rk_free(file);
}

static struct rk_status *open_file(void **state, const struct rk_logger_config *config)
{
    struct file *file = rk_calloc(1, sizeof(*file));
    struct rk_status *st = NULL;
    char *dir;

    file->path = choose_path(config);
    dir = rk_path_dir(file->path);
    st = rk_path_check(file->path, true);
    if (!st)
        st = rk_make_dirs(dir);
    rk_free(dir);
    if (!st) {
        file->out = fopen(file->path, "ae");
        st = file->out ? NULL : rk_file_errno("cannot create", file->path);
    }
    if (st)
        close_file(file);
    *state = st ? NULL : file;
    return st;
}

static struct rk_status *begin(void *state, int64_t first_step, int64_t total_steps)
{
    (void)total_steps;
    return rk_jsonl_cut(((struct file *)state)->path, "step", first_step > 1 ? first_step : INT64_MIN);
}

static struct rk_status *log_step(void *state, int64_t step, const struct rk_json *metrics)
{
    struct file *file = state;
    char *data = rk_json_dump(metrics, 0, false);
    bool is_written = fprintf(file->out, "{\"step\": %lld, \"data\": %s}\n", (long long)step, data) >= 0;

    rk_free(data);
    if (fflush(file->out) != 0 || !is_written) {
        clearerr(file->out);
        return rk_file_errno("cannot write", file->path);
    }
    return NULL;
}

const struct rk_logger_ops rk_logger_file = {
    .name = "file",
    .open = open_file,
    .begin = begin,
    .log = log_step,
    .close = close_file,
};
