/* Manual pages: text that man(7) would interpret as a request or a hyphen is escaped. */
#include "base/config/rk_manual.h"

#include <string.h>

#include "tests/support/test.h"

static void assert_page(struct rk_str *page, const char *expected)
{
    assert_string_equal(rk_str_text(page), expected);
    rk_str_fini(page);
}

static void test_text_is_escaped(void **state)
{
    struct rk_str page = {0};

    (void)state;
    rk_manual_text(&page, ".dot starts\n'quote starts, a-b \\ ^ ~\n");
    assert_page(&page, "\\&.dot starts\n\\&\\(aqquote starts,\\: a\\-b \\e \\(ha \\(ti\n");
}

static void test_paragraphs_and_indented_lines_are_kept(void **state)
{
    struct rk_str page = {0};

    (void)state;
    rk_manual_text(&page, "one\ntwo\n\nthree\n  code\n\n  more\nfour");
    assert_page(&page, "one\ntwo\n.PP\nthree\n.PP\n.nf\n  code\n.PP\n  more\n.fi\nfour\n");
}

static void test_item_is_a_term_in_bold(void **state)
{
    struct rk_str page = {0};

    (void)state;
    rk_manual_item(&page, "--output=table|json", "form of what is printed");
    assert_page(&page, ".TP\n\\fB\\-\\-output=table|\\:json\\fR\nform of what is printed\n");
}

static void test_key_tells_type_default_and_variable(void **state)
{
    static const struct rk_config_key key = {.path = "log.level",
                                             .type = RK_CONFIG_STRING,
                                             .default_text = "\"info\"",
                                             .choices = "debug|info",
                                             .flags = RK_CONFIG_RELOADABLE,
                                             .help = "least severity"};
    struct rk_str page = {0};

    (void)state;
    rk_manual_key(&page, &key, "RANKD");
    assert_page(
        &page, ".TP\n\\fBlog.level\\fR\nleast severity. string,\\: one of debug|\\:info; default \"info\". A "
               "reload applies it. Environment: RANKD_\\:LOG_\\:LEVEL.\n");
}

static void test_begin_has_title_and_name(void **state)
{
    struct rk_str page = {0};

    (void)state;
    rk_manual_begin(&page, "rankd-job", 5, "1.2", "job files");
    assert_non_null(strstr(rk_str_text(&page), ".TH RANKD\\-JOB 5 \"\" \"rankd 1.2\" \"rankd\"\n"));
    assert_non_null(strstr(rk_str_text(&page), ".SH NAME\nrankd\\-job \\- job files\n"));
    rk_str_fini(&page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_is_escaped),
        cmocka_unit_test(test_paragraphs_and_indented_lines_are_kept),
        cmocka_unit_test(test_item_is_a_term_in_bold),
        cmocka_unit_test(test_key_tells_type_default_and_variable),
        cmocka_unit_test(test_begin_has_title_and_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
