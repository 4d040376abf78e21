#include "daemon/guard/listen.h"

#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "tests/support/test.h"

#define NAME_107                                                                                             \
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" \
    "aaaaa"

/* Goal: valid addresses, and which of them are local. */
static void test_rk_listen_parse_good_addresses(void **state)
{
    static const struct {
        const char *text, *formatted;
        bool is_local;
    } cases[] = {
        {"127.0.0.1:0", "127.0.0.1:0", true},
        {"127.1.2.3:65535", "127.1.2.3:65535", true},
        {"[::1]:7000", "[::1]:7000", true},
        {"localhost:7000", "127.0.0.1:7000", true},
        {"unix:/run/rankd.sock", "unix:/run/rankd.sock", true},
        {"unix-abstract:rankd", "unix-abstract:rankd", true},
        {"0.0.0.0:7000", "0.0.0.0:7000", false},
        {"[::]:7000", "[::]:7000", false},
        {"10.1.2.3:7000", "10.1.2.3:7000", false},
        {"[::ffff:10.1.2.3]:1", "[::ffff:10.1.2.3]:1", false},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_listen listen;
        char *text;

        print_message("%s\n", cases[i].text);
        assert_ok(rk_listen_parse(&listen, "rpc.listen", cases[i].text));
        assert_int_equal(listen.is_local, cases[i].is_local);
        text = rk_listen_format(&listen, listen.port);
        assert_string_equal(text, cases[i].formatted);
        rk_free(text);
    }
}

static void test_rk_listen_parse_bad_addresses_are_refused(void **state)
{
    static const char *const cases[] = {
        "",
        "7000",
        "127.0.0.1",
        "127.0.0.1:",
        "127.0.0.1:-1",
        "127.0.0.1:65536",
        ":7000",
        "127.0.0.1:x",
        "unix:",
        "unix:relative",
        "unix-abstract:",
        "300.0.0.1:7000",
        "unix:/" NAME_107,
        "unix-abstract:" NAME_107,
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_listen listen;

        print_message("'%s'\n", cases[i]);
        assert_fails(rk_listen_parse(&listen, "rpc.listen", cases[i]), RK_INVALID_ARGUMENT, "rpc.listen");
    }
}

/* Goal: addresses reachable from other hosts require TLS or --insecure. */
static void test_rk_listen_is_same_cases(void **state)
{
    static const struct {
        const char *a, *b;
        bool expected;
    } cases[] = {
        {"127.0.0.1:7000", "127.0.0.1:7000", true},
        {"127.0.0.1:7000", "127.0.0.1:7001", false},
        {"127.0.0.1:7000", "127.0.0.2:7000", false},
        {"127.0.0.1:0", "127.0.0.1:0", false},
        {"unix:/a", "unix:/a", true},
        {"unix:/a", "unix:/b", false},
        {"unix:/a", "unix-abstract:/a", false},
        {"unix:/a", "127.0.0.1:7000", false},
        {"unix-abstract:a", "unix-abstract:a", true},
        {"[::1]:7000", "[0:0:0:0:0:0:0:1]:7000", true},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_listen a, b;

        print_message("%s %s\n", cases[i].a, cases[i].b);
        assert_ok(rk_listen_parse(&a, "rpc.listen", cases[i].a));
        assert_ok(rk_listen_parse(&b, "health.listen", cases[i].b));
        assert_int_equal(rk_listen_is_same(&a, &b), cases[i].expected);
        assert_int_equal(rk_listen_is_same(&b, &a), cases[i].expected);
    }
}

/* Goal: an error names the key whose value it is about. */
static void test_rk_listen_parse_names_the_key(void **state)
{
    struct rk_listen listen;

    (void)state;
    assert_fails(rk_listen_parse(&listen, "health.listen", "nonsense"), RK_INVALID_ARGUMENT, "health.listen");
    assert_fails(rk_listen_parse(&listen, "health.listen", "unix:relative"), RK_INVALID_ARGUMENT,
                 "health.listen");
}

static void test_rk_listen_check_policy_cases(void **state)
{
    static const struct {
        const char *text;
        bool is_insecure, has_tokens, has_tls, asks_certificates;
        const char *refusal; /* NULL: allowed */
    } cases[] = {
        {"127.0.0.1:0", false, false, false, false, NULL},
        {"unix:/run/rankd.sock", false, false, false, false, NULL},
        {"unix-abstract:rankd", false, true, false, false, NULL},
        {"unix-abstract:rankd", true, false, false, false, NULL},
        {"0.0.0.0:7000", true, false, false, false, NULL},
        {"0.0.0.0:7000", false, false, true, true, NULL},
        {"0.0.0.0:7000", false, true, true, false, NULL},
        {"unix-abstract:rankd", false, false, false, false, "abstract socket"},
        {"unix-abstract:rankd", false, false, true, true, "abstract socket"}, /* TLS is for TCP */
        {"0.0.0.0:7000", false, false, false, false, "--insecure"},
        /* a token in plain text is no secret */
        {"0.0.0.0:7000", false, true, false, false, "rpc.tls_cert"},
        {"0.0.0.0:7000", false, false, true, false, "neither a certificate nor a "},
        {"[::]:7000", false, true, false, false, "can be reached from other hosts"},
        {"192.0.2.1:7000", false, true, false, false, "192.0.2.1 can be reached"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_listen listen;
        struct rk_status *st;

        print_message("%s\n", cases[i].text);
        assert_ok(rk_listen_parse(&listen, "rpc.listen", cases[i].text));
        st = rk_listen_check_policy(&listen, cases[i].is_insecure, cases[i].has_tls,
                                    cases[i].asks_certificates, cases[i].has_tokens);
        if (cases[i].refusal)
            assert_fails(st, RK_INVALID_ARGUMENT, cases[i].refusal);
        else
            assert_ok(st);
    }
}

/* Goal: the probe distinguishes an address in use from an invalid one. */
static void test_rk_listen_probe_returns_the_reason(void **state)
{
    struct sockaddr_un taken = {.sun_family = AF_UNIX, .sun_path = "\0rankd-probe-test"};
    socklen_t taken_bytes = (socklen_t)(sizeof(taken.sun_family) + 1 + strlen(taken.sun_path + 1));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int again, port;
    char *path = rk_test_temp_path("file"), *text;
    struct rk_listen listen;
    struct rk_status *st;

    (void)state;
    assert_int_equal(bind(fd, (struct sockaddr *)&taken, taken_bytes), 0);
    assert_ok(rk_listen_parse(&listen, "rpc.listen", "unix-abstract:rankd-probe-test"));
    st = rk_listen_probe(&listen);
    assert_string_equal(rk_status_reason(st), "ADDRESS_IN_USE");
    rk_status_free(st);
    close(fd);
    assert_ok(rk_listen_probe(&listen));

    assert_ok(rk_listen_parse(&listen, "rpc.listen", "192.0.2.1:7000"));
    assert_fails(rk_listen_probe(&listen), RK_UNAVAILABLE, "cannot listen on 192.0.2.1:7000");
    assert_ok(rk_listen_parse(&listen, "rpc.listen", "unix:/nonexistent/dir/socket"));
    assert_fails(rk_listen_probe(&listen), RK_INVALID_ARGUMENT, "'/nonexistent/dir'");

    rk_test_write_file(path, "x", 1);
    text = rk_format("unix:%s", path);
    assert_ok(rk_listen_parse(&listen, "rpc.listen", text));
    assert_fails(rk_listen_probe(&listen), RK_INVALID_ARGUMENT, "not a socket");
    unlink(path);
    assert_ok(rk_listen_probe(&listen));

    /* a socket on which another program listens, and the same when that has ended */
    assert_ok(rk_listen_open(&fd, &port, &listen, 1));
    assert_true(fd >= 0);
    st = rk_listen_probe(&listen);
    assert_string_equal(rk_status_reason(st), "ADDRESS_IN_USE");
    assert_non_null(strstr(rk_status_message(st), path));
    rk_status_free(st);
    st = rk_listen_open(&again, &port, &listen, 1);
    assert_string_equal(rk_status_reason(st), "ADDRESS_IN_USE");
    rk_status_free(st);
    close(fd);
    assert_ok(rk_listen_open(&again, &port, &listen, 1));
    close(again);
    rk_free(text);
    rk_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rk_listen_parse_good_addresses),
        cmocka_unit_test(test_rk_listen_parse_bad_addresses_are_refused),
        cmocka_unit_test(test_rk_listen_is_same_cases),
        cmocka_unit_test(test_rk_listen_parse_names_the_key),
        cmocka_unit_test(test_rk_listen_check_policy_cases),
        cmocka_unit_test(test_rk_listen_probe_returns_the_reason),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
