/* The rows of a batch without scores, and the metrics of additional values that a scorer returns. */
#include "rl/flows/steps_internal.h"

#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "rl/rk_job.h"
#include "tests/support/test.h"

enum { ROWS = 9, LEN = 3 };

/* Groups in any order: 0 keeps three of four rows, 1 one of two, 2 none of one, 3 both. */
static const int64_t group_of[ROWS] = {0, 1, 0, 3, 0, 2, 1, 3, 0};
static const bool is_unscored[ROWS] = {0, 1, 0, 0, 1, 1, 0, 0, 0};
static const bool is_gone[ROWS] = {0, 1, 0, 0, 1, 1, 1, 0, 0};

static void assert_metric(const struct rk_json *metrics, const char *name, double expected)
{
    const struct rk_json *value = rk_json_find(metrics, name);

    if (!value)
        fail_msg("%s is missing", name);
    assert_below(name, fabs(rk_json_as_real(value, NAN) - expected), 1e-12);
}

static struct rk_batch *make_batch(void)
{
    int64_t shape[2] = {ROWS, LEN};
    struct rk_batch *batch;
    void *mask;

    assert_ok(rk_batch_create(&batch, ROWS));
    assert_ok(rk_batch_add_dense(batch, "response_mask", RK_DTYPE_I64, 2, shape, &mask));
    for (int64_t i = 0; i < ROWS * LEN; i++)
        ((int64_t *)mask)[i] = i % LEN <= i / LEN % LEN;
    return batch;
}

static void test_flow_drop_unscored_clears_their_masks_and_lone_rows(void **state)
{
    struct rk_reward_result results[ROWS] = {0};
    struct rk_flow_scores scores = {.num_rows = ROWS, .results = results};
    struct rk_json *metrics = rk_json_new_object();
    struct rk_batch *batch = make_batch();
    const void *mask;

    (void)state;
    for (int i = 0; i < ROWS; i++)
        results[i].is_dropped = is_unscored[i];
    assert_ok(rk_flow_drop_unscored(batch, metrics, &scores, group_of, 4));
    assert_ok(rk_batch_get_dense(batch, "response_mask", RK_DTYPE_I64, 2, NULL, &mask));
    for (int64_t i = 0; i < ROWS * LEN; i++)
        assert_int_equal(((const int64_t *)mask)[i], !is_gone[i / LEN] && i % LEN <= i / LEN % LEN);
    assert_metric(metrics, "reward/dropped", 4.0);
    assert_metric(metrics, "reward/dropped_groups", 2.0);
    rk_json_free(metrics);
    rk_batch_destroy(batch);
}

/* Goal: if the estimator does not compare rows within groups, a single remaining row stays. */
static void test_flow_drop_unscored_without_groups_keeps_lone_rows(void **state)
{
    struct rk_reward_result results[ROWS] = {0};
    struct rk_flow_scores scores = {.num_rows = ROWS, .results = results};
    struct rk_json *metrics = rk_json_new_object();
    struct rk_batch *batch = make_batch();
    double num_unscored = 0.0;
    const void *mask;

    (void)state;
    for (int i = 0; i < ROWS; i++) {
        results[i].is_dropped = is_unscored[i];
        num_unscored += is_unscored[i];
    }
    assert_ok(rk_flow_drop_unscored(batch, metrics, &scores, NULL, 0));
    assert_ok(rk_batch_get_dense(batch, "response_mask", RK_DTYPE_I64, 2, NULL, &mask));
    for (int64_t i = 0; i < ROWS * LEN; i++)
        assert_int_equal(((const int64_t *)mask)[i], !is_unscored[i / LEN] && i % LEN <= i / LEN % LEN);
    assert_metric(metrics, "reward/dropped", num_unscored);
    assert_metric(metrics, "reward/dropped_groups", 0.0);
    rk_json_free(metrics);
    rk_batch_destroy(batch);
}

static void test_flow_drop_unscored_all_scored_changes_nothing(void **state)
{
    struct rk_reward_result results[ROWS] = {0};
    struct rk_flow_scores scores = {.num_rows = ROWS, .results = results};
    struct rk_json *metrics = rk_json_new_object();
    struct rk_batch *batch = make_batch();
    const struct rk_column *before = rk_batch_find(batch, "response_mask");

    (void)state;
    assert_ok(rk_flow_drop_unscored(batch, metrics, &scores, group_of, 4));
    assert_ptr_equal(rk_batch_find(batch, "response_mask"), before);
    assert_metric(metrics, "reward/dropped", 0.0);
    assert_metric(metrics, "reward/dropped_groups", 0.0);
    rk_json_free(metrics);
    rk_batch_destroy(batch);
}

static struct rk_json *parse(const char *text)
{
    struct rk_json *json;

    assert_ok(rk_json_parse(&json, text, strlen(text), "test", 0));
    return json;
}

static void test_flow_reward_metrics_count_outcomes_and_average_extras(void **state)
{
    struct rk_reward_result results[4] = {
        {.outcome = RK_REWARD_SCORED, .extra = parse("{\"acc\": 1.0, \"pred\": \"7\", \"len\": 3.0}")},
        {.outcome = RK_REWARD_SCORED, .extra = parse("{\"acc\": 0.0, \"pred\": \"8\"}")},
        {.outcome = RK_REWARD_TIMEOUT, .message = rk_strdup("late")},
        {.outcome = RK_REWARD_CRASH, .message = rk_strdup("gone")},
    };
    struct rk_flow_scores scores = {.num_rows = 4, .results = results};
    struct rk_json *metrics = rk_json_new_object();

    (void)state;
    rk_flow_reward_metrics(metrics, &scores);
    assert_metric(metrics, "reward/errors", 0.0);
    assert_metric(metrics, "reward/timeouts", 1.0);
    assert_metric(metrics, "reward/crashes", 1.0);
    assert_metric(metrics, "reward/skips", 0.0);
    assert_metric(metrics, "reward_extra/acc/mean", 0.5);
    assert_metric(metrics, "reward_extra/acc/max", 1.0);
    assert_metric(metrics, "reward_extra/acc/count", 2.0);
    assert_metric(metrics, "reward_extra/len/mean", 3.0);
    assert_metric(metrics, "reward_extra/len/count", 1.0);
    assert_null(rk_json_find(metrics, "reward_extra/pred/mean"));
    rk_json_free(metrics);
    rk_reward_results_fini(results, 4);
}

/* --- DAPO --- */

/* Goal: the worked numbers of max_resp_len 20 and a buffer of 4; the original score is kept as an additional
 * value, and rows without a score still have none afterwards. */
static void test_overlong_takes_score_from_long_responses(void **state)
{
    static const struct {
        int64_t length;
        double penalty;
    } cases[] = {{0, 0.0}, {15, 0.0}, {16, 0.0}, {17, -0.25}, {18, -0.5}, {20, -1.0}, {22, -1.5}, {18, 0.0}};
    enum { COUNT = RK_ARRAY_LEN(cases), LAST = COUNT - 1 };
    static const char *const keys[] = {"data.train_files=[\"a\"]",
                                       "reward.reward_manager.name=dapo",
                                       "reward.reward_kwargs.max_resp_len=20",
                                       "reward.reward_kwargs.overlong_buffer_cfg.len=4",
                                       "reward.reward_kwargs.overlong_buffer_cfg.log=true",
                                       "reward.reward_kwargs.overlong_buffer_cfg.enable=true"};
    struct rk_reward_result results[COUNT] = {0};
    int64_t lengths[COUNT];
    struct rk_flow_scores scores = {.num_rows = COUNT, .lengths = lengths, .results = results};
    struct rk_config *job;

    (void)state;
    for (int i = 0; i < COUNT; i++) {
        lengths[i] = cases[i].length;
        results[i].score = 2.0;
    }
    results[0].extra = rk_json_new_object(); /* of a scorer that returns named values */
    rk_json_set(results[0].extra, "acc", rk_json_new_real(0.5));
    results[LAST].is_dropped = true;
    assert_ok(rk_job_load(&job, NULL, keys, RK_ARRAY_LEN(keys) - 1));
    rk_overlong_apply(&scores, job);
    for (int i = 0; i < COUNT; i++)
        assert_true(results[i].score == 2.0);
    rk_config_destroy(job);
    assert_ok(rk_job_load(&job, NULL, keys, RK_ARRAY_LEN(keys)));
    rk_overlong_apply(&scores, job);
    for (int i = 0; i < LAST; i++) {
        assert_below("score", fabs(results[i].score - 2.0 - cases[i].penalty), 1e-12);
        assert_metric(results[i].extra, "overlong_reward", cases[i].penalty);
        assert_metric(results[i].extra, "overlong", cases[i].penalty < 0.0);
        assert_metric(results[i].extra, i == 0 ? "score" : "acc", 2.0);
    }
    assert_metric(results[0].extra, "acc", 0.5);
    assert_true(results[LAST].score == 2.0);
    assert_null(results[LAST].extra);
    rk_config_destroy(job);
    rk_reward_results_fini(results, COUNT);
}

/* Goal: a group is kept if two of its scored rows differ; a group of one row is kept. */
static void test_filter_keeps_groups_whose_values_differ(void **state)
{
    static const struct {
        double values[3];
        int64_t count;
        bool is_kept;
    } cases[] = {
        {{1, 1, 1}, 3, false},   {{0, 0, 1}, 3, true},    {{1}, 1, true},
        {{NAN, 1, 1}, 3, false}, {{1, NAN, 0}, 3, true},  {{NAN, NAN, 1}, 3, false},
        {{NAN}, 1, true},        {{-0.0, 0.0}, 2, false}, {{1, 1 + 1e-15}, 2, true},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        print_message("case %zu\n", i);
        assert_int_equal(rk_filter_keeps(cases[i].values, cases[i].count), cases[i].is_kept);
    }
}

/* Goal: a plain score is available as acc and score; a scorer's named values are available under their names
 * in addition to score. */
static void test_filter_value_is_what_the_reward_gives(void **state)
{
    struct rk_reward_result plain = {.score = 0.25}, named = {.score = 1.5, .extra = rk_json_new_object()};
    double value;

    (void)state;
    rk_json_set(named.extra, "acc", rk_json_new_real(1.0));
    rk_json_set(named.extra, "pred", rk_json_new_string("7"));
    assert_true(rk_filter_value(&value, &plain, "acc") && value == 0.25);
    assert_true(rk_filter_value(&value, &plain, "score") && value == 0.25);
    assert_true(rk_filter_value(&value, &plain, "seq_reward") && value == 0.25);
    assert_false(rk_filter_value(&value, &plain, "other"));
    assert_true(rk_filter_value(&value, &named, "acc") && value == 1.0);
    assert_true(rk_filter_value(&value, &named, "score") && value == 1.5);
    assert_false(rk_filter_value(&value, &named, "pred"));
    rk_json_set(named.extra, "score", rk_json_new_real(2.0)); /* before a penalty */
    assert_true(rk_filter_value(&value, &named, "score") && value == 2.0);
    rk_json_free(named.extra);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flow_drop_unscored_clears_their_masks_and_lone_rows),
        cmocka_unit_test(test_flow_drop_unscored_without_groups_keeps_lone_rows),
        cmocka_unit_test(test_flow_drop_unscored_all_scored_changes_nothing),
        cmocka_unit_test(test_flow_reward_metrics_count_outcomes_and_average_extras),
        cmocka_unit_test(test_overlong_takes_score_from_long_responses),
        cmocka_unit_test(test_filter_keeps_groups_whose_values_differ),
        cmocka_unit_test(test_filter_value_is_what_the_reward_gives),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
