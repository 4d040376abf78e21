/* The example learns, and the memory of long runs does not grow. Release binaries only: sanitizers are too
 * slow and change memory use. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "base/rk_time.h"
#include "tests/proc/cli_fixture.h"

#define NUM_DAEMONS     4
#define RUN_TIMEOUT_MS  240000
#define REWARD_RISE_MIN 0.4  /* mean of the last 10 steps over that of the first 3 */
#define RSS_GROWTH_KIB  1024 /* over 100 steps: pages that the allocator touches late, not growth per step */

/* Goal: the shipped seed and two others. Method: the example as scripts/quickstart.sh runs it. */
static void test_learn_every_seed_raises_the_reward(void **state)
{
    static const char *const seeds[] = {"42", "7", "1234"};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(seeds); i++) {
        char *dir = new_run_dir();
        char *seed = rk_format("actor_rollout_ref.actor.megatron.seed=%s", seeds[i]);
        const char *args[] = {"run", TINY_JOB, "--local", "4", "--quiet", "--run-dir", dir, seed, NULL};
        struct outcome outcome = finish_rankctl(start_rankctl(args), RUN_TIMEOUT_MS);
        struct rk_json *summary;
        double first, last;

        assert_exit(&outcome, 0);
        summary = read_json(dir, "summary.json");
        first = metric(summary, "reward_first_3");
        last = metric(summary, "reward_last_10");
        print_message("seed %s: %.3f -> %.3f in %.0f s\n", seeds[i], first, last, metric(summary, "seconds"));
        assert_true(last - first >= REWARD_RISE_MIN);
        rk_json_free(summary);
        outcome_fini(&outcome);
        rk_free(seed);
        rk_free(dir);
    }
}

static int64_t rss_kib(pid_t pid)
{
    char path[64], line[256];
    long long kib = -1;
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    file = fopen(path, "re");
    assert_non_null(file);
    while (kib < 0 && fgets(line, sizeof(line), file)) {
        if (rk_str_has_prefix(line, "VmRSS:"))
            assert_int_equal(sscanf(line, "VmRSS: %lld", &kib), 1);
    }
    fclose(file);
    assert_true(kib > 0);
    return kib;
}

static void wait_steps(const char *dir, int64_t steps)
{
    for (int64_t waited_ms = 0; count_metrics(dir) < steps; waited_ms += 20) {
        assert_true(waited_ms < rk_proc_timeout_ms(RUN_TIMEOUT_MS));
        rk_time_sleep_ms(20);
    }
}

/* Goal: 100 cycles of generate and update do not increase the resident memory of the daemons. */
static void test_learn_memory_of_the_daemons_is_flat(void **state)
{
    char *dir = new_run_dir();
    const char *args[] = {
        "run", TINY_JOB, "--local", "4", "--run-dir", dir, TINY, "trainer.total_training_steps=1000", NULL};
    struct rk_proc *proc = start_rankctl(args);
    pid_t pids[NUM_DAEMONS];
    int64_t before[NUM_DAEMONS];
    struct outcome outcome;

    (void)state;
    wait_stderr(proc, "step 20/", RUN_TIMEOUT_MS);
    find_daemons(proc, pids, NUM_DAEMONS);
    for (int i = 0; i < NUM_DAEMONS; i++)
        before[i] = rss_kib(pids[i]);
    wait_steps(dir, 130);
    for (int i = 0; i < NUM_DAEMONS; i++) {
        int64_t after = rss_kib(pids[i]);

        print_message("daemon %d: %lld KiB -> %lld KiB\n", i, (long long)before[i], (long long)after);
        assert_true(after - before[i] <= RSS_GROWTH_KIB);
    }
    rk_proc_signal(proc, SIGINT);
    outcome = finish_rankctl(proc, RUN_TIMEOUT_MS);
    assert_int_equal(outcome.code, -SIGINT);
    outcome_fini(&outcome);
    rk_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_learn_every_seed_raises_the_reward),
        cmocka_unit_test(test_learn_memory_of_the_daemons_is_flat),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
