/* Fencing with a real daemon: one driver at a time, and the end of its work when it disconnects. */
#include <inttypes.h>
#include <string.h>

#include "base/rk_time.h"
#include "tests/proc/daemon_fixture.h"

static struct rk_status *release(struct rk_client *client, const struct rk_client_lease *lease)
{
    struct rk_release_lease_request request = {.fence = lease->fence};
    struct rk_str packed = {0};
    struct rk_status *st;

    rk_pack_release_lease_request(&packed, &request);
    st = rk_client_call(client, RK_RPC_ID_RELEASE_LEASE, &packed, NULL);
    rk_str_fini(&packed);
    return st;
}

/* One round of a KeepAlive stream. */
static struct rk_status *keep_alive(struct rk_client *client, const struct rk_client_lease *lease)
{
    struct rk_client_stream *stream = rk_client_open(client, RK_RPC_ID_KEEP_ALIVE);
    struct rk_keep_alive_request request = {.fence = lease->fence};
    struct rk_keep_alive_response response;
    struct rk_str packed = {0};
    struct rk_bytes message;

    rk_pack_keep_alive_request(&packed, &request);
    for (int i = 0; i < 3 && rk_client_send(stream, &packed) && rk_client_receive(stream, &message); i++) {
        assert_ok(
            rk_unpack_keep_alive_response(&response, rk_client_arena(client), message.data, message.bytes));
        assert_int_equal(response.ttl_ms, lease->ttl_ms);
    }
    rk_str_fini(&packed);
    rk_client_half_close(stream);
    return rk_client_finish(stream);
}

/* Goal: the second driver's error names the holder of the lease; with takeover it gets the lease, and the
 * first driver's calls are rejected.
 */
static void test_second_driver_is_refused_until_it_takes_over(void **state)
{
    struct rk_acquire_lease_request first = {.driver_id = "night-run", .epoch = 3};
    struct rk_acquire_lease_request second = {.driver_id = "other", .epoch = 4};
    struct rk_client_lease first_lease, second_lease;
    struct rk_worker_status status;
    static const char *const args[] = {"--lease.ttl=45s", NULL};
    struct fixture fixture;
    struct rk_status *st;

    (void)state;
    fixture_start(&fixture, args);
    assert_ok(rk_client_acquire(fixture.client, &first, &first_lease));
    assert_int_equal(first_lease.ttl_ms, 45000);
    assert_ok(keep_alive(fixture.client, &first_lease));
    assert_ok(rk_client_get_status(fixture.client, &status));
    assert_string_equal(status.driver_id, "night-run");
    assert_int_equal(status.epoch, 3);

    st = rk_client_acquire(fixture.client, &second, &second_lease);
    assert_non_null(strstr(rk_status_message(st), "\"night-run\" holds the lease, epoch 3"));
    assert_refused(st, RK_FAILED_PRECONDITION, "LEASE_HELD");
    second.takeover = true;
    second.epoch = 3;
    assert_refused(rk_client_acquire(fixture.client, &second, &second_lease), RK_FAILED_PRECONDITION,
                   "STALE_EPOCH");
    assert_ok(keep_alive(fixture.client, &first_lease)); /* rejected requests did not affect the first
                                                          * driver */
    second.epoch = 4;
    assert_ok(rk_client_acquire(fixture.client, &second, &second_lease));

    assert_refused(keep_alive(fixture.client, &first_lease), RK_FAILED_PRECONDITION, "STALE_EPOCH");
    assert_refused(release(fixture.client, &first_lease), RK_FAILED_PRECONDITION, "STALE_EPOCH");
    assert_ok(keep_alive(fixture.client, &second_lease));
    assert_ok(release(fixture.client, &second_lease));
    assert_refused(keep_alive(fixture.client, &second_lease), RK_FAILED_PRECONDITION, "LEASE_EXPIRED");
    second_lease.fence.incarnation++;
    assert_refused(keep_alive(fixture.client, &second_lease), RK_FAILED_PRECONDITION, "WRONG_INCARNATION");
    fixture_stop(&fixture);
}

/* Goal: a driver of an old epoch cannot configure, execute or cancel. */
static void test_stale_driver_changes_nothing(void **state)
{
    static const char *const roles[] = {"actor", NULL};
    struct rk_client_lease stale;
    struct rk_cancel_request cancel = {.abort_comm = true};
    struct rk_execute_header header;
    struct rk_worker_status status;
    struct rk_str packed = {0};
    struct fixture fixture;

    (void)state;
    fixture_start(&fixture, NULL);
    fixture_lead(&fixture);
    stale = fixture.lease;
    stale.fence.lease_id.data = stale.id;
    fixture_lead(&fixture);
    assert_refused(rk_client_configure_alone(fixture.client, &stale, 9, roles), RK_FAILED_PRECONDITION,
                   "STALE_EPOCH");
    header = fixture_header(&fixture, "actor", "get_mesh_info");
    header.fence = stale.fence;
    assert_refused(fixture_execute(&fixture, &header, NULL, NULL), RK_FAILED_PRECONDITION, "STALE_EPOCH");
    cancel.fence = stale.fence;
    rk_pack_cancel_request(&packed, &cancel);
    assert_refused(rk_client_call(fixture.client, RK_RPC_ID_CANCEL, &packed, NULL), RK_FAILED_PRECONDITION,
                   "STALE_EPOCH");
    rk_str_fini(&packed);
    assert_ok(rk_client_get_status(fixture.client, &status));
    assert_string_equal(status.state, "CONFIGURED");
    assert_int_equal(status.mesh_generation, fixture.generation);
    fixture_stop(&fixture);
}

/* Goal: when the driver stops renewing its lease, its running call is cancelled, and its models are kept for
 * the grace period and then freed. Method: the minimum TTL of 5 s, and a grace period that is long enough for
 * a busy machine. */
static void test_lapsed_lease_ends_work_and_then_frees_models(void **state)
{
    static const char *const args[] = {"--lease.ttl=5s", "--lease.grace=8s", NULL};
    struct rk_client_stream *stream;
    struct rk_execute_header header;
    struct rk_worker_status status;
    struct fixture fixture;
    int64_t begin_ns;

    (void)state;
    fixture_start(&fixture, args);
    fixture_lead(&fixture);
    fixture_init_models(&fixture);
    begin_ns = rk_time_now_ns();
    stream = fixture_start_endless(&fixture, &header);
    fixture_read_result(&fixture, stream, NULL);
    assert_fails(rk_client_finish(stream), RK_CANCELLED, "lapsed");
    assert_true(rk_time_now_ns() - begin_ns > 4900 * 1000000LL);
    assert_ok(rk_client_get_status(fixture.client, &status));
    assert_string_equal(status.driver_id, "");
    header = fixture_header(&fixture, "actor", "get_mesh_info");
    assert_refused(fixture_execute(&fixture, &header, NULL, NULL), RK_FAILED_PRECONDITION, "LEASE_EXPIRED");

    fixture_lead(&fixture); /* within the grace period: the models still exist */
    assert_ok(rk_client_get_status(fixture.client, &status));
    assert_string_equal(status.state, "READY");

    assert_ok(release(fixture.client, &fixture.lease));
    fixture_wait_state(&fixture, "UNCONFIGURED");
    fixture_lead(&fixture);
    assert_ok(rk_client_get_status(fixture.client, &status));
    assert_string_equal(status.state, "CONFIGURED");
    fixture_stop(&fixture);
}

/* Goal: a takeover ends the previous driver's call, and can configure and work at once. */
static void test_takeover_ends_running_call(void **state)
{
    struct rk_client_stream *stream;
    struct rk_execute_header header;
    struct rk_batch *prompts = fixture_prompts(2);
    struct fixture fixture;

    (void)state;
    fixture_start(&fixture, NULL);
    fixture_lead(&fixture);
    fixture_init_models(&fixture);
    stream = fixture_start_endless(&fixture, &header);
    fixture_lead(&fixture);
    fixture_read_result(&fixture, stream, NULL);
    assert_fails(rk_client_finish(stream), RK_CANCELLED, "another driver took the lease");
    header = fixture_header(&fixture, "rollout", "generate_sequences");
    fixture_set_options(&fixture, &header, "{\"response_length\": 2}");
    assert_ok(fixture_execute(&fixture, &header, prompts, NULL));
    rk_batch_destroy(prompts);
    fixture_stop(&fixture);
}

/* Goal: the lease's reply gives the next sequence number: in a new epoch it is 1. */
static void test_lease_last_seq_is_of_its_own_epoch(void **state)
{
    struct rk_acquire_lease_request request = {.driver_id = "next", .takeover = true};
    struct rk_acquire_lease_response response;
    struct rk_str packed = {0};
    struct fixture fixture;
    struct rk_bytes reply;

    (void)state;
    fixture_start(&fixture, NULL);
    fixture_lead(&fixture);
    fixture_init_models(&fixture);
    assert_int_equal(fixture_last_seq(&fixture), 2);
    request.epoch = fixture.lease.fence.epoch + 1;
    rk_pack_acquire_lease_request(&packed, &request);
    assert_ok(rk_client_call(fixture.client, RK_RPC_ID_ACQUIRE_LEASE, &packed, &reply));
    assert_ok(rk_unpack_acquire_lease_response(&response, rk_client_arena(fixture.client), reply.data,
                                               reply.bytes));
    assert_int_equal(response.last_seq, 0);
    assert_int_equal(response.fence.epoch, request.epoch);
    rk_str_fini(&packed);
    fixture_stop(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_second_driver_is_refused_until_it_takes_over),
        cmocka_unit_test(test_stale_driver_changes_nothing),
        cmocka_unit_test(test_lapsed_lease_ends_work_and_then_frees_models),
        cmocka_unit_test(test_takeover_ends_running_call),
        cmocka_unit_test(test_lease_last_seq_is_of_its_own_epoch),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
