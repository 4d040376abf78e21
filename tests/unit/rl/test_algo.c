/* Advantages and KL in the reward against worked numbers (f64, by hand and by verl's definitions). */
#include "rl/rk_algo.h"

#include <math.h>
#include <string.h>

#include "tests/support/test.h"

#define ROWS 6
#define LEN  5

struct grpo_case {
    const char *label;
    double scores[ROWS];
    const char *uid[ROWS];
    int64_t num_rows;
    bool by_std;
    double expected[ROWS];
};

static const struct grpo_case grpo_cases[] = {
    {"three groups",
     {1, 0, 0, 1, .5, 2},
     {"a", "a", "b", "b", "b", "c"},
     6,
     true,
     {.707106, -.707106, -.999998, .999998, 0, 1.999998}},
    {"without std", {1, 0, 0, 1, .5, 2}, {"a", "a", "b", "b", "b", "c"}, 6, false, {.5, -.5, -.5, .5, 0, 2}},
    {"one winner of four",
     {1, 0, 0, 0},
     {"g", "g", "g", "g"},
     4,
     true,
     {1.499997, -.499999, -.499999, -.499999}},
    {"no signal", {1, 1, 1, 1}, {"g", "g", "g", "g"}, 4, true, {0, 0, 0, 0}},
    {"groups need not be adjacent",
     {1, 0, 0, 1},
     {"a", "b", "a", "b"},
     4,
     true,
     {.707106, -.707106, -.707106, .707106}},
};

/* Goal: the worked outcome advantages, spread over the mask and zero outside it. */
static void test_grpo_worked_scores_give_worked_advantages(void **state)
{
    (void)state;
    for (size_t c = 0; c < RK_ARRAY_LEN(grpo_cases); c++) {
        const struct grpo_case *test = &grpo_cases[c];
        float rewards[ROWS * LEN] = {0}, advantages[ROWS * LEN], returns[ROWS * LEN];
        int64_t mask[ROWS * LEN] = {0};
        struct rk_adv_in in = {.num_rows = test->num_rows,
                               .response_length = LEN,
                               .token_level_rewards = rewards,
                               .response_mask = mask,
                               .uid = test->uid,
                               .norm_adv_by_std = test->by_std};
        struct rk_adv_out out = {advantages, returns};

        for (int64_t i = 0; i < test->num_rows; i++) {
            rewards[i * LEN + i % LEN] = (float)test->scores[i]; /* the reward at any position */
            for (int64_t t = 0; t <= i % LEN; t++)
                mask[i * LEN + t] = 1;
        }
        assert_ok(rk_adv_compute(rk_adv_find("grpo"), &out, &in));
        for (int64_t i = 0; i < test->num_rows * LEN; i++) {
            double expected = mask[i] ? test->expected[i / LEN] : 0.0;

            assert_below(test->label, fabs(advantages[i] - expected), 1e-5);
            assert_true(advantages[i] == returns[i]);
        }
    }
}

/* Goal: a row whose mask is empty (its reward failed) changes no other row's advantage, whatever its rewards,
 * and a group may lose all its rows. Expected values worked by hand: group a of {1, 0}, mean 0.5, std
 * sqrt(0.5); group b is dropped completely; {2, 5, 8} remains of group c, mean 5, std 3. */
static void test_grpo_dropped_rows_leave_the_group_statistics(void **state)
{
    enum { NUM = 9 };
    static const double dropped_scores[NUM] = {1, 77, 0, -5, 5, 2, 8, 5, 1e6};
    static const char *const uid[NUM] = {"a", "a", "a", "b", "b", "c", "c", "c", "c"};
    static const bool is_dropped[NUM] = {0, 1, 0, 1, 1, 0, 0, 0, 1};
    static const double expected[NUM] = {.707106, 0, -.707106, 0, 0, -1, 1, 0, 0};
    float rewards[NUM * LEN] = {0}, advantages[NUM * LEN], returns[NUM * LEN];
    int64_t mask[NUM * LEN] = {0};
    struct rk_adv_in in = {.num_rows = NUM,
                           .response_length = LEN,
                           .token_level_rewards = rewards,
                           .response_mask = mask,
                           .uid = uid,
                           .norm_adv_by_std = true};
    struct rk_adv_out out = {advantages, returns};

    (void)state;
    for (int64_t i = 0; i < NUM; i++) {
        rewards[i * LEN + 1] = (float)dropped_scores[i];
        for (int64_t t = 0; t < 2; t++)
            mask[i * LEN + t] = !is_dropped[i];
    }
    assert_ok(rk_adv_compute(rk_adv_find("grpo"), &out, &in));
    for (int64_t i = 0; i < NUM; i++) {
        for (int64_t t = 0; t < LEN; t++)
            assert_below("advantage", fabs(advantages[i * LEN + t] - (t < 2 ? expected[i] : 0.0)), 1e-5);
    }
}

/* Goal: a row rejected by rollout correction has no advantages, and its score still counts in its group. */
static void test_grpo_rejected_rows_stay_in_the_group_statistics(void **state)
{
    enum { NUM = 3 };
    static const char *const uid[NUM] = {"a", "a", "a"};
    static const double expected[NUM] = {1, 0, 0};
    float rewards[NUM * LEN] = {0}, advantages[NUM * LEN], returns[NUM * LEN];
    int64_t mask[NUM * LEN] = {0}, group_mask[NUM * LEN] = {0};
    struct rk_adv_in in = {.num_rows = NUM,
                           .response_length = LEN,
                           .token_level_rewards = rewards,
                           .response_mask = mask,
                           .group_mask = group_mask,
                           .uid = uid,
                           .norm_adv_by_std = true};
    struct rk_adv_out out = {advantages, returns};

    (void)state;
    for (int64_t i = 0; i < NUM; i++) {
        rewards[i * LEN] = (float)(8 - 3 * i); /* 8, 5, 2: mean 5, std 3 */
        group_mask[i * LEN] = 1;
        mask[i * LEN] = i == 0;
    }
    assert_ok(rk_adv_compute(rk_adv_find("grpo"), &out, &in));
    for (int64_t i = 0; i < NUM; i++)
        assert_below("advantage", fabs(advantages[i * LEN] - expected[i]), 1e-5);
}

static void test_adv_find_unknown_name_is_null(void **state)
{
    (void)state;
    assert_null(rk_adv_find("gae2"));
    assert_non_null(strstr(rk_adv_names(), "grpo"));
}

static const float scores[6] = {0, 0, 1, 0, .5f, 0};
static const float old_log_probs[6] = {-1, -2, -.5f, -1, -1, 0};
static const float ref_log_prob[6] = {-1.2f, -1.5f, -.5f, -1.5f, -.5f, 0};
static const int64_t kl_mask[6] = {1, 1, 1, 1, 1, 0};

/* Goal: the worked example of KL in the reward, and the estimators' values. */
static void test_kl_reward_worked_example_matches(void **state)
{
    static const float expected[6] = {-.02f, .05f, 1, -.05f, .55f, 0};
    struct rk_kl_reward_in in = {2, 3, scores, old_log_probs, ref_log_prob, kl_mask, "kl", 0.1};
    float rewards[6];
    double current_kl = 0;

    (void)state;
    assert_ok(rk_kl_reward_apply(rewards, &current_kl, &in));
    for (int i = 0; i < 6; i++)
        assert_below("kl", fabs((double)rewards[i] - (double)expected[i]), 1e-6);
    assert_below("current_kl", fabs(current_kl + .05), 1e-6);
}

/* Goal: the mean is over the rows that have a token; a row without tokens does not count as KL 0. */
static void test_kl_reward_row_without_tokens_is_not_in_the_mean(void **state)
{
    static const int64_t second_dropped[6] = {1, 1, 1, 0, 0, 0};
    struct rk_kl_reward_in in = {2, 3, scores, old_log_probs, ref_log_prob, second_dropped, "kl", 0.1};
    float rewards[6];
    double current_kl = 0;

    (void)state;
    assert_ok(rk_kl_reward_apply(rewards, &current_kl, &in));
    assert_below("current_kl", fabs(current_kl + .1), 1e-6); /* (.2 - .5 + 0) / 3 */
}

static const struct {
    const char *name;
    double kl[3]; /* x = .2, -.5, 0 */
} estimator_cases[] = {
    {"k1", {.2, -.5, 0}},          {"abs", {.2, .5, 0}},
    {"mse", {.02, .125, 0}},       {"k2", {.02, .125, 0}},
    {"k3", {.018731, .148721, 0}}, {"low_var_kl", {.018731, .148721, 0}},
    {"k1+", {.2, -.5, 0}},         {"low_var_kl+", {.018731, .148721, 0}},
};

static void test_kl_reward_each_estimator_matches(void **state)
{
    static const float zero[3] = {0};
    float rewards[3];
    double current_kl;

    (void)state;
    for (size_t c = 0; c < RK_ARRAY_LEN(estimator_cases); c++) {
        struct rk_kl_reward_in in = {
            1, 3, zero, old_log_probs, ref_log_prob, kl_mask, estimator_cases[c].name, 1.0};

        assert_ok(rk_kl_reward_apply(rewards, &current_kl, &in));
        for (int i = 0; i < 3; i++)
            assert_below(estimator_cases[c].name, fabs((double)rewards[i] + estimator_cases[c].kl[i]), 1e-6);
    }
}

/* Goal: values outside the mask have no influence; an unknown estimator is named in the error. */
static void test_kl_reward_masked_nan_is_harmless_and_unknown_name_refused(void **state)
{
    float refs[6];
    float rewards[6];
    double current_kl = 0;
    struct rk_kl_reward_in in = {2, 3, scores, old_log_probs, refs, kl_mask, "k3", 0.1};

    (void)state;
    memcpy(refs, ref_log_prob, sizeof(refs));
    refs[5] = NAN;
    assert_ok(rk_kl_reward_apply(rewards, &current_kl, &in));
    assert_true(isfinite(current_kl));
    assert_true(rewards[5] == 0.0f);
    in.kl_penalty = "full";
    assert_fails(rk_kl_reward_apply(rewards, &current_kl, &in), RK_INVALID_ARGUMENT, "\"full\"");
}

/* Goal: a NaN from the model is an error that names row and token, not a clamped KL. */
static void test_kl_reward_nan_that_counts_is_an_error(void **state)
{
    float refs[6], olds[6], rewards[6];
    double current_kl = 0;
    struct rk_kl_reward_in in = {2, 3, scores, olds, refs, kl_mask, "low_var_kl", 0.1};

    (void)state;
    memcpy(refs, ref_log_prob, sizeof(refs));
    memcpy(olds, old_log_probs, sizeof(olds));
    refs[3] = NAN;
    assert_fails(rk_kl_reward_apply(rewards, &current_kl, &in), RK_ABORTED,
                 "ref_log_prob of row 1 is nan at token 0");
    refs[3] = ref_log_prob[3];
    olds[2] = -INFINITY;
    assert_fails(rk_kl_reward_apply(rewards, &current_kl, &in), RK_ABORTED,
                 "old_log_probs of row 0 is -inf at token 2");
}

/* Goal: the coefficient follows the KL, by at most 0.2 * rows / horizon; a fixed coefficient does not
 * change. */
static void test_kl_ctrl_update_worked_values(void **state)
{
    static const struct {
        double current_kl, expected;
    } cases[] = {{.3, .00102048}, {.11, .00101024}, {.01, .00097952}, {.1, .001}};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_kl_ctrl ctrl = {true, .001, .1, 10000}, fixed = {.kl_coef = .001};

        rk_kl_ctrl_update(&ctrl, cases[i].current_kl, 1024);
        rk_kl_ctrl_update(&fixed, cases[i].current_kl, 1024);
        assert_below("kl_coef", fabs(ctrl.kl_coef - cases[i].expected), 1e-12);
        assert_true(fixed.kl_coef == .001);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grpo_worked_scores_give_worked_advantages),
        cmocka_unit_test(test_grpo_dropped_rows_leave_the_group_statistics),
        cmocka_unit_test(test_grpo_rejected_rows_stay_in_the_group_statistics),
        cmocka_unit_test(test_adv_find_unknown_name_is_null),
        cmocka_unit_test(test_kl_reward_worked_example_matches),
        cmocka_unit_test(test_kl_reward_row_without_tokens_is_not_in_the_mean),
        cmocka_unit_test(test_kl_reward_each_estimator_matches),
        cmocka_unit_test(test_kl_reward_masked_nan_is_harmless_and_unknown_name_refused),
        cmocka_unit_test(test_kl_reward_nan_that_counts_is_an_error),
        cmocka_unit_test(test_kl_ctrl_update_worked_values),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
