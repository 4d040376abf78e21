/* A group that has lost a rank, which is then restarted without state: rankctl's messages. */
#include <signal.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_json.h"
#include "base/rk_str.h"
#include "tests/proc/cli_fixture.h"

struct group {
    struct rk_proc *daemons[2];
    char *listen; /* of the second daemon, to restart it */
    char *hosts;
};

static struct rk_proc *start_at(const char *listen)
{
    struct rk_proc *proc = rk_proc_start_rankd((const char *const[]){listen, "--cpu.num_threads=1", NULL});

    rk_proc_address(proc);
    return proc;
}

static void start_group(struct group *group)
{
    char *socket = rk_test_temp_path("second.sock");

    group->listen = rk_format("--rpc.listen=unix:%s", socket);
    group->daemons[0] = start_daemon(NULL);
    group->daemons[1] = start_at(group->listen);
    group->hosts = rk_format("%s,%s", rk_proc_address(group->daemons[0]), rk_proc_address(group->daemons[1]));
    rk_free(socket);
}

static void stop_group(struct group *group)
{
    for (int i = 0; i < 2; i++)
        rk_proc_destroy(group->daemons[i]);
    rk_free(group->listen);
    rk_free(group->hosts);
}

/* The group's part of `rankctl status`. */
static void assert_group(const struct group *group, int code, const char *expected)
{
    const char *const args[] = {"status", "--hosts", group->hosts, "--output=json", NULL};
    struct outcome outcome = run_rankctl(args);
    struct rk_json *status, *wanted = parse_json(expected);
    char *got;

    assert_exit(&outcome, code);
    status = parse_json(outcome.out);
    got = rk_json_dump(rk_json_find(status, "group"), 0, true);
    if (!rk_json_equal(rk_json_find(status, "group"), wanted))
        fail_msg("group is %s, expected %s", got, expected);
    rk_free(got);
    rk_json_free(wanted);
    rk_json_free(status);
    outcome_fini(&outcome);
}

/* The error of a call names both daemons and the reason. */
static void assert_call_explains(const struct group *group, int code)
{
    const char *const args[] = {"call",       "actor.get_mesh_info", "--hosts",
                                group->hosts, "--output=json",       NULL};
    struct outcome outcome = run_rankctl(args);
    struct rk_json *answer;
    const struct rk_json *error;

    assert_exit(&outcome, code);
    answer = parse_json(outcome.out);
    error = rk_json_find(answer, "error");
    assert_non_null(error);
    assert_string_equal(rk_json_as_string(rk_json_find(error, "reason"), ""), "GROUP_INCOMPLETE");
    for (int i = 0; i < 2; i++)
        assert_text("stderr", outcome.err, rk_proc_address(group->daemons[i]));
    rk_json_free(answer);
    outcome_fini(&outcome);
}

/* Goal: after a rank was lost, and after it was restarted, status and a call report which daemons hold which
 * parts and what to do. Method: two replicas of a tiny model, kill -9 of the second. */
static void test_lost_and_restarted_rank_is_explained(void **state)
{
    char *config = rk_test_read_file(RK_TEST_SOURCE_DIR "/examples/digits/config.json", NULL);
    char *hf_config = rk_format("model.hf_config=%s", config);
    struct outcome outcome;
    struct group group;
    char *address, *job = write_tp1_job(RK_TEST_SOURCE_DIR "/examples/digits/sft.json", "dp.json");

    (void)state;
    start_group(&group);
    outcome = run_rankctl((const char *const[]){"call", "actor.init_model", "--hosts", group.hosts, "--opt",
                                                hf_config, "--job", job, NULL});
    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    assert_group(&group, 0,
                 "{\"is_complete\": true, \"parts\": [\"held\", \"held\"], \"action\": \"none\", "
                 "\"actor_replica\": []}");

    address = rk_strdup(rk_proc_address(group.daemons[1]));
    rk_proc_signal(group.daemons[1], SIGKILL);
    assert_int_equal(rk_proc_wait(group.daemons[1], 10000), -SIGKILL);
    assert_group(&group, 3,
                 "{\"is_complete\": false, \"parts\": [\"held\", \"unreachable\"], \"action\": "
                 "\"start_daemons\", \"actor_replica\": [0]}");
    assert_call_explains(&group, 3);

    rk_proc_destroy(group.daemons[1]);
    group.daemons[1] = start_at(group.listen);
    assert_string_equal(rk_proc_address(group.daemons[1]), address);
    assert_group(&group, 0,
                 "{\"is_complete\": false, \"parts\": [\"held\", \"missing\"], \"action\": \"run_again\", "
                 "\"actor_replica\": [0]}");
    assert_call_explains(&group, 1);
    rk_free(address);
    rk_free(job);
    rk_free(hf_config);
    rk_free(config);
    stop_group(&group);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lost_and_restarted_rank_is_explained),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
