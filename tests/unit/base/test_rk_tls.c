/* TLS over socket pairs, both sides in this thread. The test creates the certificates. */
#include "base/net/rk_tls.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "base/rk_time.h"
#include "tests/support/certs.h"
#include "tests/support/test.h"

#define LARGE_BYTES (3 << 20)
#define STEPS_MAX   1000
#define NOBODY      65534

/* Passphrase "secret". */
static const char encrypted_key[] = "-----BEGIN ENCRYPTED PRIVATE KEY-----\n"
                                    "MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAgRuHhO6j46NwICCAAw\n"
                                    "DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEAYgfuteefVNlvqk0V1+crYEgZCm\n"
                                    "aw8qwP3pKN/Co9mivN697ySMoPaCZ3t6ZTwGcAZmjfaDk+hovPBkxVvVhrHFhLWH\n"
                                    "JpnmjoFcO1tnu+TEkSsbR1JcIjnEi3gGKOxZEQHDNW2K5ndYZ19IiZOuunVuOoE3\n"
                                    "bvyTnPvUwCIrVXAujtHYkPPIAGjqE07FYRqLiq+dbK4fAdUJbw1JQXh0DrnIcNU=\n"
                                    "-----END ENCRYPTED PRIVATE KEY-----\n";

static void write_text(const char *file, const char *suffix, const char *text, size_t bytes)
{
    rk_test_write_file(rk_test_cert_path(file, suffix), text, bytes);
    assert_int_equal(chmod(rk_test_cert_path(file, suffix), 0600), 0);
}

/* The certificates of the tests, and some invalid ones. */
static int make_all(void **state)
{
    static const struct rk_test_cert_spec early = {
        .file = "early", .use = RK_CERT_HOST, .names = {"127.0.0.1"}, .from_s = 3600, .until_s = 7200};
    static const char *const copies[] = {"cut", "encrypted", "empty", "no_key", "cut_key"};
    size_t cert_bytes, key_bytes;

    (void)state;
    rk_test_make_certs();
    rk_test_make_wrong_certs(RK_CERT_HOST);
    rk_test_make_signed("ca", &early, 1);
    rk_free(rk_test_read_file(rk_test_cert_path("host", "crt"), &cert_bytes));
    rk_free(rk_test_read_file(rk_test_cert_path("host", "key"), &key_bytes));
    for (size_t i = 0; i < RK_ARRAY_LEN(copies); i++)
        rk_test_mix_certs(copies[i], "host", "host", SIZE_MAX);
    assert_int_equal(truncate(rk_test_cert_path("cut", "crt"), (off_t)cert_bytes / 2), 0);
    assert_int_equal(truncate(rk_test_cert_path("cut_key", "key"), (off_t)key_bytes / 2), 0);
    assert_int_equal(truncate(rk_test_cert_path("empty", "crt"), 0), 0);
    assert_int_equal(unlink(rk_test_cert_path("no_key", "key")), 0);
    assert_int_equal(mkdir(rk_test_cert_path("folder", "crt"), 0700), 0);
    write_text("large", "crt", "", 0);
    assert_int_equal(truncate(rk_test_cert_path("large", "crt"), (1 << 20) + 1), 0);
    write_text("encrypted", "key", encrypted_key, sizeof(encrypted_key) - 1);
    return 0;
}

/* Goal: errors of files name the file and the problem. */
static void test_tls_files_that_are_wrong(void **state)
{
    static const struct {
        const char *file, *ca;
        rk_code_t code;
        const char *text, *also;
    } cases[] = {
        {"missing", "ca", RK_NOT_FOUND, "tls_cert '", "missing.crt'"},
        {"no_key", "ca", RK_NOT_FOUND, "tls_key '", "No such file"},
        {"host", "missing", RK_NOT_FOUND, "tls_ca '", "missing.crt'"},
        {"host", "empty", RK_INVALID_ARGUMENT, "tls_ca '", "no certificate"},
        {"open", "ca", RK_PERMISSION_DENIED, "tls_key '", "mode 0640"},
        {"cut", "ca", RK_INVALID_ARGUMENT, "tls_cert '", "block 1 of 1"},
        {"host", "cut", RK_INVALID_ARGUMENT, "tls_ca '", "block 1 of 1"},
        {"cut_key", "ca", RK_INVALID_ARGUMENT, "tls_key '", "not a whole private key"},
        {"empty", "ca", RK_INVALID_ARGUMENT, "tls_cert '", "no certificate"},
        {"mixed", "ca", RK_INVALID_ARGUMENT, "tls_key '", "does not belong to the certificate"},
        {"expired", "ca", RK_INVALID_ARGUMENT, "tls_cert '", "expired on 20"},
        {"early", "ca", RK_INVALID_ARGUMENT, "tls_cert '", "not valid before 20"},
        {"encrypted", "ca", RK_INVALID_ARGUMENT, "tls_key '", "passphrase"},
        {"folder", "ca", RK_INVALID_ARGUMENT, "tls_cert '", "not a regular file"},
        {"large", "ca", RK_INVALID_ARGUMENT, "tls_cert '", "at most 1048576"},
    };
    struct rk_tls_files half = rk_test_tls_files("host", "ca");
    struct rk_status *st;
    struct rk_tls *tls;

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_tls_files files = rk_test_tls_files(cases[i].file, cases[i].ca);

        print_message("%s, %s\n", cases[i].file, cases[i].ca);
        assert_fails(rk_tls_create(&tls, &files), cases[i].code, cases[i].text);
        assert_null(tls);
        assert_fails(rk_tls_create(&tls, &files), cases[i].code, cases[i].also);
    }
    if (geteuid() == 0) { /* root ignores modes; for other users the directory's mode applies */
        assert_int_equal(seteuid(NOBODY), 0);
        st = rk_tls_create(&tls, &half);
        assert_int_equal(seteuid(0), 0);
    } else {
        assert_int_equal(chmod(half.cert, 0200), 0);
        st = rk_tls_create(&tls, &half);
        assert_int_equal(chmod(half.cert, 0600), 0);
    }
    assert_fails(st, RK_PERMISSION_DENIED, "Permission denied");
    half.key = NULL;
    assert_fails(rk_tls_create(&tls, &half), RK_INVALID_ARGUMENT, "tls_cert: expected together with tls_key");
}

/* --- pairs --- */

struct pair {
    struct rk_tls *server_tls, *client_tls;
    struct rk_tls_conn *server, *client;
    int fds[2];
    rk_tls_step_t server_step, client_step;
};

struct pair_spec {
    const char *server, *server_ca, *client, *client_ca, *host;
    rk_tls_demand_t demand;
};

static void begin(struct pair *pair, const struct pair_spec *spec)
{
    struct rk_tls_files server = rk_test_tls_files(spec->server, spec->server_ca);
    struct rk_tls_files client = rk_test_tls_files(spec->client, spec->client_ca);

    *pair = (struct pair){0};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair->fds), 0);
    assert_ok(rk_tls_create(&pair->server_tls, &server));
    assert_ok(rk_tls_create(&pair->client_tls, &client));
    pair->server = rk_tls_accept(pair->server_tls, pair->fds[0], spec->demand);
    pair->client = rk_tls_connect(pair->client_tls, pair->fds[1], spec->host, true);
}

static void shake(struct pair *pair)
{
    pair->server_step = pair->client_step = RK_TLS_WAITS;
    for (int i = 0; i < STEPS_MAX; i++) {
        if (pair->client_step == RK_TLS_WAITS)
            pair->client_step = rk_tls_shake(pair->client);
        if (pair->server_step == RK_TLS_WAITS)
            pair->server_step = rk_tls_shake(pair->server);
        if (pair->client_step != RK_TLS_WAITS && pair->server_step != RK_TLS_WAITS)
            return;
        if (pair->client_step == RK_TLS_FAILED || pair->server_step == RK_TLS_FAILED)
            return;
    }
    fail_msg("the handshake does not end");
}

static void end(struct pair *pair)
{
    rk_tls_conn_destroy(pair->client);
    rk_tls_conn_destroy(pair->server);
    rk_tls_destroy(pair->client_tls);
    rk_tls_destroy(pair->server_tls);
    close(pair->fds[0]);
    close(pair->fds[1]);
}

static const struct pair_spec good = {.server = "host",
                                      .server_ca = "ca",
                                      .client = "client",
                                      .client_ca = "ca",
                                      .host = "127.0.0.1",
                                      .demand = RK_TLS_PEER_REQUIRED};

/* Goal: both sides know each other's name, and bytes arrive complete in both directions, for every split by
 * the socket; closing one side ends the other. */
static void test_tls_both_sides_and_bytes(void **state)
{
    char *sent = rk_malloc(LARGE_BYTES), *got = rk_malloc(LARGE_BYTES), *names;
    struct pair pair;

    (void)state;
    for (int i = 0; i < LARGE_BYTES; i++)
        sent[i] = (char)(i * 7 + i / 251);
    begin(&pair, &good);
    shake(&pair);
    assert_int_equal(pair.client_step, RK_TLS_DONE);
    assert_int_equal(pair.server_step, RK_TLS_DONE);
    names = rk_tls_peer_names(pair.server);
    assert_string_equal(names, "alice");
    rk_free(names);
    names = rk_tls_peer_names(pair.client);
    assert_string_equal(names, "127.0.0.1\nlocalhost");
    rk_free(names);
    for (int turn = 0; turn < 2; turn++) {
        struct rk_tls_conn *from = turn ? pair.server : pair.client, *to = turn ? pair.client : pair.server;
        size_t num_sent = 0, num_got = 0;

        memset(got, 0, LARGE_BYTES);
        while (num_got < LARGE_BYTES) {
            ssize_t bytes =
                num_sent < LARGE_BYTES ? rk_tls_send(from, sent + num_sent, LARGE_BYTES - num_sent) : 0;

            assert_true(bytes >= 0 || errno == EAGAIN);
            num_sent += bytes > 0 ? (size_t)bytes : 0;
            bytes = rk_tls_recv(to, got + num_got, RK_MIN(LARGE_BYTES - num_got, (size_t)50000));
            assert_true(bytes > 0 || errno == EAGAIN);
            num_got += bytes > 0 ? (size_t)bytes : 0;
        }
        assert_memory_equal(sent, got, LARGE_BYTES);
        assert_int_equal(rk_tls_recv(to, got, 1), -1);
        assert_int_equal(errno, EAGAIN);
        assert_true(rk_tls_is_drained(to));
    }
    assert_int_equal(rk_tls_send(pair.client, "bye", 3), 3);
    rk_tls_conn_destroy(pair.client);
    pair.client = NULL;
    assert_int_equal(rk_tls_recv(pair.server, got, 100), 3);
    assert_int_equal(rk_tls_recv(pair.server, got, 100), 0);
    end(&pair);
    rk_free(sent);
    rk_free(got);
}

/* Goal: every reason why a client rejects a server has its own message. */
static void test_tls_client_names_what_is_wrong(void **state)
{
    struct pair_spec spec;
    struct rk_cert ca = {0}, made;
    struct pair pair;
    size_t bytes;

    (void)state;
    spec = good;
    spec.host = "127.0.0.2";
    begin(&pair, &spec);
    shake(&pair);
    assert_int_equal(pair.client_step, RK_TLS_FAILED);
    assert_string_equal(rk_tls_error(pair.client),
                        "its certificate is for 127.0.0.1, localhost, not for 127.0.0.2");
    end(&pair);

    spec.host = "example.org";
    begin(&pair, &spec);
    shake(&pair);
    assert_non_null(strstr(rk_tls_error(pair.client), "not for example.org"));
    end(&pair);

    /* openssl req -subj /CN=... without -addext. */
    rk_test_make_signed("ca", &(struct rk_test_cert_spec){.file = "common-name", .use = RK_CERT_HOST}, 1);
    spec = good;
    spec.server = "common-name";
    begin(&pair, &spec);
    shake(&pair);
    assert_string_equal(
        rk_tls_error(pair.client),
        "its certificate has no subject alternative name, only the common name 'common-name', "
        "which does not count; issue one with subjectAltName 127.0.0.1");
    end(&pair);

    spec = good;
    spec.client_ca = "other_ca";
    begin(&pair, &spec);
    shake(&pair);
    assert_non_null(strstr(rk_tls_error(pair.client), "signed by 'ca', which is not one of the authorities"));
    (void)rk_tls_shake(pair.server);
    assert_string_equal(rk_tls_error(pair.server), "it refuses this side: unknown CA");
    end(&pair);

    ca.cert = rk_test_read_file(rk_test_cert_path("ca", "crt"), &bytes);
    ca.key = rk_test_read_file(rk_test_cert_path("ca", "key"), &bytes);
    made = rk_test_make_cert(
        &(struct rk_test_cert_spec){
            .file = "short", .use = RK_CERT_HOST, .names = {"127.0.0.1"}, .from_s = -10, .until_s = 2},
        &ca);
    rk_cert_fini(&made);
    rk_cert_fini(&ca);
    spec = good;
    spec.server = "short";
    begin(&pair, &spec);
    rk_time_sleep_ms(3100);
    shake(&pair);
    assert_non_null(strstr(rk_tls_error(pair.client), "its certificate expired on 20"));
    end(&pair);
}

/* Goal: a server that requires a certificate rejects clients without one and with one of another authority,
 * and both sides report the reason; a server that does not accepts both, and uses only verified names. */
static void test_tls_server_demands(void **state)
{
    struct pair_spec spec = good;
    struct pair pair;
    char *names;
    char byte;

    (void)state;
    spec.client = NULL;
    begin(&pair, &spec);
    shake(&pair);
    assert_int_equal(pair.server_step, RK_TLS_FAILED);
    assert_string_equal(rk_tls_error(pair.server), "it has shown no certificate");
    assert_int_equal(rk_tls_recv(pair.client, &byte, 1), -1); /* TLS 1.3: the client learns of it only now */
    assert_int_equal(errno, EPROTO);
    assert_string_equal(rk_tls_error(pair.client), "it refuses this side: certificate required");
    end(&pair);

    spec.client = "other_ca"; /* self-signed */
    begin(&pair, &spec);
    shake(&pair);
    assert_int_equal(pair.server_step, RK_TLS_FAILED);
    assert_non_null(strstr(rk_tls_error(pair.server), "signed by 'other_ca'"));
    end(&pair);

    spec.client = NULL;
    spec.demand = RK_TLS_PEER_OPTIONAL;
    begin(&pair, &spec);
    shake(&pair);
    assert_int_equal(pair.server_step, RK_TLS_DONE);
    names = rk_tls_peer_names(pair.server);
    assert_string_equal(names, "");
    rk_free(names);
    end(&pair);

    spec.server = "client"; /* not for servers */
    begin(&pair, &spec);
    shake(&pair);
    assert_int_equal(pair.client_step, RK_TLS_FAILED);
    assert_string_equal(rk_tls_error(pair.client), "its certificate is not for a server");
    end(&pair);
}

/* Goal: a peer without TLS is reported as such, on either side. */
static void test_tls_other_side_speaks_plainly(void **state)
{
    static const char request[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    static const char settings[] = "\0\0\0\4\0\0\0\0\0";
    struct pair pair;

    (void)state;
    begin(&pair, &good);
    assert_int_equal(send(pair.fds[1], request, sizeof(request) - 1, 0), sizeof(request) - 1);
    assert_int_equal(rk_tls_shake(pair.server), RK_TLS_FAILED);
    assert_string_equal(rk_tls_error(pair.server), "it does not speak TLS");
    end(&pair);
    begin(&pair, &good);
    assert_int_equal(rk_tls_shake(pair.client), RK_TLS_WAITS);
    assert_int_equal(send(pair.fds[0], settings, sizeof(settings) - 1, 0), sizeof(settings) - 1);
    assert_int_equal(rk_tls_shake(pair.client), RK_TLS_FAILED);
    assert_string_equal(rk_tls_error(pair.client), "it does not speak TLS");
    end(&pair);
    begin(&pair, &good);
    close(pair.fds[0]);
    pair.fds[0] = -1;
    assert_int_equal(rk_tls_shake(pair.client), RK_TLS_FAILED);
    assert_true(rk_tls_error(pair.client)[0] != '\0');
    end(&pair);
}

/* Goal: a reload of invalid files changes nothing; after a valid one new connections use the new files, and
 * old ones continue. */
static void test_tls_reload(void **state)
{
    static const char *const wrong[] = {"cut", "mixed", "expired", "open", "missing", "cut_key"};
    struct rk_tls_files files;
    struct pair pair;
    char *names;
    char byte;

    (void)state;
    begin(&pair, &good);
    for (size_t i = 0; i < RK_ARRAY_LEN(wrong); i++) {
        struct rk_status *st;

        files = rk_test_tls_files(wrong[i], "ca");
        st = rk_tls_reload(pair.server_tls, &files);
        assert_non_null(st);
        rk_status_free(st);
    }
    rk_tls_conn_destroy(pair.server);
    pair.server = rk_tls_accept(pair.server_tls, pair.fds[0], RK_TLS_PEER_REQUIRED);
    shake(&pair);
    assert_int_equal(pair.client_step, RK_TLS_DONE);

    files = rk_test_tls_files("second", "ca");
    assert_ok(rk_tls_reload(pair.server_tls, &files));
    assert_true(rk_tls_expires_s(pair.server_tls) > time(NULL));
    assert_int_equal(rk_tls_send(pair.client, "x", 1), 1);
    assert_int_equal(rk_tls_recv(pair.server, &byte, 1), 1);
    rk_tls_conn_destroy(pair.server);
    rk_tls_conn_destroy(pair.client);
    close(pair.fds[0]);
    close(pair.fds[1]);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.fds), 0);
    pair.server = rk_tls_accept(pair.server_tls, pair.fds[0], RK_TLS_PEER_REQUIRED);
    pair.client = rk_tls_connect(pair.client_tls, pair.fds[1], "second.example", true);
    shake(&pair);
    assert_int_equal(pair.client_step, RK_TLS_DONE);
    names = rk_tls_peer_names(pair.client);
    assert_string_equal(names, "second.example");
    rk_free(names);
    end(&pair);
}

/* Goal: invalid names are rejected, and no name is split in two. */
static void test_certs_names(void **state)
{
    static const char *const wrong[] = {"", "a b", "a,DNS:b", "..", "a..b", "-\n", "://x", "x://"};
    static const char *const right[] = {"node-1.cluster", "*.pods.svc", "10.0.0.7", "fd00::1",
                                        "spiffe://a/b,c"};
    struct rk_cert_spec spec = {.use = RK_CERT_CLIENT, .common_name = "x", .num_names = 1, .until_s = 1};
    struct rk_cert cert;

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(wrong); i++) {
        spec.names = &wrong[i];
        assert_code(rk_cert_make(&cert, &spec, NULL), RK_INVALID_ARGUMENT);
        assert_null(cert.cert);
    }
    for (size_t i = 0; i < RK_ARRAY_LEN(right); i++) {
        spec.names = &right[i];
        assert_ok(rk_cert_make(&cert, &spec, NULL));
        rk_cert_fini(&cert);
    }
    spec.common_name = "";
    assert_fails(rk_cert_make(&cert, &spec, NULL), RK_INVALID_ARGUMENT, "common name");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tls_files_that_are_wrong),
        cmocka_unit_test(test_tls_both_sides_and_bytes),
        cmocka_unit_test(test_tls_client_names_what_is_wrong),
        cmocka_unit_test(test_tls_server_demands),
        cmocka_unit_test(test_tls_other_side_speaks_plainly),
        cmocka_unit_test(test_tls_reload),
        cmocka_unit_test(test_certs_names),
    };

    return cmocka_run_group_tests(tests, make_all, NULL);
}
