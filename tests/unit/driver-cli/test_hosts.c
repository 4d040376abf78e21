/* Address lists: what is taken, in which order, and what is refused with which words. */
#include "driver-cli/rk_driver.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "tests/support/test.h"

struct accepted {
    const char *label, *text, *addresses[8];
};

static const struct accepted accepted[] = {
    {"one", "node1:7000", {"node1:7000"}},
    {"order is rank order", "b:1,a:2,c:3", {"b:1", "a:2", "c:3"}},
    {"white space and empty parts", " a:1 ,, b:2 ,", {"a:1", "b:2"}},
    {"literal addresses", "127.0.0.1:7000,[::1]:7000", {"127.0.0.1:7000", "[::1]:7000"}},
    {"sockets", "unix:/run/rankd/0.sock,unix-abstract:r0", {"unix:/run/rankd/0.sock", "unix-abstract:r0"}},
    {"largest port", "a:65535", {"a:65535"}},
    {"default port", "node1,[::1],10.0.0.7", {"node1:7000", "[::1]:7000", "10.0.0.7:7000"}},
    {"hosts in a range", "node[08-10,3]:7001", {"node08:7001", "node09:7001", "node10:7001", "node3:7001"}},
    {"ports in a range, host by host",
     "n[1-2].cluster:[7000-7002]",
     {"n1.cluster:7000", "n1.cluster:7001", "n1.cluster:7002", "n2.cluster:7000", "n2.cluster:7001",
      "n2.cluster:7002"}},
    {"ports count before racks", /* three brackets in one name would count in scontrol's order */
     "r[1-2]n[1-2]:[1-2]",
     {"r1n1:1", "r1n1:2", "r1n2:1", "r1n2:2", "r2n1:1", "r2n1:2", "r2n2:1", "r2n2:2"}},
    {"ports of an IPv6 address", "[::1]:[7000-7001]", {"[::1]:7000", "[::1]:7001"}},
    {"sockets in a range", "unix:/run/rankd/[0-1]/s", {"unix:/run/rankd/0/s", "unix:/run/rankd/1/s"}},
    {"a name in DNS", "dns:127.0.0.1:7001,dns:127.0.0.2", {"127.0.0.1:7001", "127.0.0.2:7000"}},
};

struct refused {
    const char *label, *text;
    rk_code_t code;
    const char *message;
};

static const struct refused refused[] = {
    {"nothing", "", RK_INVALID_ARGUMENT, "list of daemons is empty"},
    {"only commas", ",,", RK_INVALID_ARGUMENT, "list of daemons is empty"},
    {"no port behind the colon", "node1:", RK_INVALID_ARGUMENT, "port '' is not a number"},
    {"no host", ":7000", RK_INVALID_ARGUMENT, "address ':7000'"},
    {"port 0", "a:0", RK_INVALID_ARGUMENT, "port 0 is not in 1..65535"},
    {"port too large", "a:65536", RK_INVALID_ARGUMENT, "port 65536 is not in 1..65535"},
    {"port with letters", "a:70x", RK_INVALID_ARGUMENT, "port '70x' is not a number"},
    {"bare IPv6", "::1:7000", RK_INVALID_ARGUMENT, "':' is not part of a host name"},
    {"IPv6 not closed", "[::1:7000", RK_INVALID_ARGUMENT, "host list '[::1:7000', character 2"},
    {"text behind IPv6", "[::1]x:7000", RK_INVALID_ARGUMENT, "address '[::1]x:7000'"},
    {"a path", "/run/rankd.sock", RK_INVALID_ARGUMENT, "a socket is unix:PATH, a file with addresses @FILE"},
    {"no name", "a$b:1", RK_INVALID_ARGUMENT, "'$' is not part of a host name"},
    {"range not closed", "ok,node[01-04:7000", RK_INVALID_ARGUMENT, "'node[01-04:7000', character 11"},
    {"range of ports falls", "a:[7-6]", RK_INVALID_ARGUMENT, "host list '[7-6]', character 2"},
    {"range of too high ports", "a:[65535-65536]", RK_INVALID_ARGUMENT, "port 65536 is not in 1..65535"},
    {"twice in a range", "a[1-2,1]", RK_INVALID_ARGUMENT, "'a1:7000' stands twice"},
    {"too many", "a[1-9999]", RK_RESOURCE_EXHAUSTED, "more than 4096 hosts"},
    {"too many ports", "a[1-100]:[1-100]", RK_RESOURCE_EXHAUSTED, "more than 4096 addresses"},
    {"white space inside", "a b:1", RK_INVALID_ARGUMENT, "holds white space"},
    {"empty socket name", "unix:", RK_INVALID_ARGUMENT, "has no socket name"},
    {"twice", "a:1,b:2,a:1", RK_INVALID_ARGUMENT, "'a:1' stands twice in the list (ranks 0 and 2)"},
    {"slurm elsewhere", "slurm:7000", RK_INVALID_ARGUMENT, "SLURM_JOB_NODELIST is not set"},
    {"slurm without a good port", "slurm:x", RK_INVALID_ARGUMENT, "address 'slurm:x': port 'x'"},
    {"dns without a name", "dns::7000", RK_INVALID_ARGUMENT, "expected dns:NAME"},
    {"dns with a range", "dns:a[1-2]", RK_INVALID_ARGUMENT, "without ranges"},
    {"dns without a good port", "dns:a:0", RK_INVALID_ARGUMENT, "port 0 is not in 1..65535"},
    {"dns without addresses", "dns:no-such-host.invalid", RK_UNAVAILABLE, "no-such-host.invalid"},
    {"missing file", "@/does/not/exist", RK_NOT_FOUND, "/does/not/exist"},
};

static void test_hosts_parse_good_lists_keep_their_order(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(accepted); i++) {
        struct rk_hosts hosts;
        int32_t count = 0;

        print_message("%s\n", accepted[i].label);
        assert_ok(rk_hosts_parse(&hosts, accepted[i].text));
        while (count < (int32_t)RK_ARRAY_LEN(accepted[i].addresses) && accepted[i].addresses[count])
            count++;
        assert_int_equal(hosts.count, count);
        for (int32_t j = 0; j < count; j++)
            assert_string_equal(hosts.addresses[j], accepted[i].addresses[j]);
        rk_hosts_fini(&hosts);
    }
}

static void test_hosts_parse_bad_lists_are_refused_with_the_address(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(refused); i++) {
        struct rk_hosts hosts;

        print_message("%s\n", refused[i].label);
        assert_fails(rk_hosts_parse(&hosts, refused[i].text), refused[i].code, refused[i].message);
        assert_int_equal(hosts.count, 0);
    }
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

/* Goal: a file holds one address a line, with comments; its lines mix with addresses given directly, and a
 * bad line is named. */
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
