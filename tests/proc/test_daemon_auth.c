/* Authentication, and the cost of unauthenticated calls. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_time.h"
#include "proto/limits.h"
#include "tests/proc/daemon_fixture.h"

#define ADMIN_TOKEN  "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define DRIVER_TOKEN "dddddddddddddddddddddddddddddddd"
#define VIEWER_TOKEN "vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv"
#define OTHER_TOKEN  "oooooooooooooooooooooooooooooooo"
/* Much larger than the memory that a rejected call may use. */
#define HUGE_BYTES (256 << 20)

static char *token_path;

static void write_tokens(const char *text)
{
    rk_test_write_file(token_path, text, strlen(text));
    assert_int_equal(chmod(token_path, 0600), 0);
}

static void start(struct fixture *fixture)
{
    char *flag = rk_format("--rpc.token_file=%s", token_path);
    const char *args[] = {flag, NULL};

    write_tokens("admin:" ADMIN_TOKEN "\ndriver:" DRIVER_TOKEN "\nviewer:" VIEWER_TOKEN "\n");
    fixture_start(fixture, args);
    rk_client_destroy(fixture->client);
    fixture->client = rk_client_create(rk_proc_address(fixture->proc), ADMIN_TOKEN);
    rk_free(flag);
}

static struct rk_status *call_with(struct fixture *fixture, const char *token, rk_rpc_id_t rpc,
                                   const struct rk_str *request)
{
    struct rk_client *client = rk_client_create(rk_proc_address(fixture->proc), token);
    struct rk_status *st = rk_client_call(client, rpc, request, NULL);

    rk_client_destroy(client);
    return st;
}

/* Goal: the permissions of each role; unknown calls have the same authentication. */
static void test_token_roles(void **state)
{
    static const struct {
        const char *label, *token;
        rk_rpc_id_t rpc;
        rk_code_t code; /* INVALID_ARGUMENT and others mean that authentication passed */
        const char *reason;
    } cases[] = {
        {"nobody, status", NULL, RK_RPC_ID_GET_STATUS, RK_UNAUTHENTICATED, "TOKEN"},
        {"wrong, status", OTHER_TOKEN, RK_RPC_ID_GET_STATUS, RK_UNAUTHENTICATED, "TOKEN"},
        {"nobody, shutdown", NULL, RK_RPC_ID_SHUTDOWN, RK_UNAUTHENTICATED, "TOKEN"},
        {"nobody, lease", NULL, RK_RPC_ID_ACQUIRE_LEASE, RK_UNAUTHENTICATED, "TOKEN"},
        {"viewer, lease", VIEWER_TOKEN, RK_RPC_ID_ACQUIRE_LEASE, RK_PERMISSION_DENIED, "ROLE"},
        {"viewer, drain", VIEWER_TOKEN, RK_RPC_ID_DRAIN, RK_PERMISSION_DENIED, "ROLE"},
        {"driver, shutdown", DRIVER_TOKEN, RK_RPC_ID_SHUTDOWN, RK_PERMISSION_DENIED, "ROLE"},
        {"nobody, health", NULL, RK_RPC_ID_HEALTH_CHECK, RK_OK, ""},
        {"viewer, status", VIEWER_TOKEN, RK_RPC_ID_GET_STATUS, RK_OK, ""},
        {"driver, status", DRIVER_TOKEN, RK_RPC_ID_GET_STATUS, RK_OK, ""},
        {"driver, lease", DRIVER_TOKEN, RK_RPC_ID_ACQUIRE_LEASE, RK_INVALID_ARGUMENT, "BAD_FIELD"},
        {"admin, lease", ADMIN_TOKEN, RK_RPC_ID_ACQUIRE_LEASE, RK_INVALID_ARGUMENT, "BAD_FIELD"},
    };
    struct rk_str empty = {0};
    struct fixture fixture;
    struct rk_client *nobody;

    (void)state;
    start(&fixture);
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        print_message("%s\n", cases[i].label);
        assert_refused(call_with(&fixture, cases[i].token, cases[i].rpc, &empty), cases[i].code,
                       cases[i].reason);
    }
    nobody = rk_client_create(rk_proc_address(fixture.proc), NULL);
    assert_refused(rk_client_call_path(nobody, "/rankd.v1.Worker/Nothing", &empty, NULL), RK_UNAUTHENTICATED,
                   "TOKEN");
    rk_client_destroy(nobody);
    assert_fails(rk_client_call_path(fixture.client, "/rankd.v1.Worker/Nothing", &empty, NULL),
                 RK_UNIMPLEMENTED, "/rankd.v1.Worker/Nothing");
    assert_fails(rk_client_call_path(fixture.client, "/rankd.v1.Admin/Nothing", &empty, NULL),
                 RK_UNIMPLEMENTED, "/rankd.v1.Admin/Nothing");
    fixture_stop(&fixture);
}

/* Checks that the daemon answers. gRPC closes idle connections while its quota is full; a call on such a
 * connection fails, and the next one reconnects. */
static void assert_goes_on(const struct fixture *fixture)
{
    struct rk_worker_status status;
    struct rk_status *st = rk_client_get_status(fixture->client, &status);

    if (rk_status_code(st) == RK_UNAVAILABLE) {
        rk_status_free(st);
        st = rk_client_get_status(fixture->client, &status);
    }
    assert_ok(st);
}

/* Goal: a huge message uses no more memory than gRPC's quota, with or without a token, and the daemon
 * continues. Method: peak resident memory before and after; AddressSanitizer's quarantine is disabled,
 * because it would count all received data. */
static void test_huge_message_is_refused_in_bounded_memory(void **state)
{
    static const struct {
        const char *label, *token;
        rk_code_t code;
    } cases[] = {{"nobody", NULL, RK_UNAUTHENTICATED}, {"admin", ADMIN_TOKEN, RK_RESOURCE_EXHAUSTED}};
    struct rk_str huge = {0};
    char *zeros = rk_calloc(1, HUGE_BYTES);
    struct fixture fixture;
    int64_t before_kib;

    (void)state;
    rk_str_append_bytes(&huge, zeros, HUGE_BYTES);
    rk_free(zeros);
    setenv("ASAN_OPTIONS", "quarantine_size_mb=1:thread_local_quarantine_size_kb=64", 1);
    start(&fixture);
    unsetenv("ASAN_OPTIONS");
    assert_goes_on(&fixture);
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_status *st;

        before_kib = rk_proc_peak_rss_kib(fixture.proc);
        st = call_with(&fixture, cases[i].token, RK_RPC_ID_ACQUIRE_LEASE, &huge);
        print_message("%s: %s, peak %lld -> %lld KiB\n", cases[i].label, rk_status_message(st),
                      (long long)before_kib, (long long)rk_proc_peak_rss_kib(fixture.proc));
        assert_int_equal(rk_status_code(st), cases[i].code);
        rk_status_free(st);
        assert_true(rk_proc_peak_rss_kib(fixture.proc) - before_kib <
                    (RK_LIMIT_QUOTA_BYTES >> 10) + (48 << 10));
        assert_goes_on(&fixture);
    }
    rk_str_fini(&huge);
    fixture_stop(&fixture);
}

/* Goal: invalid messages and messages over a limit are rejected with a code, for every call. */
static void test_garbage_requests_are_refused(void **state)
{
    static const rk_rpc_id_t rpcs[] = {
        RK_RPC_ID_ACQUIRE_LEASE, RK_RPC_ID_RELEASE_LEASE, RK_RPC_ID_CONFIGURE,
        RK_RPC_ID_CANCEL,        RK_RPC_ID_DRAIN,         RK_RPC_ID_SHUTDOWN,
        RK_RPC_ID_HEALTH_CHECK,  RK_RPC_ID_EXECUTE,       RK_RPC_ID_KEEP_ALIVE};
    struct rk_str garbage = {0}, oversized = {0};
    char *zeros = rk_calloc(1, RK_LIMIT_MESSAGE_BYTES + 1);
    struct rk_worker_status status;
    struct fixture fixture;

    (void)state;
    rk_str_append_bytes(&garbage, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 11);
    rk_str_append_bytes(&oversized, zeros, RK_LIMIT_MESSAGE_BYTES + 1);
    rk_free(zeros);
    fixture_start(&fixture, NULL);
    for (size_t i = 0; i < RK_ARRAY_LEN(rpcs); i++) {
        struct rk_status *st = rk_client_call(fixture.client, rpcs[i], &garbage, NULL);

        print_message("%s: %s\n", rk_rpc_get(rpcs[i])->path, rk_status_message(st));
        assert_int_equal(rk_status_code(st), RK_INVALID_ARGUMENT);
        rk_status_free(st);
        assert_fails(rk_client_call(fixture.client, rpcs[i], &oversized, NULL), RK_RESOURCE_EXHAUSTED,
                     "larger than max");
    }
    assert_ok(rk_client_get_status(fixture.client, &status));
    rk_str_fini(&garbage);
    rk_str_fini(&oversized);
    fixture_stop(&fixture);
}

/* Goal: SIGHUP loads new tokens; an invalid file changes nothing. */
static void test_sighup_reloads_tokens(void **state)
{
    struct rk_str empty = {0};
    struct fixture fixture;
    struct rk_status *st = NULL;

    (void)state;
    start(&fixture);
    write_tokens("admin:" ADMIN_TOKEN "\nviewer:" OTHER_TOKEN "\n");
    rk_proc_signal(fixture.proc, SIGHUP);
    for (int attempt = 0; attempt < 1000; attempt++) {
        rk_status_free(st);
        st = call_with(&fixture, OTHER_TOKEN, RK_RPC_ID_GET_STATUS, &empty);
        if (!st)
            break;
        rk_time_sleep_ms(10);
    }
    assert_ok(st);
    assert_refused(call_with(&fixture, VIEWER_TOKEN, RK_RPC_ID_GET_STATUS, &empty), RK_UNAUTHENTICATED,
                   "TOKEN");

    write_tokens("nonsense\n");
    rk_proc_signal(fixture.proc, SIGHUP);
    rk_time_sleep_ms(300);
    assert_ok(call_with(&fixture, OTHER_TOKEN, RK_RPC_ID_GET_STATUS, &empty));
    fixture_stop(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_token_roles),
        cmocka_unit_test(test_huge_message_is_refused_in_bounded_memory),
        cmocka_unit_test(test_garbage_requests_are_refused),
        cmocka_unit_test(test_sighup_reloads_tokens),
    };
    int failed;

    token_path = rk_test_temp_path("tokens");
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    rk_free(token_path);
    return failed;
}
