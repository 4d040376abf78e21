/* All estimators against worked numbers. tests/golden/test_advantages.c compares them with verl. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "rl/algo/algo_internal.h"
#include "tests/support/test.h"

#define MAX_ROWS  6
#define MAX_WIDTH 5
#define MAX_CELLS (MAX_ROWS * MAX_WIDTH)

static float advantages[MAX_CELLS], returns[MAX_CELLS];
static const struct rk_adv_out out = {advantages, returns};

static void compute(const char *name, const struct rk_adv_in *in)
{
    const struct rk_adv_ops *ops = rk_adv_find(name);

    if (!ops)
        fail_msg("no estimator '%s'", name);
    assert_true(in->num_rows * in->response_length <= MAX_CELLS);
    assert_ok(rk_adv_compute(ops, &out, in));
}

static void assert_cells(const char *label, const float *actual, const double *expected, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (!(fabs((double)actual[i] - expected[i]) <= RK_TOL_SIX_DECIMALS * fmax(1.0, fabs(expected[i]))))
            fail_msg("%s, cell %lld: %.9g, expected %.9g", label, (long long)i, (double)actual[i],
                     expected[i]);
    }
}

/* --- one value per row --- */

struct outcome_case {
    const char *name;
    int64_t num_rows;
    double scores[MAX_ROWS];
    const char *uid[MAX_ROWS];
    int64_t lengths[MAX_ROWS];
    bool is_without_std;
    double expected[MAX_ROWS];
};

#define SIX .num_rows = 6, .scores = {1, 0, 0, 1, .5, 2}, .uid = {"a", "a", "b", "b", "b", "c"}
#define ONE_EACH         \
    {                    \
        1, 1, 1, 1, 1, 1 \
    }

static const struct outcome_case outcome_cases[] = {
    {"grpo", SIX, ONE_EACH, false, {.707106, -.707106, -.999998, .999998, 0, 1.999998}},
    {"grpo", SIX, ONE_EACH, true, {.5, -.5, -.5, .5, 0, 2}},
    {"grpo_vectorized", SIX, ONE_EACH, false, {.707106, -.707106, -.999998, .999998, 0, 1.999998}},
    {"grpo_vectorized", SIX, ONE_EACH, true, {.5, -.5, -.5, .5, 0, 2}},
    {"rloo", SIX, ONE_EACH, false, {1, -1, -.75, .75, 0, 2}},
    {"rloo_vectorized", SIX, ONE_EACH, false, {1, -1, -.75, .75, 0, 0}},
    {"opo", SIX, {2, 4, 1, 3, 4, 5}, false, {.666667, -.333333, -.625, .375, -.125, 2}},
    {"gpg", SIX, ONE_EACH, false, {.75, -.75, -.75, .75, 0, 3}},
    {"grpo_passk", 3, {1, 0, 0}, {"a", "a", "a"}, ONE_EACH, false, {1.732048, 0, 0}},
    {"grpo_passk", 3, {3, .5, 2}, {"a", "a", "a"}, ONE_EACH, false, {.794719, 0, 0}},
    {"grpo_passk", 3, {3, .5, 2}, {"a", "a", "a"}, ONE_EACH, true, {1, 0, 0}},
    {"grpo_passk", 4, {1, 2, 2, 1}, {"a", "a", "a", "a"}, ONE_EACH, true, {0, 0, 0, 0}},
    {"reinforce_plus_plus_baseline",
     4,
     {1, 0, 0, 1},
     {"a", "a", "b", "b"},
     {2, 3, 1, 2},
     false,
     {.935414, -.935414, -.935414, .935414}},
};

static void test_outcome_estimators_worked_values(void **state)
{
    (void)state;
    for (size_t c = 0; c < RK_ARRAY_LEN(outcome_cases); c++) {
        const struct outcome_case *test = &outcome_cases[c];
        float rewards[MAX_CELLS] = {0};
        int64_t mask[MAX_CELLS] = {0};
        double expected[MAX_CELLS] = {0};

        for (int64_t i = 0; i < test->num_rows; i++) {
            rewards[i * MAX_WIDTH + i % MAX_WIDTH] = (float)test->scores[i]; /* at any position */
            for (int64_t t = 0; t < test->lengths[i]; t++) {
                mask[i * MAX_WIDTH + t] = 1;
                expected[i * MAX_WIDTH + t] = test->expected[i];
            }
        }
        compute(test->name, &(struct rk_adv_in){.num_rows = test->num_rows,
                                                .response_length = MAX_WIDTH,
                                                .token_level_rewards = rewards,
                                                .response_mask = mask,
                                                .uid = test->uid,
                                                .norm_adv_by_std = !test->is_without_std});
        assert_cells(test->name, advantages, expected, test->num_rows * MAX_WIDTH);
        assert_cells(test->name, returns, expected, test->num_rows * MAX_WIDTH);
    }
}

static void test_gdpo_worked_values(void **state)
{
    static const float rewards[4 * 3] = {0};
    static const int64_t mask[4 * 3] = {1, 1, 0, 1, 1, 1, 1, 0, 0, 1, 1, 0};
    static const char *const uid[4] = {"a", "a", "b", "b"};
    static const double k1[4] = {1, 0, 1, 1}, k2[4] = {0, 0, 1, -1};
    static const double *const keys[2] = {k1, k2};
    static const struct {
        double weights[2], rows[4];
    } cases[] = {
        {{1, 1}, {1.207614, -.724569, 1.207615, -.724569}},
        {{1, .5}, {1.343503, -.919239, .777818, -.353554}},
    };

    (void)state;
    for (size_t c = 0; c < RK_ARRAY_LEN(cases); c++) {
        double expected[4 * 3];

        for (int i = 0; i < 12; i++)
            expected[i] = mask[i] ? cases[c].rows[i / 3] : 0.0;
        compute("gdpo", &(struct rk_adv_in){.num_rows = 4,
                                            .response_length = 3,
                                            .token_level_rewards = rewards,
                                            .response_mask = mask,
                                            .uid = uid,
                                            .norm_adv_by_std = true,
                                            .num_reward_keys = 2,
                                            .key_rewards = keys,
                                            .reward_weights = cases[c].weights});
        assert_cells("gdpo", advantages, expected, 12);
        assert_cells("gdpo", returns, expected, 12);
    }
}

/* --- one value per token --- */

static const char *const pair[2] = {"a", "a"};
static const float rewards_2x4[8] = {0, 0, 1, 0, 0, .5f, 0, 0};
static const int64_t mask_2x4[8] = {1, 1, 1, 0, 1, 1, 0, 0};

static void test_gae_worked_values(void **state)
{
    static const float values[8] = {.5f, .4f, .3f, .2f, .1f, .2f, .9f, .9f};
    static const double whitened[8] = {-.332040, .535449,   1.451088,  -2.979935,
                                       -.573573, -1.080925, -2.979935, -2.979935};
    static const double expected[8] = {.918307, .955350, 1, .2, .480150, .5, .9, .9};

    (void)state;
    compute("gae", &(struct rk_adv_in){.num_rows = 2,
                                       .response_length = 4,
                                       .token_level_rewards = rewards_2x4,
                                       .response_mask = mask_2x4,
                                       .uid = pair,
                                       .gamma = .99,
                                       .lam = .95,
                                       .values = values});
    assert_cells("advantages", advantages, whitened, 8);
    assert_cells("returns", returns, expected, 8);
}

/* Goal: value and advantage skip masked tokens in the middle of a response. */
static void test_gae_masked_middle_is_passed_over(void **state)
{
    static const float rewards[5] = {0, 0, 0, 0, 1}, values[5] = {.5f, .4f, 9, .3f, .2f};
    static const int64_t mask[5] = {1, 1, 0, 1, 1};
    static const double raw[5] = {.400650, .527, .66, .66, .8}, expected[5] = {.900650, .927, 9.66, .96, 1};
    double whitened[5];

    (void)state;
    memcpy(whitened, raw, sizeof(raw));
    assert_ok(rk_mask_whiten(whitened, mask, 5, false));
    compute("gae", &(struct rk_adv_in){.num_rows = 1,
                                       .response_length = 5,
                                       .token_level_rewards = rewards,
                                       .response_mask = mask,
                                       .uid = pair,
                                       .gamma = 1,
                                       .lam = .95,
                                       .values = values});
    assert_cells("returns", returns, expected, 5);
    for (int i = 0; i < 5; i++)
        assert_below("advantages", fabs((double)advantages[i] - whitened[i]), RK_TOL_F32_SUM);
}

static void test_reinforce_plus_plus_worked_values(void **state)
{
    static const float middle_rewards[5] = {0, 0, .25f, 0, 1};
    static const int64_t middle_mask[5] = {1, 1, 0, 1, 1};
    static const struct {
        const char *label;
        int64_t num_rows, width;
        const float *rewards;
        const int64_t *mask;
        double gamma, returns[8], advantages[8];
    } cases[] = {
        {"gamma .9",
         2,
         4,
         rewards_2x4,
         mask_2x4,
         .9,
         {.81, .9, 1, 0, .45, .5, 0, 0},
         {.318779, .686601, 1.095293, 0, -1.152509, -.948164, 0, 0}},
        {"gamma 1",
         2,
         4,
         rewards_2x4,
         mask_2x4,
         1,
         {1, 1, 1, 0, .5, .5, 0, 0},
         {.730297, .730297, .730297, 0, -1.095445, -1.095445, 0, 0}},
        {"masked middle",
         1,
         5,
         middle_rewards,
         middle_mask,
         .9,
         {.729, .81, 0, .9, 1},
         {-1.120338, -.426285, 0, .344884, 1.201739}},
    };

    (void)state;
    for (size_t c = 0; c < RK_ARRAY_LEN(cases); c++) {
        compute("reinforce_plus_plus", &(struct rk_adv_in){.num_rows = cases[c].num_rows,
                                                           .response_length = cases[c].width,
                                                           .token_level_rewards = cases[c].rewards,
                                                           .response_mask = cases[c].mask,
                                                           .uid = pair,
                                                           .gamma = cases[c].gamma});
        assert_cells(cases[c].label, returns, cases[c].returns, cases[c].num_rows * cases[c].width);
        assert_cells(cases[c].label, advantages, cases[c].advantages, cases[c].num_rows * cases[c].width);
    }
}

static void test_remax_worked_values(void **state)
{
    static const float baselines[2] = {.25f, .75f};
    static const double to_go[8] = {1, 1, 1, 0, .5, .5, 0, 0},
                        expected[8] = {.75, .75, .75, 0, -.25, -.25, 0, 0};

    (void)state;
    compute("remax", &(struct rk_adv_in){.num_rows = 2,
                                         .response_length = 4,
                                         .token_level_rewards = rewards_2x4,
                                         .response_mask = mask_2x4,
                                         .uid = pair,
                                         .reward_baselines = baselines});
    assert_cells("returns", returns, to_go, 8);
    assert_cells("advantages", advantages, expected, 8);
}

struct token_baseline_case {
    const char *name, *label;
    int64_t width;
    float rewards[6];
    int64_t mask[6];
    double probs[6];
    float sum_pi_squared[6], is_weights[6]; /* is_weights 0: none */
    double advantages[6];
};

#define THREE            \
    3,                   \
    {                    \
        0, 0, 1, 0, 0, 0 \
    }
#define PROBS                        \
    {.5, .8, .6, .5, .2, .1},        \
    {                                \
        .4f, .7f, .5f, .4f, .3f, .2f \
    }

static const struct token_baseline_case token_baseline_cases[] = {
    {"optimal_token_baseline",
     "two tokens each",
     2,
     {0, 1, 0, 0},
     {1, 1, 1, 1},
     {.5, .8, .5, .2},
     {.4f, .7f, .4f, .3f},
     {0},
     {.5, .722222, -.5, -.277778}},
    {"optimal_token_baseline",
     "one is longer",
     THREE,
     {1, 1, 1, 1, 1, 0},
     PROBS,
     {0},
     {.5, .722222, 1, -.5, -.277778, 0}},
    {"optimal_token_baseline", "masked middle", THREE, {1, 0, 1, 1, 1, 0}, PROBS, {0}, {.5, 0, 0, -.5, 0, 0}},
    {"tir_optimal_token_baseline",
     "masked middle, by token",
     THREE,
     {1, 0, 1, 1, 1, 0},
     PROBS,
     {0},
     {.5, 0, .65, -.5, -.35, 0}},
    /* a weight of 2 makes 4 of the first row's variances: W .4 4 = 1.6 against .4, then 2.0 against 1.3 */
    {"optimal_token_baseline",
     "weights",
     2,
     {0, 1, 0, 0},
     {1, 1, 1, 1},
     {.5, .8, .5, .2},
     {.4f, .7f, .4f, .3f},
     {2, 2, 1, 1},
     {.2, 1 - 2.0 / 3.3, -.8, -2.0 / 3.3}},
    {"tir_optimal_token_baseline",
     "alone in its group",
     THREE,
     {1, 1, 1, 0, 0, 0},
     PROBS,
     {0},
     {1, 1, 1, 0, 0, 0}},
    {"optimal_token_baseline", "the other one was dropped", THREE, {0, 0, 0, 1, 1, 1}, PROBS, {0}, {0}},
};

static void test_token_baselines_worked_values(void **state)
{
    (void)state;
    for (size_t c = 0; c < RK_ARRAY_LEN(token_baseline_cases); c++) {
        const struct token_baseline_case *test = &token_baseline_cases[c];
        float old_log_probs[6] = {0};

        for (int64_t i = 0; i < 2 * test->width; i++)
            old_log_probs[i] = test->mask[i] ? (float)log(test->probs[i]) : NAN;
        compute(test->name,
                &(struct rk_adv_in){.num_rows = 2,
                                    .response_length = test->width,
                                    .token_level_rewards = test->rewards,
                                    .response_mask = test->mask,
                                    .uid = pair,
                                    .old_log_probs = old_log_probs,
                                    .sum_pi_squared = test->sum_pi_squared,
                                    .rollout_is_weights = test->is_weights[0] > 0 ? test->is_weights : NULL});
        assert_cells(test->label, advantages, test->advantages, 2 * test->width);
    }
}

/* --- properties of all estimators --- */

/* Goal: a dropped row (empty mask) with any reward changes no advantage of other rows in any estimator, and
 * has no advantages itself where the estimator gives none to masked tokens. */
static void test_dropped_row_takes_no_part(void **state)
{
    static const int64_t with[3 * 2] = {1, 1, 0, 0, 1, 0}, without[2 * 2] = {1, 1, 1, 0};
    static const float rewards_with[6] = {0, 1, 7, -100, .5f, 0}, rewards_without[4] = {0, 1, .5f, 0};
    static const char *const uid[3] = {"a", "a", "a"};
    static const float three[6] = {.5f, .25f, NAN, NAN, .25f, .5f}, two[4] = {.5f, .25f, .25f, .5f};
    static const float baselines_three[3] = {.5f, NAN, .25f}, baselines_two[2] = {.5f, .25f};
    static const double key_three[3] = {1, NAN, 0}, key_two[2] = {1, 0}, weight = 1;
    static const double *const keys_three[1] = {key_three}, *const keys_two[1] = {key_two};
    char names[256], *rest = names;

    (void)state;
    snprintf(names, sizeof(names), "%s", rk_adv_names());
    for (char *name = strtok_r(rest, ", ", &rest); name; name = strtok_r(NULL, ", ", &rest)) {
        float expected[4];

        compute(name, &(struct rk_adv_in){2, 2, rewards_without, without, uid, true, .9, .9, two,
                                          baselines_two, two, two, NULL, 1, keys_two, &weight, NULL});
        memcpy(expected, advantages, sizeof(expected));
        compute(name, &(struct rk_adv_in){3, 2, rewards_with, with, uid, true, .9, .9, three, baselines_three,
                                          three, three, NULL, 1, keys_three, &weight, NULL});
        for (int i = 0; i < 4; i++) {
            if (without[i] && !(expected[i] == advantages[i < 2 ? i : i + 2]))
                fail_msg("%s: %g became %g", name, (double)expected[i],
                         (double)advantages[i < 2 ? i : i + 2]);
        }
    }
}

/* Goal: a batch whose rows are all dropped has advantages 0 and is not an error: the policy is not
 * updated. */
static void test_batch_without_tokens_has_no_advantages(void **state)
{
    static const float rewards[2] = {1, 2}, zero[2] = {0};
    static const int64_t mask[2] = {0};
    static const double key[2] = {0}, weight = 1;
    static const double *const keys[1] = {key};
    char names[256], *rest = names;

    (void)state;
    snprintf(names, sizeof(names), "%s", rk_adv_names());
    for (char *name = strtok_r(rest, ", ", &rest); name; name = strtok_r(NULL, ", ", &rest)) {
        compute(name, &(struct rk_adv_in){2, 1, rewards, mask, pair, true, .9, .9, zero, zero, zero, zero,
                                          NULL, 1, keys, &weight, NULL});
        assert_true(advantages[0] == 0.0f && advantages[1] == 0.0f);
    }
}

static void test_bad_batches_are_refused(void **state)
{
    static const float rewards[3] = {1, 0, 2};
    static const char *const uid[3] = {"p", "p", "q"};
    static const int64_t mask[3] = {1, 1, 1}, one[3] = {0, 1, 0};
    static const float broken[3] = {.5f, INFINITY, .5f}, fine[3] = {.5f, .5f, .5f};
    struct rk_adv_in in = {3,    1,    rewards, mask, uid, true, .9,   .9,  fine,
                           fine, fine, fine,    NULL, 0,   NULL, NULL, NULL};

    (void)state;
    assert_fails(rk_adv_compute(rk_adv_find("grpo_passk"), &out, &in), RK_INVALID_ARGUMENT, "'q'");
    in.values = broken;
    assert_fails(rk_adv_compute(rk_adv_find("gae"), &out, &in), RK_ABORTED, "values of row 1");
    in.values = fine;
    in.rollout_is_weights = broken;
    assert_fails(rk_adv_compute(rk_adv_find("optimal_token_baseline"), &out, &in), RK_ABORTED,
                 "rollout_is_weights of row 1");
    in.response_mask = one;
    assert_fails(rk_adv_compute(rk_adv_find("reinforce_plus_plus"), &out, &in), RK_ABORTED,
                 "one counted token");
}

static void test_masked_statistics_worked_values(void **state)
{
    static const int64_t mask[4] = {1, 1, 1, 0}, one[4] = {0, 0, 1, 0};
    double values[4] = {1, 2, 3, 99}, kept[4] = {1, 2, 3, NAN};

    (void)state;
    assert_below("mean", fabs(rk_mask_mean(values, mask, 4) - 2.0), 1e-7);
    assert_below("var", fabs(rk_mask_var(values, mask, 4) - 1.0), 1e-7);
    assert_fails(rk_mask_whiten(values, one, 4, false), RK_ABORTED, "one counted token");
    assert_ok(rk_mask_whiten(values, mask, 4, false));
    for (int i = 0; i < 4; i++)
        assert_below("whitened", fabs(values[i] - (double[]){-1, 0, 1, 97}[i]), 1e-5);
    assert_ok(rk_mask_whiten(kept, mask, 4, true));
    for (int i = 0; i < 3; i++)
        assert_below("with the mean", fabs(kept[i] - (double[]){1, 2, 3}[i]), 1e-7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_outcome_estimators_worked_values),
        cmocka_unit_test(test_gdpo_worked_values),
        cmocka_unit_test(test_gae_worked_values),
        cmocka_unit_test(test_gae_masked_middle_is_passed_over),
        cmocka_unit_test(test_reinforce_plus_plus_worked_values),
        cmocka_unit_test(test_remax_worked_values),
        cmocka_unit_test(test_token_baselines_worked_values),
        cmocka_unit_test(test_dropped_row_takes_no_part),
        cmocka_unit_test(test_batch_without_tokens_has_no_advantages),
        cmocka_unit_test(test_bad_batches_are_refused),
        cmocka_unit_test(test_masked_statistics_worked_values),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
