#include "rl/rk_run.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_file.h"
#include "base/rk_log.h"
#include "base/format/rk_safetensors.h"
#include "base/rk_str.h"
#include "base/rk_time.h"
#include "base/rk_small_file.h"
#include "rl/rk_jsonl.h"
#include "rl/rk_job.h"

#define STEP_METRIC      "training/global_step"
#define NAME_ATTEMPTS    100
#define CONFIG_BYTES_MAX (16u << 20)

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

/* runs/<experiment>/<time>, with a number when two runs begin in one second. */
static char *new_path(const struct rk_config *job)
{
    char *experiment = rk_file_name_of(rk_config_string(job, "trainer.experiment_name"));
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

/* --- the curve --- */

static const struct rk_run_curve curves[] = {{"critic/score/mean", "reward"}, {"train/loss", "loss"}};

const struct rk_run_curve *rk_run_curves(int64_t *count)
{
    *count = RK_ARRAY_LEN(curves);
    return curves;
}

const struct rk_run_curve *rk_run_curve_of(const struct rk_json *metrics)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(curves); i++) {
        if (rk_json_find(metrics, curves[i].metric))
            return &curves[i];
    }
    return NULL;
}

bool rk_run_is_validation(const char *metric)
{
    static const char *const told[] = {"val/loss", "val/rewards/margins", "val/rewards/accuracies"};

    for (size_t i = 0; i < RK_ARRAY_LEN(told); i++) {
        if (strcmp(metric, told[i]) == 0)
            return true;
    }
    return rk_str_has_prefix(metric, "val-core/") && strstr(metric, "/mean@");
}

static void remember_value(struct rk_run_dir *run, const struct rk_json *metrics)
{
    const struct rk_run_curve *curve = rk_run_curve_of(metrics);
    double value = curve ? rk_json_as_real(rk_json_find(metrics, curve->metric), NAN) : NAN;

    if (!isfinite(value))
        return;
    run->curve = curve;
    if (run->num_steps == run->capacity) {
        run->capacity = run->capacity ? 2 * run->capacity : 64;
        run->values = rk_realloc(run->values, (size_t)run->capacity * sizeof(*run->values));
    }
    run->values[run->num_steps++] = value;
}

/* --- metrics.jsonl of a resumed run --- */

struct cut {
    struct rk_run_dir *run;
    int64_t last_step, kept_step;
    int64_t end; /* of the last line that stays */
};

static bool keep_line(void *user, const struct rk_jsonl_line *line)
{
    struct cut *cut = user;
    int64_t step = rk_json_as_int(rk_json_find(line->json, STEP_METRIC), cut->kept_step);

    if (step > cut->last_step)
        return false;
    remember_value(cut->run, line->json);
    cut->kept_step = step;
    cut->end = line->end;
    return true;
}

static struct rk_status *cut_metrics(struct rk_run_dir *run, const char *path, int64_t last_step)
{
    struct cut cut = {.run = run, .last_step = last_step};
    struct rk_status *st = last_step > 0 ? rk_jsonl_read(path, keep_line, &cut) : NULL;

    if (rk_status_code(st) == RK_INVALID_ARGUMENT) { /* after the lines that a checkpoint has waited for */
        RK_WARN("%s; it is removed", rk_status_message(st));
        rk_status_free(st);
        st = NULL;
    }
    RK_TRY(st);
    if (ftruncate(fileno(run->metrics), cut.end) != 0)
        return rk_file_errno("cannot shorten", path);
    if (cut.end > 0 && cut.kept_step < last_step)
        RK_WARN("'%s' has no line of step %lld, but the run resumes from a checkpoint of step %lld", path,
                (long long)cut.kept_step + 1, (long long)last_step);
    return rk_run_dir_sync(run);
}

/* The lock ends with the process; on a file system without locks none is taken. A file that has lines must
 * belong to the resumed run. */
static struct rk_status *take_over(struct rk_run_dir *run, const char *path, int64_t last_step)
{
    struct stat info;

    if (fstat(fileno(run->metrics), &info) != 0)
        return rk_file_errno("cannot read the state of", path);
    if (info.st_size > 0 && last_step == RK_RUN_DIR_NEW)
        return RK_FAIL(
            RK_ALREADY_EXISTS,
            "'%s' exists: the directory contains a run, and no checkpoint to resume from was found; "
            "name another",
            path);
    if (flock(fileno(run->metrics), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return RK_FAIL(RK_ALREADY_EXISTS, "'%s' is in use by another run; use another directory", path);
    return info.st_size > 0 ? cut_metrics(run, path, last_step) : NULL;
}

static struct rk_status *open_metrics(struct rk_run_dir *run, int64_t last_step)
{
    char *path = rk_path_join(run->path, "metrics.jsonl");
    struct rk_status *st;

    run->metrics = fopen(path, "ae");
    st = run->metrics ? take_over(run, path, last_step) : rk_file_errno("cannot create", path);
    rk_free(path);
    return st;
}

/* Moves the export of the previous run aside for the next export. */
static struct rk_status *move_export(const struct rk_run_dir *run)
{
    char *from = rk_path_join(run->path, "hf"), *to = NULL;
    struct rk_status *st = NULL;

    rmdir(from); /* empty when the run ended before its export */
    for (int i = 1; access(from, F_OK) == 0 && i < NAME_ATTEMPTS; i++) {
        rk_free(to);
        to = rk_format("%s-%d", from, i);
        if (access(to, F_OK) != 0 && rename(from, to) != 0) {
            st = rk_file_errno("cannot rename", from);
            break;
        }
    }
    rk_free(to);
    rk_free(from);
    return st;
}

/* A member of a JSON file in the directory; null when there is none. */
static struct rk_json *read_member(const char *dir, const char *name, const char *member)
{
    char *path = rk_path_join(dir, name);
    struct rk_json *json = NULL, *found;
    struct rk_status *st = rk_json_parse_file(&json, path, CONFIG_BYTES_MAX, 0);

    found = rk_json_retain(rk_json_find_path(json, member));
    rk_status_free(st);
    rk_json_free(json);
    rk_free(path);
    return found;
}

static bool remember_step(void *user, const struct rk_jsonl_line *line)
{
    int64_t *last = user;

    *last = rk_json_as_int(rk_json_find(line->json, STEP_METRIC), *last);
    return true;
}

bool rk_run_dir_can_begin_again(const char *run_dir)
{
    struct rk_json *save_freq = read_member(run_dir, "config.json", "trainer.save_freq");
    struct rk_json *status = read_member(run_dir, "summary.json", "status");
    char *path = rk_path_join(run_dir, "metrics.jsonl");
    int64_t freq = rk_json_as_int(save_freq, 0), last = 0;
    bool has_succeeded = strcmp(rk_json_as_string(status, ""), "succeeded") == 0;

    rk_status_free(rk_jsonl_read(path, remember_step, &last)); /* of a torn file, what can be read */
    rk_free(path);
    rk_json_free(status);
    rk_json_free(save_freq);
    return freq > 0 && !has_succeeded && last / 2 < freq;
}

struct rk_status *rk_run_dir_create(struct rk_run_dir *out, const struct rk_config *job, const char *job_dir,
                                    const char *run_dir, int64_t last_step)
{
    char *path = run_dir ? rk_strdup(run_dir) : new_path(job);
    struct rk_json *config = NULL;
    char absolute[PATH_MAX];
    struct rk_status *st;

    *out = (struct rk_run_dir){0};
    RK_TRY_GOTO(st, rk_make_dirs(path), out);
    if (!realpath(path, absolute)) {
        st = rk_file_errno("cannot find", path);
        goto out;
    }
    out->path = rk_strdup(absolute);
    RK_TRY_GOTO(st, open_metrics(out, last_step), out);
    if (last_step != RK_RUN_DIR_NEW)
        RK_TRY_GOTO(st, move_export(out), out);
    config = rk_job_make_absolute(job, job_dir);
    st = write_json(out->path, "config.json", config);
out:
    rk_json_free(config);
    rk_free(path);
    if (st)
        rk_run_dir_fini(out);
    return st;
}

/* Writing to a file that was removed succeeds, and its lines are lost. */
static struct rk_status *check_there(const struct rk_run_dir *run)
{
    struct stat info;

    if (fstat(fileno(run->metrics), &info) == 0 && info.st_nlink == 0)
        return RK_FAIL(RK_NOT_FOUND, "metrics.jsonl was removed from the run directory '%s'", run->path);
    return NULL;
}

struct rk_status *rk_run_dir_append(struct rk_run_dir *run, const struct rk_json *metrics)
{
    char *text;
    bool is_written;

    text = rk_json_dump(metrics, 0, false);
    is_written =
        fputs(text, run->metrics) >= 0 && fputc('\n', run->metrics) >= 0 && fflush(run->metrics) == 0;
    rk_free(text);
    if (!is_written)
        return rk_file_errno("cannot write metrics.jsonl in", run->path);
    RK_TRY(check_there(run));
    remember_value(run, metrics);
    return NULL;
}

struct rk_status *rk_run_dir_sync(struct rk_run_dir *run)
{
    if (fflush(run->metrics) != 0 || fsync(fileno(run->metrics)) != 0)
        return rk_file_errno("cannot write metrics.jsonl in", run->path);
    return NULL;
}

double rk_run_dir_mean(const struct rk_run_dir *run, bool is_last, int64_t count)
{
    int64_t first;
    double sum = 0.0;

    count = RK_MIN(count, run->num_steps);
    first = is_last ? run->num_steps - count : 0;
    for (int64_t i = first; i < first + count; i++)
        sum += run->values[i];
    return count > 0 ? sum / (double)count : 0.0;
}

/* The key is reward_first_3, for example. */
static void set_mean(struct rk_json *summary, const struct rk_run_dir *run, const char *what, double mean)
{
    char *key = rk_format("%s_%s", run->curve ? run->curve->name : curves[0].name, what);

    rk_json_set(summary, key, rk_json_new_real(mean));
    rk_free(key);
}

struct rk_status *rk_run_dir_write(const struct rk_run_dir *run, const char *name, const struct rk_json *json)
{
    return write_json(run->path, name, json);
}

struct rk_status *rk_run_dir_finish(struct rk_run_dir *run, struct rk_json *summary)
{
    rk_json_set(summary, "run_dir", rk_json_new_string(run->path));
    rk_json_set(summary, "num_steps", rk_json_new_int(run->num_steps));
    set_mean(summary, run, "first_3", rk_run_dir_mean(run, false, 3));
    set_mean(summary, run, "last_10", rk_run_dir_mean(run, true, 10));
    return write_json(run->path, "summary.json", summary);
}

void rk_run_dir_fini(struct rk_run_dir *run)
{
    if (run->metrics)
        fclose(run->metrics);
    rk_free(run->values);
    rk_free(run->path);
    *run = (struct rk_run_dir){0};
}
