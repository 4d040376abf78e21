#include "tests/fault/under_attack.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "base/rk_time.h"
#include "tests/proc/cli_fixture.h"

#define ARGS_MAX 32

void attack_run_start(struct attack_run *run, const char *hosts, const char *token_path,
                      const char *const *more)
{
    const char *args[ARGS_MAX] = {"run",
                                  TINY_JOB,
                                  "--hosts",
                                  hosts,
                                  "--token-file",
                                  token_path,
                                  "--run-dir",
                                  NULL,
                                  TINY,
                                  "trainer.total_training_steps=10000000",
                                  "trainer.save_freq=-1"};

    run->dir = new_run_dir();
    args[7] = run->dir;
    append_args(args, ARGS_MAX, more);
    run->proc = start_rankctl(args);
    attack_run_wait_step(run, 0);
}

int64_t attack_run_num_steps(const struct attack_run *run)
{
    char *path = rk_path_join(run->dir, "metrics.jsonl");
    int64_t steps = access(path, F_OK) == 0 ? count_metrics(run->dir) : 0;

    rk_free(path);
    return steps;
}

void attack_run_wait_step(const struct attack_run *run, int64_t steps)
{
    int64_t end_ns = rk_time_now_ns() + rk_proc_timeout_ms(ATTACK_STEP_MS) * 1000000;

    while (attack_run_num_steps(run) <= steps) {
        if (!rk_proc_is_running(run->proc) || rk_time_now_ns() > end_ns)
            fail_msg("the training run is at step %lld: %s", (long long)attack_run_num_steps(run),
                     rk_proc_stderr(run->proc));
        rk_time_sleep_ms(ATTACK_SAMPLE_MS);
    }
}

void attack_run_stop(struct attack_run *run)
{
    struct outcome outcome;

    rk_proc_signal(run->proc, SIGINT);
    outcome = finish_rankctl(run->proc, ATTACK_STEP_MS);
    assert_exit(&outcome, -SIGINT);
    outcome_fini(&outcome);
    rk_free(run->dir);
    *run = (struct attack_run){0};
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

void attack_sort_samples(double *samples, int count)
{
    qsort(samples, (size_t)count, sizeof(*samples), compare_doubles);
}
