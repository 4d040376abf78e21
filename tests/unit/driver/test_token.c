/* Where a driver finds the token that a daemon has made. */
#include "driver/token_internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "tests/support/test.h"

static void write_in(const char *dir, const char *name, const char *text)
{
    char *path = rk_path_join(dir, name);

    rk_test_write_file(path, text, strlen(text));
    assert_int_equal(chmod(path, 0640), 0);
    rk_free(path);
}

static char *make_root(void)
{
    char *root = rk_test_temp_path("runtime");

    assert_int_equal(mkdir(root, 0755), 0);
    return root;
}

/* As a daemon's runtime directory ROOT/SLOT; rk_free its path. */
static char *add_slot(const char *root, const char *slot, const char *address, const char *token)
{
    char *dir = rk_path_join(root, slot);

    assert_int_equal(mkdir(dir, 0750), 0);
    if (address)
        write_in(dir, "address", address);
    if (token)
        write_in(dir, "token", token);
    return dir;
}

/* Goal: each daemon of a host gets its own token, and an address that no daemon has written gets none: a
 * token for one port must not reach a program that listens on another. */
static void test_token_is_found_by_address(void **state)
{
    char *root = make_root();
    char *dirs[] = {add_slot(root, "0", "127.0.0.1:7000", "admin:zero\n"),
                    add_slot(root, "1", "[::1]:7000\n", "admin:one\n"),
                    add_slot(root, "2", NULL, "admin:two\n"), add_slot(root, "3", "127.0.0.1:7003", NULL),
                    add_slot(root, "4", "unix:/srv/rl/rankd.sock", "admin:four\n")};
    char *beside = rk_format("unix:%s/rankd.sock", dirs[2]);
    const struct {
        const char *address, *token;
    } cases[] = {{"127.0.0.1:7000", "Bearer zero"},
                 {"localhost:7000", "Bearer zero"},
                 {"[::1]:7000", "Bearer one"},
                 {"127.0.0.2:7000", NULL},
                 {"127.0.0.1:700", NULL},
                 {"node1:7000", NULL},
                 {"127.0.0.1:7003", NULL},
                 {beside, "Bearer two"},
                 {"unix:/srv/rl/rankd.sock", "Bearer four"},
                 {"unix-abstract:rankd", NULL}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char *token = rk_token_find(cases[i].address, root);

        print_message("%s\n", cases[i].address);
        if (cases[i].token)
            assert_string_equal(token, cases[i].token);
        else
            assert_null(token);
        rk_free(token);
    }
    assert_null(rk_token_find("127.0.0.1:7000", "/does/not/exist"));
    for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++)
        rk_free(dirs[i]);
    rk_free(beside);
    rk_free(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_token_is_found_by_address),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
