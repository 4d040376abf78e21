/* Runs rankctl like a user: starts it, waits, and checks its output and files. Daemons use the CPU, or the
 * GPUs from the first on if RK_TEST_DEVICE is cuda. */
#ifndef RK_TEST_CLI_FIXTURE_H
#define RK_TEST_CLI_FIXTURE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/rk_json.h"
#include "tests/support/proc.h"
#include "tests/support/test.h"

/* The digits example, reduced to three short steps. */
#define TINY_JOB   RK_TEST_SOURCE_DIR "/examples/digits/grpo.json"
#define TINY_STEPS 3
#define TINY                                                    \
    "data.train_batch_size=4", "actor_rollout_ref.rollout.n=4", \
        "actor_rollout_ref.actor.ppo_mini_batch_size=2", "trainer.total_training_steps=3", cli_device()

/* Whether RK_TEST_DEVICE is cuda. */
bool is_on_gpus(void);
/* The device of RK_TEST_DEVICE as a key of a job: "device=cpu", "device=cuda". */
const char *cli_device(void);
/* False if a daemon on device number count - 1 does not start because this machine or build has no such
 * device. */
bool has_devices(int count);
/* The largest of 1, 2, 4, ... up to `most` for which has_devices() is true; `most` on the CPU. */
int count_devices(int most);
/* Without that many devices, ends the process with code 77, which ctest treats as skipped. */
void skip_without_devices(int count);

/* The job at `path` with tensor_model_parallel_size 1, as the file NAME of the test; rk_free the path. */
char *write_tp1_job(const char *path, const char *name);

struct rk_proc *start_rankctl(const char *const *args);

struct outcome {
    int code; /* exit code, or the negative signal number */
    char *out, *err;
};

/* Waits for the end and takes the output; destroys the process. */
struct outcome finish_rankctl(struct rk_proc *proc, int64_t timeout_ms);
struct outcome run_rankctl(const char *const *args);
/* Appends `more` (NULL: none) to args, which has `capacity` entries and is NULL-terminated. */
void append_args(const char **args, size_t capacity, const char *const *more);
/* The tiny job in run directory `dir` on `num_daemons` daemons, with `keys` and then `more`, NULL-terminated;
 * `more` may be NULL. */
struct outcome run_tiny_job(const char *dir, const char *num_daemons, const char *const *keys,
                            const char *const *more);
/* run_tiny_job in a new directory, which it returns; rk_free it. Fails the test unless the run succeeds. */
char *run_new_tiny_job(const char *num_daemons, const char *const *keys, const char *const *more);
void outcome_fini(struct outcome *outcome);
/* Checks the exit code; on failure prints all output. */
void assert_exit(const struct outcome *outcome, int code);
void assert_text(const char *where, const char *text, const char *part);

/* Waits until stderr contains the text. */
void wait_stderr(struct rk_proc *proc, const char *text, int64_t timeout_ms);
/* Process ids of the daemons that a rankctl started, in rank order. Fails unless there are `count`. */
void find_daemons(struct rk_proc *proc, pid_t *pids, int count);
void assert_gone(const pid_t *pids, int count, int64_t timeout_ms);

/* A command of the shell, in which $rankctl is the program and $dir a path that does not exist yet. */
struct shell_case {
    const char *script;
    int code;
    const char *out, *err; /* parts of the output; NULL: anything */
};
/* Runs all, prints what is wrong, and then fails. */
void run_shell_cases(const struct shell_case *cases, size_t count);

/* Writes a file below the temporary directory, with that mode; rk_free its path. */
char *write_secret(const char *name, const char *text, mode_t mode);
/* A new path below the temporary directory; rk_free it. */
char *new_run_dir(void);
struct rk_json *read_json(const char *dir, const char *name);
struct rk_json *parse_json(const char *text);
/* Line `step` (from 1) of metrics.jsonl. */
struct rk_json *read_metrics(const char *dir, int64_t step);
int64_t count_metrics(const char *dir);
double metric(const struct rk_json *metrics, const char *name);
/* Every member of `expected` except times has the same value in `metrics`; `step` is for the message. */
void assert_same_step(const struct rk_json *metrics, const struct rk_json *expected, int64_t step);
/* The file `name` has the same bytes in both directories. */
void assert_same_file(const char *dir, const char *expected_dir, const char *name);

/* A daemon on a new socket that may read and write below the temporary directory. */
struct rk_proc *start_daemon(const char *const *more_args);
/* start_daemon on device number `index`, with one more argument or NULL. */
struct rk_proc *start_daemon_on(int index, const char *more_arg);

#endif
