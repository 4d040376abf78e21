/* rk_driver_call with daemons that violate the protocol, refuse, or return different plan hashes. The method
 * is one whose calls have a commit. */
#include "driver/driver_internal.h"

#include <pthread.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_time.h"
#include "tests/support/test.h"
#include "tests/unit/driver/fake_daemon.h"

#define NUM_DAEMONS 2
#define HANG_MS     20000
#define JOIN_MS     6000

struct group {
    struct fake_daemon *daemons[NUM_DAEMONS];
    struct rk_driver *driver;
};

static int start_group(void **state)
{
    struct group *group = rk_calloc(1, sizeof(*group));
    char *addresses[NUM_DAEMONS];
    struct rk_driver_config config = {.struct_size = sizeof(config),
                                      .addresses = (const char *const *)addresses,
                                      .num_addresses = NUM_DAEMONS};

    for (int32_t i = 0; i < NUM_DAEMONS; i++) {
        addresses[i] = rk_format("unix:%s/fake%d.sock", rk_test_temp_dir(), i);
        group->daemons[i] = fake_daemon_create(addresses[i], i, NUM_DAEMONS);
    }
    assert_ok(rk_driver_open(&group->driver, &config));
    assert_ok(rk_driver_claim(group->driver));
    assert_ok(rk_driver_adopt(group->driver));
    for (int32_t i = 0; i < NUM_DAEMONS; i++)
        rk_free(addresses[i]);
    *state = group;
    return 0;
}

static int stop_group(void **state)
{
    struct group *group = *state;

    rk_driver_close(group->driver);
    for (int i = 0; i < NUM_DAEMONS; i++)
        fake_daemon_destroy(group->daemons[i]);
    rk_free(group);
    return 0;
}

static struct rk_status *call(struct group *group, fake_script_t first, fake_script_t second,
                              struct rk_driver_result *result)
{
    fake_daemon_set_script(group->daemons[0], first);
    fake_daemon_set_script(group->daemons[1], second);
    return rk_driver_call(
        group->driver, &(struct rk_driver_call_args){.role = "actor", .method = "verify_replicas"}, result);
}

/* --- behaviours of the daemons --- */

static const struct rk_execute_response empty_result = {.kind = RK_RESPONSE_RESULT};
static const int64_t two[1] = {2};
static struct rk_tensor_spec tensor = {
    .name = "x", .dtype = RK_DTYPE_F32, .rank = 1, .shape = two, .byte_size = 8};
static const struct rk_execute_response tensor_result = {
    .kind = RK_RESPONSE_RESULT,
    .result = {.output = {.batch_size = 2, .num_tensors = 1, .tensors = &tensor}}};
static const float values[4] = {1.5f, -2.5f, 3.5f, 4.5f};

static void accept_and_wait(struct fake_call *fake)
{
    fake_receive(fake);
    fake_accept(fake, 7);
    fake_receive(fake);
}

static void behave(struct fake_call *fake)
{
    accept_and_wait(fake);
    fake_send(fake, &tensor_result);
    fake_send_chunk(fake, 0, values, 4);
    fake_send_chunk(fake, 4, values + 1, 4);
    fake_finish(fake, RK_OK, "");
}

/* The behaviour of a correct daemon when its call is withdrawn. */
static void accept_until_withdrawn(struct fake_call *fake)
{
    accept_and_wait(fake);
    fake_finish(fake, RK_CANCELLED, "cancelled by the client");
}

/* The behaviour of a correct daemon when its running call is cancelled. */
static void run_until_cancelled(struct fake_call *fake)
{
    accept_and_wait(fake);
    fake_receive(fake);
    fake_finish(fake, RK_CANCELLED, "cancelled");
}

static void never_accept(struct fake_call *fake)
{
    fake_receive(fake);
    fake_receive(fake);
    fake_finish(fake, RK_CANCELLED, "cancelled by the client");
}

/* A rank whose engine hangs: Cancel is answered and has no effect. */
static void hang(struct fake_call *fake)
{
    accept_and_wait(fake);
    rk_time_sleep_ms(HANG_MS);
    fake_finish(fake, RK_CANCELLED, "cancelled by the client");
}

static void refuse(struct fake_call *fake)
{
    fake_receive(fake);
    fake_finish(fake, RK_FAILED_PRECONDITION, "role 'actor' is EMPTY");
}

static void accept_another_plan(struct fake_call *fake)
{
    fake_receive(fake);
    fake_accept(fake, 8);
    fake_receive(fake);
    fake_finish(fake, RK_CANCELLED, "cancelled by the client");
}

static void send_result_at_once(struct fake_call *fake)
{
    fake_receive(fake);
    fake_send(fake, &empty_result);
    fake_finish(fake, RK_OK, "");
}

static void accept_twice(struct fake_call *fake)
{
    fake_receive(fake);
    fake_accept(fake, 7);
    fake_accept(fake, 7);
    fake_finish(fake, RK_OK, "");
}

static void accept_with_short_hash(struct fake_call *fake)
{
    fake_receive(fake);
    fake_send(fake, &(struct rk_execute_response){.kind = RK_RESPONSE_ACCEPTED,
                                                  .accepted = {.plan_hash = {(const uint8_t *)"abc", 3}}});
    fake_finish(fake, RK_OK, "");
}

static void send_chunk_without_result(struct fake_call *fake)
{
    accept_and_wait(fake);
    fake_send_chunk(fake, 0, values, 4);
    fake_finish(fake, RK_OK, "");
}

static void send_two_results(struct fake_call *fake)
{
    accept_and_wait(fake);
    fake_send(fake, &empty_result);
    fake_send(fake, &empty_result);
    fake_finish(fake, RK_OK, "");
}

static void send_chunk_past_the_end(struct fake_call *fake)
{
    accept_and_wait(fake);
    fake_send(fake, &tensor_result);
    fake_send_chunk(fake, 0, values, 16);
    fake_finish(fake, RK_OK, "");
}

static void send_half_of_the_tensor(struct fake_call *fake)
{
    accept_and_wait(fake);
    fake_send(fake, &tensor_result);
    fake_send_chunk(fake, 0, values, 4);
    fake_finish(fake, RK_OK, "");
}

static void end_without_result(struct fake_call *fake)
{
    accept_and_wait(fake);
    fake_finish(fake, RK_OK, "");
}

static void send_garbage(struct fake_call *fake)
{
    fake_receive(fake);
    fake_send_bytes(fake, "\xff\xff\xff\xff", 4);
    fake_finish(fake, RK_OK, "");
}

static void fail_in_the_method(struct fake_call *fake)
{
    accept_and_wait(fake);
    fake_finish(fake, RK_RESOURCE_EXHAUSTED, "wanted 8 GiB");
}

/* --- tests --- */

static void test_call_good_daemons_give_result_and_use_up_numbers(void **state)
{
    struct group *group = *state;
    uint64_t first_seq = 0;

    for (int i = 0; i < 3; i++) {
        struct rk_driver_result result;
        int64_t shape[1];
        const void *data;

        assert_ok(call(group, behave, behave, &result));
        assert_int_equal(result.num_outputs, NUM_DAEMONS);
        assert_ok(rk_batch_get_dense(result.outputs[1], "x", RK_DTYPE_F32, 1, shape, &data));
        assert_memory_equal(data, values, 8);
        rk_driver_result_fini(&result);
        for (int d = 0; d < NUM_DAEMONS; d++) {
            assert_true(fake_daemon_was_committed(group->daemons[d]));
            first_seq = i == 0 ? fake_daemon_seq(group->daemons[0]) : first_seq;
            assert_int_equal(fake_daemon_seq(group->daemons[d]), first_seq + (uint64_t)i);
        }
    }
}

struct breach {
    const char *label;
    fake_script_t script; /* of daemon 1 */
    rk_code_t code;
    const char *message;
};

static const struct breach breaches[] = {
    {"result before acceptance", send_result_at_once, RK_INTERNAL,
     "sent a result before it accepted the call"},
    {"accepted twice", accept_twice, RK_INTERNAL, "accepted the call twice"},
    {"short hash", accept_with_short_hash, RK_INTERNAL, "plan hash of 3 bytes"},
    {"chunk without result", send_chunk_without_result, RK_INTERNAL,
     "a chunk before the result that describes it"},
    {"two results", send_two_results, RK_INTERNAL, "sent a result twice"},
    {"chunk past the end", send_chunk_past_the_end, RK_INVALID_ARGUMENT, "'x'"},
    {"half a tensor", send_half_of_the_tensor, RK_DATA_LOSS, "before its result was complete"},
    {"no result", end_without_result, RK_INTERNAL, "ended the call without a result"},
    {"garbage", send_garbage, RK_INVALID_ARGUMENT, ""},
    {"method fails", fail_in_the_method, RK_RESOURCE_EXHAUSTED, "wanted 8 GiB"},
};

/* Goal: for every violation by one daemon the call fails and names it, and the group can run the next
 * call. */
static void test_call_breaches_fail_naming_the_daemon(void **state)
{
    struct group *group = *state;

    for (size_t i = 0; i < RK_ARRAY_LEN(breaches); i++) {
        struct rk_driver_result result;
        struct rk_status *st = call(group, behave, breaches[i].script, &result);

        print_message("%s\n", breaches[i].label);
        assert_non_null(strstr(rk_status_message(st), "actor.verify_replicas: worker 1 (unix:"));
        assert_fails(st, breaches[i].code, breaches[i].message);
        assert_null(result.outputs);
        assert_ok(call(group, behave, behave, &result));
        rk_driver_result_fini(&result);
    }
}

/* Goal: when one rank refuses, no rank starts, the others receive a cancel, and the sequence numbers can be
 * used again. */
static void test_call_one_refusal_withdraws_everywhere(void **state)
{
    struct group *group = *state;
    struct rk_driver_result result;
    uint64_t refused_seq;

    assert_fails(call(group, accept_until_withdrawn, refuse, &result), RK_FAILED_PRECONDITION,
                 "worker 1 (unix:");
    assert_false(fake_daemon_was_committed(group->daemons[0]));
    assert_true(fake_daemon_was_cancelled(group->daemons[0]));
    refused_seq = fake_daemon_seq(group->daemons[0]);
    assert_ok(call(group, behave, behave, &result));
    rk_driver_result_fini(&result);
    assert_int_equal(fake_daemon_seq(group->daemons[0]), refused_seq);
}

/* Goal: daemons that accept with different plan hashes never start. */
static void test_call_different_plan_hashes_never_start(void **state)
{
    struct group *group = *state;
    struct rk_driver_result result;

    assert_fails(call(group, accept_until_withdrawn, accept_another_plan, &result), RK_INTERNAL,
                 "ranks 0 and 1 accepted different plans");
    for (int d = 0; d < NUM_DAEMONS; d++)
        assert_false(fake_daemon_was_committed(group->daemons[d]));
    assert_ok(call(group, behave, behave, &result));
    rk_driver_result_fini(&result);
}

static void *interrupt_soon(void *user)
{
    rk_time_sleep_ms(200);
    rk_driver_interrupt(user);
    return NULL;
}

/* Goal: an interrupt while one rank has not accepted yet withdraws the call on all ranks; the driver then
 * refuses further calls. This test is the last one, since it leaves the driver interrupted. */
static void test_call_interrupted_before_commit_is_withdrawn(void **state)
{
    struct group *group = *state;
    struct rk_fanout *items = rk_fanout_create(group->driver);
    struct rk_driver_result result;
    struct rk_status *st;
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, interrupt_soon, group->driver), 0);
    assert_fails(call(group, accept_until_withdrawn, never_accept, &result), RK_CANCELLED, "interrupted");
    pthread_join(thread, NULL);
    for (int d = 0; d < NUM_DAEMONS; d++) {
        assert_true(fake_daemon_was_cancelled(group->daemons[d]));
        assert_false(fake_daemon_was_committed(group->daemons[d]));
    }
    assert_fails(call(group, behave, behave, &result), RK_CANCELLED, "interrupted");
    items[1].error =
        RK_FAIL(RK_CANCELLED, "CANCELLED"); /* gRPC's message for a call cancelled by the client */
    st = rk_fanout_take_error(group->driver, items);
    assert_int_equal(rk_status_code(st), RK_CANCELLED);
    assert_string_equal(rk_status_message(st), "interrupted");
    rk_status_free(st);
    rk_fanout_destroy(items, NUM_DAEMONS);
}

/* Goal: an interrupt of a committed call reaches every rank after the commit, on the same stream. On another
 * connection it could arrive before the commit, and a rank that withdraws the call leaves the others waiting
 * in their collectives.
 */
static void test_call_interrupted_after_commit_is_cancelled_after_it(void **state)
{
    int64_t begin_ns = rk_time_now_ns();
    struct group *group = *state;
    struct rk_driver_result result;
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, interrupt_soon, group->driver), 0);
    assert_fails(call(group, run_until_cancelled, run_until_cancelled, &result), RK_CANCELLED, "interrupted");
    assert_true(rk_time_now_ns() - begin_ns < HANG_MS * 1000000LL);
    pthread_join(thread, NULL);
    for (int d = 0; d < NUM_DAEMONS; d++) {
        assert_true(fake_daemon_was_committed(group->daemons[d]));
        assert_true(fake_daemon_was_cancelled(group->daemons[d]));
    }
}

/* Goal: one interrupt suffices even if no rank stops: the driver requests the stop, then forces it, then
 * gives up. */
static void test_call_interrupted_that_hangs_is_given_up(void **state)
{
    int64_t begin_ns = rk_time_now_ns();
    struct group *group = *state;
    struct rk_driver_result result;
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, interrupt_soon, group->driver), 0);
    assert_fails(call(group, hang, hang, &result), RK_CANCELLED, "interrupted");
    assert_true(rk_time_now_ns() - begin_ns < (HANG_MS - 2000) * 1000000LL);
    pthread_join(thread, NULL);
    for (int d = 0; d < NUM_DAEMONS; d++)
        assert_true(fake_daemon_was_committed(group->daemons[d]));
}

/* Goal: a timeout that does not fit its protocol field is refused before anything is sent. */
static void test_call_timeout_outside_the_wires_range_is_refused(void **state)
{
    static const int64_t timeouts_ms[] = {-1, (int64_t)UINT32_MAX + 1, INT64_MAX};
    struct group *group = *state;
    struct rk_driver_result result;

    for (size_t i = 0; i < RK_ARRAY_LEN(timeouts_ms); i++) {
        struct rk_driver_call_args args = {
            .role = "actor", .method = "verify_replicas", .timeout_ms = timeouts_ms[i]};

        assert_fails(rk_driver_call(group->driver, &args, &result), RK_INVALID_ARGUMENT, "timeout_ms=");
    }
}

static void wait_for_a_peer(struct fake_call *fake)
{
    rk_time_sleep_ms(JOIN_MS);
    fake_finish(fake, RK_ABORTED, "rank 1 did not join");
}

static void die(struct fake_call *fake)
{
    fake_finish(fake, RK_UNAVAILABLE, "Socket closed");
}

/* Goal: a daemon that dies while the group is configured is named at once, not only after the waiting daemons
 * time out. */
static void test_configure_lost_daemon_ends_the_wait_of_the_others(void **state)
{
    const struct rk_role_mesh mesh = {"actor", {.tp = 1}};
    struct group *group = *state;
    int64_t begin_ns = rk_time_now_ns();

    fake_daemon_set_configure(group->daemons[0], wait_for_a_peer);
    fake_daemon_set_configure(group->daemons[1], die);
    assert_fails(rk_driver_configure(group->driver, &mesh, 1), RK_UNAVAILABLE,
                 "rank 1): UNAVAILABLE: Socket closed (1 other rank ended with it)");
    assert_true(rk_time_now_ns() - begin_ns < (JOIN_MS - 2000) * 1000000LL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_call_good_daemons_give_result_and_use_up_numbers),
        cmocka_unit_test(test_call_breaches_fail_naming_the_daemon),
        cmocka_unit_test(test_call_one_refusal_withdraws_everywhere),
        cmocka_unit_test(test_call_different_plan_hashes_never_start),
        cmocka_unit_test(test_call_timeout_outside_the_wires_range_is_refused),
        cmocka_unit_test(test_call_interrupted_before_commit_is_withdrawn),
        cmocka_unit_test_setup_teardown(test_configure_lost_daemon_ends_the_wait_of_the_others, start_group,
                                        stop_group),
        cmocka_unit_test_setup_teardown(test_call_interrupted_after_commit_is_cancelled_after_it, start_group,
                                        stop_group),
        cmocka_unit_test_setup_teardown(test_call_interrupted_that_hangs_is_given_up, start_group,
                                        stop_group),
    };

    return cmocka_run_group_tests(tests, start_group, stop_group);
}
