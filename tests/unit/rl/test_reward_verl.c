/* The rewards by rule against verl's own functions: tests/golden/rewards/cases.json, made by
 * gen/make_rewards.py. A case is [response, ground truth, score], and for math_dapo the extracted answer, or
 * null.
 */
#include "rl/rk_reward.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "tests/support/test.h"

#define FILE_BYTES_MAX (4 << 20)

static struct rk_reward_item item_of(const struct rk_json *test)
{
    const struct rk_json *solution = rk_json_at(test, 0);

    return (struct rk_reward_item){.data_source = "",
                                   .prompt = "",
                                   .solution_str = rk_json_as_string(solution, NULL),
                                   .solution_bytes = rk_json_string_bytes(solution),
                                   .ground_truth = rk_json_as_string(rk_json_at(test, 1), NULL)};
}

static void check_pred(const char *name, int64_t i, const struct rk_json *test,
                       const struct rk_reward_result *result)
{
    const struct rk_json *pred = rk_json_find(result->extra, "pred");
    double acc = rk_json_as_real(rk_json_find(result->extra, "acc"), -1.0);

    if (rk_json_is_null(rk_json_at(test, 3)) ? pred != NULL : !rk_json_equal(pred, rk_json_at(test, 3)))
        fail_msg("%s, case %lld: found '%s'", name, (long long)i, rk_json_as_string(pred, "nothing"));
    assert_true(acc == (result->score > 0.0 ? 1.0 : 0.0));
}

static void check_group(const struct rk_json *group)
{
    const struct rk_json *config = rk_json_find(group, "config"), *cases = rk_json_find(group, "cases");
    const char *name = rk_json_as_string(rk_json_find(config, "name"), "");
    int64_t num_different = 0;
    struct rk_reward *reward;

    assert_ok(rk_reward_create(&reward, config, "."));
    assert_true(rk_json_count(cases) > 600);
    for (int64_t i = 0; i < rk_json_count(cases); i++) {
        const struct rk_json *test = rk_json_at(cases, i);
        struct rk_reward_item item = item_of(test);
        double expected = rk_json_as_real(rk_json_at(test, 2), -100.0);
        struct rk_reward_result result;

        assert_ok(rk_reward_score(reward, &item, 1, &result, NULL));
        if (result.outcome != RK_REWARD_SCORED || result.score != expected) {
            print_error("%s, case %lld: %g, expected %g: '%s' against '%s'\n", name, (long long)i,
                        result.score, expected, item.solution_str, item.ground_truth);
            num_different++;
        }
        if (rk_json_count(test) > 3)
            check_pred(name, i, test, &result);
        rk_reward_results_fini(&result, 1);
    }
    assert_int_equal(num_different, 0);
    rk_reward_destroy(reward);
}

static void test_rewards_score_as_verls_functions_do(void **state)
{
    char *path = rk_test_fixture_path("golden/rewards/cases.json");
    const struct rk_json *groups;
    struct rk_json *json;

    (void)state;
    assert_ok(rk_json_parse_file(&json, path, FILE_BYTES_MAX, RK_JSON_ALLOW_NUL));
    groups = rk_json_find(json, "groups");
    assert_int_equal(rk_json_count(groups), 6);
    for (int64_t i = 0; i < rk_json_count(groups); i++)
        check_group(rk_json_at(groups, i));
    rk_json_free(json);
    rk_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rewards_score_as_verls_functions_do),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
