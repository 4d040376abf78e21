/* rankctl's commands to observe daemons: events, top, debug dump. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "base/rk_time.h"
#include "tests/proc/cli_fixture.h"

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

/* Goal: following events ends for a daemon that shuts down, and continues for the others until it is
 * interrupted. */
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

/* The flight recorder in the file; rk_json_free it. */
static struct rk_json *read_flight(const char *path)
{
    struct rk_json *json;

    assert_ok(rk_json_parse_file(&json, path, 16 << 20, 0));
    return json;
}

/* Operations of that kind and name that have ended with OK. */
static int64_t count_operations(const struct rk_json *flight, const char *kind, const char *what)
{
    const struct rk_json *list = rk_json_find(flight, "operations");
    int64_t count = 0, last_ns = 0;

    for (int64_t i = 0; i < rk_json_count(list); i++) {
        const struct rk_json *item = rk_json_at(list, i);
        int64_t begin_ns = rk_json_as_int(rk_json_find(item, "begin_ns"), 0);

        assert_true(begin_ns >= last_ns);
        last_ns = begin_ns;
        if (strcmp(rk_json_as_string(rk_json_find(item, "kind"), ""), kind) != 0 ||
            strcmp(rk_json_as_string(rk_json_find(item, "what"), ""), what) != 0 ||
            strcmp(rk_json_as_string(rk_json_find(item, "code"), ""), "OK") != 0)
            continue;
        assert_true(rk_json_as_int(rk_json_find(item, "end_ns"), 0) >= begin_ns);
        count++;
    }
    return count;
}

static void assert_flight_of_a_run(const struct rk_json *flight)
{
    assert_true(count_operations(flight, "call", "actor.init_model") > 0);
    assert_int_equal(count_operations(flight, "call", "actor.update_actor"), TINY_STEPS);
    assert_true(count_operations(flight, "collective", "all_reduce") > 0);
    assert_int_equal(count_operations(flight, "phase", "update_actor"), TINY_STEPS);
    assert_int_equal(count_operations(flight, "phase", "generate"), TINY_STEPS);
    assert_true(count_operations(flight, "lease", "granted") == 1);
    assert_true(count_operations(flight, "state", "BUSY") > 0);
}

static void extract(const char *tar)
{
    char *command = rk_format("tar -xf %s -C %s --strip-components=1", tar, rk_test_temp_dir());

    assert_int_equal(system(command), 0); // NOLINT: fixed words and a path of this test
    rk_free(command);
}

/* After a run both ranks have begun the same last collective; the text in the file equals the printed one. */
static void assert_equal_collectives(const char *printed)
{
    char *path = rk_path_join(rk_test_temp_dir(), "collectives.txt"), *text = rk_test_read_file(path, NULL);
    struct rk_json *json = read_json(rk_test_temp_dir(), "collectives.json");
    const struct rk_json *groups = rk_json_find(json, "groups");
    int64_t num_pairs = 0;

    assert_text("stdout", printed, text);
    for (int64_t i = 0; i < rk_json_count(groups); i++) {
        const struct rk_json *group = rk_json_at(groups, i), *ranks = rk_json_find(group, "ranks");

        assert_string_equal(rk_json_as_string(rk_json_find(group, "state"), ""), "equal");
        num_pairs += rk_json_count(ranks) == 2;
        for (int64_t j = 0; j < rk_json_count(ranks); j++) {
            assert_true(rk_json_as_int(rk_json_find(rk_json_at(ranks, j), "number"), 0) > 0);
            assert_int_equal(rk_json_as_int(rk_json_find(rk_json_at(ranks, j), "number"), 0),
                             rk_json_as_int(rk_json_find(rk_json_at(ranks, 0), "number"), -1));
        }
    }
    assert_true(num_pairs > 0);
    rk_json_free(json);
    rk_free(text);
    rk_free(path);
}

/* Goal: one file has all data of every daemon, and lists the data missing from an unreachable one. */
static void test_debug_dump_collects_all_daemons(void **state)
{
    char *tar = rk_test_temp_path("dump.tar"), *out = rk_format("--out=%s", tar), *hosts, *text;
    struct pair pair = start_pair();
    struct outcome outcome;
    struct rk_json *json;

    (void)state;
    run_job(&pair);
    outcome = run_rankctl((const char *const[]){"debug", "dump", "--hosts", pair.hosts, out, NULL});
    assert_exit(&outcome, 0);
    assert_text("stdout", outcome.out, "wrote ");
    assert_text("stdout", outcome.out, "collectives of 2 ranks: ");
    assert_text("stdout", outcome.out, ", 0 moving, 0 waiting for ranks, 0 with different operations\n");
    extract(tar);
    assert_equal_collectives(outcome.out);
    outcome_fini(&outcome);
    for (int i = 0; i < 2; i++) {
        char *dir = rk_format("%s/worker-%d", rk_test_temp_dir(), i),
             *path = rk_path_join(dir, "flight.json");

        json = read_flight(path);
        assert_string_equal(rk_json_as_string(rk_json_find(json, "state"), ""), "READY");
        assert_true(strlen(rk_json_as_string(rk_json_find(json, "version"), "")) > 0);
        assert_flight_of_a_run(rk_json_find(json, "flight"));
        rk_json_free(json);
        json = read_json(dir, "config.json");
        assert_string_equal(rk_json_as_string(rk_json_find(rk_json_find(json, "lease"), "ttl"), ""), "30s");
        rk_json_free(json);
        json = read_json(dir, "status.json");
        assert_string_equal(rk_json_as_string(rk_json_find(json, "state"), ""), "READY");
        rk_json_free(json);
        rk_free(path);
        path = rk_path_join(dir, "events.jsonl");
        text = rk_test_read_file(path, &(size_t){0});
        assert_text("events", text, "\"event\":\"method_end\"");
        assert_text("events", text, "\"event\":\"log\"");
        rk_free(text);
        rk_free(path);
        rk_free(dir);
    }
    /* An existing file is not overwritten; with an unreachable daemon, the rest is written. */
    outcome = run_rankctl((const char *const[]){"debug", "dump", "--hosts", pair.hosts, out, NULL});
    assert_exit(&outcome, 1);
    assert_text("stderr", outcome.err, "exists already");
    outcome_fini(&outcome);
    unlink(tar);
    hosts = rk_format("unix:/does/not/exist.sock,%s", rk_proc_address(pair.daemons[1]));
    outcome = run_rankctl((const char *const[]){"debug", "dump", "--hosts", hosts, out, NULL});
    assert_exit(&outcome, 3);
    outcome_fini(&outcome);
    extract(tar);
    json = read_json(rk_test_temp_dir(), "summary.json");
    assert_string_equal(
        rk_json_as_string(
            rk_json_find(rk_json_find(rk_json_at(rk_json_find(json, "workers"), 0), "error"), "code"), ""),
        "UNAVAILABLE");
    assert_true(rk_json_is_null(rk_json_find(rk_json_at(rk_json_find(json, "workers"), 1), "error")));
    rk_json_free(json);
    rk_free(hosts);
    rk_free(tar);
    rk_free(out);
    stop_pair(&pair);
}

/* Stops the second daemon during a call, so that the first one waits for it in a collective. */
static void stop_in_a_collective(const struct pair *pair)
{
    int64_t end_ns = rk_time_now_ns() + rk_proc_timeout_ms(60000) * 1000000;

    for (;;) {
        struct outcome outcome;
        bool is_waiting;

        rk_proc_signal(pair->daemons[1], SIGSTOP);
        rk_time_sleep_ms(300); /* the first one reaches the collective */
        outcome = run_rankctl(
            (const char *const[]){"top", "--hosts", rk_proc_address(pair->daemons[0]), "--once", NULL});
        assert_exit(&outcome, 0);
        is_waiting = strstr(outcome.out, " of group ") != NULL;
        outcome_fini(&outcome);
        if (is_waiting)
            return;
        rk_proc_signal(pair->daemons[1], SIGCONT);
        assert_true(rk_time_now_ns() < end_ns);
        rk_time_sleep_ms(20);
    }
}

/* Goal: when a rank is stopped, a dump shows the collective in which the other one waits for it. */
static void test_debug_dump_names_the_rank_without_progress(void **state)
{
    char *tar = rk_test_temp_path("still.tar"), *out = rk_format("--out=%s", tar), *dir = new_run_dir(),
         *run_dir = rk_format("--run-dir=%s", dir);
    struct pair pair = start_pair();
    struct rk_proc *rankctl = start_rankctl((const char *const[]){
        "run", TINY_JOB, "--hosts", pair.hosts, run_dir, TINY, "trainer.total_training_steps=100000", NULL});
    struct outcome outcome;

    (void)state;
    wait_stderr(rankctl, "step 1/", 120000);
    stop_in_a_collective(&pair);
    rk_time_sleep_ms(2000);
    outcome = run_rankctl((const char *const[]){"debug", "dump", "--hosts", pair.hosts, out, NULL});
    rk_proc_signal(pair.daemons[1], SIGCONT);
    assert_true(outcome.code != 0);
    assert_text("stdout", outcome.out, "collectives of 1 ranks: ");
    assert_text("stdout", outcome.out, "1 waiting for ranks");
    assert_text("stdout", outcome.out, "rank 0: in ");
    outcome_fini(&outcome);
    rk_proc_signal(rankctl, SIGINT);
    outcome = finish_rankctl(rankctl, 60000);
    outcome_fini(&outcome);
    rk_free(run_dir);
    rk_free(dir);
    rk_free(out);
    rk_free(tar);
    stop_pair(&pair);
}

/* Goal: a daemon that crashes writes its flight recorder to flight.dir; the next daemon of its slot keeps the
 * file. */
static void test_crash_leaves_the_flight_recorder(void **state)
{
    char *dir = new_run_dir(), *flag, *path = NULL;
    struct rk_json *json;
    struct pair pair;

    (void)state;
    assert_int_equal(mkdir(dir, 0700), 0);
    flag = rk_format("--flight.dir=%s", dir);
    pair = (struct pair){.daemons = {start_daemon_on(0, flag), start_daemon_on(1, flag)}};
    pair.hosts = rk_format("%s,%s", rk_proc_address(pair.daemons[0]), rk_proc_address(pair.daemons[1]));
    run_job(&pair);
    rk_proc_signal(pair.daemons[0], SIGABRT);
    assert_int_equal(rk_proc_wait(pair.daemons[0], 20000), -SIGABRT);
    rk_proc_destroy(pair.daemons[0]);
    path = rk_path_join(dir, "flight-0.json");
    json = read_flight(path);
    assert_string_equal(rk_json_as_string(rk_json_find(json, "reason"), ""), "SIGABRT");
    assert_flight_of_a_run(json);
    rk_json_free(json);
    pair.daemons[0] = start_daemon_on(0, flag);
    assert_int_equal(access(path, F_OK), -1);
    json = read_json(dir, "flight-0.previous.json");
    assert_string_equal(rk_json_as_string(rk_json_find(json, "reason"), ""), "SIGABRT");
    rk_json_free(json);
    rk_free(path);
    rk_free(flag);
    rk_free(dir);
    stop_pair(&pair);
}

/* The members "state" and `key` of worker 0 in top's output. */
static double look_at_top(const char *hosts, const char *key, char state[32])
{
    struct outcome outcome =
        run_rankctl((const char *const[]){"top", "--hosts", hosts, "--output=json", NULL});
    const struct rk_json *worker;
    struct rk_json *json;
    double value;

    assert_exit(&outcome, 0);
    json = parse_json(outcome.out);
    worker = rk_json_at(rk_json_find(json, "workers"), 0);
    snprintf(state, 32, "%s", rk_json_as_string(rk_json_find(worker, "state"), ""));
    value = rk_json_as_real(rk_json_find(worker, key), 0);
    rk_json_free(json);
    outcome_fini(&outcome);
    return value;
}

/* Goal: top shows a running job: its method, progress, tokens and memory; without a terminal it prints one
 * table. */
static void test_top_of_a_running_job(void **state)
{
    struct pair pair = start_pair();
    char *dir = new_run_dir(), *run_dir = rk_format("--run-dir=%s", dir), text[32] = "";
    struct rk_proc *rankctl = start_rankctl((const char *const[]){
        "run", TINY_JOB, "--hosts", pair.hosts, run_dir, TINY, "trainer.total_training_steps=100000", NULL});
    int64_t begun_ns = rk_time_now_ns();
    bool is_busy = false, has_tokens = false;
    struct outcome outcome;

    (void)state;
    while (!is_busy || !has_tokens) {
        has_tokens |= look_at_top(pair.hosts, "tokens_per_second", text) > 0;
        is_busy |= strcmp(text, "BUSY") == 0;
        assert_true(rk_time_now_ns() - begun_ns < rk_proc_timeout_ms(60000) * 1000000);
    }
    assert_true(look_at_top(pair.hosts, "device_allocated", text) > 0);
    outcome = run_rankctl((const char *const[]){"top", "--hosts", pair.hosts, NULL});
    assert_exit(&outcome, 0);
    assert_text("stdout", outcome.out, "WORKER  STATE");
    assert_text("stdout", outcome.out, "COLLECTIVE");
    assert_text("stdout", outcome.out, "\n0 ");
    assert_text("stdout", outcome.out, "\n1 ");
    assert_null(strchr(outcome.out, '\x1b'));
    outcome_fini(&outcome);
    rk_proc_signal(rankctl, SIGINT);
    outcome = finish_rankctl(rankctl, 60000);
    outcome_fini(&outcome);
    outcome = run_rankctl((const char *const[]){"top", "--hosts=unix:/does/not/exist.sock", "--once", NULL});
    assert_exit(&outcome, 3);
    assert_text("stdout", outcome.out, "UNAVAILABLE");
    outcome_fini(&outcome);
    outcome = run_rankctl((const char *const[]){"top", "--hosts", pair.hosts, "--interval=1ms", NULL});
    assert_exit(&outcome, 2);
    assert_text("stderr", outcome.err, "--interval=1ms: expected 200 ms or more");
    outcome_fini(&outcome);
    rk_free(run_dir);
    rk_free(dir);
    stop_pair(&pair);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_events_of_a_run_are_printed_in_order),
        cmocka_unit_test(test_events_follow_until_interrupted),
        cmocka_unit_test(test_top_of_a_running_job),
        cmocka_unit_test(test_debug_dump_collects_all_daemons),
        cmocka_unit_test(test_debug_dump_names_the_rank_without_progress),
        cmocka_unit_test(test_crash_leaves_the_flight_recorder),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
