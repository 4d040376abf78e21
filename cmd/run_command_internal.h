/* A run of rankctl, shared by cmd_run.c, which starts and executes it, and run_outcome.c, which ends it. */
#ifndef RK_RUN_COMMAND_INTERNAL_H
#define RK_RUN_COMMAND_INTERNAL_H

#include "cmd/cmd_internal.h"
#include "rl/rk_checkpoints.h"
#include "rl/rk_flows.h"
#include "rl/rk_loggers.h"
#include "rl/rk_run.h"

/* Files of the connections to daemons that the run has not started. */
typedef enum rk_run_file {
    RK_RUN_FILE_TOKEN,
    RK_RUN_FILE_TLS_CA,
    RK_RUN_FILE_TLS_CERT,
    RK_RUN_FILE_TLS_KEY,
    RK_RUN_FILE_COUNT
} rk_run_file_t;

struct rk_run_command {
    struct rk_cli *cli;
    struct rk_config *job;
    char *job_dir;                  /* absolute */
    struct rk_hosts hosts;          /* count 0 with --local */
    char *files[RK_RUN_FILE_COUNT]; /* from an option or the job; NULL: from neither */
    int32_t world_size;
    struct rk_flow_inputs inputs;
    struct rk_checkpoints checkpoints;
    struct rk_run_dir dir;
    struct rk_local *local; /* NULL without --local */
    struct rk_driver *driver;
    struct rk_flow_context flow;
    struct rk_loggers *loggers;
    int64_t started_ns;
    struct rk_json *validation; /* step and val-core metrics of the last validation; NULL: none */
    struct rk_json *rows;       /* rk_flow_rows_json; NULL before the loggers */
    bool is_exported;
    bool begins_again; /* starts again in the directory of a run without a checkpoint */
};

/* Writes the summary and reports how the run ended; `st` is the reason. Returns the first error. Takes
 * ownership of st. */
struct rk_status *rk_run_command_finish(struct rk_run_command *run, struct rk_status *st) RK_NODISCARD;

#endif
