/* Runs that end early: Ctrl-C, killed and frozen daemons, a killed driver, a second driver. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "base/rk_time.h"
#include "tests/proc/cli_fixture.h"

#define NUM_DAEMONS 2
#define LONG_RUN    "trainer.total_training_steps=100000"
#define FIRST_STEP  "step 1/100000"
/* A mesh that differs from the actor's. */
#define OTHER_ROLLOUT "actor_rollout_ref.rollout.tensor_model_parallel_size=1"

/* `override`: one more; NULL: none. */
static struct rk_proc *start_long_run_with(const char *where, const char *value, const char *dir,
                                           const char *override)
{
    const char *const args[] = {"run", TINY_JOB, where,    value,    "--run-dir",
                                dir,   TINY,     LONG_RUN, override, NULL};

    return start_rankctl(args);
}

static struct rk_proc *start_long_run(const char *where, const char *value, const char *dir)
{
    return start_long_run_with(where, value, dir, NULL);
}

static struct rk_proc *start_local_run(const char *dir, pid_t *daemons)
{
    struct rk_proc *run = start_long_run("--local", "2", dir);

    wait_stderr(run, FIRST_STEP, 30000);
    find_daemons(run, daemons, NUM_DAEMONS);
    return run;
}

static void assert_summary(const char *dir, const char *status)
{
    struct rk_json *summary = read_json(dir, "summary.json");

    assert_string_equal(rk_json_as_string(rk_json_find(summary, "status"), ""), status);
    assert_true(rk_json_as_int(rk_json_find(summary, "num_steps"), 0) >= 1);
    rk_json_free(summary);
}

static void assert_model(const char *dir)
{
    char *path = rk_path_join(dir, "hf/model.safetensors");

    assert_int_equal(access(path, R_OK), 0);
    rk_free(path);
}

static bool has_variable(pid_t pid, const char *variable)
{
    char *path = rk_format("/proc/%d/environ", (int)pid);
    size_t bytes;
    char *text = rk_test_read_file(path, &bytes);
    bool has = memmem(text, bytes, variable, strlen(variable) + 1) != NULL; /* including the terminating 0 */

    rk_free(text);
    rk_free(path);
    return has;
}

/* Goal: OpenMP threads of daemons that share the cores do not spin, unless the user configures it. */
static void test_run_local_daemons_wait_asleep(void **state)
{
    static const struct {
        const char *set, *expected;
    } cases[] = {{NULL, "OMP_WAIT_POLICY=passive"}, {"active", "OMP_WAIT_POLICY=active"}};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        char *dir = new_run_dir();
        pid_t daemons[NUM_DAEMONS];
        struct rk_proc *run;
        struct outcome outcome;

        if (cases[i].set)
            setenv("OMP_WAIT_POLICY", cases[i].set, 1);
        else
            unsetenv("OMP_WAIT_POLICY");
        run = start_local_run(dir, daemons);
        unsetenv("OMP_WAIT_POLICY");
        for (int d = 0; d < NUM_DAEMONS; d++)
            assert_true(has_variable(daemons[d], cases[i].expected));
        rk_proc_signal(run, SIGINT);
        outcome = finish_rankctl(run, 10000);
        assert_exit(&outcome, -SIGINT);
        outcome_fini(&outcome);
        rk_free(dir);
    }
}

struct signal_case {
    const char *label;
    int signum;
};

/* Goal: Ctrl-C (and SIGTERM, and SIGHUP) cancels the running call, saves the model, writes the summary, stops
 * the daemons and terminates by the signal. */
static void test_run_interrupted_stops_everything_and_dies_by_the_signal(void **state)
{
    static const struct signal_case cases[] = {
        {"Ctrl-C", SIGINT}, {"SIGTERM", SIGTERM}, {"closed terminal", SIGHUP}};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        char *dir = new_run_dir();
        pid_t daemons[NUM_DAEMONS];
        struct rk_proc *run = start_local_run(dir, daemons);
        struct outcome outcome;

        print_message("%s\n", cases[i].label);
        rk_proc_signal(run, cases[i].signum);
        outcome = finish_rankctl(run, 10000);
        assert_exit(&outcome, -cases[i].signum);
        assert_text("stderr", outcome.err, "interrupted");
        assert_gone(daemons, NUM_DAEMONS, 1000);
        assert_summary(dir, "interrupted");
        assert_model(dir);
        outcome_fini(&outcome);
        rk_free(dir);
    }
}

/* Goal: under nohup a closed terminal does not end the run. */
static void test_run_under_nohup_ignores_a_closed_terminal(void **state)
{
    char *dir = new_run_dir();
    pid_t daemons[NUM_DAEMONS];
    struct rk_proc *run;
    struct outcome outcome;

    (void)state;
    signal(SIGHUP, SIG_IGN);
    run = start_local_run(dir, daemons);
    signal(SIGHUP, SIG_DFL);
    rk_proc_signal(run, SIGHUP);
    wait_stderr(run, "step 3/100000", 30000);
    rk_proc_signal(run, SIGINT);
    outcome = finish_rankctl(run, 10000);
    assert_exit(&outcome, -SIGINT);
    outcome_fini(&outcome);
    rk_free(dir);
}

/* Goal: a killed daemon fails the run within 10 s; the message has its rank and its exit status. */
static void test_run_daemon_killed_fails_naming_the_rank(void **state)
{
    char *dir = new_run_dir();
    pid_t daemons[NUM_DAEMONS];
    struct rk_proc *run = start_local_run(dir, daemons);
    struct outcome outcome;

    (void)state;
    kill(daemons[1], SIGKILL);
    outcome = finish_rankctl(run, 10000);
    assert_exit(&outcome, 1);
    assert_text("stderr", outcome.err, "worker 1 (unix:");
    assert_text("stderr", outcome.err, "rank 1): UNAVAILABLE");
    assert_text("stderr", outcome.err, "was killed by signal 9; its log is ");
    assert_gone(daemons, NUM_DAEMONS, 1000);
    assert_summary(dir, "failed");
    outcome_fini(&outcome);
    rk_free(dir);
}

/* Goal: the keepalive (8 s) detects a stopped daemon, and the error names it. */
static void test_run_daemon_frozen_fails_naming_the_rank(void **state)
{
    char *dir = new_run_dir();
    pid_t daemons[NUM_DAEMONS];
    struct rk_proc *run = start_local_run(dir, daemons);
    struct outcome outcome;

    (void)state;
    kill(daemons[1], SIGSTOP);
    outcome = finish_rankctl(run, 25000);
    assert_exit(&outcome, 1);
    assert_text("stderr", outcome.err, "worker 1 (unix:");
    assert_text("stderr", outcome.err, "rank 1): UNAVAILABLE");
    assert_gone(daemons, NUM_DAEMONS, 1000);
    outcome_fini(&outcome);
    rk_free(dir);
}

/* Goal: no daemon of --local outlives its driver, for every end of the driver. */
static void test_run_driver_killed_takes_its_daemons_along(void **state)
{
    char *dir = new_run_dir();
    pid_t daemons[NUM_DAEMONS];
    struct rk_proc *run = start_local_run(dir, daemons);
    struct outcome outcome;

    (void)state;
    rk_proc_signal(run, SIGKILL);
    outcome = finish_rankctl(run, 2000);
    assert_exit(&outcome, -SIGKILL);
    assert_gone(daemons, NUM_DAEMONS, 2000);
    outcome_fini(&outcome);
    rk_free(dir);
}

/* Goal: configuration of this machine's daemons and environment variables of rankctl's service manager do not
 * affect --local daemons: otherwise none of these runs would begin. */
static void test_run_local_daemons_are_configured_by_their_run_alone(void **state)
{
    static const char *const variables[][2] = {
        {"RANKD_RPC_TOKEN_FILE", "/does/not/exist"},
        {"RANKD_LIMITS_DEVICE_MEMORY", "1MiB"},
        {"RANKD_DEVICE", "cuda:99"},
        {"RUNTIME_DIRECTORY", "/does/not/exist"},
        {"STATE_DIRECTORY", "/does/not/exist"},
    };
    char *dir = new_run_dir();
    pid_t daemons[NUM_DAEMONS];
    struct rk_proc *run;
    struct outcome outcome;
    char *config, *command;
    size_t bytes;

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(variables); i++)
        setenv(variables[i][0], variables[i][1], 1);
    run = start_local_run(dir, daemons);
    for (size_t i = 0; i < RK_ARRAY_LEN(variables); i++)
        unsetenv(variables[i][0]);
    config = rk_format("/proc/%d/cmdline", (int)daemons[0]);
    command = rk_test_read_file(config, &bytes);
    assert_non_null(memmem(command, bytes, "--config=", strlen("--config=")));
    rk_proc_signal(run, SIGINT);
    outcome = finish_rankctl(run, 10000);
    assert_exit(&outcome, -SIGINT);
    outcome_fini(&outcome);
    rk_free(command);
    rk_free(config);
    rk_free(dir);
}

/* Goal: a run removes its private directory at its end. The next run removes that of a driver that was
 * killed, once the daemons of that driver have ended, and keeps that of a driver that still runs. */
static void test_run_directory_of_killed_driver_is_removed_by_the_next(void **state)
{
    char *root = rk_test_temp_path("x"), *dirs[] = {new_run_dir(), new_run_dir(), new_run_dir()};
    struct rk_proc *runs[2];
    pid_t daemons[3][NUM_DAEMONS];
    struct outcome outcome;

    (void)state;
    assert_int_equal(mkdir(root, 0700), 0);
    setenv("XDG_RUNTIME_DIR", root, 1);
    runs[0] = start_local_run(dirs[0], daemons[0]);
    assert_int_equal(rk_test_count_entries(root), 1);
    runs[1] = start_local_run(dirs[1], daemons[1]);
    assert_int_equal(rk_test_count_entries(root), 2);
    for (int i = 0; i < 2; i++) {
        rk_proc_signal(runs[i], SIGKILL);
        outcome = finish_rankctl(runs[i], 2000);
        outcome_fini(&outcome);
        assert_gone(daemons[i], NUM_DAEMONS, 10000);
    }
    assert_int_equal(rk_test_count_entries(root), 2);
    runs[0] = start_local_run(dirs[2], daemons[2]);
    assert_int_equal(rk_test_count_entries(root), 1);
    unsetenv("XDG_RUNTIME_DIR");
    rk_proc_signal(runs[0], SIGINT);
    outcome = finish_rankctl(runs[0], 10000);
    assert_exit(&outcome, -SIGINT);
    if (rk_test_count_entries(root) !=
        0) /* daemons that were left behind with the model keep it, for example */
        fail_msg("the run left its directory behind: %s", outcome.err);
    outcome_fini(&outcome);
    for (int i = 0; i < 3; i++)
        rk_free(dirs[i]);
    rk_free(root);
}

/* --- daemons of --hosts --- */

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
    struct group group = {0};

    for (int i = 0; i < NUM_DAEMONS; i++)
        group.daemons[i] = start_daemon(NULL);
    name_hosts(&group);
    return group;
}

static void stop_group(struct group *group)
{
    for (int i = 0; i < NUM_DAEMONS; i++)
        rk_proc_destroy(group->daemons[i]);
    rk_free(group->hosts);
}

static void assert_run_succeeds(const struct group *group)
{
    char *dir = new_run_dir();
    const char *const args[] = {"run", TINY_JOB, "--hosts", group->hosts, "--run-dir", dir, TINY, NULL};
    struct outcome outcome = run_rankctl(args);

    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    rk_free(dir);
}

/* Goal: a second driver is rejected with exit code 4 and the holder's name; the first is not affected. */
static void test_run_second_driver_is_refused_and_first_unharmed(void **state)
{
    struct group group = start_group();
    char *first_dir = new_run_dir(), *second_dir = new_run_dir();
    const char *const steps = "trainer.total_training_steps=40";
    const char *const args[] = {"run",     TINY_JOB, "--hosts", group.hosts, "--run-dir",
                                first_dir, TINY,     steps,     NULL};
    struct rk_proc *first = start_rankctl(args);
    struct outcome outcome;

    (void)state;
    wait_stderr(first, "step 1/40", 30000);
    outcome = finish_rankctl(start_long_run("--hosts", group.hosts, second_dir), 10000);
    assert_exit(&outcome, 4);
    assert_text("stderr", outcome.err, "LEASE_HELD");
    outcome_fini(&outcome);
    outcome = finish_rankctl(first, 60000);
    assert_exit(&outcome, 0);
    assert_int_equal(count_metrics(first_dir), 40);
    outcome_fini(&outcome);
    stop_group(&group);
    rk_free(first_dir);
    rk_free(second_dir);
}

/* Goal: --takeover ends the first driver's run (exit code 4: its lease is lost) and starts its own. */
static void test_run_takeover_fences_the_first_driver_out(void **state)
{
    struct group group = start_group();
    char *first_dir = new_run_dir(), *second_dir = new_run_dir();
    const char *const args[] = {"run",       TINY_JOB,   "--hosts", group.hosts, "--takeover",
                                "--run-dir", second_dir, TINY,      NULL};
    struct rk_proc *first = start_long_run("--hosts", group.hosts, first_dir);
    struct outcome outcome;

    (void)state;
    wait_stderr(first, FIRST_STEP, 30000);
    outcome = run_rankctl(args);
    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    outcome = finish_rankctl(first, 10000);
    assert_true(outcome.code == 4 ||
                outcome.code == 1); /* refused, or its call was aborted by the new epoch */
    assert_null(strstr(outcome.err, "keep the model")); /* they now have the other driver's model */
    outcome_fini(&outcome);
    stop_group(&group);
    rk_free(first_dir);
    rk_free(second_dir);
}

/* Goal: after one daemon was killed in a call, the other stays usable: it answers, and with a new second
 * daemon it takes part in the next run. */
static void test_run_daemon_killed_leaves_the_others_usable(void **state)
{
    struct group group = start_group();
    char *dir = new_run_dir();
    struct rk_proc *run = start_long_run("--hosts", group.hosts, dir);
    const char *const status_args[] = {"status", "--output=json", "--hosts",
                                       rk_proc_address(group.daemons[0]), NULL};
    struct outcome outcome;

    (void)state;
    wait_stderr(run, FIRST_STEP, 30000);
    rk_proc_signal(group.daemons[1], SIGKILL);
    outcome = finish_rankctl(run, 10000);
    assert_exit(&outcome, 1);
    assert_text("stderr", outcome.err, "rank 1): UNAVAILABLE");
    outcome_fini(&outcome);
    outcome = run_rankctl(status_args);
    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    rk_proc_destroy(group.daemons[1]);
    group.daemons[1] = start_daemon(NULL);
    name_hosts(&group);
    assert_run_succeeds(&group);
    stop_group(&group);
    rk_free(dir);
}

#ifdef RK_FAULTS
#define PARAM_OFFLOAD "actor_rollout_ref.actor.megatron.param_offload=true"

struct fault_case {
    const char *label, *fault, *message;
    bool is_alive; /* the faulty daemon survives and is used again */
    const char *override;
};

/* Goal: when one rank fails in the middle of a call, at any stage, the error names it; the others, which wait
 * in collectives, are released and serve the next run. */
static void test_run_rank_failing_alone_is_named_and_others_stay_usable(void **state)
{
    static const struct fault_case cases[] = {
        {"between accept and commit", "daemon.commit=fail@5", "rank 1): INTERNAL: fault point daemon.commit",
         true, NULL},
        {"before the method", "worker.before_method=fail@4", "fault point worker.before_method", true, NULL},
        {"in the optimizer step", "optim.step=fail", "fault point optim.step", true, NULL},
        {"killed in the optimizer step", "optim.step=kill", "rank 1): UNAVAILABLE", false, NULL},
        {"while parameters leave the device", "offload.copy=fail@3", "fault point offload.copy", true,
         PARAM_OFFLOAD},
        {"killed while parameters leave the device", "offload.copy=kill@3", "rank 1): UNAVAILABLE", false,
         PARAM_OFFLOAD},
        {"in an update of the weights", "reshard.round=fail@2", "fault point reshard.round", true,
         OTHER_ROLLOUT},
        {"killed in an update of the weights", "reshard.round=kill@2", "rank 1): UNAVAILABLE", false,
         OTHER_ROLLOUT},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct group group = {{start_daemon(NULL), NULL}, NULL};
        char *dir = new_run_dir();
        struct outcome outcome;

        print_message("%s\n", cases[i].label);
        setenv("RANKD_FAULTS", cases[i].fault, 1);
        group.daemons[1] = start_daemon(NULL);
        unsetenv("RANKD_FAULTS");
        name_hosts(&group);
        outcome = finish_rankctl(start_long_run_with("--hosts", group.hosts, dir, cases[i].override), 20000);
        assert_exit(&outcome, 1);
        assert_text("stderr", outcome.err, "worker 1 (unix:");
        assert_text("stderr", outcome.err, cases[i].message);
        outcome_fini(&outcome);
        if (!cases[i].is_alive) {
            rk_proc_destroy(group.daemons[1]);
            group.daemons[1] = start_daemon(NULL);
            name_hosts(&group);
        }
        assert_run_succeeds(&group);
        stop_group(&group);
        rk_free(dir);
    }
}

/* Goal: a changed bit on one rank fails the run before its checkpoint, with the tensor and the rank. */
static void test_run_with_replicas_that_differ_ends(void **state)
{
    struct group group = {{start_daemon(NULL), NULL}, NULL};
    char *dir = new_run_dir();
    struct outcome outcome;

    (void)state;
    setenv("RANKD_FAULTS", "optim.flip=fail@3", 1);
    group.daemons[1] = start_daemon(NULL);
    unsetenv("RANKD_FAULTS");
    name_hosts(&group);
    outcome =
        finish_rankctl(start_long_run_with("--hosts", group.hosts, dir, "trainer.verify_replicas=1"), 20000);
    assert_exit(&outcome, 1);
    assert_text("stderr", outcome.err,
                "replicas of the weights differ: 'model.norm.weight' (outside the "
                "layers) of rank 1 is not that of rank 0");
    assert_int_equal(count_metrics(dir), 1); /* a step of the run has two optimizer steps */
    outcome_fini(&outcome);
    assert_run_succeeds(&group);
    stop_group(&group);
    rk_free(dir);
}

/* Goal: a second Ctrl-C does not wait for a call that does not stop: rankctl prints the request and exits,
 * and the call continues. Method: from its 9th method on (the second generate), one daemon sleeps before it
 * begins. */
static void test_run_interrupted_twice_detaches_from_the_call(void **state)
{
    struct group group = {{start_daemon(NULL), NULL}, NULL};
    char *dir = new_run_dir();
    struct rk_proc *run;
    struct outcome outcome;

    (void)state;
    setenv("RANKD_FAULTS", "worker.before_method=sleep:8s@9", 1);
    group.daemons[1] = start_daemon(NULL);
    unsetenv("RANKD_FAULTS");
    name_hosts(&group);
    run = start_long_run("--hosts", group.hosts, dir);
    wait_stderr(run, FIRST_STEP, 30000);
    rk_time_sleep_ms(1000);
    rk_proc_signal(run, SIGINT);
    rk_time_sleep_ms(500);
    assert_true(rk_proc_is_running(run));
    rk_proc_signal(run, SIGINT);
    outcome = finish_rankctl(run, 3000);
    assert_exit(&outcome, -SIGINT);
    assert_text("stderr", outcome.err, "detached; request ");
    outcome_fini(&outcome);
    outcome = run_rankctl((const char *const[]){"status", "--hosts", group.hosts, NULL});
    assert_exit(&outcome, 0);
    assert_text("stdout", outcome.out, "rollout.generate_sequences");
    outcome_fini(&outcome);
    stop_group(&group);
    rk_free(dir);
}

/* Goal: after the same with --local nothing continues, and the message says so. */
static void test_stop_twice_of_local_daemons_says_that_they_end(void **state)
{
    char *dir = new_run_dir();
    struct rk_proc *run;
    struct outcome outcome;

    (void)state;
    setenv("RANKD_FAULTS", "worker.before_method=sleep:60s@9", 1);
    run = start_long_run("--local", "2", dir);
    unsetenv("RANKD_FAULTS");
    wait_stderr(run, FIRST_STEP, 30000);
    rk_time_sleep_ms(1000);
    rk_proc_signal(run, SIGINT);
    rk_time_sleep_ms(500);
    rk_proc_signal(run, SIGINT);
    outcome = finish_rankctl(run, 20000);
    assert_exit(&outcome, -SIGINT);
    assert_text("stderr", outcome.err, "interrupted twice: the daemons of --local are stopped");
    outcome_fini(&outcome);
    rk_free(dir);
}
#endif

/* Goal: an interrupted driver releases the lease at once, and the daemons serve the next driver. */
static void test_run_interrupted_on_hosts_releases_the_daemons(void **state)
{
    struct group group = start_group();
    char *dir = new_run_dir();
    struct rk_proc *run = start_long_run("--hosts", group.hosts, dir);
    struct outcome outcome;

    (void)state;
    wait_stderr(run, FIRST_STEP, 30000);
    rk_proc_signal(run, SIGINT);
    outcome = finish_rankctl(run, 10000);
    assert_exit(&outcome, -SIGINT);
    outcome_fini(&outcome);
    assert_run_succeeds(&group);
    stop_group(&group);
    rk_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run_interrupted_stops_everything_and_dies_by_the_signal),
        cmocka_unit_test(test_run_local_daemons_wait_asleep),
        cmocka_unit_test(test_run_under_nohup_ignores_a_closed_terminal),
        cmocka_unit_test(test_run_daemon_killed_fails_naming_the_rank),
        cmocka_unit_test(test_run_daemon_frozen_fails_naming_the_rank),
        cmocka_unit_test(test_run_driver_killed_takes_its_daemons_along),
        cmocka_unit_test(test_run_local_daemons_are_configured_by_their_run_alone),
        cmocka_unit_test(test_run_directory_of_killed_driver_is_removed_by_the_next),
        cmocka_unit_test(test_run_second_driver_is_refused_and_first_unharmed),
        cmocka_unit_test(test_run_takeover_fences_the_first_driver_out),
        cmocka_unit_test(test_run_daemon_killed_leaves_the_others_usable),
#ifdef RK_FAULTS
        cmocka_unit_test(test_run_rank_failing_alone_is_named_and_others_stay_usable),
        cmocka_unit_test(test_run_with_replicas_that_differ_ends),
        cmocka_unit_test(test_run_interrupted_twice_detaches_from_the_call),
        cmocka_unit_test(test_stop_twice_of_local_daemons_says_that_they_end),
#endif
        cmocka_unit_test(test_run_interrupted_on_hosts_releases_the_daemons),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
