/* Datasets: reading, truncation, filtering, order per epoch, and bad lines named by file and line. */
#include "rl/rk_dataset.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_log.h"
#include "base/rk_str.h"
#include "tests/support/test.h"

static struct rk_tokenizer *tokenizer;

static int open_tokenizer(void **state)
{
    char *path = rk_test_fixture_path("../examples/digits/tokenizer.json");

    (void)state;
    assert_ok(rk_tokenizer_create_file(&tokenizer, path));
    rk_free(path);
    return 0;
}

static int close_tokenizer(void **state)
{
    (void)state;
    rk_tokenizer_destroy(tokenizer);
    return 0;
}

static struct rk_status *load(struct rk_dataset **out, const char *text, struct rk_dataset_config config)
{
    char *path = rk_test_temp_path("data.jsonl");
    const char *files[] = {path, NULL};
    struct rk_status *st;

    rk_test_write_file(path, text, strlen(text));
    config.files = files;
    if (!config.prompt_key)
        config.prompt_key = "prompt";
    if (!config.truncation)
        config.truncation = "error";
    if (!config.max_prompt_length)
        config.max_prompt_length = 8;
    if (!config.max_samples)
        config.max_samples = -1;
    st = rk_dataset_create(out, &config, tokenizer);
    rk_free(path);
    return st;
}

static void test_create_rows_hold_what_the_lines_say(void **state)
{
    static const char text[] =
        "{\"prompt\": \"1,2\", \"data_source\": \"d\", \"reward_model\": {\"ground_truth\": \"3\"}, "
        "\"extra_info\": {\"k\": 1}}\n\n"
        "{\"prompt\": \"4\", \"reward_model\": {\"ground_truth\": {\"a\": [1]}}}\n";
    struct rk_dataset *dataset = NULL;
    const struct rk_dataset_row *row;

    (void)state;
    assert_ok(load(&dataset, text, (struct rk_dataset_config){0}));
    assert_int_equal(rk_dataset_num_rows(dataset), 2);
    row = rk_dataset_at(dataset, 0, 0);
    assert_string_equal(row->prompt, "1,2");
    assert_int_equal(row->prompt_len, 3);
    assert_int_equal(row->prompt_ids[1], 12);
    assert_string_equal(row->data_source, "d");
    assert_string_equal(row->ground_truth, "3");
    assert_int_equal(rk_json_as_int(rk_json_find(row->extra_info, "k"), 0), 1);
    row = rk_dataset_at(dataset, 5, 1);
    assert_string_equal(row->ground_truth, "{\"a\":[1]}");
    assert_int_equal(rk_json_type(row->ground_truth_json), RK_JSON_OBJECT);
    assert_null(row->columns);
    assert_string_equal(row->data_source, "");
    assert_null(row->extra_info);
    assert_int_equal(row->index, 1);
    rk_dataset_destroy(dataset);
}

static const struct {
    const char *truncation;
    const char *kept; /* of "0123456" to 4 */
} truncation_cases[] = {{"left", "3456"}, {"right", "0123"}, {"middle", "0156"}};

/* Goal: with keep_columns a row has all members but the prompt, with their types. */
static void test_create_rows_keep_their_columns(void **state)
{
    static const char text[] = "{\"q\": \"1\", \"prompt\": \"a column\", \"answer\": 42}\n";
    struct rk_dataset *dataset = NULL;
    const struct rk_dataset_row *row;

    (void)state;
    assert_ok(load(&dataset, text, (struct rk_dataset_config){.prompt_key = "q", .keep_columns = true}));
    row = rk_dataset_at(dataset, 0, 0);
    assert_int_equal(rk_json_count(row->columns), 2);
    assert_int_equal(rk_json_as_int(rk_json_find(row->columns, "answer"), 0), 42);
    assert_string_equal(rk_json_as_string(rk_json_find(row->columns, "prompt"), ""), "a column");
    assert_null(row->messages);
    assert_null(row->ground_truth_json);
    assert_string_equal(row->ground_truth, "");
    rk_dataset_destroy(dataset);
}

static void test_create_overlong_prompt_is_cut_filtered_or_refused(void **state)
{
    static const char text[] = "{\"prompt\": \"0123456\"}\n{\"prompt\": \"12\"}\n";
    struct rk_dataset *dataset = NULL;

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(truncation_cases); i++) {
        const struct rk_dataset_row *row;

        assert_ok(load(&dataset, text,
                       (struct rk_dataset_config){.truncation = truncation_cases[i].truncation,
                                                  .max_prompt_length = 4}));
        row = rk_dataset_at(dataset, 0, 0);
        assert_int_equal(row->prompt_len, 4);
        assert_int_equal(rk_dataset_counts(dataset)->truncated, 1);
        for (int t = 0; t < 4; t++)
            assert_int_equal(row->prompt_ids[t], truncation_cases[i].kept[t] - '0' + 2);
        rk_dataset_destroy(dataset);
    }
    assert_ok(load(&dataset, text,
                   (struct rk_dataset_config){.filter_overlong_prompts = true, .max_prompt_length = 4}));
    assert_int_equal(rk_dataset_num_rows(dataset), 1);
    assert_int_equal(rk_dataset_counts(dataset)->read, 2);
    assert_int_equal(rk_dataset_counts(dataset)->overlong, 1);
    rk_dataset_destroy(dataset);
    assert_fails(load(&dataset, text, (struct rk_dataset_config){.max_prompt_length = 4}),
                 RK_INVALID_ARGUMENT, "data.jsonl:1: prompt: prompt has 7 tokens");
    assert_null(dataset);
}

/* Goal: rows that repeat a prompt or the members beside it have their memory once, and stay rows of their
 * own. */
static void test_create_repeated_rows_share_their_memory(void **state)
{
    static const char text[] = "{\"prompt\": \"1,2\", \"extra_info\": {\"k\": 1}}\n"
                               "{\"prompt\": \"1,2\", \"extra_info\": {\"k\": 2}}\n"
                               "{\"extra_info\": {\"k\": 1}, \"prompt\": \"3\"}\n";
    const struct rk_dataset_row *rows[3];
    struct rk_dataset *dataset = NULL;

    (void)state;
    assert_ok(load(&dataset, text, (struct rk_dataset_config){.keep_columns = true}));
    for (int64_t i = 0; i < 3; i++) {
        rows[i] = rk_dataset_at(dataset, 0, i);
        assert_int_equal(rows[i]->index, i);
        assert_int_equal(rows[i]->place.number, i + 1);
    }
    assert_ptr_equal(rows[0]->prompt_ids, rows[1]->prompt_ids);
    assert_ptr_not_equal(rows[0]->extra_info, rows[1]->extra_info);
    assert_ptr_equal(rows[0]->extra_info, rows[2]->extra_info);
    assert_string_equal(rows[2]->prompt, "3");
    assert_int_equal(rk_json_as_int(rk_json_find_path(rows[1]->columns, "extra_info.k"), 0), 2);
    rk_dataset_destroy(dataset);
}

/* Goal: every epoch is a permutation, the same for the same seed, another for the next epoch. */
static void test_at_shuffled_epochs_are_reproducible_permutations(void **state)
{
    struct rk_str text = {0};
    struct rk_dataset *a = NULL, *b = NULL;
    bool seen[2][64] = {{false}};
    int num_moved = 0;

    (void)state;
    for (int i = 0; i < 64; i++)
        rk_str_appendf(&text, "{\"prompt\": \"%d\"}\n", i);
    assert_ok(load(&a, rk_str_text(&text), (struct rk_dataset_config){.shuffle = true, .seed = 7}));
    assert_ok(load(&b, rk_str_text(&text), (struct rk_dataset_config){.shuffle = true, .seed = 7}));
    for (int64_t epoch = 0; epoch < 2; epoch++) {
        for (int64_t i = 0; i < 64; i++) {
            int64_t index = rk_dataset_at(a, epoch, i)->index;

            assert_int_equal(index, rk_dataset_at(b, epoch, i)->index);
            assert_false(seen[epoch][index]);
            seen[epoch][index] = true;
        }
    }
    for (int64_t i = 0; i < 64; i++) {
        int64_t first = rk_dataset_at(a, 0, i)->index;

        num_moved += first != rk_dataset_at(a, 1, i)->index;
    }
    assert_true(num_moved > 32);
    rk_dataset_destroy(a);
    rk_dataset_destroy(b);
    rk_str_fini(&text);
}

static const struct {
    const char *label, *text, *message;
} bad_lines[] = {
    {"not JSON", "{\"prompt\": \"1\"}\nhello\n", "data.jsonl:2"},
    {"no prompt", "{\"x\": 1}\n",
     "data.jsonl:1: prompt: expected text or a list of messages, got nothing; "
     "there are: x"},
    {"a number", "{\"prompt\": 5}\n", "got an integer"},
    {"empty prompt", "{\"prompt\": \"\"}\n", "the prompt is empty"},
    {"letter without token", "{\"prompt\": \"1x\"}\n", "0x78"},
    {"a list, not an object", "{\"prompt\": \"1\"}\n\n[1]\n", "data.jsonl:3: expected a JSON object"},
    {"reward_model is text", "{\"prompt\": \"1\", \"reward_model\": \"rule\"}\n",
     "data.jsonl:1: reward_model"},
    {"cut tools", "{\"prompt\": [{\"role\": \"user\", \"content\": \"1\"}], \"tools\": \"[{\"}\n",
     "tools: expected a list of JSON schemas, or the JSON text of one: [0]: the text ends"},
    {"source is a list", "{\"prompt\": \"1\", \"data_source\": []}\n", "data_source"},
    {"nothing at all", "\n\n", "no prompts"},
};

static void test_create_bad_line_is_named(void **state)
{
    struct rk_dataset *dataset = NULL;

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(bad_lines); i++) {
        print_message("  %s\n", bad_lines[i].label);
        assert_fails(load(&dataset, bad_lines[i].text, (struct rk_dataset_config){0}), RK_INVALID_ARGUMENT,
                     bad_lines[i].message);
    }
}

/* Goal: zero bytes, which a machine crash can leave in place of rows, are not treated as an empty line. */
static void test_create_line_of_zeros_is_named(void **state)
{
    static const char text[] = "{\"prompt\": \"1\"}\n\0\0\0\n{\"prompt\": \"2\"}\n";
    char *path = rk_test_temp_path("zeros.jsonl");
    const char *files[] = {path, NULL};
    struct rk_dataset_config config = {.files = files,
                                       .prompt_key = "prompt",
                                       .truncation = "error",
                                       .max_prompt_length = 8,
                                       .max_samples = -1};
    struct rk_dataset *dataset;

    (void)state;
    rk_test_write_file(path, text, sizeof(text) - 1);
    assert_fails(rk_dataset_create(&dataset, &config, tokenizer), RK_INVALID_ARGUMENT, "zeros.jsonl:2");
    rk_free(path);
}

/* --- JSON arrays --- */

static void test_create_array_of_rows_is_read_like_lines(void **state)
{
    static const char text[] =
        " \n[\n {\"prompt\": \"1,2\", \"data_source\": \"a]},\\\"[\"},\n\n {\"prompt\": \"3\",\n"
        "  \"extra_info\": {\"l\": [[1], {}]}}\n, {\"prompt\":\"4\"}]\n\n";
    struct rk_dataset *dataset = NULL;

    (void)state;
    assert_ok(load(&dataset, text, (struct rk_dataset_config){0}));
    assert_int_equal(rk_dataset_num_rows(dataset), 3);
    assert_string_equal(rk_dataset_at(dataset, 0, 0)->data_source, "a]},\"[");
    assert_string_equal(rk_dataset_at(dataset, 0, 1)->prompt, "3");
    assert_int_equal(rk_json_count(rk_json_find(rk_dataset_at(dataset, 0, 1)->extra_info, "l")), 2);
    assert_int_equal(rk_dataset_at(dataset, 0, 2)->index, 2);
    rk_dataset_destroy(dataset);
    assert_ok(load(&dataset, text, (struct rk_dataset_config){.max_samples = 1}));
    assert_int_equal(rk_dataset_num_rows(dataset), 1);
    rk_dataset_destroy(dataset);
}

static const struct {
    const char *label, *text, *message;
} bad_arrays[] = {
    {"bad row", "[{\"prompt\": \"1\"},\n{\"prompt\": 5}]", "data.jsonl:2: prompt"},
    {"row that begins on line 3", "[\n{\"prompt\": \"1\"},\n{\n\"prompt\": \"\"}\n]",
     "data.jsonl:3: prompt: the prompt is empty"},
    {"no end", "[{\"prompt\": \"1\"}", "data.jsonl:1: the file ends inside of a row"},
    {"no end of a string", "[{\"prompt\": \"1}]\n", "data.jsonl:1: the file ends inside of a row"},
    {"comma at the end", "[{\"prompt\": \"1\"},\n]", "data.jsonl:2"},
    {"two commas", "[{\"prompt\": \"1\"},,{\"prompt\": \"1\"}]", "data.jsonl:1"},
    {"no comma", "[{\"prompt\": \"1\"} {\"prompt\": \"1\"}]", "data.jsonl:1"},
    {"a number", "[5]", "data.jsonl:1: expected a JSON object"},
    {"empty", "[ ]", "no prompts"},
    {"text behind it", "[{\"prompt\": \"1\"}]\nx", "data.jsonl:2: "},
};

static void test_create_bad_array_is_named(void **state)
{
    struct rk_dataset *dataset = NULL;

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(bad_arrays); i++) {
        print_message("  %s\n", bad_arrays[i].label);
        assert_fails(load(&dataset, bad_arrays[i].text, (struct rk_dataset_config){0}), RK_INVALID_ARGUMENT,
                     bad_arrays[i].message);
        assert_null(dataset);
    }
}

/* --- messages --- */

#define TEMPLATE                                                                                           \
    "{% for m in messages %}{{ m.role | length }},{{ m.content if m.content is string else "               \
    "m.content[0].text }}"                                                                                 \
    "{{ ':' if not loop.last }}{% endfor %}{{ ',' ~ tools | length if tools }}{{ ':' ~ digit if digit is " \
    "defined }}"                                                                                           \
    "{{ raise_exception('no user') if messages[0].role != 'user' }}"

static struct rk_chat *make_chat(void)
{
    struct rk_chat *chat;

    assert_ok(rk_chat_create_text(&chat, TEMPLATE, strlen(TEMPLATE), "template"));
    return chat;
}

static void test_create_messages_are_rendered_by_the_template(void **state)
{
    static const char text[] =
        "{\"prompt\": [{\"role\": \"user\", \"content\": \"12\"}, {\"role\": \"assistant\", \"content\": "
        "[{\"type\": \"text\", \"text\": \"3\"}]}], \"tools\": [{\"name\": \"f\"}], \"images\": [], "
        "\"agent_name\": \"x\"}\n"
        "{\"prompt\": \"5\"}\n";
    struct rk_json *kwargs = rk_json_new_object();
    struct rk_chat *chat = make_chat();
    struct rk_dataset *dataset;
    const struct rk_dataset_row *row;

    (void)state;
    rk_json_set(kwargs, "digit", rk_json_new_int(7));
    assert_ok(load(&dataset, text,
                   (struct rk_dataset_config){.chat = chat, .chat_kwargs = kwargs, .max_prompt_length = 32}));
    row = rk_dataset_at(dataset, 0, 0);
    assert_string_equal(row->prompt, "4,12:9,3,1:7");
    assert_int_equal(row->prompt_len, 12);
    assert_string_equal(rk_dataset_at(dataset, 0, 1)->prompt, "5"); /* the template is not applied to text */
    rk_dataset_destroy(dataset);
    assert_fails(load(&dataset, text, (struct rk_dataset_config){.chat = chat, .max_prompt_length = 4}),
                 RK_INVALID_ARGUMENT, "data.jsonl:1: prompt: prompt has 10 tokens");
    rk_chat_destroy(chat);
    rk_json_free(kwargs);
}

static void count_warnings(rk_log_level_t level, const char *line, void *user)
{
    if (level == RK_LOG_WARN && strstr(line, "2 of 3 prompts") && strstr(line, "data.jsonl"))
        (*(int *)user)++;
}

static void test_create_text_for_a_model_with_a_template_warns_once(void **state)
{
    static const char text[] = "{\"prompt\": \"1\"}\n{\"prompt\": \"2\"}\n"
                               "{\"prompt\": [{\"role\": \"user\", \"content\": \"1\"}]}\n";
    struct rk_chat *chat = make_chat();
    struct rk_dataset *dataset;
    int num_warnings = 0;

    (void)state;
    rk_log_set_sink(count_warnings, &num_warnings);
    assert_ok(load(&dataset, text, (struct rk_dataset_config){.chat = chat}));
    rk_log_set_sink(NULL, NULL);
    assert_int_equal(num_warnings, 1);
    rk_dataset_destroy(dataset);
    rk_chat_destroy(chat);
}

static const struct {
    const char *label, *text, *message;
    rk_code_t code;
} bad_messages[] = {
    {"no messages", "{\"prompt\": []}", "data.jsonl:1: prompt: the list of messages is empty",
     RK_INVALID_ARGUMENT},
    {"text", "{\"prompt\": [\"hi\"]}", "prompt: [0]: expected {\"role\"", RK_INVALID_ARGUMENT},
    {"no role", "{\"prompt\": [{\"content\": \"1\"}]}", "[0]: role: expected a string, got nothing",
     RK_INVALID_ARGUMENT},
    {"role is a number", "{\"prompt\": [{\"role\": 1, \"content\": \"1\"}]}",
     "role: expected a string, got an integer", RK_INVALID_ARGUMENT},
    {"no content", "{\"prompt\": [{\"role\": \"user\"}]}", "[0]: content: expected text",
     RK_INVALID_ARGUMENT},
    {"second message",
     "{\"prompt\": [{\"role\": \"user\", \"content\": \"1\"}, {\"role\": \"user\", \"content\": 1}]}",
     "[1]: content: expected text", RK_INVALID_ARGUMENT},
    {"image", "{\"prompt\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]}",
     "[0]: content[0]: parts of type 'image_url'", RK_UNIMPLEMENTED},
    {"part without type", "{\"prompt\": [{\"role\": \"user\", \"content\": [{}]}]}", "content[0]: expected",
     RK_INVALID_ARGUMENT},
    {"part without text", "{\"prompt\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\"}]}]}",
     "text: expected a string", RK_INVALID_ARGUMENT},
    {"images", "{\"prompt\": \"1\", \"images\": [\"a.png\"]}", "data.jsonl:1: images", RK_UNIMPLEMENTED},
    {"tools", "{\"prompt\": [{\"role\": \"user\", \"content\": \"1\"}], \"tools\": \"f\"}",
     "tools: expected a list", RK_INVALID_ARGUMENT},
    {"a tool", "{\"prompt\": [{\"role\": \"user\", \"content\": \"1\"}], \"tools\": [1]}",
     "tools[0]: expected", RK_INVALID_ARGUMENT},
    {"raised", "{\"prompt\": [{\"role\": \"bot\", \"content\": \"1\"}]}",
     "data.jsonl:1: prompt: template:1: the template raised: no user", RK_INVALID_ARGUMENT},
};

static void test_create_bad_messages_are_named(void **state)
{
    struct rk_chat *chat = make_chat();
    struct rk_dataset *dataset;

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(bad_messages); i++) {
        print_message("  %s\n", bad_messages[i].label);
        assert_fails(load(&dataset, bad_messages[i].text,
                          (struct rk_dataset_config){.chat = chat, .max_prompt_length = 99}),
                     bad_messages[i].code, bad_messages[i].message);
    }
    rk_chat_destroy(chat);
}

static void test_create_messages_without_a_template_are_refused(void **state)
{
    static const char text[] =
        "{\"prompt\": \"1\"}\n{\"prompt\": [{\"role\": \"user\", \"content\": \"1\"}]}\n";
    struct rk_dataset *dataset;

    (void)state;
    assert_fails(load(&dataset, text, (struct rk_dataset_config){.template_dir = "/models/base"}),
                 RK_INVALID_ARGUMENT,
                 "data.jsonl:2: prompt: a list of messages needs a chat template, and /models/base has none");
}

/* Goal: a read error is not treated as end of file, so that no run trains on a part of the data. */
static void test_create_unreadable_file_is_named(void **state)
{
    char *path = rk_test_temp_path("good.jsonl");
    const char *files[] = {path, rk_test_temp_dir(), NULL};
    struct rk_dataset_config config = {.files = files,
                                       .prompt_key = "prompt",
                                       .truncation = "error",
                                       .max_prompt_length = 8,
                                       .max_samples = -1};
    struct rk_dataset *dataset;

    (void)state;
    rk_test_write_file(path, "{\"prompt\": \"1\"}\n", 16);
    assert_fails(rk_dataset_create(&dataset, &config, tokenizer), RK_INVALID_ARGUMENT, rk_test_temp_dir());
    rk_free(path);
}

static void test_create_missing_file_is_not_found(void **state)
{
    const char *files[] = {"/nonexistent/data.jsonl", NULL};
    struct rk_dataset_config config = {.files = files,
                                       .prompt_key = "prompt",
                                       .max_prompt_length = 8,
                                       .truncation = "error",
                                       .max_samples = -1};
    struct rk_dataset *dataset = NULL;

    (void)state;
    assert_fails(rk_dataset_create(&dataset, &config, tokenizer), RK_NOT_FOUND, "/nonexistent/data.jsonl");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create_rows_hold_what_the_lines_say),
        cmocka_unit_test(test_create_rows_keep_their_columns),
        cmocka_unit_test(test_create_overlong_prompt_is_cut_filtered_or_refused),
        cmocka_unit_test(test_at_shuffled_epochs_are_reproducible_permutations),
        cmocka_unit_test(test_create_bad_line_is_named),
        cmocka_unit_test(test_create_line_of_zeros_is_named),
        cmocka_unit_test(test_create_array_of_rows_is_read_like_lines),
        cmocka_unit_test(test_create_bad_array_is_named),
        cmocka_unit_test(test_create_messages_are_rendered_by_the_template),
        cmocka_unit_test(test_create_repeated_rows_share_their_memory),
        cmocka_unit_test(test_create_text_for_a_model_with_a_template_warns_once),
        cmocka_unit_test(test_create_bad_messages_are_named),
        cmocka_unit_test(test_create_messages_without_a_template_are_refused),
        cmocka_unit_test(test_create_unreadable_file_is_named),
        cmocka_unit_test(test_create_missing_file_is_not_found),
    };

    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
