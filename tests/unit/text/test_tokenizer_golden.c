/* Tokenizers in the shapes of known models against Hugging Face's library:
 * tests/golden/gen/make_tokenizers.py makes the fixtures and documents how the 3,000 texts and their digests
 * are generated. */
#include "text/rk_tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_json.h"
#include "tests/support/test.h"

#define NUM_TEXTS   3000
#define DIGEST_BITS 16

static const char *const shapes[] = {
    "gpt2",  "llama3",           "qwen2",          "llama2",  "mistral", "metaspace", "metaspace_first",
    "gemma", "deepseek",         "deepseek_coder", "roberta", "falcon",  "phi",       "classic",
    "o200k", "set_intersection", "set_in_set",
};

static struct rk_json *read_json(const char *name)
{
    char *file = rk_format("golden/tokenizers/%s.json", name);
    char *path = rk_test_fixture_path(file);
    struct rk_json *json = NULL;

    assert_ok(rk_json_parse_file(&json, path, 1 << 20, RK_JSON_ALLOW_NUL));
    rk_free(path);
    rk_free(file);
    return json;
}

static struct rk_tokenizer *open_shape(const char *name)
{
    char *file = rk_format("golden/tokenizers/%s.json", name);
    char *path = rk_test_fixture_path(file);
    struct rk_tokenizer *tokenizer = NULL;

    assert_ok(rk_tokenizer_create_file(&tokenizer, path));
    rk_free(path);
    rk_free(file);
    return tokenizer;
}

/* --- cases with full ids and texts --- */

static void check_ids(const char *shape, const struct rk_tokenizer *tokenizer, const struct rk_json *text,
                      bool add_special_tokens, const struct rk_json *expected)
{
    struct rk_tokenizer_ids ids = {0};

    assert_ok(rk_tokenizer_encode(tokenizer, rk_json_as_string(text, ""), rk_json_string_bytes(text),
                                  add_special_tokens, &ids));
    if (ids.count != rk_json_count(expected))
        print_error("%s: '%s': %lld ids, expected %lld\n", shape, rk_json_as_string(text, ""),
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
static void test_cases_equal_reference(void **state)
{
    (void)state;
    for (size_t s = 0; s < RK_ARRAY_LEN(shapes); s++) {
        char *name = rk_format("%s.cases", shapes[s]);
        struct rk_tokenizer *tokenizer = open_shape(shapes[s]);
        struct rk_json *cases = read_json(name);

        print_message("  %s\n", shapes[s]);
        assert_true(rk_json_count(cases) > 20);
        for (int64_t i = 0; i < rk_json_count(cases); i++) {
            const struct rk_json *item = rk_json_at(cases, i);
            const struct rk_json *text = rk_json_find(item, "text");

            check_ids(shapes[s], tokenizer, text, false, rk_json_find(item, "ids"));
            check_ids(shapes[s], tokenizer, text, true, rk_json_find(item, "ids_special"));
            check_text(tokenizer, rk_json_find(item, "ids"), true, rk_json_find(item, "decoded"));
            check_text(tokenizer, rk_json_find(item, "ids"), false, rk_json_find(item, "decoded_all"));
        }
        rk_json_free(cases);
        rk_tokenizer_destroy(tokenizer);
        rk_free(name);
    }
}

/* --- sets --- */

/* A tokenizer that replaces matches of the pattern in front of a vocabulary of all bytes. */
static struct rk_tokenizer *open_replacing(const struct rk_json *gpt2, const struct rk_json *pattern)
{
    struct rk_json *root = rk_json_clone(gpt2), *normalizer = rk_json_new_object(),
                   *regex = rk_json_new_object();
    struct rk_tokenizer *tokenizer;
    char *text;

    rk_json_set(regex, "Regex", rk_json_clone(pattern));
    rk_json_set(normalizer, "type", rk_json_new_string("Replace"));
    rk_json_set(normalizer, "pattern", regex);
    rk_json_set(normalizer, "content", rk_json_new_string("#"));
    rk_json_set(root, "normalizer", normalizer);
    text = rk_json_dump(root, 0, false);
    assert_ok(rk_tokenizer_create_json(&tokenizer, text, strlen(text), rk_json_as_string(pattern, "")));
    rk_free(text);
    rk_json_free(root);
    return tokenizer;
}

static void check_replaced(const struct rk_tokenizer *tokenizer, const char *pattern,
                           const struct rk_json *row)
{
    const struct rk_json *text = rk_json_at(row, 0);
    const char *expected = rk_json_as_string(rk_json_at(row, 1), "");
    struct rk_tokenizer_ids ids;
    struct rk_str actual = {0};

    assert_ok(
        rk_tokenizer_encode(tokenizer, rk_json_as_string(text, ""), rk_json_string_bytes(text), false, &ids));
    rk_tokenizer_decode(tokenizer, ids.items, ids.count, false, &actual);
    if (strcmp(rk_str_text(&actual), expected) != 0)
        print_error("%s in '%s'\n", pattern, rk_json_as_string(text, ""));
    assert_string_equal(rk_str_text(&actual), expected);
    rk_str_fini(&actual);
    rk_free(ids.items);
}

/* Goal: sets in sets, intersections and negations of both match the characters that they match in
 * Oniguruma. */
static void test_sets_match_as_in_the_reference(void **state)
{
    struct rk_json *rows = read_json("sets"), *gpt2 = read_json("gpt2");

    (void)state;
    assert_true(rk_json_count(rows) >= 250);
    for (int64_t i = 0; i < rk_json_count(rows); i++) {
        const struct rk_json *row = rk_json_at(rows, i), *pattern = rk_json_at(row, 0);
        struct rk_tokenizer *tokenizer = open_replacing(gpt2, pattern);

        for (int64_t k = 1; k < rk_json_count(row); k++)
            check_replaced(tokenizer, rk_json_as_string(pattern, ""), rk_json_at(row, k));
        rk_tokenizer_destroy(tokenizer);
    }
    rk_json_free(gpt2);
    rk_json_free(rows);
}

/* --- the 3,000 texts --- */

/* SplitMix64. */
static int64_t below(uint64_t *rng, int64_t n)
{
    uint64_t z = *rng += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (int64_t)((z ^ (z >> 31)) % (uint64_t)n);
}

static void append_code_point(struct rk_str *out, int64_t c)
{
    static const int64_t marks[] = {0, 0xc0, 0xe0, 0xf0};
    size_t more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    char utf8[4];

    for (size_t i = more; i > 0; i--) {
        utf8[i] = (char)(0x80 | (c & 0x3f));
        c >>= 6;
    }
    utf8[0] = (char)(marks[more] | c);
    rk_str_append_bytes(out, utf8, more + 1);
}

static void append_fragment(struct rk_str *out, uint64_t *rng, const struct rk_json *fragments)
{
    const struct rk_json *groups = rk_json_find(fragments, "groups"),
                         *ranges = rk_json_find(fragments, "ranges");
    const struct rk_json *range;
    int64_t total = rk_json_as_int(rk_json_find(fragments, "range_weight"), 0), at, low, high;

    for (int64_t i = 0; i < rk_json_count(groups); i++)
        total += rk_json_as_int(rk_json_find(rk_json_at(groups, i), "weight"), 0);
    at = below(rng, total);
    for (int64_t i = 0; i < rk_json_count(groups); i++) {
        const struct rk_json *items = rk_json_find(rk_json_at(groups, i), "items");
        int64_t weight = rk_json_as_int(rk_json_find(rk_json_at(groups, i), "weight"), 0);

        if (at < weight) {
            const struct rk_json *item = rk_json_at(items, below(rng, rk_json_count(items)));

            rk_str_append_bytes(out, rk_json_as_string(item, ""), rk_json_string_bytes(item));
            return;
        }
        at -= weight;
    }
    range = rk_json_at(ranges, below(rng, rk_json_count(ranges)));
    low = rk_json_as_int(rk_json_at(range, 0), 0);
    high = rk_json_as_int(rk_json_at(range, 1), 0);
    append_code_point(out, low + below(rng, high - low + 1));
}

static void append_text(struct rk_str *out, uint64_t *rng, const struct rk_json *fragments)
{
    for (int64_t left = below(rng, 24) + 1; left > 0; left--) {
        struct rk_str piece = {0};
        int64_t times = 1;

        append_fragment(&piece, rng, fragments);
        if (below(rng, 12) == 0)
            times = below(rng, 6) + 1;
        if (below(rng, 2) == 0)
            rk_str_append(out, " ");
        for (; times > 0; times--)
            rk_str_append_bytes(out, piece.text, piece.bytes);
        rk_str_fini(&piece);
    }
}

static void digest_bytes(uint64_t *digest, const void *data, size_t bytes)
{
    const uint8_t *p = data;

    for (size_t i = 0; i <= bytes; i++) /* and an end mark */
        *digest = (*digest ^ (i < bytes ? p[i] : 0xff)) * 0x100000001b3u;
}

static void digest_decoded(uint64_t *digest, const struct rk_tokenizer *tokenizer, const int32_t *ids,
                           int64_t count)
{
    for (int skips = 1; skips >= 0; skips--) {
        struct rk_str text = {0};

        rk_tokenizer_decode(tokenizer, ids, count, skips == 1, &text);
        digest_bytes(digest, rk_str_text(&text), text.bytes);
        rk_str_fini(&text);
    }
}

struct sample {
    struct rk_str text;
    uint64_t rng; /* the generator's next state, for the random ids */
};

static struct sample *make_samples(void)
{
    struct sample *samples = rk_calloc(NUM_TEXTS, sizeof(*samples));
    struct rk_json *fragments = read_json("fragments");

    for (uint64_t seed = 0; seed < NUM_TEXTS; seed++) {
        samples[seed].rng = seed;
        append_text(&samples[seed].text, &samples[seed].rng, fragments);
    }
    rk_json_free(fragments);
    return samples;
}

static unsigned digest_of(const struct rk_tokenizer *tokenizer, const struct sample *sample)
{
    uint64_t rng = sample->rng, digest = 0xcbf29ce484222325u;
    struct rk_tokenizer_ids ids[2] = {0};
    int32_t loose[24];
    int64_t num_loose;

    for (int special = 0; special < 2; special++) {
        assert_ok(rk_tokenizer_encode(tokenizer, sample->text.text, sample->text.bytes, special == 1,
                                      &ids[special]));
        digest_bytes(&digest, ids[special].items, (size_t)ids[special].count * sizeof(int32_t));
    }
    digest_decoded(&digest, tokenizer, ids[0].items, ids[0].count);
    num_loose = below(&rng, 24);
    for (int64_t i = 0; i < num_loose; i++)
        loose[i] = (int32_t)below(&rng, rk_tokenizer_vocab_size(tokenizer) + 3);
    digest_decoded(&digest, tokenizer, loose, num_loose);
    rk_free(ids[0].items);
    rk_free(ids[1].items);
    return (unsigned)(digest >> (64 - DIGEST_BITS));
}

/* Goal: for 3,000 texts per shape, ids, decoded texts and the decoding of random ids equal the
 * reference's. */
static void test_texts_equal_reference(void **state)
{
    struct rk_json *hashes = read_json("hashes");
    struct sample *samples = make_samples();

    (void)state;
    for (size_t s = 0; s < RK_ARRAY_LEN(shapes); s++) {
        const char *expected = rk_json_as_string(rk_json_find(hashes, shapes[s]), "");
        struct rk_tokenizer *tokenizer = open_shape(shapes[s]);
        int num_bad = 0;

        assert_int_equal(strlen(expected), NUM_TEXTS * DIGEST_BITS / 4);
        for (int i = 0; i < NUM_TEXTS; i++) {
            char digits[5] = {0};

            memcpy(digits, expected + i * 4, 4);
            if (digest_of(tokenizer, &samples[i]) != strtoul(digits, NULL, 16) && num_bad++ == 0)
                print_error("%s: text %d differs\n", shapes[s], i);
        }
        print_message("  %s: %d of %d texts differ\n", shapes[s], num_bad, NUM_TEXTS);
        assert_int_equal(num_bad, 0);
        rk_tokenizer_destroy(tokenizer);
    }
    for (int i = 0; i < NUM_TEXTS; i++)
        rk_str_fini(&samples[i].text);
    rk_free(samples);
    rk_json_free(hashes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases_equal_reference),
        cmocka_unit_test(test_sets_match_as_in_the_reference),
        cmocka_unit_test(test_texts_equal_reference),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
