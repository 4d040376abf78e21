/* Futures with daemons whose timing the test controls: when each call is offered, the effect of a cancel, and
 * operations that are refused while calls are in flight. */
#include "driver/driver_internal.h"

#include <pthread.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_time.h"
#include "tests/support/test.h"
#include "tests/unit/driver/fake_daemon.h"

#define NUM_GROUPS 2
#define SLOW_MS    300

/* The events at the daemon of group 0, one letter each: h header, c commit, x cancel, e end. */
static struct {
    pthread_mutex_t lock;
    char text[64];
} seen = {.lock = PTHREAD_MUTEX_INITIALIZER};
static atomic_int num_gaps; /* headers to be refused as if they had overtaken a commit */

static void note(char event)
{
    pthread_mutex_lock(&seen.lock);
    seen.text[strlen(seen.text)] = event;
    pthread_mutex_unlock(&seen.lock);
}

static void assert_seen(const char *expected)
{
    pthread_mutex_lock(&seen.lock);
    assert_string_equal(seen.text, expected);
    pthread_mutex_unlock(&seen.lock);
}

static void wait_seen(const char *expected)
{
    for (int i = 0; i < 1000; i++) {
        bool is_there;

        pthread_mutex_lock(&seen.lock);
        is_there = strcmp(seen.text, expected) == 0;
        pthread_mutex_unlock(&seen.lock);
        if (is_there)
            return;
        rk_time_sleep_ms(5);
    }
    assert_seen(expected);
}

struct group {
    struct fake_daemon *daemon;
    struct rk_driver *driver;
};

struct groups {
    struct group at[NUM_GROUPS];
};

static int start_groups(void **state)
{
    struct groups *groups = rk_calloc(1, sizeof(*groups));

    memset(seen.text, 0, sizeof(seen.text));
    atomic_store(&num_gaps, 0);
    for (int32_t i = 0; i < NUM_GROUPS; i++) {
        char *address = rk_format("unix:%s/future%d.sock", rk_test_temp_dir(), i);
        struct rk_driver_config config = {
            .struct_size = sizeof(config), .addresses = (const char *const *)&address, .num_addresses = 1};

        groups->at[i].daemon = fake_daemon_create(address, 0, 1);
        assert_ok(rk_driver_open(&groups->at[i].driver, &config));
        assert_ok(rk_driver_claim(groups->at[i].driver));
        assert_ok(rk_driver_adopt(groups->at[i].driver));
        rk_free(address);
    }
    *state = groups;
    return 0;
}

static int stop_groups(void **state)
{
    struct groups *groups = *state;

    for (int i = 0; i < NUM_GROUPS; i++) {
        rk_driver_close(groups->at[i].driver);
        fake_daemon_destroy(groups->at[i].daemon);
    }
    rk_free(groups);
    return 0;
}

/* --- behaviours of the daemons --- */

static const struct rk_execute_response empty_result = {.kind = RK_RESPONSE_RESULT};

static bool accept_and_wait(struct fake_call *fake)
{
    fake_receive(fake);
    note('h');
    if (atomic_fetch_sub(&num_gaps, 1) > 0) {
        fake_refuse(fake, RK_FAILED_PRECONDITION, "SEQ_GAP", "seq=2, expected 1");
        return false;
    }
    fake_accept(fake, 7);
    if (fake_receive(fake) != RK_EXECUTE_COMMIT) {
        note('x');
        fake_finish(fake, RK_CANCELLED, "withdrawn");
        return false;
    }
    note('c');
    return true;
}

static void end(struct fake_call *fake)
{
    note('e');
    fake_send(fake, &empty_result);
    fake_finish(fake, RK_OK, "");
}

static void be_quick(struct fake_call *fake)
{
    if (accept_and_wait(fake))
        end(fake);
}

static void be_slow(struct fake_call *fake)
{
    if (!accept_and_wait(fake))
        return;
    rk_time_sleep_ms(SLOW_MS);
    end(fake);
}

static void run_until_cancelled(struct fake_call *fake)
{
    if (!accept_and_wait(fake))
        return;
    if (fake_receive(fake) == RK_EXECUTE_CANCEL)
        note('x');
    fake_finish(fake, RK_CANCELLED, "cancelled");
}

static void take_time_to_accept(struct fake_call *fake)
{
    fake_receive(fake);
    note('h');
    rk_time_sleep_ms(SLOW_MS);
    fake_accept(fake, 7);
    if (fake_receive(fake) == RK_EXECUTE_COMMIT) {
        note('c');
        end(fake);
    } else {
        note('x');
        fake_finish(fake, RK_CANCELLED, "withdrawn");
    }
}

static struct rk_future *start(struct group *group, fake_script_t script)
{
    struct rk_future *future;

    fake_daemon_set_script(group->daemon, script);
    assert_ok(rk_driver_start(&future, group->driver,
                              &(struct rk_driver_call_args){.role = "actor", .method = "verify_replicas"}));
    return future;
}

static void take(struct rk_future *future)
{
    struct rk_driver_result result;

    assert_ok(rk_future_take(future, &result));
    assert_int_equal(result.num_outputs, 1);
    rk_driver_result_fini(&result);
}

/* Waits until these numbers of headers, commits and ends have been counted. */
static void wait_counts(int num_headers, int num_commits, int num_ends)
{
    int counts[3] = {0};

    for (int i = 0; i < 1000; i++) {
        memset(counts, 0, sizeof(counts));
        pthread_mutex_lock(&seen.lock);
        for (const char *at = seen.text; *at; at++) {
            counts[0] += *at == 'h';
            counts[1] += *at == 'c';
            counts[2] += *at == 'e';
        }
        pthread_mutex_unlock(&seen.lock);
        if (counts[0] == num_headers && counts[1] == num_commits && counts[2] == num_ends)
            break;
        rk_time_sleep_ms(5);
    }
    assert_int_equal(counts[0], num_headers);
    assert_int_equal(counts[1], num_commits);
    assert_int_equal(counts[2], num_ends);
}

/* --- tests --- */

/* Goal: a started call runs to its end without further API calls, and its result can be taken later. */
static void test_future_runs_without_further_calls(void **state)
{
    struct groups *groups = *state;
    struct rk_future *future = start(&groups->at[0], be_slow);

    assert_false(rk_future_is_done(future));
    assert_int_equal(rk_future_wait_any(&future, 1, 0), -1);
    wait_seen("hce");
    assert_int_equal(rk_future_wait_any(&future, 1, -1), 0);
    assert_true(rk_future_is_done(future));
    take(future);
}

/* Goal: the second call on the same ranks is offered once the first is committed, neither before that nor
 * only after its end; a synchronous call is queued after both. */
static void test_future_next_is_offered_while_first_runs(void **state)
{
    struct groups *groups = *state;
    struct rk_driver_result result;
    struct rk_future *first = start(&groups->at[0], take_time_to_accept), *second, *third;

    wait_seen("h");
    second = start(&groups->at[0], run_until_cancelled);
    rk_time_sleep_ms(SLOW_MS / 3);
    assert_seen("h");
    take(first);
    wait_counts(2, 2, 1);
    third = start(&groups->at[0], be_quick);
    wait_counts(3, 3, 2);
    rk_future_cancel(second, NULL);
    assert_int_equal(fake_daemon_seq(groups->at[0].daemon), 3);
    fake_daemon_set_script(groups->at[0].daemon, be_quick);
    assert_ok(rk_driver_call(groups->at[0].driver,
                             &(struct rk_driver_call_args){.role = "actor", .method = "verify_replicas"},
                             &result));
    rk_driver_result_fini(&result);
    assert_int_equal(fake_daemon_seq(groups->at[0].daemon), 4);
    assert_fails(rk_future_take(second, &(struct rk_driver_result){0}), RK_CANCELLED, "cancelled");
    take(third);
}

/* Goal: calls of two groups run at the same time, and wait_any names the one that is done; NULL entries are
 * left out. */
static void test_future_two_groups_at_once(void **state)
{
    struct groups *groups = *state;
    struct rk_future *futures[3] = {0};

    assert_int_equal(rk_future_wait_any(futures, 3, -1), -1);
    futures[0] = start(&groups->at[0], run_until_cancelled);
    wait_seen("hc");
    futures[2] = start(&groups->at[1], be_quick);
    assert_int_equal(rk_future_wait_any(futures, 3, 10000), 2);
    take(futures[2]);
    futures[2] = NULL;
    assert_int_equal(rk_future_wait_any(futures, 3, 50), -1);
    rk_future_cancel(futures[0], "enough");
    assert_int_equal(rk_future_wait_any(futures, 3, 10000), 0);
    assert_fails(rk_future_take(futures[0], &(struct rk_driver_result){0}), RK_CANCELLED,
                 "actor.verify_replicas: cancelled: enough");
}

/* Goal: a cancelled call is CANCELLED, the daemon receives the cancel after the commit, and the group runs
 * the next call.
 */
static void test_future_cancelled_while_it_runs(void **state)
{
    struct groups *groups = *state;
    struct rk_future *future = start(&groups->at[0], run_until_cancelled);

    wait_seen("hc");
    rk_future_cancel(future, "enough");
    rk_future_cancel(future, "the first reason counts");
    assert_fails(rk_future_take(future, &(struct rk_driver_result){0}), RK_CANCELLED, "enough");
    assert_seen("hcx");
    take(start(&groups->at[0], be_quick));
    rk_future_drop(start(&groups->at[0], run_until_cancelled));
    rk_future_drop(NULL);
    take(start(&groups->at[0], be_quick));
}

/* Goal: a queued call is cancelled without reaching the daemon, and its sequence number can be used again; a
 * call that is being offered is withdrawn. */
static void test_future_cancelled_before_it_begins(void **state)
{
    struct groups *groups = *state;
    struct rk_future *first = start(&groups->at[0], take_time_to_accept), *second;

    wait_seen("h");
    second = start(&groups->at[0], be_quick);
    rk_future_cancel(second, NULL);
    assert_fails(rk_future_take(second, &(struct rk_driver_result){0}), RK_CANCELLED, "before it began");
    rk_future_cancel(first, NULL);
    assert_fails(rk_future_take(first, &(struct rk_driver_result){0}), RK_CANCELLED, "");
    assert_seen("hx");
    take(start(&groups->at[0], be_quick));
    assert_int_equal(fake_daemon_seq(groups->at[0].daemon), 1);
}

/* Goal: a header that overtook the commit before it is offered again until it is accepted; the same refusal
 * of a call that had no call before it is an error. */
static void test_future_overtaken_commit(void **state)
{
    struct groups *groups = *state;
    struct rk_future *first = start(&groups->at[0], take_time_to_accept), *second;

    wait_seen("h");
    atomic_store(&num_gaps, 3);
    second = start(&groups->at[0], be_quick);
    take(first);
    take(second);
    assert_int_equal(atomic_load(&num_gaps), -1);
    atomic_store(&num_gaps, 1);
    assert_fails(rk_future_take(start(&groups->at[0], be_quick), &(struct rk_driver_result){0}),
                 RK_FAILED_PRECONDITION, "SEQ_GAP");
}

/* Goal: the number of calls sent to a daemon does not exceed its queue's capacity. */
static void test_future_queue_of_the_daemon(void **state)
{
    struct groups *groups = *state;
    struct rk_future *futures[RK_LIMIT_QUEUED_CALLS + 1];

    for (size_t i = 0; i < RK_ARRAY_LEN(futures); i++)
        futures[i] = start(&groups->at[0], run_until_cancelled);
    wait_counts(RK_LIMIT_QUEUED_CALLS, RK_LIMIT_QUEUED_CALLS, 0);
    rk_time_sleep_ms(200);
    wait_counts(RK_LIMIT_QUEUED_CALLS, RK_LIMIT_QUEUED_CALLS, 0);
    for (size_t i = 0; i < RK_ARRAY_LEN(futures); i++)
        rk_future_drop(futures[i]);
}

/* Goal: while a call is in flight, operations that would change the group are refused by name. */
static void test_future_keeps_the_group(void **state)
{
    struct groups *groups = *state;
    struct rk_driver *driver = groups->at[0].driver;
    struct rk_future *future = start(&groups->at[0], be_slow);

    assert_fails(rk_driver_claim(driver), RK_FAILED_PRECONDITION, "claim: 1 calls are in flight");
    assert_fails(rk_driver_adopt(driver), RK_FAILED_PRECONDITION, "adopt: 1 calls are in flight");
    assert_fails(rk_driver_configure(driver, NULL, 0), RK_FAILED_PRECONDITION, "configure: 1 calls");
    take(future);
    assert_ok(rk_driver_adopt(driver));
}

/* Goal: errors of arguments are returned by the start itself, without a future; an interrupt ends all calls
 * in flight. */
static void test_future_arguments_and_interrupt(void **state)
{
    struct groups *groups = *state;
    struct rk_driver_call_args call = {.role = "actor", .method = "no_such_method"};
    struct rk_future *future = NULL, *next;

    assert_fails(rk_driver_start(&future, groups->at[0].driver, &call), RK_NOT_FOUND, "no_such_method");
    assert_null(future);
    future = start(&groups->at[0], run_until_cancelled);
    wait_seen("hc");
    next = start(&groups->at[0], run_until_cancelled);
    rk_driver_interrupt(groups->at[0].driver);
    assert_fails(rk_future_take(future, &(struct rk_driver_result){0}), RK_CANCELLED, "interrupted");
    assert_fails(rk_future_take(next, &(struct rk_driver_result){0}), RK_CANCELLED, "interrupted");
    assert_true(rk_driver_resume(groups->at[0].driver));
    take(start(&groups->at[0], be_quick));
}

/* Goal: a program that was compiled with older headers opens a driver, one with newer headers is refused. */
static void test_future_struct_size(void **state)
{
    const char *address = "unix:/does/not/exist.sock";
    struct rk_driver_config config = {
        .struct_size = sizeof(config) + 8, .addresses = &address, .num_addresses = 1};
    struct rk_driver *driver;

    (void)state;
    assert_int_equal(rk_driver_abi(), RK_DRIVER_ABI);
    assert_fails(rk_driver_open(&driver, &config), RK_INVALID_ARGUMENT, "struct_size");
    config.struct_size = 8;
    assert_fails(rk_driver_open(&driver, &config), RK_INVALID_ARGUMENT, "struct_size");
    config.struct_size = offsetof(struct rk_driver_config, dry_device) + sizeof(char *);
    assert_ok(rk_driver_open(&driver, &config));
    rk_driver_close(driver);
}

/* Goal: rk_local_start takes the structs of older programs, which end before num_threads, and no others. */
static void test_local_struct_size(void **state)
{
    struct rk_local_config config = {.num_daemons = 1,
                                     .program = "/missing/rankd",
                                     .device = "cpu",
                                     .log_dir = rk_test_temp_dir(),
                                     .num_threads = 2};
    const size_t wrong[] = {0, offsetof(struct rk_local_config, num_threads) - 1, sizeof(config) + 1};
    struct rk_local *local;

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(wrong); i++) {
        config.struct_size = wrong[i];
        assert_fails(rk_local_start(&local, &config), RK_INVALID_ARGUMENT, "struct_size");
    }
    config.struct_size = offsetof(struct rk_local_config, num_threads);
    assert_fails(rk_local_start(&local, &config), RK_NOT_FOUND, "/missing/rankd");
    config.struct_size = sizeof(config);
    assert_fails(rk_local_start(&local, &config), RK_NOT_FOUND, "/missing/rankd");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_future_runs_without_further_calls, start_groups, stop_groups),
        cmocka_unit_test_setup_teardown(test_future_next_is_offered_while_first_runs, start_groups,
                                        stop_groups),
        cmocka_unit_test_setup_teardown(test_future_two_groups_at_once, start_groups, stop_groups),
        cmocka_unit_test_setup_teardown(test_future_cancelled_while_it_runs, start_groups, stop_groups),
        cmocka_unit_test_setup_teardown(test_future_cancelled_before_it_begins, start_groups, stop_groups),
        cmocka_unit_test_setup_teardown(test_future_overtaken_commit, start_groups, stop_groups),
        cmocka_unit_test_setup_teardown(test_future_queue_of_the_daemon, start_groups, stop_groups),
        cmocka_unit_test_setup_teardown(test_future_keeps_the_group, start_groups, stop_groups),
        cmocka_unit_test_setup_teardown(test_future_arguments_and_interrupt, start_groups, stop_groups),
        cmocka_unit_test(test_future_struct_size),
        cmocka_unit_test(test_local_struct_size),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
