/* rankctl and daemons over TLS: valid and invalid configurations, and an unchanged run. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "tests/proc/cli_fixture.h"
#include "tests/support/certs.h"

#define ARGS_MAX 24

/* The files of a side, as flags with a prefix: "--rpc.tls_" or "--tls-". rk_free each. */
static int add_files(const char **args, const char *prefix, const char *file, const char *ca)
{
    int count = 0;

    if (file) {
        args[count++] = rk_format("%scert=%s", prefix, rk_test_cert_path(file, "crt"));
        args[count++] = rk_format("%skey=%s", prefix, rk_test_cert_path(file, "key"));
    }
    if (ca)
        args[count++] = rk_format("%sca=%s", prefix, rk_test_cert_path(ca, "crt"));
    return count;
}

static void free_args(const char **args, int count)
{
    for (int i = 0; i < count; i++)
        rk_free((char *)args[i]);
}

/* On 127.0.0.1; `file` NULL: without TLS. */
static struct rk_proc *start_tls_daemon(const char *file, const char *ca, const char *comm, const char *more)
{
    char *roots = rk_format("--ckpt.roots=[\"%s\"]", rk_test_temp_dir()),
         *flag = rk_format("--comm.listen=%s", comm);
    const char *args[ARGS_MAX] = {0};
    int count = add_files(args, "--rpc.tls_", file, ca);
    struct rk_proc *proc;

    args[count] = roots;
    args[count + 1] = "--cpu.num_threads=1";
    args[count + 2] = flag;
    args[count + 3] = more;
    proc = rk_proc_start_rankd(args);
    rk_proc_address(proc);
    free_args(args, count);
    rk_free(roots);
    rk_free(flag);
    return proc;
}

static struct outcome ask(const char *address, const char *file, const char *ca)
{
    char *hosts = rk_format("--hosts=%s", address);
    const char *args[ARGS_MAX] = {"status", hosts};
    int count = add_files(args + 2, "--tls-", file, ca);
    struct outcome outcome = run_rankctl(args);

    free_args(args + 2, count);
    rk_free(hosts);
    return outcome;
}

static void stop(struct rk_proc *proc)
{
    rk_proc_signal(proc, SIGTERM);
    assert_int_equal(rk_proc_wait(proc, 20000), 0);
    rk_proc_destroy(proc);
}

/* Goal: files come from flags or from the environment, and a Unix socket needs none. */
static void test_tls_cli_flags_and_environment(void **state)
{
    struct rk_proc *daemon = start_tls_daemon("host", "ca", "unix", NULL), *local = start_daemon(NULL);
    const char *address = rk_proc_address(daemon);
    char *both = rk_format("%s,%s", address, rk_proc_address(local));
    struct outcome outcome = ask(address, "client", "ca");

    (void)state;
    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    outcome = ask(both, "client", "ca");
    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    setenv("RANKCTL_TLS_CA", rk_test_cert_path("ca", "crt"), 1);
    setenv("RANKCTL_TLS_CERT", rk_test_cert_path("client", "crt"), 1);
    setenv("RANKCTL_TLS_KEY", rk_test_cert_path("client", "key"), 1);
    outcome = ask(address, NULL, NULL);
    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    setenv("RANKCTL_TLS_CA", "/nowhere", 1);
    outcome = ask(rk_proc_address(local), NULL, NULL); /* certificates are not checked on a Unix socket */
    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    unsetenv("RANKCTL_TLS_CA");
    unsetenv("RANKCTL_TLS_CERT");
    unsetenv("RANKCTL_TLS_KEY");
    stop(daemon);
    stop(local);
    rk_free(both);
}

/* Goal: localhost is reached without a resolver, and the certificate is checked for that name. */
static void test_tls_cli_localhost(void **state)
{
    static const struct rk_test_cert_spec specs[] = {
        {.file = "named", .use = RK_CERT_HOST, .names = {"localhost"}},
        {.file = "numbered", .use = RK_CERT_HOST, .names = {"127.0.0.1"}}};

    (void)state;
    rk_test_make_signed("ca", specs, RK_ARRAY_LEN(specs));
    for (size_t i = 0; i < RK_ARRAY_LEN(specs); i++) {
        struct rk_proc *daemon = start_tls_daemon(specs[i].file, "ca", "unix", NULL);
        char *named = rk_format("localhost%s", strrchr(rk_proc_address(daemon), ':'));
        struct outcome outcome = ask(named, "client", "ca");

        assert_exit(&outcome, i == 0 ? 0 : 4);
        if (i > 0)
            assert_text("stderr", outcome.err, "its certificate is for 127.0.0.1, not for localhost");
        outcome_fini(&outcome);
        stop(daemon);
        rk_free(named);
    }
}

/* Goal: errors of certificates on either side have their cause, and are not "socket closed".
 */
static void test_tls_cli_reports_the_error(void **state)
{
    static const struct {
        int daemon; /* TLS for 127.0.0.1, plain, TLS for another name */
        const char *file, *ca;
        int code;
        const char *text;
    } cases[] = {
        {0, NULL, "ca", 4, "it refuses this side: certificate required (tls_cert and tls_key are not"},
        {0, "client", "other_ca", 4, "its certificate is signed by 'ca', which is not one of"},
        {0, "stranger", "ca", 4, "it refuses this side: unknown CA"},
        {0, NULL, NULL, 4, "the daemon requires TLS"},
        {2, "client", "ca", 4, "its certificate is for second.example, not for 127.0.0.1"},
        {1, "client", "ca", 4, "the daemon does not speak TLS"},
        {0, "expired", "ca", 2, "tls_cert '"},
        {0, "expired", "ca", 2, "the certificate expired on"},
        {0, "open", "ca", 2, "readable by group or others"},
        {0, "mixed", "ca", 2, "does not belong to the certificate"},
        {0, "client", "missing", 2, "No such file"},
        {0, "client", NULL, 2, "tls_cert: expected together with tls_ca"},
    };
    struct rk_proc *daemons[] = {start_tls_daemon("host", "ca", "unix", NULL),
                                 start_tls_daemon(NULL, NULL, "unix", NULL),
                                 start_tls_daemon("second", "ca", "unix", NULL)};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct outcome outcome = ask(rk_proc_address(daemons[cases[i].daemon]), cases[i].file, cases[i].ca);

        assert_text("stderr", outcome.err, cases[i].text);
        assert_int_equal(strncmp(outcome.err, "rankctl: ", strlen("rankctl: ")), 0); /* no line of gRPC's */
        assert_exit(&outcome, cases[i].code);
        outcome_fini(&outcome);
    }
    for (size_t i = 0; i < RK_ARRAY_LEN(daemons); i++)
        stop(daemons[i]);
}

/* The tiny job on both daemons; the files are options ("--tls-") or keys of the job ("daemons.tls_"). `more`
 * is NULL or one argument. */
static struct outcome run_on(struct rk_proc *const daemons[2], const char *dir, const char *prefix,
                             const char *more)
{
    char *hosts = rk_format("--hosts=%s,%s", rk_proc_address(daemons[0]), rk_proc_address(daemons[1]));
    const char *args[ARGS_MAX] = {"run", TINY_JOB, "--run-dir", dir, TINY};
    struct outcome outcome;
    int begin = 0, count;

    while (args[begin])
        begin++;
    args[begin++] = hosts;
    count = add_files(args + begin, prefix, "client", "ca");
    args[begin + count] = more;
    outcome = run_rankctl(args);
    free_args(args + begin, count);
    rk_free(hosts);
    return outcome;
}

/* Goal: a run on two daemons over mutual TLS, with collectives over TCP, is bit-identical to one without TLS;
 * its files are keys of the job, or options, which take precedence. If one of the ranks has TLS off, they do
 * not connect, and the error has the reason. */
static void test_tls_cli_run_is_the_same(void **state)
{
    char *plain = run_new_tiny_job("2", NULL, NULL), *dir = new_run_dir(), *other_dir = new_run_dir();
    struct rk_proc *daemons[] = {start_tls_daemon("host", "ca", "127.0.0.1", NULL),
                                 start_tls_daemon("host", "ca", "127.0.0.1", NULL)};
    struct outcome outcome = run_on(daemons, dir, "daemons.tls_", NULL);

    (void)state;
    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    for (int64_t step = 1; step <= TINY_STEPS; step++) {
        struct rk_json *metrics = read_metrics(dir, step), *expected = read_metrics(plain, step);

        assert_same_step(metrics, expected, step);
        rk_json_free(metrics);
        rk_json_free(expected);
    }
    stop(daemons[0]);
    daemons[0] = start_tls_daemon("host", "ca", "127.0.0.1", "--comm.tls=off");
    outcome = run_on(daemons, other_dir, "--tls-", "daemons.tls_ca=/nowhere");
    assert_true(outcome.code != 0);
    assert_text("stderr", outcome.err, "it does not speak TLS");
    outcome_fini(&outcome);
    rk_proc_destroy(daemons[0]); /* still waits for the other rank */
    stop(daemons[1]);
    rk_free(other_dir);
    rk_free(dir);
    rk_free(plain);
}

static int make_all(void **state)
{
    (void)state;
    rk_test_make_certs();
    rk_test_make_wrong_certs(RK_CERT_CLIENT);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tls_cli_flags_and_environment),
        cmocka_unit_test(test_tls_cli_localhost),
        cmocka_unit_test(test_tls_cli_reports_the_error),
        cmocka_unit_test(test_tls_cli_run_is_the_same),
    };

    return cmocka_run_group_tests(tests, make_all, NULL);
}
