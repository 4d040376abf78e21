/* Address lists: accepted forms, their order, and the messages of refused ones. The tables are in
 * tests/golden/hosts/cases.json, which the tests of the Python client also read. */
#include "driver/rk_driver.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_json.h"
#include "tests/support/test.h"
#include "tests/unit/driver/host_cases.h"

static void test_hosts_parse_good_lists_keep_their_order(void **state)
{
    struct rk_json *cases = host_cases("accepted", 13);

    (void)state;
    for (int64_t i = 0; i < rk_json_count(cases); i++) {
        struct rk_json *row = rk_json_at(cases, i), *addresses = rk_json_find(row, "addresses");
        struct rk_hosts hosts;

        print_message("%s\n", host_case(row, "label"));
        assert_ok(rk_hosts_parse(&hosts, host_case(row, "text")));
        assert_int_equal(hosts.count, rk_json_count(addresses));
        for (int32_t j = 0; j < hosts.count; j++)
            assert_string_equal(hosts.addresses[j], rk_json_as_string(rk_json_at(addresses, j), NULL));
        rk_hosts_fini(&hosts);
    }
    rk_json_free(cases);
}

static void test_hosts_parse_bad_lists_are_refused_with_the_address(void **state)
{
    struct rk_json *cases = host_cases("refused", 28);

    (void)state;
    for (int64_t i = 0; i < rk_json_count(cases); i++) {
        struct rk_json *row = rk_json_at(cases, i);
        struct rk_hosts hosts;

        print_message("%s\n", host_case(row, "label"));
        assert_fails(rk_hosts_parse(&hosts, host_case(row, "text")), host_case_code(row),
                     host_case(row, "message"));
        assert_int_equal(hosts.count, 0);
    }
    rk_json_free(cases);
}

static void test_hosts_parse_socket_name_too_long_is_refused(void **state)
{
    struct rk_hosts hosts;
    char text[200];

    (void)state;
    memset(text, 'x', sizeof(text));
    memcpy(text, "unix:/", 6);
    text[5 + 107] = '\0'; /* the longest that is possible */
    assert_ok(rk_hosts_parse(&hosts, text));
    rk_hosts_fini(&hosts);
    text[5 + 107] = 'x';
    text[5 + 108] = '\0';
    assert_fails(rk_hosts_parse(&hosts, text), RK_INVALID_ARGUMENT, "socket name of 108 bytes");
}

/* Goal: a file has one address per line, with comments; it can be combined with addresses given directly, and
 * an invalid line is named. */
static void test_hosts_parse_file_lines_and_comments(void **state)
{
    static const char good[] = "# the first rack\nnode1:7000\n  node2:7000  # spare\n\nunix:/a,unix:/b , # "
                               "two of a host\nnode[3-4]:7000";
    static const char bad[] = "node1:7000\n\nnode2:\n";
    char *path = rk_test_temp_path("hosts");
    char *text = rk_format("first:1,@%s,last:2", path);
    struct rk_hosts hosts;

    (void)state;
    rk_test_write_file(path, good, sizeof(good) - 1);
    assert_ok(rk_hosts_parse(&hosts, text));
    assert_int_equal(hosts.count, 8);
    assert_string_equal(hosts.addresses[0], "first:1");
    assert_string_equal(hosts.addresses[2], "node2:7000");
    assert_string_equal(hosts.addresses[3], "unix:/a");
    assert_string_equal(hosts.addresses[4], "unix:/b");
    assert_string_equal(hosts.addresses[6], "node4:7000");
    assert_string_equal(hosts.addresses[7], "last:2");
    rk_hosts_fini(&hosts);
    rk_test_write_file(path, bad, sizeof(bad) - 1);
    assert_fails(rk_hosts_parse(&hosts, text), RK_INVALID_ARGUMENT, "hosts:3: address 'node2:'");
    rk_free(text);
    rk_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hosts_parse_good_lists_keep_their_order),
        cmocka_unit_test(test_hosts_parse_bad_lists_are_refused_with_the_address),
        cmocka_unit_test(test_hosts_parse_socket_name_too_long_is_refused),
        cmocka_unit_test(test_hosts_parse_file_lines_and_comments),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
