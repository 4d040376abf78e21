/* Peers that flood a daemon with frames of HTTP/2, without a token. Whatever they send, the daemon's memory
 * is bounded, a good client is answered at once, and what runs goes on.
 *
 * RK_TEST_SECONDS: how long each flood takes (default 2). RK_TEST_FLOOD: only the one of that name. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_config.h"
#include "base/rk_time.h"
#include "tests/proc/cli_fixture.h"
#include "tests/proc/daemon_fixture.h"
#include "tests/support/certs.h"
#include "tests/support/h2_raw.h"

#define NUM_ATTACKERS  8
#define ATTACKER_NICE  10
#define FRAMES_A_ROUND 200
#define SEND_MS        100
#define SAMPLE_MS      10
#define RSS_MAX_KIB    (256 << 10)
#define RSS_BACK_KIB   (32 << 10) /* above what it was before */
#define RSS_BACK_MS    10000
#define P99_MAX_MS     250.0
#define P99_SECONDS    10 /* shorter samples say nothing about the tail */
#define SAMPLES_MAX    100000
#define SECOND_NS      1000000000LL
#define RUN_MS         240000
#define NUM_CLIENTS    64
#define NUM_CALLS      10000

#define TOKEN "test-admin-token-0123456789abcdef0123"

struct flood {
    const char *label;
    /* Appends the next frames of a connection; `stream` is the next unused number. */
    void (*append)(struct rk_str *out, uint32_t *stream);
};

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

/* One header block without an end: new fields in each frame. */
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

/* Watches whose request never comes, without ever saying that the daemon's SETTINGS were read. */
static void append_open_calls(struct rk_str *out, uint32_t *stream)
{
    for (int i = 0; i < FRAMES_A_ROUND; i++, *stream += 2)
        h2_open_call(out, *stream, "/grpc.health.v1.Health/Watch", NULL);
}

static const struct flood floods[] = {
    {"rapid reset", append_resets},
    {"rapid reset of unknown paths", append_unknown_resets},
    {"CONTINUATION", append_continuations},
    {"CONTINUATION of one field", append_endless_field},
    {"empty CONTINUATION", append_empty_continuations},
    {"PING", append_pings},
    {"SETTINGS", append_settings},
    {"calls without an end", append_open_calls},
};

struct attack {
    const char *address;
    const struct flood *flood;
    struct rk_tls *tls;  /* they speak TLS; NULL: plainly */
    bool only_handshake; /* and leave when the daemon has done its part of it */
    _Atomic bool is_over;
    _Atomic int64_t sent_bytes;
    _Atomic int num_connections;
    pthread_t threads[NUM_ATTACKERS];
};

static void wait_for(int fd, short events)
{
    struct pollfd poller = {.fd = fd, .events = events};

    poll(&poller, 1, 10);
}

/* False when the daemon has closed, or is not to be spoken to any more. */
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

/* One connection, until the daemon ends it or the attack is over. */
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
    const int nice_value = nice(ATTACKER_NICE); /* of this thread: it stands for another machine */

    (void)nice_value;
    while (!attack->is_over)
        attack_once(attack);
    return NULL;
}

static int64_t rss_kib(const struct fixture *fixture)
{
    char *path = rk_format("/proc/%d/statm", (int)rk_proc_pid(fixture->proc));
    char *text = rk_test_read_file(path, NULL);
    long pages = -1;

    assert_int_equal(sscanf(text, "%*d %ld", &pages), 1);
    rk_free(text);
    rk_free(path);
    return pages * (sysconf(_SC_PAGESIZE) >> 10);
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

struct seen {
    int64_t peak_kib;
    int num_samples;
    double *samples; /* milliseconds of GetStatus */
};

/* Asks for the status again and again while the attack lasts. */
static void watch_attack(struct seen *seen, struct fixture *fixture, int64_t seconds)
{
    int64_t end_ns = rk_time_now_ns() + seconds * SECOND_NS;
    struct rk_worker_status status;

    while (rk_time_now_ns() < end_ns && seen->num_samples < SAMPLES_MAX) {
        int64_t begin_ns = rk_time_now_ns();

        assert_true(rk_proc_is_running(fixture->proc));
        assert_ok(rk_client_get_status(fixture->client, &status));
        seen->samples[seen->num_samples++] = (double)(rk_time_now_ns() - begin_ns) / 1e6;
        seen->peak_kib = RK_MAX(seen->peak_kib, rss_kib(fixture));
        rk_time_sleep_ms(SAMPLE_MS);
    }
}

static int64_t wait_back(struct fixture *fixture, int64_t limit_kib)
{
    int64_t begin_ns = rk_time_now_ns();

    while (rss_kib(fixture) > limit_kib &&
           rk_time_now_ns() - begin_ns < rk_proc_timeout_ms(RSS_BACK_MS) * 1000000)
        rk_time_sleep_ms(SAMPLE_MS);
    return rss_kib(fixture);
}

static void begin_attack(struct attack *attack)
{
    for (int i = 0; i < NUM_ATTACKERS; i++)
        assert_int_equal(pthread_create(&attack->threads[i], NULL, run_attacker, attack), 0);
}

static void end_attack(struct attack *attack)
{
    attack->is_over = true;
    for (int i = 0; i < NUM_ATTACKERS; i++)
        pthread_join(attack->threads[i], NULL);
}

static void run_attack(struct fixture *fixture, struct attack *attack, int64_t seconds)
{
    const char *label = attack->only_handshake ? "TLS handshakes" : attack->flood->label;
    struct seen seen = {.samples = rk_calloc(SAMPLES_MAX, sizeof(double))};
    int64_t before_kib = rss_kib(fixture), after_kib;
    double p99;

    begin_attack(attack);
    watch_attack(&seen, fixture, seconds);
    end_attack(attack);
    after_kib = wait_back(fixture, before_kib + RSS_BACK_KIB);
    qsort(seen.samples, (size_t)seen.num_samples, sizeof(double), compare_doubles);
    p99 = seen.samples[seen.num_samples * 99 / 100];
    print_message(
        "%s: %.1f MB sent over %d connections; resident %lld, at most %lld, then %lld MiB; GetStatus "
        "p50 %.2f ms, p99 %.2f ms, %d times\n",
        label, (double)attack->sent_bytes / 1e6, (int)attack->num_connections, (long long)before_kib >> 10,
        (long long)seen.peak_kib >> 10, (long long)after_kib >> 10, seen.samples[seen.num_samples / 2], p99,
        seen.num_samples);
    assert_true(seen.peak_kib <= RSS_MAX_KIB);
    assert_true(after_kib <= before_kib + RSS_BACK_KIB);
#ifndef __SANITIZE_ADDRESS__ /* it makes everything ten times slower */
    if (seconds >= P99_SECONDS)
        assert_below(label, p99, P99_MAX_MS);
#endif
    rk_free(seen.samples);
}

static void run_flood(struct fixture *fixture, const char *address, const struct flood *flood,
                      int64_t seconds)
{
    struct attack attack = {.address = address, .flood = flood};

    run_attack(fixture, &attack, seconds);
}

static char *write_file(const char *name, const char *text)
{
    char *path = rk_test_temp_path(name);

    rk_test_write_file(path, text, strlen(text));
    assert_int_equal(chmod(path, 0600), 0);
    return path;
}

/* A daemon with a token, of which AddressSanitizer, where it is, keeps no freed memory back. */
static void start(struct fixture *fixture)
{
    char *path = write_file("tokens", "admin:" TOKEN "\n"), *flag = rk_format("--rpc.token_file=%s", path);
    char *roots = rk_format("--ckpt.roots=[\"%s\"]", rk_test_temp_dir());
    const char *args[] = {
        "--lease.ttl=10min", "--cpu.num_threads=1", "--health.listen=127.0.0.1:0", flag, roots, NULL};

    setenv("ASAN_OPTIONS", "quarantine_size_mb=1:thread_local_quarantine_size_kb=64", 1);
    fixture_start(fixture, args);
    unsetenv("ASAN_OPTIONS");
    rk_client_destroy(fixture->client);
    fixture->client = rk_client_create(rk_proc_address(fixture->proc), TOKEN);
    rk_free(roots);
    rk_free(flag);
    rk_free(path);
}

/* Goal: every flood leaves the daemon within 256 MiB, and back where it was 10 s later; a good client is
 * answered within 250 ms, and a method that runs meanwhile goes on. Method: 8 threads send as fast as they
 * can, and connect again when they are cut, while another client samples GetStatus; AddressSanitizer, where
 * it is, keeps no freed memory back. */
static void test_floods_are_survived(void **state)
{
    const char *text = rk_env("RK_TEST_SECONDS"), *only = rk_env("RK_TEST_FLOOD");
    struct fixture fixture;
    int64_t seconds = 2;

    (void)state;
    assert_true(!text || rk_parse_i64(text, &seconds));
    start(&fixture);
    fixture_lead(&fixture);
    fixture_init_models(&fixture);
    for (size_t i = 0; i < RK_ARRAY_LEN(floods); i++) {
        struct rk_execute_header header;
        struct rk_client_stream *stream;
        char outcome[32];

        if (only && strcmp(only, floods[i].label) != 0)
            continue;
        stream = fixture_start_endless(&fixture, &header);
        run_flood(&fixture, rk_proc_address(fixture.proc), &floods[i], seconds);
        assert_ok(fixture_cancel(&fixture, &header, false, outcome));
        assert_string_equal(outcome, "flagged");
        fixture_read_result(&fixture, stream, NULL);
        assert_code(rk_client_finish(stream), RK_CANCELLED);
    }
    fixture_stop(&fixture);
}

/* Goal: the listener for probes is as well protected, though it takes no token. */
static void test_floods_of_health_listen_are_survived(void **state)
{
    static const char line[] = "rankd: health.listen is ";
    static const size_t some[] = {0, 2, 7}; /* of floods */
    struct fixture fixture;
    char *out, *address;

    (void)state;
    start(&fixture);
    rk_proc_wait_output(fixture.proc, line, rk_proc_timeout_ms(RSS_BACK_MS));
    out = rk_proc_stdout(fixture.proc);
    address = strstr(out, line) + strlen(line);
    address[strcspn(address, "\n")] = '\0';
    for (size_t i = 0; i < RK_ARRAY_LEN(some); i++)
        run_flood(&fixture, address, &floods[some[i]], 2);
    rk_free(out);
    fixture_stop(&fixture);
}

/* A daemon that takes TLS from everybody, and calls with the token. */
static void start_tls(struct fixture *fixture)
{
    struct rk_tls_files files = rk_test_tls_files("host", "ca");
    char *path = write_file("tokens", "admin:" TOKEN "\n"), *flag = rk_format("--rpc.token_file=%s", path);
    char *cert = rk_format("--rpc.tls_cert=%s", files.cert), *key = rk_format("--rpc.tls_key=%s", files.key);
    const char *args[] = {flag, cert, key, "--cpu.num_threads=1", NULL};

    setenv("ASAN_OPTIONS", "quarantine_size_mb=1:thread_local_quarantine_size_kb=64", 1);
    fixture_start(fixture, args);
    unsetenv("ASAN_OPTIONS");
    rk_client_destroy(fixture->client);
    files = rk_test_tls_files(NULL, "ca");
    fixture->client = rk_client_create_tls(rk_proc_address(fixture->proc), TOKEN, &files);
    rk_free(cert);
    rk_free(key);
    rk_free(flag);
    rk_free(path);
}

/* Goal: TLS changes nothing of all that, whether they flood behind a handshake, in front of it, or with
 * nothing but handshakes; and who comes meanwhile with a good one is let in. */
static void test_floods_over_tls_are_survived(void **state)
{
    static const size_t some[] = {0, 2, 5}; /* of floods */
    static const struct rk_tls_files none = {.prefix = ""};
    struct rk_tls_files files;
    struct attack attack = {.flood = &floods[0]};
    struct rk_worker_status status;
    struct fixture fixture;
    struct rk_tls *tls;

    (void)state;
    rk_test_make_certs();
    assert_ok(rk_tls_create(&tls, &none));
    start_tls(&fixture);
    attack.address = rk_proc_address(fixture.proc);
    run_attack(&fixture, &attack, 2); /* HTTP/2 where TLS is expected */
    for (size_t i = 0; i < RK_ARRAY_LEN(some); i++) {
        attack = (struct attack){.address = attack.address, .flood = &floods[some[i]], .tls = tls};
        run_attack(&fixture, &attack, 2);
    }
    attack =
        (struct attack){.address = attack.address, .flood = &floods[0], .tls = tls, .only_handshake = true};
    run_attack(&fixture, &attack, 3);
    attack.is_over = false;
    files = rk_test_tls_files(NULL, "ca");
    begin_attack(&attack);
    for (int i = 0; i < 5; i++) {
        struct rk_client *client = rk_client_create_tls(attack.address, TOKEN, &files);
        int64_t begin_ns = rk_time_now_ns();

        assert_ok(rk_client_get_status(client, &status));
        print_message("new connection: %lld ms\n", (long long)(rk_time_now_ns() - begin_ns) / 1000000);
        rk_client_destroy(client);
    }
    end_attack(&attack);
    rk_tls_destroy(tls);
    fixture_stop(&fixture);
}

/* Goal: a training run on a daemon ends as if nothing were, with a rapid reset all the while. */
static void test_run_goes_on_during_a_flood(void **state)
{
    char *token_path = write_file("token", TOKEN "\n"), *dir = new_run_dir();
    struct attack attack = {.flood = &floods[0]};
    struct fixture fixture;
    struct outcome outcome;

    (void)state;
    start(&fixture);
    attack.address = rk_proc_address(fixture.proc);
    begin_attack(&attack);
    outcome = finish_rankctl(
        start_rankctl((const char *const[]){"run", TINY_JOB, "--hosts", attack.address, "--token-file",
                                            token_path, "--run-dir", dir, TINY,
                                            "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=1",
                                            "actor_rollout_ref.rollout.tensor_model_parallel_size=1", NULL}),
        RUN_MS);
    end_attack(&attack);
    assert_exit(&outcome, 0);
    assert_int_equal(count_metrics(dir), TINY_STEPS);
    outcome_fini(&outcome);
    fixture_stop(&fixture);
    rk_free(token_path);
    rk_free(dir);
}

/* Goal: nothing of all this ever hits a client that behaves: many connections with many short calls, calls
 * that are given up early among them. */
static void make_short_calls(struct fixture *fixture, const struct rk_tls_files *files, int num_calls)
{
    const char *address = rk_proc_address(fixture->proc);
    struct rk_client *clients[NUM_CLIENTS];
    struct rk_worker_status status;
    char *errors;

    for (int i = 0; i < NUM_CLIENTS; i++)
        clients[i] = files ? rk_client_create_tls(address, TOKEN, files) : rk_client_create(address, TOKEN);
    for (int i = 0; i < num_calls; i++) {
        struct rk_client *client = clients[i % NUM_CLIENTS];

        assert_ok(rk_client_get_status(client, &status));
        if (i % 10 == 0) {
            struct rk_client_stream *stream = rk_client_open(client, RK_RPC_ID_KEEP_ALIVE);

            rk_client_cancel(stream);
            assert_code(rk_client_finish(stream), RK_CANCELLED);
        }
    }
    for (int i = 0; i < NUM_CLIENTS; i++)
        rk_client_destroy(clients[i]);
    errors = rk_proc_stderr(fixture->proc);
    assert_null(strstr(errors, "cut peer="));
    assert_null(strstr(errors, "dropped peer="));
    rk_free(errors);
}

static void test_short_calls_are_never_cut(void **state)
{
    struct rk_tls_files files;
    struct fixture fixture;

    (void)state;
    start(&fixture);
    make_short_calls(&fixture, NULL, NUM_CALLS);
    fixture_stop(&fixture);
    rk_test_make_certs();
    files = rk_test_tls_files(NULL, "ca");
    start_tls(&fixture);
    make_short_calls(&fixture, &files, NUM_CALLS / 5);
    fixture_stop(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_floods_are_survived),
        cmocka_unit_test(test_floods_of_health_listen_are_survived),
        cmocka_unit_test(test_floods_over_tls_are_survived),
        cmocka_unit_test(test_run_goes_on_during_a_flood),
        cmocka_unit_test(test_short_calls_are_never_cut),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
