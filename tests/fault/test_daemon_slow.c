/* Intentionally slow clients: none of them may block resources that others need. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_time.h"
#include "tests/proc/daemon_fixture.h"

#define NUM_SILENT 500
#define SECOND_NS  1000000000LL

static int connect_raw(const char *address)
{
    struct sockaddr_in to = {.sin_family = AF_INET};
    const char *colon = strrchr(address, ':');
    int64_t port = 0;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(rk_parse_i64(colon + 1, &port));
    to.sin_port = htons((uint16_t)port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    return fd;
}

/* Goal: silent connections are closed after the handshake timeout of 5 s and do not delay other clients
 * meanwhile. */
static void test_silent_connections_are_closed(void **state)
{
    int64_t begin_ns = rk_time_now_ns();
    struct rk_worker_status status;
    struct fixture fixture;
    int fds[NUM_SILENT];

    (void)state;
    fixture_start(&fixture, NULL);
    for (int i = 0; i < NUM_SILENT; i++)
        fds[i] = connect_raw(rk_proc_address(fixture.proc));
    assert_ok(rk_client_get_status(fixture.client, &status));
    for (int i = 0; i < NUM_SILENT; i++) {
        struct pollfd poller = {.fd = fds[i], .events = POLLRDHUP};
        int64_t left_ms = rk_proc_timeout_ms(10000) - (rk_time_now_ns() - begin_ns) / 1000000;

        assert_int_equal(poll(&poller, 1, left_ms > 0 ? (int)left_ms : 0), 1);
        close(fds[i]);
    }
    assert_ok(rk_client_get_status(fixture.client, &status));
    fixture_stop(&fixture);
}

static double seconds_since(int64_t begin_ns)
{
    return (double)(rk_time_now_ns() - begin_ns) / (double)SECOND_NS;
}

/* Goal: a call whose first message does not come is ended after 10 s, an upload that trickles after 30 s, and
 * its memory and sequence number are free again. Method: an Execute stream without header, a unary call
 * without request and a body that gets one byte per second, all at the same time. */
static void test_slow_calls_are_ended(void **state)
{
    static const char *const args[] = {"--lease.ttl=10min", NULL};
    struct rk_client_stream *headerless, *requestless, *trickle;
    struct rk_batch *prompts = fixture_prompts(64);
    struct rk_execute_header header;
    struct rk_worker_status status;
    struct fixture fixture;
    int64_t begin_ns;
    uint8_t zero = 0;

    (void)state;
    fixture_start(&fixture, args);
    fixture_lead(&fixture);
    fixture_init_models(&fixture);
    begin_ns = rk_time_now_ns();
    headerless = rk_client_open(fixture.client, RK_RPC_ID_EXECUTE);
    requestless = rk_client_open(fixture.client, RK_RPC_ID_DRAIN);
    header = fixture_header(&fixture, "rollout", "generate_sequences");
    fixture_set_options(&fixture, &header, "{\"response_length\": 1}");
    fixture_set_input(&fixture, &header, prompts);
    trickle = fixture_open(&fixture, &header);
    for (uint64_t offset = 0; offset < 12; offset++) {
        assert_true(rk_client_send_chunk(trickle, 0, offset, &zero, 1));
        rk_time_sleep_ms(1000);
    }
    assert_fails(rk_client_finish(headerless), RK_DEADLINE_EXCEEDED, "no complete message within 10000 ms");
    assert_fails(rk_client_finish(requestless), RK_DEADLINE_EXCEEDED, "no complete message within 10000 ms");
    assert_fails(rk_client_finish(trickle), RK_DEADLINE_EXCEEDED, "12 bytes of the body came in 30 s");
    assert_true(seconds_since(begin_ns) >= 29.0);
    assert_true(seconds_since(begin_ns) < (double)rk_proc_timeout_ms(45));

    assert_ok(rk_client_get_status(fixture.client, &status));
    for (int64_t i = 0; i < status.num_metrics; i++) {
        if (strcmp(status.metrics[i].name, "inflight") == 0)
            assert_int_equal((int64_t)status.metrics[i].value, 0);
    }
    header = fixture_header(&fixture, "rollout", "generate_sequences");
    fixture_set_options(&fixture, &header, "{\"response_length\": 1}");
    assert_ok(fixture_execute(&fixture, &header, prompts, NULL));
    rk_batch_destroy(prompts);
    fixture_stop(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_silent_connections_are_closed),
        cmocka_unit_test(test_slow_calls_are_ended),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
