/* Texts of a reward model in its own tokens, and their scores, against transformers
 * (tests/golden/gen/make_reward_model.py). */
#include "rl/rk_flows.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "tests/support/models.h"
#include "tests/support/test.h"

#define CASES_BYTES_MAX (1u << 20)

static void check_ids(const struct rk_tokenizer_ids *ids, const struct rk_json *expected)
{
    assert_int_equal(ids->count, rk_json_count(expected));
    for (int64_t i = 0; i < ids->count; i++)
        assert_int_equal(ids->items[i], rk_json_as_int(rk_json_at(expected, i), -1));
}

/* Goal: messages and a response are rendered and encoded as by transformers' apply_chat_template and verl, a
 * text prompt as by its tokenizer, and the engine's scores of these tokens equal those of transformers'
 * model. */
static void test_reward_texts_and_scores_match_transformers(void **state)
{
    char *dir = rk_test_fixture_path("golden/reward_model");
    char *path = rk_test_fixture_path("golden/reward_model/cases.json");
    char *tokenizer = rk_test_fixture_path("golden/tokenizers/llama3.json");
    struct rk_flow_reward_model model = {.path = dir};
    struct rk_test_model_spec spec = {.dir = dir, .head = "score", .dtype = RK_DTYPE_F32};
    double scores[32], expected[32];
    struct rk_test_model test;
    struct rk_json *cases;
    int64_t count;

    (void)state;
    assert_ok(rk_json_parse_file(&cases, path, CASES_BYTES_MAX, 0));
    assert_ok(rk_tokenizer_create_file(&model.tokenizer, tokenizer));
    assert_ok(rk_chat_create_dir(&model.chat, dir, NULL));
    assert_ok(rk_test_model_open(&test, &spec));
    count = rk_json_count(cases);
    assert_true(count > 0);
    assert_true(count <= (int64_t)RK_ARRAY_LEN(scores));
    for (int64_t i = 0; i < count; i++) {
        const struct rk_json *json = rk_json_at(cases, i), *response = rk_json_find(json, "response");
        struct rk_dataset_row row = {.messages = rk_json_find(json, "messages"),
                                     .prompt = rk_json_as_string(rk_json_find(json, "prompt"), ""),
                                     .prompt_bytes = rk_json_string_bytes(rk_json_find(json, "prompt"))};
        struct rk_reward_item item = {.solution_str = rk_json_as_string(response, NULL),
                                      .solution_bytes = rk_json_string_bytes(response)};
        struct rk_tokenizer_ids ids = {0};

        print_message("%lld\n", (long long)i);
        assert_ok(rk_flow_reward_text(&ids, &model, &row, &item));
        check_ids(&ids, rk_json_find(json, "ids"));
        assert_ok(rk_test_score(&scores[i], &test, ids.items, ids.count));
        expected[i] = rk_json_as_real(rk_json_find(json, "score"), 0.0);
        rk_free(ids.items);
    }
    assert_below("scores", rk_test_error_by_max(scores, expected, count), RK_TOL_F32_SUM);
    rk_test_model_close(&test);
    rk_json_free(cases);
    rk_flow_reward_model_fini(&model); /* dir, too */
    rk_free(tokenizer);
    rk_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reward_texts_and_scores_match_transformers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
