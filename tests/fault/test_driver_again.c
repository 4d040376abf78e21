/* A driver that has lost a daemon of its lease, or was killed, and reconnects. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_arena.h"
#include "base/config/rk_config.h"
#include "base/rk_env.h"
#include "base/rk_time.h"
#include "driver/rk_driver.h"
#include "tests/proc/cli_fixture.h"

#define NUM_DAEMONS 2
/* Much less than the remaining time of the leases below, from the time on when the daemons answer. */
#define AT_ONCE_MS 6000
#define ANSWER_MS  60000

struct group {
    struct rk_proc *daemons[NUM_DAEMONS];
    const char *addresses[NUM_DAEMONS];
    char *hosts;
};

static void start_group(struct group *group)
{
    for (int i = 0; i < NUM_DAEMONS; i++) {
        group->daemons[i] = start_daemon(NULL);
        group->addresses[i] = rk_proc_address(group->daemons[i]);
    }
    group->hosts = rk_format("%s,%s", group->addresses[0], group->addresses[1]);
}

static void stop_group(struct group *group)
{
    for (int i = 0; i < NUM_DAEMONS; i++)
        rk_proc_destroy(group->daemons[i]);
    rk_free(group->hosts);
}

static struct rk_driver *open_driver(const struct group *group)
{
    struct rk_driver_config config = {.struct_size = sizeof(config),
                                      .addresses = group->addresses,
                                      .num_addresses = NUM_DAEMONS,
                                      .lease_ttl_ms = 120000,
                                      .control_timeout_ms = 3000};
    struct rk_driver *driver;

    assert_ok(rk_driver_open(&driver, &config));
    return driver;
}

static bool all_answer(struct rk_driver *driver, struct rk_arena *arena)
{
    struct rk_driver_worker workers[NUM_DAEMONS];
    bool answer = true;

    rk_driver_get_status(driver, arena, workers);
    for (int i = 0; i < NUM_DAEMONS; i++) {
        answer = answer && !workers[i].error;
        rk_status_free(workers[i].error);
    }
    return answer;
}

/* Keepalive may have closed connections to a stopped process, and an attempt to open one, which waits for the
 * peer's settings, may have begun before it continued: how long gRPC takes to begin the next says nothing
 * about leases. */
static void wait_for_answers(struct rk_driver *driver)
{
    int64_t end_ns = rk_time_now_ns() + rk_proc_timeout_ms(ANSWER_MS) * 1000000;
    struct rk_arena *arena = rk_arena_create(16384, 0);

    while (!all_answer(driver, arena)) {
        assert_true(rk_time_now_ns() < end_ns);
        rk_time_sleep_ms(50);
        rk_arena_reset(arena);
    }
    rk_arena_destroy(arena);
}

/* Retries while daemons are unreachable. Other errors are returned. */
static struct rk_status *claim(struct rk_driver *driver, int64_t timeout_ms)
{
    int64_t end_ns = rk_time_now_ns() + rk_proc_timeout_ms(timeout_ms) * 1000000;
    struct rk_status *st;

    for (;;) {
        st = rk_driver_claim(driver);
        if (!st || rk_time_now_ns() > end_ns ||
            (rk_status_code(st) != RK_UNAVAILABLE && rk_status_code(st) != RK_DEADLINE_EXCEEDED))
            return st;
        rk_status_free(st);
        rk_time_sleep_ms(50);
    }
}

/* Goal: a daemon that was silent, so that its driver could not give the lease back, is claimed by the same
 * driver as soon as it answers, and by no other before it is free. Method: SIGSTOP while the driver releases;
 * leases of two minutes. */
static void test_driver_claims_a_lost_daemon_again(void **state)
{
    const struct rk_role_mesh mesh = {.role = "actor", .mesh = {.dp = NUM_DAEMONS}};
    struct rk_driver_call_args args = {.role = "actor", .method = "get_mesh_info"};
    struct rk_driver_result result;
    struct rk_driver *driver, *other;
    struct group group;
    struct rk_status *st;

    (void)state;
    start_group(&group);
    driver = open_driver(&group);
    assert_ok(rk_driver_claim(driver));
    rk_proc_signal(group.daemons[1], SIGSTOP);
    st = rk_driver_claim(driver);
    assert_non_null(st);
    rk_status_free(st);
    rk_proc_signal(group.daemons[1], SIGCONT);

    other = open_driver(&group);
    wait_for_answers(other);
    st = claim(other, AT_ONCE_MS);
    if (st) { /* else the daemon has read the release, which had ended at its deadline, and is free */
        assert_int_equal(rk_status_code(st), RK_FAILED_PRECONDITION);
        assert_string_equal(rk_status_reason(st), "LEASE_HELD");
    }
    rk_status_free(st);
    rk_driver_close(other);

    wait_for_answers(driver);
    assert_ok(claim(driver, AT_ONCE_MS));
    assert_ok(rk_driver_configure(driver, &mesh, 1));
    assert_ok(rk_driver_call(driver, &args, &result));
    rk_driver_result_fini(&result);
    rk_driver_close(driver);
    stop_group(&group);
}

/* Goal: a rankctl that was killed while it held daemons works at once when it is restarted; one with another
 * user's files is rejected until the lease expires. Method: kill -9 in the middle of a run. */
static void test_rankctl_resumes_after_a_kill(void **state)
{
    const char *const call[] = {"call", "actor.get_mesh_info", "--hosts", NULL, NULL};
    const char *run[] = {"run",       TINY_JOB, "--hosts", NULL,
                         "--run-dir", NULL,     TINY,      "trainer.total_training_steps=100000",
                         NULL};
    const char *again[RK_ARRAY_LEN(call)];
    char *dir = new_run_dir(), *own_state, *other_state = rk_test_temp_path("other-state");
    struct outcome outcome;
    struct rk_proc *proc;
    struct group group;

    (void)state;
    start_group(&group);
    memcpy(again, call, sizeof(call));
    again[3] = run[3] = group.hosts;
    run[5] = dir;
    proc = start_rankctl(run);
    own_state = rk_strdup(rk_env("XDG_STATE_HOME"));
    wait_stderr(proc, "step 1/", 60000);
    rk_proc_destroy(proc); /* kills it */

    assert_int_equal(setenv("XDG_STATE_HOME", other_state, 1), 0);
    outcome = run_rankctl(again);
    assert_exit(&outcome, 4);
    outcome_fini(&outcome);
    assert_int_equal(setenv("XDG_STATE_HOME", own_state, 1), 0);
    outcome = run_rankctl(again);
    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    rk_free(own_state);
    rk_free(other_state);
    rk_free(dir);
    stop_group(&group);
}

static struct rk_proc *start_endless_run(const char *hosts, const char *dir)
{
    struct rk_proc *proc =
        start_rankctl((const char *const[]){"run", TINY_JOB, "--hosts", hosts, "--run-dir", dir, TINY,
                                            "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=1",
                                            "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
                                            "trainer.total_training_steps=100000", NULL});

    wait_stderr(proc, "step 1/", 60000);
    return proc;
}

/* Goal: the same beside other runs of the user: of two runs the first ends, the second is killed and started
 * again at once; and while a run drives its daemons, a second rankctl of the user does not get them. */
static void test_rankctl_resumes_beside_others(void **state)
{
    struct rk_proc *daemons[2] = {start_daemon(NULL), start_daemon(NULL)}, *runs[2];
    const char *call[] = {"call", "actor.get_mesh_info", "--hosts", rk_proc_address(daemons[1]), NULL};
    struct outcome outcome;

    (void)state;
    for (int i = 0; i < 2; i++) {
        char *dir = new_run_dir();

        runs[i] = start_endless_run(rk_proc_address(daemons[i]), dir);
        rk_free(dir);
    }
    outcome = run_rankctl(call);
    assert_exit(&outcome, 4);
    outcome_fini(&outcome);
    rk_proc_signal(runs[0], SIGINT);
    outcome = finish_rankctl(runs[0], 60000);
    assert_exit(&outcome, -SIGINT);
    outcome_fini(&outcome);
    rk_proc_destroy(runs[1]); /* kills it */
    outcome = run_rankctl(call);
    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    for (int i = 0; i < 2; i++)
        rk_proc_destroy(daemons[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_driver_claims_a_lost_daemon_again),
        cmocka_unit_test(test_rankctl_resumes_after_a_kill),
        cmocka_unit_test(test_rankctl_resumes_beside_others),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
