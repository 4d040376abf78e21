/* What a flow reads of a model's configuration. */
#include "driver-cli/flows/flows_internal.h"

#include <string.h>
#include <sys/stat.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "driver-cli/job_internal.h"
#include "tests/support/test.h"

/* Goal: ids of -1 are none, as in configurations that say so; padding falls back to the end token, then to 0.
 */
static void test_flow_inputs_token_ids(void **state)
{
    static const struct {
        const char *config, *eos;
        int64_t pad_id;
    } cases[] = {
        {"{\"eos_token_id\": 3, \"pad_token_id\": 2}", "[3]", 2},
        {"{\"eos_token_id\": 3, \"pad_token_id\": -1}", "[3]", 3},
        {"{\"eos_token_id\": [4, 3], \"pad_token_id\": null}", "[4,3]", 4},
        {"{\"eos_token_id\": 3}", "[3]", 3},
        {"{\"eos_token_id\": -1, \"pad_token_id\": -1}", "[]", 0},
        {"{\"eos_token_id\": null}", "[]", 0},
        {"{}", "[]", 0},
    };
    char *config = rk_test_temp_path("config.json"), *data = rk_test_temp_path("data.jsonl");
    char *tokenizer = rk_test_fixture_path("../examples/digits/tokenizer.json");
    char *const overrides[] = {
        rk_format("data.train_files=%s", data), rk_format(RK_JOB_MODEL "hf_config_path=%s", config),
        rk_format(RK_JOB_MODEL "tokenizer_path=%s", tokenizer), rk_strdup("+reward.name=digits")};
    static const char row[] = "{\"prompt\": \"1\", \"reward_model\": {\"ground_truth\": \"1\"}}\n";

    (void)state;
    rk_test_write_file(data, row, strlen(row));
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_flow_inputs inputs;
        struct rk_config *job;
        char *eos;

        print_message("%s\n", cases[i].config);
        rk_test_write_file(config, cases[i].config, strlen(cases[i].config));
        assert_ok(rk_job_load(&job, NULL, (const char *const *)overrides, RK_ARRAY_LEN(overrides)));
        assert_ok(rk_flow_inputs_load(&inputs, job, "/"));
        eos = rk_json_dump(inputs.eos_ids, 0, false);
        assert_string_equal(eos, cases[i].eos);
        assert_int_equal(inputs.pad_id, cases[i].pad_id);
        rk_free(eos);
        rk_flow_inputs_fini(&inputs);
        rk_config_destroy(job);
    }
    for (size_t i = 0; i < RK_ARRAY_LEN(overrides); i++)
        rk_free(overrides[i]);
    rk_free(tokenizer);
    rk_free(data);
    rk_free(config);
}

/* Goal: a teacher whose vocabulary is not the student's is refused with the file and what differs; one that
 * this machine does not have is left to the daemons. */
static void test_flow_inputs_teacher_has_the_vocabulary_of_the_student(void **state)
{
    static const struct {
        const char *size;
        const char *from, *to; /* in tokenizer.json */
        const char *message;   /* NULL: fine */
    } cases[] = {
        {"14", NULL, NULL, NULL},
        {"15", NULL, NULL, "config.json: vocab_size: expected 14, that of the student, got 15"},
        {"14", "\"7\": ", "\"x\": ", "tokenizer.json: token 9: expected \"7\""},
        {"14", "\"7\": 9", "\"7\": 14", "tokenizer.json: expected 14 tokens"},
        {"14", "{", "", "tokenizer.json"},
    };
    char *dir = rk_test_temp_path("teacher"), *data = rk_test_temp_path("data.jsonl");
    char *tokenizer = rk_test_fixture_path("../examples/digits/tokenizer.json");
    char *config = rk_path_join(dir, "config.json"), *teacher = rk_path_join(dir, "tokenizer.json");
    char *text = rk_test_read_file(tokenizer, NULL);
    char *const overrides[] = {
        rk_format("data.train_files=%s", data),
        rk_strdup(RK_JOB_MODEL "hf_config_path=" RK_TEST_SOURCE_DIR "/examples/digits/config.json"),
        rk_format(RK_JOB_MODEL "tokenizer_path=%s", tokenizer),
        rk_strdup("+reward.name=digits"),
        rk_strdup("distillation.enabled=true"),
        rk_format(RK_JOB_TEACHER "model.path=%s", dir)};
    static const char row[] = "{\"prompt\": \"1\", \"reward_model\": {\"ground_truth\": \"1\"}}\n";
    struct rk_flow_inputs inputs;
    struct rk_config *job;

    (void)state;
    rk_test_write_file(data, row, strlen(row));
    assert_ok(rk_job_load(&job, NULL, (const char *const *)overrides, RK_ARRAY_LEN(overrides)));
    assert_ok(rk_flow_inputs_load(&inputs, job, "/"));
    assert_string_equal(inputs.teacher_path, dir);
    rk_flow_inputs_fini(&inputs);
    assert_int_equal(mkdir(dir, 0700), 0);
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        const char *at = cases[i].from ? strstr(text, cases[i].from) : text;
        size_t skipped = cases[i].from ? strlen(cases[i].from) : 0;
        char *size = rk_format("{\"vocab_size\": %s}", cases[i].size), *changed;

        assert_non_null(at);
        changed = rk_format("%.*s%s%s", (int)(at - text), text, cases[i].to ? cases[i].to : "", at + skipped);
        rk_test_write_file(config, size, strlen(size));
        rk_test_write_file(teacher, changed, strlen(changed));
        if (cases[i].message)
            assert_fails(rk_flow_inputs_load(&inputs, job, "/"), RK_INVALID_ARGUMENT, cases[i].message);
        else
            assert_ok(rk_flow_inputs_load(&inputs, job, "/"));
        rk_flow_inputs_fini(&inputs);
        rk_free(changed);
        rk_free(size);
    }
    rk_config_destroy(job);
    for (size_t i = 0; i < RK_ARRAY_LEN(overrides); i++)
        rk_free(overrides[i]);
    rk_free(text);
    rk_free(teacher);
    rk_free(config);
    rk_free(tokenizer);
    rk_free(data);
    rk_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flow_inputs_token_ids),
        cmocka_unit_test(test_flow_inputs_teacher_has_the_vocabulary_of_the_student),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
