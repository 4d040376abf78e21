/* Tokenizers against Hugging Face's library (fixtures of tests/golden/tokenizers) and against broken files.
 */
#include "driver-cli/rk_tokenizer.h"

#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_json.h"
#include "tests/support/test.h"

static struct rk_tokenizer *open_fixture(const char *name)
{
    char *path = rk_test_fixture_path(name);
    struct rk_tokenizer *tokenizer = NULL;

    assert_ok(rk_tokenizer_create_file(&tokenizer, path));
    rk_free(path);
    return tokenizer;
}

static void check_ids(const char *label, const struct rk_tokenizer *tokenizer, const struct rk_json *text,
                      bool add_special_tokens, const struct rk_json *expected)
{
    struct rk_tokenizer_ids ids = {0};

    assert_ok(rk_tokenizer_encode(tokenizer, rk_json_as_string(text, ""), rk_json_string_bytes(text),
                                  add_special_tokens, &ids));
    if (ids.count != rk_json_count(expected))
        print_error("%s: '%s': %lld ids, expected %lld\n", label, rk_json_as_string(text, ""),
                    (long long)ids.count, (long long)rk_json_count(expected));
    assert_int_equal(ids.count, rk_json_count(expected));
    for (int64_t i = 0; i < ids.count; i++)
        assert_int_equal(ids.items[i], rk_json_as_int(rk_json_at(expected, i), -1));
    rk_free(ids.items);
}

static void check_text(const struct rk_tokenizer *tokenizer, const struct rk_json *ids_json,
                       bool skip_special, const struct rk_json *expected)
{
    int64_t count = rk_json_count(ids_json);
    int32_t *ids = rk_calloc((size_t)count + 1, sizeof(*ids));
    struct rk_str text = {0};

    for (int64_t i = 0; i < count; i++)
        ids[i] = (int32_t)rk_json_as_int(rk_json_at(ids_json, i), -1);
    rk_tokenizer_decode(tokenizer, ids, count, skip_special, &text);
    assert_string_equal(rk_str_text(&text), rk_json_as_string(expected, ""));
    rk_str_fini(&text);
    rk_free(ids);
}

/* Goal: ids and texts equal those of the reference library for every text of the fixture. */
static void check_against_reference(const char *kind)
{
    char *name = rk_format("golden/tokenizers/%s.json", kind);
    char *cases_name = rk_format("golden/tokenizers/%s.cases.json", kind);
    char *cases_path = rk_test_fixture_path(cases_name);
    struct rk_tokenizer *tokenizer = open_fixture(name);
    struct rk_json *cases = NULL;

    assert_ok(rk_json_parse_file(&cases, cases_path, 1 << 20, 0));
    assert_true(rk_json_count(cases) > 20);
    for (int64_t i = 0; i < rk_json_count(cases); i++) {
        const struct rk_json *item = rk_json_at(cases, i);
        const struct rk_json *text = rk_json_find(item, "text");

        check_ids(kind, tokenizer, text, false, rk_json_find(item, "ids"));
        check_ids(kind, tokenizer, text, true, rk_json_find(item, "ids_special"));
        check_text(tokenizer, rk_json_find(item, "ids"), true, rk_json_find(item, "decoded"));
        check_text(tokenizer, rk_json_find(item, "ids"), false, rk_json_find(item, "decoded_all"));
    }
    rk_json_free(cases);
    rk_tokenizer_destroy(tokenizer);
    rk_free(cases_path);
    rk_free(cases_name);
    rk_free(name);
}

static void test_encode_gpt2_equals_reference(void **state)
{
    (void)state;
    check_against_reference("gpt2");
}

static void test_encode_llama3_equals_reference(void **state)
{
    (void)state;
    check_against_reference("llama3");
}

static void test_encode_qwen2_equals_reference(void **state)
{
    (void)state;
    check_against_reference("qwen2");
}

/* Goal: the tokenizer of examples/digits has the ids that its config.json and reward expect. */
static void test_encode_digits_gives_one_id_a_character(void **state)
{
    static const int32_t expected[] = {5, 12, 7, 13, 11, 12, 4};
    struct rk_tokenizer *tokenizer = open_fixture("../examples/digits/tokenizer.json");
    struct rk_tokenizer_ids ids = {0};

    (void)state;
    assert_ok(rk_tokenizer_encode(tokenizer, "3,5:9,2", 7, false, &ids));
    assert_int_equal(ids.count, RK_ARRAY_LEN(expected));
    assert_memory_equal(ids.items, expected, sizeof(expected));
    assert_int_equal(rk_tokenizer_find_token(tokenizer, "<eos>"), 1);
    assert_int_equal(rk_tokenizer_find_token(tokenizer, "x"), -1);
    assert_int_equal(rk_tokenizer_vocab_size(tokenizer), 14);
    rk_free(ids.items);
    rk_tokenizer_destroy(tokenizer);
}

static void test_encode_bad_text_is_refused(void **state)
{
    struct rk_tokenizer *tokenizer = open_fixture("../examples/digits/tokenizer.json");
    struct rk_tokenizer_ids ids = {0};

    (void)state;
    assert_fails(rk_tokenizer_encode(tokenizer, "1\xff", 2, false, &ids), RK_INVALID_ARGUMENT, "UTF-8");
    assert_fails(rk_tokenizer_encode(tokenizer, "1a", 2, false, &ids), RK_INVALID_ARGUMENT, "0x61");
    assert_null(ids.items);
    rk_tokenizer_destroy(tokenizer);
}

static void test_decode_unknown_ids_and_broken_utf8_are_harmless(void **state)
{
    static const int32_t odd[] = {-1, 1 << 30, 2, 3};
    struct rk_tokenizer *digits = open_fixture("../examples/digits/tokenizer.json");
    struct rk_tokenizer *gpt2 = open_fixture("golden/tokenizers/gpt2.json");
    struct rk_str text = {0};
    int32_t lone;

    (void)state;
    rk_tokenizer_decode(digits, odd, RK_ARRAY_LEN(odd), true, &text);
    assert_string_equal(rk_str_text(&text), "01");
    rk_str_clear(&text);
    lone = rk_tokenizer_find_token(gpt2, "\xc3\xbf"); /* the byte 0xff */
    assert_true(lone >= 0);
    rk_tokenizer_decode(gpt2, &lone, 1, true, &text);
    assert_string_equal(rk_str_text(&text), "\xef\xbf\xbd");
    rk_str_fini(&text);
    rk_tokenizer_destroy(digits);
    rk_tokenizer_destroy(gpt2);
}

#define VOCAB     "\"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}"
#define BYTELEVEL "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"use_regex\": false}"

static const struct {
    const char *label, *json;
    rk_code_t code;
    const char *message;
} bad_files[] = {
    {"not an object", "[]", RK_INVALID_ARGUMENT, "object"},
    {"no model", "{}", RK_UNIMPLEMENTED, "model.type"},
    {"other model", "{\"model\": {\"type\": \"Unigram\"}}", RK_UNIMPLEMENTED, "Unigram"},
    {"vocab is a list", "{\"model\": {\"type\": \"BPE\", \"vocab\": [], \"merges\": []}}",
     RK_INVALID_ARGUMENT, "vocab"},
    {"negative id", "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": -1}, \"merges\": []}}",
     RK_INVALID_ARGUMENT, "integer"},
    {"huge id", "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 4000000000}, \"merges\": []}}",
     RK_INVALID_ARGUMENT, "integer"},
    {"merges missing", "{\"model\": {\"type\": \"BPE\", " VOCAB "}}", RK_INVALID_ARGUMENT, "merges"},
    {"merge of an unknown token", "{\"model\": {\"type\": \"BPE\", " VOCAB ", \"merges\": [\"a c\"]}}",
     RK_INVALID_ARGUMENT, "merges[0]"},
    {"merge with two spaces", "{\"model\": {\"type\": \"BPE\", " VOCAB ", \"merges\": [\"a b b\"]}}",
     RK_INVALID_ARGUMENT, "merges[0]"},
    {"merge of one part", "{\"model\": {\"type\": \"BPE\", " VOCAB ", \"merges\": [[\"a\"]]}}",
     RK_INVALID_ARGUMENT, "merges[0]"},
    {"byte fallback", "{\"model\": {\"type\": \"BPE\", \"byte_fallback\": true, " VOCAB ", \"merges\": []}}",
     RK_UNIMPLEMENTED, "byte_fallback"},
    {"no byte level", "{\"model\": {\"type\": \"BPE\", " VOCAB ", \"merges\": []}}", RK_UNIMPLEMENTED,
     "ByteLevel"},
    {"bad regex",
     "{\"model\": {\"type\": \"BPE\", " VOCAB
     ", \"merges\": []}, \"pre_tokenizer\": {\"type\": \"Split\", \"behavior\": "
     "\"Isolated\", \"pattern\": {\"Regex\": \"(\"}}}",
     RK_UNIMPLEMENTED, "regex '('"},
    {"normalizer",
     "{\"model\": {\"type\": \"BPE\", " VOCAB ", \"merges\": []}, \"normalizer\": {\"type\": \"Lowercase\"}}",
     RK_UNIMPLEMENTED, "Lowercase"},
    {"added token without id",
     "{\"model\": {\"type\": \"BPE\", " VOCAB
     ", \"merges\": []}, \"added_tokens\": [{\"content\": \"x\"}], " BYTELEVEL "}",
     RK_INVALID_ARGUMENT, "added_tokens.id"},
    {"added token that strips",
     "{\"model\": {\"type\": \"BPE\", " VOCAB
     ", \"merges\": []}, \"added_tokens\": [{\"content\": \"x\", \"id\": 3, \"lstrip\": true}], " BYTELEVEL
     "}",
     RK_UNIMPLEMENTED, "lstrip"},
    {"decoder",
     "{\"model\": {\"type\": \"BPE\", " VOCAB ", \"merges\": []}, " BYTELEVEL
     ", \"decoder\": {\"type\": \"Metaspace\"}}",
     RK_UNIMPLEMENTED, "Metaspace"},
    {"template with an unknown token",
     "{\"model\": {\"type\": \"BPE\", " VOCAB ", \"merges\": []}, " BYTELEVEL
     ", \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": "
     "\"<s>\"}}]}}",
     RK_INVALID_ARGUMENT, "<s>"},
};

/* Goal: what a file asks for and the reader does not do is named. */
static void test_create_bad_file_is_refused_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(bad_files); i++) {
        struct rk_tokenizer *tokenizer = NULL;

        print_message("  %s\n", bad_files[i].label);
        assert_fails(
            rk_tokenizer_create_json(&tokenizer, bad_files[i].json, strlen(bad_files[i].json), "test"),
            bad_files[i].code, bad_files[i].message);
        assert_null(tokenizer);
    }
}

/* Goal: a word of a million equal letters takes the heap's time, not quadratic time (ctest's timeout is the
 * bound). */
static void test_encode_long_word_is_not_quadratic(void **state)
{
    struct rk_tokenizer *tokenizer = open_fixture("golden/tokenizers/gpt2.json");
    size_t bytes = 1 << 20;
    char *text = rk_malloc(bytes);
    struct rk_tokenizer_ids ids = {0};

    (void)state;
    memset(text, 'e', bytes);
    assert_ok(rk_tokenizer_encode(tokenizer, text, bytes, false, &ids));
    assert_true(ids.count > 0);
    rk_free(ids.items);
    rk_free(text);
    rk_tokenizer_destroy(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode_gpt2_equals_reference),
        cmocka_unit_test(test_encode_llama3_equals_reference),
        cmocka_unit_test(test_encode_qwen2_equals_reference),
        cmocka_unit_test(test_encode_digits_gives_one_id_a_character),
        cmocka_unit_test(test_encode_bad_text_is_refused),
        cmocka_unit_test(test_decode_unknown_ids_and_broken_utf8_are_harmless),
        cmocka_unit_test(test_create_bad_file_is_refused_by_name),
        cmocka_unit_test(test_encode_long_word_is_not_quadratic),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
