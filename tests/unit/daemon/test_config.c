#include "daemon/config_internal.h"

#include <dlfcn.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "daemon/rk_daemon.h"
#include "tests/support/test.h"

#define HOST_WITHOUT_ANSWER "nobody-answers.test"

/* Replaces the C library's function: simulates an unreachable name server for one name. */
int getaddrinfo(const char *restrict node, const char *restrict service,
                const struct addrinfo *restrict hints, struct addrinfo **restrict result)
{
    int (*next)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    void *symbol = dlsym(RTLD_NEXT, "getaddrinfo");

    if (strcmp(node, HOST_WITHOUT_ANSWER) == 0)
        return EAI_AGAIN;
    memcpy(&next, &symbol, sizeof(next));
    return next(node, service, hints, result);
}

static struct rk_status *load(struct rk_settings *settings, const char *file, const char *const *overrides,
                              int64_t num_overrides)
{
    struct rk_daemon_args args = {
        .config_file = file, .overrides = overrides, .num_overrides = num_overrides};
    struct rk_config *config = NULL;
    struct rk_status *st = rk_daemon_config_load(&config, &args);

    *settings = (struct rk_settings){0};
    if (!st)
        st = rk_settings_init(settings, config);
    rk_config_destroy(config);
    return st;
}

/* Goal: the defaults are the documented ones: loopback, an ephemeral port, no tokens, no state on disk.
 */
static void test_rk_settings_init_defaults(void **state)
{
    struct rk_settings settings;
    char *address;

    (void)state;
    assert_ok(load(&settings, NULL, NULL, 0));
    address = rk_listen_format(&settings.listen, settings.listen.port);
    assert_string_equal(address, "127.0.0.1:0");
    assert_string_equal(settings.device, "cpu");
    assert_string_equal(settings.comm_listen, "unix");
    assert_null(settings.token_file);
    assert_null(settings.state_dir);
    assert_int_equal(settings.max_inflight_bytes, 8LL << 30);
    assert_int_equal(settings.chunk_bytes, 2 << 20);
    assert_int_equal(settings.lease_ttl_ms, 30000);
    assert_int_equal(settings.lease_grace_ms, 600000);
    assert_int_equal(settings.drain_grace_ms, 60000);
    assert_int_equal(settings.collective_timeout_ms, 600000);
    assert_int_equal(settings.device_memory_bytes, 0);
    assert_null(settings.ckpt_roots[0]);
    rk_free(address);
    rk_settings_fini(&settings);
}

/* Goal: under a service manager, socket and state are in its directories. */
static void test_rk_settings_init_service_directories(void **state)
{
    struct rk_settings settings;
    char *address;

    (void)state;
    assert_int_equal(setenv("RUNTIME_DIRECTORY", "/run/rankd/3:/run/other", 1), 0);
    assert_int_equal(setenv("STATE_DIRECTORY", "/var/lib/rankd/3", 1), 0);
    assert_ok(load(&settings, NULL, NULL, 0));
    unsetenv("RUNTIME_DIRECTORY");
    unsetenv("STATE_DIRECTORY");
    address = rk_listen_format(&settings.listen, 0);
    assert_string_equal(address, "unix:/run/rankd/3/rankd.sock");
    assert_string_equal(settings.runtime_dir, "/run/rankd/3");
    assert_string_equal(settings.state_dir, "/var/lib/rankd/3");
    rk_free(address);
    rk_settings_fini(&settings);
}

static void test_rk_settings_init_flags_win(void **state)
{
    static const char *const overrides[] = {"rpc.listen=unix:/tmp/x.sock",
                                            "slot=3",
                                            "lease.ttl=7s",
                                            "ckpt.roots=[\"/models\", \"/data\"]",
                                            "limits.device_memory=3GiB",
                                            "log.level=debug",
                                            "rpc.max_inflight=1GiB"};
    struct rk_settings settings;

    (void)state;
    assert_ok(load(&settings, NULL, overrides, RK_ARRAY_LEN(overrides)));
    assert_true(settings.listen.is_unix);
    assert_int_equal(settings.slot, 3);
    assert_int_equal(settings.lease_ttl_ms, 7000);
    assert_string_equal(settings.ckpt_roots[1], "/data");
    assert_null(settings.ckpt_roots[2]);
    assert_int_equal(settings.device_memory_bytes, 3LL << 30);
    assert_int_equal(settings.log_level, RK_LOG_DEBUG);
    rk_settings_fini(&settings);
}

/* Goal: every kind of invalid value is rejected with the key and, in a file, the line. */
static void test_rk_settings_init_bad_values_are_refused(void **state)
{
    static const struct {
        const char *override, *text;
    } cases[] = {
        {"rpc.listen=nowhere", "rpc.listen 'nowhere'"},
        {"rpc.listen=0.0.0.0:7000", "--insecure"},
        {"rpc.listen=unix-abstract:x", "rpc.token_file"},
        {"rpc.lsten=127.0.0.1:0", "rpc.lsten"},
        {"rpc.max_inflight=8Q", "rpc.max_inflight"},
        {"rpc.chunk=5MiB", "rpc.chunk"},
        {"rpc.insecure=maybe", "rpc.insecure"},
        {"lease.ttl=1s", "lease.ttl"},
        {"lease.ttl=30", "lease.ttl"},
        {"slot=-1", "slot"},
        {"slot=one", "slot"},
        {"log.level=loud", "log.level"},
        {"ckpt.roots=[\"models\"]", "ckpt.roots.0"},
        {"ckpt.roots=[7]", "ckpt.roots.0: expected an absolute path, got 7"},
        {"ckpt.roots=/models", "ckpt.roots"},
        {"comm.listen=no host", "flag: comm.listen 'no host': host 'no host': "},
        {"comm.listen=0.0.0.0", "comm.listen '0.0.0.0': expected the address at which peers reach this host"},
        {"comm.listen=", "comm.listen '': "},
        {"device=", "flag: device: expected NAME or NAME:INDEX, got \"\""},
        {"device=:1", "device: expected NAME or NAME:INDEX, got \":1\""},
        {"device=cuda:1x", "device: expected NAME or NAME:INDEX, got \"cuda:1x\""},
        {"device=cuda:-1", "device: expected NAME or NAME:INDEX"},
        {"plugin=", "flag: plugin: expected a path, got \"\""},
        {"state.dir=", "flag: state.dir: expected a path, got \"\""},
        {"record.dir=/srv/a\tb", "flag: record.dir: path '/srv/a\\x09b': has a control character"},
        {"limits.device_memory=1B", "expected 1MiB to 1024TiB, got \"1B\""},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_settings settings;

        print_message("%s\n", cases[i].override);
        assert_fails(load(&settings, NULL, &cases[i].override, 1), RK_INVALID_ARGUMENT, cases[i].text);
        rk_settings_fini(&settings);
    }
}

/* Loads a file with `text`: the error must name all of `lines`. */
static void assert_names_lines(const char *text, const char *const *lines, size_t num_lines)
{
    char *path = rk_test_temp_path("rankd.json");
    struct rk_settings settings;
    struct rk_status *st;

    rk_test_write_file(path, text, strlen(text));
    st = load(&settings, path, NULL, 0);
    assert_int_equal(rk_status_code(st), RK_INVALID_ARGUMENT);
    for (size_t i = 0; i < num_lines; i++)
        assert_message_contains(rk_status_clone(st), lines[i]);
    rk_status_free(st);
    rk_free(path);
}

static void test_rk_settings_init_bad_file_names_every_line(void **state)
{
    static const char text[] = "{\n"
                               "  \"rpc\": {\"max_inflight\": \"8Q\"},\n"
                               "  \"slot\": \"x\",\n"
                               "  \"unknown\": 1\n"
                               "}\n";
    static const char *const lines[] = {"rankd.json:2: rpc.max_inflight", "rankd.json:3: slot",
                                        "rankd.json:4: unknown"};
    struct rk_settings settings;

    (void)state;
    assert_names_lines(text, lines, RK_ARRAY_LEN(lines));
    assert_fails(load(&settings, "/nonexistent/rankd.json", NULL, 0), RK_NOT_FOUND,
                 "/nonexistent/rankd.json");
}

/* Goal: errors in the meaning of values are also reported together, each with its line. */
static void test_rk_settings_init_bad_meanings_are_named_together(void **state)
{
    static const char text[] = "{\n"
                               "  \"rpc\": {\"listen\": \"nowhere\"},\n"
                               "  \"ckpt\": {\"roots\": [\"models\", 5]},\n"
                               "  \"device\": \"cuda:x\",\n"
                               "  \"plugin\": \"\",\n"
                               "  \"comm\": {\"listen\": \"0.0.0.0\"}\n"
                               "}\n";
    static const char *const lines[] = {
        "rankd.json:2: rpc.listen 'nowhere'",
        "rankd.json:3: ckpt.roots.0: ",
        "rankd.json:3: ckpt.roots.1: ",
        "rankd.json:4: device: ",
        "rankd.json:5: plugin: ",
        "rankd.json:6: comm.listen '0.0.0.0'",
    };

    (void)state;
    assert_names_lines(text, lines, RK_ARRAY_LEN(lines));
}

/* Goal: a name that cannot be resolved now may be resolved later, so it is a temporary error, unless there
 * are other errors. */
static void test_rk_settings_init_name_server_away_is_unavailable(void **state)
{
    static const char *const overrides[] = {"rpc.listen=" HOST_WITHOUT_ANSWER ":7000", "device="};
    static const char *const comm[] = {"comm.listen=" HOST_WITHOUT_ANSWER};
    struct rk_settings settings;

    (void)state;
    assert_fails(load(&settings, NULL, overrides, 1), RK_UNAVAILABLE,
                 "flag: rpc.listen '" HOST_WITHOUT_ANSWER ":7000': host '" HOST_WITHOUT_ANSWER
                 "': Temporary");
    assert_fails(load(&settings, NULL, comm, 1), RK_UNAVAILABLE, "comm.listen");
    assert_fails(load(&settings, NULL, overrides, 2), RK_INVALID_ARGUMENT, "device: expected NAME");
}

/* Goal: listening on a wildcard address requires comm.listen. */
static void test_rk_settings_init_wildcard_needs_comm_listen(void **state)
{
    static const char *const overrides[] = {"rpc.listen=0.0.0.0:7000", "rpc.insecure=true",
                                            "comm.listen=127.0.0.2"};
    struct rk_settings settings;

    (void)state;
    assert_fails(load(&settings, NULL, overrides, 2), RK_INVALID_ARGUMENT, "default: comm.listen '0.0.0.0'");
    assert_ok(load(&settings, NULL, overrides, 3));
    assert_string_equal(settings.comm_listen, "127.0.0.2");
    rk_settings_fini(&settings);
}

/* Goal: with certificates peers get the host of rpc.listen as written, because the certificate may be for the
 * name and not the address; the TLS keys must be given together. */
static void test_rk_settings_init_tls(void **state)
{
    static const char *const right[] = {"rpc.listen=[2001:DB8::1]:7000", "rpc.tls_cert=/c", "rpc.tls_key=/k",
                                        "rpc.tls_ca=/a", "comm.tls=off"};
    static const char *const half[] = {"rpc.tls_cert=/c", "comm.tls=on"};
    static const char *const only_ca[] = {"rpc.tls_ca=/a"};
    static const char *const empty[] = {"rpc.tls_cert=", "rpc.tls_key=/k"};
    struct rk_settings settings;

    (void)state;
    assert_ok(load(&settings, NULL, right, 4));
    assert_true(settings.has_comm_tls);
    assert_true(settings.asks_certificates);
    assert_string_equal(settings.comm_listen, "2001:DB8::1");
    rk_settings_fini(&settings);
    assert_ok(load(&settings, NULL, right, 5));
    assert_false(settings.has_comm_tls);
    assert_string_equal(settings.comm_listen, "2001:db8::1"); /* as it was resolved */
    rk_settings_fini(&settings);
    assert_fails(load(&settings, NULL, half, 1), RK_INVALID_ARGUMENT,
                 "rpc.tls_cert: expected together with rpc.tls_key");
    assert_fails(load(&settings, NULL, half, 2), RK_INVALID_ARGUMENT,
                 "comm.tls: \"on\" is expected together");
    assert_fails(load(&settings, NULL, only_ca, 1), RK_INVALID_ARGUMENT, "rpc.tls_ca: expected together");
    assert_fails(load(&settings, NULL, empty, 2), RK_INVALID_ARGUMENT, "rpc.tls_cert: expected a path");
}

/* Goal: a reload changes only reloadable keys. */
static void test_rk_settings_reload_keeps_fixed_values(void **state)
{
    static const char *const overrides[] = {"lease.grace=1s", "log.level=warn", "slot=9", "device=cuda:1"};
    struct rk_daemon_args args = {.overrides = overrides, .num_overrides = RK_ARRAY_LEN(overrides)};
    struct rk_config *config = NULL;
    struct rk_settings settings;

    (void)state;
    assert_ok(load(&settings, NULL, NULL, 0));
    assert_ok(rk_daemon_config_load(&config, &args));
    rk_settings_reload(&settings, config);
    assert_int_equal(settings.lease_grace_ms, 1000);
    assert_int_equal(settings.log_level, RK_LOG_WARN);
    assert_int_equal(settings.slot, 0);
    assert_string_equal(settings.device, "cpu");
    rk_config_destroy(config);
    rk_settings_fini(&settings);
}

static void test_rk_daemon_exit_code_cases(void **state)
{
    static const struct {
        rk_code_t code;
        const char *reason;
        int exit_code;
    } cases[] = {
        {RK_INVALID_ARGUMENT, "", 2},
        {RK_NOT_FOUND, "", 2},
        {RK_FAILED_PRECONDITION, "ADDRESS_IN_USE", 4},
        {RK_FAILED_PRECONDITION, "LOCK_HELD", 4},
        {RK_DATA_LOSS, "", 2},
        {RK_INTERNAL, "DEVICE_LOST", 1},
        {RK_RESOURCE_EXHAUSTED, "", 1},
        {RK_UNAVAILABLE, "", 1},
    };

    (void)state;
    assert_int_equal(rk_daemon_exit_code(NULL), 0);
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_status *st = rk_status_from_wire(cases[i].code, cases[i].reason, "x");

        assert_int_equal(rk_daemon_exit_code(st), cases[i].exit_code);
        rk_status_free(st);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rk_settings_init_defaults),
        cmocka_unit_test(test_rk_settings_init_service_directories),
        cmocka_unit_test(test_rk_settings_init_flags_win),
        cmocka_unit_test(test_rk_settings_init_bad_values_are_refused),
        cmocka_unit_test(test_rk_settings_init_bad_file_names_every_line),
        cmocka_unit_test(test_rk_settings_init_bad_meanings_are_named_together),
        cmocka_unit_test(test_rk_settings_init_name_server_away_is_unavailable),
        cmocka_unit_test(test_rk_settings_init_wildcard_needs_comm_listen),
        cmocka_unit_test(test_rk_settings_init_tls),
        cmocka_unit_test(test_rk_settings_reload_keeps_fixed_values),
        cmocka_unit_test(test_rk_daemon_exit_code_cases),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
