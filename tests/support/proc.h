/* Real processes for tests: start with captured output, wait with a timeout, stop. Processes that are still
 * running when the test process ends are killed, for every kind of end.
 *
 * Timeouts fail the test with the output of the process. They are multiplied by RK_TEST_TIMEOUT_FACTOR
 * (default 1), for slow machines and sanitizers. */
#ifndef RK_TEST_PROC_H
#define RK_TEST_PROC_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/rk_compiler.h"

RK_BEGIN_DECLS

struct rk_proc;

/* argv is NULL-terminated, argv[0] the path of the program. The environment is inherited. */
struct rk_proc *rk_proc_start(const char *const *argv);
/* The rankd of this build; `args` without the program, NULL-terminated, may be NULL. */
struct rk_proc *rk_proc_start_rankd(const char *const *args);
/* Path of a program of this build ("rankctl"); rk_free it. */
char *rk_proc_program(const char *name);
/* Kills the process if it runs, and forgets its output. NULL is a no-op. */
void rk_proc_destroy(struct rk_proc *proc);

/* Waits for "rankd: listening on ADDRESS" on stdout. Borrowed. */
const char *rk_proc_address(struct rk_proc *proc);
/* Waits until stdout contains the text. */
void rk_proc_wait_output(struct rk_proc *proc, const char *text, int64_t timeout_ms);
pid_t rk_proc_pid(const struct rk_proc *proc);
/* After SIGSTOP it has stopped, with all of its threads. */
void rk_proc_signal(struct rk_proc *proc, int signum);
bool rk_proc_is_running(struct rk_proc *proc);
/* Waits for the end; returns the exit code, or the negative signal number. */
int rk_proc_wait(struct rk_proc *proc, int64_t timeout_ms);
/* Output so far; rk_free it. */
char *rk_proc_stdout(struct rk_proc *proc);
char *rk_proc_stderr(struct rk_proc *proc);
/* Resident memory, in KiB; and the largest so far (VmHWM). */
int64_t rk_proc_rss_kib(const struct rk_proc *proc);
int64_t rk_proc_peak_rss_kib(const struct rk_proc *proc);

/* Milliseconds times RK_TEST_TIMEOUT_FACTOR. */
int64_t rk_proc_timeout_ms(int64_t ms);

RK_END_DECLS

#endif
