/* The guard without gRPC: the test controls the other end of its socket pairs. */
#include "daemon/guard/guard.h"
#include "daemon/guard/pipe_internal.h"

#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_log.h"
#include "base/rk_time.h"
#include "tests/support/h2_raw.h"
#include "tests/support/test.h"

#define WAIT_MS      10000
#define LARGE_BYTES  (1 << 20)
#define LOG_BYTES    4096
#define MOST_FILLERS 64
#define SHORT_MS     200
#define NUM_CUT      40 /* connections; more than the log's limit of lines per call site and second */

struct bench {
    struct rk_listen listen;
    struct rk_guard *guard;
    int given[2]; /* a pipe: descriptors of the sockets that "gRPC" was given */
};

/* The guard's thread. */
static void on_connection(void *user, int fd)
{
    const struct bench *bench = user;

    assert_int_equal(write(bench->given[1], &fd, sizeof(fd)), sizeof(fd));
}

static void start(struct bench *bench, int64_t max_files)
{
    struct rk_guard_config config = {
        .listen = &bench->listen, .max_files = max_files, .user = bench, .on_connection = on_connection};

    assert_ok(rk_listen_parse(&bench->listen, "rpc.listen", "127.0.0.1:0"));
    assert_int_equal(pipe(bench->given), 0);
    assert_ok(rk_guard_create(&bench->guard, &config));
    rk_guard_open(bench->guard);
}

static void stop(struct bench *bench)
{
    rk_guard_destroy(bench->guard);
    close(bench->given[0]);
    close(bench->given[1]);
}

/* -1 if none arrives within that time. */
static int take_given(struct bench *bench, int timeout_ms)
{
    struct pollfd poller = {.fd = bench->given[0], .events = POLLIN};
    int fd = -1;

    if (poll(&poller, 1, timeout_ms) == 1)
        assert_int_equal(read(bench->given[0], &fd, sizeof(fd)), sizeof(fd));
    return fd;
}

/* A client that has sent its preface, and the socket on gRPC's side. */
static int connect_peer(struct bench *bench, int *core_fd)
{
    int fd = h2_connect(rk_guard_address(bench->guard));
    struct rk_str bytes = {0};

    assert_true(fd >= 0);
    h2_greeting(&bytes);
    assert_true(h2_send(fd, &bytes, WAIT_MS));
    rk_str_fini(&bytes);
    *core_fd = take_given(bench, WAIT_MS);
    return fd;
}

/* Reads exactly that many bytes. */
static void read_all(int fd, char *out, size_t bytes)
{
    size_t at = 0;

    while (at < bytes) {
        struct pollfd poller = {.fd = fd, .events = POLLIN};
        ssize_t got;

        assert_int_equal(poll(&poller, 1, WAIT_MS), 1);
        got = recv(fd, out + at, bytes - at, 0);
        assert_true(got > 0);
        at += (size_t)got;
    }
}

static void check_relays_both_ways(bool is_trusted)
{
    struct rk_str up = {0}, down = {0};
    char *got = rk_calloc(2, LARGE_BYTES), *payload = rk_malloc(LARGE_BYTES), core_peer[32];
    struct bench bench;
    int client_fd, core_fd;

    for (int i = 0; i < LARGE_BYTES; i++)
        payload[i] = (char)(i * 7 + i / 251);
    start(&bench, 0);
    client_fd = connect_peer(&bench, &core_fd);
    assert_true(core_fd >= 0);
    read_all(core_fd, got, 24 + H2_FRAME_BYTES); /* the greeting */
    assert_memory_equal(got, "PRI * HTTP/2.0", 14);
    snprintf(core_peer, sizeof(core_peer), "fd:%d", core_fd);
    if (is_trusted)
        rk_guard_trust(bench.guard, core_peer, RK_RIGHTS_DRIVER);

    h2_open_call(&up, 1, "/a", NULL);
    h2_frame(&up, H2_DATA, 0, 1, payload, LARGE_BYTES - 1000);
    h2_frame(&up, H2_DATA, H2_END_STREAM, 1, payload, 1000);
    h2_frame(&down, H2_DATA, 0, 1, payload, LARGE_BYTES - 2000);
    h2_frame(&down, H2_DATA, H2_END_STREAM, 1, payload, 1000);
    for (size_t i = 0; i < 2; i++) { /* in parts, because no thread reads meanwhile */
        struct rk_str *sent = i == 0 ? &up : &down;
        int from = i == 0 ? client_fd : core_fd, to = i == 0 ? core_fd : client_fd;
        size_t part = is_trusted ? 120000 : 50000;

        for (size_t at = 0; at < sent->bytes; at += part) {
            part = RK_MIN(part, sent->bytes - at);
            assert_int_equal(send(from, sent->text + at, part, 0), part);
            read_all(to, got + at, part);
        }
        assert_memory_equal(got, sent->text, sent->bytes);
    }
    close(client_fd);
    assert_true(h2_wait_closed(core_fd, WAIT_MS));
    close(core_fd);
    client_fd = connect_peer(&bench, &core_fd);
    close(core_fd);
    assert_true(h2_wait_closed(client_fd, WAIT_MS));
    close(client_fd);
    stop(&bench);
    rk_str_fini(&up);
    rk_str_fini(&down);
    rk_free(payload);
    rk_free(got);
}

/* Goal: bytes of either side arrive at the other, complete and in order, and closing one side closes the
 * other. */
static void test_guard_relays_both_ways(void **state)
{
    (void)state;
    check_relays_both_ways(false);
}

/* Goal: the same for a client that has made an authorised call, whose large frames go through a pipe; a
 * client that leaves in the middle of such a frame takes nothing with it. */
static void test_guard_relays_large_frames_through_pipes(void **state)
{
    char *payload = rk_calloc(1, LARGE_BYTES), core_peer[32];
    struct rk_str half = {0};
    struct bench bench;
    int client_fd, core_fd;

    (void)state;
    check_relays_both_ways(true);
    start(&bench, 0);
    h2_open_call(&half, 1, "/a", NULL);
    h2_frame(&half, H2_DATA, 0, 1, payload, LARGE_BYTES);
    for (int i = 0; i < 2 * RK_PIPE_POOL_MAX; i++) {
        client_fd = connect_peer(&bench, &core_fd);
        assert_true(core_fd >= 0);
        snprintf(core_peer, sizeof(core_peer), "fd:%d", core_fd);
        rk_guard_trust(bench.guard, core_peer, RK_RIGHTS_DRIVER);
        assert_true(send(client_fd, half.text, half.bytes / 2, MSG_DONTWAIT) > 0);
        close(i % 2 ? core_fd : client_fd); /* gRPC's side has not read anything */
        if (i % 2) {
            assert_true(h2_wait_closed(client_fd, WAIT_MS));
            close(client_fd);
        } else {
            assert_true(h2_wait_closed(core_fd, WAIT_MS));
            close(core_fd);
        }
    }
    stop(&bench);
    rk_str_fini(&half);
    rk_free(payload);
}

static void trust(struct bench *bench, int core_fd, rk_rights_t rights)
{
    char core_peer[32];

    snprintf(core_peer, sizeof(core_peer), "fd:%d", core_fd);
    rk_guard_trust(bench->guard, core_peer, rights);
}

/* A client that has sent its preface, which gRPC has not been given yet. */
static int connect_silently(struct bench *bench)
{
    struct rk_str bytes = {0};
    int fd = h2_connect(rk_guard_address(bench->guard));

    assert_true(fd >= 0);
    h2_greeting(&bytes);
    assert_true(h2_send(fd, &bytes, WAIT_MS));
    rk_str_fini(&bytes);
    return fd;
}

/* Goal: a full guard drops strangers for who comes, the oldest first, and never one that has shown a right to
 * call; the place is free when gRPC has closed its end, not before. When all have a right, it refuses and
 * counts it. */
static void test_guard_full_drops_strangers_only(void **state)
{
    int clients[RK_GUARD_CONNECTIONS_MIN], cores[RK_GUARD_CONNECTIONS_MIN], fd, core_fd;
    struct rk_guard_stats stats;
    char core_peer[32], peer[64];
    struct bench bench;

    (void)state;
    start(&bench, RK_GUARD_FILES_RESERVED);
    for (int i = 0; i < RK_GUARD_CONNECTIONS_MIN; i++)
        clients[i] = connect_peer(&bench, &cores[i]);
    for (int i = 1; i < RK_GUARD_CONNECTIONS_MIN; i++) { /* all but the first */
        trust(&bench, cores[i], RK_RIGHTS_DRIVER);
        snprintf(core_peer, sizeof(core_peer), "fd:%d", cores[i]);
        rk_guard_format_peer(bench.guard, core_peer, peer, sizeof(peer));
        assert_non_null(strstr(peer, "127.0.0.1:"));
    }
    rk_guard_format_peer(bench.guard, "fd:9999", peer, sizeof(peer));
    assert_string_equal(peer, "fd:9999");

    fd = connect_silently(&bench);
    assert_true(h2_wait_closed(clients[0], WAIT_MS));
    assert_true(h2_wait_closed(cores[0], WAIT_MS));
    assert_int_equal(take_given(&bench, SHORT_MS), -1);
    snprintf(core_peer, sizeof(core_peer), "fd:%d", cores[0]);
    rk_guard_format_peer(bench.guard, core_peer, peer, sizeof(peer)); /* its calls still have a name */
    assert_non_null(strstr(peer, "127.0.0.1:"));
    close(cores[0]);
    core_fd = take_given(&bench, WAIT_MS);
    assert_true(core_fd >= 0);
    rk_guard_get_stats(bench.guard, &stats);
    assert_int_equal(stats.max_connections, RK_GUARD_CONNECTIONS_MIN);
    assert_int_equal(stats.num_connections, RK_GUARD_CONNECTIONS_MIN);
    assert_int_equal(stats.num_refused, 0);
    trust(&bench, core_fd, RK_RIGHTS_ADMIN);

    close(clients[0]);
    clients[0] = h2_connect(rk_guard_address(bench.guard));
    assert_true(h2_wait_closed(clients[0], WAIT_MS));
    rk_guard_get_stats(bench.guard, &stats);
    assert_int_equal(stats.num_refused, 1);
    assert_true(stats.refused_ns > 0);
    close(fd);
    close(core_fd);
    for (int i = 0; i < RK_GUARD_CONNECTIONS_MIN; i++) {
        close(clients[i]);
        if (i > 0)
            close(cores[i]);
    }
    stop(&bench);
}

/* Goal: viewers that hold all places do not lock out others: the one whose last call is the oldest is closed,
 * an idle one first. */
static void test_guard_full_of_viewers_takes_others(void **state)
{
    int clients[RK_GUARD_CONNECTIONS_MIN], cores[RK_GUARD_CONNECTIONS_MIN], fd, core_fd;
    struct rk_str call = {0};
    char *got;
    struct bench bench;

    (void)state;
    start(&bench, RK_GUARD_FILES_RESERVED);
    for (int i = 0; i < RK_GUARD_CONNECTIONS_MIN; i++) {
        clients[i] = connect_peer(&bench, &cores[i]);
        trust(&bench, cores[i], RK_RIGHTS_VIEWER);
    }
    trust(&bench, cores[1], RK_RIGHTS_VIEWER); /* the second calls again, the first has a call in progress */
    h2_open_call(&call, 1, "/a", NULL);
    assert_true(h2_send(clients[0], &call, WAIT_MS));
    got = rk_malloc(24 + H2_FRAME_BYTES + call.bytes);
    read_all(cores[0], got, 24 + H2_FRAME_BYTES + call.bytes);

    fd = connect_silently(&bench);
    assert_true(h2_wait_closed(clients[2], WAIT_MS));
    assert_true(h2_wait_closed(cores[2], WAIT_MS));
    close(cores[2]);
    core_fd = take_given(&bench, WAIT_MS);
    assert_true(core_fd >= 0);
    for (int i = 0; i < RK_GUARD_CONNECTIONS_MIN; i++) {
        assert_true(i == 2 || !h2_wait_closed(clients[i], 0));
        close(clients[i]);
        if (i != 2)
            close(cores[i]);
    }
    close(fd);
    close(core_fd);
    rk_free(got);
    rk_str_fini(&call);
    stop(&bench);
}

/* Goal: a viewer keeps its place while viewers have no more than their share, and one connection that comes
 * closes one stranger only, however long gRPC takes to close its end. */
static void test_guard_full_closes_one_for_one(void **state)
{
    int clients[RK_GUARD_CONNECTIONS_MIN], cores[RK_GUARD_CONNECTIONS_MIN], fd, core_fd;
    struct rk_guard_stats stats;
    struct bench bench;

    (void)state;
    start(&bench, RK_GUARD_FILES_RESERVED);
    for (int i = 0; i < RK_GUARD_CONNECTIONS_MIN; i++)
        clients[i] = connect_peer(&bench, &cores[i]);
    trust(&bench, cores[0], RK_RIGHTS_VIEWER);
    fd = connect_silently(&bench);
    assert_true(h2_wait_closed(clients[1], WAIT_MS));
    assert_false(h2_wait_closed(clients[2], SHORT_MS));
    assert_false(h2_wait_closed(clients[3], 0));
    close(cores[1]);
    core_fd = take_given(&bench, WAIT_MS);
    assert_true(core_fd >= 0);

    trust(&bench, cores[2], RK_RIGHTS_DRIVER);
    trust(&bench, cores[3], RK_RIGHTS_DRIVER);
    trust(&bench, core_fd, RK_RIGHTS_DRIVER);
    close(clients[1]);
    clients[1] = h2_connect(rk_guard_address(bench.guard));
    assert_true(h2_wait_closed(clients[1], WAIT_MS));
    assert_false(h2_wait_closed(clients[0], 0));
    rk_guard_get_stats(bench.guard, &stats);
    assert_int_equal(stats.num_refused, 1);
    close(fd);
    close(core_fd);
    for (int i = 0; i < RK_GUARD_CONNECTIONS_MIN; i++) {
        close(clients[i]);
        if (i != 1)
            close(cores[i]);
    }
    stop(&bench);
}

/* One that connected before another is given to gRPC after it, under the number that the other one had. */
static void reuse_number(struct bench *bench)
{
    int older = h2_connect(rk_guard_address(bench->guard)), client, core_fd, fillers[MOST_FILLERS], count = 0;
    char core_peer[32], peer[64], expected[64];
    struct sockaddr_in own;
    socklen_t own_bytes = sizeof(own);
    struct rk_str bytes = {0};

    h2_greeting(&bytes);
    client = connect_peer(bench, &core_fd);
    close(client);
    assert_true(h2_wait_closed(core_fd, WAIT_MS));
    while (count < MOST_FILLERS && (fillers[count] = dup(older)) < core_fd)
        count++;
    assert_true(count > 0 && count < MOST_FILLERS);
    close(fillers[count]);
    close(fillers[count - 1]); /* for the guard's own end, which is made first */
    close(core_fd);
    assert_true(h2_send(older, &bytes, WAIT_MS));
    core_fd = take_given(bench, WAIT_MS);
    assert_int_equal(getsockname(older, (struct sockaddr *)&own, &own_bytes), 0);
    snprintf(expected, sizeof(expected), "127.0.0.1:%d", ntohs(own.sin_port));
    snprintf(core_peer, sizeof(core_peer), "fd:%d", core_fd);
    rk_guard_format_peer(bench->guard, core_peer, peer, sizeof(peer));
    assert_string_equal(peer, expected);
    for (int i = 0; i < count - 1; i++)
        close(fillers[i]);
    close(older);
    close(core_fd);
    rk_str_fini(&bytes);
}

/* Goal: a number that gRPC has closed and that the next connection gets names that one only; the records of
 * both are freed. */
static void test_guard_number_names_one_connection(void **state)
{
    struct rk_guard_stats stats = {.num_connections = 1};
    struct bench bench;

    (void)state;
    start(&bench, 0);
    for (int i = 0; i < 20; i++)
        reuse_number(&bench);
    for (int i = 0; i < 100 && stats.num_connections > 0; i++) {
        rk_time_sleep_ms(50);
        rk_guard_get_stats(bench.guard, &stats);
    }
    assert_int_equal(stats.num_connections, 0);
    stop(&bench);
}

/* Goal: gRPC has a bounded number of strangers: one more waits until the end of another is closed, and one
 * that leaves while it waits is never given to gRPC. */
static void test_guard_bounds_strangers_of_core(void **state)
{
    int clients[RK_GUARD_STRANGERS_MAX], cores[RK_GUARD_STRANGERS_MAX], fd, core_fd;
    struct bench bench;

    (void)state;
    start(&bench, 0);
    for (int i = 0; i < RK_GUARD_STRANGERS_MAX; i++) {
        clients[i] = connect_peer(&bench, &cores[i]);
        assert_true(cores[i] >= 0);
    }
    fd = connect_silently(&bench);
    assert_true(h2_wait_closed(clients[0], WAIT_MS));
    assert_int_equal(take_given(&bench, SHORT_MS), -1);
    close(fd);
    rk_time_sleep_ms(SHORT_MS);
    for (int i = 0; i < RK_GUARD_STRANGERS_MAX; i++) /* all were closed in turn while it waited, or are now */
        close(clients[i]);
    for (int i = 0; i < RK_GUARD_STRANGERS_MAX; i++) {
        assert_true(h2_wait_closed(cores[i], WAIT_MS));
        close(cores[i]);
    }
    assert_int_equal(take_given(&bench, SHORT_MS), -1);
    fd = connect_peer(&bench, &core_fd);
    assert_true(core_fd >= 0);
    close(fd);
    close(core_fd);
    stop(&bench);
}

/* Goal: a peer that violates a rule gets GOAWAY and is no longer read, while gRPC sees the end at once; a
 * peer with another protocol is closed at once; after the listener is closed no connection is accepted. */
static void test_guard_cuts_and_closes(void **state)
{
    struct rk_str bytes = {0};
    struct rk_guard_stats stats;
    char goaway[H2_FRAME_BYTES + 8];
    struct bench bench;
    int fd, core_fd;

    (void)state;
    start(&bench, 0);
    fd = connect_peer(&bench, &core_fd);
    h2_frame(&bytes, H2_CONTINUATION, 0, 1, NULL, 9);
    assert_int_equal(send(fd, bytes.text, bytes.bytes, 0), bytes.bytes);
    read_all(fd, goaway, sizeof(goaway));
    assert_int_equal(goaway[3], H2_GOAWAY);
    assert_int_equal(goaway[H2_FRAME_BYTES + 7], 11); /* ENHANCE_YOUR_CALM */
    assert_true(h2_wait_closed(core_fd, WAIT_MS));
    close(core_fd);
    assert_false(h2_wait_closed(fd, 200));
    rk_guard_get_stats(bench.guard, &stats);
    assert_int_equal(stats.num_cut, 1);
    close(fd);
    rk_str_fini(&bytes);

    fd = h2_connect(rk_guard_address(bench.guard));
    assert_int_equal(send(fd, "GET / HTTP/1.1\r\n", 16, 0), 16);
    assert_true(h2_wait_closed(fd, WAIT_MS));
    assert_int_equal(take_given(&bench, 0), -1);
    close(fd);

    fd = h2_connect(rk_guard_address(bench.guard)); /* accepted, but too late with its preface */
    while (stats.num_accepted < 3)
        rk_guard_get_stats(bench.guard, &stats);
    rk_guard_close_listener(bench.guard);
    h2_greeting(&bytes);
    h2_send(fd, &bytes, WAIT_MS);
    assert_true(h2_wait_closed(fd, WAIT_MS));
    assert_int_equal(take_given(&bench, 0), -1);
    close(fd);
    assert_int_equal(h2_connect(rk_guard_address(bench.guard)), -1);
    rk_str_fini(&bytes);
    stop(&bench);
}

static void count_warning(rk_log_level_t level, const char *line, void *user)
{
    char *text = user;

    assert_int_equal(level, RK_LOG_WARN);
    if (strstr(line, "cut peer="))
        snprintf(text + strlen(text), LOG_BYTES - strlen(text), "%s\n", line);
}

/* Goal: connections of one peer that violate the same rule are all counted, and give two log lines: the first
 * at once, the number of the others later. */
static void test_guard_counts_all_and_logs_few(void **state)
{
    struct rk_guard_stats stats = {.num_cut = 0};
    char text[LOG_BYTES] = "";
    struct bench bench;
    int64_t end_ns = rk_time_now_ns() + WAIT_MS * 1000000LL;

    (void)state;
    rk_log_set_sink(count_warning, text);
    start(&bench, 0);
    for (int i = 0; i < NUM_CUT; i++) {
        int fd = h2_connect(rk_guard_address(bench.guard));

        assert_int_equal(send(fd, "GET / HTTP/1.1\r\n", 16, 0), 16);
        assert_true(h2_wait_closed(fd, WAIT_MS));
        close(fd);
    }
    while (stats.num_cut < NUM_CUT && rk_time_now_ns() < end_ns)
        rk_guard_get_stats(bench.guard, &stats);
    assert_int_equal(stats.num_cut, NUM_CUT);
    stop(&bench);
    rk_log_set_sink(NULL, NULL);
    assert_non_null(strstr(text, "cut peer=127.0.0.1:"));
    assert_non_null(strstr(text, "cut peer=127.0.0.1: 39 more in "));
    assert_int_equal(strchr(strchr(text, '\n') + 1, '\n')[1], '\0');
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_guard_relays_both_ways),
        cmocka_unit_test(test_guard_relays_large_frames_through_pipes),
        cmocka_unit_test(test_guard_full_drops_strangers_only),
        cmocka_unit_test(test_guard_full_of_viewers_takes_others),
        cmocka_unit_test(test_guard_full_closes_one_for_one),
        cmocka_unit_test(test_guard_number_names_one_connection),
        cmocka_unit_test(test_guard_bounds_strangers_of_core),
        cmocka_unit_test(test_guard_cuts_and_closes),
        cmocka_unit_test(test_guard_counts_all_and_logs_few),
    };

    signal(SIGPIPE, SIG_IGN); /* as the daemon does */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
