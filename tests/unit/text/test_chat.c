/* Chat templates: refused input and its position, limits, and the files of a model's directory.
 * tests/golden/test_chat.c checks the rendered text. */
#include "text/rk_chat.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "tests/support/test.h"

static const char default_messages[] = "[{\"role\": \"user\", \"content\": \"hi\"}]";

static struct rk_status *create(struct rk_chat **out, const char *text)
{
    return rk_chat_create_text(out, text, strlen(text), "t.jinja");
}

static struct rk_status *render(const struct rk_chat *chat, const char *messages, const char *tools,
                                struct rk_str *out)
{
    struct rk_chat_args args = {.add_generation_prompt = true};
    struct rk_json *json, *schemas = NULL;
    struct rk_status *st;

    assert_ok(rk_json_parse(&json, messages, strlen(messages), "messages", 0));
    if (tools)
        assert_ok(rk_json_parse(&schemas, tools, strlen(tools), "tools", 0));
    args.messages = json;
    args.tools = schemas;
    st = rk_chat_render(chat, &args, out);
    rk_json_free(json);
    rk_json_free(schemas);
    return st;
}

/* Compiles and renders. */
static struct rk_status *run(const char *text, const char *messages)
{
    struct rk_str out = {0};
    struct rk_chat *chat;
    struct rk_status *st = create(&chat, text);

    if (!st)
        st = render(chat, messages, NULL, &out);
    rk_chat_destroy(chat);
    rk_str_fini(&out);
    return st;
}

static const struct {
    const char *label, *text, *message;
} unsupported[] = {
    {"statement", "a\n{% include 'x' %}", "t.jinja:2: the statement 'include'"},
    {"block", "{% block x %}{% endblock %}", "t.jinja:1: the statement 'block'"},
    {"import", "\n\n{% from 'x' import y %}", "t.jinja:3: the statement 'from'"},
    {"with", "{% with a = 1 %}{% endwith %}", "the statement 'with'"},
    {"raw", "\n{%- raw %}{{ }}{% endraw %}", "t.jinja:2: the statement 'raw'"},
    {"recursive loop", "{% for i in x recursive %}{% endfor %}", "'recursive'"},
    {"chain of comparisons", "{{ 1 < a < 3 }}", "chains of comparisons"},
    {"power", "{{ 2 ** 3 }}", "operator '**'"},
    {"variable of macros", "{% macro m() %}\n{{ kwargs }}{% endmacro %}", "t.jinja:2: the variable 'kwargs'"},
    {"octal number", "{{ 0o17 }}", "decimal"},
    {"underscore in a number", "{{ 1_000 }}", "decimal"},
    {"octal escape", "{{ '\\101' }}", "the escape"},
    {"large integer", "{{ 9223372036854775808 }}", "64 bits"},
    {"surrogate", "{{ '\\ud83d' }}", "\\ud83d"},
    {"named character", "{{ '\\N{DASH}' }}", "\\N"},
    {"identifier", "{{ \xc3\xa9t }}", "t.jinja:1:"},
};

static void test_create_unsupported_construct_is_named_with_its_line(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(unsupported); i++) {
        struct rk_chat *chat;

        print_message("  %s\n", unsupported[i].label);
        assert_fails(create(&chat, unsupported[i].text), RK_UNIMPLEMENTED, unsupported[i].message);
        assert_null(chat);
    }
}

static const struct {
    const char *label, *text, *message;
} bad[] = {
    {"open tag", "x\n{% if a", "t.jinja:2"},
    {"open expression", "{{ a", "t.jinja:1"},
    {"open comment", "\n{# a", "t.jinja:2"},
    {"open block", "a\n{% if a %}\nb", "t.jinja:2: the block that begins here has no {% endif %}"},
    {"unknown statement", "{% bogus %}", "'bogus'"},
    {"two starred arguments", "{{ f(*a, *b) }}", "one argument with *"},
    {"a value behind a starred argument", "{{ f(*a, b) }}", "named argument"},
    {"an argument behind a doubly starred one", "{{ f(**a, b=1) }}", "behind the argument with **"},
    {"stray end", "{% endif %}", "'endif'"},
    {"brackets", "{{ (a] }}", "']'"},
    {"character", "{{ a ? b }}", "0x3f"},
    {"assignment to a constant", "{% set none = 1 %}", "'none'"},
    {"break outside of a loop", "{% break %}", "break"},
    {"break in a macro in a loop", "{% for a in b %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}",
     "break"},
    {"private name of a namespace", "{% set a._b = 1 %}", "'_'"},
    {"invalid UTF-8", "\xff", "UTF-8"},
};

static void test_create_bad_syntax_is_named_with_its_line(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(bad); i++) {
        struct rk_chat *chat;

        print_message("  %s\n", bad[i].label);
        assert_fails(create(&chat, bad[i].text), RK_INVALID_ARGUMENT, bad[i].message);
        assert_null(chat);
    }
}

static const struct {
    const char *label, *text, *messages, *message;
    rk_code_t code;
} failing[] = {
    {"undefined", "\n\n{{ messages[0].name.first }}", NULL, "t.jinja:3: 'name' is undefined",
     RK_INVALID_ARGUMENT},
    {"types", "{{ 'a' +\n messages }}", NULL, "str + list", RK_INVALID_ARGUMENT},
    {"printf", "{{ 'a%s' % 1 }}", NULL, "printf", RK_UNIMPLEMENTED},
    {"filter", "\n{{ 'x' | urlize }}", NULL, "t.jinja:2: the filter 'urlize'", RK_UNIMPLEMENTED},
    {"filter by name", "{{ messages | map('urlize') | list }}", NULL, "filter 'urlize'", RK_UNIMPLEMENTED},
    {"test", "{{ 'x' is filter }}", NULL, "the test 'filter'", RK_UNIMPLEMENTED},
    {"unknown filter", "a\n{{ 'x' | bogus }}", NULL, "t.jinja:2: there is no filter 'bogus'",
     RK_INVALID_ARGUMENT},
    {"unknown test", "{{ 'x' is bogus }}", NULL, "there is no test 'bogus'", RK_INVALID_ARGUMENT},
    {"unknown filter by name", "{{ messages | map('bogus') | list }}", NULL, "there is no filter 'bogus'",
     RK_INVALID_ARGUMENT},
    {"unknown filter behind a branch", "{% if false %}{{ b | other }}{% endif %}\n{{ 'a' | bogus }}", NULL,
     "t.jinja:2: there is no filter 'bogus'", RK_INVALID_ARGUMENT},
    {"method", "\n{{ 'x'.format(1) }}", NULL, "t.jinja:2: the member 'format' of a str", RK_UNIMPLEMENTED},
    {"member of loop", "{% for m in messages %}{{ loop.cycle(1) }}{% endfor %}", NULL,
     "'cycle' of a LoopContext", RK_UNIMPLEMENTED},
    {"range method", "{{ range(3).count(1) }}", NULL, "'count' of a range", RK_UNIMPLEMENTED},
    {"too many arguments of a macro", "{% macro m(a) %}{% endmacro %}{{ m(*[1, 2]) }}", NULL,
     "takes 1 arguments, got 2", RK_INVALID_ARGUMENT},
    {"slice of a range", "{{ range(3)[1:] }}", NULL, "slices of a range", RK_UNIMPLEMENTED},
    {"markup method", "{{ ('a' | safe).strip() }}", NULL, "|safe", RK_UNIMPLEMENTED},
    {"iterator in text", "{{ messages | map('upper') }}", NULL, "iterator", RK_UNIMPLEMENTED},
    {"change of a list", "{{ messages.append(1) }}", NULL, "undefined", RK_INVALID_ARGUMENT},
    {"no messages", "a", "[]", "messages", RK_INVALID_ARGUMENT},
    {"messages are no list", "a", "{}", "messages", RK_INVALID_ARGUMENT},
    {"a message is text", "a", "[\"x\"]", "a message", RK_INVALID_ARGUMENT},
    {"endless macro", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", NULL, "nested deeper",
     RK_RESOURCE_EXHAUSTED},
    {"endless loops", "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
     NULL, "more than", RK_RESOURCE_EXHAUSTED},
    {"endless trimming",
     "{% set x = ' ' * 100000 %}{% for i in range(100000) %}{% if x | trim %}{% endif %}{% endfor %}", NULL,
     "more than", RK_RESOURCE_EXHAUSTED},
    {"large text", "{{ 'abcdefgh' * 100000000 }}", NULL, "bytes", RK_RESOURCE_EXHAUSTED},
    {"large output", "{% set x = 'a' * 1000000 %}{% for i in range(100) %}{{ x }}{% endfor %}", NULL, "bytes",
     RK_RESOURCE_EXHAUSTED},
    {"large values",
     "{% set n = namespace(x='a' * 9000000) %}{% for i in range(100) %}{% set n.x = n.x[1:] + 'b' %}{% "
     "endfor %}",
     NULL, "more than", RK_RESOURCE_EXHAUSTED},
};

static void test_render_failure_is_named_with_its_line(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(failing); i++) {
        struct rk_status *st =
            run(failing[i].text, failing[i].messages ? failing[i].messages : default_messages);

        print_message("  %s\n", failing[i].label);
        assert_message_contains(rk_status_clone(st), "t.jinja:");
        assert_fails(st, failing[i].code, failing[i].message);
    }
}

/* Goal: unknown and unsupported names that are not evaluated do not matter. Jinja itself refuses some of
 * these when it reads the template: those in a loop or a macro. */
static void test_render_what_is_not_evaluated_is_not_refused(void **state)
{
    static const char *const texts[] = {
        "{% if false %}{{ 'x' | bogus }}{{ 'x' is bogus }}{% endif %}ok",
        "{% for a in [] %}{{ a | from_json }}{% endfor %}ok",
        "{% macro m(a=1 | bogus) %}{{ a | urlize }}{% endmacro %}ok",
        "{{ 'ok' if true else 'x' | bogus }}",
        "{% if true or 1 is bogus %}ok{% endif %}",
        "{{ 'ok' if messages[0].content is string else messages[0].content.zfill(3) }}",
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(texts); i++) {
        struct rk_str out = {0};
        struct rk_chat *chat;

        print_message("  %s\n", texts[i]);
        assert_ok(create(&chat, texts[i]));
        assert_ok(render(chat, default_messages, NULL, &out));
        assert_string_equal(rk_str_text(&out), "ok");
        rk_chat_destroy(chat);
        rk_str_fini(&out);
    }
}

/* Goal: variables that a request does not set are undefined or none, as in transformers; `*` passes a list to
 * a macro. */
static void test_render_unset_variables_and_starred_arguments(void **state)
{
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {"{% if documents %}{% for d in documents %}{{ d.title }}{% endfor %}{% endif %}{{ documents }}",
         "None"},
        {"{{ tools }}{% if xml_tools %}x{% endif %}{{ builtin_tools is defined }}", "NoneFalse"},
        {"{% macro turn(role, text) %}<{{ role }}>{{ text }}{% endmacro %}"
         "{% for m in messages %}{{ turn(*[m.role, m.content]) }}{% endfor %}",
         "<user>hi"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_str out = {0};
        struct rk_chat *chat;

        assert_ok(create(&chat, cases[i].text));
        assert_ok(render(chat, default_messages, NULL, &out));
        assert_string_equal(rk_str_text(&out), cases[i].expected);
        rk_chat_destroy(chat);
        rk_str_fini(&out);
    }
}

static void test_render_exception_of_the_template_has_its_words(void **state)
{
    struct rk_status *st = run("a\n{{ raise_exception('roles must ' ~ 'alternate') }}", default_messages);

    (void)state;
    assert_fails(st, RK_INVALID_ARGUMENT, "t.jinja:2: the template raised: roles must alternate");
}

/* Goal: template text that is nested too deeply is refused before it can overflow the stack. */
static void test_create_nesting_and_size_are_bounded(void **state)
{
    struct rk_str text = {0};
    struct rk_chat *chat;

    (void)state;
    rk_str_append(&text, "{{ ");
    for (int i = 0; i < 100; i++)
        rk_str_append(&text, "(");
    rk_str_append(&text, "1");
    for (int i = 0; i < 100; i++)
        rk_str_append(&text, ")");
    rk_str_append(&text, " }}");
    assert_fails(create(&chat, rk_str_text(&text)), RK_RESOURCE_EXHAUSTED, "t.jinja:1: nested deeper");
    rk_str_clear(&text);
    for (int i = 0; i < 100; i++)
        rk_str_append(&text, "{% if a %}");
    assert_fails(create(&chat, rk_str_text(&text)), RK_RESOURCE_EXHAUSTED, "nested deeper");
    rk_str_clear(&text);
    for (int i = 0; i < 300; i++)
        rk_str_append(&text,
                      "{{ - - - - - - - - - - - - - - - - - - - - 1 }}{{ not not not not not not a }}");
    assert_ok(create(&chat, rk_str_text(&text)));
    rk_chat_destroy(chat);
    rk_str_clear(&text);
    for (int i = 0; i < 1 << 17; i++)
        rk_str_append(&text, "abcdefgh ");
    assert_fails(create(&chat, rk_str_text(&text)), RK_RESOURCE_EXHAUSTED, "t.jinja");
    rk_str_clear(&text);
    for (int i = 0; i < 70000; i++)
        rk_str_append(&text, "{{ a }}");
    assert_ok(create(&chat, rk_str_text(&text)));
    rk_chat_destroy(chat);
    for (int i = 0; i < 70000; i++)
        rk_str_append(&text, "{{a}}");
    assert_fails(create(&chat, rk_str_text(&text)), RK_RESOURCE_EXHAUSTED, "parts");
    rk_str_fini(&text);
}

/* Goal: a block's filters, of which each is applied to the result of those before it, are bounded like nested
 * expressions. */
static void test_render_filters_of_a_block_are_bounded(void **state)
{
    struct rk_str text = {0};

    (void)state;
    rk_str_append(&text, "{% filter trim");
    for (int i = 0; i < 1000; i++)
        rk_str_append(&text, "|trim");
    rk_str_append(&text, " %}a{% endfilter %}");
    assert_fails(run(rk_str_text(&text), default_messages), RK_RESOURCE_EXHAUSTED, "nested deeper");
    rk_str_fini(&text);
}

/* Goal: the smallest integer is a number like any other (the sanitizer checks for overflows). */
static void test_render_with_the_smallest_integer(void **state)
{
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {"{{ (-9223372036854775807 - 1) % 3 }}", "1"},
        {"{{ 'a b'.split(' ', -9223372036854775807 - 1) }}", "['a', 'b']"},
        {"{{ 'a b'.split(none, -9223372036854775807 - 1) }}", "['a', 'b']"},
        {"{{ 'aa'.replace('a', 'b', -9223372036854775807 - 1) }}", "bb"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_str out = {0};
        struct rk_chat *chat;

        assert_ok(create(&chat, cases[i].text));
        assert_ok(render(chat, default_messages, NULL, &out));
        assert_string_equal(rk_str_text(&out), cases[i].expected);
        rk_chat_destroy(chat);
        rk_str_fini(&out);
    }
}

/* --- directories --- */

static char *make_dir(const char *name)
{
    char *path = rk_test_temp_path(name);

    assert_int_equal(mkdir(path, 0755), 0);
    return path;
}

static void put(const char *dir, const char *name, const char *text)
{
    char *path = rk_path_join(dir, name);

    rk_test_write_file(path, text, strlen(text));
    rk_free(path);
}

static void expect_text(const char *dir, const char *tools, const char *expected)
{
    struct rk_str text = {0};
    struct rk_chat *chat;

    assert_ok(rk_chat_create_dir(&chat, dir, NULL));
    assert_non_null(chat);
    assert_ok(render(chat, default_messages, tools, &text));
    assert_string_equal(rk_str_text(&text), expected);
    rk_str_fini(&text);
    rk_chat_destroy(chat);
}

#define TOKENS                                                                                           \
    "\"bos_token\": \"<s>\", \"eos_token\": {\"content\": \"</s>\", \"lstrip\": false}, \"pad_token\": " \
    "null, "

static void test_create_dir_finds_the_template_where_transformers_does(void **state)
{
    char *dir = make_dir("model"), *more = rk_path_join(dir, "additional_chat_templates");
    struct rk_str text = {0};
    struct rk_chat *chat;

    (void)state;
    assert_ok(rk_chat_create_dir(&chat, dir, NULL));
    assert_null(chat);
    put(dir, "chat_template.json", "{\"chat_template\": \"legacy {{ bos_token }}\"}");
    expect_text(dir, NULL, "legacy ");
    put(dir, "special_tokens_map.json",
        "{\"bos_token\": \"<map>\", \"unk_token\": {\"content\": \"<unk>\"}}");
    expect_text(dir, NULL, "legacy <map>");
    put(dir, "tokenizer_config.json",
        "{" TOKENS
        "\"chat_template\": \"{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ pad_token }}\"}");
    expect_text(dir, NULL, "<map>hi</s>");
    put(dir, "tokenizer_config.json",
        "{" TOKENS
        "\"added_tokens_decoder\": {}, \"chat_template\": [{\"name\": \"tool_use\", \"template\": \"tools {{ "
        "tools | length }}\"}, {\"name\": \"default\", \"template\": \"plain {{ bos_token }}{{ unk_token "
        "}}\"}, {\"name\": "
        "\"rag\", \"template\": \"{% include 'x' %}\"}]}");
    expect_text(dir, NULL, "plain <s>");
    expect_text(dir, "[{}]", "tools 1");
    assert_ok(rk_chat_create_dir(&chat, dir, "own {{ bos_token }}"));
    assert_ok(render(chat, default_messages, NULL, &text));
    assert_string_equal(rk_str_text(&text), "own <s>");
    rk_str_fini(&text);
    rk_chat_destroy(chat);
    assert_fails(rk_chat_create_dir(&chat, dir, "\n{{"), RK_INVALID_ARGUMENT, "template:2");
    put(dir, "chat_template.jinja", "file {{ tools is none }}\n");
    expect_text(dir, "[{}]", "file False");
    assert_int_equal(mkdir(more, 0755), 0);
    put(more, "tool_use.jinja", "with tools");
    expect_text(dir, "[{}]", "with tools");
    expect_text(dir, NULL, "file True");
    rk_free(more);
    rk_free(dir);
}

static const struct {
    const char *label, *text, *message;
    rk_code_t code;
} bad_configs[] = {
    {"a number", "{\"chat_template\": 5}", "tokenizer_config.json: chat_template: expected text",
     RK_INVALID_ARGUMENT},
    {"no default", "{\"chat_template\": [{\"name\": \"x\", \"template\": \"a\"}]}", "'default'",
     RK_INVALID_ARGUMENT},
    {"no name", "{\"chat_template\": [{\"template\": \"a\"}]}", "item 0", RK_INVALID_ARGUMENT},
    {"name twice",
     "{\"chat_template\": [{\"name\": \"default\", \"template\": \"a\"}, {\"name\": \"default\", "
     "\"template\": \"b\"}]}",
     "item 1", RK_INVALID_ARGUMENT},
    {"not JSON", "{", "tokenizer_config.json", RK_INVALID_ARGUMENT},
    {"unsupported template", "{\"chat_template\": \"a\\n{% extends 'x' %}\"}",
     "tokenizer_config.json: chat_template:2: the statement 'extends'", RK_UNIMPLEMENTED},
};

static void test_create_dir_bad_file_is_named(void **state)
{
    char *dir = make_dir("bad");
    struct rk_chat *chat;

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(bad_configs); i++) {
        print_message("  %s\n", bad_configs[i].label);
        put(dir, "tokenizer_config.json", bad_configs[i].text);
        assert_fails(rk_chat_create_dir(&chat, dir, NULL), bad_configs[i].code, bad_configs[i].message);
        assert_null(chat);
    }
    rk_free(dir);
}

/* Goal: two models render the same text if they have the same template and the same special tokens; a token
 * that templates do not write makes no difference. */
static void test_same_templates_are_found(void **state)
{
    static const struct {
        const char *text, *variables;
        bool is_same;
    } cases[] = {
        {"a{{ bos_token }}", "{\"bos_token\": \"<s>\"}", true},
        {"a{{ bos_token }}", "{\"bos_token\": \"<s>\", \"pad_token\": \"<p>\"}", true},
        {"a{{ bos_token }}", "{\"bos_token\": \"<t>\"}", false},
        {"a{{ bos_token }}", "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\"}", false},
        {"a{{  bos_token }}", "{\"bos_token\": \"<s>\"}", false},
    };
    struct rk_chat *chats[RK_ARRAY_LEN(cases)];

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_json *variables;

        assert_ok(rk_json_parse(&variables, cases[i].variables, strlen(cases[i].variables), "variables", 0));
        assert_ok(create(&chats[i], cases[i].text));
        rk_chat_set_variables(chats[i], variables);
        rk_json_free(variables);
        assert_int_equal(rk_chat_is_same(chats[0], chats[i]), cases[i].is_same);
        assert_int_equal(rk_chat_is_same(chats[i], chats[0]), cases[i].is_same);
    }
    assert_true(rk_chat_is_same(NULL, NULL));
    assert_false(rk_chat_is_same(chats[0], NULL));
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++)
        rk_chat_destroy(chats[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create_unsupported_construct_is_named_with_its_line),
        cmocka_unit_test(test_create_bad_syntax_is_named_with_its_line),
        cmocka_unit_test(test_render_failure_is_named_with_its_line),
        cmocka_unit_test(test_render_what_is_not_evaluated_is_not_refused),
        cmocka_unit_test(test_render_unset_variables_and_starred_arguments),
        cmocka_unit_test(test_render_exception_of_the_template_has_its_words),
        cmocka_unit_test(test_create_nesting_and_size_are_bounded),
        cmocka_unit_test(test_render_filters_of_a_block_are_bounded),
        cmocka_unit_test(test_render_with_the_smallest_integer),
        cmocka_unit_test(test_create_dir_finds_the_template_where_transformers_does),
        cmocka_unit_test(test_create_dir_bad_file_is_named),
        cmocka_unit_test(test_same_templates_are_found),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
