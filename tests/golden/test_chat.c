/* Chat templates against the renderings of Hugging Face transformers (golden/chat, made by
 * golden/gen/make_chat.py). */
#include "text/rk_chat.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_hash.h"
#include "base/rk_json.h"
#include "text/rk_tokenizer.h"
#include "tests/support/test.h"

#define NUM_CONVERSATIONS 200
#define MIN_TEMPLATES     12

static struct rk_json *manifest, *conversations[NUM_CONVERSATIONS];

static struct rk_json *read_json(const char *name)
{
    char *path = rk_test_fixture_path(name);
    struct rk_json *json;

    assert_ok(rk_json_parse_file(&json, path, 1 << 24, RK_JSON_ALLOW_NUL));
    rk_free(path);
    return json;
}

static int load(void **state)
{
    char *path = rk_test_fixture_path("golden/chat/conversations.jsonl");
    char *text = rk_test_read_file(path, NULL), *rest = text;

    (void)state;
    setenv("TZ", "UTC", 1);
    manifest = read_json("golden/chat/manifest.json");
    for (int i = 0; i < NUM_CONVERSATIONS; i++) {
        char *end = strchr(rest, '\n');

        assert_non_null(end);
        assert_ok(
            rk_json_parse(&conversations[i], rest, (size_t)(end - rest), "conversation", RK_JSON_ALLOW_NUL));
        rest = end + 1;
    }
    assert_string_equal(rest, "");
    rk_free(text);
    rk_free(path);
    return 0;
}

static int unload(void **state)
{
    (void)state;
    for (int i = 0; i < NUM_CONVERSATIONS; i++)
        rk_json_free(conversations[i]);
    rk_json_free(manifest);
    return 0;
}

static struct rk_status *render(const struct rk_chat *chat, const struct rk_json *item, struct rk_str *out)
{
    struct rk_chat_args args = {
        .messages = rk_json_find(item, "messages"),
        .tools = rk_json_find(item, "tools"),
        .kwargs = rk_json_find(item, "kwargs"),
        .add_generation_prompt = rk_json_as_bool(rk_json_find(item, "add_generation_prompt"), false),
        .now_s = rk_json_as_int(rk_json_find(manifest, "now"), 0),
    };

    return rk_chat_render(chat, &args, out);
}

/* "!" for a template that raises an exception; UNIMPLEMENTED and limits do not count as exceptions. */
static void expect_hash(const char *name, int i, const struct rk_chat *chat, const char *expected)
{
    struct rk_str text = {0};
    struct rk_status *st = render(chat, conversations[i], &text);
    uint8_t digest[RK_SHA256_BYTES];
    char hash[17] = "!";

    if (!st) {
        rk_sha256_of(rk_str_text(&text), text.bytes, digest);
        for (int k = 0; k < 8; k++)
            snprintf(hash + 2 * k, 3, "%02x", digest[k]);
    }
    if (strcmp(hash, expected) != 0 || (st && rk_status_code(st) != RK_INVALID_ARGUMENT))
        fail_msg("%s, conversation %d: expected %s, got %s\n%s\n%s", name, i, expected, hash,
                 rk_status_message(st), rk_str_text(&text));
    rk_status_free(st);
    rk_str_fini(&text);
}

/* Goal: the rendered text is encoded without the tokenizer's own special tokens. */
static void check_ids(const struct rk_chat *chat, const struct rk_json *expected)
{
    const struct rk_json *ids = rk_json_find(expected, "ids");
    char *relative =
        rk_format("golden/tokenizers/%s.json", rk_json_as_string(rk_json_find(expected, "tokenizer"), ""));
    char *path = rk_test_fixture_path(relative);
    struct rk_tokenizer *tokenizer;

    assert_ok(rk_tokenizer_create_file(&tokenizer, path));
    assert_true(rk_json_count(ids) > 0);
    for (void *it = rk_json_iter(ids); it; it = rk_json_iter_next(ids, it)) {
        struct rk_str text = {0}, actual = {0};
        struct rk_tokenizer_ids encoded;

        assert_ok(render(chat, conversations[strtol(rk_json_iter_key(it), NULL, 10)], &text));
        assert_ok(rk_tokenizer_encode(tokenizer, rk_str_text(&text), text.bytes, false, &encoded));
        for (int64_t i = 0; i < encoded.count; i++)
            rk_str_appendf(&actual, "%s%d", i > 0 ? " " : "", encoded.items[i]);
        assert_string_equal(rk_str_text(&actual), rk_json_as_string(rk_json_iter_value(it), ""));
        rk_free(encoded.items);
        rk_str_fini(&text);
        rk_str_fini(&actual);
    }
    rk_tokenizer_destroy(tokenizer);
    rk_free(path);
    rk_free(relative);
}

static void check_template(const char *name, const struct rk_json *expected)
{
    char *relative = rk_format("golden/chat/templates/%s.jinja", name);
    char *path = rk_test_fixture_path(relative),
         *hashes = rk_strdup(rk_json_as_string(rk_json_find(expected, "hashes"), ""));
    char *source = rk_test_read_file(path, NULL), *rest = hashes;
    const struct rk_json *texts = rk_json_find(expected, "texts");
    struct rk_chat *chat;

    assert_ok(rk_chat_create_text(&chat, source, strlen(source), name));
    rk_chat_set_variables(chat, rk_json_find(manifest, "special_tokens"));
    for (void *it = rk_json_iter(texts); it; it = rk_json_iter_next(texts, it)) {
        struct rk_str text = {0};

        assert_ok(render(chat, conversations[strtol(rk_json_iter_key(it), NULL, 10)], &text));
        assert_string_equal(rk_str_text(&text), rk_json_as_string(rk_json_iter_value(it), ""));
        rk_str_fini(&text);
    }
    for (int i = 0; i < NUM_CONVERSATIONS; i++)
        expect_hash(name, i, chat, strsep(&rest, " "));
    if (rk_json_find(expected, "ids"))
        check_ids(chat, expected);
    rk_chat_destroy(chat);
    rk_free(source);
    rk_free(hashes);
    rk_free(path);
    rk_free(relative);
}

static void test_render_templates_give_the_texts_of_transformers(void **state)
{
    struct rk_json *expected = read_json("golden/chat/expected.json");

    (void)state;
    assert_true(rk_json_count(expected) >= MIN_TEMPLATES);
    for (void *it = rk_json_iter(expected); it; it = rk_json_iter_next(expected, it)) {
        print_message("  %s\n", rk_json_iter_key(it));
        check_template(rk_json_iter_key(it), rk_json_iter_value(it));
    }
    rk_json_free(expected);
}

/* A row: the template, and its text, or null if transformers raises an exception. */
static int check_snippet(const struct rk_json *row, const struct rk_json *item)
{
    const char *source = rk_json_as_string(rk_json_at(row, 0), ""),
               *expected = rk_json_as_string(rk_json_at(row, 1), NULL);
    struct rk_str text = {0};
    struct rk_chat *chat = NULL;
    struct rk_status *st = rk_chat_create_text(&chat, source, strlen(source), "snippet");
    int is_bad;

    if (!st) {
        rk_chat_set_variables(chat, rk_json_find(manifest, "special_tokens"));
        st = render(chat, item, &text);
    }
    is_bad = st ? expected != NULL || rk_status_code(st) != RK_INVALID_ARGUMENT
                : !expected || text.bytes != rk_json_string_bytes(rk_json_at(row, 1)) ||
                      memcmp(rk_str_text(&text), expected, text.bytes) != 0;
    if (is_bad)
        print_message("  %s\n    expected %s\n    got      %s\n", source, expected ? expected : "an error",
                      st ? rk_status_message(st) : rk_str_text(&text));
    rk_status_free(st);
    rk_str_fini(&text);
    rk_chat_destroy(chat);
    return is_bad;
}

static void test_render_snippets_give_the_texts_of_transformers(void **state)
{
    struct rk_json *snippets = read_json("golden/chat/snippets.json");
    const struct rk_json *rows = rk_json_find(snippets, "rows");
    int num_bad = 0;

    (void)state;
    assert_true(rk_json_count(rows) > 200);
    for (int64_t i = 0; i < rk_json_count(rows); i++)
        num_bad += check_snippet(rk_json_at(rows, i), rk_json_find(snippets, "item"));
    assert_int_equal(num_bad, 0);
    rk_json_free(snippets);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_render_snippets_give_the_texts_of_transformers),
        cmocka_unit_test(test_render_templates_give_the_texts_of_transformers),
    };

    return cmocka_run_group_tests(tests, load, unload);
}
