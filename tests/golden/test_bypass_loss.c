/* The loss bypass_mode against verl's own function in float64 (golden/rollout_correction, made by
 * golden/gen/make_rollout_correction.py). */
#include "tests/support/test.h"

#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/math/rk_rollout_correction.h"
#include "base/rk_str.h"
#include "tests/support/losses.h"

#define TOL   1e-6 /* relative; the fixture has 10 digits */
#define FLOOR 1e-3 /* TOL is relative to at least this */

static void assert_near(const char *name, double got, double want)
{
    if (!(fabs(got - want) <= TOL * fmax(FLOOR, fabs(want))))
        fail_msg("%s: %.17g, expected %.17g", name, got, want);
}

static double real_at(const struct rk_json *object, const char *key, int64_t i)
{
    return rk_json_as_real(rk_json_at(rk_json_find(object, key), i), NAN);
}

/* A micro-batch: rows of equal width, with NaN outside of the mask. */
struct micro {
    struct rk_test_batch batch;
    int64_t num_rows, num_counted;
};

static void fill(struct micro *micro, const struct rk_json *test)
{
    const char *mask = rk_json_as_string(rk_json_find(test, "mask"), "");
    int64_t width = rk_json_as_int(rk_json_find(test, "width"), 0);
    struct rk_test_batch *batch = &micro->batch;

    *micro = (struct micro){.num_rows = rk_json_as_int(rk_json_find(test, "rows"), 0)};
    batch->num_seqs = (int32_t)micro->num_rows;
    batch->absent = RK_LOSS_BIT(RK_LOSS_ROLLOUT_IS_WEIGHTS);
    batch->global = (struct rk_loss_denominators){real_at(test, "global", 0), real_at(test, "global", 1),
                                                  real_at(test, "global", 2)};
    assert_ok(
        rk_loss_agg_mode_parse("mode", rk_json_as_string(rk_json_find(test, "mode"), ""), &batch->mode));
    assert_int_equal(strlen(mask), micro->num_rows * width);
    for (int32_t row = 0; row < batch->num_seqs; row++) {
        batch->cu_seqlens[row + 1] = (int32_t)((row + 1) * width);
        for (int64_t t = row * width; t < (row + 1) * width; t++) {
            batch->mask[t] = mask[t] == '1';
            micro->num_counted += batch->mask[t];
            batch->outputs[RK_HEAD_LOG_PROBS][t] = batch->mask[t] ? real_at(test, "old", t) / 64.0 : NAN;
            batch->columns[RK_LOSS_OLD_LOG_PROBS][t] =
                batch->mask[t] ? real_at(test, "rollout", t) / 64.0 : NAN;
            batch->columns[RK_LOSS_ADVANTAGES][t] =
                batch->mask[t] ? real_at(test, "advantages", t) / 64.0 : NAN;
        }
    }
}

static void set_text(struct rk_json *options, const char *key, const struct rk_json *value)
{
    char *option = rk_format("rollout_correction.%s", key), *number = NULL;

    if (value && !rk_json_is_null(value) && rk_json_type(value) != RK_JSON_STRING)
        number = rk_json_dump(value, 0, false);
    rk_json_set(options, option, number ? rk_json_new_string(number) : rk_json_clone(value));
    rk_free(number);
    rk_free(option);
}

static void read_loss(struct rk_test_loss *loss, const struct rk_json *test)
{
    static const char *const texts[] = {"rollout_is", "rollout_is_threshold", "rollout_rs",
                                        "rollout_rs_threshold", "loss_type"};
    const struct rk_json *config = rk_json_find(test, "config");
    struct rk_json *options = rk_json_new_object();
    char *text;

    for (size_t i = 0; i < RK_ARRAY_LEN(texts); i++)
        set_text(options, texts[i], rk_json_find(config, texts[i]));
    rk_json_set(options, "clip_ratio_low", rk_json_new_real(real_at(test, "clip", 0)));
    rk_json_set(options, "clip_ratio_high", rk_json_new_real(real_at(test, "clip", 1)));
    rk_json_set(options, "clip_ratio_c", rk_json_new_real(real_at(test, "clip", 2)));
    text = rk_json_dump(options, 0, false);
    assert_ok(rk_test_loss_read(loss, rk_loss_find(RK_OBJECTIVE_POLICY, "bypass_mode"), text));
    rk_free(text);
    rk_json_free(options);
}

/* verl's metric of the case; NAN when it has none. */
static double expected_metric(const struct rk_json *all, const struct rk_json *test, const char *name)
{
    const struct rk_json *numbers = rk_json_find(test, "names");

    for (int64_t i = 0; i < rk_json_count(numbers); i++) {
        const struct rk_json *known =
            rk_json_at(rk_json_find(all, "names"), rk_json_as_int(rk_json_at(numbers, i), -1));

        if (strcmp(rk_json_as_string(known, ""), name) == 0)
            return real_at(test, "values", i);
    }
    return NAN;
}

/* What verl's mean is over. */
typedef enum mean { OF_TOKENS, OF_KEPT, OF_ROWS, OF_LEVEL, EXTREME } mean_t;

static const struct {
    const char *name;
    mean_t mean;
} kinds[] = {
    {"ppo_kl", OF_KEPT},
    {"pg_clipfrac", OF_KEPT},
    {"pg_clipfrac_lower", OF_KEPT},
    {"rollout_is_mean", OF_TOKENS},
    {"rollout_is_max", EXTREME},
    {"rollout_is_min", EXTREME},
    {"rollout_is_ratio_fraction_high", OF_LEVEL},
    {"rollout_is_ratio_fraction_low", OF_LEVEL},
    {"rollout_is_oob_ratio", OF_TOKENS},
    {"rollout_rs_masked_fraction", OF_TOKENS},
    {"rollout_rs_seq_masked_fraction", OF_ROWS},
    {"kl", OF_TOKENS},
    {"k3_kl", OF_TOKENS},
    {"chi2_token", OF_TOKENS},
    {"chi2_seq", OF_ROWS},
    {"training_ppl", OF_ROWS},
    {"training_log_ppl", OF_ROWS},
    {"rollout_ppl", OF_ROWS},
    {"rollout_log_ppl", OF_ROWS},
    {"log_ppl_diff", OF_ROWS},
    {"log_ppl_abs_diff", OF_ROWS},
    {"log_ppl_diff_max", EXTREME},
    {"log_ppl_diff_min", EXTREME},
    {"ppl_ratio", OF_ROWS},
};

/* verl's means are over the micro-batch; rankd divides by the mini-batch's denominators. */
static double by_denominators(const struct micro *micro, size_t kind, double value, bool is_token)
{
    mean_t mean = kinds[kind].mean == OF_LEVEL ? (is_token ? OF_TOKENS : OF_ROWS) : kinds[kind].mean;

    if (mean == OF_TOKENS)
        return value * (double)micro->num_counted / micro->batch.global.num_tokens;
    return mean == OF_ROWS ? value * (double)micro->num_rows / micro->batch.global.num_sequences : value;
}

static void check_metrics(const struct rk_json *all, const struct rk_json *test, const struct micro *micro,
                          const struct rk_test_loss *loss, const struct rk_test_loss_result *result)
{
    const char *level =
        rk_json_as_string(rk_json_find(rk_json_find(test, "config"), "rollout_is"), "sequence");
    double kept = rk_test_loss_metric(loss, result, "num_kept");
    bool is_token = strcmp(level, "token") == 0;

    for (size_t k = 0; k < RK_ARRAY_LEN(kinds); k++) {
        double want = expected_metric(all, test, kinds[k].name), got;
        char *name = k < 3 ? rk_strdup(kinds[k].name) : rk_format("rollout_corr/%s", kinds[k].name);

        if (!isnan(want)) {
            got = rk_test_loss_metric(loss, result, name);
            if (kinds[k].mean == OF_KEPT) /* as rk_objective_end_mini_batch */
                got = kept > 0.0 ? got * micro->batch.global.num_tokens / kept : 0.0;
            want = by_denominators(micro, k, want, is_token);
            if (rk_str_has_prefix(kinds[k].name, "chi2")) /* a mean less 1 */
                assert_near(name, got + 1.0, want + 1.0);
            else
                assert_near(name, got, want);
        }
        rk_free(name);
    }
}

/* Goal: loss, gradient and metrics equal verl's for both losses, all aggregation modes, weights, statistics
 * and thresholds, on ragged and fully masked rows and log-ratios beyond +-20. */
static void test_bypass_loss_equals_verls(void **state)
{
    static const char *const files[] = {"bypass_0.json", "bypass_1.json"};
    int64_t num_cases = 0;

    (void)state;
    for (size_t f = 0; f < RK_ARRAY_LEN(files); f++) {
        char *relative = rk_format("golden/rollout_correction/%s", files[f]);
        char *path = rk_test_fixture_path(relative);
        const struct rk_json *cases;
        struct rk_json *all;

        assert_ok(rk_json_parse_file(&all, path, 1 << 20, 0));
        cases = rk_json_find(all, "cases");
        for (int64_t c = 0; c < rk_json_count(cases); c++, num_cases++) {
            const struct rk_json *test = rk_json_at(cases, c);
            struct rk_test_loss_result result;
            struct rk_test_loss loss;
            struct micro micro;
            int64_t n = 0;

            fill(&micro, test);
            read_loss(&loss, test);
            result = rk_test_loss_run(&loss, &micro.batch);
            assert_near("pg_loss", rk_test_loss_metric(&loss, &result, "pg_loss"),
                        rk_json_as_real(rk_json_find(test, "loss"), NAN));
            for (int32_t t = 0; t < micro.batch.cu_seqlens[micro.num_rows]; t++) {
                double want = micro.batch.mask[t] ? real_at(test, "grad", n++) : 0.0;

                assert_near("gradient", result.grads[RK_HEAD_LOG_PROBS][t], want);
            }
            check_metrics(all, test, &micro, &loss, &result);
        }
        rk_json_free(all);
        rk_free(path);
        rk_free(relative);
    }
    assert_true(num_cases >= 200);
}

/* --- worked numbers --- */

struct worked_case {
    const char *options;
    double loss, ppo_kl, clipfrac, oob; /* NAN: the loss has no such metric */
    double grads[2];
};

static const struct worked_case worked_cases[] = {
    {"\"loss_type\": \"reinforce\", \"rollout_correction.rollout_is\": \"token\"",
     .598151,
     -.2,
     NAN,
     NAN,
     {-.824361, .452419}},
    {"\"loss_type\": \"reinforce\", \"rollout_correction.rollout_is\": \"token\", "
     "\"rollout_correction.rollout_is_threshold\": \"0.95_5.0\"",
     .824361,
     -.2,
     NAN,
     .5,
     {-.824361, 0}},
    {"\"loss_type\": \"ppo_clip\"", -.147581, -.2, .5, NAN, {0, .452419}},
};

/* log_prob [-1, -.5], rollout [-1.5, -.4], A [1, -1], token-mean. */
static void test_bypass_loss_worked_example(void **state)
{
    const struct rk_loss *row = rk_loss_find(RK_OBJECTIVE_POLICY, "bypass_mode");
    struct rk_test_batch batch = {.num_seqs = 1,
                                  .cu_seqlens = {0, 2},
                                  .mask = {1, 1},
                                  .absent = RK_LOSS_BIT(RK_LOSS_ROLLOUT_IS_WEIGHTS),
                                  .mode = RK_AGG_TOKEN_MEAN,
                                  .global = {2, 1, 1}};

    (void)state;
    memcpy(batch.outputs[RK_HEAD_LOG_PROBS], (double[]){-1, -.5}, 2 * sizeof(double));
    memcpy(batch.columns[RK_LOSS_OLD_LOG_PROBS], (double[]){-1.5, -.4}, 2 * sizeof(double));
    memcpy(batch.columns[RK_LOSS_ADVANTAGES], (double[]){1, -1}, 2 * sizeof(double));
    for (size_t i = 0; i < RK_ARRAY_LEN(worked_cases); i++) {
        const struct worked_case *test = &worked_cases[i];
        char *options = rk_format("{\"rollout_correction.%s}", test->options + 1);
        struct rk_test_loss_result result;
        struct rk_test_loss loss;

        assert_ok(rk_test_loss_read(&loss, row, options));
        result = rk_test_loss_run(&loss, &batch);
        assert_below("loss", fabs(rk_test_loss_metric(&loss, &result, "pg_loss") - test->loss), 1e-6);
        assert_below("ppo_kl", fabs(rk_test_loss_metric(&loss, &result, "ppo_kl") - test->ppo_kl), 1e-6);
        for (int t = 0; t < 2; t++)
            assert_below("gradient", fabs(result.grads[RK_HEAD_LOG_PROBS][t] - test->grads[t]), 1e-6);
        if (!isnan(test->clipfrac))
            assert_true(rk_test_loss_metric(&loss, &result, "pg_clipfrac") == test->clipfrac);
        if (!isnan(test->oob))
            assert_true(rk_test_loss_metric(&loss, &result, "rollout_corr/rollout_is_oob_ratio") ==
                        test->oob);
        rk_free(options);
    }
}

static void test_bypass_loss_wrong_keys_are_refused(void **state)
{
    static const struct {
        const char *options, *text;
    } cases[] = {
        {"{\"rollout_correction.rollout_is\": \"row\"}", "rollout_correction.rollout_is: expected one of"},
        {"{\"rollout_correction.rollout_rs\": \"token_k4\"}",
         "rollout_correction.rollout_rs: expected some of"},
        {"{\"rollout_correction.rollout_rs\": \"token_k1\"}",
         "rollout_correction.rollout_rs_threshold: expected"},
        {"{\"rollout_correction.rollout_is\": \"token\", \"rollout_correction.rollout_is_threshold\": \"0\"}",
         "rollout_correction.rollout_is_threshold: expected"},
        {"{\"rollout_correction.rollout_is\": \"token\", \"rollout_correction.loss_type\": \"reinforce\", "
         "\"rollout_correction.rollout_is_batch_normalize\": true}",
         "rollout_correction.rollout_is_batch_normalize: expected false"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_test_loss loss;

        assert_fails(
            rk_test_loss_read(&loss, rk_loss_find(RK_OBJECTIVE_POLICY, "bypass_mode"), cases[i].options),
            RK_INVALID_ARGUMENT, cases[i].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bypass_loss_equals_verls),
        cmocka_unit_test(test_bypass_loss_worked_example),
        cmocka_unit_test(test_bypass_loss_wrong_keys_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
