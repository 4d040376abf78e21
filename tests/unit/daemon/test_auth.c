#include "daemon/auth_internal.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "tests/support/test.h"

#define ADMIN_TOKEN  "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define DRIVER_TOKEN "dddddddddddddddddddddddddddddddddddddddd"
#define VIEWER_TOKEN "vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv"
#define GOOD_FILE    "# who\nadmin:" ADMIN_TOKEN "\n\ndriver:" DRIVER_TOKEN "\nviewer:" VIEWER_TOKEN

static char *write_tokens(const char *text, mode_t mode)
{
    char *path = rk_test_temp_path("tokens");

    unlink(path);
    rk_test_write_file(path, text, strlen(text));
    assert_int_equal(chmod(path, mode), 0);
    return path;
}

static struct rk_status *check(const struct rk_auth *auth, const char *header, const char *names,
                               rk_rights_t needed)
{
    struct rk_credentials given = {
        .header = header, .header_bytes = header ? strlen(header) : 0, .names = names};
    rk_rights_t granted;
    struct rk_status *st = rk_auth_check(&granted, auth, &given, needed);

    assert_true(st ? granted == RK_RIGHTS_NONE : granted >= needed);
    return st;
}

/* Goal: the permissions of each role, and of calls without a token. */
static void test_rk_auth_check_roles(void **state)
{
    static const struct {
        const char *label;
        const char *header;
        rk_rights_t needed;
        rk_code_t code;
    } cases[] = {
        {"admin, admin call", "Bearer " ADMIN_TOKEN, RK_RIGHTS_ADMIN, RK_OK},
        {"admin, driver call", "Bearer " ADMIN_TOKEN, RK_RIGHTS_DRIVER, RK_OK},
        {"driver, driver call", "Bearer " DRIVER_TOKEN, RK_RIGHTS_DRIVER, RK_OK},
        {"viewer, viewer call", "Bearer " VIEWER_TOKEN, RK_RIGHTS_VIEWER, RK_OK},
        {"nobody, health", NULL, RK_RIGHTS_NONE, RK_OK},
        {"driver, admin call", "Bearer " DRIVER_TOKEN, RK_RIGHTS_ADMIN, RK_PERMISSION_DENIED},
        {"viewer, driver call", "Bearer " VIEWER_TOKEN, RK_RIGHTS_DRIVER, RK_PERMISSION_DENIED},
        {"nobody", NULL, RK_RIGHTS_VIEWER, RK_UNAUTHENTICATED},
        {"empty", "", RK_RIGHTS_VIEWER, RK_UNAUTHENTICATED},
        {"scheme only", "Bearer ", RK_RIGHTS_VIEWER, RK_UNAUTHENTICATED},
        {"other scheme", "Basic " ADMIN_TOKEN, RK_RIGHTS_VIEWER, RK_UNAUTHENTICATED},
        {"bare token", ADMIN_TOKEN, RK_RIGHTS_VIEWER, RK_UNAUTHENTICATED},
        {"prefix of a token", "Bearer aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", RK_RIGHTS_VIEWER, RK_UNAUTHENTICATED},
        {"token and more", "Bearer " ADMIN_TOKEN "a", RK_RIGHTS_VIEWER, RK_UNAUTHENTICATED},
        {"a whole line", "Bearer admin:" ADMIN_TOKEN, RK_RIGHTS_VIEWER, RK_UNAUTHENTICATED},
    };
    char *path = write_tokens(GOOD_FILE, 0600);
    struct rk_auth *auth = NULL;

    (void)state;
    assert_ok(rk_auth_create(&auth, path));
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        const char *header = cases[i].header;
        struct rk_status *st = check(auth, header, NULL, cases[i].needed);

        print_message("%s\n", cases[i].label);
        assert_int_equal(rk_status_code(st), cases[i].code);
        assert_null(strstr(rk_status_message(st), ADMIN_TOKEN));
        rk_status_free(st);
    }
    rk_auth_destroy(auth);
    rk_free(path);
}

/* Goal: a token that is bound to a certificate is only valid with that one; a certificate with a role needs
 * no token; names must match as a whole. */
static void test_rk_auth_check_certificates(void **state)
{
    static const struct {
        const char *label, *header, *names;
        rk_rights_t needed;
        rk_code_t code;
        const char *reason;
    } cases[] = {
        {"bound, its certificate", "Bearer " ADMIN_TOKEN, "x\nalice", RK_RIGHTS_ADMIN, RK_OK, ""},
        {"bound, another", "Bearer " ADMIN_TOKEN, "bob", RK_RIGHTS_VIEWER, RK_PERMISSION_DENIED,
         "CERTIFICATE"},
        {"bound, none", "Bearer " ADMIN_TOKEN, NULL, RK_RIGHTS_VIEWER, RK_PERMISSION_DENIED, "CERTIFICATE"},
        {"bound, a longer name", "Bearer " ADMIN_TOKEN, "alice2", RK_RIGHTS_VIEWER, RK_PERMISSION_DENIED,
         "CERTIFICATE"},
        {"free token, any certificate", "Bearer " DRIVER_TOKEN, "bob", RK_RIGHTS_DRIVER, RK_OK, ""},
        {"free token, none", "Bearer " DRIVER_TOKEN, NULL, RK_RIGHTS_DRIVER, RK_OK, ""},
        {"certificate alone", NULL, "spiffe://a/probe", RK_RIGHTS_VIEWER, RK_OK, ""},
        {"certificate alone, too much", NULL, "spiffe://a/probe", RK_RIGHTS_DRIVER, RK_PERMISSION_DENIED,
         "ROLE"},
        {"certificate and token", "Bearer " DRIVER_TOKEN, "spiffe://a/probe", RK_RIGHTS_DRIVER, RK_OK, ""},
        {"certificate without a role", NULL, "bob", RK_RIGHTS_VIEWER, RK_UNAUTHENTICATED, "TOKEN"},
        {"a name of a bound token alone", NULL, "alice", RK_RIGHTS_VIEWER, RK_UNAUTHENTICATED, "TOKEN"},
    };
    char *path = write_tokens(
        "admin:" ADMIN_TOKEN " cert=alice\ndriver:" DRIVER_TOKEN "\nviewer cert=spiffe://a/probe\n", 0600);
    struct rk_auth *auth = NULL;

    (void)state;
    assert_ok(rk_auth_create(&auth, path));
    assert_true(rk_auth_asks_names(auth));
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_status *st = check(auth, cases[i].header, cases[i].names, cases[i].needed);

        print_message("%s\n", cases[i].label);
        assert_int_equal(rk_status_code(st), cases[i].code);
        assert_string_equal(rk_status_reason(st), cases[i].reason);
        rk_status_free(st);
    }
    rk_auth_destroy(auth);
    rk_free(path);
}

static void test_rk_auth_check_without_file_allows_everything(void **state)
{
    struct rk_auth *auth = NULL;

    (void)state;
    assert_ok(rk_auth_create(&auth, NULL));
    assert_ok(check(auth, NULL, NULL, RK_RIGHTS_ADMIN));
    rk_auth_destroy(auth);
}

/* Goal: a file that is not a list of valid tokens is rejected with the line number, and its text is not
 * printed. */
static void test_rk_auth_create_bad_text_is_refused(void **state)
{
    static const struct {
        const char *label, *text, *message;
    } cases[] = {
        {"empty", "", "no token"},
        {"comments only", "# nothing\n\n", "no token"},
        {"no role", ADMIN_TOKEN "\n", "line 1: expected ROLE:TOKEN"},
        {"unknown role", "admin:" ADMIN_TOKEN "\nroot:" ADMIN_TOKEN "\n", "line 2: unknown role"},
        {"empty role", ":" ADMIN_TOKEN "\n", "line 1: unknown role"},
        {"prefix of a role", "adm:" ADMIN_TOKEN "\n", "line 1: unknown role"},
        {"short token", "admin:secret\n", "line 1: the token has 6 characters"},
        {"space in the token", "admin:" ADMIN_TOKEN " x\n", "line 1: expected cert=NAME"},
        {"empty certificate", "admin:" ADMIN_TOKEN " cert=\n", "line 1: expected cert=NAME"},
        {"two certificates", "admin cert=a cert=b\n", "line 1: character 2 of cert=NAME"},
        {"short token with a certificate", "admin:secret cert=a\n", "line 1: the token has 6"},
        {"one certificate, two roles", "admin cert=a\nviewer cert=a\n", "line 2: the certificate"},
        {"carriage return", "admin:" ADMIN_TOKEN "\r\n", "line 1: character 33 of the token"},
        {"two roles", "viewer:" ADMIN_TOKEN "\n#\nadmin:" ADMIN_TOKEN "\n", "line 3: the token"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        char *path = write_tokens(cases[i].text, 0600);
        struct rk_auth *auth = NULL;
        struct rk_status *st = rk_auth_create(&auth, path);

        print_message("%s\n", cases[i].label);
        assert_null(auth);
        assert_null(strstr(rk_status_message(st), ADMIN_TOKEN));
        assert_fails(st, RK_INVALID_ARGUMENT, cases[i].message);
        rk_free(path);
    }
}

/* Goal: files that other users can access, or that are not regular files, are rejected. */
static void test_rk_auth_create_bad_file_is_refused(void **state)
{
    static const mode_t bad_modes[] = {0640, 0604, 0620, 0666, 0610};
    struct rk_auth *auth = NULL;
    char *link_path = rk_test_temp_path("link"), *path;

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(bad_modes); i++) {
        path = write_tokens(GOOD_FILE, bad_modes[i]);
        assert_fails(rk_auth_create(&auth, path), RK_PERMISSION_DENIED, "readable by group or others");
        rk_free(path);
    }
    path = write_tokens(GOOD_FILE, 0400);
    assert_ok(rk_auth_create(&auth, path));
    rk_auth_destroy(auth);
    assert_int_equal(symlink(path, link_path), 0);
    assert_fails(rk_auth_create(&auth, link_path), RK_INVALID_ARGUMENT, "symbolic link");
    unlink(path);
    assert_fails(rk_auth_create(&auth, path), RK_NOT_FOUND, "No such file");
    assert_fails(rk_auth_create(&auth, rk_test_temp_dir()), RK_INVALID_ARGUMENT, "not a regular file");
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_fails(rk_auth_create(&auth, path), RK_INVALID_ARGUMENT, "not a regular file");
    unlink(path);
    rk_free(path);
    rk_free(link_path);
}

static void test_rk_auth_create_large_file_is_refused(void **state)
{
    char *path = write_tokens(GOOD_FILE, 0600);
    struct rk_auth *auth = NULL;

    (void)state;
    assert_int_equal(truncate(path, (64 << 10) + 1), 0);
    assert_fails(rk_auth_create(&auth, path), RK_INVALID_ARGUMENT, "65537 bytes");
    rk_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rk_auth_check_roles),
        cmocka_unit_test(test_rk_auth_check_certificates),
        cmocka_unit_test(test_rk_auth_check_without_file_allows_everything),
        cmocka_unit_test(test_rk_auth_create_bad_text_is_refused),
        cmocka_unit_test(test_rk_auth_create_bad_file_is_refused),
        cmocka_unit_test(test_rk_auth_create_large_file_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
