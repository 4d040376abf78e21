/* Examples of a job: read with its keys, and as columns of a batch. */
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "rl/flows/steps_internal.h"
#include "rl/rk_job.h"
#include "tests/support/test.h"

static struct rk_status *load(struct rk_flow_inputs *inputs, struct rk_config **job, const char *algorithm,
                              const char *row, const char *more)
{
    char *data = rk_test_temp_path("data.jsonl");
    char *digits = rk_test_fixture_path("../examples/digits");
    char *const overrides[] = {rk_format("data.train_files=%s", data),
                               rk_format("data.val_files=%s", data),
                               rk_format(RK_JOB_MODEL "hf_config_path=%s/config.json", digits),
                               rk_format(RK_JOB_MODEL "tokenizer_path=%s/tokenizer.json", digits),
                               rk_format("algorithm=%s", algorithm),
                               rk_strdup(more ? more : "data.shuffle=false")};
    struct rk_status *st;

    rk_test_write_file(data, row, strlen(row));
    assert_ok(rk_job_load(job, NULL, (const char *const *)overrides, RK_ARRAY_LEN(overrides)));
    st = rk_flow_inputs_load(inputs, *job, "/");
    for (size_t i = 0; i < RK_ARRAY_LEN(overrides); i++)
        rk_free(overrides[i]);
    rk_free(digits);
    rk_free(data);
    return st;
}

static void expect_column(const struct rk_batch *batch, const char *name, int64_t width,
                          const int64_t *expected)
{
    int64_t shape[2];
    const void *data;

    assert_ok(rk_batch_get_dense(batch, name, RK_DTYPE_I64, 2, shape, &data));
    assert_int_equal(shape[1], width);
    for (int64_t i = 0; i < shape[0] * width; i++) {
        if (((const int64_t *)data)[i] != expected[i])
            fail_msg("%s[%lld]=%lld, expected %lld", name, (long long)i,
                     (long long)((const int64_t *)data)[i], (long long)expected[i]);
    }
}

/* Goal: a pair becomes two rows, padded on the right; the response part is all columns except the first.
 * Digit d has the id d + 2, the end token 1, padding 0. */
static void test_collate_pads_on_the_right(void **state)
{
    static const int64_t ids[] = {3, 4, 5, 1, 0, 3, 4, 6, 7, 1}, attention[] = {1, 1, 1, 1, 0, 1, 1, 1, 1, 1};
    static const int64_t positions[] = {0, 1, 2, 3, 3, 0, 1, 2, 3, 4};
    static const int64_t mask[] = {0, 0, 1, 1, 0, 0, 0, 1, 1, 1}, responses[] = {4, 5, 1, 0, 4, 6, 7, 1};
    static const int64_t response_mask[] = {0, 1, 1, 0, 0, 1, 1, 1};
    const struct rk_example *example;
    struct rk_flow_inputs inputs;
    struct rk_config *job;
    struct rk_batch *batch;

    (void)state;
    assert_ok(
        load(&inputs, &job, "dpo", "{\"prompt\": \"12\", \"chosen\": \"3\", \"rejected\": \"45\"}\n", NULL));
    assert_int_equal(rk_flow_inputs_num_rows(&inputs), 1);
    assert_int_equal(rk_examples_num_rows(rk_flow_example_inputs(&inputs)->val), 1);
    example = rk_examples_at(rk_flow_example_inputs(&inputs)->train, 0, 0);
    assert_ok(rk_flow_collate(&batch, &example, 1, 0));
    assert_int_equal(rk_batch_num_rows(batch), 2);
    expect_column(batch, "input_ids", 5, ids);
    expect_column(batch, "attention_mask", 5, attention);
    expect_column(batch, "position_ids", 5, positions);
    expect_column(batch, "loss_mask", 5, mask);
    expect_column(batch, "responses", 4, responses);
    expect_column(batch, "response_mask", 4, response_mask);
    rk_batch_destroy(batch);
    rk_flow_inputs_fini(&inputs);
    rk_config_destroy(job);
}

static const struct {
    const char *label, *algorithm, *row, *more, *message;
} bad_inputs[] = {
    {"a conversation for dpo", "dpo", "{\"messages\": [{\"role\": \"user\", \"content\": \"1\"}]}\n", NULL,
     "data.train_files: "},
    {"a line that is no row", "sft", "{\"prompt\": \"1\", \"response\": \"2\"}\n[]\n", NULL,
     "data.jsonl:2: expected a JSON object"},
    {"other names", "sft", "{\"prompt\": \"1\", \"response\": \"2\"}\n", "data.response_key=answer",
     "data.jsonl:1: messages: expected a list of messages, or a prompt and a member answer, got nothing; "
     "there are: "},
    {"a chat without a template", "sft",
     "{\"chat\": [{\"role\": \"user\", \"content\": \"1\"}, {\"role\": \"assistant\", \"content\": "
     "\"2\"}]}\n",
     "data.messages_key=chat", "data.jsonl:1: chat: a list of messages needs a chat template"},
    {"too long", "sft", "{\"prompt\": \"1\", \"response\": \"2\"}\n", "data.max_length=2",
     "the sequence has 3 tokens, data.max_length is 2"},
};

static void test_inputs_load_bad_row_names_key_file_and_line(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(bad_inputs); i++) {
        struct rk_flow_inputs inputs;
        struct rk_config *job;

        print_message("  %s\n", bad_inputs[i].label);
        assert_fails(load(&inputs, &job, bad_inputs[i].algorithm, bad_inputs[i].row, bad_inputs[i].more),
                     RK_INVALID_ARGUMENT, bad_inputs[i].message);
        rk_config_destroy(job);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_collate_pads_on_the_right),
        cmocka_unit_test(test_inputs_load_bad_row_names_key_file_and_line),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
