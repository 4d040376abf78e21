/* Paths of calls: paths below the roots are resolved or created, all others are refused. */
#include "tests/support/test.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "worker/worker_internal.h"

/* root/ with a/b/, a file, links to a directory inside and outside; next to it, other/ and linked, a link to
 * root. */
static char *root, *other, *linked;

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
    make_dir(resolved, "rootless"); /* has the root's name as a prefix only */
    root = rk_path_join(resolved, "root");
    other = rk_path_join(resolved, "other");
    make_link(resolved, "linked", root);
    linked = rk_path_join(resolved, "linked");
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
    rk_free(linked);
    return 0;
}

/* Resolves base/name and compares with root/expected. */
static void check_resolves(const char *base, const char *name, uint32_t flags, const char *expected)
{
    char *const roots[] = {linked, root, other, NULL};
    char *path = *name ? rk_path_join(base, name) : rk_strdup(base);
    char *actual, *wanted = *expected ? rk_path_join(root, expected) : rk_strdup(root);

    assert_ok(rk_path_resolve(&actual, roots, path, flags));
    assert_string_equal(actual, wanted);
    rk_free(actual);
    rk_free(wanted);
    rk_free(path);
}

static void test_resolve_below_roots(void **state)
{
    (void)state;
    check_resolves(root, "a", 0, "a");
    check_resolves(root, "a/b", 0, "a/b");
    check_resolves(root, "./a//b/", 0, "a/b");
    check_resolves(root, "", 0, "");
    check_resolves(root, "new/deep/dir", RK_PATH_RESOLVE_CREATE, "new/deep/dir");
    check_resolves(root, "new/deep/dir", 0, "new/deep/dir");
}

/* Goal: a root that is a link can be named by its configured path and by its resolved path. */
static void test_resolve_root_that_is_a_link(void **state)
{
    char *const only_linked[] = {linked, NULL};
    char *path = rk_path_join(root, "a"), *actual;

    (void)state;
    check_resolves(linked, "a/b", 0, "a/b");
    assert_ok(rk_path_resolve(&actual, only_linked, path, 0));
    assert_string_equal(actual, path);
    rk_free(actual);
    rk_free(path);
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
        const char *path; /* below root unless it is absolute */
        uint32_t flags;
        rk_code_t code;
    } cases[] = {
        {"../other", 0, RK_PERMISSION_DENIED},
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
        bool is_absolute = cases[i].path[0] == '/';
        char *path = is_absolute ? rk_strdup(cases[i].path) : rk_path_join(root, cases[i].path), *actual;
        struct rk_status *st = rk_path_resolve(&actual, roots, path, cases[i].flags);

        assert_null(actual);
        if (cases[i].code == RK_PERMISSION_DENIED)
            assert_string_equal(rk_status_reason(st), "PATH_OUTSIDE_ROOTS");
        assert_code(st, cases[i].code);
        rk_free(path);
    }
    rk_free(sibling);
    rk_free(dotted);
}

/* Goal: relative paths are refused, since their base is ambiguous. */
/* Goal: names that no file system takes, and new ones that a terminal would interpret, are refused by what is
 * wrong with them, escaped. */
static void test_resolve_bad_names_are_refused(void **state)
{
    char *const roots[] = {root, NULL};
    char name[257], *actual, *path;

    (void)state;
    memset(name, 'x', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    path = rk_format("%s/%s", root, name);
    assert_fails(rk_path_resolve(&actual, roots, path, RK_PATH_RESOLVE_CREATE), RK_INVALID_ARGUMENT,
                 "a name in it has 256 bytes, expected at most 255");
    rk_free(path);
    path = rk_format("%s/a\033[2Jb", root);
    assert_fails(rk_path_resolve(&actual, roots, path, RK_PATH_RESOLVE_CREATE), RK_INVALID_ARGUMENT,
                 "a\\x1b[2Jb': has a control character");
    rk_free(path);
}

static void test_resolve_relative_path_is_refused(void **state)
{
    static const char *const paths[] = {"a", "./a", "..", ""};
    char *const roots[] = {root, NULL};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(paths); i++) {
        char *actual;

        assert_fails(rk_path_resolve(&actual, roots, paths[i], RK_PATH_RESOLVE_CREATE), RK_INVALID_ARGUMENT,
                     "expected");
        assert_null(actual);
    }
}

static void test_resolve_without_roots_is_refused(void **state)
{
    char *const roots[] = {NULL};
    char *actual, *longest = rk_calloc(5000, 1);

    (void)state;
    memset(longest, 'a', 4999);
    assert_fails(rk_path_resolve(&actual, roots, "/a", 0), RK_PERMISSION_DENIED, "ckpt.roots");
    assert_fails(rk_path_resolve(&actual, roots, longest, 0), RK_INVALID_ARGUMENT, "4096");
    rk_free(longest);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resolve_below_roots),
        cmocka_unit_test(test_resolve_root_that_is_a_link),
        cmocka_unit_test(test_resolve_second_root),
        cmocka_unit_test(test_resolve_elsewhere_is_refused),
        cmocka_unit_test(test_resolve_bad_names_are_refused),
        cmocka_unit_test(test_resolve_relative_path_is_refused),
        cmocka_unit_test(test_resolve_without_roots_is_refused),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
