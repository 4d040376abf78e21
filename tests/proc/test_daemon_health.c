/* The standard health service, as probes see it. */
#include <signal.h>

#include "base/rk_time.h"
#include "tests/proc/daemon_fixture.h"

#define NUM_SILENT 200
#define PER_CLIENT 40

static struct rk_status *check(struct rk_client *client, const char *service, rk_serving_status_t *out)
{
    struct rk_health_check_request request = {.service = service};
    struct rk_health_check_response response;
    struct rk_str packed = {0};
    struct rk_bytes reply;
    struct rk_status *st;

    rk_pack_health_check_request(&packed, &request);
    st = rk_client_call(client, RK_RPC_ID_HEALTH_CHECK, &packed, &reply);
    rk_str_fini(&packed);
    if (st)
        return st;
    RK_TRY(rk_unpack_health_check_response(&response, rk_client_arena(client), reply.data, reply.bytes));
    *out = response.status;
    return NULL;
}

static void assert_serving(struct fixture *fixture, const char *service, rk_serving_status_t expected)
{
    rk_serving_status_t status = RK_SERVING_UNKNOWN;

    print_message("'%s'\n", service);
    assert_ok(check(fixture->client, service, &status));
    assert_int_equal(status, expected);
}

static void drain(struct fixture *fixture, bool undo)
{
    struct rk_drain_request request = {.undo = undo, .reason = "test"};
    struct rk_str packed = {0};

    rk_pack_drain_request(&packed, &request);
    assert_ok(rk_client_call(fixture->client, RK_RPC_ID_DRAIN, &packed, NULL));
    rk_str_fini(&packed);
}

/* Goal: alive from the start, ready with a model, not taking work while draining but still alive. */
static void test_health_check_follows_the_state(void **state)
{
    rk_serving_status_t status;
    struct fixture fixture;

    (void)state;
    fixture_start(&fixture, NULL);
    assert_serving(&fixture, "", RK_SERVING);
    assert_serving(&fixture, "rankd.v1.Worker", RK_SERVING);
    assert_serving(&fixture, "rankd.v1.Admin", RK_SERVING);
    assert_serving(&fixture, "rankd.ready", RK_NOT_SERVING);
    assert_fails(check(fixture.client, "other", &status), RK_NOT_FOUND, "other");

    fixture_lead(&fixture);
    assert_serving(&fixture, "rankd.ready", RK_NOT_SERVING);
    fixture_init_models(&fixture);
    assert_serving(&fixture, "rankd.ready", RK_SERVING);

    drain(&fixture, false);
    assert_serving(&fixture, "", RK_SERVING);
    assert_serving(&fixture, "rankd.v1.Worker", RK_NOT_SERVING);
    assert_serving(&fixture, "rankd.v1.Admin", RK_SERVING);
    assert_serving(&fixture, "rankd.ready", RK_NOT_SERVING);
    drain(&fixture, true);
    assert_serving(&fixture, "rankd.v1.Worker", RK_SERVING);
    fixture_stop(&fixture);
}

static struct rk_client_stream *watch(struct rk_client *client, const char *service)
{
    struct rk_health_check_request request = {.service = service};
    struct rk_client_stream *stream = rk_client_open(client, RK_RPC_ID_HEALTH_WATCH);
    struct rk_str packed = {0};

    rk_pack_health_check_request(&packed, &request);
    assert_true(rk_client_send(stream, &packed));
    rk_client_half_close(stream);
    rk_str_fini(&packed);
    return stream;
}

static void assert_next(struct rk_client *client, struct rk_client_stream *stream,
                        rk_serving_status_t expected)
{
    struct rk_health_check_response response;
    struct rk_bytes message;

    assert_true(rk_client_receive(stream, &message));
    assert_ok(
        rk_unpack_health_check_response(&response, rk_client_arena(client), message.data, message.bytes));
    assert_int_equal(response.status, expected);
}

/* Goal: a watcher gets the current state at once, every change once, and the end of the daemon; an unknown
 * service can be watched, as in the protocol. */
static void test_health_watch_reports_changes(void **state)
{
    struct rk_client_stream *worker, *unknown;
    struct fixture fixture;

    (void)state;
    fixture_start(&fixture, NULL);
    worker = watch(fixture.client, "rankd.v1.Worker");
    unknown = watch(fixture.client, "other");
    assert_next(fixture.client, worker, RK_SERVING);
    assert_next(fixture.client, unknown, RK_SERVICE_UNKNOWN);
    drain(&fixture, false);
    assert_next(fixture.client, worker, RK_NOT_SERVING);
    drain(&fixture, true);
    assert_next(fixture.client, worker, RK_SERVING);

    rk_proc_signal(fixture.proc, SIGTERM);
    assert_next(fixture.client, worker, RK_NOT_SERVING);
    assert_fails(rk_client_finish(worker), RK_UNAVAILABLE, "");
    assert_fails(rk_client_finish(unknown), RK_UNAVAILABLE, "");
    fixture_end(&fixture, 0);
}

/* Goal: the number of watchers is bounded, and a watcher that leaves frees its place. */
static void test_health_watch_too_many_are_refused(void **state)
{
    struct rk_client_stream *watchers[32], *late;
    struct fixture fixture;

    (void)state;
    fixture_start(&fixture, NULL);
    for (int i = 0; i < 32; i++) {
        watchers[i] = watch(fixture.client, "");
        assert_next(fixture.client, watchers[i], RK_SERVING);
    }
    late = watch(fixture.client, "");
    assert_fails(rk_client_finish(late), RK_RESOURCE_EXHAUSTED, "32 health watches");
    rk_client_cancel(watchers[0]);
    assert_fails(rk_client_finish(watchers[0]), RK_CANCELLED, "");
    for (int attempt = 0;; attempt++) { /* the daemon processes the cancellation asynchronously */
        struct rk_bytes message;

        late = watch(fixture.client, "");
        if (rk_client_receive(late, &message))
            break;
        assert_fails(rk_client_finish(late), RK_RESOURCE_EXHAUSTED, "32 health watches");
        assert_true(attempt < 1000);
    }
    rk_client_cancel(late);
    assert_fails(rk_client_finish(late), RK_CANCELLED, "");
    for (int i = 1; i < 32; i++) {
        rk_client_cancel(watchers[i]);
        assert_fails(rk_client_finish(watchers[i]), RK_CANCELLED, "");
    }
    fixture_stop(&fixture);
}

/* Goal: watch calls without a request are bounded in number and do not block probes. Method: 200 of them over
 * several connections; the oldest end at once, before their timeout of 10 s. */
static void test_health_watch_without_a_request_makes_room(void **state)
{
    struct rk_client_stream *streams[NUM_SILENT];
    struct rk_client *clients[NUM_SILENT / PER_CLIENT];
    struct fixture fixture;
    int64_t begin_ns = rk_time_now_ns();

    (void)state;
    fixture_start(&fixture, NULL);
    for (int i = 0; i < NUM_SILENT; i++) {
        if (i % PER_CLIENT == 0)
            clients[i / PER_CLIENT] = rk_client_create(rk_proc_address(fixture.proc), NULL);
        streams[i] = rk_client_open(clients[i / PER_CLIENT], RK_RPC_ID_HEALTH_WATCH);
        assert_serving(&fixture, "", RK_SERVING);
    }
    for (int i = 0; i < PER_CLIENT; i++) {
        assert_fails(rk_client_finish(streams[i]), RK_RESOURCE_EXHAUSTED, "128 other calls");
        assert_true(rk_time_now_ns() - begin_ns < rk_proc_timeout_ms(10000) * 1000000);
    }
    for (int i = PER_CLIENT; i < NUM_SILENT; i++) {
        rk_client_cancel(streams[i]);
        rk_status_free(rk_client_finish(streams[i])); /* these may have been ended too */
    }
    for (int i = 0; i < NUM_SILENT / PER_CLIENT; i++)
        rk_client_destroy(clients[i]);
    fixture_stop(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_health_check_follows_the_state),
        cmocka_unit_test(test_health_watch_reports_changes),
        cmocka_unit_test(test_health_watch_too_many_are_refused),
        cmocka_unit_test(test_health_watch_without_a_request_makes_room),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
