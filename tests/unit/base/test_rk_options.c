#include "base/config/rk_options.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "tests/support/test.h"

#define MAX_WORDS 6

static const struct rk_option own[] = {
    {"file", "FILE", "what is read"},
    {"opt", "KEY=VALUE", "set an option"},
    {"quiet", NULL, "say less"},
    {"output", "FORM", "of this command"},
    {NULL, NULL, NULL},
};

static const struct rk_option common[] = {
    {"output", "table|json", "form of what is printed"},
    {"help", NULL, "show this text"},
    {NULL, NULL, NULL},
};

static const struct rk_command_syntax syntax = {
    .program = "tool run",
    .args = "JOB [MORE]",
    .min_args = 1,
    .max_args = 2,
    .options = own,
    .common_options = common,
    .repeatable = "opt",
};

static struct rk_status *parse(struct rk_command_line *line, const struct rk_command_syntax *of,
                               const char *const *words)
{
    char *argv[MAX_WORDS];
    int argc = 0;

    while (argc < MAX_WORDS && words[argc]) {
        argv[argc] = (char *)words[argc];
        argc++;
    }
    return rk_command_line_parse(line, of, argc, argv);
}

/* Settings and arguments as one text: "file=a quiet | x y". */
static void format(struct rk_str *out, const struct rk_command_line *line)
{
    for (int64_t i = 0; i < line->settings.count; i++) {
        const struct rk_command_setting *setting = &line->settings.items[i];

        rk_str_appendf(out, "%s%s%s%s ", setting->is_key ? "key " : "", setting->name,
                       setting->value ? "=" : "", setting->value ? setting->value : "");
    }
    rk_str_append(out, "|");
    for (int64_t i = 0; i < line->args.count; i++)
        rk_str_appendf(out, " %s", line->args.items[i]);
}

static void test_command_lines_that_parse(void **state)
{
    static const struct {
        const char *words[MAX_WORDS + 1], *expected;
    } cases[] = {
        {{"job"}, "| job"},
        {{"job", "--file=a", "more"}, "file=a | job more"},
        {{"--file", "a", "--quiet", "job"}, "file=a quiet | job"},
        {{"--file=", "job"}, "file= | job"},
        {{"--file", "--quiet", "job"}, "file=--quiet | job"},
        {{"--opt=a=1", "--opt", "b=2", "job"}, "opt=a=1 opt=b=2 | job"},
        {{"--quiet", "--quiet", "job"}, "quiet quiet | job"},
        {{"--", "--file", "-h"}, "| --file -h"},
        {{"-", "-x"}, "| - -x"},
        {{"--help"}, "help |"},
        {{"-h", "a", "b", "c"}, "help | a b c"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_command_line line;
        struct rk_str text = {0};

        assert_ok(parse(&line, &syntax, cases[i].words));
        format(&text, &line);
        assert_string_equal(rk_str_text(&text), cases[i].expected);
        rk_str_fini(&text);
        rk_command_line_fini(&line);
    }
}

static void test_command_lines_that_do_not(void **state)
{
    static const struct {
        const char *words[MAX_WORDS + 1], *message;
    } cases[] = {
        {{0}, "too few arguments; usage: tool run JOB [MORE]"},
        {{"a", "b", "c"}, "unexpected argument 'c'"},
        {{"job", "--fiel=a"}, "unknown option --fiel; did you mean --file?"},
        {{"job", "--outptu=a"}, "unknown option --outptu; did you mean --output?"},
        {{"job", "--zzzzzzzz"}, "unknown option --zzzzzzzz; see tool run --help"},
        {{"job", "--file"}, "--file needs a value (FILE)"},
        {{"job", "--quiet=1"}, "--quiet takes no value"},
        {{"job", "--file=a", "--file", "b"}, "--file is given twice"},
        {{"--help", "--zzzzzzzz"}, "unknown option --zzzzzzzz"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_command_line line;

        assert_fails(parse(&line, &syntax, cases[i].words), RK_INVALID_ARGUMENT, cases[i].message);
        rk_command_line_fini(&line);
    }
}

/* Goal: names that are in no table are keys if the syntax allows them, only with a value, and may be
 * repeated. */
static void test_keys_beside_the_options(void **state)
{
    static const char *const keys[] = {"--rpc.listen=a", "--file=b", "--rpc.listen=c", NULL};
    static const char *const bare[] = {"--rpc.listen", "a", NULL};
    struct rk_command_syntax with_keys = syntax;
    struct rk_command_line line;
    struct rk_str text = {0};

    (void)state;
    with_keys.takes_keys = true;
    with_keys.min_args = 0;
    assert_ok(parse(&line, &with_keys, keys));
    format(&text, &line);
    assert_string_equal(rk_str_text(&text), "key rpc.listen=a file=b key rpc.listen=c |");
    assert_string_equal(rk_command_line_find(&line, "rpc.listen"), "a");
    assert_null(rk_command_line_find(&line, "quiet"));
    assert_false(rk_command_line_has(&line, "quiet"));
    rk_str_fini(&text);
    rk_command_line_fini(&line);
    assert_fails(parse(&line, &with_keys, bare), RK_INVALID_ARGUMENT, "unknown option --rpc.listen");
    rk_command_line_fini(&line);
}

static void test_options_as_text(void **state)
{
    struct rk_str text = {0};

    (void)state;
    rk_options_format(&text, own, NULL);
    rk_options_format(&text, common, own);
    assert_string_equal(rk_str_text(&text), "  --file=FILE            what is read\n"
                                            "  --opt=KEY=VALUE        set an option\n"
                                            "  --quiet                say less\n"
                                            "  --output=FORM          of this command\n"
                                            "  --help                 show this text\n");
    rk_str_fini(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_command_lines_that_parse),
        cmocka_unit_test(test_command_lines_that_do_not),
        cmocka_unit_test(test_keys_beside_the_options),
        cmocka_unit_test(test_options_as_text),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
