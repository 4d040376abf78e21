/* What a flow reads of a model's configuration. */
#include "driver-cli/flows/flows_internal.h"

#include <string.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flow_inputs_token_ids),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
