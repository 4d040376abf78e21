/* For tests that attack a daemon: the training run that continues meanwhile, and samples of latency. */
#ifndef RK_TEST_UNDER_ATTACK_H
#define RK_TEST_UNDER_ATTACK_H

#include <stdint.h>

#include "base/rk_compiler.h"

RK_BEGIN_DECLS

struct rk_proc;

#define ATTACK_TOKEN     "test-admin-token-0123456789abcdef0123"
#define ATTACK_SAMPLE_MS 10
#define ATTACK_STEP_MS   60000 /* within which a run makes a step */

/* A tiny job without end. */
struct attack_run {
    struct rk_proc *proc; /* rankctl; NULL: not running */
    char *dir;
};

/* Starts it on daemons that accept the token of the file, and waits for its first step; `more` are further
 * arguments, NULL-terminated. */
void attack_run_start(struct attack_run *run, const char *hosts, const char *token_path,
                      const char *const *more);
int64_t attack_run_num_steps(const struct attack_run *run);
/* Waits until the run has more than that many steps. */
void attack_run_wait_step(const struct attack_run *run, int64_t steps);
void attack_run_stop(struct attack_run *run);

void attack_sort_samples(double *samples, int count);

RK_END_DECLS

#endif
