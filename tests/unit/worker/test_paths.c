/* Paths of calls: what is below the roots is found or made, everything else is refused. */
#include "tests/support/test.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "worker/worker_internal.h"

/* root/ with a/b/, a file, links to a directory inside and outside; other/ beside it. */
static char *root, *other;

static void make_dir(const char *dir, const char *name)
{
    char *path = rk_path_join(dir, name);

    assert_int_equal(mkdir(path, 0777), 0);
    rk_free(path);
}

static void make_link(const char *dir, const char *name, const char *target)
{
    char *path = rk_path_join(dir, name);

    assert_int_equal(symlink(target, path), 0);
    rk_free(path);
}

static int setup(void **state)
{
    char resolved[PATH_MAX], *file;

    (void)state;
    assert_non_null(realpath(rk_test_temp_dir(), resolved));
    make_dir(resolved, "root");
    make_dir(resolved, "other");
    make_dir(resolved, "rootless"); /* shares the root's name as a prefix only */
    root = rk_path_join(resolved, "root");
    other = rk_path_join(resolved, "other");
    make_dir(root, "a");
    make_dir(root, "a/b");
    make_link(root, "inside", "a");
    make_link(root, "outside", other);
    file = rk_path_join(root, "file");
    rk_test_write_file(file, "x", 1);
    rk_free(file);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    rk_free(root);
    rk_free(other);
    return 0;
}

/* Resolves and compares with root/expected. */
static void check_resolves(const char *path, uint32_t flags, const char *expected)
{
    char *const roots[] = {root, other, NULL};
    char *actual, *wanted = *expected ? rk_path_join(root, expected) : rk_strdup(root);

    assert_ok(rk_path_resolve(&actual, roots, path, flags));
    assert_string_equal(actual, wanted);
    rk_free(actual);
    rk_free(wanted);
}

static void test_resolve_below_roots(void **state)
{
    char *absolute = rk_path_join(root, "a/b");

    (void)state;
    check_resolves("a", 0, "a");
    check_resolves("a/b", 0, "a/b");
    check_resolves("./a//b/", 0, "a/b");
    check_resolves(absolute, 0, "a/b");
    check_resolves(root, 0, "");
    check_resolves("new/deep/dir", RK_PATH_RESOLVE_CREATE, "new/deep/dir");
    check_resolves("new/deep/dir", 0, "new/deep/dir");
    rk_free(absolute);
}

static void test_resolve_second_root(void **state)
{
    char *const roots[] = {root, other, NULL};
    char *actual;

    (void)state;
    assert_ok(rk_path_resolve(&actual, roots, other, 0));
    assert_string_equal(actual, other);
    rk_free(actual);
}

static void test_resolve_elsewhere_is_refused(void **state)
{
    char *const roots[] = {root, NULL};
    char *sibling = rk_format("%sless", root);
    char *dotted = rk_format("%s/../other", root);
    const struct {
        const char *path;
        uint32_t flags;
        rk_code_t code;
    } cases[] = {
        {"", 0, RK_INVALID_ARGUMENT},
        {"..", 0, RK_PERMISSION_DENIED},
        {"a/../../other", 0, RK_PERMISSION_DENIED},
        {"a/..", 0, RK_PERMISSION_DENIED},
        {dotted, 0, RK_PERMISSION_DENIED},
        {"/", 0, RK_PERMISSION_DENIED},
        {"/etc", 0, RK_PERMISSION_DENIED},
        {other, 0, RK_PERMISSION_DENIED},
        {sibling, 0, RK_PERMISSION_DENIED},
        {"outside", 0, RK_PERMISSION_DENIED},
        {"outside/new", RK_PATH_RESOLVE_CREATE, RK_PERMISSION_DENIED},
        {"inside", 0, RK_PERMISSION_DENIED},
        {"file", 0, RK_PERMISSION_DENIED},
        {"file/x", RK_PATH_RESOLVE_CREATE, RK_PERMISSION_DENIED},
        {"missing", 0, RK_NOT_FOUND},
        {"a/missing/c", 0, RK_NOT_FOUND},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        char *actual;
        struct rk_status *st = rk_path_resolve(&actual, roots, cases[i].path, cases[i].flags);

        assert_null(actual);
        if (cases[i].code == RK_PERMISSION_DENIED)
            assert_string_equal(rk_status_reason(st), "PATH_OUTSIDE_ROOTS");
        assert_code(st, cases[i].code);
    }
    rk_free(sibling);
    rk_free(dotted);
}

static void test_resolve_without_roots_is_refused(void **state)
{
    char *const roots[] = {NULL};
    char *actual, *longest = rk_calloc(5000, 1);

    (void)state;
    memset(longest, 'a', 4999);
    assert_fails(rk_path_resolve(&actual, roots, "a", 0), RK_PERMISSION_DENIED, "no ckpt.roots");
    assert_fails(rk_path_resolve(&actual, roots, longest, 0), RK_INVALID_ARGUMENT, "4096");
    rk_free(longest);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resolve_below_roots),
        cmocka_unit_test(test_resolve_second_root),
        cmocka_unit_test(test_resolve_elsewhere_is_refused),
        cmocka_unit_test(test_resolve_without_roots_is_refused),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
