/* Daemons under system limits: few descriptors, little address space. */
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_time.h"
#include "tests/proc/daemon_fixture.h"
#include "tests/support/h2_raw.h"

#define NUM_STRANGERS 1100
#define START_MS      90000 /* longer than the daemon's own deadlines */
#define AGAIN_MS      20000

/* A daemon under `ulimit`; with `listen` as rpc.listen. */
static struct rk_proc *start_under(const char *ulimit, const char *listen)
{
    char *program = rk_proc_program("rankd");
    char *command = rk_format("ulimit %s && exec %s --rpc.listen=%s", ulimit, program, listen);
    struct rk_proc *proc = rk_proc_start((const char *const[]){"/bin/sh", "-c", command, NULL});

    rk_free(command);
    rk_free(program);
    return proc;
}

static struct rk_status *ask_anew(const char *address)
{
    struct rk_client *client = rk_client_create(address, NULL);
    struct rk_worker_status status;
    struct rk_status *st = rk_client_get_status(client, &status);

    rk_client_destroy(client);
    return st;
}

static void wait_answer(const char *address)
{
    int64_t end_ns = rk_time_now_ns() + rk_proc_timeout_ms(AGAIN_MS) * 1000000;
    struct rk_status *st = ask_anew(address);

    while (st && rk_time_now_ns() < end_ns) {
        rk_status_free(st);
        rk_time_sleep_ms(100);
        st = ask_anew(address);
    }
    assert_ok(st);
}

/* Opens connections that send nothing, as many as are accepted. The daemon accepts them at a bounded rate, so
 * this takes seconds; the other client is answered all the time. */
static void connect_strangers(int *fds, const char *address, struct rk_client *early)
{
    struct rk_worker_status status;

    for (int i = 0; i < NUM_STRANGERS; i++) {
        fds[i] = h2_connect(address);
        if (i % 50 == 0)
            assert_ok(rk_client_get_status(early, &status));
    }
}

static void raise_own_limit(void)
{
    struct rlimit limit;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_true(limit.rlim_cur > NUM_STRANGERS + 100);
}

/* Goal: with few descriptors, 1,100 silent connections do not block others: connected clients are answered
 * and new ones are accepted, during and after. */
static void test_few_files_are_survived(void **state)
{
    static const char *const limits[] = {"-n 64", "-n 256", "-n 1024"};
    static int fds[NUM_STRANGERS];

    (void)state;
    raise_own_limit();
    for (size_t i = 0; i < RK_ARRAY_LEN(limits); i++) {
        struct rk_proc *proc = start_under(limits[i], "127.0.0.1:0");
        struct rk_client *early = rk_client_create(rk_proc_address(proc), NULL);
        struct rk_worker_status status;

        print_message("ulimit %s\n", limits[i]);
        assert_ok(rk_client_get_status(early, &status));
        connect_strangers(fds, rk_proc_address(proc), early);
        assert_ok(rk_client_get_status(early, &status));
        wait_answer(rk_proc_address(proc));
        for (int j = 0; j < NUM_STRANGERS; j++)
            close(fds[j]);
        assert_ok(rk_client_get_status(early, &status));
        wait_answer(rk_proc_address(proc));
        rk_client_destroy(early);
        rk_proc_signal(proc, SIGTERM);
        assert_int_equal(rk_proc_wait(proc, START_MS), 0);
        rk_proc_destroy(proc);
    }
}

static rk_serving_status_t check(struct rk_client *client, const char *service)
{
    struct rk_health_check_request request = {.service = service};
    struct rk_health_check_response response;
    struct rk_str packed = {0};
    struct rk_bytes reply;

    rk_pack_health_check_request(&packed, &request);
    assert_ok(rk_client_call(client, RK_RPC_ID_HEALTH_CHECK, &packed, &reply));
    rk_str_fini(&packed);
    assert_ok(rk_unpack_health_check_response(&response, rk_client_arena(client), reply.data, reply.bytes));
    return response.status;
}

static void wait_serving(struct rk_client *client, rk_serving_status_t expected)
{
    int64_t end_ns = rk_time_now_ns() + rk_proc_timeout_ms(AGAIN_MS) * 1000000;

    while (check(client, "rankd.v1.Worker") != expected && rk_time_now_ns() < end_ns)
        rk_time_sleep_ms(50);
    assert_int_equal(check(client, "rankd.v1.Worker"), expected);
    assert_int_equal(check(client, ""), RK_SERVING); /* a restart would not help */
}

/* Goal: a Unix socket with more clients than descriptors rejects the last ones, reports it in its health, and
 * accepts clients again as soon as some have left. */
static void test_full_unix_socket_is_said_in_health(void **state)
{
    char *path = rk_test_temp_path("full.sock"), *listen = rk_format("unix:%s", path);
    struct rk_proc *proc = start_under("-n 64", listen);
    struct rk_client *early = rk_client_create(rk_proc_address(proc), NULL), *others[20];
    struct rk_worker_status status;
    int num_refused = 0;

    (void)state;
    wait_serving(early, RK_SERVING);
    for (size_t i = 0; i < RK_ARRAY_LEN(others); i++) {
        struct rk_status *st;

        others[i] = rk_client_create(rk_proc_address(proc), NULL);
        st = rk_client_get_status(others[i], &status);
        num_refused += st != NULL;
        rk_status_free(st);
    }
    assert_true(num_refused > 0);
    wait_serving(early, RK_NOT_SERVING);
    for (size_t i = 0; i < RK_ARRAY_LEN(others); i++)
        rk_client_destroy(others[i]);
    wait_answer(rk_proc_address(proc));
    wait_serving(early, RK_SERVING);
    rk_client_destroy(early);
    rk_proc_signal(proc, SIGTERM);
    assert_int_equal(rk_proc_wait(proc, START_MS), 0);
    rk_proc_destroy(proc);
    rk_free(listen);
    rk_free(path);
}

static int64_t children_ms(void)
{
    struct rusage usage;

    assert_int_equal(getrusage(RUSAGE_CHILDREN, &usage), 0);
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000 +
           (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1000;
}

/* Goal: with every limit of address space a start ends with a listener, or with an error and exit code 1 (or
 * an abort of the allocator or loader), in bounded time. */
static void test_little_address_space_ends_the_start(void **state)
{
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    rk_test_skip("AddressSanitizer needs 20 TB of address space");
#endif
    for (int mib = 150; mib <= 900; mib += 15) {
        char *ulimit = rk_format("-v %d", mib << 10);
        struct rk_proc *proc = start_under(ulimit, "127.0.0.1:0");
        int64_t begin_ns = rk_time_now_ns(), begin_ms = children_ms();
        char *text = rk_proc_stdout(proc);
        int code;

        while (rk_proc_is_running(proc) && !strstr(text, "listening on") &&
               rk_time_now_ns() - begin_ns < START_MS * 1000000LL) {
            rk_time_sleep_ms(10);
            rk_free(text);
            text = rk_proc_stdout(proc);
        }
        if (strstr(text, "listening on"))
            rk_proc_signal(proc, SIGTERM);
        code = rk_proc_wait(proc, START_MS);
        print_message("%d MiB: %s, exit code %d, %.1f s\n", mib, text[0] ? "listens" : "does not start", code,
                      (double)(rk_time_now_ns() - begin_ns) / 1e9);
        assert_true(code == 0 || !strstr(text, "listening on"));
        assert_true(children_ms() - begin_ms < 5000);
        rk_free(text);
        rk_free(ulimit);
        rk_proc_destroy(proc);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_few_files_are_survived),
        cmocka_unit_test(test_full_unix_socket_is_said_in_health),
        cmocka_unit_test(test_little_address_space_ends_the_start),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
