/* A daemon with TLS on TCP. */
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "base/rk_time.h"
#include "tests/proc/daemon_fixture.h"
#include "tests/support/certs.h"
#include "tests/support/h2_raw.h"

#define TOKEN       "dddddddddddddddddddddddddddddddd"
#define OTHER_TOKEN "eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee"
#define ARGS_MAX    8

/* The daemon's flags for TLS files. Borrowed until the next call. */
static const char *const *tls_args(const char *file, const char *ca, const char *const *more)
{
    static char *made[3];
    static const char *args[ARGS_MAX];
    int count = 0;

    for (int i = 0; i < 3; i++)
        rk_free(made[i]);
    memset(args, 0, sizeof(args));
    args[count++] = made[0] = rk_format("--rpc.tls_cert=%s", rk_test_cert_path(file, "crt"));
    args[count++] = made[1] = rk_format("--rpc.tls_key=%s", rk_test_cert_path(file, "key"));
    made[2] = ca ? rk_format("--rpc.tls_ca=%s", rk_test_cert_path(ca, "crt")) : NULL;
    if (ca)
        args[count++] = made[2];
    for (; more && *more; more++) {
        assert_true(count < ARGS_MAX - 1);
        args[count++] = *more;
    }
    return args;
}

static struct rk_proc *start(const char *file, const char *ca, const char *const *more)
{
    return rk_proc_start_rankd(tls_args(file, ca, more));
}

static void stop(struct rk_proc *proc)
{
    int code;

    rk_proc_signal(proc, SIGTERM);
    code = rk_proc_wait(proc, 20000);
    if (code != 0)
        fail_msg("exit code %d: %s", code, rk_proc_stderr(proc));
    rk_proc_destroy(proc);
}

/* GetStatus on a new connection. */
static struct rk_status *ask_at(const char *address, const char *token, const char *file, const char *ca)
{
    struct rk_tls_files files = rk_test_tls_files(file, ca);
    struct rk_client *client = rk_client_create_tls(address, token, &files);
    struct rk_worker_status status;
    struct rk_status *st = rk_client_get_status(client, &status);

    rk_client_destroy(client);
    return st;
}

static struct rk_status *ask(struct rk_proc *proc, const char *token, const char *file, const char *ca)
{
    return ask_at(rk_proc_address(proc), token, file, ca);
}

static void assert_logged(struct rk_proc *proc, const char *text)
{
    char *log;

    for (int i = 0; i < 100; i++) {
        log = rk_proc_stderr(proc);
        if (strstr(log, text)) {
            rk_free(log);
            return;
        }
        rk_free(log);
        rk_time_sleep_ms(50);
    }
    log = rk_proc_stderr(proc);
    fail_msg("no \"%s\" in: %s", text, log);
}

/* Goal: with rpc.tls_ca only clients with a certificate of this authority are answered; the log has the
 * rejected ones with the reason. */
static void test_daemon_tls_mutual(void **state)
{
    struct rk_proc *proc = start("host", "ca", NULL);
    struct rk_worker_status status;
    struct rk_client *plain;

    (void)state;
    assert_ok(ask(proc, NULL, "client", "ca"));
    assert_code(ask(proc, NULL, NULL, "ca"), RK_UNAVAILABLE);
    assert_logged(proc, "it has shown no certificate");
    assert_code(ask(proc, NULL, "stranger", "ca"), RK_UNAVAILABLE);
    assert_logged(proc, "signed by 'other_ca'");
    assert_code(ask(proc, NULL, "client", "other_ca"), RK_UNAVAILABLE);
    assert_logged(proc, "it closed the connection"); /* gRPC does not report the reason */
    plain = rk_client_create(rk_proc_address(proc), NULL);
    assert_code(rk_client_get_status(plain, &status), RK_UNAVAILABLE);
    rk_client_destroy(plain);
    assert_logged(proc, "it does not speak TLS");
    assert_ok(ask(proc, NULL, "client", "ca"));
    stop(proc);
}

/* Goal: without rpc.tls_ca, and where certificates are optional, tokens decide. */
static void test_daemon_tls_with_tokens(void **state)
{
    char *path = rk_test_temp_path("tokens"), *flag = rk_format("--rpc.token_file=%s", path);
    const char *only_tokens[] = {flag, "--rpc.listen=0.0.0.0:0", "--comm.listen=unix", NULL};
    const char *optional[] = {flag, "--rpc.tls_client_auth=optional", NULL};
    static const char tokens[] = "driver:" TOKEN "\nviewer:" OTHER_TOKEN " cert=alice\nviewer cert=alice\n";
    struct rk_proc *proc;
    char *address;

    (void)state;
    rk_test_write_file(path, tokens, sizeof(tokens) - 1);
    assert_int_equal(chmod(path, 0600), 0);
    proc = start("host", NULL, only_tokens);
    address = rk_format("127.0.0.1%s", strrchr(rk_proc_address(proc), ':'));
    assert_ok(ask_at(address, TOKEN, NULL, "ca"));
    assert_refused(ask_at(address, NULL, NULL, "ca"), RK_UNAUTHENTICATED, "TOKEN");
    assert_refused(ask_at(address, OTHER_TOKEN, "client", "ca"), RK_PERMISSION_DENIED, "CERTIFICATE");
    stop(proc);
    rk_free(address);

    proc = start("host", "ca", optional);
    assert_ok(ask(proc, TOKEN, NULL, "ca"));
    assert_refused(ask(proc, OTHER_TOKEN, NULL, "ca"), RK_PERMISSION_DENIED, "CERTIFICATE");
    assert_ok(ask(proc, OTHER_TOKEN, "client", "ca"));
    assert_ok(ask(proc, NULL, "client", "ca"));
    assert_refused(ask(proc, NULL, NULL, "ca"), RK_UNAUTHENTICATED, "TOKEN");
    assert_code(ask(proc, TOKEN, "stranger", "ca"), RK_UNAVAILABLE); /* a given certificate must be valid */
    stop(proc);
    rk_free(flag);
    rk_free(path);
}

/* Goal: SIGHUP loads a new certificate for new connections; if the file is incomplete, expired or does not
 * match the key, the old one is kept and the log has the reason; existing connections continue. */
static void test_daemon_tls_reload(void **state)
{
    static const struct {
        const char *file, *text;
        size_t most;
    } wrong[] = {{"second", "rpc.tls_cert '", 200},
                 {"expired", "the certificate expired on", SIZE_MAX},
                 {"open", "readable by group or others (mode 0640)", SIZE_MAX}};
    struct rk_tls_files files = rk_test_tls_files("client", "ca");
    struct rk_worker_status status;
    struct rk_client *client;
    struct rk_proc *proc;

    (void)state;
    rk_test_mix_certs("live", "host", "host", SIZE_MAX);
    proc = start("live", "ca", NULL);
    client = rk_client_create_tls(rk_proc_address(proc), NULL, &files);
    assert_ok(rk_client_get_status(client, &status));
    for (size_t i = 0; i < RK_ARRAY_LEN(wrong); i++) {
        rk_test_mix_certs("live", wrong[i].file, wrong[i].file, wrong[i].most);
        if (strcmp(wrong[i].file, "open") == 0)
            assert_int_equal(chmod(rk_test_cert_path("live", "key"), 0640), 0);
        rk_proc_signal(proc, SIGHUP);
        assert_logged(proc, wrong[i].text);
        assert_ok(rk_client_get_status(client, &status));
        assert_ok(ask(proc, NULL, "client", "ca"));
    }
    assert_logged(proc, "reload refused, the old configuration stays");
    rk_test_mix_certs("live", "second", "second", SIZE_MAX); /* not for 127.0.0.1 */
    rk_proc_signal(proc, SIGHUP);
    assert_logged(proc, "reloaded: certificates");
    assert_code(ask(proc, NULL, "client", "ca"), RK_UNAVAILABLE);
    assert_ok(rk_client_get_status(client, &status)); /* the old connection */
    rk_client_destroy(client);
    stop(proc);
}

/* Goal: a start with invalid files exits with code 2 and names the file. */
static void test_daemon_tls_refuses_to_start(void **state)
{
    static const char *const outside[] = {"--rpc.listen=0.0.0.0:0", "--comm.listen=unix", NULL};
    static const struct {
        const char *file, *ca, *text;
        bool is_outside;
    } cases[] = {
        {"expired", "ca", "rpc.tls_cert '", false},
        {"open", "ca", "mode 0640", false},
        {"mixed", "ca", "does not belong to the certificate", false},
        {"missing", "ca", "missing.crt'", false},
        {"host", "missing", "rpc.tls_ca '", false},
        {"host", NULL, "neither a certificate nor a token", true},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_proc *proc = start(cases[i].file, cases[i].ca, cases[i].is_outside ? outside : NULL);
        char *log;

        assert_int_equal(rk_proc_wait(proc, 20000), 2);
        log = rk_proc_stderr(proc);
        print_message("%s", log);
        assert_non_null(strstr(log, cases[i].text));
        rk_free(log);
        rk_proc_destroy(proc);
    }
}

/* Goal: a connection that does not complete the handshake within 5 s is closed, for every part of it that is
 * sent, and does not block others. */
static void test_daemon_tls_slow_handshake(void **state)
{
    static const unsigned char record[] = {22, 3, 1,    2, 0, 1,
                                           0,  1, 0xfc, 3, 3}; /* the head of a ClientHello */
    struct rk_proc *proc = start("host", "ca", NULL);
    int64_t begin_ns;
    int fds[40];

    (void)state;
    (void)rk_proc_address(proc);
    begin_ns = rk_time_now_ns();
    for (size_t i = 0; i < RK_ARRAY_LEN(fds); i++) {
        fds[i] = h2_connect(rk_proc_address(proc));
        assert_true(fds[i] >= 0);
        if (i % 2)
            assert_true(send(fds[i], record, 1 + i % sizeof(record), MSG_NOSIGNAL) > 0);
    }
    assert_ok(ask(proc, NULL, "client", "ca"));
    while (rk_time_now_ns() - begin_ns < 4000000000LL) { /* sending single bytes does not extend the
                                                          * timeout */
        for (size_t i = 1; i < RK_ARRAY_LEN(fds); i += 4)
            (void)send(fds[i], "", 1, MSG_NOSIGNAL);
        rk_time_sleep_ms(500);
    }
    for (size_t i = 0; i < RK_ARRAY_LEN(fds); i++) {
        assert_true(h2_wait_closed(fds[i], 5000));
        close(fds[i]);
    }
    assert_true(rk_time_now_ns() - begin_ns < rk_proc_timeout_ms(9000) * 1000000);
    assert_logged(proc, "no TLS handshake within 5 s");
    assert_ok(ask(proc, NULL, "client", "ca"));
    stop(proc);
}

static int make_all(void **state)
{
    (void)state;
    rk_test_make_certs();
    rk_test_make_wrong_certs(RK_CERT_HOST);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_daemon_tls_mutual),         cmocka_unit_test(test_daemon_tls_with_tokens),
        cmocka_unit_test(test_daemon_tls_reload),         cmocka_unit_test(test_daemon_tls_refuses_to_start),
        cmocka_unit_test(test_daemon_tls_slow_handshake),
    };

    return cmocka_run_group_tests(tests, make_all, NULL);
}
