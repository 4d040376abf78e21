/* Tokens that daemons and rankctl make themselves: who has all rights on a host with several users. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "base/rk_time.h"
#include "tests/proc/cli_fixture.h"
#include "tests/support/client.h"

#define START_MS 60000

/* What a client without a token gets. */
static void assert_status(const char *address, rk_code_t expected)
{
    struct rk_client *client = rk_client_create(address, NULL);
    struct rk_worker_status status;
    struct rk_status *st = rk_client_get_status(client, &status);

    assert_int_equal(rk_status_code(st), expected);
    rk_status_free(st);
    rk_client_destroy(client);
}

static void assert_rankctl(int code, const char *address)
{
    struct outcome outcome = run_rankctl((const char *const[]){"status", "--hosts", address, NULL});

    assert_exit(&outcome, code);
    outcome_fini(&outcome);
}

static mode_t mode_of(const char *path)
{
    struct stat info;

    assert_int_equal(stat(path, &info), 0);
    return info.st_mode & 0777;
}

/* --rpc.listen of a process, from its command line; rk_free it. */
static char *address_of(pid_t pid)
{
    static const char flag[] = "--rpc.listen=";
    char *path = rk_format("/proc/%d/cmdline", (int)pid), *found = NULL;
    size_t bytes;
    char *text = rk_test_read_file(path, &bytes);

    for (size_t at = 0; at < bytes; at += strlen(text + at) + 1) {
        if (rk_str_has_prefix(text + at, flag))
            found = rk_strdup(text + at + strlen(flag));
    }
    assert_non_null(found);
    rk_free(text);
    rk_free(path);
    return found;
}

/* Goal: the daemons of --local demand a token, which only their user can read and rankctl finds. */
static void test_local_daemons_have_a_token(void **state)
{
    char *dir = new_run_dir(), *address, *socket_dir, *token;
    struct rk_proc *run =
        start_rankctl((const char *const[]){"run", TINY_JOB, "--local", "2", "--run-dir", dir, TINY,
                                            "trainer.total_training_steps=100000", NULL});
    struct outcome outcome;
    pid_t pids[2];

    (void)state;
    wait_stderr(run, "step 1/", START_MS);
    find_daemons(run, pids, 2);
    address = address_of(pids[1]);
    assert_true(rk_str_has_prefix(address, "unix:"));
    socket_dir = rk_path_dir(address + strlen("unix:"));
    token = rk_path_join(socket_dir, "token");
    assert_int_equal(mode_of(token), 0600);
    assert_status(address, RK_UNAUTHENTICATED);
    assert_rankctl(0, address);
    rk_proc_signal(run, SIGINT);
    outcome = finish_rankctl(run, START_MS);
    assert_exit(&outcome, -SIGINT);
    outcome_fini(&outcome);
    assert_int_not_equal(access(token, F_OK), 0);
    rk_free(token);
    rk_free(socket_dir);
    rk_free(address);
    rk_free(dir);
}

/* Goal: under a service manager (RUNTIME_DIRECTORY) a daemon without a token file makes a token for owner and
 * group; a reload keeps it, and so does a second daemon that is refused. */
static void test_service_has_a_token(void **state)
{
    char *dir = new_run_dir(), *token, *text, *after, *address = rk_format("unix:%s/rankd.sock", dir);
    struct rk_proc *proc, *second;

    (void)state;
    assert_int_equal(mkdir(dir, 0750), 0);
    assert_int_equal(setenv("RUNTIME_DIRECTORY", dir, 1), 0);
    proc = rk_proc_start_rankd(NULL);
    assert_string_equal(rk_proc_address(proc), address);
    second = rk_proc_start_rankd(NULL);
    assert_int_equal(rk_proc_wait(second, START_MS), 4);
    rk_proc_destroy(second);
    unsetenv("RUNTIME_DIRECTORY");

    token = rk_path_join(dir, "token");
    assert_int_equal(mode_of(token), 0640);
    text = rk_test_read_file(token, NULL);
    assert_true(rk_str_has_prefix(text, "admin:"));
    assert_status(address, RK_UNAUTHENTICATED);
    assert_rankctl(0, address);
    rk_proc_signal(proc, SIGHUP);
    wait_stderr(proc, "reloaded", START_MS);
    after = rk_test_read_file(token, NULL);
    assert_string_equal(text, after);
    assert_rankctl(0, address);
    rk_free(after);
    rk_free(text);
    assert_int_equal(unlink(token), 0);
    assert_rankctl(4, address);
    rk_proc_signal(proc, SIGTERM);
    assert_int_equal(rk_proc_wait(proc, START_MS), 0);
    rk_proc_destroy(proc);
    rk_free(token);
    rk_free(address);
    rk_free(dir);
}

/* Goal: a service on loopback TCP demands a token, and writes its address beside it, by which drivers find it
 * below /run/rankd. */
static void test_service_on_loopback_has_a_token(void **state)
{
    char *dir = new_run_dir(), *token, *file, *written;
    struct rk_proc *proc;
    struct outcome outcome;

    (void)state;
    assert_int_equal(mkdir(dir, 0750), 0);
    assert_int_equal(setenv("RUNTIME_DIRECTORY", dir, 1), 0);
    proc = rk_proc_start_rankd((const char *const[]){"--rpc.listen=localhost:0", NULL});
    unsetenv("RUNTIME_DIRECTORY");
    assert_status(rk_proc_address(proc), RK_UNAUTHENTICATED);
    assert_rankctl(4, rk_proc_address(proc));
    token = rk_path_join(dir, "token");
    outcome = run_rankctl(
        (const char *const[]){"status", "--hosts", rk_proc_address(proc), "--token-file", token, NULL});
    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    file = rk_path_join(dir, "address");
    written = rk_test_read_file(file, NULL);
    assert_string_equal(written, "127.0.0.1:0");
    assert_int_equal(mode_of(file), 0640);
    rk_proc_signal(proc, SIGTERM);
    assert_int_equal(rk_proc_wait(proc, START_MS), 0);
    rk_proc_destroy(proc);
    rk_free(written);
    rk_free(file);
    rk_free(token);
    rk_free(dir);
}

/* Goal: a service whose reload takes away rpc.token_file makes a token as at its start, and one whose reload
 * sets it removes the file of the token that is not valid any more. */
static void test_service_token_follows_reloads(void **state)
{
    char *dir = new_run_dir(), *address = rk_format("unix:%s/rankd.sock", dir);
    char *config = rk_test_temp_path("rankd.json"), *tokens = rk_test_temp_path("tokens"),
         *text = rk_format("{\"rpc\": {\"token_file\": \"%s\"}}", tokens), *token;
    struct rk_proc *proc;

    (void)state;
    rk_test_write_file(tokens, "admin:0123456789abcdef0123456789abcdef\n", 39);
    assert_int_equal(chmod(tokens, 0600), 0);
    rk_test_write_file(config, text, strlen(text));
    assert_int_equal(mkdir(dir, 0750), 0);
    assert_int_equal(setenv("RUNTIME_DIRECTORY", dir, 1), 0);
    proc = rk_proc_start_rankd((const char *const[]){"--config", config, NULL});
    assert_string_equal(rk_proc_address(proc), address);
    unsetenv("RUNTIME_DIRECTORY");
    token = rk_path_join(dir, "token");
    assert_int_not_equal(access(token, F_OK), 0);

    rk_test_write_file(config, "{}", 2);
    rk_proc_signal(proc, SIGHUP);
    wait_stderr(proc, "the token of this run is in", START_MS);
    wait_stderr(proc, "reloaded", START_MS);
    assert_int_equal(mode_of(token), 0640);
    assert_status(address, RK_UNAUTHENTICATED);
    assert_rankctl(0, address);

    rk_test_write_file(config, text, strlen(text));
    rk_proc_signal(proc, SIGHUP);
    for (int i = 0; i < 100 && access(token, F_OK) == 0; i++)
        rk_time_sleep_ms(50);
    assert_int_not_equal(access(token, F_OK), 0);
    assert_status(address, RK_UNAUTHENTICATED);
    rk_proc_signal(proc, SIGTERM);
    assert_int_equal(rk_proc_wait(proc, START_MS), 0);
    rk_proc_destroy(proc);
    rk_free(token);
    rk_free(text);
    rk_free(tokens);
    rk_free(config);
    rk_free(address);
    rk_free(dir);
}

/* Goal: a daemon on loopback TCP without a token says that every local user has all rights; with a token, or
 * by request, it does not. */
static void test_open_loopback_warns(void **state)
{
    static const char warning[] = "every local user can connect to 127.0.0.1:0 and has all rights";
    char *path = rk_test_temp_path("tokens"), *flag = rk_format("--rpc.token_file=%s", path);
    const struct {
        const char *flag;
        bool warns;
    } cases[] = {{NULL, true}, {flag, false}, {"--insecure", false}};

    (void)state;
    rk_test_write_file(path, "admin:0123456789abcdef0123456789abcdef\n", 39);
    assert_int_equal(chmod(path, 0600), 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rk_proc *proc =
            rk_proc_start_rankd((const char *const[]){"--rpc.listen=127.0.0.1:0", cases[i].flag, NULL});
        char *err;

        (void)rk_proc_address(proc);
        err = rk_proc_stderr(proc);
        assert_int_equal(strstr(err, warning) != NULL, cases[i].warns);
        rk_free(err);
        rk_proc_destroy(proc);
    }
    rk_free(flag);
    rk_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_local_daemons_have_a_token),
        cmocka_unit_test(test_service_has_a_token),
        cmocka_unit_test(test_service_on_loopback_has_a_token),
        cmocka_unit_test(test_service_token_follows_reloads),
        cmocka_unit_test(test_open_loopback_warns),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
