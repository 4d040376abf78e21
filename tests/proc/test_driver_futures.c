/* Futures on groups of real daemons: results equal those of synchronous calls, a cancel leaves the group
 * usable, and a lost daemon affects only its own group. */
#include <signal.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_time.h"
#include "driver/rk_driver.h"
#include "tests/proc/daemon_fixture.h"
#include "tests/support/proc.h"
#include "tests/support/test.h"

#define NUM_GROUPS  2
#define NUM_DAEMONS 2
#define NUM_ROWS    4
#define NUM_CALLS   12

struct group {
    struct rk_proc *daemons[NUM_DAEMONS];
    struct rk_driver *driver;
};

static struct rk_json *parse(const char *text)
{
    struct rk_json *json;

    assert_ok(rk_json_parse(&json, text, strlen(text), "options", 0));
    return json;
}

static void init_model(struct group *group, const char *role, const char *text)
{
    struct rk_json *options = parse(text);
    struct rk_driver_call_args call = {.role = role, .method = "init_model", .options = options};
    struct rk_driver_result result;

    assert_ok(rk_driver_call(group->driver, &call, &result));
    rk_driver_result_fini(&result);
    rk_json_free(options);
}

static void start_group(struct group *group)
{
    const struct rk_mesh_spec mesh = {.tp = 1, .dp = NUM_DAEMONS};
    const char *addresses[NUM_DAEMONS];
    struct rk_driver_config config = {
        .struct_size = sizeof(config), .addresses = addresses, .num_addresses = NUM_DAEMONS};

    for (int i = 0; i < NUM_DAEMONS; i++)
        group->daemons[i] = rk_proc_start_rankd((const char *const[]){"--cpu.num_threads=1", NULL});
    for (int i = 0; i < NUM_DAEMONS; i++)
        addresses[i] = rk_proc_address(group->daemons[i]);
    assert_ok(rk_driver_open(&group->driver, &config));
    assert_ok(rk_driver_claim(group->driver));
    assert_ok(
        rk_driver_configure(group->driver, (struct rk_role_mesh[]){{"actor", mesh}, {"rollout", mesh}}, 2));
    init_model(group, "actor", FIXTURE_MODEL_OPTIONS);
    init_model(group, "rollout", FIXTURE_ROLLOUT_OPTIONS);
}

static void stop_group(struct group *group)
{
    rk_driver_close(group->driver);
    for (int i = 0; i < NUM_DAEMONS; i++)
        rk_proc_destroy(group->daemons[i]);
}

/* Frees the batch and the options: the future needs neither. */
static struct rk_future *start(struct group *group, const char *text)
{
    struct rk_json *options = parse(text);
    struct rk_batch *prompts = fixture_prompts(NUM_ROWS);
    struct rk_driver_call_args call = {
        .role = "rollout", .method = "generate_sequences", .batch = prompts, .options = options};
    struct rk_future *future;

    assert_ok(rk_driver_start(&future, group->driver, &call));
    rk_json_free(options);
    rk_batch_destroy(prompts);
    return future;
}

static char *options_of(int call)
{
    return rk_format("{\"response_length\": %d, \"seed\": %d, \"ignore_eos\": true}", 2 + call % 5, call);
}

static struct rk_driver_result run(struct group *group, int call)
{
    char *text = options_of(call);
    struct rk_json *options = parse(text);
    struct rk_batch *prompts = fixture_prompts(NUM_ROWS);
    struct rk_driver_result result;

    assert_ok(rk_driver_call(
        group->driver,
        &(struct rk_driver_call_args){
            .role = "rollout", .method = "generate_sequences", .batch = prompts, .options = options},
        &result));
    rk_batch_destroy(prompts);
    rk_json_free(options);
    rk_free(text);
    return result;
}

static void assert_same(const struct rk_batch *actual, const struct rk_batch *expected)
{
    assert_int_equal(rk_batch_num_columns(actual), rk_batch_num_columns(expected));
    for (int64_t i = 0; i < rk_batch_num_columns(expected); i++)
        assert_true(rk_column_equal(rk_batch_find(actual, rk_batch_name_at(expected, i)),
                                    rk_batch_column_at(expected, i)));
}

static void assert_generates(struct group *group)
{
    struct rk_driver_result result = run(group, 0);

    rk_driver_result_fini(&result);
}

/* Goal: many queued calls of two groups each give results bit-identical to a single call, for every order of
 * taking them. */
static void test_futures_have_the_results_of_calls(void **state)
{
    struct group groups[NUM_GROUPS];
    struct rk_future *futures[NUM_GROUPS * NUM_CALLS] = {0};
    int32_t found;

    (void)state;
    for (int i = 0; i < NUM_GROUPS; i++)
        start_group(&groups[i]);
    for (int i = 0; i < NUM_GROUPS * NUM_CALLS; i++) {
        char *text = options_of(i / NUM_GROUPS);

        futures[i] = start(&groups[i % NUM_GROUPS], text);
        rk_free(text);
    }
    while ((found = rk_future_wait_any(futures, NUM_GROUPS * NUM_CALLS, -1)) >= 0) {
        struct rk_driver_result actual, expected;

        assert_ok(rk_future_take(futures[found], &actual));
        futures[found] = NULL;
        expected = run(&groups[(found + 1) % NUM_GROUPS], found / NUM_GROUPS);
        assert_same(actual.batch, expected.batch);
        rk_driver_result_fini(&actual);
        rk_driver_result_fini(&expected);
    }
    for (int i = 0; i < NUM_GROUPS; i++)
        stop_group(&groups[i]);
}

/* Goal: a cancelled call ends soon, queued ones run, and the group continues without a Configure. */
static void test_futures_cancel(void **state)
{
    struct group group;
    struct rk_future *running, *dropped, *behind;
    struct rk_driver_result result;
    int64_t begin_ns;

    (void)state;
    start_group(&group);
    running = start(&group, FIXTURE_ENDLESS_OPTIONS);
    dropped = start(&group, FIXTURE_ENDLESS_OPTIONS);
    behind = start(&group, "{\"response_length\": 3}");
    assert_int_equal(rk_future_wait_any((struct rk_future *[]){running, behind}, 2, 500), -1);
    begin_ns = rk_time_now_ns();
    rk_future_cancel(running, "the test says so");
    assert_fails(rk_future_take(running, &result), RK_CANCELLED, "the test says so");
    assert_true(rk_time_now_ns() - begin_ns < rk_proc_timeout_ms(4000) * 1000000);
    rk_future_drop(dropped);
    assert_ok(rk_future_take(behind, &result));
    assert_int_equal(rk_batch_num_rows(result.batch), NUM_ROWS);
    rk_driver_result_fini(&result);
    assert_generates(&group);
    stop_group(&group);
}

static struct rk_future *start_info(struct group *group)
{
    struct rk_driver_call_args call = {.role = "actor", .method = "get_mesh_info"};
    struct rk_future *future;

    assert_ok(rk_driver_start(&future, group->driver, &call));
    return future;
}

/* Goal: calls without collectives, which are brief unless others are in flight, keep their place in the order
 * of calls, end with a cancel, and leave the numbers of the calls behind them right. */
static void test_futures_brief_calls_keep_the_order(void **state)
{
    struct group group;
    struct rk_future *running, *behind, *futures[NUM_CALLS];
    struct rk_driver_result result;

    (void)state;
    start_group(&group);
    for (int i = 0; i < NUM_CALLS; i++)
        futures[i] = i % 3 ? start_info(&group) : start(&group, "{\"response_length\": 3}");
    for (int i = NUM_CALLS - 1; i >= 0; i--) {
        assert_ok(rk_future_take(futures[i], &result));
        if (i % 3)
            assert_int_equal(result.num_outputs, NUM_DAEMONS);
        rk_driver_result_fini(&result);
    }
    running = start(&group, FIXTURE_ENDLESS_OPTIONS);
    behind = start_info(&group);
    assert_int_equal(rk_future_wait_any((struct rk_future *[]){running, behind}, 2, 500), -1);
    rk_future_drop(running);
    assert_ok(rk_future_take(behind, &result));
    rk_driver_result_fini(&result);
    assert_generates(&group);
    stop_group(&group);
}

/* Goal: a daemon that is killed while idle fails a brief call, and the error names the daemon. */
static void test_futures_brief_call_of_a_lost_daemon(void **state)
{
    struct rk_driver_call_args call = {.role = "actor", .method = "get_mesh_info"};
    struct rk_driver_result result;
    struct group group;

    (void)state;
    start_group(&group);
    rk_proc_signal(group.daemons[1], SIGKILL);
    rk_proc_destroy(group.daemons[1]);
    group.daemons[1] = NULL;
    assert_fails(rk_driver_call(group.driver, &call, &result), RK_ABORTED, "worker 1");
    stop_group(&group);
}

/* Goal: a daemon that is killed ends the calls of its group, running and queued, within seconds; the other
 * group's call continues. */
static void test_futures_lost_daemon(void **state)
{
    struct group groups[NUM_GROUPS];
    struct rk_future *lost, *queued, *other;
    struct rk_driver_call_args call = {.role = "actor", .method = "get_mesh_info"};
    struct rk_driver_result result;
    struct rk_status *st;
    int64_t begin_ns;

    (void)state;
    for (int i = 0; i < NUM_GROUPS; i++)
        start_group(&groups[i]);
    lost = start(&groups[0], FIXTURE_ENDLESS_OPTIONS);
    queued = start(&groups[0], FIXTURE_ENDLESS_OPTIONS);
    other = start(&groups[1], FIXTURE_ENDLESS_OPTIONS);
    assert_int_equal(rk_future_wait_any((struct rk_future *[]){lost, queued, other}, 3, 500), -1);
    begin_ns = rk_time_now_ns();
    rk_proc_signal(groups[0].daemons[1], SIGKILL);
    assert_refused(rk_future_take(lost, &result), RK_ABORTED, "PEER_LOST");
    st = rk_future_take(queued, &result);
    assert_true(rk_status_code(st) == RK_ABORTED || rk_status_code(st) == RK_FAILED_PRECONDITION);
    rk_status_free(st);
    assert_true(rk_time_now_ns() - begin_ns < rk_proc_timeout_ms(15000) * 1000000);
    assert_fails(rk_driver_call(groups[0].driver, &call, &result), RK_FAILED_PRECONDITION, "lost");
    assert_false(rk_future_is_done(other));
    rk_future_drop(other);
    assert_generates(&groups[1]);
    for (int i = 0; i < NUM_GROUPS; i++)
        stop_group(&groups[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_futures_have_the_results_of_calls),
        cmocka_unit_test(test_futures_cancel),
        cmocka_unit_test(test_futures_brief_calls_keep_the_order),
        cmocka_unit_test(test_futures_brief_call_of_a_lost_daemon),
        cmocka_unit_test(test_futures_lost_daemon),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
