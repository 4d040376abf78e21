/* Daemons of a run and their devices, on the CPU and (RK_TEST_DEVICE=cuda) on two GPUs: a rank killed during
 * an update or a generation does not end the others, and a long run uses no more device memory than a short
 * one. */
#include <signal.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "base/rk_time.h"
#include "tests/proc/cli_fixture.h"

#define NUM_DAEMONS 2

struct group {
    struct rk_proc *daemons[NUM_DAEMONS];
    char *hosts;
};

static void name_hosts(struct group *group)
{
    rk_free(group->hosts);
    group->hosts = rk_format("%s,%s", rk_proc_address(group->daemons[0]), rk_proc_address(group->daemons[1]));
}

static struct group start_group(void)
{
    struct group group = {{start_daemon_on(0, NULL), start_daemon_on(1, NULL)}, NULL};

    name_hosts(&group);
    return group;
}

static void stop_group(struct group *group)
{
    for (int i = 0; i < NUM_DAEMONS; i++)
        rk_proc_destroy(group->daemons[i]);
    rk_free(group->hosts);
}

/* Output of `rankctl status` for a daemon; rk_free it. */
static char *status_of(struct rk_proc *daemon)
{
    struct outcome outcome =
        run_rankctl((const char *const[]){"status", "--hosts", rk_proc_address(daemon), NULL});
    char *text = outcome.out;

    assert_exit(&outcome, 0);
    outcome.out = NULL;
    outcome_fini(&outcome);
    return text;
}

static void wait_status(struct rk_proc *daemon, const char *text, int64_t timeout_ms)
{
    int64_t end_ns = rk_time_now_ns() + rk_proc_timeout_ms(timeout_ms) * 1000000;

    for (bool is_there = false; !is_there;) {
        char *status = status_of(daemon);

        is_there = strstr(status, text) != NULL;
        if (!is_there && rk_time_now_ns() > end_ns)
            fail_msg("the status lacks '%s': %s", text, status);
        rk_free(status);
    }
}

static void assert_run_succeeds(const struct group *group)
{
    char *dir = new_run_dir();
    const char *const args[] = {"run", TINY_JOB, "--hosts", group->hosts, "--run-dir", dir, TINY, NULL};
    struct outcome outcome = run_rankctl(args);

    assert_exit(&outcome, 0);
    assert_int_equal(count_metrics(dir), TINY_STEPS);
    outcome_fini(&outcome);
    rk_free(dir);
}

/* The survivor's error: the lost rank, the operation ("all_reduce #7 of group tp") and the call. */
static void assert_survivor_names(struct rk_proc *daemon, const char *rank, const char *call)
{
    char *log = rk_proc_stderr(daemon);
    const char *line = strstr(log, "communicators lost: ");

    if (!line || !strstr(line, rank) || !strstr(line, " of group ") || !strstr(line, call))
        fail_msg("'communicators lost', '%s', a group or '%s' is not in: %s", rank, call,
                 log + (strlen(log) > 900 ? strlen(log) - 900 : 0));
    print_message("%.*s\n", (int)strcspn(line, "\""), line);
    rk_free(log);
}

/* A long call. */
struct kill_case {
    const char *call, *keys[3];
    int64_t after_ms; /* its first collectives are done, and most are to come */
};

/* Kills rank 1 with SIGKILL: the run fails within 10 s with an error that names the rank and the call; rank 0
 * survives, returns to UNCONFIGURED, and serves the next run with a new rank 1. */
static void kill_during(const struct kill_case *kill_case)
{
    struct group group = start_group();
    char *dir = new_run_dir();
    const char *const args[] = {"run", TINY_JOB, "--hosts",          group.hosts,        "--run-dir",
                                dir,   TINY,     kill_case->keys[0], kill_case->keys[1], kill_case->keys[2],
                                NULL};
    struct rk_proc *run = start_rankctl(args);
    struct outcome outcome;
    int64_t killed_ns;

    wait_status(group.daemons[0], kill_case->call, 30000);
    rk_time_sleep_ms(kill_case->after_ms);
    killed_ns = rk_time_now_ns();
    rk_proc_signal(group.daemons[1], SIGKILL);
    outcome = finish_rankctl(run, 10000);
    print_message("rankctl ended %.2f s after the kill: %s", (double)(rk_time_now_ns() - killed_ns) / 1e9,
                  outcome.err + (strlen(outcome.err) > 300 ? strlen(outcome.err) - 300 : 0));
    assert_exit(&outcome, 1);
    assert_text("stderr", outcome.err, "worker 1 (unix:");
    assert_text("stderr", outcome.err, "rank 1): UNAVAILABLE");
    assert_text("stderr", outcome.err, kill_case->call);
    outcome_fini(&outcome);

    wait_status(group.daemons[0], "UNCONFIGURED", 10000);
    assert_survivor_names(group.daemons[0], "rank 1", kill_case->call);
    rk_proc_destroy(group.daemons[1]);
    group.daemons[1] = start_daemon_on(1, NULL);
    name_hosts(&group);
    assert_run_succeeds(&group);
    stop_group(&group);
    rk_free(dir);
}

static void test_run_rank_killed_in_an_update_is_named_and_the_other_goes_on(void **state)
{
    (void)state;
    kill_during(&(const struct kill_case){
        .call = "actor.update_actor", .keys = {"actor_rollout_ref.actor.ppo_epochs=1000"}, .after_ms = 200});
}

/* Thousands of responses, two at a time: on GPUs most steps then run as graphs. */
static void test_run_rank_killed_in_a_generation_is_named_and_the_other_goes_on(void **state)
{
    (void)state;
    kill_during(&(const struct kill_case){.call = "rollout.generate_sequences",
                                          .keys = {"actor_rollout_ref.rollout.n=8192",
                                                   "actor_rollout_ref.rollout.max_num_seqs=2",
                                                   "actor_rollout_ref.rollout.ignore_eos=true"},
                                          .after_ms = 1500});
}

static double peak_gb(const char *dir, int64_t from, int64_t to)
{
    double peak = 0.0;

    for (int64_t step = from; step <= to; step++) {
        struct rk_json *metrics = read_metrics(dir, step);
        double value = metric(metrics, "perf/max_memory_allocated_gb");

        peak = value > peak ? value : peak;
        rk_json_free(metrics);
    }
    return peak;
}

/* Goal: device memory after 200 steps (on the CPU 60, because sanitizers are slow) equals that after the
 * first 20, to the byte. */
static void test_run_of_many_steps_leaves_device_memory_flat(void **state)
{
    bool is_cpu = !is_on_gpus();
    const char *steps = is_cpu ? "trainer.total_training_steps=60" : "trainer.total_training_steps=200";
    char *dir = new_run_dir();
    const char *const args[] = {"run",       TINY_JOB, "--local", "2",   "--quiet",
                                "--run-dir", dir,      TINY,      steps, NULL};
    struct outcome outcome = finish_rankctl(start_rankctl(args), 120000);
    double early, late;

    (void)state;
    assert_exit(&outcome, 0);
    early = peak_gb(dir, 1, 20);
    late = peak_gb(dir, 21, count_metrics(dir));
    print_message("device memory of the fullest rank: %.9f GiB in steps 1 to 20, %.9f GiB in %lld more\n",
                  early, late, (long long)count_metrics(dir) - 20);
    assert_true(early > 0.0);
    assert_true(late <= early);
    outcome_fini(&outcome);
    rk_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run_rank_killed_in_an_update_is_named_and_the_other_goes_on),
        cmocka_unit_test(test_run_rank_killed_in_a_generation_is_named_and_the_other_goes_on),
        cmocka_unit_test(test_run_of_many_steps_leaves_device_memory_flat),
    };

    skip_without_devices(NUM_DAEMONS);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
