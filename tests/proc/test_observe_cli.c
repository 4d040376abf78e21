/* What rankctl shows of daemons at work: events. */
#include <signal.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "tests/proc/cli_fixture.h"

#define ARGS_MAX 12

struct pair {
    struct rk_proc *daemons[2];
    char *hosts;
};

static struct pair start_pair(void)
{
    struct pair pair = {.daemons = {start_daemon_on(0, NULL), start_daemon_on(1, NULL)}};

    pair.hosts = rk_format("%s,%s", rk_proc_address(pair.daemons[0]), rk_proc_address(pair.daemons[1]));
    return pair;
}

static void stop_pair(struct pair *pair)
{
    for (int i = 0; i < 2; i++) {
        rk_proc_signal(pair->daemons[i], SIGTERM);
        assert_int_equal(rk_proc_wait(pair->daemons[i], 20000), 0);
        rk_proc_destroy(pair->daemons[i]);
    }
    rk_free(pair->hosts);
}

static void run_job(const struct pair *pair)
{
    char *dir = new_run_dir(), *run_dir = rk_format("--run-dir=%s", dir);
    struct outcome outcome =
        run_rankctl((const char *const[]){"run", TINY_JOB, "--hosts", pair->hosts, run_dir, TINY, NULL});

    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    rk_free(run_dir);
    rk_free(dir);
}

/* Calls `on_line` with the object of every line. */
static int64_t for_each_line(const char *text, void (*on_line)(void *user, const struct rk_json *json),
                             void *user)
{
    int64_t count = 0;

    while (*text) {
        size_t bytes = strcspn(text, "\n");
        char *line = rk_strndup(text, bytes);
        struct rk_json *json = parse_json(line);

        on_line(user, json);
        rk_json_free(json);
        rk_free(line);
        text += bytes + (text[bytes] == '\n');
        count++;
    }
    return count;
}

struct seen {
    int64_t last_ns;
    int num_by_worker[2], num_metrics;
    bool has_granted[2], has_init[2], has_update[2];
};

static void look_at(void *user, const struct rk_json *json)
{
    struct seen *seen = user;
    const struct rk_json *fields = rk_json_find(json, "fields");
    const char *event = rk_json_as_string(rk_json_find(json, "event"), "");
    const char *method = rk_json_as_string(rk_json_find(fields, "method"), "");
    int64_t worker = rk_json_as_int(rk_json_find(json, "worker"), -1);
    int64_t unix_ns = rk_json_as_int(rk_json_find(json, "unix_ns"), 0);

    assert_in_range(worker, 0, 1);
    if (strcmp(event, "gap") != 0) {
        assert_true(unix_ns >= seen->last_ns);
        seen->last_ns = unix_ns;
    }
    seen->num_by_worker[worker]++;
    if (strcmp(event, "lease") == 0 &&
        strcmp(rk_json_as_string(rk_json_find(fields, "what"), ""), "granted") == 0)
        seen->has_granted[worker] = true;
    if (strcmp(event, "method_end") == 0) {
        assert_string_equal(rk_json_as_string(rk_json_find(fields, "code"), ""), "OK");
        seen->has_init[worker] |= strcmp(method, "actor.init_model") == 0;
        seen->has_update[worker] |= strcmp(method, "actor.update_actor") == 0;
    }
    if (strcmp(event, "metrics") == 0 && rk_json_find(fields, "actor/grad_norm"))
        seen->num_metrics++;
}

/* Goal: the events of a run on two daemons, in the order of time, as text and as objects. */
static void test_events_of_a_run_are_printed_in_order(void **state)
{
    struct pair pair = start_pair();
    struct seen seen = {0};
    struct outcome outcome;

    (void)state;
    run_job(&pair);
    outcome = run_rankctl((const char *const[]){"events", "--hosts", pair.hosts, "--output=json",
                                                "--kinds=state,lease,method_end,metrics", NULL});
    assert_exit(&outcome, 0);
    for_each_line(outcome.out, look_at, &seen);
    outcome_fini(&outcome);
    for (int i = 0; i < 2; i++) {
        assert_true(seen.num_by_worker[i] > 0);
        assert_true(seen.has_granted[i]);
        assert_true(seen.has_init[i]);
        assert_true(seen.has_update[i]);
    }
    assert_true(seen.num_metrics >= TINY_STEPS);

    outcome = run_rankctl((const char *const[]){"events", "--hosts", pair.hosts, "--level=error", NULL});
    assert_exit(&outcome, 0);
    assert_text("stdout", outcome.out, "worker 1 method_end   actor.update_actor: OK");
    assert_text("stdout", outcome.out, "worker 0 state        READY -> BUSY");
    assert_null(strstr(outcome.out, " log "));
    outcome_fini(&outcome);
    outcome = run_rankctl((const char *const[]){"events", "--hosts", pair.hosts, "--kinds=state,rain", NULL});
    assert_exit(&outcome, 2);
    assert_text("stderr", outcome.err, "unknown kind of event 'rain'");
    outcome_fini(&outcome);
    stop_pair(&pair);
}

/* Goal: what is printed while it happens ends for a daemon that goes down, and goes on for the others until
 * it is interrupted. */
static void test_events_follow_until_interrupted(void **state)
{
    struct pair pair = start_pair();
    struct rk_proc *rankctl =
        start_rankctl((const char *const[]){"events", "--hosts", pair.hosts, "--follow", "--new", NULL});
    struct outcome outcome;

    (void)state;
    rk_proc_wait_output(rankctl, "worker 0 state        UNCONFIGURED", 20000);
    rk_proc_wait_output(rankctl, "worker 1 state        UNCONFIGURED", 20000);
    rk_proc_signal(pair.daemons[0], SIGTERM);
    rk_proc_wait_output(rankctl, "worker 0 state        UNCONFIGURED -> DRAINING", 20000);
    wait_stderr(rankctl, "no more events of worker 0", 20000);
    rk_proc_signal(pair.daemons[1], SIGHUP);
    rk_proc_wait_output(rankctl, "worker 1 log          info  reloaded", 20000);
    rk_proc_signal(rankctl, SIGINT);
    outcome = finish_rankctl(rankctl, 20000);
    assert_int_equal(outcome.code, -SIGINT);
    outcome_fini(&outcome);
    stop_pair(&pair);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_events_of_a_run_are_printed_in_order),
        cmocka_unit_test(test_events_follow_until_interrupted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
