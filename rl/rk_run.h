/* The run directory: metrics, reports and a summary. */
#ifndef RK_RUN_H
#define RK_RUN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/config/rk_config.h"
#include "base/rk_json.h"
#include "base/rk_status.h"

/* The main metric of a run. */
struct rk_run_curve {
    const char *metric, *name; /* "critic/score/mean", "reward" */
};

/* NULL for metrics that have none: of a validation alone. */
const struct rk_run_curve *rk_run_curve_of(const struct rk_json *metrics);
const struct rk_run_curve *rk_run_curves(int64_t *count);
/* Whether the console shows this metric of a validation. */
bool rk_run_is_validation(const char *metric);

struct rk_run_dir {
    char *path;                       /* absolute */
    FILE *metrics;                    /* metrics.jsonl */
    const struct rk_run_curve *curve; /* NULL: no step so far */
    int64_t num_steps, capacity;      /* steps with a value of the curve */
    double *values;                   /* of these */
};

/* last_step of rk_run_dir_create for a new run. */
#define RK_RUN_DIR_NEW (-1)

/* RUN_DIR, or runs/<experiment>/<UTC time> when run_dir is NULL. Writes config.json, with paths relative to
 * `job_dir` made absolute, so that it can be run again. ALREADY_EXISTS when the directory contains a run with
 * a step, or one that is still running; a run that ended before its first step is overwritten. With last_step
 * >= 1 the run of the directory continues after that step: lines of later steps, and an incomplete one, are
 * removed from metrics.jsonl, and an exported model is moved aside (hf-1, ...). With 0 it starts again
 * without any line. */
struct rk_status *rk_run_dir_create(struct rk_run_dir *out, const struct rk_config *job, const char *job_dir,
                                    const char *run_dir, int64_t last_step) RK_NODISCARD;
/* Whether the directory holds a run that saves checkpoints and ended before its first was complete, which is
 * before twice its save_freq (the next save waits for the one before). A run that got further has lost its
 * checkpoints, or they are elsewhere: its metrics must be kept. */
bool rk_run_dir_can_begin_again(const char *run_dir);
/* One line of metrics.jsonl, written (flushed) when it returns. NOT_FOUND when the file was removed. */
struct rk_status *rk_run_dir_append(struct rk_run_dir *run, const struct rk_json *metrics) RK_NODISCARD;
/* Waits until what was appended is on the disk. */
struct rk_status *rk_run_dir_sync(struct rk_run_dir *run) RK_NODISCARD;
/* Writes the file `name` of the directory. */
struct rk_status *rk_run_dir_write(const struct rk_run_dir *run, const char *name,
                                   const struct rk_json *json) RK_NODISCARD;
/* Writes summary.json. Adds the data of the directory to the summary (steps, the curve's means). */
struct rk_status *rk_run_dir_finish(struct rk_run_dir *run, struct rk_json *summary) RK_NODISCARD;
void rk_run_dir_fini(struct rk_run_dir *run);
/* Mean of the last (or first) `count` values of the curve; 0 without any. */
double rk_run_dir_mean(const struct rk_run_dir *run, bool is_last, int64_t count);

#endif
