#include "rl/rk_checkpoints.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/format/rk_ckpt_dir.h"
#include "base/rk_log.h"
#include "driver/rk_driver.h"
#include "base/rk_file.h"
#include "base/rk_small_file.h"
#include "rl/rk_job.h"

#define LOCK_FILE      "lock"
#define LOCK_BYTES_MAX 1024
#define TOKEN          "rankctl"

/* --- where --- */

/* trainer.default_local_dir; without it in the run directory that was named, else verl's. */
static char *choose_dir(const struct rk_checkpoints_args *args)
{
    const char *given = rk_config_string(args->job, "trainer.default_local_dir");
    char *project, *experiment, *dir;

    if (given)
        return rk_strdup(given);
    if (args->run_dir)
        return rk_path_join(args->run_dir, RK_RUN_CHECKPOINTS);
    project = rk_file_name_of(rk_config_string(args->job, "trainer.project_name"));
    experiment = rk_file_name_of(rk_config_string(args->job, "trainer.experiment_name"));
    dir = rk_format("checkpoints/%s/%s", project, experiment);
    rk_free(project);
    rk_free(experiment);
    return dir;
}

/* --- the lock --- */

static struct rk_status *held_by(const char *dir, const char *path)
{
    char *owner = NULL;
    struct rk_status *st = rk_load_file(&owner, NULL, path, LOCK_BYTES_MAX);

    rk_status_free(st);
    if (owner)
        owner[strcspn(owner, "\n")] = '\0';
    st = RK_FAIL_REASON(RK_FAILED_PRECONDITION, "HELD",
                        "driver %s saves its checkpoints in '%s'; wait for it, or set another "
                        "trainer.default_local_dir",
                        owner && *owner ? owner : "of another process", dir);
    rk_free(owner);
    return st;
}

/* Held until the process ends. On file systems without locks no lock is taken. */
static struct rk_status *take_lock(struct rk_checkpoints *checkpoints)
{
    char *path = rk_path_join(checkpoints->dir, LOCK_FILE), *self = rk_driver_default_id();
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    struct rk_status *st = NULL;

    if (fd < 0)
        st = rk_file_errno("cannot create", path);
    else if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        st = held_by(checkpoints->dir, path);
    else if (ftruncate(fd, 0) != 0 || write(fd, self, strlen(self)) < 0)
        st = rk_file_errno("cannot write", path);
    if (st && fd >= 0)
        close(fd);
    else
        checkpoints->lock = fd;
    rk_free(self);
    rk_free(path);
    return st;
}

/* --- the step to resume from --- */

/* Steps of other runs must not be among the steps of this run: `auto` would treat them as its own. `last` is
 * the newest step of this run, -1 for none. */
static struct rk_status *refuse_mixing(const struct rk_checkpoints *checkpoints, const char *mode,
                                       int64_t last)
{
    struct rk_ckpt_steps steps = {0};
    struct rk_status *st = rk_ckpt_list(&steps, checkpoints->dir);

    if (!st && steps.steps.count > 0 && steps.steps.items[0] > last)
        st = RK_FAIL(RK_INVALID_ARGUMENT,
                     "trainer.resume_mode=%s: '%s' holds checkpoints of another run or of later steps, up to "
                     "step %lld; remove them, or "
                     "set another trainer.default_local_dir",
                     mode, checkpoints->dir, (long long)steps.steps.items[0]);
    rk_ckpt_steps_fini(&steps);
    return st;
}

/* The newest step of the resumed run in the directory: the step of the checkpoint, if it is there. */
static int64_t last_own_step(const struct rk_checkpoints *checkpoints)
{
    char *dir = rk_path_dir(checkpoints->resume_path);
    bool is_there = strcmp(dir, checkpoints->dir) == 0;

    rk_free(dir);
    return is_there ? checkpoints->resume_step : -1;
}

/* The tracker matters only if no complete checkpoint is found: then there was one before. */
static struct rk_status *compare_tracker(const struct rk_checkpoints *checkpoints, int64_t found)
{
    int64_t tracked = -1;
    struct rk_status *st = rk_ckpt_tracker_read(&tracked, checkpoints->dir);

    if (st && found < 0)
        return st;
    if (st)
        RK_WARN("%s", rk_status_message(st));
    rk_status_free(st);
    if (found < 0 && tracked >= 0)
        return RK_FAIL_REASON(RK_DATA_LOSS, "CHECKPOINT_DAMAGED",
                              "'%s' has no complete checkpoint, but its " RK_CKPT_TRACKER_FILE
                              " names step %lld; see rankctl checkpoint list, or set another "
                              "trainer.default_local_dir",
                              checkpoints->dir, (long long)tracked);
    if (found >= 0 && tracked >= 0 && tracked != found)
        RK_WARN("'%s': " RK_CKPT_TRACKER_FILE
                " names step %lld; the newest complete checkpoint is of step %lld",
                checkpoints->dir, (long long)tracked, (long long)found);
    return NULL;
}

static struct rk_status *find_latest(struct rk_checkpoints *checkpoints)
{
    int64_t step;

    RK_TRY(rk_ckpt_find_latest(&step, checkpoints->dir, checkpoints->parts, RK_CKPT_CHECK_CHECKSUMS));
    RK_TRY(compare_tracker(checkpoints, step));
    if (step < 0)
        return NULL;
    checkpoints->resume_step = step;
    checkpoints->resume_path = rk_ckpt_step_dir(checkpoints->dir, step);
    return NULL;
}

static struct rk_status *check_part(const char *step_dir, const char *role)
{
    struct rk_ckpt_manifest manifest = {0};
    char *part = rk_path_join(step_dir, role);
    struct rk_status *st = rk_ckpt_check(&manifest, part, RK_CKPT_CHECK_CHECKSUMS);

    rk_ckpt_manifest_fini(&manifest);
    rk_free(part);
    return st ? RK_WRAP(st, "trainer.resume_from_path") : NULL;
}

static struct rk_status *find_named(struct rk_checkpoints *checkpoints, const struct rk_config *job)
{
    const char *path = rk_config_string(job, "trainer.resume_from_path");
    char absolute[PATH_MAX];

    if (!realpath(path, absolute))
        return RK_WRAP(rk_file_errno("cannot open", path), "trainer.resume_from_path");
    if (!rk_ckpt_step_parse(absolute, &checkpoints->resume_step))
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "trainer.resume_from_path='%s': expected a directory global_step_<N>", path);
    checkpoints->resume_path = rk_strdup(absolute);
    for (const char *const *role = checkpoints->roles; *role; role++)
        RK_TRY(check_part(absolute, *role));
    return NULL;
}

/* --- whether this job may resume from it --- */

static struct rk_status *check_state(struct rk_checkpoints *checkpoints, const struct rk_json *state,
                                     const struct rk_checkpoints_args *args)
{
    const char *run_dir = rk_json_as_string(rk_json_find(state, "run_dir"), NULL);
    struct rk_run_position *position = &checkpoints->position;
    int64_t num_rows = position->num_rows;

    if (run_dir)
        checkpoints->run_dir = rk_strdup(run_dir);
    RK_TRY(rk_run_state_kl_coef(&checkpoints->resume_kl_coef, state));
    if (rk_config_bool(args->job, "algorithm.filter_groups.enable")) {
        RK_TRY(rk_run_position_read(position, state));
        position->num_rows = num_rows;
    }
    return rk_run_state_check(state, checkpoints->identity, position, checkpoints->resume_step,
                              &checkpoints->changes);
}

static struct rk_status *read_state(struct rk_checkpoints *checkpoints,
                                    const struct rk_checkpoints_args *args)
{
    char *part = rk_path_join(checkpoints->resume_path, RK_CHECKPOINT_DRIVER);
    struct rk_ckpt_manifest manifest = {0};
    struct rk_status *st = rk_ckpt_manifest_read(&manifest, part);

    checkpoints->resume_kl_coef = NAN;
    checkpoints->position =
        rk_run_position_after(args->job, rk_flow_inputs_num_rows(args->inputs), checkpoints->resume_step);
    if (rk_status_code(st) == RK_NOT_FOUND) { /* saved by rankctl checkpoint save */
        RK_WARN(
            "'%s' has no driver's part: training continues with the data of the next step, without a check "
            "that the job is the same",
            checkpoints->resume_path);
        rk_status_free(st);
        st = NULL;
    } else if (!st) {
        st = check_state(checkpoints, manifest.state, args);
    }
    rk_ckpt_manifest_fini(&manifest);
    rk_free(part);
    return st ? RK_WRAP(st, "%s", checkpoints->resume_path) : NULL;
}

/* --- the whole --- */

/* actor.checkpoint.load_contents, else the saved contents except the export. */
static struct rk_json *choose_load_contents(const struct rk_config *job)
{
    const char *key = RK_JOB_ACTOR "checkpoint.load_contents";
    const struct rk_json *saved = rk_config_json(job, RK_JOB_ACTOR "checkpoint.save_contents");
    struct rk_json *contents;

    if (!rk_config_is_null(job, key))
        return rk_json_clone(rk_config_json(job, key));
    contents = rk_json_new_array();
    for (int64_t i = 0; i < rk_json_count(saved); i++) {
        if (strcmp(rk_json_as_string(rk_json_at(saved, i), ""), "hf_model") != 0)
            rk_json_append(contents, rk_json_clone(rk_json_at(saved, i)));
    }
    return contents;
}

static void find_parts(struct rk_checkpoints *out, const struct rk_config *job)
{
    int64_t num_roles, count = 0;
    const struct rk_job_role *roles = rk_job_roles(&num_roles);

    for (int64_t i = 0; i < num_roles; i++) {
        if (roles[i].trains && rk_job_role_needed(job, roles[i].bit))
            out->roles[count++] = roles[i].name;
    }
    memcpy(out->parts, out->roles, sizeof(out->roles));
    out->parts[count] = RK_CHECKPOINT_DRIVER;
}

static void read_keys(struct rk_checkpoints *out, const struct rk_config *job)
{
    int64_t save_freq = rk_config_int(job, "trainer.save_freq");

    *out = (struct rk_checkpoints){.lock = -1};
    out->after_each_epoch = rk_config_bool(job, "trainer.save_after_each_epoch");
    out->save_freq = save_freq > 0 ? save_freq : out->after_each_epoch ? INT64_MAX : 0;
    out->max_to_keep = rk_job_ckpt_to_keep(job);
    out->is_async = rk_config_bool(job, RK_JOB_ACTOR "checkpoint.async_save");
    out->save_contents = rk_config_json(job, RK_JOB_ACTOR "checkpoint.save_contents");
    out->load_contents = choose_load_contents(job);
    find_parts(out, job);
}

/* *is_there: false if the run does not save and there is no directory to search. */
static struct rk_status *open_dir(struct rk_checkpoints *out, const struct rk_checkpoints_args *args,
                                  bool *is_there)
{
    char *dir = choose_dir(args);
    char absolute[PATH_MAX];
    struct rk_status *st = out->save_freq > 0 ? rk_make_dirs(dir) : NULL;

    *is_there = !st && realpath(dir, absolute);
    if (*is_there)
        out->dir = rk_strdup(absolute);
    else if (!st && (out->save_freq > 0 || errno != ENOENT))
        st = rk_file_errno("cannot open", dir);
    rk_free(dir);
    if (!st && out->save_freq > 0)
        st = take_lock(out);
    if (!st && out->save_freq > 0)
        st = rk_ckpt_sweep(out->dir);
    return st && strcmp(rk_status_reason(st), "HELD") != 0 ? RK_WRAP(st, "trainer.default_local_dir") : st;
}

struct rk_status *rk_checkpoints_open(struct rk_checkpoints *out, const struct rk_checkpoints_args *args)
{
    const char *mode = rk_config_string(args->job, "trainer.resume_mode");
    bool is_there;

    read_keys(out, args->job);
    RK_TRY(open_dir(out, args, &is_there));
    if (strcmp(mode, "resume_path") == 0)
        RK_TRY(find_named(out, args->job));
    else if (is_there && strcmp(mode, "auto") == 0)
        RK_TRY(find_latest(out));
    if (is_there && out->save_freq > 0 && strcmp(mode, "auto") != 0)
        RK_TRY(refuse_mixing(out, mode, out->resume_path ? last_own_step(out) : -1));
    if (out->save_freq > 0 || out->resume_path)
        RK_TRY(rk_run_identity_make(&out->identity, args->job, args->job_dir, args->inputs));
    return out->resume_path ? read_state(out, args) : NULL;
}

void rk_checkpoints_fini(struct rk_checkpoints *checkpoints)
{
    if (checkpoints->lock > 0)
        close(checkpoints->lock);
    rk_json_free(checkpoints->load_contents);
    rk_json_free(checkpoints->identity);
    rk_str_fini(&checkpoints->changes);
    rk_free(checkpoints->run_dir);
    rk_free(checkpoints->resume_path);
    rk_free(checkpoints->dir);
    *checkpoints = (struct rk_checkpoints){.lock = -1};
}

struct rk_status *rk_checkpoints_write_state(const struct rk_checkpoints *checkpoints,
                                             const struct rk_json *state, int64_t step)
{
    char *step_dir = rk_ckpt_step_dir(checkpoints->dir, step);
    char *part = rk_path_join(step_dir, RK_CHECKPOINT_DRIVER), *temp = NULL;
    struct rk_ckpt_manifest manifest = {
        .role = rk_strdup(RK_CHECKPOINT_DRIVER), .global_step = step, .state = rk_json_clone(state)};
    struct rk_status *st;

    rk_array_append(&manifest.contents, rk_strdup("state"));
    RK_TRY_GOTO(st, rk_ckpt_check_target(part), out);
    RK_TRY_GOTO(st, rk_ckpt_begin(&temp, part, TOKEN), out);
    RK_TRY_GOTO(st, rk_ckpt_manifest_write(&manifest, temp), out);
    st = rk_ckpt_publish(temp, part);
out:
    if (st && temp)
        RK_IGNORE(rk_ckpt_remove(temp), "the first error is reported");
    rk_ckpt_manifest_fini(&manifest);
    rk_free(temp);
    rk_free(part);
    rk_free(step_dir);
    return st ? RK_WRAP(st, "the driver's state of step %lld", (long long)step) : NULL;
}

static bool is_of_a_run(const struct rk_checkpoints *checkpoints, int64_t step)
{
    const char *const driver[] = {RK_CHECKPOINT_DRIVER, NULL};
    struct rk_status *st = rk_ckpt_check_step(checkpoints->dir, step, driver, RK_CKPT_CHECK_SIZES);
    bool is = st == NULL;

    rk_status_free(st);
    return is;
}

struct rk_status *rk_checkpoints_complete(const struct rk_checkpoints *checkpoints, int64_t step)
{
    struct rk_status *st =
        rk_ckpt_check_step(checkpoints->dir, step, checkpoints->parts, RK_CKPT_CHECK_SIZES);

    if (rk_status_code(st) == RK_NOT_FOUND && !is_of_a_run(checkpoints, step)) {
        rk_status_free(st);
        return RK_FAIL(RK_NOT_FOUND, "the run ended before the driver saved its part of step %lld",
                       (long long)step);
    }
    if (rk_status_code(st) == RK_NOT_FOUND)
        return RK_WRAP(st,
                       "the daemons have saved step %lld, but it is not in '%s' of this host; "
                       "trainer.default_local_dir must be one directory for driver and daemons",
                       (long long)step, checkpoints->dir);
    RK_TRY(st);
    return rk_ckpt_tracker_write(checkpoints->dir, step);
}

struct rk_status *rk_checkpoints_prune(const struct rk_checkpoints *checkpoints, int64_t keep)
{
    struct rk_ckpt_steps steps = {0};
    int64_t tracked = -1, num_kept = 0;
    struct rk_status *st;

    RK_IGNORE(rk_ckpt_tracker_read(&tracked, checkpoints->dir), "the next checkpoint writes it again");
    RK_TRY(rk_ckpt_list(&steps, checkpoints->dir));
    st = NULL;
    for (int64_t i = 0; i < steps.steps.count && !st; i++) {
        int64_t step = steps.steps.items[i];
        char *path = rk_ckpt_step_dir(checkpoints->dir, step);
        bool is_needed =
            step == tracked || (checkpoints->resume_path && strcmp(path, checkpoints->resume_path) == 0);

        if (is_of_a_run(checkpoints, step) && num_kept++ >= keep && !is_needed)
            st = rk_ckpt_remove(path);
        rk_free(path);
    }
    rk_ckpt_steps_fini(&steps);
    return st ? RK_WRAP(st, "trainer.max_actor_ckpt_to_keep") : NULL;
}
