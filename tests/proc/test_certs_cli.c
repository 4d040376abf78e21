/* rankctl certs: output files and rejected arguments. */
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "base/net/rk_tls.h"
#include "tests/proc/cli_fixture.h"

static mode_t mode_of(const char *dir, const char *name)
{
    char *path = rk_path_join(dir, name);
    struct stat info;

    assert_int_equal(stat(path, &info), 0);
    rk_free(path);
    return info.st_mode & 0777;
}

/* The files of one name as a daemon loads them. */
static void assert_loads(const char *dir, const char *name)
{
    char *cert = rk_format("%s/%s.crt", dir, name), *key = rk_format("%s/%s.key", dir, name);
    char *ca = rk_path_join(dir, "ca.crt");
    struct rk_tls_files files = {.cert = cert, .key = key, .ca = ca, .prefix = "tls_"};
    struct rk_tls *tls;

    assert_ok(rk_tls_create(&tls, &files));
    rk_tls_destroy(tls);
    rk_free(cert);
    rk_free(key);
    rk_free(ca);
}

/* Goal: one command creates files that a daemon and a client can load; keys are readable only by their owner;
 * nothing is overwritten. */
static void test_certs_init(void **state)
{
    char *dir = new_run_dir(), *out = rk_format("--out=%s", dir), *host, *after, *key_path;
    const char *args[] = {"certs", "init", "--hosts=node1+10.0.0.7,node2:[7000-7001],[fd00::1]:7", out, NULL};
    const char *json_args[] = {"certs", "init", "--hosts=node1", out, "--output=json", NULL};
    static const char *const names[] = {"ca", "node1", "node2", "fd00__1", "rankctl"};
    struct outcome outcome = run_rankctl(args);
    struct rk_json *json;
    size_t bytes;

    (void)state;
    assert_exit(&outcome, 0);
    assert_text("stdout", outcome.out, "node1, 10.0.0.7");
    outcome_fini(&outcome);
    assert_int_equal(rk_test_count_entries(dir), 2 * RK_ARRAY_LEN(names));
    for (size_t i = 0; i < RK_ARRAY_LEN(names); i++) {
        char *key = rk_format("%s.key", names[i]);

        assert_int_equal(mode_of(dir, key), 0600);
        assert_loads(dir, names[i]);
        rk_free(key);
    }
    key_path = rk_path_join(dir, "node1.key");
    host = rk_test_read_file(key_path, &bytes);
    outcome = run_rankctl(json_args);
    assert_exit(&outcome, 1);
    json = parse_json(outcome.out);
    assert_string_equal(rk_json_as_string(rk_json_find_path(json, "error.code"), ""), "ALREADY_EXISTS");
    rk_json_free(json);
    after = rk_test_read_file(key_path, &bytes);
    assert_string_equal(host, after);
    outcome_fini(&outcome);
    rk_free(after);
    rk_free(host);
    rk_free(key_path);
    rk_free(out);
    rk_free(dir);
}

/* Goal: issues further certificates of the same authority; a command that would overwrite a file changes
 * nothing. */
static void test_certs_issue(void **state)
{
    char *dir = new_run_dir(), *out = rk_format("--out=%s", dir), *ca = rk_format("--ca=%s", dir);
    const char *init[] = {"certs", "init", "--hosts=node1", out, NULL};
    const char *issue[] = {"certs", "issue", ca, "--hosts=node3", "--client=bob", out, NULL};
    const char *clash[] = {"certs", "issue", ca, "--hosts=node4,node1", out, NULL};
    struct outcome outcome = run_rankctl(init);

    (void)state;
    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    outcome = run_rankctl(issue);
    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    assert_loads(dir, "node3");
    assert_loads(dir, "bob");
    assert_int_equal(rk_test_count_entries(dir), 10);
    outcome = run_rankctl(clash);
    assert_exit(&outcome, 1);
    assert_text("stderr", outcome.err, "node1.crt' exists");
    outcome_fini(&outcome);
    assert_int_equal(rk_test_count_entries(dir), 10);
    rk_free(ca);
    rk_free(out);
    rk_free(dir);
}

/* Goal: invalid host names are reported, and nothing is written. */
static void test_certs_refuses(void **state)
{
    static const struct {
        const char *hosts, *text;
    } cases[] = {
        {"--hosts=no+de;1", "name 'de;1'"},
        {"--hosts=unix:/run/rankd.sock", "Unix socket"},
        {"--hosts=ca", "host 'ca'"},
        {"--hosts=", "--hosts: expected a list of hosts, got an empty text"},
        {"--hosts=-x", "name '-x': expected a host name"},
        {"--hosts=node1+-x", "name '-x': expected a host name"},
        {"--hosts=rankctl", "--client=rankctl"},
        {"--hosts=@/nowhere/hosts", "/nowhere/hosts"},
        {"--days=0", "expected 1 to 3650"},
        {"--client=bob", "--hosts: expected a list"},
    };
    char *dir = new_run_dir(), *out = rk_format("--out=%s", dir);

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        const char *args[] = {"certs", "init", cases[i].hosts, out, NULL};
        struct outcome outcome = run_rankctl(args);

        assert_true(outcome.code != 0);
        assert_text("stderr", outcome.err, cases[i].text);
        outcome_fini(&outcome);
    }
    assert_true(access(dir, F_OK) != 0 || rk_test_count_entries(dir) == 0);
    rk_free(out);
    rk_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_certs_init),
        cmocka_unit_test(test_certs_issue),
        cmocka_unit_test(test_certs_refuses),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
