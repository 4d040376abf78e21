/* Disk space of a run: what its model and its checkpoints take, from the sizes in config.json, against what
 * is free. The daemons compare exact sizes before training; this finds a disk that is too small before they
 * start. */
#include "rl/flows/steps_internal.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_fault.h"
#include "base/rk_log.h"
#include "base/rk_str.h"
#include "rl/rk_checkpoints.h"
#include "rl/rk_estimate.h"
#include "rl/rk_job.h"

#define MIB          ((double)(1 << 20))
#define GIB          ((double)(1 << 30))
#define STATE_BYTES  8 /* of an element: two moments of Adam */
#define MASTER_BYTES 4

/* The file system of a path or of the nearest directory above it that exists. */
struct disk {
    bool is_known;
    dev_t device;
    double free_bytes;
};

static struct disk find_disk(const char *path)
{
    char *dir = rk_strdup(path);
    struct statvfs info;
    struct stat entry;
    struct disk disk = {0};

    while (stat(dir, &entry) != 0 && strcmp(dir, "/") != 0 && strcmp(dir, ".") != 0) {
        char *parent = rk_path_dir(dir);

        rk_free(dir);
        dir = parent;
    }
    if (stat(dir, &entry) == 0 && statvfs(dir, &info) == 0 && info.f_blocks > 0) {
        disk.is_known = true;
        disk.device = entry.st_dev;
        disk.free_bytes = (double)info.f_frsize * (double)(geteuid() == 0 ? info.f_bfree : info.f_bavail);
    }
    if (RK_FAULT("disk.space"))
        disk.free_bytes = 0;
    rk_free(dir);
    return disk;
}

static bool has_content(const struct rk_json *contents, const char *name)
{
    for (int64_t i = 0; i < rk_json_count(contents); i++) {
        if (strcmp(rk_json_as_string(rk_json_at(contents, i), ""), name) == 0)
            return true;
    }
    return false;
}

/* Without norms and biases; a critic has the policy's size. */
static double checkpoint_bytes(const struct rk_checkpoints *checkpoints, double num_params,
                               double dtype_bytes)
{
    int64_t num_roles = 0;
    double each = 0;

    if (has_content(checkpoints->save_contents, "model"))
        each += MASTER_BYTES;
    if (has_content(checkpoints->save_contents, "optimizer"))
        each += STATE_BYTES;
    if (has_content(checkpoints->save_contents, "hf_model"))
        each += dtype_bytes;
    for (const char *const *role = checkpoints->roles; *role; role++)
        num_roles++;
    return (double)num_roles * each * num_params;
}

/* How many checkpoints there are at most at a time. */
static int64_t num_kept(const struct rk_flow_disk *in)
{
    const struct rk_checkpoints *checkpoints = in->checkpoints;
    int64_t num_epochs = checkpoints->after_each_epoch ? rk_config_int(in->job, "trainer.total_epochs") : 0;
    int64_t all = 1 + (in->total_steps - 1) / checkpoints->save_freq + num_epochs;
    bool removes_before = checkpoints->max_to_keep >= 2 && !checkpoints->is_async;

    return checkpoints->max_to_keep > 0 ? RK_MIN(all, checkpoints->max_to_keep + !removes_before) : all;
}

static const char *size_text(char text[static 32], double bytes)
{
    (void)snprintf(text, 32, bytes < GIB ? "%.1f MiB" : "%.1f GiB", bytes / (bytes < GIB ? MIB : GIB));
    return text;
}

static struct rk_status *too_small(const char *path, double free_bytes, double needed_bytes, const char *what,
                                   const char *advice)
{
    char is_free[32], is_needed[32];

    return RK_FAIL_REASON(RK_RESOURCE_EXHAUSTED, "DISK_FULL", "'%s': %s are free; %s about %s (%s)", path,
                          size_text(is_free, free_bytes), what, size_text(is_needed, needed_bytes), advice);
}

static void warn(const struct rk_flow_disk *in, double free_bytes, double all_bytes)
{
    char is_free[32], is_needed[32];

    RK_WARN("'%s': %s are free; %lld checkpoints, which are kept at a time, take about %s (set "
            "trainer.max_actor_ckpt_to_keep, or a larger trainer.save_freq)",
            in->checkpoints->dir, size_text(is_free, free_bytes), (long long)num_kept(in),
            size_text(is_needed, all_bytes));
}

struct rk_status *rk_flow_check_disk(const struct rk_flow_disk *in)
{
    double num_params = rk_estimate_num_params(in->inputs->hf_config);
    double dtype_bytes = strcmp(rk_job_dtype(in->job, rk_job_device(in->job)), "float32") ? 2 : 4;
    bool trains = !rk_config_bool(in->job, "trainer.val_only");
    bool saves = trains && in->checkpoints->dir && in->checkpoints->save_freq > 0;
    struct disk run = find_disk(in->run_dir), other = saves ? find_disk(in->checkpoints->dir) : run;
    bool is_one = run.device == other.device;
    double export = trains ? num_params * dtype_bytes : 0;
    double checkpoint = saves ? checkpoint_bytes(in->checkpoints, num_params, dtype_bytes) : 0;
    double all = saves ? checkpoint * (double)num_kept(in) : 0;

    if (num_params < 1 || !run.is_known || !other.is_known)
        return NULL;
    if (export + (is_one ? checkpoint : 0) > run.free_bytes)
        return too_small(in->run_dir, run.free_bytes, export + (is_one ? checkpoint : 0),
                         checkpoint > 0 && is_one ? "the trained model and a checkpoint take"
                                                  : "the trained model takes",
                         "set --run-dir");
    if (checkpoint > other.free_bytes)
        return too_small(in->checkpoints->dir, other.free_bytes, checkpoint, "a checkpoint takes",
                         "set trainer.default_local_dir, or less " RK_JOB_ACTOR "checkpoint.save_contents");
    if (all + (is_one ? export : 0) > other.free_bytes)
        warn(in, other.free_bytes, all);
    return NULL;
}
