/* The process: its start, its sockets and files, its end. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_time.h"
#include "tests/proc/daemon_fixture.h"

#define STOP_MS 20000

static int run_to_end(const char *const *args, char **errors)
{
    struct rk_proc *proc = rk_proc_start_rankd(args);
    int code = rk_proc_wait(proc, STOP_MS);

    if (errors)
        *errors = rk_proc_stderr(proc);
    rk_proc_destroy(proc);
    return code;
}

/* Goal: the daemon answers within a second of its start, and its first line has the address. */
static void test_rankd_start_is_quick(void **state)
{
    int64_t begin_ns = rk_time_now_ns();
    struct fixture fixture;
    struct rk_worker_status status;
    double seconds;

    (void)state;
    fixture_start(&fixture, NULL);
    seconds = (double)(rk_time_now_ns() - begin_ns) * 1e-9;
    assert_true(rk_str_has_prefix(rk_proc_address(fixture.proc), "127.0.0.1:"));
    assert_false(rk_str_has_suffix(rk_proc_address(fixture.proc), ":0"));
    assert_below("start, in seconds", seconds, (double)rk_proc_timeout_ms(1000) / 1000.0);
    assert_ok(rk_client_get_status(fixture.client, &status));
    assert_string_equal(status.state, "UNCONFIGURED");
    assert_string_equal(status.rank.device, "cpu");
    assert_int_not_equal(status.incarnation, 0);
    fixture_stop(&fixture);
}

/* Goal: every invalid command line exits with 2 and an error message. */
static void test_rankd_bad_configuration_exits_with_2(void **state)
{
    static const struct {
        const char *args[3], *text;
    } cases[] = {
        {{"--frobnicate"}, "unknown option --frobnicate; see rankd --help"},
        {{"--devcie", "cpu"}, "unknown option --devcie; did you mean --device?"},
        {{"extra"}, "unexpected argument 'extra'"},
        {{"--config"}, "--config needs a value (FILE)"},
        {{"--slot=1", "--slot=2"}, "--slot is given twice"},
        {{"--insecure=1"}, "--insecure takes no value"},
        {{"--config", "/nonexistent.json"}, "/nonexistent.json"},
        {{"--rpc.lsten=127.0.0.1:0"}, "rpc.lsten"},
        {{"--rpc.max_inflight=8Q"}, "rpc.max_inflight"},
        {{"--rpc.listen=0.0.0.0:0"}, "--insecure"},
        {{"--rpc.listen=[::]:0"}, "--insecure"},
        {{"--check-config", "--rpc.listen=10.0.0.1:7000"}, "--insecure"},
        {{"--rpc.listen=unix-abstract:rankd-test"}, "rpc.token_file"},
        {{"--rpc.listen=unix:/nonexistent/socket"}, "/nonexistent"},
        {{"--rpc.token_file=/nonexistent"}, "rpc.token_file"},
        {{"--device", "quantum:0"}, "quantum"},
        {{"--slot", "minus one"}, "slot"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        char *errors = NULL;

        print_message("%s %s\n", cases[i].args[0], cases[i].args[1] ? cases[i].args[1] : "");
        assert_int_equal(run_to_end(cases[i].args, &errors), 2);
        if (!strstr(errors, cases[i].text))
            fail_msg("'%s' is not in: %s", cases[i].text, errors);
        rk_free(errors);
    }
}

/* Goal: an address that no interface has yet is not a configuration error, so that a service manager retries;
 * other configuration errors still are. */
static void test_rankd_address_not_there_yet_exits_with_1(void **state)
{
    static const char *const missing[] = {"--rpc.listen=192.0.2.1:7000", "--insecure", NULL};
    static const char *const wrong[] = {"--rpc.listen=192.0.2.1:7000", "--insecure", "--slot=x", NULL};
    char *errors = NULL;

    (void)state;
    assert_int_equal(run_to_end(missing, &errors), 1);
    assert_non_null(strstr(errors, "cannot listen on 192.0.2.1:7000: Cannot assign requested address"));
    rk_free(errors);
    assert_int_equal(run_to_end(wrong, NULL), 2);
}

static void test_rankd_help_version_and_check_exit_with_0(void **state)
{
    static const char *const help[] = {"--help", NULL}, *const version[] = {"--version", NULL};
    static const char *const check[] = {"--check-config", "--slot=5", NULL};
    struct rk_proc *proc;
    char *text;

    (void)state;
    assert_int_equal(run_to_end(version, NULL), 0);
    assert_int_equal(run_to_end(help, NULL), 0);
    proc = rk_proc_start_rankd(check);
    assert_int_equal(rk_proc_wait(proc, STOP_MS), 0);
    text = rk_proc_stdout(proc);
    assert_non_null(strstr(text, "slot = 5 (flag)"));
    assert_non_null(strstr(text, "lease.ttl = \"30s\" (default)"));
    rk_free(text);
    rk_proc_destroy(proc);
}

/* Goal: --check-config reports all errors at which a start would fail, each with its key. */
static void test_rankd_check_config_tries_a_start(void **state)
{
    static const char *const bad[] = {"--check-config",
                                      "--rpc.token_file=/nonexistent/tokens",
                                      "--state.dir=/nonexistent/state",
                                      "--rpc.listen=unix:/nonexistent/socket",
                                      "--device=quantum",
                                      NULL};
    static const char *const texts[] = {
        "flag: rpc.token_file '/nonexistent/tokens': No such file or directory",
        "flag: state.dir '/nonexistent/state': No such file or directory",
        "flag: rpc.listen: cannot create a socket in '/nonexistent'",
        "flag: the plug-in of device 'quantum' is not installed",
    };
    static const char *const plugin[] = {"--check-config", "--device=cuda:0", "--plugin=/nonexistent.so",
                                         NULL};
    static const char *const away[] = {"--check-config", "--insecure", "--rpc.listen=192.0.2.1:7000", NULL};
    static const char *const roots[] = {"--check-config", "--ckpt.roots=[\"/\", \"/nonexistent\"]", NULL};
    char *errors = NULL;

    (void)state;
    assert_int_equal(run_to_end(bad, &errors), 2);
    for (size_t i = 0; i < RK_ARRAY_LEN(texts); i++) {
        if (!strstr(errors, texts[i]))
            fail_msg("'%s' is not in: %s", texts[i], errors);
    }
    rk_free(errors);
    assert_int_equal(run_to_end(plugin, &errors), 2);
    assert_non_null(strstr(errors, "flag: plug-in /nonexistent.so: "));
    rk_free(errors);
    assert_int_equal(run_to_end(away, NULL), 1);
    assert_int_equal(run_to_end(roots, &errors), 0); /* may be mounted later */
    assert_non_null(strstr(errors, "ckpt.roots.1 '/nonexistent': No such file or directory"));
    assert_null(strstr(errors, "ckpt.roots.0"));
    rk_free(errors);
}

/* Goal: a configuration can be checked while a daemon with it is running. */
static void test_rankd_check_config_with_running_daemon_exits_with_0(void **state)
{
    struct fixture fixture;
    const char *args[] = {"--check-config", NULL, NULL};
    char *flag;

    (void)state;
    fixture_start(&fixture, NULL);
    args[1] = flag = rk_format("--rpc.listen=%s", rk_proc_address(fixture.proc));
    assert_int_equal(run_to_end(args, NULL), 0);
    rk_free(flag);
    fixture_stop(&fixture);
}

/* Goal: failing to write output is an error. */
static void test_rankd_text_to_a_full_disk_exits_with_1(void **state)
{
    static const char *const flags[] = {"--help", "--version", "--check-config"};
    char *program = rk_proc_program("rankd");

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(flags); i++) {
        char *command = rk_format("exec %s %s >/dev/full", program, flags[i]);
        struct rk_proc *proc = rk_proc_start((const char *const[]){"/bin/sh", "-c", command, NULL});

        print_message("%s\n", flags[i]);
        assert_int_equal(rk_proc_wait(proc, STOP_MS), 1);
        rk_proc_destroy(proc);
        rk_free(command);
    }
    rk_free(program);
}

/* Goal: a damaged state directory is a permanent error: a service manager must not restart the daemon. */
static void test_rankd_broken_state_exits_with_2(void **state)
{
    char *dir = rk_test_temp_path("state"), *path = rk_path_join(dir, "epoch");
    char *option = rk_format("--state.dir=%s", dir), *errors = NULL;

    (void)state;
    assert_int_equal(mkdir(dir, 0700), 0);
    rk_test_write_file(path, "many\n", 5);
    assert_int_equal(run_to_end((const char *const[]){option, NULL}, &errors), 2);
    assert_non_null(strstr(errors, "state/epoch' does not hold a number"));
    rk_free(errors);
    rk_free(option);
    rk_free(path);
    rk_free(dir);
}

/* A second daemon with `args` exits with 4, and the first is not affected. */
static void check_second_is_refused(const char *const *args, const char *second_arg, const char *text)
{
    const char *second[] = {second_arg, NULL};
    struct fixture fixture;
    struct rk_worker_status status;
    struct rk_client *late;
    char *errors = NULL;

    fixture_start(&fixture, args);
    if (!second_arg)
        second[0] = rk_arena_strdup(rk_client_arena(fixture.client), "");
    if (!second[0][0]) {
        char *flag = rk_format("--rpc.listen=%s", rk_proc_address(fixture.proc));

        second[0] = rk_arena_strdup(rk_client_arena(fixture.client), flag);
        rk_free(flag);
    }
    assert_int_equal(run_to_end(second, &errors), 4);
    if (!strstr(errors, text))
        fail_msg("'%s' is not in: %s", text, errors);
    rk_free(errors);
    assert_ok(rk_client_get_status(fixture.client, &status));
    late = rk_client_create(rk_proc_address(fixture.proc), NULL); /* a new connection reaches it, too */
    assert_ok(rk_client_get_status(late, &status));
    rk_client_destroy(late);
    fixture_stop(&fixture);
}

static void test_rankd_second_on_same_address_exits_with_4(void **state)
{
    char *socket = rk_test_temp_path("rankd.sock"), *flag = rk_format("--rpc.listen=unix:%s", socket);
    char *state_flag = rk_format("--state.dir=%s", rk_test_temp_dir());
    const char *unix_args[] = {flag, NULL}, *state_args[] = {state_flag, NULL};

    (void)state;
    check_second_is_refused(NULL, NULL, "is in use by another process");
    check_second_is_refused(unix_args, NULL, "another process holds the lock");
    check_second_is_refused(state_args, state_flag, "another process holds the lock");
    assert_int_equal(access(socket, F_OK), -1); /* a clean exit leaves no socket */
    rk_free(state_flag);
    rk_free(flag);
    rk_free(socket);
}

/* Goal: only owner and group can access the socket file, and one left by a killed daemon is replaced. */
static void test_rankd_unix_socket_survives_a_kill(void **state)
{
    char *socket = rk_test_temp_path("killed.sock"), *flag = rk_format("--rpc.listen=unix:%s", socket);
    const char *args[] = {flag, NULL};
    struct fixture fixture;
    struct stat info;

    (void)state;
    fixture_start(&fixture, args);
    assert_int_equal(stat(socket, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0660);
    rk_proc_signal(fixture.proc, SIGKILL);
    fixture_end(&fixture, -SIGKILL);

    fixture_start(&fixture, args);
    fixture_stop(&fixture);
    rk_free(flag);
    rk_free(socket);
}

static void test_rankd_sigterm_when_idle_exits_with_0(void **state)
{
    static const int signals[] = {SIGTERM, SIGINT};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(signals); i++) {
        struct fixture fixture;

        fixture_start(&fixture, NULL);
        rk_proc_signal(fixture.proc, signals[i]);
        fixture_end(&fixture, 0);
    }
}

/* Inodes of the sockets of a process. */
static int64_t list_sockets(pid_t pid, unsigned long *inodes, int64_t max)
{
    int64_t count = 0;

    for (int fd = 0; fd < 256 && count < max; fd++) {
        char *path = rk_format("/proc/%d/fd/%d", (int)pid, fd), target[64] = {0};

        if (readlink(path, target, sizeof(target) - 1) > 0 &&
            sscanf(target, "socket:[%lu]", &inodes[count]) == 1)
            count++;
        rk_free(path);
    }
    return count;
}

/* Inode of a listening socket in a line of /proc/net/tcp, tcp6 (state 0A) or unix (flag 00010000); 0: not a
 * listening socket. */
static unsigned long listening_inode(const char *line, bool is_unix)
{
    unsigned long inode = 0;
    char state[16] = "";

    if (is_unix)
        sscanf(line, "%*s %*s %*s %15s %*s %*s %lu", state, &inode);
    else
        sscanf(line, "%*s %*s %*s %15s %*s %*s %*s %*s %*s %lu", state, &inode);
    return strcmp(state, is_unix ? "00010000" : "0A") == 0 ? inode : 0;
}

static int64_t count_listeners(pid_t pid)
{
    static const char *const tables[] = {"/proc/net/tcp", "/proc/net/tcp6", "/proc/net/unix"};
    unsigned long inodes[64];
    int64_t num_inodes = list_sockets(pid, inodes, RK_ARRAY_LEN(inodes)), count = 0;

    for (size_t t = 0; t < RK_ARRAY_LEN(tables); t++) {
        char *text = rk_test_read_file(tables[t], NULL);

        for (const char *line = text; *line; line += strcspn(line, "\n") + 1) {
            unsigned long inode = listening_inode(line, t == 2);

            for (int64_t i = 0; i < num_inodes; i++)
                count += inode == inodes[i];
        }
        rk_free(text);
    }
    return count;
}

/* Goal: the daemon listens only at its configured address; the collectives' listener of a Configure is
 * closed once the mesh is up. */
static void test_rankd_listens_on_the_configured_address_only(void **state)
{
    struct fixture fixture;

    (void)state;
    fixture_start(&fixture, NULL);
    assert_int_equal(count_listeners(rk_proc_pid(fixture.proc)), 1);
    fixture_lead(&fixture);
    assert_int_equal(count_listeners(rk_proc_pid(fixture.proc)), 1);
    fixture_stop(&fixture);
}

/* Goal: with state.dir a restarted daemon rejects earlier drivers. */
static void test_rankd_epoch_survives_a_kill(void **state)
{
    struct rk_acquire_lease_request request = {.driver_id = "a", .epoch = 41};
    char *flag = rk_format("--state.dir=%s", rk_test_temp_dir());
    const char *args[] = {flag, NULL};
    struct rk_client_lease lease;
    struct rk_worker_status status;
    struct fixture fixture;
    uint64_t incarnation;

    (void)state;
    fixture_start(&fixture, args);
    assert_ok(rk_client_acquire(fixture.client, &request, &lease));
    incarnation = lease.fence.incarnation;
    rk_proc_signal(fixture.proc, SIGKILL);
    fixture_end(&fixture, -SIGKILL);

    fixture_start(&fixture, args);
    assert_ok(rk_client_get_status(fixture.client, &status));
    assert_int_equal(status.epoch, 41);
    assert_int_not_equal(status.incarnation, incarnation);
    assert_refused(rk_client_acquire(fixture.client, &request, &lease), RK_FAILED_PRECONDITION,
                   "STALE_EPOCH");
    request.epoch = 42;
    assert_ok(rk_client_acquire(fixture.client, &request, &lease));
    fixture_stop(&fixture);
    rk_free(flag);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rankd_start_is_quick),
        cmocka_unit_test(test_rankd_bad_configuration_exits_with_2),
        cmocka_unit_test(test_rankd_address_not_there_yet_exits_with_1),
        cmocka_unit_test(test_rankd_help_version_and_check_exit_with_0),
        cmocka_unit_test(test_rankd_check_config_tries_a_start),
        cmocka_unit_test(test_rankd_check_config_with_running_daemon_exits_with_0),
        cmocka_unit_test(test_rankd_text_to_a_full_disk_exits_with_1),
        cmocka_unit_test(test_rankd_broken_state_exits_with_2),
        cmocka_unit_test(test_rankd_second_on_same_address_exits_with_4),
        cmocka_unit_test(test_rankd_unix_socket_survives_a_kill),
        cmocka_unit_test(test_rankd_sigterm_when_idle_exits_with_0),
        cmocka_unit_test(test_rankd_listens_on_the_configured_address_only),
        cmocka_unit_test(test_rankd_epoch_survives_a_kill),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
