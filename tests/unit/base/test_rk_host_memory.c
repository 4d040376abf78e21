/* Free memory of the host, read from files of the test, so that results do not depend on the machine. */
#include "tests/support/test.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "base/rk_host_memory.h"

#define MEMINFO   "MemTotal:       9000 kB\nMemFree:        1000 kB\nMemAvailable:   8000 kB\nBuffers: 1 kB\n"
#define AVAILABLE ((uint64_t)8000 * 1024)

struct file {
    const char *path, *text;
};

struct memory_case {
    const char *label;
    struct file files[12]; /* beside /proc/meminfo */
    uint64_t free_bytes;
};

#define V2 "/sys/fs/cgroup"
#define V1 "/sys/fs/cgroup/memory"

static const struct memory_case cases[] = {
    {"no control groups", {{0}}, AVAILABLE},
    {"version 2 without a limit",
     {{"/proc/self/cgroup", "0::/user.slice\n"},
      {V2 "/user.slice/memory.max", "max\n"},
      {V2 "/user.slice/memory.current", "4000\n"}},
     AVAILABLE},
    {"version 2, as a container sees it",
     {{"/proc/self/cgroup", "0::/\n"}, {V2 "/memory.max", "6000\n"}, {V2 "/memory.current", "4000\n"}},
     2000},
    {"a limit above the group",
     {{"/proc/self/cgroup", "0::/pod/box\n"},
      {V2 "/pod/memory.max", "6000\n"},
      {V2 "/pod/memory.current", "5900\n"},
      {V2 "/pod/box/memory.max", "9000\n"},
      {V2 "/pod/box/memory.current", "100\n"}},
     100},
    {"page cache that was used once is free",
     {{"/proc/self/cgroup", "0::/\n"},
      {V2 "/memory.max", "6000\n"},
      {V2 "/memory.current", "5000\n"},
      {V2 "/memory.stat", "anon 1000\nfile 4000\ninactive_file 3000\nactive_file 1000\n"}},
     4000},
    {"more in use than the limit",
     {{"/proc/self/cgroup", "0::/\n"}, {V2 "/memory.max", "6000\n"}, {V2 "/memory.current", "7000\n"}},
     0},
    {"a limit above what the host has",
     {{"/proc/self/cgroup", "0::/\n"}, {V2 "/memory.max", "99000000\n"}, {V2 "/memory.current", "7000\n"}},
     AVAILABLE},
    {"version 1",
     {{"/proc/self/cgroup", "5:cpu,cpuacct:/a\n4:hugetlb,memory:/b/c\n0::/\n"},
      {V1 "/b/c/memory.limit_in_bytes", "6000\n"},
      {V1 "/b/c/memory.usage_in_bytes", "5000\n"},
      {V1 "/b/c/memory.stat", "inactive_file 1\ntotal_inactive_file 500\n"},
      {V1 "/memory.limit_in_bytes", "9223372036854771712\n"},
      {V1 "/memory.usage_in_bytes", "8000\n"}},
     1500},
    {"version 1, a path of the host inside of a container",
     {{"/proc/self/cgroup", "4:memory:/docker/0123\n"},
      {V1 "/memory.limit_in_bytes", "6000\n"},
      {V1 "/memory.usage_in_bytes", "5500\n"}},
     500},
    {"a controller that is called nearly alike",
     {{"/proc/self/cgroup", "4:memory_other:/\nnonsense\n"},
      {V1 "/memory.limit_in_bytes", "6000\n"},
      {V1 "/memory.usage_in_bytes", "5500\n"}},
     AVAILABLE},
};

static void write_file(const char *root, const struct file *file)
{
    char *path = rk_format("%s%s", root, file->path);

    for (char *slash = strchr(path + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(path, 0777);
        *slash = '/';
    }
    rk_test_write_file(path, file->text, strlen(file->text));
    rk_free(path);
}

static char *make_root(const char *name)
{
    char *root = rk_test_temp_path(name);

    assert_int_equal(mkdir(root, 0777), 0);
    return root;
}

static void test_free_bytes_keep_to_all_limits(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        char *name = rk_format("host-%zu", i), *root = make_root(name);

        write_file(root, &(struct file){"/proc/meminfo", MEMINFO});
        for (const struct file *file = cases[i].files; file->path; file++)
            write_file(root, file);
        if (rk_host_free_bytes(root) != cases[i].free_bytes)
            fail_msg("%s: %llu bytes, expected %llu", cases[i].label,
                     (unsigned long long)rk_host_free_bytes(root), (unsigned long long)cases[i].free_bytes);
        rk_free(name);
        rk_free(root);
    }
}

static void test_used_bytes_are_those_of_all_processes(void **state)
{
    char *root = make_root("used");

    (void)state;
    write_file(root, &(struct file){"/proc/meminfo", MEMINFO});
    assert_true(rk_host_used_bytes(root) == 1000 * 1024);
    rk_free(root);
}

static void test_free_bytes_without_proc_are_unknown(void **state)
{
    char *root = make_root("empty");

    (void)state;
    assert_true(rk_host_free_bytes(root) == UINT64_MAX);
    assert_true(rk_host_used_bytes(root) == 0);
    assert_true(rk_host_resident_bytes(root) == 0);
    rk_free(root);
}

static void test_resident_bytes_are_those_of_the_process_alone(void **state)
{
    char *root = make_root("resident");

    (void)state;
    write_file(root, &(struct file){"/proc/self/statm", "900 300 100 5 0 123 0\n"});
    assert_true(rk_host_resident_bytes(root) == (uint64_t)200 * (uint64_t)sysconf(_SC_PAGESIZE));
    rk_free(root);
}

/* Goal: two processes have the same name exactly if they are on one host, in one control group, of one
 * namespace; and no name if the kernel does not report it. */
static void test_domain_tells_hosts_and_groups_apart(void **state)
{
    static const struct {
        const char *boot_id, *group, *ns;
        int same_as; /* an earlier row; -1: none */
    } rows[] = {
        {"1f-a", "0::/rankd/a\n", "cgroup:[1]", -1}, {"1f-a", "0::/rankd/b\n", "cgroup:[1]", -1},
        {"1f-b", "0::/rankd/a\n", "cgroup:[1]", -1}, {"1f-a", "0::/rankd/a\n", "cgroup:[2]", -1},
        {"1f-a", "0::/rankd/a\n", "cgroup:[1]", 0},  {"", "0::/rankd/a\n", "cgroup:[1]", -1},
    };
    char names[RK_ARRAY_LEN(rows)][RK_HOST_MEMORY_DOMAIN_BYTES];

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        char *root_name = rk_format("domain-%zu", i), *root = make_root(root_name), *link;

        write_file(root, &(struct file){"/proc/self/cgroup", rows[i].group});
        write_file(root, &(struct file){"/proc/self/ns/other", ""});
        write_file(root, &(struct file){"/proc/sys/kernel/random/boot_id", rows[i].boot_id});
        link = rk_path_join(root, "proc/self/ns/cgroup");
        assert_int_equal(symlink(rows[i].ns, link), 0);
        rk_host_memory_domain(root, names[i]);
        assert_int_equal(strlen(names[i]), *rows[i].boot_id ? RK_HOST_MEMORY_DOMAIN_BYTES - 1 : 0);
        for (size_t j = 0; j < i; j++)
            assert_int_equal(strcmp(names[i], names[j]) == 0, rows[i].same_as == (int)j);
        rk_free(link);
        rk_free(root_name);
        rk_free(root);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_free_bytes_keep_to_all_limits),
        cmocka_unit_test(test_used_bytes_are_those_of_all_processes),
        cmocka_unit_test(test_free_bytes_without_proc_are_unknown),
        cmocka_unit_test(test_resident_bytes_are_those_of_the_process_alone),
        cmocka_unit_test(test_domain_tells_hosts_and_groups_apart),
    };

    return cmocka_run_group_tests_name("unit/base/host_memory", tests, NULL, NULL);
}
