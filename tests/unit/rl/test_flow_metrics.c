/* Metrics of a step against values computed by hand. */
#include "rl/flows/steps_internal.h"

#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "tests/support/test.h"

static double metric(const struct rk_json *metrics, const char *name)
{
    const struct rk_json *value = rk_json_find(metrics, name);

    if (!value)
        fail_msg("metric '%s' is missing", name);
    return rk_json_as_real(value, NAN);
}

static void assert_metric(const struct rk_json *metrics, const char *name, double expected)
{
    double got = metric(metrics, name);

    assert_below(name, fabs(got - expected), RK_TOL_F32_SUM * fmax(1.0, fabs(expected)));
}

static void test_flow_metric_stats_and_non_finite_values(void **state)
{
    struct rk_json *metrics = rk_json_new_object();
    const double values[] = {3.0, -1.0, 4.0};

    (void)state;
    rk_flow_metric_stats(metrics, "x", values, 3);
    rk_flow_metric_stats(metrics, "none", values, 0);
    rk_flow_metric_stats(metrics, "broken", (const double[]){1.0, NAN, 2.0}, 3);
    assert_true(rk_json_is_null(rk_json_find(metrics, "broken/max")));
    assert_true(rk_json_is_null(rk_json_find(metrics, "broken/min")));
    rk_json_remove(metrics, "broken/mean");
    rk_json_remove(metrics, "broken/max");
    rk_json_remove(metrics, "broken/min");
    rk_flow_metric(metrics, "bad", INFINITY);
    assert_metric(metrics, "x/mean", 2.0);
    assert_metric(metrics, "x/max", 4.0);
    assert_metric(metrics, "x/min", -1.0);
    assert_null(rk_json_find(metrics, "none/mean"));
    assert_true(rk_json_is_null(rk_json_find(metrics, "bad")));
    rk_json_free(metrics);
}

/* Probabilities .5 .25 .125 against .5 .5 .125, one masked position in between. */
static void test_flow_probs_diff_compares_probabilities_under_the_mask(void **state)
{
    const float trainer[] = {logf(.5f), 0.0f, logf(.25f), logf(.125f)};
    const float rollout[] = {logf(.5f), -9.0f, logf(.5f), logf(.125f)};
    const int64_t mask[] = {1, 0, 1, 1}, nothing[4] = {0};
    struct rk_json *metrics = rk_json_new_object(), *empty = rk_json_new_object();

    (void)state;
    rk_flow_probs_diff(metrics, trainer, rollout, mask, 4);
    assert_metric(metrics, "training/rollout_probs_diff_valid", 1.0);
    assert_metric(metrics, "training/rollout_probs_diff_max", .25);
    assert_metric(metrics, "training/rollout_probs_diff_mean", .25 / 3.0);
    assert_metric(metrics, "training/rollout_probs_diff_std", sqrt(.0625 - .0625 / 3.0) / sqrt(2.0));
    assert_metric(metrics, "training/rollout_actor_probs_pearson_corr", 0.7559289460184545);
    rk_flow_probs_diff(empty, trainer, rollout, nothing, 4);
    assert_int_equal(rk_json_count(empty), 0);
    rk_json_free(metrics);
    rk_json_free(empty);
}

/* Goal: the result of a step's sampled check: always the largest difference under the mask; an error with row
 * and token only if both sides have to be equal. */
static void test_flow_compare_log_probs_finds_the_worst_token(void **state)
{
    static const float old[] = {-1, -2, 0, -1.5f, -3, -9}, rollout[] = {-1, -2.25f, 0, -1.5f, -2.5f, 0};
    static const int64_t mask[] = {1, 1, 0, 1, 1, 0}, rows[] = {3, 17};
    struct rk_flow_comparison c = {2, 3, rows, old, rollout, mask};
    struct rk_json *metrics = rk_json_new_object();
    struct rk_status *st;

    (void)state;
    assert_ok(rk_flow_compare_log_probs(metrics, &c, false));
    assert_metric(metrics, "training/old_log_prob_check_max_diff", .5);
    assert_metric(metrics, "training/rollout_probs_diff_valid", 1.0);
    st = rk_flow_compare_log_probs(metrics, &c, true);
    assert_string_equal(rk_status_reason(st), "LOG_PROB_MISMATCH");
    assert_non_null(strstr(rk_status_message(st), "row 17, token 1 of the response"));
    assert_non_null(strstr(rk_status_message(st), "old_log_prob=recompute"));
    assert_code(st, RK_ABORTED);
    c.rollout_log_probs = old;
    assert_ok(rk_flow_compare_log_probs(metrics, &c, true));
    assert_metric(metrics, "training/old_log_prob_check_max_diff", 0.0);
    rk_json_free(metrics);
}

/* P = 2, R = 3. Row 0: prompt 1, response 2. Row 1: prompt 2, response 3 (full). Row 2: prompt 2, no
 * response. */
static const int64_t attention[3 * 5] = {0, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0};
static const int64_t response[3 * 3] = {1, 1, 0, 1, 1, 1, 0, 0, 0};
static const float scores[3 * 3] = {0, .5f, 0, 0, 0, 1.0f, 9.0f, 9.0f, 9.0f};
static const float advantage[3 * 3] = {1, 2, 99, 3, 4, 5, 99, 99, 99};

static void put(struct rk_batch *batch, const char *name, rk_dtype_t dtype, int64_t width, const void *values)
{
    int64_t shape[2] = {3, width};
    void *data;

    assert_ok(rk_batch_add_dense(batch, name, dtype, 2, shape, &data));
    memcpy(data, values, (size_t)(3 * width) * rk_dtype_bytes(dtype));
}

static struct rk_batch *make_masked_batch(const int64_t *attention_mask, const int64_t *response_mask)
{
    struct rk_batch *batch;

    assert_ok(rk_batch_create(&batch, 3));
    put(batch, "attention_mask", RK_DTYPE_I64, 5, attention_mask);
    put(batch, "response_mask", RK_DTYPE_I64, 3, response_mask);
    put(batch, "token_level_scores", RK_DTYPE_F32, 3, scores);
    put(batch, "token_level_rewards", RK_DTYPE_F32, 3, scores);
    put(batch, "advantages", RK_DTYPE_F32, 3, advantage);
    put(batch, "returns", RK_DTYPE_F32, 3, advantage);
    return batch;
}

static struct rk_batch *make_batch(const int64_t *attention_mask)
{
    return make_masked_batch(attention_mask, response);
}

/* Goal: empty responses count in the aborted ratio and in the lengths, not in the scores. */
static void test_flow_data_metrics_hand_made_batch_gives_worked_values(void **state)
{
    struct rk_batch *batch = make_batch(attention);
    struct rk_json *metrics = rk_json_new_object();

    (void)state;
    assert_ok(rk_flow_data_metrics(metrics, batch));
    assert_metric(metrics, "critic/score/mean", .75);
    assert_metric(metrics, "critic/score/max", 1.0);
    assert_metric(metrics, "critic/score/min", .5);
    assert_metric(metrics, "critic/advantages/mean", 3.0);
    assert_metric(metrics, "critic/advantages/max", 5.0);
    assert_metric(metrics, "critic/returns/min", 1.0);
    assert_metric(metrics, "prompt_length/mean", 5.0 / 3.0);
    assert_metric(metrics, "prompt_length/clip_ratio", 2.0 / 3.0);
    assert_metric(metrics, "response_length/mean", 5.0 / 3.0);
    assert_metric(metrics, "response_length/min", 0.0);
    assert_metric(metrics, "response_length/clip_ratio", 1.0 / 3.0);
    assert_metric(metrics, "response_length_non_aborted/mean", 2.5);
    assert_metric(metrics, "response_length_non_aborted/clip_ratio", .5);
    assert_metric(metrics, "response/aborted_ratio", 1.0 / 3.0);
    rk_json_free(metrics);
    rk_batch_destroy(batch);
}

/* Goal: the worked metrics of a critic, over the tokens under the mask; without values there are none. */
static void test_flow_data_metrics_of_a_critic_give_worked_values(void **state)
{
    static const int64_t mask[9] = {1, 1, 0, 1, 1, 0, 0, 0, 0};
    static const float returns[9] = {1, .5f, 99, .25f, 0, 99, 99, 99, 99};
    static const float values[9] = {.8f, .6f, -99, .2f, .1f, -99, -99, -99, -99};
    struct rk_batch *batch = make_masked_batch(attention, mask);
    struct rk_json *metrics = rk_json_new_object(), *without = rk_json_new_object();

    (void)state;
    rk_batch_remove(batch, "returns");
    put(batch, "returns", RK_DTYPE_F32, 3, returns);
    assert_ok(rk_flow_data_metrics(without, batch));
    assert_null(rk_json_find(without, "critic/vf_explained_var"));
    put(batch, "values", RK_DTYPE_F32, 3, values);
    assert_ok(rk_flow_data_metrics(metrics, batch));
    assert_below("mean", fabs(rk_json_as_real(rk_json_find(metrics, "critic/values/mean"), NAN) - .425),
                 1e-6);
    assert_below("max", fabs(rk_json_as_real(rk_json_find(metrics, "critic/values/max"), NAN) - .8), 1e-6);
    assert_below("min", fabs(rk_json_as_real(rk_json_find(metrics, "critic/values/min"), NAN) - .1), 1e-6);
    assert_below("explained",
                 fabs(rk_json_as_real(rk_json_find(metrics, "critic/vf_explained_var"), NAN) - .886863),
                 1e-6);
    rk_json_free(metrics);
    rk_json_free(without);
    rk_batch_destroy(batch);
}

/* Goal: a dropped response counts in the lengths and not in the means of scores and advantages; when all are
 * dropped these means are null. */
static void test_flow_data_metrics_dropped_rows_have_no_score(void **state)
{
    static const int64_t first_dropped[9] = {0, 0, 0, 1, 1, 1, 0, 0, 0}, all_dropped[9] = {0};
    struct rk_batch *batch = make_masked_batch(attention, first_dropped);
    struct rk_batch *nothing = make_masked_batch(attention, all_dropped);
    struct rk_json *metrics = rk_json_new_object(), *none = rk_json_new_object();

    (void)state;
    assert_ok(rk_flow_data_metrics(metrics, batch));
    assert_metric(metrics, "critic/score/mean", 1.0);
    assert_metric(metrics, "critic/score/min", 1.0);
    assert_metric(metrics, "critic/advantages/mean", 4.0);
    assert_metric(metrics, "response_length/mean", 5.0 / 3.0);
    assert_metric(metrics, "response/aborted_ratio", 1.0 / 3.0);
    assert_ok(rk_flow_data_metrics(none, nothing));
    assert_non_null(rk_json_find(none, "critic/score/mean"));
    assert_true(rk_json_is_null(rk_json_find(none, "critic/score/mean")));
    assert_true(rk_json_is_null(rk_json_find(none, "critic/advantages/max")));
    assert_metric(none, "response_length/mean", 5.0 / 3.0);
    rk_json_free(none);
    rk_json_free(metrics);
    rk_batch_destroy(nothing);
    rk_batch_destroy(batch);
}

static void test_flow_data_metrics_only_empty_responses_is_an_error(void **state)
{
    static const int64_t no_responses[3 * 5] = {0, 1, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0};
    struct rk_batch *batch = make_batch(no_responses);
    struct rk_json *metrics = rk_json_new_object();

    (void)state;
    assert_fails(rk_flow_data_metrics(metrics, batch), RK_ABORTED, "all 3 responses of the batch are empty");
    rk_json_free(metrics);
    rk_batch_destroy(batch);
}

static void test_flow_data_metrics_missing_column_is_named(void **state)
{
    struct rk_batch *batch = make_batch(attention);
    struct rk_json *metrics = rk_json_new_object();

    (void)state;
    rk_batch_remove(batch, "advantages");
    assert_message_contains(rk_flow_data_metrics(metrics, batch), "advantages");
    rk_json_free(metrics);
    rk_batch_destroy(batch);
}

/* --- verl's own function --- */

static int64_t *read_mask(const struct rk_json *test, const char *name)
{
    const char *text = rk_json_as_string(rk_json_find(test, name), "");
    int64_t *mask = rk_calloc(strlen(text), sizeof(*mask));

    for (size_t i = 0; text[i]; i++)
        mask[i] = text[i] == '1';
    return mask;
}

static void put_golden(struct rk_batch *batch, const struct rk_json *test, const char *name, int64_t width)
{
    int64_t shape[2] = {rk_batch_num_rows(batch), width};
    void *data;

    assert_ok(rk_batch_add_dense(batch, name, RK_DTYPE_F32, 2, shape, &data));
    for (int64_t i = 0; i < shape[0] * width; i++)
        ((float *)data)[i] = (float)rk_json_as_real(rk_json_at(rk_json_find(test, name), i), NAN) / 64.0F;
}

static void put_golden_mask(struct rk_batch *batch, const struct rk_json *test, const char *member,
                            const char *name, int64_t width)
{
    int64_t shape[2] = {rk_batch_num_rows(batch), width}, *mask = read_mask(test, member);
    void *data;

    assert_ok(rk_batch_add_dense(batch, name, RK_DTYPE_I64, 2, shape, &data));
    memcpy(data, mask, (size_t)(shape[0] * width) * sizeof(*mask));
    rk_free(mask);
}

static struct rk_batch *make_golden_batch(const struct rk_json *test)
{
    static const char *const columns[] = {"token_level_scores", "token_level_rewards", "advantages",
                                          "returns", "values"};
    int64_t width = rk_json_as_int(rk_json_find(test, "width"), 0);
    struct rk_batch *batch;

    assert_ok(rk_batch_create(&batch, rk_json_as_int(rk_json_find(test, "rows"), 0)));
    put_golden_mask(batch, test, "attention", "attention_mask",
                    width + rk_json_as_int(rk_json_find(test, "prompt"), 0));
    put_golden_mask(batch, test, "kept", "response_mask", width);
    put_golden_mask(batch, test, "mask", RK_FLOW_SCORED_MASK, width);
    for (size_t i = 0; i < RK_ARRAY_LEN(columns); i++)
        put_golden(batch, test, columns[i], width);
    return batch;
}

/* Goal: after rollout correction has rejected tokens and rows, every metric equals that of verl's
 * compute_data_metrics: scores and rewards of all responses, advantages, returns and values of what is left
 * (golden/data_metrics, made by golden/gen/make_data_metrics.py). */
static void test_flow_data_metrics_equal_verls_after_rejection(void **state)
{
    char *path = rk_test_fixture_path("golden/data_metrics/cases.json");
    const struct rk_json *names, *cases;
    struct rk_json *all;

    (void)state;
    assert_ok(rk_json_parse_file(&all, path, 1 << 20, 0));
    names = rk_json_find(all, "names");
    cases = rk_json_find(all, "cases");
    assert_int_equal(rk_json_count(cases), 40);
    for (int64_t c = 0; c < rk_json_count(cases); c++) {
        const struct rk_json *test = rk_json_at(cases, c), *of = rk_json_find(test, "values_of");
        struct rk_batch *batch = make_golden_batch(test);
        struct rk_json *metrics = rk_json_new_object();

        assert_ok(rk_flow_data_metrics(metrics, batch));
        for (int64_t i = 0; i < rk_json_count(of); i++) {
            const char *name =
                rk_json_as_string(rk_json_at(names, rk_json_as_int(rk_json_at(of, i), -1)), "");
            const struct rk_json *want = rk_json_at(rk_json_find(test, "expected"), i);

            if (rk_json_is_null(want) != rk_json_is_null(rk_json_find(metrics, name)))
                fail_msg("case %lld: %s is null on one side only", (long long)c, name);
            if (!rk_json_is_null(want))
                assert_metric(metrics, name, rk_json_as_real(want, NAN));
        }
        rk_json_free(metrics);
        rk_batch_destroy(batch);
    }
    rk_json_free(all);
    rk_free(path);
}

/* 1.5 s over 300 tokens are 5 ms per token; 1000 tokens in 2 s on 8 devices are 62.5 tokens per second and
 * device. */
static void test_flow_speed_metrics_worked_values(void **state)
{
    struct rk_json *metrics = rk_json_new_object();

    (void)state;
    rk_flow_metric(metrics, "timing_s/gen", 1.5);
    rk_flow_metric(metrics, "timing_s/update_actor", 1.0);
    rk_flow_speed_metrics(metrics, 1000, 300, 2.0, 8);
    assert_metric(metrics, "timing_per_token_ms/gen", 5.0);
    assert_metric(metrics, "timing_per_token_ms/update_actor", 1.0);
    assert_null(rk_json_find(metrics, "timing_per_token_ms/ref"));
    assert_metric(metrics, "perf/total_num_tokens", 1000.0);
    assert_metric(metrics, "perf/throughput", 62.5);
    rk_json_free(metrics);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flow_metric_stats_and_non_finite_values),
        cmocka_unit_test(test_flow_probs_diff_compares_probabilities_under_the_mask),
        cmocka_unit_test(test_flow_compare_log_probs_finds_the_worst_token),
        cmocka_unit_test(test_flow_data_metrics_hand_made_batch_gives_worked_values),
        cmocka_unit_test(test_flow_data_metrics_of_a_critic_give_worked_values),
        cmocka_unit_test(test_flow_data_metrics_dropped_rows_have_no_score),
        cmocka_unit_test(test_flow_data_metrics_only_empty_responses_is_an_error),
        cmocka_unit_test(test_flow_data_metrics_missing_column_is_named),
        cmocka_unit_test(test_flow_data_metrics_equal_verls_after_rejection),
        cmocka_unit_test(test_flow_speed_metrics_worked_values),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
