/* Keys and row arithmetic of rollout correction against worked numbers (f64, by verl's definitions). */
#include "base/math/rk_rollout_correction.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/test.h"

static const double row0[] = {.5, -.5, 1.5}, row1[] = {0, -.1};

static struct rk_rollout_correction parse(const char *is, const char *is_threshold, const char *rs,
                                          const char *rs_threshold)
{
    struct rk_rollout_correction config;

    assert_ok(rk_rollout_correction_parse(&config, &(struct rk_rollout_correction_keys){
                                                       .rollout_is = is,
                                                       .rollout_is_threshold = is_threshold,
                                                       .rollout_rs = rs,
                                                       .rollout_rs_threshold = rs_threshold,
                                                   }));
    return config;
}

struct weight_case {
    const char *is, *threshold;
    double raw0[3], raw1[2], weights0[3], weights1[2];
};

static const struct weight_case weight_cases[] = {
    {"token", "2", {1.648721, .606531, 4.481689}, {1, .904837}, {1.648721, .606531, 2}, {1, .904837}},
    {"sequence", NULL, {4.481689, 4.481689, 4.481689}, {.904837, .904837}, {2, 2, 2}, {.904837, .904837}},
    {"token", "0.7_2.0", {1.648721, .606531, 4.481689}, {1, .904837}, {1.648721, 0, 0}, {1, .904837}},
    {"sequence", "0.7_2.0", {4.481689, 4.481689, 4.481689}, {.904837, .904837}, {0}, {.904837, .904837}},
    {"token",
     "0.5_5.0",
     {1.648721, .606531, 4.481689},
     {1, .904837},
     {1.648721, .606531, 4.481689},
     {1, .904837}},
};

static void check_row(const struct rk_rollout_correction *config, const double *log_ratio, int64_t n,
                      const double *raw, const double *weights)
{
    double got[3];

    rk_rollout_is_raw(got, config, log_ratio, n);
    for (int64_t t = 0; t < n; t++) {
        assert_below("raw", fabs(got[t] - raw[t]), 1e-5);
        assert_below("weight", fabs(rk_rollout_is_weight(config, got[t]) - weights[t]), 1e-5);
    }
}

static void test_weights_of_worked_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(weight_cases); i++) {
        const struct weight_case *test = &weight_cases[i];
        struct rk_rollout_correction config = parse(test->is, test->threshold, NULL, NULL);

        check_row(&config, row0, 3, test->raw0, test->weights0);
        check_row(&config, row1, 2, test->raw1, test->weights1);
    }
}

/* Goal: log-ratios beyond +-20 count as +-20, for each token, and for the sum of a sequence. */
static void test_weights_of_extreme_rows_are_clamped(void **state)
{
    static const double row[] = {25, -40, 18};
    struct rk_rollout_correction token = parse("token", "1e12", NULL, NULL);
    struct rk_rollout_correction sequence = parse("sequence", "1e12", NULL, NULL);
    double raw[3];

    (void)state;
    rk_rollout_is_raw(raw, &token, row, 3);
    assert_true(raw[0] == exp(20.0) && raw[1] == exp(-20.0) && raw[2] == exp(18.0));
    rk_rollout_is_raw(raw, &sequence, row, 3);
    assert_true(raw[0] == exp(3.0) && raw[2] == exp(3.0));
}

struct value_case {
    rk_rollout_rs_t option;
    double of_row0, of_row1;
};

static const struct value_case value_cases[] = {
    {RK_ROLLOUT_RS_SEQ_SUM_K1, -1.5, .1},          {RK_ROLLOUT_RS_SEQ_SUM_K2, 1.375, .005},
    {RK_ROLLOUT_RS_SEQ_SUM_K3, 2.236941, .004837}, {RK_ROLLOUT_RS_SEQ_MEAN_K1, -.5, .05},
    {RK_ROLLOUT_RS_SEQ_MEAN_K2, .458333, .0025},   {RK_ROLLOUT_RS_SEQ_MEAN_K3, .745647, .002419},
    {RK_ROLLOUT_RS_SEQ_MAX_K2, 1.125, .005},       {RK_ROLLOUT_RS_SEQ_MAX_K3, 1.981689, .004837},
};

static void test_statistics_of_worked_rows(void **state)
{
    static const double k3[] = {.148721, .106531, 1.981689};
    double values[3];

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(value_cases); i++) {
        const struct value_case *test = &value_cases[i];
        const char *name = rk_rollout_rs_name(test->option);

        assert_below(name, fabs(rk_rollout_rs_row_value(test->option, row0, 3) - test->of_row0), 1e-6);
        assert_below(name, fabs(rk_rollout_rs_row_value(test->option, row1, 2) - test->of_row1), 1e-6);
        assert_true(rk_rollout_rs_row_value(test->option, row0, 0) == 0.0);
    }
    rk_rollout_rs_token_values(values, RK_ROLLOUT_RS_TOKEN_K3, row0, 3);
    for (int t = 0; t < 3; t++)
        assert_below("token_k3", fabs(values[t] - k3[t]), 1e-6);
    rk_rollout_rs_token_values(values, RK_ROLLOUT_RS_TOKEN_K1, row0, 3);
    assert_true(values[0] == -.5 && values[2] == -1.5);
}

struct keep_case {
    const char *rs, *threshold, *keep0, *keep1;
};

static const struct keep_case keep_cases[] = {
    {"token_k1", "0.5_2.0", "110", "11"},
    {"token_k1", "2", "110", "11"},
    {"token_k1", "0.2_1.5", "101", "11"}, /* bounds of rollout / train: not those of the weights */
    {"seq_sum_k1", "0.5_2.0", "000", "11"},
    {"seq_mean_k1", "0.5_2.0", "111", "11"},
    {"token_k1,seq_mean_k3", "0.5_2.0,0.01", "000", "11"},
    {" token_k2 , token_k2 ", "0.2", "110", "11"},
    {"seq_max_k3", "0.0048", "000", "00"},
    {"seq_sum_k2,token_k3", "2", "111", "11"},
};

static void check_keep(const struct rk_rollout_correction *config, const double *row, const char *expected)
{
    uint8_t keep[3];

    rk_rollout_rs_keep(keep, config, row, (int64_t)strlen(expected));
    for (size_t t = 0; t < strlen(expected); t++)
        assert_int_equal(keep[t], expected[t] - '0');
}

static void test_rejection_of_worked_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(keep_cases); i++) {
        struct rk_rollout_correction config = parse(NULL, NULL, keep_cases[i].rs, keep_cases[i].threshold);

        print_message("%s %s\n", keep_cases[i].rs, keep_cases[i].threshold);
        check_keep(&config, row0, keep_cases[i].keep0);
        check_keep(&config, row1, keep_cases[i].keep1);
    }
}

/* Goal: NaN is not hidden: such tokens are rejected, and NaN is not clamped. */
static void test_nan_is_rejected(void **state)
{
    static const double row[] = {0, NAN, 0};
    struct rk_rollout_correction config = parse("token", "2", "token_k1", "2");
    struct rk_rollout_correction max = parse(NULL, NULL, "seq_max_k2", "2");
    double raw[3];

    (void)state;
    check_keep(&config, row, "101");
    check_keep(&max, row, "000");
    rk_rollout_is_raw(raw, &config, row, 3);
    assert_true(isnan(rk_rollout_is_weight(&config, raw[1])));
}

struct refused_case {
    struct rk_rollout_correction_keys keys;
    const char *key, *value;
};

static const struct refused_case refused_cases[] = {
    {{.rollout_is = "row"}, "rollout_is:", "\"row\""},
    {{.rollout_is = ""}, "rollout_is:", "\"\""},
    {{.rollout_is = "token", .rollout_is_threshold = ""}, "rollout_is_threshold:", "\"\""},
    {{.rollout_is = "token", .rollout_is_threshold = "0"}, "rollout_is_threshold:", "\"0\""},
    {{.rollout_is = "token", .rollout_is_threshold = "-1"}, "rollout_is_threshold:", "\"-1\""},
    {{.rollout_is = "token", .rollout_is_threshold = "two"}, "rollout_is_threshold:", "\"two\""},
    {{.rollout_is = "token", .rollout_is_threshold = "true"}, "rollout_is_threshold:", "\"true\""},
    {{.rollout_is = "token", .rollout_is_threshold = "3_2"}, "rollout_is_threshold:", "\"3_2\""},
    {{.rollout_is = "token", .rollout_is_threshold = "0_2"}, "rollout_is_threshold:", "\"0_2\""},
    {{.rollout_is = "token", .rollout_is_threshold = "1_2_3"}, "rollout_is_threshold:", "\"1_2_3\""},
    {{.rollout_is = "token", .rollout_is_threshold = "_2"}, "rollout_is_threshold:", "\"_2\""},
    {{.rollout_is = "token", .rollout_is_threshold = "inf"}, "rollout_is_threshold:", "\"inf\""},
    {{.rollout_rs = "token_k4", .rollout_rs_threshold = "2"}, "rollout_rs:", "\"token_k4\""},
    {{.rollout_rs = "token_k2,seq_max_k1", .rollout_rs_threshold = "2"}, "rollout_rs:", "\"seq_max_k1\""},
    {{.rollout_rs = "", .rollout_rs_threshold = "2"}, "rollout_rs:", "\"\""},
    {{.rollout_rs = " ,", .rollout_rs_threshold = "2"}, "rollout_rs:", "\" ,\""},
    {{.rollout_rs = "token_k2"}, "rollout_rs_threshold:", "null"},
    {{.rollout_rs = "token_k2", .rollout_rs_threshold = ","}, "rollout_rs_threshold:", "\",\""},
    {{.rollout_rs = "token_k2", .rollout_rs_threshold = "1,2"}, "rollout_rs_threshold:", "\"1,2\""},
    {{.rollout_rs = "token_k2,token_k3,token_k1", .rollout_rs_threshold = "1,2"},
     "for each of the 3",
     "\"1,2\""},
    {{.rollout_rs = "token_k2", .rollout_rs_threshold = "0"}, "rollout_rs_threshold: token_k2:", "\"0\""},
    {{.rollout_rs = "token_k2", .rollout_rs_threshold = "1_2"}, "rollout_rs_threshold: token_k2:", "\"1_2\""},
    {{.rollout_rs = "token_k1", .rollout_rs_threshold = "0"}, "rollout_rs_threshold: token_k1:", "\"0\""},
    {{.rollout_rs = "token_k1", .rollout_rs_threshold = "0.5"}, "rollout_rs_threshold: token_k1:", "\"0.5\""},
    {{.rollout_rs = "token_k1", .rollout_rs_threshold = "2_1"}, "rollout_rs_threshold: token_k1:", "\"2_1\""},
    {{.rollout_rs = "token_k1", .rollout_rs_threshold = "-1_1"},
     "rollout_rs_threshold: token_k1:",
     "\"-1_1\""},
    {{.loss_type = "grpo"}, "loss_type:", "\"grpo\""},
    {{.rollout_is = "token",
      .rollout_is_batch_normalize = true,
      .bypass_mode = true,
      .loss_type = "reinforce"},
     "rollout_is_batch_normalize:",
     "true"},
};

static void test_wrong_keys_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(refused_cases); i++) {
        struct rk_rollout_correction config;

        assert_fails(rk_rollout_correction_parse(&config, &refused_cases[i].keys), RK_INVALID_ARGUMENT,
                     refused_cases[i].key);
        assert_fails(rk_rollout_correction_parse(&config, &refused_cases[i].keys), RK_INVALID_ARGUMENT,
                     refused_cases[i].value);
    }
}

/* Goal: unused keys are not read, as in verl, where every configuration has defaults of unused keys. */
static void test_unused_thresholds_are_not_read(void **state)
{
    struct rk_rollout_correction config = parse(NULL, "-3", NULL, "x");

    (void)state;
    assert_int_equal(config.rollout_is, RK_ROLLOUT_IS_NONE);
    assert_int_equal(config.num_rules, 0);
    assert_int_equal(config.loss_type, RK_BYPASS_PPO_CLIP);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights_of_worked_rows),
        cmocka_unit_test(test_weights_of_extreme_rows_are_clamped),
        cmocka_unit_test(test_statistics_of_worked_rows),
        cmocka_unit_test(test_rejection_of_worked_rows),
        cmocka_unit_test(test_nan_is_rejected),
        cmocka_unit_test(test_wrong_keys_are_refused),
        cmocka_unit_test(test_unused_thresholds_are_not_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
