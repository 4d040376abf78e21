/* rankctl: the table of commands and their common functions. */
#ifndef RK_CMD_INTERNAL_H
#define RK_CMD_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/rk_array.h"
#include "base/rk_json.h"
#include "base/config/rk_manual.h"
#include "base/config/rk_options.h"
#include "driver/rk_driver.h"

#define RK_CLI_API "rankctl/v1"

/* --- the table --- */
struct rk_cli;

struct rk_command {
    const char *name; /* "run", "checkpoint list" */
    const char *args; /* "[JOB.json|-] [KEY=VALUE...]"; "" for none */
    int min_args, max_args;
    const char *summary;             /* one line */
    const char *details;             /* shown by --help below the options; NULL: none */
    const struct rk_option *options; /* besides the common options; ends with a row without name */
    const char *repeatable;          /* the option that may be given more than once; NULL: none */
    /* Appended to --help; NULL: none. */
    void (*more_help)(struct rk_str *out);
    struct rk_status *(*run)(struct rk_cli *cli);
};

extern const struct rk_command rk_cmd_run, rk_cmd_plan, rk_cmd_verify_layout, rk_cmd_status, rk_cmd_methods,
    rk_cmd_describe, rk_cmd_call, rk_cmd_completion, rk_cmd_shutdown, rk_cmd_config, rk_cmd_version,
    rk_cmd_checkpoint_save, rk_cmd_checkpoint_load, rk_cmd_checkpoint_list, rk_cmd_checkpoint_inspect,
    rk_cmd_checkpoint_export, rk_cmd_certs_init, rk_cmd_certs_issue, rk_cmd_events, rk_cmd_debug_dump,
    rk_cmd_top, rk_cmd_replay, rk_cmd_verl, rk_cmd_verl_env;

extern const struct rk_command *const rk_commands[];
extern const size_t rk_num_commands;

extern const struct rk_exit_code rk_exit_codes[];
extern const size_t rk_num_exit_codes;
extern const char rk_exit_by_signal[];

/* Options of all commands; ends with a row without name. */
extern const struct rk_option rk_common_options[];

/* A script that completes rankctl's command lines in "bash" or "zsh". */
void rk_completion_format(const char *shell, struct rk_str *out);

/* --- the command line --- */
struct rk_cli {
    const struct rk_command *command;
    struct rk_command_line line;
    bool has_told;        /* the printed object contains the error as well */
    char *identity_dir;   /* directory of the driver keys of this user; NULL: none */
    char *job_text;       /* the job from standard input, once it is read; or a command's own */
    const char *job_name; /* of job_text, for messages; NULL: standard input */
};

/* INVALID_ARGUMENT with the reason USAGE for unknown options and arguments. */
struct rk_status *rk_cli_parse(struct rk_cli *cli, const struct rk_command *command, int argc,
                               char **argv) RK_NODISCARD;
void rk_cli_fini(struct rk_cli *cli);
void rk_cli_format_help(const struct rk_command *command, struct rk_str *out);
/* The value given to the option; NULL when it was not given. */
const char *rk_cli_find(const struct rk_cli *cli, const char *name);
bool rk_cli_has(const struct rk_cli *cli, const char *name);
bool rk_cli_is_json(const struct rk_cli *cli);
/* A duration ("90s") or the fallback, in milliseconds that fit into 32 bits. */
struct rk_status *rk_cli_duration(const struct rk_cli *cli, const char *name, int64_t fallback_ms,
                                  int64_t *out) RK_NODISCARD;
/* Marks a status as a usage error: exit code 2; except UNAVAILABLE, which is an error of the network. */
struct rk_status *rk_cli_usage(struct rk_status *st) RK_NODISCARD;
/* The exit code of DESIGN: 0 ok, 1 failed, 2 usage or configuration, 3 unreachable, 4 refused, 5 timed out.
 */
int rk_cli_exit_code(const struct rk_status *st);

/* --- the job among the arguments --- */
/* JOB.json or "-", then KEY=VALUE...; or only keys, of an empty job. */
struct rk_cli_job_args {
    const char *path; /* NULL: not a file */
    const char *name; /* the source, for messages */
    bool is_stdin;
    const char *const *keys; /* borrowed */
    int64_t num_keys;
};
struct rk_cli_job_args rk_cli_job_args(const struct rk_cli *cli, int64_t first);
/* Loads the job of the arguments from `first` on; `more` keys follow. Standard input is read once. */
struct rk_status *rk_cli_load_job(struct rk_config **out, struct rk_cli *cli, int64_t first,
                                  const char *const *more, int64_t num_more) RK_NODISCARD;

/* --- the daemons --- */
/* --hosts, else RANKCTL_HOSTS. count stays 0 when neither is given. */
struct rk_status *rk_cli_hosts(const struct rk_cli *cli, struct rk_hosts *out) RK_NODISCARD;
/* The driver's configuration from the options, for daemons of --hosts: token, takeover, identity. The caller
 * sets the addresses. */
struct rk_driver_config rk_cli_driver_config(const struct rk_cli *cli);
/* Opens a driver on them; a usage error without hosts. */
struct rk_status *rk_cli_open(const struct rk_cli *cli, const struct rk_hosts *hosts,
                              struct rk_driver **out) RK_NODISCARD;
/* Path of rankd, in the directory of rankctl; rk_free it. */
struct rk_status *rk_cli_find_rankd(char **out) RK_NODISCARD;
/* The absolute directory that the file `path` is in, or as given when there is none; NULL: the working
 * directory. rk_free it. */
char *rk_cli_directory_of(const char *path);
/* SIGINT, SIGTERM and SIGHUP, unless it is ignored, then interrupt the driver instead of ending the
 * process (NULL: they are only counted). */
void rk_cli_watch_signals(struct rk_driver *driver);
/* The received signal, or 0. */
int rk_cli_signal(void);

/* --- output --- */
/* Prints {"apiVersion": ..., "kind": kind, members of body} and frees the body. */
void rk_cli_print_json(const char *kind, struct rk_json *body);
struct rk_json *rk_cli_status_json(const struct rk_status *st); /* {"code", "reason", "message"} */
struct rk_json *rk_cli_hex(const void *data, size_t bytes);

/* A worker's status as an object. */
struct rk_json *rk_cli_worker_json(int32_t index, const struct rk_driver_worker *worker);
/* An event as an object. */
struct rk_json *rk_cli_event_json(int32_t worker, const char *address, const struct rk_watch_event *event);

/* Received text for a terminal: control characters except newlines become "\x1b". rk_free it. */
char *rk_cli_printable(const char *text);

/* Columns of text, as wide as their widest cell. */
struct rk_table {
    int num_columns;
    RK_ARRAY(char *) cells; /* row by row */
};
void rk_table_init(struct rk_table *table, int num_columns, const char *const *titles);
void rk_table_add(struct rk_table *table, const char *text); /* NULL: "-" */
void rk_table_addf(struct rk_table *table, const char *fmt, ...) RK_PRINTF(2, 3);
void rk_table_format(struct rk_table *table, struct rk_str *out); /* appends, and releases it */
void rk_table_print(struct rk_table *table, FILE *out);           /* and releases it; NULL only releases */

#endif
