#include "driver-cli/run_internal.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_safetensors.h"
#include "base/rk_time.h"
#include "driver-cli/files_internal.h"
#include "driver-cli/job_internal.h"

#define REWARD_METRIC  "critic/score/mean"
#define AVERAGE_WINDOW 10
#define NAME_ATTEMPTS  100

/* "20260131T123456Z" of now, which sorts. */
static char *time_name(void)
{
    char utc[40], *to;

    rk_time_format_utc(rk_time_unix_ns(), utc, sizeof(utc));
    to = utc;
    for (const char *from = utc; *from && *from != '.'; from++) {
        if (*from != '-' && *from != ':')
            *to++ = *from;
    }
    *to = '\0';
    return rk_format("%sZ", utc);
}

/* A name that no file outside the runs folder can have. */
static char *safe_name(const char *text)
{
    char *name = rk_strdup(*text ? text : "run");

    for (char *c = name; *c; c++) {
        if (*c == '/' || (unsigned char)*c < 0x20)
            *c = '_';
    }
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        memset(name, '_', strlen(name));
    return name;
}

/* runs/<experiment>/<time>, with a number when two runs begin in one second. */
static char *new_path(const struct rk_config *job)
{
    char *experiment = safe_name(rk_config_string(job, "trainer.experiment_name"));
    char *name = time_name();
    char *path = rk_format("runs/%s/%s", experiment, name);

    for (int i = 2; access(path, F_OK) == 0 && i < NAME_ATTEMPTS; i++) {
        rk_free(path);
        path = rk_format("runs/%s/%s-%d", experiment, name, i);
    }
    rk_free(experiment);
    rk_free(name);
    return path;
}

static struct rk_status *write_json(const char *dir, const char *name, const struct rk_json *json)
{
    char *path = rk_path_join(dir, name);
    char *text = rk_json_dump(json, 2, false);
    struct rk_status *st = rk_write_file_atomic(path, text, strlen(text));

    rk_free(text);
    rk_free(path);
    return st;
}

/* An empty file is left of a run that ended before its first step, or belongs to one that has not come to it:
 * the lock, which goes with the process, tells which. A file system without locks cannot. */
static struct rk_status *take_over(FILE *file, const char *path)
{
    struct stat info;

    if (fstat(fileno(file), &info) != 0)
        return rk_errno_status("cannot look at", path);
    if (info.st_size > 0)
        return RK_FAIL(RK_ALREADY_EXISTS, "'%s' exists: the directory holds a run; name another", path);
    if (flock(fileno(file), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return RK_FAIL(RK_ALREADY_EXISTS, "'%s': a run that has just begun has the directory; name another",
                       path);
    return NULL;
}

static struct rk_status *open_metrics(struct rk_run_dir *run)
{
    char *path = rk_path_join(run->path, "metrics.jsonl");
    struct rk_status *st;

    run->metrics = fopen(path, "ae");
    st = run->metrics ? take_over(run->metrics, path) : rk_errno_status("cannot create", path);
    rk_free(path);
    return st;
}

struct rk_status *rk_run_dir_create(struct rk_run_dir *out, const struct rk_config *job, const char *job_dir,
                                    const char *run_dir)
{
    char *path = run_dir ? rk_strdup(run_dir) : new_path(job);
    struct rk_json *config = NULL;
    char absolute[PATH_MAX];
    struct rk_status *st;

    *out = (struct rk_run_dir){0};
    RK_TRY_GOTO(st, rk_make_dirs(path), out);
    if (!realpath(path, absolute)) {
        st = rk_errno_status("cannot find", path);
        goto out;
    }
    out->path = rk_strdup(absolute);
    RK_TRY_GOTO(st, open_metrics(out), out);
    config = rk_job_make_absolute(job, job_dir);
    st = write_json(out->path, "config.json", config);
out:
    rk_json_free(config);
    rk_free(path);
    if (st)
        rk_run_dir_fini(out);
    return st;
}

static void remember_reward(struct rk_run_dir *run, int64_t step, double reward)
{
    if (run->num_steps == run->capacity) {
        run->capacity = run->capacity ? 2 * run->capacity : 64;
        run->steps = rk_realloc(run->steps, (size_t)run->capacity * sizeof(*run->steps));
        run->rewards = rk_realloc(run->rewards, (size_t)run->capacity * sizeof(*run->rewards));
    }
    run->steps[run->num_steps] = (double)step;
    run->rewards[run->num_steps++] = reward;
}

/* A file that was removed can still be written to, and nobody will find what it holds. */
static struct rk_status *check_there(const struct rk_run_dir *run)
{
    struct stat info;

    if (fstat(fileno(run->metrics), &info) == 0 && info.st_nlink == 0)
        return RK_FAIL(RK_NOT_FOUND, "metrics.jsonl was removed from the run directory '%s'", run->path);
    return NULL;
}

struct rk_status *rk_run_dir_append(struct rk_run_dir *run, int64_t step, const struct rk_json *metrics)
{
    double reward = rk_json_as_real(rk_json_find(metrics, REWARD_METRIC), NAN);
    char *text;
    bool is_written;

    text = rk_json_dump(metrics, 0, false);
    is_written =
        fputs(text, run->metrics) >= 0 && fputc('\n', run->metrics) >= 0 && fflush(run->metrics) == 0;
    rk_free(text);
    if (!is_written)
        return rk_errno_status("cannot write metrics.jsonl in", run->path);
    RK_TRY(check_there(run));
    if (isfinite(reward))
        remember_reward(run, step, reward);
    return NULL;
}

double rk_run_dir_mean_reward(const struct rk_run_dir *run, bool is_last, int64_t count)
{
    int64_t first;
    double sum = 0.0;

    count = RK_MIN(count, run->num_steps);
    first = is_last ? run->num_steps - count : 0;
    for (int64_t i = first; i < first + count; i++)
        sum += run->rewards[i];
    return count > 0 ? sum / (double)count : 0.0;
}

static struct rk_status *write_plot(const struct rk_run_dir *run, const struct rk_config *job)
{
    char *title = rk_format("%s / %s", rk_config_string(job, "trainer.project_name"),
                            rk_config_string(job, "trainer.experiment_name"));
    char *path = rk_path_join(run->path, "reward.svg");
    struct rk_plot plot = {
        .title = title,
        .x_label = "step",
        .y_label = "mean reward",
        .count = run->num_steps,
        .x = run->steps,
        .y = run->rewards,
        .average_window = AVERAGE_WINDOW,
    };
    struct rk_str svg = {0};
    struct rk_status *st;

    rk_plot_svg(&svg, &plot);
    st = rk_write_file_atomic(path, svg.text, svg.bytes);
    rk_str_fini(&svg);
    rk_free(path);
    rk_free(title);
    return st;
}

struct rk_status *rk_run_dir_finish(struct rk_run_dir *run, const struct rk_config *job,
                                    struct rk_json *summary)
{
    struct rk_status *st = write_plot(run, job);

    rk_json_set(summary, "run_dir", rk_json_new_string(run->path));
    rk_json_set(summary, "num_steps", rk_json_new_int(run->num_steps));
    rk_json_set(summary, "reward_first_3", rk_json_new_real(rk_run_dir_mean_reward(run, false, 3)));
    rk_json_set(summary, "reward_last_10", rk_json_new_real(rk_run_dir_mean_reward(run, true, 10)));
    st = rk_status_first(st, write_json(run->path, "summary.json", summary));
    return st;
}

void rk_run_dir_fini(struct rk_run_dir *run)
{
    if (run->metrics)
        fclose(run->metrics);
    rk_free(run->steps);
    rk_free(run->rewards);
    rk_free(run->path);
    *run = (struct rk_run_dir){0};
}
