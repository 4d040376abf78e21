/* Rollout correction of a batch: verl's own functions on random batches, and worked numbers. */
#include "rl/algo/rollout_correction.h"

#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "tests/support/test.h"

#define CELLS 64
#define TOL   1e-6 /* relative; the fixtures have 10 digits, weights are f32 */
#define FLOOR                                                                                       \
    1e-3 /* lower bound of the magnitude that TOL refers to: deviations of equal values suffer from \
          * cancellation */

static struct rk_json *golden(const char *name)
{
    char *relative = rk_format("golden/rollout_correction/%s", name);
    char *path = rk_test_fixture_path(relative), *text;
    struct rk_json *json;
    size_t bytes;

    text = rk_test_read_file(path, &bytes);
    assert_ok(rk_json_parse(&json, text, bytes, path, 0));
    rk_free(text);
    rk_free(path);
    rk_free(relative);
    return json;
}

static void assert_near(const char *name, double got, double want)
{
    if (!(fabs(got - want) <= TOL * fmax(FLOOR, fabs(want))))
        fail_msg("%s: %.17g, expected %.17g", name, got, want);
}

struct batch {
    float old[CELLS], rollout[CELLS], weights[CELLS];
    int64_t mask[CELLS], keep[CELLS];
    struct rk_rollout_corr_in in;
    struct rk_rollout_corr_out out;
};

static void batch_init(struct batch *batch, int64_t num_rows, int64_t width)
{
    assert_true(num_rows * width <= CELLS);
    *batch = (struct batch){
        .in = {num_rows, width, batch->old, batch->rollout, batch->mask},
        .out = {batch->weights, batch->keep, rk_json_new_object()},
    };
}

static void fill(struct batch *batch, const struct rk_json *test)
{
    const char *mask = rk_json_as_string(rk_json_find(test, "mask"), "");

    batch_init(batch, rk_json_as_int(rk_json_find(test, "rows"), 0),
               rk_json_as_int(rk_json_find(test, "width"), 0));
    assert_int_equal(strlen(mask), batch->in.num_rows * batch->in.response_length);
    for (int64_t i = 0; mask[i]; i++) {
        batch->mask[i] = mask[i] - '0';
        batch->old[i] = (float)rk_json_as_int(rk_json_at(rk_json_find(test, "old"), i), 0) / 64.0f;
        batch->rollout[i] = (float)rk_json_as_int(rk_json_at(rk_json_find(test, "rollout"), i), 0) / 64.0f;
        if (!batch->mask[i])
            batch->old[i] = NAN; /* must not be read */
    }
}

/* A text, or the text of a number. */
static char *text_of(const struct rk_json *config, const char *key)
{
    const struct rk_json *value = rk_json_find(config, key);

    if (rk_json_is_null(value))
        return NULL;
    return rk_json_type(value) == RK_JSON_STRING ? rk_strdup(rk_json_as_string(value, ""))
                                                 : rk_json_dump(value, 0, false);
}

static void parse(struct rk_rollout_correction *out, const struct rk_json *config)
{
    char *is_threshold = text_of(config, "rollout_is_threshold");
    char *rs_threshold = text_of(config, "rollout_rs_threshold");

    assert_ok(rk_rollout_correction_parse(
        out, &(struct rk_rollout_correction_keys){
                 .rollout_is = rk_json_as_string(rk_json_find(config, "rollout_is"), NULL),
                 .rollout_is_threshold = is_threshold,
                 .rollout_is_batch_normalize =
                     rk_json_as_bool(rk_json_find(config, "rollout_is_batch_normalize"), false),
                 .rollout_rs = rk_json_as_string(rk_json_find(config, "rollout_rs"), NULL),
                 .rollout_rs_threshold = rs_threshold,
             }));
    rk_free(is_threshold);
    rk_free(rs_threshold);
}

static void check_cells(const struct batch *batch, const struct rk_json *test)
{
    const char *keep = rk_json_as_string(rk_json_find(test, "keep"), "");
    const struct rk_json *weights = rk_json_find(test, "weights");
    int64_t n = 0;

    for (int64_t i = 0; keep[i]; i++) {
        assert_int_equal(batch->keep[i], keep[i] - '0');
        if (weights && batch->mask[i])
            assert_near("weight", (double)batch->weights[i], rk_json_as_real(rk_json_at(weights, n++), NAN));
        else
            assert_true(batch->weights[i] == 0.0f);
    }
    assert_int_equal(n, rk_json_count(weights));
}

static void check_metrics(const struct batch *batch, const struct rk_json *test, const struct rk_json *names)
{
    const struct rk_json *numbers = rk_json_find(test, "names"), *values = rk_json_find(test, "values");

    for (int64_t i = 0; i < rk_json_count(numbers); i++) {
        const char *name =
            rk_json_as_string(rk_json_at(names, rk_json_as_int(rk_json_at(numbers, i), -1)), "?");
        char *key = rk_format("rollout_corr/%s", name);

        assert_near(key, rk_json_as_real(rk_json_find(batch->out.metrics, key), NAN),
                    rk_json_as_real(rk_json_at(values, i), NAN));
        rk_free(key);
    }
    assert_int_equal(rk_json_count(batch->out.metrics), rk_json_count(numbers));
}

/* Goal: weights, masks and every metric equal verl's, on ragged and fully masked rows, one row, log-ratios
 * beyond +-20, all levels, statistics and thresholds; nothing outside the mask is read. */
static void test_batches_equal_verls(void **state)
{
    static const char *const files[] = {"cases_0.json", "cases_1.json"};
    int64_t num_cases = 0;

    (void)state;
    for (size_t f = 0; f < RK_ARRAY_LEN(files); f++) {
        struct rk_json *all = golden(files[f]);
        const struct rk_json *cases = rk_json_find(all, "cases");

        for (int64_t c = 0; c < rk_json_count(cases); c++, num_cases++) {
            const struct rk_json *test = rk_json_at(cases, c);
            struct rk_rollout_correction config;
            struct batch batch;

            parse(&config, rk_json_find(test, "config"));
            fill(&batch, test);
            assert_ok(rk_rollout_corr_apply(&batch.out, &batch.in, &config));
            check_cells(&batch, test);
            check_metrics(&batch, test, rk_json_find(all, "names"));
            rk_json_free(batch.out.metrics);
        }
        rk_json_free(all);
    }
    assert_true(num_cases >= 200);
}

/* --- worked numbers --- */

static void worked(struct batch *batch, const float *old, const float *rollout)
{
    static const int64_t mask[] = {1, 1, 1, 1, 1, 0};

    batch_init(batch, 2, 3);
    memcpy(batch->mask, mask, sizeof(mask));
    memcpy(batch->old, old, 6 * sizeof(*old));
    memcpy(batch->rollout, rollout, 6 * sizeof(*rollout));
}

static double metric(const struct batch *batch, const char *name)
{
    char *key = rk_format("rollout_corr/%s", name);
    double value = rk_json_as_real(rk_json_find(batch->out.metrics, key), NAN);

    rk_free(key);
    return value;
}

struct expected {
    const char *name;
    double value;
};

struct worked_case {
    const char *is, *threshold;
    bool normalize;
    const char *rs, *rs_threshold;
    float weights[6];
    struct expected metrics[12];
};

/* Log-ratios [[.5, -.5, 1.5], [0, -.1, -]]. */
static const struct worked_case worked_cases[] = {
    {"token",
     "2",
     false,
     "token_k1",
     "0.5_2.0",
     {1.648721f, .606531f, 2, 1, .904837f},
     {{"rollout_is_mean", 1.232018},
      {"rollout_is_ratio_fraction_high", .2},
      {"rollout_is_ratio_fraction_low", 0},
      {"rollout_is_max", 2},
      {"rollout_is_min", .606531},
      {"rollout_is_std", .512943},
      {"rollout_is_eff_sample_size", .852266},
      {"rollout_is_seq_mean", 1.185418},
      {"rollout_is_seq_std", .329511},
      {"rollout_is_seq_fraction_high", .5}}},
    {"token",
     "2",
     true,
     "token_k1",
     "0.5_2.0",
     {1.338228f, .492307f, 1.623353f, .811677f, .734435f},
     {{"rollout_is_batch_norm_factor", 1.232018},
      {"rollout_rs_token_k1_mean", -.28},
      {"rollout_rs_token_k1_max", .5},
      {"rollout_rs_token_k1_min", -1.5},
      {"rollout_rs_token_k1_fraction_low", .2},
      {"rollout_rs_token_k1_std", .428973},
      {"rollout_rs_token_k1_masked_fraction", .2},
      {"rollout_rs_token_k1_seq_masked_fraction", .5},
      {"rollout_rs_masked_fraction", .2},
      {"rollout_rs_seq_masked_fraction", .5}}},
    {"sequence",
     "2",
     false,
     NULL,
     NULL,
     {2, 2, 2, .904837f, .904837f},
     {{"rollout_is_max", 4.481689},
      {"rollout_is_mean", 1.561935},
      {"rollout_is_std", .536518},
      {"rollout_is_eff_sample_size", .894463},
      {"rollout_is_seq_std", .774397}}},
    {"sequence",
     "2",
     true,
     NULL,
     NULL,
     {1.377013f, 1.377013f, 1.377013f, .622987f, .622987f},
     {{"rollout_is_batch_norm_factor", 1.452419}}},
    {"token",
     "0.7_2.0",
     false,
     NULL,
     NULL,
     {1.648721f, 0, 0, 1, .904837f},
     {{"rollout_is_mean", .710712},
      {"rollout_is_ratio_fraction_high", .2},
      {"rollout_is_ratio_fraction_low", .2},
      {"rollout_is_min", 0},
      {"rollout_is_std", .634264},
      {"rollout_is_eff_sample_size", .556656},
      {"rollout_is_oob_ratio", .4}}},
    {"sequence", "0.7_2.0", false, NULL, NULL, {0, 0, 0, .904837f, .904837f}, {{0}}},
    {"token",
     "0.5_5.0",
     true,
     NULL,
     NULL,
     {.953925f, .350929f, 2.593036f, .578585f, .523525f},
     {{"rollout_is_batch_norm_factor", 1.728356}}},
};

static void test_worked_weights_and_metrics(void **state)
{
    static const float old[] = {-1, -2, -.5f, -1, -1, 0}, rollout[] = {-1.5f, -1.5f, -2, -1, -.9f, 0};

    (void)state;
    for (size_t c = 0; c < RK_ARRAY_LEN(worked_cases); c++) {
        const struct worked_case *test = &worked_cases[c];
        struct rk_rollout_correction config;
        struct batch batch;

        assert_ok(rk_rollout_correction_parse(&config, &(struct rk_rollout_correction_keys){
                                                           .rollout_is = test->is,
                                                           .rollout_is_threshold = test->threshold,
                                                           .rollout_is_batch_normalize = test->normalize,
                                                           .rollout_rs = test->rs,
                                                           .rollout_rs_threshold = test->rs_threshold,
                                                       }));
        worked(&batch, old, rollout);
        assert_ok(rk_rollout_corr_apply(&batch.out, &batch.in, &config));
        for (int i = 0; i < 6; i++)
            assert_below("weight", fabs((double)(batch.weights[i] - test->weights[i])), 2e-6);
        for (const struct expected *expected = test->metrics; expected->name; expected++)
            assert_below(expected->name, fabs(metric(&batch, expected->name) - expected->value), 2e-6);
        assert_int_equal(batch.keep[2], test->rs ? 0 : 1);
        assert_int_equal(batch.keep[5], 0);
        rk_json_free(batch.out.metrics);
    }
}

/* Goal: without weights and rejection the block measures the two policies and changes nothing. */
static void test_worked_policy_metrics(void **state)
{
    static const struct expected expected[] = {
        {"training_ppl", 2.964776},
        {"rollout_ppl", 3.940100},
        {"kl", -.28},
        {"k3_kl", .448356},
        {"log_ppl_diff", -.225},
        {"log_ppl_abs_diff", .275},
        {"ppl_ratio", .828901},
        {"chi2_token", 3.998086},
        {"chi2_seq", 9.452134},
        {"log_ppl_diff_max", .05},
        {"log_ppl_diff_min", -.5},
        {"training_log_ppl", 1.083333},
        {"rollout_log_ppl", 1.308333},
    };
    static const float old[] = {-1, -2, -.5f, -1, -1, 0}, rollout[] = {-1.5f, -1.5f, -2, -1, -.9f, 0};
    struct batch batch;

    (void)state;
    worked(&batch, old, rollout);
    batch.out.weights = NULL;
    batch.out.response_mask = batch.mask; /* in place */
    assert_ok(rk_rollout_corr_apply(&batch.out, &batch.in, &(struct rk_rollout_correction){0}));
    for (size_t i = 0; i < RK_ARRAY_LEN(expected); i++)
        assert_below(expected[i].name, fabs(metric(&batch, expected[i].name) - expected[i].value), 2e-6);
    assert_int_equal(rk_json_count(batch.out.metrics), RK_ARRAY_LEN(expected));
    for (int i = 0; i < 6; i++)
        assert_int_equal(batch.mask[i], i < 5);
    rk_json_free(batch.out.metrics);
}

/* Goal: weights that are all 0 have no effective sample size; the metric is null, where verl fails. */
static void test_all_weights_zero_gives_null(void **state)
{
    static const float old[6] = {0}, rollout[] = {-3, -3, -3, -3, -3, 0};
    struct rk_rollout_correction config = {
        .rollout_is = RK_ROLLOUT_IS_TOKEN, .is_lower = .5, .is_upper = 2, .is_batch_normalize = true};
    struct batch batch;

    (void)state;
    worked(&batch, old, rollout);
    assert_ok(rk_rollout_corr_apply(&batch.out, &batch.in, &config));
    assert_true(rk_json_is_null(rk_json_find(batch.out.metrics, "rollout_corr/rollout_is_eff_sample_size")));
    assert_true(metric(&batch, "rollout_is_batch_norm_factor") == 1.0);
    assert_true(metric(&batch, "rollout_is_oob_ratio") == 1.0);
    assert_true(batch.weights[0] == 0.0f);
    rk_json_free(batch.out.metrics);
}

static void test_bad_batches_are_refused(void **state)
{
    static const float fine[6] = {0}, broken[] = {0, 0, 0, 0, INFINITY, 0};
    struct rk_rollout_correction config = {0};
    struct batch batch;

    (void)state;
    worked(&batch, broken, fine);
    assert_fails(rk_rollout_corr_apply(&batch.out, &batch.in, &config), RK_ABORTED, "old_log_probs of row 1");
    rk_json_free(batch.out.metrics);
    worked(&batch, fine, broken);
    assert_fails(rk_rollout_corr_apply(&batch.out, &batch.in, &config), RK_ABORTED,
                 "rollout_log_probs of row 1");
    memset(batch.mask, 0, sizeof(batch.mask));
    assert_fails(rk_rollout_corr_apply(&batch.out, &batch.in, &config), RK_INVALID_ARGUMENT, "response_mask");
    assert_int_equal(rk_json_count(batch.out.metrics), 0);
    rk_json_free(batch.out.metrics);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batches_equal_verls),     cmocka_unit_test(test_worked_weights_and_metrics),
        cmocka_unit_test(test_worked_policy_metrics),   cmocka_unit_test(test_all_weights_zero_gives_null),
        cmocka_unit_test(test_bad_batches_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
