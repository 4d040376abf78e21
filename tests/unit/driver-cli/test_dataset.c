/* Datasets: reading, truncation, filtering, order per epoch, and bad lines named by file and line. */
#include "driver-cli/rk_dataset.h"

#include <string.h>

#include "base/rk_alloc.h"
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
    assert_string_equal(row->data_source, "");
    assert_null(row->extra_info);
    assert_int_equal(row->index, 1);
    rk_dataset_destroy(dataset);
}

static const struct {
    const char *truncation;
    const char *kept; /* of "0123456" to 4 */
} truncation_cases[] = {{"left", "3456"}, {"right", "0123"}, {"middle", "0156"}};

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
        for (int t = 0; t < 4; t++)
            assert_int_equal(row->prompt_ids[t], truncation_cases[i].kept[t] - '0' + 2);
        rk_dataset_destroy(dataset);
    }
    assert_ok(load(&dataset, text,
                   (struct rk_dataset_config){.filter_overlong_prompts = true, .max_prompt_length = 4}));
    assert_int_equal(rk_dataset_num_rows(dataset), 1);
    rk_dataset_destroy(dataset);
    assert_fails(load(&dataset, text, (struct rk_dataset_config){.max_prompt_length = 4}),
                 RK_INVALID_ARGUMENT, "data.jsonl:1: prompt: prompt has 7 tokens");
    assert_null(dataset);
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
    {"no prompt", "{\"x\": 1}\n", "data.jsonl:1: prompt: expected text, got nothing"},
    {"a number", "{\"prompt\": 5}\n", "got an integer"},
    {"empty prompt", "{\"prompt\": \"\"}\n", "the prompt is empty"},
    {"letter without token", "{\"prompt\": \"1x\"}\n", "0x78"},
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

/* Goal: a file that cannot be read is no file that ends: nobody trains on half of the data. */
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
        cmocka_unit_test(test_create_overlong_prompt_is_cut_filtered_or_refused),
        cmocka_unit_test(test_at_shuffled_epochs_are_reproducible_permutations),
        cmocka_unit_test(test_create_bad_line_is_named),
        cmocka_unit_test(test_create_unreadable_file_is_named),
        cmocka_unit_test(test_create_missing_file_is_not_found),
    };

    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
