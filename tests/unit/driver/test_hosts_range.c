/* The expansion of one term of a host list: ranges as in Slurm, the daemons of a Slurm job, the addresses of
 * a name. */
#include "driver/hosts_internal.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/rk_alloc.h"
#include "base/rk_json.h"
#include "base/rk_str.h"
#include "driver/rk_driver.h"
#include "tests/support/test.h"
#include "tests/unit/driver/host_cases.h"

static struct rk_status *join(void *user, const char *name)
{
    struct rk_str *names = user;

    rk_str_appendf(names, "%s%s", names->bytes > 0 ? "," : "", name);
    return NULL;
}

/* Goal: rankctl assigns the ranks that a job's own scripts expect. Method: lists from a file with the output
 * of scontrol for them. */
static void test_ranges_are_expanded_as_scontrol_does(void **state)
{
    char *path = rk_test_fixture_path("golden/hosts/scontrol.tsv");
    char *text = rk_test_read_file(path, NULL), *rest = text, *line;
    int count = 0;

    (void)state;
    while ((line = strsep(&rest, "\n")) != NULL) {
        char *list = strsep(&line, "\t");
        struct rk_str names = {0};

        if (!line)
            continue;
        for (const char *term = list; *term;) {
            size_t bytes = rk_hosts_term_bytes(term);
            char *one = rk_strndup(term, bytes);

            if (*one)
                assert_ok(rk_host_ranges_expand(one, 1000, join, &names));
            rk_free(one);
            term += bytes + (term[bytes] == ',');
        }
        print_message("%s\n", list);
        assert_string_equal(rk_str_text(&names), line);
        rk_str_fini(&names);
        count++;
    }
    assert_int_equal(count, 19);
    rk_free(text);
    rk_free(path);
}

/* scontrol refuses all of them as well, except those for which it outputs an invented name. */
static void test_bad_ranges_are_named_with_their_character(void **state)
{
    struct rk_json *cases = host_cases("bad_ranges", 21);

    (void)state;
    for (int64_t i = 0; i < rk_json_count(cases); i++) {
        struct rk_json *row = rk_json_at(cases, i);
        struct rk_str names = {0};

        print_message("%s\n", host_case(row, "term"));
        assert_fails(rk_host_ranges_expand(host_case(row, "term"), 100, join, &names), host_case_code(row),
                     host_case(row, "message"));
        assert_int_equal(names.bytes, 0);
    }
    rk_json_free(cases);
}

static void test_text_may_follow_a_range(void **state)
{
    struct rk_str names = {0};

    (void)state;
    assert_ok(rk_host_ranges_expand("n[1-2].cluster", 100, join, &names));
    assert_string_equal(rk_str_text(&names), "n1.cluster,n2.cluster");
    rk_str_fini(&names);
}

/* --- Slurm --- */

static void set_slurm(const char *nodes, const char *tasks_per_node, const char *ntasks_per_node,
                      const char *step)
{
    const char *const variables[] = {"SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE",
                                     "SLURM_STEP_ID"};
    const char *const values[] = {nodes, tasks_per_node, ntasks_per_node, step};

    for (size_t i = 0; i < RK_ARRAY_LEN(values); i++) {
        if (values[i])
            setenv(variables[i], values[i], 1);
        else
            unsetenv(variables[i]);
    }
}

static void test_slurm_job_gives_ports_host_by_host(void **state)
{
    struct rk_json *cases = host_cases("slurm", 7);

    (void)state;
    for (int64_t i = 0; i < rk_json_count(cases); i++) {
        struct rk_json *row = rk_json_at(cases, i);
        struct rk_str names = {0};

        print_message("%s\n", host_case(row, "label"));
        set_slurm(host_case(row, "nodes"), host_case(row, "tasks"), host_case(row, "ntasks"),
                  host_case(row, "step"));
        assert_ok(rk_hosts_slurm(host_case(row, "ports"), join, &names));
        assert_string_equal(rk_str_text(&names), host_case(row, "addresses"));
        rk_str_fini(&names);
    }
    set_slurm(NULL, NULL, NULL, NULL);
    rk_json_free(cases);
}

/* Older versions of Slurm set only this variable. */
static void test_slurm_nodelist_is_read_too(void **state)
{
    struct rk_str names = {0};

    (void)state;
    setenv("SLURM_NODELIST", "a[1-2]", 1);
    assert_ok(rk_hosts_slurm("7000", join, &names));
    assert_string_equal(rk_str_text(&names), "a1:7000,a2:7000");
    unsetenv("SLURM_NODELIST");
    rk_str_fini(&names);
}

static void test_bad_slurm_jobs_are_refused_with_the_variable(void **state)
{
    struct rk_json *cases = host_cases("bad_slurm", 16);

    (void)state;
    for (int64_t i = 0; i < rk_json_count(cases); i++) {
        struct rk_json *row = rk_json_at(cases, i);
        struct rk_str names = {0};

        print_message("%s\n", host_case(row, "message"));
        set_slurm(host_case(row, "nodes"), host_case(row, "tasks"), host_case(row, "ntasks"), NULL);
        assert_fails(rk_hosts_slurm(host_case(row, "ports"), join, &names), RK_INVALID_ARGUMENT,
                     host_case(row, "message"));
        assert_int_equal(names.bytes, 0);
    }
    set_slurm(NULL, NULL, NULL, NULL);
    rk_json_free(cases);
}

/* Goal: port ranges that exceed 65535 are refused. */
static void test_slurm_ports_past_the_last_are_refused(void **state)
{
    struct rk_hosts hosts;

    (void)state;
    set_slurm("n1", NULL, "3", NULL);
    assert_fails(rk_hosts_parse(&hosts, "slurm:65534"), RK_INVALID_ARGUMENT, "port 65536 is not in 1..65535");
    set_slurm(NULL, NULL, NULL, NULL);
}

/* --- DNS --- */

struct answer {
    struct addrinfo info;
    struct sockaddr_storage storage;
};

static void fill(struct answer *answer, const char *text)
{
    bool is_v6 = strchr(text, ':') != NULL;
    struct sockaddr_in *v4 = (struct sockaddr_in *)&answer->storage;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&answer->storage;

    *answer = (struct answer){.info = {.ai_family = is_v6 ? AF_INET6 : AF_INET}};
    answer->info.ai_addr = (struct sockaddr *)&answer->storage;
    assert_int_equal(inet_pton(answer->info.ai_family, text, is_v6 ? (void *)&v6->sin6_addr : &v4->sin_addr),
                     1);
}

/* Goal: the rank order does not depend on the order of the server's answers. */
static void test_dns_addresses_are_sorted_by_number_and_told_once(void **state)
{
    static const char *const texts[] = {"10.0.0.10", "fd00::2",  "10.0.0.9", "192.168.0.1",
                                        "fd00::1",   "10.0.0.9", "fd00::2"};
    struct answer answers[RK_ARRAY_LEN(texts)];
    struct rk_str names = {0};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(texts); i++) {
        fill(&answers[i], texts[i]);
        if (i > 0)
            answers[i - 1].info.ai_next = &answers[i].info;
    }
    assert_ok(rk_hosts_of_addrinfo(&answers[0].info, 7000, join, &names));
    assert_string_equal(rk_str_text(&names),
                        "10.0.0.9:7000,10.0.0.10:7000,192.168.0.1:7000,[fd00::1]:7000,[fd00::2]:7000");
    rk_str_fini(&names);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranges_are_expanded_as_scontrol_does),
        cmocka_unit_test(test_bad_ranges_are_named_with_their_character),
        cmocka_unit_test(test_text_may_follow_a_range),
        cmocka_unit_test(test_slurm_job_gives_ports_host_by_host),
        cmocka_unit_test(test_slurm_nodelist_is_read_too),
        cmocka_unit_test(test_bad_slurm_jobs_are_refused_with_the_variable),
        cmocka_unit_test(test_slurm_ports_past_the_last_are_refused),
        cmocka_unit_test(test_dns_addresses_are_sorted_by_number_and_told_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
