/* Tokenizers: invalid files and texts, NULs, long words (test_tokenizer_golden.c compares with the
 * reference).
 */
#include "text/rk_tokenizer.h"

#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_thread.h"
#include "tests/support/test.h"

static struct rk_tokenizer *open_fixture(const char *name)
{
    char *path = rk_test_fixture_path(name);
    struct rk_tokenizer *tokenizer = NULL;

    assert_ok(rk_tokenizer_create_file(&tokenizer, path));
    rk_free(path);
    return tokenizer;
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

static void put_text(const char *dir, const char *name, const char *text)
{
    char *path = rk_path_join(dir, name);

    rk_test_write_file(path, text, strlen(text));
    rk_free(path);
}

static char *put_json(const char *dir, const char *name, const struct rk_json *json)
{
    char *text = rk_json_dump(json, 0, false);

    put_text(dir, name, text);
    rk_free(text);
    return rk_path_join(dir, name);
}

/* Goal: tokens that tokenizer_config.json or special_tokens_map.json names are special, as in transformers
 * 5.24, whose ids and texts these are, of "3,5<eos>1" and of the ids 4, 5, 1, 0. */
static void test_tokens_named_beside_tokenizer_json_are_special(void **state)
{
    static const struct {
        const char *added, *config, *map;
        int32_t ids[5];
        const char *text;
    } cases[] = {
        {"[]",
         "{\"eos_token\": \"<eos>\", \"pad_token\": \"<pad>\", \"unk_token\": \"<new>\"}",
         NULL,
         {5, 12, 7, 1, 3},
         "23"},
        {"[{\"id\": 1, \"content\": \"<eos>\", \"special\": false}]",
         "{\"eos_token\": \"<eos>\"}",
         NULL,
         {5, 12, 7, 1, 3},
         "23<pad>"},
        {"[]", "{\"additional_special_tokens\": [\"<eos>\"]}", NULL, {5, 12, 7, 1, 3}, "23<pad>"},
        {"[]", "{\"extra_special_tokens\": {\"image_token\": \"<eos>\"}}", NULL, {5, 12, 7, 1, 3}, "23<pad>"},
        {"[]", "{}", "{\"eos_token\": \"<eos>\"}", {5, 12, 7, 1, 3}, "23<pad>"},
    };
    static const int32_t ids[] = {4, 5, 1, 0};
    const char *dir = rk_test_temp_dir();
    char *digits = rk_test_fixture_path("../examples/digits/tokenizer.json");
    struct rk_json *root = NULL;

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_json *added = NULL, *special = NULL;
        struct rk_tokenizer *tokenizer = NULL;
        struct rk_tokenizer_ids encoded = {0};
        struct rk_str text = {0};
        char *path;

        print_message("%s %s\n", cases[i].added, cases[i].config);
        assert_ok(rk_json_parse_file(&root, digits, 1 << 20, 0));
        assert_ok(rk_json_parse(&added, cases[i].added, strlen(cases[i].added), "added", 0));
        rk_json_set(root, "added_tokens", added);
        path = put_json(dir, "tokenizer.json", root);
        put_text(dir, "tokenizer_config.json", cases[i].config);
        put_text(dir, "special_tokens_map.json", cases[i].map ? cases[i].map : "{}");
        assert_ok(rk_special_tokens_read_dir(&special, dir));
        assert_ok(rk_tokenizer_create_special(&tokenizer, path, special));
        assert_ok(rk_tokenizer_encode(tokenizer, "3,5<eos>1", 9, false, &encoded));
        assert_int_equal(encoded.count, RK_ARRAY_LEN(cases[i].ids));
        assert_memory_equal(encoded.items, cases[i].ids, sizeof(cases[i].ids));
        rk_tokenizer_decode(tokenizer, ids, RK_ARRAY_LEN(ids), true, &text);
        assert_string_equal(rk_str_text(&text), cases[i].text);
        rk_str_fini(&text);
        rk_free(encoded.items);
        rk_tokenizer_destroy(tokenizer);
        rk_json_free(special);
        rk_json_free(root);
        rk_free(path);
    }
    rk_free(digits);
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

#define VOCAB "\"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}"

/* A file with a model of those tokens and additional members of the model or of the file. */
#define MODEL(more)   "{\"model\": {\"type\": \"BPE\", " VOCAB ", " more "}}"
#define FILE_OF(more) "{\"model\": {\"type\": \"BPE\", " VOCAB ", \"merges\": []}, " more "}"
/* A component of two steps, the second of which is invalid. */
#define SECOND(part, list, good, bad) \
    FILE_OF("\"" part "\": {\"type\": \"Sequence\", \"" list "\": [" good ", " bad "]}")
#define ADDED(more) FILE_OF("\"added_tokens\": [{\"content\": \"x\"" more "}]")

static const struct {
    const char *label, *json;
    rk_code_t code;
    const char *message;
} bad_files[] = {
    {"not an object", "[]", RK_INVALID_ARGUMENT, "object"},
    {"no model", "{}", RK_UNIMPLEMENTED, "model.type"},
    {"Unigram", "{\"model\": {\"type\": \"Unigram\"}}", RK_UNIMPLEMENTED, "Unigram"},
    {"WordPiece", "{\"model\": {\"type\": \"WordPiece\"}}", RK_UNIMPLEMENTED, "WordPiece"},
    {"WordLevel", "{\"model\": {\"type\": \"WordLevel\"}}", RK_UNIMPLEMENTED, "WordLevel"},
    {"vocab is a list", "{\"model\": {\"type\": \"BPE\", \"vocab\": [], \"merges\": []}}",
     RK_INVALID_ARGUMENT, "vocab"},
    {"negative id", "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": -1}, \"merges\": []}}",
     RK_INVALID_ARGUMENT, "'a'"},
    {"huge id", "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 4000000000}, \"merges\": []}}",
     RK_INVALID_ARGUMENT, "integer"},
    {"merges missing", MODEL("\"x\": 1"), RK_INVALID_ARGUMENT, "merges"},
    {"merge of an unknown token", MODEL("\"merges\": [\"a c\"]"), RK_INVALID_ARGUMENT, "merges[0]"},
    {"merge with two spaces", MODEL("\"merges\": [\"a b b\"]"), RK_INVALID_ARGUMENT, "merges[0]"},
    {"merge of one part", MODEL("\"merges\": [\"a b\", [\"a\"]]"), RK_INVALID_ARGUMENT, "merges[1]"},
    {"dropout", MODEL("\"merges\": [], \"dropout\": 0.1"), RK_UNIMPLEMENTED, "model.dropout 0.1"},
    {"prefix", MODEL("\"merges\": [], \"continuing_subword_prefix\": \"##\""), RK_UNIMPLEMENTED,
     "continuing_subword_prefix '##'"},
    {"suffix", MODEL("\"merges\": [], \"end_of_word_suffix\": \"</w>\""), RK_UNIMPLEMENTED,
     "end_of_word_suffix '</w>'"},
    {"byte_fallback is text", MODEL("\"merges\": [], \"byte_fallback\": \"yes\""), RK_INVALID_ARGUMENT,
     "model.byte_fallback"},
    {"fuse_unk is text", MODEL("\"merges\": [], \"fuse_unk\": \"yes\""), RK_INVALID_ARGUMENT,
     "model.fuse_unk"},
    {"unk_token is a number", MODEL("\"merges\": [], \"unk_token\": 3"), RK_INVALID_ARGUMENT,
     "model.unk_token"},

    {"normalizer", FILE_OF("\"normalizer\": {\"type\": \"Precompiled\"}"), RK_UNIMPLEMENTED,
     "normalizer.type 'Precompiled'"},
    {"normalizer without type", FILE_OF("\"normalizer\": 3"), RK_UNIMPLEMENTED, "normalizer.type ''"},
    {"normalizers is no list", FILE_OF("\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": 1}"),
     RK_INVALID_ARGUMENT, "normalizer.normalizers"},
    {"normalizer in a sequence",
     SECOND("normalizer", "normalizers", "{\"type\": \"NFC\"}", "{\"type\": \"Nmt\"}"), RK_UNIMPLEMENTED,
     "normalizer.normalizers[1].type 'Nmt'"},
    {"Prepend without text", FILE_OF("\"normalizer\": {\"type\": \"Prepend\"}"), RK_INVALID_ARGUMENT,
     "normalizer.prepend"},
    {"Strip without side", FILE_OF("\"normalizer\": {\"type\": \"Strip\", \"strip_left\": true}"),
     RK_INVALID_ARGUMENT, "normalizer.strip_right"},
    {"Replace without pattern", FILE_OF("\"normalizer\": {\"type\": \"Replace\", \"content\": \"x\"}"),
     RK_INVALID_ARGUMENT, "normalizer.pattern"},
    {"Replace without content",
     FILE_OF("\"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"String\": \"x\"}}"),
     RK_INVALID_ARGUMENT, "normalizer.content"},

    {"pre-tokenizer", FILE_OF("\"pre_tokenizer\": {\"type\": \"UnicodeScripts\"}"), RK_UNIMPLEMENTED,
     "pre_tokenizer.type 'UnicodeScripts'"},
    {"pre-tokenizer in a sequence",
     SECOND("pre_tokenizer", "pretokenizers", "{\"type\": \"Whitespace\"}",
            "{\"type\": \"BertPreTokenizer\"}"),
     RK_UNIMPLEMENTED, "pre_tokenizer.pretokenizers[1].type 'BertPreTokenizer'"},
    {"Digits", FILE_OF("\"pre_tokenizer\": {\"type\": \"Digits\"}"), RK_INVALID_ARGUMENT,
     "pre_tokenizer.individual_digits"},
    {"Punctuation", FILE_OF("\"pre_tokenizer\": {\"type\": \"Punctuation\", \"behavior\": \"Gone\"}"),
     RK_INVALID_ARGUMENT, "pre_tokenizer.behavior"},
    {"ByteLevel", FILE_OF("\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"use_regex\": 1}"),
     RK_INVALID_ARGUMENT, "pre_tokenizer.use_regex"},
    {"Split without behavior",
     FILE_OF("\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"String\": \" \"}}"),
     RK_INVALID_ARGUMENT, "pre_tokenizer.behavior"},
    {"Split with two patterns",
     FILE_OF("\"pre_tokenizer\": {\"type\": \"Split\", \"behavior\": \"Isolated\", \"pattern\": "
             "{\"String\": \" \", \"Regex\": \" \"}}"),
     RK_INVALID_ARGUMENT, "pre_tokenizer.pattern"},
    {"Metaspace without replacement", FILE_OF("\"pre_tokenizer\": {\"type\": \"Metaspace\"}"),
     RK_INVALID_ARGUMENT, "pre_tokenizer.replacement"},
    {"Metaspace with a long replacement",
     FILE_OF("\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"__\"}"), RK_INVALID_ARGUMENT,
     "pre_tokenizer.replacement"},
    {"Metaspace with an unknown scheme",
     FILE_OF("\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"_\", \"prepend_scheme\": "
             "\"last\"}"),
     RK_INVALID_ARGUMENT, "pre_tokenizer.prepend_scheme"},
    {"Metaspace that contradicts itself",
     FILE_OF("\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"_\", \"prepend_scheme\": "
             "\"first\", \"add_prefix_space\": false}"),
     RK_INVALID_ARGUMENT, "pre_tokenizer.add_prefix_space"},

    {"added_tokens is no list", FILE_OF("\"added_tokens\": {}"), RK_INVALID_ARGUMENT, "added_tokens"},
    {"added token without id", ADDED(""), RK_INVALID_ARGUMENT, "added_tokens[0].id"},
    {"added token with a gap", ADDED(", \"id\": 9"), RK_INVALID_ARGUMENT, "added_tokens[0].id: 9"},
    {"added token with a bad flag", ADDED(", \"id\": 3, \"lstrip\": 2"), RK_INVALID_ARGUMENT,
     "added_tokens[0].lstrip"},
    {"empty added token", FILE_OF("\"added_tokens\": [{\"content\": \"\", \"id\": 3}]"), RK_INVALID_ARGUMENT,
     "added_tokens[0].content"},
    {"added token that normalisation empties",
     FILE_OF("\"added_tokens\": [{\"content\": \" \", \"id\": 3}], \"normalizer\": {\"type\": \"Strip\", "
             "\"strip_left\": true, \"strip_right\": true}"),
     RK_INVALID_ARGUMENT, "added_tokens[0].content"},

    {"decoder", FILE_OF("\"decoder\": {\"type\": \"CTC\"}"), RK_UNIMPLEMENTED, "decoder.type 'CTC'"},
    {"decoder in a sequence",
     SECOND("decoder", "decoders", "{\"type\": \"Fuse\"}", "{\"type\": \"WordPiece\"}"), RK_UNIMPLEMENTED,
     "decoder.decoders[1].type 'WordPiece'"},
    {"decoder Strip without stop",
     FILE_OF("\"decoder\": {\"type\": \"Strip\", \"content\": \" \", \"start\": 1}"), RK_INVALID_ARGUMENT,
     "decoder.stop"},
    {"decoder Strip of two characters",
     FILE_OF("\"decoder\": {\"type\": \"Strip\", \"content\": \"ab\", \"start\": 1, \"stop\": 0}"),
     RK_INVALID_ARGUMENT, "decoder.content"},
    {"decoder Replace", FILE_OF("\"decoder\": {\"type\": \"Replace\", \"pattern\": 3, \"content\": \"\"}"),
     RK_INVALID_ARGUMENT, "decoder.pattern"},
    {"decoder Metaspace", FILE_OF("\"decoder\": {\"type\": \"Metaspace\", \"replacement\": \"\"}"),
     RK_INVALID_ARGUMENT, "decoder.replacement"},

    {"post-processor", FILE_OF("\"post_processor\": {\"type\": \"Other\"}"), RK_UNIMPLEMENTED,
     "post_processor.type 'Other'"},
    {"template with an unknown token",
     FILE_OF(
         "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": "
         "\"<s>\"}}]}"),
     RK_INVALID_ARGUMENT, "<s>"},
    {"template without the text",
     FILE_OF("\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": []}"), RK_INVALID_ARGUMENT,
     "post_processor.single"},
    {"template with a second text",
     FILE_OF("\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"Sequence\": {\"id\": "
             "\"B\"}}]}"),
     RK_INVALID_ARGUMENT, "post_processor.single[0]"},
    {"post-processor with an id that no token has",
     FILE_OF("\"post_processor\": {\"type\": \"BertProcessing\", \"cls\": [\"a\", 0], \"sep\": [\"b\", 3]}"),
     RK_INVALID_ARGUMENT, "post_processor: no token has the id 3"},
    {"RobertaProcessing",
     FILE_OF("\"post_processor\": {\"type\": \"RobertaProcessing\", \"cls\": [\"<s>\"]}"),
     RK_INVALID_ARGUMENT, "post_processor.cls"},
    {"BertProcessing",
     FILE_OF("\"post_processor\": {\"type\": \"BertProcessing\", \"cls\": [\"a\", 0], \"sep\": [\"b\", -1]}"),
     RK_INVALID_ARGUMENT, "post_processor.sep"},
};

/* Goal: an unsupported feature in a file is named in the error. */
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

/* Patterns that PCRE2 interprets differently from Oniguruma or rejects. */
static const char *const bad_regexes[] = {
    "(",           "[a&&]",       "[&&a]",      "(?m:a.b)",
    "(?s)a",       "a(?i)b",      "(*ACCEPT)",  "a{1,2}+",
    "\\\\Qa\\\\E", "\\\\p{Nope}", "\\\\pL",     "[a-[b]]",
    "(?R)",        "\\\\C",       "[]",         "(?#",
    "\\\\",        "[[:alpha:]]", "[[a]-z]",    "[[a]",
    "[a&&[b]",     "[a&&[]]",     "[a&&\\\\B]", "[[[[[[[[[[[[[[[[[[[[a]]]]]]]]]]]]]]]]]]]]",
};

static void test_create_bad_regex_is_refused_with_the_pattern(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(bad_regexes); i++) {
        char *json = rk_format(FILE_OF("\"pre_tokenizer\": {\"type\": \"Split\", \"behavior\": \"Isolated\", "
                                       "\"pattern\": {\"Regex\": \"%s\"}}"),
                               bad_regexes[i]);
        struct rk_tokenizer *tokenizer = NULL;

        print_message("  %s\n", bad_regexes[i]);
        assert_fails(rk_tokenizer_create_json(&tokenizer, json, strlen(json), "test"), RK_UNIMPLEMENTED,
                     "regex '");
        assert_null(tokenizer);
        rk_free(json);
    }
}

/* Goal: an expression whose steps grow exponentially ends with an error that says what to change. */
static void test_encode_regex_that_backtracks_is_limited(void **state)
{
    static const char json[] = FILE_OF("\"pre_tokenizer\": {\"type\": \"Split\", \"behavior\": \"Isolated\", "
                                       "\"pattern\": {\"Regex\": \"(a+)+$\"}}");
    static const char text[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!";
    struct rk_tokenizer *tokenizer = NULL;
    struct rk_tokenizer_ids ids = {0};

    (void)state;
    assert_ok(rk_tokenizer_create_json(&tokenizer, json, strlen(json), "test"));
    assert_fails(rk_tokenizer_encode(tokenizer, text, strlen(text), false, &ids), RK_RESOURCE_EXHAUSTED,
                 "the expression backtracks too much (nested repetitions such as (a+)+), use a simpler one");
    rk_free(ids.items);
    rk_tokenizer_destroy(tokenizer);
}

/* Goal: NUL is an ordinary character: it does not terminate a text, an added token or decoded text.
 */
static void test_nul_arrives_whole(void **state)
{
    static const char text[] = "e\0e\0\0 the",
                      with_token[] =
                          "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, "
                          "\"merges\": []}, \"added_tokens\": [{\"content\": \"a\\u0000b\", \"id\": 1}], "
                          "\"decoder\": {\"type\": \"Fuse\"}}";
    static const char *const shapes[] = {"gpt2", "llama2", "gemma", "falcon"};
    struct rk_tokenizer *tokenizer = NULL;
    struct rk_tokenizer_ids ids = {0};
    struct rk_str decoded = {0};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(shapes); i++) {
        char *name = rk_format("golden/tokenizers/%s.json", shapes[i]);

        tokenizer = open_fixture(name);
        assert_ok(rk_tokenizer_encode(tokenizer, text, sizeof(text) - 1, false, &ids));
        rk_str_clear(&decoded);
        rk_tokenizer_decode(tokenizer, ids.items, ids.count, false, &decoded);
        assert_int_equal(decoded.bytes, sizeof(text) - 1);
        assert_memory_equal(decoded.text, text, sizeof(text));
        rk_free(ids.items);
        rk_tokenizer_destroy(tokenizer);
        rk_free(name);
    }
    assert_ok(rk_tokenizer_create_json(&tokenizer, with_token, sizeof(with_token) - 1, "test"));
    assert_ok(rk_tokenizer_encode(tokenizer, "aa\0ba", 5, false, &ids));
    assert_int_equal(ids.count, 3);
    assert_int_equal(ids.items[1], 1);
    rk_str_clear(&decoded);
    rk_tokenizer_decode(tokenizer, ids.items, ids.count, false, &decoded);
    assert_int_equal(decoded.bytes, 5);
    assert_memory_equal(decoded.text, "aa\0ba", 5);
    rk_free(ids.items);
    rk_str_fini(&decoded);
    rk_tokenizer_destroy(tokenizer);
}

/* Goal: cases that the reference library does not cover: files with the older add_prefix_space alone, and
 * characters without a token in a vocabulary without unknown token. */
static void test_metaspace_before_prepend_scheme(void **state)
{
    static const struct {
        const char *add_prefix_space;
        int64_t num_ids;
    } cases[] = {{"false", 3}, {"true", 4}};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        char *json = rk_format(
            "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"_\": 2}, \"merges\": []}, "
            "\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"_\", "
            "\"add_prefix_space\": %s}}",
            cases[i].add_prefix_space);
        struct rk_tokenizer *tokenizer = NULL;
        struct rk_tokenizer_ids ids = {0};

        assert_ok(rk_tokenizer_create_json(&tokenizer, json, strlen(json), "test"));
        assert_ok(rk_tokenizer_encode(tokenizer, "a b", 3, false, &ids));
        assert_int_equal(ids.count, cases[i].num_ids);
        rk_free(ids.items);
        assert_fails(rk_tokenizer_encode(tokenizer, "a \xe4\xb8\xad", 5, false, &ids), RK_INVALID_ARGUMENT,
                     "U+4E2D");
        rk_tokenizer_destroy(tokenizer);
        rk_free(json);
    }
}

struct encoding {
    const struct rk_tokenizer *tokenizer;
    uint64_t digest;
};

static void *encode_many(void *user)
{
    struct encoding *encoding = user;

    for (int i = 0; i < 300; i++) {
        char *text = rk_format("text number %d, the other %d times", i, i % 7);
        struct rk_tokenizer_ids ids = {0};
        struct rk_str decoded = {0};

        assert_ok(rk_tokenizer_encode(encoding->tokenizer, text, strlen(text), true, &ids));
        for (int64_t k = 0; k < ids.count; k++)
            encoding->digest = encoding->digest * 31 + (uint64_t)ids.items[k];
        rk_tokenizer_decode(encoding->tokenizer, ids.items, ids.count, true, &decoded);
        assert_string_equal(decoded.text, text);
        rk_str_fini(&decoded);
        rk_free(ids.items);
        rk_free(text);
    }
    return NULL;
}

/* Goal: threads that share a tokenizer get the same ids; the thread sanitizer build checks for races. */
static void test_threads_share_a_tokenizer(void **state)
{
    struct rk_tokenizer *tokenizer = open_fixture("golden/tokenizers/llama2.json");
    struct encoding encodings[3];
    pthread_t threads[RK_ARRAY_LEN(encodings)];

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(encodings); i++) {
        encodings[i] = (struct encoding){.tokenizer = tokenizer};
        assert_ok(rk_thread_start(&threads[i], encode_many, &encodings[i], "test"));
    }
    for (size_t i = 0; i < RK_ARRAY_LEN(encodings); i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_true(encodings[i].digest == encodings[0].digest);
    }
    rk_tokenizer_destroy(tokenizer);
}

/* Goal: a text that the pre-tokenizer does not split takes the O(n log n) of the heap, not quadratic time,
 * for any characters (ctest's timeout is the limit). */
static void test_encode_long_word_is_not_quadratic(void **state)
{
    static const struct {
        const char *shape, *unit;
        size_t bytes;
    } cases[] = {
        {"gpt2", "e", 1 << 20},   {"llama2", "e", 1 << 20},
        {"gpt2", " ", 1 << 18},   {"llama2", "\xe4\xb8\xad", 1 << 18},
        {"llama2", " ", 1 << 18}, {"deepseek", " ", 1 << 18},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        char *name = rk_format("golden/tokenizers/%s.json", cases[i].shape);
        struct rk_tokenizer *tokenizer = open_fixture(name);
        struct rk_tokenizer_ids ids = {0};
        struct rk_str text = {0};

        while (text.bytes < cases[i].bytes)
            rk_str_append(&text, cases[i].unit);
        assert_ok(rk_tokenizer_encode(tokenizer, text.text, text.bytes, false, &ids));
        assert_true(ids.count > 0);
        rk_free(ids.items);
        rk_str_fini(&text);
        rk_tokenizer_destroy(tokenizer);
        rk_free(name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode_digits_gives_one_id_a_character),
        cmocka_unit_test(test_tokens_named_beside_tokenizer_json_are_special),
        cmocka_unit_test(test_encode_bad_text_is_refused),
        cmocka_unit_test(test_decode_unknown_ids_and_broken_utf8_are_harmless),
        cmocka_unit_test(test_create_bad_file_is_refused_by_name),
        cmocka_unit_test(test_create_bad_regex_is_refused_with_the_pattern),
        cmocka_unit_test(test_encode_regex_that_backtracks_is_limited),
        cmocka_unit_test(test_nul_arrives_whole),
        cmocka_unit_test(test_metaspace_before_prepend_scheme),
        cmocka_unit_test(test_threads_share_a_tokenizer),
        cmocka_unit_test(test_encode_long_word_is_not_quadratic),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
