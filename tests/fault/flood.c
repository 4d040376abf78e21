#include "tests/fault/flood.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/config/rk_config.h"
#include "base/rk_env.h"
#include "base/rk_time.h"
#include "tests/support/h2_raw.h"
#include "tests/support/test.h"

#define ATTACKER_NICE  10
#define FRAMES_A_ROUND 200
#define SEND_MS        100

static void append_resets(struct rk_str *out, uint32_t *stream)
{
    for (int i = 0; i < FRAMES_A_ROUND; i++, *stream += 2) {
        h2_open_call(out, *stream, "/rankd.v1.Worker/GetStatus", NULL);
        h2_frame(out, H2_RST_STREAM, 0, *stream, "\0\0\0\x8", 4);
    }
}

static void append_unknown_resets(struct rk_str *out, uint32_t *stream)
{
    for (int i = 0; i < FRAMES_A_ROUND; i++, *stream += 2) {
        h2_open_call(out, *stream, "/no/such/path", NULL);
        h2_frame(out, H2_RST_STREAM, 0, *stream, "\0\0\0\x8", 4);
    }
}

/* One header block without an end: new fields in every frame. */
static void append_continuations(struct rk_str *out, uint32_t *stream)
{
    struct rk_str block = {0};

    if (*stream == 1) {
        h2_call_block(&block, "/rankd.v1.Worker/GetStatus", NULL);
        h2_frame(out, H2_HEADERS, 0, *stream, block.text, block.bytes);
        rk_str_fini(&block);
    }
    for (uint32_t i = 0; i < 600; i++) {
        const uint32_t number = *stream * 600 + i;

        rk_str_append_bytes(&block, "\0\x8", 2);
        rk_str_appendf(&block, "%08x", number);
        rk_str_append(&block, "\x8");
        rk_str_appendf(&block, "%08x", ~number);
    }
    h2_frame(out, H2_CONTINUATION, 0, 1, block.text, block.bytes);
    *stream += 2;
    rk_str_fini(&block);
}

/* One header field whose value has no end. */
static void append_endless_field(struct rk_str *out, uint32_t *stream)
{
    struct rk_str block = {0};

    if (*stream == 1) {
        h2_call_block(&block, "/rankd.v1.Worker/GetStatus", NULL);
        rk_str_append_bytes(&block,
                            "\0\x1"
                            "a\x7f\x81\xff\xff\xff\x3",
                            9); /* name "a", a value of 1 GiB */
        h2_frame(out, H2_HEADERS, 0, *stream, block.text, block.bytes);
        rk_str_fini(&block);
        *stream += 2;
    }
    h2_frame(out, H2_CONTINUATION, 0, 1, NULL, 16384);
}

static void append_empty_continuations(struct rk_str *out, uint32_t *stream)
{
    struct rk_str block = {0};

    if (*stream == 1) {
        h2_call_block(&block, "/rankd.v1.Worker/GetStatus", NULL);
        h2_frame(out, H2_HEADERS, 0, *stream, block.text, block.bytes);
        rk_str_fini(&block);
        *stream += 2;
    }
    for (int i = 0; i < FRAMES_A_ROUND; i++)
        h2_frame(out, H2_CONTINUATION, 0, 1, NULL, 0);
}

static void append_pings(struct rk_str *out, uint32_t *stream)
{
    (void)stream;
    for (int i = 0; i < FRAMES_A_ROUND; i++)
        h2_frame(out, H2_PING, 0, 0, "12345678", 8);
}

static void append_settings(struct rk_str *out, uint32_t *stream)
{
    (void)stream;
    for (int i = 0; i < FRAMES_A_ROUND; i++)
        h2_frame(out, H2_SETTINGS, 0, 0, "\0\x4\0\x1\0\0", 6);
}

/* Watch calls whose request never arrives, without acknowledging the daemon's SETTINGS. */
static void append_open_calls(struct rk_str *out, uint32_t *stream)
{
    for (int i = 0; i < FRAMES_A_ROUND; i++, *stream += 2)
        h2_open_call(out, *stream, "/grpc.health.v1.Health/Watch", NULL);
}

const struct flood floods[FLOOD_COUNT] = {
    [FLOOD_RESETS] = {"rapid reset", append_resets},
    [FLOOD_UNKNOWN_RESETS] = {"rapid reset of unknown paths", append_unknown_resets},
    [FLOOD_CONTINUATIONS] = {"CONTINUATION", append_continuations},
    [FLOOD_ENDLESS_FIELD] = {"CONTINUATION of one field", append_endless_field},
    [FLOOD_EMPTY_CONTINUATIONS] = {"empty CONTINUATION", append_empty_continuations},
    [FLOOD_PINGS] = {"PING", append_pings},
    [FLOOD_SETTINGS] = {"SETTINGS", append_settings},
    [FLOOD_OPEN_CALLS] = {"calls without an end", append_open_calls},
};

static void wait_for(int fd, short events)
{
    struct pollfd poller = {.fd = fd, .events = events};

    poll(&poller, 1, 10);
}

/* False when the daemon has closed the connection, or the attack should not continue. */
static bool shake(struct attack *attack, struct rk_tls_conn *conn, int fd)
{
    char byte;

    while (!attack->is_over) {
        if (attack->only_handshake && recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1)
            return false;
        switch (rk_tls_shake(conn)) {
        case RK_TLS_DONE:
            return !attack->only_handshake;
        case RK_TLS_FAILED:
            return false;
        default:
            wait_for(fd, POLLIN);
        }
    }
    return false;
}

/* As h2_send. */
static bool send_tls(struct rk_tls_conn *conn, int fd, const struct rk_str *bytes)
{
    int64_t end_ns = rk_time_now_ns() + SEND_MS * 1000000LL;
    char scratch[4096];
    size_t at = 0;

    while (at < bytes->bytes) {
        ssize_t sent = rk_tls_send(conn, bytes->text + at, bytes->bytes - at), got;

        if (sent < 0 && errno != EAGAIN)
            return false;
        at += sent > 0 ? (size_t)sent : 0;
        do
            got = rk_tls_recv(conn, scratch, sizeof(scratch));
        while (got > 0);
        if (got == 0 || errno != EAGAIN || (at < bytes->bytes && rk_time_now_ns() > end_ns))
            return false;
        if (sent < 0)
            wait_for(fd, POLLIN | POLLOUT);
    }
    return true;
}

/* One connection, until the daemon closes it or the attack is over. */
static void attack_once(struct attack *attack)
{
    int fd = h2_connect(attack->address);
    struct rk_tls_conn *conn = fd >= 0 && attack->tls ? rk_tls_connect(attack->tls, fd, NULL, true) : NULL;
    struct rk_str bytes = {0};
    uint32_t stream = 1;
    bool goes_on = fd >= 0 && (!conn || shake(attack, conn, fd));

    if (fd < 0)
        rk_time_sleep_ms(1);
    attack->num_connections++;
    h2_greeting(&bytes);
    while (goes_on && !attack->is_over && stream < 1U << 30) {
        attack->flood->append(&bytes, &stream);
        goes_on = (conn ? send_tls(conn, fd, &bytes) : h2_send(fd, &bytes, SEND_MS)) || bytes.bytes == 0;
        attack->sent_bytes += goes_on ? (int64_t)bytes.bytes : 0;
        rk_str_fini(&bytes);
        bytes = (struct rk_str){0};
    }
    rk_str_fini(&bytes);
    rk_tls_conn_destroy(conn);
    if (fd >= 0)
        close(fd);
}

static void *run_attacker(void *arg)
{
    struct attack *attack = arg;
    const int nice_value = nice(attack->lower_nice); /* of this thread only */

    (void)nice_value;
    while (!attack->is_over)
        attack_once(attack);
    return NULL;
}

void flood_begin(struct attack *attack)
{
    const char *text = rk_env("RK_TEST_ATTACKER_NICE");
    int64_t lower = ATTACKER_NICE;

    if (text && !rk_parse_i64(text, &lower))
        fail_msg("RK_TEST_ATTACKER_NICE=%s is not a number", text);
    attack->lower_nice = (int)lower;
    for (int i = 0; i < FLOOD_ATTACKERS; i++)
        assert_int_equal(pthread_create(&attack->threads[i], NULL, run_attacker, attack), 0);
}

void flood_end(struct attack *attack)
{
    attack->is_over = true;
    for (int i = 0; i < FLOOD_ATTACKERS; i++)
        pthread_join(attack->threads[i], NULL);
}
