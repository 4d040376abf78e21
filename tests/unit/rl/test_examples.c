/* Training examples: loss masks against verl's data set and transformers (golden/sft, made by
 * golden/gen/make_sft.py), preference pairs in TRL's forms, truncation, and bad rows named by file and line.
 */
#include "rl/rk_examples.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_json.h"
#include "base/rk_str.h"
#include "tests/support/test.h"

static struct rk_tokenizer *digits; /* <pad> 0, <eos> 1, digits from 2, comma 12, ... */

static int open_tokenizer(void **state)
{
    char *path = rk_test_fixture_path("../examples/digits/tokenizer.json");

    (void)state;
    assert_ok(rk_tokenizer_create_file(&digits, path));
    rk_free(path);
    return 0;
}

static int close_tokenizer(void **state)
{
    (void)state;
    rk_tokenizer_destroy(digits);
    return 0;
}

static struct rk_status *load(struct rk_examples **out, const char *text, struct rk_examples_config config,
                              const struct rk_tokenizer *tokenizer)
{
    char *path = rk_test_temp_path("rows.jsonl");
    const char *files[] = {path, NULL};
    struct rk_status *st;

    rk_test_write_file(path, text, strlen(text));
    config.files = files;
    config.messages_key = "messages";
    config.prompt_key = "prompt";
    config.response_key = "response";
    if (!config.truncation)
        config.truncation = "error";
    if (!config.max_length)
        config.max_length = 4096;
    if (!config.max_samples)
        config.max_samples = -1;
    st = rk_examples_create(out, &config, tokenizer);
    rk_free(path);
    return st;
}

/* --- against verl and transformers --- */

/* "IDS / MASK" */
static char *format_sequence(const struct rk_example_sequence *sequence)
{
    struct rk_str text = {0};

    for (int64_t i = 0; i < sequence->len; i++)
        rk_str_appendf(&text, "%d ", sequence->ids[i]);
    rk_str_append(&text, "/ ");
    for (int64_t i = 0; i < sequence->len; i++)
        rk_str_append(&text, sequence->loss_mask[i] ? "1" : "0");
    return rk_str_take(&text);
}

struct golden {
    struct rk_json *all;
    const char *name; /* of the current template */
    struct rk_chat *chat;
    struct rk_tokenizer *tokenizer;
};

static void open_template(struct golden *golden, const char *name)
{
    const struct rk_json *manifest = rk_json_find(golden->all, "manifest");
    const char *tokenizer = rk_json_as_string(rk_json_find(rk_json_find(manifest, "templates"), name), "");
    char *file = rk_format(
        strcmp(name, "generation") == 0 ? "golden/sft/%s.jinja" : "golden/chat/templates/%s.jinja", name);
    char *path = rk_test_fixture_path(file), *source = rk_test_read_file(path, NULL);
    char *vocab = rk_format("golden/tokenizers/%s.json", tokenizer);
    char *vocab_path = rk_test_fixture_path(vocab);

    rk_chat_destroy(golden->chat);
    rk_tokenizer_destroy(golden->tokenizer);
    golden->name = name;
    assert_ok(rk_chat_create_text(&golden->chat, source, strlen(source), name));
    rk_chat_set_variables(golden->chat, rk_json_find(manifest, "special_tokens"));
    assert_ok(rk_tokenizer_create_file(&golden->tokenizer, vocab_path));
    rk_free(vocab_path);
    rk_free(vocab);
    rk_free(source);
    rk_free(path);
    rk_free(file);
}

/* expected NULL: the row is refused. */
static void check_row(const struct golden *golden, int64_t row, bool ignore_mismatch, const char *expected)
{
    char *text = rk_json_dump(rk_json_at(rk_json_find(golden->all, "rows"), row), 0, false);
    struct rk_examples *examples = NULL;
    struct rk_status *st =
        load(&examples, text,
             (struct rk_examples_config){
                 .chat = golden->chat, .eos_id = -1, .ignore_input_ids_mismatch = ignore_mismatch},
             golden->tokenizer);

    if (!expected) {
        assert_fails(st, RK_INVALID_ARGUMENT, "rows.jsonl:1: messages: ");
    } else {
        char *actual;

        if (st)
            fail_msg("%s, row %lld: %s", golden->name, (long long)row, rk_status_message(st));
        actual = format_sequence(&rk_examples_at(examples, 0, 0)->sequences[0]);
        assert_string_equal(actual, expected);
        rk_free(actual);
    }
    rk_examples_destroy(examples);
    rk_free(text);
}

/* Goal: ids and masks equal verl's wherever verl accepts the conversation (except one row with
 * enable_thinking=false, where verl trains on a part of the generation prompt), those by character offsets
 * wherever each prefix of the conversation renders to a prefix of the text, and transformers' where the
 * template has generation blocks; other rows are refused, or equal verl's concatenation if that is
 * requested. */
static void test_create_conversations_have_the_masks_of_verl_and_transformers(void **state)
{
    char *path = rk_test_fixture_path("golden/sft/cases.json");
    int num_trained = 0, num_refused = 0, num_concatenated = 0;
    struct golden golden = {.name = ""};
    const struct rk_json *cases;

    (void)state;
    assert_ok(rk_json_parse_file(&golden.all, path, 1 << 20, 0));
    cases = rk_json_find(golden.all, "cases");
    for (int64_t i = 0; i < rk_json_count(cases); i++) {
        const struct rk_json *item = rk_json_at(cases, i);
        const char *name = rk_json_as_string(rk_json_find(item, "template"), "");
        int64_t row = rk_json_as_int(rk_json_find(item, "row"), -1);
        const char *expected = rk_json_as_string(rk_json_find(item, "verl"), NULL);
        const char *concatenated = rk_json_as_string(rk_json_find(item, "concatenated"), NULL);

        if (rk_json_find(item, "offsets"))
            expected = rk_json_as_string(rk_json_find(item, "offsets"), NULL);
        if (rk_json_find(item, "generation"))
            expected = rk_json_as_string(rk_json_find(item, "generation"), NULL);
        if (strcmp(name, golden.name) != 0)
            open_template(&golden, name);
        check_row(&golden, row, false, expected);
        num_trained += expected != NULL;
        num_refused += expected == NULL;
        if (!expected && concatenated && strcmp(concatenated, "raises") != 0) {
            check_row(&golden, row, true, concatenated);
            num_concatenated++;
        }
    }
    print_message("%d trained, %d refused, %d concatenated\n", num_trained, num_refused, num_concatenated);
    assert_true(num_trained > 100);
    assert_true(num_refused > 20);
    assert_true(num_concatenated > 10);
    rk_chat_destroy(golden.chat);
    rk_tokenizer_destroy(golden.tokenizer);
    rk_json_free(golden.all);
    rk_free(path);
}

/* --- texts and pairs --- */

static void expect(const struct rk_example_sequence *sequence, const char *expected)
{
    char *actual = format_sequence(sequence);

    assert_string_equal(actual, expected);
    rk_free(actual);
}

static void test_create_prompt_and_response_texts(void **state)
{
    struct rk_examples *examples;

    (void)state;
    assert_ok(load(&examples, "{\"prompt\": \"1,\", \"response\": \"34\"}\n",
                   (struct rk_examples_config){.eos_id = 1}, digits));
    expect(&rk_examples_at(examples, 0, 0)->sequences[0], "3 12 5 6 1 / 00111");
    rk_examples_destroy(examples);
    assert_ok(load(&examples, "{\"prompt\": \"1,\", \"response\": \"34\"}\n",
                   (struct rk_examples_config){.eos_id = -1}, digits));
    expect(&rk_examples_at(examples, 0, 0)->sequences[0], "3 12 5 6 / 0011");
    rk_examples_destroy(examples);
}

/* User 7, assistant 8 ... 9; the generation prompt is 8. */
static const char template[] =
    "{% for m in messages %}{% if m.role == 'assistant' %}8{{ m.content }}9{% else %}7{{ m.content }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}8{% endif %}";

#define USER(text)      "{\"role\": \"user\", \"content\": \"" text "\"}"
#define ASSISTANT(text) "{\"role\": \"assistant\", \"content\": \"" text "\"}"

static const struct {
    const char *label, *text;
    const char *chosen, *rejected; /* rejected NULL: SFT */
} form_cases[] = {
    {"messages", "{\"messages\": [" USER("1") "," ASSISTANT("2") "," USER("3") "," ASSISTANT("4") "]}",
     "9 3 10 4 11 9 5 10 6 11 / 0001100011", NULL},
    {"prompt of messages, response text", "{\"prompt\": [" USER("1") "], \"response\": \"2\"}",
     "9 3 10 4 11 / 00011", NULL},
    {"earlier answers are part of the prompt",
     "{\"prompt\": [" USER("1") "," ASSISTANT("2") "," USER("3") "], \"response\": [" ASSISTANT("4") "]}",
     "9 3 10 4 11 9 5 10 6 11 / 0000000011", NULL},
    {"texts", "{\"prompt\": \"12\", \"chosen\": \"3\", \"rejected\": \"45\"}", "3 4 5 1 / 0011",
     "3 4 6 7 1 / 00111"},
    {"prompt of messages",
     "{\"prompt\": [" USER("1") "], \"chosen\": [" ASSISTANT("2") "], \"rejected\": [" ASSISTANT("3") "]}",
     "9 3 10 4 11 / 00011", "9 3 10 5 11 / 00011"},
    {"shared messages are the prompt",
     "{\"chosen\": [" USER("1") "," ASSISTANT("2") "], \"rejected\": [" USER("1") "," ASSISTANT("3") "]}",
     "9 3 10 4 11 / 00011", "9 3 10 5 11 / 00011"},
    {"prompt text beside whole conversations",
     "{\"prompt\": \"1\", \"chosen\": [" USER("1") "," ASSISTANT("2") "], \"rejected\": [" USER(
         "1") "," ASSISTANT("3") "]}",
     "9 3 10 4 11 / 00011", "9 3 10 5 11 / 00011"},
};

static void test_create_every_form_of_a_row(void **state)
{
    struct rk_chat *chat;

    (void)state;
    assert_ok(rk_chat_create_text(&chat, template, strlen(template), "t"));
    for (size_t i = 0; i < RK_ARRAY_LEN(form_cases); i++) {
        bool is_pair = form_cases[i].rejected != NULL;
        struct rk_examples_config config = {
            .chat = chat, .eos_id = 1, .kind = is_pair ? RK_EXAMPLES_PREFERENCE : RK_EXAMPLES_SFT};
        const struct rk_example *example;
        struct rk_examples *examples;

        print_message("  %s\n", form_cases[i].label);
        assert_ok(load(&examples, form_cases[i].text, config, digits));
        example = rk_examples_at(examples, 0, 0);
        assert_int_equal(example->num_sequences, is_pair ? 2 : 1);
        expect(&example->sequences[0], form_cases[i].chosen);
        if (is_pair)
            expect(&example->sequences[1], form_cases[i].rejected);
        rk_examples_destroy(examples);
    }
    rk_chat_destroy(chat);
}

/* Goal: generation blocks define the trained tokens, within the completion only; if they are inside a macro,
 * the mask follows from rendering the prefixes of the conversation. User 7, assistant 8 ... 9, and 0 after an
 * answer. */
static void test_create_generation_blocks_of_the_completion_count(void **state)
{
    static const char *const sources[] = {
        "{% for m in messages %}{% if m.role == 'assistant' %}8{% generation %}{{ m.content }}9"
        "{% endgeneration %}0{% else %}7{{ m.content }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}8{% endif %}",
        "{% macro say(m) %}8{% generation %}{{ m.content }}9{% endgeneration %}0{% endmacro %}"
        "{% for m in messages %}{% if m.role == 'assistant' %}{{ say(m) }}{% else %}7{{ m.content }}"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}8{% endif %}",
    };
    static const char *const expected[] = {"9 3 10 4 11 2 9 5 10 6 11 2 / 000000000110",
                                           "9 3 10 4 11 2 9 5 10 6 11 2 / 000000000111"};
    static const char text[] =
        "{\"prompt\": [" USER("1") "," ASSISTANT("2") "," USER("3") "], \"response\": \"4\"}";

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(sources); i++) {
        struct rk_examples *examples;
        struct rk_chat *chat;

        assert_ok(rk_chat_create_text(&chat, sources[i], strlen(sources[i]), "t"));
        assert_ok(load(&examples, text, (struct rk_examples_config){.eos_id = -1, .chat = chat}, digits));
        expect(&rk_examples_at(examples, 0, 0)->sequences[0], expected[i]);
        rk_examples_destroy(examples);
        rk_chat_destroy(chat);
    }
}

/* --- length --- */

/* "1234" + "567" + <eos>; the second row is shorter. */
static const char long_rows[] =
    "{\"prompt\": \"1234\", \"response\": \"567\"}\n{\"prompt\": \"1\", \"response\": \"2\"}\n";

static void test_create_long_rows_are_cut_left_out_or_refused(void **state)
{
    struct rk_examples_config config = {.eos_id = 1, .max_length = 6};
    struct rk_examples *examples = NULL;

    (void)state;
    assert_fails(load(&examples, long_rows, config, digits), RK_INVALID_ARGUMENT,
                 "rows.jsonl:1: the sequence has 8 tokens, data.max_length is 6");
    config.truncation = "right";
    assert_ok(load(&examples, long_rows, config, digits));
    expect(&rk_examples_at(examples, 0, 0)->sequences[0], "3 4 5 6 7 8 / 000011");
    rk_examples_destroy(examples);
    config.truncation = "left";
    config.max_length = 4;
    assert_ok(load(&examples, long_rows, config, digits)); /* the first token has no prediction */
    expect(&rk_examples_at(examples, 0, 0)->sequences[0], "7 8 9 1 / 0111");
    rk_examples_destroy(examples);
    config.truncation = "right";
    assert_ok(load(&examples, long_rows, config, digits));
    assert_int_equal(rk_examples_num_rows(examples), 1);
    assert_int_equal(rk_examples_counts(examples)->empty, 1);
    assert_int_equal(rk_examples_at(examples, 0, 0)->index, 1);
    rk_examples_destroy(examples);
    config.max_length = 2;
    assert_fails(load(&examples, "{\"prompt\": \"12\", \"response\": \"2\"}\n", config, digits),
                 RK_INVALID_ARGUMENT, "no rows in");
}

static void test_at_epochs_are_permutations_of_the_first_samples(void **state)
{
    struct rk_examples_config config = {.eos_id = 1, .shuffle = true, .seed = 3, .max_samples = 32};
    struct rk_str text = {0};
    struct rk_examples *a, *b;
    int num_moved = 0;

    (void)state;
    for (int i = 0; i < 64; i++)
        rk_str_appendf(&text, "{\"prompt\": \"%d\", \"response\": \"1\"}\n", i);
    assert_ok(load(&a, rk_str_text(&text), config, digits));
    assert_ok(load(&b, rk_str_text(&text), config, digits));
    assert_int_equal(rk_examples_num_rows(a), 32);
    for (int64_t epoch = 0; epoch < 2; epoch++) {
        uint64_t seen = 0;

        for (int64_t i = 0; i < 32; i++) {
            int64_t index = rk_examples_at(a, epoch, i)->index;

            assert_int_equal(index, rk_examples_at(b, epoch, i)->index);
            seen |= 1ull << index;
            num_moved += index != i;
        }
        assert_true(seen == (1ull << 32) - 1);
    }
    assert_true(num_moved > 32);
    rk_examples_destroy(a);
    rk_examples_destroy(b);
    rk_str_fini(&text);
}

/* --- bad rows --- */

static const struct {
    const char *label;
    rk_examples_kind_t kind;
    const char *text, *message;
} bad_rows[] = {
    {"no member that it could be", RK_EXAMPLES_SFT, "{\"text\": \"1\"}",
     "rows.jsonl:1: messages: expected a list of messages, or a prompt and a member "},
    {"messages are text", RK_EXAMPLES_SFT, "{\"messages\": \"1\"}", "got a string"},
    {"no messages", RK_EXAMPLES_SFT, "{\"messages\": []}", "messages: the list of messages is empty"},
    {"a role is missing", RK_EXAMPLES_SFT, "{\"messages\": [" USER("1") ",{\"content\": \"2\"}]}",
     "messages: [1]: role: expected a string"},
    {"no answer", RK_EXAMPLES_SFT, "{\"messages\": [" USER("1") "]}", "role assistant"},
    {"answer to nothing", RK_EXAMPLES_SFT, "{\"messages\": [" ASSISTANT("1") "]}",
     "messages: [0]: the first message is the assistant's"},
    {"enable_thinking is text", RK_EXAMPLES_SFT,
     "{\"messages\": [" USER("1") "," ASSISTANT("2") "], \"enable_thinking\": \"yes\"}",
     "enable_thinking: expected true or false, got a string"},
    {"tools are no list", RK_EXAMPLES_SFT, "{\"messages\": [" USER("1") "," ASSISTANT("2") "], \"tools\": 5}",
     "tools: expected a list"},
    {"images", RK_EXAMPLES_SFT, "{\"messages\": [" USER("1") "," ASSISTANT("2") "], \"images\": [\"a.png\"]}",
     "images: not supported"},
    {"response without prompt", RK_EXAMPLES_SFT, "{\"response\": \"1\"}", "prompt: expected text or a list"},
    {"response is a number", RK_EXAMPLES_SFT, "{\"prompt\": \"1\", \"response\": 2}",
     "response: expected text, as the prompt is, got an integer"},
    {"response is empty", RK_EXAMPLES_SFT, "{\"prompt\": \"1\", \"response\": \"\"}",
     "prompt, response: the response is empty"},
    {"prompt is empty", RK_EXAMPLES_SFT, "{\"prompt\": \"\", \"response\": \"1\"}", "the prompt is empty"},
    {"second line", RK_EXAMPLES_SFT, "{\"prompt\": \"1\", \"response\": \"1\"}\n{}\n", "rows.jsonl:2: "},
    {"no rejected", RK_EXAMPLES_PREFERENCE, "{\"prompt\": \"1\", \"chosen\": \"2\"}",
     "rejected: expected text or a list of messages, got nothing"},
    {"no prompt", RK_EXAMPLES_PREFERENCE, "{\"chosen\": \"1\", \"rejected\": \"2\"}",
     "prompt: expected text or a list of messages, got nothing"},
    {"chosen is empty", RK_EXAMPLES_PREFERENCE, "{\"prompt\": \"1\", \"chosen\": \"\", \"rejected\": \"2\"}",
     "prompt, chosen: the response is empty"},
    {"rejected says nothing", RK_EXAMPLES_PREFERENCE,
     "{\"prompt\": [" USER("1") "], \"chosen\": \"2\", \"rejected\": \"\"}",
     "prompt + rejected: expected an answer, got none"},
    {"one side is a beginning of the other", RK_EXAMPLES_PREFERENCE,
     "{\"chosen\": [" USER("1") "," ASSISTANT("2") "], \"rejected\": [" USER("1") "]}", "expected an answer"},
    {"the same twice", RK_EXAMPLES_PREFERENCE, "{\"prompt\": \"1\", \"chosen\": \"2\", \"rejected\": \"2\"}",
     "both have the same 3 tokens"},
    {"messages behind a text", RK_EXAMPLES_PREFERENCE,
     "{\"prompt\": \"1\", \"chosen\": \"2\", \"rejected\": [" ASSISTANT("3") "]}",
     "rejected: expected text, as the prompt is, got an array"},
};

static void test_create_bad_row_is_named(void **state)
{
    struct rk_chat *chat;

    (void)state;
    assert_ok(rk_chat_create_text(&chat, template, strlen(template), "t"));
    for (size_t i = 0; i < RK_ARRAY_LEN(bad_rows); i++) {
        struct rk_examples_config config = {.kind = bad_rows[i].kind, .eos_id = 1, .chat = chat};
        struct rk_examples *examples = NULL;
        rk_code_t code = strcmp(bad_rows[i].label, "images") == 0 ? RK_UNIMPLEMENTED : RK_INVALID_ARGUMENT;

        print_message("  %s\n", bad_rows[i].label);
        assert_fails(load(&examples, bad_rows[i].text, config, digits), code, bad_rows[i].message);
        assert_null(examples);
    }
    rk_chat_destroy(chat);
}

static const struct {
    const char *label, *source, *message;
} bad_templates[] = {
    {"the generation prompt is not what answers begin with",
     "{% for m in messages %}{{ 8 if m.role == 'assistant' else 7 }}{{ m.content }}{% endfor %}"
     "{% if add_generation_prompt %}80{% endif %}",
     "messages: [1]: the text before the answer: byte 3 "},
    {"an answer is other text later",
     "{% for m in messages %}{{ m.content }}{% if loop.last and not add_generation_prompt %}9{% endif %}"
     "{% endfor %}",
     "messages: [1]: the text of the messages up to the answer: byte 2 "},
    {"no template", NULL, "a list of messages needs a chat template"},
};

static void test_create_template_that_changes_what_it_wrote_is_refused(void **state)
{
    static const char text[] =
        "{\"messages\": [" USER("1") "," ASSISTANT("2") "," USER("3") "," ASSISTANT("4") "]}";

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(bad_templates); i++) {
        struct rk_examples *examples = NULL;
        struct rk_chat *chat = NULL;

        print_message("  %s\n", bad_templates[i].label);
        if (bad_templates[i].source)
            assert_ok(
                rk_chat_create_text(&chat, bad_templates[i].source, strlen(bad_templates[i].source), "t"));
        assert_fails(load(&examples, text, (struct rk_examples_config){.eos_id = -1, .chat = chat}, digits),
                     RK_INVALID_ARGUMENT, bad_templates[i].message);
        rk_chat_destroy(chat);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create_conversations_have_the_masks_of_verl_and_transformers),
        cmocka_unit_test(test_create_prompt_and_response_texts),
        cmocka_unit_test(test_create_every_form_of_a_row),
        cmocka_unit_test(test_create_generation_blocks_of_the_completion_count),
        cmocka_unit_test(test_create_long_rows_are_cut_left_out_or_refused),
        cmocka_unit_test(test_at_epochs_are_permutations_of_the_first_samples),
        cmocka_unit_test(test_create_bad_row_is_named),
        cmocka_unit_test(test_create_template_that_changes_what_it_wrote_is_refused),
    };

    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
