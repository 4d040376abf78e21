/* The output of rankctl: control sequences from a daemon or another driver do not reach the terminal. */
#include "cmd/cmd_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "tests/support/test.h"

static const struct {
    const char *label, *text, *printed;
} texts[] = {
    {"plain", "alice@node1:71", "alice@node1:71"},
    {"nothing", "", ""},
    {"umlauts", "m\xc3\xbcller \xc2\xb5", "m\xc3\xbcller \xc2\xb5"},
    {"lines stay", "a\nb", "a\nb"},
    {"escape sequence", "\x1b[2Jx", "\\x1b[2Jx"},
    {"bell, return, delete", "\a\r\x7f", "\\x07\\x0d\\x7f"},
    {"one-byte control of ISO 6429",
     "\xc2\x9b"
     "2J",
     "\\x9b2J"},
    {"cut off", "\xc2", "\xc2"},
};

static void test_printable_controls_are_shown_not_sent(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(texts); i++) {
        char *printed = rk_cli_printable(texts[i].text);

        print_message("%s\n", texts[i].label);
        assert_string_equal(printed, texts[i].printed);
        rk_free(printed);
    }
}

static void test_table_cells_are_printable(void **state)
{
    static const char *const titles[] = {"DRIVER", "STATE"};
    char *path = rk_test_temp_path("table"), *text;
    FILE *file = fopen(path, "w");
    struct rk_table table;

    (void)state;
    assert_non_null(file);
    rk_table_init(&table, 2, titles);
    rk_table_add(&table, "\x1b[31mroot");
    rk_table_add(&table, NULL);
    rk_table_print(&table, file);
    assert_int_equal(fclose(file), 0);
    text = rk_test_read_file(path, NULL);
    assert_string_equal(text, "DRIVER        STATE\n\\x1b[31mroot  -\n");
    rk_free(text);
    rk_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_printable_controls_are_shown_not_sent),
        cmocka_unit_test(test_table_cells_are_printable),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
