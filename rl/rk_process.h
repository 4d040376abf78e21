/* A program of the user's as a process, such as a worker of a reward or an experiment tracker: its own
 * process group, a socket to its standard input, pipes from its standard output and error. Only
 * rk_process_describe_end and rk_processes_stop wait. */
#ifndef RK_PROCESS_H
#define RK_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/rk_status.h"
#include "base/rk_str.h"

/* How much of the programs' standard error is copied: a burst, then a rate. A program may write without end,
 * and what it writes reaches terminals and logs. */
#define RK_PROCESS_MESSAGES_BURST (1 << 20)  /* bytes */
#define RK_PROCESS_MESSAGES_RATE  (16 << 10) /* bytes a second */

/* The limit on standard error, which all workers of a reward share. */
struct rk_process_messages {
    const char *name;     /* of the programs, for messages: "reward", "wandb" */
    double room_bytes;    /* that may be copied */
    int64_t filled_ns;    /* when that was computed; 0: never */
    int64_t num_left_out; /* lines since the last one that was copied */
};

struct rk_process {
    pid_t pid;        /* of the leader of its group; 0: not running */
    int in, out, err; /* -1: closed */
    int life;         /* a pipe that closes with the driver; then a watcher kills the group */
    struct rk_str to_send;
    size_t num_sent;                   /* sent bytes of to_send */
    struct rk_str received;            /* standard output from the first line that was not taken */
    struct rk_str messages;            /* standard error after the last complete line */
    char prefix[32];                   /* of its messages; set before the start */
    struct rk_process_messages *limit; /* of its messages; set before the start */
};

/* Starts argv (NULL-terminated; found through PATH when its name has no slash) in `dir`. NOT_FOUND when there
 * is no such program. The kernel kills it when the calling thread dies,
 * and a watcher the rest of its group when this process does. */
struct rk_status *rk_process_start(struct rk_process *process, char *const *argv,
                                   const char *dir) RK_NODISCARD;
/* Sends as much of to_send as possible; false if the process does not read any more. */
bool rk_process_send(struct rk_process *process);
/* Appends available output to `received`; false at the end of its output. */
bool rk_process_receive(struct rk_process *process);
/* The next complete line, without its newline, valid until the next call on the process; false when there
 * is none yet. */
bool rk_process_next_line(struct rk_process *process, struct rk_str *line);
/* Copies its standard error to this process's, line by line with the prefix, as far as the limit allows and
 * with control characters escaped. */
void rk_process_pass_messages(struct rk_process *process);
/* Waits a moment for the exit status of a process that has closed its output; appends "exited with code 3".
 */
#define RK_PROCESS_SUCCESS "exited with code 0"
void rk_process_describe_end(struct rk_process *process, struct rk_str *out);
bool rk_process_has_ended(const struct rk_process *process);
void rk_process_signal(struct rk_process *process, int signal_number); /* the whole group */
/* Says how many lines have been left out, if any. */
void rk_process_messages_report(struct rk_process_messages *limit);
/* Kills the group, collects the leader, prints its last messages and closes everything. */
void rk_process_kill(struct rk_process *process);
/* Ends `count` processes together: end of file on their inputs, then, after a grace period, SIGKILL. */
void rk_processes_stop(struct rk_process *const *processes, int64_t count);

#endif
