/* Loggers: destinations of the metrics and the samples of a run. A logger is one file and one row in
 * loggers.def. */
#ifndef RK_LOGGERS_H
#define RK_LOGGERS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/config/rk_config.h"
#include "base/rk_json.h"
#include "base/rk_status.h"
#include "base/rk_str.h"
#include "rl/loggers/loggers.def"

struct rk_logger_config {
    const struct rk_config *job;
    const char *name;    /* of the logger; set by rk_loggers_create */
    const char *job_dir; /* to which the job's relative paths are relative */
    const char *run_dir; /* absolute; the directory exists */
    FILE *console;       /* of the console logger; NULL: it is not opened */
    int32_t world_size;
    const struct rk_json *rows; /* rk_flow_rows_json, for the report; or NULL */
    bool begins_again;          /* data of an earlier run in run_dir is invalid from step 0 on */
};

/* A prompt and one response to it. */
struct rk_sample {
    const char *input, *output; /* without special tokens */
    const char *gts;            /* ground truth; "" when the data has none */
    double score;
};

struct rk_samples {
    const char *tag; /* "val/generations", "train/generations" */
    int64_t count;
    const struct rk_sample *items;
};

#define RK_SAMPLES_VAL   "val/generations"
#define RK_SAMPLES_TRAIN "train/generations"

/* One logger. Calls come from one thread, steps in ascending order. A failure after open() logs a warning and
 * the next step tries again: a run does not end because a plot cannot be written. */
struct rk_logger_ops {
    const char *name; /* member of trainer.logger */
    /* Optional: this machine may lack what the logger needs. When it cannot be opened, the run has
     * TensorBoard's files instead; the text says what to do with them. */
    const char *advice;
    struct rk_status *(*open)(void **state, const struct rk_logger_config *config);
    /* Optional. Steps from first_step on follow; entries of an earlier run of the directory for these steps
     * are to be dropped. Step first_step - 1 may follow, too: validation before training. */
    struct rk_status *(*begin)(void *state, int64_t first_step, int64_t total_steps);
    /* The numbers of a step: reals, integers and null. */
    struct rk_status *(*log)(void *state, int64_t step, const struct rk_json *metrics);
    /* Optional: loggers without texts. */
    struct rk_status *(*log_samples)(void *state, int64_t step, const struct rk_samples *samples);
    /* Optional: the part of the step that begins, and the progress of the running call. */
    void (*on_phase)(void *state, const char *phase);
    void (*on_progress)(void *state, uint64_t done, uint64_t total);
    /* Optional: called before other output to the console. */
    void (*end_line)(void *state);
    /* Optional. The run is over: "succeeded", "failed" or "interrupted". */
    struct rk_status *(*finish)(void *state, const char *outcome);
    void (*close)(void *state);
};

/* Always on: report.html (report/report.c). */
extern const struct rk_logger_ops rk_logger_report;
#define X(name) extern const struct rk_logger_ops rk_logger_##name;
RK_LOGGER_TABLE(X)
#undef X

const struct rk_logger_ops *rk_logger_find(const char *name); /* NULL when unknown */
const char *rk_logger_names(void);                            /* "console, file, tensorboard, ..." */
/* The alternative for a verl logger that rankd does not have; NULL for names that verl does not have. */
const char *rk_logger_advice(const char *name);

/* --- all loggers of a run --- */
struct rk_loggers;

/* Opens report.html and the loggers that trainer.logger names; the rules of the job have checked the names.
 */
struct rk_status *rk_loggers_create(struct rk_loggers **out,
                                    const struct rk_logger_config *config) RK_NODISCARD;
void rk_loggers_destroy(struct rk_loggers *loggers); /* NULL is a no-op, here and below */
void rk_loggers_begin(struct rk_loggers *loggers, int64_t first_step, int64_t total_steps);
void rk_loggers_log(struct rk_loggers *loggers, int64_t step, const struct rk_json *metrics);
void rk_loggers_log_samples(struct rk_loggers *loggers, int64_t step, const struct rk_samples *samples);
void rk_loggers_phase(struct rk_loggers *loggers, const char *phase);
void rk_loggers_progress(struct rk_loggers *loggers, uint64_t done, uint64_t total);
void rk_loggers_end_line(struct rk_loggers *loggers);
void rk_loggers_finish(struct rk_loggers *loggers, const char *outcome);

/* --- TensorBoard's event files (tensorboard_event.c) --- */
/* Each appends one record: length, its masked CRC-32C, the serialised Event, the masked CRC-32C of that. */
void rk_tb_version(struct rk_str *out, double wall_time);
/* Readers drop what earlier files say about `step` and later ones. */
void rk_tb_session_start(struct rk_str *out, double wall_time, int64_t step);
/* All finite numbers of an object as scalars. */
void rk_tb_scalars(struct rk_str *out, double wall_time, int64_t step, const struct rk_json *values);
/* Markdown for the text dashboard. */
void rk_tb_text(struct rk_str *out, double wall_time, int64_t step, const char *tag, const char *text);

#endif
